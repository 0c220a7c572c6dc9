"""Rows inserted and deleted while queries run: which, when, what became of them, and what recall is worth meanwhile.

What is inserted are queries of the dataset that are not asked: real vectors, which the loaded index has not. What is
deleted are loaded rows, each once. Both come at a constant rate, in requests of `batch_rows` rows, on connections of
their own, on the clock of the queries; every run starts from the loaded index again. Which rows, in which order and
when, hangs on the seed and the number of the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry.datasets import metadata
from anncestry.datasets.distance import Floats, Ids, pair_distances
from anncestry.drive import protocol
from anncestry.drive.client import ERROR, OK
from anncestry.drive.driver import client_facts
from anncestry.engines.base import WRITES, Batch, DecodeError, Engine, Server
from anncestry.errors import DataError
from anncestry.features.stream import changes_of
from anncestry.measure import publish
from anncestry.measure.recall import Truth, score_answers
from anncestry.measure.runs import Context, Findings, Measuring, Published, Scoring, runs_of
from anncestry.measure.samples import lists
from anncestry.measure.server import System
from anncestry.measure.vectors import Vectors, held_out
from anncestry.metrics import latency, recall
from anncestry.metrics.latency import over_runs
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate

ON_TIME_MS = 1000.0
"""A change that is acknowledged later than this after it was due came late."""
KEPT_SHARE = 0.95
"""A stream of which a smaller share of rows was on time has not kept its rate."""
_DONE = {"insert": "inserted", "delete": "deleted"}
_NOMINATED = 256


@dataclass(frozen=True)
class Changes:
    """All requests of a kind in a run: `ids` (requests, batch) of rows, `due_ns` (requests,) when they are due.

    `from_query` (requests, batch): of inserted rows, which of the dataset's queries each is; (requests, 0) of deleted
    ones.
    """

    kind: str
    ids: Ids
    due_ns: Ids
    from_query: Ids


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
            source = random.permutation(held_out(vectors, work["queries"], work["warmup"], counts[kind], seed))
            ids = rows + np.arange(counts[kind])
        else:
            ids, source = random.permutation(rows)[: counts[kind]], np.empty(0, np.int64)
        due_ns = (due_s * 1e9).astype(np.int64)
        found.append(Changes(kind, ids.reshape(requests, batch), due_ns, source.reshape(requests, -1)))
    return found


def encode(engine: Engine, vectors: Vectors, server: Server, changes: Changes) -> list[bytes]:
    """The request bytes of these changes. New rows get the columns that a longer dataset's would have."""
    if changes.kind == "delete":
        return [engine.encode_delete(server, ids.tolist()) for ids in changes.ids]
    seed, first, count = vectors.record["spec"]["seed"], len(vectors.base), changes.ids.size
    category, price = metadata.category(count, seed, first), metadata.price(count, seed, first)
    requests = []
    for ids, source in zip(changes.ids, changes.from_query, strict=True):
        base, region = np.asarray(vectors.queries[source]), np.asarray(vectors.query_region[source])
        rows = Batch(int(ids[0]), base, category[ids - first], price[ids - first], region)
        requests.append(engine.encode_insert(server, rows))
    return requests


def _refusal(engine: Engine, changes: Changes, response: bytes) -> str | None:
    try:
        done = engine.decode_write(changes.kind, response)
    except DecodeError as error:
        return str(error)
    batch = changes.ids.shape[1]
    return None if done in (None, batch) else f"{changes.kind}: {done} of {batch} rows"


def _flat(column: pa.ChunkedArray) -> Ids:
    flat: Ids = compute.list_flatten(column).to_numpy().astype(np.int64)
    return flat


def _columns(writes: pa.Table) -> tuple[NDArray[Any], ...]:
    """Of each request, (n,): run, kind, number of rows, and whether they were acknowledged."""
    sizes = compute.list_value_length(writes["ids"]).to_numpy()
    return writes["run"].to_numpy(), np.asarray(writes["kind"].to_pylist()), sizes, writes["status"].to_numpy() == OK


