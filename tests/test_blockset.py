"""The block set: what goes in comes out, the same bytes every time, and damage is noticed."""

import errno
import hashlib
import json
import os
import re
import resource
import sys
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zstandard
from conftest import contents, file_size_limit, half_digest

from llsvm import _writer, blockset, files
from llsvm import writer as writing
from llsvm.blockset import BlockSet, is_block_set
from llsvm.core import Block, DataError, LlsvmError, UsageError
from llsvm.memory import MB
from llsvm.split import split_text
from llsvm.writer import Writer

FROZEN = Path(__file__).parent / "frozen"
DTYPES = [np.float32, np.float64]
PLAIN, ROW_CONSTANT, DICTIONARY, COMMON_NUMBER = 0, 1, 2, 3


# --- the plain model of a data set: a list of rows (code, features, values)


def choose(rng, n_features: int, length: int):
    return np.sort(rng.choice(n_features, length, replace=False))


def random_rows(n: int, lengths=(0, 30), n_features=2000, codes=2, values=lambda rng, n: rng.normal(size=n)):
    def make(rng):
        sizes = rng.integers(*lengths, n).tolist()
        return [(int(rng.integers(codes)), choose(rng, n_features, size), values(rng, size)) for size in sizes]

    return make


def dense_rows(rng):
    return [(k % 2, np.arange(50), rng.normal(size=50)) for k in range(2000)]


def almost_dense_rows(rng):
    return [*dense_rows(rng), (0, np.array([3, 7]), np.array([1.5, 2.5]))]


def mostly_empty_rows(rng):
    rows = random_rows(20000, lengths=(0, 1), codes=400)(rng)
    rows[::9] = random_rows(len(rows[::9]), lengths=(1, 2), codes=400)(rng)
    return rows


def some_long_rows(rng):
    """Most rows are short, some fill a chunk (8192 nonzeros of float32) and more."""
    rows = random_rows(1500, n_features=40000)(rng)
    for length in rng.permutation([1000, 3000, 7000, 8192, 9000, 30000] * 6).tolist():
        rows[int(rng.integers(len(rows)))] = (1, choose(rng, 40000, length), rng.normal(size=length))
    return rows


def shuffled_features(rng):
    rows = random_rows(600, lengths=(0, 200))(rng)
    return [(code, rng.permutation(features), values) for code, features, values in rows]


def unsorted_rows_of_any_length(rng):
    """Around the lengths at which another way of sorting begins, and around the multiples of vectors."""
    lengths = [*range(140), 4095, 4096, 4097, 9000] * 2
    return [(0, rng.permutation(70_000)[:length], rng.normal(size=length)) for length in lengths]


def crowded_unsorted_rows(rng):
    """Features so near to each other that sorting by buckets leaves all to do, first a little, then more."""
    rows = []
    for length, swaps in [(97, 0), (400, 3), (400, 50), (400, 400), (4096, 4096)] * 3:
        features = 2**20 + 3 * np.arange(length)
        moved = rng.permutation(length)[:swaps]
        features[np.sort(moved)] = features[moved]
        features[[0, -1]] = features[[-1, 0]]
        rows.append((0, features, rng.normal(size=length)))
    return rows


KINDS = {
    "plain": random_rows(3000),
    "binary": random_rows(3000, values=lambda rng, n: np.ones(n)),
    "one number a row": random_rows(3000, values=lambda rng, n: np.full(n, rng.normal())),
    "256 numbers": random_rows(5000, values=lambda rng, n: (rng.integers(256, size=n) - 100) / 8),
    "257 numbers": random_rows(5000, values=lambda rng, n: (rng.integers(257, size=n) - 100) / 8),
    "many ones": random_rows(3000, values=lambda rng, n: np.where(rng.random(n) < 0.3, 1, rng.normal(size=n))),
    "mostly zeros of both signs": random_rows(
        3000, values=lambda rng, n: np.where(rng.random(n) < 0.9, rng.choice([0.0, -0.0], n), rng.normal(size=n))),
    "dense": dense_rows,
    "dense but for one row": almost_dense_rows,
    "empty rows": random_rows(20000, lengths=(0, 1)),
    "mostly empty rows": mostly_empty_rows,
    "256 labels": random_rows(3000, codes=256),
    "many labels": random_rows(3000, codes=1000),
    "all labels": random_rows(3000, codes=65535),
    "distant features": random_rows(2000, n_features=3_000_000),
    "long rows": some_long_rows,
    "unsorted features": shuffled_features,
    "unsorted rows of any length": unsorted_rows_of_any_length,
    "crowded unsorted rows": crowded_unsorted_rows,
    "one row": random_rows(1, lengths=(5, 6)),
}


def make_rows(kind: str, dtype, seed: int = 0):
    rows = KINDS[kind](np.random.default_rng(seed))
    return [(code, features.astype(np.int32), np.asarray(values).astype(dtype)) for code, features, values in rows]


def as_block(rows, dtype) -> Block:
    lengths = [len(features) for _, features, _ in rows]
    return Block(
        np.array([code for code, _, _ in rows], np.uint16),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([np.empty(0, np.int32), *(features for _, features, _ in rows)]),
        np.concatenate([np.empty(0, dtype), *(values for _, _, values in rows)]),
    )


