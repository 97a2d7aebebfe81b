"""Read-only looks at a model: losses, objectives, scores, accuracy."""

from __future__ import annotations

import numpy as np

from llsvm import _evaluate

FACTORS = np.arange(_evaluate.N_FACTORS) / 256
NUMBER_BYTES = 26

dot, loss_of_scores = _evaluate.dot, _evaluate.loss_of_scores


def total_loss(rows, w, problem, kind) -> float:
    """sum_i loss_i at w over rows in memory."""
    return _evaluate.losses(rows, w, problem.bias, problem.codes, kind)


def products(rows, slots, w, bias: float, kind) -> np.ndarray:
    """w.x of the rows in these slots."""
    out = np.empty(len(slots))
    _evaluate.products(rows, slots, w, bias, out, kind)
    return out


def along_ray(rows, w, problem, kind) -> np.ndarray:
    """What the losses of rows at any multiple of w are made of, to be summed over all rows."""
    sums = np.zeros((len(FACTORS), 3))
    _evaluate.ray(rows, w, problem.bias, problem.codes, sums, kind)
    return sums


def best_multiple(sums: np.ndarray, w, squared_loss: bool, zero: bool = True) -> tuple[float, float]:
    """The factor, from 0 (unless zero may not be) to 2, by which w has the smallest primal value, and that value:
    infinity where none can be computed."""
    with np.errstate(over="ignore", invalid="ignore"):
        costs, products, squares = np.cumsum(sums[::-1], 0)[::-1].T
        losses = costs - (1 + squared_loss) * products * FACTORS + squared_loss * squares * FACTORS**2
        primals = 0.5 * dot(w, w) * FACTORS**2 + losses
    primals[~np.isfinite(primals)] = np.inf
    first = 0 if zero else 1
    best = first + int(primals[first:].argmin())
    return float(FACTORS[best]), float(primals[best])


class Predictor:
    """Applies a model to rows given by feature ids."""

    def __init__(self, model):
        self.model = model
        self.two_class = model.n_columns == 1
        if len(model.labels) != (2 if self.two_class else model.n_columns):
            raise ValueError(f"{len(model.labels)} labels for {model.n_columns} columns of weights")
        self._ids = np.zeros(1, np.int64) if model.ids is not None and not len(model.ids) else model.ids  # no id is 0
        offset = np.zeros(model.n_columns) if model.bias_weights is None else model.bias * model.bias_weights
        self._weights, self._offset = np.ascontiguousarray(model.weights), np.ascontiguousarray(offset)
        self._name(model.labels)

    def _name(self, labels: list[str]) -> None:
        names = [name.encode("utf-8", "surrogateescape") for name in labels]
        self._names = np.frombuffer(b"".join(names), np.uint8)
        self._name_ends = np.cumsum([0, *map(len, names)])
        self._codes = {name: code for code, name in enumerate(labels)}

    def scores(self, ids, values, indptr) -> np.ndarray:
        """Decision values, a column a class, one column where two classes share a weight vector."""
        if self._ids is not None:
            places = np.searchsorted(self._ids, ids)
            places[places == len(self._ids)] = 0
            ids = np.where(self._ids[places] == ids, places + 1, 0)
        out = np.empty((len(indptr) - 1, self.model.n_columns))
        _evaluate.scores(ids, values, indptr, self._weights, self._offset, out)
        return out

    def choose(self, scores: np.ndarray) -> np.ndarray:
        """The label number of each row (int32)."""
        if self.two_class:
            return (scores[:, 0] <= 0).astype(np.int32)
        return scores.argmax(1).astype(np.int32)

    def lines(self, choices, scores=None) -> bytes:
        """One line a row: the label and, if scores are given, a decision value for every label."""
        if scores is None:
            columns = np.empty((len(choices), 0))
        else:
            columns = np.column_stack([scores, -scores]) if self.two_class else scores
        width = int(np.diff(self._name_ends).max()) + 1 + NUMBER_BYTES * columns.shape[1]
        out = np.empty(max(1, len(choices) * width), np.uint8)
        return out[: _evaluate.write_lines(choices, self._names, self._name_ends, columns, out)].tobytes()

    def count_known(self, ids) -> int:
        """How many of these ids are the model's."""
        if self.model.ids is None:
            return int((ids <= self.model.n_ids).sum())
        return int(np.isin(ids, self.model.ids).sum())

    def count_correct(self, choices, codes, names) -> int:
        """How many choices equal the true labels: codes into names."""
        truth = np.array([self._codes.get(name, -1) for name in names], np.int32)
        return int((truth[codes] == choices).sum())
