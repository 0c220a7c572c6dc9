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

The truth may be that of the moment: the nearest rows that there were when a query ran, while rows came and went. A
query is sent at s and answered at e; a row's insertion and its deletion are sent and acknowledged at instants of the
same clock. To that query a row is

- *there* if it was loaded or its insertion acknowledged at s or before, and no deletion of it sent before e;
- *gone* if its deletion was acknowledged at s or before, or its insertion not sent before e;
- *in flight* otherwise: a system may have seen the change or not, and both are right. A change that failed, or that
  nobody answered, is in flight from when it was sent on, for ever: nobody knows what became of it.

The system's own answer says which rows in flight it saw: those that it returned count as there, the others as not.
The truth of the moment is the k nearest of the rows that are there then. This never costs a system anything: a row in
flight that is returned takes the place of one that was not better, and one that is not returned is asked of nobody. A
row that is gone is no hit, however near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry import large
from anncestry.datasets.distance import Bools, Floats, Ids, isin_rows, pair_distances

REL_EPS = 1e-6
"""`rel_eps` below, which `recall_by_distance` gives the reason for."""
ABS_EPS = {"l2": 0.0, "cosine": 1e-7}
"""By metric: what float32 can't tell apart at any distance; coordinates of unit vectors are rounded by up to 3e-8."""
ALWAYS = np.iinfo(np.int64).min
"""The instant of what was there before the clock's zero."""
NEVER = np.iinfo(np.int64).max
"""The instant of what did not happen, or was not acknowledged."""
_BLOCK = 4096


def recall_by_id(returned: Ids, truth_ids: Ids, k: int) -> Floats:
    """|{first k returned} ∩ {first k of the truth}| / min(k, m), float64 (q,).

    `returned` int64 (q, any width) and `truth_ids` int64 (q, ≥ k) are padded with -1.
    Raises ValueError where the truth is shallower than k or the numbers of queries differ.
    """
    _check(returned, truth_ids, k)
    hits = _first_occurrences(returned[:, :k]) & isin_rows(returned[:, :k], truth_ids[:, :k])
    return _share(hits.sum(axis=1), (truth_ids[:, :k] >= 0).sum(axis=1))


def recall_by_distance(
    returned: Ids, returned_distances: Floats, truth_distances: Floats, k: int, abs_eps: float = 0.0
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
    hits, denominators = _near(returned, returned_distances, truth_distances, k, abs_eps)
    return _share(np.minimum(hits.sum(axis=1), denominators), denominators)


def ndcg(returned: Ids, returned_distances: Floats, truth_distances: Floats, k: int, abs_eps: float = 0.0) -> Floats:
    """nDCG@k, float64 (q,): Σ 1 / log2(rank + 1) over the relevant of the first k returned, by the most that can be.

    Relevant are the rows that `recall_by_distance` counts; an id that was returned before is not. The most that can be
    is min(k, m) relevant rows in front. Arguments as there; NaN where nothing matches.
    """
    hits, denominators = _near(returned, returned_distances, truth_distances, k, abs_eps)
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
    returned: Ids, returned_distances: Floats, truth_distances: Floats, k: int, abs_eps: float = 0.0
) -> Floats:
    """1 / the rank of the first returned row as near as the nearest neighbour, 0 if none of the first k is; (q,).

    Arguments as for `recall_by_distance`; NaN where nothing matches.
    """
    hits, denominators = _near(returned, returned_distances, truth_distances[:, :1], 1, abs_eps, within=k)
    first = hits.argmax(axis=1)
    scores = np.where(hits.any(axis=1), 1.0 / (first + 1), 0.0)
    return np.where(denominators > 0, scores, np.nan)


