"""Dual coordinate descent from disk with shrinking that is put right: the repair of the LLSVM paper's method.

Every full pass, over random groups of chunks, visits all rows once and collects the active ones: those whose alpha is
free or that are near the margin. These are then swept on their own, in memory or from a file, so that a pass over all
data is followed by many visits where they matter. What a pass missed, the next one finds; the certified gap says when
to stop. All problems visit a group while it is in memory, and each sweeps its own active rows.
"""

from __future__ import annotations

import time

import numpy as np

from llsvm.reader import DUAL, ROW, rows_bytes
from llsvm.shared import SharedRows, Slots
from llsvm.solvers import newton
from llsvm.solvers.copies import Copies
from llsvm.solvers.dual_cd import SAMPLE_MARGIN, SAMPLE_SHARE, TALL, Extrapolation, choose
from llsvm.solvers.streaming import ALPHAS_TOGETHER, Desk, Streaming, Visitor

MARGIN = 0.1
SAMPLE_MEMORY = 0.7  # of that of active rows
LITTLE, MENDING = 0.3, 2  # of the tolerance; sweeps
# After a pass the active rows are swept so often, or with so many visits by rows of the data if these are fewer; and
# then, up to MOST_VISITS, until they have no more than this part of the gap (docs/out-of-core.md).
SWEEPS, VISITS, MOST_VISITS, DEPTH = 30, 2, 100, 0.1
# Where the active rows of a problem do not all fit memory, they are swept so many times before the next are loaded.
SWEEPS_AT_A_TIME = 3
# Where active rows fill the memory on the way, they are swept so many times, and those within a margin stay: the first
# of these that leaves no more than this part.
SWEEPS_FOR_ROOM, ROOM_MARGINS, MOST_KEPT = 2, (0.3, 0.1, 0.05), 0.9
# Of a group in the first pass, where all rows share a bias.
FIRST_VISITS = 2
# A disk is slow if the solver has waited for so many seconds, and if both that and reading take this share of the time.
SLOW_SECONDS, SLOW_SHARE = 2, 0.3
# Bytes of an active row that is swept: its dual, and an Extrapolation, or, on the way, a second table and marks of
# whether it stays. Where there are several problems, those that sweep at a time have tables of their own, as many as
# fit.
MARKS = 9
BESIDE = DUAL.itemsize + max(Extrapolation.ROW_BYTES, ROW.itemsize + MARKS) + Copies.ROW_BYTES
OWN_BYTES, TABLES = ROW.itemsize + DUAL.itemsize + 4 + Extrapolation.ROW_BYTES, 2
# The active rows of some problems after the other are loaded so many times at most after a pass.
MOST_PARTS = 12


