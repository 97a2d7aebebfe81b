"""Dual coordinate descent for more than two classes, each against the rest: all problems from one read of the rows."""

from __future__ import annotations

import time

import numpy as np

from llsvm.active import ActiveRows
from llsvm.alphas import Alphas
from llsvm.core import OUT_OF_TIME, Certificate, PassStats, look_at_end
from llsvm.problem import Problem, total_of
from llsvm.reader import DUAL
from llsvm.solvers import newton
from llsvm.solvers.dual_cd import Extrapolation
from llsvm.solvers.dual_machine import DualMachine
from llsvm.solvers.from_disk import DEPTH, MARGIN, MENDING, MOST_VISITS, SWEEPS, VISITS
from llsvm.solvers.machines import end_look
from llsvm.solvers.one_vs_rest import OneVsRest
from llsvm.solvers.streaming import WORTH_CERTIFYING
from llsvm.solvers.together import half_square

# Of the memory: for the dual variables of rows that are visited together, and for the active ones of rows that are
# swept together, with all that is needed beside each. Threads do not count, so that they do not change the answer.
VISITING_SHARE, VISITING_BYTES, TABLES, VISITED_BYTES = 8, 24, 8, 40
SWEEPING_SHARE, SWEEPING_BYTES, FINDING_BYTES = 4, 80, 32
ROUNDS = 3  # over the active rows after a pass


class Machine(DualMachine):
    """A problem that is done when its own gap is small; keeps the best w that was certified."""

    def __init__(self, problem: Problem, config, dtype):
        super().__init__(problem, config, dtype)
        self.newton = None

    def keep_float32(self) -> None:
        self._keep_float32()

    def begin_pass(self, looking: bool) -> None:
        self.n_wanted = 0
        self.state.begin_pass()
        if self.newton:
            self.state.w[:] = 0.0
            self.state.set_alphas((0, 0))
        elif looking:
            self._seen_w = self.state.w.copy()

    def visit(self, rows, alphas) -> None:
        """Visits all rows once and gives the alphas of those that are active afterwards a minus sign."""
        duals = self.duals_of(alphas)
        if self.newton:
            self._adopt_next(rows, duals)
            alphas[:] = duals["alpha"]
            return
        self._sweep(rows, duals, np.arange(len(rows), dtype=np.int32), len(rows))
        alphas[:] = duals["alpha"]
        bounds = self._steps.codes[rows["code"], 1]
        wanted = ((alphas > 0) & (alphas < bounds)) | (np.abs(duals["gradient"]) <= MARGIN)
        np.negative(alphas, out=alphas, where=wanted)
        self.n_wanted += int(wanted.sum())

    def _adopt_next(self, rows, duals) -> None:
        """Gives rows the alphas that belong to the w of Newton's method."""
        sums = np.zeros(3)
        self._look_at(rows, duals, self.newton.w, sums)
        self.state.sums["losses"] += sums[0]
        self._adopt(rows, duals, sums[1:], self.state.w)
        self.state.add_alphas(sums[1:])
        self.newton.add(rows, duals, self._steps, self._kind)

    def descend(self) -> None:
        """Newton's method begins: a step a pass."""
        self.newton = newton.ByPasses(self.state.w if self.best_w is None else self.best_w)

    def end_pass(self) -> None:
        """After a pass with Newton's method."""
        loss = self.state["losses"]
        self._certify(self.newton.w, loss)
        self.done = self._is_done()
        if self.done or not self.newton.step(loss, self.newton.w - self.state.w, self.deadline.check):
            self.newton = None

    def note_gap(self) -> None:
        """By the losses met in the pass just made, before the active rows are swept."""
        met = self.met
        self._found = met.primal - met.dual

    def sweep(self, table, places, alphas, n_rows: int) -> None:
        """Sweeps these of the rows of a group, its own active ones, as from_disk.py does; n_rows: of the data."""
        rows, order, n_active = table.take(places), np.arange(len(places), dtype=np.int32), len(places)
        duals = self.duals_of(alphas)
        by_rows, inner = n_rows / max(1, self.n_wanted), self._config.inner
        least = inner or max(1, round(min(SWEEPS, VISITS * by_rows) / ROUNDS))
        most = inner or max(least, round(MOST_VISITS * by_rows / ROUNDS))
        extrapolation = Extrapolation(order.copy())
        far = DEPTH * self._found * len(places) / max(1, self.n_wanted)
        for number in range(most):
            if self.deadline.passed or number >= least and self.state["gap"] <= far:
                break
            self._sweep(rows, duals, order, n_active, counting=False)
            if number < most - MENDING:
                self._follow(extrapolation, rows, duals)
        alphas[:] = duals["alpha"]

    def solve(self, table, alphas, inner: int) -> None:
        """Solves the sub-problem of a block."""
        duals = self.duals_of(alphas)
        self._solve(table, duals, inner)
        alphas[:] = duals["alpha"]

    @property
    def met(self) -> Certificate:
        """The objectives with the losses met in the pass."""
        square = half_square(self.state.w)
        return Certificate(square + self.state["losses"], self.state.dual_at(square))

    def end_look(self, loss: float) -> Certificate:
        self._certify(self._seen_w, loss)
        self._seen_w = None
        self.done = self._is_done()
        return self.certified

    def take_w(self) -> np.ndarray:
        w = self.best_w if self.certified else self.state.w
        self.state.w = self.state.best.w = None
        return w


