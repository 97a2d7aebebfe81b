"""The experiments of the LLSVM paper (Alrajeh, Takeda, Niranjan), sections 3 and 4, on data files of one's own.

For every file, with C = 1, from text that is in the page cache:

Table 1   time from text to model, peak memory and accuracy of `llsvm-train -s shrink -B 1 --no-certify`, of LIBLINEAR's
          `train -s 3 -B 1` and of `llsvm-train -s pegasos -B 1`; the gap of -s shrink is certified apart
Table 2   dual variables that are not active, that is at 0 or C, in ours and in LIBLINEAR's solution, and the fraction
          of rows that are active in one of them alone
Table 3   block minimisation: `llsvm-split -m 16`, then `llsvm-train -s block -B 1 -e 0.01`
Figure 1  the active rows and the dual objective in the first 10 iterations, figure1-NAME.png and .txt
--radius  `-B R` against `-B 1`, for data that are not scaled, at the end of section 4; with several seeds, because
          training ends far from the optimum on such data, and the accuracy there is a matter of luck

LIBLINEAR tells no dual variables, so for Table 2 row i is given a feature of its own, of value MARK: its weight is then
MARK y_i alpha_i, while the problem changes by MARK^2, 1e-12. Nor does it tell its active set by iteration: in Figure 1
`llsvm-train -s dual`, which shrinks by LIBLINEAR's rule, stands for it. Table 2 and Figure 1 are about two classes; of
more, they take one (--class) against the rest, as the paper does with digit 8 of mnist.

The paper's mnist with values 0 to 255:  reproduce_llsvm.py mnist.train.txt --unscale 255 --radius
"""

import functools
import json
import re
import statistics
import sys
from pathlib import Path

import peers
from figures import Panel, publish
from judging import separate_process
from reproducing import Dataset, add_class, add_skip, make_parser, parse_options

OURS, THEIRS, PEGASOS = "llsvm -s shrink -B 1", "LIBLINEAR -s 3 -B 1", "llsvm -s pegasos -B 1"
BLOCK = "llsvm -s block -B 1"
PARTS = ["table1", "table2", "table3", "figure"]
ITERATIONS = 10
STOPPING_CHANGE = 0.01  # the paper's, and the default of -s shrink
MARK = 2.0**-20
BOUND = 1e-9  # nearer than this to 0 or C is there
TIGHT = "1e-5"


def rescale(path, target, factor):
    """All values times the factor; 0.101961 times 255 is 26 again, as values are written with 6 digits."""

    @functools.lru_cache(1 << 16)
    def scaled(value):
        product = factor * float(value)
        whole = round(product)
        return b":%.7g" % (whole if whole and abs(product - whole) <= 1e-6 * abs(factor) else product)

    pattern = re.compile(rb":(\S+)")
    with open(path, "rb") as source, open(target, "wb") as file:
        file.writelines(pattern.sub(lambda match: scaled(match[1]), line) for line in source)
    return target


def mark(path, target, n_features):
    """Gives every row a feature of its own."""
    with open(path, "rb") as source, open(target, "wb") as file:
        file.writelines(b"%s %d:%r\n" % (line.rstrip(), n_features + row, MARK) for row, line in enumerate(source, 1))
    return target


# --- what needs numpy runs in a process of its own: see peers.py


def our_active_rows(path, threads):
    """Numbers of the rows that -s shrink ends with, those with 0 < alpha < C, and the dual objective."""
    from llsvm import memory, train

    config = train.Config(solver="shrink", tolerance=STOPPING_CHANGE, bias=1.0, memory=memory.usable() // 2,
                          threads=threads, certify=False)  # fmt: skip
    starts, kept = [0], []
    with train.open_data([str(path)], config) as data:
        read = data.arenas

        def counted():
            for arena, order in read():
                starts.append(starts[-1] + arena.n_rows)
                yield arena, order

        def look(stats):
            group = solver._course.rows._resident
            kept[:] = [] if group is None else group.table[["chunk", "place"]].tolist()
            if stats.finished and len(kept) != stats.active:
                raise SystemExit(f"{path}: the active rows do not fit in memory; --skip table2")

        data.arenas = counted
        solver = train.start(data, config)
        dual = train.run(solver, config, look).stats.dual
    return {starts[chunk] + place for chunk, place in kept}, dual


