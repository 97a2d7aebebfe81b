"""Arrays without NumPy, which takes 45 ms to load: built-in memoryviews, which kernels and NumPy take as well."""

from __future__ import annotations

from llsvm import _arrays

SIZES = {"B": 1, "H": 2, "i": 4, "f": 4, "q": 8, "Q": 8, "d": 8}
VALUE_KINDS = {"float32": "f", "float64": "d"}


def type_name(dtype) -> str:
    """float32 or float64, given as that, as a NumPy type or as a NumPy dtype."""
    return getattr(dtype, "__name__", str(dtype))


def empty(n: int, kind: str) -> memoryview:
    """n numbers of a kind of SIZES, which are anything."""
    return _new(n, kind, False)


def zeros(n: int, kind: str) -> memoryview:
    """n times 0; what is large takes no memory before it is used."""
    return _new(n, kind, True)


def _new(n: int, kind: str, cleared: bool) -> memoryview:
    return memoryview(_arrays.Memory(max(1, n) * SIZES[kind], cleared)).cast(kind)[:n]  # nothing cannot be cast


def address(array: memoryview) -> int:
    """Where a writable array begins; 0 where it has no numbers."""
    return _arrays.address(array.cast("B")) if len(array) else 0


def touch(table: memoryview, places: memoryview, touched: memoryview) -> None:
    """Has the system find memory for the parts of a table of zeros() in which these places are; several threads may.
    touched: a byte for each of equal parts, 0 at first."""
    _arrays.touch(table, places, touched)


def keep_freed(largest: int, most: int) -> None:
    """Makes glibc take arrays below this size from its heaps, and keep up to so many freed bytes at the end of each."""
    _arrays.keep_freed(largest, most)
