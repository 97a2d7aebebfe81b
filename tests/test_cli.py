"""The commands as a user types them: what they print, what they leave, how they refuse."""

import gzip
import json
import os
import pty
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import accuracy_line, assert_refused, contents
from objectives import objective
from problems import COMPRESS, N_FEATURES, TEST, TRAINING, as_text, predicted, read_model

ROOT = Path(__file__).parents[1]


def primal(path, **terms):
    """The objective of a model on the training rows."""
    return objective(*TRAINING, read_model(path), **terms)


def printed_primal(stdout):
    return float(re.search(r"primal objective = (\S+)", stdout)[1])


@pytest.fixture
def bare(here):
    """The folder without its block set."""
    shutil.rmtree(here / "data.txt.blocks")
    return here


# --- the main road


def test_the_three_lines_of_the_readme_work_one_after_the_other(run, bare):
    (bare / "model").unlink()
    lines = "llsvm-split data.txt -m 40", "llsvm-train -s dual -c 1 -B 1 model", "llsvm-predict test.txt model out"
    split, train, predict = (run(*line.split()) for line in lines)
    assert [finished.returncode for finished in (split, train, predict)] == [0, 0, 0]
    assert split.stdout == "data.txt.blocks\n"
    assert len(list((bare / "data.txt.blocks").glob("block-*"))) == 40
    assert printed_primal(train.stdout) == pytest.approx(primal(bare / "model"), rel=1e-8)
    expected = predicted(TEST[0], read_model(bare / "model"))
    assert (bare / "out").read_text() == "".join(f"{label}\n" for label in expected)
    assert predict.stdout == accuracy_line(expected, TEST[1])
    assert 0.7 < (expected == TEST[1]).mean() < 1


def test_the_end_of_training_states_both_objectives_and_the_gap(run, here):
    finished = run("llsvm-train", "-e", "1e-6", "data.txt", "model")
    value = {name: float(number) for name, number in re.findall(r"(\w+ \w+)(?: gap)? = (\S+)", finished.stdout)[:3]}
    assert value["primal objective"] == pytest.approx(primal(here / "model"), rel=1e-8)
    gap = 1 - value["dual objective"] / value["primal objective"]
    assert 0 <= gap <= 1e-6
    assert value["relative duality"] == pytest.approx(gap, abs=1e-8)
    for word in ("passes", "read", "time", "compute", "waiting", "peak memory"):
        assert word in finished.stdout


def test_the_first_line_echoes_the_configuration_on_stderr(run, here):
    line = "llsvm-train -c 0.5 -e 0.01 -B 2 -w1 3 --memory 300M --threads 1 --seed 7 data.txt model"
    first = run(*line.split()).stderr.splitlines()[0]
    assert first.startswith("llsvm-train ")
    for fragment in ("C 0.5", "tolerance 0.01", "bias 2", "3", "memory 300M,", "threads 1", "seed 7", "rows 300"):
        assert fragment in first
    first = run("llsvm-split", "data.txt", "-m", "7", "--seed", "5", "--memory", "2G", "--force").stderr.splitlines()[0]
    for fragment in ("llsvm-split data.txt", "-m 7", "--seed 5", "--memory 2.0G"):
        assert fragment in first


def test_split_prints_nothing_but_the_path(run, here):
    assert run("llsvm-split", "data.txt", "test.txt", "-o", "both").stdout == "both\n"
    facts = json.loads(run("llsvm", "info", "both", "--json").stdout)
    assert facts["rows"] == len(TRAINING[1]) + len(TEST[1])


def test_the_group_holds_the_same_commands(run, bare):
    assert run("llsvm", "split", "data.txt", "-m", "4").stdout == "data.txt.blocks\n"
    assert run("llsvm", "train", "-c", "0.5", "-w-1", "2", "grouped").returncode == 0
    assert run("llsvm-train", "-c", "0.5", "-w-1", "2", "alone").returncode == 0
    assert (bare / "grouped").read_text().splitlines()[:-1] == (bare / "alone").read_text().splitlines()[:-1]
    assert run("llsvm", "predict", "test.txt", "grouped", "out").stdout.startswith("Accuracy = ")


# --- pipelines


def test_a_set_named_on_standard_input_is_trained_on(run, bare):
    (bare / "data.txt").rename(bare / "my data.txt")
    finished = run("sh", "-c", "llsvm-split 'my data.txt' -m 40 | llsvm-train -c 1 -B 1 - piped", stdin=b"")
    assert finished.returncode == 0, finished.stderr
    assert printed_primal(finished.stdout) == pytest.approx(primal(bare / "piped"), rel=1e-8)
    assert len(list((bare / "my data.txt.blocks").glob("block-*"))) == 40


def test_a_failed_split_in_a_pipeline_leaves_no_model(run, bare):
    before = contents(bare)
    finished = run("sh", "-c", "llsvm-split -q missing.txt | llsvm-train - new", stdin=b"")
    assert finished.returncode == 1
    assert "missing.txt" in finished.stderr and "standard input" in finished.stderr
    assert contents(bare) == before


@pytest.mark.parametrize("kind", ["plain", "gzip"])
def test_text_from_standard_input_is_trained_on(run, bare, kind):
    text = (bare / "data.txt").read_bytes()
    finished = run("llsvm-train", "-e", "1e-6", "-", "new", stdin=COMPRESS.get(kind, bytes)(text))
    assert finished.returncode == 0
    assert printed_primal(finished.stdout) == pytest.approx(primal(bare / "new"), rel=1e-8)
    assert f"rows {len(TRAINING[1])}," in finished.stderr