def judge(writes: pa.Table, rows: int, counted: int, duration_s: float) -> list[Gate]:
    """What must hold of a run with changes: `rows` were loaded, and the server counts `counted` after it."""
    _, kinds, sizes, good = _columns(writes)
    done, doubt = ({kind: int(sizes[of & (kinds == kind)].sum()) for kind in WRITES} for of in (good, ~good))
    sure = rows + done["insert"] - done["delete"]
    none = [kind for kind in WRITES if (kinds == kind).any() and not done[kind]]
    return [
        gates.rows_after_changes(counted, sure - doubt["delete"], sure + doubt["insert"]),
        gates.written(summary(writes, duration_s)["detail"], none),
    ]


def summary(writes: pa.Table, duration_s: float) -> dict[str, Any]:
    """What clients saw of the changes, over the runs in the table, each of `duration_s`.

    By kind, rows acknowledged a second while the clock ran, as answers of queries are counted, and the latency of
    requests from when they were due. `on_time` is the share of
    rows that were acknowledged within `ON_TIME_MS` of it; `kept` whether that was nearly all in every run, and
    `detail` says it in words; `failed` counts the rows that were not acknowledged.
    """
    run, kinds, sizes, good = _columns(writes)
    due_ns, latency_ns, status = (writes[name].to_numpy() for name in ("due_ns", "latency_ns", "status"))
    of_runs = [run == number for number in np.unique(run)]
    within = good & (due_ns + latency_ns <= duration_s * 1e9)

    def rows(chosen: NDArray[np.bool_]) -> list[float]:
        """Of each run, in the chosen requests."""
        return [float(sizes[chosen & of_run].sum()) for of_run in of_runs]

    of_kinds = {}
    for kind in WRITES:
        mine = kinds == kind
        if not mine.any():
            continue
        each = [mine & of_run for of_run in of_runs]
        told = [latency.of_run(latency.Run(due_ns[of], latency_ns[of], status[of], duration_s)) for of in each]
        of_kinds[kind] = {
            "rows_per_s": over_runs([done / duration_s for done in rows(mine & within)]),
            **{name: over_runs([found[name] for found in told]) for name in ("p50_ms", "p99_ms", "max_ms")},
        }
    in_time = rows(good & (latency_ns <= ON_TIME_MS * 1e6))
    on_time = [done / max(1, every) for done, every in zip(in_time, rows(np.ones_like(good)), strict=True)]
    kept = all(share >= KEPT_SHARE for share in on_time)
    rates = ", ".join(
        f"{found['rows_per_s']['value']:.0f} rows {_DONE[kind]} a second" for kind, found in of_kinds.items()
    )
    return {
        "kinds": of_kinds,
        "on_time": over_runs(on_time),
        "failed": over_runs(rows(~good)),
        "kept": kept,
        "detail": (
            f"{rates}; {100 * min(on_time):.1f} % of the changes acknowledged within {ON_TIME_MS / 1e3:g} s of when "
            "they were due" + ("" if kept else f": the rate was not kept ({100 * KEPT_SHARE:g} % wanted)")
        ),
    }


def _gates_again(published: Published) -> list[list[dict[str, Any]]]:
    """Those of each run, from its changes and from what the server counted before and after them."""
    stored, writes = published.stored, published.table("writes")
    rows, duration_s = stored["server"]["rows"], published.workload["duration_s"]
    of_runs = [writes.filter(compute.equal(writes["run"], number)) for number in range(published.count)]
    counted = (run["rows_after"] for run in stored["stream"]["runs"])
    judged = (judge(of_run, rows, after, duration_s) for of_run, after in zip(of_runs, counted, strict=True))
    return [[asdict(gate) for gate in of_run] for of_run in judged]


