"""PolarDB from load to report, by a stand-in in front of MariaDB (tests/polardb_standin.py), and its lies, found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from anncestry import engines
from anncestry.datasets.metadata import PRICE_TO
from anncestry.drive.certificates import Certificates, make_certificates
from anncestry.drive.driver import Driver
from anncestry.engines.base import LoadResult
from anncestry.engines.mysql import engine as run_time
from anncestry.engines.mysql import serve
from anncestry.engines.mysql.serve import MySQLServer, asking
from anncestry.engines.mysql.wire import literal
from anncestry.errors import ConfigError, ServerError
from anncestry.measure.oracle import Oracle
from anncestry.measure.requests import distance_errors
from anncestry.measure.vectors import Vectors
from anncestry.metrics.recall import exact_distances
from anncestry.progress import Progress
from anncestry.provenance import gates
from anncestry.runtimes import credentials
from tests.polardb_standin import MYSQL_VERSION, VERSION, Index, Standin, polardb
from tests.servers import INDEX, SYSTEMS, SmallVectors, artifact, exact, running, small_vectors
from tests.toy import ROOT, anncestry, run_workflow

MYSQL, OFFERS = engines.get("mysql"), engines.offers_of("mysql")
NAME, MARIADB = "polardb-8.0.2", "mariadb-11.8.6"
REMOTE = {
    "runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"mysql": "ANNCESTRY_MYSQL"},
    "credentials": "ANNCESTRY_MYSQL_PASSWORD", "tls": {"ca": "TEST_POLARDB_CA"},
}  # fmt: skip
K, EF = 10, 200

pytestmark = [pytest.mark.servers, pytest.mark.makes(MARIADB)]


@dataclass(frozen=True)
class Theirs:
    """The stand-in, what a user has to know of it, and the MariaDB behind it."""

    standin: Standin
    address: str
    password: str
    certificates: Certificates
    mariadb: MySQLServer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    folder = tmp_path_factory.mktemp("polardb")
    certificates = make_certificates(folder / "certificates")
    with running(MARIADB, artifact(MARIADB, folder / "artifact"), folder / "data") as server:
        assert isinstance(server, MySQLServer) and server.credentials is not None
        password = credentials.read(server.credentials["env"], "")
        with polardb(server.endpoint, password, certificates) as (standin, address):
            standin.owner("CREATE DATABASE elsewhere", "CREATE TABLE elsewhere.bench(id INT)")
            standin.owner("INSERT INTO elsewhere.bench VALUES (1), (2), (3)")
            yield Theirs(standin, address, password, certificates, server)


@pytest.fixture
def theirs(service: Theirs, monkeypatch: pytest.MonkeyPatch) -> Theirs:
    """Empty and honest, but for a table of our name in another database; in the variables that the topology names."""
    standin = service.standin
    standin.forget()
    standin.owner("DROP TABLE IF EXISTS test.bench, test.anncestry_mark")
    other = Index("HNSW", "COSINE", 16)
    other.built.set()
    standin.indexes["elsewhere", "bench"] = other
    monkeypatch.setenv("ANNCESTRY_MYSQL", service.address)
    monkeypatch.setenv("ANNCESTRY_MYSQL_PASSWORD", service.password)
    monkeypatch.setenv("TEST_POLARDB_CA", str(service.certificates.ca))
    return service


def started(folder: Path, **settings: Any) -> tuple[dict[str, Any], MySQLServer]:
    """A system's entry with these settings, too, and its server."""
    entry = {**SYSTEMS[NAME], "settings": {**SYSTEMS[NAME]["settings"], "insert_connections": 4, **settings}}
    return entry, MYSQL.start(folder, folder / "data", entry, REMOTE)


def priced(metric: str) -> Vectors:
    """1,000 rows with prices as our datasets have them, and 100 of the rows as queries."""
    small = small_vectors(metric, rows=1000)
    price = small.price * np.float32(PRICE_TO)
    return Vectors(small.base, small.base[:100], small.category, price, small.region, small.region[:100], metric, {})


def load(server: MySQLServer, vectors: SmallVectors | Vectors, index: dict[str, Any]) -> LoadResult:
    with Progress("load", None) as progress:
        return MYSQL.load(server, vectors, index, {"batch_rows": 200}, progress)


# The stand-in's own words