def countable(code, features, values):
    """A row that can be counted: features in order, values to the last bit."""
    order = np.argsort(features)
    return code, features[order].tobytes(), values[order].tobytes()


def count_rows(rows) -> Counter:
    return Counter(countable(*row) for row in rows)


def rows_of(block: Block):
    ends = block.indptr.tolist()
    return [
        (code, block.features[start:end], block.values[start:end])
        for code, start, end in zip(block.codes.tolist(), ends, ends[1:], strict=False)
    ]


def feature_ids(rows) -> np.ndarray:
    """Some ids, all different, for the features in use."""
    largest = max((int(features.max(initial=-1)) for _, features, _ in rows), default=-1)
    return np.arange(largest + 1, dtype=np.int64)[::-1] * 1_000_003 + 5


# --- writing and reading


def add_all(writer, rows, dtype, per_block=300) -> None:
    for start in range(0, len(rows), per_block):
        writer.add(as_block(rows[start : start + per_block], dtype))


def write(path, rows, dtype, *, n_blocks=4, seed=1, threads=2, force=False) -> BlockSet:
    with Writer(path, n_blocks, seed, dtype, threads, 1 << 30, force) as writer:
        add_all(writer, rows, dtype)
        counts = np.bincount([code for code, _, _ in rows])
        writer.finish([f"label {k}" for k in range(len(counts))], counts, in_frames(feature_ids(rows)), [], False)
    return BlockSet(path)


def read(blocks: BlockSet):
    return [row for chunk in range(blocks.n_chunks) for row in rows_of(blocks.load_chunk(chunk))]


@pytest.fixture(autouse=True)
def guarded_encoder(monkeypatch):
    """The encoder, with a strip behind the room it is given that it must not touch."""

    def encode(codes, lengths, features, values, out):
        roomy = np.full(len(out) + (1 << 20), 0xA5, np.uint8)
        used, square = _writer.encode(codes, lengths, features, values, roomy)
        assert (roomy[len(out) :] == 0xA5).all(), "the encoder wrote beyond the room it was given"
        out[:used] = roomy[:used]
        return used, square

    guarded = SimpleNamespace(scatter=_writer.scatter, encode=encode, cut_ids=_writer.cut_ids)
    monkeypatch.setattr(writing, "_writer", guarded)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_comes_back_once(tmp_path, kind, dtype):
    rows = make_rows(kind, dtype)
    blocks = write(tmp_path / "x.blocks", rows, dtype)
    assert count_rows(read(blocks)) == count_rows(rows)
    np.testing.assert_array_equal(blocks.feature_ids(), feature_ids(rows))
    assert blocks.dtype == dtype
    assert blocks.n_rows == len(rows)
    assert blocks.n_nonzeros == sum(len(features) for _, features, _ in rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["unsorted rows of any length", "crowded unsorted rows"])
def test_rows_are_stored_in_the_order_of_their_features(tmp_path, kind, dtype):
    blocks = write(tmp_path / "x.blocks", make_rows(kind, dtype), dtype)
    assert all((np.diff(features) > 0).all() for _, features, _ in read(blocks))


ROW = (0, np.array([0], np.int32), np.ones(1, np.float32))
EMPTY_ROW = (0, np.empty(0, np.int32), np.empty(0, np.float32))


def in_frames(ids) -> list:
    return [ids[first : first + 2**18] for first in range(0, len(ids), 2**18)]


def write_ids(path, ids, calls=()) -> BlockSet:
    """A set of one row and these ids, of which so many frames were told at a time before the end."""
    frames = in_frames(ids)
    with Writer(path, 2, 1, np.float32, 2, 1 << 30) as writer:
        add_all(writer, [ROW if len(ids) else EMPTY_ROW], np.float32)
        for n in calls:
            writer.add_ids(frames[:n])
            frames = frames[n:]
        writer.finish(["a"], [1], frames, [], False)
    return BlockSet(path)


@pytest.mark.parametrize("n, largest", [(3, 200), (2**18, 2**19), (2**18 + 1, 2**24), (600_000, 2**63 - 1)])
def test_ids_are_stored_as_frames_of_byte_planes(tmp_path, n, largest):
    ids = np.random.default_rng(n).integers(1, largest, n)
    blocks = write_ids(tmp_path / "x.blocks", ids)
    np.testing.assert_array_equal(blocks.feature_ids(), ids)
    assert blocks.header["largest_id"] == ids.max()
    entry, offset = blocks.header["feature_ids"], 0
    data = (tmp_path / "x.blocks" / "features.zst").read_bytes()
    for part, size, checksum in zip(in_frames(ids), entry["bytes"], entry["checksums"], strict=True):
        frame = data[offset : offset + size]
        planes = b"".join((part >> 8 * plane & 255).astype(np.uint8).tobytes() for plane in range(8))
        assert zstandard.ZstdDecompressor().decompress(frame) == planes
        assert frame[-4:] == bytes.fromhex(checksum)[::-1]
        offset += size
    assert offset == len(data)


