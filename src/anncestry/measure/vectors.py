"""What is loaded and asked: the normalized vectors with their metadata, and the choice of queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.payload import NO_PAYLOAD, Payload, open_payload
from anncestry.provenance import records


@dataclass(frozen=True)
class Vectors:
    """Row i of each array belongs to id i; `base` (n, d) and `queries` (q, d) float32, memory-mapped."""

    base: NDArray[np.float32]
    queries: NDArray[np.float32]
    category: NDArray[np.uint8]
    price: NDArray[np.float32]
    region: NDArray[np.uint8]
    query_region: NDArray[np.uint8]
    metric: str
    record: dict[str, Any]
    payload: Payload = NO_PAYLOAD
    """The columns that conditions of its queries act on, where it has some."""


def open_vectors(record_path: Path, key: str, verify: bool = True) -> Vectors:
    """Open the output of the normalize stage; with `verify`, every file is hashed before it is used."""
    record = records.read_record(record_path, stage="normalize", key=key)
    folder = record_path.parent
    if verify:
        records.verify_outputs(record_path, record)

    def array(name: str) -> Any:
        return np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    arrays = {name: array(name) for name in ("base", "queries", "category", "price", "region", "query_region")}
    payload = open_payload(folder) if "payload" in record["outputs"] else NO_PAYLOAD
    return Vectors(**arrays, metric=record["spec"]["metric"], record=record, payload=payload)


@dataclass(frozen=True)
class Choice:
    """Which queries are measured (rows of `queries`), and the vectors that only warm up, none of the measured ones."""

    measured: NDArray[np.int64]
    warmup: NDArray[np.float32]
    warmup_source: str
    regions: NDArray[np.uint8]
    """Of all of them, measured and then warm-up: what a filter by position goes by."""
    queries: NDArray[np.int64]
    """Of all of them: the query whose conditions it is asked under, its own, or, of a base row, a measured one's."""


def choose(vectors: Vectors, count: int, warmup: int, seed: int) -> Choice:
    """A seeded choice: `count` queries to measure; warm-up from the other queries, or, if too few, from base rows.

    numpy's legacy generator is used, whose streams are frozen: the same seed chooses the same queries for ever.
    """
    random = np.random.RandomState(seed)
    order = random.permutation(len(vectors.queries))
    measured, spare = order[:count], order[count : count + warmup]
    if len(spare) == warmup:
        asked = np.concatenate([np.sort(measured), np.sort(spare)])
        rows = np.asarray(vectors.queries[np.sort(spare)])
        return Choice(np.sort(measured), rows, "unmeasured queries", np.asarray(vectors.query_region)[asked], asked)
    candidates = np.sort(random.choice(len(vectors.base), size=min(len(vectors.base), 2 * warmup), replace=False))
    rows = np.asarray(vectors.base[candidates])
    kept = np.flatnonzero(np.any(rows != 0, axis=1))
    kept = kept[random.permutation(len(kept))[:warmup]]
    regions = np.concatenate(
        [np.asarray(vectors.query_region)[np.sort(measured)], np.asarray(vectors.region)[candidates[kept]]]
    )
    asked = np.concatenate([np.sort(measured), np.resize(np.sort(measured), len(kept))])
    return Choice(np.sort(measured), rows[kept], "base rows (the dataset has too few other queries)", regions, asked)


def held_out(vectors: Vectors, count: int, warmup: int, wanted: int, seed: int) -> NDArray[np.int64]:
    """Rows of `queries` that `choose` of the same count, warm-up and seed neither measures nor warms up with."""
    order = np.random.RandomState(seed).permutation(len(vectors.queries))
    return np.sort(order[count + warmup : count + warmup + wanted])
