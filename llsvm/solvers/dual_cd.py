"""Dual coordinate descent on one problem: its State, steps on rows, and looks at them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from llsvm import _dual_cd
from llsvm.core import NEVER, Stopped
from llsvm.evaluate import dot
from llsvm.problem import Best
from llsvm.reader import DUAL, shuffle
from llsvm.solvers.together import dual_at, half_square

choose_slots = _dual_cd.select
PARTS, SMALLEST_SHARED = 8, 4096  # of the rows that threads survey, and more rows than these


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
    """A problem, its State, and how rows are swept, looked at and given alphas: what every learner has.

    kind: an empty array of the type of the values. steps: the problem as sweeps have it, rounded where alphas are kept
    in float32 between visits. team: threads that sweep together, or None.
    """

    deadline, team = NEVER, None

    def __init__(self, problem, seed: int, size: int, kind, rounding: bool = False, state: State | None = None):
        self.problem, self.kind, self._seed = problem, kind, seed
        self.state = State(size, problem.bias) if state is None else state
        self.steps = problem.as_float32() if rounding else problem
        if rounding:
            self.state.sums["round_alpha"] = 1

    dual = property(lambda self: self.state.dual)
    best_w = property(lambda self: self.state.best.w)
    certified = property(lambda self: self.state.best.certificate)

    @property
    def done(self) -> bool:
        return self.state.best.meets(self.problem.tolerance)

    def certify(self, w, loss: float, square: float | None = None) -> None:
        """square: w.w / 2, if w is the one that is trained."""
        dual = self.dual if square is None else self.state.dual_at(square)
        square = half_square(w) if square is None else square
        self.state.best.offer(w, square + loss, dual, self.problem.loss_at_zero)

    # --- steps

    def sweep(self, table, duals, order, active: int, shrink: bool = False, fresh: bool = True, together: bool = True,
              counting: bool = True) -> int:
        """One visit of rows order[:active] of the table in random order, by all threads or by this one; returns how
        many of them are still active. counting: visits and losses belong to the pass."""
        self.state.counter += 1
        shuffle(order, active, self._seed, self.state.counter)
        sums = self.state.sums
        if fresh:
            sums["highest_before"], sums["lowest_before"] = np.inf, -np.inf
        sums["shrink"] = shrink
        before = sums["losses"][0], sums["visits"][0]
        sweep = self.team.sweep if self.team and together else _dual_cd.sweep
        active = sweep(table, duals, order, 0, active, self.state.w, self.steps.codes, sums, self.kind)
        if not counting:
            sums["losses"], sums["visits"] = before
        return active

    def follow(self, extrapolation: Extrapolation, table, duals) -> bool:
        """After a sweep of the rows of this extrapolation; True if alphas went on."""
        return extrapolation.sweep_done(table, duals, self.state, self.steps.codes, self.kind)

    def narrow(self) -> None:
        """The bounds for shrinking, from the sweep just made."""
        highest, lowest, sums = self.state["highest"], self.state["lowest"], self.state.sums
        sums["highest_before"] = highest if highest > 0 else np.inf
        sums["lowest_before"] = lowest if lowest < 0 else -np.inf

    # --- looks

    def look(self, rows, duals, w, sums: np.ndarray) -> None:
        """Gradients of rows at w; sums becomes their loss, their part of the gap, and squared changes of gradients."""
        _dual_cd.survey(rows, duals, w, self.problem.codes, self.problem.bias, sums, self.kind)

    def survey(self, parts, w, run, deadline) -> list[float]:
        """The loss, the gap and the squared changes of gradients of all rows, by this w."""
        found = np.zeros((len(parts), 3))

        def look(part, sums):
            return not deadline.passed and [self.look(*part, w, sums)]

        if not all(list(run(look, parts, found))):
            raise Stopped
        return found.sum(0).tolist()

    def choose(self, rows, duals, margin: float, chosen: np.ndarray) -> None:
        """Which of the rows just visited are free, wrong or within this margin."""
        _dual_cd.choose(rows, duals, self.steps.codes, margin, chosen)

    # --- alphas that belong to a w

    def adopt(self, rows, duals, sums: np.ndarray, w: np.ndarray) -> None:
        """Gives rows the alphas that belong to their gradients; adds sum alpha y x to w, sums becomes that of D."""
        steps = self.steps
        _dual_cd.adopt(rows, duals, steps.codes, steps.bias, steps.rounded, sums, w, self.kind)

    def adopt_all(self, parts, run) -> None:
        """All rows get the alphas that belong to the w of the last survey."""
        sums, changes = np.zeros((len(parts), 2)), np.zeros((len(parts), len(self.state.w)))
        list(run(lambda part, *out: self.adopt(*part, *out), parts, sums, changes))
        self.state.w = changes.sum(0)
        self.state.set_alphas(sums.sum(0))
