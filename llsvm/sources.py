"""Inputs: files and standard input, of any compression, counted and hashed as they are on disk."""

from __future__ import annotations

import codecs
import io
import os
import stat
import zlib
from importlib import import_module
from pathlib import Path

from llsvm._sources import Digest
from llsvm.compression import HEADER, WINDOWS, Frames, kind_of, new_frame
from llsvm.core import DataError, LlsvmError, UsageError, system_hint
from llsvm.files import missing
from llsvm.memory import enough, format_size, usable
from llsvm.process import trouble

UNKNOWN = "unknown"  # how it is compressed
# Windows of this size are always had: gzip, bzip2, xz -6 and zstd -19 have no larger ones. For one that is larger, and
# known beforehand, up to 7/8 of the memory are set aside; 1/16 at least for what pipes and later frames may need.
USUAL_WINDOW, WINDOW_SHARE, UNKNOWN_SHARE = 8 << 20, 8, 16
SMALLER = {"xz": "recompress it with xz -6", "zstd": "recompress it without --long and --ultra"}


class Raw(io.RawIOBase):
    """The bytes of one input as they are on disk: counted, hashed if wanted, and with a pushed-back beginning."""

    def __init__(self, path: str, hashed: bool = True):
        self.name = "standard input" if path == "-" else path
        try:
            if path == "-":
                os.read(0, 0)  # of a descriptor that cannot be read from, not even that
            self._file = open(0 if path == "-" else path, "rb", buffering=0, closefd=path != "-")  # noqa: SIM115
        except IsADirectoryError:
            raise UsageError(f"{path} is a directory, not LIBSVM text") from None
        except FileNotFoundError:
            raise missing(path) from None
        except OSError as error:
            if path == "-":
                raise LlsvmError(f"standard input {trouble(error)}") from None
            raise LlsvmError(f"{self.name}: {error.strerror}", system_hint(error)) from None
        self.position = 0
        self._digest = Digest() if hashed else None
        self._front = b""
        status = self._status = os.fstat(self._file.fileno())
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self._start = self._file.tell() if self.size is not None else 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self._front:
            count = min(len(buffer), len(self._front))
            buffer[:count], self._front = self._front[:count], self._front[count:]
        else:
            try:
                count = self._file.readinto(buffer) or 0
            except OSError as error:
                raise LlsvmError(f"{self.name}: {error.strerror}") from None
        self.account(memoryview(buffer)[:count])
        return count

    def read_at(self, buffer, offset: int) -> int:
        """Fills the buffer from anywhere in the file; less than all only at its end. Counts and hashes nothing."""
        count = 0
        try:
            while count < len(buffer) and (more := os.preadv(self._file.fileno(), [buffer[count:]], offset + count)):
                count += more
        except OSError as error:
            raise LlsvmError(f"{self.name}: {error.strerror}") from None
        return count

    def account(self, data) -> None:
        """Counts and hashes bytes of the file; those that read_at gave must come in their order."""
        self.position += len(data)
        if self._digest:
            self._digest.update(data)

    def front(self, count: int, until: bytes = b"") -> bytes:
        """The first bytes, without consuming them: `count` of them, or up to `until` or the end."""
        while len(self._front) < count and not (until and until in self._front):
            more = self._file.read(count - len(self._front))
            if not more:
                break
            self._front += more
        return self._front

    @property
    def digest(self) -> str:
        return self._digest.hexdigest() if self._digest else ""

    def check_unchanged(self, at_end: bool = False) -> None:
        """Refuses a file that is not as it was when it was opened, or was not read to the end that it had then."""
        if self.size is None:
            return
        now, before = os.fstat(self._file.fileno()), self._status
        same = (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if not same or (at_end and self._start + self.position != self.size):
            raise DataError(f"{self.name}: changed while it was read", "try again when nobody writes to it any longer")

    def close(self) -> None:
        self._file.close()
        super().close()


class Source:
    """One input, decompressed; opened when its first byte is wanted and closed at its end, so there may be many.

    window: the largest that a frame may need; reserved: the bytes that are set aside for it; budgeted: by --memory.
    """

    def __init__(self, path: str, hashed: bool = True, raw: Raw | None = None):
        self.name = "standard input" if path == "-" else path
        self._path, self._hashed, self._raw = path, hashed, raw
        self.size = os.path.getsize(path) if path != "-" and os.path.isfile(path) else None
        self._kind, self._stream, self._description = "", None, None
        self.window, self.reserved, self.budgeted = USUAL_WINDOW, 0, False

    @property
    def raw(self) -> Raw:
        """The open file."""
        if self._raw is None:
            self._raw = Raw(self._path, self._hashed)
            self.size = self._raw.size if self.size is not None else None
        return self._raw

    @property
    def position(self) -> int:
        """Bytes read so far, as they are on disk."""
        if self._description:
            return self._description["size"]
        return self._raw.position if self._raw else 0

    def open(self) -> None:
        front = self.raw.front(6)
        self._stream, self._marked = self.raw, front.startswith(codecs.BOM_UTF8)
        self._kind = kind_of(front)
        if self._kind:
            raw = io.BufferedReader(self.raw, 1 << 17)
            gzip = self._kind == "gzip" and import_module("gzip")  # loaded when needed: plain text need not wait for it
            self._stream = gzip.GzipFile(fileobj=raw) if gzip else Frames(raw, self._new_frame)

    def _new_frame(self, beginning: bytes):
        if self._kind in WINDOWS and (window := WINDOWS[self._kind](beginning)) > self.window:
            raise self.too_large(self._kind, format_size(window), UNKNOWN_SHARE * (window - USUAL_WINDOW))
        return new_frame(self._kind, beginning, self.window)

    def foresee(self) -> tuple[str, int]:
        """How it is compressed, and the window that its first frame needs, 0 where that is not known beforehand, as of
        pipes, which are opened once."""
        if self._path != "-" and Path(self._path).is_fifo():
            return UNKNOWN, 0
        raw = self.raw if self._path == "-" else Raw(self._path, hashed=False)
        kind = kind_of(raw.front(6)) if raw.size is not None or raw is self._raw else UNKNOWN
        window = WINDOWS[kind](raw.front(HEADER)) if kind in WINDOWS else 0
        if raw is not self._raw:
            raw.close()
        return kind, window

    def too_large(self, kind: str, window: str, needed: int = 0) -> UsageError:
        """needed: bytes of memory that would do, 0 where nobody knows."""
        would_do = f"--memory {enough(needed)} would do, or " if needed and self.budgeted else ""
        return UsageError(f"{self.name} needs a window of {window} to be decompressed", would_do + SMALLER[kind])

    @property
    def random_access(self) -> bool:
        """Plain text in a regular file, of which any part can be read at any time."""
        return self.size is not None and self._stream is self.raw and not self._marked

    def readinto(self, buffer) -> int:
        if self._stream is None:
            self.open()
        try:
            return self._stream.readinto(buffer)
        except Exception as error:
            is_known = isinstance(error, (EOFError, zlib.error, OSError, ValueError))
            if not is_known and type(error).__name__ not in ("LZMAError", "ZstdError"):  # of modules not yet loaded
                raise
            self.raw.check_unchanged()
            if "emory usage limit" in str(error):
                raise self.too_large("xz", f"more than {format_size(self.window)}") from None
            raise DataError(f"{self.name}: corrupt or truncated {self._kind} data ({error})") from None

    def check_unchanged(self, at_end: bool = False) -> None:
        """Refuses what has changed since it was opened, which may be why it is wrong, or why it ended."""
        self.raw.check_unchanged(at_end)

    def description(self) -> dict:
        if self._description is None:
            self._description = {"name": self.name, "size": self.raw.position, "xxh64": self.raw.digest}
        return self._description

    def close(self) -> None:
        self.description()
        self.raw.close()
        self._raw = self._stream = None


def open_sources(paths, memory: int | None = None, hashed: bool = True) -> list[Source]:
    """All inputs, each opened once before any work begins, so that a wrong name costs nothing; but a named pipe can be
    opened only once. memory: see `with_room`."""
    return with_room([Source(path, hashed) for path in paths], memory)


def with_room(sources: list[Source], memory: int | None) -> list[Source]:
    """Sets aside what decompressing may take of so many bytes, or, where there is no --memory, of half of what this
    process may use. Only one source is read at a time, so the largest window counts."""
    room, windows = usable() // 2 if memory is None else memory, []
    for source in sources:
        source.budgeted = memory is not None
        kind, window = source.foresee()
        if kind in WINDOWS or kind == UNKNOWN:
            windows.append(window - USUAL_WINDOW)
        if window - USUAL_WINDOW > room - room // WINDOW_SHARE:
            needed = -(-(window - USUAL_WINDOW) * WINDOW_SHARE // (WINDOW_SHARE - 1))
            raise source.too_large(kind, format_size(window), needed)
    reserved = max(*windows, room // UNKNOWN_SHARE) if windows else 0
    for source in sources:
        source.window, source.reserved = USUAL_WINDOW + reserved, reserved
    return sources


def reserved_bytes(sources: list[Source]) -> int:
    """Memory that the rest must do without while the sources are read."""
    return max(source.reserved for source in sources)


def reserved_of(room: int, reserved: int) -> int:
    """Bytes set aside of so many, where so many were set aside of those there are now."""
    return max(reserved, room // UNKNOWN_SHARE) if reserved else 0


def beside_windows(needed: int, reserved: int) -> int:
    """Bytes of which `needed` are left when what was reserved has been set aside, or what will be of so much."""
    return -(-(needed + reserved) * UNKNOWN_SHARE // (UNKNOWN_SHARE - 1)) if reserved else needed
