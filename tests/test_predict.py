"""llsvm-predict as a user types it: labels, scores and accuracy against NumPy's; what it refuses and leaves alone."""

import re
import signal
import subprocess

import numpy as np
import pytest
from conftest import accuracy_line, contents
from problems import (
    COMPRESS,
    N_FEATURES,
    TEST,
    TRAINING,
    as_text,
    predicted,
    read_model,
    scores,
    write_model,
    write_text,
)

# --- labels and scores


def test_scores_name_their_columns_and_equal_numpy(run, here):
    assert run("llsvm-predict", "--scores", "test.txt", "foreign", "out").returncode == 0
    header, *lines = (here / "out").read_text().splitlines()
    assert header == "labels 1 -1"
    table = np.array([line.split() for line in lines], float)
    expected = scores(TEST[0], read_model(here / "foreign"))
    np.testing.assert_array_equal(table[:, 0], np.where(expected > 0, 1, -1))
    np.testing.assert_allclose(table[:, 1:], np.column_stack([expected, -expected]), rtol=1e-8)


def test_a_block_set_can_be_predicted(run, here):
    finished = run("llsvm-predict", "--scores", "data.txt.blocks", "foreign", "out")
    expected = scores(TRAINING[0], read_model(here / "foreign"))
    found = np.loadtxt(here / "out", skiprows=1)
    np.testing.assert_allclose(np.sort(found[:, 1]), np.sort(expected), rtol=1e-8)
    assert finished.stdout == accuracy_line(np.where(expected > 0, 1, -1), TRAINING[1])


def test_features_beyond_the_model_are_ignored(run, here):
    extra = [line + f" {N_FEATURES + 1}:99 4294967297:5 9223372036854775807:7" for line in as_text(*TEST).splitlines()]
    (here / "more.txt").write_text("\n".join(extra))
    finished = run("llsvm-predict", "more.txt", "foreign", "out")
    expected = predicted(TEST[0], read_model(here / "foreign"))
    assert finished.stdout == accuracy_line(expected, TEST[1])
    assert (here / "out").read_text().split() == [str(label) for label in expected]


def test_rows_without_any_known_feature_get_the_label_of_the_bias(run, here):
    write_model(here / "up", [1.0], bias=1, bias_weight=0.5)
    write_model(here / "none", [1.0])
    for name, label in (("up", "1"), ("none", "-1")):
        finished = run("llsvm-predict", "-", name, "-", stdin=b"1 5:3\n-1\n1 7:-1 9:2\n")
        assert finished.stdout.split() == [label] * 3


def test_labels_unseen_in_training_count_as_wrong(run, here):
    write_model(here / "up", [1.0])
    finished = run("llsvm-predict", "-", "up", "out", stdin=b"1 1:1\n7 1:1\nspam 1:1\n1.0 1:1\n+1 1:1\n-1 1:1\n")
    assert finished.stdout == "Accuracy = 50% (3/6)\n"


@pytest.mark.parametrize(("labels", "told"), [("0", "(0)"), ("?", "(?)"), ("a b c d", "(a, b, c, ...)")])
def test_without_any_label_of_the_model_there_is_no_accuracy(run, here, labels, told):
    names = (labels.split() * 4)[:4]
    text = "".join(f"{name} 1:{k}\n" for k, name in enumerate(names)).encode()
    write_model(here / "up", [1.0])
    finished = run("llsvm-predict", "-", "up", "out", stdin=text)
    assert (finished.returncode, finished.stdout) == (0, "")
    assert finished.stderr == f"no accuracy: no label of TEST {told} is one of the model's (1 -1)\n"
    assert (here / "out").read_text() == "-1\n1\n1\n1\n"
    assert run("llsvm-predict", "-q", "-", "up", "out", stdin=text) == (0, "", "")


def test_labels_that_the_model_does_not_know_are_told(run, here):
    write_model(here / "up", [1.0])
    finished = run("llsvm-predict", "-", "up", "out", stdin=b"7 1:1\n1 1:1\n7.0 1:1\nspam 1:1\n-1 1:1\n")
    assert finished.stdout == "Accuracy = 20% (1/5)\n"
    assert finished.stderr == "3 of 5 rows have a label that the model does not know (7, spam)\n"
    assert run("llsvm-predict", "test.txt", "foreign", "out").stderr == ""


