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

import io
import itertools
import json
import os
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from llsvm import _model
from llsvm.core import DataError, LlsvmError
from llsvm.files import Output

DENSE_LIMIT = 100_000_000
TRAILER = b"llsvm "
BATCH = 1 << 16
PART = 1 << 20  # bytes of text parsed at a time
SLACK = 16  # zero bytes behind them, which the parser may look at
MOST_THREADS = 4  # beyond which one thread could not read or write what they do
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
    n_ids = int(feature_ids.max(initial=0))
    keys = feature_ids.astype(np.int32) if n_ids < 2**31 else feature_ids
    _model.sort_ids(keys, order, np.empty_like(keys), np.empty_like(order))
    feature_ids[:] = keys
    in_order_of_ids = np.empty((len(order), weights.shape[1]))
    for start in range(0, len(order), BATCH):  # NumPy makes its places 64-bit numbers
        part = slice(start, start + BATCH)
        weights.take(order[part], 0, in_order_of_ids[part], "clip")
    return Model(solver_type, labels, in_order_of_ids, n_ids, bias, bias_weights, feature_ids, zero_based, info)


def save(model: Model, output: Output, threads: int = 1) -> None:
    crc = 0
    for part in _lines(model, min(threads, MOST_THREADS)):
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
    zeros = np.frombuffer((b"0 " * model.n_columns + b"\n") * step, np.uint8)
    # in_order has no more parts under way: rooms used again are in memory already.
    rooms = [np.empty((26 * model.n_columns + 1) * step + len(zeros), np.uint8) for _ in range(threads + 1)]
    lines = partial(_lines_by_id, model, step) if by_id else partial(_dense_lines, model, step, zeros, rooms)
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


def _weight_lines(weights: np.ndarray) -> np.ndarray:
    n_rows = len(weights)
    room = np.empty(26 * weights.size + n_rows, np.uint8)
    ids = np.arange(1, n_rows + 1)
    return room[: _model.format_weights(np.ascontiguousarray(weights), ids, 0, n_rows, room, room)]


