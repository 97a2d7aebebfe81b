"""Threads that sweep rows together, each with a part of the features."""

from __future__ import annotations

import numpy as np

from llsvm import _parts
from llsvm.solvers.together import Together

# Rows of a batch: at first, and at most; sizes are tried for so many batches.
FIRST_ROWS, MOST_ROWS, TRIAL = 2, 4, 256
PART_BYTES = 96  # of a row, at least
BYTES_AHEAD, ROWS_AHEAD = 2560, 12  # of a row's part
# Nonzeros, and bins of features, that tell where to cut.
SAMPLE_NONZEROS, BINS = 1 << 18, 1 << 14


class Parts(Together):
    """Every thread has a part of w; the steps of a batch of rows are found at once (docs/threads.md)."""

    def __init__(self, n_threads: int, row_bytes: float):
        n_parts = max(2, min(n_threads, _parts.MOST_THREADS, int(row_bytes / PART_BYTES)))
        super().__init__(_parts, n_parts, _parts.SHARED_BYTES, FIRST_ROWS, MOST_ROWS, TRIAL)
        self._ahead, self._is_cut = int(min(ROWS_AHEAD, max(1, BYTES_AHEAD * n_parts / row_bytes))), False

    def prepare(self, table, slots: np.ndarray, n_features: int) -> None:
        if not self._is_cut:
            _parts.prepare(self.memory, self._cut(table, slots, n_features), self._ahead)
            self._is_cut = True

    def _cut(self, table, slots: np.ndarray, n_features: int) -> np.ndarray:
        """Parts that have the same number of nonzeros of these rows."""
        shift = max(4, n_features.bit_length() - BINS.bit_length() + 1)
        counts = np.zeros((n_features >> shift) + 1, np.int64)
        step = max(1, int(table["length"][slots].sum(dtype=np.int64)) // SAMPLE_NONZEROS)
        _parts.count_nonzeros(table.take(slots[::step]), shift, counts)
        wanted = counts.sum() * np.arange(1, self.n_threads) / self.n_threads
        bins = np.searchsorted(np.cumsum(counts), wanted) + 1
        return np.array([0, *(bins << shift), n_features], np.int64).clip(max=n_features)
