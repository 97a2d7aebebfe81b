"""Pages whose examples are run as they stand."""

import re
from pathlib import Path

import pytest
from problems import four_classes, write_text

from llsvm import session, solvers, train

ROOT = Path(__file__).parent.parent


@pytest.fixture
def solver_table():
    """What a page adds to the table of solvers goes again."""
    before = dict(solvers.SOLVERS)
    yield
    solvers.SOLVERS.clear()
    solvers.SOLVERS.update(before)


def test_the_solver_of_the_page_that_adds_one_comes_to_the_optimum(solver_table, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    names = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", Path("docs/adding-a-solver.md").read_text(), re.DOTALL):
        exec(code, names)
    assert capsys.readouterr().out == "converged True\n"
    config = train.Config(bias=1.0, tolerance=1e-6)
    with train.open_data(["data/sample.train.txt"], config) as data:
        exact = train.run(train.start(data, config), config).certificate
    session.train_model(["data/sample.train.txt"], str(tmp_path / "model"), names["config"], None, True, True, print)
    assert "solver_type L2R_L1LOSS_SVC_DUAL" in (tmp_path / "model").read_text()
    toy = names["outcome"].certificate
    assert toy.dual <= exact.primal and exact.dual <= toy.primal <= exact.primal / (1 - 1e-3)


def test_it_trains_any_number_of_classes(solver_table, monkeypatch, tmp_path):
    text = write_text(tmp_path / "classes.txt", *four_classes(300))
    monkeypatch.chdir(ROOT)
    names = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", Path("docs/adding-a-solver.md").read_text(), re.DOTALL)[:2]:
        exec(code, names)
    found = {}
    for solver in ("toy", "dual"):
        config = train.Config(solver=solver, bias=1.0, tolerance=1e-3)
        with train.open_data([str(text)], config) as data:
            found[solver] = train.run(train.start(data, config), config).certificate
    assert found["toy"].dual <= found["dual"].primal and found["dual"].dual <= found["toy"].primal


@pytest.mark.parametrize("name", solvers.SOLVERS)
def test_every_solver_has_what_the_protocol_asks(name):
    row = solvers.SOLVERS[name]
    builds = {row.in_memory, row.on_disk, row.once}
    asked = [key for key in vars(solvers.Solver) if not key.startswith("_")]
    assert {"passes", "finish", "weights", "show_progress", "close"} <= set(asked)
    for build in builds - {None}:
        assert not [method for method in asked if not callable(getattr(build, method, None))]
