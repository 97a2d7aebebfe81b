"""Model files: exact, LIBLINEAR's format both ways, and refused when cut short or changed; outputs whole or absent."""

import gzip
import itertools
import math
import os
import stat
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crafted
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liblinear import liblinearutil
from problems import COMPRESS, arrays, make_rows, read_model, write_text

from llsvm import model as model_module
from llsvm.core import LlsvmError
from llsvm.evaluate import Predictor
from llsvm.files import Output
from llsvm.model import Model, from_features, load, save

HEADER = "solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature {}\nbias -1\nw\n"
AWKWARD = [0.0, 1 / 3, -1 / 3, 5e-324, -2.2250738585072014e-308, 1.7976931348623157e308, 1e-10, -123456789.125, np.pi]


def make_model(n_features=9, labels=("1", "-1"), bias=-1.0, n_columns=1, **options):
    """A model whose weights need all their digits."""
    numbers = np.array([AWKWARD[k % len(AWKWARD)] for k in range((n_features + 1) * n_columns)])
    weights = numbers.reshape(-1, n_columns)
    options = {"n_ids": n_features, **options}
    return Model("L2R_L1LOSS_SVC_DUAL", list(labels), weights[:-1], bias=bias,
                 bias_weights=weights[-1] if bias >= 0 else None, **options)  # fmt: skip


def by_id_model(bias=-1.0, labels=("1", "-1")):
    ids = np.array([3, 100_000_001, 2**40, 2**63 - 1])
    return make_model(len(ids), labels, bias, ids=ids, n_ids=2**63 - 1)


def save_to(path, model):
    with Output(str(path)) as output:
        save(model, output)
    return str(path)


def assert_same(found, expected):
    assert (found.solver_type, found.labels, found.bias) == (expected.solver_type, expected.labels, expected.bias)
    assert (found.n_ids, found.zero_based, found.info) == (expected.n_ids, expected.zero_based, expected.info)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.bias_weights, expected.bias_weights)
    np.testing.assert_array_equal(found.ids, expected.ids)


# --- there and back

MODELS = {
    "no bias": make_model(),
    "bias": make_model(bias=1.0),
    "bias of 0": make_model(bias=0.0),
    "bias that needs its digits": make_model(bias=1 / 3),
    "no features": make_model(0),
    "no features but a bias": make_model(0, bias=1.0),
    "three columns": make_model(labels=("3", "1", "2"), n_columns=3, bias=1.0),
    "words": make_model(labels=("spam", "ham"), bias=1.0),
    "words that are not ASCII": make_model(labels=("größe", "\udcff quoted \"'\\")),
    "numbers that are not integers": make_model(labels=("1.5", "-0.25")),
    "integers beyond 32 bits": make_model(labels=("2147483648", "1")),
    "ids from 0": make_model(zero_based=True),
    "more than a batch": make_model(70_000, bias=1.0),
    "by id": by_id_model(),
    "by id, with a bias": by_id_model(bias=2.0),
    "by id, with words": by_id_model(bias=2.0, labels=("spam", "ham")),
    "with a certificate": make_model(info={"certificate": {"primal": 1.25, "reason": "converged"}}),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_loaded(tmp_path, name):
    assert_same(load(save_to(tmp_path / "model", MODELS[name])), MODELS[name])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("part", [40, 64, 1000])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_model_read_in_parts_by_several_threads_is_the_same(tmp_path, monkeypatch, name, part, threads):
    monkeypatch.setattr(model_module, "PART", part)
    assert_same(load(save_to(tmp_path / "model", MODELS[name]), threads), MODELS[name])


@pytest.mark.parametrize("lines", ["1 2 \n\n3 \n4 \n", "\n\n1 2 3 4 \n", "1 2 3 4 \n\n\n\n", "1 \n2 3 \n\n4 \n",
                                   "1 2 \n3 \n4 \n\n"])  # fmt: skip
def test_lines_that_are_not_those_of_features_are_read_all_the_same(tmp_path, monkeypatch, lines):
    monkeypatch.setattr(model_module, "PART", 4)
    (tmp_path / "model").write_text(HEADER.format(4) + lines)
    for threads in (1, 2, 4):
        assert load(str(tmp_path / "model"), threads).weights.ravel().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["no bias", "bias", "three columns", "more than a batch"])
