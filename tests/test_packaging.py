"""What is installed, and by what: requirements, make targets, the source distribution's list."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def requirements(*lists):
    command = [sys.executable, str(ROOT / "scripts" / "requirements.py"), *lists]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("extra", ["run", "test", "lint", "bench"])
def test_the_script_requires_what_the_installed_package_does(extra):
    """Against the metadata that setuptools wrote: `name>=1; extra == "test"`."""
    known = (line.partition(";") for line in importlib.metadata.requires("llsvm"))
    marker = "" if extra == "run" else f'extra == "{extra}"'
    assert sorted(requirements(extra)) == sorted(name.strip() for name, _, when in known if when.strip() == marker)


def test_several_lists_are_printed_one_after_the_other():
    assert requirements("build", "run") == requirements("build") + requirements("run")
    assert [re.match(r"\w+", requirement)[0] for requirement in requirements("build")] == ["setuptools", "cython"]


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "bench-smoke", "torture", "check-sdist"])
def test_no_target_compiles_in_an_environment_of_its_own_or_twice(target, tmp_path):
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--dry-run", target]
    plan = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert plan.count("build_ext --inplace") == 1
    installations = re.findall(r"pip install .*", plan)
    own = [words for words in installations if "--editable" in words or "'.[" in words]
    assert len(own) == 1 and "--no-build-isolation --no-deps --editable ." in own[0]
