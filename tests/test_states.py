"""Training that is handed on, from one solver's states to another's, gives the same bits as undisturbed."""

import itertools
from contextlib import ExitStack

import pytest
from problems import make_classes, split, write_text

from llsvm import train

# Solver, place, options; with memory for a part of the rows they come from disk.
CASES = [(solver, place, {}) for solver in ("cs", "ww") for place in ("in memory", "on disk")]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 classes", "4 classes"])
def text(request, tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("states") / "rows.txt", *make_classes(1500, request.param))


@pytest.fixture(scope="module")
def blocks(text):
    return split(text, 4)


class Runs:
    """Solvers of one problem, each with data opened for it alone."""

    def __init__(self, stack: ExitStack, paths, place, **options):
        self._stack, self._paths, self._place = stack, paths, place
        self._config = train.Config(bias=1.0, C=3.0, tolerance=1e-9, **options)

    def start(self, states=None):
        data = self._stack.enter_context(train.open_data(self._paths, self._config))
        assert data.where == self._place
        solver = train.start(data, self._config, states)
        self._stack.callback(solver.close)
        return solver


def make_passes(solver, count):
    found = []
    for stats in itertools.islice(solver.passes(), count):
        found.append((stats.number, stats.active, stats.primal, stats.dual, stats.change))
    return found


@pytest.mark.parametrize(("solver", "place", "options"), CASES, ids=str)
@pytest.mark.parametrize("before", [1, 3, 6])
def test_training_that_is_handed_on_gives_the_same_bits_as_undisturbed(text, blocks, solver, place, options, before):
    memory = 180_000 if place == "on disk" else 1 << 30
    with ExitStack() as stack:
        runs = Runs(stack, [blocks] if place == "on disk" else [text], place, solver=solver, memory=memory, seed=5, **options)
        undisturbed, first = runs.start(), runs.start()
        expected = make_passes(undisturbed, before + 5)
        found = make_passes(first, before)
        second = runs.start(first.states)
        found += make_passes(second, 5)
        assert found == expected and len(expected) == before + 5
        assert second.weights().tobytes() == undisturbed.weights().tobytes()
        for each in (second, undisturbed):
            each.finish("passes")
        assert second.best_w.tobytes() == undisturbed.best_w.tobytes()
        assert second.certified == undisturbed.certified
