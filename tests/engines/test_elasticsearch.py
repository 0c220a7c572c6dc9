"""Elasticsearch: refusals, bytes, and what the harness does with it, by a stand-in (tests/elasticsearch_standin.py)."""

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

from anncestry import cli, engines
from anncestry.drive.certificates import make_certificates
from anncestry.drive.driver import Driver
from anncestry.engines import lucene
from anncestry.engines.base import Batch, DecodeError
from anncestry.engines.elasticsearch import wire
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from anncestry.workflow import choice_of_environment, expand
from tests.builders.standins import program
from tests.elasticsearch_standin import Standin, elasticsearch
from tests.servers import INDEX, SYSTEMS, exact, small_payload, small_vectors
from tests.tls_pump import pump
from tests.toy import DATASET, ROOT, run_workflow

NAME = "elasticsearch-8.17.0"
ENGINE, OFFERS = engines.get("elasticsearch"), engines.offers_of("elasticsearch")
REMOTE = {
    "runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"http": "TEST_ELASTICSEARCH"},
    "credentials": "TEST_ELASTICSEARCH_KEY", "tls": "none",
}  # fmt: skip
CONTAINER = {"runtime": "docker", "nodes": 1, "shards": 1, "replicas": 1}
IMAGE = {
    "kind": "image",
    "image": f"docker.io/library/elasticsearch@sha256:{'a' * 64}",
    "programs": {"elasticsearch": "/usr/share/elasticsearch/bin/elasticsearch"},
}
KEY = "cGxhbnRlZDprZXk="
K = 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1}}, "not support runtime 'native'"),
        ({"topology": CONTAINER}, r"artifact: no package holds elasticsearch's server: with runtime docker it needs"),
        ({"topology": {**CONTAINER, "replicas": 2}, "system": {"artifact": IMAGE}}, "replicas is 1, not 2"),
        ({"topology": {**REMOTE, "endpoints": {}}}, r"endpoints\.http is missing"),
        ({"index": {"type": "flat"}}, "flat is unsupported by elasticsearch; supported: hnsw"),
        ({"system": {"version": "8.11.4"}}, r"8\.11\.4 is older than 8\.12\.0"),
        ({"system": {"version": "9.1.0"}}, r"9\.1\.0 is not less than 9\.1\.0"),
        ({"workload": {"k": 10, "ef_search": 10_001}}, r"10001 is more than 10000"),
        ({"workload": {"k": 10, "ef_search": 20, "filter": {"field": "id", "from": 5}}}, "id is unsupported by elast"),
    ],
)
def test_what_elasticsearch_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": REMOTE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "8.17.0", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


def test_insertions_and_searches_carry_the_same_float32() -> None:
    vectors = small_vectors("l2", rows=30, dimensions=3)
    rows = Batch(100, vectors.base, vectors.category, vectors.price, vectors.region)
    lines = [json.loads(line) for line in lucene.insertion(rows).splitlines()]
    assert (np.array([line["vector"] for line in lines[1::2]], np.float32) == vectors.base).all()
    query = np.array([0.1, 1e-30, 3.4e38], np.float32)
    asked = json.loads(wire.search(query, 7, 64, {"field": "price", "from": 0.2}))["knn"]
    assert (np.array(asked["query_vector"], np.float32) == query).all()
    assert (asked["k"], asked["num_candidates"]) == (7, 64)
    assert asked["filter"] == {"range": {"price": {"gte": float(np.float32(0.2))}}}


def test_the_graph_is_asked_for_plain_since_later_defaults_search_codes() -> None:
    body = wire.definition(20, INDEX, "l2_norm", {}, (2, 3), "mark")
    options = body["mappings"]["properties"]["vector"]["index_options"]
    assert options == {"type": "hnsw", "m": 16, "ef_construction": 200}
    assert body["settings"]["index"] == {"number_of_shards": 2, "number_of_replicas": 2}


