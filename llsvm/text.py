"""LIBSVM text into rows: opens any compression, cuts it at newlines, scans the pieces on several threads."""

from __future__ import annotations

import codecs
import re
from array import array
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from llsvm import _text
from llsvm.arrays import VALUE_KINDS, empty, type_name, zeros
from llsvm.core import LINE_SHAPE, Block, DataError, label_fault, quoted
from llsvm.memory import enough
from llsvm.pool import Pool
from llsvm.sources import Raw, Source

PIECE = 1 << 20
MOST_THREADS = 16  # beyond which one thread could not use what they scan
LINE_STEP = 1 << 14  # bytes read at a time to complete the last line of a piece
NEWLINE = 10
SLACK = 80  # bytes of a piece's buffer that stay free: a last newline, and room for the scanner to look ahead
LABEL_LIMIT = 65535
FEW_LABELS = 100  # up to so many may have a row each
# Rows of up to LABEL_LIMIT classes, shuffled, are at least SHUFFLED times as many as the labels met, once those are
# MANY_LABELS.
MANY_LABELS, SHUFFLED = 10_000, 1.05
SURE = 1000  # rows without features, most with a label of their own: more need not be read

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
INTEGER = re.compile(r"[+-]?\d+", re.ASCII)

# All labels of a piece, a newline behind each, are looked at together; those that do not fit one by one.
PLAIN_LABELS = re.compile(rb"(?:(?![+-]*(?:nan|inf(?:inity)?)\n)[!-+\--:<-~]{1,256}\n)*", re.IGNORECASE)
NUMBERS = re.compile(rb"[+-]?[\d.]+([,;][+-]?[\d.]+)+")

NO_LABEL, VALUE_TOO_LARGE, REPEATED_ID, TOO_MANY_LABELS, ZERO_BYTE, SEVERAL_LABELS, BAD_LABEL = 1, 7, 8, 9, 10, 11, 12
FAULTS = {
    NO_LABEL: ("a label at the start of the line", f"{LINE_SHAPE}; where labels are unknown, sed 's/^/0 /' adds some"),
    2: ("a feature id (digits) and a colon", LINE_SHAPE),
    3: ("a feature id of at most 2^63-1", ""),
    4: ("feature ids from 1 up", "if ids in this file start at 0, say --zero-based"),
    5: ("a colon and a value behind the feature id", LINE_SHAPE),
    6: ("a finite decimal number", ""),
    VALUE_TOO_LARGE: ("a number within the range of {type}", "--precision float64 holds up to 1.8e308"),
    REPEATED_ID: ("each feature id once in a row", "the ids of a row may stand in any order, but not twice"),
    TOO_MANY_LABELS: ("at most {limit} different labels", "llsvm trains classifiers, and these look like other things"),
    ZERO_BYTE: ("text without zero bytes", "a copy that was cut off may end in zeros"),
    SEVERAL_LABELS: ("one label", "a row has one label; a class that is a set of labels may be called 1+2"),
}  # fmt: skip
LABEL_HINTS = {
    "UTF-8": "iconv -f LATIN1 -t UTF-8 makes it of Latin-1",
    "inf": "leave rows without a label out, or, to predict them, write 0",
}


