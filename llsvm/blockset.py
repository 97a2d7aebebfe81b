"""The block set: a directory of block files, each a run of compressed chunks, and a manifest written last."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zstandard

from llsvm import __version__, _blockset
from llsvm.core import Block, DataError, Description, LlsvmError, UsageError
from llsvm.files import partial_name, remove
from llsvm.memory import MB

FORMAT, VERSION = "llsvm-blocks", 3
MANIFEST, FEATURE_IDS = "manifest.json", "features.zst"
MAX_BLOCKS = 4096
IDS_A_FRAME, FRAMES_WAITING = 1 << 18, 1
# A chunk is about 1/256 of the data seen so far: small enough for a tight budget, few enough for a huge set.
CHUNK_SHARE, SMALLEST_CHUNK, LARGEST_CHUNK = 256, 64 << 10, 8 * MB
OPEN_CHUNKS = 128 * MB
OPEN_FILES, KEPT_OPEN = 256, 64  # that are written, that are read
# Chunks that are being encoded or wait for it or for being written, and chunks' worth of memory set aside for all that.
# With 6 of them two cores were busy for 1.65 of two seconds, with 12 for 1.75: whoever fills chunks waits less often.
ENCODING, MOST_THREADS, IN_FLIGHT = 12, 8, 16
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

    def compress_parts(self, parts, size: int) -> list[bytes]:
        """One frame, itself in parts, of all these parts one behind the other, of so many bytes in all."""
        frame = self._compressor.compressobj(size=size)
        return [*map(frame.compress, parts), frame.flush()]

    def decompress(self, frame, checksum: str, room: np.ndarray, where: str) -> np.ndarray:
        """The decoded bytes, at the beginning of room."""
        if frame_checksum(frame) != checksum:
            raise DataError(f"{where}: checksum {frame_checksum(frame)} read, {checksum} expected", REPAIR)
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


class _Chunk:
    """Arrays of a chunk that is being filled."""

    def __init__(self, rows: int, nonzeros: int, dtype):
        self.codes, self.lengths = np.empty(rows, np.uint16), np.empty(rows, np.int32)
        self.features, self.values = np.empty(nonzeros, np.int32), np.empty(nonzeros, dtype)
        arrays = self.codes, self.lengths, self.features, self.values
        self.addresses = [array.__array_interface__["data"][0] for array in arrays]


class Writer:
    """Collects Blocks and leaves a complete set at `path`, or nothing.

    Row r of the input goes to the block that the seed and r decide, and there into the chunk that is open; a chunk is
    closed when it holds 1/256 of what has been read. So the bytes depend on the input, the seed and the number of
    blocks (and on a budget below 400 MB), never on threads or timing. The threads of `pool`
    encode the chunks and have time for other work.
    """

    def __init__(self, path, n_blocks: int, seed: int, dtype, threads: int, memory: int, force: bool = False):
        self.path = Path(path)
        check_target(self.path, force)
        self._seed, self._dtype, self._force = seed, np.dtype(dtype), force
        self._nonzero_bytes = 4 + self._dtype.itemsize
        share = min(OPEN_CHUNKS, memory // 3) // (n_blocks + IN_FLIGHT)
        self._largest = min(LARGEST_CHUNK, max(SMALLEST_CHUNK // 4, share))
        self._open = [_Chunk(0, 0, self._dtype) for _ in range(n_blocks)]
        self._addresses, self._sizes = np.zeros((n_blocks, 4), np.uint64), np.zeros((n_blocks, 4), np.int64)
        self._blocks = [BlockFile(f"block-{number:04d}.llb") for number in range(n_blocks)]
        self.pool = ThreadPoolExecutor(min(threads, MOST_THREADS), thread_name_prefix="encode")
        self._encoding, self._free, self._files = deque(), [], {}
        self._ids_encoded, self._id_frames, self._ids = 0, deque(), {"file": FEATURE_IDS, "bytes": [], "checksums": []}
        self.n_rows = self.n_nonzeros = 0
        self._square = 0.0
        self._set_target(0)
        self._scratch = threading.local()
        self._folder = _new_folder(self.path)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.pool.shutdown(cancel_futures=True)
        self._close_files()
        remove(self._folder)

    def add(self, block: Block) -> None:
        row = 0
        while row < block.n_rows:
            row, number = _blockset.scatter(
                block.codes, block.indptr, block.features, block.values, row, self.n_rows, self._seed, self._target,
                self._addresses, self._sizes,
            )
            if number >= 0:
                self._close_chunk(number)
                self._set_target(self.n_nonzeros + int(block.indptr[row]))
                next_row = int(block.indptr[row + 1] - block.indptr[row]) if row < block.n_rows else 0
                self._open_chunk(number, next_row)
        self.n_rows += block.n_rows
        self.n_nonzeros += block.n_nonzeros

    def _set_target(self, n_nonzeros: int) -> None:
        """Nonzeros at which a chunk is closed, after so many of the whole; called when one was closed, so that the
        cuts depend on the rows alone."""
        share = n_nonzeros * self._nonzero_bytes // CHUNK_SHARE
        self._target = min(self._largest, max(SMALLEST_CHUNK, share)) // self._nonzero_bytes

    def _open_chunk(self, number: int, next_row: int) -> None:
        rows, nonzeros = self._target // 4 + 1, max(self._target * 5 // 4, next_row)
        chunk = self._free.pop() if self._free else None
        if chunk is None or len(chunk.codes) < rows or len(chunk.features) < nonzeros:
            # Twice the room, so that it serves again when the target has grown.
            chunk = _Chunk(2 * rows, max(self._target * 5 // 2, next_row), self._dtype)
        self._open[number] = chunk
        self._addresses[number] = chunk.addresses
        self._sizes[number] = 0, 0, rows, nonzeros

    def _close_chunk(self, number: int) -> None:
        rows, nonzeros = map(int, self._sizes[number, :2])
        if rows:
            future = self.pool.submit(self._encode, self._open[number], rows, nonzeros)
            self._encoding.append((number, rows, nonzeros, self._open[number], future))
        self._sizes[number] = 0
        while len(self._encoding) > ENCODING:
            self._write_oldest()

    def _encode(self, chunk: _Chunk, rows: int, nonzeros: int) -> tuple[bytes, float]:
        size = payload_room(rows, nonzeros, self._dtype.itemsize)
        if len(getattr(self._scratch, "out", ())) < size:
            self._scratch.out = np.empty(size, np.uint8)
        used, square = _blockset.encode(
            chunk.codes[:rows], chunk.lengths[:rows], chunk.features[:nonzeros], chunk.values[:nonzeros],
            self._scratch.out,
        )
        return codec.compress(memoryview(self._scratch.out)[:used]), square

    def _write_oldest(self) -> None:
        number, rows, nonzeros, chunk, future = self._encoding.popleft()
        frame, square = future.result()
        self._free.append(chunk)
        block = self._blocks[number]
        self._append(block.file, frame)
        self._square = max(self._square, square)
        block.rows.append(rows)
        block.nonzeros.append(nonzeros)
        block.bytes.append(len(frame))
        block.checksums.append(frame_checksum(frame))

    def _append(self, name: str, data: bytes) -> None:
        try:
            if len(self._files) == OPEN_FILES:
                self._close_files()
            file = self._files.get(name) or open(self._folder / name, "ab", buffering=0)  # noqa: SIM115
            self._files[name] = file
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            raise LlsvmError(f"{self._folder / name}: {error.strerror}", "the unfinished set was removed") from None

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def add_ids(self, feature_ids: np.ndarray, last: bool = False) -> None:
        """Encodes what is new of the ids of all features so far, frame by frame; finish() does what is left."""
        while len(feature_ids) - self._ids_encoded >= (1 if last else IDS_A_FRAME):
            ids = feature_ids[self._ids_encoded : self._ids_encoded + IDS_A_FRAME]
            self._id_frames.append(self.pool.submit(_encode_ids, ids))
            self._ids_encoded += len(ids)
            if len(self._id_frames) > FRAMES_WAITING:
                self._write_ids()

    def _write_ids(self) -> None:
        frame = self._id_frames.popleft().result()
        self._append(FEATURE_IDS, frame)
        self._ids["bytes"].append(len(frame))
        self._ids["checksums"].append(frame_checksum(frame))

    def finish(self, names: list[str], counts, feature_ids: np.ndarray, sources: list[dict], zero_based: bool) -> Path:
        """Closes every chunk, writes the manifest and moves the set into place."""
        self.add_ids(feature_ids, last=True)
        for number in range(len(self._blocks)):
            self._close_chunk(number)
        while self._encoding:
            self._write_oldest()
        for block in self._blocks:
            if not block.rows:
                self._append(block.file, b"")
        while self._id_frames:
            self._write_ids()
        if not len(feature_ids):
            self._append(FEATURE_IDS, b"")
        header = {
            "format": FORMAT,
            "version": VERSION,
            "written_by": f"llsvm {__version__}",
            "rows": self.n_rows,
            "features": len(feature_ids),
            "nonzeros": self.n_nonzeros,
            "largest_id": int(feature_ids.max(initial=0)),
            "zero_based": zero_based,
            "largest_norm": float(np.sqrt(self._square)),
            "values": self._dtype.name,
            "labels": [{"name": name, "rows": int(count)} for name, count in zip(names, counts, strict=True)],
            "seed": self._seed,
            "sources": sources,
            "feature_ids": self._ids,
        }
        self._append(MANIFEST, _manifest_text(header, self._blocks).encode("ascii"))
        return self._move_into_place()

    def _move_into_place(self) -> Path:
        if self.path.exists():
            check_target(self.path, self._force)
            old = self._folder.with_suffix(".old.partial")
            os.rename(self.path, old)
            os.rename(self._folder, self.path)
            remove(old)
        else:
            os.rename(self._folder, self.path)
        return self.path


def _encode_ids(ids: np.ndarray) -> bytes:
    """A frame of the eight byte planes of these ids."""
    used = (int(ids.max()).bit_length() + 7) // 8
    planes = np.zeros((8, len(ids)), np.uint8)
    planes[:used] = ids.view(np.uint8).reshape(-1, 8).T[:used]
    return codec.compress(planes)


def check_target(path: Path, force: bool) -> None:
    """Refuses to write over what is there, and, with force, over anything that is not a block set."""
    if not path.exists():
        return
    if not (path / MANIFEST).is_file():
        raise LlsvmError(f"{path} exists and is not a block set", "choose another place with -o")
    if not force:
        raise LlsvmError(f"{path} exists already", "--force replaces it, -o DIR writes elsewhere")


def _new_folder(path: Path) -> Path:
    try:
        folder = partial_name(path)
        folder.mkdir()
    except OSError as error:
        raise LlsvmError(f"{path.parent}: {error.strerror}") from None
    return folder


def _manifest_text(header: dict, blocks: list[BlockFile]) -> str:
    """JSON with one line per entry and per block, closed by a checksum of all the lines before."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in header.items()]
    listed = ",\n".join("  " + json.dumps(vars(block)) for block in blocks)
    text = "{\n" + ",\n".join(lines) + ',\n"blocks": [\n' + listed + "\n],\n"
    return text + f'"checksum": "{zlib.crc32(text.encode()):08x}"\n}}\n'


