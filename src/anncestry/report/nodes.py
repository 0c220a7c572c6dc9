"""Who did the work of a cluster: searches by node, as each node counts them."""

from __future__ import annotations

import pandas as pd

from anncestry.report.more_tables import with_interval
from anncestry.report.numbers import rows_of
from anncestry.report.quantities import SEARCHES
from anncestry.report.tables import NO_CELL, Cell, Column, Table, TableRow

_OPENING = f"{SEARCHES}["


def tables(df: pd.DataFrame) -> list[Table]:
    """Table N, if any number of the tidy frame `df` says what a node was sent."""
    rows = [row for row in rows_of(df) if row["metric"].startswith(_OPENING)]
    nodes = sorted({_node(row["metric"]) for row in rows}, key=lambda name: (len(name), name))
    by_place: dict[tuple[str, ...], dict[str, Cell]] = {}
    for row in rows:
        place = (row["dataset"], row["topology"], row["system"], row["workload"])
        by_place.setdefault(place, {})[_node(row["metric"])] = with_interval(row)
    body = tuple(
        TableRow(place, (_evenness(cells), *(cells.get(node, Cell(NO_CELL)) for node in nodes)))
        for place, cells in sorted(by_place.items())
    )
    table = Table(
        "N",
        "Searches by query node",
        "Searches that each query node was sent in a run, by its own count and with the warm-up: the mean over runs."
        " Least / mean is the node with the fewest against the mean of all: 1 is evenly shared. Nodes that share one"
        " machine's cores show whether the work is spread, not what it would gain to spread it.",
        ("Dataset", "Topology", "System", "Workload"),
        (Column("Least / mean"), *(Column(node, "searches", "Searches") for node in nodes)),
        body,
    )
    return [table] if body else []


def _node(metric: str) -> str:
    return metric.removeprefix(_OPENING).removesuffix("]")


def _evenness(cells: dict[str, Cell]) -> Cell:
    counts = [cell.value for cell in cells.values() if cell.value is not None]
    if not counts or not sum(counts):
        return Cell(NO_CELL)
    value = min(counts) * len(counts) / sum(counts)
    return Cell(f"{value:.2f}", value, parents=tuple(cell.number_id for cell in cells.values()))
