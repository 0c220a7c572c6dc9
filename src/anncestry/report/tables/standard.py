"""Tables I-X of the paper, from the tidy frame: plain structures with measured beside published."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    computed,
    is_serial,
)
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import is_missing
from anncestry.report.tables.blocks import Blocks, Place
from anncestry.report.tables.spec import OTHER_EFFORT, PAPER_K, of_k

PAPER_SIZES = (PAPER_K, 100)
"""Neighbours that the paper asked for."""


def latency_table(k: int) -> str:
    """The number of the table of latencies of queries for `k` neighbours."""
    return "V" if k == PAPER_SIZES[1] else of_k("IV", k)


def clients_table(k: int) -> str:
    """The number of the table of queries per second by clients, for `k` neighbours."""
    return of_k("X", k)


def tails_table(k: int) -> str:
    """The number of the table of p99 by clients, for `k` neighbours."""
    return of_k("PC", k)


def tables(material: Material) -> list[Table]:
    """Tables I-X of the paper for what was measured, without those that nothing belongs to.

    What is no plain closed loop has tables of its own: its numbers answer other questions.
    """
    builder = _Tables(material.ordinary, material)
    built = [
        builder.datasets(),
        builder.load_time(),
        builder.load_cpu(),
        *(builder.latency(k) for k in single_sizes(builder.rows)),
        builder.single_client(),
        builder.filtering(),
        builder.recall(),
        builder.storage(),
        *(builder.clients(clients_table(k), k, "qps", "1/s", lower=False) for k in timed_sizes(builder.rows)),
    ]
    return [table for table in built if table.rows]


def tails(material: Material) -> list[Table]:
    """Table PC for each number of neighbours that clients asked for during a fixed time: Table X of p99."""
    builder = _Tables(material.ordinary, material)
    return [builder.clients(tails_table(k), k, "p99_ms", "ms", lower=True) for k in timed_sizes(builder.rows)]


def single_sizes(rows: Iterable[Row], filtered: bool = False) -> list[int]:
    """Numbers of neighbours that one client asked for; those of the paper unless there are others."""
    measured = {row["k"] for row in rows if is_serial(row) and bool(row["filter"]) == filtered}
    return sorted(measured) if measured - set(PAPER_SIZES) else list(PAPER_SIZES)


def timed_sizes(rows: Iterable[Row]) -> list[int]:
    """Numbers of neighbours that clients asked for during a fixed time, without a filter."""
    return sorted({row["k"] for row in rows if row["metric"] == "qps" and _timed(row)})


class _Tables(Blocks):
    def datasets(self) -> Table:
        rows = []
        for dataset in sorted({place.dataset for place in self._places}):
            here = [row for row in self.rows if row["dataset"] == dataset and not row["workload"]]
            if not here:
                continue
            cells = []
            for metric in ("rows", "dim"):
                counted = sorted((r for r in here if r["metric"] == metric), key=lambda r: r["value"] is None)
                cells.append(self._beside("I", next(iter(counted), None)))
            distance = next((row["distance"] for row in here if row["distance"]), "")
            rows.append(TableRow((dataset,), (*cells, Cell(distance or NO_CELL))))
        columns = (Column("Vectors"), Column("Dimensions"), Column("Distance"))
        return self._table("I", ("Dataset",), columns, rows)

    def load_time(self) -> Table:
        blocks = [
            self._block("II", "Load", "s", "load", "load_s", lower=True),
            self._block("II", "Rate", "vectors/s", "load", "rows_per_s"),
            self._block("II", "Server's CPU a row", "µs", "load", "server_cpu_us_per_row", lower=True),
            self._block("II", "Read", "MiB", "load", "io_read_mib"),
            self._block("II", "Written", "MiB", "load", "io_write_mib"),
        ]
        if len(self._systems) == 2:
            first, second = self._systems

            def ratio(place: Place, _: Sequence[str]) -> list[Cell]:
                below, above = self._of_systems(place, "", "load", "load_s")
                printed = self._printed_ratio("II", above, below)
                return [computed(above, below, lambda a, b: a / b, "{:,.2f}", printed)]

            blocks.append(([Column(f"{second} / {first}", "×", "Ratio")], ratio))
        return self._of_blocks("II", blocks)

    def load_cpu(self) -> Table:
        # To be busy is neither good nor bad: no winner.
        metrics = {"Average": "cpu_avg_pct", "Peak": "cpu_peak_pct"}
        blocks = [self._block("III", label, "% of one core", "load", metric) for label, metric in metrics.items()]
        return self._of_blocks("III", blocks)

    def latency(self, k: int) -> Table:
        number, kinds = latency_table(k), [(k, False)]
        blocks = [self._block(number, p, "ms", "query", f"{p}_ms", lower=True) for p in ("p50", "p95", "p99")]
        failures = [
            row
            for place, _, (workload,) in self._variants(kinds)
            for row in self._of_systems(place, workload, "query", "fail_per_s")
        ]
        if _any_failed(failures):
            blocks.append(self._block(number, "Failed", "1/s", "query", "fail_per_s"))
        return self._of_blocks(number, blocks, kinds)

    def single_client(self) -> Table:
        sizes = single_sizes(self.rows)
        blocks = [
            self._block("VI", f"K = {k}", "1/s", "query", "qps", lower=False, kind=n) for n, k in enumerate(sizes)
        ]
        return self._of_blocks("VI", blocks, [(k, False) for k in sizes])

    def filtering(self) -> Table:
        rows = []
        failures: list[Row | None] = []
        sizes = single_sizes(self.rows, filtered=True)
        kinds = [(k, filtered) for k in sizes for filtered in (False, True)]
        named = self._ambiguous(kinds)
        for k, place in itertools.product(sizes, self._places):
            unfiltered = self._workloads((k, False), place)
            for filtered, system in itertools.product(self._workloads((k, True), place), self._systems):
                with_filter = self._row(place, system, filtered, "query", "p50_ms")
                if with_filter is None:
                    continue
                every = [self._row(place, system, plain, "query", "p50_ms") for plain in unfiltered]
                others = [row for row in every if row is not None]
                # The effort of what was not measured is not known.
                without = next((row for row in others if _alike(row, with_filter)), None)
                failures.append(self._row(place, system, filtered, "query", "fail_per_s"))
                cells = (
                    Cell(OTHER_EFFORT) if others and without is None else self._beside("VII", without),
                    self._beside("VII", with_filter),
                    self._change("VII", with_filter, without),
                    self._cell(self._row(place, system, filtered, "query", "selectivity")),
                    self._cell(self._row(place, system, filtered, "recall", "recall_by_id")),
                    self._cell(failures[-1]),
                )
                asked = ", ".join([*([without["workload"]] if without else []), filtered])
                labels = (*self._labels(place), *([asked] if named else []))
                rows.append(TableRow((*labels, str(k), with_filter["filter"], system), cells))
        columns = [
            Column("No filter", "ms", "p50"),
            Column("Filter", "ms", "p50"),
            Column("Cost", "%", "p50"),
            Column("Selectivity", "fraction", "Filter"),
            Column("Recall by id", "fraction", "Filter"),
            Column("Failed", "1/s", "Filter"),
        ]
        if not _any_failed(failures):
            columns.pop()
            rows = [replace(row, cells=row.cells[:-1]) for row in rows]
        names = (*self._label_names(kinds), "K", "Filter", "System")
        rows.sort(key=lambda row: (*row.labels[:-3], int(row.labels[-3]), *row.labels[-2:]))
        return self._table("VII", names, columns, self._marked(rows))

    def recall(self) -> Table:
        sizes = single_sizes(self.rows)
        blocks = [
            self._block("VIII", f"Recall@{k} by {by}", "fraction", "recall", f"recall_by_{by}", kind=n)
            for n, k in enumerate(sizes)
            for by in ("id", "distance")
        ]
        return self._of_blocks("VIII", blocks, [(k, False) for k in sizes])

    def storage(self) -> Table:
        def of(place: Place, part: str) -> list[Row | None]:
            return self._of_systems(place, "", "storage", f"storage_{part}_mib")

        def raw(place: Place, _: Sequence[str]) -> list[Cell]:
            raws = of(place, "raw")
            row = next((row for row in raws if row and row["value"] is not None), raws[0])
            return [self._beside("IX", row)]

        def over_raw(place: Place, _: Sequence[str]) -> list[Cell]:
            pairs = zip(of(place, "total"), of(place, "raw"), strict=True)
            return [computed(total, raw, lambda above, below: above / below, "{:.2f}") for total, raw in pairs]

        parts = (
            self._block("IX", part.capitalize(), "MiB", "storage", f"storage_{part}_mib", lower=True)
            for part in ("total", "net")
        )
        ratios = [Column(system, "", "Total / raw", system) for system in self._systems]
        return self._of_blocks("IX", [([Column("Raw", "MiB")], raw), *parts, (ratios, over_raw)])

    def clients(self, number: str, k: int, metric: str, unit: str, *, lower: bool) -> Table:
        """A number by clients; beside queries per second those that failed, where any did."""
        asked = [row for row in self.rows if _timed(row) and row["k"] == k]
        numbers = [row for row in asked if row["metric"] == metric]
        counts = sorted({row["clients"] for row in numbers})
        failed = [row for row in asked if metric == "qps" and row["metric"] == "fail_per_s" and row["value"]]
        failing = sorted({row["clients"] for row in failed})
        # Where workloads share a number of clients, each search effort has rows of its own.
        shared = len({(*_place(row), row["system"], row["clients"]) for row in numbers}) < len(numbers)
        # Nor does the effort tell all apart: then what the names of their workloads say beside the clients does.
        alike = len({(*_place(row), row["system"], row["clients"], said_effort(row)) for row in numbers}) < len(numbers)

        def asked_with(row: Row) -> str:
            said = [said_effort(row) if shared else "", re.sub(r"-?clients\d+", "", row["workload"]) if alike else ""]
            return ", ".join(filter(None, said))

        cells: dict[tuple[Place, str, str], dict[tuple[str, int], Cell]] = {}
        for place, workload in sorted({(_place(row), row["workload"]) for row in numbers}):
            of_systems = self._of_systems(place, workload, "query", metric)
            for row, cell in zip(of_systems, self._compared(number, of_systems, lower=lower), strict=True):
                if row is None:
                    continue
                line = cells.setdefault((place, asked_with(row), row["system"]), {})
                failures = self._row(place, row["system"], workload, "query", "fail_per_s")
                line.setdefault(("", row["clients"]), cell)
                line.setdefault(("Failed", row["clients"]), self._cell(failures))
        columns = [Column(str(count), unit, "Clients") for count in counts]
        columns += [Column(str(count), "1/s", "Failed, of clients") for count in failing]
        keys = [*(("", count) for count in counts), *(("Failed", count) for count in failing)]
        order = {place: rank for rank, place in enumerate(self._places)}
        rows = [
            TableRow(
                (*self._labels(place), *([effort] if shared else []), system),
                tuple(line.get(key, Cell(NO_CELL)) for key in keys),
            )
            for (place, effort, system), line in sorted(
                cells.items(), key=lambda item: (order[item[0][0]], len(item[0][1]), item[0])
            )
        ]
        return self._table(number, (*self._label_names(), *(["Effort"] if shared else []), "System"), columns, rows)


def _place(row: Row) -> Place:
    return Place(row["dataset"], row["topology"])


def _alike(row: Row, other: Row) -> bool:
    """Whether two numbers are of one search effort, as far as both were measured."""
    if is_missing(row["reason"]) or is_missing(other["reason"]):
        return True
    return bool((row["ef_search"], row["target_recall"]) == (other["ef_search"], other["target_recall"]))


def said_effort(row: Row) -> str:
    """The effort of a search in words: the recall that it was chosen for, else its number."""
    if row["target_recall"] is not None:
        return f"recall {row['target_recall']:g}"
    return row["effort"] or NO_CELL


def _timed(row: Row) -> bool:
    """Whether a number is of closed loops of a fixed time, without a filter."""
    return row["k"] is not None and not row["filter"] and bool(row["duration_s"])


def _any_failed(rows: Iterable[Row | None]) -> bool:
    """Whether requests failed or timed out: columns that hold nothing but zeros are left out."""
    return any(row is not None and row["value"] for row in rows)
