"""Somebody else's server: measured as it is, with credentials that stay secret; nothing of theirs is touched."""

from __future__ import annotations

import csv
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from anncestry import workflow
from anncestry.drive import protocol
from anncestry.drive.certificates import make_certificates
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines import get, offers_of
from anncestry.engines.base import Server, wait_for
from anncestry.engines.milvus import serve
from anncestry.engines.milvus.program import PORTS, write_config
from anncestry.engines.milvus.rpc import Rpc
from anncestry.engines.mysql import dialect_of
from anncestry.engines.weaviate.serve import Rest, environment
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.measure import requests as clients
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from anncestry.runtimes.base import NO_LIMITS, Limits
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import NativeProcess, clean_environment, free_ports
from anncestry.runtimes.remote import endpoint
from tests.later_milvus import later_milvus
from tests.servers import INDEX, STANDALONE, SYSTEMS, artifact, running, small_vectors
from tests.tls_pump import pump
from tests.toy import ROOT, anncestry, run_workflow

WEAVIATE = {
    "runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1,
    "endpoints": {"http": "TEST_REMOTE_HTTP", "grpc": "TEST_REMOTE_GRPC"}, "credentials": "TEST_REMOTE_KEY",
    "tls": "none",
}  # fmt: skip
MILVUS = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"proxy": "TEST_REMOTE_MILVUS"},
          "tls": "none"}  # fmt: skip


# Refusals, without a server


def version_of(engine: str) -> dict[str, Any]:
    return {"version": next(entry["version"] for entry in SYSTEMS.values() if entry["engine"] == engine)}


