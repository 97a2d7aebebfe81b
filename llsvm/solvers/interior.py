"""The interior-point method on rows of few numbers (Wu and Chang 2006, with Mehrotra's predictor and corrector).

    min  a' Q a / 2 - sum a,   0 <= a <= U,   y' a = 0 where the bias is free,   Q = diag(y) H H' diag(y)

With multipliers xi of a >= 0, lam of a <= U and nu of y' a = 0, every iteration solves

    (Q + D) da + y dnu = r,   D = xi / a + lam / (U - a),   by   E = I + H' D^-1 H,   a matrix of rank by rank

(Sherman, Morrison and Woodbury). Rows that hardly count in E are left out of it: near the end few alphas are free. The
products are those of BLAS, in float32, the sums of parts of rows on several threads, in one order: their last bits
depend on the processor. What is certified is summed in double precision.
"""

from __future__ import annotations

import time

import numpy as np

from llsvm.core import NEVER, OUT_OF_TIME, Certificate, PassStats, UsageError, look_at_end
from llsvm.memory import Footprint
from llsvm.pool import Pool
from llsvm.problem import Best, total_of
from llsvm.reader import Resident, block_of

PART = 2048  # rows that a thread multiplies at a time
FEW = 0.15  # of the rows: as many are multiplied in double precision, which E needs near the end
LEFT_OUT = 1e-2  # of E, which is not below 1: what rows that are left out of it may have there together
STEP = 0.995  # of the way to the nearest bound
BEGIN, NEAR = 0.1, 1e-3  # of U, where alphas begin; how near to a bound those may be that are given
NEGLIGIBLE = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of U: alphas so near to a bound are put there, if D loses little by it
LITTLE = 0.1  # of the gap
MUCH = 0.2  # of the last certified gap, at which there is a certificate on the way
DOUBLE, SMALL = 1e-4, 1 << 20  # a tolerance below which products are in double precision; numbers that are so anyway
MOST_COLUMNS, STALLED = 8192, 20  # iterations in which the gap becomes no smaller: float32 can do no more