class Stream(Measuring):
    """The changes of a run, and what became of them."""

    def beside(self, system: System, server: Server, folder: Path) -> list[str]:
        """A job for each kind of change, named as in `engines.base.WRITES`."""
        run, work, engine, vectors = self.run, self.run.workload, system.engine, system.vectors
        self.folder, self.planned = folder, plan(work, vectors, run.spec["seed"], run.number)
        self.rows_added = sum(changes.ids.size for changes in self.planned if changes.kind == "insert")
        for changes in self.planned:
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
        return [changes.kind for changes in self.planned]

    def after(self, system: System, server: Server, zero_s: float) -> None:
        self.rows_after = system.engine.probe(server).rows

    def judge(self, context: Context, findings: Findings) -> None:
        jobs: dict[str, Any] = {}
        tables = [self._read(context.engine, changes, findings, jobs) for changes in self.planned]
        writes = findings.tables["writes"] = pa.concat_tables(tables)
        findings.gates += judge(writes, len(context.vectors.base), self.rows_after, self.run.workload["duration_s"])
        findings.facts["stream"] = {"rows_after": self.rows_after, "jobs": jobs}

    def _read(self, engine: Engine, changes: Changes, findings: Findings, jobs: dict[str, Any]) -> pa.Table:
        """The outcome of the job of these changes, a row a request, by time; its facts go to `jobs`.

        Columns: run, kind, request, due_ns, start_ns (sent), latency_ns (from due), status (as of queries), ids, and
        from_query, empty for deletions. A reply that refuses a row makes its whole request an error.
        """
        outcome = protocol.read_outcome(self.folder / changes.kind)
        samples, status = outcome.samples, outcome.samples["status"].astype(np.uint8)
        for client in outcome.facts.pop("clients"):
            findings.errors.update(client["errors"])
        for number in np.flatnonzero(status == OK).tolist():
            problem = _refusal(engine, changes, outcome.responses[number])
            if problem is not None:
                status[number] = ERROR
                findings.errors[problem[:300]] += 1
        jobs[changes.kind] = {**outcome.facts, "samples": len(samples)}
        order = np.argsort(samples["due_ns"], kind="stable")
        samples = samples[order]
        asked = samples["query"].astype(np.int64)
        of_rows = {"ids": changes.ids[asked], "from_query": changes.from_query[asked]}
        return pa.table(
            {
                "run": pa.array(np.full(len(asked), self.run.number, np.uint8)),
                "kind": pa.array([changes.kind] * len(asked), pa.string()),
                "request": pa.array(asked.astype(np.uint32)),
                **{name: pa.array(samples[name].astype(np.int64)) for name in ("due_ns", "start_ns", "latency_ns")},
                "status": pa.array(status[order]),
                **{name: lists(ids.reshape(-1), np.full(len(ids), ids.shape[1])) for name, ids in of_rows.items()},
            }
        )

    @classmethod
    def summarise(cls, published: Published) -> dict[str, Any]:
        runs = [
            {
                "rows_after": run["rows_after"],
                "clients": {kind: client_facts([facts], facts["samples"]) for kind, facts in run["jobs"].items()},
            }
            for run in published.facts("stream")
        ]
        return {"stream": {**summary(published.table("writes"), published.workload["duration_s"]), "runs": runs}}

    @classmethod
    def again(cls, published: Published) -> Iterator[tuple[str, Any, Any]]:
        for name, value in summary(published.table("writes"), published.workload["duration_s"]).items():
            stored = published.stored["stream"].get(name)
            yield f"{name} of its stream is {stored}, but the samples of the changes give {value}", stored, value
        for gate in publish.combine(_gates_again(published)):
            known = next((each for each in published.stored["gates"] if each["gate"] == gate["gate"]), None)
            said = f"its gate `{gate['gate']}` is not what the samples of the changes give: {gate['detail']}"
            yield said, known, gate

    @classmethod
    def scoring(cls, measured: Mapping[str, Any], samples_path: Path, truth: Truth) -> Scoring:
        return _OfMoments(measured, samples_path, truth)


MEASURING = Stream


# Recall of the moment


class _OfMoments(Scoring):
    """Scores against the truth of each moment, from what was changed (the file beside the samples)."""

    columns = ("start_ns", "latency_ns")
    at_once = True

    def __init__(self, measured: Mapping[str, Any], samples_path: Path, truth: Truth) -> None:
        self.measured, self.truth = measured, truth
        self.writes = parquet.ParquetFile(samples_path.parent / measured["outputs"]["writes"]["path"]).read()
        self.freshness: dict[str, Any] = {}

    def score(self, table: pa.Table, ids: Ids, runs: NDArray[np.integer[Any]]) -> dict[str, Floats]:
        truth, work = self.truth, self.measured["spec"]["workload"]
        judged, exact = against_moment(table, ids, self.writes, truth)
        if judged.shallow.any():
            raise DataError(
                f"{truth.path}: {truth.ids.shape[1]} neighbours a query are too few: of {int(judged.shallow.sum())} "
                f"answers of {self.measured['key']} so many near rows were deleted that the next ones are not known"
            )
        answered = table["status"].to_numpy() == OK
        self.freshness = freshness(judged, ids, runs, runs_of(self.measured), answered)
        return score_answers(ids, exact, judged.ids, judged.distances, work["k"], truth.vectors.metric)

    def body(self, means: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"stream": self.freshness}


