"""`ulimit -v -n -u -f` of random sizes: the result without the limit, or a sentence."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from pathlib import Path
from random import Random

from torture import commands, data
from torture.part import Finding, Part

MB = 1 << 20
# OpenBLAS ends the process when NumPy is loaded; Python's hashlib logs a traceback of what it could not load.
IN_OTHER_WORDS = re.compile("OpenBLAS error|code for hash .* was not found")
# Root may start as many processes as it likes; another user who may read and write everything may not.
AS_NOBODY = ("setpriv", f"--reuid={100_000 + os.getpid()}", "--inh-caps=-all,+dac_override",
             "--ambient-caps=-all,+dac_override", "--bounding-set=-all,+dac_override")  # fmt: skip
TRAIN = ("llsvm-train", "-q", "-e", "0.01", "--memory", "64M")
COMMANDS = {
    "split": ("llsvm-split", "-q", "--memory", "64M", "--threads", "2", "{in}/data.txt", "-m", "20", "-o", "result"),
    "train": (*TRAIN, "--threads", "2", "{in}/data.txt", "result"),
    "train, one thread": (*TRAIN, "--threads", "1", "{in}/data.txt", "result"),
    "train, many blocks": (*TRAIN, "--threads", "2", "{in}/many.blocks", "result"),
    "train, from disk": ("llsvm-train", "-q", "-e", "0.05", "--memory", "1M", "--threads", "1", "{in}/many.blocks",
                         "result"),
    "train, split on the way": ("llsvm-train", "-q", "-e", "0.05", "--memory", "1M", "--threads", "1",
                                "{in}/data.txt", "result"),
    "pegasos": (*TRAIN, "-s", "pegasos", "--max-passes", "3", "--threads", "2", "{in}/data.txt", "result"),
    "shrink": (*TRAIN, "-s", "shrink", "--threads", "2", "{in}/data.txt", "result"),
    "cs": (*TRAIN, "-s", "cs", "--threads", "2", "{in}/classes.txt", "result"),
    "one against the rest": (*TRAIN, "--threads", "2", "{in}/classes.txt", "result"),
    "folds": (*TRAIN, "-v", "3", "--threads", "2", "{in}/data.txt", "result"),
    "predict": ("llsvm-predict", "-q", "--threads", "2", "{in}/data.txt", "{in}/model", "result"),
}  # fmt: skip


class Limits(Part):
    name = "limits"
    promise = "Under limits on memory, files, processes and file size: the same result, or exit code 1 and a sentence."

    def prepare(self, random: Random) -> None:
        text = data.write_rows(self.folder / "data.txt", Random(1), 6000, 1000, 10)
        data.write_rows(self.folder / "classes.txt", Random(2), 3000, 300, 10, labels=("a", "b", "c", "d"))
        commands.right(commands.run(self.folder, "llsvm-split", "-q", text, "-m", "300", "-o", "many.blocks"))
        commands.right(commands.run(self.folder, "llsvm-train", "-q", "-e", "0.1", text, "model"))
        self._expected = {}
        tried = subprocess.run([*AS_NOBODY, "true"], capture_output=True) if not os.geteuid() else None
        self._prefix = AS_NOBODY if tried and tried.returncode == 0 else ()
        self._can_limit_processes = bool(os.geteuid() or self._prefix)

    def cases(self, random: Random):
        name = random.choice(list(COMMANDS))
        words = [word.replace("{in}", str(self.folder)) for word in COMMANDS[name]]
        if name not in self._expected:
            folder = self.fresh()
            commands.right(commands.run(folder, *words))
            self._expected[name] = self._result(folder / "result")
        limits, how, prefix = self._limit(random)
        folder = self.fresh()
        try:
            ended = commands.run(folder, *prefix, *words, limits=limits)
            if not IN_OTHER_WORDS.search(ended.errors):
                commands.decent(ended, (0, 1))
        except Finding as found:
            raise Finding(f"{how.split()[0]}: {found.kind}", f"{name}, {how}\n{found.seen}") from None
        result = folder / "result"
        if result.exists() != (ended.code == 0):
            raise Finding(f"{name}: exit code {ended.code}, result {'there' if result.exists() else 'absent'}",
                          f"{how}\n{ended}")  # fmt: skip
        if result.exists() and self._result(result) != self._expected[name]:
            raise Finding(f"{name}, {how.split()[0]}: another result", f"{how}\n{ended}")
        if left := commands.names(folder) - {"tmp"} - {str(path.relative_to(folder)) for path in result.rglob("*")} \
                - {"result"}:  # fmt: skip
            raise Finding(f"{name}: something is left", f"{how}: {left}\n{ended}")
        yield

    def _limit(self, random: Random):
        """(limits, how it reads, what the command is started by)"""
        kind = random.choice(["-v", "-v", "-n", "-u" if self._can_limit_processes else "-n", "-f"])
        if kind == "-v":
            most = int(MB * random.choice([random.uniform(90, 250), random.uniform(200, 1000)]))
            return {resource.RLIMIT_AS: most}, f"-v {most >> 10}", ()
        if kind == "-n":
            most = random.choice([random.randrange(6, 16), random.randrange(10, 80)])
            return {resource.RLIMIT_NOFILE: most}, f"-n {most}", ()
        if kind == "-u":
            most = random.randrange(1, 7)
            return {resource.RLIMIT_NPROC: most}, f"-u {most}", self._prefix
        most = random.choice([random.randrange(1 << 16), random.randrange(1 << 20)])
        return {resource.RLIMIT_FSIZE: most}, f"-f {most >> 10}", ()

    @staticmethod
    def _result(path: Path):
        if path.is_dir():
            return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
        return data.timeless(path)
