# `make demo` and `make test` do all their own set-up; nothing but Python 3.11, make and a network is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two processes share the files of tests: most tests wait for something, and each file has its own set-up.
TWO    := -n 2 --dist loadfile
TORCH  := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: help venv demo test test-slow test-faults test-planted lint pytest soak bench clean

help:             ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(STAMP)    ## make .venv/ with Argosy and everything its tests need

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV)/: about a minute if pip finds a CPU build of torch $(TORCH);"
	@echo "where it finds only the build with CUDA, it downloads 2 to 3 GB, which may take 10 minutes or more"
	@echo "(PIP_EXTRA_INDEX_URL names an index that has CPU builds)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: venv        ## train MNIST on 2 servers and 2 workers, here
	$(BIN)/argosy demo

test: lint pytest ## everything that must pass: ruff, mypy --strict, pytest

lint: venv        ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: venv      ## all tests but the slow ones and further cases of faults
	$(BIN)/python -m pytest -m "not slow and not faults" $(TWO)

test-slow: venv   ## the slow ones: torch's own tests of devices and backends, two hosts, whole examples
	$(BIN)/python -m pytest -m slow

test-faults: venv ## every case of every fault, on 3 hosts too: deaths, resets, full disks, bad input
	$(BIN)/python -m pytest -m "not slow or faults" tests/faults

test-planted: venv ## plant small bugs in a copy, and see that a test notices each
	$(BIN)/python tests/planted/planting.py

soak: venv        ## long runs: the full digits, 100,000 steps, 20,000 random programs, a million schedules (not part of `make test`)
	$(BIN)/python -m pytest -s tests/soak/long_runs.py tests/soak/remote_runs.py tests/soak/random_programs.py \
		tests/soak/schedules.py

bench: venv       ## the benchmarks with the peers beside them (about an hour; makes .venv-peers/)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	$(BIN)/python -m benchmarks --with-peers

clean:            ## remove .venv/ and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
