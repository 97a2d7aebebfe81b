"""Commands that are killed at random moments, once or twice, with whatever may come."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from random import Random

from torture import commands, data
from torture.part import Finding, Part

KINDS = [signal.SIGKILL, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT, signal.SIGINT, signal.SIGHUP]
SOON = 20.0  # seconds within which a signal must have had its effect, on a busy machine
TRAIN = ("llsvm-train", "--threads", "2", "-e", "1e-9", "--max-passes", "200")
COMMANDS = {
    "split": ("llsvm-split", "--threads", "2", "data.txt", "-o", "result"),
    "split --force": ("llsvm-split", "--force", "data.txt", "-o", "result"),
    "train": (*TRAIN, "data.txt", "result"),
    "train, split on the way": (*TRAIN, "--memory", "2M", "data.txt", "result"),
    "train, from disk": (*TRAIN, "--memory", "1M", "data.blocks", "result"),
    "shrink": ("llsvm-train", "-s", "shrink", "-e", "1e-6", "data.txt", "result"),
    "pegasos": ("llsvm-train", "-s", "pegasos", "--max-passes", "60", "-e", "1e-9", "data.blocks", "result"),
    "stream": ("llsvm-train", "-s", "stream", "data.txt", "result"),
    "folds": (*TRAIN, "-v", "3", "data.txt", "result"),
    "folds, from disk": (*TRAIN, "-v", "3", "--memory", "1M", "data.blocks", "result"),
    "predict": ("llsvm-predict", "data.txt", "model", "result"),
}


def not_ours(ended: commands.Ended) -> bool:
    """Ctrl-C while the interpreter starts (init_import_site, site.py, the installed script), before the first line of
    llsvm has been run: what Python says then is not in our hands. A module is entered at its line 0 or 1."""
    lines = re.findall(r'File ".*/llsvm/[a-z_/]+\.py", line (\d+)', ended.errors)
    cut_short = "init_import_site" in ended.errors  # before it said what had been raised
    return ("KeyboardInterrupt" in ended.errors or cut_short) and set(lines) <= {"0", "1"}


class Signals(Part):
    name = "signals"
    promise = "A signal ends a command within seconds, with its exit code; outputs are whole or absent; nothing stays."
    share = 1.5

    def prepare(self, random: Random) -> None:
        text = data.write_rows(self.folder / "data.txt", Random(1), 60_000, 2000, 20, noise=0.4)
        commands.right(commands.run(self.folder, "llsvm-split", "-q", text))
        (self.folder / "data.txt.blocks").rename(self.folder / "data.blocks")
        commands.right(commands.run(self.folder, "llsvm-train", "-q", "-e", "0.1", text, "model"))
        self._inputs = [self.folder / name for name in ("data.txt", "data.blocks", "model")]
        commands.right(commands.run(self.folder, "llsvm-predict", "-q", "data.txt", "model", "predictions"))
        self._predictions = (self.folder / "predictions").read_bytes()
        self._seconds = {}

    def cases(self, random: Random):
        name = random.choice(list(COMMANDS))
        words = COMMANDS[name]
        if name not in self._seconds:
            self._seconds[name] = commands.right(commands.run(self._place(), *words)).seconds
        folder = self._place()
        if name == "split --force":
            commands.right(commands.run(folder, *COMMANDS["split"]))
        sent = [random.choice(KINDS) for _ in range(random.choice([1, 1, 2]))]
        delay = random.uniform(0, 0.3) if random.random() < 0.4 else random.uniform(0, self._seconds[name])
        pause = random.choice([0.0, 0.0, random.uniform(0, 0.1)])
        ended, late = self._send(folder, words, sent, delay, pause)
        how = f"{name}: {', '.join(number.name for number in sent)} after {delay:.3f} s, {pause:.3f} s between"
        try:
            self._judge(folder, name, sent, ended, late)
            self._again(folder, name, words, sent)
        except Finding as found:
            raise Finding(f"{name}: {found.kind}", f"{how}\n{found.seen}") from None
        yield

    def _place(self) -> Path:
        folder = self.fresh()
        for source in self._inputs:
            (folder / source.name).symlink_to(source)
        return folder

    def _send(self, folder: Path, words, sent, delay: float, pause: float) -> tuple[commands.Ended, bool]:
        """How it ended, and whether that took too long."""
        with commands.start(folder, *words) as process:
            began = time.monotonic()
            time.sleep(delay)
            for number in sent:
                process.send_signal(number)
                time.sleep(pause)
            try:
                out, errors = process.communicate(timeout=SOON)
                late = False
            except subprocess.TimeoutExpired:
                process.kill()
                out, errors = process.communicate()
                late = True
        return commands.Ended(words, process.returncode, out, errors.decode(errors="replace"),
                              time.monotonic() - began), late

    def _judge(self, folder: Path, name: str, sent, ended: commands.Ended, late: bool) -> None:
        if late:
            raise Finding("a signal does not end it", str(ended))
        if not_ours(ended):
            return
        if said := commands.complaint(ended.errors):
            raise Finding(f"{said}, after a signal", str(ended))
        allowed = {0} | {code for number in sent for code in (-number, 128 + number)}
        if ended.code not in allowed:
            raise Finding(f"exit code {ended.code} after a signal", str(ended))
        self._complete(folder, name, ended)
        if signal.SIGKILL not in sent or ended.code != -signal.SIGKILL:
            self._clear(folder, ended)

    def _complete(self, folder: Path, name: str, ended: commands.Ended) -> None:
        result = folder / "result"
        if not result.exists():
            if ended.code == 0:
                raise Finding("exit code 0 without a result", str(ended))
            if name == "split --force" and ended.code != -signal.SIGKILL:
                raise Finding("the old set is gone", str(ended))
        elif name.startswith("split"):
            data.read_set(result)
        elif name == "predict":
            if result.read_bytes() != self._predictions:
                raise Finding("incomplete predictions", str(ended))
        else:
            data.loaded_model(result)

    def _clear(self, folder: Path, ended: commands.Ended) -> None:
        known = {source.name for source in self._inputs} | {"tmp"}
        left = {name for name in commands.names(folder) if not re.match(r"result(/[^/.]+\.(llb|zst|json))?$", name)}
        if left - known:
            raise Finding("something is left", f"{sorted(left - known)[:5]}\n{ended}")

    def _again(self, folder: Path, name: str, words, sent) -> None:
        """The same command once more works, and clears what a kill has left."""
        if signal.SIGKILL not in sent:
            return
        if words[0] == "llsvm-split":
            words = (*words, "--force")
        ended = commands.right(commands.run(folder, *words))
        self._complete(folder, name, ended)
        self._clear(folder, ended)
