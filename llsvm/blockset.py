"""The block set: a directory of block files, each a run of compressed chunks, and a manifest written last."""

from __future__ import annotations

import json
import os
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from llsvm import _blockset
from llsvm.core import Block, DataError, Description, LlsvmError, UsageError
from llsvm.frames import FORMAT, IDS_A_FRAME, MANIFEST, REPAIR, VERSION, BlockFile, codec, payload_room

KEPT_OPEN = 64  # files that are read


class BlockSet:
    """An opened set. Chunks are numbered through all blocks, in the order of the manifest."""

    def __init__(self, path):
        self.path = Path(path)
        header = _read_manifest(self.path)
        self.header = header
        self.n_rows, self.n_features, self.n_nonzeros = header["rows"], header["features"], header["nonzeros"]
        self.dtype, self.n_labels = np.dtype(header["values"]), len(header["labels"])
        self.blocks, self._files = [BlockFile(**block) for block in header["blocks"]], {}
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

    def place(self, chunk: int) -> tuple[str, int]:
        """The file of a chunk, and where in it the chunk begins."""
        return self.blocks[self.chunk_block[chunk]].file, int(self._offsets[chunk])

    def checksum(self, chunk: int) -> str:
        return self._checksums[chunk]

    def ask_for(self, chunk: int) -> None:
        """Tells the system that this chunk will be read soon."""
        name, place = self.place(chunk)
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError), self._opened(name) as descriptor:
                os.posix_fadvise(descriptor, place, int(self.chunk_bytes[chunk]), os.POSIX_FADV_WILLNEED)

    def load_chunk(self, chunk: int) -> Block:
        codes, lengths, features, values = Decoder(self).decode(chunk)
        return Block(codes, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), features, values)

    def read_chunk(self, chunk: int, room: np.ndarray) -> np.ndarray:
        """The compressed bytes of a chunk, at the beginning of room."""
        name, place = self.place(chunk)
        return self._read(name, place, room[: int(self.chunk_bytes[chunk])])

    def _read(self, name: str, offset: int, room: np.ndarray) -> np.ndarray:
        done = 0
        try:
            with self._opened(name) as descriptor:
                while done < len(room) and (more := os.preadv(descriptor, [room[done:]], offset + done)):
                    done += more
        except OSError as error:
            raise DataError(f"{self.path / name}: {error.strerror}", REPAIR) from None
        if done < len(room):
            raise DataError(f"{self.path / name}: truncated, {len(room)} bytes expected at byte {offset}, {done} read",
                            REPAIR)
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


class _Place:
    """A chunk in an error message, which few chunks need."""

    def __init__(self, *place):
        self._place = place

    def __str__(self) -> str:
        path, name, offset = self._place
        return f"{path / name}, chunk at byte {offset}"


class Decoder:
    """Decodes chunks one after the other, all into the same memory; counts the seconds that reading took."""

    def __init__(self, blocks: BlockSet):
        most_rows, most_nonzeros = int(blocks.chunk_rows.max(initial=0)), int(blocks.chunk_nonzeros.max(initial=0))
        most_bytes = payload_room(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize).max(initial=0)
        self._frame = np.empty(blocks.chunk_bytes.max(initial=0), np.uint8)
        self._payload = np.empty(most_bytes, np.uint8)
        self._codes, self._lengths = np.empty(most_rows, np.uint16), np.empty(most_rows, np.int32)
        self._features, self._values = np.empty(most_nonzeros, np.int32), np.empty(most_nonzeros, blocks.dtype)
        self._blocks, self.read_seconds = blocks, 0.0

    # What happens for every chunk: threads wait for each other where Python does much.
    def decode(self, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Codes, lengths, features and values, valid until the next chunk is decoded."""
        blocks, began = self._blocks, time.perf_counter()
        frame = blocks.read_chunk(chunk, self._frame)
        self.read_seconds += time.perf_counter() - began
        where = _Place(blocks.path, *blocks.place(chunk))
        payload = codec.decompress(frame, blocks.checksum(chunk), self._payload, where)
        rows, nonzeros = int(blocks.chunk_rows[chunk]), int(blocks.chunk_nonzeros[chunk])
        arrays = self._codes[:rows], self._lengths[:rows], self._features[:nonzeros], self._values[:nonzeros]
        if not _blockset.decode(payload, blocks.n_features, blocks.n_labels, *arrays):
            raise DataError(f"{where}: contents and manifest disagree", REPAIR)
        return arrays


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
