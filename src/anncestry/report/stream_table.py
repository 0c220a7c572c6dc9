"""The table of what is searched while rows come and go."""

from __future__ import annotations

import pandas as pd

from anncestry.report.more_tables import with_interval
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Column, Table, TableRow

_SHOWN = {
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
}
_NAMES = ("dataset", "topology", "workload", "system")


def tables(df: pd.DataFrame) -> list[Table]:
    """The table, if the tidy frame `df` has a workload with a stream of changes."""
    rows = rows_of(df)
    places = sorted({tuple(str(row[name]) for name in _NAMES) for row in rows if row["metric"] == "stream_on_time"})
    body = []
    for place in places:
        found = {row["metric"]: row for row in rows if tuple(str(row[name]) for name in _NAMES) == place}
        body.append(TableRow(place, tuple(with_interval(found.get(metric)) for metric in _SHOWN)))
    table = Table(
        "W",
        "Searching while rows come and go",
        "Rows are inserted and deleted at a constant rate, on connections of their own, while queries run. Recall is"
        " that of each moment: asked are the rows whose insertion was acknowledged before a query was sent, and that"
        " nobody had begun to delete before it was answered; rows that came or went meanwhile count either way. New"
        " rows found: the share, of the nearest that came while the clock ran, that was returned. Answers with a"
        " deleted row: those holding one whose deletion was acknowledged before the query was sent. A change is on"
        " time if it was acknowledged within a second of when it was due.",
        ("Dataset", "Topology", "Workload", "System"),
        tuple(Column(label, unit) for label, unit in _SHOWN.values()),
        tuple(body),
    )
    return [table] if body else []
