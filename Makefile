# Needs Python >= 3.11 (PYTHON=python3.12 chooses another), git and make. `make help` lists the targets, but those that others
# run by themselves.
PYTHON ?= python3
VENV = .venv
BIN := $(VENV)/bin
export PATH := $(if $(filter /%,$(BIN)),$(BIN),$(CURDIR)/$(BIN)):$(PATH)
# The experiment: make all EXPERIMENT=smoke
EXPERIMENT ?= default
CONFIG := $(if $(filter-out default,$(EXPERIMENT)),--config experiment=$(EXPERIMENT))

# make record PUSH=1 also pushes the files to the DVC remote
PUSH ?=

.PHONY: all wheel evidence evidence-renew figures docs test-experiments record env cluster slurm test-slurm browser latex compiler network sshd registry test test-docker test-faults test-long test-scale test-quick test-elsewhere test-release validation bench bench-decisions bench-decided bench-duet bench-guard bench-peers equality kept references lint format lock clean help

all: env  ## measure what is missing, and draw the page
	@PYTHONPATH="$(CURDIR)/src:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))" snakemake --cores 8 all --logger anncestry $(CONFIG)

EVIDENCE := cd evidence && PYTHONPATH="$(CURDIR)/src:$(CURDIR)"
SHIPPED := smoke upgrade-small findings

# make evidence SHOW="upgrade-small findings" draws and verifies the other two
SHOW ?= smoke
TRACED := --system milvus-2.3.5 --workload smoke-k10 --metric p50_ms

evidence: env  ## pull the results that ship with the repository, draw the page of one, make its numbers again (under a minute, offline once env is done; SHOW="upgrade-small findings": the others)
	@$(if $(filter-out $(SHIPPED),$(SHOW)),echo "SHOW=$(SHOW): only the results of $(SHIPPED) ship" >&2; exit 1,:)
	@dvc pull --quiet -r evidence evidence/results.dvc evidence/data.dvc
	@for experiment in $(SHOW); do \
	  ($(EVIDENCE) snakemake -s ../Snakefile --cores 2 all --config experiment=$$experiment) && \
	  ($(EVIDENCE) anncestry --experiment $$experiment verify) || exit; \
	done
	@echo "look at: $(SHOW:%=evidence/reports/%/index.html)"
	@$(if $(filter smoke,$(SHOW)),echo "trace a number: . .venv/bin/activate && cd evidence && anncestry --experiment smoke why $(TRACED)",:)
	@$(if $(filter-out $(SHOW),$(SHIPPED)),echo "see the others: make evidence SHOW=\"$(filter-out $(SHOW),$(SHIPPED))\"",:)

