"""Threads that sweep rows together: the same bits whoever does the work, what the kernels say they do done by NumPy,
rows that do not go together, and threads that do not come."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from test_dual_cd import assert_certified
from training import in_memory

from llsvm import _dual_cd, train
from llsvm.reader import RECORD
from llsvm.solvers import copies, parts, team, together
from llsvm.solvers.copies import Copies
from llsvm.solvers.marks import Marks
from llsvm.solvers.parts import Parts
from llsvm.solvers.together import Together

SOLVERS = pytest.mark.parametrize("solver", ["dual", "dual-l2"])
BIASES = pytest.mark.parametrize("bias", [-1.0, 1.5], ids=["no bias", "bias"])
SHRINKING = pytest.mark.parametrize("shrink", [False, True], ids=["all stay", "shrink"])
WAYS = pytest.mark.parametrize("way", ["parts", "copies"])
THREADS = pytest.mark.parametrize("n_threads", [2, 3])
SHORT, COUNTED, ONE_VALUE = 1, 2, 4  # bits of a layout
TOGETHER, ALONE = 1, 2


# --- rows, and ways to sweep them


def sparse(n_rows, rng):
    return rng.integers(-32, 33, (n_rows, 70)) / 16 * (rng.random((n_rows, 70)) < 0.3)


def wide(n_rows, rng):
    left, right = sparse(n_rows, rng), sparse(n_rows, rng)
    return scipy.sparse.hstack([left, scipy.sparse.csr_matrix((n_rows, 1 << 16)), right], "csr")


def one_value(n_rows, rng):
    return np.where(sparse(n_rows, rng) != 0, np.round(rng.uniform(0.5, 2, (n_rows, 1)) * 8) / 8, 0)


def wide_one_value(n_rows, rng):
    return wide(n_rows, rng).astype(bool) * 0.5


def dense(n_rows, rng):
    return (rng.integers(-32, 32, (n_rows, 45)) + 0.5) / 32


def mixed(n_rows, rng):
    """Long rows and short ones, empty ones too."""
    X = np.concatenate([dense(n_rows, rng), np.zeros((n_rows, 130))], 1)
    X[::2, 40:] = rng.integers(0, 2, (len(X[::2]), 135)) / 4
    X[1::5] = 0
    return X


LAYOUTS = {sparse: {SHORT}, wide: {0}, one_value: {SHORT | ONE_VALUE}, wide_one_value: {ONE_VALUE}, dense: {COUNTED},
           mixed: {0, SHORT, COUNTED}}  # fmt: skip
ROWS = pytest.mark.parametrize(
    ("make", "dtype"), [*((make, np.float32) for make in LAYOUTS), *((make, np.float64) for make in (sparse, dense))],
    ids=lambda value: value.__name__)  # fmt: skip


def swept_by(way, pool, *arguments):
    """The rows that stay active."""
    return way.sweep(pool, *arguments)


def new_sums(**values):
    """What sweeps find, with these values."""
    sums = np.zeros(1, _dual_cd.STATE)
    for name, value in values.items():
        sums[name] = value
    return sums


def new_duals(n_rows):
    return np.zeros(n_rows, RECORD)["dual"]


class Swept:
    """Rows with weights and dual variables; what NumPy knows of them is in X, signs, costs, U and d."""

    def __init__(self, make=sparse, dtype=np.float64, solver="dual", bias=1.5, n_rows=300, shrink=False,
                 rounding=False):  # fmt: skip
        rng, C = np.random.default_rng(n_rows), 0.2
        self.X = scipy.sparse.csr_matrix(make(n_rows, rng))
        y = np.where(self.X @ rng.standard_normal(self.X.shape[1]) + rng.standard_normal(n_rows) > 0, 1, -1)
        y[:2] = 1, -1
        self.data = in_memory(self.X, y, dtype)
        config = train.Config(solver=solver, C=C, bias=bias, weights={"1": 3.0})
        self.problem = train.problems_of(self.data.description, config)[0]
        self.table, self.duals, self.bias = self.data.table, self.data.duals, max(bias, 0.0)
        self.signs = y.astype(float)
        self.costs = np.where(y > 0, 3 * C, C)
        self.squared = solver == "dual-l2"
        self.U = np.full(n_rows, np.inf) if self.squared else self.costs
        self.d = 0.5 / self.costs if self.squared else np.zeros(n_rows)
        self.codes = (self.problem.as_float32() if rounding else self.problem).codes
        self.w, self.shrink = np.zeros(self.X.shape[1] + 1), shrink
        self.state = new_sums(bias=self.bias, round_alpha=rounding, shrink=shrink)
        self.state["highest_before"], self.state["lowest_before"] = (0.1, -0.1) if shrink else (np.inf, -np.inf)
        self.order, self.active = np.arange(n_rows, dtype=np.int32), n_rows
        self._rng = np.random.default_rng(5)

    def way(self, name, n_threads=2, rows=None):
        """A Parts or Copies; rows: how many go together, and it is not tried whether more do."""
        row_bytes = 192.0 * n_threads
        way = Parts(n_threads, row_bytes) if name == "parts" else Copies(n_threads, row_bytes, len(self.w) - 1)
        assert way.n_threads == n_threads
        if rows:
            way.rows = way._most = rows
        return way

    def shuffle(self):
        self.order[: self.active] = self._rng.permutation(self.order[: self.active])

    @property
    def arguments(self):
        return self.table, self.duals, self.order, 0, self.active, self.w, self.codes, self.state, self.data.kind

    def sweep(self, way, pool=None):
        self.shuffle()
        self.active = swept_by(way, pool, *self.arguments)

    def bits(self):
        alphas, gradients = (self.duals[name].tobytes() for name in ("alpha", "gradient"))
        state = self.state.copy()
        state["kept"] = 0  # is set by those ways alone that need it
        return self.active, alphas, gradients, *(array.tobytes() for array in (self.w, self.order, state))

    def assert_consistent(self):
        alpha = self.duals["alpha"]
        w = np.append(self.X.T @ (alpha * self.signs), self.bias * (alpha @ self.signs))
        np.testing.assert_allclose(self.w, w, rtol=1e-9, atol=1e-9)
        assert (alpha >= 0).all() and (alpha <= self.U).all()
        sums = [self.state[name][0] for name in ("sum_alpha", "sum_square")]
        assert sums == pytest.approx([alpha.sum(), 0.5 * self.d @ alpha**2], rel=1e-9)


def alone(way):
    """Its sweeps are those of one thread."""
    way._alone = 1 << 30
    return way


def meeting(memory):
    """What threads tell each other, as _threads.pxd has it: arrived, 7 numbers, begun, core, patience, ..."""
    return memory[:96].view(np.int64)


class Prompt:
    """A pool of threads that are there before the sweep begins."""

    def __init__(self, pool):
        self._pool = pool

    def submit(self, help, memory, kind):
        before = meeting(memory)[0]
        future = self._pool.submit(help, memory, kind)
        while meeting(memory)[0] == before and not future.done():
            time.sleep(0)
        return future


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def prompt(threads):
    return Prompt(threads)


def watched(way, patience=None):
    """A list of how its visits began: TOGETHER or ALONE. patience: of the first thread, instead of its own."""
    kernel, begun = way.kernel, []

    def convene(memory, *plan):
        kernel.convene(memory, *plan)
        assert meeting(memory)[10] == 1 << 15
        if patience is not None:
            meeting(memory)[10] = patience

    def dismiss(memory):
        begun.append(int(meeting(memory)[8]))
        kernel.dismiss(memory)

    way.kernel = SimpleNamespace(convene=convene, dismiss=dismiss, help=kernel.help, sweep=kernel.sweep)
    return begun


# --- the bits do not depend on who does the work


def assert_same_bits(one, way, pool, n_sweeps=3, patience=None, **options):
    """Sweeps by one thread alone and by those of the pool."""
    other, n_threads = Swept(**options), one.n_threads
    swept, several = Swept(**options), other.way(way, n_threads, one.rows if one.rows == one._most else None)
    begun = watched(several, patience)
    alone(one)
    one._least = several._least = 1
    for _ in range(n_sweeps):
        several._alone = 0
        swept.sweep(one)
        other.sweep(several, pool)
        assert swept.bits() == other.bits()
        assert one.rows == several.rows
    swept.assert_consistent()
    return swept, begun


@ROWS
@WAYS
@SOLVERS
@BIASES
@SHRINKING
def test_rows_of_every_layout_are_swept_alike_by_one_thread_and_two(prompt, make, dtype, way, solver, bias, shrink):
    options = {"make": make, "dtype": dtype, "solver": solver, "bias": bias, "shrink": shrink, "n_rows": 150}
    swept, begun = assert_same_bits(Swept(**options).way(way), way, prompt, **options)
    assert set(swept.table["layout"]) <= LAYOUTS[make] and begun[0] == TOGETHER


@WAYS
@SHRINKING
@pytest.mark.parametrize("make", [sparse, dense, mixed])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_three_threads_sweep_alike_too(prompt, way, shrink, make, rows):
    options = {"make": make, "shrink": shrink}
    _, begun = assert_same_bits(Swept(**options).way(way, 3, 10 * rows if way == "copies" else rows), way, prompt,
                                **options)  # fmt: skip
    assert begun[0] == TOGETHER


@WAYS
@THREADS
@pytest.mark.parametrize("n_rows", [2, 3, 5, 31, 65])
def test_rows_that_are_fewer_than_those_of_a_batch_are_swept_alike(prompt, way, n_threads, n_rows):
    _, begun = assert_same_bits(Swept(n_rows=n_rows).way(way, n_threads), way, prompt, n_rows=n_rows)
    assert begun[0] == TOGETHER


@WAYS
@THREADS
@SHRINKING
@pytest.mark.parametrize("trial", [1, 3])
def test_sweeps_that_are_cut_into_trials_are_alike(prompt, monkeypatch, way, n_threads, shrink, trial):
    monkeypatch.setattr(parts, "TRIAL", 4 * trial)
    monkeypatch.setattr(copies, "TRIAL", trial)
    monkeypatch.setattr(copies, "FIRST_STRETCH", 4)
    monkeypatch.setattr(copies, "ROWS_BY_W", 64)
    options = {"n_rows": 500, "shrink": shrink, "bias": -1.0}
    _, begun = assert_same_bits(Swept(**options).way(way, n_threads), way, prompt, **options)
    assert begun[0] == TOGETHER and len(begun) > 3


@WAYS
@THREADS
@pytest.mark.parametrize("make", [sparse, one_value, dense])
def test_a_thread_that_goes_on_alone_changes_no_bit(prompt, way, n_threads, make):
    """Its patience is at an end when the sweep begins, so that it leaves the others as soon as it can."""
    options = {"make": make, "shrink": True}
    one = Swept(**options).way(way, n_threads, 4 if way == "parts" else 20)
    _, begun = assert_same_bits(one, way, prompt, patience=-(1 << 40), **options)
    assert begun == [TOGETHER] * 3


@WAYS
def test_entries_of_the_table_that_are_not_in_the_order_are_not_looked_at(way):
    """From disk, the table has room for rows that are not there."""
    plain, swept = Swept(), Swept()
    n_rows = len(swept.table)
    records = np.zeros(2 * n_rows, RECORD)
    swept.table, swept.duals = records["row"], records["dual"]
    swept.table[:n_rows], swept.table["data"][n_rows:], swept.table["length"][n_rows:] = plain.table, 8, 20
    for each in (plain, swept):
        each.sweep(alone(each.way(way)))
    assert swept.w.tobytes() == plain.w.tobytes() and not swept.duals["alpha"][n_rows:].any()


@WAYS
def test_alphas_in_float32_are_swept_alike(prompt, way):
    swept, _ = assert_same_bits(Swept(rounding=True).way(way), way, prompt, rounding=True)
    alpha = swept.duals["alpha"]
    assert (alpha == alpha.astype(np.float32).astype(float)).all()


# --- what a sweep leaves behind


@WAYS
@SOLVERS
@BIASES
@SHRINKING
@pytest.mark.parametrize("make", LAYOUTS)
def test_a_sweep_visits_every_row_once_and_w_is_that_of_the_alphas(prompt, way, solver, bias, shrink, make):
    swept = Swept(make, np.float32, solver, bias, shrink=shrink)
    ways, n_visits = swept.way(way), 0
    for _ in range(4):
        before = swept.active
        n_visits += before
        swept.shuffle()
        visited, others = set(swept.order[:before]), swept.order[before:].copy()
        swept.active = swept_by(ways, prompt, *swept.arguments)
        swept.assert_consistent()
        assert swept.state["visits"][0] == n_visits and set(swept.order[:before]) == visited
        assert (swept.order[before:] == others).all()
    assert sorted(swept.order) == list(range(len(swept.order)))
    assert swept.active < len(swept.order) if shrink else swept.active == len(swept.order)


@WAYS
def test_rows_that_leave_are_those_that_stay_at_a_bound(prompt, way):
    swept = Swept(shrink=True)
    swept.sweep(swept.way(way), prompt)
    alpha, gradient = swept.duals["alpha"][swept.order], swept.duals["gradient"][swept.order]
    leaves = (alpha == 0) & (gradient > 0.1) | (alpha == swept.U[swept.order]) & (gradient < -0.1)
    assert leaves[swept.active :].all() and 0 < swept.active < len(alpha)


@WAYS
def test_losses_and_visits_are_counted(prompt, way):
    swept = Swept()
    swept.sweep(swept.way(way), prompt)
    assert swept.state["visits"][0] == 300
    gradients = swept.duals["gradient"].astype(float)  # of hinge, and so y w.x - 1
    assert swept.state["losses"][0] == pytest.approx(swept.costs @ np.maximum(0, -gradients), rel=1e-5)


# --- as the kernels' own words say


class Plain:
    """The same rows by NumPy."""

    def __init__(self, swept):
        self.given, self.X, n_rows = swept, swept.X.toarray(), len(swept.signs)
        self.norms = np.sqrt((self.X**2).sum(1)).astype(np.float32).astype(float)
        self.w, self.weight = np.zeros(self.X.shape[1]), 0.0
        self.alpha, self.gradient = np.zeros(n_rows), np.zeros(n_rows)

    def begin(self):
        self.kept, self.losses, self.gap, self.steps, self.gain, self.projected = [], 0.0, 0.0, 0, 0.0, [0.0]

    def step(self, slots, products):
        """Steps of these rows, one after the other, whose products with the features are those; the change of w."""
        change_of_w, given = np.zeros_like(self.w), self.given
        for i, product in zip(slots, products, strict=True):
            y, old, d, U = given.signs[i], self.alpha[i], given.d[i], given.U[i]
            margin = y * (product + given.bias * self.weight)
            loss = given.costs[i] * max(0.0, 1 - margin) ** (2 if given.squared else 1)
            self.losses += loss
            self.gap += loss + old * (margin - 1 + 0.5 * d * old)
            G = self.gradient[i] = margin - 1 + d * old
            is_done = old == 0 and G > 0 or old == U and G < 0
            lowest, highest = (-0.1, 0.1) if given.shrink else (-np.inf, np.inf)
            if not is_done or lowest <= G <= highest:
                self.kept.append(i)
            if is_done:
                continue
            self.projected.append(G)
            Q = self.norms[i] ** 2 + given.bias**2 + d
            new = float(np.clip(old - G / Q, 0, U)) if Q > 0 else U
            new = next((bound for bound in (0.0, U) if abs(new - bound) < 1e-12), new)  # beside it by rounding alone
            change, self.alpha[i] = new - old, new
            self.steps += abs(G) > 1e-9  # and from 1e-12 up for the kernels
            self.weight += change * y * given.bias
            change_of_w += change * y * self.X[i]
            self.gain -= change * G + 0.5 * Q * change**2
        return change_of_w

    def sweep_parts(self, order, rows):
        batches = [order[s : s + rows] for s in range(0, len(order), rows)]
        ahead = self.X[batches[0]] @ self.w
        for batch, after in zip(batches, [*batches[1:], batches[0]], strict=True):
            products, ahead = ahead, self.X[after] @ self.w
            self.w += self.step(batch, products)

    def sweep_copies(self, order, rows, n_threads):
        for start in range(0, len(order), rows * n_threads):
            own = order[start : start + rows * n_threads]
            own = [own[len(own) * t // n_threads : len(own) * (t + 1) // n_threads] for t in range(n_threads)]
            copies = [self.w.copy() for _ in own]
            ahead = [self.X[stretch[:32]] @ self.w for stretch in own]
            for b in range(0, max(map(len, own)), 32):
                products = ahead
                ahead = [self.X[stretch[b + 32 : b + 64]] @ w for stretch, w in zip(own, copies, strict=True)]
                for t in range(n_threads):
                    copies[t] += self.step(own[t][b : b + 32], products[t])
            self.w = self.w + sum(copy - self.w for copy in copies)


@SOLVERS
@BIASES
@SHRINKING
@THREADS
@pytest.mark.parametrize(("way", "rows"), [("parts", 1), ("parts", 3), ("parts", 8), ("copies", 1), ("copies", 40),
                                           ("copies", 70)])  # fmt: skip
@pytest.mark.parametrize("make", [sparse, dense, mixed])
def test_a_sweep_is_what_its_kernel_says(way, solver, bias, shrink, n_threads, rows, make):
    swept = Swept(make, np.float64, solver, bias, 290, shrink)
    plain = Plain(swept)
    for _ in range(2):
        swept.shuffle()
        plain.begin()
        losses, order = swept.state["losses"][0], swept.order[: swept.active].copy()
        if way == "parts":
            plain.sweep_parts(order, rows)
        else:
            plain.sweep_copies(order, rows, n_threads)
        swept.active = swept_by(alone(swept.way(way, n_threads, rows)), None, *swept.arguments)
        scale = max(1, np.abs(plain.w).max())
        np.testing.assert_allclose(swept.w / scale, np.append(plain.w, plain.weight) / scale, atol=1e-9)
        np.testing.assert_allclose(swept.duals["alpha"], plain.alpha, atol=1e-9 * max(1, plain.alpha.max()))
        np.testing.assert_allclose(swept.duals["gradient"], plain.gradient, rtol=1e-6, atol=1e-6)
        assert set(swept.order[: swept.active]) == set(plain.kept)
        state = swept.state[0]
        found = [max(state["highest"], 0), min(state["lowest"], 0)]
        assert found == pytest.approx([max(plain.projected), min(plain.projected)], 1e-9)
        found = [state["losses"] - losses, state["gap"], state["expected"]]
        assert found == pytest.approx([plain.losses, plain.gap, plain.gain], rel=1e-9)
        assert plain.steps <= state["steps"] <= len(plain.projected) - 1


# --- how many rows go together


class Told(Together):
    """D gains these shares of what is expected, one after the other, and the last one from then on."""

    def __init__(self, shares, expected=1.0):
        kernel = SimpleNamespace(convene=self.convene, dismiss=lambda memory: None, sweep=self.gain)
        super().__init__(kernel, 1, 64, 2, 8, 10)
        self._shares, self._expected, self.visits = list(shares), expected, []

    def prepare(self, *_):
        return ()

    def convene(self, memory, rows, n_helpers):
        self._together = rows

    def gain(self, table, duals, order, start, end, w, codes, sums, kind, memory):
        self.visits.append((start, end, self._together))
        share = self._shares.pop(0) if len(self._shares) > 1 else self._shares[0]
        sums["sum_alpha"] += share * self._expected
        sums["expected"], sums["kept"] = self._expected, end
        return True


@pytest.fixture
def ended_alone(monkeypatch):
    """ended_alone(way) notes the rows that one thread visits, which all stay."""

    def note(way):
        monkeypatch.setattr(together, "sweep", lambda *task: way.visits.append((*task[3:5], 0)))
        return way

    return note


def told(ended_alone, shares, sweeps=1, active=200, start=0.0, **options):
    way = ended_alone(Told(shares, **options))
    sums = new_sums(sum_alpha=start)
    for _ in range(sweeps):
        order = np.arange(active, dtype=np.int32)
        way.sweep(None, np.zeros(active), new_duals(active), order, 0, active, np.zeros(3), None, sums, None)
    return way


@pytest.mark.parametrize(("shares", "visits"), [
    ([1.0], [(0, 20, 2), (20, 60, 4), (60, 200, 8)]),
    ([0.8, 0.79, 1.0], [(0, 20, 2), (20, 60, 4), (60, 200, 4)]),
    ([1.0, 0.49, 1.0], [(0, 20, 2), (20, 60, 4), (60, 200, 2)]),
    ([0.6], [(0, 20, 2), (20, 200, 2)]),
    ([-3.0, 1.0], [(0, 20, 2), (20, 200, 1)]),
    ([0.0], [(0, 20, 2), (20, 200, 1)]),
    ([np.nan, 1.0], [(0, 20, 2), (20, 200, 1)]),
])  # fmt: skip
def test_more_rows_go_together_as_long_as_the_dual_value_gains_what_they_should_add(ended_alone, shares, visits):
    assert told(ended_alone, shares).visits == visits


def test_rows_of_which_no_two_go_together_are_given_up(ended_alone):
    way = told(ended_alone, [1.0, 1.0, 0.4], sweeps=4)
    assert [rows for _, _, rows in way.visits] == [2, 4, 8, 4, 2, 1] and way.rows == 0


class Astray(Told):
    """The first trial takes w and alphas astray."""

    def gain(self, table, duals, order, start, end, w, *rest):
        if not self.visits:
            w[:], duals["alpha"][order[start:end]] = np.inf, 7
        return super().gain(table, duals, order, start, end, w, *rest)


def test_a_trial_that_goes_badly_is_undone(ended_alone):
    way, duals, w, sums = ended_alone(Astray([-3.0, 1.0])), new_duals(200), np.arange(3.0), new_sums()
    way.sweep(None, np.zeros(200), duals, np.arange(200, dtype=np.int32), 0, 200, w, None, sums, None)
    assert w.tolist() == [0, 1, 2] and not duals["alpha"].any()
    assert sums["sum_alpha"][0] == 1 and way.visits == [(0, 20, 2), (20, 200, 1)]


FOUND = ["highest", "lowest", "gap", "steps", "losses", "visits", "sum_alpha", "sum_square"]


@SOLVERS
@BIASES
@SHRINKING
@pytest.mark.parametrize("start", [1, 120, 299])
def test_a_sweep_that_goes_on_is_one_sweep(solver, bias, shrink, start):
    """As where no two rows go together, and one thread ends what several have begun."""
    one, two = (Swept(solver=solver, bias=bias, shrink=shrink) for _ in range(2))
    for _ in range(3):
        for each in (one, two):
            each.shuffle()
        table, duals, order, _, active, *rest = two.arguments
        start = min(start, active - 1)
        _dual_cd.sweep(table, duals, order, 0, start, *rest)
        two.active = _dual_cd.sweep(table, duals, order, start, active, *rest)
        one.active = _dual_cd.sweep(*one.arguments)
        assert two.bits()[:-1] == one.bits()[:-1] and two.active == two.state["kept"][0]
        assert two.state[FOUND][0].tolist() == pytest.approx(one.state[FOUND][0].tolist(), rel=1e-12)
    assert one.active < 300 or not shrink


def test_where_no_two_rows_go_together_one_thread_ends_the_sweep(ended_alone):
    way = Told([-3.0])
    way._least = 2
    ended_alone(way).sweep(None, np.zeros(200), new_duals(200), np.arange(200, dtype=np.int32), 0, 200, np.zeros(3),
                           None, new_sums(), None)  # fmt: skip
    assert way.visits == [(0, 20, 2), (20, 200, 0)]


def test_a_gain_that_is_small_by_the_dual_value_says_nothing(ended_alone):
    assert told(ended_alone, [-1.0], 3, 20, start=1.0, expected=1e-11).rows == 2
    assert told(ended_alone, [-1.0], 3, 20, start=1.0, expected=1e-9).rows == 0


# --- the way that suits the rows, and rows that do not go together


@pytest.mark.parametrize(("row_bytes", "n_features", "expected"), [
    (184, 1000, None), (192, 1000, Copies), (1016, 1 << 17, Copies), (192, (1 << 17) + 1, Parts), (1024, 1000, Parts),
])  # fmt: skip
def test_the_way_depends_on_the_bytes_of_a_row_and_of_w(row_bytes, n_features, expected):
    made = team.Team(2, SimpleNamespace(n_rows=1000, n_nonzeros=125 * row_bytes, n_features=n_features), True)
    assert type(made._together) is (expected or type(None))
    made.close()


@pytest.fixture
def teams(monkeypatch):
    """Every sweep counts as large; the teams that were closed."""
    closed, close = [], team.Team.close
    monkeypatch.setattr(team, "SMALLEST_SWEEP", 1)
    monkeypatch.setattr(team.Team, "close", lambda each: closed.append(each) or close(each))
    return closed


def alike(n_rows, n_features, seed=1):
    """Rows that are hardly different, of labels that say little."""
    rng = np.random.default_rng(seed)
    X = 1 + rng.integers(-8, 9, (n_rows, n_features)) / 64
    return X, np.where(rng.random(n_rows) < 0.6, 1, -1)


def opposed(n_rows, n_features, seed=1):
    """Copies of a few large rows; a label in four is wrong."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(-8, 9, (6, n_features)) / 2
    X = kinds[rng.integers(0, 6, n_rows)]
    return X, np.where((X[:, 0] > X[:, 1]) ^ (rng.random(n_rows) < 0.25), 1, -1)