def test_it_does_not_matter_when_ids_are_told(tmp_path):
    ids = np.random.default_rng(1).integers(1, 2**40, 1_200_000)
    calls = [(), [0, 1, 0, 2], [5]]
    sets = [write_ids(tmp_path / f"{k}.blocks", ids, told).path for k, told in enumerate(calls)]
    assert contents(sets[0]) == contents(sets[1]) == contents(sets[2])


@pytest.mark.parametrize("n", [0, 3, 300_000])
def test_ids_of_version_2_are_one_frame(tmp_path, n):
    ids = np.random.default_rng(n).integers(1, 2**40, n)
    path = write_ids(tmp_path / "x.blocks", np.arange(1, n + 1)).path
    planes = b"".join((ids >> 8 * plane & 255).astype(np.uint8).tobytes() for plane in range(8))
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(planes)
    (path / "features.zst").write_bytes(frame)
    entry = {"file": "features.zst", "bytes": len(frame), "checksum": frame[-4:][::-1].hex()}
    rewrite_manifest(path, lambda manifest: manifest.update(
        version=2, feature_ids=entry, largest_id=int(ids.max(initial=0))))
    np.testing.assert_array_equal(BlockSet(path).feature_ids(), ids)


@pytest.mark.parametrize("position", [200, -200, -1])
def test_a_damaged_frame_of_ids_is_refused(tmp_path, position):
    path = write_ids(tmp_path / "x.blocks", np.random.default_rng(1).integers(1, 2**40, 600_000)).path
    data = bytearray((path / "features.zst").read_bytes())
    data[position] ^= 1
    (path / "features.zst").write_bytes(data)
    with pytest.raises(DataError, match=re.escape("features.zst")):
        BlockSet(path).feature_ids()


def test_exchanged_frames_of_ids_are_refused(tmp_path):
    path = write_ids(tmp_path / "x.blocks", np.random.default_rng(1).integers(2**39, 2**40, 2**19)).path
    data, sizes = (path / "features.zst").read_bytes(), BlockSet(path).header["feature_ids"]["bytes"]
    (path / "features.zst").write_bytes(data[sizes[0] :] + data[: sizes[0]])
    with pytest.raises(DataError, match=re.escape("features.zst")):
        BlockSet(path).feature_ids()


@pytest.mark.parametrize("n_blocks", [1, 40, 300])
def test_every_row_comes_back_whatever_the_number_of_blocks(tmp_path, n_blocks):
    rows = make_rows("plain", np.float32)
    blocks = write(tmp_path / "x.blocks", rows, np.float32, n_blocks=n_blocks)
    assert count_rows(read(blocks)) == count_rows(rows)
    assert len(list((tmp_path / "x.blocks").glob("*.llb"))) == n_blocks
    assert [chunk for block in range(n_blocks) for chunk in blocks.block_chunks(block)] == list(range(blocks.n_chunks))


# --- the format, read by its description alone


