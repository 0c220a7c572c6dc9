"""The query stage: the runs of a cell, measured in rounds, put together to its published record and samples."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from anncestry.drive.driver import client_facts
from anncestry.errors import DataError
from anncestry.measure import samples
from anncestry.measure.runs import Published, counted_jobs, measuring_of
from anncestry.metrics import defects, disturbance, latency, resources, rounds
from anncestry.provenance import records
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.platform import IDENTITY

_FAILURES_MAX = 20


def run(
    spec: Mapping[str, Any],
    key: str,
    measured: Path,
    load_record: Path,
    vectors_record: Path,
    target: Path,
    index_record: Path | None = None,
    so_far: int = 0,
) -> dict[str, Any]:
    """Write the query record `target` and its files from the runs in the folder `measured`; returns the record.

    DataError if a run is missing, is not of this spec, or if runs differ in their origin: such are removed, so that
    the workflow measures them again. `index_record` is of the build that lies here, if any. With `so_far`, a record
    of the first runs alone, which says so: for a page of what is measured so far, not for results.
    """
    workload = spec["workload"]
    count = so_far or (workload["runs"] if "runs" in workload else measured_by_need(measured, workload["rounds"]))
    runs = [_read(measured / f"run-{number}" / "record.json", spec, key) for number in range(count)]
    first = None if "runs" in workload else int(workload["rounds"]["first"])
    _refuse_other_origins(measured, runs, index_record, first, drop=not so_far)
    records.refuse_other_vectors(measured / "run-0" / "record.json", runs[0], vectors_record)
    paths = _join(measured, runs, target)
    published = Published(spec["workload"], paths, runs)
    gates = combine([run["gates"] for run in runs])
    parts: dict[str, Any] = {}
    for measuring in measuring_of(spec["workload"]):
        parts |= measuring.summarise(published)
    if any(run["counters"] for run in runs):
        parts["searches"] = searches(runs)
    if so_far:
        parts["so_far"] = so_far
    elif "rounds" in workload:
        decided = measured / "rounds.json"
        stated = records.read_json(decided) if decided.exists() else {}
        parts["need"] = {**rounds.decide(published.summary["qps"]["runs"], workload["rounds"]), **stated}
    newest = max(runs, key=lambda run: run["created"])
    windows = [tuple(run["window_s"]) for run in runs]
    return records.write_record(
        target,
        stage="query",
        key=key,
        spec=spec,
        body={
            "valid": all(gate["ok"] for gate in gates),
            "gates": gates,
            "load_key": newest["load_key"],
            "summary": published.summary,
            "histogram": latency.histogram(published.of_runs),
            "steadiness": steadiness(published.of_runs),
            "server_cpu_us_per_query": published.server_cpu_us_per_query,
            **parts,
            "failures": dict(sum((Counter(run["failures"]) for run in runs), Counter()).most_common(_FAILURES_MAX)),
            **{name: newest[name] for name in ("ef_search", "tuning", "selectivity", "filters")},
            "defects": defects.summarise(published.of_runs),
            "resources": resources.over_runs(published.table("resources"), "query", windows),
            "windows_s": windows,
            "rounds": [_round(run) for run in runs],
            "disturbance": disturbance.over_runs([run["disturbance"] for run in runs]),
            **Ledger.of(spec, spec["load"]).quote(key),
            "client": _client(newest, runs),
            "server": {name: value for name, value in newest["server"].items() if not name.endswith("_s")},
            **{name: newest[name] for name in ("storage_path",) if name in newest},
            **{name: newest[name] for name in ("artifact", "platform", "clients")},
        },
        inputs={"load": load_record, "vectors": vectors_record},
        outputs=paths,
    )


def measured_by_need(measured: Path, rule: Mapping[str, Any]) -> int:
    """How many runs, one after the other, lie here of a cell that is measured by need."""
    return max(int(rule["first"]), runs_here(measured, rule["most"]))


def runs_here(measured: Path, most: int) -> int:
    """How many runs, one after the other from the first, lie in the folder `measured`, of at most so many."""
    return len(list(takewhile(lambda number: (measured / f"run-{number}" / "record.json").exists(), range(most))))


def rates_of(measured: Path, spec: Mapping[str, Any], key: str, count: int) -> list[float]:
    """QPS of each of the first `count` runs in the folder `measured`."""
    found = []
    for number in range(count):
        record = measured / f"run-{number}" / "record.json"
        files = records.verify_outputs(record, _read(record, spec, key))
        of_run = samples.by_run(files["samples"], spec["workload"])
        found.append(latency.of_run(samples.of(of_run, spec["workload"], number))["qps"])
    return found


def _join(measured: Path, runs: Sequence[Mapping[str, Any]], target: Path) -> dict[str, Path]:
    """Join the files of the runs, run by run, to one beside `target` for each label; returns label → file."""
    paths = {label: target.with_name(f"{target.stem}.{label}.parquet") for label in runs[0]["outputs"]}
    for label, path in paths.items():
        parts = [measured / f"run-{number}" / run["outputs"][label]["path"] for number, run in enumerate(runs)]
        with records.replacing(path) as temporary:
            samples.join(parts, temporary)
    return paths


def _client(newest: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is told of the clients: how late they were in what the numbers are of, their CPU a query in all jobs."""
    requests = sum(run["client"]["requests"] for run in runs)
    jobs = [job for run in runs for job in run["client"]["jobs"]]
    return {
        **{name: newest["client"][name] for name in ("asked_by", "warmup_source", "ceiling")},
        **client_facts([job for run in runs for job in counted_jobs(run)], requests),
        "cpu_us_per_query": client_facts(jobs, requests)["cpu_us_per_query"],
    }


