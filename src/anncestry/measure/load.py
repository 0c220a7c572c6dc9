"""The load stage: start on a clean folder, encode, insert, flush, index, make ready, store; check; stop; weigh it.

An upgrade in place is a load, too: a newer version opens a copy of the data that an older one has loaded. Nothing is
inserted, so there is no load time. What is measured is the time without service: from the start of the newer server on
the stopped older one's data to a search that succeeds and an index that covers every row, whatever the version migrates
or builds anew on the way. Then the same checks as after any load.

A load may kill its server, to see what is lost: rows that the server had acknowledged and does not give back. Its own
count tells of rows that the store lost. The search (each row by its own vector, at the effort of `measure.oracle`)
also tells of those that the store has and the index lost. What was acknowledged is all of the dataset: a load ends once
every batch is.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import engines
from anncestry.cells.matrix import Matrix
from anncestry.datasets.distance import Ids
from anncestry.drive import build
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, LoadResult, Phase, Probe, Server, wait_for
from anncestry.errors import DataError, ServerError, UserError
from anncestry.measure.oracle import Oracle
from anncestry.measure.server import Filling, Place
from anncestry.progress import Progress
from anncestry.provenance import gates, platform, records
from anncestry.provenance.attempts import Ledger
from anncestry.runtimes import remote

_UPGRADE = "upgrade"
"""The one phase of an upgrade."""
_INDEX_TIMEOUT_S = 24 * 3600.0
_INDEX_POLL_S = 0.2
_SEED = 20261122
_LAST_ROWS = 5000
_OTHER_ROWS = 5000
_KILLED = {"load": "the server was killed meanwhile and started again on its data"}


def run(spec: Mapping[str, Any], key: str, place: Place, out_dir: Path) -> dict[str, Any]:
    """Load the vectors of `spec` into its system and leave the stopped system's data in `out_dir/data`.

    Raises ServerError if the server does not come up or dies, ConfigError on another machine than declared.
    A load that is not what it should be is not an error: its record says so in its gates, and is invalid.
    """
    build.programs()  # before a server runs: a build would disturb it
    with (
        platform.alone() as lock,
        closing(Filling(spec, place, out_dir, lock)) as system,
        Ledger.of(spec, key).attempt(stage="load"),
    ):
        label = f"load {spec['system']['name']} ← {spec['dataset']['name']}"
        system.begin(f"{label}: starting the server")
        server = system.start()
        server.scratch = out_dir
        with system.sampler() as sampler, Progress(label, len(system.vectors.base), "row") as progress:
            result = system.engine.load(server, system.vectors, spec["index"], spec["load"], progress)
        sampler.check()
        kill = _judge(system, result)
        return system.write(
            key,
            sampler,
            result,
            "load",
            about={"times": _times(result), "durability": result.durability},
            inserted={
                "batches": result.batches,
                "batch_sizes": [list(size) for size in sorted(result.sizes.items(), reverse=True)],
                **({"library": result.library} if result.library else {}),
                **({"kill": kill} if kill else {}),
            },
            fairness=_KILLED if kill else {"insertion": f"by {result.library}"} if result.library else {},
            inputs={},
        )


def _judge(system: Filling, result: LoadResult) -> dict[str, Any]:
    """Judge the loaded server; returns what was lost where its load had to kill it, else nothing."""
    rows = len(system.vectors.base)
    inserts = gates.inserts(result.rows_sent, result.rows_acknowledged, result.insert_errors, rows, result.first_error)
    kills = "kill" in system.spec["load"]
    with Driver(held=system.held()) as driver:
        oracle = system.oracle(driver, system.out_dir / "oracle")
        kill = search_lost(oracle, result) if kills else {}
        checked = [] if kills else oracle.check()
    # How many rows are lost is what such a load measures: their count can't make it invalid.
    probe = system.judge(inserts, checked, "after the load", counted=not kills)
    return {**kill, **lost_by_count(kill["acknowledged"], probe.rows)} if kills else {}


def _times(result: LoadResult) -> dict[str, float | None]:
    """Seconds of each phase; `load_s` from the first insert to the first search that succeeded.

    `encode_s` lies before it. `durable_s` is from the first insert until `LoadResult.durable_at_s`; None where nothing
    was asked for that.
    """
    first, last = result.phases[0], result.phases[-1]
    return {
        "encode_s": result.encode_s,
        **{f"{phase}_s": result.seconds(phase) for phase in ("insert", "flush", "index", "ready")},
        "load_s": last.end_s - first.start_s,
        "durable_s": None if result.durable_at_s is None else result.durable_at_s - first.start_s,
    }


def rows_to_ask(rows: int, rows_before: int) -> Ids:
    """Ids to search for, sorted: of few `rows` all, else the last 5,000 before the kill and 5,000 others by a seed."""
    if rows <= _LAST_ROWS + _OTHER_ROWS:
        return np.arange(rows)
    last = np.arange(max(0, rows_before - _LAST_ROWS), rows_before)
    others = np.setdiff1d(np.arange(rows), last)
    chosen = np.random.RandomState(_SEED).permutation(others)[:_OTHER_ROWS]
    return np.sort(np.concatenate([last, chosen]))


def search_lost(oracle: Oracle, result: LoadResult) -> dict[str, Any]:
    """What the client saw of the kill in `result`, and which rows a search does not find.

    Leaves the effort at `oracle.EF`. A vector of zeros, which has no neighbourhood, is not asked for. ServerError if
    the server was never killed.
    """
    killed, base = result.killed, oracle.vectors.base
    if killed is None or killed.accepted_s is None:
        raise ServerError("the server was not killed during its load, or nothing was inserted after it")
    asked = rows_to_ask(len(base), killed.rows_before)
    asked = asked[np.any(np.asarray(base[asked]) != 0, axis=1)]
    lost = asked[~oracle.found_by_own_vector(asked)]
    parts = np.split(lost, np.flatnonzero(np.diff(lost) != 1) + 1) if len(lost) else []
    return {
        "acknowledged_before": killed.rows_before,
        "resent": killed.resent,
        "accepting_s": killed.accepted_s - killed.killed_s,
        "acknowledged": result.rows_acknowledged,
        "asked": len(asked),
        "lost_by_search": len(lost),
        "lost": [[int(part[0]), int(part[-1])] for part in parts],
    }


def lost_by_count(acknowledged: int, counted: int) -> dict[str, int]:
    """Rows that the server counts, and how many fewer these are; of a batch that it took twice it may count more."""
    return {"counted": counted, "lost_by_count": max(0, acknowledged - counted)}


def check_lost(path: str, kill: Mapping[str, Any]) -> None:
    """DataError if the numbers of a record at `path` are not those of the rows that it names."""
    again = {
        "lost_by_search": sum(last - first + 1 for first, last in kill["lost"]),
        **lost_by_count(kill["acknowledged"], kill["counted"]),
    }
    for name, value in again.items():
        if kill[name] != value:
            raise DataError(f"{path}: kill.{name} is {kill[name]}, the rows of the record say {value}")


def upgrade(
    spec: Mapping[str, Any], key: str, place: Place, older_index: Path, older_load: Path, out_dir: Path
) -> dict[str, Any]:
    """Open a copy of the data beside `older_index` with the system of `spec`; leave it, stopped, in `out_dir/data`.

    `older_load` is the published record of the load that the data came from. Raises as a load does: ServerError if
    the server does not come up on the older data or dies, ConfigError on another machine than declared. An upgrade
    that lost something is not an error: its record says so in its gates, and is invalid.
    """
    with (
        platform.alone() as lock,
        closing(Filling(spec, place, out_dir, lock)) as system,
        Ledger.of(spec, key).attempt(stage="load"),
    ):
        older = records.read_record(older_index, stage="load", key=spec["upgrade_of"])
        records.refuse_other_vectors(older_index, older, place.vectors)
        origin = older["spec"]["system"]
        system.begin(
            f"upgrade {origin['name']} → {spec['system']['name']} · {spec['dataset']['name']}: "
            "starting the server on the older data",
            older_index.parent / "data",
        )
        result = LoadResult()
        with system.sampler(starting=True) as sampler:
            server = system.start()
            open_s = system.engine.open(server, spec["index"])
            _await_index(system.engine, server)
            # From its first member's start on: what we prepare before (images, networks, classes) is not its doing.
            result.phases.append(Phase(_UPGRADE, server.began_s, time.monotonic()))
        sampler.check()
        with Driver() as driver:
            checked = system.oracle(driver, out_dir / "oracle").check()
        system.judge(gates.older_load(older["valid"], origin["name"], older["created"]), checked, "after the upgrade")
        system.facts["open_s"] = open_s
        return system.write(
            key,
            sampler,
            result,
            _UPGRADE,
            about={
                "upgraded_from": {"system": origin["name"], "version": origin["version"], "load": older["key"]},
                "times": {"upgrade_s": result.seconds(_UPGRADE)},
            },
            inserted={},
            fairness={"load": f"none: opened in place on what {origin['name']} had loaded"},
            inputs={"older": older_load},
        )


def _await_index(engine: Engine, server: Server) -> None:
    """Wait until the server reports an index that covers every row: a newer version may build it anew."""

    def complete() -> Probe | None:
        probe = engine.probe(server)
        return probe if probe.index_complete else None

    wait_for("the index after the upgrade", complete, server, _INDEX_TIMEOUT_S, _INDEX_POLL_S, patient=True)


def withdraw(matrix: Matrix, here: Path, lost: bool = False) -> Iterator[str]:
    """Drop the collection of every remote load of `matrix` that was loaded from `here`; yields a name for each.

    Only the collection that this very load made and marked: ServerError if it is gone, or another one stands there.
    What is kept of the load beside its record goes, too, so that asking again loads again.
    Without scratch/ nobody knows the mark of a load whose record is in results/. A collection with any mark of ours at
    its endpoint may then be another user's: UserError says so in the end; with `lost`, it is dropped.
    """
    problems = []
    for cell in {cell.load: cell for cell in matrix.cells}.values():
        spec, name = matrix.spec(cell.load, "load"), f"{cell.dataset} of {cell.system}, {cell.topology}"
        folder = here / Path(cell.index_path).parent
        if spec["topology"]["runtime"] != "remote":
            continue
        if not remote.was_loaded(folder / "data"):
            if not (here / cell.load_path).exists():
                continue
            try:
                mark = _mark_at_the_endpoint(spec)
            except UserError as error:
                problems.append(f"{name}: whether its collection is still there can't be told: {error}")
                continue
            if mark is not None and not lost:
                problems.append(
                    f"{name}: the server has a collection that anncestry made, but scratch/ is gone, which knew "
                    "whether it is of this load: if nobody else needs it, `anncestry --experiment "
                    f"{matrix.config.experiment} withdraw --lost` removes it"
                )
            if mark is None or not lost:
                continue
            remote.keep_mark(folder / "data", mark)
        server = _taken(spec, folder / "data")
        try:
            server.drop()
        finally:
            server.stop()
        shutil.rmtree(folder)
        yield name
    if problems:
        raise UserError("; ".join(problems))


def _mark_at_the_endpoint(spec: Mapping[str, Any]) -> str | None:
    """The mark of ours that a collection bears at the endpoint of a remote load, None if none does. Changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        remote.mark_of(Path(folder))  # a new one, which nothing bears: the server is left before anything is set there
        try:
            _taken(spec, Path(folder)).stop()
        except remote.OtherMark as other:
            return other.found if other.found is not None and other.found.startswith(remote.MARK) else None
    raise AssertionError("not reached")


def _taken(spec: Mapping[str, Any], data_dir: Path) -> Server:
    """The remote server of a load whose mark is kept in `data_dir`."""
    system, topology = spec["system"], spec["topology"]
    server: Server = engines.get(system["engine"]).start(data_dir, data_dir, system, topology)
    return server
