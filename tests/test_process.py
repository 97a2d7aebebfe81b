"""Descriptors that are closed, signals while modules are loaded and at any step, and what both leave behind."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import contents, names, run_alone, run_command, server, spawn_command

PATIENCE = 60
EXIT_CODE = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}

# --- standard input, output and error, each open or closed

CLOSED = [set(closed) for n in range(4) for closed in itertools.combinations(range(3), n)]
# What each command needs, and what it has written when it says so on standard output.
COMMANDS = {
    "split": (["llsvm-split", "-", "-o", "new.blocks"], {0, 1}, "new.blocks"),
    "train": (["llsvm-train", "-", "new"], {0, 1}, "new"),
    "train to the output": (["llsvm-train", "data.txt", "-"], {1}, None),
    "train from a set": (["llsvm-train", "-q", "data.txt.blocks", "new"], set(), "new"),
    "predict": (["llsvm-predict", "test.txt", "model", "new"], {1}, "new"),
    "predict to the output": (["llsvm-predict", "test.txt", "model", "-"], {1}, None),
    "info": (["llsvm", "info", "model"], {1}, None),
    "help": (["llsvm", "--help"], {1}, None),
}


def run_closed(folder, command, closed):
    """(exit code, standard output, standard error) with these descriptors closed from the start."""
    with open(folder / "data.txt", "rb") as data:
        process = spawn_command(folder, *command, stdin=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: [os.close(number) for number in closed])  # fmt: skip
        output, messages = process.communicate(timeout=PATIENCE)
    return process.returncode, output.decode(), messages.decode()


def without_times(text):
    return [line for line in text.splitlines() if not line.startswith(("time =", "peak memory ="))]


@pytest.mark.parametrize("command", [
    ["llsvm-split", "data.txt", "-o", "new.blocks"], ["llsvm-train", "-B", "1", "-", "-"],
    ["llsvm-train", "gone", "new"], ["llsvm-predict", "test.txt", "model", "-", "--scores"],
    ["llsvm", "info", "data.txt.blocks", "--verify"], ["llsvm", "--help"],
], ids=" ".join)  # fmt: skip
def test_a_command_in_a_fork_says_and_leaves_what_it_does_alone(tmp_path, prepared, command):
    """Most tests run commands in forks of a process that has loaded their modules."""
    found = []
    for number, way in enumerate((run_alone, run_command)):
        folder = shutil.copytree(prepared, tmp_path / f"{number}")
        ended = way(folder, *command, stdin=(folder / "data.txt").read_bytes())
        said = [re.sub(r"\d+\.\d\d s|[\d.]+ MB\b", "?", "\n".join(without_times(text))) for text in ended[1:]]
        found.append((ended.returncode, said, contents(folder)))
    assert server().serves(command[0]) and found[0] == found[1]



FEW = [set(), {0}, {1}, {2}, {0, 1, 2}]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_closed_descriptors_are_told_and_lose_nothing(here, command):
    words, needed, written = COMMANDS[command]
    before = names(here)
    _, expected, _ = run_closed(here, words, set())
    for closed in CLOSED if len(needed) == 2 or written is None and command != "info" else FEW:
        if written:
            subprocess.run(["rm", "-r", here / written], check=True, stderr=subprocess.DEVNULL)
        code, output, messages = run_closed(here, words, closed)
        assert code == bool(needed & closed)
        assert "Traceback" not in messages and "Exception ignored" not in messages
        done = not {0} & needed & closed
        assert names(here) - before == ({written, *(f"{written}/{name}" for name in os.listdir(here / written))}
                                        if done and command == "split" else {written} if done and written else set())
        if not code:
            assert without_times(output) == without_times(expected)
        elif 2 not in closed:
            error = [line for line in messages.splitlines() if line.startswith("error: ")]
            which = "input" if not done else "output"
            complete = f"; {written} is complete" if done and written else ""
            assert error == [f"error: standard {which} is closed{complete}"]
        if not done and written:
            (here / written).mkdir()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", set(COMMANDS) - {"train from a set"})
def test_a_full_standard_output_is_told_by_its_name(here, command):
    words, _, written = COMMANDS[command]
    with open("/dev/full", "wb") as full, open(here / "data.txt", "rb") as data:
        process = spawn_command(here, *words, stdin=data, stdout=full, stderr=subprocess.PIPE)
        messages = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == 1
    complete = f"; {written} is complete" if written else ""
    assert f"error: standard output cannot be used: No space left on device{complete}\n" in messages
    assert not written or (here / written).exists()


@pytest.mark.parametrize("command, code", [
    (["llsvm-predict", "test.txt", "model", "-"], 0), (["llsvm-predict", "test.txt", "nothing", "-"], 1),
    (["llsvm-predict", "--nonsense"], 2), (["llsvm"], 2),
])  # fmt: skip
def test_a_full_standard_error_changes_nothing_else(here, command, code):
    with open("/dev/full", "wb") as full:
        process = spawn_command(here, *command, stdout=subprocess.PIPE, stderr=full)
        output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == code
    assert bool(output) == (code == 0)


# --- as many files as may be open


@pytest.mark.slow
@pytest.mark.parametrize("command", [
    ["llsvm-split", "data.txt", "-o", "new"], ["llsvm-train", "data.txt", "new"],
    ["llsvm-train", "data.txt.blocks", "new"], ["llsvm-predict", "test.txt", "model", "new"],
], ids=["split", "train", "train from a set", "predict"])  # fmt: skip
def test_where_few_files_may_be_open_nothing_unfinished_stays(here, run, command):
    before, codes = names(here), set()
    for most in range(5, 12):  # with fewer, Python does not start
        finished = run("sh", "-c", f'ulimit -n {most}; exec "$@"', "sh", *command, "-q")
        codes.add(finished.returncode)
        assert finished.returncode == 0 or "error: " in finished.stderr and "Traceback" not in finished.stderr
        assert {name for name in names(here) - before if name.startswith(".")} == set()
        assert (here / "new").exists() == (finished.returncode == 0)
        subprocess.run(["rm", "-rf", here / "new"], check=True)
    assert 1 in codes


# --- threads

THREADLESS = """if True:
    import _thread, sys
    def refuse(*arguments):
        raise RuntimeError("can't start new thread")
    _thread.start_new_thread = refuse
    sys.argv = sys.argv[1:]
    from llsvm import cli
    getattr(cli, sys.argv[0].removeprefix("llsvm-") + "_main")()
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [
    ["llsvm-split", "data.txt", "-o", "new"], ["llsvm-train", "-s", "block", "data.txt", "new"],
    ["llsvm-predict", "test.txt", "model", "new"], ["llsvm-predict", "data.txt.blocks", "model", "new"],
], ids=["split", "train", "predict text", "predict a set"])  # fmt: skip
def test_where_no_thread_can_be_had_the_output_is_the_same(here, run, command):
    """As under a limit of a container, which does not bind root."""
    command = [*command, "--threads", "3"]
    assert run(*command).returncode == 0
    (here / "new").rename(here / "expected")
    finished = run(sys.executable, "-c", THREADLESS, *command)
    assert finished.returncode == 0, finished.stderr
    for name in os.listdir(here / "new") if command[0] == "llsvm-split" else [""]:
        assert (here / "new" / name).read_bytes() == (here / "expected" / name).read_bytes()


