"""Redis: refusals, bytes, and its real server: loaded, asked, killed, and started on what it stored."""

from __future__ import annotations

import io
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
from anncestry.engines import resp
from anncestry.engines.base import Batch, DecodeError, ErrorReplyError
from anncestry.engines.redis import wire
from anncestry.engines.redis.serve import RedisServer
from anncestry.errors import ConfigError, ServerError
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from tests.servers import (
    INDEX,
    KEYWORDS,
    STANDALONE,
    SYSTEMS,
    SmallVectors,
    artifact,
    exact,
    running,
    small_payload,
    small_vectors,
)
from tests.waiting import until

NAME, FLAT = "redis-7.4.1", {"type": "flat"}
REDIS, OFFERS = engines.get("redis"), engines.offers_of("redis")
K = 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {**STANDALONE, "nodes": 3}}, "one server, which holds its index in memory: nodes is 1, not 3"),
        ({"topology": {**STANDALONE, "runtime": "docker"}}, "does not support runtime 'docker'"),
        ({"topology": {**STANDALONE, "runtime": "remote"}}, "does not support runtime 'remote'"),
        ({"index": {"type": "ivf_flat", "nlist": 8}}, "ivf_flat is unsupported by redis; supported: hnsw, flat"),
        ({"index": {**INDEX, "quantizer": "sq"}}, "it quantizes none of that type"),
        ({"index": {**INDEX, "M": 1}}, r"index\.M"),
        ({"index": {**FLAT, "M": 16}}, "unknown key 'M'"),
        ({"system": {"settings": {"maxmemory": 2}}}, "unknown key 'maxmemory'; known: appendfsync, hybrid_policy"),
        ({"system": {"settings": {"appendfsync": "sometimes"}}}, "'sometimes' is none of always, everysec, no"),
        ({"system": {"settings": {"hybrid_policy": ["batches"]}}}, "is none of batches, adhoc_bf"),
        ({"system": {"version": "7.2.4"}}, r"7\.2\.4 is older than 7\.4\.0"),
        ({"system": {"version": "8.2.3"}}, r"8\.2\.3 is not less than 7\.5\.0"),
        ({"workload": {"k": 100, "ef_search": 64}}, "ef_search: 64 is less than k: 100"),
        (
            {"workload": {"k": 10, "filter": {"field": "id", "from": 5}}},
            "id is unsupported by redis: an id is the name",
        ),
        ({"workload": {"k": 10, "nq": 4}}, "4 vectors a request are unsupported by engine redis"),
        ({"workload": {"k": 10, "client": "sdk"}}, "can't be asked through sdk"),
        ({"workload": {"k": 10, "stream": {"insert_per_s": 10}}}, "can't be written to while it is searched"),
        ({"workload": {"k": 10, "fault": {"kind": "kill", "member": "node1"}}}, "nobody who could take its place"),
    ],
)
def test_what_redis_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": STANDALONE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "7.4.1", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


@pytest.mark.parametrize("name", [name for name, entry in SYSTEMS.items() if name.startswith(NAME)])
def test_the_systems_of_the_config_are_possible(name: str) -> None:
    system = {**SYSTEMS[NAME], **SYSTEMS[name]}
    index = system.get("index", INDEX)
    OFFERS.check(system, STANDALONE, index, {"k": 100, "ef_search": 200, "filter": {"field": "price", "below": 2}})
    told = REDIS.fairness(system, index, STANDALONE)
    assert ("BATCHES" in told["filters"].rpartition(":")[2]) == name.endswith("batches")
    assert ("HNSW" in told) != name.endswith("flat")


# Bytes, without a server.


def parts_of(commands: bytes) -> list[list[bytes]]:
    """Commands are lists of texts, as answers may be."""
    stream, found = io.BytesIO(commands), []
    while stream.tell() < len(commands):
        found.append(resp.read(stream))
    return found


def test_an_insertion_holds_the_rows_exactly() -> None:
    vectors, payload = small_vectors("l2", rows=30, dimensions=3), small_payload()
    rows = Batch(100, vectors.base, vectors.category, vectors.price, vectors.region, payload.part(slice(0, 30)))
    commands = parts_of(wire.insertion(rows))
    assert [command[:3] for command in commands] == [[b"HSET", b"row:%d" % row, b"vector"] for row in range(100, 130)]
    assert (np.array([np.frombuffer(command[3], "<f4") for command in commands]) == vectors.base).all()
    stored = [dict(zip(command[4::2], command[5::2], strict=True)) for command in commands]
    assert [float(row[b"price"]) for row in stored] == vectors.price.astype(float).tolist()
    assert [int(row[b"category"]) for row in stored] == vectors.category.tolist()
    words, whole, real = (column.values[:30] for column in payload.columns)
    assert [row[b"payload_0"].decode() for row in stored] == [f"={KEYWORDS[word]}=" for word in words]
    assert [int(row[b"payload_1"]) for row in stored] == whole.tolist()
    assert [float(row[b"payload_2"]) for row in stored] == real.tolist()


