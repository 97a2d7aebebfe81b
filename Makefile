# All set-up from a fresh clone: `make demo`, `make test`. PYTHON=python3.12 make test chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
SECONDS ?= 600
export PIP_DISABLE_PIP_VERSION_CHECK := 1
INSTALL = $(BIN)/python -m pip install --quiet
REQUIRED = $$($(BIN)/python scripts/requirements.py
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: build demo test lint bench bench-smoke torture sdist clean

build: .venv/built

.venv/required: pyproject.toml
	@echo "making .venv: fetching what building and running need"
	$(PYTHON) -m venv .venv
	$(INSTALL) $(REQUIRED) build run)
	touch $@

.venv/built: .venv/required setup.py $(wildcard cython_src/*)
	@echo "compiling what is new in cython_src: about a minute for all of it (build/log has the details)"
	mkdir -p build
	$(BIN)/python setup.py build_ext --inplace >build/log 2>&1 || { cat build/log; exit 1; }
	$(INSTALL) --no-build-isolation --no-deps --editable . >>build/log 2>&1 || { cat build/log; exit 1; }
	$(BIN)/python -m compileall -q llsvm
	touch $@

# What `pip install .[test]` would add, without compiling again; so for the other extras.
.venv/with-%: .venv/built
	$(INSTALL) $(REQUIRED) $*)
	touch $@

demo: build
	$(RUN) sh scripts/demo.sh

test: .venv/with-test
	$(BIN)/python -m pytest -q

lint: .venv/with-lint
	$(BIN)/ruff check .
	$(RUN) cython-lint --max-line-length 120 cython_src

# BENCH="--quick my.txt" gives options and files: see scripts/bench.py --help.
bench: .venv/with-test .venv/with-bench
	$(RUN) python scripts/bench.py $(BENCH)

bench-smoke: .venv/with-test
	$(RUN) sh scripts/bench_smoke.sh

sdist: .venv/required
	$(RUN) sh scripts/check_sdist.sh

clean:
	rm -rf .venv build dist *.egg-info llsvm/*.so .pytest_cache .hypothesis .ruff_cache
