"""Harsh shrinking: LLSVM (Alrajeh, Takeda, Niranjan), Algorithm 2, one-vs-rest in the same single pass.

The rows are read once. Every problem visits a row once when it is read (Algorithm 1, lines 4-13); the row is kept only
if some problem has 0 < alpha < U then. Afterwards the kept rows are swept `inner` times, in sub-problems as large as
memory allows, and filtered again, until the dual value of every problem changes by at most `tolerance`, relative.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from llsvm.active import ActiveRows
from llsvm.core import Certificate, DataError, PassStats, Problem, UsageError, label_order
from llsvm.evaluate import total_loss
from llsvm.memory import check_vectors, enough, format_size, vector_bytes, working
from llsvm.solvers.dual_cd import DualCD

# Accuracy on mnist by sweeps of a sub-problem: 5 91.85 %, 10 91.96, 12 92.05, 20 92.13 (LIBLINEAR: 92.18).
INNER = 12
ROOM_TO_GROW = 1.25
VISITING_SHARE = 16  # of the memory, for the dual variables of rows that are visited together
AT_BOUND = 1e-6
SIGNS = np.array([-1.0, 1.0])  # by side: see Machine.own
# R of a stream is that of the rows so far: growth below the first is made up for at the end, beyond the second harms.
GROWTH, HARMFUL_GROWTH, HARMFUL_SHARE = 1.1, 2.0, 0.05


class Machine(DualCD):
    """One two-class problem: the rows of class `positive` against all others. positive = -1: no row is positive.

    The machine without a positive class stands for all classes not met yet: they have seen nothing but negative rows,
    so the machine of a class that turns up begins as a copy of it.
    """

    def __init__(self, problem: Problem, positive: int, dtype):
        super().__init__(problem)
        self.positive = positive
        self.done, self.change, self._dual_before = False, np.inf, 0.0
        self._box, self._round, self._kind = problem.box, False, np.zeros(1, dtype)

    def own(self, table) -> np.ndarray:
        """A copy of these rows whose code is 1 where y = 1, else 0."""
        rows = table.copy()
        rows["code"] = rows["code"] == self.positive
        return rows

    def wants(self, rows, alphas) -> np.ndarray:
        """Where alpha is free; nearer to a bound than rounding can tell, of C or of a full step, is there."""
        bounds = self.problem.box[(rows["code"] == self.positive).astype(np.intp), 0]
        square = rows["norm"].astype(np.float64) ** 2 + self.problem.bias**2
        lowest = AT_BOUND * np.minimum(bounds, 1 / np.maximum(square, 1e-300))
        return (alphas > lowest) & (alphas < (1 - AT_BOUND) * bounds)

    def turn_into(self, other: Machine, sign: float) -> None:
        """Makes the other the same point, with y exchanged where sign = -1."""
        other.w[:] = sign * self.w
        other._state[:] = self._state

    def grow(self, n_features: int) -> None:
        if n_features + 1 > len(self.w):
            larger = np.zeros(int(ROOM_TO_GROW * n_features) + 1)
            larger[: len(self.w) - 1], larger[-1] = self.w[:-1], self.w[-1]
            self.w = larger

    def set_bias(self, bias: float) -> None:
        """w is sum alpha y x at any time, so where the bias feature of all rows grows, its weight grows with it."""
        if self.problem.bias:
            self.w[-1] *= bias / self.problem.bias
        self.problem.bias = bias

    def visit_once(self, table, alphas) -> None:
        """Visits rows whose alpha is 0, in their order."""
        rows = self.own(table)
        self._visit_all(rows, np.arange(len(rows), dtype=np.int32), len(rows), len(rows))
        alphas[:] = rows["alpha"]

    def sweep(self, table, alphas, sweeps: int) -> None:
        """Sweeps all rows of a group: those that only other problems keep are visited too."""
        rows, order = self.own(table), np.arange(len(table), dtype=np.int32)
        rows["alpha"] = alphas
        for _ in range(sweeps):
            self._sweep(rows, order, len(order), len(rows))
        alphas[:] = rows["alpha"]

    def settle(self, tolerance: float) -> None:
        """Compares the dual value with what it was when last asked."""
        dual = self.dual
        self.change = abs(dual - self._dual_before) / max(abs(dual), 1e-300)
        self.done, self._dual_before = self.change <= tolerance, dual

    def add_loss(self, rows, losses) -> None:
        losses += total_loss(self.own(rows), self.w, self.problem, self._kind)


class OnePass:
    """Trains on a stream, of which labels, features and the largest norm may become known only while it is read.

    Two classes are one problem, more are one each. Where the labels are not known beforehand, one machine serves as
    long as two have been met: that of the second class is its mirror image.
    """

    def __init__(self, stream, config):
        self._stream, self._config = stream, config
        self._inner = config.inner or INNER
        self._pool = ThreadPoolExecutor(config.threads, thread_name_prefix="machine")
        self._machines, self._others = [], []
        self.w, self.certified, self.certificates, self.uncertified = None, None, [], ""
        self.compute = self._started = 0.0
        self._radius, self._radii, self._n_visited, self._had_others = 0.0, [], 0, False
        self._active = ActiveRows(stream.dtype, 0, 1, self._columns)

    bytes_read = property(lambda self: self._stream.bytes_read)
    wait = property(lambda self: self._stream.wait)
    dual = property(lambda self: sum(machine.dual for machine in self._machines))

    @property
    def bias(self) -> float:
        return self._stream.largest_norm if self._config.bias is None else max(self._config.bias, 0.0)

    @property
    def best_w(self) -> np.ndarray:
        return self.w

    def passes(self):
        self._started = time.perf_counter()
        kept = self._read_once()
        self._check_classes()
        self._had_others, self._others = bool(self._others), []
        for machine in self._machines:
            machine.settle(tolerance=-1.0)
        number = 1
        yield self._stats(number, self._stream.description.n_rows, kept)
        while not all(machine.done for machine in self._machines):
            number += 1
            visits = self._sweep_active()
            self._settle()
            yield self._stats(number, visits, self._active.n_rows)

    def _check_classes(self) -> None:
        if len(self._stream.labels) < 2:
            raise DataError(f"only one class in the data: every label is {self._stream.labels[0]}",
                            "a classifier needs two")

    # --- the one pass over the data

    def _read_once(self) -> int:
        """Returns the number of rows that some problem wants."""
        stream, kept = self._stream, 0
        if stream.labels_known:
            self._check_classes()
            check_vectors(stream.n_features, self._n_machines, self._config.memory)
        for arena, order in stream.arenas():
            self._meet()
            self._active.memory, self._active.copies = self._room(), self._n_copies
            for start, end in self._slices(arena.rows["norm"][order]):
                kept += self._visit_once(arena.rows[order[start:end]])
        for machine in self._machines:
            machine.set_bias(self.bias)
        return kept

    def _slices(self, norms):
        """Runs of rows to be visited together; the radius is set when it has grown."""
        most_rows = 1 + working(self._config.memory) // (VISITING_SHARE * 32 * len(self._machines + self._others))
        start, largest = 0, np.maximum.accumulate(norms)
        while start < len(norms):
            self._set_bias(float(norms[start]))
            end = min(len(norms), start + most_rows)
            if self._config.bias is None:
                end = max(start + 1, min(end, int(np.searchsorted(largest, GROWTH * self._radius, "right"))))
            yield start, end
            self._n_visited, start = self._n_visited + end - start, end

    def _set_bias(self, norm: float) -> None:
        """The value of the bias feature from here on: what was asked for, or the largest norm so far (1 until there is
        one: empty rows have none)."""
        if self._config.bias is not None:
            bias = self.bias
        elif self._stream.labels_known:
            bias = self._radius = self.bias
        elif norm > GROWTH * self._radius or not self._radius:
            bias = self._radius = norm or 1.0
            self._radii.append((bias, self._n_visited))
        else:
            return
        for machine in self._machines + self._others:
            machine.set_bias(bias)

    def _visit_once(self, rows) -> int:
        """All machines visit these rows; those that one of them wants are kept."""
        everyone = self._machines + self._others
        alphas = np.empty((len(everyone), len(rows)))
        self._map(Machine.visit_once, everyone, [rows] * len(everyone), alphas)
        wanted = self._wanted(self._machines, rows, alphas)
        kept = wanted | self._wanted(self._others, rows, alphas[len(self._machines) :])
        self._active.append(rows[kept], alphas.T[kept])
        return int(wanted.sum())

    def _wanted(self, machines, rows, alphas) -> np.ndarray:
        mask = np.zeros(len(rows), bool)
        for machine, own in zip(machines, alphas, strict=False):
            mask |= machine.wants(rows, own)
        return mask

    @property
    def _n_copies(self) -> int:
        return min(self._config.threads, len(self._machines))

    @property
    def _n_machines(self) -> int:
        return 1 if len(self._stream.labels) == 2 else len(self._stream.labels)

    def _meet(self) -> None:
        """Fits the machines to the labels, features and norms known now."""
        stream, config = self._stream, self._config
        labels = stream.labels
        if not self._machines:
            self._add_first()
        if len(labels) > 2 and len(self._machines) == 1:
            if not self._others:
                raise UsageError(f"{len(labels)} classes, and weights for some of them, in text that is read once",
                                 "make a block set first: llsvm-split, then llsvm-train")
            self._machines.append(self._copy(self._machines[0], 1, -1.0))
        while 2 < len(labels) > len(self._machines):
            self._machines.append(self._copy(self._others[0], len(self._machines), 1.0))
        check_vectors(stream.n_features, len(self._machines), config.memory)
        for machine in self._machines + self._others:
            machine.grow(stream.n_features)
        self._set_boxes()

    def _add_first(self) -> None:
        stream, config = self._stream, self._config
        if not stream.labels_known:
            self._machines = [self._new(0)]
            self._others = [] if config.weights else [self._new(-1)]
        elif len(stream.labels) == 2:
            self._machines = [self._new(stream.labels.index(label_order(stream.labels)[0]))]
        else:
            self._machines = [self._new(code) for code in range(len(stream.labels))]

    def _new(self, positive: int) -> Machine:
        config, C = self._config, self._config.C
        problem = Problem(0, 0, np.inf, SIGNS, np.array([[C, 0.0], [C, 0.0]]), 0.0, config.tolerance, config.seed,
                          config.threads, config.memory, working(config.memory), self._inner)
        return Machine(problem, positive, self._stream.dtype)

    def _copy(self, machine: Machine, positive: int, sign: float) -> Machine:
        copy = self._new(positive)
        copy.problem.bias = machine.problem.bias
        copy.w = np.empty_like(machine.w)
        machine.turn_into(copy, sign)
        return copy

    def _set_boxes(self) -> None:
        """As LIBLINEAR: of two classes each has its own C, of more the positive one of a problem."""
        labels, config = self._stream.labels, self._config
        weights = np.array([config.weights.get(label, 1.0) for label in labels])
        if config.balanced:
            counts = self._stream.description.label_counts
            weights = weights * counts.sum() / (len(labels) * counts)
        for machine in self._machines:
            machine.problem.box[1, 0] = config.C * weights[machine.positive]
            if len(labels) == 2:
                machine.problem.box[0, 0] = config.C * weights[1 - machine.positive]

    def _columns(self, n: int):
        """Which of the n dual variables that were kept with a row are those of the problems there are now."""
        met, wanted = n - 1, len(self._machines)
        if self._stream.labels_known or n == 1:
            return slice(None)
        if met == 1 and wanted > 1:
            return [0, 0, *[1] * (wanted - 2)]
        return [*range(met), *[met] * (wanted - met)]

    def _room(self) -> int:
        """Bytes for active rows, beside all the rest."""
        config, stream = self._config, self._stream
        taken = vector_bytes(stream.n_features, len(self._machines)) + stream.n_bytes
        room = working(config.memory) - taken
        if room < taken // 16:
            raise UsageError(
                f"--memory {format_size(config.memory)} is too small: the weights of {stream.n_features} features"
                f"{'' if stream.labels_known else ' so far'} and the rows to work on take {format_size(taken)}",
                f"at least --memory {enough(taken + taken // 8)} is needed",
            )
        return room

    # --- sub-problems of the active rows

    def _sweep_active(self) -> int:
        """One outer iteration; returns the visits made."""
        before, visits = self._active, 0
        busy = [k for k, machine in enumerate(self._machines) if not machine.done]
        machines = [self._machines[k] for k in busy]
        before.memory, before.copies = self._room(), self._n_copies
        self._active = ActiveRows(self._stream.dtype, before.memory, self._n_copies, spilling=True)
        for group in before.groups():
            if self._had_others:
                group = group.part(self._wanted(machines, group.table, group.alphas.T[busy]))
            alphas = group.alphas.T[busy]
            self._map(Machine.sweep, machines, [group.table] * len(busy), alphas, [self._inner] * len(busy))
            visits += self._inner * len(group.table)
            group.alphas[:, busy] = alphas.T
            group = group.part(self._wanted(machines, group.table, alphas))
            if before.alone:
                self._active.adopt(group)
            else:
                self._active.append_all(group)
            del group, alphas
        before.close()
        self._had_others = False
        return visits

    def _map(self, method, machines, *arguments) -> None:
        if len(machines) == 1 or self._config.threads == 1:
            for call in zip(machines, *arguments, strict=True):
                method(*call)
            return

        def run(calls):
            for call in calls:
                method(*call)

        calls = list(zip(machines, *arguments, strict=True))
        list(self._pool.map(run, (calls[start :: self._config.threads] for start in range(self._config.threads))))

    def _settle(self) -> None:
        for machine in self._machines:
            if not machine.done:
                machine.settle(self._config.tolerance)

    def _stats(self, number: int, visits: int, active: int) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        change = max((machine.change for machine in self._machines), default=0.0)
        return PassStats(
            number, visits, active, dual=self.dual, change=change, bytes_read=self.bytes_read, wait=self.wait,
            compute=self.compute, finished=number > 1 and all(machine.done for machine in self._machines),
        )

    # --- the end

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """Certifies if the rows can be read again and it is wanted; returns the reason."""
        self._active.close()
        if reason == "interrupted":
            self.uncertified = "interrupted"
        elif not self._config.certify:
            self.uncertified = "--no-certify"
        elif not self._stream.repeatable:
            self.uncertified = "the input cannot be read again"
        elif not self._certify(stopped):
            reason = self.uncertified = "interrupted"
        self._gather()
        return reason

    def _certify(self, stopped) -> bool:
        """One pass that only reads; False if it was stopped."""
        began = time.perf_counter() - self.wait
        losses = np.zeros(len(self._machines))
        for arena in self._stream.again():
            self._map(Machine.add_loss, self._machines, [arena.rows] * len(losses), losses[:, None])
            if stopped():
                return False
        self.certificates = [
            Certificate(float(0.5 * machine.w @ machine.w) + loss, machine.dual)
            for machine, loss in zip(self._machines, losses.tolist(), strict=True)
        ]
        self.certified = Certificate(sum(c.primal for c in self.certificates), sum(c.dual for c in self.certificates))
        self.compute += time.perf_counter() - self.wait - began
        return True

    def _gather(self) -> None:
        """The weights as (features + 1, columns); a positive score means the first of label_order."""
        n, labels = self._stream.n_features, self._stream.labels
        self.w = np.empty((n + 1, len(self._machines)))
        for column, machine in enumerate(self._machines):
            self.w[:-1, column], self.w[-1, column] = machine.w[:n], machine.w[-1]
            machine.w = None
        if len(labels) == 2 and label_order(labels)[0] != labels[self._machines[0].positive]:
            self.w *= -1

    @property
    def notes(self) -> list[str]:
        """What the user should know of this run."""
        early = [rows for radius, rows in self._radii if HARMFUL_GROWTH * radius >= self.bias][:1]
        share = early[0] / self._n_visited if early else 0.0
        if share < HARMFUL_SHARE:
            return []
        return [f"-B R: {share:.0%} of the rows were read before one half as long as the longest, and shrunk with that "
                "smaller R; a block set (llsvm-split) knows R from the start"]

    def close(self) -> None:
        self._active.close()
        self._pool.shutdown()
        self._machines = []
