"""Rows in memory: arenas that chunks are decoded into, and all the rows of a data set."""

from __future__ import annotations

import numpy as np

from llsvm import _reader
from llsvm.blockset import BlockSet, Decoder
from llsvm.core import Block, DataError, Description
from llsvm.pool import Pool

# Of a row in memory: what is known of it, and what it has in one problem (cython_src/_sparse.pxd, _dual.pxd). In data
# that are all in memory they stand side by side, on as few cache lines as can be.
ROW, DUAL = _reader.ROW, _reader.DUAL
RECORD = np.dtype([("row", ROW), ("dual", DUAL)])
# Rows from text are gathered in stretches of this size. From 4 MB up NumPy asks for large pages, so that the end of one
# that is not used may take a page.
SLAB, LARGE_ARRAY, LARGE_PAGE = 16 << 20, 4 << 20, 2 << 20
SORT_PARTS = 16  # of all rows, which threads sort
LARGEST_NORM = float(np.finfo(np.float32).max)


def rows_bytes(n_rows: int, n_nonzeros: int, value_size: int, index_size: int = 4) -> int:
    """Memory of rows in an arena, an entry in the visiting order included (at most: a row may be padded)."""
    return arena_bytes(n_rows, n_nonzeros, value_size, index_size) + n_rows * (RECORD.itemsize + 4)


def arena_bytes(n_rows: int, n_nonzeros: int, value_size: int, index_size: int = 4) -> int:
    return n_nonzeros * (index_size + value_size) + n_rows * (value_size - index_size)


def index_size(n_features: int) -> int:
    """Bytes of a feature number in memory, at most."""
    return 2 if n_features <= 1 << 16 else 4


shuffle = _reader.shuffle


def joined(tables: list[np.ndarray], table: np.ndarray) -> np.ndarray:
    """Copies these tables into one."""
    start = 0
    for part in tables:
        copy_rows(part, table[start : start + len(part)])
        start += len(part)
    return table


def block_of(rows: np.ndarray, dtype) -> Block:
    """Copies these rows of a table, side by side."""
    lengths = int(rows["length"].sum())
    codes, indptr = np.empty(len(rows), np.uint16), np.empty(len(rows) + 1, np.int64)
    features, values = np.empty(lengths, np.int32), np.empty(lengths, dtype)
    _reader.unpack(rows, codes, indptr, features, values)
    return Block(codes, indptr, features, values)


def copy_rows(table: np.ndarray, target: np.ndarray) -> None:
    as_bytes = f"V{ROW.itemsize}"  # field by field NumPy takes ten times as long
    target.view(as_bytes)[:] = table.view(as_bytes)


def divide(codes: np.ndarray, n_labels: int, n_folds: int, first: int = 0) -> None:
    """Label codes become codes of labels in folds, label + n_labels * fold: the k-th row of a label goes to fold
    (first + k) mod n_folds, so that every fold has as many of each label, give or take one."""
    _reader.divide(codes, n_labels, n_folds, first, np.empty(n_labels, np.uint16))


def groups(order, sizes, rows, most_bytes: int, most_rows: int):
    """Chunks in this order, in groups that an arena of so many bytes and rows can hold."""
    group, n_bytes, n_rows, sizes, rows = [], 0, 0, sizes.tolist(), rows.tolist()
    for chunk in order.tolist():
        if group and (n_bytes + sizes[chunk] > most_bytes or n_rows + rows[chunk] > most_rows):
            yield group
            group, n_bytes, n_rows = [], 0, 0
        group.append(chunk)
        n_bytes, n_rows = n_bytes + sizes[chunk], n_rows + rows[chunk]
    if group:
        yield group


class Arena:
    """Rows side by side in one stretch of memory, described by a table."""

    def __init__(self, n_bytes: int, rows: np.ndarray, dtype, room: np.ndarray | None = None):
        self.dtype = np.dtype(dtype)
        self._room = np.empty(max(8, n_bytes), np.uint8) if room is None else room
        self._table = rows
        self.n_rows = self.used = 0
        self.largest_square = 0.0

    @property
    def rows(self) -> np.ndarray:
        return self._table[: self.n_rows]

    @property
    def data(self) -> np.ndarray:
        """The bytes that the rows stand in."""
        return self._room

    @property
    def space(self) -> tuple[int, int]:
        """Bytes and rows that can still be added."""
        return len(self._room) - self.used, len(self._table) - self.n_rows

    def clear(self) -> None:
        self.n_rows = self.used = 0

    def add(self, codes, lengths, features, values, chunk: int) -> None:
        self._check_length(self._lay_out(codes, lengths, features, values, chunk))

    def add_chunk(self, decoder: Decoder, chunk: int) -> None:
        """Adds the rows of a chunk of a block set, which must be what the set says."""
        codes, lengths, features, values = decoder.decode(chunk)
        if decoder.blocks.n_folds > 1:
            divide(codes, decoder.blocks.n_labels, decoder.blocks.n_folds, chunk)
        square = self._lay_out(codes, lengths, features, values, chunk)
        decoder.check_norm(chunk, values, square)
        self._check_length(square)

    def _lay_out(self, codes, lengths, features, values, chunk: int) -> float:
        """The largest squared norm of these rows, infinite where a value is no number."""
        table = self._table[self.n_rows : self.n_rows + len(codes)]
        used, square = _reader.fill(codes, lengths, features, values, chunk, self._room[self.used :], table)
        self.used += used
        self.n_rows += len(codes)
        self.largest_square = max(self.largest_square, square)
        return square

    def _check_length(self, square: float) -> None:
        if not square < LARGEST_NORM**2:
            raise DataError("a row is longer than 3.4e38", "scale the values of the data")

    def take(self, rows: np.ndarray, mask: np.ndarray) -> int:
        """Adds copies of these rows of another arena, while there is space; returns how many were looked at."""
        if self.used == len(self._room) or self.n_rows == len(self._table):
            return 0
        n_rows, n_bytes, seen = _reader.copy(
            rows, mask.view(np.uint8), self._room[self.used :], self._table[self.n_rows :], self.dtype.itemsize
        )
        self.n_rows += n_rows
        self.used += n_bytes
        return seen


