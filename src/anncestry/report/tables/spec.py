"""Declared tables (what their rows and columns are by, which numbers they show, on what condition), and small ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from anncestry.cells.blocks import Absent
from anncestry.cells.features import Place, TableSpec
from anncestry.metrics.defects import BITS
from anncestry.report.model.cells import Cell, Column, Row, Table, TableRow, with_interval
from anncestry.report.model.material import Material

OTHER_EFFORT = "another effort"
"""Where a number has no counterpart at its own search effort."""

PAPER_K = 10
"""Neighbours that the paper's tables are of, where they do not say another number."""

_LABELS = {"nq": "Vectors a request (nq)"}


def tables(spec: TableSpec, material: Material) -> list[Table]:
    """The table, if any row of the tidy table belongs to it."""
    return of_rows(spec, material.first_rows if spec.all_clients else material.rows)


def of_rows(spec: TableSpec, rows: Iterable[Row]) -> list[Table]:
    """The table of these rows of the tidy table; none if no row belongs to it."""
    chosen = [row for row in rows if (row["metric"] in spec.shown or row["metric"] == spec.having) and spec.of(row)]
    systems = sorted({row["system"] for row in chosen}) if spec.by_system else [""]
    numbers = pivot(chosen, spec.by, ("metric", "system") if spec.by_system else ("metric",))
    places = [place for place, cells in numbers.items() if not spec.having or (spec.having,) in cells]
    columns = [
        Column(system, unit, label, system) if spec.by_system else Column(label, unit)
        for label, unit in spec.shown.values()
        for system in systems
    ]
    keys = [(metric, system) if spec.by_system else (metric,) for metric in spec.shown for system in systems]
    body = [
        TableRow(tuple(map(str, place)), tuple(with_interval(numbers[place].get(key)) for key in keys))
        for place in sorted(places, key=spec.order)
    ]
    labels = tuple(_LABELS.get(name, name.capitalize()) for name in spec.by)
    return made(Table(spec.number, spec.title, spec.caption, labels, tuple(columns), tuple(body)))


def of_features(material: Material) -> list[Table]:
    """The tables of the features of workloads."""
    by_rank = sorted(material.features, key=lambda feature: feature.rank)
    return [table for feature in by_rank if feature.table is not None for table in tables(feature.table, material)]


of_killed = partial(
    tables,
    TableSpec(
        "K",
        "Lost when the server was killed",
        "The server is ended by SIGKILL right after a batch was acknowledged, and started again on its data; the client"
        " goes on, and sends again what is not acknowledged. Lost by count: rows fewer than were acknowledged, as the"
        " server counts. Lost by search: rows searched for by their own vector and not found, whether the store lost"
        " them or its index. Searched for are all rows, or the last 5,000 before the kill and 5,000 of the others. No"
        " query is measured on a load that lost a row.",
        {
            "kill_acknowledged": ("Acknowledged", "vectors"),
            "kill_counted": ("Counted by the server", "vectors"),
            "kill_lost_by_count": ("Lost by count", "vectors"),
            "kill_asked": ("Searched for", "vectors"),
            "kill_lost_by_search": ("Lost by search", "vectors"),
            "kill_accepting_s": ("Accepting again after", "s"),
            "kill_resent": ("Batches sent again", "requests"),
        },
        by=("dataset", "topology", "system"),
    ),
)
"""Table K: what was lost when a server was killed while it was loaded."""


of_defects = partial(
    tables,
    TableSpec(
        "Z",
        "Answers with a defect",
        "Requests whose answers were short (fewer different rows than there are to find), of these empty, repeating a"
        " row, or with rows that the filter excludes; or that failed. An answer may have several defects; the share"
        " counts it once, with Wilson's interval of as many observations as different queries were asked. Recall"
        " charges what is missing. Queries per second of all answers, and of those without a defect.",
        {
            "defect_share": ("Share", "fraction"),
            **{f"{name}_answers": (name.capitalize(), "queries") for name in BITS},
            "errors": ("Failed", "queries"),
            "timeouts": ("Timed out", "queries"),
            "qps": ("Queries per second", "1/s"),
            "complete_qps": ("Of complete answers", "1/s"),
        },
        of=lambda row: bool(row["defect_share"]),
        all_clients=True,
    ),
)
"""Table Z: the cells of which some answers have a defect."""


def of_absent(absent: Sequence[Absent]) -> list[Table]:
    """Table U: the cells that are listed instead of measured, each with its reason."""
    arms = any(cell.arm for cell in absent)
    names = ("dataset", "system", "topology", "workload", *(("arm",) if arms else ()), "state")
    labels = [tuple(getattr(cell, name) or "—" for name in names) for cell in absent]
    return made(
        Table(
            "U",
            "Unsupported, or not measurable here",
            "Cells that were asked for and that no run can fill here. Unsupported: the system lacks what the"
            " cell asks. Not measurable here: a limit is more than the platform has; it would limit nothing, and a"
            " number would be the platform's.",
            tuple(name.capitalize() for name in names),
            (Column("Why"),),
            tuple(TableRow(of, (Cell(cell.reason),)) for of, cell in zip(labels, absent, strict=True)),
        )
    )


def of_k(number: str, k: int) -> str:
    """The number of a table of queries for `k` neighbours: the paper's own for its 10, and so "XI-100" for 100."""
    return number if k == PAPER_K else f"{number}-{k}"


def made(table: Table) -> list[Table]:
    """The table, unless it has no rows."""
    return [table] if table.rows else []


def pivot(
    rows: Iterable[Row], by: Sequence[str], columns: Sequence[str] = ("metric",)
) -> dict[Place, dict[Place, Row]]:
    """Rows of the tidy table by their place, and there by their column."""
    found: dict[Place, dict[Place, Row]] = {}
    for row in rows:
        of_place = found.setdefault(tuple(row[name] for name in by), {})
        of_place[tuple(row[name] for name in columns)] = row
    return found
