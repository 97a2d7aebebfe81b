"""Files and folders that are complete or absent: built beside their place, locked by whoever builds them.

What is being built as NAME is called .NAME.XXXXXXXX.partial, which nobody can foresee, and is locked (flock) as long as
its builder lives. A lock ends with its process, however that ends, in every container that has the folder; so what is
not locked is a leftover, and the next who builds NAME removes it.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
from contextlib import suppress
from pathlib import Path

from llsvm import process
from llsvm.core import ClosedPipe, LlsvmError, system_hint

# Where a lock is seen by everyone who may build there. On others (network file systems) leftovers stay.
LOCKING = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
IN_MEMORY = ("tmpfs", "ramfs")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, a limit
LEFTOVER = re.compile(r"[0-9a-f]{8}(\.old)?\.partial")
EXCHANGE, FROM_WORKING_DIRECTORY = 2, -100  # RENAME_EXCHANGE, AT_FDCWD


def file_system(folder) -> str:
    """The kind of file system that a folder is on, empty where the system does not say."""
    place, kind = os.fsencode(os.path.realpath(folder)), b""
    longest = -1
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return ""
    for line in mounts:
        before, _, behind = line.partition(b" - ")
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), before.split(b" ")[4])
        if len(point) >= longest and (place + b"/").startswith(point.rstrip(b"/") + b"/"):
            longest, kind = len(point), behind.split(b" ")[0]  # of those in one place the last counts
    return kind.decode("ascii", "replace")


def _lock(descriptor: int) -> bool | None:
    """Whether this process has the lock now; None where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the path still names what is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def clear_leftovers(path: Path) -> None:
    """Removes what processes that were killed while they built `path` left, and gives back what they replaced."""
    path = _behind_link(path)
    prefix = f".{path.name}."
    found = []
    with suppress(OSError):
        found = [stale for stale in path.parent.glob(f"{glob.escape(prefix)}*.partial")
                 if LEFTOVER.fullmatch(stale.name[len(prefix) :])]
    for stale in found if found and file_system(path.parent) in LOCKING else ():
        with suppress(OSError):
            descriptor = os.open(stale, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                own = os.fstat(descriptor).st_uid == os.geteuid()
                if own and _lock(descriptor) is True and _is_at(descriptor, stale):
                    _clear(stale, path)
            finally:
                os.close(descriptor)


def _clear(stale: Path, path: Path) -> None:
    if stale.name.endswith(".old.partial") and not os.path.lexists(path):
        os.rename(stale, path)
    else:
        process.remove(stale)


def replaced(path: Path) -> Path | None:
    """What was at `path` until a process that was replacing it was killed, where that has not been given back."""
    return next(path.parent.glob(f".{glob.escape(path.name)}.*.old.partial"), None)


def missing(path) -> LlsvmError:
    """That there is nothing of this name, and where what was there has gone, if a split was killed in a bad moment."""
    before = replaced(Path(path))
    hint = before and f"{before} is what a split was replacing when it was killed: mv {before} {path}"
    return LlsvmError(f"{path}: No such file or directory", hint or "")


def _claim(path: Path, make, name: str) -> tuple[Path, int]:
    """Makes what is to become `path`, in messages `name`; returns where it is built, and a descriptor with its lock.

    make(partial) makes and opens a file or a folder, and fails where there is one of that name.
    """
    while True:
        partial = path.parent / f".{path.name}.{os.urandom(4).hex()}.partial"
        with process.uninterrupted(), suppress(FileExistsError):
            descriptor = make(partial)
            if _lock(descriptor) is not False and _is_at(descriptor, partial):
                process.unfinished[str(partial)] = name
                return partial, descriptor
            os.close(descriptor)  # somebody was quicker, and took it for a leftover


def _new_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def _new_folder(path: Path) -> int:
    path.mkdir()
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise FileExistsError from None
    except OSError:
        path.rmdir()
        raise


def _behind_link(path: Path) -> Path:
    """What a link points to is replaced, not the link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_writable(path: Path) -> None:
    """What may not be written to is not replaced either, though the folder around it would allow that."""
    effective = os.access in os.supports_effective_ids
    if path.exists() and not os.access(path, os.W_OK, effective_ids=effective):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def same_file(one: str, other: str) -> bool:
    """Both name one regular file, which need not be there yet; - is standard input or output, and no file."""
    if "-" in (one, other):
        return False
    try:
        if not os.path.exists(one):
            return os.path.realpath(one) == os.path.realpath(other)
        return os.path.isfile(one) and os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


class Output:
    """A file that appears when it is complete; opened before the work, so that a bad place is told at once.

    - is standard output; a device or a named pipe is written in place.
    """

    def __init__(self, path: str):
        self.path, self._partial, self._lock = Path(path), None, None
        try:
            if path == "-":
                os.write(1, b"")  # to a descriptor that cannot be written to, not even that
                self._file = os.fdopen(os.dup(1), "wb")
            elif self.path.exists() and not self.path.is_file():
                self._file = open(self.path, "wb")  # noqa: SIM115
            else:
                self._target = _behind_link(self.path)
                check_writable(self._target)
                clear_leftovers(self._target)
                self._partial, self._lock = _claim(self._target, _new_file, path)
                self._file = os.fdopen(os.dup(self._lock), "wb")
        except OSError as error:
            self._clear()
            raise self._failed(error) from None

    def write(self, data) -> None:
        self._attempt(self._file.write, data)

    def commit(self) -> None:
        self._attempt(self._file.close)
        if self._partial:
            with process.uninterrupted():
                self._attempt(os.replace, self._partial, self._target)
                del process.unfinished[str(self._partial)]
                self._partial = None

    def _attempt(self, action, *arguments) -> None:
        try:
            action(*arguments)
        except BrokenPipeError:
            raise ClosedPipe from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> LlsvmError:
        if str(self.path) == "-":
            return LlsvmError(f"standard output {process.trouble(error)}")
        return LlsvmError(f"{self.path}: {error.strerror}", system_hint(error))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind, error, trace) -> None:
        with suppress(OSError):
            self._file.close()
        self._clear()

    def _clear(self) -> None:
        """Removes what is not complete."""
        if self._partial:
            _discard(self._partial)
        if self._lock is not None:
            os.close(self._lock)


class Folder:
    """A folder that appears when it is complete, also in place of another: at any time one of the two is there."""

    def __init__(self, path: Path):
        self.path, self._target = path, _behind_link(path)
        try:
            self._partial, self._lock = _claim(self._target, _new_folder, str(path))
        except OSError as error:
            raise LlsvmError(f"{path.parent}: {error.strerror}", system_hint(error)) from None

    def open(self, name: str):
        """A file of the folder, to write at its end."""
        return open(self._partial / name, "ab", buffering=0)

    def failed(self, name: str, error: OSError) -> LlsvmError:
        """What to say where a file could not be written."""
        elsewhere = "; -o DIR writes elsewhere" if error.errno in FULL else ""
        hint = system_hint(error) or f"the unfinished set was removed{elsewhere}"
        return LlsvmError(f"{self.path / name}: {error.strerror}", hint)

    def commit(self) -> Path:
        try:
            with process.uninterrupted():
                if not self._target.exists():
                    os.rename(self._partial, self._target)
                elif not _exchange(self._partial, self._target):
                    self._replace()
                process.unfinished[str(self._partial)] = ""  # there now is what was replaced, if anything
        except OSError as error:
            raise LlsvmError(f"{self.path}: {error.strerror}") from None
        return self.path

    def _replace(self) -> None:
        """Where two names cannot be exchanged: for a moment what was there has another name, locked."""
        old, descriptor = self._partial.with_suffix(".old.partial"), os.open(self._target, os.O_RDONLY)
        try:
            _lock(descriptor)
            os.rename(self._target, old)
            try:
                os.rename(self._partial, self._target)
            except OSError:
                os.rename(old, self._target)
                raise
            process.remove(old)
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Removes what is not complete, or was replaced."""
        os.close(self._lock)  # first: where no more files may be open, looking into the folder takes this one's place
        _discard(self._partial)


def _discard(partial: Path) -> None:
    with process.uninterrupted():
        process.remove(partial)
        process.unfinished.pop(str(partial), None)


def _exchange(one: Path, other: Path) -> bool:
    """Two names change places in one step. False where the file system or the C library cannot do that."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    try:
        rename = libc.renameat2
    except AttributeError:
        return False
    here = FROM_WORKING_DIRECTORY
    if not rename(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(EXCHANGE)):
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number))
