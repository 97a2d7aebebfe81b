"""Crammer-Singer and Weston-Watkins: one problem of all classes, by the sequential dual method."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from llsvm import _multiclass
from llsvm.active import ActiveRows
from llsvm.core import NEVER, OUT_OF_TIME, Certificate, DataError, PassStats, label_order, look_at_end, quoted
from llsvm.evaluate import dot
from llsvm.memory import Footprint
from llsvm.pool import Pool
from llsvm.problem import Best, bias_of
from llsvm.reader import shuffle
from llsvm.solvers.lists import PackedAlphas, SparseAlphas

SHARES, SMALLEST_SHARE = 16, 1 << 18
FIRST_VIOLATION, COOLING = 1.0, 0.1
# Loops over the active rows end after this many full ones' worth of work.
MOST_EFFORT = 2.0
VISITED_TOGETHER = 1 << 20  # rows by classes, after which the time is looked at
WORTH_CERTIFYING = 20
# From disk: rounds over the active rows after a pass, and by how many loops in all, or full ones' worth of work, they
# grow from pass to pass, for so many passes (docs/lab/multiclass.md).
ROUNDS, LOOPS, FULL_LOOPS, GROWTH = 4, 2.5, 0.25, 48
# What a visit holds of a row and of each of its nodes; loops over the active rows, of a node.
ROW_BYTES, NODE_BYTES, ACTIVE_NODE_BYTES = 64, 28, 64


@dataclass(frozen=True)
class DirectProblem:
    """One problem of all classes; columns of W are classes in the order of their codes. costs: C of each class;
    loss_at_zero = P(0)."""

    weston: bool
    costs: np.ndarray
    bias: float
    loss_at_zero: float

    @classmethod
    def of(cls, weston: bool, stream, config) -> DirectProblem:
        labels, counts = stream.labels, stream.description.label_counts
        if len(labels) < 2:
            raise DataError(f"only one class in the data: every label is {quoted(labels[0])}",
                            "a classifier needs two")
        weights = np.array([config.weights.get(label, 1.0) for label in labels])
        if config.balanced:
            weights = weights * counts.sum() / (len(labels) * counts)
        costs = config.C * weights
        at_zero = math.fsum(costs * counts) * (len(labels) - 1 if weston else 1)
        return cls(weston, costs, bias_of(config, stream.largest_norm), at_zero)

    @property
    def n_classes(self) -> int:
        return len(self.costs)

    def loss(self, rows, W, kind, run, deadline) -> float:
        """Of these rows at W. run: map, or that of a pool."""
        n_shares = min(SHARES, 1 + int(rows["length"].sum()) * self.n_classes // SMALLEST_SHARE)
        shares = [share for share in np.array_split(rows, n_shares) if len(share)]

        def loss(share):
            scores = np.empty(self.n_classes)
            if deadline.passed:
                return 0.0
            return _multiclass.losses(share, W, self.bias, self.costs, self.weston, scores, kind)

        total = sum((run if len(shares) > 1 else map)(loss, shares))
        deadline.check()
        return total


def half_square(W: np.ndarray) -> float:
    return 0.5 * dot(W.reshape(-1), W.reshape(-1))


class State:
    """All that training changes: W; sums, what loops have found (State in _multiclass.pyx); the counter of the shuffles
    so far, and the passes; the violation to which active rows are looped over; what the last pass found; the best
    certified W; and the alphas, by slot beside the order of visits, or by chunk.
    """

    def __init__(self, problem: DirectProblem, n_features: int, alphas, n_rows: int = 0):
        self.W, self.sums = np.zeros((n_features + 1, problem.n_classes)), np.zeros(1, _multiclass.STATE)
        self.sums["bias"], self.sums["weston"] = problem.bias, problem.weston
        self.alphas, self.order = alphas, np.arange(n_rows, dtype=np.int32)
        self.best, self.counter, self.n_passes = Best(), 0, 0
        self.violation, self.found, self.estimate = FIRST_VIOLATION, 0.0, np.inf

    @property
    def dual(self) -> float:
        return self["linear"] - half_square(self.W)

    def cool(self) -> None:
        """After a pass: to less than what it found."""
        while self.violation >= self.found > 0:
            self.violation *= COOLING

    def __getitem__(self, name: str) -> float:
        """Of the sums."""
        return float(self.sums[name][0])


class Loops:
    """Visits of rows, which change a State."""

    def __init__(self, problem: DirectProblem, state: State, seed: int, kind, deadline):
        self._problem, self._state, self._seed, self._kind, self._deadline = problem, state, seed, kind, deadline
        n_classes = problem.n_classes
        self._work = np.zeros((3, n_classes)), np.zeros((2, 2 * n_classes + 1), np.int32)
        self._most = max(1, VISITED_TOGETHER // n_classes)

    def full(self, rows, order, alphas: SparseAlphas) -> float:
        """One visit of rows[order], all classes of each; returns the largest violation."""
        self._loop(rows, order, len(order), alphas, full=True)
        return self._state["violation"]

    def choose(self, rows, alphas: SparseAlphas, order) -> int:
        """The slots of the active rows, into order; returns how many there are."""
        problem = self._problem
        return _multiclass.chosen_rows(rows, alphas.head, alphas.nodes, problem.costs, problem.weston, order)

    def active(self, rows, order, alphas: SparseAlphas, violation: float, most_effort: float) -> None:
        """Loops over the active rows until none violates more, or for so many values computed."""
        n_active, before = self.choose(rows, alphas, order), self._state["effort"]
        while n_active and self._state["effort"] - before < most_effort:
            n_active = self._loop(rows, order, n_active, alphas, full=False)
            self._deadline.check()
            if self._state["violation"] <= violation:
                break

    def _loop(self, rows, order, n_active: int, alphas: SparseAlphas, full: bool) -> int:
        """One visit of rows[order[:n_active]] in random order; returns how many of them stay active."""
        state, costs = self._state, self._problem.costs
        state.counter += 1
        shuffle(order, n_active, self._seed, state.counter)
        state.sums["violation"], state.sums["place"], state.sums["active"] = 0.0, 0, n_active
        while not _multiclass.loop(rows, order, state.W, alphas.head, alphas.nodes, state.sums, costs, full, self._most,
                                   *self._work, self._kind):  # fmt: skip
            self._deadline.check()
            if alphas.n_free < 2 * len(costs):
                alphas.grow()
        return int(state.sums["active"][0])


class Direct:
    """What both formulations share, in memory and from disk; `weston` is which."""

    weston, reads_once, vectors, deadline = False, False, 3, NEVER

    def __init__(self, stream, config, squared_loss: bool = False, states: list[State] | None = None):
        self._stream, self._config, self._kind = stream, config, np.zeros(1, stream.dtype)
        self._pool, self._problem = Pool(config.threads), DirectProblem.of(self.weston, stream, config)
        config.budget.take_weights(stream.n_features, Footprint(self._problem.n_classes, self.vectors))
        [self.state] = states or [self._new_state()]
        self.notes, self.best_w, self.certificates, self.uncertified = [], None, [], ""
        self.compute = 0.0

    bytes_read = property(lambda self: self._stream.bytes_read)
    wait = property(lambda self: self._stream.wait)
    bias = property(lambda self: self._problem.bias)
    dual = property(lambda self: self.state.dual)
    certified = property(lambda self: self.state.best.certificate)

    @property
    def states(self) -> list[State]:
        """The one there is, to go on from with the same rows: valid between passes, until this solver is closed."""
        return [self.state]

    def passes(self):
        began = time.perf_counter()
        loops = Loops(self._problem, self.state, self._config.seed, self._kind, self.deadline)
        for active, met in self._train(loops):
            self.compute = time.perf_counter() - began - self.wait
            self.state.best.raise_dual(met.dual)
            known = self.certified or met
            yield PassStats(
                self.state.n_passes, self._stream.description.n_rows, active, self.certified is not None, known.primal,
                known.dual, known.relative_gap, self.bytes_read, self.wait, self.compute, finished=self._is_done(),
            )

    def show_progress(self, bar) -> None:
        self._stream.progress = bar

    def weights(self) -> np.ndarray:
        """As they are now, (features + 1, columns), the bias last."""
        return self._in_order(self.state.W)

    def _in_order(self, W) -> np.ndarray:
        labels = self._stream.labels
        return W if label_order(labels) == labels else np.ascontiguousarray(W[:, ::-1])

    def _is_done(self) -> bool:
        return self.state.best.meets(self._config.tolerance)

    def _loss(self, rows, W) -> float:
        return self._problem.loss(rows, W, self._kind, self._pool.map, self.deadline)

    def _certify(self, W, loss: float) -> None:
        self.state.best.offer(W, half_square(W) + loss, self.dual, self._problem.loss_at_zero)

    def certify(self) -> None:
        """The gap of W as it is now: one pass that only reads."""
        loss = sum(self._loss(arena.rows, self.state.W) for arena in self._stream.again())
        self._certify(self.state.W, loss)

    def finish(self, reason: str, stopped=lambda: False) -> str:
        if self.certified is None or reason == "passes":
            reason = look_at_end(reason, self.certify, self._is_done)
        self.uncertified = "" if self.certified else OUT_OF_TIME
        self.best_w = self._in_order(self.state.best.w if self.certified else self.state.W)
        return reason

    def close(self) -> None:
        self._pool.shutdown()
        self._stream.release()
        self.state = None


class InMemory(Direct):
    """All rows resident: full loops in turn with loops over the active rows, to a violation that cools down."""

    @staticmethod
    def footprint(config, n_labels: int) -> Footprint:
        """Beside the rows: weights, and of every row a place in two orders, a head and, at most, a node a class."""
        return Footprint(n_labels, Direct.vectors, 0, 12 + n_labels * SparseAlphas.NODE_BYTES)

    def _new_state(self) -> State:
        n_rows, n_classes = self._stream.description.n_rows, self._problem.n_classes
        return State(self._problem, self._stream.n_features, SparseAlphas(n_rows, n_classes), n_rows)

    def _train(self, loops: Loops):
        """Yields the number of active rows, and the objectives with the losses met, after every pass."""
        [arena], state = self._stream.again(), self.state
        rows, active_order = arena.rows, np.empty(len(state.order), np.int32)
        most_effort = MOST_EFFORT * len(state.order) * self._problem.n_classes
        while True:
            if state.n_passes:
                state.cool()
                loops.active(rows, active_order, state.alphas, state.violation, most_effort)
            state.n_passes += 1
            state.sums["losses"] = 0.0
            state.found = loops.full(rows, state.order, state.alphas)
            met = Certificate(half_square(state.W) + state["losses"], state.dual)
            if state.found <= state.violation or met.estimate <= WORTH_CERTIFYING * self._config.tolerance:
                self.certify()
            yield int((state.alphas.head > 0).sum()), met


class Streaming(Direct):
    """Rows from disk, in random groups of chunks: a full loop over each group, after which its active rows are copied;
    after the pass these are looped over on their own."""

    def _new_state(self) -> State:
        room = self._room()
        most_rows = 1 + room // 4 // (ROW_BYTES + self._problem.n_classes * NODE_BYTES)
        packed = PackedAlphas(room // 4, self._stream.chunk_rows, most_rows)
        return State(self._problem, self._stream.n_features, packed)

    def _room(self) -> int:
        """Bytes beside weights and the rows that come by."""
        stream, n_classes = self._stream, self._problem.n_classes
        taken = Footprint(n_classes, self.vectors).weights(stream.n_features) + stream.needed_bytes
        what = f"the weights of {stream.n_features} features for {n_classes} classes and the rows to work on"
        return self._config.budget.take_most(taken, what).left

    def _train(self, loops: Loops):
        """As in memory."""
        state = self.state
        while True:
            state.n_passes += 1
            looking = state.estimate <= WORTH_CERTIFYING * self._config.tolerance
            snapshot = state.W.copy() if looking else None
            active = ActiveRows(self._stream.dtype, self._room() // 2, kind=np.int32)
            try:
                loss, n_alphas = self._full_pass(loops, active, snapshot)
                state.cool()
                primal, n_active = half_square(state.W) + state["losses"], active.n_rows
                self._loop_active(loops, active, n_alphas)
            finally:
                active.close()
            met = Certificate(primal, state.dual)
            state.estimate = met.estimate
            if looking:
                self._certify(snapshot, loss)
            del snapshot
            yield n_active, met

    def _full_pass(self, loops: Loops, active: ActiveRows, snapshot) -> tuple[float, int]:
        """Returns the loss of the snapshot, if there is one, and the number of nonzero alphas of active rows."""
        state, loss, n_alphas = self.state, 0.0, 0
        state.sums["losses"], state.found = 0.0, 0.0
        for arena, _ in self._stream.arenas(state.n_passes):
            if snapshot is not None:
                loss += self._loss(arena.rows, snapshot)
            for rows in state.alphas.parts(arena.rows):
                n_alphas += self._visit(loops, rows, active)
                self.deadline.check()
        return loss, n_alphas

    def _visit(self, loops: Loops, rows, active: ActiveRows) -> int:
        """Visits these rows and copies the active ones; returns how many nonzero alphas those have."""
        state, order = self.state, np.arange(len(rows), dtype=np.int32)
        alphas = SparseAlphas(len(rows), self._problem.n_classes)
        state.alphas.unpack(rows, alphas)
        state.found = max(state.found, loops.full(rows, order, alphas))
        counts = state.alphas.pack(rows, alphas)
        chosen = order[: loops.choose(rows, alphas, order)]
        active.append(rows[chosen], counts[chosen][:, None])
        return int(counts[chosen].sum())

    def _loop_active(self, loops: Loops, active: ActiveRows, n_alphas: int) -> None:
        state, full_loop = self.state, self._stream.description.n_rows * self._problem.n_classes
        by_alphas = min(GROWTH, state.n_passes) / ROUNDS * min(LOOPS, FULL_LOOPS * full_loop / max(1, n_alphas))
        active.memory = self._room() * 5 // 8 + self._stream.needed_bytes
        for rounds_left in range(ROUNDS - 1, -1, -1):
            number = -1  # enumerate would hold on to the rows before
            for rows, counts in active.parts(self._room() // 8 // ACTIVE_NODE_BYTES):
                number += 1
                alphas = SparseAlphas(len(rows), self._problem.n_classes)
                state.alphas.unpack(rows, alphas, None if rounds_left == ROUNDS - 1 else number)
                order = np.empty(len(rows), np.int32)
                loops.active(rows, order, alphas, state.violation * COOLING, by_alphas * float(counts.sum()))
                self.deadline.check()
                state.alphas.pack(rows, alphas, number if rounds_left else None)
                if not rounds_left:
                    state.alphas.end_rounds(number)
                del rows, counts, alphas, order

    def close(self) -> None:
        self.state.alphas.close()
        super().close()


CrammerSinger, CrammerSingerStreaming = InMemory, Streaming


class WestonWatkins(InMemory):
    weston = True


class WestonWatkinsStreaming(Streaming):
    weston = True