def _near(
    returned: Ids,
    returned_distances: Floats,
    truth_distances: Floats,
    k: int,
    abs_eps: float,
    within: int | None = None,
) -> tuple[Bools, Ids]:
    """Which of the first `within` (k) returned are first occurrences within reach of rank min(k, m); and min(k, m)."""
    _check(returned, truth_distances, k)
    if returned.shape != returned_distances.shape:
        raise ValueError(f"{returned.shape} ids returned, but {returned_distances.shape} distances of them")
    width = within or k
    denominators = np.isfinite(truth_distances[:, :k]).sum(axis=1)
    last = np.maximum(denominators - 1, 0)[:, np.newaxis]
    reach = np.take_along_axis(truth_distances, last, axis=1)
    # Where nothing matches, reach is +inf; the share is NaN whatever is hit.
    near = returned_distances[:, :width] <= reach + REL_EPS * np.abs(reach) + abs_eps
    return _first_occurrences(returned[:, :width]) & near, denominators


def exact_distances(base: NDArray[np.float32], queries: NDArray[np.float32], ids: Ids, metric: str) -> Floats:
    """Distances of the rows that were returned, float64 (q, k), computed as those of the truth are.

    `base` (rows, dim) may be a memory map, `queries` (q, dim); `ids` int64 (q, k). +inf for what can't be a hit: the
    padding -1, and an id that is no row of the base. Memory beside the result is bounded by blocks of pairs.
    """
    if len(ids) != len(queries):
        raise ValueError(f"ids of {len(ids)} queries, but {len(queries)} queries")
    counts = (ids >= 0) & (ids < len(base))
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


