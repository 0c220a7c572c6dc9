"""The truth of the moment: the nearest rows that there were when a query ran, while rows came and went.

A query is sent at s and answered at e; a row's insertion and its deletion are sent and acknowledged at instants of the
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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.idlists import isin_rows

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ALWAYS = np.iinfo(np.int64).min
"""The instant of what was there before the clock's zero."""
NEVER = np.iinfo(np.int64).max
"""The instant of what did not happen, or was not acknowledged."""
_BLOCK = 4096


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
        known = (ids >= 0) & (ids < len(self.inserted_ns))
        rows = np.where(known, ids, 0)
        came = self.inserted_ns[rows] <= sent_ns[:, None]
        return known & came & (self.delete_sent_ns[rows] >= answered_ns[:, None])

    def gone(self, ids: Ids, sent_ns: Ids, answered_ns: Ids) -> Bools:
        """Which were not, for certain: deleted before, or not sent until after; padding and unknown ids are not."""
        known = (ids >= 0) & (ids < len(self.inserted_ns))
        rows = np.where(known, ids, 0)
        unborn = self.insert_sent_ns[rows] >= answered_ns[:, None]
        return ~known | unborn | (self.deleted_ns[rows] <= sent_ns[:, None])


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


def truth(
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
    for part in _blocks(n):
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


def _blocks(n: int) -> Iterator[slice]:
    for first in range(0, n, _BLOCK):
        yield slice(first, min(first + _BLOCK, n))
