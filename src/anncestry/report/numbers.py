"""The tidy table: one row a number, each with the record it comes from, or with the reason why it isn't there."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from anncestry.errors import DataError
from anncestry.provenance.platform import IDENTITY
from anncestry.provenance.records import read_record, replacing, sha256_file, write_json

PHASES = ("insert", "flush", "index", "ready")
"""The phases of a load, in the order in which they happen; `load` is the whole."""

NOT_MEASURED = "not measured"
LOAD_MISSING = "its load was not measured"
QUERIES_MISSING = "its queries were not measured"
MISSING = frozenset({NOT_MEASURED, LOAD_MISSING, QUERIES_MISSING})
"""The reasons for having no number that mean: nobody has measured it yet."""

NOT_RECORDED = "not recorded"
NO_SUCH_PHASE = "no such phase"
NO_FILTER = "no filter"
UPGRADED = "not measured: upgraded in place"
NOT_OURS = "somebody else's server"
ABSENT = frozenset({NOT_RECORDED, NO_SUCH_PHASE, NO_FILTER, UPGRADED, NOT_OURS})
"""The reasons that say nothing against a record. Any that is neither here nor in MISSING makes it invalid."""

CLIENT_SHARE = 0.5
"""A cell that asks more than this share of the client's own ceiling is client-bound."""

SEARCHES = "searches"
"""Metric of what a node was sent, its name in brackets behind it."""

UNREACHED = "target not reached: "
LOAD_INVALID = "its load is invalid: "

_DTYPES: dict[str, str] = {
    "number_id": "str",
    "dataset": "str",
    "distance": "str",
    "system": "str",
    "engine": "str",
    "topology": "str",
    "workload": "str",
    "rebuild": "Int64",
    "arm": "str",
    "k": "Int64",
    "nq": "Int64",
    "client": "str",
    "clients": "Int64",
    "duration_s": "float64",
    "filter": "str",
    "ef_search": "Int64",
    "target_recall": "float64",
    "phase": "str",
    "metric": "str",
    "value": "float64",
    "unit": "str",
    "std": "float64",
    "low": "float64",
    "high": "float64",
    "interval": "str",
    "runs": "Int64",
    "client_bound": "boolean",
    "rebuilds": "Int64",
    "rebuild_mean": "float64",
    "rebuild_std": "float64",
    "valid": "bool",
    "reason": "str",
    "note": "str",
    "record": "str",
    "record_sha256": "str",
    "key": "str",
}
COLUMNS = tuple(_DTYPES)
_ORDER = ["dataset", "system", "topology", "workload", "phase", "metric", "rebuild", "number_id"]

COUNTED = ("vectors", "dimensions", "queries", "searches")
"""Units of numbers that are exact."""

_RESOURCES = {
    "cpu_avg_pct": "% of one core",
    "cpu_peak_pct": "% of one core",
    "cpu_s": "s",
    "rss_avg_mib": "MiB",
    "rss_peak_mib": "MiB",
    "io_read_mib": "MiB",
    "io_write_mib": "MiB",
}


_CHARGED = ("charged_peak_mib", "charged_anon_peak_mib", "charged_cache_peak_mib")
"""Memory by control groups: only a server in a container or under a limit has them."""


@dataclass(frozen=True)
class _Metric:
    """A number's name and unit, and where in its record it stands."""

    phase: str
    name: str
    unit: str
    at: tuple[str, ...]


def _resource_metrics(phase: str) -> Iterator[_Metric]:
    """The server's resources under their plain names, the client's marked as such: they are never one number."""
    for name, unit in _RESOURCES.items():
        yield _Metric(phase, name, unit, ("resources", "server", phase, name))
        yield _Metric(phase, f"client_{name}", unit, ("resources", "client", phase, name))
    for name in _CHARGED:
        yield _Metric(phase, name, "MiB", ("resources", "server", phase, name))
    for group in ("other", "steal"):
        yield _Metric(phase, f"{group}_cpu_avg_pct", "% of one core", ("resources", group, phase, "cpu_avg_pct"))


