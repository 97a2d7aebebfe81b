"""Cross-validation and the search for C: any number of trainings of the same rows, from as few reads as can be."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from llsvm import folds, reader
from llsvm.core import Certificate, Description
from llsvm.evaluate import dot
from llsvm.folds import Jury, Tally
from llsvm.options import Config
from llsvm.pool import Pool
from llsvm.problem import Problem, bias_of, total_of
from llsvm.solvers.dual_cd import State
from llsvm.train import Outcome, complete, problems_of

LARGEST_COST = 2.0**10
UP, AROUND = 4.0, 2.0  # factors of C: on the way up, and then around the best
ROUNDS = 30
PATIENCE, GAIN = 3, 0.5  # so many values of C in a row that gain less than this part of a standard error end the way up


@dataclass
class Validation:
    """What the models of all folds say of the rows that they have not seen, and a certificate a fold, where there is
    one of each; outcome: of training with all rows, where a model is wanted."""

    cost: float
    tally: Tally
    certificates: list[Certificate]
    outcome: Outcome | None
    n_passes: int
    bytes_read: int
    seconds: float

    @property
    def gap(self) -> float:
        """The largest of the folds."""
        return max((certificate.relative_gap for certificate in self.certificates), default=math.inf)


class Validator:
    """Trains without each fold, for one value of C after the other, on the same rows. tolerance: of the folds."""

    def __init__(self, data, config: Config, wants_model: bool):
        self._data, self._config, self._wants_model, self._n_folds = data, config, wants_model, config.folds
        self._deadline = time.perf_counter() + config.time_limit
        self.tolerance = config.tolerance if "tolerance" in config.said else max(config.tolerance, folds.GAP)
        self._in_memory = isinstance(data, reader.Resident)
        self._seeds = []  # the problems of all rows at the last C, and their alphas

    def run(self, cost: float) -> Validation:
        began = time.perf_counter()
        found = self._from_memory(cost) if self._in_memory else self._from_disk(cost)
        found.seconds = time.perf_counter() - began
        return found

    def train(self, cost: float) -> Outcome:
        """With all rows, to the tolerance of a model."""
        problems = self._problems(cost)
        if self._in_memory:
            return self._train(problems)
        solver = self._config.method.on_disk(problems, self._config, self._data)
        try:
            return self._complete(solver)
        finally:
            solver.close()

    def _problems(self, cost: float) -> list[Problem]:
        """Of all rows."""
        config = replace(self._config, C=cost)
        return folds.of_all_rows(problems_of(self._data.description, config), self._n_folds)

    # --- rows in memory

    def _train(self, problems: list[Problem]) -> Outcome:
        """From the alphas of the last C."""
        build = self._config.method.in_memory
        states = [self._scaled(*seed, problem) for seed, problem in zip(self._seeds, problems, strict=False)]
        solver = build(problems, self._config, self._data, states or None)
        found = solver.states
        try:
            outcome = self._complete(solver)
            alphas = [state.duals["alpha"].copy() for state in found]
            self._seeds = list(zip(problems, alphas, strict=True))
        finally:
            solver.close(release=False)
        return outcome

    def _from_memory(self, cost: float) -> Validation:
        """All rows first; a problem without a fold begins with the alphas that the other rows have there."""
        problems = self._problems(cost)
        if not self._wants_model:
            problems = [replace(problem, tolerance=self.tolerance) for problem in problems]
        whole = self._train(problems)
        without = folds.without_each(problems, self._n_folds, self.tolerance)
        alphas = [alphas for _, alphas in self._seeds] * self._n_folds
        states = (self._state(*pair) for pair in zip(without, alphas, strict=True))
        solver = self._config.method.in_memory(without, self._config, self._data, states)
        try:
            outcome = self._complete(solver)
            tally = self._judge(solver, outcome.w, outcome.bias)
        finally:
            solver.close(release=False)
        return Validation(cost, tally, self._by_fold(outcome.classes), whole if self._wants_model else None,
                          whole.stats.number + outcome.stats.number, self._data.bytes_read, 0.0)

    def _state(self, problem: Problem, alphas) -> State:
        data = self._data
        return State.of(problem, data.table, alphas, data.description.n_features + 1, data.kind)

    def _scaled(self, before: Problem, alphas, problem: Problem) -> State:
        """Where training with another C begins: the alphas at C and those below it, each of both groups as many times
        as makes D largest, the alphas staying within the new bounds."""
        bounds = before.codes[self._data.table["code"], 1]
        ratio = problem.costs[0] / before.costs[0]
        smaller = min(1.0, ratio)
        at_bound = alphas >= bounds
        groups = [self._state(problem, smaller * np.where(at_bound, alphas, 0.0)),
                  self._state(problem, smaller * np.where(at_bound, 0.0, alphas))]
        room = (ratio * bounds)[~at_bound] / np.maximum(smaller * alphas[~at_bound], 1e-300)
        most = ratio / smaller, float(room.min(initial=np.inf))
        first, second = best_multiples(groups, most)
        return self._state(problem, smaller * alphas * np.where(at_bound, first, second))

    # --- rows on disk

    def _from_disk(self, cost: float) -> Validation:
        """All folds, and all rows if a model of them is wanted, side by side."""
        problems = self._problems(cost)
        without = folds.without_each(problems, self._n_folds, self.tolerance)
        solver = self._config.method.on_disk(without + problems * self._wants_model, self._config, self._data)
        try:
            both = self._complete(solver)
            tally = self._judge(solver, both.w[:, : len(without)], both.bias)
            n_bytes = solver.bytes_read
        finally:
            solver.close()
        classes = both.classes
        whole = _part_of(both, len(without)) if self._wants_model else None
        return Validation(cost, tally, self._by_fold(classes[: len(without)]), whole, both.stats.number, n_bytes, 0.0)

    # --- both

    def _complete(self, solver) -> Outcome:
        left = max(1e-3, self._deadline - time.perf_counter())
        return complete(solver, replace(self._config, time_limit=left))

    def _judge(self, solver, w: np.ndarray, bias: float) -> Tally:
        jury = Jury(self._data.description, self._n_folds, w, bias)
        with Pool(self._config.threads) as pool:
            for rows in solver.tables():
                jury.hear(rows, pool.map)
        return jury.tally

    def _by_fold(self, certificates: list[Certificate]) -> list[Certificate]:
        size = max(1, len(certificates) // self._n_folds)
        return [total_of(certificates[start : start + size]) for start in range(0, len(certificates), size)]


def _part_of(outcome: Outcome, first: int) -> Outcome:
    """Of several problems, those from this one on."""
    classes = outcome.classes[first:]
    known = total_of(classes) if classes else None
    stats = replace(outcome.stats, primal=known.primal, dual=known.dual, gap=known.relative_gap) if known else (
        outcome.stats)  # fmt: skip
    return replace(outcome, w=outcome.w[:, first:], classes=classes, certificate=known, stats=stats)


def best_multiples(groups: list[State], most: tuple[float, float]) -> tuple[float, float]:
    """(s, t), 0 <= s, t and each at most so much, where D(s a + t b) is largest, a and b being the alphas of two states
    of the same problem: s A + t B - (s^2 (w_a.w_a + Q_a) + 2 s t w_a.w_b + t^2 (w_b.w_b + Q_b)) / 2, Q = sum d a^2."""
    sums = [group["sum_alpha"] for group in groups]
    squares = [dot(group.w, group.w) + 2 * group["sum_square"] for group in groups]
    both, found = dot(groups[0].w, groups[1].w), [1.0, 1.0]
    for number in range(2 * ROUNDS):  # one after the other: D is concave
        own, other = number % 2, 1 - number % 2
        best = (sums[own] - found[other] * both) / squares[own] if squares[own] > 0 else 1.0
        found[own] = min(max(best, 0.0), most[own])
    return found[0], found[1]


def first_cost(description: Description, config: Config) -> float:
    """A power of two so small that all alphas are C: from there on down, w only becomes shorter."""
    bias = bias_of(config, description.largest_norm)
    longest = description.largest_norm**2 + bias**2
    weights = [config.weights.get(name, 1.0) for name in description.labels]
    total = sum(map(operator.mul, weights, description.label_counts.tolist())) if len(weights) == 2 else (
        description.n_rows * max(1.0, *weights))  # fmt: skip
    return 2.0 ** math.floor(-math.log2(max(total * longest, 1e-300)))


def search(validator: Validator, start: float, metric: str, rule: str, on_value: Callable) -> Validation:
    """Up from this C by factors of 4, then 2 around the best. The one that is chosen: the best, or, by the rule "1se",
    the smallest C that is no further below than a standard error."""
    tried, cost, reached, first, idle = {}, start, -math.inf, math.inf, 0

    def attempt(cost: float) -> Validation:
        tried[cost] = validator.run(cost)
        on_value(tried[cost])
        return tried[cost]

    while cost <= LARGEST_COST and idle < PATIENCE:
        tally = attempt(cost).tally
        first = min(first, tally.score(metric))
        if tally.score(metric) > reached + GAIN * tally.spread(metric):
            reached, idle = tally.score(metric), 0
        elif reached > first or cost >= 1:  # before, all models may say the same of every row
            idle += 1
        cost *= UP
    best = _best(tried, metric)
    for cost in (best.cost / AROUND, best.cost * AROUND):
        attempt(cost)
    best = _best(tried, metric)
    if rule == "min":
        return best
    enough = best.tally.score(metric) - best.tally.spread(metric)
    return min((one for one in tried.values() if one.tally.score(metric) >= enough), key=lambda one: one.cost)


def _best(tried: dict[float, Validation], metric: str) -> Validation:
    return max(tried.values(), key=lambda one: (one.tally.score(metric), -one.cost))