def their_active_rows(model, n_features, C=1.0):
    """The same of LIBLINEAR's model of marked rows."""
    head, _, body = Path(model).read_text().partition("\nw\n")
    alphas = (abs(float(weight)) / MARK for weight in body.split()[n_features:-1])  # the last is the bias
    return {row for row, alpha in enumerate(alphas) if BOUND < alpha < C - BOUND}


def compare_active(path, threads, models, n_features):
    """Our dual objective and number of active rows; for every model, that in it and that in one of both alone."""
    ours, dual = our_active_rows(path, threads)
    theirs = [their_active_rows(model, n_features) for model in models]
    return dual, len(ours), [(len(rows), len(ours ^ rows)) for rows in theirs]


# --- the experiments


class Experiment(Dataset):
    """One data file, and what is run on it."""

    def __init__(self, path, options, peer, folder, judge):
        super().__init__(path, options, folder)
        self.peer, self.judge, self.runs = peer, judge, {}

    def prepare(self):
        if (factor := self.options.unscale) != 1:
            self.name += f"-times-{factor:g}"
            self.train = rescale(self.train, self.folder / "rescaled.train", factor)
            self.test = self.test and rescale(self.test, self.folder / "rescaled.test", factor)

    def file(self, name):
        return str(self.folder / re.sub(r"\W+", "-", name))

    def ours(self, words, data, model):
        program = peers.llsvm("llsvm-train", self.options)
        return peers.Command([*program, "-c", "1", *words, str(data), self.file(model)])

    def theirs(self, words, data, model):
        return peers.Command([*self.peer.train, "-s", "3", "-c", "1", "-B", "1", *words, str(data), self.file(model)])

    def measure(self, commands):
        """Runs what has not been run yet."""
        new = {name: command for name, command in commands.items() if name not in self.runs}
        self.runs |= peers.interleave(new, self.options.repeat)

    def accuracy(self, model):
        words = [word for word in peers.llsvm("llsvm-predict", self.options) if word != "--quiet"]
        said = peers.run(peers.Command([*words, str(self.test or self.train), self.file(model), self.file("labels")]))
        correct, rows = re.search(r"\((\d+)/(\d+)\)", said.output).groups()
        return 100 * int(correct) / int(rows)

    def info(self, model):
        program = peers.llsvm("llsvm", self.options)[0]
        return json.loads(peers.run(peers.Command([program, "info", "--json", self.file(model)])).output)

    def passes(self, name, *words):
        """The "pass" events of a run of ITERATIONS passes on the two-class text, and where its rows were."""
        log = self.file(name) + ".log"
        limits = ["-B", "1", "--max-passes", str(ITERATIONS), "--log", log]
        peers.run(self.ours([*words, *limits], self.two_class_text, name))
        events = [json.loads(line) for line in Path(log).read_text().splitlines()]
        return [event for event in events if event["event"] == "pass"], events[0]["data"]


def train_both(experiment):
    shrink = ["-s", "shrink", "-B", "1", "--no-certify"]
    experiment.measure({OURS: experiment.ours(shrink, experiment.train, OURS),
                        THEIRS: experiment.theirs([], experiment.train, THEIRS)})  # fmt: skip


def costs(experiment, names):
    """Rows of a table: name, seconds, peak, accuracy and its difference to LIBLINEAR's."""
    runs, accuracies = experiment.runs, {name: experiment.accuracy(name) for name in names}
    return [[name, f"{runs[name].wall:.2f}", runs[name].peak, f"{accuracy:.2f}",
             "" if name == THEIRS else f"{accuracy - accuracies[THEIRS]:+.2f}"]
            for name, accuracy in accuracies.items()]  # fmt: skip


def note_iterations(run, what=THEIRS):
    """LIBLINEAR gives up after 1000 iterations (newer ones 300), and says so."""
    if stops := run.output.count("reaching max number of iterations"):
        print(f"{what}: stopped by its limit of iterations, not by its tolerance, in {stops} problem(s)")


