"""Table PK: what VectorDBBench prints first of a run, for every system that several numbers of clients asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, is_serial, with_interval
from anncestry.report.model.equal_recall import defective
from anncestry.report.model.material import Material
from anncestry.report.tables.spec import made, pivot
from anncestry.report.tables.standard import said_effort

LABELS = ("Dataset", "Topology", "System", "Effort", "K")
COLUMNS = (
    Column("Recall by id", "fraction"),
    Column("p99, one client", "ms"),
    Column("Peak queries per second", "1/s"),
    Column("Clients at the peak"),
    Column("Load", "s"),
    Column("Index build", "s"),
)
CAPTION = (
    "Recall and p99 are of one client that asked a fixed count of queries. The peak is the highest rate of all numbers"
    " of clients that asked for a fixed time, of those with at most one answer in a thousand defective, if there is"
    " one; its clients stand beside it."
)


def tables(material: Material) -> list[Table]:
    """The table, unless no system was asked by more than one number of clients."""
    return made(
        Table(
            "PK",
            "Summary with the peak of queries per second",
            f"As VectorDBBench prints a run. {CAPTION} Effort: that of the searches, or the recall that they were tuned"
            " for; then each number of clients may have another.",
            LABELS,
            COLUMNS,
            tuple(lines(material.ordinary, material)),
        )
    )


def lines(rows: Sequence[Row], material: Material) -> list[TableRow]:
    """A row for each effort of a system that was asked without a filter by two or more numbers of clients."""
    loads = pivot((row for row in rows if not row["workload"]), ("dataset", "topology", "system"))
    asked: dict[tuple[str, str, int, str, float, int, str], list[Row]] = {}
    for row in rows:
        if row["workload"] and not row["filter"]:
            tuned = row["target_recall"] is not None
            size = (row["target_recall"] or 0.0, 0 if tuned else row["ef_search"] or 0)
            place = (row["dataset"], row["topology"], row["k"], row["system"], *size, said_effort(row))
            asked.setdefault(place, []).append(row)
    found = []
    for (dataset, topology, k, system, *_, effort), of in sorted(asked.items()):
        rates = [row for row in of if row["metric"] == "qps" and row["duration_s"] is not None]
        if not rates or len({row["clients"] for row in of}) == 1:
            continue
        serial = {row["metric"]: row for row in of if is_serial(row)}
        load = loads.get((dataset, topology, system), {})
        peak = _peak(rates)
        shown = [with_interval(each) for each in (serial.get("recall_by_id"), serial.get("p99_ms"), peak)]
        clients = NO_CELL if peak["value"] is None else str(peak["clients"])
        times = [with_interval(load.get((name,))) for name in ("load_s", "index_s")]
        cells = (*shown, Cell(clients, parents=(peak["number_id"],)), *times)
        found.append(TableRow((dataset, topology, system, effort, str(k)), cells))
    places = material.places(material.rows)
    return sorted(found, key=lambda row: places.index((row.labels[0], row.labels[1])))


def _peak(rates: Iterable[Row]) -> Row:
    """The highest rate: of rows without defects where there are such, else of those that have a number."""
    return max(rates, key=lambda row: (row["value"] is not None, not defective(row), row["value"] or 0.0))
