"""Writes block sets. Nothing here needs NumPy: loading it would be a tenth of the time that 300 MB take."""

from __future__ import annotations

import errno
import math
import threading
import zlib
from array import array
from collections import deque
from pathlib import Path

from llsvm import __version__, _writer
from llsvm.arrays import SIZES, VALUE_KINDS, address, empty, type_name, zeros
from llsvm.core import Block, LlsvmError, UsageError
from llsvm.files import Folder, check_writable, clear_leftovers
from llsvm.frames import (
    FEATURE_IDS,
    FORMAT,
    MANIFEST,
    VERSION,
    BlockFile,
    codec,
    frame_checksum,
    payload_room,
)
from llsvm.memory import MB, enough, files_at_a_time, short_size
from llsvm.pool import Pool
from llsvm.sources import beside_windows

MAX_BLOCKS = 4096
FRAMES_WAITING = 1  # of ids, that are being encoded
# A chunk is about 1/256 of the data seen so far: small enough for a tight budget, few enough for a huge set.
CHUNK_SHARE, SMALLEST_CHUNK, LARGEST_CHUNK = 256, 64 << 10, 8 * MB
LEAST_CHUNK, OPEN_CHUNKS, ALWAYS_THERE = 16 << 10, 128 * MB, 64 * MB
OPEN_FILES = 256
# Chunks that are being encoded or wait for it or for being written, and chunks' worth of memory set aside for all that.
# With 6 of them two cores were busy for 1.65 of two seconds, with 12 for 1.75: whoever fills chunks waits less often.
ENCODING, MOST_THREADS, IN_FLIGHT = 12, 8, 16


