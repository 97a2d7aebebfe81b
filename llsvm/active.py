"""The rows that may still matter to a shrinking solver: in memory while they fit, then in a checksummed file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llsvm.core import DataError
from llsvm.frames import codec, frame_checksum
from llsvm.reader import ROW, Arena, copy_rows
from llsvm.scratch import Scratch

# Bytes of a row in a problem that it is active in: the problem's number, the row's slot by problem, and marks.
PAIR_BYTES = 8
SEGMENTS, SMALLEST_SEGMENT, LARGEST_SEGMENT = 32, 16 << 10, 4 << 20
NOBODY = np.empty(0, np.uint16)


@dataclass
class Group:
    """Rows that are in memory together: a table, and what each has in every problem, alphas[r, k]. Of shared rows
    alphas[r, 0] is in how many problems a row is active, and owners has the numbers of these (shared.py)."""

    table: np.ndarray
    alphas: np.ndarray
    data: list
    owners: np.ndarray

    def part(self, mask: np.ndarray) -> Group:
        return Group(self.table.take(np.flatnonzero(mask)), self.alphas[mask], self.data, self.owners)


@dataclass
class _Saved:
    """A segment in the file: frames of its table, its data and its dual variables, each with its size and checksum."""

    n_rows: int
    n_columns: int
    n_owners: int
    n_bytes: int
    position: int
    frames: list[tuple[int, str]]


class _Segment:
    """Rows one behind the other in memory, with what they have in every problem."""

    def __init__(self, n_bytes: int, n_columns: int, dtype, kind):
        n_bytes += -n_bytes % 8
        n_rows = n_bytes // (ROW.itemsize + kind.itemsize * n_columns) + 1
        self._arena = Arena(n_bytes, np.empty(n_rows, ROW), dtype)
        self._alphas = np.empty((n_rows, n_columns), kind)
        self.n_columns, self.full = n_columns, False
        self._owners = []

    def take(
        self, rows: np.ndarray, chosen: np.ndarray, alphas: np.ndarray, owners: np.ndarray
    ) -> tuple[int, int, int]:
        """Copies the first of the chosen rows, as many as there is space for; returns how many, how many rows that were
        chosen or not are behind it, and how many owners they have."""
        before = self._arena.n_rows
        seen = self._arena.take(rows, chosen)
        taken = self._arena.n_rows - before
        self._alphas[before : before + taken] = alphas[:taken]
        self.full = seen < len(rows)
        owned = int(alphas[:taken, 0].sum()) if len(owners) else 0
        self._owners += [owners[:owned].copy()] if owned else []
        return taken, seen, owned

    def clear(self) -> None:
        self._arena.clear()
        self._owners, self.full = [], False

    @property
    def owners(self) -> np.ndarray:
        self._owners = [np.concatenate([*self._owners, NOBODY])] if len(self._owners) != 1 else self._owners
        return self._owners[0]

    room = property(lambda self: len(self._arena.data))
    n_rows = property(lambda self: self._arena.n_rows)
    n_bytes = property(lambda self: self._arena.used)
    rows = property(lambda self: self._arena.rows)
    alphas = property(lambda self: self._alphas[: self.n_rows])
    data = property(lambda self: self._arena.data)
    n_owners = property(lambda self: sum(map(len, self._owners)))


class SegmentFile:
    """The nameless file that segments go to where they do not fit memory."""

    def __init__(self, kind):
        self._kind, self.scratch, self.n_bytes = kind, Scratch("active"), 0

    def write(self, segment: _Segment) -> _Saved:
        segment.rows["data"] -= np.uint64(segment.data.ctypes.data)
        parts = segment.rows, segment.data[: segment.n_bytes], segment.alphas, segment.owners
        position, frames = self.n_bytes, []
        for part in parts:
            frame = codec.compress(part.reshape(-1).view(np.uint8))
            self.scratch.write(frame, self.n_bytes)
            self.n_bytes += len(frame)
            frames.append((len(frame), frame_checksum(frame)))
        return _Saved(segment.n_rows, segment.n_columns, segment.n_owners, segment.n_bytes, position, frames)

    def read(self, saved: _Saved, rows: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads a segment's table and data into these; returns its dual variables and owners."""
        alphas, position = np.empty((saved.n_rows, saved.n_columns), self._kind), saved.position
        owners = np.empty(saved.n_owners, np.uint16)
        for (size, checksum), room in zip(saved.frames, (rows, data, alphas, owners), strict=True):
            frame, target = self.scratch.read(size, position), room.reshape(-1).view(np.uint8)
            position += size
            try:
                if len(codec.decompress(frame, checksum, target, "the temporary file of active rows")) < len(target):
                    raise DataError("the temporary file of active rows is truncated")
            except DataError as error:
                raise DataError(error.message, "the disk of TMPDIR gave back other bytes than were written") from None
        rows["data"] += np.uint64(data.ctypes.data)
        return alphas, owners

    def close(self) -> None:
        self.scratch.close()


