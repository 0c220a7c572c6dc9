"""What is run as a Milvus: where its programs and its template of a configuration lie, and how both are made its own.

From 2.2 on the wheel holds a program. That of 2.1 holds a library which serves when it is asked to, inside of a Python
that does nothing else. It reads its configuration from one fixed folder of the machine, under root's control and one
for all: the artifact has the bytes of that path changed into those of a path from the folder it is run in
(`changed` of the artifact in config/systems.yaml), nothing else.
"""

from __future__ import annotations

import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from anncestry.engines.milvus.versions import MMAP, MMAP_FOLDER, Facts
from anncestry.engines.native import HOST
from anncestry.errors import ConfigError

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
    """What is run, in the folder `package` of an artifact."""

    def __init__(self, package: Path) -> None:
        self.package = package

    @property
    @abstractmethod
    def ports(self) -> list[str]:
        """Names of the ports that it listens on."""

    @property
    @abstractmethod
    def command(self) -> list[str | Path]:
        """The command, to be run in its folder of data."""

    @abstractmethod
    def environment(self, data_dir: Path, ports: Mapping[str, int]) -> dict[str, str]:
        """Variables that it needs."""

    @abstractmethod
    def configure(
        self, data_dir: Path, ports: Mapping[str, int], settings: Mapping[str, Any], host: str, local: Path | None
    ) -> None:
        """Write its configuration into `data_dir`/configs; see `write_config`."""


class _Binary(Program):
    """Of 2.2 and later."""

    @property
    def ports(self) -> list[str]:
        return [*template_ports(self._template()), *_OWN_PORTS]

    @property
    def command(self) -> list[str | Path]:
        return [self.package / "bin" / "milvus", "run", "standalone"]

    def environment(self, data_dir: Path, ports: Mapping[str, int]) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.package / "bin"),
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(ports["metrics"]),
            "MILVUSCONF": str(data_dir / "configs"),
            "HOME": str(data_dir),
        }

    def configure(
        self, data_dir: Path, ports: Mapping[str, int], settings: Mapping[str, Any], host: str, local: Path | None
    ) -> None:
        write_config(self._template(), data_dir, ports, settings, host, local)
        if (self.package / "glog.conf").exists():  # 2.3 brings one
            shutil.copy(self.package / "glog.conf", data_dir / "configs" / "glog.conf")

    def _template(self) -> str:
        return (self.package / "config.yaml.template").read_text()


class _Library(Program):
    """Of 2.1. What it needs beside itself are other wheels' files (`beside` of the artifact)."""

    @property
    def ports(self) -> list[str]:
        return [*_SECTIONS, "proxy_internal_port", "etcd_port", *_OWN_PORTS]

    @property
    def command(self) -> list[str | Path]:
        serve = f"import ctypes; ctypes.CDLL({str(self._library())!r}).startEmbedded()"
        return [sys.executable, "-I", "-S", "-c", serve]

    def environment(self, data_dir: Path, ports: Mapping[str, int]) -> dict[str, str]:
        beside = self.package.parents[2] / "beside"
        return {
            "LD_LIBRARY_PATH": f"{self.package / 'lib'}:{beside}",
            "LD_PRELOAD": str(self._library()),  # it wants more thread-local storage than what is opened later gets
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(ports["metrics"]),
            "HOME": str(data_dir),
        }

    def configure(
        self, data_dir: Path, ports: Mapping[str, int], settings: Mapping[str, Any], host: str, local: Path | None
    ) -> None:
        storage, logs, configs = _folders(data_dir)
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
        merge(config, settings)
        (configs / "embedded-milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        _write_etcd(configs, storage, logs, host, ports)

    def _library(self) -> Path:
        return self.package / "bin" / "embd-milvus.so"


def program_of(artifact_dir: Path, facts: Facts) -> Program:
    """What a version runs, of the artifact in this folder."""
    if facts.early:
        (package,) = artifact_dir.glob("milvus-*.data/purelib/milvus")
        return _Library(package)
    return _Binary(artifact_dir / "milvus" / "data")


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
    paths = {
        "etcd_log_path": logs / "etcd.log",
        "system_log_path": logs,
        "etcd_data_dir": storage / "etcd.data",
        "local_storage_dir": local or storage,
        "rocksmq_data_dir": storage / "rocksmq",
        "rocketmq_data_dir": storage / "rocksmq",  # what the template of 2.2 calls it
    }
    config = render(template, {**ports, **paths})
    config["etcd"]["config"] = {"path": str(configs / "etcd.yaml")}
    config["etcd"]["endpoints"] = f"{host}:{ports['etcd_port']}"
    # Components register under this address; otherwise under the first of the machine's, which may change.
    for section in config.values():
        if isinstance(section, dict) and "ip" in section and "port" in section:
            section["ip"] = host
    config["log"]["level"] = "warn"
    merge(config, {dotted: value for dotted, value in settings.items() if dotted != MMAP})
    if MMAP in settings and local is not None:
        (local / MMAP_FOLDER).mkdir(exist_ok=True)
        config["queryNode"]["mmapDirPath"] = str(local / MMAP_FOLDER)  # the template doesn't know it
    (configs / "milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    _write_etcd(configs, storage, logs, host, ports)


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