def test_its_variables_have_scopes_and_ranges_and_are_kept_by_session(theirs: Theirs, tmp_path: Path) -> None:
    _, server = started(tmp_path)
    variable = server.dialect.ef_variable
    with asking(server) as ask, asking(server) as other:
        for said in server.dialect.session(77):
            ask(said)
        assert [row for row in ask("SHOW VARIABLES LIKE 'imci_max_dop'")] == [("imci_max_dop", "1")]
        assert (ask(f"SELECT @@SESSION.{variable}"), other(f"SELECT @@{variable}")) == ([(77,)], [(64,)])
        ask("SET GLOBAL imci_vector_index_dump_rows_threshold=9")
        assert other("SELECT @@GLOBAL.imci_vector_index_dump_rows_threshold") == [(9,)]
        assert ask("SHOW VARIABLES LIKE 'polardb_version'") == [("polardb_version", VERSION)]
        assert ask("SHOW VARIABLES LIKE 'version'") == [("version", MYSQL_VERSION)]
        for said, number in (
            ("SET imci_no_such=1", 1193),
            ("SET mhnsw_ef_search=10", 1193),  # MariaDB's own
            ("SELECT @@mhnsw_ef_search", 1193),
            (f"SET {variable}=0", 1231),
            ("SET use_imci_engine=PERHAPS", 1231),
            ("SET imci_vector_index_dump_rows_threshold=1", 1229),
            ("SET GLOBAL imci_vector_index_dump_rows_threshold=0", 1231),
            ("SET GLOBAL imci_max_dop=1", 1228),
        ):
            with pytest.raises(ServerError, match=rf"\({number}, "):
                ask(said)


@pytest.mark.parametrize(
    "comment",
    [
        "imci_vector_index=FAISS_HNSW_BQ(metric=COSINE)",
        "imci_vector_index=FAISS_HNSW_FLAT(metric=L1)",
        "imci_vector_index=FAISS_HNSW_FLAT(metric=COSINE,pq_m=5)",
        "imci_vector_index=FAISS_HNSW_PQ(metric=COSINE,pq_m=16,pq_nbits=8)",  # 16 does not divide 20
        "imci_vector_index=FAISS_HNSW_SQ(metric=COSINE,sq_type=3bit)",
        "imci_vector_index=HNSW",
    ],
)
def test_a_comment_that_asks_for_no_index_of_it_is_refused(theirs: Theirs, tmp_path: Path, comment: str) -> None:
    _, server = started(tmp_path)
    with asking(server) as ask:
        ask(server.dialect.create(20))
        with pytest.raises(ServerError, match=r"\(1235, 'Invalid "):
            ask(f'ALTER TABLE bench MODIFY COLUMN v VECTOR(20) NOT NULL COMMENT "{comment}"')


# What the engine does with it


@pytest.mark.parametrize(
    ("metric", "quantizer", "settings", "comment"),
    [
        ("l2", "none", {}, "FAISS_HNSW_FLAT(metric=EUCLIDEAN,max_degree=16,ef_construction=200)"),
        ("cosine", "sq", {}, "FAISS_HNSW_SQ(metric=COSINE,max_degree=16,ef_construction=200,sq_type=8bit)"),
        (
            "cosine",
            "pq",
            {"pq_m": 5, "cosine_by": "inner_product"},
            "FAISS_HNSW_PQ(metric=INNER_PRODUCT,max_degree=16,ef_construction=200,pq_m=5,pq_nbits=8)",
        ),
    ],
)
def test_each_index_is_asked_for_awaited_read_back_and_searched(
    theirs: Theirs, tmp_path: Path, metric: str, quantizer: str, settings: dict[str, Any], comment: str
) -> None:
    index, vectors = INDEX if quantizer == "none" else {**INDEX, "quantizer": quantizer}, priced(metric)
    entry, server = started(tmp_path, **settings)
    OFFERS.check(entry, REMOTE, index, {"k": K, "ef_search": EF})
    result = load(server, vectors, index)
    assert (result.rows_acknowledged, result.insert_errors, result.first_error) == (1000, 0, None)
    assert theirs.standin.indexes["test", "bench"].told[:4] == [0, 334, 667, 1000], "it waited for all of them"
    definition = theirs.standin.owner("SHOW CREATE TABLE test.bench")[0][1]
    assert f"COMMENT 'imci_vector_index={comment}'" in definition and "VECTOR KEY `vi` (`v`) `M`=16" in definition
    MYSQL.apply(server, EF)
    probe, asked = MYSQL.probe(server), MYSQL.asked_settings(entry, index, metric, EF)
    assert (probe.version, probe.rows, probe.index_complete) == ("8.0.2", 1000, True), probe.index_detail
    assert {name: probe.settings.get(name) for name in asked} == asked
    with Driver() as driver:
        checked = Oracle(MYSQL, server, driver, tmp_path / "gates", vectors).check()
        assert [gate.detail for gate in checked if not gate.ok] == []
        assert theirs.standin.scans, "exact searches of the oracle"
        theirs.standin.efforts.clear()
        MYSQL.apply(server, EF)
        found = Oracle(MYSQL, server, driver, tmp_path / "asked", vectors).ask(vectors.queries, K, EF)
    assert theirs.standin.efforts == {EF: 100}, "each by the index, with the ef of its connection"
    far = exact(vectors, vectors.queries)
    nearest = np.argsort(far, axis=1)[:, :K]
    assert np.mean([len(set(a) & set(b)) / K for a, b in zip(found.ids, nearest, strict=True)]) > 0.95
    np.testing.assert_allclose(found.distances, np.take_along_axis(far, found.ids, axis=1), rtol=1e-3, atol=1e-5)
    server.drop()
    assert ("test", "bench") not in theirs.standin.indexes


