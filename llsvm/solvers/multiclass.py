"""Crammer-Singer and Weston-Watkins: one problem of all classes, by the sequential dual method."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from llsvm import _multiclass
from llsvm.alphas import Packed
from llsvm.core import Certificate, DataError, PassStats, label_order
from llsvm.memory import check_vectors, room_beside, vector_bytes
from llsvm.reader import shuffle

STATE = np.dtype([*((name, np.float64) for name in ("linear", "losses", "violation", "effort")),
                  ("free", np.int64), ("n_free", np.int64)])  # fmt: skip
NODE = np.dtype([("value", np.float64), ("label", np.int32), ("next", np.int32)])
assert STATE.itemsize == _multiclass.STATE_BYTES and NODE.itemsize == _multiclass.NODE_BYTES
SHARES, SMALLEST_SHARE = 16, 1 << 18
FIRST_VIOLATION, COOLING = 1.0, 0.1
# Loops over the active rows end after this many full ones' worth of work.
MOST_EFFORT = 2.0
WORTH_CERTIFYING = 20
ROOM_TO_GROW = 1.5
ROW_BYTES = 64  # of what a visit holds of a row beside its nodes


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
    def most_nodes(self) -> int:
        """A visit needs two free ones a class."""
        return (len(self.head) + 3) * self._n_classes

    @classmethod
    def from_bytes(cls, parts, sizes: list[int], n_classes: int, state: np.ndarray) -> SparseAlphas:
        """Of rows in several parts of these sizes; an empty part has no nonzero alphas."""
        alphas, start = cls(sum(sizes), n_classes, state), 0
        for part, size in zip(parts, sizes, strict=True):
            if part:
                counts = np.frombuffer(part, np.int32, size)
                n = int(counts.sum())
                while state["n_free"][0] < n:
                    alphas.grow()
                labels = np.frombuffer(part, np.int32, n, 4 * size)
                values = np.frombuffer(part[4 * (size + n) :], np.float64)
                _multiclass.unpack(counts, labels, values, alphas.head[start : start + size], alphas.nodes, state)
            start += size
        return alphas

    def to_bytes(self, start: int, end: int) -> bytes:
        """Those of rows start to end."""
        head, counts = self.head[start:end], np.empty(end - start, np.int32)
        n = _multiclass.pack(head, self.nodes, counts, np.empty(0, np.int32), np.empty(0))
        labels, values = np.empty(n, np.int32), np.empty(n)
        if n:
            _multiclass.pack(head, self.nodes, counts, labels, values)
        return counts.tobytes() + labels.tobytes() + values.tobytes() if n else b""

    def _more(self) -> int:
        return max(4 * self._n_classes, len(self.head), int((ROOM_TO_GROW - 1) * len(self.nodes)))


class Direct:
    """What both formulations share; `weston` is which. Columns of W are classes in the order of their codes."""

    weston, reads_once, vectors = False, False, 3

    def __init__(self, stream, config, squared_loss: bool = False):
        self._stream, self._config = stream, config
        self._pool = ThreadPoolExecutor(config.threads, thread_name_prefix="loss")
        self._kind, self._state = np.zeros(1, stream.dtype), np.zeros(1, STATE)
        self._n_classes, self.notes = len(stream.labels), []
        if self._n_classes < 2:
            raise DataError(f"only one class in the data: every label is {stream.labels[0]}", "a classifier needs two")
        check_vectors(stream.n_features, self._n_classes, config.memory, self.vectors)
        self.W = np.zeros((stream.n_features + 1, self._n_classes))
        self._numbers, self._classes = np.zeros((3, self._n_classes)), np.zeros((2, 2 * self._n_classes + 1), np.int32)
        self._costs = self._class_costs()
        self.best_w, self.certified, self.certificates, self.uncertified = None, None, [], ""
        self.compute, self._counter, self._number = 0.0, 0, 0

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
        return 0.5 * float(np.vdot(W, W))

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
        return float(self._costs @ counts) * (self._n_classes - 1 if self.weston else 1)

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
                self.weston, full, self._numbers, self._classes, self._kind,
            )
            if place == n_active:
                return n_active
            alphas.grow()

    def _loop_active(self, rows, order, alphas: SparseAlphas, violation: float, most_effort: float) -> None:
        """Loops over the active rows until none violates more, or for so many values computed."""
        n_active = _multiclass.chosen_rows(rows, alphas.head, alphas.nodes, self._costs, self.weston, order)
        before = float(self._state["effort"][0])
        while n_active and self._state["effort"][0] - before < most_effort:
            n_active = self._loop(rows, order, n_active, alphas, full=False)
            if self._state["violation"][0] <= violation:
                break

    # --- the certificate

    def _loss(self, rows, W) -> float:
        n_shares = min(SHARES, 1 + int(rows["length"].sum()) * self._n_classes // SMALLEST_SHARE)
        shares = [share for share in np.array_split(rows, n_shares) if len(share)]

        def loss(share):
            scores = np.empty(self._n_classes)
            return _multiclass.losses(share, W, self.bias, self._costs, self.weston, scores, self._kind)

        return sum((self._pool.map if len(shares) > 1 else map)(loss, shares))

    def _certify(self, W, loss: float) -> None:
        primal, dual = self._square(W) + loss, self.dual
        if self.certified is None and primal > self._loss_at_zero:
            W, primal = np.zeros_like(W), self._loss_at_zero
        if self.certified is None or primal <= self.certified.primal:
            self.best_w = W.copy() if self.best_w is None else self.best_w
            self.best_w[:] = W
            self.certified = Certificate(primal, dual)
        self.certified = Certificate(self.certified.primal, max(dual, self.certified.dual))

    def certify(self) -> None:
        """The gap of W as it is now: one pass that only reads."""
        loss = sum(self._loss(arena.rows, self.W) for arena in self._stream.again())
        self._certify(self.W, loss)

    def _stats(self, active: int, met: Certificate) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        if self.certified:
            self.certified = Certificate(self.certified.primal, max(self.certified.dual, met.dual))
        known = self.certified or met
        return PassStats(
            self._number, self._stream.description.n_rows, active, self.certified is not None, known.primal, known.dual,
            known.relative_gap, self.bytes_read, self.wait, self.compute,
            finished=bool(self.certified and known.relative_gap <= self._config.tolerance),
        )

    def finish(self, reason: str, stopped=lambda: False) -> str:
        if self.certified is None or reason == "passes":
            self.certify()
            if self.certified.relative_gap <= self._config.tolerance and reason != "interrupted":
                reason = "converged"
        self.best_w = self._in_order(self.best_w)
        return reason

    def close(self) -> None:
        self._pool.shutdown()
        self._stream.release()
        self.W = None


class InMemory(Direct):
    """All rows resident: full loops in turn with loops over the active rows, to a violation that cools down."""

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int]:
        """Beside the rows: weights, and of every row a place in two orders, a head and, at most, a node a class."""
        return n_labels, Direct.vectors, 12 + n_labels * NODE.itemsize

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
            if found <= violation or met.relative_gap <= WORTH_CERTIFYING * self._config.tolerance:
                self.certify()
            yield self._stats(int((alphas.head >= 0).sum()), met)
            while violation >= found > 0:
                violation *= COOLING
            self._loop_active(arena.rows, active_order, alphas, violation, MOST_EFFORT * n_rows * self._n_classes)


class Streaming(Direct):
    """Rows from disk, in random groups of chunks: a full loop over each group, then loops over its active rows; the
    nonzero alphas of a chunk are kept beside it."""

    # Loops over the active rows of a group, by full ones' worth of work.
    EFFORT = 3.0

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        taken = vector_bytes(stream.n_features, self._n_classes, self.vectors) + stream.needed_bytes
        what = f"the weights of {stream.n_features} features for {self._n_classes} classes and the rows to work on"
        room = room_beside(taken, config.memory, what)
        self._alphas = Packed(room // 2)
        self._most_rows = 1 + room // 4 // (ROW_BYTES + self._n_classes * (NODE.itemsize + 12))

    def passes(self):
        self._started, estimate, violation = time.perf_counter(), np.inf, FIRST_VIOLATION
        while True:
            self._number += 1
            looking = estimate <= WORTH_CERTIFYING * self._config.tolerance
            snapshot, loss, active, largest = self.W.copy() if looking else None, 0.0, 0, 0.0
            self._state["losses"] = 0.0
            for arena, _ in self._stream.arenas(self._number):
                if looking:
                    loss += self._loss(arena.rows, snapshot)
                for rows, ends in self._parts(arena.rows):
                    found, n_active = self._visit(rows, ends, violation)
                    largest, active = max(largest, found), active + n_active
            while violation >= largest > 0:
                violation *= COOLING
            met = Certificate(self._square(self.W) + float(self._state["losses"][0]), self.dual)
            estimate = met.relative_gap
            if looking:
                self._certify(snapshot, loss)
            del snapshot
            yield self._stats(active, met)

    def _parts(self, rows):
        """Rows to be visited together, and the ends of the runs whose alphas are kept together: of one chunk, and
        always the same."""
        chunks, places = rows["chunk"], rows["place"]
        starts = (np.diff(chunks) != 0) | (places[1:] % self._most_rows == 0)
        bounds = [0, *(np.flatnonzero(starts) + 1).tolist(), len(rows)]
        first = 0
        for number in range(1, len(bounds)):
            if number == len(bounds) - 1 or bounds[number + 1] - bounds[first] > self._most_rows:
                yield rows[bounds[first] : bounds[number]], [end - bounds[first] for end in bounds[first : number + 1]]
                first = number

    def _visit(self, rows, ends: list[int], violation: float) -> tuple[float, int]:
        """Returns the largest violation met and the number of rows with nonzero alphas."""
        keys = [(int(rows["chunk"][start]), int(rows["place"][start])) for start in ends[:-1]]
        alphas = SparseAlphas.from_bytes(map(self._alphas.read, keys), np.diff(ends).tolist(), self._n_classes,
                                         self._state)
        order = np.arange(len(rows), dtype=np.int32)
        self._loop(rows, order, len(rows), alphas, full=True)
        found = float(self._state["violation"][0])
        self._loop_active(rows, order, alphas, violation * COOLING, self.EFFORT * len(rows) * self._n_classes)
        for key, start, end in zip(keys, ends[:-1], ends[1:], strict=True):
            self._alphas.write(key, alphas.to_bytes(start, end))
        return found, int((alphas.head >= 0).sum())

    def close(self) -> None:
        self._alphas.close()
        super().close()


class CrammerSinger(InMemory):
    pass


class WestonWatkins(InMemory):
    weston = True


class CrammerSingerStreaming(Streaming):
    pass


class WestonWatkinsStreaming(Streaming):
    weston = True
