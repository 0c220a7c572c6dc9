# Everything a newcomer types. Needs Python >= 3.11 (PYTHON=python3.12 chooses another), git and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# A matrix other than the default one: make all EXPERIMENT=smoke
EXPERIMENT ?= default
CONFIG := $(if $(filter-out default,$(EXPERIMENT)),--config experiment=$(EXPERIMENT))

# make record PUSH=1 also sends the files to the remote
PUSH ?=

.PHONY: all record env test test-docker test-quick bench bench-peers lint format lock clean help

all: env  ## measure what is not measured yet, and draw the page
	@snakemake --cores 8 all $(CONFIG)
	@anncestry --experiment $(EXPERIMENT) summary --short

record: all  ## the same, then verify it, and keep it: results under DVC, a git commit of what changed (PUSH=1: pushed)
	@anncestry --experiment $(EXPERIMENT) keep $(if $(PUSH),--push)

env: $(VENV)/.locked  ## the locked environment, in $(VENV)

$(VENV)/.locked: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("anncestry needs Python 3.11 or newer, this is " + sys.version.split()[0] \
	  + ": set PYTHON=… to a newer one") if sys.version_info < (3, 11) else None'
	@echo "Setting up the environment in $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

test: env  ## all tests, those on the real servers too (those in containers: test-docker)
	@python -m pytest -m 'not docker'

test-docker: env  ## the tests in containers; starts an engine if none answers (root: installs Debian's, too), and stops it
	@anncestry engine --install python -m pytest -m docker

test-quick: env  ## the tests that start no server
	@python -m pytest -m 'not servers and not docker'

bench: env  ## figures about this program itself: its own overhead, the time of a call with nothing to do
	@python tests/bench/overhead.py
	@python tests/bench/noop.py
	@python tests/bench/clients.py

bench-peers: env  ## VectorDBBench beside this program's driver, on the same Milvus
	@python tests/bench/peers.py

lint: env  ## formatter, linters and type checker
	@ruff format --check src tests
	@ruff check src tests
	@snakefmt --check Snakefile workflow
	@snakemake --lint
	@mypy

format: env  ## put the code into its form
	@ruff format src tests
	@ruff check --fix --quiet src tests
	@snakefmt Snakefile workflow

lock:  ## resolve requirements.lock anew (needs uv)
	@uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-annotate --quiet -o requirements.lock

clean:  ## remove what can be made again without measuring: logs, scratch, pages
	@rm -rf logs scratch reports .snakemake/log

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
