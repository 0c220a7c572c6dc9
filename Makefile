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

.PHONY: all record env cluster slurm test-slurm browser latex compiler network sshd registry test test-docker test-faults test-scale test-quick validation bench bench-peers equality kept lint format lock clean help

all: env  ## measure what is not measured yet, and draw the page
	@snakemake --cores 8 all $(CONFIG)
	@anncestry --experiment $(EXPERIMENT) summary --short

record: all  ## the same, then verify it, and keep it: results under DVC, a git commit of what changed (PUSH=1: pushed)
	@anncestry --experiment $(EXPERIMENT) keep $(if $(PUSH),--push)

env: $(VENV)/.locked  ## the locked environment, in $(VENV)

# Nothing is installed but wheels with the hashes of the lock. Two packages have none: they are built by the locked
# setuptools, which is there first, and by nothing that pip would fetch beside it.
PIP := -m pip install --quiet --disable-pip-version-check --no-input --require-hashes --only-binary :all:
BUILT := --no-binary antlr4-python3-runtime,connection-pool --no-build-isolation --use-pep517

$(VENV)/.locked: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("anncestry needs Python 3.11 or newer, this is " + sys.version.split()[0] \
	  + ": set PYTHON=… to a newer one") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) can't make environments: install its module" \
	  "venv (Debian: python3-venv), or set PYTHON=… to another Python" >&2; exit 1; }
	@echo "Setting up the environment in $(VENV) (some minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@awk '/^[^ ]/ {take = /^setuptools==/} take' requirements.lock | $(BIN)/python $(PIP) -r /dev/stdin
	@$(BIN)/python $(PIP) $(BUILT) -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable .
	@touch $@

cluster: $(VENV)/.cluster  ## the executors for clusters, into $(VENV) (docs/cluster.md)

$(VENV)/.cluster: requirements-cluster.lock $(VENV)/.locked
	@$(BIN)/python $(PIP) -r requirements-cluster.lock
	@touch $@

# Disks and networks of a test's own, on a machine that may make none: said loudly, and left out
MAY := $(shell unshare --mount --net true 2>/dev/null && echo yes)
LIGHT := not servers and not docker and not browser and not slurm$(if $(MAY),, and not root)

test: env browser compiler network  ## all tests but those in containers (test-docker) and on Slurm (test-slurm): light ones side by side, then the real servers and the browser
	@python -m pytest -n 2 --dist loadfile -m '$(LIGHT)'
	@python -m pytest -m 'servers or browser'

browser: latex  ## what the tests of the pages need: Chromium, its driver, LaTeX (root: installs Debian's)
	@command -v chromedriver >/dev/null || { echo "Installing Debian's chromium and chromium-driver"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends chromium chromium-driver >/dev/null; }

latex:  ## LaTeX with booktabs, for the test that tables compile (root: installs Debian's, 48 MB)
	@command -v pdflatex >/dev/null && kpsewhich booktabs.sty >/dev/null || { echo "Installing Debian's texlive-latex-recommended"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends texlive-latex-recommended >/dev/null; }

compiler:  ## g++, for systems that are compiled from source (root: installs Debian's)
	@command -v g++ >/dev/null || { echo "Installing Debian's g++"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends g++ >/dev/null; }

network: sshd  ## ip and sshd, for tests whose clients sit on other machines: network namespaces (root: installs Debian's iproute2)
ifeq ($(MAY),)
	@echo "NOT TESTED: FULL DISKS, CLIENTS ON OTHER MACHINES. This user may neither mount nor make network namespaces here." >&2
else
	@command -v ip >/dev/null || { echo "Installing Debian's iproute2"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends iproute2 >/dev/null; }
endif

sshd: $(VENV)/ssh/.unpacked  ## Debian's sshd and ssh, unpacked into $(VENV) for a test; nothing is installed or started

SSH_PACKAGES := openssh-server openssh-client libwrap0

