# Everything a checkout needs. `make` alone lists the targets.

# The first of these that is new enough; `make PYTHON=/some/python test` overrides it.
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

BIN := .venv/bin
STAMP := .venv/.installed
CODE := events middleware filters policies spark tests perf

# Arguments for pytest, as in `make test PYTEST_ARGS="-n 0 -x -m 'not spark'"`; a process per core unless told otherwise.
PYTEST_ARGS ?= -n auto

.DEFAULT_GOAL := help
.PHONY: help venv constraints java lint format types test demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## create or update .venv from pyproject.toml and constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "venv: Python 3.11 or newer is needed, and '$(or $(PYTHON),python3)' is not that." \
			"Install it, or name it: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; fi
	@if [ ! -x $(BIN)/python ]; then \
		echo "venv: creating .venv with $$("$(PYTHON)" --version)"; \
		"$(PYTHON)" -m venv .venv || { rm -rf .venv; \
			echo "venv: could not create .venv; on Debian and Ubuntu the python3-venv package is needed" >&2; exit 1; }; fi
	@echo "venv: installing the project and its tools (a minute the first time: pyspark is 450 MB)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,spark]'
	@touch $@

constraints: ## resolve every extra anew in a throw-away environment and rewrite constraints.txt
	@echo "constraints: resolving with the newest releases"
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && "$(PYTHON)" -m venv "$$dir" && \
		"$$dir/bin/python" -m pip install -qq --disable-pip-version-check '.[dev,otel,spark,trio,uvloop]' && \
		"$$dir/bin/python" -m pip list --format freeze --exclude cognitive-events --exclude pip --exclude setuptools \
			> "$$dir/all" && tr A-Z_ a-z- < "$$dir/all" | LC_ALL=C sort > constraints.txt
	@echo "constraints: $$(wc -l < constraints.txt) pins written"

java: ## check for Java 17, which Spark needs; install it where that is possible
	@.ci/java

lint: venv ## ruff: rules and formatting
	@echo "lint: ruff check, ruff format --check"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --check; exit 1; }

format: venv ## let ruff fix and format what it can
	@echo "format: ruff check --fix, ruff format"
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet

types: venv ## mypy, strict, over code and tests
	@echo "types: mypy $(CODE)"
	@$(BIN)/mypy $(CODE)

test: venv java lint types ## everything that must pass: lint, types, and the tests
	@echo "test: pytest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

demo: venv ## a short tour in the terminal
	@echo "demo: python -m events.demo"
	@$(BIN)/python -m events.demo

clean: ## remove .venv, caches and build output
	@echo "clean: removing .venv, caches and build output"
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
