"""LIBSVM text into rows: pieces of whole lines are scanned on several threads."""

from __future__ import annotations

import re
from array import array
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from llsvm import _text
from llsvm.arrays import VALUE_KINDS, empty, type_name, zeros
from llsvm.core import LINE_SHAPE, Block, DataError, label_fault
from llsvm.lines import Lines, LongestLine
from llsvm.pool import Pool
from llsvm.sources import Source

PIECE = 1 << 20
MOST_THREADS = 16  # beyond which one thread could not use what they scan
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


class _Arrays:
    """What a piece is scanned into, made by whoever needs it first."""

    def __init__(self):
        self.ids = empty(0, "q")
        self.tokens, self.slots = empty(4 * LABEL_LIMIT, "q"), zeros(1 << 17, "i")

    def reserve(self, size: int, type: str) -> None:
        """Room for the rows of so many bytes of text."""
        if size // 2 < len(self.ids):
            return
        self.ids = empty(size // 2 + 1, "q")  # a nonzero takes 4 bytes of text; as much again for sorting
        self.values = empty(size // 2 + 1, VALUE_KINDS[type])
        self.ends = empty(size // 2 + 2, "q")
        self.codes = empty(size // 2 + 1, "H")
        self.features, self.unknown = empty(size // 4 + 1, "i"), empty(size // 4 + 1, "i")


class Piece:
    """A run of whole lines and, after scan(), its rows; both are valid until a later piece takes their memory over."""

    def __init__(self, size: int, zero_based: bool, dtype):
        self.lines, self.zero_based, self.type = Lines(size), zero_based, type_name(dtype)
        self._arrays = _Arrays()

    def scan(self) -> Piece:
        arrays, lines = self._arrays, self.lines
        arrays.reserve(len(lines.text), self.type)
        self.fault, self._where, self.n_rows, self.n_lines, n_labels, self.largest_id = _text.scan(
            memoryview(lines.text)[lines.begin : lines.end], self.zero_based, arrays.ids, arrays.values, arrays.ends,
            arrays.codes, arrays.tokens.cast("B").cast("q", (LABEL_LIMIT, 4)), arrays.slots,
        )
        self._where += lines.begin
        self.indptr = arrays.ends[: self.n_rows + 1]
        nonzeros = int(self.indptr[-1])
        self.ids, self.values, self.codes = arrays.ids[:nonzeros], arrays.values[:nonzeros], arrays.codes[: self.n_rows]
        self.features, self.unknown = arrays.features[:nonzeros], arrays.unknown
        starts, lengths, self.label_counts = (arrays.tokens[k : 4 * n_labels : 4].tolist() for k in range(3))
        self._starts = [lines.begin + start for start in starts]
        self.labels = [bytes(lines.text[start : start + length])
                       for start, length in zip(self._starts, lengths, strict=True)]
        self._check_labels()
        return self

    def _check_labels(self) -> None:
        if PLAIN_LABELS.fullmatch(b"\n".join([*self.labels, b""])):
            return
        for start, token in zip(self._starts, self.labels, strict=True):
            if fault := _label_fault(token):
                self.fault, self._label_fault, self._where = BAD_LABEL, fault, start
                return

    def error(self) -> DataError:
        """What is wrong with this piece, which was read and is as scan_pieces leaves it."""
        expected, hint = self._label_fault if self.fault == BAD_LABEL else FAULTS[self.fault]
        where = self.lines.second_occurrence(self._where) if self.fault == REPEATED_ID else self._where
        token = self.lines.token(where)
        if self.fault == VALUE_TOO_LARGE:
            hint = hint if self.type == "float32" and abs(float(token)) < float("inf") else ""
        if self.fault == ZERO_BYTE:
            token = b"\0"
        return self._refusal(where, token, expected, hint)

    def label_error(self, number: int, fault: int) -> DataError:
        """For a label, by its number in this piece, that is wrong for a reason that the piece does not know."""
        return self._refusal(self._starts[number], self.labels[number], *FAULTS[fault])

    def _refusal(self, where: int, token: bytes, expected: str, hint: str) -> DataError:
        return self.lines.refusal(where, token, expected.format(type=self.type, limit=LABEL_LIMIT), hint)


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
                n_lines, front, to_come = 0, b"", _pieces(source, free, step, longest_line)
                while True:
                    piece, read = next(to_come, (None, None))
                    if piece:
                        waiting.append(pool.submit(work, piece, read))
                    while waiting and (piece is None or not free):
                        done = waiting.popleft().result()
                        front = front or done.lines.front_of_file()
                        done.lines.stand(source.name, n_lines, front)
                        if done.fault:
                            source.check_unchanged()
                            raise done.error()
                        n_lines += done.n_lines
                        done.lines.account(source)
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
        rest, first = b"", True
        while rest is not None:
            piece = free.pop()
            rest, first = piece.lines.fill(source, rest, first, longest_line), False
            yield piece, None
        return
    for start in range(0, source.size, step):
        piece = free.pop()
        yield piece, partial(piece.lines.read, source.raw, start, min(step, source.size - start), longest_line)


def scan_rows(sources, threads: int = 1, **options):
    """As scan_pieces; refuses text without rows, and a file that is something else, as no row of it has a feature."""
    n_rows, file = 0, _File()
    for piece in scan_pieces(sources, threads, **options):
        if piece.lines.n_before == 0:
            file.check()
            file = _File(piece.lines.source, piece.lines.front)
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
            self.check(piece.lines.source, piece.lines.front)
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
        front = piece.lines.front
    labels.check(", ".join(source.name for source in sources), front)
