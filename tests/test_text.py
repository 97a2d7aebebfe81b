"""LIBSVM text against a plain Python parser: rows, numbers, labels, places of faults, compressions."""

import io
import math
import re
import tempfile
import tracemalloc
import unicodedata
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
import pytest
import zstandard
from conftest import half_digest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import COMPRESS

from llsvm import text
from llsvm.core import DataError, LlsvmError
from llsvm.features import FeatureMap
from llsvm.lines import SLACK
from llsvm.sources import Digest, open_sources
from llsvm.text import Labels, scan_blocks, scan_pieces

BOM = b"\xef\xbb\xbf"
DTYPES = [np.float32, np.float64]
COMPRESSIONS = {**COMPRESS, "zstd": zstandard.ZstdCompressor(write_checksum=True).compress}
NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


# --- the plain parser


class Row(NamedTuple):
    """values: the bytes of an array, so that equal means equal to the last bit."""

    label: bytes
    ids: list[int]
    values: bytes


class Broken(Exception):
    """A fault: the column of its first byte, and some words that the message must contain."""

    def __init__(self, column: int, words: str):
        super().__init__(column, words)
        self.column, self.words = column, words


def plain_value(token: bytes, dtype) -> float:
    if not NUMBER.fullmatch(token):
        raise ValueError("a finite decimal number")
    with np.errstate(over="ignore"):
        value = dtype(float(token))
    if math.isinf(value):
        raise ValueError("a number within the range of")
    return value


def plain_id(token: bytes, zero_based: bool) -> int:
    """The 1-based id."""
    number = int(token) + zero_based
    if number >= 2**63:
        raise ValueError("a feature id of at most 2^63-1")
    if number == 0:
        raise ValueError("feature ids from 1 up")
    return number


def plain_label(token: bytes) -> None:
    if b"\0" in token:
        raise ValueError("zero bytes")
    name = token.decode("utf-8", "replace")
    if "\ufffd" in name:
        raise ValueError("a label in UTF-8")
    if len(token) > 256:
        raise ValueError("a label of 1 to 256 bytes")
    if {unicodedata.category(character)[0] for character in name} & {"C", "Z"}:
        raise ValueError("without blanks or control characters")
    if re.fullmatch(r"[+-]?(nan|inf|infinity)", name.lower()):
        raise ValueError("other than nan and inf")
    if re.fullmatch(r"[0-9.+-]+([,;][0-9.+-]+)+", name):
        raise ValueError("one label")


def plain_line(line: bytes, dtype, zero_based: bool) -> Row | None:
    """One line without its newline; None where it holds no row.

    The first fault in the line counts, but a repeated id is looked for only where all else is right.
    """
    row, _, comment = line.partition(b"#")
    zero = Broken(len(row) + 2 + comment.find(b"\0"), "zero bytes") if b"\0" in comment else None
    tokens = [(match.start() + 1, match[0]) for match in re.finditer(rb"[^ \t\r]+", row)]
    if not tokens:
        if zero:
            raise zero
        return None
    (column, label), *pairs = tokens
    if b":" in label:
        raise Broken(column, "a label at the start of the line")
    try:
        plain_label(label)
    except ValueError as error:
        raise Broken(column, str(error)) from None
    entries = []
    for column, pair in pairs:
        digits, colon, value = pair.partition(b":")
        if not re.fullmatch(rb"[0-9]+", digits):
            raise Broken(column, "a feature id (digits) and a colon")
        if not colon:
            raise Broken(column, "a colon and a value")
        try:
            number = plain_id(digits, zero_based)
            value_column = column + len(digits) + 1
            entries.append((number, column, plain_value_at(value_column, value, dtype)))
        except ValueError as error:
            raise Broken(column, str(error)) from None
    if zero:
        raise zero
    seen = set()
    for number, column, _ in entries:
        if number in seen:
            raise Broken(column, "each feature id once in a row")
        seen.add(number)
    entries.sort()
    return Row(label, [number for number, _, _ in entries], np.array([v for _, _, v in entries], dtype).tobytes())


def plain_value_at(column: int, token: bytes, dtype):
    try:
        return plain_value(token, dtype)
    except ValueError as error:
        raise Broken(column, str(error)) from None


def plain_file(data: bytes, dtype=np.float32, zero_based: bool = False):
    """(rows, fault): the rows before the first fault, and the fault as (line, column, words) or None."""
    if data.startswith(BOM):
        data = b"   " + data[3:]
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            row = plain_line(line, dtype, zero_based)
        except Broken as fault:
            return rows, (number, fault.column, fault.words)
        if row:
            rows.append(row)
    return rows, None


