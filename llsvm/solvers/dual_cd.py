"""Dual coordinate descent: what all variants share, and rows in memory."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np

from llsvm import _dual_cd, memory
from llsvm.core import NEVER, OUT_OF_TIME, Certificate, PassStats, Stopped
from llsvm.evaluate import dot
from llsvm.pool import Pool
from llsvm.reader import Resident, shuffle
from llsvm.solvers import newton
from llsvm.solvers.copies import Copies
from llsvm.solvers.marks import Marks
from llsvm.solvers.parts import Parts
from llsvm.solvers.together import dual_at, half_square

# From this tolerance up, dual variables are kept in float32 between visits: their rounding (6e-8) is far below it.
FLOAT32_TOLERANCE, SMALLEST_BOUND = 1e-5, 1e-30
# Threads sweep rows of so many bytes together. How depends on what a row takes, and on what copies of w would.
SMALLEST_SWEEP, SHORT_ROW, LONG_ROW, LARGEST_COPIES = 1 << 19, 192, 1 << 10, 2 << 20
# Of data with so many rows by features, that part is solved first, to this gap or with so many visits by rows; its w
# holds for all if their loss is at most so many times its own, and rows within the margin are swept first then.
TALL, SAMPLE_SHARE, SAMPLE_GAP, SAMPLE_VISITS, SAMPLE_LOSS, SAMPLE_MARGIN = 100, 16, 1e-2, 2, 1.1, 0.2
SMALLEST_SAMPLE = 1 << 10
PARTS, SMALLEST_SHARED = 8, 4096  # of the rows that threads survey, and more rows than these
STOPPING_TOLERANCE, MOST_SWEEPS = 0.1, 1000  # LIBLINEAR's


def float32_box(problem) -> tuple[np.ndarray, bool]:
    """The box whose bounds are float32 that are not above U, and whether dual variables are kept as float32."""
    rounding = problem.tolerance >= FLOAT32_TOLERANCE and problem.box[:, 0].min() > SMALLEST_BOUND
    box = problem.box.copy()
    if rounding:
        bound = box[:, 0].astype(np.float32)
        box[:, 0] = np.where(bound <= box[:, 0], bound, np.nextafter(bound, np.float32(0)))
    return box, bool(rounding)


def parts_of(table: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
    """What threads look at, each on its own, and where in the table that begins, and the last one ends."""
    starts = np.linspace(0, len(table), (PARTS if len(table) > SMALLEST_SHARED else 1) + 1).astype(int).tolist()
    return [table[start:end] for start, end in pairwise(starts)], starts


class Team:
    """Threads that sweep rows together, in the way that suits the rows (docs/threads.md)."""

    def __init__(self, n_threads: int, description, bounded: bool):
        self._n_threads, self._n_features = n_threads, description.n_features
        self._row_bytes = 8 * max(1, description.n_nonzeros) / description.n_rows
        self._pool = Pool(n_threads - 1)
        self._together, self._marks = self._choose_way(bounded), None

    @property
    def cuts_rows(self) -> bool:
        """Whether rows must be sorted by feature number."""
        return isinstance(self._together, Parts)

    def _choose_way(self, bounded: bool):
        """How rows are swept together, or None if they are too short to do without marks, or alphas have no bound."""
        if self._row_bytes < SHORT_ROW or not bounded:
            return None
        if self._row_bytes < LONG_ROW and 8 * self._n_threads * self._n_features <= LARGEST_COPIES:
            return Copies(self._n_threads, self._row_bytes, self._n_features)
        return Parts(self._n_threads, self._row_bytes)

    def sweep(self, steps: float, *arguments) -> int:
        """As _dual_cd.sweep, so many steps being expected."""
        _, _, active, *_ = arguments
        if active * self._row_bytes < SMALLEST_SWEEP:
            return _dual_cd.sweep(*arguments)
        if self._together and self._together.rows:
            return self._together.sweep(self._pool, *arguments, sweep_alone=_dual_cd.sweep)
        self._marks = self._marks or Marks(self._n_threads, self._row_bytes, self._n_features)
        if not self._marks.is_worth_it(active, steps):
            return _dual_cd.sweep(*arguments)
        return self._marks.sweep(self._pool, *arguments)

    def close(self) -> None:
        self._pool.shutdown()


class Pace:
    """How far a Course may go on at a time, as so many times the way so far.

    Alphas that are put back into the box take D down, and the next sweep up again. Where it does not reach what D was
    before, all Courses of a solver go on less far from then on, until they have gained by it.
    """

    FARTHEST, SLOWER, FASTER = 20.0, 0.5, 1.2

    def __init__(self):
        self.farthest = self.FARTHEST

    def judge(self, gain: float) -> None:
        """What D has gained by a step and a sweep."""
        self.farthest = min(self.FARTHEST, self.farthest * (self.FASTER if gain >= 0 else self.SLOWER))


class Course:
    """The way that the alphas of some rows take over several sweeps, on which they go on as far as D grows.

    Sweeps of rows whose alphas are free change them little by little, and in the end always the same way.
    """

    SWEEPS, ROW_BYTES = 3, 12

    def __init__(self, slots: np.ndarray, pace: Pace):
        self._slots, self._before, self._w, self._sweeps = slots, np.empty(len(slots)), None, 0
        self._pace, self._dual = pace, None

    def sweep_done(self, table, w, problem, box, round_alpha: bool, state, kind) -> bool:
        """True if alphas, w and state have gone on."""
        self._sweeps += 1
        if self._dual is not None:
            self._pace.judge(dual_at(state, half_square(w)) - self._dual)
            self._dual = None
        if self._sweeps % self.SWEEPS:
            return False
        share = self._turn_back(table, w, problem, box) if self._w is not None else 0.0
        if share > 0:
            self._dual = dual_at(state, half_square(w))
            self._w *= -share
            w += self._w
            _dual_cd.go_on(table, self._slots, self._before, share, w, problem.bias, problem.signs, box, round_alpha,
                           state, kind)
        _dual_cd.read_alphas(table, self._slots, self._before)
        self._w = w.copy() if self._w is None else self._w
        self._w[:] = w
        return share > 0

    def _turn_back(self, table, w, problem, box) -> float:
        """Makes the old w the way back to it; returns the part of the way so far where D, without a box, is largest."""
        self._w -= w
        slope, curvature = _dual_cd.measure_course(table, self._slots, self._before, problem.signs, box)
        slope, curvature = slope + dot(w, self._w), curvature + dot(self._w, self._w)
        return min(slope / curvature, self._pace.farthest) if curvature > 0 else 0.0


class DualCD:
    """What every variant shares: w, the dual value kept up with each step, and the best certified w.

    `passes()` yields one PassStats per pass; `certified` and `best_w` are then the best pair known.
    """

    reads_once, deadline = False, NEVER

    def __init__(self, problem):
        self.problem = problem
        self.w = np.zeros(problem.n_features + 1)
        self.best_w, self.certified, self.certificates, self.uncertified = None, None, [], ""
        self.bytes_read, self.wait, self.compute = 0, 0.0, 0.0
        self._state, self._team, self._pace = np.zeros(11), None, Pace()
        self._counter = 0

    @property
    def bias(self) -> float:
        return self.problem.bias

    def _gather_team(self, description) -> None:
        if self.problem.threads > 1:
            self._team = Team(self.problem.threads, description, self._is_bounded())

    def _close_team(self) -> None:
        if self._team:
            self._team.close()

    def show_progress(self, bar) -> None:
        """bar(what, done, total) is called on the way."""
        self.problem.progress = lambda share: bar("pass", share, 1.0)

    def weights(self) -> np.ndarray:
        """w as it is now, (features + 1, columns), the bias last."""
        return self.w[:, None]

    @property
    def dual(self) -> float:
        return self._dual_at(half_square(self.w))

    def _dual_at(self, square: float) -> float:
        """The dual value, w.w / 2 being known."""
        return dual_at(self._state, square)

    def _sweep(self, table, order, active: int, *options, **more) -> int:
        """One visit of rows order[:active] of the table in random order."""
        self._counter += 1
        shuffle(order, active, self.problem.seed, self._counter)
        return self._visit_all(table, order, active, *options, **more)

    def _visit_all(self, table, order, active: int, count_from: int = 0, shrink: bool = False, fresh: bool = True,
                   together: bool = True) -> int:
        """One visit of rows order[:active] of the table in that order, by all threads or by this one."""
        problem, state = self.problem, self._state
        if fresh:
            state[0], state[1] = np.inf, -np.inf
        arguments = (table, order, active, count_from, self.w, problem.bias, problem.signs, self._box, self._round,
                     shrink, state, self._kind)
        team = self._team if together else None
        return team.sweep(state[9], *arguments) if team else _dual_cd.sweep(*arguments)

    def _sweep_all(self, table, sweeps: int) -> None:
        """So many visits of all rows of the table; they are no part of a pass."""
        order = np.arange(len(table), dtype=np.int32)
        for _ in range(sweeps):
            if self.deadline.passed:
                break
            self._sweep(table, order, len(order), len(table))

    def _follow(self, course: Course, table) -> bool:
        """After a sweep of the rows of this course; True if alphas went on."""
        return course.sweep_done(table, self.w, self.problem, self._box, self._round, self._state, self._kind)

    def _solve(self, table, order, inner: int, count_from: int) -> None:
        """The sub-problem of these rows: `inner` sweeps, or, for 0, until LIBLINEAR's stopping condition holds."""
        active, fresh = len(order), True
        for _ in range(inner or MOST_SWEEPS):
            active = self._sweep(table, order, active, count_from, shrink=not inner, fresh=fresh)
            count_from = len(table)
            if self.deadline.passed:
                break
            if inner:
                continue
            fresh = self._violation() <= STOPPING_TOLERANCE
            if fresh and active == len(order):
                break
            if fresh:
                active = len(order)
            else:
                self._narrow()

    def _violation(self) -> float:
        """LIBLINEAR's stopping quantity of the last sweep: the spread of projected gradients around 0."""
        highest, lowest = max(self._state[2], 0.0), min(self._state[3], 0.0)
        return float(highest - lowest)

    def _look_at(self, rows, w, sums: np.ndarray) -> None:
        """Gradients of rows at w; sums becomes their loss, their part of the gap, and squared changes of gradients."""
        problem = self.problem
        _dual_cd.survey(rows, w, problem.bias, problem.signs, problem.box, sums, self._kind)

    def _adopt(self, rows, sums: np.ndarray, w: np.ndarray) -> None:
        """Gives rows the alphas that belong to their gradients; adds sum alpha y x to w, sums becomes that of D."""
        problem = self.problem
        _dual_cd.adopt(rows, problem.bias, problem.signs, self._box, self._round, sums, w, self._kind)

    def _survey_parts(self, parts, w, run, deadline) -> list[float]:
        """The loss, the gap and the squared changes of gradients of all rows, by this w."""
        found = np.zeros((len(parts), 3))

        def look(part, sums):
            return not deadline.passed and [self._look_at(part, w, sums)]

        if not all(list(run(look, parts, found))):
            raise Stopped
        return found.sum(0).tolist()

    def _adopt_all(self, parts, run) -> None:
        """All rows get the alphas that belong to the w of the last survey."""
        sums, changes = np.zeros((len(parts), 2)), np.zeros((len(parts), len(self.w)))
        list(run(self._adopt, parts, sums, changes))
        self.w, self._state[4:6] = changes.sum(0), sums.sum(0)

    def _descent(self, parts, w, run, deadline):
        """Newton's method on these rows, whose alphas are all there are: yields the loss at w and after each step, when
        the rows are to be given the alphas that belong to it."""
        problem = self.problem

        def look(w):
            return self._survey_parts(parts, w, run, deadline)[0]

        rows = newton.Newton(parts, problem.bias, problem.signs, self._box, self._kind, look, run, deadline.check)
        loss, steps = look(w), 0
        while loss is not None and steps <= newton.MOST_STEPS:
            yield loss
            loss, steps = rows.step(w, loss, w - self.w), steps + 1

    def _is_bounded(self) -> bool:
        return bool(np.isfinite(self._box[:, 0]).all())

    def _is_tall(self, n_rows: int) -> bool:
        """Whether a sample tells about so many rows. (Alphas without a bound are proportional to the errors of w: those
        of a sample's w would be far off.)"""
        return self._is_bounded() and n_rows >= max(TALL * len(self.w), SAMPLE_SHARE * SMALLEST_SAMPLE)

    def _is_learnt(self, visits: float) -> bool:
        """Whether w is good for the sample that was swept, after so many visits by rows of the data."""
        self._sample_loss, own_gap = self._state[6] / max(1, self._state[7]), self._state[8]
        return visits >= SAMPLE_VISITS or own_gap <= SAMPLE_GAP * (self.dual + own_gap)

    def _holds(self, mean_loss: float) -> bool:
        """Whether the w of the sample is as good for rows that have this loss."""
        return mean_loss <= SAMPLE_LOSS * self._sample_loss

    def _narrow(self) -> None:
        """The bounds for shrinking, from the sweep just made."""
        highest, lowest = self._state[2], self._state[3]
        self._state[0] = highest if highest > 0 else np.inf
        self._state[1] = lowest if lowest < 0 else -np.inf

    def _certify(self, w, loss: float, square: float | None = None) -> Certificate:
        """square: w.w / 2, if w is the one that is trained."""
        dual = self.dual if square is None else self._dual_at(square)
        certificate = Certificate((half_square(w) if square is None else square) + loss, dual)
        if self.certified is None and certificate.primal > self.problem.loss_at_zero:
            w, certificate = np.zeros_like(w), Certificate(self.problem.loss_at_zero, dual)
        if self.certified is None or certificate.primal <= self.certified.primal:
            self.best_w = w.copy() if self.best_w is None else self.best_w
            self.best_w[:] = w
            self.certified = certificate
        self.certified = Certificate(self.certified.primal, max(certificate.dual, self.certified.dual, 0.0))  # D(0) = 0
        return self.certified

    def _stats(self, number: int, active: int, met: Certificate) -> PassStats:
        """met: the objectives with the losses met during the pass, for want of a certificate."""
        if self.certified:
            self.certified = Certificate(self.certified.primal, max(self.certified.dual, met.dual))
        known = self.certified or met
        return PassStats(
            number, int(self._state[7]), active, self.certified is not None, known.primal, known.dual,
            known.relative_gap, self.bytes_read, self.wait, self.compute, finished=self._is_done(),
        )

    def _is_done(self) -> bool:
        return self.certified is not None and bool(self.certified.relative_gap <= self.problem.tolerance)

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """Sees to a certificate for a run that ended for this reason; returns the reason, which may be better now."""
        if self.certified is None or reason == "passes":
            try:
                self.certify()
            except Stopped:
                reason = "time" if reason == "passes" else reason
            if self.certified and self.certified.relative_gap <= self.problem.tolerance and reason != "interrupted":
                return "converged"
        if self.certified is None:
            self.best_w, self.uncertified = self._last_w, OUT_OF_TIME
        return reason

    @property
    def _last_w(self) -> np.ndarray:
        """The w to be looked at, where none was."""
        return self.w


