"""A server that is killed while it is loaded: what it had acknowledged and lost is counted, and searched for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from anncestry import cli
from anncestry.cells import config
from anncestry.cells.blocks import Room
from anncestry.cells.expand import expand as expand_matrix
from anncestry.drive.driver import Driver
from anncestry.engines import get, offers_of
from anncestry.engines.base import Server
from anncestry.errors import DataError, Unsupported
from anncestry.measure import load as loading
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from anncestry.provenance import gates
from tests.builders.configs import expand, refused
from tests.flat.engine import ENGINE as flat
from tests.flat.offers import OFFERS
from tests.servers import INDEX, STANDALONE, SYSTEMS, SmallVectors, artifact, running, small_vectors
from tests.toy import ROOT, Toy

HALF = {"batch_rows": 200, "kill": {"after_share": 0.5}}
KEEPS, LATE, UNINDEXED = "keeps", "late", "unindexed"
LIES = {KEEPS: "", LATE: "journal-late", UNINDEXED: "index-late"}


def with_kill(toy: Toy, name: str = "killed", **more: Any) -> Toy:
    """The toy matrix as one cell, of a system that is killed while it is loaded."""
    toy.one_cell()
    toy.files["systems"][name] = {"of": "red-1.0", "load": {"kill": {"after_share": 0.5}}, **more}
    toy.block["systems"] = [name]
    return toy


def load_and_search(engine: Any, server: Server, vectors: SmallVectors, load: dict[str, Any], folder: Path) -> Any:
    """What is told of a load of this server, and the server's own count."""
    with Progress("load", len(vectors.base), "row") as progress:
        result = engine.load(server, vectors, INDEX, load, progress)
    with Driver() as driver:
        told = loading.search_lost(Oracle(engine, server, driver, folder, vectors), result)
    return told | loading.lost_by_count(told["acknowledged"], engine.probe(server).rows)


# On a server of which it is known what it loses


@pytest.mark.parametrize(
    ("lie", "counted", "lost"),
    [
        (KEEPS, 540, []),
        (LATE, 340, [[200, 399]]),  # the batch that was acknowledged last before the kill
        (UNINDEXED, 540, [[200, 399]]),
    ],
)
def test_what_was_acknowledged_and_lost_is_told_to_the_row(
    tmp_path: Path, lie: str, counted: int, lost: list[list[int]]
) -> None:
    system = {"version": "1.0", "settings": {"journal": True, "lie": LIES[lie]}}
    server = flat.start(tmp_path, tmp_path / "data", system, STANDALONE)
    before = server.group.pids()
    try:
        told = load_and_search(flat, server, small_vectors("l2", 540, 8), HALF, tmp_path / "asked")
        assert server.group.pids() != before
    finally:
        server.stop()
    rows = sum(last - first + 1 for first, last in lost)
    assert (told["acknowledged"], told["acknowledged_before"], told["asked"]) == (540, 400, 540)
    assert (told["counted"], told["lost_by_count"]) == (counted, 540 - counted)
    assert (told["lost_by_search"], told["lost"]) == (rows, lost)
    assert told["accepting_s"] > 0 and told["resent"] >= 0
    gate = gates.nothing_lost(told)
    assert gate.ok == (lie == KEEPS)
    assert f"counts {counted}, and of 540 searched for {rows} are not found" in gate.detail


def test_of_many_rows_the_last_before_the_kill_are_searched_for_and_as_many_of_the_others() -> None:
    asked = loading.rows_to_ask(60_000, 30_000)
    assert len(asked) == 10_000 and set(range(25_000, 30_000)) <= set(asked.tolist())
    assert (asked < 25_000).sum() > 1000 and (asked >= 30_000).sum() > 1000
    assert (np.diff(asked) > 0).all() and np.array_equal(asked, loading.rows_to_ask(60_000, 30_000))
    assert len(loading.rows_to_ask(10_000, 200)) == 10_000


def test_a_number_that_the_named_rows_do_not_add_up_to_is_refused() -> None:
    kill = {"acknowledged": 540, "counted": 340, "lost_by_count": 200, "lost_by_search": 200, "lost": [[200, 399]]}
    loading.check_lost("x.json", kill)
    for change in ({"lost_by_search": 199}, {"lost": []}, {"counted": 540}):
        with pytest.raises(DataError, match=r"x\.json: kill\.lost_by"):
            loading.check_lost("x.json", {**kill, **change})


# In the workflow


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    toy = Toy.make(tmp_path_factory.mktemp("killed"))
    for name in (KEEPS, UNINDEXED):
        with_kill(toy, name, settings={"journal": True, "lie": LIES[name]})
    toy.block["systems"] = [KEEPS, UNINDEXED]
    toy.files["workloads"]["k5"]["runs"] = 1
    toy.snakemake()
    return toy


def of_stage(toy: Toy, stage: str) -> dict[str, dict[str, Any]]:
    paths = (toy.folder / "results" / stage).rglob("*@*.json")
    return {body["spec"]["system"]["name"]: body for body in map(json.loads, map(Path.read_text, paths))}


