"""Training that is handed on, from one solver's states to another's, gives the same bits as undisturbed."""

import itertools
from contextlib import ExitStack

import pytest
from problems import make_classes, split, write_text

from llsvm import train
from llsvm.solvers import SOLVERS

PLACES = {"in memory": 1 << 30, "on disk": 270_000, "read once": 1 << 30}  # and their budgets
# Solver, place, passes before states are handed on, options.
CASES = [
    *((solver, place, before, {"threads": threads}) for solver in ("dual", "dual-l2")
      for place in ("in memory", "on disk") for before in (1, 4) for threads in (1, 3)),
    *(("block", "on disk", before, {"threads": threads}) for before in (1, 3, 6) for threads in (1, 2)),
    *((solver, place, before, {}) for solver in ("cs", "ww") for place in ("in memory", "on disk")
      for before in (1, 3, 6)),
    *(("pegasos", place, before, options) for place in ("in memory", "on disk") for before in (1, 3, 6)
      for options in ({}, {"batch": 40, "average": False}, {"init": "random"})),
    ("pegasos", "on disk", 3, {"batch": 0}),
    ("pegasos", "read once", 1, {"max_passes": 1, "batch": 7}),
    *(("shrink", "read once", before, {"threads": threads, "bias": None}) for before in (1, 3) for threads in (1, 3)),
    *(("stream", "read once", 1, {"lookahead": lookahead}) for lookahead in (1, 10)),
]  # fmt: skip


@pytest.fixture(scope="module", params=[2, 4], ids=["2 classes", "4 classes"])
def paths(request, tmp_path_factory):
    """The same rows for every place."""
    text = write_text(tmp_path_factory.mktemp("states") / "rows.txt", *make_classes(1500, request.param))
    return {"in memory": text, "on disk": split(text, 4), "read once": text}


@pytest.fixture
def start(paths):
    """start(solver, place, data=None, states=None, **options) -> solver, its data; both are closed at the end."""
    with ExitStack() as stack:
        def start(solver, place, data=None, states=None, **options):
            given = {"solver": solver, "memory": PLACES[place], "bias": 1.0, "C": 3.0, "tolerance": 1e-9, **options}
            config = train.Config(**given)
            data = data or stack.enter_context(train.open_data([paths[place]], config))
            assert data.where == place
            made = train.start(data, config, states)
            stack.callback(made.close)
            return made, data

        yield start


def make_passes(solver, count):
    found = []
    for stats in itertools.islice(solver.passes(), count):
        found.append((stats.active, stats.primal, stats.dual, stats.change))
    return found


@pytest.mark.parametrize(("solver", "place", "before", "options"), CASES, ids=str)
def test_training_that_is_handed_on_gives_the_same_bits_as_undisturbed(start, solver, place, before, options):
    """Rows that are read once are those of the first solver: what it hands on is what it is after having read them."""
    (undisturbed, _), (first, data) = start(solver, place, **options), start(solver, place, **options)
    after = 0 if place == "read once" and solver != "shrink" else 5
    expected = make_passes(undisturbed, before + after)
    found = make_passes(first, before)
    second, _ = start(solver, place, data if place == "read once" else None, first.states, **options)
    found += make_passes(second, after)
    assert found == expected and len(expected) > max(1, after) - 1
    assert second.weights().tobytes() == undisturbed.weights().tobytes()
    for each in (second, undisturbed):
        each.finish("passes")
    assert second.best_w.tobytes() == undisturbed.best_w.tobytes()
    assert second.certified == undisturbed.certified and second.certificates == undisturbed.certificates


def test_every_solver_of_the_table_hands_on_its_states():
    assert {solver for solver, *_ in CASES} == set(SOLVERS) - {"ipm"}
