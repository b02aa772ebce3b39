PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test coverage slow docs lint format bench clean

demo: $(STAMP)  ## train, evaluate and report on the embedded digits, about two minutes
	$(BIN)/python -m relucert.experiments.demo

test: $(STAMP)  ## the test suite, and the share of lines that it runs, folder by folder
	$(BIN)/python -m slipcover --source src/relucert --json --out .coverage.json -m pytest -q -n 2
	$(BIN)/python scripts/coverage.py

coverage:  ## the lines that the last `make test` did not run, file by file
	$(BIN)/python scripts/coverage.py --files

slow: $(STAMP)  ## the long studies, which `make test` leaves out
	$(BIN)/python -m pytest -q -m slow

docs: $(VENV)/.installed-docs  ## the documentation site, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html in a browser"

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
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "relucert needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@echo "setting up $(VENV): some minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,scip,onnx,vnnlib,dask,sweep,tensorboard]"
	touch $(STAMP)

$(VENV)/.installed-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) demo docs/_build .coverage.json .pytest_cache .ruff_cache .hypothesis
