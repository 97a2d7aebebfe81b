"""Files that are complete or absent: written beside their place under a name that says whose they are."""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from pathlib import Path

from llsvm import process
from llsvm.core import ClosedPipe, LlsvmError, system_hint


def partial_name(path: Path) -> Path:
    """Where this process builds what will become `path`; leftovers of processes that were killed are removed."""
    prefix = f".{path.name}."
    for stale in path.parent.glob(f"{glob.escape(prefix)}*.partial"):
        owner = re.fullmatch(r"(\d+)(\.old)?\.partial", stale.name[len(prefix) :])
        if not owner or (int(owner[1]) != os.getpid() and _alive(int(owner[1]))):
            continue
        if owner[2] and not path.exists():
            os.rename(stale, path)  # killed while it was being replaced
        else:
            remove(stale)
    return path.parent / f"{prefix}{os.getpid()}.partial"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def remove(path: Path) -> None:
    """A file or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def temporary_folder() -> str:
    """Where temporary files go; a TMPDIR that cannot take them is an error, not a hint."""
    import tempfile

    wanted = os.environ.get("TMPDIR")
    if wanted and not os.path.isdir(wanted):
        raise LlsvmError(f"TMPDIR={wanted}: no such directory")
    return wanted or tempfile.gettempdir()


class Scratch:
    """A temporary file without a name: gone with this process, however that ends."""

    def __init__(self, purpose: str, n_bytes: int = 0):
        import tempfile

        self._folder = temporary_folder()
        try:
            self._file = tempfile.TemporaryFile(prefix=f"llsvm-{purpose}-", dir=self._folder)  # noqa: SIM115
            self._file.truncate(n_bytes)
        except OSError as error:
            raise self._full(error) from None

    def read(self, size: int, position: int) -> bytes:
        return os.pread(self._file.fileno(), size, position)

    def write(self, data, position: int) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise self._full(error) from None

    def _full(self, error: OSError) -> LlsvmError:
        return LlsvmError(f"{self._folder}: {error.strerror}", "set TMPDIR to a larger disk")

    def close(self) -> None:
        self._file.close()


def same_file(one: str, other: str) -> bool:
    """Both name one regular file, which need not be there yet; - is standard input or output, and no file."""
    if "-" in (one, other):
        return False
    try:
        if not os.path.exists(one):
            return os.path.realpath(one) == os.path.realpath(other)
        return os.path.isfile(one) and os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


class Output:
    """A file that appears when it is complete; opened before the work, so that a bad place is told at once.

    - is standard output; a device or a named pipe is written in place.
    """

    def __init__(self, path: str):
        self.path, self._partial = Path(path), None
        if path != "-":
            self.path = Path(os.path.realpath(path))  # a link stays a link
        try:
            if path == "-":
                os.write(1, b"")  # to a descriptor that cannot be written to, not even that
                self._file = os.fdopen(os.dup(1), "wb")
            elif self.path.exists() and not self.path.is_file():
                self._file = open(self.path, "wb")  # noqa: SIM115
            else:
                self._partial = partial_name(self.path)
                with process.uninterrupted():
                    self._file = open(self._partial, "wb")  # noqa: SIM115
                    process.unfinished[str(self._partial)] = path
        except OSError as error:
            raise self._failed(error) from None

    def write(self, data) -> None:
        self._attempt(self._file.write, data)

    def commit(self) -> None:
        self._attempt(self._file.close)
        if self._partial:
            with process.uninterrupted():
                self._attempt(os.replace, self._partial, self.path)
                del process.unfinished[str(self._partial)]

    def _attempt(self, action, *arguments) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            raise ClosedPipe from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> LlsvmError:
        if str(self.path) == "-":
            return LlsvmError(f"standard output {process.trouble(error)}")
        return LlsvmError(f"{self.path}: {error.strerror}", system_hint(error))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind, error, trace) -> None:
        with suppress(OSError):
            self._file.close()
        if self._partial:
            with process.uninterrupted():
                remove(self._partial)
                process.unfinished.pop(str(self._partial), None)
