"""Pegasos in all its forms: rows in memory, from disk, or from text read once."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np

from llsvm import _primal
from llsvm.core import Certificate, PassStats, TooLarge
from llsvm.evaluate import along_ray, best_multiple, dot, total_loss
from llsvm.problem import Problem
from llsvm.solvers.one_vs_rest import MACHINE_BYTES, OneVsRest, grown, n_columns

STATE = np.dtype([
    *((name, np.float64) for name in (
        "t", "scale", "square", "alphas", "bound", "fresh_bound", "averaging", "averaged", "losses", "radius_square",
        "n_rows", "costs")),
    *((name, np.int64) for name in ("pending", "touched", "n_batches")),
])  # fmt: skip
assert STATE.itemsize == _primal.STATE_BYTES
PATIENCE = 5  # passes over which the primal value must improve


class Machine:
    """One problem. `batch` rows a step (0: a block); w is `state.scale` times v.

    The number of rows l is that of the data (set_rows), or, where it is not known, that of the rows so far.
    """

    def __init__(self, problem: Problem, config, dtype):
        self.problem, self._config = problem, config
        self._kind, self._state = np.zeros(1, dtype), np.zeros(1, STATE)
        self._state["t"] = self._state["scale"] = 1.0
        self._growing = True
        n_batch = 0 if config.batch == 1 else 1
        self._v, self._u = np.zeros(1), np.zeros(int(config.average))
        self._gradient, self._marks = np.zeros(n_batch), np.zeros(n_batch, np.uint8)
        self._touched = np.zeros(n_batch, np.int32)
        self._snapshot = self._best_w = self._primal = None
        self.dual = 0.0

    # --- what becomes known of the problem

    def grow(self, n_features: int) -> None:
        last, self._v = len(self._v) - 1, grown(self._v, n_features)
        if len(self._u):
            self._u = grown(self._u, n_features)
        if len(self._gradient):
            self._gradient, self._marks = grown(self._gradient, n_features), grown(self._marks, n_features)
            self._touched = np.append(np.where(self._touched == last, n_features, self._touched),
                                      np.zeros(n_features - last, np.int32)).astype(np.int32)

    def set_bias(self, bias: float) -> None:
        """w is sum alpha y x at any time, so where the bias feature of all rows grows, its weight grows with it."""
        if self.problem.bias and bias != self.problem.bias:
            for vector in (self._v, self._u, self._gradient):
                vector[-1:] *= bias / self.problem.bias
            self._measure()
        self.problem = replace(self.problem, bias=bias)

    def set_rows(self, n_rows: int) -> None:
        """l, and the ball in which the optimum must lie."""
        self._growing = False
        self._state["n_rows"] = n_rows
        self._state["radius_square"] = self.problem.loss_at_zero
        if self._config.init == "random":
            norm = float(np.sqrt(self._state["radius_square"][0]))
            end = len(self._v) - (self.problem.bias == 0)
            _primal.random_start(self._v[:end], self._config.seed * 65536 + self.problem.positive, norm)
            self._measure()

    def turn_into(self, other: Machine, sign: float) -> None:
        other._state = self._state.copy()
        other._v, other._u, other._gradient = sign * self._v, sign * self._u, sign * self._gradient
        other._marks, other._touched = self._marks.copy(), self._touched.copy()

    # --- steps

    def visit(self, rows, order) -> None:
        problem = self.problem
        _primal.visit(
            rows, order, self._state, self._config.batch, self._growing, self._config.hold_t, self._v, self._u,
            self._gradient, self._touched, self._marks, problem.bias, problem.codes, self._kind,
        )

    def end_block(self, n_rows: int) -> None:
        _primal.end_batch(self._state, n_rows, self._v, self._u, self._gradient, self._touched, self._marks,
                          self._config.hold_t)

    def begin_pass(self) -> None:
        self._state["losses"] = 0.0

    def restart_average(self) -> None:
        self._u[:] = 0.0
        self._state["averaging"] = self._state["averaged"] = 0.0

    def end_pass(self) -> None:
        """Counts the alphas of this pass among those before, and values the dual point that they are."""
        state = self._state
        if state["pending"][0]:  # the rows that came last, fewer than a batch, count as one
            self.end_block(self._config.batch)
        state["bound"] += state["fresh_bound"]
        state["fresh_bound"] = 0.0
        self._measure()
        alphas, square, bound = (float(state[name][0]) for name in ("alphas", "square", "bound"))
        if bound > 0:
            factor = min(1 / bound, alphas / square if square > 0 else np.inf)
            self.dual = max(self.dual, factor * alphas - 0.5 * factor * factor * square)

    def _measure(self) -> None:
        """w.w itself, where steps keep it up only nearly. A first step makes w as long as the sum of all C_i x_i."""
        scale = float(self._state["scale"][0])
        square = scale * scale * dot(self._v, self._v)
        if not np.isfinite(square + dot(self._u, self._u)):
            raise TooLarge("pegasos")
        self._state["square"] = square

    # --- weights and what they are worth

    @property
    def met(self) -> float:
        """The primal value as the losses met in the pass have it."""
        return float(0.5 * self._state["square"][0] + self._state["losses"][0])

    def now(self) -> np.ndarray:
        """The average, or the last w."""
        state = self._state[0]
        if state["averaged"]:
            return (state["averaging"] * self._v + self._u) / state["averaged"]
        return state["scale"] * self._v

    def begin_look(self) -> None:
        self._snapshot = self.now()

    def look(self, rows):
        """The loss of these rows, or, of the average, what tells it for every multiple."""
        value = along_ray if self._config.average else total_loss
        return value(rows, self._snapshot, self.problem, self._kind)

    def end_look(self, seen) -> Certificate:
        """Keeps the best w so far; the average by the multiple of it that is best."""
        w, self._snapshot = self._snapshot, None
        if self._config.average:
            factor, primal = best_multiple(seen, w, squared_loss=False)
        else:
            factor, primal = 1.0, 0.5 * dot(w, w) + seen
        if primal > self._state["radius_square"][0]:  # P(0)
            factor, primal = 0.0, float(self._state["radius_square"][0])
        if self._primal is None or primal <= self._primal:
            self._primal, self._best_w = primal, np.multiply(w, factor, out=w)
        return Certificate(self._primal, self.dual)

    def take_w(self) -> np.ndarray:
        w = self.now() if self._best_w is None else self._best_w
        self._v = self._u = self._gradient = self._best_w = None
        return w


class Pegasos(OneVsRest):
    """Passes over a stream, each looked at: in memory right after it, from disk during the next one.

    The average begins anew in the middle of the first pass and with passes 2, 4, 8, ...; of text that is read once it
    is that of all steps.
    """

    machine_type = Machine

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        self._resident, self._primals = stream.resident, []

    @property
    def reads_once(self) -> bool:
        return not self._stream.labels_known

    @staticmethod
    def footprint(config, n_labels: int) -> tuple[int, int, int, int]:
        return n_columns(n_labels), 3 + config.average + 2 * (config.batch != 1), MACHINE_BYTES, 0

    @property
    def vectors(self) -> int:
        return self.footprint(self._config, 2)[1]

    def passes(self):
        self._started = time.perf_counter()
        self._check_known()
        for number in itertools.count(1):
            looking = bool(self._config.certify and number > 1 and not self._resident)
            totals = self._pass(number, looking)
            for machine in self._machines:
                machine.end_pass()
            if looking:
                self._certify(self._end_look(self._machines, totals))
            elif self._config.certify and self._resident:
                self._certify(self._look_at(self._machines))
            yield self._stats(number)

    def _pass(self, number: int, looking: bool):
        """Visits all rows; returns what was seen of w as it was before."""
        for machine in self._machines:
            machine.begin_pass()
            if looking:
                machine.begin_look()
        if number & (number - 1) == 0:
            self._restart_averages()
        totals, visited = [0.0] * len(self._machines), 0
        middle = self._stream.description.n_rows // 2 if number == 1 and self._stream.labels_known else -1
        for rows, order, block_rows in self._rows(number):
            if number == 1:
                self._begin()
            if looking:
                self._look(rows, self._machines, totals)
            if visited <= middle < visited + len(order):
                self._visit(rows, order[: middle - visited])
                self._restart_averages()
                self._visit(rows, order[middle - visited :])
            else:
                self._visit(rows, order)
            for machine in self._everyone if block_rows else ():
                machine.end_block(block_rows)
            visited += len(order)
        if number == 1:
            self._end_reading()
        return totals

    def _restart_averages(self) -> None:
        for machine in self._machines:
            machine.restart_average()

    def _rows(self, number: int):
        """Yields (rows, order of visits, the size of the block that ends with them, or 0)."""
        if self._config.batch:
            for arena, order in self._stream.arenas(number):
                yield arena.rows, order, 0
            return
        block_rows = 0
        for arena, order, is_last in self._stream.blocks(number):
            block_rows += len(order)
            yield arena.rows, order, block_rows if is_last else 0
            block_rows = 0 if is_last else block_rows

    def _begin(self) -> None:
        """Before rows of the first pass are visited."""
        first = not self._machines
        self._meet()
        self._room()
        if first and self._stream.labels_known:
            self._set_bias_of_all(self.bias)
            for machine in self._machines:
                machine.set_rows(self._stream.description.n_rows)

    def _stats(self, number: int) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        known = self.certified or Certificate(sum(machine.met for machine in self._machines), self.dual)
        if self.certified or not self._config.certify:
            self._primals.append(known.primal)
        change, tolerance = self._improvement(number), self._config.tolerance
        finished = change <= tolerance or (self.certified is not None and known.relative_gap <= tolerance)
        return PassStats(
            number, self._stream.description.n_rows, 0, self.certified is not None, known.primal, known.dual,
            known.relative_gap, self.bytes_read, self.wait, self.compute, change=change, finished=finished,
        )

    def _improvement(self, number: int) -> float:
        """Of the best primal value, relative, by the last passes: those since the average began anew at least."""
        window = PATIENCE
        if self._config.average:
            window = max(window, 1 + number - (1 << number.bit_length() - 1))
        if len(self._primals) <= window:
            return np.inf
        before, now = min(self._primals[:-window]), min(self._primals)
        return (before - now) / max(now, 1e-300)

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """A run that was told its passes is looked at once more; one that ended by itself has its best w."""
        if self.certified and (self._resident or reason != "passes"):
            self._gather()
            return reason
        return super().finish(reason, stopped)

    def close(self) -> None:
        super().close()
        self._stream.release()
