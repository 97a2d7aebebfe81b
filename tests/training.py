"""The one way in which tests train: as the commands do, from a path or from rows in memory."""

from typing import NamedTuple

import numpy as np
import scipy.sparse
from problems import PlainModel, arena_of, read_model, records_of

from llsvm import train
from llsvm.core import Description
from llsvm.files import Output
from llsvm.model import save
from llsvm.reader import Resident

LARGE = 1 << 30  # bytes, which hold all the rows of a test
# Where the rows may be, by solver; one that is new to the table has a line here. Those that stop by their certificate,
EXACT = {"dual": ("memory", "disk"), "dual-l2": ("memory", "disk"), "cs": ("memory", "disk"), "ww": ("memory", "disk"),
         "block": ("disk",), "shrink --exact": ("memory", "disk"), "ipm": ("memory",)}  # fmt: skip
# and those that come near the optimum: text and sets are read once.
NEAR = {"shrink": ("text", "set"), "pegasos": ("memory", "disk", "text"), "stream": ("text", "set")}


def named(name):
    """The options that choose a solver by these words."""
    solver, *exact = name.split()
    return {"solver": solver, "exact": bool(exact)}


class Fit(NamedTuple):
    """A training run: its outcome, the statistics of its passes, the model file, that file as plain numbers, where the
    rows were (in memory, on disk, read once), and what was seen after each pass."""

    outcome: train.Outcome
    passes: list
    path: str
    model: PlainModel
    where: str
    seen: list

    @property
    def certificate(self):
        return self.outcome.certificate

    @property
    def streamed(self):
        return self.where == "on disk"


def fit_model(paths, target, stopped=lambda: False, look=lambda solver, data: None, **options):
    """Trains on the data at a path, or at several, as the commands do, and writes the model to target. After every pass
    there is a look."""
    config, passes, seen = train.Config(**{"memory": LARGE, **options}), [], []
    with train.open_data([str(path) for path in np.atleast_1d(paths)], config) as data:
        solver = train.start(data, config)

        def count(stats):
            passes.append(stats)
            seen.append(look(solver, data))

        outcome = train.run(solver, config, count, stopped)
        with Output(str(target)) as output:
            save(train.make_model(outcome, data, config), output)
        return Fit(outcome, passes, str(target), read_model(target), data.where, seen)


def in_memory(X, labels, dtype=np.float64):
    """These rows as training has them in memory."""
    names = list(dict.fromkeys(map(str, labels)))
    codes = np.array([names.index(str(label)) for label in labels])
    arena = arena_of(scipy.sparse.csr_matrix(X), codes, np.dtype(dtype))
    norm = float(np.sqrt(arena.largest_square))
    description = Description(len(codes), X.shape[1], int(arena.rows["length"].sum()), names, np.bincount(codes), norm,
                              False, np.dtype(dtype), [])  # fmt: skip
    return Resident(records_of(arena.rows), [arena.data], description, lambda: np.arange(1, X.shape[1] + 1), 0)


def fit_rows(X, labels, **options):
    """Trains on rows in memory; returns the outcome and the statistics of the passes."""
    config, passes = train.Config(**{"bias": 1.0, "max_passes": 1000, **options}), []
    return train.run(train.start(in_memory(X, labels), config), config, passes.append), passes
