"""Feature ids numbered in the order in which they first appear."""

from __future__ import annotations

import threading

from llsvm import _features
from llsvm.arrays import empty, touch, zeros
from llsvm.core import DataError
from llsvm.frames import FEATURE_LIMIT, IDS_A_FRAME
from llsvm.memory import format_size, too_small

DIRECT_LIMIT = 1 << 24
PART = 1 << 19  # entries of that table for which memory is found at once: a large page
PREPARED = 4 * PART  # entries from which on that is done beforehand


class FeatureMap:
    """Feature ids (1-based, up to 63 bits) numbered 0, 1, 2, ... in the order in which they first appear.

    Ids below 2^24, or below what a third of `memory` holds, are looked up in a table, the others by hashing. Refuses to
    double what takes more than half of `memory`, and to take more than three quarters of it. reserved: bytes that are
    set aside beside it, for the hint.
    """

    def __init__(self, memory: int = 1 << 32, reserved: int = 0):
        self._memory, self._reserved = memory, reserved
        self._direct_limit = min(DIRECT_LIMIT, 1 << max(1, memory // 12).bit_length() - 1)
        self._direct = zeros(1 << 12, "i")
        self._hashed_ids = zeros(1 << 10, "q")
        self._hashed_features = zeros(1 << 10, "i")
        self._known = [empty(1 << 12, "q")]
        self.n_features = self._n_hashed = self._n_taken = 0
        self._needed, self._growing, self._coming = 0, threading.Lock(), {}

    @property
    def ids(self) -> memoryview:
        """All of them, of which none must have been taken."""
        assert not self._n_taken
        ids = empty(self.n_features, "q")
        for number, segment in enumerate(self.segments):
            ids[number * IDS_A_FRAME : number * IDS_A_FRAME + len(segment)] = segment
        return ids

    @property
    def segments(self) -> list[memoryview]:
        """The ids that were not taken, not copied, IDS_A_FRAME in each array but the last."""
        return [*self._known[:-1], self._known[-1][: self.n_features - self._first_of_last]]

    def take_full_segments(self) -> list[memoryview]:
        """Those of `segments` to which none will be added. They are forgotten, so that their memory serves again."""
        taken, self._known = self._known[:-1], self._known[-1:]
        self._n_taken += len(taken) * IDS_A_FRAME
        return taken

    @property
    def _first_of_last(self) -> int:
        """The number of the first feature whose id is in the last segment."""
        return self._n_taken + (len(self._known) - 1) * IDS_A_FRAME

    @property
    def n_bytes(self) -> int:
        return sum(a.nbytes for a in (self._direct, self._hashed_ids, self._hashed_features, *self._known))

    def allow(self, n_bytes: int) -> None:
        """At least so many bytes for the table, whatever it was given first."""
        self._memory = max(self._memory, n_bytes)

    def look_up(self, piece) -> None:
        """Numbers those ids of a piece that are known already; any thread may do so, while another numbers."""
        self._prepare(piece)
        count = _features.look_up(piece.ids, piece.features, piece.unknown, self._direct)
        piece.unknown = piece.unknown[:count]

    def _size_wanted(self, largest: int) -> int:
        """Of the direct table, 0 where it is large enough."""
        if largest < len(self._direct) or len(self._direct) >= self._direct_limit:
            return 0
        return min(self._direct_limit, 1 << largest.bit_length())

    def _prepare(self, piece) -> None:
        """Has memory found for the larger table that this piece may need, by all threads that come by at that time: it
        takes long, and no id can be numbered before."""
        if self._size_wanted(piece.largest_id) < PREPARED:
            return
        with self._growing:
            size = self._size_wanted(piece.largest_id)
            if size and not self._coming:
                self._coming[size] = zeros(size, "i"), zeros(size // PART, "B")
            coming = self._coming.get(size)
        if coming:
            touch(coming[0], piece.ids, coming[1])

    def number(self, piece) -> memoryview:
        """int32 numbers of the ids of a piece that was looked up."""
        if size := self._size_wanted(piece.largest_id):
            with self._growing:
                table, _ = self._coming.get(size) or (zeros(size, "i"), None)
                table[: len(self._direct)] = self._direct
                self._direct = table
                self._coming.clear()
        done = 0
        while done < len(piece.unknown):
            done, self.n_features, self._n_hashed = _features.number(
                piece.ids, piece.features, piece.unknown, self._direct, self._hashed_ids, self._hashed_features,
                self._known[-1], self._first_of_last, done, self.n_features, self._n_hashed,
            )
            if done < len(piece.unknown):
                self._make_room()
        return piece.features

    @property
    def enough(self) -> int:
        """Bytes for arrays with which so many ids fit, as the table grows with the memory there is."""
        return 4 * self._needed + self._reserved

    def check(self, memory: int, known: bool = True) -> None:
        """Refuses so many bytes if these ids do not fit in them. known: whether there are no others."""
        if self._needed > memory:
            so_far = "" if known else ", so far,"
            what = f"the ids of {self.n_features} features{so_far} take {format_size(self.n_bytes)}"
            raise too_small(0, what, self.enough, known)

    def _make_room(self) -> None:
        rehashing = self._n_hashed >= len(self._hashed_ids) // 2
        self._needed = 2 * self.n_bytes if rehashing else self.n_bytes * 4 // 3
        self.check(self._memory, known=False)
        if self.n_features == FEATURE_LIMIT:
            raise DataError(f"more than {FEATURE_LIMIT} different features")
        if self.n_features == self._first_of_last + len(self._known[-1]):
            if len(self._known[-1]) < IDS_A_FRAME:
                self._known[-1] = _enlarged(self._known[-1], 2 * len(self._known[-1]))
            else:
                self._known.append(empty(IDS_A_FRAME, "q"))
        if rehashing:
            ids, features = zeros(2 * len(self._hashed_ids), "q"), zeros(2 * len(self._hashed_ids), "i")
            _features.rehash(self._hashed_ids, self._hashed_features, ids, features)
            self._hashed_ids, self._hashed_features = ids, features


def _enlarged(numbers: memoryview, size: int) -> memoryview:
    """Zeros behind it take no memory before they are used."""
    larger = zeros(size, numbers.format)
    larger[: len(numbers)] = numbers
    return larger
