"""Training against LIBLINEAR and plain NumPy: the same optimum, in memory and from disk, whatever the rows are like."""

import functools
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from conftest import files_open_in
from liblinear import liblinearutil
from objectives import LOSSES, liblinear_primals, objective
from problems import arrays, make_noisy_rows, make_rows, split, write_text
from training import LARGE

from llsvm import cli, train
from llsvm import data as reading
from llsvm import model as models
from llsvm.blockset import BlockSet
from llsvm.core import DataError, LlsvmError, UsageError
from llsvm.evaluate import Predictor
from llsvm.solvers import SOLVERS

NUMBERS = {"dual": 3, "dual-l2": 1}
WEIGHTS = {"1": 3.0, "-1": 0.5}
PLACES = ("memory", "disk")


@pytest.fixture(scope="module")
def best(texts):
    """best(solver, C, bias, weighted): the objective that LIBLINEAR reaches on the texts."""

    @functools.cache
    def train_once(solver, C, bias, weighted=False):
        return liblinear_objective(texts.X, texts.y, solver, C, WEIGHTS if weighted else None, bias)

    return train_once


def liblinear_objective(X, y, solver, C=1.0, weights=None, bias=-1.0):
    return liblinear_primals(LOSSES[solver], X, y, C, weights, bias).item()


def assert_optimal(fitted, X, labels, reference, solver, tolerance=1e-6, **terms):
    """The certificate holds: recomputed, below the tolerance, and on both sides of what LIBLINEAR found."""
    primal = objective(X, labels, fitted.model, loss=LOSSES[solver], **terms)
    certificate = fitted.outcome.certificate
    assert fitted.outcome.reason == "converged"
    assert primal == pytest.approx(certificate.primal, rel=1e-9)
    assert certificate.primal - certificate.dual <= tolerance * certificate.primal
    assert primal <= reference * (1 + 2 * tolerance)
    assert certificate.dual <= reference * (1 + 1e-9)


# --- against LIBLINEAR


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("solver", NUMBERS)
@pytest.mark.parametrize("bias", [-1.0, 1.0, "R"])
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_the_optimum_is_liblinears(texts, fit, best, C, bias, solver, place):
    fitted = fit(texts.blocks, solver=solver, C=C, bias=None if bias == "R" else bias, tolerance=1e-6,
                 memory=texts.tenth if place == "disk" else LARGE)  # fmt: skip
    assert fitted.streamed == (place == "disk")
    reference = best(solver, C, texts.radius if bias == "R" else bias)
    assert_optimal(fitted, texts.X, texts.y, reference, solver, C=C)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("solver", NUMBERS)
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_the_optimum_with_class_weights_is_liblinears(texts, fit, best, C, solver, place):
    fitted = fit(texts.blocks, solver=solver, C=C, bias=1.0, weights=WEIGHTS, tolerance=1e-6,
                 memory=texts.tenth if place == "disk" else LARGE)  # fmt: skip
    assert fitted.streamed == (place == "disk")
    assert_optimal(fitted, texts.X, texts.y, best(solver, C, 1.0, True), solver, C=C, weights=WEIGHTS)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("solver", NUMBERS)
def test_doubles_are_trained_on_as_they_are(tmp_path, fit, solver, place):
    rows = make_rows(600)
    X = rows.X.multiply(1 / 3).tocsr()
    path = split(write_text(tmp_path / "thirds.txt", X, rows.y), 60, precision="float64")
    fitted = fit(path, solver=solver, bias=1.0, tolerance=1e-6, memory=rows.tenth * 3 if place == "disk" else LARGE)
    assert fitted.streamed == (place == "disk")
    reference = liblinear_objective(X, rows.y, solver, bias=1.0)
    assert_optimal(fitted, X, rows.y, reference, solver)


@pytest.mark.parametrize("bias", [-1.0, 0.0, 2.5])
def test_liblinear_and_this_program_predict_the_same_from_either_model(texts, fit, tmp_path, bias):
    ours = fit(texts.text, solver="dual", bias=bias).path
    theirs = str(tmp_path / "theirs")
    liblinearutil.save_model(theirs, liblinearutil.train(texts.y, texts.X, f"-s 3 -B {bias} -e 1e-8 -q"))
    for path in (ours, theirs):
        expected, _, values = liblinearutil.predict([], texts.X, liblinearutil.load_model(path), "-q")
        predictor = Predictor(models.load(path))
        scores = predictor.scores(*arrays(texts.X))
        assert predictor.lines(predictor.choose(scores)).split() == [b"%d" % label for label in expected]
        np.testing.assert_allclose(scores[:, 0], np.ravel(values), rtol=1e-9, atol=1e-12)


