"""Several threads on one problem: which way of sweeping together suits the rows."""

from __future__ import annotations

from llsvm.pool import Pool
from llsvm.solvers.copies import Copies
from llsvm.solvers.marks import Marks
from llsvm.solvers.parts import Parts
from llsvm.solvers.together import sweep

# Threads sweep rows of so many bytes together. How depends on what a row takes, and on what copies of w would.
SMALLEST_SWEEP, SHORT_ROW, LONG_ROW, LARGEST_COPIES = 1 << 19, 192, 1 << 10, 2 << 20


class Team:
    """Threads that sweep rows together, in the way that suits the rows (docs/threads.md)."""

    def __init__(self, n_threads: int, description, bounded: bool):
        self._n_threads, self._n_features = n_threads, description.n_features
        self._row_bytes = 8 * max(1, description.n_nonzeros) / description.n_rows
        self._pool = Pool(n_threads - 1)
        self._together, self._marks = self._choose_way(bounded), None

    @property
    def cuts_rows(self) -> bool:
        """Whether rows must be sorted by feature number."""
        return isinstance(self._together, Parts)

    def _choose_way(self, bounded: bool):
        """How rows are swept together, or None if they are too short to do without marks, or alphas have no bound."""
        if self._row_bytes < SHORT_ROW or not bounded:
            return None
        if self._row_bytes < LONG_ROW and 8 * self._n_threads * self._n_features <= LARGEST_COPIES:
            return Copies(self._n_threads, self._row_bytes, self._n_features)
        return Parts(self._n_threads, self._row_bytes)

    def sweep(self, *task) -> int:
        """As _dual_cd.sweep."""
        _, _, _, start, end, _, _, sums, _ = task
        if (end - start) * self._row_bytes < SMALLEST_SWEEP:
            return sweep(*task)
        if self._together and self._together.rows:
            return self._together.sweep(self._pool, *task)
        self._marks = self._marks or Marks(self._n_threads, self._row_bytes, self._n_features)
        if not self._marks.is_worth_it(end - start, sums["steps"][0]):
            return sweep(*task)
        return self._marks.sweep(self._pool, *task)

    def close(self) -> None:
        self._pool.shutdown()
