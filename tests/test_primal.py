"""-s pegasos against a plain transcription of the algorithm, LIBLINEAR, and objectives by NumPy."""

import functools
import gzip
import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse
from conftest import measure_peak
from objectives import objective, primals, signs_and_costs, train_liblinear
from problems import (
    block_bytes,
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

from llsvm import _primal, _reader, reader
from llsvm.blockset import BlockSet
from llsvm.core import UsageError
from llsvm.memory import promised
from llsvm.options import OPTIONS
from llsvm.solvers import primal

SEED = 5
FACTORS, NONE_OR_ALL = np.arange(513) / 256, np.arange(2)
N_PASSES = 5


# --- the algorithm as it is written


class Plain:
    """One problem: w <- (1 - 1/t) w + l / (t |B|) sum C_i y_i x_i, eagerly, with all dual variables beside it.

    Rows have a last column of ones, for which `bias` stands, a number or one for every row's turn and one for the end:
    v = sum alpha_i y_i x_i, so that the weight of the bias is bias v[-1], and what it adds to a score is bias^2 v[-1].
    growing: l and the radius are those of the rows so far; a last batch that is not whole waits for the end.
    """

    def __init__(self, X, y, C, bias=0.0, hold=False, growing=False, start=None):
        self.X, self.y, self.C = np.column_stack([X, np.ones(len(y))]), y, C
        self.bias = np.broadcast_to(bias, len(y) + 1)
        self.hold, self.growing, self.t = hold, growing, 1
        self.v = np.zeros(self.X.shape[1]) if start is None else start
        self.alpha, self.bounds, self.dual = np.zeros(len(y)), np.zeros(2), 0.0
        self.begin_average()

    def begin_average(self):
        self.sum, self.n_summed = np.zeros_like(self.v), 0

    def multiply(self, factor):
        self.v, self.alpha, self.bounds = factor * self.v, factor * self.alpha, factor * self.bounds

    def margin(self, i):
        return self.y[i] * (self.X[i] @ scaled(self.v, self.bias[i] ** 2))

    def step(self, rows, size):
        whole, C, n_rows = len(rows) == size, self.C, rows[-1] + 1 if self.growing else len(self.y)
        lost = [i for i in rows if self.margin(i) < 1]
        self.losses += sum(C[i] * (1 - self.margin(i)) for i in lost)
        pace = n_rows / (self.t * size)
        self.multiply(1 - 1 / self.t)
        self.v += pace * (C[lost] * self.y[lost]) @ self.X[lost]
        self.alpha[lost] += pace * C[lost]
        self.bounds[1] = max(self.bounds[1], pace * bool(lost))
        radius = np.sqrt(C[:n_rows].sum()) if self.growing else np.sqrt(C.sum())
        norm = np.linalg.norm(scaled(self.v, self.bias[rows[-1] if whole else -1]))
        self.multiply(min(1.0, radius / max(norm, 1e-300)))
        self.sum, self.n_summed = self.sum + self.v, self.n_summed + 1
        self.t += bool(lost) or not self.hold

    def run_pass(self, number, batches):
        """batches: (rows, what they are divided by). Returns (average, last w, dual value, primal value as met on the
        way), the weight of the bias being the last."""
        self.losses = 0.0
        if number & (number - 1) == 0:
            self.begin_average()
        middle, n_seen = len(self.y) // 2 if number == 1 and not self.growing else -1, 0
        for rows, size in batches:
            if n_seen <= middle < n_seen + len(rows):
                self.begin_average()
            self.step(rows, size)
            n_seen += len(rows)
        self.end_pass()
        w = scaled(self.v, self.bias[-1])
        return scaled(self.sum / self.n_summed, self.bias[-1]), w, self.dual, 0.5 * w @ w + self.losses

    def end_pass(self):
        """Of a row, alpha / C is at most what it was before the pass plus what its one visit may have added."""
        self.bounds = np.array([self.bounds.sum(), 0.0])
        w = scaled(self.v, self.bias[-1])
        np.testing.assert_allclose(self.v, (self.alpha * self.y) @ self.X, rtol=1e-9, atol=1e-9 * abs(self.v).max())
        factor = min(1 / self.bounds[0], self.alpha.sum() / (w @ w))
        assert (factor * self.alpha <= self.C * (1 + 1e-12)).all() and (self.alpha >= 0).all()
        self.dual = max(self.dual, factor * self.alpha.sum() - 0.5 * factor**2 * (w @ w))


def scaled(v, bias):
    return np.append(v[:-1], bias * v[-1])


def in_batches(order, batch):
    return [(part, len(part)) for part in np.array_split(order, -(-len(order) // batch))]


def best_multiple_of(X, y, C, w, bias, factors):
    """(the multiple of w with the smallest primal value, and that value)"""
    margins = y * (X @ w[:-1] + bias * w[-1])
    values = 0.5 * factors**2 * (w @ w) + np.maximum(0, 1 - factors[:, None] * margins) @ C
    return factors[values.argmin()] * w, values.min()


# --- rows, and what the solver makes of them


class Data(NamedTuple):
    """A file or a set: rows by feature id, as they are in memory; number[chunk, place] of each, block[chunk]."""

    path: str
    X: np.ndarray
    labels: list
    known: list
    number: dict
    block: dict = {}
    ids: np.ndarray = None

    @property
    def classes(self):
        return ["1", "-1"] if self.known == ["-1", "1"] else self.known


def data_of_text(path, X, labels):
    labels, number = [str(label) for label in labels], {(0, row): row for row in range(len(labels))}
    return Data(str(path), X.toarray(), labels, list(dict.fromkeys(labels)), number)


def data_of_set(path, n_features):
    blocks = BlockSet(path)
    resident = reader.load(blocks, 1)
    codes, indptr = np.empty(blocks.n_rows, np.uint16), np.empty(blocks.n_rows + 1, np.int64)
    features, values = np.empty(blocks.n_nonzeros, np.int32), np.empty(blocks.n_nonzeros, blocks.dtype)
    _reader.unpack(resident.table, codes, indptr, features, values)
    ids = blocks.feature_ids()
    X = scipy.sparse.csr_matrix((values.astype(float), ids[features] - 1, indptr), (blocks.n_rows, n_features))
    places = map(tuple, resident.table[["chunk", "place"]].tolist())
    known = blocks.description.labels
    return Data(str(path), X.toarray(), [known[code] for code in codes], known,
                {place: row for row, place in enumerate(places)}, dict(enumerate(blocks.chunk_block.tolist())), ids)


def weights_now(solver, data):
    """A row a class, by feature id, the weight of the bias last."""
    ids, w = data.feature_ids(), solver.weights()
    found = np.zeros((w.shape[1], ids.max() + 1))
    found[:, ids - 1], found[:, -1] = w[:-1].T, w[-1]
    return found


@pytest.fixture
def pegasos(fit):
    return functools.partial(fit, solver="pegasos", tolerance=1e-12, seed=SEED, look=weights_now)


@pytest.fixture
def visits(monkeypatch):
    """The rows (chunk, place) that each machine is given, by its positive class."""
    seen, visit = defaultdict(list), primal.Machine.visit

    def recorded(machine, rows, order):
        seen[machine.problem.positive] += map(tuple, rows[order][["chunk", "place"]].tolist())
        visit(machine, rows, order)

    monkeypatch.setattr(primal.Machine, "visit", recorded)
    return seen


def orders_of(visits, data):
    """By pass, the numbers of the rows visited: all of them, once."""
    (places, *others), n_rows = visits.values(), len(data.labels)
    assert all(other == places for other in others)
    orders = np.array([data.number[place] for place in places]).reshape(-1, n_rows)
    assert (np.sort(orders) == np.arange(n_rows)).all()
    return orders


def in_blocks(order, data):
    """A step a block, whose rows come one after the other."""
    of_row = {row: data.block[chunk] for (chunk, _), row in data.number.items()}
    blocks = np.array([of_row[row] for row in order])
    parts = np.split(order, np.flatnonzero(np.diff(blocks)) + 1)
    assert len(parts) == len(set(blocks))
    return [(part, len(part)) for part in parts]


class Expected(NamedTuple):
    """By pass: averages and last w, a row a problem; sums of dual values and of losses met. The best multiples."""

    averages: np.ndarray
    lasts: np.ndarray
    duals: np.ndarray
    met: np.ndarray
    model: np.ndarray
    primal: float


def follow(data, passes, bias=-1.0, C=1.0, weights=None, average=True, start=None, **options):
    """What the plain algorithm does in these passes, of which each is a list of batches."""
    Y, costs = signs_and_costs(data.labels, data.classes, C, weights)
    final, factors, results, best = np.atleast_1d(bias)[-1], FACTORS if average else NONE_OR_ALL, [], []
    for y, own in zip(Y, costs, strict=True):
        plain = Plain(data.X, y, own, np.maximum(bias, 0), start=None if start is None else start(y, own), **options)
        done = [plain.run_pass(number, batches) for number, batches in enumerate(passes, 1)]
        candidates = [best_multiple_of(data.X, y, own, step[not average], max(final, 0), factors) for step in done]
        results.append(done)
        best.append(min(candidates, key=lambda pair: pair[1]))
    averages, lasts, duals, met = (np.array([[done[number][k] for done in results] for number in range(len(passes))])
                                   for k in range(4))  # fmt: skip
    return Expected(averages, lasts, duals.sum(1), met.sum(1), np.array([w for w, _ in best]),
                    sum(value for _, value in best))


def assert_close(found, expected, rtol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * abs(expected).max())


def assert_same(run, expected, average=True, rtol=1e-6):
    for found, w in zip(run.seen, expected.averages if average else expected.lasts, strict=True):
        assert_close(found, w, rtol)
    assert_close([stats.dual for stats in run.passes], expected.duals, rtol)
    assert run.outcome.certificate.primal == pytest.approx(expected.primal, rel=rtol)
    assert run.outcome.certificate.dual == run.passes[-1].dual
    w = run.model.matrix(expected.model.shape[1] - 1).T
    assert_close(w, expected.model[:, : w.shape[1]], rtol)


# --- every pass


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """400 rows of two classes: text, a set of seven blocks, and one of values that float32 cannot hold."""
    rows, folder = make_rows(400), tmp_path_factory.mktemp("two")
    text = write_text(folder / "two.txt", rows.X, rows.y)
    tenths = write_text(folder / "tenths.txt", rows.X * 0.1, rows.y)
    return {
        "text": data_of_text(text, rows.X, rows.y),
        "tenths": data_of_text(tenths, rows.X * 0.1, rows.y),
        "set": data_of_set(split(text, 7), 180),
        "tenths set": data_of_set(split(tenths, 7, precision="float64"), 180),
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """500 rows of four classes, text and a set."""
    X, labels = four_classes(500)
    text = write_text(tmp_path_factory.mktemp("many") / "many.txt", X, labels)
    return {"text": data_of_text(text, X, labels), "set": data_of_set(split(text, 6), 80)}


WAYS = {
    "plain": {},
    "small C": {"C": 0.003},
    "large C": {"C": 20.0},
    "bias": {"bias": 1.0},
    "bias R": {"bias": None},
    "weights": {"C": 0.2, "weights": {"1": 3.0, "-1": 0.5}},
    "balanced": {"balanced": True, "bias": 0.5},
    "hold t": {"hold_t": True},
    "batch": {"batch": 7},
    "batches of two sizes": {"batch": 150, "bias": 2.0},
    "batch of all rows": {"batch": 1000},
    "batch, hold t": {"batch": 3, "hold_t": True, "C": 10.0},
    "last w": {"average": False},
    "last w, batch": {"average": False, "batch": 6, "weights": {"-1": 4.0}},
}
PLACES = {"memory": LARGE, "disk": 80_000}
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


def problem_of(data, bias=-1.0, balanced=False, weights=None, **others):
    """Options of pegasos as those of follow."""
    if balanced:
        weights = {name: len(data.labels) / (len(data.classes) * data.labels.count(name)) for name in data.classes}
    bias = np.sqrt((data.X**2).sum(1).max()) if bias is None else bias
    renamed = {"hold": others.pop("hold_t", False), "average": others.pop("average", True)}
    return {"bias": bias, "weights": weights, **renamed, "C": others.get("C", 1.0)}


@EVERY_PLACE
@pytest.mark.parametrize("way", WAYS)
def test_every_pass_is_that_of_the_plain_algorithm(two, visits, way, place, pegasos):
    data, options = two["set"], WAYS[way]
    run = pegasos(data.path, max_passes=N_PASSES, memory=PLACES[place], **options)
    assert run.where == ("on disk" if place == "disk" else "in memory")
    passes = [in_batches(order, options.get("batch", 1)) for order in orders_of(visits, data)]
    assert len(passes) == N_PASSES
    assert_same(run, follow(data, passes, **problem_of(data, **options)), options.get("average", True))


def test_rows_of_text_in_memory_are_visited_in_an_order_that_the_pass_alone_decides(two, visits, pegasos):
    data, expected = two["text"], []
    run = pegasos(data.path, bias=1.0, max_passes=N_PASSES)
    for number in range(1, N_PASSES + 1):
        order = np.arange(400, dtype=np.int32)
        reader.shuffle(order, 400, SEED, number)
        expected.append(order.tolist())
    assert orders_of(visits, data).tolist() == expected
    assert_same(run, follow(data, [in_batches(order, 1) for order in expected], bias=1.0))


@pytest.mark.parametrize("batch", [1, 0])
def test_on_disk_the_order_of_chunks_and_rows_is_new_in_every_pass_and_for_every_seed(two, visits, batch, pegasos):
    data, found = two["set"], []
    for seed in (1, 1, 2):
        visits.clear()
        pegasos(data.path, memory=PLACES["disk"], seed=seed, max_passes=4, batch=batch)
        found += orders_of(visits, data).tolist()
    assert found[:4] == found[4:8]
    assert len(set(map(tuple, found))) == 8
    assert len({data.block[chunk] for chunk, place in data.number if data.number[chunk, place] in
                {order[0] for order in found}}) > 1  # fmt: skip


BLOCK_WAYS = {
    "plain": {"C": 0.1}, "hold t, bias": {"hold_t": True, "bias": 1.0}, "last w": {"average": False, "C": 5.0},
    "weights": {"weights": {"1": 7.0}, "bias": None},
}  # fmt: skip


@pytest.mark.parametrize("memory", [60_000, LARGE])
@pytest.mark.parametrize("way", BLOCK_WAYS)
def test_a_batch_may_be_a_block(two, visits, way, memory, pegasos):
    """Blocks are read one by one whatever the memory; with little of it a block takes several parts."""
    data, options = two["set"], BLOCK_WAYS[way]
    run = pegasos(data.path, batch=0, max_passes=9, memory=memory, **options)
    assert run.where == "on disk"
    passes = [in_blocks(order, data) for order in orders_of(visits, data)]
    assert {len(batches) for batches in passes} == {7} and len(passes) == 9
    assert_same(run, follow(data, passes, **problem_of(data, **options)), options.get("average", True))


def test_text_is_split_into_sixteen_blocks_where_a_batch_is_one(two, monkeypatch, pegasos):
    sizes, end_block = [], primal.Machine.end_block

    def recorded(machine, n_rows):
        sizes.append(n_rows)
        end_block(machine, n_rows)

    monkeypatch.setattr(primal.Machine, "end_block", recorded)
    run = pegasos(two["text"].path, batch=0, max_passes=1)
    assert run.where == "on disk" and len(sizes) == 16 and sum(sizes) == 400


# --- where w begins


def mix(seed, counter):
    """splitmix64 of both, as _sparse.pxd has it."""
    mask = 2**64 - 1
    z = (seed * 0x9E3779B97F4A7C15 + (counter + 1) * 0xD1B54A32D192ED03) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def random_start(n, seed, norm):
    numbers = np.array([mix(seed, k) for k in range(n)], np.uint64).astype(np.int64) / 2.0**63
    return norm * numbers / np.linalg.norm(numbers)


def starts_of(data, bias):
    """start of follow: on the surface of the ball that the optimum lies in."""

    def start(y, C):
        positive = data.known.index(data.labels[int(np.argmax(y))])
        w = random_start(len(data.ids) + (bias > 0), SEED * 65536 + positive, np.sqrt(C.sum()))
        v = np.zeros(data.X.shape[1] + 1)
        v[data.ids - 1], v[-1] = w[: len(data.ids)], w[-1] / bias if bias > 0 else 0.0
        return v

    return start


def test_a_random_start_has_the_length_asked_for_and_no_direction_of_its_own():
    v = np.zeros(3000)
    _primal.random_start(v, 77, 2.5)
    np.testing.assert_allclose(v, random_start(3000, 77, 2.5), rtol=1e-12)
    assert np.linalg.norm(v) == pytest.approx(2.5)
    assert abs(v.mean()) < 4 * v.std() / np.sqrt(3000)
    none = np.zeros(0)
    _primal.random_start(none, 1, 2.5)


@pytest.mark.parametrize("options", [
    {"batch": 60}, {"batch": 150, "bias": 1.0, "C": 3.0}, {"batch": 0, "bias": None}, {"hold_t": True},
    {"batch": 90, "weights": {"1": 5.0}, "average": False},
], ids=str)  # fmt: skip
def test_a_random_start_decides_which_rows_of_the_first_batch_have_a_loss(two, visits, options, pegasos):
    """More it cannot, for the first step takes w back to zero."""
    data, problem = two["set"], problem_of(two["set"], **options)
    run = pegasos(data.path, init="random", max_passes=3, **options)
    batched = (lambda order: in_batches(order, options.get("batch", 1))) if options.get("batch", 1) else (
        lambda order: in_blocks(order, data))  # fmt: skip
    passes = [batched(order) for order in orders_of(visits, data)]
    expected = follow(data, passes, **problem, start=starts_of(data, problem["bias"]))
    assert_same(run, expected, options.get("average", True))
    from_zero = follow(data, passes, **problem)
    assert options.get("batch", 1) == 1 or abs(from_zero.averages[0] - expected.averages[0]).max() > 1e-4


def test_a_random_start_lies_in_the_ball_and_is_another_for_every_seed_and_class(many, monkeypatch, pegasos):
    starts, measured = [], _primal.random_start

    def recorded(v, seed, norm):
        measured(v, seed, norm)
        starts.append(np.array(v))

    monkeypatch.setattr(primal._primal, "random_start", recorded)
    for seed in (1, 2):
        pegasos(many["set"].path, init="random", C=0.3, seed=seed, max_passes=1)
    assert len(starts) == 8 and len({tuple(start) for start in starts}) == 8
    for start in starts:
        assert np.linalg.norm(start) <= np.sqrt(0.3 * 500) * (1 + 1e-12)  # 1 / sqrt(lambda)


# --- several classes, and kinds of numbers


@EVERY_PLACE
@pytest.mark.parametrize("options", [
    {"bias": 1.0}, {"C": 0.05, "weights": {"a": 6.0, "7": 0.5}}, {"batch": 9, "hold_t": True, "bias": None},
    {"balanced": True, "average": False}, {"batch": 25, "init": "random", "weights": {"c": 2.0}},
], ids=str)  # fmt: skip
def test_one_against_the_rest_is_a_plain_run_a_class(many, visits, options, place, pegasos):
    """Weights as LIBLINEAR's: only the C of the positive class differs."""
    data, problem = many["set"], problem_of(many["set"], **options)
    run = pegasos(data.path, max_passes=3, memory=PLACES[place], threads=2, **options)
    passes = [in_batches(order, options.get("batch", 1)) for order in orders_of(visits, data)]
    start = starts_of(data, problem["bias"]) if "init" in options else None
    assert run.model.labels == data.classes and len(run.outcome.classes) == 4
    assert_same(run, follow(data, passes, **problem, start=start), options.get("average", True))


@EVERY_PLACE
@pytest.mark.parametrize("batch", [1, 8])
def test_values_are_used_as_precisely_as_they_are_held(two, visits, place, batch, pegasos):
    """C is so small that there is no projection, for which w.w is kept up from norms in float32."""
    data = two["tenths set"]
    run = pegasos(data.path, max_passes=3, C=1e-3, memory=PLACES[place], batch=batch)
    passes = [in_batches(order, batch) for order in orders_of(visits, data)]
    assert_same(run, follow(data, passes, C=1e-3), rtol=1e-12)
    rounded = data._replace(X=data.X.astype(np.float32).astype(float))
    with pytest.raises(AssertionError):
        assert_same(run, follow(rounded, passes, C=1e-3), rtol=1e-12)
    assert (data.X != rounded.X).any()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_values_of_text_are_those_of_its_precision(two, visits, precision, pegasos):
    data = two["tenths"]
    run = pegasos(data.path, max_passes=2, C=1e-3, precision=precision)
    passes = [in_batches(order, 1) for order in orders_of(visits, data)]
    rounded = data._replace(X=data.X.astype(precision).astype(float))
    assert_same(run, follow(rounded, passes, C=1e-3), rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"batch": 4}, {"hold_t": True}, {"average": False}], ids=str)
@pytest.mark.parametrize("length, C", [(4.0, 100.0), (16.0, 100.0), (256.0, 1.0), (2.0**100, 1.0)])
def test_long_rows_exhaust_neither_the_scale_of_w_nor_the_average(two, visits, tmp_path, options, length, C, pegasos):
    """As long as |x| > t / sqrt(C l) every projection shrinks w, while what has been averaged must stay what it was."""
    X = scipy.sparse.csr_matrix(two["text"].X) * length
    data = data_of_text(write_text(tmp_path / "long.txt", X, two["text"].labels), X, two["text"].labels)
    run = pegasos(data.path, max_passes=3, C=C, **options)
    passes = [in_batches(order, options.get("batch", 1)) for order in orders_of(visits, data)]
    expected = follow(data, passes, **problem_of(data, **options, C=C))
    assert_close(np.array(run.seen), expected.averages if options.get("average", True) else expected.lasts)
    assert run.outcome.certificate.primal <= C * len(data.labels)


# --- one pass over text


def one_by_one(n_rows, batch):
    """Rows in their own order; a last batch that lacks some counts as a whole one."""
    return [[(np.arange(start, min(start + batch, n_rows)), batch) for start in range(0, n_rows, batch)]]


def follow_once(data, batch=1, bias=-1.0, hold_t=False, **options):
    bias = radii_so_far(data.X) if bias is None else bias
    return follow(data, one_by_one(len(data.labels), batch), bias, hold=hold_t, growing=True, **options)


def assert_same_once(run, expected, data, average=True):
    """The sign of the weights on the way, where two classes are met in another order than a model has them, is not
    looked at here."""
    if data.known == ["-1", "1"]:
        sign = np.sign(np.sum(run.seen[0] * (expected.averages if average else expected.lasts)[0]))
        run = run._replace(seen=[sign * run.seen[0]])
    assert run.where == "read once" and len(run.passes) == 1
    assert_same(run, expected, average)


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """Rows that get longer, the first of the class -1; the last batch of 16 or 25 is not whole."""
    X, y = growing_rows(400)
    X, y = X[2:], y[2:]
    assert y[0] == -1 and len(y) % 16 and len(y) % 25
    assert len(np.unique(radii_so_far(X))) > 10
    return data_of_text(write_text(tmp_path_factory.mktemp("growing") / "growing.txt", X, y), X, y)


ONCE = {
    "plain": {}, "small C": {"C": 0.01}, "large C, bias": {"C": 10.0, "bias": 1.0}, "bias R": {"bias": None},
    "batch": {"batch": 16}, "batch, bias R": {"batch": 25, "bias": None}, "batch larger than the text": {"batch": 1000},
    "hold t": {"hold_t": True, "bias": None}, "last w": {"average": False},
    "last w, batch": {"average": False, "batch": 3},
}  # fmt: skip


@pytest.mark.parametrize("way", ONCE)
def test_one_pass_over_text_counts_the_rows_so_far(growing, way, pegasos):
    run = pegasos(growing.path, max_passes=1, **ONCE[way])
    assert_same_once(run, follow_once(growing, **ONCE[way]), growing, ONCE[way].get("average", True))
    assert run.outcome.reason == "passes" and run.outcome.stats.bytes_read == 2 * os.path.getsize(growing.path)


@pytest.mark.parametrize("n_empty", [0, 1, 3])
def test_short_rows_behind_empty_ones_have_their_own_radius(growing, tmp_path, n_empty, pegasos):
    """R = 1 stands in for that of empty rows only as long as there is no other."""
    X = scipy.sparse.csr_matrix(np.vstack([np.zeros((n_empty, 180)), growing.X[:80] / 256]))
    labels = ["1", "-1", "1"][:n_empty] + growing.labels[:80]
    data = data_of_text(write_text(tmp_path / "short.txt", X, labels), X, labels)
    run = pegasos(data.path, max_passes=1, bias=None, C=1000.0)
    assert_same_once(run, follow_once(data, bias=None, C=1000.0), data)


def test_weights_on_the_way_have_the_sign_of_the_model(growing, pegasos):
    run = pegasos(growing.path, max_passes=1, certify=False)
    assert_close(run.seen[-1][:, :-1], run.model.matrix(growing.X.shape[1]).T)


@pytest.mark.parametrize("threads, memory", [(1, LARGE), (3, LARGE), (2, 1 << 20)])
def test_the_size_of_pieces_does_not_change_the_model(tmp_path, threads, memory, pegasos):
    X, y = growing_rows(2500)
    path = write_text(tmp_path / "growing.txt", X, y)
    options = {"bias": None, "batch": 7, "max_passes": 1}
    one = pegasos(path, threads=1, memory=1 << 21, **options)
    other = pegasos(path, threads=threads, memory=memory, **options)
    np.testing.assert_array_equal(one.model.weights, other.model.weights)
    assert one.outcome.certificate.primal == pytest.approx(other.outcome.certificate.primal, rel=1e-12)


@pytest.mark.parametrize("options", [
    {"bias": 1.0}, {"batch": 7, "bias": None, "hold_t": True}, {"average": False, "hold_t": True, "batch": 7},
    {"batch": 64, "C": 0.1},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("early", [1, 2, 3])
def test_a_class_that_turns_up_late_has_seen_all_rows(tmp_path, early, options, pegasos):
    """The text is read in pieces of 64 KB; the rows of some classes come in later ones only."""
    X, y = make_classes(2200, 4)
    order = np.concatenate([np.flatnonzero(y < early), np.flatnonzero(y >= early)])
    X, y = X[order], y[order]
    data = data_of_text(write_text(tmp_path / "late.txt", X, y), X, y)
    assert os.path.getsize(data.path) > 6 * 65536
    run = pegasos(data.path, memory=2 << 20, max_passes=1, threads=2, **options)
    assert run.model.labels == data.known and len(run.outcome.classes) == 4
    assert_same_once(run, follow_once(data, **options), data, options.get("average", True))


def test_new_features_that_turn_up_late_are_learnt(tmp_path, pegasos):
    """Rows of later pieces have features of their own, beyond the room that was left to grow."""
    X, y = make_classes(2200, 4)
    wide = scipy.sparse.hstack([X, scipy.sparse.csr_matrix((2200, 240))]).tolil()
    for start in (550, 1100, 1650):
        part, place = slice(start, start + 550), 80 * start // 550
        wide[part] = scipy.sparse.hstack([X[part] * 0.5, *[X[part] * 0.5 if 80 * k == place else 0 * X[part]
                                                           for k in (1, 2, 3)]])  # fmt: skip
    wide = wide.tocsr()
    labels = np.where(y < 2, 1, -1)
    data = data_of_text(write_text(tmp_path / "wide.txt", wide, labels), wide, labels)
    for batch in (1, 50):
        run = pegasos(data.path, memory=2 << 20, max_passes=1, batch=batch, bias=1.0)
        assert_same_once(run, follow_once(data, batch=batch, bias=1.0), data)


def test_a_file_gzip_and_a_pipe_give_the_same_and_only_what_can_be_read_again_is_certified(run, growing, tmp_path):
    text = Path(growing.path).read_bytes()
    (tmp_path / "data.gz").write_bytes(gzip.compress(text))
    words = ["llsvm-train", "-s", "pegasos", "--max-passes", "1", "--batch", "5", "-B", "R", "-c", "0.5"]
    sources = {"file": growing.path, "zipped": "data.gz", "piped": "-", "piped-zipped": "-"}
    stdin = {"piped": text, "piped-zipped": gzip.compress(text)}
    said = {name: run(*words, source, name, stdin=stdin.get(name, b"")) for name, source in sources.items()}
    assert all(finished.returncode == 0 for finished in said.values())
    expected = follow_once(growing, batch=5, bias=None, C=0.5)
    for name in ("piped", "piped-zipped"):
        assert "no certificate: the input cannot be read again" in said[name].stdout
        assert "certified" not in said[name].stdout
        model = read_model(tmp_path / name)
        assert_close(np.append(model.w, model.bias_w), expected.averages[0][0])
    for name in ("file", "zipped"):
        assert "(certified)" in said[name].stdout
        model = read_model(tmp_path / name)
        assert_close(np.append(model.w, model.bias_w), expected.model[0])
    facts = [json.loads(run("llsvm", "info", name, "--json").stdout)["certificate"] for name in ("piped", "file")]
    assert facts[0]["dual"] == pytest.approx(facts[1]["dual"]) and facts[0]["dual"] == pytest.approx(expected.duals[0])
    assert facts[1]["primal"] == pytest.approx(expected.primal, rel=1e-6)


@pytest.mark.parametrize("options", [
    {"max_passes": 2}, {"weights": {"1": 2.0}}, {"balanced": True}, {"init": "random"}, {"batch": 0},
], ids=str)  # fmt: skip
def test_text_is_kept_where_more_must_be_known_than_one_pass_tells(growing, options, pegasos):
    run = pegasos(growing.path, **{"max_passes": 1, **options})
    assert run.where == ("on disk" if options.get("batch") == 0 else "in memory")


def tiny_case(seed):
    """A few rows, some of them empty, of two to four classes, and any options: (X, labels, options)."""
    rng = np.random.default_rng(seed)
    n_rows, n_features = rng.integers(4, 15), rng.integers(3, 7)
    X = rng.normal(size=(n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.5) * 2.0 ** rng.integers(-2, 3)
    X[rng.random(n_rows) < 0.2] = 0
    X[0, -1] = 1.5  # so that the last feature is known, and R is that of a row
    labels = ["1", "-1", "7", "3"][: rng.integers(2, 5)]
    labels = [*labels, *rng.choice(labels, n_rows - len(labels))]
    every = {
        "batch": [1, 1, 2, 3, 100], "hold_t": [False, True], "average": [True, True, False], "C": [0.01, 0.1, 1.0, 3.0],
        "bias": [-1.0, 0.0, 1.0, None], "weights": [None, {"-1": 2.5, "7": 0.3}],
    }  # fmt: skip
    return scipy.sparse.csr_matrix(X.astype(np.float32).astype(float)), labels, {
        name: choices[rng.integers(len(choices))] for name, choices in every.items()}


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 80, 20)], ids=str)
def test_a_few_rows_with_any_options_are_followed_by_the_plain_algorithm(visits, tmp_path, seeds, pegasos):
    for seed in seeds:
        X, labels, options = tiny_case(seed)
        path = write_text(tmp_path / f"{seed}.txt", X, labels)
        weights, average = options.pop("weights"), options["average"]
        if seed % 2:
            data = data_of_text(path, X, labels)
            assert_same_once(pegasos(path, max_passes=1, **options), follow_once(data, **options), data, average)
            continue
        data, options["weights"] = data_of_set(split(path, 1 + seed % 3), X.shape[1]), weights or {}
        visits.clear()
        run = pegasos(data.path, max_passes=4, **options)
        passes = [in_batches(order, options["batch"]) for order in orders_of(visits, data)]
        assert_same(run, follow(data, passes, **problem_of(data, **options)), average)


# --- certificates


def liblinear(X, y, C, bias=-1.0, weights=None):
    """LIBLINEAR's (w; primal value) for y = 1 and -1."""
    w = train_liblinear("hinge", X, y.astype(int), C, weights, bias, 1e-5)
    return w[:, 0], primals("hinge", X, y.astype(int), ["1", "-1"], w, C, weights, bias).item()


BOUNDS = {
    **WAYS, **{f"block, {name}": {"batch": 0, **options} for name, options in BLOCK_WAYS.items()},
    "random start": {"init": "random", "batch": 200},
    "random start, hold t": {"init": "random", "hold_t": True, "C": 0.1},
}  # fmt: skip


@EVERY_PLACE
@pytest.mark.parametrize("way", BOUNDS)
def test_the_dual_value_never_exceeds_the_optimum_and_the_primal_is_that_of_the_model_file(two, fit, way, place):
    data, options = two["set"], BOUNDS[way]
    problem = problem_of(data, **options)
    y = np.where(np.array(data.labels) == "1", 1.0, -1.0)
    _, optimum = liblinear(data.X, y, problem["C"], problem["bias"], problem["weights"])
    run = fit(data.path, solver="pegasos", memory=PLACES[place], max_passes=12, tolerance=1e-9, **options)
    duals = [stats.dual for stats in run.passes]
    assert duals == sorted(duals) and 0.1 * optimum < duals[-1] <= optimum * (1 + 1e-9)
    certificate = run.outcome.certificate
    found = objective(data.X, data.labels, run.model, problem["C"], problem["weights"])
    assert certificate.primal == pytest.approx(found, rel=1e-9) and certificate.dual == duals[-1]
    assert certificate.primal >= optimum * (1 - 1e-4)
    assert certificate.relative_gap == pytest.approx((certificate.primal - certificate.dual) / certificate.primal)
    primals = [stats.primal for stats in run.passes if stats.certified]
    on_disk = place == "disk" or options.get("batch") == 0
    assert primals == sorted(primals, reverse=True) and len(primals) == len(run.passes) - on_disk


@pytest.mark.parametrize("place, certify", [("disk", True), ("disk", False), ("memory", False)])
@pytest.mark.parametrize("options", [{}, {"batch": 30, "bias": 1.0, "hold_t": True}], ids=str)
def test_what_is_not_certified_yet_is_what_was_met_on_the_way(two, visits, place, certify, options, pegasos):
    data = two["set"]
    run = pegasos(data.path, memory=PLACES[place], max_passes=3, certify=certify, **options)
    passes = [in_batches(order, options.get("batch", 1)) for order in orders_of(visits, data)]
    expected = follow(data, passes, **problem_of(data, **options))
    assert [stats.certified for stats in run.passes] == [False, certify, certify]
    met = [stats.primal for stats in run.passes if not stats.certified]
    assert_close(met, expected.met[: len(met)])
    for stats in run.passes:
        assert stats.gap == pytest.approx((stats.primal - stats.dual) / stats.primal)
    if certify:
        assert_same(run, expected)
    else:
        assert run.outcome.certificate is None and run.outcome.uncertified == "--no-certify"
        w = run.model.matrix(180).T
        assert_close(w, expected.averages[-1][:, : w.shape[1]])


def test_every_class_has_a_certificate_of_its_own(many, pegasos):
    data = many["set"]
    run = pegasos(data.path, C=0.2, bias=1.0, max_passes=10)
    w = run.model.matrix(80).T
    for name, column, certificate in zip(run.model.labels, w, run.outcome.classes, strict=True):
        y = np.where(np.array(data.labels) == name, 1.0, -1.0)
        primal = 0.5 * column @ column + 0.2 * np.maximum(0, 1 - y * (data.X @ column[:-1] + column[-1])).sum()
        assert certificate.primal == pytest.approx(primal, rel=1e-9)
        assert 0.5 * certificate.primal < certificate.dual <= liblinear(data.X, y, 0.2, 1.0)[1]
    facts = run.model.info["certificate"]
    assert facts["primal"] == pytest.approx(sum(certificate.primal for certificate in run.outcome.classes))
    assert facts["classes"] == [{"primal": c.primal, "dual": c.dual} for c in run.outcome.classes]


# --- how near it comes, and when it stops


def news(n_rows):
    """As rcv1: words by Zipf's law, of which a row keeps those that lean to its class; rows of length 1."""
    rng, n_words = np.random.default_rng(1), 3000
    lean, y = rng.normal(size=n_words), np.where(rng.random(n_rows) < 0.47, 1, -1)
    words = (np.exp(rng.random((n_rows, 60)) * np.log(n_words)) - 1).astype(int)
    kept = rng.random(words.shape) < 1 / (1 + np.exp(-1.2 * y[:, None] * lean[words]))
    X = np.zeros((n_rows, n_words))
    np.add.at(X, (np.repeat(np.arange(n_rows), kept.sum(1)), words[kept]), 1 + np.log1p(words[kept]))
    return scipy.sparse.csr_matrix(np.round(4096 * X / np.linalg.norm(X, axis=1)[:, None]) / 4096), y


def census(n_rows):
    """As a9a: one of some answers to each of 14 questions; noisy labels, a quarter of them positive."""
    rng, sizes = np.random.default_rng(1), np.array([5, 8, 16, 5, 7, 14, 6, 5, 2, 5, 5, 5, 30, 10])
    answers = np.cumsum(sizes) - sizes + (rng.random((n_rows, 14)) ** 2 * sizes).astype(int)
    scores = rng.normal(size=sizes.sum())[answers].sum(1) + 1.5 * rng.normal(size=n_rows)
    X = scipy.sparse.csr_matrix((np.ones(answers.size), answers.ravel(), np.arange(n_rows + 1) * 14))
    return X, np.where(scores > np.quantile(scores, 0.76), 1, -1)


@pytest.fixture(scope="module", params=["rows", "news", "census"])
def sample(request, tmp_path_factory):
    """3,000 rows to train on, as text and as a set, and 1,000 to test on: (text, set, X, y, test X, test y)."""
    X, y = {"rows": lambda n: make_rows(n)[:2], "news": news, "census": census}[request.param](4000)
    text = write_text(tmp_path_factory.mktemp(request.param) / "sample.txt", X[:3000], y[:3000])
    return text, split(text, 30), X[:3000], y[:3000], X[3000:], y[3000:]


def accuracy(w, X, y):
    return (np.where(X @ w > 0, 1, -1) == y).mean()


def test_twenty_passes_come_near_the_optimum(sample, pegasos):
    text, blocks, X, y, test_X, test_y = sample
    exact, optimum = liblinear(X, y, 0.1)
    for path, memory in ((text, LARGE), (blocks, X.nnz * 4)):
        run = pegasos(path, C=0.1, max_passes=20, memory=memory)
        assert run.where == ("in memory" if path == text else "on disk") and len(run.passes) == 20
        assert optimum * (1 - 1e-6) <= run.outcome.certificate.primal <= 1.01 * optimum
        assert 0.9 * optimum <= run.outcome.certificate.dual <= optimum
        w = run.model.matrix(X.shape[1])[:, 0]
        assert accuracy(w, test_X, test_y) >= accuracy(exact, test_X, test_y) - 0.005


def test_the_average_is_at_least_as_good_as_the_last_w(sample, pegasos):
    average, last = (pegasos(sample[0], max_passes=20, average=way).outcome.certificate for way in (True, False))
    assert average.primal <= last.primal and average.dual >= last.dual


def test_one_pass_over_text_is_a_good_model_too(sample, pegasos):
    text, _, X, y, test_X, test_y = sample
    run = pegasos(text, C=0.1, max_passes=1)
    assert run.where == "read once"
    exact, optimum = liblinear(X, y, 0.1)
    assert run.outcome.certificate.primal <= 1.2 * optimum
    w = run.model.matrix(X.shape[1])[:, 0]
    assert accuracy(w, test_X, test_y) > accuracy(exact, test_X, test_y) - 0.03


def improvements(counted):
    """After every pass the relative improvement of the best primal value by the last five, or by all since the average
    began anew, with pass 2, 4, 8, ..., if these are more."""
    best, found = np.minimum.accumulate([stats.primal for stats in counted]), []
    for place, stats in enumerate(counted):
        before = place - max(5, 1 + stats.number - 2 ** int(np.log2(stats.number)))
        found.append((best[before] - best[place]) / best[place] if before >= 0 else np.inf)
    return found


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
@pytest.mark.parametrize("place, certify", [("memory", True), ("disk", True), ("memory", False)])
def test_it_stops_when_five_passes_improve_the_primal_by_no_more_than_the_tolerance(
    sample, pegasos, place, certify, tolerance
):
    path, memory = (sample[0], LARGE) if place == "memory" else (sample[1], sample[2].nnz * 4)
    run = pegasos(path, C=0.1, tolerance=tolerance, memory=memory, certify=certify)
    assert run.outcome.reason == "converged" and len(run.passes) < 70
    counted = [stats for stats in run.passes if stats.certified == certify]
    assert len(counted) == len(run.passes) - (place == "disk")
    assert [stats.change for stats in counted] == pytest.approx(improvements(counted))
    finished = [stats.change <= tolerance or stats.certified and stats.gap <= tolerance for stats in run.passes]
    assert finished == [stats.finished for stats in run.passes] == [False] * (len(run.passes) - 1) + [True]


@pytest.mark.parametrize("average", [True, False])
def test_a_step_a_block_gets_nowhere_as_fast_as_a_step_a_row(texts, average, pegasos):
    """The order of the block minimisation paper's Figure 2: BLOCK-P-B behind BLOCK-P-I, pass by pass. (Without averages
    it holds for 99 of 100 seeds.)"""
    options = {"C": 0.1, "max_passes": 8, "average": average, "seed": 1}
    by_block, by_row = (
        [stats.primal for stats in pegasos(texts.blocks, batch=batch, **options).passes] for batch in (0, 1)
    )
    assert all(block > row for block, row in zip(by_block[1:], by_row[1:], strict=True))


def test_it_stops_by_its_gap_too(sample, pegasos):
    run = pegasos(sample[0], C=1e-4, tolerance=0.05)
    assert run.outcome.reason == "converged" and run.passes[-1].change > 0.05 >= run.outcome.certificate.relative_gap


@pytest.mark.parametrize("batch", [1, 0])
@pytest.mark.parametrize("certify", [True, False])
@pytest.mark.parametrize("ended", ["passes", "converged", "time"])
def test_every_byte_is_read_once_a_pass(two, ended, certify, batch, pegasos):
    """And once more for the certificate of the last w, where the passes were counted beforehand."""
    path = two["set"].path
    n_bytes = block_bytes(path)
    options = {"passes": {"max_passes": 3}, "converged": {"tolerance": 0.5}, "time": {"time_limit": 1e-9}}[ended]
    run = pegasos(path, memory=PLACES["disk"], certify=certify, batch=batch, **options)
    assert run.outcome.reason == ended
    if ended == "time":  # in the first pass, behind its first group of rows
        assert not run.passes
        assert 0 < run.outcome.stats.bytes_read - certify * n_bytes < n_bytes
        return
    assert [stats.bytes_read for stats in run.passes] == [n_bytes * stats.number for stats in run.passes]
    assert [stats.visits for stats in run.passes] == [400] * len(run.passes)
    once_more = certify and (ended == "passes" or len(run.passes) == 1)
    assert run.outcome.stats.bytes_read == n_bytes * (len(run.passes) + once_more)


def test_a_set_in_memory_is_read_once(two, pegasos):
    path = two["set"].path
    assert pegasos(path, max_passes=4).outcome.stats.bytes_read == block_bytes(path)


# --- memory


@pytest.fixture(scope="module")
def large(tmp_path_factory, run_in):
    """A thousand rows 180 times over, as text and as a set, which take 55 MB in memory: (folder, X, y)."""
    rows, folder = make_rows(1000), tmp_path_factory.mktemp("large")
    text = Path(write_text(folder / "once.txt", rows.X, rows.y)).read_text()
    with open(folder / "large.txt", "w") as file:
        for _ in range(180):
            file.write(text)
    assert run_in(folder, "llsvm-split", "-q", "-m", 20, "large.txt").returncode == 0
    return folder, rows.X, rows.y


@pytest.mark.slow
@pytest.mark.parametrize("words, where", [
    (["--max-passes", 3, "large.txt.blocks"], "on disk"),
    (["--max-passes", 2, "--batch", 100, "large.txt"], "on disk"),
    (["--max-passes", 9, "--batch", "block", "large.txt.blocks"], "on disk"),
    (["--max-passes", 1, "-B", 1, "large.txt"], "read once"),
], ids=["set", "text", "blocks", "one pass"])  # fmt: skip
def test_it_stays_within_its_memory_and_comes_near_what_it_finds_with_more(large, run_in, words, where):
    folder, X, y = large
    command = ["llsvm-train", "-s", "pegasos", "-c", 1e-3, "--memory", "10M", "--log", "log", *words, "model"]
    finished = measure_peak(run_in, folder, *command)
    assert finished.returncode == 0, finished.stderr
    start, *_, end = map(json.loads, (folder / "log").read_text().splitlines())
    assert (start["data"], end["visits"]) == (where, 180_000)
    assert finished.peak < promised(10 << 20)
    model = read_model(folder / "model")
    assert end["primal"] == pytest.approx(objective(X, y, model, C=0.18), rel=1e-6)
    assert end["primal"] < 1.1 * liblinear(X, y, 0.18, 1.0 if "-B" in words else -1.0)[1]
    assert list((folder / "tmp").iterdir()) == []


# --- the command


@pytest.mark.parametrize("options, says", [
    ({"solver": "dual", "batch": 2}, "--batch: -s dual makes no steps"),
    ({"solver": "shrink", "batch": 0}, "--batch"),
    ({"solver": "stream", "hold_t": True}, "--hold-t"),
    ({"solver": "dual", "average": False}, "--no-average"),
    ({"solver": "block", "init": "random"}, "--init"),
    ({"exact": True}, "--exact"), ({"inner": 3}, "--inner"), ({"lookahead": 3}, "--lookahead"),
], ids=str)  # fmt: skip
def test_options_that_do_not_fit_are_refused_with_those_that_do(two, options, says, pegasos):
    with pytest.raises(UsageError, match=says) as refusal:
        pegasos(two["text"].path, **options)
    asked = [name for name in options if name != "solver"][0]
    assert tuple(re.findall(r"-s (\S+)", refusal.value.hint)) == OPTIONS[asked].solvers


def test_help_tells_the_options(run):
    text = " ".join(run("llsvm-train", "--help").stdout.split())
    for words in ("pegasos (", "--batch N|block", "--init [zero|random]", "--hold-t", "--average / --no-average",
                  "--certify / --no-certify"):  # fmt: skip
        assert words in text


def test_what_was_asked_for_is_in_the_log_and_the_first_line(run, two, tmp_path):
    words = ["--batch", "block", "--hold-t", "--no-average", "--init", "random", "--max-passes", "2", "--seed", "3"]
    finished = run("llsvm-train", "-s", "pegasos", *words, "--log", "log", two["set"].path, "model")
    start, *passes, end = map(json.loads, (tmp_path / "log").read_text().splitlines())
    asked = {"solver": "pegasos", "batch": "block", "hold_t": True, "average": False, "init": "random", "seed": 3}
    assert {name: start[name] for name in asked} == asked and len(passes) == 2
    assert all(f"{name} {value}" in finished.stderr.splitlines()[0] for name, value in asked.items())
    assert end["primal"] == pytest.approx(objective(two["set"].X, two["set"].labels, read_model(tmp_path / "model")))


@pytest.mark.parametrize("words, says, code", [
    (["--max-passes", "3"], "stopped by --max-passes at a relative duality gap of", 0),
    (["--max-passes", "7", "--strict"], r"stopped by --max-passes at a relative change of the primal of \S+, above", 3),
    (["--time-limit", "1e-9", "--strict"], "stopped by --time-limit", 3),
    (["-e", "0.5", "--strict"], "far from the optimum, as far as is proved: the relative duality gap is", 0),
])  # fmt: skip
def test_what_ended_it_is_told(run, two, tmp_path, words, says, code):
    finished = run("llsvm-train", "-q", "-e", "1e-9", *words, "-s", "pegasos", two["text"].path, "model")
    assert (finished.returncode, finished.stdout) == (code, "")
    assert re.fullmatch(f"warning: {says}.*\n" if says else "", finished.stderr)
    assert (tmp_path / "model").exists()


def test_one_pass_that_was_asked_for_fails_under_strict_alone_and_with_a_word(run, two):
    words = ["llsvm-train", "-q", "--max-passes", "1", "-s", "pegasos", two["text"].path, "model"]
    finished = run(*words, "--strict")
    assert (finished.returncode, finished.stdout) == (3, "")
    assert re.fullmatch("warning: one pass ended at a relative duality gap of .*\n", finished.stderr)
    finished = run(*words)
    assert (finished.returncode, finished.stdout) == (0, "")
    assert re.fullmatch("warning: far from the optimum, as far as is proved: .*\n", finished.stderr)


def test_liblinears_own_letters_mean_the_same(run, two, tmp_path):
    words = ["-c", "0.3", "-B", "1", "-w1", "3", "-w-1", "0.5", "--max-passes", "40"]
    finished = run("llsvm-train", "-s", "pegasos", *words, two["text"].path, "model")
    data, weights = two["text"], {"1": 3.0, "-1": 0.5}
    found = objective(data.X, data.labels, read_model(tmp_path / "model"), 0.3, weights)
    y = np.where(np.array(data.labels) == "1", 1.0, -1.0)
    assert float(re.search(r"primal objective = (\S+)", finished.stdout)[1]) == pytest.approx(found, rel=1e-8)
    assert found < 1.03 * liblinear(data.X, y, 0.3, 1.0, weights)[1]