def test_weights_are_written_with_17_digits_one_line_a_feature(tmp_path, name):
    model = MODELS[name]
    rows = [*model.weights, *([] if model.bias_weights is None else [model.bias_weights])]
    expected = "w\n" + "".join("".join(f"{weight:.17g} " for weight in row) + "\n" for row in rows)
    with open(save_to(tmp_path / "model", model)) as file:
        text = file.read()
    assert text[text.index("w\n") : text.rindex("llsvm ")] == expected


BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("d", struct.pack("Q", bits))[0])
WEIGHT = st.one_of(
    BITS.filter(math.isfinite),
    st.floats(-10, 10),
    st.builds(math.ldexp, st.integers(-(2**54), 2**54), st.integers(-1074, 900)),
    st.builds(math.ldexp, st.integers(-999, 999), st.integers(-70, 20)),  # few bits: ties among 17 digits
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-323, 306)).map(float),
    st.integers(10**16, 10**18).map(float),
    st.floats(0, 5e-308),
)


@settings(max_examples=300)
@given(weights=st.lists(WEIGHT, min_size=1, max_size=50))
def test_any_weight_is_written_as_c_does_and_read_back(tmp_path_factory, weights):
    path = tmp_path_factory.mktemp("weights") / "model"
    model = Model("L2R_L1LOSS_SVC_DUAL", ["1", "-1"], np.array(weights)[:, None], len(weights))
    save_to(path, model)
    lines = path.read_text().split("w\n")[1].splitlines()[:-1]
    assert lines == [f"{weight:.17g} " if weight else "0 " for weight in weights]
    assert load(str(path)).weights.ravel().tolist() == weights


TIES = [2.0**power for power in range(-1074, 1024)] + [k / 64 for k in range(10_000)]
TENS = [float(f"1e{power}") for power in range(-323, 309)]


@pytest.mark.parametrize("numbers", [TIES, TENS], ids=["powers of two", "powers of ten"])
@pytest.mark.parametrize("towards", [None, 0.0, math.inf])
def test_powers_and_their_neighbours_are_written_as_c_does(tmp_path, numbers, towards):
    weights = [number if towards is None else math.nextafter(number, towards) for number in numbers]
    model = Model("L2R_L1LOSS_SVC_DUAL", ["1", "-1"], np.array(weights)[:, None], len(weights))
    lines = Path(save_to(tmp_path / "model", model)).read_text().split("w\n")[1].splitlines()[:-1]
    assert lines == [f"{weight:.17g} " if weight else "0 " for weight in weights]
    np.testing.assert_array_equal(load(str(tmp_path / "model")).weights.ravel(), weights)


NUMBER = st.one_of(
    st.builds("{}{}e{}".format, st.sampled_from(["", "-", "+"]), st.integers(0, 10**21), st.integers(-345, 300)),
    st.builds("{}.{}".format, st.integers(2**52, 2**53), st.sampled_from(["5", "49", "51", "50"])),
    st.integers(2**53, 2**64 + 2**12).map(str),
    WEIGHT.map("{:.25g}".format), WEIGHT.map("{:.3g}".format), WEIGHT.map("{:.19f}".format), WEIGHT.map(repr),
    st.sampled_from(["-0", "0.0", "5.", ".5", "1E5", "1e-0005", "5e-324", "2.4703282292062328e-324", "1e-400",
                     "0e999"]),
)  # fmt: skip


@settings(max_examples=300)
@given(words=st.lists(NUMBER, min_size=1, max_size=50), blank=st.sampled_from([" \n", "\n", "\r\n", "\t", "  "]))
def test_any_number_is_read_as_python_reads_it(tmp_path_factory, words, blank):
    path = tmp_path_factory.mktemp("numbers") / "model"
    path.write_bytes((HEADER.format(len(words)) + "".join(word + blank for word in words)).encode())
    found = load(str(path)).weights.ravel()
    assert found.tobytes() == np.array([float(word) for word in words]).tobytes()


@pytest.mark.parametrize("word", ["half", "1e", "1e+", ".", "-", "--1", "1.2.3", "1,5", "0x", "e5", "1e5e5", "1\0",
                                  "\0", "1\v2", "1_0", "5" * 2_000_000 + "x"])  # fmt: skip
