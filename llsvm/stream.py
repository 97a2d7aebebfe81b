"""Rows that come by arena by arena: text in its own order, a block set in random groups of chunks, or all at once."""

from __future__ import annotations

import time

import numpy as np

from llsvm.blockset import BlockSet
from llsvm.core import DataError, Description, LlsvmError
from llsvm.features import FeatureMap
from llsvm.memory import BUFFERS
from llsvm.prefetch import Prefetcher
from llsvm.reader import ROW, Arena, Resident, arena_bytes, groups, rows_bytes, shuffle
from llsvm.sources import open_sources, reserved_bytes, reserved_of
from llsvm.text import Labels, scan_blocks, scan_bytes

GROUP_SHARE = 0.06
READ_ON = 1 << 30  # bytes of text: as many are read only to say how much memory would do


def _no_bytes(room: int) -> int:
    """What reading takes that depends on the bytes for arrays, where that is settled beforehand."""
    return 0


class TextStream:
    """What is known of the data grows while it is read. Files can be read again; a pipe cannot."""

    labels_known, where, resident = False, "read once", False

    def __init__(
        self, sources, paths, threads: int, zero_based: bool, precision: str, memory: int, many_labels: bool = False
    ):
        self._sources, self._paths = sources, paths
        self._threads, self._zero_based, self._reserved = threads, zero_based, reserved_bytes(sources)
        self._memory = memory - self._reserved
        self._labels, self._features = Labels(many_labels), FeatureMap(self._memory, self._reserved)
        self.dtype, self.repeatable = np.dtype(precision), all(source.size is not None for source in sources)
        self._n_rows = self._n_nonzeros = self._bytes_before = 0
        self._square, self._read_before, self._is_reading = 0.0, None, False
        self.wait, self.progress, self._blocks = 0.0, _ignore, None

    labels = property(lambda self: self._labels.names)
    n_features = property(lambda self: self._features.n_features)
    largest_norm = property(lambda self: float(np.sqrt(self._square)))
    names = property(lambda self: [source.name for source in self._sources][:10])
    bytes_read = property(lambda self: self._bytes_before + sum(source.position for source in self._sources))
    n_bytes = property(lambda self: self._features.n_bytes + self.reading_bytes(self._memory + self._reserved))

    def reading_bytes(self, room: int) -> int:
        """While text is read with so many bytes for arrays: pieces of it, and what is set aside for decompressing."""
        reserved = reserved_of(room, self._reserved)
        return max(0, scan_bytes(room - reserved, self._threads) - BUFFERS) + reserved if self._is_reading else 0

    @property
    def description(self) -> Description | None:
        """None until all has been read."""
        return self._read_before and Description(
            self._n_rows, self.n_features, self._n_nonzeros, self.labels, self._counts, self.largest_norm,
            self._zero_based, self.dtype, self._read_before,
        )

    def feature_ids(self) -> np.ndarray:
        return np.asarray(self._features.ids)

    def arenas(self, number: int = 1):
        """Yields an arena and an order of visits, both valid until the next are asked for; labels, n_features and
        largest_norm cover it. number: of the pass; there is but one."""
        for arena in self._read():
            self._n_rows += arena.n_rows
            self._n_nonzeros += int(arena.rows["length"].sum())
            self._square = max(self._square, arena.largest_square)
            yield arena, np.arange(arena.n_rows, dtype=np.int32)
        self._counts = np.array(self._labels.counts)
        self._read_before = [source.description() for source in self._sources]

    def read_on(self) -> bool:
        """Reads the rest of a file for its labels and ids alone, if that does not take long; True if they are known
        now. Rows are of no use any more."""
        rest = [READ_ON + 1 if source.size is None else source.size - source.position for source in self._sources]
        if not self._blocks or sum(rest) > READ_ON:
            return False
        self._features.allow(2 * BUFFERS)  # of the floor: rows and weights are gone
        try:
            for _ in self._blocks:
                pass
        except LlsvmError:
            return False
        self._is_reading = True  # as it was when there was too little room
        return True

    def stop(self) -> None:
        """No more will be read: what is known is known of the rows so far."""
        self.repeatable, self._counts = False, np.array(self._labels.counts)
        self._read_before = [source.description() for source in self._sources if source.position]

    def again(self):
        """The same rows for one more look."""
        memory = self._memory + self._reserved
        self._bytes_before, self._sources = self.bytes_read, open_sources(self._paths, memory)
        known = len(self.labels), self.n_features
        changed = DataError(f"{', '.join(self._paths)}: changed between the first reading and the second")
        for arena in self._read():
            if (len(self.labels), self.n_features) != known:
                raise changed
            yield arena
        if [source.description() for source in self._sources] != self._read_before:
            raise changed

    def _read(self):
        total = sum(source.size or 0 for source in self._sources) or None
        self._is_reading = True
        arena = Arena(0, np.empty(0, ROW), self.dtype)
        blocks = scan_blocks(self._sources, self._labels, self._features, self._threads, zero_based=self._zero_based,
                             dtype=self.dtype, memory=self._memory)
        self._blocks = blocks
        for number, block in enumerate(self._timed(blocks)):
            self.progress("reading", sum(source.position for source in self._sources), total)
            size = arena_bytes(block.n_rows, block.n_nonzeros, self.dtype.itemsize)
            arena.clear()
            if arena.space[0] < size or arena.space[1] < block.n_rows:
                arena = Arena(size * 5 // 4, np.empty(block.n_rows * 5 // 4 + 1, ROW), self.dtype)
            arena.add(block.codes, np.diff(block.indptr).astype(np.int32), block.features, block.values, number)
            if arena.n_rows:
                yield arena
        self._is_reading = False

    def release(self) -> None:
        """No row is kept."""

    def _timed(self, blocks):
        """Counts the time until a block is there as waiting."""
        began = time.perf_counter()
        for block in blocks:
            self.wait += time.perf_counter() - began
            yield block
            began = time.perf_counter()


class SetStream:
    """A block set: all is known beforehand; groups of random chunks, decoded ahead."""

    labels_known, repeatable, resident, reading_bytes = True, True, False, staticmethod(_no_bytes)

    def __init__(self, blocks: BlockSet, memory: int, seed: int):
        self._blocks, self._seed, self.chunk_rows = blocks, seed, blocks.chunk_rows
        self.description, self.dtype = blocks.description, blocks.dtype
        self.labels, self.n_features = self.description.labels, blocks.n_features
        self.largest_norm = self.description.largest_norm
        self.feature_ids, self.where, self.in_memory_from = blocks.feature_ids, blocks.where, blocks.in_memory_from
        sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        self._group_bytes = max(int(sizes.max()), int(GROUP_SHARE * memory))
        row_bytes = rows_bytes(blocks.n_rows, blocks.n_nonzeros, blocks.dtype.itemsize) / blocks.n_rows
        self.group_rows = max(int(blocks.chunk_rows.max()), int(1.1 * self._group_bytes / row_bytes)) + 1
        self._sizes, self.n_bytes, self._n_orders = sizes, 0, 0
        self.bytes_read, self.wait, self.progress = 0, 0.0, _ignore

    def arenas(self, number: int = 1):
        """Every pass has an order of its own."""
        order = np.arange(self._blocks.n_chunks, dtype=np.int32)
        shuffle(order, len(order), ~self._seed & (2**64 - 1), number - 1)
        self._n_orders = (number - 1) * self._blocks.n_chunks
        for arena, _ in self._read(self._groups(order)):
            yield arena, self._visits(arena)

    def blocks(self, number: int):
        """Block after block in random order, each arena with an order of visits and whether it is its block's last."""
        blocks = self._blocks
        order = np.unique(blocks.chunk_block).astype(np.int32)
        shuffle(order, len(order), ~self._seed & (2**64 - 1), number - 1)
        chunks = [blocks.block_chunks(block) for block in order]
        last_chunks = {int(of_block[-1]) for of_block in chunks}
        self._n_orders = (number - 1) * blocks.n_chunks
        for arena, group in self._read(group for of_block in chunks for group in self._groups(of_block)):
            yield arena, self._visits(arena), group[-1] in last_chunks

    def again(self):
        for arena, _ in self._read(self._groups(np.arange(self._blocks.n_chunks))):
            yield arena

    @property
    def needed_bytes(self) -> int:
        """While rows are read."""
        decoding = max(0, 2 * 3 * int(self._sizes.max()) - BUFFERS)
        return 2 * (self._group_bytes + self.group_rows * ROW.itemsize) + decoding

    def release(self) -> None:
        """No row is kept."""

    def stop(self) -> None:
        """No pass goes on: all that is asked for is known anyway."""

    def _visits(self, arena) -> np.ndarray:
        rows = np.arange(arena.n_rows, dtype=np.int32)
        shuffle(rows, len(rows), self._seed, self._n_orders)
        self._n_orders += 1
        return rows

    def _groups(self, order):
        return groups(order, self._sizes, self._blocks.chunk_rows, self._group_bytes, self.group_rows)

    def _read(self, plan):
        arenas = [Arena(self._group_bytes, np.empty(self.group_rows, ROW), self.dtype) for _ in range(2)]
        self.n_bytes = self.needed_bytes
        before, rows_left = (self.bytes_read, self.wait), self._blocks.n_rows
        reader = Prefetcher(self._blocks, arenas, plan)
        try:
            while rows_left:
                arena, group = reader.next()
                self.bytes_read, self.wait = before[0] + reader.bytes_read, before[1] + reader.wait
                rows_left -= arena.n_rows
                yield arena, group
                self.progress("reading", self._blocks.n_rows - rows_left, self._blocks.n_rows)
                reader.release(arena)
        finally:
            reader.close()
            self.n_bytes = 0


class ResidentStream:
    """Rows that are all in memory, as one arena."""

    labels_known, where, repeatable, resident, n_bytes, wait = True, "in memory", True, True, 0, 0.0
    reading_bytes = staticmethod(_no_bytes)

    def __init__(self, data: Resident, seed: int):
        self.description, self.dtype, self.feature_ids = data.description, data.description.dtype, data.feature_ids
        self.labels, self.n_features = self.description.labels, self.description.n_features
        self.largest_norm, self.bytes_read = self.description.largest_norm, data.bytes_read
        self._data, self._seed, self.progress = data, seed, _ignore

    @property
    def rows_bytes(self) -> int:
        return self._data.n_bytes

    def arenas(self, number: int = 1):
        order = np.arange(self._data.n_rows, dtype=np.int32)
        shuffle(order, len(order), self._seed, number)
        yield self._data, order

    def stop(self) -> None:
        """As of a SetStream."""

    def again(self):
        yield self._data

    def release(self) -> None:
        """Frees the rows; what describes them stays."""
        self._data.release()


def _ignore(what: str, done: float, total: float | None) -> None:
    pass

