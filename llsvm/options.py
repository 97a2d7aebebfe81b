"""The options of training, a row each: the command line, the checks, the log and the model are made from them.

NumPy is not imported, which takes longer to load than --help should take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from llsvm.core import UsageError, quoted
from llsvm.memory import Budget, parse_budget, usable, usable_cores


@dataclass(frozen=True)
class Kind:
    """What a value may be. convert: text to a value; `unread` says where it cannot (ValueError). is_right: of a value;
    `needed` says where it is not. at_once: text of a wrong value is refused like text of none. word: what 0 means."""

    convert: Callable[[Any], Any]
    is_right: Callable[[Any], bool]
    needed: str
    unread: str = ""
    metavar: str | None = None
    range: str = ""
    at_once: bool = False
    word: str = ""


def whole(low: int, high: int | None = None) -> Kind:
    most, needed = (high, f"to {high}") if high else (float("inf"), "up")
    return Kind(int, lambda value: isinstance(value, Integral) and low <= value <= most,
                f"a number from {low} {needed} is needed", "a whole number is needed", "INTEGER RANGE",
                f"{low}<=x<={high}" if high else f"x>={low}", at_once=True)


def real(low: float, high: float, needed: str) -> Kind:
    return Kind(float, lambda value: isinstance(value, Real) and low <= value <= high, f"{needed} is needed",
                "a number is needed", "FLOAT")


def choice(*words: str) -> Kind:
    return Kind(str, words.__contains__, f"one of {', '.join(map(repr, words))} is needed", "", f"[{'|'.join(words)}]",
                at_once=True)


def count(word: str) -> Kind:
    """A number from 1 up, or 0 for this word. Other text stays as it is, which is wrong."""
    return Kind(lambda text: 0 if text == word else int(text) if text.isdecimal() and text.strip("0") else text,
                lambda value: value is None or isinstance(value, Integral) and 0 <= value < 2**31,
                f"a number from 1 up, or {word}, is needed", metavar=f"N|{word}", word=word)


def _bias(text: str) -> float | str | None:
    """None for R. Text that is no number stays as it is, which is wrong."""
    try:
        return None if text.upper() == "R" else value if abs(value := float(text)) < float("inf") else text
    except ValueError:
        return text


def _is_gamma(value) -> bool:
    return value is None or POSITIVE.is_right(value)


def _weights(pairs: tuple[tuple[str, float], ...]) -> dict[str, float]:
    from llsvm.text import canonical_label

    return {canonical_label(label.encode("utf-8", "surrogateescape")): weight for label, weight in pairs}


LARGEST_BIAS = 3.4e38  # a row with it is as long as a row may be (reader.LARGEST_NORM)
COST = real(1e-300, 1e300, "a number between 1e-300 and 1e300")
POSITIVE = real(5e-324, sys.float_info.max, "a positive number")
BIAS = Kind(_bias, lambda value: value is None or isinstance(value, Real) and abs(value) < float("inf"),
            "a number or R is needed")
FOLDS = Kind(int, lambda value: isinstance(value, Integral) and (value == 0 or 2 <= value <= 1000),
             "a number from 2 to 1000 is needed", "a whole number is needed", "N", at_once=True)
WEIGHTS = Kind(_weights, lambda value: all(map(POSITIVE.is_right, value.values())), "positive numbers are needed")
SIZE = Kind(parse_budget, lambda value: value > 0, "a number of bytes is needed")


@dataclass(frozen=True)
class Option:
    """words: as it is typed, "-c --cost"; kind: None for a flag; help: none hides it; shown: the default in words.

    solvers: that have it, none for all of them; lack: what the others do instead. default_of: of solvers that differ;
    unsaid: finds the default of the command line, where it depends on the machine. of_text: says how text is read.
    logged: as it is, in the first line and the log; in_model: in the model.
    """

    default: Any
    words: str
    kind: Kind | None
    help: str = ""
    metavar: str | None = None
    shown: str | None = None
    solvers: tuple[str, ...] = ()
    lack: str = ""
    default_of: dict[str, Any] = field(default_factory=dict)
    unsaid: Callable[[], Any] | None = None
    of_text: bool = False
    logged: bool = False
    in_model: bool = False

    def word(self, value=None) -> str:
        """What to call it by; of a pair of flags, the one for this value."""
        yes, _, no = self.words.split()[0].partition("/")
        return no if no and not value else yes


def _option(default, *row, **more):
    default, made = (default(), {"default_factory": default}) if callable(default) else (default, {"default": default})
    return field(**made, metadata={"option": Option(default, *row, **more)})


@dataclass(frozen=True)
class Config:
    """Everything the user decided; UsageError where it does not fit together. bias: -1 none, None the largest row norm;
    weights: label -> factor of C; inner, batch: 0 for the word; inner: None not said; said: by name, whatever value."""

    solver: str = _option(
        "dual", "-s --solver", Kind(str, lambda value: isinstance(value, str), "a name is needed"),
        "dual (LIBLINEAR's 3), dual-l2 (1, squared hinge loss), block (the block minimisation paper), shrink (the "
        "LLSVM paper: one pass over the text), pegasos (stochastic sub-gradient descent), stream (StreamSVM: one pass, "
        "the smallest ball), cs (4, Crammer-Singer), ww (Weston-Watkins).", "SOLVER")
    C: float = _option(1.0, "-c --cost", COST, "C, the price of a margin violation.", in_model=True)
    tolerance: float = _option(
        1e-3, "-e --tolerance", POSITIVE, "Stop at this relative duality gap (certified); shrink: at this relative "
        "change of the dual; pegasos: where five passes improve the primal by no more.",
        shown="(1e-3; shrink: 0.01)", default_of={"shrink": 1e-2})
    bias: float | None = _option(
        -1.0, "-B --bias", BIAS, "A bias term of this size; R: the largest row norm; negative: none.", "NUMBER|R", "-1")
    free_bias: bool = _option(
        False, "-R", None, "-s ipm: a bias that is not regularised, as LIBSVM's; kernel machines have it "
        "unless -B is said.", logged=True, in_model=True, solvers=("ipm",), lack="regularises its bias")
    weights: dict[str, float] = _option(dict, "--weight", WEIGHTS, in_model=True)
    balanced: bool = _option(False, "--balanced", None, in_model=True)
    seed: int = _option(1, "--seed", whole(0, 2**31 - 1), "Order of the visits.", in_model=True)
    max_passes: int = _option(10000, "--max-passes", whole(1), "Stop after as many.", logged=True)
    time_limit: float = _option(
        float("inf"), "--time-limit", POSITIVE, "Stop where it is over, within a pass too, counted from the start of "
        "training.", "SECONDS", "", logged=True)
    inner: int | None = _option(
        None, "--inner", count("auto"), "Sweeps: of a block (-s block), or auto, until LIBLINEAR's condition holds in "
        "it; of a sub-problem (-s shrink).", shown="1; shrink: 12", logged=True,
        solvers=("block", "shrink"), lack="has no inner sweeps")
    exact: bool = _option(
        False, "--exact", None, "-s shrink: look at all rows again and again, until the gap is certified.",
        solvers=("shrink",), lack="has no exact variant")
    folds: int = _option(
        0, "-v --folds", FOLDS, "Cross-validation in so many folds, from one read of the data: prints the accuracy; "
        "with one argument, DATA, no model is written.", "N", "")
    search: bool = _option(
        False, "-C --search", None, "Cross-validation (-v 5) for one C after the other, from -c or a very small one "
        "up; with MODEL, trains with the best.")
    metric: str = _option(
        "accuracy", "--metric", choice("accuracy", "balanced", "f1"), "What -C looks for: accuracy, its mean over the "
        "labels, or the mean of their F1.")
    select: str = _option("min", "--select", choice("min", "1se"), "-C: the best, or the smallest C within one "
                          "standard error of it.")
    certify: bool = _option(
        True, "--certify/--no-certify", None, "-s shrink, stream: read the rows once more to certify the result, where "
        "that is possible; pegasos: look at every row once more a pass.",
        solvers=("shrink", "pegasos", "stream"), lack="stops by its certificate")
    batch: int = _option(
        1, "--batch", count("block"), "-s pegasos: rows a step, or block, one step a block of the set.", logged=True,
        solvers=("pegasos",), lack="makes no steps of batches")
    init: str = _option("zero", "--init", choice("zero", "random"), "-s pegasos: where w begins.", logged=True,
                        solvers=("pegasos",), lack="begins at w = 0")
    hold_t: bool = _option(
        False, "--hold-t", None, "-s pegasos: a step in which no row has a loss does not make later ones smaller.",
        logged=True, solvers=("pegasos",), lack="has no t")
    average: bool = _option(
        True, "--average/--no-average", None, "-s pegasos: the average of w over the later passes, scaled as is best, "
        "or the last w.", shown="average", logged=True, solvers=("pegasos",), lack="averages nothing")
    lookahead: int = _option(
        10, "--lookahead", whole(1, 1000), "-s stream: rows outside the ball that are enclosed together.", "N",
        logged=True, solvers=("stream",), lack="encloses nothing")
    kernel: int = _option(
        0, "-t --kernel", whole(0, 3), "0 linear, 1 polynomial (gamma u.v + coef0)^degree, 2 RBF exp(-gamma |u - v|^2) "
        "as LIBSVM has them: rows are mapped to --rank numbers each, on which any solver trains.", shown="0")
    gamma: float | None = _option(None, "-g --gamma", replace(POSITIVE, is_right=_is_gamma), "-t 1, 2: gamma.",
                                  shown="1 / features")
    degree: int = _option(3, "-d --degree", whole(1, 100), "-t 1: degree.")
    coef0: float = _option(0.0, "-r --coef0", real(0, 1e300, "a number from 0 up"), "-t 1: coef0.",
                           shown="0")
    rank: int = _option(
        0, "--rank", count("auto"), "-t 1, 2: numbers by row; auto: as many as -e takes, the gap being that to the "
        "exact kernel machine.", shown="auto")
    coarse: int = _option(
        0, "--coarse", replace(whole(0), range=""), "-s ipm: -t 1, 2: first 20 iterations with so many pivots, whose "
        "alphas the others begin from.", "P", "", solvers=("ipm",), lack="has no coarse solution to begin from")
    pivots: str = _option(
        "random", "--pivots", choice("random", "greedy", "dual"), "-t 1, 2: how the rows that others are mapped by are "
        "chosen: at random by what is left of them, the most first (the paper's), or half of them by a first solution.")
    zero_based: bool = _option(False, "--zero-based", None, "Feature ids in the text start at 0.", of_text=True)
    precision: str = _option("float32", "--precision", choice("float32", "float64"), "How values of text are stored.",
                             of_text=True)
    many_labels: bool = _option(
        False, "--many-labels", None, "Accept more than 100 labels with fewer than two rows for each on average.")
    memory: int = _option(
        1 << 30, "--memory", SIZE, "Memory for the whole process, e.g. 300M or 2G.", "SIZE", "half of what it may use",
        unsaid=lambda: usable() // 2)
    threads: int = _option(1, "--threads", whole(1, 256), "Threads to use.", shown="(all cores it may use)",
                           unsaid=usable_cores, in_model=True)
    said: frozenset[str] = frozenset()

    def __post_init__(self):
        solver = self.method
        for name, option in self.given().items():
            value = getattr(self, name)
            if option.kind and not option.kind.is_right(value):
                shown = f"{value:g}" if isinstance(value, float) else value
                raise UsageError(f"{option.word()} {shown}: {option.kind.needed}")
            if option.solvers and solver.name not in option.solvers:
                word, others = option.word(value), " and -s ".join(option.solvers)
                lack = "is exact anyway" if name == "exact" and solver.is_exact else option.lack
                raise UsageError(f"{word}: -s {solver.name} {lack}", f"{word} goes with -s {others}")
        for label, weight in self.weights.items():
            if not COST.is_right(weight * self.C):
                raise UsageError(f"-w{quoted(label)} {weight:g}: the C of this label, {weight:g} times {self.C:g}, "
                                 "must be between 1e-300 and 1e300")
        if self.bias is not None and self.bias > LARGEST_BIAS:
            raise UsageError(f"-B {self.bias:g}: a number up to {LARGEST_BIAS:g} is needed", "-B 1 is usual")
        if self.free_bias and self.bias not in (-1.0, 1.0):
            raise UsageError(f"-R: a bias that is not regularised has no size, as -B {self.bias} says", "leave out -B")
        if self.inner == 0 and solver.once:
            raise UsageError(f"--inner auto: -s {solver.name} needs a number", "--inner auto goes with -s block")
        if self.measure == type(solver).measure and self.tolerance >= 1:
            raise UsageError(f"-e {self.tolerance:g}: a relative duality gap of 1 or more says nothing",
                             "-e 1e-3 is the default; 0.1 is loose")
        if self.exact and not self.certify:
            raise UsageError("--no-certify: --exact stops by its certificate", "leave out one of the two")
        self._check_kernel()
        self._check_folds()

    def _check_folds(self) -> None:
        solver, word = self.method, "-C" if self.search else "-v"
        if self.search and not self.folds:
            object.__setattr__(self, "folds", 5)  # as LIBLINEAR
        for option in (OPTIONS[name] for name in ("metric", "select") if name in self.given() and not self.folds):
            raise UsageError(f"{option.word()}: nothing is validated", f"{option.word()} goes with -v and -C")
        if self.folds and self.kernel:
            raise UsageError(f"{word}: -t {self.kernel} has no cross-validation", f"{word} goes with linear kernels")
        if self.folds and (solver.streams or solver.on_disk is None or solver.once and not self.exact):
            raise UsageError(f"{word}: -s {solver.name} has no cross-validation",
                             f"{word} goes with -s dual and dual-l2")
        if self.search and (solver.streams or not solver.in_memory):
            raise UsageError(f"-C: -s {solver.name} has no search for C", "-C goes with -s dual and dual-l2")

    def _check_kernel(self) -> None:
        if self.kernel == 3:
            raise UsageError("-t 3: the sigmoid is no kernel, as it is not positive semidefinite: there is no optimum "
                             "to be certified", "-t 2 is the usual choice")
        for name, option in self.given().items():
            if self.kernel not in OF_KERNELS.get(name, (self.kernel,)):
                kinds = " and ".join(f"-t {kind}" for kind in OF_KERNELS[name] if kind)
                raise UsageError(f"{option.word()}: -t {self.kernel} has none", f"{option.word()} goes with {kinds}")
        if self.kernel and self.method.name in ("block", "stream"):
            raise UsageError(f"-t {self.kernel}: -s {self.method.name} is about rows as they are read",
                             "-s dual trains kernel machines")

    @property
    def method(self):
        """The row of solvers.SOLVERS."""
        from llsvm import solvers  # and NumPy with it

        return solvers.find(self.solver)

    @property
    def budget(self) -> Budget:
        """All that --memory allows, of which nothing is taken."""
        return Budget(self.memory)

    @property
    def measure(self) -> str:
        """What the tolerance is of."""
        return type(self.method).measure if self.exact else self.method.measure

    def given(self) -> dict[str, Option]:
        """The options that were said by name, or have another value than the default."""
        return {name: option for name, option in OPTIONS.items()
                if name in self.said or getattr(self, name) != option.default}  # fmt: skip

    def logged(self) -> dict[str, Any]:
        """What stands in the first line and in the log as it is: options that this solver has, unless without end."""
        values, name_of_solver = {}, self.method.name
        for name, option in OPTIONS.items():
            value, has_it = getattr(self, name), name_of_solver in (option.solvers or [name_of_solver])
            if option.logged and has_it and value not in (None, float("inf")):
                word = option.kind and option.kind.word
                values[name] = word if word and value == 0 else value
        return values


OPTIONS: dict[str, Option] = {entry.name: entry.metadata["option"] for entry in fields(Config) if entry.metadata}


# Options that only these kernels have.
OF_KERNELS = {"kernel": (0, 1, 2), "gamma": (1, 2), "degree": (1,), "coef0": (1,), "rank": (1, 2), "coarse": (1, 2),
              "pivots": (1, 2)}  # fmt: skip


def refuse_text_options(config: Config, path: str) -> None:
    """Refuses options that say how to read text, where there is none."""
    for name in (option.word() for option in config.given().values() if option.of_text):
        raise UsageError(f"{name}: {path} is a block set, whose ids and values are stored",
                         f"{name} goes with text, and with llsvm-split")
