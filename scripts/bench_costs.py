"""How the cost of training grows with C, from text against LIBLINEAR and from disk against rows in memory; and what
cross-validation costs, against one training and against LIBLINEAR's.

Large C is the weak side of coordinate descent, of LIBLINEAR's as of ours. LIBLINEAR takes minutes for C = 100, so of a
larger file its first 100 MB are measured. A quarter: --memory for a quarter of the decoded rows. Cross-validation is
that of five folds with C = 1, from text to the accuracy.
"""

import bench_report
import peers
from bench_report import GAP, SLACK, Side
from bench_subject import Subject

AGAINST_LIBLINEAR, FROM_DISK = [10, 100], [0.1, 1, 10, 100]  # C
LADDER = [f"{digit}e-{power}" for power in range(1, 6) for digit in (5, 2, 1)]
FEW = 5000  # features, with which more of the time is training
MOST_BYTES, SHARE, MOST_PASSES = 100 * peers.MB, 0.25, 10
PATIENCE = 30  # seconds, after which a command is not run again
IN_MEMORY, QUARTER = "in memory", "memory for a quarter"


def contest(subject):
    of_file = beginning(subject)
    for cost in FROM_DISK:
        with_cost = of_file.at(cost)
        if cost in AGAINST_LIBLINEAR and subject.peer:
            against_liblinear(with_cost)
        from_disk(with_cost)
        with_cost.check()
    of_folds(of_file)


def beginning(subject):
    """Its first rows, as a subject with the same table."""
    if subject.path.stat().st_size <= MOST_BYTES:
        return subject
    path = subject.folder / f"{subject.name} {MOST_BYTES // peers.MB} MB"
    with open(subject.path, "rb") as source, open(path, "wb") as target:
        target.writelines(source.readlines(MOST_BYTES))
    part = Subject(path, subject.options, subject.folder, subject.judge, subject.peer)
    part.rows = subject.rows
    return part


def against_liblinear(subject):
    """Text to model, at the loosest -e that reaches LIBLINEAR's objective."""
    words = [*subject.peer.train, "-s", "3", "-B", "1", "-c", f"{subject.cost:g}", str(subject.path)]
    theirs = peers.Command([*words, str(subject.file("LIBLINEAR", "model"))])
    known = peers.interleave({"theirs": theirs}, 1)
    goal = subject.primal("LIBLINEAR")
    tolerance, _ = peers.loosest(LADDER, subject.primal_at, goal * (1 + SLACK), "llsvm")
    ours = subject.ours(tolerance)
    runs = peers.interleave({"theirs": theirs, "ours": ours}, subject.options.repeat, PATIENCE, known)
    subject.add(f"C = {subject.cost:g}: text to model / LIBLINEAR train -s 3 -B 1",
                Side(bench_report.shown(ours), runs["ours"].wall, runs["ours"].peak, subject.primal(f"e {tolerance}")),
                Side(bench_report.shown(theirs), runs["theirs"].wall, runs["theirs"].peak, goal), 0.25)  # fmt: skip


def from_disk(subject):
    """Training alone, from a block set, to one gap."""
    memory = peers.budget(subject.facts, SHARE)
    commands = {IN_MEMORY: subject.train(IN_MEMORY, subject.blocks, "-e", GAP),
                QUARTER: subject.train(QUARTER, subject.blocks, "-e", GAP, "--memory", str(memory))}  # fmt: skip
    runs = peers.interleave(commands, subject.options.repeat, PATIENCE)
    ours, theirs = (Side(bench_report.shown(commands[name]), runs[name].counted, runs[name].peak, subject.primal(name))
                    for name in (QUARTER, IN_MEMORY))  # fmt: skip
    passes = subject.end(QUARTER)["number"]
    many = f", more than {MOST_PASSES}" if passes > MOST_PASSES else ""
    note = f"--memory {memory / peers.MB:.1f}M, rows {subject.where(QUARTER)}, {passes} passes{many}"
    title = f"C = {subject.cost:g}: training, memory for a quarter / in memory"
    subject.add(title, ours, theirs, 2, note, is_goal=False)


def of_folds(subject):
    """Text to accuracy, against text to model; reads from disk, against those of one training."""
    words = ["-B", "1", "-c", f"{subject.cost:g}"]
    llsvm = [*peers.llsvm("llsvm-train", subject.options), *words]
    commands = {"folds": peers.Command([*llsvm, "-v", "5", str(subject.path)]),
                "one": subject.train("one", subject.path, "-e", GAP)}  # fmt: skip
    if subject.peer:
        commands["theirs"] = peers.Command([*subject.peer.train, "-s", "3", *words, "-v", "5", str(subject.path)])
    runs = peers.interleave(commands, subject.options.repeat, PATIENCE)
    sides = {name: Side(bench_report.shown(commands[name]), runs[name].wall, runs[name].peak) for name in commands}
    accuracy = {name: runs[name][-1].output.split()[-1] for name in ("folds", "theirs") if name in runs}
    target = 3.5 if subject.facts["features"] < FEW else 2.0
    subject.add("-v 5 / one training, from text", sides["folds"], sides["one"], target, is_goal=False)
    if subject.peer:
        note = f"accuracy {accuracy['folds']}, theirs {accuracy['theirs']}"
        subject.add("-v 5 / LIBLINEAR train -v 5 -s 3 -B 1", sides["folds"], sides["theirs"], 0.1, note, is_goal=False)
    weights = 5 * 24 * subject.facts["features"]  # three vectors for each fold
    memory, reads = str(peers.budget(subject.facts, SHARE) + weights), {}
    for name, more in {"folds": ["-v", "5"], "one": []}.items():
        log = subject.file(f"{name} from disk", "log")
        target = [] if more else [str(subject.file("one from disk", "model"))]
        peers.run(peers.Command([*llsvm, *more, "--memory", memory, "--log", str(log), str(subject.blocks), *target]))
        reads[name] = max(event.get("bytes_read") or 0 for event in peers.read_log(log))
    times = reads["folds"] / max(1, reads["one"])
    print(f"  -v 5 from disk reads {times:.2f} times the bytes of one training", flush=True)
