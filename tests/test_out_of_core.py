"""Half a million rows with memory for a tenth of them: certified, in few passes, within the promised memory."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from conftest import accuracy_line, measure_peak
from objectives import objective
from problems import read_model, write_model

from llsvm.memory import parse_size, promised

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
N_ROWS, N_FEATURES = 500_000, 47_236
MB = 1 << 20


@pytest.fixture(scope="module")
def measure(folder, run_in):
    """Runs a command that must succeed; returns what it printed and the largest size it had, in bytes."""

    def run_measured(*command, ballast=0):
        measured = measure_peak(run_in, folder, *command, ballast=ballast, timeout=300)
        assert measured.returncode == 0, measured.stderr
        return measured

    return run_measured


# --- the data: rows as text, sorted by class, and as a matrix


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place for a gigabyte, removed at the end."""
    path = tmp_path_factory.mktemp("large")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def lines(folder, run_in):
    script = ROOT / "scripts" / "make_data.py"
    assert run_in(folder, sys.executable, script, "text", "shuffled.txt", "--rows", N_ROWS).returncode == 0
    with open(folder / "shuffled.txt", "rb") as file:
        return file.readlines()


@pytest.fixture(scope="module")
def texts(folder, lines):
    with open(folder / "sorted.txt", "wb") as file:
        for sign in (b"-", b"+"):
            file.writelines(line for line in lines if line.startswith(sign))
    return {name: f"{name}.txt" for name in ("shuffled", "sorted")}


def digits(text, start, stop):
    """The numbers written in text[start:stop], for arrays of starts and stops."""
    numbers = np.zeros(len(start), np.int64)
    for k in range((stop - start).max(initial=0)):
        inside = np.flatnonzero(start + k < stop)
        numbers[inside] = 10 * numbers[inside] + text[start[inside] + k] - ord("0")
    return numbers


def parse(text):
    """(labels, row lengths, ids, values) of lines like `+1 7:0.25 9:0.5`, values from 0 to 1."""
    text = np.frombuffer(text, np.uint8)
    colons, blanks = np.flatnonzero(text == ord(":")), np.flatnonzero(text <= ord(" "))
    ends = np.flatnonzero(text == ord("\n"))
    behind = np.searchsorted(blanks, colons)
    start, stop = blanks[behind - 1] + 1, blanks[behind]
    fraction = np.minimum(colons + 3, stop)
    values = text[colons + 1] - 48.0 + digits(text, fraction, stop) / 10.0 ** (stop - fraction)
    labels = np.where(text[np.concatenate([[0], ends[:-1] + 1])] == ord("+"), 1, -1)
    return labels, np.diff(np.searchsorted(colons, ends), prepend=0), digits(text, start, colons), values


@pytest.fixture(scope="module")
def rows(lines):
    """(X, y), read without llsvm."""
    batches = [parse(b"".join(lines[start : start + 20_000])) for start in range(0, len(lines), 20_000)]
    y, lengths, ids, values = map(np.concatenate, zip(*batches, strict=True))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return scipy.sparse.csr_matrix((values, ids.astype(np.int32) - 1, indptr), (len(y), N_FEATURES)), y


def primal(path, rows, loss="hinge"):
    return objective(*rows, read_model(path), loss=loss)


def read_log(path):
    start, *passes, end = map(json.loads, path.read_text().splitlines())
    return start, passes, end


# --- what a tenth of the memory must be enough for


@pytest.fixture(scope="module")
def tenth(rows):
    """A tenth of the decoded data: 8 bytes a nonzero, 44 a row."""
    return (8 * rows[0].nnz + 44 * N_ROWS) // 10


@pytest.fixture(scope="module", params=["shuffled", "sorted"])
def split(request, measure, texts):
    """(name of the block set, what splitting it took)"""
    return f"{request.param}.txt.blocks", measure("llsvm-split", "-m", 40, "--memory", "300M", texts[request.param])


@pytest.fixture(scope="module")
def shuffled(measure, texts):
    measure("llsvm-split", "-m", 40, "-o", "set", texts["shuffled"])
    return "set"


def test_splitting_stays_within_its_memory(split):
    assert split[1].peak < promised(300 * MB)