# --- the parser under test


def rows_of(piece) -> list[Row]:
    ends = piece.indptr.tolist()
    return [
        Row(piece.labels[code], piece.ids[start:end].tolist(), piece.values[start:end].tobytes())
        for code, start, end in zip(piece.codes.tolist(), ends, ends[1:], strict=False)
    ]


class InMemory(io.BytesIO):
    """A source that can only be read from its beginning to its end."""

    random_access = False

    def open(self):
        pass

    def check_unchanged(self, at_end=False):
        pass


def in_memory(data: bytes, name: str = "data.txt"):
    source = InMemory(data)
    source.name = name
    return source


def scanned(sources, threads=1, **options) -> list[Row]:
    return [row for piece in scan_pieces(sources, threads, **options) for row in rows_of(piece)]


def assert_agrees(data: bytes, dtype=np.float32, zero_based=False, threads=1, piece=None) -> None:
    """Both parsers say the same of this text, as a stream and as a file, read in pieces of about `piece` bytes."""
    assert_source_agrees(in_memory(data), data, dtype, zero_based, threads, piece)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        [source] = open_sources([file.name])
        source.name = "data.txt"
        if assert_source_agrees(source, data, dtype, zero_based, threads, piece):
            assert source.description()["xxh64"][8:] == half_digest(data)
            assert source.description()["size"] == len(data)
        source.raw.close()


def assert_source_agrees(source, data, dtype, zero_based, threads, piece) -> bool:
    """True where the text is right, and was read to its end."""
    expected, fault = plain_file(data, dtype, zero_based)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        if piece:
            patch.setattr(text, "piece_size", lambda memory, threads: SLACK + piece)
        pieces = scan_pieces([source], threads, zero_based=zero_based, dtype=dtype)
        try:
            for scan in pieces:
                found += rows_of(scan)
        except DataError as error:
            assert fault, f"refused without reason: {error}"
            line, column, words = fault
            assert str(error).startswith(f"data.txt:{line}:{column}: read ")
            assert words in str(error)
            assert found == expected[: len(found)]
        else:
            assert fault is None
            assert found == expected
    return fault is None


# --- Hypothesis: lines, right and wrong

BLANK = st.sampled_from([b" ", b" ", b" ", b"\t", b"  ", b" \t ", b"\r "])
LABEL = st.sampled_from([b"1", b"-1", b"+1", b"1.0", b"spam", "grün".encode(), b"a,b", b"a=b;c"])
BROKEN_LABEL = st.sampled_from([
    b"\xff", b"\0", b"a\0b", b"caf\xe9", b"\x1b[31m", b"\x7f", "a\u202eb".encode(), "a\u00a0b".encode(), b"x" * 257,
    b"nan", b"-NaN", b"inf", b"+Infinity", b"1,2", b"1;0.5", b"\x80\x04\x95", b"\xf0\x9f",
])  # fmt: skip
ID = st.one_of(
    st.integers(1, 300),
    st.integers(1, 2**63 - 2),
    st.sampled_from([2**24 - 1, 2**24, 2**31, 2**32 + 1, 2**53 + 1, 10**18, 2**63 - 2]),
)


def midpoint(number: float, change: int) -> str:
    """What is halfway from a double to the next one, in its last digit changed by so much."""
    with localcontext() as context:
        context.prec = 800
        middle = (Decimal(number) + Decimal(math.nextafter(number, math.inf))) / 2
        return str(middle + change * Decimal((0, (1,), middle.as_tuple().exponent)))


