"""What is loaded and asked: the normalized vectors with their metadata, the choice of queries, and their filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.distance import Bools, Ids
from anncestry.datasets.metadata import Asked, Columns, matches, resolve
from anncestry.datasets.payload import NO_PAYLOAD, Payload, open_payload
from anncestry.engines.base import Engine, Server
from anncestry.errors import DataError
from anncestry.provenance import gates, records
from anncestry.provenance.gates import Gate


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


def columns_of(vectors: Vectors) -> Columns:
    return np.asarray(vectors.category), np.asarray(vectors.price), np.asarray(vectors.region)


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

    measured: Ids
    warmup: NDArray[np.float32]
    warmup_source: str
    regions: NDArray[np.uint8]
    """Of all of them, measured and then warm-up: what a filter by position goes by."""
    queries: Ids
    """Of all of them: the query whose conditions it is asked under, its own, or, of a base row, a measured one's."""


def choose(vectors: Vectors, count: int, warmup: int, seed: int) -> Choice:
    """A seeded choice: `count` queries to measure; warm-up from the other queries, or, if too few, from base rows.

    numpy's legacy generator is used, whose streams are frozen: the same seed chooses the same queries for ever.
    """
    if count > len(vectors.queries):
        raise DataError(
            f"the workload asks {count} queries, and {len(vectors.queries)} are left without those that are zero "
            "(zero_vectors: leave_out): ask fewer"
        )
    random = np.random.RandomState(seed)
    order = random.permutation(len(vectors.queries))
    measured, spare = np.sort(order[:count]), np.sort(order[count : count + warmup])
    regions = np.asarray(vectors.query_region)
    if len(spare) == warmup:
        asked = np.concatenate([measured, spare])
        return Choice(measured, np.asarray(vectors.queries[spare]), "unmeasured queries", regions[asked], asked)
    candidates = np.sort(random.choice(len(vectors.base), size=min(len(vectors.base), 2 * warmup), replace=False))
    candidates = candidates[np.any(np.asarray(vectors.base[candidates]) != 0, axis=1)]
    chosen = candidates[random.permutation(len(candidates))[:warmup]]
    return Choice(
        measured,
        np.asarray(vectors.base[chosen]),
        "base rows (the dataset has too few other queries)",
        np.concatenate([regions[measured], np.asarray(vectors.region)[chosen]]),
        np.concatenate([measured, np.resize(measured, len(chosen))]),
    )


def held_out(vectors: Vectors, count: int, warmup: int, wanted: int, seed: int) -> Ids:
    """Rows of `queries` that `choose` of the same count, warm-up and seed neither measures nor warms up with.

    DataError if there are too few: zero queries, which the config can't count, may have been left out.
    """
    order = np.random.RandomState(seed).permutation(len(vectors.queries))
    found = np.sort(order[count + warmup : count + warmup + wanted])
    if len(found) < wanted:
        raise DataError(
            f"{len(vectors.queries)} queries (without those that are zero) leave {len(found)} of the {wanted} held-out "
            f"ones after {count} that are measured and {warmup} to warm up: ask for fewer"
        )
    return found


@dataclass(frozen=True)
class Filtering:
    """What each of n requests is filtered by, and how many rows pass that of each: `matching` int64 (distinct,)."""

    asked: Asked
    matching: Ids
    vectors: Vectors

    @classmethod
    def of(
        cls,
        filter: Mapping[str, Any] | None,
        vectors: Vectors,
        regions: NDArray[np.integer[Any]],
        queries: Ids | None = None,
    ) -> Filtering | None:
        """The workload's `filter` for requests whose queries lie in `regions` (n,); None for none.

        `queries` (n,) are their numbers, whose own conditions a filter by payload asks; None: all of the dataset's.
        """
        if filter is None:
            return None
        asked = resolve(filter, np.asarray(vectors.price), regions, vectors.payload, queries)
        counts = [int(matches(one, *columns_of(vectors), payload=vectors.payload).sum()) for one in asked.distinct]
        return cls(asked, np.array(counts, dtype=np.int64), vectors)

    def share(self, requests: NDArray[np.integer[Any]]) -> float:
        """The mean share of all rows that pass the filters of these requests."""
        return float(self.matching[self.asked.of[requests]].mean()) / len(self.vectors.base)

    def wanted(self, requests: NDArray[np.integer[Any]], k: int) -> Ids:
        """How many rows a right answer to each of these requests holds: k, or all that pass if fewer; (n,)."""
        wanted: Ids = np.minimum(k, self.matching[self.asked.of[requests]])
        return wanted

    def passing(self, requests: NDArray[np.integer[Any]], ids: Ids) -> Bools:
        """Which of the returned ids (n, k) pass the filter of their request; padding and unknown ids do not."""
        return self.asked.passing(ids, columns_of(self.vectors), self.vectors.payload, requests)

    def passing_rows(self, number: int) -> Ids:
        """The rows that pass the filter of this number among the distinct ones."""
        passing = matches(self.asked.distinct[number], *columns_of(self.vectors), payload=self.vectors.payload)
        return np.flatnonzero(passing)

    def violating(self, requests: NDArray[np.integer[Any]], ids: Ids) -> Bools:
        """Which of the answers (n, k) hold ids that do not pass their request's filter (unknown ones don't); (n,)."""
        found: Bools = ((ids != -1) & ~self.passing(requests, ids)).any(axis=1)
        return found

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
