"""Recall: which share of the true neighbours a database returned.

Two rules exist, and a number means nothing without its rule (Aumüller, Bernhardsson and Faithfull, "ANN-Benchmarks",
Information Systems 87, 2020, §2.1, which defines recall and its (1 + ε) form by distance):

- by id: the returned id is one of the k ids that the truth lists;
- by distance: the returned row is as near as the true k-th, so that of tied rows any will do.

Here m is the number of rows that match a query's filter, and the denominator is min(k, m): who returns all there is
has recall 1. An id counts once, however often it is returned, and only the first k ids returned are looked at.
Where m = 0 there is nothing to find: the recall is NaN and stays out of means, and ids returned nevertheless are an
error of the filter, to be counted as such by the caller.

Recall does not see the order. Two scores that do stand beside it, both with a row that is as near as the true k-th (or
nearest) counted as relevant: nDCG@k with binary relevance (Järvelin and Kekäläinen, "Cumulated gain-based evaluation of
IR techniques", ACM TOIS 20, 2002), and the reciprocal rank of the nearest neighbour (Voorhees, "The TREC-8 Question
Answering Track Report", 1999), whose mean is MRR.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.distance import pair_distances
from anncestry.datasets.idlists import isin_rows

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

REL_EPS = 1e-6
ABS_EPS = {"l2": 0.0, "cosine": 1e-7}
"""By metric: what float32 can't tell apart at any distance; coordinates of unit vectors are rounded by up to 3e-8."""


def recall_by_id(returned: Ids, truth_ids: Ids, k: int) -> Floats:
    """|{first k returned} ∩ {first k of the truth}| / min(k, m), float64 (q,).

    `returned` int64 (q, any width) and `truth_ids` int64 (q, ≥ k) are padded with -1.
    Raises ValueError where the truth is shallower than k or the numbers of queries differ.
    """
    _check(returned, truth_ids, k)
    hits = _first_occurrences(returned[:, :k]) & isin_rows(returned[:, :k], truth_ids[:, :k])
    return _share(hits.sum(axis=1), (truth_ids[:, :k] >= 0).sum(axis=1))


def recall_by_distance(
    returned: Ids,
    returned_distances: Floats,
    truth_distances: Floats,
    k: int,
    rel_eps: float = REL_EPS,
    abs_eps: float = 0.0,
) -> Floats:
    """|{i in first k returned: d(i) ≤ d* + rel_eps·|d*| + abs_eps}| / min(k, m), at most 1, float64 (q,).

    d* is the true distance at rank min(k, m). `returned` int64 (q, w), padded with -1; `returned_distances` float64
    (q, w), the *exact* distances of these ids (`exact_distances`; +inf for a row that does not match the filter), not
    what the server said; `truth_distances` float64 (q, ≥ k), ascending, +inf pads.

    Why eps: a server computes in float32, whose resolution of 6e-8 grows over a sum of products to some 1e-7 of the
    distance. Rows closer together than that are tied for every server, and must not decide over recall. A wider eps
    would forgive misses: at 1e-3, GloVe has 0.47 more rows a query within reach at k = 10. Near a distance of 0 the
    relative eps vanishes, so pass `abs_eps=ABS_EPS[metric]`.
    Raises ValueError where shapes do not fit.
    """
    hits, denominators = _near(returned, returned_distances, truth_distances, k, rel_eps, abs_eps)
    return _share(np.minimum(hits.sum(axis=1), denominators), denominators)


def ndcg(
    returned: Ids,
    returned_distances: Floats,
    truth_distances: Floats,
    k: int,
    rel_eps: float = REL_EPS,
    abs_eps: float = 0.0,
) -> Floats:
    """nDCG@k, float64 (q,): Σ 1 / log2(rank + 1) over the relevant of the first k returned, by the most that can be.

    Relevant are the rows that `recall_by_distance` counts; an id that was returned before is not. The most that can be
    is min(k, m) relevant rows in front. Arguments as there; NaN where nothing matches.
    """
    hits, denominators = _near(returned, returned_distances, truth_distances, k, rel_eps, abs_eps)
    # More rows can tie with the last than there are ranks for them: the first min(k, m) hits count.
    hits &= np.cumsum(hits, axis=1) <= denominators[:, np.newaxis]
    discounts = 1.0 / np.log2(np.arange(2, hits.shape[1] + 2))
    gain = (hits * discounts).sum(axis=1)
    best = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])[denominators]
    scores = np.full(len(gain), np.nan)
    np.divide(gain, best, out=scores, where=denominators > 0)
    capped: Floats = np.minimum(scores, 1.0)
    return capped


