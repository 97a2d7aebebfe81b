"""Dual variables between visits of their rows: in memory, or in a nameless file where they do not fit."""

from __future__ import annotations

import numpy as np

from llsvm.scratch import Scratch

WINDOW = 1 << 15  # numbers read, changed and written together


class Packed:
    """Bytes by key, as many as one likes: in memory as long as all of them fit, then in a nameless file."""

    GARBAGE = 1 << 20  # bytes of a file that no key needs any longer, beside as many as are needed

    def __init__(self, memory: int):
        self._memory, self._held, self.n_bytes = memory, {}, 0
        self._file, self._end = None, 0

    def read(self, key) -> bytes:
        """What was written last; nothing before."""
        found = self._held.get(key, b"")
        return self._file.read(found[1], found[0]) if self._file and found else found

    def write(self, key, data: bytes) -> None:
        before = self._held.get(key, b"")
        self.n_bytes += len(data) - (before[1] if self._file and before else len(before))
        if self._file is None and self.n_bytes > self._memory:
            self._move_to_file()
        if self._file is None:
            self._held[key] = data
            return
        self._append(key, data)
        if self._end > 2 * self.n_bytes + self.GARBAGE:
            self._move_to_file()

    def _append(self, key, data: bytes) -> None:
        if data:
            self._file.write(data, self._end)
        self._held[key] = (self._end, len(data))
        self._end += len(data)

    def _move_to_file(self) -> None:
        """Into a new file, without what is no longer needed."""
        old, before = Packed(0), self._file
        old._held, old._file = self._held, self._file
        self._held, self._file, self._end = {}, Scratch("alpha"), 0
        for key in old._held:
            self._append(key, old.read(key))
        if before:
            before.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


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

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """Of single rows, anywhere."""
        if self._file is None:
            return self._array[positions]
        found = np.empty(len(positions), self._dtype)
        for start, window, chosen in self._windows(positions):
            found[chosen] = window[positions[chosen] - start]
        return found

    def scatter(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Of single rows, anywhere."""
        if self._file is None:
            self._array[positions] = values
            return
        for start, window, chosen in self._windows(positions):
            window[positions[chosen] - start] = values[chosen]
            self.write(start, window)

    def _windows(self, positions: np.ndarray):
        """Yields (start, numbers from there on, which of the positions are among them), until all have been."""
        order, first = np.argsort(positions, kind="stable"), 0
        in_order = positions[order]
        while first < len(order):
            start = int(in_order[first])
            last = int(np.searchsorted(in_order, start + WINDOW))
            yield start, self.read(start, int(in_order[last - 1]) - start + 1).copy(), order[first:last]
            first = last

    def __del__(self):
        """States that are handed on share this: the file is closed when nobody holds it."""
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
