"""Dual coordinate descent from disk with shrinking that is put right: the repair of the LLSVM paper's method.

Every full pass, over random groups of chunks, visits all rows once and collects the active ones: those whose alpha is
free or that are near the margin. These are then swept on their own, in memory or from a file, so that a pass over all
data is followed by many visits where they matter. What a pass missed, the next one finds; the certified gap says when
to stop.
"""

from __future__ import annotations

import time

import numpy as np

from llsvm.active import ActiveRows
from llsvm.core import Certificate
from llsvm.reader import DUAL, ROW, Arena, arena_bytes, groups, joined, rows_bytes, shuffle
from llsvm.solvers import newton
from llsvm.solvers.copies import Copies
from llsvm.solvers.dual_cd import SAMPLE_MARGIN, SAMPLE_SHARE, TALL, Extrapolation, choose
from llsvm.solvers.streaming import Streaming

# Of the memory for rows, a group takes a part; a small one may take twice as much.
GROUP_SHARE, SMALL_GROUP = 0.04, 256 << 10
MARGIN = 0.1
SAMPLE_MEMORY = 0.7  # of that of active rows
LITTLE, MENDING = 0.3, 2  # of the tolerance; sweeps
# After a pass the active rows are swept so often, or with so many visits by rows of the data if these are fewer; and
# then, up to MOST_VISITS, until they have no more than this part of the gap (docs/out-of-core.md).
SWEEPS, VISITS, MOST_VISITS, DEPTH = 30, 2, 100, 0.3
# Where the active rows do not all fit memory, they are swept so many times before the next of them are loaded.
SWEEPS_AT_A_TIME = 3
# Where active rows fill the memory on the way, they are swept so many times, and those within a margin stay: the first
# of these that leaves no more than this part.
SWEEPS_FOR_ROOM, ROOM_MARGINS, MOST_KEPT = 2, (0.3, 0.1, 0.05), 0.9
# Of a group in the first pass, where all rows share a bias.
FIRST_VISITS = 2
# Behind this part of the rows they are only looked at, as long as the gap, by those seen, is within this part of -e.
FIRST_LOOK, ENOUGH = 1 / 16, 0.8
# A disk is slow if the solver has waited for so many seconds, and if both that and reading take this share of the time.
SLOW_SECONDS, SLOW_SHARE = 2, 0.3
ALPHAS_TOGETHER = 1 << 15
# Bytes of an active row that is swept: an Extrapolation, or, on the way, a second table and whether it stays.
BESIDE = max(Extrapolation.ROW_BYTES, ROW.itemsize + DUAL.itemsize + 1) + Copies.ROW_BYTES


