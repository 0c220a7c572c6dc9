"""Rows inserted and deleted while queries run (a workload's `stream`)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from anncestry.cells.features import Body, Feature, Metric, TableSpec, at
from anncestry.cells.spec import Dataset
from anncestry.errors import ConfigError

_NOT_WITH = {
    "slo": "the search repeats runs, and each changes the rows",
    "start": "a cold start needs a server without changes",
    "fault": "a fault leaves changes without acknowledgement",
    "filter": "there is no truth for filters while rows change",
    "target_recall": "tuning would use other rows than the measurement",
    "client": "the driver sends changes and queries as bytes, not through a library",
    "nq": "there is no truth for several vectors a request while rows change",
}


def changes_of(workload: Mapping[str, Any]) -> dict[str, int]:
    """How many rows a run of a complete workload with a stream inserts and deletes, in whole batches."""
    stream = workload["stream"]
    batch = stream["batch_rows"]
    return {
        kind: batch * int(workload["duration_s"] * stream[f"{kind}_per_s"] / batch + 1e-9)
        for kind in ("insert", "delete")
    }


class Stream(Feature):
    keys = ("stream",)
    spends_server = True
    apart = ("stream_on_time",)
    metrics = (
        *(
            Metric("query", f"stream_{kind}_{name}", unit, ("stream", "kinds", kind, name), better)
            for kind in ("insert", "delete")
            for name, unit, better in (("rows_per_s", "1/s", +1), ("p50_ms", "ms", -1), ("p99_ms", "ms", -1))
        ),
        Metric("query", "stream_on_time", "fraction", ("stream", "on_time"), +1),
        Metric("query", "stream_failed", "rows", ("stream", "failed"), -1),
        Metric("recall", "stream_fresh_recall", "fraction", ("stream", "fresh_recall"), +1),
        Metric("recall", "stream_stale_share", "fraction", ("stream", "stale_share"), -1),
    )
    table = TableSpec(
        "W",
        "Searching while rows come and go",
        "Rows are inserted and deleted at a constant rate, on connections of their own, while queries run. Recall is"
        " that of each moment: asked are the rows whose insertion was acknowledged before a query was sent, and that"
        " nobody had begun to delete before it was answered; rows that came or went meanwhile count either way. New"
        " rows found: the share, of the nearest that came while the clock ran, that was returned. Answers with a"
        " deleted row: those holding one whose deletion was acknowledged before the query was sent. A change is on"
        " time if it was acknowledged within a second of when it was due.",
        {
            "qps": ("Queries per second", "1/s"),
            "p50_ms": ("p50", "ms"),
            "p99_ms": ("p99", "ms"),
            "recall_by_id": ("Recall of the moment", "fraction"),
            "stream_fresh_recall": ("New rows found", "fraction"),
            "stream_stale_share": ("Answers with a deleted row", "fraction"),
            "stream_insert_rows_per_s": ("Rows inserted", "1/s"),
            "stream_insert_p99_ms": ("p99 of insertions", "ms"),
            "stream_delete_rows_per_s": ("Rows deleted", "1/s"),
            "stream_delete_p99_ms": ("p99 of deletions", "ms"),
            "stream_on_time": ("Changes on time", "fraction"),
        },
        having="stream_on_time",
    )
    rank = 1

    def complete(self, workload: MutableMapping[str, Any], where: str) -> None:
        if "duration_s" not in workload:
            raise ConfigError(f"{where}: stream needs duration_s")
        for key, why in _NOT_WITH.items():
            if workload.get(key, "warm") not in ("warm", "bytes", 1):
                raise ConfigError(f"{where}.stream: unsupported with {key}: {why}")
        stream = {"insert_per_s": 0, "delete_per_s": 0, "batch_rows": 1, "clients": 1, **workload["stream"]}
        workload["stream"] = stream
        counts = changes_of(workload)
        for kind, rows in counts.items():
            if stream[f"{kind}_per_s"] and not rows:
                raise ConfigError(
                    f"{where}.stream.{kind}_per_s: too low for one batch of {stream['batch_rows']} rows in "
                    f"{workload['duration_s']:g} s"
                )
        if not any(counts.values()):
            raise ConfigError(f"{where}.stream: needs insert_per_s, delete_per_s, or both")

    def check(self, workload: Mapping[str, Any], dataset: str, entry: Dataset, where: str) -> None:
        counts = changes_of(workload)
        if counts["insert"] and workload["queries"] + workload["warmup"] + counts["insert"] > entry.queries:
            raise ConfigError(
                f"{where}.stream.insert_per_s: {counts['insert']} rows to insert, {workload['queries']} queries and "
                f"{workload['warmup']} to warm up exceed the {entry.queries} queries of dataset {dataset}: "
                "the stream inserts queries that the workload does not search"
            )
        if 2 * counts["delete"] > entry.rows:
            raise ConfigError(
                f"{where}.stream.delete_per_s: {counts['delete']} rows to delete exceed half of the "
                f"{entry.rows} rows of dataset {dataset}"
            )

    def depth(self, workload: Mapping[str, Any]) -> int:
        return 3 if changes_of(workload)["delete"] else 1  # the next rows must be known if near ones are deleted

    def note(self, metric: Metric, body: Body) -> str:
        late = metric.phase == "query" and at(body, ("stream", "kept")) is False
        return str(at(body, ("stream", "detail"))) if late else ""


FEATURE = Stream()