def test_codes_that_do_not_fit_the_vectors_are_refused_before_any_row_is_sent(theirs: Theirs, tmp_path: Path) -> None:
    _, server = started(tmp_path)
    with pytest.raises(ConfigError, match=r"settings\.pq_m: 16 does not divide the 20 dimensions"):
        load(server, small_vectors("l2", rows=50), {**INDEX, "quantizer": "pq"})
    assert server.found_mark() is None


# Lies, each of which is found by name


def test_what_it_says_wrong_of_a_load_is_found(theirs: Theirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, server = started(tmp_path, cosine_by="inner_product")
    standin, vectors, asked = theirs.standin, priced("cosine"), MYSQL.asked_settings(SYSTEMS[NAME], INDEX, "cosine", EF)
    asked["distance"] = "inner_product"
    load(server, vectors, INDEX)
    MYSQL.apply(server, EF)
    monkeypatch.setattr(serve, "_BOOKS_S", 0.2)

    def failing() -> dict[str, str]:
        """Gates that fail, by name, of what it says of itself and of what it answers."""
        probe = MYSQL.probe(server)
        found = [
            gates.index_complete(probe.index_complete, probe.index_detail),
            gates.settings(asked, probe.settings),
            gates.version(entry["version"], probe.version),
        ]
        if "plan is" not in found[1].detail:  # else no search is made
            with Driver() as driver:
                oracle = Oracle(MYSQL, server, driver, tmp_path / "oracle", vectors)
                answers = oracle.ask(vectors.queries, K, EF)
            far = exact_distances(vectors.base, vectors.queries, answers.ids, vectors.metric)
            errors = distance_errors(answers.distances, far, vectors.metric, False)
            found.append(gates.distances(float(errors.max()), len(errors)))
        return {gate.gate: gate.detail for gate in found if not gate.ok}

    assert failing() == {}
    for lie, name, detail in (
        ("few vectors", "index complete", "999 of 1000 rows in the vector index"),
        ("no search", "settings", r"plan is '1 Select Statement IMCI .*Table Scan bench .* asked 'vector index'"),
        ("version", "server version", r"server says 8\.0\.1, spec 8\.0\.2"),
        ("dot", "distances", "largest relative error 2"),
    ):
        standin.lies = {lie}
        found = failing()
        assert list(found) == [name] and re.match(detail, found[name]), (lie, found)
    standin.lies = {"hint"}
    MYSQL.exact_filters(server, True)
    with pytest.raises(ServerError, match=r"an exact search uses the vector index: .*Vector Search bench"):
        MYSQL.encode(server, vectors.queries, K, EF, {"field": "price", "below": 9})
    standin.lies = {"no search"}
    with pytest.raises(ServerError, match=r"a search does not use the vector index: .*Table Scan bench"):
        MYSQL.encode(server, vectors.queries, K, EF, None)
    standin.lies = {"ef"}
    with pytest.raises(ServerError, match="polar_vector_index_hnsw_ef_search is 64 after it was set to 200"):
        MYSQL.apply(server, EF)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ("few vectors", r"polardb 8\.0\.2: index: not within 1 s"),
        ("no search", r"a first search: not within 1 s .*does not use the vector index: .*Table Scan bench"),
    ],
)
def test_a_load_that_is_never_ready_ends_with_the_reason(
    theirs: Theirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str, complaint: str
) -> None:
    monkeypatch.setattr(run_time, "_INDEX_TIMEOUT_S", 1.0 if lie == "few vectors" else 60.0)
    monkeypatch.setattr(serve, "_OPEN_TIMEOUT_S", 1.0)
    _, server = started(tmp_path)
    theirs.standin.lies = {lie}
    with pytest.raises(ServerError, match=complaint):
        load(server, small_vectors("l2", rows=300), INDEX)


