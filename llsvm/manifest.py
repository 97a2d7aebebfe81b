"""The manifest of a block set, checked before anything believes it: against its checksum, which anybody can compute,
against itself, and against what a writer can have written."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from llsvm.core import DataError, LlsvmError, check_labels, quoted, read_object, system_hint
from llsvm.files import missing
from llsvm.frames import FEATURE_LIMIT, FORMAT, IDS_A_FRAME, MANIFEST, REPAIR, VERSION, payload_room

LARGEST = 2**63 - 1
LABEL_LIMIT = 1 << 16  # what a code of 16 bits can tell apart
VALUE_BYTES = {"float32": 4, "float64": 8}
# A writer closes a chunk at 8 MB, and adds to it one row, which may be long: 2^18 rows, 2^20 nonzeros and one row.
MOST_ROWS, MOST_NONZEROS = 1 << 20, 1 << 22
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
CHECKSUM = re.compile(r"[0-9a-f]{8}")


def read_manifest(folder: Path, text: str | None = None) -> dict:
    """What the manifest of this folder says, or this text of one; the ids of features are listed as in version 3 of
    the format."""
    file = folder / MANIFEST
    text = _text(folder, file) if text is None else text
    try:
        header = read_object(text)
        if header.get("format") != FORMAT:
            found = _shown(header.get("format"))
            raise DataError(f"{file}: format {found} read, '{FORMAT}' expected: not a block set, or a damaged one")
        version = _whole(header, "version", least=1)
        if version > VERSION:
            raise LlsvmError(f"{folder} has format version {version}, this llsvm reads up to {VERSION}",
                             "upgrade llsvm, or make the set again with this one")
        end = text.rfind('"checksum":')
        found, expected = f"{zlib.crc32(text[: max(0, end)].encode()):08x}", _text_of(header, "checksum")
        if found != expected:
            raise DataError(f"{file}: checksum {found} read, {quoted(expected)} expected", REPAIR)
        return _checked(header)
    except ValueError as error:
        raise DataError(f"{file}: corrupt or truncated ({error})", REPAIR) from None


def _text(folder: Path, file: Path) -> str:
    if not folder.is_dir():
        raise LlsvmError(f"{folder}: no such block set", missing(folder).hint)
    try:
        return file.read_text("ascii")
    except FileNotFoundError:
        raise LlsvmError(f"{folder} has no {MANIFEST}: not a block set, or an unfinished one") from None
    except OSError as error:
        raise LlsvmError(f"{file}: {error.strerror}", system_hint(error)) from None
    except UnicodeDecodeError:
        raise DataError(f"{file}: corrupt", REPAIR) from None


def _checked(header: dict) -> dict:
    """Only what is known and checked; ValueError says what is wrong."""
    facts = {
        "format": FORMAT,
        "version": header["version"],
        "written_by": _text_of(header, "written_by"),
        "rows": _whole(header, "rows"),
        "features": _whole(header, "features", most=FEATURE_LIMIT),
        "nonzeros": _whole(header, "nonzeros"),
        "largest_id": _whole(header, "largest_id"),
        "zero_based": _of_type(header, "zero_based", bool),
        "largest_norm": _norm(header),
        "values": _text_of(header, "values"),
        "labels": _labels(header),
        "seed": _whole(header, "seed"),
        "sources": _sources(header),
        "feature_ids": _feature_ids(header),
    }
    if facts["values"] not in VALUE_BYTES:
        raise ValueError(f"values is {_shown(facts['values'])}, expected one of {', '.join(VALUE_BYTES)}")
    if facts["largest_id"] < facts["features"]:
        raise ValueError(f"{facts['features']} features, but the largest id is {facts['largest_id']}")
    facts["blocks"] = _blocks(header, facts)
    return facts


def _labels(header: dict) -> list[dict]:
    labels = list(_objects(header, "labels"))  # and no copies of them: 65,000 take 12 MB
    if len(labels) > LABEL_LIMIT:
        raise ValueError(f"{len(labels)} labels")
    check_labels([_entry(label, "name") for label in labels])
    if (counted := sum(_whole(label, "rows") for label in labels)) != header["rows"]:
        raise ValueError(f"the labels have {counted} rows, the set {_shown(header['rows'])}")
    return labels


def _norm(header: dict) -> float:
    """Infinite where squares of float64 values are beyond what a number can be."""
    norm = _entry(header, "largest_norm")
    if type(norm) not in (int, float) or not norm >= 0:
        raise ValueError(f"largest_norm is {_shown(norm)}, expected a number from 0 up")
    try:
        return float(norm)
    except OverflowError:
        return float("inf")


def _sources(header: dict) -> list[dict]:
    """Name, size and digest of what the set was made from."""
    sources = _objects(header, "sources")
    for source in sources:
        _text_of(source, "name")
        _whole(source, "size")
        if not all(type(value) in (str, int) for value in source.values()):
            raise ValueError("a source is more than a name, a size and a digest")
    return sources


def _feature_ids(header: dict) -> dict:
    """The file of ids, and of each of its frames the bytes and the checksum."""
    entry, n_features = _of_type(header, "feature_ids", dict), _whole(header, "features", most=FEATURE_LIMIT)
    if header["version"] < 3:  # one frame
        frames = [n_features]
        size, checksum = _entry(entry, "bytes"), _entry(entry, "checksum")
        entry = {"file": _entry(entry, "file"), "bytes": [size], "checksums": [checksum]}
    else:
        frames = [min(IDS_A_FRAME, n_features - first) for first in range(0, n_features, IDS_A_FRAME)]
    sizes, checksums = _wholes(entry, "bytes", 1), _checksums(entry)
    if not len(sizes) == len(checksums) == len(frames):
        raise ValueError(f"not {len(frames)} frames of ids")
    if any(size > _most_bytes(8 * ids) for size, ids in zip(sizes, frames, strict=True)):
        raise ValueError("frames of ids larger than ids can be")
    return {"file": _file(entry), "bytes": sizes, "checksums": checksums}


def _blocks(header: dict, facts: dict) -> list[dict]:
    names, blocks = {facts["feature_ids"]["file"]}, []
    for number, block in enumerate(_objects(header, "blocks")):
        try:
            blocks.append(_block(block, facts))
        except ValueError as error:
            raise ValueError(f"block {number}: {error}") from None
        if blocks[-1]["file"] in names:
            raise ValueError(f"block {number}: the file {blocks[-1]['file']} a second time")
        names.add(blocks[-1]["file"])
    for name in ("rows", "nonzeros"):
        if sum(sum(block[name]) for block in blocks) != facts[name]:
            raise ValueError(f"the {name} of the chunks do not add up to the set's")
    return blocks


def _block(block: dict, facts: dict) -> dict:
    """The entry of a file, whose chunks take no more memory than those of a writer."""
    rows, nonzeros = _wholes(block, "rows", 1, MOST_ROWS), _wholes(block, "nonzeros", 0)
    sizes, checksums = _wholes(block, "bytes", 1), _checksums(block)
    if not len(rows) == len(nonzeros) == len(sizes) == len(checksums):
        raise ValueError("lists of different lengths")
    value_bytes, n_features = VALUE_BYTES[facts["values"]], facts["features"]
    for chunk in zip(rows, nonzeros, sizes, strict=True):
        if chunk[1] > min(chunk[0] * n_features, MOST_NONZEROS + n_features):
            raise ValueError(f"{chunk[1]} nonzeros in a chunk of {chunk[0]} rows of {n_features} features")
        if chunk[2] > _most_bytes(payload_room(*chunk[:2], value_bytes)):
            raise ValueError(f"{chunk[2]} bytes for {chunk[0]} rows of {chunk[1]} nonzeros")
    return {"file": _file(block), "rows": rows, "nonzeros": nonzeros, "bytes": sizes, "checksums": checksums}


def _most_bytes(size: int) -> int:
    """Of a frame of so many bytes that do not compress, generously."""
    return size + size // 100 + 1000


def _file(entry: dict) -> str:
    """A name in the set's own folder."""
    name = _text_of(entry, "file")
    if not FILE_NAME.fullmatch(name) or name == MANIFEST:
        raise ValueError(f"file is {_shown(name)}, expected a plain name")
    return name


