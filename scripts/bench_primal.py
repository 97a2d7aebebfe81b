"""One pass of `llsvm-train -s pegasos` against one epoch of scikit-learn's SGDClassifier; -s stream against reading.

Pegasos and SGDClassifier(loss="hinge", max_iter=1) have the rows in memory, in random order, lambda = 1/(C l), and no
bias. Measured is the pass alone, or all of fit() on a CSR matrix of float64, which it takes without a conversion.
"Later ones" is the mean of ten more passes or epochs, without what is done once. CPU times, of all threads, are less
noisy on a busy machine. What averages is compared with what averages. Certified: the pass is followed by a look at all
rows, and the average is scaled. The primal objectives, after one pass, are recomputed from the text, by NumPy.

-s stream --no-certify is measured from the opening of the data to the end of its pass, from text and from a block set,
against the same without a solver: "scanning" is the text parsed and numbered, "decoding" all chunks read and decoded,
"reading" that and the rows laid out as the solver visits them. Peaks are those of whole processes.
"""

import importlib.util
import itertools
import json
import statistics
import sys
import time

import fitting
import judging
import peers
import trials

PASSES = 11
SKLEARN = {False: "scikit-learn SGDClassifier", True: "scikit-learn SGDClassifier, average"}


# --- what a child does: one thing, timed


def fit_sklearn(csr, C, seed, average, target):
    import numpy as np
    from sklearn.linear_model import SGDClassifier

    X, y = fitting.load_csr(csr)
    seconds, cpu = {}, {}
    for passes in (PASSES, 1):
        classifier = SGDClassifier(loss="hinge", alpha=1 / (C * len(y)), max_iter=passes, tol=None, shuffle=True,
                                   fit_intercept=False, average=average, random_state=seed)  # fmt: skip
        began, cpu_began = time.perf_counter(), time.process_time()
        classifier.fit(X, y)
        seconds[passes], cpu[passes] = time.perf_counter() - began, time.process_time() - cpu_began
    np.savez(target, positive=classifier.classes_[1], w=classifier.coef_[0], bias=0.0)
    return {"seconds": seconds[1], "cpu": cpu[1], "later": (cpu[PASSES] - cpu[1]) / (PASSES - 1)}


