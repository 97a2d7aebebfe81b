"""Temporary files without a name, in TMPDIR: gone with this process, however that ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from llsvm.core import DataError, LlsvmError, system_hint
from llsvm.files import FULL, IN_MEMORY, file_system

warn: Callable[[str], None] = lambda text: None  # noqa: E731  # who has a console sets this
_warned: set[str] = set()


def temporary_folder() -> str:
    """Where temporary files go; a TMPDIR that cannot take them is an error, one that is in memory a warning."""
    wanted = os.environ.get("TMPDIR")
    if wanted and not os.path.isdir(wanted):
        raise LlsvmError(f"TMPDIR={wanted}: no such directory")
    folder = wanted or tempfile.gettempdir()
    if folder not in _warned and (kind := file_system(folder)) in IN_MEMORY:
        warn(f"temporary files in {folder} ({kind}) are in memory, beside --memory; set TMPDIR to a disk")
    _warned.add(folder)
    return folder


class Scratch:
    """A temporary file."""

    def __init__(self, purpose: str, n_bytes: int = 0):
        self._folder = temporary_folder()
        try:
            self._file = tempfile.TemporaryFile(prefix=f"llsvm-{purpose}-", dir=self._folder)  # noqa: SIM115
            self._file.truncate(n_bytes)
        except OSError as error:
            raise full(self._folder, error) from None

    def read(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), size, position)
            while len(data) < size and (more := os.pread(self._file.fileno(), size - len(data), position + len(data))):
                data += more
        except OSError as error:
            raise LlsvmError(f"{self._folder}: {error.strerror}", "the disk of TMPDIR does not work") from None
        if len(data) < size:
            raise DataError(f"{self._folder}: a temporary file is {size - len(data)} bytes shorter than was written")
        return data

    def write(self, data, position: int) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise full(self._folder, error) from None

    def close(self) -> None:
        self._file.close()


class Nameless:
    """Temporary files that are told apart as those of a folder are: a block set without a place."""

    def __init__(self):
        self.path = Path(temporary_folder(), "(temporary set)")  # for messages
        self._files = {}

    def open(self, name: str):
        """A file, to write at its end."""
        if name not in self._files:
            self._files[name] = tempfile.TemporaryFile(prefix="llsvm-", dir=self.path.parent, buffering=0)  # noqa: SIM115
        return open(os.dup(self._files[name].fileno()), "ab", buffering=0)

    @contextmanager
    def opened(self, name: str):
        """A descriptor of a file that is there, to read anywhere."""
        yield self._files[name].fileno()

    def read(self, name: str) -> bytes:
        """All of a file."""
        descriptor = self._files[name].fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def failed(self, name: str, error: OSError) -> LlsvmError:
        """What to say where a file could not be written."""
        return full(str(self.path.parent), error)

    def commit(self) -> Nameless:
        return self

    def clear(self) -> None:
        """Nothing is there that could be left."""

    def close(self) -> None:
        """They stay open: they could not be opened again."""

    def discard(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def full(folder: str, error: OSError) -> LlsvmError:
    hint = "set TMPDIR to a larger disk" if error.errno in FULL else system_hint(error)
    hint = hint or "TMPDIR says where temporary files go"
    return LlsvmError(f"{folder}: {error.strerror}", hint)
