"""Qdrant Edge, where it runs: see `library_host`. It tells Euclidean distances, not squared, and inner products."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge

PACKAGE = "qdrant-edge-py"
FILTERS = True
_METRICS = {"l2": "Euclid", "cosine": "Dot"}
"""Cosine by the inner product: the vectors have length 1."""
_COLUMNS = {
    "category": edge.PayloadSchemaType.Integer,
    "price": edge.PayloadSchemaType.Float,
    "region": edge.PayloadSchemaType.Integer,
}
_FULL_SCAN_KIB = 10_000
"""Qdrant's default."""
_ONE_SEGMENT_KIB = 2**40


def condition(comparisons: list[list[Any]]) -> Any:
    """Bounds lie halfway to the float32 below: a stored number comes back as the double next to it at times (0.9.0)."""
    must: list[Any] = []
    ends: dict[str, dict[str, float]] = {}
    for column, operator, value in comparisons:
        if operator == "in":
            must.append(edge.FieldCondition(column, match=edge.MatchAny(value)))
            continue
        bound = (float(np.nextafter(np.float32(value), np.float32(-np.inf))) + float(value)) / 2
        # Both bounds of a range as one: its planner would take two halves for about half of the rows each.
        ends.setdefault(column, {})["gte" if operator == ">=" else "lt"] = bound
    must += [edge.FieldCondition(column, range=edge.RangeFloat(**of)) for column, of in ends.items()]
    return edge.Filter(must=must)


class Builder:
    """Inserts as rows come; the graph and the payload indexes of the segment are built in the end."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        asked = facts["index"]
        graph = edge.HnswIndexConfig(
            m=asked["M"],
            ef_construct=asked["ef_construction"],
            full_scan_threshold=facts["settings"].get("full_scan_threshold", _FULL_SCAN_KIB),
            max_indexing_threads=facts["threads"],
        )
        distance = getattr(edge.Distance, _METRICS[facts["metric"]])
        config = edge.EdgeConfig(
            vectors=edge.EdgeVectorParams(size=facts["dim"], distance=distance, hnsw_config=graph),
            hnsw_config=graph,
            optimizers=edge.EdgeOptimizersConfig(
                indexing_threshold=1, default_segment_number=1, max_segment_size=_ONE_SEGMENT_KIB
            ),
            wal_enabled=False,
            max_search_threads=1,
        )
        self.shard = edge.EdgeShard.create(str(folder), config)
        for name, kind in _COLUMNS.items():
            self.shard.update(edge.UpdateOperation.create_field_index(name, kind))
        self.rows = 0

    def add(self, vectors: Any, columns: dict[str, Any]) -> None:
        payloads = zip(*(columns[name].tolist() for name in _COLUMNS), strict=True)
        points = [
            edge.Point(row, vector, dict(zip(_COLUMNS, payload, strict=True)))
            for row, (vector, payload) in enumerate(zip(vectors.tolist(), payloads, strict=True), self.rows)
        ]
        self.shard.update(edge.UpdateOperation.upsert_points(points))
        self.rows += len(points)

    def finish(self) -> None:
        self.shard.optimize()
        self.shard.flush()
        self.shard.close()


class Searcher:
    """Searches the stored segment, one query at a time, on one thread."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        if not (folder / "edge_config.json").exists():
            raise FileNotFoundError(str(folder / "edge_config.json"))
        self.shard = edge.EdgeShard.load(str(folder))
        self.squared = facts["metric"] == "l2"

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        return self.filtered(query, k, ef, None, False)

    def filtered(self, query: Any, k: int, ef: int, condition: Any, exact: bool) -> tuple[Any, Any]:
        params = edge.SearchParams(hnsw_ef=ef, exact=exact)
        nearest = edge.Query.Nearest(query.tolist())
        found = self.shard.search(edge.SearchRequest(query=nearest, limit=k, filter=condition, params=params))
        scores = np.array([point.score for point in found], np.float64)
        return [point.id for point in found], scores * scores if self.squared else 1.0 - scores

    def count(self, condition: Any) -> int:
        return int(self.shard.count(edge.CountRequest(filter=condition, exact=True)))

    def describe(self) -> dict[str, Any]:
        """What the shard says, and the files of its graph: one, as all rows lie in one segment."""
        said = self.shard.info()
        graphs = [json.loads(path.read_text()) for path in self.folder.glob("segments/*/vector_index/hnsw_config.json")]
        config = json.loads((self.folder / "edge_config.json").read_text())
        metric = next(name for name, kind in _METRICS.items() if config["vectors"][""]["distance"] == kind)
        settings: dict[str, Any] = {"index_type": "hnsw", "metric": metric}
        if len(graphs) == 1:
            settings.update(M=graphs[0]["m"], ef_construction=graphs[0]["ef_construct"])
        settings["full_scan_threshold"] = config["hnsw_config"]["full_scan_threshold"]
        return {"rows": said.points_count, "indexed": said.indexed_vectors_count, "settings": settings}
