"""Checks of a loaded system against exact knowledge, before any of its speed is believed.

Exact-search oracle: a filter so narrow that the system answers by a flat scan must return the true neighbours. It sees
lost or changed rows, a wrong metric and an ignored filter, whatever the index is worth. Of an index of codes, which has
no exact order, it asks for all rows that pass, for their distances, and for an order beyond chance. A system that never
scans may return too few rows to a few queries: its graph leads nowhere there.
All rows that match: a search under a narrow filter for more rows than pass it returns all of them: a count that a
server can't take from elsewhere.
Findable rows: an index search for a stored vector must find its row. It sees rows that the store has and the index
lost, which counts don't show.

Rows findable under a workload's filter: a server may count by one filter and search by another. What a graph loses
under a filter is no such thing.
No cached answers: new queries and repeated ones, in turn. Ef is felt: a much smaller one changes answers.

Each round of runs asks for other rows, with other queries and filters: what one look misses, the next may see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.cells.indexes import is_lossy, least_effort
from anncestry.datasets.distance import Bools, Floats, Ids
from anncestry.datasets.metadata import PRICE_FROM, PRICE_TO, Asked, matches
from anncestry.drive import protocol
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, Server
from anncestry.engines.conditions import narrowed
from anncestry.measure.reference import Reference
from anncestry.measure.requests import Answers, cut, decode, distance_errors, encode
from anncestry.measure.vectors import Filtering, Vectors
from anncestry.metrics.recall import exact_distances
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate

EF = 400
"""Search effort of both checks: their own, so that a load is not judged by the effort of some workload."""
_SEED = 20261121
_K = 10
_K_LOSSY = 50
_WINDOWS = 20
_WINDOW_ROWS = 50
_QUERIES = 100
_SAMPLED_ROWS, _FILTERED_ROWS = 300, 200
_TAIL_ROWS = 1000
_REPEATED = 40
_SELECTIVITY = 0.02
_MATCHES_MAX = 20_000
_WIDE, _NEARLY = 0.3, 0.9
"""Share of rows that pass a filter that no graph falls apart under, and how much of such a share nearly does."""
_TIE = 1e-6


def over_codes(engine: Engine, index: Mapping[str, Any]) -> bool:
    """Whether the first check scans codes: the index holds them, and its engine has no scan of the vectors."""
    return is_lossy(index) and not engine.exact_scans


def nearer_than_chance(taken: Floats, left: Floats) -> bool:
    """Whether the distances of the rows `taken` are smaller than those of the rows `left` beyond chance.

    By their ranks (Mann and Whitney 1947, normal approximation, one-sided, 5 %); if nothing was left, order has no say.
    """
    if len(taken) == 0 or len(left) == 0:
        return len(left) == 0
    ordered = np.sort(left)
    below, upto = np.searchsorted(ordered, taken, "left"), np.searchsorted(ordered, taken, "right")
    farther = float((len(left) - (below + upto) / 2).sum())
    pairs = len(taken) * len(left)
    deviation = np.sqrt(pairs * (len(taken) + len(left) + 1) / 12)
    return bool(farther - pairs / 2 > gates.ORDER_Z * deviation)


def _narrow(rows: int, share: float | None, least: int, random: np.random.RandomState) -> dict[str, Any]:
    """A price filter that matches this share of the rows, or about 2 %, but at least `least` and at most 20,000."""
    share = min(1.0, max(share or min(_SELECTIVITY, _MATCHES_MAX / rows), least / rows))
    width = (PRICE_TO - PRICE_FROM) * share
    start = random.uniform(PRICE_FROM, PRICE_TO - width)
    return {"field": "price", "from": round(start, 2), "below": round(start + width, 2)}


@dataclass(frozen=True)
class Oracle:
    """A server with `vectors` loaded, asked by the same driver as everything else; `folder` is for the driver.

    Of an index whose flat scan is over codes (`lossy`), the order of results is an estimate, and how good a one is what
    recall says: the first check judges only that there is an order by distance. What recall would not tell from coarse
    codes it asks apart, and strictly: that every row that passes a filter is there and no other, at its distance.
    """

    engine: Engine
    server: Server
    driver: Driver
    folder: Path
    vectors: Vectors
    lossy: bool = False
    round: int = 0
    """Of a load 0, of the runs of a cell 1, 2, …: seeds what is asked."""
    index: Mapping[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    on_disk: bool = False
    """Searches may read from a disk."""

    def ask(
        self, queries: NDArray[np.float32], k: int, ef_search: int = EF, filter: Mapping[str, Any] | None = None
    ) -> Answers:
        return self.send(self.engine.encode(self.server, queries, k, ef_search, filter), k)

    def send(self, requests: Sequence[bytes], k: int, nq: int = 1) -> Answers:
        """Send each request, of `nq` vectors, once, one client, and decode the answers."""
        outcome = self._run(requests, k * nq)
        read = self.engine.decode_batch if nq > 1 else self.engine.decode
        return decode(read, outcome.responses, outcome.samples["status"], k, self.vectors.metric, nq)

    def _run(self, requests: Sequence[bytes], results: int) -> protocol.Outcome:
        protocol.write_requests(self.folder, requests)
        every = np.arange(len(requests))[None, :]
        protocol.write_job(
            self.folder,
            requests=self.folder,
            transport=self.engine.transport(self.server),
            schedule=every,
            prime=every[:, :0],
            timeout_s=60.0,
            answer_bytes_max=protocol.bytes_max(results),
        )
        self.driver.run(self.folder, check=self.server.check_alive)
        return protocol.read_outcome(self.folder)

    def check(self) -> list[Gate]:
        """All checks, as gates. Leaves the server at the search effort `EF`."""
        self.engine.apply(self.server, EF)
        self.engine.exact_filters(self.server, True)
        exact = self._exact()
        # A system that never scans can't be asked for all.
        complete = [] if getattr(self.server, "exact_at", None) else self._complete()
        self.engine.exact_filters(self.server, False)
        found = [exact, *complete, self._findable(), self._not_cached()]
        if self.reference is not None:
            found.append(self._effort(self.reference))
        return found

    def check_batches(self, nq: int) -> Gate:
        """The exact-search oracle by requests of `nq` vectors: each gets its own answer, not that of one beside it."""
        self.engine.apply(self.server, EF)
        self.engine.exact_filters(self.server, True)
        exact = self._exact(nq)
        self.engine.exact_filters(self.server, False)
        return replace(exact, detail=f"in requests of {nq} vectors: {exact.detail}")

    def check_filter(self, filtering: Filtering) -> Gate | None:
        """Whether searches under a workload's own filters read them as we do; None of none to be judged.

        A count under the filter is the server's word; this is what its search does. A row that passes and is not found
        by its own vector may be what a graph lost under the filter, which recall tells. So it is asked for again under
        the filter and its own price: few rows pass both, and are scanned, so that a row missing there is excluded.

        A system that never scans is asked at the effort at which its search is exact, or nearly. Of it, and of one that
        can't be asked so, a share of the rows must be found, under filters that many rows pass.
        """
        random, base = self._random(3), self.vectors.base
        share, effort = getattr(self.server, "exact_at", None) or (0.0 if self._narrows else _WIDE, EF)
        asked_for = (filtering.matching > 0) & (filtering.matching >= _NEARLY * share * len(base))
        requests = np.flatnonzero(asked_for[filtering.asked.of])
        if not len(requests):
            return None
        of = np.sort(filtering.asked.of[random.choice(requests, _FILTERED_ROWS)])
        rows = np.empty(len(of), np.int64)
        for number in np.unique(of):
            passing = filtering.passing_rows(int(number))
            rows[of == number] = random.choice(passing, int((of == number).sum()))
        nonzero = np.any(np.asarray(base[rows]) != 0, axis=1)
        rows, of = rows[nonzero], of[nonzero]
        if not len(rows):
            return None
        k = min(_K, len(base))
        asked = Asked(filtering.asked.distinct, of)
        answers = self.send(encode(self.engine, self.server, np.asarray(base[rows]), k, effort, asked), k)
        found = self._find_themselves(rows, answers.ids)
        missed, excluded = rows[~found], None if share else 0
        if len(missed) and not share:
            alone = self._alone(missed, [asked.distinct[number] for number in of[~found]])
            excluded = int((~self._find_themselves(missed, alone.ids)).sum())
        return gates.findable_filtered(int(found.sum()), len(rows), excluded)

    @property
    def _narrows(self) -> bool:
        """Whether a filter that is narrowed to few rows makes the system compare all of them."""
        return self.engine.narrows and self.engine.scans

    def found_by_own_vector(self, rows: Ids) -> Bools:
        """(n,) whether an index search at the effort `EF` for the vector of each of the (n,) rows finds that row."""
        self.engine.apply(self.server, EF)
        self.engine.exact_filters(self.server, False)
        return self._by_own_vector(rows)[0]

    def _random(self, check: int) -> np.random.RandomState:
        return np.random.RandomState([_SEED + check, self.round])

    def _passing(self, filter: Mapping[str, Any]) -> Ids:
        """The rows that pass a filter by price."""
        return np.flatnonzero(matches(filter, np.asarray(self.vectors.category), np.asarray(self.vectors.price)))

    def _distances(self, queries: NDArray[np.float32], ids: Ids) -> Floats:
        """Exact distances of the rows `ids` (n, k) to the (n, d) queries; +inf for ids that no row has."""
        return exact_distances(self.vectors.base, queries, ids, self.vectors.metric)

    def _exact(self, nq: int = 1) -> Gate:
        engine, server, vectors, random = self.engine, self.server, self.vectors, self._random(0)
        k = _K_LOSSY if self.lossy else _K
        share, effort = getattr(server, "exact_at", None) or (None, EF)
        # Of as few rows as are asked for, order would say nothing.
        narrow = _narrow(len(vectors.base), share, 5 * k, random)
        rows = self._passing(narrow)
        chosen = np.sort(random.permutation(len(vectors.queries))[:_QUERIES])
        members = cut(len(chosen), nq)
        queries = np.asarray(vectors.queries[chosen[members.reshape(-1)]])
        if nq == 1:
            answers = self.ask(queries, k, effort, narrow)
        else:
            asked = queries.reshape(*members.shape, -1)
            answers = self.send(engine.encode_batches(server, asked, k, effort, narrow), k, nq)
        wanted = min(_K, len(rows))
        if wanted == 0:
            return Gate(gates.ORACLE, False, f"no row passes the oracle's filter {narrow}")
        everywhere = self._distances(queries, np.tile(rows, (len(queries), 1)))
        judged = np.ones(len(queries), bool)
        if share is not None and not self.lossy:  # it never scans
            judged = (np.asarray(answers.ids) >= 0).sum(axis=1) >= wanted
        hits = nearer = returned = 0
        for distances, ids in zip(everywhere[judged], np.asarray(answers.ids)[judged], strict=True):
            reach = np.partition(distances, wanted - 1)[wanted - 1]
            taken = np.isin(rows, ids)
            far = distances[taken]
            hits += min(wanted, int((far <= reach + _TIE * (1.0 + abs(reach))).sum()))
            returned += len(far)
            nearer += nearer_than_chance(far, distances[~taken])
        selectivity, short = len(rows) / len(vectors.base), int((~judged).sum())
        recall = hits / (wanted * max(1, len(queries) - short))
        if not self.lossy:
            return gates.oracle(recall, len(queries), selectivity, short)
        most = min(k, len(rows)) * len(queries)
        return gates.oracle_of_codes(recall, nearer, returned, most, len(queries), selectivity)

    def _complete(self) -> list[Gate]:
        """Under filters that few rows pass, a search for more results than those returns all, whatever it estimates."""
        vectors, random = self.vectors, self._random(2)
        prices = np.sort(np.asarray(vectors.price))
        size = min(_WINDOW_ROWS, len(prices))
        starts = random.randint(0, len(prices) - size + 1, _WINDOWS)
        queries = np.asarray(vectors.queries[np.sort(random.randint(0, len(vectors.queries), _WINDOWS))])
        ends = np.append(prices, np.float32(PRICE_TO + 1))[starts + size]
        requests, wanted = [], []
        for query, low, high in zip(queries, prices[starts], ends, strict=True):
            window = {"field": "price", "from": float(low), "below": float(high)}
            wanted.append(self._passing(window))
            requests += self.engine.encode(self.server, query[None], 2 * _WINDOW_ROWS, EF, window)
        answers = self.send(requests, 2 * _WINDOW_ROWS)
        right = np.array([np.isin(ids, rows) for rows, ids in zip(wanted, answers.ids, strict=True)])
        found = sum(len(np.unique(ids[ours])) for ids, ours in zip(answers.ids, right, strict=True))
        others = int((~right & (answers.ids != -1)).sum())
        judged = [gates.complete(found, sum(map(len, wanted)), others, _WINDOWS, self.engine.scans)]
        if self.lossy:
            exact = self._distances(queries, answers.ids)[right]
            errors = distance_errors(answers.distances[right], exact, vectors.metric, self.engine.float32_scores)
            judged.append(gates.estimates(float(np.median(errors)) if len(errors) else np.inf, len(errors)))
        return judged

    def _findable(self) -> Gate:
        random = self._random(1)
        rows = len(self.vectors.base)
        tail_from = max(rows - _TAIL_ROWS, rows // 2)

        def sample(first: int, last: int) -> Ids:
            chosen: Ids = np.sort(first + random.permutation(last - first)[:_SAMPLED_ROWS])
            stored = np.asarray(self.vectors.base[chosen])
            return chosen[np.any(stored != 0, axis=1)]  # a zero vector has no direction, and so no neighbourhood

        body, tail = sample(0, tail_from), sample(tail_from, rows)
        asked = np.concatenate([body, tail])
        found, answers = self._by_own_vector(asked)
        behind = np.zeros(len(asked), bool)
        if self.lossy and not found.all():
            behind[~found] = self._behind_others(asked[~found], answers.distances[~found].max(axis=1))
        found |= behind

        def in_parts(found: Bools) -> tuple[int, int]:
            return int(found[: len(body)].sum()), int(found[len(body) :].sum())

        codes = int(behind.sum()) if self.lossy else None
        counts = *in_parts(found), len(body), len(tail), codes
        gate = gates.findable(*counts, comparable=self.reference is not None)
        if gate.ok or self.reference is None:
            return gate
        ids = self.reference.search(np.asarray(self.vectors.base[asked]), min(_K, rows), EF)
        return gates.findable(*counts, in_parts(self._find_themselves(asked, ids)), comparable=True)

    def _effort(self, reference: Reference) -> Gate:
        """By the dataset's queries; where only those of the reference are answered otherwise, by points between rows.

        A good graph finds all rows of a small, dense cluster with the least effort: of pgvector's 100 answers on
        random-xs-20, 0 changed, and 23 of the reference's. Halfway between two clusters it does not: 62 to 67 changed.
        What the reference answers is looked up only if nothing changes.
        """
        chosen = np.sort(np.random.RandomState(_SEED).permutation(len(self.vectors.queries))[:_QUERIES])
        queries, k = np.asarray(self.vectors.queries[chosen]), min(_K, len(self.vectors.base))
        low = least_effort(self.index, k)

        def changed(ask: Callable[[int], Ids]) -> int:
            return int((np.sort(ask(low), axis=1) != np.sort(ask(EF), axis=1)).any(axis=1).sum())

        def answers(ef_search: int) -> Ids:
            self.engine.apply(self.server, ef_search)
            return self.ask(queries, k, ef_search).ids

        def reference_answers(ef_search: int) -> Ids:
            return reference.search(queries, k, ef_search)

        own = changed(answers)
        gate = gates.effort(own, len(queries), low, EF, None if own else changed(reference_answers))
        if gate.ok:
            return gate
        queries = self._between_rows(5, _QUERIES)
        of_both = changed(answers), changed(reference_answers)
        return gates.effort(of_both[0], len(queries), low, EF, of_both[1], between=True)

    def _between_rows(self, seed: int, count: int) -> NDArray[np.float32]:
        """(count, dim) points, each halfway between two rows by chance; for cosine of length 1."""
        base = self.vectors.base
        pairs = np.asarray(base[self._random(seed).randint(0, len(base), (2, count)).reshape(-1)])
        between: NDArray[np.float32] = pairs.reshape(2, count, -1).mean(axis=0, dtype=np.float32)
        if self.vectors.metric == "cosine":
            between /= np.maximum(np.linalg.norm(between, axis=1, keepdims=True), np.float32(1e-9))
        return between

    def _not_cached(self) -> Gate:
        """New queries, each halfway between two rows, among others that were asked twice before."""
        between, k = self._between_rows(4, 2 * _REPEATED), min(_K, len(self.vectors.base))
        requests = self.engine.encode(self.server, between, k, EF, None)
        known, new = requests[:_REPEATED], requests[_REPEATED:]
        mixed = [request for pair in zip(new, known, strict=True) for request in pair]
        took_ns = self._run([*known, *known, *mixed], k).samples["latency_ns"][2 * _REPEATED :].reshape(-1, 2)
        first, again = took_ns.T.astype(float)
        ratio = float(np.median(first) / max(1.0, float(np.median(again))))
        return gates.not_cached(ratio, float((first > 2 * again).mean()), _REPEATED, self.on_disk)

    def _by_own_vector(self, asked: Ids) -> tuple[Bools, Answers]:
        queries = np.asarray(self.vectors.base[asked])
        k = min(_K, len(self.vectors.base))
        answers = self.ask(queries, k)
        return self._find_themselves(asked, answers.ids), answers

    def _find_themselves(self, asked: Ids, ids: Ids) -> Bools:
        """(n,) whether the (n,) rows are among the `ids` (n, k) that their own vectors are answered with.

        A row hidden behind k or more copies of itself is found as well as can be, by exact distances.
        """
        queries = np.asarray(self.vectors.base[asked])
        far = self._distances(queries, ids)
        own = self._distances(queries, asked[:, None])[:, 0]
        distinct = np.array([len(np.unique(row)) for row in ids])
        copies = (distinct >= ids.shape[1]) & (far.max(axis=1) <= own + _TIE)
        found: Bools = (ids == asked[:, None]).any(axis=1) | copies
        return found

    def _behind_others(self, missed: Ids, reach: Floats) -> Bools:
        """(n,) whether the index itself puts each of the (n,) rows no nearer to its own vector than what it returned.

        `reach` (n,) is the largest distance reported for those. A search under a filter that the row passes tells how
        near it puts the row: where codes can't tell rows apart, others are as near, and the row is no more lost.
        """
        answers = self._alone(missed, [None] * len(missed))
        itself = answers.ids == missed[:, None]
        told = np.where(itself, answers.distances, -np.inf).max(axis=1)
        behind: Bools = np.isfinite(reach) & np.isfinite(told) & (told >= reach - _TIE * (1.0 + np.abs(reach)))
        return behind

    def _alone(self, rows: Ids, filters: Sequence[Mapping[str, Any] | None]) -> Answers:
        """Answers to the own vectors of the (n,) rows, each under its filter of the n and under its own price."""
        price = np.asarray(self.vectors.price)[rows]
        above = np.nextafter(price, np.float32(np.inf))
        self.engine.exact_filters(self.server, True)
        requests: list[bytes] = []
        for row, low, high, filter in zip(rows, price, above, filters, strict=True):
            itself = narrowed(filter, {"field": "price", "from": float(low), "below": float(high)})
            requests += self.engine.encode(self.server, np.asarray(self.vectors.base[row])[None], _K, EF, itself)
        answers = self.send(requests, _K)
        self.engine.exact_filters(self.server, False)
        return answers
