"""hnswlib, where it runs: see `library_host`. Distances of its spaces l2 and ip are canonical ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hnswlib
import numpy as np

PACKAGE = "hnswlib"
_FILE = "hnsw.index"
_SPACES = {"l2": "l2", "cosine": "ip"}
"""Cosine by the inner product: the vectors have length 1."""


class Builder:
    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.threads = folder, facts["threads"]
        self.index = hnswlib.Index(_SPACES[facts["metric"]], facts["dim"])
        asked = facts["index"]
        self.index.init_index(
            facts["rows"], M=asked["M"], ef_construction=asked["ef_construction"], random_seed=facts["seed"]
        )
        self.rows = 0
        self.waiting: list[Any] = []

    def add(self, vectors: Any) -> None:
        """Insert, once there are so many that hnswlib uses all threads: up to four rows a thread, it takes one."""
        self.waiting.append(vectors)
        if sum(map(len, self.waiting)) > 4 * self.threads:
            self._insert()

    def _insert(self) -> None:
        vectors = self.waiting[0] if len(self.waiting) == 1 else np.concatenate(self.waiting)
        self.waiting = []
        ids = np.arange(self.rows, self.rows + len(vectors))
        self.index.add_items(vectors, ids, num_threads=self.threads)
        self.rows += len(vectors)

    def finish(self) -> None:
        if self.waiting:
            self._insert()
        self.index.save_index(str(self.folder / _FILE))


class Searcher:
    """Searches the stored index, one query at a time, on the thread that asks."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.index = hnswlib.Index(_SPACES[facts["metric"]], facts["dim"])
        self.index.load_index(str(folder / _FILE))
        self.index.set_num_threads(1)
        self.metric, self.ef = facts["metric"], 0

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        """RuntimeError where fewer than k are found."""
        if ef != self.ef:
            self.index.set_ef(ef)
            self.ef = ef
        ids, distances = self.index.knn_query(query, k, num_threads=1)
        return ids[0], distances[0]

    def describe(self) -> dict[str, Any]:
        """What the file holds. (It doesn't name its space: that is checked by the distances.)"""
        index = self.index
        settings = {"index_type": "hnsw", "M": index.M, "ef_construction": index.ef_construction}
        return {"rows": index.get_current_count(), "settings": {**settings, "metric": self.metric}}

    def vectors(self, rows: Any) -> Any:
        return self.index.get_items(rows)