class BlockSet:
    """An opened set. Chunks are numbered through all blocks, in the order of the manifest."""

    def __init__(self, path):
        self.path = Path(path)
        header = _read_manifest(self.path)
        self.header = header
        self.n_rows, self.n_features, self.n_nonzeros = header["rows"], header["features"], header["nonzeros"]
        self.dtype = np.dtype(header["values"])
        self.blocks, self._files = [BlockFile(**block) for block in header["blocks"]], {}
        self.read_seconds = 0.0
        self._list_chunks()

    def _list_chunks(self) -> None:
        sizes = [len(block.rows) for block in self.blocks]
        self.n_chunks = sum(sizes)
        self.chunk_block = np.repeat(np.arange(len(sizes)), sizes)
        self.chunk_rows = np.array([n for block in self.blocks for n in block.rows], np.int64)
        self.chunk_nonzeros = np.array([n for block in self.blocks for n in block.nonzeros], np.int64)
        self.chunk_bytes = np.array([n for block in self.blocks for n in block.bytes], np.int64)
        self._checksums = [checksum for block in self.blocks for checksum in block.checksums]
        self._offsets = np.array([o for block in self.blocks for o in np.cumsum([0, *block.bytes])[:-1]], np.int64)
        if self.chunk_rows.sum() != self.n_rows or self.chunk_nonzeros.sum() != self.n_nonzeros:
            raise DataError(f"{self.path / MANIFEST}: the chunks do not add up to the set", REPAIR)
        if self.header["version"] >= 3:
            ids, n_frames = self.header["feature_ids"], -(-self.n_features // IDS_A_FRAME)
            if not len(ids["bytes"]) == len(ids["checksums"]) == n_frames:
                raise DataError(f"{self.path / MANIFEST}: not {n_frames} frames of ids", REPAIR)

    @property
    def description(self) -> Description:
        labels = self.header["labels"]
        return Description(
            self.n_rows, self.n_features, self.n_nonzeros, [label["name"] for label in labels],
            np.array([label["rows"] for label in labels], np.int64), self.header["largest_norm"],
            self.header["zero_based"], self.dtype, self.header["sources"],
        )

    def block_chunks(self, block: int) -> np.ndarray:
        return np.flatnonzero(self.chunk_block == block)

    def feature_ids(self) -> np.ndarray:
        """The 1-based id of every feature (int64), by feature number."""
        entry, step = self.header["feature_ids"], IDS_A_FRAME
        if self.header["version"] < 3:  # one frame
            entry, step = {**entry, "bytes": [entry["bytes"]], "checksums": [entry["checksum"]]}, self.n_features or 1
        where, ids, offset = str(self.path / entry["file"]), np.empty(self.n_features, np.int64), 0
        for number, (size, checksum) in enumerate(zip(entry["bytes"], entry["checksums"], strict=True)):
            part = ids[number * step : (number + 1) * step]
            frame = self._read(entry["file"], offset, np.empty(size, np.uint8))
            planes = codec.decompress(frame, checksum, np.empty(8 * len(part), np.uint8), where)
            if len(planes) != 8 * len(part):
                raise DataError(f"{where}: not {self.n_features} ids", REPAIR)
            part.view(np.uint8).reshape(-1, 8)[:] = planes.reshape(8, len(part)).T
            offset += size
        return ids

    def ask_for(self, chunk: int) -> None:
        """Tells the system that this chunk will be read soon."""
        place, size = int(self._offsets[chunk]), int(self.chunk_bytes[chunk])
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError), self._opened(self.blocks[self.chunk_block[chunk]].file) as descriptor:
                os.posix_fadvise(descriptor, place, size, os.POSIX_FADV_WILLNEED)

    def read_chunk(self, chunk: int, room: np.ndarray) -> np.ndarray:
        """The compressed bytes of a chunk, into room of as many."""
        return self._read(self.blocks[self.chunk_block[chunk]].file, int(self._offsets[chunk]), room)

    def decode_chunk(self, chunk: int, frame: np.ndarray, room: np.ndarray, codes, lengths, features, values) -> None:
        """Checks and decodes a chunk into arrays of exactly its size, by way of room, of payload_room bytes."""
        where = f"{self.path / self.blocks[self.chunk_block[chunk]].file}, chunk at byte {self._offsets[chunk]}"
        payload = codec.decompress(frame, self._checksums[chunk], room, where)
        n_labels = len(self.header["labels"])
        if not _blockset.decode(payload, self.n_features, n_labels, codes, lengths, features, values):
            raise DataError(f"{where}: contents and manifest disagree", REPAIR)

    def load_chunk(self, chunk: int) -> Block:
        codes, lengths, features, values = Decoder(self).decode(chunk)
        return Block(codes, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), features, values)

    def _read(self, name: str, offset: int, room: np.ndarray) -> np.ndarray:
        path, done, began = self.path / name, 0, time.perf_counter()
        try:
            with self._opened(name) as descriptor:
                while done < len(room) and (more := os.preadv(descriptor, [room[done:]], offset + done)):
                    done += more
            self.read_seconds += time.perf_counter() - began
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}", REPAIR) from None
        if done < len(room):
            raise DataError(f"{path}: truncated, {len(room)} bytes expected at byte {offset}, {done} read", REPAIR)
        return room

    @contextmanager
    def _opened(self, name: str):
        """A descriptor of this file; the first files stay open."""
        if name not in self._files and len(self._files) >= KEPT_OPEN:
            with open(self.path / name, "rb", buffering=0) as file:
                yield file.fileno()
            return
        if name not in self._files:
            self._files.setdefault(name, open(self.path / name, "rb", buffering=0))  # noqa: SIM115
        yield self._files[name].fileno()

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""
        while self._files:
            self._files.popitem()[1].close()