_LOAD = (
    _Metric("load", "rows", "vectors", ("rows",)),
    _Metric("load", "dim", "dimensions", ("dim",)),
    _Metric("load", "rows_per_s", "vectors/s", ("rows_per_s",)),
    *(_Metric(phase, f"{phase}_s", "s", ("times", f"{phase}_s")) for phase in (*PHASES, "load")),
    *(metric for phase in (*PHASES, "load") for metric in _resource_metrics(phase)),
    *(_Metric("storage", f"storage_{part}_mib", "MiB", ("storage", f"{part}_mib")) for part in ("total", "net", "raw")),
)
_UPGRADE = (
    _Metric("upgrade", "upgrade_s", "s", ("times", "upgrade_s")),
    *(
        _Metric("upgrade", name, _RESOURCES[name], ("resources", "server", "upgrade", name))
        for name in ("cpu_s", "rss_peak_mib", "io_read_mib", "io_write_mib")
    ),
)
"""Of a load that is an upgrade in place, beside what it has in common with others."""
_KILL = (
    *(
        _Metric("load", f"kill_{name}", "vectors", ("kill", name))
        for name in ("acknowledged", "counted", "lost_by_count", "asked", "lost_by_search")
    ),
    _Metric("load", "kill_resent", "requests", ("kill", "resent")),
    _Metric("load", "kill_accepting_s", "s", ("kill", "accepting_s")),
)
"""Of a load during which the server was killed, beside the others."""
_QUERY = (
    *(_Metric("query", f"{p}_ms", "ms", ("summary", f"{p}_ms")) for p in ("p50", "p95", "p99", "p999", "max", "mean")),
    _Metric("query", "qps", "1/s", ("summary", "qps")),
    *(_Metric("query", name, "queries", ("summary", name)) for name in ("errors", "timeouts", "samples")),
    _Metric("query", "fail_per_s", "1/s", ("summary", "fail_per_s")),
    _Metric("query", "client_cpu_us_per_query", "µs", ("client", "cpu_us_per_query")),
    _Metric("query", "client_ceiling_qps", "1/s", ("client", "ceiling", "qps")),
    _Metric("query", "client_floor_ms", "ms", ("client", "ceiling", "floor_ms")),
    _Metric("query", "steady_after_s", "s", ("steadiness", "steady_after_s")),
    _Metric("query", "drift", "fraction", ("steadiness", "drift")),
    _Metric("query", "selectivity", "fraction", ("selectivity",)),
    *(_Metric("query", name, "queries", (name,)) for name in ("short_answers", "repeated_answers")),
    *_resource_metrics("query"),
)
_BATCH = (
    _Metric("query", "requests_per_s", "requests/s", ("batch", "requests_per_s")),
    _Metric("query", "vectors_per_s", "vectors/s", ("batch", "vectors_per_s")),
    _Metric("query", "encode_us_per_request", "µs", ("batch", "encode_us_per_request")),
    _Metric("query", "encode_share", "fraction", ("batch", "encode_share")),
)
"""Of workloads that say how many vectors a request has (nq); qps there is requests_per_s."""
_OPEN = (
    _Metric("query", "rate_per_s", "1/s", ("spec", "workload", "rate_per_s")),
    _Metric("query", "lag_p99_ms", "ms", ("open_loop", "lag_p99_ms")),
    _Metric("query", "queued_p99_ms", "ms", ("open_loop", "queued_p99_ms")),
    _Metric("query", "unsent", "queries", ("open_loop", "unsent")),
)
"""Of open loops only."""
_COLD = (
    _Metric("query", "searchable_s", "s", ("cold", "searchable_s")),
    _Metric("query", "first_ms", "ms", ("cold", "first_ms")),
    _Metric("query", "resident_share", "fraction", ("cold", "resident_share")),
)
"""Of cold starts only."""
_DEVICE = {"io_read_mib": "MiB", "io_write_mib": "MiB", "io_reads": "requests", "io_writes": "requests"}


def _device_metrics(record: _Record | None, *phases: str) -> tuple[_Metric, ...]:
    """IO of the storage path's block device, of all programs; only where the topology has such a path."""
    if record is None or "storage_path" not in record.body:
        return ()
    return tuple(
        _Metric(phase, f"device_{name}", unit, ("resources", "device", phase, name))
        for phase in phases
        for name, unit in _DEVICE.items()
    )