def against_moment(samples: pa.Table, returned: Ids, writes: pa.Table, truth: Truth) -> tuple[recall.Moment, Floats]:
    """Every answer of the queries' `samples` with what it `returned` (n, k), against the truth of its recall.

    `truth` is that of what was loaded. The second array, (n, k), holds the distances of the returned rows, +inf of
    those that were gone.
    """
    n, k = returned.shape
    exact = np.full((n, k), np.inf)
    whole = recall.Moment(
        np.full((n, k), -1, np.int64),
        np.full((n, k), np.inf),
        np.zeros((n, k), np.bool_),
        np.zeros((n, k), np.bool_),
        np.zeros(n, np.bool_),
    )
    runs, query = samples["run"].to_numpy(), samples["query"].to_numpy().astype(np.int64)
    sent_ns = samples["start_ns"].to_numpy()
    answered_ns = samples["due_ns"].to_numpy() + samples["latency_ns"].to_numpy()
    for run in np.unique(runs):
        mine = np.flatnonzero(runs == run)
        lives, source = _lives(writes.filter(pa.array(writes["run"].to_numpy() == run)), len(truth.vectors.base))
        asked, of_sample = np.unique(query[mine], return_inverse=True)
        candidates = _candidates(truth, asked, source)
        times = sent_ns[mine], answered_ns[mine]
        part = recall.truth_of_moment(candidates, of_sample.reshape(-1), *times, returned[mine], lives, k)
        for field in fields(part):
            getattr(whole, field.name)[mine] = getattr(part, field.name)
        exact[mine] = np.where(part.gone, np.inf, _distances(truth.vectors, source, returned[mine], query[mine]))
    return whole, exact


def freshness(
    judged: recall.Moment, returned: Ids, runs: NDArray[np.integer[Any]], count: int, answered: NDArray[np.bool_]
) -> dict[str, Any]:
    """How soon changes show, over `count` runs: the share of wanted rows that came meanwhile which were returned, and
    the share of answers (the requests that were `answered`) that hold a row that was gone.
    """
    hit = judged.fresh & (judged.ids[:, :, None] == returned[:, None, :]).any(axis=2)
    recalls, stale = [], []
    for number in range(count):
        mine = runs == number
        wanted = int(judged.fresh[mine].sum())
        recalls.append(float(hit[mine].sum()) / wanted if wanted else math.nan)
        here = mine & answered
        stale.append(float(np.mean(judged.gone[here].any(axis=1))) if here.any() else math.nan)
    return {
        "fresh_recall": over_runs(recalls),
        "stale_share": over_runs(stale),
        "fresh_wanted": int(judged.fresh.sum()),
    }


def _lives(writes: pa.Table, rows: int) -> tuple[recall.Lives, Ids]:
    """When the rows of a run came and went, and which query each new row is, (new rows,)."""
    kinds, ids = writes["kind"].to_pylist(), writes["ids"].to_pylist()
    sent_ns = writes["start_ns"].to_numpy()
    answered_ns = writes["due_ns"].to_numpy() + writes["latency_ns"].to_numpy()
    acknowledged_ns = np.where(writes["status"].to_numpy() == OK, answered_ns, recall.NEVER)
    new = _flat(writes.filter(pa.array([kind == "insert" for kind in kinds], pa.bool_()))["ids"])
    of_new = np.empty(len(new), np.int64)
    of_new[new - rows] = _flat(writes["from_query"])
    lives = recall.Lives.loaded(rows, len(new))
    for kind, of, sent, acknowledged in zip(kinds, ids, sent_ns.tolist(), acknowledged_ns.tolist(), strict=True):
        (lives.insert if kind == "insert" else lives.delete)(np.asarray(of, np.int64), sent, acknowledged)
    return lives, of_new


def _candidates(truth: Truth, asked: Ids, source: Ids) -> recall.Candidates:
    """The truth of what was loaded, and the new rows within its reach; `asked` (q,) are rows of the queries."""
    vectors, rows = truth.vectors, len(truth.vectors.base)
    truth_ids, truth_distances = truth.of(asked)
    near: list[Ids] = []
    far: list[Floats] = []
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
    return recall.Candidates.of(truth_ids, truth_distances, near, far)


def _distances(vectors: Vectors, source: Ids, returned: Ids, query: Ids) -> Floats:
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
