"""Newton's method on the primal value, with the squared hinge loss: for data on which coordinate descent is slow.

Coordinate descent needs as many visits as the rows are ill-scaled: 1,000 rows of 20 pixels from 0 to 255 have a gap of
0.98 after 10,000 of them. A Newton step, by conjugate gradients with the diagonal as preconditioner, hardly minds. The
alphas that belong to a w, a = z / d where z = 1 - y w.x > 0, are a dual point, and the gap of the two is g.g / 2 with
g = w - sum a y x, the gradient of P: where it is small, w is proved. (LIBLINEAR's -s 1 does likewise after 300 passes.)
"""

from __future__ import annotations

import numpy as np

from llsvm import _newton
from llsvm.evaluate import dot

VECTORS = 8  # of the size of w that it takes, beside one a part of the rows
# Rows are looked at in so many parts, by several threads, where they are so many times the features.
PARTS, TALL = 8, 10
# Visits by rows of the data after which coordinate descent counts as slow: of tall data, and of wide ones, whose steps
# take many more products; where it did not help, so many times as many (docs/newton.md).
TALL_PATIENCE, WIDE_PATIENCE, PATIENCE_GROWS = 5, 200, 4
PASSES, LARGEST_MATRIX = 2, 1024  # from disk: so many times fewer passes; no more weights
MOST_STEPS, MOST_PRODUCTS = 50, 1000
FORCING = 0.1  # conjugate gradients end when the residual has this part of the gradient
DESCENT, SHORTEST = 1e-2, 2.0**-20  # what a step must gain, of what its slope promises; halvings of it


def is_tall(n_rows: int, size: int) -> bool:
    return n_rows >= TALL * size


def patience(n_rows: int, size: int) -> float:
    return TALL_PATIENCE if is_tall(n_rows, size) else WIDE_PATIENCE


def fits(n_rows: int, size: int, room: int) -> bool:
    """Whether what it takes for so many rows and weights has room in so many bytes."""
    return 8 * size * (VECTORS + (2 * PARTS if is_tall(n_rows, size) else 2)) <= room


def parts_of(table: np.ndarray, duals: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    n_parts = PARTS if is_tall(len(table), size) else 1
    return list(zip(np.array_split(table, n_parts), np.array_split(duals, n_parts), strict=True))


def solve(gradient, diagonal, product, check) -> np.ndarray:
    """s with H s = -g, nearly, by conjugate gradients: product(v) -> H v."""
    inverse, found, residual = 1 / diagonal, np.zeros_like(gradient), -gradient
    direction = inverse * residual
    square = dot(residual, direction)
    enough = FORCING**2 * square
    for _ in range(MOST_PRODUCTS):
        check()
        curved = product(direction)
        curvature = dot(direction, curved)
        if not 0 < curvature < np.inf:  # no gradient is left, or numbers overflow
            break
        length = square / curvature
        found += length * direction
        residual -= length * curved
        curved[:] = inverse * residual
        before, square = square, dot(residual, curved)
        if not square > enough:
            break
        direction *= square / before
        direction += curved
    return found


class Newton:
    """Rows in parts, (table, duals), each with the alphas that belong to w; look(w) -> the loss of all; run: map, or
    that of a pool."""

    def __init__(self, parts, problem, kind, look, run, check):
        self._parts, self._problem = parts, (problem.bias, problem.codes)
        self._kind, self._look, self._run, self._check = kind, look, run, check

    def step(self, w, loss: float, gradient) -> float | None:
        """Moves w, which has this loss and gradient of P, to where P is less; returns the loss there, of which the last
        look was. None, and w as it was, where no step could be found."""
        direction = solve(gradient, self._diagonal(len(gradient)), self._product, self._check)
        slope, primal, length, before = dot(gradient, direction), 0.5 * dot(w, w) + loss, 1.0, w.copy()
        while length >= SHORTEST and slope < 0:
            np.add(before, length * direction, out=w)
            loss = self._look(w)
            if 0.5 * dot(w, w) + loss <= primal + DESCENT * length * slope:
                return loss
            length /= 2
        w[:] = before
        return None

    def _product(self, v) -> np.ndarray:
        return self._sum(v.copy(), lambda part, out: _newton.add_products(*part, v, *self._problem, out, self._kind))

    def _diagonal(self, size: int) -> np.ndarray:
        return self._sum(np.ones(size), lambda part, out: _newton.add_diagonal(*part, *self._problem, out, self._kind))

    def _sum(self, first: np.ndarray, add) -> np.ndarray:
        """What add(part, out) adds for all parts, in one order."""
        if len(self._parts) == 1:
            add(self._parts[0], first)
            return first
        sums = np.zeros((len(self._parts), len(first)))
        list(self._run(add, self._parts, sums))
        return first + sums.sum(0)


def descent(cd, parts, w, run, deadline):
    """On the rows of a DualCD, all that it has: yields the loss at w and after each step, when the rows are to be given
    the alphas that belong to it."""
    def look(w):
        return cd.survey(parts, w, run, deadline)[0]

    rows = Newton(parts, cd.steps, cd.kind, look, run, deadline.check)
    loss, steps = look(w), 0
    while loss is not None and steps <= MOST_STEPS:
        yield loss
        loss, steps = rows.step(w, loss, w - cd.state.w), steps + 1


class ByPasses:
    """Newton's method on rows that come by group by group, a step a pass: H stands in memory.

    w: where the rows are looked at, each of which is then given to `add`.
    """

    def __init__(self, w: np.ndarray):
        self.w, self._matrix = w.copy(), np.zeros((len(w), len(w)))
        self._before, self._direction, self._length = w, np.zeros_like(w), 1.0
        self._primal, self._slope, self._steps = np.inf, 0.0, 0

    @staticmethod
    def fits(size: int, n_passes: int, n_rows: int, room: int) -> bool:
        """Whether it is due after so many passes, and has room in so many bytes."""
        is_due = n_passes * PASSES >= patience(n_rows, size)
        return is_due and size <= LARGEST_MATRIX and ByPasses.n_bytes(size) <= room

    @staticmethod
    def n_bytes(size: int) -> int:
        return 8 * size * (size + VECTORS)

    def add(self, rows, duals, problem, kind) -> None:
        _newton.add_matrix(rows, duals, problem.bias, problem.codes, self._matrix, kind)

    def step(self, loss: float, gradient, check) -> bool:
        """Moves w, which has this loss and gradient of P, after all rows have been added; False where P does not
        become less."""
        primal = 0.5 * dot(self.w, self.w) + loss
        if primal <= self._primal + DESCENT * self._length * self._slope:
            self._matrix.flat[:: len(gradient) + 1] += 1.0
            self._direction = solve(gradient, np.diagonal(self._matrix).copy(), self._product, check)
            self._before, self._primal, self._length = self.w.copy(), primal, 1.0
            self._slope = dot(gradient, self._direction)
        else:
            self._length /= 2
        self._steps += 1
        self._matrix[:] = 0.0
        np.add(self._before, self._length * self._direction, out=self.w)
        return self._slope < 0 and self._length >= SHORTEST and self._steps < MOST_STEPS

    def _product(self, v) -> np.ndarray:
        return np.array([dot(row, v) for row in self._matrix])
