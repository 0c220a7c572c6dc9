"""OpenSearch: refusals, bytes, and its real server, whose Java must use vector instructions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from anncestry import engines
from anncestry.drive.driver import Driver
from anncestry.engines import lucene
from anncestry.engines.base import Batch, DecodeError
from anncestry.engines.opensearch import serve, wire
from anncestry.errors import ConfigError, ServerError
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from tests.servers import INDEX, STANDALONE, SYSTEMS, artifact, exact, running, small_payload, small_vectors

NAME, LATER = "opensearch-3.5.0", "opensearch-3.6.0"
ENGINE, OFFERS = engines.get("opensearch"), engines.offers_of("opensearch")
K = 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {**STANDALONE, "runtime": "docker"}}, "does not support runtime 'docker'"),
        ({"index": {"type": "flat"}}, "flat is unsupported by opensearch; supported: hnsw"),
        ({"index": {**INDEX, "ef_construction": 3201}}, r"index\.ef_construction"),
        ({"system": {"settings": {"shards": 2}}}, "unknown key 'shards'; known: heap_mib"),
        ({"system": {"version": "2.19.1"}}, r"2\.19\.1"),
        (
            {"workload": {"k": 10, "ef_search": 20, "filter": {"field": "id", "from": 5}}},
            "id is unsupported by opensea",
        ),
    ],
)
def test_what_opensearch_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": STANDALONE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "3.5.0", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


def test_insertions_and_searches_carry_the_same_float32() -> None:
    vectors = small_vectors("l2", rows=30, dimensions=3)
    rows = Batch(100, vectors.base, vectors.category, vectors.price, vectors.region)
    lines = [json.loads(line) for line in lucene.insertion(rows).splitlines()]
    assert [line["index"]["_id"] for line in lines[::2]] == [str(row) for row in range(100, 130)]
    assert (np.array([line[lucene.FIELD] for line in lines[1::2]], np.float32) == vectors.base).all()
    assert [line["price"] for line in lines[1::2]] == vectors.price.astype(np.float64).tolist()
    query = np.array([0.1, 1e-30, 3.4e38], np.float32)
    asked = json.loads(wire.search(query, 7, 64, {"field": "price", "from": 0.2}))["query"]["knn"][lucene.FIELD]
    assert (np.array(asked["vector"], np.float32) == query).all()
    assert (asked["k"], asked["method_parameters"]) == (7, {"ef_search": 64})
    assert asked["filter"] == {"range": {"price": {"gte": float(np.float32(0.2))}}}
    assert json.loads(wire.scan(query, 7, {"field": "category", "in": [1]}, "l2"))["size"] == 7


def reply(*hits: tuple[str, float], failed: int = 0, absent: int = 0, timed_out: bool = False) -> bytes:
    found = [{"_id": name, "_score": score} for name, score in hits]
    shards = {"total": 3, "successful": 3 - failed - absent, "skipped": 0, "failed": failed}
    return json.dumps({"timed_out": timed_out, "_shards": shards, "hits": {"hits": found}}).encode()


def test_scores_are_read_as_distances() -> None:
    ids, far = ENGINE.decode(reply(("5", 0.8), ("1099511627776", 0.2)), "l2")
    assert ids.tolist() == [5, 2**40]
    np.testing.assert_allclose(far, [0.25, 4], rtol=1e-6)
    np.testing.assert_allclose(ENGINE.decode(reply(("5", 1.75), ("6", 0.8)), "cosine")[1], [0.25, 1.25], rtol=1e-6)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b'{"error":{"type":"x"},"status":400}',
        b'{"hits":{}}',
        reply(("a", 1.0)),
        reply(("1", 0.0)),
        reply(("1", 1.0), failed=1),
        reply(("1", 1.0), absent=1),
        reply(("1", 1.0), timed_out=True),
    ],
)
def test_what_is_no_whole_answer_is_a_failed_request(said: bytes) -> None:
    with pytest.raises(DecodeError, match="OpenSearch"):
        ENGINE.decode(said, "l2")


def test_a_java_without_vector_instructions_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"old": ("17.0.1", f"jdk.compiler {serve.VECTOR_MODULE}"), "bare": ("25.0.1", "jdk.compiler")}
    for name, (version, modules) in told.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    monkeypatch.setattr(serve, "JAVAS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "bare"))
    with pytest.raises(ServerError, match=f"version 21 or later with {serve.VECTOR_MODULE}"):
        serve.java_home()


def test_data_that_another_java_loaded_is_not_opened(tmp_path: Path) -> None:
    java, config = tmp_path / "java", tmp_path / "config"
    java.mkdir()
    config.mkdir()
    for version in ("21.0.2", "21.0.2", "21.0.3"):
        (java / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\nMODULES="java.base"\n')
        if version != "21.0.3":
            serve._refuse_other_java(java, config)
    with pytest.raises(ServerError, match=r'with the Java of .*"21\.0\.2", and .* is .*"21\.0\.3": set JAVA_HOME'):
        serve._refuse_other_java(java, config)


@pytest.mark.servers
@pytest.mark.makes(NAME, LATER)
def test_a_load_is_read_back_searched_passes_all_gates_and_is_opened_by_the_next_version(tmp_path: Path) -> None:
    vectors = small_vectors("l2")
    vectors = replace(vectors, price=vectors.price * np.float32(1000), payload=small_payload())
    queries = np.random.default_rng(9).normal(size=(400, 20)).astype(np.float32)
    nearest, recall = np.argsort(exact(vectors, queries), axis=1)[:, :K], {}
    with running(NAME, artifact(NAME, tmp_path / "artifact"), tmp_path / "data") as server, Driver() as driver:
        with Progress("load", None) as progress:
            result = ENGINE.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
        assert (result.rows_acknowledged, result.insert_errors) == (2000, 0), result.first_error
        assert [phase.name for phase in result.phases] == ["insert", "index", "ready"]
        assert result.durable_at_s is not None and result.durable_at_s > result.phases[-1].end_s
        probe, asked = ENGINE.probe(server), ENGINE.asked_settings(SYSTEMS[NAME], INDEX, "l2", 200)
        assert (probe.version, probe.rows, probe.index_complete) == ("3.5.0", 2000, True), probe.index_detail
        assert {name: probe.settings.get(name) for name in asked} == asked
        (pid,) = server.group.pids()
        addresses = [each.laddr.ip for each in psutil.Process(pid).net_connections() if each.status == "LISTEN"]
        assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
        for filter in vectors.payload.filters:
            assert filter is not None
            assert ENGINE.count(server, filter) == vectors.payload.passes(filter).sum(), filter
        gates = Oracle(ENGINE, server, driver, tmp_path / "gates", SimpleNamespace(**vars(vectors), queries=queries))  # type: ignore[arg-type]
        assert [gate.detail for gate in gates.check() if not gate.ok] == []
        for ef in (10, 300):
            found = Oracle(ENGINE, server, driver, tmp_path / str(ef), vectors).ask(queries, K, ef, None)
            recall[ef] = np.mean([np.isin(ids, best).sum() / K for ids, best in zip(found.ids, nearest, strict=True)])
        assert recall[10] < 0.95 < recall[300], recall
        server.crash()
        ENGINE.open(server, INDEX)
        assert ENGINE.count(server, None) == 2000
    OFFERS.check_upgrade(SYSTEMS[LATER], SYSTEMS[NAME])
    with running(LATER, artifact(LATER, tmp_path / "later"), tmp_path / "data") as server, Driver() as driver:
        ENGINE.open(server, INDEX)
        probe = ENGINE.probe(server)
        assert (probe.version, probe.rows, probe.index_complete) == ("3.6.0", 2000, True), probe.index_detail
        asked = ENGINE.asked_settings(SYSTEMS[LATER], INDEX, "l2", 200)
        assert {name: probe.settings.get(name) for name in asked} == asked
        found = Oracle(ENGINE, server, driver, tmp_path / "upgraded", vectors).ask(queries, K, 300, None)
        assert np.mean([np.isin(ids, best).sum() / K for ids, best in zip(found.ids, nearest, strict=True)]) > 0.95
    parts = {part.name: part.paths for part in ENGINE.data_components(tmp_path / "data")}
    assert all(parts[name] for name in ("vectors", "graph", "rows and metadata", "log", "logs"))


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.makes(NAME)
def test_a_cluster_of_three_holds_a_shard_each_and_misses_a_node_that_is_gone(tmp_path: Path) -> None:
    topology = {"runtime": "native", "nodes": 3, "shards": 3, "replicas": 1, "entry": "all"}
    system = {**SYSTEMS[NAME], "settings": {"heap_mib": 512}}
    OFFERS.check(system, topology, INDEX, {"k": 10, "ef_search": 64})
    vectors, folder = small_vectors("l2"), artifact(NAME, tmp_path / "artifact")
    server = ENGINE.start(folder, tmp_path / "data", system, topology)
    try:
        with Progress("load", None) as progress:
            result = ENGINE.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        assert (result.rows_acknowledged, result.insert_errors) == (2000, 0), result.first_error
        probe = ENGINE.probe(server)
        assert (probe.nodes, probe.shards, probe.replicas, probe.index_complete) == (3, 3, 1, True), probe.index_detail
        assert sorted(placed.node for placed in probe.placement) == ["node1", "node2", "node3"]
        assert sum(placed.rows or 0 for placed in probe.placement) == 2000
        assert len(set(ENGINE.transport(server)["targets"])) == 3, "each node coordinates"
        with Driver() as driver:
            found = Oracle(ENGINE, server, driver, tmp_path / "asked", vectors).ask(vectors.base[:100], 1, 64)
        assert (found.ids[:, 0] == range(100)).mean() > 0.95
    finally:
        server.stop()
    again = ENGINE.start(folder, tmp_path / "data", system, topology)
    try:
        ENGINE.open(again, INDEX)
        assert ENGINE.count(again, None) == 2000
        again.check_members()
        again.group["node2"].handle.kill()
        with pytest.raises(ServerError, match="node2"):
            again.check_members()
    finally:
        again.stop()
    parts = {part.name: part.paths for part in ENGINE.data_components(tmp_path / "data")}
    assert len(parts["graph"]) >= 3
