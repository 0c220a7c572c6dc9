"""OpenSearch at run time: loaded, asked and read back; `serve` starts it, `wire` makes bytes of rows and searches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Component, Probe, Spec, Vectors, components, listed
from anncestry.engines.lucene import LuceneEngine
from anncestry.engines.opensearch import HEAP_MIB, METRICS, serve, wire
from anncestry.engines.opensearch.serve import CONFIG, STORE, OpenSearchServer

_PARAMETERS = {"M": "m", "ef_construction": "ef_construction"}
"""Our name of a parameter → OpenSearch's."""
_VECTOR_INSTRUCTIONS = "PanamaVectorUtilSupport"
"""The class by which Lucene computes distances where it uses the processor's vector instructions."""


def _heap_mib(arguments: Sequence[str]) -> int:
    """The largest heap that a Java runtime was started with; 0 where it wasn't told."""
    asked = [re.fullmatch(r"-Xmx(\d+)m", each) for each in arguments]
    return next((int(match[1]) for match in reversed(asked) if match), 0)


class OpenSearch(LuceneEngine[OpenSearchServer]):
    start = staticmethod(serve.start)

    def create(self, server: OpenSearchServer, vectors: Vectors, index: Spec, payload: Mapping[str, str]) -> None:
        copies = (server.topology["shards"], server.topology["replicas"])
        body = wire.definition(vectors.base.shape[1], index, METRICS[vectors.metric], payload, copies)
        server.of_index("PUT", "", body)

    def probe(self, server: OpenSearchServer) -> Probe:
        nodes, method = server.nodes(), server.field["method"]
        node = nodes[0]
        rows, (shards, replicas) = self.count(server, None), server.copies()
        (knn,) = (plugin["version"] for plugin in node["plugins"] if plugin["name"] == "opensearch-knn")
        settings = {
            "index_type": method["name"],
            "engine": method["engine"],
            "space_type": method["space_type"],
            **{ours: method["parameters"][theirs] for ours, theirs in _PARAMETERS.items()},
            # As asked; what the runtime tells of its own (heap_max) leaves parts out, as its collector likes.
            "heap_mib": _heap_mib(node["jvm"]["input_arguments"]),
            "collectors": ", ".join(node["jvm"]["gc_collectors"]),
            "lucene_vectors": " and ".join(sorted({each["attributes"]["lucene_vectors"] for each in nodes})),
            "knn_version": knn,
            "java": node["jvm"]["version"],
        }
        whole, detail = self.covered(server, rows, shards)
        seen = len(nodes) - len(server.missed())
        placement = tuple(server.placement())
        return Probe(node["version"], rows, whole, detail, settings, seen, shards, replicas, placement)

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
        alone: list[tuple[str, bool, list[str]]] = [
            ("vectors", True, [f"{shard}/index/*.vec"]),
            ("graph", True, [f"{shard}/index/*.vex"]),
            ("rows and metadata", True, [f"{shard}/index/_*.[!v]*", f"{shard}/index/*.vem*"]),
            ("log", False, [f"{shard}/translog"]),
            ("logs", False, ["logs"]),
            ("config", False, [CONFIG]),
        ]
        parts = [(name, net, [*paths, *(f"node*/{path}" for path in paths)]) for name, net, paths in alone]
        return components(data_dir, parts)

    def encode(
        self, server: OpenSearchServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        if server.exact and filter is not None:
            space = server.field["method"]["space_type"]
            return [wire.scan(query, k, filter, space) for query in queries]
        return [wire.search(query, k, ef_search, filter) for query in queries]

    decode = staticmethod(wire.decode)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        return {
            "query protocol": "HTTP/1.1 and JSON, vectors as decimals; ids and scores are fetched",
            "insert protocol": "HTTP/1.1 and JSON (_bulk), vectors as decimals; one connection a batch",
            "HNSW": f"m={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}, by Lucene",
            "ef applies to": "each shard's one segment, into which all are merged after the load; ef_search",
            "filters": "the rows that pass are found first; Lucene walks the graph among them, or compares them all "
            "where that is less work; in segments of 10,000 rows and more, which pass a filter that comes again and "
            "again is kept in a cache (indices.queries.cache, on by default)",
            "vector instructions": f"Java's module {serve.VECTOR_MODULE}; Lucene's use of it is read back",
            "consistency": "a row is found after a refresh, each second",
            "durability": "a batch is acknowledged after the log of rows was synced (translog.durability=request)",
            "set by the system": listed(system.get("settings")),
            "set by anncestry": "shards and replicas as the topology says; space_type, m, ef_construction, ef_search; "
            f"a merge into one segment a shard; heap {HEAP_MIB} MiB unless the system sets it, its own default; path, "
            "ports, loopback",
            "left at defaults": "refresh_interval=1s, translog, merge policy, thread pools, caches; of Java, all "
            "beside the heap: not the options that its distribution adds (the collector G1, the heap touched at the "
            "start, limits of memory outside of it)",
        }


ENGINE = OpenSearch()
