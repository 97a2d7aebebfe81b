"""LIBSVM text into rows: opens any compression, cuts it at newlines, scans the pieces on several threads."""

from __future__ import annotations

import codecs
import re
from array import array
from collections import deque
from contextlib import nullcontext
from functools import partial

from llsvm import _text
from llsvm.arrays import VALUE_KINDS, empty, type_name, zeros
from llsvm.core import Block, DataError
from llsvm.pool import Pool
from llsvm.sources import Raw, Source

PIECE = 1 << 20
MOST_THREADS = 16  # beyond which one thread could not use what they scan
LINE_STEP = 1 << 14  # bytes read at a time to complete the last line of a piece
NEWLINE = 10
SLACK = 80  # bytes of a piece's buffer that stay free: a last newline, and room for the scanner to look ahead
LABEL_LIMIT = 65535

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INTEGER = re.compile(r"[+-]?\d+", re.ASCII)

VALUE_TOO_LARGE, REPEATED_ID = 7, 8
FAULTS = {
    1: ("a label at the start of the line", "every line is: label id:value id:value ..."),
    2: ("a feature id (digits) and a colon", "every line is: label id:value id:value ..."),
    3: ("a feature id of at most 2^63-1", ""),
    4: ("feature ids from 1 up", "if ids in this file start at 0, say --zero-based"),
    5: ("a colon and a value behind the feature id", "every line is: label id:value id:value ..."),
    6: ("a finite decimal number", ""),
    VALUE_TOO_LARGE: ("a number within the range of {type}", "--precision float64 holds up to 1.8e308"),
    REPEATED_ID: ("each feature id once in a row", "the ids of a row may stand in any order, but not twice"),
    9: (f"at most {LABEL_LIMIT} different labels", "this looks like a regression file; llsvm trains classifiers"),
}


