"""The certificate against the exact kernel machine, whatever its parts were found with.

    P_K(f) = |f|^2 / 2 + sum_i loss_i(1 - y_i (f(x_i) + b)),   f = sum_j beta_j K(., P_j),   |f|^2 = beta' K(P, P) beta
    D_K(a) = sum_i (a_i - d_i a_i^2 / 2) - (ya)' K (ya) / 2

f is a function of the kernel's own space, so P_K(f) is the objective of the machine that is written, and no a can have
a D_K above the optimum. A bias that is a feature of the value B adds b^2 / (2 B^2) to P, and B^2 to K; where it is
free, sum y a = 0 must hold, and the heavier class is scaled until it does. D_K is that of the best multiple of a.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llsvm.core import Certificate
from llsvm.evaluate import loss_of_scores
from llsvm.kernels import Kernel, Landmarks, Rows
from llsvm.lowrank import Parts
from llsvm.pool import in_order

# Support vectors that all others meet at a time, or fewer where they have many features: laid out they take no more
# bytes than these, but for 32 of them.
PANEL, LEAST_PANEL, PANEL_BYTES = 512, 32, 4 << 20


@dataclass
class Machine:
    """Functions sum_j beta_j K(., pivot j) + b, a column of beta a problem. bias_value: B, or 0 where b is free."""

    kernel: Kernel
    landmarks: Landmarks
    beta: np.ndarray
    b: np.ndarray
    bias_value: float

    @property
    def squares(self) -> np.ndarray:
        """|f|^2 of each, with the bias's part."""
        inner = self.landmarks.sums(self.kernel, self.landmarks.rows, self.landmarks.coefs(self.beta))
        squares = (self.beta * inner).sum(0)
        return squares + (self.b / self.bias_value) ** 2 if self.bias_value else squares

    def scores(self, rows: Rows, coefs: np.ndarray) -> np.ndarray:
        """(rows, problems); coefs: beta, laid out."""
        return self.landmarks.sums(self.kernel, rows, coefs) + self.b


def primals(machine: Machine, parts: Parts, problems, threads: int) -> np.ndarray:
    """P_K of every problem."""
    tables, coefs = [problem.codes for problem in problems], machine.landmarks.coefs(machine.beta)

    def loss_of(start, block):
        scores, labels = machine.scores(Rows.of(block), coefs), np.asarray(block.codes, np.int32)
        return [loss_of_scores(scores[:, column], labels, table) for column, table in enumerate(tables)]

    return machine.squares / 2 + np.sum(list(parts.each(loss_of, threads)), 0)


def panel_rows(length: float) -> int:
    """How many rows of this mean length are laid out together."""
    panel = PANEL
    while panel > LEAST_PANEL and panel_bytes(panel, length) > PANEL_BYTES:
        panel //= 2
    return panel


def panel_bytes(n_rows: int, length: float, n_features: float = np.inf) -> int:
    """Of so many rows that have hardly a feature in common, laid out."""
    return int(8 * n_rows * min(n_features, n_rows * length))


def quadratic(kernel: Kernel, rows: Rows, coefs: np.ndarray, threads: int, tick=lambda: None) -> np.ndarray:
    """c' K c of every column c of coefs (rows, columns): panel by panel, each pair once."""
    n = len(rows)
    panel = panel_rows(rows.indptr[-1] / max(1, n))

    def of_panel(start):
        end = min(start + panel, n)
        landmarks = Landmarks(rows.part(start, end))
        laid_out, own = landmarks.coefs(coefs[start:end]), coefs[start:]
        sums = landmarks.sums(kernel, rows.part(start, n), laid_out)
        tick()
        return (own[: end - start] * sums[: end - start]).sum(0) + 2 * (own[end - start :] * sums[end - start :]).sum(0)

    total = np.zeros(coefs.shape[1])
    for part in in_order(of_panel, range(0, n, panel), threads):
        total += part
    return total


def balanced(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The heavier class scaled until sum y a = 0."""
    up, down = a[y > 0].sum(), a[y < 0].sum()
    a = a.copy()
    if up > down:
        a[y > 0] *= down / up
    elif down > up:
        a[y < 0] *= up / down
    return a


def best_multiple(linear: float, square: float, quadratic: float) -> float:
    """max over 0 <= s <= 1 of s linear - s^2 (square + quadratic / 2)."""
    curvature = 2 * square + quadratic
    s = min(1.0, linear / curvature) if curvature > 0 else 1.0
    return s * linear - s * s * curvature / 2 if s > 0 else 0.0


def duals(machine: Machine, parts: Parts, problems, codes: np.ndarray, alphas: np.ndarray, threads: int,
          tick=lambda: None) -> list[float]:
    """D_K of every problem. codes: label codes of all rows; alphas: (problems, rows)."""
    signed, sums = np.zeros(alphas.shape), []
    for number, (problem, a) in enumerate(zip(problems, alphas, strict=True)):
        y, U, d = problem.codes[codes].T
        a = np.clip(a, 0, U)
        a = a if machine.bias_value else balanced(a, y)
        signed[number] = y * a
        sums.append((a.sum(), (d * a * a).sum() / 2))
    places = np.flatnonzero(signed.any(0))
    rows, coefs = parts.take(places, threads), np.ascontiguousarray(signed[:, places].T)
    found = quadratic(machine.kernel, rows, coefs, threads, tick)
    found += (machine.bias_value * coefs.sum(0)) ** 2
    return [best_multiple(*own, value) for own, value in zip(sums, found, strict=True)]


def certify(machine: Machine, parts: Parts, problems, codes, alphas, threads: int, tick=lambda: None):
    """A Certificate of every problem."""
    found = primals(machine, parts, problems, threads)
    lower = duals(machine, parts, problems, codes, alphas, threads, tick)
    return [Certificate(float(primal), max(0.0, float(dual))) for primal, dual in zip(found, lower, strict=True)]
