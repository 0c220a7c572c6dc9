"""The tables of the paper, from the tidy frame: plain structures with measured beside published."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.report.absence import brief
from anncestry.report.numbers import rows_of
from anncestry.report.printed import read_printed
from anncestry.report.welch import Sample, differ

Row = dict[str, Any]
"""A row of the tidy frame as plain values."""

NO_CELL = "—"

_PLACE = ("dataset", "topology", "system", "workload")

_COUNTS = frozenset({"vectors", "dimensions", "queries", "requests", "searches", "rows"})
"""Units of what is counted: whole numbers are printed as such, means over runs need not be whole."""

CLIENT_BOUND = " ‡"
"""Stands beside numbers of cells that are client-bound."""
_CLIENT_MATTERS = frozenset({"qps", "p50_ms", "p95_ms", "p99_ms", "mean_ms"})


@dataclass(frozen=True)
class Cell:
    """What one place of a table shows.

    `number_id` names the number in the tidy frame (empty for words and for what is computed from others, which
    `parents` then names). `published` is what the paper printed in its place. `best` is set only where the difference
    to every other system is larger than noise. `problem` says why there is no number. `source` is the id of a number
    that others published, where the cell shows one: it stands, with its trace, on the audit page.
    """

    text: str
    value: float | None = None
    std: float | None = None
    number_id: str = ""
    published: str = ""
    best: bool = False
    parents: tuple[str, ...] = ()
    problem: str = ""
    source: str = ""


@dataclass(frozen=True)
class Column:
    """A column: what it holds, in which unit, and of which system (empty if of none)."""

    label: str
    unit: str = ""
    group: str = ""
    system: str = ""


@dataclass(frozen=True)
class TableRow:
    """The labels of a row, as many as `Table.labels`, and a cell a column."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """One table; `published_note` says how the figures of the paper were obtained, empty where none is shown."""

    number: str
    title: str
    caption: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    published_note: str = ""


@dataclass(frozen=True)
class Text:
    """What stands above a table; `published_note` says how figures of others beside ours were obtained."""

    title: str
    caption: str
    published_note: str


_TEXTS = {
    "I": Text(
        "Datasets",
        "Vectors as counted on the server after loading, and their dimension. Distance l2 is the squared Euclidean one;"
        " for cosine, vectors are scaled to length 1 before they are loaded.",
        "The paper gives these counts and dimensions as the datasets' nominal ones.",
    ),
    "II": Text(
        "Load time",
        "Seconds of wall clock from the first insert until the server answers searches over all rows: insert, flush,"
        " index build and making ready together. A load is measured once, so no spread is known and none is better.",
        "The paper's time for Milvus ends before the index is loaded for searching.",
    ),
    "III": Text(
        "Processor use while loading",
        "Share of processor time that all processes of the server used, from first insert to searchable;"
        " 100 % is one core, kept busy. Peak is the highest interval between two samples.",
        "The paper's percentages are those of the Python client that loaded, not of the server.",
    ),
    "IV": Text(
        "Latency, K = 10, no filter",
        "Milliseconds from handing an encoded request to the transport until its whole answer is there; one client, the"
        " next query after the answer to the last; encoding and decoding are left out. Each percentile is the mean over"
        " runs, ± the sample standard deviation of the runs, all over one index.",
        "The paper timed calls of each vendor's Python client, encoding and decoding included;"
        " its ± is the population standard deviation of three runs.",
    ),
    "V": Text(
        "Latency, K = 100, no filter",
        "As the table before, with the 100 nearest asked for.",
        "The paper timed calls of each vendor's Python client, encoding and decoding included;"
        " its ± is the population standard deviation of three runs.",
    ),
    "VI": Text(
        "Queries per second, one client",
        "Answers without error, divided by the time from the first request to the last answer; one client, closed"
        " loop, no filter. ± is the sample standard deviation over runs.",
        "The paper derived its figure as 1000 / mean latency in milliseconds.",
    ),
    "VII": Text(
        "What a filter costs",
        "Median latency without and with the filter, one client. The cost is the change of the one against the other;"
        " n.s. marks a change not larger than noise. Selectivity is the measured share of rows that pass the filter."
        " Recall is against the exact neighbours among the rows that pass.",
        "In the paper's code most queries of the filtered runs carried no filter (the audit page says how many),"
        " and the others passed one row in ten.",
    ),
    "VIII": Text(
        "Recall",
        "Share of the exact K nearest neighbours among those returned, mean over queries. By id: the returned ids are"
        " the true ones. By distance: the returned ones are as near as the true K-th, so that ties count."
        " Repeats ask the same index the same queries: their spread is not noise, so none is marked better.",
        "The paper's recall is by id.",
    ),
    "IX": Text(
        "Storage",
        "MiB on disk after the server stopped, of one that held this dataset alone. Total is all it occupies; net is"
        " the vectors, metadata and index, without bookkeeping and logs; raw is rows × dimensions × 4 bytes.",
        "The paper prints MB. Its figure for Milvus is of a whole volume, with message logs and earlier runs.",
    ),
    "X": Text(
        "Queries per second by number of clients",
        "Answers without error per second, all clients together, each in a closed loop for a fixed time, K = 10, no"
        " filter. One run a cell unless ± is given.",
        "The paper ran threads of one Python process as clients.",
    ),
}


def tables(df: pd.DataFrame, published: Path | None = None) -> list[Table]:
    """Tables I-X of the paper for what is in the tidy frame `df`, without those that nothing in it belongs to.

    `published` is a CSV of the paper's own figures (config/published/paper.csv).
    """
    builder = _Tables(rows_of(df), read_printed(published) if published else {})
    built = [
        builder.datasets(),
        builder.load_time(),
        builder.load_cpu(),
        builder.latency("IV", 10),
        builder.latency("V", 100),
        builder.single_client(),
        builder.filtering(),
        builder.recall(),
        builder.storage(),
        builder.clients(),
    ]
    return [table for table in built if table.rows]


def best_of(rows: Sequence[Row | None], *, lower: bool) -> int | None:
    """The place of the number that is better than each other by more than noise; None for a tie or a number alone."""
    numbers = [(place, row) for place, row in enumerate(rows) if row is not None and row["value"] is not None]
    if len(numbers) < 2:
        return None
    place, best = (min if lower else max)(numbers, key=lambda item: float(item[1]["value"]))
    others = [row for other, row in numbers if other != place]
    return place if all(differ(sample_of(best), sample_of(row)) for row in others) else None


def client_mark(row: Row) -> str:
    """What stands behind a number that may be the client's limit."""
    return CLIENT_BOUND if row["client_bound"] is True and row["metric"] in _CLIENT_MATTERS else ""


