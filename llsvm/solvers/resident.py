"""Rows in memory: any number of problems by dual coordinate descent, with shrinking, and surveys of all rows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from llsvm.core import NEVER, Certificate
from llsvm.memory import Footprint
from llsvm.pool import Pool
from llsvm.reader import DUAL, Resident, shuffle
from llsvm.solvers import newton, sample
from llsvm.solvers.copies import Copies
from llsvm.solvers.dual_cd import DualCD, Extrapolation, choose_slots, parts_of
from llsvm.solvers.learners import Learners
from llsvm.solvers.machines import MACHINE_BYTES
from llsvm.solvers.sample import Sample
from llsvm.solvers.team import Team
from llsvm.solvers.together import half_square

# Of the mean change of margins between two surveys: rows so near to theirs are active.
NEAR = 0.2
# A survey is due when the active rows have so much of the gap that the last one found, or of the tolerance, or after so
# many visits by rows of the data.
MUCH, ENOUGH, VISITS = 0.3, 0.8, 4


@dataclass
class Course:
    """Where a Learner stands between two sweeps: order[:n_active] are the slots of its active rows.

    visited: visits since the last survey, by which the margin and the gap were found; effort: visits in all since
    Newton's method was tried, which is due after patience visits by rows.
    """

    order: np.ndarray
    n_active: int
    patience: float
    is_sample: bool = False
    extrapolation: Extrapolation | None = None
    fresh: bool = True
    visited: float = 0.0
    effort: float = 0.0
    gap: float = np.inf
    margin: float = np.inf

    def take_all(self) -> None:
        """All rows are active, and nothing is known of them."""
        self.n_active, self.extrapolation, self.gap, self.margin = len(self.order), None, np.inf, np.inf
        self.order[:] = np.arange(len(self.order))


class Learner:
    """One problem: sweeps of its active rows, with shrinking as in LIBLINEAR, and surveys of all rows.

    A survey gives the loss at w, and decides which rows are active: those whose alpha is free or wrong, and those that
    w, changing on as it did since the survey before, may well bring to the margin.

    Where there are many rows by features, a sample of them comes first, and the alphas of all rows are then those that
    belong to its w (docs/sampling.md). With squared hinge loss Newton's method comes where sweeps are slow
    (docs/newton.md), if there is memory for it (may_descend).
    """

    def __init__(self, problem, config, data: Resident, duals: np.ndarray, state=None):
        self.cd = DualCD(problem, config.seed, data.description.n_features + 1, data.kind, state=state)
        self._sample, self._table, self.may_descend = Sample(self.cd), data.table, False
        self.n_passes, self.visits, self._square, self.met = 0, 0, 0.0, Certificate(np.inf, 0.0)
        if state is not None and state.duals is not duals:
            duals[:] = state.duals
        self.cd.state.duals = duals
        self.cd.state.course = self.cd.state.course or self._new_course(state is None, config.seed)

    def _new_course(self, from_nothing: bool, seed: int) -> Course:
        n_rows = len(self._table)
        course = Course(np.arange(n_rows, dtype=np.int32), n_rows, newton.patience(n_rows, len(self.cd.state.w)))
        if from_nothing and sample.is_tall(self.cd.problem, n_rows, len(self.cd.state.w)):
            course.is_sample = True
            shuffle(course.order, n_rows, seed, 0)
            course.n_active //= sample.SHARE
        return course

    @property
    def n_active(self) -> int:
        return self.cd.state.course.n_active

    @property
    def last_w(self) -> np.ndarray:
        return self.cd.state.w

    def release(self) -> None:
        """Lets go of w, which has been taken."""
        self.cd.state.w = self.cd.state.best.w = None

    def turn(self, most: int, run=map) -> None:
        """Sweeps, so many at most, until a survey is due, and the survey. run: map, or that of a pool of threads."""
        is_due, self.visits = False, 0
        while not is_due and most and not (self.visits and self.cd.deadline.passed):
            is_due, most = self._pass(), most - 1
            self.n_passes += 1
            self.visits += int(self.cd.state["visits"])
        if not is_due:
            return
        loss = self.look(run, square=self._square)
        if self.cd.state.course.is_sample and not self.cd.done:
            self._end_sample(loss, run)
        if not self.cd.done and self._is_slow():
            self._descend(run)

    def _pass(self) -> bool:
        """One sweep of the active rows; True if a survey is due."""
        state, course = self.cd.state, self.cd.state.course
        state.begin_pass()
        course.n_active = self.cd.sweep(self._table, state.duals, course.order, course.n_active,
                                        shrink=not course.is_sample, fresh=course.fresh)  # fmt: skip
        course.visited += state["visits"]
        course.effort += state["visits"]
        self.cd.narrow()
        extrapolation = course.extrapolation
        course.fresh = extrapolation is not None and self.cd.follow(extrapolation, self._table, state.duals)
        self._square = half_square(state.w)
        dual, loss = state.dual_at(self._square), state["losses"] if state["visits"] == len(self._table) else np.inf
        self.met = Certificate(self._square + loss, dual)
        if course.is_sample:
            return self._sample.is_learnt(course.visited / len(self._table))
        if course.fresh:
            return False
        own_gap = state["gap"]
        small = ENOUGH * self.cd.problem.tolerance * (dual + own_gap)
        return own_gap <= max(MUCH * course.gap, small) or course.visited >= VISITS * len(self._table)

    def look(self, run=map, deadline=NEVER, square: float | None = None) -> float:
        """A survey, which certifies w; returns the loss of all rows. square: w.w / 2."""
        parts, starts = parts_of(self._table, self.cd.state.duals)
        course, square = self.cd.state.course, half_square(self.cd.state.w) if square is None else square
        loss, course.gap, changes = self.cd.survey(parts, self.cd.state.w, run, deadline)
        course.margin = min(course.margin, NEAR * (changes / len(self._table)) ** 0.5)
        self._select(parts, starts, run)
        self.cd.certify(self.cd.state.w, loss, square)
        return loss

    def _select(self, parts, starts, run) -> None:
        codes, course = self.cd.steps.codes, self.cd.state.course
        course.n_active, order = 0, course.order

        def select(part, start):
            return choose_slots(*part, start, codes, course.margin, order[start:])

        for start, count in zip(starts, run(select, parts, starts), strict=False):
            order[course.n_active : course.n_active + count] = order[start : start + count]
            course.n_active += count
        course.fresh, course.visited, course.extrapolation = True, 0, Extrapolation(order[: course.n_active].copy())

    def _end_sample(self, loss: float, run) -> None:
        """After the first survey, which found this loss: the alphas that belong to w, if it is good for all rows."""
        course = self.cd.state.course
        course.is_sample = False
        if not self._sample.holds(loss / len(self._table)):
            course.take_all()
            return
        parts, starts = parts_of(self._table, self.cd.state.duals)
        self.cd.adopt_all(parts, run)
        course.margin, course.gap = sample.MARGIN, sample.GAP * loss
        self._select(parts, starts, run)

    def _is_slow(self) -> bool:
        """Whether Newton's method is due, after a survey."""
        course, may = self.cd.state.course, self.may_descend and not self.cd.problem.is_bounded
        return may and course.effort > course.patience * len(self._table)

    def _descend(self, run) -> None:
        """Newton's method, from the best w, until the gap is met or no step gains; every w on the way is certified."""
        parts = newton.parts_of(self._table, self.cd.state.duals, len(self.cd.state.w))
        w, course = self.cd.best_w.copy(), self.cd.state.course
        for loss in newton.descent(self.cd, parts, w, run, self.cd.deadline):
            self.cd.adopt_all(parts, run)
            self.cd.certify(w, loss)
            if self.cd.done:
                break
        course.patience, course.effort = newton.PATIENCE_GROWS * course.patience, 0
        course.take_all()


