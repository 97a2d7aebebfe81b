"""Rows that are read once, arena by arena: text in its own order, or a block set in random groups of chunks."""

from __future__ import annotations

import time

import numpy as np

from llsvm.blockset import BlockSet
from llsvm.core import DataError, Description
from llsvm.memory import BUFFERS
from llsvm.reader import ROW, Arena, Prefetcher, arena_bytes, groups, rows_bytes, shuffle
from llsvm.sources import open_sources
from llsvm.text import FeatureMap, Labels, scan_blocks, scan_bytes

GROUP_SHARE = 0.06


class TextStream:
    """What is known of the data grows while it is read. Files can be read again; a pipe cannot."""

    labels_known, where = False, "read once"

    def __init__(self, sources, paths, threads: int, zero_based: bool, precision: str, memory: int):
        self._sources, self._paths = sources, paths
        self._threads, self._zero_based, self._memory = threads, zero_based, memory
        self._labels, self._features = Labels(), FeatureMap(memory)
        self.dtype, self.repeatable = np.dtype(precision), all(source.size is not None for source in sources)
        self._n_rows = self._n_nonzeros = self._bytes_before = 0
        self._square, self._read_before, self._scan_bytes = 0.0, None, 0
        self.wait, self.progress = 0.0, _ignore

    labels = property(lambda self: self._labels.names)
    n_features = property(lambda self: self._features.n_features)
    largest_norm = property(lambda self: float(np.sqrt(self._square)))
    names = property(lambda self: [source.name for source in self._sources][:10])
    bytes_read = property(lambda self: self._bytes_before + sum(source.position for source in self._sources))
    n_bytes = property(lambda self: self._features.n_bytes + self._scan_bytes)

    @property
    def description(self) -> Description | None:
        """None until all has been read."""
        return self._read_before and Description(
            self._n_rows, self.n_features, self._n_nonzeros, self.labels, self._counts, self.largest_norm,
            self._zero_based, self.dtype, self._read_before,
        )

    def feature_ids(self) -> np.ndarray:
        return self._features.ids

    def arenas(self):
        """Yields an arena and an order of visits, both valid until the next are asked for; labels, n_features and
        largest_norm cover it."""
        for arena in self._read():
            self._n_rows += arena.n_rows
            self._n_nonzeros += int(arena.rows["length"].sum())
            self._square = max(self._square, arena.largest_square)
            yield arena, np.arange(arena.n_rows, dtype=np.int32)
        if self._n_rows == 0:
            raise DataError(f"{', '.join(source.name for source in self._sources)}: no rows")
        self._counts, self._read_before = self._labels.counts.copy(), [source.description() for source in self._sources]

    def again(self):
        """The same rows for one more look."""
        self._bytes_before, self._sources = self.bytes_read, open_sources(self._paths)
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
        self._scan_bytes = max(0, scan_bytes(self._memory, self._threads) - BUFFERS)
        arena = Arena(0, np.empty(0, ROW), self.dtype)
        blocks = scan_blocks(self._sources, self._labels, self._features, self._threads, zero_based=self._zero_based,
                             dtype=self.dtype, memory=self._memory)
        for number, block in enumerate(self._timed(blocks)):
            self.progress("reading", sum(source.position for source in self._sources), total)
            size = arena_bytes(block.n_rows, block.n_nonzeros, self.dtype.itemsize)
            arena.clear()
            if arena.space[0] < size or arena.space[1] < block.n_rows:
                arena = Arena(size * 5 // 4, np.empty(block.n_rows * 5 // 4 + 1, ROW), self.dtype)
            arena.add(block.codes, np.diff(block.indptr).astype(np.int32), block.features, block.values, number)
            if arena.n_rows:
                yield arena
        self._scan_bytes = 0


    def _timed(self, blocks):
        """Counts the time until a block is there as waiting."""
        began = time.perf_counter()
        for block in blocks:
            self.wait += time.perf_counter() - began
            yield block
            began = time.perf_counter()


class SetStream:
    """A block set: all is known beforehand; groups of random chunks, decoded ahead."""

    labels_known, where, repeatable = True, "on disk", True

    def __init__(self, blocks: BlockSet, memory: int, seed: int):
        self._blocks, self._seed = blocks, seed
        self.description, self.dtype = blocks.description, blocks.dtype
        self.labels, self.n_features = self.description.labels, blocks.n_features
        self.largest_norm = self.description.largest_norm
        self.feature_ids = blocks.feature_ids
        sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        self._group_bytes = max(int(sizes.max()), int(GROUP_SHARE * memory))
        row_bytes = rows_bytes(blocks.n_rows, blocks.n_nonzeros, blocks.dtype.itemsize) / blocks.n_rows
        self._group_rows = max(int(blocks.chunk_rows.max()), int(1.1 * self._group_bytes / row_bytes)) + 1
        self._sizes, self.n_bytes = sizes, 0
        self.bytes_read, self.wait, self.progress = 0, 0.0, _ignore

    def arenas(self):
        order = np.arange(self._blocks.n_chunks, dtype=np.int32)
        shuffle(order, len(order), ~self._seed & (2**64 - 1), 0)
        for counter, arena in enumerate(self._read(order)):
            rows = np.arange(arena.n_rows, dtype=np.int32)
            shuffle(rows, len(rows), self._seed, counter)
            yield arena, rows

    def again(self):
        yield from self._read(np.arange(self._blocks.n_chunks))

    def _read(self, order):
        arenas = [Arena(self._group_bytes, np.empty(self._group_rows, ROW), self.dtype) for _ in range(2)]
        decoding = max(0, 3 * int(self._sizes.max()) - BUFFERS)
        self.n_bytes = 2 * (self._group_bytes + self._group_rows * ROW.itemsize) + decoding
        before, rows_left = (self.bytes_read, self.wait), self._blocks.n_rows
        plan = groups(order, self._sizes, self._blocks.chunk_rows, self._group_bytes, self._group_rows)
        reader = Prefetcher(self._blocks, arenas, plan)
        try:
            while rows_left:
                arena, _ = reader.next()
                self.bytes_read, self.wait = before[0] + reader.bytes_read, before[1] + reader.wait
                rows_left -= arena.n_rows
                yield arena
                self.progress("reading", self._blocks.n_rows - rows_left, self._blocks.n_rows)
                reader.release(arena)
        finally:
            reader.close()
            self.n_bytes = 0


def _ignore(what: str, done: float, total: float | None) -> None:
    pass

