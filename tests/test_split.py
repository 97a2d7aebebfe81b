"""llsvm-split as a process: its memory does not grow with the text, and whatever ends it, no half set is left."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import zstandard
from conftest import measure_peak

from llsvm.blockset import BlockSet
from llsvm.core import UsageError
from llsvm.memory import parse_size, promised
from llsvm.split import split_text

MB = 10**6
PATIENCE = 60
N_PIECES, N_ROWS = 8, 3000  # of a split that is held, of a piece


def text_like(largest_id: int) -> bytes:
    """About 1 MB of rows with some thirty nonzeros each."""
    rng = np.random.default_rng(0)
    lines = []
    for label in rng.choice([-1, 1], N_ROWS):
        ids = np.unique(rng.integers(1, largest_id, 30, endpoint=True))
        values = rng.random(len(ids))
        lines.append(f"{label} " + " ".join(f"{id}:{value:.5g}" for id, value in zip(ids, values, strict=True)))
    return ("\n".join(lines) + "\n").encode()


def repeat_to(path, piece: bytes, size: int):
    with open(path, "wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
    return path


@pytest.fixture
def peak_of_split(tmp_path, run_in):
    """peak_of_split(path, memory) splits a file into 40 blocks and returns its largest resident size, in bytes."""

    def measure(path, memory: str) -> int:
        command = ["llsvm-split", path, "-o", f"{path}.blocks", "-m", 40, "--memory", memory, "--threads", 2, "-q"]
        measured = measure_peak(run_in, tmp_path, *command)
        assert measured.returncode == 0, measured.stderr
        return measured.peak

    return measure


def test_memory_does_not_grow_with_the_text(tmp_path, peak_of_split):
    piece = text_like(47000)
    small, large = (peak_of_split(repeat_to(tmp_path / f"{n}.txt", piece, n * MB), "80M") for n in (20, 80))
    assert small < promised(parse_size("80M"))
    assert large < promised(parse_size("80M"))
    assert large - small < (80 - 20) * MB / 3


@pytest.mark.parametrize("n_nonzeros", [190_000, 600_000])
def test_long_lines_stay_within_the_promise_or_are_refused(tmp_path, run_in, n_nonzeros):
    line = b"".join(b" %d:0.5" % number for number in range(1, n_nonzeros))
    (tmp_path / "long.txt").write_bytes(b"".join(b"%+d%b\n" % (1 - number % 2 * 2, line) for number in range(40)))
    measured = measure_peak(run_in, tmp_path, "llsvm-split", "--memory", "128M", "--threads", 2, "long.txt")
    assert measured.peak < promised(128 * MB)
    assert measured.returncode == (n_nonzeros > 200_000)
    assert ("a line is longer than" in measured.stderr) == (n_nonzeros > 200_000)


@pytest.mark.parametrize("largest_id", [2**24 - 1, 2**24 + 2**20, 2**63 - 1])
def test_memory_stays_within_the_promise_whatever_the_ids(tmp_path, peak_of_split, largest_id):
    path = repeat_to(tmp_path / "data.txt", text_like(largest_id), 20 * MB)
    assert peak_of_split(path, "80M") < promised(parse_size("80M"))


@pytest.fixture(scope="module")
def many_ids(tmp_path_factory):
    """Four million different ids, each in a row or two."""
    path, rng = tmp_path_factory.mktemp("many") / "ids.txt", np.random.default_rng(5)
    rows = (np.unique(rng.integers(1, 2**24, 400)).tolist() for _ in range(10_000))
    path.write_text("".join("1 " + " ".join(map("%d:0.25".__mod__, row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("threads", [2, 16])
def test_many_ids_stay_within_the_promise_or_are_refused_with_a_hint_that_leads_on(tmp_path, run_in, many_ids, threads):
    """How many there are is known in the end alone, so that the first hint may not do."""
    options = ["-m", 64, "--precision", "float64", "-o", "x.blocks", "--threads", threads]
    memory, refused = "130M", 0
    while True:
        measured = measure_peak(run_in, tmp_path, "llsvm-split", *options, "--memory", memory, many_ids)
        assert measured.peak < promised(parse_size(memory))
        if not measured.returncode:
            break
        refused += 1
        memory = re.search("at least --memory ([0-9.]+[KMG]) is needed", measured.stderr)[1]
        assert refused < 5
    assert refused


def test_little_memory_is_enough_for_thousands_of_ids(tmp_path, peak_of_split):
    path = tmp_path / "data.txt"
    path.write_bytes(text_like(20_000))
    assert peak_of_split(path, "2M") < promised(parse_size("2M"))


@pytest.mark.parametrize("level", [1, 19])
def test_memory_stays_within_the_promise_for_text_that_was_compressed_to_nearly_nothing(tmp_path, peak_of_split, level):
    data = b"1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1\n" * 2_500_000
    path = tmp_path / "data.zst"
    path.write_bytes(zstandard.ZstdCompressor(level=level).compress(data))
    assert peak_of_split(path, "80M") < promised(parse_size("80M"))


# --- ended in the middle


@pytest.fixture
def held_split(interrupts_are_not_ignored, tmp_path, spawn_in):
    """A split that has read 10 MB of text from a pipe, written some of it, and waits for more."""
    command = ["llsvm-split", "-", "-o", "x.blocks", "-m", 4, "--memory", "40M", "-q"]
    with spawn_in(
        tmp_path, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        piece = text_like(47000)
        for _ in range(N_PIECES):
            process.stdin.write(piece)  # comes back when the other side has read all but what a pipe holds
        process.stdin.flush()
        yield process
        process.kill()


def names(folder) -> list[str]:
    """Hidden ones too, but not the folder for temporary files, which must be empty."""
    assert os.listdir(folder / "tmp") == []
    return sorted(set(os.listdir(folder)) - {"tmp"})


def test_after_kill_9_there_is_no_set_and_the_next_split_cleans_up(tmp_path, held_split, run):
    held_split.kill()
    assert held_split.wait(PATIENCE) == -signal.SIGKILL
    [left] = names(tmp_path)
    assert re.fullmatch(r"\.x\.blocks\.[0-9a-f]{8}\.partial", left)
    assert any(file.stat().st_size for file in (tmp_path / left).glob("*.llb"))
    again = run("llsvm-split", "-", "-o", "x.blocks", stdin=b"1 1:1\n-1 2:1\n")
    assert (again.returncode, again.stdout) == (0, "x.blocks\n")
    assert names(tmp_path) == ["x.blocks"]
    assert BlockSet(tmp_path / "x.blocks").n_rows == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing(tmp_path, held_split, number, code):
    assert len(names(tmp_path)) == 1
    held_split.send_signal(number)
    assert held_split.wait(PATIENCE) == code
    assert names(tmp_path) == []
    assert held_split.stdout.read() == b""
    assert b"Traceback" not in held_split.stderr.read()


def test_a_held_split_finishes_when_the_text_ends(tmp_path, held_split):
    output, _ = held_split.communicate(timeout=PATIENCE)
    assert (held_split.returncode, output) == (0, b"x.blocks\n")
    assert names(tmp_path) == ["x.blocks"]
    assert BlockSet(tmp_path / "x.blocks").n_rows == N_PIECES * N_ROWS


# --- in this process


def split(path, target, **options) -> str:
    given = {"n_blocks": 2, "seed": 1, "zero_based": False, "precision": "float32", "force": False, "threads": 1,
             "memory": 1 << 30, **options}  # fmt: skip
    return split_text([str(path)], target, **given)


def test_what_was_done_is_told(tmp_path):
    (tmp_path / "data.txt").write_text("a 1:1 5:2\nb\n# none\na 5:1\n")
    told = split(tmp_path / "data.txt", tmp_path / "x.blocks")
    assert told.startswith("3 rows, 2 features, 3 nonzeros, 2 labels; 25 B read in ")


@pytest.mark.parametrize("n_blocks", [0, -1, 5000])
def test_an_impossible_number_of_blocks_is_refused(tmp_path, n_blocks):
    (tmp_path / "data.txt").write_text("1 1:1\n")
    with pytest.raises(UsageError, match="blocks are possible"):
        split(tmp_path / "data.txt", tmp_path / "x.blocks", n_blocks=n_blocks)


@pytest.mark.parametrize(("zero_based", "ids"), [(False, [1, 8]), (True, [2, 9])])
def test_the_set_knows_where_its_ids_began(tmp_path, zero_based, ids):
    (tmp_path / "data.txt").write_text("1 1:1 8:1\n")
    split(tmp_path / "data.txt", tmp_path / "x.blocks", zero_based=zero_based)
    blocks = BlockSet(tmp_path / "x.blocks")
    assert blocks.description.zero_based is zero_based
    assert blocks.feature_ids().tolist() == ids


def test_numpy_is_not_loaded(tmp_path):
    """It would take longer to load than small files take to split."""
    rng = np.random.default_rng(1)
    for name, labels in {"a.txt": "xy", "b.txt": "yzx"}.items():
        rows = (f"{labels[k % len(labels)]} {rng.integers(1, 9)}:1 {rng.integers(10, 2**62)}:{rng.normal()}"
                for k in range(3000))  # fmt: skip
        (tmp_path / name).write_text("\n".join(rows))
    code = "import sys; from llsvm import cli; cli.leave = lambda code: print(code, 'numpy' in sys.modules); "
    run = subprocess.run([sys.executable, "-c", code + "cli.split_main()", "a.txt", "b.txt", "-o", "x.blocks"],
                         cwd=tmp_path, capture_output=True, text=True, check=True)  # fmt: skip
    assert run.stdout == "x.blocks\n0 False\n"
    assert BlockSet(tmp_path / "x.blocks").description.labels == ["x", "y", "z"]
