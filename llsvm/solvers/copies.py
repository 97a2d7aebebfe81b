"""Threads that sweep rows together, each with rows of its own and a copy of w."""

from __future__ import annotations

import numpy as np

from llsvm import _copies
from llsvm.solvers.together import Together

# Stretches of so many rows are tried for so many rounds. They grow until the rows of one take so many times the bytes
# of w, which is merged and copied after it.
FIRST_STRETCH, TRIAL, ROWS_BY_W = 64, 2, 8


class Copies(Together):
    """Every thread visits a stretch of rows at its copy of w; then the copies are merged (docs/threads.md)."""

    ROW_BYTES = 1

    def __init__(self, n_threads: int, row_bytes: float, n_features: int):
        n_threads = min(n_threads, _copies.MOST_THREADS)
        most = int(ROWS_BY_W * 8 * n_features / row_bytes)
        super().__init__(_copies, n_threads, _copies.SHARED_BYTES, FIRST_STRETCH, most, TRIAL * n_threads)
        self._copies, self._marks = np.empty((n_threads, n_features)), np.empty(0, np.int8)

    def prepare(self, table, slots: np.ndarray, n_features: int) -> None:
        if len(self._marks) < len(slots):
            self._marks = np.empty(len(slots), np.int8)
            _copies.prepare(self.memory, self._copies, self._marks)
