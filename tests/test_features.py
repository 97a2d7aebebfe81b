"""Feature numbers against a plain dict: order of first appearance, tables that grow, a budget that is kept."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llsvm import features as feature_module
from llsvm.core import UsageError
from llsvm.features import FeatureMap


def piece_of(ids):
    """What a feature map sees of a piece of text."""
    features, unknown = np.empty((2, len(ids)), np.int32)
    return SimpleNamespace(ids=np.array(ids, np.int64), largest_id=max(ids, default=0), features=features,
                           unknown=unknown)


def assert_numbered(calls, **options) -> None:
    """Numbers in order of first appearance, as a dict counts them, over several calls."""
    features, known = FeatureMap(**options), {}
    pieces = [piece_of(ids) for ids in calls]
    for number, piece in enumerate(pieces):  # looked up one ahead, as threads do
        for ahead in pieces[0 if number == 0 else number + 1 : number + 2]:
            features.look_up(ahead)
        expected = [known.setdefault(id, len(known)) for id in piece.ids.tolist()]
        assert features.number(piece).tolist() == expected
        assert features.n_features == len(known)
    assert features.ids.tolist() == list(known)


ANY_ID = st.one_of(
    st.integers(1, 30), st.integers(4090, 4100), st.integers(2**13 - 5, 2**13 + 5), st.integers(1, 2**63 - 1)
)


@settings(max_examples=100)
@given(calls=st.lists(st.lists(ANY_ID, max_size=60), max_size=6))
def test_features_are_numbered_as_they_appear(calls):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_module, "DIRECT_LIMIT", 2**13)
        assert_numbered(calls)


def test_ids_around_the_end_of_the_direct_table_stay_apart():
    limit = feature_module.DIRECT_LIMIT
    around = [limit + shift for shift in (2, -1, 0, -2, 1)]
    assert_numbered([[5, 4095, 4096, 4097], around, [2**63 - 1, 1, limit // 2], around, [2**32 + 5, 5]])


@pytest.mark.parametrize("memory", [1 << 32, 20 << 20])
def test_many_ids_of_any_size_keep_their_numbers_while_the_tables_grow(memory):
    rng = np.random.default_rng(3)
    wide = rng.integers(1, 2**63 - 1, 60_000)
    narrow = rng.integers(1, 2**25, 60_000)
    strided = np.arange(1, 30_000) << 44
    everything = rng.permutation(np.concatenate([wide, narrow, strided, wide[:1000]]))
    assert_numbered([part.tolist() for part in np.array_split(everything, 40)], memory=memory)


@pytest.mark.parametrize("largest", [2**18, 2**62])
def test_more_features_than_the_budget_holds_are_refused(largest):
    memory = 1 << 20
    features, rng = FeatureMap(memory), np.random.default_rng(0)
    with pytest.raises(UsageError, match="--memory is too small") as refusal:
        for _ in range(1000):
            piece = piece_of(rng.integers(1, largest, 1000).tolist())
            features.look_up(piece)
            features.number(piece)
    assert features.n_bytes < memory
    assert "--memory" in refusal.value.hint


@pytest.mark.parametrize("n", [0, 5000, 2**18, 2**18 + 1, 600_000])
def test_ids_come_in_segments_too(n):
    ids = np.concatenate([np.arange(1, n // 2 + 1), 2**40 + np.arange(n - n // 2)])
    ids = np.random.default_rng(n).permutation(ids)
    features = FeatureMap()
    for part in np.array_split(ids, 7):
        piece = piece_of(part.tolist())
        features.look_up(piece)
        features.number(piece)
    assert np.array_equal(features.ids, ids)
    assert np.array_equal(np.concatenate(features.segments), ids)
    assert [len(segment) for segment in features.segments[:-1]] == [2**18] * (len(features.segments) - 1)


def test_segments_that_were_taken_are_forgotten():
    ids = np.random.default_rng(1).permutation(np.arange(1, 700_001) * 2**20)
    features, taken = FeatureMap(), []
    for part in np.array_split(ids, 70):
        for again in part, part[::-1]:
            piece = piece_of(again.tolist())
            features.look_up(piece)
            features.number(piece)
        taken += features.take_full_segments()
    assert [len(segment) for segment in taken] == [2**18] * 2
    assert np.array_equal(np.concatenate([*taken, *features.segments]), ids)
    piece = piece_of(ids.tolist())
    features.look_up(piece)
    assert np.array_equal(features.number(piece), np.arange(len(ids)))


def test_a_table_that_several_threads_prepare_serves_all_of_them(monkeypatch):
    monkeypatch.setattr(feature_module, "PART", 2**10)
    monkeypatch.setattr(feature_module, "PREPARED", 2**13)
    rng = np.random.default_rng(2)
    pieces = [piece_of(rng.integers(1, largest, 20_000).tolist()) for largest in (2**13, 2**20, 2**16, 2**22)]
    features, known = FeatureMap(), {}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(features.look_up, pieces))
    for piece in pieces:
        expected = [known.setdefault(id, len(known)) for id in piece.ids.tolist()]
        assert features.number(piece).tolist() == expected


def test_ids_beyond_the_smallest_budget_are_hashed():
    """Which has less room than the first table."""
    assert_numbered([[5000, 1, 4095], [1 << 40, 5000]], memory=20_000)
