"""One problem a class, each against the rest, all fed from one stream; one problem for two classes.

A stream of text tells its labels, features and largest norm only while it is read. So a machine without a positive
class stands for all classes not met yet: they have seen nothing but negative rows, so that the machine of a class that
turns up begins as a copy of it. As long as there are two classes one machine serves: that of the second is its
mirror image.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np

from llsvm.core import NEVER, OUT_OF_TIME, Certificate, DataError, Stopped, UsageError, label_order, quoted
from llsvm.memory import check_vectors, room_beside, vector_bytes
from llsvm.pool import Pool
from llsvm.problem import Problem, pose, total_of

ROOM_TO_GROW = 1.25
# A machine of Python and NumPy, and what is said of it in a pass, without its vectors (measured: 1.8 to 3.0 KB).
MACHINE_BYTES = 3 << 10
# R of a stream is that of the rows so far: growth below the first is made up for at the end, beyond the second harms.
GROWTH, HARMFUL_GROWTH, HARMFUL_SHARE = 1.1, 2.0, 0.05
SHARES, SMALLEST_SHARE = 16, 1 << 18  # of the rows looked at: how many, and nonzeros
LOOKS, TASKS = 1 << 12, 64  # at a share of rows by a machine, handed out together; calls of a thread they make
VISITED_TOGETHER = 1 << 14  # rows that all machines visit before any of them goes on


def grown(w: np.ndarray, n_features: int) -> np.ndarray:
    """A number a feature, now for so many; the last entry, that of the bias, stays the last."""
    larger = np.zeros(n_features + 1, w.dtype)
    larger[: len(w) - 1], larger[-1] = w[:-1], w[-1]
    return larger


def n_columns(n_labels: int) -> int:
    """How many problems there are: two classes are one."""
    return n_labels if n_labels > 2 else 1


class OneVsRest:
    """What solvers of any number of classes have in common.

    A machine is one problem: the rows of class `positive` (-1: of none) against all others. It has `problem`, which is
    replaced as more becomes known, `dual`, and grow(n_features), set_bias(bias); turn_into(other, sign) to make another
    the same point, with y exchanged where sign = -1; begin_look(), look(rows) to be summed over all rows,
    end_look(sum) -> Certificate; now(), its weights, and take_w() to give them up. It holds `vectors` of the size of w
    and `machine_bytes` more.
    """

    machine_type, vectors, machine_bytes, deadline = None, 2, MACHINE_BYTES, NEVER
    _beside = 0  # bytes that machines take beside their weights
    _is_read, _shortened = False, []  # whether every row has been visited; what to say where time did not suffice

    def __init__(self, stream, config, squared_loss: bool = False):
        self._stream, self._config, self._squared_loss = stream, config, squared_loss
        self._pool = Pool(config.threads)
        self._machines, self._others = [], []
        self.w, self.certified, self.certificates, self.uncertified = None, None, [], ""
        self.compute = self._started = 0.0
        self._radius, self._radii, self._n_visited, self._capacity, self._met = 0.0, [], 0, 0, None

    bytes_read = property(lambda self: self._stream.bytes_read)
    wait = property(lambda self: self._stream.wait)
    dual = property(lambda self: sum(machine.dual for machine in self._machines))
    best_w = property(lambda self: self.w)

    @property
    def bias(self) -> float:
        return self._stream.largest_norm if self._config.bias is None else max(self._config.bias, 0.0)

    def show_progress(self, bar) -> None:
        """bar(what, done, total) is called on the way."""
        self._stream.progress = bar

    # --- machines

    def _check_classes(self) -> None:
        if len(self._stream.labels) < 2:
            raise DataError(f"only one class in the data: every label is {quoted(self._stream.labels[0])}",
                            "a classifier needs two")

    def _check_known(self) -> None:
        """Before any row is read: what is known of the labels and the weights."""
        if self._stream.labels_known:
            self._check_classes()
            columns = n_columns(len(self._stream.labels))
            check_vectors(self._stream.n_features, columns, self._config.memory, self.vectors, self.machine_bytes)

    def _check_weights(self, known: bool) -> None:
        stream = self._stream
        columns = n_columns(len(stream.labels))
        check_vectors(stream.n_features, columns, self._config.memory, self.vectors, self.machine_bytes, known)

    def _checked(self, check: Callable):
        """What check(known) returns; a budget that it refuses by what is known so far, by all labels and ids if they
        can be known, so that what it names will do."""
        try:
            return check(self._stream.labels_known)
        except UsageError:
            if not self._stream.labels_known and self._stream.read_on():
                check(True)
            raise

    def _meet(self) -> None:
        """Fits the machines to the labels, features and norms known now."""
        stream = self._stream
        labels = stream.labels
        self._checked(self._check_weights)
        if not self._machines:
            self._add_first()
        if len(labels) > 2 and len(self._machines) == 1:
            if not self._others:
                raise UsageError(f"{len(labels)} classes, and weights for some of them, in text that is read once",
                                 "make a block set first: llsvm-split, then llsvm-train")
            self._machines.append(self._copy(self._machines[0], 1, -1.0))
        while 2 < len(labels) > len(self._machines):
            self._machines.append(self._copy(self._others[0], len(self._machines), 1.0))
        if self._met == (known := (len(labels), stream.n_features)):
            return
        self._met = known
        if stream.n_features > self._capacity or not self._capacity:
            self._capacity = stream.n_features if stream.labels_known else int(ROOM_TO_GROW * stream.n_features)
            for machine in self._everyone:
                machine.grow(self._capacity)
        self._pose()

    @property
    def _everyone(self) -> list:
        return self._machines + self._others

    def _add_first(self) -> None:
        stream, config = self._stream, self._config
        if not stream.labels_known:
            self._machines = [self._new(0)]
            self._others = [] if config.weights else [self._new(-1)]
        elif len(stream.labels) == 2:
            self._machines = [self._new(stream.labels.index(label_order(stream.labels)[0]))]
        else:
            self._machines = [self._new(code) for code in range(len(stream.labels))]

    def _new(self, positive: int):
        config, C = self._config, self._config.C
        problem = Problem(positive, 0, (C, C), self._squared_loss, 0.0, config.tolerance)
        machine = self.machine_type(problem, config, self._stream.dtype)
        machine.deadline = self.deadline
        return machine

    def _copy(self, machine, positive: int, sign: float):
        copy = self._new(positive)
        copy.set_bias(machine.problem.bias)
        machine.turn_into(copy, sign)
        return copy

    def _pose(self) -> None:
        """Gives the machines their problems, by the labels and rows known now."""
        stream, everyone = self._stream, self._everyone
        counts = stream.description.label_counts if stream.labels_known else None
        positives = [machine.problem.positive for machine in everyone]
        bias = everyone[0].problem.bias
        problems = pose(positives, stream.labels, self._config, self._squared_loss, bias, counts)
        for machine, problem in zip(everyone, problems, strict=True):
            machine.problem = problem

    def _room(self) -> int:
        """Bytes for anything beside weights and the rows that come by."""
        return self._checked(self._room_now)

    def _room_now(self, known: bool) -> int:
        config, stream = self._config, self._stream
        growing = 1 if stream.labels_known else ROOM_TO_GROW
        n_features = max(int(growing * stream.n_features), self._capacity)
        weights = vector_bytes(n_features, n_columns(len(stream.labels)), self.vectors, self.machine_bytes)
        taken = weights + stream.n_bytes + self._beside
        so_far = "" if known else " so far"
        what = f"the weights of {stream.n_features} features{so_far} and the rows to work on"
        return room_beside(taken, config.memory, what)

    def _map(self, method, machines, *arguments, threads: int = 0) -> None:
        """Calls method(machine, its arguments) for all machines, on several threads; when the time for training is over
        the others are left as they are."""
        calls, threads = list(zip(machines, *arguments, strict=True)), threads or self._config.threads

        def run(calls):
            for call in calls:
                if self.deadline.passed:
                    return
                method(*call)

        if len(machines) == 1 or threads == 1:
            run(calls)
        else:
            list(self._pool.map(run, (calls[start::threads] for start in range(threads))))

    def _visit(self, rows, order) -> None:
        """Every machine visits these rows in this order."""
        everyone = self._everyone
        for start, end in self._slices(rows, order, VISITED_TOGETHER):
            self.deadline.check()
            self._map(self.machine_type.visit, everyone, [rows] * len(everyone), [order[start:end]] * len(everyone))

    # --- the bias

    def _slices(self, rows, order, most_rows: int):
        """Runs of visits to be made together; the radius is set when it has grown."""
        start, growing = 0, self._config.bias is None and not self._stream.labels_known
        norms = rows["norm"][order] if growing else None
        largest = np.maximum.accumulate(norms) if growing else None
        while start < len(order):
            self._set_bias(float(norms[start]) if growing else 0.0)
            end = min(len(order), start + most_rows)
            if growing:
                end = max(start + 1, min(end, int(np.searchsorted(largest, GROWTH * self._radius, "right"))))
            yield start, end
            self._n_visited, start = self._n_visited + end - start, end

    def _set_bias(self, norm: float) -> None:
        """The value of the bias feature from here on: what was asked for, or the largest norm so far (1 until there is
        one: empty rows have none)."""
        if self._config.bias is not None:
            bias = self.bias
        elif self._stream.labels_known:
            bias = self._radius = self.bias
        elif norm > GROWTH * self._radius or not self._radius:
            bias, self._radius = norm or 1.0, norm
            self._radii.append((norm, self._n_visited))
        else:
            return
        self._set_bias_of_all(bias)

    def _set_bias_of_all(self, bias: float) -> None:
        for machine in self._everyone:
            machine.set_bias(bias)

    @property
    def notes(self) -> list[str]:
        """What the user should know of this run."""
        early = [rows for radius, rows in self._radii if HARMFUL_GROWTH * radius >= self.bias][:1]
        share = early[0] / self._n_visited if early else 0.0
        if share < HARMFUL_SHARE:
            return self._shortened
        early = (f"-B R: {share:.0%} of the rows were read before one half as long as the longest, and used with that "
                 "smaller R; a block set (llsvm-split) knows R from the start")
        return [*self._shortened, early]

    # --- the certificate

    def _look(self, rows, machines, totals: list) -> None:
        """Adds what every machine sees in these rows, the same whatever the number of threads."""
        n_shares = min(SHARES, 1 + int(rows["length"].sum()) // SMALLEST_SHARE)
        shares = [share for share in np.array_split(rows, n_shares) if len(share)]
        step = max(1, LOOKS // len(shares))
        for start in range(0, len(machines), step):
            looks = [(machine, share) for machine in machines[start : start + step] for share in shares]
            seen = iter(self._looks(looks))
            for place in range(start, min(start + step, len(machines))):
                totals[place] = totals[place] + sum(itertools.islice(seen, len(shares)))

    def _looks(self, looks: list) -> list:
        """What machines see in rows, several looks to a task where there are many."""
        step = -(-len(looks) // (TASKS * self._config.threads))

        def see(start):
            here = [] if self.deadline.passed else looks[start : start + step]
            return [machine.look(share) for machine, share in here]

        seen = list((self._pool.map if len(looks) > 1 else map)(see, range(0, len(looks), step)))
        self.deadline.check()
        return list(itertools.chain.from_iterable(seen))

    def _look_at(self, machines, stopped=lambda: False) -> list[Certificate]:
        """One pass that only reads, for certificates of these machines."""
        for machine in machines:
            machine.begin_look()
        totals = [0.0] * len(machines)
        for arena in self._stream.again():
            self._look(arena.rows, machines, totals)
            if stopped():
                raise Stopped
        return self._end_look(machines, totals)

    @staticmethod
    def _end_look(machines, totals) -> list[Certificate]:
        return [machine.end_look(total) for machine, total in zip(machines, totals, strict=True)]

    def _certify(self, certificates: list[Certificate]) -> None:
        """One of every machine."""
        self.certificates, self.certified = certificates, total_of(certificates)

    # --- the end

    def _end_reading(self) -> None:
        """All labels and R are known, or all that will be."""
        self._check_classes()
        self._others, self._is_read = [], True
        self._set_bias_of_all(self.bias)

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """Certifies if the rows can be read again and it is wanted; returns the reason."""
        if not self._is_read:
            self._stop_reading()
        if reason == "interrupted":
            self.uncertified = "interrupted"
        elif not self._config.certify:
            self.uncertified = "--no-certify"
        elif not self._stream.repeatable:
            self.uncertified = OUT_OF_TIME if reason == "time" else "the input cannot be read again"
        else:
            reason = self._look_once_more(reason, stopped)
        self._gather()
        if self.certified and self.certified.relative_gap <= self._config.tolerance and reason == "passes":
            reason = "converged"
        return reason

    def _stop_reading(self) -> None:
        """The time was over before the first pass was."""
        self._stream.stop()
        if len(self._stream.labels) < 2:
            raise UsageError("--time-limit: the time was over before a second class was met", "a longer one is needed")
        self._end_reading()
        self._shortened = [f"stopped by --time-limit after visits of {self._n_visited} rows, before the others"]

    def _look_once_more(self, reason: str, stopped) -> str:
        began = time.perf_counter() - self.wait
        try:
            self._certify(self._look_at(self._machines, stopped))
        except Stopped:
            if stopped():
                reason = self.uncertified = "interrupted"
            else:
                reason, self.uncertified = "time" if reason == "passes" else reason, OUT_OF_TIME
        self.compute += time.perf_counter() - self.wait - began
        return reason

    def _gather(self) -> None:
        """The weights as (features + 1, columns); a positive score means the first of label_order."""
        n = self._stream.n_features
        self.w = np.empty((n + 1, len(self._machines)))
        for column, machine in enumerate(self._machines):
            w = machine.take_w()
            self.w[:-1, column], self.w[-1, column] = w[:n], w[-1]
            del w
        self.w *= self._sign

    @property
    def _sign(self) -> float:
        """-1 where the machine of two classes has the second of label_order as its positive one."""
        labels, positive = self._stream.labels, self._machines[0].problem.positive
        return -1.0 if len(labels) == 2 and label_order(labels)[0] != labels[positive] else 1.0

    def weights(self) -> np.ndarray:
        """As they are now, (features + 1, columns), the bias last."""
        n = self._stream.n_features
        columns = [machine.now() for machine in self._machines]
        return self._sign * np.column_stack([np.append(w[:n], w[-1]) for w in columns])

    def close(self) -> None:
        self._pool.shutdown()
        self._machines, self._others = [], []
