"""llsvm-train -s shrink, text to model in one pass, against all of LIBLINEAR's `train -s 3 -B 1` and llsvm-split.

The pass must cost about what parsing costs: "the pass" is the time that shrink logs for its first pass, "the solve"
that for the rounds over the active rows, and "of splitting" the whole run without the solve, over llsvm-split's time on
the same file. The last row is the run with memory for a tenth of the decoded data (8 bytes a nonzero and a row).
"""

import peers

SPLIT, TOTAL = "llsvm-split", "LIBLINEAR train -s 3 -B 1"


def measure(path, peer, options, folder):
    peers.print_heading(path, peer, options)
    target = folder / "bench.blocks"
    split = peers.Command([*peers.llsvm("llsvm-split", options), "--force", "-o", str(target), str(path)])
    tenth = peers.budget(peers.split(path, target, options))
    ways = {"one pass, --no-certify": ["--no-certify"], "one pass, certified": [],
            f"one pass, certified, --memory {tenth / peers.MB:.1f}M": ["--memory", str(tenth)]}  # fmt: skip
    logs = {name: folder / f"{number}.log" for number, name in enumerate(ways)}
    ours = {name: shrink(path, options, folder, logs[name], words) for name, words in ways.items()}
    theirs = peers.Command([*peer.train, "-s", "3", "-B", "1", str(path), str(folder / "theirs")])
    runs = peers.interleave({TOTAL: theirs, SPLIT: split, **ours}, options.repeat)
    rows = []
    for name, cost in runs.items():
        share = f"{cost.wall / runs[TOTAL].wall:.3f}"
        row = [name, f"{cost.wall:.2f}", cost.spread, f"{cost.cpu:.2f}", cost.peak, share]
        rows.append(row + (explain(logs[name], cost, runs[SPLIT]) if name in logs else ["-"] * 6))
    header = "|seconds|min-max|cpu|peak MB|of LIBLINEAR's|the pass|the solve|of splitting|rows kept|of rows|gap"
    peers.print_table(header.split("|"), rows)


def shrink(path, options, folder, log, words):
    command = [*peers.llsvm("llsvm-train", options), "-s", "shrink", "-B", "1", "--log", str(log), *words]
    return peers.Command([*command, str(path), str(folder / "ours")])


def explain(log, cost, split):
    """From the last run's log: the first pass, what followed it, and how the former compares with splitting."""
    _, first, *later, end = peers.read_log(log)
    solve = (later[-1]["seconds"] if later else first["seconds"]) - first["seconds"]
    gap = "none" if end["gap"] is None else f"{end['gap']:.2e}"
    return [f"{first['seconds']:.2f}", f"{solve:.2f}", f"{(cost.wall - solve) / split.wall:.2f}", str(first["active"]),
            f"{first['active'] / first['visits']:.1%}", gap]  # fmt: skip


if __name__ == "__main__":
    peers.measure_files(peers.make_parser(__doc__), measure)
