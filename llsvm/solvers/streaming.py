"""Any number of problems from disk, group by group: what `dual` out of core and `block` share."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from llsvm.alphas import Alphas
from llsvm.core import NEVER, Certificate
from llsvm.evaluate import total_loss
from llsvm.pool import Pool
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


class OwnAlphas:
    """The alphas of one problem, which stand together: n_rows of those of all problems, in the order of the set.

    first_rows: where the rows of every chunk begin in the set, and the last end.
    """

    def __init__(self, alphas: Alphas, first_rows: np.ndarray, number: int):
        self._alphas, self._first_rows, self.n_rows = alphas, first_rows, int(first_rows[-1])
        self._first = number * self.n_rows

    def read(self, runs, duals) -> None:
        """Of the rows of a group, in runs (where they begin in the group, and end, and begin in the set)."""
        for start, end, first in runs:
            duals["alpha"][start:end] = self._alphas.read(self._first + first, end - start)

    def write(self, runs, duals) -> None:
        for start, end, first in runs:
            self._alphas.write(self._first + first, duals["alpha"][start:end])

    def load(self, table) -> np.ndarray:
        """Duals of any rows."""
        duals = np.zeros(len(table), DUAL)
        for part, positions in self._positions(table):
            duals["alpha"][part] = self._alphas.gather(positions)
        return duals

    def keep(self, table, duals) -> None:
        for part, positions in self._positions(table):
            self._alphas.scatter(positions, duals["alpha"][part])

    def _positions(self, table):
        """Yields (rows, where their alphas are kept), of so many rows that what is made for each is small."""
        for start in range(0, len(table), ALPHAS_TOGETHER):
            part = slice(start, start + ALPHAS_TOGETHER)
            rows = table[part]
            yield part, self._first + (self._first_rows[rows["chunk"]] + rows["place"])


@dataclass
class Look:
    """What is seen of w as rows come by: their loss and their part of the gap, beside the D of the look's beginning."""

    w: np.ndarray
    dual: float
    loss: float = 0.0
    gap: float = 0.0

    def estimate(self, seen: float) -> float:
        """Of the relative gap, when this part of all rows has come by."""
        return Certificate(self.dual + self.gap / seen, self.dual).relative_gap


class Visitor:
    """One problem, whose rows come by group by group.

    The w that a pass began with is certified on the way, by one more dot per row, against the dual value at its end.
    """

    may_look = False  # whether a pass may end by looking alone

    def __init__(self, cd: DualCD, alphas: OwnAlphas, number: int, inner: int | None):
        self.cd, self.alphas, self.number, self.inner = cd, alphas, number, inner
        cd.state.course = cd.state.course or Course()
        self._seen, self.is_enough = None, False

    @property
    def course(self) -> Course:
        return self.cd.state.course

    @property
    def last_w(self) -> np.ndarray:
        """The w to be looked at: that of the sample, as long as rows are given the alphas that belong to it."""
        return self.cd.state.w if self.course.start is None else self.course.start

    @property
    def met(self) -> Certificate:
        """The objectives with the losses met in the pass, if it visited all rows."""
        state = self.cd.state
        square = half_square(state.w)
        loss = state["losses"] if state["visits"] == self.alphas.n_rows else np.inf
        return Certificate(square + loss, state.dual_at(square))

    def begin_pass(self) -> None:
        cd, course = self.cd, self.course
        looking = course.start is None and course.estimate <= WORTH_CERTIFYING * cd.problem.tolerance
        self._seen, self.is_enough = Look(cd.state.w.copy(), cd.dual) if looking else None, False
        cd.state.begin_pass()

    def see(self, rows, runs, desk: Desk, seen: float) -> None:
        """Looks at the rows of a group and visits them, unless that is no longer needed. seen: the part of all rows
        that will have come by then."""
        duals = desk.duals[: len(rows)]
        if not self.course.n_passes:  # all alphas are 0
            duals[:] = 0
        else:
            self.alphas.read(runs, duals)
        if self._seen is not None:
            self._look(rows, duals, seen)
        if self.is_enough:
            return
        self._visit(rows, duals, desk.order[: len(rows)])
        self.alphas.write(runs, duals)

    def _look(self, rows, duals, seen: float) -> None:
        """As long as the w of the pass's beginning seems good enough, rows are only looked at."""
        sums, look = np.zeros(3), self._seen
        self.cd.look(rows, duals, look.w, sums)
        look.loss, look.gap = look.loss + sums[0], look.gap + sums[1]
        may_be = self.may_look and self.course.visited_all and seen >= FIRST_LOOK
        self.is_enough = may_be and look.estimate(seen) <= ENOUGH * self.cd.problem.tolerance

    def _visit(self, rows, duals, order) -> None:
        raise NotImplementedError

    def end_look(self) -> None:
        """After the last row of a pass, which certified the w that it began with."""
        self.course.n_passes += 1
        if self._seen is not None:
            self.certify()
        self._seen = None  # makes room for an Extrapolation

    def end_pass(self) -> None:
        """After all that belongs to a pass."""
        met = self.met
        self.cd.state.best.raise_dual(met.dual)
        self.course.estimate = min(met.estimate, (self.cd.certified or met).relative_gap)

    def begin_look(self) -> None:
        self._seen = Look(self.last_w, 0.0)

    def look(self, rows) -> None:
        self._seen.loss += total_loss(rows, self._seen.w, self.cd.problem, self.cd.kind)

    def certify(self) -> None:
        """After a look at all rows."""
        self.cd.certify(self._seen.w, self._seen.loss)

    def release(self) -> None:
        self.cd.state.w = self.cd.state.best.w = self.cd.state.course = self._seen = None