def copies_of_one(n_rows, n_features, seed=1):
    """A label in ten is another."""
    X = np.tile(np.where(np.arange(n_features) % 3, 1.0, -1.0), (n_rows, 1))
    return X, np.where(np.random.default_rng(seed).random(n_rows) < 0.9, 1, -1)


@BIASES
@pytest.mark.parametrize(("n_features", "expected"), [(30, Copies), (140, Parts)], ids=["copies", "parts"])
def test_where_no_two_rows_go_together_marks_come_to_liblinears_optimum(teams, monkeypatch, bias, n_features, expected):
    marked, sweep = [], Marks.sweep
    monkeypatch.setattr(Marks, "sweep", lambda self, *given: marked.append(1) or sweep(self, *given))
    assert_certified(*copies_of_one(400, n_features), 1e-3, solver="dual", bias=bias, threads=2)
    assert type(teams[0]._together) is expected and teams[0]._together.rows == 0 and marked


@BIASES
@pytest.mark.parametrize("make", [alike, opposed])
@pytest.mark.parametrize(("solver", "n_features"), [
    ("dual", 30), ("dual", 140), ("dual-l2", 30), ("dual-l2", 140),
])  # fmt: skip
def test_rows_that_do_not_go_together_come_to_liblinears_optimum(teams, make, solver, bias, n_features):
    assert_certified(*make(400, n_features), 1e-3, solver=solver, bias=bias, threads=2, C=0.05, max_passes=500)
    if solver == "dual-l2":  # without a bound, alphas could go anywhere
        assert teams[0]._together is None
        return
    first = copies.FIRST_STRETCH if n_features == 30 else parts.FIRST_ROWS
    assert teams[0]._together.rows < first


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
def test_rows_of_positive_numbers_come_to_liblinears_optimum(solver):
    """Enough of them to be swept together, whatever the tests change."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 257, (2500, 30)) / 256
    y = np.where((X - 0.5) @ rng.standard_normal(30) + rng.standard_normal(2500) > 0, 1, -1)
    assert 8 * X.size > team.SMALLEST_SWEEP
    assert_certified(X, y, 1e-3, solver=solver, threads=2, C=0.05, max_passes=500)


# --- threads that do not come


class Never:
    """A pool whose threads never start; counts how often it is asked for one."""

    def __init__(self):
        self.asked = 0

    def submit(self, *_):
        self.asked += 1
        return Future()


class Late:
    """A pool whose threads come when the sweep is over."""

    def submit(self, *job):
        function, *arguments = job
        return SimpleNamespace(cancel=lambda: False, result=lambda: function(*arguments))


class Asleep:
    """A pool whose threads sleep before they help."""

    def __init__(self, pool):
        self._pool = pool

    def submit(self, function, *arguments):
        return self._pool.submit(lambda: time.sleep(0.02) or function(*arguments))


class OnlyOne:
    """A pool whose first thread comes, but no other."""

    def __init__(self, prompt):
        self._prompt, self._asked = prompt, 0

    def submit(self, *job):
        self._asked += 1
        return self._prompt.submit(*job) if self._asked % 2 else Future()


class Refused:
    """A pool that can start one thread only."""

    def __init__(self, pool, n_threads=1):
        self._pool, self._left, self.futures = pool, n_threads, []

    def submit(self, *job):
        if not self._left:
            raise RuntimeError("can't start new thread")
        self._left -= 1
        self.futures.append(self._pool.submit(*job))
        return self.futures[-1]


@WAYS
@THREADS
@SHRINKING
@pytest.mark.parametrize("make_pool", [lambda *_: Never(), lambda *_: Late(), lambda threads, _: Asleep(threads)],
                         ids=["never", "late", "asleep"])  # fmt: skip
def test_threads_that_do_not_come_in_time_change_no_bit(threads, prompt, make_pool, way, n_threads, shrink):
    one, pool = Swept(shrink=shrink).way(way, n_threads), make_pool(threads, prompt)
    assert_same_bits(one, way, pool, n_sweeps=2, shrink=shrink)


@WAYS
def test_one_thread_of_two_that_comes_goes_home_again(prompt, way):
    _, begun = assert_same_bits(Swept().way(way, 3), way, OnlyOne(prompt))
    assert set(begun) == {ALONE}


@WAYS
def test_a_thread_that_does_not_come_is_asked_again_after_more_and_more_sweeps(way):
    swept, pool, asked = Swept(n_rows=20), Never(), []
    never = swept.way(way)
    never._judge = lambda share: True
    for _ in range(30):
        before = pool.asked
        swept.sweep(never, pool)
        asked.append(pool.asked - before)
    assert np.flatnonzero(asked).tolist() == [0, 2, 5, 10, 19, 28]


@WAYS
def test_once_a_thread_came_it_is_asked_every_time(prompt, way):
    swept = Swept(n_rows=20)
    late = swept.way(way)
    kernel, begun = late.kernel, watched(late)
    late.kernel.sweep = lambda *arguments: kernel.sweep(*arguments) or True  # whatever else the machine has to do
    late._patience = 8
    for _ in range(3):
        swept.sweep(late, prompt)
    assert begun == [TOGETHER] * 3 and late._patience == 1


@WAYS
@pytest.mark.parametrize("n_started", [0, 1])
def test_a_thread_that_cannot_be_started_leaves_everything_as_it_was(threads, way, n_started):
    swept, pool = Swept(), Refused(threads, n_started)
    refused = swept.way(way, 3)
    swept.sweep(refused, threads)
    before, refused._alone = swept.bits(), 0
    with pytest.raises(RuntimeError, match="new thread"):
        swept_by(refused, pool, *swept.arguments)
    assert swept.bits() == before and len(pool.futures) == n_started
    assert all(future.done() for future in pool.futures)
    other = Swept()
    one = alone(other.way(way, 3))
    for _ in range(2):
        other.sweep(one)
    swept.sweep(refused, threads)
    assert swept.bits() == other.bits()


# --- marks


@SOLVERS
@SHRINKING
@pytest.mark.parametrize("make", [sparse, wide])
def test_marks_do_not_depend_on_who_looks(threads, solver, shrink, make):
    found = []
    for pool in (threads, Never(), Late(), Asleep(threads)):
        swept = Swept(make, np.float32, solver, shrink=shrink)
        marks = Marks(3, 160.0, len(swept.w) - 1)
        for _ in range(3):
            swept.sweep(marks, pool)
        swept.assert_consistent()
        found.append(swept.bits())
    assert len(set(found)) == 1


def test_a_thread_that_cannot_be_started_leaves_marks_as_they_were(threads):
    swept, pool = Swept(), Refused(threads)
    marks, before = Marks(3, 160.0, len(swept.w) - 1), swept.bits()
    with pytest.raises(RuntimeError, match="new thread"):
        marks.sweep(pool, *swept.arguments)
    assert swept.bits() == before and pool.futures[0].done()
