"""The reference: what a graph of faiss answers on the same vectors, at the same M, ef_construction and ef.

It tells a hard dataset from a system that did not do what it was asked. It is built once no server is being measured;
the newest graphs and what they answer are kept in the user's cache, so that loads, rounds and systems share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import zipfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np
from numpy.typing import NDArray

from anncestry import user_cache
from anncestry.cells.indexes import is_lossy
from anncestry.datasets.distance import Floats, Ids
from anncestry.engines.base import Engine
from anncestry.measure.vectors import Vectors
from anncestry.metrics import recall
from anncestry.provenance import records

NUMBERS_MAX = 1 << 26
"""Rows × dimensions up to which it is built: half a minute on two cores."""
_KEPT_BYTES_MAX = 1 << 30
_METRICS = {"l2": _faiss.METRIC_L2, "cosine": _faiss.METRIC_INNER_PRODUCT}

faiss: Any = _faiss  # its stubs lack half of it


class Reference:
    """That of the `vectors` under an `index` of type hnsw, in as many graphs as the topology has `shards`.

    Each of n graphs finds k of its own rows at an ef: together they find more than one graph of all rows does.
    """

    def __init__(self, vectors: Vectors, index: Mapping[str, Any], shards: int = 1) -> None:
        self._vectors, self._index, self._shards = vectors, index, shards
        self._metric = _METRICS[vectors.metric]

    @classmethod
    def of(cls, vectors: Vectors, index: Mapping[str, Any], shards: int, engine: Engine) -> Reference | None:
        """None where there is nothing to compare: another type, codes, an HNSW of its own kind, too many rows."""
        comparable = engine.plain_hnsw and index["type"] == "hnsw" and not is_lossy(index)
        return cls(vectors, index, shards) if comparable and vectors.base.size <= NUMBERS_MAX else None

    @cached_property
    def _graphs(self) -> list[Any]:
        """Of every `shards`-th row each."""
        return [self._kept(first) or self._built(first) for first in range(self._shards)]

    def _built(self, first: int) -> Any:
        """The graph of every `shards`-th row from `first` on, and its file in the cache."""
        print("reference: building a graph of faiss on the same vectors", file=sys.stderr, flush=True)
        graph = faiss.IndexHNSWFlat(self._vectors.base.shape[1], self._index["M"], self._metric)
        graph.hnsw.efConstruction = self._index["ef_construction"]
        graph.add(np.ascontiguousarray(self._vectors.base[first :: self._shards]))
        folder, name = user_cache.folder("reference"), self._name("graph", first)
        whole = folder / f".{name}.{secrets.token_hex(4)}.whole"  # another machine may have the same cache
        with records.replacing(whole) as temporary:
            faiss.write_index(graph, str(temporary))
            digest = records.sha256_file(temporary)
        whole.replace(folder / f"{name}-{digest}.faiss")
        _forget(folder, _KEPT_BYTES_MAX)
        return graph

    def _kept(self, first: int) -> Any | None:
        """The same graph as the cache has it: None if it is not there, or is not what was written."""
        for path in user_cache.folder("reference").glob(f"{self._name('graph', first)}-*.faiss"):
            with contextlib.suppress(OSError):
                if records.sha256_file(path) == path.stem.rpartition("-")[2]:
                    os.utime(path)
                    return faiss.read_index(str(path))
                path.unlink()
        return None

    def _name(self, *asked: object) -> str:
        """By what is asked of these vectors and this index."""
        base = self._vectors.record["outputs"]["base"]["sha256"]
        settings = sorted(self._index.items()), self._shards
        return hashlib.sha256(repr((base, self._metric, settings, *asked, faiss.__version__)).encode()).hexdigest()[:24]

    @property
    def is_built(self) -> bool:
        return "_graphs" in self.__dict__

    def drop(self) -> None:
        """Free its memory: a measurement follows."""
        self.__dict__.pop("_graphs", None)

    def search(self, queries: NDArray[np.float32], k: int, ef_search: int) -> Ids:
        """(n, k) ids that it answers the (n, d) queries with; -1 where it found fewer."""
        asked, parameters = np.ascontiguousarray(queries), faiss.SearchParametersHNSW(efSearch=ef_search)
        parts = [graph.search(asked, k, params=parameters) for graph in self._graphs]
        far = np.hstack([distances for distances, _ in parts])
        rows = [np.where(ids < 0, ids, ids * self._shards + first) for first, (_, ids) in enumerate(parts)]
        nearest = np.argsort(-far if self._metric == _faiss.METRIC_INNER_PRODUCT else far, axis=1, kind="stable")
        ids: Ids = np.take_along_axis(np.hstack(rows), nearest[:, :k], axis=1)
        return ids

    def recall(self, rows: Ids, k: int, ef_search: int) -> tuple[Floats, Floats]:
        """Of the (n,) rows of the queries: its recall by distance (n,), and the true distances (n, k), ascending."""
        asked = rows.tolist(), k, ef_search, self._vectors.record["outputs"]["queries"]["sha256"]
        kept = user_cache.folder("reference") / f"{self._name(*asked)}.npz"
        try:
            with np.load(kept, allow_pickle=False) as stored:
                return stored["recall"], stored["distances"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass  # not there yet, or damaged
        queries = np.ascontiguousarray(self._vectors.queries[rows])
        distances = self._true(queries, k)
        found = self.score(queries, self.search(queries, k, ef_search), distances)
        with records.replacing(kept) as temporary, temporary.open("wb") as file:
            np.savez(file, recall=found, distances=distances)
        return found, distances

    def score(self, queries: NDArray[np.float32], ids: Ids, distances: Floats) -> Floats:
        """Recall by distance (n,) of answers with `ids` (n, k), against the true `distances` (n, k)."""
        metric = self._vectors.metric
        far = recall.exact_distances(self._vectors.base, queries, ids, metric)
        return recall.recall_by_distance(ids, far, distances, ids.shape[1], abs_eps=recall.ABS_EPS[metric])

    def _true(self, queries: NDArray[np.float32], k: int) -> Floats:
        _, ids = faiss.knn(queries, np.ascontiguousarray(self._vectors.base), k, metric=self._metric)
        exact = recall.exact_distances(self._vectors.base, queries, ids.astype(np.int64), self._vectors.metric)
        return np.sort(exact, axis=1)


def _forget(folder: Path, most_bytes: int) -> None:
    """Remove the graphs that were used longest ago, until the others have at most so many bytes."""
    total = 0
    with contextlib.suppress(FileNotFoundError):  # another process forgot it first
        for path in sorted(folder.glob("*.faiss"), key=lambda path: -path.stat().st_mtime_ns):
            total += path.stat().st_size
            if total > most_bytes:
                path.unlink()