class PlainChunk:
    """A chunk decoded as the head of _blockset.pyx describes it."""

    def __init__(self, frame: bytes):
        payload = zstandard.ZstdDecompressor().decompress(frame)
        head = np.frombuffer(payload[:32], np.uint8)
        self.n_rows, self.n_nonzeros = np.frombuffer(payload[:16], "<i8").tolist()
        self.label_bytes, self.length_bytes, self.index_bytes, self.value_mode, value_bytes, last = head[16:22].tolist()
        self._rest, self._dtype = payload[32:], np.dtype(f"<f{value_bytes}")
        codes = self._integers(self.n_rows, self.label_bytes)
        common, self._listed = np.frombuffer(payload[24:32], "<u4").tolist()
        lengths = self._integers(self.n_rows, self.length_bytes) if self.length_bytes else [common] * self.n_rows
        gaps = self._integers(self.n_nonzeros, self.index_bytes)
        values = self._values(last + 1, lengths)
        assert not self._rest
        ends = np.cumsum([0, *lengths]).tolist()
        self.rows = [
            (code, (np.cumsum(gaps[start:end] + 1) - 1).astype(np.int32), values[start:end])
            for code, start, end in zip(codes.tolist(), ends, ends[1:], strict=False)
        ]

    def _take(self, size: int) -> bytes:
        taken, self._rest = self._rest[:size], self._rest[size:]
        assert len(taken) == size
        return taken

    def _planes(self, count: int, planes: int) -> np.ndarray:
        return np.ascontiguousarray(np.frombuffer(self._take(count * planes), np.uint8).reshape(planes, count).T)

    def _integers(self, count: int, planes: int) -> np.ndarray:
        return (self._planes(count, planes).astype(np.int64) << (8 * np.arange(planes))).sum(axis=1)

    def _values(self, dictionary_size: int, lengths) -> np.ndarray:
        size = self._dtype.itemsize
        if self.value_mode == ROW_CONSTANT:
            return np.repeat(np.frombuffer(self._take(self.n_rows * size), self._dtype), lengths)
        if self.value_mode == DICTIONARY:
            entries = np.frombuffer(self._take(dictionary_size * size), self._dtype)
            return entries[np.frombuffer(self._take(self.n_nonzeros), np.uint8)]
        if self.value_mode == COMMON_NUMBER:
            [number] = np.frombuffer(self._take(size), self._dtype)
            bits = np.frombuffer(self._take((self.n_nonzeros + 7) // 8), np.uint8)
            common = np.unpackbits(bits, count=self.n_nonzeros, bitorder="little").astype(bool)
            values = np.full(self.n_nonzeros, number)
            values[~common] = self._planes(self._listed, size).view(self._dtype).ravel()
            return values
        return self._planes(self.n_nonzeros, size).view(self._dtype).ravel()


def plain_chunks(folder) -> list[PlainChunk]:
    chunks = []
    for block in json.loads((folder / "manifest.json").read_text())["blocks"]:
        data, start = (folder / block["file"]).read_bytes(), 0
        for n_rows, n_nonzeros, size, checksum in zip(
            block["rows"], block["nonzeros"], block["bytes"], block["checksums"], strict=True
        ):
            frame = data[start : start + size]
            assert frame[-4:] == bytes.fromhex(checksum)[::-1]
            chunk = PlainChunk(frame)
            assert (chunk.n_rows, chunk.n_nonzeros) == (n_rows, n_nonzeros)
            chunks.append(chunk)
            start += size
        assert start == len(data)
    return chunks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("plain", {"value_mode": {PLAIN}, "label_bytes": {1}, "length_bytes": {1}, "index_bytes": {2}}),
        ("binary", {"value_mode": {ROW_CONSTANT}}),
        ("one number a row", {"value_mode": {ROW_CONSTANT}}),
        ("256 numbers", {"value_mode": {DICTIONARY}}),
        ("many ones", {"value_mode": {COMMON_NUMBER}}),
        ("mostly zeros of both signs", {"value_mode": {DICTIONARY, COMMON_NUMBER}}),
        ("dense", {"length_bytes": {0}, "index_bytes": {0}}),
        ("empty rows", {"value_mode": {ROW_CONSTANT}, "length_bytes": {0}, "index_bytes": {0}}),
        ("256 labels", {"label_bytes": {1}}),
        ("many labels", {"label_bytes": {2}}),
        ("distant features", {"index_bytes": {3}}),
        ("long rows", {"length_bytes": {0, 1, 2}}),
    ],
)
def test_the_description_of_the_format_is_enough_to_read_it(tmp_path, kind, stored, dtype):
    rows = make_rows(kind, dtype)
    write(tmp_path / "x.blocks", rows, dtype)
    chunks = plain_chunks(tmp_path / "x.blocks")
    assert count_rows(row for chunk in chunks for row in chunk.rows) == count_rows(rows)
    for name, expected in stored.items():
        assert {getattr(chunk, name) for chunk in chunks} <= expected


# --- the same bytes


@pytest.mark.parametrize("kind", ["plain", "empty rows", "long rows"])
def test_the_bytes_do_not_depend_on_threads(tmp_path, kind):
    rows = make_rows(kind, np.float32)
    sets = [write(tmp_path / f"{n}.blocks", rows, np.float32, threads=n).path for n in (1, 2, 4)]
    assert contents(sets[0]) == contents(sets[1]) == contents(sets[2])


def test_the_bytes_do_not_depend_on_where_the_text_is_cut(tmp_path):
    rng, sets = np.random.default_rng(5), []
    rows = [(0, choose(rng, 40000, n).astype(np.int32), rng.normal(size=n).astype(np.float32))
            for n in rng.integers(1, 16000, 300)]  # fmt: skip
    for per_block in (1, 7, 300):
        with Writer(tmp_path / f"{per_block}.blocks", 4, 1, np.float32, 2, 200 * MB) as writer:
            add_all(writer, rows, np.float32, per_block)
            sets.append(contents(writer.finish(["1"], [300], in_frames(feature_ids(rows)), [], False)))
    assert sets[0] == sets[1] == sets[2]


def test_more_blocks_than_the_memory_has_room_for_are_refused(tmp_path):
    with pytest.raises(UsageError, match="-m 4096 is too much"):
        Writer(tmp_path / "x.blocks", 4096, 1, np.float32, 2, 100 * MB)
    assert not list(tmp_path.iterdir())


def test_another_seed_puts_the_rows_elsewhere(tmp_path):
    rows = make_rows("plain", np.float32)
    first, second = (write(tmp_path / f"{seed}.blocks", rows, np.float32, seed=seed) for seed in (1, 2))
    for block in first.blocks:
        assert (first.path / block.file).read_bytes() != (second.path / block.file).read_bytes()
    assert count_rows(read(first)) == count_rows(read(second))


def test_rows_sorted_by_class_are_mixed_in_every_block(tmp_path):
    rows = [(int(k >= 4000), np.array([k % 7], np.int32), np.ones(1, np.float32)) for k in range(8000)]
    blocks = write(tmp_path / "x.blocks", rows, np.float32, n_blocks=8)
    for block in range(8):
        codes = np.concatenate([blocks.load_chunk(chunk).codes for chunk in blocks.block_chunks(block)])
        # 1000 rows a block, half of them of class 1, standard deviation below 31 and 16.
        assert abs(len(codes) - 1000) < 160
        assert abs(codes.mean() - 0.5) < 0.08


