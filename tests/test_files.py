"""Files and folders that are complete or absent: whose a name is, what killed processes leave, what is refused."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from llsvm import files
from llsvm.core import LlsvmError
from llsvm.files import Folder, Output, clear_leftovers

STALE = ".out.0123abcd.partial"


def names_in(folder) -> list[str]:
    return sorted(os.listdir(folder))


def commit(path, data=b"new"):
    with Output(str(path)) as output:
        output.write(data)
        output.commit()


@contextmanager
def unprivileged():
    """A folder of somebody whom permissions bind, as which the test goes on."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid():
            yield Path(folder)
            return
        nobody = 65534
        os.chown(folder, nobody, nobody)
        os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


# --- whose it is


def test_nobody_can_foresee_the_name(tmp_path):
    with Output(str(tmp_path / "out")), Output(str(tmp_path / "out")):
        one, other = names_in(tmp_path)
        assert one != other
        assert all(re.fullmatch(r"\.out\.[0-9a-f]{8}\.partial", name) for name in (one, other))


@pytest.mark.parametrize("place", [os.symlink, os.link, lambda letter, name: name.write_text("mine")],
                         ids=["symbolic link", "hard link", "file"])
def test_a_name_that_is_taken_is_never_written_to(tmp_path, monkeypatch, place):
    """Even by somebody who did foresee it."""
    letter, foreseen = tmp_path / "letter", iter([b"\1\2\3\4", b"\5\6\7\x08"])
    letter.write_text("precious")
    monkeypatch.setattr(files.os, "urandom", lambda n: next(foreseen))
    taken = tmp_path / ".out.01020304.partial"
    place(letter, taken)
    before = taken.read_bytes()
    monkeypatch.setattr(files, "clear_leftovers", lambda path: None)
    commit(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"new"
    assert (letter.read_text(), taken.read_bytes()) == ("precious", before)


BUILDER = """if True:
    import sys, time
    from pathlib import Path
    from llsvm.files import Folder, Output
    made = Folder(Path("out")) if sys.argv[1] == "folder" else Output("out")
    print(flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_being_built_is_left_alone_until_its_builder_is_killed(tmp_path, kind):
    with subprocess.Popen([sys.executable, "-c", BUILDER, kind], cwd=tmp_path, stdout=subprocess.PIPE) as builder:
        builder.stdout.readline()
        [partial] = names_in(tmp_path)
        clear_leftovers(tmp_path / "out")
        assert names_in(tmp_path) == [partial]
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    clear_leftovers(tmp_path / "another")
    assert names_in(tmp_path) == [partial]
    clear_leftovers(tmp_path / "out")
    assert names_in(tmp_path) == []


def test_what_only_looks_like_a_leftover_is_left_alone(tmp_path):
    (tmp_path / "letter").write_text("precious")
    (tmp_path / STALE).symlink_to("letter")
    for name in (".out.partial", ".out.notes.partial", ".out.0123abcd.partial.txt", "out.0123abcd.partial"):
        (tmp_path / name).touch()
    before = names_in(tmp_path)
    clear_leftovers(tmp_path / "out")
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p", ""])
def test_where_locks_may_not_be_seen_nothing_is_removed(tmp_path, monkeypatch, kind):
    (tmp_path / STALE).touch()
    monkeypatch.setattr(files, "file_system", lambda folder: kind)
    commit(tmp_path / "out")
    assert names_in(tmp_path) == [STALE, "out"]


def test_where_there_are_no_locks_files_are_written_and_leftovers_stay(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / STALE).touch()
    monkeypatch.setattr(files.fcntl, "flock", flock)
    commit(tmp_path / "out")
    assert names_in(tmp_path) == [STALE, "out"]


def test_another_who_takes_a_new_file_for_a_leftover_harms_nobody(tmp_path, monkeypatch):
    """Between the making of a file and its lock."""
    lock, taken = files._lock, []

    def lock_too_late(descriptor):
        if not taken:
            taken.append(names_in(tmp_path))
            os.unlink(tmp_path / taken[0][0])
        return lock(descriptor)

    monkeypatch.setattr(files, "_lock", lock_too_late)
    commit(tmp_path / "out")
    assert len(taken) == 1 and (tmp_path / "out").read_bytes() == b"new"
    assert names_in(tmp_path) == ["out"]


def test_the_file_system_is_that_of_the_last_mount_on_the_way(monkeypatch):
    mounts = rb"""1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 0:9 / /mnt/a\040b rw,relatime shared:3 - nfs4 host:/x rw
3 1 0:8 / /mnt/a\040b/c rw - tmpfs none rw
4 1 0:7 / /tmp rw - xfs /dev/sdb rw
5 4 0:6 / /tmp rw - tmpfs none rw
"""
    monkeypatch.setattr(Path, "read_bytes", lambda path: mounts)
    expected = {"/": "ext4", "/mnt": "ext4", "/mnt/a b": "nfs4", "/mnt/a b/cd": "nfs4", "/mnt/a b/c/d": "tmpfs",
                "/tmp": "tmpfs", "/tmpfile": "ext4"}  # fmt: skip
    monkeypatch.setattr(os.path, "realpath", str)
    assert {folder: files.file_system(folder) for folder in expected} == expected


def test_the_file_system_of_this_machine_is_known():
    """As the system's own tool has it."""
    said = subprocess.run(["stat", "-f", "-c", "%T", "/proc"], capture_output=True, text=True, check=True).stdout
    assert files.file_system("/proc") == said.strip() == "proc"


# --- what may not be written to


def test_a_file_that_is_read_only_is_not_replaced():
    with unprivileged() as folder:
        (folder / "out").write_text("precious")
        (folder / "out").chmod(0o444)
        with pytest.raises(LlsvmError, match=f"^{folder}/out: Permission denied$"):
            commit(folder / "out")
        assert names_in(folder) == ["out"] and (folder / "out").read_text() == "precious"


@pytest.mark.parametrize("make", [lambda path: Output(str(path)), Folder], ids=["file", "folder"])
def test_a_folder_that_may_not_be_written_to_is_told(make):
    with unprivileged() as folder:
        folder.chmod(0o555)
        with pytest.raises(LlsvmError, match=f"^{folder}.*: Permission denied$"):
            make(folder / "out")
        folder.chmod(0o755)
        assert names_in(folder) == []


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_of_a_folder_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        folder = Folder(tmp_path / "x")
        folder.open("file").close()
        folder.commit()
        folder.clear()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((tmp_path / "x" / "file").stat().st_mode) == 0o666 & ~umask


def test_a_set_that_cannot_take_its_place_leaves_what_was_there(tmp_path, monkeypatch):
    """Neither by an exchange nor by two renames."""
    def rename(source, target):
        if source.name.endswith(".partial") and ".old." not in source.name:
            raise OSError(errno.EIO, "Input/output error")
        return renamed(source, target)

    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").touch()
    folder, renamed = Folder(tmp_path / "x"), os.rename
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(files.os, "rename", rename)
    with pytest.raises(LlsvmError, match="x: Input/output error"):
        folder.commit()
    folder.clear()
    assert names_in(tmp_path) == ["x"] and names_in(tmp_path / "x") == ["old"]
