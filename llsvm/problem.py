"""What is solved: a two-class problem of rows with label codes. k problems of the same rows differ in it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from llsvm.core import Certificate

if TYPE_CHECKING:
    import numpy as np

# From this tolerance up, dual variables are kept in float32 between visits: their rounding (6e-8) is far below it.
FLOAT32_TOLERANCE, SMALLEST_BOUND = 1e-5, 1e-30
MOST_KEPT = 64  # labels of a problem whose table is kept: one a class would be as many entries as pairs of classes


@dataclass(frozen=True)
class Problem:
    """The rows of label `positive` (-1: of none) against all others; costs: C of these, and of the positive ones.

    bias: the value of one more feature of every row, 0 where there is none. loss_at_zero = P(0), infinite where the
    rows are not known. rounded: bounds are float32. Where rows are divided into n_folds (folds.py), those of the fold
    `held_out` are left out: their U is 0.
    """

    positive: int
    n_labels: int
    costs: tuple[float, float]
    squared: bool
    bias: float
    tolerance: float
    loss_at_zero: float = math.inf
    rounded: bool = False
    n_folds: int = 1
    held_out: int = -1

    @property
    def codes(self) -> np.ndarray:
        """(y, U, d) of every code of a row, label + n_labels * fold:
        loss(z) = max over 0 <= a <= U of (a z - d a^2 / 2), z = 1 - y w.x."""
        return self._kept if self.n_labels <= MOST_KEPT else self._make()

    @cached_property
    def _kept(self) -> np.ndarray:
        return self._make()

    def _make(self) -> np.ndarray:
        import numpy as np

        codes = np.empty((max(1, self.n_labels), 3))
        codes[:] = self.code(-1.0, self.costs[0])
        if self.positive >= 0:
            codes[self.positive] = self.code(1.0, self.costs[1])
        if self.n_folds > 1:
            codes = np.tile(codes, (self.n_folds, 1))
        if self.held_out >= 0:
            codes[self.n_labels * self.held_out : self.n_labels * (self.held_out + 1), 1] = 0.0
        return codes

    def code(self, y: float, C: float) -> tuple[float, float, float]:
        """(y, U, d) of a row that costs C."""
        return (y, math.inf, 0.5 / C) if self.squared else (y, below_in_float32(C) if self.rounded else C, 0.0)

    @property
    def is_bounded(self) -> bool:
        """Whether no alpha grows without end."""
        return not self.squared

    @property
    def may_round(self) -> bool:
        """Whether dual variables may be kept as float32."""
        return self.tolerance >= FLOAT32_TOLERANCE and (self.squared or min(self.costs) > SMALLEST_BOUND)

    def as_float32(self) -> Problem:
        """With bounds that are float32 and not above U."""
        return replace(self, rounded=True)


def below_in_float32(number: float) -> float:
    """The largest float32 that is not larger."""
    import numpy as np

    largest = float(np.finfo(np.float32).max)  # NumPy would make `number` a float32 to compare it with one
    if number > largest:
        return largest
    rounded = np.float32(number)
    return float(rounded if float(rounded) <= number else np.nextafter(rounded, np.float32(0)))


def bias_of(config, largest_norm: float) -> float:
    """The value of the bias feature: what was asked for, 0 if none, or R, the norm of the longest row."""
    return float(largest_norm if config.bias is None else max(config.bias, 0.0))


def pose(positives: list[int], labels: list[str], config, squared: bool, bias: float, counts=None) -> list[Problem]:
    """The problems of these positive classes. counts: rows by label, if they are known.

    As LIBLINEAR: of two classes each has its own C, of more the positive one of a problem.
    """
    weights = [config.weights.get(label, 1.0) for label in labels]
    if config.balanced:
        weights = [weight * sum(counts) / (len(labels) * count) for weight, count in zip(weights, counts, strict=True)]
    problems, n_rows = [], 0 if counts is None else int(sum(counts))
    for positive in positives:
        negative = weights[1 - positive] if len(labels) == 2 and positive >= 0 else 1.0
        costs = config.C * negative, config.C * (weights[positive] if positive >= 0 else 1.0)
        problem = Problem(positive, len(labels), costs, squared, bias, config.tolerance)
        if counts is not None and positive >= 0:
            n_positive = int(counts[positive])
            losses = [_loss_at_zero(*problem.code(y, C)[1:]) for y, C in zip((-1.0, 1.0), costs, strict=True)]
            at_zero = math.fsum((losses[0] * (n_rows - n_positive), losses[1] * n_positive))
            problem = replace(problem, loss_at_zero=at_zero)
        problems.append(problem)
    return problems


def _loss_at_zero(bound: float, d: float) -> float:
    """Of a row where w = 0, so that z = 1: the largest a - d a^2 / 2."""
    a = bound if d * bound <= 1 else 1 / d
    return a * (1 - d * a / 2)


def total_of(certificates) -> Certificate:
    certificates = list(certificates)
    return Certificate(sum(c.primal for c in certificates), sum(c.dual for c in certificates))


class Best:
    """The best certified w of a problem: of those offered the one whose P is least, beside the largest D."""

    def __init__(self):
        self.w, self.certificate = None, None

    def offer(self, w, primal: float, dual: float, at_zero: float = math.inf) -> None:
        """at_zero: P(0), for the case that the first w is worse than 0, or so large that P overflows."""
        import numpy as np

        if self.certificate is None and not primal <= at_zero:
            w, primal = np.zeros_like(w), at_zero
        if self.certificate is None or primal <= self.certificate.primal:
            self.w = np.empty_like(w) if self.w is None else self.w
            self.w[:] = w
            self.certificate = Certificate(primal, 0.0 if self.certificate is None else self.certificate.dual)
        self.raise_dual(dual)

    def raise_dual(self, dual: float) -> None:
        """A dual value that is known; D(0) = 0 always is. One that overflowed tells nothing."""
        if self.certificate and math.isfinite(dual):
            self.certificate = Certificate(self.certificate.primal, max(dual, self.certificate.dual))

    def meets(self, tolerance: float) -> bool:
        return self.certificate is not None and bool(self.certificate.relative_gap <= tolerance)
