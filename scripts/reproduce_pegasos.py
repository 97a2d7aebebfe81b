"""The experiments of the overview of Pegasos (Rupnik, SiKDD 2008), section 4, on data files of one's own.

Its objective is f(w) = lambda/2 |w|^2 + 1/l sum_i max(0, 1 - y_i w.x_i), our own divided by C l; C = 1/(lambda l).
An iteration is one step with k rows; a pass over the data has l/k of them. All objectives and errors are recomputed
from the text by NumPy; no bias; w is the last one (--no-average), as in the paper.

figure2  the objective by iteration from several random starts (--init random), and the optimum (-s dual)
figure3  the test error by iteration, and that of the exact solver
figure4  the objective for several k, the number of rows seen, kT, being fixed, with and without --hold-t; kT is 1, 4
         and 16 passes (--passes); medians over the seeds

The paper's data are the first 700,000 documents of RCV1 for training, the other 104,414 for testing, class CCAT.
"""

import functools
import statistics
from pathlib import Path

import judging
import peers
import reproducing
import trials
from figures import Panel, publish

PARTS = ["figure2", "figure3", "figure4"]
NEAR = [0.01, 0.003, 0.001]  # the paper tells when its objective was within 0.3 % and 0.1 % of the optimum
LOOKS = 40


