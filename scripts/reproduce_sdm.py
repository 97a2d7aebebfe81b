"""The experiments of the paper on the sequential dual method for many classes (Keerthi and others, KDD 2008).

OVR is `llsvm-train -s dual`, each class against the rest; CS is -s cs, of Crammer and Singer; WW is -s ww, of Weston
and Watkins. Rows as they are in the file and in memory, and a bias that is a feature of value 1 unless --bias
says otherwise: with it mnist has the paper's accuracies, without it 0.3 to 0.5 points less.

tables    Tables 4.2 and 4.3: training and test data together, in random partitions of 60, 20 and 20 % of every class. C
          is the one with the best accuracy on the second part, of equals the smallest; a model of the first two parts
          is tested on the third. Mean and standard deviation over the partitions; p values of Wilcoxon's signed-rank
          test, for which the differences of the partitions are the sample
figure1   CS with and without shrinking and cooling: without, all loops are full ones. Relative difference of the dual
          objective to its optimum after every pass, against the time of training, C = --cost
figure4   the same for WW
figure5   accuracy against the time of training: a point is a run of its own, ended after so many passes, its look at
          all rows at the end included

The optimum is the dual objective of the run with the heuristics; what is nearer to it than its gap is shown at that.
Accuracies are computed from the text by NumPy. Without noise in small data, CS and WW may have the same optimum: where
no row has a loss, they are the same problem.
"""

import functools
import importlib.util
import random
import statistics
from pathlib import Path
from typing import NamedTuple

import judging
import judging_many
import peers
import reproducing
import trials
from figures import Panel, publish

PARTS = ["tables", "figure1", "figure4", "figure5"]
METHODS = {"OVR": "dual", "CS": "cs", "WW": "ww"}
COSTS = [0.01, 0.03, 0.1, 0.3, 1, 3, 10]
STEPS = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]
PASSES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
NEAR = 0.2  # percent of accuracy
PAPER_ACCURACIES = {"news20": ["85.39 ± 0.37", "85.26 ± 0.37", "85.10 ± 0.43"],
                    "sector": ["94.83 ± 0.56", "95.17 ± 0.62", "94.37 ± 0.57"],
                    "mnist": ["91.46 ± 0.23", "92.50 ± 0.20", "91.84 ± 0.21"]}  # fmt: skip
PAPER_DATA = {"news20": "19928 rows, 62061 features", "sector": "9619 rows, 55197 features",
              "mnist": "70000 rows, 779 features"}  # fmt: skip
PAPER_P_VALUES = {"news20": ["0.43", "0.01"], "sector": ["0.01", "0.0039"], "mnist": ["0.002", "0.002"]}


# --- what runs in processes apart


def train_model(path, settings):
    """Trains until the solver stops; returns the model and the outcome."""
    from llsvm import train

    config = train.Config(**settings)
    with train.open_data([str(path)], config) as data:
        outcome = train.run(train.start(data, config), config)
        return judging_many.from_training(data, outcome.w, outcome.bias), outcome


class Tuned(NamedTuple):
    """The C that was chosen, and the accuracy on the third part."""

    C: float
    accuracy: float


def tune(texts, folder, seed, settings, costs):
    """A partition of the texts, and on it, for every method, what tuning gives."""
    train, validation, both, test = partition(texts, folder, seed)

    def accuracy(rows, judged, solver, C):
        model, _ = train_model(rows, {**settings, "solver": solver, "C": C})
        return judging_many.accuracy(judged, model)

    tuned = {}
    for name, solver in METHODS.items():
        best = max(sorted(costs), key=lambda C, solver=solver: accuracy(train, validation, solver, C))
        tuned[name] = Tuned(best, accuracy(both, test, solver, best))
    return tuned


def partition(texts, folder, seed):
    """Texts of 60 and of 20 % of the rows of every class, of both together, and of the other 20 %."""
    classes, parts, order = {}, ([], [], []), random.Random(seed)
    for text in texts:
        with open(text, "rb") as file:
            for line in file:
                rows = classes.setdefault(reproducing.canonical(line.split(None, 1)[0]), [])
                rows.append(line.rstrip(b"\n") + b"\n")
    for rows in classes.values():
        order.shuffle(rows)
        cuts = [0, round(0.6 * len(rows)), round(0.8 * len(rows)), len(rows)]
        for part, start, end in zip(parts, cuts, cuts[1:], strict=False):
            part += rows[start:end]
    train, validation, test = parts
    targets = [Path(folder, name) for name in ("train", "validation", "both", "test")]
    for target, rows in zip(targets, (train, validation, train + validation, test), strict=True):
        order.shuffle(rows)
        target.write_bytes(b"".join(rows))
    return targets