def test_a_search_carries_the_same_float32_and_the_filter_with_bounds_of_the_column() -> None:
    query = np.array([0.1, 1e-30, 3.4e38, -7.0], np.float32)
    (sent,) = parts_of(wire.search(query, 7, {"field": "price", "from": 1e-7, "below": 0.2}, "EF_RUNTIME 64 "))
    low, high = (repr(float(np.float32(value))).encode() for value in (1e-7, 0.2))
    clause = b"(@price:[$p0 ($p1])=>[KNN 7 @vector $query EF_RUNTIME 64 AS far]"
    assert sent[:3] == [b"FT.SEARCH", b"anncestry", clause]
    assert sent[3:11] == [b"PARAMS", b"6", b"query", query.tobytes(), b"p0", low, b"p1", high]
    assert sent[11:] == [b"SORTBY", b"far", b"RETURN", b"1", b"far", b"LIMIT", b"0", b"7", b"DIALECT", b"2"]
    assert wire.condition({"field": "category", "in": [1, 4]}) == ("@category:{1|4}", [])
    assert parts_of(wire.search(query, 7, None, ""))[0][2] == b"*=>[KNN 7 @vector $query AS far]"


def test_replies_are_read_whole() -> None:
    rows = (
        b"$5\r\nrow:5",
        b"*2\r\n$3\r\nfar\r\n$4\r\n0.25",
        b"$17\r\nrow:1099511627776",
        b"*2\r\n$3\r\nfar\r\n$4\r\n2.25",
    )
    reply = b"\r\n".join((b"*5", b":2", *rows, b""))
    ids, far = REDIS.decode(reply, "l2")
    assert (ids.dtype, ids.tolist(), far.tolist()) == (np.int64, [5, 2**40], [0.25, 2.25])
    assert REDIS.decode(b"*1\r\n:0\r\n", "cosine")[0].shape == (0,)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"*1\r\n",
        b"*1\r\n:0\r\n:0\r\n",
        b"+OK\r\n",
        b"$-1\r\n",
        b"$5\r\nrow\r\n",
        b"*x\r\n",
        b"!3\r\n",
        b"*2\r\n:1\r\n$5\r\nrow:5\r\n",
        b"*3\r\n:1\r\n$5\r\nkey:5\r\n*2\r\n$3\r\nfar\r\n$3\r\n0.5\r\n",
        b"*3\r\n:1\r\n$5\r\nrow:5\r\n*2\r\n$3\r\nfar\r\n$3\r\nnan\r\n",
        b"*3\r\n:1\r\n$5\r\nrow:5\r\n*2\r\n$3\r\nfoo\r\n$3\r\n0.5\r\n",
        b"*3\r\n:1\r\n$5\r\nrow:5\r\n*-1\r\n",
        b"*1\r\n" * 2000 + b":1\r\n",
    ],
)
def test_what_is_no_answer_is_a_failed_request(reply: bytes) -> None:
    with pytest.raises(DecodeError, match=r"repl|answer"):
        REDIS.decode(reply, "l2")


def test_an_error_is_told_with_its_reason() -> None:
    with pytest.raises(ErrorReplyError, match="no such index"):
        REDIS.decode(b"-anncestry: no such index\r\n", "l2")


# A real server.


@pytest.fixture(scope="module", params=[(INDEX, "l2"), (INDEX, "cosine"), (FLAT, "l2")], ids=str)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, Any], RedisServer, SmallVectors]]:
    index, metric = request.param
    vectors = small_vectors(metric)
    # Prices as datasets have them, for the gates.
    vectors = replace(vectors, price=vectors.price * np.float32(1000), payload=small_payload())
    folder = tmp_path_factory.mktemp("redis")
    with running(NAME, artifact(NAME, folder / "artifact"), folder / "data") as server:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = REDIS.load(server, vectors, index, {"batch_rows": 300}, progress)
        assert (result.rows_sent, result.rows_acknowledged, result.batches) == (2000, 2000, 7), result.first_error
        assert [phase.name for phase in result.phases] == ["insert", "index", "ready"]
        assert result.durable_at_s is not None and "the graph is never stored" in result.durability
        assert isinstance(server, RedisServer)
        yield index, server, vectors