# --- a limit on memory


@pytest.mark.parametrize("command", [
    ["llsvm-train", "data.txt", "new"], ["llsvm-predict", "test.txt", "model", "new"], ["llsvm", "info", "model"],
], ids=["train", "predict", "info"])  # fmt: skip
def test_a_limit_in_which_numpy_cannot_be_loaded_is_told(here, run, command):
    """Loading it would crash at some limits, and hang at others."""
    for most in (40_000, 95_348, 95_380, 95_420):
        finished = run("sh", "-c", f'ulimit -v {most}; exec "$@"', "sh", *command)
        assert finished.returncode == 1 and not (here / "new").exists()
        assert finished.stderr == (f"error: ulimit -v {most} is too small to load NumPy\n"
                                   "hint: at least ulimit -v 114688 is needed\n")


# --- signals

# As the installed script, with a signal when a module of this name is looked for.
SIGNALLED = """if True:
    import os, sys
    name, number, *sys.argv = sys.argv[1:]
    class Signalling:
        def find_spec(wanted, path, target=None):
            if wanted == name:
                sys.meta_path.remove(Signalling)
                os.kill(os.getpid(), int(number))
    sys.meta_path.insert(0, Signalling)
    from llsvm import cli
    getattr(cli, sys.argv[0].removeprefix("llsvm-") + "_main")()
"""
MOMENTS = [
    ("llsvm-split", "click"), ("llsvm-split", "click.types"), ("llsvm-split", "llsvm.core"),
    ("llsvm-split", "llsvm.writer"), ("llsvm-train", "numpy"), ("llsvm-train", "numpy.linalg"),
    ("llsvm-train", "llsvm._dual_cd"), ("llsvm-predict", "llsvm.evaluate"), ("llsvm-split", "json"),
]  # fmt: skip