DIGITS = st.text("0123456789", min_size=1, max_size=30)
VALUE = st.one_of(
    st.integers(-99, 99).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.floats(-1e3, 1e3).map("{:.6g}".format),
    st.floats(-1e3, 1e3).map("{:.25e}".format),
    st.floats(allow_nan=False, allow_infinity=False).map("{:.17g}".format),
    st.builds("{}e{}".format, st.integers(10**14, 10**20), st.integers(-345, 310)),
    st.builds(midpoint, st.floats(0, 1e300), st.integers(-1, 1)),
    st.builds("{}.{}".format, st.integers(2**52, 2**53), st.sampled_from(["5", "49", "51", "50"])),
    st.integers(2**53, 2**64 + 2**12).map(str),
    st.builds("{}{}.{}".format, st.sampled_from(["", "-", "+"]), DIGITS, DIGITS),
    st.builds("{}{}e{}".format, st.sampled_from(["", ".", "0."]), DIGITS, st.integers(-350, 350)),
    st.sampled_from([
        "0", "-0", "+0.0", "5.", ".5", "1E5", "1e+5", "1e-0005", "5e-324", "2.4703282292062328e-324", "1e-400", "0e999",
        "2.2250738585072011e-308", "1.7976931348623157e308", "9007199254740993", "9007199254740992.5",
        "1e22", "1e23", "8.5e-23", "3.4028235e38", "1.401298464324817e-45", "7e-46", "1.00000005960464477540",
        "0.000000000000000000000000000001", "123456789012345678901234567890",
    ]),
).map(str.encode)  # fmt: skip
PAIR = st.builds(b"%d:%b".__mod__, st.tuples(ID, VALUE))
BROKEN_TOKEN = st.sampled_from([
    b"0:1", b"00:1", b"9223372036854775807:1", b"9223372036854775808:1", b"99999999999999999999:1", b"-1:1", b"+1:1",
    b"1.5:1", b"7", b"seven", b":", b":1", b"7:", b"7:x", b"7:1x", b"7:1:2", b"7:nan", b"7:NaN", b"7:inf",
    b"7:-Infinity", b"7:1e400", b"7:-1e309", b"7:1e39", b"7:-3.5e38", b"7:1e", b"7:1e+", b"7:e5", b"7:.", b"7:-",
    b"7:+-1", b"7:--1", b"7:0x10", b"7:1_0", b"7:1,5", b"7:1.2.3", b"1_0:1", b"\xd9\xa1:1", b"7:\xd9\xa1", b"7:1\x00",
    b"7\x00:1", b"7:1 7:1", b"07:1 7:1", b"300:1 300:2 300:3",
])  # fmt: skip
COMMENT = st.sampled_from([b"", b"", b"", b"#", b" # a comment: 1:2 # 3", b"\t#7:x", b" # \xff\x01"])
ZEROS = st.sampled_from([b"# a\0b", b"#\0", b"1 2:1 #\0", b"\0" * 300, b"  \0\0"])
LINE_END = st.sampled_from([b"\n", b"\n", b"\r\n", b" \n", b"\t\r\n"])


@st.composite
def lines(draw, broken: bool):
    """A line with a row, or with a row into which something wrong has been put."""
    tokens = draw(st.lists(PAIR, max_size=8, unique_by=lambda pair: pair.split(b":")[0]))
    bad_label = broken and draw(st.integers(0, 5)) == 0
    tokens.insert(0, draw(BROKEN_LABEL if bad_label else LABEL))
    if broken and not bad_label:
        tokens.insert(draw(st.integers(0, len(tokens))), draw(BROKEN_TOKEN))
    line = draw(st.sampled_from([b"", b"", b" ", b"\t"])) + tokens[0]
    for token in tokens[1:]:
        line += draw(BLANK) + token
    return line + draw(COMMENT)


NOTHING = st.sampled_from([b"", b" ", b"\t\r", b"# a comment", b"  #1 1:1"])
NOISE = st.lists(st.sampled_from([bytes([byte]) for byte in b"0123456789:.eE+-# \tx"]), max_size=24).map(b"".join)
ANY_LINE = st.one_of(lines(False), lines(False), lines(False), NOTHING)
FAULTY_LINE = st.one_of(lines(False), lines(True), NOTHING, NOISE, ZEROS)


@st.composite
def files(draw, line):
    data = b"".join(draw(st.lists(st.builds(bytes.__add__, line, LINE_END), max_size=12)))
    if draw(st.booleans()):
        data = data.removesuffix(b"\n")
    return draw(st.sampled_from([b"", b"", BOM])) + data


FUZZ = {
    "dtype": st.sampled_from(DTYPES),
    "zero_based": st.booleans(),
    "threads": st.sampled_from([1, 2, 4]),
    "piece": st.sampled_from([5, 40, 300]),
}


@settings(max_examples=250)
@given(data=files(ANY_LINE), **FUZZ)
def test_right_lines_are_read_as_a_plain_parser_reads_them(data, dtype, zero_based, threads, piece):
    assert_agrees(data, dtype, zero_based, threads, piece)


@settings(max_examples=300)
@given(data=files(FAULTY_LINE), **FUZZ)
def test_wrong_lines_are_refused_where_a_plain_parser_refuses_them(data, dtype, zero_based, threads, piece):
    assert_agrees(data, dtype, zero_based, threads, piece)


