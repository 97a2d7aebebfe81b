"""scikit-learn and Snap ML in a child process: all of fit() is timed, on a matrix that needs no conversion beforehand.

The problem is that of `llsvm-train -B 1`: rows get a last feature of value 1, and no intercept. C is C for LinearSVC,
1/C the regularizer of Snap ML, 1/(C l) the alpha of SGDClassifier, for l rows.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import judging
import peers

DENSE = 0.5  # share of nonzeros from which on a matrix is given as a dense one
SEED = 1


def save_csr(path, folder):
    """The matrix of a text, as files."""
    import numpy as np

    labels, rows, features, values = judging.load(path)
    indptr = np.searchsorted(rows, np.arange(len(labels) + 1)).astype(np.int32)
    for name, array in {"y": labels, "data": values, "indices": features, "indptr": indptr}.items():
        np.save(Path(folder, name), array)


def load_csr(folder):
    import numpy as np
    import scipy.sparse

    y, data, indices, indptr = (np.load(Path(folder, f"{name}.npy")) for name in ("y", "data", "indices", "indptr"))
    return scipy.sparse.csr_matrix((data, indices, indptr)), y


def linear_svc(C, n_rows, threads):
    from sklearn.svm import LinearSVC

    return LinearSVC, {"loss": "hinge", "C": C, "fit_intercept": False, "random_state": SEED}


def sgd(C, n_rows, threads):
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier, {"loss": "hinge", "alpha": 1 / (C * n_rows), "fit_intercept": False, "random_state": SEED}


def snap(C, n_rows, threads):
    from snapml import SupportVectorMachine

    return SupportVectorMachine, {"loss": "hinge", "regularizer": 1 / C, "n_jobs": threads, "random_state": SEED}


PACKAGE = {linear_svc: "sklearn", sgd: "sklearn", snap: "snapml"}
SOURCE = {"sklearn": "scikit-learn", "snapml": "snapml"}


def installed(method):
    return importlib.util.find_spec(PACKAGE[method]) is not None


def command(method, csr, C, threads, target):
    """Fits the matrix of a folder; the weights go to target."""
    words = [sys.executable, __file__, method.__name__, str(csr), str(C), str(threads), str(target)]
    return peers.Command(words, own_clock=lambda output: json.loads(output)["seconds"])


def shown(output):
    """What was fitted, from the output of a command."""
    return json.loads(output)["call"]


def fit(method, csr, C, threads, target):
    import numpy as np
    import scipy.sparse

    X, y = load_csr(csr)
    is_dense = X.nnz >= DENSE * X.shape[0] * X.shape[1]
    X = scipy.sparse.hstack([X, np.ones((len(y), 1))], format="csr", dtype=np.float32 if method is snap else float)
    if is_dense:
        X = X.toarray()
    kind, parameters = method(C, len(y), threads)
    classifier = kind(**parameters)
    began = time.perf_counter()
    classifier.fit(X, y)
    seconds = time.perf_counter() - began
    w = np.ravel(classifier.coef_).astype(float)
    np.savez(target, positive=classifier.classes_[1], w=w[:-1], bias=w[-1])
    given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
    return {"seconds": seconds, "call": f"{kind.__name__}({given}).fit(X, y)"}


if __name__ == "__main__":
    name, csr, C, threads, target = sys.argv[1:]
    method = {method.__name__: method for method in PACKAGE}[name]
    print(json.dumps(fit(method, csr, float(C), int(threads), target)))
