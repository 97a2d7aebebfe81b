"""What the benchmarks share: child processes and what they cost, LIBLINEAR's programs, data files, a plain table.

Nothing here or at the top of a benchmark imports numpy: a child's peak memory, as the kernel counts it, starts at the
resident size of the process that started it.
"""

import argparse
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).resolve().parent
MB = 1 << 20
INTERPRETER = 64 * MB
# As users have it: a module that is compiled again in every run costs llsvm-split up to 20 ms.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Command(NamedTuple):
    """What to run, and how it must end: with this exit code, and these words among its errors.

    prepare: called before the clock starts; own_clock: gives the seconds that count, from what the command wrote.
    """

    words: list[str]
    exit_code: int = 0
    complaint: str = ""
    prepare: Callable[[], None] | None = None
    own_clock: Callable[[str], float] | None = None


class Run(NamedTuple):
    """What a child took, in seconds (cpu: user and system, all threads) and bytes, what it said, and when it ended.

    counted: the seconds by the command's own clock, or wall.
    """

    wall: float
    cpu: float
    peak: int
    output: str
    errors: str
    ended: float
    counted: float


class Runs(list):
    """The runs of one command."""

    @property
    def wall(self) -> float:
        return statistics.median(run.wall for run in self)

    @property
    def counted(self) -> float:
        return statistics.median(run.counted for run in self)

    @property
    def cpu(self) -> float:
        return statistics.median(run.cpu for run in self)

    @property
    def spread(self) -> str:
        return f"{min(run.wall for run in self):.2f}-{max(run.wall for run in self):.2f}"

    @property
    def peak(self) -> str:
        """The largest in MB; below our own size, no more than that is known."""
        peak, own = max(run.peak for run in self), _bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return f"{peak / MB:.0f}" if peak > own else f"<{own / MB:.0f}"


def _bytes(maxrss: int) -> int:
    return maxrss * (1 if sys.platform == "darwin" else 1024)


def run(command: Command) -> Run:
    """Runs a command to its end; if that is not the expected one, it is the benchmark's too."""
    if command.prepare:
        command.prepare()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        child = subprocess.Popen(command.words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                                 env=ENVIRONMENT)
        _, status, usage = os.wait4(child.pid, 0)
        wall, ended = time.perf_counter() - began, time.time()
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        cpu, peak = usage.ru_utime + usage.ru_stime, _bytes(usage.ru_maxrss)
        result = Run(wall, cpu, peak, output.read(), errors.read(), ended, wall)
    if child.returncode != command.exit_code or command.complaint not in result.errors:
        sys.exit(f"{' '.join(command.words)}\nended with exit code {child.returncode}: {result.errors}")
    return result._replace(counted=command.own_clock(result.output)) if command.own_clock else result


def interleave(commands: dict[str, Command], repeat: int, patience: float = float("inf"),
               known: dict[str, Runs] | None = None) -> dict[str, Runs]:  # fmt: skip
    """Runs all commands in turn, every other round backwards, so that a slow spell of the machine hits them all.

    Runs known already count; what has taken so many seconds of patience in all is not run again.
    """
    runs = {name: Runs((known or {}).get(name, [])) for name in commands}
    for number in range(repeat):
        for name in list(commands)[:: 1 if number % 2 == 0 else -1]:
            if len(runs[name]) <= number and sum(past.wall for past in runs[name]) < patience:
                runs[name].append(run(commands[name]))
    return runs


def loosest(ladder: list[str], primal: Callable[[str], float], goal: float, who: str) -> tuple[str, float]:
    """The first -e of a ladder, loose to tight, whose primal objective reaches the goal, and that objective."""
    for tolerance in ladder:
        if (reached := primal(tolerance)) <= goal:
            return tolerance, reached
    raise SystemExit(f"{who} does not reach the primal objective {goal} even with -e {tolerance}: {reached}")


