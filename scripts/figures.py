"""Curves as a PNG, where matplotlib is installed, and always as a table of their points in plain text."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from judging import run_apart

MARKERS = "osv^D<>pP*X"


class Panel(NamedTuple):
    """curves: name -> points (x, y), of which those that a logarithmic axis cannot show are left out; levels and times:
    name -> where a horizontal or a vertical line stands; log: the logarithmic axes; apart: curves whose points are runs
    of their own, not to be joined."""

    curves: dict
    x: str
    y: str
    title: str = ""
    log: str = ""
    levels: dict = {}
    times: dict = {}
    apart: tuple = ()


def publish(target, panels, header, rows):
    """Writes target.txt, rows under a header, and draws target.png; says so."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(row) for row in (header, *rows)]
    target.with_name(target.name + ".txt").write_text("\n".join(lines) + "\n")
    if importlib.util.find_spec("matplotlib"):
        run_apart(draw, f"{target}.png", panels)
        print(f"{target}.png, its points in {target.name}.txt")
    else:
        print(f"{target}.txt; no figure, because matplotlib is not installed (pip install matplotlib)")


def draw(file, panels):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6.5 * len(panels), 5), layout="constrained", squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for name, points in panel.curves.items():
            xs, ys = zip(*points, strict=True)
            number, line = names.index(name), "" if name in panel.apart else "-"
            axis.plot(xs, [shown(y, panel) for y in ys], color=f"C{number}", marker=MARKERS[number % len(MARKERS)],
                      markersize=4, linestyle=line, linewidth=1, label=name)  # fmt: skip
        for number, (name, y) in enumerate(panel.levels.items()):
            axis.axhline(y, color="black", linestyle=("--", ":")[number % 2], linewidth=1, label=name)
        for name, x in panel.times.items():
            axis.axvline(x, color="blue", linestyle="--", linewidth=1, label=name)
        axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xscale="log" if "x" in panel.log else "linear",
                 yscale="log" if "y" in panel.log else "linear")  # fmt: skip
        axis.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def shown(y, panel):
    return y if y > 0 or "y" not in panel.log else float("nan")