@pytest.mark.parametrize(
    ("engine", "changes", "complaint"),
    [
        ("weaviate", {"endpoints": {"http": "A"}}, r"endpoints\.grpc is missing"),
        ("weaviate", {"endpoints": {"http": "A", "grpc": "B", "ftp": "C"}}, "ftp"),
        ("weaviate", {"limits": {"cpus": 1}}, "limits can't be chosen for a server that somebody else runs"),
        ("weaviate", {"runtime": "native"}, "endpoints is for runtime remote, not native"),
        ("weaviate", {"storage": "disk"}, "storage is for runtime native, not remote: .* declared_storage says"),
        ("milvus", {"endpoints": {"http": "A"}}, r"endpoints\.proxy is missing"),
    ],
)
def test_a_remote_topology_that_can_not_be_is_refused_by_name(
    engine: str, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        offers_of(engine).check(version_of(engine), {**WEAVIATE, **changes}, INDEX, None)


def test_what_the_storage_of_a_server_is_can_be_declared_of_a_remote_one_alone() -> None:
    declared = {"declared_storage": {"paths": 4, "nics": 2}}
    offers_of("milvus").check({"version": "2.6.9"}, {**MILVUS, **declared}, {"type": "diskann"}, None)
    with pytest.raises(ConfigError, match="declared_storage is for runtime remote, not native"):
        offers_of("milvus").check(version_of("milvus"), {**STANDALONE, **declared}, INDEX, None)


def test_a_declared_storage_is_part_of_a_key_only_where_it_is_declared() -> None:
    matrix = workflow.expand(workflow.Choice(ROOT / "config", "diskann-nvmeof-remote"))
    declared = {}
    for cell in matrix.cells:
        declared[cell.topology] = matrix.spec(cell.load, "load")["topology"].get("declared_storage")
    assert declared == {
        "remote-milvus": None,
        "remote-milvus-diskann-1path-1nic": {"paths": 1, "nics": 1},
        "remote-milvus-diskann-4path-1nic": {"paths": 4, "nics": 1},
        "remote-milvus-diskann-4path-2nic": {"paths": 4, "nics": 2},
    }


def test_a_variable_that_is_not_set_or_no_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_REMOTE_HTTP", raising=False)
    with pytest.raises(UserError, match="TEST_REMOTE_HTTP is not set"):
        endpoint(WEAVIATE, "http")
    for bad in ("somewhere", "ftp://host:1", "host:port", "host:1/path"):
        monkeypatch.setenv("TEST_REMOTE_HTTP", bad)
        with pytest.raises(UserError, match=r"TEST_REMOTE_HTTP.* is not HOST:PORT$"):
            endpoint(WEAVIATE, "http")
    monkeypatch.delenv("TEST_REMOTE_KEY", raising=False)
    with pytest.raises(UserError, match="TEST_REMOTE_KEY is not set"):
        authorization({"env": "TEST_REMOTE_KEY", "scheme": "bearer"})


def test_an_endpoint_where_nobody_answers_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEST_REMOTE_MILVUS", f"127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(ServerError, match="the endpoint of TEST_REMOTE_MILVUS takes no connection"):
        get("milvus").start(tmp_path, tmp_path / "data", {"version": "2.3.5"}, MILVUS)


# Somebody else's Weaviate, which wants a key


@dataclass
class Theirs:
    """A server that the tests run as somebody else would."""

    process: NativeProcess
    rest: Rest
    key: str
    variables: dict[str, str]


def weaviate() -> tuple[str, dict[str, Any]]:
    return next((name, entry) for name, entry in SYSTEMS.items() if entry["engine"] == "weaviate")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    folder = tmp_path_factory.mktemp("theirs")
    name, _ = weaviate()
    names = ("http", "grpc", "gossip", "data", "raft", "raft_rpc")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    key = "planted-" + secrets.token_hex(16)
    variables = environment("node1", {"node1": ports}, {"node1": "127.0.0.1"}, folder, NO_LIMITS)
    variables |= {
        "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "false",
        "AUTHENTICATION_APIKEY_ENABLED": "true",
        "AUTHENTICATION_APIKEY_ALLOWED_KEYS": key,
        "AUTHENTICATION_APIKEY_USERS": "bench",
    }
    binary = artifact(name, folder / "artifact") / "weaviate-server"
    command = [binary, "--scheme", "http", "--host", "127.0.0.1", "--port", str(ports["http"])]
    process = NativeProcess("theirs", command, variables, folder, folder / "server.log")
    try:
        rest = Rest("127.0.0.1", ports["http"], f"Bearer {key}")
        wait_for("theirs", lambda: rest.status("/v1/.well-known/ready") == 200 or None, process, 300)  # type: ignore[arg-type]
        endpoints = {"TEST_REMOTE_HTTP": f"127.0.0.1:{ports['http']}", "TEST_REMOTE_GRPC": f"127.0.0.1:{ports['grpc']}"}
        yield Theirs(process, rest, key, {**endpoints, "TEST_REMOTE_KEY": key})
    finally:
        process.stop(20)


@pytest.fixture
def environs(theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> Theirs:
    for name, value in theirs.variables.items():
        monkeypatch.setenv(name, value)
    if theirs.rest.description() is not None:
        theirs.rest.call("DELETE", "/v1/schema/Bench")
    return theirs


@pytest.mark.servers
def test_a_collection_of_theirs_is_never_touched(environs: Theirs, tmp_path: Path) -> None:
    environs.rest.call("POST", "/v1/schema", {"class": "Bench", "vectorizer": "none", "description": "precious"})
    with pytest.raises(UserError, match="has a collection Bench that anncestry did not make: remove it"):
        get("weaviate").start(tmp_path, tmp_path / "data", weaviate()[1], WEAVIATE)
    assert environs.rest.description() == "precious"


@pytest.mark.servers
def test_the_collection_of_another_load_is_not_taken_for_ours(environs: Theirs, tmp_path: Path) -> None:
    engine, entry = get("weaviate"), weaviate()[1]

    def load(folder: Path) -> None:
        server = engine.start(tmp_path, folder, entry, WEAVIATE)
        vectors = small_vectors("cosine")
        with Progress("load", len(vectors.base), "row") as progress:
            engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        server.stop()

    load(tmp_path / "a")
    engine.start(tmp_path, tmp_path / "a", entry, WEAVIATE).stop()
    load(tmp_path / "b")  # replaces the first, which was ours
    with pytest.raises(ServerError, match="the collection Bench is of another load: an endpoint holds one load at a"):
        engine.start(tmp_path, tmp_path / "a", entry, WEAVIATE)
    engine.start(tmp_path, tmp_path / "b", entry, WEAVIATE).stop()
    environs.rest.call("DELETE", "/v1/schema/Bench")
    with pytest.raises(ServerError, match="the collection Bench is gone"):
        engine.start(tmp_path, tmp_path / "b", entry, WEAVIATE)


@pytest.mark.servers
def test_a_wrong_key_is_told_without_telling_it(
    environs: Theirs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_REMOTE_KEY", "wrong-" + environs.key)
    with pytest.raises(ServerError, match="HTTP 401") as error:
        get("weaviate").start(tmp_path, tmp_path / "data", weaviate()[1], WEAVIATE)
    assert environs.key not in str(error.value)


def config_folder(folder: Path, topologies: list[str], datasets: list[str]) -> Path:
    shutil.copytree(ROOT / "config", folder)
    name, entry = weaviate()
    (folder / "systems.yaml").write_text(yaml.safe_dump({name: {**entry, "artifact": {"kind": "none"}}}))
    (folder / "topologies.yaml").write_text(yaml.safe_dump(dict.fromkeys(topologies, WEAVIATE)))
    matrix = {"datasets": datasets, "systems": [name], "topologies": topologies, "workloads": ["smoke-k10"]}
    main = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**main, "chart_files": False, "matrix": [matrix]}))
    return folder


