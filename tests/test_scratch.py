"""Temporary files: nothing is left of them, and what is wrong with their place is told."""

import os

import pytest
from conftest import assert_refused, file_size_limit, names

from llsvm import scratch
from llsvm.core import DataError, LlsvmError
from llsvm.scratch import Nameless, Scratch


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def warnings(monkeypatch):
    told = []
    monkeypatch.setattr(scratch, "warn", told.append)
    monkeypatch.setattr(scratch, "_warned", set())
    return told


@pytest.mark.parametrize(("kind", "n_warnings"), [("tmpfs", 1), ("ramfs", 1), ("ext4", 0), ("", 0)])
def test_a_temporary_folder_in_memory_is_warned_of_once(temporary, warnings, monkeypatch, kind, n_warnings):
    monkeypatch.setattr(scratch, "file_system", lambda folder: kind)
    for _ in range(3):
        Scratch("test").close()
    assert len(warnings) == n_warnings
    assert all(str(temporary) in text and kind in text and "TMPDIR" in text for text in warnings)


def test_a_file_that_became_shorter_is_noticed(temporary):
    file = Scratch("test")
    file.write(b"0123456789", 5)
    assert file.read(10, 5) == b"0123456789"
    os.truncate(f"/proc/self/fd/{file._file.fileno()}", 12)
    with pytest.raises(DataError, match=f"{temporary}: a temporary file is 3 bytes shorter"):
        file.read(10, 5)
    file.close()


def test_files_are_kept_apart_and_have_no_names(temporary):
    files = Nameless()
    for name, data in [("a", b"1"), ("b", b"2"), ("a", b"3")]:
        with files.open(name) as file:
            file.write(data)
    assert (files.read("a"), files.read("b")) == (b"13", b"2")
    assert os.listdir(temporary) == []
    files.discard()


def test_a_full_disk_is_told_by_its_place(temporary):
    files = Nameless()
    with file_size_limit(100), files.open("a") as file, pytest.raises(OSError) as failure:
        while True:
            file.write(bytes(64))
    refusal = files.failed("a", failure.value)
    assert isinstance(refusal, LlsvmError)
    assert refusal.message == f"{temporary}: File too large" and refusal.hint == "set TMPDIR to a larger disk"
    files.discard()


def test_a_temporary_set_that_finds_no_room_is_told_and_leaves_nothing(run, texts, tmp_path):
    with file_size_limit(2_000):
        finished = run("llsvm-train", "--memory", "300K", texts.text, "model")
    assert_refused(finished, 1, f"error: {tmp_path}/tmp: File too large\nhint: set TMPDIR to a larger disk\n")
    assert names(tmp_path) == {"tmp"}


def test_a_set_that_finds_no_room_is_told_and_leaves_nothing(run, texts, tmp_path):
    with file_size_limit(20_000):
        finished = run("llsvm-split", texts.text, "-o", "x.blocks", "-m", 2)
    assert_refused(finished, 1, "error: x.blocks/block-000", ": File too large\nhint: ", "-o DIR writes elsewhere")
    assert names(tmp_path) == {"tmp"}


def test_a_folder_that_takes_no_files_is_told(temporary, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(scratch.tempfile, "TemporaryFile", refuse)
    with pytest.raises(LlsvmError, match=f"{temporary}: Permission denied") as refusal:
        Scratch("test")
    assert refusal.value.hint == "TMPDIR says where temporary files go"
