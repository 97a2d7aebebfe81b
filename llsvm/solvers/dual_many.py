"""Dual coordinate descent for more than two classes, each against the rest: all problems from one read of the rows."""

from __future__ import annotations

import time

import numpy as np

from llsvm.active import ActiveRows
from llsvm.alphas import Alphas
from llsvm.core import Certificate, PassStats, Problem
from llsvm.memory import working
from llsvm.reader import ROW
from llsvm.solvers.dual_cd import WORTH_CERTIFYING, float32_box
from llsvm.solvers.dual_machine import DualMachine
from llsvm.solvers.exact import MARGIN, ROUNDS, SWEEPS, VISITS
from llsvm.solvers.one_vs_rest import OneVsRest, total_of

VISITING_SHARE = 16  # of the memory, for the dual variables of rows that are visited together


class Machine(DualMachine):
    """A problem that is done when its own gap is small; keeps the best w that was certified."""

    def __init__(self, problem: Problem, positive: int, dtype, config):
        super().__init__(problem, positive, dtype, config)
        self.alphas, self.n_passes, self.visits = None, 0, 0

    def set_rows(self, label_counts: np.ndarray) -> None:
        positive = int(label_counts[self.positive])
        self.problem.loss_at_zero = float(self.problem.costs @ (label_counts.sum() - positive, positive))

    def keep_rows(self, n_rows: int) -> None:
        """The rows are in memory, and stay there."""
        self.alphas = np.zeros(n_rows)
        self._begin(n_rows)

    def turn(self, table, most_passes: int) -> None:
        """Passes over rows in memory until their gap is worth a look."""
        rows, looking, self.visits = self.own(table, self.alphas), False, 0
        while not looking and self.n_passes < most_passes:
            looking = self._pass(rows)
            self.n_passes += 1
            self.visits += int(self._state[7])
        self.alphas[:] = rows["alpha"]

    def keep_float32(self) -> None:
        """Between visits alphas are kept in float32."""
        self._box, self._round = float32_box(self.problem)

    def begin_pass(self, looking: bool) -> None:
        self._state[6] = self._state[7] = 0
        if looking:
            self.begin_look()
            self._seen_w = self.w.copy()

    def visit(self, table, alphas, wanted) -> None:
        """Visits all rows once and marks those that are active afterwards."""
        rows, order = self.own(table, alphas), np.arange(len(table), dtype=np.int32)
        self._sweep(rows, order, len(order))
        alphas[:] = rows["alpha"]
        bounds = self._box[rows["code"], 0]
        wanted[:] = ((alphas > 0) & (alphas < bounds)) | (np.abs(rows["gradient"]) <= MARGIN)

    def sweep(self, table, alphas, sweeps: int) -> None:
        """Sweeps the rows of a group, of which those that are active in other problems alone are shrunk away."""
        rows, order, n_active = self.own(table, alphas), np.arange(len(table), dtype=np.int32), len(table)
        for number in range(sweeps):
            n_active = self._sweep(rows, order, n_active, len(rows), shrink=True, fresh=number == 0)
            self._narrow()
        alphas[:] = rows["alpha"]

    def solve(self, table, alphas, inner: int) -> None:
        """Solves the sub-problem of a block."""
        rows = self.own(table, alphas)
        self._solve(rows, np.arange(len(rows), dtype=np.int32), inner, 0)
        alphas[:] = rows["alpha"]

    @property
    def met(self) -> Certificate:
        """The objectives with the losses met in the pass."""
        return Certificate(float(0.5 * self.w @ self.w + self._state[6]), self.dual)

    def end_look(self, loss: float) -> Certificate:
        self._certify(self._seen_w, loss)
        self._seen_w = None
        self.done = self.certified.relative_gap <= self.problem.tolerance
        return self.certified

    def take_w(self) -> np.ndarray:
        w = self.best_w if self.certified else self.w
        self.w = self.best_w = None
        return w


