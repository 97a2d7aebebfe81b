"""The table of solvers; looks at rows, several threads, the ways from disk, budgets and numbers at their limits. What
every solver owes is in test_contract.py."""

import itertools
import re
import time
import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.sparse
from liblinear.liblinearutil import solver_names
from objectives import LOSSES, objective
from problems import Rows, make_rows, split, write_text
from training import EXACT, LARGE, NEAR, named

from llsvm import _dual_cd, pool, reader, solvers, train
from llsvm.active import ActiveRows
from llsvm.blockset import BlockSet, Decoder
from llsvm.core import TooLarge, UsageError
from llsvm.memory import parse_size
from llsvm.options import OPTIONS
from llsvm.reader import rows_bytes
from llsvm.solvers import SOLVERS, collected, visitor

TOLERANCE = 1e-3
EVERY_SOLVER = pytest.mark.parametrize("solver", SOLVERS)
# ipm is for few features, and has its matrix of their products beside the rows (test_interior.py).
OF_MANY_FEATURES = pytest.mark.parametrize("solver", [name for name in (*EXACT, *NEAR) if name != "ipm"])
EVERY_NAME = pytest.mark.parametrize("solver", [*EXACT, *NEAR])


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
        fitted = fit(path or rows.blocks, **named(solver), **{**defaults, **options})
        assert fitted.streamed == (place == "disk")
        return fitted

    return solve_rows


def primal(rows, fitted, solver, **terms):
    return objective(rows.X, rows.y, fitted.model, loss=LOSSES[solver.split()[0]], **terms)


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


# --- block minimisation

INNER = pytest.mark.parametrize("inner", [1, 10, 0], ids=["1", "10", "auto"])


@INNER
@pytest.mark.parametrize("solver", EXACT)
def test_inner_sweeps_do_not_change_the_answer(rows, solve, solver, inner):
    if solver.split()[0] not in OPTIONS["inner"].solvers or (solver == "shrink --exact" and inner == 0):
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


@pytest.mark.parametrize("solver", [name for name in NEAR if name != "shrink"])
@pytest.mark.parametrize("option", [{"inner": 2}, {"exact": True}], ids=str)
def test_what_is_not_exact_has_neither_inner_sweeps_nor_an_exact_variant(rows, fit, solver, option):
    with pytest.raises(UsageError, match=f"--{next(iter(option))}"):
        fit(rows.blocks, solver=solver, **option)


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
    value = objective(many_rows.X, many_rows.y, first.model, C=0.1, loss=LOSSES[solver])
    assert value == pytest.approx(first.outcome.certificate.primal, rel=1e-5)
    for other in fits[1:]:
        assert other.outcome.w.tobytes() == first.outcome.w.tobytes()


def test_rows_of_text_whose_numbers_do_not_ascend_are_swept_by_threads(many_rows, fit):
    """Features are numbered as they appear, and only the rows of a block set stand in the order of their numbers."""
    first, second = (fit(many_rows.text, bias=1.0, C=0.1, memory=LARGE, threads=2) for _ in range(2))
    assert not first.streamed and first.outcome.reason == "converged"
    value = objective(many_rows.X, many_rows.y, first.model, C=0.1)
    assert value == pytest.approx(first.outcome.certificate.primal, rel=1e-5)
    assert second.outcome.w.tobytes() == first.outcome.w.tobytes()


def test_one_thread_and_two_come_to_the_same_optimum(many_rows, fit):
    one, two = (fit(many_rows.text, bias=1.0, tolerance=1e-7, threads=threads) for threads in (1, 2))
    assert one.outcome.certificate.primal == pytest.approx(two.outcome.certificate.primal, rel=2e-7)
    np.testing.assert_allclose(one.outcome.w, two.outcome.w, atol=1e-3 * np.abs(one.outcome.w).max())


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that is waited for, and is known from the first group on; counts the sweeps made meanwhile."""
    decode, use_wait, used = Decoder.decode, collected.Collected.use_wait, []

    def decode_slowly(self, chunk):
        time.sleep(0.002)
        return decode(self, chunk)

    def use(self, *arguments):
        used.append(use_wait(self, *arguments))
        return used[-1]

    monkeypatch.setattr(collected, "SLOW_SECONDS", -1)
    monkeypatch.setattr(collected, "SLOW_SHARE", -1)
    monkeypatch.setattr(Decoder, "decode", decode_slowly)
    monkeypatch.setattr(collected.Collected, "use_wait", use)
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
        y.extend(learner.cd.problem.codes[block.codes, 0])
    rows[:, -1] = 1
    alphas = learner.cd.state.alphas.read(0, blocks.n_rows).astype(float)
    expected = alphas * y @ rows
    np.testing.assert_allclose(learner.cd.state.w, expected, atol=1e-9)
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
    monkeypatch.setattr(visitor, "ENOUGH", enough)
    fitted = solve(solver, "disk", tolerance=3e-6)
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
    return named(solver) if solver in EXACT else {"solver": solver, "max_passes": 2}


def assert_trains(fit, rows, path, solver, memory):
    fitted = fit(path, **in_some_passes(solver), memory=memory)
    assert solver in NEAR or fitted.outcome.reason == "converged"
    assert primal(rows, fitted, solver) == pytest.approx(fitted.outcome.certificate.primal, rel=1e-9)


@OF_MANY_FEATURES
def test_the_memory_asked_for_where_w_does_not_fit_is_enough(wide, wide_path, fit, solver):
    """A file that is read once is read on for its features, so that one hint does."""
    with pytest.raises(UsageError, match="too small") as refusal:
        fit(wide_path, **in_some_passes(solver), memory=1 << 20)
    assert "so far" not in refusal.value.message and memory_asked_for(refusal) > 1 << 20
    assert_trains(fit, wide, wide_path, solver, memory_asked_for(refusal))


@OF_MANY_FEATURES
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
