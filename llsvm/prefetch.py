"""Groups of chunks, decoded ahead of whoever visits them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue

from llsvm.blockset import BlockSet, Decoder
from llsvm.pool import Pool
from llsvm.reader import Arena

# Bytes that the system is asked to read before it is their turn, so that the disk works while the solver does not read.
READ_AHEAD = 8 << 20


@dataclass
class _Filling:
    """An arena that a group of chunks is read into, or is to be; `soon` will be read later."""

    arena: Arena
    group: list[int]
    soon: list[int]
    outcome: SimpleQueue = field(default_factory=SimpleQueue)


class Prefetcher:
    """Decodes groups of chunks ahead of the solver: one arena is the solver's, while threads fill the others.

    A solver that would have to wait decodes a group itself, unless all have been begun. Counts the bytes read and the
    time the solver waited, for threads or for the disk.
    """

    def __init__(self, blocks: BlockSet, arenas: list[Arena], plan, n_threads: int = 1):
        self.blocks, self._plan, self._planned, self._n_ahead = blocks, iter(plan), deque(), 0
        self._most_ahead = min(READ_AHEAD, int(blocks.chunk_bytes.sum()))
        self._sizes = blocks.chunk_bytes.tolist()
        self.bytes_read, self.wait = 0, 0.0
        self._own, self._idle = Decoder(blocks), [Decoder(blocks) for _ in range(n_threads)]
        self._decoders = self._own, *self._idle
        self._pool = Pool(n_threads)
        self._fillings, self._not_begun = deque(), deque()
        for arena in arenas:
            self.release(arena)

    @property
    def read_seconds(self) -> float:
        """Of all threads."""
        return sum(decoder.read_seconds for decoder in self._decoders)

    def _work(self) -> None:
        decoder = self._idle.pop()
        try:
            self._fill_one(decoder)
        finally:
            self._idle.append(decoder)

    def _fill_one(self, decoder: Decoder) -> bool:
        """Fills the first arena that nobody fills yet; False if there is none."""
        try:
            filling = self._not_begun.popleft()
        except IndexError:
            return False
        arena, group = filling.arena, filling.group
        try:
            for chunk in filling.soon:
                self.blocks.ask_for(chunk)
            arena.clear()
            for chunk in group:
                arena.add_chunk(decoder, chunk)
            filling.outcome.put((arena, group))
        except Exception as error:
            filling.outcome.put(error)
        return True

    @property
    def ready(self) -> bool:
        """Whether the next group is there."""
        return not self._fillings[0].outcome.empty()

    def next(self) -> tuple[Arena, list[int]]:
        """The next group as (arena, chunks)."""
        read = self._own.read_seconds
        while not self.ready and self._fill_one(self._own):
            pass
        start = time.perf_counter()
        item = self._fillings.popleft().outcome.get()
        self.wait += time.perf_counter() - start + self._own.read_seconds - read
        if isinstance(item, Exception):
            raise item
        arena, group = item
        self.bytes_read += self._bytes_of(group)
        return arena, group

    def release(self, arena: Arena) -> None:
        if not self._planned:
            self._look_ahead(1)
        if not self._planned:
            return
        group = self._planned.popleft()
        self._n_ahead -= self._bytes_of(group)
        self._fillings.append(_Filling(arena, group, self._look_ahead(self._most_ahead)))
        self._not_begun.append(self._fillings[-1])
        self._pool.submit(self._work)

    def _look_ahead(self, n_bytes: int) -> list[int]:
        """Plans groups until they have so many bytes; returns the chunks of the new ones."""
        chunks = []
        while self._n_ahead < n_bytes and (group := next(self._plan, None)) is not None:
            self._planned.append(group)
            self._n_ahead += self._bytes_of(group)
            chunks += group
        return chunks

    def _bytes_of(self, group: list[int]) -> int:
        return sum(map(self._sizes.__getitem__, group))

    def close(self) -> None:
        self._pool.shutdown()
        self.blocks.close()
