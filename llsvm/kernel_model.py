"""Models of kernel machines: LIBSVM's text format, and behind the support vectors, where it stops reading, our line.

    svm_type c_svc
    kernel_type rbf
    gamma 4
    nr_class 2
    total_sv 400
    rho -0.25                  the bias with the other sign, of every pair of classes
    label 1 -1
    nr_sv 400 0                by class
    SV
    0.5 1:0.1 2:0.7            coefficients, one for every other class, and the vector
    llsvm 0a1b2c3d {...}       CRC-32 of all the rest; names of labels, certificate, how it was trained

LIBSVM's classes meet one against one. A machine of ours has a function f_m + b_m for each of several classes, of the
same pivots: written once a class, they make f_i - f_j the decision of LIBSVM's pair (i, j), so that its votes elect the
class with the largest value.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from llsvm import model as models
from llsvm import model_facts
from llsvm.core import DataError, check_labels, quoted
from llsvm.evaluate import Predictor
from llsvm.files import Output
from llsvm.kernels import LINEAR, NAMES, POLYNOMIAL, Kernel, Landmarks, Rows

FIRST = b"svm_type "
WORDS = {"linear": 0, "polynomial": 1, "rbf": 2}
NAMED = ("svm_type", "kernel_type", "degree", "gamma", "coef0", "nr_class", "total_sv", "rho", "label", "nr_sv", "SV",
         "probA", "probB", "prob_density_marks")  # fmt: skip
ONE_VS_REST = "one against the rest"
REFUSED = {"one_class": "a one-class model", "epsilon_svr": "a regression model", "nu_svr": "a regression model",
           "sigmoid": "its kernel is sigmoid, which is none (not positive semidefinite)",
           "precomputed": "its kernel was computed beforehand"}  # fmt: skip
MOST_CLASSES = 1000  # of one-against-one models: a million decision values a row is no prediction
DIGITS = "%.17g"


@dataclass
class KernelModel:
    """Decision values K(x, vectors) coefs + offsets. vectors have feature ids (from 1) for features.

    pairs: the columns are those of LIBSVM's pairs of classes, which vote; else one a class, or one for two classes,
    where a positive value means labels[0].
    """

    kernel: Kernel
    labels: list[str]
    vectors: Rows
    coefs: np.ndarray
    offsets: np.ndarray
    pairs: bool = False
    zero_based: bool = False
    info: dict = field(default_factory=dict)

    solver_type = "c_svc"

    @property
    def n_columns(self) -> int:
        return self.coefs.shape[1]

    @property
    def n_ids(self) -> int:
        return int(self.vectors.features.max(initial=0))


def save(model: KernelModel, output: Output) -> None:
    """Of one function a class, or one for two classes."""
    crc = 0
    for part in _lines(model):
        crc = zlib.crc32(part, crc)
        output.write(part)
    facts = {"decisions": ONE_VS_REST, "biases": model.offsets.tolist()} if model.n_columns > 1 else {}
    ours = json.dumps({"labels": model.labels, "zero_based": model.zero_based, **facts, **model.info}).encode("ascii")
    output.write(b"%b%08x %b\n" % (model_facts.TRAILER, zlib.crc32(ours, crc), ours))
    output.commit()


def _lines(model: KernelModel):
    n, n_classes, kernel = len(model.vectors), len(model.labels), model.kernel
    groups = n_classes if model.n_columns > 1 else 1
    numbers = model_facts.numbers_of(model.labels)
    mark = model_facts.NEEDS_LAST_LINE if model.zero_based or groups > 1 or numbers != model.labels else ""
    yield "\n".join([
        "svm_type c_svc", f"kernel_type {kernel.name}",
        *(f"{name} {value}" for name, value in parameters(kernel).items()), f"nr_class {mark}{n_classes}",
        f"total_sv {n * groups}", "rho " + " ".join(DIGITS % rho for rho in _rhos(model.offsets)),
        "label " + " ".join(numbers), "nr_sv " + " ".join(map(str, [n] * groups if groups > 1 else [n, 0])), "SV", "",
    ]).encode("ascii")  # fmt: skip
    vectors = [_vector(model, place) for place in range(n)]
    for group in range(groups):
        # What a class has in its pairs with those before it counts the other way.
        signs = np.where(np.arange(groups - 1) < group, -1.0, 1.0) if groups > 1 else np.ones(1)
        for beta, vector in zip(model.coefs[:, group].tolist(), vectors, strict=True):
            yield (" ".join(DIGITS % (sign * beta) for sign in signs) + vector).encode("ascii")


def parameters(kernel: Kernel) -> dict[str, str]:
    """As LIBSVM writes them, those that the kernel has."""
    gamma, coef0 = DIGITS % kernel.gamma, DIGITS % kernel.coef0
    of_kinds = {POLYNOMIAL: {"degree": str(kernel.degree), "gamma": gamma, "coef0": coef0}, LINEAR: {}}
    return of_kinds.get(kernel.kind, {"gamma": gamma})


def _rhos(offsets: np.ndarray) -> list[float]:
    if len(offsets) == 1:
        return [-float(offsets[0])]
    return [float(b) - float(a) for a, b in combinations(offsets.tolist(), 2)]


def _vector(model: KernelModel, place: int) -> str:
    entries = slice(*model.vectors.indptr[place : place + 2])
    ids, values = model.vectors.features[entries] - model.zero_based, model.vectors.values[entries]
    pairs = sorted(zip(ids.tolist(), values.tolist(), strict=True))
    return "".join(f" {id}:{DIGITS % value}" for id, value in pairs) + " \n"


def load(path: str, threads: int = 1):
    """A Model, or a KernelModel where LIBSVM or a kernel machine of ours wrote it."""
    return models.load(path, threads, {FIRST: _load})


def _load(path: str, file) -> KernelModel:
    said, crc, n_lines = _header(path, file)
    try:
        kernel, labels, counts, rhos, needs_last = _checked(said)
    except ValueError as error:
        raise DataError(f"{path}: not a model of LIBSVM that can be used ({error})") from None
    shape = sum(counts), len(labels) - 1
    coefs, vectors, crc, rest = _support_vectors(path, file, shape, crc, n_lines)
    line = rest.lstrip(b" \t\r\n")
    if not line and needs_last:
        raise DataError(f"{path}: cut short, its last line is missing", model_facts.CUT)
    if line and not line.startswith(model_facts.TRAILER):
        raise DataError(f"{path}: more than {shape[0]} support vectors, or cut short in its last line", model_facts.CUT)
    info = model_facts.read_trailer(path, line, zlib.crc32(rest[: len(rest) - len(line)], crc)) if line else {}
    try:
        names, zero_based = model_facts.check_info(info, labels)
        decisions, biases = info.pop("decisions", None), info.pop("biases", None)
        vectors.features += zero_based
        if (vectors.features < 1).any() and line:
            raise ValueError("an id below the first")
        if decisions is None:
            return KernelModel(kernel, names, vectors, *_of_pairs(coefs, counts, rhos), len(labels) > 2, zero_based,
                               info)  # fmt: skip
        return KernelModel(kernel, names, *_of_classes(vectors, coefs, counts, rhos, biases), False, zero_based, info)
    except ValueError as error:
        raise DataError(f"{path}: damaged in its last line ({error})", model_facts.DAMAGED) from None


def _header(path: str, file) -> tuple[dict[str, str], int, int]:
    said, crc, n_lines = {}, 0, 0
    while "SV" not in said:
        line = file.readline(model_facts.LONGEST_LINE)
        if not line.endswith(b"\n") or n_lines == model_facts.MOST_LINES:
            raise DataError(f"{path}: not a model file, or cut short in its header")
        crc, n_lines = zlib.crc32(line, crc), n_lines + 1
        name, *value = line.decode("ascii", "replace").split(None, 1) or [""]
        if name and (name not in NAMED or name in said):
            raise DataError(f"{path}:{n_lines}: read '{quoted(name)}'" + " a second time" * (name in said)
                            + f", expected one of {', '.join(NAMED)}", model_facts.DAMAGED)
        said[name] = value[0].strip() if value else ""
    return said, crc, n_lines


def _checked(said: dict[str, str]):
    """Kernel, labels, support vectors by class, rho by pair, and whether our line is needed. ValueError says what is
    wrong."""
    def numbers(name, convert, count=None):
        words = said.get(name, "").split()
        if not words or (count is not None and len(words) != count):
            raise ValueError(f"bad or missing header: {name} {quoted(said.get(name, ''))}")
        try:
            found = [convert(word) for word in words]
        except ValueError:
            raise ValueError(f"bad header: {name} {quoted(said[name])}") from None
        if not all(abs(number) < float("inf") for number in found):
            raise ValueError(f"bad header: {name} {quoted(said[name])}")
        return found

    for name, allowed in (("svm_type", ("c_svc", "nu_svc")), ("kernel_type", NAMES)):
        if said.get(name) not in allowed:
            word = said.get(name, "")
            raise ValueError(REFUSED.get(word, f"{name} {quoted(word)}"))
    kind = WORDS[said["kernel_type"]]
    [gamma] = numbers("gamma", float, 1) if kind else [1.0]
    [degree], [coef0] = (numbers("degree", int, 1), numbers("coef0", float, 1)) if kind == POLYNOMIAL else ([3], [0.0])
    [n_classes], [total] = numbers("nr_class", int, 1), numbers("total_sv", int, 1)
    if not 2 <= n_classes <= MOST_CLASSES or total < 0 or not 0 <= degree <= 1 << 16:
        raise ValueError(f"nr_class {n_classes}, total_sv {total}, degree {degree}")
    labels = [str(label) for label in numbers("label", int, n_classes)]
    check_labels(labels)
    counts = numbers("nr_sv", int, n_classes)
    rhos = numbers("rho", float, n_classes * (n_classes - 1) // 2)
    if min(counts) < 0 or sum(counts) != total:
        raise ValueError(f"nr_sv {quoted(said['nr_sv'])}, total_sv {total}")
    return Kernel(kind, gamma, coef0, degree), labels, counts, rhos, said["nr_class"].startswith("0")


def _support_vectors(path: str, file, shape: tuple[int, int], crc: int, n_lines: int):
    """Coefficients, vectors, the CRC-32 so far, and what comes behind them."""
    where = file.tell()
    n_bytes = file.seek(0, 2) - where
    file.seek(where)
    if 2 * shape[0] * shape[1] > n_bytes:
        raise DataError(f"{path}: cut short, {shape[0]} support vectors expected", model_facts.CUT)
    coefs, lengths = np.empty(shape), np.empty(shape[0], np.int64)
    ids, values = [np.empty(0, np.int64)], [np.empty(0)]
    for number in range(shape[0]):
        line = file.readline(model_facts.LONGEST_LINE)
        if not line.endswith(b"\n") or line.startswith(model_facts.TRAILER):
            raise DataError(f"{path}: cut short, {shape[0]} support vectors expected, {number} found", model_facts.CUT)
        crc = zlib.crc32(line, crc)
        try:
            coefs[number], own_ids, own_values = _read_line(line, shape[1])
        except ValueError as error:
            raise DataError(f"{path}:{n_lines + number + 1}: read '{quoted(line.strip())}', expected {error}",
                            model_facts.DAMAGED) from None
        lengths[number] = len(own_ids)
        ids.append(own_ids)
        values.append(own_values)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return coefs, Rows(indptr, np.concatenate(ids), np.concatenate(values)), crc, file.read()


def _read_line(line: bytes, n_coefs: int):
    """Coefficients, ids and values of a support vector; ValueError says what should stand there."""
    words = line.split()
    expected = f"{n_coefs} coefficients and id:value pairs, the ids ascending, all numbers finite"
    pairs = b":".join(words[n_coefs:]).split(b":") if len(words) > n_coefs else []
    try:
        coefs = np.array(words[:n_coefs], np.float64)
        ids, values = np.array(pairs[::2], np.int64), np.array(pairs[1::2], np.float64)
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    right = len(coefs) == n_coefs and len(ids) == len(values) == len(words) - n_coefs
    finite = np.isfinite(coefs).all() and np.isfinite(values).all() and (np.abs(values) < 1e150).all()
    if not (right and finite and (np.diff(ids) > 0).all() and (ids >= 0).all()):
        raise ValueError(expected)
    return coefs, ids, values


def _of_pairs(coefs: np.ndarray, counts: list[int], rhos: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (vectors, pairs) and offsets of LIBSVM's decisions, class i against class j."""
    of_class = np.split(np.arange(len(coefs)), np.cumsum(counts)[:-1])
    pairs = list(combinations(range(len(counts)), 2))
    columns = np.zeros((len(coefs), len(pairs)))
    for column, (i, j) in enumerate(pairs):
        columns[of_class[i], column] = coefs[of_class[i], j - 1]
        columns[of_class[j], column] = coefs[of_class[j], i]
    return columns, -np.array(rhos)


