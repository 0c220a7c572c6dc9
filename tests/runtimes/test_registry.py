"""Images of a registry, by digest: pulled, checked and run, as the official ones are. The registry is Debian's own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from anncestry import workflow
from anncestry.engines import get
from anncestry.engines.milvus.program import read_config
from anncestry.errors import ConfigError, DataError
from anncestry.progress import Progress
from anncestry.runtimes import artifacts
from anncestry.runtimes.docker import remnants
from anncestry.runtimes.images import ROOT as INSIDE
from anncestry.runtimes.images import host_libraries, import_image, local_image, pulled_image
from anncestry.runtimes.native import free_ports
from tests.containers import engine
from tests.servers import INDEX, SYSTEMS, TOPOLOGIES, artifact, small_vectors, with_parts
from tests.toy import ROOT

SYSTEM = "weaviate-1.27.0"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """host:port of a registry on loopback, empty at first."""
    program = shutil.which("docker-registry")
    assert program is not None, "`make test-docker` installs Debian's docker-registry"
    (port,) = free_ports(1)
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (tmp_path / "registry.yml").write_text(yaml.safe_dump(config))
    with open(tmp_path / "registry.log", "wb") as log:
        process = subprocess.Popen([program, "serve", str(tmp_path / "registry.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "registry.log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def pushed(client: docker.DockerClient, registry: str, image: str, name: str) -> str:
    """The reference, by digest, of an image that is in the registry and nowhere else."""
    name = f"{registry}/official/{name}"
    client.images.get(image).tag(name, "latest")
    said = list(client.images.push(name, tag="latest", stream=True, decode=True))
    digests = [line["aux"]["Digest"] for line in said if "aux" in line]
    assert len(digests) == 1, said
    client.images.remove(image, force=True)
    return f"{name}@{digests[0]}"


def of_image(reference: str) -> dict[str, Any]:
    programs = {"weaviate-server": f"{INSIDE}/weaviate-server"}
    return {**SYSTEMS[SYSTEM], "artifact": {"kind": "image", "image": reference, "programs": programs}}


@pytest.mark.docker
def test_a_system_runs_from_an_image_of_a_registry_by_its_digest(registry: str, tmp_path: Path) -> None:
    client = engine()
    built = local_image(client, "weaviate", artifact(SYSTEM, tmp_path / "built"))
    reference = pushed(client, registry, built.id, "weaviate")
    with pytest.raises(docker.errors.ImageNotFound):
        client.images.get(reference)
    entry = of_image(reference)
    spec = {"system": "official", "version": entry["version"], "artifact": entry["artifact"]}
    record = artifacts.run(spec, tmp_path / "artifact", tmp_path / "cache", "0" * 12)
    weaviate = get("weaviate")
    topology = {"runtime": "docker", "nodes": 1, "shards": 1, "replicas": 1, "limits": {"memory_mib": 1024}}
    server = weaviate.start(tmp_path / "artifact", tmp_path / "data", entry, topology)
    try:
        (member,) = server.members().values()
        assert member["image"] == reference and member["host_files"] == {}
        assert len(member["layers"]) == 1 and list(record["outputs"]) == ["image.json"]
        vectors = small_vectors("l2")
        with Progress("load", None) as progress:
            weaviate.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        probe = weaviate.probe(server)
        assert (probe.rows, probe.version) == (len(vectors.base), entry["version"])
    finally:
        server.stop()
    assert [found for found in remnants(client) if found.used] == []

    other = reference[:-1] + ("0" if reference[-1] != "0" else "1")
    with pytest.raises(DataError, match="can't be pulled"):
        pulled_image(client, other)
    client.images.remove(reference, force=True)


MILVUS = "milvus-2.3.5"
IN_IMAGE = {"milvus": "/milvus/bin/milvus", "configs": "/milvus/configs"}
"""Where Milvus' own images have them."""