class Decoder:
    """Decodes chunks one after the other, all into the same memory."""

    def __init__(self, blocks: BlockSet):
        self._blocks, self._arrays = blocks, {}

    def decode(self, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Codes, lengths, features and values, valid until the next chunk is decoded."""
        blocks = self._blocks
        rows, nonzeros = int(blocks.chunk_rows[chunk]), int(blocks.chunk_nonzeros[chunk])
        frame = blocks.read_chunk(chunk, self._array("frame", int(blocks.chunk_bytes[chunk]), np.uint8))
        room = self._array("payload", payload_room(rows, nonzeros, blocks.dtype.itemsize), np.uint8)
        arrays = (self._array("codes", rows, np.uint16), self._array("lengths", rows, np.int32),
                  self._array("features", nonzeros, np.int32), self._array("values", nonzeros, blocks.dtype))
        blocks.decode_chunk(chunk, frame, room, *arrays)
        return arrays

    def _array(self, name: str, size: int, dtype) -> np.ndarray:
        if name not in self._arrays or len(self._arrays[name]) < size:
            self._arrays[name] = np.empty(size, dtype)
        return self._arrays[name][:size]


def is_block_set(path) -> bool:
    try:
        return (Path(path) / MANIFEST).is_file()
    except (OSError, ValueError):
        return False


def _read_manifest(path: Path) -> dict:
    file = path / MANIFEST
    if not path.is_dir():
        raise LlsvmError(f"{path}: no such block set")
    try:
        text = file.read_text("ascii")
    except FileNotFoundError:
        raise LlsvmError(f"{path} has no {MANIFEST}: not a block set, or an unfinished one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {getattr(error, 'strerror', None) or 'corrupt'}", REPAIR) from None
    try:
        header = json.loads(text)
        if header["format"] != FORMAT:
            raise UsageError(f"{path} is not a block set of llsvm")
        if header["version"] > VERSION:
            raise LlsvmError(
                f"{path} has format version {header['version']}, this llsvm reads up to {VERSION}",
                "upgrade llsvm, or make the set again with this one",
            )
        found = f"{zlib.crc32(text[: text.rindex(chr(34) + 'checksum' + chr(34) + ':')].encode()):08x}"
        expected = header["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: corrupt or truncated ({error})", REPAIR) from None
    if found != expected:
        raise DataError(f"{file}: checksum {found} read, {expected} expected", REPAIR)
    return header