class Many(OneVsRest):
    """What the variants share: a class that is done costs no more work."""

    machine_type, vectors, reads_once = Machine, 3, False

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        self._number = 0

    _beside = 0  # bytes that machines take beside their weights

    @property
    def _busy(self) -> list[Machine]:
        return [machine for machine in self._machines if not machine.done]

    def _begin(self) -> None:
        super()._begin()
        self._machines.meet()
        self._machines.set_bias(self.bias)

    def _stats(self, visits: int, active: int) -> PassStats:
        self.compute = time.perf_counter() - self._started - self.wait
        if all(machine.certified for machine in self._machines):
            self._known.certify([machine.certified for machine in self._machines])
        known = self.certified or total_of(machine.certified or machine.met for machine in self._machines)
        return PassStats(
            self._number, visits, active, self.certified is not None, known.primal, known.dual, known.relative_gap,
            self.bytes_read, self.wait, self.compute, finished=not self._busy,
        )

    def _look_again(self) -> None:
        self._workers.look_at_all(self._stream, self._busy)

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """What was certified is the model; what was not, or was told its passes, is looked at once more."""
        if self._busy and (self.certified is None or reason == "passes"):
            reason = look_at_end(reason, self._look_again, lambda: not self._busy)
        self._stats(0, 0)
        self._known.missing = "" if self.certified else OUT_OF_TIME
        self.best_w = self._machines.weights(taken=True)
        return reason