@pytest.mark.servers
def test_it_goes_through_the_whole_pipeline_and_the_key_is_in_no_file_of_it(environs: Theirs, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    config = config_folder(tmp_path / "config", ["remote"], ["random-xs-20-angular"])
    done = run_workflow(folder, f"config_dir={config}")
    said = done.stdout + done.stderr
    records = [json.loads(path.read_text()) for path in (folder / "results").glob("*/random*/**/*.json")]
    assert {record["stage"] for record in records} == {"load", "query", "recall"}
    for record in records:
        if record["stage"] != "recall":
            assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
    (table,) = (folder / "results" / "table").glob("*/numbers.json")
    rows = {(row["phase"], row["metric"]): row for row in json.loads(table.read_text())}
    assert rows["query", "p50_ms"]["value"] > 0 and rows["query", "client_cpu_s"]["value"] > 0
    for unseen in (("storage", "storage_total_mib"), ("load", "cpu_s"), ("query", "cpu_s"), ("query", "rss_peak_mib")):
        assert rows[unseen]["value"] is None and rows[unseen]["reason"] == "somebody else's server", unseen
    assert environs.process.alive(), "it is theirs: nobody stops it"

    planted = environs.key.encode()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    addresses = [environs.variables[name].encode() for name in ("TEST_REMOTE_HTTP", "TEST_REMOTE_GRPC")]
    assert [path for path in files if any(value in path.read_bytes() for value in (planted, *addresses))] == []
    assert environs.key not in said and not [value for value in addresses if value.decode() in said]

    def withdrawn() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "anncestry", "withdraw"], cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "ANNCESTRY_CONFIG": str(tmp_path / "config")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert environs.rest.description() is not None
    assert withdrawn().startswith("withdrawn: random-xs-20-angular of weaviate")
    assert environs.rest.description() is None
    assert withdrawn() == "no remote server holds a collection of this experiment\n"


def test_two_loads_for_one_endpoint_are_refused_while_parsing(tmp_path: Path) -> None:
    config = config_folder(tmp_path / "config", ["remote"], ["random-xs-20-angular", "fashion-mnist-784-euclidean"])
    done = run_workflow(tmp_path, f"config_dir={config}", check=False)
    assert done.returncode != 0
    assert "a remote endpoint holds one load at a time" in done.stdout + done.stderr


