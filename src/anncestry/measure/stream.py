"""Rows inserted and deleted while queries run: which, when, what became of them, and what recall is worth meanwhile.

What is inserted are queries of the dataset that are not asked: real vectors, which the loaded index has not. What is
deleted are loaded rows, each once. Both come at a constant rate, in requests of `batch_rows` rows, on connections of
their own, on the clock of the queries; every run starts from the loaded index again. Which rows, in which order and
when, hangs on the seed and the number of the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anncestry.cells.load_model import changes_of
from anncestry.datasets import metadata
from anncestry.datasets.distance import pair_distances
from anncestry.datasets.payload import NO_PAYLOAD, Payload
from anncestry.drive import protocol
from anncestry.drive.protocol import ERROR, OK
from anncestry.engines.base import WRITES, DecodeError, Server, Streaming
from anncestry.measure.vectors import Vectors, held_out
from anncestry.metrics import latency, moment
from anncestry.metrics.latency import over_runs
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate

SEARCH = "search"
"""The job of the queries, beside those named as in `engines.base.WRITES`."""
ON_TIME_MS = 1000.0
"""A change that is acknowledged later than this after it was due came late."""
KEPT_SHARE = 0.95
"""A stream of which a smaller share of rows was on time has not kept its rate."""
_DONE = {"insert": "inserted", "delete": "deleted"}
_NOMINATED = 256


@dataclass(frozen=True)
class Changes:
    """All requests of a kind in a run: `ids` (requests, batch) of rows, `due_ns` (requests,) when they are due.

    `from_query` (requests, batch): of inserted rows, which of the dataset's queries each is; None of deleted ones.
    """

    kind: str
    ids: NDArray[np.int64]
    due_ns: NDArray[np.int64]
    from_query: NDArray[np.int64] | None


def plan(work: Mapping[str, Any], vectors: Vectors, seed: int, run: int) -> list[Changes]:
    """What is changed in run `run` of a workload with `stream`, kind by kind; kinds of which there is none left out."""
    stream, counts, rows = work["stream"], changes_of(work), len(vectors.base)
    found = []
    for number, kind in enumerate(WRITES):
        if not counts[kind]:
            continue
        random = np.random.RandomState([seed % 2**32, run, 2 + number])
        batch = stream["batch_rows"]
        requests = counts[kind] // batch
        # In the middle of its turn: changes of both kinds do not fall on the clock's zero, nor on its end.
        due_s = (np.arange(requests) + (0.5, 0.25)[number]) * batch / stream[f"{kind}_per_s"]
        if kind == "insert":
            chosen = random.permutation(held_out(vectors, work["queries"], work["warmup"], counts[kind], seed))
            ids, source = rows + np.arange(counts[kind]), chosen.reshape(requests, batch)
        else:
            ids, source = random.permutation(rows)[: counts[kind]], None
        found.append(Changes(kind, ids.reshape(requests, batch), (due_s * 1e9).astype(np.int64), source))
    return found


@dataclass(frozen=True)
class _Rows:
    """Rows to insert, as engines take them."""

    base: NDArray[np.float32]
    category: NDArray[np.uint8]
    price: NDArray[np.float32]
    region: NDArray[np.uint8]
    metric: str
    payload: Payload = NO_PAYLOAD


def encode(engine: Streaming, vectors: Vectors, server: Server, changes: Changes) -> list[bytes]:
    """The request bytes of these changes. New rows get the columns that a longer dataset's would have."""
    if changes.from_query is None:
        return [engine.encode_delete(server, ids.tolist()) for ids in changes.ids]
    seed, first, count = vectors.record["spec"]["seed"], len(vectors.base), changes.ids.size
    category, price = metadata.category(count, seed, first), metadata.price(count, seed, first)
    requests = []
    for ids, source in zip(changes.ids, changes.from_query, strict=True):
        part = slice(int(ids[0]) - first, int(ids[-1]) - first + 1)
        base, region = np.asarray(vectors.queries[source]), np.asarray(vectors.query_region[source])
        rows = _Rows(base, category[part], price[part], region, vectors.metric)
        requests.append(engine.encode_insert(server, int(ids[0]), rows))
    return requests


def write_jobs(
    engine: Streaming,
    vectors: Vectors,
    server: Server,
    work: Mapping[str, Any],
    planned: Sequence[Changes],
    folder: Path,
) -> None:
    """A job for each kind of change in `folder`, and the word that they are run together with the one named search."""
    for changes in planned:
        requests = folder / f"{changes.kind}-requests"
        protocol.write_requests(requests, encode(engine, vectors, server, changes))
        protocol.write_job(
            folder / changes.kind,
            requests=requests,
            transport=engine.write_transport(server, changes.kind),
            schedule=np.arange(len(changes.ids)),
            prime=np.empty((work["stream"]["clients"], 0), np.int64),
            timeout_s=work["timeout_s"],
            due_ns=changes.due_ns,
        )
    protocol.write_together(folder, [SEARCH, *(changes.kind for changes in planned)])


