# `make serve` and `make test` do everything on a fresh machine with Python 3.11 or newer and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: serve demo test check identity install clean

serve: ## the default: a real small model behind an imitated cloud and an imitated phone
	@$(PYTHON) -m serve_app.cli.bootstrap serve $(ARGS)

demo: ## the same without a model or a compiler
	@$(PYTHON) -m serve_app.cli.bootstrap demo $(ARGS)

install: ## everything that the tests need, into .venv
	@$(PYTHON) -m serve_app.cli.bootstrap install dev llama sim

check: install ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check ## check, then every test that needs no vLLM
	$(BIN)/disco model fetch smollm2-135m-instruct gemma3-270m
	$(BIN)/python -m pytest -m "not vllm" --cov --cov-report=term

identity: install ## every cut 1..64 of five prompts through the real model: about half an hour
	$(BIN)/disco model fetch smollm2-135m-instruct
	$(BIN)/python -m pytest tests/identity --all-cuts -q

clean:
	rm -rf .venv build dist .coverage .hypothesis .mypy_cache .ruff_cache
