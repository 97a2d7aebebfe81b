"""llsvm's commands, as processes and, where thousands are wanted, in this one; and what is true of all of them."""

from __future__ import annotations

import io
import os
import re
import resource
import subprocess
import sys
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from torture.part import Finding

BIN = Path(sys.executable).parent
PATIENCE = 60.0  # seconds after which a command that should take one hangs
NEVER_SAID = re.compile(r"Traceback|error: unexpected \w+ at |Exception ignored|Fatal Python|Warning: |AddressSanitizer"
                        r"|runtime error")
CODES = (0, 1, 2, 3, 130, 141)


class Ended(NamedTuple):
    """What a command said and how it ended; a negative code is the signal that ended it."""

    words: tuple
    code: int
    out: bytes
    errors: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return (f"$ {' '.join(map(str, self.words))}\nexit code {self.code} after {self.seconds:.1f} s\n"
                f"{self.errors[-1500:]}")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Temporary files go to folder/tmp."""
    (folder / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TMPDIR": str(folder / "tmp"), **more}


def limited(limits: dict[int, int] | None = None, closed=()):
    """What a child does before it becomes the command: takes limits on itself, closes descriptors."""

    def prepare() -> None:
        for which, most in (limits or {}).items():
            resource.setrlimit(which, (most, most))
        for descriptor in closed:
            os.close(descriptor)

    return prepare if limits or closed else None


def start(folder: Path, *words, env=None, limits=None, closed=(), **options) -> subprocess.Popen:
    """Starts a command in a folder; its output and errors are pipes unless options say otherwise."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([str(word) for word in words], cwd=folder, env=environment(folder, **(env or {})),
                            preexec_fn=limited(limits, closed), **options)  # fmt: skip


def run(folder: Path, *words, patience: float = PATIENCE, **options) -> Ended:
    """Runs a command to its end; one that hangs is a finding."""
    began = time.monotonic()
    with start(folder, *words, **options) as process:
        try:
            out, errors = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            ended = Ended(words, process.returncode, b"", (errors or b"").decode(errors="replace"), patience)
            raise Finding("a command hangs", str(ended)) from None
    seconds = time.monotonic() - began
    return Ended(words, process.returncode, out or b"", (errors or b"").decode(errors="replace"), seconds)


def call(*words) -> Ended:
    """Runs a command in this process, as llsvm.cli.run would: thousands a second."""
    import click

    from llsvm import cli
    from llsvm.core import LlsvmError

    name, *arguments = map(str, words)
    command = cli.llsvm if name == "llsvm" else getattr(cli, name.removeprefix("llsvm-"))
    out, errors, code = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(errors), warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        try:
            command.main(args=arguments, prog_name=name, standalone_mode=False)
        except SystemExit as error:
            code = error.code or 0
        except LlsvmError as error:
            code = error.exit_code
            errors.write(f"error: {error.message}\nhint: {error.hint}\n")
        except click.ClickException as error:
            code = error.exit_code
            errors.write(f"error: {error.format_message()}\n")
        except (OSError, MemoryError) as error:
            code = 1
            errors.write(f"error: {error}\n")
        except Exception:
            code = 1
            errors.write(traceback.format_exc())
    out.flush()
    return Ended(words, code, out.buffer.getvalue(), errors.getvalue())


def complaint(errors: str) -> str:
    """What no command may say, if it is there: of a traceback the exception and the last line of llsvm's in it."""
    # Where memory does not even suffice to tell a thread so, Python says it beside the sentence.
    errors = re.sub(r"Exception ignored in[^\n]*:[^\n]*\nMemoryError:? ?\n", "", errors)
    said = NEVER_SAID.search(errors)
    if not said:
        return ""
    if said[0] != "Traceback":
        line = errors[errors.rfind("\n", 0, said.start()) + 1 :].split("\n", 1)[0]
        return re.sub(r"/\S*/", "", line)[:100]
    frames = re.findall(r'File ".*/llsvm/([a-z_/]+\.py)", line (\d+)', errors[said.start() :])
    error = re.findall(r"(?m)^([A-Za-z][\w.]*)(?::|$)", errors[said.start() :])
    return f"{(error or ['an exception'])[-1]} at {':'.join(frames[-1]) if frames else 'the start'}"


def decent(ended: Ended, codes=CODES) -> Ended:
    """It ended with one of these codes, in words for people: itself, or a finding."""
    if said := complaint(ended.errors):
        raise Finding(said, str(ended))
    if ended.code not in codes:
        raise Finding(f"exit code {ended.code}", str(ended))
    if ended.code in (1, 2) and not re.search(r"(?m)^(error|Error): ", ended.errors):
        raise Finding("refused without a word", str(ended))
    return ended


def right(ended: Ended) -> Ended:
    """It did what it was asked."""
    if decent(ended).code:
        raise Finding("a command that should work does not", str(ended))
    return ended


def names(folder: Path) -> set[str]:
    """All files below, hidden ones too, and folders that are empty."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")
            if not path.is_dir() or not any(path.iterdir())}  # fmt: skip
