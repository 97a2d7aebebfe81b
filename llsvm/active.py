"""The rows that may still matter to a shrinking solver: in memory while they fit, then in a checksummed file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llsvm.blockset import codec, frame_checksum
from llsvm.core import DataError
from llsvm.files import Scratch
from llsvm.reader import ROW, Arena, copied, joined

SEGMENTS, SMALLEST_SEGMENT, LARGEST_SEGMENT = 32, 16 << 10, 4 << 20


@dataclass
class Group:
    """Rows that are in memory together: a table, and alphas[r, k], the dual variable of row r in problem k."""

    table: np.ndarray
    alphas: np.ndarray
    data: list

    def part(self, mask: np.ndarray) -> Group:
        return Group(self.table.take(np.flatnonzero(mask)), self.alphas[mask], self.data)


@dataclass
class _Frame:
    """A segment in the file."""

    n_rows: int
    n_columns: int
    n_bytes: int
    position: int
    size: int
    checksum: str


class _Segment:
    """Rows one behind the other in memory, with their dual variables."""

    def __init__(self, n_bytes: int, n_columns: int, dtype):
        n_bytes += -n_bytes % 8
        n_rows = n_bytes // (ROW.itemsize + 8 * n_columns) + 1
        self._arena = Arena(n_bytes, np.empty(n_rows, ROW), dtype)
        self._alphas = np.empty((n_rows, n_columns))
        self.n_columns, self.full = n_columns, False

    def take(self, rows: np.ndarray, alphas: np.ndarray) -> int:
        """Copies the first of these rows, as many as there is space for; returns how many."""
        before = self._arena.n_rows
        self._arena.take(rows, np.ones(len(rows), bool))
        taken = self._arena.n_rows - before
        self._alphas[before : before + taken] = alphas[:taken]
        self.full = taken < len(rows)
        return taken

    n_rows = property(lambda self: self._arena.n_rows)
    n_bytes = property(lambda self: self._arena.used)
    rows = property(lambda self: self._arena.rows)
    alphas = property(lambda self: self._alphas[: self.n_rows])
    data = property(lambda self: self._arena.data)


def _joined(loaded: list) -> Group:
    """One group of (table, alphas, data) of several segments, of which none is held any longer."""
    tables, alphas, data = (list(parts) for parts in zip(*loaded, strict=True))
    loaded.clear()
    return Group(joined(tables), np.concatenate(alphas), data)


class ActiveRows:
    """Rows in the order in which they were appended.

    `memory` bounds what a group takes, `copies` tables that a solver makes of it included; once rows do not fit, or
    with spilling, all go to the file. Problems may be added while rows are appended: `columns(n)` tells which of the n
    dual variables that a row was appended with are those of all problems.
    """

    def __init__(self, dtype, memory: int, copies: int = 1, columns=None, spilling: bool = False):
        self.memory, self._spilling = memory, spilling
        self._dtype, self.copies = np.dtype(dtype), copies
        self._columns = columns or (lambda n: slice(None))
        self._segments: list[_Segment | _Frame] = []
        self._resident, self._held, self._file, self._end = None, 0, None, 0
        self.n_rows = self.n_groups = 0
        self.alone = True

    def _size(self, segment) -> int:
        # The segment's own table and the group's; a solver's table and order of visits for every copy.
        per_row = 2 * ROW.itemsize + self.copies * (ROW.itemsize + 4) + 32 * segment.n_columns
        return segment.n_bytes + segment.n_rows * per_row

    def append(self, rows: np.ndarray, alphas: np.ndarray) -> None:
        """Takes copies of these rows; alphas[r] are the dual variables of rows[r]."""
        self.n_rows += len(rows)
        while len(rows):
            segment = self._open_segment(int(rows["length"][0]), alphas.shape[1])
            before = self._size(segment)
            taken = segment.take(rows, alphas)
            self._held += self._size(segment) - before
            rows, alphas = rows[taken:], alphas[taken:]
            self._spilling = self._spilling or self._held > self.memory
            if self._spilling and segment.full:
                self._spill()

    def _open_segment(self, length: int, n_columns: int) -> _Segment:
        last = self._segments[-1] if self._segments else None
        if isinstance(last, _Segment) and last.n_columns == n_columns and not last.full:
            return last
        size = min(LARGEST_SEGMENT, max(SMALLEST_SEGMENT, self.memory // SEGMENTS))
        self._segments.append(_Segment(max(size, 16 * length + 16), n_columns, self._dtype))
        return self._segments[-1]

    def append_all(self, group: Group) -> None:
        self.append(group.table, group.alphas)

    def adopt(self, group: Group) -> None:
        """Keeps a group, which is all there is, where it is."""
        self._resident, self.n_rows = group, len(group.table)

    def _spill(self) -> None:
        """Moves all that is in memory to the file."""
        self._file = self._file or Scratch("active")
        for number in range(len(self._segments) - 1, -1, -1):
            if isinstance(self._segments[number], _Frame):
                break
            self._segments[number] = self._write(self._segments[number])
        self._held = 0

    def _write(self, segment: _Segment) -> _Frame:
        table = copied(segment.rows)
        table["data"] -= segment.data.ctypes.data
        parts = table, segment.data[: segment.n_bytes + -segment.n_bytes % 8], segment.alphas
        frame = codec.compress(b"".join(part.tobytes() for part in parts))
        self._file.write(frame, self._end)
        position, self._end = self._end, self._end + len(frame)
        return _Frame(segment.n_rows, segment.n_columns, segment.n_bytes, position, len(frame), frame_checksum(frame))

    def groups(self, keep: bool = False):
        """Yields Groups of as many rows as fit, to be let go before the next is asked for; unless they are kept, they
        are gone from here. alone: there is but one."""
        if self._file:
            self._spill()
        if self._resident:
            self.n_groups = 1
            yield self._give_up()
        segments = self._segments.copy() if keep else self._segments
        while segments:
            loaded, held = [], 0
            while segments and (not loaded or held + self._size(segments[0]) <= self.memory):
                held += self._size(segments[0])
                loaded.append(self._load(segments.pop(0)))
            self.alone = self.alone and not segments
            self.n_groups += 1
            yield _joined(loaded)

    def parts(self, most: int):
        """Yields tables of rows that fit, all of which stay: no more of them together than have, by their "alpha", so
        many dual variables in all."""
        for group in self.groups(keep=True):
            ends, start = np.cumsum(group.table["alpha"]), 0
            while start < len(ends):
                before = ends[start - 1] if start else 0
                end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
                yield group.table[start:end]
                start = end
            del group

    def _give_up(self) -> Group:
        group, self._resident = self._resident, None
        return group

    def _load(self, segment: _Segment | _Frame):
        if isinstance(segment, _Segment):
            return segment.rows, segment.alphas[:, self._columns(segment.n_columns)], segment.data
        n_table, n_data = segment.n_rows * ROW.itemsize, segment.n_bytes + -segment.n_bytes % 8
        size = n_table + n_data + 8 * segment.n_rows * segment.n_columns
        try:
            payload = codec.decompress(self._file.read(segment.size, segment.position), segment.checksum, size,
                                       "the temporary file of active rows")
        except DataError as error:
            raise DataError(error.message, "the disk of TMPDIR gave back other bytes than were written") from None
        data = np.frombuffer(payload, np.uint8, n_data, n_table)
        table = copied(np.frombuffer(payload, ROW, segment.n_rows))
        table["data"] += data.ctypes.data
        alphas = np.frombuffer(payload, np.float64, offset=n_table + n_data).reshape(segment.n_rows, segment.n_columns)
        return table, alphas[:, self._columns(segment.n_columns)], data

    @property
    def bytes_written(self) -> int:
        return self._end

    def close(self) -> None:
        self._segments = []
        if self._file:
            self._file.close()
