"""Start, ask and restart a Chroma server: its wheel holds it as a Python extension, which needs no other package."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import redact, web
from anncestry.engines.base import Server, Spec
from anncestry.engines.chroma import wire
from anncestry.engines.native import HOST, start_native
from anncestry.errors import ServerError
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment

HEADERS = {"Content-Type": "application/json"}
STORE = "chroma"
"""Its folder, in a data folder."""
_COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"
_BINDINGS = "chromadb_rust_bindings"
_PROGRAM = (
    f"import sys; sys.path.insert(0, sys.argv[1]); import {_BINDINGS}; {_BINDINGS}.cli(['chroma', *sys.argv[2:]])"
)
_CALL_S = 300.0
_TERM_WAIT_S = 30.0
_ELEMENTS = struct.Struct("<iQQQ")
"""The beginning of a stored graph's header: version, offset, room for elements, elements."""


class ChromaServer(Server):
    """One Chroma with one collection. `ef_search` is the effort that its searches use; None: not known."""

    collection = "anncestry"
    interface = "http"

    def __init__(self, group: Group, topology: Spec, system: Spec, version: str, store: Path) -> None:
        super().__init__(group, topology)
        self.settings: Mapping[str, Any] = system.get("settings") or {}
        self.version, self.store = version, store
        self.ef_search: int | None = None

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[bytes, str | None]:
        """What a call answers, and why it was refused; ServerError if nothing answers."""
        try:
            status, reply = web.call(self.endpoint, method, path, _CALL_S, body, HEADERS)
        except OSError as error:
            self.check_alive()
            raise ServerError(f"chroma: {method} {path}: {error}") from None
        said = f"HTTP {status}: {redact.short(reply.decode(errors='replace'))}"
        return reply, said if status >= 400 else None

    def call(self, method: str, path: str, body: bytes | None = None) -> Any:
        """What a call answers; ServerError with Chroma's reason if it fails."""
        reply, refusal = self.ask(method, path, body)
        if refusal is not None:
            raise ServerError(f"chroma: {refusal}")
        return json.loads(reply)

    def add(self, body: bytes) -> str | None:
        """Insert rows; returns why they were refused, all of them. (Those whose ids exist are ignored in silence.)"""
        return self.ask("POST", f"{self.path}/add", body)[1]

    def create(self, configuration: Spec) -> None:
        body = {"name": self.collection, "configuration": {"hnsw": dict(configuration)}}
        self.call("POST", _COLLECTIONS, json.dumps(body).encode())

    def describe(self) -> dict[str, Any]:
        """The collection as the server describes it."""
        described: dict[str, Any] = self.call("GET", f"{_COLLECTIONS}/{self.collection}")
        return described

    @cached_property
    def path(self) -> str:
        """Of the collection, which goes by an id that the server gave it."""
        return f"{_COLLECTIONS}/{self.describe()['id']}"

    def search_once(self) -> None:
        """A first search puts into the graph what only the log holds."""
        query = np.ones((1, int(self.describe()["dimension"])), np.float32)
        (found,) = self.call("POST", f"{self.path}/query", wire.search(query, 1, None))["ids"]
        if not found:
            raise ServerError("chroma: a search finds nothing")

    def stored_rows(self) -> int:
        """Rows in the stored graph, also those that were deleted since; 0 before it was stored a first time."""
        headers = list(self.store.glob("*/header.bin"))
        return sum(int(_ELEMENTS.unpack_from(header.read_bytes())[3]) for header in headers)


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> ChromaServer:
    """Start it, on loopback; returns when it answers."""
    artifact, folder = artifact_dir.resolve(), data_dir.resolve()
    store = folder / STORE
    store.mkdir(parents=True, exist_ok=True)
    # Every server calls itself 1.0.0: only its package knows.
    (package,) = artifact.glob("chromadb-*.dist-info")
    version = package.name.removeprefix("chromadb-").removesuffix(".dist-info")

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> ChromaServer:
        port = ports["http"]
        argv: list[str | Path] = [sys.executable, "-I", "-c", _PROGRAM, artifact / _BINDINGS]
        argv += ["run", "--path", store, "--host", HOST, "--port", str(port)]
        title, log, limits = f"chroma {system['version']}", folder / "logs" / "chroma.log", Limits.of(topology)
        handle = runner.start("chroma", title, argv, clean_environment(), folder, log, limits, [port])
        group.add(Member("chroma", "node", handle, {"http": f"{HOST}:{port}"}, _TERM_WAIT_S))
        return ChromaServer(group, topology, system, version, store)

    def answers(server: ChromaServer) -> bool:
        return bool(server.call("GET", "/api/v2/heartbeat"))

    return start_native("chroma", launch, answers, ("http",), first_port)
