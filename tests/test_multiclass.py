"""More than two classes: one-vs-rest against LIBLINEAR -s 3 and -s 1, Crammer-Singer against its -s 4, Weston-Watkins
against a dense QP; objectives by NumPy."""

import itertools
import re

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from conftest import measure_peak
from hypothesis import given
from hypothesis import strategies as st
from liblinear import liblinearutil
from problems import (
    arrays,
    block_bytes,
    four_classes,
    make_classes,
    make_rows,
    one_vs_rest,
    scores_by_class,
    split,
    weights_of,
    write_text,
)

from llsvm import train
from llsvm.core import DataError
from llsvm.evaluate import Predictor
from llsvm.memory import parse_size, promised
from llsvm.solvers import streaming
from llsvm.solvers.lists import Lists

LARGE = 1 << 30
EXACT = ["dual", "dual-l2", "block", "cs", "ww"]


class Fitted:
    """A run: outcome, statistics of the passes, the model."""

    def __init__(self, path, **options):
        config = train.Config(**{"memory": LARGE, "tolerance": 1e-3, **options})
        self.passes = []
        with train.open_data([str(path)], config) as data:
            self.outcome = train.run(train.start(data, config), config, self.passes.append)
            self.model = train.make_model(self.outcome, data, config)

    def w(self, X):
        return weights_of(self.model, X.shape[1])


def direct_primal(X, labels, classes, w, weston, C=1.0, weights=None, bias=-1.0):
    """Of Crammer and Singer, or of Weston and Watkins."""
    scores, own = scores_by_class(X, w, bias), np.array([classes.index(label) for label in labels])
    slack = 1 - scores[np.arange(len(own)), own][:, None] + scores
    slack[np.arange(len(own)), own] = 0
    slack = np.maximum(0, slack)
    costs = C * np.array([(weights or {}).get(label, 1.0) for label in labels])
    return 0.5 * (w**2).sum() + costs @ (slack.sum(1) if weston else slack.max(1))


def primal(solver, X, labels, classes, w, **terms):
    if solver in ("cs", "ww"):
        return direct_primal(X, labels, classes, w, solver == "ww", **terms)
    return one_vs_rest(X, labels, classes, w, squared=solver == "dual-l2", **terms).sum()


