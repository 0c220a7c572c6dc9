"""Qdrant: refusals, messages, and what the harness does with it, by a stand-in (tests/qdrant_standin.py)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from anncestry import engines
from anncestry.drive.certificates import make_certificates
from anncestry.drive.driver import Driver
from anncestry.engines.base import Batch, DecodeError
from anncestry.engines.qdrant import rpc, wire
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from tests.builders.standins import program
from tests.qdrant_standin import Messages, Standin, messages, qdrant
from tests.servers import INDEX, SYSTEMS, exact, small_payload, small_vectors
from tests.tls_pump import pump
from tests.toy import DATASET, ROOT, run_workflow

NAME = "qdrant-1.15.1"
ENGINE, OFFERS = engines.get("qdrant"), engines.offers_of("qdrant")
REMOTE = {
    "runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"grpc": "TEST_QDRANT"},
    "credentials": "TEST_QDRANT_KEY", "tls": "none",
}  # fmt: skip
CONTAINER = {"runtime": "docker", "nodes": 1, "shards": 1, "replicas": 1}
IMAGE = {
    "kind": "image", "image": f"docker.io/qdrant/qdrant@sha256:{'a' * 64}", "programs": {"qdrant": "/qdrant/qdrant"},
}  # fmt: skip
KEY = "planted-key"
K = 10


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Messages:
    """The messages of Qdrant's own client."""
    return messages(tmp_path_factory.mktemp("client") / "artifact")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1}}, "not support runtime 'native'"),
        ({"topology": CONTAINER}, r"artifact: no package holds qdrant's server: with runtime docker it needs"),
        (
            {"topology": {**CONTAINER, "nodes": 3}, "system": {"artifact": IMAGE}},
            "has one container .* nodes is 1, not 3",
        ),
        ({"topology": {**REMOTE, "nodes": 3}}, "not asked yet which node holds which shard"),
        ({"topology": {**REMOTE, "endpoints": {}}}, r"endpoints\.grpc is missing"),
        ({"index": {"type": "flat"}}, "flat is unsupported by qdrant; supported: hnsw"),
        ({"system": {"version": "1.8.4"}}, r"1\.8\.4 is older than 1\.9\.0"),
        ({"system": {"version": "1.16.0"}}, r"1\.16\.0 is not less than 1\.16\.0"),
        ({"system": {"settings": {"segments": 2}}}, "unknown key 'segments'; known: full_scan_threshold"),
        ({"workload": {"k": 10, "ef_search": 20, "filter": {"field": "id", "from": 5}}}, "id is unsupported by qdran"),
    ],
)
def test_what_qdrant_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": REMOTE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "1.15.1", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


def test_every_message_is_that_of_qdrant_s_own_client(client: Messages) -> None:
    """Name, number, type and label of each field; an enumeration is sent as an int32 is."""
    theirs: dict[str, Any] = {}
    for module in (client.points, client.collections, client.qdrant):
        theirs |= dict(module.DESCRIPTOR.message_types_by_name)
    theirs["PayloadEntry"] = theirs["PointStruct"].nested_types_by_name["PayloadEntry"]
    theirs["Value"] = theirs["PayloadEntry"].fields_by_name["value"].message_type
    differing = []
    for name, ours in rpc.message.items():
        for field in ours.DESCRIPTOR.fields:
            known = theirs[name].fields_by_name.get(field.name)
            kind = (
                field.TYPE_INT32 if known is not None and known.type == known.TYPE_ENUM else getattr(known, "type", 0)
            )
            if known is None or (known.number, kind) != (field.number, field.type):
                differing.append(f"{name}.{field.name}")
            elif known.is_repeated != field.is_repeated:
                differing.append(f"{name}.{field.name}: repeated")
    assert differing == []
    enums = client.collections
    assert (enums.Euclid, enums.Dot, enums.Green) == (rpc.EUCLID, rpc.DOT, rpc.GREEN)
    assert client.points.Completed == rpc.COMPLETED
    assert [rpc.FIELD_TYPES[kind] for kind in ("keyword", "int", "float")] == [
        client.points.FieldTypeKeyword,
        client.points.FieldTypeInteger,
        client.points.FieldTypeFloat,
    ]


def test_a_search_carries_the_same_float32(client: Messages) -> None:
    query = np.array([0.1, 1e-30, 3.4e38], np.float32)
    asked = client.points.SearchPoints.FromString(wire.search(query, 7, 64, {"field": "price", "from": 0.2}, False))
    assert (np.array(asked.vector, np.float32) == query).all()
    assert (asked.limit, asked.params.hnsw_ef, asked.params.exact) == (7, 64, False)
    below, price = float(np.nextafter(np.float32(0.2), np.float32(0))), float(np.float32(0.2))
    assert below < asked.filter.must[0].field.range.gte < price, "no price lies between"
    assert client.points.SearchPoints.FromString(wire.search(query, 7, 64, None, True)).params.exact


