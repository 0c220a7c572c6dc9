"""Tables beyond those of the paper: equal recall, fronts, filters by selectivity, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, groupby
from typing import Any

import pandas as pd

from anncestry.metrics import stats
from anncestry.report import equal_recall
from anncestry.report.absence import brief
from anncestry.report.equal_recall import AtTarget, Sweep
from anncestry.report.numbers import rows_of
from anncestry.report.tables import NO_CELL, Cell, Column, Row, Table, TableRow, client_mark, text_of
from anncestry.report.welch import MIN_RUNS, Sample, difference_interval

LEVEL = 0.05
_COMPARED = {"p50_ms": True, "p99_ms": True, "qps": False}
"""Metrics in which systems are compared, and whether lower is better."""
_OF_LIBRARIES = {
    "p50_ms": ("p50", "ms"),
    "p99_ms": ("p99", "ms"),
    "mean_ms": ("Mean", "ms"),
    "qps": ("Queries per second", "1/s"),
    "client_cpu_us_per_query": ("Client's CPU a query", "µs"),
}
_KINDS = {"": "independent", "near": "near the query", "far": "far from the query"}


def tables(df: pd.DataFrame, records: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """The tables that the tidy frame `df` has something for; `records` are those that it names, by path."""
    rows = rows_of(df)
    built = [_equal(rows), _fronts(rows), _filters(rows), _comparisons(rows, records)]
    return [table for table in built if table.rows]


def with_interval(row: Row | None) -> Cell:
    """A number with its 95 % interval, or why there is none."""
    if row is None:
        return Cell(NO_CELL)
    if row["value"] is None:
        return Cell(brief(row["reason"]), number_id=row["number_id"], problem=row["reason"])
    shown = text_of(row["value"], None, row["unit"])
    if row["low"] is not None:
        shown += f" ({text_of(row['low'], None, row['unit'])} to {text_of(row['high'], None, row['unit'])})"
    return Cell(shown + client_mark(row), row["value"], row["std"], row["number_id"])


def workload_table(
    df: pd.DataFrame, having: str, shown: Mapping[str, tuple[str, str]], number: str, title: str, note: str
) -> list[Table]:
    """A row of each workload of the tidy frame `df` that has the metric `having`; none where no workload has it.

    `shown` are the metrics of its columns, each with label and unit.
    """
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows_of(df):
        place = tuple(str(row[name]) for name in ("dataset", "topology", "workload", "system"))
        found.setdefault(place, {})[row["metric"]] = row
    body = tuple(
        TableRow(place, tuple(with_interval(of.get(metric)) for metric in shown))
        for place, of in sorted(found.items())
        if having in of
    )
    columns = tuple(Column(label, unit) for label, unit in shown.values())
    table = Table(number, title, note, ("Dataset", "Topology", "Workload", "System"), columns, body)
    return [table] if body else []


def libraries(df: pd.DataFrame) -> list[Table]:
    """What was asked through the databases' own Python libraries (client: sdk), if anything was."""
    rows = [row for row in rows_of(df) if row["client"] == "sdk" and row["metric"] in _OF_LIBRARIES]
    places = sorted({tuple(str(row[name]) for name in ("dataset", "topology", "workload", "system")) for row in rows})
    columns = [Column(label, unit) for label, unit in _OF_LIBRARIES.values()]
    body = []
    for place in places:
        found = {
            row["metric"]: row
            for row in rows
            if (row["dataset"], row["topology"], row["workload"], row["system"]) == place
        }
        body.append(TableRow(place, tuple(with_interval(found.get(metric)) for metric in _OF_LIBRARIES)))
    table = Table(
        "L",
        "Through the databases' own Python libraries",
        "The same queries, asked by pymilvus or weaviate-client, a process for each client: what a Python program sees."
        " The library encodes and decodes within the time, and its processor time is the client's. All other tables"
        " and charts are of requests that were encoded before.",
        ("Dataset", "Topology", "Workload", "System"),
        tuple(columns),
        tuple(body),
    )
    return [table] if body else []


# Equal recall


