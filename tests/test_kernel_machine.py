"""Kernel machines: their models are LIBSVM's, their gap is that of the exact kernel, every solver trains them."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from conftest import assert_refused
from problems import as_text, write_text
from scipy.optimize import minimize

from llsvm import exact_gap, kernel_machine, kernel_model, lowrank, train
from llsvm.files import Output
from llsvm.kernels import Kernel, Landmarks

needs_libsvm = pytest.mark.skipif(not shutil.which("svm-predict"), reason="LIBSVM's tools are not installed")


def rings(n_rows, n_classes=2, seed=1, noise=0.25):
    """Rows of three features, by the distance from the origin, which no linear machine tells apart; float32 numbers."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n_rows, 3)) * (rng.random((n_rows, 3)) < 0.9)).astype(np.float32).astype(float)
    radius = np.sqrt((X**2).sum(1)) + noise * rng.standard_normal(n_rows)
    codes = np.searchsorted(np.quantile(radius, np.linspace(0, 1, n_classes + 1)[1:-1]), radius)
    return X, codes


def labels_of(codes, names=("1", "-1", "7", "3")):
    return [names[code] for code in codes]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """train.txt and test.txt of two classes, four.txt and four-test.txt of four."""
    folder = tmp_path_factory.mktemp("rings")
    for name, n_rows, n_classes, seed in (("train", 600, 2, 1), ("test", 300, 2, 2), ("four", 600, 4, 3),
                                          ("four-test", 300, 4, 4)):  # fmt: skip
        X, codes = rings(n_rows, n_classes, seed)
        write_text(folder / f"{name}.txt", X, labels_of(codes))
    return folder


@pytest.fixture
def there(data, tmp_path):
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    return tmp_path


def fit(path, **options):
    config = train.Config(**{"kernel": 2, "gamma": 0.5, "C": 10.0, **options})
    with kernel_machine.open_data([str(path)], config) as data:
        outcome = kernel_machine.fit(data, config)
        return outcome, kernel_machine.make_model(outcome, data, config)


def in_numpy(kernel, A, B):
    if kernel.kind == 1:
        return (kernel.gamma * A @ B.T + kernel.coef0) ** kernel.degree
    return np.exp(-kernel.gamma * ((A[:, None] - B[None]) ** 2).sum(2))


def dense(model):
    """The vectors of a model."""
    X = np.zeros((len(model.vectors), 3))
    of_row = np.repeat(np.arange(len(X)), np.diff(model.vectors.indptr))
    X[of_row, model.vectors.features - 1] = model.vectors.values
    return X


def exact_optimum(K, y, C, squared=False):
    """The optimum of the dual of a machine whose bias is regularised: bounds are all that holds."""
    Q = y[:, None] * (K + 1) * y + (np.eye(len(y)) / (2 * C) if squared else 0)
    found = minimize(lambda a: (a @ Q @ a / 2 - a.sum(), Q @ a - 1), np.zeros(len(y)), jac=True, method="L-BFGS-B",
                     bounds=[(0, None if squared else C)] * len(y), options={"maxiter": 20000, "ftol": 1e-15,
                                                                            "gtol": 1e-8, "maxfun": 10**6})  # fmt: skip
    return -found.fun


# --- the certificate


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
@pytest.mark.parametrize("options", [{}, {"kernel": 1, "degree": 3, "coef0": 1.0}], ids=["rbf", "polynomial"])
def test_the_gap_is_that_to_the_exact_machine(data, solver, options):
    outcome, model = fit(data / "train.txt", solver=solver, tolerance=1e-3, C=1.0, **options)
    X, codes = rings(600)
    y, squared = np.where(codes == 0, 1.0, -1.0), solver == "dual-l2"
    V, beta, b = dense(model), model.coefs[:, 0], model.offsets[0]
    z = np.maximum(0, 1 - y * (in_numpy(model.kernel, X, V) @ beta + b))
    primal = beta @ in_numpy(model.kernel, V, V) @ beta / 2 + b * b / 2 + (z ** (2 if squared else 1)).sum()
    optimum = exact_optimum(in_numpy(model.kernel, X, X), y, 1.0, squared)
    found = outcome.certificate
    assert found.primal == pytest.approx(primal, rel=1e-8)
    assert found.dual <= optimum * (1 + 1e-7) <= primal * (1 + 1e-6)
    assert (primal - optimum) / primal <= found.relative_gap <= 1e-3 and outcome.reason == "converged"


