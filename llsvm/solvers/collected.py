"""The active rows that a pass collects: swept on the way, where they fill memory or a disk is slow, and after it."""

from __future__ import annotations

import time

import numpy as np

from llsvm.reader import DUAL, ROW
from llsvm.shared import SharedRows, Slots
from llsvm.solvers import sample
from llsvm.solvers.between_passes import Sweeps
from llsvm.solvers.copies import Copies
from llsvm.solvers.dual_cd import Extrapolation
from llsvm.solvers.newton import ByPasses
from llsvm.solvers.streaming import Crew

# Where active rows fill the memory on the way, they are swept so many times, and those within a margin stay: the first
# of these that leaves no more than this part.
SWEEPS_FOR_ROOM, ROOM_MARGINS, MOST_KEPT = 2, (0.3, 0.1, 0.05), 0.9
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


def sweep_on_the_way(learner, table, sweeps: int) -> np.ndarray:
    """So many sweeps of active rows that are in memory; returns for each within how many of ROOM_MARGINS it is, free
    ones in all."""
    cd, duals, levels = learner.cd, learner.alphas.load(table), np.zeros(len(table), np.uint8)
    order = np.arange(len(table), dtype=np.int32)
    for _ in range(sweeps):
        if cd.deadline.passed:
            break
        cd.sweep(table, duals, order, len(order), counting=False)
    learner.alphas.keep(table, duals)
    chosen = np.empty(len(table), np.uint8)
    for margin in ROOM_MARGINS:
        cd.choose(table, duals, margin, chosen)
        levels += chosen
    return levels


class Collected:
    """The active rows of a pass, of all problems: `shared`."""

    def __init__(self, blocks, config, spare_bytes: int, learners: list, crew: Crew):
        self._blocks, self._n_threads, self._spare_bytes = blocks, config.threads, spare_bytes
        self._learners, self._crew = learners, crew
        self.shared, self._slow, self._turn, self._began = self._new(), False, 0, time.perf_counter()

    def _new(self) -> SharedRows:
        several, spare = len(self._learners) > 1, self._spare_bytes
        matrices = sum(learner.course.newton is not None for learner in self._learners) if several else 0
        spare -= matrices * ByPasses.n_bytes(self._blocks.n_features + 1)
        beside = max(BESIDE, TABLES * OWN_BYTES) if several else BESIDE
        return SharedRows(self._blocks.dtype, max(0, spare), len(self._learners), beside)

    def begin_again(self) -> None:
        """Without any row."""
        self.close()
        self.shared = self._new()

    def desks(self, n_rows: int, most: int) -> list:
        """Of threads that sweep tables of so many rows at most at a time, of rows in a group of so many."""
        return self._crew.desks[: max(1, TABLES * n_rows // max(1, most))]

    # --- on the way

    def add(self, arena, bits: np.ndarray, busy: list) -> None:
        """Copies the rows of a group of which bits[p] has the active ones of problem p."""
        rows = arena.rows
        chosen, counts, owners = self.shared.choose(bits, len(rows))
        of_them = arena.used * len(counts) // max(1, len(rows))
        following = any(learner.course.start is not None for learner in busy)
        if not following and not self.shared.rows.has_room(len(counts), of_them, len(owners)):
            self._make_room(busy)
        self.shared.add(rows, chosen, counts, owners)

    def _make_room(self, busy: list) -> None:
        """Sweeps the active rows in memory, so that those leave that are no longer active or, if need be, hardly so; if
        too few do, all go to the file."""
        if not (group := self.shared.held()):
            return
        marks, by_row = self._sweep_some(group, busy, SWEEPS_FOR_ROOM)
        for level in range(len(ROOM_MARGINS)):
            n_kept = int((by_row >= level + 1).sum())
            if n_kept <= MOST_KEPT * len(by_row):
                self.shared.leave(group, (marks >= level + 1).view(np.uint8))
                return
        self.shared.rows.spill()

    def _sweep_some(self, group, busy: list, sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        """Sweeps rows in memory on the way; the levels of all pairs of a problem and a row, and of all rows."""
        slots = Slots(group, len(self._learners))
        marks = np.zeros(slots.n_pairs, np.uint8)

        def sweep(learner, desk):
            marks[slots.span(learner.number)] = sweep_on_the_way(learner, slots.table(learner.number), sweeps)

        self._crew.share_out(busy, sweep, self.desks(len(group.table), slots.most))
        marks = slots.row_by_row(marks)
        if len(self._learners) == 1 or not len(marks):
            return marks, marks
        counts = group.alphas[:, 0]
        return marks, np.maximum.reduceat(marks, np.cumsum(counts) - counts)

    def use_wait(self, reading, busy: list) -> bool:
        """Sweeps some of the active rows, if the disk is slow."""
        waited, enough = reading.wait, SLOW_SHARE * (time.perf_counter() - self._began)
        if self._n_threads > 1 and waited > max(SLOW_SECONDS, enough) and reading.read_seconds > enough:
            self._slow = True
        if not self._slow or not (group := self.shared.part(self._turn + 1)):
            return False
        self._turn += 1
        self._sweep_some(group, busy, 1)
        return True

    # --- after a pass

    def sweep(self, learners: list, deadline) -> None:
        """Each problem sweeps all its active rows to the end, where they fit memory, after each other if need be."""
        rows, blocks = self.shared.rows, self._blocks
        # A part of tall data tells nearly all about w.
        if rows.fit or blocks.n_rows >= sample.TALL * (blocks.n_features + 1):
            self._sweep_groups(rows.groups(), learners, Sweeps.to_the_end, deadline)
            return
        parts, left = self._parts(learners)
        for part in parts:
            group = self.shared.of([learner.number for learner in part])
            self._sweep_groups(iter([group]), part, Sweeps.to_the_end, deadline)
            del group
        while left:
            for learner in left:
                learner.sweeps.begin_round()
            self._sweep_groups(rows.groups(keep=True), left, Sweeps.a_little, deadline)
            left = [learner for learner in left if not learner.sweeps.end_round()]

    def _parts(self, learners: list) -> tuple[list[list], list]:
        """Problems whose active rows fit memory together; and those that are left, whose own do not, or all where there
        are too many parts."""
        if len(self._learners) == 1:
            return [], learners
        parts, left, together = [], [], []
        for learner in learners:
            if not self._fit([learner]):
                left.append(learner)
            elif together and not self._fit([*together, learner]):
                parts.append(together)
                together = [learner]
            else:
                together.append(learner)
        parts += [together] if together else []
        return (parts, left) if len(parts) <= MOST_PARTS else ([], learners)

    def _fit(self, learners: list) -> bool:
        """Whether the active rows of these do."""
        return self.shared.bytes_of([learner.number for learner in learners]) <= self.shared.rows.memory

    def _sweep_groups(self, groups, learners: list, sweep, deadline) -> None:
        for group in groups:
            slots = Slots(group, len(self._learners))

            def work(learner, desk, slots=slots):
                sweep(learner.sweeps, slots.table(learner.number))

            self._crew.share_out(learners, work, self.desks(len(group.table), slots.most))
            deadline.check()
            del group, slots, work

    def close(self) -> None:
        self.shared.rows.close()
