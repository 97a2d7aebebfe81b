"""llsvm-train of many classes against LIBLINEAR's train: -s cs against -s 4, -s dual -B 1 against -s 3 -B 1.

From text to model, with the rows in memory. LIBLINEAR runs at its default -e 0.1, which sets the goal: its primal
objective, of one-vs-rest the sum over the classes. llsvm runs at the loosest -e of a ladder that reaches the goal.
Objectives are recomputed from the text in float64 and the model files, by NumPy alone (judging_many.py).

"Solving" is the run without its loading, the writing of the model included: for LIBLINEAR, which has one thread, its
CPU time less that of `train -c 0`, which ends right after loading; for llsvm the time from the first event of its log,
when the rows are loaded, to the end of the process. "Training" is what llsvm logs as its training, the last certificate
included. These two of llsvm are those of the last run. "Times as fast" is LIBLINEAR's time over llsvm's. Where others
use the machine, as LIBLINEAR's waiting shows, no time here means much, and the table says so; it cannot tell where only
the core is taken that LIBLINEAR, with its one thread, does not need.
"""

import re
from typing import NamedTuple

import judging
import judging_many
import peers

LADDER = ["1e-2", "3e-3", "1e-3", "3e-4", "1e-4", "3e-5", "1e-5", "1e-6"]
BUSY = 0.1  # of its time, that one thread waits: others use the machine
ROUNDING = 1e-5  # our values are float32, the objective here is that of the text


class Contest(NamedTuple):
    """The options of both sides, and what the judge calls the objective."""

    ours: list[str]
    theirs: list[str]
    formulation: str


CONTESTS = {"cs": Contest(["-s", "cs", "-B", "-1"], ["-s", "4", "-B", "-1"], "cs"),
            "ovr": Contest(["-s", "dual", "-B", "1"], ["-s", "3", "-B", "1"], "ovr")}  # fmt: skip


class Bench:
    """One contest on one data file."""

    def __init__(self, contest, path, peer, options, folder, judge):
        self.contest, self.path, self.peer, self.options = contest, str(path), peer, options
        self.model, self.log_file, self._judge = str(folder / "model"), str(folder / "log"), judge
        self.words = ["-c", str(options.cost)]

    def ours(self, tolerance):
        words = [*peers.llsvm("llsvm-train", self.options), *self.contest.ours, *self.words, "-e", tolerance]
        return peers.Command([*words, "--strict", "--log", self.log_file, self.path, self.model])

    def theirs(self):
        return peers.Command([*self.peer.train, *self.contest.theirs, *self.words, self.path, self.model])

    def primal(self, command):
        """Of the model that this command makes."""
        peers.run(command)
        return self.judge_model()

    def judge_model(self):
        arguments = self.path, self.model, self.options.cost, self.contest.formulation
        return self._judge(judging_many.objective_of_file, *arguments)

    def match(self, goal):
        """The loosest -e with which ours reach the goal, and the objective there."""
        return peers.loosest(LADDER, lambda tolerance: self.primal(self.ours(tolerance)), goal, "llsvm")

    def log(self):
        return peers.read_log(self.log_file)


def measure(bench):
    goal = bench.primal(bench.theirs())
    tolerance, primal = bench.match(goal)
    theirs = f"LIBLINEAR {' '.join(bench.contest.theirs)}"
    ours = f"llsvm {' '.join(bench.contest.ours)} -e {tolerance}"
    commands = {theirs: bench.theirs(), "loading": peers.loading(bench.peer, bench.path), ours: bench.ours(tolerance)}
    runs = peers.interleave(commands, bench.options.repeat)
    loading, first, *_, last = runs.pop("loading"), *bench.log()
    solving = {theirs: runs[theirs].cpu - loading.cpu, ours: runs[ours][-1].ended - first["time"]}
    how = {theirs: ["-", count_passes(runs[theirs][-1].output), "none"],
           ours: [f"{last['seconds']:.2f}", str(last["number"]), f"{last['gap']:.1e}"]}  # fmt: skip
    rows = []
    for name, worth in {theirs: goal, ours: primal}.items():
        cost, ratios = runs[name], (runs[theirs].wall / runs[name].wall, solving[theirs] / solving[name])
        rows.append([name, f"{cost.wall:.2f}", cost.spread, f"{cost.cpu:.2f}", f"{ratios[0]:.2f}",
                     f"{solving[name]:.2f}", f"{ratios[1]:.2f}", *how[name], cost.peak, f"{worth:.8g}",
                     f"{worth / goal - 1:+.1e}"])  # fmt: skip
    header = ("|seconds|min-max|cpu|times as fast|solving|times as fast|training|passes|certified gap|peak MB|primal"
              "|to LIBLINEAR's")  # fmt: skip
    peers.print_table(header.split("|"), rows)
    print(f"loading alone takes LIBLINEAR {loading.wall:.2f} s; llsvm's rows are {first['data']}")
    waiting = 1 - runs[theirs].cpu / runs[theirs].wall
    if waiting > BUSY:
        print(f"BUSY MACHINE: LIBLINEAR waited {waiting:.0%} of its time; compare no times of this table")
    check(goal, primal, last)


def count_passes(output):
    """Of LIBLINEAR: -s 4 says once how many, -s 3 for every class; the most of one."""
    passes = [int(count) for count in re.findall(r"#iter = +(\d+)", output)]
    return str(max(passes)) if passes else "-"


def check(goal, primal, last):
    """What the certificate says holds for the recomputed objectives."""
    if abs(primal / last["primal"] - 1) > ROUNDING:
        raise SystemExit(f"llsvm says its primal objective is {last['primal']}, NumPy {primal}")
    if min(goal, primal) < last["dual"] * (1 - ROUNDING):
        raise SystemExit(f"a model is better than llsvm's dual objective {last['dual']} allows: {min(goal, primal)}")


def parse_options():
    parser = peers.make_parser(__doc__)
    parser.add_argument("--cost", type=float, default=1.0, help="C (default 1)")
    parser.add_argument("--skip", action="append", choices=list(CONTESTS), default=[], help="leave out a contest")
    return peers.parse_options(parser)


def main():
    options = parse_options()
    peer = peers.find_liblinear(options.peer)
    with peers.workplace() as folder:
        for path in peers.data_files(options, folder):
            peers.print_heading(path, peer, options)
            with judging.separate_process() as judge:
                for name, contest in CONTESTS.items():
                    if name not in options.skip:
                        measure(Bench(contest, path, peer, options, folder, judge))


if __name__ == "__main__":
    main()