def test_a_low_rank_has_a_wide_gap_to_the_exact_machine_and_says_so(data):
    outcome, _ = fit(data / "train.txt", rank=8, gamma=2.0)
    assert outcome.factor.rank == 8 and outcome.of_rank.relative_gap <= 1e-3 < 0.05 < outcome.certificate.relative_gap


def test_more_pivots_than_rows_are_all_the_rows(data):
    few, many = (fit(data / "train.txt", rank=rank)[0] for rank in (600, 700))
    assert many.ranks == few.ranks and many.certificate == few.certificate


def test_dual_pivots_leave_less_of_the_gap_than_random_ones(data):
    gaps = {pivots: fit(data / "train.txt", rank=60, gamma=2.0, pivots=pivots)[0].certificate.relative_gap
            for pivots in ("random", "dual")}  # fmt: skip
    assert gaps["dual"] < gaps["random"]


def test_the_certificate_of_any_function_and_any_alphas_is_numpys(data):
    """For two problems at once, with both kinds of bias."""
    config, rng = train.Config(kernel=2), np.random.default_rng(5)
    with kernel_machine.open_data([str(data / "four.txt")], config) as rows:
        parts, kernel = lowrank.Parts(rows, most_rows=100), Kernel(2, 0.5)
        X, codes = rings(600, 4, 3)
        K = in_numpy(kernel, X, X)
        problems = train.problems_of(rows.description, train.Config(C=3.0, weights={"7": 2.0}))
        label_codes = np.array([rows.description.labels.index(label) for label in labels_of(codes)])
        pivots = np.arange(40)
        beta, b = rng.standard_normal((40, 4)), rng.standard_normal(4)
        alphas = rng.random((4, 600)) * 3 * (rng.random((4, 600)) < 0.7)
        for value in (0.0, 2.0):
            machine = exact_gap.Machine(kernel, Landmarks(parts.take(pivots, 1)), beta, b, value)
            found = exact_gap.certify(machine, parts, problems, label_codes, alphas, threads=2)
            for k, problem in enumerate(problems):
                y, U, _ = problem.codes[label_codes].T
                f = K[:, pivots] @ beta[:, k]
                square = beta[:, k] @ K[:40, :40] @ beta[:, k] + ((b[k] / value) ** 2 if value else 0)
                primal = square / 2 + (U * np.maximum(0, 1 - y * (f + b[k]))).sum()
                a = np.minimum(alphas[k], U)
                if not value:
                    up, down = a[y > 0].sum(), a[y < 0].sum()
                    a = np.where(y > 0, a * min(1, down / up), a * min(1, up / down))
                quadratic = (y * a) @ (K + value**2) @ (y * a)
                s = min(1, a.sum() / quadratic)
                assert found[k].primal == pytest.approx(primal, rel=1e-12)
                assert found[k].dual == pytest.approx(s * a.sum() - s * s * quadratic / 2, rel=1e-9)


def test_auto_says_what_it_cannot_do(there, run, monkeypatch):
    finished = run("llsvm-train", "-t", "2", "-g", "50", "-c", "100", "--memory", "1M", "train.txt", "m")
    assert_refused(finished, 1, "--rank auto", "pivots leave a gap of", "--memory")
    assert not (there / "m").exists()


# --- solvers and places


