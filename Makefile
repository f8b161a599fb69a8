# Two commands to know: `make demo` and `make test`. Both install into .venv first; neither needs anything but Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test coverage check-long check-oldest format clean

demo: .venv/demo.done
	$(BIN)/reverie demo

test: .venv/dev.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/pytest -m "not long and not gpu" -n 2 --dist worksteal

# The same tests, a fifth slower, with a list of the lines that none of them reaches.
coverage: .venv/dev.done
	$(BIN)/pytest -m "not long and not gpu" -n 2 --dist worksteal --cov --cov-report=term-missing

# Minutes, not seconds: the whole demo, and whatever else is marked long.
check-long: .venv/dev.done
	$(BIN)/pytest -m long

# With the oldest versions that pyproject.toml allows, in an environment of their own.
check-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt --editable '.[test]'
	.venv-oldest/bin/pytest -m "not long and not gpu" -n 2 --dist worksteal

format: .venv/dev.done
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-oldest .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* *.egg-info

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "reverie needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv

.venv/demo.done: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/dev.done: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/demo.done
