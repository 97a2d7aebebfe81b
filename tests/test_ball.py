"""-s stream against a plain transcription of StreamSVM with explicit points, balls by SciPy, LIBLINEAR, and NumPy."""

import functools
import gzip
import os
import re
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from conftest import measure_peak, names
from objectives import least, multiples, objective, signs_and_costs
from problems import (
    arena_of,
    four_classes,
    growing_rows,
    make_classes,
    make_rows,
    radii_so_far,
    read_model,
    split,
    write_text,
)
from training import LARGE

from llsvm import _reader, stream
from llsvm.core import UsageError
from llsvm.memory import promised
from llsvm.problem import Problem
from llsvm.solvers.ball import Machine

SMALL = 2 << 20  # bytes, under which text is read in pieces of 64 KB
MB = 1 << 20
FACTORS = np.arange(1, 513) / 256  # not 0, which would be no classifier


# --- the algorithm as it is written


class Ball(NamedTuple):
    """Its centre among points (y x, y bias, sqrt(d_i) e_i); radii: after every row."""

    centre: np.ndarray
    radius: float
    moves: int
    radii: list

    @property
    def dual(self):
        return 0.5 / (self.centre @ self.centre)

    def w(self, n_features):
        """Of the dual point, the bias last."""
        return self.centre[: n_features + 1] / (self.centre @ self.centre)


def stream_svm(X, y, costs, lookahead, bias=0.0):
    """Algorithm 1 (lookahead 1) or 2. bias: a number, or one for every row and one for the end."""
    n_rows, place = X.shape
    biases, axes = np.broadcast_to(bias, n_rows + 1), np.eye(n_rows)

    def point(i, bias):
        return np.concatenate([y[i] * X[i], [y[i] * bias], np.sqrt(0.5 / costs[i]) * axes[i]])

    centre, radius, moves, held, radii = point(0, biases[0]), 0.0, 1, [], [0.0]
    for i in range(1, n_rows + 1):
        if biases[i] != biases[i - 1]:
            centre[place] *= biases[i] / biases[i - 1]
        if i < n_rows and (distance := np.linalg.norm(point(i, biases[i]) - centre)) >= radius:
            held.append(i)
        if held and lookahead == 1:
            centre += (1 - radius / distance) / 2 * (point(i, biases[i]) - centre)
            radius += (distance - radius) / 2
        elif held and (len(held) == lookahead or i == n_rows):
            centre, radius = smallest_ball(centre, radius, np.array([point(j, biases[i]) for j in held]))
        if len(held) == lookahead or (held and i == n_rows):
            moves, held = moves + 1, []
        radii.append(radius)
    return Ball(centre, radius, moves, radii[:n_rows])


def smallest_ball(centre, radius, points):
    """(c, r) of the smallest ball around a ball and points: min r with |c - p| <= r, |c - centre| + radius <= r."""
    points, size = points - centre, np.linalg.norm(points - centre, axis=1).max()
    basis = np.linalg.qr(points.T)[0]
    points, inner = points @ basis / size, radius / size

    def needed(c):
        return np.append(np.linalg.norm(points - c, axis=1), np.linalg.norm(c) + inner)

    def slopes(x):
        away = np.vstack([points - x[:-1], -x[:-1]])
        return np.column_stack([away / np.maximum(np.linalg.norm(away, axis=1), 1e-300)[:, None], np.ones(len(away))])

    best, inside = np.zeros(points.shape[1]), {"type": "ineq", "fun": lambda x: x[-1] - needed(x[:-1]), "jac": slopes}
    for share in (0.5, 1e-3, 1e-3):
        start = best + share * points.mean(0)
        found = scipy.optimize.minimize(
            lambda x: x[-1], np.append(start, 1.01 * needed(start).max()), jac=lambda x: np.eye(len(x))[-1],
            constraints=inside, method="SLSQP", options={"ftol": 1e-15, "maxiter": 300},
        )  # fmt: skip
        best = min(best, found.x[:-1], key=lambda c: needed(c).max())
    return centre + size * (basis @ best), size * needed(best).max()


# --- runs


@pytest.fixture
def fit(fit):
    return functools.partial(fit, solver="stream")


