"""Crafted manifests, block sets and models, with checksums that are right, end in a sentence: in every command."""

import json
import random
from pathlib import Path

import crafted
import numpy as np
import pytest
from conftest import contents
from problems import as_text, split

from llsvm import manifest as manifests
from llsvm.blockset import BlockSet
from llsvm.core import DataError, LlsvmError
from llsvm.describe import describe
from llsvm.model import load
from llsvm.predict import predict_labels
from llsvm.session import train_model
from llsvm.train import Config


@pytest.fixture(scope="module")
def binary_set(tmp_path_factory):
    """The files of a set of 200 rows, every value of which is 0.5, and three labels."""
    folder, rng = tmp_path_factory.mktemp("crafted"), np.random.default_rng(1)
    (folder / "data.txt").write_text(as_text(0.5 * (rng.random((200, 20)) < 0.3), rng.integers(1, 4, 200)))
    return contents_of(split(str(folder / "data.txt"), 3))


@pytest.fixture(scope="module")
def set_of_few_values(tmp_path_factory):
    """The same with values of which each chunk has a dictionary."""
    folder, rng = tmp_path_factory.mktemp("crafted"), np.random.default_rng(2)
    X = rng.choice([0.25, 0.5, 4.0], (200, 20)) * (rng.random((200, 20)) < 0.3)
    (folder / "data.txt").write_text(as_text(X, rng.integers(1, 4, 200)))
    return contents_of(split(str(folder / "data.txt"), 3))


def contents_of(path):
    return contents(BlockSet(path).path)


def written(folder, files):
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)


def refusal(action, *arguments):
    """What is said where this is refused, in one sentence; None where it is not. Anything else is an error."""
    try:
        action(*arguments)
    except LlsvmError as error:
        assert error.exit_code == 1
        assert error.message and "\n" not in error.message and len(error.message) < 600, error.message[:1000]
        return error.message
    return None


def train(path, target, **options):
    train_model([path], target, Config(max_passes=3, **options), None, True, False, print)


def predict(path, model, target):
    predict_labels(path, model, target, True, False, True, True, 2, print)


# --- manifests


def test_no_crafted_manifest_is_believed(tmp_path, binary_set):
    path, count = written(tmp_path / "set", binary_set), 0
    assert refusal(BlockSet, path) is None
    for what, text in crafted.manifests(json.loads(binary_set["manifest.json"])):
        (tmp_path / "set" / "manifest.json").write_bytes(text)
        message = refusal(BlockSet, path)
        assert message and message.startswith(path), what
        count += 1
    assert count > 200


OLD = Path(__file__).parent / "frozen" / "binary" / "blocks"  # of version 1


@pytest.mark.parametrize(("name", "value"), [
    ("bytes", [147]), ("bytes", 0), ("bytes", 10**12), ("bytes", None), ("checksum", ["0f9a72f8"]), ("checksum", 7),
    ("checksum", "0F9A72F8"), ("file", "../features.zst"), ("checksum", crafted.MISSING), ("bytes", crafted.MISSING),
])  # fmt: skip
def test_the_one_frame_of_ids_of_an_old_set_is_checked_as_well(tmp_path, name, value):
    facts = json.loads((OLD / "manifest.json").read_text())
    files = {**contents(OLD), "manifest.json": crafted.sign_manifest(facts)}
    assert refusal(describe, written(tmp_path / "set", files), True, False) is None
    facts["feature_ids"][name] = value
    if value is crafted.MISSING:
        del facts["feature_ids"][name]
    path = written(tmp_path / "set", {**files, "manifest.json": crafted.sign_manifest(facts)})
    assert refusal(BlockSet, path).startswith(path)


@pytest.mark.parametrize("command", ["info", "verify", "train", "predict"])
def test_every_command_refuses_crafted_manifests(tmp_path, binary_set, command):
    path, model, target = written(tmp_path / "set", binary_set), str(tmp_path / "model"), str(tmp_path / "out")
    (tmp_path / "model").write_bytes(crafted.model())
    action = {
        "info": lambda: describe(path, False, False), "verify": lambda: describe(path, True, True),
        "train": lambda: train(path, target), "predict": lambda: predict(path, model, target),
    }[command]  # fmt: skip
    assert refusal(action) is None
    (tmp_path / "out").unlink(missing_ok=True)
    for number, (what, text) in enumerate(crafted.manifests(json.loads(binary_set["manifest.json"]))):
        if number % 10 == 0:
            (tmp_path / "set" / "manifest.json").write_bytes(text)
            assert refusal(action), what
    assert not (tmp_path / "out").exists()


def test_what_is_not_known_in_a_manifest_is_not_passed_on(tmp_path, binary_set):
    facts = {**json.loads(binary_set["manifest.json"]), "more": {"kind": "\x1b[31m"}}
    path = written(tmp_path / "set", {**binary_set, "manifest.json": crafted.sign_manifest(facts)})
    assert "more" not in describe(path, True, False)


def test_a_name_in_a_block_set_is_no_command_to_a_terminal(tmp_path, binary_set):
    facts = json.loads(binary_set["manifest.json"])
    facts["labels"][0]["name"] = "\x1b]0;owned\x07"
    path = written(tmp_path / "set", {**binary_set, "manifest.json": crafted.sign_manifest(facts)})
    assert "\x1b" not in describe(path, False, False) and "\\x1b]0;owned" in describe(path, False, False)


# --- what is in the files of a set


