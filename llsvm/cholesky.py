"""Incomplete Cholesky factorisation (Wu et al., section 2.3): K = H H' + E, of pivots, and E positive semidefinite.

    H = K(rows, P) L^-T,   L L' = K(P, P),   P the pivots

So row i becomes h_i with h_i.h_j = K(x_i, x_j) wherever one of the two is a pivot, and w.h_i is the value at x_i of the
function sum_j beta_j K(., P_j), beta = L^-T w, whose squared norm is w.w.

The products are those of BLAS: their last bits depend on the processor.
"""

from __future__ import annotations

import numpy as np

from llsvm.kernels import Kernel, Landmarks, Rows

BLOCK = 64  # pivots that are tried at a time
SMALLEST = 1e-9  # of the largest K(x, x): what is left of a pivot's before it is one, so that L has an inverse
STRIPE = 128  # columns of H that are computed at a time
ROUNDS = 200  # blocks in which no row is a pivot, after which none is expected any more


class Factor:
    """The pivots, as landmarks, and L^-1. Without pivots it maps rows to nothing."""

    def __init__(self, kernel: Kernel, pivots: Rows | None = None):
        self.kernel, self.landmarks, self.inverse = kernel, None, np.empty((0, 0))
        if pivots is not None:
            self.landmarks = Landmarks(pivots)
            values = self.landmarks.values(kernel, pivots)
            self.inverse = np.linalg.inv(_cholesky(values))

    @property
    def rank(self) -> int:
        return len(self.inverse)

    @property
    def n_bytes(self) -> int:
        return self.inverse.nbytes + (self.landmarks.n_bytes if self.landmarks else 0)

    def map(self, rows: Rows, out: np.ndarray | None = None) -> np.ndarray:
        """h of every row, (rows, rank)."""
        out = np.empty((len(rows), self.rank)) if out is None else out
        if self.rank:
            values = self.landmarks.values(self.kernel, rows)
            for start in range(0, self.rank, STRIPE):  # L^-1 is triangular
                end = min(start + STRIPE, self.rank)
                out[:, start:end] = values[:, :end] @ self.inverse[start:end, :end].T
        return out

    def residual(self, rows: Rows, mapped: np.ndarray | None = None) -> np.ndarray:
        """The diagonal of E: what is left of K(x, x)."""
        mapped = self.map(rows) if mapped is None else mapped
        return np.maximum(self.kernel.of_itself(rows.squares) - np.square(mapped).sum(1), 0)

    def coefficients(self, w: np.ndarray) -> np.ndarray:
        """beta of the pivots, for w (rank, columns)."""
        return self.inverse.T @ w

    def square(self, beta: np.ndarray) -> np.ndarray:
        """The squared norm of the functions with these coefficients, from the kernel itself."""
        return (beta * (self.landmarks.values(self.kernel, self.landmarks.rows) @ beta)).sum(0)


def _cholesky(values: np.ndarray) -> np.ndarray:
    """L of K(P, P), or, where rounding has taken that below 0, of a little more; E stays positive semidefinite."""
    added = 0.0
    while True:
        try:
            return np.linalg.cholesky(values + added * np.eye(len(values)))
        except np.linalg.LinAlgError:
            added = max(100 * added, 1e-13 * np.diag(values).max())


class _Search:
    """Pivots among points, so many at the most, beside those of a factor: columns of H, and what is left, d."""

    def __init__(self, factor: Factor, points: Rows, rank: int, weights):
        self.kernel, self.points, self.rank = factor.kernel, points, rank
        self.n, self.found = factor.rank, []
        self.H = np.empty((len(points), rank))
        factor.map(points, self.H[:, : self.n])
        diagonal = factor.kernel.of_itself(points.squares)
        self.d = np.maximum(diagonal - np.square(self.H[:, : self.n]).sum(1), 0)
        self.least = SMALLEST * diagonal.max(initial=0)
        self._weights = weights

    @property
    def scores(self) -> np.ndarray:
        """By which pivots are chosen: d, weighted, or 0 where there is hardly anything left."""
        d = np.where(self.d > self.least, self.d, 0)
        return d if self._weights is None else d * self._weights

    @property
    def is_over(self) -> bool:
        return self.n == self.rank or not self.scores.any()

    def left_between(self, places) -> np.ndarray:
        """E among these points."""
        own, H = self.points.take(places), self.H[places, : self.n]
        return Landmarks(own).values(self.kernel, own) - H @ H.T

    def add(self, places) -> None:
        """These points become pivots, in this order."""
        own, end = self.points.take(places), self.n + len(places)
        columns = Landmarks(own).values(self.kernel, self.points)
        columns -= self.H[:, : self.n] @ self.H[places, : self.n].T
        lower = _cholesky(columns[places])
        new = columns @ np.linalg.inv(lower).T
        new[places] = lower
        self.H[:, self.n : end] = new
        self.d = np.maximum(self.d - np.square(new).sum(1), 0)
        self.d[places] = 0
        self.found += [int(place) for place in places]
        self.n = end


def _greedily(search: _Search, is_enough) -> None:
    """The paper's: pivot after pivot, always the one of which most is left."""
    while not search.is_over and not is_enough(search.H[:, : search.n]):
        search.add(np.array([search.scores.argmax()]))


def _at_random(search: _Search, random, is_enough) -> None:
    """Randomly pivoted Cholesky in blocks: points are drawn by what is left of them, and each of a block is kept by
    what those before it leave (Chen, Epperly, Tropp, Webber 2022; with rejection, 2024)."""
    in_vain = 0
    while not search.is_over and in_vain < ROUNDS and not is_enough(search.H[:, : search.n]):
        scores = np.cumsum(search.scores)
        drawn = np.searchsorted(scores, random.random(min(BLOCK, search.rank - search.n)) * scores[-1], "right")
        drawn = np.unique(np.minimum(drawn, len(scores) - 1))
        left, kept = search.left_between(drawn), []
        before = np.diag(left).copy()
        for k, chance in enumerate(random.random(len(drawn))):
            if left[k, k] > max(search.least, chance * before[k]):
                column = left[:, k] / np.sqrt(left[k, k])
                left -= column[:, None] * column
                kept.append(k)
        in_vain = 0 if kept else in_vain + 1
        if kept:
            search.add(drawn[kept])


def extend(factor: Factor, points: Rows, rank: int, how: str = "random", seed: int = 1, weights=None,
           is_enough=lambda mapped: False):
    """A factor of `rank` pivots, or of as many as there are, those of `factor` first; and which of the points are new.

    greedy: as the paper does; random: by blocks. weights: of points, by which what is left of them counts. is_enough:
    of the mapped points, ends the search.
    """
    search = _Search(factor, points, max(rank, factor.rank), weights)
    if how == "greedy":
        _greedily(search, is_enough)
    else:
        _at_random(search, np.random.Generator(np.random.PCG64([seed, factor.rank])), is_enough)
    if not search.found:
        return factor, []
    new = points.take(np.array(search.found, np.int64))
    pivots = Rows.joined([factor.landmarks.rows, new]) if factor.landmarks else new
    return Factor(factor.kernel, pivots), search.found
