# `make help` lists the targets. `make demo` and `make test` need nothing but Python 3.11+ with venv; they set up the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: setup protos format lint types test test-compose demo lab lab-down up down bench bench-scheduler verify help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Orrery needs Python 3.11 or newer as '$(PYTHON)'; name another one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv is missing; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(STAMP) ## Make the virtual environment

protos: $(STAMP) ## Generate the protobuf modules again
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I . --python_out=. --mypy_out=quiet:. $$(find protos -name '*.proto' | sort)

format: $(STAMP) ## Format the code
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

lint: $(STAMP) ## Style, layers, drift of the generated modules
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports

types: $(STAMP) ## mypy --strict
	@$(BIN)/mypy

test: $(STAMP) ## Every test, on real etcd
	@$(BIN)/pytest

test-compose: $(STAMP) ## The labs, on the compose project (needs Docker)
	@ORRERY_COMPOSE=1 $(BIN)/pytest tests/compose

lab: ## The mesh in containers: up, healthy, loaded (needs Docker alone)
	@bash deploy/lab.sh up

lab-down: ## Take it down, with its volumes
	@bash deploy/lab.sh down

demo: $(STAMP) ## A small GPU cluster from nothing to Running, with one trace
	@$(BIN)/orrery demo

up: $(STAMP) ## Start a mesh in the background
	@$(BIN)/orrery up

down: $(STAMP) ## Stop it
	@$(BIN)/orrery down

bench: $(STAMP) ## Benchmarks; they print, they do not judge
	@$(BIN)/python -m bench

bench-scheduler: $(STAMP) ## CPU a pod of the scheduler's core alone
	@$(BIN)/python -m bench scheduler

verify: lint types test ## What has to hold before a commit lands
