"""Random LIBSVM text: right lines, lines with one thing wrong, and right text with bytes changed."""

from __future__ import annotations

import math
import struct
from decimal import Decimal, localcontext
from random import Random

BLANKS = [b" "] * 12 + [b"\t", b"  ", b" \t ", b"\r "]
LABELS = [b"1", b"-1", b"+1", b"1.0", b"2", b"-0", b"spam", b"a=b;c", b"007", b"1e3", "grün".encode(), b"-1.5"]
ODD_LABELS = [b"\xff", b"a\x00b", b"nan", b"-INF", b"x" * 257, b"\x1b[31m", b"caf\xe9", b"y" * 256, b"Infinity",
              b"\xc2\x85", b"\x7f", b"\xed\xa0\x80", b"nano", b"info", b"+-inf", b"\xed", b"1,2",
              b"-1;.5;3", b"a,b", *(f"a{mark}b".encode() for mark in "\u00a0\u2028\u202e\u2067\u200d\u3000\ufeff"),
              "\u0131nf".encode()]  # fmt: skip
ODD_IDS = [2**24 - 1, 2**24, 2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, 10**18, 2**63 - 2]
ODD_VALUES = [
    "0", "-0", "+0.0", "5.", ".5", "1E5", "1e+5", "1e-0005", "5e-324", "2.4703282292062328e-324", "1e-400", "0e999",
    "2.2250738585072011e-308", "9007199254740993", "9007199254740992.5", "1e22", "1e23", "8.5e-23", "3.4028235e38",
    "1.401298464324817e-45", "7e-46", "1.00000005960464477540", "0.000000000000000000000000000001",
    "123456789012345678901234567890", "0." + "3" * 300, "00000000000000000001.5",
]  # fmt: skip
BROKEN = [
    b"0:1", b"00:1", b"9223372036854775807:1", b"9223372036854775808:1", b"99999999999999999999:1", b"-1:1", b"+1:1",
    b"1.5:1", b"7", b"seven", b":", b":1", b"7:", b"7:x", b"7:1x", b"7:1:2", b"7:nan", b"7:NaN", b"7:inf",
    b"7:-Infinity", b"7:1e400", b"7:-1e309", b"7:1e39", b"7:-3.5e38", b"7:1e", b"7:1e+", b"7:e5", b"7:.", b"7:-",
    b"7:+-1", b"7:--1", b"7:0x10", b"7:1_0", b"7:1,5", b"7:1.2.3", b"1_0:1", b"\xd9\xa1:1", b"7:\xd9\xa1", b"7:1\x00",
    b"7\x00:1", b"7:1 7:1", b"07:1 7:1", b"300:1 300:2 300:3", b"qid:3", b"18446744073709551617:1",
]  # fmt: skip
COMMENTS = [b""] * 6 + [b"#", b" # a comment: 1:2 # 3", b"\t#7:x"]
ENDS = [b"\n"] * 6 + [b"\r\n", b" \n", b"\t\r\n"]
NOTHING = [b"", b" ", b"\t\r", b"# a comment", b"  #1 1:1"]
ZEROS = [b"# a\0b", b"1 2:1 #\0", b"1 2:1 2:1 #\0", b"\0" * 70, b"  \0\0"]
BOM = b"\xef\xbb\xbf"
INTERESTING = b"0123456789:.eE+-# \t\r\nx\xff\xc3"


def label(random: Random) -> bytes:
    return random.choice(LABELS)


def value(random: Random) -> bytes:
    """A decimal number, as usual or as hard to round as there are."""
    kind = random.randrange(12)
    if kind < 4:
        text = f"{random.uniform(-10, 10):.6g}" if kind < 2 else str(random.randint(-99, 99))
    elif kind == 4:
        text = random.choice(ODD_VALUES)
    elif kind == 5:
        text = repr(any_double(random))
    elif kind == 6:
        text = repr(struct.unpack("<f", struct.pack("<I", random.getrandbits(31) % 0x7F800000))[0])
    elif kind == 7:
        text = f"{any_double(random):.{random.randrange(26)}e}"
    elif kind == 8:
        text = midpoint(random)
    elif kind == 9:
        text = f"{random.randrange(10**14, 10**20)}e{random.randrange(-345, 20)}"
    elif kind == 10:
        text = f"{random.choice(['', '-', '+'])}{digits(random)}.{digits(random)}"
    else:
        text = f"{random.choice(['', '.', '0.'])}{digits(random)}e{random.randrange(-350, 30)}"
    return text.encode()


