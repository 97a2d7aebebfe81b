"""Looks at a model, against SciPy's products and NumPy's sums."""

import numpy as np
import pytest
import scipy.sparse
from objectives import multiples, objective
from problems import PlainModel, arrays, make_rows, split, write_text

from llsvm import reader, train
from llsvm.blockset import BlockSet
from llsvm.evaluate import FACTORS, Predictor, along_ray, best_multiple, loss_of_scores, total_loss
from llsvm.model import Model
from llsvm.problem import Problem


def make_model(weights, labels=("1", "-1"), **options):
    weights = np.asarray(weights, float)
    return Model("L2R_L1LOSS_SVC_DUAL", list(labels), weights, options.pop("n_ids", len(weights)), **options)


@pytest.fixture
def matrix():
    """50 rows of 30 features; some rows are empty."""
    X = scipy.sparse.random(50, 30, 0.2, "lil", random_state=7)
    X[::9] = 0
    return X.tocsr()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bias", [-1.0, 0.0, 2.5])
@pytest.mark.parametrize("n_columns", [1, 3])
def test_scores_are_the_product_of_rows_and_weights(matrix, n_columns, bias, dtype):
    rng = np.random.default_rng(n_columns)
    weights, offset = rng.normal(size=(30, n_columns)), rng.normal(size=n_columns)
    labels = ("a", "b") if n_columns == 1 else ("a", "b", "c")
    model = make_model(weights, labels, bias=bias, bias_weights=offset if bias >= 0 else None)
    expected = matrix.astype(dtype).astype(float) @ weights + (bias * offset if bias >= 0 else 0)
    scores = Predictor(model).scores(*arrays(matrix, dtype))
    assert scores.shape == (50, n_columns)
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)


def test_ids_beyond_the_model_are_ignored(matrix):
    weights = np.random.default_rng(1).normal(size=(10, 1))
    scores = Predictor(make_model(weights)).scores(*arrays(matrix))
    np.testing.assert_allclose(scores, matrix[:, :10] @ weights, rtol=1e-12, atol=1e-12)


def test_a_model_by_ids_scores_the_ids_it_has():
    ids, weights = np.array([2, 5, 2**40, 2**63 - 1]), np.array([[1.0], [10.0], [100.0], [1000.0]])
    predictor = Predictor(make_model(weights, ids=ids, n_ids=2**63 - 1))
    rows = [[1, 2, 3], [5, 2**40, 2**40 + 1], [2**63 - 1], [], [4, 6, 2**63 - 2]]
    indptr = np.cumsum([0, *map(len, rows)])
    scores = predictor.scores(np.array(sum(rows, []), np.int64), np.full(indptr[-1], 0.5), indptr)
    assert scores.ravel().tolist() == [0.5, 55.0, 500.0, 0.0, 0.0]


def test_two_classes_are_chosen_by_sign_and_zero_means_the_second():
    predictor = Predictor(make_model(np.zeros((1, 1))))
    assert predictor.choose(np.array([[0.5], [-0.5], [0.0], [-0.0], [1e-300]])).tolist() == [0, 1, 1, 1, 0]


def test_of_several_classes_the_first_of_the_largest_scores_is_chosen():
    predictor = Predictor(make_model(np.zeros((1, 3)), ("a", "b", "c")))
    assert predictor.choose(np.array([[1.0, 3.0, 2.0], [2.0, 1.0, 2.0], [-1.0, -3.0, -0.5]])).tolist() == [1, 0, 2]


@pytest.mark.parametrize("labels", [("1", "-1"), ("ham", "a longer name"), ("größe", "\udcff")])
def test_a_line_is_the_label_and_its_scores_as_printf_writes_them(labels):
    scores = np.array([[0.1], [-1 / 3], [1e-300], [-1.7976931348623157e308], [0.0], [123456789.5]])
    choices = np.array([0, 1, 0, 1, 1, 0], np.int32)
    predictor = Predictor(make_model(np.zeros((1, 1)), labels))
    names = [labels[choice].encode("utf-8", "surrogateescape") for choice in choices]
    assert predictor.lines(choices) == b"".join(name + b"\n" for name in names)
    lines = [name + b" %.9g %.9g\n" % (score, -score) for name, score in zip(names, scores[:, 0], strict=True)]
    assert predictor.lines(choices, scores) == b"".join(lines)


