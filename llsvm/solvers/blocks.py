"""The block minimisation of Yu et al. (KDD 2010), Algorithm 2: one block at a time is solved in memory."""

from __future__ import annotations

import numpy as np

from llsvm.solvers.dual_cd import DualCD
from llsvm.solvers.streaming import Plan, Streaming
from llsvm.solvers.visitor import Visitor

STOPPING_TOLERANCE, MOST_SWEEPS = 0.1, 1000  # LIBLINEAR's


def solve(cd: DualCD, table, duals, inner: int) -> None:
    """The sub-problem of these rows: `inner` sweeps, or, for 0, until LIBLINEAR's stopping condition holds."""
    order = np.arange(len(table), dtype=np.int32)
    active, fresh = len(order), True
    for number in range(inner or MOST_SWEEPS):
        active = cd.sweep(table, duals, order, active, shrink=not inner, fresh=fresh, counting=number == 0)
        if cd.deadline.passed:
            break
        if inner:
            continue
        fresh = violation(cd.state) <= STOPPING_TOLERANCE
        if fresh and active == len(order):
            break
        if fresh:
            active = len(order)
        else:
            cd.narrow()


def violation(state) -> float:
    """LIBLINEAR's stopping quantity of the last sweep: the spread of projected gradients around 0."""
    return max(state["highest"], 0.0) - min(state["lowest"], 0.0)


class BlockVisitor(Visitor):
    """Solves the block that is in memory."""

    def _visit(self, rows, duals, order) -> None:
        solve(self.cd, rows, duals, 1 if self.inner is None else self.inner)


class BlockByBlock(Plan):
    """Fixed blocks in random order."""

    visitor, whole_blocks = BlockVisitor, True

    def groups(self):
        for order in self._orders(np.unique(self.blocks.chunk_block).astype(np.int32)):
            for block in order:
                yield self.blocks.block_chunks(block).tolist()


class Blocks(Streaming):
    """Every block is solved by `inner` sweeps (BLOCK-L-N) or until LIBLINEAR's stopping condition holds in it
    (BLOCK-L-D, inner = 0); of several problems, each solves the block that is in memory (section 6.2)."""

    plan_type = BlockByBlock
