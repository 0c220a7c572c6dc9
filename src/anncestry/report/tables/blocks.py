"""What the tables of the paper are built of: blocks of columns, each a metric of one question, a column a system."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from anncestry.report.model.quantities import brief
from anncestry.report.published import Figure, printed_text
from anncestry.report.tables.texts import TEXTS

_MARKS = {Outcome.EQUIVALENT: " (=)", Outcome.UNDETERMINED: " (?)"}
_CHANGES = 2
"""The column of changes, in tables that have one."""


class Place(NamedTuple):
    """What the rows of a table go by."""

    dataset: str
    topology: str


Kind = tuple[int, bool]
"""A question of one client: its number of neighbours, and whether it has a filter."""
Block = tuple[Sequence[Column], Callable[[Place, Sequence[str]], Sequence[Cell]]]
"""Neighbouring columns, and what makes their cells of a place and of its workloads, one a kind of question."""


class Blocks:
    """The numbers at hand, and how a table picks from them."""

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
        text = TEXTS[numeral]
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

    def _marked(self, rows: Sequence[TableRow]) -> list[TableRow]:
        """The rows with a mark at changes that are not sure; all of them are judged together."""
        changes = [row.cells[_CHANGES].parents for row in rows if row.cells[_CHANGES].parents]
        pairs = [(self._by_id[base], self._by_id[above]) for above, base in changes]
        marks = dict(zip(changes, (_MARKS.get(found.outcome, "") for found in self._verdicts.all(pairs)), strict=True))

        def marked(cell: Cell) -> Cell:
            return replace(cell, text=cell.text + marks.get(cell.parents, ""))

        return [
            replace(row, cells=(*row.cells[:_CHANGES], marked(row.cells[_CHANGES]), *row.cells[_CHANGES + 1 :]))
            for row in rows
        ]

    def _printed(self, number: str, row: Row | None) -> str:
        """What the paper printed in the table of this number for the same question as `row`."""
        return _text(self._joined.printed(f"Table {number}", row) if self._joined else None)

    def _printed_ratio(self, number: str, above: Row | None, below: Row | None) -> str:
        return _text(self._joined.printed_ratio(f"Table {number}", above, below) if self._joined else None)


def _text(figure: Figure | None) -> str:
    """A published figure as a table shows it; empty if there is none."""
    if figure is None:
        return ""
    return printed_text(figure.value) + (f" ± {figure.std}" if figure.std else "")
