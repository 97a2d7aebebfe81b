"""Dual coordinate descent from disk with shrinking that is put right: the repair of the LLSVM paper's method.

Every full pass, over random groups of chunks, visits all rows once and collects the active ones: those whose alpha is
free or that are near the margin. These are then swept on their own, in memory or from a file, so that a pass over all
data is followed by many visits where they matter. What a pass missed, the next one finds; the certified gap says when
to stop. All problems visit a group while it is in memory, and each sweeps its own active rows.
"""

from __future__ import annotations

import numpy as np

from llsvm.reader import DUAL, rows_bytes
from llsvm.solvers import newton, sample
from llsvm.solvers.between_passes import Sweeps
from llsvm.solvers.collected import Collected
from llsvm.solvers.sample import Sample
from llsvm.solvers.streaming import Desk, Plan, Streaming
from llsvm.solvers.visitor import Visitor

MARGIN = 0.1
SAMPLE_MEMORY = 0.7  # of that of active rows
# Of a group in the first pass, where all rows share a bias.
FIRST_VISITS = 2


class Learner(Visitor):
    """One problem: a sample, visits of rows, sweeps of the active ones, and Newton's method, as each is due."""

    may_look = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._sample, self.sweeps = Sample(self.cd), None

    # --- the rows of a group

    def _visit(self, rows, duals, order) -> None:
        course = self.course
        if course.start is not None:
            self._follow_start(rows, duals)
        if course.start is not None:
            return
        order[:] = np.arange(len(rows))
        for number in range(FIRST_VISITS if not course.n_passes and self.cd.problem.bias else 1):
            # Other threads read meanwhile, or visit these rows for other problems.
            self.cd.sweep(rows, duals, order, len(order), together=False, counting=number == 0)

    def _follow_start(self, rows, duals) -> None:
        """Gives rows the alphas that belong to the w of the sample, if it holds for the first of them, or to that of
        Newton's method."""
        sums, cd, course = np.zeros(3), self.cd, self.course
        cd.look(rows, duals, course.start, sums)
        if not course.newton and not course.start_loss and not self._sample.holds(sums[0] / len(rows)):
            course.start = None
            return
        course.start_loss += sums[0]
        cd.adopt(rows, duals, sums[1:], cd.state.w)
        cd.state.add_alphas(sums[1:])
        cd.state.sums["visits"] += len(rows)
        if course.newton:
            course.newton.add(rows, duals, cd.steps, cd.kind)

    def choose(self, rows, desk: Desk, chosen) -> None:
        """Which of the rows just visited are active."""
        margin = MARGIN if self.course.start is None else sample.MARGIN
        self.cd.choose(rows, desk.duals[: len(rows)], margin, chosen)

    # --- a sample

    def learn(self, table, check) -> None:
        """Solves the sample, whose dual variables are then forgotten."""
        duals, order, visits = np.zeros(len(table), DUAL), np.arange(len(table), dtype=np.int32), 0
        state = self.cd.state
        while not visits or not self._sample.is_learnt(visits / self.alphas.n_rows):
            state.begin_pass()
            self.cd.sweep(table, duals, order, len(order))
            visits += len(order)
            check()
        self.course.start, state.w = state.w, np.zeros_like(state.w)
        state.set_alphas((0, 0))

    # --- after a pass

    def descends(self, room: int) -> bool:
        """Newton's method, where it is due: a step a pass, in which all rows get the alphas of its w. True where there
        is nothing else to be done after this pass."""
        cd, course = self.cd, self.course
        if course.newton:
            cd.certify(course.start, course.start_loss)
            if cd.done:
                return True
            if not course.newton.step(course.start_loss, course.start - cd.state.w, cd.deadline.check):
                course.start = course.newton = None
                return True
        elif cd.problem.is_bounded or not newton.ByPasses.fits(len(cd.state.w), course.n_passes, self.alphas.n_rows,
                                                               room):  # fmt: skip
            return False
        else:
            course.newton = newton.ByPasses(cd.state.w if cd.best_w is None else cd.best_w)
        course.start, course.start_loss = course.newton.w, 0.0
        cd.state.w[:] = 0.0
        cd.state.set_alphas((0, 0))
        return True

    def begin_sweeps(self) -> None:
        """Of the active rows."""
        met = self.met
        gap = met.primal - met.dual if met.primal < np.inf else self.cd.certified.gap
        self.sweeps = Sweeps(self.cd, self.alphas, self.course.n_active, gap, self.inner)

    def end_sweeps(self) -> None:
        """The alphas of all rows belong to w."""
        course = self.course
        if course.start is not None and not course.newton:
            self.cd.certify(course.start, course.start_loss)
            course.start = None


