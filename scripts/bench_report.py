"""Markdown tables and plots of a benchmark."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import figures
import peers

GAP = "1e-3"  # where nobody sets the goal
SLACK = 1e-6  # by which our objective may exceed the peer's
PACKAGES = ["llsvm", "numpy", "scipy", "scikit-learn", "snapml", "liblinear-official"]
HIDDEN = {"--quiet", "--force"}


class Side(NamedTuple):
    """What one command took: seconds, peak in MB, and the primal objective of its model, if it makes one."""

    command: str
    seconds: float
    peak: str
    primal: float | None = None


class Row(NamedTuple):
    """A ratio of times, or seconds where nobody is compared with; and its target, None where the data are too small."""

    title: str
    ours: Side
    theirs: Side | None
    target: float | None
    note: str = ""
    is_goal: bool = True  # whether their objective is what ours must reach; else both are certified to the same gap

    @property
    def value(self):
        return self.ours.seconds / self.theirs.seconds if self.theirs else self.ours.seconds

    @property
    def verdict(self):
        goal = self.theirs.primal if self.theirs and self.is_goal else None
        worse = goal is not None and self.ours.primal > goal * (1 + SLACK)
        if worse or self.target is None:
            return "worse objective" if worse else ""
        return "met" if self.value <= self.target else "missed"

    @property
    def goal(self):
        return "none" if self.target is None else f"{self.target:g}"


def shown(command):
    """A command as a user would write it."""
    words = [Path(word).name if word.startswith(os.sep) else word for word in command.words]
    return shlex.join(word for word in words if word not in HIDDEN)


def table(header, rows):
    """Of Markdown, an empty line behind it."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def number(value):
    return "" if value is None else f"{value:.8g}"


def row_table(rows):
    """The targets of one data set, and the commands that were timed."""
    cells, commands = [], []
    for row in rows:
        theirs = row.theirs or Side("", float("nan"), "")
        seconds = [f"{row.ours.seconds:.2f}", f"{theirs.seconds:.2f}" if row.theirs else ""]
        verdict = "; ".join(filter(None, [row.verdict, row.note]))
        cells.append([row.title, *seconds, f"{row.value:.3f}", row.goal, verdict, row.ours.peak, theirs.peak,
                      number(row.ours.primal), number(theirs.primal)])  # fmt: skip
        commands += [f"    {row.title}", f"        {row.ours.command}"]
        commands += [f"        {theirs.command}"] if row.theirs else []
    header = ["", "ours, s", "theirs, s", "ratio", "target", "", "our peak, MB", "theirs", "our primal", "theirs"]
    return [*table(header, cells), *commands, ""]


def summary(rows_by_name):
    """Every target by data set."""
    titles = list(dict.fromkeys(row.title for rows in rows_by_name.values() for row in rows))
    lines = []
    for title in titles:
        found = [next((row for row in rows if row.title == title), None) for rows in rows_by_name.values()]
        goal = next(row.goal for row in found if row)
        lines.append([title, goal, *(f"{row.value:.2f} {row.verdict}".rstrip() if row else "" for row in found)])
    return table(["", "target, at most", *rows_by_name], lines)


def limit_table(costs, times):
    """What reading the bytes once costs, and how many times that each of our times is."""
    lines = [["seconds", "", *(f"{seconds:.3g}" for seconds in costs.values())]]
    for title, seconds in times.items():
        lines.append([title, f"{seconds:.2f}", *(f"{seconds / cost:.1f} times" for cost in costs.values())])
    return table(["", "ours, s", *costs], lines)


def machine(peer, load):
    """Processor, memory, versions, and how busy others kept it at the beginning."""
    facts = dict(line.split(":", 1) for line in _lines("/proc/cpuinfo") if ":" in line)
    processor = {name.strip(): value.strip() for name, value in facts.items()}.get("model name", platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = [f"{name} {_version(name)}" for name in PACKAGES if _version(name)]
    git = ["git", "-C", str(peers.SCRIPTS), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True)
    return [
        f"{datetime.date.today()}, {processor}, {peers.n_cores()} cores, {memory:.0f} GB, {platform.system()}, "
        f"Python {platform.python_version()}. {', '.join(versions)}; commit "
        f"{commit.stdout.strip() or 'unknown'}. LIBLINEAR: {peer.name if peer else 'none'}.",
        f"Load average at the beginning: {load:.1f}.", ""
    ]  # fmt: skip


def _lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def draw(target, panels):
    """The plot, and its points as text."""
    rows = [[panel.title, name, f"{x:.6g}", f"{y:.6g}"] for panel in panels for name, points in panel.curves.items()
            for x, y in points]  # fmt: skip
    figures.publish(target, panels, ["panel", "curve", panels[0].x, panels[0].y], rows)
    return [f"![{target.name}](docs/plots/{target.name}.png)", ""] if target.with_suffix(".png").exists() else []
