"""Kernels, and their values between rows and landmarks: rows that were chosen, or the support vectors of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llsvm import _kernels
from llsvm.core import Block, LlsvmError

TILE = _kernels.TILE
LINEAR, POLYNOMIAL, RBF = 0, 1, 2  # LIBSVM's numbers
NAMES = ("linear", "polynomial", "rbf")  # LIBSVM's words
DIRECT = 1 << 24  # features up to which landmarks find theirs in a table


@dataclass(frozen=True)
class Kernel:
    """linear: x.z; polynomial: (gamma x.z + coef0)^degree; RBF: exp(-gamma |x - z|^2)."""

    kind: int
    gamma: float = 1.0
    coef0: float = 0.0
    degree: int = 3

    @property
    def formula(self) -> dict:
        """As kernels take it."""
        return {"kind": self.kind, "gamma": self.gamma, "coef0": self.coef0, "degree": self.degree}

    @property
    def name(self) -> str:
        return NAMES[self.kind]

    def of_itself(self, squares: np.ndarray) -> np.ndarray:
        """K(x, x), squares being x.x."""
        if self.kind == RBF:
            return np.ones(len(squares))
        return (self.gamma * squares + self.coef0) ** self.degree if self.kind == POLYNOMIAL else np.array(squares)


class Rows:
    """CSR rows whose features are numbers below a bound, with x.x of each row."""

    def __init__(self, indptr, features, values, squares=None):
        self.indptr, self.features, self.values = indptr, features, values
        self.squares = _squares(indptr, values) if squares is None else squares

    @classmethod
    def of(cls, block: Block) -> Rows:
        return cls(np.asarray(block.indptr), np.asarray(block.features), np.asarray(block.values))

    def __len__(self) -> int:
        return len(self.squares)

    @property
    def n_bytes(self) -> int:
        return self.indptr.nbytes + self.features.nbytes + self.values.nbytes + self.squares.nbytes

    def take(self, places) -> Rows:
        """Copies of these rows, in this order."""
        places = np.asarray(places)
        lengths = np.diff(self.indptr)[places]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        entries = np.repeat(self.indptr[places] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Rows(indptr, self.features[entries], self.values[entries], self.squares[places])

    def part(self, start: int, end: int) -> Rows:
        """Rows start .. end - 1, not copied."""
        entries = slice(self.indptr[start], self.indptr[end])
        return Rows(self.indptr[start : end + 1] - self.indptr[start], self.features[entries], self.values[entries],
                    self.squares[start:end])

    @staticmethod
    def joined(parts: list[Rows]) -> Rows:
        ends = np.cumsum([0, *(part.indptr[-1] for part in parts)])
        indptr = [part.indptr[:-1] + end for part, end in zip(parts, ends, strict=False)]
        return Rows(np.concatenate([*indptr, ends[-1:]]), *(
            np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "values", "squares")))


def _squares(indptr, values) -> np.ndarray:
    squares = np.empty(len(indptr) - 1)
    _kernels.row_squares(indptr, values, squares)
    return squares


class Landmarks:
    """Rows laid out for kernels: tiles of 32, each (features, 32), of the features that any of them has."""

    def __init__(self, rows: Rows):
        self.rows, n_tiles = rows, -(-len(rows) // TILE)
        self.known = np.unique(rows.features)
        self.tiles = np.zeros((n_tiles, max(1, len(self.known)), TILE))
        of_row = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
        places = np.searchsorted(self.known, rows.features)
        self.tiles[of_row // TILE, places, of_row % TILE] = rows.values
        self.squares = np.zeros(n_tiles * TILE)
        self.squares[: len(rows)] = rows.squares
        largest = int(self.known.max(initial=-1))
        self._is_all = largest == len(self.known) - 1
        self._table = None
        if not self._is_all and largest < DIRECT:
            self._table = np.full(largest + 2, -1, np.int32)  # the last entry is of features beyond
            self._table[self.known] = np.arange(len(self.known))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        return self.tiles.nbytes + self.rows.n_bytes

    def _own_numbers(self, features: np.ndarray) -> np.ndarray:
        """Of these features, below 0 where no landmark has them."""
        if self._table is not None:
            return self._table[np.minimum(features, len(self._table) - 1)]
        if not len(self.known):
            return np.full(len(features), -1, np.int32)
        if self._is_all:
            places = features.astype(np.int32, copy=False) if features.max(initial=0) < 2**31 else features
            return np.where(places < len(self.known), places, -1).astype(np.int32, copy=False)
        places = np.minimum(np.searchsorted(self.known, features), len(self.known) - 1)
        return np.where(self.known[places] == features, places, -1).astype(np.int32)

    def values(self, kernel: Kernel, rows: Rows, out: np.ndarray | None = None) -> np.ndarray:
        """K(rows, landmarks), (rows, landmarks), float64 unless out is float32."""
        out = np.empty((len(rows), len(self))) if out is None else out
        _kernels.fill(self.tiles, self.squares, kernel.formula, rows.indptr, self._own_numbers(rows.features),
                      rows.values, rows.squares, out)
        return out

    def coefs(self, columns: np.ndarray) -> np.ndarray:
        """Coefficients (landmarks, columns) laid out as `sums` takes them."""
        laid_out = np.zeros((len(self.tiles) * TILE, columns.shape[1]))
        laid_out[: len(self)] = columns
        return np.ascontiguousarray(laid_out.reshape(len(self.tiles), TILE, -1).transpose(0, 2, 1))

    def sums(self, kernel: Kernel, rows: Rows, coefs: np.ndarray) -> np.ndarray:
        """sum_j K(row, landmark j) coefs[j, c], (rows, columns), without keeping a value; coefs: as laid out."""
        out = np.zeros((len(rows), coefs.shape[1]))
        _kernels.add_sums(self.tiles, self.squares, kernel.formula, rows.indptr, self._own_numbers(rows.features),
                          rows.values, rows.squares, coefs, out)
        return out


def check_finite(kernel: Kernel, largest_norm: float) -> None:
    """Refuses a kernel whose values would overflow on rows of this norm."""
    with np.errstate(all="ignore"):
        largest = kernel.of_itself(np.array([float(largest_norm) ** 2]))[0]
    if not largest < 1e150:
        raise LlsvmError(f"the {kernel.name} kernel is as large as {largest:g} on these rows",
                         "scale the values of the data to about 1, or give a smaller -g or -d")
