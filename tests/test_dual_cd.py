"""Dual coordinate descent in memory: alphas that are adopted or go on, and samples of tall data, good and bad."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from objectives import LOSSES, liblinear_primals, primals
from problems import make_classes
from training import fit_rows as fit
from training import in_memory

from llsvm import _dual_cd, train
from llsvm.core import Certificate
from llsvm.problem import Best, Problem
from llsvm.solvers import sample
from llsvm.solvers.dual_cd import Extrapolation, State, StepLimit

SOLVERS = pytest.mark.parametrize("solver", ["dual", "dual-l2"])
NUMBERS = {"dual": 3, "dual-l2": 1}  # LIBLINEAR's
MOST_PASSES = 1000


def primal(X, y, w, solver="dual", C=1.0, weights=None, bias=1.0):
    """P of a w that ends with the weight of the bias, 0 where there is none."""
    return primals(LOSSES[solver], X, y, ["1", "-1"], w[:, None], C, weights, bias).item()


def liblinear_primal(X, y, solver="dual", C=1.0, weights=None, bias=1.0):
    return liblinear_primals(LOSSES[solver], X, y, C, weights, bias, 1e-3).item()


def assert_certified(X, y, tolerance, **options):
    """Whatever LIBLINEAR reached: no dual value is above its primal, nor is our primal by more than the gap."""
    outcome, passes = fit(X, y, tolerance=tolerance, **options)
    terms = {name: options[name] for name in ("solver", "C", "weights", "bias") if name in options}
    certificate, theirs = outcome.certificate, liblinear_primal(X, y, **terms)
    w = outcome.w[:, 0]
    assert primal(X, y, w, **terms) == pytest.approx(certificate.primal, rel=1e-9)
    assert outcome.reason == "converged" and certificate.relative_gap <= tolerance
    assert certificate.dual <= theirs * (1 + 1e-9)
    assert certificate.primal <= theirs / (1 - tolerance) * (1 + 1e-9)
    return outcome, passes


# --- the kernels


class Swept:
    """Rows with weights, costs and dual variables, and what NumPy makes of them."""

    def __init__(self, solver, bias=1.5, n_rows=300, seed=1, C=0.7, n_features=30):
        rng = np.random.default_rng(seed)
        self.X = scipy.sparse.random(n_rows, n_features, 0.3, "csr", random_state=seed, data_rvs=rng.standard_normal)
        self.y = np.where(self.X @ rng.standard_normal(n_features) + rng.standard_normal(n_rows) > 0, 1, -1)
        data = in_memory(self.X, self.y)
        config = train.Config(solver=solver, C=C, bias=bias, weights={"1": 3.0})
        self.problem = train.problems_of(data.description, config)[0]
        self.data, self.table, self.duals, self.kind = data, data.table, data.duals, data.kind
        self.costs, self.bound = np.where(self.y > 0, 3 * C, C), np.inf
        self.d = 0.5 / self.costs
        if solver == "dual":
            self.bound, self.d = self.costs, np.zeros(n_rows)
        self.state, self.counter = State(n_features + 1, self.problem.bias), 0
        self.signs = self.problem.codes[self.table["code"], 0]  # y or, if -1 came first, -y

    @property
    def w(self):
        return self.state.w

    @property
    def alpha(self):
        return self.duals["alpha"].copy()

    def weights(self, alpha):
        return np.append(self.X.T @ (alpha * self.signs), self.problem.bias * (alpha @ self.signs))

    def dual(self, alpha):
        w = self.weights(alpha)
        return alpha.sum() - 0.5 * self.d @ alpha**2 - 0.5 * w @ w

    def sweep(self, slots):
        self.counter += 1
        order = np.random.default_rng(self.counter).permutation(slots).astype(np.int32)
        self.state.sums["highest_before"], self.state.sums["lowest_before"] = np.inf, -np.inf
        codes = self.problem.codes
        _dual_cd.sweep(self.table, self.duals, order, 0, len(order), self.w, codes, self.state.sums, self.kind)

    def sweep_done(self, extrapolation):
        return extrapolation.sweep_done(self.table, self.duals, self.state, self.problem.codes, self.kind)

    def assert_consistent(self):
        alpha = self.alpha
        np.testing.assert_allclose(self.w, self.weights(alpha), rtol=1e-9, atol=1e-9)
        assert self.state.dual == pytest.approx(self.dual(alpha), rel=1e-9)
        assert (alpha >= 0).all() and (alpha <= self.bound).all()


@SOLVERS
@pytest.mark.parametrize("bias", [-1.0, 1.5])
@pytest.mark.parametrize("rounding", [False, True])
def test_the_alphas_that_are_adopted_are_those_of_the_losses_at_w(solver, bias, rounding):
    swept, rng = Swept(solver, bias), np.random.default_rng(2)
    w = 0.3 * rng.standard_normal(len(swept.w))
    problem = swept.problem.as_float32() if rounding else swept.problem
    swept.duals["alpha"] = rng.random(len(swept.y)) * 0.5  # are forgotten
    _dual_cd.survey(swept.table, swept.duals, w, problem.codes, problem.bias, np.zeros(3), swept.kind)
    sums, before = np.zeros(2), rng.standard_normal(len(w))
    change = before.copy()
    _dual_cd.adopt(swept.table, swept.duals, problem.codes, problem.bias, rounding, sums, change, swept.kind)

    z = 1 - swept.signs * (swept.X @ w[:-1] + max(bias, 0.0) * w[-1])
    expected = np.where(z <= 0, 0.0, swept.costs if solver == "dual" else 2 * swept.costs * z)
    alpha = swept.alpha
    assert 0 < np.count_nonzero(alpha) < len(alpha)
    np.testing.assert_allclose(alpha, expected, rtol=1e-5, atol=1e-5)  # gradients are kept in float32
    assert (alpha <= swept.bound).all()
    assert not rounding or (alpha == alpha.astype(np.float32)).all()
    assert sums == pytest.approx([alpha.sum(), 0.5 * swept.d @ alpha**2], rel=1e-12)
    np.testing.assert_allclose(change - before, swept.weights(alpha), rtol=1e-9, atol=1e-9)


@SOLVERS
@pytest.mark.parametrize("C", [0.01, 0.7, 100.0])
def test_w_and_the_dual_value_are_those_of_the_alphas_however_they_go_on(solver, C):
    swept, gone = Swept(solver, C=C), 0
    slots = np.arange(len(swept.y), dtype=np.int32)
    for _ in range(4):
        extrapolation = Extrapolation(slots)
        for number in range(10):
            swept.sweep(slots[number % 2 :])  # not every row of a extrapolation is swept
            gone += swept.sweep_done(extrapolation)
            swept.assert_consistent()
        slots = np.flatnonzero((swept.alpha > 0) & (swept.alpha < swept.bound)).astype(np.int32)
    assert C == 0.01 or gone


def begun_extrapolation(swept, farthest=StepLimit.FARTHEST):
    """An extrapolation of all rows that is about to go on; the alphas of its beginning."""
    slots = np.arange(len(swept.y), dtype=np.int32)
    swept.state.limit.farthest = farthest
    extrapolation = Extrapolation(slots)
    for number in range(1, 2 * Extrapolation.SWEEPS):
        swept.sweep(slots)
        assert not swept.sweep_done(extrapolation)
        if number == Extrapolation.SWEEPS:
            before = swept.alpha
    swept.sweep(slots)
    return extrapolation, before


@SOLVERS
def test_alphas_go_on_to_where_the_dual_value_is_largest(solver):
    swept = Swept(solver, C=50.0)
    extrapolation, before = begun_extrapolation(swept, np.inf)
    now, change = swept.alpha, swept.alpha - before
    share = scipy.optimize.minimize_scalar(lambda s: -swept.dual(now + s * change), (0, 10)).x
    assert share > 0.1
    assert swept.sweep_done(extrapolation)
    expected = np.clip(now + share * change, 0, swept.bound)
    np.testing.assert_allclose(swept.alpha, expected, atol=1e-5 * share * np.abs(change).max())
    swept.assert_consistent()


def test_alphas_go_no_farther_than_so_many_times_their_way():
    swept = Swept("dual", C=50.0)
    extrapolation, before = begun_extrapolation(swept, 0.05)
    now = swept.alpha
    assert swept.sweep_done(extrapolation)
    np.testing.assert_allclose(swept.alpha, np.clip(now + 0.05 * (now - before), 0, swept.bound), atol=1e-12)


@pytest.mark.parametrize("harm", [False, True])
def test_the_next_sweep_decides_how_far_extrapolations_go(harm):
    """Whether D is above what it was before the alphas went on."""
    swept = Swept("dual", C=50.0)
    extrapolation, _ = begun_extrapolation(swept, 5.0)
    before = swept.dual(swept.alpha)
    assert swept.sweep_done(extrapolation)
    swept.sweep(np.arange(len(swept.y)))
    if harm:
        swept.state.sums["sum_alpha"] -= swept.dual(swept.alpha) - before + 1
    assert not swept.sweep_done(extrapolation)
    assert swept.state.limit.farthest == 5.0 * (StepLimit.SLOWER if harm else StepLimit.FASTER)


def test_an_extrapolation_never_goes_farther_than_the_first_did():
    limit = StepLimit()
    for gain in (1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0):
        limit.judge(gain)
        assert limit.farthest <= StepLimit.FARTHEST
    assert limit.farthest == StepLimit.FARTHEST


@SOLVERS
@pytest.mark.parametrize("n_slots", [0, 300])
def test_alphas_that_did_not_change_do_not_go_on(solver, n_slots):
    swept = Swept(solver)
    swept.sweep(np.arange(len(swept.y)))
    extrapolation, w, alpha = Extrapolation(np.arange(n_slots, dtype=np.int32)), swept.w.copy(), swept.alpha
    for _ in range(3 * Extrapolation.SWEEPS):
        assert not swept.sweep_done(extrapolation)
    assert (swept.w == w).all() and (swept.alpha == alpha).all() and np.isfinite(swept.state.dual)


# --- tall data


def made_tall(n_rows=20_000, n_features=20, noise=1.5, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.integers(-64, 65, (n_rows, n_features)) / 32
    score = X @ rng.standard_normal(n_features)
    return X, np.where(score + noise * rng.standard_normal(n_rows) * score.std() > 0, 1, -1)


@pytest.fixture(scope="module")
def tall():
    return made_tall()


@pytest.fixture
def small_is_tall(monkeypatch):
    """Rows by features do not count, and samples are small."""
    monkeypatch.setattr(sample, "TALL", 0)
    monkeypatch.setattr(sample, "SMALLEST", 4)


@pytest.fixture
def samples(monkeypatch):
    """For every problem whose sample was solved: whether its w was adopted."""
    held, holds = [], sample.Sample.holds
    monkeypatch.setattr(sample.Sample, "holds", lambda *given: held.append(holds(*given)) or held[-1])
    return held


@pytest.mark.parametrize(("n_rows", "n_features", "expected"),
                         [(16_384, 10, True), (16_383, 10, False), (50_000, 499, True), (50_000, 500, False)])
def test_data_are_tall_by_their_rows_and_features(n_rows, n_features, expected):
    for squared in (False, True):
        problem = Problem(0, 2, (0.5, 1.0), squared, 0.0, 1e-3)
        assert sample.is_tall(problem, n_rows, n_features + 1) == (expected and not squared)


@SOLVERS
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("terms", [{}, {"C": 0.01, "bias": -1.0, "weights": {"-1": 4.0}}], ids=["plain", "weights"])
def test_tall_data_come_to_liblinears_optimum(tall, samples, solver, threads, terms):
    assert_certified(*tall, 1e-3, solver=solver, threads=threads, **terms)
    assert samples == [True] * (solver == "dual")


def test_tall_data_come_to_a_smaller_gap_too(tall, samples):
    X, y = tall
    assert_certified(X[:, :5], y, 1e-6, solver="dual", C=0.1)
    assert samples == [True]


def test_a_seed_gives_one_model_of_tall_data_and_threads_beyond_one_another(tall, samples):
    found = {threads: [fit(*tall, threads=threads)[0].w.tobytes() for _ in range(2)] for threads in (1, 2, 3)}
    assert samples == [True] * 6
    assert len(set(found[1])) == 1
    assert len(set(found[2] + found[3])) == 1


def test_a_run_that_ends_with_the_sample_is_certified(tall):
    outcome, passes = fit(*tall, max_passes=1)
    assert outcome.reason == "passes" and len(passes) == 1
    assert outcome.certificate.primal == pytest.approx(primal(*tall, outcome.w[:, 0]), rel=1e-9)
    assert 0 < outcome.certificate.dual < outcome.certificate.primal


def rare(X, y):
    return X, np.where(np.arange(len(y)) < 20, 1, -1)


def duplicates(X, y):
    kept = np.arange(len(y)) % 150
    return X[kept], y[kept]


def contradictions(X, y):
    X, y = duplicates(X, y)
    return X, np.where(np.random.default_rng(3).random(len(y)) < 0.7, y, -y)


def separable(X, y):
    return X, np.where(X @ np.linspace(-1, 1, X.shape[1]) > 0, 1, -1)


def identical(X, y):
    return np.tile(X[:1], (len(y), 1)), y


def one_feature(X, y):
    return X[:, :1], np.where(X[:, 0] + 0.5 * np.random.default_rng(3).standard_normal(len(y)) > 0, 1, -1)


def long_rows(X, y):
    return np.where(np.arange(len(y))[:, None] < 5, 30 * X, X), y


MISLEADING = [rare, duplicates, contradictions, separable, identical, one_feature, long_rows]


@pytest.mark.slow
@pytest.mark.parametrize("change", MISLEADING)
@pytest.mark.parametrize("terms", [{}, {"C": 1e-4}, {"C": 0.1, "weights": {"1": 10.0}}], ids=str)
def test_a_sample_that_misleads_costs_some_passes_at_most(tall, samples, change, terms):
    assert_certified(*change(*tall), 1e-3, solver="dual", **terms)
    assert len(samples) == 1


@pytest.mark.slow
@pytest.mark.parametrize("change", MISLEADING)
def test_where_the_end_is_far_what_is_certified_holds(tall, change):
    X, y = change(*tall)
    terms = {"solver": "dual", "C": 1e4}
    outcome, _ = fit(X, y, max_passes=60, **terms)
    certificate, theirs = outcome.certificate, liblinear_primal(X, y, **terms)
    assert primal(X, y, outcome.w[:, 0], **terms) == pytest.approx(certificate.primal, rel=1e-9)
    assert 0 < certificate.dual <= min(theirs, certificate.primal) * (1 + 1e-9)
    assert certificate.primal <= 1e4 * len(y)  # that of w = 0


# --- any shape


def any_problem(seed):
    rng = np.random.default_rng(seed)
    n_rows, n_features = int(rng.choice([2, 7, 60, 300, 2000])), int(rng.choice([1, 3, 20, 200]))
    density, draw = rng.choice([0.05, 0.5, 1.0]), (rng.standard_normal, rng.random, np.ones)[rng.integers(3)]
    X = scipy.sparse.random(n_rows, n_features, density, "csr", random_state=seed, data_rvs=draw)
    score = X @ rng.standard_normal(n_features) + rng.choice([0.0, 0.5]) * rng.standard_normal(n_rows)
    y = np.where(score > np.median(score), 1, -1)
    y[:2] = 1, -1
    return X, y, {"solver": str(rng.choice(list(NUMBERS))), "C": float(10 ** rng.uniform(-3, 0.5)),
                  "bias": float(rng.choice([-1.0, 1.0])), "threads": int(rng.choice([1, 2]))}  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_rows_of_any_shape_come_to_liblinears_optimum(seed, tolerance):
    X, y, options = any_problem(seed)
    assert_certified(X, y, tolerance, **options, max_passes=10_000)


@pytest.mark.parametrize("seed", range(40))
def test_samples_of_any_shape_mislead_nobody(small_is_tall, seed):
    X, y, options = any_problem(seed)
    assert_certified(X, y, 1e-3, **{**options, "solver": "dual"}, max_passes=10_000)


def test_a_gap_below_the_precision_of_numbers_ends_with_the_passes():
    X, y = made_tall(2000, 3)
    outcome, passes = fit(X, y, C=0.1, tolerance=1e-17, max_passes=2000)
    assert outcome.reason in ("passes", "converged") and len(passes) <= 2000
    assert outcome.certificate.relative_gap < 1e-12


# --- more classes


@SOLVERS
@pytest.mark.parametrize("threads", [1, 2])
def test_tall_data_of_several_classes_come_to_the_optimum(samples, solver, threads):
    X, codes = make_classes(17_000, 3)
    outcome, _ = fit(X, codes, solver=solver, threads=threads, C=0.1)
    labels = list(dict.fromkeys(codes))
    values = primals(LOSSES[solver], X, codes, list(map(str, labels)), outcome.w, 0.1, bias=1.0)
    assert [c.primal for c in outcome.classes] == pytest.approx(values, rel=1e-9)
    assert len(samples) == (3 if solver == "dual" else 0)
    for label, certificate in zip(labels, outcome.classes, strict=True):
        y = np.where(codes == label, 1, -1)
        theirs = liblinear_primal(X, y, solver, C=0.1)
        assert certificate.relative_gap <= 1e-3
        assert certificate.dual <= theirs * (1 + 1e-9)
        assert certificate.primal <= theirs / (1 - 1e-3) * (1 + 1e-9)


def test_several_classes_of_many_features_are_not_tall(samples):
    X, codes = make_classes(17_000, 3)
    wide = scipy.sparse.hstack([X, scipy.sparse.csr_matrix((X.shape[0], 200))], "csr")
    outcome, _ = fit(wide, codes, C=0.1)
    assert outcome.reason == "converged" and samples == []


@pytest.mark.parametrize("overflowed", [np.nan, np.inf, -np.inf])
def test_a_dual_value_that_overflowed_tells_nothing(overflowed):
    best = Best()
    best.offer(np.ones(2), 3.0, overflowed, 5.0)
    assert best.certificate == Certificate(3.0, 0.0)
    best.offer(np.ones(2), 2.0, 1.0, 5.0)
    best.raise_dual(overflowed)
    assert best.certificate == Certificate(2.0, 1.0)


def test_a_primal_value_that_overflowed_is_that_of_zero():
    best = Best()
    best.offer(np.ones(2), np.nan, 1.0, 5.0)
    assert best.certificate == Certificate(5.0, 1.0) and not best.w.any()
