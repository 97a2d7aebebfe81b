"""Any number of problems from disk: what is kept between visits, whichever way the active rows take."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from problems import make_classes, split, write_text

from llsvm import train
from llsvm.active import NOBODY
from llsvm.blockset import BlockSet
from llsvm.reader import ROW, Arena
from llsvm.shared import SharedRows, Slots
from llsvm.solvers import collected
from llsvm.solvers.between_passes import Sweeps


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """Four classes of 60 chunks."""
    X, y = make_classes(1500, 4)
    return split(write_text(tmp_path_factory.mktemp("four") / "rows.txt", X, y), 60)


def matrix(blocks):
    """All rows with a bias of 1, and their label codes, in the order of the set."""
    found = [blocks.load_chunk(chunk) for chunk in range(blocks.n_chunks)]
    rows = [scipy.sparse.csr_matrix((one.values, one.features, one.indptr), (one.n_rows, blocks.n_features))
            for one in found]  # fmt: skip
    X = scipy.sparse.vstack(rows).toarray().astype(float)
    return np.column_stack([X, np.ones(len(X))]), np.concatenate([one.codes for one in found])


# Memory for rows, and the ways that active rows took: all together, some problems after the others, in rounds.
WAYS = {"together": (2, 12), "some after the others": (0.2, 12), "rounds": (0.12, 12), "too many parts": (0.2, 0)}


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_dual_variables_of_every_problem_are_those_of_its_w(blocks, monkeypatch, solver, way, threads):
    share, most_parts = WAYS[way]
    monkeypatch.setattr(collected, "MOST_PARTS", most_parts)
    opened, ways = BlockSet(blocks), set()
    config = train.Config(solver=solver, bias=1.0, tolerance=1e-6, threads=threads,
                          memory=80_000 + int(share * 8 * opened.n_nonzeros))  # fmt: skip
    trained = train.start(opened, config)
    for name in ("to_the_end", "a_little"):
        record_calls(monkeypatch, Sweeps, name, ways)
    record_calls(monkeypatch, SharedRows, "of", ways)
    assert not any(stats.finished for stats in itertools.islice(trained.passes(), 3))
    expected = {"together": {"to_the_end"}, "some after the others": {"of", "to_the_end"}}
    assert expected.get(way, {"a_little"}) <= ways
    X, codes = matrix(BlockSet(blocks))
    for number, state in enumerate(trained.states):
        y, bound, d = trained._learners[number].cd.problem.codes[codes].T
        alphas = state.alphas.read(number * len(X), len(X)).astype(float)
        assert (alphas >= 0).all() and (alphas <= bound).all() and len(np.unique(alphas)) > 2
        w = alphas * y @ X
        np.testing.assert_allclose(state.w, w, atol=1e-9 * max(1, np.abs(w).max()))
        assert state.dual == pytest.approx(alphas.sum() - 0.5 * d @ alphas**2 - 0.5 * w @ w, rel=1e-9)
    trained.close()


def record_calls(monkeypatch, owner, name, called):
    before = getattr(owner, name)

    def record(self, *arguments):
        called.add(name)
        return before(self, *arguments)

    monkeypatch.setattr(owner, name, record)


# --- rows that are active in some problems


@pytest.mark.parametrize("n_problems", [1, 3, 300])
@pytest.mark.parametrize("memory", [0, 60_000, 1 << 30])
def test_shared_rows_come_back_with_their_problems(n_problems, memory):
    """In groups, and those of some problems alone; after some pairs of a problem and a row have left."""
    rng, n_rows = np.random.default_rng(2), 400
    X = scipy.sparse.random(n_rows, 60, 0.3, "csr", random_state=rng).astype(np.float32)
    active = rng.random((n_problems, n_rows)) < 2 / n_problems**0.7
    shared = SharedRows(np.float32, memory, n_problems, beside=20)
    for start in range(0, n_rows, 100):
        part = slice(start, start + 100)
        arena = Arena(X.nnz * 8 + 800, np.empty(100, ROW), np.float32)
        lengths = np.diff(X[part].indptr).astype(np.int32)
        arena.add(np.zeros(100, np.uint16), lengths, X[part].indices, X[part].data, start)
        chosen, counts, owners = shared.choose(np.packbits(active[:, part], axis=1), 100)
        shared.add(arena.rows, chosen, counts, owners)
    assert shared.rows.n_rows == active.any(0).sum()
    assert shared.rows_by_problem.tolist() == active.sum(1).tolist()
    assert found_in(shared.rows.groups(keep=True), n_problems) == pairs_of(active)
    if n_problems > 1:
        wanted = list(range(0, n_problems, 2))
        of_them = np.zeros_like(active)
        of_them[wanted] = active[wanted]
        assert found_in([shared.of(wanted)], n_problems) == pairs_of(of_them)
    if memory == 1 << 30 and n_problems == 1:
        kept = active & (rng.random(active.shape) < 0.5)
        group = shared.held()
        shared.leave(group, kept[0, group.table["chunk"] + group.table["place"]].view(np.uint8))
        assert found_in(shared.rows.groups(keep=True), n_problems) == pairs_of(kept)
        assert shared.rows_by_problem.tolist() == kept.sum(1).tolist()
    shared.rows.close()


def test_pairs_that_leave_take_their_rows_along():
    """A row stays as long as it is active in any problem."""
    rng = np.random.default_rng(3)
    X = scipy.sparse.random(90, 40, 0.3, "csr", random_state=rng).astype(np.float32)
    active, shared = rng.random((5, 90)) < 0.4, SharedRows(np.float32, 1 << 30, 5, beside=20)
    arena = Arena(X.nnz * 8 + 800, np.empty(90, ROW), np.float32)
    arena.add(np.zeros(90, np.uint16), np.diff(X.indptr).astype(np.int32), X.indices, X.data, 0)
    shared.add(arena.rows, *shared.choose(np.packbits(active, axis=1), 90))
    kept, group = active & (rng.random(active.shape) < 0.4), shared.held()
    slots, marks = Slots(group, 5), np.empty(int(active.sum()), np.uint8)
    for number in range(5):
        marks[slots.span(number)] = kept[number, slots.table(number)["place"]]
    shared.leave(group, slots.row_by_row(marks))
    assert shared.rows.n_rows == kept.any(0).sum() < active.any(0).sum()
    assert found_in(shared.rows.groups(), 5) == pairs_of(kept)
    assert shared.rows_by_problem.tolist() == kept.sum(1).tolist()


def found_in(groups, n_problems):
    found = set()
    for group in groups:
        assert (len(group.owners) == 0) == (n_problems == 1) and NOBODY.dtype == group.owners.dtype
        slots = Slots(group, n_problems)
        for number in range(n_problems):
            rows = slots.table(number)
            pairs = {(number, int(row)) for row in rows["chunk"] + rows["place"]}
            assert len(pairs) == len(rows) and not pairs & found
            found |= pairs
    return found


def pairs_of(active):
    return set(zip(*(places.tolist() for places in np.nonzero(active)), strict=True))