# Somebody else's Milvus


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server without a collection, as each test leaves it."""
    folder = tmp_path_factory.mktemp("milvus")
    with running("milvus-2.3.5", artifact("milvus-2.3.5", folder / "artifact"), folder / "theirs") as theirs:
        yield theirs


@pytest.mark.servers
def test_a_remote_milvus_is_loaded_marked_probed_and_left_running(
    milvus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine, entry = get("milvus"), SYSTEMS["milvus-2.3.5"]
    monkeypatch.setenv("TEST_REMOTE_MILVUS", milvus.endpoint)
    monkeypatch.setenv("TEST_REMOTE_METRICS", milvus.address("metrics"))
    topology = {**MILVUS, "endpoints": {"proxy": "TEST_REMOTE_MILVUS", "metrics": "TEST_REMOTE_METRICS"}}
    server = engine.start(tmp_path, tmp_path / "data", entry, topology)
    vectors = small_vectors("l2")
    with Progress("load", len(vectors.base), "row") as progress:
        engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
    probe = engine.probe(server)
    assert probe.rows == len(vectors.base) and probe.version == entry["version"]
    assert probe.settings.items() >= entry["settings"].items()
    server.stop()
    assert milvus.group.alive() and "made by anncestry, load" in str(milvus.rpc.description())
    again = engine.start(tmp_path, tmp_path / "data", entry, topology)
    assert engine.open(again, INDEX) >= 0
    again.stop()
    third = engine.start(tmp_path, tmp_path / "data", entry, topology)
    third.drop()
    third.stop()
    with pytest.raises(ServerError, match="the collection Bench is gone"):
        engine.start(tmp_path, tmp_path / "data", entry, topology)


@pytest.mark.servers
def test_a_remote_milvus_2_6_with_an_index_on_disk_is_read_back_as_what_it_is(
    milvus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a stand-in: no package registry has a later server than 2.3."""
    engine, later, index = get("milvus"), {"version": "2.6.9", "settings": {}}, {"type": "diskann"}
    with later_milvus(milvus.endpoint, "2.6.9") as endpoint:
        monkeypatch.setenv("TEST_REMOTE_MILVUS", endpoint)
        server = engine.start(tmp_path, tmp_path / "data", later, MILVUS)
        vectors = small_vectors("l2")
        with Progress("load", len(vectors.base), "row") as progress:
            engine.load(server, vectors, index, {"batch_rows": 500}, progress)
        probe = engine.probe(server)
        assert (probe.version, probe.rows) == ("2.6.9", len(vectors.base))
        assert probe.settings["index_type"] == "diskann"
        with Driver() as driver:
            found = Oracle(engine, server, driver, tmp_path, vectors).ask(vectors.base[:50], 1, 64)
            assert (found.ids[:, 0] == range(50)).mean() > 0.98
        server.drop()
        server.stop()


