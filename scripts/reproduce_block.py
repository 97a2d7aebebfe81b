"""The experiments of the block minimisation paper (Yu, Hsieh, Chang, Lin, KDD 2010), section 7, on data of one's own.

Rows as they are in the file, no bias, C = 1. All times are wall-clock times with the files in the page cache; those of
methods that work on blocks include the split. Objective and accuracy are recomputed from the text by NumPy.

figure2      objective, as a relative difference to the optimum, and test accuracy, as a difference to the best one met,
             against training time, after every pass:
               BLOCK-L-1, -10, -D   llsvm-train -s block --inner 1, 10, auto
               BLOCK-P-B, -P-I      -s pegasos --no-average --batch block, 1
               ours                 -s dual; -s pegasos with its average
               LIBLINEAR            train -s 3 with several -e: a run and a point each, all rows in its memory
               StreamSVM            -s stream on the text, without a split; a point, accuracy only, as in the paper
             All but LIBLINEAR have memory for a tenth of the rows, decoded, or for what needs most of them
figure3      BLOCK-L-D on text sorted by class: "raw" keeps its order, block j being the j-th part of it; "random" has
             rows in random blocks, as llsvm-split does it; "perm" visits the blocks in random order in every pass
figure4      BLOCK-L-D and the number of blocks
compression  section 7.6: ten passes of BLOCK-L-D with blocks that zstd compressed and with the same bytes as they are
             (packed, and checked by CRC-32); "from disk" drops the files from the page cache before every pass
"""

import functools
import itertools
import statistics
import zlib
from pathlib import Path
from typing import NamedTuple

import judging
import peers
import reproducing
import trials
from figures import Panel, publish

PARTS = ["figure2", "figure3", "figure4", "compression"]
METHODS = {
    "BLOCK-L-1": {"solver": "block", "inner": 1},
    "BLOCK-L-10": {"solver": "block", "inner": 10},
    "BLOCK-L-D": {"solver": "block", "inner": 0},
    "BLOCK-P-B": {"solver": "pegasos", "batch": 0, "average": False, "certify": False},
    "BLOCK-P-I": {"solver": "pegasos", "batch": 1, "average": False, "certify": False},
    "ours, -s pegasos": {"solver": "pegasos", "certify": False},
    "ours, -s dual": {"solver": "dual"},
}
BLOCK_L_1, BLOCK_L_D, STREAM, LIBLINEAR = "BLOCK-L-1", "BLOCK-L-D", "StreamSVM", "LIBLINEAR"
LADDER = ["1", "0.3", "0.1", "0.03", "0.01", "0.003", "0.001", "0.0001"]
STEPS = [1e-1, 1e-2, 1e-3, 1e-4]
TOLERANCE = 1e-5  # of methods that know their gap; the others go on until they have made all passes
SMALLEST_BUDGET = 64 << 10
COMPRESSION_PASSES = 10


class Point(NamedTuple):
    """Of a curve: seconds with the split, relative difference to the optimum."""

    passes: int
    seconds: float
    objective: float
    difference: float
    accuracy: float


# --- what runs in processes apart and changes llsvm there


