"""One round of an experiment of the ledger, whole: another one each day, so that in time all are tried.

python tests/bench/rotation.py [EXPERIMENT] [FOLDER]       (default: today's, scratch/rotation)

What CI runs whole and what takes longer than a night's minutes takes no turn; by its name it can be run.
Every workload has one run. It fails if the workflow or `anncestry verify` does, or if more cells are invalid than in
the whole run of the ledger. An experiment with containers runs with a container engine, a temporary one if need be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from anncestry.workflow import Choice, expand  # noqa: E402
from casestudies import ledger  # noqa: E402

WHOLE_IN_CI = ("smoke",)
MINUTES_A_NIGHT = 60


def taking_turns(table: Sequence[Mapping[str, str]]) -> list[str]:
    """Experiments of the ledger, but those that CI runs whole and those whose whole run was longer than a night's."""
    return [
        line["experiment"]
        for line in table
        if line["experiment"] not in WHOLE_IN_CI and int(line["minutes"]) <= MINUTES_A_NIGHT
    ]


def todays(names: Sequence[str], today: date) -> str:
    """Of these experiments the one of a day."""
    return names[today.toordinal() % len(names)]


def one_round(target: Path) -> Path:
    """A copy of the config in which each workload has one run."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "config", target)
    workloads = yaml.safe_load((target / "workloads.yaml").read_text())
    changed = {name: {**entry, "runs": 1} for name, entry in workloads.items()}
    (target / "workloads.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    return target


def contained(config: Path, experiment: str) -> bool:
    """Whether it runs something in containers."""
    matrix = expand(Choice(config, experiment))
    return any(matrix.spec(cell.load, "load")["topology"]["runtime"] == "docker" for cell in matrix.cells)


def judged(line: dict[str, str], known: dict[str, str] | None) -> str:
    """What is wrong with one round's line of the ledger beside the `known` line of a whole run; empty if nothing is."""
    most = int(known["invalid"]) if known else 0
    cells = "1 cell" if line["invalid"] == "1" else f"{line['invalid']} cells"
    said = f"{cells} invalid, {most} in the run of {known['date'] if known else 'no day'}"
    return said if int(line["invalid"]) > most else ""


def main(experiment: str, folder: Path) -> None:
    place = folder.resolve()
    place.mkdir(parents=True, exist_ok=True)
    config = one_round(place / "config")
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    given = {**os.environ, "PYTHONPATH": paths, "ANNCESTRY_CONFIG": str(config)}
    workflow = ["snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "8", "all"]
    settings = ["--config", f"experiment={experiment}", f"config_dir={config}"]
    verify = ["anncestry", "--experiment", experiment, "verify"]
    print(f"one round of {experiment} in {place}", flush=True)
    if contained(config, experiment):
        workflow = ["anncestry", "engine", sys.executable, "-m", *workflow]
    for command in ([*workflow, *settings], verify):
        done = subprocess.run([sys.executable, "-m", *command], cwd=place, env=given, check=False)
        if done.returncode:
            sys.exit(f"{experiment}: {command[0]} failed ({done.returncode})")
    (line,) = [line for line in ledger.of_folder(place) if line["experiment"] == experiment]
    print(f"{experiment}: {line['valid']} cells valid, {line['invalid']} invalid, {line['minutes']} minutes")
    known = {line["experiment"]: line for line in ledger.lines()}
    if wrong := judged(line, known.get(experiment)):
        sys.exit(f"{experiment}: {wrong}")


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = given[0] if given else todays(taking_turns(ledger.lines()), date.today())
    main(chosen, Path(given[1] if len(given) > 1 else "scratch/rotation"))
