"""Chroma: refusals, bytes, and its real server: both versions, and one that opens what the other stored."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from anncestry import engines
from anncestry.datasets.metadata import matches
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines.base import Batch, DecodeError, Server
from anncestry.engines.chroma import wire
from anncestry.errors import ConfigError, UserError
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from tests.servers import (
    INDEX,
    STANDALONE,
    SYSTEMS,
    SmallVectors,
    artifact,
    exact,
    running,
    small_payload,
    small_vectors,
)

NAMES = ["chroma-1.5.9", "chroma-1.0.21"]
CHROMA, OFFERS = engines.get("chroma"), engines.offers_of("chroma")
K = 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {**STANDALONE, "nodes": 3}}, "one server with one SQLite file: nodes is 1, not 3"),
        ({"topology": {**STANDALONE, "runtime": "docker"}}, "does not support runtime 'docker'"),
        ({"topology": {**STANDALONE, "runtime": "remote"}}, "runtime remote is unsupported by chroma: a changed ef"),
        ({"index": {"type": "flat"}}, r"flat is unsupported by chroma; supported: hnsw"),
        ({"index": {**INDEX, "quantizer": "sq"}}, "it quantizes none of that type"),
        ({"index": {**INDEX, "M": 1}}, r"index\.M"),
        ({"system": {"settings": {"num_threads": 2}}}, "unknown key 'num_threads'; known: sync_threshold"),
        ({"system": {"settings": {"sync_threshold": 1}}}, r"settings\.sync_threshold: 1 is not"),
        ({"system": {"version": "0.6.3"}}, r"0\.6\.3 is older than 1\.0\.21"),
        ({"workload": {"k": 100, "ef_search": 64}}, "ef_search: 64 is less than k: 100"),
        ({"workload": {"k": 10, "filter": {"field": "id", "from": 5}}}, "id is unsupported by chroma: ids are texts"),
        ({"workload": {"k": 10, "warmup": 0, "start": "cold"}}, "cold is unsupported by chroma: .* another start"),
        ({"workload": {"k": 10, "client": "sdk"}}, "can't be asked through sdk"),
        ({"workload": {"k": 10, "stream": {"insert_per_s": 10}}}, "can't be written to while it is searched"),
        ({"workload": {"k": 10, "fault": {"kind": "kill", "member": "node1"}}}, "nobody who could take its place"),
    ],
)
def test_what_chroma_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": STANDALONE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "1.5.9", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


@pytest.mark.parametrize("name", NAMES)
def test_the_systems_of_the_config_are_possible(name: str) -> None:
    OFFERS.check(
        SYSTEMS[name], STANDALONE, INDEX, {"k": 100, "ef_search": 200, "filter": {"field": "price", "below": 2}}
    )
    assert "restart" in CHROMA.fairness(SYSTEMS[name], INDEX, STANDALONE)["ef applies to"]


def test_an_insertion_holds_the_rows_exactly() -> None:
    vectors = small_vectors("l2", rows=30, dimensions=3)
    rows = Batch(100, vectors.base, vectors.category, vectors.price, vectors.region)
    body = json.loads(wire.insertion(rows))
    assert body["ids"] == [str(row) for row in range(100, 130)]
    sent = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in body["embeddings"]])
    assert (sent == vectors.base).all()
    assert [row["category"] for row in body["metadatas"]] == vectors.category.tolist()
    assert [row["region"] for row in body["metadatas"]] == vectors.region.tolist()
    assert np.array([row["price"] for row in body["metadatas"]], np.float64).tolist() == vectors.price.tolist()


def test_a_search_carries_the_same_float32_and_the_filter_with_bounds_of_the_column() -> None:
    query = np.array([0.1, 1e-30, 3.4e38, -7.0], np.float32)
    low = float(np.float32(0.2))
    body = json.loads(wire.search(query[None], 7, {"field": "price", "from": 0.2, "below": 0.7}))
    assert (np.array(body["query_embeddings"], np.float32) == query).all()
    assert (body["n_results"], body["include"]) == (7, ["distances"])
    assert body["where"]["$and"][0] == {"price": {"$gte": low}}
    assert wire.where({"field": "category", "in": [1, 4]}) == {"category": {"$in": [1, 4]}}
    assert wire.where({"field": "region", "from": 3}) == {"region": {"$gte": 3}}
    assert "where" not in json.loads(wire.search(query[None], 7, None))


def test_replies_are_read_whole() -> None:
    ids, far = CHROMA.decode(b'{"ids":[["5","1099511627776"]],"distances":[[0.25,2.25]]}', "l2")
    assert (ids.dtype, ids.tolist(), far.tolist()) == (np.int64, [5, 2**40], [0.25, 2.25])
    assert CHROMA.decode(b'{"ids":[[]],"distances":[[]]}', "cosine")[0].shape == (0,)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]",
        b'{"error":"NotFoundError"}',
        b'{"ids":[],"distances":[]}',
        b'{"ids":[["5"],["6"]],"distances":[[0.5],[0.5]]}',
        b'{"ids":[["5"]],"distances":null}',
        b'{"ids":[["5"]],"distances":[[null]]}',
        b'{"ids":[["5","6"]],"distances":[[0.5]]}',
        b'{"ids":[["somebody\'s"]],"distances":[[0.5]]}',
        b'{"ids":[["5"]],"distances":[[NaN]]}',
    ],
)
def test_what_is_no_answer_is_a_failed_request(reply: bytes) -> None:
    with pytest.raises(DecodeError, match="repl"):
        CHROMA.decode(reply, "l2")


# A real server.


@pytest.fixture(scope="module", params=[(name, metric) for name in NAMES for metric in ("l2", "cosine")], ids=str)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Server, SmallVectors]]:
    name, metric = request.param
    vectors = small_vectors(metric)
    # Prices as datasets have them, for the gates.
    vectors = replace(vectors, price=vectors.price * np.float32(1000), payload=small_payload())
    folder = tmp_path_factory.mktemp("chroma")
    with running(name, artifact(name, folder / "artifact"), folder / "data") as server:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = CHROMA.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
        assert (result.rows_sent, result.rows_acknowledged, result.batches) == (2000, 2000, 7), result.first_error
        assert [phase.name for phase in result.phases] == ["insert", "index", "ready"]
        assert (result.durable_at_s, result.durability[:7]) == (None, "no call")
        CHROMA.apply(server, 200)
        yield name, server, vectors


@pytest.mark.servers
def test_the_server_says_what_was_asked_of_it(loaded: tuple[str, Server, SmallVectors]) -> None:
    name, server, vectors = loaded
    probe = CHROMA.probe(server)
    asked = CHROMA.asked_settings(SYSTEMS[name], INDEX, vectors.metric, 200)
    assert (probe.version, probe.rows, probe.index_complete) == (SYSTEMS[name]["version"], 2000, True)
    assert {name: probe.settings.get(name) for name in asked} == asked
    assert probe.index_detail.startswith("1800 of 2000 rows") or probe.index_detail.startswith("1200 of 2000 rows")
    (pid,) = server.group.pids()
    listening = [port for port in psutil.Process(pid).net_connections() if port.status == "LISTEN"]
    assert {port.laddr.ip for port in listening} == {"127.0.0.1"}


@pytest.mark.servers
@pytest.mark.parametrize(
    "filter",
    [
        None,
        {"field": "category", "in": [1, 4, 7]},
        {"field": "price", "below": 300.3},
        {"field": "price", "from": 200.2, "below": 500},
    ],
)
def test_searches_find_the_nearest_rows_that_match(
    loaded: tuple[str, Server, SmallVectors], filter: dict[str, Any] | None, tmp_path: Path
) -> None:
    _, server, vectors = loaded
    CHROMA.apply(server, 200)
    queries = small_vectors(vectors.metric, rows=50).base[::-1]
    passes = matches(filter, vectors.category, vectors.price)
    assert CHROMA.count(server, filter) == passes.sum()
    with Driver() as driver:
        answers = Oracle(CHROMA, server, driver, tmp_path, vectors).ask(queries, K, 200, filter)
    assert (answers.status == OK).all(), answers.errors
    far, hits = exact(vectors, queries), 0
    for number, (ids, told) in enumerate(zip(answers.ids, answers.distances, strict=True)):
        assert passes[ids].all()
        np.testing.assert_allclose(told, far[number, ids], rtol=1e-4, atol=2e-6)
        hits += len(set(ids.tolist()) & set(np.argsort(np.where(passes, far[number], np.inf))[:K].tolist()))
    assert hits / (K * len(queries)) > 0.95
    region = {"field": "region", "from": 3, "below": 9}
    assert CHROMA.count(server, region) == ((vectors.region >= 3) & (vectors.region < 9)).sum()


@pytest.mark.servers
def test_conditions_of_queries_are_counted_and_answered_as_we_read_them(
    loaded: tuple[str, Server, SmallVectors], tmp_path: Path
) -> None:
    _, server, vectors = loaded
    CHROMA.apply(server, 200)
    queries = small_vectors(vectors.metric, rows=8).base[::-1]
    far, found, wanted = exact(vectors, queries), 0, 0
    with Driver() as driver:
        oracle = Oracle(CHROMA, server, driver, tmp_path, vectors)
        for filter in vectors.payload.filters:
            assert filter is not None
            passes = vectors.payload.passes(filter)
            assert CHROMA.count(server, filter) == passes.sum(), filter
            for row, ids in enumerate(oracle.ask(queries, K, 200, dict(filter)).ids):
                nearest = np.flatnonzero(passes)[np.argsort(far[row, passes])[:K]]
                assert passes[ids[ids >= 0]].all(), filter
                found, wanted = found + len(set(ids.tolist()) & set(nearest.tolist())), wanted + len(nearest)
    assert found / wanted > 0.95


@pytest.mark.servers
def test_each_vector_of_a_request_gets_what_it_gets_alone(
    loaded: tuple[str, Server, SmallVectors], tmp_path: Path
) -> None:
    _, server, vectors = loaded
    CHROMA.apply(server, 200)
    queries = vectors.base[:24] + np.float32(0.01)
    with Driver() as driver:
        oracle = Oracle(CHROMA, server, driver, tmp_path, vectors)
        together = oracle.send(CHROMA.encode_batches(server, queries.reshape(4, 6, -1), K, 200, None), K, nq=6)
        alone = oracle.ask(queries, K, 200)
    assert (together.status == OK).all() and (together.ids == alone.ids).all(), together.errors


@pytest.mark.servers
def test_a_changed_ef_changes_answers_and_is_read_back(
    loaded: tuple[str, Server, SmallVectors], tmp_path: Path
) -> None:
    _, server, vectors = loaded
    queries = np.random.default_rng(9).normal(size=(400, vectors.base.shape[1])).astype(np.float32)
    nearest, recall = np.argsort(exact(vectors, queries), axis=1)[:, :K], {}
    with Driver() as driver:
        for ef in (10, 300):
            CHROMA.apply(server, ef)
            assert CHROMA.probe(server).settings["ef_search"] == ef
            answers = Oracle(CHROMA, server, driver, tmp_path / str(ef), vectors).ask(queries, K, ef, None)
            recall[ef] = np.mean([np.isin(ids, best).sum() / K for ids, best in zip(answers.ids, nearest, strict=True)])
    assert recall[10] < 0.98 < recall[300], recall


@pytest.mark.servers
def test_all_gates_of_a_load_hold(loaded: tuple[str, Server, SmallVectors], tmp_path: Path) -> None:
    _, server, vectors = loaded
    asked = SimpleNamespace(**vars(vectors), queries=vectors.base[:200] + np.float32(0.01))
    with Driver() as driver:
        gates = Oracle(CHROMA, server, driver, tmp_path, asked).check()  # type: ignore[arg-type]
    assert all(gate.ok for gate in gates), [gate.detail for gate in gates if not gate.ok]


@pytest.mark.servers
def test_what_a_server_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    name, vectors = NAMES[0], small_vectors("l2", rows=100)
    with running(name, artifact(name, tmp_path / "artifact"), tmp_path / "data") as server:
        with Progress("load", None) as progress:
            with pytest.raises(UserError, match=r"load\.batch_rows: 6000: chroma takes at most 5461 rows an insertion"):
                CHROMA.load(server, vectors, INDEX, {"batch_rows": 6000}, progress)
            CHROMA.load(server, vectors, INDEX, {"batch_rows": 100}, progress)
        longer = small_vectors("l2", rows=5, dimensions=21)
        body = wire.insertion(Batch(100, longer.base, longer.category, longer.price, longer.region))
        assert "dimension" in server.add(body)
        assert CHROMA.count(server, None) == 100


@pytest.mark.servers
def test_a_later_version_opens_what_an_earlier_one_stored(tmp_path: Path) -> None:
    later, earlier = NAMES
    OFFERS.check_upgrade(SYSTEMS[later], SYSTEMS[earlier])
    with pytest.raises(ConfigError, match=r"1\.0\.21 is no upgrade of 1\.5\.9"):
        OFFERS.check_upgrade(SYSTEMS[earlier], SYSTEMS[later])
    vectors, data = small_vectors("l2"), tmp_path / "data"
    with running(earlier, artifact(earlier, tmp_path / earlier), data) as server, Progress("load", None) as progress:
        CHROMA.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
    with running(later, artifact(later, tmp_path / later), data) as server:
        CHROMA.open(server, INDEX)
        CHROMA.apply(server, 200)
        probe = CHROMA.probe(server)
        assert (probe.version, probe.rows, probe.index_complete) == ("1.5.9", 2000, True)
        asked = CHROMA.asked_settings(SYSTEMS[later], INDEX, "l2", 200)
        assert {name: probe.settings.get(name) for name in asked} == asked
        with Driver() as driver:
            answers = Oracle(CHROMA, server, driver, tmp_path / "asked", vectors).ask(vectors.base[::20], K, 200)
        assert (answers.ids[:, 0] == np.arange(0, 2000, 20)).mean() > 0.95


def test_the_parts_of_a_data_folder_are_all_of_it(tmp_path: Path) -> None:
    for name in ("chroma/chroma.sqlite3", "chroma/0c4cba2c-5c4d-46c5-9f97-e9e1b0d5f7e3/header.bin", "logs/f", "odd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    parts = {part.name: [path.name for path in part.paths] for part in CHROMA.data_components(tmp_path)}
    assert parts == {
        "rows": ["chroma.sqlite3"],
        "index": ["0c4cba2c-5c4d-46c5-9f97-e9e1b0d5f7e3"],
        "logs": ["logs"],
        "other": ["odd"],
    }
