"""What a run tells: progress on a terminal, lines elsewhere, and the run log."""

from __future__ import annotations

import os
import sys
import time

from llsvm.core import LlsvmError, PassStats, UsageError, escaped

BAR_WIDTH = 30


class Console:
    """Messages on standard error; a bar with the time left where that is a terminal."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown, self._started, self._bar_shown = 0.0, 0.0, False
        self._told, self._told_at = None, 0.0

    def line(self, text: str) -> None:
        if not self.quiet:
            self._write(f"{text}\n")

    def warn(self, text: str) -> None:
        self._write(f"warning: {escaped(text)}\n")

    def _write(self, text: str) -> None:
        """In place of the bar, if there is one. A reader who has gone must not end the work."""
        try:
            sys.stderr.write(("\r\x1b[K" if self._bar_shown else "") + text)
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            self.quiet = True
        self._bar_shown = False

    def pass_done(self, stats: PassStats) -> None:
        """A line for every pass that read data; of quick passes in memory only those that tell something new."""
        news = stats.primal, stats.bytes_read, stats.change
        if news != self._told or time.perf_counter() - self._told_at > 1:
            self._told, self._told_at = news, time.perf_counter()
            self.line(pass_line(stats))

    def begin(self) -> None:
        self._started = time.perf_counter()

    def bar(self, what: str, done: float, total: float | None) -> None:
        """Redraws the bar at most ten times a second."""
        now = time.perf_counter()
        if not self._terminal or self.quiet or now - self._shown < 0.1:
            return
        self._shown = now
        if total:
            share = min(1.0, done / total)
            left = (now - self._started) * (1 - share) / max(share, 1e-9)
            drawn = "#" * int(BAR_WIDTH * share)
            text = f"{what} [{drawn:.<{BAR_WIDTH}}] {share:4.0%} {_clock(left)} left"
        else:
            text = f"{what} {done / 1e6:.0f} MB, {done / 1e6 / max(now - self._started, 1e-9):.0f} MB/s"
        import shutil

        self._write(text[: shutil.get_terminal_size().columns - 1])
        self._bar_shown = True

    def end(self) -> None:
        """Takes the bar away."""
        if self._bar_shown:
            self._write("")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def pass_line(stats: PassStats) -> str:
    """A pass in one line; what is not certified carries a ~."""
    mark = " " if stats.certified else "~"
    known = stats.gap < float("inf")
    primal = f"  primal {mark}{stats.primal:.6g}" if known else ""
    gap = f"  gap {mark}{stats.gap:.2e}" if known else ""
    change = f"  change {stats.change:.1e}" if stats.change < float("inf") else ""
    active = f"  active {stats.active}" if stats.active else ""
    return f"pass {stats.number:3d}{primal}  dual {stats.dual:.6g}{gap}{change}{active}  {stats.seconds:.2f} s"


class RunLog:
    """JSON lines: one object {"event": "start" | "pass" | "end", ...} a line, flushed as it happens."""

    def __init__(self, path: str | None):
        self._path, self._file = path, None
        if path:
            if os.path.isfile(path) and os.path.getsize(path):
                with open(path, "rb") as file:
                    if not file.read(9).startswith(b'{"event"'):
                        raise UsageError(f"{path} exists and is not a run log; it was left alone")
            try:
                self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise LlsvmError(f"{path}: {error.strerror}") from None

    def write(self, event: str, **fields) -> None:
        if self._file is None:
            return
        import json

        try:
            self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")
            self._file.flush()
        except OSError as error:
            raise LlsvmError(f"{self._path}: {error.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise LlsvmError(f"{self._path}: {error.strerror}") from None
