# Every target makes its own environment: Python 3.11+, make and PyPI are all it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TRACE  ?=

.PHONY: demo test check engines crowd replicas validate bench bench-scale bench-plane lock clean
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
	$(BIN)/python -m deploy.grafana.generate --check

# A real vLLM prefill/decode pair behind the gateway; see tests/engines.
engines: $(STAMP)
	$(BIN)/python -m tests.engines.check $(ENGINES_ARGS)

# A thousand concurrent streams for a minute, a tenth of the clients leaving at random.
crowd: $(STAMP)
	$(BIN)/python -m loadtest.crowd $(CROWD_ARGS)

# Three gateways that share a Redis, 2,000 sessions; a gateway, Redis and a decode worker are killed. Five minutes; needs redis-server.
replicas: $(STAMP)
	$(BIN)/python -m loadtest.replicas $(REPLICAS_ARGS)

# The simulator against Dynamo's replay, measured vLLM runs and public benchmarks; docs/validation.md says which files.
DATA   ?= ../shared/data
DYNAMO ?= $(HOME)/.cache/tidegate-rivals/venv/bin/python
validate: $(STAMP)
	$(BIN)/python -m loadtest.validate --data $(DATA) --dynamo $(DYNAMO) $(VALIDATE_ARGS)

bench: $(STAMP)
	$(BIN)/python -m loadtest.bench
	$(BIN)/python -m loadtest.bench_output_length
	$(BIN)/python -m loadtest.bench_conversations

# A thousand workers behind one gateway, ten and a hundred: about a quarter of an hour of one core; docs/guide/scale.md.
bench-scale: $(STAMP)
	$(BIN)/python -m loadtest.scale $(SCALE_ARGS)

# The data plane beside vllm-router and nginx, on two cores of a machine that does nothing else; 40 minutes; docs/performance.md.
BENCH  ?= ../shared/bench
bench-plane: $(STAMP)
	$(BIN)/python -m loadtest.plane --bench $(BENCH) $(PLANE_ARGS)

# Rewrites requirements.lock (everything) and requirements.runtime.lock (what the image needs) from pyproject.toml (the only target that needs uv).
lock:
	uv pip compile pyproject.toml --extra loadtest --extra learn --extra dev --universal --generate-hashes --no-emit-index-url --no-header \
		-o requirements.lock
	uv pip compile pyproject.toml -c requirements.lock --universal --generate-hashes --no-emit-index-url --no-header \
		--no-annotate -o requirements.runtime.lock

clean:
	rm -rf $(VENV) out dist .mypy_cache .ruff_cache .pytest_cache
