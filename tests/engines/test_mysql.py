"""Databases of the MySQL protocol: their statements, what they refuse, and that real ones measure what was loaded."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from anncestry import engines
from anncestry.datasets import metadata
from anncestry.datasets.metadata import matches
from anncestry.drive.driver import Driver
from anncestry.engines.base import DecodeError, LoadResult
from anncestry.engines.mysql import DIALECTS
from anncestry.engines.mysql.serve import MySQLServer, asking, check_plan, plan
from anncestry.engines.mysql.wire import literal, where
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.measure.oracle import Oracle, over_codes
from anncestry.measure.requests import Answers
from anncestry.measure.vectors import Vectors
from anncestry.progress import Progress
from anncestry.runtimes import credentials
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
from tests.waiting import until

MYSQL, OFFERS = engines.get("mysql"), engines.offers_of("mysql")
SEEKDB: dict[str, Any] = {"engine": "mysql", "version": "1.4.0", "settings": {"dialect": "seekdb"}}
MARIADB: dict[str, Any] = {"engine": "mysql", "version": "11.8.6", "settings": {"dialect": "mariadb"}}
POLARDB: dict[str, Any] = {"engine": "mysql", "version": "8.0.2", "settings": {"dialect": "polardb"}}
REMOTE = {
    "runtime": "remote",
    "nodes": 1,
    "shards": 1,
    "replicas": 1,
    "endpoints": {"mysql": "POLARDB"},
    "credentials": "POLARDB_PASSWORD",
}
K = 10
FILTERS: list[dict[str, Any] | None] = [
    None,
    {"field": "category", "in": [1, 4, 7]},
    {"field": "price", "below": 0.3},
    {"field": "price", "from": 0.2, "below": 0.5},
    {"field": "region", "from": 16, "below": 200},
    {"field": "id", "from": 1500},
]


def changed(system: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {**system, "settings": {**system["settings"], **settings}}


# Refusals, while a workflow is parsed.


@pytest.mark.parametrize(
    ("system", "topology", "index", "complaint"),
    [
        (changed(SEEKDB, dialect="oracle"), STANDALONE, INDEX, "'oracle' is none of seekdb, mariadb, polardb"),
        (SEEKDB, STANDALONE, {**INDEX, "quantizer": "pq"}, "pq of hnsw is unsupported by seekdb; supported: sq, bq"),
        (MARIADB, STANDALONE, {**INDEX, "quantizer": "sq"}, "sq of hnsw is unsupported by mariadb; it quantizes none"),
        (POLARDB, REMOTE, {**INDEX, "quantizer": "bq"}, "bq of hnsw is unsupported by polardb; supported: sq, pq"),
        (SEEKDB, STANDALONE, {**INDEX, "quantizer": "rq"}, r"index\.quantizer: unknown 'rq'"),
        (SEEKDB, STANDALONE, {**INDEX, "quantizer": "sq", "rescore_limit": 5}, "rescore_limit: unsupported by seekdb"),
        (SEEKDB, STANDALONE, {"type": "flat"}, "flat is unsupported by seekdb; supported: hnsw"),
        (changed(SEEKDB, quantizer="sq"), STANDALONE, INDEX, "settings of seekdb: unknown key 'quantizer'"),
        (changed(MARIADB, cosine_by="inner_product"), STANDALONE, INDEX, "unsupported: mariadb has no inner_product"),
        (changed(SEEKDB, cosine_by="l1"), STANDALONE, INDEX, "'l1' is neither cosine nor inner_product"),
        (changed(SEEKDB, memory_budget_mib=1), STANDALONE, INDEX, r"settings\.memory_budget_mib: 1 is not"),
        (changed(SEEKDB, mhnsw_max_cache_size_mib=9), STANDALONE, INDEX, "settings of seekdb: unknown key 'mhnsw_max"),
        (changed(SEEKDB, insert_connections=0), STANDALONE, INDEX, r"settings\.insert_connections: 0"),
        (changed(SEEKDB, user="me"), STANDALONE, INDEX, "unknown key 'user'"),
        (POLARDB, STANDALONE, INDEX, "polardb does not support runtime 'native' yet; supported: remote"),
        (SEEKDB, {**STANDALONE, "runtime": "docker"}, INDEX, "does not support runtime 'docker'"),
        (SEEKDB, {**STANDALONE, "nodes": 3}, INDEX, "seekdb is one node here: nodes is 1, not 3"),
        (SEEKDB, {**STANDALONE, "limits": {"memory_mib": 512}}, INDEX, "does not start with less than 2048"),
        (MARIADB, STANDALONE, {**INDEX, "M": 201}, r"index\.M for mariadb: 201"),
        (SEEKDB, STANDALONE, {**INDEX, "ef_construction": 1001}, r"index\.ef_construction for seekdb: 1001"),
        ({**MARIADB, "version": "10.11.9"}, STANDALONE, INDEX, r"mariadb 10\.11\.9 is older than 11\.7\.0"),
        ({**SEEKDB, "version": "1.5.0"}, STANDALONE, INDEX, r"seekdb 1\.5\.0 is not less than 1\.5\.0"),
        (POLARDB, {**REMOTE, "endpoints": {"http": "X"}}, INDEX, r"endpoints\.mysql is missing"),
    ],
)
def test_what_a_database_can_not_do_is_refused_by_name(
    system: dict[str, Any], topology: dict[str, Any], index: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(system, topology, index, None)


@pytest.mark.parametrize("name", [name for name, entry in SYSTEMS.items() if entry.get("engine") == "mysql"])
def test_the_systems_of_the_config_are_possible(name: str) -> None:
    system = SYSTEMS[name]
    topology = REMOTE if system["settings"]["dialect"] == "polardb" else STANDALONE
    index = {**INDEX, **system.get("index", {})}
    OFFERS.check(system, topology, index, {"k": 100, "ef_search": 256, "filter": {"field": "price", "below": 2}})
    assert MYSQL.fairness(system, index, topology)["HNSW"]


@pytest.mark.parametrize(
    ("workload", "complaint"),
    [
        ({"k": 100, "ef_search": 64}, "ef_search: 64 is less than k: 100"),
        ({"k": 10, "client": "sdk"}, "seekdb can't be asked through sdk"),
        ({"k": 10, "filter": {"field": "colour", "in": [1]}}, "colour"),
    ],
)
def test_a_workload_that_can_not_be_asked_is_refused(workload: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(SEEKDB, STANDALONE, INDEX, workload)


def test_data_of_another_database_is_not_opened() -> None:
    with pytest.raises(ConfigError, match=r"1\.4\.0 is no upgrade of 1\.4\.0"):
        OFFERS.check_upgrade(SEEKDB, SEEKDB)
    with pytest.raises(ConfigError, match="those of the older system"):
        OFFERS.check_upgrade({**SEEKDB, "version": "1.4.1"}, changed(SEEKDB, insert_connections=2))


def test_seekdb_is_kept_out_of_folders_whose_files_it_would_remove(tmp_path: Path) -> None:
    folder = tmp_path / "run.tmp" / "data"
    with pytest.raises(UserError, match=r"seekdb removes its redo log from a folder with '\.tmp' in its path"):
        MYSQL.start(tmp_path, folder, SEEKDB, STANDALONE)


# Statements.


def test_a_vector_in_a_statement_is_its_bytes() -> None:
    awkward = np.frombuffer(bytes(range(256)), "<f4")
    text = literal(awkward)
    assert text.startswith(b"_binary '") and text.endswith(b"'")
    plain, at = bytearray(), len(b"_binary '")
    while at < len(text) - 1:
        if text[at : at + 1] == b"\\":
            plain += {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"Z": b"\x1a"}.get(
                text[at + 1 : at + 2], text[at + 1 : at + 2]
            )
            at += 2
        else:
            assert text[at : at + 1] not in (b"'", b"\0")
            plain.append(text[at])
            at += 1
    assert bytes(plain) == awkward.tobytes()


def test_conditions_compare_as_the_stored_values_do() -> None:
    assert where(None) == ""
    assert where({"field": "category", "in": [3, 1]}) == "category IN (3,1)"
    assert where({"field": "region", "from": 3, "below": 9}) == "region >= 3 AND region < 9"
    assert where({"field": "price", "from": 2.0**-14}) == "price >= 6.103515625e-05"
    assert where({"field": "price", "below": 0.1}) == f"price < {float(np.float32(0.1))!r}e0"


SEARCHES = {
    ("seekdb", "l2", False): b"SELECT id,l2_distance(v,Q) AS l2 FROM bench WHERE c ORDER BY l2 APPROXIMATE LIMIT 7",
    ("seekdb", "l2", True): b"SELECT id,l2_distance(v,Q) AS l2 FROM bench WHERE c ORDER BY l2 LIMIT 7",
    ("seekdb", "inner_product", False): b"SELECT id,negative_inner_product(v,Q) AS inner_product FROM bench WHERE c "
    b"ORDER BY inner_product APPROXIMATE LIMIT 7",
    ("mariadb", "cosine", False): b"SELECT id,VEC_DISTANCE_COSINE(v,Q) AS cosine FROM bench WHERE c ORDER BY cosine "
    b"LIMIT 7",
    ("mariadb", "l2", True): b"SELECT id,VEC_DISTANCE_EUCLIDEAN(v,Q) AS l2 FROM bench IGNORE INDEX (vi) WHERE c "
    b"ORDER BY l2 LIMIT 7",
    ("polardb", "l2", False): b"SELECT /*+ SET_VAR(imci_enable_fast_vector_search=on) */ id,DISTANCE(v,Q,'EUCLIDEAN') "
    b"AS l2 FROM bench WHERE c ORDER BY l2 LIMIT 7",
    ("polardb", "inner_product", False): b"SELECT /*+ SET_VAR(imci_enable_fast_vector_search=on) */ "
    b"id,DISTANCE(v,Q,'DOT') AS inner_product FROM bench WHERE c ORDER BY inner_product LIMIT 7",
    ("polardb", "cosine", True): b"SELECT /*+ SET_VAR(imci_enable_vector_search=off) */ id,DISTANCE(v,Q,'COSINE') "
    b"AS cosine FROM bench WHERE c ORDER BY cosine LIMIT 7",
}  # fmt: skip


@pytest.mark.parametrize(("dialect", "distance", "exact"), SEARCHES)
def test_each_database_is_asked_in_its_own_words(dialect: str, distance: str, exact: bool) -> None:
    found = DIALECTS[dialect].search(b"Q", distance, 7, "c", exact)
    assert found == SEARCHES[dialect, distance, exact]


def test_each_database_builds_its_index_in_its_own_words() -> None:
    index = {"type": "hnsw", "M": 16, "ef_construction": 256}
    build = {
        name: DIALECTS[name].build(8, {**index, **codes}, {"dialect": name}, "l2")
        for name, codes in (("seekdb", {"quantizer": "bq"}), ("mariadb", {}), ("polardb", {"quantizer": "pq"}))
    }
    assert build["seekdb"][-1] == (
        "CREATE VECTOR INDEX vi ON bench(v) WITH (distance=l2, type=hnsw_bq, lib=vsag, m=16, ef_construction=256)"
    )
    assert "ob_query_timeout" in build["seekdb"][0]  # 10 s otherwise
    assert build["mariadb"] == ["ALTER TABLE bench ADD VECTOR INDEX vi(v) M=16 DISTANCE=euclidean"]
    assert build["polardb"] == [
        "ALTER TABLE bench MODIFY COLUMN v VECTOR(8) NOT NULL COMMENT "
        '"imci_vector_index=FAISS_HNSW_PQ(metric=EUCLIDEAN,max_degree=16,ef_construction=256,pq_m=16,pq_nbits=8)"',
        "SET GLOBAL imci_vector_index_dump_rows_threshold=1",
        "/* FORCE_IMCI_NODES */ ANALYZE TABLE bench",
    ]


def test_the_definition_of_an_index_is_read_back() -> None:
    seekdb = "VECTOR KEY `vi` (`v`) WITH (DISTANCE=L2, TYPE=HNSW_SQ, LIB=VSAG, M=12, EF_CONSTRUCTION=99, EF_SEARCH=64)"
    assert DIALECTS["seekdb"].described(seekdb) == {
        "distance": "l2", "quantizer": "sq", "M": 12, "ef_construction": 99
    }  # fmt: skip
    mariadb = "VECTOR KEY `vi` (`v`) `M`=12 `DISTANCE`=euclidean"
    assert DIALECTS["mariadb"].described(mariadb) == {"distance": "l2", "quantizer": "none", "M": 12}
    polardb = DIALECTS["polardb"].build(8, {"M": 12, "ef_construction": 99, "quantizer": "sq"}, {}, "inner_product")[0]
    assert DIALECTS["polardb"].described(polardb) == {
        "distance": "inner_product", "quantizer": "sq", "M": 12, "ef_construction": 99
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "indexed", "scanned"),
    [
        ("seekdb", [("|0 |VECTOR INDEX SCAN|bench(vi)|",)], [("|1 |TABLE FULL SCAN|bench|",)]),
        ("mariadb", [(1, "SIMPLE", "bench", "index", None, "vi")], [(1, "SIMPLE", "bench", "ALL", "vi,kp", None)]),
        (
            "polardb",
            [("3", "└─Vector Search", "bench")],
            [("3", "└─Sort", "VECTOR_DISTANCE(v)"), ("4", "└─Table Scan")],
        ),
    ],
)
def test_a_plan_says_whether_the_index_is_used(dialect: str, indexed: Any, scanned: Any) -> None:
    assert DIALECTS[dialect].uses_index(indexed)
    assert not DIALECTS[dialect].uses_index(scanned)


# Replies.


def packets(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(3, "little") + bytes([n + 1]) + body for n, body in enumerate(bodies))


def text(*cells: bytes) -> bytes:
    return b"".join(bytes([len(cell)]) + cell for cell in cells)


def reply(column: bytes, *rows: tuple[bytes, bytes]) -> bytes:
    columns = [text(b"def", b"test", b"bench", b"bench", name, b"") + b"\x0c" + bytes(12) for name in (b"id", column)]
    end = b"\xfe\0\0\2\0"
    return packets(b"\x02", *columns, end, *(text(*row) for row in rows), end)


def test_replies_become_canonical_distances() -> None:
    for column, said, canonical in (
        (b"l2", b"0.5", 0.25),
        (b"cosine", b"0.25", 0.25),
        (b"inner_product", b"-0.75", 0.25),
    ):
        ids, distances = MYSQL.decode(reply(column, (b"1099511627776", said), (b"3", said)), "whatever")
        assert (ids.dtype, ids.tolist(), distances.tolist()) == (np.int64, [2**40, 3], [canonical] * 2)
    assert MYSQL.decode(reply(b"l2"), "l2")[0].shape == (0,)


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (packets(b"\xff" + struct.pack("<H", 1064) + b"#42000no such word"), "no such word"),
        (packets(b"\0\0\0\2\0\0\0"), "not a result of two columns"),
        (reply(b"l2", (b"1", b"2"))[:-9], "rows without an end"),
        (reply(b"l2", (b"1", b"2"))[:-1], "cut off"),
        (reply(b"l2", (b"x", b"2")), "not a result of a search"),
        (reply(b"hamming", (b"1", b"2")), "hamming"),
        (reply(b"l2")[:-9] + b"\3\0\0\5\x01\x31\xfb", "without an id or a distance"),
        (b"", "not a result of a search"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(response: bytes, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        MYSQL.decode(response, "l2")


def test_the_parts_of_a_data_folder_are_all_of_it(tmp_path: Path) -> None:
    for name in ("store/sstable/block_file", "store/redo/1", "data/test/bench.ibd", "data/ibdata1", "logs/x", "odd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    parts = MYSQL.data_components(tmp_path)
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        owners = [part.name for part in parts if any(file.is_relative_to(path) for path in part.paths)]
        assert owners == [{"odd": "other"}.get(file.name, owners[0])]


# Real servers.


@dataclass(frozen=True)
class Loaded:
    name: str
    artifact: Path
    server: MySQLServer
    vectors: SmallVectors
    result: LoadResult
    folder: Path
    driver: Driver

    def ask(self, queries: NDArray[np.float32], filter: dict[str, Any] | None) -> Answers:
        """As everything else is asked: by the driver."""
        work = self.folder / "work"
        return Oracle(MYSQL, self.server, self.driver, work, self.vectors).ask(queries, K, 200, filter)


NATIVE = ["seekdb-1.4.0", "mariadb-11.8.6"]


@pytest.fixture(scope="module", params=[(name, metric) for name in NATIVE for metric in ("l2", "cosine")], ids=str)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    name, metric = request.param
    folder = tmp_path_factory.mktemp("loaded")
    artifact_dir = artifact(name, folder / "artifact")
    vectors = replace(small_vectors(metric), payload=small_payload())
    with running(name, artifact_dir, folder / "data") as server, Driver() as driver:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = MYSQL.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
        if name.startswith("mariadb"):
            with asking(server) as ask:
                ((_, behind),) = ask("SHOW GLOBAL STATUS LIKE 'Innodb_checkpoint_age'")
            assert int(behind) < 2**16, "nothing of the load has to be read from the log again"
        MYSQL.apply(server, 200)
        yield Loaded(name, artifact_dir, server, vectors, result, folder, driver)


@pytest.mark.servers
def test_a_load_acknowledges_every_row_and_the_server_says_what_was_asked(loaded: Loaded) -> None:
    rows, result = len(loaded.vectors.base), loaded.result
    assert (result.rows_sent, result.rows_acknowledged, result.insert_errors, result.batches) == (rows, rows, 0, 7)
    assert result.seconds("insert") and result.seconds("index") and result.seconds("ready")
    assert result.encode_s and result.durable_at_s and result.durable_at_s > result.phases[-1].end_s
    entry = SYSTEMS[loaded.name]
    probe = MYSQL.probe(loaded.server)
    assert (probe.version, probe.rows) == (entry["version"], rows)
    assert probe.index_complete, probe.index_detail
    asked = MYSQL.asked_settings(entry, INDEX, loaded.vectors.metric, 200)
    assert {name: probe.settings.get(name) for name in asked} == asked
    assert (probe.nodes, probe.shards, probe.replicas) == (1, 1, 1)


@pytest.mark.servers
@pytest.mark.parametrize("filter", FILTERS, ids=str)
def test_searches_find_and_count_the_rows_that_match(loaded: Loaded, filter: dict[str, Any] | None) -> None:
    vectors = loaded.vectors
    queries = small_vectors(vectors.metric, rows=50).base[::-1]
    passes = np.ones(len(vectors.base), bool)
    if filter is not None and filter["field"] == "region":
        passes = (vectors.region >= filter["from"]) & (vectors.region < filter["below"])
    elif filter is not None:
        passes = matches(filter, vectors.category, vectors.price)
    assert MYSQL.count(loaded.server, filter) == passes.sum()
    distances = exact(vectors, queries)
    for on, wanted in ((False, 0.95), (True, 1.0)):
        MYSQL.exact_filters(loaded.server, on)
        answers = loaded.ask(queries, filter)
        found = 0
        for row, (ids, told) in enumerate(zip(answers.ids, answers.distances, strict=True)):
            assert (ids >= 0).all() and passes[ids].all()
            if filter is None or on or not loaded.name.startswith("mariadb"):  # its later stretches reach back
                assert (np.diff(told) >= -1e-3).all()  # MariaDB orders by 16 bits a dimension
            assert len(set(ids.tolist())) == K
            np.testing.assert_allclose(told, distances[row, ids], rtol=1e-4, atol=2e-6)
            nearest = np.argsort(np.where(passes, distances[row], np.inf))[:K]
            found += len(set(ids.tolist()) & set(nearest.tolist()))
        assert found / (K * len(queries)) >= (
            wanted if filter is not None or not on else 0.95
        )  # unfiltered searches never scan
    MYSQL.exact_filters(loaded.server, False)


@pytest.mark.servers
def test_conditions_of_queries_are_counted_and_answered_as_we_read_them(loaded: Loaded) -> None:
    vectors = loaded.vectors
    queries = small_vectors(vectors.metric, rows=8).base[::-1]
    distances = exact(vectors, queries)
    MYSQL.exact_filters(loaded.server, True)
    for filter in vectors.payload.filters:
        assert filter is not None
        passes = vectors.payload.passes(filter)
        assert MYSQL.count(loaded.server, filter) == passes.sum(), filter
        for row, ids in enumerate(loaded.ask(queries, dict(filter)).ids):
            nearest = np.flatnonzero(passes)[np.argsort(distances[row, passes])[:K]]
            assert set(ids[ids >= 0].tolist()) == set(nearest.tolist()), filter
    MYSQL.exact_filters(loaded.server, False)


@pytest.fixture
def quantized(loaded: Loaded) -> Iterator[tuple[Vectors, Driver]]:
    """Other rows, of dimensions enough for codes of one bit each, in place of the module's; those come back."""
    random, metric = np.random.default_rng(3), loaded.vectors.metric
    base = (random.normal(size=(40, 256))[random.integers(0, 40, 2200)] * 2 + random.normal(size=(2200, 256))) * 3
    base = (base / np.linalg.norm(base, axis=1, keepdims=True) if metric == "cosine" else base).astype(np.float32)
    columns = [metadata.category(2000, 1), metadata.price(2000, 1), np.zeros(2000, np.uint8), np.zeros(200, np.uint8)]
    yield Vectors(base[:2000], base[2000:], *columns, metric, {}), loaded.driver
    with asking(loaded.server) as ask:
        ask("DROP TABLE bench")
    with Progress("load", len(loaded.vectors.base), "rows") as progress:
        MYSQL.load(loaded.server, loaded.vectors, INDEX, {"batch_rows": 300}, progress)
    MYSQL.apply(loaded.server, 200)