def footprint(n_problems: int) -> Footprint:
    """As InMemory.footprint, of so many problems."""
    of_others = (DUAL.itemsize + 4) * (n_problems - 1)
    row_bytes = of_others + Extrapolation.ROW_BYTES * n_problems + Copies.ROW_BYTES
    return Footprint(n_problems, 4 if n_problems > 1 else 3, MACHINE_BYTES, row_bytes)


class InMemory(Learners):
    """All rows in memory: each round, every problem that is not done sweeps until all rows should be surveyed. The rows
    of the last that is left are surveyed by all threads; a single problem is swept by all of them, too (of ten classes,
    the last one gained nothing by that)."""

    @staticmethod
    def footprint(config, n_labels: int) -> Footprint:
        """Beside the rows, each with its place in an order and its dual in one problem."""
        n_problems = (n_labels if n_labels > 2 else 1) * (1 + (config.folds or 0))
        return footprint(n_problems)

    def __init__(self, problems: list, config, data: Resident, states: list | None = None):
        super().__init__(problems)
        self._config, self._data, self.bytes_read = config, data, data.bytes_read
        self._pool, self._team = Pool(config.threads), None
        duals = [data.duals, *(np.zeros(data.n_rows, DUAL) for _ in problems[1:])]
        given = zip(problems, duals, states or [None] * len(problems), strict=True)
        self._learners = [Learner(problem, config, data, own, state) for problem, own, state in given]
        taken = footprint(len(problems)).bytes(data.description.n_features, data.n_rows)
        room = config.budget.without(taken + data.n_bytes).left // min(config.threads, len(problems))
        for learner in self._learners:
            learner.may_descend = newton.fits(data.n_rows, len(learner.cd.state.w), room)

    def show_progress(self, bar) -> None:
        """A pass is over too soon for one."""

    def passes(self):
        alone = len(self._learners) == 1
        while True:
            start, busy = time.perf_counter(), self._busy
            for learner in self._learners:
                learner.cd.deadline = self.deadline
            self._share_out(busy, lambda learner, run: learner.turn(
                1 if alone else self._config.max_passes - learner.n_passes, run))  # fmt: skip
            self.compute += time.perf_counter() - start
            yield self._stats(
                max(learner.n_passes for learner in self._learners), sum(learner.visits for learner in busy),
                sum(learner.n_active for learner in busy),
            )

    def _share_out(self, learners, work) -> None:
        """work(learner, run) for each of these: one a thread, or the last by all threads. When the time for training is
        over, the others are left as they are."""
        threads = self._config.threads
        if len(learners) == 1:
            [learner] = learners
            if len(self._learners) == 1:
                learner.cd.team = self._gather_team()
            work(learner, self._pool.map)
            return

        def work_on(share):
            for learner in share:
                if self.deadline.passed:
                    return
                work(learner, map)

        shares = [learners[start::threads] for start in range(threads)]
        list((self._pool.map if threads > 1 else map)(work_on, shares))

    def _gather_team(self):
        """The threads that sweep together."""
        if self._team is None and self._config.threads > 1:
            self._team = Team(self._config.threads, self._data.description, self._learners[0].cd.problem.is_bounded)
            if self._team.cuts_rows:
                self._data.sort(self._pool.map)
        return self._team

    def _certify(self) -> None:
        self._share_out(self._busy, lambda learner, run: learner.look(run, self.deadline))

    def tables(self):
        """All rows once more, after training."""
        yield self._data.table

    def close(self, release: bool = True) -> None:
        """release: the rows, too."""
        if self._team:
            self._team.close()
        self._pool.shutdown()
        super().close()
        if release:
            self._data.release()