def reply(*hits: tuple[str, float], failed: int = 0, absent: int = 0, timed_out: bool = False) -> bytes:
    found = [{"_id": name, "_score": score} for name, score in hits]
    shards = {"total": 3, "successful": 3 - failed - absent, "skipped": 0, "failed": failed}
    return json.dumps({"timed_out": timed_out, "_shards": shards, "hits": {"hits": found}}).encode()


def test_scores_are_read_as_distances() -> None:
    ids, far = ENGINE.decode(reply(("5", 0.8), ("1099511627776", 0.2)), "l2")
    assert ids.tolist() == [5, 2**40]
    np.testing.assert_allclose(far, [0.25, 4], rtol=1e-6)
    np.testing.assert_allclose(ENGINE.decode(reply(("5", 0.875), ("6", 0.375)), "cosine")[1], [0.25, 1.25], rtol=1e-6)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b'{"error":{"type":"x"},"status":400}',
        b'{"hits":{}}',
        reply(("a", 1.0)),
        reply(("1", 1.0), failed=1),
        reply(("1", 1.0), absent=1),
        reply(("1", 1.0), timed_out=True),
    ],
)
def test_what_is_no_whole_answer_is_a_failed_request(said: bytes) -> None:
    with pytest.raises(DecodeError, match="Elasticsearch"):
        ENGINE.decode(said, "l2")


# Against the stand-in


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with elasticsearch(KEY) as (standin, address):
        monkeypatch.setenv("TEST_ELASTICSEARCH", address)
        monkeypatch.setenv("TEST_ELASTICSEARCH_KEY", KEY)
        yield standin


def test_the_stand_in_refuses_what_the_reference_does_not_name(theirs: Standin, tmp_path: Path) -> None:
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    body = wire.definition(3, INDEX, "l2_norm", {}, (1, 1), "mark")
    body["mappings"]["properties"]["vector"]["index_options"]["ef"] = 5
    with pytest.raises(ServerError, match=r"HTTP 400: .*unknown field \['ef'\]"):
        server.of_index("PUT", "", body)


def test_an_image_of_it_can_be_asked_for() -> None:
    OFFERS.check({"version": "8.17.0", "artifact": IMAGE}, CONTAINER, INDEX, None)


def test_its_program_is_started_on_the_folder_and_ports_that_are_ours(tmp_path: Path) -> None:
    """As in a container, but for the container: no registry has its image here."""
    port = 'int(next(word for word in sys.argv if word.startswith("-Ehttp.port=")).partition("=")[2])'
    imports = "from tests.elasticsearch_standin import elasticsearch"
    told = program(tmp_path / "artifact", "elasticsearch", imports, f"elasticsearch(port={port})")
    data = tmp_path / "data"
    server = ENGINE.start(tmp_path / "artifact", data, SYSTEMS[NAME], {**CONTAINER, "runtime": "native"})
    try:
        with Progress("load", None) as progress:
            ENGINE.load(server, small_vectors("l2", rows=500), INDEX, {"batch_rows": 300}, progress)
        assert (ENGINE.probe(server).version, ENGINE.count(server, None)) == ("8.17.0", 500)
        arguments = [word.removeprefix("-E").split("=") for word in json.loads(told.read_text())["arguments"]]
        mine: dict[str, str] = dict(arguments)
        assert server.endpoint == f"127.0.0.1:{mine.pop('http.port')}" and int(mine.pop("transport.port")) > 0
        assert (mine["path.data"], mine["path.logs"]) == (str(data / "data"), str(data / "logs"))
        assert mine["xpack.security.enabled"] == "false" and mine["discovery.type"] == "single-node"
    finally:
        assert server.stop().clean


def test_a_container_of_roots_is_refused_as_elasticsearch_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(UserError, match="refuses to run as root"):
        ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], CONTAINER)


