"""Somebody else's server: measured as it is, with credentials that stay secret; nothing of theirs is touched."""

from __future__ import annotations

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

import pytest
import yaml

from anncestry.engines import get
from anncestry.engines.base import wait_for
from anncestry.engines.milvus.serve import as_milvus
from anncestry.engines.weaviate.rest import Rest
from anncestry.engines.weaviate.serve import environment
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.progress import Progress
from anncestry.runtimes.base import NO_LIMITS
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import NativeProcess, free_ports
from anncestry.runtimes.remote import endpoint
from tests.servers import INDEX, SYSTEMS, artifact, running, small_vectors
from tests.toy import ROOT

WEAVIATE = {
    "runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1,
    "endpoints": {"http": "TEST_REMOTE_HTTP", "grpc": "TEST_REMOTE_GRPC"}, "credentials": "TEST_REMOTE_KEY",
}  # fmt: skip
MILVUS = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"proxy": "TEST_REMOTE_MILVUS"}}


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
        ("milvus", {"endpoints": {"http": "A"}}, r"endpoints\.proxy is missing"),
    ],
)
def test_a_remote_topology_that_can_not_be_is_refused_by_name(
    engine: str, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        get(engine).check(version_of(engine), {**WEAVIATE, **changes}, INDEX, None)


def test_a_variable_that_is_not_set_or_no_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_REMOTE_HTTP", raising=False)
    with pytest.raises(UserError, match="TEST_REMOTE_HTTP is not set"):
        endpoint(WEAVIATE, "http")
    for bad in ("somewhere", "https://host:1", "host:port"):
        monkeypatch.setenv("TEST_REMOTE_HTTP", bad)
        with pytest.raises(UserError, match=r"TEST_REMOTE_HTTP.* is not HOST:PORT without TLS"):
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
    process = NativeProcess.start("theirs", command, variables, folder, folder / "server.log")
    try:
        rest = Rest("127.0.0.1", ports["http"], f"Bearer {key}")
        wait_for("theirs", lambda: rest.status("/v1/.well-known/ready") == 200 or None, process, 60)  # type: ignore[arg-type]
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
    with pytest.raises(UserError, match="has a collection Bench that anncestry did not make: it is left alone"):
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
    (folder / "config.yaml").write_text(yaml.safe_dump({**main, "matrix": [matrix]}))
    return folder


def snakemake(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "8",
         "--directory", str(folder), "--nocolor", "all", "--config", f"config_dir={config}"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.servers
def test_it_goes_through_the_whole_pipeline_and_the_key_is_in_no_file_of_it(environs: Theirs, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    done = snakemake(folder, config_folder(tmp_path / "config", ["remote"], ["random-xs-20-angular"]))
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
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
    assert [path for path in files if planted in path.read_bytes()] == []
    assert environs.key not in said

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
    assert withdrawn() == "nothing of this experiment is on a server that somebody else runs\n"


def test_two_loads_for_one_endpoint_are_refused_while_parsing(tmp_path: Path) -> None:
    config = config_folder(tmp_path / "config", ["remote"], ["random-xs-20-angular", "fashion-mnist-784-euclidean"])
    done = snakemake(tmp_path, config)
    assert done.returncode != 0
    assert "a remote endpoint holds one load at a time" in done.stdout + done.stderr


# Somebody else's Milvus


@pytest.mark.servers
def test_a_remote_milvus_is_loaded_marked_probed_and_left_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, entry = next((name, entry) for name, entry in SYSTEMS.items() if entry["engine"] == "milvus")
    engine = get("milvus")
    with running(name, artifact(name, tmp_path / "artifact"), tmp_path / "theirs") as theirs:
        own = as_milvus(theirs)
        monkeypatch.setenv("TEST_REMOTE_MILVUS", theirs.endpoint)
        monkeypatch.setenv("TEST_REMOTE_METRICS", own.address("metrics"))
        topology = {**MILVUS, "endpoints": {"proxy": "TEST_REMOTE_MILVUS", "metrics": "TEST_REMOTE_METRICS"}}
        server = engine.start(tmp_path, tmp_path / "data", entry, topology)
        vectors = small_vectors("l2")
        with Progress("load", len(vectors.base), "row") as progress:
            engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        probe = engine.probe(server)
        assert probe.rows == len(vectors.base) and probe.version == entry["version"]
        assert probe.settings.items() >= entry["settings"].items()
        server.stop()
        assert theirs.alive() and "made by anncestry, load" in str(own.rpc.description())
        again = engine.start(tmp_path, tmp_path / "data", entry, topology)
        assert engine.open(again, INDEX) >= 0
        again.stop()
        third = as_milvus(engine.start(tmp_path, tmp_path / "data", entry, topology))
        third.drop()
        third.stop()
        with pytest.raises(ServerError, match="the collection Bench is gone"):
            engine.start(tmp_path, tmp_path / "data", entry, topology)
