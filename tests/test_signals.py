"""Ctrl-C and kill at every stage: what is said, what is left, which code comes back.

A training that logs to a named pipe can be held: as long as the pipe is full, no pass ends. So the signals arrive
where they are meant to, however fast or slow the machine is.
"""

import fcntl
import json
import os
import platform
import select
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import names
from objectives import objective
from problems import as_text, read_model, write_model, write_text

N_FEATURES = 300
PATIENCE = 60
WRITE = {"x86_64": "1", "aarch64": "64"}  # numbers of the system call
EXIT_CODE = {signal.SIGINT: 130, signal.SIGTERM: 143}


def make_rows(n_rows):
    """Labels by chance: nothing to learn, so many passes to learn it exactly."""
    rng = np.random.default_rng(1)
    X = (rng.random((n_rows, N_FEATURES)) < 0.07).astype(float)
    return X, np.where(rng.random(n_rows) < 0.5, 1, -1)


ROWS = make_rows(3000)


class Valve:
    """A named pipe to log into: while it is shut, whoever writes into it waits."""

    def __init__(self, path):
        os.mkfifo(path)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, 4096)
        self._seen = b""

    def await_pass(self):
        while b'"pass"' not in self._seen:
            assert select.select([self._reader], [], [], PATIENCE)[0], "no pass has ended"
            self._seen += os.read(self._reader, 4096)

    def shut(self):
        with suppress(BlockingIOError):
            while True:
                os.write(self._writer, b"\n")

    def open(self):
        """Lets everything flow until the other end is closed; returns the events logged."""
        os.close(self._writer)
        os.set_blocking(self._reader, True)
        while part := os.read(self._reader, 65536):
            self._seen += part
        os.close(self._reader)
        return [json.loads(line) for line in self._seen.split(b"\n") if line]


def await_write(process):
    """Waits until the process waits in write(), as far as the system lets us see that."""
    try:
        seen = 0
        for _ in range(1000):
            with open(f"/proc/{process}/syscall") as file:
                seen = seen + 1 if file.read().split()[0] == WRITE[platform.machine()] else 0
            if seen == 5:
                return
            time.sleep(0.01)
    except (OSError, KeyError):
        time.sleep(1)


class Training:
    """A running llsvm-train, held at the end of a pass."""

    def __init__(self, process, valve):
        self.process, self.valve = process, valve
        valve.await_pass()
        valve.shut()
        await_write(process.pid)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def read_until(self, word):
        """The line of stderr that contains the word."""
        for line in self.process.stderr:
            if word in line:
                return line
        raise AssertionError(f"{word} was never said")

    def end(self):
        """(exit code, the rest of stderr, events logged)"""
        events = self.valve.open()
        rest = self.process.stderr.read()
        return self.process.wait(PATIENCE), rest, events


@pytest.fixture
def hold(interrupts_are_not_ignored, tmp_path, spawn_in):
    """hold(*options) starts a training with these options that is held at the end of a pass."""
    with ExitStack() as running:

        def start(*options):
            write_text(tmp_path / "data.txt", *ROWS)
            valve = Valve(tmp_path / "log")
            process = spawn_in(tmp_path, "llsvm-train", *options, "--log", "log", "data.txt", "model",
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)  # fmt: skip
            running.enter_context(process)
            running.callback(process.kill)
            return Training(process, valve)

        yield start


@pytest.fixture(params=["in memory", "on disk"])
def training(request, hold):
    memory = "1G" if request.param == "in memory" else "300K"
    held = hold("-e", "1e-12", "--max-passes", "1000000000", "--memory", memory)
    assert f"data {request.param}" in held.process.stderr.readline()
    return held


def test_ctrl_c_is_answered_at_once_and_the_model_so_far_is_written(training, tmp_path, run):
    training.interrupt()
    training.read_until("interrupted")
    assert not (tmp_path / "model").exists()
    code, rest, events = training.end()
    assert code == 130
    assert "Traceback" not in rest and rest.count("\npass ") <= 1
    assert names(tmp_path) == {"data.txt", "log", "model", "tmp"}
    facts = json.loads(run("llsvm", "info", "model", "--json").stdout)
    certificate = facts["certificate"]
    assert certificate["reason"] == events[-1]["reason"] == "interrupted"
    assert certificate["primal"] == pytest.approx(objective(*ROWS, read_model(tmp_path / "model")), rel=1e-9)
    assert certificate["relative_gap"] == pytest.approx(1 - certificate["dual"] / certificate["primal"])
    assert 1e-12 < certificate["relative_gap"] < 1
    assert [event["number"] for event in events[1:-1]] == list(range(1, events[-1]["number"] + 1))
    assert run("llsvm-predict", "data.txt", "model", "out").returncode == 0


def test_ctrl_c_after_the_one_pass_writes_the_model_so_far_and_certifies_nothing(hold, tmp_path, run):
    training = hold("-s", "shrink", "-e", "1e-9", "--inner", "1")
    training.interrupt()
    training.read_until("interrupted")
    code, _, events = training.end()
    assert code == 130 and "no certificate: interrupted" in training.process.stdout.read()
    assert events[-1]["reason"] == "interrupted" and not events[-1]["certified"]
    facts = json.loads(run("llsvm", "info", "model", "--json").stdout)
    assert facts["certificate"]["none"] == facts["certificate"]["reason"] == "interrupted"
    assert names(tmp_path) == {"data.txt", "log", "model", "tmp"}


