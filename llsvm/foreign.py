"""What text that is none of ours looks like: loaded only where it is refused, so that good data pays nothing."""

from __future__ import annotations

import re

from llsvm.core import LINE_SHAPE, DataError, quoted

FRONT = 4096  # bytes of the beginning of a text that are looked at
LINES = 20
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
PAIRS = re.compile(rb"[^\s:]+([ \t]+\d+:[^\s:]+)+\s*(#.*)?")
UNPACK = "unpack it first"
READ_AS_THEY_ARE = "unpack it first; gzip, bzip2, xz and zstd are read as they are"
MODEL_HINT = "llsvm-train DATA MODEL, llsvm-predict TEST MODEL OUT: the model is not the first"

MAGIC = {  # the bytes a file begins with
    b"\x89PNG": ("a PNG image", ""), b"\xff\xd8\xff": ("a JPEG image", ""), b"GIF8": ("a GIF image", ""),
    b"%PDF-": ("a PDF document", ""), b"%!PS": ("a PostScript document", ""), b"{\\rtf": ("an RTF document", ""),
    b"PK\x03\x04": ("a zip archive", UNPACK), b"7z\xbc\xaf\x27\x1c": ("a 7z archive", UNPACK),
    b"Rar!\x1a\x07": ("a rar archive", UNPACK), b"!<arch>\n": ("an ar archive", UNPACK),
    b"PAR1": ("a Parquet file", ""), b"ARROW1": ("an Arrow file", ""), b"FEA1": ("a Feather file", ""),
    b"Obj\x01": ("an Avro file", ""), b"ORC": ("an ORC file", ""), b"\x89HDF\r\n\x1a\n": ("an HDF5 file", ""),
    b"\x93NUMPY": ("a NumPy array (.npy)", "sklearn.datasets.dump_svmlight_file(X, y, FILE) writes LIBSVM text"),
    b"MATLAB 5.0 MAT-file": ("a MATLAB file", ""), b"RDX": ("an R data file", ""),
    b"\x7fELF": ("a program (ELF)", ""), b"SQLite format 3\0": ("a SQLite database", ""),
    b"\x04\x22\x4d\x18": ("lz4 data", READ_AS_THEY_ARE), b"\x1f\x9d": ("compress (.Z) data", READ_AS_THEY_ARE),
    b"\xff\x06\x00\x00sNaPpY": ("snappy data", READ_AS_THEY_ARE), b"\x89LZO": ("lzop data", READ_AS_THEY_ARE),
    b"\x1f\x8b": ("gzip data compressed once more", UNPACK), b"BZh": ("bzip2 data compressed once more", UNPACK),
    b"\xfd7zXZ\0": ("xz data compressed once more", UNPACK),
    b"\x28\xb5\x2f\xfd": ("zstd data compressed once more", UNPACK),
    b"\xff\xfe\x00\x00": ("UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    b"\xff\xfe": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"), b"\xfe\xff": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    b"-----BEGIN ": ("a PEM file", ""), b"%%MatrixMarket": ("a Matrix Market file", ""), b"<?xml": ("XML", ""),
    b"version https://git-lfs": ("a Git LFS pointer", "fetch the file itself: git lfs pull"),
    b"solver_type ": ("a model of llsvm or LIBLINEAR", MODEL_HINT), b"svm_type ": ("a model of LIBSVM", ""),
    b'{"event": ': ("a run log of llsvm", ""),
}  # fmt: skip
# The beginnings of compressed files of which nearly all is missing.
CUT = {b"\x1f": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


def looks_like(front: bytes, name: str = "") -> tuple[str, str]:
    """What a text that begins like this seems to be, and a hint on what to do: both empty where it may be LIBSVM text,
    or nothing that is known."""
    if name.endswith((".llb", "/features.zst", "/manifest.json")):
        return "a file of a block set", "give the block set, the folder it is in"
    front = front.rstrip(b"\n")  # which the scanner puts behind a last line that has none
    if front[257:262] == b"ustar":
        return "a tar archive", "unpack it first: tar -xOf FILE gives what is in it"
    lines = _first_lines(front)
    if any(map(PAIRS.fullmatch, lines)) and not re.search(rb"[\x00-\x08\x0e-\x1f]", front[:32]):
        return _of_pairs(lines)
    if re.match(rb"\x80[\x02-\x05]", front):
        return "a Python pickle", "sklearn.datasets.dump_svmlight_file(X, y, FILE) writes LIBSVM text"
    if front.startswith(b"PK\x03\x04") and b".npy" in front[:100]:
        return "NumPy arrays (.npz)", "sklearn.datasets.dump_svmlight_file(X, y, FILE) writes LIBSVM text"
    for magic, known in MAGIC.items():
        if front.startswith(magic):
            return known
    for magic, kind in CUT.items():
        if len(front) <= 8 and front.startswith(magic):
            return f"the first bytes of {kind} data that was cut off", "fetch the whole file"
    return _of_kind(front, lines) or _of_shape(lines) or _of_bytes(front) or ("", "")


def _first_lines(front: bytes) -> list[bytes]:
    """Those that are whole and say something."""
    lines = front[:FRONT].split(b"\n")
    if len(lines) > 1 and len(front) >= FRONT:
        lines.pop()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(b"#")][:LINES]