def image_like_milvus_own(client: docker.DockerClient, wheel: Path, folder: Path) -> str:
    """An image of the bytes of the wheel, in the layout of Milvus' own: its libraries found by a variable of the image,
    and a milvus.yaml for an etcd and an object store elsewhere, which has no placeholders."""
    data = wheel / "milvus" / "data"
    config = read_config((data / "config.yaml.template").read_text())
    config["etcd"]["use"]["embed"], config["common"]["storageType"] = False, "minio"
    config["etcd"]["endpoints"], config["log"]["stdout"] = "localhost:2379", True
    config["mq"]["type"] = "default"
    folder.mkdir()
    (folder / "milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    files = {"/milvus/configs/milvus.yaml": folder / "milvus.yaml", "/milvus/configs/glog.conf": data / "glog.conf"}
    for path in (data / "bin").iterdir():
        files[IN_IMAGE["milvus"] if path.name == "milvus" else f"/milvus/lib/{path.name}"] = path
    name = "anncestry/like-milvus-own:test"
    image = import_image(client, name, files, host_libraries(files.values()), ["ENV LD_LIBRARY_PATH=/milvus/lib"])
    return str(image.id)


def of_milvus_image(reference: str, **changed: Any) -> dict[str, Any]:
    return {**SYSTEMS[MILVUS], "artifact": {"kind": "image", "image": reference, "programs": IN_IMAGE, **changed}}


@pytest.mark.docker
@pytest.mark.parametrize("name", ["docker-standalone", "docker-distributed-2-local"])
def test_milvus_runs_from_an_image_of_a_registry_with_the_configuration_that_is_in_it(
    registry: str, tmp_path: Path, name: str
) -> None:
    client, topology = engine(), TOPOLOGIES[name]
    image = image_like_milvus_own(client, artifact(MILVUS, tmp_path / "wheel"), tmp_path / "own")
    reference = pushed(client, registry, image, "milvus")
    entry, milvus = of_milvus_image(reference), get("milvus")
    if "external" in topology:
        with_parts(MILVUS, topology, tmp_path / "artifact", entry)
    else:
        spec = {"system": MILVUS, "version": entry["version"], "artifact": entry["artifact"]}
        artifacts.run(spec, tmp_path / "artifact", tmp_path / "cache", "0" * 12)
    server = milvus.start(tmp_path / "artifact", tmp_path / "data", entry, topology)
    try:
        theirs = {name: facts for name, facts in server.members().items() if name not in topology.get("external", ())}
        assert {facts["image"] for facts in theirs.values()} == {reference}
        assert all(facts["host_files"] == {} for facts in theirs.values())
        vectors = small_vectors("l2")
        with Progress("load", None) as progress:
            milvus.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        probe = milvus.probe(server)
        assert (probe.rows, probe.version, probe.nodes) == (len(vectors.base), entry["version"], topology["nodes"])
        assert probe.replicas == topology["replicas"]
    finally:
        server.stop()
    assert [found for found in remnants(client) if found.used] == []
    client.images.remove(reference, force=True)


# While a workflow is parsed; no engine is needed for that.


def configured(tmp_path: Path, system: dict[str, Any], topology: str) -> workflow.Choice:
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder)
    with open(folder / "systems.yaml", "a") as file:
        file.write("\n" + yaml.safe_dump({"official": system}))
    block = {"datasets": ["random-xs-20-angular"], "systems": ["official"], "topologies": [topology],
             "workloads": ["smoke-k10"]}  # fmt: skip
    (folder / "experiments" / "x.yaml").write_text(yaml.safe_dump({"matrix": [block]}))
    return workflow.Choice(folder, "x")


REFERENCE = f"registry.example/weaviate@sha256:{'a' * 64}"


def test_an_image_is_part_of_the_key_of_what_is_measured_with_it(tmp_path: Path) -> None:
    first = workflow.expand(configured(tmp_path / "1", of_image(REFERENCE), "docker-cluster-3")).cells[0]
    other = of_image(REFERENCE.replace("a" * 64, "b" * 64))
    second = workflow.expand(configured(tmp_path / "2", other, "docker-cluster-3")).cells[0]
    assert first.artifact != second.artifact and first.query != second.query


@pytest.mark.parametrize(
    ("change", "topology", "complaint"),
    [
        ({}, "standalone", "official: a container image needs a topology with runtime: docker"),
        ({"image": "weaviate:1.27.0"}, "docker-cluster-3", r"official\.artifact\.image"),
        ({"programs": {"weaviate-server": "weaviate"}}, "docker-cluster-3", r"official\.artifact\.programs"),
    ],
)
def test_an_image_that_is_not_pinned_or_has_no_engine_is_refused(
    tmp_path: Path, change: dict[str, Any], topology: str, complaint: str
) -> None:
    system = of_image(REFERENCE)
    system["artifact"].update(change)
    with pytest.raises(ConfigError, match=complaint):
        workflow.expand(configured(tmp_path, system, topology))


def test_an_image_of_milvus_needs_the_folder_of_its_configuration(tmp_path: Path) -> None:
    milvus = of_milvus_image(REFERENCE, programs={"milvus": "/milvus/bin/milvus"})
    with pytest.raises(ConfigError, match=r"artifact: programs\.configs is missing: an image of milvus needs"):
        workflow.expand(configured(tmp_path, milvus, "docker-standalone"))


def test_diskann_of_milvus_needs_an_image_or_a_remote_server(tmp_path: Path) -> None:
    diskann = {"index": {"type": "diskann"}}
    cells = workflow.expand(configured(tmp_path / "1", of_milvus_image(REFERENCE) | diskann, "docker-standalone")).cells
    assert len(cells) == 1
    with pytest.raises(ConfigError, match="take an image of a registry, or runtime remote"):
        workflow.expand(configured(tmp_path / "2", SYSTEMS[MILVUS] | diskann, "docker-standalone"))
