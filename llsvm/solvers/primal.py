"""Pegasos in all its forms: rows in memory, from disk, or from text read once."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from llsvm import _primal
from llsvm.core import Certificate, PassStats, TooLarge
from llsvm.evaluate import along_ray, best_multiple, dot, total_loss
from llsvm.memory import Footprint
from llsvm.problem import Best, Problem
from llsvm.solvers.machines import MACHINE_BYTES, end_look, grown, n_columns
from llsvm.solvers.one_vs_rest import OneVsRest

PATIENCE = 5  # passes over which the primal value must improve


class Course:
    """Where the passes of all problems stand: how many there were, and the primal value after each."""

    def __init__(self):
        self.n_passes, self._primals = 0, []

    def note(self, primal: float) -> None:
        self._primals.append(primal)

    def improvement(self, average: bool) -> float:
        """Of the best primal value, relative, by the last passes: those since the average began anew at least."""
        window = PATIENCE
        if average:
            window = max(window, 1 + self.n_passes - (1 << self.n_passes.bit_length() - 1))
        if len(self._primals) <= window:
            return np.inf
        before, now = min(self._primals[:-window]), min(self._primals)
        return (before - now) / max(now, 1e-300)


class State:
    """All that training changes for one problem. w is sums["scale"] times v; what is averaged is kept with u.

    sums: State in _primal.pyx; gradient: the sum over the rows of a batch that has not ended, nonzero where marks are
    1, at the features `touched`; dual: the largest value of D; best: the best w; course: that of all problems.
    """

    def __init__(self, config):
        self.sums, n_batch = np.zeros(1, _primal.STATE), int(config.batch != 1)
        self.sums["t"] = self.sums["scale"] = self.sums["growing"] = 1
        self.sums["batch"], self.sums["hold"] = config.batch, config.hold_t
        self.v, self.u = np.zeros(1), np.zeros(int(config.average))
        self.gradient, self.touched = np.zeros(n_batch), np.zeros(n_batch, np.int32)
        self.marks = np.zeros(n_batch, np.uint8)
        self.dual, self.best, self.course = 0.0, Best(), None

    def __getitem__(self, name: str) -> float:
        """Of the sums."""
        return float(self.sums[name][0])

    def grow(self, n_features: int) -> None:
        last, self.v = len(self.v) - 1, grown(self.v, n_features)
        if len(self.u):
            self.u = grown(self.u, n_features)
        if len(self.gradient):
            self.gradient, self.marks = grown(self.gradient, n_features), grown(self.marks, n_features)
            self.touched = np.append(np.where(self.touched == last, n_features, self.touched),
                                     np.zeros(n_features - last, np.int32)).astype(np.int32)

    @property
    def batch(self) -> tuple:
        return self.gradient, self.touched, self.marks

    def mirrored(self, other: State, sign: float) -> None:
        """Becomes the other one, with y exchanged where sign = -1."""
        self.sums[:] = other.sums
        self.v, self.u, self.gradient = sign * other.v, sign * other.u, sign * other.gradient
        self.touched, self.marks = other.touched.copy(), other.marks.copy()

    def measure(self) -> None:
        """w.w itself, where steps keep it up only nearly. A first step makes w as long as the sum of all C_i x_i."""
        square = self["scale"] * self["scale"] * dot(self.v, self.v)
        if not np.isfinite(square + dot(self.u, self.u)):
            raise TooLarge("pegasos")
        self.sums["square"] = square

    def raise_dual(self) -> None:
        """By the dual point that the alphas are, counting those of this pass among those before."""
        self.sums["bound"] += self.sums["fresh_bound"]
        self.sums["fresh_bound"] = 0.0
        self.measure()
        alphas, square, bound = self["alphas"], self["square"], self["bound"]
        if bound > 0:
            factor = min(1 / bound, alphas / square if square > 0 else np.inf)
            self.dual = max(self.dual, factor * alphas - 0.5 * factor * factor * square)

    def now(self) -> np.ndarray:
        """The average, or the last w."""
        if self["averaged"]:
            return (self["averaging"] * self.v + self.u) / self["averaged"]
        return self["scale"] * self.v

    def take_w(self) -> np.ndarray:
        w = self.now() if self.best.w is None else self.best.w
        self.v = self.u = self.gradient = self.best.w = None
        return w


class Machine:
    """One problem. `batch` rows a step (0: a block).

    The number of rows l is that of the data (set_rows), or, where it is not known, that of the rows so far.
    """

    def __init__(self, problem: Problem, config, dtype):
        self.problem, self._config, self._kind = problem, config, np.zeros(1, dtype)
        self.state, self._snapshot = State(config), None

    # --- what becomes known of the problem

    def grow(self, n_features: int) -> None:
        self.state.grow(n_features)

    def set_bias(self, bias: float) -> None:
        """w is sum alpha y x at any time, so where the bias feature of all rows grows, its weight grows with it."""
        if self.problem.bias and bias != self.problem.bias:
            for vector in (self.state.v, self.state.u, self.state.gradient):
                vector[-1:] *= bias / self.problem.bias
            self.state.measure()
        self.problem, self.state.sums["bias"] = replace(self.problem, bias=bias), bias

    def set_rows(self, n_rows: int) -> None:
        """l, and the ball in which the optimum must lie."""
        state, at_zero = self.state, self.problem.loss_at_zero
        state.sums["growing"], state.sums["n_rows"], state.sums["radius_square"] = 0, n_rows, at_zero
        if self._config.init == "random":
            end = len(state.v) - (self.problem.bias == 0)
            seed = self._config.seed * 65536 + self.problem.positive
            _primal.random_start(state.v[:end], seed, float(np.sqrt(at_zero)))
            state.measure()

    def turn_into(self, other: Machine, sign: float) -> None:
        other.state.mirrored(self.state, sign)

    # --- steps

    def visit(self, rows, order) -> None:
        state = self.state
        _primal.visit(rows, order, state.sums, state.v, state.u, *state.batch, self.problem.codes, self._kind)

    def end_block(self, n_rows: int) -> None:
        state = self.state
        _primal.end_batch(state.sums, n_rows, state.v, state.u, *state.batch)

    def begin_pass(self) -> None:
        self.state.sums["losses"] = 0.0

    def restart_average(self) -> None:
        self.state.u[:] = 0.0
        self.state.sums["averaging"] = self.state.sums["averaged"] = 0.0

    def end_pass(self) -> None:
        if self.state["pending"]:  # the rows that came last, fewer than a batch, count as one
            self.end_block(self._config.batch)
        self.state.raise_dual()

    # --- weights and what they are worth

    dual = property(lambda self: self.state.dual)

    @property
    def met(self) -> float:
        """The primal value as the losses met in the pass have it."""
        return 0.5 * self.state["square"] + self.state["losses"]

    def now(self) -> np.ndarray:
        return self.state.now()

    def begin_look(self) -> None:
        self._snapshot = self.now()

    def look(self, rows):
        """The loss of these rows, or, of the average, what tells it for every multiple."""
        value = along_ray if self._config.average else total_loss
        return value(rows, self._snapshot, self.problem, self._kind)

    def end_look(self, seen) -> Certificate:
        """Keeps the best w so far; the average by the multiple of it that is best."""
        w, self._snapshot, state = self._snapshot, None, self.state
        if self._config.average:
            factor, primal = best_multiple(seen, w, squared_loss=False)
            w *= factor
        else:
            primal = 0.5 * dot(w, w) + seen
        state.best.offer(w, primal, state.dual, state["radius_square"])
        return state.best.certificate

    def take_w(self) -> np.ndarray:
        return self.state.take_w()


def visits(stream, config, number: int):
    """Of a pass: yields (rows, order of visits, the size of the block that ends with them, or 0)."""
    if config.batch:
        for arena, order in stream.arenas(number):
            yield arena.rows, order, 0
        return
    block_rows = 0
    for arena, order, is_last in stream.blocks(number):
        block_rows += len(order)
        yield arena.rows, order, block_rows if is_last else 0
        block_rows = 0 if is_last else block_rows


class Pegasos(OneVsRest):
    """Passes over a stream, each looked at: in memory right after it, from disk during the next one.

    The average begins anew in the middle of the first pass and with passes 2, 4, 8, ...; of text that is read once it
    is that of all steps.
    """

    machine_type = Machine

    def __init__(self, stream, config, squared_loss: bool = False, states: list | None = None):
        super().__init__(stream, config, squared_loss, states)
        self._course = states[0].course if states else Course()

    @property
    def reads_once(self) -> bool:
        return not self._stream.labels_known

    @staticmethod
    def footprint(config, n_labels: int) -> Footprint:
        return Footprint(n_columns(n_labels), 3 + config.average + 2 * (config.batch != 1), MACHINE_BYTES)

    @property
    def vectors(self) -> int:
        return self.footprint(self._config, 2).vectors

    def passes(self):
        self._begin()
        while True:
            self._course.n_passes += 1
            looking = bool(self._config.certify and self._course.n_passes > 1 and not self._stream.resident)
            totals = self._pass(looking)
            for machine in self._machines:
                machine.end_pass()
            if looking:
                self._known.certify(end_look(self._machines, totals))
            elif self._config.certify and self._stream.resident:
                self._known.certify(self._workers.look_at_all(self._stream, self._machines))
            yield self._stats()

    def _pass(self, looking: bool):
        """Visits all rows; returns what was seen of w as it was before."""
        number, is_first = self._course.n_passes, self._course.n_passes == 1
        for machine in self._machines:
            machine.begin_pass()
            if looking:
                machine.begin_look()
        if number & (number - 1) == 0:
            self._restart_averages()
        totals, visited = [0.0] * len(self._machines), 0
        middle = self._stream.description.n_rows // 2 if is_first and self._stream.labels_known else -1
        for rows, order, block_rows in visits(self._stream, self._config, number):
            if is_first:
                self._meet()
            if looking:
                self._workers.look(rows, self._machines, totals)
            if visited <= middle < visited + len(order):
                self._visit(rows, order[: middle - visited])
                self._restart_averages()
                self._visit(rows, order[middle - visited :])
            else:
                self._visit(rows, order)
            for machine in self._machines.everyone if block_rows else ():
                machine.end_block(block_rows)
            visited += len(order)
        if is_first:
            self._end_reading()
        return totals

    def _restart_averages(self) -> None:
        for machine in self._machines:
            machine.restart_average()

    def _meet(self) -> None:
        """Before rows of the first pass are visited."""
        is_first = not len(self._machines)
        self._machines.meet()
        self._machines.room()
        if is_first and self._stream.labels_known:
            self._machines.set_bias(self.bias)
            for machine in self._machines:
                machine.set_rows(self._stream.description.n_rows)
        for machine in self._machines:
            machine.state.course = self._course

    def _stats(self) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        known = self.certified or Certificate(sum(machine.met for machine in self._machines), self.dual)
        if self.certified or not self._config.certify:
            self._course.note(known.primal)
        change, tolerance = self._course.improvement(self._config.average), self._config.tolerance
        finished = change <= tolerance or (self.certified is not None and known.relative_gap <= tolerance)
        return PassStats(
            self._course.n_passes, self._stream.description.n_rows, 0, self.certified is not None, known.primal,
            known.dual, known.relative_gap, self.bytes_read, self.wait, self.compute, change=change, finished=finished,
        )

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """A run that was told its passes is looked at once more; one that ended by itself has its best w."""
        if self.certified and (self._stream.resident or reason != "passes"):
            self.best_w = self._machines.weights(taken=True)
            return reason
        return super().finish(reason, stopped)

    def close(self) -> None:
        super().close()
        self._stream.release()
