"""What a part of the campaign is: an endless supply of cases, each of which keeps a promise or is a finding."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random


class Finding(Exception):
    """A promise that was not kept. kind: a few words, the same for all cases of one fault; seen: everything else."""

    def __init__(self, kind: str, seen: str = ""):
        super().__init__(f"{kind}: {seen}")
        self.kind, self.seen = kind, seen


class Unable(Exception):
    """Why this machine cannot try this part."""


class Part:
    """cases(random) tries a run of cases and yields after each that was right; the first that is not raises a Finding.

    A run must depend on `random`, and on what prepare() has made, alone: so its number repeats it.
    share: of the time, relative to other parts; limit: seconds after which a run counts as hanging.
    """

    name = ""
    promise = ""
    share = 1.0
    limit = 120.0
    sanitized = False

    def __init__(self, folder: Path, number: int = 0):
        self.folder, self.number = folder, number
        self._numbers = itertools.count()

    def prepare(self, random: Random) -> None:
        """Makes what all cases use, the same for every seed unless it takes from `random`."""

    def cases(self, random: Random) -> Iterator[None]:
        raise NotImplementedError

    def fresh(self) -> Path:
        """A new, empty folder; those of earlier cases go."""
        for old in self.folder.glob("case-*"):
            shutil.rmtree(old, ignore_errors=True)
        folder = self.folder / f"case-{next(self._numbers)}"
        folder.mkdir()
        return folder
