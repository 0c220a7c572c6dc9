# Needs Python >= 3.11 (PYTHON=python3.12 chooses another), git and make. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The experiment: make all EXPERIMENT=smoke
EXPERIMENT ?= default
CONFIG := $(if $(filter-out default,$(EXPERIMENT)),--config experiment=$(EXPERIMENT))

# make record PUSH=1 also pushes the files to the DVC remote
PUSH ?=

.PHONY: all wheel test-experiments record env cluster slurm test-slurm browser latex compiler network sshd registry test test-docker test-faults test-scale test-quick validation bench bench-decisions bench-decided bench-duet bench-peers equality kept config-page lint format lock clean help

all: env  ## measure what is missing, and draw the page
	@PYTHONPATH=$(CURDIR)/src snakemake --cores 8 all --logger anncestry $(CONFIG)
	@anncestry --experiment $(EXPERIMENT) summary --short

wheel: env  ## build the wheel, with the driver for Linux on x86-64 and arm64, into dist/
	@rm -rf dist scratch/ahead && mkdir -p scratch/ahead
	@PYTHONPATH=$(CURDIR)/src python -m anncestry.drive.build scratch/ahead/drivers
	@PYTHONPATH=$(CURDIR)/src python -c 'import json; from anncestry.provenance.code import tree_facts; print(json.dumps(tree_facts()))' > scratch/ahead/build.json
	@ANNCESTRY_AHEAD=$(CURDIR)/scratch/ahead python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation \
	  --wheel-dir dist .
	@rm -rf build && ls -l dist

record: all  ## like all, then verify the results, add them to DVC and commit (PUSH=1: also push)
	@anncestry --experiment $(EXPERIMENT) keep $(if $(PUSH),--push)

env: $(VENV)/.locked  ## install the locked environment into $(VENV)

# pip installs only wheels whose hashes are in the lock. Two packages have no wheel: the locked setuptools, installed
# first, builds them, and pip fetches no other build dependency.
PIP := -m pip install --quiet --disable-pip-version-check --no-input --require-hashes --only-binary :all:
BUILT := --no-binary antlr4-python3-runtime,connection-pool --no-build-isolation --use-pep517

$(VENV)/.locked: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("anncestry needs Python 3.11 or newer, not " + sys.version.split()[0] \
	  + ": set PYTHON=… to a newer one") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no module venv: install it" \
	  "(Debian: python3-venv), or set PYTHON=… to another Python" >&2; exit 1; }
	@echo "Setting up the environment in $(VENV) (some minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@awk '/^[^ ]/ {take = /^setuptools==/} take' requirements.lock | $(BIN)/python $(PIP) -r /dev/stdin
	@$(BIN)/python $(PIP) $(BUILT) -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable .
	@touch $@

cluster: $(VENV)/.cluster  ## install the executors for Slurm and Kubernetes into $(VENV) (docs/cluster.md)

$(VENV)/.cluster: requirements-cluster.lock $(VENV)/.locked
	@$(BIN)/python $(PIP) -r requirements-cluster.lock
	@touch $@

# Tests with a disk or network of their own need mount and network-namespace rights; without them, make skips these
# tests with a warning.
MAY := $(shell unshare --mount --net true 2>/dev/null && echo yes)
# Tests wait for servers and disks about half of their time, so more workers than two cores; the longest files first.
BESIDE := -n 4 --dist loadfile --no-loadscope-reorder
LIGHT := not servers and not docker and not browser and not slurm$(if $(MAY),, and not root)

test: env browser compiler network  ## run all tests except those with containers (test-docker) and Slurm (test-slurm)
	@python -m pytest $(BESIDE) -m '$(LIGHT) or servers or browser'

browser: latex  ## install Chromium, its driver and LaTeX for the tests of the pages (needs root)
	@command -v chromedriver >/dev/null || { echo "Installing Debian's chromium and chromium-driver"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends chromium chromium-driver >/dev/null; }

