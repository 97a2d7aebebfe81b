"""llsvm against every peer that is installed, and against the cost of reading the bytes: tables, plots, BENCHMARKS.md.

The problem is hinge loss with C and a bias that is a feature of value 1. A peer runs as it is by default and sets the
goal, the primal objective of its model; llsvm runs at the loosest -e of a ladder that reaches it (to 1e-6). Objectives
are recomputed from the text and the weights in float64 by NumPy alone. Times are medians of interleaved runs; what has
taken a minute is not repeated. Text is in the page cache.

Training only: all of fit() for scikit-learn and Snap ML, on a matrix in memory (dense where half of it is not zero);
for llsvm the seconds of its run log, from rows in memory to the last certificate. A tenth: memory for a tenth of the
decoded rows (8 bytes a nonzero and a row), or for five vectors of weights, or 2 MB, whichever is most. Under the
limit: a control group with as much memory as llsvm promises to stay below, page cache included, and the
block set taken out of the page cache before each run; -s block is stopped after a minute (--quick: ten seconds).

Reading all bytes once: from disk means files that are not in the page cache, decoding is `llsvm info --verify` less
`llsvm info`, and memory is read by one thread, as a sum by NumPy.
"""

import functools
import os
import sys
import time
from pathlib import Path

import bench_costs
import bench_growth
import bench_predict
import bench_report
import fitting
import judging
import limits
import peers
import reproducing
from bench_report import GAP, SLACK, Row, Side
from bench_subject import Subject
from figures import Panel

LADDER = [f"{digit}e-{power}" for power in range(1, 7) for digit in (5, 3, 2, 1)]
REFERENCE, LOOSE_GAP = "1e-5", "1e-2"
PATIENCE = 60
SHORTEST = 1e-3  # of seconds that are a difference
TIME_LIMIT, QUICK_LIMIT = 60, 10  # of -s block, which may take long
SHARES = [1 / 40, 1 / 20, 1 / 10, 1 / 5, 1 / 2]
PARTS = ["memory", "predict", "out-of-core", "block", "costs", "limit", "start-up", "growth"]
SHAPES = ["text", "dense", "few", "trigram"]
FEWER_FEATURES = {"trigram": ["--features", "1M"]}  # with --quick
LIBLINEAR, LOADING, SPLIT = "LIBLINEAR train -s 3 -B 1", "LIBLINEAR's loading alone", "llsvm-split"
FITS = {
    "Snap ML SupportVectorMachine": (fitting.snap, 0.8),
    "scikit-learn LinearSVC": (fitting.linear_svc, 0.4),
    "scikit-learn SGDClassifier": (fitting.sgd, 0.8),
}
PREDICTED, IN_MEMORY, TENTH = "predicted", "in memory", "memory for a tenth"
DUAL, BLOCK, ON_DISK = "dual", "block", "on disk"
BIASES = {"-1": "no bias, as in the paper", "1": "-B 1"}


# --- the contests on one data file


def contest_in_memory(subject):
    """From text: all of LIBLINEAR, its loading, and the training of the others."""
    options = subject.options
    subject.judge(fitting.save_csr, str(subject.path), subject.folder)
    theirs, loading = {}, {}
    if subject.peer:
        words = [*subject.peer.train, "-s", "3", "-B", "1", "-c", str(options.cost), str(subject.path)]
        theirs[LIBLINEAR] = peers.Command([*words, str(subject.file(LIBLINEAR, "model"))])
        loading[LOADING] = peers.loading(subject.peer, subject.path)
    for name, (method, _) in FITS.items():
        if fitting.installed(method):
            theirs[name] = fitting.command(method, subject.folder, options.cost, n_threads(options),
                                           subject.file(name, "npz"))  # fmt: skip
    known = peers.interleave(theirs, 1)
    goals = {name: subject.primal(name) for name in theirs}
    chosen = {name: peers.loosest(LADDER, subject.primal_at, goal * (1 + SLACK), "llsvm")[0]
              for name, goal in goals.items()}  # fmt: skip
    ours = {tolerance: subject.ours(tolerance) for tolerance in sorted(set(chosen.values()))}
    split = peers.Command([*peers.llsvm("llsvm-split", options), "--force", "-o", str(subject.blocks),
                           str(subject.path)])  # fmt: skip
    commands = {**theirs, **loading, SPLIT: split, **ours}
    runs = peers.interleave(commands, options.repeat, PATIENCE, known)
    primals = {tolerance: subject.primal(f"e {tolerance}") for tolerance in ours}

    for name, goal in goals.items():
        tolerance, cost, is_liblinear = chosen[name], runs[name], name == LIBLINEAR
        mine = runs[tolerance]
        seconds = (mine.wall, cost.wall) if is_liblinear else (mine.counted, cost.counted)
        command = bench_report.shown(commands[name]) if is_liblinear else fitting.shown(cost[-1].output)
        subject.add(
            f"text to model / {name}" if is_liblinear else f"training only / {name}",
            Side(bench_report.shown(ours[tolerance]), seconds[0], mine.peak, primals[tolerance]),
            Side(command, seconds[1], cost.peak, goal), 0.25 if is_liblinear else FITS[name][1],
            "it did not converge" if "ConvergenceWarning" in cost[-1].errors else "",
        )  # fmt: skip
        training = cost.cpu - runs[LOADING].cpu if is_liblinear else cost.counted
        subject.points[name] = max(training, SHORTEST), goal
    if subject.peer:
        subject.add("llsvm-split / LIBLINEAR's loading", side(split, runs[SPLIT]),
                    side(commands[LOADING], runs[LOADING]), 0.2)  # fmt: skip