@dataclass(frozen=True)
class Written:
    """What became of a run's changes: `table` of raw samples (`writes_of`), the driver's facts by kind, error texts."""

    table: pa.Table
    facts: dict[str, dict[str, Any]]
    errors: dict[str, int]


def read(engine: Streaming, planned: Sequence[Changes], folder: Path, run: int) -> Written:
    """The outcome of the jobs that `write_jobs` wrote: a row a request, by kind and time.

    Columns: run, kind, request, due_ns, start_ns (sent), latency_ns (from due), status (as of queries), ids, and
    from_query, empty for deletions. A reply that refuses a row makes its whole request an error.
    """
    tables, facts, errors = [], {}, dict[str, int]()
    for changes in planned:
        outcome = protocol.read_outcome(folder / changes.kind)
        samples, status = outcome.samples, outcome.samples["status"].astype(np.uint8)
        for client in outcome.facts.pop("clients"):
            _count(errors, client["errors"])
        for number, response in enumerate(outcome.responses):
            if status[number] == OK:
                problem = _refusal(engine, changes, response)
                if problem is not None:
                    status[number] = ERROR
                    _count(errors, {problem[:300]: 1})
        order = np.argsort(samples["due_ns"], kind="stable")
        samples, status = samples[order], status[order]
        asked = samples["query"].astype(np.int64)
        none = np.empty((len(asked), 0), np.int64)
        tables.append(
            pa.table(
                {
                    "run": pa.array(np.full(len(asked), run, np.uint8)),
                    "kind": pa.array([changes.kind] * len(asked), pa.string()),
                    "request": pa.array(asked.astype(np.uint32)),
                    **{name: pa.array(samples[name].astype(np.int64)) for name in ("due_ns", "start_ns", "latency_ns")},
                    "status": pa.array(status),
                    "ids": _lists(changes.ids[asked]),
                    "from_query": _lists(none if changes.from_query is None else changes.from_query[asked]),
                }
            )
        )
        facts[changes.kind] = {**outcome.facts, "samples": len(samples)}
    return Written(pa.concat_tables(tables), facts, errors)


def _refusal(engine: Streaming, changes: Changes, response: bytes) -> str | None:
    try:
        done = engine.decode_write(changes.kind, response)
    except DecodeError as error:
        return str(error)
    batch = changes.ids.shape[1]
    return None if done in (None, batch) else f"{changes.kind}: {done} of {batch} rows"


def _count(errors: dict[str, int], found: Mapping[str, int]) -> None:
    for text, count in found.items():
        errors[text] = errors.get(text, 0) + count


def _lists(values: NDArray[np.int64]) -> pa.Array:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))


def judge(written: Written, rows: int, counted: int, duration_s: float) -> list[Gate]:
    """What must hold of a run with changes: `rows` were loaded, and the server counts `counted` after it."""
    of_kinds = _by_kind(written.table)
    done = {kind: _rows(part, part["status"].to_numpy() == OK) for kind, part in of_kinds.items()}
    doubt = {kind: _rows(part, part["status"].to_numpy() != OK) for kind, part in of_kinds.items()}
    sure = rows + done.get("insert", 0) - done.get("delete", 0)
    least, most = sure - doubt.get("delete", 0), sure + doubt.get("insert", 0)
    told = summary(written.table, duration_s)
    return [
        gates.rows_after_changes(counted, least, most),
        gates.written(told["detail"], [kind for kind, count in done.items() if not count]),
    ]