Loaded = tuple[dict[str, Any], RedisServer, SmallVectors]


@pytest.mark.servers
def test_the_server_says_what_was_asked_of_it(loaded: Loaded) -> None:
    index, server, vectors = loaded
    probe = REDIS.probe(server)
    asked = REDIS.asked_settings(SYSTEMS[NAME], index, vectors.metric, 200)
    assert (probe.version, probe.rows, probe.index_complete) == (SYSTEMS[NAME]["version"], 2000, True)
    assert {name: probe.settings.get(name) for name in asked} == asked
    assert probe.settings["search_version"] == "2.10.5"
    assert probe.index_detail.startswith("2000 of 2000 rows indexed, 0 failures; memory: vectors and graph ")
    (pid,) = server.group.pids()
    listening = [port for port in psutil.Process(pid).net_connections() if port.status == "LISTEN"]
    assert {port.laddr.ip for port in listening} == {"127.0.0.1"}


@pytest.mark.servers
@pytest.mark.parametrize("policy", [None, "batches", "adhoc_bf"])
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
    loaded: Loaded, filter: dict[str, Any] | None, policy: str | None, tmp_path: Path
) -> None:
    _, server, vectors = loaded
    queries = small_vectors(vectors.metric, rows=50).base[::-1]
    passes = matches(filter, vectors.category, vectors.price)
    assert REDIS.count(server, filter) == passes.sum()
    server.settings = {} if policy is None else {"hybrid_policy": policy}
    with Driver() as driver:
        answers = Oracle(REDIS, server, driver, tmp_path, vectors).ask(queries, K, 200, filter)
    server.settings = {}
    assert (answers.status == OK).all(), answers.errors
    far, hits = exact(vectors, queries), 0
    for number, (ids, told) in enumerate(zip(answers.ids, answers.distances, strict=True)):
        assert passes[ids].all()
        np.testing.assert_allclose(told, far[number, ids], rtol=1e-4, atol=2e-6)
        hits += len(set(ids.tolist()) & set(np.argsort(np.where(passes, far[number], np.inf))[:K].tolist()))
    least = 1.0 if policy == "adhoc_bf" and filter is not None else 0.95
    assert hits / (K * len(queries)) >= least
    region = {"field": "region", "from": 3, "below": 9}
    assert REDIS.count(server, region) == ((vectors.region >= 3) & (vectors.region < 9)).sum()


@pytest.mark.servers
def test_conditions_of_queries_are_counted_and_answered_as_we_read_them(loaded: Loaded, tmp_path: Path) -> None:
    _, server, vectors = loaded
    queries = small_vectors(vectors.metric, rows=8).base[::-1]
    far, found, wanted = exact(vectors, queries), 0, 0
    with Driver() as driver:
        oracle = Oracle(REDIS, server, driver, tmp_path, vectors)
        for filter in vectors.payload.filters:
            assert filter is not None
            passes = vectors.payload.passes(filter)
            assert REDIS.count(server, filter) == passes.sum(), filter
            for row, ids in enumerate(oracle.ask(queries, K, 200, dict(filter)).ids):
                nearest = np.flatnonzero(passes)[np.argsort(far[row, passes])[:K]]
                assert passes[ids[ids >= 0]].all(), filter
                found, wanted = found + len(set(ids.tolist()) & set(nearest.tolist())), wanted + len(nearest)
    assert found / wanted > 0.95


@pytest.mark.servers
def test_a_higher_ef_finds_more_in_a_graph_and_nothing_more_in_a_flat_index(loaded: Loaded, tmp_path: Path) -> None:
    index, server, vectors = loaded
    queries = np.random.default_rng(9).normal(size=(400, vectors.base.shape[1])).astype(np.float32)
    nearest, recall = np.argsort(exact(vectors, queries), axis=1)[:, :K], {}
    with Driver() as driver:
        for ef in (10, 300):
            answers = Oracle(REDIS, server, driver, tmp_path / str(ef), vectors).ask(queries, K, ef, None)
            recall[ef] = np.mean([np.isin(ids, best).sum() / K for ids, best in zip(answers.ids, nearest, strict=True)])
    if index["type"] == "hnsw":
        assert recall[10] < 0.98 < recall[300], recall
    else:
        assert recall[10] == recall[300] > 0.999, recall


