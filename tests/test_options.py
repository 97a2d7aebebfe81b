"""The table of options: who has which, what is refused with which sentence, what help, log and model say of it."""

import re

import click
import pytest

from llsvm import cli
from llsvm.core import UsageError
from llsvm.options import OF_KERNELS, OPTIONS, Config
from llsvm.solvers import SOLVERS

OWN = {name: option for name, option in OPTIONS.items() if option.solvers}
OTHER_VALUES = {"inner": 3, "exact": True, "certify": False, "batch": 5, "init": "random", "hold_t": True,
                "average": False, "lookahead": 3, "free_bias": True, "coarse": 5}  # fmt: skip
WRONG = {
    "C": [0.0, -1.0, float("nan"), 1e301, "1"], "tolerance": [0.0, float("inf"), float("nan"), None],
    "bias": [float("inf"), float("nan"), "much"], "weights": [{"1": 0.0}, {"1": 1.0, "-1": float("nan")}],
    "seed": [-1, 2**31, 1.5, "1"], "max_passes": [0, None], "time_limit": [0.0, -1.0, float("nan")],
    "inner": [-1, 2**31, "many", 1.5], "batch": [-1, "some"], "init": ["one", 0], "lookahead": [0, 1001, "x"],
    "precision": ["float16"], "kernel": [-1, 4, "2"],
    "gamma": [0.0, -1.0, float("nan")], "degree": [0, 101, 2.5],
    "coef0": [-1.0, float("inf")], "rank": [-1, 2**31, "all"], "pivots": ["best", 0],
    "coarse": [-1, 0.5], "folds": [1, -2, 1001, 2.5], "metric": ["auc"], "select": ["max"],
    "memory": [0], "threads": [0, 257],
}  # fmt: skip


def refusal_of(**values):
    with pytest.raises(UsageError) as refusal:
        Config(**values)
    return refusal.value


def command_line(*words):
    """What the command says of these words, before it looks for data."""
    with pytest.raises((UsageError, click.ClickException)) as refusal:
        cli.train([*words, "no-data.txt", "no-model"], standalone_mode=False)
    return refusal.value.message


# --- who has which


def test_every_option_of_a_solver_is_tried_below():
    assert OTHER_VALUES.keys() == OWN.keys()
    assert all(set(option.solvers) <= SOLVERS.keys() and option.lack for option in OWN.values())


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("solver", SOLVERS)
def test_an_option_goes_with_its_solvers_and_no_other(solver, name):
    option, value = OWN[name], OTHER_VALUES[name]
    if solver in option.solvers:
        kernel = {"kernel": 2} if name in OF_KERNELS else {}
        assert getattr(Config(solver=solver, **{name: value}, **kernel), name) == value
        return
    refusal = refusal_of(solver=solver, **{name: value})
    word = option.words.split("/")[value is False and "/" in option.words]
    exact_anyway = name == "exact" and SOLVERS[solver].is_exact
    assert refusal.message == f"{word}: -s {solver} {'is exact anyway' if exact_anyway else option.lack}"
    assert refusal.hint == f"{word} goes with -s {' and -s '.join(option.solvers)}"


@pytest.mark.parametrize("name", OWN)
def test_an_option_that_is_said_is_refused_even_where_it_changes_nothing(name):
    solver = next(solver for solver in SOLVERS if solver not in OWN[name].solvers)
    Config(solver=solver, **{name: OWN[name].default})
    refusal = refusal_of(solver=solver, said=frozenset([name]))
    assert refusal.message.startswith(f"{OWN[name].words.split('/')[0]}: -s {solver} ")


@pytest.mark.parametrize("name", OWN)
def test_the_command_line_says_what_a_config_says(name):
    value, word = OTHER_VALUES[name], OWN[name].word(OTHER_VALUES[name])
    words = [word] if isinstance(value, bool) else [word, str(value)]
    solver = next(solver for solver in SOLVERS if solver not in OWN[name].solvers)
    assert command_line("-s", solver, *words) == refusal_of(solver=solver, **{name: value}).message


@pytest.mark.parametrize("number, name", [("1", "dual-l2"), ("3", "dual"), ("4", "cs")])
def test_a_solver_with_a_number_has_the_options_of_its_name(number, name):
    assert refusal_of(solver=number, inner=3).message == f"--inner: -s {name} has no inner sweeps"


# --- what a value may be


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values], ids=str)
def test_a_wrong_value_is_refused_by_the_word_of_its_option(name, value):
    option = OPTIONS[name]
    refusal = refusal_of(solver=(option.solvers or ["dual"])[0], **{name: value})
    assert refusal.message.startswith(option.words.split()[0] + " ") and refusal.message.endswith(option.kind.needed)