class Shrinking(Plan):
    """Groups of chunks that fill an arena, every chunk once a pass; active rows are swept between passes. In the very
    first pass a sample of tall data comes before."""

    visitor = Learner

    def __init__(self, blocks, config, layout, learners: list, crew):
        super().__init__(blocks, config, layout, learners, crew)
        self._active = Collected(blocks, config, layout.spare_bytes, learners, crew)
        self._sample = np.empty(0, np.int32)  # chunks

    def groups(self):
        for number, order in enumerate(self._orders(np.arange(self.blocks.n_chunks, dtype=np.int32))):
            if number + self._n_passes_before == 0:
                self._sample = self._choose_sample(order)
                yield from self._layout.groups(self._sample)
            yield from self._layout.groups(order)

    # --- a sample

    def _choose_sample(self, order: np.ndarray) -> np.ndarray:
        """The first of these chunks, if the data are tall: a part of the rows, and no more than fit."""
        blocks, cd = self.blocks, self._learners[0].cd
        rows, nonzeros = np.cumsum(blocks.chunk_rows[order]), np.cumsum(blocks.chunk_nonzeros[order])
        fits = rows_bytes(rows, nonzeros, blocks.dtype.itemsize) <= SAMPLE_MEMORY * self._layout.spare_bytes
        count = int((fits & (rows <= blocks.n_rows // sample.SHARE)).sum())
        n_told = sample.SHARE * int(rows[count - 1]) if count else 0
        return order[: count if sample.is_tall(cd.problem, n_told, len(cd.state.w)) else 0].copy()

    def prepare(self, reading, deadline) -> None:
        if not len(self._sample):
            return
        n_rows, nobody = int(self.blocks.chunk_rows[self._sample].sum()), np.empty(0, np.uint16)
        for arena, _ in reading.one_pass(deadline.check, n_rows):
            self._active.shared.rows.append(arena.rows, np.ones((arena.n_rows, 1), np.int32), owners=nobody)
        for group in self._active.shared.rows.groups():
            desks = self._active.desks(len(group.table), len(group.table))
            self._crew.share_out(
                self._learners, lambda learner, desk: learner.learn(group.table, deadline.check), desks)  # noqa: B023
        self._active.begin_again()

    # --- a pass

    def visit(self, arena, runs, busy: list, seen: float) -> None:
        """Visits the rows of a group, and copies the active ones."""
        rows = arena.rows
        bits = np.zeros((len(self._learners), -(-len(rows) // 8)), np.uint8)

        def visit(learner, desk):
            learner.see(rows, runs, desk, seen)
            if learner.is_enough or learner.course.newton:
                return
            chosen = np.empty(len(rows), np.uint8)
            learner.choose(rows, desk, chosen)
            bits[learner.number] = np.packbits(chosen)

        self._crew.share_out(busy, visit)
        self._crew.deadline.check()
        self._active.add(arena, bits, busy)

    def use_wait(self, reading, busy: list) -> bool:
        return self._active.use_wait(reading, busy)

    def end_pass(self, visiting: list, deadline) -> None:
        busy = [learner for learner in visiting if not learner.cd.done]
        self._note_active(visiting)
        room = self._layout.spare_bytes // (1 if len(self._learners) == 1 else 2 * max(1, len(busy)))
        sweeping = [learner for learner in busy if not learner.descends(room)]
        for learner in sweeping:
            learner.begin_sweeps()
        if sweeping:
            self._active.sweep(sweeping, deadline)
        self._active.begin_again()
        for learner in sweeping:
            learner.end_sweeps()

    def _note_active(self, visiting: list) -> None:
        """How many rows are active, where all have been visited."""
        rows_by_problem = self._active.shared.rows_by_problem
        for learner in visiting:
            course = learner.course
            course.visited_all = learner.cd.state["visits"] == self.blocks.n_rows
            course.n_active = int(rows_by_problem[learner.number]) if course.visited_all else course.n_active
        if not visiting or any(learner.course.visited_all for learner in visiting):
            self.n_active = self._active.shared.rows.n_rows

    def close(self) -> None:
        self._active.close()


class FromDisk(Streaming):
    """Sweeps the active rows between passes."""

    plan_type = Shrinking
