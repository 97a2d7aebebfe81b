"""Rows of data mapped by a factor: dense rows of as many numbers as it has pivots, in memory or in a temporary set.

They are data like any other, so that every solver trains on them. They stand in the order of the rows they were made
of.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from llsvm import reader
from llsvm.blockset import BlockSet
from llsvm.cholesky import Factor
from llsvm.core import Block
from llsvm.kernels import Rows
from llsvm.memory import Budget
from llsvm.pool import in_order
from llsvm.reader import RECORD, Resident
from llsvm.scratch import Nameless
from llsvm.writer import Writer

PART_ROWS = 2048  # rows that are mapped at a time, or fewer where the numbers of these take more than PART_BYTES
PART_BYTES = 4 << 20
DENSE = 2  # the layout of a row whose features are 0 .. n - 1 (COUNTED in cython_src/_sparse.pxd)


class Parts:
    """The rows of data in their order, part by part: of a table in memory, or the chunks of a block set."""

    def __init__(self, data, most_rows: int = PART_ROWS):
        self.data, self.description = data, data.description
        self.is_resident = isinstance(data, Resident)
        n_rows = self.description.n_rows
        if self.is_resident:
            self.starts = np.minimum(np.arange(0, n_rows + most_rows, most_rows), n_rows)
        else:
            self.starts = np.concatenate([[0], np.cumsum(data.chunk_rows)])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def load(self, number: int) -> Block:
        if self.is_resident:
            return reader.block_of(self.data.table[self.starts[number] : self.starts[number + 1]],
                                   self.description.dtype)
        return self.data.load_chunk(number)

    def each(self, work, threads: int):
        """work(start, Block) of every part, in order, several at a time on threads."""
        return in_order(lambda number: work(int(self.starts[number]), self.load(number)), range(len(self)), threads)

    def take(self, places: np.ndarray, threads: int) -> Rows:
        """These rows, whose places ascend."""
        def chosen(start, block):
            first, last = np.searchsorted(places, (start, start + block.n_rows))
            return Rows.of(block).take(places[first:last] - start)

        needed = np.flatnonzero(np.diff(np.searchsorted(places, self.starts)))
        parts = in_order(lambda number: chosen(int(self.starts[number]), self.load(number)), needed.tolist(), threads)
        return Rows.joined(list(parts)) if len(needed) else Rows(np.zeros(1, np.int64), *(
            np.empty(0, kind) for kind in (np.int32, self.description.dtype)))  # fmt: skip


def sample(parts: Parts, wanted: int, seed: int, threads: int) -> Rows:
    """So many random rows, or all."""
    n_rows = parts.description.n_rows
    if wanted >= n_rows:
        return parts.take(np.arange(n_rows), threads)
    chances = np.random.Generator(np.random.PCG64([seed, 0])).random(n_rows)
    return parts.take(np.sort(np.argpartition(chances, wanted)[:wanted]), threads)


def bytes_in_memory(n_rows: int, rank: int, value_size: int = 4) -> int:
    """Of mapped rows that are held, as training counts rows."""
    return n_rows * (rank * value_size + RECORD.itemsize + 4)


def _mapped(factor: Factor, block: Block, dtype) -> np.ndarray:
    """h of every row, a part of the rows at a time."""
    rows, out = Rows.of(block), np.empty((block.n_rows, factor.rank), dtype)
    step = max(1, min(PART_ROWS, PART_BYTES // (8 * max(1, factor.rank))))
    for start in range(0, len(rows), step):
        part = rows.part(start, min(start + step, len(rows)))
        out[start : start + len(part)] = factor.map(part)
    return out


def in_memory(parts: Parts, factor: Factor, dtype, threads: int, progress=lambda *_: None) -> Resident:
    """The mapped rows as a table."""
    n_rows, rank, dtype = parts.description.n_rows, factor.rank, np.dtype(dtype)
    values, records = np.empty((n_rows, rank), dtype), np.zeros(n_rows, RECORD)
    table = records["row"]

    def work(start, block):
        rows = slice(start, start + block.n_rows)
        values[rows] = _mapped(factor, block, dtype)
        table["norm"][rows] = np.sqrt(np.square(values[rows], dtype=np.float64).sum(1))
        table["code"][rows] = block.codes
        return start

    for start in parts.each(work, threads):
        progress("mapping", start, n_rows)
    table["data"] = values.ctypes.data + np.arange(n_rows, dtype=np.uint64) * np.uint64(rank * dtype.itemsize)
    table["length"], table["layout"], table["place"] = rank, DENSE, np.arange(n_rows)
    description = _described(parts, rank, float(table["norm"].max()), dtype)
    resident = Resident(records, [values], description, lambda: np.arange(1, rank + 1), 0)
    resident.dense = values
    return resident


def _described(parts: Parts, rank: int, largest_norm: float, dtype):
    known = parts.description
    return replace(known, n_features=rank, n_nonzeros=known.n_rows * rank, largest_norm=largest_norm, dtype=dtype,
                   zero_based=False)


@contextmanager
def on_disk(parts: Parts, factor: Factor, dtype, threads: int, budget: int, progress=lambda *_: None):
    """The mapped rows as a temporary set of one block, whose rows keep their order."""
    files, known, rank = Nameless(), parts.description, factor.rank
    try:
        with Writer(None, 1, 1, np.dtype(dtype).name, threads, budget, folder=files) as writer:
            numbers = np.arange(rank, dtype=np.int32)
            for start, codes, rows in parts.each(
                lambda start, block: (start, np.array(block.codes), _mapped(factor, block, dtype)), threads
            ):
                for first in range(0, len(rows), PART_ROWS):
                    part = rows[first : first + PART_ROWS]
                    writer.add(Block(codes[first : first + PART_ROWS], np.arange(len(part) + 1) * rank,
                                     np.tile(numbers, len(part)), part.reshape(-1)))
                progress("mapping", start, known.n_rows)
            writer.finish(known.labels, known.label_counts, [np.arange(1, rank + 1)], known.sources, False)
        yield BlockSet(files)
    finally:
        files.discard()


def fits(n_rows: int, rank: int, value_size: int, budget: Budget) -> bool:
    """Whether mapped rows can be held in what is left while they are trained on."""
    return bytes_in_memory(n_rows, rank, value_size) <= budget.of_resident.left
