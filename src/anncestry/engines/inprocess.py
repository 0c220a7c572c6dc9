"""Libraries as engines: no server, no wire. Each client of the driver is a process that holds and searches the index.

The index is built by a process of its own (`library_host`), which writes it to the data folder; clients load it from
there. What they run is the artifact's, whose folder goes first on their path.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anncestry.drive.transports import unpack
from anncestry.engines import library_host
from anncestry.engines.base import (
    Answer,
    Batch,
    Component,
    DecodeError,
    EngineOf,
    LoadResult,
    Probe,
    Server,
    Spec,
    Vectors,
    components,
    listed,
)
from anncestry.engines.conditions import Comparison, compose
from anncestry.engines.native import HOST, start_native
from anncestry.engines.offers import Freeze, Offers
from anncestry.errors import ServerError, Unsupported
from anncestry.runtimes.base import LIBRARY, Group, Limits, Member
from anncestry.runtimes.native import clean_environment
from anncestry.runtimes.storage import FOLDER, data_folder
from anncestry.web import host_and_port

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from anncestry.progress import Progress
    from anncestry.runtimes.base import Runner

_HOST = Path(library_host.__file__)
_SEED = 100
"""Of an index' own random numbers; the order of threads makes builds differ all the same."""
SETTINGS = {"build_threads": (1, 1024)}
"""Settings that every library has: least and most."""


class LibraryServer(Server):
    """The process that builds the index, and the place where the clients find it: queries don't go to the former."""

    interface = "control"

    def __init__(self, group: Group, topology: Spec, data_dir: Path, artifact_dir: Path, secret: bytes) -> None:
        super().__init__(group, topology)
        self.data_dir, self.artifact_dir = data_dir, artifact_dir
        self._secret = secret
        self._connection: Connection | None = None
        self.settings: Spec = {}
        self.exact = False
        """Searches under a filter look at every vector that passes."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Have that process do something; ServerError with its reason if it can't, or is gone."""
        return self.send(name, pickle.dumps((name, arguments)))

    def send(self, name: str, message: bytes) -> Any:
        """The same, of a call that is encoded already."""
        try:
            if self._connection is None:
                self._connection = Client(host_and_port(self.endpoint), authkey=self._secret)
            self._connection.send_bytes(message)
            done, answer = self._connection.recv()
        except (OSError, EOFError) as error:
            self._connection = None
            self.check_alive()
            raise ServerError(f"{name}: no answer ({type(error).__name__}: {error})") from None
        if not done:
            raise ServerError(f"{name}: {answer}")
        return answer

    def stop(self) -> Any:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return super().stop()


_NO_SERVER = Freeze(no="is a library in its clients' own processes: there is no server to freeze")


@dataclass(frozen=True, kw_only=True)
class LibraryOffers(Offers):
    """What a library can't do, beside: limits, cold starts, and filters where it stores no metadata."""

    filters: Sequence[str] = ()
    """Fields of a filter."""

    settings: Mapping[str, tuple[int, int]] = field(default_factory=lambda: SETTINGS)
    runtimes: Sequence[str] = ("native",)
    topology: Sequence[str] = ("storage", "storage_limits")
    in_process: bool = True
    single: str | None = "a library, in one process"
    no_fault: str | None = "is a library: there is no server that could have one"
    freeze: Freeze = _NO_SERVER

    def check_topology(self, system: Spec, topology: Spec) -> None:
        super().check_topology(system, topology)
        if topology.get("limits"):
            raise Unsupported(f"topology: limits: {self.name} is a library, in its clients' processes: it has none")

    def check_workload(self, system: Spec, topology: Spec, index: Spec, workload: Spec) -> None:
        super().check_workload(system, topology, index, workload)
        field = (workload.get("filter") or {}).get("field")
        if field is not None and not self.filters:
            raise Unsupported(f"filter: {self.name} is asked without filters only: it stores no metadata")
        if field is not None and field not in self.filters:
            raise Unsupported(
                f"filter.field: {field} is unsupported by {self.name}; supported: {', '.join(self.filters)}"
            )
        if workload.get("start") == "cold":
            raise Unsupported(f"start: cold: clients of {self.name} load the index before the clock starts")


def _comparisons(filter: Spec) -> list[list[Any]]:
    """[column, operator, value] each, as `library_host` reads them; all of them hold."""

    def one(term: Comparison) -> list[list[Any]]:
        value = list(term.value) if isinstance(term.value, tuple) else term.value
        return [[term.column, term.operator, value]]

    def every(parts: list[list[list[Any]]]) -> list[list[Any]]:
        return [term for part in parts for term in part]

    return compose(filter, one, every, every)  # only conditions on payload, which are refused, hold alternatives


