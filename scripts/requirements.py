"""Prints what pyproject.toml requires, one a line: `requirements.py build run test`, or any other extra."""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

settings = tomllib.loads(Path(__file__).parent.parent.joinpath("pyproject.toml").read_text())
project = settings["project"]
lists = {
    "build": settings["build-system"]["requires"],
    "run": project["dependencies"],
    **project["optional-dependencies"],
}
print("\n".join(requirement for name in sys.argv[1:] for requirement in lists[name]))