# --- from text

OPTIONS = {"n_blocks": 3, "seed": 1, "zero_based": False, "precision": "float32", "force": False, "threads": 2,
           "memory": 1 << 30}  # fmt: skip


def split(paths, target, **options) -> BlockSet:
    split_text([str(path) for path in paths], target, **{**OPTIONS, **options})
    return BlockSet(target)


def plain_parse(data: str):
    """[(label, {id: value})] of right lines."""
    parsed = []
    for line in data.split("\n"):
        tokens = line.partition("#")[0].split()
        if tokens:
            parsed.append((tokens[0], {int(pair.split(":")[0]): float(pair.split(":")[1]) for pair in tokens[1:]}))
    return parsed


def named_rows(blocks: BlockSet) -> Counter:
    names, ids = blocks.description.labels, blocks.feature_ids()
    return Counter(
        (names[code], frozenset(zip(ids[features].tolist(), values.tolist(), strict=True)))
        for code, features, values in read(blocks)
    )


def count_parsed(parsed, dtype) -> Counter:
    return Counter((label, frozenset((id, float(dtype(value))) for id, value in row.items())) for label, row in parsed)


def some_text(n: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for label in rng.choice(["spam", "-1", "2.5", "1"], n).tolist():
        ids = rng.permutation(np.unique(rng.integers(1, 10**12, rng.integers(0, 20)) // 10 ** rng.integers(0, 10)) + 1)
        pairs = [f"{id}:{value:.7g}" for id, value in zip(ids, rng.normal(size=len(ids)), strict=True)]
        lines.append(" ".join([label, *pairs]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_manifest_tells_the_facts(tmp_path, dtype):
    texts = [some_text(900, 1), "# nothing\n" + some_text(600, 2)]
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, data in zip(paths, texts, strict=True):
        path.write_text(data)
    blocks = split(paths, tmp_path / "x.blocks", precision=np.dtype(dtype).name, seed=77)
    parsed = plain_parse("".join(texts))
    labels = [label for label, _ in parsed]
    ids = {id for _, row in parsed for id in row}
    manifest = json.loads((tmp_path / "x.blocks" / "manifest.json").read_text())
    expected = {
        "format": "llsvm-blocks",
        "version": 3,
        "rows": len(parsed),
        "features": len(ids),
        "nonzeros": sum(len(row) for _, row in parsed),
        "largest_id": max(ids),
        "zero_based": False,
        "values": np.dtype(dtype).name,
        "labels": [{"name": name, "rows": labels.count(name)} for name in dict.fromkeys(labels)],
        "seed": 77,
    }
    assert {name: manifest[name] for name in expected} == expected
    for source, path in zip(manifest["sources"], paths, strict=True):
        assert (source["name"], source["size"]) == (str(path), path.stat().st_size)
        assert source["xxh64"][8:] == half_digest(path.read_bytes())
    norms = [np.linalg.norm(np.array(list(row.values()), dtype).astype(np.float64)) for _, row in parsed]
    assert manifest["largest_norm"] == pytest.approx(max(norms), rel=1e-14)
    assert named_rows(blocks) == count_parsed(parsed, dtype)
    assert blocks.feature_ids().tolist() == list(dict.fromkeys(id for _, row in parsed for id in sorted(row)))
    description = blocks.description
    assert description.labels == [label["name"] for label in expected["labels"]]
    assert description.label_counts.tolist() == [label["rows"] for label in expected["labels"]]
    assert description.largest_norm == manifest["largest_norm"]


def text_of_long_rows() -> str:
    rng = np.random.default_rng(4)
    words = [f"{id}:{id % 97}" for id in range(1, 10001)]
    return "\n".join(" ".join(["1", *words[: rng.integers(10, 9000) if k % 3 == 0 else 20]]) for k in range(400)) + "\n"


def text_of_long_lines() -> str:
    """Short rows, but some lines are longer than a piece is under a small budget."""
    rng = np.random.default_rng(4)
    lines = ["1 " + " ".join(f"{id}:{id % 97}" for id in range(1, n)) for n in rng.integers(2, 20, 15000).tolist()]
    for k in rng.choice(15000, 30, replace=False).tolist():
        lines[k] += " # " + "x" * int(rng.integers(200_000))
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_text", "memory"),
    [(lambda: some_text(20000), 64 << 20), (text_of_long_rows, 64 << 20), (text_of_long_lines, 8 << 20)],
    ids=["short lines", "long rows", "long lines"],
)
def test_a_split_gives_the_same_bytes_for_any_number_of_threads(tmp_path, monkeypatch, make_text, memory):
    monkeypatch.setattr(writing, "SMALLEST_CHUNK", 1 << 11)  # so that chunks grow with the data, as in a large set
    path = tmp_path / "data.txt"
    path.write_text(make_text())
    sets = [split([path], tmp_path / f"{n}.blocks", threads=n, memory=memory).path for n in (1, 2, 4)]
    assert contents(sets[0]) == contents(sets[1]) == contents(sets[2])


@pytest.mark.parametrize("name", sorted(path.name for path in FROZEN.iterdir() if path.is_dir()))
def test_a_set_written_by_an_earlier_version_is_read(name):
    """Each folder holds text.txt and what `llsvm-split text.txt -o blocks -m 3 ...` once made of it."""
    blocks = BlockSet(FROZEN / name / "blocks")
    data = (FROZEN / name / "text.txt").read_bytes()
    assert named_rows(blocks) == count_parsed(plain_parse(data.decode()), blocks.dtype.type)
    [source] = blocks.description.sources
    if "sha256" in source:
        assert source["sha256"] == hashlib.sha256(data).hexdigest()
    else:
        assert source["xxh64"][8:] == half_digest(data)
    assert sum(chunk.n_rows for chunk in plain_chunks(blocks.path)) == blocks.n_rows


# --- damage


@pytest.fixture
def small_set(tmp_path) -> BlockSet:
    rng = np.random.default_rng(2)
    rows = [
        (k % 2, choose(rng, 50, k % 5).astype(np.int32), rng.normal(size=k % 5).astype(np.float32)) for k in range(45)
    ]
    return write(tmp_path / "small.blocks", rows, np.float32, n_blocks=2)


def read_everything(path) -> None:
    blocks = BlockSet(path)
    blocks.feature_ids()
    read(blocks)


def flipped(data: bytes, position: int, mask: int) -> bytes:
    return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


@pytest.mark.parametrize("mask", [0x01, 0x10, 0x80, 0xFF])
@pytest.mark.parametrize("name", ["block-0000.llb", "block-0001.llb", "features.zst"])
def test_a_flipped_byte_is_refused_unless_nothing_depends_on_it(small_set, name, mask):
    """zstd ignores a few bits of its headers; any other change must be noticed."""
    file = small_set.path / name
    data, rows, ids = file.read_bytes(), count_rows(read(small_set)), small_set.feature_ids().tolist()
    refused = 0
    for position in range(len(data)):
        file.write_bytes(flipped(data, position, mask))
        try:
            assert small_set.feature_ids().tolist() == ids
            assert count_rows(read(small_set)) == rows
        except DataError as error:
            assert str(error).startswith(str(file))
            refused += 1
    assert refused >= len(data) - 2


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_in_the_manifest_is_refused_wherever_it_is(small_set, mask):
    file = small_set.path / "manifest.json"
    data = file.read_bytes()
    checked_first = data.index(b'"written_by"')  # format and version are looked at before the checksum
    for position in range(len(data)):
        file.write_bytes(flipped(data, position, mask))
        with pytest.raises(DataError if position >= checked_first else LlsvmError):
            BlockSet(small_set.path)


@pytest.mark.parametrize("name", ["block-0000.llb", "block-0001.llb", "features.zst"])
@pytest.mark.parametrize("share", [0, 0.3, 0.999])
def test_a_truncated_file_is_refused(small_set, name, share):
    file = small_set.path / name
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(DataError, match=f"{re.escape(str(file))}: truncated") as refusal:
        read_everything(small_set.path)
    assert "llsvm-split" in refusal.value.hint


def test_a_manifest_cut_short_is_refused(small_set):
    file = small_set.path / "manifest.json"
    data = file.read_bytes()
    for length in range(len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(DataError):
            BlockSet(small_set.path)


@pytest.mark.parametrize("name", ["block-0001.llb", "features.zst"])
def test_a_missing_file_is_refused_by_name(small_set, name):
    (small_set.path / name).unlink()
    with pytest.raises(DataError, match=re.escape(name)):
        read_everything(small_set.path)


def test_exchanged_block_files_are_refused(small_set):
    one, other = (small_set.path / block.file for block in small_set.blocks)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second.ljust(len(first), b"\0"))
    other.write_bytes(first)
    with pytest.raises(DataError):
        read_everything(small_set.path)


def rewrite_manifest(path, change) -> None:
    """Changes the manifest and gives it the checksum that then belongs to it."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    del manifest["checksum"]
    text = json.dumps(manifest)[:-1] + ",\n"
    file.write_text(text + f'"checksum": "{zlib.crc32(text.encode()):08x}"\n}}\n')


def take_a_row(manifest):
    manifest["blocks"][0]["rows"][0] -= 1
    manifest["blocks"][1]["rows"][0] += 1


def take_a_frame_of_ids(manifest):
    manifest["feature_ids"]["bytes"].pop()


def take_a_nonzero(manifest):
    manifest["blocks"][0]["nonzeros"][0] += 1
    manifest["blocks"][1]["nonzeros"][0] -= 1


@pytest.mark.parametrize(
    "change",
    [
        take_a_row,
        take_a_nonzero,
        take_a_frame_of_ids,
        lambda manifest: manifest.update(values="float64"),
        lambda manifest: manifest.update(features=manifest["features"] - 1),
        lambda manifest: manifest.update(rows=manifest["rows"] + 1),
    ],
    ids=["rows of a chunk", "nonzeros of a chunk", "frames of ids", "value type", "features", "rows"],
)
def test_a_manifest_that_contradicts_the_blocks_is_refused(small_set, change):
    rewrite_manifest(small_set.path, lambda manifest: None)
    read_everything(small_set.path)
    rewrite_manifest(small_set.path, change)
    with pytest.raises(DataError):
        for chunk in range(BlockSet(small_set.path).n_chunks):
            BlockSet(small_set.path).load_chunk(chunk)


def test_a_set_of_a_later_version_is_refused_with_both_numbers(small_set):
    rewrite_manifest(small_set.path, lambda manifest: manifest.update(version=4))
    with pytest.raises(LlsvmError, match="version 4, this llsvm reads up to 3"):
        BlockSet(small_set.path)


def test_what_is_no_set_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("1 1:1\n")
    for name, words in (("missing", "no such block set"), ("empty", "manifest.json"), ("file", "no such block set")):
        assert not is_block_set(tmp_path / name)
        with pytest.raises(LlsvmError, match=words):
            BlockSet(tmp_path / name)
    (tmp_path / "empty" / "manifest.json").write_text('{"format": "another", "version": 1}')
    with pytest.raises(LlsvmError, match="not a block set"):
        BlockSet(tmp_path / "empty")


# --- complete or absent

ROWS = make_rows("plain", np.float32)


def names_in(folder) -> list[str]:
    """Hidden ones too."""
    return sorted(os.listdir(folder))


def test_an_existing_set_is_refused_and_left_alone(small_set):
    before = contents(small_set.path)
    with pytest.raises(LlsvmError, match="exists already") as refusal:
        write(small_set.path, ROWS, np.float32)
    assert "--force" in refusal.value.hint
    assert contents(small_set.path) == before
    assert names_in(small_set.path.parent) == ["small.blocks"]


def test_force_replaces_an_existing_set(small_set):
    blocks = write(small_set.path, ROWS, np.float32, n_blocks=1, force=True)
    assert count_rows(read(blocks)) == count_rows(ROWS)
    assert names_in(small_set.path) == ["block-0000.llb", "features.zst", "manifest.json"]
    assert names_in(small_set.path.parent) == ["small.blocks"]


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text("precious")])
def test_force_replaces_nothing_but_block_sets(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(LlsvmError, match="not a block set"):
        write(tmp_path / "x", ROWS, np.float32, force=True)
    assert names_in(tmp_path) == ["x"]


def fail_in_the_caller(writer, monkeypatch):
    add_all(writer, ROWS, np.float32)
    raise KeyboardInterrupt


def fail_in_the_encoder(writer, monkeypatch):
    def encode(*arguments):
        raise MemoryError

    monkeypatch.setattr(writing._writer, "encode", encode)
    add_all(writer, ROWS, np.float32)
    writer.finish(["a", "b"], [1, 1], in_frames(feature_ids(ROWS)), [], False)


def fail_on_a_full_disk(writer, monkeypatch):
    with file_size_limit(20_000):
        add_all(writer, ROWS, np.float32)
        writer.finish(["a", "b"], [1, 1], in_frames(feature_ids(ROWS)), [], False)


def fail_in_the_manifest(writer, monkeypatch):
    add_all(writer, ROWS, np.float32)
    writer.finish(["a", "b"], [1], in_frames(feature_ids(ROWS)), [], False)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (fail_in_the_caller, KeyboardInterrupt),
        (fail_in_the_encoder, MemoryError),
        (fail_on_a_full_disk, LlsvmError),
        (fail_in_the_manifest, ValueError),
    ],
)
def test_a_failure_leaves_what_was_there_before(tmp_path, monkeypatch, existing, fail, error):
    path = tmp_path / "x.blocks"
    if existing:
        write(path, make_rows("one row", np.float32), np.float32)
    before = contents(path) if existing else None
    with pytest.raises(error), Writer(path, 2, 1, np.float32, 2, 1 << 30, True) as writer:
        fail(writer, monkeypatch)
    assert names_in(tmp_path) == (["x.blocks"] if existing else [])
    assert before == (contents(path) if existing else None)


BAD_TEXT = {"a fault": some_text(3000) + "1 1:oops\n", "no rows": "# nothing\n", "nothing": ""}


@pytest.mark.parametrize("data", BAD_TEXT.values(), ids=BAD_TEXT)
def test_a_split_of_bad_text_leaves_nothing(tmp_path, data):
    (tmp_path / "data.txt").write_text(data)
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "data.txt"))):
        split([tmp_path / "data.txt"], tmp_path / "x.blocks")
    assert names_in(tmp_path) == ["data.txt"]


def test_a_target_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(LlsvmError, match="No such file"):
        write(tmp_path / "missing" / "x.blocks", ROWS, np.float32)


@pytest.mark.parametrize("name", ["x.blocks", "[x]*.blocks"])
def test_what_a_killed_process_left_is_removed(tmp_path, name):
    stale = tmp_path / f".{name}.0123abcd.partial"
    stale.mkdir()
    (stale / "block-0000.llb").write_bytes(b"half")
    blocks = write(tmp_path / name, ROWS, np.float32)
    assert count_rows(read(blocks)) == count_rows(ROWS)
    assert names_in(tmp_path) == [name]


def test_what_another_writes_is_left_alone(tmp_path):
    """Also where both have the same process number, as in two containers."""
    with Writer(tmp_path / "x.blocks", 2, 1, np.float32, 2, 1 << 30) as other:
        [partial] = names_in(tmp_path)
        write(tmp_path / "x.blocks", ROWS, np.float32)
        assert names_in(tmp_path) == [partial, "x.blocks"]
        add_all(other, ROWS, np.float32)
        with pytest.raises(LlsvmError, match="exists already"):
            other.finish(["a", "b"], [1, 1], in_frames(feature_ids(ROWS)), [], False)
    assert names_in(tmp_path) == ["x.blocks"]


def test_force_replaces_what_a_link_points_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "x.blocks", make_rows("one row", np.float32), np.float32)
    (tmp_path / "link.blocks").symlink_to("elsewhere/x.blocks")
    write(tmp_path / "link.blocks", ROWS, np.float32, force=True)
    assert os.readlink(tmp_path / "link.blocks") == "elsewhere/x.blocks"
    assert names_in(tmp_path) == ["elsewhere", "link.blocks"]
    assert names_in(tmp_path / "elsewhere") == ["x.blocks"]
    assert count_rows(read(BlockSet(tmp_path / "elsewhere" / "x.blocks"))) == count_rows(ROWS)


@pytest.mark.parametrize("exchange", [True, False], ids=["exchanged", "renamed"])
def test_a_set_that_is_replaced_is_there_at_any_time(tmp_path, monkeypatch, exchange):
    """However early the process ends: what is seen at every change of a name is what a kill there would leave."""
    path, seen = tmp_path / "x.blocks", []
    old = write(path, make_rows("one row", np.float32), np.float32).n_rows

    def look(event, arguments):
        if event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
            kept = [BlockSet(found).n_rows for found in (path, files.replaced(path)) if found and is_block_set(found)]
            seen.append((is_block_set(path), kept))

    watch(look, monkeypatch)
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    write(path, ROWS, np.float32, force=True)
    assert len(seen) > 2 and all(kept and set(kept) <= {old, len(ROWS)} for _, kept in seen)
    assert all(there for there, _ in seen) == exchange
    assert names_in(tmp_path) == ["x.blocks"] and BlockSet(path).n_rows == len(ROWS)


WATCHERS = []
sys.addaudithook(lambda event, arguments: [look(event, arguments) for look in WATCHERS])


def watch(look, monkeypatch):
    """Calls look(event, arguments) at everything Python audits, until the test ends."""
    monkeypatch.setattr(sys.modules[__name__], "WATCHERS", [look])


def test_a_set_that_was_being_replaced_is_named_by_who_looks_for_it(small_set):
    before = small_set.path.with_name(".small.blocks.0123abcd.old.partial")
    small_set.path.rename(before)
    with pytest.raises(LlsvmError, match="no such block set") as refusal:
        BlockSet(small_set.path)
    assert f"mv {before} {small_set.path}" in refusal.value.hint


# --- files that the system does not open


@contextmanager
def file_limit(n_more: int):
    """No more than so many files can be opened beside those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.open(os.devnull, os.O_RDONLY)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + n_more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("told", [True, False], ids=["told", "found out"])
def test_a_set_of_many_files_is_written_and_read_where_few_may_be_open(tmp_path, monkeypatch, told):
    expected = write(tmp_path / "expected", ROWS, np.float32, n_blocks=90)
    for module in () if told else (blockset, writing):
        monkeypatch.setattr(module, "files_at_a_time", lambda most: most)
    with file_limit(12), ThreadPoolExecutor(3) as pool:
        blocks = write(tmp_path / "x", ROWS, np.float32, n_blocks=90)
        assert contents(blocks.path) == contents(expected.path)
        for _ in range(2):
            found = pool.map(blocks.load_chunk, range(blocks.n_chunks))
            assert sum((count_rows(rows_of(block)) for block in found), Counter()) == count_rows(ROWS)
            blocks.close()
    assert not [link for link in open_files() if link.startswith(str(tmp_path))]


def open_files() -> list[str]:
    """The paths of what this process has open, where the system tells."""
    folder, paths = Path("/proc/self/fd"), []
    for descriptor in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            paths.append(os.readlink(descriptor))
    return paths


@pytest.mark.parametrize(("number", "hint"), [
    (errno.EACCES, ""), (errno.EMFILE, "ulimit -n"), (errno.ENFILE, "ulimit -n"),
    (errno.ENOENT, "again with llsvm-split"), (errno.EIO, "again with llsvm-split"),
])  # fmt: skip
def test_a_file_that_cannot_be_opened_is_called_damaged_only_if_it_may_be(small_set, monkeypatch, number, hint):
    def refuse(path, *arguments, **options):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(blockset, "open", refuse, raising=False)
    with pytest.raises(LlsvmError) as refusal:
        BlockSet(small_set.path).load_chunk(0)
    assert os.strerror(number) in refusal.value.message and small_set.blocks[0].file in refusal.value.message
    assert hint in refusal.value.hint and bool(hint) == bool(refusal.value.hint)


def test_a_writer_that_may_open_no_file_says_so(tmp_path):
    with pytest.raises(LlsvmError, match="Too many open files") as refusal, file_limit(0):
        write(tmp_path / "x", ROWS, np.float32)
    assert "ulimit -n" in refusal.value.hint
