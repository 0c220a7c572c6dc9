"""What several files look at, measured once a session, whichever worker needs it first.

All workers share these folders, so no test may change them: what changes anything works on a copy.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.once import of_session, once
from tests.toy import Toy, run_workflow


def _valid(make: Callable[[Path], object], folder: Path) -> None:
    """Have `make` measure in `folder` until all is valid, three times at most; the end of pytest tells each repeat.

    The tests of all workers rest on it, so it must not be what a machine that stood still spoiled.
    """
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
        if not (failed := list(_failed(folder))):
            break
        warnings.warn(f"{folder.parent.name}: measured again, or used as it is: {'; '.join(failed)}", stacklevel=2)


def _failed(folder: Path) -> Iterator[str]:
    """The invalid records, each with the gates that failed."""
    for path in (path for stage in ("load", "query") for path in (folder / "results" / stage).rglob("*@*.json")):
        record = json.loads(path.read_text())
        if not record["valid"]:
            failed = [f"{gate['gate']}: {gate['detail']}" for gate in record["gates"] if not gate["ok"]]
            yield f"{path.stem}: {', '.join(failed)}"


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
    done = run_workflow(folder, "experiment=smoke", arguments=arguments)
    return done.stdout + done.stderr
