"""Start an Elasticsearch in a container, or find one that somebody else runs; ask it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from anncestry.engines.base import Spec
from anncestry.engines.elasticsearch import PROGRAM, wire
from anncestry.engines.lucene import LuceneServer
from anncestry.engines.native import start_alone, take_remote
from anncestry.errors import ServerError, UserError
from anncestry.runtimes import remote
from anncestry.runtimes.native import clean_environment

STORE = "data"
"""Its folder, in a data folder."""
_TERM_WAIT_S = 60.0


class ElasticsearchServer(LuceneServer):
    """A node or a cluster, at one endpoint."""

    name = "elasticsearch"

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        handle.secure(addresses, {"http": ("http/1.1",)})

    def found_mark(self) -> str | None:
        _, status, refusal = self.ask("GET", f"/{self.collection}")
        if status == 404:
            return None
        if refusal is not None:
            raise ServerError(f"elasticsearch: {refusal}")
        return str((self.mappings().get("_meta") or {}).get(wire.MARKED, ""))

    def remove(self) -> None:
        self.of_index("DELETE", "")

    def first_search(self) -> bytes:
        dimensions = self.field["dims"]
        return wire.search(np.full(dimensions, dimensions**-0.5, np.float32), 1, 1, None)

    def check_members(self) -> None:
        """ServerError where a copy of a shard is missing."""
        self.check_alive()
        self.check_copies()


def settings(folder: Path, listen: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Of a node alone: where it listens and writes, and no security, as nobody but the clients reaches it."""
    return {
        "discovery.type": "single-node",
        "path.data": str(folder / STORE),
        "path.logs": str(folder / "logs"),
        "network.host": listen,
        "http.port": str(ports["http"]),
        "transport.port": str(ports["transport"]),
        "xpack.security.enabled": "false",
        "xpack.ml.enabled": "false",
        "ingest.geoip.downloader.enabled": "false",
    }


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> ElasticsearchServer:
    """Start it on `data_dir`, or take over the one that the topology names; returns when it answers."""
    server_of = partial(ElasticsearchServer, topology=topology)
    if topology["runtime"] == "remote":
        return take_remote(server_of, "elasticsearch (remote)", data_dir, topology, ("http",), "apikey")
    if topology["runtime"] == "docker" and os.getuid() == 0:
        raise UserError(
            "elasticsearch refuses to run as root, and its container runs as you do: be a user who may use the engine"
        )
    folder = data_dir.resolve()

    def told(listen: str, ports: Mapping[str, int]) -> tuple[list[str], dict[str, str]]:
        for name in (STORE, "logs"):
            (folder / name).mkdir(exist_ok=True)
        return [f"-E{name}={value}" for name, value in settings(folder, listen, ports).items()], clean_environment()

    def answers(server: ElasticsearchServer) -> bool | None:
        return server.call("GET", "/_cluster/health?timeout=1s")["status"] == "green" or None

    title, program = f"elasticsearch {system['version']}", artifact_dir.resolve() / PROGRAM
    ports = ("http", "transport")
    return start_alone(title, program, told, folder, topology, server_of, answers, ports, first_port, _TERM_WAIT_S)