def contest_predict(subject):
    if not subject.peer:
        return
    model, outputs = subject.file(PREDICTED, "model"), [subject.file(name, "out") for name in ("ours", "theirs")]
    peers.run(subject.train(PREDICTED, subject.blocks, "-e", LOOSE_GAP))
    commands = bench_predict.commands(subject.path, model, subject.peer, subject.options, outputs)
    runs = peers.interleave(commands, subject.options.repeat, PATIENCE)
    bench_predict.check(outputs)
    ours, theirs = (side(commands[name], runs[name]) for name in (bench_predict.OURS, bench_predict.THEIRS))
    subject.add("llsvm-predict / LIBLINEAR's predict", ours, theirs, 0.15)


def contest_out_of_core(subject):
    """From a block set: in memory with one and two threads, and with memory for a tenth; passes by memory."""
    peers.run(subject.train(REFERENCE, subject.blocks, "-e", REFERENCE))
    subject.end(REFERENCE)
    commands = {IN_MEMORY: subject.train(IN_MEMORY, subject.blocks, "-e", GAP),
                TENTH: subject.train(TENTH, subject.blocks, "-e", GAP, "--memory", str(subject.tenth))}  # fmt: skip
    counts = [1, 2] if peers.n_cores() > 1 else []
    commands |= {f"threads {count}": subject.train(f"threads {count}", subject.blocks, "-e", GAP, "--threads",
                                                   str(count)) for count in counts}  # fmt: skip
    runs = peers.interleave(commands, subject.options.repeat, PATIENCE)
    sides = {name: Side(bench_report.shown(commands[name]), runs[name].wall, runs[name].peak, subject.primal(name))
             for name in commands}  # fmt: skip
    note = (f"--memory {subject.tenth / peers.MB:.1f}M, rows {subject.where(TENTH)}, "
            f"{subject.end(TENTH)['number']} passes")  # fmt: skip
    subject.add("out of core / in memory", sides[TENTH], sides[IN_MEMORY], 3, note, is_goal=False)
    if counts:
        one, two = (sides[f"threads {count}"]._replace(seconds=runs[f"threads {count}"].counted) for count in counts)
        subject.add("training, two threads / one", two, one, 1 / 1.6, is_goal=False)
    for budget in sorted({peers.budget(subject.facts, share) for share in SHARES}):
        name = f"memory {budget}"
        peers.run(subject.train(name, subject.blocks, "-e", GAP, "--memory", str(budget)))
        if subject.where(name) == ON_DISK:
            subject.passes.append((budget / peers.decoded_bytes(subject.facts), subject.end(name)["number"]))


