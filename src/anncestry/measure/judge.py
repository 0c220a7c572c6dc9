"""A run after its clock has stopped: its answers decoded and judged, its samples and its record written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry import durable
from anncestry.datasets.distance import Floats, Ids
from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.measure import samples as raw
from anncestry.measure.requests import Answers, decode, decoder, distance_errors, impossible, nq_of
from anncestry.measure.runs import Context, Findings, Job, Run, measuring_of
from anncestry.measure.samples import Writer
from anncestry.measure.tune import Tuned
from anncestry.measure.vectors import Vectors
from anncestry.metrics import defects, latency
from anncestry.metrics.recall import exact_distances
from anncestry.metrics.resources import of_device
from anncestry.provenance import gates, records
from anncestry.provenance.gates import Gate

_CHECKED_QUERIES, _COMPARED_QUERIES_MIN = 200, 20
_NEARBY_S = 0.6


class _Judged:
    """The answers of a run: decoded, counted by what is wrong with them, and written as samples."""

    def __init__(self, run: Run, context: Context) -> None:
        self.run, self.context = run, context
        self.k, self.nq = run.workload["k"], nq_of(run.workload)
        # Rows that came meanwhile are known, too; which of them a query may return is for recall to say.
        self.rows_known = len(context.vectors.base) + sum(feature.rows_added for feature in run.features)
        self.selectivity: float | None = None
        self.filters: dict[str, Any] | None = None
        if run.filtering is not None:
            every = np.arange(len(run.choice.measured))
            self.selectivity, self.filters = run.filtering.share(every), run.filtering.facts(every)
        self.findings = Findings()
        self.driver: list[dict[str, Any]] = []
        """The driver's facts of each job."""
        self.sent = self.good = self.answers = self.impossible = self.undecodable = self.primed = self.violating = 0
        self.errors_rel: list[Floats] = []
        self.checked: _Checked | None = None
        """Of the last job."""
        self.busy = latency.Busy(run.workload["clients"]) if latency.closed(run.workload) else None

    def add(self, job: Job, writer: Writer) -> None:
        outcome = protocol.open_outcome(job.folder)
        self.driver.append(outcome.facts)
        for client in outcome.facts["clients"]:
            self.findings.errors.update(client["errors"])
            self.primed += client["prime_errors"]
        self.sent += len(outcome)
        checked = _Checked(self.k)
        for samples, responses in outcome.parts():
            part = self._add_part(samples, responses, checked)
            if self.busy is not None:
                self.busy.add(*(samples[name] for name in ("client", "due_ns", "latency_ns")))
            if "slo" in self.run.workload:
                part = part.append_column("probe", pa.array(np.full(len(part), job.number, np.uint8)))
            writer.add(part)
        self.errors_rel.append(checked.errors(self.context.vectors, self.context.engine.float32_scores))
        self.checked = checked

    def _add_part(self, samples: NDArray[Any], responses: Sequence[bytes], checked: _Checked) -> pa.Table:
        """Judge some of the answers of a job; returns their samples."""
        run, metric = self.run, self.context.vectors.metric
        read = decoder(self.context.engine, run.workload)
        answered = decode(read, responses, samples["status"], self.k, metric, self.nq)
        asked = run.members[samples["query"]].reshape(-1)  # by vector, as all that is judged
        self.findings.errors.update(answered.errors)
        good = answered.status == OK
        answers = int(good.sum())
        self.good, self.answers = self.good + answers // self.nq, self.answers + answers
        self.impossible += impossible(answered, self.rows_known)
        self.undecodable += answered.undecodable
        wanted, violating = self.k, None
        if run.filtering is not None:
            wanted, violating = run.filtering.wanted(asked, self.k), run.filtering.violating(asked, answered.ids)
            self.violating += int((violating & good).sum())
        defect = np.where(good, defects.of_answers(answered.ids, wanted, violating), 0).astype(np.uint8)
        rows = run.choice.measured[asked]
        checked.add(rows, answered)
        return raw.table(run.number, rows, samples, answered, self.nq, defect)

    def gates(self) -> list[Gate]:
        """Everything that must hold of the run."""
        run, context = self.run, self.context
        searches = {node: counted["searches"] for node, counted in run.counters.items()}
        judged = [
            *context.gates,
            *run.afterwards,
            *context.settings[run.ef_search],
            *context.batched.get(self.nq, ()),
            *(() if run.filtering is None else context.filtered.get(repr(run.filtering.asked.distinct), ())),
            self._reference(),
            gates.answered(self.good, self.sent),
            gates.decodable(self.undecodable, self.sent),
            gates.possible(self.impossible, self.answers, self.k),
            _distances(np.concatenate(self.errors_rel), context),
            gates.primed(self.primed),
            # A client that is refused by a killed member pauses before it tries again: that is in no sample.
            None if self.busy is None or run.members_may_fail else gates.littles_law(**self.busy.facts()),
            None if run.tuned is None else run.tuned.gate(),
            gates.shared(searches, run.workload["clients"]),
            self._storage_limits(),
        ]
        if run.filtering is not None and self.selectivity is not None:
            judged.append(run.filtering.gate(context.counted))
            judged.append(gates.filtered(self.violating, self.answers, self.selectivity))
        return [gate for gate in judged if gate is not None]

    def _reference(self) -> Gate | None:
        """Complete answers to the queries whose distances were checked against those of the reference index."""
        reference, known = self.context.reference, of_reference(self.run, self.context)
        if reference is None or known is None or self.checked is None:
            return None
        recall, distances = known
        rows, ids = self.checked.complete()
        asked, ours, theirs = np.intersect1d(rows, self.run.choice.measured[:_CHECKED_QUERIES], return_indices=True)
        found = reference.score(np.asarray(self.context.vectors.queries[asked]), ids[ours], distances[theirs])
        if len(asked) < _COMPARED_QUERIES_MIN:
            return None
        return gates.reference_recall(float(found.mean()), float(recall[theirs].mean()), len(asked), self.run.ef_search)

    def _storage_limits(self) -> Gate | None:
        """Whether what was read from the storage path kept to its limits, if it has some."""
        limits = self.context.facts.get("storage_path", {}).get("limits")
        if limits is None or self.context.resources is None:
            return None
        return gates.storage_limits(limits["asked"], of_device(self.context.resources, [self.run.counted_s]))

    def body(self) -> dict[str, Any]:
        """What the record holds of the run itself, beside its gates."""
        run = self.run
        return {
            "failures": self.findings.errors,
            "counters": run.counters,
            "disturbance": run.disturbance,
            "ef_search": run.ef_search,
            "tuning": None if run.tuned is None else run.tuned.facts(),
            **self.findings.facts,
            "selectivity": self.selectivity,
            "filters": self.filters,
            "client": {
                "asked_by": run.workload.get("client", "bytes"),
                "warmup_source": run.choice.warmup_source,
                "ceiling": run.ceiling,
                "requests": self.sent,
                **({"encode_us_per_request": run.encode_us} if "nq" in run.workload else {}),
                "jobs": [{name: value for name, value in job.items() if name != "clients"} for job in self.driver],
            },
            "jobs": [
                {
                    "number": job.number,
                    "rate_per_s": job.rate_per_s,
                    "window_s": list(job.window_s),
                    "counted": job in run.counted,
                }
                for job in run.jobs
            ],
        }