class FromDisk(Streaming):
    """Sweeps the active rows between passes."""

    # The w of a sample of tall data, or that of Newton's method, and the loss of the rows that have got the alphas that
    # belong to it.
    _start, _start_loss, _newton = None, 0.0, None
    _visited_all = True  # in the pass before

    def __init__(self, problem, config, blocks):
        super().__init__(problem, config, blocks)
        self._active, self._slow, self._turn, self._began = self._new_active(), False, 0, time.perf_counter()
        self._n_passes = 0

    def _smallest_group(self, sizes) -> int:
        return int(sizes.max())

    def _most_rows(self) -> int:
        return self.blocks.chunk_rows.max()

    def _group_size(self, rest: int, smallest_group: int) -> int:
        share = int(GROUP_SHARE * rest)
        return max(smallest_group, share, min(SMALL_GROUP, 2 * share))

    def _most_arenas(self) -> int:
        return 3 if self._config.threads > 1 else 2

    def _other_way(self) -> str:
        return ", or a set split into more blocks (llsvm-split -m)"

    def _plan(self):
        """Groups of chunks that fill an arena, every chunk once a pass, for ever."""
        blocks = self.blocks
        sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        order, passes = np.arange(blocks.n_chunks, dtype=np.int32), 0
        while True:
            shuffle(order, len(order), ~self._config.seed & (2**64 - 1), passes)
            if passes == 0:
                self._sample = self._choose_sample(order)
                yield from groups(self._sample, sizes, blocks.chunk_rows, self._group_bytes, self._group_rows)
            passes += 1
            yield from groups(order, sizes, blocks.chunk_rows, self._group_bytes, self._group_rows)

    def _choose_sample(self, order: np.ndarray) -> np.ndarray:
        """The first of these chunks, if the data are tall: a part of the rows, and no more than fit."""
        blocks = self.blocks
        rows, nonzeros = np.cumsum(blocks.chunk_rows[order]), np.cumsum(blocks.chunk_nonzeros[order])
        fits = rows_bytes(rows, nonzeros, blocks.dtype.itemsize) <= SAMPLE_MEMORY * self._spare_bytes
        count = int((fits & (rows <= blocks.n_rows // SAMPLE_SHARE)).sum())
        is_enough = count and self._is_tall(SAMPLE_SHARE * int(rows[count - 1]))
        return order[: count if is_enough else 0].copy()

    def _prepare(self) -> None:
        """Solves the sample, whose dual variables are then forgotten."""
        if not len(self._sample):
            return
        rows_left, self._is_between_passes = int(self.blocks.chunk_rows[self._sample].sum()), False
        while rows_left:
            self.deadline.check()
            arena, _ = self._reader.next()
            self._active.append(arena.rows, np.zeros((arena.n_rows, 1), DUAL))
            rows_left -= arena.n_rows
            self._reader.release(arena)
        for group in self._active.groups():
            order, visits = np.arange(len(group.table), dtype=np.int32), 0
            while not visits or not self._is_learnt(visits / self.blocks.n_rows):
                self.state.begin_pass()
                self._sweep(group.table, group.alphas[:, 0], order, len(order))
                visits += len(order)
                self.deadline.check()
            self._start, self.state.w = self.state.w, np.zeros_like(self.state.w)
            self.state.set_alphas((0, 0))
            del group
        self._is_between_passes = True
        self._renew_active()

    def _follow_sample(self, rows: np.ndarray, duals: np.ndarray) -> None:
        """Gives rows the alphas that belong to the w of the sample, if it holds for the first of them."""
        sums = np.zeros(3)
        self._look_at(rows, duals, self._start, sums)
        if not self._newton and not self._start_loss and not self._holds(sums[0] / len(rows)):
            self._start = None
            return
        self._start_loss += sums[0]
        self._adopt(rows, duals, sums[1:], self.state.w)
        self.state.add_alphas(sums[1:])
        self.state.sums["visits"] += len(rows)
        if self._newton:
            self._newton.add(rows, duals, self._steps, self._kind)

    def _visit(self, arena: Arena) -> None:
        if self._start is not None:
            self._follow_sample(arena.rows, self._duals[: arena.n_rows])
        if self._start is not None:
            return
        order = self._order[: arena.n_rows]
        order[:] = np.arange(arena.n_rows)
        for number in range(FIRST_VISITS if self._is_first and self.problem.bias else 1):
            # Other threads read meanwhile.
            self._sweep(arena.rows, self._duals, order, len(order), together=False, counting=number == 0)

    def _after_visit(self, arena: Arena) -> None:
        """Copies the active rows."""
        if self._newton:
            return
        rows, duals = arena.rows, self._duals[: arena.n_rows]
        chosen, margin = np.empty(len(rows), bool), MARGIN if self._start is None else SAMPLE_MARGIN
        n_chosen = self._choose(rows, duals, margin, chosen)
        if self._start is None and not self._active.has_room(n_chosen, arena.used * n_chosen // max(1, len(rows))):
            self._make_room()
        self._active.append(rows, duals[chosen][:, None], chosen)

    def _choose(self, rows, duals, margin: float, chosen: np.ndarray) -> int:
        """Which rows are free or within the margin; how many."""
        return choose(rows, duals, self._steps.codes, margin, chosen.view(np.uint8))

    def _make_room(self) -> None:
        """Sweeps the active rows in memory, so that those leave that are no longer active or, if need be, hardly so; if
        too few do, all go to the file."""
        if not (parts := self._active.parts_in_memory()):
            return
        tables = [rows for rows, _ in parts]
        table = joined(tables, np.empty(sum(map(len, tables)), ROW))
        duals = np.concatenate([duals[:, 0] for _, duals in parts])
        chosen = np.empty(len(table), bool)
        self._sweep_all(table, duals, SWEEPS_FOR_ROOM)
        for margin in ROOM_MARGINS:
            too_many = self._choose(table, duals, margin, chosen) > MOST_KEPT * len(table)
            if not too_many:
                break
        chosen |= too_many
        self._keep_alphas(table, duals, np.flatnonzero(~chosen))
        self._active.keep(table, duals[:, None], chosen)
        if too_many:
            self._active.spill()

    def _use_wait(self) -> bool:
        """Sweeps some of the active rows, if the disk is slow."""
        waited, enough = self._reader.wait, SLOW_SHARE * (time.perf_counter() - self._began)
        if self._config.threads > 1 and waited > max(SLOW_SECONDS, enough) and self._reader.read_seconds > enough:
            self._slow = True
        if not self._slow or not (parts := self._active.parts_in_memory()):
            return False
        self._turn += 1
        table, duals = parts[self._turn % len(parts)]
        self._sweep_all(table, duals[:, 0], 1)
        return True

    def _is_enough(self, estimate: Certificate, seen: float) -> bool:
        return self._visited_all and seen >= FIRST_LOOK and estimate.relative_gap <= ENOUGH * self.problem.tolerance

    def _new_active(self) -> ActiveRows:
        return ActiveRows(self.blocks.dtype, self._spare_bytes, copies=0, beside=BESIDE, kind=DUAL)

    def _end_pass(self, done: bool) -> None:
        self._visited_all = self.state["visits"] == self.blocks.n_rows
        if self._visited_all:
            self._n_active = self._active.n_rows
        if done or self._descends():
            return
        self._sweep_active()
        self._renew_active()
        if self._start is not None:
            self._certify(self._start, self._start_loss)
            self._start = None

    def _descends(self) -> bool:
        """Newton's method, where it is due: a step a pass, in which all rows get the alphas of its w. True where there
        is nothing else to be done after this pass."""
        self._n_passes += 1
        if self._newton:
            self._certify(self._start, self._start_loss)
            if self._is_done():
                return True
            if not self._newton.step(self._start_loss, self._start - self.state.w, self.deadline.check):
                self._start = self._newton = None
                self._renew_active()
                return True
        elif self.problem.is_bounded or not newton.ByPasses.fits(len(self.state.w), self._n_passes, self.blocks.n_rows,
                                                            self._spare_bytes):
            return False
        else:
            self._renew_active()
            self._newton = newton.ByPasses(self.state.w if self.best_w is None else self.best_w)
        self._start, self._start_loss = self._newton.w, 0.0
        self.state.w[:] = 0.0
        self.state.set_alphas((0, 0))
        return True

    def _sweep_active(self) -> None:
        """In one round, each part of the rows to its end, or round after round, all parts a little each time."""
        by_rows, inner, met = self.blocks.n_rows / max(1, self._n_active), self._config.inner, self._met()
        least = inner or max(1, round(min(SWEEPS, VISITS * by_rows)))
        most = inner or max(least, round(MOST_VISITS * by_rows))
        self._far = DEPTH * (met.primal - met.dual if met.primal < np.inf else self.certified.gap)
        # A part of tall data tells nearly all about w, and alphas can go on where there is one round.
        if self._active.fit or self.blocks.n_rows >= TALL * len(self.state.w):
            self._sweep_round(False, least, most, last=True)
            return
        made, at_a_time = 0, -(-least // max(1, round(least / SWEEPS_AT_A_TIME)))
        while made < most:
            more = min(at_a_time, most - made)
            gap = self._sweep_round(made > 0, more, more, last=made + more == most)
            made += more
            if self._is_little(gap, self._n_active) or made >= least and gap <= self._far:
                break

    def _sweep_round(self, again: bool, least: int, most: int, last: bool) -> float:
        """Sweeps all active rows, as many at a time as memory holds; returns what they have of the gap."""
        gap = 0.0
        for group in self._active.groups(keep=not last):
            duals = group.alphas[:, 0]
            if again:
                self._fetch_alphas(group.table, duals)
            self._sweep_on(group.table, duals, least, most)
            gap += self.state["gap"]
            self._keep_alphas(group.table, duals)
            del group, duals
        return gap

    def _is_little(self, gap: float, n_rows: int) -> bool:
        """Whether so many of the active rows, which have this gap, have next to nothing of it."""
        return gap <= LITTLE * self.problem.tolerance * self.dual * n_rows / max(1, self._n_active)

    def _positions(self, rows) -> np.ndarray:
        return self._first_rows[rows["chunk"]] + rows["place"]

    def _sweep_on(self, table, duals, least: int, most: int) -> None:
        """So many sweeps of these rows; fewer, where they have next to nothing of the gap left; and more, as long as
        they have much of it."""
        order, far = np.arange(len(table), dtype=np.int32), self._far * len(table) / max(1, self._n_active)
        extrapolation = Extrapolation(order.copy())
        for number in range(1, most + 1):
            self._sweep(table, duals, order, len(order), counting=False)
            self.deadline.check()
            gap = self.state["gap"]
            if self._is_little(gap, len(table)) or number >= least and gap <= far:
                break
            if number <= most - MENDING:  # sweeps, for w where bounds stood in the way
                self._follow(extrapolation, table, duals)

    @property
    def _last_w(self) -> np.ndarray:
        """That of the sample, as long as rows are given the alphas that belong to it."""
        return self.state.w if self._start is None else self._start

    def _renew_active(self) -> None:
        self._active.close()
        self._active = self._new_active()

    def _fetch_alphas(self, table, duals) -> None:
        for part in self._slices(len(table)):
            duals["alpha"][part] = self._alphas.gather(self._positions(table[part]))

    def _keep_alphas(self, table, duals, slots: np.ndarray | None = None) -> None:
        """Of the rows in these slots, or of all."""
        for part in self._slices(len(table) if slots is None else len(slots)):
            part = part if slots is None else slots[part]
            self._alphas.scatter(self._positions(table[part]), duals["alpha"][part])

    @staticmethod
    def _slices(n_rows: int):
        """Of so many rows that what is made for each is small."""
        return (slice(start, start + ALPHAS_TOGETHER) for start in range(0, n_rows, ALPHAS_TOGETHER))

    def close(self) -> None:
        self._active.close()
        super().close()