def contest_block(subject):
    """The default solver against the block minimisation paper's, with as little memory, kept by the kernel."""
    blocks, time_limit = subject.folder / "many.blocks", QUICK_LIMIT if subject.options.quick else TIME_LIMIT
    peers.split(subject.path, blocks, subject.options, "-m", str(peers.n_blocks(subject.facts, subject.tenth)))
    words = ["-e", LOOSE_GAP, "--memory", str(subject.tenth), "--time-limit", str(time_limit)]
    commands = {(solver, bias): subject.train(f"{solver}{bias}", blocks, "-s", solver, *words, bias=bias)
                for solver in (DUAL, BLOCK) for bias in BIASES}  # fmt: skip
    limit = limits.promised(subject.tenth)
    with limits.memory_group(limit) as (group, why_not):
        prepare = functools.partial(peers.forget, blocks)
        limited = {key: limits.within(group, command._replace(prepare=prepare)) for key, command in commands.items()}
        runs = peers.interleave(limited, subject.options.repeat, PATIENCE)
    about = f"WITHOUT A LIMIT: {why_not}" if why_not else f"limit {limit / peers.MB:.0f} MB"
    for bias, name in BIASES.items():
        sides, notes = [], [about]
        for solver in (DUAL, BLOCK):
            key, end = (solver, bias), peers.read_log(subject.file(f"{solver}{bias}", "log"))[-1]
            primal = subject.objective(f"{solver}{bias}")
            sides.append(Side(bench_report.shown(commands[key]), runs[key].wall, runs[key].peak, primal))
            notes.append(f"-s {solver}: {end['number']} passes")
            if end["gap"] > float(LOOSE_GAP):
                notes[-1] += f", stopped at a gap of {end['gap']:.1e}"
        subject.add(f"out of core, limited, {name} / -s block", *sides, 0.3, "; ".join(notes), is_goal=False)


def limit_lines(subject):
    """The cost of reading all bytes once, against our times."""
    info = [*peers.llsvm("llsvm", subject.options)[:1], "info", str(subject.blocks)]
    runs = peers.interleave({"info": peers.Command(info), "verify": peers.Command([*info, "--verify"])}, 3)
    costs = {
        "text from disk": limits.disk_seconds(subject.path),
        "block set from disk": limits.disk_seconds(subject.blocks),
        "decoding": max(runs["verify"].wall - runs["info"].wall, SHORTEST),
        "decoded rows from memory": subject.judge(limits.memory_seconds, peers.decoded_bytes(subject.facts)),
    }
    peers.read_once(subject.path)
    return bench_report.limit_table(costs, {row.title: row.ours.seconds for row in subject.rows})


def side(command, runs):
    return Side(bench_report.shown(command), runs.wall, runs.peak)


def n_threads(options):
    return options.threads or peers.n_cores()


# --- what needs no data file


def contest_start_up(options, folder):
    """llsvm-predict on ten rows of the sample."""
    sample, model, ten = peers.SCRIPTS.parent / "data" / "sample.train.txt", folder / "model", folder / "ten.txt"
    peers.run(peers.Command([*peers.llsvm("llsvm-train", options), str(sample), str(model)]))
    ten.write_text("".join(sample.read_text().splitlines(keepends=True)[:10]))
    command = peers.Command([*peers.llsvm("llsvm-predict", options), str(ten), str(model), str(folder / "out")])
    runs = peers.interleave({"": command}, 5)[""]
    return Row("llsvm-predict on ten rows, seconds", side(command, runs), None, None if options.quick else 0.25)


# --- all of it


CONTESTS = {"memory": contest_in_memory, "predict": contest_predict, "out-of-core": contest_out_of_core,
            "block": contest_block, "costs": bench_costs.contest}  # fmt: skip


def measure(subject):
    """Markdown of one data file."""
    print(f"{subject.name}: {subject}", flush=True)
    for part, contest in CONTESTS.items():
        if part not in subject.options.skip:
            contest(subject)
    subject.check()
    lines = [f"## {subject.name}", "", f"{subject}.", "", *bench_report.row_table(subject.rows)]
    if "limit" not in subject.options.skip:
        lines += ["Reading all bytes once:", "", *limit_lines(subject)]
    return lines


def gap_panel(subject):
    names = {REFERENCE: "in memory", TENTH: TENTH, f"{DUAL}1": "-s dual, limited", f"{BLOCK}1": "-s block, limited"}
    curves = {shown: subject.curve(name) for name, shown in names.items() if subject.file(name, "log").exists()}
    dual = max(subject.duals, default=0)
    curves |= {name: [(seconds, max(primal - dual, 0) / primal)] for name, (seconds, primal) in subject.points.items()}
    curves = {name: points for name, points in curves.items() if points}
    return Panel(curves, "seconds of training", "relative gap", subject.name, "xy")


