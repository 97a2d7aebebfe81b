"""-s shrink against a plain transcription of the LLSVM paper's Algorithm 2, LIBLINEAR, and objectives by NumPy."""

import functools
import gzip
import itertools
import json

import numpy as np
import pytest
import scipy.sparse
from conftest import file_size_limit, names
from liblinear import liblinearutil
from objectives import least, objective, signs_and_costs
from problems import (
    arena_of,
    arrays,
    four_classes,
    growing_rows,
    make_classes,
    make_rows,
    split,
    write_text,
)
from training import LARGE

from llsvm import _reader, active, train
from llsvm import model as models
from llsvm.core import DataError, UsageError
from llsvm.evaluate import Predictor
from llsvm.reader import shuffle

SEED = 5


def algorithm_2(X, Y, C, inner, tolerance, groups=None):
    """LLSVM, one problem for each row of signs Y; a row is kept while any of them wants it.

    X: rows with the bias as their last column; C[k, i]: of row i in problem k; groups: of the rows kept, which fit
    together, by outer iteration. Free is what is farther from 0 and C than rounding. Yields (w by problem, dual values,
    rows kept) after the pass and after every outer iteration.
    """
    n_problems, n_rows = Y.shape
    w, alpha = np.zeros((n_problems, X.shape[1])), np.zeros((n_problems, n_rows))
    sweeps, done = np.zeros(n_problems, int), np.zeros(n_problems, bool)

    def update(k, i):
        old, square = alpha[k, i], X[i] @ X[i]
        G = 1 - Y[k, i] * (w[k] @ X[i])
        step = G / square if square > 0 else np.sign(G) * np.inf
        alpha[k, i] = min(max(old + step, 0.0), C[k, i])
        w[k] += (alpha[k, i] - old) * Y[k, i] * X[i]

    def wanted(i):
        step = 1 / max(X[i] @ X[i], 1e-300)
        return any(
            not done[k] and alpha[k, i] > 1e-6 * min(C[k, i], step) and alpha[k, i] < (1 - 1e-6) * C[k, i]
            for k in range(n_problems)
        )

    def dual():
        return alpha.sum(1) - 0.5 * (w**2).sum(1)

    for i in range(n_rows):
        for k in range(n_problems):
            update(k, i)
    kept, before = [i for i in range(n_rows) if wanted(i)], dual()
    yield w.copy(), before, kept
    while not done.all():
        for group in [np.array(kept)[places] for places in next(groups)] if groups else [np.array(kept)]:
            for k in np.flatnonzero(~done):
                order = np.arange(len(group), dtype=np.int32)
                for _ in range(inner):
                    sweeps[k] += 1
                    shuffle(order, len(order), SEED, int(sweeps[k]))
                    for place in order:
                        update(k, group[place])
        kept, after = [i for i in kept if wanted(i)], dual()
        done |= abs(after - before) <= tolerance * abs(after)
        before = after
        yield w.copy(), after, kept


def with_bias(X, bias):
    """Dense rows of float32 values, with the bias as their last column."""
    X = X.toarray().astype(np.float32).astype(float)
    return np.column_stack([X, np.full(len(X), bias)]) if bias >= 0 else X


def assert_same(fitted, expected, X, late=False):
    """late: classes become known during the first pass, so that its count of rows wanted is but a lower bound."""
    expected = list(expected)
    assert [stats.active for stats in fitted.passes][late:] == [len(kept) for _, _, kept in expected][late:]
    duals = [stats.dual for stats in fitted.passes]
    np.testing.assert_allclose(duals, [dual.sum() for _, dual, _ in expected], rtol=1e-6)
    w = fitted.model.matrix(X.shape[1])
    np.testing.assert_allclose(w.T, expected[-1][0], rtol=1e-5, atol=1e-6)
    assert fitted.outcome.reason == "converged"


@pytest.fixture
def shrink(fit):
    return functools.partial(fit, solver="shrink", tolerance=0.01, seed=SEED)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    rows = make_rows(600)
    path = write_text(tmp_path_factory.mktemp("two") / "two.txt", rows.X, rows.y)
    return rows._replace(text=path)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """(X, labels, path)"""
    X, labels = four_classes(500)
    return X, labels, write_text(tmp_path_factory.mktemp("many") / "many.txt", X, labels)