class Streaming(Many):
    """Rows from disk: all problems visit a group of chunks while it is in memory; between passes each sweeps the rows
    that are active in it. See from_disk.py and docs/out-of-core.md.

    Dual variables stand row by row. That one is active where its row was visited last is told by its sign.
    """

    def __init__(self, stream, config, squared_loss: bool = False):
        super().__init__(stream, config, squared_loss)
        self._alphas, self._active, self._descended = None, None, False

    @property
    def _beside(self) -> int:
        """While rows are read, and a w for the Extrapolation of every problem that is swept at a time."""
        return self._stream.needed_bytes + 8 * min(TABLES, len(self._machines)) * (self._stream.n_features + 1)

    def _begin(self) -> None:
        super()._begin()
        n_rows, n_machines = self._stream.description.n_rows, len(self._machines)
        rounding = all(machine.problem.may_round for machine in self._machines)
        for machine in self._machines if rounding else ():
            machine.keep_float32()
        dtype = np.dtype(np.float32 if rounding else np.float64)
        self._starts = np.concatenate([[0], np.cumsum(self._stream.chunk_rows)])
        room = self._machines.room(self._beside)
        self._alphas = Alphas(n_rows * n_machines, dtype, n_rows * n_machines * dtype.itemsize <= room // 16)
        self._spare = room - (0 if self._alphas.on_disk else self._alphas.n_bytes)

    def passes(self):
        self._begin()
        estimate = np.inf
        while True:
            self._number += 1
            looking = estimate <= WORTH_CERTIFYING * self._config.tolerance
            busy = self._busy
            active = self._pass(busy, looking)
            estimate = total_of(machine.met for machine in busy).estimate
            self._descend()
            yield self._stats(self._stream.description.n_rows, active)

    def _pass(self, busy, looking: bool) -> int:
        """Visits all rows, then sweeps the active ones; returns how many these are."""
        for machine in busy:
            machine.begin_pass(looking)
        lookers = [machine for machine in busy if looking and not machine.newton]
        totals = self._full_pass(busy, lookers)
        n_active = self._active.n_rows
        for machine in busy:
            machine.note_gap()
        self._sweep_active()
        end_look(lookers, totals)
        for machine in busy:
            if machine.newton:
                machine.end_pass()
        return n_active

    def _descend(self) -> None:
        """Newton's method for all problems that are left, where it is due."""
        size, n_rows, busy = self._stream.n_features + 1, self._stream.description.n_rows, self._busy
        room = self._spare // 2 // max(1, len(busy))
        squared = self._config.method.squared_loss
        if squared and not self._descended and newton.ByPasses.fits(size, self._number, n_rows, room):
            self._descended = True
            self._spare -= len(busy) * newton.ByPasses.n_bytes(size)
            for machine in busy:
                machine.descend()

    def _full_pass(self, busy, lookers) -> list:
        """Returns what the machines that look see of all rows."""
        totals, visiting = [0.0] * len(lookers), self._spare // VISITING_SHARE
        self._active = ActiveRows(self._stream.dtype, self._spare - visiting, kind=np.int32)
        most_rows = 1 + visiting // (VISITING_BYTES * len(self._machines) + TABLES * VISITED_BYTES)
        for arena, _ in self._stream.arenas(self._number):
            if lookers:
                self._workers.look(arena.rows, lookers, totals)
            for start in range(0, arena.n_rows, most_rows):
                self._visit_part(arena.rows[start : start + most_rows], busy)
                self.deadline.check()
        return totals

    def _visit_part(self, rows, busy) -> None:
        alphas = self._read_alphas(rows)
        own = [alphas[machine.problem.positive] for machine in busy]
        threads = min(self._config.threads, len(busy), TABLES)
        self._workers.map(Machine.visit, busy, [rows] * len(busy), own, threads=threads)
        self._write_alphas(rows, alphas)
        counts = np.signbit(alphas).sum(0, dtype=np.int32)  # of machines that are not busy none is negative
        self._active.append(rows.take(np.flatnonzero(counts)), counts[counts > 0][:, None])

    def _runs(self, rows):
        """Yields (start, end, where their dual variables begin) of rows of one chunk."""
        ends = np.append(np.flatnonzero(np.diff(rows["chunk"])) + 1, len(rows)).tolist()
        first_rows = self._starts[rows["chunk"]] + rows["place"]
        for start, end in zip([0, *ends], ends, strict=False):
            yield start, end, int(first_rows[start]) * len(self._machines)

    def _read_alphas(self, rows) -> np.ndarray:
        """(problems, rows), of rows that stand side by side in their chunks."""
        alphas = np.empty((len(self._machines), len(rows)))
        for start, end, position in self._runs(rows):
            read = self._alphas.read(position, (end - start) * len(self._machines))
            alphas[:, start:end] = np.abs(read.reshape(end - start, -1).T)
        return alphas

    def _write_alphas(self, rows, alphas) -> None:
        for start, end, position in self._runs(rows):
            self._alphas.write(position, alphas[:, start:end].T.ravel())

    def _sweep_active(self) -> None:
        sweeping = self._spare // SWEEPING_SHARE
        self._active.memory = self._spare - sweeping + self._stream.needed_bytes
        for _ in range(ROUNDS):
            for table, _ in self._active.parts(sweeping // SWEEPING_BYTES):
                self._sweep_part(table, 1 + sweeping // (FINDING_BYTES * len(self._machines)))
                del table
                self.deadline.check()
        self._active.close()

    def _sweep_part(self, table, most_rows: int) -> None:
        """Every machine sweeps those of these rows that are active in it."""
        found = zip(*self._find_active(table, most_rows), strict=True)
        rows, positions, alphas = map(np.concatenate, found)
        problems = (positions % len(self._machines)).astype(np.int32)
        order = np.argsort(problems, kind="stable")
        rows, positions, alphas, problems = rows[order], positions[order], alphas[order], problems[order]
        ends = np.flatnonzero(np.diff(problems)) + 1
        machines = [self._machines[number] for number in problems[np.append(0, ends)].tolist()]
        del problems, order
        count, n_rows = len(machines), self._stream.description.n_rows
        self._workers.map(Machine.sweep, machines, [table] * count, np.split(rows, ends), np.split(alphas, ends),
                  [n_rows] * count, threads=min(self._config.threads, TABLES))
        self._alphas.scatter(positions, -alphas)

    def _find_active(self, table, most_rows: int):
        """Yields rows of the table, where their active dual variables stand, and these; those of so many rows, active
        or not, are read together."""
        for start, end, position in self._runs(table):
            places, first = table["place"][start:end] - table["place"][start], 0
            while first < len(places):
                last = int(np.searchsorted(places, places[first] + most_rows))
                begin = position + int(places[first]) * len(self._machines)
                count = (int(places[last - 1]) - int(places[first]) + 1) * len(self._machines)
                alphas = self._alphas.read(begin, count)
                found = np.flatnonzero(np.signbit(alphas))
                rows = start + np.searchsorted(places, places[first] + found // len(self._machines))
                yield rows.astype(np.int32), begin + found, -alphas[found].astype(np.float64)
                first = last

    def close(self) -> None:
        if self._alphas:
            self._alphas.close()
        if self._active:
            self._active.close()
        super().close()


class Blocks(Streaming):
    """Block minimisation (Yu et al., Algorithm 2, section 6.2): every problem solves the block that is in memory.

    The dual variables of a block stand problem by problem, so that those of some problems can be read.
    """

    @property
    def _beside(self) -> int:
        """Every thread has dual variables and an order of the block."""
        threads = min(self._config.threads, len(self._machines))
        return self._stream.needed_bytes + threads * self._stream.group_rows * (DUAL.itemsize + 4)

    def _pass(self, busy, looking: bool) -> int:
        for machine in busy:
            machine.begin_pass(looking)
        totals = [0.0] * len(busy)
        for arena, _, _ in self._stream.blocks(self._number):
            if looking:
                self._workers.look(arena.rows, busy, totals)
            together = max(self._config.threads, self._spare // (VISITING_SHARE * VISITING_BYTES * arena.n_rows))
            for start in range(0, len(busy), together):
                self._solve_block(arena.rows, busy[start : start + together])
        if looking:
            end_look(busy, totals)
        return 0

    def _solve_block(self, rows, machines) -> None:
        n_rows, count, inner = len(rows), len(machines), self._config.inner
        first = int(self._starts[rows["chunk"][0]]) * len(self._machines)
        places = [first + machine.problem.positive * n_rows for machine in machines]
        alphas = [self._alphas.read(place, n_rows).astype(np.float64) for place in places]
        self._workers.map(Machine.solve, machines, [rows] * count, alphas, [1 if inner is None else inner] * count)
        self.deadline.check()
        for place, own in zip(places, alphas, strict=True):
            self._alphas.write(place, own)