def test_what_it_stores_is_told_apart(tmp_path: Path) -> None:
    at = tmp_path / "data" / "indices" / "x" / "0"
    for name in ("index/_0.cfs", "translog/translog-1.tlog"):
        (at / name).parent.mkdir(parents=True)
        (at / name).write_text("1")
    found = {part.name: list(part.paths) for part in ENGINE.data_components(tmp_path)}
    assert found == {"index": [at / "index"], "logs": [at / "translog"], "other": []}


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
    assert (probe.version, probe.rows, probe.index_complete) == ("8.17.0", 2000, True), probe.index_detail
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
    assert any("script_score" in search.get("query", {}) for search in theirs.searches), "the oracle's scans"
    server.drop()
    assert theirs.index is None


def test_a_row_that_is_refused_is_counted_and_named(theirs: Standin, tmp_path: Path) -> None:
    vectors = small_vectors("cosine", rows=100)
    vectors.base[7] *= 2
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    with Progress("load", None) as progress:
        result = ENGINE.load(server, vectors, INDEX, {"batch_rows": 30}, progress)
    assert (result.rows_acknowledged, result.insert_errors) == (99, 1)
    assert "unit-length" in str(result.first_error)


def test_segments_that_were_not_merged_are_told(theirs: Standin, tmp_path: Path) -> None:
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    with Progress("load", None) as progress:
        ENGINE.load(server, small_vectors("l2"), INDEX, {"batch_rows": 300}, progress)
    theirs.segments = 3
    probe = ENGINE.probe(server)
    assert not probe.index_complete and "in 3 segments" in probe.index_detail


def test_an_index_whose_copies_are_missing_is_not_searched(theirs: Standin, tmp_path: Path) -> None:
    server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    theirs.status = "yellow"
    with pytest.raises(ServerError, match="the index is yellow"):
        server.check_members()


def test_an_index_of_theirs_is_never_touched(theirs: Standin, tmp_path: Path) -> None:
    theirs.index, theirs.mappings = "anncestry", {"properties": {}}
    with pytest.raises(UserError, match="has a collection anncestry that anncestry did not make"):
        ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    assert theirs.index == "anncestry"


def test_the_index_of_another_load_is_not_taken_for_ours(theirs: Standin, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        server = ENGINE.start(tmp_path, tmp_path / folder, SYSTEMS[NAME], REMOTE)
        with Progress("load", None) as progress:
            ENGINE.load(server, small_vectors("l2", rows=50), INDEX, {"batch_rows": 50}, progress)
    with pytest.raises(ServerError, match="the collection anncestry is of another load"):
        ENGINE.start(tmp_path, tmp_path / "a", SYSTEMS[NAME], REMOTE)


def test_a_wrong_key_is_told_without_telling_it(
    theirs: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_ELASTICSEARCH_KEY", "d3Jvbmc6a2V5")
    with pytest.raises(ServerError, match="HTTP 401") as error:
        ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], REMOTE)
    assert "d3Jvbmc6a2V5" not in str(error.value)


def test_behind_tls_both_the_harness_and_the_driver_send_the_key_encrypted(
    theirs: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path / "good")
    monkeypatch.setenv("TEST_REMOTE_CA", str(certificates.ca))
    with pump(os.environ["TEST_ELASTICSEARCH"], certificates, "http/1.1") as front:
        monkeypatch.setenv("TEST_ELASTICSEARCH", f"https://{front}")
        server = ENGINE.start(tmp_path, tmp_path / "data", SYSTEMS[NAME], {**REMOTE, "tls": {"ca": "TEST_REMOTE_CA"}})
        vectors = small_vectors("l2", rows=500)
        with Progress("load", None) as progress:
            ENGINE.load(server, vectors, INDEX, {"batch_rows": 250}, progress)
        with Driver() as driver:
            found = Oracle(ENGINE, server, driver, tmp_path / "asked", vectors).ask(vectors.base[:20], 1, 200)
        assert found.ids[:, 0].tolist() == list(range(20))
        (done,) = [json.loads(path.read_text()) for path in (tmp_path / "asked").rglob("done.json")]
        assert done["tls"][0]["certificate_sha256"] == server.members()["remote"]["tls"]["http"]["certificate_sha256"]


