"""What training does with odd inputs, logs and outputs: nothing is destroyed, nothing is left behind."""

import _thread
import gzip
import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest
from problems import make_noisy_rows, write_text

from llsvm import process, session
from llsvm.session import StopRequest


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_long_first_line_on_standard_input_is_no_path(run, tmp_path, pack):
    values = np.random.default_rng(1).normal(size=(6, 2000)).round(6)
    rows = [" ".join(f"{i}:{v}" for i, v in enumerate(row, 1)) for row in values]
    text = "".join(f"{(-1) ** r} {row}\n" for r, row in enumerate(rows))
    finished = run("llsvm-train", "-", "model", stdin=pack(text.encode()))
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "model").read_text().startswith("solver_type")


@pytest.mark.parametrize("log", ["data.txt", "model"])
def test_a_log_never_replaces_data_or_model(refuse, log):
    refuse("llsvm-train", "--log", log, "data.txt", "model", code=2, says=[log])


def test_a_log_that_is_something_else_is_left_alone(refuse, here):
    (here / "letter").write_text("Dear reader\n")
    refuse("llsvm-train", "--log", "letter", "data.txt", "new", code=2, says=["letter"])


def test_a_model_behind_a_link_is_written_where_the_link_points(run, here):
    (here / "elsewhere").mkdir()
    (here / "link").symlink_to(here / "elsewhere" / "model")
    assert run("llsvm-train", "data.txt", "link").returncode == 0
    assert (here / "link").is_symlink() and (here / "elsewhere" / "model").is_file()
    assert sorted(path.name for path in (here / "elsewhere").iterdir()) == ["model"]


def test_messages_nobody_reads_do_not_end_the_work(spawn_in, here):
    with spawn_in(here, "llsvm-train", "-e", "1e-6", "data.txt", "new", stdout=subprocess.DEVNULL,
                  stderr=subprocess.PIPE) as process:  # fmt: skip
        process.stderr.close()
        assert process.wait(timeout=60) == 0
    assert (here / "new").is_file()


def test_a_temporary_directory_that_is_not_there_is_told(refuse):
    refuse("env", "TMPDIR=nowhere", "llsvm-train", "-s", "block", "data.txt", "new", says=["TMPDIR"])


def test_a_model_on_standard_output_has_its_certificate_on_standard_error(run, here):
    finished = run("llsvm-train", "data.txt", "-")
    assert finished.returncode == 0 and finished.stdout.startswith("solver_type")
    assert "certified" in finished.stderr


def test_a_tiny_C_converges_out_of_core(run, tmp_path):
    rows = (f"{1 if i % 2 else -1} 1:{(i % 7) - 3 + (i % 2) * 4} 2:{i % 5}\n" for i in range(90))
    (tmp_path / "data.txt").write_text("".join(rows))
    assert run("llsvm-split", "data.txt", "-m", "4").returncode == 0
    words = ["-c", "1e-46", "--memory", "5K", "--strict", "--max-passes", "50"]
    finished = run("llsvm-train", *words, "data.txt.blocks", "model")
    assert finished.returncode == 0, finished.stderr
    assert "data on disk" in finished.stderr


def test_a_set_that_was_being_replaced_when_the_process_was_killed_comes_back(run, here):
    (here / "data.txt.blocks").rename(here / ".data.txt.blocks.0123abcd.old.partial")
    for command in (["llsvm-train", "data.txt.blocks", "new"], ["llsvm", "info", "data.txt.blocks"]):
        finished = run(*command)
        assert finished.returncode == 1
        assert "hint: .data.txt.blocks.0123abcd.old.partial is what a split was replacing" in finished.stderr
    assert run("llsvm-split", "data.txt").returncode == 1  # it is there again, and not to be replaced without --force
    assert run("llsvm-train", "data.txt.blocks", "new").returncode == 0


def write_sorted(path):
    X, y = make_noisy_rows(4, 2000)
    order = np.argsort(y, kind="stable")
    write_text(path, X[order], y[order])
    return X, y


