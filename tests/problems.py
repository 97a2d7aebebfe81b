"""Generated problems, as rows, text and block sets; model files written and read by nothing but Python."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
import zstandard

from llsvm.reader import RECORD, ROW, Arena, copy_rows
from llsvm.split import split_text

COMPRESS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


# --- rows


class Rows(NamedTuple):
    """Rows of two classes, and where they stand as text and as a block set (ids from 1, labels +1 and -1)."""

    X: scipy.sparse.csr_matrix
    y: np.ndarray
    text: str = ""
    blocks: str = ""

    @property
    def tenth(self):
        """A tenth of the bytes that the rows take in memory: a 4-byte index and a 4-byte value a nonzero."""
        return self.X.nnz * 8 // 10

    @property
    def radius(self):
        return float(np.sqrt(self.X.multiply(self.X).sum(1).max()))


def make_rows(n_rows, seed=3):
    """Texts of two kinds, with words of their own and common ones; values are exact in binary and in decimal."""
    rng, words, indices = np.random.default_rng(seed), 60, []
    y = np.where(rng.random(n_rows) < 0.4, 1, -1)
    for sign in y:
        kinds = rng.choice(3, rng.integers(20, 60), p=(0.7, 0.06, 0.24) if sign > 0 else (0.06, 0.7, 0.24))
        indices.append(np.unique(words * kinds + rng.integers(0, words, len(kinds))))
    starts = np.cumsum([0, *map(len, indices)])
    values = rng.integers(6, 17, starts[-1]) / 64
    return Rows(scipy.sparse.csr_matrix((values, np.concatenate(indices), starts), shape=(n_rows, 3 * words)), y)


def growing_rows(n_rows):
    """Rows that get longer: the radius grows with every piece of the text."""
    rows = make_rows(n_rows)
    scale = np.round(np.linspace(1, 4, n_rows) * 16) / 16
    return scipy.sparse.diags(scale) @ rows.X, rows.y


def radii_so_far(X):
    """The bias of -B R at the turn of each row and at the end: the largest norm so far, unless that grew by less than a
    tenth; 1 as long as all rows are empty."""
    norms, radius, found = np.sqrt(scipy.sparse.csr_matrix(X).power(2).sum(1)).A1, 0.0, []
    for norm in norms.astype(np.float32).astype(float):
        radius = norm if norm > 1.1 * radius else radius
        found.append(radius or 1.0)
    return np.array([*found, norms.max()])


def make_classes(n_rows, n_classes, seed=7):
    """Texts of several kinds, each with words of its own; values exact in binary and in decimal."""
    rng, words = np.random.default_rng(seed), 20
    y = rng.integers(0, n_classes, n_rows)
    kinds = np.where(rng.random((n_rows, 25)) < 0.6, y[:, None], rng.integers(0, n_classes, (n_rows, 25)))
    columns = [np.unique(row) for row in words * kinds + rng.integers(0, words, kinds.shape)]
    starts = np.cumsum([0, *map(len, columns)])
    values = rng.integers(8, 33, starts[-1]) / 64
    return scipy.sparse.csr_matrix((values, np.concatenate(columns), starts), shape=(n_rows, words * n_classes)), y


def four_classes(n_rows):
    """(X, labels), where the order of first occurrence is not that of the numbers."""
    X, codes = make_classes(n_rows, 4)
    return X, [["c", "7", "a", "-1"][code] for code in codes]


def make_noisy_rows(seed, n_rows):
    """Eighths, so that float32 holds them exactly; noisy labels, so that no model gets everything right."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-8, 9, (n_rows, N_FEATURES)) / 8 * (rng.random((n_rows, N_FEATURES)) < 0.4)
    score = X @ np.linspace(-1, 1.2, N_FEATURES) + 0.3 + 0.4 * rng.standard_normal(n_rows)
    return X, np.where(score > 0, 1, -1)


N_FEATURES = 20
TRAINING, TEST = make_noisy_rows(1, 300), make_noisy_rows(2, 100)