def make_visitors(kind: type, problems: list, config, blocks, layout: Layout, states: list | None) -> list[Visitor]:
    """One of this kind for each problem."""
    alphas = states[0].alphas if states else None
    if alphas is None:
        alphas = Alphas(blocks.n_rows * len(problems), layout.alpha_type, layout.alphas_fit)
    first_rows, values = np.concatenate([[0], np.cumsum(blocks.chunk_rows)]), np.zeros(1, blocks.dtype)
    visitors = []
    for number, (problem, state) in enumerate(zip(problems, states or [None] * len(problems), strict=True)):
        cd = DualCD(problem, config.seed, blocks.n_features + 1, values, layout.rounds, state)
        cd.state.alphas = alphas
        visitors.append(kind(cd, OwnAlphas(alphas, first_rows, number), number, config.inner))
    return visitors


class Desk:
    """What it takes to visit the rows of a group."""

    def __init__(self, n_rows: int):
        self.duals, self.order = np.zeros(n_rows, DUAL), np.empty(n_rows, np.int32)


class Crew:
    """Threads that work for one problem each, or, where there is but one, the Team that sweeps it together."""

    deadline = NEVER

    def __init__(self, config, learners: list, group_rows: int, description):
        self._pool, self._team = Pool(config.threads), None
        self.desks = [Desk(group_rows) for _ in range(min(DESKS, config.threads, len(learners)))]
        if config.threads > 1 and len(learners) == 1:
            [learner] = learners
            learner.cd.team = self._team = Team(config.threads, description, learner.cd.problem.is_bounded)

    def share_out(self, learners: list, work, desks: list | None = None) -> None:
        """work(learner, desk) for each of these, by several threads; when the time for training is over, the others are
        left as they are."""
        desks, supply = desks or self.desks, iter(learners)

        def work_on(desk):
            for learner in supply:  # which all threads take from
                if self.deadline.passed:
                    return
                work(learner, desk)

        run = self._pool.map if len(learners) > 1 and len(desks) > 1 else map
        list(run(work_on, desks if len(learners) > 1 else desks[:1]))

    def close(self) -> None:
        if self._team:
            self._team.close()
        self._pool.shutdown()