@pytest.mark.parametrize("number", EXIT_CODE, ids=lambda number: number.name)
@pytest.mark.parametrize("command, module", MOMENTS)
def test_a_signal_while_modules_are_loaded_ends_without_a_traceback(interrupts_are_not_ignored, here, number, command,
                                                                    module):  # fmt: skip
    words = {"llsvm-split": ["data.txt", "-o", "new.blocks"], "llsvm-train": ["data.txt", "new"],
             "llsvm-predict": ["test.txt", "model", "new"]}[command]  # fmt: skip
    before = names(here)
    process = spawn_command(here, sys.executable, "-c", SIGNALLED, module, int(number), command, *words,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    output, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == EXIT_CODE[number]
    lines = [line for line in messages.decode().splitlines() if not line.startswith(command)]
    assert len(lines) == (number == signal.SIGINT)
    assert not lines or lines[0].startswith("error: interrupted")
    assert output == b"" and names(here) == before


@pytest.mark.parametrize("name, code", [("llsvm-train", 130), ("another", -signal.SIGINT)])
def test_an_interrupt_before_signals_are_listened_to(interrupts_are_not_ignored, here, name, code):
    """A program that imports us gets its KeyboardInterrupt, which ends it by the signal."""
    process = spawn_command(here, sys.executable, "-c", SIGNALLED, "llsvm.process", int(signal.SIGINT), name,
                            "data.txt", "new", stderr=subprocess.PIPE)  # fmt: skip
    messages = process.communicate(timeout=PATIENCE)[1].decode()
    assert process.returncode == code
    assert messages == "error: interrupted\n" if code > 0 else "KeyboardInterrupt" in messages


# As the installed script; what is raised when a module of this name is looked for.
LACKING = """if True:
    import sys
    name, *sys.argv = sys.argv[1:]
    class Lacking:
        def find_spec(wanted, path, target=None):
            if wanted == name:
                raise SystemError("error return without exception set")
    sys.meta_path.insert(0, Lacking)
    from llsvm import cli
    getattr(cli, sys.argv[0].removeprefix("llsvm-") + "_main")()
"""


@pytest.mark.parametrize("module", ["click", "llsvm.core", "llsvm.session", "numpy", "llsvm._dual_cd", "zstandard"])
def test_what_memory_does_not_suffice_to_load_is_told_in_a_sentence(here, run, module):
    finished = run(sys.executable, "-c", LACKING, module, "llsvm-train", "data.txt", "new")
    assert finished.returncode == 1 and not (here / "new").exists()
    assert finished.stderr == ("error: a part of llsvm cannot be loaded: SystemError: error return without exception "
                               "set\nhint: install it again, or allow more memory\n")


@pytest.mark.parametrize("command", [["split", "data.txt", "-o", "new"], ["train", "data.txt", "new"],
                                     ["predict", "test.txt", "model", "new"]])  # fmt: skip
def test_what_could_not_be_removed_without_memory_is_removed_in_the_end(here, command):
    """Memory ends while the data are read, and again when the first thing is to be removed."""
    before = names(here)
    code = ("import sys\nfrom llsvm import cli, process, text\n"
            "def no_memory(*_):\n    process.remove = removing\n    raise MemoryError\n"
            "removing, process.remove = process.remove, no_memory\n"
            f"sys.argv = {['llsvm', *command]!r}\n"
            "text.Piece.scan = lambda piece: (_ for _ in ()).throw(MemoryError)\ncli.main()\n")
    ended = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1 and "error: out of memory" in ended.stderr.splitlines()
    assert names(here) == before


def test_a_signal_that_was_ignored_stays_so(here):
    """As `nohup` and `&` of a shell want it."""
    process = spawn_command(here, sys.executable, "-c", SIGNALLED, "click", int(signal.SIGHUP), "llsvm-train",
                            "data.txt", "new", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # fmt: skip
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and (here / "new").is_file()


def test_a_program_that_imports_the_commands_keeps_its_own_signals():
    code = "import signal; signal.signal(2, signal.default_int_handler); from llsvm import cli; " \
           "print(signal.getsignal(2) is signal.default_int_handler, signal.getsignal(15) is signal.SIG_DFL)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True True\n"


# Loads all that a command needs, and runs it in children that are sent a signal at a line of Python, of those from the
# beginning of the work on. Prints as JSON how each ended, what it left and what it said.
AT_ANY_LINE = """if True:
    import hashlib, json, os, shutil, signal, sys, time
    from llsvm import cli, predict, process, session, split
    n_moments, *sys.argv = sys.argv[1:]
    main = getattr(cli, sys.argv[0].removeprefix("llsvm-") + "_main")
    work = {"split_text", "train_model", "predict_labels"}
    before = set(os.listdir())

    class Tracer:
        def __init__(self, line=0, number=0):
            self.line, self.number, self.lines = line, number, -1

        def __call__(self, frame, event, argument):
            if self.lines < 0 and frame.f_code.co_name not in work:
                return None
            self.lines += event == "line" or self.lines < 0
            if self.lines == self.line and self.number:
                self.number = os.kill(os.getpid(), self.number)
            return self

    def run(tracer):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            cli.leave = lambda code: (os.write(writing, str(tracer.lines).encode()), os._exit(code))
            for number, name in enumerate((os.devnull, "output", "messages")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            process.begin()
            sys.settrace(tracer)
            main()
        os.close(writing)
        deadline = time.monotonic() + 30
        while not (status := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(0.001)
            if time.monotonic() > deadline:
                os.kill(child, 9)
        lines, messages = int(os.read(reading, 100) or 0), open("messages").read()
        os.close(reading)
        left = {}
        for name in set(os.listdir()) - before - {"output", "messages"}:
            left[name] = digest(name)
            (shutil.rmtree if os.path.isdir(name) else os.unlink)(name)
        return os.waitstatus_to_exitcode(status[1]), lines, left, os.listdir("tmp"), messages

    def digest(name):
        names = [name] if os.path.isfile(name) else [os.path.join(name, file) for file in sorted(os.listdir(name))]
        return hashlib.sha256(b"".join(open(name, "rb").read() for name in names)).hexdigest()

    whole = run(Tracer())
    print(json.dumps(whole))
    for moment in range(int(n_moments)):
        number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[moment % 3]
        print(json.dumps([number, *run(Tracer(1 + whole[1] * moment // int(n_moments), number))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["llsvm-split", "llsvm-train", "llsvm-train -s block", "llsvm-predict"])
def test_a_signal_at_any_line_leaves_a_whole_output_or_none(interrupts_are_not_ignored, here, run, command):
    main, *more = command.split()
    words = {"llsvm-split": ["data.txt", "-o", "new.blocks"], "llsvm-predict": ["test.txt", "model", "new"],
             "llsvm-train": ["--max-passes", "2", *more, "data.txt", "new"]}[main]  # fmt: skip
    finished = run(sys.executable, "-c", AT_ANY_LINE, 36, main, *words)
    assert finished.returncode == 0, finished.stderr
    (code, lines, whole, temporary, messages), *ends = map(json.loads, finished.stdout.splitlines())
    assert code == 0 and lines > 100 and len(whole) == 1 and not temporary and len(ends) == 36
    for number, code, _, left, temporary, messages in ends:
        came_late = number == signal.SIGINT and main == "llsvm-train" and left  # the model so far is written
        assert code == EXIT_CODE[number] or (code == 0 and came_late)
        assert left in ({}, whole) or (came_late and left.keys() == whole.keys())
        assert not temporary
        assert "Traceback" not in messages and "Exception ignored" not in messages
        # What ended by itself before the answer was written is no longer interrupted.
        assert ("interrupted" in messages) == (number == signal.SIGINT) or (code == 0 and came_late)
    assert {} in [left for *_, left, _, _ in ends]