# --- as written


def test_rows_so_long_that_all_alphas_are_tiny_are_kept_all_the_same(two, tmp_path, shrink):
    X = two.X * 4096
    path = write_text(tmp_path / "long.txt", X, two.y)
    Y, costs = signs_and_costs([str(y) for y in two.y], ["1", "-1"])
    fitted = shrink(path, inner=3)
    assert fitted.passes[0].active > 20
    assert_same(fitted, algorithm_2(with_bias(X, -1.0), Y, costs, 3, 0.01), X)


@pytest.mark.parametrize("C, bias, inner, tolerance", [
    (1.0, -1.0, 1, 0.01), (1.0, 1.0, 12, 0.01), (0.05, 1.0, 3, 1e-4), (10.0, -1.0, 5, 1e-3),
])  # fmt: skip
def test_two_classes_are_algorithm_2(two, C, bias, inner, tolerance, shrink):
    fitted = shrink(two.text, C=C, bias=bias, inner=inner, tolerance=tolerance)
    Y, costs = signs_and_costs([str(y) for y in two.y], ["1", "-1"], C)
    assert_same(fitted, algorithm_2(with_bias(two.X, bias), Y, costs, inner, tolerance), two.X)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_vs_rest_is_algorithm_2(many, threads, shrink):
    X, labels, path = many
    fitted = shrink(path, bias=1.0, inner=4, threads=threads)
    Y, costs = signs_and_costs(labels, list(dict.fromkeys(labels)))
    assert fitted.model.labels == list(dict.fromkeys(labels))
    assert_same(fitted, algorithm_2(with_bias(X, 1.0), Y, costs, 4, 0.01), X)


def test_class_weights_are_liblinears(two, shrink):
    weights = {"1": 3.0, "-1": 0.5}
    Y, costs = signs_and_costs([str(y) for y in two.y], ["1", "-1"], 0.2, weights)
    fitted = shrink(two.text, C=0.2, inner=6, weights=weights)
    assert_same(fitted, algorithm_2(with_bias(two.X, -1), Y, costs, 6, 0.01), two.X)


def test_sub_problems_that_fit_memory_are_algorithm_2(texts, monkeypatch, shrink):
    """With so little memory that the active rows take several groups, as many as fit each time, until they all fit."""
    met = []
    groups = active.ActiveRows.groups

    def recorded(self):
        met.append([])
        for group in groups(self):
            met[-1].append(group.table["chunk"].astype(np.int64) << 32 | group.table["place"])
            yield group

    monkeypatch.setattr(active.ActiveRows, "groups", recorded)
    alike = {"1": 1.0, "-1": 1.0}  # with weights, no third class is waited for, and no row kept for it
    fitted = shrink(texts.text, bias=1.0, inner=5, memory=85_000, tolerance=1e-6, weights=alike)
    counts = [len(rows) for rows in met]
    assert counts[0] >= 3 and counts[-1] == 1 and counts == sorted(counts, reverse=True)
    places = ([np.searchsorted(np.sort(np.concatenate(rows)), group) for group in rows] for rows in met)
    Y, costs = signs_and_costs([str(y) for y in texts.y], ["1", "-1"])
    assert_same(fitted, algorithm_2(with_bias(texts.X, 1.0), Y, costs, 5, 1e-6, places), texts.X)


@pytest.mark.parametrize("first_rows", ["one class", "two classes", "three classes"])
def test_a_class_that_turns_up_late_has_seen_all_rows(tmp_path, first_rows, shrink):
    """The text is read in pieces of 64 KB; the rows of some classes come in later ones only."""
    X, y = make_classes(3000, 4)
    early = {"one class": 1, "two classes": 2, "three classes": 3}[first_rows]
    order = np.concatenate([np.flatnonzero(y < early), np.flatnonzero(y >= early)])
    X, y = X[order], y[order]
    path = write_text(tmp_path / "late.txt", X, y)
    assert (tmp_path / "late.txt").stat().st_size > 8 * 65536
    fitted = shrink(path, bias=1.0, inner=3, memory=2 << 20)
    labels = [str(label) for label in y]
    classes = list(dict.fromkeys(labels))
    Y, costs = signs_and_costs(labels, classes)
    assert_same(fitted, algorithm_2(with_bias(X, 1.0), Y, costs, 3, 0.01), X, late=True)