class Pass(NamedTuple):
    """After so many seconds of training: the dual objective, and the relative gap if it is certified."""

    seconds: float
    dual: float
    gap: float | None


def follow_dual(path, settings, most_seconds):
    """What every pass gives, until the tolerance or the time is reached."""
    from llsvm import train

    config, passes = train.Config(**settings), []
    with train.open_data([str(path)], config) as data:
        solver = train.start(data, config)
        try:
            for stats in solver.passes():
                passes.append(Pass(stats.compute + stats.wait, stats.dual, stats.gap if stats.certified else None))
                if stats.finished or stats.compute >= most_seconds:
                    return passes
        finally:
            solver.close()


def follow_full_loops(*arguments):
    """As follow_dual, without shrinking and cooling."""
    from llsvm.solvers import multiclass

    replaced = trials.Replaced(multiclass.Loops, "active", lambda *_: None)
    return replaced.check(follow_dual(*arguments))


def follow_accuracy(path, test, settings, most_seconds):
    """Runs of more and more passes, until one reaches the tolerance or the time: passes, seconds, accuracy of each."""
    points = []
    for most_passes in PASSES:
        model, outcome = train_model(path, {**settings, "max_passes": most_passes})
        points.append((outcome.stats.number, outcome.stats.seconds, judging_many.accuracy(test, model)))
        if outcome.reason == "converged" or outcome.stats.seconds >= most_seconds:
            break
    return points


# --- the tables


class ManyStudy(reproducing.Dataset):
    """One data set of many classes."""

    def settings(self, **more):
        return {"tolerance": self.options.tolerance, "bias": self.options.bias, "threads": self.n_threads,
                "memory": self.memory, "C": self.options.cost, "max_passes": 1_000_000, **more}  # fmt: skip

    @functools.cached_property
    def memory(self):
        return judging.run_apart(reproducing.half_of_memory)

    def target(self, number):
        return Path(self.options.output, f"sdm-figure{number}-{self.name}")

    def of_paper(self, numbers):
        """Those of the data set whose name this one's begins with, if any."""
        return next((row for name, row in numbers.items() if self.name.lower().startswith(name)), None)


def tables(study):
    options, texts = study.options, [text for text in (study.train, study.test) if text]
    found = [judging.run_apart(tune, texts, study.folder, seed, study.settings(), options.costs)
             for seed in range(options.seed, options.seed + options.partitions)]  # fmt: skip
    accuracies = {name: [tuned[name].accuracy for tuned in found] for name in METHODS}
    costs = [" ".join(f"{tuned[name].C:g}" for tuned in found) for name in METHODS]
    print_with_paper(study, ["Table 4.2: accuracy %", *METHODS], list(map(mean, accuracies.values())), PAPER_ACCURACIES,
                     [["C chosen", *costs]])  # fmt: skip
    print(f"{options.partitions} partitions of {sum(reproducing.scan(text).rows for text in texts)} rows, C of "
          f"{', '.join(f'{C:g}' for C in options.costs)}")  # fmt: skip
    print(f"the paper's data: {study.of_paper(PAPER_DATA) or 'others'}\n")
    values = [p_value(accuracies["OVR"], accuracies[name]) for name in ("CS", "WW")]
    print_with_paper(study, ["Table 4.3: p values", "OVR-CS", "OVR-WW"], values, PAPER_P_VALUES)
    print(f"no p value of {options.partitions} partitions can be below {min(1, 2 / 2**options.partitions):.2g}")


def print_with_paper(study, header, ours, papers, more=()):
    paper = study.of_paper(papers)
    peers.print_table(header, [["ours", *ours], *([["paper", *paper]] if paper else []), *more])


def mean(values):
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0:.2f}"


def p_value(these, those):
    """A dash where scipy is not installed, or nothing differs."""
    if these == those or not importlib.util.find_spec("scipy"):
        return "-"
    return f"{judging.run_apart(wilcoxon, these, those):.2g}"


def wilcoxon(these, those):
    from scipy.stats import wilcoxon

    return float(wilcoxon(these, those).pvalue)


# --- the figures


