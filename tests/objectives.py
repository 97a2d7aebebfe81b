"""What training minimises, by NumPy alone, and the optimum by the word of others: LIBLINEAR, and SciPy for ww.

A w is a matrix: a row a feature, one more for the bias where there is one; a column a problem. Of two classes there is
one problem, where a positive score means the first, else one a class. loss: "hinge" or "squared" (one against the
rest), "cs" or "ww".
"""

import numpy as np
import scipy.optimize
import scipy.sparse
from liblinear import liblinearutil

from llsvm.solvers import SOLVERS

NUMBERS = {"hinge": 3, "squared": 1, "cs": 4}  # LIBLINEAR's
LOSSES = {name: name if name in ("cs", "ww") else "squared" if method.squared_loss else "hinge"
          for name, method in SOLVERS.items()}  # fmt: skip


def classes_of(labels):
    """The labels as models list them: in the order of first occurrence, but -1 never before 1."""
    names = list(dict.fromkeys(map(str, labels)))
    return ["1", "-1"] if names == ["-1", "1"] else names


def signs_and_costs(labels, classes, C=1.0, weights=None):
    """Y[k, i] and C[k, i] of row i in problem k: one of two classes, else one for each against the rest, as LIBLINEAR
    poses them."""
    labels, weights = np.array([str(label) for label in labels]), weights or {}
    positives = classes[:1] if len(classes) == 2 else classes
    Y = np.array([np.where(labels == positive, 1.0, -1.0) for positive in positives])
    own = np.array([weights.get(label, 1.0) for label in labels])
    return Y, C * (own[None, :] if len(classes) == 2 else np.where(Y > 0, own, 1.0))


def scores(X, w, bias=-1.0):
    """X w, a column a problem."""
    return X @ w[:-1] + bias * w[-1] if len(w) > X.shape[1] else X @ w


def primals(loss, X, labels, classes, w, C=1.0, weights=None, bias=-1.0):
    """P(w) of every problem, with the bias as one more feature; cs and ww are one problem."""
    found = scores(X, w, bias)
    if loss in ("cs", "ww"):
        own, weights = np.array([classes.index(str(label)) for label in labels]), weights or {}
        slack = np.maximum(0, 1 - found[np.arange(len(own)), own][:, None] + found)
        slack[np.arange(len(own)), own] = 0
        costs = C * np.array([weights.get(str(label), 1.0) for label in labels])
        return np.array([0.5 * (w**2).sum() + costs @ (slack.sum(1) if loss == "ww" else slack.max(1))])
    Y, costs = signs_and_costs(labels, classes, C, weights)
    losses = np.maximum(0, 1 - Y * found.T) ** (2 if loss == "squared" else 1)
    return 0.5 * (w**2).sum(0) + (costs * losses).sum(1)


def objective(X, labels, model, C=1.0, weights=None, loss="hinge"):
    """The sum of P over the problems of a model."""
    w = model.matrix(X.shape[1])
    return primals(loss, X, labels, model.labels, w, C, weights, model.bias).sum()


def multiples(factors, X, y, costs, w, bias=0.0, squared=False):
    """P of multiples of the w of one problem, a vector that ends with the weight of the bias."""
    margins = y * (X @ w[:-1] + bias * w[-1])
    losses = np.maximum(0, 1 - np.outer(factors, margins)) ** (2 if squared else 1)
    return 0.5 * np.asarray(factors) ** 2 * (w @ w) + losses @ costs


def train_liblinear(loss, X, labels, C=1.0, weights=None, bias=-1.0, tolerance=1e-8):
    """LIBLINEAR's w for these labels, in the order of classes_of, whose values are float64. It gives up after 300
    rounds, so that its objective may be above the optimum, never below."""
    classes, numbers = classes_of(labels), {}
    for label in labels:  # 1 and -1 are LIBLINEAR's own names for what it lists first and second
        numbers.setdefault(str(label), len(numbers))
    if len(classes) == 2:
        numbers = dict(zip(classes, (1, -1), strict=True))
    factors = " ".join(f"-w{numbers[label]} {float(factor)!r}" for label, factor in (weights or {}).items())
    y = [float(numbers[str(label)]) for label in labels]
    model = liblinearutil.train(y, scipy.sparse.csr_matrix(X, dtype=float),
                                f"-s {NUMBERS[loss]} -c {C!r} -B {float(bias)!r} -e {tolerance!r} {factors} -q")
    n_columns = 1 if len(classes) == 2 and loss != "cs" else len(classes)
    w = np.array(model.w[: (X.shape[1] + (bias >= 0)) * n_columns]).reshape(-1, n_columns)
    found = [classes.index(name) for number in model.get_labels() for name in classes if numbers[name] == number]
    if n_columns == 1:
        return w if found[0] == 0 else -w
    return w[:, np.argsort(found)]


