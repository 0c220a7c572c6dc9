"""What a server costs over the bare algorithm: each server against each library that ran in its clients' processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anncestry.report.material import Material
from anncestry.report.more_tables import with_interval
from anncestry.report.tables import NO_CELL, Cell, Column, Row, Table, TableRow, sample_of
from anncestry.report.welch import ratio_interval

LIBRARY = "-library"
"""How the names of systems end that are libraries, not servers (docs/libraries.md)."""

OTHER_INDEX = "another index"
OTHER_EFFORT = "another ef"

_RATIOS = {
    "qps": Column("Queries per second", "× library"),
    "p50_ms": Column("p50", "× library"),
    "p99_ms": Column("p99", "× library"),
}
_RECALL = "recall_by_id"


def tables(material: Material) -> list[Table]:
    """Table O, if servers and libraries were asked the same."""
    rows = [row for row in material.rows if row["metric"] in (*_RATIOS, _RECALL, "rows") and row["value"] is not None]
    found = {(row["dataset"], row["topology"], row["system"], row["workload"], row["metric"]): row for row in rows}
    loads = {key[:3]: material.records.get(row["record"]) or {} for key, row in found.items() if key[4] == "rows"}
    asked = sorted({key[:4] for key in found if key[4] in _RATIOS})
    body = []
    for dataset, topology, server, workload in (place for place in asked if not place[2].endswith(LIBRARY)):
        for other in (place for place in asked if place[2].endswith(LIBRARY)):
            if (other[0], other[3]) != (dataset, workload):
                continue
            ours, theirs = (
                {metric: found.get((*place, metric)) for metric in (*_RATIOS, _RECALL)}
                for place in ((dataset, topology, server, workload), other)
            )
            why = _unlike(ours, theirs, loads.get((dataset, topology, server)), loads.get(other[:3]))
            body.append(TableRow((dataset, topology, workload, server, other[2]), _cells(ours, theirs, why)))
    table = Table(
        "O",
        "What a server costs over the bare algorithm",
        "The same vectors, queries, M, ef_construction and ef, asked of a server and of a library in its client's own"
        " process: a server has a wire, threads that take turns, and storage to look after. Ratios are server /"
        " library of the means over runs, in brackets their 95 % interval (of the logarithm of the ratio, by the delta"
        " method; at least three runs a side). A ratio of 2 for p50 means that a query takes twice as long. Recall is"
        " beside it, for the same ef need not find the same.",
        ("Dataset", "Topology", "Workload", "System", "Library"),
        (*_RATIOS.values(), Column("Recall, server", "fraction"), Column("Recall, library", "fraction")),
        tuple(body),
    )
    return [table] if body else []


def _unlike(
    ours: Mapping[str, Row | None],
    theirs: Mapping[str, Row | None],
    server: Mapping[str, Any] | None,
    library: Mapping[str, Any] | None,
) -> str:
    """Why the two can't be set against each other; empty if they can."""
    indexes = [(load or {}).get("spec", {}).get("index") for load in (server, library)]
    if indexes[0] != indexes[1]:
        return OTHER_INDEX
    efforts = [next(row["ef_search"] for row in of.values() if row is not None) for of in (ours, theirs)]
    return "" if efforts[0] == efforts[1] else OTHER_EFFORT


def _cells(ours: Mapping[str, Row | None], theirs: Mapping[str, Row | None], why: str) -> tuple[Cell, ...]:
    ratios = [Cell(why, problem=why) if why else _ratio(ours[metric], theirs[metric]) for metric in _RATIOS]
    return (*ratios, with_interval(ours[_RECALL]), with_interval(theirs[_RECALL]))


def _ratio(above: Row | None, below: Row | None) -> Cell:
    """A server's number over a library's, with its interval where noise is known."""
    if above is None or below is None or not below["value"]:
        return Cell(NO_CELL)
    both: Sequence[str] = (above["number_id"], below["number_id"])
    interval = ratio_interval(sample_of(above), sample_of(below))
    value = above["value"] / below["value"]
    shown = _shown(value) + (f" ({_shown(interval[0])} to {_shown(interval[1])})" if interval else "")
    return Cell(shown, value, parents=tuple(both))


def _shown(ratio: float) -> str:
    """Three digits that count, however small a server's share is."""
    return f"{ratio:#.3g}".rstrip(".") if ratio < 1000 else f"{ratio:,.0f}"