def test_text_from_standard_input_is_split(run, bare):
    text = gzip.compress((bare / "data.txt").read_bytes())
    assert run("llsvm-split", "-", "-o", "new.blocks", stdin=text).stdout == "new.blocks\n"
    facts = json.loads(run("llsvm", "info", "--verify", "--json", "new.blocks").stdout)
    X, y = TRAINING
    assert (facts["rows"], facts["nonzeros"]) == (len(y), np.count_nonzero(X))
    assert facts["labels"] == [{"name": str(label), "rows": int((y == label).sum())} for label in dict.fromkeys(y)]
    assert facts["largest_norm"] == pytest.approx(np.linalg.norm(X, axis=1).max())


@pytest.mark.parametrize("command", [["llsvm-train"], ["llsvm-split", "-o"]], ids=" ".join)
def test_several_files_of_mixed_compression_are_one_data_set(run, bare, command):
    lines = (bare / "data.txt").read_bytes().splitlines(keepends=True)
    parts = [b"".join(lines[:100]), b"".join(lines[100:220]), b"".join(lines[220:])]
    for name, kind, part in zip("abc", ["gzip", "plain", "zstd"], parts, strict=True):
        (bare / name).write_bytes(COMPRESS.get(kind, bytes)(part))
    words = [*command, "new", "a", "b", "c"] if "-o" in command else [*command, "a", "b", "c", "new"]
    assert run(*words).returncode == 0
    facts = json.loads(run("llsvm", "info", "--json", "new").stdout)
    assert facts.get("training", facts)["rows"] == len(TRAINING[1])
    assert facts.get("training", facts)["nonzeros"] == np.count_nonzero(TRAINING[0])


@pytest.mark.parametrize("solver", ["shrink", "stream"])
def test_a_named_pipe_is_read_once(bare, spawn_in, solver):
    os.mkfifo(bare / "fifo")
    with spawn_in(bare, "llsvm-train", "-s", solver, "fifo", "model", stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE) as process:  # fmt: skip
        (bare / "fifo").write_bytes((bare / "data.txt").read_bytes())
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and b"no certificate: the input cannot be read again" in output


def test_a_model_may_go_to_standard_output(run, here):
    before = contents(here)
    finished = run("llsvm-train", "-c", "2", "data.txt", "-")
    assert contents(here) == before
    (here / "new").write_text(finished.stdout)
    certificate = json.loads(run("llsvm", "info", "new", "--json").stdout)["certificate"]
    assert certificate["primal"] == pytest.approx(primal(here / "new", C=2))


# --- DATA left out


def test_without_data_and_without_sets_nothing_is_read(refuse, bare):
    refuse("llsvm-train", "new", code=2, says=["no DATA given", "llsvm-split"])


def test_without_data_and_with_several_sets_all_are_listed(refuse, here):
    shutil.copytree(here / "data.txt.blocks", here / "other.blocks")
    refuse("llsvm-train", "new", code=2, says=["data.txt.blocks", "other.blocks"])


def test_an_unfinished_set_is_not_taken_for_the_only_one(refuse, here):
    (here / "data.txt.blocks" / "manifest.json").unlink()
    refuse("llsvm-train", "new", code=2, says=["no DATA given"])


# --- LIBLINEAR's letters


@pytest.mark.parametrize(
    "options, terms",
    [
        (["-w1", "3"], {"weights": {"1": 3}}),
        (["-w-1", "2"], {"weights": {"-1": 2}}),
        (["-w1", "0.5", "-w-1", "4", "-c", "0.1"], {"weights": {"1": 0.5, "-1": 4}, "C": 0.1}),
        (["-w", "balanced"], {"weights": {str(y): 150 / (TRAINING[1] == y).sum() for y in (1, -1)}}),
        (["-s", "1", "-c", "2"], {"loss": "squared", "C": 2}),
        (["-s", "1", "-w-1", "5"], {"loss": "squared", "weights": {"-1": 5}}),
        (["-s", "3", "-B", "0.5"], {}),
        (["-s", "block", "-B", "-1"], {}),
        (["-c", "100", "-e", "1e-6"], {"C": 100}),
        (["-s", "pegasos", "-B", "1", "-c", "0.1", "-w-1", "2"], {"C": 0.1, "weights": {"-1": 2}}),
        (["-s", "pegasos", "-B", "R", "--max-passes", "1"], {}),
        (["-s", "stream", "-B", "1", "-w1", "3"], {"loss": "squared", "weights": {"1": 3}}),
    ],
    ids=" ".join,
)
def test_letters_mean_what_they_mean_in_liblinear(run, here, options, terms):
    finished = run("llsvm-train", *options, "data.txt", "new")
    assert finished.returncode == 0, finished.stderr
    assert printed_primal(finished.stdout) == pytest.approx(primal(here / "new", **terms), rel=1e-8)


def test_weights_of_labels_that_are_words(run, here):
    X, y = TRAINING
    (here / "mail.txt").write_text(as_text(X, np.where(y > 0, "spam", "ham")))
    names = ["spam", "ham"] if y[0] > 0 else ["ham", "spam"]
    finished = run("llsvm-train", "-wspam", "3", "mail.txt", "new")
    assert finished.returncode == 0
    assert json.loads(run("llsvm", "info", "new", "--json").stdout)["labels"] == names
    expected = objective(X, np.where(y > 0, "spam", "ham"), read_model(here / "new"), weights={"spam": 3})
    assert printed_primal(finished.stdout) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("number, name", [("3", "dual"), ("1", "dual-l2")])