@settings(max_examples=300)
@given(values=st.lists(VALUE, min_size=1, max_size=40))
def test_every_number_is_the_nearest_double(values):
    data = b"1 " + b" ".join(b"%d:%b" % pair for pair in enumerate(values, 1)) + b"\n"
    assert_agrees(data, np.float64, piece=2000)
    assert_agrees(data, np.float32, piece=2000)


def test_random_bits_as_text_come_back_bit_for_bit():
    rng = np.random.default_rng(5)
    doubles = rng.integers(0, 2**64, 20000, np.uint64).view(np.float64)
    doubles = doubles[np.isfinite(doubles)]
    data = "1 " + " ".join(f"{k}:{value!r}" for k, value in enumerate(doubles.tolist(), 1))
    [row] = scanned([in_memory(data.encode())], dtype=np.float64)
    assert row.values == doubles.tobytes()


# --- what each line means


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        (b"1:0.5 2:1", 1, "a label"),
        (b"  :1", 3, "a label"),
        (b"1 2", 3, "a colon and a value"),
        (b"1 2:1 3 4:1", 7, "a colon and a value"),
        (b"1 2#:1", 3, "a colon and a value"),
        (b"1 two:1", 3, "a feature id"),
        (b"1 2:1 :1", 7, "a feature id"),
        (b"1 -2:1", 3, "a feature id"),
        (b"1 2:", 5, "finite decimal"),
        (b"1 2: 3:1", 5, "finite decimal"),
        (b"1 2:#1", 5, "finite decimal"),
        (b"1\t2:nan", 5, "finite decimal"),
        (b"1 2:inf", 5, "finite decimal"),
        (b"1 2:-Infinity", 5, "finite decimal"),
        (b"1 2:1e400", 5, "range"),
        (b"1 2:1 0:1", 7, "from 1 up"),
        (b"1 2:1 0000000000000000000:1", 7, "from 1 up"),
        (b"1 9223372036854775808:1", 3, "2^63-1"),
        (b"1 18446744073709551617:1", 3, "2^63-1"),
        (b"1 00000000000009223372036854775808:1", 3, "2^63-1"),
        (b"1 2:1 3:1 2:5 3:5", 11, "once in a row"),
        (b"1 3:1 2:1 2:5", 11, "once in a row"),
        (b"1 3:1\t2:1\t2:5", 11, "once in a row"),
        (b"1 3:1\r2:1\r2:5", 11, "once in a row"),
        (b"1 3:1 2:1 002:5", 11, "once in a row"),
        (b"1 12:1 2:1 # 2:5\n1 12:1 2:1 12:5 # 2:1", 12, "once in a row"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_broken_line_is_refused_at_its_column(line, column, words, dtype):
    before = b"# first\n\n1 1:1\r\n"
    number = 4 + line.count(b"\n")
    with pytest.raises(DataError) as refusal:
        scanned([in_memory(before + line + b"\n1 1:1\n")], dtype=dtype)
    assert str(refusal.value).startswith(f"data.txt:{number}:{column}: ")
    assert words in str(refusal.value)
    assert_agrees(before + line + b"\n1 1:1\n", dtype)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b"1 2:0.5 seven:1 3:1", "'seven:1'"),
        (b"1 2:nan 3:1", "'nan'"),
        (b"1 2:\xff", r"'\xff'"),
        (b"1 2:\xc3\xa9", "'é'"),
        (b"1 2:", "read the end of the line"),
        (b"1 2: 3:1", "read nothing"),
        (b"1 1:1 2:\x1b]0;owned\x07", r"'\x1b]0;owned\x07'"),
        (b"caf\xe9 1:1", r"'caf\xe9'"),
        (b"\0" * 1_000_000, "'" + 14 * r"\x00" + r"\...'"),
    ],
)
def test_the_message_shows_what_was_read(line, read):
    with pytest.raises(DataError) as refusal:
        scanned([in_memory(line)])
    assert read in str(refusal.value)


def test_an_empty_value_inside_a_line_is_not_called_the_end_of_the_line():
    with pytest.raises(DataError) as refusal:
        scanned([in_memory(b"1 2: 3:1\n")])
    assert "end of the line" not in str(refusal.value)


@pytest.mark.parametrize(("token", "dtype", "name", "helps"), [
    (b"1e39", np.float32, "float32", True), (b"-1.7e308", np.float32, "float32", True),
    (b"1e400", np.float32, "float32", False), (b"1e400", np.float64, "float64", False),
])  # fmt: skip
def test_a_number_too_large_names_the_type_it_does_not_fit_and_what_would_hold_it(token, dtype, name, helps):
    with pytest.raises(DataError) as refusal:
        scanned([in_memory(b"1 1:" + token)], dtype=dtype)
    assert f"range of {name}" in str(refusal.value)
    assert ("float64" in refusal.value.hint) == helps


