"""The query stage: the runs of a cell, measured in rounds, put together to its published record and samples."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry.drive.driver import client_facts
from anncestry.errors import DataError
from anncestry.metrics import latency, resources
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
    tables = {label: _together(measured, runs, label) for label in ("samples", "resources")}
    windows = [tuple(run["window_s"]) for run in runs]
    of_runs = samples_of(spec["workload"], tables["samples"])
    paths = {label: target.with_name(f"{target.stem}.{label}.parquet") for label in tables}
    for label, table in tables.items():
        with records.replacing(paths[label]) as temporary:
            parquet.write_table(table, temporary, compression="zstd")
    gates = combine([run["gates"] for run in runs])
    newest = max(runs, key=lambda run: run["created"])
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
            "summary": latency.summarise(of_runs),
            "histogram": latency.histogram(of_runs),
            "failures": _failures(runs),
            **{name: newest[name] for name in ("ef_search", "tuning", "selectivity", "filters")},
            **{name: sum(run[name] for run in runs) for name in ("short_answers", "repeated_answers")},
            "resources": resources.over_runs(tables["resources"], "query", windows),
            "windows_s": windows,
            "rounds": [_round(run) for run in runs],
            "client": {
                **{name: newest["client"][name] for name in ("asked_by", "warmup_source", "ceiling")},
                **client_facts([run["client"] for run in runs], sent),
            },
            "server": {name: value for name, value in newest["server"].items() if not name.endswith("_s")},
            **{name: newest[name] for name in ("artifact", "platform", "clients")},
        },
        inputs={"load": load_record, "vectors": vectors_record},
        outputs=paths,
    )


def samples_of(workload: Mapping[str, Any], samples: pa.Table) -> list[latency.Run]:
    """The raw samples, run by run."""
    number, query, due_ns, latency_ns, status = (
        samples[name].to_numpy() for name in ("run", "query", "due_ns", "latency_ns", "status")
    )
    duration_s = workload.get("duration_s")
    return [
        latency.Run(due_ns[part], latency_ns[part], status[part], duration_s, query[part])
        for part in (number == run for run in range(workload["runs"]))
    ]


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


def _together(measured: Path, runs: Sequence[Mapping[str, Any]], label: str) -> pa.Table:
    return pa.concat_tables(
        [
            parquet.ParquetFile(measured / f"run-{number}" / run["outputs"][label]["path"]).read()
            for number, run in enumerate(runs)
        ]
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
        "load_average_before": run["platform"]["load_average_before"],
        "cpu_us_per_query": 1e6 * run["client"]["cpu_s"] / max(1, run["client"]["requests"]),
    }