def test_a_solver_is_named_or_numbered(run, here, number, name):
    for solver in (number, name):
        assert run("llsvm-train", "-s", solver, "data.txt", f"by-{solver}").returncode == 0
    by_number, by_name = ((here / f"by-{solver}").read_text().splitlines()[:-1] for solver in (number, name))
    assert by_number == by_name
    assert by_name[0] == {"3": "solver_type L2R_L1LOSS_SVC_DUAL", "1": "solver_type L2R_L2LOSS_SVC_DUAL"}[number]


def test_a_bias_of_r_is_the_largest_row_norm(run, here):
    finished = run("llsvm-train", "-B", "R", "data.txt", "new")
    radius = np.linalg.norm(TRAINING[0], axis=1).max()
    assert float(read_model(here / "new").header["bias"]) == pytest.approx(radius, rel=1e-6)
    assert printed_primal(finished.stdout) == pytest.approx(primal(here / "new"), rel=1e-6)


@pytest.mark.parametrize("options, bias", [(["-B", "-1"], -1), (["-B", "0"], 0), (["-B", "2.5"], 2.5)])
def test_the_bias_stands_in_the_model_as_liblinear_writes_it(run, here, options, bias):
    assert run("llsvm-train", *options, "data.txt", "new").returncode == 0
    model = read_model(here / "new")
    assert float(model.header["bias"]) == bias
    assert model.labels == ["1", "-1"]
    assert len(model.w) == N_FEATURES


def test_a_weight_for_a_label_that_does_not_occur_is_told(run, here):
    finished = run("llsvm-train", "-q", "-w7", "2", "data.txt", "new")
    assert finished.returncode == 0
    assert re.fullmatch("warning: .*7.*\n", finished.stderr)


# --- what is said, where, and how loudly


def test_quiet_prints_nothing(run, here):
    for command in (["llsvm-train", "-q", "data.txt", "new"], ["llsvm-predict", "-q", "test.txt", "foreign", "out"]):
        assert run(*command) == (0, "", "")
    assert run("llsvm-split", "-q", "data.txt", "-o", "new.blocks") == (0, "new.blocks\n", "")
    assert (here / "new").exists() and (here / "out").exists()


@pytest.mark.parametrize(
    "options, code",
    [(["--max-passes", "1"], 0), (["--time-limit", "1e-9"], 0), (["--max-passes", "1", "--strict"], 3)],
)
def test_a_missed_tolerance_is_told_even_quietly(run, here, options, code):
    finished = run("llsvm-train", "-q", "-e", "1e-9", *options, "data.txt", "new")
    assert (finished.returncode, finished.stdout) == (code, "")
    assert re.fullmatch(f"warning: .*{options[0]}.*\n", finished.stderr)
    certificate = json.loads(run("llsvm", "info", "new", "--json").stdout)["certificate"]
    assert certificate["relative_gap"] > certificate["tolerance"] == 1e-9
    assert certificate["primal"] == pytest.approx(primal(here / "new"))


def test_a_tolerance_that_is_met_is_no_failure_under_strict(run, here):
    assert run("llsvm-train", "--strict", "data.txt", "new").returncode == 0


def test_the_log_is_json_lines_of_start_passes_and_end(run, here):
    finished = run("llsvm-train", "-s", "block", "-c", "3", "--log", "run.jsonl", "data.txt.blocks", "new")
    start, *passes, end = map(json.loads, (here / "run.jsonl").read_text().splitlines())
    assert (start["event"], {entry["event"] for entry in passes}, end["event"]) == ("start", {"pass"}, "end")
    assert (start["C"], start["rows"], start["data"]) == (3, len(TRAINING[1]), "on disk")
    assert [entry["number"] for entry in passes] == list(range(1, end["number"] + 1))
    assert {entry["visits"] for entry in passes} == {len(TRAINING[1])}
    assert sorted(passes, key=lambda entry: (entry["seconds"], entry["bytes_read"])) == passes
    assert end["reason"] == "converged"
    assert end["gap"] == pytest.approx(1 - end["dual"] / end["primal"]) and end["gap"] <= start["tolerance"]
    assert end["primal"] == pytest.approx(primal(here / "new", C=3))
    assert printed_primal(finished.stdout) == pytest.approx(end["primal"], rel=1e-8)


def test_the_fields_of_the_log_are_those_in_the_readme(run, here):
    run("llsvm-train", "--log", "run.jsonl", "data.txt", "new")
    section = (ROOT / "README.md").read_text().split("## The run log")[1].split("\n## ")[0]
    documented = set(re.findall(r"\w+", " ".join(re.findall("`([^`]+)`", section))))
    logged = {name for line in (here / "run.jsonl").read_text().splitlines() for name in json.loads(line)}
    assert logged - documented == set()


def terminal_output(spawn_in, folder, *command):
    """What a command writes to a standard error that is a terminal."""
    terminal, side = pty.openpty()
    with spawn_in(folder, *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=side) as process:
        os.close(side)
        seen = b""
        try:
            while part := os.read(terminal, 4096):
                seen += part
        except OSError:  # what Linux says when the other side has closed
            pass
        os.close(terminal)
        process.stdout.read()
    assert process.returncode == 0
    return seen.decode()


@pytest.mark.parametrize(
    "command",
    [
        ["llsvm-split", "data.txt", "-o", "new.blocks"],
        ["llsvm-train", "data.txt", "new"],
        ["llsvm-predict", "test.txt", "foreign", "out"],
    ],
    ids=lambda command: command[0],
)
def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(run, spawn_in, here, command):
    assert re.search(r"\[#*\.*\] +\d+%.* left", terminal_output(spawn_in, here, *command))
    plain = run(*command, *["--force"] * ("-o" in command))
    assert plain.returncode == 0
    assert "left" not in plain.stderr and "\r" not in plain.stderr


