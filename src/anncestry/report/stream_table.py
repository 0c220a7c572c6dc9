"""The table of what is searched while rows come and go."""

from __future__ import annotations

import pandas as pd

from anncestry.report.more_tables import workload_table
from anncestry.report.tables import Table

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


def tables(df: pd.DataFrame) -> list[Table]:
    """The table, if the tidy frame `df` has a workload with a stream of changes."""
    return workload_table(
        df,
        "stream_on_time",
        _SHOWN,
        "W",
        "Searching while rows come and go",
        "Rows are inserted and deleted at a constant rate, on connections of their own, while queries run. Recall is"
        " that of each moment: asked are the rows whose insertion was acknowledged before a query was sent, and that"
        " nobody had begun to delete before it was answered; rows that came or went meanwhile count either way. New"
        " rows found: the share, of the nearest that came while the clock ran, that was returned. Answers with a"
        " deleted row: those holding one whose deletion was acknowledged before the query was sent. A change is on"
        " time if it was acknowledged within a second of when it was due.",
    )
