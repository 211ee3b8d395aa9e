# Every target makes its own environment: Python 3.11+, make and PyPI are all it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TRACE  ?=

.PHONY: demo test check bench lock clean
.DEFAULT_GOAL := demo

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(STAMP)
	$(BIN)/tidegate demo $(if $(TRACE),--trace $(TRACE)) $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m loadtest.bench

# Rewrites requirements.lock from pyproject.toml (the only target that needs uv).
lock:
	uv pip compile pyproject.toml --all-extras --universal --generate-hashes --no-emit-index-url --no-header -o requirements.lock

clean:
	rm -rf $(VENV) out dist .mypy_cache .ruff_cache .pytest_cache
