"""LIBSVM text read by plain Python, from README's words: what the scanner must agree with to the last bit.

    a line is `label id:value id:value ...`, separated by blanks, tabs or carriage returns; # begins a comment, of any
        bytes but 0
    a label is UTF-8 of at most 256 bytes that can be seen, without a colon; not nan or inf, nor several numbers
    an id is of digits, from 1 (zero_based: 0) to 2^63-1, and stands once in a row
    a value is a decimal number that is finite as float32 or float64: the nearest double, then the nearest float32
"""

from __future__ import annotations

import re
import struct
import unicodedata
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
LARGEST_ID = 2**63 - 1
LONGEST_LABEL = 256
NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NO_CLASS = re.compile(r"[+-]*(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
SEVERAL = re.compile(rb"[+-]?[0-9.]+([,;][+-]?[0-9.]+)+")
UNSEEN = {"Cc", "Zs", "Zl", "Zp"}  # categories of Unicode; of Cf, what has no width or turns the direction of writing
UNSEEN_MARKS = set("\u00ad\u061c\u180e\u200b\u200e\u200f\ufeff\ufff9\ufffa\ufffb") | {
    chr(code) for code in (*range(0x202A, 0x202F), *range(0x2060, 0x2070))
}
TOKEN = re.compile(rb"[^ \t\r]+")
FORMATS = {"float32": "<f", "float64": "<d"}


class Row(NamedTuple):
    """ids ascend, from 1; values: their bytes."""

    label: str
    ids: list[int]
    values: bytes


class Place(NamedTuple):
    """Of the first fault: line and column, from 1."""

    line: int
    column: int


class _Broken(Exception):
    """column: of the first byte of the fault."""

    def __init__(self, column: int):
        super().__init__(column)
        self.column = column


def read(data: bytes, zero_based: bool = False, dtype: str = "float32") -> tuple[list[Row], Place | None]:
    """The rows before the first fault, and where that is."""
    if data.startswith(BOM):
        data = b"   " + data[3:]
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            row = _read_line(line, zero_based, FORMATS[dtype])
        except _Broken as fault:
            return rows, Place(number, fault.column)
        if row:
            rows.append(row)
    return rows, None


def is_no_data(rows: list[Row]) -> bool:
    """Whether right lines are no data to train on: none, or none with a feature, but for a number on its own."""
    return not any(row.ids for row in rows) and not (len(rows) == 1 and NUMBER.fullmatch(rows[0].label.encode()))


def _read_line(line: bytes, zero_based: bool, form: str) -> Row | None:
    """A repeated id is looked for only where all else is right."""
    words, _, comment = line.partition(b"#")
    tokens = [(match.start() + 1, match[0]) for match in TOKEN.finditer(words)]
    if not tokens:
        _check_comment(len(words), comment)
        return None
    (column, token), *pairs = tokens
    label = _label(column, token)
    entries, seen = [], set()
    for column, pair in pairs:
        digits, colon, value = pair.partition(b":")
        if not digits.isdigit() or not colon:
            raise _Broken(column)
        number = int(digits) + zero_based
        if not 1 <= number <= LARGEST_ID:
            raise _Broken(column)
        entries.append((number, _value(column + len(digits) + 1, value, form), column))
    _check_comment(len(words), comment)
    for number, _, column in entries:
        if number in seen:
            raise _Broken(column)
        seen.add(number)
    entries.sort()
    return Row(label, [number for number, _, _ in entries], b"".join(value for _, value, _ in entries))


def _check_comment(begin: int, comment: bytes) -> None:
    if b"\0" in comment:
        raise _Broken(begin + 2 + comment.index(b"\0"))


def _value(column: int, token: bytes, form: str) -> bytes:
    if not NUMBER.fullmatch(token):
        raise _Broken(column)
    number = float(token)
    try:
        if abs(number) == float("inf"):
            raise OverflowError
        return struct.pack(form, number)
    except OverflowError:
        raise _Broken(column) from None


def _label(column: int, token: bytes) -> str:
    """'+1', '1' and '1.0' are one label."""
    if b":" in token or len(token) > LONGEST_LABEL or SEVERAL.fullmatch(token):
        raise _Broken(column)
    try:
        name = token.decode("utf-8")
    except UnicodeDecodeError:
        raise _Broken(column) from None
    unseen = any(unicodedata.category(letter) in UNSEEN or letter in UNSEEN_MARKS for letter in name)
    if unseen or NO_CLASS.fullmatch(name):
        raise _Broken(column)
    if re.fullmatch(rb"[+-]?[0-9]+", token):
        return str(int(name))
    if NUMBER.fullmatch(token) and abs(float(name)) < 1e300:
        number = float(name)
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    return name