def table1(experiment):
    train_both(experiment)
    experiment.measure({PEGASOS: experiment.ours(["-s", "pegasos", "-B", "1"], experiment.train, PEGASOS)})
    peers.run(experiment.ours(["-s", "shrink", "-B", "1"], experiment.train, "certified"))
    gaps = {name: f"{experiment.info(model)['certificate']['relative_gap']:.2e}"
            for name, model in {OURS: "certified", PEGASOS: PEGASOS}.items()}  # fmt: skip
    rows = [[*row, gaps.get(row[0], "")] for row in costs(experiment, [OURS, THEIRS, PEGASOS])]
    header = ["Table 1", "seconds", "peak MB", experiment.accuracy_column, "points to LIBLINEAR", "certified gap"]
    peers.print_table(header, rows)
    note_iterations(experiment.runs[THEIRS][0])


def run_where_possible(experiment, name, words, data):
    """False where a solver refuses more than two classes, which is said; any other failure ends all."""
    try:
        experiment.measure({name: experiment.ours(words, data, name)})
    except SystemExit as refusal:
        if experiment.two_classes:
            raise
        print(f"{name}: {' '.join(str(refusal).partition('error: ')[2].split()) or refusal}")
        return False
    return True


def table2(experiment):
    n_rows, n_features = experiment.facts.rows, experiment.facts.features
    text = experiment.two_class_text
    marked = mark(text, experiment.folder / "marked", n_features)
    models = {"LIBLINEAR": [], f"LIBLINEAR -e {TIGHT}": ["-e", TIGHT]}
    runs = [peers.run(experiment.theirs(words, marked, f"marked {name}")) for name, words in models.items()]
    files = [experiment.file(f"marked {name}") for name in models]
    dual, active, others = experiment.judge(compare_active, text, experiment.n_threads, files, n_features)
    rows = [["our method", f"{n_rows - active}", f"{active}", f"{100 * active / n_rows:.2f}", "", f"{dual:.6g}"]]
    for name, run, (count, alone) in zip(models, runs, others, strict=True):
        objective = -float(re.search(r"Objective value = (\S+)", run.output)[1])
        rows.append([name, f"{n_rows - count}", f"{count}", f"{100 * count / n_rows:.2f}", f"{alone / n_rows:.4f}",
                     f"{objective:.6g}"])  # fmt: skip
    peers.print_table(["Table 2", "non-active", "active", "active %", "mismatch with ours", "dual objective"], rows)
    print(f"{experiment.two_class_name}: {n_rows} rows; active: 0 < alpha < C")
    for name, run in zip(models, runs, strict=True):
        note_iterations(run, name)


def table3(experiment):
    blocks = experiment.folder / "reproduced.blocks"
    split = [*peers.llsvm("llsvm-split", experiment.options), "--force", "-m", "16", "-o", str(blocks)]
    experiment.measure({"split": peers.Command([*split, str(experiment.train)])})
    seconds, row = experiment.runs["split"].wall, ["-", "-", "-"]
    if run_where_possible(experiment, BLOCK, ["-s", "block", "-B", "1", "-e", "0.01"], blocks):
        training = experiment.runs[BLOCK].wall
        row = [f"{training:.2f}", f"{seconds + training:.2f}", f"{experiment.accuracy(BLOCK):.2f}"]
    header = ["Table 3", "split, seconds", "train, seconds", "total, seconds", experiment.accuracy_column]
    peers.print_table(header, [["block minimisation", f"{seconds:.2f}", *row]])