def test_a_block_set_gives_a_model_as_good(many, tmp_path, shrink):
    X, labels, path = many
    from_text, from_set = shrink(path, bias=1.0), shrink(split(path, 4, output=tmp_path / "set"), bias=1.0)
    assert from_set.outcome.stats.active < len(labels)
    accuracy = [accuracy_of(fitted, X, labels) for fitted in (from_text, from_set)]
    assert min(accuracy) > 0.9 and from_set.certificate.relative_gap < 0.5


def accuracy_of(fitted, X, labels):
    model = models.load(fitted.path)
    predictor = Predictor(model)
    choices = predictor.choose(predictor.scores(*arrays(X)))
    return np.mean([model.labels[choice] == label for choice, label in zip(choices, labels, strict=True)])


def test_the_accuracy_is_near_liblinears(many, shrink):
    X, labels, path = many
    codes = np.unique(labels, return_inverse=True)[1]
    theirs = liblinearutil.predict(codes, X, liblinearutil.train(codes, X, "-s 3 -B 1 -q"), "-q")[1][0]
    assert 100 * accuracy_of(shrink(path, bias=1.0), X, labels) > theirs - 2


# --- the radius rule


def test_the_radius_is_that_of_all_rows_wherever_the_longest_stands(tmp_path, shrink):
    """One pass against two: with the longest row first the radius is known from the start, so that a plain
    transcription that knows it beforehand must give the same."""
    rows = make_rows(400)
    X = scipy.sparse.vstack([rows.X[:1] * 8, rows.X[1:]]).tocsr()
    radius = float(np.sqrt(X.multiply(X).sum(1).max()))
    path = write_text(tmp_path / "longest-first.txt", X, rows.y)
    fitted = shrink(path, bias=None, inner=4)
    assert fitted.model.bias == pytest.approx(radius, rel=1e-12)
    Y, costs = signs_and_costs([str(y) for y in rows.y], ["1", "-1"])
    assert_same(fitted, algorithm_2(with_bias(X, radius), Y, costs, 4, 0.01), X)


def test_when_the_radius_grows_the_weights_are_still_those_of_the_dual_variables(tmp_path, fit, shrink):
    """P and D are certified at the final radius; D <= the optimum of exact training <= P, and both are close."""
    X, y = growing_rows(2500)
    path = write_text(tmp_path / "growing.txt", X, y)
    assert (tmp_path / "growing.txt").stat().st_size > 8 * 65536
    radius = float(np.sqrt(X.multiply(X).sum(1).max()))
    fitted = shrink(path, bias=None, memory=2 << 20, tolerance=1e-4)
    assert fitted.model.bias == pytest.approx(radius, rel=1e-12)
    optimum = fit(path, bias=None, tolerance=1e-6).certificate
    assert fitted.certificate.primal == pytest.approx(objective(X, y, fitted.model), rel=1e-9)
    assert fitted.certificate.dual <= optimum.primal * (1 + 1e-9)
    assert fitted.certificate.dual > 0.9 * optimum.dual
    assert fitted.certificate.primal < 1.25 * optimum.primal


