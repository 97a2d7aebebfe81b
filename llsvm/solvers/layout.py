"""Rows from disk: what of the memory is for what, and groups of chunks that are read ahead."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np

from llsvm.memory import BUFFERS, format_size
from llsvm.prefetch import Prefetcher
from llsvm.reader import DUAL, ROW, Arena, arena_bytes, groups, rows_bytes
from llsvm.solvers.machines import MACHINE_BYTES

# Of the memory for rows, a group takes a part; a small one may take twice as much.
GROUP_SHARE, SMALL_GROUP = 0.04, 256 << 10
ARENAS_SHARE = 4  # a third arena only where three of the smallest take no more than this part of the memory left
VECTORS = 3  # of each problem: w, the one that is certified or extrapolated from, the best
DESKS = 8  # threads that may visit a group at once, where there are several problems: more do not change the layout
SMALLER_CHUNKS = ", or a set split into more blocks (llsvm-split -m)"
NO_BLOCKS = SMALLER_CHUNKS + ", or -s dual, which needs no whole block in memory"


class Layout:
    """Divides the working memory; see docs/out-of-core.md. Groups are of chunks, or of whole blocks.

    n_arenas groups of group_bytes and group_rows, a thread less that fills them; spare_bytes for active rows. rounds:
    whether alphas are kept in float32 between visits.
    """

    def __init__(self, blocks, config, problems: list, whole_blocks: bool = False):
        self._blocks, self._whole, self._n_problems = blocks, whole_blocks, len(problems)
        self.rounds, several = all(problem.may_round for problem in problems), len(problems) > 1
        most_arenas = 3 if config.threads > 1 and not whole_blocks and not several else 2
        sizes = rows_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        smallest, most_rows = self._largest(sizes), int(self._largest(blocks.chunk_rows))
        beside = self._beside_row * most_rows
        for n_arenas in range(most_arenas, 1, -1):
            self.n_readers = min(n_arenas, 2 if several else max(2, config.threads)) - 1
            fixed = self._fixed()
            rest = config.budget.without(fixed).left
            if rest >= ARENAS_SHARE * n_arenas * smallest:
                break
        writing_model = (2 if several else 1) * 8 * blocks.n_features
        least = max(2 * smallest + beside, writing_model)
        config.budget.take(fixed + least, self._weights_and_rows(config, fixed + least),
                           or_else=NO_BLOCKS if whole_blocks else SMALLER_CHUNKS)
        self.n_arenas, self.alpha_type = n_arenas, np.dtype(np.float32 if self.rounds else np.float64)
        alpha_bytes = self.alpha_type.itemsize * blocks.n_rows * len(problems)
        self.alphas_fit = alpha_bytes <= rest // 16 and rest - alpha_bytes >= n_arenas * smallest + beside
        rest -= alpha_bytes if self.alphas_fit else 0
        share = int(GROUP_SHARE * rest)
        group_bytes = smallest if whole_blocks else max(smallest, share, min(SMALL_GROUP, 2 * share))
        row_bytes = rows_bytes(blocks.n_rows, blocks.n_nonzeros, blocks.dtype.itemsize) / blocks.n_rows
        self.group_rows = max(int(group_bytes / row_bytes * 1.1), most_rows) + 1
        table_bytes = self.group_rows * (ROW.itemsize + DUAL.itemsize)
        self.sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        self.group_bytes = max(int(self._largest(self.sizes)), group_bytes - table_bytes)
        taken = n_arenas * (self.group_bytes + table_bytes) + self._beside_row * self.group_rows
        self.spare_bytes = max(0, rest - taken)

    def _largest(self, counts: np.ndarray):
        """Of the units that must be in memory as a whole."""
        return int((np.bincount(self._blocks.chunk_block, counts) if self._whole else counts).max())

    @property
    def _beside_row(self) -> int:
        """Bytes of a row that is visited by several problems: duals, an order and a mark for each that does so at a
        time, and a bit for each."""
        n = self._n_problems
        return min(DESKS, n) * (DUAL.itemsize + 5) + -(-n // 8) if n > 1 else 0

    def _fixed(self) -> int:
        """Bytes of weights, of problems, and of what decodes."""
        blocks, n = self._blocks, self._n_problems
        largest = int((blocks.chunk_nonzeros * (4 + blocks.dtype.itemsize) + 8 * blocks.chunk_rows).max())
        decoding = max(0, 3 * largest * (self.n_readers + 1) - BUFFERS)
        problems = n * MACHINE_BYTES if n > 1 else 0
        return VECTORS * 8 * (blocks.n_features + 1) * n + problems + decoding + 160 * blocks.n_chunks

    def _weights_and_rows(self, config, needed: int) -> str:
        what = f"the weights of {self._blocks.n_features} features"
        what += f" for {self._n_problems} {'problems' if config.folds else 'classes'}" if self._n_problems > 1 else ""
        return f"{what} and the rows to work on take {format_size(needed)} at least"

    def groups(self, order):
        """These chunks, in groups that an arena can hold."""
        return groups(order, self.sizes, self._blocks.chunk_rows, self.group_bytes, self.group_rows)


class Reading:
    """Groups that a plan names, one after the other; passes end where all rows have been read."""

    def __init__(self, blocks, layout: Layout, plan):
        self._blocks, self._layout, self.rows_left = blocks, layout, 0
        self._starts = [0, *np.cumsum(blocks.chunk_rows).tolist()]
        rows = [np.empty(layout.group_rows, ROW) for _ in range(layout.n_arenas)]
        self._arenas = [Arena(layout.group_bytes, table, blocks.dtype) for table in rows]
        self._reader = Prefetcher(blocks, self._arenas, plan, layout.n_readers)

    wait = property(lambda self: self._reader.wait)
    bytes_read = property(lambda self: self._reader.bytes_read)
    read_seconds = property(lambda self: self._reader.read_seconds)
    ready = property(lambda self: self._reader.ready)
    seen = property(lambda self: 1 - self.rows_left / self._blocks.n_rows)

    def one_pass(self, check, n_rows: int = 0, use_wait=lambda: False):
        """Yields (arena, runs) until so many rows, or all, have come by. use_wait: does some work while the next rows
        are not there; False if there is none."""
        self.rows_left = n_rows or self._blocks.n_rows
        while self.rows_left:
            while not self.ready and use_wait():
                pass
            arena, group = self._reader.next()
            self.rows_left -= arena.n_rows
            yield arena, self._runs(group)
            self._reader.release(arena)
            check()

    def _runs(self, group) -> list[tuple[int, int, int]]:
        """Of the chunks of a group: (where its rows begin in the group, and end, and begin in the set)."""
        ends = np.cumsum([0, *(self._starts[chunk + 1] - self._starts[chunk] for chunk in group)]).tolist()
        return [(*span, self._starts[chunk]) for span, chunk in zip(pairwise(ends), group, strict=True)]

    def begin_again(self) -> None:
        """Reads from the first row on, if this is in the middle of a pass."""
        if not self.rows_left:
            return
        before = self._reader.bytes_read, self._reader.wait
        self._reader.close()
        self._reader = None  # before there is another
        chunks = np.arange(self._blocks.n_chunks)
        plan = (group for _ in itertools.count() for group in self._layout.groups(chunks))
        self._reader = Prefetcher(self._blocks, self._arenas, plan, self._layout.n_readers)
        self._reader.bytes_read, self._reader.wait = before

    def close(self) -> None:
        self._reader.close()
        self._reader = self._arenas = None
