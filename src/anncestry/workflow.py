"""What the Snakefile and the command line share: which matrix is meant, resolved from the config."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anncestry import engines, kubernetes
from anncestry.cells import config as config_files
from anncestry.cells import plan
from anncestry.cells.expand import expand as expand_matrix
from anncestry.cells.matrix import Matrix
from anncestry.errors import ConfigError, plain
from anncestry.home import CONFIG, MODULES
from anncestry.provenance import damage, running, sizing, versioning


@dataclass(frozen=True)
class Choice:
    """A config folder and an experiment in it."""

    folder: Path
    experiment: str

    def export(self, python: str) -> None:
        """Leave the choice in the environment, for the jobs' commands; they are run by the interpreter `python`."""
        source = str(MODULES)
        paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ.update(
            PYTHONPATH=os.pathsep.join(dict.fromkeys(paths)),
            ANNCESTRY_CONFIG=str(self.folder),
            ANNCESTRY_EXPERIMENT=self.experiment,
            ANNCESTRY_PYTHON=python,
            **{running.RUN: running.owner(os.getpid())},
        )


def needs_interface(systems: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a server of one of these systems needs a network interface beside the loopback."""
    return any(engines.offers_of(system["engine"]).needs_interface(system) for system in systems)


def choose(overrides: Mapping[str, Any], root: Path) -> Choice:
    """Which matrix Snakemake's `--config` asks for. Keys: `experiment`, `config_dir`; any other is a ConfigError."""
    for place in (root, Path.cwd()):
        if re.search(r"[\x00-\x1f\x7f]", str(place)):
            raise ConfigError(f"{str(place)!r}: a folder with such a name can't be worked in: rename it")
    for key in overrides:
        if key not in ("experiment", "config_dir"):
            raise ConfigError(
                f"--config {key}=…: unknown key; use experiment=NAME, and put the rest in config/experiments/NAME.yaml"
            )
    folder = Path(str(overrides.get("config_dir", root / "config")))
    return Choice(folder, str(overrides.get("experiment", config_files.DEFAULT_EXPERIMENT)))


def choice_of_environment() -> Choice:
    """The choice that the Snakefile left in the environment of its jobs, else the default one."""
    return Choice(
        Path(os.environ.get("ANNCESTRY_CONFIG") or _own_config()),
        os.environ.get("ANNCESTRY_EXPERIMENT", config_files.DEFAULT_EXPERIMENT),
    )


def _own_config() -> Path:
    """config/ of the working directory if that is a project (`anncestry init`), else the package's."""
    own = Path.cwd() / "config"
    return own if (own / "config.yaml").is_file() else CONFIG


_REMADE = frozenset({"table", "report"})
"""Rules whose files can always be made again from results."""


def begin(argv: Sequence[str], here: Path) -> bool:
    """Be the one run at work in `here`, if Snakemake's command line `argv` runs jobs (see `running.claim`); whether it
    does."""
    runs_jobs = running.runs_jobs(argv)
    if runs_jobs:
        running.claim(here, kubernetes.refuse_living)
    return runs_jobs


def refuse_remaking(settings: Any) -> None:
    """ConfigError where Snakemake's `settings` of its DAG have it make finished stages again.

    A job's files are removed before it runs, and what a published measurement was made from is gone by then.
    """
    if (triggers := {trigger.name.lower() for trigger in settings.rerun_triggers}) != {"mtime"}:
        raise ConfigError(
            f"--rerun-triggers {' '.join(sorted(triggers))}: Snakemake would remove finished results to make them "
            "again, though their keys say what they were made from: say `--rerun-triggers mtime`, as profiles/default"
        )
    if settings.forceall or settings.forcetargets or not set(map(str, settings.forcerun)) <= _REMADE:
        raise ConfigError(
            "--forceall, --force and --forcerun: Snakemake would remove finished measurements, from which nothing can "
            "make them again: `anncestry drop CELL --yes` has a cell measured anew"
        )


def refuse_living(here: Path) -> None:
    """DataError where jobs of this folder's runs live on in Kubernetes."""
    kubernetes.refuse_living(here)


def resolve(choice: Choice, here: Path, mend: bool = False) -> tuple[Matrix, plan.Plan]:
    """The matrix of a choice, and what of it is missing in the working directory `here`.

    With `mend`, what is damaged there is set aside first and said, unless another run is at work there.
    """
    if running.RUN not in os.environ:  # a job's run was admitted when it began
        versioning.refuse_half_clone(here)
    expanded = expand(choice)
    if mend and not running.by_another(here):
        for sentence in damage.mend(expanded):
            print(plain(sentence), file=sys.stderr)
    return expanded, plan.make(expanded)


def expand(choice: Choice) -> Matrix:
    """The matrix of a choice, each of its combinations checked by the engine that has to do it."""
    config = config_files.load(choice.folder, choice.experiment)
    return expand_matrix(
        config, engines.offers_of, lambda: sizing.room(config.platform, config.platforms[config.platform])
    )
