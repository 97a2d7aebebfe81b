"""The byte budget: sizes in words, what a control group leaves, what is promised."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llsvm import memory
from llsvm.core import UsageError
from llsvm.memory import (
    FLOOR,
    MB,
    RESIDENT_FLOOR,
    Budget,
    enough,
    format_size,
    parse_size,
    promised,
    short_size,
    usable,
    usable_cores,
)

GB = 1 << 30


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1", 1),
        ("123456", 123456),
        ("300M", 300 * 2**20),
        ("300m", 300 * 2**20),
        ("300MB", 300 * 2**20),
        ("300MiB", 300 * 2**20),
        ("2G", 2 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("0.5K", 512),
        ("3T", 3 * 2**40),
        (" 64 k ", 64 * 2**10),
        ("10B", 10),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text, n_bytes):
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "M", "0", "0G", "0.0", "0.1", "-1G", "+1G", "1,5G", "1e9", "2X", "2GG", "G2", "2 G B", "nan", "inf"]
)
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="not a memory size") as refusal:
        parse_size(text)
    assert "2G" in refusal.value.hint


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (1536, "1.5 KB"), (300 * MB, "300 MB"), (5 * GB // 2, "2.5 GB"),
     (3000 * GB, "2.9 TB")],
)  # fmt: skip
def test_a_size_is_told_in_short(n_bytes, text):
    assert format_size(n_bytes) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(300, "300"), (1536, "1.5K"), (300 * MB, "300M"), (5 * GB // 2, "2.5G")])
def test_a_size_can_be_given_back_as_it_was_told(n_bytes, text):
    assert short_size(n_bytes) == text
    assert parse_size(text) == n_bytes


BUDGETS = st.one_of(st.integers(1, 4 * FLOOR), st.integers(1, 2**45))


@given(BUDGETS)
def test_the_promise_is_the_budget_or_at_most_a_floor_above_a_small_one(budget):
    assert 0 < Budget(budget).left <= budget
    assert promised(budget) == Budget(budget).left + FLOOR
    if budget >= 2 * FLOOR:
        assert promised(budget) == budget
    else:
        assert budget <= promised(budget) <= budget + FLOOR


@given(BUDGETS, BUDGETS)
def test_more_budget_is_never_less_memory(one, other):
    small, large = sorted((one, other))
    assert Budget(small).left <= Budget(large).left
    assert Budget(small).of_resident.left <= Budget(large).of_resident.left


@given(BUDGETS)
def test_resident_rows_have_less_beside_them(budget):
    assert Budget(budget).left <= Budget(budget).of_resident.left <= promised(budget) - RESIDENT_FLOOR


@given(st.integers(1, 2**40))
def test_enough_is_the_smallest_number_of_megabytes_that_will_do(n_bytes):
    answer = enough(n_bytes)
    assert answer.endswith("M")
    assert Budget(parse_size(answer)).left >= n_bytes
    assert Budget(parse_size(answer) - MB).left < n_bytes


@given(st.integers(1, 1 << 36), st.integers(1, 1 << 36), st.floats(0, 0.4))
def test_the_hint_beside_what_grows_with_the_memory_will_do(fixed, budget, share):
    def taken(room):
        return fixed + int(share * room)

    def left(budget):
        return Budget(budget).take_most(taken(Budget(budget).left), "rows", lambda room: taken(room) - fixed).left

    try:
        assert left(budget) == Budget(budget).left - taken(Budget(budget).left)
    except UsageError as refusal:
        assert left(parse_size(re.search(r"--memory (\S+)", refusal.hint)[1])) > 0


@given(BUDGETS, st.integers(0, 1 << 36), st.integers(0, 1 << 36), st.integers(0, 1 << 36))
def test_what_is_refused_fits_into_what_the_hint_names(memory, before, n_bytes, more):
    budget = Budget(memory).without(before)
    try:
        assert 0 <= budget.take(n_bytes, "rows", would_do=n_bytes + more).left == budget.left - n_bytes
    except UsageError as refusal:
        assert n_bytes > budget.left
        larger = Budget(parse_size(re.search(r"--memory (\S+)", refusal.hint)[1])).without(before)
        assert larger.take(n_bytes + more, "rows").left < MB


# --- control groups: /proc and /sys are folders of our own


@pytest.fixture
def system(tmp_path, monkeypatch):
    """system(groups, {file: text}) lays out /proc/self/cgroup and files under /sys/fs/cgroup."""

    def lay_out(groups: str, limits: dict[str, str]) -> None:
        files = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()}}
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / name.lstrip("/"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GB // 4096}.__getitem__)
    return lay_out


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {}, 8 * GB),
        ("0::/\n", {"memory.max": "max\n"}, 8 * GB),
        ("0::/\n", {"memory.max": f"{2 * GB}\n"}, 2 * GB),
        ("0::/a/b\n", {"a/b/memory.max": f"{3 * GB}\n"}, 3 * GB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{GB}\n"}, GB),
        ("0::/a/b\n", {"a/b/memory.max": f"{3 * GB}\n", "a/memory.max": f"{4 * GB}\n"}, 3 * GB),
        ("0::/a/b\n", {"memory.max": f"{GB}\n"}, GB),
        ("0::/a\n", {"other/memory.max": f"{GB}\n"}, 8 * GB),
        ("0::/a\n", {"a/memory.max": f"{99 * GB}\n"}, 8 * GB),
        ("0::/a\n", {"a/memory.max": "nonsense"}, 8 * GB),
        ("5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": f"{GB}\n"}, GB),
        ("4:memory:/docker/17\n", {"memory/memory.limit_in_bytes": f"{GB}\n"}, GB),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 8 * GB),
        ("5:cpu:/x\n1:name=systemd:/x\n", {"memory/x/memory.limit_in_bytes": f"{GB}\n"}, 8 * GB),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_the_control_groups_counts(system, groups, limits, expected):
    system(groups, limits)
    assert usable() == expected


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n", "a/cpu.max": "150000 100000\n"}, 2),
        ("0::/a\n", {"a/cpu.max": "10000 100000\n"}, 1),
        ("0::/a\n", {"a/cpu.max": "9900000 100000\n"}, 8),
        ("0::/a\n", {"a/cpu.max": "nonsense\n"}, 8),
        ("5:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "200000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 2),
        ("5:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 8),
        ("5:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "200000\n"}, 8),
    ],
)  # fmt: skip
def test_the_control_groups_limit_the_cores(system, monkeypatch, groups, limits, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    system(groups, limits)
    assert usable_cores() == expected


def test_without_control_groups_physical_memory_counts(system):
    assert usable() == 8 * GB


@pytest.mark.parametrize(("limit", "expected"), [(3 * GB, 3 * GB), (99 * GB, 8 * GB)])
def test_a_limit_on_the_address_space_counts(system, monkeypatch, limit, expected):
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (limit, resource.RLIM_INFINITY)}.__getitem__)
    assert usable() == expected


def test_on_this_machine_no_more_than_physical_memory_is_usable():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < usable() <= total


# --- what was used


def run_python(code: str) -> list[int]:
    """The numbers that a fresh interpreter prints."""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in child.stdout.split()]


def test_the_peak_grows_with_an_allocation_and_stays():
    before, with_block, after = run_python(
        "from llsvm.memory import peak\n"
        "before = peak()\n"
        "block = bytearray(b'x') * (before + (64 << 20))\n"  # more than there ever was, so a new peak for certain
        "grown = peak()\n"
        "del block\n"
        "print(before, grown, peak())\n"
    )
    assert with_block >= before + 60 * MB
    assert after >= with_block - MB  # the kernel counts pages in batches


def test_the_peak_is_that_of_this_process_not_of_the_one_that_started_it():
    ballast = bytearray(b"x") * (500 * MB)
    [child_peak] = run_python("from llsvm.memory import peak; print(peak())")
    assert len(ballast) == 500 * MB
    assert child_peak < 200 * MB


@pytest.mark.parametrize(("limit", "most", "expected"), [
    (1024, 64, 64), (1024, 256, 256), (64, 64, 16), (64, 256, 16), (256, 256, 112), (40, 64, 4), (8, 64, 1),
    (resource.RLIM_INFINITY, 256, 256),
])  # fmt: skip
def test_half_of_the_files_that_may_be_open_are_left_for_others(monkeypatch, limit, most, expected):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit) if what == resource.RLIMIT_NOFILE else None)
    assert memory.files_at_a_time(most) == expected