def test_a_word_that_is_no_number_is_refused(tmp_path, word):
    (tmp_path / "model").write_text(HEADER.format(3) + f"1 \n{word} \n3 \n")
    with pytest.raises(LlsvmError, match="3 weights expected, 1 found"):
        load(str(tmp_path / "model"))


def test_a_model_comes_through_a_pipe(tmp_path):
    text = Path(save_to(tmp_path / "model", MODELS["more than a batch"])).read_bytes()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe").write_bytes, text)
        assert_same(load(str(tmp_path / "pipe")), MODELS["more than a batch"])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n_columns", [1, 3])
def test_ids_not_in_use_have_zeros(tmp_path, monkeypatch, n_columns, threads):
    monkeypatch.setattr(model_module, "BATCH", 16)
    rng = np.random.default_rng(1)
    ids = np.array([*np.flatnonzero(rng.random(500) < 0.2) + 1, 530, 600])
    weights = rng.normal(size=(len(ids), n_columns))
    labels = ["1", "-1"] if n_columns == 1 else ["1", "2", "3"]
    with Output(str(tmp_path / "model")) as output:
        save(Model("L2R_L1LOSS_SVC_DUAL", labels, weights, 600, ids=ids), output, threads)
    expected = np.zeros((600, n_columns))
    expected[ids - 1] = weights
    np.testing.assert_array_equal(load(str(tmp_path / "model")).weights, expected)
    lines = (tmp_path / "model").read_text().split("w\n")[1].splitlines()[:-1]
    assert lines == ["".join(f"{weight:.17g} " for weight in row) for row in expected]


def test_ids_beyond_100_million_are_written_with_their_weights(tmp_path):
    with open(save_to(tmp_path / "model", by_id_model(bias=2.0))) as file:
        lines = file.read().split("\n")
    start = lines.index("w_by_id") + 1
    assert lines[start : start + 5] == [
        "3:0 ", "100000001:0.33333333333333331 ", "1099511627776:-0.33333333333333331 ",
        "9223372036854775807:4.9406564584124654e-324 ", "-2.2250738585072014e-308 ",
    ]  # fmt: skip


@pytest.mark.parametrize("ids", [[4, 2, 7], [2**63 - 1, 5, 100_000_001]])
@pytest.mark.parametrize("bias", [-1.0, 2.0])
def test_features_numbered_in_any_order_get_their_ids_back(tmp_path, ids, bias):
    weights = np.array([[1.0], [2.0], [3.0], [4.0]])
    model = from_features("L2R_L2LOSS_SVC_DUAL", ["1", "-1"], weights, np.array(ids), bias, False, {})
    predictor = Predictor(load(save_to(tmp_path / "model", model)))
    scores = predictor.scores(np.array(ids), np.ones(3), np.arange(4))
    offset = bias * 4.0 if bias >= 0 else 0.0
    assert scores.ravel().tolist() == [1.0 + offset, 2.0 + offset, 3.0 + offset]


# --- LIBLINEAR's own loader and files


@pytest.mark.parametrize("name", ["no bias", "bias", "bias of 0", "bias that needs its digits", "three columns",
                                  "no features but a bias", "words", "numbers that are not integers",
                                  "integers beyond 32 bits", "more than a batch", "with a certificate"])  # fmt: skip