$(VENV)/ssh/.unpacked: $(VENV)/.locked
ifneq ($(MAY),)
	@echo "Unpacking Debian's sshd into $(VENV)"; rm -rf $(@D); mkdir -p $(@D)/packages
	@cd $(@D)/packages && { apt-get -qq download $(SSH_PACKAGES) 2>/dev/null || { apt-get -qq update && apt-get -qq download $(SSH_PACKAGES); }; }
	@for package in $(@D)/packages/*.deb; do dpkg-deb --extract $$package $(@D); done; rm -r $(@D)/packages
	@touch $@
endif

# OPTIONAL=1: a machine that can't have a container engine is told so, loudly, and passes; a failing test never does
OPTIONAL ?=

test-docker: env  ## the tests in containers; starts an engine if none answers (root: installs Debian's, too), and stops it
	@if anncestry engine --install true; then $(MAKE) --no-print-directory registry && anncestry engine python -m pytest -m docker; \
	elif [ -n "$(OPTIONAL)" ]; then \
	  echo "NOT TESTED: CONTAINERS. This machine can't have a container engine, for the reason above." >&2; \
	else exit 1; fi

registry:  ## a registry of images, for the tests in containers (root: installs Debian's)
	@command -v docker-registry >/dev/null || { echo "Installing Debian's docker-registry"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends docker-registry >/dev/null; }

slurm:  ## Slurm and munge, for test-slurm (root: installs Debian's)
	@PATH=$$PATH:/usr/sbin; command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null \
	  || { echo "Installing Debian's slurmctld, slurmd and munge"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null; }

test-slurm: cluster slurm  ## the workflow on a real Slurm of this machine alone, started and stopped by the test; and by the profile for Kubernetes
	@python -m pytest -m slurm tests/test_slurm.py tests/test_kubernetes.py

# What the table of docs/faults.md names is what is run, after the tests that are about faults as a whole.
test-faults: env compiler network  ## what can go wrong, tried: kills, full disks, lying servers, jumping clocks (docs/faults.md)
	@python -m pytest -m 'faults and not docker' tests
	@python -m pytest -m 'not faults and not servers and not docker and not slurm' $$(grep -o 'test_[a-z_]*\.py::test_[a-z_0-9]*' docs/faults.md | sort -u | sed 's,^,tests/,')

test-scale: env  ## 5 million × 96 under a hard limit of 1 GiB, 1 million to the page under 400 MiB (docs/scale.md; minutes, 8 GB of disk)
	@ANNCESTRY_SCALE_ROWS=5000000 ANNCESTRY_SCALE_MIB=1024 python -m pytest -s tests/test_scale.py
	@ANNCESTRY_SCALE_ROWS=1000000 ANNCESTRY_SCALE_MIB=400 python -m pytest -s tests/whole_scale.py

test-quick: env compiler network  ## the tests that start no server
	@python -m pytest -n 2 --dist loadfile -m '$(LIGHT)'

bench: env browser  ## figures about this program itself: its own overhead, the time of a call with nothing to do
	@python tests/bench/overhead.py
	@python tests/bench/noop.py
	@python tests/bench/clients.py
	@python tests/bench/verify.py
	@python tests/bench/scale.py
	@python tests/bench/report.py

bench-peers: env  ## VectorDBBench beside this program's driver, on the same Milvus
	@python tests/bench/peers.py

equality: env  ## keys, tables, pages and answers of BASE=commit and of this tree, byte by byte (KEPT=archive: of more results)
	@python tests/bench/equality.py $(BASE) $(if $(KEPT),--kept $(KEPT)) $(if $(ONLY),--only $(ONLY))

KEPT_EXPERIMENTS := smoke bare-small pgvector-small $(patsubst tests/bench/kept/experiments/%.yaml,%,$(wildcard tests/bench/kept/experiments/*.yaml))

kept: env  ## measure what `make equality` needs, into scratch/kept/kept.tar.zst (an hour)
	@mkdir -p scratch/kept/pack && cp -rT config scratch/kept/config && cp -rT tests/bench/kept scratch/kept/pack/config
	@cp tests/bench/kept/experiments/* scratch/kept/config/experiments && cat tests/bench/kept/workloads.yaml >> scratch/kept/config/workloads.yaml
	@for name in $(KEPT_EXPERIMENTS); do snakemake --directory scratch/kept --cores 8 all --keep-going \
	  --config experiment=$$name config_dir=$(CURDIR)/scratch/kept/config; cp scratch/kept/config/experiments/$$name.yaml scratch/kept/pack/config/experiments; done
	@cd scratch/kept && cp -r data results pack && rm -rf pack/results/table pack/results/report && tar -C pack -c . | zstd -q -19 -f -o kept.tar.zst

validation: env  ## what is done to the null server or to the client, and what the figures say of it
	@python tests/bench/validation.py

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

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
# Of VectorDBBench what searches: not its pages and the stores of its data sets, which need packages without wheels.
UNUSED := streamlit streamlit-autorefresh streamlit-extras oss2 s3fs plotly

# An environment of envs/ that a workload names is in the keys of its cells: another version gets a file of its own.
lock:  ## resolve requirements.lock, requirements-cluster.lock and envs/vectordbbench.txt anew (needs uv)
	@$(LOCK) pyproject.toml --extra dev -o requirements.lock
	@$(LOCK) pyproject.toml --extra cluster -c requirements.lock -o requirements-cluster.lock
	@printf '%s\n' $(UNUSED) > $(VENV)/unused.txt
	@echo vectordb-bench==1.0.18 | $(LOCK) - --excludes $(VENV)/unused.txt --only-binary :all: -o envs/vectordbbench.txt

clean:  ## remove what can be made again without measuring: logs, scratch, pages
	@rm -rf logs scratch reports .snakemake/log

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
