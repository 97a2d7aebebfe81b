"""What bounds a benchmark: reading the bytes once, from disk or from memory, and a memory limit of the kernel's."""

import os
import time
from contextlib import contextmanager
from pathlib import Path

import peers

GROUP_FILES = "cgroup.controllers", "cgroup.subtree_control"
NO_SWAP = "memory.swap.max"
LIMIT_FILES = "memory.max", NO_SWAP, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"


def disk_seconds(path):
    """Of reading a file, or the files of a folder, that are not in the page cache."""
    peers.forget(path)
    began = time.perf_counter()
    peers.read_once(path)
    return time.perf_counter() - began


def memory_seconds(n_bytes):
    """Of reading so many bytes of memory with one thread: a sum by NumPy, the best of three."""
    import numpy as np

    numbers, times = np.ones(n_bytes // 8, np.uint64), []
    for _ in range(3):
        began = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - began)
    return min(times)


def promised(memory):
    """The resident size below which llsvm stays (docs/memory.md)."""
    return max(memory, min(memory, peers.INTERPRETER) + peers.INTERPRETER)


@contextmanager
def memory_group(limit):
    """A control group with this limit, page cache included: (folder, ""), or (None, why there is none)."""
    folder, why = _make_group()
    try:
        for name in LIMIT_FILES if folder else ():
            if (folder / name).exists():
                (folder / name).write_text("0" if name == NO_SWAP else str(limit))
        yield folder, why
    finally:
        if folder:
            folder.rmdir()


def _make_group():
    why = "no control group limits memory on this machine"
    for root in _group_roots():
        try:
            folder = root / f"llsvm-bench-{os.getpid()}"
            folder.mkdir()
            return folder, ""
        except OSError as error:
            why = f"no control group could be made: {error.strerror}"
    return None, why


def _group_roots():
    """Where control groups that limit memory can be made: version 2, then version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, folder, kind, *_ in mounts:
        files = [Path(folder) / name for name in GROUP_FILES]
        if kind == "cgroup2" and all(file.exists() and "memory" in file.read_text().split() for file in files):
            yield Path(folder)
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            yield Path(folder)


def within(folder, command):
    """The command as a member of this group, or as it is for None."""
    if folder is None:
        return command
    enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "cgroup.procs")]
    return command._replace(words=[*enter, *command.words])
