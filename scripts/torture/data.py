"""Data to train on, written as text; and what models and block sets mean, read with plain Python or by llsvm."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

MOST_KINDS = 8  # of rows that differ; beyond, several labels share one


def write_rows(path: Path, random: Random, n_rows: int, n_features: int = 50, a_row: int = 8, labels=("1", "-1"),
               noise: float = 0.1, scale: float = 1.0, distinct: int = 1000) -> Path:
    """Rows of a_row features at most; the label follows the scores of hidden weights but for noise.

    Beyond `distinct` rows they come again in the same order, with other labels.
    """
    rng = np.random.default_rng(random.getrandbits(32))
    n, least = min(n_rows, distinct), min(a_row, n_features)
    ids = np.sort(rng.integers(1, n_features + 1, (n, least)), 1)
    values = np.round(rng.uniform(-1, 1, (n, least)), 3) * scale
    kinds = min(len(labels), MOST_KINDS)
    hidden = ((ids[:, :, None] * 7919 + np.arange(kinds) * 104729) % 65537) / 32768 - 1
    best = (hidden * values[:, :, None]).sum(1).argmax(1)
    tails = []
    for row in range(n):
        pairs = dict(zip(ids[row].tolist(), values[row].tolist(), strict=True))
        tails.append("".join(f" {number}:{value:.6g}" for number, value in pairs.items()) + "\n")
    codes = best[np.arange(n_rows) % n] + kinds * rng.integers(0, -(-len(labels) // kinds), n_rows)
    codes = np.where(rng.random(n_rows) < noise, rng.integers(0, len(labels), n_rows), codes) % len(labels)
    codes[: len(labels)] = np.arange(len(labels))[:n_rows]
    with open(path, "w") as file:
        file.writelines(labels[code] + tails[row % n] for row, code in enumerate(codes.tolist()))
    return path


class Weights(NamedTuple):
    """A model file in LIBLINEAR's format: header, the weights by id (a column a class), the bias's, our last line."""

    header: dict[str, str]
    w: np.ndarray
    bias_w: np.ndarray
    info: dict

    @property
    def labels(self) -> list[str]:
        return self.info.get("labels") or self.header["label"].split()

    @property
    def bias(self) -> float:
        return max(0.0, float(self.header["bias"]))


def read_model(path: Path) -> Weights:
    """With plain Python; ids of `w_by_id` become places."""
    head, _, body = Path(path).read_text().partition("\nw\n")
    if not body:
        raise ValueError(f"{path} lists weights by id")
    header = dict(line.split(None, 1) for line in head.splitlines())
    *lines, last = body.splitlines()
    info = json.loads(last.split(" ", 2)[2]) if last.startswith("llsvm ") else {}
    numbers = np.array([line.split() for line in (lines if info else [*lines, last])], float)
    n_features = int(header["nr_feature"])
    bias_w = numbers[n_features] if float(header["bias"]) >= 0 else np.zeros(numbers.shape[1])
    return Weights(header, numbers[:n_features], bias_w, info)


# What two runs of one training differ in.
CLOCKS = {"wait", "compute", "seconds", "peak_memory"}


def timeless(path: Path) -> bytes:
    """A model file without the times and the memory that its last line may have."""
    data = Path(path).read_bytes()
    weights, mark, last = data.rpartition(b"\nllsvm ")
    info = json.loads(last.split(b" ", 1)[1]) if mark else {}
    for name in CLOCKS:
        info.get("statistics", {}).pop(name, None)
    return weights + json.dumps(info).encode()


class Contents(NamedTuple):
    """All that training takes from a block set, as bytes and plain values."""

    facts: tuple
    ids: bytes
    chunks: tuple


def read_set(path: Path) -> Contents:
    """Through llsvm's own reader, which checks everything on the way."""
    from llsvm.blockset import BlockSet, Decoder

    blocks = BlockSet(path)
    try:
        known = blocks.description
        facts = (known.n_rows, known.n_features, known.n_nonzeros, tuple(known.labels), tuple(known.label_counts),
                 known.largest_norm, known.zero_based, str(known.dtype))  # fmt: skip
        ids, decoder = blocks.feature_ids().tobytes(), Decoder(blocks)
        chunks = tuple(tuple(array.tobytes() for array in decoder.decode(chunk)) for chunk in range(blocks.n_chunks))
        return Contents(facts, ids, chunks)
    finally:
        blocks.close()


def loaded_model(path: Path) -> tuple:
    """All that predicting takes from a model, through llsvm's own reader."""
    from llsvm.model import load

    model = load(str(path), 1)
    arrays = (None if array is None else array.tobytes() for array in (model.weights, model.bias_weights, model.ids))
    return (model.solver_type, tuple(model.labels), model.n_ids, model.bias, model.zero_based, *arrays)