def open_bytes(memory: int) -> int:
    """What all chunks that are not yet written take under this budget; each has a quarter more room than it should."""
    return min(OPEN_CHUNKS, memory // 3) * 5 // 4


class _Chunk:
    """Arrays of a chunk that is being filled."""

    def __init__(self, rows: int, nonzeros: int, kind: str):
        self.codes, self.lengths = empty(rows, "H"), empty(rows, "i")
        self.features, self.values = empty(nonzeros, "i"), empty(nonzeros, kind)
        self.addresses = [address(array) for array in (self.codes, self.lengths, self.features, self.values)]


class _ChunkSize:
    """When a chunk is closed: at 1/256 of what has been read, within limits that the memory sets."""

    def __init__(self, memory: int, n_blocks: int, value_bytes: int):
        self.nonzero_bytes = 4 + value_bytes
        share = open_bytes(memory) * 4 // 5 // (n_blocks + IN_FLIGHT)
        self._largest = min(LARGEST_CHUNK, max(LEAST_CHUNK, share))
        self.most_nonzeros = self._largest // self.nonzero_bytes
        self.follow(0)

    def follow(self, n_nonzeros: int) -> None:
        """Sets the nonzeros at which a chunk is closed, after so many of the whole; called when one was closed, so
        that the cuts depend on the rows alone."""
        share = n_nonzeros * self.nonzero_bytes // CHUNK_SHARE
        self.nonzeros = min(self._largest, max(SMALLEST_CHUNK, share)) // self.nonzero_bytes


class _Files:
    """The files of a folder, which grow at their ends."""

    def __init__(self, folder):
        self.folder, self._open, self._most_open = folder, {}, files_at_a_time(OPEN_FILES)

    def append(self, name: str, data: bytes) -> None:
        try:
            file = self._open.get(name) or self._opened(name)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            raise self.folder.failed(name, error) from None

    def _opened(self, name: str):
        """A file to write at its end; the others are closed where they are too many, or the system has no more."""
        if len(self._open) >= self._most_open:
            self.close()
        try:
            self._open[name] = self.folder.open(name)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            self._most_open = max(1, len(self._open) // 2)
            self.close()
            self._open[name] = self.folder.open(name)
        return self._open[name]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class _Room(threading.local):
    """Bytes to encode in, of each thread its own."""

    _bytes = ()

    def __call__(self, size: int) -> memoryview:
        """So many, or more."""
        if len(self._bytes) < size:
            self._bytes = empty(2 * size, "B")  # chunks grow
        return self._bytes


class _IdFrames:
    """The ids of the features, frame by frame; entry: what the manifest says of them."""

    def __init__(self, pool: Pool, room: _Room, files: _Files):
        self._pool, self._room, self._files = pool, room, files
        self.entry = {"file": FEATURE_IDS, "bytes": [], "checksums": []}
        self.n_features = self.largest = 0
        self._waiting = deque()

    def add(self, feature_ids) -> None:
        for ids in feature_ids:
            if not len(ids):
                break
            self._waiting.append(self._pool.submit(self._encode, ids))
            self.n_features += len(ids)
            if len(self._waiting) > FRAMES_WAITING:
                self._write_oldest()

    def _encode(self, ids) -> tuple[bytes, int]:
        """A frame of the eight byte planes of these ids, and the largest of them."""
        planes = self._room(8 * len(ids))[: 8 * len(ids)]
        largest = _writer.cut_ids(ids, planes)
        return codec.compress(planes), largest

    def _write_oldest(self) -> None:
        frame, largest = self._waiting.popleft().result()
        self.largest = max(self.largest, largest)
        self._files.append(FEATURE_IDS, frame)
        self.entry["bytes"].append(len(frame))
        self.entry["checksums"].append(frame_checksum(frame))

    def finish(self) -> None:
        while self._waiting:
            self._write_oldest()
        if not self.n_features:
            self._files.append(FEATURE_IDS, b"")


class Writer:
    """Collects Blocks and leaves a complete set at `path`, or nothing.

    Row r of the input goes to the block that the seed and r decide, and there into the chunk that is open; a chunk is
    closed when it holds 1/256 of what has been read. So the bytes depend on the input, the seed and the number of
    blocks (and on a budget below 448 MB), never on threads or timing. The threads of `pool` encode the
    chunks and have time for other work. folder: where the files go, if there is no path; reserved: bytes that are set
    aside beside the memory, for a hint.
    """

    def __init__(self, path, n_blocks: int, seed: int, dtype, threads: int, memory: int, force: bool = False,
                 folder=None, reserved: int = 0):
        self.path = folder.path if folder else Path(path)
        if not folder:
            clear_leftovers(self.path)
            check_target(self.path, force)
        self._seed, self._type, self._force = seed, type_name(dtype), force
        self._kind = VALUE_KINDS[self._type]
        self._value_bytes = SIZES[self._kind]
        self._size = _ChunkSize(memory, n_blocks, self._value_bytes)
        needed = 3 * LEAST_CHUNK * (n_blocks + IN_FLIGHT)
        if needed > max(memory, ALWAYS_THERE):
            raise UsageError(f"-m {n_blocks} is too much for --memory {short_size(memory)}",
                             f"--memory {enough(beside_windows(needed, reserved))} would do, or fewer blocks")
        self._open = [_Chunk(0, 0, self._kind) for _ in range(n_blocks)]
        self._addresses, self._sizes = zeros(4 * n_blocks, "Q"), zeros(4 * n_blocks, "q")
        self._blocks = [BlockFile(f"block-{number:04d}.llb") for number in range(n_blocks)]
        self.pool = Pool(min(threads, MOST_THREADS))
        self._encoding, self._free, self._room = deque(), [], _Room()
        self.n_rows = self.n_nonzeros = 0
        self._square = 0.0
        self._files = _Files(folder or Folder(self.path))
        self._ids = _IdFrames(self.pool, self._room, self._files)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            self.pool.shutdown()
        finally:
            self._files.close()
            self._files.folder.clear()

    def add(self, block: Block) -> None:
        row = 0
        while row < block.n_rows:
            row, number = _writer.scatter(
                block.codes, block.indptr, block.features, block.values, row, self.n_rows, self._seed,
                self._size.nonzeros, self._addresses, self._sizes,
            )
            if number >= 0 and self._sizes[4 * number]:
                self._close_chunk(number)
                self._size.follow(self.n_nonzeros + int(block.indptr[row]))
            elif number >= 0:
                self._open_chunk(number, int(block.indptr[row + 1] - block.indptr[row]))
        self.n_rows += block.n_rows
        self.n_nonzeros += block.n_nonzeros

    def _open_chunk(self, number: int, first_row: int) -> None:
        """first_row: its nonzeros."""
        rows, nonzeros = self._size.nonzeros // 4 + 1, max(self._size.nonzeros * 5 // 4, first_row)
        chunk = self._free.pop() if self._free else None
        if chunk is None or len(chunk.features) < nonzeros:
            # Room for the largest, of which only what is used takes memory: so that the same memory always serves.
            most = self._size.most_nonzeros
            chunk = _Chunk(most // 4 + 1, max(most * 5 // 4, first_row), self._kind)
        self._open[number] = chunk
        self._addresses[4 * number : 4 * number + 4] = array("Q", chunk.addresses)
        self._sizes[4 * number : 4 * number + 4] = array("q", [0, 0, rows, nonzeros])

    def _close_chunk(self, number: int) -> None:
        rows, nonzeros = self._sizes[4 * number : 4 * number + 2]
        if rows:
            task = self.pool.submit(self._encode, self._open[number], rows, nonzeros)
            self._encoding.append((number, rows, nonzeros, self._open[number], task))
        self._sizes[4 * number : 4 * number + 4] = array("q", [0, 0, 0, 0])
        while len(self._encoding) > ENCODING or self._nonzeros_in_flight() > IN_FLIGHT * self._size.most_nonzeros:
            self._write_oldest()

    def _nonzeros_in_flight(self) -> int:
        return sum(nonzeros for _, _, nonzeros, _, _ in self._encoding)

    def _encode(self, chunk: _Chunk, rows: int, nonzeros: int) -> tuple[bytes, float]:
        out = self._room(payload_room(rows, nonzeros, self._value_bytes))
        used, square = _writer.encode(
            chunk.codes[:rows], chunk.lengths[:rows], chunk.features[:nonzeros], chunk.values[:nonzeros], out
        )
        return codec.compress(out[:used]), square

    def _write_oldest(self) -> None:
        number, rows, nonzeros, chunk, task = self._encoding.popleft()
        frame, square = task.result()
        if len(chunk.features) <= self._size.most_nonzeros * 5 // 4:
            self._free.append(chunk)
        block = self._blocks[number]
        self._files.append(block.file, frame)
        self._square = max(self._square, square)
        block.rows.append(rows)
        block.nonzeros.append(nonzeros)
        block.bytes.append(len(frame))
        block.checksums.append(frame_checksum(frame))

    def add_ids(self, feature_ids) -> None:
        """The ids of the next features, in arrays of IDS_A_FRAME; only the last of all may have fewer."""
        self._ids.add(feature_ids)

    def finish(self, names: list[str], counts, feature_ids, sources: list[dict], zero_based: bool):
        """Closes every chunk, writes the manifest and moves the set into place. feature_ids: those not yet added."""
        self._ids.add(feature_ids)
        for number in range(len(self._blocks)):
            self._close_chunk(number)
        _load_ahead()
        while self._encoding:
            self._write_oldest()
        for block in self._blocks:
            if not block.rows:
                self._files.append(block.file, b"")
        self._ids.finish()
        header = {
            "format": FORMAT,
            "version": VERSION,
            "written_by": f"llsvm {__version__}",
            "rows": self.n_rows,
            "features": self._ids.n_features,
            "nonzeros": self.n_nonzeros,
            "largest_id": self._ids.largest,
            "zero_based": zero_based,
            "largest_norm": math.sqrt(self._square),
            "values": self._type,
            "labels": [{"name": name, "rows": int(count)} for name, count in zip(names, counts, strict=True)],
            "seed": self._seed,
            "sources": sources,
            "feature_ids": self._ids.entry,
        }
        self._files.append(MANIFEST, _manifest_text(header, self._blocks).encode("ascii"))
        return self._move_into_place()

    def _move_into_place(self):
        try:
            self._files.close()
        except OSError as error:
            raise self._files.folder.failed(MANIFEST, error) from None
        check_target(self.path, self._force)  # what is there may be new
        return self._files.folder.commit()


def check_target(path: Path, force: bool) -> None:
    """Refuses to write over what is there, and, with force, over anything that is not a block set."""
    if not path.parent.is_dir():
        raise LlsvmError(f"{path.parent}: No such file or directory")
    if not path.exists():
        return
    if not (path / MANIFEST).is_file():
        raise LlsvmError(f"{path} exists and is not a block set", "choose another place with -o")
    if not force:
        raise LlsvmError(f"{path} exists already", "--force replaces it, -o DIR writes elsewhere")
    check_writable(path)


def _load_ahead() -> None:
    """What the end needs, loaded while threads encode; at the start nobody had anything else to do meanwhile."""
    import json  # noqa: F401


def _manifest_text(header: dict, blocks: list[BlockFile]) -> str:
    """JSON with one line per entry and per block, closed by a checksum of all the lines before."""
    import json

    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    listed = ",\n".join("  " + json.dumps(vars(block)) for block in blocks)
    text = "{\n" + ",\n".join(lines) + ',\n"blocks": [\n' + listed + "\n],\n"
    return text + f'"checksum": "{zlib.crc32(text.encode()):08x}"\n}}\n'