@pytest.mark.long
@pytest.mark.servers
def test_document_004_s_own_milvus_goes_through_the_whole_pipeline_by_a_stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its experiment, on few rows: HNSW and DISKANN of a 2.6.9, asked as bytes and as VectorDBBench asks."""
    folder, name = tmp_path / "run", "milvus-2.3.5"
    config = shutil.copytree(ROOT / "config", folder / "config")
    file = config / "experiments" / "diskann-nvmeof-remote.yaml"
    experiment = yaml.safe_load(file.read_text())
    on_paths = "remote-milvus-diskann-4path-1nic"
    for block, topology in zip(experiment["matrix"], ("remote-milvus", on_paths), strict=True):
        block |= {"datasets": ["random-xs-20-angular"], "workloads": ["smoke-k10", "smoke-k10-vectordbbench"]}
        block["topologies"] = [topology]
    file.write_text(yaml.safe_dump({**experiment, "disturbance": {"repeats": 0}}))
    with open(config / "workloads.yaml", "a") as more:
        more.write(
            "smoke-k10-vectordbbench: {k: 10, clients: 1, runs: 2, queries: 200, warmup: 20, client: vectordbbench}"
        )
    topologies = yaml.safe_load((config / "topologies.yaml").read_text())
    remote = {place: {**topologies[place], "tls": "none"} for place in ("remote-milvus", on_paths)}
    (config / "topologies.yaml").write_text(yaml.safe_dump({**topologies, **remote}))
    login = "root:planted-" + secrets.token_hex(16)
    monkeypatch.setenv("ANNCESTRY_MILVUS_LOGIN", login)
    program = artifact(name, tmp_path / "artifact")

    with (
        running(name, program, tmp_path / "memory") as memory,
        running(name, program, tmp_path / "disk") as disk,
        later_milvus(memory.endpoint, "2.6.9") as first,
        later_milvus(disk.endpoint, "2.6.9") as second,
    ):
        monkeypatch.setenv("ANNCESTRY_MILVUS", first)
        monkeypatch.setenv("ANNCESTRY_MILVUS_DISKANN_4PATH_1NIC", second)
        run_workflow(folder, f"config_dir={config}", "experiment=diskann-nvmeof-remote")
    records = [json.loads(path.read_text()) for path in (folder / "results").glob("*/random*/**/*.json")]
    assert {record["stage"] for record in records} == {"load", "query", "recall"}
    for record in records:
        if record["stage"] != "recall":
            assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
    with open(folder / "reports" / "diskann-nvmeof-remote" / "tables" / "D4.csv", newline="") as table:
        ours = [row for row in csv.DictReader(table) if row["Source"] == "measured here"]
    asked = {(row["Topology"], row["System"], row["Asked"].rpartition(", ")[2]) for row in ours}
    assert asked == {
        (topology, system, how)
        for topology, system in (("remote-milvus", "milvus-2.6.9"), (on_paths, "milvus-2.6.9-diskann"))
        for how in ("1 client", "by VectorDBBench's client")
    }
    said = "storage of 4 paths, 1 network card (declared, not read back)"
    assert {row["Topology"] for row in ours if said in row["Asked"]} == {on_paths}
    verified = anncestry(folder, "--experiment", "diskann-nvmeof-remote", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    planted = (login.encode(), first.encode(), second.encode())
    assert [path for path in files if any(value in path.read_bytes() for value in planted)] == []


def test_a_later_milvus_is_a_remote_one_or_none() -> None:
    offers = offers_of("milvus")
    for version in ("2.4.0", "2.6.9"):
        offers.check({"version": version}, MILVUS, {"type": "diskann"}, None)
        with pytest.raises(ConfigError, match=r"is not less than 2\.4\.0; .* with runtime remote below 2\.7\.0"):
            offers.check({"version": version}, STANDALONE, INDEX, None)
    with pytest.raises(ConfigError, match=r"milvus 2\.7\.0 is not less than"):
        offers.check({"version": "2.7.0"}, MILVUS, INDEX, None)


# Theirs, under TLS, as every managed service is


def used(engine_name: str, server: Server, folder: Path, metric: str = "l2") -> list[dict[str, Any]]:
    """Load, probe and search as a cell does; what the driver's connections came to."""
    engine = get(engine_name)
    vectors = small_vectors(metric)
    with Progress("load", len(vectors.base), "row") as progress:
        engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
    assert engine.probe(server).rows == len(vectors.base)
    engine.apply(server, 64)
    with Driver() as driver:
        found = Oracle(engine, server, driver, folder, vectors).ask(vectors.base[:50], 1, 64)
        assert (found.ids[:, 0] == range(50)).mean() > 0.98
        (done,) = [json.loads(path.read_text()) for path in folder.rglob("done.json")]
    return list(done["tls"])


def encrypted(server: Server, interfaces: set[str]) -> dict[str, Any]:
    """What the record says of the interfaces."""
    facts: dict[str, Any] = server.members()["remote"]["tls"]
    assert set(facts) == interfaces
    for told in facts.values():
        assert told["encrypted"] is True and told["protocol"] in ("TLSv1.2", "TLSv1.3")
    return facts