@pytest.mark.parametrize("solver", ["dual", "dual-l2", "ipm", "cs", "ww", "shrink", "pegasos"])
@pytest.mark.parametrize("name", ["train", "four"])
def test_every_solver_trains_on_mapped_rows(there, run, name, solver):
    test = "test" if name == "train" else "four-test"
    finished = run("llsvm-train", "-t", "2", "-g", "0.5", "-c", "10", "-s", solver, "--rank", "80", f"{name}.txt", "m")
    assert finished.returncode == 0, finished.stderr
    assert ("(certified)" in finished.stdout) == (solver in ("dual", "dual-l2", "ipm"))
    accuracy = run("llsvm-predict", f"{test}.txt", "m", "out").stdout
    assert float(re.search(r"= ([\d.]+)%", accuracy)[1]) > (80 if name == "train" else 55)


def test_mapped_rows_may_be_on_disk(data, monkeypatch):
    held, _ = fit(data / "train.txt", rank=100)
    said, config = [], train.Config(kernel=2, gamma=0.5, C=10.0, rank=100, memory=4 << 20)
    monkeypatch.setattr(lowrank, "fits", lambda *sizes: False)
    with kernel_machine.open_data([str(data / "train.txt")], config) as rows:
        on_disk = kernel_machine.fit(rows, config, tell=said.append)
    assert "on disk" in said[0]
    assert on_disk.of_rank.relative_gap <= 1e-3
    for found, expected in ((on_disk.of_rank, held.of_rank), (on_disk.certificate, held.certificate)):
        assert found.dual <= expected.primal and expected.dual <= found.primal
        assert found.relative_gap == pytest.approx(expected.relative_gap, abs=1e-3)


def test_rows_may_be_a_block_set(there, run, data):
    run("llsvm-split", "train.txt", "-m", "4")
    run("llsvm-train", "-t", "2", "-g", "0.5", "-c", "10", "train.txt.blocks", "m")
    expected, _ = fit(data / "train.txt")
    found = kernel_model.load(str(there / "m")).info["certificate"]
    assert found["dual"] <= expected.certificate.primal and expected.certificate.dual <= found["primal"]
    assert found["relative_gap"] <= 1e-3


def test_the_same_seed_and_threads_make_the_same_model(there, run):
    for name in ("a", "b"):
        run("llsvm-train", "-t", "2", "-c", "10", "--threads", "2", "train.txt", name)
    assert (there / "a").read_bytes() == (there / "b").read_bytes()


# --- the model


def test_the_model_is_what_was_trained(there, run, data):
    outcome, model = fit(data / "four.txt", rank=50)
    with Output(str(there / "m")) as out:
        kernel_model.save(model, out)
    again = kernel_model.load(str(there / "m"))
    assert again.labels == model.labels and again.kernel == model.kernel and not again.pairs
    np.testing.assert_array_equal(again.coefs, model.coefs)
    np.testing.assert_array_equal(again.offsets, model.offsets)
    np.testing.assert_array_equal(dense(again), dense(model))
    assert again.info["certificate"]["relative_gap"] == outcome.certificate.relative_gap


@needs_libsvm
@pytest.mark.parametrize("name", ["train", "four"])
@pytest.mark.parametrize("kernel", ["-t 2 -g 0.5", "-t 1 -d 2 -g 0.3 -r 1"])
def test_svm_predict_reads_our_models_and_we_read_those_of_svm_train(there, run, name, kernel):
    test = f"{name}-test.txt".replace("train-test", "test")
    assert run("llsvm-train", *kernel.split(), "-c", "10", f"{name}.txt", "ours").returncode == 0
    subprocess.run(["svm-train", "-q", *kernel.split(), "-c", "10", there / f"{name}.txt", there / "theirs"],
                   check=True)
    for model in ("ours", "theirs"):
        subprocess.run(["svm-predict", "-q", there / test, there / model, there / "expected"], check=True)
        finished = run("llsvm-predict", test, model, "found", "--force")
        assert finished.returncode == 0, finished.stderr
        found, expected = (there / "found").read_text().split(), (there / "expected").read_text().split()
        assert sum(a != b for a, b in zip(found, expected, strict=True)) == 0, model