class Resident:
    """A data set whose rows are all in memory: read from a block set, or straight from text."""

    where = "in memory"

    def __init__(self, records: np.ndarray, data: list, description: Description, feature_ids, bytes_read: int,
                 is_sorted: bool = True):
        self.table, self.duals = records["row"], records["dual"]
        self._data, self._is_sorted = data, is_sorted
        self.description, self.feature_ids, self.bytes_read = description, feature_ids, bytes_read
        self.kind, self.dense = np.zeros(1, description.dtype), None  # the rows as a matrix, if they are one

    @property
    def rows(self) -> np.ndarray:
        return self.table

    @property
    def n_rows(self) -> int:
        return self.description.n_rows

    @property
    def n_bytes(self) -> int:
        """Of the rows, and an order of visits."""
        d = self.description
        return rows_bytes(d.n_rows, d.n_nonzeros, d.dtype.itemsize, index_size(d.n_features))

    def sort(self, run) -> None:
        """Every row by feature number: in text they stand by id. run: map, or that of a pool of threads."""
        if not self._is_sorted:
            longest = int(self.table["length"].max(initial=1))
            list(run(lambda rows: _reader.sort_rows(rows, longest, self.kind), np.array_split(self.table, SORT_PARTS)))
        self._is_sorted = True

    def release(self) -> None:
        """Frees the rows; what describes them stays."""
        self.table = self.duals = self._data = self.dense = None


def load(blocks: BlockSet, threads: int) -> Resident:
    """A whole block set in memory, decoded by several threads."""
    records = np.zeros(blocks.n_rows, RECORD)
    shares = [share for share in np.array_split(np.arange(blocks.n_chunks), 4 * threads) if len(share)]
    ends = np.cumsum([0, *(int(blocks.chunk_rows[share].sum()) for share in shares)])
    sizes = blocks.dtype.itemsize, index_size(blocks.n_features)

    def load_share(share, start, end):
        n_bytes = arena_bytes(end - start, int(blocks.chunk_nonzeros[share].sum()), *sizes)
        arena, decoder = Arena(n_bytes, records["row"][start:end], blocks.dtype), Decoder(blocks)
        for chunk in share.tolist():
            arena.add_chunk(decoder, chunk)
        return arena.data

    with Pool(threads) as pool:
        data = list(pool.map(load_share, shares, ends[:-1].tolist(), ends[1:].tolist()))
    blocks.close()
    return Resident(records, data, blocks.description, blocks.feature_ids, int(blocks.chunk_bytes.sum()))


class Gatherer:
    """Takes Blocks into memory as long as they fit, with `reserve` bytes beside; `spill` gives them back in order."""

    def __init__(self, dtype, memory: int):
        self._dtype, self._memory, self.reserve = np.dtype(dtype), memory, 0
        self._arenas, self.n_rows, self.n_nonzeros = [], 0, 0
        self._slab, self._held = np.empty(0, np.uint8), 0

    def add(self, block: Block) -> bool:
        """False where the block no longer fits (and is not taken)."""
        n_rows = self.n_rows + block.n_rows
        size = arena_bytes(block.n_rows, block.n_nonzeros, self._dtype.itemsize)
        slab_bytes = min(SLAB, self._memory // 16)
        slab_bytes = max(size + 8, slab_bytes if slab_bytes >= 4 * LARGE_ARRAY else min(slab_bytes, LARGE_ARRAY - 1))
        unused = LARGE_PAGE if slab_bytes >= LARGE_ARRAY else 0
        # Tables are joined at the end, so for a moment there are two; what training takes comes later.
        needed = self._held + size + unused + n_rows * (RECORD.itemsize + 4)
        if needed + max(self.reserve, n_rows * RECORD.itemsize) > self._memory:
            return False
        if len(self._slab) < size + 8:
            self._slab = np.empty(slab_bytes, np.uint8)
            self._held += unused
        arena = Arena(size, np.empty(block.n_rows, ROW), self._dtype, room=self._slab)
        arena.add(block.codes, np.diff(block.indptr).astype(np.int32), block.features, block.values, 0)
        used = arena.used + -arena.used % 8
        self._slab, self._held = self._slab[used:], self._held + used
        self._arenas.append(arena)
        self.n_rows, self.n_nonzeros = n_rows, self.n_nonzeros + block.n_nonzeros
        return True

    @property
    def largest_square(self) -> float:
        return max((arena.largest_square for arena in self._arenas), default=0.0)

    def finish(self, description: Description, feature_ids, bytes_read: int) -> Resident:
        records = np.zeros(self.n_rows, RECORD)
        joined([arena.rows for arena in self._arenas], records["row"])
        data = [arena.data for arena in self._arenas]
        return Resident(records, data, description, feature_ids, bytes_read, is_sorted=False)

    def spill(self):
        """The Blocks again, in order, each freed when the next is asked for."""
        self._arenas.reverse()
        self._slab = None
        while self._arenas:
            block = block_of(self._arenas[-1].rows, self._dtype)
            self._arenas.pop()
            yield block