def of_reference(run: Run, context: Context) -> tuple[Floats, Floats] | None:
    """What the reference index finds of the queries whose answers are checked, and their true distances.

    None where there is none to compare with: under a filter, or where rows change.
    """
    if context.reference is None or run.filtering is not None or run.spends_server:
        return None
    return context.reference.recall(run.choice.measured[:_CHECKED_QUERIES], run.workload["k"], run.ef_search)


def judge(run: Run, context: Context, measured_dir: Path) -> None:
    """Decode the responses of `run`, judge them, and leave record and samples in `measured_dir`/KEY/run-N."""
    answers = _Judged(run, context)
    samples_path = run.folder / "samples.parquet"
    with Writer(samples_path) as writer:
        for job in run.jobs:
            answers.add(job, writer)
    tables = {"resources": near(context.resources, run.window_s, run.number)}
    judged = answers.gates()
    findings = answers.findings
    for feature in run.features:
        feature.judge(context, findings)
    tables |= findings.tables
    paths = {"samples": samples_path, **{label: run.folder / f"{label}.parquet" for label in tables}}
    for label, table in tables.items():
        parquet.write_table(table, paths[label], compression="zstd")
    records.write_record(
        run.folder / "record.json",
        stage="run",
        key=run.key,
        spec=run.spec,
        body={
            "run": run.number,
            "window_s": list(run.counted_s),
            **gates.verdict([*judged, *findings.gates]),
            **answers.body(),
            **context.facts,
        },
        inputs=context.inputs,
        outputs=paths,
    )
    _move(run, measured_dir)


