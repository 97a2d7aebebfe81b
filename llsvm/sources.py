"""Inputs: files and standard input, of any compression, counted and hashed as they are on disk."""

from __future__ import annotations

import codecs
import io
import os
import zlib
from importlib import import_module
from pathlib import Path

from llsvm._sources import Digest
from llsvm.core import DataError, LlsvmError, UsageError, system_hint
from llsvm.files import missing
from llsvm.process import trouble

SWELLING = 1 << 18  # decompressed bytes wanted at a time


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

    def close(self) -> None:
        self._file.close()
        super().close()


class _Frames(io.RawIOBase):
    """Compressed frames one behind the other; unlike the libraries' own readers it notices what is cut or no frame.

    Decodes bounded amounts at a time: bz2 and lzma let us say how much, zstd is fed little when it swells.
    """

    def __init__(self, raw, new):
        self._raw, self._new = raw, new
        self._frame, self._out, self._rest, self._step = None, b"", b"", 256

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._out:
            if self._frame is not None and not getattr(self._frame, "needs_input", True):
                data = b""
            else:
                data, self._rest = self._rest or self._raw.read(self._step), b""
                if self._frame is None:
                    data = data.lstrip(b"\0")
                    if not data:
                        if self._raw.peek(1):
                            continue
                        return 0
                    self._frame = self._new()
                elif not data:
                    raise EOFError("the last frame is incomplete")
            self._decode(data)
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count

    def _decode(self, data: bytes) -> None:
        bounded = hasattr(self._frame, "needs_input")
        self._out = self._frame.decompress(data, SWELLING) if bounded else self._frame.decompress(data)
        if len(self._out) > SWELLING:
            self._step = max(64, self._step // 4)
        elif len(self._out) < SWELLING // 4:
            self._step = min(1 << 17, 2 * self._step)
        if self._frame.eof:
            self._rest, self._frame = self._frame.unused_data, None


def _zstd_frame():
    return import_module("zstandard").ZstdDecompressor(max_window_size=1 << 31).decompressobj()


# Their modules are loaded when they are needed: plain text need not wait for them.
FORMATS = {
    b"\x1f\x8b": ("gzip", lambda raw: import_module("gzip").GzipFile(fileobj=raw)),
    b"BZh": ("bzip2", lambda raw: _Frames(raw, import_module("bz2").BZ2Decompressor)),
    b"\xfd7zXZ\x00": ("xz", lambda raw: _Frames(raw, import_module("lzma").LZMADecompressor)),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda raw: _Frames(raw, _zstd_frame)),
}


class Source:
    """One input, decompressed; opened when its first byte is wanted and closed at its end, so there may be many."""

    def __init__(self, path: str, hashed: bool = True, raw: Raw | None = None):
        self.name = "standard input" if path == "-" else path
        self._path, self._hashed, self._raw = path, hashed, raw
        self.size = os.path.getsize(path) if path != "-" and os.path.isfile(path) else None
        self._kind, self._stream, self._description = "", None, None

    @property
    def raw(self) -> Raw:
        """The open file."""
        if self._raw is None:
            self._raw = Raw(self._path, self._hashed)
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
        for magic, (kind, opener) in FORMATS.items():
            if front.startswith(magic):
                self._kind, self._stream = kind, opener(io.BufferedReader(self.raw, 1 << 17))

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
            raise DataError(f"{self.name}: corrupt or truncated {self._kind} data ({error})") from None

    def description(self) -> dict:
        if self._description is None:
            self._description = {"name": self.name, "size": self.raw.position, "xxh64": self.raw.digest}
        return self._description

    def close(self) -> None:
        self.description()
        self.raw.close()
        self._raw = self._stream = None


def open_sources(paths, hashed: bool = True) -> list[Source]:
    """All inputs, each opened once before any work begins, so that a wrong name costs nothing; but a named pipe can be
    opened only once."""
    for path in paths:
        if path != "-" and not Path(path).is_fifo():
            Raw(path, hashed=False).close()
    return [Source(path, hashed) for path in paths]