def test_labels_of_a_set_that_the_model_does_not_know_are_told(run, here):
    (here / "more.txt").write_text("7 1:1\n1 1:1\n")
    assert run("llsvm-split", "more.txt").returncode == 0
    finished = run("llsvm-predict", "more.txt.blocks", "foreign", "out")
    assert finished.stderr == "1 of 2 rows have a label that the model does not know (7)\n"


@pytest.mark.parametrize(("first", "warned"), [(1, False), (9, False), (12, True), (100, True)])
@pytest.mark.parametrize("source", ["more.txt", "more.txt.blocks"])
def test_ids_of_which_most_are_unknown_are_warned_of(run, here, first, warned, source):
    """Of the 20 ids from `first` on, the model knows those up to 20."""
    write_text(here / "more.txt", *TEST, first_id=first)
    assert source == "more.txt" or run("llsvm-split", "more.txt").returncode == 0
    finished = run("llsvm-predict", "-q", source, "foreign", "out")
    assert finished.returncode == 0
    assert ("of the feature ids of TEST are unknown to the model" in finished.stderr) == warned


@pytest.mark.parametrize(("first", "options", "warned"), [(0, [], False), (1, [], True), (0, ["--zero-based"], False)])
def test_ids_that_seem_shifted_by_one_are_warned_of(run, here, first, options, warned):
    write_text(here / "zero.txt", *TRAINING, first_id=0)
    assert run("llsvm-train", "--zero-based", "zero.txt", "new").returncode == 0
    write_text(here / "test.txt", *TEST, first_id=first)
    stderr = run("llsvm-predict", *options, "test.txt", "new", "out").stderr
    assert ("the model's ids start at 0, and none of TEST's is 0" in stderr) == warned


def test_a_row_without_features_may_come_alone(run, refuse, here):
    write_model(here / "up", [1.0])
    assert run("llsvm-predict", "-", "up", "-", stdin=b"1\n").stdout == "-1\n"
    for rows in (b"1\n-1\n", b"spam\n"):
        finished = run("llsvm-predict", "-", "up", "out", stdin=rows)
        assert finished.returncode == 1 and "no line has an id:value" in finished.stderr
    assert not (here / "out").exists()


def test_rows_without_labels_get_a_hint_that_works(run, here):
    bare = "".join(line.partition(" ")[2] + "\n" for line in (here / "test.txt").read_text().splitlines())
    (here / "bare.txt").write_text(bare)
    stderr = run("llsvm-predict", "bare.txt", "foreign", "out").stderr
    assert run("sh", "-c", re.search("sed '.*'", stderr)[0] + " bare.txt > full.txt").returncode == 0
    assert run("llsvm-predict", "full.txt", "foreign", "out").returncode == 0
    assert (here / "out").read_text().split() == [str(y) for y in predicted(TEST[0], read_model(here / "foreign"))]


def test_accuracy_is_worded_as_in_liblinear(run, here):
    write_model(here / "up", [1.0])
    text = b"1 1:1\n" * 47837 + b"-1 1:1\n" * 2163
    assert run("llsvm-predict", "-", "up", "out", stdin=text).stdout == "Accuracy = 95.674% (47837/50000)\n"


def test_labels_that_are_words_come_back_as_words(run, here):
    X, y = TRAINING
    (here / "mail.txt").write_text(as_text(X, np.where(y > 0, "spam", "h\u00e4m")), encoding="utf-8")
    assert run("llsvm-train", "mail.txt", "new").returncode == 0
    finished = run("llsvm-predict", "mail.txt", "new", "out")
    first, second = ("spam", "h\u00e4m") if y[0] > 0 else ("h\u00e4m", "spam")
    expected = np.where(scores(X, read_model(here / "new")) > 0, first, second)
    assert (here / "out").read_text(encoding="utf-8").split() == expected.tolist()
    assert finished.stdout == accuracy_line(expected, np.where(y > 0, "spam", "h\u00e4m"))


