"""What a model file says around its weights, LIBLINEAR's header and our last line, and how it is checked."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from llsvm import foreign
from llsvm.core import DataError, check_labels, quoted, read_object

TWO_COLUMN_SOLVERS = {"MCSVM_CS"}
CLASSIFIERS = {"L2R_LR", "L2R_L2LOSS_SVC_DUAL", "L2R_L2LOSS_SVC", "L2R_L1LOSS_SVC_DUAL", "MCSVM_CS",
               "L1R_L2LOSS_SVC", "L1R_LR", "L2R_LR_DUAL"}  # fmt: skip
OTHER_MODELS = {"L2R_L2LOSS_SVR": "a regression model", "L2R_L2LOSS_SVR_DUAL": "a regression model",
                "L2R_L1LOSS_SVR_DUAL": "a regression model", "ONECLASS_SVM": "a one-class model"}  # fmt: skip
HEADER = ("solver_type", "nr_class", "label", "nr_feature", "bias", "rho", "w", "w_by_id")
WHOLE = re.compile(r"[0-9]{1,19}")
LABELS = re.compile(r"[+-]?[0-9]{1,10}(\s+[+-]?[0-9]{1,10})*", re.ASCII)
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LARGEST_ID = 2**63 - 1
# Bytes looked at to see what a file is, in a line of a header, and in a name there; lines of a header.
FRONT, LONGEST_LINE, LONGEST_NAME, MOST_LINES = 4096, 1 << 24, 64, 32
TRAILER, NEEDS_LAST_LINE = b"llsvm ", "0"  # before our line; before the number of classes, where that is needed
DEEPEST = 8  # brackets within brackets in our line
DAMAGED, CUT = "the file was changed or damaged", "train again, or fetch the whole file"


@dataclass
class Header:
    """What stands before the weights: its CRC-32, its lines, and what they say."""

    crc: int
    n_lines: int
    solver_type: str
    labels: list[str]
    n_ids: int
    bias: float
    by_id: bool
    needs_last_line: bool

    @property
    def n_columns(self) -> int:
        return 1 if len(self.labels) == 2 and self.solver_type not in TWO_COLUMN_SOLVERS else len(self.labels)


def check_front(path: str, front: bytes) -> bool:
    """True, or a refusal."""
    words = front[:LONGEST_NAME].split(None, 1)
    if words and words[0].decode("ascii", "replace") in HEADER:
        return True
    kind = foreign.looks_like(front, path)[0] if words else "an empty file"
    if not kind and any(foreign.PAIRS.fullmatch(line.strip()) for line in front.splitlines()[:20]):
        kind = "LIBSVM text"
    raise DataError(f"{path}: not a model file" + f"; this looks like {kind}" * bool(kind),
                    "llsvm-predict TEST MODEL OUTPUT" if kind == "LIBSVM text" else "")


def read_header(path: str, file) -> Header:
    check_front(path, file.read(FRONT))
    file.seek(0)
    said, crc, n_lines = {}, 0, 0
    while not {"w", "w_by_id"} & said.keys():
        line = file.readline(LONGEST_LINE)
        if not line.endswith(b"\n") or n_lines == MOST_LINES:
            raise DataError(f"{path}: not a model file, or cut short in its header")
        crc, n_lines = zlib.crc32(line, crc), n_lines + 1
        name, *value = line.decode("ascii", "replace").split(None, 1) or [""]
        if name and (name not in HEADER or name in said):
            raise DataError(f"{path}:{n_lines}: read '{quoted(name)}'" + " a second time" * (name in said)
                            + f", expected one of {', '.join(HEADER)}", DAMAGED)
        said[name] = value[0].strip() if value else ""
    try:
        return _checked(said, crc, n_lines)
    except ValueError as error:
        raise DataError(f"{path}: not a model file of a classifier ({error})") from None


def _checked(said: dict[str, str], crc: int, n_lines: int) -> Header:
    """ValueError says what is wrong with the lines of a header."""
    solver_type = _said(said, "solver_type", re.compile(r".+"))
    if solver_type in OTHER_MODELS:
        raise ValueError(f"{OTHER_MODELS[solver_type]}, {solver_type}")
    if solver_type not in CLASSIFIERS:
        raise ValueError(f"solver_type {quoted(solver_type)} is unknown")
    labels = [str(int(word)) for word in _said(said, "label", LABELS).split()]
    n_classes, n_ids = (int(_said(said, name, WHOLE)) for name in ("nr_class", "nr_feature"))
    bias = float(_said(said, "bias", NUMBER))
    if len(labels) != n_classes or n_classes < 2:
        raise ValueError(f"{len(labels)} labels, {n_classes} classes")
    if n_ids > LARGEST_ID or not abs(bias) < float("inf"):
        raise ValueError(f"nr_feature {n_ids}, bias {bias}")
    check_labels(labels)
    needs_last_line = said["nr_class"].startswith(NEEDS_LAST_LINE)
    return Header(crc, n_lines, solver_type, labels, n_ids, bias, "w_by_id" in said, needs_last_line)


def _said(said: dict[str, str], name: str, pattern: re.Pattern) -> str:
    if name not in said:
        raise ValueError(f"bad or missing header: '{name}'")
    if not pattern.fullmatch(said[name]):
        raise ValueError(f"bad header: {name} {quoted(said[name])}")
    return said[name]


def numbers_of(labels: list[str]) -> list[str]:
    """What LIBLINEAR calls them: themselves where all are numbers it can hold, else 1, 2, ..."""
    if all(_is_int32(label) for label in labels):
        return labels
    return [str(number + 1) for number in range(len(labels))]


def _is_int32(label: str) -> bool:
    try:
        return str(int(label)) == label and -(2**31) <= int(label) < 2**31
    except ValueError:
        return False


def check_info(info: dict, numbers: list[str]) -> tuple[list[str], bool]:
    """The labels and zero_based, taken out of what our line says, if it fits the numbers of LIBLINEAR's header."""
    labels, zero_based = info.pop("labels", numbers), info.pop("zero_based", False)
    if not isinstance(labels, list) or len(labels) != len(numbers):
        raise ValueError(f"{len(numbers)} labels are expected")
    check_labels(labels)
    if numbers_of(labels) != numbers:
        raise ValueError("its labels are not those of the header")
    if not isinstance(zero_based, bool):
        raise ValueError("zero_based is neither true nor false")
    if _is_deep(info, DEEPEST):
        raise ValueError("brackets in brackets, too deep")
    return labels, zero_based


def _is_deep(value, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(_is_deep(item, most - 1) for item in inner)


def read_trailer(path: str, line: bytes, crc: int) -> dict:
    """What our line, the last one, says; crc is that of all before it."""
    expected, _, ours = line[len(TRAILER) :].rstrip(b"\n").partition(b" ")
    if line.endswith(b"}\r\n"):
        raise DataError(f"{path}: its line ends are those of Windows", "fetch it as it was written, or try dos2unix")
    if not line.endswith(b"}\n"):
        raise DataError(f"{path}: cut short in its last line", CUT)
    found = b"%08x" % zlib.crc32(ours, crc)
    if found != expected:
        raise DataError(f"{path}: its checksum is {found.decode()}, but {quoted(expected[:20])} stands there", DAMAGED)
    try:
        return read_object(ours)
    except ValueError as error:
        raise DataError(f"{path}: damaged in its last line ({error})", DAMAGED) from None
