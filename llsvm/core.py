"""The nouns that move between modules, and the errors."""

from __future__ import annotations

import errno
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy takes longer to load than --help should take
    from collections.abc import Callable

    import numpy as np

REFUSED, USAGE, NOT_CONVERGED, INTERRUPTED, CLOSED_PIPE = 1, 2, 3, 130, 141
LINE_SHAPE = "every line is: label id:value id:value ..."  # of LIBSVM text
LABEL_BYTES = 256
# Blanks, control characters, and what has no width or turns the direction of writing; but not joiners, of which Persian
# words and emoji are made.
INVISIBLE = (
    "[\0- \x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    "\ufff9-\ufffb]"
)
ROUNDING = 1e-6  # of the objective, by which what was summed in another order may differ


class LlsvmError(Exception):
    """Something a user can mend: one sentence, and a hint on what to do."""

    exit_code = REFUSED

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.message, self.hint = message, hint


class DataError(LlsvmError):
    """The data cannot be trusted: bad text, a corrupt or truncated file."""


class TooLarge(LlsvmError):
    """Numbers that double precision cannot hold have come up in training."""

    def __init__(self, solver: str):
        super().__init__(f"C, the values or the bias are too large for -s {solver}: w overflows",
                         "scale the values of the data to about 1; a smaller -c or -B")


class UsageError(LlsvmError):
    """The options do not fit together."""

    exit_code = USAGE


class Interrupted(LlsvmError):
    """Ctrl-C, with nothing worth keeping."""

    exit_code = INTERRUPTED


class ClosedPipe(LlsvmError):
    """The reader of our output went away, as `head` does: not worth a word."""

    exit_code = CLOSED_PIPE

    def __init__(self):
        super().__init__("")


class Stopped(Exception):
    """Training is to end before its pass does. Raised between two steps, where w and D fit together."""


def look_at_end(reason: str, look: Callable[[], None], is_done: Callable[[], bool]) -> str:
    """Looks for a certificate when training has ended for this reason; returns the reason, perhaps another."""
    try:
        look()
    except Stopped:
        reason = "time" if reason == "passes" else reason
    return "converged" if is_done() and reason != "interrupted" else reason


class Deadline:
    """When training must end. Solvers look at it between groups of rows, between machines and between sweeps."""

    def __init__(self, seconds: float = float("inf")):
        self._end = time.perf_counter() + seconds

    @property
    def passed(self) -> bool:
        return time.perf_counter() >= self._end

    def check(self) -> None:
        if self.passed:
            raise Stopped

    def allow(self, seconds: float) -> None:
        """So much more time, from now on if it has passed."""
        self._end = max(self._end, time.perf_counter()) + seconds


NEVER = Deadline()
OUT_OF_TIME = "stopped by --time-limit"  # why there is no certificate


def encoded(text: str) -> bytes:
    """As UTF-8, where the bytes of a name that are none are as they were, and half a character of JSON is something."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def system_hint(error: OSError) -> str:
    """What to do where the system refuses for a reason that has nothing to do with the file."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "more files may be open at a time after `ulimit -n 1024`"
    return ""


def escaped(text: str | bytes) -> str:
    """All of it, without what a terminal would obey: control characters and stray bytes are spelled out."""
    text = (encoded(text) if isinstance(text, str) else text).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(text: str | bytes, most: int = 60) -> str:
    """What a file says, fit for a message: escaped, and cut after so many characters."""
    shown = escaped((encoded(text) if isinstance(text, str) else text)[: 4 * most + 4])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def label_fault(name: str) -> str | None:
    """What a label should be that this one is not; None where it is one.

    A label is one word that can be seen, in UTF-8, of at most 256 bytes. What stands for a missing number, nan or inf,
    is no label.
    """
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "a label in UTF-8"
    if not 0 < size <= LABEL_BYTES:
        return f"a label of 1 to {LABEL_BYTES} bytes"
    if re.search(INVISIBLE, name):
        return "a label without blanks or control characters"
    if name.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return "a label other than nan and inf"
    return None