class Many(OneVsRest):
    """What the variants share: a class that is done costs no more work."""

    machine_type, vectors, reads_once = Machine, 3, False

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        self._number = 0

    @property
    def _busy(self) -> list[Machine]:
        return [machine for machine in self._machines if not machine.done]

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._check_known()
        self._meet()
        self._set_bias_of_all(self.bias)
        for machine in self._machines:
            machine.set_rows(self._stream.description.label_counts)

    def _set_costs(self) -> None:
        super()._set_costs()
        for machine in self._machines if self._squared_loss else ():
            machine.problem.box[:] = [(np.inf, 0.5 / cost) for cost in machine.problem.box[:, 0]]

    def _stats(self, visits: int, active: int) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        if all(machine.certified for machine in self._machines):
            self._certify([machine.certified for machine in self._machines])
        known = self.certified or total_of(machine.certified or machine.met for machine in self._machines)
        return PassStats(
            self._number, visits, active, self.certified is not None, known.primal, known.dual, known.relative_gap,
            self.bytes_read, self.wait, self.compute, finished=not self._busy,
        )

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """What was certified is the model; what was not, or was told its passes, is looked at once more."""
        if self._busy and (self.certified is None or reason == "passes"):
            self._look_at(self._busy)
            if not self._busy and reason != "interrupted":
                reason = "converged"
        self._stats(0, 0)
        self._gather()
        return reason


class InMemory(Many):
    """All rows resident: each round, every problem that is not done makes passes until its gap is worth a look."""

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int]:
        """A row has a dual variable and a place in the order of every problem, and a copy for every thread."""
        return n_labels, Many.vectors, 12 * n_labels + min(config.threads, n_labels) * ROW.itemsize

    def passes(self):
        self._begin()
        for machine in self._machines:
            machine.keep_rows(self._stream.description.n_rows)
        while True:
            [arena] = self._stream.again()
            busy = self._busy
            count = len(busy)
            self._map(Machine.turn, busy, [arena.rows] * count, [self._config.max_passes] * count)
            self._look_at(busy)
            self._number = max(machine.n_passes for machine in self._machines)
            yield self._stats(sum(m.visits for m in busy), sum(m._n_active for m in busy))

    def close(self) -> None:
        super().close()
        self._stream.release()


