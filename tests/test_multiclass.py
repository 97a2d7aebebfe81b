"""More than two classes: one-vs-rest against LIBLINEAR -s 3 and -s 1, Crammer-Singer against its -s 4, Weston-Watkins
against a dense QP; objectives by NumPy."""

import re

import numpy as np
import pytest
import scipy.sparse
from conftest import measure_peak
from hypothesis import given
from hypothesis import strategies as st
from liblinear import liblinearutil
from objectives import LOSSES, dense_optimum, least, objective
from problems import (
    arrays,
    four_classes,
    make_classes,
    make_rows,
    split,
    write_text,
)
from training import LARGE

from llsvm import model as models
from llsvm.evaluate import Predictor
from llsvm.memory import parse_size, promised
from llsvm.solvers.lists import Lists


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Four classes: (X, labels, text, a set of 60 chunks)."""
    X, labels = four_classes(400)
    path = write_text(tmp_path_factory.mktemp("many") / "many.txt", X, labels)
    return X, labels, path, split(path, 60)


@pytest.fixture
def solve(many, fit):
    """solve(solver, place): from the text in memory, or from the set with memory for a part of it."""
    X, _, text, blocks = many
    places = {"memory": (text, LARGE), "disk": (blocks, X.nnz * 8)}
    return lambda solver, place, **options: fit(places[place][0], solver=solver, memory=places[place][1], **options)


# --- whose word it is


@pytest.mark.parametrize("solver", ["dual", "dual-l2", "cs", "ww"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_the_objective_is_that_of_others(many, solve, solver, place):
    X, labels, *_ = many
    fitted = solve(solver, place, tolerance=1e-5, bias=1.0, C=0.5)
    theirs = least(LOSSES[solver], X, labels, 0.5, bias=1.0).sum()
    assert fitted.certificate.primal == pytest.approx(theirs, rel=1.1e-5)
    assert fitted.certificate.dual <= theirs * (1 + 1e-9)


@pytest.mark.parametrize("solver", ["cs", "ww"])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_small_problems_are_those_of_a_dense_qp(tmp_path, fit, solver, place):
    """From disk with memory for a part of the active rows."""
    n_rows, seed, C = (18, 2, 0.7) if place == "memory" else (60, 5, 0.3)
    X, labels = make_classes(n_rows, 3, seed=seed)
    path = write_text(tmp_path / "few.txt", X, labels)
    if place == "memory":
        fitted = fit(path, solver=solver, C=C, tolerance=1e-9)
    else:
        fitted = fit(split(path, 30), solver=solver, C=C, tolerance=1e-7, memory=8 * 61 * 11 + 7000)
        assert len({stats.bytes_read for stats in fitted.passes}) == len(fitted.passes)
    expected = dense_optimum(solver, X.toarray(), labels, C)
    assert fitted.outcome.reason == "converged"
    assert fitted.certificate.primal == pytest.approx(expected, rel=1e-6)
    assert fitted.certificate.dual == pytest.approx(expected, rel=1e-6)


def test_a_class_that_is_done_costs_no_more_work(tmp_path, fit):
    """One class is told by a feature of its own; the others are noise."""
    rng = np.random.default_rng(3)
    X, y = rng.integers(-8, 9, (300, 12)) / 8.0, rng.integers(0, 3, 300)
    X[:, 0] = np.where(y == 0, 4.0, -4.0)
    path = write_text(tmp_path / "easy.txt", scipy.sparse.csr_matrix(X), y)
    fitted = fit(path, solver="dual", tolerance=1e-5, C=10)
    assert fitted.passes[0].visits >= 3 * 300
    assert all(stats.visits < fitted.passes[0].visits for stats in fitted.passes[-3:])


# --- rows and labels


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_two_classes_work_too(tmp_path, fit, solver):
    """Both are then the two-class problem with rows that are twice as long and half as many weights: w_1 = -w_2."""
    rows = make_rows(300)
    fitted = fit(write_text(tmp_path / "two.txt", rows.X, rows.y), solver=solver, tolerance=1e-6)
    expected = least("cs", rows.X, rows.y).sum()
    assert fitted.certificate.primal == pytest.approx(expected, rel=1e-5)
    assert fitted.model.labels == ["1", "-1"] and fitted.model.weights.shape[1] == 2
    w = fitted.model.matrix(rows.X.shape[1])
    assert ((rows.X @ w).argmax(1) == (rows.y < 0)).mean() > 0.9


@pytest.mark.parametrize("solver", ["cs", "ww"])
def test_rows_without_features_count(tmp_path, fit, solver):
    X, y = make_classes(60, 3, seed=4)
    X = scipy.sparse.vstack([X, scipy.sparse.csr_matrix((5, X.shape[1]))]).tocsr()
    labels = [*y, 0, 1, 2, 0, 1]
    fitted = fit(write_text(tmp_path / "empty.txt", X, labels), solver=solver, tolerance=1e-6)
    assert fitted.outcome.reason == "converged"
    assert fitted.certificate.primal == pytest.approx(objective(X, labels, fitted.model, loss=solver), rel=1e-6)


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


def test_predictions_follow_the_largest_score(many, solve):
    X, fitted = many[0], solve("cs", "memory")
    model = models.load(fitted.path)
    predictor = Predictor(model)
    assert not predictor.two_class and model.solver_type == "MCSVM_CS"
    choices = predictor.choose(predictor.scores(*arrays(X)))
    np.testing.assert_array_equal(choices, (X @ fitted.model.matrix(X.shape[1])).argmax(1))


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
def test_classes_that_tie_are_solved(tmp_path, fit, solver, memory, C):
    """D = g + A C - A a is nearly the same for all classes of a row, so that rounding decides which are above what."""
    X, path = random_labels(tmp_path / "random.txt", 8000, 60)
    fitted = fit(split(path, 20), solver=solver, C=C, memory=memory, max_passes=3)
    labels = [line.split(None, 1)[0] for line in (tmp_path / "random.txt").read_text().splitlines()]
    known, w = fitted.certificate, fitted.model.matrix(X.shape[1])
    expected = objective(X, labels, fitted.model, C, loss=solver)
    assert known.dual * (1 - 1e-9) <= known.primal == pytest.approx(expected, rel=1e-6)
    if solver == "cs":  # sum_m a_i^m = 0 for all i
        np.testing.assert_allclose(w.sum(1), 0, atol=1e-12 * np.abs(w).sum())


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