def test_scores_are_read_as_distances(client: Messages) -> None:
    found = [{"id": {"num": 5}, "score": 0.5}, {"id": {"num": 2**40}, "score": 2.0}]
    said = client.points.SearchResponse(result=found).SerializeToString()
    ids, far = ENGINE.decode(said, "l2")
    assert ids.tolist() == [5, 2**40] and far.tolist() == [0.25, 4.0]
    assert ENGINE.decode(said, "cosine")[1].tolist() == [0.5, -1.0]


def test_what_is_no_answer_is_a_failed_request(client: Messages) -> None:
    no_number = client.points.SearchResponse(result=[{"id": {"uuid": "a"}, "score": 1.0}]).SerializeToString()
    for said in (b"\xff", no_number):
        with pytest.raises(DecodeError, match="Qdrant"):
            ENGINE.decode(said, "l2")


# Against the stand-in


@pytest.fixture
def theirs(
    client: Messages, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Standin]:
    with qdrant(client, KEY) as (standin, address):
        monkeypatch.setenv("TEST_QDRANT", address)
        monkeypatch.setenv("TEST_QDRANT_KEY", KEY)
        yield standin


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_load_is_read_back_searched_and_passes_all_gates(theirs: Standin, tmp_path: Path, metric: str) -> None:
    vectors = small_vectors(metric)
    vectors = replace(vectors, price=vectors.price * np.float32(1000), payload=small_payload())
    queries = small_vectors(metric, rows=400).base[::-1].copy()
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    with Progress("load", None) as progress:
        result = ENGINE.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
    assert (result.rows_acknowledged, result.insert_errors) == (2000, 0), result.first_error
    assert [phase.name for phase in result.phases] == ["insert", "index", "ready"]
    probe, asked = ENGINE.probe(server), ENGINE.asked_settings(SYSTEMS[NAME], INDEX, metric, 200)
    assert (probe.version, probe.rows, probe.index_complete) == ("1.15.1", 2000, True), probe.index_detail
    assert {name: probe.settings.get(name) for name in asked} == asked
    for filter in vectors.payload.filters:
        assert filter is not None
        assert ENGINE.count(server, filter) == vectors.payload.passes(filter).sum(), filter
    with Driver() as driver:
        gates = Oracle(ENGINE, server, driver, tmp_path / "gates", SimpleNamespace(**vars(vectors), queries=queries))  # type: ignore[arg-type]
        assert [gate.detail for gate in gates.check() if not gate.ok] == []
        found = Oracle(ENGINE, server, driver, tmp_path / "asked", vectors).ask(queries[:50], K, 200, None)
    nearest = np.argsort(exact(vectors, queries[:50]), axis=1, kind="stable")[:, :K]
    assert (found.ids == nearest).mean() > 0.99
    assert any(search.params.exact for search in theirs.searches), "the oracle's scans"
    server.drop()
    assert theirs.name is None


def test_an_image_of_it_can_be_asked_for() -> None:
    OFFERS.check({"version": "1.15.1", "artifact": IMAGE}, CONTAINER, INDEX, None)


