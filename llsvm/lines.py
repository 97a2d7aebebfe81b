"""Text cut at newlines: runs of whole lines of a file, in buffers that are used again."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from llsvm.core import DataError, quoted
from llsvm.memory import enough
from llsvm.sources import Raw, Source

LINE_STEP = 1 << 14  # bytes read at a time to complete a last line
NEWLINE = 10
SLACK = 80  # bytes of a buffer that stay free: a last newline, and room for the scanner to look ahead
FRONT = 1 << 12  # bytes at the beginning of a file by which it is told what it looks like


class LongestLine(NamedTuple):
    """How long a line may be where so many pieces have to have room."""

    n_bytes: int
    n_pieces: int

    def refusal(self, name: str) -> DataError:
        fewer = ", or --threads 1" if self.n_pieces > 3 else ""
        return DataError(f"{name}: a line is longer than {self.n_bytes} bytes",
                         f"at least --memory {enough(16 * self.n_pieces * self.n_bytes)} is needed{fewer}")


class Lines:
    """Whole lines, in text[begin:end], and where they stand in a file. least: bytes of the buffer."""

    def __init__(self, least: int):
        self.text, self._least = bytearray(), least
        self.begin = self.end = 0
        self.stand("", 0, b"")

    def stand(self, source: str, n_before: int, front: bytes) -> None:
        """Behind so many lines of the file with this name and these first bytes."""
        self.source, self.n_before, self.front = source, n_before, front

    def _reserve(self, size: int) -> None:
        """Room for so many bytes of text."""
        size = max(size + SLACK, self._least)
        if not self.text:
            self.text = bytearray(size)
        elif len(self.text) < size:
            self.text.extend(bytes(size - len(self.text)))

    def read(self, raw: Raw, start: int, size: int, longest_line: LongestLine) -> None:
        """The lines that begin in bytes [start, start + size) of a file."""
        before = 1 if start else 0  # the byte before tells whether a line begins at start
        self._reserve(size + before + LINE_STEP)
        end = raw.read_at(memoryview(self.text)[: size + before], start - before)
        self._own = before, end
        self.begin = self.text.find(b"\n", 0, end) + 1 if before else 0
        if before and self.begin in (0, end):
            self.begin = self.end = 0
            return
        while self.text[end - 1] != NEWLINE:
            self._reserve(end + LINE_STEP)
            more = raw.read_at(memoryview(self.text)[end : end + LINE_STEP], start - before + end)
            newline = self.text.find(b"\n", end, end + more)
            end = newline + 1 if newline >= 0 else end + more
            if more == 0:
                self.text[end] = NEWLINE
                end += 1
            if end > longest_line.n_bytes + size:
                raise longest_line.refusal(raw.name)
        self.end = end

    def account(self, source: Source) -> None:
        """Tells the source which bytes of its file were read here, out of their order."""
        if self._own[1]:
            with memoryview(self.text) as text, text[slice(*self._own)] as own:
                source.raw.account(own)

    def fill(self, source: Source, rest: bytes, first: bool, longest_line: LongestLine) -> bytes | None:
        """The next lines of a source that comes by, or its first: the rest of what came before, and more. Returns what
        came of the line behind them, or None at the end, where the last line gets the newline it may lack."""
        size = len(rest)
        self._reserve(2 * size)
        self.text[:size] = rest
        while True:
            with memoryview(self.text) as view, view[size : len(self.text) - SLACK] as room:
                count = source.readinto(room)
            size += count
            if first and size >= len(codecs.BOM_UTF8):  # which may come in several reads
                first = False
                if self.text.startswith(codecs.BOM_UTF8):
                    self.text[:3] = b"   "
            if count == 0 or size == len(self.text) - SLACK:
                cut = self.text.rfind(b"\n", 0, size) + 1
                if count == 0 or cut:
                    break
                if size > longest_line.n_bytes:
                    raise longest_line.refusal(source.name)
                self.text.extend(bytes(len(self.text)))
        if count == 0 and size > cut:
            self.text[size : size + 1] = b"\n"
            cut = size = size + 1
        self.begin, self.end, self._own = 0, cut, (0, 0)
        return bytes(memoryview(self.text)[cut:size]) if count else None

    def front_of_file(self) -> bytes:
        """Where these lines are the first."""
        return bytes(memoryview(self.text)[self.begin : self.end][:FRONT])

    def token(self, where: int) -> bytes:
        """What stands there, up to a space, a comment or the end of the line; its beginning, if it is long."""
        line_end = self.text.find(b"\n", where)
        return re.match(rb"[^ \t\r\n#]*", self.text[where : min(line_end, where + 300)])[0]

    def second_occurrence(self, where: int) -> int:
        """Of the first id that the line around this place has twice."""
        line_start, line_end, seen = self._line_start(where), self.text.find(b"\n", where), set()
        for match in re.finditer(rb"[ \t\r](\d+):", self.text[line_start:line_end]):
            if int(match[1]) in seen:
                return line_start + match.start(1)
            seen.add(int(match[1]))
        return line_start

    def _line_start(self, where: int) -> int:
        return self.text.rfind(b"\n", 0, where) + 1

    def refusal(self, where: int, token: bytes, expected: str, hint: str) -> DataError:
        """Of what stands there."""
        from llsvm import foreign

        line = self.n_before + self.text.count(b"\n", self.begin, where) + 1
        column = where - self._line_start(where) + 1
        at_end = self.text[where : where + 1] in (b"\r", b"\n", b"#")
        read = f"'{quoted(token)}'" if token else "the end of the line" if at_end else "nothing"
        like, better_hint = foreign.seems(self.front, self.source)
        message = f"{self.source}:{line}:{column}: read {read}, expected {expected}{like}"
        return DataError(message, better_hint or hint)
