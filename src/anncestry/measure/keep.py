"""A run after its clock has stopped: its answers decoded and judged, its samples and its record written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry import durable
from anncestry.cells.indexes import effort_of
from anncestry.datasets.distance import pair_distances
from anncestry.drive import protocol
from anncestry.engines.base import Engine, streaming
from anncestry.measure import answers as decoding
from anncestry.measure import batches, clients, stream
from anncestry.measure.filtering import Filtering
from anncestry.measure.samples import Writer
from anncestry.measure.tune import Tuned
from anncestry.measure.vectors import Choice, Vectors
from anncestry.metrics.resources import by_group
from anncestry.provenance import gates, records
from anncestry.provenance.gates import Gate

_CHECKED_QUERIES = 200
_NEARBY_S = 0.6


@dataclass
class Job:
    """What the driver did at once: a whole run, or a probe of one that searches for a rate.

    `window_s` are its start and end on the clock of `time.monotonic`; `rate_per_s` None for a closed loop.
    """

    number: int
    folder: Path
    window_s: tuple[float, float]
    rate_per_s: float | None = None


@dataclass
class Run:
    """One run of one cell while it is measured."""

    key: str
    spec: Mapping[str, Any]
    number: int
    folder: Path
    choice: Choice
    members: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 1), np.int64))
    """Which vectors (of `choice`, the measured ones first) each request asks for: (requests, nq)."""
    encode_us: float = 0.0
    """How long a request's bytes took to make, before the clock."""
    filtering: Filtering | None = None
    tuned: Tuned | None = None
    jobs: list[Job] = field(default_factory=list)
    cold: dict[str, Any] | None = None
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What each member of the server counted meanwhile, the warm-up included: member → name → count."""
    fault: Mapping[str, Any] | None = None
    """When it was made and mended (see `fault.Fault.times`), in a run that had one."""
    changes: Sequence[stream.Changes] = ()
    """What was inserted and deleted meanwhile, in a run that had a stream."""
    rows_after: int = 0
    """Rows that the server counted after them."""
    failure: str | None = None
    ceiling: dict[str, Any] | None = None

    @property
    def workload(self) -> Mapping[str, Any]:
        """The workload part of the spec."""
        return self.spec["workload"]  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """For people."""
        return str(self.workload["name"])

    @property
    def cold_start(self) -> bool:
        """Whether the run has a server of its own, which has answered nothing before."""
        return bool(self.workload.get("start") == "cold")

    @property
    def streams(self) -> bool:
        """Whether rows come and go while the queries run."""
        return self.workload.get("stream") is not None

    @property
    def spends_server(self) -> bool:
        """Whether the server can't be used for another run afterwards: its data or members may be other ones."""
        return self.streams or self.workload.get("fault") is not None

    @property
    def requests(self) -> tuple[int, int]:
        """How many requests are measured, and how many after them only warm up."""
        measured = int((self.members[:, 0] < len(self.choice.measured)).sum())
        return measured, len(self.members) - measured

    def job_folder(self, number: int) -> Path:
        """A folder for the driver."""
        return self.folder / f"job{number}"

    @property
    def ef_search(self) -> int:
        """The search effort: what the workload asks for, or what was found for its target recall; 0 where none is."""
        return self.tuned.ef_search if self.tuned is not None else effort_of(self.workload)

    @property
    def window_s(self) -> tuple[float, float]:
        """From the first job's start to the last one's end."""
        return self.jobs[0].window_s[0], self.jobs[-1].window_s[1]


@dataclass(frozen=True)
class Context:
    """What the runs of a session have in common once it is over.

    `gates` judge the server, `settings` its settings at each search effort, `batched` its answers to requests of each
    number of vectors beside one, `counted` holds the server's own counts of
    what passes a filter (by the filter's repr), `facts` goes into every record, `inputs` names its sources; the index
    is `lossy` if it holds codes, so that distances are estimates, and `scanned` if the exact-search oracle had to scan
    those: then `gates` judge estimates, too, of all rows that match a filter.
    """

    engine: Engine
    vectors: Vectors
    gates: Sequence[Gate]
    settings: Mapping[int, Sequence[Gate]]
    batched: Mapping[int, Sequence[Gate]]
    counted: Mapping[str, int]
    waited_s: float
    resources: pa.Table
    facts: Mapping[str, Any]
    inputs: Mapping[str, Path]
    lossy: bool = False
    scanned: bool = False


@dataclass
class _Judged:
    """What was found wrong, and right, with the answers of a run."""

    errors: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    good: int = 0
    answers: int = 0
    wrong: int = 0
    short: int = 0
    repeated: int = 0
    primed: int = 0
    violated: int = 0
    returned: int = 0
    errors_rel: list[NDArray[np.float64]] = field(default_factory=list)

    def count_errors(self, found: Mapping[str, int]) -> None:
        for text, count in found.items():
            self.errors[text] = self.errors.get(text, 0) + count