class Piece:
    """A run of whole lines and, after scan(), its rows; the arrays, made by whoever needs them first, are reused by a
    later piece."""

    def __init__(self, size: int, zero_based: bool, dtype):
        self._least, self.zero_based, self.type = size, zero_based, type_name(dtype)
        self.text, self._ids = bytearray(), empty(0, "q")
        self._tokens, self._slots = empty(4 * LABEL_LIMIT, "q"), zeros(1 << 17, "i")
        self.source, self.line_before, self.front = "", 0, b""

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

    def read(self, raw: Raw, start: int, size: int, longest_line: LongestLine) -> None:
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
            if end > longest_line.n_bytes + size:
                raise longest_line.refusal(raw.name)
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
        self._starts, lengths, self.label_counts = (self._tokens[k : 4 * n_labels : 4].tolist() for k in range(3))
        self.labels = [bytes(self.text[self.begin + start : self.begin + start + length])
                       for start, length in zip(self._starts, lengths, strict=True)]
        self._check_labels()
        return self

    def _check_labels(self) -> None:
        if PLAIN_LABELS.fullmatch(b"\n".join([*self.labels, b""])):
            return
        for start, token in zip(self._starts, self.labels, strict=True):
            if fault := _label_fault(token):
                self.fault, self._label_fault, self._where = BAD_LABEL, fault, self.begin + start
                return

    def error(self) -> DataError:
        """What is wrong with this piece, which was read and is as scan_pieces leaves it."""
        expected, hint = self._label_fault if self.fault == BAD_LABEL else FAULTS[self.fault]
        line_start = self.text.rfind(b"\n", 0, self._where) + 1
        line_end = self.text.find(b"\n", self._where)
        where = self._second_occurrence(line_start, line_end) if self.fault == REPEATED_ID else self._where
        token = re.match(rb"[^ \t\r\n#]*", self.text[where : min(line_end, where + 300)])[0]
        if self.fault == VALUE_TOO_LARGE:
            hint = hint if self.type == "float32" and abs(float(token)) < float("inf") else ""
        if self.fault == ZERO_BYTE:
            token = b"\0"
        return self._refusal(where, token, expected, hint)

    def label_error(self, number: int, fault: int) -> DataError:
        """For a label, by its number in this piece, that is wrong for a reason that the piece does not know."""
        return self._refusal(self.begin + self._starts[number], self.labels[number], *FAULTS[fault])

    def _refusal(self, where: int, token: bytes, expected: str, hint: str) -> DataError:
        from llsvm import foreign

        line = self.line_before + self.text.count(b"\n", self.begin, where) + 1
        column = where - self.text.rfind(b"\n", 0, where)
        at_end = self.text[where : where + 1] in (b"\r", b"\n", b"#")
        read = f"'{quoted(token)}'" if token else "the end of the line" if at_end else "nothing"
        like, better_hint = foreign.seems(self.front, self.source)
        expected = expected.format(type=self.type, limit=LABEL_LIMIT)
        message = f"{self.source}:{line}:{column}: read {read}, expected {expected}{like}"
        return DataError(message, better_hint or hint)

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
    longest_line = LongestLine(memory // (8 * len(free)), len(free))  # all pieces may have one
    waiting = deque()

    def work(piece: Piece, read) -> Piece:
        if read:
            read()
        piece.scan()
        piece.result = then(piece) if then and not piece.fault else None
        return piece

    with nullcontext(pool) if pool else Pool(threads) as pool:
        try:
            for source in sources:
                source.open()
                lines, front, to_come = 0, b"", _pieces(source, free, step, longest_line)
                while True:
                    piece, read = next(to_come, (None, None))
                    if piece:
                        waiting.append(pool.submit(work, piece, read))
                    while waiting and (piece is None or not free):
                        done = waiting.popleft().result()
                        front = front or bytes(memoryview(done.text)[done.begin : done.size][: 1 << 12])
                        done.source, done.line_before, done.front = source.name, lines, front
                        if done.fault:
                            source.check_unchanged()
                            raise done.error()
                        lines += done.n_lines
                        if done.own[1]:
                            with memoryview(done.text) as text, text[slice(*done.own)] as own:
                                source.raw.account(own)
                        yield done
                        free.append(done)
                    if piece is None:
                        break
                source.check_unchanged(at_end=True)
                source.close()
        finally:
            for task in waiting:
                task.cancel()


def _pieces(source: Source, free: list, step: int, longest_line: LongestLine):
    """Yields (piece, how to fill it on another thread), the latter None where it is filled already."""
    if not source.random_access:
        yield from ((piece, None) for piece in _cut(source, free, longest_line))
        return
    for start in range(0, source.size, step):
        piece = free.pop()
        yield piece, partial(piece.read, source.raw, start, min(step, source.size - start), longest_line)


class LongestLine(NamedTuple):
    """How long a line may be where so many pieces have to have room."""

    n_bytes: int
    n_pieces: int

    def refusal(self, name: str) -> DataError:
        fewer = ", or --threads 1" if self.n_pieces > 3 else ""
        return DataError(f"{name}: a line is longer than {self.n_bytes} bytes",
                         f"at least --memory {enough(16 * self.n_pieces * self.n_bytes)} is needed{fewer}")


def _cut(source: Source, free: list, longest_line: LongestLine):
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
            size += count
            ended = count == 0
            if first and size >= len(codecs.BOM_UTF8):  # which may come in several reads
                first = False
                if piece.text.startswith(codecs.BOM_UTF8):
                    piece.text[:3] = b"   "
            if ended or size == len(piece.text) - SLACK:
                cut = piece.text.rfind(b"\n", 0, size) + 1
                if ended or cut:
                    break
                if size > longest_line.n_bytes:
                    raise longest_line.refusal(source.name)
                piece.text.extend(bytes(len(piece.text)))
        if ended and size > cut:
            piece.text[size : size + 1] = b"\n"
            cut = size = size + 1
        rest = bytes(memoryview(piece.text)[cut:size])
        piece.begin, piece.size, piece.own = 0, cut, (0, 0)
        yield piece


def scan_rows(sources, threads: int = 1, **options):
    """As scan_pieces; refuses text without rows, and a file that is something else, as no row of it has a feature."""
    n_rows, file = 0, _File()
    for piece in scan_pieces(sources, threads, **options):
        if piece.line_before == 0:
            file.check()
            file = _File(piece.source, piece.front)
        file.add(piece)
        n_rows += piece.n_rows
        yield piece
    file.check()
    if n_rows == 0:
        raise DataError(f"{', '.join(source.name for source in sources)}: no rows")


@dataclass
class _File:
    """What has been read of a file."""

    name: str = ""
    front: bytes = b""
    rows: int = 0
    nonzeros: int = 0
    label: bytes = b""  # one of them

    def add(self, piece: Piece) -> None:
        self.rows, self.nonzeros = self.rows + piece.n_rows, self.nonzeros + len(piece.ids)
        self.label = piece.labels[0] if piece.labels else self.label
        if not self.nonzeros and SURE <= piece.n_rows < 2 * len(piece.labels):
            self.check()  # no need to read on

    def check(self) -> None:
        """Refuses a file without features, unless it is a single row whose label is a number."""
        if self.nonzeros or not self.rows or (self.rows == 1 and NUMBER.fullmatch(self.label.decode())):
            return
        from llsvm import foreign

        raise foreign.without_features(self.name, self.front)


def _label_fault(token: bytes) -> tuple[str, str] | None:
    """What should stand in the place of a label, and a hint; None where it may be one."""
    name = token.decode("utf-8", "surrogateescape")
    if "\0" in name:
        return FAULTS[ZERO_BYTE]
    if fault := label_fault(name):
        return fault, LABEL_HINTS.get(fault.split()[-1], LINE_SHAPE)
    return FAULTS[SEVERAL_LABELS] if NUMBERS.fullmatch(token) else None


class Labels:
    """The label table: names in order of first occurrence, with counts. many: hardly two rows of each are no reason to
    refuse them."""

    def __init__(self, many: bool = False):
        self._names: dict[str, int] = {}
        self._codes: dict[bytes, int] = {}
        self.counts: list[int] = []
        self._many, self.n_rows = many, 0

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def encode(self, piece: Piece) -> memoryview:
        """The codes of this piece's rows in the whole table (uint16), counted."""
        for number, token in enumerate(piece.labels):
            if token not in self._codes:
                self._add(token, piece, number)
        codes = [self._codes[token] for token in piece.labels]
        self.counts += [0] * (len(self._names) - len(self.counts))
        for code, count in zip(codes, piece.label_counts, strict=True):
            self.counts[code] += count
        self.n_rows += piece.n_rows
        if len(self._names) >= MANY_LABELS and self.n_rows < SHUFFLED * len(self._names):
            self.check(piece.source, piece.front)
        if codes == list(range(len(codes))):
            return piece.codes
        translated = empty(len(piece.codes), "H")
        _text.translate(piece.codes, array("H", codes), translated)
        return translated

    def _add(self, token: bytes, piece: Piece, number: int) -> None:
        name = canonical_label(token)
        if name not in self._names and len(self._names) == LABEL_LIMIT:
            raise piece.label_error(number, TOO_MANY_LABELS)
        self._codes[token] = self._names.setdefault(name, len(self._names))

    def check(self, name: str, front: bytes = b"") -> None:
        """Refuses labels that are more likely to be something else, as nearly every row has its own."""
        if not self._many and too_many_labels(self.n_rows, len(self._names)):
            from llsvm import foreign

            raise foreign.too_many_labels(name, self.n_rows, self.names, front)


def too_many_labels(n_rows: int, n_labels: int) -> bool:
    """Whether data have so many labels that they are hardly classes: fewer than two rows for each."""
    return n_labels > FEW_LABELS and n_rows < 2 * n_labels


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
    """Yields numbered Blocks in the order of the text, valid until the next is asked for; refuses what scan_rows and
    labels.check do."""
    for piece in scan_rows(sources, threads, then=features.look_up, **options):
        yield Block(labels.encode(piece), piece.indptr, features.number(piece), piece.values)
        front = piece.front
    labels.check(", ".join(source.name for source in sources), front)
