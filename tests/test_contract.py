"""What every solver of the table owes, wherever its rows are, for two classes and more, with one thread and several: a
certificate that holds, every row once a pass, one model for a seed, and no worse w than 0. Those that are exact owe
steady progress to the optimum too. Expected values are NumPy's, LIBLINEAR's and SciPy's (objectives.py)."""

import functools
import itertools
import os
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse
from objectives import LOSSES, classes_of, least, objective, primals
from problems import block_bytes, four_classes, make_rows, split, write_text
from training import EXACT, LARGE, NEAR, fit_model, named

from llsvm.core import DataError, UsageError
from llsvm.solvers import SOLVERS

TOLERANCE = 1e-3
WHERE = {"memory": "in memory", "disk": "on disk", "text": "read once", "set": "on disk"}


class Case(NamedTuple):
    """Text and sets that are read once make one pass over the rows."""

    name: str
    place: str
    n_classes: int
    threads: int = 1

    def __str__(self):
        return f"{self.name}, {self.place}, {self.n_classes} classes, {self.threads} threads"

    @property
    def is_exact(self):
        return self.name in EXACT

    @property
    def makes_one_pass(self):
        return self.place in ("text", "set")

    @property
    def loss(self):
        return LOSSES[self.name.split()[0]]

    @property
    def options(self):
        once = self.place == "text" and self.name == "pegasos"
        most = {} if self.is_exact else {"max_passes": 1 if once else 10}
        return {**named(self.name), "threads": self.threads, "tolerance": TOLERANCE, "bias": 1.0, **most}


CASES = [Case(name, place, n_classes, threads) for name, places in {**EXACT, **NEAR}.items() for place in places
         for n_classes in (2, 4) for threads in (1, 3)]  # fmt: skip


def every(condition=lambda case: True):
    return pytest.mark.parametrize("case", [case for case in CASES if condition(case)], ids=str)


EVERY_CASE = every()
EVERY_EXACT_CASE = every(lambda case: case.is_exact)
ONE_THREAD = every(lambda case: case.threads == 1)


def test_every_solver_of_the_table_is_here():
    assert {name.split()[0] for name in [*EXACT, *NEAR]} == set(SOLVERS)


# --- rows, and trainings of which several tests speak


class Data(NamedTuple):
    X: scipy.sparse.csr_matrix
    labels: tuple
    text: str
    blocks: str
    memory: int  # that holds some chunks, but not the rows

    @property
    def classes(self):
        return classes_of(self.labels)


def written(path, X, labels, n_blocks, share):
    """share: of the bytes of the rows, 8 a nonzero, that there is memory for."""
    text = write_text(path, X, labels)
    return Data(X, tuple(map(str, labels)), text, split(text, n_blocks), int(share * 8 * X.nnz))


SHARES = {2: 1 / 3, 4: 1.0}  # of memory: with more classes, alphas take more than rows


@pytest.fixture(scope="session")
def kinds(tmp_path_factory):
    """By number of classes: 500 rows of two, 400 of four, whose order of occurrence is not that of their names."""
    folder, rows = tmp_path_factory.mktemp("contract"), make_rows(500)
    return {2: written(folder / "two.txt", rows.X, rows.y, 20, SHARES[2]),
            4: written(folder / "four.txt", *four_classes(400), 60, SHARES[4])}  # fmt: skip


@pytest.fixture(scope="session")
def solve(kinds, tmp_path_factory):
    """solve(case, C=1.0, ...) trains once for all tests that ask for the same; solve(case, data, ...) on other rows."""
    folder, numbers, known = tmp_path_factory.mktemp("models"), itertools.count(), {}

    def train_anew(case, data, options):
        memory = data.memory if case.place == "disk" else LARGE
        path = data.text if case.place == "text" else data.blocks
        fitted = fit_model(path, folder / f"{next(numbers)}", **{**case.options, "memory": memory, **options})
        assert fitted.where == WHERE[case.place]
        return fitted

    def solve_case(case, data=None, **options):
        if data:
            return train_anew(case, data, options)
        key = case, repr(sorted(options.items()))
        if key not in known:
            known[key] = train_anew(case, kinds[case.n_classes], options)
        return known[key]

    return solve_case


@pytest.fixture(scope="session")
def optimum(kinds):
    """optimum(loss, number of classes, C, bias, weights of labels): P, by problem, of the best w that others find."""

    @functools.cache
    def find(loss, n_classes, C, bias, weights):
        return least(loss, kinds[n_classes].X, kinds[n_classes].labels, C, dict(weights), bias)

    return lambda loss, n_classes, C=1.0, bias=1.0, weights=None: find(loss, n_classes, C, bias,
                                                                     tuple((weights or {}).items()))  # fmt: skip


def bits(fitted):
    """A model file up to our own line, which holds the options."""
    with open(fitted.path, "rb") as file:
        return file.read().split(b"\nllsvm ")[0]