def test_a_line_of_several_classes_has_a_score_for_each():
    predictor = Predictor(make_model(np.zeros((1, 3)), ("a", "b", "c")))
    assert predictor.lines(np.array([2], np.int32), np.array([[1.5, -2.0, 1e10]])) == b"c 1.5 -2 1e+10\n"


def test_no_rows_are_no_lines():
    predictor = Predictor(make_model(np.zeros((1, 1))))
    none = np.zeros(0, np.int32)
    assert predictor.lines(none) == predictor.lines(none, np.zeros((0, 1))) == b""


def test_correct_choices_are_counted_by_name():
    """The data numbers labels in its own order and may have labels that the model lacks."""
    predictor = Predictor(make_model(np.zeros((1, 1)), ("spam", "ham")))
    names, codes = ["ham", "eggs", "spam"], np.array([0, 0, 1, 2, 2, 1], np.uint16)
    choices = np.array([1, 0, 0, 0, 1, 1], np.int32)
    assert predictor.count_correct(choices, codes, names) == 2


# --- losses


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """5,000 rows, enough to be shared among threads."""
    rows = make_rows(5000)
    text = write_text(tmp_path_factory.mktemp("many") / "many.txt", rows.X, rows.y)
    return rows._replace(text=text, blocks=split(text, 4))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
@pytest.mark.parametrize("bias", [-1.0, 1.5])
def test_the_total_loss_is_numpys(many, solver, bias, precision, tmp_path):
    path = many.blocks if precision == "float32" else split(many.text, 4, precision=precision, output=f"{tmp_path}/set")
    config = train.Config(solver=solver, C=0.7, bias=bias, weights={"1": 3.0})
    blocks = BlockSet(path)
    resident = reader.load(blocks, 2)
    problem = train.problems_of(blocks.description, config)[0]
    w = np.random.default_rng(1).normal(size=blocks.n_features + 1)
    by_id = np.zeros(many.X.shape[1])
    by_id[blocks.feature_ids() - 1] = w[:-1]
    margins = 1 - many.y * (many.X @ by_id + max(bias, 0.0) * w[-1])
    costs = np.where(many.y > 0, 2.1, 0.7)
    expected = costs @ np.maximum(0, margins) ** (2 if solver == "dual-l2" else 1)
    assert total_loss(resident.table, w, problem, resident.kind) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("solver", ["dual", "dual-l2"])
@pytest.mark.parametrize("bias", [-1.0, 1.5])
@pytest.mark.parametrize("length", [1e-3, 2.5, 6.0, 40.0, -1.0])
def test_the_best_multiple_is_the_best_of_all_that_numpy_tries(many, solver, bias, length):
    """Along a w that is far too short, about right, far too long, or turned round."""
    resident = reader.load(blocks := BlockSet(many.blocks), 2)
    config = train.Config(solver=solver, C=0.7, bias=bias, weights={"1": 3.0})
    problem, squared = train.problems_of(resident.description, config)[0], solver == "dual-l2"
    X = np.column_stack([many.X.toarray()[:, blocks.feature_ids() - 1], np.full(5000, max(bias, 0.0))])
    w = length * (0.002 * many.y @ X + 0.3 * np.random.default_rng(2).normal(size=X.shape[1]) * (X != 0).any(0))
    margins, costs = many.y * (X @ w), np.where(many.y > 0, 2.1, 0.7)
    values = [0.5 * factor**2 * w @ w + costs @ np.maximum(0, 1 - factor * margins) ** (1 + squared)
              for factor in np.arange(513) / 256]  # fmt: skip
    halves = [along_ray(half, w, problem, resident.kind) for half in np.array_split(resident.table, 2)]
    factor, primal = best_multiple(halves[0] + halves[1], w, squared)
    assert factor == np.argmin(values) / 256
    assert primal == pytest.approx(min(values), rel=1e-11)