def summary(writes: pa.Table, duration_s: float) -> dict[str, Any]:
    """What clients saw of the changes, over the runs in the table, each of `duration_s`.

    By kind, rows acknowledged a second, and the latency of requests from when they were due. `on_time` is the share of
    rows that were acknowledged within `ON_TIME_MS` of it; `kept` whether that was nearly all in every run, and
    `detail` says it in words; `failed` counts the rows that were not acknowledged.
    """
    number = writes["run"].to_numpy()
    of_runs = [writes.filter(pa.array(number == run)) for run in np.unique(number)]
    kinds = {}
    for kind in _by_kind(writes):
        each = [_by_kind(part)[kind] for part in of_runs]
        told = [latency.of_run(_run(part, duration_s)) for part in each]
        kinds[kind] = {
            "rows_per_s": over_runs([_rows(part, part["status"].to_numpy() == OK) / duration_s for part in each]),
            **{name: over_runs([found[name] for found in told]) for name in ("p50_ms", "p99_ms", "max_ms")},
        }
    on_time = [_on_time(part) for part in of_runs]
    failed = [float(_rows(part, part["status"].to_numpy() != OK)) for part in of_runs]
    kept = all(share >= KEPT_SHARE for share in on_time)
    rates = ", ".join(
        f"{found['rows_per_s']['value']:.0f} rows {_DONE[kind]} a second" for kind, found in kinds.items()
    )
    return {
        "kinds": kinds,
        "on_time": over_runs(on_time),
        "failed": over_runs(failed),
        "kept": kept,
        "detail": (
            f"{rates}; {100 * min(on_time):.1f} % of the changes acknowledged within {ON_TIME_MS / 1e3:g} s of when "
            "they were due" + ("" if kept else f": the rate was not kept ({100 * KEPT_SHARE:g} % wanted)")
        ),
    }


def _run(part: pa.Table, duration_s: float) -> latency.Run:
    due_ns, latency_ns, status = (part[name].to_numpy() for name in ("due_ns", "latency_ns", "status"))
    return latency.Run(due_ns, latency_ns, status, duration_s)


def _by_kind(writes: pa.Table) -> dict[str, pa.Table]:
    kinds = np.asarray(writes["kind"].to_pylist())
    return {kind: writes.filter(pa.array(kinds == kind)) for kind in WRITES if (kinds == kind).any()}


def _rows(part: pa.Table, chosen: NDArray[np.bool_]) -> int:
    """Rows in the chosen requests."""
    sizes = np.diff(part["ids"].combine_chunks().offsets.to_numpy()) if len(part) else np.empty(0, np.int64)
    return int(sizes[chosen].sum())


def _on_time(part: pa.Table) -> float:
    good = (part["status"].to_numpy() == OK) & (part["latency_ns"].to_numpy() <= ON_TIME_MS * 1e6)
    return _rows(part, good) / max(1, _rows(part, np.ones(len(part), np.bool_)))


# Recall of the moment


@dataclass(frozen=True)
class Judged:
    """Answers against the truth of their moment: (n, k) arrays as `metrics.recall` takes them.

    `exact` are the distances of the returned rows, +inf of those that were gone. `fresh` the rows of the truth that
    came while the clock ran, `stale` which answers held a row that was gone.
    """

    truth_ids: NDArray[np.int64]
    truth_distances: NDArray[np.float64]
    exact: NDArray[np.float64]
    fresh: NDArray[np.bool_]
    stale: NDArray[np.bool_]
    shallow: int


def against_moment(
    samples: pa.Table,
    returned: NDArray[np.int64],
    writes: pa.Table,
    vectors: Vectors,
    truth_ids: NDArray[np.int64],
    truth_distances: NDArray[np.float64],
) -> Judged:
    """Every answer of the queries' `samples` with what it `returned` (n, k), against the truth of its moment.

    `truth_ids` and `truth_distances` (queries, depth) are the truth of what was loaded.
    """
    n, k = returned.shape
    found = Judged(
        np.full((n, k), -1, np.int64),
        np.full((n, k), np.inf),
        np.full((n, k), np.inf),
        np.zeros((n, k), np.bool_),
        np.zeros(n, np.bool_),
        0,
    )
    runs, query = samples["run"].to_numpy(), samples["query"].to_numpy().astype(np.int64)
    sent_ns = samples["start_ns"].to_numpy()
    answered_ns = samples["due_ns"].to_numpy() + samples["latency_ns"].to_numpy()
    shallow = 0
    for run in np.unique(runs):
        mine = np.flatnonzero(runs == run)
        lives, source = _lives(writes.filter(pa.array(writes["run"].to_numpy() == run)), len(vectors.base))
        asked, of_sample = np.unique(query[mine], return_inverse=True)
        candidates = _candidates(
            vectors, asked, source, np.asarray(truth_ids[asked]), np.asarray(truth_distances[asked])
        )
        part = moment.truth(
            candidates, of_sample.reshape(-1), sent_ns[mine], answered_ns[mine], returned[mine], lives, k
        )
        found.truth_ids[mine], found.truth_distances[mine] = part.ids, part.distances
        found.fresh[mine], found.stale[mine] = part.fresh, part.gone.any(axis=1)
        exact = _distances(vectors, source, returned[mine], query[mine])
        found.exact[mine] = np.where(part.gone, np.inf, exact)
        shallow += int(part.shallow.sum())
    return Judged(found.truth_ids, found.truth_distances, found.exact, found.fresh, found.stale, shallow)