@needs_libsvm
def test_ours_is_as_accurate_as_libsvms(there, run):
    run("llsvm-train", "-t", "2", "-g", "0.5", "-c", "10", "train.txt", "ours")
    subprocess.run(["svm-train", "-q", "-g", "0.5", "-c", "10", there / "train.txt", there / "theirs"], check=True)
    found = [float(re.search(r"= ([\d.]+)%", run("llsvm-predict", "test.txt", model, "out", "--force").stdout)[1])
             for model in ("ours", "theirs")]  # fmt: skip
    assert found[0] > found[1] - 1.0


def test_scores_are_decision_values(there, run):
    run("llsvm-train", "-t", "2", "-g", "0.5", "-c", "10", "--rank", "40", "four.txt", "m")
    run("llsvm-predict", "--scores", "four-test.txt", "m", "out")
    model, (X, _) = kernel_model.load(str(there / "m")), rings(300, 4, 4)
    header, *lines = (there / "out").read_text().splitlines()
    table = np.array([line.split() for line in lines])
    expected = in_numpy(model.kernel, X, dense(model)) @ model.coefs + model.offsets
    assert header.split()[1:] == model.labels
    np.testing.assert_allclose(table[:, 1:].astype(float), expected, rtol=1e-6, atol=1e-6)
    assert table[:, 0].tolist() == [model.labels[k] for k in expected.argmax(1)]


def test_ids_from_zero_and_labels_that_are_words(there, run):
    X, codes = rings(300)
    (there / "words.txt").write_text(as_text(X, labels_of(codes, ("in", "out")), first_id=0))
    finished = run("llsvm-train", "-t", "2", "-g", "0.5", "-c", "10", "--zero-based", "words.txt", "m")
    assert finished.returncode == 0, finished.stderr
    assert float(re.search(r"= ([\d.]+)%", run("llsvm-predict", "words.txt", "m", "o").stdout)[1]) > 85
    assert set((there / "o").read_text().split()) == {"in", "out"}


MODEL = """svm_type c_svc
kernel_type rbf
gamma 0.5
nr_class 2
total_sv 2
rho 0.25
label 1 -1
nr_sv 1 1
SV
1 1:0.5 3:1
-1 2:1
"""


@pytest.mark.parametrize("before, after, says", [
    ("c_svc", "one_class", "one-class"), ("c_svc", "epsilon_svr", "regression"), ("rbf", "sigmoid", "sigmoid"),
    ("rbf", "precomputed", "precomputed|beforehand"), ("gamma 0.5\n", "", "gamma"), ("gamma 0.5", "gamma x", "gamma"),
    ("gamma 0.5", "gamma inf", "gamma"), ("nr_class 2", "nr_class 3", "label"), ("total_sv 2", "total_sv 3", "nr_sv"),
    ("nr_sv 1 1", "nr_sv 3 -1", "nr_sv"), ("label 1 -1", "label 1 1", "second time"), ("rho 0.25", "rho nan", "rho"),
    ("1 1:0.5 3:1", "1 3:0.5 1:1", ":10: .*ascending"), ("-1 2:1", "-1 2:nan", ":11: .*finite"),
    ("-1 2:1", "x 2:1", ":11: "), ("-1 2:1", "-1 2:1 3", ":11: "), ("-1 2:1\n", "", "cut short|expected"),
    ("-1 2:1\n", "-1 2:1\n1 1:1\n", "more than 2"), ("SV\n", "SV\nSV\n", ":10"),
    ("gamma 0.5", "gamma 0.5\ngamma 1", "second time"),
    ("total_sv 2\n", "total_sv 99999999999\n", "nr_sv"), ("-1 2:1", "-1 99999999999999999999:1", ":11"),
])  # fmt: skip
def test_models_that_cannot_be_are_refused(there, run, before, after, says):
    (there / "m").write_text(MODEL)
    assert run("llsvm-predict", "test.txt", "m", "out").returncode == 0
    assert before in MODEL
    (there / "m").write_text(MODEL.replace(before, after))
    finished = run("llsvm-predict", "test.txt", "m", "out2")
    assert_refused(finished, 1, "m")
    assert re.search(says, finished.stderr), finished.stderr
    assert not (there / "out2").exists()


