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

Where the header cannot say all that predicting needs (labels that are words, ids from 0), `nr_class` has a 0 before it:
LIBLINEAR reads the same number, and we do not take what was cut behind the weights for a model of LIBLINEAR's.

A set whose largest feature id is beyond 100 million gets `id:weight` lines for the ids in use instead (LIBLINEAR could
not hold such a model).
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import zlib
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from llsvm import _model
from llsvm.core import DataError, LlsvmError, quoted
from llsvm.files import Output
from llsvm.frames import MANIFEST
from llsvm.model_facts import (
    CUT,
    DAMAGED,
    FRONT,
    NEEDS_LAST_LINE,
    TRAILER,
    Header,
    check_front,
    check_info,
    numbers_of,
    read_header,
    read_trailer,
)
from llsvm.pool import in_order
from llsvm.sources import Source, open_sources

DENSE_LIMIT = 100_000_000
BATCH = 1 << 16
PART = 1 << 20  # bytes of text parsed at a time
SLACK = 16  # zero bytes behind them, which the parser may look at
MOST_THREADS = 4  # beyond which one thread could not read or write what they do
WEIGHTS_OF_ID = re.compile(rb"([0-9]{1,19}):([^:]*)")


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
    if (feature_ids[1:] == feature_ids[:-1]).any():
        raise DataError("two features have the same id", "the block set is damaged; make it again with llsvm-split")
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
    by_id, numbers = model.n_ids > DENSE_LIMIT, numbers_of(model.labels)
    mark = NEEDS_LAST_LINE if model.zero_based or numbers != model.labels else ""
    yield (
        f"solver_type {model.solver_type}\nnr_class {mark}{len(model.labels)}\nlabel {' '.join(numbers)}\n"
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


def load(path: str, threads: int = 1, formats: dict | None = None):
    """A model of ours or of LIBLINEAR's, which may be compressed; - is standard input. What is incomplete, altered, or
    not what a model can be is refused. formats: by what a file begins with, who reads it (name, file)."""
    if os.path.isdir(path):
        kind = "block set" if os.path.exists(os.path.join(path, MANIFEST)) else "directory"
        raise LlsvmError(f"{path}: a {kind}, not a model file")
    [source] = open_sources([path], hashed=False)
    source.open()
    try:
        with open(path, "rb") if source.random_access else _held(source, formats or {}) as file:
            for begin, read in (formats or {}).items():
                if file.read(len(begin)) == begin:
                    file.seek(0)
                    return read(source.name, file)
                file.seek(0)
            return _load(source.name, file, threads)
    except OSError as error:
        raise LlsvmError(f"{source.name}: {error.strerror}") from None
    finally:
        source.close()


def _held(source: Source, formats) -> io.BytesIO:
    """A pipe, or what is compressed, in memory: what follows needs to know how much there is."""
    text, room, is_known = io.BytesIO(), bytearray(PART), False
    while count := source.readinto(memoryview(room)):
        text.write(memoryview(room)[:count])
        if not is_known and text.tell() >= FRONT:
            is_known = text.getvalue().startswith(tuple(formats)) or check_front(source.name, text.getvalue())
    text.seek(0)
    return text


def _load(path: str, file, threads: int) -> Model:
    header = read_header(path, file)
    if header.by_id:
        ids, weights, bias_weights, info = _weights_by_id(path, file, header)
    else:
        ids, (weights, info) = None, _weights(path, file, header, threads)
        weights, bias_weights = (weights[:-1], weights[-1]) if header.bias >= 0 else (weights, None)
    try:
        labels, zero_based = check_info(info, header.labels)
    except ValueError as error:
        raise DataError(f"{path}: damaged in its last line ({error})", DAMAGED) from None
    return Model(header.solver_type, labels, weights, header.n_ids, header.bias, bias_weights, ids, zero_based, info)


def _weights(path: str, file, header: Header, threads: int) -> tuple[np.ndarray, dict]:
    """The weights, and what our line behind them says: {} in a model of LIBLINEAR's."""
    shape = header.n_ids + (header.bias >= 0), header.n_columns
    start, size = file.tell(), shape[0] * shape[1]
    if 2 * size > file.seek(0, os.SEEK_END) - start:
        raise DataError(f"{path}: cut short, {size} weights expected")
    file.seek(start)
    weights = np.empty(shape)
    text = _WeightText(file, header.crc, weights.reshape(-1))
    found = text.parse(min(threads, MOST_THREADS))
    if found < size:
        raise _bad_weight(path, file, header.n_lines, start, text.n_bytes, f"{size} weights expected, {found} found")
    line = text.rest.lstrip(b" \t\r\n")
    if not line and not header.needs_last_line:
        return weights, {}
    if not line:
        raise DataError(f"{path}: cut short, its last line is missing", CUT)
    if not line.startswith(TRAILER):
        raise DataError(f"{path}: cut short in its last line, or damaged", CUT)
    return weights, read_trailer(path, line, zlib.crc32(text.rest[: len(text.rest) - len(line)], text.crc))


def _bad_weight(path: str, file, n_lines: int, start: int, n_bytes: int, what: str) -> DataError:
    """What stands so many bytes behind the start of the weights instead of one; n_lines come before the start."""
    file.seek(start)
    while n_bytes > 0:
        part = file.read(min(PART, n_bytes))
        n_lines, n_bytes = n_lines + part.count(b"\n"), n_bytes - len(part)
    behind = file.read(100).lstrip()
    word = (behind.split(None, 1) or [b""])[0]
    if word == TRAILER.strip() or (word == behind and len(word) < 100):  # nothing follows the last word
        return DataError(f"{path}: cut short, {what}", CUT)
    return DataError(f"{path}:{n_lines + 1}: read '{quoted(word)}', expected a finite number ({what})", DAMAGED)


class _WeightText:
    """The text from the first weight on, read in parts, which several threads parse.

    crc goes on from what was before, up to the last weight; rest is the text behind that. n_bytes: those before the
    first word that is no weight.
    """

    def __init__(self, file, crc: int, weights: np.ndarray):
        self.crc, self.rest, self.n_bytes = crc, b"", 0
        self._file, self._weights, self._last = file, weights, b""

    def parse(self, threads: int) -> int:
        """Fills the weights; returns how many were found, up to the first that is none."""
        done, parts = 0, _parts(self._file, [bytearray(PART + SLACK) for _ in range(threads + 1)])
        for found, wanted, behind, size in in_order(_parse, self._before_last(parts), threads):
            done += found
            if found < wanted:
                self.n_bytes += behind
                return done
            self.n_bytes += size
        found, behind = _model.parse_weights(self._last, self._weights[done:])
        self.n_bytes += behind
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


def _parse(part) -> tuple[int, int, int, int]:
    """Numbers found and wanted, and bytes before the first that is none and in all."""
    text, weights = part
    found, behind = _model.parse_weights(text, weights)
    return found, len(weights), behind, len(text)


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


def _weights_by_id(path: str, file, header: Header):
    text = file.read()
    end = text.rfind(b"\n" + TRAILER)
    if end < 0:
        raise DataError(f"{path}: cut short, its last line is missing", CUT)
    info = read_trailer(path, text[end + 1 :], zlib.crc32(memoryview(text)[: end + 1], header.crc))
    lines, ids, last, n_columns = text[:end].split(b"\n"), [], 0, header.n_columns

    def damaged(number: int, expected: str) -> DataError:
        return DataError(f"{path}:{header.n_lines + number + 1}: read '{quoted(lines[number])}', expected {expected}",
                         DAMAGED)

    for number in range(len(lines) - (header.bias >= 0)):
        match = WEIGHTS_OF_ID.fullmatch(lines[number])
        if not match or not last < int(match[1]) <= header.n_ids:
            raise damaged(number, f"id:weight, the id above {last} and at most {header.n_ids}")
        last, lines[number] = int(match[1]), match[2]
        ids.append(last)
    for number, line in enumerate(lines):
        if len(line.split()) != n_columns:
            raise damaged(number, f"{n_columns} weights")
    weights = np.empty((len(lines), n_columns))
    found, _ = _model.parse_weights(b" ".join([*lines, bytes(SLACK)]), weights.reshape(-1))
    if found < weights.size:
        raise damaged(found // n_columns, "finite numbers")
    weights, bias_weights = (weights[:-1], weights[-1]) if header.bias >= 0 else (weights, None)
    return np.array(ids, np.int64), weights, bias_weights, info