@pytest.mark.servers
@pytest.mark.parametrize("loaded", [(NATIVE[0], metric) for metric in ("l2", "cosine")], ids=str, indirect=True)
def test_seekdb_builds_its_quantizers_says_so_and_passes_the_gates(
    loaded: Loaded, quantized: tuple[Vectors, Driver], tmp_path: Path
) -> None:
    """Its exact scans compare vectors, so that the oracle is as strict as of any index."""
    (vectors, driver), server = quantized, loaded.server
    for quantizer in ("sq", "bq"):
        index = {**INDEX, "quantizer": quantizer}
        with asking(server) as ask:
            ask("DROP TABLE bench")
        with Progress("load", len(vectors.base), "rows") as progress:
            MYSQL.load(server, vectors, index, {"batch_rows": 300}, progress)
        MYSQL.apply(server, 200)
        probe, asked = MYSQL.probe(server), MYSQL.asked_settings(SYSTEMS[loaded.name], index, vectors.metric, 200)
        assert {name: probe.settings.get(name) for name in asked} == asked
        assert (asked["quantizer"], probe.settings["quantizer"]) == (quantizer, quantizer)
        assert (probe.rows, probe.index_complete) == (2000, True)
        assert not over_codes(engines.get("mysql"), index)
        gates = Oracle(MYSQL, server, driver, tmp_path / f"{quantizer}-oracle", vectors).check()
        assert [gate for gate in gates if not gate.ok] == []
        answers = Oracle(MYSQL, server, driver, tmp_path / f"{quantizer}-work", vectors).ask(vectors.queries, K, 200)
        far = exact(SmallVectors(vectors.base, *[vectors.category] * 3, vectors.metric), vectors.queries)  # type: ignore[arg-type]
        true = np.argsort(far, axis=1)[:, :K]
        recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(answers.ids, true, strict=True)])
        print(quantizer, vectors.metric, "recall", recall)
        assert recall > 0.8
        reported = np.take_along_axis(far, answers.ids, axis=1)
        error = np.abs(answers.distances - reported) / np.maximum(reported, 1e-9)
        print("median and largest relative error", np.median(error), error.max())
        assert np.median(error) <= 0.25