def test_a_model_of_ours_that_was_changed_or_cut_is_refused(there, run):
    run("llsvm-train", "-t", "2", "-g", "0.5", "--rank", "9", "four.txt", "m")
    text, rng = (there / "m").read_bytes(), np.random.default_rng(1)
    changed = [text[:size] for size in (10, 150, len(text) // 2, len(text) - 2)]
    changed.append(text[: text.rindex(b"llsvm")])
    for place in rng.integers(0, len(text) - 1, 20):
        damaged = bytearray(text)
        damaged[place] ^= 1 << int(rng.integers(0, 7))
        changed.append(bytes(damaged))
    for damaged in changed:
        (there / "d").write_bytes(damaged)
        finished = run("llsvm-predict", "four-test.txt", "d", "out")
        assert_refused(finished, 1)
        assert not (there / "out").exists()


def test_info_tells_of_a_model(there, run):
    run("llsvm-train", "-t", "1", "-d", "2", "-r", "1", "--rank", "5", "train.txt", "m")
    said = run("llsvm", "info", "m").stdout
    for part in ("kernel model", "polynomial", "certificate relative_gap", "kernel rank", "vectors"):
        assert part in said


@pytest.mark.parametrize("words, says", [
    (["-t", "3"], "sigmoid"), (["-g", "2"], "-g: -t 0 has none"), (["-t", "2", "-d", "2"], "-d: -t 2 has none"),
    (["-t", "2", "-s", "block"], "-s block"), (["-t", "1", "-r", "-1"], "-r -1"), (["--rank", "3"], "--rank: -t 0"),
    (["-t", "4"], "-t"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(there, run, words, says):
    assert_refused(run("llsvm-train", *words, "train.txt", "m"), 2, says)


def test_a_gamma_that_is_not_said_is_one_by_the_features(data):
    _, model = fit(data / "train.txt", gamma=None, rank=10)
    assert model.kernel == Kernel(2, 1 / 3)




def test_the_memory_that_is_promised_is_kept_with_mapped_rows_on_disk(tmp_path, run):
    X, codes = rings(12_000)
    write_text(tmp_path / "rows.txt", X, labels_of(codes))
    finished = run("llsvm-train", "-t", "2", "-g", "0.5", "--rank", "150", "-e", "0.05", "--memory", "8M",
                   "rows.txt", "m")
    assert finished.returncode == 0, finished.stderr
    assert "mapped rows on disk" in finished.stderr and "(certified)" in finished.stdout
    assert float(re.search(r"peak memory = ([\d.]+) MB", finished.stdout)[1]) < 8 + 64


def test_training_that_ends_early_leaves_the_better_of_two_solutions(data):
    told, config = [], train.Config(kernel=2, gamma=2.0, C=10.0, tolerance=1e-4)
    with kernel_machine.open_data([str(data / "train.txt")], config) as rows:
        outcome = kernel_machine.fit(rows, config, stopped=lambda: len(told) >= 3, tell=told.append)
        model = kernel_machine.make_model(outcome, rows, config)
    gaps = [float(re.search(r"machine (.*)", text)[1]) for text in told if "exact" in text]
    assert outcome.reason == "interrupted" and len(gaps) == 2
    assert outcome.certificate.relative_gap == outcome.stats.gap == pytest.approx(min(gaps), rel=1e-2)
    assert len(model.vectors) == outcome.factor.rank