def freshness(
    judged: Judged, returned: NDArray[np.int64], runs: NDArray[np.integer[Any]], count: int
) -> dict[str, Any]:
    """How soon changes show, over `count` runs: the share of wanted rows that came meanwhile which were returned, and
    the share of answers that hold a row that was gone.
    """
    hit = judged.fresh & (judged.truth_ids[:, :, None] == returned[:, None, :]).any(axis=2)
    recalls, stale = [], []
    for number in range(count):
        mine = runs == number
        wanted = int(judged.fresh[mine].sum())
        recalls.append(float(hit[mine].sum()) / wanted if wanted else math.nan)
        stale.append(float(judged.stale[mine].mean()) if mine.any() else math.nan)
    return {
        "fresh_recall": over_runs(recalls),
        "stale_share": over_runs(stale),
        "fresh_wanted": int(judged.fresh.sum()),
    }


def _lives(writes: pa.Table, rows: int) -> tuple[moment.Lives, NDArray[np.int64]]:
    """When the rows of a run came and went, and which query each new row is, (new rows,)."""
    kinds = writes["kind"].to_pylist()
    ids = writes["ids"].to_pylist()
    sent_ns = writes["start_ns"].to_numpy()
    acknowledged_ns = np.where(
        writes["status"].to_numpy() == OK, writes["due_ns"].to_numpy() + writes["latency_ns"].to_numpy(), moment.NEVER
    )
    source = np.concatenate(
        [np.empty(0, np.int64), *(np.asarray(of, np.int64) for of in writes["from_query"].to_pylist())]
    )
    new = np.concatenate(
        [
            np.empty(0, np.int64),
            *(np.asarray(of, np.int64) for of, kind in zip(ids, kinds, strict=True) if kind == "insert"),
        ]
    )
    of_new = np.empty(len(new), np.int64)
    of_new[new - rows] = source
    lives = moment.Lives.loaded(rows, len(new))
    for kind, of, sent, acknowledged in zip(kinds, ids, sent_ns.tolist(), acknowledged_ns.tolist(), strict=True):
        (lives.insert if kind == "insert" else lives.delete)(np.asarray(of, np.int64), sent, acknowledged)
    return lives, of_new


def _candidates(
    vectors: Vectors,
    asked: NDArray[np.int64],
    source: NDArray[np.int64],
    truth_ids: NDArray[np.int64],
    truth_distances: NDArray[np.float64],
) -> moment.Candidates:
    """The truth of what was loaded, and the new rows within its reach; `asked` (q,) are rows of the queries."""
    rows = len(vectors.base)
    near: list[NDArray[np.int64]] = []
    far: list[NDArray[np.float64]] = []
    came = np.asarray(vectors.queries[source], np.float64)
    lengths = np.square(came).sum(axis=1)
    for first in range(0, len(asked), _NOMINATED):
        part = np.asarray(vectors.queries[asked[first : first + _NOMINATED]], np.float64)
        inner = part @ came.T
        own = np.square(part).sum(axis=1)[:, None]
        about = own + lengths - 2 * inner if vectors.metric == "l2" else 1.0 - inner
        # A rounding of sums in float64 is far below this; who is nominated in vain is dropped below.
        slack = 1e-9 * (own + lengths + 1.0)
        for number, row in enumerate(about, start=first):
            complete = truth_ids[number, -1] < 0
            reach = np.inf if complete else float(truth_distances[number, -1])
            chosen = np.flatnonzero(row <= reach + slack[number - first])
            exact = pair_distances(
                vectors.queries, vectors.queries, source[chosen], np.full(len(chosen), asked[number]), vectors.metric
            )
            near.append(rows + chosen[exact <= reach])
            far.append(exact[exact <= reach])
    return moment.Candidates.of(truth_ids, truth_distances, near, far)


def _distances(
    vectors: Vectors, source: NDArray[np.int64], returned: NDArray[np.int64], query: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Exact distances of the returned rows (n, k), loaded or new; +inf for padding and unknown ids."""
    rows = len(vectors.base)
    exact = np.full(returned.shape, np.inf)
    asked = np.broadcast_to(query[:, None], returned.shape)
    old = (returned >= 0) & (returned < rows)
    new = (returned >= rows) & (returned < rows + len(source))
    exact[old] = pair_distances(vectors.base, vectors.queries, returned[old], asked[old], vectors.metric)
    exact[new] = pair_distances(
        vectors.queries, vectors.queries, source[returned[new] - rows], asked[new], vectors.metric
    )
    return exact
