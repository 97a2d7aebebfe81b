# All set-up from a fresh clone: `make demo`, `make test`. PYTHON=python3.12 make test chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml setup.py $(wildcard cython_src/*)

.PHONY: build demo test lint bench bench-smoke clean

build: .venv/built

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/built: .venv/bin/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m compileall -q llsvm
	touch $@

.venv/tested: .venv/built
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

.venv/linted: .venv/built
	$(BIN)/python -m pip install --quiet --editable '.[lint]'
	touch $@

.venv/benched: .venv/tested
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

demo: build
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/demo.sh

test: .venv/tested
	$(BIN)/python -m pytest -q

lint: .venv/linted
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint --max-line-length 120 cython_src

# BENCH="--quick my.txt" gives options and files: see scripts/bench.py --help.
bench: .venv/benched
	PATH="$(CURDIR)/$(BIN):$$PATH" python scripts/bench.py $(BENCH)

bench-smoke: .venv/tested
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/bench_smoke.sh

clean:
	rm -rf .venv build dist *.egg-info llsvm/*.so .pytest_cache .hypothesis .ruff_cache