class Shrinking(DualCD):
    """Rows that stay in memory: sweeps of the active ones, with shrinking as in LIBLINEAR, and surveys of all.

    A survey gives the loss at w, and decides which rows are active: those whose alpha is free or wrong, and those that
    w, changing on as it did since the survey before, may well bring to the margin.

    Where there are many rows by features, a sample of them comes first, and the alphas of all rows are then those that
    belong to its w (docs/sampling.md).
    """

    # Of the mean change of margins between two surveys: rows so near to theirs are active.
    NEAR = 0.5
    # A survey is due when the active rows have so much of the gap that the last one found, or of the tolerance, or
    # after so many visits by rows of the data.
    MUCH, ENOUGH, VISITS = 0.3, 0.8, 2

    may_descend = False  # whether there is memory for Newton's method

    def _begin(self, n_rows: int) -> None:
        self._order, self._n_active = np.arange(n_rows, dtype=np.int32), n_rows
        self._fresh, self._visited, self._gap, self._margin = True, 0, np.inf, np.inf
        self._sampling, self._course = self._is_tall(n_rows), None
        self._effort, self._patience = 0, newton.patience(n_rows, len(self.w))
        if self._sampling:
            shuffle(self._order, n_rows, self.problem.seed, 0)
            self._n_active //= SAMPLE_SHARE

    def _pass(self, table) -> bool:
        """One sweep of the active rows; True if a survey is due."""
        self._state[6] = self._state[7] = 0
        self._n_active = self._sweep(table, self._order, self._n_active, shrink=not self._sampling, fresh=self._fresh)
        self._visited += self._state[7]
        self._effort += self._state[7]
        self._narrow()
        self._fresh = self._course is not None and self._follow(self._course, table)
        self._square, own_gap = half_square(self.w), self._state[8]
        if self._sampling:
            return self._is_learnt(self._visited / len(table))
        if self._fresh:
            return False
        small = self.ENOUGH * self.problem.tolerance * (self._dual_at(self._square) + own_gap)
        return own_gap <= max(self.MUCH * self._gap, small) or self._visited >= self.VISITS * len(table)

    def _survey(self, table, run=map, deadline=NEVER) -> float:
        """The loss of all rows; run: map, or that of a pool of threads."""
        parts, starts = parts_of(table)
        loss, self._gap, changes = self._survey_parts(parts, self.w, run, deadline)
        self._margin = min(self._margin, self.NEAR * (changes / len(table)) ** 0.5)
        self._select(parts, starts, run)
        return loss

    def _select(self, parts, starts, run) -> None:
        problem, self._n_active = self.problem, 0

        def select(part, start):
            return _dual_cd.select(part, start, problem.signs, self._box, self._margin, self._order[start:])

        for start, count in zip(starts, run(select, parts, starts), strict=False):
            self._order[self._n_active : self._n_active + count] = self._order[start : start + count]
            self._n_active += count
        self._fresh, self._visited, self._course = True, 0, Course(self._order[: self._n_active].copy(), self._pace)

    def _end_sample(self, table, loss: float, run=map) -> None:
        """After the first survey, which found this loss: the alphas that belong to w, if it is good for all rows."""
        self._sampling = False
        if not self._holds(loss / len(table)):
            self._margin = self._gap = np.inf
            self._n_active, self._course = len(table), None
            self._order[:] = np.arange(len(table))
            return
        parts, starts = parts_of(table)
        self._adopt_all(parts, run)
        self._margin, self._gap = SAMPLE_MARGIN, SAMPLE_GAP * loss
        self._select(parts, starts, run)

    # --- squared hinge loss: Newton's method, where coordinate descent is slow

    def _is_slow(self, n_rows: int) -> bool:
        """Whether Newton's method is due, after a survey."""
        return self.may_descend and not self._is_bounded() and self._effort > self._patience * n_rows

    def _descend(self, table, run=map, deadline=NEVER) -> None:
        """Newton's method, from the best w, until the gap is met or no step gains; every w on the way is certified."""
        parts = newton.parts_of(table, len(self.w))
        w = self.best_w.copy()
        for loss in self._descent(parts, w, run, deadline):
            self._adopt_all(parts, run)
            self._certify(w, loss)
            if self._is_done():
                break
        self._patience, self._effort = newton.PATIENCE_GROWS * self._patience, 0
        self._margin = self._gap = np.inf
        self._n_active, self._course = len(table), None
        self._order[:] = np.arange(len(table))