@pytest.mark.servers
def test_a_weaviate_behind_tls_gets_its_key_only_after_its_certificate_was_good(
    environs: Theirs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path / "good")
    others = make_certificates(tmp_path / "other", hosts=["db.example"])
    topology = {**WEAVIATE, "tls": {"ca": "TEST_REMOTE_CA"}}
    engine, entry = get("weaviate"), weaviate()[1]
    http, grpc = environs.variables["TEST_REMOTE_HTTP"], environs.variables["TEST_REMOTE_GRPC"]
    monkeypatch.setenv("TEST_REMOTE_CA", str(certificates.ca))
    with pytest.raises(ServerError, match="the endpoint of TEST_REMOTE_HTTP: TLS: the server does not speak TLS"):
        engine.start(tmp_path, tmp_path / "plain", entry, topology)
    with pump(http, certificates, "http/1.1") as front, pump(grpc, certificates, "h2") as fast:
        monkeypatch.setenv("TEST_REMOTE_HTTP", f"https://{front}")
        monkeypatch.setenv("TEST_REMOTE_GRPC", fast)
        server = engine.start(tmp_path, tmp_path / "data", entry, topology)
        told = encrypted(server, {"http", "grpc"})
        (driven,) = used("weaviate", server, tmp_path / "asked", "cosine")
        assert driven["certificate_sha256"] == told["grpc"]["certificate_sha256"]
        server.stop()
        monkeypatch.setenv("TEST_REMOTE_CA", str(others.ca))
        with pytest.raises(ServerError, match=r"TEST_REMOTE_HTTP: TLS: no trusted CA signed the server's certificate"):
            engine.start(tmp_path, tmp_path / "data", entry, topology)
    with pump(http, others, "http/1.1") as front:
        monkeypatch.setenv("TEST_REMOTE_HTTP", front)
        with pytest.raises(ServerError, match=r"TEST_REMOTE_HTTP: TLS: .* for another host"):
            engine.start(tmp_path, tmp_path / "data", entry, topology)


def through(client: str, server: Server, folder: Path) -> tuple[dict[str, Any], list[list[int]]]:
    """The facts of 20 searches through a client, and the ids that they found."""
    engine, work = get("milvus"), {"k": 3, "client": client}
    queries = small_vectors("l2").base[:20]
    protocol.write_requests(folder, clients.requests(engine, server, queries, work, 64, None))
    protocol.write_job(
        folder, requests=folder, transport=clients.transport(engine, server, work, 64, None), timeout_s=20.0,
        schedule=np.arange(len(queries))[None], prime=np.zeros((1, 1), int),
    )  # fmt: skip
    with Driver() as driver:
        driver.run(folder)
    outcome = protocol.read_outcome(folder)
    assert (outcome.samples["status"] == OK).all(), outcome.facts["clients"][0]["errors"]
    read = clients.decoder(engine, work)
    return outcome.facts, [read(response, "l2")[0].tolist() for response in outcome.responses]