def name_fault(name) -> str:
    """Why this cannot be the name of a label in a model or a block set, "" if it can: it would break a line of output.
    label_fault is stricter with text; files made before it was may be read."""
    if not isinstance(name, str):
        return "is no text"
    if not name or "\n" in name or "\r" in name:
        return "has a line end in it" if name else "is empty"
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "is no text"
    return ""


def check_labels(names: list) -> None:
    """Raises ValueError unless these can be the labels of a data set or a model."""
    known = set()
    for number, name in enumerate(names, 1):
        if fault := name_fault(name):
            raise ValueError(f"label {number} {fault}")
        if name in known:
            raise ValueError(f"label {number} is {quoted(name)} a second time")
        known.add(name)


def read_object(text: str | bytes) -> dict:
    """The JSON object that this text is; ValueError where it is none, or where brackets stand in brackets too deep."""
    import json

    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets in brackets, too deep") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


@dataclass
class Block:
    """Rows: row r has features[indptr[r]:indptr[r + 1]] (0-based, int32), the values beside them, and a label code.

    codes number the labels in the order of a label table kept elsewhere; values are float32 or float64. All may
    be memoryviews, where NumPy is not needed.
    """

    codes: np.ndarray | memoryview
    indptr: np.ndarray | memoryview
    features: np.ndarray | memoryview
    values: np.ndarray | memoryview

    @property
    def n_rows(self) -> int:
        return len(self.codes)

    @property
    def n_nonzeros(self) -> int:
        return len(self.features)

    def copy(self) -> Block:
        import numpy as np

        return Block(*map(np.array, (self.codes, self.indptr, self.features, self.values)))


@dataclass
class Description:
    """What is known of a data set without reading its rows; labels in order of first occurrence."""

    n_rows: int
    n_features: int
    n_nonzeros: int
    labels: list[str]
    label_counts: np.ndarray
    largest_norm: float
    zero_based: bool
    dtype: np.dtype
    sources: list[dict]


def label_order(labels: list[str]) -> list[str]:
    """As LIBLINEAR: in order of first occurrence, but -1 never before +1."""
    return ["1", "-1"] if labels == ["-1", "1"] else list(labels)


@dataclass(frozen=True)
class Certificate:
    """P(w) and D(alpha): no w can be better than dual, so w is at most `gap` from the optimum."""

    primal: float
    dual: float

    @property
    def gap(self) -> float:
        """Infinite where the dual is no number, or further above the primal than rounding takes it."""
        below = self.primal - self.dual
        return max(0.0, below) if below >= -ROUNDING * abs(self.primal) else float("inf")

    @property
    def relative_gap(self) -> float:
        return self._relative(self.gap)

    @property
    def estimate(self) -> float:
        """Of the relative gap, where the losses are those met on the way: they may be less than those at any one w, and
        even take P below D."""
        return self._relative(max(0.0, self.primal - self.dual))

    def _relative(self, gap: float) -> float:
        return gap / max(abs(self.primal), 1e-300) if self.primal < float("inf") else float("inf")


@dataclass
class PassStats:
    """What is known after a pass over the data; times in seconds and bytes count from the start of training.

    primal, dual and gap (relative) are those of the best certified w, or, where none is near the tolerance yet,
    estimates from the losses met on the way (certified = False), the gap infinite where these tell nothing. change: of
    the dual value, relative, where a solver stops by it. finished: the solver has reached its tolerance.
    """

    number: int
    visits: int = 0
    active: int = 0
    certified: bool = False
    primal: float = float("inf")
    dual: float = 0.0
    gap: float = float("inf")
    bytes_read: int = 0
    wait: float = 0.0
    compute: float = 0.0
    seconds: float = 0.0
    peak_memory: int = 0
    change: float = float("inf")
    finished: bool = False

    def as_dict(self) -> dict:
        """For JSON, which knows no infinity."""
        return {name: None if value == float("inf") else value for name, value in asdict(self).items()}