def test_ids_from_zero_on_are_one_more_in_the_model(run, here):
    write_text(here / "zero.txt", *TRAINING, first_id=0)
    assert run("llsvm-train", "--zero-based", "zero.txt", "new").returncode == 0
    assert run("llsvm-train", "data.txt", "usual").returncode == 0
    np.testing.assert_array_equal(read_model(here / "new").w, read_model(here / "usual").w)
    expected = predicted(TRAINING[0], read_model(here / "new"))
    assert run("llsvm-predict", "zero.txt", "new", "out").stdout == accuracy_line(expected, TRAINING[1])


def test_ids_up_to_63_bits_are_exact(run, here):
    largest = 2**63 - 1
    text = f"1 1:1 {largest}:1\n-1 1:1 {largest - 1}:1\n"
    (here / "huge.txt").write_text(text)
    assert run("llsvm-train", "-e", "1e-9", "huge.txt", "new").returncode == 0
    finished = run("llsvm-predict", "--scores", "-", "new", "-", stdin=f"1 {largest}:1\n-1 {largest - 1}:1\n".encode())
    up, down = (float(line.split()[1]) for line in finished.stdout.splitlines()[1:])
    # The optimum is w = x_1 - x_2, where both margins are 1; |w - w*|^2 / 2 is at most the gap.
    assert (up, down) == (pytest.approx(1, abs=1e-4), pytest.approx(-1, abs=1e-4))


def test_the_ids_of_a_row_may_stand_in_any_order(run, here):
    shuffled = []
    for line in as_text(*TEST).splitlines():
        label, *pairs = line.split()
        shuffled.append(" ".join([label, *reversed(pairs)]))
    finished = run("llsvm-predict", "-", "foreign", "-", stdin="\n".join(shuffled).encode())
    assert finished.stdout.split() == [str(label) for label in predicted(TEST[0], read_model(here / "foreign"))]


# --- where rows come from and labels go


@pytest.mark.parametrize("kind", ["plain", *COMPRESS])
def test_text_of_any_compression_is_predicted_from_standard_input(run, here, kind):
    before, text = contents(here), (here / "test.txt").read_bytes()
    finished = run("llsvm-predict", "-", "foreign", "-", stdin=COMPRESS.get(kind, bytes)(text))
    expected = predicted(TEST[0], read_model(here / "foreign"))
    assert finished.returncode == 0
    assert finished.stdout == "".join(f"{label}\n" for label in expected)
    assert finished.stderr == accuracy_line(expected, TEST[1])
    assert contents(here) == before


def test_an_output_that_is_a_link_stays_a_link(run, here):
    (here / "real").write_text("1\n")
    (here / "link").symlink_to("real")
    assert run("llsvm-predict", "test.txt", "foreign", "link").returncode == 0
    assert (here / "link").is_symlink()
    assert len((here / "real").read_text().splitlines()) == len(TEST[1])


@pytest.mark.parametrize("before", [
    "", "1\n", "-1\n1\n-1\n", "1\r\n-1\r\n", "-1", "1\n" * 100_000, "labels 1 -1\n1 0.5 -0.5\n-1 -2e-5 2e-5\n",
    "labels -1 1\n", "labels 1 -1\n-1 nan inf\n",
])  # fmt: skip
@pytest.mark.parametrize("options", [[], ["--scores"]])
def test_earlier_predictions_are_replaced(run, here, before, options):
    (here / "out").write_text(before)
    assert run("llsvm-predict", *options, "test.txt", "foreign", "out").returncode == 0
    assert len((here / "out").read_text().splitlines()) == len(TEST[1]) + len(options)


@pytest.mark.parametrize("before", [
    "1 1:0.5\n", "precious\n", "1\n-1\n2\n", "\n", "1\n\n1\n", "1,2\n", "labels of mine\n", "labels 1 -1\n1 0.5\n",
    "labels 1 -1\n1 high low\n", "labels 1 7\n1 0.5 0.5\n", "x" * 70_000, "solver_type L2R_L1LOSS_SVC_DUAL\n",
    "1\n" * 1000 + "end",
])  # fmt: skip
def test_what_is_no_output_of_predict_is_replaced_by_force_alone(run, refuse, here, before):
    (here / "out").write_text(before)
    refuse("llsvm-predict", "test.txt", "foreign", "out", code=2, says=["out exists", "left alone", "--force"])
    assert run("llsvm-predict", "--force", "test.txt", "foreign", "out").returncode == 0


