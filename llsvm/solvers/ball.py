"""StreamSVM: one pass, and no more memory than the weights and a few rows."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from llsvm import _ball
from llsvm.core import Certificate, PassStats
from llsvm.evaluate import along_ray, best_multiple, dot
from llsvm.problem import Problem
from llsvm.reader import ROW, Arena, arena_bytes
from llsvm.solvers.one_vs_rest import MACHINE_BYTES, OneVsRest, grown

STATE = np.dtype([
    *((name, np.float64) for name in ("scale", "square", "slack", "radius")),
    *((name, np.int64) for name in ("moves", "held")),
])  # fmt: skip
assert STATE.itemsize == _ball.STATE_BYTES


class Machine:
    """One ball around the rows of class `positive` and the mirrored rows of all others."""

    def __init__(self, problem: Problem, config, dtype):
        self.problem = problem
        self._kind, self._state = np.zeros(1, dtype), np.zeros(1, STATE)
        self._state["scale"] = 1.0
        self._v, self._arena = np.zeros(1), None
        many = config.lookahead if config.lookahead > 1 else 0
        self._held, self._spread = np.empty(config.lookahead, ROW), np.zeros(min(1, many))
        self._work = np.zeros((many + 1, many + 6) if many else (0, 0))

    def grow(self, n_features: int) -> None:
        self._v = grown(self._v, n_features)
        if len(self._spread):
            self._spread = grown(self._spread, n_features)

    def set_bias(self, bias: float) -> None:
        """Where the bias feature of all rows grows, that of the centre grows with it (and the radius lags behind)."""
        if self.problem.bias and bias != self.problem.bias:
            self._v[-1] *= bias / self.problem.bias
            self._measure()
        self.problem = replace(self.problem, bias=bias)

    def turn_into(self, other: Machine, sign: float) -> None:
        other._state, other._v, other._spread = self._state.copy(), sign * self._v, self._spread.copy()
        other._held, other._arena = self._held.copy(), self._arena

    def visit(self, rows, order) -> None:
        _ball.visit(rows, order, *self._arguments())
        self._hold()

    def _arguments(self):
        problem = self.problem
        return (self._state, self._held, self._v, problem.bias, problem.codes, self._spread,
                self._work, self._kind)  # fmt: skip

    def _hold(self) -> None:
        """Copies the rows that wait: those that come by are gone with their arena."""
        count = int(self._state["held"][0])
        if count:
            waiting = self._held[:count]
            n_bytes = arena_bytes(count, int(waiting["length"].sum()), self._kind.itemsize) + 8 * count
            arena = Arena(n_bytes, np.empty(count, ROW), self._kind.dtype)
            arena.take(waiting, np.ones(count, bool))
            self._held[:count], self._arena = arena.rows, arena

    def n_bytes(self, longest: int) -> int:
        """At most, of the rows that wait, none longer than that."""
        return 2 * len(self._held) * longest * (4 + self._kind.itemsize) if len(self._work) else 0

    def end(self) -> None:
        if self._state["held"][0]:
            _ball.enclose_held(*self._arguments())
        self._measure()
        self._spread = self._work = self._held = self._arena = None

    def _measure(self) -> None:
        """|c|^2 itself, where moves keep it up only nearly."""
        self._state["square"] = self._state["scale"] ** 2 * dot(self._v, self._v)

    moves = property(lambda self: int(self._state["moves"][0]))
    _length = property(lambda self: float(self._state["square"][0] + self._state["slack"][0]))

    @property
    def dual(self) -> float:
        return 0.5 / self._length if self.moves else 0.0

    def now(self) -> np.ndarray:
        """The w of the dual point that the centre is."""
        return self._v * (self._state["scale"][0] / self._length) if self.moves else self._v

    def begin_look(self) -> None:
        self._v = self.now()
        self._state["scale"] = self._length

    def look(self, rows) -> np.ndarray:
        return along_ray(rows, self._v, self.problem, self._kind)

    def end_look(self, seen) -> Certificate:
        """Takes the best multiple of w, but not 0, which would be no classifier."""
        factor, primal = best_multiple(seen, self._v, squared_loss=True, zero=False)
        dual = self.dual
        self._v *= factor
        return Certificate(primal, dual)

    def take_w(self) -> np.ndarray:
        w, self._v = self.now(), None
        return w


class StreamSVM(OneVsRest):
    """Visits every row of a stream once."""

    machine_type, reads_once = Machine, True

    @property
    def vectors(self) -> int:
        return 2 + (self._config.lookahead > 1)

    @property
    def machine_bytes(self) -> int:
        """With places for rows that wait, and what enclosing them takes."""
        n = self._config.lookahead
        return MACHINE_BYTES + 2 * n * ROW.itemsize + (8 * (n + 1) * (n + 6) if n > 1 else 0)

    _longest = 0  # row so far

    @property
    def _beside(self) -> int:
        return sum(machine.n_bytes(self._longest) for machine in self._everyone)

    def _end_reading(self) -> None:
        super()._end_reading()
        for machine in self._machines:
            machine.end()

    def passes(self):
        self._started = time.perf_counter()
        self._check_known()
        for arena, order in self._stream.arenas():
            self._meet()
            self._longest = max(self._longest, int(arena.rows["length"].max()))
            self._room()
            self._visit(arena.rows, order)
        self._end_reading()
        self.compute = time.perf_counter() - self._started - self.wait
        yield PassStats(
            1, self._stream.description.n_rows, sum(machine.moves for machine in self._machines), dual=self.dual,
            bytes_read=self.bytes_read, wait=self.wait, compute=self.compute,
        )
