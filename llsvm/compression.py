"""How text is compressed, the window it takes to decompress it, and its frames."""

from __future__ import annotations

import io
from importlib import import_module

SWELLING = 1 << 18  # decompressed bytes wanted at a time
STEP = 1 << 16  # compressed bytes read at a time
# What says of a file or a frame how it is compressed, and within how many bytes it says what window it needs.
ZSTD, XZ, HEADER = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", 2 << 10
FORMATS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", XZ: "xz", ZSTD: "zstd", b"\x50\x2a\x4d\x18": "zstd"}  # the last: pzstd
LZMA2 = 0x21
LZMA_BESIDE = 1 << 20  # that liblzma takes beside the dictionary, and more


def kind_of(front: bytes) -> str:
    """How what begins so is compressed; empty where it is not."""
    return next((kind for magic, kind in FORMATS.items() if front.startswith(magic)), "")


class Frames(io.RawIOBase):
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


class ZstdFrame:
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


def new_frame(kind: str, beginning: bytes, window: int):
    """A decoder of a frame that begins so, for Frames; one of xz refuses more than this window."""
    if kind == "bzip2":
        return import_module("bz2").BZ2Decompressor()
    if kind == "zstd":
        return ZstdFrame(beginning)
    lzma = import_module("lzma")
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=window + LZMA_BESIDE)