def test_liblinear_reads_our_models(tmp_path, name):
    ours = MODELS[name]
    theirs = liblinearutil.load_model(save_to(tmp_path / "model", ours))
    weights = ours.weights if ours.bias_weights is None else np.vstack([ours.weights, ours.bias_weights])
    assert (theirs.get_nr_feature(), theirs.get_nr_class(), theirs.bias) == (ours.n_ids, len(ours.labels), ours.bias)
    np.testing.assert_array_equal(theirs.w[: weights.size], weights.ravel())
    if all(label.lstrip("-").isdigit() and abs(int(label)) < 2**31 for label in ours.labels):
        assert [str(label) for label in theirs.get_labels()] == ours.labels
    else:
        assert theirs.get_labels() == [1, 2]


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("bias", [-1.0, 2.0])
def test_we_read_liblinears_models(tmp_path, number, n_classes, bias):
    rows, path = make_rows(60), str(tmp_path / "theirs")
    labels = np.arange(60) % n_classes + 5
    theirs = liblinearutil.train(labels, rows.X, f"-s {number} -B {bias} -q")
    liblinearutil.save_model(path, theirs)
    n_columns = 1 if n_classes == 2 and number != 4 else n_classes  # 4, MCSVM_CS, always has a column a class
    ours = load(path)
    assert ours.labels == [str(label) for label in theirs.get_labels()]
    assert ours.bias == bias
    weights = np.array(theirs.w[: (theirs.get_nr_feature() + (bias >= 0)) * n_columns]).reshape(-1, n_columns)
    np.testing.assert_array_equal(ours.weights, weights[: theirs.get_nr_feature()])
    np.testing.assert_array_equal(ours.bias_weights, weights[-1] if bias >= 0 else None)
    expected, _, values = liblinearutil.predict([], rows.X, theirs, "-q")
    predictor = Predictor(ours)
    scores = predictor.scores(*arrays(rows.X))
    np.testing.assert_allclose(scores[:, : len(values[0])], values, rtol=1e-9, atol=1e-12)
    assert [ours.labels[choice] for choice in predictor.choose(scores)] == [str(int(label)) for label in expected]


@pytest.mark.parametrize("number, kind", [(11, "a regression model"), (12, "a regression model"),
                                          (13, "a regression model"), (21, "a one-class model")])  # fmt: skip
def test_liblinears_models_that_are_no_classifiers_are_called_what_they_are(tmp_path, number, kind):
    rows, path = make_rows(60), str(tmp_path / "theirs")
    liblinearutil.save_model(path, liblinearutil.train(np.arange(60.0), rows.X, f"-s {number} -q"))
    with pytest.raises(LlsvmError, match=rf"theirs: not a model file of a classifier \({kind}, "):
        load(path)


def test_a_model_of_liblinear_with_line_ends_of_windows_is_read(tmp_path):
    rows, path = make_rows(60), tmp_path / "theirs"
    theirs = liblinearutil.train(rows.y, rows.X, "-s 3 -B 1 -q")
    liblinearutil.save_model(str(path), theirs)
    expected = load(str(path))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert_same(load(str(path)), expected)


@pytest.mark.parametrize("name", ["bias", "by id, with a bias", "three columns"])
def test_a_model_of_ours_with_line_ends_of_windows_is_told_so(tmp_path, name):
    path = Path(save_to(tmp_path / "model", MODELS[name]))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(LlsvmError, match="Windows"):
        load(str(path))


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("name", ["bias", "by id, with a bias", "more than a batch"])
def test_a_compressed_model_is_read(tmp_path, name, kind):
    path = Path(save_to(tmp_path / "model", MODELS[name]))
    whole = COMPRESS[kind](path.read_bytes())
    path.write_bytes(whole)
    assert_same(load(str(path)), MODELS[name])
    path.write_bytes(whole[:-9])
    with pytest.raises(LlsvmError, match=f"model: .*{kind}"):
        load(str(path))