class Plan:
    """Which chunks come together and in which order, and what is done with their rows and between passes."""

    visitor, whole_blocks = Visitor, False
    n_active = 0  # rows that are swept between passes

    def __init__(self, blocks, config, layout: Layout, learners: list, crew: Crew):
        self.blocks, self._seed, self._layout, self._learners, self._crew = blocks, config.seed, layout, learners, crew
        self._n_passes_before = max(learner.course.n_passes for learner in learners)

    def _orders(self, units: np.ndarray):
        """A random order of these a pass, for ever, from the next pass on."""
        n_passes = 0
        while True:
            shuffle(units, len(units), ~self._seed & (2**64 - 1), n_passes)
            n_passes += 1
            if n_passes > self._n_passes_before:
                yield units

    def groups(self):
        """Yields lists of chunks, for ever."""
        raise NotImplementedError

    def prepare(self, reading: Reading, deadline) -> None:
        """Before the first pass."""

    def visit(self, arena, runs, busy: list, seen: float) -> None:
        """The rows of a group come by."""
        self._crew.share_out(busy, lambda learner, desk: learner.see(arena.rows, runs, desk, seen))

    def use_wait(self, reading: Reading, busy: list) -> bool:
        """The next rows are not there yet: some work, or False if there is none."""
        return False

    def end_pass(self, visiting: list, deadline) -> None:
        """The rows of a pass have come by, to these problems."""

    def close(self) -> None:
        pass


class Streaming(Learners):
    """Rows from disk, group by group: a pass loads every chunk once, for all problems that are not done."""

    plan_type = Plan

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int, int]:
        """As that of InMemory, but no row stays."""
        return (n_labels, VECTORS, MACHINE_BYTES, 0) if n_labels > 2 else (1, 2, 0, 0)

    @staticmethod
    def check_room(description, config) -> None:
        """Before there are problems: refuses a budget in which those of many classes do not fit."""
        columns, *vectors, _ = Streaming.footprint(config, len(description.labels))
        if columns > 1:
            config.budget.take_weights(description.n_features, columns, *vectors)

    def __init__(self, problems: list, config, blocks, states: list | None = None):
        super().__init__(problems)
        layout = Layout(blocks, config, problems, self.plan_type.whole_blocks)
        self._learners = make_visitors(self.plan_type.visitor, problems, config, blocks, layout, states)
        self._crew = Crew(config, self._learners, layout.group_rows, blocks.description)
        self._plan = self.plan_type(blocks, config, layout, self._learners, self._crew)
        self._reading = Reading(blocks, layout, self._plan.groups())

    def passes(self):
        reading, plan, self._crew.deadline = self._reading, self._plan, self.deadline
        for learner in self._learners:
            learner.cd.deadline = self.deadline
        plan.prepare(reading, self.deadline)
        while True:
            start, waited, busy = time.perf_counter(), reading.wait, self._busy
            for learner in busy:
                learner.begin_pass()
            self._make_pass(busy)
            self.wait, self.bytes_read = reading.wait, reading.bytes_read
            self.compute += time.perf_counter() - start - (self.wait - waited)
            for learner in busy:
                learner.end_pass()
            visits = max((int(learner.cd.state["visits"]) for learner in busy), default=0)
            n_passes = max(learner.course.n_passes for learner in self._learners)
            yield self._stats(n_passes, visits, plan.n_active)

    def _make_pass(self, busy: list) -> None:
        reading, plan = self._reading, self._plan
        for arena, runs in reading.one_pass(self.deadline.check, use_wait=lambda: plan.use_wait(reading, busy)):
            plan.visit(arena, runs, busy, reading.seen)
            self._progress(reading.seen)
        for learner in busy:
            learner.end_look()
        plan.end_pass(busy, self.deadline)

    def _certify(self) -> None:
        """The gaps of all w as they are now: one pass that only reads."""
        self._crew.deadline, busy = self.deadline, self._busy
        for learner in busy:
            learner.begin_look()
        self.deadline.check()
        for rows in self.tables():
            self._crew.share_out(busy, lambda learner, desk: learner.look(rows))  # noqa: B023
        for learner in busy:
            learner.certify()

    def tables(self):
        """All rows once more, group by group."""
        self._reading.begin_again()
        for arena, _ in self._reading.one_pass(self.deadline.check):
            yield arena.rows
            self.wait, self.bytes_read = self._reading.wait, self._reading.bytes_read

    def close(self) -> None:
        self._plan.close()
        self._crew.close()
        super().close()
        self._reading.close()
        self._plan = self._crew = None
