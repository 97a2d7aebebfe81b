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
from llsvm.solvers.machines import MACHINE_BYTES, grown
from llsvm.solvers.one_vs_rest import OneVsRest


class State:
    """All that training changes for one problem: v, of which the first part of the centre is a multiple; sums (State in
    _ball.pyx); the rows that wait to be enclosed, and what they stand in."""

    def __init__(self, lookahead: int):
        self.sums, self.v = np.zeros(1, _ball.STATE), np.zeros(1)
        self.sums["scale"] = 1.0
        self.held, self.arena = np.empty(lookahead, ROW), None

    def __getitem__(self, name: str) -> float:
        """Of the sums."""
        return float(self.sums[name][0])

    @property
    def length(self) -> float:
        """|c|^2"""
        return self["square"] + self["slack"]

    def measure(self) -> None:
        """|c|^2 of the first part itself, where moves keep it up only nearly."""
        self.sums["square"] = self["scale"] ** 2 * dot(self.v, self.v)


class Machine:
    """One ball around the rows of class `positive` and the mirrored rows of all others."""

    def __init__(self, problem: Problem, config, dtype):
        self.problem, self.state, self._kind = problem, State(config.lookahead), np.zeros(1, dtype)
        many = config.lookahead if config.lookahead > 1 else 0
        self._spread, self._work = np.zeros(min(1, many)), np.zeros((many + 1, many + 6) if many else (0, 0))

    def grow(self, n_features: int) -> None:
        self.state.v = grown(self.state.v, n_features)
        if len(self._spread):
            self._spread = grown(self._spread, n_features)

    def set_bias(self, bias: float) -> None:
        """Where the bias feature of all rows grows, that of the centre grows with it (and the radius lags behind)."""
        if self.problem.bias and bias != self.problem.bias:
            self.state.v[-1] *= bias / self.problem.bias
            self.state.measure()
        self.problem, self.state.sums["bias"] = replace(self.problem, bias=bias), bias

    def turn_into(self, other: Machine, sign: float) -> None:
        own, its = self.state, other.state
        its.sums[:], its.v, its.held, its.arena = own.sums, sign * own.v, own.held.copy(), own.arena
        other._spread = self._spread.copy()

    def visit(self, rows, order) -> None:
        _ball.visit(rows, order, *self._arguments())
        self._hold()

    def _arguments(self):
        state = self.state
        return state.sums, state.held, state.v, self.problem.codes, self._spread, self._work, self._kind

    def _hold(self) -> None:
        """Copies the rows that wait: those that come by are gone with their arena."""
        count = int(self.state["held"])
        if count:
            waiting = self.state.held[:count]
            n_bytes = arena_bytes(count, int(waiting["length"].sum()), self._kind.itemsize) + 8 * count
            arena = Arena(n_bytes, np.empty(count, ROW), self._kind.dtype)
            arena.take(waiting, np.ones(count, bool))
            self.state.held[:count], self.state.arena = arena.rows, arena

    def n_bytes(self, longest: int) -> int:
        """At most, of the rows that wait, none longer than that."""
        return 2 * len(self.state.held) * longest * (4 + self._kind.itemsize) if len(self._work) else 0

    def end(self) -> None:
        if self.state["held"]:
            _ball.enclose_held(*self._arguments())
        self.state.measure()
        self._spread = self._work = self.state.held = self.state.arena = None

    moves = property(lambda self: int(self.state["moves"]))

    @property
    def dual(self) -> float:
        return 0.5 / self.state.length if self.moves else 0.0

    def now(self) -> np.ndarray:
        """The w of the dual point that the centre is."""
        state = self.state
        return state.v * (state["scale"] / state.length) if self.moves else state.v

    def begin_look(self) -> None:
        self.state.v = self.now()
        self.state.sums["scale"] = self.state.length

    def look(self, rows) -> np.ndarray:
        return along_ray(rows, self.state.v, self.problem, self._kind)

    def end_look(self, seen) -> Certificate:
        """Takes the best multiple of w, but not 0, which would be no classifier."""
        factor, primal = best_multiple(seen, self.state.v, squared_loss=True, zero=False)
        dual = self.dual
        self.state.v *= factor
        return Certificate(primal, dual)

    def take_w(self) -> np.ndarray:
        w, self.state.v = self.now(), None
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

    def _end_reading(self) -> None:
        super()._end_reading()
        for machine in self._machines:
            machine.end()

    def _read_once(self) -> None:
        longest = 0  # row so far
        for arena, order in self._stream.arenas():
            self._machines.meet()
            longest = max(longest, int(arena.rows["length"].max()))
            self._machines.room(sum(machine.n_bytes(longest) for machine in self._machines.everyone))
            self._visit(arena.rows, order)

    def passes(self):
        if self._machines.all_met:
            return
        self._begin()
        self._read_once()
        self._end_reading()
        self.compute = time.perf_counter() - self._started - self.wait
        yield PassStats(
            1, self._stream.description.n_rows, sum(machine.moves for machine in self._machines), dual=self.dual,
            bytes_read=self.bytes_read, wait=self.wait, compute=self.compute,
        )
