"""Training gives the bits that it gave: scripts/same_bits.py and its frozen list, in one process and in another kind of
processor for BLAS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "same_bits.py"


def run(*arguments, **environment):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})  # fmt: skip


@pytest.mark.slow
def test_every_solver_gives_the_bits_of_the_frozen_list():
    done = run()
    assert done.returncode == 0, done.stdout
    assert int(done.stderr.split()[0]) > 300


@pytest.mark.parametrize("processor", ["Prescott", "SkylakeX"])
def test_the_bits_do_not_depend_on_the_processor(processor):
    done = run("--only", "memory tall 3 threads", OPENBLAS_CORETYPE=processor)
    assert done.returncode == 0, done.stdout


def test_other_bits_are_found(tmp_path):
    """The list is compared: one of an earlier case under another name is not the same."""
    script = tmp_path / "scripts" / "same_bits.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text())
    (tmp_path / "tests" / "frozen").mkdir(parents=True)
    done = subprocess.run([sys.executable, script, "--only", "cs memory long"], capture_output=True, text=True)
    assert done.returncode == 1 and "nothing before" in done.stdout
