"""Sweeps of the active rows of a problem between two passes over all rows (docs/out-of-core.md)."""

from __future__ import annotations

import numpy as np

from llsvm.solvers.dual_cd import DualCD, Extrapolation
from llsvm.solvers.visitor import OwnAlphas

LITTLE, MENDING = 0.3, 2  # of the tolerance; sweeps
# After a pass the active rows are swept so often, or with so many visits by rows of the data if these are fewer; and
# then, up to MOST_VISITS, until they have no more than this part of the gap.
SWEEPS, VISITS, MOST_VISITS, DEPTH = 30, 2, 100, 0.1
# Where the active rows of a problem do not all fit memory, they are swept so many times before the next are loaded.
SWEEPS_AT_A_TIME = 3


class Sweeps:
    """How often the n_active rows of a problem are swept, and when they have little enough of the gap that its pass
    found: all at once, or in rounds, some after the others. inner: so often, if that was said."""

    def __init__(self, cd: DualCD, alphas: OwnAlphas, n_active: int, gap: float, inner: int | None):
        self._cd, self._alphas, self._n_active = cd, alphas, max(1, n_active)
        by_rows = alphas.n_rows / self._n_active
        self._least = inner or max(1, round(min(SWEEPS, VISITS * by_rows)))
        self._most = inner or max(self._least, round(MOST_VISITS * by_rows))
        self._far, self._made, self._round_gap = DEPTH * gap, 0, 0.0

    def to_the_end(self, table) -> None:
        """Of rows that are all active ones, or that tell nearly all about w."""
        self._sweep(table, self._least, self._most)

    # --- rounds

    def begin_round(self) -> None:
        self._round_gap = 0.0

    @property
    def _at_a_time(self) -> int:
        return min(-(-self._least // max(1, round(self._least / SWEEPS_AT_A_TIME))), self._most - self._made)

    def a_little(self, table) -> None:
        """Of some of the active rows, round after round."""
        self._sweep(table, self._at_a_time, self._at_a_time)
        self._round_gap += self._cd.state["gap"]

    def end_round(self) -> bool:
        """Whether it was the last."""
        self._made += self._at_a_time
        enough = self._made >= self._least and self._round_gap <= self._far
        return self._made >= self._most or enough or self._is_little(self._round_gap, self._n_active)

    # --- rows in memory

    def _is_little(self, gap: float, n_rows: int) -> bool:
        """Whether so many of the active rows, which have this gap, have next to nothing of it."""
        return gap <= LITTLE * self._cd.problem.tolerance * self._cd.dual * n_rows / self._n_active

    def _sweep(self, table, least: int, most: int) -> None:
        """So many sweeps of these rows; fewer, where they have next to nothing of the gap left; and more, as long as
        they have much of it."""
        if not len(table):
            return
        cd, duals, order = self._cd, self._alphas.load(table), np.arange(len(table), dtype=np.int32)
        far = self._far * len(table) / self._n_active
        extrapolation, n_active, fresh = Extrapolation(order.copy()), len(order), True
        for number in range(1, most + 1):
            before = n_active
            n_active = cd.sweep(table, duals, order, n_active, shrink=True, fresh=fresh, counting=False)
            cd.narrow()
            cd.deadline.check()
            gap, fresh = cd.state["gap"], False
            if self._is_little(gap, len(table)) or number >= least and gap <= far:
                if before == len(order):
                    break
                n_active, fresh = len(order), True
            if number <= most - MENDING:  # sweeps, for w where bounds stood in the way
                fresh |= cd.follow(extrapolation, table, duals)
        self._alphas.keep(table, duals)
