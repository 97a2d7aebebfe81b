"""One seed and one number of threads give one model, byte for byte: on any processor, under any load, run after run."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from random import Random

from torture import commands, data
from torture.part import Finding, Part

CORES = ["Prescott", "Haswell", "SkylakeX", "Nehalem", "Zen"]  # of OpenBLAS, which NumPy may use
BUSY = "while True: pass"


@contextmanager
def load(processes: int):
    """So many processes that do nothing but compute."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


class Determinism(Part):
    name = "determinism"
    promise = "A seed and a number of threads give one model, a seed one block set, byte for byte."

    def prepare(self, random: Random) -> None:
        self._texts = []
        for number, (rows, features, a_row, labels) in enumerate([
            (6000, 40, 10, ("1", "-1")), (3000, 3000, 30, ("1", "-1")), (3000, 60, 60, ("2", "1")),
            (2000, 500, 12, ("a", "b", "c", "d", "e")),
        ]):
            self._texts.append(data.write_rows(self.folder / f"{number}.txt", Random(number), rows, features, a_row,
                                               labels, noise=0.2, distinct=rows))  # fmt: skip
            commands.right(commands.run(self.folder, "llsvm-split", "-q", self._texts[-1]))

    def cases(self, random: Random):
        text, folder = random.choice(self._texts), self.fresh()
        words = self._splitting(random, text) if random.random() < 0.3 else self._training(random, text)
        found = []
        for repeat in range(3):
            target = folder / f"result-{repeat}"
            env = {} if repeat == 0 else {
                "PYTHONHASHSEED": str(random.randrange(1000)), "OPENBLAS_CORETYPE": random.choice(CORES),
                "MALLOC_PERTURB_": str(random.randrange(256)),
            }  # fmt: skip
            threads = ["--threads", str(random.choice([1, 2, 3, 5]))] if words[0] == "llsvm-split" else []
            target_words = ["-o", target] if threads else [target]
            with load(random.choice([0, 0, 1, 4]) if repeat else 0):
                ended = commands.right(commands.run(folder, *words, *threads, *target_words, env=env))
            found.append((self._bytes(target), env, threads, ended))
        for contents, env, threads, ended in found[1:]:
            if contents != found[0][0]:
                what = "another block set" if words[0] == "llsvm-split" else f"{self._solver(words)}: another model"
                seen = f"{text.name}, {env}, {threads}: {self._difference(contents, found[0][0])}"
                raise Finding(what, f"{seen}\n{ended}")
            yield

    def _splitting(self, random: Random, text: Path) -> list:
        return ["llsvm-split", "-q", text, "-m", random.choice([1, 7, 40]), "--seed", random.randrange(99),
                "--memory", random.choice(["2M", "64M", "1G"]), "--precision", random.choice(["float32", "float64"])]

    def _training(self, random: Random, text: Path) -> list:
        solver = random.choice(["dual", "dual", "dual-l2", "cs", "ww", "block", "shrink", "pegasos", "stream"])
        out_of_core = random.random() < 0.4
        # Out of core the disk is not waited for idly, so there one thread alone is promised to repeat itself.
        threads = 1 if out_of_core or solver == "block" else random.choice([1, 2, 3])
        tolerance = random.choice(["0.1", "1e-2", "1e-3"])
        source = random.choice([text, f"{text}.blocks"])
        return ["llsvm-train", "-q", "-s", solver, "-e", tolerance, "--max-passes", 40, "--threads", threads,
                "--seed", random.randrange(99), "-c", random.choice([0.01, 1, 30]),
                "-B", random.choice(["-1", "1", "R"]),
                "--memory", "400K" if out_of_core else "300M", source]  # fmt: skip

    @staticmethod
    def _solver(words: list) -> str:
        return f"{words[3]}, {words[words.index('--memory') + 1]}, threads {words[words.index('--threads') + 1]}"

    @staticmethod
    def _bytes(target: Path) -> bytes:
        if target.is_dir():
            return b"".join(file.name.encode() + file.read_bytes() for file in sorted(target.iterdir()))
        return data.timeless(target)

    @staticmethod
    def _difference(one: bytes, other: bytes) -> str:
        at = next((k for k, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        return f"byte {at}: {one[max(0, at - 60) : at + 60]!r} against {other[max(0, at - 60) : at + 60]!r}"
