"""Model files: LIBLINEAR's text format, and behind the weights, where LIBLINEAR stops reading, a line of ours.

    solver_type L2R_L1LOSS_SVC_DUAL
    nr_class 2
    label 1 -1
    nr_feature 123
    bias 1
    w
    0.5
    ...                      one line a feature, then one for the bias if it is >= 0
    llsvm 0a1b2c3d {...}     CRC-32 of all the rest; names of labels, certificate, how it was trained

A set whose largest feature id is beyond 100 million gets `id:weight` lines for the ids in use instead (LIBLINEAR could
not hold such a model).
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from llsvm import _model
from llsvm.core import DataError, LlsvmError
from llsvm.files import Output

DENSE_LIMIT = 100_000_000
TRAILER = b"llsvm "
BATCH = 1 << 16
SHORT_PART = 1 << 17  # lines of weights that one thread reads as fast as several
TWO_COLUMN_SOLVERS = {"MCSVM_CS"}


@dataclass
class Model:
    """weights[f] are those of feature id ids[f] (ascending), or of id f + 1 where ids is None; one column a class, one
    for two classes, where a positive score means labels[0].

    n_ids: the largest id. bias < 0: none; else bias_weights count `bias` times.
    """

    solver_type: str
    labels: list[str]
    weights: np.ndarray
    n_ids: int
    bias: float = -1.0
    bias_weights: np.ndarray | None = None
    ids: np.ndarray | None = None
    zero_based: bool = False
    info: dict = field(default_factory=dict)

    @property
    def n_columns(self) -> int:
        return self.weights.shape[1]


def from_features(solver_type, labels, weights, feature_ids, bias, zero_based, info) -> Model:
    """A model from weights by feature number: (features + 1, columns), the last row being the bias's. Sorts the ids."""
    bias_weights = weights[-1].copy() if bias >= 0 else None
    order = np.arange(len(feature_ids), dtype=np.int32)
    _model.sort_ids(feature_ids, order, np.empty_like(feature_ids), np.empty_like(order))
    in_order_of_ids = np.empty((len(order), weights.shape[1]))
    for start in range(0, len(order), BATCH):  # NumPy makes its places 64-bit numbers
        part = slice(start, start + BATCH)
        weights.take(order[part], 0, in_order_of_ids[part], "clip")
    n_ids = int(feature_ids[-1]) if len(feature_ids) else 0
    return Model(solver_type, labels, in_order_of_ids, n_ids, bias, bias_weights, feature_ids, zero_based, info)


def save(model: Model, output: Output, threads: int = 1) -> None:
    crc = 0
    for part in _lines(model, threads):
        crc = zlib.crc32(part, crc)
        output.write(part)
    ours = json.dumps({"labels": model.labels, "zero_based": model.zero_based, **model.info}).encode("ascii")
    output.write(b"%b%08x %b\n" % (TRAILER, zlib.crc32(ours, crc), ours))
    output.commit()