@dataclass
class RowSizes:
    """Bytes that rows take: themselves, their table, `copies` tables that a solver makes of it, `beside` bytes a row,
    and numbers of number_bytes each."""

    copies: int
    beside: int
    number_bytes: int

    def row_bytes(self, n_columns: int) -> int:
        # A table and an order of visits, of the group and of every copy; the numbers, and where there are copies,
        # as they are kept and loaded, by problem and back.
        numbers = (4 if self.copies else 1) * self.number_bytes * n_columns
        return (1 + self.copies) * (ROW.itemsize + 4) + self.beside + numbers

    def of(self, segment) -> int:
        pairs = PAIR_BYTES * segment.n_owners
        return segment.n_bytes + segment.n_rows * self.row_bytes(segment.n_columns) + pairs


class ActiveRows:
    """Rows with what they have in every problem: numbers of a kind, such as dual variables.

    `memory` bounds what is held, and what a group takes, `copies` tables that a solver makes of it and `beside` bytes a
    row included; what does not fit, or all with spilling, goes to the file. Problems may be added while rows are
    appended: `columns(n)` tells which of the n dual variables that a row was appended with are those of all problems.
    """

    def __init__(self, dtype, memory: int, copies: int = 1, columns=None, spilling: bool = False, beside: int = 0,
                 kind=np.float64):
        self.memory, self._spilling, self._dtype, self._kind = memory, spilling, np.dtype(dtype), np.dtype(kind)
        self.takes = RowSizes(copies, beside, self._kind.itemsize)
        self._columns = columns or (lambda n: slice(None))
        self._segments: list[_Segment | _Saved] = []
        self._resident, self._spare, self._held, self._file = None, None, 0, None
        self.n_rows, self.alone = 0, True

    def append(self, rows: np.ndarray, alphas: np.ndarray, chosen: np.ndarray | None = None, owners=NOBODY) -> None:
        """Takes copies of these rows, or of those chosen by a mask; alphas[r] are the dual variables of the r-th."""
        chosen = np.ones(len(rows), bool) if chosen is None else chosen
        self.n_rows += len(alphas)
        while len(alphas):
            segment = self._open_segment(rows, chosen, alphas.shape[1])
            before = self.takes.of(segment)
            taken, seen, owned = segment.take(rows, chosen, alphas, owners)
            self._held += self.takes.of(segment) - before
            rows, chosen, alphas, owners = rows[seen:], chosen[seen:], alphas[taken:], owners[owned:]
            if segment.full and (self._spilling or self._held + segment.room > self.memory):
                self.spill()

    def _open_segment(self, rows, chosen, n_columns: int) -> _Segment:
        """One that is not full; an empty one has room for any of the chosen rows."""
        last = self._segments[-1] if self._segments else None
        if isinstance(last, _Segment) and last.n_columns == n_columns and not last.full:
            return last
        needed = 16 * int(rows["length"].max(where=chosen, initial=0)) + 16
        segment, self._spare = self._spare, None
        if segment is None or segment.n_columns != n_columns or segment.room < needed:
            segment = _Segment(max(self._segment_bytes, needed), n_columns, self._dtype, self._kind)
        self._segments.append(segment)
        return segment

    @property
    def _segment_bytes(self) -> int:
        return min(LARGEST_SEGMENT, max(SMALLEST_SEGMENT, self.memory // SEGMENTS))

    def adopt(self, group: Group) -> None:
        """Keeps a group, which is all there is, where it is."""
        self._resident, self.n_rows = group, len(group.table)

    def has_room(self, n_rows: int, n_bytes: int, n_owners: int = 0) -> bool:
        """Whether about so many rows of so many bytes can be appended before any go to the file."""
        return self._held + self.size_of(n_rows, n_bytes, n_owners) <= self.memory

    def size_of(self, n_rows: int, n_bytes: int, n_owners: int) -> int:
        """What so many rows take, at most."""
        return n_bytes + n_rows * self.takes.row_bytes(1) + n_owners * PAIR_BYTES + 2 * self._segment_bytes

    @property
    def n_bytes(self) -> int:
        """Of the nonzeros of all rows."""
        return sum(segment.n_bytes for segment in self._segments)

    @property
    def in_memory(self) -> list[_Segment]:
        return [segment for segment in self._segments if isinstance(segment, _Segment)]

    def keep(self, table: np.ndarray, alphas: np.ndarray, chosen: np.ndarray, owners=NOBODY) -> None:
        """Of the rows in memory, whose parts have been joined to this table, only those that are chosen; alphas[r] and
        the owners are those of the r-th of these."""
        self.n_rows += len(alphas) - len(table)
        for segment in self.in_memory:  # a row never moves behind its place, so none is overwritten before it has moved
            segment.clear()
            taken, seen, owned = segment.take(table, chosen, alphas, owners)
            table, chosen, alphas, owners = table[seen:], chosen[seen:], alphas[taken:], owners[owned:]
        self._segments = [segment for segment in self._segments if segment.n_rows]
        self._held = sum(map(self.takes.of, self.in_memory))

    def spill(self) -> None:
        """Moves all that is in memory to the file."""
        self._file = self._file or SegmentFile(self._kind)
        for number in range(len(self._segments) - 1, -1, -1):
            segment = self._segments[number]
            if isinstance(segment, _Saved):
                break
            self._segments[number] = self._file.write(segment)
            segment.clear()
            self._spare = segment
        self._held = 0

    @property
    def fit(self) -> bool:
        """Whether all rows are one group."""
        return sum(map(self.takes.of, self._segments)) <= self.memory

    def groups(self, keep: bool = False):
        """Yields Groups of as many rows as fit, to be let go before the next is asked for; unless they are kept, they
        are gone from here. alone: there is but one."""
        if self._resident:
            group, self._resident = self._resident, None
            yield group
            return
        if self._file and keep:
            self.spill()
        segments = self._segments.copy() if keep else self._segments
        segments.sort(key=lambda segment: isinstance(segment, _Saved))  # what is in memory first, so that it can leave
        self._spare = None
        while segments:
            together, held = [], 0
            while segments and (not together or held + self.takes.of(segments[0]) <= self.memory):
                held += self.takes.of(segments[0])
                together.append(segments.pop(0))
            self.alone = self.alone and not segments
            yield self._load(together)

    def saved(self):
        """Yields (rows, counts, owners) of every segment, all of which are in the file and stay there."""
        self._spare = None
        for saved in self._segments:
            rows, data = np.empty(saved.n_rows, ROW), np.empty(saved.n_bytes, np.uint8)
            alphas, owners = self._file.read(saved, rows, data)
            yield rows, alphas[:, 0].copy(), owners

    def parts(self, most: int):
        """Yields (table, counts) of rows that fit, all of which stay: no more of them together than their counts, the
        numbers kept with them, allow in all."""
        for group in self.groups(keep=True):
            counts, start = group.alphas[:, 0], 0
            ends = np.cumsum(counts)
            while start < len(ends):
                before = ends[start - 1] if start else 0
                end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
                yield group.table[start:end], counts[start:end]
                start = end
            del group

    def _load(self, segments: list[_Segment | _Saved]) -> Group:
        """One group of several segments, of which none is held any longer."""
        n_bytes = [segment.n_bytes + -segment.n_bytes % 8 if isinstance(segment, _Saved) else 0 for segment in segments]
        table, room = np.empty(sum(segment.n_rows for segment in segments), ROW), np.empty(sum(n_bytes), np.uint8)
        alphas, owners, data, start, place = [], [], [room], 0, 0
        while segments:
            segment, size = segments.pop(0), n_bytes.pop(0)
            rows = table[start : start + segment.n_rows]
            if isinstance(segment, _Segment):
                copy_rows(segment.rows, rows)
                data.append(segment.data)
                own = segment.alphas, segment.owners
            else:
                own = self._file.read(segment, rows, room[place : place + segment.n_bytes])
            alphas.append(own[0][:, self._columns(segment.n_columns)])
            owners.append(own[1])
            start, place = start + segment.n_rows, place + size
        return Group(table, np.concatenate(alphas), data, np.concatenate(owners))

    @property
    def bytes_written(self) -> int:
        return self._file.n_bytes if self._file else 0

    def close(self) -> None:
        self._segments = []
        if self._file:
            self._file.close()
