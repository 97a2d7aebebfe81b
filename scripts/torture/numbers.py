"""Values and C from 1e-300 to 1e300, bias to 3e38: what a model says of itself, by NumPy and against LIBLINEAR."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np

from llsvm.options import LARGEST_BIAS
from torture import commands, data
from torture.part import Finding, Part

BATCH = 5
EXACT = ["dual", "dual", "dual-l2", "dual-l2", "cs", "ww"]
SOLVERS = [*EXACT, "block", "shrink", "pegasos", "stream"]
LIBLINEAR = {"dual": 3, "dual-l2": 1, "cs": 4, "block": 3, "shrink": 3, "pegasos": 3, "stream": 1}
ROUNDING, EPSILON = 1e-6, 2.0**-52


def any_scale(random: Random) -> float:
    """1, something usual, something odd, or anything."""
    kind = random.randrange(6)
    if kind < 3:
        return 1.0 if kind == 0 else 10 ** random.uniform(-4, 4)
    return 10 ** (random.uniform(-20, 20) if kind < 5 else random.uniform(-300, 300))


def primal(X, codes, w, solver: str, C: float) -> tuple[float, float]:
    """P(w), and what rounding can make of it: one against the rest summed over the columns of w, cs and ww as README
    writes them. X has the bias."""
    scores, regular = X @ w, 0.5 * (w * w).sum()
    own = codes[:, None] == np.arange(w.shape[1])
    if solver in ("cs", "ww"):
        margins = np.where(own, 0, 1 - (scores[np.arange(len(codes)), codes][:, None] - scores))
    else:
        margins = 1 - np.where(own, 1.0, -1.0) * scores
    error = 8 * EPSILON * (1 + (np.abs(X) @ np.abs(w)).max(1, keepdims=True)) * len(w) ** 0.5
    values = []
    for losses in (np.maximum(0, margins), np.maximum(0, margins + error)):
        if solver in ("dual-l2", "stream"):
            losses = losses**2
        values.append(regular + C * (losses.max(1) if solver == "cs" else losses).sum())
    return values[0], values[1] - values[0] + ROUNDING * values[0]


def by_liblinear(X, codes, number: int, C: float, bias: float, columns: int):
    """w, the bias's last, a column a class; the first label that LIBLINEAR sees is that of the first row."""
    from liblinear.liblinearutil import problem, train

    rows = [dict(enumerate(row.tolist(), 1)) for row in X]
    model = train(problem(codes.tolist(), rows, bias), f"-s {number} -c {C!r} -e 1e-4 -q")
    has_bias, labels = bias >= 0, model.get_labels()
    w = np.array(model.w[: (X.shape[1] + has_bias) * columns]).reshape(-1, columns)
    if columns == 1:
        return w if labels[0] == 0 else -w
    return w[:, np.argsort(labels)]


class Numbers(Part):
    name = "numbers"
    promise = "Whatever the scale: P is what NumPy computes, D is not above it nor LIBLINEAR's, nothing is NaN."

    def cases(self, random: Random):
        for _ in range(BATCH):
            self._try(random)
            yield

    def _try(self, random: Random) -> None:
        folder, solver = self.fresh(), random.choice(SOLVERS)
        n_classes = random.choice([2, 2, 3, 5]) if solver != "block" else 2
        if solver in ("cs", "ww"):
            n_classes = max(3, n_classes)
        X, codes = self._rows(random, n_classes)
        C, bias = any_scale(random), random.choice([-1.0, -1.0, 1.0, min(any_scale(random), LARGEST_BIAS)])
        text = folder / "data.txt"
        self._write(text, X, codes)
        tolerance = random.choice(["0.1", "1e-3", "1e-6"])
        words = ["llsvm-train", "-q", "-s", solver, "-c", repr(C), "-B", repr(bias), "-e", tolerance, "--max-passes",
                 300, "--precision", "float64", "--threads", random.choice([1, 2]), text, folder / "model"]
        how = f"{X.shape}, {n_classes} classes, largest value {np.abs(X).max():.3g}, C {C:.3g}, bias {bias:.3g}"
        try:
            ended = commands.decent(commands.call(*words), (0, 1))
            if ended.code == 0:
                self._judge(folder / "model", X, codes, solver, C, bias, words)
        except Finding as found:
            raise Finding(f"{solver}: {found.kind}", f"{how}\n{' '.join(map(str, words))}\n{found.seen}") from None

    def _rows(self, random: Random, n_classes: int):
        rng = np.random.default_rng(random.getrandbits(32))
        n_rows, n_features = random.choice([6, 20, 60]), random.choice([1, 3, 10])
        X = rng.uniform(-1, 1, (n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.8)
        kind = random.randrange(4)
        if kind == 1:
            X = np.floor(np.abs(X) * 256)
        scale = min(any_scale(random), 1e300)
        X = X * scale
        if kind == 2:
            X *= 10.0 ** rng.integers(-6, 7, n_features)
        codes = rng.integers(0, n_classes, n_rows)
        codes[:n_classes] = np.arange(n_classes)
        if random.random() < 0.5:
            codes = np.where(rng.random(n_rows) < 0.7, (X @ rng.uniform(-1, 1, n_features) > 0).astype(int), codes)
            codes[:n_classes] = np.arange(n_classes)
        return X, codes

    @staticmethod
    def _write(path: Path, X, codes) -> None:
        with open(path, "w") as file:
            for row, code in zip(X, codes.tolist(), strict=True):
                pairs = "".join(f" {k}:{value!r}" for k, value in enumerate(row.tolist(), 1) if value)
                file.write(f"{code + 1}{pairs}\n")

    def _judge(self, path: Path, X, codes, solver: str, C: float, bias: float, words) -> None:
        model, said = data.read_model(path), data.read_model(path).info["certificate"]
        order = [int(label) - 1 for label in model.labels]  # the class of each column
        if len(order) == 2 and model.w.shape[1] == 1:
            codes = np.where(codes == order[0], 0, 1)
        else:
            codes = np.argsort(order)[codes]
        columns = model.w.shape[1]
        X = np.pad(X, [(0, 0), (0, 0)])[:, : len(model.w)] if len(model.w) < X.shape[1] else X
        features = X if bias < 0 else np.column_stack([X, np.full(len(X), bias)])
        w = np.zeros((X.shape[1], columns))
        w[: len(model.w)] = model.w
        w = w if bias < 0 else np.vstack([w, model.bias_w])
        if not np.isfinite(w).all():
            raise Finding("weights that are no numbers", str(said))
        if said.get("primal") is None or not math.isfinite(said["primal"]):
            return
        with np.errstate(all="ignore"):
            (P, error), D = primal(features, codes, w, solver, C), said["dual"]
        if not math.isfinite(P):
            return
        if math.isnan(D) or abs(P - said["primal"]) > error:
            raise Finding("P is not what NumPy computes", f"{P!r}, {said}")
        if P + error < D:
            raise Finding("D is above P", f"{P!r}, {said}")
        if solver in LIBLINEAR:
            with np.errstate(all="ignore"):
                theirs = by_liblinear(X, codes, LIBLINEAR[solver], C, bias, columns)
                best, error = primal(features, codes, theirs, solver, C)
            if math.isfinite(best) and best + error < D:
                raise Finding("D is above LIBLINEAR's P", f"ours {said}, LIBLINEAR's P {best!r}")