def _of_pairs(lines: list[bytes]) -> tuple[str, str]:
    """LIBSVM text that means something else."""
    if len(lines) > 1 and all(re.match(rb"\S+[ \t]+0:%d\s" % k, line) for k, line in enumerate(lines, 1)):
        return "a precomputed kernel for LIBSVM", "llsvm is linear: it wants the rows themselves"
    if any(re.match(rb"[\d.+-]+(,[\d.+-]+)+[ \t]+\d+:", line) for line in lines):
        return "multi-label data", "a row has one label; a class that is a set of labels may be called 1+2"
    return "", ""


def _of_kind(front: bytes, lines: list[bytes]) -> tuple[str, str] | None:
    """By a mark of its own."""
    first = lines[0] if lines else b""
    start = first.lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page", "was the address of the data itself fetched?"
    if start.startswith(b"{") and b"llsvm-blocks" in front:
        return "the manifest of a block set", "give the block set, the folder it is in"
    if re.match(rb'[\[{]\s*(["\[{\d-]|$)', first):
        return "JSON", ""
    if any(line.lower().startswith(b"@relation") for line in lines):
        return "an ARFF file (Weka)", ""
    if start.startswith(b"__label__"):
        return "fastText's input", "it has words, not numbered features"
    if lines and all(re.fullmatch(rb"[^#:]+\.blocks/?", line) for line in lines):
        return "the path of a block set, and there is none of that name", ""
    if re.match(rb"[^|:]*\|", first):
        return "Vowpal Wabbit's input", ""
    if re.match(rb"\S+[ \t]+qid:\d", first):
        return "ranking data", "llsvm trains classifiers; sed 's/ qid:[0-9]*//' takes the groups away"
    if re.match(rb"\S+[ \t]+\d+:\d+:", first):
        return "LIBFFM's input (field:id:value)", "leave the fields away: sed 's/ [0-9]*:\\([0-9]*:\\)/ \\1/g'"
    if b"\n" not in front and len(re.findall(rb"\r[+-]?\w+ \d+:", front)):
        return "text whose lines end in CR alone", "tr '\\r' '\\n' mends that"
    return None


def _of_shape(lines: list[bytes]) -> tuple[str, str] | None:
    """By what its lines have in common."""
    if not lines:
        return None
    if lines[0].startswith(b"labels "):
        return "scores, as llsvm-predict writes them", "features stand behind their label on one line"
    for mark, name, option in ((b",", "CSV", ","), (b";", "CSV", "';'"), (b"\t", "TSV", "'\\t'")):
        if all(mark in line and not re.search(rb"\s\d+:\S", line) for line in lines):
            return _table(lines, mark, name, option)
    words = [line.split() for line in lines]
    if all(len(row) > 1 and all(map(NUMBER.fullmatch, row)) for row in words[1:] or words):
        return _table(lines, None, "a table of numbers", "")
    if len(lines) > 1 and all(len(row) == 1 for row in words):
        numbers = all(NUMBER.fullmatch(line) for line in lines)
        if numbers or 2 * len(set(lines)) <= len(lines):
            return "a list of labels, as llsvm-predict writes it", "features stand behind their label on one line"
        return "a list of words", ""
    return None


def _table(lines: list[bytes], mark: bytes | None, name: str, option: str) -> tuple[str, str]:
    """Columns, with the program that makes LIBSVM text of those that have the label first."""
    numbers = [sum(map(bool, map(NUMBER.fullmatch, map(bytes.strip, line.split(mark))))) for line in lines[:2]]
    heading = len(lines) > 1 and numbers[0] == 0 < numbers[1]
    program = '{printf "%s", $1; for (i = 2; i <= NF; i++) printf " %d:%s", i - 1, $i; print ""}'
    program = "NR > 1 " * heading + program
    separator = f"-F{option} " if option else ""
    hint = f"with the label first, awk {separator}'{program}' makes LIBSVM text of it"
    return name + " with a heading" * heading, hint


def _of_bytes(front: bytes) -> tuple[str, str] | None:
    start = front[:1024]
    if len(start) >= 8 and (not any(start[1::2]) or not any(start[0::2])) and any(start):
        return "UTF-16 text", "iconv -f UTF-16LE -t UTF-8, or UTF-16BE"
    if re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", start):
        return "a binary file", ""
    return None


def seems(front: bytes, name: str = "") -> tuple[str, str]:
    """The end of a sentence that refuses this text, and a hint."""
    what, hint = looks_like(front, name)
    return (f"; this looks like {what}", hint or LINE_SHAPE) if what else ("", "")


def without_features(name: str, front: bytes = b"") -> DataError:
    """For text in which no row has a feature."""
    like, hint = seems(front, name)
    return DataError(f"{name}: no line has an id:value{like}", hint or LINE_SHAPE)


def too_many_labels(name: str, n_rows: int, labels: list[str], front: bytes = b"") -> DataError:
    """For data with hardly a row for each label."""
    like, hint = seems(front, name)
    if not like:
        numbers = sum(bool(NUMBER.fullmatch(label.encode("utf-8", "replace"))) for label in labels)
        like = "; these look like " + ("regression targets" if 2 * numbers > len(labels) else "ids or texts")
    hint = hint or "llsvm trains classifiers; if each of these is a class, say --many-labels"
    return DataError(f"{name}: {len(labels)} labels in {n_rows} rows, such as {quoted(labels[0])}{like}", hint)