@pytest.mark.servers
def test_a_milvus_with_tls_and_accounts_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, entry = "milvus-2.3.5", SYSTEMS["milvus-2.3.5"]
    certificates = make_certificates(tmp_path / "certificates", hosts=["localhost", "127.0.0.1"])
    package = artifact(name, tmp_path / "artifact") / "milvus" / "data"
    template, folder = (package / "config.yaml.template").read_text(), tmp_path / "theirs"
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    own = {
        "common.security.tlsMode": 1, "common.security.authorizationEnabled": True,
        "tls.serverPemPath": str(certificates.certificate), "tls.serverKeyPath": str(certificates.key),
        "tls.caPemPath": str(certificates.ca),
    }  # fmt: skip
    write_config(template, folder, ports, {**entry["settings"], **own}, "127.0.0.1")
    if (package / "glog.conf").exists():
        shutil.copy(package / "glog.conf", folder / "configs")
    variables = {
        "LD_LIBRARY_PATH": str(package / "bin"), "DEPLOY_MODE": "STANDALONE", "METRICS_PORT": str(ports["metrics"]),
        "MILVUSCONF": str(folder / "configs"), "HOME": str(folder),
    }  # fmt: skip
    command, apart = [package / "bin" / "milvus", "run", "standalone"], serve.runtime_folders()
    process = NativeProcess("theirs", command, clean_environment(variables), folder, folder / "server.log", apart=apart)
    try:
        target = f"127.0.0.1:{ports['proxy_port']}"
        monkeypatch.setenv("TEST_REMOTE_MILVUS", target)
        monkeypatch.setenv("TEST_REMOTE_KEY", "root:Milvus")
        monkeypatch.setenv("TEST_REMOTE_CA", str(certificates.ca))
        header = authorization({"env": "TEST_REMOTE_KEY", "scheme": "base64"})

        def answers() -> bool | None:
            rpc = Rpc(target, header, certificates.trusted["tls"])
            try:
                return rpc.collections() == [] or None
            finally:
                rpc.close()

        wait_for("theirs", answers, process, 120, patient=True)  # type: ignore[arg-type]
        topology = {**MILVUS, "credentials": "TEST_REMOTE_KEY", "tls": {"ca": "TEST_REMOTE_CA"}}
        engine = get("milvus")
        server = engine.start(tmp_path, tmp_path / "data", entry, topology)
        told = encrypted(server, {"proxy"})
        (driven,) = used("milvus", server, tmp_path / "asked")
        assert driven["certificate_sha256"] == told["proxy"]["certificate_sha256"]
        bytes_, *libraries = (
            through(client, server, tmp_path / client) for client in ("bytes", "sdk", "vectordbbench")
        )
        for facts, found in libraries:
            assert facts["tls"] == bytes_[0]["tls"] and found == bytes_[1]
        server.stop()
        monkeypatch.setenv("TEST_REMOTE_KEY", "root:wrong")
        for client in ("sdk", "vectordbbench"):
            with pytest.raises(ServerError, match=r"illegal connection params|auth check failure") as refused:
                through(client, server, tmp_path / "wrong")
            assert "root:wrong" not in str(refused.value)
        with pytest.raises(ServerError, match="milvus: "):
            engine.start(tmp_path, tmp_path / "data", entry, topology)
        monkeypatch.setenv("TEST_REMOTE_CA", str(make_certificates(tmp_path / "other").ca))
        with pytest.raises(
            ServerError, match=r"TEST_REMOTE_MILVUS: TLS: no trusted CA signed the server's certificate"
        ):
            engine.start(tmp_path, tmp_path / "data", entry, topology)
    finally:
        process.stop(8)


@pytest.mark.servers
@pytest.mark.makes("mariadb-11.8.6")
def test_a_mariadb_with_tls_is_never_spoken_to_in_the_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, entry = "mariadb-11.8.6", SYSTEMS["mariadb-11.8.6"]
    certificates, dialect = make_certificates(tmp_path / "certificates"), dialect_of(entry)
    program, folder, password = artifact(name, tmp_path / "artifact").resolve(), tmp_path / "theirs", "planted-password"
    folder.mkdir()
    assert dialect.prepare(program, folder, password)
    (port,) = free_ports(1)
    command = dialect.arguments(program, folder, "127.0.0.1", port, {}, Limits.of({}))
    command += [f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}", "--require-secure-transport"]
    process = NativeProcess("theirs", command, clean_environment(), folder, folder / "server.log")
    try:
        monkeypatch.setenv("TEST_REMOTE_MYSQL", f"127.0.0.1:{port}")
        monkeypatch.setenv("TEST_REMOTE_KEY", password)
        monkeypatch.setenv("TEST_REMOTE_CA", str(certificates.ca))
        wait_for(
            "theirs", lambda: b"ready for connections" in (folder / "server.log").read_bytes() or None, process, 120
        )  # type: ignore[arg-type]
        topology = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "tls": {"ca": "TEST_REMOTE_CA"},
                    "endpoints": {"mysql": "TEST_REMOTE_MYSQL"}, "credentials": "TEST_REMOTE_KEY"}  # fmt: skip
        engine = get("mysql")
        server = engine.start(tmp_path, tmp_path / "data", entry, topology)
        told = encrypted(server, {"mysql"})
        (driven,) = used("mysql", server, tmp_path / "asked")
        assert driven["certificate_sha256"] == told["mysql"]["certificate_sha256"]
        with pytest.raises(ServerError, match="insecure transport"):
            engine.start(tmp_path, tmp_path / "plain", entry, {**topology, "tls": "none"})
        monkeypatch.setenv("TEST_REMOTE_CA", str(make_certificates(tmp_path / "other").ca))
        with pytest.raises(ServerError, match=r"TLS: no trusted CA signed the server's certificate"):
            engine.start(tmp_path, tmp_path / "data", entry, topology)
    finally:
        process.stop(20)