# --- the certificate

WEIGHTS = {2: {"1": 3.0, "-1": 0.5}, 4: {"7": 3.0, "a": 0.5}}
TERMS = {
    "plain": {}, "no bias, weights": {"C": 0.2, "bias": -1.0, "weights": WEIGHTS}, "bias R": {"C": 0.5, "bias": None},
}  # fmt: skip


def radius_of(X):
    return float(np.sqrt(X.multiply(X).sum(1).max()))


@EVERY_CASE
@pytest.mark.parametrize("name", TERMS)
def test_the_certificate_holds(kinds, solve, optimum, case, name):
    data, terms = kinds[case.n_classes], dict(TERMS[name])
    if "weights" in terms:
        terms["weights"] = terms["weights"][case.n_classes]
    if "weights" in terms and case.place == "text" and case.name == "pegasos":
        return  # keeps the rows in memory: test_primal.py
    if "weights" in terms and case.place == "text" and case.n_classes > 2:
        with pytest.raises(UsageError, match="4 classes, and weights for some of them"):
            solve(case, **terms)
        return
    fitted, costs = solve(case, **terms), {key: terms[key] for key in ("C", "weights") if key in terms}
    known, model = fitted.certificate, fitted.model
    bias = terms.get("bias", 1.0) if name != "bias R" else radius_of(data.X)
    assert model.labels == data.classes and model.bias == pytest.approx(bias, rel=1e-7)
    w = model.matrix(data.X.shape[1])
    found = primals(case.loss, data.X, data.labels, model.labels, w, bias=model.bias, **costs)
    assert known.primal == pytest.approx(found.sum(), rel=1e-9)
    if len(found) > 1:
        assert [own.primal for own in fitted.outcome.classes] == pytest.approx(found, rel=1e-9)
        assert known.dual == pytest.approx(sum(own.dual for own in fitted.outcome.classes), rel=1e-12)
    by_problem = optimum(case.loss, case.n_classes, bias=bias, **costs)
    lowest = by_problem.sum()
    assert all(own.dual <= least * (1 + 1e-9) for own, least in zip(fitted.outcome.classes, by_problem, strict=False))
    assert known.dual <= lowest * (1 + 1e-9) and known.primal >= lowest * (1 - 1e-5)
    assert known.relative_gap == pytest.approx(1 - known.dual / known.primal)
    told = model.info["certificate"]
    assert (told["primal"], told["dual"], told["relative_gap"]) == (known.primal, known.dual, known.relative_gap)
    if case.is_exact:
        assert fitted.outcome.reason == "converged"
        assert 0 <= known.primal - known.dual <= TOLERANCE * known.primal
        assert all(own.relative_gap <= TOLERANCE for own in fitted.outcome.classes)
        assert known.primal <= lowest / (1 - TOLERANCE) * (1 + 1e-9)
    else:
        above = 0.01 if case.name == "stream" else 1e-12  # a ball's w is never 0, which would be no classifier
        assert known.dual > 0 and known.primal <= at_zero(case.loss, data, **costs) * (1 + above)


def at_zero(loss, data, **costs):
    """P(0): all losses are C_i."""
    n_columns = 1 if len(data.classes) == 2 and loss not in ("cs", "ww") else len(data.classes)
    return primals(loss, data.X, data.labels, data.classes, np.zeros((data.X.shape[1], n_columns)), **costs).sum()


@every(lambda case: case.name != "ipm")  # whose points have a D of their own, of which the best is kept
def test_the_dual_never_decreases(solve, case):
    fitted = solve(case, C=20.0, tolerance=1e-3 if case.name == "block" else 1e-6)
    duals = np.array([0.0, *(stats.dual for stats in fitted.passes), fitted.certificate.dual])
    assert (np.diff(duals) >= -1e-12 * duals[1:]).all()
    assert not case.is_exact or len(duals) > 4


@pytest.fixture(scope="session")
def noise(kinds, tmp_path_factory):
    """Labels that say nothing of rows that are four times as long."""
    folder, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(5)
    return {n: written(folder / f"{n}.txt", data.X * 4, rng.permutation(data.labels), 20 if n == 2 else 60, SHARES[n])
            for n, data in kinds.items()}  # fmt: skip


@every(lambda case: case.is_exact or case.name == "pegasos")
def test_the_certified_primal_never_rises(noise, solve, case):
    """From disk a pass is certified where the end seems near, which it is not where labels are noise."""
    passes = solve(case, noise[case.n_classes], C=1 / 16, tolerance=1e-6).passes
    primals = np.array([stats.primal for stats in passes if stats.certified])
    assert (np.diff(primals) <= 0).all()
    assert len(primals) > 1 or case.makes_one_pass