class PegasosStudy(reproducing.Study):
    """One data file: runs by step, and what they are worth."""

    def __init__(self, path, options, folder, judge):
        super().__init__(path, options, folder, judge)
        self.C = 1 / (options.regulariser * self.facts.rows)
        self.batch = min(options.batch, self.facts.rows)
        self.seeds = range(1, options.starts + 1)

    @property
    def per_pass(self):
        return -(-self.facts.rows // self.batch)

    def objective(self, primal):
        return primal / (self.C * self.facts.rows)

    def pegasos(self, **more):
        return self.settings(solver="pegasos", average=False, certify=False, **more)

    @functools.cached_property
    def runs(self):
        """For every seed, (step, objective, error) from a random start."""
        return {seed: self._run(seed) for seed in self.seeds}

    def _run(self, seed):
        settings = self.pegasos(batch=self.batch, init="random", seed=seed)
        files = judging.run_apart(trials.follow_steps, self.two_class_text, settings, self.file(f"start {seed}"),
                                  sorted({*looked_at(self.options.steps), *self.columns}))  # fmt: skip
        points = []
        for step, file in files.items():
            primal, accuracy = self.worth(file)
            points.append((step, self.objective(primal), 100 - accuracy))
        return points

    @property
    def columns(self):
        """Steps to be shown in a table."""
        return sorted({min(step, self.options.steps) for step in (1, 10, 50, 200, self.options.steps)})

    @functools.cached_property
    def best(self):
        """Objective and error of the exact solver."""
        primal, accuracy, _ = self.optimum
        return self.objective(primal), 100 - accuracy

    def target(self, number):
        return Path(self.options.output, f"pegasos-figure{number}-{self.name}")


def looked_at(steps):
    """About LOOKS steps up to the last one, dense at first."""
    return {round(steps ** (look / (LOOKS - 1))) for look in range(LOOKS)}


def rows_of(runs):
    return [[str(seed), *(f"{number:.8g}" for number in point)] for seed, points in runs.items() for point in points]


def figure2(study):
    best, _ = study.best
    rows = []
    for seed, points in study.runs.items():
        above = {step: objective / best - 1 for step, objective, _ in points}
        reached = [next((str(step) for step, excess in above.items() if excess <= near), "-") for near in NEAR]
        rows.append([f"start {seed}", *reached, *(f"{above[step]:.2e}" for step in study.columns)])
    header = ["Figure 2", *(f"within {near:.1%}, step" for near in NEAR), *(f"above at {at}" for at in study.columns)]
    peers.print_table(header, rows)
    print(f"above: the optimum, relative; of the {LOOKS} or so steps looked at, the first that is so near")
    curves = {f"start {seed}": [point[:2] for point in points] for seed, points in study.runs.items()}
    panel = Panel(curves, "iteration", "objective", study.two_class_name, "xy", {"optimum": best})
    publish(study.target(2), [panel], ["start", "step", "objective", "error %"], rows_of(study.runs))


def figure3(study):
    _, best = study.best
    rows = []
    for seed, points in study.runs.items():
        errors = {step: error for step, _, error in points}
        shown = [errors[step] for step in study.columns]
        rows.append([f"start {seed}", *(f"{error:.2f}" for error in (*shown, min(errors.values())))])
    rows.append(["exact solver", *[""] * len(study.columns), f"{best:.2f}"])
    error = "test error %" if study.test else "error % (training data)"
    peers.print_table([f"Figure 3, {error}", *(f"at {at}" for at in study.columns), "best"], rows)
    curves = {f"start {seed}": [point[::2] for point in points] for seed, points in study.runs.items()}
    panel = Panel(curves, "iteration", error, study.two_class_name, "x", {"exact solver": best})
    publish(study.target(3), [panel], ["start", "step", "objective", "error %"], rows_of(study.runs))


def figure4(study):
    best, _ = study.best
    batches = sorted({min(batch, study.facts.rows) for batch in [*study.options.batches, study.batch]})
    objectives = {hold: {batch: by_passes(study, batch, hold) for batch in batches} for hold in (False, True)}
    rows, curves, listed = [], {}, []
    for hold, by_batch in objectives.items():
        for passes in study.options.passes:
            name = f"kT = {passes * study.facts.rows}" + ", --hold-t" * hold
            curves[name] = [(batch, by_batch[batch][passes]) for batch in batches]
            rows.append([name, *(f"{objective / best - 1:.2e}" for _, objective in curves[name])])
            listed += [[str(passes), str(hold), str(batch), f"{objective:.8g}"] for batch, objective in curves[name]]
    peers.print_table(["Figure 4: above the optimum", *(f"k = {batch}" for batch in batches)], rows)
    panel = Panel(curves, "k", "objective", study.two_class_name, "xy", {"optimum": best})
    publish(study.target(4), [panel], ["passes", "hold-t", "k", "objective"], listed)


def by_passes(study, batch, hold):
    """The objective after each of the numbers of passes, a median over the seeds."""
    found = {passes: [] for passes in study.options.passes}
    for seed in study.seeds:
        settings = study.pegasos(batch=batch, hold_t=hold, seed=seed)
        trial = judging.run_apart(trials.follow, study.two_class_text, settings, study.file("figure 4"), max(found))
        for moment in trial.moments:
            if moment.passes in found:
                found[moment.passes].append(study.objective(study.worth(moment.weights)[0]))
    return {passes: statistics.median(values) for passes, values in found.items()}


def reproduce(study):
    best, error = study.best
    print(f"\n{study.two_class_name}: {study.facts}.\nlambda = {study.options.regulariser:g}, C = {study.C:.4g}, "
          f"k = {study.batch}, {study.per_pass} steps a pass. Optimum {best:.8g}, error {error:.2f} %.")  # fmt: skip
    for name, part in zip(PARTS, (figure2, figure3, figure4), strict=True):
        if name not in study.options.skip:
            print()
            part(study)


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse_options():
    parser = reproducing.make_parser(__doc__)
    reproducing.add_two_class_options(parser)
    reproducing.add_skip(parser, PARTS)
    parser.add_argument("--lambda", dest="regulariser", type=float, default=1e-4, metavar="L", help="(default 1e-4)")
    parser.add_argument("--batch", type=int, default=8000, metavar="K", help="rows of a step (default 8000)")
    parser.add_argument("--steps", type=int, default=560, help="of Figures 2 and 3 (default 560)")
    parser.add_argument("--starts", type=int, default=5, help="random starts, or seeds of Figure 4 (default 5)")
    parser.add_argument("--batches", type=numbers, default=[1, 10, 100, 1000], metavar="K,...",
                        help="k of Figure 4, besides --batch (default 1,10,100,1000)")  # fmt: skip
    parser.add_argument("--passes", type=numbers, default=[1, 4, 16], metavar="N,...",
                        help="of Figure 4 (default 1,4,16)")  # fmt: skip
    options = reproducing.parse_options(parser, PARTS)
    if min(options.batch, options.steps, options.starts, *options.batches, *options.passes) < 1:
        parser.error("--batch, --steps, --starts, --batches and --passes start at 1")
    return options


def main():
    options = parse_options()
    for path in options.data:
        with peers.workplace() as folder, judging.separate_process() as judge:
            reproduce(PegasosStudy(path, options, folder, judge))


if __name__ == "__main__":
    main()