def full_weights(model, n_features):
    """(features and a bias, columns), with a bias of 0 where there is none."""
    w = model.matrix(n_features)
    return w if len(w) > n_features else np.vstack([w, np.zeros(w.shape[1])])


def assert_same(fitted, X, labels, lookahead, C=1.0, weights=None, bias=0.0):
    """The run is what the transcription makes of these rows in this order; bias as there."""
    X, outcome, [stats] = X.toarray(), fitted.outcome, fitted.passes
    Y, costs = signs_and_costs(labels, fitted.model.labels, C, weights)
    balls = [stream_svm(X, Y[k], costs[k], lookahead, bias) for k in range(len(Y))]
    found = full_weights(fitted.model, X.shape[1])
    assert stats.active == sum(ball.moves for ball in balls) > len(balls)
    assert stats.dual == pytest.approx(sum(ball.dual for ball in balls), rel=1e-5)
    assert found.shape[1] == len(balls) and stats.visits == len(labels)
    for k, ball in enumerate(balls):
        w = ball.w(X.shape[1])
        if outcome.certificate:
            primals = multiples(FACTORS, X, Y[k], costs[k], w, np.broadcast_to(bias, len(labels) + 1)[-1], squared=True)
            w *= FACTORS[primals.argmin()]
            assert outcome.classes[k].primal == pytest.approx(primals.min(), rel=1e-5)
            assert outcome.classes[k].dual == pytest.approx(ball.dual, rel=1e-5)
        np.testing.assert_allclose(found[:, k], w, rtol=0, atol=1e-5 * np.abs(w).max())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    rows = make_rows(600)
    text = write_text(tmp_path_factory.mktemp("two") / "two.txt", rows.X, rows.y)
    assert os.path.getsize(text) > 3 * 65536
    return rows._replace(text=text, blocks=split(text, 5))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """(X, labels, path)"""
    X, labels = four_classes(400)
    return X, labels, write_text(tmp_path_factory.mktemp("many") / "many.txt", X, labels)


# --- as written


@pytest.mark.parametrize("certify", [True, False], ids=["certified", "--no-certify"])
@pytest.mark.parametrize("lookahead, C, bias, weights", [
    (1, 1.0, -1.0, {}), (1, 0.05, 1.0, {}), (1, 30.0, 2.0, {"1": 3.0, "-1": 0.5}), (2, 1.0, 1.0, {}),
    (10, 1.0, -1.0, {}), (10, 30.0, 1.0, {}), (7, 0.2, -1.0, {"1": 0.1, "-1": 5.0}),
])  # fmt: skip
def test_two_classes_are_the_algorithm(two, fit, lookahead, C, bias, weights, certify):
    trained = fit(two.text, lookahead=lookahead, C=C, bias=bias, weights=weights, certify=certify)
    assert bool(trained.outcome.certificate) == certify and trained.outcome.reason == "passes"
    assert_same(trained, two.X, two.y, lookahead, C, weights, max(bias, 0.0))


@pytest.fixture
def visits(monkeypatch):
    """visits() -> (X, labels) in the order in which a block set has been visited."""
    seen, arenas = [], stream.SetStream.arenas

    def recorded(self, *arguments):
        for arena, order in arenas(self, *arguments):
            rows = arena.rows[order]
            n = int(rows["length"].sum())
            codes, indptr = np.empty(len(rows), np.uint16), np.empty(len(rows) + 1, np.int64)
            features, values = np.empty(n, np.int32), np.empty(n, np.float32)
            _reader.unpack(rows, codes, indptr, features, values)
            columns = self.feature_ids()[features] - 1
            X = scipy.sparse.csr_matrix((values.astype(float), columns, indptr), (len(rows), columns.max() + 1))
            seen.append((X, [self.labels[code] for code in codes]))
            yield arena, order

    monkeypatch.setattr(stream.SetStream, "arenas", recorded)

    def all_visits(n_features):
        for X, _ in seen:
            X.resize(X.shape[0], n_features)
        return scipy.sparse.vstack([X for X, _ in seen]).tocsr(), [label for _, labels in seen for label in labels]

    return all_visits


