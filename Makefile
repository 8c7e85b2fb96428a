# The commands of this repository. `make help` lists them; each does its own set-up first.
SHELL := /bin/bash
PYTHON ?= python3
ENV := .venv/bin
# Two quiet cores are the reference machine: libraries that spin while waiting steal time from each other.
export OMP_WAIT_POLICY := PASSIVE
export HF_HUB_OFFLINE := 1
# Some machines forbid to keep compiled modules; then each of the hundreds of processes here compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

# Stories that mostly wait, so the first runs beside the others. The rest of e2e/ measures, or needs all cores.
BESIDE := e2e/operator
WAITING := e2e/charts e2e/crd e2e/test_cluster.py e2e/test_faults.py e2e/test_kill_points.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test check faults format generate bench cluster cluster-down clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything into .venv (once; instant when nothing changed)
	@$(PYTHON) .ci/setup.py

demo: setup ## serve a real model on this machine and hold conversations with it, through a crash
	@$(ENV)/python examples/demo.py

check: setup ## the inner loop: format, lint, types, contracts, tests without the long stories
	@$(ENV)/ruff format --check .
	@$(ENV)/ruff check .
	@$(ENV)/mypy
	@PYTHONPATH=. $(ENV)/lint-imports
	@$(ENV)/pytest tests -n 3 --dist loadfile

test: check ## everything that must hold: check, the stories in e2e/, short forms of the benches
	@$(ENV)/python -m e2e.cluster prepare
	@log=$$(mktemp); $(ENV)/pytest $(BESIDE) >$$log 2>&1 & beside=$$!; \
	  $(ENV)/pytest $(WAITING); status=$$?; \
	  wait $$beside || status=$$?; cat $$log; rm $$log; exit $$status
	@$(ENV)/pytest e2e $(patsubst %,--ignore=%,$(BESIDE) $(WAITING))

faults: setup ## a million operations under random faults, ten minutes of random calls (see tests/README.md)
	@$(ENV)/python -m tests.faults.long
	@PAGODA_FUZZ_SECONDS=$${PAGODA_FUZZ_SECONDS:-600} $(ENV)/pytest tests/sidecar/test_fuzz.py

format: setup ## put all code into the house's format and mend what the linter can
	@$(ENV)/ruff format . && $(ENV)/ruff check --fix .

generate: setup ## make anew what is made from other files: gRPC stubs, docs/reference.md, docs/doctor.md, parts of charts/
	@PATH="$(CURDIR)/$(ENV):$$PATH" $(ENV)/python -m grpc_tools.protoc -I protocol \
	  --python_out=protocol --mypy_out=protocol --grpc_python_out=protocol --mypy_grpc_out=protocol \
	  protocol/pagoda_protocol/tier/tier.proto
	@$(ENV)/python crds/reference.py
	@$(ENV)/python docs/doctor.py
	@$(ENV)/python charts/generate.py

bench: setup ## measure: make bench NAME=reuse (no NAME lists them)
	@$(ENV)/python -m bench $(NAME)

cluster: setup ## a real Kubernetes on this machine; prints what to export (make cluster NODE=1: with a node that runs pods)
	@$(ENV)/python -m e2e.cluster up $(if $(NODE),--node)

cluster-down: ## end that Kubernetes and remove everything of it
	@$(ENV)/python -m e2e.cluster down

clean: ## remove the environment and what tools left behind
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build bench/results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
