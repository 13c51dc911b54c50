PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help run test check fix docs example bench clean

help: ## What can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

run: $(BIN)/.installed ## Install and run the shipped examples: no key, no network
	$(BIN)/chatflow-eval run scenarios/

test: $(BIN)/.installed ## Install and pass the tests
	$(BIN)/python -m pytest -q

check: $(BIN)/.installed ## Lint, format and types, as CI does
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(BIN)/.installed ## Mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BIN)/.installed ## Run every block of the README and docs/
	$(BIN)/python -m pytest -q tests/test_docs.py

example: $(BIN)/.installed ## Make the committed example report and its pictures anew
	$(BIN)/python tools/example.py

bench: $(BIN)/.installed ## Measure and rewrite benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py

clean: ## Forget what was installed and cached
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
