"""The campaign of faults: it counts, ends in time, leaves nothing, and finds faults that are planted."""

import json
import math
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))

from torture import commands, data, lines, memory, reference, signals, texts  # noqa: E402
from torture.part import Finding  # noqa: E402
from torture.parts import PARTS  # noqa: E402
from torture.worker import Worker, try_cases  # noqa: E402


def torture(tmp_path, *options):
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return subprocess.run([sys.executable, SCRIPTS / "torture", *map(str, options)], capture_output=True, text=True,
                          env={**commands.environment(tmp_path)}, timeout=60)  # fmt: skip


def kinds_found(name, folder, runs):
    """The kinds of findings among the first runs of a part, tried as a worker does."""
    parts = {}
    return {try_cases(parts, folder, 1, name, number, math.inf).kind for number in range(runs)}


# --- the driver


@pytest.mark.slow
def test_a_few_seconds_count_end_in_time_and_leave_nothing(tmp_path):
    began = time.monotonic()
    ended = torture(tmp_path, "--seconds", 4, "--seed", 1, "--only", "streams", "--only", "numbers", "--only", "damage",
                    "--json", tmp_path / "counts.json")  # fmt: skip
    assert time.monotonic() - began < 4 + 8
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert counts["seed"] == 1 and set(counts["parts"]) == {"streams", "numbers", "damage"}
    assert all(part["cases"] > 0 for part in counts["parts"].values())
    assert ended.returncode == bool(counts["findings"])
    for name, part in counts["parts"].items():
        assert re.search(rf"(?m)^{name} +{part['cases']:,} +{part['findings']:,} ", ended.stdout)
        assert sum(part["kinds"].values()) == part["findings"]
    assert not list((tmp_path / "tmp").iterdir())


def test_a_case_is_repeated_alone(tmp_path):
    ended = torture(tmp_path, "--seed", 1, "--only", "damage", "--case", 3)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"(?m)^damage +25 +0 ", ended.stdout)


@pytest.mark.parametrize("options", [("--case", 3), ("--only", "nothing")])
def test_what_cannot_be_run_is_refused(tmp_path, options):
    assert torture(tmp_path, *options).returncode == 2


@pytest.mark.parametrize(("planted", "limit", "kind"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 30, "crashes"),
    ("import time; time.sleep(30)", 0.5, "hangs"),
])  # fmt: skip
def test_a_worker_that_crashes_or_hangs_is_a_finding_and_is_replaced(tmp_path, monkeypatch, planted, limit, kind):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nif '--worker' in sys.argv:\n    {planted}\n")
    monkeypatch.setattr(PARTS["memory"], "limit", limit)
    worker = Worker(tmp_path / "worker", 1, {"PYTHONPATH": str(tmp_path)})
    try:
        assert worker.attempt("memory", 0, time.time() + 60).kind == kind
        (tmp_path / "sitecustomize.py").unlink()
        monkeypatch.setattr(PARTS["damage"], "limit", 60)
        assert worker.attempt("damage", 3, time.time() + 60).cases > 0
    finally:
        worker.stop()


def test_every_part_says_what_is_promised():
    assert len(PARTS) >= 13
    assert all(part.promise.endswith(".") and part.name == name for name, part in PARTS.items())


# --- planted faults


def test_a_row_that_is_dropped_is_found():
    right = texts.as_predicting

    def wrong(*arguments, **options):
        rows, error = right(*arguments, **options)
        return rows[1:], error

    plain(b"1 1:1\n2 2:2\n", right)
    with pytest.raises(Finding, match="other rows"):
        plain(b"1 1:1\n2 2:2\n", wrong)


@pytest.mark.parametrize("read", [texts.as_predicting, texts.as_training])
def test_a_value_that_is_the_next_one_is_found(tmp_path, monkeypatch, read):
    plain(b"1 1:1\n2 2:2.5\n", read)
    scan = texts.scanner.Piece.scan

    def wrong(piece):
        scan(piece)
        for first in np.asarray(piece.values)[:1]:
            piece.values[0] = np.nextafter(first, first.dtype.type(np.inf))
        return piece

    monkeypatch.setattr(texts.scanner.Piece, "scan", wrong)
    with pytest.raises(Finding, match="other values"):
        plain(b"1 1:1\n2 2:2.5\n", read)
    assert kinds_found("text", tmp_path, 5) & {"other values", "other rows"}


@pytest.mark.parametrize(("text", "kind"), [
    (b"1 1:1\n2 2:x\n", "refused at another place"),
    (b"1 1:1\n", "right text is refused"),
    (b"1 0:1\n", "wrong text is accepted"),
])  # fmt: skip
def test_faults_at_other_places_are_found(text, kind):
    answers = {"refused at another place": "data.txt:2:4: no", "right text is refused": "data.txt:1:1: no",
               "wrong text is accepted": ""}  # fmt: skip
    with pytest.raises(Finding, match=kind):
        plain(text, lambda *a, **k: ([], answers[kind]))


