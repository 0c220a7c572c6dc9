"""A toy matrix whose cells are loaded, queried and scored in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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

    def copy(self, folder: Path) -> Bench:
        """The same in another folder, with what is made and measured here."""
        return Bench(folder, self.toy.copy(folder, "data", "scratch", "results"))

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


@contextmanager
def _at_work(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benches work in `folder`, and leave no process."""
    patch.chdir(folder)
    # Each folder measures the client's ceiling anew; how high it is no test here asks (tests/measure/test_ceiling.py).
    patch.setattr(ceiling, "_RUN_S", _CEILING_RUN_S)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before, "a process was left running"


def _made(folder: Path, lie: str = "", dataset: str = "blobs-l2", change=None) -> Bench:
    toy = Toy.make(folder)
    toy.block["datasets"] = [dataset]
    toy.block["systems"] = ["blue-1.0"]
    toy.block["topologies"] = ["standalone"]
    toy.block["workloads"] = ["k5", "k5-category", "k7"]
    toy.files["systems"]["blue-1.0"]["settings"] = {"lie": lie} if lie else {}
    if change:
        change(toy.files)
    bench = Bench(folder, toy)
    bench.prepare()
    return bench


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Makes a bench on which the system lies as told."""
    with _at_work(tmp_path, monkeypatch):
        yield partial(_made, tmp_path)


@pytest.fixture(scope="session")
def _loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded")
    with pytest.MonkeyPatch.context() as patch, _at_work(folder, patch):
        honest = _made(folder)
        assert honest.load(honest.matrix.cells[0])["valid"]
    return honest


@pytest.fixture(scope="session")
def _measured(_loaded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch, _at_work(folder, patch):
        honest = _loaded.copy(folder)
        five, filtered, seven = honest.matrix.cells
        outcomes = honest.query(five, filtered, runs=2) | honest.query(seven)
        assert set(outcomes.values()) == {"ok"}
        measured = [records.read_record(run) for run in Path("scratch/measured").glob("*/run-*/record.json")]
        assert len(measured) == 5 and all(failed(run) == {} for run in measured)
    return honest


@pytest.fixture
def honest_load(_loaded, tmp_path, monkeypatch):
    """A copy of an honest bench that is loaded: once a worker, whatever tests do to their copies."""
    with _at_work(tmp_path, monkeypatch):
        yield _loaded.copy(tmp_path)


@pytest.fixture
def honest(_measured, tmp_path, monkeypatch):
    """A copy of an honest bench with all runs of its three cells, of which none is published."""
    with _at_work(tmp_path, monkeypatch):
        yield _measured.copy(tmp_path)


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
