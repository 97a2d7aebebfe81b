"""One of several two-class problems by dual coordinate descent: rows are shared, dual variables are its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llsvm.core import Certificate
from llsvm.evaluate import total_loss
from llsvm.problem import Problem
from llsvm.reader import DUAL
from llsvm.solvers.dual_cd import DualCD
from llsvm.solvers.machines import grown
from llsvm.solvers.together import half_square

AT_BOUND = 1e-6


class DualMachine(DualCD):
    """The rows of one class against all others."""

    def __init__(self, problem: Problem, config, dtype):
        super().__init__(problem, config, 1, np.zeros(1, dtype))
        self.done = False

    @property
    def problem(self) -> Problem:
        return self._problem

    @problem.setter
    def problem(self, problem: Problem) -> None:
        self._problem = problem
        self._steps = problem.as_float32() if getattr(self, "_steps", problem).rounded else problem

    @staticmethod
    def duals_of(alphas: np.ndarray) -> np.ndarray:
        """These dual variables beside gradients."""
        duals = np.zeros(len(alphas), DUAL)
        duals["alpha"] = alphas
        return duals

    def wants(self, rows, alphas) -> np.ndarray:
        """Where alpha is free; nearer to a bound than rounding can tell, of C or of a full step, is there."""
        bounds = self._steps.codes[rows["code"], 1]
        square = rows["norm"].astype(np.float64) ** 2 + self.problem.bias**2
        lowest = AT_BOUND * np.minimum(bounds, 1 / np.maximum(square, 1e-300))
        return (alphas > lowest) & (alphas < (1 - AT_BOUND) * bounds)

    def turn_into(self, other: DualMachine, sign: float) -> None:
        other.state.w, bias = sign * self.state.w, other.state["bias"]
        other.state.sums[:] = self.state.sums
        other.state.sums["bias"] = bias

    def grow(self, n_features: int) -> None:
        self.state.w = grown(self.state.w, n_features)

    def set_bias(self, bias: float) -> None:
        """w is sum alpha y x at any time, so where the bias feature of all rows grows, its weight grows with it."""
        if self.problem.bias:
            self.state.w[-1] *= bias / self.problem.bias
        self.problem = replace(self.problem, bias=bias)
        self.state.sums["bias"] = bias

    def sweep(self, table, alphas, sweeps: int) -> None:
        """Sweeps all rows of a group: those that only other problems keep are visited too."""
        duals = self.duals_of(alphas)
        self._sweep_all(table, duals, sweeps)
        alphas[:] = duals["alpha"]

    def begin_look(self) -> None:
        self._seen_w = self.state.w

    def look(self, rows) -> float:
        return total_loss(rows, self._seen_w, self.problem, self._kind)

    def end_look(self, loss: float) -> Certificate:
        return Certificate(half_square(self._seen_w) + loss, self.dual)

    def now(self) -> np.ndarray:
        return self.state.w

    def take_w(self) -> np.ndarray:
        w, self.state.w = self.state.w, None
        return w
