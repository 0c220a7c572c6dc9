"""Chroma at run time: loaded, asked and read back; `serve` starts it, `wire` makes bytes of rows and searches."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import (
    Answer,
    Batch,
    Component,
    DecodeError,
    EngineOf,
    Kill,
    LoadResult,
    Probe,
    Spec,
    Vectors,
    batch_rows,
    components,
    listed,
)
from anncestry.engines.chroma import METRICS, serve, wire
from anncestry.engines.chroma.serve import HEADERS, STORE, ChromaServer
from anncestry.errors import ServerError, UserError
from anncestry.progress import Progress

_OPTIONS = {"M": "max_neighbors", "ef_construction": "ef_construction"}
"""Our name of a parameter → Chroma's."""
_PAGE_ROWS = 100_000
"""Rows whose ids an answer brings at once."""


class Chroma(EngineOf[ChromaServer]):
    narrows = True
    scans = False

    start = staticmethod(serve.start)

    def load(self, server: ChromaServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the collection, insert in batches, which it puts into its graph at once, search."""
        result = LoadResult(durability="no call has it write its graph: it does so after every sync_threshold rows")
        most = server.call("GET", "/api/v2/pre-flight-checks")["max_batch_size"]
        if (asked := batch_rows(vectors, load)) > most:
            raise UserError(f"load.batch_rows: {asked}: chroma takes at most {most} rows an insertion")
        built = {theirs: index[ours] for ours, theirs in _OPTIONS.items()}
        server.create({"space": METRICS[vectors.metric], **built, **server.settings})
        kill = Kill(server, load, len(vectors.base), result)
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, body in requests:
                why = kill.send(partial(server.add, body), lambda refusal: refusal)
                result.acknowledge(len(ids), len(ids) if why else 0, why)
                progress.at(result.rows_sent)
                kill.when_due()
        with result.phase("index"):
            server.search_once()
        with result.phase("ready"):
            server.search_once()
        return result

    def encode_insert(self, server: ChromaServer, rows: Batch) -> bytes:
        return wire.insertion(rows)

    def await_open(self, server: ChromaServer, index: Spec) -> None:
        server.search_once()

    def probe(self, server: ChromaServer) -> Probe:
        told = server.describe()["configuration_json"]["hnsw"]
        rows, stored = self.count(server, None), server.stored_rows()
        settings = {
            "index_type": "hnsw",
            **{ours: told[theirs] for ours, theirs in _OPTIONS.items()},
            **{name: told[name] for name in ("ef_search", "space", "sync_threshold", "resize_factor")},
        }
        # No call tells what the graph in memory holds. It is stored whenever sync_threshold rows came since.
        detail = f"{stored} of {rows} rows in the stored graph, the rest in the log"
        return Probe(server.version, rows, rows - stored <= told["sync_threshold"], detail, settings, 1, 1, 1)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        asked = {"index_type": "hnsw", "space": METRICS[metric], **{name: index[name] for name in _OPTIONS}}
        asked |= system.get("settings") or {}
        return asked if ef_search is None else {**asked, "ef_search": ef_search}

    def data_components(self, data_dir: Path) -> list[Component]:
        parts = [
            ("rows", True, [f"{STORE}/chroma.sqlite3*"]),
            ("index", True, [f"{STORE}/*-*-*-*-*"]),
            ("logs", False, ["logs"]),
        ]
        return components(data_dir, parts)

    def apply(self, server: ChromaServer, ef_search: int) -> None:
        """A change is accepted and read back, but searches use it only once the graph is read from its files again.

        So the server is ended and started again: by SIGKILL, at which it loses no more than at SIGTERM (nothing: what
        its files lack it takes from its log, either way).
        """
        if server.ef_search == ef_search:
            return
        body = {"new_configuration": {"hnsw": {"ef_search": ef_search}}}
        server.call("PUT", server.path, json.dumps(body).encode())
        server.crash()
        server.search_once()
        told = server.describe()["configuration_json"]["hnsw"]["ef_search"]
        if told != ef_search:
            raise ServerError(f"chroma: ef_search is {told} after it was set to {ef_search}")
        server.ef_search = ef_search

    def count(self, server: ChromaServer, filter: Spec | None) -> int:
        if filter is None:
            return int(server.call("GET", f"{server.path}/count"))
        found = 0
        while True:  # by pages: it sends the ids, and an answer may have 64 MiB
            body = {"where": wire.where(filter), "include": [], "limit": _PAGE_ROWS, "offset": found}
            page = len(server.call("POST", f"{server.path}/get", json.dumps(body).encode())["ids"])
            found += page
            if page < _PAGE_ROWS:
                return found

    def encode(
        self, server: ChromaServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        return [wire.search(query[None], k, filter) for query in queries]

    def transport(self, server: ChromaServer) -> dict[str, Any]:
        path = f"{server.path}/query"
        return {"kind": "http", "target": server.endpoint, "method": "POST", "path": path, "headers": HEADERS}

    def decode(self, response: bytes, metric: str) -> Answer:
        found = wire.answers(response)
        if len(found) != 1:
            raise DecodeError(f"a reply of Chroma for {len(found)} vectors, not one")
        return found[0]

    def encode_batches(
        self, server: ChromaServer, batches: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        return [wire.search(queries, k, filter) for queries in batches]

    def decode_batch(self, response: bytes, metric: str) -> list[Answer]:
        return wire.answers(response)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        return {
            "query protocol": "HTTP/1.1 and JSON, vectors as decimals; ids and distances are fetched",
            "insert protocol": "HTTP/1.1 and JSON, vectors as base64 of float32; one connection a batch",
            "HNSW": f"max_neighbors={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}",
            "ef applies to": "the one graph; a setting of the collection, used after a restart of the server: it is "
            "restarted, and searched once, whenever a run asks for another",
            "filters": "the ids that pass are read from SQLite and handed to the search of the graph, which goes on "
            "until it has k of them; no exact search",
            "consistency": "one server: a row is found as soon as it is acknowledged",
            "durability": "a batch is acknowledged after SQLite has synced it; the graph is written every "
            "sync_threshold rows, unsynced, and made up for from SQLite's log of rows",
            "set by the system": listed(system.get("settings")),
            "set by anncestry": "space, max_neighbors, ef_construction, ef_search; path, port, loopback",
            "left at defaults": "sync_threshold=1000, unless the system sets it; resize_factor, batch_size, "
            "num_threads (the number of cores)",
        }


ENGINE = Chroma()
