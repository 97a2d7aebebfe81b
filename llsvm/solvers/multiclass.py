"""Crammer-Singer and Weston-Watkins: one problem of all classes, by the sequential dual method."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from llsvm import _multiclass
from llsvm.active import ActiveRows
from llsvm.alphas import Packed
from llsvm.core import NEVER, OUT_OF_TIME, Certificate, DataError, PassStats, label_order, look_at_end, quoted
from llsvm.evaluate import dot
from llsvm.memory import check_vectors, room_beside, vector_bytes
from llsvm.pool import Pool
from llsvm.problem import Best
from llsvm.reader import shuffle

STATE = np.dtype([*((name, np.float64) for name in ("linear", "losses", "violation", "effort")),
                  ("free", np.int64), ("n_free", np.int64)])  # fmt: skip
NODE = np.dtype([("value", np.float64), ("label", np.int32), ("next", np.int32)])
assert STATE.itemsize == _multiclass.STATE_BYTES and NODE.itemsize == _multiclass.NODE_BYTES
SHARES, SMALLEST_SHARE = 16, 1 << 18
FIRST_VIOLATION, COOLING = 1.0, 0.1
# Loops over the active rows end after this many full ones' worth of work.
MOST_EFFORT = 2.0
VISITED_TOGETHER = 1 << 20  # rows by classes, after which the time is looked at
WORTH_CERTIFYING = 20
ROOM_TO_GROW = 1.5
# From disk: rounds over the active rows after a pass, and by how many loops in all, or full ones' worth of work, they
# grow from pass to pass, for so many passes (docs/lab/multiclass.md).
ROUNDS, LOOPS, FULL_LOOPS, GROWTH = 4, 2.5, 0.25, 48
# What a visit holds of a row and of each of its nodes; loops over the active rows, of a node.
ROW_BYTES, NODE_BYTES, ACTIVE_NODE_BYTES = 64, 28, 64


class Lists(NamedTuple):
    """The nonzero alphas of rows one behind the other: how many each row has, their classes and values."""

    counts: np.ndarray
    labels: np.ndarray
    values: np.ndarray

    @classmethod
    def from_bytes(cls, data: bytes, n_rows: int) -> Lists:
        if not data:
            return cls(np.zeros(n_rows, np.int32), np.empty(0, np.int32), np.empty(0))
        n = (len(data) - 4 * n_rows) // 12
        numbers = np.frombuffer(data, np.int32, offset=8 * n)
        return cls(numbers[:n_rows], numbers[n_rows:], np.frombuffer(data, np.float64, n))

    def to_bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in (self.values, self.counts, self.labels)) if len(self.values) else b""

    def part(self, rows: np.ndarray) -> Lists:
        """Of these rows, which rise."""
        if len(rows) == len(self.counts):
            return self
        wanted = self._entries(rows)
        return Lists(self.counts[rows], self.labels[wanted], self.values[wanted])

    def replaced(self, rows: np.ndarray, part: Lists) -> Lists:
        """With other alphas for these rows."""
        if len(rows) == len(self.counts):
            return part
        counts, n = self.counts.copy(), len(self.values) + len(part.values) - int(self.counts[rows].sum())
        counts[rows] = part.counts
        lists = Lists(counts, np.empty(n, np.int32), np.empty(n))
        before, after = self._entries(rows), lists._entries(rows)
        for new, replacing, old in zip(lists[1:], part[1:], self[1:], strict=True):
            new[after], new[~after] = replacing, old[~before]
        return lists

    def _entries(self, rows) -> np.ndarray:
        is_wanted = np.zeros(len(self.counts), bool)
        is_wanted[rows] = True
        return np.repeat(is_wanted, self.counts)


class SparseAlphas:
    """The nonzero dual variables of rows, a list each."""

    def __init__(self, n_rows: int, n_classes: int, state: np.ndarray):
        self.head, self.nodes, self._state = np.full(n_rows, -1, np.int32), np.empty(0, NODE), state
        self._n_classes = n_classes
        state["free"], state["n_free"] = -1, 0
        self.grow()

    def grow(self) -> None:
        """In place: no copy stands beside it."""
        before = len(self.nodes)
        after = min(before + self._more(), self.most_nodes)
        self.nodes.resize(after, refcheck=False)
        self.nodes["next"][before:after] = np.arange(before + 1, after + 1)
        self.nodes["next"][-1] = self._state["free"][0]
        self._state["free"] = before
        self._state["n_free"] += after - before

    @property
    def is_full(self) -> bool:
        return bool(self._state["n_free"][0] < 2 * self._n_classes)

    @property
    def most_nodes(self) -> int:
        """A visit needs two free ones a class."""
        return (len(self.head) + 3) * self._n_classes

    def unpack(self, start: int, lists: Lists) -> None:
        """Gives the rows from this one on, which have none yet, their alphas."""
        while self._state["n_free"][0] < len(lists.values):
            self.grow()
        _multiclass.unpack(*lists, self.head[start : start + len(lists.counts)], self.nodes, self._state)

    def pack(self, start: int, end: int) -> Lists:
        """Those of rows start to end."""
        head, counts = self.head[start:end], np.empty(end - start, np.int32)
        n = _multiclass.pack(head, self.nodes, counts, np.empty(0, np.int32), np.empty(0))
        lists = Lists(counts, np.empty(n, np.int32), np.empty(n))
        if n:
            _multiclass.pack(head, self.nodes, *lists)
        return lists

    def _more(self) -> int:
        return max(4 * self._n_classes, len(self.head), int((ROOM_TO_GROW - 1) * len(self.nodes)))


class Direct:
    """What both formulations share; `weston` is which. Columns of W are classes in the order of their codes."""

    weston, reads_once, vectors, deadline = False, False, 3, NEVER

    def __init__(self, stream, config, squared_loss: bool = False):
        self._stream, self._config = stream, config
        self._pool = Pool(config.threads)
        self._kind, self._state = np.zeros(1, stream.dtype), np.zeros(1, STATE)
        self._n_classes, self.notes = len(stream.labels), []
        if self._n_classes < 2:
            raise DataError(f"only one class in the data: every label is {quoted(stream.labels[0])}",
                            "a classifier needs two")
        check_vectors(stream.n_features, self._n_classes, config.memory, self.vectors)
        self.W = np.zeros((stream.n_features + 1, self._n_classes))
        self._numbers, self._classes = np.zeros((3, self._n_classes)), np.zeros((2, 2 * self._n_classes + 1), np.int32)
        self._costs = self._class_costs()
        self._best, self.best_w, self.certificates, self.uncertified = Best(), None, [], ""
        self.compute, self._counter, self._number = 0.0, 0, 0
        self._visits_together = max(1, VISITED_TOGETHER // self._n_classes)

    bytes_read = property(lambda self: self._stream.bytes_read)
    wait = property(lambda self: self._stream.wait)

    @property
    def bias(self) -> float:
        return self._stream.largest_norm if self._config.bias is None else max(self._config.bias, 0.0)

    @property
    def dual(self) -> float:
        return float(self._state["linear"][0]) - self._square(self.W)

    @staticmethod
    def _square(W) -> float:
        return 0.5 * dot(W.reshape(-1), W.reshape(-1))

    def _class_costs(self) -> np.ndarray:
        config, labels = self._config, self._stream.labels
        weights = np.array([config.weights.get(label, 1.0) for label in labels])
        if config.balanced:
            counts = self._stream.description.label_counts
            weights = weights * counts.sum() / (len(labels) * counts)
        return config.C * weights

    @property
    def _loss_at_zero(self) -> float:
        counts = self._stream.description.label_counts
        return math.fsum(self._costs * counts) * (self._n_classes - 1 if self.weston else 1)

    def show_progress(self, bar) -> None:
        self._stream.progress = bar

    def weights(self) -> np.ndarray:
        """As they are now, (features + 1, columns), the bias last."""
        return self._in_order(self.W)

    def _in_order(self, W) -> np.ndarray:
        labels = self._stream.labels
        return W if label_order(labels) == labels else np.ascontiguousarray(W[:, ::-1])

    # --- steps

    def _loop(self, rows, order, n_active: int, alphas: SparseAlphas, full: bool) -> int:
        """One visit of rows[order[:n_active]] in random order; returns how many of them stay active."""
        self._counter += 1
        shuffle(order, n_active, self._config.seed, self._counter)
        self._state["violation"], place = 0.0, 0
        while True:
            place, n_active = _multiclass.loop(
                rows, order, place, n_active, self.W, alphas.head, alphas.nodes, self._state, self.bias, self._costs,
                self.weston, full, self._visits_together, self._numbers, self._classes, self._kind,
            )
            if place == n_active:
                return n_active
            self.deadline.check()
            if alphas.is_full:
                alphas.grow()

    def _loop_active(self, rows, order, alphas: SparseAlphas, violation: float, most_effort: float) -> None:
        """Loops over the active rows until none violates more, or for so many values computed."""
        n_active = _multiclass.chosen_rows(rows, alphas.head, alphas.nodes, self._costs, self.weston, order)
        before = float(self._state["effort"][0])
        while n_active and self._state["effort"][0] - before < most_effort:
            n_active = self._loop(rows, order, n_active, alphas, full=False)
            self.deadline.check()
            if self._state["violation"][0] <= violation:
                break

    # --- the certificate

    def _loss(self, rows, W) -> float:
        n_shares = min(SHARES, 1 + int(rows["length"].sum()) * self._n_classes // SMALLEST_SHARE)
        shares = [share for share in np.array_split(rows, n_shares) if len(share)]

        def loss(share):
            scores = np.empty(self._n_classes)
            if self.deadline.passed:
                return 0.0
            return _multiclass.losses(share, W, self.bias, self._costs, self.weston, scores, self._kind)

        total = sum((self._pool.map if len(shares) > 1 else map)(loss, shares))
        self.deadline.check()
        return total

    certified = property(lambda self: self._best.certificate)

    def _certify(self, W, loss: float) -> None:
        self._best.offer(W, self._square(W) + loss, self.dual, self._loss_at_zero)

    def certify(self) -> None:
        """The gap of W as it is now: one pass that only reads."""
        loss = sum(self._loss(arena.rows, self.W) for arena in self._stream.again())
        self._certify(self.W, loss)

    def _stats(self, active: int, met: Certificate) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        self._best.raise_dual(met.dual)
        known = self.certified or met
        return PassStats(
            self._number, self._stream.description.n_rows, active, self.certified is not None, known.primal, known.dual,
            known.relative_gap, self.bytes_read, self.wait, self.compute,
            finished=self._best.meets(self._config.tolerance),
        )

    def finish(self, reason: str, stopped=lambda: False) -> str:
        if self.certified is None or reason == "passes":
            reason = look_at_end(reason, self.certify, lambda: self._best.meets(self._config.tolerance))
        self.uncertified = "" if self.certified else OUT_OF_TIME
        self.best_w = self._in_order(self._best.w if self.certified else self.W)
        return reason

    def close(self) -> None:
        self._pool.shutdown()
        self._stream.release()
        self.W = None


class InMemory(Direct):
    """All rows resident: full loops in turn with loops over the active rows, to a violation that cools down."""

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int, int]:
        """Beside the rows: weights, and of every row a place in two orders, a head and, at most, a node a class."""
        return n_labels, Direct.vectors, 0, 12 + n_labels * NODE.itemsize

    def passes(self):
        self._started = time.perf_counter()
        n_rows, violation = self._stream.description.n_rows, FIRST_VIOLATION
        order, active_order = np.arange(n_rows, dtype=np.int32), np.empty(n_rows, np.int32)
        alphas = SparseAlphas(n_rows, self._n_classes, self._state)
        [arena] = self._stream.again()
        while True:
            self._number += 1
            self._state["losses"] = 0.0
            self._loop(arena.rows, order, n_rows, alphas, full=True)
            found = float(self._state["violation"][0])
            met = Certificate(self._square(self.W) + float(self._state["losses"][0]), self.dual)
            if found <= violation or met.estimate <= WORTH_CERTIFYING * self._config.tolerance:
                self.certify()
            yield self._stats(int((alphas.head >= 0).sum()), met)
            while violation >= found > 0:
                violation *= COOLING
            self._loop_active(arena.rows, active_order, alphas, violation, MOST_EFFORT * n_rows * self._n_classes)


class Streaming(Direct):
    """Rows from disk, in random groups of chunks: a full loop over each group, after which its active rows are copied;
    after the pass these are looped over on their own. The nonzero alphas of a chunk are kept together."""

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        taken = vector_bytes(stream.n_features, self._n_classes, self.vectors) + stream.needed_bytes
        what = f"the weights of {stream.n_features} features for {self._n_classes} classes and the rows to work on"
        room = room_beside(taken, config.memory, what)
        self._alphas, self._active, self._room = Packed(room // 4), None, room
        self._most_rows = 1 + room // 4 // (ROW_BYTES + self._n_classes * NODE_BYTES)

    def passes(self):
        self._started, estimate, violation = time.perf_counter(), np.inf, FIRST_VIOLATION
        while True:
            self._number += 1
            looking = estimate <= WORTH_CERTIFYING * self._config.tolerance
            snapshot = self.W.copy() if looking else None
            loss, found = self._full_pass(snapshot)
            while violation >= found > 0:
                violation *= COOLING
            primal = self._square(self.W) + float(self._state["losses"][0])
            n_active = self._active.n_rows
            self._loop_all_active(violation * COOLING)
            met = Certificate(primal, self.dual)
            estimate = met.estimate
            if looking:
                self._certify(snapshot, loss)
            del snapshot
            yield self._stats(n_active, met)

    def _full_pass(self, snapshot) -> tuple[float, float]:
        """Returns the loss of the snapshot, if there is one, and the largest violation met."""
        self._active, self._n_active_alphas = ActiveRows(self._stream.dtype, self._room // 2, kind=np.int32), 0
        self._state["losses"], loss, found = 0.0, 0.0, 0.0
        for arena, _ in self._stream.arenas(self._number):
            if snapshot is not None:
                loss += self._loss(arena.rows, snapshot)
            for rows in self._parts(arena.rows):
                found = max(found, self._visit(rows))
                self.deadline.check()
        return loss, found

    def _parts(self, rows):
        """Rows to be visited together."""
        bounds = [start for start, _, _ in self._runs(rows)] + [len(rows)]
        first = 0
        for number in range(1, len(bounds)):
            if number == len(bounds) - 1 or bounds[number + 1] - bounds[first] > self._most_rows:
                yield rows[bounds[first] : bounds[number]]
                first = number

    def _runs(self, rows):
        """Yields (start, end, key) of rows of one chunk whose alphas are kept together, under this key."""
        chunks, places = rows["chunk"], rows["place"] // self._most_rows
        starts = np.flatnonzero((np.diff(chunks) != 0) | (np.diff(places) != 0)) + 1
        for start, end in zip([0, *starts.tolist()], [*starts.tolist(), len(rows)], strict=True):
            yield start, end, (int(chunks[start]), int(places[start]))

    def _visit(self, rows) -> float:
        """Returns the largest violation met."""
        alphas, order = SparseAlphas(len(rows), self._n_classes, self._state), np.arange(len(rows), dtype=np.int32)
        self._read_alphas(rows, alphas)
        self._loop(rows, order, len(rows), alphas, full=True)
        counts = self._write_alphas(rows, alphas)
        n_active = _multiclass.chosen_rows(rows, alphas.head, alphas.nodes, self._costs, self.weston, order)
        active = order[:n_active]
        self._n_active_alphas += int(counts[active].sum())
        self._active.append(rows[active], counts[active][:, None])
        return float(self._state["violation"][0])

    def _loop_all_active(self, violation: float) -> None:
        full_loop = self._stream.description.n_rows * self._n_classes
        loops = min(GROWTH, self._number) / ROUNDS * min(LOOPS, FULL_LOOPS * full_loop / max(1, self._n_active_alphas))
        self._active.memory = self._room * 5 // 8 + self._stream.needed_bytes
        for rounds_left in range(ROUNDS - 1, -1, -1):
            number = -1  # enumerate would hold on to the rows before
            for rows, counts in self._active.parts(self._room // 8 // ACTIVE_NODE_BYTES):
                number += 1
                alphas = SparseAlphas(len(rows), self._n_classes, self._state)
                if rounds_left == ROUNDS - 1:
                    self._read_alphas(rows, alphas)
                else:
                    alphas.unpack(0, Lists.from_bytes(self._alphas.read(number), len(rows)))
                order = np.empty(len(rows), np.int32)
                self._loop_active(rows, order, alphas, violation, loops * float(counts.sum()))
                self.deadline.check()
                if rounds_left:
                    self._alphas.write(number, alphas.pack(0, len(rows)).to_bytes())
                else:
                    self._write_alphas(rows, alphas)
                    self._alphas.write(number, b"")
                del rows, counts, alphas, order
        self._active.close()

    def _read_alphas(self, rows, alphas: SparseAlphas) -> None:
        for start, end, key in self._runs(rows):
            alphas.unpack(start, self._lists(key).part(self._places(rows, start, end)))

    def _write_alphas(self, rows, alphas: SparseAlphas) -> np.ndarray:
        """Returns the numbers of nonzero alphas."""
        counts = np.empty(len(rows), np.int32)
        for start, end, key in self._runs(rows):
            lists = alphas.pack(start, end)
            counts[start:end] = lists.counts
            self._alphas.write(key, self._lists(key).replaced(self._places(rows, start, end), lists).to_bytes())
        return counts

    def _lists(self, key) -> Lists:
        chunk, number = key
        n_rows = min(self._most_rows, int(self._stream.chunk_rows[chunk]) - number * self._most_rows)
        return Lists.from_bytes(self._alphas.read(key), n_rows)

    def _places(self, rows, start: int, end: int) -> np.ndarray:
        return rows["place"][start:end] % self._most_rows

    def close(self) -> None:
        self._alphas.close()
        if self._active:
            self._active.close()
        super().close()


class CrammerSinger(InMemory):
    pass


class WestonWatkins(InMemory):
    weston = True


class CrammerSingerStreaming(Streaming):
    pass


class WestonWatkinsStreaming(Streaming):
    weston = True
