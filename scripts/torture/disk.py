"""Disks that fill up: limits on the size of a file, a small file system, devices that take nothing."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from random import Random

from torture import commands, data
from torture.part import Finding, Part

SMALL = 1 << 20  # bytes of the small file system
# Command, whose result goes to `result`.
COMMANDS = {
    "split": ("llsvm-split", "-q", "{in}/data.txt", "-o", "result"),
    "train": ("llsvm-train", "-q", "-e", "0.1", "{in}/data.txt", "result"),
    "train with a log": ("llsvm-train", "-q", "-e", "0.1", "--log", "log", "{in}/data.txt", "result"),
    "train, split on the way": ("llsvm-train", "-q", "-e", "0.1", "--memory", "1M", "{in}/data.txt", "result"),
    "train, from disk": ("llsvm-train", "-q", "-e", "0.1", "--memory", "1M", "{in}/data.txt.blocks", "result"),
    "shrink": ("llsvm-train", "-q", "-s", "shrink", "--memory", "1M", "{in}/data.txt", "result"),
    "pegasos": ("llsvm-train", "-q", "-s", "pegasos", "--max-passes", "3", "--memory", "1M", "{in}/data.txt", "result"),
    "predict": ("llsvm-predict", "-q", "--scores", "{in}/data.txt", "{in}/model", "result"),
}


class Disk(Part):
    name = "disk"
    promise = "On a full disk: exit code 1 and a sentence, nothing half-written, nothing left."
    share = 0.7

    def prepare(self, random: Random) -> None:
        text = data.write_rows(self.folder / "data.txt", Random(1), 20_000, 5000, 15)
        commands.right(commands.run(self.folder, "llsvm-split", "-q", text))
        commands.right(commands.run(self.folder, "llsvm-train", "-q", "-e", "0.1", text, "model"))
        commands.right(commands.run(self.folder, "llsvm-predict", "-q", "--scores", text, "model", "predictions"))
        self._predictions = (self.folder / "predictions").read_bytes()
        self._small = self.folder / "small"
        self._small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", self._small],
                                 capture_output=True)  # fmt: skip
        self._is_mounted = mounted.returncode == 0

    def cases(self, random: Random):
        name = random.choice(list(COMMANDS))
        words = [word.replace("{in}", str(self.folder)) for word in COMMANDS[name]]
        kind = random.choice(["limit", "limit", "device", "small" if self._is_mounted else "limit"])
        if kind == "device":
            self._device(random, name, words)
        elif kind == "limit":
            most = random.choice([0, random.randrange(4096), random.randrange(400_000), random.randrange(4_000_000)])
            folder = self.fresh()
            ended = commands.run(folder, *words, limits={resource.RLIMIT_FSIZE: most})
            self._judge(folder, name, ended, f"{name}, files of at most {most} bytes")
        else:
            self._full(random, name, words)
        yield

    def _full(self, random: Random, name: str, words) -> None:
        """Everything on a file system with a little room; or the temporary files alone."""
        room = random.choice([0, 4096, random.randrange(SMALL)])
        with open(self._small / "filler", "wb") as filler:
            filler.write(bytes(max(0, SMALL - room)))
        try:
            folder = self._small / "work"
            folder.mkdir()
            env = {}
            if random.random() < 0.5:
                folder = self.fresh()
                (self._small / "tmp").mkdir()
                env = {"TMPDIR": str(self._small / "tmp")}
            ended = commands.run(folder, *words, env=env)
            self._judge(folder, name, ended, f"{name}, {room} bytes of room{' in TMPDIR' if env else ''}")
            if env and any((self._small / "tmp").iterdir()):
                raise Finding(f"{name}: something is left in TMPDIR", str(ended))
        finally:
            subprocess.run(["find", self._small, "-mindepth", "1", "-delete"], check=True)

    def _device(self, random: Random, name: str, words) -> None:
        """/dev/full as the result, as standard output, as the log."""
        folder = self.fresh()
        if name.startswith("split") or random.random() < 0.4:
            words = [word for word in words if word != "-q"]
            if name == "predict" and random.random() < 0.5:
                words[-1] = "-"
            with open("/dev/full", "wb") as full:
                ended = commands.run(folder, *words, stdout=full)
            if words[-1] != "-":  # the result is there before it is told
                self._judge(folder, name, ended, f"{name} > /dev/full", complete=True)
                return
        else:
            words[-1] = "/dev/full"
            ended = commands.run(folder, *words)
        if commands.decent(ended, (1,)).code != 1 or commands.names(folder) - {"tmp", "log"}:
            raise Finding(f"{name}: something is left", f"{commands.names(folder)}\n{ended}")

    def _judge(self, folder: Path, name: str, ended: commands.Ended, how: str, complete: bool = False) -> None:
        """complete: there must be a result, whatever the exit code."""
        try:
            commands.decent(ended, (0, 1))
        except Finding as found:
            raise Finding(f"{name}: {found.kind}", f"{how}\n{found.seen}") from None
        result = folder / "result"
        if complete and name == "train with a log":
            complete = result.exists()
        if result.exists() != (complete or ended.code == 0):
            raise Finding(f"{name}: exit code {ended.code}, result {'there' if result.exists() else 'absent'}",
                          f"{how}\n{ended}")  # fmt: skip
        if result.exists():
            self._whole(name, result, f"{how}\n{ended}")
        left = {left for left in commands.names(folder) if not left.startswith("result")} - {"tmp", "log"}
        if left:
            raise Finding(f"{name}: something is left", f"{how}: {sorted(left)[:5]}\n{ended}")

    def _whole(self, name: str, result: Path, seen: str) -> None:
        if name == "split":
            data.read_set(result)
        elif name != "predict":
            data.loaded_model(result)
        elif os.path.getsize(result) != len(self._predictions) or result.read_bytes() != self._predictions:
            raise Finding("predict: incomplete", seen)