def _equal(rows: Sequence[Row]) -> Table:
    found = {metric: equal_recall.sweeps(rows, metric) for metric in equal_recall.COSTS}
    tuned = [row for row in rows if row["target_recall"] is not None]
    systems = sorted({s.system for s in found["qps"]} | {row["system"] for row in tuned})
    units = {"qps": "1/s", "p99_ms": "ms"}
    columns = [
        Column(system, units[metric], f"{label} ", system)
        for metric, label in (("qps", "Queries per second"), ("p99_ms", "p99"))
        for system in systems
    ]
    places = sorted({(s.dataset, s.topology, s.question) for s in found["qps"]}, key=str)
    body = []
    for dataset, topology, question in places:
        for target in equal_recall.TARGETS:
            cells = []
            for metric, lower in equal_recall.COSTS.items():
                for system in systems:
                    here = _find(found[metric], dataset, topology, system, question)
                    cells.append(_interpolated(here, target, units[metric], lower) if here else Cell(NO_CELL))
            labels = (dataset, topology, _asked(question), f"{target:g}", "between neighbours of the sweep")
            body.append(TableRow(labels, tuple(cells)))
    named = sorted({(row["dataset"], row["topology"], row["workload"]) for row in tuned})
    for dataset, topology, workload in named:
        here_rows = [r for r in tuned if (r["dataset"], r["topology"], r["workload"]) == (dataset, topology, workload)]
        cells = [
            _tuned([row for row in here_rows if row["system"] == system], metric)
            for metric in equal_recall.COSTS
            for system in systems
        ]
        first = here_rows[0]
        question = (first["k"], first["clients"], first["duration_s"], first["filter"])
        labels = (dataset, topology, _asked(question), f"{first['target_recall']:g}", "measured, ef from other queries")
        body.append(TableRow(labels, tuple(cells)))
    body.sort(key=lambda row: row.labels)
    return Table(
        "E",
        "Cost of a recall",
        "What recall (by distance) of a target costs. Between neighbours: linear between the two points of a system's"
        " front (see Table P) that have the target between them, never beyond its ends; in brackets the least and most"
        " that the 95 % intervals of both points' recalls and costs allow. Measured: at the smallest ef whose recall on"
        " held-out queries, which are not reported, surely reached the target; the recall is that of the measured"
        " queries.",
        ("Dataset", "Topology", "Asked", "Target recall", "How"),
        tuple(columns),
        tuple(body),
    )


def _find(
    found: Sequence[Sweep], dataset: str, topology: str, system: str, question: tuple[object, ...]
) -> Sweep | None:
    place = (dataset, topology, system, question)
    return next((s for s in found if (s.dataset, s.topology, s.system, s.question) == place), None)


def _interpolated(sweep: Sweep, target: float, unit: str, lower: bool) -> Cell:
    at: AtTarget = equal_recall.at_target(sweep.points, target, lower=lower)
    parents = tuple(row["number_id"] for row in at.parents)
    if at.value is None:
        return Cell(at.why, parents=parents, problem=at.why)
    shown = text_of(at.value, None, unit)
    if at.low is not None and at.high is not None:
        shown += f" ({text_of(at.low, None, unit)} to {text_of(at.high, None, unit)})"
    return Cell(shown, at.value, parents=parents)


def _tuned(rows: Sequence[Row], metric: str) -> Cell:
    by_metric = {row["metric"]: row for row in rows}
    cell = with_interval(by_metric.get(metric))
    recall = by_metric.get(equal_recall.RECALL)
    if cell.value is None or recall is None or recall["value"] is None:
        return cell
    said = f"{cell.text}; ef {recall['ef_search']}, recall {text_of(recall['value'], None, 'fraction')}"
    return Cell(said, cell.value, cell.std, cell.number_id)


def _fronts(rows: Sequence[Row]) -> Table:
    body = []
    by_p99 = equal_recall.sweeps(rows, "p99_ms")
    for sweep in equal_recall.sweeps(rows, "qps"):
        fast = equal_recall.front(sweep.points, lower=False)
        other = _find(by_p99, sweep.dataset, sweep.topology, sweep.system, sweep.question)
        steady = equal_recall.front(other.points, lower=True) if other else []
        p99 = {point.ef_search: point.cost for point in other.points} if other else {}
        for point in sweep.points:
            on = [
                name
                for name, points in (("QPS", fast), ("p99", steady))
                if any(one.ef_search == point.ef_search for one in points)
            ]
            cells = (
                with_interval(point.recall),
                with_interval(point.cost),
                with_interval(p99.get(point.ef_search)),
                Cell(" and ".join(on) or "dominated"),
            )
            labels = (sweep.dataset, sweep.topology, _asked(sweep.question), sweep.system, str(point.ef_search))
            body.append(TableRow(labels, cells))
    return Table(
        "P",
        "Recall and speed by search effort",
        "One row a cell, with 95 % intervals. On the front: no other effort of the same system has as much recall (by"
        " distance) and a better cost; dominated points are pale in the chart.",
        ("Dataset", "Topology", "Asked", "System", "ef"),
        (
            Column("Recall by distance", "fraction"),
            Column("Queries per second", "1/s"),
            Column("p99", "ms"),
            Column("On the front of"),
        ),
        tuple(body),
    )


def _asked(question: Sequence[object]) -> str:
    k, clients, duration_s, filter = question
    said = [f"K = {k}", f"{clients} client{'' if clients == 1 else 's'}"]
    if duration_s:
        said.append(f"{duration_s:g} s")
    return ", ".join([*said, *([str(filter)] if filter else [])])


# Filters


def kind_of(filter: str) -> str:
    """How a filter goes with a query's position, from its words in the tidy frame."""
    if not filter.startswith("region"):
        return _KINDS[""]
    return _KINDS["near" if filter.endswith(", near the query") else "far"]


