"""Text through every compression, in many members, flushed, slowly, cut, and with something behind it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import threading
import time
import zlib
from contextlib import contextmanager, nullcontext, suppress
from random import Random

import zstandard

from llsvm.core import DataError
from llsvm.sources import open_sources
from torture import lines, reference, texts
from torture.part import Finding, Part

BATCH = 20
MAGIC = {"gzip": 2, "bzip2": 3, "xz": 6, "zstd": 4}  # bytes by which each is recognised
GARBAGE = [b"\0", b"\n", b"1 1:1\n", b"garbage", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\xff" * 9]


def gzip_member(random: Random, data: bytes) -> bytes:
    """Flushed at random places, with every kind of flush."""
    if random.random() < 0.3:
        return gzip.compress(data, random.randint(0, 9))
    packer = zlib.compressobj(random.randint(0, 9), wbits=31)
    packed = b""
    for part in in_pieces(random, data):
        packed += packer.compress(part) + packer.flush(random.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]))
    return packed + packer.flush()


def zstd_member(random: Random, data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(level=random.randint(-5, 12), write_checksum=random.random() < 0.7)
    if random.random() < 0.4:
        return packer.compress(data)
    stream, packed = packer.compressobj(), b""
    for part in in_pieces(random, data):
        packed += stream.compress(part) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return packed + stream.flush()


MEMBERS = {
    "gzip": gzip_member,
    "bzip2": lambda random, data: bz2.compress(data, random.randint(1, 9)),
    "xz": lambda random, data: lzma.compress(data, check=random.choice([lzma.CHECK_CRC32, lzma.CHECK_CRC64])),
    "zstd": zstd_member,
}


def in_pieces(random: Random, data: bytes) -> list[bytes]:
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randrange(6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Streams(Part):
    name = "streams"
    promise = "Compressed, cut, slow or followed by garbage: the same rows or an error; never a hang, never fewer rows."
    limit = 60.0

    def cases(self, random: Random):
        for _ in range(BATCH):
            kind = random.choice([*MEMBERS, "plain"])
            if kind == "plain":
                (self._shrinking if random.random() < 0.3 else self._plain)(random)
            else:
                self._packed(random, kind)
            yield

    def _plain(self, random: Random) -> None:
        data = lines.text(random, random.randrange(1, 40))
        self._judge(random, data, [data], "plain text")

    def _packed(self, random: Random, kind: str) -> None:
        data = lines.text(random, random.randrange(1, 40))
        parts = in_pieces(random, data)
        members = [MEMBERS[kind](random, part) for part in parts]
        packed, action = b"".join(members), random.randrange(3)
        if action == 0:
            self._judge(random, packed, [data], kind)
        elif action == 1:
            cut = random.randrange(len(packed))
            # At the end of a member nobody could know that there was more.
            whole = [b"".join(parts[:n]) for n in range(len(parts)) if sum(map(len, members[:n])) == cut]
            unknown = [packed[:cut]] if cut < MAGIC[kind] else []
            self._judge(random, packed[:cut], [*whole, *unknown, data], f"{kind}, cut after {cut} bytes", not whole)
        else:
            garbage = random.choice(GARBAGE) * random.choice([1, 1, 100])
            self._judge(random, packed + garbage, [data], f"{kind}, {garbage[:20]!r} behind it", True)

    def _judge(self, random: Random, packed: bytes, allowed: list[bytes], how: str, may_fail: bool = False) -> None:
        """What the scanner makes of these bytes, as a file or through a slow pipe, against the texts they may mean."""
        path = self.folder / "packed"
        path.unlink(missing_ok=True)
        slow = random.random() < 0.3
        there = pipe(path, in_pieces(random, packed)) if slow else nullcontext(path.write_bytes(packed))
        with there, texts.pieces_of(random.choice([100, 300, 5000])):
            [source] = open_sources([str(path)])
            found, error = texts.as_predicting(source, random.choice([1, 2, 4]), False, "float64")
        if may_fail and error:
            return
        for text in allowed:
            rows, place = reference.read(text, dtype="float64")
            if not texts.disagreement(text, found, error, rows, place):
                return
        raise Finding("another text than was packed" if not error else "what was packed right is refused",
                      f"{how}{', slowly' if slow else ''}: {len(found)} rows, {error or 'no error'}\n"
                      f"packed: {packed.hex()}\ntext: {allowed[-1]!r}")

    def _shrinking(self, random: Random) -> None:
        """A file that is cut while it is read."""
        path, data = self.folder / "shrinking", lines.text(random, 200)
        path.write_bytes(data)
        kept, threads, found = random.randrange(len(data)), random.choice([1, 2]), []
        with texts.pieces_of(300):
            [source] = open_sources([str(path)])
            try:
                for piece in texts.scanner.scan_pieces([source], threads, dtype="float64"):
                    found.append(piece.n_rows)
                    if len(found) == 1:
                        os.truncate(path, kept)
            except DataError:
                return
        rows = reference.read(data, dtype="float64")[0]
        if sum(found) != len(rows):
            raise Finding("a file that is cut while it is read gives fewer rows",
                          f"{sum(found)} of {len(rows)} rows, cut to {kept} of {len(data)} bytes")


@contextmanager
def pipe(path, parts: list[bytes]):
    """A named pipe into which these parts are written one after the other, with pauses."""
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError), open(path, "wb", buffering=0) as file:
            for part in parts:
                file.write(part)
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        with suppress(OSError):  # a writer that nobody has listened to
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        writer.join()
