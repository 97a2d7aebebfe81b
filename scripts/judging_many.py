"""What a linear model of many classes is worth, by NumPy alone from the text in float64; of two, see judging.py.

    ovr    sum_m |w_m|^2 / 2 + C sum_i sum_m max(0, 1 - y_im w_m.x_i)       y_im = 1 if m is the class of i, else -1
    cs     sum_m |w_m|^2 / 2 + C sum_i max_m max(0, 1 - (w_y - w_m).x_i)    y is the class of i, m another
    ww     sum_m |w_m|^2 / 2 + C sum_i sum_m max(0, 1 - (w_y - w_m).x_i)
"""

from pathlib import Path
from typing import Any, NamedTuple

import judging


class Linear(NamedTuple):
    """A model: numeric labels, weights (feature ids from 1, columns), the weights of the bias as a feature of value 1.

    Two classes may share a column, a positive score then meaning the first.
    """

    labels: Any
    W: Any
    bias: Any


def read_model(path):
    """A model file, ours or LIBLINEAR's."""
    import numpy as np

    head, _, body = Path(path).read_text().partition("\nw\n")
    header = dict(line.split(None, 1) for line in head.splitlines())
    labels = np.array(header["label"].split(), dtype=np.float64)
    n_features, bias = int(header["nr_feature"]), float(header["bias"])
    n_columns = len(body.split("\n", 1)[0].split())
    count = (n_features + (bias >= 0)) * n_columns
    weights = np.fromstring(body, sep=" ", count=count).reshape(-1, n_columns)
    return Linear(labels, weights[:n_features], bias * weights[n_features] if bias >= 0 else np.zeros(n_columns))


def from_training(data, weights, bias):
    """The model of what llsvm.train gives for this data: weights by feature number, the bias last."""
    import numpy as np

    from llsvm.core import label_order

    ids = data.feature_ids()
    W = np.zeros((int(ids.max(initial=0)), weights.shape[1]))
    W[ids - 1] = weights[: len(ids)]
    labels = np.array(label_order(data.description.labels), dtype=np.float64)
    return Linear(labels, W, max(bias, 0.0) * weights[-1])


def scores(path, model):
    """w_m.x_i of every row and column, and the labels of the rows."""
    import numpy as np

    labels, rows, features, values = judging.load(str(path))
    W = np.zeros((model.W.shape[1], max(len(model.W), int(features.max(initial=-1)) + 1)))
    W[:, : len(model.W)] = model.W.T
    columns = [np.bincount(rows, values * w[features], len(labels)) for w in W]
    return model.bias + np.column_stack(columns), labels


def objective(path, model, C, formulation):
    import numpy as np

    found, labels = scores(path, model)
    own = labels[:, None] == model.labels[: found.shape[1]]
    if formulation == "ovr":
        losses = np.maximum(0, 1 - np.where(own, found, -found))
    else:
        losses = np.where(own, 0, np.maximum(0, 1 - (found[own][:, None] - found)))
    loss = losses.max(1).sum() if formulation == "cs" else losses.sum()
    return float((np.square(model.W).sum() + np.square(model.bias).sum()) / 2 + C * loss)


def accuracy(path, model):
    """The share of rows that are right, in percent."""
    import numpy as np

    found, labels = scores(path, model)
    found = np.hstack([found, -found]) if found.shape[1] == 1 else found
    return 100 * float(np.mean(model.labels[found.argmax(1)] == labels))


def objective_of_file(path, model, C, formulation):
    return objective(path, read_model(model), C, formulation)
