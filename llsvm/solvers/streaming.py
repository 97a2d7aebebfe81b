"""Dual coordinate descent from disk, group by group: what `dual` out of core and `block` share, and `block` itself."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llsvm.alphas import Alphas
from llsvm.core import Certificate
from llsvm.evaluate import total_loss
from llsvm.memory import check_vectors
from llsvm.reader import DUAL, shuffle
from llsvm.solvers.dual_cd import DualCD
from llsvm.solvers.layout import DESKS, VECTORS, Layout, Reading
from llsvm.solvers.learners import Learners
from llsvm.solvers.machines import MACHINE_BYTES
from llsvm.solvers.newton import ByPasses
from llsvm.solvers.team import Team
from llsvm.solvers.together import half_square

WORTH_CERTIFYING = 20
# Behind this part of the rows they are only looked at, as long as the gap, by those seen, is within this part of -e.
FIRST_LOOK, ENOUGH = 1 / 16, 0.8
ALPHAS_TOGETHER = 1 << 15


@dataclass
class Course:
    """Where a Visitor stands between two passes.

    estimate: of its relative gap; visited_all: whether the pass before did; n_active: rows to be swept between passes.
    start: the w to which rows are given the alphas, that of a sample or of Newton's method, and the loss of those that
    have got them.
    """

    n_passes: int = 0
    estimate: float = np.inf
    visited_all: bool = True
    n_active: int = 0
    start: np.ndarray | None = None
    start_loss: float = 0.0
    newton: ByPasses | None = None


class Rows:
    """What the problems of a block set share: where each row's dual variables stand, those of one problem together."""

    def __init__(self, blocks, alphas: Alphas):
        self.n_rows, self.alphas = blocks.n_rows, alphas
        self._first_rows = np.concatenate([[0], np.cumsum(blocks.chunk_rows)])
        self._starts = self._first_rows.tolist()

    def runs(self, group) -> list[tuple[int, int, int]]:
        """Of the chunks of a group: (where its rows begin in the group, and end, and begin in the set)."""
        ends = np.cumsum([0, *(self._starts[chunk + 1] - self._starts[chunk] for chunk in group)]).tolist()
        return [(*span, self._starts[chunk]) for span, chunk in zip(pairwise(ends), group, strict=True)]

    def positions(self, rows) -> np.ndarray:
        return self._first_rows[rows["chunk"]] + rows["place"]


class Desk:
    """What it takes to visit the rows of a group."""

    def __init__(self, n_rows: int):
        self.duals, self.order = np.zeros(n_rows, DUAL), np.empty(n_rows, np.int32)


