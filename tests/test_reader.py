"""Rows in memory, looked at byte by byte; groups of chunks read ahead by a thread."""

import _thread
import ctypes
import itertools
import os
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from llsvm import writer as writing
from llsvm.blockset import BlockSet
from llsvm.core import Block, DataError
from llsvm.pool import Pool
from llsvm.prefetch import Prefetcher
from llsvm.reader import ROW, Arena, Gatherer, arena_bytes, load, rows_bytes
from llsvm.writer import Writer

DTYPES = [np.float32, np.float64]


def make_block(n_rows: int, dtype, seed: int = 0, longest: int = 9) -> Block:
    """Rows of 0 to `longest` nonzeros, codes up to the largest possible."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, n_rows)
    features = [np.sort(rng.choice(60, length, replace=False)) for length in lengths]
    return Block(
        rng.choice([0, 1, 65534], n_rows).astype(np.uint16),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([[], *features]).astype(np.int32),
        rng.normal(size=lengths.sum()).astype(dtype),
    )


def rows_of(block: Block):
    """[(code, features, values)], comparable."""
    ends = block.indptr.tolist()
    return [
        (code, block.features[start:end].tobytes(), block.values[start:end].tobytes())
        for code, start, end in zip(block.codes.tolist(), ends, ends[1:], strict=False)
    ]


def rows_in(table, dtype):
    """What a table leads to: feature numbers of 4 or 2 bytes, or none where they are 0, 1, ...; then, on
    a multiple of their size, the values, or one where all are the same."""
    size, found = np.dtype(dtype).itemsize, []
    for row in table:
        length, address, layout = int(row["length"]), int(row["data"]), int(row["layout"])
        assert address % size == 0
        width = 0 if layout & 2 else 2 if layout & 1 else 4
        if width:
            features = np.frombuffer(ctypes.string_at(address, width * length), np.uint16 if width == 2 else np.int32)
        else:
            features = np.arange(length)
        n_values = min(1, length) if layout & 4 else length
        values = np.frombuffer(ctypes.string_at(address + -(-width * length // size) * size, size * n_values), dtype)
        values = np.repeat(values, length) if layout & 4 else values
        found.append((int(row["code"]), features.astype(np.int32).tobytes(), values.tobytes()))
    return found


def one_row(features, values) -> Block:
    return Block(np.zeros(1, np.uint16), np.array([0, len(features)]), np.array(features, np.int32), np.array(values))


def squares(block: Block) -> np.ndarray:
    wide = block.values.astype(np.float64) ** 2
    return np.array([wide[start:end].sum() for start, end in itertools.pairwise(block.indptr.tolist())])


def make_arena(n_rows: int, n_nonzeros: int, dtype) -> Arena:
    return Arena(arena_bytes(n_rows, n_nonzeros, np.dtype(dtype).itemsize), np.empty(n_rows, ROW), dtype)


def add(arena: Arena, block: Block, chunk: int) -> None:
    arena.add(block.codes, np.diff(block.indptr).astype(np.int32), block.features, block.values, chunk)


def filled_arena(dtype, *blocks: Block) -> Arena:
    arena = make_arena(sum(block.n_rows for block in blocks), sum(block.n_nonzeros for block in blocks), dtype)
    for chunk, block in enumerate(blocks):
        add(arena, block, chunk)
    return arena


# --- arenas


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_arena_holds_the_rows_it_was_given(dtype):
    blocks = [make_block(50, dtype, 1), make_block(1, dtype, 2), make_block(70, dtype, 3)]
    arena = filled_arena(dtype, *blocks)
    assert rows_in(arena.rows, dtype) == [row for block in blocks for row in rows_of(block)]
    assert arena.rows["chunk"].tolist() == [0] * 50 + [1] + [2] * 70
    assert arena.rows["place"].tolist() == [*range(50), 0, *range(70)]
    expected = np.concatenate([squares(block) for block in blocks])
    np.testing.assert_array_equal(arena.rows["norm"], np.sqrt(expected).astype(np.float32))
    assert arena.largest_square == pytest.approx(expected.max(), rel=1e-14)


LAYOUTS = {
    "any": ([3, 70_000], [1.5, 2.5], 16), "short numbers": ([3, 65_535], [1.5, 2.5], 12),
    "all features": ([0, 1, 2], [1.5, 2.5, -1], 12), "one value": ([3, 70_000, 70_001], [2, 2, 2], 16),
    "short numbers, one value": ([3, 4, 5], [2, 2, 2], 12), "no features": ([], [], 0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_takes_no_more_than_it_needs(name, dtype):
    features, values, n_bytes = LAYOUTS[name]
    block = one_row(features, np.array(values, dtype))
    arena = filled_arena(dtype, block)
    assert rows_in(arena.rows, dtype) == rows_of(block)
    if dtype == np.float32:
        assert arena.used == n_bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("longest", [0, 1, 2, 9])
def test_the_size_of_an_arena_is_enough_for_its_rows(dtype, longest):
    block = make_block(200, dtype, longest=longest)
    arena = filled_arena(dtype, block)
    n_bytes, n_rows = arena.space
    assert n_rows == 0
    assert n_bytes >= 0
    assert rows_in(arena.rows, dtype) == rows_of(block)


def test_a_cleared_arena_takes_new_rows():
    first, second = make_block(40, np.float32, 1), make_block(30, np.float32, 2, longest=4)
    arena = filled_arena(np.float32, first)
    full = arena.space
    arena.clear()
    assert arena.space > full
    assert arena.n_rows == 0
    add(arena, second, 7)
    assert rows_in(arena.rows, np.float32) == rows_of(second)


@pytest.mark.parametrize("dtype", DTYPES)
def test_take_copies_the_chosen_rows(dtype):
    block = make_block(200, dtype)
    source, target = filled_arena(dtype, block), make_arena(200, block.n_nonzeros, dtype)
    even = np.arange(200) % 2 == 0
    target.take(source.rows, even)
    target.take(source.rows, ~even)
    order = [*range(0, 200, 2), *range(1, 200, 2)]
    source.clear()
    add(source, make_block(200, dtype, 9, longest=3), 0)  # the copies are not in there
    assert rows_in(target.rows, dtype) == [rows_of(block)[k] for k in order]
    assert target.rows["place"].tolist() == order


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "share_of_bytes"), [(30, 1), (0, 1), (200, 0.5), (200, 0)])
def test_take_stops_where_rows_or_bytes_run_out(dtype, rows, share_of_bytes):
    block = make_block(200, dtype)
    source = filled_arena(dtype, block)
    target = make_arena(rows, int(share_of_bytes * block.n_nonzeros), dtype)
    target.take(source.rows, np.ones(200, bool))
    assert rows_in(target.rows, dtype) == rows_of(block)[: target.n_rows]
    if share_of_bytes == 1:
        assert target.n_rows == rows
    else:
        following = int(np.diff(block.indptr)[target.n_rows])
        assert target.space[0] < following * (4 + np.dtype(dtype).itemsize) + 4
    assert min(target.space) >= 0


def write_set(path, block: Block, dtype) -> BlockSet:
    with Writer(path, 3, 1, dtype, 1, 1 << 30) as writer:
        writer.add(block)
        names = [str(code) for code in range(65535)]
        counts = np.bincount(block.codes, minlength=65535)
        writer.finish(names, counts, [np.arange(1, 61, dtype=np.int64)], [], False)
    return BlockSet(path)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(writing, "SMALLEST_CHUNK", 600)


@pytest.fixture(params=DTYPES)
def data(request, tmp_path, small_chunks):
    """(block, the set with its rows)"""
    block = make_block(1500, request.param)
    blocks = write_set(tmp_path / "x.blocks", block, request.param)
    assert blocks.n_chunks > 50
    return block, blocks


@pytest.mark.parametrize("threads", [1, 3, 40])
def test_a_loaded_set_has_every_row_once_and_in_its_place(data, threads):
    block, blocks = data
    resident = load(blocks, threads)
    found = rows_in(resident.table, blocks.dtype)
    assert Counter(found) == Counter(rows_of(block))
    expected = [
        (row, chunk, place)
        for chunk in range(blocks.n_chunks)
        for place, row in enumerate(rows_of(blocks.load_chunk(chunk)))
    ]
    table = resident.table
    assert list(zip(found, table["chunk"].tolist(), table["place"].tolist(), strict=True)) == expected
    assert resident.bytes_read == sum(file.stat().st_size for file in blocks.path.glob("*.llb"))
    assert resident.description.n_rows == len(resident.table) == 1500
    np.testing.assert_array_equal(resident.feature_ids(), np.arange(1, 61))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_nonzeros_are_loaded(tmp_path, dtype):
    block = make_block(100, dtype, longest=0)
    resident = load(write_set(tmp_path / "x.blocks", block, dtype), 2)
    assert Counter(rows_in(resident.table, dtype)) == Counter(rows_of(block))


def test_damage_is_noticed_while_loading(data):
    _, blocks = data
    damage(blocks, blocks.n_chunks - 1)
    with pytest.raises(DataError, match="checksum"):
        load(blocks, 2)


def damage(blocks: BlockSet, chunk: int) -> None:
    """Overwrites the last byte of a chunk."""
    file = blocks.path / blocks.blocks[blocks.chunk_block[chunk]].file
    before = [other for other in blocks.block_chunks(blocks.chunk_block[chunk]) if other <= chunk]
    with open(file, "r+b") as stream:
        stream.seek(int(blocks.chunk_bytes[before].sum()) - 1)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0xFF]))


# --- gathering from text


def gathering(dtype, memory: int, blocks) -> tuple[Gatherer, list[bool]]:
    gatherer = Gatherer(dtype, memory)
    return gatherer, [gatherer.add(block) for block in blocks]


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_that_fit_become_one_table(dtype):
    blocks = [make_block(n_rows, dtype, n_rows) for n_rows in (100, 0, 1, 250)]
    gatherer, taken = gathering(dtype, 1 << 30, blocks)
    assert all(taken)
    assert gatherer.n_rows == 351
    assert gatherer.n_nonzeros == sum(block.n_nonzeros for block in blocks)
    assert gatherer.largest_square == pytest.approx(max(squares(block).max(initial=0) for block in blocks), rel=1e-14)
    resident = gatherer.finish(SimpleNamespace(dtype=np.dtype(dtype)), None, 77)
    assert rows_in(resident.table, dtype) == [row for block in blocks for row in rows_of(block)]
    assert resident.bytes_read == 77


@pytest.mark.parametrize("dtype", DTYPES)
def test_spilled_blocks_are_the_same_in_the_same_order(dtype):
    blocks = [make_block(n_rows, dtype, n_rows) for n_rows in (100, 0, 1, 250)]
    gatherer, _ = gathering(dtype, 1 << 30, blocks)
    spilled = list(gatherer.spill())
    assert [row for block in spilled for row in rows_of(block)] == [row for block in blocks for row in rows_of(block)]
    for name in ("codes", "indptr", "features", "values"):
        assert getattr(spilled[0], name).dtype == getattr(blocks[0], name).dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_beyond_the_budget_is_not_taken(dtype):
    blocks = [make_block(100, dtype, seed) for seed in range(20)]
    size = np.dtype(dtype).itemsize
    memory = 10 * rows_bytes(100, max(block.n_nonzeros for block in blocks), size)
    gatherer, taken = gathering(dtype, memory, blocks)
    count = taken.index(False)
    assert 0 < count < 11
    assert gatherer.n_rows == 100 * sum(taken)
    assert [row for block in gatherer.spill() for row in rows_of(block)] == [
        row for block, fits in zip(blocks, taken, strict=True) if fits for row in rows_of(block)
    ]


def test_what_is_gathered_stays_within_the_budget():
    blocks = [make_block(100, np.float32, seed) for seed in range(20)]
    memory = 40_000
    gatherer, taken = gathering(np.float32, memory, blocks)
    assert 0 < sum(taken) < 20
    values = sum(block.values.nbytes + block.features.nbytes for block, fits in zip(blocks, taken, strict=True) if fits)
    assert values + gatherer.n_rows * ROW.itemsize <= memory


def test_what_must_lie_beside_the_rows_counts():
    block = make_block(100, np.float32)
    gatherer = Gatherer(np.float32, 1 << 20)
    gatherer.reserve = 1 << 20
    assert not gatherer.add(block)
    gatherer.reserve = 1 << 19
    assert gatherer.add(block)


# --- reading ahead


def groups_of(order, size: int):
    return [order[start : start + size].tolist() for start in range(0, len(order), size)]


def make_arenas(blocks: BlockSet, size: int, count: int) -> list[Arena]:
    """Room for any `size` chunks."""
    n_rows, n_nonzeros = size * int(blocks.chunk_rows.max()), size * int(blocks.chunk_nonzeros.max())
    return [make_arena(n_rows, n_nonzeros, blocks.dtype) for _ in range(count)]


@pytest.fixture(params=[2, 3, 5])
def prefetch(request):
    """prefetch(blocks, plan) starts a Prefetcher with two arenas or more, closed at the end."""
    started = []

    def start(blocks, plan, size=4):
        started.append(Prefetcher(blocks, make_arenas(blocks, size, request.param), plan, request.param - 1))
        return started[-1]

    yield start
    for reader in started:
        reader.close()


def n_threads(expected: int) -> int:
    """How many threads there are, once those that are beginning or ending have, or in vain after a while."""
    deadline = time.monotonic() + 20
    while _thread._count() != expected and time.monotonic() < deadline:
        time.sleep(0.001)
    return _thread._count()


def test_every_chunk_arrives_once_a_pass_in_the_order_of_the_plan(data, prefetch):
    block, blocks = data
    rng = np.random.default_rng(0)
    passes = [groups_of(rng.permutation(blocks.n_chunks), 4) for _ in range(3)]
    reader = prefetch(blocks, itertools.chain(*passes))
    for number, groups in enumerate(passes, 1):
        seen = Counter()
        for planned in groups:
            arena, group = reader.next()
            assert group == planned
            assert arena.rows["chunk"].tolist() == [k for k in group for _ in range(int(blocks.chunk_rows[k]))]
            seen.update(rows_in(arena.rows, blocks.dtype))
            reader.release(arena)
        assert seen == Counter(rows_of(block))
        assert reader.bytes_read == number * blocks.chunk_bytes.sum()
    assert reader.wait >= 0


def test_rows_stay_as_they_are_until_released(data, prefetch):
    _, blocks = data
    reader = prefetch(blocks, itertools.cycle(groups_of(np.arange(blocks.n_chunks), 4)))
    first, _ = reader.next()
    before = rows_in(first.rows, blocks.dtype)
    second, _ = reader.next()
    assert second is not first
    for _ in range(5):
        reader.release(second)
        second, _ = reader.next()
        assert second is not first
    assert rows_in(first.rows, blocks.dtype) == before


def test_a_solver_whose_threads_are_busy_decodes_all_rows_itself(data, prefetch, monkeypatch):
    block, blocks = data
    monkeypatch.setattr(Pool, "submit", lambda self, task: None)
    groups = groups_of(np.arange(blocks.n_chunks), 4)
    reader, seen = prefetch(blocks, iter(groups)), Counter()
    for planned in groups:
        arena, group = reader.next()
        assert group == planned
        seen.update(rows_in(arena.rows, blocks.dtype))
        reader.release(arena)
    assert seen == Counter(rows_of(block))
    assert 0 < reader.read_seconds <= reader.wait  # what a disk takes, it waits for


def test_damage_is_raised_where_the_rows_are_asked_for(data, prefetch):
    _, blocks = data
    damage(blocks, 5)
    reader = prefetch(blocks, iter([[0, 1], [2, 5], [3, 4]]))
    arena, _ = reader.next()
    reader.release(arena)
    with pytest.raises(DataError, match="checksum"):
        reader.next()


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_close_ends_the_thread_whatever_it_waits_for(data, taken):
    _, blocks = data
    before = _thread._count()
    reader = Prefetcher(blocks, make_arenas(blocks, 1, 2), ([k % blocks.n_chunks] for k in itertools.count()))
    held = []
    for _ in range(taken):
        arena, _ = reader.next()
        held.append(arena)
        if len(held) == 2:
            reader.release(held.pop(0))
    assert n_threads(before + 1) == before + 1
    reader.close()
    assert n_threads(before) == before


def test_close_after_an_error_ends_too(data):
    _, blocks = data
    before = _thread._count()
    damage(blocks, 0)
    reader = Prefetcher(blocks, make_arenas(blocks, 1, 2), iter([[0]]))
    with pytest.raises(DataError):
        reader.next()
    reader.close()
    assert n_threads(before) == before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("most", [60, 1 << 17])
def test_rows_from_text_can_be_sorted_by_feature_number(dtype, most):
    rng = np.random.default_rng(3)
    lengths = [0, 1, 2, 9, 70, 33]
    features = [rng.choice(max(most, length), length, replace=False) for length in lengths]
    values = [rng.normal(size=length).astype(dtype) for length in lengths[:-1]] + [np.ones(33, dtype)]
    block = Block(np.zeros(6, np.uint16), np.cumsum([0, *lengths]), np.concatenate(features).astype(np.int32),
                  np.concatenate(values))  # fmt: skip
    gatherer = Gatherer(dtype, 1 << 30)
    assert gatherer.add(block)
    data = gatherer.finish(SimpleNamespace(dtype=np.dtype(dtype), n_rows=6), None, 0)
    data.sort(map)
    orders = [np.argsort(row) for row in features]
    expected = [(0, row[order].astype(np.int32).tobytes(), value[order].tobytes())
                for row, value, order in zip(features, values, orders, strict=True)]  # fmt: skip
    assert rows_in(data.table, dtype) == expected