def test_without_a_terminal_every_pass_over_the_disk_is_a_line(run, here):
    finished = run("llsvm-train", "-s", "block", "data.txt.blocks", "new")
    numbers = [int(number) for number in re.findall(r"(?m)^pass +(\d+) ", finished.stderr)]
    assert numbers == list(range(1, len(numbers) + 1)) and numbers
    assert f"passes = {len(numbers)}," in finished.stdout


# --- help and README


@pytest.fixture(scope="module", params=["llsvm", "llsvm-split", "llsvm-train", "llsvm-predict", "llsvm info"])
def help_page(request, tmp_path_factory, run_in):
    """(command, what its --help prints, names of the modules that took)"""
    command = request.param
    folder = tmp_path_factory.mktemp("help")
    finished = run_in(folder, "env", "PYTHONPROFILEIMPORTTIME=1", *command.split(), "--help")
    assert finished.returncode == 0
    return command, finished.stdout, {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}


def examples(text):
    """The example lines in a help text, without the explanation two blanks behind them."""
    lines = (line.strip() for line in text.splitlines())
    return [re.split("  +", line)[0] for line in lines if re.match(r"(\w+ .*\| )?llsvm[- ]", line)]


def test_help_comes_without_loading_numpy(help_page):
    command, text, imported = help_page
    assert text.startswith(f"Usage: {command} ")
    assert "llsvm.cli" in imported and "numpy" not in imported


def test_the_examples_in_help_work(run, prepared, tmp_path, help_page):
    shown = examples(help_page[1])
    assert shown
    for number, example in enumerate(shown):
        try_example(run, prepared, tmp_path / str(number), example)


def test_the_pipelines_in_the_readme_work(run, prepared, tmp_path):
    indented = "".join(re.findall("(?m)^    .*\n", (ROOT / "README.md").read_text()))
    shown = [example for example in examples(indented) if "|" in example]
    assert shown
    for number, example in enumerate(shown):
        try_example(run, prepared, tmp_path / str(number), example)


def try_example(run, prepared, folder, example):
    folder.mkdir()
    supply(folder, prepared, example)
    finished = run("sh", "-c", f"cd {folder} && {example}", stdin=b"")
    assert finished.returncode == 0, (example, finished.stderr)


def supply(folder, prepared, example):
    """The files that an example takes for granted."""
    words = re.findall(r"[^\s()$]+", example)
    for word in words:
        if word.endswith(".blocks") and f"-o {word}" not in example:
            shutil.copytree(prepared / "data.txt.blocks", folder / word)
        elif word.endswith(".txt"):
            shutil.copy(prepared / "data.txt", folder / word)
        elif word.endswith(".gz"):
            (folder / word.replace("*", "part")).write_bytes(gzip.compress((prepared / "data.txt").read_bytes()))
    if {"llsvm-predict", "predict", "info"} & set(words):
        shutil.copy(prepared / "model", folder / "model")
    if not any(word.endswith((".blocks", ".txt", ".gz")) for word in words):
        shutil.copytree(prepared / "data.txt.blocks", folder / "data.txt.blocks")


# --- info


def test_info_describes_a_set(run, here):
    facts = json.loads(run("llsvm", "info", "data.txt.blocks", "--json").stdout)
    X, y = TRAINING
    assert (facts["kind"], facts["rows"], facts["features"], facts["blocks"]) == ("block set", len(y), N_FEATURES, 4)
    assert facts["sources"][0]["size"] == (here / "data.txt").stat().st_size
    words = run("llsvm", "info", "data.txt.blocks").stdout
    for fact in ("block set", str(len(y)), str(np.count_nonzero(X)), "data.txt"):
        assert fact in words


def test_info_describes_a_model_of_ours(run, here):
    facts = json.loads(run("llsvm", "info", "model", "--json").stdout)
    assert (facts["kind"], facts["labels"], facts["features"]) == ("model", ["1", "-1"], N_FEATURES)
    assert facts["certificate"]["primal"] == pytest.approx(primal(here / "model"))
    assert facts["certificate"]["relative_gap"] <= 1e-3
    assert f"{facts['certificate']['primal']}"[:8] in run("llsvm", "info", "model").stdout


def test_info_says_that_a_model_of_liblinear_has_no_certificate(run, here):
    facts = json.loads(run("llsvm", "info", "foreign", "--json").stdout)
    assert (facts["kind"], facts["bias"], facts["nonzero_weights"]) == ("model", 1, N_FEATURES)
    assert facts["certificate"].startswith("none")


@pytest.mark.parametrize("name", ["data.txt.blocks", "model"])
def test_verify_passes_what_is_whole(run, here, name):
    assert run("llsvm", "info", "--verify", name).returncode == 0


@pytest.mark.parametrize("name", [b"caf\xe9.txt", b"\x1b[31m.txt"])
def test_names_that_a_terminal_or_json_could_not_take_are_escaped(run, here, name):
    path = os.fsdecode(name)
    (here / path).write_bytes((here / "data.txt").read_bytes())
    assert run("llsvm-split", os.fsencode(path).decode("utf-8", "surrogateescape"), "-o", "new.blocks").returncode == 0
    for option in ([], ["--json"]):
        shown = run("llsvm", "info", *option, "new.blocks").stdout
        assert "\x1b" not in shown and "\\ud" not in shown
    assert json.loads(shown)["sources"][0]["name"].endswith(".txt")


@pytest.mark.parametrize("words", [("llsvm-train", "\x1b[31m.txt", "m"), ("llsvm-train", "data.txt", "no\x1b[31m/m"),
                                   ("llsvm-train", "-s", "\x1b[31m", "m"), ("llsvm", "info", "\x1b[31m")])
