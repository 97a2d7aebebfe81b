"""The campaign: gives every part its share of the time, counts, keeps the findings, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torture import sanitized
from torture.parts import PARTS
from torture.worker import Answer, Worker

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 3  # findings of one kind that are printed
HOPELESS = 20  # findings without a case that was right, after which a part is given up
KEPT = 20  # findings of one kind that are in the JSON file
NICENESS = 10
NEWS = 30.0  # seconds between lines that say how far it is


@dataclass
class Tally:
    """What is known of a part. begun: runs that were given out."""

    cases: int = 0
    findings: int = 0
    seconds: float = 0.0
    begun: int = 0
    unable: str = ""
    kinds: dict[str, int] = field(default_factory=dict)


class Campaign:
    """Workers, as many as there are jobs, each with a thread that hands it runs of the part that is most behind."""

    def __init__(self, parts: list[str], seed: int, seconds: float, keep: bool = False):
        self.seed, self.seconds, self._keep = seed, seconds, keep
        self.tallies = {name: Tally() for name in parts}
        self.findings: list[dict] = []
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def run(self, jobs: int, case: int | None = None, json_path: str | None = None) -> int:
        """The exit code: 1 if there was any finding. case: this number of the first part alone."""
        environments = self._environments()
        os.nice(NICENESS)
        self._folder = Path(tempfile.mkdtemp(prefix="llsvm-torture-"))
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        began = time.time()
        self._deadline = began + self.seconds
        try:
            self._work(jobs if case is None else 1, environments, case)
        finally:
            self._clean()
            for number, handler in before.items():
                signal.signal(number, handler)
        print(self.table(time.time() - began), flush=True)
        if json_path:
            Path(json_path).write_text(json.dumps(self.as_dict(time.time() - began), indent=1) + "\n")
        return 130 if self._stopped.is_set() else int(bool(self.findings))

    def _environments(self) -> dict[bool, dict[str, str]]:
        """What workers without and with sanitizers are started with; builds what the latter need."""
        environments = {False: {}}
        if any(PARTS[name].sanitized for name in self.tallies):
            built, why = sanitized.build(ROOT)
            if why:
                print(f"without sanitizers: {why}", file=sys.stderr)
            environments[True] = sanitized.environment(built) if built else {}
        return environments

    def _stop(self, number, frame) -> None:
        self._stopped.set()
        self._deadline = 0.0

    def _work(self, jobs: int, environments, case) -> None:
        threads = [threading.Thread(target=self._slot, args=(number, environments, case)) for number in range(jobs)]
        for thread in threads:
            thread.start()
        told = time.time()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
                if time.time() - told > NEWS:
                    told = time.time()
                    cases = sum(tally.cases for tally in self.tallies.values())
                    print(f"{max(0.0, self._deadline - told):.0f} s to go, {cases:,} cases, {len(self.findings)} "
                          "findings", file=sys.stderr, flush=True)

    def _slot(self, slot: int, environments, case: int | None) -> None:
        workers = {kind: Worker(self._folder / f"{slot}-{'sanitized' if kind else 'plain'}", self.seed, environment)
                   for kind, environment in environments.items()}
        try:
            while time.time() < self._deadline and (name := self._next()):
                number = self.tallies[name].begun - 1 if case is None else case
                began = time.time()
                answer = workers[PARTS[name].sanitized].attempt(name, number, self._deadline)
                self._count(name, number, answer, time.time() - began)
                if case is not None:
                    return
        finally:
            for worker in workers.values():
                worker.stop()

    def _next(self) -> str | None:
        """The part that has had the least of its share."""
        with self._lock:
            able = [name for name, tally in self.tallies.items() if not tally.unable]
            if not able:
                return None
            name = min(able, key=lambda name: self.tallies[name].seconds / PARTS[name].share)
            self.tallies[name].begun += 1
            self.tallies[name].seconds += 1e-3  # another slot is to take another part meanwhile
            return name

    def _count(self, name: str, number: int, answer: Answer | None, seconds: float) -> None:
        with self._lock:
            tally = self.tallies[name]
            tally.seconds += seconds
            if answer is None:
                return
            tally.cases += answer.cases
            tally.unable = tally.unable or answer.unable
            if not answer.kind:
                return
            tally.findings += 1
            if tally.findings == tally.cases == HOPELESS:
                tally.unable = f"given up after {HOPELESS}"
            seen = tally.kinds[answer.kind] = tally.kinds.get(answer.kind, 0) + 1
            repeat = f"python scripts/torture --seed {self.seed} --only {name} --case {number}"
            if seen <= KEPT:
                self.findings.append({"part": name, "case": number, "kind": answer.kind, "seen": answer.seen,
                                      "repeat": repeat})  # fmt: skip
            if seen <= SHOWN:
                more = "\n(more of this kind are counted, not shown)" if seen == SHOWN else ""
                print(f"FINDING {name}: {answer.kind}\n{answer.seen}\nrepeat: {repeat}{more}\n", flush=True)

    def _clean(self) -> None:
        """The temporary folder, and what parts have mounted in it."""
        if self._keep:
            print(f"kept: {self._folder}", file=sys.stderr)
            return
        with suppress(OSError):
            mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
            for mount in mounts:
                if mount.startswith(f"{self._folder}/"):
                    subprocess.run(["umount", mount], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def table(self, seconds: float) -> str:
        rows = [("part", "cases", "findings", "seconds")]
        rows += [(name, f"{tally.cases:,}", tally.unable or f"{tally.findings:,}", f"{tally.seconds:.0f}")
                 for name, tally in self.tallies.items()]
        tallies = self.tallies.values()
        rows.append(("all", f"{sum(tally.cases for tally in tallies):,}",
                     f"{sum(tally.findings for tally in tallies):,}", f"{seconds:.0f}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *(text.rjust(width) for text, width in
                 zip(row[1:], widths[1:], strict=True))]) for row in rows]  # fmt: skip
        kinds = [f"{name}: {kind}: {count:,}" for name, tally in self.tallies.items()
                 for kind, count in tally.kinds.items()]
        return "\n".join([*lines, f"seed {self.seed}, {commit()}", *kinds])

    def as_dict(self, seconds: float) -> dict:
        parts = {name: {"promise": PARTS[name].promise, "cases": tally.cases, "findings": tally.findings,
                        "seconds": round(tally.seconds, 1), "kinds": tally.kinds,
                        **({"unable": tally.unable} if tally.unable else {})}
                 for name, tally in self.tallies.items()}
        return {"seed": self.seed, "seconds": round(seconds, 1), "commit": commit(), "machine": platform.platform(),
                "parts": parts, "findings": self.findings}


def commit() -> str:
    found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return f"commit {found.stdout.strip()}" if found.returncode == 0 else "no commit"
