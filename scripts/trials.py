"""Training runs in the process that calls, looked at after every pass; the scripts call them in processes apart.

What is looked at is saved, outside of the clock, and judged later, so that reading ahead gains nothing meanwhile.
"""

import itertools
import os
import time
from typing import NamedTuple

# As the commands do, for this process and all that it starts: idle threads of numpy's BLAS spin, and slow the others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class Moment(NamedTuple):
    """After so many passes and so many seconds since training began: the file of the weights."""

    passes: int
    seconds: float
    weights: str


class Trial(NamedTuple):
    moments: list[Moment]
    where: str  # the rows were: in memory, on disk, or read once


class Replaced:
    """Stands in for something of llsvm, and knows whether it was ever asked: else the experiment would be none."""

    def __init__(self, owner, name, substitute):
        self._name, self._substitute, self._asked = f"{owner.__name__}.{name}", substitute, False
        getattr(owner, name)
        setattr(owner, name, lambda *arguments: self._ask(arguments))

    def _ask(self, arguments):
        self._asked = True
        return self._substitute(*arguments)

    def check(self, result):
        if not self._asked:
            raise RuntimeError(f"llsvm no longer uses {self._name}, which this script replaces")
        return result


def follow(path, settings, target, most_passes, most_seconds=float("inf"), before_pass=None):
    """Trains with these settings of train.Config; target: where the weights go, a number added for each pass.

    The clock runs from the opening of the data, and stands still for before_pass and the saving.
    """
    from llsvm import train

    config, moments = train.Config(**settings), []
    began = time.perf_counter()
    with train.open_data([str(path)], config) as data:
        solver = train.start(data, config)
        began += _time_of(before_pass)
        try:
            for stats in solver.passes():
                seconds, paused = time.perf_counter() - began, time.perf_counter()
                file = f"{target}-{stats.number}.npz"
                save_weights(file, data, solver.weights(), solver.bias)
                moments.append(Moment(stats.number, seconds, file))
                converged = stats.finished and stats.certified
                if converged or stats.number >= most_passes or seconds >= most_seconds:
                    break
                _time_of(before_pass)
                began += time.perf_counter() - paused
        finally:
            solver.close()
        return Trial(moments, where_rows_are(data))


def where_rows_are(data):
    from llsvm import blockset

    return getattr(data, "where", "on disk" if isinstance(data, blockset.BlockSet) else "in memory")


def follow_steps(path, settings, target, steps):
    """Trains Pegasos on rows in memory; returns the file of the weights after each of these steps, 1 among them.

    The rows of a pass are handed to the solver in parts, each of which is one of its batches.
    """
    import numpy as np

    from llsvm import train

    config, files = train.Config(**settings), {}
    with train.open_data([str(path)], config) as data:
        solver = train.start(data, config)
        stream, n_rows = solver._stream, data.description.n_rows
        read, counter = stream.arenas, itertools.count(1)

        def read_in_steps(number):
            for arena, order in read(number):
                for batch in np.array_split(order, -(-n_rows // config.batch)):
                    yield arena, batch
                    look(next(counter))

        def look(step):
            if step in steps:
                files[step] = f"{target}-{step}.npz"
                save_weights(files[step], data, solver.weights(), solver.bias)

        stream.arenas = read_in_steps
        try:
            for _ in solver.passes():
                if not files:
                    raise RuntimeError("llsvm no longer reads the arenas that this script hands it")
                if len(files) == len(steps):
                    break
        finally:
            solver.close()
    return files


def _time_of(action):
    began = time.perf_counter()
    if action:
        action()
    return time.perf_counter() - began


def save_weights(file, data, weights, bias):
    """By feature id; the bias weight such that the bias is a feature of value 1, which it must be, or none."""
    import numpy as np

    from llsvm.core import label_order

    if bias not in (0, 1):
        raise ValueError(f"a bias of {bias}: the judge knows 1 and none")
    ids = data.feature_ids()
    w = np.zeros(int(ids.max(initial=0)))
    w[ids - 1] = weights[: len(ids), 0]
    np.savez(file, positive=float(label_order(data.description.labels)[0]), w=w, bias=bias * weights[-1, 0])


def read_weights(file):
    import numpy as np
    from judging import Linear

    with np.load(file) as saved:
        return Linear(float(saved["positive"]), saved["w"], float(saved["bias"]))


def objective_of_weights(path, file, C):
    """By NumPy alone."""
    from judging import objective

    return objective(path, read_weights(file), C)


class Solution(NamedTuple):
    """What a whole run gives, from the opening of the data on; dual: certified, or None."""

    seconds: float
    dual: float | None
    weights: str
    where: str


def solve(path, settings, target):
    """Trains until the solver stops."""
    from llsvm import train

    config, began = train.Config(**settings), time.perf_counter()
    with train.open_data([str(path)], config) as data:
        outcome = train.run(train.start(data, config), config)
        seconds, known = time.perf_counter() - began, outcome.certificate
        save_weights(f"{target}.npz", data, outcome.w, outcome.bias)
        return Solution(seconds, known.dual if known else None, f"{target}.npz", where_rows_are(data))


def split(text, target, n_blocks, threads):
    """Makes a block set; returns the seconds it took."""
    from llsvm import memory
    from llsvm.split import split_text

    began = time.perf_counter()
    split_text([str(text)], str(target), n_blocks=n_blocks, seed=1, zero_based=False, precision="float32", force=True,
               threads=threads, memory=memory.usable() // 2)  # fmt: skip
    return time.perf_counter() - began


def enough_memory(blocks, ways, wanted):
    """The first of wanted, 1.1 wanted, 1.21 wanted, ... bytes with which a pass succeeds in every one of these ways."""
    from llsvm import core, memory, train

    for settings in ways:
        while True:
            config = train.Config(**{**settings, "memory": int(wanted)})
            try:
                with train.open_data([str(blocks)], config) as data:
                    solver = train.start(data, config)
                    try:
                        next(solver.passes())
                    finally:
                        solver.close()
                break
            except core.UsageError:
                if wanted > memory.usable():
                    raise
                wanted *= 1.1
    return int(wanted)


def worth(file, train, test, C):
    """Objective on the training text and accuracy on the test text, by NumPy alone."""
    from judging import accuracy, objective

    model = read_weights(file)
    return objective(str(train), model, C), accuracy(str(test), model)
