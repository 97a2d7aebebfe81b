"""What every solver of the table owes: a certificate that holds, every row once a pass, one answer for a seed; those
that are exact, steady progress to the optimum too."""

import itertools
import os
import re
import time
import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.sparse
from liblinear.liblinearutil import solver_names
from problems import Rows, block_bytes, make_rows, objective, split, write_text

from llsvm import _dual_cd, pool, reader, solvers, train
from llsvm.active import ActiveRows
from llsvm.blockset import BlockSet, Decoder
from llsvm.core import TooLarge, UsageError
from llsvm.memory import parse_size
from llsvm.options import OPTIONS
from llsvm.reader import rows_bytes
from llsvm.solvers import SOLVERS, dual_cd, from_disk, streaming

TOLERANCE = 1e-3
LARGE = 1 << 30
EXACT = {name: solver for name, solver in SOLVERS.items() if solver.streaming}
NEAR = {name: solver for name, solver in SOLVERS.items() if solver.one_pass and not solver.streaming}
CASES = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, solver in EXACT.items()
    for place in (["memory"] if solver.in_memory else []) + ["disk"]
]
EVERY_CASE = pytest.mark.parametrize("solver, place", CASES)
EVERY_SOLVER = pytest.mark.parametrize("solver", SOLVERS)
EVERY_EXACT_SOLVER = pytest.mark.parametrize("solver", EXACT)


def exactly(solver):
    """The options with which an exact solver stops by its certificate."""
    return {"solver": solver, "exact": SOLVERS[solver].one_pass is not None}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """500 rows, as text and as a set of 20 blocks."""
    made = make_rows(500)
    text = write_text(tmp_path_factory.mktemp("rows") / "rows.txt", made.X, made.y)
    return made._replace(text=text, blocks=split(text, 20))


