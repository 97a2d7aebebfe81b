"""Newton's method with the squared hinge loss: ill-scaled data, in memory and from disk, beside LIBLINEAR and NumPy."""

import functools

import numpy as np
import pytest
import scipy.sparse
from objectives import liblinear_primals, objective
from problems import arena_of, split, write_text
from training import LARGE

from llsvm import _newton, memory
from llsvm.reader import DUAL
from llsvm.solvers import newton

TOLERANCE, PASSES = 1e-3, 60
DIRECTIONS = np.random.default_rng(5).standard_normal((20, 4))


def pixels(n_rows, n_classes):
    """From 0 to 255, as in a picture; noisy labels."""
    rng = np.random.default_rng(1)
    X = rng.integers(0, 256, (n_rows, 20)).astype(float)
    scores = (X - 128) @ DIRECTIONS[:, :n_classes]
    return X, (scores + scores.std() * rng.standard_normal(scores.shape)).argmax(1)


def mixed(n_rows, n_classes):
    """Features of a thousandth and of a million."""
    X, codes = pixels(n_rows, n_classes)
    return (X - 128) / 64 * 4.0 ** np.linspace(-5, 10, 20).round(), codes


def unscaled(n_rows, n_classes):
    """Far from 0."""
    X, codes = pixels(n_rows, n_classes)
    return (X - 128) / 64 + 100, codes


@pytest.fixture
def fit(fit):
    return functools.partial(fit, solver="dual-l2", tolerance=TOLERANCE, max_passes=PASSES, bias=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("make, C", [(pixels, 1.0), (mixed, 1.0), (unscaled, 1.0), (pixels, 1e6)])
def test_ill_scaled_data_converge_to_what_liblinear_finds(tmp_path, fit, make, C, n_classes, place, threads):
    X, codes = make(3000, n_classes)
    text = write_text(tmp_path / "data.txt", X, codes)
    path = split(text, 8, precision="float64") if place == "disk" else text
    options = {"memory": 1 << 19} if place == "disk" else {"memory": LARGE, "precision": "float64"}
    fitted = fit(path, C=C, threads=threads, **options)
    assert (fitted.where.split()[-1], fitted.outcome.reason) == (place, "converged")
    found = objective(X, codes, fitted.model, C, loss="squared")
    assert found == pytest.approx(fitted.certificate.primal, rel=1e-6)
    theirs = liblinear_primals("squared", X, codes, C, bias=1.0, tolerance=1e-4).sum()
    assert fitted.certificate.dual <= theirs * (1 + 1e-9)
    assert found <= theirs * (1 + TOLERANCE)


def test_nothing_is_done_where_there_is_no_memory_for_it(tmp_path, fit, monkeypatch):
    X, codes = pixels(3000, 2)
    text = write_text(tmp_path / "data.txt", X, codes)
    monkeypatch.setattr(newton, "fits", lambda n_rows, size, room: False)
    fitted = fit(text)
    assert fitted.outcome.reason == "passes" and fitted.certificate.relative_gap > 0.5


def test_what_it_takes_is_counted():
    size, n_rows = 1001, 20000
    needed = 8 * size * (newton.VECTORS + 2 * newton.PARTS)
    assert newton.fits(n_rows, size, needed) and not newton.fits(n_rows, size, needed - 1)
    assert not newton.ByPasses.fits(newton.LARGEST_MATRIX + 1, 1000, n_rows, memory.MB << 20)
    assert newton.ByPasses(np.zeros(size))._matrix.nbytes < newton.ByPasses.n_bytes(size)


# --- the kernels, against NumPy


@pytest.fixture(params=[np.float32, np.float64])
def problem(request):
    """(rows with alphas of their own, H, what the kernels are told, kind)."""
    rng = np.random.default_rng(2)
    X = rng.integers(-8, 9, (40, 7)) / 8 * (rng.random((40, 7)) < 0.7)
    X[:5] = 0.5  # rows of one value, and all of them full
    codes, bias = rng.integers(0, 2, 40), 1.5
    arena = arena_of(scipy.sparse.csr_matrix(X), codes, np.dtype(request.param))
    duals = np.zeros(40, DUAL)
    duals["alpha"] = rng.integers(0, 2, 40) * 0.75
    used = duals["alpha"] > 0
    full = np.column_stack([X, np.full(40, bias)])[used]
    H = np.eye(8) + (full.T / np.where(codes == 1, 2.0, 0.25)[used]) @ full
    return (arena, duals), H, (bias, np.array([[-1.0, np.inf, 0.25], [1.0, np.inf, 2.0]])), np.zeros(1, request.param)


def test_products_diagonal_and_matrix_are_those_of_numpy(problem):
    (arena, duals), H, arguments, kind = problem
    v = np.linspace(-1, 2, 8)
    out = v.copy()
    _newton.add_products(arena.rows, duals, v, *arguments, out, kind)
    assert out == pytest.approx(H @ v, rel=1e-12)
    out = np.ones(8)
    _newton.add_diagonal(arena.rows, duals, *arguments, out, kind)
    assert out == pytest.approx(np.diag(H), rel=1e-12)
    out = np.eye(8)
    _newton.add_matrix(arena.rows, duals, *arguments, out, kind)
    assert out == pytest.approx(H, rel=1e-12)


def test_conjugate_gradients_solve_to_a_tenth_of_the_gradient(problem):
    _, H, _, _ = problem
    gradient = np.linspace(3, -2, 8)
    found = newton.solve(gradient, np.diag(H).copy(), lambda v: H @ v, lambda: None)
    scaled = (H @ found + gradient) / np.sqrt(np.diag(H))
    assert np.linalg.norm(scaled) <= newton.FORCING * np.linalg.norm(gradient / np.sqrt(np.diag(H)))


def test_where_no_gradient_is_left_no_step_is_made():
    found = newton.solve(np.zeros(3), np.ones(3), lambda v: v, lambda: None)
    assert (found == 0).all()