@pytest.mark.parametrize("words, code, nearer", [
    (["-s", "shrink", "-e", "1e-9"], 0, "dual"), (["-s", "shrink", "-e", "1e-9", "--strict"], 3, "dual"),
    (["-s", "stream"], 0, "dual-l2"), (["-s", "stream", "--strict"], 3, "dual-l2"),
    (["-s", "pegasos", "--max-passes", "1"], 0, "dual"),
    (["-s", "dual", "--max-passes", "1", "-c", "1000"], 0, None),
    (["-s", "cs", "--max-passes", "1", "-c", "1000", "--strict"], 3, None),
])  # fmt: skip
def test_a_result_far_from_the_optimum_is_called_so_and_fails_under_strict(run, tmp_path, words, code, nearer):
    """Rows sorted by class: one pass leaves next to nothing of what it learnt from the first class."""
    X, y = write_sorted(tmp_path / "sorted.txt")
    finished = run("llsvm-train", "-q", *words, "sorted.txt", "model")
    assert finished.returncode == code, finished
    [warning] = finished.stderr.splitlines()
    assert warning.startswith("warning: ") and "far from the optimum, as far as is proved" in warning
    assert (f"(-s {nearer} comes nearer)" in warning) if nearer else ("comes nearer" not in warning)
    certificate = json.loads(run("llsvm", "info", "model", "--json").stdout)["certificate"]
    assert certificate["relative_gap"] > 0.1


def test_a_result_near_the_optimum_has_no_such_warning(run, tmp_path):
    write_sorted(tmp_path / "sorted.txt")
    finished = run("llsvm-train", "-q", "--strict", "-e", "0.09", "sorted.txt", "model")
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize(("largest", "n_classes", "told"), [
    (9_999_999, 2, ""), (10_000_001, 2, "about 28.6 MB"), (10_000_001, 3, "about 66.8 MB"),
    (100_000_001, 2, ""),  # so far that the model lists the ids in use alone
])  # fmt: skip
def test_one_id_far_beyond_all_others_is_warned_of(run, here, largest, n_classes, told):
    lines = [f"{k} {k + 1}:1 {k + 2}:0.5\n" for k in range(n_classes)]
    (here / "typo.txt").write_text("".join(lines) + f"1 1:1 {largest}:1\n")
    finished = run("llsvm-train", "-q", "typo.txt", "new")
    assert finished.returncode == 0
    assert finished.stderr == "" if not told else f"every id up to {largest}, and takes {told}" in finished.stderr
    if told:
        size = (here / "new").stat().st_size / 2**20
        assert float(told.split()[1]) == pytest.approx(size, rel=0.05)


def test_many_ids_up_to_a_large_one_are_no_mistake(run, here):
    ids = range(1, 20_000_000, 1000)
    row = " ".join(f"{id}:1" for id in ids)
    (here / "wide.txt").write_text(f"1 {row}\n-1 1:1\n")
    assert run("llsvm-train", "-q", "wide.txt", "new").stderr == ""


def no_thread(*arguments):
    raise RuntimeError("can't start new thread")


def lost_thread(begin, arguments):
    """It had no memory to begin."""
    process._hear_of_lost_threads(SimpleNamespace(object=begin, exc_type=MemoryError))


@pytest.mark.parametrize("start", [no_thread, lost_thread])
def test_ctrl_c_is_answered_where_no_thread_can_be_had(interrupts_are_not_ignored, monkeypatch, capfd, start):
    monkeypatch.setattr(session, "start_new_thread", start)
    before, stop = signal.getsignal(signal.SIGINT), StopRequest()
    n_open = len(os.listdir("/dev/fd"))
    with stop.listening():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # nothing is trained yet
        stop.training = True
        signal.raise_signal(signal.SIGINT)
        assert stop() and "finishing this pass" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert "interrupted again" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    assert len(os.listdir("/dev/fd")) == n_open


def test_listening_ends_its_thread_and_gives_back_what_it_took(interrupts_are_not_ignored):
    before, n_threads, n_open = signal.getsignal(signal.SIGINT), _thread._count(), len(os.listdir("/dev/fd"))
    for _ in range(3):
        with StopRequest().listening():
            assert signal.getsignal(signal.SIGINT) is not before
        assert signal.getsignal(signal.SIGINT) is before
    deadline = time.monotonic() + 20
    while (_thread._count(), len(os.listdir("/dev/fd"))) != (n_threads, n_open) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (_thread._count(), len(os.listdir("/dev/fd"))) == (n_threads, n_open)
