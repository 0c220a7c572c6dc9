"""Nearest neighbours by a search of everything in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def brute_force(
    base: Floats, queries: Floats, metric: str, depth: int, passes: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All distances in float64, sorted by (distance, id). For l2 of integers it is exact, so ties are ties."""
    wide, wanted = base.astype(np.float64), queries.astype(np.float64)
    rows = np.arange(len(base)) if passes is None else np.flatnonzero(passes)
    ids = np.full((len(queries), depth), -1)
    distances = np.full((len(queries), depth), np.inf)
    for query, vector in enumerate(wanted):
        near = ((wide[rows] - vector) ** 2).sum(axis=1) if metric == "l2" else 1 - (wide[rows] * vector).sum(axis=1)
        order = np.argsort(near, kind="stable")[:depth]
        ids[query, : len(order)], distances[query, : len(order)] = rows[order], near[order]
    return ids, distances
