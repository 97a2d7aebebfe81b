"""Threads that sweep rows at once, without waiting for each other's steps."""

from __future__ import annotations

import numpy as np

from llsvm import _dual_cd
from llsvm.evaluate import dot

# A thread has twice as many rows at once where D gains this share of what their steps should add to it, and half as
# many where it gains less than that. A gain below this share of D is not judged.
GOOD, BAD, SMALLEST_GAIN = 0.8, 0.5, 1e-10
LINE, MOST_SWEEPS_ALONE = 64, 8
sweep = _dual_cd.sweep  # by one thread


def half_square(w: np.ndarray) -> float:
    return 0.5 * dot(w, w)


def dual_at(sums: np.ndarray, square: float) -> float:
    """The dual value, w.w / 2 being known."""
    return float(sums["sum_alpha"][0] - sums["sum_square"][0]) - square


def shared_memory(n_bytes: int) -> np.ndarray:
    """Bytes, all 0, from the begin of a cache line on."""
    room = np.zeros(n_bytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + n_bytes]


def visit_together(kernel, memory: np.ndarray, rows: int, pool, n_helpers: int, task) -> bool:
    """The sweep that kernel.sweep(*task, memory) makes with so many other threads, so many rows going together; returns
    whether the others were there to the end."""
    kind, helping = task[-1], []
    kernel.convene(memory, rows, n_helpers)
    try:
        for _ in range(n_helpers):
            helping.append(pool.submit(kernel.help, memory, kind))
        return kernel.sweep(*task, memory)
    finally:
        kernel.dismiss(memory)
        for help in helping:
            if not help.cancel():  # one that has not begun is not waited for
                help.result()


class Together:
    """What copies and parts have in common: how many rows go together, and threads that come late.

    rows: how many of them do; 0 if no two. A trial that goes badly is undone. Alphas must have a bound: without one,
    steps that harm each other could take them anywhere in a single sweep.
    """

    def __init__(self, kernel, n_threads: int, n_bytes: int, first: int, most: int, trial: int):
        self.kernel, self.n_threads, self.memory = kernel, n_threads, shared_memory(n_bytes)
        self.rows, self._least, self._most, self._trial = first, first // 2, max(first, most), trial
        self._alone, self._patience = 0, 1

    def sweep(self, pool, table, duals, order, start: int, active: int, w, codes, sums, kind) -> int:
        """As _dual_cd.sweep, which goes on where no two rows go together. Until it is known how many do, there are
        trials on the way."""
        self.prepare(table, order[start:active], len(w) - 1)
        dual = dual_at(sums, half_square(w))
        while start < active and self.rows:
            end, before = active, None
            if self.rows < self._most:
                end = min(active, start + self._trial * self.rows)
                slots = order[start:end].copy()
                before = duals["alpha"][slots], w.copy(), sums[["sum_alpha", "sum_square"]].copy(), dual
            self._visit(pool, table, duals, order, start, end, w, codes, sums, kind)
            expected = sums["expected"][0]
            is_small, last, dual = expected <= SMALLEST_GAIN * abs(dual), dual, dual_at(sums, half_square(w))
            if not is_small and not self._judge((dual - last) / expected) and before:
                duals["alpha"][slots], w[:], sums[["sum_alpha", "sum_square"]], dual = before
            start = end
        if start < active:
            sweep(table, duals, order, start, active, w, codes, sums, kind)
        return int(sums["kept"][0])

    def _visit(self, pool, *task) -> None:
        """By all threads or, for a while after one came late, by this one."""
        n_helpers = 0 if self._alone else self.n_threads - 1
        helped = visit_together(self.kernel, self.memory, self.rows, pool, n_helpers, task)
        if self._alone:
            self._alone -= 1
        elif helped:
            self._patience = 1
        else:
            self._alone, self._patience = self._patience, min(2 * self._patience, MOST_SWEEPS_ALONE)

    def _judge(self, share: float) -> bool:
        """D has gained this share of what was expected. False if that is bad."""
        is_bad = not share >= BAD
        if not share >= GOOD:
            self.rows //= 2 if is_bad else 1
            self.rows = self._most = self.rows if self.rows >= self._least else 0
        self.rows = min(2 * self.rows, self._most)
        return not is_bad