def test_its_program_is_started_on_the_folder_and_ports_that_are_ours(tmp_path: Path) -> None:
    """As in a container, but for the container: no registry has its image here."""
    folder = tmp_path / "client"
    imports = f"from tests.qdrant_standin import messages, qdrant\nof = messages(Path({str(folder)!r}))"
    told = program(
        tmp_path / "artifact", "qdrant", imports, 'qdrant(of, port=int(os.environ["QDRANT__SERVICE__GRPC_PORT"]))'
    )
    data = tmp_path / "data"
    server = ENGINE.start(tmp_path / "artifact", data, SYSTEMS[NAME], {**CONTAINER, "runtime": "native"})
    try:
        with Progress("load", None) as progress:
            ENGINE.load(server, small_vectors("l2", rows=500), INDEX, {"batch_rows": 300}, progress)
        assert (ENGINE.probe(server).version, ENGINE.count(server, None)) == ("1.15.1", 500)
        variables = json.loads(told.read_text())["environment"]
        mine = {name: value for name, value in variables.items() if name.startswith("QDRANT__")}
        ports = {mine.pop(f"QDRANT__SERVICE__{name}_PORT") for name in ("HTTP", "GRPC")}
        assert mine == {
            "QDRANT__STORAGE__STORAGE_PATH": str(data / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(data / "snapshots"),
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__TELEMETRY_DISABLED": "true",
        }
        assert len(ports) == 2 and server.endpoint.rpartition(":")[2] in ports
    finally:
        assert server.stop().clean


def test_what_it_stores_is_told_apart(tmp_path: Path) -> None:
    at = tmp_path / "storage" / "collections" / "anncestry" / "0"
    for name in ("segments/1/data", "wal/open-1"):
        (at / name).parent.mkdir(parents=True)
        (at / name).write_text("1")
    found = {part.name: list(part.paths) for part in ENGINE.data_components(tmp_path)}
    assert found == {"index": [at / "segments"], "logs": [at / "wal"], "other": []}


def test_a_batch_that_is_refused_ends_the_load_with_the_reason(theirs: Standin, tmp_path: Path) -> None:
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    vectors = small_vectors("l2", rows=100)
    with Progress("load", None) as progress:
        ENGINE.load(server, vectors, INDEX, {"batch_rows": 50}, progress)
    wrong = wire.insertion(replace_dimensions())
    with pytest.raises(ServerError, match="INVALID_ARGUMENT: Wrong input: Vector dimension error"):
        server.insert("Points/Upsert", wrong)
    server.stop()


def replace_dimensions() -> Batch:
    vectors = small_vectors("l2", rows=3, dimensions=5)
    return Batch(0, vectors.base, vectors.category, vectors.price, vectors.region)


def test_vectors_that_are_not_indexed_are_told(theirs: Standin, tmp_path: Path) -> None:
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    with Progress("load", None) as progress:
        ENGINE.load(server, small_vectors("l2"), INDEX, {"batch_rows": 300}, progress)
    theirs.indexed_from = 0
    probe = ENGINE.probe(server)
    assert not probe.index_complete and "0 of 2000 vectors indexed" in probe.index_detail
    server.stop()


def test_the_stand_in_refuses_fields_that_qdrant_does_not_have(theirs: Standin, tmp_path: Path) -> None:
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    with pytest.raises(ServerError, match=r"INVALID_ARGUMENT: ListCollectionsRequest: unknown fields \[5\]"):
        server.rpc.call("Collections/List", b"\x28\x01")
    server.stop()


def test_a_collection_of_theirs_is_never_touched(theirs: Standin, tmp_path: Path) -> None:
    theirs.name = "anncestry"
    with pytest.raises(UserError, match="has a collection anncestry that anncestry did not make"):
        ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    assert theirs.name == "anncestry"


def test_the_collection_of_another_load_is_not_taken_for_ours(theirs: Standin, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        server = ENGINE.start(tmp_path, tmp_path / folder, SYSTEMS[NAME], REMOTE)
        with Progress("load", None) as progress:
            ENGINE.load(server, small_vectors("l2", rows=50), INDEX, {"batch_rows": 50}, progress)
    with pytest.raises(ServerError, match="the collection anncestry is of another load"):
        ENGINE.start(tmp_path, tmp_path / "a", SYSTEMS[NAME], REMOTE)


def test_a_wrong_key_is_told_without_telling_it(
    theirs: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_QDRANT_KEY", "wrong-secret")
    with pytest.raises(ServerError, match="UNAUTHENTICATED") as error:
        ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    assert "wrong-secret" not in str(error.value)


def test_behind_tls_both_the_harness_and_the_driver_send_the_key_encrypted(
    theirs: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path / "good")
    monkeypatch.setenv("TEST_REMOTE_CA", str(certificates.ca))
    with pump(os.environ["TEST_QDRANT"], certificates, "h2") as front:
        monkeypatch.setenv("TEST_QDRANT", front)
        server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], {**REMOTE, "tls": {"ca": "TEST_REMOTE_CA"}})
        vectors = small_vectors("l2", rows=500)
        with Progress("load", None) as progress:
            ENGINE.load(server, vectors, INDEX, {"batch_rows": 250}, progress)
        with Driver() as driver:
            found = Oracle(ENGINE, server, driver, tmp_path / "asked", vectors).ask(vectors.base[:20], 1, 200)
        assert found.ids[:, 0].tolist() == list(range(20))
        (done,) = [json.loads(path.read_text()) for path in (tmp_path / "asked").rglob("done.json")]
        assert done["tls"][0]["certificate_sha256"] == server.members()["remote"]["tls"]["grpc"]["certificate_sha256"]


@pytest.mark.long
@pytest.mark.servers
def test_it_goes_through_the_whole_pipeline_and_the_key_is_in_no_file_of_it(theirs: Standin, tmp_path: Path) -> None:
    config, folder = tmp_path / "config", tmp_path / "run"
    shutil.copytree(ROOT / "config", config)
    folder.mkdir()
    (config / "systems.yaml").write_text(yaml.safe_dump({NAME: SYSTEMS[NAME]}))
    (config / "topologies.yaml").write_text(yaml.safe_dump({"remote": REMOTE}))
    few = {"metric": "cosine", "rows": 1800, "queries": 200, "sources": [{**DATASET["sources"][0], "samples": 2000}]}
    (config / "datasets.yaml").write_text(yaml.safe_dump({"few": {**DATASET, **few}}))
    block = {"datasets": ["few"], "systems": [NAME], "topologies": ["remote"]}
    matrix = [{**block, "workloads": ["smoke-k10-category30"]}]
    main = {**yaml.safe_load((config / "config.yaml").read_text()), "disturbance": {"repeats": 0}, "chart_files": False}
    (config / "config.yaml").write_text(yaml.safe_dump({**main, "matrix": matrix}))
    run_workflow(folder, f"config_dir={config}")
    records = [json.loads(path.read_text()) for path in (folder / "results").glob("*/few/**/*.json")]
    assert {record["stage"] for record in records} == {"load", "query", "recall"}
    for record in records:
        if record["stage"] != "recall":
            assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
    planted = (KEY.encode(), os.environ["TEST_QDRANT"].encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if any(value in path.read_bytes() for value in planted)] == []