@pytest.mark.parametrize("token", [b"1e39", b"-3.4028236e38", b"3.4028235677973366e38"])
def test_what_float32_cannot_hold_is_refused_there_and_exact_in_float64(token):
    line = b"1 1:" + token
    with pytest.raises(DataError, match="data.txt:1:5: .* range of float32"):
        scanned([in_memory(line)], dtype=np.float32)
    [row] = scanned([in_memory(line)], dtype=np.float64)
    assert row.values == np.float64(float(token)).tobytes()


def test_the_largest_float32_is_accepted():
    [row] = scanned([in_memory(b"1 1:3.4028235677973362e38")])
    assert row.values == np.finfo(np.float32).max.tobytes()


@pytest.mark.parametrize("digits", [20, 400, 1021])
@pytest.mark.parametrize("form", ["0.{}", ".{}e5", "-{}e-{}"])
def test_a_number_of_many_digits_is_read_exactly(digits, form):
    mantissa = ("8731459206" * 110)[: digits - 10]
    token = form.format(mantissa, digits).encode()
    [row] = scanned([in_memory(b"1 1:" + token)], dtype=np.float64)
    assert row.values == np.float64(float(token)).tobytes()


@pytest.mark.parametrize("length", [1024, 100_000])
def test_a_number_longer_than_a_thousand_characters_is_refused_or_exact(length):
    token = b"0." + b"3" * (length - 2)
    try:
        [row] = scanned([in_memory(b"1 1:" + token)], dtype=np.float64)
    except DataError as error:
        assert str(error).startswith("data.txt:1:5: ")
    else:
        assert row.values == np.float64(float(token)).tobytes()


def test_the_largest_ids_are_exact():
    assert scanned([in_memory(b"1 9223372036854775807:1")])[0].ids == [2**63 - 1]
    assert scanned([in_memory(b"1 9223372036854775806:1")], zero_based=True)[0].ids == [2**63 - 1]
    with pytest.raises(DataError, match=r"data.txt:1:3: .*2\^63-1"):
        scanned([in_memory(b"1 9223372036854775807:1")], zero_based=True)


def test_zero_based_ids_are_one_less_than_ours():
    assert scanned([in_memory(b"1 0:1 7:1")], zero_based=True)[0].ids == [1, 8]


