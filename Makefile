PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test coverage slow lint format bench clean

demo: $(STAMP)  ## train, evaluate and report on the embedded digits, about two minutes
	$(BIN)/python -m relucert.experiments.demo

test: $(STAMP)  ## the test suite
	$(BIN)/python -m pytest -q -n 2

# Line tracing makes the tests a third to a half slower before Python 3.12, so it has a target of its own.
coverage: $(STAMP)  ## the test suite, and the share of lines that it runs
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	$(BIN)/python -m pytest -q -n 2 --cov --cov-report=term:skip-covered

slow: $(STAMP)  ## the long studies, which `make test` leaves out
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)  ## style, types, the layers of the package and its counts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py
	$(BIN)/python scripts/files_touched.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## every benchmark, as ratios against a baseline measured in the same run
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "relucert needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,scip]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo .coverage .pytest_cache .ruff_cache .hypothesis