def test_a_bias_of_r_is_the_largest_row_norm(texts, fit):
    fitted = fit(texts.text, bias=None)
    assert float(fitted.model.header["bias"]) == pytest.approx(texts.radius, rel=1e-15)


# --- weights of classes


def test_balanced_weights_make_all_labels_count_the_same(texts, fit):
    counts = {"1": int((texts.y > 0).sum()), "-1": int((texts.y < 0).sum())}
    weights = {label: len(texts.y) / (2 * count) for label, count in counts.items()}
    balanced = fit(texts.text, balanced=True, tolerance=1e-6)
    explicit = fit(texts.text, weights=weights, tolerance=1e-6)
    np.testing.assert_allclose(balanced.model.w, explicit.model.w, rtol=1e-9, atol=1e-12)
    assert_optimal(balanced, texts.X, texts.y, explicit.outcome.certificate.primal, "dual", weights=weights)


def test_balanced_and_explicit_weights_multiply(texts, fit):
    n_positive = int((texts.y > 0).sum())
    balance = {"1": len(texts.y) / (2 * n_positive), "-1": len(texts.y) / (2 * (len(texts.y) - n_positive))}
    fitted = fit(texts.text, balanced=True, weights={"-1": 4.0}, tolerance=1e-6)
    both = {"1": balance["1"], "-1": 4 * balance["-1"]}
    assert objective(texts.X, texts.y, fitted.model, weights=both) == pytest.approx(
        fitted.outcome.certificate.primal, rel=1e-9
    )


def test_labels_that_are_words_have_weights_too(tmp_path, fit):
    rows = make_rows(400)
    names = np.where(rows.y > 0, "spam", "ham")
    fitted = fit(write_text(tmp_path / "mail.txt", rows.X, names), weights={"spam": 5.0}, tolerance=1e-6)
    weights = {str(label): 5.0 if label > 0 else 1.0 for label in (1, -1)}
    reference = liblinear_objective(rows.X, rows.y, "dual", weights=weights)
    assert fitted.outcome.certificate.primal == pytest.approx(reference, rel=2e-6)


# --- odd rows


def without_features(rows):
    X = rows.X.tolil()
    X[::3] = 0
    return X.tocsr(), rows.y


def with_a_feature_of_one_class(rows):
    only_positive = scipy.sparse.csr_matrix((rows.y[:, None] > 0).astype(float))
    return scipy.sparse.hstack([rows.X, only_positive]).tocsr(), rows.y


def with_every_row_thrice(rows):
    return scipy.sparse.vstack([rows.X] * 3).tocsr(), np.tile(rows.y, 3)


def with_contradicting_rows(rows):
    return scipy.sparse.vstack([rows.X, rows.X[:50]]).tocsr(), np.concatenate([rows.y, -rows.y[:50]])


def with_one_row_of_a_class(rows):
    keep = np.concatenate([np.flatnonzero(rows.y > 0)[:1], np.flatnonzero(rows.y < 0)])
    return rows.X[keep], rows.y[keep]


def with_gaps_between_ids(rows):
    X = rows.X.tocoo()
    return scipy.sparse.csr_matrix((X.data, (X.row, 100 * X.col + 7)), shape=(X.shape[0], 100 * X.shape[1])), rows.y


ODD_ROWS = [without_features, with_a_feature_of_one_class, with_every_row_thrice, with_contradicting_rows,
            with_one_row_of_a_class, with_gaps_between_ids]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("solver", NUMBERS)
