"""Kernel machines beside LIBSVM's svm-train and svm-predict (Debian: libsvm-tools), whole commands, as a table.

    python scripts/bench_kernel.py                        100,000 points of a checkerboard, -g 4 -c 100
    python scripts/bench_kernel.py -g 2 -c 100 TRAIN TEST

Commands are run in turns, the best of --repeat counts. Without svm-train the table has our rows alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OURS = {
    "-s dual": ["-s", "dual"], "-s dual, one thread": ["-s", "dual", "--threads", "1"],
    "-s ipm": ["-s", "ipm"], "-s ipm, one thread": ["-s", "ipm", "--threads", "1"],
}  # fmt: skip
PEER = "svm-train"
SAID = {"gap": r"duality gap = (\S+) \(cert", "rank": r"rank = (\d+)"}


def timed(command) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return time.perf_counter() - began, done.stdout


def accuracy_of(command) -> tuple[float, float]:
    seconds, said = timed(command)
    return seconds, float(re.search(r"Accuracy = ([\d.]+)%", said)[1])


def measure(options, folder: Path, train: str, test: str) -> dict[str, dict]:
    kernel = ["-t", "2", "-g", options.gamma, "-c", options.cost]
    commands = {PEER: ["svm-train", "-q", "-m", "4000", *kernel, train]} if shutil.which("svm-train") else {}
    for name, own in OURS.items():
        if not options.only or options.only in name:
            commands[name] = ["llsvm-train", "-e", options.tolerance, *kernel, *own, train]
    found = {name: {"seconds": float("inf")} for name in commands}
    for _ in range(options.repeat):
        for number, (name, command) in enumerate(commands.items()):
            model = folder / f"model-{number}"
            seconds, said = timed([*command, model])
            row = found[name]
            row["seconds"] = min(row["seconds"], seconds)
            row |= {key: match[1] for key, pattern in SAID.items() if (match := re.search(pattern, said))}
            predict = "svm-predict" if name == PEER else "llsvm-predict"
            seconds, row["accuracy"] = accuracy_of([predict, test, model, folder / f"out-{number}"])
            row["predict"] = min(row.get("predict", float("inf")), seconds)
    return found


def table(found: dict[str, dict]) -> str:
    peer = found.get(PEER)
    heads = "", "seconds", "of svm-train's", "exact gap", "rank", "accuracy", "predicting"
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, row in found.items():
        share = f"{row['seconds'] / peer['seconds']:.2f}" if peer else ""
        lines.append(f"| {name} | {row['seconds']:.2f} | {share} | {row.get('gap', '')} | {row.get('rank', '')} | "
                     f"{row['accuracy']:.2f} % | {row['predict']:.2f} s |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="TRAIN TEST")
    parser.add_argument("-g", "--gamma", default="4")
    parser.add_argument("-c", "--cost", default="100")
    parser.add_argument("-e", "--tolerance", default="1e-3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", default="100K", help="of the checkerboard")
    parser.add_argument("--only", default="", help="ours whose name has these words")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name), options.files
        if not files:
            files = [str(folder / kind) for kind in ("train", "test")]
            for seed, (path, rows) in enumerate(zip(files, (options.rows, "20K"), strict=True)):
                make = [sys.executable, Path(__file__).with_name("make_data.py"), "checkerboard", path]
                subprocess.run([*make, "--rows", rows, "--seed", str(seed)], check=True)
        if len(files) != 2:
            parser.error("TRAIN and TEST are needed, or neither")
        print(f"{os.path.basename(files[0])}, -g {options.gamma} -c {options.cost} -e {options.tolerance}, best of "
              f"{options.repeat}\n\n{table(measure(options, folder, *files))}")


if __name__ == "__main__":
    main()