def reciprocal_rank(
    returned: Ids,
    returned_distances: Floats,
    truth_distances: Floats,
    k: int,
    rel_eps: float = REL_EPS,
    abs_eps: float = 0.0,
) -> Floats:
    """1 / the rank of the first returned row as near as the nearest neighbour, 0 if none of the first k is; (q,).

    Arguments as for `recall_by_distance`; NaN where nothing matches.
    """
    hits, denominators = _near(returned, returned_distances, truth_distances[:, :1], 1, rel_eps, abs_eps, within=k)
    first = hits.argmax(axis=1)
    scores = np.where(hits.any(axis=1), 1.0 / (first + 1), 0.0)
    return np.where(denominators > 0, scores, np.nan)


def _near(
    returned: Ids,
    returned_distances: Floats,
    truth_distances: Floats,
    k: int,
    rel_eps: float,
    abs_eps: float,
    within: int | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which of the first `within` (k) returned are first occurrences within reach of rank min(k, m); and min(k, m)."""
    _check(returned, truth_distances, k)
    if returned.shape != returned_distances.shape:
        raise ValueError(f"{returned.shape} ids returned, but {returned_distances.shape} distances of them")
    width = within or k
    denominators = np.isfinite(truth_distances[:, :k]).sum(axis=1)
    last = np.maximum(denominators - 1, 0)[:, np.newaxis]
    reach = np.take_along_axis(truth_distances, last, axis=1)
    # Where nothing matches, reach is +inf; the share is NaN whatever is hit.
    near = returned_distances[:, :width] <= reach + rel_eps * np.abs(reach) + abs_eps
    return _first_occurrences(returned[:, :width]) & near, denominators


def exact_distances(
    base: NDArray[np.float32],
    queries: NDArray[np.float32],
    ids: Ids,
    metric: str,
    matches: NDArray[np.bool_] | None = None,
) -> Floats:
    """Distances of the rows that were returned, float64 (q, k), computed as those of the truth are.

    `base` (rows, dim) may be a memory map, `queries` (q, dim); `ids` int64 (q, k). +inf for what can't be a hit: the
    padding -1, an id that is no row of the base, and a row that `matches` bool (rows,), the filter, does not let
    through. Memory beside the result is bounded by blocks of pairs.
    """
    if len(ids) != len(queries):
        raise ValueError(f"ids of {len(ids)} queries, but {len(queries)} queries")
    counts = (ids >= 0) & (ids < len(base))
    if matches is not None:
        counts[counts] = matches[ids[counts]]
    distances = np.full(ids.shape, np.inf)
    distances[counts] = pair_distances(base, queries, ids[counts], np.nonzero(counts)[0], metric)
    return distances


def _check(returned: NDArray[Any], truth: NDArray[Any], k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}, not at least 1")
    if len(returned) != len(truth):
        raise ValueError(f"answers to {len(returned)} queries, but the truth of {len(truth)}")
    if truth.shape[1] < k:
        raise ValueError(f"the truth has {truth.shape[1]} neighbors a query, fewer than k = {k}")


def _first_occurrences(ids: Ids) -> NDArray[np.bool_]:
    """Which entries of (q, w) are ids that their row has not held before; padding is never one."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    fresh = np.ones(ids.shape, dtype=np.bool_)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.empty(ids.shape, dtype=np.bool_)
    np.put_along_axis(first, order, fresh, axis=1)
    return first & (ids >= 0)


def _share(hits: NDArray[np.int64], denominators: NDArray[np.int64]) -> Floats:
    shares = np.full(len(hits), np.nan)
    np.divide(hits, denominators, out=shares, where=denominators > 0)
    return shares