_SLO = (_Metric("recall", "max_rate_per_s", "1/s", ("slo", "max_rate_per_s")),)
"""Of searches for a rate only."""
_FAULT = (
    _Metric("query", "fault_lost", "queries", ("fault", "lost")),
    *(_Metric("query", f"fault_{name}", "s", ("fault", name)) for name in ("silence_s", "recovered_s", "whole_s")),
)
_RECALL_DURING = (_Metric("recall", "fault_recall_during", "fraction", ("fault", "recall_during")),)
"""Of workloads with a fault only."""
_STREAM = {
    kind: (
        _Metric("query", f"stream_{kind}_rows_per_s", "1/s", ("stream", "kinds", kind, "rows_per_s")),
        *(_Metric("query", f"stream_{kind}_{p}", "ms", ("stream", "kinds", kind, p)) for p in ("p50_ms", "p99_ms")),
    )
    for kind in ("insert", "delete")
}
"""Of workloads with a stream of changes only, by kind."""
_STREAM_WHOLE = (
    _Metric("query", "stream_on_time", "fraction", ("stream", "on_time")),
    _Metric("query", "stream_failed", "rows", ("stream", "failed")),
)
_STREAM_RECALL = (
    _Metric("recall", "stream_fresh_recall", "fraction", ("stream", "fresh_recall")),
    _Metric("recall", "stream_stale_share", "fraction", ("stream", "stale_share")),
)
_RECALL = (
    _Metric("recall", "recall_by_id", "fraction", ("recall", "by_id")),
    _Metric("recall", "recall_by_distance", "fraction", ("recall", "by_distance")),
    _Metric("recall", "ndcg", "fraction", ("recall", "ndcg")),
    _Metric("recall", "mrr", "fraction", ("recall", "mrr")),
    _Metric("recall", "recall_zero_share", "fraction", ("distribution", "zero_share")),
    *(_Metric("recall", f"recall_{p}", "fraction", ("distribution", p)) for p in ("p1", "p5", "p50")),
)


@dataclass(frozen=True)
class _Record:
    """A record that was read, with the digest of its file."""

    path: str
    sha256: str
    body: Mapping[str, Any]

    @property
    def key(self) -> str:
        return str(self.body["key"])

    def failed_gates(self) -> str:
        """What makes this record invalid, as one text; empty if it is valid."""
        failed = [f"{gate['gate']}: {gate['detail']}" for gate in self.body.get("gates", ()) if not gate["ok"]]
        if self.body.get("valid", True) and not failed:
            return ""
        return "; ".join(failed) or "marked invalid, without a failed gate"


