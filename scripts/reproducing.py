"""What the scripts that reproduce papers share: data files of any compression, test data, two classes out of many."""

import argparse
import functools
import multiprocessing
import re
import sys
from pathlib import Path
from typing import NamedTuple

import judging
import peers
import trials


class Facts(NamedTuple):
    """What the text holds: features is the largest id, labels are sorted."""

    rows: int
    features: int
    nonzeros: int
    labels: list[str]

    def __str__(self):
        return f"{len(self.labels)} classes, {self.rows} rows, {self.features} features, {self.nonzeros} nonzeros"


def canonical(label):
    """+1, 1 and 1.0 are the same."""
    try:
        return f"{float(label):.17g}"
    except ValueError:
        return label.decode()


def by_value(label):
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def scan(path):
    rows = features = nonzeros = 0
    tokens = set()
    with open(path, "rb") as file:
        for line in file:
            tokens.add(line.split(None, 1)[0])
            front, colon, _ = line.rpartition(b":")
            features = max(features, int(front.rsplit(None, 1)[1])) if colon else features
            nonzeros += line.count(b":")
            rows += 1
    return Facts(rows, features, nonzeros, sorted({canonical(token) for token in tokens}, key=by_value))


# --- text from text


def decompress(path, folder):
    """The path of plain text, which is all that LIBLINEAR reads."""
    from llsvm.compression import FORMATS
    from llsvm.sources import open_sources

    with open(path, "rb") as file:
        front = file.read(max(map(len, FORMATS)))
    if not any(front.startswith(magic) for magic in FORMATS):
        return path
    target, buffer = folder / path.name, memoryview(bytearray(peers.MB))
    [source] = open_sources([str(path)], hashed=False)
    with open(target, "wb") as file:
        while count := source.readinto(buffer):
            file.write(buffer[:count])
    source.close()
    return target


def relabel(path, target, chosen):
    """The chosen class against the rest."""
    with open(path, "rb") as source, open(target, "wb") as file:
        for line in source:
            label, *rest = line.split(None, 1)
            file.write(b" ".join([b"1" if canonical(label) == chosen else b"-1", *rest]).rstrip(b"\n") + b"\n")
    return target


def hold_out(path, folder, every):
    """Two texts, for training and for testing: every so manieth row is in the second."""
    train, test = folder / "held.train", folder / "held.test"
    with open(path, "rb") as source, open(train, "wb") as rest, open(test, "wb") as held:
        for number, line in enumerate(source, 1):
            (rest if number % every else held).write(line)
    return train, test


def find_test(path):
    test = path.with_name(path.name.replace(".train.", ".test."))
    return test if test != path and test.exists() else None


# --- data sets


class Dataset:
    """Training text, test text or None, and both with two classes."""

    def __init__(self, path, options, folder):
        self.options, self.folder, self.name = options, folder, path.name.split(".train.")[0].removesuffix(".txt")
        test = options.test or find_test(path)
        self.train, self.test = decompress(path, folder), test and decompress(test, folder)
        self.prepare()
        self.facts = scan(self.train)

    def prepare(self):
        """Changes what the files give, before it is looked at."""

    accuracy_column = property(lambda self: "accuracy %" if self.test else "accuracy % (training data)")
    two_classes = property(lambda self: len(self.facts.labels) == 2)
    n_threads = property(lambda self: self.options.threads or multiprocessing.cpu_count())

    @functools.cached_property
    def chosen(self):
        labels, wanted = self.facts.labels, self.options.chosen
        if wanted is None:
            return "8" if "8" in labels else labels[-1]
        if canonical(wanted.encode()) not in labels:
            sys.exit(f"--class {wanted}: the labels of {self.name} are {', '.join(labels)}")
        return canonical(wanted.encode())

    @functools.cached_property
    def two_class_text(self):
        return self.train if self._plain else relabel(self.train, self.folder / "two-class", self.chosen)

    @functools.cached_property
    def two_class_test(self):
        """The training text where there is no other."""
        if self._plain or not self.test:
            return self.test or self.two_class_text
        return relabel(self.test, self.folder / "two-class.test", self.chosen)

    @property
    def two_class_name(self):
        return self.name if self._plain else f"{self.name}, class {self.chosen} against the rest"

    @property
    def _plain(self):
        return self.two_classes and all(by_value(label)[0] == 0 for label in self.facts.labels)


class Study(Dataset):
    """Two classes, one C, training runs in processes of their own, and a judge of what they give."""

    def __init__(self, path, options, folder, judge):
        super().__init__(path, options, folder)
        self.judge = judge

    def prepare(self):
        """Test data may be taken from the training data."""
        if not self.test and self.options.hold_out:
            self.train, self.test = hold_out(self.train, self.folder, self.options.hold_out)

    def file(self, name):
        return str(self.folder / re.sub(r"\W+", "-", name))

    def settings(self, **more):
        """Of a run with all the memory that the commands would use, and no bias, as in the papers."""
        return {"C": self.C, "threads": self.n_threads, "memory": self.judge(half_of_memory), **more}

    def worth(self, weights):
        """Objective and accuracy."""
        return self.judge(trials.worth, weights, self.two_class_text, self.two_class_test, self.C)

    @functools.cached_property
    def optimum(self):
        """Objective and accuracy of the exact solver, and its certified dual value."""
        settings = self.settings(solver="dual", tolerance=self.options.reference, max_passes=1_000_000)
        solution = judging.run_apart(trials.solve, self.two_class_text, settings, self.file("optimum"))
        return (*self.worth(solution.weights), solution.dual)


def half_of_memory():
    from llsvm import memory

    return memory.usable() // 2


# --- options


def make_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="LIBSVM text for training, plain or compressed")
    parser.add_argument("--test", type=Path, help="its test data (default: .test. in place of .train. in its name)")
    parser.add_argument("--output", default=".", metavar="DIR", help="where the figures go (default: here)")
    parser.add_argument("--threads", type=int, help="of llsvm (default: all cores); LIBLINEAR has one")
    return parser


def add_class(parser):
    parser.add_argument("--class", dest="chosen", metavar="LABEL",
                        help="of more than two, the one against the rest (default 8, or the last)")  # fmt: skip


def add_two_class_options(parser):
    add_class(parser)
    parser.add_argument("--hold-out", type=int, metavar="N",
                        help="without test data: every N-th row is for testing, not for training")  # fmt: skip
    parser.add_argument("--reference", type=float, default=1e-6, metavar="GAP",
                        help="relative gap at which the optimum is taken as known (default 1e-6)")  # fmt: skip


def add_skip(parser, parts):
    parser.add_argument("--skip", type=lambda text: text.split(","), default=[], metavar="PART,...",
                        help=f"leave out some of {', '.join(parts)}")  # fmt: skip


def parse_options(parser, parts):
    options = parser.parse_args()
    for path in filter(None, [*options.data, options.test]):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    if options.test and len(options.data) > 1:
        parser.error("--test goes with one data file")
    if unknown := set(options.skip) - set(parts):
        parser.error(f"--skip {','.join(sorted(unknown))}: the parts are {', '.join(parts)}")
    return options
