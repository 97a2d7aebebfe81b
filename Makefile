# All set-up from a fresh clone: `make demo`, `make test`. PYTHON=python3.12 make test chooses another interpreter.
PYTHON ?= python3
SECONDS ?= 600
BIN := .venv/bin
RUN := PATH="$(CURDIR)/$(BIN):$$PATH"
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
REQUIRED := $(BIN)/python scripts/requirements.py

.PHONY: build demo test lint bench bench-kernel bench-smoke torture check-sdist clean

build: .venv/built

.venv/required: pyproject.toml
	@echo "== making .venv and fetching what it takes to build and to run"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(INSTALL) $$($(REQUIRED) build run)
	@touch $@

# Compiles once: the editable installation takes what build_ext made. (setup.py sees to that.)
.venv/built: .venv/required setup.py $(wildcard cython_src/*)
	@echo "== compiling what is new in cython_src: all of it takes a minute or two; the compiler's words are in build/log"
	@mkdir -p build && { $(BIN)/python setup.py build_ext --inplace && \
	    $(INSTALL) --no-build-isolation --no-deps --editable . ; } >build/log 2>&1 || { cat build/log; exit 1; }
	@$(BIN)/python -m compileall -q llsvm
	@touch $@

# What `pip install .[test]` would add, without compiling again; so for the other extras.
.venv/with-%: pyproject.toml | .venv/built
	@echo "== fetching what make $* takes"
	@$(INSTALL) $$($(REQUIRED) $*)
	@touch $@

demo: build
	$(RUN) sh scripts/demo.sh

test: build .venv/with-test
	$(BIN)/python -m pytest -q

lint: build .venv/with-lint
	$(BIN)/ruff check .
	$(RUN) cython-lint --max-line-length 120 cython_src

# BENCH="--quick my.txt" gives options and files: see scripts/bench.py --help.
bench: build .venv/with-test .venv/with-bench
	$(RUN) python scripts/bench.py $(BENCH)

# BENCH="-g 4 -c 100 TRAIN TEST" gives other files: see scripts/bench_kernel.py --help.
bench-kernel: build
	$(RUN) python scripts/bench_kernel.py $(BENCH)

bench-smoke: build .venv/with-test
	$(RUN) sh scripts/bench_smoke.sh

# docs/reliability.md. `make torture SECONDS=3600 SEED=7`; TORTURE="--only text" gives options: see scripts/torture --help.
torture: build .venv/with-test
	$(RUN) python scripts/torture --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(TORTURE)

check-sdist: build
	$(RUN) sh scripts/check_sdist.sh

clean:
	rm -rf .venv build dist *.egg-info llsvm/*.so .pytest_cache .hypothesis .ruff_cache