@pytest.mark.parametrize("lookahead, options", [
    (1, {"bias": None}), (10, {"bias": None, "C": 5.0}), (10, {"balanced": True}), (3, {"weights": {"-1": 4.0}}),
    (10, {"memory": 150_000}),
], ids=str)  # fmt: skip
def test_a_block_set_is_the_algorithm_in_a_random_order(two, fit, visits, lookahead, options):
    trained = fit(two.blocks, lookahead=lookahead, **options)
    X, labels = visits(two.X.shape[1])
    rows = [np.column_stack([X.toarray(), y]).tolist() for X, y in ((X, np.array(labels, int)), (two.X, two.y))]
    assert rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1])
    weights = options.get("weights", {})
    if "balanced" in options:
        weights = {label: len(labels) / (2 * labels.count(label)) for label in ("1", "-1")}
    bias = two.radius if "bias" in options else 0.0
    assert trained.model.bias == (pytest.approx(bias, rel=1e-7) if bias else -1.0)
    assert_same(trained, X, labels, lookahead, options.get("C", 1.0), weights, bias)


@pytest.mark.parametrize("lookahead", [1, 8])
@pytest.mark.parametrize("kind", ["growing", "empty first"])
def test_a_radius_that_grows_makes_the_centre_grow(tmp_path, fit, kind, lookahead):
    X, y = growing_rows(700)
    X = X.tocsr()
    if kind == "empty first":
        X = scipy.sparse.vstack([scipy.sparse.csr_matrix((3, X.shape[1])), X[3:]]).tocsr()
    biases = radii_so_far(X)
    assert len(set(biases)) > 8
    trained = fit(write_text(tmp_path / "rows.txt", X, y), lookahead=lookahead, bias=None, memory=SMALL)
    assert trained.model.bias == pytest.approx(biases[-1], rel=1e-7)
    assert_same(trained, X, y, lookahead, bias=biases)


# --- the kernel


def new_machine(n_features, lookahead, dtype, C, bias):
    """One ball for rows with codes 0 (y = 1) and 1 (y = -1); C of the latter and of the former."""
    problem = Problem(0, 2, C, True, 0.0, 1e-3)
    machine = Machine(problem, SimpleNamespace(lookahead=lookahead), np.dtype(dtype))
    machine.grow(n_features)
    machine.set_bias(bias)
    return machine


def rows_of(X, y, dtype):
    return arena_of(scipy.sparse.csr_matrix(X), np.asarray(y) < 0, dtype)


def enclose(X, y, lookahead, dtype=np.float64, C=(1.0, 1.0), bias=0.0):
    machine, arena = new_machine(X.shape[1], lookahead, dtype, C, bias), rows_of(X, y, dtype)
    machine.visit(arena.rows, np.arange(len(y), dtype=np.int32))
    machine.end()
    return machine


def radius_of(machine):
    return machine.state["radius"]


def centre_of(machine):
    """Its first part, the bias last."""
    return machine.state["scale"] * machine.state.v


def assert_ball(machine, ball, n_features):
    first, slack = np.split(ball.centre, [n_features + 1])
    assert machine.moves == ball.moves
    assert radius_of(machine) == pytest.approx(ball.radius, rel=1e-6)
    np.testing.assert_allclose(centre_of(machine), first, rtol=0, atol=1e-6 * max(ball.radius, np.abs(first).max()))
    assert machine.state["slack"] == pytest.approx(slack @ slack, rel=1e-4)
    assert machine.dual == pytest.approx(ball.dual, rel=1e-4)


def normal(rng, n_rows, scale=1.0):
    return scale * rng.standard_normal((n_rows, 4))