def _lines(model: Model, threads: int):
    integers = all(_is_int32(label) for label in model.labels)
    numbers = model.labels if integers else [str(number + 1) for number in range(len(model.labels))]
    by_id = model.n_ids > DENSE_LIMIT
    yield (
        f"solver_type {model.solver_type}\nnr_class {len(model.labels)}\nlabel {' '.join(numbers)}\n"
        f"nr_feature {model.n_ids}\nbias {model.bias:.17g}\n{'w_by_id' if by_id else 'w'}\n"
    ).encode("ascii")
    step = max(1, BATCH // model.n_columns)
    starts = range(0, len(model.ids) if by_id else model.n_ids, step)
    lines = partial(_lines_by_id if by_id else _dense_lines, model, step)
    yield from map(lines, starts) if by_id else in_order(lines, starts, threads)
    if model.bias_weights is not None:
        yield _weight_lines(model.bias_weights[None, :])


def in_order(function, items, threads: int):
    """As map, a few items ahead on several threads."""
    with ThreadPoolExecutor(threads) as pool:
        under_way = deque()
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def _weight_lines(weights: np.ndarray) -> bytes:
    room = np.empty(weights.size * 26 + len(weights) + 1, np.uint8)
    return room[: _model.format_weights(np.ascontiguousarray(weights), room.view("c"))].tobytes()


def _dense_lines(model: Model, step: int, start: int) -> bytes:
    """The weights of so many ids from start + 1 on, with zeros for ids not in use."""
    end = min(start + step, model.n_ids)
    if model.ids is None:
        return _weight_lines(model.weights[start:end])
    first, last = np.searchsorted(model.ids, (start + 1, end + 1))
    batch = np.zeros((end - start, model.n_columns))
    batch[model.ids[first:last] - 1 - start] = model.weights[first:last]
    return _weight_lines(batch)


def _lines_by_id(model: Model, step: int, start: int) -> bytes:
    ids = model.ids[start : start + step].tolist()
    lines = _weight_lines(model.weights[start : start + step]).splitlines(True)
    return b"".join(b"%d:%b" % line for line in zip(ids, lines, strict=True))


def _is_int32(label: str) -> bool:
    try:
        return str(int(label)) == label and -(2**31) <= int(label) < 2**31
    except ValueError:
        return False


def load(path: str, threads: int = 1) -> Model:
    """A model of ours or of LIBLINEAR's; anything incomplete or altered is refused."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise LlsvmError(f"{path}: {error.strerror}") from None
    header, start = _header(path, text)
    info = _trailer(path, text)
    try:
        n_classes, n_features, bias = int(header["nr_class"]), int(header["nr_feature"]), float(header["bias"])
        solver_type, labels = header["solver_type"], info.pop("labels", None) or header["label"].split()
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: not a model file (bad or missing header: {error})") from None
    if len(labels) != n_classes or n_classes < 2 or n_features < 0:
        raise DataError(f"{path}: not a model file ({len(labels)} labels, {n_classes} classes, {n_features} features)")
    n_columns = 1 if n_classes == 2 and solver_type not in TWO_COLUMN_SOLVERS else n_classes
    if "w_by_id" in header and not info:
        raise DataError(f"{path}: cut short, its last line is missing", "train again, or fetch the whole file")
    if "w_by_id" in header:
        ids, weights, bias_weights = _weights_by_id(path, text, start, n_columns, bias)
    else:
        ids, shape = None, (n_features + (bias >= 0), n_columns)
        weights, bias_weights = _weights(path, text, start, shape, bias, bool(info), threads)
    return Model(solver_type, labels, weights, n_features, bias, bias_weights, ids, info.pop("zero_based", False), info)


def _header(path: str, text: bytes) -> tuple[dict, int]:
    header, position = {}, 0
    for _ in range(8):
        end = text.find(b"\n", position)
        if end < 0 or end - position > 1 << 20:
            break
        words = text[position:end].decode("ascii", "replace").split(None, 1)
        position = end + 1
        if words and words[0] in ("w", "w_by_id"):
            header[words[0]] = ""
            return header, position
        if len(words) == 2:
            header[words[0]] = words[1]
    raise DataError(f"{path}: not a model file, or cut short in its header")


def _trailer(path: str, text: bytes) -> dict:
    """Our line, checked; {} for a model of LIBLINEAR's."""
    position = text.rfind(b"\n" + TRAILER) + 1
    if position == 0:
        return {}
    line = text[position + len(TRAILER) :]
    expected, _, ours = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"}\n"):
        raise DataError(f"{path}: cut short in its last line", "train again, or fetch the whole file")
    found = b"%08x" % zlib.crc32(ours, zlib.crc32(memoryview(text)[:position]))
    if found != expected:
        stands = expected[:20].decode("ascii", "backslashreplace")
        raise DataError(f"{path}: its checksum is {found.decode()}, but {stands} stands there",
                        "the file was changed or damaged")
    return json.loads(ours)


def _weights(path, text, start, shape, bias, ours, threads):
    n_rows, n_columns = shape
    if n_rows * n_columns * 2 > len(text) - start:
        raise DataError(f"{path}: cut short, {n_rows * n_columns} weights expected")
    weights = np.empty(shape)
    end = _parse_together(text, start, weights, min(threads, n_rows // SHORT_PART))
    found, end = (weights.size, end) if end else _model.parse_weights(text, start, weights.ravel())
    if found < weights.size:
        raise DataError(f"{path}: cut short or damaged, {weights.size} weights expected, {found} found")
    if not ours and text[end:].strip():
        raise DataError(f"{path}: cut short in its last line, or damaged", "train again, or fetch the whole file")
    return (weights[:-1], weights[-1]) if bias >= 0 else (weights, None)


def _parse_together(text: bytes, start: int, weights: np.ndarray, n_parts: int) -> int:
    """Fills weights by a thread for each part, if a line has those of a feature; returns where they end, or else 0."""
    if n_parts < 2:
        return 0
    cuts = [text.find(b"\n", start + part * (len(text) - start) // n_parts) + 1 for part in range(1, n_parts)]
    starts = [start, *cuts]
    with ThreadPoolExecutor(n_parts) as pool:
        counts = pool.map(partial(_model.count_lines, text), starts[:-1], cuts)
        parts = np.split(weights, np.cumsum(list(counts)))
        found = list(pool.map(partial(_model.parse_weights, text), starts, [part.ravel() for part in parts]))
    whole = all(count == part.size for (count, _), part in zip(found, parts, strict=True))
    apart = all(behind <= cut and not text[behind:cut].strip() for (_, behind), cut in zip(found, cuts, strict=False))
    return found[-1][1] if whole and apart else 0


def _weights_by_id(path, text, start, n_columns, bias):
    lines = text[start : text.rfind(b"\n" + TRAILER)].split(b"\n")
    bias_line = lines.pop() if bias >= 0 else None
    try:
        ids = np.array([int(line.split(b":", 1)[0]) for line in lines], np.int64)
        weights = np.array([line.split(b":", 1)[1].split() for line in lines], np.float64)
        return ids, weights.reshape(-1, n_columns), bias_line and np.array(bias_line.split(), np.float64)
    except (ValueError, IndexError):
        raise DataError(f"{path}: damaged weights") from None
