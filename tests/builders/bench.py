"""A toy matrix whose cells are loaded, queried and scored in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from anncestry import workflow
from anncestry.datasets import download, normalize, truth
from anncestry.measure import ceiling, load, publish, recall, server, session
from anncestry.provenance import records
from anncestry.runtimes import artifacts
from tests.flat.engine import ENGINE as flat
from tests.toy import Toy


class Bench:
    """Loads and queries cells of a toy matrix in this process."""

    def __init__(self, folder: Path, toy: Toy) -> None:
        self.folder, self.toy = folder, toy
        toy.save()
        self.matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))

    def prepare(self) -> None:
        for cell in self.matrix.cells:
            entry = self.toy.files["datasets"][cell.dataset]
            if not Path(cell.vectors_path).exists():
                spec = {**self.matrix.spec(cell.download, "download"), **entry}
                download.run(spec, Path(cell.download_path).parent, self.folder / "cache", cell.download)
                normalize.run(
                    self.matrix.spec(cell.vectors, "normalize"),
                    Path(cell.download_path).parent,
                    Path(cell.vectors_path).parent,
                    cell.vectors,
                )
            if not Path(cell.artifact_path).exists():
                artifacts.run(
                    self.matrix.spec(cell.artifact, "artifact"),
                    Path(cell.artifact_path).parent,
                    self.folder / "cache",
                    cell.artifact,
                )

    def place(self, cell, **more) -> server.Place:
        return server.Place(Path(cell.vectors_path), Path(cell.artifact_path), **{"platform": {}, **more})

    def load(self, cell, **more) -> dict:
        return load.run(
            self.matrix.spec(cell.load, "load"),
            cell.load,
            self.place(cell, **more),
            Path(cell.index_path).parent,
        )

    def query(self, *cells, runs: int = 1, **more) -> dict[str, str]:
        """Measure the first `runs` runs of the cells; the outcome of the last."""
        outcome: dict[str, str] = {}
        for number in range(runs):
            outcome = self._session(number, cells, **more)
            while any("the clients sent nothing" in state for state in outcome.values()):  # this machine stood still
                outcome = self._session(number, cells, **more)
        return outcome

    def _session(self, number: int, cells, **more) -> dict[str, str]:
        return session.run(
            f"session {number}",
            number,
            {cell.query: self.matrix.spec(cell.query, "query") for cell in cells},
            Path(cells[0].index_path),
            Path(cells[0].index_path),
            self.place(cells[0], **more),
            Path("scratch/session/s"),
        )

    def record(self, cell, run: int = 0) -> dict:
        return records.read_record(Path(cell.run_path(run)))

    def publish(self, cell) -> dict:
        return publish.run(
            self.matrix.spec(cell.query, "query"),
            cell.query,
            Path(cell.measured_path),
            Path(cell.index_path),
            Path(cell.vectors_path),
            Path(cell.query_path),
            Path(cell.index_path),
        )


MakeBench = Callable[..., Bench]
_CEILING_RUN_S = 0.05


def on_a_path(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Has a bench's topology keep its data in `folder`."""

    def change(files: dict[str, Any]) -> None:
        files["topologies"]["standalone"]["storage"] = "here"
        files["storage"] = {"here": {"environment": "HERE", "default": str(folder)}}

    return change


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Makes a bench on which the system lies as told."""
    monkeypatch.chdir(tmp_path)
    # Each folder measures the client's ceiling anew; how high it is no test here asks (tests/measure/test_ceiling.py).
    monkeypatch.setattr(ceiling, "_RUN_S", _CEILING_RUN_S)

    def make(lie: str = "", dataset: str = "blobs-l2", change=None) -> Bench:
        toy = Toy.make(tmp_path)
        toy.block["datasets"] = [dataset]
        toy.block["systems"] = ["blue-1.0"]
        toy.block["topologies"] = ["standalone"]
        toy.block["workloads"] = ["k5", "k5-category", "k7"]
        toy.files["systems"]["blue-1.0"]["settings"] = {"lie": lie} if lie else {}
        if change:
            change(toy.files)
        bench = Bench(tmp_path, toy)
        bench.prepare()
        return bench

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield make
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before, "a process was left running"


def lie_when_queried(monkeypatch, lie: str) -> None:
    """Servers that are started from now on lie, whatever they were loaded with."""
    start = flat.start
    monkeypatch.setattr(
        flat, "start", lambda a, d, system, t, first_port=None: start(a, d, {"settings": {"lie": lie}}, t, first_port)
    )


def failed(record: dict) -> dict[str, str]:
    return {gate["gate"]: gate["detail"] for gate in record["gates"] if not gate["ok"]}


def scored(bench: Bench, cell) -> tuple[dict, dict]:
    """Publish a cell and score it: both records."""
    truth_record, target = Path(cell.truth_path), Path(cell.recall_path)
    truth.run(bench.matrix.spec(cell.truth, "truth"), Path(cell.vectors_path).parent, truth_record.parent, cell.truth)
    published = bench.publish(cell)
    spec = bench.matrix.spec(cell.recall, "recall")
    body = recall.run(spec, cell.recall, Path(cell.query_path), truth_record, Path(cell.vectors_path), target)
    return published, body


def reseal(path: Path, **changed) -> None:
    """Change a record at the top level, as one would who knows how records are made."""
    records.write_json(path, records.seal({**records.read_json(path), **changed}))


def resealed(published: dict, changed: Path, label: str = "samples") -> dict:
    """The outputs of a record of which one file was changed."""
    forged = {"sha256": records.sha256_file(changed), "bytes": changed.stat().st_size}
    return {**published["outputs"], label: {**published["outputs"][label], **forged}}
