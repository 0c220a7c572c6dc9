"""The query stage: the runs of a cell, measured in rounds, put together to its published record and samples."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry.drive.driver import client_facts
from anncestry.errors import DataError
from anncestry.measure import fault, samples, stream
from anncestry.metrics import capacity, latency, resources, steady
from anncestry.provenance import records

_FAILURES_MAX = 20


def run(
    spec: Mapping[str, Any], key: str, measured: Path, load_record: Path, vectors_record: Path, target: Path
) -> dict[str, Any]:
    """Write the query record `target` and its files from the runs in the folder `measured`; returns the record.

    DataError if a run is missing, is not of this spec, or was measured on another build of the index than the newest
    one was: such a run is removed, so that the workflow measures it again.
    """
    runs = [_read(measured / f"run-{number}" / "record.json", spec, key) for number in range(spec["workload"]["runs"])]
    _refuse_other_builds(measured, runs)
    streams = spec["workload"].get("stream") is not None
    labels = ("samples", "resources", *(("writes",) if streams else ()))
    windows = [tuple(run["window_s"]) for run in runs]
    paths = {label: target.with_name(f"{target.stem}.{label}.parquet") for label in labels}
    for label, path in paths.items():
        each = [measured / f"run-{number}" / run["outputs"][label]["path"] for number, run in enumerate(runs)]
        with records.replacing(path) as temporary:
            samples.join(each, temporary)
    by_run = samples.by_run(paths["samples"], spec["workload"])
    probes = probes_of(spec["workload"], by_run, [run["client"]["jobs"] for run in runs], [run["jobs"] for run in runs])
    of_runs = samples_of(spec["workload"], by_run, probes)
    gates = combine([run["gates"] for run in runs])
    summary = latency.summarise(of_runs)
    newest = max(runs, key=lambda run: run["created"])
    asked = spec["workload"].get("fault") is not None
    sent = sum(run["client"]["requests"] for run in runs)
    return records.write_record(
        target,
        stage="query",
        key=key,
        spec=spec,
        body={
            "valid": all(gate["ok"] for gate in gates),
            "gates": gates,
            "load_key": newest["load_key"],
            "summary": summary,
            **({"batch": batch(spec["workload"]["nq"], summary, runs)} if "nq" in spec["workload"] else {}),
            "histogram": latency.histogram(of_runs),
            "steadiness": steadiness(of_runs),
            **({"cold": cold(of_runs, runs)} if spec["workload"].get("start") == "cold" else {}),
            **({"probes": probes} if probes is not None else {}),
            **({"open_loop": open_loop(runs)} if spec["workload"].get("loop") == "open" else {}),
            **({"fault": fault.summary(of_runs, [run["fault"] for run in runs])} if asked else {}),
            **({"searches": searches(runs)} if any(run["counters"] for run in runs) else {}),
            **(
                {"stream": changes(spec["workload"], parquet.ParquetFile(paths["writes"]).read(), runs)}
                if streams
                else {}
            ),
            "failures": _failures(runs),
            **{name: newest[name] for name in ("ef_search", "tuning", "selectivity", "filters")},
            **{name: sum(run[name] for run in runs) for name in ("short_answers", "repeated_answers")},
            "resources": resources.over_runs(parquet.ParquetFile(paths["resources"]).read(), "query", windows),
            "windows_s": windows,
            "rounds": [_round(run) for run in runs],
            "client": {
                **{name: newest["client"][name] for name in ("asked_by", "warmup_source", "ceiling")},
                **client_facts([job for run in runs for job in run["client"]["jobs"]], sent),
            },
            "server": {name: value for name, value in newest["server"].items() if not name.endswith("_s")},
            **({"storage_path": newest["storage_path"]} if "storage_path" in newest else {}),
            **{name: newest[name] for name in ("artifact", "platform", "clients")},
        },
        inputs={"load": load_record, "vectors": vectors_record},
        outputs=paths,
    )


def batch(nq: int, summary: Mapping[str, Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What requests of `nq` vectors were, beside `summary`, which counts requests.

    `encode_us_per_request`: how long the client took to make a request's bytes, before the clock; `encode_share`: what
    share that would be of a request's time, its mean latency, for a client that makes them while it waits.
    """
    encode_us = [run["client"]["encode_us_per_request"] for run in runs]
    waited_us = [value and 1e3 * value for value in summary["mean_ms"]["runs"]]
    shares = [
        encode / (encode + waited) if waited else math.nan for encode, waited in zip(encode_us, waited_us, strict=True)
    ]
    return {
        "nq": nq,
        "requests_per_s": summary["qps"],
        "vectors_per_s": vectors_per_s(nq, summary["qps"]),
        "encode_us_per_request": latency.over_runs(encode_us),
        "encode_share": latency.over_runs(shares),
    }


