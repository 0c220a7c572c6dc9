"""Qdrant at run time: loaded, asked and read back; `serve` starts or finds it, `wire` makes bytes of rows and searches.

Written to its public gRPC interface. No package registry has its server: it was only run against a stand-in here
(tests/qdrant_standin.py). What Qdrant does in process is measured as `qdrant_edge`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import (
    Batch,
    Component,
    EngineOf,
    LoadResult,
    Probe,
    Spec,
    Vectors,
    components,
    listed,
    wait_for,
)
from anncestry.engines.qdrant import METRICS, serve, wire
from anncestry.engines.qdrant.rpc import COLLECTION, DOT, EUCLID, FIELD_TYPES, message
from anncestry.engines.qdrant.serve import STORE, QdrantServer
from anncestry.errors import ServerError
from anncestry.progress import Progress

_DISTANCES = {"Euclid": EUCLID, "Dot": DOT}
_COLUMNS = {"category": "int", "price": "float", "region": "int"}
_FULL_SCAN_KIB = 10_000
"""Qdrant's default: filters that pass rows of fewer KiB of vectors than this are scanned."""
_ONE_SEGMENT_KIB = 1 << 40
_INDEX_S = 24 * 3600.0


class Qdrant(EngineOf[QdrantServer]):
    narrows = True

    start = staticmethod(serve.start)

    def load(self, server: QdrantServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the collection and the indexes of its columns, insert in batches, then have the graph built."""
        result = LoadResult(durability="no call has it write its segments: it does so by itself, behind its log")
        server.make_room()
        self._create(server, vectors, index)
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, body in requests:
                why = server.insert("Points/Upsert", body)
                result.acknowledge(len(ids), len(ids) if why else 0, why)
                progress.at(result.rows_sent)
        with result.phase("index"):
            on = message["UpdateCollection"](collection_name=COLLECTION, optimizers_config={"indexing_threshold": 1})
            server.change("Collections/Update", on)
            wait_for("qdrant: the graph", lambda: server.covered()[0] or None, server, _INDEX_S, patient=True)
        with result.phase("ready"):
            server.search_once()
        return result

    def _create(self, server: QdrantServer, vectors: Vectors, index: Spec) -> None:
        graph = {
            "m": index["M"],
            "ef_construct": index["ef_construction"],
            "full_scan_threshold": server.settings.get("full_scan_threshold", _FULL_SCAN_KIB),
        }
        # Nothing is indexed while rows come: so its documentation says of large loads. One segment, as ef is of each.
        optimizers = {"default_segment_number": 1, "max_segment_size": _ONE_SEGMENT_KIB, "indexing_threshold": 0}
        params = {"size": vectors.base.shape[1], "distance": _DISTANCES[METRICS[vectors.metric]]}
        server.change(
            "Collections/Create",
            message["CreateCollection"](
                collection_name=COLLECTION,
                hnsw_config=graph,
                optimizers_config=optimizers,
                vectors_config={"params": params},
                shard_number=server.topology["shards"],
                replication_factor=server.topology["replicas"],
            ),
        )
        if server.mark is not None:
            alias = {"create_alias": {"collection_name": COLLECTION, "alias_name": server.mark}}
            server.change("Collections/UpdateAliases", message["ChangeAliases"](actions=[alias]))
        columns = {**_COLUMNS, **{column.stored_as: column.kind for column in vectors.payload.columns}}
        for name, kind in columns.items():
            request = message["CreateFieldIndexCollection"](
                collection_name=COLLECTION, wait=True, field_name=name, field_type=FIELD_TYPES[kind]
            )
            why = server.insert("Points/CreateFieldIndex", request)
            if why:
                raise ServerError(f"qdrant: the index of the column {name}: {why}")

    def encode_insert(self, server: QdrantServer, rows: Batch) -> bytes:
        return wire.insertion(rows)

    def await_open(self, server: QdrantServer, index: Spec) -> None:
        wait_for("qdrant: a green collection", lambda: server.covered()[0] or None, server, _INDEX_S, patient=True)
        server.search_once()

    def probe(self, server: QdrantServer) -> Probe:
        config, rows = server.info().config, self.count(server, None)
        distance = config.params.vectors_config.params.distance
        settings = {
            "index_type": "hnsw",
            "distance": next((name for name, number in _DISTANCES.items() if number == distance), str(distance)),
            "M": config.hnsw_config.m,
            "ef_construction": config.hnsw_config.ef_construct,
            "full_scan_threshold": config.hnsw_config.full_scan_threshold,
        }
        whole, detail = server.covered()
        shards, replicas = config.params.shard_number, config.params.replication_factor
        return Probe(server.version(), rows, whole, detail, settings, server.topology["nodes"], shards, replicas)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        # hnsw_ef travels in each request.
        scan = (system.get("settings") or {}).get("full_scan_threshold", _FULL_SCAN_KIB)
        asked = {"index_type": "hnsw", "distance": METRICS[metric], "full_scan_threshold": scan}
        return {**asked, "M": index["M"], "ef_construction": index["ef_construction"]}

    def data_components(self, data_dir: Path) -> list[Component]:
        # A segment holds its rows and its graph.
        parts = [
            ("index", True, [f"{STORE}/collections/*/*/segments"]),
            ("logs", False, [f"{STORE}/collections/*/*/wal", "logs"]),
        ]
        return components(data_dir, parts) if (data_dir / STORE).exists() else []

    def exact_filters(self, server: QdrantServer, on: bool) -> None:
        server.exact = on

    def count(self, server: QdrantServer, filter: Spec | None) -> int:
        request = message["CountPoints"](collection_name=COLLECTION, exact=True)
        if filter is not None:
            request.filter.CopyFrom(wire.condition(filter))
        return int(server.rpc.call("Points/Count", request).result.count)

    def encode(
        self, server: QdrantServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        exact = server.exact and filter is not None
        return [wire.search(query, k, ef_search, filter, exact) for query in queries]

    def transport(self, server: QdrantServer) -> dict[str, Any]:
        return server.grpc_transport("/qdrant.Points/Search")

    decode = staticmethod(wire.decode)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        return {
            "query protocol": "gRPC (Points/Search), vectors as float32; ids and scores are fetched",
            "insert protocol": "gRPC (Points/Upsert, wait), vectors as float32; one channel for the load",
            "HNSW": f"m={index['M']} (2M at the bottom layer), ef_construct={index['ef_construction']}",
            "ef applies to": "each segment; one is asked for (default_segment_number=1); hnsw_ef of each request",
            "filters": "by its own estimate of how many rows pass: a scan of them below full_scan_threshold, else a "
            "walk over the graph, which has further links for each indexed column",
            "consistency": "a row is found once it is acknowledged (wait)",
            "durability": "a batch is acknowledged after it was written to the log of rows and applied",
            "set by the system": listed(system.get("settings")),
            "set by anncestry": "shards and replicas as the topology says; distance, m, ef_construct, hnsw_ef; indexes "
            "of the columns; no graph while rows are inserted (indexing_threshold=0), then one of all",
            "left at defaults": f"full_scan_threshold={_FULL_SCAN_KIB} KiB unless the system sets it; all that its "
            "operator chose",
        }


ENGINE = Qdrant()
