"""What the parts of a block set are called, and its frames: compressed, with a checksum."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import zstandard

from llsvm.core import DataError

FORMAT, VERSION = "llsvm-blocks", 3
MANIFEST, FEATURE_IDS = "manifest.json", "features.zst"
IDS_A_FRAME = 1 << 18
FEATURE_LIMIT = 2**31 - IDS_A_FRAME  # features are numbered by 32 bits
# Text-like data, bytes and nanoseconds to decode a nonzero: level 1 4.88 and 6.9, level -1 4.92 and 2.7.
LEVEL = -1


@dataclass
class BlockFile:
    """One file of a set; the lists have an entry per chunk."""

    file: str
    rows: list[int] = field(default_factory=list)
    nonzeros: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)


class Codec(threading.local):
    """zstd contexts of this thread. The checksum of a frame covers the decoded bytes and is its last four bytes."""

    def __init__(self):
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
        self._decompressor = zstandard.ZstdDecompressor()

    def compress(self, data) -> bytes:
        return self._compressor.compress(data)

    def decompress(self, frame, checksum: str, room, where):
        """The decoded bytes, at the beginning of room, an array of bytes. where: for str() in a message."""
        if (found := frame_checksum(frame)) != checksum:
            raise DataError(f"{where}: checksum {found} read, {checksum} expected", REPAIR)
        try:
            size = zstandard.frame_content_size(frame)
            if not 0 <= size <= len(room):
                raise DataError(f"{where}: corrupt data (of an impossible size)", REPAIR)
            with self._decompressor.stream_reader(frame) as reader:
                if reader.readinto(room) != size or reader.read(1):  # to the end of the frame, its checksum
                    raise DataError(f"{where}: corrupt data (not of the size it says)", REPAIR)
        except zstandard.ZstdError as error:
            raise DataError(f"{where}: corrupt data ({error})", REPAIR) from None
        return room[:size]


REPAIR = "the file is damaged; make the set again with llsvm-split"
codec = Codec()


def frame_checksum(frame) -> str:
    return bytes(frame[-4:])[::-1].hex()


def payload_room(rows: int, nonzeros: int, value_bytes: int) -> int:
    """Bytes that are enough for a chunk before compression, whatever its contents."""
    return 2080 + (6 + value_bytes) * rows + (4 + value_bytes) * nonzeros