def tidy(cells: Sequence[Mapping[str, Any]], facts: Facts | None = None) -> pd.DataFrame:
    """Gather every number of the expected `cells` into one frame, a row a number, in a fixed order.

    Each of `cells` names dataset, system, topology, workload and load_path, query_path, recall_path (the latter two
    may be None); a record that no cell names is left out.
    A number that can't be had (record missing, invalid, or without it) keeps its row: its value is NaN and `reason`
    says why. DataError for a record of another cell, for one that was made from something else than is there, and for
    records of two machines: their numbers are never set side by side. `facts` are those of all records, where `cells`
    are only some.
    """
    records: dict[str, _Record] = {}

    def find(cell: Mapping[str, Any], stage: str) -> _Record | None:
        text = cell.get(f"{stage}_path")
        if not text or not Path(text).exists():
            return None
        path = str(text)
        if path not in records:
            records[path] = _Record(path, sha256_file(Path(path)), read_record(Path(path), stage=stage))
        _check_place(records[path], cell)
        return records[path]

    found = [(cell, find(cell, "load"), find(cell, "query"), find(cell, "recall")) for cell in cells]
    if facts is None:
        facts = Facts()
        for record in records.values():
            facts.add(record.path, record.body)
    rows: list[dict[str, Any]] = []
    loads_done: set[str] = set()
    for cell, load, query, recall in found:
        load_path = str(cell["load_path"])
        load_reason = NOT_MEASURED if load is None else load.failed_gates()
        if load_path not in loads_done:
            loads_done.add(load_path)
            row = facts.of(cell, workload="")
            rows += _rows(row, load_path, load, load_reason, _LOAD)
            rows += _rows(row, load_path, load, load_reason, _components(load))
            rows += _rows(row, load_path, load, load_reason, _device_metrics(load, "load"))
            if load is not None and _upgraded(load.body):
                rows += _rows(row, load_path, load, load_reason, _UPGRADE)
            if load is not None and "kill" in load.body:
                rows += _rows(row, load_path, load, load_reason, _KILL)
        query_reason = _query_reason(query, load, load_reason)
        row = facts.of(cell, workload=str(cell["workload"]), query=query)
        if cell.get("query_path"):
            more: tuple[_Metric, ...] = _OPEN if query is not None and "open_loop" in query.body else ()
            more += _BATCH if query is not None and "batch" in query.body else ()
            more += _COLD if query is not None and "cold" in query.body else ()
            more += _FAULT if query is not None and "fault" in query.body else ()
            more += tuple(_searches(query)) if query is not None else ()
            more += _device_metrics(query, "query")
            if query is not None and "stream" in query.body:
                kinds = query.body["stream"]["kinds"]
                more += (*(metric for kind in _STREAM if kind in kinds for metric in _STREAM[kind]), *_STREAM_WHOLE)
            rows += _rows(row, str(cell["query_path"]), query, query_reason, (*_QUERY, *more))
        if cell.get("recall_path"):
            reason = _recall_reason(recall, query, query_reason)
            more_recall: tuple[_Metric, ...] = _SLO if recall is not None and "slo" in recall.body else ()
            more_recall += _RECALL_DURING if recall is not None and "fault" in recall.body else ()
            more_recall += _STREAM_RECALL if recall is not None and "stream" in recall.body else ()
            where = {**row, "client_bound": None}
            rows += _rows(where, str(cell["recall_path"]), recall, reason, (*_RECALL, *more_recall))
    df = frame(rows)
    twice = df["number_id"][df["number_id"].duplicated()]
    if len(twice):
        raise DataError(f"number {twice.iloc[0]} is there twice: a cell is listed more than once")
    return _over_rebuilds(df).sort_values(_ORDER, kind="stable", ignore_index=True)


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a frame with the columns and types of the tidy table."""
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(_DTYPES)


_SAME = ["dataset", "system", "topology", "workload", "phase", "metric"]


def _over_rebuilds(df: pd.DataFrame) -> pd.DataFrame:
    """The frame with what independent builds of one load say together, the same in the rows of all of them.

    `rebuilds` that have the number, the mean of their values, and their sample standard deviation (n - 1): what
    differs from build to build, apart from what differs from run to run of one (`std`).
    """
    builds = df.groupby(_SAME, dropna=False)["value"]
    return df.assign(
        rebuilds=builds.transform("count").astype("Int64"),
        rebuild_mean=builds.transform("mean"),
        rebuild_std=builds.transform("std"),
    )


def first_builds(df: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first build of every load: what tables and charts show, each number with one record behind it."""
    return df[df["rebuild"].fillna(1) == 1].reset_index(drop=True)


def write(df: pd.DataFrame, out_dir: Path) -> None:
    """Write `df` as numbers.csv, numbers.json and numbers.parquet: the same rows, the same bytes for an equal frame."""
    with replacing(out_dir / "numbers.csv") as temporary:
        df.to_csv(temporary, index=False, lineterminator="\n")
    write_json(out_dir / "numbers.json", rows_of(df))
    with replacing(out_dir / "numbers.parquet") as temporary:
        # Without pandas' own metadata, which names versions, the bytes depend on the rows alone.
        table = pa.Table.from_pandas(df, preserve_index=False).replace_schema_metadata(None)
        pq.write_table(table, temporary, compression="zstd")


def read(out_dir: Path) -> pd.DataFrame:
    """Read back what `write` wrote."""
    path = out_dir / "numbers.parquet"
    try:
        return frame(pq.read_table(path).to_pylist())
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: not a table of numbers ({error})") from None


