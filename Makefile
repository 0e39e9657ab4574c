# `make demo` and `make test` need nothing but a fresh Debian or Ubuntu machine.
BIN := .venv/bin
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-slow lint format bench tables setup clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: .venv/installed  ## Train and score a policy and its memoryless twin, write a page (seven minutes)
	$(BIN)/chameleon demo

test: .venv/installed lint  ## Lint, type-check and run the tests (a few minutes)
	$(BIN)/pytest $(PARALLEL)

test-slow: .venv/installed  ## Also run the tests that are marked slow
	$(BIN)/pytest $(PARALLEL) --slow

lint: .venv/installed  ## Ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/installed  ## Format the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed  ## Measure speed next to other implementations; writes runs/
	$(BIN)/python -m benchmarks.performance
	$(BIN)/python -m benchmarks.camo speed
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.exporting

tables: .venv/installed  ## Write every table of the documents from docs/results/
	$(BIN)/python -m benchmarks.tables

setup: .venv/installed  ## Install everything into .venv

.venv/installed: pyproject.toml packages/chameleon_client/pyproject.toml constraints.txt scripts/setup
	scripts/setup
	@touch $@

clean:  ## Remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