class InMemory(Shrinking):
    """All rows resident."""

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int]:
        """What is in memory beside the rows: columns of weights, vectors of each, and bytes a row."""
        return 1, 3, Course.ROW_BYTES + Copies.ROW_BYTES

    def __init__(self, problem, data: Resident):
        super().__init__(problem)
        self._data = data
        self._box, self._round, self._kind = problem.box, False, data.kind
        self.bytes_read = data.bytes_read
        self._pool = Pool(problem.threads)
        taken = memory.vector_bytes(data.description.n_features, *self.footprint(None, 2)[:2]) + data.n_bytes
        self.may_descend = newton.fits(data.n_rows, len(self.w), problem.working - taken)
        self._gather_team(data.description)
        if self._team and self._team.cuts_rows:
            data.sort(self._pool.map)

    def passes(self):
        n_rows, number = len(self._data.table), 0
        self._begin(n_rows)
        while True:
            start = time.perf_counter()
            number += 1
            is_due = self._pass(self._data.table)
            loss = self._state[6] if self._state[7] == n_rows else np.inf
            met = Certificate(self._square + float(loss), self._dual_at(self._square))
            if is_due:
                loss = self._look(self._square)
                if self._sampling and not self._is_done():
                    self._end_sample(self._data.table, loss, self._pool.map)
                if not self._is_done() and self._is_slow(n_rows):
                    self._descend(self._data.table, self._pool.map, self.deadline)
            self.compute += time.perf_counter() - start
            yield self._stats(number, self._n_active, met)

    def certify(self) -> None:
        self._look(half_square(self.w), self.deadline)

    def _look(self, square: float, deadline=NEVER) -> float:
        loss = self._survey(self._data.table, self._pool.map, deadline)
        self._certify(self.w, loss, square)
        return loss

    def close(self) -> None:
        self._close_team()
        self._pool.shutdown()
        self._data.release()
        self.w = None
