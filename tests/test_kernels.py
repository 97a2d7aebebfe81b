"""Values of kernels, and incomplete Cholesky factors, against NumPy."""

import numpy as np
import pytest
import scipy.sparse

from llsvm import kernels
from llsvm.cholesky import Factor, extend
from llsvm.core import LlsvmError
from llsvm.kernels import LINEAR, POLYNOMIAL, RBF, Kernel, Landmarks, Rows

KERNELS = [Kernel(LINEAR), Kernel(POLYNOMIAL, 0.3, 1.5, 4), Kernel(POLYNOMIAL, 0.5, 0.0, 1), Kernel(RBF, 0.7)]
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.name}-{kernel.degree}")


def rows_of(X, dtype=np.float64):
    X = scipy.sparse.csr_matrix(X)
    return Rows(X.indptr.astype(np.int64), X.indices.astype(np.int32), X.data.astype(dtype))


def sparse_rows(n_rows, n_features=30, density=0.3, seed=1):
    return scipy.sparse.random(n_rows, n_features, density, "csr", rng=np.random.default_rng(seed)).toarray()


def in_numpy(kernel, A, B):
    if kernel.kind == RBF:
        return np.exp(-kernel.gamma * ((A[:, None, :] - B[None, :, :]) ** 2).sum(2))
    return A @ B.T if kernel.kind == LINEAR else (kernel.gamma * A @ B.T + kernel.coef0) ** kernel.degree


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_landmarks", [1, 32, 77])
def test_values_and_sums_are_those_of_the_formula(kernel, dtype, n_landmarks):
    X, Z = sparse_rows(150).astype(dtype), sparse_rows(n_landmarks, seed=2).astype(dtype)
    X[3] = Z[0] = 0  # an empty row, and an empty landmark
    Z[:, 7] = 0  # a feature that rows alone have
    landmarks, rows = Landmarks(rows_of(Z, dtype)), rows_of(X, dtype)
    expected = in_numpy(kernel, X.astype(float), Z.astype(float))
    np.testing.assert_allclose(landmarks.values(kernel, rows), expected, rtol=1e-12, atol=1e-14)
    in_float = landmarks.values(kernel, rows, np.empty((150, n_landmarks), np.float32))
    np.testing.assert_allclose(in_float, expected, rtol=1e-6, atol=1e-7)
    coefs = np.random.default_rng(3).standard_normal((n_landmarks, 3))
    found = landmarks.sums(kernel, rows, landmarks.coefs(coefs))
    np.testing.assert_allclose(found, expected @ coefs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(kernel.of_itself(rows.squares), np.diag(in_numpy(kernel, X, X)), rtol=1e-5)


@pytest.mark.parametrize("ids", [[1, 5, 9], [1, 5, 2**40], [2, 2**62]])
def test_features_may_be_any_numbers(ids):
    """As in a model, whose features are ids."""
    ids, rng = np.array(ids), np.random.default_rng(1)
    rows = Rows(np.arange(5) * 2, np.repeat(ids[:2][None], 4, 0).ravel(), rng.standard_normal(8))
    vectors = Rows(np.array([0, len(ids)]), ids, rng.standard_normal(len(ids)))
    found = Landmarks(vectors).values(Kernel(LINEAR), rows)[:, 0]
    np.testing.assert_allclose(found, rows.values.reshape(4, 2) @ vectors.values[:2])


def test_the_exponential_is_that_of_numpy():
    distances = np.concatenate([np.linspace(0, 745, 20_001), [1e5, 1e300]])
    rows = Rows(np.arange(len(distances) + 1), np.zeros(len(distances), np.int32), np.sqrt(distances))
    origin = Landmarks(Rows(np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1)))
    found, expected = origin.values(Kernel(RBF, 1.0), rows)[:, 0], np.exp(-rows.squares)
    np.testing.assert_allclose(found, expected, rtol=5e-16, atol=1e-300)


def test_rows_are_taken_cut_and_joined():
    X = sparse_rows(50)
    rows = rows_of(X)
    both = Rows.joined([rows.part(10, 20), rows.take([3, 3, 49, 0])])
    again = scipy.sparse.csr_matrix((both.values, both.features, both.indptr), (14, 30)).toarray()
    np.testing.assert_array_equal(again, X[[*range(10, 20), 3, 3, 49, 0]])
    np.testing.assert_allclose(both.squares, (again**2).sum(1))


