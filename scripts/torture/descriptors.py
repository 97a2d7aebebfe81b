"""Standard input, output and error closed in every combination, for every command."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

from torture import commands, data
from torture.part import Finding, Part

COMBINATIONS = [closed for n in range(4) for closed in itertools.combinations(range(3), n)]
# Command; what its standard input is, if it is not closed; where its result goes.
COMMANDS = {
    "split": (("llsvm-split", "data.txt", "-o", "result"), None, "result"),
    "split -": (("llsvm-split", "-", "-o", "result"), "data.txt", "result"),
    "train": (("llsvm-train", "-e", "0.1", "data.txt", "result"), None, "result"),
    "train -": (("llsvm-train", "-e", "0.1", "-", "result"), "data.txt", "result"),
    "train - -q": (("llsvm-train", "-q", "-s", "shrink", "-", "result"), "data.txt", "result"),
    "train, to standard output": (("llsvm-train", "-e", "0.1", "data.txt", "-"), None, "-"),
    "train, from disk": (("llsvm-train", "-e", "0.1", "--memory", "100K", "data.txt", "result"), None, "result"),
    "predict": (("llsvm-predict", "data.txt", "model", "result"), None, "result"),
    "predict - -": (("llsvm-predict", "-", "model", "-"), "data.txt", "-"),
    "predict, wrong": (("llsvm-predict", "wrong.txt", "model", "-"), None, None),
    "train, wrong": (("llsvm-train", "wrong.txt", "result"), None, None),
    "info": (("llsvm", "info", "model"), None, None),
    "version": (("llsvm", "--version"), None, None),
    "help": (("llsvm-train", "--help"), None, None),
}


class Descriptors(Part):
    name = "descriptors"
    promise = "With 0-2 closed nothing hangs, no result is lost with exit code 0, no message goes where data belong."
    share = 0.5

    def prepare(self, random: Random) -> None:
        data.write_rows(self.folder / "data.txt", Random(1), 2000)
        (self.folder / "wrong.txt").write_text("1 1:1\n-1 1:x\n")
        commands.right(commands.run(self.folder, "llsvm-train", "-q", "data.txt", "model"))
        self._inputs = ["data.txt", "wrong.txt", "model"]
        self._usual = {}

    def cases(self, random: Random):
        # Every combination in turn.
        pairs = list(itertools.product(COMMANDS, COMBINATIONS))
        name, closed = pairs[self.number % len(pairs)]
        if name not in self._usual:
            folder, ended = self._run(name, ())
            self._usual[name] = ended.code, ended.out, self._result(folder, name, ended)
        folder, ended = self._run(name, closed)
        try:
            self._judge(folder, name, closed, ended)
        except Finding as found:
            raise Finding(f"{name}: {found.kind}", f"closed: {closed}\n{found.seen}") from None
        yield

    def _run(self, name: str, closed) -> tuple[Path, commands.Ended]:
        words, stdin, _ = COMMANDS[name]
        folder = self.fresh()
        for source in self._inputs:
            (folder / source).symlink_to(self.folder / source)
        with open(folder / stdin if stdin else "/dev/null", "rb") as file:
            # Closed means closed: there is no pipe to a descriptor that the child does not have.
            return folder, commands.run(folder, *words, stdin=file, closed=closed, patience=30)

    def _result(self, folder: Path, name: str, ended: commands.Ended):
        """What came out, without times; None for nothing."""
        place = COMMANDS[name][2]
        if place is None:
            return None
        path = folder / "result"
        if place == "-":
            if not ended.out:
                return None
            path.write_bytes(ended.out)
        elif not path.exists():
            return None
        return data.read_set(path) if path.is_dir() else data.timeless(path)

    def _judge(self, folder: Path, name: str, closed, ended: commands.Ended) -> None:
        code, out, result = self._usual[name]
        if said := commands.complaint(ended.errors):
            raise Finding(said, str(ended))
        if ended.code not in commands.CODES:
            raise Finding(f"exit code {ended.code}", str(ended))
        found = self._result(folder, name, ended)
        needs = COMMANDS[name][1] and 0 in closed or COMMANDS[name][2] == "-" and 1 in closed
        if ended.code == 0 and (code or needs):
            raise Finding("exit code 0 without what it needs", str(ended))
        if found is not None and found != result:
            raise Finding("another result", str(ended))
        if ended.code == 0 and found is None and result is not None:
            raise Finding("exit code 0 without a result", str(ended))
        if not needs and ended.code != code and 1 not in closed:
            raise Finding(f"exit code {ended.code}, usually {code}", str(ended))
        if name != "help" and (b"error" in ended.out or b"hint" in ended.out):  # help explains what errors are
            raise Finding("a message on standard output", f"{ended.out[-500:]!r}\n{ended}")
        if left := commands.names(folder) - {*self._inputs, "tmp", "result"} - \
                {f"result/{path.name}" for path in (folder / "result").glob("*")}:  # fmt: skip
            raise Finding("something is left", f"{left}\n{ended}")
