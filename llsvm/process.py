"""This process: its standard descriptors, the signals that end it, and what must not outlive it.

A signal that ends the process does not raise. An exception between any two steps would have to be right everywhere, in
modules of others that are being imported too; instead what is unfinished is removed and the process ended, there and
then. Until the first file is begun there is nothing to remove, so that signals may be heard from the first line on:
nothing is imported here that takes time to load.
"""

from __future__ import annotations

import _signal  # signal itself takes as long to load as all else here together
import errno
import os
import sys

ENDING = _signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP

# What a signal removes, by path: what it would have become, or "" for what is temporary. Who creates a path and notes
# it here, or takes it away, does both within `uninterrupted`.
unfinished: dict[str, str] = {}

_holds, _heard = 0, None


def is_called(name: str) -> bool:
    """Whether this process was started by a command whose name begins so, rather than by a program that imports us."""
    return os.path.basename((getattr(sys, "argv", None) or [""])[0]).startswith(name)


def begin() -> None:
    """Listens to signals, but for those that this process was told to ignore, and makes sure of the descriptors."""
    for number in ENDING:
        if _signal.getsignal(number) in (_signal.SIG_DFL, _signal.default_int_handler):
            try:
                _signal.signal(number, _hear)
            except ValueError:  # not the main thread
                break
    _open_standard_streams()
    sys.excepthook = _say_what_was_raised
    sys.unraisablehook = _hear_of_lost_threads


def interrupted_while_starting() -> None:
    """Ctrl-C that came before signals were listened to."""
    _end_by(_signal.SIGINT)


def _say_what_was_raised(kind, error, trace) -> None:
    """While modules are loaded, before a command is run that says what was raised in it."""
    if os.environ.get("LLSVM_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
    else:
        _say(f"error: a part of llsvm cannot be loaded: {kind.__name__}: {error}\n"
             "hint: install it again, or allow more memory\n")


def _hear_of_lost_threads(raised) -> None:
    """A thread that had no memory to begin is none: whose it was (a method of it began) is told so."""
    try:
        lost = getattr(getattr(raised.object, "__self__", None), "lost", None)
        if lost and issubclass(raised.exc_type, MemoryError):
            lost()
        else:
            sys.__unraisablehook__(raised)
    except MemoryError:
        pass


def _open_standard_streams() -> None:
    """Descriptors that are closed would be those of the next files opened. They are opened so that reading from the
    input and writing to the output fail, and messages go nowhere."""
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number there is
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115


class _Quiet:
    """As contextlib.suppress, which takes time to load: what cannot be done at the end is not done."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> bool:
        return isinstance(error, (OSError, ValueError, AttributeError))  # of a stream that is closed, or None


quiet = _Quiet()


class uninterrupted:
    """`with uninterrupted():` signals that end the process wait for the end of what takes little time."""

    def __enter__(self) -> None:
        global _holds
        _holds += 1

    def __exit__(self, kind, error, trace) -> None:
        global _holds
        _holds -= 1
        if not _holds and _heard:
            _end_by(_heard)


def _hear(number: int, frame) -> None:
    global _heard
    if _holds:
        _heard = number
    else:
        _end_by(number)


def clear_unfinished() -> None:
    """Removes what is unfinished when the process ends, as a signal or the end of memory left it."""
    for path in list(unfinished):
        remove(path)


def _end_by(number: int) -> None:
    clear_unfinished()
    if number == _signal.SIGINT:
        what = [f"; {name} was not written" for name in unfinished.values() if name]
        _say("error: interrupted" + "".join(what) + "\n")
    os._exit(128 + number)


def remove(path) -> None:
    """A file or a whole folder, if it is there. As shutil.rmtree, which may be being imported, and opens more files."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        with quiet:
            for name in os.listdir(path):
                remove(os.path.join(path, name))
            os.rmdir(path)


def _say(text: str) -> None:
    """On standard error, in place of a bar, and past sys.stderr, which may be in the midst of writing."""
    with quiet:
        os.write(2, b"\r\x1b[K" * os.isatty(2) + os.fsencode(text))


def say(text: str) -> None:
    """A message on standard error; a reader who has gone, or a full disk, changes nothing else."""
    with quiet:
        sys.stderr.write(text)
        sys.stderr.flush()


def trouble(error: OSError) -> str:
    """What is wrong with a standard stream."""
    return "is closed" if error.errno == errno.EBADF else f"cannot be used: {error.strerror or error}"
