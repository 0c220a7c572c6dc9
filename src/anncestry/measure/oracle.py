"""Two checks of a loaded system against exact knowledge, before any of its speed is believed.

Exact-search oracle: a filter so narrow that the system answers by a flat scan must return the true neighbours.
It sees lost or changed rows, a wrong metric and an ignored filter, whatever the index is worth. Of an index of codes,
which has no exact order, it asks for all rows that pass, for their distances, and for an order beyond chance.
Findable rows: an index search for a stored vector must find its row. It sees rows that the store has and the index
lost, which counts don't show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.cells.indexes import is_lossy
from anncestry.datasets.distance import pair_distances
from anncestry.datasets.metadata import PRICE_FROM, PRICE_TO, matches
from anncestry.drive import protocol
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, Server, batching
from anncestry.measure.answers import Answers, decode, decode_batches, distance_errors
from anncestry.measure.batches import cut
from anncestry.measure.vectors import Vectors
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
_SAMPLED_ROWS = 200
_TAIL_ROWS = 1000
_SELECTIVITY = 0.02
_MATCHES_MAX = 20_000
_TIE = 1e-6


def ask(
    engine: Engine,
    server: Server,
    driver: Driver,
    folder: Path,
    queries: NDArray[np.float32],
    *,
    k: int,
    ef_search: int,
    filter: Mapping[str, Any] | None,
    metric: str,
    timeout_s: float = 60.0,
) -> Answers:
    """Ask each of the (n, d) queries once, by the same driver as everything else, and decode the answers."""
    requests = engine.encode(server, queries, k, ef_search, filter)
    return send(engine, server, driver, folder, requests, k=k, metric=metric, timeout_s=timeout_s)


def send(
    engine: Engine,
    server: Server,
    driver: Driver,
    folder: Path,
    requests: Sequence[bytes],
    *,
    k: int,
    metric: str,
    timeout_s: float = 60.0,
    nq: int = 1,
) -> Answers:
    """Send each request, of `nq` vectors, once, one client, and decode the answers."""
    protocol.write_requests(folder, requests)
    every = np.arange(len(requests))[None, :]
    protocol.write_job(
        folder,
        requests=folder,
        transport=engine.transport(server),
        schedule=every,
        prime=every[:, :0],
        timeout_s=timeout_s,
        answer_bytes_max=protocol.bytes_max(k * nq),
    )
    driver.run(folder, check=server.check_alive)
    outcome = protocol.read_outcome(folder)
    status = outcome.samples["status"]
    if nq > 1:
        return decode_batches(batching(engine).decode_batch, outcome.responses, status, nq, k, metric)
    return decode(engine.decode, outcome.responses, status, k, metric)


def check(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, lossy: bool = False
) -> list[Gate]:
    """Both checks, as gates. Leaves the server at the search effort `EF`.

    Of an index whose flat scan is over codes (`lossy`), the order of results is an estimate, and how good a one is what
    recall says: the first judges only that there is an order by distance. What recall would not tell from coarse codes
    is asked apart, and strictly: that every row that passes a filter is there and no other, at its distance.
    """
    engine.apply(server, EF)
    engine.exact_filters(server, True)
    exact = _exact(engine, server, driver, folder / "exact", vectors, lossy)
    engine.exact_filters(server, False)
    complete = _complete(engine, server, driver, folder / "complete", vectors) if lossy else []
    return [exact, *complete, _findable(engine, server, driver, folder / "findable", vectors, lossy)]


def check_batches(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, lossy: bool, nq: int
) -> Gate:
    """The exact-search oracle by requests of `nq` vectors: each gets its own answer, not that of one beside it."""
    engine.apply(server, EF)
    engine.exact_filters(server, True)
    exact = _exact(engine, server, driver, folder / f"exact-nq{nq}", vectors, lossy, nq)
    engine.exact_filters(server, False)
    return replace(exact, detail=f"in requests of {nq} vectors: {exact.detail}")


def _complete(engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors) -> list[Gate]:
    """Under filters that few rows pass, a search for more results than those returns all, whatever it estimates."""
    random, price = np.random.RandomState(_SEED + 2), np.asarray(vectors.price)
    category = np.asarray(vectors.category)
    sorted_prices, size = np.sort(price), min(_WINDOW_ROWS, len(price))
    starts = random.randint(0, len(price) - size + 1, _WINDOWS)
    queries = np.asarray(vectors.queries[np.sort(random.randint(0, len(vectors.queries), _WINDOWS))])
    requests, wanted = [], []
    for query, start in zip(queries, starts, strict=True):
        end = sorted_prices[start + size] if start + size < len(price) else np.float32(PRICE_TO + 1)
        window = {"field": "price", "from": float(sorted_prices[start]), "below": float(end)}
        wanted.append(np.flatnonzero(matches(window, category, price)))
        requests += engine.encode(server, query[None], 2 * _WINDOW_ROWS, EF, window)
    answers = send(engine, server, driver, folder, requests, k=2 * _WINDOW_ROWS, metric=vectors.metric)
    right = np.array([np.isin(ids, rows) for rows, ids in zip(wanted, answers.ids, strict=True)])
    found = sum(len(np.unique(ids[ours])) for ids, ours in zip(answers.ids, right, strict=True))
    others = int((~right & (answers.ids != -1)).sum())
    of = np.repeat(np.arange(_WINDOWS), answers.ids.shape[1]).reshape(answers.ids.shape)
    exact = pair_distances(vectors.base, queries, answers.ids[right], of[right], vectors.metric)
    errors = distance_errors(answers.distances[right], exact, vectors.metric)
    return [
        gates.complete(found, sum(map(len, wanted)), others, _WINDOWS),
        gates.estimates(float(np.median(errors)) if len(errors) else np.inf, len(errors)),
    ]


def nearer_than_chance(taken: NDArray[np.float64], left: NDArray[np.float64]) -> bool:
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


def over_codes(engine: Engine, index: Mapping[str, Any]) -> bool:
    """Whether the first check scans codes: the index holds them, and its engine has no scan of the vectors."""
    return is_lossy(index) and not getattr(engine, "EXACT_SCANS", False)


def _narrow(rows: int, seed: int, share: float | None, least: int) -> dict[str, Any]:
    """A price filter that matches this share of the rows, or about 2 %, but at least `least` and at most 20,000."""
    share = min(1.0, max(share or min(_SELECTIVITY, _MATCHES_MAX / rows), least / rows))
    width = (PRICE_TO - PRICE_FROM) * share
    start = np.random.RandomState(seed).uniform(PRICE_FROM, PRICE_TO - width)
    return {"field": "price", "from": round(start, 2), "below": round(start + width, 2)}


def _exact(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, lossy: bool, nq: int = 1
) -> Gate:
    seed = _SEED
    k = _K_LOSSY if lossy else _K
    share, effort = getattr(server, "exact_at", None) or (None, EF)
    narrow = _narrow(len(vectors.base), seed, share, 5 * k)  # of as few rows as are asked for, order would say nothing
    passes = matches(narrow, np.asarray(vectors.category), np.asarray(vectors.price))
    rows = np.flatnonzero(passes)
    chosen = np.sort(np.random.RandomState(seed).permutation(len(vectors.queries))[:_QUERIES])
    if nq == 1:
        queries = np.asarray(vectors.queries[chosen])
        asked_at = {"k": k, "ef_search": effort}
        answers = ask(engine, server, driver, folder, queries, **asked_at, filter=narrow, metric=vectors.metric)
    else:
        members = cut(len(chosen), nq)
        chosen = chosen[members.reshape(-1)]
        queries = np.asarray(vectors.queries[chosen])
        asked = queries.reshape(*members.shape, -1)
        requests = batching(engine).encode_batches(server, asked, k, effort, narrow)
        answers = send(engine, server, driver, folder, requests, k=k, metric=vectors.metric, nq=nq)
    wanted = min(_K, len(rows))
    if wanted == 0:
        return Gate(gates.ORACLE, False, f"no row passes the oracle's filter {narrow}")
    everywhere = pair_distances(
        vectors.base,
        queries,
        np.tile(rows, len(queries)),
        np.repeat(np.arange(len(queries)), len(rows)),
        vectors.metric,
    ).reshape(len(queries), len(rows))
    position = np.full(len(vectors.base) + 1, -1)
    position[rows] = np.arange(len(rows))
    hits = nearer = returned = 0
    for i in range(len(queries)):
        reach = np.partition(everywhere[i], wanted - 1)[wanted - 1]
        known = np.unique(answers.ids[i])
        known = known[(known >= 0) & (known < len(vectors.base))]
        at = position[known]
        far = everywhere[i][at[at >= 0]]
        hits += min(wanted, int((far <= reach + _TIE * (1.0 + abs(reach))).sum()))
        returned += len(far)
        nearer += nearer_than_chance(far, np.delete(everywhere[i], at[at >= 0]))
    recall, selectivity = hits / (wanted * len(queries)), len(rows) / len(vectors.base)
    if not lossy:
        return gates.oracle(recall, len(queries), selectivity)
    return gates.oracle_of_codes(recall, nearer, returned, min(k, len(rows)) * len(queries), len(queries), selectivity)


def _findable(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, lossy: bool = False
) -> Gate:
    random = np.random.RandomState(_SEED + 1)
    rows = len(vectors.base)
    tail_from = max(rows - _TAIL_ROWS, rows // 2)

    def sample(first: int, last: int) -> NDArray[np.int64]:
        chosen = np.sort(first + random.permutation(last - first)[:_SAMPLED_ROWS])
        stored = np.asarray(vectors.base[chosen])
        return chosen[np.any(stored != 0, axis=1)]  # a zero vector has no direction, and so no neighbourhood

    body, tail = sample(0, tail_from), sample(tail_from, rows)
    asked = np.concatenate([body, tail])
    found, answers = _by_own_vector(engine, server, driver, folder, vectors, asked)
    behind = np.zeros(len(asked), bool)
    if lossy and not found.all():
        behind[~found] = _behind_others(
            engine, server, driver, folder, vectors, asked[~found], answers.distances[~found].max(axis=1)
        )
    share = [float(part.mean()) if len(part) else 1.0 for part in np.split(found | behind, [len(body)])]
    return gates.findable(share[0], share[1], len(body), len(tail), int(behind.sum()) if lossy else None)


def found_by_own_vector(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, asked: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(n,) whether an index search at the effort `EF` for the vector of each of the (n,) rows finds that row."""
    return _by_own_vector(engine, server, driver, folder, vectors, asked)[0]