class Visitor(DualCD):
    """One problem, whose rows come by group by group.

    The w that a pass began with is certified on the way, by one more dot per row, against the dual value at its end.
    """

    def __init__(self, problem, config, rows: Rows, number: int, kind, rounding: bool, size: int, state=None):
        super().__init__(problem, config, size, kind, rounding, state)
        self._rows, self.number, self._first = rows, number, number * rows.n_rows
        self.state.course = self.state.course or Course()
        self._snapshot, self._loss, self._gap, self._dual_before = None, 0.0, 0.0, 0.0
        self.is_enough = False

    @property
    def done(self) -> bool:
        return self._is_done()

    @property
    def last_w(self) -> np.ndarray:
        """The w to be looked at: that of the sample, as long as rows are given the alphas that belong to it."""
        start = self.state.course.start
        return self.state.w if start is None else start

    @property
    def met(self) -> Certificate:
        """The objectives with the losses met in the pass, if it visited all rows."""
        square = half_square(self.state.w)
        loss = self.state["losses"] if self.state["visits"] == self._rows.n_rows else np.inf
        return Certificate(square + loss, self.state.dual_at(square))

    def begin_pass(self) -> None:
        course = self.state.course
        looking = course.start is None and course.estimate <= WORTH_CERTIFYING * self.problem.tolerance
        self._snapshot = self.state.w.copy() if looking else None
        self._loss, self._gap, self._dual_before, self.is_enough = 0.0, 0.0, self.dual if looking else 0.0, False
        self.state.begin_pass()

    def see(self, rows, runs, desk: Desk, seen: float) -> None:
        """Looks at the rows of a group and visits them, unless that is no longer needed. seen: the part of all rows
        that will have come by then."""
        duals = desk.duals[: len(rows)]
        if not self.state.course.n_passes:  # all alphas are 0
            duals[:] = 0
        else:
            for start, end, first in runs:
                duals["alpha"][start:end] = self._rows.alphas.read(self._first + first, end - start)
        if self._snapshot is not None:
            self._look(rows, duals, seen)
        if self.is_enough:
            return
        self._visit(rows, duals, desk.order[: len(rows)])
        for start, end, first in runs:
            self._rows.alphas.write(self._first + first, duals["alpha"][start:end])

    def _look(self, rows, duals, seen: float) -> None:
        """As long as the w of the pass's beginning seems good enough, rows are only looked at."""
        sums, before = np.zeros(3), self._dual_before
        self._look_at(rows, duals, self._snapshot, sums)
        self._loss, self._gap = self._loss + sums[0], self._gap + sums[1]
        estimate = Certificate(before + self._gap / seen, before).relative_gap
        may_be = self.may_look and self.state.course.visited_all and seen >= FIRST_LOOK
        self.is_enough = may_be and estimate <= ENOUGH * self.problem.tolerance

    may_look = False  # whether a pass may end by looking alone

    def _visit(self, rows, duals, order) -> None:
        raise NotImplementedError

    def end_look(self) -> None:
        """After the last row of a pass, which certified the w that it began with."""
        self.state.course.n_passes += 1
        if self._snapshot is not None:
            self._certify(self._snapshot, self._loss)
        self._snapshot = None  # makes room for an Extrapolation

    def end_pass(self) -> None:
        """After all that belongs to a pass."""
        self.state.best.raise_dual(self.met.dual)
        met = self.met
        self.state.course.estimate = min(met.estimate, (self.certified or met).relative_gap)

    def begin_look(self) -> None:
        self._loss = 0.0

    def look(self, rows) -> None:
        self._loss += total_loss(rows, self.last_w, self.problem, self._kind)

    def certify(self) -> None:
        """After a look at all rows."""
        self._certify(self.last_w, self._loss)

    def release(self) -> None:
        self.state.w = self.state.best.w = self.state.course = None