class Matrix:
    """Rows as one dense matrix, the bias feature last if there is one."""

    def __init__(self, data: Resident, bias: float, threads: int, tolerance: float):
        n, p = data.n_rows, data.description.n_features
        self.kind = np.float64 if tolerance < DOUBLE or n * p <= SMALL else np.float32
        self.codes, self.n_columns, self._pool = data.table["code"].copy(), p, Pool(threads)
        self.parts = [slice(start, min(start + PART, n)) for start in range(0, n, PART)]
        self._run = self._pool.map if threads > 1 else map
        if data.dense is not None and not bias:
            self.values = data.dense
            return
        self.values = np.zeros((n, p + (bias != 0)), data.description.dtype)
        list(self._run(lambda part: self._fill(data, part), self.parts))
        self.values[:, p:] = bias

    def _fill(self, data: Resident, part: slice) -> None:
        block = block_of(data.table[part], data.description.dtype)
        rows = np.repeat(np.arange(part.start, part.stop), np.diff(block.indptr))
        self.values[rows, block.features] = block.values

    def times(self, w: np.ndarray, exact: bool = False) -> np.ndarray:
        """H w."""
        out, kind = np.empty(len(self.values)), np.float64 if exact else self.kind
        w = w.astype(kind)

        def work(part):
            out[part] = self.values[part].astype(kind, copy=False) @ w

        list(self._run(work, self.parts))
        return out

    def sum(self, a: np.ndarray, exact: bool = False) -> np.ndarray:
        """H' a."""
        kind = np.float64 if exact else self.kind
        found = self._run(lambda part: self.values[part].T.astype(kind, copy=False) @ a[part].astype(kind), self.parts)
        return np.sum(list(found), 0, dtype=np.float64)

    def weighted_square(self, weights: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """I + H' diag(weights) H, of the rows that count."""
        share = weights * squares
        order = np.argsort(share)
        least = share[order[min(np.searchsorted(np.cumsum(share[order]), LEFT_OUT), len(order) - 1)]]
        chosen = np.flatnonzero(share >= least)
        kind = np.float64 if len(chosen) <= FEW * len(share) else self.kind
        roots = np.sqrt(weights).astype(kind)
        E = np.eye(self.values.shape[1])
        step = PART * max(1, len(chosen) // PART // 64 + 1)  # so that the sum of parts takes little

        def work(start):
            rows = chosen[start : start + step]
            scaled = self.values[rows] * roots[rows, None]
            return scaled.T @ scaled

        for found in self._run(work, range(0, len(chosen), step)):
            E += found
        return E

    def close(self) -> None:
        self._pool.shutdown()


class Iterate:
    """Where the iterations of one problem stand: alphas and multipliers."""

    def __init__(self, U: np.ndarray, alphas: np.ndarray | None):
        self.a = BEGIN * U if alphas is None else np.clip(alphas, NEAR * U, (1 - NEAR) * U)
        self.nu, self.xi, self.lam = 0.0, None, None

    def begin(self, gradient: np.ndarray) -> None:
        """Multipliers beyond the gradient are as large as that is on average."""
        least = max(1.0, np.abs(gradient).mean())
        self.xi, self.lam = np.maximum(gradient, 0) + least, np.maximum(-gradient, 0) + least


class InteriorProblem:
    """One two-class problem."""

    def __init__(self, problem, config, H: Matrix, alphas: np.ndarray | None):
        self.problem, self._config, self.H, self._free = problem, config, H, config.free_bias
        self.y, self.U, _ = problem.codes[H.codes].T.copy()
        self.best, self.alphas, self._now = Best(), np.zeros(len(self.y)), None
        self._at = Iterate(self.U, alphas)
        self._squares = np.concatenate([np.square(H.values[part], dtype=np.float64).sum(1) for part in H.parts])
        self.met = self.reached = Certificate(np.inf, 0.0)  # now, and the best of each so far

    @property
    def done(self) -> bool:
        return self.best.meets(self._config.tolerance)

    def _look(self) -> np.ndarray:
        """Sets P and D of where we are; returns the products of the rows with this w."""
        at, y = self._at, self.y
        w = self.H.sum(y * at.a, exact=True)
        f = self.H.times(w, exact=True)
        b = best_bias(f, y, self.U) if self._free else 0.0
        primal = w @ w / 2 + self.U @ np.maximum(0, 1 - y * (f + b))
        self.met = Certificate(float(primal), float(at.a.sum() - w @ w / 2))
        self._now = w, b, float(primal)
        self.reached = Certificate(min(self.reached.primal, self.met.primal), max(self.reached.dual, self.met.dual))
        return f

    def iterate(self) -> None:
        """A look at where we are, and a step."""
        f, at, y = self._look(), self._at, self.y
        is_balanced = not self._free or abs(y @ at.a) <= 1e-3 * at.a.sum()
        known = self.best.certificate.relative_gap if self.best.certificate else np.inf
        if is_balanced and self.met.estimate <= max(1.5 * self._config.tolerance, MUCH * min(known, 1.0)):
            self.certify()
        if not self.done:
            self._step(y * f - 1)

    def _step(self, gradient: np.ndarray) -> None:
        at, y, s = self._at, self.y, self.U - self._at.a
        if at.xi is None:
            at.begin(gradient + at.nu * y)
        r_dual, r_primal = gradient + at.nu * y + at.lam - at.xi, y @ at.a if self._free else 0.0
        mu = (at.a @ at.xi + s @ at.lam) / (2 * len(y))
        D = at.xi / at.a + at.lam / s
        lower = _inverse_of_root(self.H.weighted_square(1 / D, self._squares))

        def solve(v):
            u = y * v / D
            return v / D - y * self.H.times(lower.T @ (lower @ self.H.sum(u))) / D

        of_y = solve(y) if self._free else np.zeros(len(y))

        def direction(r_low, r_high):
            da = solve(-r_dual + r_low / at.a - r_high / s)
            dnu = (y @ da + r_primal) / (y @ of_y) if self._free else 0.0
            da -= of_y * dnu
            return da, dnu, (r_low - at.xi * da) / at.a, (r_high + at.lam * da) / s

        da, dnu, dxi, dlam = direction(-at.a * at.xi, -s * at.lam)
        go, go_dual = min(_way(at.a, da), _way(s, -da)), min(_way(at.xi, dxi), _way(at.lam, dlam))
        hoped = (at.a + go * da) @ (at.xi + go_dual * dxi) + (s - go * da) @ (at.lam + go_dual * dlam)
        aim = mu * (hoped / (2 * len(y)) / mu) ** 3
        da, dnu, dxi, dlam = direction(aim - at.a * at.xi - da * dxi, aim - s * at.lam + da * dlam)
        go = STEP * min(_way(at.a, da), _way(s, -da), _way(at.xi, dxi), _way(at.lam, dlam))
        at.a, at.nu, at.xi, at.lam = at.a + go * da, at.nu + go * dnu, at.xi + go * dxi, at.lam + go * dlam
        at.a = np.clip(at.a, 1e-14 * self.U, self.U * (1 - 1e-12))

    def certify(self) -> None:
        """This w, and D of the alphas, of which those next to a bound are put there."""
        if self._now is None:  # the time was over before the first step
            self._look()
        for share in (*NEGLIGIBLE, 0.0):
            a = self._snapped(share)
            w = self.H.sum(self.y * a, exact=True)
            scale, dual = _best_multiple(a.sum(), w @ w)
            if not share or self.met.dual - dual <= LITTLE * max(self.met.primal - self.met.dual, 0.0):
                break
        (w, b, primal), before = self._now, self.best.certificate
        self.best.offer(np.append(w, b) if self._free else w, primal, float(dual), self.problem.loss_at_zero)
        if before is None or self.best.certificate.dual > before.dual:
            self.alphas = scale * a

    def _snapped(self, share: float) -> np.ndarray:
        a = np.where(self._at.a < share * self.U, 0, np.where(self._at.a > (1 - share) * self.U, self.U, self._at.a))
        if self._free:
            up, down = a[self.y > 0].sum(), a[self.y < 0].sum()
            a = a * np.where(self.y > 0, min(1.0, down / max(up, 1e-300)), min(1.0, up / max(down, 1e-300)))
        return a

    @property
    def last(self) -> np.ndarray:
        """Alphas, whatever they are worth."""
        return self._at.a

    @property
    def weights(self) -> np.ndarray:
        """(features + 1), the bias's last."""
        if self.best.w is None:
            return np.zeros(self.H.n_columns + 1)
        return self.best.w if len(self.best.w) > self.H.n_columns else np.append(self.best.w, 0.0)


def _inverse_of_root(E: np.ndarray) -> np.ndarray:
    """L^-1 of E = L L', or of a little more where rounding has taken E below 0."""
    added = 0.0
    while True:
        try:
            return np.linalg.inv(np.linalg.cholesky(E + added * np.eye(len(E))))
        except np.linalg.LinAlgError:
            added = max(10 * added, 1e-7 * np.diag(E).max())


def _way(v: np.ndarray, dv: np.ndarray) -> float:
    """How far v + t dv stays positive, up to 1."""
    falling = dv < 0
    return min(1.0, float((-v[falling] / dv[falling]).min(initial=np.inf)))


def _best_multiple(linear: float, square: float) -> tuple[float, float]:
    s = min(1.0, linear / square) if square > 0 else 1.0
    return s, s * linear - s * s * square / 2


def best_bias(f: np.ndarray, y: np.ndarray, U: np.ndarray) -> float:
    """The b with the smallest sum_i U_i max(0, 1 - y_i (f_i + b)), whose slope changes by U_i at y_i - f_i."""
    ends = y - f
    order = np.argsort(ends)
    slopes = np.cumsum(U[order]) - U[y > 0].sum()
    first = min(int(np.searchsorted(slopes, 0)), len(order) - 1)
    last = min(first + 1, len(order) - 1) if slopes[first] == 0 else first
    return float(ends[order[first]] + ends[order[last]]) / 2


class InteriorPoint:
    """Any number of problems of rows in memory, one after the other in every pass."""

    reads_once, deadline, wait = False, NEVER, 0.0

    @staticmethod
    def footprint(config, n_labels: int) -> Footprint:
        """As of resident.InMemory: alphas, multipliers and their steps are 24 numbers a row."""
        n_problems = n_labels if n_labels > 2 else 1
        return Footprint(n_problems, 3, 0, 8 * 24 + 8 * 6 * n_problems)

    def __init__(self, problems: list, config, data: Resident, states: list | None = None):
        """states: alphas to begin from, those of each problem."""
        n, p = data.n_rows, data.description.n_features + 1
        if p > MOST_COLUMNS:
            raise UsageError(f"-s ipm: a matrix of {p} by {p} numbers is in the way",
                             f"-s dual has no such matrix; -s ipm takes up to {MOST_COLUMNS} features, or --rank")
        beside = 8 * 5 * p * p + n * self.footprint(config, len(problems)).row_bytes + data.n_bytes
        needed = data.description.dtype.itemsize * n * p + beside
        config.budget.take(needed, f"-s ipm works on {n} rows of {p} numbers at once")
        self._config, self.bias, self._data = config, 1.0 if config.free_bias else problems[0].bias, data
        self._matrix = Matrix(data, 0.0 if config.free_bias else self.bias, config.threads,
                              config.tolerance)
        self._own = [InteriorProblem(problem, config, self._matrix, alphas)
                     for problem, alphas in zip(problems, states or [None] * len(problems), strict=True)]
        self.bytes_read, self.compute, self.best_w, self.uncertified = data.bytes_read, 0.0, None, ""

    @property
    def states(self) -> list[np.ndarray]:
        """The alphas of each problem: those that were certified, or the last."""
        return [own.alphas if own.best.certificate else own.last for own in self._own]

    @property
    def dual(self) -> float:
        return sum(own.met.dual for own in self._own)

    @property
    def certificates(self) -> list[Certificate]:
        return [own.best.certificate for own in self._own] if self.certified else []

    @property
    def certified(self) -> Certificate | None:
        found = [own.best.certificate for own in self._own]
        return total_of(found) if all(found) else None

    def show_progress(self, bar) -> None:
        """An iteration is over too soon for one."""

    def passes(self):
        number, least, since = 0, np.inf, 0
        while since < STALLED:
            began, number = time.perf_counter(), number + 1
            busy = [own for own in self._own if not own.done]
            for own in busy:
                self.deadline.check()
                own.iterate()
            self.compute += time.perf_counter() - began
            known = self.certified or total_of(own.best.certificate or own.reached for own in self._own)
            met = total_of(own.met for own in self._own).estimate
            least, since = min(least, met), 0 if met < least else since + 1
            yield PassStats(number, len(busy) * len(self._matrix.values), len(busy), self.certified is not None,
                            known.primal, known.dual, known.relative_gap, self.bytes_read, 0.0, self.compute,
                            finished=all(own.done for own in self._own))

    def finish(self, reason: str, stopped=lambda: False) -> str:
        def look():
            for own in self._own:
                if not own.best.certificate:
                    own.certify()

        reason = look_at_end(reason, look, lambda: all(own.done for own in self._own))
        self.uncertified = "" if self.certified else OUT_OF_TIME
        self.best_w = self.weights()
        return reason

    def weights(self) -> np.ndarray:
        """(features + 1, problems), the bias last."""
        return np.column_stack([own.weights for own in self._own])

    def close(self) -> None:
        self._matrix.close()
        self._data.release()
