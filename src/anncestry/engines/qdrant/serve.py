"""Start a Qdrant in a container, or find one that somebody else runs; ask it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.engines.base import Server, Spec
from anncestry.engines.native import start_alone, take_remote
from anncestry.engines.qdrant import PROGRAM, wire
from anncestry.engines.qdrant.rpc import COLLECTION, COMPLETED, GREEN, Rpc, message
from anncestry.errors import ServerError
from anncestry.runtimes import remote
from anncestry.runtimes.base import Ending, Group
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import clean_environment

STORE = "storage"
"""Its folder, in a data folder."""
_INSERT_S = 600.0
_TERM_WAIT_S = 60.0


class QdrantServer(Server):
    """A node or a cluster, at one endpoint. With `exact`, searches under a filter compare all rows that pass it."""

    collection = COLLECTION
    interface = "grpc"

    def __init__(self, group: Group, topology: Spec, settings: Spec) -> None:
        super().__init__(group, topology)
        self.settings, self.exact = settings, False
        self._rpc: Rpc | None = None

    @property
    def rpc(self) -> Rpc:
        """Made when it is first needed: a channel is opened only once its TLS was looked at."""
        if self._rpc is None:
            self._rpc = Rpc(self.endpoint, authorization(self.credentials), self.tls)
        return self._rpc

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        handle.secure(addresses, {"grpc": ("h2",)})

    def change(self, method: str, request: Any) -> None:
        """A change of a collection; ServerError if none was made."""
        if not self.rpc.call(method, request).result:
            raise ServerError(f"qdrant: {method}: nothing was changed")

    def insert(self, method: str, request: Any) -> str | None:
        """A change of points: why it is not applied, None if it is."""
        status = self.rpc.call(method, request, _INSERT_S).result.status
        return None if status == COMPLETED else f"status {status}, not {COMPLETED} (completed)"

    def version(self) -> str:
        return str(self.rpc.call("Qdrant/HealthCheck", message["HealthCheckRequest"]()).version)

    def info(self) -> Any:
        request = message["GetCollectionInfoRequest"](collection_name=COLLECTION)
        return self.rpc.call("Collections/Get", request).result

    def found_mark(self) -> str | None:
        """The mark is an alias of the collection."""
        listed = self.rpc.call("Collections/List", message["ListCollectionsRequest"]()).collections
        if COLLECTION not in {one.name for one in listed}:
            return None
        request = message["ListCollectionAliasesRequest"](collection_name=COLLECTION)
        aliases = [one.alias_name for one in self.rpc.call("Collections/ListCollectionAliases", request).aliases]
        return next((alias for alias in aliases if alias.startswith(remote.MARK)), "")

    def remove(self) -> None:
        self.change("Collections/Delete", message["DeleteCollection"](collection_name=COLLECTION))

    def covered(self) -> tuple[bool, str]:
        """Whether the graph holds all rows, and what there is."""
        info = self.info()
        indexed, rows = info.indexed_vectors_count, info.points_count
        detail = f"{indexed} of {rows} vectors indexed, {info.segments_count} segments, status {info.status}"
        if not info.optimizer_status.ok:
            detail += f", optimizer: {info.optimizer_status.error}"
        return info.status == GREEN and indexed >= rows and info.optimizer_status.ok, detail

    def search_once(self) -> None:
        dimensions = self.info().config.params.vectors_config.params.size
        query = np.full(dimensions, dimensions**-0.5, np.float32)
        if not self.rpc.call("Points/Search", wire.search(query, 1, 16, None, False)).result:
            raise ServerError("qdrant: a search finds nothing")

    def check_members(self) -> None:
        self.check_alive()
        self.info()

    def stop(self) -> Ending:
        if self._rpc is not None:
            self._rpc.close()
            self._rpc = None
        return super().stop()


def environment(folder: Path, listen: str, ports: Mapping[str, int]) -> dict[str, str]:
    """The variables that configure a node: they go before each file of the image's own."""
    return clean_environment(
        {
            "QDRANT__STORAGE__STORAGE_PATH": str(folder / STORE),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(folder / "snapshots"),
            "QDRANT__SERVICE__HOST": listen,
            "QDRANT__SERVICE__HTTP_PORT": str(ports["http"]),
            "QDRANT__SERVICE__GRPC_PORT": str(ports["grpc"]),
            "QDRANT__TELEMETRY_DISABLED": "true",
        }
    )


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> QdrantServer:
    """Start it on `data_dir`, or take over the one that the topology names; returns when it answers."""
    server_of = partial(QdrantServer, topology=topology, settings=system.get("settings") or {})
    if topology["runtime"] == "remote":
        return take_remote(server_of, "qdrant (remote)", data_dir, topology, ("grpc",), "bearer")
    folder = data_dir.resolve()

    def told(listen: str, ports: Mapping[str, int]) -> tuple[list[str], dict[str, str]]:
        return [], environment(folder, listen, ports)

    def answers(server: QdrantServer) -> bool:
        return bool(server.version())

    title, program, ports = f"qdrant {system['version']}", artifact_dir.resolve() / PROGRAM, ("http", "grpc")
    return start_alone(title, program, told, folder, topology, server_of, answers, ports, first_port, _TERM_WAIT_S)
