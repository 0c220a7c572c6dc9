"""LanceDB, where it runs: see `library_host`. Distances of its metrics l2 and dot are canonical ones."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import HnswFlat

PACKAGE = "lancedb"
FILTERS = True
_TABLE, _VECTOR = "rows", "vector"
_METRICS = {"l2": "l2", "cosine": "dot"}
"""Cosine by the inner product, whose distance is 1 - x·y: the vectors have length 1."""
_TYPES = {"IvfHnswFlat": "hnsw"}


def condition(comparisons: list[list[Any]]) -> str:
    def value(asked: Any) -> str:
        return f"({', '.join(map(str, asked))})" if isinstance(asked, list) else repr(asked)

    return " AND ".join(f"{column} {operator} {value(asked)}" for column, operator, asked in comparisons)


THREADS = False
"""It takes no number of threads: its own pool has one a core."""


class Builder:
    """Writes rows as they come; the index is built of them in the end."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.facts, self.rows = facts, 0
        columns = [pa.field("id", pa.int64()), pa.field(_VECTOR, pa.list_(pa.float32(), facts["dim"]))]
        # It refuses to compare a column with a number beyond its type, as the end of the last region is beyond a byte.
        columns += [pa.field("category", pa.int16()), pa.field("price", pa.float32()), pa.field("region", pa.int16())]
        self.schema = pa.schema(columns)
        self.table = lancedb.connect(str(folder)).create_table(_TABLE, schema=self.schema)

    def add(self, vectors: Any, columns: dict[str, Any]) -> None:
        ids = np.arange(self.rows, self.rows + len(vectors))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.facts["dim"])
        named = {"id": ids, _VECTOR: lists, **columns}
        self.table.add(pa.table(named).select(self.schema.names).cast(self.schema))
        self.rows += len(vectors)

    def finish(self) -> None:
        asked, metric = self.facts["index"], _METRICS[self.facts["metric"]]
        self.table.optimize()
        built: dict[str, Any] = {"distance_type": metric, "m": asked["M"], "ef_construction": asked["ef_construction"]}
        self.table.create_index(_VECTOR, config=HnswFlat(num_partitions=1, **built))
        # Else it keeps for a week what it compacted: every row a second time.
        self.table.optimize(cleanup_older_than=timedelta(0))


class Searcher:
    """Searches the stored table, one query at a time; its own threads do so."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        if not (folder / f"{_TABLE}.lance").exists():
            raise FileNotFoundError(str(folder / f"{_TABLE}.lance"))
        self.table = lancedb.connect(str(folder)).open_table(_TABLE)
        self.metric = _METRICS[facts["metric"]]

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        return self.filtered(query, k, ef, None, False)

    def filtered(self, query: Any, k: int, ef: int, condition: str | None, exact: bool) -> tuple[Any, Any]:
        asked = self.table.search(query, vector_column_name=_VECTOR).distance_type(self.metric).limit(k)
        asked = asked.select(["id", "_distance"])
        if condition is not None:
            asked = asked.where(condition)
        found = (asked.bypass_vector_index() if exact else asked.nprobes(1).ef(ef)).to_arrow()
        return found["id"].to_numpy(), found["_distance"].to_numpy()

    def count(self, condition: str) -> int:
        return int(self.table.count_rows(condition))

    def describe(self) -> dict[str, Any]:
        (index,) = self.table.list_indices()
        metric = self.table.index_stats(index.name).distance_type
        settings: dict[str, Any] = {
            "index_type": _TYPES.get(index.index_type, index.index_type),
            "metric": next((name for name, own in _METRICS.items() if own == metric), metric),
        }
        graph = index.index_details["hnsw"]
        settings.update(M=graph["max_connections"], ef_construction=graph["construction_ef"])
        return {"rows": self.table.count_rows(), "indexed": index.num_indexed_rows, "settings": settings}