def by_bytes(df: pd.DataFrame) -> pd.DataFrame:
    """The frame without what was asked through the databases' own libraries, or by requests of several vectors.

    Those are other questions, with tables of their own.
    """
    return df[(df["client"] != "sdk") & (df["nq"].fillna(1) == 1)]


def rows_of(df: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a tidy frame as plain Python values, with None where there is no number."""
    # By column: a page of a thousand cells has millions of values.
    columns = [
        [None if absent else value for value, absent in zip(column.tolist(), column.isna().tolist(), strict=True)]
        for _, column in df.items()
    ]
    names = [str(name) for name in df.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def brief(reason: str) -> str:
    """Why there is no number, in two or three words; a failed gate's full reason stands in the list of them."""
    if reason in MISSING:
        return NOT_MEASURED
    if reason == UPGRADED:
        return "upgraded in place"
    if reason.startswith(UNREACHED):
        return "not reached"
    return reason if reason in ABSENT else "invalid"


class Facts:
    """What is known of a system, dataset or workload from any record, so that a missing cell can still be placed."""

    def __init__(self) -> None:
        self._engines: dict[str, str] = {}
        self._distances: dict[str, str] = {}
        self._workloads: dict[str, Mapping[str, Any]] = {}
        self._machine: dict[str, tuple[Any, str]] = {}

    def add(self, path: str, body: Mapping[str, Any]) -> None:
        """Learn from a record; DataError if it was measured on another machine than one before it."""
        spec = body["spec"]
        # Not every record says everything: a query names its system, its load also the engine.
        if "engine" in spec.get("system", ()):
            self._engines[spec["system"]["name"]] = str(spec["system"]["engine"])
        if "metric" in spec.get("dataset", ()):
            self._distances[spec["dataset"]["name"]] = str(spec["dataset"]["metric"])
        if "workload" in spec:
            self._workloads[spec["workload"]["name"]] = spec["workload"]
        machine = body.get("platform") or {}
        for name in ("id", *IDENTITY):
            if machine.get(name) is None:
                continue
            value, other = self._machine.setdefault(name, (machine[name], path))
            if machine[name] != value:
                raise DataError(
                    f"{path}: measured on a machine with {name} {machine[name]!r}, {other} on one with {value!r}: "
                    "numbers of two platforms are no table"
                )

    def of(self, cell: Mapping[str, Any], *, workload: str, query: _Record | None = None) -> dict[str, Any]:
        """The columns that say where a number belongs."""
        asked = query.body["spec"]["workload"] if query else self._workloads.get(workload, {})
        return {
            "dataset": str(cell["dataset"]),
            "distance": self._distances.get(cell["dataset"], ""),
            "system": str(cell["system"]),
            "engine": self._engines.get(cell["system"], ""),
            "topology": str(cell["topology"]),
            "workload": workload,
            "rebuild": int(cell.get("rebuild", 1)),
            "arm": str(cell.get("arm", "")),
            "k": asked.get("k"),
            "nq": asked.get("nq", 1) if asked else None,
            "client": asked.get("client", "bytes") if workload else "",
            "clients": asked.get("clients"),
            "duration_s": asked.get("duration_s"),
            "filter": _filter_text(asked.get("filter")),
            "ef_search": (query.body.get("ef_search") if query else None) or asked.get("ef_search"),
            "target_recall": asked.get("target_recall"),
            "client_bound": _client_bound(query),
        }


def _client_bound(query: _Record | None) -> bool | None:
    """Whether more than half of what the client itself can send was asked; None where its ceiling is not known."""
    ceiling = _at(query.body, ("client", "ceiling", "qps")) if query else None
    rate = _at(query.body, ("summary", "qps", "value")) if query else None
    return None if not ceiling or rate is None else bool(rate > CLIENT_SHARE * ceiling)


def _rows(
    where: Mapping[str, Any], path: str, record: _Record | None, reason: str, metrics: Iterable[_Metric]
) -> Iterator[dict[str, Any]]:
    """A row for each of `metrics`; with a `reason` none of them has a value, whatever the record says."""
    key = record.key if record else Path(path).stem.rpartition("@")[2]
    body = _with_rate(record.body) if record else {}
    for metric in metrics:
        value, std, runs = _reading(body, metric, path) if not reason else (None, None, None)
        low, high, interval = _interval(body, metric, path) if value is not None else (None, None, "")
        absent = "" if value is not None else _why_absent(body, metric)
        yield {
            **where,
            "number_id": number_id(
                where["dataset"], where["system"], where["topology"], where["workload"], key, metric.phase, metric.name
            ),
            "phase": metric.phase,
            "metric": metric.name,
            "value": value,
            "unit": metric.unit,
            "std": std,
            "low": low,
            "high": high,
            "interval": interval,
            "runs": runs,
            "rebuilds": None,
            "rebuild_mean": None,
            "rebuild_std": None,
            "valid": not reason and not absent,
            "reason": reason or absent,
            "note": _note(body, metric) if value is not None else "",
            "record": path,
            "record_sha256": record.sha256 if record else "",
            "key": key,
        }


def number_id(*parts: str) -> str:
    """The name of a number: `n` and ten hex digits over the cell, its key, the phase and the metric, not the value."""
    return "n" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def _reading(body: Mapping[str, Any], metric: _Metric, path: str) -> tuple[float | None, float | None, int | None]:
    """Value, sample standard deviation and number of runs of a metric; None where the record has none."""
    entry = _at(body, metric.at)
    if isinstance(entry, Mapping):
        runs = entry.get("runs")
        count = len(runs) if isinstance(runs, list) else None
        return _number(entry.get("value"), metric, path), _number(entry.get("std"), metric, path), count
    # A load is measured once; what a session measured in passing isn't a mean over runs.
    return _number(entry, metric, path), None, 1 if body.get("stage") == "load" else None


def _interval(body: Mapping[str, Any], metric: _Metric, path: str) -> tuple[float | None, float | None, str]:
    """The ends of a number's interval and how it was found, or why it has none."""
    entry = _at(body, metric.at)
    if isinstance(entry, Mapping) and entry.get("interval"):
        low, high = (_number(entry.get(end), metric, path) for end in ("low", "high"))
        return low, high, str(entry["interval"]) if low is not None else f"none: {entry['interval']}"
    if metric.unit in COUNTED:
        return None, None, "none: counted"
    return None, None, "none: measured once" if body.get("stage") == "load" else "none: not resampled"


def _number(value: Any, metric: _Metric, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{path}: {'.'.join(metric.at)} is {value!r}, expected a number")
    return float(value) if math.isfinite(value) else None


def _at(body: Mapping[str, Any], steps: Iterable[str]) -> Any:
    value: Any = body
    for step in steps:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _why_absent(body: Mapping[str, Any], metric: _Metric) -> str:
    """Tell a phase that a system does not have, and a filter that wasn't asked, from what the record lacks."""
    if _upgraded(body) and (metric.phase in (*PHASES, "load")):
        return UPGRADED
    if metric.at[0] in ("storage", "resources") and _remote(body):
        return NOT_OURS
    if metric.phase in PHASES and _at(body, ("times", f"{metric.phase}_s")) is None:
        return NO_SUCH_PHASE
    if metric.name == "selectivity" and not _at(body, ("spec", "workload", "filter")):
        return NO_FILTER
    if metric.name == "max_rate_per_s":
        return UNREACHED + str(_at(body, ("slo", "reason")))
    return NOT_RECORDED


def _upgraded(body: Mapping[str, Any]) -> bool:
    """Whether this is the record of a load into which nothing was inserted: another one's data, opened in place."""
    return "upgrade_of" in body.get("spec", {})


def _note(body: Mapping[str, Any], metric: _Metric) -> str:
    """What a reader must know of a number that is valid: a schedule that was not kept, a limit that is not its own."""
    if metric.name == "max_rate_per_s":
        said = {
            "client_bound": "bound by the client in run",
            "bound_by_probes": "a lower limit, no rate failed in run",
        }
        found = {words: _at(body, ("slo", name)) for name, words in said.items()}
        return "; ".join(f"{words} {', '.join(map(str, runs))}" for words, runs in found.items() if runs)
    if metric.name == "qps" and (_at(body, ("batch", "nq")) or 1) > 1:
        return f"requests a second, of {_at(body, ('batch', 'nq'))} vectors each"
    if metric.phase == "query" and _at(body, ("open_loop", "schedule_kept")) is False:
        return str(_at(body, ("open_loop", "detail")))
    if metric.phase == "query" and _at(body, ("stream", "kept")) is False:
        return str(_at(body, ("stream", "detail")))
    return ""


def _remote(body: Mapping[str, Any]) -> bool:
    """Whether somebody else runs the server, so that its disk and processes are not to be seen."""
    members = _at(body, ("server", "members")) or {}
    return any(_at(facts, ("run_by",)) for facts in members.values())


def _with_rate(body: Mapping[str, Any]) -> Mapping[str, Any]:
    rows, load_s = body.get("rows"), _at(body, ("times", "load_s"))
    return {**body, "rows_per_s": rows / load_s} if rows and load_s else body


def _components(load: _Record | None) -> Iterator[_Metric]:
    """One metric for each part of the storage that the record lists; the parts differ from system to system."""
    for name in sorted(_at(load.body, ("storage", "components")) or {}) if load else ():
        yield _Metric("storage", f"storage_component_mib[{name}]", "MiB", ("storage", "components", name))


def _searches(query: _Record) -> Iterator[_Metric]:
    """One metric for each node that counts the searches it is sent."""
    for node in sorted(_at(query.body, ("searches",)) or {}):
        yield _Metric("query", f"{SEARCHES}[{node}]", "searches", ("searches", node))


def _query_reason(query: _Record | None, load: _Record | None, load_reason: str) -> str:
    if query is None:
        return NOT_MEASURED
    if load is None:
        return LOAD_MISSING
    if query.body["load_key"] != load.key:
        raise DataError(f"{query.path}: asked load {query.body['load_key']}, but {load.path} is load {load.key}")
    return query.failed_gates() or (LOAD_INVALID + load_reason if load_reason else "")


def _recall_reason(recall: _Record | None, query: _Record | None, query_reason: str) -> str:
    if recall is None:
        return NOT_MEASURED
    if query is None:
        return QUERIES_MISSING
    if recall.body["query_key"] != query.key:
        raise DataError(
            f"{recall.path}: scores query record {recall.body['query_key']}, but {query.path} is {query.key}"
        )
    digests = [
        entry["sha256"]
        for label, entry in recall.body["inputs"].items()
        if label == "query" or Path(entry["path"]).name == Path(query.path).name
    ]
    if query.sha256 not in digests:
        was = digests[0][:12] + "…" if digests else "none named"
        raise DataError(
            f"{recall.path}: made from another query record (sha256 {was}) than {query.path} ({query.sha256[:12]}…)"
        )
    return query_reason or recall.failed_gates()


def _check_place(record: _Record, cell: Mapping[str, Any]) -> None:
    """Refuse a record that stands at the path of another cell."""
    spec = record.body["spec"]
    for name in ("dataset", "system", "topology", "workload"):
        # A recall's spec holds keys only; its query record was checked in its stead.
        found = spec[name]["name"] if name in spec else cell[name]
        if found != cell[name]:
            raise DataError(f"{record.path}: of {name} {found}, expected {cell[name]}")


def _filter_text(asked: Any) -> str:
    """A filter in words; one of a shape not known here as JSON, rather than as a guess."""
    if not asked:
        return ""
    if isinstance(asked, Mapping) and asked.keys() == {"field", "share"}:
        return f"{asked['field']}: {100 * asked['share']:g} % of rows"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "from_share"}:
        return f"{asked['field']}: all but the first {100 * asked['from_share']:g} % of rows"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "side", "halvings"}:
        where = {"same": "near", "opposite": "far from"}[asked["side"]]
        return f"region: {100 / 2 ** asked['halvings']:.2g} % of rows, {where} the query"
    if isinstance(asked, Mapping) and asked.keys() == {"field", "in"}:
        return f"{asked['field']} in {{{', '.join(str(value) for value in asked['in'])}}}"
    return json.dumps(asked, sort_keys=True)