# A missing results/ is a forgotten pull, which anncestry refuses to measure; an empty one whose listing was fetched is meant.
evidence-renew: env  ## measure again what changed of the results that ship with the repository (ALL=1: all of them)
	@[ -d evidence/results ] || $(if $(ALL),mkdir evidence/results,dvc pull --quiet -r evidence evidence/results.dvc evidence/data.dvc)
	@$(if $(ALL),dvc fetch --quiet -r evidence evidence/results.dvc; rm -rf evidence/results/* evidence/data,rm -rf evidence/results/table evidence/results/report)
	@for experiment in $(SHIPPED); do \
	  ($(EVIDENCE) snakemake -s ../Snakefile --cores 8 all --config experiment=$$experiment) || exit; \
	done
	@PYTHONPATH="$(CURDIR)/src:$(CURDIR)" python tools/pages/measured.py
	@$(EVIDENCE) anncestry gc --results --yes
	@rm -rf evidence/results/table evidence/results/report evidence/store
	@dvc commit --quiet --force evidence/results.dvc evidence/data.dvc && dvc push --quiet -r evidence evidence/results.dvc evidence/data.dvc

wheel: env  ## build the wheel, with the driver for Linux on x86-64 and arm64, into dist/
	@rm -rf dist scratch/ahead && mkdir -p scratch/ahead
	@PYTHONPATH="$(CURDIR)/src" python -m anncestry.drive.build scratch/ahead/drivers
	@PYTHONPATH="$(CURDIR)/src" python -c 'import json; from anncestry.provenance.code import tree_facts; print(json.dumps(tree_facts()))' > scratch/ahead/build.json
	@ANNCESTRY_AHEAD="$(CURDIR)/scratch/ahead" python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation \
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
# Snakemake looks for plugins in the folders of the path, which the finder of an editable installation is not.
	@$(BIN)/python -c 'import site, sys; open(site.getsitepackages()[0] + "/anncestry-plugin.pth", "w").write(sys.argv[1])' "$(CURDIR)/src"
	@touch $@

cluster: $(VENV)/.cluster  ## install the executors for Slurm and Kubernetes into $(VENV) (docs/cluster.md)

$(VENV)/.cluster: requirements-cluster.lock $(VENV)/.locked
	@$(BIN)/python $(PIP) -r requirements-cluster.lock
	@touch $@

figures: env  ## list the measured figures in docs whose commit is not in this history
	@python tools/pages/commits.py

docs: $(VENV)/.docs  ## build the site of the documentation, with its search and a report as its example: scratch/site/html/
	@python tools/pages/build.py

$(VENV)/.docs: requirements-docs.lock $(VENV)/.locked
	@$(BIN)/python $(PIP) -r requirements-docs.lock
	@touch $@

# Tests wait for servers and disks about half of their time, so more workers than two cores; the longest files first.
# What this machine can't test, as a right or a program is missing, is left out and said in the last line.
# The 40 longest steps and 25 longest files are printed at the end: the order of files in tests/conftest.py follows them.
# Who fails once is tried once more, and named at the end (tests/tries.py).
BESIDE := -n 4 --reruns 1 --reruns-delay 30 --dist loadfile --no-loadscope-reorder --what-this-machine-can --durations=40 --durations-min=1
# Tests start some thousand processes of Python, which would compile every module anew where bytecode is not kept.
COMPILED := env -u PYTHONDONTWRITEBYTECODE
LIGHT := not servers and not docker and not browser and not slurm and not long

# Debian's packages $(2), unless $(1) succeeds. Without root or apt nothing is installed, and tests that need it are left out.
MAY_INSTALL := $(shell [ "$$(id -u)" = 0 ] && command -v apt-get)
define install
	@{ $(1); } >/dev/null 2>&1 || { $(if $(MAY_INSTALL),echo "Installing Debian's $(2)"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends $(2) >/dev/null,:); } || echo "$(2): not installed"
endef

test: env browser compiler network  ## run all tests that this machine can, except those with containers (test-docker) and Slurm (test-slurm)
	@$(COMPILED) python -m pytest $(BESIDE) -m 'not docker and not slurm and not long'

test-long: env compiler  ## run the tests that build servers from source or take minutes each, which make test leaves out
	@$(COMPILED) python -m pytest $(BESIDE) -m long

browser: latex  # install Chromium, its driver and LaTeX for the tests of the pages (if root)
	$(call install,command -v chromedriver,chromium chromium-driver)

latex:  # install LaTeX with booktabs for the tests of LaTeX tables (if root; 48 MB)
	$(call install,command -v pdflatex && kpsewhich booktabs.sty,texlive-latex-recommended)

compiler:  # install g++ for systems that are built from source (if root)
	$(call install,command -v g++,g++)

network: sshd  # install ip and sshd for tests with clients in other network namespaces (if root)
	$(call install,command -v ip,iproute2)

sshd: $(VENV)/.locked  # unpack Debian's sshd and ssh into $(VENV) for a test, without installing them (if root)
	@[ -e $(SSHD)/.unpacked ] || { $(if $(MAY_INSTALL),echo "Unpacking Debian's sshd into $(VENV)"; \
	  rm -rf $(SSHD) && mkdir -p $(SSHD)/packages && cd $(SSHD)/packages \
	  && { apt-get -qq download $(SSH_PACKAGES) 2>/dev/null || { apt-get -qq update && apt-get -qq download $(SSH_PACKAGES); }; } \
	  && for package in *.deb; do dpkg-deb --extract $$package ..; done && touch ../.unpacked && rm -r ../packages,:); } \
	  || echo "$(SSH_PACKAGES): not unpacked"

SSHD := $(VENV)/ssh
SSH_PACKAGES := openssh-server openssh-client libwrap0

# OPTIONAL=1: without a container engine, test-docker warns and passes; a failing test still fails
OPTIONAL ?=

test-docker: env  ## run the tests with containers; starts a container engine if none runs (root: also installs it), and stops it
	@if anncestry engine --install true; then $(MAKE) --no-print-directory registry && anncestry engine python -m pytest -m docker; \
	elif [ -n "$(OPTIONAL)" ]; then \
	  echo "NOT TESTED: CONTAINERS. No container engine, for the reason above." >&2; \
	else exit 1; fi

registry:  # install an image registry for test-docker (needs root)
	@command -v docker-registry >/dev/null || { echo "Installing Debian's docker-registry"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends docker-registry >/dev/null; }

slurm:  # install Slurm and munge for test-slurm (needs root)
	@PATH=$$PATH:/usr/sbin; command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null \
	  || { echo "Installing Debian's slurmctld, slurmd and munge"; \
	  apt-get -qq update && apt-get -qq -y install --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null; }

test-slurm: cluster slurm  ## test the workflow on a local Slurm, which the tests start and stop, and the profile for Kubernetes
	@python -m pytest -m slurm tests/commands/test_slurm.py tests/commands/test_kubernetes.py

# The second command runs the tests that the table of docs/faults.md names.
test-faults: env compiler network  ## test faults: kills, full disks, lying servers, jumping clocks (docs/faults.md)
	@python -m pytest --what-this-machine-can -m 'faults and not docker' tests
	@python -m pytest --what-this-machine-can -m 'not faults and not servers and not docker and not slurm' $$(grep -o '[a-z]*/test_[a-z_]*\.py::test_[a-z_0-9]*' docs/faults.md | sort -u | sed 's,^,tests/,')

test-scale: env  ## test 5 million × 96 within 1 GiB of memory, and 1 million to the page within 400 MiB (docs/scale.md; 8 GB of disk)
	@ANNCESTRY_SCALE_ROWS=5000000 ANNCESTRY_SCALE_MIB=1024 python -m pytest -s tests/faults/test_scale.py
	@ANNCESTRY_SCALE_ROWS=1000000 ANNCESTRY_SCALE_MIB=400 python -m pytest -s tests/faults/whole_scale.py

test-quick: env compiler network  ## run the tests without servers
	@$(COMPILED) python -m pytest $(BESIDE) -m '$(LIGHT)'

test-elsewhere:  ## try `make env` and `make test-quick` in a fresh clone where apt can't be run (root; docs/install.md)
	@tests/elsewhere.sh

RELEASE := trixie

test-release:  ## try `make env` and `make test-quick` on another release of Debian (RELEASE=trixie; root and debootstrap; docs/install.md)
	@tests/release.sh $(RELEASE)

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

bench-duet: env  ## measure what pairs tell: A/A, planted differences (TURNS=1 CONDITION=quiet or busy; 3 A/A and 2 planted, ~14 minutes), into docs/duet.csv
	@python tests/bench/duet.py $(or $(TURNS),1) $(CONDITION)

bench-guard: env  ## measure whether guard finds higher efforts, a CPU quota, a delay and a build flag (TURNS=1; ~1 hour), into docs/guard.csv
	@python tests/bench/guarded.py $(or $(TURNS),1)

bench-decided: env  ## say what results decide: minutes, widths of intervals, comparisons determined (RESULTS=folder)
	@python tests/bench/decided.py $(or $(RESULTS),.) $(EXPERIMENT)

test-experiments: env  ## run one round of an experiment of docs/ledger.csv, another one each day (EXPERIMENT=name; minutes)
	@python tests/bench/rotation.py $(EXPERIMENT)

bench-peers: env  ## compare the driver with VectorDBBench's own runner on the same Milvus and MariaDB (EXPERIMENT=one of them; ROUNDS=3)
	@python tests/bench/peers.py $(EXPERIMENT)

equality: env  ## compare keys, tables, pages and outputs with BASE=commit, byte by byte (KEPT=archive: more results)
	@python tests/bench/equality.py $(BASE) $(if $(KEPT),--kept $(KEPT)) $(if $(ONLY),--only $(ONLY))

KEPT_EXPERIMENTS := smoke bare-small pgvector-small $(patsubst tests/bench/kept/experiments/%.yaml,%,$(wildcard tests/bench/kept/experiments/*.yaml))

kept: env  ## measure the results for `make equality KEPT=scratch/kept/kept.tar.zst` (an hour)
	@mkdir -p scratch/kept/pack && cp -rT config scratch/kept/config && cp -rT tests/bench/kept scratch/kept/pack/config
	@cp tests/bench/kept/experiments/* scratch/kept/config/experiments && cat tests/bench/kept/workloads.yaml >> scratch/kept/config/workloads.yaml
	@for name in $(KEPT_EXPERIMENTS); do snakemake --directory scratch/kept --cores 8 all --keep-going \
	  --config experiment=$$name config_dir=$(CURDIR)/scratch/kept/config; cp scratch/kept/config/experiments/$$name.yaml scratch/kept/pack/config/experiments; done
	@cd scratch/kept && cp -r data results pack && rm -rf pack/results/table pack/results/report && tar -C pack -c . | zstd -q -19 -f -o kept.tar.zst

references: env  ## write the references: docs/config.md, docs/commands.md, docs/records.md, docs/fairness.md, docs/documents.md
	@python tools/pages/reference.py
	@python tools/pages/commands.py
	@python tools/pages/records.py
	@python tools/pages/fairness.py
	@python -m casestudies.rows

validation: env  ## show how stalls, errors and slow clients change the figures (docs/validation.md)
	@python tests/bench/validation.py

# Building the site checks its links, too: `make lint docs` checks them once.
lint: env $(VENV)/.docs  ## check format, linters, types, and the links of the documentation
	@ruff format --check src tests casestudies tools
	@ruff check src tests casestudies tools
	@snakefmt --check Snakefile workflow
	@snakemake --lint
	@mypy
	@$(if $(filter docs,$(MAKECMDGOALS)),,python tools/pages/build.py --check)

format: env  ## format the code
	@ruff format src tests casestudies tools
	@ruff check --fix --quiet src tests casestudies tools
	@snakefmt Snakefile workflow

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
# Packages of VectorDBBench's pages and dataset stores: its search doesn't need them, and some have no wheels.
UNUSED := streamlit streamlit-autorefresh streamlit-extras oss2 s3fs plotly

# The keys of cells hold the digest of their environment in envs/: put another version into a new file.
lock:  ## resolve requirements.lock, -cluster.lock, -docs.lock and envs/vectordbbench*.txt again (needs uv)
	@$(LOCK) pyproject.toml --extra dev -o requirements.lock
	@$(LOCK) pyproject.toml --extra cluster -c requirements.lock -o requirements-cluster.lock
	@$(LOCK) --group docs -c requirements.lock -o requirements-docs.lock
	@printf '%s\n' $(UNUSED) > $(VENV)/unused.txt
	@echo vectordb-bench==1.0.18 | $(LOCK) - --excludes $(VENV)/unused.txt --only-binary :all: -o envs/vectordbbench.txt
	@printf '%s\n' vectordb-bench==1.0.18 'mariadb[binary]==2.0.0rc2' | $(LOCK) - --excludes $(VENV)/unused.txt --only-binary :all: -c envs/vectordbbench.txt -o envs/vectordbbench-mariadb.txt

clean:  ## remove logs, scratch and reports, but keep results and data
	@rm -rf logs scratch .snakemake/log
	@[ ! -d reports ] || find reports -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
