"""OpenSearch at run time: loaded, asked and read back; `serve` starts it, `wire` makes bytes of rows and searches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import (
    Batch,
    Component,
    EngineOf,
    Kill,
    LoadResult,
    Probe,
    Spec,
    Vectors,
    components,
    listed,
)
from anncestry.engines.opensearch import HEAP_MIB, METRICS, serve, wire
from anncestry.engines.opensearch.serve import CONFIG, HEADERS, STORE, OpenSearchServer
from anncestry.progress import Progress

_PARAMETERS = {"M": "m", "ef_construction": "ef_construction"}
"""Our name of a parameter → OpenSearch's."""
_VECTOR_INSTRUCTIONS = "PanamaVectorUtilSupport"
"""The class by which Lucene computes distances where it uses the processor's vector instructions."""


class OpenSearch(EngineOf[OpenSearchServer]):
    narrows = True

    start = staticmethod(serve.start)

    def load(
        self, server: OpenSearchServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress
    ) -> LoadResult:
        """Create the index, insert in batches, merge its segments into one, search, have it committed."""
        result = LoadResult()
        payload = {column.stored_as: column.kind for column in vectors.payload.columns}
        server.of_index("PUT", "", wire.definition(vectors.base.shape[1], index, METRICS[vectors.metric], payload))
        kill = Kill(server, load, len(vectors.base), result)
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, body in requests:
                refused = kill.send(partial(server.insert, body), lambda answer: next(iter(answer), None))
                result.acknowledge(len(ids), len(refused), next(iter(refused), None))
                progress.at(result.rows_sent)
                kill.when_due()
        with result.phase("index"):
            # The merged segment is searched only after a refresh.
            for path in ("/_refresh", "/_forcemerge?max_num_segments=1", "/_refresh"):
                server.of_index("POST", path)
        with result.phase("ready"):
            server.search_once()
        server.of_index("POST", "/_flush?wait_if_ongoing=true")
        result.durable("_flush: Lucene has synced and committed its one segment, and the log of rows is cut off")
        return result

    def encode_insert(self, server: OpenSearchServer, rows: Batch) -> bytes:
        return wire.insertion(rows)

    def await_open(self, server: OpenSearchServer, index: Spec) -> None:
        server.await_open()

    def probe(self, server: OpenSearchServer) -> Probe:
        node, method, segments = server.node(), server.field["method"], server.segments()
        rows = self.count(server, None)
        (knn,) = (plugin["version"] for plugin in node["plugins"] if plugin["name"] == "opensearch-knn")
        told = server.of_index("GET", "/_settings")[server.collection]["settings"]["index"]
        settings = {
            "index_type": method["name"],
            "engine": method["engine"],
            "space_type": method["space_type"],
            **{ours: method["parameters"][theirs] for ours, theirs in _PARAMETERS.items()},
            "heap_mib": node["jvm"]["mem"]["heap_max_in_bytes"] >> 20,
            "lucene_vectors": node["attributes"]["lucene_vectors"],
            "knn_version": knn,
            "java": node["jvm"]["version"],
        }
        searched = sum(segment["num_docs"] for segment in segments)
        deleted = sum(segment["deleted_docs"] for segment in segments)
        detail = f"{searched} of {rows} rows and {deleted} deleted ones in {len(segments)} segments"
        whole = len(segments) == 1 and searched == rows
        shards, replicas = int(told["number_of_shards"]), 1 + int(told["number_of_replicas"])
        return Probe(node["version"], rows, whole, detail, settings, 1, shards, replicas)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        # ef travels in each request.
        return {
            "index_type": "hnsw",
            "engine": "lucene",
            "space_type": METRICS[metric],
            **{name: index[name] for name in _PARAMETERS},
            "heap_mib": (system.get("settings") or {}).get("heap_mib", HEAP_MIB),
            "lucene_vectors": _VECTOR_INSTRUCTIONS,
        }

    def data_components(self, data_dir: Path) -> list[Component]:
        shard = f"{STORE}/nodes/0/indices/*/*"
        parts = [
            ("vectors", True, [f"{shard}/index/*.vec"]),
            ("graph", True, [f"{shard}/index/*.vex"]),
            ("rows and metadata", True, [f"{shard}/index/_*.[!v]*", f"{shard}/index/*.vem*"]),
            ("log", False, [f"{shard}/translog"]),
            ("logs", False, ["logs"]),
            ("config", False, [CONFIG]),
        ]
        return components(data_dir, parts)

    def exact_filters(self, server: OpenSearchServer, on: bool) -> None:
        server.exact = on

    def count(self, server: OpenSearchServer, filter: Spec | None) -> int:
        body = None if filter is None else {"query": wire.condition(filter)}
        return int(server.of_index("POST", "/_count", body)["count"])

    def encode(
        self, server: OpenSearchServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        if server.exact and filter is not None:
            space = server.field["method"]["space_type"]
            return [wire.scan(query, k, filter, space) for query in queries]
        return [wire.search(query, k, ef_search, filter) for query in queries]

    def transport(self, server: OpenSearchServer) -> dict[str, Any]:
        path = f"/{server.collection}/_search"
        return {"kind": "http", "target": server.endpoint, "method": "POST", "path": path, "headers": HEADERS}

    decode = staticmethod(wire.decode)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        return {
            "query protocol": "HTTP/1.1 and JSON, vectors as decimals; ids and scores are fetched",
            "insert protocol": "HTTP/1.1 and JSON (_bulk), vectors as decimals; one connection a batch",
            "HNSW": f"m={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}, by Lucene",
            "ef applies to": "the one segment, into which all are merged after the load; ef_search of each request",
            "filters": "the rows that pass are found first; Lucene walks the graph among them, or compares them all "
            "where that is less work",
            "vector instructions": f"Java's module {serve.VECTOR_MODULE}; Lucene's use of it is read back",
            "consistency": "one node: a row is found after a refresh, each second",
            "durability": "a batch is acknowledged after the log of rows was synced (translog.durability=request)",
            "set by the system": listed(system.get("settings")),
            "set by anncestry": "one shard, no replica; space_type, m, ef_construction, ef_search; a merge into one "
            f"segment; heap {HEAP_MIB} MiB unless the system sets it, its own default; path, ports, loopback",
            "left at defaults": "refresh_interval=1s, translog, merge policy, thread pools, caches",
        }


ENGINE = OpenSearch()