@pytest.mark.parametrize("content, kind", [
    (b"", "an empty file"), (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"), (b"PK\x03\x04" + bytes(100), "a zip"),
    (b"+1 1:0.5 2:1\n-1 1:3\n", "LIBSVM text"), (b"+1 1:0.5 2:1\n" * 1000, "LIBSVM text"),
    (b'{\n"format": "llsvm-blocks",\n', "the manifest of a block set"), (b"svm_type c_svc\n", "a model of LIBSVM"),
    ("solver_type".encode("utf-16"), "UTF-16"), (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    (gzip.compress(b"+1 1:0.5 2:1\n" * 10_000), "LIBSVM text"),
])  # fmt: skip
def test_what_is_given_for_a_model_is_called_what_it_is(tmp_path, content, kind):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(LlsvmError, match=f"model: not a model file; this looks like {kind}"):
        load(str(tmp_path / "model"))


def test_weights_that_a_file_cannot_hold_take_no_memory(tmp_path):
    (tmp_path / "model").write_text(HEADER.format(2**62) + "1 \n" * 1000)
    tracemalloc.start()
    try:
        with pytest.raises(LlsvmError, match=f"cut short, {2**62} weights expected"):
            load(str(tmp_path / "model"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ids", [[4, 2, 4], [2**40, 3, 2**40]])
def test_no_model_is_made_of_ids_that_repeat(ids):
    with pytest.raises(LlsvmError, match="same id"):
        from_features("L2R_L2LOSS_SVC_DUAL", ["1", "-1"], np.ones((4, 1)), np.array(ids), -1.0, False, {})


@pytest.mark.parametrize("name", ["bias", "three columns", "more than a batch", "by id"])
@pytest.mark.parametrize("number", [0, 3, 8])
@pytest.mark.parametrize("word", [b"nan", b"-inf", b"1e999", b"half"])
def test_a_weight_that_is_no_finite_number_is_named_by_its_line(tmp_path, monkeypatch, name, number, word):
    monkeypatch.setattr(model_module, "PART", 64)
    path = Path(save_to(tmp_path / "model", MODELS[name]))
    lines = path.read_bytes().split(b"\n")
    at = lines.index(b"w_by_id" if name == "by id" else b"w") + 1 + min(number, 3 if name == "by id" else 8)
    id, colon, weights = lines[at].rpartition(b":")
    lines[at] = id + colon + b" ".join([word, *weights.split()[1:]]) + b" "
    text = b"\n".join(lines[:-2]) + b"\n"
    path.write_bytes(crafted.sign_model(text, lines[-2][15:]))
    with pytest.raises(LlsvmError, match=f"model:{at + 1}: read '{word.decode()}.*', expected"):
        load(str(path), 2)


# --- labels


@pytest.mark.parametrize("first, second", [
    (1, -1), (-1, 1), (0, 1), (1, 0), (2, 1), (-1, 2), (-1, 0), (1, 2), (5, -5), (-2, -1),
])  # fmt: skip
def test_numbers_stand_in_the_order_of_liblinear(tmp_path, fit, first, second):
    rows = make_rows(40)
    labels = np.where(rows.y == rows.y[0], first, second)
    fitted = fit(write_text(tmp_path / "rows.txt", rows.X, labels), tolerance=1e-6)
    theirs = liblinearutil.train(labels, rows.X, "-s 3 -e 1e-8 -q")
    assert fitted.model.labels == [str(label) for label in theirs.get_labels()]
    np.testing.assert_allclose(fitted.model.w, theirs.w[: len(fitted.model.w)], atol=1e-3)


def test_words_stand_in_the_order_of_first_occurrence(tmp_path, fit):
    rows = make_rows(40)
    labels = np.where(rows.y == rows.y[0], "zebra", "ant")
    fitted = fit(write_text(tmp_path / "rows.txt", rows.X, labels))
    assert fitted.model.header["label"].split() == ["1", "2"]
    assert load(fitted.path).labels == ["zebra", "ant"]
    scores = rows.X @ fitted.model.w
    assert (np.where(scores > 0, "zebra", "ant") == labels).all()


@pytest.mark.parametrize("bias", [-1.0, 0.0, 1.5])
def test_a_bias_is_one_more_row_and_not_a_feature(tmp_path, fit, bias):
    rows = make_rows(200)
    fitted = fit(write_text(tmp_path / "rows.txt", rows.X, rows.y), bias=bias)
    theirs = liblinearutil.train(rows.y, rows.X, f"-s 3 -B {bias} -q")
    assert int(fitted.model.header["nr_feature"]) == theirs.get_nr_feature() == rows.X.shape[1]
    assert float(fitted.model.header["bias"]) == bias
    with open(fitted.path) as file:
        lines = file.read().split("\n")
    n_weights = next(n for n, line in enumerate(lines) if line.startswith("llsvm ")) - lines.index("w") - 1
    assert n_weights == rows.X.shape[1] + (bias >= 0)
    assert (fitted.model.bias_w != 0) == (bias > 0)


# --- damage


def loads(path, content):
    """Whether this content is accepted as a model; anything but a refusal in words is an error."""
    path.write_bytes(content)
    try:
        load(str(path))
    except LlsvmError as refusal:
        assert str(path) in refusal.message
        return False
    return True


DAMAGED = pytest.mark.parametrize("name", ["no bias", "bias", "words", "ids from 0", "three columns", "by id",
                                           "by id, with a bias", "with a certificate",
                                           "no features but a bias"])  # fmt: skip


@pytest.mark.slow
@DAMAGED
def test_a_model_cut_short_is_refused_unless_it_is_a_whole_one_of_liblinears(tmp_path, name):
    """Behind the last weight stand a blank and a newline; without our line, what is before is LIBLINEAR's format. The
    newline behind our line may be missing."""
    with open(save_to(tmp_path / "whole", MODELS[name]), "rb") as file:
        content = file.read()
    behind_weights = content.rindex(b"\nllsvm ") + 1
    needs_our_line = MODELS[name].ids is not None or name in ("words", "ids from 0")
    allowed = set() if needs_our_line else {behind_weights - 1, behind_weights}
    accepted = {end for end in range(len(content)) if loads(tmp_path / "cut", content[:end])}
    assert accepted - {len(content) - 1} <= allowed
    assert (behind_weights in accepted) == (behind_weights in allowed)


def test_what_is_left_of_a_cut_model_has_all_its_weights(tmp_path):
    path = tmp_path / "model"
    with open(save_to(path, MODELS["bias"]), "rb") as file:
        content = file.read()
    path.write_bytes(content[: content.rindex(b"llsvm ")])
    assert_same(load(str(path)), MODELS["bias"])


@pytest.mark.slow
@DAMAGED
def test_a_flipped_bit_is_refused(tmp_path, name):
    with open(save_to(tmp_path / "whole", MODELS[name]), "rb") as file:
        content = file.read()
    accepted = []
    for position, bit in itertools.product(range(len(content)), (0, 2, 5)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        if loads(tmp_path / "damaged", bytes(damaged)):
            accepted.append(bytes(damaged[max(0, position - 20) : position + 20]))
    assert accepted == []


@pytest.mark.parametrize("content", [
    b"", b"\n", b"+1 1:0.5 2:1\n-1 1:3\n", b"\x1f\x8b\x08\x00", b"solver_type L2R_L1LOSS_SVC_DUAL\n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature 1\nbias -1\nw\nhalf \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature 2\nbias -1\nw\n0.5 \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature 1\nbias 1\nw\n0.5 \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature -1\nbias -1\nw\n0.5 \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel 1 -1\nnr_feature 99999999999999999\nbias -1\nw\n0.5 \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class two\nlabel 1 -1\nnr_feature 1\nbias -1\nw\n0.5 \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 3\nlabel 1 -1\nnr_feature 1\nbias -1\nw\n0.5 0.5 0.5 \n",
    b"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nnr_feature 1\nbias -1\nw\n0.5 \n",
])  # fmt: skip
def test_what_is_no_model_is_refused(tmp_path, content):
    assert not loads(tmp_path / "no-model", content)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "directory"])
def test_a_model_that_cannot_be_read_is_refused_by_name(tmp_path, make):
    make(tmp_path / "model")
    with pytest.raises(LlsvmError, match="model: "):
        load(str(tmp_path / "model"))


# --- outputs


@pytest.mark.parametrize("before", [None, b"what was there before"], ids=["new", "existing"])
def test_an_output_that_fails_leaves_everything_as_it_was(tmp_path, before):
    path = tmp_path / "out"
    if before is not None:
        path.write_bytes(before)
    with pytest.raises(ZeroDivisionError), Output(str(path)) as output:
        output.write(b"half of it")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ([] if before is None else ["out"])
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("before", [None, b"what was there before"], ids=["new", "existing"])
def test_an_output_appears_when_it_is_complete(tmp_path, before):
    path = tmp_path / "out"
    if before is not None:
        path.write_bytes(before)
    with Output(str(path)) as output:
        output.write(b"all ")
        output.write(b"of it")
        assert (path.read_bytes() if path.exists() else None) == before
        output.commit()
    assert path.read_bytes() == b"all of it"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_to(tmp_path / "model", make_model())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("n_features", [9, 70_000], ids=["small", "large"])
def test_a_full_device_is_told(n_features):
    with pytest.raises(LlsvmError, match="/dev/full: No space left"), Output("/dev/full") as output:
        save(make_model(n_features), output)


def test_a_place_that_does_not_exist_is_told_before_the_work(tmp_path):
    with pytest.raises(LlsvmError, match="No such file or directory"):
        Output(str(tmp_path / "nowhere" / "model"))


def test_a_link_keeps_pointing_at_the_model(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    save_to(link, make_model(bias=1.0))
    assert link.is_symlink()
    np.testing.assert_array_equal(read_model(target).w, make_model().weights[:, 0])