def _checksums(entry: dict) -> list[str]:
    checksums = _of_type(entry, "checksums", list)
    if not all(type(checksum) is str and CHECKSUM.fullmatch(checksum) for checksum in checksums):
        raise ValueError("checksums: eight hexadecimal digits each are expected")
    return checksums


def _entry(entry: dict, name: str):
    if name not in entry:
        raise ValueError(f"{name} is missing")
    return entry[name]


def _of_type(entry: dict, name: str, kind: type):
    value = _entry(entry, name)
    if type(value) is not kind:
        expected = {bool: "true or false", str: "a text", list: "a list", dict: "an object"}[kind]
        raise ValueError(f"{name} is {_shown(value)}, expected {expected}")
    return value


def _text_of(entry: dict, name: str) -> str:
    return _of_type(entry, name, str)


def _objects(entry: dict, name: str) -> list[dict]:
    found = _of_type(entry, name, list)
    if not all(type(item) is dict for item in found):
        raise ValueError(f"{name}: an object each is expected")
    return found


def _whole(entry: dict, name: str, least: int = 0, most: int = LARGEST) -> int:
    value = _entry(entry, name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {_shown(value)}, expected a whole number from {least} to {most}")
    return value


def _wholes(entry: dict, name: str, least: int, most: int = LARGEST) -> list[int]:
    numbers = _of_type(entry, name, list)
    if not all(type(number) is int and least <= number <= most for number in numbers):
        raise ValueError(f"{name}: whole numbers from {least} to {most} are expected")
    return numbers


def _shown(value) -> str:
    """A JSON value in a message; what is in a list or an object is left out."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return quoted(repr(value))
