"""What several test files share: commands run as a user does, and fixtures. What is trained on is in problems.py, how
in training.py, and what must come out in objectives.py."""

import functools
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import forked
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, settings
from problems import N_FEATURES, TEST, TRAINING, make_rows, split, write_model, write_text
from training import fit_model

BIN = Path(sys.executable).parent

# A test that hypothesis drives must not fail because the machine is busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def half_digest(data: bytes) -> str:
    """The lower half of the XXH64 of these bytes, from the checksum that zstd puts behind a frame."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)[-4:][::-1].hex()


@contextmanager
def file_size_limit(n_bytes: int):
    """Writes beyond this many bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_open_in(folder) -> list[str]:
    """Files of this process, which may have no names."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one by which they were listed
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{folder}/")]


class Finished(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def surroundings_in(folder):
    """What commands find in the environment: themselves on the path; their temporary files go to folder/tmp."""
    temporary = Path(folder, "tmp")
    temporary.mkdir(exist_ok=True)
    return {"PATH": f"{BIN}:{os.environ['PATH']}", "TMPDIR": str(temporary)}


def spawn_command(folder, *command, **options):
    """Starts one of the installed commands in a folder."""
    environment = {**os.environ, **surroundings_in(folder)}
    return subprocess.Popen([str(word) for word in command], cwd=folder, env=environment, **options)


def run_alone(folder, *command, stdin=None, stdout=subprocess.PIPE, timeout=60):
    """Runs a command to its end, in a process that begins with it."""
    silent, never_written = os.pipe()
    try:
        with spawn_command(
            folder, *command, stdin=silent if stdin is None else subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE
        ) as process:
            try:
                output, messages = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    finally:
        os.close(silent)
        os.close(never_written)
    return Finished(process.returncode, (output or b"").decode(), messages.decode())


server = functools.cache(forked.Server)


def run_command(folder, *command, stdin=None, stdout=None, timeout=60):
    """Runs a command to its end. stdin: bytes, or None for one that never says anything nor ends."""
    if not server().serves(command[0]):
        return run_alone(folder, *command, stdin=stdin, stdout=stdout or subprocess.PIPE, timeout=timeout)
    words = [str(BIN / command[0]), *map(str, command[1:])]
    code, output, messages = server().run(words, folder, surroundings_in(folder), stdin, stdout, timeout)
    return Finished(code, output.decode(), messages.decode())


# A process starts with the peak of the one that started it, so a small one stands between this one and the command.
LAUNCH = """if True:
    import os, subprocess, sys
    ballast = bytearray(int(sys.argv[1]))
    ballast[::1024] = bytes(1) * len(ballast[::1024])
    process = subprocess.Popen(sys.argv[2:])
    _, status, usage = os.wait4(process.pid, 0)
    print("peak", usage.ru_maxrss * 1024, file=sys.stderr)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


class Measured(NamedTuple):
    returncode: int
    stdout: str
    stderr: str
    peak: int


def measure_peak(run_in, folder, *command, ballast=0, **options):
    """What a command printed, and the largest size it had, in bytes."""
    finished = run_in(folder, sys.executable, "-c", LAUNCH, ballast, *command, **options)
    return Measured(*finished, int(re.search(r"(?m)^peak (\d+)$", finished.stderr)[1]))


@pytest.fixture(scope="session")
def run_in():
    return run_command


@pytest.fixture(scope="session")
def spawn_in():
    return spawn_command


@pytest.fixture
def run(tmp_path):
    """run("llsvm-train", "data.txt", "model", stdin=...) in this test's own folder."""
    Path(tmp_path, "tmp").mkdir(exist_ok=True)
    return functools.partial(run_command, tmp_path)


@pytest.fixture
def interrupts_are_not_ignored():
    """A shell that starts pytest in the background makes it, and its children, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- a folder with everything in it, and ways to look at it


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, run_in):
    """data.txt, test.txt, data.txt.blocks, model (by llsvm) and foreign (as by LIBLINEAR)."""
    folder = tmp_path_factory.mktemp("prepared")
    write_text(folder / "data.txt", *TRAINING)
    write_text(folder / "test.txt", *TEST)
    write_model(folder / "foreign", np.random.default_rng(3).standard_normal(N_FEATURES), 1.0, 0.25)
    for command in (["llsvm-split", "data.txt", "-m", "4"], ["llsvm-train", "-B", "1", "model"]):
        assert run_in(folder, *command).returncode == 0
    return folder


@pytest.fixture
def here(tmp_path, prepared):
    """A copy of it all, in which `run` runs."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path


def contents(folder):
    """Every file and folder below, hidden ones too, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def names(folder):
    """Everything below, hidden ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_refused(finished, code, *fragments):
    assert finished.returncode == code, finished
    assert "Traceback" not in finished.stderr and "Exception ignored" not in finished.stderr
    assert "error: unexpected " not in finished.stderr  # a traceback in other words
    assert len(re.findall("(?im)^error: ", finished.stderr)) == 1, finished.stderr
    for fragment in fragments:
        assert fragment in finished.stderr


@pytest.fixture
def refuse(run, here):
    """Runs a command that must be refused: one sentence, nothing on stdout, nothing changed."""

    def run_refused(*command, code=1, says=(), **options):
        before = contents(here)
        finished = run(*command, **options)
        assert_refused(finished, code, *says)
        assert finished.stdout == ""
        assert contents(here) == before
        return finished.stderr

    return run_refused


def accuracy_line(predicted, truth):
    """As llsvm-predict prints it."""
    correct = int((np.asarray(predicted) == np.asarray(truth)).sum())
    return f"Accuracy = {100 * correct / len(truth):g}% ({correct}/{len(truth)})\n"


# --- trainings


@pytest.fixture
def fit(tmp_path):
    """fit(path, solver="dual", C=1.0, ...) trains into a new file of this test's own folder."""
    numbers = itertools.count()
    return lambda path, **options: fit_model(path, tmp_path / f"model-{next(numbers)}", **options)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """2,000 rows as text and as a set of 150 chunks, so that a tenth of it is enough memory to train from disk."""
    rows = make_rows(2000)
    text = write_text(tmp_path_factory.mktemp("texts") / "texts.txt", rows.X, rows.y)
    return rows._replace(text=text, blocks=split(text, 150))
