"""llsvm-train against LIBLINEAR's train -s 3 -B 1: from text, from blocks in memory, from blocks out of core.

Both have the same goal: a primal objective within --tolerance of our dual objective, which no model can beat.
LIBLINEAR's own -e promises no objective, so it is shown at its default of 0.1 and at the loosest -e of a ladder that
reaches the goal; "times as fast" is to the latter. All primal objectives are recomputed from the text in float64
and the model files, by NumPy alone (judging.py).

The column "solving" is the run without its loading: for llsvm the seconds it logs, reading included where the blocks do
not fit; for LIBLINEAR, which has one thread, its CPU time less that of `train -c 0`, which ends right after loading.
Out of core means a budget of a tenth of the decoded data (8 bytes a nonzero and a row), or five vectors of weights, or
2 MB, whichever is most.
"""

import re
from pathlib import Path

import judging
import peers

LADDER = ["1", "0.3", "0.1", "0.03", "0.01", "0.003", "0.001", "0.0001"]
DEFAULT = "0.1"
ROUNDING = 1e-5  # our values are float32, the objective here is that of the text


class Bench:
    """One data file: what is run on it, and what the models are worth."""

    def __init__(self, path, peer, options, folder, judge):
        self.path, self.peer, self.options, self.folder, self.judge = str(path), peer, options, folder, judge

    def file(self, name):
        return str(self.folder / re.sub(r"\W+", "-", name))

    def primal(self, name):
        """Computed in a process of its own: ours must stay small."""
        return self.judge(judging.objective_of_file, self.path, self.file(name), self.options.cost)

    def ours(self, name, *data):
        words = [*peers.llsvm("llsvm-train", self.options), "-s", "dual", "-B", "1", "-c", str(self.options.cost), "-e",
                 str(self.options.tolerance), "--strict", "--log", self.file(name) + ".log"]  # fmt: skip
        return peers.Command([*words, *data, self.file(name)])

    def theirs(self, name, tolerance):
        words = [*self.peer.train, "-s", "3", "-B", "1", "-c", str(self.options.cost), "-e", tolerance]
        return peers.Command([*words, self.path, self.file(name)])

    def log(self, name):
        """The first and the last event of the run log in one."""
        events = peers.read_log(self.file(name) + ".log")
        return events[0] | events[-1]

    def blocks(self):
        """The block set, and a memory budget of a tenth of it, decoded (more where the weights need more)."""
        target = self.file(Path(self.path).name) + ".blocks"
        return target, peers.budget(peers.split(Path(self.path), Path(target), self.options))

    def match(self, goal):
        """The loosest -e with which LIBLINEAR reaches the goal."""

        def primal(tolerance):
            peers.run(self.theirs("match", tolerance))
            return self.primal("match")

        return peers.loosest(LADDER, primal, goal, "LIBLINEAR")[0]


def measure(bench):
    blocks, budget = bench.blocks()
    data = {"llsvm, text": [bench.path], "llsvm, blocks": [blocks],
            f"llsvm, blocks, --memory {budget / peers.MB:.1f}M": ["--memory", str(budget), blocks]}  # fmt: skip
    ours = {name: bench.ours(name, *words) for name, words in data.items()}
    peers.run(ours["llsvm, text"])
    matched = bench.match(bench.log("llsvm, text")["dual"] / (1 - bench.options.tolerance))
    theirs = {f"LIBLINEAR -e {e}": bench.theirs(f"LIBLINEAR -e {e}", e) for e in dict.fromkeys([matched, DEFAULT])}
    runs = peers.interleave({**theirs, **ours, "loading": peers.loading(bench.peer, bench.path)}, bench.options.repeat)
    loading = runs.pop("loading")
    primals = {name: bench.primal(name) for name in runs}
    logs = {name: bench.log(name) for name in ours}
    print_costs(runs, loading, primals, logs, f"LIBLINEAR -e {matched}")
    print(f"LIBLINEAR -e {matched} is the loosest to reach the goal; loading alone takes it {loading.wall:.2f} s")
    check(primals, logs, bench.options.tolerance)


def print_costs(runs, loading, primals, logs, yardstick):
    best, rows = min(primals.values()), []
    for name, cost in runs.items():
        if name in logs:
            log = logs[name]
            how = [f"{log['seconds']:.2f}", log["data"], str(log["number"]), f"{log['gap']:.2e}"]
        else:
            passes = re.findall(r"#iter = (\d+)", cost[-1].output)[-1]
            how = [f"{cost.cpu - loading.cpu:.2f}", "in memory", passes, "none"]
        speed = f"{runs[yardstick].wall / cost.wall:.2f}"
        worth = [f"{primals[name]:.8g}", f"{primals[name] / best - 1:.1e}"]
        rows.append([name, f"{cost.wall:.2f}", cost.spread, f"{cost.cpu:.2f}", speed, cost.peak, *how, *worth])
    header = "|seconds|min-max|cpu|times as fast|peak MB|solving|data|passes|certified gap|primal|above best"
    peers.print_table(header.split("|"), rows)


def check(primals, logs, tolerance):
    """A certificate says: no w does better than the dual objective; and the model is that close to it."""
    for name, log in logs.items():
        primal, dual = primals[name], log["dual"]
        if primal - dual > (tolerance + ROUNDING) * primal:
            raise SystemExit(f"{name}: {primal} is farther from the dual objective {dual} than certified")
        if min(primals.values()) < dual * (1 - ROUNDING):
            raise SystemExit(f"{name}: a model is better than the dual objective {dual} allows")
    print("every certificate holds for the recomputed objectives")


def main():
    parser = peers.make_parser(__doc__)
    parser.add_argument("--cost", type=float, default=1.0, help="C (default 1)")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="-e of llsvm-train (default 1e-3)")
    options = peers.parse_options(parser)
    peer = peers.find_liblinear(options.peer)
    with peers.workplace() as folder:
        for path in peers.data_files(options, folder):
            peers.print_heading(path, peer, options)
            with judging.separate_process() as judge:
                measure(Bench(path, peer, options, folder, judge))


if __name__ == "__main__":
    main()