def test_a_loss_is_a_number_of_a_valid_load_and_of_such_a_load_no_query_is(measured: Toy) -> None:
    loads, queries = of_stage(measured, "load"), of_stage(measured, "query")
    assert all(loads[name]["valid"] for name in (KEEPS, UNINDEXED)), loads
    assert (loads[KEEPS]["kill"]["lost"], loads[UNINDEXED]["kill"]["lost"]) == ([], [[200, 399]])
    assert queries[KEEPS]["valid"] and not queries[UNINDEXED]["valid"]
    assert "nothing lost" in [gate["gate"] for gate in queries[UNINDEXED]["gates"] if not gate["ok"]]
    (table,) = (measured.folder / "results" / "table").glob("*/numbers.parquet")
    numbers = pd.read_parquet(table)
    found = numbers[numbers.metric.str.startswith("kill_")].set_index(["system", "metric"])
    assert found.valid.all() and found.value[UNINDEXED, "kill_lost_by_search"] == 200
    assert found.value[UNINDEXED, "kill_lost_by_count"] == found.value[KEEPS, "kill_lost_by_search"] == 0
    assert not numbers[(numbers.system == UNINDEXED) & (numbers.metric == "p50_ms")].valid.any()
    (page,) = (measured.folder / "reports").rglob("index.html")
    assert "Lost when the server was killed" in page.read_text()


def test_what_a_load_lost_is_verified(
    measured: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(measured.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(measured.folder / "config"))
    assert cli.main(["verify"]) == 0, capsys.readouterr()


def test_only_a_load_that_is_killed_has_another_key(tmp_path: Path) -> None:
    toy = with_kill(Toy.make(tmp_path))
    (spec,) = (spec for spec in expand(toy).specs.values() if spec["stage"] == "load")
    assert spec["load"] == HALF
    del toy.files["systems"]["killed"]["load"]
    (other,) = (spec for spec in expand(toy).specs.values() if spec["stage"] == "load")
    assert other == {**spec, "load": {"batch_rows": 200}}


# Refusals, while the workflow is parsed


@pytest.mark.parametrize(
    ("more", "topology", "words"),
    [
        (
            {},
            {"runtime": "remote", "endpoints": {"grpc": "WHERE"}},
            ["unsupported on a remote server (runtime remote)"],
        ),
        ({}, {"nodes": 3}, ["needs one local server process", "3 nodes, runtime native"]),
        ({}, {"runtime": "docker"}, ["needs one local server process", "runtime docker"]),
        (
            {"load": {"kill": {"after_share": 0.8}}},
            {},
            ["after_share: after 0.8 of 540 rows", "no batch follows the kill"],
        ),
        ({"load": {"kill": {"after_share": 1}}}, {}, ["load.kill.after_share"]),
        ({"load": {"kill": {}}}, {}, ["key 'after_share' is missing"]),
        ({"index": {"quantizer": "sq"}}, {}, ["unsupported with a quantized index"]),
        ({"load": {"kill": {"after_share": 0.5}, "upgrade_from": "blue-1.0"}}, {}, ["an upgrade in place"]),
    ],
)
def test_a_load_that_can_not_be_killed_is_refused_by_name(
    tmp_path: Path, more: dict[str, Any], topology: dict[str, Any], words: list[str]
) -> None:
    toy = with_kill(Toy.make(tmp_path), **more)
    toy.files["topologies"]["standalone"] |= topology
    refused(toy, "systems.yaml", "killed", *words)


def test_what_a_killed_load_left_is_not_upgraded(tmp_path: Path) -> None:
    toy = with_kill(Toy.make(tmp_path))
    toy.files["systems"]["up"] = {"of": "red-1.0", "version": "1.1", "load": {"upgrade_from": "killed"}}
    toy.block["systems"] = ["up"]
    refused(toy, "up.load.kill", "an upgrade in place")


@pytest.mark.parametrize("name", ["faiss", "hnswlib", "pgvector", "mysql"])
def test_an_engine_whose_load_does_not_go_on_after_a_kill_says_so(name: str, tmp_path: Path) -> None:
    toy = with_kill(Toy.make(tmp_path))
    toy.save()
    offers = replace(OFFERS, killed_loads=offers_of(name).killed_loads)
    with pytest.raises(Unsupported, match=r"unsupported by engine .*: its load does not go on after a kill"):
        expand_matrix(config.load(toy.folder / "config"), lambda _: offers, lambda: Room("default", 64, 512))


# On a real server


@pytest.mark.servers
@pytest.mark.parametrize(
    "name", ["weaviate-1.27.0", pytest.param("milvus-2.3.5", marks=pytest.mark.long), "chroma-1.5.9", "redis-7.4.1"]
)
def test_what_a_real_server_loses_when_it_is_killed_is_counted_and_searched_for(name: str, tmp_path: Path) -> None:
    engine, vectors = get(SYSTEMS[name]["engine"]), small_vectors("l2", 5000)
    load = {"batch_rows": 500, "kill": {"after_share": 0.5}}
    with running(name, artifact(name, tmp_path / "artifact"), tmp_path / "data") as server:
        before = server.group.pids()
        told = load_and_search(engine, server, vectors, load, tmp_path / "asked")
        assert server.group.pids() != before
        server.check_members()
    assert (told["acknowledged"], told["acknowledged_before"], told["asked"]) == (5000, 2500, 5000)
    assert told["accepting_s"] > 0
    # How many Weaviate loses differs from kill to kill: the log of its index is partly in memory.
    loading.check_lost("told", told)
    assert 5000 - told["lost_by_search"] <= told["counted"] <= 5000
    assert told["lost_by_search"] < 5000 and all(0 <= first <= last < 5000 for first, last in told["lost"])


def test_the_experiment_of_faults_has_such_a_load() -> None:
    block = yaml.safe_load((ROOT / "config" / "experiments" / "faults-small.yaml").read_text())["matrix"][-1]
    assert block["systems"] == ["weaviate-1.27.0-killed", "milvus-2.3.5-killed"]
    assert all(SYSTEMS[name]["load"] == {"kill": {"after_share": 0.5}} for name in block["systems"])
