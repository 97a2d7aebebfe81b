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
from llsvm.core import DataError, LlsvmError, UsageError, system_hint
from llsvm.files import missing
from llsvm.memory import enough, format_size, usable
from llsvm.process import trouble

SWELLING = 1 << 18  # decompressed bytes wanted at a time
STEP = 1 << 16  # compressed bytes read at a time
# What says of a file or a frame how it is compressed, and within how many bytes it says what window it needs.
ZSTD, XZ, HEADER = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", 2 << 10
FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", XZ: "xz", ZSTD: "zstd", b"\x50\x2a\x4d\x18": "zstd"}  # the last: pzstd
LZMA2, UNKNOWN = 0x21, "unknown"
# Windows of this size are always had: gzip, bzip2, xz -6 and zstd -19 have no larger ones. For one that is larger, and
# known beforehand, up to 7/8 of the memory are set aside; 1/16 at least for what pipes and later frames may need.
USUAL_WINDOW, WINDOW_SHARE, UNKNOWN_SHARE = 8 << 20, 8, 16
LZMA_BESIDE = 1 << 20  # that liblzma takes beside the dictionary, and more
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


class _Frames(io.RawIOBase):
    """Compressed frames one behind the other; unlike the libraries' own readers it notices what is cut or no frame.

    new(beginning) makes a decoder of the frame that begins so: `decompress(data, most)`, `needs_input`, `eof` and
    `unused_data` as bz2 and lzma have them.
    """

    def __init__(self, raw, new):
        self._raw, self._new = raw, new
        self._frame, self._out, self._rest = None, b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._out:
            if self._frame is not None and not self._frame.needs_input:
                data = b""
            else:
                data, self._rest = self._rest or self._raw.read(STEP), b""
                if self._frame is None:
                    data = data.lstrip(b"\0")
                    if not data:
                        if self._raw.peek(1):
                            continue
                        return 0
                    if len(data) < HEADER:
                        data += self._raw.read(HEADER - len(data))
                    self._frame = self._new(data)
                elif not data:
                    raise EOFError("the last frame is incomplete")
            self._out = self._frame.decompress(data, SWELLING)
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count


class _ZstdFrame:
    """Decodes a frame some blocks at a time, each of which gives 128 KB at most, however much that swells."""

    BLOCK, RAW, RUN = 1 << 17, 0, 1

    def __init__(self, beginning: bytes):
        zstandard = import_module("zstandard")
        self._decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        # Up to the next header of a block. A skippable frame has none: its decoder is given what comes as it comes.
        self._waiting, self._next = b"", zstandard.frame_header_size(beginning)
        self._in_last_block = not beginning.startswith(ZSTD)

    def decompress(self, data: bytes, most: int) -> bytes:
        """Not much more than `most` bytes."""
        data, end, bound = self._waiting + data, self._next, 0
        while not self._in_last_block and bound < most and end + 3 <= len(data):
            header = int.from_bytes(data[end : end + 3], "little")
            self._in_last_block, kind, size = header & 1, header >> 1 & 3, header >> 3
            bound += size if kind == self.RAW else self.BLOCK
            end += 4 if kind == self.RUN else 3 + size
        if self._in_last_block:
            end = len(data)  # a checksum may follow, and then another frame
        self._waiting, self._next = data[end:], max(0, end - len(data))
        return self._decoder.decompress(data[:end])

    @property
    def needs_input(self) -> bool:
        return len(self._waiting) < self._next + 3

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data


def _zstd_window(beginning: bytes) -> int:
    """Bytes that decoding a frame takes; 0 where it begins with nothing that tells."""
    zstandard = import_module("zstandard")
    try:
        frame = zstandard.get_frame_parameters(beginning)
    except zstandard.ZstdError:
        return 0
    return min(frame.window_size, frame.content_size)


def _xz_window(beginning: bytes) -> int:
    """The dictionary of the first block of an xz stream; 0 where there is none. (The xz file format, 3.1 and 5.3.1)"""
    block = iter(beginning[12:])
    try:
        size, flags = next(block), next(block)
        for _ in range((flags >> 6 & 1) + (flags >> 7)):
            _xz_number(block)  # of bytes, compressed or not
        for _ in range((flags & 3) + 1 if size else 0):
            kind, properties = _xz_number(block), [next(block) for _ in range(_xz_number(block))]
            if kind == LZMA2:
                bits = properties[0] & 63
                return (2 | bits & 1) << (bits // 2 + 11)
    except (StopIteration, IndexError):
        pass
    return 0


def _xz_number(block) -> int:
    """Of seven bits a byte, the last below 128."""
    number, shift = 0, 0
    while (byte := next(block)) & 128 and shift < 63:
        number, shift = number | (byte & 127) << shift, shift + 7
    return number | byte << shift


WINDOWS = {"xz": _xz_window, "zstd": _zstd_window}


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
        self._kind = _kind(front)
        if self._kind:
            raw = io.BufferedReader(self.raw, 1 << 17)
            gzip = self._kind == "gzip" and import_module("gzip")  # loaded when needed: plain text need not wait for it
            self._stream = gzip.GzipFile(fileobj=raw) if gzip else _Frames(raw, self._new_frame)

    def _new_frame(self, beginning: bytes):
        if self._kind == "bzip2":
            return import_module("bz2").BZ2Decompressor()
        if (window := WINDOWS[self._kind](beginning)) > self.window:
            raise self.too_large(self._kind, format_size(window), UNKNOWN_SHARE * (window - USUAL_WINDOW))
        if self._kind == "zstd":
            return _ZstdFrame(beginning)
        lzma = import_module("lzma")
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self.window + LZMA_BESIDE)

    def foresee(self) -> tuple[str, int]:
        """How it is compressed, and the window that its first frame needs, 0 where that is not known beforehand, as of
        pipes, which are opened once."""
        if self._path != "-" and Path(self._path).is_fifo():
            return UNKNOWN, 0
        raw = self.raw if self._path == "-" else Raw(self._path, hashed=False)
        kind = _kind(raw.front(6)) if raw.size is not None or raw is self._raw else UNKNOWN
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


def _kind(front: bytes) -> str:
    """How what begins so is compressed; empty where it is not."""
    return next((kind for magic, kind in FORMATS.items() if front.startswith(magic)), "")


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