def steadiness(runs: Sequence[latency.Run]) -> dict[str, Any]:
    """When the runs were steady, and how far they drifted: over runs, and how many did not settle."""
    each = [latency.steadiness(run) for run in runs]
    after_s = [run["steady_after_s"] for run in each]
    return {
        "steady_after_s": latency.over_runs(after_s),
        "drift": latency.over_runs([run["drift"] for run in each]),
        "unsettled": [number for number, value in enumerate(after_s, start=1) if math.isnan(value)],
    }


def searches(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Searches that each node was sent in a run, by its own count and warm-up included, over runs; by node."""
    nodes = sorted({node for run in runs for node in run["counters"]})
    counted = {node: [run["counters"].get(node, {}).get("searches", math.nan) for run in runs] for node in nodes}
    return {node: latency.over_runs(values) for node, values in counted.items()}


def combine(gates: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The gates of all runs as one list: a gate holds if it held in every run; what was found names the run.

    Gates of one name are told apart by their order (rows are counted before and after the queries).
    """
    found: dict[tuple[str, int], list[tuple[int, Mapping[str, Any]]]] = {}
    for run, of_run in enumerate(gates, start=1):
        seen: Counter[str] = Counter()
        for gate in of_run:
            name = gate["gate"]
            found.setdefault((name, seen[name]), []).append((run, gate))
            seen[name] += 1
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


_BUILD = "build of the index"
_OF_PATH = ("filesystem", "rotational", "model", "transport", "paths")
"""What tells one storage path from another, whatever its device is called today."""
_OF_HOST = ("name", "cpu_model", "cores", "memory_gib", "same_machine")


def _origin(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is one for all runs of a cell, beside its spec (with the epochs of its code): by what it is called."""
    jobs = run["client"]["jobs"]
    path, hosts = run.get("storage_path") or {}, jobs[0].get("hosts", ()) if jobs else ()
    return {
        _BUILD: run["inputs"]["index"]["sha256"],
        "vectors": records.vectors_of(run),
        "artifact": run["artifact"]["digest"],
        "driver": jobs[0]["driver"] if jobs else None,
        "client libraries": run["clients"],
        "storage path": {name: path.get(name) for name in _OF_PATH},
        "load generators": [{name: host.get(name) for name in _OF_HOST} for host in hosts],
        **same_machine(run),
    }


def same_machine(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is one for all that is measured on one machine: its facts, and what this program may use of it."""
    machine = run["platform"]
    limits = machine.get("limits") or {}
    quotas = {f"limit of {name}": limits.get(name) for name in ("cpu_cores", "memory_mib")}
    return {**{name: machine.get(name) for name in IDENTITY}, **quotas}


def _refuse_other_origins(
    measured: Path, runs: Sequence[Mapping[str, Any]], index_record: Path | None, first: int | None, drop: bool
) -> None:
    """DataError where runs differ in their origin. With `drop`, those of another build than the one that lies here are
    removed; where others differ, all: none is the right one. Of a cell by need, runs after the `first` go along: those
    before them asked for them.

    (What is newest isn't asked: clocks are set back.)
    """
    origins = [_origin(run) for run in runs]
    differ = [name for name in origins[0] if any(origin[name] != origins[0][name] for origin in origins)]
    if not differ:
        return
    others = list(range(len(runs)))
    if differ == [_BUILD] and index_record is not None and index_record.exists():
        here = records.sha256_file(index_record)
        others = [number for number in others if origins[number][_BUILD] != here]
    if drop:
        later = () if first is None else range(first, len(runs))
        others = sorted({*others, *later})
        (measured / "rounds.json").unlink(missing_ok=True)
        for number in others:
            shutil.rmtree(measured / f"run-{number}")
    found = "; ".join(f"{name}: {', '.join(dict.fromkeys(str(each[name]) for each in origins))}" for name in differ)
    several = len(others) > 1
    which = f"run{'s' if several else ''} {', '.join(str(number + 1) for number in others)}"
    verb, again = ("are", "them") if several else ("is", "it")
    dropped = f"{which} {verb} dropped, and the next call of the workflow measures {again} anew"
    raise DataError(
        f"{measured}: its runs were not measured on one build of the index by one client on one machine ({found}): "
        + (dropped if drop else f"not {which}")
    )


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