@pytest.mark.parametrize("length", [2, 19, 20, 21, 63, 64, 65, 300, 5000])
@pytest.mark.parametrize("largest", [2**13, 2**31, 2**63 - 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unsorted_rows_come_out_sorted(length, largest, dtype):
    rng = np.random.default_rng(length)
    ids = rng.permutation(np.unique(rng.integers(1, largest, length)))
    values = rng.integers(-999, 999, len(ids))
    data = "1 " + " ".join(f"{id}:{value}" for id, value in zip(ids.tolist(), values.tolist(), strict=True))
    order = np.argsort(ids)
    neighbours = [Row(b"0", [5], dtype(3).tobytes())]
    found = scanned([in_memory(b"0 5:3\n" + data.encode() + b"\n0 5:3")], dtype=dtype)
    assert found == [*neighbours, Row(b"1", ids[order].tolist(), values[order].astype(dtype).tobytes()), *neighbours]


def test_a_repeated_id_is_found_in_a_long_unsorted_row():
    ids = np.random.default_rng(1).permutation(np.arange(1, 3001)).tolist()
    ids.append(ids[1234])
    line = "1 " + " ".join(f"{id}:1" for id in ids)
    with pytest.raises(DataError) as refusal:
        scanned([in_memory(line.encode())])
    assert str(refusal.value).startswith(f"data.txt:1:{line.rindex(' ') + 2}: ")


# --- labels


def labels_of(data: bytes, many=False):
    """(names, counts, the label of every row)"""
    table, found = Labels(many), []
    for piece in scan_pieces([in_memory(data)], 1):
        codes, names = table.encode(piece).tolist(), table.names
        found += [names[code] for code in codes]
    return table.names, table.counts, found


def test_labels_stand_in_order_of_first_occurrence_and_are_counted():
    assert labels_of(b"b 1:1\na\nb\n10\nb # a\n") == (["b", "a", "10"], [3, 1, 1], ["b", "a", "b", "10", "b"])


@pytest.mark.parametrize(
    "group",
    [
        (b"1", b"+1", b"1.0", b"01", b"1e0", b"10e-1"),
        (b"-1", b"-1.0", b"-01", b"-1e0"),
        (b"0", b"-0", b"0.0", b"+0"),
        (b"0.5", b".5", b"5e-1", b"0.50"),
        (b"100", b"1e2"),
    ],
)
def test_one_number_is_one_label(group):
    names, counts, _ = labels_of(b"\n".join(group))
    assert names == [group[0].decode()]
    assert counts == [len(group)]


@pytest.mark.parametrize("name", ["spam", "1a", "1.2.3", "--1", "nano", "in", "1_0", "0x1", "+", "e5", "ü", "١", "1²"])
def test_what_is_no_number_is_a_label_as_it_stands(name):
    assert labels_of(name.encode())[0] == [name]


@pytest.mark.parametrize(
    "group", [(b"1e400", b"1e500"), (b"-1e999", b"1e999"), (b"9" * 250, b"9" * 249 + b"8")]
)
def test_labels_beyond_the_range_of_numbers_stay_apart(group):
    assert len(labels_of(b"\n".join(group))[0]) == len(group)


def test_long_whole_numbers_stay_apart():
    numbers = [2**53 + k for k in range(4)] + [10**18 + 1, 10**30 + 1, 10**30]
    assert labels_of("\n".join(map(str, numbers)).encode())[0] == list(map(str, numbers))


def test_as_many_labels_as_codes_are_accepted_and_one_more_is_refused():
    data = b"".join(b"L%d\n" % k for k in range(65535))
    names, counts, _ = labels_of(data, many=True)
    assert names == [f"L{k}" for k in range(65535)]
    assert counts == [1] * 65535
    with pytest.raises(DataError, match="^data.txt:65536:1: .*65535 different labels"):
        labels_of(data + b"one-too-many\n", many=True)


def test_too_many_labels_are_refused_across_pieces(monkeypatch):
    monkeypatch.setattr(text, "piece_size", lambda memory, threads: SLACK + 8)
    lines = b"".join(b"%d 1:1\n" % (k % 40) for k in range(100))
    monkeypatch.setattr(text, "LABEL_LIMIT", 40)
    assert len(labels_of(lines)[0]) == 40
    monkeypatch.setattr(text, "LABEL_LIMIT", 39)
    with pytest.raises(DataError, match="^data.txt:40:1: read '39', expected at most 39 different labels"):
        labels_of(lines)


# --- pieces, files, threads


def many_lines(n: int, seed: int = 0) -> bytes:
    """Lines of very different lengths, every seventh without a row."""
    rng = np.random.default_rng(seed)
    result = []
    for k in range(n):
        count = int(rng.integers(0, 12)) if k % 50 else 900
        pairs = b" ".join(b"%d:%.3g" % (j + 1, value) for j, value in enumerate(rng.normal(size=count)))
        result.append(b"# %d" % k if k % 7 == 3 else b"%d %b" % (k % 3 - 1, pairs))
    return b"\n".join(result) + b"\n"


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_across_pieces_and_threads_keep_their_order(threads, dtype):
    data = many_lines(6000)
    memory = 8 << 20
    assert len(data) > 5 * text.piece_size(memory, 1)
    expected, fault = plain_file(data, dtype)
    assert fault is None
    assert scanned([in_memory(data)], threads, dtype=dtype, memory=memory) == expected


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("line", [1, 2999, 6001])
def test_a_fault_in_any_piece_has_its_line_number(threads, line):
    lines = many_lines(6000).split(b"\n")
    lines[line - 1] = b"1 1:1 5:wrong"
    lines[4500] = b"not the first fault" if line < 4500 else lines[4500]
    with pytest.raises(DataError) as refusal:
        scanned([in_memory(b"\n".join(lines))], threads, memory=8 << 20)
    assert str(refusal.value).startswith(f"data.txt:{line}:9: read 'wrong'")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_line_longer_than_a_piece_is_read_whole(threads):
    memory = 8 << 20
    long_line = b"1 " + b" ".join(b"%d:%d" % (k, k % 7) for k in range(1, 40000))
    data = b"-1 1:1\n" + long_line + b"\n-1 2:2\n" + long_line
    assert len(long_line) > 3 * text.piece_size(memory, 1)
    assert scanned([in_memory(data)], threads, memory=memory) == plain_file(data)[0]


def test_a_line_beyond_the_budget_is_refused_by_name():
    with pytest.raises(DataError, match=r"^data.txt: a line is longer than \d+ bytes"):
        scanned([in_memory(b"1 " + b" " * (3 << 20))], memory=8 << 20)


@pytest.mark.parametrize("threads", [1, 4])
def test_line_numbers_start_anew_in_every_file(tmp_path, threads):
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    paths[0].write_bytes(BOM + many_lines(3000))
    paths[1].write_bytes(BOM + b"1 1:1\n1 2:2")
    paths[2].write_bytes(b"1 3:3\n\n1 4:oops\n")
    expected = [row for path in paths[:2] for row in plain_file(path.read_bytes())[0]]
    assert scanned(open_sources([str(path) for path in paths[:2]]), threads) == expected
    with pytest.raises(DataError) as refusal:
        scanned(open_sources([str(path) for path in paths]), threads)
    assert str(refusal.value).startswith(f"{paths[2]}:3:5: read 'oops'")


@pytest.mark.parametrize("data", [b"", b"\n", BOM, b"# nothing\n\n  \t", b"\r\n\r\n"])
def test_a_file_without_rows_gives_none(data):
    assert scanned([in_memory(data)]) == []


def test_a_label_alone_is_an_empty_row():
    assert scanned([in_memory(b"1\n-1 # none\n+1\t\r\n")]) == [Row(label, [], b"") for label in (b"1", b"-1", b"+1")]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_work_on_a_piece_is_kept_with_it(threads):
    data = many_lines(4000)
    pieces = scan_pieces([in_memory(data)], threads, memory=8 << 20, then=lambda piece: piece.n_rows)
    results, counts = zip(*((piece.result, piece.n_rows) for piece in pieces), strict=True)
    assert results == counts and sum(results) == len(plain_file(data)[0])


def test_numbered_blocks_lead_back_to_the_rows():
    data = many_lines(2000) + b"new 1000000007:1 12:4\n"
    labels, features, found = Labels(), FeatureMap(), []
    for block in scan_blocks([in_memory(data)], labels, features, 2, memory=8 << 20):
        ends = block.indptr.tolist()
        for code, start, end in zip(block.codes.tolist(), ends, ends[1:], strict=False):
            ids = np.asarray(features.ids)[block.features[start:end]].tolist()
            found.append(Row(labels.names[code].encode(), ids, block.values[start:end].tobytes()))
    assert found == plain_file(data)[0]


class Trickle(InMemory):
    """Bytes that come a few at a time, as from compressed frames of that size."""

    step = 1

    def readinto(self, buffer) -> int:
        with memoryview(buffer) as view:
            return super().readinto(view[: self.step])


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("data", [BOM + b"1 1:1\n-1 2:1\n", BOM, BOM[:2], b"1", b"1\n" + BOM + b"1\n"])
def test_a_byte_order_mark_may_come_in_parts(step, data):
    source = Trickle(data)
    source.name, source.step = "data.txt", step
    rows, fault = plain_file(data)
    if fault:
        with pytest.raises(DataError, match=f"^data.txt:{fault[0]}:{fault[1]}: "):
            scanned([source])
    else:
        assert scanned([source]) == rows


def test_a_byte_order_mark_cut_by_the_border_of_frames_is_no_label(tmp_path, kind):
    text, compress = BOM + b"1 1:1\n-1 2:1\n", COMPRESSIONS[kind]
    path = write_file(tmp_path, b"".join(compress(text[k : k + 1]) for k in range(len(text))))
    assert read_file(path) == plain_file(text)[0]


# --- compressed files


@pytest.fixture(params=COMPRESSIONS)
def kind(request) -> str:
    return request.param


def read_file(path, **options) -> list[Row]:
    return scanned(open_sources([str(path)]), **options)


def write_file(folder, data: bytes):
    path = folder / "data.packed"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("threads", [1, 4])
def test_a_compressed_file_is_found_out_and_read(tmp_path, kind, threads):
    data = BOM + many_lines(3000)
    path = write_file(tmp_path, COMPRESSIONS[kind](data))
    assert read_file(path, threads=threads, memory=8 << 20) == plain_file(data)[0]


def test_size_and_digest_are_those_of_the_file_on_disk(tmp_path, kind):
    packed = COMPRESSIONS[kind](many_lines(3000)) * 2
    [source] = open_sources([str(write_file(tmp_path, packed))])
    scanned([source])
    digest = source.description().pop("xxh64")
    assert source.description() == {"name": source.name, "size": len(packed)}
    assert len(digest) == 16 and digest[8:] == half_digest(packed)


def test_the_digest_is_xxh64():
    """The first three are the values that its authors and xxhsum give."""
    known = {b"": "ef46db3751d8e999", b"a": "d24ec4f1a98c6e5b", b"abc": "44bc2cf5ad770999"}
    for data, expected in known.items():
        assert digest_of(data) == expected
    data = np.random.default_rng(1).bytes(1000)
    for size in [*range(140), 999, 1000]:
        assert digest_of(data[:size])[8:] == half_digest(data[:size])
        for part in (1, 7, 31, 32, 33, 64):
            parts = (data[at : min(size, at + part)] for at in range(0, size, part))
            assert digest_of(*parts) == digest_of(data[:size])


def digest_of(*parts: bytes) -> str:
    digest = Digest()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def test_members_one_behind_the_other_are_one_text(tmp_path, kind):
    data = many_lines(500)
    compress = COMPRESSIONS[kind]
    cuts = [0, 1, 2, len(data) // 3, len(data) // 3, len(data) - 1, len(data)]
    parts = [compress(data[start:end]) for start, end in zip(cuts, cuts[1:], strict=False)]
    assert read_file(write_file(tmp_path, b"".join(parts))) == plain_file(data)[0]


def test_a_compressed_empty_file_has_no_rows(tmp_path, kind):
    assert read_file(write_file(tmp_path, COMPRESSIONS[kind](b""))) == []


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 1.0])
def test_a_truncated_compressed_file_is_refused(tmp_path, kind, members, share):
    member = COMPRESSIONS[kind](many_lines(500))
    kept = max(8, int(share * len(member)) - 1)
    path = write_file(tmp_path, member * (members - 1) + member[:kept])
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}: corrupt or truncated {kind} data"):
        read_file(path)


