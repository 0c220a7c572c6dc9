"""usearch, where it runs: see `library_host`. Distances of its metrics l2sq and ip are canonical ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from usearch.index import Index, MetricKind

PACKAGE = "usearch"
_FILE = "usearch.index"
_METRICS = {"l2": MetricKind.L2sq, "cosine": MetricKind.IP}
"""Cosine by the inner product: the vectors have length 1."""


class Builder:
    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.threads = folder, facts["threads"]
        asked = facts["index"]
        self.index = Index(
            ndim=facts["dim"],
            metric=_METRICS[facts["metric"]],
            dtype="f32",
            connectivity=asked["M"],
            expansion_add=asked["ef_construction"],
        )
        self.rows = 0

    def add(self, vectors: Any) -> None:
        ids = np.arange(self.rows, self.rows + len(vectors), dtype=np.uint64)
        self.index.add(ids, vectors, threads=self.threads)
        self.rows += len(vectors)

    def finish(self) -> None:
        self.index.save(str(self.folder / _FILE))


class Searcher:
    """Searches the stored index, one query at a time, on the thread that asks."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        path = folder / _FILE
        if not path.exists():
            raise FileNotFoundError(str(path))
        self.index: Any = Index.restore(str(path))
        self.ef = 0

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        if ef != self.ef:
            self.index.expansion_search = ef
            self.ef = ef
        found = self.index.search(query, k, threads=1)
        return found.keys, found.distances

    def describe(self) -> dict[str, Any]:
        metric = next(name for name, kind in _METRICS.items() if kind == self.index.metric_kind)
        return {
            "rows": len(self.index),
            "settings": {"index_type": "hnsw", "M": self.index.connectivity, "metric": metric},
        }

    def vectors(self, rows: Any) -> Any:
        return np.asarray(self.index.get(np.asarray(rows, np.uint64)))
