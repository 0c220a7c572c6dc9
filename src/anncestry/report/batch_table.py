"""The table of requests of one vector and of several (a workload's `nq`)."""

from __future__ import annotations

import pandas as pd

from anncestry.report.more_tables import with_interval
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Column, Table, TableRow

_SHOWN = {
    "requests_per_s": ("Requests", "requests/s"),
    "vectors_per_s": ("Vectors", "vectors/s"),
    "p50_ms": ("p50 of a request", "ms"),
    "p99_ms": ("p99 of a request", "ms"),
    "recall_by_id": ("Recall of a vector", "fraction"),
    "client_cpu_us_per_query": ("Client CPU a request", "µs"),
    "encode_us_per_request": ("Encoding a request", "µs"),
    "encode_share": ("Encoding, of encoding and waiting", "fraction"),
}
_NAMES = ("dataset", "topology", "system", "workload", "nq")


def tables(df: pd.DataFrame) -> list[Table]:
    """The table, if a workload of the tidy frame `df` says how many vectors a request has."""
    rows = rows_of(df[df["workload"].fillna("") != ""])
    places: dict[tuple[object, ...], dict[str, dict[str, object]]] = {}
    for row in rows:
        places.setdefault(tuple(row[name] for name in _NAMES), {})[row["metric"]] = row
    body = [
        TableRow(tuple(map(str, place)), tuple(with_interval(found.get(metric)) for metric in _SHOWN))
        for place, found in sorted(places.items(), key=str)
        if "vectors_per_s" in found
    ]
    body.sort(key=lambda row: (*row.labels[:3], int(row.labels[4]), row.labels[3]))
    table = Table(
        "NQ",
        "Several vectors a request",
        "A request holds nq query vectors and gets the nearest of each. Latency and errors are those of requests, and"
        " so are queries per second wherever else they stand; recall is that of vectors. The queries are cut into"
        " batches in their order, which is a circle: no batch is padded. Encoding was done before the clock started:"
        " its share is what it would be of a request's time for a client that encodes each before it sends it.",
        ("Dataset", "Topology", "System", "Workload", "Vectors a request (nq)"),
        tuple(Column(label, unit) for label, unit in _SHOWN.values()),
        tuple(body),
    )
    return [table] if body else []
