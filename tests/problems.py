"""Generated problems, as rows, text and block sets; models read, and objectives computed, by nothing but NumPy."""

import bz2
import gzip
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


# --- models and objectives


class PlainModel(NamedTuple):
    header: dict
    w: np.ndarray
    bias_w: float

    @property
    def labels(self):
        return self.header["label"].split()


def read_model(path):
    """A two-class model file in LIBLINEAR's format, read by nothing but Python."""
    with open(path) as file:
        header = dict(line.split(None, 1) for line in iter(lambda: next(file).strip(), "w"))
        n_features, has_bias = int(header["nr_feature"]), float(header["bias"]) >= 0
        weights = [float(next(file)) for _ in range(n_features + has_bias)]
    return PlainModel(header, np.array(weights[:n_features]), weights[-1] if has_bias else 0.0)


def write_model(path, weights, bias=-1.0, bias_weight=0.0):
    """As LIBLINEAR itself would."""
    lines = ["solver_type L2R_L1LOSS_SVC_DUAL", "nr_class 2", "label 1 -1"]
    lines += [f"nr_feature {len(weights)}", f"bias {bias:.17g}", "w", *(f"{weight:.17g} " for weight in weights)]
    Path(path).write_text("\n".join(lines + [f"{bias_weight:.17g} "] * (bias >= 0)) + "\n")


def scores(X, model):
    """Positive where the first label of the model is meant."""
    w = np.zeros(X.shape[1])
    w[: len(model.w)] = model.w
    return X @ w + max(0.0, float(model.header["bias"])) * model.bias_w


def predicted(X, model):
    return np.where(scores(X, model) > 0, *map(int, model.labels))


def objective(X, labels, model, C=1.0, weights=None, squared=False):
    """P(w) = w.w / 2 + sum_i C_i loss_i of a model, with the bias as one more feature."""
    labels = np.array([str(label) for label in labels])
    y = np.where(labels == model.labels[0], 1.0, -1.0)
    costs = C * np.array([(weights or {}).get(label, 1.0) for label in labels])
    violations = np.maximum(0, 1 - y * scores(X, model))
    return (model.w @ model.w + model.bias_w**2) / 2 + costs @ (violations**2 if squared else violations)


def signs_and_costs(labels, classes, C=1.0, weights=None):
    """Y[k, i] and C[k, i] of row i in problem k: one of two classes, else one for each against the rest, as LIBLINEAR
    poses them."""
    labels, weights = np.array(labels), weights or {}
    positives = classes[:1] if len(classes) == 2 else classes
    Y = np.array([np.where(labels == positive, 1.0, -1.0) for positive in positives])
    own = np.array([weights.get(label, 1.0) for label in labels])
    return Y, C * (own[None, :] if len(classes) == 2 else np.where(Y > 0, own, 1.0))


def weights_of(model, n_features):
    """(features and bias, columns), of models whose ids may be fewer."""
    w = np.zeros((n_features, model.n_columns))
    w[model.ids - 1] = model.weights
    return w if model.bias_weights is None else np.vstack([w, model.bias_weights])


def scores_by_class(X, w, bias):
    """w: as of weights_of."""
    return X @ w[:-1] + bias * w[-1] if bias >= 0 else X @ w


def one_vs_rest(X, labels, classes, w, C=1.0, weights=None, squared=False, bias=-1.0):
    """P(w) of every problem, one a column of w."""
    Y, costs = signs_and_costs(labels, classes, C, weights)
    losses = np.maximum(0, 1 - Y * scores_by_class(X, w, bias).T)
    return 0.5 * (w**2).sum(0) + (costs * losses ** (1 + squared)).sum(1)