@pytest.mark.servers
def test_a_search_that_would_scan_is_refused(loaded: Loaded) -> None:
    """A function that is not the index's answers all the same, from a scan of all rows."""
    server = loaded.server
    table = server.table()
    other = "cosine" if table.distance == "l2" else "l2"
    for distance, used in ((table.distance, True), (other, False)):
        statement = server.dialect.search(literal(loaded.vectors.base[0]), distance, K, "", False)
        assert plan(server, statement)[0] is used
    with pytest.raises(ServerError, match="does not use the vector index"):
        check_plan(server, statement)


@pytest.mark.servers
def test_queries_of_another_length_are_not_sent(loaded: Loaded) -> None:
    with pytest.raises(UserError, match="queries of 19 numbers, the column holds vectors of 20"):
        MYSQL.encode(loaded.server, loaded.vectors.base[:2, :19], K, 200, None)


@pytest.mark.servers
def test_the_search_effort_is_that_of_each_connection(loaded: Loaded) -> None:
    for ef_search in (10, 200):
        MYSQL.apply(loaded.server, ef_search)
        assert MYSQL.probe(loaded.server).settings["ef_search"] == ef_search
        assert any(str(ef_search) in said for said in MYSQL.transport(loaded.server)["init"])


@pytest.mark.servers
def test_only_loopback_gets_in_and_only_reads(loaded: Loaded) -> None:
    import pymysql

    server = loaded.server
    host, _, port = server.endpoint.rpartition(":")
    with pytest.raises(pymysql.err.OperationalError):
        pymysql.connect(host=host, port=int(port), user="root")
    with asking(server, reader=True) as ask, pytest.raises(ServerError, match="denied"):
        ask("DROP TABLE bench")
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    for address in own:
        with pytest.raises((pymysql.err.OperationalError, OSError)):
            pymysql.connect(host=address, port=int(port), user="anncestry", connect_timeout=5)


