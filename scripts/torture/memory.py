"""The promise of --memory: solvers, shapes of data, labels, budgets and threads; and --time-limit on the way."""

from __future__ import annotations

import bz2
import lzma
import re
import sys
from pathlib import Path
from random import Random

import zstandard

from llsvm.memory import promised
from torture import commands, data
from torture.part import Finding, Part

MB = 1 << 20
# A process starts with the peak of the one that started it, so a small one stands between this one and the command.
LAUNCH = """if True:
    import os, signal, subprocess, sys
    process = subprocess.Popen(sys.argv[2:])
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.alarm(int(sys.argv[1]))
    _, status, usage = os.wait4(process.pid, 0)
    print("peak", usage.ru_maxrss * 1024, file=sys.stderr)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)
"""
LONGEST = 60  # seconds after which it is killed
TIME_LIMIT = 2.0
SOLVERS = ["dual", "dual-l2", "cs", "ww", "block", "shrink", "pegasos", "stream"]


def many_rows(path: Path, random: Random, labels) -> None:
    data.write_rows(path, random, random.choice([20_000, 100_000, 300_000]), 1000, random.choice([2, 8]), labels)


def many_features(path: Path, random: Random, labels) -> None:
    data.write_rows(path, random, 4000, random.choice([10**5, 10**6, 10**9]), 100, labels, distinct=4000)


def long_rows(path: Path, random: Random, labels) -> None:
    data.write_rows(path, random, 60, 10**6, random.choice([5000, 40_000]), labels, distinct=60)


def dense(path: Path, random: Random, labels) -> None:
    """Every row has every feature."""
    n_features, n_rows = random.choice([50, 500]), random.choice([2000, 20_000])
    line = "".join(f" {number}:{number % 7}.5" for number in range(1, n_features + 1)) + "\n"
    with open(path, "w") as file:
        file.writelines(f"{labels[row * 7919 % len(labels)]} 0{row % n_features + 1}:1\n" if row % 9 == 0 else
                        labels[row * 7919 % len(labels)] + line for row in range(n_rows))


def one_feature(path: Path, random: Random, labels) -> None:
    """A row or a few for each label, each of one feature."""
    with open(path, "w") as file:
        file.writelines(f"{label} {k % 7 + 1}:1\n" for k in range(random.choice([2, 5])) for label in labels)


SHAPES = [many_rows, many_features, long_rows, dense, one_feature]


def packed(path: Path, random: Random) -> Path:
    """The same compressed, some with windows of as much as their formats allow."""
    text, kind = path.read_bytes(), random.randrange(4)
    if kind == 0:
        window = random.choice([20, 24, 27, 30, 31])
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window, enable_ldm=False)
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        body = packer.compress(text) + packer.flush()
    elif kind == 1:
        size = random.choice([1 << 20, 1 << 26, 1 << 29])
        body = lzma.compress(text, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": size}])
    elif kind == 2:
        body = bz2.compress(text)
    else:
        body = zstandard.compress(text)
    path.with_suffix(".packed").write_bytes(body)
    return path.with_suffix(".packed")


class Memory(Part):
    name = "memory"
    promise = "--memory: the process stays below what docs/memory.md promises, or refuses in words; --time-limit holds."
    share = 1.5
    limit = 200.0

    def cases(self, random: Random):
        folder = self.fresh()
        shape = random.choice(SHAPES)
        many = [100, 1000, 10_000, 65_000] if shape is one_feature else [200]
        n_labels = random.choice([2, 2, 2, 10, *many])
        text = folder / "data.txt"
        shape(text, random, [str(number) for number in range(n_labels)])
        budget = random.choice([1, 4, 16, 64, 80, 128, 200, 300]) * MB
        words = self._command(random, text, budget, n_labels)
        what = f"{shape.__name__}, {n_labels} labels, {text.stat().st_size >> 10} KB of text"
        ended = commands.run(folder, sys.executable, "-c", LAUNCH, LONGEST, *words, patience=2 * LONGEST)
        ended = ended._replace(words=tuple(words))
        peak, allowed = int(re.search(r"(?m)^peak (\d+)$", ended.errors)[1]), promised(budget)
        if peak > allowed:
            kind = words[words.index("-s") + 1] if "-s" in words else words[0]
            raise Finding(f"{kind}, {shape.__name__}, {n_labels} labels{', packed' * ('packed' in str(words))}: "
                          "more memory than promised", f"{what}: {peak / MB:.0f} MB, {allowed / MB:.0f} MB promised\n"
                          f"{ended}")
        self._in_time(ended, what)
        commands.decent(ended, (0, 1, 2))
        yield

    def _command(self, random: Random, text: Path, budget: int, n_labels: int) -> list:
        threads = ["--threads", str(random.choice([1, 2, 4])), "--memory", f"{budget >> 20}M"]
        source = packed(text, random) if random.random() < 0.2 else text
        action = random.randrange(6)
        if action == 0:
            return ["llsvm-split", "-q", *threads, source, "-m", str(random.choice([1, 16, 200])), "-o", "result"]
        solver = random.choice(SOLVERS)
        if action in (1, 2):
            commands.decent(commands.run(text.parent, "llsvm-split", "-q", source, "-o", "set.blocks"), (0, 1))
            source = "set.blocks" if (text.parent / "set.blocks").exists() else source
        extra = random.choice([[], [], ["-B", "1"], ["--precision", "float64"], ["--exact"]])
        if solver in ("dual", "dual-l2", "block") and random.random() < 0.3:
            mapped = solver != "block" and n_labels <= 200 and random.random() < 0.5
            extra = ["-t", "2", "--rank", "30"] if mapped else ["-v", "3"]
        if extra == ["--exact"] and solver != "shrink" or extra[:1] == ["--precision"] and source == "set.blocks":
            extra = []
        return ["llsvm-train", "-q", "-s", solver, "--time-limit", str(TIME_LIMIT), *threads, *extra, source, "result"]

    def _in_time(self, ended: commands.Ended, what: str) -> None:
        """Reading counts too, so a training may take a few times the limit on a busy machine, but not many times."""
        if "--time-limit" in ended.words and ended.seconds > 20 + 5 * TIME_LIMIT:
            solver = ended.words[ended.words.index("-s") + 1]
            raise Finding(f"{solver}: --time-limit {TIME_LIMIT:g} is not kept", f"{what}\n{ended}")
        if ended.seconds > LONGEST:
            raise Finding(f"{ended.words[0]} hangs", f"{what}\n{ended}")
