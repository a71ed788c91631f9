# From clone to green: `make test`. Every target sets up what it needs; nothing is skipped when a piece is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: setup lint test compat bench demo soak clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/tidelog/records/kernel.*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

kcat:
	@command -v kcat >/dev/null || { echo "installing kcat (Debian package) for the client tests"; apt-get update -qq && apt-get install -y -qq kcat; }

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup kcat lint
	$(PYTEST) -n 2 --dist loadgroup -m "not compat and not soak"

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache $(VENV)