def as_text(X, labels, first_id=1):
    """LIBSVM text of these rows, dense or not."""
    X, lines = scipy.sparse.csr_matrix(X), []
    for row, label in enumerate(labels):
        part = slice(*X.indptr[row : row + 2])
        pairs = zip(X.indices[part].tolist(), X.data[part].tolist(), strict=True)
        lines.append(f"{label}" + "".join(f" {index + first_id}:{value!r}" for index, value in pairs) + "\n")
    return "".join(lines)


def write_text(path, X, labels, first_id=1):
    """Returns the path."""
    Path(path).write_text(as_text(X, labels, first_id))
    return str(path)


def split(text, n_blocks, threads=1, precision="float32", seed=1, output=None):
    """A block set of this text; returns its path."""
    output = output or f"{text}.{n_blocks}.{threads}.blocks"
    split_text([text], output, n_blocks=n_blocks, seed=seed, zero_based=False, precision=precision, force=False,
               threads=threads, memory=1 << 30)  # fmt: skip
    return output


def block_bytes(path):
    """The size of the block files of a set."""
    return sum(file.stat().st_size for file in Path(path).glob("*.llb"))


def arrays(X, dtype=np.float64):
    """A CSR matrix as ids (from 1), values and row pointers."""
    return X.indices + np.int64(1), X.data.astype(dtype), X.indptr.astype(np.int64)


def arena_of(X, codes, dtype):
    """These rows in memory, as those of chunk 3."""
    arena = Arena(16 * X.nnz + 8 * X.shape[0] + 8, np.empty(X.shape[0], ROW), dtype)
    arena.add(codes.astype(np.uint16), np.diff(X.indptr).astype(np.int32), X.indices.astype(np.int32),
              X.data.astype(dtype), 3)  # fmt: skip
    return arena


def records_of(table):
    """These rows, each with a dual beside it."""
    records = np.zeros(len(table), RECORD)
    copy_rows(table, records["row"])
    return records


# --- models


class PlainModel(NamedTuple):
    """weights: (features, columns); bias_weights: one a column, or None; info: of our own last line."""

    header: dict
    weights: np.ndarray
    bias_weights: np.ndarray | None = None
    info: dict = {}

    @property
    def labels(self):
        return self.info.get("labels", self.header["label"].split())

    @property
    def bias(self):
        return float(self.header["bias"])

    @property
    def w(self):
        """Of two classes."""
        return self.weights[:, 0]

    @property
    def bias_w(self):
        return 0.0 if self.bias_weights is None else self.bias_weights[0]

    def matrix(self, n_features):
        """The weights of so many features, which may be more than the model has, and of the bias, if it has one."""
        w = np.zeros((n_features + (self.bias_weights is not None), self.weights.shape[1]))
        w[: len(self.weights)] = self.weights
        if self.bias_weights is not None:
            w[-1] = self.bias_weights
        return w


def read_model(path):
    """A model file in LIBLINEAR's format, read by nothing but Python."""
    with open(path) as file:
        header = dict(line.split(None, 1) for line in iter(lambda: next(file).strip(), "w"))
        n_features, has_bias = int(header["nr_feature"]), float(header["bias"]) >= 0
        weights = np.array([next(file).split() for _ in range(n_features + has_bias)], float)
        last = next(file, "")
    info = json.loads(last.split(" ", 2)[2]) if last.startswith("llsvm ") else {}
    return PlainModel(header, weights[:n_features], weights[-1] if has_bias else None, info)


def write_model(path, weights, bias=-1.0, bias_weight=0.0):
    """As LIBLINEAR itself would."""
    lines = ["solver_type L2R_L1LOSS_SVC_DUAL", "nr_class 2", "label 1 -1"]
    lines += [f"nr_feature {len(weights)}", f"bias {bias:.17g}", "w", *(f"{weight:.17g} " for weight in weights)]
    Path(path).write_text("\n".join(lines + [f"{bias_weight:.17g} "] * (bias >= 0)) + "\n")


def scores(X, model):
    """Of a model of two classes: positive where its first label is meant."""
    w = model.matrix(X.shape[1])[: X.shape[1], 0]
    return X @ w + max(0.0, model.bias) * model.bias_w


def predicted(X, model):
    return np.where(scores(X, model) > 0, *map(int, model.labels))
