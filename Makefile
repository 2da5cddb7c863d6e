# Everyday targets. Each installs what it needs into .venv, once, in the exact versions of the lock files.
#
#   make study    run the quickstart study and write its report
#   make test     run every test
#   make nightly  run the extended matrix of the laws and what needs a C++ compiler
#   make gpu      methods on a CUDA device against float64, then its costs and a benchmark; says so where there is none
#   make check    lint, formatting, strict types, and the direction of imports

.POSIX:
.PHONY: study test nightly gpu check

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check

study: $(VENV)/installed
	$(BIN)/maclaurin study quickstart

# one thread per worker: two workers on two cores, and sums in one order
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -rs

nightly: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -rs -m nightly

gpu: $(VENV)/installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" bash benchmarks/gpu.sh

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_imports.py

$(VENV)/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "maclaurin needs Python 3.11 or newer; name one, as in: make PYTHON=python3.12 study")'
	@echo "installing maclaurin into $(VENV), once (about 0.3 GB to fetch with a CPU-only torch)"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.lock
	$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.lock
	$(INSTALL) -r requirements-dev.lock
	@touch $@
