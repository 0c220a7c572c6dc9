"""What several files look at, measured once a session, whichever worker needs it first.

All workers share these folders, so no test may change them: what changes anything works on a copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.once import of_session, once
from tests.toy import ROOT, Toy
from tests.waiting import whole


def _valid(make: Callable[[Path], object], folder: Path) -> None:
    """Have `make` measure in `folder` until all is valid, three times at most.

    The tests of all workers rest on it, so it must not be what a machine that stood still spoiled.
    """
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
        if all(json.loads(record.read_text())["valid"] for record in _measured(folder)):
            break


def _measured(folder: Path) -> Iterator[Path]:
    return (record for stage in ("load", "query") for record in (folder / "results" / stage).rglob("*@*.json"))


@pytest.fixture(scope="session")
def finished_place(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """One dataset on one system and topology, with both workloads, measured to the end."""
    return Toy.place(once(of_session(tmp_path_factory, "shared") / "toy", partial(_valid, Toy.finished_place)))


@pytest.fixture(scope="session")
def finished_smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke experiment on both real servers, measured to the end; what was said is in `said.txt`."""
    return once(of_session(tmp_path_factory, "shared") / "smoke", partial(_valid, _measure_smoke))


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
