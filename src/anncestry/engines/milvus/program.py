"""What is run as a Milvus: where its programs and its template of a configuration lie, and how both are made its own.
(What stands beside it in some topologies: `parts`.)

From 2.2 on the wheel, as well as an image of a registry, holds a program and the configuration that it comes with, of
which only what is asked for is changed. The wheel of 2.1 holds a library which serves when it is asked to, inside of a
Python that does nothing else. It reads its configuration from one fixed folder of the machine, under root's control and
one for all: the artifact has the bytes of that path changed into those of a path from the folder it is run in
(`changed` of the artifact in config/systems.yaml), nothing else.
"""

from __future__ import annotations

import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anncestry.engines.base import Spec
from anncestry.engines.milvus import CONFIGS, MMAP, MMAP_FOLDER, PROGRAM, facts, members_of
from anncestry.engines.milvus.parts import ACCESS_KEY, BUCKET, log_of, ports_of, secret_key
from anncestry.engines.native import HOST
from anncestry.errors import ConfigError, DataError
from anncestry.runtimes.artifacts import IMAGE
from anncestry.runtimes.base import Runner

_PLACEHOLDER = re.compile(r"\{\{\s*(?P<name>\w+)\s*(?:\((?P<type>\w+)\))?\s*(?::\s*(?P<default>[^}]*?))?\s*\}\}")
_COMPONENTS = {
    "root_coord_port": ("rootCoord", "port"),
    "proxy_port": ("proxy", "port"),
    "proxy_internal_port": ("proxy", "internalPort"),
    "query_coord_port": ("queryCoord", "port"),
    "query_node_port": ("queryNode", "port"),
    "index_coord_port": ("indexCoord", "port"),
    "index_node_port": ("indexNode", "port"),
    "data_coord_port": ("dataCoord", "port"),
    "data_node_port": ("dataNode", "port"),
}
"""Port of a component → where the configuration has it."""
PORTS = ("etcd_port", *_COMPONENTS, "metrics", "etcd_peer")
"""Of one process: those of its components, of the etcd inside, and that of health and metrics."""


class Program(ABC):
    """What is run on a folder of data: members of these roles, by their names."""

    def __init__(self, data_dir: Path, system: Spec, topology: Spec) -> None:
        self.data_dir = data_dir
        self.settings: Spec = system.get("settings") or {}
        self.topology = topology
        self.members = members_of(system["version"], topology)

    def port_names(self) -> list[str]:
        """Names of all ports. The one process has them to itself."""
        return list(PORTS)

    def own(self, member: str, role: str, ports: Mapping[str, int]) -> Mapping[str, int]:
        """Those of a member."""
        return ports

    @abstractmethod
    def command(self, member: str, role: str, own: Mapping[str, int]) -> list[str | Path]:
        """The command of a member, to be run in the folder of data."""

    @abstractmethod
    def configure(
        self, member: str, role: str, ports: Mapping[str, int], runner: Runner, local: Path | None
    ) -> dict[str, str]:
        """Write the configuration of a member (see `write_config`); returns the variables that it needs."""


@dataclass(frozen=True)
class _Package:
    """Where files lie in an artifact: the program, the configuration that it comes with, that of the logs of its C++
    part (2.3 has one), and the folder of its libraries (None: it finds them itself)."""

    program: Path
    configuration: Path
    glog: Path
    libraries: Path | None

    @classmethod
    def of(cls, artifact_dir: Path) -> _Package:
        if (artifact_dir / IMAGE).exists():
            configs = artifact_dir / CONFIGS
            return cls(artifact_dir / PROGRAM, configs / "milvus.yaml", configs / "glog.conf", None)
        data = artifact_dir / "milvus" / "data"
        return cls(data / "bin" / "milvus", data / "config.yaml.template", data / "glog.conf", data / "bin")

    def read(self, runner: Runner) -> str:
        """The text of the configuration."""
        found = runner.read(self.configuration)
        if found is None:
            raise DataError(f"milvus: {self.configuration.name} is missing in the folder {CONFIGS} of its image")
        return found.decode()


class _Binary(Program):
    """Of 2.2 and later."""

    def __init__(self, package: _Package, data_dir: Path, system: Spec, topology: Spec) -> None:
        super().__init__(data_dir, system, topology)
        self.package = package

    def command(self, member: str, role: str, own: Mapping[str, int]) -> list[str | Path]:
        return [self.package.program, "run", role]

    def configure(
        self, member: str, role: str, ports: Mapping[str, int], runner: Runner, local: Path | None
    ) -> dict[str, str]:
        write_config(self.package.read(runner), self.data_dir, ports, self.settings, runner.host(member), local)
        return self._environment(role, self.data_dir / "configs", ports["metrics"], runner)

    def _environment(self, role: str, configs: Path, metrics: int, runner: Runner) -> dict[str, str]:
        """For a member whose configuration is in `configs`, the rest of which is put there."""
        glog, libraries = runner.read(self.package.glog), self.package.libraries
        if glog is not None:
            (configs / "glog.conf").write_bytes(glog)
        return {
            **({} if libraries is None else {"LD_LIBRARY_PATH": str(libraries)}),
            "DEPLOY_MODE": "STANDALONE" if role == "standalone" else "DISTRIBUTED",
            "METRICS_PORT": str(metrics),
            "MILVUSCONF": str(configs),
            "HOME": str(self.data_dir),
        }


