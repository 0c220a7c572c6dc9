"""Libraries as engines: no server, no wire. Each client of the driver is a process that holds and searches the index.

The index is built by a process of its own (`library_host`), which writes it to the data folder; clients load it from
there. What they run is the artifact's, whose folder goes first on their path.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anncestry.drive.transports import unpack
from anncestry.engines import library_host
from anncestry.engines.base import (
    Component,
    DecodeError,
    LoadResult,
    Probe,
    Server,
    Spec,
    Vectors,
    Version,
    check_newer,
    check_remote,
    check_search,
    check_topology,
    check_version,
    components,
    filter_bounds,
    refuse_unknown,
    whole_number,
)
from anncestry.engines.group import GroupServer
from anncestry.engines.native import HOST, start_native
from anncestry.errors import ConfigError, ServerError, Unsupported
from anncestry.runtimes.base import Group, Limits, Member
from anncestry.runtimes.native import clean_environment
from anncestry.runtimes.storage import FOLDER, data_folder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from anncestry.progress import Progress
    from anncestry.runtimes.base import Runner

_HOST = Path(library_host.__file__)
_SEED = 100
"""Of an index' own random numbers; the order of threads makes builds differ all the same."""
_LARGEST_K = 10_000


class LibraryServer(GroupServer):
    """The process that builds the index, and the place where the clients find it."""

    def __init__(self, group: Group, topology: Spec, data_dir: Path, artifact_dir: Path, secret: bytes) -> None:
        super().__init__(group, topology)
        self.data_dir, self.artifact_dir = data_dir, artifact_dir
        self._secret = secret
        self._connection: Connection | None = None
        self.settings: Spec = {}

    @property
    def endpoint(self) -> str:
        """Of the process that builds: queries don't go there."""
        return self.group["library"].addresses["control"]

    def call(self, name: str, *arguments: Any) -> Any:
        """Have that process do something; ServerError with its reason if it can't, or is gone."""
        try:
            if self._connection is None:
                host, _, port = self.endpoint.rpartition(":")
                self._connection = Client((host, int(port)), authkey=self._secret)
            self._connection.send((name, arguments))
            done, answer = self._connection.recv()
        except (OSError, EOFError) as error:
            self._connection = None
            self.check_alive()
            raise ServerError(f"{name}: no answer ({type(error).__name__}: {error})") from None
        if not done:
            raise ServerError(f"{name}: {answer}")
        return answer

    def stop(self) -> Any:
        """Stop it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return super().stop()


def as_library(server: Server) -> LibraryServer:
    """The server as what it must be."""
    if not isinstance(server, LibraryServer):
        raise TypeError(f"not a library: {server!r}")
    return server


@dataclass(frozen=True)
class Library:
    """An engine's functions for one library; `adapter` is the file that calls it, `index_of` checks an index spec.

    `stored` are glob patterns of what it leaves in its folder, `statements` what a reader must know of it alone.
    """

    name: str
    adapter: Path
    oldest: Version
    below: Version
    check_index: Callable[[Spec], None]
    stored: Sequence[str]
    statements: Callable[[Spec], Mapping[str, str]]
    built_with: Sequence[str] = ("M", "ef_construction")
    settings: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Settings that it has beside those of every library: name → least and most."""

    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
        """Unsupported for what a library can't do: cluster, container, limits, filter, fault."""
        check_version(self.name, system, self.oldest, self.below)
        check_topology(self.name, topology, 0, ("storage",), runtimes=("native",))
        check_remote(self.name, topology, ())
        for key in ("nodes", "shards", "replicas"):
            if topology[key] != 1:
                raise Unsupported(
                    f"topology: {self.name} is a library, in one process: {key} is 1, not {topology[key]}"
                )
        if topology.get("limits"):
            raise Unsupported(f"topology: limits: {self.name} is a library, in its clients' processes: it has none")
        self.check_index(index)
        settings = system.get("settings") or {}
        offered = {"build_threads": (1, 1024), **self.settings}
        refuse_unknown(f"settings of {self.name}", settings, tuple(offered))
        for name, value in settings.items():
            whole_number(f"settings.{name}", value, *offered[name])
        if workload is None:
            return
        check_search(self.name, workload, _LARGEST_K)
        if workload.get("filter") is not None:
            raise Unsupported(f"filter: {self.name} is asked without filters only: it stores no metadata")
        if workload.get("fault") is not None:
            raise Unsupported(f"fault: {self.name} is a library: there is no server that could have one")
        if workload.get("start") == "cold":
            raise Unsupported(f"start: cold: clients of {self.name} load the index before the clock starts")

    def limited(self, system: Spec, topology: Spec) -> int:
        """One process (which has no limits)."""
        return 1

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        """ConfigError unless this is a later version of the same library."""
        check_newer(self.name, system, older)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        """What the stored index must say."""
        built = {name: index[name] for name in self.built_with if name in index and index["type"] != "flat"}
        return {"index_type": index["type"], "metric": metric, **built, **(system.get("settings") or {})}

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        """How the library is treated."""
        settings = system.get("settings") or {}
        built = ", ".join(f"{name}={index[name]}" for name in self.built_with if name in index)
        return {
            "what it is": "a library, not a server: no wire, no concurrency across a network, no durability",
            "query protocol": "a call in the client's own process, one query a call, from Python; float32 as stored",
            "insert protocol": "batches over loopback to the process that builds",
            "index": f"{index['type']} {built}".strip(),
            "ef applies to": "the one index; travels in each request",
            "clients": "each a process with a copy of the index (spawned, no lock shared); their CPU and memory are "
            "what the tables call the server's",
            "filters": "none; the exact-search oracle scans the vectors that the index holds",
            "durability": "none: written once, when it is built",
            "set by the system": ", ".join(f"{name}={value}" for name, value in settings.items()) or "nothing",
            "set by anncestry": "one thread a search"
            + ("" if "build_threads" in settings else "; as many threads to build as there are cores"),
            **self.statements(index),
        }

    def data_components(self, data_dir: Path) -> list[Component]:
        """Index; the metadata that only the oracle reads; the rest."""

        def anywhere(names: Sequence[str]) -> list[str]:
            return [*names, *(f"{FOLDER}/{name}" for name in names)]

        return components(
            data_dir,
            [
                ("index", True, anywhere(self.stored)),
                ("metadata", False, anywhere([f"{name}.npy" for name in library_host.COLUMNS])),
                ("config", False, anywhere(["facts.json", "ports.json"])),
                ("logs", False, ["logs"]),
            ],
        )

    def start(
        self, artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
    ) -> LibraryServer:
        """Start the process that builds."""
        data_dir.mkdir(parents=True, exist_ok=True)
        folder = data_folder(data_dir, topology)
        secret = secrets.token_bytes(16)

        def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> LibraryServer:
            port = ports["control"]
            argv: list[str | Path] = [sys.executable, "-I", _HOST, str(port), self.adapter, folder, artifact_dir]
            environment = clean_environment({"ANNCESTRY_HOST_KEY": secret.hex(), "PYTHONDONTWRITEBYTECODE": "1"})
            log = data_dir / "logs" / f"{self.name}.log"
            title = f"{self.name} {system['version']}"
            handle = runner.start("library", title, argv, environment, data_dir, log, Limits(), [port])
            group.add(Member("library", "library", handle, {"control": f"{HOST}:{port}"}, term_wait_s=10))
            return LibraryServer(group, topology, folder, artifact_dir, secret)

        server = start_native(self.name, launch, lambda server: bool(server.call("version")), ("control",), first_port)
        server.settings = dict(system.get("settings") or {})
        return server

    def load(self, server: Server, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Insert in batches, finish and write the index, search it once."""
        host, result = as_library(server), LoadResult()
        rows, dim = vectors.base.shape
        host.call(
            "create",
            {
                "metric": vectors.metric,
                "rows": rows,
                "dim": dim,
                "index": dict(index),
                "settings": dict(host.settings),
                "threads": host.settings.get("build_threads") or len(os.sched_getaffinity(0)),
                "seed": _SEED,
            },
        )
        with result.phase("insert"):
            for first in range(0, rows, load["batch_rows"]):
                part = slice(first, first + load["batch_rows"])
                base = np.ascontiguousarray(vectors.base[part], "<f4")
                columns = {
                    name: (values.dtype.str, np.ascontiguousarray(values).tobytes())
                    for name in library_host.COLUMNS
                    for values in [getattr(vectors, name)[part]]
                }
                try:
                    host.call("add", base.tobytes(), columns)
                    result.acknowledge(len(base), 0, None)
                except ServerError as error:
                    host.check_alive()
                    result.acknowledge(len(base), len(base), str(error.args[0]))
                progress.at(result.rows_sent)
        with result.phase("index"):
            host.call("finish")
        with result.phase("ready"):
            host.call("try_it")
        return result

    def open(self, server: Server, index: Spec) -> float:
        """Load the stored index once, search it, and let it go; returns the seconds that this took."""
        return float(as_library(server).call("try_it"))

    def apply(self, server: Server, ef_search: int) -> None:
        """Nothing: ef travels in each request."""

    def exact_filters(self, server: Server, on: bool) -> None:
        """Nothing: with a filter, which only the oracle has, the answer is always an exact scan."""

    def probe(self, server: Server) -> Probe:
        """What the stored index says."""
        host = as_library(server)
        said = host.call("describe")
        rows = int(said["rows"])
        detail = f"{rows} rows in the stored index"
        settings = {**said["settings"], **host.settings}
        return Probe(host.call("version"), rows, True, detail, settings, 1, 1, 1)

    def encode(
        self, server: Server, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        """k, ef, a filter, the query."""
        wanted = b"" if filter is None else json.dumps(_bounds(filter)).encode()
        wanted += b" " * (-len(wanted) % 4)
        head = library_host.HEAD.pack(k, ef_search, len(wanted)) + wanted
        return [head + row.tobytes() for row in queries.astype("<f4", copy=False)]

    def transport(self, server: Server) -> dict[str, Any]:
        """In the driver's own processes."""
        host = as_library(server)
        return {
            "kind": "inprocess",
            "module": str(_HOST),
            "target": str(host.data_dir),
            "paths": [str(host.artifact_dir)],
            "options": {"adapter": str(self.adapter)},
        }

    def sdk_transport(self, server: Server, k: int, ef_search: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
        """Refused while parsing: every client asks through the library."""
        raise ConfigError(f"client: sdk: {self.name} has no other way than its library")

    def sdk_decode(self, response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """As `decode`."""
        return self.decode(response, metric)

    def count(self, server: Server, filter: Spec | None) -> int:
        """Rows that pass the filter."""
        host = as_library(server)
        return int(host.call("describe")["rows"] if filter is None else host.call("count", _bounds(filter)))

    def decode(self, response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids and distances, which adapters make canonical."""
        try:
            ids, distances = unpack(response)
        except Exception as error:
            raise DecodeError(f"not what a library's client leaves: {error}") from None
        return ids.astype(np.int64), distances.astype(np.float64)


def _bounds(filter: Spec) -> dict[str, Any]:
    bounds = filter_bounds(filter)
    values = None if bounds.values is None else list(bounds.values)
    return {"field": bounds.field, "values": values, "low": bounds.low, "high": bounds.high}