def test_empty_rows_before_all_others_do_not_spoil_the_radius(tmp_path, fit, shrink):
    """R is not known in a first piece of text that holds empty rows alone; the dual value must hold all the same."""
    rows = make_rows(300)
    path = write_text(tmp_path / "rows.txt", rows.X, rows.y)
    with open(path) as file:
        text = file.read()
    empty = "1\n-1\n-1\n" * 30_000
    (tmp_path / "empty.txt").write_text(empty + text)
    assert len(empty) > 2 * 65536
    fitted = shrink(tmp_path / "empty.txt", bias=None, memory=2 << 20)
    X = scipy.sparse.vstack([scipy.sparse.csr_matrix((90_000, rows.X.shape[1])), rows.X]).tocsr()
    labels = ["1", "-1", "-1"] * 30_000 + [str(y) for y in rows.y]
    assert fitted.certificate.primal == pytest.approx(objective(X, labels, fitted.model), rel=1e-6)
    optimum = fit(tmp_path / "empty.txt", bias=None, tolerance=1e-6).certificate
    assert fitted.certificate.dual <= optimum.primal


def test_a_radius_that_grows_late_is_warned_of(run, tmp_path):
    rows = make_rows(500)
    X = scipy.sparse.vstack([rows.X[:400], 5 * rows.X[400:]]).tocsr()
    write_text(tmp_path / "late.txt", X, rows.y)
    write_text(tmp_path / "even.txt", rows.X, rows.y)
    late = run("llsvm-train", "-q", "-s", "shrink", "-B", "R", "late.txt", "model").stderr
    assert "warning: -B R: 80% of the rows were read before" in late
    assert run("llsvm-train", "-q", "-s", "shrink", "-B", "R", "even.txt", "model").stderr == ""
    assert run("llsvm-train", "-q", "-s", "shrink", "-B", "1", "late.txt", "model").stderr == ""


@pytest.mark.parametrize("threads, memory", [(2, 1 << 30), (1, 1 << 21), (16, 300 << 20)])
def test_the_size_of_pieces_does_not_change_the_model(tmp_path, threads, memory, shrink):
    X, y = growing_rows(2500)
    path = write_text(tmp_path / "growing.txt", X, y)
    reference = shrink(path, bias=None, threads=1).model
    other = shrink(path, bias=None, threads=threads, memory=memory).model
    np.testing.assert_array_equal(other.weights, reference.weights)


# --- the certificate


def test_what_is_not_certified_says_so(run, two, tmp_path):
    with open(two.text, "rb") as file:
        text = file.read()
    piped = run("llsvm-train", "-s", "shrink", "-B", "1", "-", "piped", stdin=gzip.compress(text))
    assert "no certificate: the input cannot be read again" in piped.stdout and "certified" not in piped.stdout
    skipped = run("llsvm-train", "-s", "shrink", "-B", "1", "--no-certify", two.text, "skipped")
    assert "no certificate: --no-certify" in skipped.stdout
    certified = run("llsvm-train", "-s", "shrink", "-B", "1", two.text, "full")
    assert "(certified)" in certified.stdout
    facts = [json.loads(run("llsvm", "info", name, "--json").stdout) for name in ("piped", "skipped", "full")]
    assert ["none" in fact["certificate"] for fact in facts] == [True, True, False]
    assert ["relative_gap" in fact["certificate"] for fact in facts] == [False, False, True]
    weights = [models.load(str(tmp_path / name)).weights for name in ("piped", "skipped", "full")]
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])


def test_a_file_that_changes_before_it_is_certified_is_noticed(two, tmp_path):
    path = tmp_path / "changing.txt"
    with open(two.text) as file:
        lines = file.readlines()
    path.write_text("".join(lines))
    config = train.Config(solver="shrink", tolerance=0.01)
    with train.open_data([str(path)], config) as data:
        solver = train.start(data, config)
        passes = solver.passes()
        next(passes)
        for changed in (lines[:-1], [*lines[:-1], "third 1:1\n"], [*lines[:-1], "1 99999:1\n"]):
            path.write_text("".join(changed))
            with pytest.raises(DataError, match="changed"):
                list(data.again())
        solver.close()


# --- what is refused, and what is left behind


@pytest.mark.parametrize("ending, says", [
    (b"1 2:x\n", "read 'x', expected a finite decimal number"),
    (b"1 0:1\n", "expected feature ids from 1 up"),
    (b"3", "3 classes, and weights"),
])  # fmt: skip
def test_a_bad_last_line_of_a_pipe_leaves_nothing(run, two, tmp_path, ending, says):
    with open(two.text, "rb") as file:
        text = file.read() + ending
    finished = run("llsvm-train", "-s", "shrink", "-w1", "2", "--memory", "100K", "-", "model", stdin=text)
    assert finished.returncode in (1, 2) and says in finished.stderr
    assert names(tmp_path) == {"tmp"}


