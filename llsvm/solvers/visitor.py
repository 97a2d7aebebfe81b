"""One problem whose rows come by from disk, group by group, and where its dual variables stand between visits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llsvm.alphas import Alphas
from llsvm.core import Certificate
from llsvm.evaluate import total_loss
from llsvm.reader import DUAL
from llsvm.solvers.dual_cd import DualCD
from llsvm.solvers.layout import Layout
from llsvm.solvers.newton import ByPasses
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

    def see(self, rows, runs, desk, seen: float) -> None:
        """Looks at the rows of a group and visits them, at this desk (streaming.Desk), unless that is no longer needed.
        seen: the part of all rows that will have come by then."""
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