def _by_own_vector(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, asked: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], Answers]:
    rows = len(vectors.base)
    queries = np.asarray(vectors.base[asked])
    k = min(_K, rows)
    answers = ask(engine, server, driver, folder, queries, k=k, ef_search=EF, filter=None, metric=vectors.metric)
    # A row hidden behind k or more copies of itself is found as well as can be; by distances made here, not reported.
    ids = answers.ids
    known = (ids >= 0) & (ids < rows)
    far = np.full(ids.shape, np.inf)
    of = np.repeat(np.arange(len(asked)), ids.shape[1]).reshape(ids.shape)
    far[known] = pair_distances(vectors.base, queries, ids[known], of[known], vectors.metric)
    own = pair_distances(vectors.base, queries, asked, np.arange(len(asked)), vectors.metric)
    distinct = np.array([len(np.unique(row)) for row in ids])
    copies = (distinct >= k) & (far.max(axis=1) <= own + _TIE)
    found: NDArray[np.bool_] = (ids == asked[:, None]).any(axis=1) | copies
    return found, answers


def _behind_others(
    engine: Engine,
    server: Server,
    driver: Driver,
    folder: Path,
    vectors: Vectors,
    missed: NDArray[np.int64],
    reach: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """(n,) whether the index itself puts each of the (n,) rows no nearer to its own vector than what it returned.

    `reach` (n,) is the largest distance reported for those. How near it puts the row is asked under a filter that
    passes the row: where codes can't tell rows apart, others are as near, and the row is no more lost than they are.
    """
    price = np.asarray(vectors.price)[missed]
    above = np.nextafter(price, np.float32(np.inf))
    requests = []
    for row, low, high in zip(missed, price, above, strict=True):
        alone = {"field": "price", "from": float(low), "below": float(high)}
        requests += engine.encode(server, np.asarray(vectors.base[row])[None], _K, EF, alone)
    engine.exact_filters(server, True)
    answers = send(engine, server, driver, folder, requests, k=_K, metric=vectors.metric)
    engine.exact_filters(server, False)
    itself = answers.ids == missed[:, None]
    told = np.where(itself, answers.distances, -np.inf).max(axis=1)
    behind: NDArray[np.bool_] = np.isfinite(reach) & np.isfinite(told) & (told >= reach - _TIE * (1.0 + np.abs(reach)))
    return behind
