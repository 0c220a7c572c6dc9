"""An open loop at a rate, or the search for the highest rate within a bound: a run of many jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anncestry.engines.base import Engine
from anncestry.measure import requests, samples
from anncestry.measure.runs import Job, Measuring, Published, Run, Scoring, counted_jobs, open_samples
from anncestry.metrics import capacity, latency


class Rate(Measuring):
    """The open loop of a run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.probes: list[dict[str, Any]] = []
        """What the search for a rate has found so far."""

    def run_jobs(self, drive: Callable[[float | None], Job], engine: Engine) -> bool:
        work = self.run.workload
        if "slo" not in work:
            drive(work["rate_per_s"])
            return True
        slo, window_s = work["slo"], work["duration_s"]

        def passes(rate_per_s: float) -> bool:
            job = drive(rate_per_s)
            measured, lag_ms = open_samples(job, self.run, engine)
            probe = capacity.judge(job.number, rate_per_s, measured, lag_ms, slo["p99_ms"])
            self.probes.append(asdict(probe))
            return probe.passed

        closed, _ = open_samples(drive(None), self.run, engine)
        lowest_per_s = capacity.SAMPLES_MIN / window_s
        capacity.search(passes, latency.of_run(closed)["qps"], slo["precision"], slo["max_probes"], lowest_per_s)
        return True

    def counted(self) -> Sequence[Job] | None:
        best = capacity.accepted(self.probes)
        return None if best is None else [job for job in self.run.jobs if job.number == best["number"]]

    @classmethod
    def samples(cls, published: Published) -> list[latency.Run] | None:
        """Of a search for a rate, the samples at the highest rate that passed."""
        if "slo" not in published.workload:
            return None
        best = _best(_probes(published))
        return [samples.of(published.by_run, published.workload, *place) for place in enumerate(best)]

    @classmethod
    def summarise(cls, published: Published) -> Mapping[str, Any]:
        probes = {"probes": _probes(published)} if "slo" in published.workload else {}
        return {**probes, "open_loop": open_loop(published.runs)}

    @classmethod
    def again(cls, published: Published) -> Iterator[tuple[str, Any, Any]]:
        if "slo" in published.workload:
            stored = published.stored["probes"]
            yield "its probes do not match its samples", stored, _judged(published, stored)
        yield "its requests were not due when its rates have them", _on_schedule(published), True

    @classmethod
    def scoring(cls, measured: Mapping[str, Any], samples_path: Path, truth: Any) -> Scoring | None:
        work = measured["spec"]["workload"]
        return _Accepted(work["slo"], measured["probes"]) if "slo" in work else None


MEASURING = Rate


class _Accepted(Scoring):
    """Only the samples at each run's highest rate that kept the bound on latency are scored."""

    columns = ("probe",)
    of_loaded = True

    def __init__(self, slo: Mapping[str, Any], probes: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        self.slo, self.probes, self.numbers = slo, probes, np.array(_best(probes))

    def choose(self, table: pa.Table) -> pa.Table:
        return table.filter(pa.array(table["probe"].to_numpy() == self.numbers[table["run"].to_numpy()]))

    def body(self, means: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"slo": capacity.verdict(self.slo, self.probes, means["by_id"]["runs"])}


def _best(probes: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
    """The number of the probe at the highest rate that passed, of each run; -1 where none did."""
    accepted = (capacity.accepted(of_run) for of_run in probes)
    return [-1 if probe is None else probe["number"] for probe in accepted]


def _probes(published: Published) -> Sequence[Sequence[Mapping[str, Any]]]:
    """The probes of each run: those of the record, or, to make one, judged by their samples and the driver's facts."""
    if published.stored:
        return list(published.stored["probes"])
    each = ((run["jobs"], run["client"]["jobs"]) for run in published.runs)
    return _judged(published, [[{**job, **of} for job, of in zip(*both, strict=True)] for both in each])


def _judged(published: Published, jobs: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The jobs of each run, judged by their samples and by how late the driver sent its requests."""
    work = published.workload

    def probe(run: int, job: Mapping[str, Any]) -> dict[str, Any]:
        number, rate_per_s = job["number"], job["rate_per_s"]
        of_job = samples.of(published.by_run, work, run, number)
        return asdict(capacity.judge(number, rate_per_s, of_job, job["lag_p99_ms"], work["slo"]["p99_ms"]))

    return [[probe(run, job) for job in of_run] for run, of_run in enumerate(jobs)]


def _on_schedule(published: Published) -> bool:
    """Whether the requests of each run, of each probe, were due at the instants that its rate, seed and number give.

    And whether the record lists each probe that there are samples of.
    """
    work, seed = published.workload, published.stored["spec"]["seed"]
    if "slo" in work:
        probes = published.stored["probes"]
        rates = {(run, job["number"]): job["rate_per_s"] for run, of_run in enumerate(probes) for job in of_run}
    else:
        rates = {(run, None): work["rate_per_s"] for run in range(published.count)}
    if not published.by_run.keys() <= rates.keys():
        return False
    for (run, number), rate_per_s in rates.items():
        if rate_per_s is None:  # the closed loop that a search starts from
            continue
        due_ns = samples.of(published.by_run, work, run, number).due_ns
        wanted = requests.arrivals(rate_per_s, work["duration_s"], work["arrivals"], seed, run, number or 0)
        if not np.array_equal(np.sort(due_ns), wanted):
            return False
    return True


def open_loop(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the client kept its schedules: how late it was itself, how long requests waited for a connection.

    The lag is the client's own (a connection was free); what is queued waits for the system, and is in the latency.
    """
    jobs = [job for run in runs for job in counted_jobs(run) if job["queued_p99_ms"] is not None]
    lag_ms = max((job["lag_p99_ms"] for job in jobs), default=0.0)
    unsent = sum(job["unsent"] for job in jobs)
    kept = lag_ms <= capacity.LAG_MAX_MS
    return {
        "schedule_kept": kept,
        "lag_p99_ms": lag_ms,
        "queued_p99_ms": max((job["queued_p99_ms"] for job in jobs), default=0.0),
        "unsent": unsent,
        "detail": (
            f"the client sent 99 % of the requests within {lag_ms:.3f} ms of when it could have"
            + ("" if kept else f": more than {capacity.LAG_MAX_MS:g} ms, so the schedule was not kept")
            + (f"; {unsent} requests were never sent, no connection was free in time" if unsent else "")
        ),
    }