def digits(random: Random) -> str:
    return str(random.randrange(10 ** random.randint(1, 30)))


def any_double(random: Random) -> float:
    while not math.isfinite(number := struct.unpack("<d", random.randbytes(8))[0]):
        pass
    return number


def midpoint(random: Random) -> str:
    """What is halfway between two doubles or two float32s, or a little beside."""
    low = math.exp(random.uniform(-200, 80))
    if random.random() < 0.5:
        high = math.nextafter(low, math.inf)
    else:
        bits = struct.unpack("<I", struct.pack("<f", min(low, 1e38)))[0]
        low, high = (struct.unpack("<f", struct.pack("<I", bits + step))[0] for step in (0, 1))
    with localcontext() as context:
        context.prec = 800
        middle = (Decimal(low) + Decimal(high)) / 2
        return str(middle + random.randint(-1, 1) * Decimal((0, (1,), middle.as_tuple().exponent)))


def identifier(random: Random) -> int:
    kind = random.randrange(20)
    if kind == 0:
        return random.choice(ODD_IDS)
    return random.randint(1, 2**63 - 2 if kind == 1 else 300)


def line(random: Random, wrong: bytes = b"") -> bytes:
    """A row, its end included. wrong: a token that is put into it."""
    ids = list(dict.fromkeys(identifier(random) for _ in range(random.randrange(9))))
    if random.random() < 0.7:
        ids.sort()
    tokens = [label(random), *(b"%d:%b" % (number, value(random)) for number in ids)]
    if wrong:
        tokens.insert(random.randint(0, len(tokens)), wrong)
    words = random.choice([b"", b"", b"", b" ", b"\t"]) + tokens[0]
    return words + b"".join(random.choice(BLANKS) + token for token in tokens[1:]) + random.choice(COMMENTS)


def text(random: Random, n_lines: int) -> bytes:
    """Right text: every value fits float64, and most fit float32."""
    lines = [random.choice(NOTHING) if random.random() < 0.1 else line(random) for _ in range(n_lines)]
    data = b"".join(words + random.choice(ENDS) for words in lines)
    if random.random() < 0.3:
        data = data.removesuffix(b"\n")
    return (BOM if random.random() < 0.1 else b"") + data


def wrong_text(random: Random, n_lines: int) -> bytes:
    """Right text with a line in which one thing is wrong, or may be."""
    kind = random.randrange(8)
    if kind == 0:
        bad = random.choice([*(label + b" 1:1" for label in ODD_LABELS), *ZEROS])
    elif kind == 1:
        bad = bytes(random.choice(b"0123456789:.eE+-# \tx") for _ in range(random.randrange(24)))
    else:
        bad = line(random, random.choice(BROKEN))
    before = random.randrange(n_lines)
    return text(random, before).removesuffix(b"\n") + b"\n" + bad + b"\n" + text(random, n_lines - before).lstrip(BOM)


def mutated(random: Random, data: bytes) -> bytes:
    """The same with up to four bytes changed, left out, put in or doubled."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at, kind = random.randrange(len(found) + 1), random.randrange(5)
        byte = random.choice(INTERESTING) if random.random() < 0.8 else random.randrange(256)
        if kind == 0:
            found[at : at + 1] = bytes([byte])
        elif kind == 1:
            del found[at : at + random.randint(1, 3)]
        elif kind == 2:
            found.insert(at, byte)
        elif kind == 3:
            found[at:at] = found[max(0, at - random.randint(1, 20)) : at]
        else:
            found[at:] = found[at : at + random.randrange(40)]
    return bytes(found)
