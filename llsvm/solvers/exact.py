"""Dual coordinate descent from disk with shrinking that is put right: the repair of the LLSVM paper's method.

Every full pass, over random groups of chunks, visits all rows once and collects the active ones: those whose alpha is
free or that are near the margin. These are then swept on their own, in memory or from a file, so that a pass over all
data is followed by many visits where they matter. What a pass missed, the next one finds; the certified gap says when
to stop.
"""

from __future__ import annotations

import numpy as np

from llsvm.active import ActiveRows
from llsvm.reader import Arena, arena_bytes, groups, shuffle
from llsvm.solvers.dual_cd import Streaming

GROUP_SHARE = 0.06
MARGIN = 0.1
# Rounds over the active rows after a pass, sweeps of them in all, and visits of them by rows of the data, at most
# (docs/out-of-core.md).
ROUNDS, SWEEPS, VISITS = 2, 30, 2


class Exact(Streaming):
    """Sweeps the active rows between passes."""

    def __init__(self, problem, blocks):
        super().__init__(problem, blocks)
        self._active = self._new_active()
        self._bounds = self._box[(problem.signs > 0).astype(int), 0]

    def _smallest_group(self, sizes) -> int:
        return int(sizes.max())

    def _most_rows(self) -> int:
        return self.blocks.chunk_rows.max()

    def _group_size(self, rest: int, smallest_group: int) -> int:
        return max(smallest_group, int(GROUP_SHARE * rest))

    def _other_way(self) -> str:
        return ", or a set split into more blocks (llsvm-split -m)"

    def _plan(self):
        """Groups of chunks that fill an arena, every chunk once a pass, for ever."""
        blocks = self.blocks
        sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
        order, passes = np.arange(blocks.n_chunks, dtype=np.int32), 0
        while True:
            shuffle(order, len(order), ~self.problem.seed & (2**64 - 1), passes)
            passes += 1
            yield from groups(order, sizes, blocks.chunk_rows, self._group_bytes, self._group_rows)

    def _visit(self, arena: Arena) -> None:
        order = self._order[: arena.n_rows]
        order[:] = np.arange(arena.first_slot, arena.first_slot + arena.n_rows)
        self._sweep(self._table, order, len(order))

    def _after_visit(self, arena: Arena) -> None:
        """Copies the active rows."""
        rows = arena.rows
        alphas = rows["alpha"]
        free = (alphas > 0) & (alphas < self._bounds[rows["code"]])
        wanted = np.flatnonzero(free | (np.abs(rows["gradient"]) <= MARGIN))
        self._active.append(rows.take(wanted), alphas[wanted, None])

    def _new_active(self, spilling: bool = False) -> ActiveRows:
        return ActiveRows(self.blocks.dtype, self._spare_bytes, spilling=spilling)

    def _end_pass(self) -> None:
        self._n_active = self._active.n_rows
        sweeps = min(SWEEPS, VISITS * self.blocks.n_rows / max(1, self._n_active)) / ROUNDS
        sweeps = self.problem.inner or max(1, round(sweeps))
        for rounds_left in range(ROUNDS - 1, -1, -1):
            before, self._active = self._active, self._new_active(spilling=True)
            for group in before.groups():
                table, order = group.table, np.arange(len(group.table), dtype=np.int32)
                table["alpha"] = group.alphas[:, 0]
                for _ in range(sweeps):
                    self._sweep(table, order, len(order), len(table))
                group.alphas[:, 0] = table["alpha"]
                if rounds_left == 0:
                    self._alphas.scatter(self._starts[table["chunk"]] + table["place"], table["alpha"])
                elif before.alone:
                    self._active.adopt(group)
                else:
                    self._active.append_all(group)
                del group, table, order
            before.close()
        self._active = self._new_active()

    def close(self) -> None:
        self._active.close()
        super().close()
