"""The distances that everything is judged by: float64, the same bits on every machine.

l2 is the squared Euclidean distance, cosine is 1 − inner product (the vectors being of length 1, or zero).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.errors import ConfigError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
"""Of row numbers, and of what else is a whole number: counts, nanoseconds."""

METRICS = ("l2", "cosine")
_PAIRS_PER_BLOCK = 2048  # at 1,000 dimensions a block takes 16 MB


def check_metric(metric: str) -> None:
    """Raise a ConfigError unless the metric is one of METRICS."""
    if metric not in METRICS:
        raise ConfigError(f"unknown metric {metric!r}; choose {' or '.join(METRICS)}")


def pair_distances(base: NDArray[Any], queries: NDArray[Any], base_rows: Ids, query_rows: Ids, metric: str) -> Floats:
    """Distance of each pair (base_rows[i], query_rows[i]), float64 (pairs,).

    `base` (rows, dim) and `queries` (nq, dim) are float32 arrays or memory maps; memory is bounded by blocks of pairs.
    """
    check_metric(metric)
    distances = np.empty(len(base_rows), dtype=np.float64)
    for start in range(0, len(base_rows), _PAIRS_PER_BLOCK):
        block = slice(start, start + _PAIRS_PER_BLOCK)
        distances[block] = _aligned_distances(base[base_rows[block]], queries[query_rows[block]], metric)
    return distances


def squared_lengths(vectors: NDArray[np.float32]) -> Floats:
    """Squared length of each vector of (n, dim), float64 (n,); too many bytes for a large n, so pass blocks."""
    columns = np.ascontiguousarray(vectors.T, dtype=np.float64)
    return _sum_in_order(np.square(columns, out=columns))


def _aligned_distances(left: NDArray[Any], right: NDArray[Any], metric: str) -> Floats:
    terms = np.ascontiguousarray(left.T, dtype=np.float64)
    if metric == "l2":
        terms -= right.T
        np.square(terms, out=terms)
        return _sum_in_order(terms)
    terms *= right.T
    return 1.0 - _sum_in_order(terms)


def _sum_in_order(terms: Floats) -> Floats:
    """Sum of (dim, n) over dim, one dimension after the other.

    np.sum, einsum and BLAS choose an order by the CPU's vector width and the array's shape. With a fixed order equal
    vectors get equal distances, and a truth made on one machine equals that made on another.
    """
    total = np.zeros(terms.shape[1], dtype=np.float64)
    for row in terms:
        total += row
    return total


def isin_rows(ids: Ids, others: Ids) -> Bools:
    """Whether each id of (q, a) is in the same row of `others` (q, b), bool (q, a); ids may be any int64.

    Each (row, id) becomes one number, so that one np.isin answers for all rows without memory for (q, a, b).
    """
    known, positions = np.unique(others, return_inverse=True)
    unknown = len(known)
    offset = np.arange(len(ids), dtype=np.int64)[:, np.newaxis] * (unknown + 1)
    places = np.minimum(np.searchsorted(known, ids), unknown - 1)
    places = np.where(known[places] == ids, places, unknown)
    found: Bools = np.isin(places + offset, positions.reshape(others.shape) + offset)
    return found