def vectors_per_s(nq: int, requests_per_s: Mapping[str, Any]) -> dict[str, Any]:
    """The rate of the vectors of requests of `nq`: that of the requests, with its runs and its interval, times nq."""

    def times(value: Any) -> Any:
        return None if value is None else nq * value

    scaled = {name: times(requests_per_s[name]) for name in ("value", "std", "low", "high") if name in requests_per_s}
    return {**requests_per_s, **scaled, "runs": [times(value) for value in requests_per_s["runs"]]}


def changes(workload: Mapping[str, Any], writes: pa.Table, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What clients saw of the rows that came and went, and of each run the server's count after it and the client."""
    return {
        **stream.summary(writes, workload["duration_s"]),
        "runs": [
            {
                "rows_after": run["stream"]["rows_after"],
                "clients": {
                    kind: client_facts([facts], facts["samples"]) for kind, facts in run["stream"]["jobs"].items()
                },
            }
            for run in runs
        ],
    }


def samples_of(
    workload: Mapping[str, Any], by_run: samples.Runs, probes: Sequence[Sequence[Mapping[str, Any]]] | None = None
) -> list[latency.Run]:
    """The samples, run by run.

    Of a search for a rate (`probes`: those of each run), the samples at the highest rate that passed.
    """
    if probes is None:
        return [samples.of(by_run, workload, number) for number in range(workload["runs"])]
    best = [capacity.accepted(of_run) for of_run in probes]
    return [
        samples.of(by_run, workload, number, -1 if probe is None else probe["number"])
        for number, probe in enumerate(best)
    ]


def steadiness(runs: Sequence[latency.Run]) -> dict[str, Any]:
    """When the runs were steady, and how far they drifted: over runs, and how many did not settle."""
    each = [steady.of_run(run) for run in runs]
    after_s = [run["steady_after_s"] for run in each]
    return {
        "steady_after_s": latency.over_runs(after_s),
        "drift": latency.over_runs([run["drift"] for run in each]),
        "unsettled": [number for number, value in enumerate(after_s, start=1) if math.isnan(value)],
    }


def cold(of_runs: Sequence[latency.Run], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Cold starts: seconds from the start of the process to the first search, and the first query of the workload."""
    firsts = [float(run.latency_ns[np.argmin(run.due_ns)] / 1e6) if len(run.due_ns) else math.nan for run in of_runs]
    starts = [run["cold"] for run in runs]
    return {
        "searchable_s": latency.over_runs([start["start_s"] + start["open_s"] for start in starts]),
        "first_ms": latency.over_runs(firsts),
        "page_cache": starts[0]["page_cache"],
        "resident_share": max(start["resident_share"] for start in starts),
        "starts": starts,
    }


def probes_of(
    workload: Mapping[str, Any],
    by_run: samples.Runs,
    facts: Sequence[Sequence[Mapping[str, Any]]],
    jobs: Sequence[Sequence[Mapping[str, Any]]],
) -> list[list[dict[str, Any]]] | None:
    """The probes of each run, judged by their samples and the driver's `facts`; None for a workload without slo."""
    if "slo" not in workload:
        return None
    return [
        [
            capacity.as_record(
                capacity.judge(
                    job["number"],
                    job["rate_per_s"],
                    samples.of(by_run, workload, run, job["number"]),
                    said["lag_p99_ms"],
                    workload["slo"]["p99_ms"],
                )
            )
            for job, said in zip(of_run, facts[run], strict=True)
        ]
        for run, of_run in enumerate(jobs)
    ]


def searches(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Searches that each node was sent in a run, by its own count and warm-up included, over runs; by node."""
    nodes = sorted({node for run in runs for node in run["counters"]})
    counted = {node: [run["counters"].get(node, {}).get("searches", math.nan) for run in runs] for node in nodes}
    return {node: latency.over_runs(values) for node, values in counted.items()}


def open_loop(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the client kept its schedules: how late it was itself, how long requests waited for a connection.

    The lag is the client's own (a connection was free); what is queued waits for the system, and is in the latency.
    """
    jobs = [job for run in runs for job in run["client"]["jobs"] if job["queued_p99_ms"] is not None]
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


def combine(gates: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The gates of all runs as one list: a gate holds if it held in every run; what was found names the run.

    Gates of one name are told apart by their order (rows are counted before and after the queries).
    """
    found: dict[tuple[str, int], list[tuple[int, Mapping[str, Any]]]] = {}
    for run, of_run in enumerate(gates, start=1):
        seen: dict[str, int] = {}
        for gate in of_run:
            nth = seen[gate["gate"]] = seen.get(gate["gate"], -1) + 1
            found.setdefault((gate["gate"], nth), []).append((run, gate))
    return [
        {"gate": name, "ok": all(gate["ok"] for _, gate in entries), "detail": _detail(entries, len(gates))}
        for (name, _), entries in found.items()
    ]


def _detail(entries: Sequence[tuple[int, Mapping[str, Any]]], runs: int) -> str:
    failed = [(run, gate) for run, gate in entries if not gate["ok"]]
    said = dict.fromkeys(str(gate["detail"]) for _, gate in failed or entries)
    if len(said) == 1 and len(failed) in (0, runs):
        return next(iter(said))
    return "; ".join(f"run {run}: {gate['detail']}" for run, gate in failed or entries)


def _read(path: Path, spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    record = records.read_record(path, stage="run", key=key)
    if record["spec"] != spec:
        raise DataError(f"{path}: its spec is not the one that its key stands for")
    records.verify_outputs(path, record)
    return record


def _refuse_other_builds(measured: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    builds = [run["inputs"]["index"]["sha256"] for run in runs]
    newest = builds[max(range(len(runs)), key=lambda number: runs[number]["created"])]
    other = [number for number, build in enumerate(builds) if build != newest]
    for number in other:
        shutil.rmtree(measured / f"run-{number}")
    if other:
        raise DataError(
            f"{measured}: run {', '.join(str(number + 1) for number in other)} was measured before the index was built "
            "again, on another build than the others: it is dropped, and the next call of the workflow measures it anew"
        )


def _failures(runs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for run in runs:
        for text, count in run["failures"].items():
            total[text] = total.get(text, 0) + count
    return dict(sorted(total.items(), key=lambda item: -item[1])[:_FAILURES_MAX])


def _round(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is a run's own: its server's start, its session, when and by which code it was measured."""
    return {
        "run": run["run"],
        "created": run["created"],
        "code": run["code"],
        "session": run["session"],
        "counters": run["counters"],
        **{name: run["server"][name] for name in ("start_s", "open_s", "up_s")},
        **({"starts_repeated": run["server"]["starts_repeated"]} if "starts_repeated" in run["server"] else {}),
        **{name: run["platform"][name] for name in ("load_average_before", "load_average_after")},
        "cpu_us_per_query": client_facts(run["client"]["jobs"], run["client"]["requests"])["cpu_us_per_query"],
    }
