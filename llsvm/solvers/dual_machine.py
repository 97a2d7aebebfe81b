"""One of several two-class problems by dual coordinate descent: rows are shared, dual variables are its own."""

from __future__ import annotations

import numpy as np

from llsvm.core import Certificate, Problem
from llsvm.evaluate import total_loss
from llsvm.reader import copied
from llsvm.solvers.dual_cd import Shrinking, half_square
from llsvm.solvers.one_vs_rest import grown, signs_of

AT_BOUND = 1e-6
SIGNS = np.array([-1.0, 1.0])  # by side: see DualMachine.own


class DualMachine(Shrinking):
    """The rows of class `positive` against all others."""

    def __init__(self, problem: Problem, positive: int, dtype, config):
        super().__init__(problem)
        problem.signs = SIGNS
        self.positive, self.done, self._n_labels = positive, False, 0
        self._box, self._round, self._kind = problem.box, False, np.zeros(1, dtype)

    def own(self, table, alphas=0.0) -> np.ndarray:
        """A copy of these rows, whose code is 1 where y = 1, else 0, with these dual variables."""
        rows = copied(table)
        rows["code"] = rows["code"] == self.positive
        rows["alpha"] = alphas
        return rows

    def wants(self, rows, alphas) -> np.ndarray:
        """Where alpha is free; nearer to a bound than rounding can tell, of C or of a full step, is there."""
        bounds = self._box[(rows["code"] == self.positive).astype(np.intp), 0]
        square = rows["norm"].astype(np.float64) ** 2 + self.problem.bias**2
        lowest = AT_BOUND * np.minimum(bounds, 1 / np.maximum(square, 1e-300))
        return (alphas > lowest) & (alphas < (1 - AT_BOUND) * bounds)

    def turn_into(self, other: DualMachine, sign: float) -> None:
        other.w = sign * self.w
        other._state[:] = self._state

    def grow(self, n_features: int) -> None:
        self.w = grown(self.w, n_features)

    def set_labels(self, n_labels: int) -> None:
        self._n_labels = n_labels

    def set_costs(self, negative: float, positive: float) -> None:
        self.problem.box[:, 0] = negative, positive

    def set_bias(self, bias: float) -> None:
        """w is sum alpha y x at any time, so where the bias feature of all rows grows, its weight grows with it."""
        if self.problem.bias:
            self.w[-1] *= bias / self.problem.bias
        self.problem.bias = bias

    def sweep(self, table, alphas, sweeps: int) -> None:
        """Sweeps all rows of a group: those that only other problems keep are visited too."""
        rows = self.own(table, alphas)
        self._sweep_all(rows, sweeps)
        alphas[:] = rows["alpha"]

    def begin_look(self) -> None:
        """The rows that are looked at have the codes of their labels."""
        self._seen_w = self.w

    def look(self, rows) -> float:
        return total_loss(rows, self._seen_w, self.problem, self._kind, signs_of(self.positive, self._n_labels))

    def end_look(self, loss: float) -> Certificate:
        return Certificate(half_square(self._seen_w) + loss, self.dual)

    def now(self) -> np.ndarray:
        return self.w

    def take_w(self) -> np.ndarray:
        w, self.w = self.w, None
        return w
