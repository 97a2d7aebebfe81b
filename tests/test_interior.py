"""The interior-point method, against a dense QP of SciPy, against coordinate descent on the same rows, and LIBSVM."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_refused
from problems import make_noisy_rows, write_text
from scipy.optimize import minimize
from test_kernel_machine import in_numpy, labels_of, rings

from llsvm import kernel_machine, train
from llsvm.solvers.interior import best_bias

needs_libsvm = pytest.mark.skipif(not shutil.which("svm-train"), reason="LIBSVM's tools are not installed")


def rows_in(path, n_rows=60, n_classes=2):
    X, codes = rings(n_rows, n_classes)
    return write_text(path / "rows.txt", X, labels_of(codes)), X, codes


def fit(path, **options):
    config = train.Config(**{"solver": "ipm", **options})
    opened, fit = (kernel_machine.open_data, kernel_machine.fit) if config.kernel else (train.open_data, None)
    with opened([str(path)], config) as data:
        if fit:
            return fit(data, config)
        outcome = train.run(train.start(data, config), config)
        return replace(outcome, w=np.append(outcome.w[np.argsort(data.feature_ids())], outcome.w[-1:], 0))


def optimum(K, y, C):
    """Of the machine with a free bias."""
    Q = y[:, None] * K * y
    found = minimize(lambda a: (a @ Q @ a / 2 - a.sum(), Q @ a - 1), np.full(len(y), C / 2), jac=True, method="SLSQP",
                     bounds=[(0, C)] * len(y), options={"maxiter": 2000, "ftol": 1e-12},
                     constraints={"type": "eq", "fun": lambda a: y @ a, "jac": lambda a: y})  # fmt: skip
    assert found.success
    return -found.fun


@pytest.mark.parametrize("C", [1.0, 100.0])
def test_the_optimum_is_that_of_a_dense_qp(tmp_path, C):
    path, X, codes = rows_in(tmp_path)
    outcome = fit(path, kernel=2, gamma=0.5, C=C, rank=60, tolerance=1e-5)
    y = np.where(codes == 0, 1.0, -1.0)
    expected = optimum(in_numpy(outcome.factor.kernel, X, X), y, C)
    assert outcome.reason == "converged"
    assert outcome.certificate.dual <= expected * (1 + 1e-7) <= outcome.certificate.primal * (1 + 2e-7)
    assert outcome.certificate.relative_gap <= 2e-5


@pytest.mark.parametrize("n_classes, C", [(2, 1.0), (4, 10.0)])
def test_it_solves_what_coordinate_descent_solves(tmp_path, n_classes, C):
    path, *_ = rows_in(tmp_path, 500, n_classes)
    both = [fit(path, solver=solver, kernel=2, gamma=0.5, C=C, rank=40, bias=1.0, tolerance=1e-4)
            for solver in ("ipm", "dual")]  # fmt: skip
    for one, other in (both, both[::-1]):
        assert one.of_rank.dual <= other.of_rank.primal and one.certificate.dual <= other.certificate.primal
        assert one.of_rank.relative_gap <= 1e-4


@pytest.mark.parametrize("options", [{}, {"bias": 1.0}, {"free_bias": True}], ids=["none", "-B 1", "-R"])
def test_rows_of_few_features_need_no_kernel(tmp_path, options):
    X, y = make_noisy_rows(4, 400)
    outcome = fit(write_text(tmp_path / "rows.txt", X, y), weights={"1": 2.0}, tolerance=1e-5, **options)
    w, b = outcome.w[:-1, 0], outcome.w[-1, 0] * outcome.bias
    square = w @ w + (b * b if "bias" in options else 0)
    primal = square / 2 + (np.where(y > 0, 2.0, 1.0) * np.maximum(0, 1 - y * (X @ w + b))).sum()
    assert outcome.certificate.primal == pytest.approx(primal, rel=1e-6) and outcome.certificate.relative_gap <= 1e-5
    if not options.get("free_bias"):
        other = fit(tmp_path / "rows.txt", solver="dual", weights={"1": 2.0}, tolerance=1e-5, **options).certificate
        assert outcome.certificate.dual <= other.primal and other.dual <= outcome.certificate.primal


@needs_libsvm
def test_a_free_bias_is_that_of_libsvms_linear_machine(tmp_path, run):
    X, y = make_noisy_rows(4, 400)
    write_text(tmp_path / "rows.txt", X, y)
    said = subprocess.run(["svm-train", "-t", "0", "-e", "1e-5", tmp_path / "rows.txt", tmp_path / "theirs"],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    objective, rho = (float(number) for number in re.search(r"obj = (\S+), rho = (\S+)", said).groups())
    outcome = fit(tmp_path / "rows.txt", free_bias=True, tolerance=1e-6)
    assert outcome.certificate.dual <= -objective * (1 + 1e-6) <= outcome.certificate.primal * (1 + 2e-6)
    assert outcome.w[-1, 0] == pytest.approx(-rho, abs=0.02)
    assert run("llsvm-train", "-s", "ipm", "-R", "rows.txt", "ours").returncode == 0
    assert run("llsvm-predict", "rows.txt", "ours", "out").stdout.startswith("Accuracy")


def test_a_coarse_solution_comes_first(tmp_path):
    path, *_ = rows_in(tmp_path, 500)
    passes = []
    config = train.Config(solver="ipm", kernel=2, gamma=0.5, C=10.0, rank=80, coarse=20)
    with kernel_machine.open_data([path], config) as data:
        outcome = kernel_machine.fit(data, config, passes.append)
    assert outcome.of_rank.relative_gap <= 1e-3 and outcome.factor.rank == 80
    assert [stats.number for stats in passes] == list(range(1, len(passes) + 1))


def test_the_best_bias_is_the_best_of_many():
    rng = np.random.default_rng(2)
    for _ in range(20):
        f, y, U = rng.standard_normal(31), np.where(rng.random(31) < 0.4, 1.0, -1.0), 0.5 + rng.random(31)

        def loss(b, f=f, y=y, U=U):
            return (U * np.maximum(0, 1 - y * (f + b))).sum()

        assert loss(best_bias(f, y, U)) <= min(map(loss, np.linspace(-5, 5, 2001))) + 1e-9


@pytest.mark.parametrize("words, says", [
    (["-s", "dual", "-R"], "-s ipm"), (["-s", "ipm", "-R", "-B", "2"], "-B 2"),
    (["-s", "ipm", "--memory", "100K"], "-s ipm"),
    (["-s", "ipm", "--coarse", "5"], "-t 0 has none"), (["-t", "2", "--coarse", "5"], "-s ipm"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, run, words, says):
    X, y = make_noisy_rows(4, 2000)
    write_text(tmp_path / "rows.txt", X, y)
    assert_refused(run("llsvm-train", *words, "rows.txt", "m"), 2, says)
