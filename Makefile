# make help lists the targets. The first call of any of them creates .venv and installs everything; later ones do not.

# Where pip looks for packages, as pip's own options. A machine without a GPU saves gigabytes with PyTorch's index of CPU
# builds (its address is on PyTorch's installation page): make setup PIP_INDEX="--extra-index-url ADDRESS"
PIP_INDEX ?=
PYTHON ?= python3
RESULTS ?= results/local

# A module is compiled when it is first imported; most of what is installed never is.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_INDEX)
export PYTHONDONTWRITEBYTECODE :=

# Another version of PyTorch than that of constraints.txt, in an environment of its own: make test TORCH=2.14.1
TORCH ?=

VENV := .venv$(TORCH:%=-torch-%)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup test test-slow lint gate gate-accept reproduce reproduce-fig1 sweep-ratios claims explore docs dist clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

# Figures, tables and sweeps: bench/conf/reproduce.yaml has them by these names.
REPRODUCE = $(BIN)/python -m bench reproduce $@ --results "$(RESULTS)"

reproduce-fig1: $(READY) ## measure time per epoch and peak memory here, draw Fig. 1 (12 to 16 minutes)
	$(REPRODUCE)

# Two processes; the tests of one file stay in one of them, since they share what is expensive to make.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(READY) ## run the test suite without its slow tests (4 to 8 minutes on 2 cores)
	$(PYTEST) -m "not slow" --no-loadscope-reorder

setup: $(READY) ## create .venv and install everything

# torch comes first and by an exact version, so that nothing brings another build along; that of TORCH chooses its triton.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11; name a newer one, as in make setup PYTHON=python3.12." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	sed $(if $(TORCH),-e '/^triton==/d' -e 's/^torch==.*/torch==$(TORCH)/') -e '/^#/d' constraints.txt > $(VENV)/constraints.txt
	$(PIP_INSTALL) $$(grep '^torch==' $(VENV)/constraints.txt)
	$(PIP_INSTALL) -c $(VENV)/constraints.txt -e '.[bench,slurm,test,lint,docs]'
	@touch $@

# Files with a slow test alone, which saves the imports of the others. Those of few, long tests come first: by the number
# of tests they would come last, and one process would wait.
SLOW = $(foreach place,test_*.py robustness figures bench baselines comera,$(sort $(shell grep -lr 'mark\.slow' tests/$(place) --include=*.py)))

test-slow: $(READY) ## run the slow tests: trainings, compilations, killed sweeps
	$(PYTEST) -m slow --no-loadscope-reorder $(SLOW)

lint: $(READY) ## check format, style, types and imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gate: $(READY) ## fail if a change made anything bigger or slower (5 minutes on 2 cores)
	@mkdir -p .benchmarks
	$(BIN)/python -m pytest tests/gate -rN --disable-warnings --benchmark-enable --benchmark-quiet --benchmark-json .benchmarks/gate.json

gate-accept: $(READY) ## accept the gate's exact numbers as the new baseline, after showing them
	$(BIN)/python -m bench.gate.baseline

sweep-ratios: $(READY) ## measure and draw time and memory by compression ratio (20 to 30 minutes)
	$(REPRODUCE)

reproduce: $(READY) ## list all other figures, tables and sweeps, such as reproduce-fig7
	@$(BIN)/python -m bench reproduce

reproduce-% sweep-% compare-%: $(READY) FORCE
	$(REPRODUCE)

FORCE:

claims: $(READY) ## print the verdict on each published claim (RESULTS=results/reference)
	@$(BIN)/python -m bench claims --records "$(RESULTS)"

explore: $(READY) ## write explorer.html: every record as a point, with filters
	@$(BIN)/python -m bench explore --records "$(RESULTS)"

docs: $(READY) ## build the documentation: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Only what is built now goes in: setuptools takes files that lie in build/lib from an earlier build.
dist: $(READY) ## build the library's wheel and source archive into dist/
	rm -rf dist build/lib
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist, build_wheel; build_sdist("dist"), build_wheel("dist")'

clean: ## remove every .venv and all caches; records and figures stay
	rm -rf .venv .venv-torch-* .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
