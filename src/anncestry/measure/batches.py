"""Requests of several vectors (a workload's `nq`): which vectors travel together, and which answer is whose.

The vectors, in their order, are cut into batches of nq. Their order is a circle: where the last batch would not be
full, the first vectors are asked again in it. So every request asks for nq vectors, none is padded, and no vector is
left out.

Latency, errors and queries per second are those of requests. Ids, distances, recall and gates are those of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anncestry.errors import DataError

Indices = NDArray[np.int64]


def size_of(workload: Mapping[str, Any]) -> int:
    """Vectors of one request of the workload."""
    return int(workload.get("nq", 1))


def cut(vectors: int, nq: int) -> Indices:
    """The vectors 0 … `vectors` - 1 in batches of `nq`: (requests, nq), the last one filled up with the first ones."""
    return np.resize(np.arange(vectors, dtype=np.int64), (-(-vectors // nq), nq))


def cut_both(measured: int, warmup: int, nq: int) -> Indices:
    """Batches of the measured vectors, then those of the `warmup` vectors that follow them: never one of both."""
    return np.concatenate([cut(measured, nq), measured + cut(warmup, nq)])


def columns(rows: Indices, sizes: Indices) -> dict[str, pa.Array]:
    """What the samples of n requests say beside their ids: `rows` and `sizes`, both (n, nq).

    `queries`: the rows of the dataset's queries that were asked; `sizes`: how many of the request's `ids` (and
    `distances`) are each one's, in the same order.
    """
    offsets = pa.array(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32))
    return {
        "queries": pa.ListArray.from_arrays(offsets, pa.array(rows.reshape(-1).astype(np.uint32))),
        "sizes": pa.ListArray.from_arrays(offsets, pa.array(sizes.reshape(-1).astype(np.uint16))),
    }


COLUMNS = ("queries", "sizes")
"""Names of those columns; samples of requests of one vector don't have them: `query` and `ids` say it all."""


def answers_of(samples: pa.Table, k: int, nq: int) -> tuple[Indices, Indices, Indices]:
    """The answers in a table of samples, by vector: of which sample (v,), to which query (v,), ids (v, k).

    Ids are padded with -1. DataError where a request does not have `nq` vectors, or its answers are not as many ids as
    their sizes say.
    """
    if nq == 1:
        of_sample = np.arange(len(samples))
        return of_sample, samples["query"].to_numpy().astype(np.int64), _padded(samples["ids"], None, k)
    queries, sizes = (_flat(samples[name]) for name in COLUMNS)
    lengths = {name: _lengths(samples[name]) for name in (*COLUMNS, "ids")}
    if any((lengths[name] != nq).any() for name in COLUMNS):
        raise DataError(f"samples: a request is not of {nq} vectors, as its workload says")
    if (sizes.reshape(-1, nq).sum(axis=1) != lengths["ids"]).any():
        raise DataError("samples: the ids of a request are not as many as those of its vectors together")
    return np.repeat(np.arange(len(samples)), nq), queries, _padded(samples["ids"], sizes, k)


def _flat(column: pa.ChunkedArray) -> Indices:
    flat: Indices = column.combine_chunks().flatten().to_numpy().astype(np.int64)
    return flat


def _lengths(column: pa.ChunkedArray) -> Indices:
    lengths: Indices = np.diff(column.combine_chunks().offsets.to_numpy()).astype(np.int64)
    return lengths


def _padded(column: pa.ChunkedArray, sizes: Indices | None, k: int) -> Indices:
    if not len(column):
        return np.empty((0, k), np.int64)
    sizes = _lengths(column) if sizes is None else sizes
    ids = np.full((len(sizes), k), -1, dtype=np.int64)
    ids[np.arange(k)[None, :] < sizes[:, None]] = _flat(column)
    return ids
