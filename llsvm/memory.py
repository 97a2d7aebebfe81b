"""What this process may use: the byte budget, what it promised, what it used; and the cores and files."""

from __future__ import annotations

import math
import os
import re
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llsvm.arrays import keep_freed
from llsvm.core import LlsvmError, UsageError

MB = 1 << 20
# Resident size of the interpreter with numpy, zstandard, click and our kernels loaded, thread stacks and allocator
# slack included (measured: 45 to 55 MB on Linux x86-64, Python 3.10 to 3.13).
FLOOR = 64 * MB
# The same where all rows are resident: a few large arrays, next to no buffers, and no threads that decode.
RESIDENT_FLOOR = 52 * MB
# Part of the floor that decoding may use for its buffers.
BUFFERS = 4 * MB
NUMPY = 112 * MB  # of addresses, for the interpreter with NumPy loaded (measured: 101 MB)
OTHER_FILES = 16  # open at a time, beside those of a block set
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """'300M', '2G', '1.5GiB' or plain bytes, in powers of 1024."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if size < 1:
        raise UsageError(f"'{text}' is not a memory size", "write a number with K, M, G or T, for example --memory 2G")
    return size


def parse_budget(text: str) -> int:
    """As parse_size, of --memory: bytes may be said, but hardly so few."""
    if (size := parse_size(text)) < MB and text.strip().isdigit():
        hint = f"did you mean {text.strip()}M?" if size < MB // 8 else "a megabyte at least is usual: --memory 1M"
        raise UsageError(f"--memory {text} is {size} bytes", hint)
    return size


def format_size(n_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if n_bytes >= 100 or unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TB"


def short_size(n_bytes: float) -> str:
    """As format_size, in the form that --memory takes."""
    return format_size(n_bytes).replace(" ", "").removesuffix("B")


def _cgroup_folders(controller: str):
    """(folder, version) on the way from this process's control group to the root, versions 1 and 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = Path(f"/sys/fs/cgroup/{controllers and controller}")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder, 1 if controllers else 2
            if folder == root:
                break


def _cgroup_limits():
    """Every memory limit of the control groups."""
    for folder, version in _cgroup_folders("memory"):
        with suppress(OSError, ValueError):
            yield int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text())


def _cgroup_cores():
    """Every limit of the control groups on processor time, in cores."""
    for folder, version in _cgroup_folders("cpu"):
        with suppress(OSError, ValueError):
            if version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0 < period:
                yield quota / period


def usable_cores() -> int:
    """Cores this process may use: those it may run on, or fewer where a control group says so."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([allowed, *_cgroup_cores()])))


def usable() -> int:
    """Bytes this process may use: physical memory, or less where a control group or a ulimit says so."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limit for limit in limits if limit > 0)


def check_limit() -> None:
    """Refuses a `ulimit -v` in which NumPy cannot be loaded: it would crash, or hang."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < NUMPY:
        raise LlsvmError(f"ulimit -v {soft >> 10} is too small to load NumPy",
                         f"at least ulimit -v {NUMPY >> 10} is needed")


def files_at_a_time(most: int) -> int:
    """How many files to hold open at a time: so many, or, where the limit is low, half of what is allowed but for what
    else is opened meanwhile, modules among it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // 2 - OTHER_FILES))


def enough(n_bytes: int, floor: int = FLOOR) -> str:
    """The smallest --memory, in whole megabytes, whose budget is n_bytes."""
    return f"{-(-(n_bytes if n_bytes <= FLOOR else n_bytes + floor) // MB)}M"


class Footprint(NamedTuple):
    """What a solver has in memory beside rows: for each column of weights so many vectors and, where there are several
    columns, so many bytes beside them; and bytes a row."""

    columns: int = 1
    vectors: int = 2
    beside: int = 0
    row_bytes: int = 0

    def weights(self, n_features: int) -> int:
        """Bytes of w, of the snapshot that is being certified, of the best one, or of so many vectors a column; at the
        end of all of them, also sorted, and of the ids."""
        vectors = 8 * (n_features + 1) * (self.vectors * self.columns + 2)
        return vectors + (self.beside * self.columns if self.columns > 1 else 0)

    def bytes(self, n_features: int, n_rows: int) -> int:
        return self.weights(n_features) + self.row_bytes * n_rows