def few_rows(config: Path) -> Path:
    """A config of one cell: a few rows, at the remote endpoint."""
    shutil.copytree(ROOT / "config", config)
    (config / "systems.yaml").write_text(yaml.safe_dump({NAME: SYSTEMS[NAME]}))
    (config / "topologies.yaml").write_text(yaml.safe_dump({"remote": REMOTE}))
    few = {"metric": "cosine", "rows": 1800, "queries": 200, "sources": [{**DATASET["sources"][0], "samples": 2000}]}
    (config / "datasets.yaml").write_text(yaml.safe_dump({"few": {**DATASET, **few}}))
    block = {"datasets": ["few"], "systems": [NAME], "topologies": ["remote"]}
    matrix = [{**block, "workloads": ["smoke-k10-category30"]}]
    main = {**yaml.safe_load((config / "config.yaml").read_text()), "disturbance": {"repeats": 0}, "chart_files": False}
    (config / "config.yaml").write_text(yaml.safe_dump({**main, "matrix": matrix}))
    return config


def test_what_a_load_left_is_told_without_scratch_and_removed_only_if_that_is_said(
    theirs: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(few_rows(tmp_path / "config")))
    (cell,) = expand(choice_of_environment()).cells
    data, record = Path(cell.index_path).parent / "data", Path(cell.load_path)

    def load(data: Path) -> None:
        server = ENGINE.start(tmp_path, data, SYSTEMS[NAME], REMOTE)
        with Progress("load", None) as progress:
            ENGINE.load(server, small_vectors("l2", rows=50), INDEX, {"batch_rows": 50}, progress)
        server.stop()

    def withdrawn(*options: str) -> tuple[int, str]:
        status = cli.main(["withdraw", *options])
        return status, "".join(capsys.readouterr())

    load(data)
    record.parent.mkdir(parents=True)
    record.touch()
    shutil.rmtree("scratch")  # as `make clean` does
    status, said = withdrawn()
    assert status == 2 and "`anncestry --experiment default withdraw --lost` removes it" in said
    assert theirs.index == "anncestry" and not Path("scratch/index").exists()
    assert withdrawn("--lost") == (0, f"withdrawn: few of {NAME}, remote\n") and theirs.index is None
    assert withdrawn() == withdrawn("--lost") == (0, "no remote server holds a collection of this experiment\n")

    # With scratch/ as it was, one of another load stays, whatever is said.
    load(data)
    load(tmp_path / "another")
    status, said = withdrawn("--lost")
    assert status == 2 and "is of another load" in said and theirs.index == "anncestry"
    shutil.rmtree("scratch")
    theirs.mappings = {"properties": {}}  # somebody else's
    assert withdrawn("--lost")[0] == 0 and theirs.index == "anncestry"
    monkeypatch.delenv("TEST_ELASTICSEARCH")
    status, said = withdrawn()
    assert status == 2 and "can't be told: the environment variable TEST_ELASTICSEARCH is not set" in said
    record.unlink()
    assert withdrawn() == (0, "no remote server holds a collection of this experiment\n"), "nothing was loaded"


@pytest.mark.long
@pytest.mark.servers
def test_it_goes_through_the_whole_pipeline_and_the_key_is_in_no_file_of_it(theirs: Standin, tmp_path: Path) -> None:
    config, folder = few_rows(tmp_path / "config"), tmp_path / "run"
    run_workflow(folder, f"config_dir={config}")
    records = [json.loads(path.read_text()) for path in (folder / "results").glob("*/few/**/*.json")]
    assert {record["stage"] for record in records} == {"load", "query", "recall"}
    for record in records:
        if record["stage"] != "recall":
            assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
    planted = (KEY.encode(), os.environ["TEST_ELASTICSEARCH"].encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if any(value in path.read_bytes() for value in planted)] == []
