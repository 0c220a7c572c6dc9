"""faiss, where it runs: see `library_host`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np

faiss: Any = _faiss  # its stubs lack half of it
PACKAGE = "faiss-cpu"
_FILE = "faiss.index"
_METRICS = {"l2": faiss.METRIC_L2, "cosine": faiss.METRIC_INNER_PRODUCT}
"""Cosine by the inner product: the vectors have length 1."""
_TYPES = {
    "IndexHNSWFlat": "hnsw",
    "IndexFlat": "flat",
    "IndexFlatL2": "flat",
    "IndexFlatIP": "flat",
    "IndexIVFFlat": "ivf_flat",
    "IndexIVFScalarQuantizer": "ivf_sq8",
    "IndexIVFPQ": "ivf_pq",
}


def _inverted(asked: dict[str, Any], dim: int, metric: int) -> Any:
    """An inverted file as asked, not trained yet."""
    nlist, lists = asked["nlist"], faiss.IndexFlat(dim, metric)
    if asked["type"] == "ivf_flat":
        index = faiss.IndexIVFFlat(lists, dim, nlist, metric)
    elif asked["type"] == "ivf_sq8":
        index = faiss.IndexIVFScalarQuantizer(lists, dim, nlist, faiss.ScalarQuantizer.QT_8bit, metric)
    else:
        index = faiss.IndexIVFPQ(lists, dim, nlist, asked["m"], asked.get("nbits", 8), metric)
    return index  # which keeps `lists` alive


class Builder:
    """Inserts as rows come; an inverted file is trained on them first, and so waits until all are there."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        faiss.omp_set_num_threads(facts["threads"])
        asked, metric = facts["index"], _METRICS[facts["metric"]]
        if asked["type"] == "hnsw":
            self.index = faiss.IndexHNSWFlat(facts["dim"], asked["M"], metric)
            self.index.hnsw.efConstruction = asked["ef_construction"]
            self.index.hnsw.rng = faiss.RandomGenerator(facts["seed"])
        elif asked["type"] == "flat":
            self.index = faiss.IndexFlat(facts["dim"], metric)
        else:
            self.index = _inverted(asked, facts["dim"], metric)
            self.index.cp.seed = facts["seed"]
        self.waiting: list[Any] = []

    def add(self, vectors: Any) -> None:
        if self.index.is_trained:
            self.index.add(vectors)
        else:
            self.waiting.append(np.array(vectors))

    def finish(self) -> None:
        """Train it and add the rows, if they wait for that; write it."""
        if self.waiting:
            rows = np.concatenate(self.waiting)
            self.waiting = []
            self.index.train(rows)
            self.index.add(rows)
        faiss.write_index(self.index, str(self.folder / _FILE))


class Searcher:
    """Searches the stored index, one query at a time, on the thread that asks."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        faiss.omp_set_num_threads(1)
        self.index = faiss.read_index(str(folder / _FILE))
        self.type = _TYPES[type(self.index).__name__]
        self.parameters: dict[int, Any] = {}
        self.similarity = self.index.metric_type == faiss.METRIC_INNER_PRODUCT

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        """The nearest; faiss pads with -1, which is cut off."""
        parameters = None
        if self.type != "flat":
            parameters = self.parameters.get(ef)
            if parameters is None:
                parameters = self.parameters[ef] = (
                    faiss.SearchParametersHNSW(efSearch=ef)
                    if self.type == "hnsw"
                    else faiss.SearchParametersIVF(nprobe=ef)
                )
        found, ids = self.index.search(query[None], k, params=parameters)
        ids, found = ids[0], found[0]
        if ids[-1] < 0:
            ids, found = ids[ids >= 0], found[ids >= 0]
        return ids, 1.0 - found if self.similarity else found

    def describe(self) -> dict[str, Any]:
        metric = next(name for name, number in _METRICS.items() if number == self.index.metric_type)
        settings: dict[str, Any] = {"index_type": self.type, "metric": metric}
        if self.type == "hnsw":
            hnsw = self.index.hnsw
            settings.update(M=hnsw.nb_neighbors(1), ef_construction=hnsw.efConstruction)
        elif self.type.startswith("ivf"):
            settings.update(nlist=self.index.nlist)
        if self.type == "ivf_pq":
            settings.update(m=self.index.pq.M, nbits=self.index.pq.nbits)
        if self.type == "ivf_sq8" and self.index.sq.qtype != faiss.ScalarQuantizer.QT_8bit:
            settings["index_type"] = f"scalar quantizer {self.index.sq.qtype}"
        return {"rows": self.index.ntotal, "settings": settings}

    def vectors(self, rows: Any) -> Any:
        if self.type.startswith("ivf") and self.index.direct_map.no():
            self.index.make_direct_map()  # for whoever asks: searches need none, and it takes 8 bytes a row
        return self.index.reconstruct_batch(np.asarray(rows))
