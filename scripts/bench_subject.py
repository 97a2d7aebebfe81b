"""One data file of a benchmark: its block set, the commands on it, and what their models are worth."""

import copy
import functools
import re
from pathlib import Path

import judging
import peers
import trials
from bench_report import Row

ROUNDING = 1e-5  # our values are float32, the objective here is that of the text


class Subject:
    """One data file: its block set, the commands on it, and what their models are worth."""

    def __init__(self, path, options, folder, judge, peer):
        self.path, self.options, self.judge, self.peer = Path(path), options, judge, peer
        self.cost = options.cost  # C
        self.name = self.path.name if str(path) in options.data else self.path.stem
        self.folder = folder / f"of {self.name}"
        self.folder.mkdir()
        self.blocks = self.folder / f"{self.name}.blocks"
        self.facts = peers.split(self.path, self.blocks, options)
        self.tenth = peers.budget(self.facts)
        self.rows, self.passes, self.points, self.primals, self.duals = [], [], {}, [], []

    def at(self, cost):
        """The same data with another C, whose files are its own."""
        other = copy.copy(self)
        other.cost, other.folder, other.primals, other.duals = cost, self.folder / f"C {cost:g}", [], []
        other.folder.mkdir()
        return other

    def __str__(self):
        return (f"{self.path.stat().st_size / peers.MB:.0f} MB of text, {self.facts['rows']} rows, "
                f"{self.facts['features']} features, {self.facts['nonzeros']} nonzeros")  # fmt: skip

    def file(self, name, kind):
        return self.folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.{kind}"

    def train(self, name, data, *words, bias="1"):
        log, model = self.file(name, "log"), self.file(name, "model")
        words = [*peers.llsvm("llsvm-train", self.options), "-B", bias, "-c", f"{self.cost:g}", *words]
        return peers.Command([*words, "--log", str(log), str(data), str(model)],
                             own_clock=lambda _: peers.read_log(log)[-1]["seconds"])  # fmt: skip

    def end(self, name):
        """How the last run of this name ended; its dual value bounds every objective."""
        end = peers.read_log(self.file(name, "log"))[-1]
        self.duals.append(end["dual"])
        return end

    def primal(self, name):
        """The objective of what must not be better than a certificate allows."""
        self.primals.append(self.objective(name))
        return self.primals[-1]

    def objective(self, name):
        """By NumPy, of a model file or of saved weights."""
        weights = self.file(name, "npz")
        judged, file = ((trials.objective_of_weights, weights) if weights.exists() else
                        (judging.objective_of_file, self.file(name, "model")))  # fmt: skip
        return self.judge(judged, str(self.path), file, self.cost)

    def where(self, name):
        """Where the rows were: in memory or on disk."""
        return peers.read_log(self.file(name, "log"))[0]["data"]

    @functools.cache  # noqa: B019
    def primal_at(self, tolerance):
        """The objective that ours logs, in memory from text, with this -e."""
        peers.run(self.ours(tolerance))
        return self.end(f"e {tolerance}")["primal"]

    def ours(self, tolerance):
        return self.train(f"e {tolerance}", self.path, "-s", "dual", "-e", tolerance)

    def add(self, title, ours, theirs, target, note="", is_goal=True):
        row = Row(title, ours, theirs, None if self.options.quick else target, note, is_goal)
        self.rows.append(row)
        judged = f", target {row.goal}: {row.verdict}" if row.verdict else ""
        print(f"  {title}: {ours.seconds:.2f} s, ratio {row.value:.3f}{judged}", flush=True)

    def check(self):
        """No model may be better than a certificate allows."""
        if self.primals and min(self.primals) < max(self.duals) * (1 - ROUNDING):
            raise SystemExit(f"{self.name}: a model has the objective {min(self.primals)}, below the dual objective "
                             f"{max(self.duals)}")  # fmt: skip

    def curve(self, name):
        """Certified gap by seconds of training, from the last run of this name."""
        events = [event for event in peers.read_log(self.file(name, "log"))[1:] if event.get("certified")]
        return [(event["seconds"], event["gap"]) for event in events]