def run_pegasos(path, settings, target):
    from llsvm import memory, train

    for passes in (PASSES, 1):
        config = train.Config(memory=memory.usable() // 2, solver="pegasos", max_passes=passes, **settings)
        wall, cpu = [], []

        def look(stats, wall=wall, cpu=cpu):
            wall.append(stats.seconds)
            cpu.append(time.process_time())

        with train.open_data([path], config) as data:
            if trials.where_rows_are(data) != "in memory":
                sys.exit(f"{path}: the rows are {trials.where_rows_are(data)}, and should be in memory")
            solver, began = train.start(data, config), time.process_time()
            outcome = train.run(solver, config, look)
            trials.save_weights(target, data, outcome.w, outcome.bias)
        if passes > 1:
            later = (cpu[-1] - cpu[0]) / (len(cpu) - 1)
    return {"seconds": wall[0], "cpu": cpu[0] - began, "later": later}


def run_stream(path, threads, read_alone):
    from llsvm import memory, train

    config = train.Config(memory=memory.usable() // 2, solver="stream", certify=False, threads=threads)
    began = time.perf_counter()
    with train.open_data([path], config) as data:
        if read_alone:
            for _ in data.arenas():
                pass
        else:
            train.run(train.start(data, config), config)
        return {"seconds": time.perf_counter() - began}


def scan_text(path, threads):
    from llsvm import memory
    from llsvm.features import FeatureMap
    from llsvm.sources import open_sources
    from llsvm.text import Labels, scan_blocks

    began, working = time.perf_counter(), memory.Budget(memory.usable() // 2).left
    for _ in scan_blocks(open_sources([path]), Labels(), FeatureMap(working), threads, memory=working):
        pass
    return {"seconds": time.perf_counter() - began}


def decode_chunks(path):
    from llsvm.blockset import BlockSet

    began, blocks = time.perf_counter(), BlockSet(path)
    for chunk in range(blocks.n_chunks):
        blocks.load_chunk(chunk)
    return {"seconds": time.perf_counter() - began}


ACTIONS = {action.__name__: action for action in (fit_sklearn, run_pegasos, run_stream, scan_text, decode_chunks)}


def child(action, *arguments):
    words = [action.__name__, *map(json.dumps, arguments)]
    return peers.Command([sys.executable, __file__, "child", *words])


# --- the tables


def measure(path, options, folder, judge):
    threads, blocks = options.threads or judge(n_cores), str(folder / "bench.blocks")
    peers.run(peers.Command([*peers.llsvm("llsvm-split", options), "--force", "-o", blocks, str(path)]))
    if "pegasos" not in options.skip:
        compare_pegasos(str(path), blocks, options, folder, judge, threads)
    if "stream" not in options.skip:
        compare_stream(str(path), blocks, options, threads)


def n_cores():
    from llsvm import memory

    return memory.usable_cores()


def pegasos_commands(blocks, options, folder, threads):
    """What is run, by name; the weights of the n-th go to n.npz."""
    commands = {}
    for average in (False, True):
        if importlib.util.find_spec("sklearn"):
            target = str(folder / f"{len(commands)}.npz")
            commands[SKLEARN[average]] = child(fit_sklearn, str(folder), options.cost, options.seed, average, target)
        for certify, count in itertools.product((False, True), sorted({1, threads})):
            words = ["-s pegasos", "average" if average else "no-average", "certify" if certify else "no-certify"]
            settings = {"C": options.cost, "seed": options.seed, "average": average, "certify": certify,
                        "threads": count}  # fmt: skip
            target = str(folder / f"{len(commands)}.npz")
            commands[f"{' --'.join(words)} --threads {count}"] = child(run_pegasos, blocks, settings, target)
    return commands


def compare_pegasos(path, blocks, options, folder, judge, threads):
    """From a block set, which is loaded before the pass; of text, one pass would be one read."""
    judge(fitting.save_csr, path, folder)
    commands = pegasos_commands(blocks, options, folder, threads)
    runs = peers.interleave(commands, options.repeat)
    wall, cpu, later = ({name: measured(runs[name], what) for name in runs} for what in ("seconds", "cpu", "later"))
    files = {name: str(folder / f"{number}.npz") for number, name in enumerate(commands)}
    primals = {name: judge(trials.objective_of_weights, path, file, options.cost) for name, file in files.items()}
    rows = []
    for name in runs:
        costs, partner = [*spread(wall[name])], SKLEARN["--average" in name or name == SKLEARN[True]]
        for times in (wall, cpu, later):
            costs += [] if times is wall else [f"{statistics.median(times[name]):.4f}"]
            costs.append(share(times[name], times[partner]) if partner in times else "-")
        above = f"{primals[name] / min(primals.values()) - 1:.1e}"
        rows.append([name, *costs, f"{primals[name]:.7g}", above, runs[name].peak])
    header = "One pass|seconds|min-max|ratio|cpu|ratio|later ones, cpu|ratio|primal|above best|peak MB"
    peers.print_table(header.split("|"), rows)
    if SKLEARN[True] in runs:
        print("ratio: to scikit-learn's")
    else:
        print("scikit-learn is not installed (pip install scikit-learn)")


def compare_stream(path, blocks, options, threads):
    from_text = {"text: scanning": child(scan_text, path, threads),
                 "text: reading": child(run_stream, path, threads, True),
                 "text: -s stream --no-certify": child(run_stream, path, threads, False)}  # fmt: skip
    from_set = {"set: decoding": child(decode_chunks, blocks),
                "set: reading": child(run_stream, blocks, threads, True),
                "set: -s stream --no-certify": child(run_stream, blocks, threads, False)}  # fmt: skip
    runs, rows = peers.interleave({**from_text, **from_set}, options.repeat), []
    for group in (from_text, from_set):
        times = {name: measured(runs[name], "seconds") for name in group}
        alone, reading, _ = times.values()
        for name, own in times.items():
            shares = share(own, alone), share(own, reading)
            rows.append([name, *spread(own), *shares, f"{runs[name].cpu:.2f}", runs[name].peak])
    header = "One read|seconds|min-max|of scanning or decoding|of reading|cpu, whole process|peak MB"
    print()
    peers.print_table(header.split("|"), rows)


def measured(runs, what):
    """What the children found themselves."""
    return [json.loads(run.output)[what] for run in runs]


def spread(times):
    return f"{statistics.median(times):.4f}", f"{min(times):.4f}-{max(times):.4f}"


def share(times, of_times):
    return f"{statistics.median(times) / statistics.median(of_times):.2f}"


def main():
    parser = peers.make_parser(__doc__)
    parser.add_argument("--cost", type=float, default=1.0, help="C (default 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", action="append", choices=["pegasos", "stream"], default=[], help="leave out a table")
    options = peers.parse_options(parser)
    with peers.workplace() as folder:
        for path in peers.data_files(options, folder):
            print(f"\n{path.name}: {path.stat().st_size / peers.MB:.1f} MB of text, in the page cache. Median of "
                  f"{options.repeat}, interleaved.")  # fmt: skip
            with judging.separate_process() as judge:
                measure(path, options, folder, judge)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(ACTIONS[sys.argv[2]](*map(json.loads, sys.argv[3:]))))
    else:
        main()
