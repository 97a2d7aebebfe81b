"""Threads that sweep rows together by marking those that need a step."""

from __future__ import annotations

import numpy as np

from llsvm import _marks
from llsvm.solvers.together import shared_memory, visit_together

# They look at so many bytes of rows at a time, or at that part of the sweep. For each such batch w is copied, if it
# takes no more bytes than the batch, and no more than these.
BATCH_BYTES, BATCHES, LARGEST_COPY = 1 << 22, 8, 1 << 20
MOST_STEPS = 0.75  # of the rows of a sweep: where more need one, a single thread is as fast


class Marks:
    """Gradients of a batch of rows by all threads, then steps by one of them."""

    def __init__(self, n_threads: int, row_bytes: float, n_features: int):
        self._n_helpers = min(n_threads, _marks.MOST_THREADS) - 1
        self._row_bytes, self._w_bytes = row_bytes, 8 * (n_features + 1)
        self._most = int(min(_marks.MOST_ROWS, max(1, BATCH_BYTES // row_bytes)))
        self._none, self._memory = np.empty(0), shared_memory(_marks.SHARED_BYTES)
        self._copy = np.empty(n_features + 1) if self._copies(self._most) else self._none

    def _copies(self, rows: int) -> bool:
        """Whether w is copied for a batch of so many rows."""
        return self._w_bytes <= min(rows * self._row_bytes, LARGEST_COPY)

    def is_worth_it(self, active: int, steps: float) -> bool:
        """Whether to sweep so many rows together, of which those are expected to need a step."""
        return steps <= MOST_STEPS * active

    def sweep(self, pool, *task) -> int:
        """As _dual_cd.sweep."""
        _, _, _, start, end, _, _, sums, _ = task
        most = min(self._most, max(1, (end - start) // BATCHES))
        _marks.prepare(self._memory, self._copy if self._copies(most) else self._none)
        visit_together(_marks, self._memory, most, pool, self._n_helpers, task)
        return int(sums["kept"][0])