@pytest.mark.parametrize(("base", "least"), [("binary_set", 40), ("set_of_few_values", 1)])
def test_all_that_is_wrong_in_a_set_is_found_by_verify(tmp_path, request, base, least):
    files, count = request.getfixturevalue(base), 0
    assert refusal(describe, written(tmp_path / "set", files), True, False) is None
    for what, wrong in crafted.sets(files):
        message = refusal(describe, written(tmp_path / "set", wrong), True, False)
        assert message and message.startswith(str(tmp_path / "set")), what
        count += 1
    assert count >= least


# What costs too much to find while training or predicting: counts of labels, the largest norm where it is too large,
# bytes that nobody reads; predicting asks neither for norms nor whether two features have one id.
NOT_FOUND = {
    "train": {"rows of another label", "the largest norm 1.001 times", "the largest norm 1e+300 times",
              "more behind the last chunk"},
    "predict": {"rows of another label", "the largest norm 0 times", "the largest norm 0.5 times",
                "the largest norm 1.001 times", "the largest norm 1e+300 times", "more behind the last chunk",
                "an id twice", "a large value"},
}  # fmt: skip


@pytest.mark.parametrize("memory", [1 << 30, 32_000], ids=["in memory", "out of core"])
def test_training_refuses_crafted_sets(tmp_path, binary_set, memory):
    target = str(tmp_path / "model")
    for what, files in crafted.sets(binary_set):
        message = refusal(lambda path: train(path, target, memory=memory, bias=None), written(tmp_path / "set", files))
        assert bool(message) == (what not in NOT_FOUND["train"]), what
        if "value" in what or "norm" in what:
            assert not message or ".llb, chunk at byte 0: " in message or "the largest norm" in what


def test_predicting_refuses_crafted_sets(tmp_path, binary_set):
    (tmp_path / "model").write_bytes(crafted.model())
    for what, files in crafted.sets(binary_set):
        path = written(tmp_path / "set", files)
        message = refusal(predict, path, str(tmp_path / "model"), str(tmp_path / "out"))
        assert bool(message) == (what not in NOT_FOUND["predict"] and what != "a large value as a value"), what


def test_random_bytes_in_chunks_do_no_harm(tmp_path, binary_set):
    (tmp_path / "model").write_bytes(crafted.model())
    for _, files in crafted.random_sets(binary_set, random.Random(1), 100):
        path = written(tmp_path / "set", files)
        refusal(describe, path, True, False)
        refusal(predict, path, str(tmp_path / "model"), str(tmp_path / "out"))


# --- models


def test_no_crafted_model_is_believed(tmp_path):
    path, count = tmp_path / "model", 0
    for whole in (crafted.model(), crafted.model(weights=crafted.BY_ID_WEIGHTS, by_id=True)):
        path.write_bytes(whole)
        assert load(str(path)).labels == ["1", "2", "3"]
    for what, data in crafted.models():
        path.write_bytes(data)
        message = refusal(load, str(path), 2)
        assert message and message.startswith(str(path)), what
        count += 1
    assert count > 150


def test_every_command_refuses_crafted_models(tmp_path):
    path, test, out = tmp_path / "model", tmp_path / "test.txt", tmp_path / "out"
    test.write_text("1 1:1 2:1\n1 1:5\n")
    for number, (what, data) in enumerate(crafted.models()):
        if number % 5 == 0 or "50 classes" in what:
            path.write_bytes(data)
            assert refusal(predict, str(test), str(path), str(out)), what
            assert refusal(describe, str(path), True, True), what
    assert not out.exists()


def test_random_bytes_in_models_do_no_harm(tmp_path):
    path, test = tmp_path / "model", tmp_path / "test.txt"
    test.write_text("1 1:1 2:1\n1 1:5 100000001:2\n")
    for _, data in crafted.random_models(random.Random(1), 200):
        path.write_bytes(data)
        if refusal(predict, str(test), str(path), str(tmp_path / "out")) is None:
            describe(str(path), False, False)


@pytest.mark.parametrize("text", ["\ud800", "\udce9", "\x1b[31m", "\n", "\u202e"])
def test_what_a_model_says_of_itself_is_no_command_to_a_terminal(tmp_path, text):
    (tmp_path / "model").write_bytes(crafted.model(said={**crafted.SAID, text: {"x": [text]}, "kind": text}))
    said = describe(str(tmp_path / "model"), False, False)
    assert text not in said.replace("\n", " " * (text != "\n")) or text == "\n"
    assert len(said.splitlines()) == 8 and json.loads(describe(str(tmp_path / "model"), False, True))["kind"] == "model"


def test_a_damaged_weight_is_named_by_its_line(tmp_path):
    (tmp_path / "model").write_bytes(crafted.model(weights="0.5 1 2 \n1 nan 3 \n"))
    with pytest.raises(DataError, match="model:8: read 'nan', expected a finite number"):
        load(str(tmp_path / "model"))
    (tmp_path / "model").write_bytes(crafted.model(weights="3:0.5 1 2 \n2:1 2 3 \n", by_id=True))
    with pytest.raises(DataError, match="model:8: read '2:1 2 3 ', expected id:weight, the id above 3"):
        load(str(tmp_path / "model"))


def test_what_a_manifest_may_claim_fits_what_a_writer_writes():
    from llsvm import writer

    most = writer.LARGEST_CHUNK // 8
    assert 2 * most <= manifests.MOST_NONZEROS and 2 * (most // 4 + 1) <= manifests.MOST_ROWS