def missing_peers(peer):
    """A sentence for each."""
    packages = {fitting.PACKAGE[method] for method, _ in FITS.values() if not fitting.installed(method)}
    missing = [f"{fitting.SOURCE[package]} (pip install '.[bench]')" for package in sorted(packages)]
    missing += [] if peer else ["LIBLINEAR (pip install liblinear-official, or Debian's liblinear-tools)"]
    return [f"{name} is not installed and was left out." for name in missing]


def parse_options():
    parser = peers.make_parser(__doc__)
    parser.set_defaults(size=None, repeat=None)
    parser.add_argument("--quick", action="store_true", help="small data, one run each, and no targets")
    parser.add_argument("--no-shapes", action="store_true", help="the files alone")
    parser.add_argument("--growth", metavar="SIZE", help="the largest text of the growth table (default 600M)")
    parser.add_argument("--cost", type=float, default=1.0, help="C (default 1)")
    parser.add_argument("--output", type=Path, default="bench-results", metavar="DIR",
                        help="gets BENCHMARKS.md and docs/plots/ (default bench-results)")  # fmt: skip
    reproducing.add_skip(parser, PARTS)
    options = parser.parse_args()
    options.size = options.size or ("20M" if options.quick else "300M")
    options.growth = options.growth or ("40M" if options.quick else "600M")
    options.repeat = options.repeat or (1 if options.quick else 3)
    options.shape = [] if options.no_shapes else options.shape or SHAPES
    return options


def data_files(options, folder):
    for path in map(Path, options.data):
        peers.read_once(path)
        yield path
    for shape in options.shape:
        words = FEWER_FEATURES.get(shape, []) if options.quick else []
        yield peers.make(shape, options.size, folder, *words)


def write(options, peer, sections, began, load):
    """BENCHMARKS.md from {name: (rows, lines)}."""
    command, minutes = " ".join(["python scripts/bench.py", *sys.argv[1:]]), (time.time() - began) / 60
    lines = ["# Benchmarks", "", *bench_report.machine(peer, load), f"`{command}`, {minutes:.0f} minutes.", "",
             *__doc__.strip().splitlines()[2:], "", *missing_peers(peer), "",
             *bench_report.summary({name: rows for name, (rows, _) in sections.items() if rows})]  # fmt: skip
    for _, section in sections.values():
        lines += section
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "BENCHMARKS.md").write_text("\n".join(lines).rstrip("\n") + "\n")


def main():
    options, began, load = parse_options(), time.time(), os.getloadavg()[0]
    peer, sections, gaps, passes = peers.find_liblinear(options.peer), {}, [], {}
    peer = peer if peers.is_installed(peer) else None
    for sentence in missing_peers(peer):
        print(sentence, flush=True)
    plots_folder = options.output / "docs" / "plots"
    with peers.workplace() as folder:
        for path in data_files(options, folder):
            with judging.separate_process() as judge:
                subject = Subject(path, options, folder, judge, peer)
                if len(subject.facts["labels"]) != 2:
                    print(f"{subject.name} was left out: it has {len(subject.facts['labels'])} classes, not two")
                    continue
                sections[subject.name] = subject.rows, measure(subject)
                gaps.append(gap_panel(subject))
            passes |= {subject.name: subject.passes} if subject.passes else {}
            write(options, peer, sections, began, load)
        gaps = [panel for panel in gaps if panel.curves]
        plots = bench_report.draw(plots_folder / "time-to-gap", gaps) if gaps else []
        if passes:
            panel = Panel(passes, "memory / decoded rows", f"passes to {GAP}", "passes by memory", "x")
            plots += bench_report.draw(plots_folder / "passes-by-memory", [panel])
        if "start-up" not in options.skip:
            row = contest_start_up(options, folder)
            sections["start-up"] = [row], ["## start-up", "", *bench_report.row_table([row])]
        if "growth" not in options.skip:
            lines, panel = bench_growth.measure(options, folder, peer)
            sections["growth"] = [], ["## growth", "", *lines]
            plots += bench_report.draw(plots_folder / "memory-by-size", [panel])
        sections["plots"] = [], ["## plots", "", *plots]
        write(options, peer, sections, began, load)
    print(options.output / "BENCHMARKS.md")


if __name__ == "__main__":
    main()
