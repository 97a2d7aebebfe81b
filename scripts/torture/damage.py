"""Every byte of a small block set and of small models changed, and both cut at every length, taken away and swapped."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from llsvm.core import LlsvmError
from torture import commands, data
from torture.part import Finding, Part

BATCH, KINDS = 25, 7
TRAINING = {"two": ("1", "-1"), "words": ("spam", "ham", "eggs")}


def damaged(random: Random, original: bytes, at: int, kind: int) -> tuple[bytes, str]:
    """The bytes with the one at this place, or all from there on, changed in one of KINDS ways; and how."""
    before, byte, behind = original[:at], original[at : at + 1], original[at + 1 :]
    if kind == 0:
        return before, "cut"
    if kind == 1:
        return before + behind, "left out"
    if kind == 2:
        return before + random.randbytes(1) + byte + behind, "put in"
    if kind == 3:
        n_bytes = random.choice([4, 16, 512])
        return before + bytes(len(original[at : at + n_bytes])) + original[at + n_bytes :], f"{n_bytes} zeros"
    if kind == 4:
        return original + random.randbytes(random.randint(1, 9)), "lengthened"
    if kind == 5:
        return before + bytes([byte[0] ^ 1 << random.randrange(8)]) + behind, "a bit turned"
    return before + random.choice([b"\0", b"\xff", b" ", b"9", random.randbytes(1)]) + behind, "changed"


def make_targets(folder: Path, random: Random) -> None:
    """Block sets and models of all formats: two classes and more, a bias, word labels, ids beyond 100 million."""
    for name, labels in TRAINING.items():
        text = data.write_rows(folder / f"{name}.txt", random, 60, n_features=12, a_row=4, labels=labels)
        with open(text, "a") as file:
            file.write(f"{labels[0]} 3:0.25 7:1e-3\n")
        commands.right(commands.call("llsvm-split", "-q", text, "-m", 2, "-o", folder / f"{name}.blocks"))
        for solver, bias in (("dual", "1"), ("cs", "-1")):
            target = folder / f"{name}.{solver}.model"
            commands.right(commands.call("llsvm-train", "-q", "-s", solver, "-B", bias, text, target))
    by_id = folder / "by-id.txt"
    by_id.write_text((folder / "two.txt").read_text() + "1 200000000:1\n")
    commands.right(commands.call("llsvm-train", "-q", by_id, folder / "by-id.model"))


class Damage(Part):
    name = "damage"
    promise = "A damaged block set or model is refused with exit code 1, or means what it meant."

    def prepare(self, random: Random) -> None:
        random = Random(1)
        self._original = self.folder / "original"
        self._original.mkdir()
        make_targets(self._original, random)
        self._sets = {path: data.read_set(path) for path in sorted(self._original.glob("*.blocks"))}
        self._models = {path: data.loaded_model(path) for path in sorted(self._original.glob("*.model"))}
        files = [file for path in self._sets for file in sorted(path.iterdir())] + list(self._models)
        self._places = [(file, at) for file in files for at in range(file.stat().st_size)]
        Random(2).shuffle(self._places)

    def cases(self, random: Random):
        """Every place comes once a round, in another way each time: after KINDS rounds, each was tried in all ways."""
        if self.number % 10 == 0:
            yield from self._whole_files(random)
        for k in range(self.number * BATCH, (self.number + 1) * BATCH):
            turn, place = divmod(k, len(self._places))
            file, at = self._places[place]
            changed, how = damaged(random, file.read_bytes(), at, (turn + place) % KINDS)
            self._judge(random, file, changed, f"{file.name}: {how} at {at}")
            yield

    def _whole_files(self, random: Random):
        """Files that are missing, empty, swapped, or those of another set."""
        path, other = random.sample(sorted(self._sets), 2)
        for file in sorted(path.iterdir()):
            others = [sibling for sibling in path.iterdir() if sibling != file] + [other / file.name]
            swap = random.choice(others)
            for changed, how in ((None, "missing"), (b"", "empty"), (swap.read_bytes(), f"in its place {swap}")):
                self._judge(random, file, changed, f"{file.name}: {how}")
                yield

    def _judge(self, random: Random, file: Path, changed: bytes | None, how: str) -> None:
        folder = self.fresh()
        if file in self._models:
            copy, read, expected = folder / "model", data.loaded_model, self._models[file]
            copy.write_bytes(changed)
        else:
            copy, read, expected = folder / "set.blocks", data.read_set, self._sets[file.parent]
            shutil.copytree(file.parent, copy)
            (copy / file.name).unlink()
            if changed is not None:
                (copy / file.name).write_bytes(changed)
        how = f"{file.parent.name}/{how}"
        # A folder without a manifest is no block set, which is a wrong argument.
        codes = (2, 1) if copy.is_dir() and not (copy / "manifest.json").exists() else (1,)
        try:
            found = read(copy)
        except LlsvmError as error:
            if error.exit_code not in codes:
                raise Finding(f"exit code {error.exit_code}", f"{how}: {error}") from None
        else:
            if found != expected:
                raise Finding("other data", f"{how}\n{found}\nexpected: {expected}")
        if random.random() < 0.05:
            self._command(random, copy, how, codes)

    def _command(self, random: Random, copy: Path, how: str, codes) -> None:
        """The same in a command, as its exit code and its words."""
        if copy.is_dir():
            words = random.choice([("llsvm", "info", copy, "--verify"), ("llsvm-train", "-q", copy, copy.parent / "m"),
                                   ("llsvm-predict", copy, self._original / "two.dual.model", copy.parent / "out")])
        else:
            words = random.choice([("llsvm", "info", copy),
                                   ("llsvm-predict", self._original / "two.txt", copy, copy.parent / "out")])
        ended = commands.decent(commands.call(*words), (0, *codes))
        left = {path.name for path in copy.parent.iterdir()} - {copy.name}
        if ended.code and left:
            raise Finding("a refused command left something", f"{how}: {left}\n{ended}")
