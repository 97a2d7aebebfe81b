"""Harsh shrinking: LLSVM (Alrajeh, Takeda, Niranjan), Algorithm 2, one-vs-rest in the same single pass.

The rows are read once. Every problem visits a row once when it is read (Algorithm 1, lines 4-13); the row is kept only
if some problem has 0 < alpha < U then. Afterwards the kept rows are swept `inner` times, in sub-problems as large as
memory allows, and filtered again, until the dual value of every problem changes by at most `tolerance`, relative.
"""

from __future__ import annotations

import time

import numpy as np

from llsvm.active import ActiveRows
from llsvm.core import PassStats
from llsvm.memory import working
from llsvm.problem import Problem
from llsvm.reader import DUAL
from llsvm.solvers.dual_machine import DualMachine
from llsvm.solvers.one_vs_rest import OneVsRest

# Accuracy on mnist by sweeps of a sub-problem: 5 91.85 %, 10 91.96, 12 92.05, 20 92.13 (LIBLINEAR: 92.18).
INNER = 12
VISITING_SHARE = 16  # of the memory, for the dual variables of rows that are visited together


class Machine(DualMachine):
    """Visits a row when it is read, and compares dual values."""

    def __init__(self, problem: Problem, config, dtype):
        super().__init__(problem, config, dtype)
        self.change, self._dual_before = np.inf, 0.0

    def visit_once(self, table, alphas) -> None:
        """Visits rows, whose alphas are 0, in their order."""
        duals = np.zeros(len(table), DUAL)
        self._visit_all(table, duals, np.arange(len(table), dtype=np.int32), len(table), counting=False)
        alphas[:] = duals["alpha"]

    def settle(self, tolerance: float) -> None:
        """Compares the dual value with what it was when last asked."""
        dual = self.dual
        self.change = abs(dual - self._dual_before) / max(abs(dual), 1e-300)
        self.done, self._dual_before = self.change <= tolerance, dual


class HarshShrinking(OneVsRest):
    """Trains on a stream; after its one pass, on the rows that are still active."""

    machine_type, reads_once = Machine, True

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        self._inner, self._had_others = config.inner or INNER, False
        self._active = ActiveRows(stream.dtype, 0, 1, self._columns)

    def passes(self):
        self._started = time.perf_counter()
        kept = self._read_once()
        self._had_others = bool(self._others)
        self._end_reading()
        for machine in self._machines:
            machine.settle(tolerance=-1.0)
        number = 1
        yield self._stats(number, self._stream.description.n_rows, kept)
        while not all(machine.done for machine in self._machines):
            number += 1
            visits = self._sweep_active()
            self._settle()
            yield self._stats(number, visits, self._active.n_rows)

    # --- the one pass over the data

    def _read_once(self) -> int:
        """Returns the number of rows that some problem wants."""
        kept = 0
        self._check_known()
        for arena, order in self._stream.arenas():
            self._meet()
            self._active.memory, self._active.copies = self._room(), self._n_copies
            most_rows = 1 + working(self._config.memory) // (VISITING_SHARE * 32 * len(self._everyone))
            for start, end in self._slices(arena.rows, order, most_rows):
                self.deadline.check()
                kept += self._visit_once(arena.rows.take(order[start:end]))
        return kept

    def _visit_once(self, rows) -> int:
        """All machines visit these rows; those that one of them wants are kept."""
        everyone = self._everyone
        alphas = np.empty((len(everyone), len(rows)))
        self._map(Machine.visit_once, everyone, [rows] * len(everyone), alphas)
        self.deadline.check()
        wanted = self._wanted(self._machines, rows, alphas)
        kept = wanted | self._wanted(self._others, rows, alphas[len(self._machines) :])
        self._active.append(rows.take(np.flatnonzero(kept)), alphas.T[kept])
        return int(wanted.sum())

    def _wanted(self, machines, rows, alphas) -> np.ndarray:
        mask = np.zeros(len(rows), bool)
        for machine, own in zip(machines, alphas, strict=False):
            mask |= machine.wants(rows, own)
        return mask

    @property
    def _n_copies(self) -> int:
        return min(self._config.threads, len(self._machines))

    def _columns(self, n: int):
        """Which of the n dual variables that were kept with a row are those of the problems there are now."""
        met, wanted = n - 1, len(self._machines)
        if self._stream.labels_known or n == 1:
            return slice(None)
        if met == 1 and wanted > 1:
            return [0, 0, *[1] * (wanted - 2)]
        return [*range(met), *[met] * (wanted - met)]

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
            self.deadline.check()
            group = group.part(self._wanted(machines, group.table, alphas))
            if before.alone:
                self._active.adopt(group)
            else:
                self._active.append_all(group)
            del group, alphas
        before.close()
        self._had_others = False
        return visits

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
        self._active.close()
        return super().finish(reason, stopped)

    def close(self) -> None:
        self._active.close()
        super().close()