def liblinear_weights(X, labels, number, C=1.0, bias=-1.0, tolerance=1e-6):
    """(features and bias, classes) in the order of first occurrence, from float32 values as ours are."""
    numbers = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    y = [float(numbers[label]) for label in labels]
    X = scipy.sparse.csr_matrix(X.astype(np.float32), dtype=float)
    model = liblinearutil.train(y, X, f"-s {number} -c {C} -B {bias} -e {tolerance} -q")
    n = X.shape[1] + (bias >= 0)
    columns = [model.w[start : n * len(numbers) : len(numbers)] for start in range(len(numbers))]
    return np.array(columns).T[:, np.argsort(model.get_labels())]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Four classes: (X, labels, classes, text, a set of 60 chunks)."""
    X, labels = four_classes(400)
    path = write_text(tmp_path_factory.mktemp("many") / "many.txt", X, labels)
    return X, labels, list(dict.fromkeys(labels)), path, split(path, 60)


PLACES = [(solver, place) for solver in EXACT for place in ("memory", "disk") if solver != "block" or place == "disk"]
EVERY_PLACE = pytest.mark.parametrize("solver, place", PLACES)


@pytest.fixture
def fit(many):
    """fit(solver, place): from the text in memory, or from the set with memory for a part of it."""

    def fit_many(solver, place, **options):
        X, _, _, text, blocks = many
        if place == "memory":
            return Fitted(text, solver=solver, **options)
        return Fitted(blocks, solver=solver, **{"memory": X.nnz * 8, **options})

    return fit_many


# --- the certificate, and whose word it is


@EVERY_PLACE
@pytest.mark.parametrize("C, bias, weights", [(1.0, -1.0, {}), (0.2, 1.0, {"7": 3.0, "a": 0.5})])
def test_the_certificate_holds(many, fit, solver, place, C, bias, weights):
    X, labels, classes, *_ = many
    fitted = fit(solver, place, C=C, bias=bias, weights=weights)
    known = fitted.outcome.certificate
    assert fitted.outcome.reason == "converged" and 0 <= known.gap <= 1e-3 * known.primal
    expected = primal(solver, X, labels, classes, fitted.w(X), C=C, bias=bias, weights=weights)
    assert known.primal == pytest.approx(expected, rel=1e-6)
    assert fitted.model.labels == classes


@pytest.mark.parametrize("solver, number", [("dual", 3), ("dual-l2", 1), ("cs", 4)])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_the_objective_is_liblinears(many, fit, solver, number, place):
    X, labels, classes, *_ = many
    fitted = fit(solver, place, tolerance=1e-5, bias=1.0, C=0.5)
    theirs = primal(solver, X, labels, classes, liblinear_weights(X, labels, number, 0.5, 1.0), C=0.5, bias=1.0)
    assert fitted.outcome.certificate.primal == pytest.approx(theirs, rel=1.1e-5)
    assert fitted.outcome.certificate.dual <= theirs * (1 + 1e-9)


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_small_problems_are_those_of_a_dense_qp(tmp_path, solver):
    """The dual, by SciPy: Crammer-Singer through its primal with slacks, Weston-Watkins in its box."""
    X, y = make_classes(18, 3, seed=2)
    labels = [str(code) for code in y]
    classes = list(dict.fromkeys(labels))
    fitted = Fitted(write_text(tmp_path / "few.txt", X, labels), solver=solver, C=0.7, tolerance=1e-9)
    expected = dense_dual(X.toarray(), [classes.index(label) for label in labels], 0.7, solver == "ww")
    assert fitted.outcome.certificate.primal == pytest.approx(expected, rel=1e-6)
    assert fitted.outcome.certificate.dual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_active_rows_in_many_groups_lead_to_the_same_optimum(tmp_path, solver):
    """From disk, with memory for a part of the active rows, against the QP."""
    X, y = make_classes(60, 3, seed=5)
    labels = [str(code) for code in y]
    classes = list(dict.fromkeys(labels))
    blocks = split(write_text(tmp_path / "few.txt", X, labels), 30)
    fitted = Fitted(blocks, solver=solver, C=0.3, tolerance=1e-7, memory=8 * 61 * 11 + 7000)
    assert len({stats.bytes_read for stats in fitted.passes}) == len(fitted.passes)
    expected = dense_dual(X.toarray(), [classes.index(label) for label in labels], 0.3, solver == "ww")
    assert fitted.outcome.reason == "converged"
    assert fitted.outcome.certificate.primal == pytest.approx(expected, rel=1e-6)
    assert fitted.outcome.certificate.dual == pytest.approx(expected, rel=1e-6)


def dense_dual(X, y, C, weston):
    """The optimum of either problem: alphas a_i^m >= 0 of the classes m that are not y_i, by row at most C in all (CS)
    or each (WW); w_{y_i} gains them, w_m loses them."""
    n_classes = max(y) + 1
    pairs = [(row, m) for row in range(len(y)) for m in range(n_classes) if m != y[row]]
    basis = np.zeros((len(pairs), n_classes, X.shape[1]))
    for place, (row, m) in enumerate(pairs):
        basis[place, y[row]], basis[place, m] = X[row], -X[row]
    Q = np.tensordot(basis, basis, axes=([1, 2], [1, 2]))
    by_row = np.array([[row == own for row, _ in pairs] for own in range(len(y))], float)
    limits = () if weston else [scipy.optimize.LinearConstraint(by_row, -np.inf, C)]
    found = scipy.optimize.minimize(
        lambda a: 0.5 * a @ Q @ a - a.sum(), np.zeros(len(pairs)), jac=lambda a: Q @ a - 1,
        bounds=[(0, C)] * len(pairs), constraints=limits, method="L-BFGS-B" if weston else "SLSQP",
        options={"maxiter": 20000, "ftol": 1e-14},
    )  # fmt: skip
    return -found.fun


def test_each_class_has_a_certificate_of_its_own(many, fit):
    X, labels, classes, *_ = many
    fitted = fit("dual", "memory")
    expected = one_vs_rest(X, labels, classes, fitted.w(X))
    assert [known.primal for known in fitted.outcome.classes] == pytest.approx(expected, rel=1e-6)
    assert all(known.relative_gap <= 1e-3 for known in fitted.outcome.classes)
    assert fitted.outcome.certificate.primal == pytest.approx(expected.sum(), rel=1e-6)


def test_a_class_that_is_done_costs_no_more_work(tmp_path):
    """One class is told by a feature of its own; the others are noise."""
    rng = np.random.default_rng(3)
    X, y = rng.integers(-8, 9, (300, 12)) / 8.0, rng.integers(0, 3, 300)
    X[:, 0] = np.where(y == 0, 4.0, -4.0)
    path = write_text(tmp_path / "easy.txt", scipy.sparse.csr_matrix(X), y)
    fitted = Fitted(path, solver="dual", tolerance=1e-5, C=10)
    assert fitted.passes[0].visits >= 3 * 300
    assert all(stats.visits < fitted.passes[0].visits for stats in fitted.passes[-3:])


# --- the contract


@EVERY_PLACE
def test_the_same_seed_gives_the_same_model_whatever_the_threads(fit, solver, place):
    first, again, other = (fit(solver, place, seed=seed, threads=threads) for seed, threads in [(1, 1), (1, 3), (2, 1)])
    np.testing.assert_array_equal(first.model.weights, again.model.weights)
    assert (first.model.weights != other.model.weights).any()


@EVERY_PLACE
def test_the_dual_never_decreases_and_the_certified_primal_never_rises(fit, monkeypatch, solver, place):
    monkeypatch.setattr(streaming, "WORTH_CERTIFYING", 1000)  # or the first certificate could be the last
    fitted = fit(solver, place, C=20.0, tolerance=1e-6)
    duals = np.array([stats.dual for stats in fitted.passes])
    primals = np.array([stats.primal for stats in fitted.passes if stats.certified])
    assert len(primals) > 1
    assert (np.diff(duals) >= -1e-9 * duals[1:]).all() and (np.diff(primals) <= 0).all()


@EVERY_PLACE
@pytest.mark.parametrize("n_passes", [1, 3])
def test_the_objective_never_rises_above_its_start(many, fit, solver, place, n_passes):
    X, labels, classes, *_ = many
    fitted = fit(solver, place, C=100.0, tolerance=1e-12, max_passes=n_passes)
    at_zero = primal(solver, X, labels, classes, np.zeros((X.shape[1], 4)), C=100.0)
    assert fitted.outcome.reason == "passes"
    assert primal(solver, X, labels, classes, fitted.w(X), C=100.0) <= at_zero * (1 + 1e-9)


@pytest.mark.parametrize("solver", EXACT)
def test_every_byte_is_read_once_a_pass(many, fit, solver):
    passes, n_bytes = fit(solver, "disk").passes, block_bytes(many[-1])
    assert [stats.bytes_read for stats in passes] == [n_bytes * stats.number for stats in passes]


@EVERY_PLACE
def test_blocks_and_sorted_input_do_not_change_the_answer(many, tmp_path, solver, place):
    X, labels, *_ = many
    order = np.argsort(labels, kind="stable")
    text = write_text(tmp_path / "sorted.txt", X[order], [labels[row] for row in order])
    memory = LARGE if place == "memory" else X.nnz * 8
    options = {"solver": solver, "memory": memory, "tolerance": 1e-4}
    values = [Fitted(split(text, n), **options).outcome.certificate for n in (40, 77)]
    assert all(one.dual <= other.primal for one, other in itertools.permutations(values, 2))


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_two_classes_work_too(tmp_path, solver):
    """Both are then the two-class problem with rows that are twice as long and half as many weights: w_1 = -w_2."""
    rows = make_rows(300)
    fitted = Fitted(write_text(tmp_path / "two.txt", rows.X, rows.y), solver=solver, tolerance=1e-6)
    labels = [str(y) for y in rows.y]
    theirs = liblinear_weights(rows.X, labels, 4)
    classes = list(dict.fromkeys(labels))
    expected = direct_primal(rows.X, labels, classes, theirs, weston=False)
    assert fitted.outcome.certificate.primal == pytest.approx(expected, rel=1e-5)
    assert fitted.model.labels == ["1", "-1"] and fitted.model.n_columns == 2
    w = fitted.w(rows.X)
    assert ((rows.X @ w).argmax(1) == (rows.y < 0)).mean() > 0.9


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_rows_without_features_count(tmp_path, solver):
    X, y = make_classes(60, 3, seed=4)
    X = scipy.sparse.vstack([X, scipy.sparse.csr_matrix((5, X.shape[1]))]).tocsr()
    labels = [str(code) for code in [*y, 0, 1, 2, 0, 1]]
    classes = list(dict.fromkeys(labels))
    fitted = Fitted(write_text(tmp_path / "empty.txt", X, labels), solver=solver, tolerance=1e-6)
    known = fitted.outcome.certificate
    assert fitted.outcome.reason == "converged"
    assert known.primal == pytest.approx(direct_primal(X, labels, classes, fitted.w(X), solver == "ww"), rel=1e-6)


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_one_class_is_refused(tmp_path, solver):
    path = write_text(tmp_path / "one.txt", make_rows(5).X, [7] * 5)
    with pytest.raises(DataError, match="one class"):
        Fitted(path, solver=solver)


@pytest.mark.parametrize("solver", ["dual", "cs", "ww", "shrink"])
def test_liblinear_predicts_the_same_from_our_models(run, tmp_path, solver):
    X, y = make_classes(200, 5, seed=9)
    labels = [int(code) * 3 - 4 for code in y]
    text = write_text(tmp_path / "numbers.txt", X, labels)
    assert run("llsvm-train", "-q", "-s", solver, "-B", "1", text, "model").returncode == 0
    assert run("llsvm-predict", text, "model", "out").returncode == 0
    ours = [float(line) for line in (tmp_path / "out").read_text().split()]
    theirs, _, _ = liblinearutil.predict(labels, X, liblinearutil.load_model(str(tmp_path / "model")), "-q")
    assert ours == theirs
    assert np.mean(np.array(ours) == labels) > 0.9


def test_predictions_follow_the_largest_score(many, fit):
    X, fitted = many[0], fit("cs", "memory")
    predictor = Predictor(fitted.model)
    assert not predictor.two_class and fitted.model.solver_type == "MCSVM_CS"
    choices = predictor.choose(predictor.scores(*arrays(X)))
    np.testing.assert_array_equal(choices, (X @ fitted.w(X)).argmax(1))


# --- nonzero dual variables, packed


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.floats(-2, 2)), max_size=4), max_size=12), st.data())
def test_packed_lists_are_plain_lists(rows, data):
    def packed(rows):
        pairs, counts = [pair for row in rows for pair in row], np.array([len(row) for row in rows], np.int32)
        return Lists(counts, np.array([label for label, _ in pairs], np.int32), np.array([value for _, value in pairs]))

    def plain(lists):
        ends = np.cumsum(lists.counts)
        pairs = list(zip(lists.labels.tolist(), lists.values.tolist(), strict=True))
        return [pairs[end - count : end] for count, end in zip(lists.counts, ends, strict=True)]

    lists = Lists.from_bytes(packed(rows).to_bytes(), len(rows))
    assert plain(lists) == rows
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(rows)))))) if rows else []
    places = np.array(chosen, int)
    assert plain(lists.part(places)) == [rows[place] for place in chosen]
    others = {place: [(place % 3, 0.5)] * (place % 4) for place in chosen}
    replaced = lists.replaced(places, packed(others.values()))
    assert plain(replaced) == [others.get(place, row) for place, row in enumerate(rows)]


# --- small C, random labels: every class of a row has a dual variable


def random_labels(path, n_rows, n_classes, seed=5):
    """Rows of 8 features of 50 that tell nothing of their class."""
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random(n_rows, 50, 0.16, "csr", random_state=rng, data_rvs=lambda n: rng.integers(1, 9, n) / 8)
    return X, write_text(path, X, rng.integers(0, n_classes, n_rows))


@pytest.mark.parametrize("memory", [LARGE, 3 << 20])
@pytest.mark.parametrize("solver", ["cs", "ww"])
@pytest.mark.parametrize("C", [1e-3, 1e-8])
def test_classes_that_tie_are_solved(tmp_path, solver, memory, C):
    """D = g + A C - A a is nearly the same for all classes of a row, so that rounding decides which are above what."""
    X, path = random_labels(tmp_path / "random.txt", 8000, 60)
    fitted = Fitted(split(path, 20), solver=solver, C=C, memory=memory, max_passes=3)
    labels = (tmp_path / "random.txt").read_text().splitlines()
    labels = [line.split(None, 1)[0] for line in labels]
    known = fitted.outcome.certificate
    expected = primal(solver, X, labels, fitted.model.labels, fitted.w(X), C=C)
    assert known.dual * (1 - 1e-9) <= known.primal == pytest.approx(expected, rel=1e-6)
    if solver == "cs":  # sum_m a_i^m = 0 for all i
        np.testing.assert_allclose(fitted.w(X).sum(1), 0, atol=1e-12 * np.abs(fitted.w(X)).sum())


@pytest.mark.parametrize("solver", ["dual", "cs", "ww"])
def test_more_active_rows_than_memory_holds_keep_the_promise(run_in, tmp_path, solver):
    """Long rows that tell nothing of their class: most are active, in all classes."""
    rng = np.random.default_rng(6)
    X = scipy.sparse.random(12_000, 800, 0.25, "csr", random_state=rng, data_rvs=lambda n: rng.integers(1, 9, n) / 8)
    blocks = split(write_text(tmp_path / "long.txt", X, rng.integers(0, 5, 12_000)), 16)
    words = ["-q", "-s", solver, "-c", "0.01", "--max-passes", "3", "--memory", "6M", blocks, "model"]
    finished = measure_peak(run_in, tmp_path, "llsvm-train", *words)
    assert finished.returncode == 0, finished.stderr
    assert finished.peak < promised(6 << 20)


@pytest.mark.parametrize("memory", [8, 20, 140])
@pytest.mark.parametrize("solver", ["dual", "cs", "ww"])
def test_many_classes_keep_the_promise_about_memory(run_in, tmp_path, solver, memory):
    _, path = random_labels(tmp_path / "random.txt", 20_000, 80)
    blocks = split(path, 16)
    words = ["-q", "-s", solver, "-c", "0.001", "--max-passes", "2", "--memory", f"{memory}M", blocks, "model"]
    finished = measure_peak(run_in, tmp_path, "llsvm-train", *words)
    assert finished.returncode == 0, finished.stderr
    assert finished.peak < promised(memory << 20)


# --- tens of thousands of classes


@pytest.mark.parametrize("solver", ["dual", "block", "shrink", "pegasos", "stream"])
def test_what_every_class_takes_is_counted(run_in, tmp_path, solver):
    """Of few features: nearly all of it are the objects of its problem. The hint is right: with it training begins."""
    n, command = 20_000, ["llsvm-train", "-s", solver, "--many-labels", "--time-limit", "0.2", "--threads", "1"]
    (tmp_path / "data.txt").write_text("".join(f"{row % n} {row % 7 + 1}:1\n" for row in range(2 * n)))
    refused = measure_peak(run_in, tmp_path, *command, "--memory", "40M", "data.txt", "model")
    assert refused.returncode == 2 and refused.peak <= promised(40 << 20)
    hint = re.search(r"--memory (\S+) (would do|is needed)", refused.stderr)[1]
    trained = measure_peak(run_in, tmp_path, *command, "--memory", hint, "data.txt", "model")
    assert trained.returncode == 0 and trained.peak <= promised(parse_size(hint))


def test_a_refusal_keeps_the_promise_with_as_many_labels_as_there_may_be(run_in, tmp_path):
    n = 65_000
    (tmp_path / "data.txt").write_text("".join(f"{row % n} 1:1\n" for row in range(2 * n)))
    assert run_in(tmp_path, "llsvm-split", "-q", "data.txt", "-o", "set").returncode == 0
    refused = measure_peak(run_in, tmp_path, "llsvm-train", "-s", "dual-l2", "--memory", "1M", "set", "model")
    assert refused.returncode == 2 and "65000 classes" in refused.stderr and refused.peak <= promised(1 << 20)
