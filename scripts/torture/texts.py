"""LIBSVM text, right, wrong and mutated, through the scanner and through a plain parser."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from random import Random

from llsvm import text as scanner
from llsvm.core import DataError
from llsvm.features import FeatureMap
from llsvm.lines import SLACK
from llsvm.sources import open_sources
from torture import lines, reference
from torture.part import Finding, Part
from torture.reference import Place, Row

BATCH = 100
PIECES = [1, 5, 20, 40, 100, 300, 5000]


class Stream(io.BytesIO):
    """A source that can only be read from its beginning to its end, a few bytes at a time."""

    random_access, name = False, "data.txt"

    def __init__(self, data: bytes, most: int):
        super().__init__(data)
        self._most = most

    def open(self) -> None:
        pass

    def check_unchanged(self, at_end: bool = False) -> None:
        pass

    def readinto(self, room) -> int:
        return super().readinto(memoryview(room)[: self._most])


@contextmanager
def pieces_of(size: int):
    """Text is scanned in pieces of about so many bytes."""
    before = scanner.piece_size
    scanner.piece_size = lambda memory, threads: SLACK + size
    try:
        yield
    finally:
        scanner.piece_size = before


def as_predicting(source, threads: int, zero_based: bool, dtype: str) -> tuple[list[Row], str]:
    """Rows by ids, as llsvm-predict reads them, and the error that ended them."""
    found = []
    try:
        for piece in scanner.scan_pieces([source], threads, zero_based=zero_based, dtype=dtype):
            names = [scanner.canonical_label(token) for token in piece.labels]
            found += _rows(names, piece.codes, piece.indptr, piece.ids, piece.values)
    except DataError as error:
        return found, str(error)
    return found, ""


def as_training(source, threads: int, zero_based: bool, dtype: str) -> tuple[list[Row], str]:
    """Rows by feature numbers that lead back to ids, as splitting and training read them."""
    labels, features, blocks = scanner.Labels(), FeatureMap(), []
    try:
        for block in scanner.scan_blocks([source], labels, features, threads, zero_based=zero_based, dtype=dtype):
            blocks.append([part.tolist() for part in (block.codes, block.indptr, block.features)] +
                          [bytes(block.values.cast("B"))])  # fmt: skip
    except DataError as error:
        return [], str(error)
    ids, names, size = list(features.ids), labels.names, reference.struct.calcsize(reference.FORMATS[dtype])
    return [row for codes, ends, numbers, values in blocks
            for row in _rows(names, codes, ends, [ids[number] for number in numbers], values, size)], ""


def _rows(names, codes, ends, ids, values, size: int = 0) -> list[Row]:
    """size: of a value, where values are bytes."""
    ends, cut = list(ends), size or 1
    data = [values[cut * start : cut * end] for start, end in zip(ends, ends[1:], strict=False)]
    return [Row(names[code], list(ids[start:end]), bytes(part) if size else part.tobytes())
            for code, start, end, part in zip(codes, ends, ends[1:], data, strict=False)]


def disagreement(data: bytes, found: list[Row], error: str, rows: list[Row], place: Place | None) -> str:
    """What is wrong with what was found, or nothing. Rows before a fault may have been given, or not."""
    said = re.match(r"[^:]*:(\d+):(\d+): ", error)
    if place is None and error:
        return "right text is refused"
    if place is not None and not error:
        return "wrong text is accepted"
    if place is not None and (said is None or (int(said[1]), int(said[2])) != place):
        return "refused at another place"
    expected = rows if place is None else rows[: len(found)]
    if found == expected:
        return ""
    if [row[:2] for row in found] == [row[:2] for row in expected]:
        return "other values"
    return "other rows"


def compare(data: bytes, read, source, how: str, **options) -> None:
    rows, place = reference.read(data, options["zero_based"], options["dtype"])
    found, error = read(source, **options)
    if read is as_training and place is None and reference.is_no_data(rows):
        if not error:
            raise Finding("text without a feature is accepted", f"text: {data!r}")
        return
    if wrong := disagreement(data, found, error, rows, place):
        differing = [pair for pair in zip(found, rows, strict=False) if pair[0] != pair[1]][:1]
        raise Finding(wrong, f"{how}, {options}\ntext: {data!r}\nexpected: {len(rows)} rows, fault at {place}\n"
                             f"found: {len(found)} rows, {error or 'no fault'}\nfirst that differ: {differing}")


class Texts(Part):
    name = "text"
    promise = "Text gives the rows that a plain parser reads, bit by bit, or is refused at the same line and column."

    def prepare(self, random: Random) -> None:
        self._file = self.folder / "data.txt"

    def cases(self, random: Random):
        for _ in range(BATCH):
            data = self._text(random)
            size, most = random.choice(PIECES), random.choice([1, 7, 100, 1 << 16])
            options = {"threads": random.choice([1, 1, 2, 4]), "zero_based": random.random() < 0.3,
                       "dtype": random.choice(["float32", "float64"])}  # fmt: skip
            read = random.choice([as_predicting, as_training])
            how = f"{read.__name__}, pieces of {size}"
            with pieces_of(size):
                if random.random() < 0.5:
                    compare(data, read, Stream(data, most), f"{how}, {most} bytes at a time", **options)
                else:
                    self._file.write_bytes(data)
                    [source] = open_sources([str(self._file)])
                    compare(data, read, source, f"{how}, from a file", **options)
            yield

    def _text(self, random: Random) -> bytes:
        kind, n_lines = random.randrange(4), random.randrange(1, 14)
        if kind == 0:
            return lines.text(random, n_lines)
        if kind == 1:
            return lines.wrong_text(random, n_lines)
        return lines.mutated(random, lines.text(random, n_lines))
