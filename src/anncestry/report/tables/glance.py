"""Table G: the first thing on a page. What each system needs and gives, by the handful of numbers one asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from anncestry.metrics.decide import Outcome
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, headline, is_shown
from anncestry.report.model.highlights import Highlight, highlights, other_sizes, workloads
from anncestry.report.model.material import Material
from anncestry.report.model.verdicts import WINS
from anncestry.report.tables.spec import made

_Number = Callable[[Highlight], Row | None]


def tables(material: Material) -> list[Table]:
    """The table, unless nothing was asked to be measured. Topologies of one node stand before clusters."""
    found = highlights(material.first_rows, material.nodes)
    if not found:
        return []
    k = found[0].k
    asked = f"with the filter {found[0].filter}" if found[0].filter else "without a filter"
    others = other_sizes(material.first_rows, k)
    also = f" (K = {others} in the tables and charts below)" if others else ""
    few, many = _by_clients([item.p50 for item in found]), _by_clients([item.qps for item in found])
    fewest = "the fewest clients that all were asked by" if few == _SEVERAL else few
    filtered: list[tuple[Column, _Number, bool]] = []
    if any(item.filtered for item in found):
        filtered.append((Column(f"Recall@{k}, filtered"), lambda item: item.filtered, False))
    numbers: list[tuple[Column, _Number, bool]] = [
        (Column("Load", "s"), lambda item: item.load, True),
        (Column("p50" if few == _ONE else f"p50, {few}", "ms"), lambda item: item.p50, True),
        (Column(f"Recall@{k}"), lambda item: item.recall, False),
        *filtered,
        (Column(f"QPS, {many}"), lambda item: item.qps, False),
        (Column("CPU a query", "µs"), lambda item: item.cpu, True),
        (Column("Memory", "MiB"), lambda item: item.memory, True),
    ]
    places = {
        label: name for label, name in _LABELS.items() if name == "system" or len({getattr(i, name) for i in found}) > 1
    }
    whole = not any(item.cells["invalid"] or item.cells["missing"] for item in found)
    body = []
    for item in found:
        beside = [other for other in found if (other.dataset, other.topology) == (item.dataset, item.topology)]
        cells = [
            _cell(number(item), item, number, beside, material, lower=lower, several=_SEVERAL in column.label)
            for column, number, lower in numbers
        ]
        states = [f"{len(item.cells[state])} {word}" for state, word in _STATES if item.cells[state]]
        labels = tuple(getattr(item, name) for name in places.values())
        body.append(TableRow(labels, (*cells, *([] if whole else [Cell(", ".join(states))]))))
    return made(
        Table(
            "G",
            "At a glance",
            f"For the {k} nearest{also}, {asked};"
            f" p50 and recall (by distance) of {fewest}{_of(found, 'p50', 'recall')};"
            f"{_FILTERED if filtered else ''}"
            f" processor time and memory (PSS; RSS, which counts shared pages once a process, where that is not known)"
            f" of the server under the same clients as QPS{_of(found, 'qps')}."
            f"{_said({cell.verdict for row in body for cell in row.cells})}",
            tuple(places),
            (*(column for column, _, _ in numbers), *(() if whole else (Column("Cells"),))),
            tuple(body),
        )
    )


def _by_clients(rows: Sequence[Row | None]) -> str:
    """How many clients asked for these numbers, in words."""
    clients = {row["clients"] for row in rows if row is not None} or {1}
    if len(clients) > 1:
        return _SEVERAL
    return _ONE if clients == {1} else f"{clients.pop()} clients"


def _said(words: Collection[str]) -> str:
    """What these verdicts mean; empty if there are none."""
    meant = [meaning for word, meaning in _VERDICTS.items() if word in words]
    return f" Under the best number of a dataset and topology: {'; '.join(meant)}." if meant else ""


def _of(found: Sequence[Highlight], *numbers: str) -> str:
    names = workloads(found, *numbers)
    return f" ({names})" if names else ""


_ONE, _SEVERAL = "one client", "by clients"
_FILTERED = " filtered: the least recall by distance under any filter that was asked;"
_VERDICTS = {
    WINS: "wins (and is bold), it is surely better than each other number there, at no less recall",
    Outcome.EQUIVALENT.value: "equivalent, each other is surely within the margin of equivalence, or worse",
    Outcome.UNDETERMINED.value: "undetermined, neither is known yet (Table C says what lacks), or the best has less"
    " recall or defective answers",
}
_LABELS = {"Dataset": "dataset", "Topology": "topology", "System": "system"}
_STATES = (("valid", "valid"), ("invalid", "invalid"), ("missing", "not measured"))


def _cell(
    row: Row | None,
    item: Highlight,
    number: _Number,
    beside: Sequence[Highlight],
    material: Material,
    *,
    lower: bool,
    several: bool,
) -> Cell:
    """A number; the best on a dataset and topology with its verdict, and bold if it wins.

    The least recalls of systems may be of several filters: then none is better.
    """
    if row is None:
        return Cell(NO_CELL)
    if row["value"] is None:
        return Cell(headline(row), number_id=row["number_id"], problem=row["reason"])
    rows = [number(other) for other in beside]
    of_one = row is not item.filtered or len({other["workload"] for other in rows if other is not None}) == 1
    best, verdict = (material.verdicts.leader(rows, lower=lower) if of_one else None) or (None, "")
    verdict = verdict if best is not None and beside[best] is item else ""
    shown = headline(row)
    if is_shown(row):
        shown += f" @{row['clients']}" if several else ""
        shown += item.by_id_differs if row is item.recall else ""
        shown += " (RSS)" if row is item.memory and row["metric"] != "pss_mib" else ""
    return Cell(shown, row["value"], row["std"], row["number_id"], best=verdict == WINS, verdict=verdict)