@pytest.mark.parametrize("squared", [False, True])
def test_the_sums_of_a_ray_tell_the_loss_at_every_multiple(squared, tmp_path):
    """By hand: margins 1/4, 1/2, 1, 256/100, 0 and -2 of w = 1, each of which has its last loss at another multiple."""
    values = [0.25, 0.5, 1.0, 2.56, 0.0, -2.0]
    (tmp_path / "data.txt").write_text("".join(f"1 1:{value}\n" for value in values) + "-1 2:1\n")
    config = train.Config(precision="float64")
    with train.open_data([str(tmp_path / "data.txt")], config) as data:
        problem = train.problems_of(data.description, config)[0]
        sums = along_ray(data.table[:6], np.array([1.0, 0.0, 0.0]), problem, data.kind)
    for place, factor in enumerate(FACTORS):
        costs, products, squares = sums[place:].sum(0)
        told = costs - 2 * products * factor + squares * factor**2 if squared else costs - products * factor
        losses = [max(0, 1 - factor * value) for value in values]
        assert told == pytest.approx(sum(loss ** (1 + squared) for loss in losses), abs=1e-12)


def test_the_objective_that_tests_judge_by_is_right():
    """The reference itself, by hand: two rows, w = (1, 0), bias weight 2 for a feature of 0.5."""
    model = PlainModel({"label": "1 -1", "bias": "0.5"}, np.array([[1.0], [0.0]]), np.array([2.0]))
    X = scipy.sparse.csr_matrix([[1.0, 7.0], [0.25, 1.0]])
    assert objective(X, [1, -1], model, C=2.0) == (1 + 4) / 2 + 2 * (0 + 2.25)
    assert objective(X, [1, -1], model, weights={"-1": 3.0}, loss="squared") == (1 + 4) / 2 + 3 * 2.25**2
    y, w = np.array([1, -1]), np.array([1.0, 0.0, 2.0])
    assert multiples(np.array([1.0]), X, y, np.array([2.0, 2.0]), w, 0.5) == [(1 + 4) / 2 + 2 * (0 + 2.25)]


def test_the_objective_of_several_classes_that_tests_judge_by_is_right():
    """By hand: the rows (1) and (2) of classes a and c, and w = 1, 0, 2 of classes a, b, c."""
    X, labels, header = scipy.sparse.csr_matrix([[1.0], [2.0]]), ["a", "c"], {"label": "a b c", "bias": "-1"}
    model = PlainModel(header, np.array([[1.0, 0.0, 2.0]]))
    norm = (1 + 4) / 2
    assert objective(X, labels, model, loss="cs") == norm + max(0, 1 - 1 + 2) + 0
    assert objective(X, labels, model, loss="ww", C=3.0) == norm + 3 * ((1 - 1) + (1 - 1 + 2)) + 0
    # One against the rest: of a 0 and 1 + 2, of b 1 and 1, of c 1 + 2 and 0.
    assert objective(X, labels, model) == norm + 3 + 2 + 3
    assert objective(X, labels, model, weights={"a": 2.0}, loss="squared") == norm + 9 + 2 + 9


@pytest.mark.parametrize("squared", [False, True])
def test_the_loss_of_scores_is_numpys(squared):
    rng = np.random.default_rng(3)
    scores, labels = 2 * rng.normal(size=(300, 2))[:, 1], rng.integers(0, 3, 300).astype(np.int32)
    y, C = np.where(labels == 1, 1, -1), np.where(labels == 1, 2.0, 0.5)
    expected = (C * np.maximum(0, 1 - y * scores) ** (1 + squared)).sum()
    table = Problem(1, 3, (0.5, 2.0), squared, 0.0, 1e-3).codes
    assert loss_of_scores(scores, labels, table) == pytest.approx(expected, rel=1e-12)
