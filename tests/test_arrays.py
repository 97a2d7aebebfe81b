"""Arrays without NumPy, against NumPy."""

import numpy as np
import pytest

from llsvm import arrays

TYPES = {"B": np.uint8, "H": np.uint16, "i": np.int32, "f": np.float32, "q": np.int64, "Q": np.uint64, "d": np.float64}


@pytest.mark.parametrize("n", [0, 1, 5, 3 << 20])
@pytest.mark.parametrize("kind", TYPES)
def test_numbers_of_every_kind_are_kept(kind, n):
    numbers = np.random.default_rng(1).integers(0, 200, n).astype(TYPES[kind])
    array = arrays.empty(n, kind)
    assert len(array) == n and array.nbytes == numbers.nbytes
    np.asarray(array)[:] = numbers
    assert np.asarray(array).dtype == TYPES[kind]
    np.testing.assert_array_equal(array, numbers)


@pytest.mark.parametrize("n", [0, 1, 5, 3 << 20])
@pytest.mark.parametrize("kind", TYPES)
def test_zeros_are_zeros(kind, n):
    np.testing.assert_array_equal(arrays.zeros(n, kind), np.zeros(n, TYPES[kind]))


def test_memory_lives_as_long_as_a_part_of_it_is_used():
    part = arrays.zeros(1 << 20, "q")[500:600]
    part[7] = 9
    others = [arrays.empty(1 << 20, "q") for _ in range(3)]
    for other in others:
        np.asarray(other)[:] = -1
    assert part.tolist() == [0] * 7 + [9] + [0] * 92


def test_an_address_is_where_numpy_finds_the_numbers():
    array = arrays.empty(10, "d")
    assert arrays.address(array) == np.asarray(array).__array_interface__["data"][0]
    assert arrays.address(array[3:]) == arrays.address(array) + 24
    assert arrays.address(array[:0]) == 0


def test_more_memory_than_there_is_is_refused():
    with pytest.raises(MemoryError):
        arrays.empty(1 << 59, "d")
