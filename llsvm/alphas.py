"""Dual variables between visits of their rows: in memory, or in a nameless file where they do not fit."""

from __future__ import annotations

import numpy as np

from llsvm.files import Scratch

WINDOW = 1 << 15  # numbers read, changed and written together


class Alphas:
    """One number a row, all 0 at first, read and written by runs of rows."""

    def __init__(self, n_rows: int, dtype, in_memory: bool):
        self._dtype, self.on_disk = np.dtype(dtype), not in_memory
        self.n_bytes = self._dtype.itemsize * n_rows
        self._array = self._file = None
        if in_memory:
            self._array = np.zeros(n_rows, dtype)
        else:
            self._file = Scratch("alpha", self._dtype.itemsize * n_rows)

    def read(self, start: int, count: int) -> np.ndarray:
        if self._file is None:
            return self._array[start : start + count]
        size = self._dtype.itemsize
        return np.frombuffer(self._file.read(size * count, size * start), self._dtype)

    def write(self, start: int, values: np.ndarray) -> None:
        if self._file is None:
            self._array[start : start + len(values)] = values
            return
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8)
        self._file.write(data, self._dtype.itemsize * start)

    def scatter(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Single rows, anywhere."""
        if self._file is None:
            self._array[positions] = values
            return
        order = np.argsort(positions, kind="stable")
        positions, values = positions[order], values[order]
        first = 0
        while first < len(positions):
            start = int(positions[first])
            last = int(np.searchsorted(positions, start + WINDOW))
            window = self.read(start, int(positions[last - 1]) - start + 1).copy()
            window[positions[first:last] - start] = values[first:last]
            self.write(start, window)
            first = last

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