def _first_occurrences(ids: Ids) -> Bools:
    """Which entries of (q, w) are ids that their row has not held before; padding is never one."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    fresh = np.ones(ids.shape, dtype=np.bool_)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.empty(ids.shape, dtype=np.bool_)
    np.put_along_axis(first, order, fresh, axis=1)
    return first & (ids >= 0)


def _share(hits: Ids, denominators: Ids) -> Floats:
    shares = np.full(len(hits), np.nan)
    np.divide(hits, denominators, out=shares, where=denominators > 0)
    return shares


# The truth of the moment


@dataclass(frozen=True)
class Lives:
    """When each row came and went: (rows,) instants in nanoseconds, int64, by id."""

    insert_sent_ns: Ids
    inserted_ns: Ids
    delete_sent_ns: Ids
    deleted_ns: Ids

    @classmethod
    def loaded(cls, rows: int, more: int) -> Lives:
        """`rows` rows that are there from the beginning, and `more` that were not sent yet; nothing is deleted."""
        came = np.full(rows + more, ALWAYS, np.int64)
        came[rows:] = NEVER
        never = np.full(rows + more, NEVER, np.int64)
        return cls(came, came.copy(), never, never.copy())

    def insert(self, ids: Ids, sent_ns: int, acknowledged_ns: int) -> None:
        """These rows were sent then, and acknowledged (NEVER: not)."""
        self.insert_sent_ns[ids], self.inserted_ns[ids] = sent_ns, acknowledged_ns

    def delete(self, ids: Ids, sent_ns: int, acknowledged_ns: int) -> None:
        """The deletion of these rows was sent then, and acknowledged (NEVER: not)."""
        self.delete_sent_ns[ids], self.deleted_ns[ids] = sent_ns, acknowledged_ns

    def there(self, ids: Ids, sent_ns: Ids, answered_ns: Ids) -> Bools:
        """Which of the rows (n, w) were there, for certain, to the queries (n,); padding (-1) never is."""
        known, rows = self._known(ids)
        came = self.inserted_ns[rows] <= sent_ns[:, None]
        return known & came & (self.delete_sent_ns[rows] >= answered_ns[:, None])

    def gone(self, ids: Ids, sent_ns: Ids, answered_ns: Ids) -> Bools:
        """Which were not, for certain: deleted before, or not sent until after; padding and unknown ids are not."""
        known, rows = self._known(ids)
        unborn = self.insert_sent_ns[rows] >= answered_ns[:, None]
        return ~known | unborn | (self.deleted_ns[rows] <= sent_ns[:, None])

    def _known(self, ids: Ids) -> tuple[Bools, Ids]:
        known = (ids >= 0) & (ids < len(self.inserted_ns))
        return known, np.where(known, ids, 0)


@dataclass(frozen=True)
class Candidates:
    """Of each of q queries, the rows that may be among its k nearest at some moment.

    `ids` int64 (q, c), ascending by distance and id, -1 pads; `distances` float64 (q, c), exact, +inf pads. `reach`
    (q,): no row that is not listed is nearer than that (+inf: every row is listed).
    """

    ids: Ids
    distances: Floats
    reach: Floats

    @classmethod
    def of(
        cls, truth_ids: Ids, truth_distances: Floats, more_ids: list[Ids], more_distances: list[Floats]
    ) -> Candidates:
        """The truth of what was loaded, (q, depth), and of each query the rows that came later, with their distances.

        A list that is padded holds every row; else none that is nearer than its last is missing.
        """
        complete = truth_ids[:, -1] < 0
        reach = np.where(complete, np.inf, truth_distances[:, -1])
        width = max((len(ids) for ids in more_ids), default=0)
        queries = len(truth_ids)
        ids = np.concatenate([truth_ids, np.full((queries, width), -1, np.int64)], axis=1)
        distances = np.concatenate([truth_distances, np.full((queries, width), np.inf)], axis=1)
        for number, (found, far) in enumerate(zip(more_ids, more_distances, strict=True)):
            at = slice(truth_ids.shape[1], truth_ids.shape[1] + len(found))
            ids[number, at], distances[number, at] = found, far
        order = np.lexsort((ids, distances), axis=1)
        return cls(np.take_along_axis(ids, order, axis=1), np.take_along_axis(distances, order, axis=1), reach)


@dataclass(frozen=True)
class Moment:
    """Of n answers of up to k rows: the truth when each was asked, and what of the answer was there.

    `ids` and `distances` (n, k), padded with -1 and +inf; `fresh` (n, k): which of those rows came while the clock
    ran; `gone` (n, w): which returned rows were gone, for certain; `shallow` (n,): the candidates did not suffice to
    know.
    """

    ids: Ids
    distances: Floats
    fresh: Bools
    gone: Bools
    shallow: Bools


def truth_of_moment(
    candidates: Candidates, asked: Ids, sent_ns: Ids, answered_ns: Ids, returned: Ids, lives: Lives, k: int
) -> Moment:
    """The truth of the moment of n answers: `asked` (n,) rows of the candidates, `returned` int64 (n, w), -1 pads.

    Memory beside the result is bounded by blocks of answers.
    """
    n = len(asked)
    moment = Moment(
        np.full((n, k), -1, np.int64),
        np.full((n, k), np.inf),
        np.zeros((n, k), np.bool_),
        lives.gone(returned, sent_ns, answered_ns) & (returned >= 0),
        np.zeros(n, np.bool_),
    )
    for part in large.parts(n, _BLOCK):
        ids, distances = candidates.ids[asked[part]], candidates.distances[asked[part]]
        times = sent_ns[part], answered_ns[part]
        there = lives.there(ids, *times)
        maybe = (ids >= 0) & ~there & ~lives.gone(ids, *times)
        there |= maybe & isin_rows(ids, returned[part])
        rank = np.cumsum(there, axis=1)
        row, column = np.nonzero(there & (rank <= k))
        place = rank[row, column] - 1
        row_of = np.arange(n)[part][row]
        moment.ids[row_of, place] = ids[row, column]
        moment.distances[row_of, place] = distances[row, column]
        moment.fresh[row_of, place] = lives.inserted_ns[ids[row, column]] != ALWAYS
        moment.shallow[part] = (rank[:, -1] < k) & np.isfinite(candidates.reach[asked[part]])
    return moment