def _dense_lines(model: Model, step: int, zeros: np.ndarray, rooms: list[np.ndarray], start: int) -> np.ndarray:
    """The weights of so many ids from start + 1 on, with zeros for ids not in use, in the room whose turn it is."""
    end, room = min(start + step, model.n_ids), rooms[start // step % len(rooms)]
    if model.ids is None:
        return _weight_lines(model.weights[start:end])
    first, last = np.searchsorted(model.ids, (start + 1, end + 1))
    weights = model.weights[first:last]
    return room[: _model.format_weights(weights, model.ids[first:last], start, end, zeros, room)]


def _lines_by_id(model: Model, step: int, start: int) -> bytes:
    ids = model.ids[start : start + step].tolist()
    lines = _weight_lines(model.weights[start : start + step]).tobytes().splitlines(True)
    return b"".join(b"%d:%b" % line for line in zip(ids, lines, strict=True))


def _is_int32(label: str) -> bool:
    try:
        return str(int(label)) == label and -(2**31) <= int(label) < 2**31
    except ValueError:
        return False


def load(path: str, threads: int = 1) -> Model:
    """A model of ours or of LIBLINEAR's; anything incomplete or altered is refused."""
    try:
        with open(path, "rb") as file:
            # A pipe is read whole: what follows needs to know how much there is.
            return _load(path, file if os.path.isfile(path) else io.BytesIO(file.read()), threads)
    except OSError as error:
        raise LlsvmError(f"{path}: {error.strerror}") from None


def _load(path: str, file, threads: int) -> Model:
    header, crc = _header(path, file)
    try:
        n_classes, n_features, bias = int(header["nr_class"]), int(header["nr_feature"]), float(header["bias"])
        solver_type, labels = header["solver_type"], header["label"].split()
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: not a model file (bad or missing header: {error})") from None
    if len(labels) != n_classes or n_classes < 2 or n_features < 0:
        raise DataError(f"{path}: not a model file ({len(labels)} labels, {n_classes} classes, {n_features} features)")
    n_columns = 1 if n_classes == 2 and solver_type not in TWO_COLUMN_SOLVERS else n_classes
    if "w_by_id" in header:
        ids, weights, bias_weights, info = _weights_by_id(path, file, crc, n_columns, bias)
    else:
        ids, (weights, info) = None, _weights(path, file, crc, (n_features + (bias >= 0), n_columns), threads)
        weights, bias_weights = (weights[:-1], weights[-1]) if bias >= 0 else (weights, None)
    labels, zero_based = info.pop("labels", labels), info.pop("zero_based", False)
    return Model(solver_type, labels, weights, n_features, bias, bias_weights, ids, zero_based, info)


def _header(path: str, file) -> tuple[dict, int]:
    """The lines before the weights, and their CRC-32."""
    header, crc = {}, 0
    for _ in range(8):
        line = file.readline(1 << 20)
        if not line.endswith(b"\n"):
            break
        crc = zlib.crc32(line, crc)
        words = line[:-1].decode("ascii", "replace").split(None, 1)
        if words and words[0] in ("w", "w_by_id"):
            header[words[0]] = ""
            return header, crc
        if len(words) == 2:
            header[words[0]] = words[1]
    raise DataError(f"{path}: not a model file, or cut short in its header")


def _trailer(path: str, line: bytes, crc: int) -> dict:
    """What our line, the last one, says; crc is that of all before it."""
    expected, _, ours = line[len(TRAILER) :].rstrip(b"\n").partition(b" ")
    if not line.endswith(b"}\n"):
        raise DataError(f"{path}: cut short in its last line", "train again, or fetch the whole file")
    found = b"%08x" % zlib.crc32(ours, crc)
    if found != expected:
        stands = expected[:20].decode("ascii", "backslashreplace")
        raise DataError(f"{path}: its checksum is {found.decode()}, but {stands} stands there",
                        "the file was changed or damaged")
    return json.loads(ours)


def _weights(path: str, file, crc: int, shape: tuple[int, int], threads: int) -> tuple[np.ndarray, dict]:
    """The weights, and what our line behind them says: {} in a model of LIBLINEAR's."""
    start, size = file.tell(), shape[0] * shape[1]
    if 2 * size > file.seek(0, os.SEEK_END) - start:
        raise DataError(f"{path}: cut short, {size} weights expected")
    file.seek(start)
    weights = np.empty(shape)
    text = _WeightText(file, crc, weights.reshape(-1))
    found = text.parse(min(threads, MOST_THREADS))
    if found < size:
        raise DataError(f"{path}: cut short or damaged, {size} weights expected, {found} found")
    line = text.rest.lstrip(b" \t\r\n")
    if not line:
        return weights, {}
    if not line.startswith(TRAILER):
        raise DataError(f"{path}: cut short in its last line, or damaged", "train again, or fetch the whole file")
    return weights, _trailer(path, line, zlib.crc32(text.rest[: len(text.rest) - len(line)], text.crc))


class _WeightText:
    """The text from the first weight on, read in parts, which several threads parse.

    crc goes on from what was before, up to the last weight; rest is the text behind that.
    """

    def __init__(self, file, crc: int, weights: np.ndarray):
        self.crc, self.rest = crc, b""
        self._file, self._weights, self._last = file, weights, b""

    def parse(self, threads: int) -> int:
        """Fills the weights; returns how many were found, up to the first that is none."""
        done, parts = 0, _parts(self._file, [bytearray(PART + SLACK) for _ in range(threads + 1)])
        for found, wanted in in_order(_parse, self._before_last(parts), threads):
            done += found
            if found < wanted:
                return done
        found, behind = _model.parse_weights(self._last, self._weights[done:])
        self.crc = zlib.crc32(self._last[:behind], self.crc)
        self.rest = bytes(self._last[behind:]) + b"".join(bytes(text) for text, _ in parts)
        return done + found

    def _before_last(self, parts):
        begin = 0
        for text, ended in parts:
            end = begin + _model.count_words(text)
            if ended or end > len(self._weights):
                self._last = text
                return
            yield text, self._weights[begin:end]
            self.crc = zlib.crc32(text, self.crc)
            begin = end


def _parse(part) -> tuple[int, int]:
    text, weights = part
    return _model.parse_weights(text, weights)[0], len(weights)


def _parts(file, rooms: list[bytearray]):
    """Yields (whole words of the file, whether they are the last), each in the next of the rooms, zeros behind it."""
    rest = b""
    for room in itertools.cycle(rooms):
        room[: len(rest)] = rest
        with memoryview(room) as view:
            end = len(rest) + file.readinto(view[len(rest) : PART])
        ended = end < PART
        cut = end if ended else 1 + max(room.rfind(b" ", 0, end), room.rfind(b"\n", 0, end))
        if cut == 0:  # no weight is as long as that
            cut, ended = end, True
        rest = bytes(room[cut:end])
        room[cut : cut + SLACK] = bytes(SLACK)
        yield memoryview(room)[:cut], ended
        if end < PART:
            return


def _weights_by_id(path: str, file, crc: int, n_columns: int, bias: float):
    text = file.read()
    end = text.rfind(b"\n" + TRAILER)
    if end < 0:
        raise DataError(f"{path}: cut short, its last line is missing", "train again, or fetch the whole file")
    info = _trailer(path, text[end + 1 :], zlib.crc32(memoryview(text)[: end + 1], crc))
    lines = text[:end].split(b"\n")
    bias_line = lines.pop() if bias >= 0 else None
    try:
        ids = np.array([int(line.split(b":", 1)[0]) for line in lines], np.int64)
        weights = np.array([line.split(b":", 1)[1].split() for line in lines], np.float64)
        return ids, weights.reshape(-1, n_columns), bias_line and np.array(bias_line.split(), np.float64), info
    except (ValueError, IndexError):
        raise DataError(f"{path}: damaged weights") from None