def plain(text, read):
    texts.compare(text, read, texts.Stream(text, 1 << 16), "planted", threads=1, zero_based=False, dtype="float32")


def test_a_checksum_that_is_not_looked_at_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(zlib, "crc32", lambda *_: 7)
    assert "other data" in kinds_found("damage", tmp_path, 30)


def test_memory_beyond_the_promise_is_found(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    greedy = tmp_path / "bin" / "llsvm-train"
    greedy.write_text(f"#!{sys.executable}\nroom = bytearray(b'1') * (420 << 20)\n")
    greedy.chmod(0o755)
    monkeypatch.setattr(commands, "BIN", tmp_path / "bin")
    monkeypatch.setattr(memory, "SHAPES", [memory.one_feature])
    monkeypatch.setattr(memory.Memory, "_command", lambda *_: ["llsvm-train"])
    [kind] = kinds_found("memory", tmp_path, 1)
    assert "more memory than promised" in kind


@pytest.mark.parametrize(("errors", "code", "kind"), [
    ('Traceback (most recent call last):\n  File "/x/llsvm/model.py", line 7, in f\nKeyError: 1\n', 1,
     "KeyError at model.py:7"),
    ("error: unexpected KeyError at model.py:7: 1\nhint: report it\n", 1,
     "error: unexpected KeyError at model.py:7: 1"),
    ("/x/y.py:3: RuntimeWarning: overflow\n", 0, "y.py:3: RuntimeWarning: overflow"),
    ("", -11, "exit code -11"),
    ("no\n", 1, "refused without a word"),
])  # fmt: skip
def test_what_no_command_may_do_is_found(errors, code, kind):
    with pytest.raises(Finding) as found:
        commands.decent(commands.Ended(("llsvm",), code, b"", errors))
    assert found.value.kind == kind


def test_a_command_that_hangs_is_found(tmp_path):
    with pytest.raises(Finding, match="hangs"):
        commands.run(tmp_path, "sleep", "30", patience=0.2)


# --- what the findings rest on


@pytest.mark.parametrize(("token", "column"), [
    (b"nan", 1), (b"+INF", 1), (b"a\0", 1), (b"\xff", 1), (b"x" * 257, 1), (b"x" * 256, None), (b"nano", None),
    ("\u202e".encode(), 1), ("\u00a0".encode(), 1), ("grün".encode(), None), (b"a:1", 1), (b"1\x07", 1),
])  # fmt: skip
def test_the_plain_parser_knows_what_a_label_is(token, column):
    rows, place = reference.read(b"1 1:1\n" + token + b" 2:1\n")
    assert place == (None if column is None else (2, column))
    assert len(rows) == 1 + (column is None)


def test_random_text_is_right_or_wrong_as_it_should_be():
    random = Random(1)
    for _ in range(200):
        rows, place = reference.read(lines.text(random, 8), dtype="float64")
        assert place is None and all(math.isfinite(value) for row in rows for value in np.frombuffer(row.values))
    wrong = [reference.read(lines.wrong_text(random, 8), dtype="float64")[1] for _ in range(200)]
    assert sum(place is not None for place in wrong) > 120


def test_a_model_is_read_as_it_was_written(tmp_path):
    data.write_rows(tmp_path / "data.txt", Random(1), 200, labels=("a", "b", "c"))
    commands.right(commands.call("llsvm-train", "-q", "-B", "2", tmp_path / "data.txt", tmp_path / "model"))
    model = data.read_model(tmp_path / "model")
    assert sorted(model.labels) == ["a", "b", "c"] and model.bias == 2
    assert model.w.shape == (50, 3) and model.bias_w.shape == (3,)
    assert "certificate" in model.info


@pytest.mark.parametrize(("place", "excused"), [
    ("<frozen site>\", line 75, in <module>", True),
    ("/x/bin/llsvm-train\", line 5, in <module>", True),
    ("/x/llsvm/cli.py\", line 1, in <module>", True),
    ("/x/llsvm/process.py\", line 55, in _open_standard_streams", False),
    ("/x/llsvm/solvers/dual_cd.py\", line 7, in <module>", False),
])  # fmt: skip
def test_an_interrupt_before_our_first_line_is_none_of_ours(place, excused):
    said = f'Traceback (most recent call last):\n  File "{place}\nKeyboardInterrupt\n'
    assert signals.not_ours(commands.Ended(("llsvm-train",), -2, b"", said)) == excused