def test_splitting_stays_within_a_smaller_memory(measure, texts):
    assert measure("llsvm-split", "-o", "small", "--memory", "80M", texts["shuffled"]).peak < promised(80 * MB)


def test_a_tenth_of_the_memory_certifies_in_ten_passes(measure, folder, split, tenth, rows):
    name, _ = split
    measured = measure("llsvm-train", "-c", 1, "--memory", tenth, "--log", "log", name, "model")
    start, passes, end = read_log(folder / "log")
    assert (start["data"], start["rows"], start["nonzeros"]) == ("on disk", N_ROWS, rows[0].nnz)
    assert end["reason"] == "converged" and end["gap"] <= 1e-3
    assert len(passes) <= 10
    assert end["bytes_read"] <= 10 * sum(path.stat().st_size for path in (folder / name).glob("block-*"))
    assert {entry["visits"] for entry in passes[:-1]} == {N_ROWS}
    assert passes[-1]["visits"] < N_ROWS / 10  # where w is found to be good enough, the others are only looked at
    assert measured.peak < promised(tenth)
    assert end["primal"] == pytest.approx(primal(folder / "model", rows), rel=1e-6)


@pytest.mark.parametrize(
    "options, loss",
    [
        (["-s", "dual-l2"], "squared"),
        (["-s", "block", "--max-passes", 2], "hinge"),
        (["-s", "shrink", "-e", 1e-6], "hinge"),
        (["-s", "shrink", "--exact"], "hinge"),
        (["-e", 1e-7, "--max-passes", 2], "hinge"),  # dual variables in float64: too many for this memory, so on disk
    ],
    ids=["dual-l2", "block", "shrink", "shrink --exact", "alphas on disk"],
)
def test_every_way_to_train_stays_within_its_memory(measure, folder, shuffled, tenth, rows, options, loss):
    measured = measure("llsvm-train", *options, "--memory", tenth, "--log", "log", shuffled, "model")
    start, _, end = read_log(folder / "log")
    assert start["data"] == "on disk"
    assert measured.peak < promised(tenth)
    assert end["primal"] == pytest.approx(primal(folder / "model", rows, loss), rel=1e-6)
    assert list((folder / "tmp").iterdir()) == []


def test_text_larger_than_memory_is_trained_on_through_a_temporary_set(measure, folder, texts, tenth, rows):
    measured = measure("llsvm-train", "--memory", tenth, "--log", "log", texts["sorted"], "model")
    start, passes, end = read_log(folder / "log")
    assert start["data"] == "on disk"
    assert end["gap"] <= 1e-3 and len(passes) <= 10
    assert measured.peak < promised(tenth)
    assert end["primal"] == pytest.approx(primal(folder / "model", rows), rel=1e-6)
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize("memory", ["tenth", 100 * MB, 200 * MB])
def test_one_pass_over_the_text_stays_within_its_memory(measure, folder, texts, tenth, rows, memory):
    """The active rows of the first pass do not fit a tenth."""
    memory = tenth if memory == "tenth" else memory
    measured = measure("llsvm-train", "-s", "shrink", "--memory", memory, "--log", "log", texts["shuffled"], "model")
    start, passes, end = read_log(folder / "log")
    assert start["data"] == "read once" and len(passes) > 1
    assert measured.peak < promised(memory)
    assert end["primal"] == pytest.approx(primal(folder / "model", rows), rel=1e-6)
    assert list((folder / "tmp").iterdir()) == []


def test_many_classes_of_short_rows_stay_within_their_memory(measure, folder):
    """The dual variables of a row, one a class, take far more than the row."""
    rng, n_rows, n_classes = np.random.default_rng(1), 50_000, 80
    codes, ids, values = rng.integers(0, n_classes, n_rows), rng.integers(1, 21, n_rows), rng.random(n_rows)
    lines = zip(codes.tolist(), ids.tolist(), values.tolist(), strict=True)
    (folder / "classes.txt").write_text("".join(f"{code} {index}:{value:.3f}\n" for code, index, value in lines))
    for memory in (10 * MB, 140 * MB):
        measured = measure("llsvm-train", "-s", "shrink", "--max-passes", 2, "--memory", memory, "classes.txt", "model")
        assert measured.peak < promised(memory)


