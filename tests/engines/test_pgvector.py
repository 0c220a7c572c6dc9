"""pgvector: refusals, bytes, and a real PostgreSQL, as an ordinary user and as root."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pytest

from anncestry import engines
from anncestry.datasets.metadata import matches
from anncestry.drive import protocol
from anncestry.drive.client import ERROR, OK
from anncestry.drive.driver import Driver
from anncestry.engines.base import DecodeError, Server
from anncestry.engines.pgvector.engine import definition
from anncestry.engines.pgvector.serve import OPERATORS
from anncestry.errors import ConfigError, ServerError
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from anncestry.runtimes.namespaces import NOBODY
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

NAME = "pgvector-0.8.5"
SYSTEM = SYSTEMS[NAME]
PG, OFFERS = engines.get("pgvector"), engines.offers_of("pgvector")
K = 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {**STANDALONE, "nodes": 3}}, "one server with one table: nodes is 1, not 3"),
        ({"topology": {**STANDALONE, "runtime": "docker"}}, "does not support runtime 'docker'"),
        ({"topology": {**STANDALONE, "limits": {"memory_mib": 64}}}, "does not start with less than 256"),
        ({"index": {**INDEX, "type": "ivf_pq"}}, "ivf_pq"),
        ({"index": {**INDEX, "ef_construction": 20}}, "at least twice M, not 20"),
        ({"system": {"settings": {"user": "guest"}}}, "user is for a server that somebody else runs"),
        ({"topology": {**STANDALONE, "runtime": "remote"}}, "endpoints.sql is missing"),
        ({"system": {"settings": {"port": 1}}}, "port is set by anncestry"),
        ({"system": {"settings": {"hnsw.iterative_scan": False}}}, "not written as PostgreSQL shows it"),
        ({"system": {"version": "0.7.4"}}, r"0\.7\.4 is older than 0\.8\.0"),
        ({"workload": {"k": 10, "ef_search": 1001}}, "1001 is more than 1000"),
        ({"workload": {"k": 10, "client": "sdk"}}, "can't be asked through sdk"),
        ({"workload": {"k": 10, "fault": {"kind": "kill", "member": "postgres"}}}, "nobody who could take its place"),
    ],
)
def test_what_pgvector_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": STANDALONE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "0.8.5", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


def test_the_system_of_the_config_is_possible() -> None:
    OFFERS.check(SYSTEM, STANDALONE, INDEX, {"k": 100, "ef_search": 200, "filter": {"field": "price", "below": 2}})
    assert "strict_order" in PG.fairness(SYSTEM, INDEX, STANDALONE)["filters"]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def row(number: int, far: float) -> bytes:
    value = np.array([far], ">f8").tobytes()
    return message(b"D", b"\0\2" + b"\0\0\0\x08" + number.to_bytes(8, "big") + b"\0\0\0\x08" + value)


def test_replies_become_canonical_distances() -> None:
    end = message(b"C", b"SELECT 2\0") + message(b"Z", b"I")
    reply = message(b"2", b"") + row(5, 0.5) + row(2**40, 1.5) + end
    ids, far = PG.decode(reply, "l2")
    assert (ids.dtype, ids.tolist(), far.tolist()) == (np.int64, [5, 2**40], [0.25, 2.25])
    assert PG.decode(message(b"2", b"") + row(5, -0.75) + end, "cosine")[1].tolist() == [0.25]
    assert PG.decode(message(b"2", b"") + end, "l2")[0].shape == (0,)


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (b"", "not completed"),
        (b"\xff\xff", "ends in a message's head"),
        (b"D\0\0\1\0", "longer than the reply"),
        (message(b"D", b"\0\1"), "a row of 2 bytes"),
        (message(b"E", b"SERROR\0Mno table\0\0"), "no table"),
    ],
)
def test_what_is_no_answer_is_told_apart(reply: bytes, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        PG.decode(reply, "l2")


def test_a_filter_is_in_the_statement_with_bounds_of_the_column() -> None:
    from anncestry.engines.pgvector.serve import condition

    assert condition(None) == ""
    assert condition({"field": "category", "in": [1, 4]}) == " WHERE category IN (1, 4)"
    assert condition({"field": "region", "from": 3, "below": 9}) == " WHERE region >= 3 AND region < 9"
    low = repr(float(np.float32(0.2)))
    assert condition({"field": "price", "from": 0.2}) == f" WHERE price >= {low}::real"


# A real server.


@pytest.fixture(scope="module")
def artifact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artifact(NAME, tmp_path_factory.mktemp("artifact"))


@pytest.fixture(scope="module", params=["l2", "cosine"])
def loaded(
    request: pytest.FixtureRequest, artifact_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, SmallVectors, Path]]:
    vectors = replace(small_vectors(request.param), payload=small_payload())
    data_dir = tmp_path_factory.mktemp("data")
    with running(NAME, artifact_dir, data_dir) as server:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = PG.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
        assert (result.rows_sent, result.rows_acknowledged, result.batches) == (2000, 2000, 7)
        assert [phase.name for phase in result.phases] == ["insert", "flush", "index", "ready"]
        ((behind,),) = server.ask("SELECT pg_current_wal_lsn() - redo_lsn FROM pg_control_checkpoint()")
        assert behind < 2**16, "nothing of the load has to be read from the log again"
        assert result.durable_at_s is not None and result.durable_at_s > result.phases[-1].end_s
        PG.apply(server, 200)
        yield server, vectors, data_dir


@pytest.mark.servers
def test_the_server_says_what_was_asked_of_it_and_that_searches_use_the_index(
    loaded: tuple[Server, SmallVectors, Path],
) -> None:
    server, vectors, _ = loaded
    probe = PG.probe(server)
    asked = PG.asked_settings(SYSTEM, INDEX, vectors.metric, 200)
    assert (probe.version, probe.rows, probe.index_complete) == ("0.8.5", 2000, True), probe.index_detail
    assert {name: probe.settings.get(name) for name in asked} == asked
    assert probe.settings["server_version"].startswith("18.")
    PG.exact_filters(server, True)
    assert PG.probe(server).settings["plan"] != asked["plan"]  # a search that doesn't use the index is seen
    PG.exact_filters(server, False)
    assert PG.probe(server).settings["plan"] == asked["plan"]


@pytest.mark.servers
def test_postgres_is_not_root_and_listens_on_loopback_only(loaded: tuple[Server, SmallVectors, Path]) -> None:
    server, _, _ = loaded
    (pid,) = server.group.pids()
    process = psutil.Process(pid)
    assert process.uids().real != 0
    assert {port.laddr.ip for port in process.net_connections() if port.status == "LISTEN"} == {"127.0.0.1"}


@pytest.mark.servers
@pytest.mark.parametrize(
    "filter",
    [
        None,
        {"field": "category", "in": [1, 4, 7]},
        {"field": "price", "from": 0.2, "below": 0.5},
        {"field": "id", "from": 900},
    ],
)
def test_searches_find_the_nearest_rows_that_match(
    loaded: tuple[Server, SmallVectors, Path], filter: dict[str, Any] | None, tmp_path: Path
) -> None:
    server, vectors, _ = loaded
    queries = small_vectors(vectors.metric, rows=50).base[::-1]
    passes = matches(filter, vectors.category, vectors.price)
    assert PG.count(server, filter) == passes.sum()
    with Driver() as driver:
        answers = Oracle(PG, server, driver, tmp_path, vectors).ask(queries, K, 200, filter)
    assert (answers.status == OK).all(), answers.errors
    far, hits = exact(vectors, queries), 0
    for number, (ids, told) in enumerate(zip(answers.ids, answers.distances, strict=True)):
        assert passes[ids].all()
        np.testing.assert_allclose(told, far[number, ids], rtol=1e-4, atol=2e-6)
        hits += len(set(ids.tolist()) & set(np.argsort(np.where(passes, far[number], np.inf))[:K].tolist()))
    assert hits / (K * len(queries)) > 0.95


@pytest.mark.servers
def test_conditions_of_queries_are_counted_and_answered_as_we_read_them(
    loaded: tuple[Server, SmallVectors, Path], tmp_path: Path
) -> None:
    server, vectors, _ = loaded
    queries = small_vectors(vectors.metric, rows=8).base[::-1]
    far = exact(vectors, queries)
    PG.exact_filters(server, True)  # its index returns what it finds, which a filter then narrows
    with Driver() as driver:
        for number, filter in enumerate(vectors.payload.filters):
            assert filter is not None
            passes = vectors.payload.passes(filter)
            assert PG.count(server, filter) == passes.sum(), filter
            answers = Oracle(PG, server, driver, tmp_path / str(number), vectors).ask(queries, K, 200, filter)
            assert (answers.status == OK).all(), answers.errors
            for ids, row in zip(answers.ids, far, strict=True):
                nearest = np.flatnonzero(passes)[np.argsort(row[passes])[:K]]
                assert set(ids[ids >= 0].tolist()) == set(nearest.tolist()), filter
    PG.exact_filters(server, False)


@pytest.mark.servers
def test_errors_of_the_server_are_samples_with_its_reason(
    loaded: tuple[Server, SmallVectors, Path], tmp_path: Path
) -> None:
    server, vectors, _ = loaded
    requests = PG.encode(server, vectors.base[:2, :7], K, 200, None)  # of another number of dimensions
    protocol.write_requests(tmp_path, requests)
    every = np.arange(2)[None]
    protocol.write_job(
        tmp_path, requests=tmp_path, transport=PG.transport(server), schedule=every, prime=every[:, :0], timeout_s=60
    )
    with Driver() as driver:
        driver.run(tmp_path)
    outcome = protocol.read_outcome(tmp_path)
    assert (outcome.samples["status"] == ERROR).all()
    (error,) = outcome.facts["clients"][0]["errors"]
    assert error == "PostgreSQL ERROR 22000: different vector dimensions 7 and 20"


@pytest.mark.servers
def test_a_client_logs_in_by_scram_or_not_at_all(
    loaded: tuple[Server, SmallVectors, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, vectors, _ = loaded
    protocol.write_requests(tmp_path, PG.encode(server, vectors.base[:2], K, 200, None))
    transport = PG.transport(server)
    every = np.arange(2)[None]
    job: dict[str, Any] = {"requests": tmp_path, "schedule": every, "prime": every, "timeout_s": 60}
    protocol.write_job(tmp_path, transport=transport, **job)
    for wrong in (False, True):
        if wrong:
            monkeypatch.setenv(str(transport["password_env"]), "wrong")
        with Driver() as driver:
            if wrong:
                with pytest.raises(ServerError, match="28P01: password authentication failed"):
                    driver.run(tmp_path)
            else:
                driver.run(tmp_path)
                assert (protocol.read_outcome(tmp_path).samples["status"] == OK).all()


@pytest.mark.servers
def test_another_user_of_the_machine_gets_nothing_of_the_server(loaded: tuple[Server, SmallVectors, Path]) -> None:
    """Finding 1: whoever reached its port was its superuser, ran programs by COPY, and as root wrote everywhere."""
    server, _, data_dir = loaded
    host, _, port = server.endpoint.rpartition(":")  # type: ignore[attr-defined]
    for password in ({}, {"password": ""}, {"password": "anncestry"}):
        with pytest.raises(psycopg.OperationalError, match=r"no password supplied|password authentication failed"):
            psycopg.connect(
                host=host, port=int(port), user="anncestry", dbname="postgres", passfile="/dev/null", **password
            )
    secret = (data_dir / "pg" / "password").read_text()
    for path in (data_dir / "pg", data_dir / "pg" / "data"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((data_dir / "pg" / "password").stat().st_mode) == 0o600
    words = list(Path("/proc").glob("[0-9]*/cmdline"))
    logs = [path for path in data_dir.rglob("*") if path.suffix in (".log", ".conf", ".opts", ".json")]
    assert [path for path in [*words, *logs] if secret.encode() in _bytes(path)] == []
    (pid,) = server.group.pids()
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert set(status["Uid"].split()) == {str(NOBODY if os.geteuid() == 0 else os.geteuid())}


def _bytes(path: Path) -> bytes:
    """Of a file; nothing of a process that has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.servers
