"""Cells, columns and rows of tables, and how a number of the tidy table becomes the text of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from anncestry.metrics.decide import Sample
from anncestry.metrics.defects import HEADLINE_SHARE, percent
from anncestry.report.model import quantities
from anncestry.report.model.quantities import brief

_Place = TypeVar("_Place", bound=tuple[str, ...])

Row = dict[str, Any]
"""A row of the tidy frame as plain values."""

NO_CELL = "—"

_COUNTS = frozenset({"vectors", "dimensions", "queries", "requests", "searches", "rows"})
"""Units of what is counted: whole numbers are printed as such, means over runs need not be whole."""

_DIGITS_MAX = 6
"""After the point."""

CLIENT_BOUND, DISTURBED, DEFECT = "‡", "¶", "†"
MARKS = {
    CLIENT_BOUND: "Client-bound: more than half of what the client itself can send to a server that costs nothing, or"
    " nine tenths of the processor time a second that this takes it; the number may be the client's limit, not the"
    " system's.",
    DISTURBED: "Disturbed: other programs, the hypervisor or a client that was held up exceeded the declared limits in"
    " a run, and measuring it again did not help; the number's note and its record say what, and in which run.",
    DEFECT: "So many answers of the cell are short, empty or repeating, violate the filter, or failed (Table Z). Recall"
    " charges what they lack. Above 0.1 % of them, nothing of the cell is bold or a point at equal recall.",
}
"""What stands behind numbers, and what each sign says of them."""


def marks_in(texts: Iterable[str]) -> list[tuple[str, str]]:
    """The signs that stand in these texts, with what each says."""
    seen = "".join(texts)
    return [(sign, words) for sign, words in MARKS.items() if sign in seen]


_CLIENT_MATTERS = frozenset({"qps", "p50_ms", "p95_ms", "p99_ms", "mean_ms"})


@dataclass(frozen=True)
class Cell:
    """What one place of a table shows.

    `number_id` names the number in the tidy frame (empty for words and for what is computed from others, which
    `parents` then names). `published` is what the paper printed in its place. `best` is set only where it is better
    than that of every other system (`model.verdicts`). `problem` says why there is no number. `source` is the id of a
    number that others published, where the cell shows one: it stands, with its trace, on the audit page. `verdict` is
    what is known of the best number of a place: that it wins, is equivalent, or that this is undetermined.
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
    verdict: str = ""


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


def marks(row: Row) -> str:
    """What stands behind a number: the client's limit, a disturbance, the share of its cell's defective answers."""
    said = []
    if row["client_bound"] is True and row["metric"] in _CLIENT_MATTERS:
        said.append(CLIENT_BOUND)
    if row["disturbed"] is True and row["unit"] in quantities.DISTURBED:
        said.append(DISTURBED)
    if row["defect_share"]:
        said.append(f"{DEFECT} {percent(row['defect_share'])}")
    return "".join(f" {sign}" for sign in said)


def in_order(places: Iterable[_Place], nodes: Mapping[str, int]) -> list[_Place]:
    """Places (dataset, topology, …) as pages list them: of a dataset, one node first, then clusters by size."""
    return sorted(places, key=lambda place: (place[0], nodes.get(place[1], 1), *place[1:]))


def is_serial(row: Row) -> bool:
    """Whether a number is of one client that asked a fixed count of queries; those of a fixed time are others."""
    return row["clients"] == 1 and row["duration_s"] is None


def is_control(row: Row) -> bool:
    """Whether a pair is of one load with itself."""
    a, _, b = str(row["system"]).partition("..")
    return a == b and ".." not in str(row["topology"])


def arrow(name: object) -> str:
    """The name of a pair (A..B), of its systems or topologies, for people; any other name as it is."""
    return str(name).replace("..", " → ")


def headline(row: Row) -> str:
    """A number as a headline shows it: where too many answers of its cell have a defect, their share in its place."""
    if row["value"] is None:
        return brief(row["reason"])
    if (row["defect_share"] or 0) > HEADLINE_SHARE:
        return f"{percent(row['defect_share'])} of answers defective"
    return text_of(row["value"], row["std"], row["unit"]) + marks(row)


def is_shown(row: Row | None) -> TypeGuard[Row]:
    """Whether a headline shows the number itself, and no words in its place."""
    return row is not None and row["value"] is not None and (row["defect_share"] or 0) <= HEADLINE_SHARE


def text_of(value: float, std: float | None, unit: str) -> str:
    """A value as text, ± its standard deviation, with the digits that its unit deserves."""
    digits = 0 if unit in _COUNTS and float(value).is_integer() else _digits(abs(value), unit)
    # Neither a value nor a spread that is there must be printed as zero.
    for shown in (value, std or 0.0):
        while round(shown, _DIGITS_MAX) and digits < _DIGITS_MAX and round(shown, digits) == 0:
            digits += 1
    text = f"{value:,.{digits}f}"
    if std is None:
        return text
    return f"{text} ± {std:,.{digits}f}" if std else f"{text} ± 0"


def three_digits(ratio: float) -> str:
    """A ratio with three digits that count, however small it is."""
    return f"{ratio:#.3g}".rstrip(".") if ratio < 1000 else f"{ratio:,.0f}"


def _digits(size: float, unit: str) -> int:
    if unit in ("fraction", "ratio"):
        return 4 if unit == "fraction" else 3
    if unit == "ms":
        return 3 if size < 1 else 2 if size < 100 else 1
    if unit == "s":
        return 2 if size < 10 else 1
    return 0 if size >= 100 else 1


def sample_of(row: Row) -> Sample:
    return Sample(row["value"], row["std"] or 0.0, (row["runs"] or 1) if row["std"] is not None else 1)


def with_interval(row: Row | None) -> Cell:
    """A number with its 95 % interval, or why there is none."""
    if row is None:
        return Cell(NO_CELL)
    if row["value"] is None:
        return Cell(brief(row["reason"]), number_id=row["number_id"], problem=row["reason"])
    shown = text_of(row["value"], None, row["unit"])
    if row["low"] is not None:
        shown += f" ({text_of(row['low'], None, row['unit'])} to {text_of(row['high'], None, row['unit'])})"
    return Cell(shown + marks(row), row["value"], row["std"], row["number_id"])


def computed(
    above: Row | None, below: Row | None, of: Callable[[float, float], float], form: str, published: str = ""
) -> Cell:
    """A number made from two others: it has no row of its own, but names its parents."""
    if above is None or below is None or above["value"] is None or not below["value"]:
        return Cell(NO_CELL, published=published)
    value = of(above["value"], below["value"])
    parents = (above["number_id"], below["number_id"])
    return Cell(form.format(value).replace("-", "−"), value, published=published, parents=parents)