@dataclass(frozen=True)
class Library(EngineOf[LibraryServer]):
    """The engine of one library; `adapter` is the file that calls it.

    `stored` are glob patterns of what it leaves in its folder, `statements` what a reader must know of it alone.
    """

    name: str
    adapter: Path
    stored: Sequence[str]
    statements: Callable[[Spec], Mapping[str, str]]
    built_with: Sequence[str] = ("M", "ef_construction")
    narrows: ClassVar[bool] = True

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        built = {name: index[name] for name in self.built_with if name in index and index["type"] != "flat"}
        return {"index_type": index["type"], "metric": metric, **built, **(system.get("settings") or {})}

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
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
            "durability": "none while it is built: written once, and synced after the load",
            "set by the system": listed(settings),
            "set by anncestry": "one thread a search"
            + ("" if "build_threads" in settings else "; as many threads to build as there are cores"),
            **self.statements(index),
        }

    def data_components(self, data_dir: Path) -> list[Component]:

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
            group.add(Member("library", LIBRARY, handle, {"control": f"{HOST}:{port}"}, term_wait_s=10))
            return LibraryServer(group, topology, folder, artifact_dir, secret)

        server = start_native(self.name, launch, lambda server: bool(server.call("version")), ("control",), first_port)
        server.settings = dict(system.get("settings") or {})
        return server

    def load(self, server: LibraryServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        result = LoadResult()
        rows, dim = vectors.base.shape
        server.call(
            "create",
            {
                "metric": vectors.metric,
                "rows": rows,
                "dim": dim,
                "index": dict(index),
                "settings": dict(server.settings),
                "threads": server.settings.get("build_threads") or len(os.sched_getaffinity(0)),
                "seed": _SEED,
            },
        )
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, request in requests:
                try:
                    server.send("add", request)
                    result.acknowledge(len(ids), 0, None)
                except ServerError as error:
                    server.check_alive()
                    result.acknowledge(len(ids), len(ids), str(error.args[0]))
                progress.at(result.rows_sent)
        with result.phase("index"):
            server.call("finish")
        with result.phase("ready"):
            server.call("try_it")
        server.call("sync")
        result.durable("the files that the library wrote are synced by the process that built them")
        return result

    def encode_insert(self, server: LibraryServer, rows: Batch) -> bytes:
        metadata = {name: np.ascontiguousarray(getattr(rows, name)) for name in library_host.COLUMNS}
        columns = {name: (values.dtype.str, values.tobytes()) for name, values in metadata.items()}
        return pickle.dumps(("add", (np.ascontiguousarray(rows.base, "<f4").tobytes(), columns)))

    def open(self, server: LibraryServer, index: Spec) -> float:
        """Load the stored index once, search it, and let it go; returns the seconds that this took."""
        return float(server.call("try_it"))

    def probe(self, server: LibraryServer) -> Probe:
        said = server.call("describe")
        rows = int(said["rows"])
        indexed = int(said.get("indexed", rows))
        detail = f"{indexed} rows in the stored index"
        return Probe(server.call("version"), rows, indexed == rows, detail, said["settings"], 1, 1, 1)

    def encode(
        self, server: LibraryServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        wanted = b"" if filter is None else json.dumps({"all": _comparisons(filter), "exact": server.exact}).encode()
        wanted += b" " * (-len(wanted) % 4)
        head = library_host.HEAD.pack(k, ef_search, len(wanted)) + wanted
        return [head + row.tobytes() for row in queries.astype("<f4", copy=False)]

    def transport(self, server: LibraryServer) -> dict[str, Any]:
        return {
            "kind": "inprocess",
            "module": str(_HOST),
            "target": str(server.data_dir),
            "paths": [str(server.artifact_dir)],
            "options": {"adapter": str(self.adapter)},
        }

    def count(self, server: LibraryServer, filter: Spec | None) -> int:
        if filter is None:
            return int(server.call("describe")["rows"])
        return int(server.call("count", _comparisons(filter)))

    def exact_filters(self, server: LibraryServer, on: bool) -> None:
        server.exact = on

    def decode(self, response: bytes, metric: str) -> Answer:
        try:
            ids, distances = unpack(response)
        except Exception as error:
            raise DecodeError(f"not what a library's client leaves: {error}") from None
        return ids.astype(np.int64), distances.astype(np.float64)
