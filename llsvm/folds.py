"""Cross-validation: problems that leave a fold of the rows out each, and what their models say of it.

A row's code is label + n_labels * fold (reader.divide). So a problem without the rows of a fold differs from the one of
all rows in its table alone, and those of all folds are trained from one read of the data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llsvm.core import Description, label_order
from llsvm.evaluate import products
from llsvm.problem import Problem

GAP = 1e-2  # to which the problems of folds are trained: a smaller one changes their errors by less than their spread


def without_each(problems: list[Problem], n_folds: int, tolerance: float) -> list[Problem]:
    """These problems without the rows of fold 0, then without those of fold 1, and so on."""
    return [replace(problem, n_folds=n_folds, held_out=fold, tolerance=tolerance, loss_at_zero=np.inf)
            for fold in range(n_folds) for problem in problems]  # fmt: skip


def of_all_rows(problems: list[Problem], n_folds: int) -> list[Problem]:
    return [replace(problem, n_folds=n_folds) for problem in problems]


class Tally:
    """What is said of held-out rows: rows, those for which a label was chosen, and those for which it was right, each
    an array (folds, labels)."""

    def __init__(self, n_folds: int, n_labels: int):
        self.rows, self.chosen, self.right = (np.zeros((n_folds, n_labels), np.int64) for _ in range(3))

    def add(self, fold: int, labels: np.ndarray, choices: np.ndarray) -> None:
        for counts, of in (self.rows, labels), (self.chosen, choices), (self.right, labels[labels == choices]):
            counts[fold] += np.bincount(of, minlength=counts.shape[1])

    @property
    def n_rows(self) -> int:
        return int(self.rows.sum())

    def score(self, metric: str, fold: int | None = None) -> float:
        """Of all held-out rows together, or of those of one fold, between 0 and 1."""
        counts = (self.rows, self.chosen, self.right)
        return METRICS[metric](*(of.sum(0) if fold is None else of[fold] for of in counts))

    def spread(self, metric: str) -> float:
        """The standard error of the scores of the folds."""
        scores = [self.score(metric, fold) for fold in range(len(self.rows))]
        return float(np.std(scores, ddof=1) / len(scores) ** 0.5)


def _accuracy(rows, chosen, right) -> float:
    return right.sum() / max(1, rows.sum())


def _balanced(rows, chosen, right) -> float:
    """The mean over the labels that occur of the part of their rows that was right."""
    return float((right[rows > 0] / rows[rows > 0]).mean()) if rows.any() else 0.0


def _f1(rows, chosen, right) -> float:
    """2 right / (rows + chosen), the harmonic mean of precision and recall: its mean over the labels."""
    occur = rows + chosen > 0
    return float((2 * right[occur] / (rows + chosen)[occur]).mean()) if occur.any() else 0.0


METRICS = {"accuracy": _accuracy, "balanced": _balanced, "f1": _f1}


class Jury:
    """The models of all folds: each judges the rows that it has not seen."""

    def __init__(self, description: Description, n_folds: int, w: np.ndarray, bias: float):
        """w: (features + 1, folds * columns), the columns of fold 0 first."""
        self._w, self._bias = np.ascontiguousarray(w.T), bias
        self._n_folds, self._n_labels = n_folds, len(description.labels)
        self._order = np.array([description.labels.index(name) for name in label_order(description.labels)])
        self._kind, self.tally = np.zeros(1, description.dtype), Tally(n_folds, self._n_labels)

    def hear(self, rows, run=map) -> None:
        """Judges these rows. run: map, or that of a pool of threads."""
        codes = rows["code"]

        def judge(fold):
            slots = np.flatnonzero(codes // self._n_labels == fold)
            self.tally.add(fold, codes[slots] % self._n_labels, self._choose(rows, slots, fold))

        list(run(judge, range(self._n_folds)))

    def _choose(self, rows, slots, fold: int) -> np.ndarray:
        """The labels that a model chooses, as llsvm-predict does."""
        n_columns = len(self._w) // self._n_folds
        best, chosen = np.full(len(slots), -np.inf), np.zeros(len(slots), np.int64)
        for place in range(n_columns):
            w = self._w[fold * n_columns + (self._order[place] if n_columns > 1 else 0)]
            scores = products(rows, slots, w, self._bias, self._kind)
            if n_columns == 1:
                return self._order[(scores <= 0).astype(np.int64)]
            better = scores > best
            best[better], chosen[better] = scores[better], self._order[place]
        return chosen