@pytest.mark.parametrize("options", [["--threads", "1"], ["--threads", "32"]], ids=" ".join)
def test_what_reading_text_took_is_given_back_before_training(measure, folder, texts, options):
    """The rows are first gathered in memory, then, too many, spilled: the largest budget that still spills."""
    memory = 170 * MB
    measured = measure("llsvm-train", "--memory", memory, "--max-passes", "1", "--log", "log", *options,
                       texts["sorted"], "model")
    assert read_log(folder / "log")[0]["data"] == "on disk"
    assert measured.peak < promised(memory)


def test_many_files_take_no_more_memory_than_one(measure, folder, lines):
    for number in range(60):
        (folder / f"part{number}").write_bytes(b"".join(lines[number::60]))
    measured = measure("llsvm-split", "--memory", 100 * MB, "-m", "40", "-o", "parts.blocks",
                       *(f"part{number}" for number in range(60)))
    assert measured.peak < promised(100 * MB)


def test_data_that_just_fits_is_loaded_and_still_within_the_promise(measure, folder, shuffled, tenth):
    memory = 12 * tenth + 80 * MB
    measured = measure("llsvm-train", "--memory", memory, "--log", "log", shuffled, "model")
    start, _, end = read_log(folder / "log")
    assert start["data"] == "in memory"
    assert end["gap"] <= 1e-3
    assert measured.peak < promised(memory)


def test_the_budget_that_is_said_to_hold_the_rows_does_and_none_smaller(measure, folder, shuffled, tenth):
    def train(memory):
        measured = measure("llsvm-train", "--memory", memory, "--max-passes", 1, "--log", "log", shuffled, "model")
        assert measured.peak < promised(parse_size(str(memory)))
        return read_log(folder / "log")[0]

    said = train(tenth)["in_memory_from"]
    assert train(said)["data"] == "in memory"
    assert train(f"{int(said[:-1]) - 1}M")["in_memory_from"] == said


def test_the_peak_that_is_told_is_that_of_the_process_itself(measure, folder, shuffled, tenth):
    """Also where a large process, such as a notebook, starts it."""
    command = ["llsvm-train", "--memory", tenth, "--max-passes", 1, "--log", "log", shuffled, "model"]
    measured = measure(*command)
    assert read_log(folder / "log")[2]["peak_memory"] == pytest.approx(measured.peak, rel=0.1)
    measure(*command, ballast=300 * MB)
    assert read_log(folder / "log")[2]["peak_memory"] < promised(tenth)


@pytest.mark.parametrize("memory", [40, 180], ids=["spilled", "in memory"])
def test_text_of_long_rows_is_gathered_within_the_promise(folder, measure, memory):
    """80 MB of rows with small feature numbers, which take less than they might."""
    row = "".join(f" {feature}:0.{1 + feature % 9}" for feature in range(2, 802, 2)).encode()
    with open(folder / "long.txt", "wb") as file:
        file.writelines(b"%+d 1:%d.5%b\n" % (1 - number % 2 * 2, number % 7, row) for number in range(35_000))
    measured = measure("llsvm-train", "--threads", 2, "--max-passes", 1, "--memory", f"{memory}M", "long.txt", "model")
    assert ("data on disk" in measured.stderr) == (memory == 40)
    assert measured.peak < promised(memory * MB)


# --- prediction


def test_predict_takes_no_more_memory_for_a_longer_file(measure, folder, lines, rows):
    w = np.random.default_rng(1).standard_normal(N_FEATURES)
    write_model(folder / "ready.model", w)
    X, y = rows
    peaks = []
    for n_rows in (40_000, 160_000):
        (folder / "test.txt").write_bytes(b"".join(lines[:n_rows]))
        measured = measure("llsvm-predict", "test.txt", "ready.model", "out")
        expected = np.where(X[:n_rows] @ w > 0, 1, -1)
        assert measured.stdout == accuracy_line(expected, y[:n_rows])
        np.testing.assert_array_equal(np.loadtxt(folder / "out", int), expected)
        peaks.append(measured.peak)
    assert (folder / "test.txt").stat().st_size > 80e6
    assert peaks[1] < peaks[0] + 20 * MB  # of which the threads' timing decides more than half
