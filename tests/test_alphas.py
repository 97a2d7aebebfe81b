"""Dual variables in memory and in a file: the answers of a plain array."""

import os
import tempfile
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import file_size_limit, files_open_in
from hypothesis import given, settings
from hypothesis import strategies as st

from llsvm.alphas import Alphas
from llsvm.core import LlsvmError

PLACES = [True, False]
DTYPES = [np.float32, np.float64]


@contextmanager
def opened(n_rows: int, dtype, in_memory: bool):
    alphas = Alphas(n_rows, dtype, in_memory)
    try:
        yield alphas
    finally:
        alphas.close()


@st.composite
def operations(draw):
    """(n_rows, [(what, rows)]): runs to read and write, single rows to scatter, in any order but each once."""
    n_rows = draw(st.integers(1, 60))
    row = st.integers(0, n_rows - 1)
    run = st.tuples(row, row).map(lambda ends: list(range(min(ends), max(ends) + 1)))
    some = st.lists(row, unique=True, max_size=n_rows)
    step = st.one_of(
        st.tuples(st.just("read"), run), st.tuples(st.just("write"), run), st.tuples(st.just("scatter"), some)
    )
    return n_rows, draw(st.lists(step, max_size=30))


@settings(max_examples=200)
@given(plan=operations(), dtype=st.sampled_from(DTYPES), in_memory=st.sampled_from(PLACES), seed=st.integers(0, 99))
def test_any_sequence_of_reads_and_writes_answers_as_an_array_does(plan, dtype, in_memory, seed):
    n_rows, steps = plan
    rng, plain = np.random.default_rng(seed), np.zeros(n_rows, dtype)
    with opened(n_rows, dtype, in_memory) as alphas:
        for what, rows in steps:
            values = rng.random(len(rows)).astype(dtype)
            if what == "scatter":
                alphas.scatter(np.array(rows, np.int64), values)
                plain[rows] = values
                np.testing.assert_array_equal(alphas.gather(np.array(rows, np.int64)), plain[rows])
            elif what == "write":
                alphas.write(rows[0], values)
                plain[rows] = values
            else:
                np.testing.assert_array_equal(alphas.read(rows[0], len(rows)), plain[rows])
        np.testing.assert_array_equal(alphas.read(0, n_rows), plain)
        assert alphas.read(0, n_rows).dtype == dtype


@pytest.mark.parametrize("in_memory", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_are_zero_at_first(in_memory, dtype):
    with opened(100_000, dtype, in_memory) as alphas:
        np.testing.assert_array_equal(alphas.read(0, 100_000), np.zeros(100_000, dtype))


@pytest.mark.parametrize("in_memory", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_rounded_to_what_is_stored(in_memory, dtype):
    values = np.random.default_rng(0).random(50)
    with opened(50, dtype, in_memory) as alphas:
        alphas.write(0, values[:25])
        alphas.scatter(np.arange(25, 50)[::-1].copy(), values[25:][::-1].copy())
        np.testing.assert_array_equal(alphas.read(0, 50), values.astype(dtype))


@pytest.mark.parametrize("in_memory", PLACES)
def test_strided_values_are_written_in_order(in_memory):
    table = np.zeros(20, [("other", np.int32), ("alpha", np.float64)])
    table["alpha"] = np.arange(20)
    with opened(30, np.float32, in_memory) as alphas:
        alphas.write(5, table["alpha"])
        np.testing.assert_array_equal(alphas.read(5, 20), np.arange(20, dtype=np.float32))


def test_the_file_has_no_name_and_lies_where_temporary_files_go(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened(1000, np.float64, False) as alphas:
        alphas.write(0, np.ones(1000))
        assert len(files_open_in(tmp_path)) == 1
        assert os.listdir(tmp_path) == []
    assert files_open_in(tmp_path) == []


def test_a_full_disk_is_told_with_what_to_do():
    with opened(10_000, np.float64, False) as alphas, file_size_limit(40_000), pytest.raises(LlsvmError) as refusal:
        alphas.write(4000, np.ones(6000))
    assert "TMPDIR" in refusal.value.hint