def too_small(memory: int, what: str, would_do: int, known: bool = True, or_else: str = "") -> UsageError:
    """A budget in which `what` does not fit. would_do: bytes for arrays; known: whether these are all it takes."""
    given, enough_of_it = f" {short_size(memory)}" * bool(memory), f"--memory {enough(would_do)}"
    return UsageError(f"--memory{given} is too small: {what}",
                      (f"{enough_of_it} would do" if known else f"at least {enough_of_it} is needed") + or_else)


class Budget:
    """The bytes for arrays under --memory, as a value: `left` is what nobody has taken, and what does not fit into it
    is refused here.

    From twice the floor upwards the whole process stays below `memory`; a smaller budget is for the arrays alone (the
    process then stays below it plus the floor), because no interpreter could fit.
    """

    def __init__(self, memory: int, taken: int = 0, floor: int = FLOOR):
        self.memory, self.taken, self._floor = memory, taken, floor

    @property
    def left(self) -> int:
        return max(min(self.memory, FLOOR), self.memory - self._floor) - self.taken

    @property
    def of_resident(self) -> Budget:
        """For resident rows and all arrays beside them."""
        return Budget(self.memory, self.taken, RESIDENT_FLOOR)

    def without(self, n_bytes: int) -> Budget:
        """With so many bytes taken, whether they are there or not."""
        return Budget(self.memory, self.taken + n_bytes, self._floor)

    def take(self, n_bytes: int, what: str, *, would_do: int = 0, known: bool = True, or_else: str = "") -> Budget:
        """With so many bytes taken; refuses if they are not there. what: a clause that says what takes them; would_do:
        bytes with which it will fit, if these are more; known: whether this is all that it takes."""
        if n_bytes > self.left:
            raise too_small(self.memory, what, self.taken + max(n_bytes, would_do), known, or_else)
        return self.without(n_bytes)

    def take_weights(self, n_features: int, footprint: Footprint, known: bool = True, ids: int = 0) -> Budget:
        """With the weights taken of all features and classes, or, if these are not known, of those so far. ids: bytes
        without which these could not be read."""
        needed, columns = footprint.weights(n_features), footprint.columns
        what = f"the weights of {n_features} features" + f" for {columns} classes" * (columns > 1)
        if columns > 1 and 2 * footprint.beside * columns > needed:
            what = f"the problems of {columns} classes with {n_features} features each"
        what += f"{'' if known else ', so far,'} alone take {format_size(needed)}"
        return self.take(needed, what, would_do=max(2 * needed, ids), known=known)

    def take_most(self, n_bytes: int, what: str, growing: Callable[[int], int] = lambda room: 0) -> Budget:
        """With so many bytes taken by `what`; refuses if next to none are left. growing(room): of these, what depends
        on the bytes that there are for arrays."""
        room = self.left
        if room - n_bytes < n_bytes // 16:
            fixed, would_do, needed = n_bytes - growing(room), room, n_bytes
            while would_do - needed < needed // 16:
                would_do = needed + needed // 8
                needed = fixed + growing(would_do)
            raise too_small(self.memory, f"{what} take {format_size(n_bytes)}", self.taken + would_do, known=False)
        return self.without(n_bytes)


def promised(memory: int) -> int:
    """The resident size that the process promises to stay below."""
    return Budget(memory).left + FLOOR


def keep_no_freed_arrays() -> None:
    """Makes glibc give arrays from 256 KB up back to the system as soon as they are freed."""
    keep_freed(1 << 18, 1 << 17)


def keep_freed_arrays() -> None:
    """Makes glibc keep what was freed for what is allocated next, up to 4 MB of it at the end of each heap."""
    keep_freed(4 * MB, 4 * MB)


def give_back() -> None:
    """Gives all that was freed back to the system, small arrays too."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak() -> int:
    """Largest resident size of this process so far, in bytes."""
    with suppress(OSError), open("/proc/self/status") as status:
        # Unlike getrusage, this does not begin at the size of the process that started us.
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