latex:  ## install LaTeX with booktabs for the tests of LaTeX tables (needs root; 48 MB)
	@command -v pdflatex >/dev/null && kpsewhich booktabs.sty >/dev/null || { echo "Installing Debian's texlive-latex-recommended"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends texlive-latex-recommended >/dev/null; }

compiler:  ## install g++ for systems that are built from source (needs root)
	@command -v g++ >/dev/null || { echo "Installing Debian's g++"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends g++ >/dev/null; }

network: sshd  ## install ip and sshd for tests with clients in other network namespaces (needs root)
ifeq ($(MAY),)
	@echo "NOT TESTED: FULL DISKS, CLIENTS ON OTHER MACHINES. These tests need mount and network-namespace rights." >&2
else
	@command -v ip >/dev/null || { echo "Installing Debian's iproute2"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends iproute2 >/dev/null; }
endif

sshd: $(VENV)/ssh/.unpacked  ## unpack Debian's sshd and ssh into $(VENV) for a test, without installing them

SSH_PACKAGES := openssh-server openssh-client libwrap0

$(VENV)/ssh/.unpacked: $(VENV)/.locked
ifneq ($(MAY),)
	@echo "Unpacking Debian's sshd into $(VENV)"; rm -rf $(@D); mkdir -p $(@D)/packages
	@cd $(@D)/packages && { apt-get -qq download $(SSH_PACKAGES) 2>/dev/null || { apt-get -qq update && apt-get -qq download $(SSH_PACKAGES); }; }
	@for package in $(@D)/packages/*.deb; do dpkg-deb --extract $$package $(@D); done; rm -r $(@D)/packages
	@touch $@
endif

# OPTIONAL=1: without a container engine, test-docker warns and passes; a failing test still fails
OPTIONAL ?=

test-docker: env  ## run the tests with containers; starts a container engine if none runs (root: also installs it), and stops it
	@if anncestry engine --install true; then $(MAKE) --no-print-directory registry && anncestry engine python -m pytest -m docker; \
	elif [ -n "$(OPTIONAL)" ]; then \
	  echo "NOT TESTED: CONTAINERS. No container engine, for the reason above." >&2; \
	else exit 1; fi

registry:  ## install an image registry for test-docker (needs root)
	@command -v docker-registry >/dev/null || { echo "Installing Debian's docker-registry"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends docker-registry >/dev/null; }

slurm:  ## install Slurm and munge for test-slurm (needs root)
	@PATH=$$PATH:/usr/sbin; command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null \
	  || { echo "Installing Debian's slurmctld, slurmd and munge"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null; }

test-slurm: cluster slurm  ## test the workflow on a local Slurm, which the tests start and stop, and the profile for Kubernetes
	@python -m pytest -m slurm tests/commands/test_slurm.py tests/commands/test_kubernetes.py

# The second command runs the tests that the table of docs/faults.md names.
test-faults: env compiler network  ## test faults: kills, full disks, lying servers, jumping clocks (docs/faults.md)
	@python -m pytest -m 'faults and not docker' tests
	@python -m pytest -m 'not faults and not servers and not docker and not slurm' $$(grep -o '[a-z]*/test_[a-z_]*\.py::test_[a-z_0-9]*' docs/faults.md | sort -u | sed 's,^,tests/,')

test-scale: env  ## test 5 million × 96 within 1 GiB of memory, and 1 million to the page within 400 MiB (docs/scale.md; 8 GB of disk)
	@ANNCESTRY_SCALE_ROWS=5000000 ANNCESTRY_SCALE_MIB=1024 python -m pytest -s tests/faults/test_scale.py
	@ANNCESTRY_SCALE_ROWS=1000000 ANNCESTRY_SCALE_MIB=400 python -m pytest -s tests/faults/whole_scale.py

test-quick: env compiler network  ## run the tests without servers
	@python -m pytest $(BESIDE) -m '$(LIGHT)'

bench: env browser  ## benchmark anncestry itself: its overhead, and a run with nothing to do
	@python tests/bench/overhead.py
	@python tests/bench/noop.py
	@python tests/bench/clients.py
	@python tests/bench/connections.py
	@python tests/bench/verify.py
	@python tests/bench/scale.py
	@python tests/bench/report.py

