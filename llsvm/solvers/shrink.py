"""Harsh shrinking: LLSVM (Alrajeh, Takeda, Niranjan), Algorithm 2, one-vs-rest in the same single pass.

The rows are read once. Every problem visits a row once when it is read (Algorithm 1, lines 4-13); the row is kept only
if some problem has 0 < alpha < U then. Afterwards the kept rows are swept `inner` times, in sub-problems as large as
memory allows, and filtered again, until the dual value of every problem changes by at most `tolerance`, relative.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from llsvm.active import ActiveRows
from llsvm.core import Certificate, PassStats
from llsvm.evaluate import total_loss
from llsvm.problem import Problem
from llsvm.reader import DUAL, shuffle
from llsvm.solvers.dual_cd import State
from llsvm.solvers.machines import grown
from llsvm.solvers.one_vs_rest import OneVsRest
from llsvm.solvers.together import half_square, sweep

# Accuracy on mnist by sweeps of a sub-problem: 5 91.85 %, 10 91.96, 12 92.05, 20 92.13 (LIBLINEAR: 92.18).
INNER = 12
AT_BOUND = 1e-6
VISITING_SHARE = 16  # of the memory, for the dual variables of rows that are visited together


class Machine:
    """One problem by dual coordinate descent, whose State is that of DualCD; the alphas of rows stand elsewhere."""

    def __init__(self, problem: Problem, config, dtype):
        self.problem, self.state, self._seed, self._kind = problem, State(1), config.seed, np.zeros(1, dtype)
        self.state.sums["highest_before"], self.state.sums["lowest_before"] = np.inf, -np.inf

    dual = property(lambda self: self.state.dual)

    def grow(self, n_features: int) -> None:
        self.state.w = grown(self.state.w, n_features)

    def set_bias(self, bias: float) -> None:
        """w is sum alpha y x at any time, so where the bias feature of all rows grows, its weight grows with it."""
        if self.problem.bias:
            self.state.w[-1] *= bias / self.problem.bias
        self.problem, self.state.sums["bias"] = replace(self.problem, bias=bias), bias

    def turn_into(self, other: Machine, sign: float) -> None:
        other.state.w, other.state.sums[:] = sign * self.state.w, self.state.sums

    # --- visits

    def visit_once(self, table, alphas) -> None:
        """Visits rows, whose alphas are 0, in their order."""
        duals = np.zeros(len(table), DUAL)
        self._visit(table, duals, np.arange(len(table), dtype=np.int32))
        alphas[:] = duals["alpha"]

    def sweep(self, table, alphas, sweeps: int) -> None:
        """Sweeps all rows of a group: those that only other problems keep are visited too."""
        duals, order, state = np.zeros(len(table), DUAL), np.arange(len(table), dtype=np.int32), self.state
        duals["alpha"] = alphas
        for _ in range(sweeps):
            if self.deadline.passed:
                break
            state.counter += 1
            shuffle(order, len(order), self._seed, state.counter)
            self._visit(table, duals, order)
        alphas[:] = duals["alpha"]

    def _visit(self, table, duals, order) -> None:
        sweep(table, duals, order, 0, len(order), self.state.w, self.problem.codes, self.state.sums, self._kind)

    def wants(self, rows, alphas) -> np.ndarray:
        """Where alpha is free; nearer to a bound than rounding can tell, of C or of a full step, is there."""
        bounds = self.problem.codes[rows["code"], 1]
        square = rows["norm"].astype(np.float64) ** 2 + self.problem.bias**2
        lowest = AT_BOUND * np.minimum(bounds, 1 / np.maximum(square, 1e-300))
        return (alphas > lowest) & (alphas < (1 - AT_BOUND) * bounds)

    # --- weights and what they are worth

    def begin_look(self) -> None:
        """w stays as it is."""

    def look(self, rows) -> float:
        return total_loss(rows, self.state.w, self.problem, self._kind)

    def end_look(self, loss: float) -> Certificate:
        return Certificate(half_square(self.state.w) + loss, self.dual)

    def now(self) -> np.ndarray:
        return self.state.w

    def take_w(self) -> np.ndarray:
        w, self.state.w = self.state.w, None
        return w


class Course:
    """Where all problems stand: the rows that are still active, with an alpha of each problem, and by how much the dual
    value of each has changed, relative. had_others: rows may have been kept for classes that did not come."""

    def __init__(self, dtype):
        self.n_passes, self.had_others, self.rows = 0, False, ActiveRows(dtype, 0, 1, self._columns)
        self._duals = self.changes = self.is_done = np.zeros(0)

    def begin(self, n_problems: int, had_others: bool) -> None:
        """After the rows have been read."""
        self.had_others, self._duals, self.is_done = had_others, np.zeros(n_problems), np.zeros(n_problems, bool)
        self.changes = np.full(n_problems, np.inf)

    def settle(self, machines, tolerance: float) -> None:
        """Compares dual values with what they were when last asked; problems whose are as near as that are done."""
        self.n_passes += 1
        for k in np.flatnonzero(~self.is_done):
            dual = machines[k].dual
            self.changes[k] = abs(dual - self._duals[k]) / max(abs(dual), 1e-300)
            self._duals[k] = dual
        self.is_done = self.changes <= tolerance

    def _columns(self, n: int):
        """Which of the n dual variables that were kept with a row are those of the problems there are now."""
        met, wanted = n - 1, len(self.changes)
        if n == wanted:
            return slice(None)
        if met == 1 and wanted > 1:
            return [0, 0, *[1] * (wanted - 2)]
        return [*range(met), *[met] * (wanted - met)]


class HarshShrinking(OneVsRest):
    """Trains on a stream; after its one pass, on the rows that are still active."""

    machine_type, reads_once = Machine, True

    def __init__(self, stream, config, squared_loss: bool = False, states: list | None = None):
        super().__init__(stream, config, squared_loss, states)
        self._course, self._inner = states[0].course if states else Course(stream.dtype), config.inner or INNER

    def passes(self):
        self._begin()
        course = self._course
        if not self._machines.all_met:
            kept = self._read_once()
            had_others = bool(self._machines.others)
            self._end_reading()
            course.begin(len(self._machines), had_others)
            for machine in self._machines:
                machine.state.course = course
            course.settle(self._machines, tolerance=-1.0)
            yield self._stats(self._stream.description.n_rows, kept)
        while not course.is_done.all():
            visits = self._sweep_active()
            course.settle(self._machines, self._config.tolerance)
            yield self._stats(visits, course.rows.n_rows)

    # --- the one pass over the data

    def _read_once(self) -> int:
        """Returns the number of rows that some problem wants."""
        kept, active = 0, self._course.rows
        for arena, order in self._stream.arenas():
            self._machines.meet()
            active.memory, active.takes.copies = self._machines.room(), self._n_copies
            most_rows = 1 + self._config.budget.left // (VISITING_SHARE * 32 * len(self._machines.everyone))
            for start, end in self._growing_bias.slices(arena.rows, order, most_rows):
                self.deadline.check()
                kept += self._visit_once(arena.rows.take(order[start:end]))
        return kept

    def _visit_once(self, rows) -> int:
        """All machines visit these rows; those that one of them wants are kept."""
        everyone = self._machines.everyone
        alphas = np.empty((len(everyone), len(rows)))
        self._workers.map(Machine.visit_once, everyone, [rows] * len(everyone), alphas)
        self.deadline.check()
        wanted = self._wanted(self._machines, rows, alphas)
        kept = wanted | self._wanted(self._machines.others, rows, alphas[len(self._machines) :])
        self._course.rows.append(rows.take(np.flatnonzero(kept)), alphas.T[kept])
        return int(wanted.sum())

    @staticmethod
    def _wanted(machines, rows, alphas) -> np.ndarray:
        mask = np.zeros(len(rows), bool)
        for machine, own in zip(machines, alphas, strict=False):
            mask |= machine.wants(rows, own)
        return mask

    @property
    def _n_copies(self) -> int:
        return min(self._config.threads, len(self._machines))

    # --- sub-problems of the active rows

    def _sweep_active(self) -> int:
        """One outer iteration; returns the visits made."""
        course, visits = self._course, 0
        before, busy = course.rows, np.flatnonzero(~course.is_done)
        machines = [self._machines[k] for k in busy]
        before.memory, before.takes.copies = self._machines.room(), self._n_copies
        course.rows = ActiveRows(self._stream.dtype, before.memory, self._n_copies, spilling=True)
        for group in before.groups():
            if course.had_others:
                group = group.part(self._wanted(machines, group.table, group.alphas.T[busy]))
            alphas = group.alphas.T[busy]
            own = [group.table] * len(busy), alphas, [self._inner] * len(busy)
            self._workers.map(Machine.sweep, machines, *own)
            visits += self._inner * len(group.table)
            group.alphas[:, busy] = alphas.T
            self.deadline.check()
            group = group.part(self._wanted(machines, group.table, alphas))
            if before.alone:
                course.rows.adopt(group)
            else:
                course.rows.append(group.table, group.alphas)
            del group, alphas, own
        before.close()
        course.had_others = False
        return visits

    def _stats(self, visits: int, active: int) -> PassStats:
        self.compute, course = time.perf_counter() - self._started - self.wait, self._course
        return PassStats(
            course.n_passes, visits, active, dual=self.dual, change=float(course.changes.max()),
            bytes_read=self.bytes_read, wait=self.wait, compute=self.compute,
            finished=course.n_passes > 1 and bool(course.is_done.all()),
        )

    # --- the end

    def finish(self, reason: str, stopped=lambda: False) -> str:
        self._course.rows.close()
        return super().finish(reason, stopped)

    def close(self) -> None:
        self._course.rows.close()
        super().close()
