PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test slow lint format bench clean

demo: $(STAMP)  ## train, evaluate and report on the embedded digits, about two minutes
	$(BIN)/python -m relucert.experiments.demo

test: $(STAMP)  ## the test suite
	$(BIN)/python -m pytest -q -n 2

slow: $(STAMP)  ## the long studies, which `make test` leaves out
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)  ## style, types and the layers of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

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
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .hypothesis