@pytest.mark.parametrize("memory, words", [
    ("1G", []), ("300K", []), ("1G", ["--no-certify"]), ("300K", ["--batch", "block"]),
], ids=["memory", "disk", "no certificate", "blocks"])  # fmt: skip
def test_ctrl_c_leaves_the_model_so_far_of_pegasos_too(hold, tmp_path, run, memory, words):
    training = hold("-s", "pegasos", "-e", "1e-12", "--memory", memory, *words)
    training.interrupt()
    training.read_until("interrupted")
    code, rest, events = training.end()
    assert code == 130 and "Traceback" not in rest
    assert names(tmp_path) == {"data.txt", "log", "model", "tmp"}
    facts = json.loads(run("llsvm", "info", "model", "--json").stdout)["certificate"]
    assert facts["reason"] == events[-1]["reason"] == "interrupted"
    if "primal" in facts:
        assert facts["primal"] == pytest.approx(objective(*ROWS, read_model(tmp_path / "model")), rel=1e-9)
    else:
        assert facts["none"] == "interrupted"
    looked_at = events[-1]["number"] - (memory == "300K")  # on disk, during the next pass
    assert ("primal" in facts) == (looked_at > 0 and "--no-certify" not in words)


def test_ctrl_c_twice_ends_at_once_without_a_model(training, tmp_path):
    training.interrupt()
    training.read_until("interrupted")
    training.interrupt()
    training.read_until("interrupted again")
    code, rest, events = training.end()
    assert code == 130
    assert "model was not written" in rest and "Traceback" not in rest and "Exception ignored" not in rest
    assert names(tmp_path) == {"data.txt", "log", "tmp"}
    assert events[-1]["event"] == "pass"


def test_a_kill_ends_training_without_a_model(training, tmp_path):
    training.process.terminate()
    code, rest, _ = training.end()
    assert code == 143
    assert "Traceback" not in rest and "Exception ignored" not in rest
    assert names(tmp_path) == {"data.txt", "log", "tmp"}


def test_the_model_that_was_there_survives_two_interrupts(training, tmp_path):
    (tmp_path / "model").write_text("solver_type of an earlier day\n")
    training.interrupt()
    training.read_until("interrupted")
    training.interrupt()
    training.read_until("interrupted again")
    training.end()
    assert (tmp_path / "model").read_text() == "solver_type of an earlier day\n"


# --- while text is read

TEXT = as_text(*ROWS).encode()
READERS = {
    "train in memory": ["llsvm-train", "-", "model"],
    "train on disk": ["llsvm-train", "--memory", "500K", "-", "model"],
    "train in one pass": ["llsvm-train", "-s", "shrink", "-", "model"],
    "enclose in one pass": ["llsvm-train", "-s", "stream", "-", "model"],
    "split": ["llsvm-split", "-", "-o", "new.blocks"],
    "predict": ["llsvm-predict", "-", "ready.model", "out"],
}


def has_open(process, folder):
    """Whether it has files there, which may have no names."""
    descriptors = Path(f"/proc/{process}/fd")
    return any(os.readlink(descriptors / name).startswith(f"{folder}/") for name in os.listdir(descriptors))


@pytest.fixture
def start_reading(interrupts_are_not_ignored, tmp_path, spawn_in):
    """Starts a command that is in the midst of reading a standard input that does not end."""
    with ExitStack() as running:

        def start(reader):
            write_model(tmp_path / "ready.model", [0.5])
            process = spawn_in(tmp_path, *READERS[reader], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, bufsize=0)  # fmt: skip
            running.enter_context(process)
            running.callback(process.kill)
            # A pipe holds 64 KB: once all of this is written, most of it has been read.
            process.stdin.write(TEXT * 8)
            while reader == "train on disk" and not has_open(process.pid, tmp_path / "tmp"):
                process.stdin.write(TEXT)
            return process

        yield start


@pytest.mark.parametrize("number", EXIT_CODE, ids=lambda number: number.name)
@pytest.mark.parametrize("reader", READERS)
def test_a_signal_while_reading_leaves_nothing(start_reading, tmp_path, reader, number):
    process = start_reading(reader)
    process.send_signal(number)
    assert process.wait(PATIENCE) == EXIT_CODE[number]
    stderr = process.stderr.read().decode()
    assert "Traceback" not in stderr and "Exception ignored" not in stderr
    assert ("interrupted" in stderr) == (number == signal.SIGINT)
    assert process.stdout.read() == b""
    assert names(tmp_path) == {"ready.model", "tmp"}


def test_a_killed_process_leaves_no_temporary_set(start_reading, tmp_path):
    process = start_reading("train on disk")
    process.kill()
    process.wait(PATIENCE)
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("reader", ["train in memory", "split", "predict"])
def test_what_a_killed_process_left_is_removed_by_the_next(start_reading, tmp_path, run, reader):
    process = start_reading(reader)
    process.kill()
    process.wait(PATIENCE)
    assert any(name.startswith(".") for name in names(tmp_path))
    assert run(*READERS[reader], stdin=TEXT).returncode == 0
    assert not any(name.startswith(".") for name in names(tmp_path))
