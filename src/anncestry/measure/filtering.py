"""The filters of a cell's requests: one for all of them, or one for each query, resolved for the dataset at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.metadata import Asked, matches, resolve
from anncestry.datasets.payload import NO_PAYLOAD
from anncestry.drive.protocol import OK
from anncestry.engines.base import Engine, Server
from anncestry.measure.answers import Answers
from anncestry.measure.vectors import Vectors
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate


@dataclass(frozen=True)
class Filtering:
    """What each of n requests is filtered by, and how many rows pass that of each: `matching` int64 (distinct,)."""

    asked: Asked
    matching: NDArray[np.int64]
    vectors: Vectors

    @classmethod
    def of(
        cls,
        filter: Mapping[str, Any] | None,
        vectors: Vectors,
        regions: NDArray[np.integer[Any]],
        queries: NDArray[np.int64] | None = None,
    ) -> Filtering | None:
        """The workload's `filter` for requests whose queries lie in `regions` (n,); None for none.

        `queries` (n,) are their numbers, whose own conditions a filter by payload asks; None: all of the dataset's.
        """
        if filter is None:
            return None
        payload = vectors.payload if filter["field"] == "payload" else NO_PAYLOAD
        asked = resolve(filter, np.asarray(vectors.price), regions, payload, queries)
        counts = [int(passes_of(one, vectors).sum()) for one in asked.distinct]
        return cls(asked, np.array(counts, dtype=np.int64), vectors)

    def share(self, requests: NDArray[np.integer[Any]]) -> float:
        """The mean share of all rows that pass the filters of these requests."""
        return float(self.matching[self.asked.of[requests]].mean()) / len(self.vectors.base)

    def wanted(self, requests: NDArray[np.integer[Any]], k: int) -> NDArray[np.int64]:
        """How many rows a right answer to each of these requests holds: k, or all that pass if fewer; (n,)."""
        wanted: NDArray[np.int64] = np.minimum(k, self.matching[self.asked.of[requests]])
        return wanted

    def passing(self, requests: NDArray[np.integer[Any]], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the returned ids (n, k) pass the filter of their request; padding and unknown ids do not."""
        passing = np.zeros(ids.shape, dtype=np.bool_)
        known = (ids >= 0) & (ids < len(self.vectors.base))
        of = self.asked.of[requests]
        order = np.argsort(of, kind="stable")
        used, starts = np.unique(of[order], return_index=True)
        for number, of_one in zip(used, np.split(order, starts[1:]), strict=True):
            found = known[of_one]
            verdict = np.zeros(found.shape, dtype=np.bool_)
            verdict[found] = passes_of(self.asked.distinct[number], self.vectors, ids[of_one][found])
            passing[of_one] = verdict
        return passing

    def violations(self, requests: NDArray[np.integer[Any]], answers: Answers) -> tuple[int, int]:
        """How many rows that were returned do not pass the request's filter (unknown ids don't either), of how many."""
        good = answers.status == OK
        ids = answers.ids[good]
        returned = ids != -1
        passing = self.passing(requests[good], ids)
        return int((returned & ~passing).sum()), int(returned.sum())

    def count(self, engine: Engine, server: Server, known: dict[str, int]) -> None:
        """Ask the server how many rows pass each filter, into `known`, by the filter's text."""
        for filter in self.asked.distinct:
            if repr(filter) not in known:
                known[repr(filter)] = engine.count(server, filter)

    def gate(self, known: Mapping[str, int]) -> Gate:
        """The server's counts are ours, for every filter."""
        rows = len(self.vectors.base)
        pairs = [(known[repr(f)], int(m)) for f, m in zip(self.asked.distinct, self.matching, strict=True)]
        counted, matching = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
        judged = gates.selectivity(counted, matching, rows)
        if len(pairs) == 1:
            return judged
        wrong = sum(counted != matching for counted, matching in pairs)
        return Gate(judged.gate, judged.ok, f"{wrong} of {len(pairs)} filters are counted otherwise; {judged.detail}")

    def facts(self, requests: NDArray[np.integer[Any]]) -> dict[str, Any]:
        """What a record says: how many filters, and how narrow the narrowest and widest are."""
        used = self.matching[np.unique(self.asked.of[requests])]
        rows = len(self.vectors.base)
        return {
            "distinct": len(used),
            "selectivity_min": float(used.min()) / rows,
            "selectivity_max": float(used.max()) / rows,
        }


def no_filter(n: int) -> Asked:
    """n requests without a filter."""
    return Asked((None,), np.zeros(n, dtype=np.int64))


def passes_of(
    filter: Mapping[str, Any] | None, vectors: Vectors, rows: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """Which rows pass a resolved filter, bool (n,): of these `rows` (n,), or of all."""
    if filter is not None and filter["field"] == "payload":
        return vectors.payload.passes(filter, rows)
    if rows is None:
        return matches(filter, np.asarray(vectors.category), np.asarray(vectors.price), np.asarray(vectors.region))
    return matches(filter, vectors.category[rows], vectors.price[rows], vectors.region[rows], rows)


def encode(
    engine: Engine,
    server: Server,
    queries: NDArray[np.float32],
    k: int,
    ef_search: int,
    filtering: Filtering | None,
) -> list[bytes]:
    """The request bytes of each of the (n, d) queries, each with its own filter."""
    if filtering is None:
        return engine.encode(server, queries, k, ef_search, None)
    requests: list[bytes] = [b""] * len(queries)
    for number, filter in enumerate(filtering.asked.distinct):
        which = np.flatnonzero(filtering.asked.of == number)
        for place, request in zip(which, engine.encode(server, queries[which], k, ef_search, filter), strict=True):
            requests[place] = request
    return requests