@pytest.mark.parametrize("odd", ODD_ROWS)
def test_odd_rows_have_the_optimum_of_liblinear(tmp_path, fit, odd, solver, place):
    X, y = odd(make_rows(400))
    path = split(write_text(tmp_path / "odd.txt", X, y), 40)
    fitted = fit(path, solver=solver, bias=1.0, tolerance=1e-6, memory=X.nnz * 8 // 3 if place == "disk" else LARGE)
    assert fitted.streamed == (place == "disk")
    reference = liblinear_objective(X, y, solver, bias=1.0)
    assert_optimal(fitted, X, y, reference, solver)


@pytest.mark.parametrize("solver", [*NUMBERS, "block"])
@pytest.mark.parametrize("bias, primal", [(-1.0, 3.0), (1.0, 2.5)])
def test_rows_without_any_value_leave_only_the_bias(tmp_path, fit, solver, bias, primal):
    """hinge: b^2/2 + 2 max(0, 1-b) + max(0, 1+b) is least at b = 1; squared: b^2/2 + 2(1-b)^2 + (1+b)^2 at 2/7."""
    (tmp_path / "bare.txt").write_text("1 1:0\n-1\n1\n")
    fitted = fit(tmp_path / "bare.txt", solver=solver, bias=bias, tolerance=1e-9)
    if solver == "dual-l2" and bias > 0:
        primal = (2 / 7) ** 2 / 2 + 2 * (5 / 7) ** 2 + (9 / 7) ** 2
    assert fitted.outcome.certificate.primal == pytest.approx(primal, rel=1e-8)


@pytest.mark.parametrize("solver", NUMBERS)
@pytest.mark.parametrize("scale", [2.0**-80, 2.0**80])
def test_the_scale_of_values_may_be_extreme(tmp_path, fit, solver, scale):
    """With values s times as large, C / s^2 has the same problem: w / s, and the objective / s^2."""
    rows = make_rows(200)
    fitted = fit(write_text(tmp_path / "scaled.txt", rows.X * scale, rows.y), solver=solver, C=scale**-2,
                 tolerance=1e-6, precision="float64", max_passes=2000)  # fmt: skip
    reference = liblinear_objective(rows.X, rows.y, solver)
    assert fitted.outcome.reason == "converged"
    assert fitted.outcome.certificate.primal * scale**2 == pytest.approx(reference, rel=2e-6)


def test_ids_may_start_at_zero(tmp_path, fit):
    rows = make_rows(300)
    from_one = fit(write_text(tmp_path / "one.txt", rows.X, rows.y))
    from_zero = fit(write_text(tmp_path / "zero.txt", rows.X, rows.y, first_id=0), zero_based=True)
    np.testing.assert_array_equal(from_zero.model.w, from_one.model.w)
    assert models.load(from_zero.path).zero_based
    assert not models.load(from_one.path).zero_based


# --- text given directly


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """TMPDIR, which is not there before the test makes it."""
    folder = tmp_path / "temporary"
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.mark.parametrize("solver", NUMBERS)
def test_text_that_fits_never_touches_the_disk(texts, fit, temporary, solver):
    fitted = fit(texts.text, solver=solver, memory=LARGE)
    assert not fitted.streamed
    with pytest.raises(LlsvmError, match="TMPDIR"):
        fit(texts.text, solver=solver, memory=300 << 10)


@pytest.mark.parametrize("solver", NUMBERS)
def test_text_and_its_block_set_have_one_optimum(texts, fit, best, temporary, solver):
    temporary.mkdir()
    small = 300 << 10
    runs = [fit(path, solver=solver, bias=1.0, tolerance=1e-6, memory=memory)
            for path in (texts.text, texts.blocks) for memory in (small, LARGE)]  # fmt: skip
    assert [fitted.streamed for fitted in runs] == [True, False, True, False]
    for fitted in runs:
        assert_optimal(fitted, texts.X, texts.y, best(solver, 1.0, 1.0), solver)


def test_text_that_does_not_fit_is_split_in_tmpdir_for_as_long_as_it_takes(texts, temporary):
    temporary.mkdir()
    with train.open_data([texts.text], train.Config(memory=300 << 10)) as data:
        assert isinstance(data, BlockSet)
        assert len(files_open_in(temporary)) == reading.TEMPORARY_BLOCKS + 2
        assert os.listdir(temporary) == []  # none of them has a name
        assert (data.n_rows, data.n_nonzeros) == (len(texts.y), texts.X.nnz)
    assert files_open_in(temporary) == []


def broken_at_the_end(text):
    return text + "1 5:oops\n"


def of_one_class(text):
    return "".join("1" + line[line.index(" ") :] for line in text.splitlines(True))


@pytest.mark.parametrize("spoil", [broken_at_the_end, of_one_class])
def test_a_temporary_set_is_removed_after_an_error(texts, fit, tmp_path, temporary, spoil):
    path = tmp_path / "bad.txt"
    path.write_text(spoil(Path(texts.text).read_text()))
    temporary.mkdir()
    with pytest.raises(DataError):
        fit(path, memory=300 << 10)
    assert files_open_in(temporary) == [] and os.listdir(temporary) == []


def test_a_temporary_set_is_removed_when_training_is_interrupted(texts, temporary):
    temporary.mkdir()
    with pytest.raises(KeyboardInterrupt), train.open_data([texts.text], train.Config(memory=300 << 10)):
        assert files_open_in(temporary) != []
        raise KeyboardInterrupt
    assert files_open_in(temporary) == []


# --- ends other than the tolerance

@pytest.mark.parametrize(("place", "options"), [
    ("memory", {"max_passes": 1}), ("disk", {"max_passes": 1}), ("memory", {"time_limit": 1e-9}),
])  # fmt: skip
def test_a_last_pass_that_reaches_the_tolerance_has_converged(texts, fit, place, options):
    fitted = fit(texts.blocks, tolerance=0.9, memory=texts.tenth if place == "disk" else LARGE, **options)
    assert fitted.outcome.reason == "converged"
    assert fitted.outcome.stats.number == 1


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "ipm"])  # which is made of BLAS's products
@pytest.mark.parametrize("memory", ["1G", "300K"], ids=PLACES)
def test_the_model_file_is_the_same_in_every_run_folder_and_processor(tmp_path, run_in, monkeypatch, solver, memory):
    """The types of processor are those that OpenBLAS, NumPy's, adds in different orders for."""
    found = set()
    for processor in ("Prescott", "Haswell"):
        monkeypatch.setenv("OPENBLAS_CORETYPE", processor)
        folder = tmp_path / processor
        folder.mkdir()
        write_text(folder / "data.txt", *make_noisy_rows(5, 3000))
        words = ["-s", solver, "-e", "1e-6", "--max-passes", "30", "--memory", memory, folder / "data.txt", "model"]
        finished = run_in(folder, "llsvm-train", "-q", *words)
        assert finished.returncode == 0, finished.stderr
        found.add((folder / "model").read_bytes())
    assert len(found) == 1