bench-decisions: env  ## simulate verdicts and intervals: false alarms, power, coverage (docs/statistics.md)
	@python tests/bench/decisions.py

bench-duet: env  ## measure what pairs tell: A/A, planted differences, quiet and busy (TURNS=2 of 3 A/A and 2 planted; ~20 minutes each)
	@python tests/bench/duet.py $(or $(TURNS),2)

bench-decided: env  ## say what results decide: minutes, widths of intervals, comparisons determined (RESULTS=folder)
	@python tests/bench/decided.py $(or $(RESULTS),.) $(EXPERIMENT)

test-experiments: env  ## run one round of an experiment of docs/ledger.csv, another one each day (EXPERIMENT=name; minutes)
	@python tests/bench/rotation.py $(EXPERIMENT)

bench-peers: env  ## compare the driver with VectorDBBench on the same Milvus
	@python tests/bench/peers.py

equality: env  ## compare keys, tables, pages and outputs with BASE=commit, byte by byte (KEPT=archive: more results)
	@python tests/bench/equality.py $(BASE) $(if $(KEPT),--kept $(KEPT)) $(if $(ONLY),--only $(ONLY))

KEPT_EXPERIMENTS := smoke bare-small pgvector-small $(patsubst tests/bench/kept/experiments/%.yaml,%,$(wildcard tests/bench/kept/experiments/*.yaml))

kept: env  ## measure the results for `make equality KEPT=scratch/kept/kept.tar.zst` (an hour)
	@mkdir -p scratch/kept/pack && cp -rT config scratch/kept/config && cp -rT tests/bench/kept scratch/kept/pack/config
	@cp tests/bench/kept/experiments/* scratch/kept/config/experiments && cat tests/bench/kept/workloads.yaml >> scratch/kept/config/workloads.yaml
	@for name in $(KEPT_EXPERIMENTS); do snakemake --directory scratch/kept --cores 8 all --keep-going \
	  --config experiment=$$name config_dir=$(CURDIR)/scratch/kept/config; cp scratch/kept/config/experiments/$$name.yaml scratch/kept/pack/config/experiments; done
	@cd scratch/kept && cp -r data results pack && rm -rf pack/results/table pack/results/report && tar -C pack -c . | zstd -q -19 -f -o kept.tar.zst

config-page: env  ## write docs/config.md and docs/commands.md, the references of the config's keys and of the commands
	@python workflow/schemas/reference.py
	@python workflow/schemas/commands.py

validation: env  ## show how stalls, errors and slow clients change the figures (docs/validation.md)
	@python tests/bench/validation.py

lint: env  ## check format, linters and types
	@ruff format --check src tests casestudies workflow
	@ruff check src tests casestudies workflow
	@snakefmt --check Snakefile workflow
	@snakemake --lint
	@mypy

format: env  ## format the code
	@ruff format src tests casestudies workflow
	@ruff check --fix --quiet src tests casestudies workflow
	@snakefmt Snakefile workflow

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
# Packages of VectorDBBench's pages and dataset stores: its search doesn't need them, and some have no wheels.
UNUSED := streamlit streamlit-autorefresh streamlit-extras oss2 s3fs plotly

# The keys of cells hold the digest of their environment in envs/: put another version into a new file.
lock:  ## resolve requirements.lock, requirements-cluster.lock and envs/vectordbbench.txt again (needs uv)
	@$(LOCK) pyproject.toml --extra dev -o requirements.lock
	@$(LOCK) pyproject.toml --extra cluster -c requirements.lock -o requirements-cluster.lock
	@printf '%s\n' $(UNUSED) > $(VENV)/unused.txt
	@echo vectordb-bench==1.0.18 | $(LOCK) - --excludes $(VENV)/unused.txt --only-binary :all: -o envs/vectordbbench.txt

clean:  ## remove logs, scratch and reports, but keep results and data
	@rm -rf logs scratch reports .snakemake/log

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