def _filters(rows: Sequence[Row]) -> Table:
    """Recall and latency by selectivity, if there are at least two selectivities."""
    asked = [row for row in rows if row["filter"] and row["clients"] == 1 and row["duration_s"] is None]
    shares = [row for row in asked if row["metric"] == "selectivity"]
    systems = sorted({row["system"] for row in asked})
    metrics = {
        "recall_by_id": ("Recall by id", "fraction"),
        "recall_zero_share": ("Answers with recall 0", "fraction"),
        "p50_ms": ("p50", "ms"),
    }
    columns = [Column(system, unit, label, system) for label, unit in metrics.values() for system in systems]
    questions = sorted({(r["dataset"], r["topology"], r["k"], r["filter"], r["workload"]) for r in asked})
    by_name = {(r["dataset"], r["topology"], r["workload"], r["system"], r["metric"]): r for r in asked}
    body = []
    for dataset, topology, k, filter, workload in questions:
        known = [
            r["value"]
            for r in shares
            if (r["dataset"], r["topology"], r["workload"]) == (dataset, topology, workload) and r["value"] is not None
        ]
        cells = tuple(
            with_interval(by_name.get((dataset, topology, workload, system, metric)))
            for metric in metrics
            for system in systems
        )
        share = f"{100 * known[0]:.3g} %" if known else "?"
        body.append((known[0] if known else 0.0, TableRow((dataset, topology, str(k), kind_of(filter), share), cells)))
    body.sort(key=lambda item: (*item[1].labels[:4], item[0]))
    enough = len({share for share, _ in body}) > 2
    return Table(
        "F",
        "Filters by selectivity",
        "Share of rows that pass, as the server itself counts them. Independent: the filter has nothing to do with"
        " position. Near and far: rows on the query's own side of a number of splits of space, or on the other side of"
        " all of them. Recall is against the exact neighbours among the rows that pass; answers with recall 0 found"
        " none of them. 95 % intervals in brackets.",
        ("Dataset", "Topology", "K", "Filter", "Selectivity"),
        tuple(columns),
        tuple(row for _, row in body) if enough else (),
    )


# Differences


def _comparisons(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> Table:
    """Every pair of systems under every workload, corrected for how many comparisons the table makes."""
    wanted = [r for r in rows if r["metric"] in _COMPARED and r["value"] is not None and (r["runs"] or 0) >= MIN_RUNS]
    wanted = [r for r in wanted if r["std"] is not None]
    wanted.sort(key=lambda r: (r["dataset"], r["topology"], r["workload"], r["metric"], r["system"]))
    found: list[tuple[Row, Row, float, float | None]] = []
    for _, group in groupby(wanted, key=lambda r: (r["dataset"], r["topology"], r["workload"], r["metric"])):
        for a, b in combinations(group, 2):
            p = stats.welch_p(a["value"], a["std"], a["runs"], b["value"], b["std"], b["runs"])
            if p is not None:
                found.append((a, b, p, stats.permutation_p(_runs(a, records), _runs(b, records))))
    adjusted = stats.holm([p for _, _, p, _ in found])
    body = []
    for (a, b, p, permuted), corrected in zip(found, adjusted, strict=True):
        both = (a["number_id"], b["number_id"])
        interval = difference_interval(_sample(a), _sample(b))
        change = f"{100 * (a['value'] / b['value'] - 1):+.1f}"
        if interval:
            change += " ({:+.1f} to {:+.1f})".format(*(100 * end / b["value"] for end in interval))
        better = a if (a["value"] < b["value"]) == _COMPARED[a["metric"]] else b
        verdict = f"{better['system']} is faster" if corrected <= LEVEL else "tie"
        cells = (
            Cell(change.replace("-", "−"), parents=both, value=a["value"] / b["value"]),
            Cell(f"{p:.2g}", parents=both),
            Cell(f"{corrected:.2g}", parents=both),
            Cell(NO_CELL) if permuted is None else Cell(f"{permuted:.2g}", parents=both),
            Cell(verdict),
        )
        labels = (a["dataset"], a["topology"], a["workload"], a["metric"], f"{a['system']} against {b['system']}")
        body.append(TableRow(labels, cells))
    return Table(
        "C",
        "Which differences are larger than noise",
        "Every pair of systems with at least three runs. The difference is that of the means over runs, with"
        " Welch's 95 % interval; p is Welch's, corrected by Holm's method for all comparisons of this table; a verdict"
        " is given where the corrected p is at most one in twenty, else it is a tie. Beside it the p of a permutation"
        " test over runs, which assumes no distribution and with three runs a side can't be below a tenth.",
        ("Dataset", "Topology", "Workload", "Metric", "Systems"),
        (
            Column("Difference", "%"),
            Column("p, Welch"),
            Column("p, corrected"),
            Column("p, permutation"),
            Column("Verdict"),
        ),
        tuple(body),
    )


def _runs(row: Row, records: Mapping[str, Mapping[str, Any]]) -> list[float]:
    values = records[row["record"]]["summary"][row["metric"]]["runs"]
    return [value for value in values if value is not None]


def _sample(row: Row) -> Sample:
    return Sample(row["value"], row["std"], row["runs"])
