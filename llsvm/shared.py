"""Rows that are active in some of several problems: copied once, with the numbers of the problems (cython_src/_shared).

One problem has all rows that are kept for it, and no numbers are.
"""

from __future__ import annotations

import numpy as np

from llsvm import _shared
from llsvm.active import NOBODY, ActiveRows, Group
from llsvm.reader import ROW, Arena, joined


class Slots:
    """The rows of a group by problem."""

    def __init__(self, group: Group, n_problems: int):
        self._group, self._slots = group, None
        if n_problems > 1:
            self._ends, self._slots = np.zeros(n_problems + 1, np.int64), np.empty(len(group.owners), np.int32)
            _shared.by_owner(group.alphas[:, 0].copy(), group.owners, self._ends, self._slots)

    def span(self, number: int) -> slice:
        """Where a problem stands among all pairs of a problem and a row."""
        if self._slots is None:
            return slice(0, len(self._group.table))
        return slice(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))

    def table(self, number: int) -> np.ndarray:
        """The rows of a problem."""
        return self._group.table if self._slots is None else self._group.table.take(self._slots[self.span(number)])

    @property
    def most(self) -> int:
        """Rows of any problem."""
        return len(self._group.table) if self._slots is None else int(np.diff(self._ends[:-1], prepend=0).max())

    @property
    def n_pairs(self) -> int:
        return len(self._group.table) if self._slots is None else len(self._slots)

    def row_by_row(self, marks: np.ndarray) -> np.ndarray:
        """Marks of all pairs, problem by problem, in the order of owners."""
        if self._slots is None:
            return marks
        places, out = np.concatenate([[0], self._ends[:-2]]), np.empty_like(marks)
        _shared.row_by_row(self._group.owners, places, marks, out)
        return out


class SharedRows:
    """The active rows of n problems: `rows`, each with how many of them it is active in, and which these are."""

    def __init__(self, dtype, memory: int, n_problems: int, beside: int):
        self.rows = ActiveRows(dtype, memory, copies=0, beside=beside, kind=np.int32)
        self._dtype, self._n_problems = np.dtype(dtype), n_problems
        self._sizes = np.zeros((n_problems, 2), np.int64)  # rows, bytes

    def choose(self, bits: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which rows are active where bits[p] has the active ones of problem p: a mask, and of the rows in it in how
        many problems and in which."""
        counts, owners = np.zeros(8 * bits.shape[1], np.int32), NOBODY
        n_pairs = _shared.count(bits, counts)
        counts = counts[:n_rows]
        if self._n_problems > 1:
            owners = np.empty(n_pairs, np.uint16)
            _shared.fill(bits, np.cumsum(counts) - counts, owners)
        chosen = counts > 0
        return chosen, counts[chosen], owners

    def add(self, rows: np.ndarray, chosen: np.ndarray, counts: np.ndarray, owners: np.ndarray) -> None:
        """Takes copies of the chosen rows, of which counts and owners tell."""
        self._count(rows[chosen] if self._n_problems > 1 else rows, counts, owners, 1)
        self.rows.append(rows, counts[:, None], chosen, owners)

    def _count(self, rows, counts, owners, sign: int) -> None:
        sizes = np.zeros_like(self._sizes)
        if self._n_problems > 1:
            _shared.add_sizes(rows, counts, owners, self._dtype.itemsize, sizes)
        else:
            sizes[0, 0] = len(counts)
        self._sizes += sign * sizes

    @property
    def rows_by_problem(self) -> np.ndarray:
        """How many rows each has."""
        return self._sizes[:, 0]

    def bytes_of(self, numbers: list[int]) -> int:
        """Memory for the rows of these problems on their own, at most."""
        n_pairs, _ = self._sizes[numbers].sum(0).tolist()
        return self.rows.size_of(*self._union(numbers), n_pairs)

    def _union(self, numbers: list[int]) -> tuple[int, int]:
        """Rows that any of these problems has, and their bytes, at most."""
        n_rows, n_bytes = self._sizes[numbers].sum(0).tolist()
        return min(n_rows, self.rows.n_rows), min(n_bytes, self.rows.n_bytes)

    def held(self) -> Group | None:
        """The rows in memory, side by side in one table; they stay where they are."""
        segments = self.rows.in_memory
        if not segments:
            return None
        tables = [segment.rows for segment in segments]
        table = joined(tables, np.empty(sum(map(len, tables)), ROW))
        return Group(table, np.concatenate([segment.alphas for segment in segments]), [],
                     np.concatenate([segment.owners for segment in segments]))  # fmt: skip

    def part(self, turn: int) -> Group | None:
        """Some of the rows in memory, others every turn."""
        segments = self.rows.in_memory
        if not segments:
            return None
        segment = segments[turn % len(segments)]
        return Group(segment.rows, segment.alphas, [], segment.owners)

    def leave(self, group: Group, marks: np.ndarray) -> None:
        """Of those that are held, only the pairs stay that are marked, row by row."""
        counts, owners = group.alphas[:, 0].copy(), group.owners.copy()
        self._count(group.table, counts, owners, -1)
        if self._n_problems > 1:
            owners = owners[: _shared.keep(counts, owners, marks)]
        else:
            counts = marks.astype(np.int32)
        chosen = counts > 0
        self._count(group.table[chosen], counts[chosen], owners, 1)
        self.rows.keep(group.table, counts[chosen][:, None], chosen, owners)

    def of(self, numbers: list[int]) -> Group:
        """The rows of these problems alone, from the file, where all stay."""
        self.rows.spill()
        n_rows, n_bytes = self._union(numbers)
        wanted = np.zeros(self._n_problems, np.uint8)
        wanted[numbers] = 1
        arena, counts, owners = Arena(n_bytes, np.empty(n_rows, ROW), self._dtype), [], []
        for rows, count, own in self.rows.saved():
            owners.append(own[: _shared.keep(count, own, wanted[own])])
            arena.take(rows, count > 0)
            counts.append(count[count > 0])
        return Group(arena.rows, np.concatenate(counts)[:, None], [arena.data], np.concatenate(owners))