@EVERY_CASE
@pytest.mark.parametrize("n_passes", [1, 2, 5])
def test_the_objective_never_rises_above_its_start(noise, solve, case, n_passes):
    """A large C makes early steps go far astray."""
    if case.makes_one_pass and n_passes > 1 and case.name != "shrink":
        return  # there is no second
    data = noise[case.n_classes]
    fitted = solve(case, data, C=100.0, tolerance=1e-9, max_passes=n_passes)
    assert (fitted.outcome.reason, fitted.outcome.stats.number) == ("passes", n_passes)
    found = objective(data.X, data.labels, fitted.model, C=100.0, loss=case.loss)
    assert found <= at_zero(case.loss, data, C=100.0) * (1 + 1e-9)
    assert fitted.certificate.primal == pytest.approx(found, rel=1e-9)


# --- rows


@EVERY_CASE
def test_every_row_is_visited_and_every_byte_read_once_a_pass(kinds, solve, case):
    """Of exact ones fewer are visited where no visits seem to be needed any more; if that is not the end, the next pass
    visits all."""
    data, fitted = kinds[case.n_classes], solve(case)
    passes = fitted.passes
    n_bytes = os.path.getsize(data.text) if case.place == "text" else block_bytes(data.blocks)
    read = [n_bytes * (stats.number if case.place == "disk" else 1) for stats in passes]
    assert [stats.bytes_read for stats in passes] == read
    visits = [stats.visits for stats in passes]
    if case.is_exact and case.place == "disk":
        assert set(visits[:2]) == {len(data.labels)}
        assert {max(pair) for pair in itertools.pairwise(visits)} == {len(data.labels)}
    elif not case.is_exact:
        assert visits[0] == len(data.labels) and (case.name == "shrink" or set(visits) == {len(data.labels)})
        assert len(passes) == {"shrink": len(passes), "stream": 1}.get(case.name, case.options["max_passes"])
        assert not case.makes_one_pass or fitted.outcome.stats.bytes_read == 2 * n_bytes  # for the certificate


@pytest.fixture(scope="session")
def apart(tmp_path_factory):
    """By number of classes: 400 rows, whose 30 features no row of another class has."""
    folder, rng, found = tmp_path_factory.mktemp("apart"), np.random.default_rng(1), {}
    for n_classes in (2, 4):
        codes, X = np.arange(400) % n_classes, np.zeros((400, 30 * n_classes))
        for row, code in enumerate(codes):
            X[row, 30 * code : 30 * code + 30] = rng.integers(8, 33, 30) / 16
        labels = [["1", "-1", "5", "6"][code] for code in codes]
        found[n_classes] = written(folder / f"{n_classes}.txt", scipy.sparse.csr_matrix(X), labels, 20, 0.75)
    return found


@every(lambda case: case.name not in ("stream", "ipm"))  # the w of a ball, and of a step for all rows at once
def test_no_row_is_left_out_of_a_pass_nor_counted_twice(apart, solve, case):
    """C is so small that every row loses all that it can: a visit makes its dual variable C, or 2 C where losses are
    squared, and w is their sum over the rows. Steps of Pegasos add up to C for each row, where rows are not known
    beforehand to as much of it as had come by then."""
    data, C = apart[case.n_classes], 1e-10
    options = {"average": False} if case.name == "pegasos" else {}
    fitted = solve(case, data, bias=-1.0, C=C, max_passes=1, **options)
    w = fitted.model.matrix(data.X.shape[1])
    share = {"squared": 2, "ww": case.n_classes - 1}.get(case.loss, 1) * C * np.ones(400)
    if case.name == "pegasos" and case.place == "text":
        share *= np.arange(1, 401) / 400
    for column, name in enumerate(fitted.model.labels):
        own = np.array(data.labels) == name
        expected = data.X[own].T @ share[own]
        found = -w[:, 0] if column >= w.shape[1] else w[:, column]
        assert found[expected > 0] == pytest.approx(expected[expected > 0], rel=1e-5)


# --- one model


@EVERY_CASE
def test_the_same_seed_gives_the_same_model(solve, case):
    """Text has an order of its own, which no seed changes, and ipm has no order."""
    first, again, other = solve(case), solve(case, seed=1), solve(case, seed=2)
    assert bits(first) == bits(again) and first.certificate == again.certificate
    assert (bits(first) != bits(other)) == (case.name == "shrink" or case.place != "text" and case.name != "ipm")


@every(lambda case: case.threads > 1)
def test_the_number_of_threads_does_not_change_the_model_of_few_rows(solve, case):
    one, several = solve(case._replace(threads=1)), solve(case)
    assert bits(one) == bits(several) and one.certificate == several.certificate


