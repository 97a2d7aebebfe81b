"""Inputs that would take more memory than was promised, and files that change while they are read."""

import gzip
import io
import lzma
import os
import re
import tracemalloc
import zlib

import numpy as np
import pytest
import zstandard
from conftest import assert_refused, measure_peak

from llsvm import compression, sources
from llsvm.blockset import BlockSet
from llsvm.core import DataError, UsageError
from llsvm.memory import Budget, parse_size, promised
from llsvm.report import Console
from llsvm.sources import open_sources, reserved_bytes
from llsvm.split import split_text
from llsvm.text import scan_pieces

MB = 1 << 20
ROWS = b"1 1:1 2:0.5\n-1 2:1\n"


def zstd(data: bytes, log: int | None = None) -> bytes:
    """A frame that says nothing of its size, and that it needs a window of 2^log bytes."""
    compressor = zstandard.ZstdCompressor().compressobj()
    frame = bytearray(compressor.compress(data) + compressor.flush())
    if log is not None:
        assert frame[4] == 0  # no size, no checksum: the window follows (RFC 8878, 3.1.1.1)
        frame[5] = (log - 10) << 3
    return bytes(frame)


def xz(data: bytes, dictionary: int = 1 << 16, before=()) -> bytes:
    """A stream whose block says that it needs a dictionary of so many bytes, 2^n or 3 * 2^n."""
    filters = [*before, {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 16}]
    stream = bytearray(lzma.compress(data, filters=filters))
    end = 12 + 4 * (stream[12] + 1) - 4
    place = stream.index(bytes([0x21, 1]), 12, end) + 2  # LZMA2 and its one byte of properties
    bits = next(b for b in range(40) if (2 | b & 1) << (b // 2 + 11) >= dictionary)
    stream[place] = bits
    stream[end : end + 4] = zlib.crc32(stream[12:end]).to_bytes(4, "little")
    return bytes(stream)


MAKE = {"zstd": lambda data, size: zstd(data, size.bit_length() - 1), "xz": xz}
EVERY_KIND = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@pytest.fixture
def packed(tmp_path):
    """packed(data) is the path of a file of these bytes."""

    def write(data, name="data.packed"):
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


def text_of(*paths, memory=None) -> bytes:
    """All that the sources give, read as they are by commands with so much --memory."""
    text, room = io.BytesIO(), memoryview(bytearray(1 << 16))
    for source in open_sources(paths, memory and Budget(memory).left):
        while count := source.readinto(room):
            text.write(room[:count])
        source.check_unchanged(at_end=True)
        source.close()
    return text.getvalue()


# --- windows


@EVERY_KIND
@pytest.mark.parametrize("size", [32 * MB, 64 * MB, 128 * MB, 512 * MB, 2048 * MB])
def test_a_window_that_does_not_fit_is_refused_with_what_would_do(packed, make, size):
    path = packed(make(ROWS, size))
    memory = 20 * MB
    with pytest.raises(UsageError) as refusal:
        text_of(path, memory=memory)
    shown = f"{size // MB} MB" if size < 1 << 30 else "2.0 GB"
    shown = shown.replace("32 MB", "32.0 MB").replace("64 MB", "64.0 MB")
    assert refusal.value.message == f"{path} needs a window of {shown} to be decompressed"
    enough = parse_size(re.match(r"--memory (\d+M) would do, or recompress it", refusal.value.hint)[1])
    assert text_of(path, memory=enough) == ROWS
    [source] = open_sources([path], Budget(enough).left)
    assert size <= reserved_bytes([source]) + 8 * MB < size + MB
    with pytest.raises(UsageError):
        text_of(path, memory=enough - 2 * MB)


@pytest.mark.parametrize("log", [10, 17, 21, 23])
def test_usual_windows_are_had_under_any_budget(packed, log):
    assert text_of(packed(zstd(ROWS, log)), memory=MB) == ROWS
    assert text_of(packed(xz(ROWS, 1 << max(12, log))), memory=MB) == ROWS


def test_a_frame_takes_no_larger_window_than_it_has_bytes(packed):
    """As one compressed with --ultra -22 --long=27 of a small file."""
    frame = zstandard.ZstdCompressor(write_content_size=True, level=22).compress(ROWS)
    assert text_of(packed(frame), memory=MB) == ROWS


@EVERY_KIND
def test_the_window_of_a_later_frame_counts(packed, make):
    path = packed(make(ROWS, MB) + make(ROWS, 64 * MB))
    with pytest.raises(UsageError, match="needs a window of 64.0 MB") as refusal:
        text_of(path, memory=300 * MB)
    enough = re.match(r"--memory (\d+M) would do", refusal.value.hint)[1]
    assert text_of(path, memory=parse_size(enough)) == 2 * ROWS
    assert text_of(packed(make(ROWS, 64 * MB) + make(ROWS, MB)), memory=300 * MB) == 2 * ROWS


@EVERY_KIND
def test_the_largest_window_of_several_files_is_set_aside(packed, make):
    paths = [packed(ROWS, "a"), packed(make(ROWS, MB), "b"), packed(make(ROWS, 64 * MB), "c"), packed(ROWS, "d")]
    assert reserved_bytes(open_sources(paths, Budget(300 * MB).left)) == 56 * MB
    assert text_of(*paths, memory=300 * MB) == 4 * ROWS


@pytest.mark.parametrize("pack", [bytes, gzip.compress, __import__("bz2").compress], ids=["plain", "gzip", "bzip2"])
def test_nothing_is_set_aside_where_there_are_no_windows(packed, pack):
    assert reserved_bytes(open_sources([packed(pack(ROWS))], 300 * MB)) == 0


def test_the_window_of_a_pipe_is_known_when_it_comes(run, packed, tmp_path):
    name = "fifo"
    os.mkfifo(tmp_path / name)
    packed(zstd(ROWS, 27))
    script = f"cat data.packed > {name} & llsvm-split --memory 300M {name} -o x.blocks"
    assert_refused(run("sh", "-c", script), 2, "fifo needs a window of 128 MB", "hint: --memory 1984M would do")
    assert run("sh", "-c", script.replace("300M", "1984M")).returncode == 0
    script = "cat data.packed | llsvm-split --memory 300M - -o y.blocks"  # of which the beginning is seen beforehand
    assert run("sh", "-c", script).returncode == 0
    assert BlockSet(tmp_path / "y.blocks").n_rows == 2


def test_a_block_of_xz_that_needs_more_than_the_first_said_is_refused(packed, monkeypatch):
    path = packed(xz(ROWS, 64 * MB))
    monkeypatch.setitem(sources.WINDOWS, "xz", lambda beginning: 0)
    with pytest.raises(UsageError, match=r"needs a window of more than [0-9.]+ MB to be decompressed") as refusal:
        text_of(path, memory=300 * MB)
    assert refusal.value.hint == "recompress it with xz -6"


@pytest.mark.parametrize("before", [(), [{"id": lzma.FILTER_DELTA, "dist": 4}], [{"id": lzma.FILTER_X86}]])
@pytest.mark.parametrize("size", [4096, 3 << 14, 1 << 20, 3 << 25, 1 << 29])
def test_the_dictionary_is_found_behind_other_filters(size, before):
    assert compression._xz_window(xz(ROWS, size, before)) == size


def test_what_says_nothing_of_its_window_is_left_to_the_decoder():
    for whole, window in (xz(ROWS, MB), compression._xz_window), (zstd(ROWS, 20), compression._zstd_window):
        assert all(window(whole[:end]) in (0, MB) for end in range(len(whole)))
    assert compression._xz_window(lzma.compress(b"")) == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """80 MB of text, compressed with a window of 64 MB."""
    folder, some = tmp_path_factory.mktemp("large"), ROWS + b"# " + b"." * 4000 + b"\n"
    text = some * (80 * MB // len(some))
    options = zstandard.ZstdCompressionParameters.from_level(1, window_log=26)
    compressor = zstandard.ZstdCompressor(compression_params=options).compressobj()
    (folder / "zstd").write_bytes(compressor.compress(text) + compressor.flush())
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 * MB}]
    (folder / "xz").write_bytes(lzma.compress(text, filters=filters))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zstd", "xz"])
@pytest.mark.parametrize("command", [["llsvm-split", "-o", "x.blocks"], ["llsvm-train"]], ids=["split", "train"])
def test_the_hint_leads_to_what_is_within_the_promise(run_in, tmp_path, large, kind, command):
    def run(memory):
        words = [*command, "-q", "--memory", memory, large / kind, *["model"] * (command[0] == "llsvm-train")]
        measured = measure_peak(run_in, tmp_path, *words)
        assert measured.peak < promised(parse_size(memory)), measured
        return measured

    refused = run("20M")
    assert_refused(refused, 2, f"{kind} needs a window of 64.0 MB")
    assert run(re.search(r"--memory (\d+M) would do", refused.stderr)[1]).returncode == 0


def test_what_has_no_memory_option_takes_half_of_what_the_process_may_use(packed, monkeypatch):
    path = packed(zstd(ROWS, 27))
    assert text_of(path) == ROWS
    monkeypatch.setattr(sources, "usable", lambda: 200 * MB)
    with pytest.raises(UsageError, match="needs a window of 128 MB") as refusal:
        text_of(path)
    assert refusal.value.hint == "recompress it without --long and --ultra"


# --- frames of zstd


def test_runs_that_swell_are_decoded_a_little_at_a_time(packed):
    """Four bytes give 128 KB, behind text that did not swell at all."""
    def block(kind, size, content, last=0):
        return (size << 3 | kind << 1 | last).to_bytes(3, "little") + content

    noise = b"# " + np.random.default_rng(1).integers(97, 123, (1 << 17) - 3, np.uint8).tobytes() + b"\n"
    frame = b"\x28\xb5\x2f\xfd\0\x38" + block(0, 1 << 17, noise) * 10 + block(1, 1 << 17, b"\n") * 1000
    path = packed(frame + block(0, len(ROWS), ROWS, last=1))
    expected = noise * 10 + b"\n" * (1000 << 17) + ROWS
    [source], room, found = open_sources([path]), bytearray(1 << 16), zlib.crc32(b"")
    tracemalloc.start()
    try:
        while count := source.readinto(room):
            found = zlib.crc32(memoryview(room)[:count], found)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == zlib.crc32(expected)
    assert len(expected) > 100 * MB and peak < 3 * MB


@pytest.mark.parametrize("part", [1, 2, 3, 7, 100, 4096])
def test_frames_in_small_parts_are_read_as_one(packed, monkeypatch, part):
    """Small blocks, a checksum, a frame that is to be skipped, zeros behind a frame."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    lines = [b"%d %d:%d\n" % (k % 2, k % 50 + 1, k) for k in range(300)]
    many = b"".join(compressor.compress(line) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in lines)
    skipped = (0x184D2A50).to_bytes(4, "little") + (5000).to_bytes(4, "little") + bytes(range(250)) * 20
    monkeypatch.setattr(compression, "STEP", part)
    monkeypatch.setattr(compression, "SWELLING", part)
    data = skipped + many + compressor.flush() + skipped + zstd(ROWS) + b"\0" * 100 + zstd(b"") + zstd(ROWS)
    assert text_of(packed(data)) == b"".join(lines) + 2 * ROWS


# --- files that change while they are read

LINES = b"".join(b"%d 1:%d 2:0.25\n" % (k % 2, k) for k in range(40_000))  # 12 pieces and more
WAYS = {
    "plain": bytes, "marked": b"\xef\xbb\xbf".__add__, "gzip": lambda data: gzip.compress(data, 0),
    "zstd": lambda data: zstd(data) * 13,
}


def truncate(path):
    os.truncate(path, os.path.getsize(path) - 20_000)


def truncate_within_a_line(path):
    os.truncate(path, os.path.getsize(path) - 20_003)


def empty(path):
    os.truncate(path, 0)


def grow(path):
    with open(path, "ab") as file:
        file.write(b"1 1:1\n")


def rewrite(path):
    with open(path, "r+b") as file:
        file.write(file.read(1))
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1))


CHANGES = pytest.mark.parametrize("change", [truncate, truncate_within_a_line, empty, grow, rewrite])


@CHANGES
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_changes_while_it_is_read_is_refused(packed, way, change):
    path = packed(WAYS[way](LINES))
    pieces = scan_pieces(open_sources([path]), 1, memory=4 * MB)
    next(pieces)
    change(path)
    with pytest.raises(DataError, match=f"^{path}: changed while it was read$"):
        list(pieces)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_was_changed_before_it_is_opened_is_read_as_it_is(packed, way):
    """The second of two, which are opened when it is their turn."""
    first, second = packed(WAYS[way](LINES), "first"), packed(WAYS[way](LINES), "second")
    pieces = scan_pieces(open_sources([first, second]), 1, memory=4 * MB)
    before = next(pieces).n_rows
    packed(WAYS[way](ROWS), "second")
    factor = 13 if way == "zstd" else 1
    assert before + sum(piece.n_rows for piece in pieces) == 40_000 * factor + 2 * factor


@CHANGES
def test_a_set_of_a_file_that_changes_is_not_made(packed, tmp_path, change):
    path, console, changes = packed(LINES), Console(quiet=True), [change]
    console.bar = lambda *_: changes and changes.pop()(path)
    with pytest.raises(DataError, match="changed while it was read"):
        split_text([path], tmp_path / "x.blocks", n_blocks=2, seed=1, zero_based=False, precision="float32",
                   force=False, threads=1, memory=4 * MB, console=console)  # fmt: skip
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_standard_input_may_be_a_file_of_which_some_was_read(run, packed, tmp_path):
    packed(ROWS * 100)
    finished = run("sh", "-c", "(read line; llsvm-split -q - -o x.blocks) < data.packed")
    assert finished.returncode == 0, finished
    assert BlockSet(tmp_path / "x.blocks").n_rows == 199