def test_no_refusal_has_what_a_terminal_would_obey(run, words):
    refused = run(*words)
    assert refused.returncode in (1, 2)
    assert "\\x1b[31m" in refused.stderr and "\x1b" not in refused.stderr


# --- bad text

GOOD = "1 1:1 2:-0.5\n-1 2:1\n"
BAD_LINES = {  # line -> (column, what was read, what was expected, hint)
    "1 1:nan": (5, "nan", "finite", ""),
    "1 1:inf": (5, "inf", "finite", ""),
    "1 1:1 3:1e400": (9, "1e400", "", ""),
    "-1 0:1": (4, "0:1", "from 1", "--zero-based"),
    "1 3:1 4:1 3:2": (11, "3:2", "once", ""),
    "1 9223372036854775808:1": (3, "9223372036854775808:1", "2^63-1", ""),
    "1 1:1 2": (7, "2", "colon", "label id:value"),
    "1 1:1  two:2": (8, "two:2", "feature id", "label id:value"),
    "1 -1:2": (3, "-1:2", "feature id", "label id:value"),
    "1:1 2:1": (1, "1:1", "label", "label id:value"),
    "1 1:": (5, "", "number", ""),
    "1 1:1,5 2:1": (5, "1,5", "number", ""),
}
CONSUMERS = {
    "train": ["llsvm-train", "bad.txt", "new"],
    "split": ["llsvm-split", "bad.txt"],
    "predict": ["llsvm-predict", "bad.txt", "model", "out"],
}


@pytest.mark.parametrize(
    "line, consumer", [*((line, "train") for line in BAD_LINES), ("-1 0:1", "split"), ("-1 0:1", "predict")]
)
def test_a_bad_line_is_named_by_file_line_and_column(refuse, here, line, consumer):
    column, read, expected, hint = BAD_LINES[line]
    (here / "bad.txt").write_text(f"{GOOD}{line}\n{GOOD}")
    stderr = refuse(*CONSUMERS[consumer], says=[f"bad.txt:3:{column}: ", f"'{read}" if read else "read", expected])
    assert hint in "".join(re.findall("(?m)^hint: (.*)", stderr))


def test_the_right_line_is_named_in_the_midst_of_a_long_file(refuse, here):
    (here / "bad.txt").write_text(GOOD * 40_000 + "1 1:x\n" + GOOD * 40_000)
    refuse("llsvm-train", "--memory", "4M", "--threads", "2", "bad.txt", "new", says=["bad.txt:80001:5: "])


def test_blank_lines_and_comments_are_lines_too(refuse, here):
    (here / "bad.txt").write_text(f"\n{GOOD}\n# a comment\n1 1:x\n")
    refuse("llsvm-train", "bad.txt", "new", says=["bad.txt:6:5: "])


def test_the_last_line_may_lack_its_end_and_still_be_wrong(refuse, here):
    refuse("llsvm-train", "-", "new", stdin=b"1 1:1\n-1 2:oops", says=["standard input:2:6: ", "'oops'"])


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_input_without_rows_is_refused(refuse, here, consumer):
    (here / "bad.txt").write_text("\n\n# nothing but a comment\n" if consumer == "split" else "")
    refuse(*CONSUMERS[consumer], says=["bad.txt", "no rows"])


def test_one_class_alone_cannot_be_trained_on(run, refuse, here):
    (here / "bad.txt").write_text("7 1:1\n7.0 2:1\n")
    assert run("llsvm-split", "bad.txt").returncode == 0
    for source in ("bad.txt", "bad.txt.blocks"):
        refuse("llsvm-train", source, "new", says=["one class", "7", "hint: "])


def test_three_classes_with_names_are_trained(run, here):
    (here / "named.txt").write_text("ape 1:1\nbee 2:1\ncat 3:1\n")
    assert run("llsvm-train", "named.txt", "new").returncode == 0
    assert run("llsvm-predict", "named.txt", "new", "out").stdout == "Accuracy = 100% (3/3)\n"
    assert (here / "out").read_text().split() == ["ape", "bee", "cat"]


def test_values_beyond_float32_need_float64(run, refuse, here):
    (here / "bad.txt").write_text("1 1:1e39\n-1 1:-1e39\n")
    refuse("llsvm-train", "bad.txt", "new", says=["bad.txt:1:5: ", "float32", "hint: ", "--precision"])
    refuse("llsvm-train", "--precision", "float64", "bad.txt", "new", says=["longer than 3.4e38", "hint: scale"])
    assert run("llsvm-split", "--precision", "float64", "bad.txt").returncode == 0