def liblinear_primals(loss, X, labels, C=1.0, weights=None, bias=-1.0, tolerance=1e-8):
    """P, by problem, of what LIBLINEAR finds."""
    w = train_liblinear(loss, X, labels, C, weights, bias, tolerance)
    return primals(loss, X, labels, classes_of(labels), w, C, weights, bias)


def least(loss, X, labels, C=1.0, weights=None, bias=-1.0):
    """P, by problem, of the best w that somebody else finds: at least the optimum, and nearly so. One of eight runs of
    LIBLINEAR's, which are random, ends a ten thousandth above it."""
    if loss != "ww":
        return np.min([liblinear_primals(loss, X, labels, C, weights, bias) for _ in range(3)], axis=0)
    full = scipy.sparse.hstack([X, np.full((X.shape[0], 1), bias)]).tocsr() if bias >= 0 else scipy.sparse.csr_matrix(X)
    w = train_weston(full, labels, C, weights)
    return primals(loss, X, labels, classes_of(labels), w, C, weights, bias)


def train_weston(X, labels, C=1.0, weights=None):
    """w of Weston and Watkins by L-BFGS-B on the dual, in its box: alphas a_i^m of the classes m that are not y_i, each
    at most C_i; w_{y_i} gains them, w_m loses them."""
    classes = classes_of(labels)
    own, n_rows = np.array([classes.index(str(label)) for label in labels]), len(labels)
    costs = C * np.array([(weights or {}).get(str(label), 1.0) for label in labels])
    bounds = np.repeat(costs[:, None], len(classes), 1)
    bounds[np.arange(n_rows), own] = 0

    def weights_of(a):
        table = -a.reshape(n_rows, -1)
        table[np.arange(n_rows), own] = -table.sum(1)
        return X.T @ table

    def minus_dual(a):
        w = weights_of(a)
        products = X @ w
        return 0.5 * (w**2).sum() - a.sum(), (products[np.arange(n_rows), own][:, None] - products).ravel() - 1

    found = scipy.optimize.minimize(minus_dual, np.zeros(bounds.size), jac=True, method="L-BFGS-B",
                                    bounds=[(0, bound) for bound in bounds.ravel()],
                                    options={"maxiter": 20000, "maxfun": 100000, "ftol": 1e-15, "gtol": 1e-8})
    return weights_of(found.x)


def dense_optimum(loss, X, labels, C):
    """The optimum of few dense rows, by SciPy from the matrix of all products: alphas a_i^m >= 0 of the classes m that
    are not y_i, by row at most C in all (cs) or each (ww); w_{y_i} gains them, w_m loses them."""
    classes = classes_of(labels)
    y = [classes.index(str(label)) for label in labels]
    pairs = [(row, m) for row in range(len(y)) for m in range(len(classes)) if m != y[row]]
    basis = np.zeros((len(pairs), len(classes), X.shape[1]))
    for place, (row, m) in enumerate(pairs):
        basis[place, y[row]], basis[place, m] = X[row], -X[row]
    Q = np.tensordot(basis, basis, axes=([1, 2], [1, 2]))
    by_row = np.array([[row == own for row, _ in pairs] for own in range(len(y))], float)
    limits = [scipy.optimize.LinearConstraint(by_row, -np.inf, C)] if loss == "cs" else ()
    found = scipy.optimize.minimize(
        lambda a: 0.5 * a @ Q @ a - a.sum(), np.zeros(len(pairs)), jac=lambda a: Q @ a - 1,
        bounds=[(0, C)] * len(pairs), constraints=limits, method="SLSQP" if loss == "cs" else "L-BFGS-B",
        options={"maxiter": 20000, "ftol": 1e-14},
    )  # fmt: skip
    return -found.fun