def text_of(value: float, std: float | None, unit: str) -> str:
    """A value as text, ± its standard deviation, with the digits that its unit deserves."""
    digits = 0 if unit in _COUNTS and float(value).is_integer() else _digits(abs(value), unit)
    # Neither a value nor a spread that is there must be printed as zero.
    while value and digits < 4 and round(value, digits) == 0:
        digits += 1
    if std:
        while digits < 4 and round(std, digits) == 0:
            digits += 1
    text = f"{value:,.{digits}f}"
    if std is None:
        return text
    return f"{text} ± {std:,.{digits}f}" if std else f"{text} ± 0"


def _digits(size: float, unit: str) -> int:
    if unit == "fraction":
        return 4
    if unit == "ms":
        return 3 if size < 1 else 2 if size < 100 else 1
    if unit == "s":
        return 2 if size < 10 else 1
    return 0 if size >= 100 else 1


def sample_of(row: Row) -> Sample:
    """A number with its spread over runs."""
    return Sample(row["value"], row["std"] or 0.0, (row["runs"] or 1) if row["std"] is not None else 1)


@dataclass(frozen=True)
class Place:
    """What the rows of a table go by."""

    dataset: str
    topology: str


class Builder:
    """The numbers at hand, and how each table picks from them; `texts` are titles and captions by number of table."""

    texts: Mapping[str, Text]

    def __init__(self, rows: list[Row], published: Mapping[tuple[str, ...], str]) -> None:
        self._rows = rows
        self._published = published
        self._by_name = {
            (row["dataset"], row["topology"], row["system"], row["workload"], row["phase"], row["metric"]): row
            for row in rows
        }
        self._systems: list[str] = sorted({row["system"] for row in rows})
        self._engines: dict[str, str] = {row["system"]: row["engine"] for row in rows}
        self._places = [Place(*pair) for pair in sorted({(row["dataset"], row["topology"]) for row in rows})]
        self._several_topologies = len({place.topology for place in self._places}) > 1

    def _table(self, number: str, labels: Sequence[str], columns: Sequence[Column], rows: Sequence[TableRow]) -> Table:
        text = self.texts[number]
        beside = any(cell.published for row in rows for cell in row.cells)
        note = text.published_note if beside else ""
        return Table(number, text.title, text.caption, tuple(labels), tuple(columns), tuple(rows), note)

    def _columns(self, group: str, unit: str) -> list[Column]:
        return [Column(system, unit, group, system) for system in self._systems]

    def _labels(self, place: Place) -> tuple[str, ...]:
        return (place.dataset, place.topology) if self._several_topologies else (place.dataset,)

    def _label_names(self, kinds: Sequence[tuple[int, bool]] = ()) -> tuple[str, ...]:
        names = ("Dataset", "Topology") if self._several_topologies else ("Dataset",)
        return (*names, "Workload") if self._ambiguous(kinds) else names

    def _workloads(self, k: int, filtered: bool, place: Place | None = None) -> list[str]:
        """The workloads of one client and a fixed count of queries; those of a fixed time have their own table."""
        return sorted(
            {
                row["workload"]
                for row in self._rows
                if (row["k"], row["clients"], bool(row["filter"])) == (k, 1, filtered)
                and row["duration_s"] is None
                and (place is None or (row["dataset"], row["topology"]) == (place.dataset, place.topology))
            }
        )

    def _ambiguous(self, kinds: Sequence[tuple[int, bool]]) -> bool:
        return any(len(self._workloads(*kind)) > 1 for kind in kinds)

    def _variants(
        self, kinds: Sequence[tuple[int, bool]], named: bool | None = None
    ) -> list[tuple[Place, tuple[str, ...], tuple[str, ...]]]:
        """Rows of a table of queries: place, labels, and a workload (or an empty name) for each of `kinds`.

        `named`: whether the workloads are among the labels, which otherwise depends on whether any kind has several.
        """
        rows = []
        for place in self._places:
            of_kind = [self._workloads(*kind, place) for kind in kinds]
            for workloads in itertools.zip_longest(*of_kind, fillvalue=""):
                labels = self._labels(place)
                if self._ambiguous(kinds) if named is None else named:
                    labels = (*labels, ", ".join(filter(None, workloads)))
                rows.append((place, labels, workloads))
        return rows

    def _row(self, place: Place, system: str, workload: str, phase: str, metric: str) -> Row | None:
        return self._by_name.get((place.dataset, place.topology, system, workload, phase, metric))

    def _of_systems(self, place: Place, workload: str, phase: str, metric: str) -> list[Row | None]:
        return [self._row(place, system, workload, phase, metric) for system in self._systems]

    def _compared(
        self, number: str, place: Place, rows: Sequence[Row | None], *, lower: bool | None = None
    ) -> list[Cell]:
        """A cell a system; `lower` says which end is better, None that none is."""
        best = None if lower is None else best_of(rows, lower=lower)
        return [
            self._cell(row, self._printed_for(number, place, row), best=rank == best) for rank, row in enumerate(rows)
        ]

    def _cell(self, row: Row | None, published: str = "", *, best: bool = False) -> Cell:
        if row is None:
            return Cell(NO_CELL, published=published)
        if row["value"] is None:
            return Cell(brief(row["reason"]), number_id=row["number_id"], published=published, problem=row["reason"])
        text = text_of(row["value"], row["std"], row["unit"]) + client_mark(row)
        return Cell(text, row["value"], row["std"], row["number_id"], published, best)

    def _cost(self, with_filter: Row, without: Row | None, place: Place) -> Cell:
        printed = self._printed_for("VII", place, with_filter, metric="overhead_pct")
        cell = computed(with_filter, without, lambda a, b: 100 * (a / b - 1), "{:+,.1f}", printed)
        if cell.value is None or without is None or differ(sample_of(with_filter), sample_of(without)):
            return cell
        return replace(cell, text=f"{cell.text} n.s.")

    def _printed(self, number: str, dataset: str, topology: str, engine: str, metric: str, *asked: str) -> str:
        """What the paper printed; `asked` are k, filtered and clients, for a number of queries."""
        return self._published.get((number, dataset, topology, engine, metric, *(asked or ("", "", ""))), "")

    def _printed_for(self, number: str, place: Place, row: Row | None, metric: str = "") -> str:
        """What the paper printed for the same dataset, topology, engine, metric and question as `row`.

        It says whether a filter was asked and by how many clients only for queries, and for recall no clients.
        """
        if row is None:
            return ""
        asked: tuple[str, ...] = ()
        if row["workload"] and row["k"] is not None:
            clients = "" if row["phase"] == "recall" else str(row["clients"])
            asked = (str(row["k"]), str(int(bool(row["filter"]))), clients)
        return self._printed(number, place.dataset, place.topology, row["engine"], metric or row["metric"], *asked)