SETS = {  # rows, y (or None: at random), C of all rows
    "normal": lambda rng: (normal(rng, 16), None, 1.0),
    "one row": lambda rng: (normal(rng, 1), None, 1.0),
    "two rows": lambda rng: (normal(rng, 2), None, 1.0),
    "identical": lambda rng: (np.ones((16, 4)), np.ones(16), 1.0),
    "identical, of two classes": lambda rng: (np.ones((16, 4)), np.tile([1, -1], 8), 1.0),
    "empty": lambda rng: (np.zeros((16, 4)), None, 1.0),
    "some empty": lambda rng: (normal(rng, 16) * (rng.random((16, 1)) < 0.5), None, 3.0),
    "collinear": lambda rng: (np.outer(rng.permutation(16), np.ones(4)), np.ones(16), 1.0),
    "collinear, hardly any slack": lambda rng: (np.outer(rng.permutation(16), np.ones(4)), np.ones(16), 1e6),
    "hardly any slack": lambda rng: (normal(rng, 16), None, 1e8),
    "nothing but slack": lambda rng: (normal(rng, 16), None, 1e-8),
    "long": lambda rng: (normal(rng, 16, 1e20), None, 1.0),
    "long, as much slack": lambda rng: (normal(rng, 16, 1e20), None, 1e-40),
    "short": lambda rng: (normal(rng, 16, 1e-20), None, 1.0),
    "short, as much slack": lambda rng: (normal(rng, 16, 1e-20), None, 1e40),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lookahead", [1, 2, 5, 100])
@pytest.mark.parametrize("name", SETS)
def test_balls_are_those_of_scipy(name, lookahead, dtype):
    rng = np.random.default_rng(1)
    X, y, C = SETS[name](rng)
    X, y = X.astype(dtype).astype(float), np.where(rng.random(len(X)) < 0.5, 1, -1) if y is None else y
    assert_ball(enclose(X, y, lookahead, dtype, (C, C)), stream_svm(X, y, np.full(len(y), C), lookahead), X.shape[1])


@pytest.mark.parametrize("lookahead", [1, 5])
def test_costs_and_the_bias_are_in_the_points(lookahead):
    rng = np.random.default_rng(2)
    X, y = normal(rng, 60), np.where(rng.random(60) < 0.3, 1, -1)
    machine = enclose(X, y, lookahead, C=(0.03, 20.0), bias=2.5)
    assert_ball(machine, stream_svm(X, y, np.where(y > 0, 20.0, 0.03), lookahead, 2.5), 4)


@pytest.mark.parametrize("lookahead", [1, 2, 7])
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_every_step_is_right_and_rows_that_wait_outlive_their_arena(lookahead, C):
    rng = np.random.default_rng(3)
    X, y = normal(rng, 60) * np.linspace(1, 4, 60)[:, None], np.where(rng.random(60) < 0.5, 1, -1)
    ball, machine = stream_svm(X, y, np.full(60, C), lookahead, 1.0), new_machine(4, lookahead, np.float64, (C, C), 1.0)
    assert len(set(ball.radii)) > 3
    for i in range(60):
        arena = rows_of(X[i : i + 1], y[i : i + 1], np.float64)
        machine.visit(arena.rows, np.zeros(1, np.int32))
        arena.data[:] = 255
        assert radius_of(machine) == pytest.approx(ball.radii[i], rel=1e-6)
    machine.end()
    assert_ball(machine, ball, 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lookahead", [1, 2, 10, 100])
@pytest.mark.parametrize("C", [0.5, 1e4])
def test_all_rows_are_within_the_radius(lookahead, C, dtype):
    """Rows are independent, so that the centre's first part tells the coefficients of all of it."""
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((80, 120)).astype(dtype).astype(float), np.where(rng.random(80) < 0.5, 1, -1)
    machine = enclose(X, y, lookahead, dtype, (C, C), 1.0)
    rows = np.column_stack([y[:, None] * X, y])
    b = np.linalg.lstsq(rows.T, centre_of(machine), rcond=None)[0]
    assert b.min() > -1e-12 and b.sum() == pytest.approx(1, rel=1e-12)
    points = np.hstack([rows, np.sqrt(0.5 / C) * np.eye(80)])
    distances = np.linalg.norm(points - b @ points, axis=1)
    assert distances.max() <= radius_of(machine) * (1 + 1e-9)
    assert machine.dual == pytest.approx(0.5 / np.sum((b @ points) ** 2), rel=1e-9)


def test_rows_inside_move_nothing():
    rng = np.random.default_rng(5)
    far, near = 100 * np.array([[1, 0], [0, 1], [-1, 0], [0, -1.0]]), rng.standard_normal((50, 2))
    for lookahead in (1, 3):
        before, after = (enclose(X, np.ones(len(X)), lookahead) for X in (far, np.vstack([far, near])))
        assert radius_of(before) == radius_of(after) and before.moves == after.moves == {1: 4, 3: 2}[lookahead]
        np.testing.assert_array_equal(centre_of(before), centre_of(after))


@pytest.mark.parametrize("lookahead", [1, 2, 3, 10])
def test_rows_close_together_but_far_from_the_origin(run, tmp_path, lookahead):
    """As 1:10000.25 2:10000.5 ...: a norm in float32 is wrong by more than the rows differ."""
    rng = np.random.default_rng(0)
    X = np.round(np.column_stack([10_000 + rng.random((60, 2)), rng.standard_normal(60)]) * 64) / 64
    y = np.repeat([1, -1], 30)
    write_text(tmp_path / "close.txt", scipy.sparse.csr_matrix(X), y)
    finished = run("llsvm-train", "-s", "stream", "--lookahead", lookahead, "--no-certify", "close.txt", "model")
    assert finished.returncode == 0
    ball = stream_svm(X, y, np.ones(60), lookahead)
    model = read_model(tmp_path / "model")
    assert model.info["certificate"]["dual"] == pytest.approx(ball.dual, rel=1e-3)
    np.testing.assert_allclose(model.w, ball.w(3)[:-1], rtol=0, atol=1e-3 * np.abs(ball.w(3)).max())


# --- where the rows come from


@pytest.mark.parametrize("threads, memory", [(1, SMALL), (2, SMALL), (2, LARGE), (16, 300 * MB)])
@pytest.mark.parametrize("lookahead", [1, 10, 100])
def test_the_size_of_pieces_and_threads_do_not_change_the_model(two, many, fit, lookahead, threads, memory):
    for path in (two.text, many[2]):
        options = {"lookahead": lookahead, "bias": None, "C": 3.0}
        expected, trained = fit(path, threads=1, **options), fit(path, threads=threads, memory=memory, **options)
        np.testing.assert_array_equal(trained.outcome.w, expected.outcome.w)
        assert trained.certificate.dual == expected.certificate.dual
        assert trained.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-12)


def test_rows_that_wait_survive_the_piece_they_came_in(two, fit):
    assert_same(fit(two.text, lookahead=17, C=0.1, memory=SMALL), two.X, two.y, 17, 0.1)


def test_text_gzip_and_pipes_give_one_model(run, two, tmp_path):
    with open(two.text, "rb") as file:
        text = file.read()
    (tmp_path / "text.gz").write_bytes(gzip.compress(text, 1))
    (tmp_path / "half").write_bytes(b"".join(text.splitlines(True)[:250]))
    (tmp_path / "rest").write_bytes(b"".join(text.splitlines(True)[250:]))
    train_quietly = ["llsvm-train", "-q", "-s", "stream", "-B", "1", "--memory", SMALL]
    for name, data in (("text", [two.text]), ("gz", ["text.gz"]), ("halves", ["half", "rest"])):
        assert run(*train_quietly, "--no-certify", *data, f"{name}.model").returncode == 0
    for name, stdin in (("pipe", text), ("piped-gz", gzip.compress(text, 1))):
        assert run(*train_quietly, "-", f"{name}.model", stdin=stdin).returncode == 0
    names = ("text", "gz", "halves", "pipe", "piped-gz")
    expected, *others = (read_model(tmp_path / f"{name}.model").matrix(two.X.shape[1]) for name in names)
    ball = stream_svm(two.X.toarray(), two.y, np.ones(600), 10, 1.0)
    np.testing.assert_allclose(expected[:, 0], ball.w(two.X.shape[1]), rtol=0, atol=1e-5)
    for other in others:
        np.testing.assert_array_equal(other, expected)


# --- classes


@pytest.mark.parametrize("lookahead, bias", [(1, 1.0), (10, -1.0)])
def test_one_against_the_rest_is_the_algorithm(many, fit, lookahead, bias):
    X, labels, path = many
    trained = fit(path, lookahead=lookahead, bias=bias, C=10.0, threads=2)
    assert trained.model.labels == list(dict.fromkeys(labels))
    assert_same(trained, X, labels, lookahead, 10.0, bias=max(bias, 0.0))


@pytest.mark.parametrize("lookahead, early", [(1, 2), (10, 1), (10, 2), (10, 3)])
def test_a_class_that_turns_up_late_has_seen_all_rows(tmp_path, fit, lookahead, early):
    """The text is read in pieces of 64 KB; the rows of some classes come in later ones only."""
    X, y = make_classes(1500 if early == 1 else 800, 4)
    order = np.argsort(y >= early, kind="stable")
    X, y = X[order], y[order]
    path = write_text(tmp_path / "late.txt", X, y)
    assert np.mean(y < early) * os.path.getsize(path) > 65536
    trained = fit(path, lookahead=lookahead, bias=1.0, C=10.0, memory=SMALL, certify=False)
    assert_same(trained, X, y, lookahead, 10.0, bias=1.0)


def test_weights_of_many_classes_come_with_a_block_set(many, fit, visits, tmp_path):
    X, _, path = many
    weights = {"a": 5.0, "7": 0.2}
    trained = fit(split(path, 3, output=tmp_path / "set"), C=2.0, weights=weights)
    assert_same(trained, *visits(X.shape[1]), 10, 2.0, weights)
    with pytest.raises(UsageError, match="4 classes, and weights for some of them"):
        fit(path, weights=weights)


def test_words_are_predicted(many, run, tmp_path):
    X, labels, path = many
    assert run("llsvm-train", "-q", "-s", "stream", "-c", 10, path, "model").returncode == 0
    model = read_model(tmp_path / "model")
    expected = [model.labels[choice] for choice in (X @ model.weights).argmax(1)]
    assert run("llsvm-predict", "-q", path, "model", "-").stdout.split() == expected
    assert np.mean([a == b for a, b in zip(expected, labels, strict=True)]) > 0.8


# --- the certificate


@pytest.mark.parametrize("C, weights", [(0.01, {}), (1.0, {"1": 5.0, "-1": 0.5}), (100.0, {})])
def test_the_dual_is_below_the_optimum_and_nearer_to_it_with_more_lookahead(two, fit, C, weights):
    best = least("squared", two.X, two.y, C, weights, 1.0).sum()
    exact = fit(two.text, solver="dual-l2", C=C, weights=weights, bias=1.0, tolerance=1e-6)
    assert exact.certificate.primal == pytest.approx(best, rel=1e-5)
    duals = [fit(two.text, C=C, weights=weights, bias=1.0, lookahead=n).certificate.dual for n in (1, 10, 1000)]
    assert duals[2] <= best * (1 + 1e-6) and duals[0] < 0.99 * best
    assert duals[2] == max(duals)


def test_a_growing_radius_is_certified_at_its_end(tmp_path, fit):
    X, y = growing_rows(1200)
    trained = fit(write_text(tmp_path / "growing.txt", X, y), bias=None, memory=SMALL)
    primal = objective(X, y, trained.model, loss="squared")
    assert trained.certificate.primal == pytest.approx(primal, rel=1e-9)
    assert trained.certificate.dual <= least("squared", X, y, bias=trained.model.bias).sum()


def test_what_is_not_certified_says_so(run, two, tmp_path):
    with open(two.text, "rb") as file:
        text = file.read()
    piped = run("llsvm-train", "-s", "stream", "-", "piped", stdin=text)
    assert "no certificate: the input cannot be read again" in piped.stdout and "certified)" not in piped.stdout
    skipped = run("llsvm-train", "-s", "stream", "--no-certify", two.text, "skipped")
    assert "no certificate: --no-certify" in skipped.stdout
    full = run("llsvm-train", "-s", "stream", two.text, "full")
    assert "(certified)" in full.stdout
    models = [read_model(tmp_path / name) for name in ("piped", "skipped", "full")]
    facts = [model.info["certificate"] for model in models]
    assert ["relative_gap" in fact for fact in facts] == [False, False, True] and "none" not in facts[2]
    assert len({fact["dual"] for fact in facts}) == 1
    piped, skipped, full = (model.weights for model in models)
    np.testing.assert_array_equal(piped, skipped)
    factor = (full.T @ piped / (piped.T @ piped)).item()
    np.testing.assert_allclose(full, factor * piped, rtol=1e-12)
    assert 256 * factor == pytest.approx(round(256 * factor), abs=1e-9)


def test_an_interrupted_look_leaves_the_model_as_it_was(two, fit):
    trained, expected = fit(two.text, stopped=lambda: True), fit(two.text, certify=False)
    assert trained.outcome.reason == trained.outcome.uncertified == "interrupted"
    assert trained.outcome.certificate is None
    np.testing.assert_array_equal(trained.outcome.w, expected.outcome.w)


# --- memory


@pytest.fixture
def measure(run_in, tmp_path):
    """A run with these options, and the largest size it had, in bytes."""
    return lambda *options: measure_peak(run_in, tmp_path, "llsvm-train", "-q", "-s", "stream", *options, "model")


def random_text(path, n_rows, n_features, n_nonzeros, n_classes=2, copies=1, seed=1):
    rng, lines = np.random.default_rng(seed), []
    for i in range(n_rows):
        ids = np.sort(rng.choice(n_features, n_nonzeros, replace=False)) + 1
        lines.append(f"{i % n_classes} " + " ".join(f"{feature}:.{feature % 9 + 1}" for feature in ids.tolist()))
    text = ("\n".join(lines) + "\n").encode()
    with open(path, "wb") as file:
        for _ in range(copies):
            file.write(text)
    return path.name


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(measure, tmp_path):
    name = random_text(tmp_path / "long.txt", 1000, 50_000, 100, copies=110)
    assert os.path.getsize(tmp_path / name) > 90e6
    finished = measure("--memory", "8M", name)
    assert finished.returncode == 0, finished.stderr
    assert finished.peak < promised(8 * MB)


@pytest.mark.slow
@pytest.mark.parametrize("shape, memory, lookahead", [
    ((1200, 100, 5, 30), 10, 1000),  # Gram matrices: 8 MB for each of 30 classes
    ((60, 20_000, 15_000, 50), 20, 10),  # rows that wait: 10 of 120 KB for each of 50 classes
    ((6000, 400_000, 100, 40), 300, 10),  # weights: v, spread and w for each of 40 classes
], ids=["Gram matrices", "rows that wait", "weights"])  # fmt: skip
def test_many_classes_keep_the_promise_when_refused_and_with_the_memory_asked_for(
    measure, tmp_path, shape, memory, lookahead
):
    """Only the features and rows so far are known when a budget is refused, so that the next may be refused too."""
    name = random_text(tmp_path / "data.txt", *shape)

    def train_within(memory):
        finished = measure("--lookahead", lookahead, "--memory", f"{memory}M", name)
        assert finished.peak < promised(memory * MB)
        return finished

    finished = train_within(memory)
    assert finished.returncode == 2
    while finished.returncode:
        hint = r"too small.*\nhint: (?:at least )?--memory (\d+)M (?:is needed|would do)"
        asked_for = int(re.search(hint, finished.stderr)[1])
        assert asked_for > memory
        memory = asked_for
        finished = train_within(memory)


# --- what is refused, and what is left behind


@pytest.mark.parametrize("text, says", [
    ("1 1:1\n1 2:1\n", "only one class in the data: every label is 1"), ("", "data.txt: no rows"),
    ("1 1:1\n-1 2:1\n1 0:1\n", "data.txt:3:3: "),
    ("1 1:1\n-1 2:1\n1 3:1 4:x\n", "data.txt:3:9: read 'x', expected a finite decimal number"),
])  # fmt: skip
def test_bad_data_are_refused_and_leave_nothing(run, tmp_path, text, says):
    (tmp_path / "data.txt").write_text(text)
    finished = run("llsvm-train", "-q", "-s", "stream", "data.txt", "model")
    assert finished.returncode == 1 and finished.stderr.startswith(f"error: {says}")
    assert names(tmp_path) == {"data.txt", "tmp"}


@pytest.mark.parametrize("options, says", [
    ({"solver": "dual", "lookahead": 5}, "--lookahead: -s dual encloses nothing"),
    ({"solver": "shrink", "lookahead": 1}, "--lookahead: -s shrink encloses nothing"),
    ({"batch": 5}, "--batch"), ({"balanced": True}, "balanced needs the counts"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(two, fit, options, says):
    with pytest.raises(UsageError, match=says):
        fit(two.text, **options)