@pytest.mark.servers
def test_all_gates_of_a_load_hold(loaded: Loaded, tmp_path: Path) -> None:
    index, server, vectors = loaded
    if index["type"] == "flat":
        index = INDEX  # its effort is of no use, which is what the gate on the effort finds
        server.settings = {"hybrid_policy": "adhoc_bf"}
    asked = SimpleNamespace(**vars(vectors), queries=vectors.base[:200] + np.float32(0.01))
    with Driver() as driver:
        gates = Oracle(REDIS, server, driver, tmp_path, asked).check()  # type: ignore[arg-type]
    server.settings = {}
    assert all(gate.ok for gate in gates), [gate.detail for gate in gates if not gate.ok]


@pytest.mark.servers
def test_a_server_lets_nobody_in_without_its_password(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    _, server, _ = loaded
    assert server.credentials is not None
    server.disconnect()
    with monkeypatch.context() as other:
        other.setenv(server.credentials["env"], "a wrong password")
        with pytest.raises(ServerError, match="WRONGPASS"):
            server.ask(resp.command("DBSIZE"))
    assert server.ask(resp.command("DBSIZE")) == 2000
    (pid,) = server.group.pids()
    password = (Path(f"/proc/{pid}/cwd").resolve().parent / "config" / "password").read_text()
    assert len(password) == 32 and password not in " ".join(psutil.Process(pid).cmdline())


@pytest.mark.servers
def test_a_row_that_the_index_refuses_is_counted_as_missing(tmp_path: Path) -> None:
    """Redis acknowledges a vector of another length, and does not index it."""
    vectors, longer = small_vectors("l2", rows=100), small_vectors("l2", rows=5, dimensions=21)
    with running(NAME, artifact(NAME, tmp_path / "artifact"), tmp_path / "data") as server:
        with Progress("load", None) as progress:
            REDIS.load(server, vectors, INDEX, {"batch_rows": 100}, progress)
        body = wire.insertion(Batch(100, longer.base, longer.category, longer.price, longer.region))
        assert isinstance(server, RedisServer) and server.insert(body, 5) == {}
        probe = REDIS.probe(server)
        assert (probe.rows, probe.index_complete) == (105, False)
        assert probe.index_detail.startswith("100 of 105 rows indexed, 5 failures")


@pytest.mark.servers
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_what_is_stored_is_indexed_again_at_the_next_start(killed: bool, tmp_path: Path) -> None:
    vectors, data, folder = small_vectors("l2"), tmp_path / "data", artifact(NAME, tmp_path / "artifact")
    with running(NAME, folder, data) as server:
        with Progress("load", None) as progress:
            REDIS.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        more = Batch(2000, vectors.base[:1], vectors.category[:1], vectors.price[:1], vectors.region[:1])
        assert server.insert(wire.insertion(more), 1) == {}  # type: ignore[attr-defined]
        if killed:
            # While it syncs its log in the background, it writes to it up to two seconds later.
            until(lambda: any(log.stat().st_size for log in data.rglob("*.incr.aof")), "the log to be written", 60)
            next(iter(server.group)).handle.kill()
    parts = {
        part.name: sum(p.stat().st_size for p in part.paths if p.is_file()) for part in REDIS.data_components(data)
    }
    assert parts["rows"] > vectors.base.nbytes and 0 < parts["log"] < 1000 and parts["other"] == 0, parts
    with running(NAME, folder, data) as server:
        REDIS.open(server, INDEX)
        probe = REDIS.probe(server)
        assert (probe.rows, probe.index_complete) == (2001, True), probe.index_detail
        with Driver() as driver:
            answers = Oracle(REDIS, server, driver, tmp_path / "asked", vectors).ask(vectors.base[::20], K, 200)
        assert (answers.ids[1:, 0] == np.arange(20, 2000, 20)).mean() > 0.95


def test_the_parts_of_a_data_folder_are_all_of_it(tmp_path: Path) -> None:
    log = "redis/appendonlydir/appendonly.aof"
    for name in (f"{log}.2.base.rdb", f"{log}.2.incr.aof", f"{log}.manifest", "logs/f", "config/password", "odd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    parts = {part.name: [path.name for path in part.paths] for part in REDIS.data_components(tmp_path)}
    assert parts == {
        "rows": ["appendonly.aof.2.base.rdb"],
        "log": ["appendonly.aof.2.incr.aof", "appendonly.aof.manifest"],
        "logs": ["logs"],
        "config": ["config"],
        "other": ["odd"],
    }