# --- hints on --memory


@pytest.fixture(scope="module")
def late_features(tmp_path_factory):
    """Text whose features, 60,000, and classes, 8, turn up one by one: its first lines tell little of what w takes, nor
    of what the ids take, which are far from each other."""
    rows = (f"{min(7, row // 500)} " + " ".join(f"{97 * (10 * row + j)}:1" for j in range(1, 11)) + "\n"
            for row in range(6000))
    path = tmp_path_factory.mktemp("late") / "late.txt"
    path.write_text("".join(rows))
    return path


def refusal_under(memory, path, model, solver="dual"):
    with pytest.raises(UsageError, match="too small") as refusal:
        cli.train([str(path), str(model), "-q", "-s", solver, "--memory", memory], standalone_mode=False)
    return refusal.value


@pytest.mark.parametrize("solver", ["dual", "cs", "ww", "block", "pegasos"])
@pytest.mark.parametrize("memory", ["1M", "3M", "8M"])
def test_a_file_is_read_on_so_that_one_hint_is_enough(late_features, tmp_path, memory, solver):
    refusal = refusal_under(memory, late_features, tmp_path / "model", solver)
    assert "the weights of 60000 features for 8 classes alone" in refusal.message
    enough = re.fullmatch(r"--memory (\S+) would do", refusal.hint)[1]
    cli.train([str(late_features), str(tmp_path / "model"), "-q", "-s", solver, "--max-passes", "2",
               "--memory", enough],
              standalone_mode=False)


def test_what_is_too_long_to_be_read_on_is_told_so_far(late_features, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "READ_ON", 0)
    refusal = refusal_under("3M", late_features, tmp_path / "model")
    assert re.search(r" of \d+ features( for . classes)?, so far,", refusal.message)  # the weights, or the ids
    assert re.fullmatch(r"at least --memory \S+ is needed", refusal.hint)
