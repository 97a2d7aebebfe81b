"""The block set: a directory of block files, each a run of compressed chunks, and a manifest written last."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from llsvm import _blockset
from llsvm.core import ROUNDING, Block, DataError, Description, LlsvmError, system_hint
from llsvm.frames import IDS_A_FRAME, MANIFEST, REPAIR, BlockFile, codec, payload_room
from llsvm.manifest import read_manifest
from llsvm.memory import files_at_a_time
from llsvm.scratch import Nameless

KEPT_OPEN = 64  # files that are read


class BlockSet:
    """An opened set. Chunks are numbered through all blocks, in the order of the manifest."""

    where, in_memory_from = "on disk", ""  # as messages have it; the --memory that would hold the rows, if known
    n_folds = 1  # into which the rows are divided when they are laid out (reader.divide)

    def __init__(self, path):
        """path: of the set, or the temporary files that it is."""
        is_temporary = isinstance(path, Nameless)
        self.path = path.path if is_temporary else Path(path)
        self._files = path if is_temporary else _Files(self.path)
        self.header = header = read_manifest(self.path, path.read(MANIFEST).decode() if is_temporary else None)
        self.n_rows, self.n_features, self.n_nonzeros = header["rows"], header["features"], header["nonzeros"]
        self.dtype, self.n_labels = np.dtype(header["values"]), len(header["labels"])
        self.blocks = [BlockFile(**block) for block in header["blocks"]]
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
        entry = self.header["feature_ids"]
        step = IDS_A_FRAME if self.header["version"] >= 3 else self.n_features or 1
        where, ids, offset = str(self.path / entry["file"]), np.empty(self.n_features, np.int64), 0
        for number, (size, checksum) in enumerate(zip(entry["bytes"], entry["checksums"], strict=True)):
            part = ids[number * step : (number + 1) * step]
            frame = self._read(entry["file"], offset, np.empty(size, np.uint8))
            planes = codec.decompress(frame, checksum, np.empty(8 * len(part), np.uint8), where)
            if len(planes) != 8 * len(part):
                raise DataError(f"{where}: not {self.n_features} ids", REPAIR)
            part.view(np.uint8).reshape(-1, 8)[:] = planes.reshape(8, len(part)).T
            offset += size
        smallest, largest = int(ids.min(initial=1)), int(ids.max(initial=0))
        if smallest < 1 or largest != self.header["largest_id"]:
            raise DataError(f"{where}: ids from {smallest} to {largest}, but the manifest says that the largest is "
                            f"{self.header['largest_id']}", REPAIR)
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
            with suppress(OSError), self._files.opened(name) as descriptor:
                os.posix_fadvise(descriptor, place, int(self.chunk_bytes[chunk]), os.POSIX_FADV_WILLNEED)

    def load_chunk(self, chunk: int) -> Block:
        decoder = Decoder(self)
        codes, lengths, features, values = decoder.decode(chunk)
        decoder.check_values(chunk, values)
        return Block(codes, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), features, values)

    def read_chunk(self, chunk: int, room: np.ndarray) -> np.ndarray:
        """The compressed bytes of a chunk, at the beginning of room."""
        name, place = self.place(chunk)
        return self._read(name, place, room[: int(self.chunk_bytes[chunk])])

    def _read(self, name: str, offset: int, room: np.ndarray) -> np.ndarray:
        done = 0
        try:
            with self._files.opened(name) as descriptor:
                while done < len(room) and (more := os.preadv(descriptor, [room[done:]], offset + done)):
                    done += more
        except OSError as error:
            raise _unreadable(self.path / name, error) from None
        if done < len(room):
            raise DataError(f"{self.path / name}: truncated, {len(room)} bytes expected at byte {offset}, {done} read",
                            REPAIR)
        return room

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""
        self._files.close()


class _File:
    """An open file, which so many are using."""

    def __init__(self, path: Path):
        self.file, self.users = open(path, "rb", buffering=0), 0  # noqa: SIM115


class _Files:
    """The files of a folder, open for reading. The first stay open, unless the system has no descriptor left.

    Several threads read: a file is closed when nobody does.
    """

    def __init__(self, folder: Path):
        self._folder, self._kept, self._lock = folder, {}, threading.Lock()
        self._most = files_at_a_time(KEPT_OPEN)

    @contextmanager
    def opened(self, name: str):
        """A descriptor of this file."""
        with self._lock:
            file = self._kept.get(name) or self._open(name)
            file.users += 1
        try:
            yield file.file.fileno()
        finally:
            with self._lock:
                file.users -= 1
                if not file.users and self._kept.get(name) is not file:
                    file.file.close()

    def _open(self, name: str) -> _File:
        while True:
            try:
                file = _File(self._folder / name)
                break
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._close_idle():
                    raise
        if len(self._kept) < self._most:
            self._kept[name] = file
        return file

    def _close_idle(self) -> bool:
        """Closes what nobody reads, and keeps fewer from now on; False if there is none."""
        idle = [name for name, file in self._kept.items() if not file.users]
        self._most = min(self._most, len(self._kept) // 2)
        for name in idle:
            self._kept.pop(name).file.close()
        return bool(idle)

    def close(self) -> None:
        with self._lock:
            self._close_idle()
            self._kept.clear()
            self._most = files_at_a_time(KEPT_OPEN)


def _unreadable(path: Path, error: OSError) -> LlsvmError:
    """Only what is missing, or what a disk does not give back, is mended by making the set again."""
    if error.errno in (errno.ENOENT, errno.EIO):
        return DataError(f"{path}: {error.strerror}", REPAIR)
    return LlsvmError(f"{path}: {error.strerror}", system_hint(error))


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
        self.blocks, self.read_seconds = blocks, 0.0
        self._longest = blocks.header["largest_norm"] * (1 + ROUNDING)

    # What happens for every chunk: threads wait for each other where Python does much.
    def decode(self, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Codes, lengths, features and values, valid until the next chunk is decoded."""
        blocks, began = self.blocks, time.perf_counter()
        frame = blocks.read_chunk(chunk, self._frame)
        self.read_seconds += time.perf_counter() - began
        where = _Place(blocks.path, *blocks.place(chunk))
        payload = codec.decompress(frame, blocks.checksum(chunk), self._payload, where)
        rows, nonzeros = int(blocks.chunk_rows[chunk]), int(blocks.chunk_nonzeros[chunk])
        arrays = self._codes[:rows], self._lengths[:rows], self._features[:nonzeros], self._values[:nonzeros]
        if not _blockset.decode(payload, blocks.n_features, blocks.n_labels, *arrays):
            raise DataError(f"{where}: contents and manifest disagree", REPAIR)
        return arrays

    def check_values(self, chunk: int, values: np.ndarray) -> None:
        if not np.isfinite(values).all():
            where = _Place(self.blocks.path, *self.blocks.place(chunk))
            raise DataError(f"{where}: a value is infinite or not a number", REPAIR)

    def check_norm(self, chunk: int, values: np.ndarray, square: float) -> None:
        """Refuses rows that the manifest does not speak of, square being that of the longest, infinite where a value is
        no number."""
        if square <= self._longest * self._longest and square < np.inf:
            return
        self.check_values(chunk, values)
        if not np.sqrt(square) <= self._longest:
            where = _Place(self.blocks.path, *self.blocks.place(chunk))
            raise DataError(f"{where}: a row of norm {np.sqrt(square):g}, but the manifest says that the longest has "
                            f"{self.blocks.header['largest_norm']:g}", REPAIR)


def is_block_set(path) -> bool:
    try:
        return (Path(path) / MANIFEST).is_file()
    except (OSError, ValueError):
        return False
