"""What solvers share that train any number of problems, one a class against the rest, on rows that come by."""

from __future__ import annotations

import time

from llsvm.core import OUT_OF_TIME, Certificate, Stopped, UsageError
from llsvm.problem import total_of
from llsvm.solvers.growing_bias import GrowingBias
from llsvm.solvers.machines import MACHINE_BYTES, Machines, Workers

VISITED_TOGETHER = 1 << 14  # rows that all machines visit before any of them goes on


class Known:
    """Certificates of all problems, each and together, or why there are none."""

    def __init__(self):
        self.each, self.total, self.missing = [], None, ""

    def certify(self, certificates: list[Certificate]) -> None:
        self.each, self.total = certificates, total_of(certificates)


class OneVsRest:
    """Machines of `machine_type`, each with so many vectors of the size of w and machine_bytes more.

    states: those of another solver that has read the same rows, which is gone on from.
    """

    machine_type, vectors, machine_bytes = None, 2, MACHINE_BYTES

    def __init__(self, stream, config, squared_loss: bool = False, states: list | None = None):
        self._stream, self._config, self._workers = stream, config, Workers(config.threads)
        self._machines = Machines(stream, config, squared_loss, self.machine_type, self.vectors, self.machine_bytes,
                                  states)  # fmt: skip
        self._growing_bias = GrowingBias(stream, config, self._machines.set_bias)
        self._known, self.best_w, self._shortened = Known(), None, []
        self.compute = self._started = 0.0

    bytes_read = property(lambda self: self._stream.bytes_read)
    wait = property(lambda self: self._stream.wait)
    bias = property(lambda self: self._growing_bias.value)
    dual = property(lambda self: sum(machine.dual for machine in self._machines))
    notes = property(lambda self: self._shortened + self._growing_bias.notes)
    certified = property(lambda self: self._known.total)
    certificates = property(lambda self: self._known.each)
    uncertified = property(lambda self: self._known.missing)

    @property
    def deadline(self):
        return self._workers.deadline

    @deadline.setter
    def deadline(self, deadline) -> None:
        self._workers.deadline = deadline
        self._machines.set_deadline(deadline)

    @property
    def states(self) -> list:
        """Of all problems, to go on from: valid between passes, until this solver is closed."""
        return [machine.state for machine in self._machines]

    def show_progress(self, bar) -> None:
        """bar(what, done, total) is called on the way."""
        self._stream.progress = bar

    def weights(self):
        """As they are now, (features + 1, columns), the bias last."""
        return self._machines.weights()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._machines.check_known()

    def _visit(self, rows, order) -> None:
        """Every machine visits these rows in this order."""
        everyone = self._machines.everyone
        for start, end in self._growing_bias.slices(rows, order, VISITED_TOGETHER):
            self.deadline.check()
            own = [rows] * len(everyone), [order[start:end]] * len(everyone)
            self._workers.map(self.machine_type.visit, everyone, *own)

    def _end_reading(self) -> None:
        """All labels and R are known, or all that will be."""
        self._machines.meet_all(self.bias)

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """Certifies if the rows can be read again and it is wanted; returns the reason."""
        if not self._machines.all_met:
            self._stop_reading()
        if reason == "interrupted":
            self._known.missing = "interrupted"
        elif not self._config.certify:
            self._known.missing = "--no-certify"
        elif not self._stream.repeatable:
            self._known.missing = OUT_OF_TIME if reason == "time" else "the input cannot be read again"
        else:
            reason = self._look_once_more(reason, stopped)
        self.best_w = self._machines.weights(taken=True)
        if self.certified and self.certified.relative_gap <= self._config.tolerance and reason == "passes":
            reason = "converged"
        return reason

    def _stop_reading(self) -> None:
        """The time was over before the first pass was."""
        self._stream.stop()
        if len(self._stream.labels) < 2:
            raise UsageError("--time-limit: the time was over before a second class was met", "a longer one is needed")
        self._end_reading()
        n_visited = self._growing_bias.n_visited
        self._shortened = [f"stopped by --time-limit after visits of {n_visited} rows, before the others"]

    def _look_once_more(self, reason: str, stopped) -> str:
        began = time.perf_counter() - self.wait
        try:
            self._known.certify(self._workers.look_at_all(self._stream, self._machines, stopped))
        except Stopped:
            if stopped():
                reason = self._known.missing = "interrupted"
            else:
                reason, self._known.missing = "time" if reason == "passes" else reason, OUT_OF_TIME
        self.compute += time.perf_counter() - self.wait - began
        return reason

    def close(self) -> None:
        self._workers.close()
        self._machines.let_go()