def forget(path: Path) -> None:
    """Takes a file, or the files of a folder, out of the page cache."""
    for file_path in path.iterdir() if path.is_dir() else [path]:
        with open(file_path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_once(path: Path) -> None:
    """Reads a file, or the files of a folder, from beginning to end."""
    for file_path in path.iterdir() if path.is_dir() else [path]:
        with open(file_path, "rb", buffering=0) as file:
            while file.read(MB):
                pass


class Liblinear(NamedTuple):
    """How its two programs are started, and what they are."""

    name: str
    train: list[str]
    predict: list[str]


def find_liblinear(which: str) -> Liblinear:
    """LIBLINEAR's own programs from PATH, or the wheel: which is 'programs', 'wheel' or 'auto' (the first found)."""
    for prefix in ("liblinear-", "") if which != "wheel" else ():
        train, predict = (shutil.which(prefix + name) for name in ("train", "predict"))
        if train and predict and _is_liblinear(train, "training_set_file") and _is_liblinear(predict, "model_file"):
            return Liblinear(f"LIBLINEAR's own programs ({train})", [train], [predict])
    if which == "programs":
        sys.exit("LIBLINEAR's programs are not on PATH; Debian has them in liblinear-tools")
    wheel = [sys.executable, __file__]
    note = "the wheel liblinear-official, whose text reader is Python: no measure of LIBLINEAR's own programs"
    return Liblinear(note, [*wheel, "train"], [*wheel, "predict"])


def is_installed(peer: Liblinear) -> bool:
    """Whether its programs were found, or else the wheel."""
    return peer.train[0] != sys.executable or importlib.util.find_spec("liblinear") is not None


def loading(peer: Liblinear, path: Path) -> Command:
    """LIBLINEAR's loading alone: it checks its parameters once the data are loaded, and refuses this C."""
    return Command([*peer.train, "-c", "0", str(path), os.devnull], 1, "C <= 0")


def _is_liblinear(program: str, word: str) -> bool:
    """Any program may be called train; LIBLINEAR's, called without arguments, explains itself."""
    try:
        said = subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return "Usage: " in said.stdout and word in said.stdout


def wheel_train(arguments: list[str]) -> None:
    """LIBLINEAR's train, its letters and its order: load, check the parameters, train, save."""
    from liblinear.liblinearutil import save_model, svm_read_problem, train

    *options, data, model = arguments
    y, x = svm_read_problem(data, return_scipy=True)
    try:
        save_model(model, train(y, x, " ".join(options)))
    except ValueError as error:
        sys.exit(f"ERROR: {error}")


def wheel_predict(arguments: list[str]) -> None:
    from liblinear.liblinearutil import load_model, predict, svm_read_problem

    data, model, output = arguments
    y, x = svm_read_problem(data, return_scipy=True)
    labels, _, _ = predict(y, x, load_model(model))
    Path(output).write_text("".join(f"{label:.17g}\n" for label in labels))


def llsvm(program: str, options: argparse.Namespace) -> list[str]:
    """One of our commands, of the same environment as this interpreter if it is there."""
    beside = Path(sys.executable).with_name(program)
    threads = ["--threads", str(options.threads)] if options.threads else []
    return [str(beside) if beside.exists() else program, "--quiet", *threads]


def split(path: Path, target: Path, options: argparse.Namespace, *words: str) -> dict:
    """Makes a block set; returns its manifest."""
    run(Command([*llsvm("llsvm-split", options), "--force", *words, "-o", str(target), str(path)]))
    return json.loads((target / "manifest.json").read_text())


def decoded_bytes(facts: dict) -> int:
    """Of the rows of a manifest, in memory: 8 bytes a nonzero and a row."""
    return 8 * (facts["nonzeros"] + facts["rows"])


def budget(facts: dict, share: float = 0.1) -> int:
    """--memory for this share of the decoded rows, or five vectors of weights, or 2 MB, whichever is most.

    Of more than 64 MB, llsvm sets as much aside for the interpreter (docs/memory.md).
    """
    needed = max(int(share * decoded_bytes(facts)), 40 * facts["features"], 2 * MB)
    return needed if needed <= INTERPRETER else needed + INTERPRETER


def n_blocks(facts: dict, memory: int) -> int:
    """Such that four blocks, decoded, have room beside three vectors of weights."""
    working = memory if memory <= INTERPRETER else memory - INTERPRETER
    return min(4096, -(-4 * decoded_bytes(facts) // (working - 24 * facts["features"])))


def read_log(path: Path) -> list[dict]:
    """The events of a run log."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="LIBSVM text with numeric labels")
    parser.add_argument("--shape", action="append", choices=["text", "dense", "trigram", "few"],
                        help="data made by make_data.py, in a temporary directory; may be repeated")  # fmt: skip
    parser.add_argument("--size", default="300M", help="bytes of each shape (default 300M)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each command (default 3)")
    parser.add_argument("--threads", type=int, help="of llsvm (default: all cores); LIBLINEAR has one")
    add_peer(parser)
    return parser


def add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer", choices=["auto", "programs", "wheel"], default="auto",
                        help="LIBLINEAR's own programs or the wheel (default: what there is)")  # fmt: skip


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    if not options.data and not options.shape:
        parser.error("give data files or --shape")
    if options.repeat < 1:
        parser.error("--repeat starts at 1")
    return options


@contextmanager
def workplace():
    """A temporary directory (TMPDIR is honoured)."""
    with tempfile.TemporaryDirectory(prefix="llsvm-bench-") as folder:
        yield Path(folder)


def data_files(options: argparse.Namespace, folder: Path):
    """The files to measure, one by one, each read once so that it is in the page cache."""
    for path in [*map(Path, options.data), *(make(shape, options.size, folder) for shape in options.shape or [])]:
        read_once(path)
        yield path


def make(shape: str, size: str, folder: Path, *words: str) -> Path:
    path = folder / f"{shape}.txt"
    run(Command([sys.executable, str(SCRIPTS / "make_data.py"), shape, str(path), "--size", size, *words]))
    return path


def n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def print_heading(path: Path, peer: Liblinear, options: argparse.Namespace) -> None:
    print(f"\n{path.name}: {path.stat().st_size / MB:.1f} MB of text, in the page cache. {n_cores()} cores, llsvm on "
          f"{options.threads or 'all'}.\nMedian of {options.repeat}, interleaved. Peer: {peer.name}.")  # fmt: skip


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Columns two spaces apart; the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *rest = (f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}" for i, (cell, width) in
                        enumerate(zip(row, widths, strict=True)))  # fmt: skip
        print("  ".join([first, *rest]), flush=True)


def measure_files(parser, measure) -> None:
    """Calls measure(path, peer, options, folder) for every data file that the options name or ask for."""
    options = parse_options(parser)
    peer = find_liblinear(options.peer)
    with workplace() as folder:
        for path in data_files(options, folder):
            measure(path, peer, options, folder)


if __name__ == "__main__":
    {"train": wheel_train, "predict": wheel_predict}[sys.argv[1]](sys.argv[2:])