def test_only_its_own_certificate_is_believed_and_nothing_is_said_in_the_clear(
    theirs: Theirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = started(tmp_path)
    facts = server.members()["remote"]["tls"]["mysql"]
    assert facts["encrypted"] is True and facts["protocol"] == "TLSv1.3"
    with pytest.raises(ServerError, match="insecure transport"):
        MYSQL.start(tmp_path, tmp_path / "plain", SYSTEMS[NAME], {**REMOTE, "tls": "none"})
    monkeypatch.setenv("ANNCESTRY_MYSQL_PASSWORD", "wrong")
    with pytest.raises(ServerError, match=r"no connection for root: .*Access denied"):
        MYSQL.start(tmp_path, tmp_path / "password", SYSTEMS[NAME], REMOTE)
    monkeypatch.setenv("TEST_POLARDB_CA", str(make_certificates(tmp_path / "other").ca))
    with pytest.raises(ServerError, match="TLS: no trusted CA signed the server's certificate"):
        MYSQL.start(tmp_path, tmp_path / "ca", SYSTEMS[NAME], REMOTE)


# The experiment


def small_experiment(folder: Path) -> Path:
    """A config with polardb-vectordbbench-remote on a small dataset, for seconds, against our endpoint."""
    shutil.copytree(ROOT / "config", folder)
    experiment = folder / "experiments" / "polardb-vectordbbench-remote.yaml"
    asked, workloads = yaml.safe_load(experiment.read_text()), yaml.safe_load((folder / "workloads.yaml").read_text())
    (block,) = asked["matrix"]
    block |= {"datasets": ["blobs"], "workloads": ["vdbb-k100", "vdbb-k100-clients20"]}
    for name in block["workloads"]:
        workloads[name] |= {"queries": 200, "warmup": 20} | ({"duration_s": 1} if "20" in name else {})
    topologies = yaml.safe_load((folder / "topologies.yaml").read_text())
    topologies["remote-mysql"]["tls"] = REMOTE["tls"]
    assert topologies["remote-mysql"] == REMOTE
    source = {"kind": "synthetic", "generator": "ann-benchmarks-random", "samples": 2200, "centers": 20, "seed": 1}
    blobs = {"metric": "cosine", "rows": 1980, "queries": 220, "dim": 20, "content": {}, "licence": "synthetic"}
    for path, body in (
        (experiment, {**asked, "ef_search": 100, "disturbance": {"repeats": 0}}),
        (folder / "datasets.yaml", {"blobs": {**blobs, "sources": [source]}}),
        (folder / "workloads.yaml", workloads),
        (folder / "topologies.yaml", topologies),
    ):
        path.write_text(yaml.safe_dump(body, sort_keys=False))
    return folder


@pytest.mark.long
def test_the_experiment_runs_from_load_to_report_and_is_verified(theirs: Theirs, tmp_path: Path) -> None:
    folder, experiment = tmp_path / "run", "polardb-vectordbbench-remote"
    run_workflow(folder, f"config_dir={small_experiment(folder / 'config')}", f"experiment={experiment}")
    records = [json.loads(path.read_text()) for path in (folder / "results").glob("*/blobs/**/*.json")]
    assert sorted(record["stage"] for record in records) == ["load", "query", "query", "recall", "recall"]
    by_stage = {record["stage"]: record for record in records}
    for record in records:
        assert record["valid"], [gate for gate in record.get("gates", []) if not gate["ok"]]
    for record in (by_stage["load"], by_stage["query"]):
        named = {gate["gate"]: gate["detail"] for gate in record["gates"]}
        assert named["index complete"] == "1980 of 1980 rows in the vector index"
        assert named["server version"] == "server says 8.0.2, spec 8.0.2"
        told = record["server"]["members"]["remote"]
        assert (told["run_by"], told["endpoint_variables"]) == ("somebody else", ["ANNCESTRY_MYSQL"])
        assert told["tls"]["mysql"]["encrypted"] is True

    # Recall is that of the index behind it, asked directly, at the same ef.
    (vectors,) = (folder / "data" / "vectors").glob("blobs@*")
    base, queries = np.load(vectors / "base.npy"), np.load(vectors / "queries.npy")
    wanted = 100
    with asking(theirs.mariadb) as ask:
        ask("SET mhnsw_ef_search=100")
        rows = [
            ask(b"SELECT id FROM bench ORDER BY VEC_DISTANCE_COSINE(v,%s) LIMIT %d" % (literal(query), wanted))
            for query in queries
        ]
    nearest = np.argsort(1 - queries.astype(np.float64) @ base.astype(np.float64).T, axis=1, kind="stable")[:, :wanted]
    own = [len({row[0] for row in found} & set(true)) / wanted for found, true in zip(rows, nearest, strict=True)]
    for record in records:
        if record["stage"] == "recall":
            assert record["recall"]["by_id"]["value"] >= 0.9
            asked = record["by_query"]
            assert asked["by_id"] == [own[query] for query in asked["query"]]
    assert theirs.standin.efforts[100] > 400, "each workload's queries, at its ef"

    for file in folder.rglob("*"):
        assert not file.is_file() or theirs.password.encode() not in file.read_bytes(), file
    (page,) = (folder / "reports").rglob("index.html")
    assert "polardb-8.0.2" in page.read_text()
    done = anncestry(folder, "--experiment", experiment, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓" in done.stdout