def test_a_damaged_compressed_file_never_gives_other_rows(tmp_path, kind):
    data = many_lines(60)
    packed = COMPRESSIONS[kind](data)
    expected = plain_file(data)[0]
    refused = 0
    positions = range(6, len(packed), max(1, len(packed) // 200))
    for position in positions:
        damaged = bytearray(packed)
        damaged[position] ^= 0xFF
        path = write_file(tmp_path, damaged)
        try:
            assert read_file(path) == expected
        except DataError as error:
            assert str(error).startswith(str(path))
            assert kind in str(error)
            refused += 1
    assert refused > 0.9 * len(positions)


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_a_damaged_beginning_of_a_later_member_is_not_taken_for_the_end(tmp_path, kind, offset):
    compress = COMPRESSIONS[kind]
    first, second = compress(b"1 1:1\n" * 50), compress(b"-1 2:2\n" * 50)
    damaged = bytearray(first + second)
    damaged[len(first) + offset] ^= 0xFF
    path = write_file(tmp_path, damaged)
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}: corrupt.* {kind} data"):
        read_file(path)


@pytest.mark.slow
def test_a_small_file_of_much_text_is_read_within_little_memory(tmp_path, kind):
    data = b"1 1:1 2:1 3:1\n" * 1_500_000
    path = write_file(tmp_path, COMPRESSIONS[kind](data))
    [source] = open_sources([str(path)])
    room, total = bytearray(1 << 16), 0
    tracemalloc.start()
    try:
        while count := source.readinto(room):
            total += count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == len(data)
    assert peak < len(data) // 2


@pytest.mark.parametrize(("name", "words"), [("missing.txt", "No such file"), ("", "is a directory")])
def test_what_cannot_be_opened_is_named(tmp_path, name, words):
    with pytest.raises(LlsvmError, match=words) as refusal:
        open_sources([str(tmp_path / name)])
    assert str(tmp_path / name) in str(refusal.value)


@pytest.mark.parametrize("zero_based", [False, True])
def test_usual_and_odd_pairs_alternate_over_many_rows(zero_based):
    rng = np.random.default_rng(7)
    values = ["1", "0.5", "-0.0206633", "7.12345678", "0.123456789", "12345678", "123456789", "-3", "+2", ".5", "1e-3",
              "12.5", "-0", "0.1234567890123456789"]
    gaps = [" "] * 12 + ["  ", "\t"]
    lines = []
    for _ in range(600):
        ids = np.unique(rng.integers(1, 10 ** rng.integers(1, 12), rng.integers(0, 30)))
        pairs = [f"{rng.choice(gaps)}{id}:{rng.choice(values)}" for id in ids]
        label, ending = rng.choice(["+1", "-1", "elephants", "a#b"]), rng.choice(["", " ", "# c"])
        lines.append(f"{label}{''.join(pairs)}{ending}")
    assert_agrees("\n".join(lines).encode(), np.float64, zero_based, threads=2, piece=4000)