class Streaming(Learners):
    """Rows from disk, group by group: a pass loads every chunk once, for all problems that are not done."""

    visitor, whole_blocks = Visitor, False

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int, int]:
        """As that of InMemory, but no row stays."""
        return (n_labels, VECTORS, MACHINE_BYTES, 0) if n_labels > 2 else (1, 2, 0, 0)

    @staticmethod
    def check_room(description, config) -> None:
        """Before there are problems: refuses a budget in which those of many classes do not fit."""
        columns, *vectors, _ = Streaming.footprint(config, len(description.labels))
        if columns > 1:
            check_vectors(description.n_features, columns, config.memory, *vectors)

    def __init__(self, problems: list, config, blocks, states: list | None = None):
        super().__init__(problems, config)
        rounding = all(problem.may_round for problem in problems)
        self.blocks, self._layout = blocks, Layout(blocks, config, len(problems), rounding, self.whole_blocks)
        alphas = states[0].alphas if states else None
        if alphas is None:
            alphas = Alphas(blocks.n_rows * len(problems), self._layout.alpha_type, self._layout.alphas_fit)
        self._rows, kind = Rows(blocks, alphas), np.zeros(1, blocks.dtype)
        for number, (problem, state) in enumerate(zip(problems, states or [None] * len(problems), strict=True)):
            learner = self.visitor(problem, config, self._rows, number, kind, rounding, blocks.n_features + 1, state)
            learner.state.alphas = alphas
            self._learners.append(learner)
        self._gather_team()
        self._n_passes_before = self._n_passes
        n_desks = min(DESKS, config.threads, len(problems))
        self._desks = [Desk(self._layout.group_rows) for _ in range(n_desks)]
        self._reading = Reading(blocks, self._layout, self._plan())

    def _gather_team(self) -> None:
        """Threads that sweep one problem together; where there are several, each sweeps one."""
        if self._config.threads > 1 and len(self._learners) == 1:
            [learner] = self._learners
            self._team = Team(self._config.threads, self.blocks.description, learner.problem.is_bounded)
            learner.team = self._team

    @property
    def _n_passes(self) -> int:
        return max(learner.state.course.n_passes for learner in self._learners)

    def _orders(self, units: np.ndarray):
        """A random order of these a pass, for ever, from the next pass on."""
        n_passes = 0
        while True:
            shuffle(units, len(units), ~self._config.seed & (2**64 - 1), n_passes)
            n_passes += 1
            if n_passes > self._n_passes_before:
                yield units

    def _share_out(self, learners: list, work, desks: list | None = None) -> None:
        """work(learner, desk) for each of these, by several threads; when the time for training is over, the others are
        left as they are."""
        desks, supply = desks or self._desks, iter(learners)

        def work_on(desk):
            for learner in supply:  # which all threads take from
                if self.deadline.passed:
                    return
                work(learner, desk)

        run = self._pool.map if len(learners) > 1 and len(desks) > 1 else map
        list(run(work_on, desks if len(learners) > 1 else desks[:1]))

    def passes(self):
        for learner in self._learners:
            learner.deadline = self.deadline
        self._prepare()
        while True:
            start, waited, busy = time.perf_counter(), self._reading.wait, self._busy
            for learner in busy:
                learner.begin_pass()
            self._pass(busy)
            for learner in busy:
                learner.end_look()
            self._end_pass(busy)
            self.wait, self.bytes_read = self._reading.wait, self._reading.bytes_read
            self.compute += time.perf_counter() - start - (self.wait - waited)
            for learner in busy:
                learner.end_pass()
            visits = max((int(learner.state["visits"]) for learner in busy), default=0)
            yield self._stats(self._n_passes, visits, self._n_active)

    _n_active = 0  # rows that are swept between passes

    def _prepare(self) -> None:
        """Before the first pass."""

    def _pass(self, busy: list) -> None:
        for arena, group in self._reading.one_pass(self.deadline.check, use_wait=self._use_wait):
            self._visit(arena, self._rows.runs(group), busy)
            self._progress(self._reading.seen)

    def _visit(self, arena, runs, busy: list) -> None:
        seen = self._reading.seen
        self._share_out(busy, lambda learner, desk: learner.see(arena.rows, runs, desk, seen))

    def _use_wait(self) -> bool:
        return False

    def _end_pass(self, visiting: list) -> None:
        """The rows of a pass have come by, to these problems."""

    def _certify(self) -> None:
        """The gaps of all w as they are now: one pass that only reads."""
        self._reading.begin_again()
        busy = self._busy
        for learner in busy:
            learner.begin_look()
        self.deadline.check()
        for arena, _ in self._reading.one_pass(self.deadline.check):
            self._share_out(busy, lambda learner, desk: learner.look(arena.rows))  # noqa: B023
            self.wait, self.bytes_read = self._reading.wait, self._reading.bytes_read
        for learner in busy:
            learner.certify()

    def tables(self):
        """All rows once more, after training, group by group."""
        self._reading.begin_again()
        for arena, _ in self._reading.one_pass(self.deadline.check):
            yield arena.rows
            self.wait, self.bytes_read = self._reading.wait, self._reading.bytes_read

    def close(self) -> None:
        super().close()
        self._reading.close()
        self._desks = self._rows = None


class BlockVisitor(Visitor):
    """Solves the block that is in memory."""

    def _visit(self, rows, duals, order) -> None:
        self._solve(rows, duals, 1 if self._config.inner is None else self._config.inner)


class Blocks(Streaming):
    """The block minimisation of Yu et al. (KDD 2010), Algorithm 2: fixed blocks in random order, each solved by
    `inner` sweeps (BLOCK-L-N) or until LIBLINEAR's stopping condition holds in it (BLOCK-L-D, inner = 0); of several
    problems, each solves the block that is in memory (section 6.2)."""

    visitor, whole_blocks = BlockVisitor, True

    def _plan(self):
        for order in self._orders(np.unique(self.blocks.chunk_block).astype(np.int32)):
            for block in order:
                yield self.blocks.block_chunks(block).tolist()
