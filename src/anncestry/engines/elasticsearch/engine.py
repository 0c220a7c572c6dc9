"""Elasticsearch at run time: loaded, asked, read back; `serve` starts or finds it, `wire` makes bytes of its requests.

Written to its public REST interface. No package registry has its server: it was only run against a stand-in here
(tests/elasticsearch_standin.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Component, Probe, Spec, Vectors, components, listed
from anncestry.engines.elasticsearch import METRICS, serve, wire
from anncestry.engines.elasticsearch.serve import STORE, ElasticsearchServer
from anncestry.engines.lucene import LuceneEngine

_PARAMETERS = {"M": "m", "ef_construction": "ef_construction"}
"""Our name of a parameter → Elasticsearch's."""


class Elasticsearch(LuceneEngine[ElasticsearchServer]):
    start = staticmethod(serve.start)

    def create(self, server: ElasticsearchServer, vectors: Vectors, index: Spec, payload: Mapping[str, str]) -> None:
        server.make_room()
        copies = (server.topology["shards"], server.topology["replicas"])
        similarity = METRICS[vectors.metric]
        body = wire.definition(vectors.base.shape[1], index, similarity, payload, copies, server.mark or "")
        server.of_index("PUT", "", body)

    def probe(self, server: ElasticsearchServer) -> Probe:
        version, field = server.call("GET", "/")["version"], server.field
        rows, (shards, replicas) = self.count(server, None), server.copies()
        options = field["index_options"]
        settings = {
            "index_type": options["type"],
            "similarity": field["similarity"],
            **{ours: options[theirs] for ours, theirs in _PARAMETERS.items()},
            "lucene": version["lucene_version"],
        }
        whole, detail = self.covered(server, rows, shards)
        nodes = int(server.call("GET", f"/_cluster/health/{server.collection}?timeout=1s")["number_of_data_nodes"])
        return Probe(version["number"], rows, whole, detail, settings, nodes, shards, replicas)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        # num_candidates travels in each request.
        return {"index_type": "hnsw", "similarity": METRICS[metric], **{name: index[name] for name in _PARAMETERS}}

    def data_components(self, data_dir: Path) -> list[Component]:
        # A segment holds its rows and its graph.
        parts = [
            ("index", True, [f"{STORE}/indices/*/*/index"]),
            ("logs", False, [f"{STORE}/indices/*/*/translog", "logs"]),
        ]
        return components(data_dir, parts) if (data_dir / STORE).exists() else []

    def encode(
        self, server: ElasticsearchServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        if server.exact and filter is not None:
            return [wire.scan(query, k, filter, server.field["similarity"]) for query in queries]
        return [wire.search(query, k, ef_search, filter) for query in queries]

    decode = staticmethod(wire.decode)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        return {
            "query protocol": "HTTP/1.1 and JSON, vectors as decimals; ids and scores are fetched",
            "insert protocol": "HTTP/1.1 and JSON (_bulk), vectors as decimals; one connection a batch",
            "HNSW": f"m={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}, by Lucene; "
            "of vectors, not of codes (index_options.type=hnsw, read back)",
            "ef applies to": "each shard's one segment, into which all are merged after the load; num_candidates",
            "filters": "the rows that pass are found first; Lucene walks the graph among them, or compares them all "
            "where that is less work",
            "consistency": "a row is found after a refresh, each second",
            "durability": "a batch is acknowledged after the log of rows was synced (translog.durability=request)",
            "set by the system": listed(system.get("settings")),
            "set by anncestry": "shards and replicas as the topology says; similarity, m, ef_construction, "
            "num_candidates; a merge into one segment a shard",
            "left at defaults": "all that its operator chose: heap, refresh_interval, merge policy, caches",
        }


ENGINE = Elasticsearch()