def test_an_inverted_file_is_built_searched_and_read_back_as_asked(
    loaded: tuple[Server, SmallVectors, Path], tmp_path: Path
) -> None:
    server, vectors, _ = loaded
    index, queries = {"type": "ivf_flat", "nlist": 20}, vectors.base[:50]
    ask = server.ask  # type: ignore[attr-defined]
    operators = OPERATORS[vectors.metric][1]
    ask(b"DROP INDEX items_embedding")
    try:
        ask(definition(index, operators).encode())
        ask(b"VACUUM (ANALYZE) items")
        true = np.argsort(exact(vectors, queries), axis=1)[:, :K]
        recall = []
        for nprobe in (1, 20):
            PG.apply(server, nprobe)
            probe, asked = PG.probe(server), PG.asked_settings(SYSTEM, index, vectors.metric, nprobe)
            assert {name: probe.settings.get(name) for name in asked} == asked
            assert (asked["nprobe"], asked["nlist"], asked["index_type"]) == (nprobe, 20, "ivf_flat")
            with Driver() as driver:
                answers = Oracle(PG, server, driver, tmp_path, vectors).ask(queries, K, nprobe)
            recall.append(np.mean([len(set(a) & set(b)) / K for a, b in zip(answers.ids, true, strict=True)]))
        assert recall[0] < recall[1] == 1.0
    finally:
        ask(b"DROP INDEX items_embedding")
        ask(definition(INDEX, operators).encode())
        ask(b"VACUUM (ANALYZE) items")
        PG.apply(server, 200)


@pytest.mark.servers
@pytest.mark.parametrize("loaded", ["l2"], indirect=True)
def test_a_stored_folder_is_searchable_again_and_a_port_in_use_is_named(
    loaded: tuple[Server, SmallVectors, Path], artifact_dir: Path, tmp_path: Path
) -> None:
    """The last that uses what was loaded: its server is stopped."""
    import socket

    first, vectors, data_dir = loaded
    assert first.stop().clean
    with running(NAME, artifact_dir, data_dir) as server:
        assert PG.open(server, INDEX) > 0
        assert PG.probe(server).rows == len(vectors.base)
        asked = "SELECT pg_relation_filepath('items'), pg_relation_filepath('items_embedding')"
        relations = set(*server.ask(asked))
    parts = PG.data_components(data_dir)
    net = [path for part in parts if part.net for path in part.paths]
    assert all(int(re.split(r"\D", path.name)[0]) >= 16384 for path in net), "the system's own tables are not ours"
    assert len(relations) == 2 and relations <= {str(path.relative_to(data_dir / "pg" / "data")) for path in net}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(Exception, match=f"port {port} is in use"), running(NAME, artifact_dir, tmp_path, port):
            pass
