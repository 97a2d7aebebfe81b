"""README's transcript, typed in an empty shell, prints what README shows; `python tests/test_readme.py` renews it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
HEADING = "## Three commands"
# What differs from run to run and from machine to machine: times, memory, threads.
VARIES = [
    (r"\d+\.\d\d s\b", "? s"),
    (r"(memory(?: =)?) [\d.]+ ?[KMGT]?B?", r"\1 ?"),
    (r"(threads) \d+", r"\1 ?"),
]  # fmt: skip


def transcript():
    """The lines of the first code block below the heading, commands included."""
    section = README.read_text().split(f"{HEADING}\n")[1]
    block = re.search(r"(?m)(?:^    .*\n)+", section)[0]
    return [line.removeprefix("    ") for line in block.splitlines()]


def type_in(commands, folder):
    """The screen after these commands in a copy of data/, in a shell that knows nothing but where llsvm is."""
    shutil.copytree(ROOT / "data", folder / "data", ignore=shutil.ignore_patterns("*.blocks", "model", "out"))
    script = "\n".join(f"printf '%s\\n' {quote('$ ' + command)}\n{command} || exit" for command in commands)
    environment = ["env", "-i", f"PATH={Path(sys.executable).parent}"]
    finished = subprocess.run([*environment, "/bin/sh", "-c", script], cwd=folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)  # fmt: skip
    assert finished.returncode == 0, finished.stdout
    return finished.stdout.splitlines()


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


def steady(lines):
    """These lines without what varies."""
    for pattern, replacement in VARIES:
        lines = [re.sub(pattern, replacement, line) for line in lines]
    return lines


def test_the_transcript_can_be_typed_as_it_stands(tmp_path):
    shown = steady(transcript())
    commands = [line[2:] for line in transcript() if line.startswith("$ ")]
    assert [command.split()[0] for command in commands] == ["cd", "llsvm-split", "llsvm-train", "llsvm-predict"]
    screen = steady(type_in(commands, tmp_path))
    # A busy machine tells of more passes: there is a line where the last one is a second old.
    assert [line for line in screen if line in shown or not line.startswith("pass ")] == shown


def test_what_varies_is_all_that_is_overlooked():
    line = "llsvm-train solver dual, C 1.0, rows 1300, memory 11.8G, threads 2, seed 1; 582 KB read in 0.02 s"
    assert steady([line]) == [
        "llsvm-train solver dual, C 1.0, rows 1300, memory ?, threads ?, seed 1; 582 KB read in ? s"
    ]
    assert steady(["peak memory = 38.2 MB"]) == ["peak memory = ?"]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        before = transcript()
        after = type_in([line[2:] for line in before if line.startswith("$ ")], Path(folder))
    texts = ["".join(f"    {line}\n" for line in lines) for lines in (before, after)]
    README.write_text(README.read_text().replace(*texts))