class Learner(Visitor):
    """One problem."""

    may_look = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._far, self._least, self._most, self._made, self._round_gap = 0.0, 0, 0, 0, 0.0

    # --- the rows of a group

    def _visit(self, rows, duals, order) -> None:
        course = self.state.course
        if course.start is not None:
            self._follow_start(rows, duals)
        if course.start is not None:
            return
        order[:] = np.arange(len(rows))
        for number in range(FIRST_VISITS if not course.n_passes and self.problem.bias else 1):
            # Other threads read meanwhile, or visit these rows for other problems.
            self._sweep(rows, duals, order, len(order), together=False, counting=number == 0)

    def _follow_start(self, rows, duals) -> None:
        """Gives rows the alphas that belong to the w of the sample, if it holds for the first of them, or to that of
        Newton's method."""
        sums, course = np.zeros(3), self.state.course
        self._look_at(rows, duals, course.start, sums)
        if not course.newton and not course.start_loss and not self._holds(sums[0] / len(rows)):
            course.start = None
            return
        course.start_loss += sums[0]
        self._adopt(rows, duals, sums[1:], self.state.w)
        self.state.add_alphas(sums[1:])
        self.state.sums["visits"] += len(rows)
        if course.newton:
            course.newton.add(rows, duals, self._steps, self._kind)

    def choose(self, rows, desk: Desk, chosen) -> None:
        """Which of the rows just visited are active."""
        margin = MARGIN if self.state.course.start is None else SAMPLE_MARGIN
        choose(rows, desk.duals[: len(rows)], self._steps.codes, margin, chosen)

    # --- a sample

    def learn(self, table, check) -> None:
        """Solves the sample, whose dual variables are then forgotten."""
        duals, order, visits = np.zeros(len(table), DUAL), np.arange(len(table), dtype=np.int32), 0
        while not visits or not self._is_learnt(visits / self._rows.n_rows):
            self.state.begin_pass()
            self._sweep(table, duals, order, len(order))
            visits += len(order)
            check()
        self.state.course.start, self.state.w = self.state.w, np.zeros_like(self.state.w)
        self.state.set_alphas((0, 0))

    # --- Newton's method

    def descends(self, room: int) -> bool:
        """Newton's method, where it is due: a step a pass, in which all rows get the alphas of its w. True where there
        is nothing else to be done after this pass."""
        course = self.state.course
        if course.newton:
            self._certify(course.start, course.start_loss)
            if self.done:
                return True
            if not course.newton.step(course.start_loss, course.start - self.state.w, self.deadline.check):
                course.start = course.newton = None
                return True
        elif self.problem.is_bounded or not newton.ByPasses.fits(len(self.state.w), course.n_passes, self._rows.n_rows,
                                                                 room):
            return False
        else:
            course.newton = newton.ByPasses(self.state.w if self.best_w is None else self.best_w)
        course.start, course.start_loss = course.newton.w, 0.0
        self.state.w[:] = 0.0
        self.state.set_alphas((0, 0))
        return True

    def end_sweeps(self) -> None:
        """The alphas of all rows belong to w."""
        course = self.state.course
        if course.start is not None and not course.newton:
            self._certify(course.start, course.start_loss)
            course.start = None

    # --- sweeps of the active rows

    def begin_sweeps(self) -> None:
        """How often the active rows are swept, and when they have little enough of the gap."""
        by_rows, inner, met = self._rows.n_rows / max(1, self.state.course.n_active), self._config.inner, self.met
        self._least = inner or max(1, round(min(SWEEPS, VISITS * by_rows)))
        self._most = inner or max(self._least, round(MOST_VISITS * by_rows))
        self._far = DEPTH * (met.primal - met.dual if met.primal < np.inf else self.certified.gap)
        self._made = 0

    def sweep_to_the_end(self, table) -> None:
        """Of rows that are all active ones, or that tell nearly all about w."""
        self._sweep_on(table, self._least, self._most)

    def begin_round(self) -> None:
        self._round_gap = 0.0

    @property
    def _at_a_time(self) -> int:
        return min(-(-self._least // max(1, round(self._least / SWEEPS_AT_A_TIME))), self._most - self._made)

    def sweep_a_little(self, table) -> None:
        """Of some of the active rows, round after round."""
        self._sweep_on(table, self._at_a_time, self._at_a_time)
        self._round_gap += self.state["gap"]

    def end_round(self) -> bool:
        """Whether it was the last."""
        self._made += self._at_a_time
        enough = self._made >= self._least and self._round_gap <= self._far
        return self._made >= self._most or enough or self._is_little(self._round_gap, self.state.course.n_active)

    def _is_little(self, gap: float, n_rows: int) -> bool:
        """Whether so many of the active rows, which have this gap, have next to nothing of it."""
        return gap <= LITTLE * self.problem.tolerance * self.dual * n_rows / max(1, self.state.course.n_active)

    def _sweep_on(self, table, least: int, most: int) -> None:
        """So many sweeps of these rows; fewer, where they have next to nothing of the gap left; and more, as long as
        they have much of it."""
        if not len(table):
            return
        duals, order = self._load(table), np.arange(len(table), dtype=np.int32)
        far = self._far * len(table) / max(1, self.state.course.n_active)
        extrapolation, n_active, fresh = Extrapolation(order.copy()), len(order), True
        for number in range(1, most + 1):
            before = n_active
            n_active = self._sweep(table, duals, order, n_active, shrink=True, fresh=fresh, counting=False)
            self._narrow()
            self.deadline.check()
            gap, fresh = self.state["gap"], False
            if self._is_little(gap, len(table)) or number >= least and gap <= far:
                if before == len(order):
                    break
                n_active, fresh = len(order), True
            if number <= most - MENDING:  # sweeps, for w where bounds stood in the way
                fresh |= self._follow(extrapolation, table, duals)
        self._keep(table, duals)

    def sweep_some(self, table, sweeps: int) -> np.ndarray:
        """On the way, so many sweeps. Returns for each row within how many of ROOM_MARGINS it is, free ones in all."""
        duals, levels = self._load(table), np.zeros(len(table), np.uint8)
        self._sweep_all(table, duals, sweeps)
        self._keep(table, duals)
        chosen = np.empty(len(table), np.uint8)
        for margin in ROOM_MARGINS:
            choose(table, duals, self._steps.codes, margin, chosen)
            levels += chosen
        return levels

    # --- dual variables

    def _load(self, table) -> np.ndarray:
        duals = np.zeros(len(table), DUAL)
        for part, positions in self._positions(table):
            duals["alpha"][part] = self._rows.alphas.gather(positions)
        return duals

    def _keep(self, table, duals) -> None:
        for part, positions in self._positions(table):
            self._rows.alphas.scatter(positions, duals["alpha"][part])

    def _positions(self, table):
        """Yields (rows, where their alphas are kept), of so many rows that what is made for each is small."""
        for start in range(0, len(table), ALPHAS_TOGETHER):
            part = slice(start, start + ALPHAS_TOGETHER)
            yield part, self._first + self._rows.positions(table[part])


class FromDisk(Streaming):
    """Sweeps the active rows between passes."""

    visitor = Learner

    def __init__(self, problems: list, config, blocks, states: list | None = None):
        super().__init__(problems, config, blocks, states)
        self._active, self._slow, self._turn, self._began = self._new_active(), False, 0, time.perf_counter()

    def _plan(self):
        """Groups of chunks that fill an arena, every chunk once a pass, for ever."""
        self._sample = np.empty(0, np.int32)
        for number, order in enumerate(self._orders(np.arange(self.blocks.n_chunks, dtype=np.int32))):
            if number + self._n_passes_before == 0:
                self._sample = self._choose_sample(order)
                yield from self._layout.groups(self._sample)
            yield from self._layout.groups(order)

    # --- a sample

    def _choose_sample(self, order: np.ndarray) -> np.ndarray:
        """The first of these chunks, if the data are tall: a part of the rows, and no more than fit."""
        blocks = self.blocks
        rows, nonzeros = np.cumsum(blocks.chunk_rows[order]), np.cumsum(blocks.chunk_nonzeros[order])
        fits = rows_bytes(rows, nonzeros, blocks.dtype.itemsize) <= SAMPLE_MEMORY * self._layout.spare_bytes
        count = int((fits & (rows <= blocks.n_rows // SAMPLE_SHARE)).sum())
        is_enough = count and self._learners[0].is_tall(SAMPLE_SHARE * int(rows[count - 1]))
        return order[: count if is_enough else 0].copy()

    def _prepare(self) -> None:
        if not len(self._sample):
            return
        n_rows, nothing = int(self.blocks.chunk_rows[self._sample].sum()), np.empty(0, np.uint16)
        for arena, _ in self._reading.one_pass(self.deadline.check, n_rows):
            self._active.rows.append(arena.rows, np.ones((arena.n_rows, 1), np.int32), owners=nothing)
        for group in self._active.rows.groups():
            self._share_out(self._learners, lambda learner, desk: learner.learn(group.table, self.deadline.check),  # noqa: B023
                            self._tables(len(group.table), len(group.table)))  # fmt: skip
        self._active = self._new_active()

    # --- groups that come by

    def _visit(self, arena, runs, busy: list) -> None:
        """Visits the rows of a group, and copies the active ones."""
        rows, seen = arena.rows, self._reading.seen
        bits = np.zeros((len(self._learners), -(-len(rows) // 8)), np.uint8)

        def visit(learner, desk):
            learner.see(rows, runs, desk, seen)
            if learner.is_enough or learner.state.course.newton:
                return
            chosen = np.empty(len(rows), np.uint8)
            learner.choose(rows, desk, chosen)
            bits[learner.number] = np.packbits(chosen)

        self._share_out(busy, visit)
        self.deadline.check()
        chosen, counts, owners = self._active.choose(bits, len(rows))
        of_them = arena.used * len(counts) // max(1, len(rows))
        following = any(learner.state.course.start is not None for learner in busy)
        if not following and not self._active.rows.has_room(len(counts), of_them, len(owners)):
            self._make_room(busy)
        self._active.add(rows, chosen, counts, owners)

    def _make_room(self, busy: list) -> None:
        """Sweeps the active rows in memory, so that those leave that are no longer active or, if need be, hardly so; if
        too few do, all go to the file."""
        if not (group := self._active.held()):
            return
        marks, by_row = self._sweep_some(group, busy, SWEEPS_FOR_ROOM)
        for level in range(len(ROOM_MARGINS)):
            n_kept = int((by_row >= level + 1).sum())
            if n_kept <= MOST_KEPT * len(by_row):
                self._active.leave(group, (marks >= level + 1).view(np.uint8))
                return
        self._active.rows.spill()

    def _sweep_some(self, group, busy: list, sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        """Sweeps rows in memory on the way; the levels of all pairs of a problem and a row, and of all rows."""
        slots = Slots(group, len(self._learners))
        marks = np.zeros(slots.n_pairs, np.uint8)

        def sweep(learner, desk):
            marks[slots.span(learner.number)] = learner.sweep_some(slots.table(learner.number), sweeps)

        self._share_out(busy, sweep, self._tables(len(group.table), slots.most))
        marks = slots.row_by_row(marks)
        if len(self._learners) == 1 or not len(marks):
            return marks, marks
        counts = group.alphas[:, 0]
        return marks, np.maximum.reduceat(marks, np.cumsum(counts) - counts)

    def _use_wait(self) -> bool:
        """Sweeps some of the active rows, if the disk is slow."""
        waited, enough = self._reading.wait, SLOW_SHARE * (time.perf_counter() - self._began)
        if self._config.threads > 1 and waited > max(SLOW_SECONDS, enough) and self._reading.read_seconds > enough:
            self._slow = True
        if not self._slow or not (group := self._active.part(self._turn + 1)):
            return False
        self._turn += 1
        self._sweep_some(group, self._busy, 1)
        return True

    # --- after a pass

    def _new_active(self) -> SharedRows:
        several, spare = len(self._learners) > 1, self._layout.spare_bytes
        matrices = sum(learner.state.course.newton is not None for learner in self._learners) if several else 0
        spare -= matrices * newton.ByPasses.n_bytes(self.blocks.n_features + 1)
        beside = max(BESIDE, TABLES * OWN_BYTES) if several else BESIDE
        return SharedRows(self.blocks.dtype, max(0, spare), len(self._learners), beside)

    def _tables(self, n_rows: int, most: int) -> list:
        """Threads that sweep tables of so many rows at most at a time, of rows in a group of so many."""
        return self._desks[: max(1, TABLES * n_rows // max(1, most))]

    def _end_pass(self, visiting: list) -> None:
        busy = [learner for learner in visiting if not learner.done]
        self._note_active(visiting)
        room = self._layout.spare_bytes // (1 if len(self._learners) == 1 else 2 * max(1, len(busy)))
        sweeping = [learner for learner in busy if not learner.descends(room)]
        for learner in sweeping:
            learner.begin_sweeps()
        if sweeping:
            self._sweep_active(sweeping)
        self._active.rows.close()
        self._active = self._new_active()
        for learner in sweeping:
            learner.end_sweeps()

    def _note_active(self, visiting: list) -> None:
        """How many rows are active, where all have been visited."""
        rows_by_problem = self._active.rows_by_problem
        for learner in visiting:
            course = learner.state.course
            course.visited_all = learner.state["visits"] == self.blocks.n_rows
            course.n_active = int(rows_by_problem[learner.number]) if course.visited_all else course.n_active
        if not visiting or any(learner.state.course.visited_all for learner in visiting):
            self._n_active = self._active.rows.n_rows

    def _sweep_active(self, learners: list) -> None:
        """Each problem sweeps all its active rows to the end, where they fit memory, after each other if need be."""
        # A part of tall data tells nearly all about w.
        if self._active.rows.fit or self.blocks.n_rows >= TALL * (self.blocks.n_features + 1):
            self._sweep_groups(self._active.rows.groups(), learners, Learner.sweep_to_the_end)
            return
        parts, left = self._parts(learners)
        for part in parts:
            group = self._active.of([learner.number for learner in part])
            self._sweep_groups(iter([group]), part, Learner.sweep_to_the_end)
            del group
        while left:
            for learner in left:
                learner.begin_round()
            self._sweep_groups(self._active.rows.groups(keep=True), left, Learner.sweep_a_little)
            left = [learner for learner in left if not learner.end_round()]

    def _parts(self, learners: list) -> tuple[list[list], list]:
        """Problems whose active rows fit memory together; and those that are left, whose own do not, or all where there
        are too many parts."""
        if len(self._learners) == 1:
            return [], learners
        parts, left, together, room = [], [], [], self._active.rows.memory
        for learner in learners:
            if self._active.bytes_of([learner.number]) > room:
                left.append(learner)
            elif together and self._active.bytes_of([one.number for one in [*together, learner]]) > room:
                parts.append(together)
                together = [learner]
            else:
                together.append(learner)
        parts += [together] if together else []
        return (parts, left) if len(parts) <= MOST_PARTS else ([], learners)

    def _sweep_groups(self, groups, learners: list, sweep) -> None:
        for group in groups:
            slots = Slots(group, len(self._learners))
            self._share_out(learners, lambda learner, desk: sweep(learner, slots.table(learner.number)),  # noqa: B023, F821
                            self._tables(len(group.table), slots.most))  # fmt: skip
            self.deadline.check()
            del group, slots

    def close(self) -> None:
        self._active.rows.close()
        super().close()