def _move(run: Run, measured_dir: Path) -> None:
    """Move the run's folder to where it stays, without the driver's files.

    That is apart from the session: a run that is measured stays so, whatever becomes of the others.
    """
    for job in run.jobs:
        records.clear(run.folder / f"job{job.number}")  # not there, where a pair has both sides' jobs in one folder
    for leftover in run.folder.glob("requests.*"):
        leftover.unlink()
    kept = measured_dir / run.key / f"run-{run.number}"
    records.clear(kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    durable.rename(run.folder, kept)


def gates_again(
    workload: Mapping[str, Any], path: Path, by_run: raw.Runs, told: Sequence[Mapping[str, Any]]
) -> list[list[Gate]]:
    """The gates of each run that its samples decide, `by_run` in the file `path`, or what its record has `told` of it.

    They are equal to those of `_Judged.gates`. Of requests with several vectors, samples say that one of the answers
    violates the filter, not how many do: that gate is left out there.
    """
    may_fail = any(of.members_may_fail(workload) for of in measuring_of(workload))
    waits = latency.closed(workload) and not may_fail
    busy = raw.busy_by_run(path, workload["clients"]) if waits else {}
    found = []
    for number, of_run in enumerate(told):
        parts = [part for (run, _), part in by_run.items() if run == number]
        good = sum(int((part.status == OK).sum()) for part in parts)
        judged = [
            gates.answered(good, sum(len(part.status) for part in parts)),
            gates.littles_law(**busy[number].facts()) if number in busy else None,
        ]
        if (tuning := of_run["tuning"]) is not None:
            judged.append(replace(Tuned.of(tuning), target_recall=workload["target_recall"]).gate())
        if "counters" in of_run:
            searches = {node: counted["searches"] for node, counted in of_run["counters"].items()}
            judged.append(gates.shared(searches, workload["clients"]))
        selectivity = of_run["selectivity"]
        if selectivity is not None and nq_of(workload) == 1:
            judged.append(gates.filtered(sum(map(_violating, parts)), good, selectivity))
        found.append([gate for gate in judged if gate is not None])
    return found


def _violating(part: latency.Run) -> int:
    """How many good answers hold a row that the filter excludes."""
    if part.defect is None:
        return 0
    return int(((part.status == OK) & (part.defect & defects.BITS["violating"] > 0)).sum())


def _distances(errors: Floats, context: Context) -> Gate:
    if context.lossy:
        median = float(np.median(errors)) if len(errors) else 0.0
        return gates.estimates(median, len(errors), nearest=context.scanned)
    return gates.distances(float(errors.max(initial=0.0)), len(errors))


class _Checked:
    """Reported distances to be held against exact ones: of the first good answer to each of up to 200 queries."""

    def __init__(self, k: int) -> None:
        self._rows, self._ids, self._reported = np.empty(0, np.int64), np.empty((0, k), np.int64), np.empty((0, k))

    def add(self, rows: Ids, answered: Answers) -> None:
        """Answers to the queries `rows` (n,), of which those of the lowest rows are kept."""
        good = answered.status == OK
        ids = np.concatenate([self._ids, answered.ids[good]])
        reported = np.concatenate([self._reported, answered.distances[good]])
        distinct, first = np.unique(np.concatenate([self._rows, rows[good]]), return_index=True)
        first = first[:_CHECKED_QUERIES]
        self._rows, self._ids, self._reported = distinct[:_CHECKED_QUERIES], ids[first], reported[first]

    def complete(self) -> tuple[Ids, Ids]:
        """The queries (n,) that were answered with k different rows, and these (n, k)."""
        ids = np.sort(self._ids, axis=1)
        whole = (ids[:, 0] >= 0) & (ids[:, 1:] != ids[:, :-1]).all(axis=1)
        return self._rows[whole], self._ids[whole]

    def errors(self, vectors: Vectors, of_scores: bool) -> Floats:
        """Relative differences of reported from exact distances, (any,)."""
        queries = np.asarray(vectors.queries[self._rows])
        exact = exact_distances(vectors.base, queries, self._ids, vectors.metric)
        known = np.isfinite(exact)
        return distance_errors(self._reported[known], exact[known], vectors.metric, of_scores)


def near(table: pa.Table, window_s: tuple[float, float], run: int) -> pa.Table:
    """The resource samples in or next to the window, marked with the run.

    Always with the last one before it and the first one after it, and with those at its edges: on a busy machine the
    sampler itself may be late, and a window without samples on both sides has no use of resources to interpolate.
    """
    at = table["at_s"].to_numpy()
    at_edges = at[table["edge"].to_numpy()]
    start, end = window_s
    first = min(start - _NEARBY_S, *at[at <= start][-1:], *at_edges[at_edges <= start][-1:])
    last = max(end + _NEARBY_S, *at[at >= end][:1], *at_edges[at_edges >= end][:1])
    keep = (at >= first) & (at <= last)
    chosen = table.filter(pa.array(keep))
    return chosen.append_column("run", pa.array(np.full(len(chosen), run, np.uint8)))
