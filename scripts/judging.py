"""What a linear model is worth, by NumPy alone from the text in float64: the independent judge of the scripts.

    P(w) = |w|^2 / 2 + C sum_i max(0, 1 - y_i w.x_i)        the bias, where there is one, a feature of value 1

It reads plain LIBSVM text with two numeric labels, and runs in a process of its own: see peers.py.
"""

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PART = 1 << 25


class Linear(NamedTuple):
    """A model: the label of its positive side, the weights by feature id from 1, the weight of the bias."""

    positive: float
    w: Any
    bias: float = 0.0


@functools.cache
def load(path):
    """Labels, the row of each nonzero, its feature from 0, its value."""
    import numpy as np

    parts, n_rows = [], 0
    with open(path, "rb") as file:
        while text := file.read(PART) + file.readline():
            labels, lengths, pairs = parse(text if text.endswith(b"\n") else text + b"\n")
            rows = np.repeat(np.arange(n_rows, n_rows + len(labels), dtype=np.int32), lengths)
            parts.append((labels, rows, pairs[:, 0].astype(np.int32) - 1, pairs[:, 1].copy()))
            n_rows += len(labels)
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def parse(text):
    """Labels, nonzeros of each row, (id, value) of each nonzero, of whole lines `label id:value ...`."""
    import numpy as np

    characters = np.frombuffer(text, np.uint8)
    ends, colons = (np.flatnonzero(characters == ord(mark)) for mark in "\n:")
    lengths = np.diff(np.searchsorted(colons, ends), prepend=0)
    numbers = np.fromstring(text.replace(b":", b" "), sep=" ")
    if len(numbers) != len(ends) + 2 * len(colons):
        raise ValueError("not plain LIBSVM text: label id:value ... with numbers alone, no comments or empty lines")
    starts = np.cumsum(1 + 2 * lengths) - (1 + 2 * lengths)
    return numbers[starts], lengths, np.delete(numbers, starts).reshape(-1, 2)


def read_model(path):
    """A model file of two classes, ours or LIBLINEAR's."""
    import numpy as np

    head, _, body = Path(path).read_text().partition("\nw\n")
    header = dict(line.split(None, 1) for line in head.splitlines())
    n_features, has_bias = int(header["nr_feature"]), float(header["bias"]) >= 0
    lines = body.split("\n", n_features + 1)[: n_features + has_bias]
    weights = np.array(lines, dtype=np.float64)
    bias = float(weights[n_features]) if has_bias else 0.0
    return Linear(float(header["label"].split()[0]), weights[:n_features], bias)


def signed_scores(path, model):
    """y_i w.x_i of every row."""
    import numpy as np

    labels, rows, features, values = load(path)
    w = np.zeros(max(len(model.w), int(features.max(initial=-1)) + 1))
    w[: len(model.w)] = model.w
    scores = model.bias + np.bincount(rows, values * w[features], len(labels))
    return np.where(labels == model.positive, scores, -scores), labels == model.positive


def objective(path, model, C):
    import numpy as np

    margins, _ = signed_scores(path, model)
    return float((model.w @ model.w + model.bias**2) / 2 + C * np.maximum(0, 1 - margins).sum())


def accuracy(path, model):
    """The share of rows that are right, in percent; a score of 0 says the other class, as in LIBLINEAR."""
    import numpy as np

    margins, positive = signed_scores(path, model)
    return 100 * float(np.mean(np.where(positive, margins > 0, margins >= 0)))


def objective_of_file(path, model, C):
    return objective(str(path), read_model(model), C)


@contextmanager
def separate_process():
    """A function that calls another in a process of its own, always the same one, and returns the result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def run_apart(function, *arguments):
    """Calls a function in a new process: nothing it changes or keeps outlives the call."""
    with separate_process() as call:
        return call(function, *arguments)
