"""Dual coordinate descent from disk, group by group: what `dual` out of core and `block` share, and `block` itself."""

from __future__ import annotations

import time

import numpy as np

from llsvm.alphas import Alphas
from llsvm.core import Certificate
from llsvm.evaluate import total_loss
from llsvm.memory import BUFFERS, format_size, too_small, working
from llsvm.reader import DUAL, ROW, Arena, Prefetcher, arena_bytes, groups, rows_bytes, shuffle
from llsvm.solvers.dual_cd import DualCD
from llsvm.solvers.together import half_square

WORTH_CERTIFYING = 20
ARENAS_SHARE = 4  # a third arena only where three of the smallest take no more than this part of the memory left


class Streaming(DualCD):
    """Rows from disk, group by group: what `dual` out of core and `block` have in common.

    A pass loads every chunk once. The w it began with is certified on the way, by one more dot per row, against the
    dual value at its end.
    """

    _n_active = 0  # rows that are swept between passes
    _is_first = True  # this pass
    _is_between_passes = True  # no row of a pass is left to be read

    def __init__(self, problem, config, blocks):
        super().__init__(problem, config, blocks.n_features + 1, np.zeros(1, blocks.dtype), problem.may_round)
        self.blocks = blocks
        self._gather_team(blocks.description)
        self._first_rows = np.concatenate([[0], np.cumsum(blocks.chunk_rows)])
        self._starts = self._first_rows.tolist()
        self._lay_out()
        self._reader = Prefetcher(blocks, self._groups, self._plan(), self._n_readers(len(self._groups)))

    def _n_readers(self, n_arenas: int) -> int:
        """Threads that fill arenas, beside this one, which helps them."""
        return min(n_arenas, max(2, self._config.threads)) - 1

    def _lay_out(self) -> None:
        """Divides the working memory; see docs/out-of-core.md."""
        blocks, value_size = self.blocks, self.blocks.dtype.itemsize
        largest = int((blocks.chunk_nonzeros * (4 + value_size) + 8 * blocks.chunk_rows).max())
        sizes = rows_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, value_size)
        smallest_group = self._smallest_group(sizes)
        for n_arenas in range(self._most_arenas(), 1, -1):
            decoding = max(0, 3 * largest * (self._n_readers(n_arenas) + 1) - BUFFERS)
            fixed = 3 * 8 * (blocks.n_features + 1) + decoding + 160 * blocks.n_chunks
            rest = working(self._config.memory) - fixed
            if rest >= ARENAS_SHARE * n_arenas * smallest_group:
                break
        if rest < max(2 * smallest_group, 8 * blocks.n_features):  # the fourth vector: writing the model
            self._refuse(fixed + max(blocks.n_features * 8, 2 * smallest_group))
        alpha_type = np.dtype(np.float32 if self._steps.rounded else np.float64)
        alpha_bytes = alpha_type.itemsize * blocks.n_rows
        alphas_fit = alpha_bytes <= rest // 16 and rest - alpha_bytes >= n_arenas * smallest_group
        rest -= alpha_bytes if alphas_fit else 0
        self._alphas = Alphas(blocks.n_rows, alpha_type, alphas_fit)
        group_bytes = self._group_size(rest, smallest_group)
        row_bytes = rows_bytes(blocks.n_rows, blocks.n_nonzeros, value_size) / blocks.n_rows
        group_rows = max(int(group_bytes / row_bytes * 1.1), int(self._most_rows())) + 1
        table_bytes = group_rows * (ROW.itemsize + DUAL.itemsize)
        self._group_bytes = max(self._largest_group(), group_bytes - table_bytes)
        self._spare_bytes = max(0, rest - n_arenas * (self._group_bytes + table_bytes))
        self._group_rows, self._order = group_rows, np.empty(group_rows, np.int32)
        self._duals = np.zeros(group_rows, DUAL)  # of the rows that are visited
        self._groups = [Arena(self._group_bytes, np.empty(group_rows, ROW), blocks.dtype) for _ in range(n_arenas)]

    def _most_arenas(self) -> int:
        """One that is visited, and those that are filled meanwhile."""
        return 2

    def _largest_group(self) -> int:
        """Bytes of the rows of the largest unit that must be in memory as a whole."""
        blocks = self.blocks
        return self._smallest_group(arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize))

    def _refuse(self, needed: int) -> None:
        what = f"the weights of {self.blocks.n_features} features and the rows to work on take {format_size(needed)}"
        raise too_small(self._config.memory, f"{what} at least", needed, or_else=self._other_way())

    def _other_way(self) -> str:
        return ""

    def _begin_visit(self, arena: Arena, group) -> None:
        """Gives the rows of a group their alphas."""
        for alphas, start in self._runs(arena, group):
            alphas[:] = self._alphas.read(start, len(alphas))

    def _end_visit(self, arena: Arena, group) -> None:
        for alphas, start in self._runs(arena, group):
            self._alphas.write(start, alphas)

    def _runs(self, arena: Arena, group):
        """Of every chunk of a group: (the alphas of its rows, the number of its first row in the set)."""
        alphas, place = self._duals["alpha"], 0
        for chunk in group:
            start, end = self._starts[chunk : chunk + 2]
            yield alphas[place : place + end - start], start
            place += end - start

    def passes(self):
        number, estimate = 0, np.inf
        self._prepare()
        while True:
            start, number, waited = time.perf_counter(), number + 1, self._reader.wait
            looking = self._last_w is self.state.w and estimate <= WORTH_CERTIFYING * self.problem.tolerance
            snapshot = self.state.w.copy() if looking else None
            loss = self._pass(snapshot)
            self._is_first = False
            if snapshot is not None:
                self._certify(snapshot, loss)
            snapshot = None  # makes room for an Extrapolation
            self._end_pass(self._is_done())
            self.wait, self.bytes_read = self._reader.wait, self._reader.bytes_read
            self.compute += time.perf_counter() - start - (self.wait - waited)
            met = self._met()
            stats = self._stats(number, self._n_active, met)
            estimate = min(met.estimate, stats.gap)
            yield stats

    def _pass(self, snapshot: np.ndarray | None) -> float:
        """Visits all rows; returns the loss at this w, with which the pass began.

        As long as that w seems good enough, rows are only looked at."""
        sums, loss, gap, rows_left, self._is_between_passes = np.zeros(3), 0.0, 0.0, self.blocks.n_rows, False
        dual, is_enough = self.dual if snapshot is not None else 0.0, False
        self.state.begin_pass()
        while rows_left:
            while not self._reader.ready and self._use_wait():
                pass
            arena, group = self._reader.next()
            rows_left -= arena.n_rows
            if self._is_first:  # all alphas are 0
                self._duals[:] = 0
            else:
                self._begin_visit(arena, group)
            if snapshot is not None:
                self._look_at(arena.rows, self._duals, snapshot, sums)
                loss, gap, seen = loss + sums[0], gap + sums[1], 1 - rows_left / self.blocks.n_rows
                is_enough = self._is_enough(Certificate(dual + gap / seen, dual), seen)
            if not is_enough:
                self._visit(arena)
                self._end_visit(arena, group)
                self._after_visit(arena)
            self._reader.release(arena)
            self._progress(1 - rows_left / self.blocks.n_rows)
            self._is_between_passes = not rows_left
            self.deadline.check()
        return loss

    def _met(self) -> Certificate:
        """The objectives with the losses met in the pass, if it visited all rows."""
        square = half_square(self.state.w)
        loss = self.state["losses"] if self.state["visits"] == self.blocks.n_rows else np.inf
        return Certificate(square + loss, self.state.dual_at(square))

    def certify(self) -> None:
        """The gap of w as it is now: one pass that only reads."""
        w, loss, rows_left = self._last_w, 0.0, self.blocks.n_rows
        if not self._is_between_passes:
            self._begin_again()
        while rows_left:
            self.deadline.check()
            arena, _ = self._reader.next()
            loss += total_loss(arena.rows, w, self.problem, self._kind)
            rows_left -= arena.n_rows
            self._reader.release(arena)
            self.wait, self.bytes_read = self._reader.wait, self._reader.bytes_read
        self._certify(w, loss)

    def _begin_again(self) -> None:
        """Reads from the first row on, in the middle of a pass."""
        blocks, before = self.blocks, (self._reader.bytes_read, self._reader.wait)
        self._reader.close()
        sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        plan = groups(np.arange(blocks.n_chunks), sizes, blocks.chunk_rows, self._group_bytes, self._group_rows)
        self._reader = None  # before there is another
        self._reader = Prefetcher(blocks, self._groups, plan, self._n_readers(len(self._groups)))
        self._reader.bytes_read, self._reader.wait = before
        self._is_between_passes = True

    def close(self) -> None:
        self._close_team()
        self._reader.close()
        self._alphas.close()
        self._groups = self._reader = self._order = self._duals = self._alphas = self.state.w = None

    def _prepare(self) -> None:
        """Before the first pass."""

    def _use_wait(self) -> bool:
        """Does some work while the next rows are not there; False if there is none."""
        return False

    def _is_enough(self, estimate: Certificate, seen: float) -> bool:
        """Whether the w that a pass began with is good enough, by this part of the rows."""
        return False

    def _after_visit(self, arena: Arena) -> None:
        pass

    def _end_pass(self, done: bool) -> None:
        """done: this pass was the last."""


class Blocks(Streaming):
    """The block minimisation of Yu et al. (KDD 2010), Algorithm 2: fixed blocks in random order, each solved by
    `inner` sweeps (BLOCK-L-N) or until LIBLINEAR's stopping condition holds in it (BLOCK-L-D, inner = 0)."""

    def _smallest_group(self, sizes) -> int:
        return int(np.bincount(self.blocks.chunk_block, sizes).max())

    def _most_rows(self) -> int:
        return np.bincount(self.blocks.chunk_block, self.blocks.chunk_rows).max()

    def _group_size(self, rest: int, smallest_group: int) -> int:
        return smallest_group

    def _other_way(self) -> str:
        return ", or a set split into more blocks (llsvm-split -m), or -s dual, which needs no whole block in memory"

    def _plan(self):
        order, passes = np.unique(self.blocks.chunk_block).astype(np.int32), 0
        while True:
            shuffle(order, len(order), ~self._config.seed & (2**64 - 1), passes)
            passes += 1
            for block in order:
                yield self.blocks.block_chunks(block).tolist()

    def _visit(self, arena: Arena) -> None:
        self._solve(arena.rows, self._duals, 1 if self._config.inner is None else self._config.inner)