def test_no_room_for_the_active_file_is_told_and_leaves_nothing(run, two, tmp_path):
    with open(two.text, "rb") as file:
        text = b"".join(b"%d %s" % (number % 2, line.partition(b" ")[2]) for number, line in enumerate(file))
    with file_size_limit(2_000):
        finished = run("llsvm-train", "-s", "shrink", "-c", "100", "--memory", "75K", "-", "model", stdin=text)
    assert finished.returncode == 1
    assert "File too large" in finished.stderr and "hint: set TMPDIR" in finished.stderr
    assert names(tmp_path) == {"tmp"}


def test_a_budget_too_small_for_all_vectors_is_refused_at_once(tmp_path, shrink):
    X, y = make_classes(200, 10)
    path = write_text(tmp_path / "ten.txt", X, y)
    needed = 8 * 201 * 22
    for data in (path, split(path, 2, output=tmp_path / "set")):
        with pytest.raises(UsageError, match="200 features for 10 classes"):
            shrink(data, memory=needed - 2000)


@pytest.mark.parametrize("options, says", [
    ({"balanced": True}, "balanced needs the counts"), ({"inner": 0}, "needs a number"),
    ({"solver": "dual", "exact": True}, "exact anyway"), ({"solver": "dual", "certify": False}, "no-certify"),
    ({"exact": True, "certify": False}, "no-certify"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(two, options, says, shrink):
    with pytest.raises(UsageError, match=says):
        shrink(two.text, **options)


def test_balanced_weights_come_from_a_block_set(many, tmp_path, shrink):
    X, labels, path = many
    fitted = shrink(split(path, 3, output=tmp_path / "set"), balanced=True)
    counts = {label: labels.count(label) for label in set(labels)}
    weights = {label: len(labels) / (4 * count) for label, count in counts.items()}
    assert fitted.certificate.primal == pytest.approx(objective(X, labels, fitted.model, weights=weights), rel=1e-6)


def test_passes_can_be_limited(run, two):
    finished = run("llsvm-train", "-s", "shrink", "--max-passes", "1", "--strict", "--log", "log", two.text, "model")
    assert finished.returncode == 3 and "stopped by --max-passes at a relative change of the dual" in finished.stderr


def test_several_files_whose_labels_are_words_are_one_data_set(run, many, tmp_path):
    with open(many[2]) as file:
        lines = file.readlines()
    (tmp_path / "one").write_text("".join(lines[:200]))
    (tmp_path / "two").write_text("".join(lines[200:]))
    assert run("llsvm-train", "-q", "-s", "shrink", "one", "two", "model").returncode == 0
    assert run("llsvm-train", "-q", "-s", "shrink", many[2], "whole").returncode == 0
    np.testing.assert_array_equal(*(models.load(str(tmp_path / name)).weights for name in ("model", "whole")))
    predicted = run("llsvm-predict", many[2], "model", "-")
    assert set(predicted.stdout.split()) == {"c", "7", "a", "-1"}


# --- the repair


@pytest.mark.parametrize("memory", ["tenth", "large"])
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_the_exact_variant_reaches_liblinears_optimum(texts, tmp_path, C, memory, shrink):
    budget = texts.tenth if memory == "tenth" else LARGE
    fitted = shrink(texts.blocks, exact=True, C=C, bias=1.0, tolerance=1e-6, memory=budget)
    theirs, ours = least("hinge", texts.X, texts.y, C, bias=1.0).sum(), objective(texts.X, texts.y, fitted.model, C)
    assert fitted.certificate.primal == pytest.approx(ours, rel=1e-7)
    assert fitted.certificate.relative_gap <= 1e-6 and fitted.certificate.dual <= theirs * (1 + 1e-9)
    assert ours <= theirs * (1 + 2e-6)


def test_the_exact_variant_splits_text_that_does_not_fit_and_cleans_up(run, two, tmp_path):
    finished = run("llsvm-train", "-s", "shrink", "--exact", "--memory", "100K", two.text, "model")
    assert finished.returncode == 0 and "(certified)" in finished.stdout and "data on disk" in finished.stderr
    assert names(tmp_path) == {"model", "tmp"}
    gap = float(finished.stdout.split("gap = ")[1].split()[0])
    assert gap <= 1e-3


# --- the active rows


def contents(groups, dtype):
    """(code, chunk, place, features, values, alphas) of all rows handed out."""
    result = []
    for group in groups:
        table, n = group.table, int(group.table["length"].sum())
        codes, indptr = np.empty(len(table), np.uint16), np.empty(len(table) + 1, np.int64)
        features, values = np.empty(n, np.int32), np.empty(n, dtype)
        _reader.unpack(table, codes, indptr, features, values)
        for row in range(len(table)):
            part = slice(*indptr[row : row + 2])
            result.append((int(codes[row]), *table[["chunk", "place"]][row].tolist(), features[part].tolist(),
                           values[part].tolist(), group.alphas[row].tolist()))  # fmt: skip
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("memory", [0, 40_000, 1 << 30])
def test_active_rows_come_back_as_they_were(dtype, memory):
    rng = np.random.default_rng(1)
    X = scipy.sparse.random(900, 50, 0.2, "csr", random_state=rng).astype(dtype)
    codes, alphas = rng.integers(0, 5, 900), rng.random((900, 3))
    rows = active.ActiveRows(dtype, memory)
    for start in range(0, 900, 300):
        part = slice(start, start + 300)
        arena = arena_of(X[part], codes[part], dtype)
        rows.append(arena.rows, alphas[part])
    assert rows.n_rows == 900 and (rows.bytes_written > 0) == (memory < 1 << 30)
    expected = [
        (int(codes[row]), 3, row % 300, X[row].indices.tolist(), X[row].data.tolist(), alphas[row].tolist())
        for row in range(900)
    ]
    found = contents(rows.groups(), dtype)
    assert (found == expected) if memory == 1 << 30 else (sorted(found) == sorted(expected))
    assert rows.alone == (memory == 1 << 30)
    rows.close()


@pytest.mark.parametrize("memory", [0, 40_000, 1 << 30])
@pytest.mark.parametrize("most", [1, 50, 10_000])
def test_active_rows_come_by_again_and_again(memory, most):
    """No more of them together than have so many dual variables in all."""
    rng = np.random.default_rng(4)
    X, counts = scipy.sparse.random(600, 50, 0.2, "csr", random_state=rng), rng.integers(1, 9, 600)
    rows = active.ActiveRows(np.float64, memory, copies=0, kind=np.int32)
    arena = arena_of(X, np.arange(600), np.float64)
    rows.append(arena.rows, counts[:, None].astype(np.int32))
    for _ in range(3):
        parts = list(rows.parts(most))
        codes = [part["code"].tolist() for part, _ in parts]
        assert all(found.tolist() == counts[part["code"]].tolist() for part, found in parts)
        assert sum(codes, []) == list(range(600))
        assert all(len(part) == 1 or counts[part].sum() <= most for part in codes)
        assert memory < 1 << 30 or all(
            counts[part].sum() + counts[after[0]] > most for part, after in itertools.pairwise(codes)
        )
    rows.close()


def test_a_changed_byte_of_the_active_file_is_noticed():
    rng = np.random.default_rng(2)
    X = scipy.sparse.random(500, 50, 0.2, "csr", random_state=rng).astype(np.float32)
    rows = active.ActiveRows(np.float32, 0)
    arena = arena_of(X, np.zeros(500), np.float32)
    rows.append(arena.rows, np.ones((500, 1)))
    assert rows.bytes_written > 100
    byte = rows._file.scratch.read(1, 60)
    rows._file.scratch.write(bytes([byte[0] ^ 1]), 60)
    with pytest.raises(DataError, match="temporary file of active rows"):
        list(rows.groups())
    rows.close()
