"""Any number of problems on rows in memory: training that is handed on, or starts from any alphas."""

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from problems import make_classes, split, write_text
from training import LARGE, in_memory

from llsvm import train
from llsvm.problem import Problem
from llsvm.solvers.dual_cd import State
from llsvm.solvers.from_disk import FromDisk
from llsvm.solvers.resident import InMemory

SOLVERS = pytest.mark.parametrize("solver", ["dual", "dual-l2"])
CLASSES = pytest.mark.parametrize("n_classes", [2, 4])
THREADS = pytest.mark.parametrize("threads", [1, 3])


@pytest.fixture(scope="module")
def rows():
    """rows(number of classes) -> X, labels"""
    def make(n_classes):
        X, labels = make_classes(600, n_classes)
        return scipy.sparse.csr_matrix(X), labels

    return {n_classes: make(n_classes) for n_classes in (2, 4)}.__getitem__


def new_solver(rows, n_classes, states=None, **options):
    data, config = in_memory(*rows(n_classes)), train.Config(bias=1.0, tolerance=1e-9, C=3.0, **options)
    return InMemory(train.problems_of(data.description, config), config, data, states)


def bits(solver):
    return [(state.w.tobytes(), state.duals.tobytes(), state.sums.tobytes()) for state in solver.states]


def make_passes(solver, count):
    return [(stats.primal, stats.dual, stats.active) for stats in itertools.islice(solver.passes(), count)]


@SOLVERS
@CLASSES
@THREADS
@pytest.mark.parametrize("before", [1, 2, 7])
def test_training_that_is_handed_on_gives_the_same_bits_as_undisturbed(rows, solver, n_classes, threads, before):
    options = {"solver": solver, "threads": threads}
    undisturbed, first = new_solver(rows, n_classes, **options), new_solver(rows, n_classes, **options)
    expected = make_passes(undisturbed, before + 8)
    found = make_passes(first, before)
    second = new_solver(rows, n_classes, first.states, **options)
    first.close()
    found += make_passes(second, 8)
    assert found == expected and bits(second) == bits(undisturbed)
    for each in (undisturbed, second):
        each.close()


@SOLVERS
@CLASSES
def test_training_starts_from_any_alphas(rows, solver, n_classes):
    """Also from such as are beyond their bounds; D is then that of w and alphas."""
    X, labels = rows(n_classes)
    data, config = in_memory(X, labels), train.Config(solver=solver, bias=1.0, tolerance=1e-6, C=0.5)
    problems, rng = train.problems_of(data.description, config), np.random.default_rng(3)
    alphas = rng.uniform(-0.5, 2.0, (len(problems), len(labels)))
    states = [State.of(problem, data.table, own, X.shape[1] + 1, data.kind)
              for problem, own in zip(problems, alphas, strict=True)]  # fmt: skip
    for problem, state, own in zip(problems, states, alphas, strict=True):
        y, bound, d = problem.codes[data.table["code"]].T
        inside = np.clip(own, 0, bound)
        w = np.append(X.T @ (inside * y), inside @ y)
        np.testing.assert_allclose(state.w, w, rtol=1e-9, atol=1e-9)
        assert state.dual == pytest.approx(inside.sum() - 0.5 * d @ inside**2 - 0.5 * w @ w, rel=1e-9)
    outcome = train.run(InMemory(problems, config, data, states), config)
    plain = train.run(InMemory(problems, config, in_memory(X, labels)), config)
    assert outcome.reason == plain.reason == "converged"
    assert outcome.certificate.dual <= plain.certificate.primal and plain.certificate.dual <= outcome.certificate.primal


def test_training_that_starts_from_its_own_end_has_little_to_do(rows):
    first, size = new_solver(rows, 4, solver="dual"), rows(4)[0].shape[1] + 1
    n_passes = len(list(itertools.islice(first.passes(), 60)))
    states = [State.of(cd.problem, first._data.table, cd.state.duals["alpha"], size, cd.kind)
              for cd in (learner.cd for learner in first._learners)]  # fmt: skip
    second = new_solver(rows, 4, states, solver="dual")
    assert n_passes > 3 and next(second.passes()).gap < 1e-3
    for each in (first, second):
        each.close()


# --- a loss between the two


WIDTH = 0.5


class Smoothed(Problem):
    """Hinge loss whose corner is a parabola: C z^2 / (2 g) up to z = g, and beyond it C (z - g / 2)."""

    def code(self, y, C):
        return y, C, WIDTH / C


def smoothed_primal(X, y, C, w):
    z = 1 - y * (X @ w[:-1] + w[-1])
    losses = np.where(z > WIDTH, z - WIDTH / 2, np.maximum(0, z) ** 2 / (2 * WIDTH))
    slopes = C * np.clip(z / WIDTH, 0, 1) * y
    return 0.5 * w @ w + C * losses.sum(), w - np.append(X.T @ slopes, slopes.sum())


@CLASSES
@THREADS
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("C", [0.1, 20.0])
def test_a_loss_between_hinge_and_squared_hinge_needs_another_table_alone(rows, tmp_path, n_classes, threads, place, C):
    X, labels = rows(n_classes)
    path = split(write_text(tmp_path / "rows.txt", X, labels), 40)
    memory = 8 * X.nnz if place == "disk" else LARGE
    config = train.Config(C=C, bias=1.0, tolerance=1e-5, threads=threads, memory=memory)
    with train.open_data([path], config) as data:
        assert data.where.split()[-1] == place
        problems = [Smoothed(**{**asdict(posed), "loss_at_zero": np.inf})
                    for posed in train.problems_of(data.description, config)]  # fmt: skip
        solver = (InMemory if place == "memory" else FromDisk)(problems, config, data)
        outcome, ids, names = train.run(solver, config), data.feature_ids() - 1, data.description.labels
    certificates = outcome.classes or [outcome.certificate]
    assert outcome.reason == "converged" and len(certificates) == len(problems)
    for problem, column, known in zip(problems, outcome.w.T, certificates, strict=True):
        y, w = np.where(labels == int(names[problem.positive]), 1, -1), np.zeros(X.shape[1] + 1)
        w[ids], w[-1] = column[:-1], column[-1]
        best = scipy.optimize.minimize(lambda w, y=y: smoothed_primal(X, y, C, w), np.zeros(len(w)), jac=True,
                                       method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9}).fun
        assert known.primal == pytest.approx(smoothed_primal(X, y, C, w)[0], rel=1e-9)
        assert known.dual <= best * (1 + 1e-9) and known.primal <= best / (1 - 1e-5)