@pytest.mark.servers
@pytest.mark.parametrize("loaded", [("mariadb-11.8.6", "l2")], indirect=True, ids=str)
def test_somebody_elses_server_holds_a_table_of_ours_with_a_mark(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asking(loaded.server) as ask:
        ask("CREATE DATABASE IF NOT EXISTS theirs")
    monkeypatch.setenv("POLARDB", loaded.server.endpoint)
    password = credentials.read(loaded.server.credentials["env"], "")
    monkeypatch.setenv("POLARDB_PASSWORD", password)
    system = changed(SYSTEMS["mariadb-11.8.6"], user="root", database="theirs", insert_connections=3)
    plain = {**REMOTE, "tls": "none"}
    OFFERS.check(system, plain, INDEX, {"k": 10, "ef_search": 64})
    vectors = small_vectors("l2", rows=400)
    server = MYSQL.start(loaded.artifact, tmp_path / "data", system, plain)
    with Progress("load", None) as progress:
        result = MYSQL.load(server, vectors, INDEX, {"batch_rows": 64}, progress)
    assert (result.first_error, result.rows_acknowledged, result.batches) == (None, 400, 7)
    MYSQL.apply(server, 64)
    assert password not in str(MYSQL.transport(server))
    with Driver() as driver:
        answers = Oracle(MYSQL, server, driver, tmp_path / "w", vectors).ask(vectors.base[:50], 1, 64)
    assert (answers.ids[:, 0] == np.arange(50)).mean() > 0.95
    MYSQL.start(loaded.artifact, tmp_path / "data", system, plain)  # the load's own folder: its table is known again
    with asking(server) as ask:
        ask("UPDATE anncestry_mark SET mark='mine'")
    with pytest.raises(UserError, match="a collection bench that anncestry did not make"):
        MYSQL.start(loaded.artifact, tmp_path / "other", system, plain)


@pytest.mark.servers
@pytest.mark.parametrize("loaded", [(name, "l2") for name in NATIVE], indirect=True, ids=str)
def test_a_copied_folder_is_searchable_and_a_killed_server_noticed(loaded: Loaded, tmp_path: Path) -> None:
    """The last that uses what was loaded: its server is stopped."""
    first, vectors = loaded.server, loaded.vectors
    with socket.create_connection(("127.0.0.1", int(first.endpoint.rpartition(":")[2])), timeout=5):
        pass
    first.stop()
    assert not first.group.alive()
    subprocess.run(["cp", "-a", loaded.folder / "data", tmp_path / "copy"], check=True)
    with running(loaded.name, loaded.artifact, tmp_path / "copy") as server, Driver() as driver:
        MYSQL.open(server, INDEX)
        MYSQL.apply(server, 100)
        assert MYSQL.probe(server).rows == len(vectors.base)
        answers = Oracle(MYSQL, server, driver, tmp_path / "w", vectors).ask(vectors.base[-100:], 1, 100)
        assert np.mean(answers.ids[:, 0] == np.arange(1900, 2000)) > 0.95
        (pid,) = server.group.pids()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not server.group.alive(), "the server to be gone")
        with pytest.raises(ServerError, match="not running any more"):
            server.check_alive()