def keep(run: Run, context: Context, measured_dir: Path) -> None:
    """Decode the responses of `run`, judge them, and leave record and samples in `measured_dir`/KEY/run-N."""
    work, vectors = run.workload, context.vectors
    k, filters, lenient = work["k"], run.filtering, work.get("short_answers") == "counted" or run.spends_server
    nq = batches.size_of(work)
    every = np.arange(len(run.choice.measured))
    selectivity = None if filters is None else filters.share(every)
    fewest = None if filters is None else int(filters.wanted(every, k).min())
    # Rows that came meanwhile are known, too; which of them a query may return is for recall to say.
    known = len(vectors.base) + sum(changes.ids.size for changes in run.changes if changes.kind == "insert")
    judged = _Judged()
    facts: list[dict[str, Any]] = []
    samples_path = run.folder / "samples.parquet"
    with Writer(samples_path) as writer:
        for job in run.jobs:
            left = protocol.open_outcome(job.folder)
            facts.append(left.facts)
            for client in left.facts["clients"]:
                judged.count_errors(client["errors"])
                judged.primed += client["prime_errors"]
            judged.sent += len(left)
            checked = _Checked()
            for samples, responses in left.parts():
                answered = clients.answers(context.engine, work, responses, samples["status"], vectors.metric)
                asked = run.members[samples["query"]].reshape(-1)  # by vector, as all that is judged
                judged.count_errors(answered.errors)
                good = int((answered.status == protocol.OK).sum())
                judged.good, judged.answers = judged.good + good // nq, judged.answers + good
                wanted = k if filters is None else filters.wanted(asked, k)
                off = decoding.wrong_counts(answered, known, wanted)
                bad = decoding.wrong_counts(answered, known, wanted, short_is_wrong=False)
                judged.wrong += bad if lenient else off
                judged.short += off - bad
                judged.repeated += decoding.repeated(answered)
                if filters is not None:
                    violated, returned = filters.violations(asked, answered)
                    judged.violated, judged.returned = judged.violated + violated, judged.returned + returned
                rows = run.choice.measured[asked]
                checked.add(rows, answered)
                table = _samples_table(run.number, rows, samples, answered, nq)
                if "slo" in work:
                    table = table.append_column("probe", pa.array(np.full(len(table), job.number, np.uint8)))
                writer.add(table)
            judged.errors_rel.append(checked.errors(vectors))
    nearby = near(context.resources, run.window_s, run.number)
    others = by_group(nearby, {"query": [run.window_s]})["other"]["query"]
    found = [
        *context.gates,
        *context.settings[run.ef_search],
        *context.batched.get(nq, ()),
        gates.alone(context.waited_s, others["cpu_avg_pct"]),
        gates.answered(judged.good, judged.sent),
        gates.result_count(judged.wrong, judged.answers, k, fewest),
        _distances(np.concatenate(judged.errors_rel), context),
        gates.primed(judged.primed),
    ]
    if lenient:
        found.append(gates.short_answers(judged.short, judged.repeated, judged.answers))
    if run.tuned is not None:
        found.append(run.tuned.gate())
    shared = gates.shared({node: counted["searches"] for node, counted in run.counters.items()}, work["clients"])
    if shared is not None:
        found.append(shared)
    if filters is not None and selectivity is not None:
        found.append(filters.gate(context.counted))
        found.append(gates.filtered(judged.violated, judged.returned, selectivity))
    kept_tables = {"resources": nearby}
    written = None
    if run.streams:
        folder = run.job_folder(run.jobs[0].number)
        written = stream.read(streaming(context.engine), run.changes, folder, run.number)
        found += stream.judge(written, len(vectors.base), run.rows_after, work["duration_s"])
        judged.count_errors(written.errors)
        kept_tables["writes"] = written.table
    paths = {"samples": samples_path, **{label: run.folder / f"{label}.parquet" for label in kept_tables}}
    for label, kept_table in kept_tables.items():
        parquet.write_table(kept_table, paths[label], compression="zstd")
    records.write_record(
        run.folder / "record.json",
        stage="run",
        key=run.key,
        spec=run.spec,
        body={
            "run": run.number,
            "window_s": list(run.window_s),
            **gates.verdict(found),
            "cold": run.cold,
            "failures": judged.errors,
            "counters": run.counters,
            "ef_search": run.ef_search,
            "tuning": None if run.tuned is None else run.tuned.facts(),
            **({} if run.fault is None else {"fault": run.fault}),
            **({} if written is None else {"stream": {"rows_after": run.rows_after, "jobs": written.facts}}),
            "selectivity": selectivity,
            "filters": None if filters is None else filters.facts(every),
            "short_answers": judged.short,
            "repeated_answers": judged.repeated,
            "client": {
                "asked_by": work.get("client", "bytes"),
                "warmup_source": run.choice.warmup_source,
                "ceiling": run.ceiling,
                "requests": judged.sent,
                **({"encode_us_per_request": run.encode_us} if "nq" in work else {}),
                "jobs": [{name: value for name, value in each.items() if name != "clients"} for each in facts],
            },
            "jobs": [
                {"number": job.number, "rate_per_s": job.rate_per_s, "window_s": list(job.window_s)} for job in run.jobs
            ],
            **context.facts,
        },
        inputs=context.inputs,
        outputs=paths,
    )
    for job in run.jobs:
        shutil.rmtree(run.job_folder(job.number))
    for leftover in ("requests.bin", "requests.idx"):
        (run.folder / leftover).unlink(missing_ok=True)
    # Kept apart from the session: a run that is measured stays so, whatever becomes of the others.
    kept = measured_dir / run.key / f"run-{run.number}"
    records.clear(kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    durable.rename(run.folder, kept)


def _distances(errors: NDArray[np.float64], context: Context) -> Gate:
    if context.lossy:
        median = float(np.median(errors)) if len(errors) else 0.0
        return gates.estimates(median, len(errors), nearest=context.scanned)
    return gates.distances(float(errors.max(initial=0.0)), len(errors))


class _Checked:
    """Reported distances to be held against exact ones: of the first good answer to each of up to 200 queries."""

    def __init__(self) -> None:
        self._rows = np.empty(0, np.int64)
        self._ids: NDArray[np.int64] | None = None
        self._reported: NDArray[np.float64] | None = None

    def add(self, rows: NDArray[np.int64], answered: decoding.Answers) -> None:
        """Answers to the queries `rows` (n,), of which those of the lowest rows are kept."""
        good = np.flatnonzero(answered.status == protocol.OK)
        distinct, first = np.unique(rows[good], return_index=True)
        new = ~np.isin(distinct, self._rows)
        first = good[first[new]]
        together = np.concatenate([self._rows, distinct[new]])
        order = np.argsort(together)[:_CHECKED_QUERIES]
        self._rows = together[order]
        ids, reported = answered.ids[first], answered.distances[first]
        self._ids = (ids if self._ids is None else np.concatenate([self._ids, ids]))[order]
        self._reported = (reported if self._reported is None else np.concatenate([self._reported, reported]))[order]

    def errors(self, vectors: Vectors) -> NDArray[np.float64]:
        """Relative differences of reported from exact distances, (any,)."""
        if self._ids is None or self._reported is None:
            return np.empty(0)
        known = (self._ids >= 0) & (self._ids < len(vectors.base))
        query_rows = np.repeat(self._rows, self._ids.shape[1]).reshape(self._ids.shape)[known]
        exact = pair_distances(vectors.base, vectors.queries, self._ids[known], query_rows, vectors.metric)
        reported = self._reported[known]
        return decoding.distance_errors(reported, exact, vectors.metric)


def _samples_table(
    run: int, rows: NDArray[np.int64], samples: NDArray[Any], answered: decoding.Answers, nq: int
) -> pa.Table:
    """Raw data of a run, a row a request; `query` is a row of the dataset's queries, `status` 0 ok, 1 error, 2 timeout.

    Of requests of several vectors `query` is the first of them, and two more columns say all (`batches.columns`).
    """
    kept = answered.ids != -1
    sizes = kept.sum(axis=1).reshape(-1, nq)
    offsets = np.concatenate([[0], np.cumsum(sizes.sum(axis=1))]).astype(np.int32)
    rows = rows.reshape(-1, nq)
    return pa.table(
        {
            "run": pa.array(np.full(len(rows), run, np.uint8)),
            "client": pa.array(samples["client"].astype(np.uint16)),
            "query": pa.array(rows[:, 0].astype(np.uint32)),
            "due_ns": pa.array(samples["due_ns"].astype(np.int64)),
            "start_ns": pa.array(samples["start_ns"].astype(np.int64)),
            "latency_ns": pa.array(samples["latency_ns"].astype(np.int64)),
            "status": pa.array(answered.status[::nq]),
            "ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(answered.ids[kept])),
            "distances": pa.ListArray.from_arrays(
                pa.array(offsets), pa.array(answered.distances[kept].astype(np.float32))
            ),
            **(batches.columns(rows, sizes) if nq > 1 else {}),
        }
    )


def near(table: pa.Table, window_s: tuple[float, float], run: int) -> pa.Table:
    """The resource samples in or next to the window, marked with the run.

    Always with the last one before it and the first one after it: on a busy machine the sampler itself may be late,
    and a window without samples on both sides has no use of resources to interpolate.
    """
    at = table["at_s"].to_numpy()
    start, end = window_s
    first = min(start - _NEARBY_S, *at[at <= start][-1:])
    last = max(end + _NEARBY_S, *at[at >= end][:1])
    keep = (at >= first) & (at <= last)
    chosen = table.filter(pa.array(keep))
    return chosen.append_column("run", pa.array(np.full(len(chosen), run, np.uint8)))