class Piece:
    """A run of whole lines and, after scan(), its rows; the arrays, made by whoever needs them first, are reused by a
    later piece."""

    def __init__(self, size: int, zero_based: bool, dtype):
        self._least, self.zero_based, self.type = size, zero_based, type_name(dtype)
        self.text, self._ids = bytearray(), empty(0, "q")
        self._tokens, self._slots = empty(4 * LABEL_LIMIT, "q"), zeros(1 << 17, "i")

    def _allocate(self) -> None:
        size = len(self.text)
        self._ids = empty(size // 2 + 1, "q")  # a nonzero takes 4 bytes of text; as much again for sorting
        self._values = empty(size // 2 + 1, VALUE_KINDS[self.type])
        self._ends = empty(size // 2 + 2, "q")
        self._codes = empty(size // 2 + 1, "H")
        self._features, self._unknown = empty(size // 4 + 1, "i"), empty(size // 4 + 1, "i")

    def reserve(self, size: int) -> None:
        """Room for so many bytes of text."""
        size = max(size + SLACK, self._least)
        if not self.text:
            self.text = bytearray(size)
        elif len(self.text) < size:
            self.text.extend(bytes(size - len(self.text)))

    def read(self, raw: Raw, start: int, size: int, longest_line: int) -> None:
        """The lines that begin in bytes [start, start + size) of a file, whole."""
        before = 1 if start else 0  # the byte before tells whether a line begins at start
        self.reserve(size + before + LINE_STEP)
        end = raw.read_at(memoryview(self.text)[: size + before], start - before)
        self.own = before, end
        self.begin = self.text.find(b"\n", 0, end) + 1 if before else 0
        if before and self.begin in (0, end):
            self.begin = self.size = 0
            return
        while self.text[end - 1] != NEWLINE:
            self.reserve(end + LINE_STEP)
            more = raw.read_at(memoryview(self.text)[end : end + LINE_STEP], start - before + end)
            newline = self.text.find(b"\n", end, end + more)
            end = newline + 1 if newline >= 0 else end + more
            if more == 0:
                self.text[end] = NEWLINE
                end += 1
            if end > longest_line + size:
                raise line_too_long(raw.name, longest_line)
        self.size = end

    def scan(self) -> Piece:
        if len(self.text) // 2 >= len(self._ids):
            self._allocate()
        self.fault, self._where, self.n_rows, self.n_lines, n_labels, self.largest_id = _text.scan(
            memoryview(self.text)[self.begin : self.size], self.zero_based, self._ids, self._values, self._ends,
            self._codes, self._tokens.cast("B").cast("q", (LABEL_LIMIT, 4)), self._slots,
        )
        self._where += self.begin
        self.indptr = self._ends[: self.n_rows + 1]
        nonzeros = int(self.indptr[-1])
        self.ids, self.values, self.codes = self._ids[:nonzeros], self._values[:nonzeros], self._codes[: self.n_rows]
        self.features, self.unknown = self._features[:nonzeros], self._unknown
        starts, lengths, self.label_counts = (self._tokens[k : 4 * n_labels : 4].tolist() for k in range(3))
        self.labels = [bytes(self.text[self.begin + start : self.begin + start + length])
                       for start, length in zip(starts, lengths, strict=True)]
        return self

    def error(self, source: str, line: int) -> DataError:
        expected, hint = FAULTS[self.fault]
        if self.fault == VALUE_TOO_LARGE:
            expected = expected.format(type=self.type)
            hint = hint if self.type == "float32" else ""
        line_start = self.text.rfind(b"\n", 0, self._where) + 1
        line_end = self.text.find(b"\n", self._where)
        where = self._second_occurrence(line_start, line_end) if self.fault == REPEATED_ID else self._where
        token = re.match(rb"[^ \t\r\n#]*", self.text[where : min(line_end, where + 60)])[0]
        at_end = self.text[where : where + 1] in (b"\r", b"\n", b"#")
        read = token.decode("utf-8", "backslashreplace") or ("the end of the line" if at_end else "nothing")
        return DataError(f"{source}:{line}:{where - line_start + 1}: read '{read}', expected {expected}", hint)

    def _second_occurrence(self, line_start: int, line_end: int) -> int:
        seen = set()
        for match in re.finditer(rb"[ \t\r](\d+):", self.text[line_start:line_end]):
            if int(match[1]) in seen:
                return line_start + match.start(1)
            seen.add(int(match[1]))
        return line_start


def scan_threads(memory: int, threads: int) -> int:
    """How many of these threads scan under this budget."""
    return max(1, min(threads, MOST_THREADS, memory >> 23))


def piece_size(memory: int, threads: int) -> int:
    """Bytes of text scanned at a time under this budget: a piece takes about six times its text."""
    return max(1 << 16, min(PIECE, memory // (32 * (threads + 2))))


def scan_bytes(memory: int, threads: int) -> int:
    """Memory of all pieces while scanning under this budget."""
    threads = scan_threads(memory, threads)
    return 6 * (threads + 2) * piece_size(memory, threads)


def scan_pieces(
    sources, threads: int = 1, *, zero_based: bool = False, dtype="float32", memory: int = 1 << 30, then=None,
    pool=None,
):
    """Yields scanned Pieces in the order of the text; each is valid until the next is asked for.

    `then(piece)` is called on the thread that scanned the piece, its result kept as piece.result. The threads are
    those of `pool`, if there is one.
    """
    threads = scan_threads(memory, threads)
    step = piece_size(memory, threads)
    free = [Piece(step, zero_based, dtype) for _ in range(threads + 2)]
    longest_line = memory // (8 * len(free))  # all pieces may have one
    waiting = deque()

    def work(piece: Piece, read) -> Piece:
        if read:
            read()
        piece.scan()
        piece.result = then(piece) if then and not piece.fault else None
        return piece

    with nullcontext(pool) if pool else Pool(threads, "scan") as pool:
        try:
            for source in sources:
                source.open()
                lines, to_come = 0, _pieces(source, free, step, longest_line)
                while True:
                    piece, read = next(to_come, (None, None))
                    if piece:
                        waiting.append(pool.submit(work, piece, read))
                    while waiting and (piece is None or not free):
                        done = waiting.popleft().result()
                        if done.fault:
                            raise done.error(source.name, lines + done.n_lines + 1)
                        lines += done.n_lines
                        if done.own[1]:
                            with memoryview(done.text) as text, text[slice(*done.own)] as own:
                                source.raw.account(own)
                        yield done
                        free.append(done)
                    if piece is None:
                        break
                source.close()
        finally:
            for task in waiting:
                task.cancel()


def _pieces(source: Source, free: list, step: int, longest_line: int):
    """Yields (piece, how to fill it on another thread), the latter None where it is filled already."""
    if not source.random_access:
        yield from ((piece, None) for piece in _cut(source, free, longest_line))
        return
    for start in range(0, source.size, step):
        piece = free.pop()
        yield piece, partial(piece.read, source.raw, start, min(step, source.size - start), longest_line)


def line_too_long(name: str, longest_line: int) -> DataError:
    return DataError(f"{name}: a line is longer than {longest_line} bytes", "raise --memory, or lower --threads")


def _cut(source: Source, free: list, longest_line: int):
    """Fills free pieces with whole lines of the source; the last line gets the newline it may lack."""
    rest = b""
    ended, first = False, True
    while not ended:
        piece = free.pop()
        size = len(rest)
        piece.reserve(2 * size)
        piece.text[:size] = rest
        while True:
            with memoryview(piece.text) as view, view[size : len(piece.text) - SLACK] as room:
                count = source.readinto(room)
            if first and piece.text.startswith(codecs.BOM_UTF8):
                piece.text[:3] = b"   "
            size += count
            ended, first = count == 0, False
            if ended or size == len(piece.text) - SLACK:
                cut = piece.text.rfind(b"\n", 0, size) + 1
                if ended or cut:
                    break
                if size > longest_line:
                    raise line_too_long(source.name, longest_line)
                piece.text.extend(bytes(len(piece.text)))
        if ended and size > cut:
            piece.text[size : size + 1] = b"\n"
            cut = size = size + 1
        rest = bytes(memoryview(piece.text)[cut:size])
        piece.begin, piece.size, piece.own = 0, cut, (0, 0)
        yield piece


class Labels:
    """The label table: names in order of first occurrence, with counts."""

    def __init__(self):
        self._names: dict[str, int] = {}
        self._codes: dict[bytes, int] = {}
        self.counts: list[int] = []

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def encode(self, piece: Piece) -> memoryview:
        """The codes of this piece's rows in the whole table (uint16), counted."""
        codes = [self._code(token) for token in piece.labels]
        self.counts += [0] * (len(self._names) - len(self.counts))
        for code, count in zip(codes, piece.label_counts, strict=True):
            self.counts[code] += count
        if codes == list(range(len(codes))):
            return piece.codes
        translated = empty(len(piece.codes), "H")
        _text.translate(piece.codes, array("H", codes), translated)
        return translated

    def _code(self, token: bytes) -> int:
        if token not in self._codes:
            name = canonical_label(token)
            if name not in self._names and len(self._names) == LABEL_LIMIT:
                raise DataError(f"more than {LABEL_LIMIT} different labels", FAULTS[9][1])
            self._codes[token] = self._names.setdefault(name, len(self._names))
        return self._codes[token]


def canonical_label(token: bytes) -> str:
    """One name for one label: '+1', '1' and '1.0' are the same, and what is no number stays as it is."""
    name = token.decode("utf-8", "surrogateescape")
    if INTEGER.fullmatch(name) and len(name) <= 300:
        return str(int(name))
    if NUMBER.fullmatch(name) and abs(float(name)) < 1e300:
        number = float(name)
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    return name


def scan_blocks(sources, labels: Labels, features, threads: int = 1, **options):
    """Yields numbered Blocks in the order of the text, valid until the next is asked for."""
    for piece in scan_pieces(sources, threads, then=features.look_up, **options):
        yield Block(labels.encode(piece), piece.indptr, features.number(piece), piece.values)