def _of_classes(vectors: Rows, coefs: np.ndarray, counts: list[int], rhos: list[float], biases):
    """Vectors, coefficients (vectors, classes) and offsets of the functions that a file of pairs was made of."""
    n_classes, n = len(counts), counts[0]
    numbers = isinstance(biases, list) and all(isinstance(bias, float) and abs(bias) < np.inf for bias in biases)
    if not numbers or len(biases) != n_classes or n_classes < 3 or counts != [n] * n_classes:
        raise ValueError(f"{n_classes} functions of the same vectors are expected")
    offsets = np.array(biases)
    if _rhos(offsets) != rhos:
        raise ValueError("its biases are not those of the header")
    beta = np.column_stack([coefs[m * n : (m + 1) * n, -1 if m < n_classes - 1 else 0] for m in range(n_classes)])
    beta[:, -1] *= -1  # the last class is the second of all its pairs
    return vectors.part(0, n), np.ascontiguousarray(beta), offsets


class KernelPredictor(Predictor):
    """Applies a kernel model to rows given by feature ids."""

    def __init__(self, model: KernelModel):
        self.model, self.two_class = model, model.n_columns == 1
        self._name(model.labels)
        self._landmarks = Landmarks(model.vectors)
        self._coefs = self._landmarks.coefs(model.coefs)

    def scores(self, ids, values, indptr) -> np.ndarray:
        """Decision values, a column a class, or votes of LIBSVM's pairs; one column for two classes."""
        model = self.model
        rows = Rows(np.ascontiguousarray(indptr, np.int64), np.asarray(ids, np.int64), np.ascontiguousarray(values))
        found = self._landmarks.sums(model.kernel, rows, self._coefs) + model.offsets
        return self._votes(found) if model.pairs else found

    def _votes(self, found: np.ndarray) -> np.ndarray:
        votes = np.zeros((len(found), len(self.model.labels)))
        for (i, j), column in zip(combinations(range(votes.shape[1]), 2), found.T, strict=True):
            votes[:, i] += column > 0
            votes[:, j] += column <= 0
        return votes

    def count_known(self, ids) -> int:
        """How many of these ids are of a vector."""
        return int(np.isin(ids, self._landmarks.known).sum())


def predictor_of(model) -> Predictor:
    """What applies a model of either kind."""
    return KernelPredictor(model) if isinstance(model, KernelModel) else Predictor(model)


def describe(model: KernelModel) -> dict:
    """What a model is, by name."""
    origin = {} if "certificate" in model.info else {"certificate": "none (not written by llsvm)"}
    facts = {"kind": "kernel model", "solver_type": model.solver_type, "kernel_type": model.kernel.name,
             **parameters(model.kernel), "labels": model.labels, "vectors": len(model.vectors), "features": model.n_ids,
             **origin}  # fmt: skip
    return {**facts, **{name: value for name, value in model.info.items() if name not in facts}}