def heuristics(study, number, name):
    settings = study.settings(solver=METHODS[name], tolerance=study.options.reference)
    arguments = study.train, settings, study.options.seconds
    runs = {f"{name}, shrinking and cooling": judging.run_apart(follow_dual, *arguments),
            f"{name}, full loops alone": judging.run_apart(follow_full_loops, *arguments)}  # fmt: skip
    reference, *_ = (passes[-1] for passes in runs.values())
    curves = {name: [(one.seconds, max(1 - one.dual / reference.dual, reference.gap or 0)) for one in passes]
              for name, passes in runs.items()}  # fmt: skip
    rows = []
    for name, points in curves.items():
        reached = [[seconds for seconds, difference in points if difference <= step] for step in STEPS]
        reached = [f"{seconds[0]:.2f}" if seconds else "-" for seconds in reached]
        rows.append([name, str(len(points)), *reached, f"{points[-1][0]:.2f}", f"{runs[name][-1].dual:.9g}"])
    header = [f"Figure {number}", "passes", *(f"to {step:g}" for step in STEPS), "total", "dual"]
    peers.print_table(header, rows)
    print(f"seconds of training until the dual is so near to its optimum, which is known to {reference.gap or 1:.1e}")
    panel = Panel(curves, "training time, seconds", "relative difference of the dual to its optimum", study.name, "xy")
    points = [[name, f"{seconds:.5f}", f"{difference:.4e}"] for name in curves for seconds, difference in curves[name]]
    publish(study.target(number), [panel], ["curve", "seconds", "difference"], points)


def figure5(study):
    rows, curves, listed, judged = [], {}, [], study.test or study.train
    for name, solver in METHODS.items():
        arguments = study.train, judged, study.settings(solver=solver), study.options.seconds
        points = judging.run_apart(follow_accuracy, *arguments)
        curves[name] = [(seconds, accuracy) for _, seconds, accuracy in points]
        (*_, (passes, total, last)), accuracies = points, [accuracy for *_, accuracy in points]
        steady = next(seconds for _, seconds, accuracy in points if abs(accuracy - last) <= NEAR)
        rows.append([name, str(passes), f"{accuracies[0]:.2f}", f"{max(accuracies):.2f}", f"{last:.2f}",
                     f"{steady:.2f}", f"{total:.2f}"])  # fmt: skip
        listed += [[name, str(count), f"{seconds:.5f}", f"{accuracy:.4f}"] for count, seconds, accuracy in points]
    header = ["passes", "first", "best", "last", f"seconds to {NEAR} % of it", "in all"]
    peers.print_table([f"Figure 5: {study.accuracy_column}", *header], rows)
    panel = Panel(curves, "training time, seconds", study.accuracy_column, study.name, "x")
    publish(study.target(5), [panel], ["curve", "passes", "seconds", study.accuracy_column], listed)


def reproduce(study):
    options = study.options
    print(f"\n{study.name}: {study.facts}. Bias {options.bias:g}, relative gap {options.tolerance:g}, llsvm on "
          f"{study.n_threads} threads. Figures: C = {options.cost:g}.")  # fmt: skip
    parts = {"tables": lambda: tables(study), "figure1": lambda: heuristics(study, 1, "CS"),
             "figure4": lambda: heuristics(study, 4, "WW"), "figure5": lambda: figure5(study)}  # fmt: skip
    for name, part in parts.items():
        if name not in options.skip:
            print()
            part()


def parse_options():
    parser = reproducing.make_parser(__doc__)
    reproducing.add_skip(parser, PARTS)
    parser.add_argument("--partitions", type=int, default=10, metavar="R", help="of the tables (default 10)")
    parser.add_argument("--costs", type=lambda text: [float(word) for word in text.split(",")], default=COSTS,
                        metavar="C,...", help="of the tables (default 0.01,0.03,0.1,0.3,1,3,10)")  # fmt: skip
    parser.add_argument("-e", "--tolerance", type=float, default=1e-2, help="relative gap of models (default 1e-2)")
    parser.add_argument("--bias", type=float, default=1.0, help="as -B of llsvm-train; negative: none (default 1)")
    parser.add_argument("--cost", type=float, default=1.0, help="C of the figures (default 1)")
    parser.add_argument("--reference", type=float, default=1e-6, metavar="GAP",
                        help="relative gap at which Figures 1 and 4 end (default 1e-6)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=300, help="of a curve, at most (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the first partition (default 1)")
    options = reproducing.parse_options(parser, PARTS)
    if options.partitions < 1 or min(options.costs) <= 0:
        parser.error("--partitions starts at 1, and --costs above 0")
    return options


def main():
    options = parse_options()
    for path in options.data:
        with peers.workplace() as folder:
            reproduce(ManyStudy(path, options, folder))


if __name__ == "__main__":
    main()