class Streaming(Many):
    """Rows from disk: all problems visit a group of chunks while it is in memory; between passes they sweep the rows
    that are active in one of them. See exact.py and docs/out-of-core.md."""

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        self._alphas, self._active = None, None

    def _begin(self) -> None:
        super()._begin()
        n_rows, n_machines = self._stream.description.n_rows, len(self._machines)
        rounding = all(float32_box(machine.problem)[1] for machine in self._machines)
        for machine in self._machines if rounding else ():
            machine.keep_float32()
        dtype = np.dtype(np.float32 if rounding else np.float64)
        self._starts = np.concatenate([[0], np.cumsum(self._stream.chunk_rows)])
        self._alphas = Alphas(n_rows * n_machines, dtype, n_rows * n_machines * dtype.itemsize <= self._room() // 16)

    def passes(self):
        self._begin()
        estimate = np.inf
        while True:
            self._number += 1
            looking = estimate <= WORTH_CERTIFYING * self._config.tolerance
            busy = self._busy
            active = self._pass(busy, looking)
            estimate = total_of(machine.met for machine in busy).relative_gap
            yield self._stats(self._stream.description.n_rows, active)

    def _pass(self, busy, looking: bool) -> int:
        """Visits all rows, then sweeps the active ones; returns how many these are."""
        for machine in busy:
            machine.begin_pass(looking)
        totals, columns = [0.0] * len(busy), self._columns(busy)
        self._active = self._new_active()
        for arena, _ in self._stream.arenas(self._number):
            if looking:
                self._look(arena.rows, busy, totals)
            for part in self._parts(arena.rows):
                self._visit_part(part, busy, columns)
        n_active = self._active.n_rows
        self._sweep_active(busy)
        if looking:
            self._end_look(busy, totals)
        return n_active

    def _columns(self, busy) -> list[int]:
        return [self._machines.index(machine) for machine in busy]

    def _new_active(self, spilling: bool = False) -> ActiveRows:
        room = self._room() - (0 if self._alphas.on_disk else self._alphas.n_bytes)
        return ActiveRows(self._stream.dtype, room, min(self._config.threads, len(self._machines)), spilling=spilling)

    def _parts(self, rows):
        """As many rows as may be visited together."""
        most_rows = 1 + working(self._config.memory) // (VISITING_SHARE * 48 * len(self._machines))
        for start in range(0, len(rows), most_rows):
            yield rows[start : start + most_rows]

    def _visit_part(self, rows, busy, columns) -> None:
        alphas = self._read_alphas(rows, columns)
        own, wanted = alphas[columns], np.zeros((len(busy), len(rows)), bool)
        self._map(Machine.visit, busy, [rows] * len(busy), own, wanted)
        alphas[columns] = own
        self._write_alphas(rows, columns, alphas)
        kept = wanted.any(0)
        self._active.append(rows[kept], alphas.T[kept])

    def _read_alphas(self, rows, columns) -> np.ndarray:
        """(problems, rows)."""
        alphas = np.zeros((len(self._machines), len(rows)))
        for column, run, position in self._places(rows, columns):
            alphas[column, run] = self._alphas.read(position, run.stop - run.start)
        return alphas

    def _write_alphas(self, rows, columns, alphas) -> None:
        for column, run, position in self._places(rows, columns):
            self._alphas.write(position, alphas[column, run])

    def _places(self, rows, columns):
        """Yields (problem, rows of one chunk, where their dual variables stand)."""
        ends = np.append(np.flatnonzero(np.diff(rows["chunk"])) + 1, len(rows)).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            chunk, place = int(rows["chunk"][start]), int(rows["place"][start])
            for column in columns:
                yield column, slice(start, end), int(self._positions(chunk, place, column))

    def _positions(self, chunks, places, column: int):
        """Where the dual variables of rows stand: a chunk's, problem by problem."""
        return self._starts[chunks] * len(self._machines) + column * self._stream.chunk_rows[chunks] + places

    def _sweep_active(self, busy) -> None:
        columns, n_rows = self._columns(busy), self._stream.description.n_rows
        sweeps = min(SWEEPS, VISITS * n_rows / max(1, self._active.n_rows)) / ROUNDS
        sweeps = [self._config.inner or max(1, round(sweeps))] * len(busy)
        for rounds_left in range(ROUNDS - 1, -1, -1):
            before, self._active = self._active, self._new_active(spilling=True)
            for group in before.groups():
                own = group.alphas.T[columns]
                self._map(Machine.sweep, busy, [group.table] * len(busy), own, sweeps)
                group.alphas[:, columns] = own.T
                if rounds_left == 0:
                    self._scatter(group, columns)
                elif before.alone:
                    self._active.adopt(group)
                else:
                    self._active.append_all(group)
                del group, own
            before.close()
        self._active.close()

    def _scatter(self, group, columns) -> None:
        for column in columns:
            positions = self._positions(group.table["chunk"], group.table["place"], column)
            self._alphas.scatter(positions, group.alphas[:, column])

    def close(self) -> None:
        if self._alphas:
            self._alphas.close()
        if self._active:
            self._active.close()
        super().close()


class Blocks(Streaming):
    """Block minimisation (Yu et al., Algorithm 2, section 6.2): every problem solves the block that is in memory."""

    def _pass(self, busy, looking: bool) -> int:
        for machine in busy:
            machine.begin_pass(looking)
        totals, columns, inner = [0.0] * len(busy), self._columns(busy), self._config.inner
        for arena, _, _ in self._stream.blocks(self._number):
            if looking:
                self._look(arena.rows, busy, totals)
            alphas = self._read_alphas(arena.rows, columns)
            own = alphas[columns]
            self._map(Machine.solve, busy, [arena.rows] * len(busy), own, [1 if inner is None else inner] * len(busy))
            alphas[columns] = own
            self._write_alphas(arena.rows, columns, alphas)
        if looking:
            self._end_look(busy, totals)
        return 0