@pytest.fixture(scope="session")
def divisions(tmp_path_factory):
    """By number of classes: the same rows in sets of other blocks, sorted by label, split by more threads."""
    folder, found = tmp_path_factory.mktemp("divisions"), {}
    rows = make_rows(1000)
    for n, (X, labels) in {2: (rows.X, rows.y), 4: four_classes(400)}.items():
        order = np.argsort(labels, kind="stable")
        data = written(folder / f"{n}.txt", X, labels, 1 if n == 2 else 40, 0.75 if n == 2 else 1.0)
        ordered = written(folder / f"{n}.sorted.txt", X[order], [labels[row] for row in order], 20 * n, 1.0)
        found[n] = [data, ordered._replace(memory=data.memory)]
        found[n] += [data._replace(blocks=split(data.text, n_blocks * n // 2, **options)) for n_blocks, options in
                     ((7 if n == 2 else 39, {}), (40, {}), (20, {"threads": 3}), (21, {"seed": 9}))]  # fmt: skip
    return found


@ONE_THREAD
def test_blocks_and_the_order_of_rows_do_not_change_the_answer_beyond_the_gap(divisions, solve, case):
    parts = divisions[case.n_classes]
    if case.name == "block":  # a block is in memory as a whole, and a set may have but one
        parts = [data._replace(memory=LARGE) for data in parts]
    runs = [solve(case, data) for data in parts]
    found = np.array([objective(data.X, data.labels, fitted.model, loss=case.loss)
                      for data, fitted in zip(parts, runs, strict=True)])  # fmt: skip
    assert max(fitted.certificate.dual for fitted in runs) <= found.min()
    assert not case.is_exact or found.max() <= found.min() * (1 + 1.01 * TOLERANCE)


NAMES = {2: [("7", "3"), ("spam", "ham"), ("-1", "1")], 4: [("10", "-2", "0", "5"), ("née", "b", "c", "d")]}


@ONE_THREAD
def test_labels_may_be_any(kinds, solve, tmp_path, case):
    """The weights are those under any other names; -1 before 1 alone changes which class is positive."""
    data = kinds[case.n_classes]
    for number, names in enumerate(NAMES[case.n_classes]):
        renamed = dict(zip(dict.fromkeys(data.labels), names, strict=True))
        other = written(tmp_path / f"{number}.txt", data.X, [renamed[label] for label in data.labels],
                        20 if case.n_classes == 2 else 60, SHARES[case.n_classes])  # fmt: skip
        fitted, expected = solve(case, other, bias=-1.0), solve(case, bias=-1.0)
        assert fitted.model.labels == (["1", "-1"] if names == ("-1", "1") else list(names))
        found = objective(data.X, other.labels, fitted.model, loss=case.loss)
        assert fitted.certificate.primal == pytest.approx(found, rel=1e-9)
        if names != ("-1", "1"):
            np.testing.assert_array_equal(fitted.model.weights, expected.model.weights)


@ONE_THREAD
@pytest.mark.parametrize("reason, options", [
    ("passes", {"max_passes": 2}), ("time", {"time_limit": 1e-9}), ("interrupted", {"stopped": lambda: True}),
])  # fmt: skip
def test_training_that_ends_early_says_why_and_certifies_what_there_is(kinds, solve, optimum, case, reason, options):
    """What reads once ends with its pass, and is certified by another."""
    data = kinds[case.n_classes]
    if case.makes_one_pass and reason == "passes":
        options = {"max_passes": 1}
    fitted = solve(case, data, tolerance=1e-9, **options)
    assert fitted.outcome.reason == reason
    known, stats = fitted.certificate, fitted.outcome.stats
    if known is None:
        assert not case.is_exact and fitted.outcome.uncertified and not stats.certified
        return
    assert stats.certified and stats.gap == known.relative_gap > 1e-9
    if case.is_exact and reason != "time":
        assert stats.number == len(fitted.passes) == options.get("max_passes", 1)
    assert known.primal == pytest.approx(objective(data.X, data.labels, fitted.model, loss=case.loss), rel=1e-9)
    assert known.dual <= optimum(case.loss, case.n_classes).sum() * (1 + 1e-9)


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
@pytest.mark.parametrize("text, says", [
    ("1 1:1\n1 2:1\n+1 1:2\n", "only one class in the data: every label is 1"), ("", "no rows"),
    ("\n# nothing\n", "no rows"),
], ids=["one class", "empty", "comments"])  # fmt: skip
def test_data_without_two_classes_are_refused(tmp_path, name, text, says):
    (tmp_path / "data.txt").write_text(text)
    case = Case(name, "text", 2)
    with pytest.raises(DataError, match=says):
        fit_model(tmp_path / "data.txt", tmp_path / "model", **case.options)
    assert os.listdir(tmp_path) == ["data.txt"]
    if says.startswith("only"):
        with pytest.raises(DataError, match=says):
            fit_model(split(str(tmp_path / "data.txt"), 2), tmp_path / "model", **case.options)
