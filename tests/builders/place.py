"""What several files look at, measured once a session, whichever worker needs it first.

All workers share these folders, so no test may change them: what changes anything works on a copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.toy import ROOT, Toy
from tests.waiting import whole


def _once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` has filled, in this process or in another worker."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / name
    shared.mkdir(parents=True, exist_ok=True)
    folder, made = shared / "place", shared / "whole"
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for _ in range(3):  # the tests of all workers rest on it, so not on what a machine that stood still spoiled
                shutil.rmtree(folder, ignore_errors=True)  # also what another worker did not finish
                make(folder)
                if all(json.loads(record.read_text())["valid"] for record in _measured(folder)):
                    break
            made.touch()
    return folder


def _measured(folder: Path) -> Iterator[Path]:
    return (record for stage in ("load", "query") for record in (folder / "results" / stage).rglob("*@*.json"))


@pytest.fixture(scope="session")
def finished_place(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """One dataset on one system and topology, with both workloads, measured to the end."""
    return Toy.place(_once(tmp_path_factory, "toy", Toy.finished_place))


@pytest.fixture(scope="session")
def finished_smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke experiment on both real servers, measured to the end; what was said is in `said.txt`."""
    return _once(tmp_path_factory, "smoke", _measure_smoke)


def _measure_smoke(folder: Path) -> None:
    said = snakemake_smoke(folder)
    (folder / "said.txt").write_text(said)


def snakemake_smoke(folder: Path, *arguments: str) -> str:
    """Run the smoke experiment as this checkout has it; what was said."""
    done = whole(
        [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "8",
         "--directory", str(folder), "--nocolor", *arguments, "all", "--config", "experiment=smoke"],
        timeout_s=1800, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