def figure1(experiment):
    ours, _ = experiment.passes("figure shrink", "-s", "shrink", "--no-certify", "-e", "1e-12")
    theirs, where = experiment.passes("figure dual", "-s", "dual", "-e", "1e-12")
    if where != "in memory":
        sys.exit(f"{experiment.name}: Figure 1 needs all rows in memory, and they do not fit; --skip figure")
    n_rows, runs = experiment.facts.rows, {"llsvm -s shrink": ours, "LIBLINEAR's method (llsvm -s dual)": theirs}
    active = {name: [(event["number"], 100 * event["active"] / n_rows) for event in events]
              for name, events in runs.items()}  # fmt: skip
    duals = {name: [(event["number"], event["dual"]) for event in events] for name, events in runs.items()}
    rows = []
    for name in runs:
        rows.append([f"{name}, active %", *(f"{share:.2f}" for _, share in active[name])])
        rows.append([f"{name}, objective", *(f"{dual:.5g}" for _, dual in duals[name])])
    rows = [row + [""] * (ITERATIONS + 1 - len(row)) for row in rows]
    header = ["Figure 1", *(str(number) for number in range(1, ITERATIONS + 1))]
    peers.print_table(header, rows)
    panels = [Panel(active, "iteration", "active rows, %", experiment.two_class_name),
              Panel(duals, "iteration", "dual objective W(alpha)")]  # fmt: skip
    publish(Path(experiment.options.output, f"figure1-{experiment.name}"), panels, header, rows)
    stops = [event["number"] for event in ours if event["change"] is not None and event["change"] <= STOPPING_CHANGE]
    print(f"an iteration of ours but the first sweeps the active rows several times; with its default tolerance it "
          f"stops {f'after iteration {stops[0]}' if stops else 'later than that'}")  # fmt: skip


def radius(experiment):
    train_both(experiment)
    rows, seeds = [], range(1, experiment.options.seeds + 1)
    for bias in "R1":
        trained = f"llsvm -s shrink -B {bias}"
        names = {seed: trained + f", seed {seed}" * (seed > 1) for seed in seeds}
        experiment.measure({name: experiment.ours(["-s", "shrink", "-B", bias, "--no-certify", "--seed", str(seed)],
                                                  experiment.train, name) for seed, name in names.items()})  # fmt: skip
        rows.append(over_seeds(experiment, trained, names.values()))
    rows.append(over_seeds(experiment, THEIRS, [THEIRS]))
    peers.print_table(["Bias", "seconds", experiment.accuracy_column, "min-max", f"of seeds 1 to {len(seeds)}"], rows)
    print(f"R = {experiment.info('llsvm -s shrink -B R')['bias']:g}; medians")
    note_iterations(experiment.runs[THEIRS][0])


def over_seeds(experiment, title, names):
    accuracies = [experiment.accuracy(name) for name in names]
    seconds = statistics.median(experiment.runs[name].wall for name in names)
    middle, each = statistics.median(accuracies), " ".join(f"{accuracy:.2f}" for accuracy in accuracies)
    return [title, f"{seconds:.2f}", f"{middle:.2f}", f"{min(accuracies):.2f}-{max(accuracies):.2f}", each]


def reproduce(experiment):
    options = experiment.options
    print(f"\n{experiment.name}: {experiment.facts}. llsvm on {options.threads or 'all'} cores; median of "
          f"{options.repeat}.\nPeer: {experiment.peer.name}.")  # fmt: skip
    parts = dict(zip(PARTS, (table1, table2, table3, figure1), strict=True))
    for name, part in parts.items():
        if name not in options.skip:
            print()
            part(experiment)
    if options.radius:
        print()
        radius(experiment)


def read_options():
    parser = make_parser(__doc__)
    add_class(parser)
    add_skip(parser, PARTS)
    peers.add_peer(parser)
    parser.add_argument("--unscale", type=float, default=1.0, metavar="FACTOR", help="multiply all values by this")
    parser.add_argument("--radius", action="store_true", help="also compare -B R with -B 1")
    parser.add_argument("--seeds", type=int, default=5, help="runs of llsvm for --radius (default 5)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each timed command (default 1)")
    options = parse_options(parser, PARTS)
    if min(options.repeat, options.seeds) < 1:
        parser.error("--repeat and --seeds start at 1")
    return options


def main():
    options = read_options()
    peer = peers.find_liblinear(options.peer)
    for path in options.data:
        with peers.workplace() as folder, separate_process() as judge:
            reproduce(Experiment(path, options, peer, folder, judge))


if __name__ == "__main__":
    main()
