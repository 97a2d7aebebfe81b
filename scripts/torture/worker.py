"""A process that tries cases: a crash or a hang in it is a finding, not the end of the campaign.

The campaign writes a line `part number deadline` to its standard input and reads one line of JSON back.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from torture.part import Finding, Unable
from torture.parts import PARTS

GRACE = 2.0  # seconds that a run may go on when the time is over
TAIL = 6000  # characters of its last words that are kept


@dataclass
class Answer:
    """Of a run: cases that were tried, what went wrong, why the part cannot be tried here."""

    cases: int = 0
    kind: str = ""
    seen: str = ""
    unable: str = ""


class Worker:
    """The campaign's end."""

    def __init__(self, folder: Path, seed: int, environment: dict[str, str]):
        self._folder, self._seed, self._environment = folder, seed, environment
        self._process = None

    def _start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        words = [sys.executable, str(Path(__file__).parent), "--worker", str(self._folder), "--seed", str(self._seed)]
        with open(self._folder / "words", "wb") as words_said:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words_said, start_new_session=True,
                env={**os.environ, **self._environment},
            )

    def attempt(self, part: str, number: int, deadline: float) -> Answer | None:
        """None where the time was over before the run was."""
        if self._process is None:
            self._start()
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{part} {number} {deadline}\n".encode())
            self._process.stdin.flush()
        until = min(time.time() + PARTS[part].limit, deadline + GRACE)
        if not select.select([self._process.stdout], [], [], max(0.0, until - time.time()))[0]:
            if time.time() >= deadline:
                self.stop()
                return None
            return self._hanging(part)
        line = self._process.stdout.readline()
        return Answer(**json.loads(line)) if line else self._dead()

    def _hanging(self, part: str) -> Answer:
        """Every stack of the worker, which is then replaced."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        self.stop()
        return Answer(1, "hangs", f"no answer in {PARTS[part].limit:g} s\n{self._last_words()}")

    def _dead(self) -> Answer:
        code = self._process.wait()
        self.stop()
        return Answer(1, "crashes", f"the process ended with {code}\n{self._last_words()}")

    def _last_words(self) -> str:
        said = (self._folder / "words").read_text(errors="replace")
        return said if len(said) < TAIL else said[: TAIL // 2] + "\n...\n" + said[-TAIL // 2 :]

    def stop(self) -> None:
        """Ends it and all that it has started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


def serve(folder: str, seed: int) -> None:
    """The worker's end, until its standard input ends."""
    for number in (signal.SIGINT, signal.SIGHUP):  # which a shell that starts us in the background has us ignore
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    temporary = Path(folder, "tmp")
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the code under test prints must not be taken for an answer
    parts = {}
    for order in sys.stdin:
        name, number, deadline = order.split()
        answers.write(json.dumps(asdict(try_cases(parts, folder, seed, name, int(number), float(deadline)))) + "\n")
        answers.flush()


def try_cases(parts: dict, folder: str, seed: int, name: str, number: int, deadline: float) -> Answer:
    """One run of a part, which is prepared if it is not yet among `parts`."""
    answer = Answer()
    try:
        if name not in parts:
            parts[name] = prepared(name, folder, seed)
        parts[name].number = number
        for _ in parts[name].cases(Random(f"{seed} {name} {number}")):
            answer.cases += 1
            if time.time() > deadline:
                break
    except Unable as why:
        answer.unable = str(why)
    except Finding as found:
        answer.cases, answer.kind, answer.seen = answer.cases + 1, found.kind, found.seen
    except Exception as error:
        answer.cases, answer.seen = answer.cases + 1, traceback.format_exc()[-TAIL:]
        answer.kind = f"raises {type(error).__name__}"
    return answer


def prepared(name: str, folder: str, seed: int):
    place = tempfile.mkdtemp(prefix=f"{name.replace('@', '-')}-", dir=folder)  # another, where a worker has died
    part = PARTS[name](Path(place))
    part.prepare(Random(f"{seed} {name}"))
    return part
