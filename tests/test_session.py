"""What the commands do with odd inputs, outputs and signals: nothing is destroyed, nothing is left behind."""

import gzip
import subprocess
import sys

import numpy as np
import pytest

ROWS = "".join(f"{1 if i % 2 else -1} 1:{(i % 7) - 3 + (i % 2) * 4} 2:{i % 5}\n" for i in range(60))


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "data.txt").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(name: str, *arguments, **options):
    code = f"import sys; from llsvm.cli import {name}_main as main; sys.argv[0] = 'llsvm-{name}'; main()"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, timeout=60, **options)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_long_first_line_on_standard_input_is_no_path(here, pack):
    values = np.random.default_rng(1).normal(size=(6, 2000)).round(6)
    rows = [" ".join(f"{i}:{v}" for i, v in enumerate(row, 1)) for row in values]
    text = "".join(f"{(-1) ** r} {row}\n" for r, row in enumerate(rows))
    done = command("train", "-", "model", input=pack(text.encode()))
    assert done.returncode == 0, done.stderr
    assert (here / "model").read_text().startswith("solver_type")


@pytest.mark.parametrize("log", ["data.txt", "model"])
def test_a_log_never_replaces_data_or_model(here, log):
    assert command("train", "data.txt", "model").returncode == 0
    before = (here / log).read_bytes()
    done = command("train", "--log", log, "data.txt", "model")
    assert done.returncode == 2 and log.encode() in done.stderr
    assert (here / log).read_bytes() == before


def test_a_log_that_is_something_else_is_left_alone(here):
    (here / "letter").write_text("Dear reader\n")
    assert command("train", "--log", "letter", "data.txt", "model").returncode == 2
    assert (here / "letter").read_text() == "Dear reader\n"


def test_a_model_behind_a_link_is_written_where_the_link_points(here):
    (here / "elsewhere").mkdir()
    (here / "link").symlink_to(here / "elsewhere" / "model")
    assert command("train", "data.txt", "link").returncode == 0
    assert (here / "link").is_symlink() and (here / "elsewhere" / "model").is_file()
    assert sorted(path.name for path in (here / "elsewhere").iterdir()) == ["model"]


def test_messages_nobody_reads_do_not_end_the_work(here):
    words = ["from llsvm.cli import train_main; train_main()", "-e", "1e-6", "data.txt", "model"]
    process = subprocess.Popen([sys.executable, "-c", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert (here / "model").is_file()


def test_a_temporary_directory_that_is_not_there_is_told(here):
    done = command("train", "-s", "block", "data.txt", "model", env={"TMPDIR": str(here / "nowhere")})
    assert done.returncode == 1 and b"TMPDIR" in done.stderr
    assert not (here / "model").exists()


def test_a_model_on_standard_output_has_its_certificate_on_standard_error(here):
    done = command("train", "data.txt", "-")
    assert done.returncode == 0 and done.stdout.startswith(b"solver_type")
    assert b"certified" in done.stderr


def test_a_tiny_C_converges_out_of_core(here):
    assert command("split", "data.txt", "-m", "4").returncode == 0
    done = command("train", "-c", "1e-46", "--memory", "3K", "--strict", "--max-passes", "50", "data.txt.blocks", "m")
    assert done.returncode == 0, done.stderr
    assert b"data on disk" in done.stderr


def test_a_set_that_was_being_replaced_when_the_process_was_killed_comes_back(here):
    assert command("split", "data.txt").returncode == 0
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (here / "data.txt.blocks").rename(here / f".data.txt.blocks.{dead.pid}.old.partial")
    assert command("split", "data.txt").returncode == 1  # it is there again, and not to be replaced without --force
    assert command("train", "data.txt.blocks", "model").returncode == 0