@pytest.fixture
def solve(rows, fit):
    """solve(solver, place): trains on the rows with memory for all of them, or for little more than two blocks."""

    def solve_rows(solver, place, path=None, **options):
        defaults = {"bias": 1.0, "tolerance": TOLERANCE, "memory": rows.X.nnz * 8 // 3 if place == "disk" else LARGE}
        fitted = fit(path or rows.blocks, **exactly(solver), **{**defaults, **options})
        assert fitted.streamed == (place == "disk")
        return fitted

    return solve_rows


def primal(rows, fitted, solver, **terms):
    return objective(rows.X, rows.y, fitted.model, squared=SOLVERS[solver].squared_loss, **terms)


# --- the table


@EVERY_SOLVER
def test_a_solver_is_found_by_name_and_by_liblinears_number(solver):
    entry = SOLVERS[solver]
    assert solvers.find(solver) is entry
    assert entry.number is None or solvers.find(str(entry.number)) is entry


@EVERY_SOLVER
def test_model_files_name_a_solver_that_liblinear_knows(solver):
    entry = SOLVERS[solver]
    number = getattr(solver_names, entry.header)
    assert entry.number in (None, number)


@pytest.mark.parametrize("name", ["None", "", "Dual", "99"])
def test_an_unknown_solver_is_refused_with_a_list_of_the_known(name):
    with pytest.raises(UsageError) as refusal:
        solvers.find(name)
    assert all(solver in refusal.value.hint for solver in SOLVERS)


# --- the contract of the exact ones


@EVERY_CASE
def test_the_gap_certifies(rows, solve, solver, place):
    fitted = solve(solver, place)
    certificate = fitted.outcome.certificate
    assert fitted.outcome.reason == "converged"
    assert 0 <= certificate.primal - certificate.dual <= TOLERANCE * certificate.primal
    assert primal(rows, fitted, solver) == pytest.approx(certificate.primal, rel=1e-9)


@EVERY_CASE
def test_the_dual_never_decreases(solve, solver, place):
    fitted = solve(solver, place, C=10.0)
    duals = np.array([0.0, *(stats.dual for stats in fitted.passes), fitted.outcome.certificate.dual])
    assert len(duals) > 4
    assert (np.diff(duals) >= -1e-12 * duals[1:]).all()


@EVERY_CASE
def test_the_certified_primal_never_rises(solve, solver, place, monkeypatch):
    monkeypatch.setattr(from_disk, "SWEEPS", 1)  # or the first certificate could be the last
    monkeypatch.setattr(streaming, "WORTH_CERTIFYING", 1000)
    passes = solve(solver, place).passes
    primals = np.array([stats.primal for stats in passes if stats.certified])
    assert len(primals) > 1
    assert (np.diff(primals) <= 0).all()


@EVERY_CASE
@pytest.mark.parametrize("n_passes", [1, 2, 5])
def test_the_objective_never_rises_above_its_start(rows, tmp_path, fit, solver, place, n_passes):
    """At w = 0 every loss is C. Labels that say nothing and a large C make early steps go far astray."""
    X, y = rows.X * 4, np.where(np.random.default_rng(5).random(len(rows.y)) < 0.5, 1, -1)
    path = split(write_text(tmp_path / "noise.txt", X, y), 20)
    fitted = fit(path, **exactly(solver), C=100.0, max_passes=n_passes, tolerance=1e-9,
                 memory=X.nnz * 8 // 3 if place == "disk" else LARGE)  # fmt: skip
    assert len(fitted.passes) == n_passes
    assert primal(Rows(X, y), fitted, solver, C=100.0) <= 100.0 * len(y)


@EVERY_EXACT_SOLVER
def test_every_row_is_visited_once_a_pass(rows, solve, solver):
    """Fewer are where no visits seem to be needed any more; if that is not the end, the next pass visits all."""
    visits = [stats.visits for stats in solve(solver, "disk").passes]
    assert set(visits[:2]) == {len(rows.y)}
    assert {max(pair) for pair in itertools.pairwise(visits)} == {len(rows.y)}


@EVERY_EXACT_SOLVER
def test_every_byte_is_read_once_a_pass(rows, solve, solver):
    passes = solve(solver, "disk").passes
    assert [stats.bytes_read for stats in passes] == [block_bytes(rows.blocks) * stats.number for stats in passes]


@pytest.mark.parametrize("solver", [name for name, entry in EXACT.items()
                                    if entry.streaming.__module__ == streaming.__name__])  # fmt: skip
def test_the_rows_visited_in_a_pass_are_all_different(rows, solve, monkeypatch, solver):
    """Which rows (chunk, place) are given to sweeps that count, pass by pass."""
    seen, visit_all = [], dual_cd.DualCD._visit_all

    def watch(solver, table, duals, order, active, counting=True, **options):
        if counting:
            seen.extend(map(tuple, table[np.sort(order[:active])][["chunk", "place"]].tolist()))
        return visit_all(solver, table, duals, order, active, counting=counting, **options)

    monkeypatch.setattr(dual_cd.DualCD, "_visit_all", watch)
    n_passes = len(solve(solver, "disk").passes)
    visits = [Counter(seen[start : start + len(rows.y)]) for start in range(0, len(seen), len(rows.y))]
    assert len(visits) == n_passes > 1
    assert all(len(counts) == len(rows.y) for counts in visits)


def weight_bytes(path):
    """A model file up to our own line, which holds times."""
    with open(path, "rb") as file:
        return file.read().split(b"\nllsvm ")[0]


@EVERY_CASE
def test_the_same_seed_gives_the_same_model(solve, solver, place):
    first, again, other = (solve(solver, place, seed=seed) for seed in (1, 1, 2))
    assert weight_bytes(first.path) == weight_bytes(again.path)
    assert first.outcome.certificate == again.outcome.certificate
    assert weight_bytes(first.path) != weight_bytes(other.path)


@EVERY_CASE
def test_the_number_of_threads_does_not_change_the_model_of_few_rows(solve, solver, place):
    one, several = (solve(solver, place, threads=threads) for threads in (1, 3))
    assert weight_bytes(one.path) == weight_bytes(several.path)


@EVERY_CASE
def test_blocks_sorted_input_and_threads_do_not_change_the_answer_beyond_the_gap(tmp_path, fit, solver, place):
    rows = make_rows(1000)
    text = write_text(tmp_path / "rows.txt", rows.X, rows.y)
    ordered = np.argsort(rows.y, kind="stable")
    in_order = write_text(tmp_path / "sorted.txt", rows.X[ordered], rows.y[ordered])
    sets = [split(text, n_blocks) for n_blocks in (1, 7, 40)]
    sets += [split(in_order, 20), split(text, 20, threads=3), split(text, 21, seed=9)]
    # From disk, three quarters of the rows: enough for two chunks of 64 KB, or, where whole blocks are needed, for all.
    memory = rows.X.nnz * 6 if place == "disk" and SOLVERS[solver].in_memory else LARGE
    runs = [fit(path, **exactly(solver), bias=1.0, tolerance=TOLERANCE, memory=memory) for path in sets]
    assert {fitted.streamed for fitted in runs} == {place == "disk"}
    primals = np.array([primal(rows, fitted, solver) for fitted in runs])
    duals = np.array([fitted.outcome.certificate.dual for fitted in runs])
    assert primals.max() <= primals.min() * (1 + 1.01 * TOLERANCE)
    assert duals.max() <= primals.min()


# --- block minimisation

INNER = pytest.mark.parametrize("inner", [1, 10, 0], ids=["1", "10", "auto"])


@INNER
@EVERY_EXACT_SOLVER
def test_inner_sweeps_do_not_change_the_answer(rows, solve, solver, inner):
    if solver not in OPTIONS["inner"].solvers or (SOLVERS[solver].one_pass and inner == 0):
        with pytest.raises(UsageError, match="--inner"):
            solve(solver, "disk", inner=inner)
        return
    best = solve("dual", "memory", tolerance=1e-6)
    fitted = solve(solver, "disk", inner=inner)
    assert primal(rows, fitted, solver) <= primal(rows, best, "dual") * (1 + 1.01 * TOLERANCE)
    assert {stats.visits for stats in fitted.passes[:2]} == {len(rows.y)}


def test_more_inner_sweeps_do_more_in_a_pass(solve):
    runs = [solve("block", "disk", inner=inner, max_passes=1, tolerance=1e-9) for inner in (1, 10, 0)]
    once, often, until_solved = (fitted.outcome.certificate.dual for fitted in runs)
    assert once < often
    assert once < until_solved


# --- the contract of those that come near the optimum

STREAMS = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, solver in NEAR.items()
    for place in (["memory"] if solver.many_passes else []) + ["disk", "text"]
]
EVERY_STREAM = pytest.mark.parametrize("solver, place", STREAMS)
WEIGHTS = {"1": 3.0, "-1": 0.5}


@pytest.fixture
def approach(rows, fit):
    """approach(solver, place): up to ten passes over rows in memory or on disk, or the one over text."""

    def approach_rows(solver, place, data=rows, **options):
        memory = data.X.nnz * 8 // 3 if place == "disk" else LARGE
        defaults = {"bias": 1.0, "memory": memory, "max_passes": 1 if place == "text" else 10}
        return fit(data.text if place == "text" else data.blocks, solver=solver, **{**defaults, **options})

    return approach_rows


@EVERY_STREAM
@pytest.mark.parametrize("terms", [{}, {"C": 0.1, "weights": WEIGHTS}], ids=["plain", "weights"])
def test_what_is_not_exact_is_certified_all_the_same(rows, solve, approach, solver, place, terms):
    certificate = (fitted := approach(solver, place, **terms)).outcome.certificate
    assert primal(rows, fitted, solver, **terms) == pytest.approx(certificate.primal, rel=1e-9)
    exact = "dual-l2" if SOLVERS[solver].squared_loss else "dual"
    optimum = solve(exact, "memory", tolerance=1e-6, **terms).outcome.certificate.primal
    assert 0 < certificate.dual <= optimum
    above = 0.01 if solver == "stream" else 1e-12  # a ball's w is never 0, which would be no classifier
    assert optimum * (1 - 1e-5) <= certificate.primal <= primal_at_zero(rows, **terms) * (1 + above)
    assert certificate.relative_gap == pytest.approx(1 - certificate.dual / certificate.primal)


def primal_at_zero(rows, C=1.0, weights=None):
    """All losses are C_i."""
    return C * sum((weights or {}).get(str(y), 1.0) for y in rows.y)


@EVERY_STREAM
def test_what_is_not_exact_never_rises_above_its_start(rows, tmp_path, approach, solver, place):
    X, y = rows.X * 4, np.where(np.random.default_rng(5).random(len(rows.y)) < 0.5, 1, -1)
    text = write_text(tmp_path / "noise.txt", X, y)
    noise = Rows(X, y, text, split(text, 20))
    for n_passes in (1, 2, 5):
        fitted = approach(solver, place, noise, C=100.0, tolerance=1e-9, max_passes=1 if place == "text" else n_passes)
        assert primal(noise, fitted, solver, C=100.0) <= 100.0 * len(y)


@EVERY_STREAM
def test_every_row_and_byte_is_met_once_in_a_pass_of_those_not_exact(rows, approach, solver, place):
    passes = approach(solver, place, certify=False).passes
    n_bytes = os.path.getsize(rows.text) if place == "text" else block_bytes(rows.blocks)
    assert len(passes) == (10 if SOLVERS[solver].many_passes and place != "text" else 1)
    assert [stats.visits for stats in passes] == [len(rows.y)] * len(passes)
    assert [stats.bytes_read for stats in passes] == [n_bytes * (number if place == "disk" else 1)
                                                      for number in range(1, len(passes) + 1)]  # fmt: skip


@EVERY_STREAM
def test_the_same_seed_gives_the_same_model_where_it_is_not_exact(approach, solver, place):
    """Text has an order of its own, so no seed changes anything."""
    first, again, other = (approach(solver, place, seed=seed) for seed in (1, 1, 2))
    assert weight_bytes(first.path) == weight_bytes(again.path)
    assert first.outcome.certificate == again.outcome.certificate
    assert (weight_bytes(first.path) != weight_bytes(other.path)) == (place != "text")


@EVERY_STREAM
def test_the_number_of_threads_does_not_change_a_model_that_is_not_exact(approach, solver, place):
    one, several = (approach(solver, place, threads=threads) for threads in (1, 3))
    assert weight_bytes(one.path) == weight_bytes(several.path)
    assert one.outcome.certificate == several.outcome.certificate


@EVERY_STREAM
def test_labels_may_be_any_two_where_it_is_not_exact(rows, tmp_path, approach, solver, place):
    labels = np.where(rows.y > 0, 7, 3)
    text = write_text(tmp_path / "other.txt", rows.X, labels)
    other = Rows(rows.X, labels, text, split(text, 20))
    fitted = approach(solver, place, other)
    assert fitted.model.labels == ["7", "3"]
    assert primal(other, fitted, solver) == pytest.approx(fitted.outcome.certificate.primal, rel=1e-9)


@pytest.mark.parametrize("solver", NEAR)
@pytest.mark.parametrize("option", [{"inner": 2}, {"exact": True}], ids=str)
def test_what_is_not_exact_has_neither_inner_sweeps_nor_an_exact_variant(approach, solver, option):
    with pytest.raises(UsageError, match=f"--{next(iter(option))}"):
        approach(solver, "disk", **option)


# --- surveys of rows in memory


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
@pytest.mark.parametrize("bias", [-1.0, 1.5])
def test_a_survey_finds_what_numpy_finds_and_selects_the_rows_that_matter(many_rows, solver, bias):
    config = train.Config(solver=solver, C=0.7, bias=bias, weights={"1": 3.0})
    blocks = BlockSet(many_rows.blocks)
    data = reader.load(blocks, 2)
    problem, rng = train.problems_of(blocks.description, config)[0], np.random.default_rng(1)
    table, duals, order = data.table, data.duals, np.full(len(data.table), -1, np.int32)
    y, bound, d = problem.codes[table["code"]].T
    kept = rng.integers(3, size=len(table))
    duals["alpha"] = np.where(kept == 0, 0.0, np.where(kept == 1, np.minimum(bound, 2.0), 0.3))
    duals["gradient"] = before = rng.normal(size=len(table)).astype(np.float32)
    w = rng.normal(size=blocks.n_features + 1)
    X = scipy.sparse.vstack([by_chunk(blocks, chunk) for chunk in range(blocks.n_chunks)])
    sums = np.zeros(3)
    _dual_cd.survey(table, duals, w, problem.codes, problem.bias, sums, data.kind)

    alpha = duals["alpha"]
    gradients = y * (X @ w[:-1] + max(bias, 0.0) * w[-1]) - 1
    costs = np.where(y > 0, 2.1, 0.7)
    losses = costs * np.maximum(0, -gradients) ** (2 if solver == "dual-l2" else 1)
    gap = losses + alpha * (gradients + 0.5 * d * alpha)
    gradients += d * alpha
    assert sums == pytest.approx([losses.sum(), gap.sum(), ((gradients - before) ** 2).sum()], rel=1e-9)
    assert duals["gradient"] == pytest.approx(gradients, rel=1e-6, abs=1e-6)

    count = _dual_cd.select(table, duals, 7, problem.codes, 0.25, order)
    at_bound = ((alpha == 0) & (gradients > 0.25)) | ((alpha == bound) & (gradients < -0.25))
    assert order[:count].tolist() == (7 + np.flatnonzero(~at_bound)).tolist()
    assert 0 < count < len(table)


def by_chunk(blocks, chunk):
    block = blocks.load_chunk(chunk)
    return scipy.sparse.csr_matrix((block.values, block.features, block.indptr), (block.n_rows, blocks.n_features))


# --- several threads


@pytest.fixture(scope="module", params=["sparse", "dense", "binary", "wide"])
def many_rows(tmp_path_factory, request):
    """Rows for several batches, in every layout."""
    rng, n_rows = np.random.default_rng(8), 5000
    y = np.where(rng.random(n_rows) < 0.5, 1, -1)
    if request.param == "dense":
        noise = (rng.integers(-64, 64, (n_rows, 70)) + 0.5) / 256
        X = scipy.sparse.csr_matrix(y[:, None] * (np.arange(70) < 5) / 8 + noise)
    else:
        made = make_rows(n_rows, 5)
        X, y = made.X, made.y
        if request.param == "binary":
            X.data[:] = 0.25
        elif request.param == "wide":  # feature numbers beyond 16 bits, and a w that is not copied for every batch
            X = scipy.sparse.hstack([X, 0.1 * scipy.sparse.random(n_rows, 10**6, 2e-5, random_state=rng)], "csr")
    text = write_text(tmp_path_factory.mktemp("many") / "many.txt", X, y)
    return Rows(X, y, text=text, blocks=split(text, 20))


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("threads", [2, 3])
def test_a_number_of_threads_gives_one_model_however_they_are_scheduled(many_rows, fit, solver, place, threads):
    memory = many_rows.X.nnz * 8 // 4 + 40 * len(np.unique(many_rows.X.indices)) if place == "disk" else LARGE
    fits = [fit(many_rows.blocks, solver=solver, bias=1.0, C=0.1, memory=memory, threads=threads) for _ in range(3)]
    first = fits[0]
    assert first.streamed == (place == "disk")
    assert first.outcome.reason == "converged"
    value = objective(many_rows.X, many_rows.y, first.model, C=0.1, squared=SOLVERS[solver].squared_loss)
    assert value == pytest.approx(first.outcome.certificate.primal, rel=1e-5)
    for other in fits[1:]:
        assert other.outcome.w.tobytes() == first.outcome.w.tobytes()


def test_rows_of_text_whose_numbers_do_not_ascend_are_swept_by_threads(many_rows, fit):
    """Features are numbered as they appear, and only the rows of a block set stand in the order of their numbers."""
    first, second = (fit(many_rows.text, bias=1.0, C=0.1, memory=LARGE, threads=2) for _ in range(2))
    assert not first.streamed and first.outcome.reason == "converged"
    value = objective(many_rows.X, many_rows.y, first.model, C=0.1, squared=False)
    assert value == pytest.approx(first.outcome.certificate.primal, rel=1e-5)
    assert second.outcome.w.tobytes() == first.outcome.w.tobytes()


def test_one_thread_and_two_come_to_the_same_optimum(many_rows, fit):
    one, two = (fit(many_rows.text, bias=1.0, tolerance=1e-7, threads=threads) for threads in (1, 2))
    assert one.outcome.certificate.primal == pytest.approx(two.outcome.certificate.primal, rel=2e-7)
    np.testing.assert_allclose(one.outcome.w, two.outcome.w, atol=1e-3 * np.abs(one.outcome.w).max())


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that is waited for, and is known from the first group on; counts the sweeps made meanwhile."""
    decode, use_wait, used = Decoder.decode, from_disk.FromDisk._use_wait, []

    def decode_slowly(self, chunk):
        time.sleep(0.002)
        return decode(self, chunk)

    def use(self):
        used.append(use_wait(self))
        return used[-1]

    monkeypatch.setattr(from_disk, "SLOW_SECONDS", -1)
    monkeypatch.setattr(from_disk, "SLOW_SHARE", -1)
    monkeypatch.setattr(Decoder, "decode", decode_slowly)
    monkeypatch.setattr(from_disk.FromDisk, "_use_wait", use)
    return lambda: sum(used)


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
def test_the_solver_sweeps_while_a_slow_disk_reads(rows, solve, slow_disk, solver):
    fitted = solve(solver, "disk", threads=2, tolerance=1e-6)
    assert slow_disk() > len(fitted.passes)
    assert fitted.outcome.reason == "converged"
    assert primal(rows, fitted, solver) == pytest.approx(fitted.outcome.certificate.primal, rel=1e-9)


@pytest.fixture
def counts(monkeypatch):
    """Of groups of active rows, by round; there are several in a pass where there are several groups."""
    groups, counted = ActiveRows.groups, []

    def count(self, keep=False):
        counted.append(0)
        for group in groups(self, keep):
            counted[-1] += 1
            yield group
            del group

    monkeypatch.setattr(ActiveRows, "groups", count)
    return counted


@pytest.fixture
def left(monkeypatch):
    """How many of how many active rows left memory, each time that it was full; none where all went to the file."""
    keep, spill, found = ActiveRows.keep, ActiveRows.spill, []

    def count(self, table, alphas, chosen, owners):
        found.append((int((~chosen).sum()), len(table)))
        keep(self, table, alphas, chosen, owners)

    def write(self):
        found.extend([(0, 1)] * bool(self.in_memory))
        spill(self)

    monkeypatch.setattr(ActiveRows, "keep", count)
    monkeypatch.setattr(ActiveRows, "spill", write)
    return found


@pytest.mark.parametrize("share", [0.02, 0.15, 0.3], ids=["several groups", "full memory", "one group"])
@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
def test_the_dual_variables_that_are_kept_are_those_of_w(texts, request, counts, left, share, slow):
    """Whichever way the active rows took: memory, the file, sweeps while the disk was waited for."""
    swept = request.getfixturevalue("slow_disk") if slow else lambda: 1
    blocks = BlockSet(texts.blocks)
    smallest = 2 * int(rows_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, 4).max())
    smallest += 32 * blocks.n_features + 160 * blocks.n_chunks
    config = train.Config(bias=1.0, tolerance=1e-6, threads=2, memory=smallest + int(share * 8 * texts.X.nnz))
    solver = train.start(blocks, config)
    assert not any(stats.finished for stats in itertools.islice(solver.passes(), 3))
    assert len(counts) > 3 and max(counts) >= 3 if share == 0.02 else counts == [1, 1, 1]
    assert any(gone for gone, _ in left) == (share < 0.3)
    assert any(not gone for gone, _ in left) == (share == 0.02)  # these went to the file
    assert swept() > 0
    rows, y, [learner] = np.zeros((blocks.n_rows, blocks.n_features + 1)), [], solver._learners
    for chunk, start in zip(range(blocks.n_chunks), np.cumsum([0, *blocks.chunk_rows]), strict=False):
        block = blocks.load_chunk(chunk)
        X = scipy.sparse.csr_matrix((block.values, block.features, block.indptr), (block.n_rows, blocks.n_features))
        rows[start : start + block.n_rows, :-1] = X.toarray()
        y.extend(learner.problem.codes[block.codes, 0])
    rows[:, -1] = 1
    alphas = learner.state.alphas.read(0, blocks.n_rows).astype(float)
    expected = alphas * y @ rows
    np.testing.assert_allclose(learner.state.w, expected, atol=1e-9)
    assert alphas.sum() - 0.5 * expected @ expected == pytest.approx(solver.dual, rel=1e-9)
    solver.close()


@pytest.mark.parametrize("solver", ["dual", "block"])
def test_a_pass_whose_losses_are_below_the_dual_is_followed_by_a_certificate(texts, solve, solver):
    """They were met at earlier and smaller w."""
    n_below = 0
    for C in (0.003, 0.01, 0.03, 0.1):
        for earlier, later in itertools.pairwise(solve(solver, "disk", path=texts.blocks, bias=-1.0, C=C).passes):
            if not earlier.certified and earlier.primal < earlier.dual:
                n_below += 1
                assert earlier.gap == np.inf and later.certified
    assert n_below


@pytest.mark.parametrize(("solver", "enough"), [("dual", 0), ("dual", 0.8), ("dual", 30), ("dual-l2", 0.8)])
def test_the_last_pass_only_looks_at_most_rows_and_may_be_wrong_about_it(rows, solve, monkeypatch, solver, enough):
    monkeypatch.setattr(streaming, "ENOUGH", enough)
    fitted = solve(solver, "disk", tolerance=1e-5)
    visits = [stats.visits for stats in fitted.passes]
    assert fitted.outcome.reason == "converged"
    assert all(max(pair) == max(visits) for pair in itertools.pairwise(visits))
    if enough > 1:
        assert min(visits[:-1]) < max(visits)
    else:
        assert (visits[-1] < max(visits)) == (enough > 0)
    assert primal(rows, fitted, solver) == pytest.approx(fitted.outcome.certificate.primal, rel=1e-9)


@pytest.mark.parametrize("C", [0.1, 0.7])
def test_the_loss_of_a_certificate_has_the_c_that_was_asked_for(rows, solve, C):
    """Not the float32 below it, which bounds the dual variables."""
    fitted = solve("dual", "disk", C=C, tolerance=1e-4)
    assert primal(rows, fitted, "dual", C=C) == pytest.approx(fitted.outcome.certificate.primal, rel=1e-12)


def test_one_thread_waits_for_a_slow_disk_so_that_its_model_is_always_the_same(solve, slow_disk):
    fits = [solve("dual", "disk", threads=1) for _ in range(2)]
    assert slow_disk() == 0
    assert fits[0].outcome.w.tobytes() == fits[1].outcome.w.tobytes()


@pytest.mark.parametrize("n_possible", [0, 1])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_where_fewer_threads_can_be_had_the_model_is_the_same(many_rows, fit, monkeypatch, place, n_possible):
    """As under the limit of a container; no call waits for a thread that will never come."""
    memory = many_rows.X.nnz * 8 // 4 + 40 * len(np.unique(many_rows.X.indices)) if place == "disk" else LARGE
    path = many_rows.blocks if place == "disk" else many_rows.text
    expected, start, begun = fit(path, bias=1.0, threads=3, memory=memory), pool.start_new_thread, Counter()

    def start_some(work, arguments):
        if begun[work.__self__] == n_possible:
            raise RuntimeError("can't start new thread")
        begun[work.__self__] += 1
        start(work, arguments)

    monkeypatch.setattr(pool, "start_new_thread", start_some)
    fitted = fit(path, bias=1.0, threads=3, memory=memory)
    assert fitted.streamed == (place == "disk")
    assert fitted.outcome.w.tobytes() == expected.outcome.w.tobytes()
    assert sum(begun.values()) >= n_possible


# --- budgets that are too small


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """4,000 rows of 60 nonzeros with 40,000 features, whose weights take more than a megabyte."""
    rng, n_rows, n_features = np.random.default_rng(1), 4000, 40_000
    indices = np.concatenate([np.sort((10 * row + 659 * np.arange(60)) % n_features) for row in range(n_rows)])
    X = scipy.sparse.csr_matrix((rng.integers(6, 17, len(indices)) / 64, indices, np.arange(n_rows + 1) * 60))
    y = np.where(rng.random(n_rows) < 0.5, 1, -1)
    return Rows(X, y, text=write_text(tmp_path_factory.mktemp("wide") / "wide.txt", X, y))


@pytest.fixture(scope="module", params=[1, 16, None], ids=["1 block", "16 blocks", "text"])
def wide_path(wide, request):
    return split(wide.text, request.param) if request.param else wide.text


def memory_asked_for(refusal):
    return parse_size(re.search(r"--memory (\S+) (would do|is needed)", refusal.value.hint)[1])


def in_some_passes(solver):
    """The options with which a solver ends soon, exact or not."""
    return exactly(solver) if solver in EXACT else {"solver": solver, "max_passes": 2}


def assert_trains(fit, rows, path, solver, memory):
    fitted = fit(path, **in_some_passes(solver), memory=memory)
    assert solver in NEAR or fitted.outcome.reason == "converged"
    assert primal(rows, fitted, solver) == pytest.approx(fitted.outcome.certificate.primal, rel=1e-9)


@pytest.mark.parametrize("solver", [*EXACT, *NEAR])
def test_the_memory_asked_for_where_w_does_not_fit_is_enough(wide, wide_path, fit, solver):
    """A file that is read once is read on for its features, so that one hint does."""
    with pytest.raises(UsageError, match="too small") as refusal:
        fit(wide_path, **in_some_passes(solver), memory=1 << 20)
    assert "so far" not in refusal.value.message and memory_asked_for(refusal) > 1 << 20
    assert_trains(fit, wide, wide_path, solver, memory_asked_for(refusal))


@pytest.mark.parametrize("solver", [*EXACT, *NEAR])
def test_the_memory_asked_for_where_no_chunk_fits_is_enough(tmp_path, fit, solver):
    """w and its copies take 0.96 MB, and each row, a chunk of its own, 0.24 MB."""
    y = np.array([1, -1, 1, -1, 1, -1])
    X = scipy.sparse.csr_matrix(y[:, None] * np.random.default_rng(1).integers(1, 9, (6, 30_000)) / 256)
    path = split(write_text(tmp_path / "long.txt", X, y), 1)
    with pytest.raises(UsageError, match="too small: the weights of 30000 features") as refusal:
        fit(path, **in_some_passes(solver), memory=1_000_000)
    memory = memory_asked_for(refusal)
    if solver == "stream":  # how long the rows are that wait to be enclosed is known when they come
        with pytest.raises(UsageError, match="the rows to work on") as refusal:
            fit(path, **in_some_passes(solver), memory=memory)
        memory = memory_asked_for(refusal)
    assert_trains(fit, Rows(X, y), path, solver, memory)


# --- numbers that double precision can hardly hold


@pytest.fixture
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("options", [
    {"solver": "block", "C": 1e39}, {"solver": "block", "C": 1e300}, {"solver": "dual", "C": 1e300},
    {"solver": "dual-l2", "C": 5e294}, {"solver": "shrink", "C": 1e300, "bias": 3e38},
    {"solver": "stream", "C": 1e292, "weights": {"1": 1e8}}, {"solver": "stream", "C": 1e-300, "bias": 3e38},
    {"solver": "pegasos", "C": 1e-300}, {"solver": "pegasos", "C": 1e40},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 1e22])
def test_what_can_hardly_be_held_gives_a_model_of_numbers(without_warnings, rows, fit, tmp_path, options, scale):
    text = write_text(tmp_path / "far.txt", rows.X * scale, rows.y)
    fitted = fit(text, max_passes=30, precision="float64", **options)
    assert np.isfinite(fitted.outcome.w).all() and np.isfinite(fitted.outcome.certificate.dual)


def test_numbers_that_overflow_on_the_way_make_no_warning(without_warnings, fit, tmp_path):
    rng = np.random.default_rng(1)
    for number in range(60):
        X, y = rng.standard_normal((20, 10)), np.where(rng.random(20) < 0.5, 1, -1)
        scale, C = 10.0 ** rng.uniform(0, 11), 10.0 ** rng.uniform(290, 299)
        text = write_text(tmp_path / f"{number}.txt", X * scale, y)
        fitted = fit(text, solver="dual-l2", C=C, max_passes=300, tolerance=1e-6, precision="float64")
        assert np.isfinite(fitted.outcome.w).all()


@pytest.mark.parametrize("options", [{}, {"average": False}, {"batch": 30}, {"bias": 1.0}], ids=str)
@pytest.mark.parametrize("C", [1e200, 1e231, 1e300])
def test_what_pegasos_cannot_hold_is_refused(without_warnings, rows, fit, tmp_path, options, C):
    with pytest.raises(TooLarge, match="too large for -s pegasos"):
        fit(rows.text, solver="pegasos", C=C, max_passes=30, **options)


@EVERY_SOLVER
def test_weights_that_are_no_numbers_make_no_model(rows, solver):
    config = train.Config(solver=solver, max_passes=1)
    with train.open_data([str(rows.blocks)], config) as data:
        outcome = train.run(train.start(data, config), config)
        outcome.w[3] = np.nan
        with pytest.raises(TooLarge):
            train.make_model(outcome, data, config)
