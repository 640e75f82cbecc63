# Each target sets up .venv by itself. Needed on a fresh clone: make, and Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=
# Most tests that take long start a real job and wait for it: four at a time keep two cores busy.
WORKERS ?= 4
# Tests start Python a thousand times: compiled anew each time, our modules would take a third of the suite.
KEEPS_BYTECODE := env -u PYTHONDONTWRITEBYTECODE

# The first Python that is new enough and can make virtual environments; PYTHON=... overrides the search.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
SUITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do \
	"$$python" -c '$(SUITS)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

.PHONY: help demo test test-gpu lint format bench screenshots clean
.DELETE_ON_ERROR:

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

demo: $(INSTALLED) ## start a bundled training job and watch it (ARGS="allreduce_matmul --nproc 4")
	@$(BIN)/overlaptop demo $(ARGS)

test: $(INSTALLED) ## the tests that need no GPU (ARGS="tests/timeline -x")
	@$(KEEPS_BYTECODE) $(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-gpu: $(INSTALLED) ## the tests that need a GPU
	@$(BIN)/pytest -m gpu $(ARGS)

lint: $(INSTALLED) ## ruff, mypy --strict, the layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(INSTALLED) ## let ruff put the source in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(INSTALLED) ## what the dashboard costs, and the agent
	@$(BIN)/python benchmarks/dashboard.py
	@$(BIN)/python benchmarks/pairs.py $(ARGS)

screenshots: $(INSTALLED) ## draw screenshots/ anew from real jobs
	@$(BIN)/python screenshots/make.py $(ARGS)

clean: ## remove the environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "overlaptop needs Python 3.11 or newer with venv (Debian: apt install python3-venv)." >&2; \
		echo "None of these fits: $(CANDIDATES). Name one with: make PYTHON=/path/to/python" >&2; \
		exit 1; fi
	@$(PYTHON) -c '$(SUITS)' || { \
		echo "$(PYTHON) does not fit: Python 3.11 or newer with venv is needed." >&2; exit 1; }
	@echo "Installing into $(VENV) ..." >&2
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@# A path in place of a finder: in the folder that holds a clone, the clone would be found in its stead.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]' \
		--config-settings editable_mode=compat
	@touch $@