def test_every_option_with_values_is_tried_above():
    assert {name for name, option in OPTIONS.items() if option.kind} - WRONG.keys() == {"solver"}


@pytest.mark.parametrize("words, says", [
    ("--threads 257", "257: a number from 1 to 256 is needed"), ("--threads x", "x: a whole number is needed"),
    ("--max-passes 0", "0: a number from 1 up is needed"), ("-c x", "x: a number is needed"),
    ("-c 0", "-c 0: a number between 1e-300 and 1e300 is needed"), ("-e 0", "-e 0: a positive number is needed"),
    ("-B inf", "-B inf: a number or R is needed"), ("--precision half", "half: one of 'float32', 'float64' is needed"),
    ("-s block --inner 0", "--inner 0: a number from 1 up, or auto, is needed"),
    ("-s pegasos --batch ²", "--batch ²: a number from 1 up, or block, is needed"),
    ("--time-limit inf", "--time-limit inf: a positive number is needed"),
    ("-wx 0", "-wx 0: a positive number is needed"),
    ("-s shrink --inner auto", "--inner auto: -s shrink needs a number"),
    ("-s shrink --exact --no-certify", "--no-certify: --exact stops by its certificate"),
    ("-s shrink --exact -e 1", "-e 1: a relative duality gap of 1 or more says nothing"),
])  # fmt: skip
def test_what_is_needed_is_said(words, says):
    assert command_line(*words.split()) == says


def test_the_default_is_right_and_needs_no_saying():
    for name, option in OPTIONS.items():
        assert getattr(Config(), name) == option.default
        assert name == "time_limit" or option.kind is None or option.kind.is_right(option.default)
    assert Config().given() == {}


# --- what is made of it


@pytest.mark.parametrize("name", OWN)
def test_help_names_the_solvers_that_have_an_option(name):
    named = re.findall(rf"(?:-s |, |; )({'|'.join(SOLVERS)})(?=[,:)])", OWN[name].help)
    assert sorted(named) == sorted(OWN[name].solvers)


def test_help_has_every_option_with_its_text_and_its_default(run):
    shown = "".join(run("llsvm-train", "--help").stdout.split())
    for option in OPTIONS.values():
        text = "".join(option.help.split())
        assert text in shown and (not text or f"{option.words.split()[-1].partition('/')[0]}" in shown)
    defaults = re.findall(r"\[default:(.*?)\]", shown)
    assert [part.split(";")[0] for part in defaults] == [
        "dual", "1.0", "(1e-3", "-1", "1", "10000", "1", "accuracy", "min", "1", "zero", "average", "10", "0",
        "1/features", "3", "0", "auto", "random", "float32", "halfofwhatitmayuse", "(allcoresitmayuse)"]  # fmt: skip
    tolerance = OPTIONS["tolerance"]
    assert [float(number) for number in re.findall(r"[\d.e-]{4,}", tolerance.shown)] == [
        tolerance.default, tolerance.default_of["shrink"]]  # fmt: skip


@pytest.mark.parametrize("words, tolerance", [
    ([], 1e-3), (["-s", "shrink"], 1e-2), (["-s", "shrink", "--exact"], 1e-3), (["-s", "shrink", "-e", "0.5"], 0.5),
])  # fmt: skip
def test_a_default_may_be_that_of_a_solver(monkeypatch, words, tolerance):
    seen = []
    monkeypatch.setattr("llsvm.session.train_model", lambda _, __, config, *___: seen.append(config) or (True, False))
    cli.train([*words, "data", "model"], standalone_mode=False)
    assert seen[0].tolerance == tolerance


@pytest.mark.parametrize("options, logged", [
    ({"solver": "dual"}, {"max_passes": 10000}),
    ({"solver": "dual", "max_passes": 3, "time_limit": 2.5}, {"max_passes": 3, "time_limit": 2.5}),
    ({"solver": "block", "inner": 0}, {"max_passes": 10000, "inner": "auto"}),
    ({"solver": "shrink", "inner": 4, "certify": False}, {"max_passes": 10000, "inner": 4}),
    ({"solver": "pegasos", "batch": 0, "hold_t": True},
     {"max_passes": 10000, "batch": "block", "init": "zero", "hold_t": True, "average": True}),
    ({"solver": "stream"}, {"max_passes": 10000, "lookahead": 10}),
], ids=str)  # fmt: skip
def test_the_log_has_the_options_that_a_solver_has(options, logged):
    assert list(Config(**options).logged().items()) == list(logged.items())
