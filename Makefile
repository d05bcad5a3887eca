# `make` alone lists what there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test lint check format bench bench-gate schema lock clean test-vllm test-faults test-kv-events test-external test-lora test-routing test-claude test-claude-waits test-clients test-prometheus

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the locked dependencies and the development tools

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tidegate needs Python 3.11 or newer (set PYTHON=...)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

run: setup ## start the proxy in front of two simulated engines
	@exec $(BIN)/tidegate demo

test: setup ## run the tests
	@$(BIN)/python -m pytest

lint: setup ## format, style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## everything that must hold before a commit

format: setup ## format and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## CPU and added latency as ratios to a plain aiohttp proxy and to nginx, from one interleaved run
	@$(BIN)/python -m tests.bench

bench-gate: setup ## one decision of the admission gate at 64 backends and 50,000 sessions; a million random events
	@$(BIN)/python -m tests.bench.gate_decision
	@$(BIN)/python -m tests.bench.placing

schema: setup ## write config/schema.json and config/tidegate.yaml anew from proxy/config.py
	@$(BIN)/python -m proxy.config

test-vllm: setup ## conformance and 24 agents on a real vLLM on this CPU (installs 3.5 GB once); HALF=conformance or agents
	@HALF=$(HALF) tests/real/test-vllm.sh

test-faults: setup ## clients that leave, a lost metrics page and a killed engine, on a real vLLM on this CPU
	@tests/real/test-faults.sh

test-kv-events: setup ## cleared and evicted prefixes told by the KV events of a real vLLM on this CPU, two minutes
	@tests/real/test-kv-events.sh

test-external: setup ## prefixes that a real vLLM on this CPU fetches from files and from a real LMCache, three minutes; TIERS=words
	@TIERS="$(TIERS)" tests/real/test-external.sh

test-lora: setup ## LoRA adapters of a real vLLM on this CPU that come, change and go, two minutes
	@tests/real/test-lora.sh

test-routing: setup ## 12 agents before two real vLLMs on this CPU: the proxy, round robin and vllm-router (12 minutes); WAYS=words
	@WAYS="$(WAYS)" tests/real/test-routing.sh

test-claude-waits: setup ## the real Claude Code kept waiting by a scripted backend, two minutes
	@tests/real/test-claude-waits.sh

test-claude: setup ## the real Claude Code through the proxy in front of a real vLLM
	@tests/real/test-claude.sh

test-clients: setup ## real clients (agents on the command line, TypeScript SDKs) on a scripted engine (installs 1.2 GB once); ONLY=words
	@ONLY="$(ONLY)" tests/real/test-clients.sh

test-prometheus: setup ## a real Prometheus scrapes the demo and is asked what docs/metrics.md says to ask (apt install prometheus)
	@tests/real/test-prometheus.sh

lock: setup ## resolve the dependencies anew into the two lock files
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile pyproject.toml --extra kv-events --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade -o requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --extra dev -c requirements.lock --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade -o requirements-dev.lock

clean: ## remove what setup and the tests made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
