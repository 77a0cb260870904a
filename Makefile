# Targets that people and CI call; `make setup` needs only Python 3.11+, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEVICE ?= cpu
LOCK := .ci/lock/$(DEVICE).txt
TARGET ?= $(DEVICE)
PYTEST_ARGS ?=
BENCH_ARGS ?=
# What compares times runs alone; the rest in two processes, each with a TensorFlow or starting one.
PAIR := --numprocesses 2 --dist loadfile
ALONE := tests/integration/test_input_pipeline.py tests/integration/test_link_shaping.py \
  $(filter-out %/test_aggregation.py %/test_transform.py,$(wildcard tests/benchmarks/test_*.py))
# Tests run TensorFlow in their own process, which finds the gpu lock's CUDA libraries with a path to them.
SPACE := $() $()
CUDA_LIBRARIES = $(wildcard $(CURDIR)/$(VENV)/lib/python3*/site-packages/nvidia/*/lib)
PYTEST = LD_LIBRARY_PATH=$(subst $(SPACE),:,$(strip $(LD_LIBRARY_PATH) $(CUDA_LIBRARIES))) $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup bench benchmarks test test-more quick test-all soak map check docs image compose-files lock

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.installed  ## virtual environment .venv from the hashed lock file (DEVICE=cpu or gpu)

$(VENV)/.installed: $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make setup: Python 3.11 or newer is needed, got $$($(PYTHON) --version 2>&1); set PYTHON=" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

bench: setup  ## run the quickstart comparison, print it and the path of its report
	$(BIN)/stratbench run quickstart $(BENCH_ARGS)

benchmarks: setup  ## short benchmarks of pytest, timed, as build/benchmarks.json for `stratbench nightly import`
	@mkdir -p build
	$(BIN)/python -m pytest tests/benchmarks/timed --benchmark-json build/benchmarks.json

test: setup  ## the tests, twelve minutes on two cores; those that lack a browser or a GPU are skipped with the reason
	$(PYTEST) $(PAIR) -m "not more" $(PYTEST_ARGS)

test-more: setup  ## the longer tests: more models, Docker, clusters, browsers, timings
	$(PYTEST) $(PAIR) -m more $(ALONE:%=--ignore %) $(PYTEST_ARGS)
	$(PYTEST) $(ALONE) $(PYTEST_ARGS)

quick: setup  ## the tests of one room, within a minute: make quick ROOM=strategies/passes
	$(PYTEST) $(PAIR) tests/unit/$(ROOM) $(PYTEST_ARGS)

test-all: setup  ## the whole contract matrix
	$(PYTEST) $(PAIR) --ignore tests/integration --ignore tests/benchmarks --all-cases $(PYTEST_ARGS)

soak: setup  ## the long calibrations and cycles, outside CI
	$(PYTEST) tests/soak $(PYTEST_ARGS)

map:  ## every module with what it holds: make map ROOM=strategies/passes
	@git ls-files $(or $(ROOM),harness strategies workloads reports) | grep -E '[a-z0-9]\.py$$' | xargs grep -m1 -H '^"""' \
	  | sed -E 's/:"""/\t/; s/"""$$//' | expand -t 60

check: setup  ## ruff, mypy strict, import-linter, docs examples
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file .ci/mypy-tests.ini tests
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet --numprocesses 2 tests/docs

docs: build/docs-venv/.installed  ## the documentation as a site in build/site, with links and anchors checked
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict

build/docs-venv/.installed: .ci/lock/docs.txt
	$(PYTHON) -m venv build/docs-venv
	build/docs-venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

image:  ## image of a worker, stratbench-worker:dev (TARGET=cpu, gpu, tpu, head, tpu-head, launcher or prometheus; base by BASE_IMAGE=, name by IMAGE=)
	@harness/provision/image/build $(TARGET)

compose-files:  ## what compose.yaml needs beside images: a token, a folder for results, this host's user
	@harness/provision/compose/files


# A worker has what its driver has, in the same versions: Ray and what it pickles must agree.
COMPILE := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header
AGREED := --constraint .ci/lock/cpu.txt

lock:  ## refresh the lock files (needs uv)
	for device in cpu gpu; do \
	  $(COMPILE) --extra $$device --extra dev pyproject.toml -o .ci/lock/$$device.txt || exit; \
	done
	for device in cpu gpu tpu; do \
	  $(COMPILE) $(AGREED) --extra $$device --no-emit-package pyarrow --no-emit-package ruptures pyproject.toml \
	    -o .ci/lock/worker-$$device.txt || exit; \
	done
	printf 'pyarrow\nruptures\n' | $(COMPILE) $(AGREED) --no-emit-package numpy --no-emit-package scipy - -o .ci/lock/head.txt
	echo google-api-python-client | $(COMPILE) $(AGREED) - -o .ci/lock/launcher.txt
	echo 'mkdocs-material>=9.5,<10' | $(COMPILE) --python-version 3.11 - -o .ci/lock/docs.txt
