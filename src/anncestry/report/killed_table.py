"""The table of what was lost when a server was killed while it was loaded."""

from __future__ import annotations

import pandas as pd

from anncestry.report.more_tables import with_interval
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Column, Table, TableRow

_METRICS = {
    "kill_acknowledged": ("Acknowledged", "vectors"),
    "kill_counted": ("Counted by the server", "vectors"),
    "kill_lost_by_count": ("Lost by count", "vectors"),
    "kill_asked": ("Searched for", "vectors"),
    "kill_lost_by_search": ("Lost by search", "vectors"),
    "kill_accepting_s": ("Accepting again after", "s"),
    "kill_resent": ("Batches sent again", "requests"),
}


def tables(df: pd.DataFrame) -> list[Table]:
    """The table, if the tidy frame `df` has a load during which the server was killed."""
    found = {
        (*(str(row[name]) for name in ("dataset", "topology", "system")), row["metric"]): row
        for row in rows_of(df)
        if row["metric"] in _METRICS
    }
    places = sorted({place[:3] for place in found})
    body = [
        TableRow(place, tuple(with_interval(found.get((*place, metric))) for metric in _METRICS)) for place in places
    ]
    table = Table(
        "K",
        "Lost when the server was killed",
        "The server is ended by SIGKILL right after a batch was acknowledged, and started again on its data; the client"
        " goes on, and sends again what is not acknowledged. Lost by count: rows fewer than were acknowledged, as the"
        " server counts. Lost by search: rows searched for by their own vector and not found, whether the store lost"
        " them or its index. Searched for are all rows, or the last 5,000 before the kill and 5,000 of the others. No"
        " query is measured on a load that lost a row.",
        ("Dataset", "Topology", "System"),
        tuple(Column(label, unit) for label, unit in _METRICS.values()),
        tuple(body),
    )
    return [table] if body else []
