"""The tables of the paper, from the tidy frame: plain structures with measured beside published."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from anncestry.metrics.decide import Outcome
from anncestry.report.counterpart import Joined
from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    computed,
    is_serial,
    marks,
    text_of,
)
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import brief, is_missing
from anncestry.report.published import Figure, printed_text
from anncestry.report.tables.spec import OTHER_EFFORT, PAPER_K, of_k

PAPER_SIZES = (PAPER_K, 100)
"""Neighbours that the paper asked for."""


@dataclass(frozen=True)
class Text:
    """What stands above a table; `published_note` says how figures of others beside ours were obtained."""

    title: str
    caption: str
    published_note: str


_MARKS = {Outcome.EQUIVALENT: " (=)", Outcome.UNDETERMINED: " (?)"}

LIKE = 1.5
"""Datasets whose numbers of vectors differ by no more than this factor count as of one size."""

_NOT_OURS = (
    " The paper's columns are those of what was run: it had no cluster of Milvus, and prints a second run of its"
    " standalone server in that place."
)
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
        " index build and making ready together. A load is measured once, so no spread is known and none is better."
        " Read and written: what all processes of the server read from storage and wrote to it meanwhile.",
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
        "Median latency without and with the filter, one client, at the same search effort. The cost is the change of"
        " the one against the other;"
        " (=) marks a change within the margin of equivalence, (?) one that is"
        " not determined. Selectivity is the measured share of rows that pass the filter."
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
    "XI": Text(
        "Dimension",
        "Median latency and queries per second, one client, K = 10, no filter, by dimension. Only datasets of about"
        f" the same number of vectors (a factor of {LIKE:g} at most within a size) tell what the dimension does; others"
        " differ by their size, too. ± is the sample standard deviation over runs.",
        "The paper timed calls of each vendor's Python client.",
    ),
    "XII": Text(
        "One node and several: median latency",
        "Median latency of one client, K = 10, no filter, on every topology of one node and every one of several that"
        " one system was measured on. The overhead is the change from the one to the other; (=) marks one within"
        " the margin of equivalence, (?) one that is not determined.",
        "The paper timed calls of each vendor's Python client." + _NOT_OURS,
    ),
    "XIII": Text(
        "One node and several: queries per second, one client",
        "Answers without error per second of one client in a closed loop, K = 10, no filter, on the same topologies.",
        "The paper derived its figure as 1000 / mean latency in milliseconds." + _NOT_OURS,
    ),
    "XIV": Text(
        "One node and several: queries per second, many clients",
        "Answers without error per second of several clients, of each number that was measured on both sides, in a"
        " closed loop of a fixed time, K = 10, no filter.",
        "The paper ran threads of one Python process as clients." + _NOT_OURS,
    ),
    "XV": Text(
        "One node and several: recall",
        "Recall by id, K = 10, no filter, one client, on one node and on several. Repeats ask the same index the same"
        " queries: their spread is not noise, so no difference is called one.",
        "The paper's recall is by id." + _NOT_OURS,
    ),
}


def latency_table(k: int) -> str:
    """The number of the table of latencies of queries for `k` neighbours."""
    return "V" if k == PAPER_SIZES[1] else of_k("IV", k)


def clients_table(k: int) -> str:
    """The number of the table of queries per second by clients, for `k` neighbours."""
    return of_k("X", k)


def tables(material: Material) -> list[Table]:
    """Tables I-X of the paper for what was measured, without those that nothing belongs to.

    What is no plain closed loop has tables of its own: its numbers answer other questions.
    """
    builder = _Tables(material.ordinary, material)
    built = [
        builder.datasets(),
        builder.load_time(),
        builder.load_cpu(),
        *(builder.latency(k) for k in builder.sizes()),
        builder.single_client(),
        builder.filtering(),
        builder.recall(),
        builder.storage(),
        *(builder.clients(k) for k in timed_sizes(builder.rows)),
    ]
    return [table for table in built if table.rows]


def of_nodes(material: Material) -> list[Table]:
    """Tables XI-XV for each number of neighbours that was measured, without those that nothing belongs to.

    Where the matrix compares two arms, XII-XV are those of `compare.changes`, which knows what the control did.
    """
    builder = _Tables(material.ordinary, material)
    single = builder.sizes()
    built = [builder.dimension(k) for k in single]
    if not any(row["arm"] for row in material.rows):
        built += [
            *(builder.nodes("XII", k, "query", "p50_ms", "ms", "Overhead") for k in single),
            *(builder.nodes("XIII", k, "query", "qps", "1/s", "Change") for k in single),
            *(builder.nodes("XIV", k, "query", "qps", "1/s", "Change") for k in timed_sizes(builder.rows)),
            *(builder.nodes("XV", k, "recall", "recall_by_id", "fraction") for k in single),
        ]
    return [table for table in built if table.rows]


def sizes(rows: Sequence[Row]) -> dict[str, str]:
    """Dataset → the size that it is of, in words: sizes are runs of counts of which none is over LIKE times the first.

    Datasets whose rows nobody counted are left out.
    """
    counts = {row["dataset"]: int(row["value"]) for row in rows if row["metric"] == "rows" and row["value"] is not None}
    found: dict[str, str] = {}
    waiting = sorted(counts, key=lambda name: (counts[name], name))
    while waiting:
        first = counts[waiting[0]]
        alike = [name for name in waiting if counts[name] <= LIKE * first]
        ends = dict.fromkeys((_short(first), _short(counts[alike[-1]])))
        found |= dict.fromkeys(alike, " to ".join(ends))
        waiting = waiting[len(alike) :]
    return found


def _short(count: int) -> str:
    """A count of vectors in thousands or millions, with at most three digits that count."""
    for unit, size in ((" M", 1_000_000), (" k", 1_000)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def single_sizes(rows: Iterable[Row], filtered: bool = False) -> list[int]:
    """Numbers of neighbours that one client asked for; those of the paper unless there are others."""
    measured = {row["k"] for row in rows if is_serial(row) and bool(row["filter"]) == filtered}
    return sorted(measured) if measured - set(PAPER_SIZES) else list(PAPER_SIZES)


def timed_sizes(rows: Iterable[Row]) -> list[int]:
    """Numbers of neighbours that clients asked for during a fixed time, without a filter."""
    return sorted({row["k"] for row in rows if row["metric"] == "qps" and _timed(row)})


class Place(NamedTuple):
    """What the rows of a table go by."""

    dataset: str
    topology: str


Kind = tuple[int, bool]
"""A question of one client: its number of neighbours, and whether it has a filter."""
Block = tuple[Sequence[Column], Callable[[Place, Sequence[str]], Sequence[Cell]]]
"""Neighbouring columns, and what makes their cells of a place and of its workloads, one a kind of question."""


class _Tables:
    """The numbers at hand, and how each table picks from them."""

    def __init__(self, rows: list[Row], material: Material) -> None:
        self.rows = rows
        self._joined = Joined(rows, material.records, material.facts) if material.facts else None
        self._verdicts = material.verdicts
        self._several = {topology for topology, nodes in material.nodes.items() if nodes > 1}
        self._by_name = {
            (row["dataset"], row["topology"], row["system"], row["workload"], row["phase"], row["metric"]): row
            for row in rows
        }
        self._by_id = {row["number_id"]: row for row in rows}
        self._systems: list[str] = sorted({row["system"] for row in rows})
        self._places = [Place(*place) for place in material.places(rows)]
        self._several_topologies = len({place.topology for place in self._places}) > 1

    def _table(self, number: str, labels: Sequence[str], columns: Sequence[Column], rows: Sequence[TableRow]) -> Table:
        numeral, _, k = number.partition("-")
        text = _TEXTS[numeral]
        title, caption = text.title, text.caption
        if k:
            title = title.replace("K = 10", f"K = {k}") if "K = 10" in title else f"{title}, K = {k}"
            caption = caption.replace("K = 10", f"K = {k}")
        beside = any(cell.published for row in rows for cell in row.cells)
        note = text.published_note if beside else ""
        return Table(number, title, caption, tuple(labels), tuple(columns), tuple(rows), note)

    def _of_blocks(self, number: str, blocks: Sequence[Block], kinds: Sequence[Kind] = ()) -> Table:
        """A table of blocks of columns, with a row a place, or a row a place and workloads of these `kinds`."""
        rows = [
            TableRow(labels, tuple(cell for _, cells in blocks for cell in cells(place, workloads)))
            for place, labels, workloads in self._variants(kinds)
        ]
        columns = [column for of_block, _ in blocks for column in of_block]
        return self._table(number, self._label_names(kinds), columns, rows)

    def _block(
        self, number: str, label: str, unit: str, phase: str, metric: str, *, lower: bool | None = None, kind: int = 0
    ) -> Block:
        """A column a system: a metric of the table's question number `kind`; `lower` as in `_compared`."""

        def cells(place: Place, workloads: Sequence[str]) -> list[Cell]:
            return self._compared(number, self._of_systems(place, workloads[kind], phase, metric), lower=lower)

        return [Column(system, unit, label, system) for system in self._systems], cells

    def _labels(self, place: Place) -> tuple[str, ...]:
        return place if self._several_topologies else (place.dataset,)

    def _label_names(self, kinds: Sequence[Kind] = ()) -> tuple[str, ...]:
        names = ("Dataset", "Topology") if self._several_topologies else ("Dataset",)
        return (*names, "Workload") if self._ambiguous(kinds) else names

    def _workloads(self, kind: Kind, place: Place | None = None) -> list[str]:
        """The workloads of one client and a fixed count of queries; those of a fixed time have their own table."""
        return sorted(
            {
                row["workload"]
                for row in self.rows
                if (row["k"], bool(row["filter"])) == kind
                and is_serial(row)
                and place in (None, (row["dataset"], row["topology"]))
            }
        )

    def _ambiguous(self, kinds: Sequence[Kind]) -> bool:
        return any(len(self._workloads(kind)) > 1 for kind in kinds)

    def _variants(self, kinds: Sequence[Kind]) -> list[tuple[Place, tuple[str, ...], tuple[str, ...]]]:
        """Rows of a table: place, labels, and a workload (or an empty name) for each of `kinds`.

        The workloads are among the labels where any kind has several.
        """
        named = self._ambiguous(kinds)
        rows = []
        for place in self._places:
            of_kind = [self._workloads(kind, place) for kind in kinds] or [[""]]
            for workloads in itertools.zip_longest(*of_kind, fillvalue=""):
                names = (", ".join(filter(None, workloads)),) if named else ()
                rows.append((place, (*self._labels(place), *names), workloads))
        return rows

    def _row(self, place: Place, system: str, workload: str, phase: str, metric: str) -> Row | None:
        return self._by_name.get((*place, system, workload, phase, metric))

    def _of_systems(self, place: Place, workload: str, phase: str, metric: str) -> list[Row | None]:
        return [self._row(place, system, workload, phase, metric) for system in self._systems]

    def _compared(self, number: str, rows: Sequence[Row | None], *, lower: bool | None = None) -> list[Cell]:
        """A cell a system; `lower` says which end is better, None that none is."""
        best = None if lower is None else self._verdicts.best(rows, lower=lower)
        return [self._beside(number, row, best=rank == best) for rank, row in enumerate(rows)]

    def _beside(self, number: str, row: Row | None, *, best: bool = False) -> Cell:
        """A number, and what the paper printed for it in the table of this number."""
        return self._cell(row, self._printed(number, row), best=best)

    def _cell(self, row: Row | None, published: str = "", *, best: bool = False) -> Cell:
        if row is None:
            return Cell(NO_CELL, published=published)
        if row["value"] is None:
            return Cell(brief(row["reason"]), number_id=row["number_id"], published=published, problem=row["reason"])
        text = text_of(row["value"], row["std"], row["unit"]) + marks(row)
        return Cell(text, row["value"], row["std"], row["number_id"], published, best)

    def _change(self, number: str, row: Row | None, base: Row | None) -> Cell:
        """The change from `base` to `row` in percent."""
        printed = self._printed_ratio(number, row, base)
        return computed(row, base, lambda a, b: 100 * (a / b - 1), "{:+,.1f}", printed)

    def _marked(self, rows: Sequence[TableRow], column: int = 2) -> list[TableRow]:
        """The rows with a mark at changes in this column that are not sure; all of them are judged together."""
        changes = [row.cells[column].parents for row in rows if row.cells[column].parents]
        pairs = [(self._by_id[base], self._by_id[above]) for above, base in changes]
        marks = dict(zip(changes, (_MARKS.get(found.outcome, "") for found in self._verdicts.all(pairs)), strict=True))

        def marked(cell: Cell) -> Cell:
            return replace(cell, text=cell.text + marks.get(cell.parents, ""))

        return [
            replace(row, cells=(*row.cells[:column], marked(row.cells[column]), *row.cells[column + 1 :]))
            for row in rows
        ]

    def _printed(self, number: str, row: Row | None) -> str:
        """What the paper printed in the table of this number for the same question as `row`."""
        return _text(self._joined.printed(f"Table {number}", row) if self._joined else None)

    def _printed_ratio(self, number: str, above: Row | None, below: Row | None) -> str:
        return _text(self._joined.printed_ratio(f"Table {number}", above, below) if self._joined else None)

    # Tables I-X

    def sizes(self, filtered: bool = False) -> list[int]:
        """Numbers of neighbours that one client asked for; those of the paper unless there are others."""
        return single_sizes(self.rows, filtered)

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
        sizes = self.sizes()
        blocks = [
            self._block("VI", f"K = {k}", "1/s", "query", "qps", lower=False, kind=n) for n, k in enumerate(sizes)
        ]
        return self._of_blocks("VI", blocks, [(k, False) for k in sizes])

    def filtering(self) -> Table:
        rows = []
        failures: list[Row | None] = []
        sizes = self.sizes(filtered=True)
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
        sizes = self.sizes()
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

    def clients(self, k: int) -> Table:
        number = clients_table(k)
        asked = [row for row in self.rows if _timed(row) and row["k"] == k]
        rates = [row for row in asked if row["metric"] == "qps"]
        counts = sorted({row["clients"] for row in rates})
        failing = sorted({row["clients"] for row in asked if row["metric"] == "fail_per_s" and row["value"]})
        # Where workloads share a number of clients, each search effort has rows of its own.
        shared = len({(*_place(row), row["system"], row["clients"]) for row in rates}) < len(rates)
        # Nor does the effort tell all apart: then what the names of their workloads say beside the clients does.
        alike = len({(*_place(row), row["system"], row["clients"], said_effort(row)) for row in rates}) < len(rates)

        def asked_with(row: Row) -> str:
            said = [said_effort(row) if shared else "", re.sub(r"-?clients\d+", "", row["workload"]) if alike else ""]
            return ", ".join(filter(None, said))

        cells: dict[tuple[Place, str, str], dict[tuple[str, int], Cell]] = {}
        for place, workload in sorted({(_place(row), row["workload"]) for row in rates}):
            of_systems = self._of_systems(place, workload, "query", "qps")
            for row, cell in zip(of_systems, self._compared(number, of_systems, lower=False), strict=True):
                if row is None:
                    continue
                line = cells.setdefault((place, asked_with(row), row["system"]), {})
                failures = self._row(place, row["system"], workload, "query", "fail_per_s")
                line.setdefault(("", row["clients"]), cell)
                line.setdefault(("Failed", row["clients"]), self._cell(failures))
        columns = [Column(str(count), "1/s", "Clients") for count in counts]
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

    # Tables XI-XV

    def dimension(self, k: int) -> Table:
        number, kinds = of_k("XI", k), [(k, False)]
        blocks = [
            self._block(number, "p50", "ms", "query", "p50_ms", lower=True),
            self._block(number, "QPS", "1/s", "query", "qps", lower=False),
        ]
        known = sizes(self.rows)
        rows = []
        least: dict[str, float] = {}
        for place, labels, workloads in self._variants(kinds):
            counted = [
                next((row for row in self._of_systems(place, "", "load", metric) if row and row["value"]), None)
                for metric in ("dim", "rows")
            ]
            dim, count = (row["value"] if row else 0.0 for row in counted)
            size = known.get(place.dataset, "not counted")
            least[size] = min(count, least.get(size, count))
            cells = (*map(self._cell, counted), *(cell for _, of in blocks for cell in of(place, workloads)))
            rows.append((dim, TableRow((size, *labels), cells)))
        # Sizes in the order of their smallest; within one, by dimension.
        rows.sort(key=lambda item: (least[item[1].labels[0]], item[0], item[1].labels))
        columns = [Column("Dimensions"), Column("Vectors"), *(column for of_block, _ in blocks for column in of_block)]
        return self._table(number, ("Size", *self._label_names(kinds)), columns, [row for _, row in rows])

    def nodes(self, numeral: str, k: int, phase: str, metric: str, unit: str, heading: str = "") -> Table:
        """Table XII, XIII, XIV or XV: a metric on one node and on several, and its change if that has a heading."""
        number = of_k(numeral, k)
        rows = []
        for dataset, system, *topologies, workload in self._pairs(k, many=numeral == "XIV"):
            one, several = (
                self._row(Place(dataset, topology), system, workload, phase, metric) for topology in topologies
            )
            cells = [self._beside(number, one), self._beside(number, several)]
            if heading:
                cells.append(self._change(number, several, one))
            rows.append(TableRow((dataset, workload, system, *topologies), tuple(cells)))
        rows = self._marked(rows) if heading else rows
        columns = [Column("One node", unit), Column("Several", unit), *([Column(heading, "%")] if heading else [])]
        return self._table(number, ("Dataset", "Workload", "System", "One node", "Several nodes"), columns, rows)

    def _pairs(self, k: int, many: bool) -> list[tuple[str, str, str, str, str]]:
        """(dataset, system, topology of one node, of several, workload) of what both were asked."""
        found: dict[tuple[str, str, str], set[str]] = {}
        clients: dict[str, int] = {}
        for row in self.rows:
            if row["workload"] and row["metric"] == "qps" and _asked(row, k, many):
                found.setdefault((row["dataset"], row["system"], row["workload"]), set()).add(row["topology"])
                clients[row["workload"]] = row["clients"]
        pairs = [
            (dataset, system, one, several, workload)
            for (dataset, system, workload), topologies in found.items()
            for one in topologies - self._several
            for several in topologies & self._several
        ]
        return sorted(pairs, key=lambda pair: (pair[0], clients[pair[4]], pair[4], *pair[1:4]))


def _text(figure: Figure | None) -> str:
    """A published figure as a table shows it; empty if there is none."""
    if figure is None:
        return ""
    return printed_text(figure.value) + (f" ± {figure.std}" if figure.std else "")


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


def _asked(row: Row, k: int, many: bool) -> bool:
    """Whether a number is of the `k` nearest without a filter, by one client for a count of queries, or by `many`."""
    if row["k"] != k or row["filter"] or row["target_recall"] is not None:
        return False
    return (row["clients"] or 0) > 1 and row["duration_s"] is not None if many else is_serial(row)
