"""Cross-validation and the search for C: llsvm/search.py, folds.py, selection.py."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
import scipy.optimize
from conftest import BIN, assert_refused, measure_peak, names
from objectives import LOSSES, classes_of, least, scores, train_liblinear
from problems import four_classes, make_noisy_rows, make_rows, split, write_text

from llsvm import train
from llsvm.blockset import BlockSet
from llsvm.folds import METRICS, Tally
from llsvm.memory import promised
from llsvm.search import Validator, best_multiples
from llsvm.solvers.dual_cd import State

SMALL = {2: 100_000, 4: 300_000}  # bytes, by classes, which do not hold the rows with all that folds take


def folds_of(codes, n_folds, first=0):
    """The k-th row of a label is in fold (first + k) mod n_folds."""
    counts, found = {}, []
    for code in codes:
        found.append((first + counts.get(code, 0)) % n_folds)
        counts[code] = counts.get(code, 0) + 1
    return np.array(found)


def rows_in_order(path, n_folds):
    """The dense rows of a block set, their labels and folds, by reading chunk by chunk."""
    blocks, X, names, folds = BlockSet(path), [], [], []
    for chunk in range(blocks.n_chunks):
        block = blocks.load_chunk(chunk)
        for row in range(block.n_rows):
            span = slice(block.indptr[row], block.indptr[row + 1])
            dense = np.zeros(blocks.n_features)
            dense[block.features[span]] = block.values[span]
            X.append(dense)
        names += [blocks.description.labels[code] for code in block.codes]
        folds.append(folds_of(block.codes, n_folds, chunk))
    return np.array(X), np.array(names), np.concatenate(folds)


@pytest.fixture(params=[2, 4])
def rows(request, tmp_path):
    X, y = make_noisy_rows(2, 900) if request.param == 2 else four_classes(900)
    return X, np.array([str(label) for label in y]), write_text(tmp_path / "rows.txt", X, y)


def validate(path, n_folds, **options):
    config = train.Config(folds=n_folds, said=frozenset(["tolerance"]), **{"memory": 1 << 30, "bias": 1.0, **options})
    with train.open_data([str(path)], config) as data:
        return Validator(data, config, False).run(config.C), data.where


@pytest.mark.parametrize("solver", ["dual", "dual-l2", "block"])
@pytest.mark.parametrize("place", ["text", "set", "disk"])
def test_every_fold_is_trained_on_the_other_rows_and_judged_by_its_own(rows, solver, place, tmp_path):
    X, labels, path = rows
    n_folds, small = 3, SMALL[len(set(labels))]
    memory = small if place == "disk" or solver == "block" else 1 << 30
    if place == "text" and solver != "block":
        folds = folds_of(labels, n_folds)
    else:
        path = split(path, 4, output=str(tmp_path / "set"))
        X, labels, folds = rows_in_order(path, n_folds)
    found, where = validate(path, n_folds, solver=solver, tolerance=1e-6, memory=memory)
    assert (where == "on disk") == (memory == small)
    for fold in range(n_folds):
        rest, own = folds != fold, folds == fold
        theirs = least(LOSSES[solver], X[rest], labels[rest], bias=1.0).sum()
        certificate = found.certificates[fold]
        assert certificate.relative_gap <= 1e-6 and certificate.dual <= theirs * (1 + 1e-9)
        assert certificate.primal <= theirs * (1 + 2e-6)
        w, classes = train_liblinear(LOSSES[solver], X[rest], labels[rest], bias=1.0), classes_of(labels[rest])
        values = scores(X[own], w, 1.0)
        chosen = np.where(values[:, 0] > 0, *classes) if len(classes) == 2 else np.array(classes)[values.argmax(1)]
        assert found.tally.rows[fold].sum() == own.sum()
        assert abs(int(found.tally.right[fold].sum()) - int((chosen == labels[own]).sum())) <= 1


@pytest.mark.parametrize("n_labels", [1, 3])
@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_have_as_many_rows_of_each_label_and_do_not_depend_on_threads(n_labels, n_folds, tmp_path):
    rng = np.random.default_rng(n_labels)
    X, y = rng.integers(1, 5, (400, 3)).astype(float), np.append(rng.integers(0, n_labels, 399), n_labels)
    path = write_text(tmp_path / "rows.txt", X, y)
    tallies = [validate(path, n_folds, tolerance=0.5, threads=threads)[0].tally for threads in (1, 3)]
    assert (tallies[0].right == tallies[1].right).all()
    assert np.ptp(tallies[0].rows, axis=0).max() <= 1 and tallies[0].n_rows == 400


def test_the_command_says_what_liblinear_says_and_writes_no_model(run, tmp_path):
    X, y = make_noisy_rows(5, 300)
    write_text(tmp_path / "data.txt", X, y)
    finished = run("llsvm-train", "-v", "5", "data.txt")
    assert finished.returncode == 0 and re.fullmatch(r"Cross Validation Accuracy = \d+\.?\d*%\n", finished.stdout)
    assert names(tmp_path) - {"tmp"} == {"data.txt"}
    assert "standard error" in finished.stderr and run("llsvm-train", "-q", "-v", "5", "data.txt").stderr == ""


@pytest.mark.parametrize("memory", [[], ["--memory", "1M"]])
def test_a_second_argument_is_a_model_of_all_rows_from_the_same_reads(run, tmp_path, memory):
    rows = make_rows(2000)
    split(write_text(tmp_path / "data.txt", rows.X, rows.y), 4, output=str(tmp_path / "set"))
    finished = run("llsvm-train", "-v", "3", *memory, "-B", "1", "--log", "log", "set", "model")
    assert finished.returncode == 0 and "(certified)" in finished.stdout
    primal = float(re.search(r"primal objective = (\S+)", finished.stdout)[1])
    assert primal == pytest.approx(least("hinge", rows.X, rows.y, bias=1.0).item(), rel=1e-3)
    alone = run("llsvm-train", *memory, "-B", "1", "--log", "log.alone", "set", "model.alone")
    passes, of_one = (int(re.search(r"passes = (\d+)", one.stdout)[1]) for one in (finished, alone))
    assert not memory or passes <= of_one + 2


def test_the_c_that_is_chosen_is_the_best_of_the_table(run, tmp_path):
    X, y = make_noisy_rows(7, 600)
    write_text(tmp_path / "data.txt", X, y)
    finished = run("llsvm-train", "-C", "-v", "4", "--cv-table", "table.csv", "data.txt", "model")
    assert finished.returncode == 0
    with open(tmp_path / "table.csv") as file:
        table = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    costs = [row["C"] for row in table]
    assert costs == sorted(costs) and np.log2(costs) == pytest.approx(np.round(np.log2(costs)), abs=1e-6)
    best = min(table, key=lambda row: (-row["accuracy"], row["C"]))
    assert f"Best C = {best['C']:g}  CV accuracy = {100 * best['accuracy']:g}%" in finished.stdout
    assert max(row["gap"] for row in table) <= 1e-2
    described = json.loads(run("llsvm", "info", "--json", "model").stdout)
    assert described["training"]["C"] == best["C"] and described["certificate"]["relative_gap"] <= 1e-3
    line = run("llsvm-train", "-C", "-v", "4", "--select", "1se", "-q", "data.txt").stdout
    floor = best["accuracy"] - best["standard_error"]
    simplest = min(row["C"] for row in table if row["accuracy"] >= floor)
    assert f"Best C = {simplest:g} " in line


def test_a_path_of_c_is_certified_at_every_value_whatever_it_began_with(tmp_path):
    """Warm starts: up, far up, and down again."""
    X, y = make_noisy_rows(3, 300)
    labels = np.array([str(label) for label in y])
    path, folds = write_text(tmp_path / "rows.txt", X, y), folds_of(labels, 2)
    config = train.Config(folds=2, tolerance=1e-5, said=frozenset(["tolerance"]))
    with train.open_data([path], config) as data:
        validator = Validator(data, config, False)
        for cost in (0.01, 0.1, 10.0, 1.0, 0.001):
            found = validator.run(cost)
            for fold in range(2):
                theirs = least("hinge", X[folds != fold], labels[folds != fold], C=cost).item()
                certificate = found.certificates[fold]
                assert certificate.relative_gap <= 1e-5 and certificate.dual <= theirs * (1 + 1e-9)
                assert certificate.primal <= theirs * (1 + 2e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_multiples_of_two_groups_make_d_largest(seed):
    rng, groups = np.random.default_rng(seed), []
    for _ in range(2):
        state = State(8)
        state.w[:] = rng.normal(size=8)
        state.set_alphas((rng.uniform(0, 9), rng.random()))
        groups.append(state)
    most = rng.uniform(0.2, 3, 2)

    def minus_dual(s):
        w = s[0] * groups[0].w + s[1] * groups[1].w
        return w @ w / 2 + sum(x * x * g["sum_square"] - x * g["sum_alpha"] for x, g in zip(s, groups, strict=True))

    theirs = scipy.optimize.minimize(minus_dual, [0.1, 0.1], bounds=[(0, most[0]), (0, most[1])]).fun
    assert minus_dual(best_multiples(groups, tuple(most))) == pytest.approx(theirs, abs=1e-6)


def test_metrics_are_scikit_learns(seed=4):
    metrics = pytest.importorskip("sklearn.metrics", reason="compared with scikit-learn, an extra of make bench")
    rng = np.random.default_rng(seed)
    labels, choices = rng.integers(0, 3, 200), rng.integers(0, 3, 200)
    tally = Tally(2, 3)
    tally.add(0, labels[:90], choices[:90])
    tally.add(1, labels[90:], choices[90:])
    assert tally.score("accuracy") == pytest.approx(metrics.accuracy_score(labels, choices))
    assert tally.score("balanced") == pytest.approx(metrics.balanced_accuracy_score(labels, choices))
    assert tally.score("f1") == pytest.approx(metrics.f1_score(labels, choices, average="macro"))
    of_folds = [metrics.accuracy_score(labels[part], choices[part]) for part in (slice(90), slice(90, None))]
    assert tally.spread("accuracy") == pytest.approx(np.std(of_folds, ddof=1) / 2**0.5)


def test_metrics_by_hand():
    """Of four rows of the first label three are right, of one of the second none; one is said to be the third."""
    tally = Tally(1, 4)
    tally.add(0, np.array([0, 0, 0, 0, 1]), np.array([0, 0, 0, 2, 0]))
    assert {name: tally.score(name) for name in METRICS} == pytest.approx(
        {"accuracy": 3 / 5, "balanced": (3 / 4 + 0) / 2, "f1": (6 / 8 + 0 + 0) / 3})


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("memory", ["2M", "90M"])
def test_the_memory_promise_holds_for_all_folds(run_in, tmp_path, n_classes, memory):
    X, y = make_noisy_rows(2, 12_000) if n_classes == 2 else four_classes(12_000)
    split(write_text(tmp_path / "data.txt", X, y), 8, output=str(tmp_path / "set"))
    finished = measure_peak(run_in, tmp_path, "llsvm-train", "-v", "10", "--memory", memory, "set")
    assert finished.returncode == 0, finished.stderr
    assert finished.peak <= promised(int(memory[:-1]) << 20)


def test_debians_svm_grid_drives_it_as_it_drives_liblinear(run_in, tmp_path):
    grid = shutil.which("svm-grid")
    if not grid:
        pytest.skip("svm-grid is not installed (Debian: libsvm-tools)")
    X, y = make_noisy_rows(5, 200)
    write_text(tmp_path / "data.txt", X, y)
    finished = run_in(tmp_path, grid, "-svmtrain", BIN / "llsvm-train", "-log2g", "null", "-log2c", "-2,2,2", "-v", "3",
                      "-gnuplot", "null", "-out", "null", "data.txt")  # fmt: skip
    assert finished.returncode == 0
    cost, rate = map(float, finished.stdout.splitlines()[-1].split())
    said = run_in(tmp_path, "llsvm-train", "-c", cost, "-v", "3", "-q", "data.txt").stdout
    assert float(said.split()[-1].rstrip("%")) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize("limit", [["--max-passes", "1"], ["--time-limit", "1e-9"]])
@pytest.mark.parametrize("model", [[], ["model"]])
def test_folds_that_were_not_solved_are_called_so(run, tmp_path, limit, model):
    X, y = make_noisy_rows(5, 300)
    write_text(tmp_path / "data.txt", X, y)
    finished = run("llsvm-train", "-v", "5", *limit, "--strict", "data.txt", *model)
    assert finished.returncode == 3 and "warning: folds ended at a relative duality gap of" in finished.stderr
    assert finished.stdout.startswith("Cross Validation Accuracy = ")
    assert run("llsvm-train", "-v", "5", "--strict", "data.txt", *model).returncode == 0


@pytest.mark.parametrize("words, says", [
    (["-v", "1"], "-v"), (["-v", "5", "-s", "cs"], "no cross-validation"), (["-v", "900"], "there are only"),
    (["-v", "5", "-s", "pegasos"], "no cross-validation"), (["-v", "5", "-s", "shrink"], "no cross-validation"),
    (["-v", "5", "-t", "2"], "no cross-validation"), (["-C", "-s", "block"], "no search"),
    (["--metric", "f1"], "--metric"), (["--cv-table", "t.csv"], "--cv-table"), (["--select", "1se"], "--select"),
])  # fmt: skip
def test_what_does_not_apply_is_refused_with_a_sentence(run, tmp_path, words, says):
    X, y = make_noisy_rows(5, 100)
    write_text(tmp_path / "data.txt", X, y)
    model = [] if "-v" in words or "-C" in words else ["m"]
    finished = run("llsvm-train", *words, "data.txt", *model)
    assert_refused(finished, 2, says)
    assert names(tmp_path) - {"tmp"} == {"data.txt"}
