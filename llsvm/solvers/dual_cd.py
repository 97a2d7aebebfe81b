"""Dual coordinate descent: what all variants share, and rows in memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from llsvm import _dual_cd
from llsvm.core import NEVER, Stopped
from llsvm.evaluate import dot
from llsvm.problem import Best
from llsvm.reader import DUAL, shuffle
from llsvm.solvers import newton
from llsvm.solvers.together import dual_at, half_square

# Of data with so many rows by features, that part is solved first, to this gap or with so many visits by rows; its w
# holds for all if their loss is at most so many times its own, and rows within the margin are swept first then.
TALL, SAMPLE_SHARE, SAMPLE_GAP, SAMPLE_VISITS, SAMPLE_LOSS, SAMPLE_MARGIN = 100, 16, 1e-2, 2, 1.1, 0.2
SMALLEST_SAMPLE = 1 << 10
choose, choose_slots = _dual_cd.choose, _dual_cd.select
PARTS, SMALLEST_SHARED = 8, 4096  # of the rows that threads survey, and more rows than these
STOPPING_TOLERANCE, MOST_SWEEPS = 0.1, 1000  # LIBLINEAR's


def parts_of(table: np.ndarray, duals: np.ndarray) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[int]]:
    """What threads look at, (table, duals), each on its own, and where that begins, and the last one ends."""
    starts = np.linspace(0, len(table), (PARTS if len(table) > SMALLEST_SHARED else 1) + 1).astype(int).tolist()
    return [(table[start:end], duals[start:end]) for start, end in pairwise(starts)], starts


class StepLimit:
    """How far an Extrapolation may go at a time, as so many times the way so far.

    Alphas that are put back within their bounds take D down, and the next sweep up again. Where it does not reach what
    D was before, all extrapolations of a problem go less far from then on, until they have gained by it.
    """

    FARTHEST, SLOWER, FASTER = 20.0, 0.5, 1.2

    def __init__(self):
        self.farthest = self.FARTHEST

    def judge(self, gain: float) -> None:
        """What D has gained by a step and a sweep."""
        self.farthest = min(self.FARTHEST, self.farthest * (self.FASTER if gain >= 0 else self.SLOWER))


class State:
    """All that training changes for one problem.

    w; sums, what sweeps have found (State in _dual.pxd); the counter of the shuffles so far; the limit of
    extrapolations; the best certified w; where the sweeps stand. Of rows in memory also their duals, by slot; of rows
    on disk their alphas, those of all problems together.
    """

    def __init__(self, size: int, bias: float = 0.0):
        self.w, self.sums, self.counter = np.zeros(size), np.zeros(1, _dual_cd.STATE), 0
        self.sums["bias"] = bias
        self.limit, self.best = StepLimit(), Best()
        self.duals = self.alphas = self.course = None

    @property
    def dual(self) -> float:
        return self.dual_at(half_square(self.w))

    def dual_at(self, square: float) -> float:
        """The dual value, w.w / 2 being known."""
        return dual_at(self.sums, square)

    @classmethod
    def of(cls, problem, table, alphas, size: int, kind) -> State:
        """Where training starts from these alphas, one a row of the table, put back within their bounds."""
        state, sums = cls(size, problem.bias), np.zeros(2)
        state.duals = np.zeros(len(table), DUAL)
        state.duals["alpha"] = np.clip(alphas, 0, problem.codes[table["code"], 1])
        _dual_cd.combine(table, state.duals, problem.codes, problem.bias, sums, state.w, kind)
        state.set_alphas(sums)
        return state

    def begin_pass(self) -> None:
        self.sums["losses"] = self.sums["visits"] = 0

    def set_alphas(self, sums) -> None:
        """sum a and sum d a^2 / 2 of all alphas there are."""
        self.sums["sum_alpha"], self.sums["sum_square"] = sums

    def add_alphas(self, sums) -> None:
        self.sums["sum_alpha"] += sums[0]
        self.sums["sum_square"] += sums[1]

    def __getitem__(self, name: str) -> float:
        """Of the sums."""
        return float(self.sums[name][0])


class Extrapolation:
    """The way that the alphas of some rows take over several sweeps, on which they go on as far as D grows.

    Sweeps of rows whose alphas are free change them little by little, and in the end always the same way.
    """

    SWEEPS, ROW_BYTES = 3, 12

    def __init__(self, slots: np.ndarray):
        self._slots, self._before, self._w, self._sweeps = slots, np.empty(len(slots)), None, 0
        self._dual = None

    def sweep_done(self, table, duals, state: State, codes, kind) -> bool:
        """True if alphas, w and sums have gone on."""
        self._sweeps += 1
        if self._dual is not None:
            state.limit.judge(state.dual - self._dual)
            self._dual = None
        if self._sweeps % self.SWEEPS:
            return False
        share = self._turn_back(table, duals, state, codes) if self._w is not None else 0.0
        if share > 0:
            self._dual = state.dual
            self._w *= -share
            state.w += self._w
            _dual_cd.go_on(table, duals, self._slots, self._before, share, state.w, codes, state.sums, kind)
        _dual_cd.read_alphas(duals, self._slots, self._before)
        self._w = state.w.copy() if self._w is None else self._w
        self._w[:] = state.w
        return share > 0

    def _turn_back(self, table, duals, state: State, codes) -> float:
        """Makes the old w the way back to it; returns the part of the way so far where D, without bounds, is
        largest."""
        self._w -= state.w
        slope, curvature = _dual_cd.measure_course(table, duals, self._slots, self._before, codes)
        slope, curvature = slope + dot(state.w, self._w), curvature + dot(self._w, self._w)
        return min(slope / curvature, state.limit.farthest) if curvature > 0 else 0.0


class DualCD:
    """What every variant shares: a problem, its State, and how rows are swept, looked at and given alphas."""

    deadline = NEVER

    def __init__(self, problem, config, size: int, kind, rounding: bool = False, state: State | None = None):
        self.problem, self._config, self._kind = problem, config, kind
        self.state = State(size, problem.bias) if state is None else state
        self._steps = problem  # as sweeps have it: rounded or not
        self.team = None
        if rounding:
            self._keep_float32()

    def _keep_float32(self) -> None:
        """Between visits alphas are kept in float32."""
        self._steps = self.problem.as_float32()
        self.state.sums["round_alpha"] = 1

    bias = property(lambda self: self.problem.bias)
    dual = property(lambda self: self.state.dual)
    best_w = property(lambda self: self.state.best.w)
    certified = property(lambda self: self.state.best.certificate)

    def _sweep(self, table, duals, order, active: int, **options) -> int:
        """One visit of rows order[:active] of the table in random order."""
        self.state.counter += 1
        shuffle(order, active, self._config.seed, self.state.counter)
        return self._visit_all(table, duals, order, active, **options)

    def _visit_all(self, table, duals, order, active: int, shrink: bool = False, fresh: bool = True,
                   together: bool = True, counting: bool = True) -> int:
        """One visit of rows order[:active] of the table in that order, by all threads or by this one. counting: visits
        and losses belong to the pass."""
        sums = self.state.sums
        if fresh:
            sums["highest_before"], sums["lowest_before"] = np.inf, -np.inf
        sums["shrink"] = shrink
        before = sums["losses"][0], sums["visits"][0]
        sweep = self.team.sweep if self.team and together else _dual_cd.sweep
        active = sweep(table, duals, order, 0, active, self.state.w, self._steps.codes, sums, self._kind)
        if not counting:
            sums["losses"], sums["visits"] = before
        return active

    def _sweep_all(self, table, duals, sweeps: int) -> None:
        """So many visits of all rows of the table; they are no part of a pass."""
        order = np.arange(len(table), dtype=np.int32)
        for _ in range(sweeps):
            if self.deadline.passed:
                break
            self._sweep(table, duals, order, len(order), counting=False)

    def _follow(self, extrapolation: Extrapolation, table, duals) -> bool:
        """After a sweep of the rows of this extrapolation; True if alphas went on."""
        return extrapolation.sweep_done(table, duals, self.state, self._steps.codes, self._kind)

    def _solve(self, table, duals, inner: int) -> None:
        """The sub-problem of these rows: `inner` sweeps, or, for 0, until LIBLINEAR's stopping condition holds."""
        order = np.arange(len(table), dtype=np.int32)
        active, fresh = len(order), True
        for number in range(inner or MOST_SWEEPS):
            active = self._sweep(table, duals, order, active, shrink=not inner, fresh=fresh, counting=number == 0)
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
        return max(self.state["highest"], 0.0) - min(self.state["lowest"], 0.0)

    def _look_at(self, rows, duals, w, sums: np.ndarray) -> None:
        """Gradients of rows at w; sums becomes their loss, their part of the gap, and squared changes of gradients."""
        _dual_cd.survey(rows, duals, w, self.problem.codes, self.problem.bias, sums, self._kind)

    def _adopt(self, rows, duals, sums: np.ndarray, w: np.ndarray) -> None:
        """Gives rows the alphas that belong to their gradients; adds sum alpha y x to w, sums becomes that of D."""
        steps = self._steps
        _dual_cd.adopt(rows, duals, steps.codes, steps.bias, steps.rounded, sums, w, self._kind)

    def _survey_parts(self, parts, w, run, deadline) -> list[float]:
        """The loss, the gap and the squared changes of gradients of all rows, by this w."""
        found = np.zeros((len(parts), 3))

        def look(part, sums):
            return not deadline.passed and [self._look_at(*part, w, sums)]

        if not all(list(run(look, parts, found))):
            raise Stopped
        return found.sum(0).tolist()

    def _adopt_all(self, parts, run) -> None:
        """All rows get the alphas that belong to the w of the last survey."""
        sums, changes = np.zeros((len(parts), 2)), np.zeros((len(parts), len(self.state.w)))
        list(run(lambda part, *out: self._adopt(*part, *out), parts, sums, changes))
        self.state.w = changes.sum(0)
        self.state.set_alphas(sums.sum(0))

    def _descent(self, parts, w, run, deadline):
        """Newton's method on these rows, whose alphas are all there are: yields the loss at w and after each step, when
        the rows are to be given the alphas that belong to it."""
        def look(w):
            return self._survey_parts(parts, w, run, deadline)[0]

        rows = newton.Newton(parts, self._steps, self._kind, look, run, deadline.check)
        loss, steps = look(w), 0
        while loss is not None and steps <= newton.MOST_STEPS:
            yield loss
            loss, steps = rows.step(w, loss, w - self.state.w), steps + 1

    def is_tall(self, n_rows: int) -> bool:
        """Whether a sample tells about so many rows. (Alphas without a bound are proportional to the errors of w: those
        of a sample's w would be far off.)"""
        tall = n_rows >= max(TALL * len(self.state.w), SAMPLE_SHARE * SMALLEST_SAMPLE)
        return self.problem.is_bounded and tall

    def _is_learnt(self, visits: float) -> bool:
        """Whether w is good for the sample that was swept, after so many visits by rows of the data."""
        state, own_gap = self.state, self.state["gap"]
        self._sample_loss = state["losses"] / max(1, state["visits"])
        return visits >= SAMPLE_VISITS or own_gap <= SAMPLE_GAP * (self.dual + own_gap)

    def _holds(self, mean_loss: float) -> bool:
        """Whether the w of the sample is as good for rows that have this loss."""
        return mean_loss <= SAMPLE_LOSS * self._sample_loss

    def _narrow(self) -> None:
        """The bounds for shrinking, from the sweep just made."""
        highest, lowest, sums = self.state["highest"], self.state["lowest"], self.state.sums
        sums["highest_before"] = highest if highest > 0 else np.inf
        sums["lowest_before"] = lowest if lowest < 0 else -np.inf

    def _certify(self, w, loss: float, square: float | None = None) -> None:
        """square: w.w / 2, if w is the one that is trained."""
        dual = self.dual if square is None else self.state.dual_at(square)
        square = half_square(w) if square is None else square
        self.state.best.offer(w, square + loss, dual, self.problem.loss_at_zero)

    def _is_done(self) -> bool:
        return self.state.best.meets(self.problem.tolerance)