def test_a_training_file_is_not_written_over(refuse):
    refuse("llsvm-predict", "test.txt", "model", "data.txt", code=2, says=["data.txt exists", "left alone"])


def test_the_output_of_a_model_of_words_is_replaced(run, here):
    X, y = TRAINING
    (here / "mail.txt").write_text(as_text(X, np.where(y > 0, "spam", "h\u00e4m")), encoding="utf-8")
    assert run("llsvm-train", "mail.txt", "new").returncode == 0
    for options in ([], [], ["--scores"], ["--scores"], []):
        assert run("llsvm-predict", *options, "mail.txt", "new", "out").returncode == 0


@pytest.mark.parametrize("options", [[], ["--scores"]])
def test_a_reader_that_leaves_ends_predict_without_a_word(spawn_in, here, options):
    """As head -1 leaves after one line."""
    write_model(here / "up", [1.0])
    (here / "long.txt").write_text("1 1:1\n" * 200_000)
    before = contents(here)
    with spawn_in(here, "llsvm-predict", *options, "long.txt", "up", "-", stdin=subprocess.DEVNULL,
                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        line = process.stdout.readline()
        process.stdout.close()
        stderr = process.stderr.read()
    assert (line, stderr) == (b"labels 1 -1\n" if options else b"1\n", b"")
    assert process.returncode == 128 + signal.SIGPIPE
    assert contents(here) == before


# --- what is refused


def test_predict_never_hints_at_an_option_it_lacks(run, here):
    stderr = run("llsvm-predict", "-", "model", "out", stdin=b"1 1:1e400\n").stderr
    hinted = re.findall(r"--[a-z-]+", "".join(re.findall("(?m)^hint: .*", stderr)))
    offered = run("llsvm-predict", "--help").stdout
    assert [option for option in hinted if option not in offered] == []


def model_cuts():
    """Where to cut a model of N_FEATURES weights and a bias: as functions of its text."""
    return {
        "empty": lambda text: 0,
        "in the header": lambda text: text.index("nr_feature"),
        "in the weights": lambda text: text.index("\nw\n") + 100,
        "before the last weight": lambda text: text.rindex("\n", 0, text.index("\nllsvm ")) + 1,
        "in the last weight": lambda text: text.index("\nllsvm ") - 4,
        "in the first word of the last line": lambda text: text.index("\nllsvm ") + 4,
        "before the last brace": lambda text: len(text) - 2,
    }


@pytest.mark.parametrize("where", model_cuts())
def test_a_model_cut_short_is_refused(refuse, here, where):
    text = (here / "model").read_text()
    (here / "model").write_text(text[: model_cuts()[where](text)])
    refuse("llsvm-predict", "test.txt", "model", "out", says=["model: "])


def test_a_model_comes_from_standard_input(run, here):
    """As llsvm-train writes it to standard output."""
    whole = (here / "model").read_bytes()
    expected = run("llsvm-predict", "test.txt", "model", "-").stdout
    assert run("llsvm-predict", "test.txt", "-", "-", stdin=whole).stdout == expected
    assert run("llsvm", "info", "-", stdin=whole).stdout == run("llsvm", "info", "model").stdout


def test_test_and_model_do_not_both_come_from_standard_input(refuse, here):
    refuse("llsvm-predict", "-", "-", "out", stdin=(here / "model").read_bytes(), code=2, says=["TEST and MODEL"])


def test_text_is_not_taken_for_a_model(refuse):
    refuse("llsvm-predict", "test.txt", "data.txt", "out", says=["data.txt: ", "not a model"])


@pytest.mark.parametrize("target", ["data.txt", "model"])
def test_predictions_never_replace_their_inputs(refuse, target):
    refuse("llsvm-predict", "data.txt", "model", target, code=2, says=[target])
