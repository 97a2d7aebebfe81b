"""The one place where a solver is chosen: the table SOLVERS."""

from __future__ import annotations

from dataclasses import dataclass

from llsvm.core import UsageError
from llsvm.solvers import dual_cd, exact, shrink


@dataclass(frozen=True)
class Solver:
    """A row of the table.

    `in_memory` and `streaming` build the object whose passes() trains; a solver without `in_memory` always streams.
    `one_pass` builds it for rows that are read once; the two others are then its exact variant.
    """

    name: str
    summary: str
    number: int | None
    header: str
    squared_loss: bool
    in_memory: type | None
    streaming: type
    has_inner: bool = False
    one_pass: type | None = None
    tolerance: float = 1e-3


SOLVERS = {
    solver.name: solver
    for solver in (
        Solver("dual", "hinge loss, dual coordinate descent, exact", 3, "L2R_L1LOSS_SVC_DUAL", False,
               dual_cd.InMemory, exact.Exact),
        Solver("dual-l2", "squared hinge loss, dual coordinate descent, exact", 1, "L2R_L2LOSS_SVC_DUAL", True,
               dual_cd.InMemory, exact.Exact),
        Solver("block", "hinge loss, block minimisation as in the paper of Yu et al., to compare with", None,
               "L2R_L1LOSS_SVC_DUAL", False, None, dual_cd.Blocks, has_inner=True),
        Solver("shrink", "hinge loss, harsh shrinking as in the LLSVM paper, one pass over the text", None,
               "L2R_L1LOSS_SVC_DUAL", False, dual_cd.InMemory, exact.Exact, has_inner=True,
               one_pass=shrink.OnePass, tolerance=1e-2),
    )
}


def find(name: str) -> Solver:
    """A solver by its name or by LIBLINEAR's number."""
    for solver in SOLVERS.values():
        if name == solver.name or (solver.number is not None and name == str(solver.number)):
            return solver
    known = ", ".join(f"{s.name} ({s.number})" if s.number is not None else s.name for s in SOLVERS.values())
    raise UsageError(f"-s {name}: no such solver", f"known, with LIBLINEAR's numbers: {known}")