def test_a_kernel_that_overflows_is_refused():
    kernels.check_finite(Kernel(RBF, 1e300), 3e38)
    with pytest.raises(LlsvmError, match="as large as"):
        kernels.check_finite(Kernel(POLYNOMIAL, 1.0, 0.0, 10), 1e20)


# --- factors


def paper(K, p):
    """The paper's 2.3.1: H and pivots."""
    H, v, pivots = np.zeros((len(K), p)), np.diag(K).copy(), []
    for k in range(p):
        rest = [j for j in range(len(K)) if j not in pivots]
        i = max(rest, key=lambda j: v[j])
        rest.remove(i)
        H[i, k] = np.sqrt(v[i])
        H[rest, k] = (K[rest, i] - H[rest, :k] @ H[i, :k]) / H[i, k]
        v[rest] -= H[rest, k] ** 2
        pivots.append(i)
    return H, pivots


@EVERY_KERNEL
def test_greedy_pivots_and_their_factor_are_the_papers(kernel):
    X = sparse_rows(120)
    rows, rank = rows_of(X), 12
    factor, found = extend(Factor(kernel), rows, rank, "greedy")
    H, pivots = paper(in_numpy(kernel, X, X), rank)
    assert found == pivots
    np.testing.assert_allclose(factor.map(rows), H, rtol=1e-7, atol=1e-9)


@EVERY_KERNEL
@pytest.mark.parametrize("how", ["random", "greedy"])
def test_a_factor_leaves_something_semidefinite_and_nothing_of_its_pivots(kernel, how):
    X = sparse_rows(120)
    rows = rows_of(X)
    factor, found = extend(Factor(kernel), rows, 25, how)
    H, K = factor.map(rows), in_numpy(kernel, X, X)
    left = K - H @ H.T
    assert factor.rank == 25 == len(set(found))
    assert np.linalg.eigvalsh(left).min() > -1e-9 * K.max()
    np.testing.assert_allclose(left[found], 0, atol=1e-9 * K.max())
    np.testing.assert_allclose(factor.residual(rows), np.diag(left), atol=1e-9 * K.max())
    w = np.random.default_rng(1).standard_normal((25, 2))
    beta = factor.coefficients(w)
    np.testing.assert_allclose(K[:, found] @ beta, H @ w, atol=1e-7 * K.max())
    np.testing.assert_allclose(factor.square(beta), (w**2).sum(0), rtol=1e-6)


def test_random_pivots_are_as_good_as_greedy_ones_and_depend_on_the_seed_alone():
    X = sparse_rows(400, 8, 0.9)
    rows, kernel = rows_of(X), Kernel(RBF, 1.0)
    left = {}
    for how, seed in (("greedy", 1), ("random", 1), ("random", 1), ("random", 2)):
        factor, found = extend(Factor(kernel), rows, 60, how, seed)
        left.setdefault((how, seed), []).append((found, factor.residual(rows).sum()))
    assert left["random", 1][0][0] == left["random", 1][1][0] != left["random", 2][0][0]
    assert left["random", 1][0][1] < 1.5 * left["greedy", 1][0][1]


def test_a_factor_grows_and_keeps_its_pivots():
    X = sparse_rows(200, 8, 0.9)
    rows, kernel = rows_of(X), Kernel(RBF, 1.0)
    small, first = extend(Factor(kernel), rows, 20)
    large, more = extend(small, rows, 50)
    assert large.rank == 50 and not set(first) & set(more)
    np.testing.assert_allclose(large.map(rows)[:, :20], small.map(rows), atol=1e-9)
    same, none = extend(large, rows, 30)
    assert same is large and none == []


def test_there_are_no_more_pivots_than_the_kernel_has_directions():
    rows = rows_of(sparse_rows(100, 6, 0.9))
    for how in ("greedy", "random"):
        assert extend(Factor(Kernel(LINEAR)), rows, 50, how)[0].rank == 6
    same = rows_of(np.ones((40, 3)))
    assert extend(Factor(Kernel(RBF)), same, 5)[0].rank == 1


def test_weighted_rows_become_pivots_first_and_enough_is_enough():
    X = sparse_rows(200, 8, 0.9)
    rows, weights = rows_of(X), np.zeros(200)
    weights[100:120] = 1
    _, found = extend(Factor(Kernel(RBF)), rows, 15, weights=weights)
    assert set(found) <= set(range(100, 120))
    factor, _ = extend(Factor(Kernel(RBF)), rows, 150, is_enough=lambda mapped: mapped.shape[1] >= 40)
    assert 40 <= factor.rank < 110
