"""One problem a class, each against the rest, all fed from one stream; one problem for two classes.

A stream of text tells its labels, features and largest norm only while it is read. So a machine without a positive
class stands for all classes not met yet: they have seen nothing but negative rows, so that the machine of a class that
turns up begins as a copy of it. As long as there are two classes one machine serves: that of the second is its
mirror image.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from llsvm.core import NEVER, Certificate, DataError, Stopped, UsageError, label_order, quoted
from llsvm.memory import Footprint
from llsvm.pool import Pool
from llsvm.problem import Problem, pose

ROOM_TO_GROW = 1.25
# A machine of Python and NumPy, and what is said of it in a pass, without its vectors (measured: 1.8 to 3.0 KB).
MACHINE_BYTES = 3 << 10
SHARES, SMALLEST_SHARE = 16, 1 << 18  # of the rows looked at: how many, and nonzeros
LOOKS, TASKS = 1 << 12, 64  # at a share of rows by a machine, handed out together; calls of a thread they make


def grown(w: np.ndarray, n_features: int) -> np.ndarray:
    """A number a feature, now for so many; the last entry, that of the bias, stays the last."""
    larger = np.zeros(n_features + 1, w.dtype)
    larger[: len(w) - 1], larger[-1] = w[:-1], w[-1]
    return larger


def n_columns(n_labels: int) -> int:
    """How many problems there are: two classes are one."""
    return n_labels if n_labels > 2 else 1


class Machines:
    """The machines of the classes known now, in the order of their codes; and `others`, that of the classes to come.

    A machine is one problem: the rows of class `positive` (-1: of none) against all others. It has `problem`, which is
    replaced as more becomes known, `state`, all that training changes, whose ["bias"] is that of the problem; `dual`;
    grow(n_features), set_bias(bias); turn_into(other, sign) to make another the same point, with y exchanged where
    sign = -1; begin_look(), look(rows) to be summed over all rows, end_look(sum) -> Certificate; now(), its weights,
    and take_w() to give them up. It holds so many vectors of the size of w and n_bytes more.
    """

    def __init__(self, stream, config, squared_loss: bool, build: Callable, vectors: int, n_bytes: int, states=None):
        self._stream, self._config, self._squared_loss, self._build = stream, config, squared_loss, build
        self._vectors, self._n_bytes = vectors, n_bytes
        self._machines, self.others, self._capacity, self._met, self._deadline = [], [], 0, None, NEVER
        self.all_met = states is not None  # whether every row has been visited
        if states is not None:
            self._add_first(states)
            self.meet()

    def __len__(self) -> int:
        return len(self._machines)

    def __getitem__(self, number):
        return self._machines[number]

    @property
    def everyone(self) -> list:
        return self._machines + self.others

    # --- classes and features that become known

    def check_classes(self) -> None:
        if len(self._stream.labels) < 2:
            raise DataError(f"only one class in the data: every label is {quoted(self._stream.labels[0])}",
                            "a classifier needs two")

    def check_known(self) -> None:
        """Before any row is read: what is known of the labels and the weights."""
        if self._stream.labels_known:
            self.check_classes()
            self._check_weights(True)

    def meet(self) -> None:
        """Fits the machines to the labels, features and norms known now."""
        stream = self._stream
        labels = stream.labels
        self._checked(self._check_weights)
        if not self._machines:
            self._add_first()
        if len(labels) > 2 and len(self._machines) == 1:
            if not self.others:
                raise UsageError(f"{len(labels)} classes, and weights for some of them, in text that is read once",
                                 "make a block set first: llsvm-split, then llsvm-train")
            self._machines.append(self._copy(self._machines[0], 1, -1.0))
        while 2 < len(labels) > len(self._machines):
            self._machines.append(self._copy(self.others[0], len(self._machines), 1.0))
        if self._met == (known := (len(labels), stream.n_features)):
            return
        self._met = known
        if stream.n_features > self._capacity or not self._capacity:
            self._capacity = stream.n_features if stream.labels_known else int(ROOM_TO_GROW * stream.n_features)
            for machine in self.everyone:
                machine.grow(self._capacity)
        self._pose()

    def meet_all(self, bias: float) -> None:
        """All rows have been visited: there is no class to come, and this is the bias."""
        self.check_classes()
        self.others, self.all_met = [], True
        self.set_bias(bias)

    def _add_first(self, states=()) -> None:
        """Machines of the classes known now, or as many as these states, from which they go on."""
        labels, known = self._stream.labels, self._stream.labels_known
        if known and len(labels) == 2:
            self._machines = [self._new(labels.index(label_order(labels)[0]))]
        else:
            self._machines = [self._new(code) for code in range(len(labels) if known else max(1, len(states)))]
        if not known and not states and not self._config.weights:
            self.others = [self._new(-1)]
        for machine, state in zip(self._machines, states, strict=False):
            machine.state, machine.problem = state, replace(machine.problem, bias=state["bias"])

    def _new(self, positive: int):
        config, C = self._config, self._config.C
        problem = Problem(positive, 0, (C, C), self._squared_loss, 0.0, config.tolerance)
        machine = self._build(problem, config, self._stream.dtype)
        machine.deadline = self._deadline
        return machine

    def _copy(self, machine, positive: int, sign: float):
        copy = self._new(positive)
        copy.set_bias(machine.problem.bias)
        machine.turn_into(copy, sign)
        return copy

    def _pose(self) -> None:
        """Gives the machines their problems, by the labels and rows known now."""
        stream, everyone = self._stream, self.everyone
        counts = stream.description.label_counts if stream.labels_known else None
        positives = [machine.problem.positive for machine in everyone]
        bias = everyone[0].problem.bias
        problems = pose(positives, stream.labels, self._config, self._squared_loss, bias, counts)
        for machine, problem in zip(everyone, problems, strict=True):
            machine.problem = problem

    def set_bias(self, bias: float) -> None:
        for machine in self.everyone:
            machine.set_bias(bias)

    def set_deadline(self, deadline) -> None:
        self._deadline = deadline
        for machine in self.everyone:
            machine.deadline = deadline

    def let_go(self) -> None:
        self._machines, self.others = [], []

    # --- memory

    def _footprint(self) -> Footprint:
        return Footprint(n_columns(len(self._stream.labels)), self._vectors, self._n_bytes)

    def _check_weights(self, known: bool) -> None:
        stream = self._stream
        self._config.budget.take_weights(stream.n_features, self._footprint(), known)

    def _checked(self, check: Callable):
        """What check(known) returns; a budget that it refuses by what is known so far, by all labels and ids if they
        can be known, so that what it names will do."""
        try:
            return check(self._stream.labels_known)
        except UsageError:
            if not self._stream.labels_known and self._stream.read_on():
                check(True)
            raise

    def room(self, beside: int = 0) -> int:
        """Bytes for anything beside weights, the rows that come by, and so many more."""
        def find(known: bool) -> int:
            stream = self._stream
            growing = 1 if stream.labels_known else ROOM_TO_GROW
            n_features = max(int(growing * stream.n_features), self._capacity)
            so_far = "" if known else " so far"
            what = f"the weights of {stream.n_features} features{so_far} and the rows to work on"
            taken = self._footprint().weights(n_features) + stream.n_bytes + beside
            return self._config.budget.take_most(taken, what, stream.reading_bytes).left

        return self._checked(find)

    # --- weights

    def weights(self, taken: bool = False) -> np.ndarray:
        """As (features + 1, columns), the bias last; a positive score means the first of label_order. taken: the
        machines give them up."""
        n = self._stream.n_features
        weights = np.empty((n + 1, len(self)))
        for column, machine in enumerate(self):
            w = machine.take_w() if taken else machine.now()
            weights[:-1, column], weights[-1, column] = w[:n], w[-1]
            del w
        weights *= self._sign
        return weights

    @property
    def _sign(self) -> float:
        """-1 where the machine of two classes has the second of label_order as its positive one."""
        labels, positive = self._stream.labels, self[0].problem.positive
        return -1.0 if len(labels) == 2 and label_order(labels)[0] != labels[positive] else 1.0


class Workers:
    """Threads that machines are shared out to."""

    def __init__(self, threads: int):
        self._threads, self._pool, self.deadline = threads, Pool(threads), NEVER

    def map(self, method, machines, *arguments, threads: int = 0) -> None:
        """Calls method(machine, its arguments) for all machines; when the time for training is over the others are left
        as they are."""
        calls, threads = list(zip(machines, *arguments, strict=True)), threads or self._threads

        def run(calls):
            for call in calls:
                if self.deadline.passed:
                    return
                method(*call)

        if len(machines) == 1 or threads == 1:
            run(calls)
        else:
            list(self._pool.map(run, (calls[start::threads] for start in range(threads))))

    def look(self, rows, machines, totals: list) -> None:
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
        step = -(-len(looks) // (TASKS * self._threads))

        def see(start):
            here = [] if self.deadline.passed else looks[start : start + step]
            return [machine.look(share) for machine, share in here]

        seen = list((self._pool.map if len(looks) > 1 else map)(see, range(0, len(looks), step)))
        self.deadline.check()
        return list(itertools.chain.from_iterable(seen))

    def look_at_all(self, stream, machines, stopped=lambda: False) -> list[Certificate]:
        """One pass that only reads, for certificates of these machines."""
        for machine in machines:
            machine.begin_look()
        totals = [0.0] * len(machines)
        for arena in stream.again():
            self.look(arena.rows, machines, totals)
            if stopped():
                raise Stopped
        return end_look(machines, totals)

    def close(self) -> None:
        self._pool.shutdown()


def end_look(machines, totals) -> list[Certificate]:
    return [machine.end_look(total) for machine, total in zip(machines, totals, strict=True)]
