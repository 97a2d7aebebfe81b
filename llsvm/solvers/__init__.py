"""What a solver is, and the one place where one is chosen: the table SOLVERS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from llsvm.core import Certificate, Deadline, PassStats, UsageError
from llsvm.solvers import ball, blocks, from_disk, interior, multiclass, primal, resident, shrink


class Solver(Protocol):
    """One training, as train.run drives it. It is built from the data that are open and from a Config, and ends with
    close(), whatever happened (docs/adding-a-solver.md)."""

    deadline: Deadline  # is set before the first pass; looked at between groups of rows. After it: core.Stopped
    reads_once: bool  # whether rows come by a single time, so that a pass cannot be cut short; then it has `notes`, too
    bias: float  # the value of the bias feature, 0 where there is none
    bytes_read: int  # so far, as are the seconds of waiting for rows and of work
    wait: float
    compute: float
    dual: float  # of all problems together, as it is now
    certified: Certificate | None  # the best so far, of all problems together
    certificates: list[Certificate]  # of each, where there are several
    uncertified: str  # why there is no certificate at the end
    states: list  # all that training changes; between passes, another one for the same rows goes on from them
    best_w: np.ndarray  # after finish: (features + 1, problems), the bias last, or a vector

    def passes(self) -> Iterator[PassStats]:
        """Trains without end: what is known after each pass, which has `finished` when the tolerance is reached."""

    def finish(self, reason: str, stopped: Callable[[], bool] = lambda: False) -> str:
        """No more passes, because they "converged", or the "passes" or the "time" are over, or "interrupted": sees to
        best_w and, if it can, to a certificate. Returns the reason, which may be better now."""

    def weights(self) -> np.ndarray:
        """As they are now, (features + 1, problems)."""

    def show_progress(self, bar: Callable[[str, float, float], None]) -> None:
        """bar(what, done, total) is to be called in the middle of long passes."""

    def close(self) -> None:
        """Ends threads, removes temporary files, and lets go of the rows."""


@dataclass(frozen=True)
class Method:
    """A row of the table.

    What builds a Solver: `in_memory` of rows that are all in memory, `on_disk` of a block set, where rows always are if
    there is no `in_memory`, `once` of rows that come by a single time. The first two take problems, a Config and the
    data; or, where the solver `streams`, as `once` does, a stream of rows, a Config and whether the loss is squared.
    Beside `once`, others than it are an exact variant.
    `measure` is what its tolerance is of. Its own options are in the table of llsvm.options.
    """

    name: str
    summary: str
    number: int | None
    header: str
    squared_loss: bool
    in_memory: type | None = None
    on_disk: type | None = None
    once: type | None = None
    streams: bool = False
    measure: str = "duality gap"

    @property
    def is_exact(self) -> bool:
        return self.once is None

    @property
    def rereads(self) -> bool:
        """Whether a stream that it reads once or again and again is all the same to it."""
        return self.once is not None and self.once is self.on_disk


SOLVERS = {
    method.name: method
    for method in (
        Method("dual", "hinge loss, dual coordinate descent, exact", 3, "L2R_L1LOSS_SVC_DUAL", False,
               resident.InMemory, from_disk.FromDisk),
        Method("dual-l2", "squared hinge loss, dual coordinate descent, exact", 1, "L2R_L2LOSS_SVC_DUAL", True,
               resident.InMemory, from_disk.FromDisk),
        Method("cs", "multi-class SVM of Crammer and Singer, sequential dual method, exact", 4, "MCSVM_CS", False,
               multiclass.CrammerSinger, multiclass.CrammerSingerStreaming, streams=True),
        Method("ww", "multi-class SVM of Weston and Watkins, sequential dual method, exact", None, "MCSVM_CS", False,
               multiclass.WestonWatkins, multiclass.WestonWatkinsStreaming, streams=True),
        Method("block", "hinge loss, block minimisation as in the paper of Yu et al., to compare with", None,
               "L2R_L1LOSS_SVC_DUAL", False, None, blocks.Blocks),
        Method("shrink", "hinge loss, harsh shrinking as in the LLSVM paper, one pass over the text", None,
               "L2R_L1LOSS_SVC_DUAL", False, resident.InMemory, from_disk.FromDisk,
               once=shrink.HarshShrinking, measure="change of the dual"),
        Method("pegasos", "hinge loss, stochastic sub-gradient descent on the primal", None, "L2R_L1LOSS_SVC_DUAL",
               False, primal.Pegasos, primal.Pegasos, primal.Pegasos, True, measure="change of the primal"),
        Method("stream", "squared hinge loss, StreamSVM, the smallest ball around the rows, one pass", None,
               "L2R_L2LOSS_SVC_DUAL", True, once=ball.StreamSVM),
        Method("ipm", "hinge loss, the interior-point method of Wu and Chang, for rows of few numbers, exact", None,
               "L2R_L1LOSS_SVC_DUAL", False, in_memory=interior.InteriorPoint),
    )
}


LIBLINEAR_ALONE = {
    ("2",): "the primal way to what -s 1 solves", ("0", "6", "7"): "there is no logistic regression",
    ("5",): "there are no L1-regularized models", ("11", "12", "13"): "there is no regression",
    ("21",): "there is no one-class SVM",
}  # fmt: skip


def find(name: str) -> Method:
    """A solver by its name or by LIBLINEAR's number."""
    for solver in SOLVERS.values():
        if name == solver.name or (solver.number is not None and name == str(solver.number)):
            return solver
    known = ", ".join(f"{s.name} ({s.number})" if s.number is not None else s.name for s in SOLVERS.values())
    why = next((why for numbers, why in LIBLINEAR_ALONE.items() if name in numbers), "no such solver")
    raise UsageError(f"-s {name}: {why}", f"known, with LIBLINEAR's numbers: {known}")