@pytest.mark.parametrize("kind", COMPRESS)
def test_truncated_compressed_text_is_refused(refuse, here, kind):
    whole = COMPRESS[kind]((here / "data.txt").read_bytes())
    (here / "cut").write_bytes(whole[: len(whole) * 2 // 3])
    refuse("llsvm-train", "cut", "new", says=["cut: ", kind])


# --- bad files


@pytest.fixture
def trap(here):
    """Things that cannot be read: nothing, a link to nothing, a folder."""
    (here / "dangling").symlink_to("nowhere")
    (here / "folder").mkdir()


@pytest.mark.parametrize("name", ["missing", "folder"])
@pytest.mark.parametrize(
    "command",
    [
        ["llsvm-train", "?", "new"],
        ["llsvm-train", "data.txt", "?", "new"],
        ["llsvm-split", "?", "-o", "new.blocks"],
        ["llsvm-split", "data.txt", "?", "-o", "new.blocks"],
        ["llsvm-predict", "?", "model", "out"],
        ["llsvm-predict", "test.txt", "?", "out"],
        ["llsvm", "info", "?"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_named(run, here, trap, command, name):
    before = contents(here)
    finished = run(*[word.replace("?", name) for word in command])
    assert_refused(finished, finished.returncode if name == "folder" else 1, name)
    assert finished.returncode in (1, 2)
    assert finished.stdout == ""
    assert contents(here) == before


def test_a_link_to_nowhere_is_named(refuse, trap):
    refuse("llsvm-train", "dangling", "new", says=["dangling"])


@pytest.mark.parametrize(
    "command",
    [
        ["llsvm-train", "data.txt", "missing/new"],
        ["llsvm-train", "--log", "missing/run.jsonl", "data.txt", "new"],
        ["llsvm-split", "data.txt", "-o", "missing/new.blocks"],
        ["llsvm-predict", "test.txt", "model", "missing/out"],
    ],
    ids=" ".join,
)
def test_a_place_that_does_not_exist_is_named(refuse, command):
    refuse(*command, says=["missing"])


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) * 2 // 3 :]
    elif how == "emptied":
        data.clear()
    else:
        data[{"first": 0, "middle": len(data) // 2, "last": -1}[how]] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name, how, command",
    [
        *(("block-0002.llb", how, "info --verify") for how in ("cut", "first", "middle", "last")),
        *(("block-0002.llb", "cut", command) for command in ("train", "train -s block", "predict")),
        *(("block-0002.llb", "middle", command) for command in ("train", "train -s block", "predict")),
        ("features.zst", "cut", "info --verify"),
        ("features.zst", "middle", "train"),
        ("features.zst", "last", "predict"),
        ("manifest.json", "cut", "info"),
        ("manifest.json", "middle", "train"),
        ("manifest.json", "emptied", "predict"),
    ],
)
def test_a_damaged_set_is_refused(refuse, here, name, how, command):
    damage(here / "data.txt.blocks" / name, how)
    others = {"train": ["new"], "predict": ["model", "out"]}.get(command.split()[0], [])
    refuse("llsvm", *command.split(), "data.txt.blocks", *others, says=[f"data.txt.blocks/{name}", "hint: "])


def test_a_set_with_a_file_missing_is_refused(refuse, here):
    (here / "data.txt.blocks" / "block-0001.llb").unlink()
    refuse("llsvm-train", "data.txt.blocks", "new", says=["data.txt.blocks/block-0001.llb", "hint: "])


def test_an_unfinished_set_is_refused(refuse, here):
    (here / "data.txt.blocks" / "manifest.json").unlink()
    refuse("llsvm-train", "data.txt.blocks", "new", says=["data.txt.blocks", "manifest.json"])


def test_a_set_of_a_later_version_is_refused(refuse, here):
    manifest = here / "data.txt.blocks" / "manifest.json"
    manifest.write_text(re.sub(r'("version": )\d+,', r"\g<1>99,", manifest.read_text()))
    refuse("llsvm-train", "data.txt.blocks", "new", says=["version 99", "hint: ", "upgrade"])


def test_a_model_with_a_changed_weight_is_refused(refuse, here):
    header, rest = (here / "model").read_text().split("\nw\n")
    digit = re.search(r"[1-8]", rest)
    (here / "model").write_text(f"{header}\nw\n{rest[: digit.start()]}9{rest[digit.end() :]}")
    refuse("llsvm", "info", "--verify", "model", says=["model: ", "checksum"])


# --- nothing precious is written over


@pytest.mark.parametrize("words", [["data.txt"], ["data.txt", "test.txt"], ["data.txt.blocks"], ["data.txt", "folder"]])
def test_a_forgotten_model_does_not_cost_the_data(refuse, trap, words):
    refuse("llsvm-train", *words, code=2, says=[words[-1], "hint: llsvm-train DATA MODEL"])


def test_a_model_is_replaced_by_a_model(run, here):
    before = (here / "model").read_text()
    assert run("llsvm-train", "-c", "7", "data.txt", "model").returncode == 0
    assert (here / "model").read_text() != before
    assert primal(here / "model", C=7) == pytest.approx(
        json.loads(run("llsvm", "info", "model", "--json").stdout)["certificate"]["primal"]
    )


def test_an_existing_set_is_replaced_only_by_force(run, refuse, here):
    refuse("llsvm-split", "test.txt", "-o", "data.txt.blocks", says=["data.txt.blocks", "hint: --force"])
    assert run("llsvm-split", "test.txt", "-o", "data.txt.blocks", "--force").returncode == 0
    assert json.loads(run("llsvm", "info", "data.txt.blocks", "--json").stdout)["rows"] == len(TEST[1])
    assert [path.name for path in here.glob(".*")] == []


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_that_is_no_set_is_never_replaced(refuse, here, trap, force):
    (here / "folder" / "letter").write_text("precious")
    refuse("llsvm-split", "data.txt", "-o", "folder", *force, says=["folder", "not a block set", "hint: "])


def test_a_failed_split_keeps_the_set_that_force_would_replace(refuse, here):
    (here / "bad.txt").write_text(GOOD + "1 1:x\n")
    refuse("llsvm-split", "bad.txt", "-o", "data.txt.blocks", "--force", says=["bad.txt:3:5: "])


def test_a_failed_training_keeps_the_model_that_was_there(refuse, here):
    (here / "bad.txt").write_text(GOOD + "1 1:x\n")
    refuse("llsvm-train", "bad.txt", "model", says=["bad.txt:3:5: "])


# --- full devices and closed pipes


@pytest.mark.parametrize(
    "command",
    [
        ["llsvm-train", "data.txt", "/dev/full"],
        ["llsvm-train", "--log", "/dev/full", "data.txt", "new"],
        ["llsvm-predict", "test.txt", "model", "/dev/full"],
        ["llsvm-predict", "--scores", "test.txt", "model", "/dev/full"],
    ],
    ids=" ".join,
)
def test_a_full_device_is_told(refuse, command):
    refuse(*command, says=["/dev/full", "No space left"])


@pytest.mark.parametrize(
    "command",
    [
        "llsvm-split data.txt -o new.blocks >/dev/full",
        "llsvm-train data.txt new >/dev/full",
        "llsvm-predict test.txt model out >/dev/full",
        "llsvm-predict test.txt model - >/dev/full",
        "llsvm info model >/dev/full",
        "llsvm-split data.txt -o new.blocks >&-",
        "llsvm-predict test.txt model - >&-",
    ],
)
def test_results_that_cannot_be_printed_are_told(run, here, command):
    finished = run("sh", "-c", command)
    assert_refused(finished, 1)
    assert [path.name for path in here.glob(".*")] == [] and list((here / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "command", ["llsvm-split -q data.txt -o new.blocks", "llsvm-train data.txt new", "llsvm info model"]
)
def test_a_reader_that_has_left_costs_nothing_but_the_words(run, here, command):
    reading, writing = os.pipe()
    os.close(reading)
    finished = run(*command.split(), stdout=writing)
    os.close(writing)
    assert finished.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in finished.stderr and "rror" not in finished.stderr
    assert [path.name for path in here.glob(".*")] == []
    if "new" in command:
        name = command.split()[-1]
        assert run("llsvm", "info", "--verify", name).returncode == 0


# --- options that make no sense


@pytest.mark.parametrize(
    "command, fragment",
    [
        ("llsvm-train", "MODEL"),
        ("llsvm-split", "INPUT"),
        ("llsvm-split -", "-o"),
        ("llsvm-predict test.txt model", "OUTPUT"),
        ("llsvm-train -c 0 data.txt new", "-c"),
        ("llsvm-train -c nan data.txt new", "-c"),
        ("llsvm-train -c much data.txt new", "much"),
        ("llsvm-train -e 0 data.txt new", "-e"),
        ("llsvm-train -B much data.txt new", "-B much"),
        ("llsvm-train -B 1e39 data.txt new", "-B 1e+39: a number up to 3.4e+38"),
        ("llsvm-train -s 7 data.txt new", "dual (3)"),
        ("llsvm-train -w1 0 data.txt new", "-w1"),
        ("llsvm-train -c 1e200 -w1 1e200 data.txt new", "-w1 1e+200: the C of this label"),
        ("llsvm-train -c 1e-200 -w1 1e-200 data.txt new", "-w1 1e-200: the C of this label"),
        ("llsvm-train -w data.txt new", "-w"),
        ("llsvm-train --inner 0 -s block data.txt new", "--inner"),
        ("llsvm-train --inner 2 data.txt new", "--inner"),
        ("llsvm-train --batch 2 data.txt new", "--batch"),
        ("llsvm-train -s pegasos --batch 0 data.txt new", "--batch 0"),
        ("llsvm-train -s pegasos --batch some data.txt new", "--batch some"),
        ("llsvm-train -s pegasos --batch -3 data.txt new", "--batch"),
        ("llsvm-train -s pegasos --batch 1.5 data.txt new", "--batch"),
        ("llsvm-train -s pegasos data.txt new --batch", "--batch"),
        ("llsvm-train -s pegasos --init one data.txt new", "--init"),
        ("llsvm-train -s pegasos --lookahead 2 data.txt new", "--lookahead"),
        ("llsvm-train -s stream --lookahead 0 data.txt new", "--lookahead"),
        ("llsvm-train -s stream --lookahead 1001 data.txt new", "--lookahead"),
        ("llsvm-train -s stream --lookahead x data.txt new", "--lookahead"),
        ("llsvm-train -s stream --hold-t data.txt new", "--hold-t"),
        ("llsvm-train -s block --no-average data.txt new", "--no-average"),
        ("llsvm-train --no-certify data.txt new", "--no-certify"),
        ("llsvm-train --memory much data.txt new", "much"),
        ("llsvm-train --time-limit 0 data.txt new", "--time-limit"),
        ("llsvm-train --nonsense data.txt new", "--nonsense"),
        ("llsvm-train data.txt data.txt.blocks new", "alone"),
        ("llsvm-split -m 0 data.txt -o new", "-m"),
        ("llsvm nonsense", "nonsense"),
    ],
)
def test_wrong_usage_exits_with_two_and_names_the_word(refuse, command, fragment):
    refuse(*command.split(), code=2, says=[fragment])


@pytest.mark.parametrize(
    "command, message, hint",
    [
        ("llsvm-train --memory 300 data.txt new", "--memory 300 is 300 bytes", "did you mean 300M?"),
        ("llsvm-split --memory 300 data.txt", "--memory 300 is 300 bytes", "did you mean 300M?"),
        ("llsvm-train --memory= data.txt new", "'' is not a memory size", "--memory 2G"),
        ("llsvm-train -c abc data.txt new", "-c abc: a number is needed", "llsvm-train --help"),
        ("llsvm-train --seed x data.txt new", "--seed x: a whole number is needed", "--help"),
        ("llsvm-train --seed -1 data.txt new", "--seed -1: a number from 0 to 2147483647 is needed", "--help"),
        ("llsvm-train --max-passes 0 data.txt new", "--max-passes 0: a number from 1 up is needed", "--help"),
        ("llsvm-train --precision float16 data.txt new", "--precision float16: one of 'float32', 'float64'", "--help"),
        ("llsvm-train --memry 2G data.txt new", "--memry: no such option", "did you mean --memory"),
        ("llsvm-train -threads 2 data.txt new", "-threads: no such option", "did you mean --threads?"),
        ("llsvm-train -threads=2 data.txt new", "-threads=2: no such option", "did you mean --threads=2?"),
        ("llsvm-split -force data.txt", "-force: no such option", "did you mean --force?"),
        ("llsvm-train --certify data.txt new", "--certify: -s dual stops by its certificate", "-s shrink"),
        ("llsvm-train -s cs --average data.txt new", "--average: -s cs averages nothing", "-s pegasos"),
        ("llsvm-train -m 5 data.txt", "-m: no such option", "llsvm-split"),
        ("llsvm-train -w 1 2 data.txt new", "-w 1: the label", "-w1 2, or -w balanced"),
        ("llsvm-train data.txt new -w", "-w: the label", "-wLABEL W, or -w balanced"),
        ("llsvm-train -w1 data.txt new", "-w1 data.txt: a weight, a number, is needed", "-wLABEL W, for example -w1 2"),
        ("llsvm-train data.txt new -w1", "-w1: a weight, a number, is needed", "-wLABEL W"),
        ("llsvm-train -e 1 data.txt new", "-e 1: a relative duality gap of 1 or more", "1e-3"),
        ("llsvm-train -s 2 data.txt new", "-s 2: the primal way to what -s 1 solves", "dual-l2 (1)"),
        ("llsvm-train -s 0 data.txt new", "-s 0: there is no logistic regression", "dual (3)"),
        ("llsvm-train help", "help would be the name of the model", "llsvm-train --help"),
        ("llsvm-train", "[DATA] MODEL is missing", "llsvm-train [OPTIONS] [DATA] MODEL"),
        ("llsvm-predict test.txt model", "OUTPUT is missing", "llsvm-predict [OPTIONS] TEST MODEL OUTPUT"),
        ("llsvm-predict test.txt model out more", "got unexpected extra argument (more)", "llsvm-predict --help"),
        ("llsvm trian", "no such command 'trian'", ""),
        ("llsvm-train --zero-based data.txt.blocks new", "--zero-based: data.txt.blocks is a block set", "llsvm-split"),
        ("llsvm-train --precision float32 data.txt.blocks new", "--precision: data.txt.blocks is a", "llsvm-split"),
        ("llsvm-train --precision float64 new", "--precision: data.txt.blocks is a block set", "llsvm-split"),
        ("llsvm-predict --zero-based data.txt.blocks model out", "--zero-based: data.txt.blocks is a", "llsvm-split"),
        ("llsvm-train --log new data.txt new", "--log new is also DATA or MODEL", ""),
        ("llsvm-train --log ./new data.txt new", "--log ./new is also DATA or MODEL", ""),
        ("llsvm-train --strict -w7 2 data.txt new", "label 7, given a weight, does not occur in the data", "-w7"),
        ("llsvm-train --strict -s pegasos -w7 2 data.txt new", "label 7, given a weight, does not occur", "-w7"),
    ],
)
def test_a_wrong_option_gets_a_sentence_and_a_hint(refuse, command, message, hint):
    stderr = refuse(*command.split(), code=2)
    refusal = stderr[stderr.index("error: ") :].splitlines()  # behind the line that tells how it trains
    assert refusal[0].startswith(f"error: {message}")
    assert hint in "".join(refusal[1:]) and len(refusal) == 1 + bool(refusal[1:])
    assert "--weight" not in stderr and "Usage" not in stderr


def test_liblinears_ways_to_write_options_still_work(run, here):
    for words in ("-s 3 -c 1 -B 1 -e 0.1 -q -w1 2 -w-1 0.5", "-s3 -c0.5 -B1 -e0.01 -w+1 2", "-w-1 2 -w1 1e-1 -B -1"):
        assert run("llsvm-train", *words.split(), "data.txt", "new").returncode == 0
    assert run("llsvm-train", "-q", "-s", "shrink", "-e", "2", "data.txt", "new").returncode == 0  # not of a gap


# --- memory


@pytest.fixture
def wide(here):
    """5,000 features in 3,000 rows: more than half a megabyte decoded."""
    rng = np.random.default_rng(4)
    ids = np.sort(rng.integers(1, 5001, (3000, 20)), axis=1)
    labels = np.where(rng.random(3000) < 0.5, 1, -1)
    lines = (f"{y} " + " ".join(f"{j}:1" for j in dict.fromkeys(row)) for y, row in zip(labels, ids, strict=True))
    (here / "wide.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("source", ["wide.txt", "wide.txt.blocks"])
def test_a_budget_that_is_too_small_is_refused_with_one_that_is_enough(run, refuse, wide, source):
    assert source == "wide.txt" or run("llsvm-split", "wide.txt").returncode == 0
    stderr = refuse("llsvm-train", "--memory", "100K", source, "new", code=2, says=["--memory", "small", "features"])
    enough = re.search(r"(?m)^hint: .*--memory (\w+)", stderr)[1]
    assert run("llsvm-train", "--memory", enough, source, "new").returncode == 0


def test_text_larger_than_the_budget_goes_through_tmpdir_and_leaves_it_empty(run, here, wide):
    finished = run("llsvm-train", "--memory", "500K", "--log", "log", "wide.txt", "new")
    assert finished.returncode == 0, finished.stderr
    assert json.loads((here / "log").read_text().splitlines()[0])["data"] == "on disk"
    assert list((here / "tmp").iterdir()) == []