@pytest.mark.servers
def test_a_postgres_behind_tls_gets_its_password_only_after_its_certificate_was_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, certificates, password = "pgvector-0.8.5", make_certificates(tmp_path / "certificates"), "planted-password"
    entry = {**SYSTEMS[name], "settings": {"user": "guest", "hnsw.iterative_scan": "strict_order"}}
    topology = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "tls": {"ca": "TEST_REMOTE_CA"},
                "endpoints": {"sql": "TEST_REMOTE_SQL"}, "credentials": "TEST_REMOTE_KEY"}  # fmt: skip
    monkeypatch.setenv("TEST_REMOTE_KEY", password)
    monkeypatch.setenv("TEST_REMOTE_CA", str(certificates.ca))
    engine = get("pgvector")
    offers_of("pgvector").check(entry, topology, INDEX, {"k": 10, "ef_search": 64})
    with running(name, artifact(name, tmp_path / "artifact"), tmp_path / "theirs") as theirs:
        ask = theirs.ask  # type: ignore[attr-defined]
        ask(f"CREATE ROLE guest LOGIN PASSWORD '{password}'".encode())
        ask("GRANT CREATE ON SCHEMA public TO guest")
        monkeypatch.setenv("TEST_REMOTE_SQL", theirs.endpoint)
        with pytest.raises(ServerError, match="the endpoint of TEST_REMOTE_SQL: TLS: the server does not offer it"):
            engine.start(tmp_path, tmp_path / "plain", entry, topology)
        with pump(theirs.endpoint, certificates, "postgresql", bytes([0, 0, 0, 8, 4, 210, 22, 47])) as front:
            monkeypatch.setenv("TEST_REMOTE_SQL", front)
            ask("CREATE TABLE items (precious int)")
            with pytest.raises(UserError, match="has a collection items that anncestry did not make: remove it"):
                engine.start(tmp_path, tmp_path / "refused", entry, topology)
            ask("DROP TABLE items")
            server = engine.start(tmp_path, tmp_path / "data", entry, topology)
            told = encrypted(server, {"sql"})
            (driven,) = used("pgvector", server, tmp_path / "asked")
            assert driven["certificate_sha256"] == told["sql"]["certificate_sha256"]
            probe, asked = engine.probe(server), engine.asked_settings(entry, INDEX, "l2", 64)
            assert {name: probe.settings.get(name) for name in asked} == asked
            for exact in (True, False):
                engine.exact_filters(server, exact)
                assert (engine.probe(server).settings["plan"] == asked["plan"]) is not exact
            server.stop()
            again = engine.start(tmp_path, tmp_path / "data", entry, topology)
            assert engine.open(again, INDEX) > 0
            with pytest.raises(ServerError, match="the collection items is of another load"):
                (tmp_path / "other").mkdir()
                (tmp_path / "other" / "remote.json").write_text('{"mark": "made by anncestry, load of another"}')
                engine.start(tmp_path, tmp_path / "other", entry, topology)
            again.drop()
            again.stop()
            assert ask("SELECT count(*) FROM pg_db_role_setting WHERE setrole <> 0") == [(0,)], "nothing of ours stays"
            monkeypatch.setenv("TEST_REMOTE_KEY", "wrong")
            with pytest.raises(
                ServerError, match=r"no connection for guest: .*password authentication failed"
            ) as error:
                engine.start(tmp_path, tmp_path / "b", entry, topology)
            assert "127.0.0.1" not in str(error.value)
            monkeypatch.setenv("TEST_REMOTE_CA", str(make_certificates(tmp_path / "unknown").ca))
            with pytest.raises(
                ServerError, match=r"TEST_REMOTE_SQL: TLS: no trusted CA signed the server's certificate"
            ):
                engine.start(tmp_path, tmp_path / "c", entry, topology)
        assert theirs.group.alive()