class _Tables(Builder):
    """Tables I-X."""

    texts = _TEXTS

    def datasets(self) -> Table:
        rows = []
        for dataset in sorted({place.dataset for place in self._places}):
            here = [row for row in self._rows if row["dataset"] == dataset and not row["workload"]]
            counted, dim = (
                next(iter(sorted((r for r in here if r["metric"] == metric), key=lambda r: r["value"] is None)), None)
                for metric in ("rows", "dim")
            )
            distance = next((row["distance"] for row in here if row["distance"]), "")
            cells = (
                self._cell(counted, self._printed("I", dataset, "", "", "rows")),
                self._cell(dim, self._printed("I", dataset, "", "", "dim")),
                Cell(distance or NO_CELL),
            )
            if here:
                rows.append(TableRow((dataset,), cells))
        columns = (Column("Vectors"), Column("Dimensions"), Column("Distance"))
        return self._table("I", ("Dataset",), columns, rows)

    def load_time(self) -> Table:
        two = len(self._systems) == 2
        columns = [*self._columns("Load", "s"), *self._columns("Rate", "vectors/s")]
        if two:
            columns.append(Column(f"{self._systems[1]} / {self._systems[0]}", "×", "Ratio"))
        rows = []
        for place in self._places:
            times = self._of_systems(place, "", "load", "load_s")
            cells = [
                *self._compared("II", place, times, lower=True),
                *(self._cell(row) for row in self._of_systems(place, "", "load", "rows_per_s")),
            ]
            if two:
                pair = "/".join(self._engines[system] for system in reversed(self._systems))
                cells.append(
                    computed(
                        times[1],
                        times[0],
                        lambda a, b: a / b,
                        "{:,.2f}",
                        self._printed("II", place.dataset, place.topology, pair, "load_ratio"),
                    )
                )
            rows.append(TableRow(self._labels(place), tuple(cells)))
        return self._table("II", self._label_names(), columns, rows)

    def load_cpu(self) -> Table:
        names = {"cpu_avg_pct": "Average", "cpu_peak_pct": "Peak"}
        columns = [column for label in names.values() for column in self._columns(label, "% of one core")]
        rows = [
            TableRow(
                self._labels(place),
                tuple(
                    cell
                    for metric in names
                    # To be busy is neither good nor bad: no winner.
                    for cell in self._compared("III", place, self._of_systems(place, "", "load", metric))
                ),
            )
            for place in self._places
        ]
        return self._table("III", self._label_names(), columns, rows)

    def latency(self, number: str, k: int) -> Table:
        names = {"p50_ms": "p50", "p95_ms": "p95", "p99_ms": "p99"}
        variants = self._variants([(k, False)])
        failures = [self._of_systems(place, workload, "query", "fail_per_s") for place, _, (workload,) in variants]
        failing = _any_failed(row for rows in failures for row in rows)
        columns = [column for label in names.values() for column in self._columns(label, "ms")]
        columns += self._columns("Failed", "1/s") if failing else []
        rows = [
            TableRow(
                labels,
                (
                    *(
                        cell
                        for metric in names
                        for cell in self._compared(
                            number, place, self._of_systems(place, workload, "query", metric), lower=True
                        )
                    ),
                    *(map(self._cell, failed) if failing else ()),
                ),
            )
            for (place, labels, (workload,)), failed in zip(variants, failures, strict=True)
        ]
        return self._table(number, self._label_names([(k, False)]), columns, rows)

    def single_client(self) -> Table:
        kinds = [(10, False), (100, False)]
        columns = [column for k, _ in kinds for column in self._columns(f"K = {k}", "1/s")]
        rows = [
            TableRow(
                labels,
                tuple(
                    cell
                    for workload in workloads
                    for cell in self._compared(
                        "VI", place, self._of_systems(place, workload, "query", "qps"), lower=False
                    )
                ),
            )
            for place, labels, workloads in self._variants(kinds)
        ]
        return self._table("VI", self._label_names(kinds), columns, rows)

    def filtering(self) -> Table:
        columns: tuple[Column, ...] = (
            Column("No filter", "ms", "p50"),
            Column("Filter", "ms", "p50"),
            Column("Cost", "%", "p50"),
            Column("Selectivity", "fraction", "Filter"),
            Column("Recall by id", "fraction", "Filter"),
        )
        rows = []
        failures: list[Row | None] = []
        kinds_of = {k: [(k, False), (k, True)] for k in (10, 100)}
        every = [kind for kinds in kinds_of.values() for kind in kinds]
        for k, kinds in kinds_of.items():
            for place, labels, (plain, filtered) in self._variants(kinds, named=self._ambiguous(every)):
                # One unfiltered workload is what all filtered ones are held against.
                only = self._workloads(k, False, place)
                plain = plain or (only[0] if len(only) == 1 else "")
                for system in self._systems:
                    without = self._row(place, system, plain, "query", "p50_ms")
                    with_filter = self._row(place, system, filtered, "query", "p50_ms")
                    if with_filter is None:
                        continue
                    cells: tuple[Cell, ...] = (
                        self._cell(without, self._printed_for("VII", place, without)),
                        self._cell(with_filter, self._printed_for("VII", place, with_filter)),
                        self._cost(with_filter, without, place),
                        self._cell(self._row(place, system, filtered, "query", "selectivity")),
                        self._cell(self._row(place, system, filtered, "recall", "recall_by_id")),
                    )
                    failures.append(self._row(place, system, filtered, "query", "fail_per_s"))
                    cells = (*cells, self._cell(failures[-1]))
                    rows.append(TableRow((*labels, str(k), with_filter["filter"], system), cells))
        if _any_failed(failures):
            columns = (*columns, Column("Failed", "1/s", "Filter"))
        else:
            rows = [replace(row, cells=row.cells[:-1]) for row in rows]
        names = (*self._label_names(every), "K", "Filter", "System")
        rows.sort(key=lambda row: (*row.labels[:-3], int(row.labels[-3]), *row.labels[-2:]))
        return self._table("VII", names, columns, rows)

    def recall(self) -> Table:
        kinds = [(10, False), (100, False)]
        names = {"recall_by_id": "by id", "recall_by_distance": "by distance"}
        columns = [
            column
            for k, _ in kinds
            for label in names.values()
            for column in self._columns(f"Recall@{k} {label}", "fraction")
        ]
        rows = [
            TableRow(
                labels,
                tuple(
                    cell
                    for workload in workloads
                    for metric in names
                    for cell in self._compared("VIII", place, self._of_systems(place, workload, "recall", metric))
                ),
            )
            for place, labels, workloads in self._variants(kinds)
        ]
        return self._table("VIII", self._label_names(kinds), columns, rows)

    def storage(self) -> Table:
        columns = [
            Column("Raw", "MiB"),
            *self._columns("Total", "MiB"),
            *self._columns("Net", "MiB"),
            *self._columns("Total / raw", ""),
        ]
        rows = []
        for place in self._places:
            raws = self._of_systems(place, "", "storage", "storage_raw_mib")
            raw = next((row for row in raws if row and row["value"] is not None), next(iter(raws), None))
            totals = self._of_systems(place, "", "storage", "storage_total_mib")
            cells = (
                self._cell(raw, self._printed("IX", place.dataset, "", "", "storage_raw_mib")),
                *self._compared("IX", place, totals, lower=True),
                *self._compared("IX", place, self._of_systems(place, "", "storage", "storage_net_mib"), lower=True),
                *(
                    computed(of, raw, lambda above, below: above / below, "{:.2f}")
                    for of, raw in zip(totals, raws, strict=True)
                ),
            )
            rows.append(TableRow(self._labels(place), cells))
        return self._table("IX", self._label_names(), columns, rows)

    def clients(self) -> Table:
        asked = [
            row
            for row in self._rows
            if row["metric"] == "qps" and row["k"] == 10 and not row["filter"] and row["duration_s"]
        ]
        counts = sorted({row["clients"] for row in asked})
        failures = {
            tuple(row[name] for name in _PLACE): row
            for row in self._rows
            if row["metric"] == "fail_per_s" and row["duration_s"]
        }
        failing = [
            count
            for count in counts
            if _any_failed(failures.get(tuple(row[n] for n in _PLACE)) for row in asked if row["clients"] == count)
        ]
        columns = [Column(str(count), "1/s", "Clients") for count in counts]
        columns += [Column(str(count), "1/s", "Failed, of clients") for count in failing]
        rows: list[TableRow] = []
        for place in self._places:
            here = [row for row in asked if (row["dataset"], row["topology"]) == (place.dataset, place.topology)]
            by_system = [
                [next((r for r in here if (r["system"], r["clients"]) == (system, count)), None) for count in counts]
                for system in self._systems
            ]
            winners = [best_of(column, lower=False) for column in zip(*by_system, strict=True)]
            for rank, (system, numbers) in enumerate(zip(self._systems, by_system, strict=True)):
                if not any(numbers):
                    continue
                cells = tuple(
                    self._cell(row, self._printed_for("X", place, row), best=winner == rank)
                    for row, winner in zip(numbers, winners, strict=True)
                )
                failed = [
                    failures.get(tuple(row[name] for name in _PLACE)) if row else None
                    for row, count in zip(numbers, counts, strict=True)
                    if count in failing
                ]
                cells = (*cells, *map(self._cell, failed))
                rows.append(TableRow((*self._labels(place), system), cells))
        return self._table("X", (*self._label_names(), "System"), columns, rows)


def _any_failed(rows: Iterable[Row | None]) -> bool:
    """Whether requests failed or timed out: columns that hold nothing but zeros are left out."""
    return any(row is not None and row["value"] for row in rows)


def computed(
    above: Row | None, below: Row | None, of: Callable[[float, float], float], form: str, published: str = ""
) -> Cell:
    """A number made from two others: it has no row of its own, but names its parents."""
    if above is None or below is None or above["value"] is None or not below["value"]:
        return Cell(NO_CELL, published=published)
    value = of(above["value"], below["value"])
    parents = (above["number_id"], below["number_id"])
    return Cell(form.format(value).replace("-", "−"), value, published=published, parents=parents)
