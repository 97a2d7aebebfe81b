"""Whether training still gives the same bits: digests of w and D of every solver on toy data.

    python scripts/same_bits.py                  compares with tests/frozen/same_bits.txt; exit code 1 where they differ
    python scripts/same_bits.py --write          writes that list anew: the commit that does so says why bits changed
    python scripts/same_bits.py --only "dual disk"     cases whose names hold these words alone

A case is a solver in a place (rows in memory, a block set larger than memory, text read once) on a shape of data, with
so many classes and threads. Its digest is of the weights that are written and of D, at the end of a few passes.
"""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from llsvm import solvers, train
from llsvm.split import split_text

FROZEN = Path(__file__).resolve().parents[1] / "tests" / "frozen" / "same_bits.txt"
# name: rows, features, nonzeros a row. Threads sweep these in three ways: by copies of w, by parts of it, by marks
# (docs/threads.md). Tall data begin with a sample.
SHAPES = {"wide": (3000, 2000, 40), "long": (800, 2000, 200), "tall": (20000, 12, 6)}
BY_BLAS = {"ipm"}  # whose bits depend on the processor (docs/kernel.md)
CLASSES, THREADS = (2, 4), (1, 3)
PASSES, TOLERANCE = {"memory": 60, "text": 60, "disk": 10}, 1e-3
# Larger than the weights and the smallest groups, smaller than the rows.
SMALL = {"wide": 700 << 10, "long": 900 << 10, "tall": 900 << 10}


def numbers(seed: int):
    """64-bit numbers that no library decides (splitmix64)."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        z = seed
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


def write_data(path: Path, shape: str, n_classes: int) -> None:
    n_rows, n_features, n_nonzeros = SHAPES[shape]
    supply = numbers(n_classes)
    with open(path, "w") as file:
        for _ in range(n_rows):
            values, scores = {}, [0] * n_classes
            for _ in range(n_nonzeros):
                number = next(supply)
                feature, value = number % n_features, 1 + (number >> 32) % 15
                values[feature] = value
                scores[feature % n_classes] += value
            label = scores.index(max(scores)) if next(supply) % 8 else next(supply) % n_classes
            pairs = " ".join(f"{feature + 1}:{values[feature] / 16}" for feature in sorted(values))
            file.write(f"{label} {pairs}\n")


def cases():
    """(name, shape, classes, place, options) of every case."""
    for solver in (solver for name, solver in solvers.SOLVERS.items() if name not in BY_BLAS):
        for place in ("memory", "disk", "text"):
            for shape in SHAPES:
                for n_classes in CLASSES:
                    for threads in THREADS:
                        for more in ({}, {"exact": True}) if solver.name == "shrink" else ({},):
                            how = f"{n_classes} classes, {threads} threads"
                            name = " ".join([solver.name, *more, place, shape, how])
                            yield name, shape, n_classes, place, {
                                "solver": solver.name, "threads": threads, "max_passes": PASSES[place], **more}


def digest(path: str, memory: int, options: dict) -> str:
    config = train.Config(bias=1.0, tolerance=TOLERANCE, memory=memory, **options)
    with train.open_data([path], config) as data:
        outcome = train.run(train.start(data, config), config)
    sums = hashlib.sha256(outcome.w.tobytes() + repr(float(outcome.stats.dual)).encode())
    return f"{sums.hexdigest()[:16]}, {data.where}, {outcome.stats.number} passes"


def main(arguments) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the list anew")
    parser.add_argument("--only", default="", help="cases whose names hold these words")
    options = parser.parse_args(arguments)
    frozen = dict(line.split(": ", 1) for line in FROZEN.read_text().splitlines()) if FROZEN.exists() else {}
    found, differ = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, shape, n_classes, place, chosen in cases():
            if not all(word in name for word in options.only.split()):
                continue
            text, blocks = (Path(folder, f"{shape}.{n_classes}.{kind}") for kind in ("txt", "blocks"))
            if not text.exists():
                write_data(text, shape, n_classes)
                split_text([str(text)], str(blocks), n_blocks=8, seed=1, zero_based=False, precision="float32",
                           force=False, threads=1, memory=1 << 30)  # fmt: skip
            memory = SMALL[shape] if place == "disk" else 1 << 30
            found[name] = digest(str(text if place == "text" else blocks), memory, chosen)
            if frozen.get(name) != found[name]:
                differ += 1
                print(f"{name}: {found[name]}, {frozen.get(name, 'nothing')} before", flush=True)
    if options.write:
        kept = frozen if options.only else {}
        FROZEN.write_text("".join(f"{name}: {bits}\n" for name, bits in {**kept, **found}.items()))
    print(f"{len(found)} cases, {differ} differ", file=sys.stderr)
    return int(bool(differ) and not options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