class _Parts(_Binary):
    """The same with its parts beside it: as one process, or distributed, each role a process of its own."""

    def port_names(self) -> list[str]:
        names = ports_of(self.topology["external"])
        return names + [f"{member}.{port}" for member, role in self.members.items() for port in self._ports(role)]

    def own(self, member: str, role: str, ports: Mapping[str, int]) -> Mapping[str, int]:
        return {name: ports[f"{member}.{name}"] for name in self._ports(role)}

    def _ports(self, role: str) -> list[str]:
        """Names of the ports that a member of this role listens on."""
        if role == "standalone":
            return [name for name in PORTS if not name.startswith("etcd_")]
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
        return self._environment(role, folder, own["metrics"], runner)

    def _configuration(
        self, member: str, own: Mapping[str, int], ports: Mapping[str, int], runner: Runner
    ) -> dict[str, Any]:
        """The milvus.yaml of one member: its own ports, and where what stands beside it is."""
        external, shared = self.topology["external"], self.data_dir / "data"
        local = self.data_dir / "local" / member if "object_store" in external else shared
        local.mkdir(parents=True, exist_ok=True)
        paths = _Paths(self.data_dir / "logs" / member, self.data_dir / "logs", self.data_dir / "etcd", local, shared)
        etcd = f"{runner.host('etcd')}:{ports['etcd']}"
        config = _own(self.package.read(runner), {**_OF_OTHERS, **own}, paths, etcd, runner.host(member))
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
            for other in ("pulsar", "kafka", "rocksmq", "natsmq"):
                config.pop(other, None)
            kind = log_of(external["log"])
            reached = {name: (runner.host("log"), ports[name]) for name in kind.ports}
            config |= {"mq": {"type": kind.name}, kind.name: kind.section(reached)}
        merge(config, self.settings)
        return config


class _Library(Program):
    """Of 2.1. What it needs beside itself are other wheels' files (`beside` of the artifact)."""

    def __init__(self, package: Path, data_dir: Path, system: Spec, topology: Spec) -> None:
        super().__init__(data_dir, system, topology)
        self.package = package

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
        for name, (section, key) in _COMPONENTS.items():
            config[section][key] = ports[name]
            if "address" in config[section]:
                config[section]["address"] = host
        config["proxy"]["http"] = {"enabled": False}
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
    return kind(_Package.of(artifact_dir), data_dir, system, topology)


def read_config(text: str) -> Any:
    """A milvus.yaml as it comes: an image's, or the wheel's with the defaults of its placeholders, null without one."""
    return yaml.safe_load(_PLACEHOLDER.sub(lambda match: match["default"] or "null", text))


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
    text: str,
    data_dir: Path,
    ports: Mapping[str, int],
    settings: Mapping[str, Any],
    host: str = HOST,
    local: Path | None = None,
) -> None:
    """Write milvus.yaml, from the `text` of one, and etcd.yaml into `data_dir`/configs. What is inserted and built goes
    to `local`, else beside the rest."""
    storage, logs, configs = _folders(data_dir)
    paths = _Paths(logs, logs, storage / "etcd.data", local or storage, storage)
    config = _own(text, ports, paths, f"{host}:{ports['etcd_port']}", host)
    config["etcd"]["config"] = {"path": str(configs / "etcd.yaml")}
    merge(config, {dotted: value for dotted, value in settings.items() if dotted != MMAP})
    if MMAP in settings and local is not None:
        (local / MMAP_FOLDER).mkdir(exist_ok=True)
        config["queryNode"]["mmapDirPath"] = str(local / MMAP_FOLDER)  # the template doesn't know it
    (configs / "milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    _write_etcd(configs, storage, logs, host, ports)


@dataclass(frozen=True)
class _Paths:
    """Folders: of logs, of those of the etcd inside and its data, of what is inserted and built, of the rest."""

    logs: Path
    etcd_logs: Path
    etcd: Path
    local: Path
    storage: Path


_OF_OTHERS = dict.fromkeys(_COMPONENTS, 1)
"""Ports of components that a member does not run."""


def _own(text: str, ports: Mapping[str, int], paths: _Paths, etcd: str, host: str) -> dict[str, Any]:
    """A milvus.yaml as it comes, made that of a member at `host` with these ports, which finds its etcd at an address;
    with its etcd inside, and what it stores in a folder. DataError if it lacks a section of these."""
    config: dict[str, Any] = read_config(text)
    try:
        _place(config, ports, paths, etcd)
    except (KeyError, TypeError) as error:
        raise DataError(f"milvus: the milvus.yaml that it comes with is of another form: {error}") from None
    # Components register under this address; otherwise under the first of the machine's, which may change.
    for section in config.values():
        if isinstance(section, dict) and "ip" in section and "port" in section:
            section["ip"] = host
    return config


def _place(config: dict[str, Any], ports: Mapping[str, int], paths: _Paths, etcd: str) -> None:
    for name, (section, key) in _COMPONENTS.items():
        if key in config[section]:
            config[section][key] = ports[name]
        else:  # from 2.3 on, of the index coordinator
            config[section]["bindIndexNodeMode"]["address"] = f"localhost:{ports[name]}"
    config["etcd"]["endpoints"] = etcd
    config["etcd"]["use"]["embed"] = True
    config["etcd"]["data"]["dir"] = str(paths.etcd)
    config["etcd"]["log"]["path"] = str(paths.etcd_logs / "etcd.log")
    config["localStorage"]["path"] = str(paths.local)
    config["rocksmq"]["path"] = str(paths.storage / "rocksmq")
    config["common"]["storageType"] = "local"
    if "mq" in config:  # from 2.3 on, it chooses no log by itself
        config["mq"]["type"] = "rocksmq"
    config["log"]["level"] = "warn"
    config["log"]["file"]["rootPath"] = str(paths.logs)


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