def split_in_order(text, target, n_blocks, threads, n_rows):
    """As trials.split, but block j is the j-th part of the rows."""
    from llsvm import _writer

    scatter = _writer.scatter

    def scatter_in_order(codes, indptr, features, values, row, first_row, seed, target, chunks, sizes):
        full = -1
        while row < len(codes) and full < 0:
            block = (first_row + row) * n_blocks // n_rows
            end = min(len(codes), -(-(block + 1) * n_rows // n_blocks) - first_row)
            own = slice(4 * block, 4 * block + 4)
            row, full = scatter(codes[:end], indptr, features, values, row, first_row, seed, target, chunks[own],
                                sizes[own])  # fmt: skip
        return row, full if full < 0 else block

    replaced = trials.Replaced(_writer, "scatter", scatter_in_order)
    return replaced.check(trials.split(text, target, n_blocks, threads))


def follow_in_order(*arguments):
    """As trials.follow, but the blocks come in the same order in every pass."""
    import numpy as np

    from llsvm.solvers.blocks import BlockByBlock

    def groups(plan):
        while True:
            for block in np.unique(plan.blocks.chunk_block):
                yield plan.blocks.block_chunks(block).tolist()

    replaced = trials.Replaced(BlockByBlock, "groups", groups)
    return replaced.check(trials.follow(*arguments))


def uncompressed(function, *arguments):
    """Calls a function with chunks as they are, a CRC-32 behind them, in place of zstd's frames."""
    from llsvm import frames

    def compress(codec, data):
        return bytes(data) + zlib.crc32(data).to_bytes(4, "little")

    def decompress(codec, frame, checksum, room, where):
        data = memoryview(frame)[:-4]
        if not frames.frame_checksum(frame) == checksum == f"{zlib.crc32(data):08x}":
            raise ValueError(f"{where}: wrong checksum")
        memoryview(room)[: len(data)] = data
        return room[: len(data)]

    trials.Replaced(frames.Codec, "compress", compress)
    replaced = trials.Replaced(frames.Codec, "decompress", decompress)
    result = function(*arguments)
    return replaced.check(result) if function is trials.follow else result


def compressed(function, *arguments):
    return function(*arguments)


# --- the experiments


class BlockStudy(reproducing.Study):
    """One data file, its block sets, and curves over them."""

    def __init__(self, path, options, folder, judge, peer):
        super().__init__(path, options, folder, judge)
        self.peer, self.C, self._sets = peer, options.cost, {}

    def blocks(self, n_blocks):
        """A set of this many blocks, and the seconds that making it took."""
        target = self.folder / f"{n_blocks}.blocks"
        if target not in self._sets:
            self._sets[target] = judging.run_apart(trials.split, self.two_class_text, target, n_blocks, self.n_threads)
        return target, self._sets[target]

    def budget(self, blocks, methods):
        """Memory as the options say, but enough for these methods; those of BLOCK-L take the same."""
        tenth = 8 * (self.facts.nonzeros + self.facts.rows) // 10
        ways = [self.settings(**METHODS[name]) for name in methods]
        wanted = self.options.memory or max(tenth, SMALLEST_BUDGET)
        return judging.run_apart(trials.enough_memory, blocks, ways, wanted)

    def curve(self, name, settings, data, spent=0.0, follow=trials.follow):
        """The points of a run, and where its rows were; spent: seconds before it."""
        settings = {"tolerance": TOLERANCE, **self.settings(**settings)}
        trial = judging.run_apart(follow, data, settings, self.file(name), self.options.passes, self.options.seconds)
        points = [self.point(moment.passes, spent + moment.seconds, self.worth(moment.weights))
                  for moment in trial.moments]  # fmt: skip
        return points, trial.where

    def point(self, passes, seconds, worth):
        """A difference smaller than that by which the optimum may be wrong is shown as that."""
        (objective, accuracy), (optimum, _, dual) = worth, self.optimum
        return Point(passes, seconds, objective, max(abs(objective / optimum - 1), 1 - dual / optimum), accuracy)

    def stream(self):
        """The one point of StreamSVM, and where its rows were."""
        settings = self.settings(solver="stream", certify=False)
        solution = judging.run_apart(trials.solve, self.two_class_text, settings, self.file(STREAM))
        return [self.point(1, solution.seconds, self.worth(solution.weights))], solution.where

    def liblinear(self):
        """A run and a point for every tolerance."""
        points, data = [], str(self.two_class_text)
        for tolerance in LADDER:
            model = self.file(f"liblinear {tolerance}")
            words = [*self.peer.train, "-s", "3", "-c", str(self.C), "-e", tolerance, data, model]
            run = peers.run(peers.Command(words))
            points.append(self.point(0, run.wall, self.judge(worth_of_model, model, data, self.two_class_test, self.C)))
        return points

    def table_and_figure(self, number, curves, places, splits, accuracies=True):
        """The curves summed up, printed; all points and the figure, in files."""
        print_curves(f"Figure {number}", curves, places)
        best = max(point.accuracy for points in curves.values() for point in points)
        nearness = {name: [(point.seconds, point.difference) for point in points] for name, points in curves.items()}
        errors = {name: [(point.seconds, best - point.accuracy) for point in points] for name, points in curves.items()}
        nearness.pop(STREAM, None)
        x, y = "training time, seconds", f"difference to the best {self.accuracy_column}"
        style = {"log": "xy", "times": splits, "apart": (LIBLINEAR,)}
        panels = [Panel(nearness, x, "relative difference to the optimum", self.two_class_name, **style)]
        panels += [Panel(errors, x, y, f"best: {best:.3f} %", **style)] if accuracies else []
        rows = [[name, str(point.passes), f"{point.seconds:.4f}", f"{point.objective:.10g}", f"{point.difference:.3e}",
                 f"{point.accuracy:.4f}"] for name, points in curves.items() for point in points]  # fmt: skip
        target = Path(self.options.output, f"block-figure{number}-{self.name}")
        publish(target, panels, ["curve", "pass", "seconds", "objective", "difference", self.accuracy_column], rows)


def worth_of_model(model, train, test, C):
    linear = judging.read_model(model)
    return judging.objective(train, linear, C), judging.accuracy(str(test), linear)


def print_curves(title, curves, places):
    header = [title, "rows", "passes", *(f"to {step:g}" for step in STEPS), "total", "least difference",
              "accuracy % first", "last", "best"]  # fmt: skip
    rows = []
    for name, points in curves.items():
        last, best = points[-1], max(point.accuracy for point in points)
        reached = [[point.seconds for point in points if point.difference <= step] for step in STEPS]
        reached = [f"{seconds[0]:.2f}" if seconds else "-" for seconds in reached]
        rows.append([name, places[name], str(last.passes or "-"), *reached, f"{last.seconds:.2f}",
                     f"{min(point.difference for point in points):.1e}", f"{points[0].accuracy:.2f}",
                     f"{last.accuracy:.2f}", f"{best:.2f}"])  # fmt: skip
    peers.print_table(header, rows)
    print("seconds, with the split, until the objective is so near to the optimum")


def figure2(study):
    blocks, split_seconds = study.blocks(study.options.blocks)
    budget = study.budget(blocks, [name for name in METHODS if name not in ("BLOCK-L-10", BLOCK_L_D)])
    print(f"{study.options.blocks} blocks, split in {split_seconds:.2f} s; memory {budget / peers.MB:.2f} MB")
    curves, places = {}, {}
    for name, settings in METHODS.items():
        curves[name], places[name] = study.curve(name, {**settings, "memory": budget}, blocks, split_seconds)
    curves[STREAM], places[STREAM] = study.stream()
    curves[LIBLINEAR], places[LIBLINEAR] = study.liblinear(), "in memory"
    study.table_and_figure(2, curves, places, {"split": split_seconds})


def figure3(study):
    n_blocks = study.options.blocks
    text = sort_by_class(study.two_class_text, study.folder / "sorted")
    raw, random = study.folder / "raw.blocks", study.folder / "random.blocks"
    spent = {raw: judging.run_apart(split_in_order, text, raw, n_blocks, study.n_threads, study.facts.rows),
             random: judging.run_apart(trials.split, text, random, n_blocks, study.n_threads)}  # fmt: skip
    curves, places, ways = {}, {}, {"": follow_in_order, ", perm": trials.follow}
    for blocks, (order, follow) in itertools.product((raw, random), ways.items()):
        name = blocks.stem + order
        settings = {**METHODS[BLOCK_L_D], "memory": study.budget(blocks, [BLOCK_L_1])}
        curves[name], places[name] = study.curve(f"figure 3 {name}", settings, blocks, spent[blocks], follow)
    study.table_and_figure(3, curves, places, {"split": spent[random]}, accuracies=False)


def sort_by_class(path, target):
    with open(target, "wb") as file:
        for wanted in reproducing.scan(path).labels:
            with open(path, "rb") as source:
                file.writelines(line for line in source if reproducing.canonical(line.split(None, 1)[0]) == wanted)
    return target


def figure4(study):
    curves, places = {}, {}
    for n_blocks in study.options.block_counts:
        blocks, spent = study.blocks(n_blocks)
        settings, name = {**METHODS[BLOCK_L_D], "memory": study.budget(blocks, [BLOCK_L_1])}, f"m = {n_blocks}"
        curves[name], places[name] = study.curve(f"figure 4 {name}", settings, blocks, spent)
        print(f"{name}: split in {spent:.2f} s; memory {settings['memory'] / peers.MB:.2f} MB")
    study.table_and_figure(4, curves, places, {}, accuracies=False)


def compression(study):
    ways, rows = {"zstd": compressed, "uncompressed": uncompressed}, []
    sets = {name: study.folder / f"{name}.blocks" for name in ways}
    settings = {**METHODS[BLOCK_L_D], "tolerance": 1e-300}
    splits, times = {}, {(name, cold): [] for name in ways for cold in (False, True)}
    for name, codec in ways.items():
        splits[name] = judging.run_apart(codec, trials.split, study.two_class_text, sets[name], study.options.blocks,
                                         study.n_threads)  # fmt: skip
    settings = study.settings(**settings, memory=study.budget(sets["zstd"], [BLOCK_L_1]))
    for _ in range(study.options.repeat):
        for (name, cold), seconds in times.items():
            before = functools.partial(peers.forget, Path(sets[name])) if cold else None
            trial = judging.run_apart(ways[name], trials.follow, sets[name], settings, study.file(name),
                                      COMPRESSION_PASSES, float("inf"), before)  # fmt: skip
            seconds.append(trial.moments[-1].seconds)
    for name, folder in sets.items():
        size = sum(path.stat().st_size for path in folder.iterdir())
        medians = [f"{statistics.median(times[name, cold]):.2f}" for cold in (False, True)]
        rows.append([name, f"{size / peers.MB:.1f}", f"{splits[name]:.2f}", *medians])
    header = ["Section 7.6", "MB on disk", "split, seconds", f"{COMPRESSION_PASSES} passes, from the page cache"]
    peers.print_table([*header, "from disk"], rows)
    print(f"medians of {study.options.repeat}")


def reproduce(study):
    objective, accuracy, dual = study.optimum
    print(f"\n{study.two_class_name}: {study.facts}. C = {study.C:g}. llsvm on {study.n_threads} threads.\nOptimum"
          f" {objective:.9g}, at least {dual:.9g} (-s dual); its {study.accuracy_column}: {accuracy:.2f}. "
          f"Peer: {study.peer.name}.")  # fmt: skip
    for name, part in zip(PARTS, (figure2, figure3, figure4, compression), strict=True):
        if name not in study.options.skip:
            print()
            part(study)


def parse_options():
    parser = reproducing.make_parser(__doc__)
    reproducing.add_two_class_options(parser)
    reproducing.add_skip(parser, PARTS)
    parser.add_argument("--cost", type=float, default=1.0, help="C (default 1)")
    parser.add_argument("--blocks", type=int, default=40, metavar="M", help="number of blocks (default 40)")
    parser.add_argument("--block-counts", type=lambda text: [int(word) for word in text.split(",")],
                        default=[10, 40, 400], metavar="M,...", help="of Figure 4 (default 10,40,400)")  # fmt: skip
    parser.add_argument("--memory", type=int, metavar="BYTES", help="of all but LIBLINEAR (default: a tenth)")
    parser.add_argument("--passes", type=int, default=30, help="of a curve, at most (default 30)")
    parser.add_argument("--seconds", type=float, default=300, help="of a curve, at most (default 300)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case of section 7.6 (default 3)")
    peers.add_peer(parser)
    return reproducing.parse_options(parser, PARTS)


def main():
    options = parse_options()
    peer = peers.find_liblinear(options.peer)
    for path in options.data:
        with peers.workplace() as folder, judging.separate_process() as judge:
            reproduce(BlockStudy(path, options, folder, judge, peer))


if __name__ == "__main__":
    main()
