"""The nonzero dual variables of rows, a list each: in memory while their rows are visited, packed between visits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llsvm import _lists
from llsvm.alphas import Packed

ROOM_TO_GROW = 1.5


class Lists(NamedTuple):
    """The nonzero alphas of rows one behind the other: how many each row has, their classes and values."""

    counts: np.ndarray
    labels: np.ndarray
    values: np.ndarray

    @classmethod
    def from_bytes(cls, data: bytes, n_rows: int) -> Lists:
        if not data:
            return cls(np.zeros(n_rows, np.int32), np.empty(0, np.int32), np.empty(0))
        n = (len(data) - 4 * n_rows) // 12
        numbers = np.frombuffer(data, np.int32, offset=8 * n)
        return cls(numbers[:n_rows], numbers[n_rows:], np.frombuffer(data, np.float64, n))

    def to_bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in (self.values, self.counts, self.labels)) if len(self.values) else b""

    def part(self, rows: np.ndarray) -> Lists:
        """Of these rows, which rise."""
        if len(rows) == len(self.counts):
            return self
        wanted = self._entries(rows)
        return Lists(self.counts[rows], self.labels[wanted], self.values[wanted])

    def replaced(self, rows: np.ndarray, part: Lists) -> Lists:
        """With other alphas for these rows."""
        if len(rows) == len(self.counts):
            return part
        counts, n = self.counts.copy(), len(self.values) + len(part.values) - int(self.counts[rows].sum())
        counts[rows] = part.counts
        lists = Lists(counts, np.empty(n, np.int32), np.empty(n))
        before, after = self._entries(rows), lists._entries(rows)
        for new, replacing, old in zip(lists[1:], part[1:], self[1:], strict=True):
            new[after], new[~after] = replacing, old[~before]
        return lists

    def _entries(self, rows) -> np.ndarray:
        is_wanted = np.zeros(len(self.counts), bool)
        is_wanted[rows] = True
        return np.repeat(is_wanted, self.counts)


class SparseAlphas:
    """The lists of rows that are visited: by slot the first node, 0 for none, and the nodes (_lists.pxd)."""

    NODE_BYTES = _lists.NODE.itemsize

    def __init__(self, n_rows: int, n_classes: int):
        self.head, self.nodes, self._n_classes = np.zeros(n_rows, np.int32), np.zeros(1, _lists.NODE), n_classes
        self.grow()

    def grow(self) -> None:
        """In place: no copy stands beside it. A visit needs two free nodes a class."""
        before, most = len(self.nodes), 1 + (len(self.head) + 3) * self._n_classes
        more = max(4 * self._n_classes, len(self.head), int((ROOM_TO_GROW - 1) * before))
        after = min(before + more, most)
        self.nodes.resize(after, refcheck=False)
        self.nodes["next"][before:after] = np.arange(before + 1, after + 1)
        self.nodes["next"][-1] = self.nodes["next"][0]
        self.nodes["next"][0] = before
        self.nodes["label"][0] += after - before

    @property
    def n_free(self) -> int:
        return int(self.nodes["label"][0])

    def unpack(self, start: int, lists: Lists) -> None:
        """Gives the rows from this one on, which have none yet, their alphas."""
        while self.n_free < len(lists.values):
            self.grow()
        _lists.unpack(*lists, self.head[start : start + len(lists.counts)], self.nodes)

    def pack(self, start: int, end: int) -> Lists:
        """Those of rows start to end."""
        head, counts = self.head[start:end], np.empty(end - start, np.int32)
        n = _lists.pack(head, self.nodes, counts, np.empty(0, np.int32), np.empty(0))
        lists = Lists(counts, np.empty(n, np.int32), np.empty(n))
        if n:
            _lists.pack(head, self.nodes, *lists)
        return lists


class PackedAlphas:
    """The lists of all rows of a block set, packed together for so many rows of a chunk.

    Rows that are visited in rounds may have theirs under a number meanwhile.
    """

    def __init__(self, memory: int, chunk_rows: np.ndarray, most_rows: int):
        self._packed, self._chunk_rows, self._most_rows = Packed(memory), chunk_rows, most_rows

    def parts(self, rows):
        """Rows that are visited together: as many runs as have so many rows."""
        bounds, first = [start for start, _, _ in self._runs(rows)] + [len(rows)], 0
        for number in range(1, len(bounds)):
            if number == len(bounds) - 1 or bounds[number + 1] - bounds[first] > self._most_rows:
                yield rows[bounds[first] : bounds[number]]
                first = number

    def _runs(self, rows):
        """Yields (start, end, key) of rows of one chunk whose lists are kept together, under this key."""
        chunks, places = rows["chunk"], rows["place"] // self._most_rows
        starts = np.flatnonzero((np.diff(chunks) != 0) | (np.diff(places) != 0)) + 1
        for start, end in zip([0, *starts.tolist()], [*starts.tolist(), len(rows)], strict=True):
            yield start, end, (int(chunks[start]), int(places[start]))

    def unpack(self, rows, alphas: SparseAlphas, number: int | None = None) -> None:
        """Gives alphas, which are empty, those of these rows."""
        if number is not None:
            alphas.unpack(0, Lists.from_bytes(self._packed.read(number), len(rows)))
            return
        for start, end, key in self._runs(rows):
            alphas.unpack(start, self._lists(key).part(self._places(rows, start, end)))

    def pack(self, rows, alphas: SparseAlphas, number: int | None = None) -> np.ndarray | None:
        """Takes those of these rows; returns how many are nonzero by row, unless they are to stand under a number."""
        if number is not None:
            self._packed.write(number, alphas.pack(0, len(rows)).to_bytes())
            return None
        counts = np.empty(len(rows), np.int32)
        for start, end, key in self._runs(rows):
            lists = alphas.pack(start, end)
            counts[start:end] = lists.counts
            self._packed.write(key, self._lists(key).replaced(self._places(rows, start, end), lists).to_bytes())
        return counts

    def end_rounds(self, number: int) -> None:
        self._packed.write(number, b"")

    def _lists(self, key) -> Lists:
        chunk, number = key
        n_rows = min(self._most_rows, int(self._chunk_rows[chunk]) - number * self._most_rows)
        return Lists.from_bytes(self._packed.read(key), n_rows)

    def _places(self, rows, start: int, end: int) -> np.ndarray:
        return rows["place"][start:end] % self._most_rows

    def close(self) -> None:
        self._packed.close()
