"""Time and memory by the number of rows: llsvm-split and llsvm-train out of core, under a fixed --memory."""

import itertools
import math
import statistics

import bench_report
import peers
from figures import Panel

FACTORS = [1, 2, 4, 8, 16]
SHARE = 0.25  # of the smallest that fits the memory: so little that its active rows fill it too
FEWEST_ROWS = 100  # whose time is the fixed cost
STEEPNESS = 0.1  # by which the slope may differ from 1
FLAT = 1.1  # the largest peak over the smallest
PROGRAMS = "llsvm-split", "llsvm-train"


def prefixes(path, folder):
    """Writes the first rows of a text: those that each factor stands for, and next to none; returns how many."""
    with open(path, "rb") as file:
        n_rows = sum(1 for _ in file)
    counts = {0: FEWEST_ROWS, **{factor: n_rows * factor // FACTORS[-1] for factor in FACTORS}}
    for factor, count in counts.items():
        with open(path, "rb") as source, open(folder / f"{factor}.txt", "wb") as target:
            target.writelines(itertools.islice(source, count))
    return counts


def commands(factor, memory, options, folder):
    text, blocks, log, model = (str(folder / f"{factor}.{kind}") for kind in ("txt", "blocks", "log", "model"))
    split, train = ([*peers.llsvm(program, options), "--memory", str(memory)] for program in PROGRAMS)
    train += ["-B", "1", "-c", str(options.cost), "-e", bench_report.GAP, "--log", log]
    return {("llsvm-split", factor): peers.Command([*split, "--force", "-o", blocks, text]),
            ("llsvm-train", factor): peers.Command([*train, blocks, model])}  # fmt: skip


def measure(options, folder, peer):
    """Markdown, and a panel of the peak memory."""
    counts = prefixes(peers.make("text", options.growth, folder), folder)
    memory = peers.budget(peers.split(folder / "1.txt", folder / "1.blocks", options), SHARE)
    runs = peers.interleave({name: command for factor in counts
                             for name, command in commands(factor, memory, options, folder).items()},
                            options.repeat)  # fmt: skip
    sizes = {factor: (folder / f"{factor}.txt").stat().st_size / peers.MB for factor in FACTORS}
    peaks = {program: [max(run.peak for run in runs[program, factor]) / peers.MB for factor in FACTORS]
             for program in PROGRAMS}  # fmt: skip
    if peer:
        peaks["LIBLINEAR's loading"] = [peers.run(peers.loading(peer, folder / f"{factor}.txt")).peak / peers.MB
                                        for factor in FACTORS]  # fmt: skip
    fixed, *times = (sum(runs[program, factor].wall for program in PROGRAMS) for factor in counts)
    rows = []
    for number, factor in enumerate(FACTORS):
        seconds = [*(runs[program, factor].wall for program in PROGRAMS), times[number] - fixed]
        start, *_, end = peers.read_log(folder / f"{factor}.log")
        how = f"{end['number']} ({start['data']})"
        rows.append([str(counts[factor]), f"{sizes[factor]:.0f}", *(f"{cost:.2f}" for cost in seconds), how,
                     *(f"{peak[number]:.0f}" for peak in peaks.values())])  # fmt: skip
    header = ["rows", "text, MB", *(f"{program}, s" for program in PROGRAMS), "both less the fixed cost, s", "passes",
              *(f"peak of {name}, MB" for name in peaks)]  # fmt: skip
    panel = Panel({name: list(zip(sizes.values(), peak, strict=True)) for name, peak in peaks.items()}, "text, MB",
                  "peak resident MB", "memory by data size", "xy")  # fmt: skip
    about = f"`--memory {memory / peers.MB:.1f}M` throughout, `-e {bench_report.GAP}`."
    return [about, "", *bench_report.table(header, rows), *judge(fixed, times, peaks, options.quick)], panel


def judge(fixed, times, peaks, quick):
    """Slope and spread; no verdict on the small data of a quick run."""
    spreads = [max(peaks[program]) / min(peaks[program]) for program in PROGRAMS]
    flat = "" if quick else f", target {FLAT:g}: {verdict(max(spreads) <= FLAT)}"
    return [
        f"The slope of log time against log rows, by least squares, less the {fixed:.2f} s that {FEWEST_ROWS} rows "
        f"take: {slope([seconds - fixed for seconds in times], quick)}.",
        f"The largest peak over the smallest: {spreads[0]:.2f} (split), {spreads[1]:.2f} (train){flat}.", "",
    ]  # fmt: skip


def slope(times, quick):
    if min(times) <= 0:
        return "unknown, because the data are too small to take longer than that"
    found = statistics.linear_regression(*([math.log(value) for value in values] for values in (FACTORS, times))).slope
    steep = "" if quick else f", target 1 within {STEEPNESS:g}: {verdict(abs(found - 1) <= STEEPNESS)}"
    return f"{found:.3f}{steep}"


def verdict(is_met):
    return "met" if is_met else "missed"
