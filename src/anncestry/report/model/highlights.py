"""The few numbers that say most: for the end of a run in the terminal, and for the opening of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd

from anncestry.report.model.cells import (
    CLIENT_BOUND,
    DEFECT,
    DISTURBED,
    Row,
    arrow,
    headline,
    in_order,
    is_control,
    is_shown,
)
from anncestry.report.model.numbers import PAIRED, first_builds, is_plain, rows_of
from anncestry.report.model.quantities import not_ordinary, state_of


def headline_k(rows: Iterable[Row], filter: str = "") -> int:
    """Neighbours asked for in the workloads that highlights are of: 10, or the least where nobody asked for 10."""
    sizes = {row["k"] for row in rows if row["k"] is not None and _filter_of(row) == filter}
    return 10 if 10 in sizes else min(sizes, default=10)


def other_sizes(rows: Iterable[Row], k: int) -> str:
    """The other numbers of neighbours that were asked for, "1, 100"; empty if there are none."""
    return ", ".join(map(str, _sizes(rows, k)))


def _sizes(rows: Iterable[Row], k: int) -> list[int]:
    return sorted({row["k"] for row in rows if row["k"] is not None} - {k})


def headline_filter(rows: Iterable[Row]) -> str:
    """The filter that highlights are of: none (""), unless more systems, in more places, were asked with one."""
    places: dict[str, set[tuple[str, ...]]] = {"": set()}
    for row in rows:
        if row["k"] is not None:
            place = (row["dataset"], row["topology"], row["system"])
            places.setdefault(_filter_of(row), set()).add(place)
    return max(places, key=lambda filter: len(places[filter]))


def _filter_of(row: Row) -> str:
    return row["filter"] or ""


@dataclass(frozen=True)
class Highlight:
    """What stands out for one system on one dataset; a row of the tidy frame each, None where nothing was asked.

    `k` is the number of neighbours that its queries asked for, `filter` what these had to fulfil ("": nothing).
    `recall` counts ties (by distance); `by_id` is the same by id. `filtered` is the least recall of the cells with a
    filter, where the others have none. `qps` is that of the most clients that all systems on the dataset were asked by;
    `cpu` (CPU a query) and `memory` (PSS, or RSS where that isn't known) are of the same cell. All systems
    on a dataset and topology have the same workloads. `cells` are all of its cells, by their state (valid, invalid,
    missing): the row of each one's median latency.
    """

    dataset: str
    topology: str
    system: str
    k: int
    filter: str
    load: Row | None
    p50: Row | None
    recall: Row | None
    by_id: Row | None
    filtered: Row | None
    qps: Row | None
    cpu: Row | None
    memory: Row | None
    cells: Mapping[str, Sequence[Row]]

    @property
    def is_asked(self) -> bool:
        """Whether any query was asked for it."""
        return any((self.p50, self.recall, self.qps))

    @property
    def by_id_differs(self) -> str:
        """Recall by id in brackets, where it is another than recall by distance in the four digits that are shown."""
        values = [None if row is None else row["value"] for row in (self.recall, self.by_id)]
        if any(value is None for value in values) or f"{values[0]:.4f}" == f"{values[1]:.4f}":
            return ""
        return f" ({values[1]:.4f} by id)"


def highlights(rows: Sequence[Row], nodes: Mapping[str, int], size: int | None = None) -> list[Highlight]:
    """One highlight for each dataset, topology and system: one K, one filter or none, and its cells by their state.

    `size`: the K, in place of the headline's.
    `nodes`: topology → its members; those of one node come first, a topology that it doesn't name with them.
    Latency and recall are of the fewest clients that all systems on the dataset were asked by, with a fixed count of
    queries where there is such a workload. Numbers are of what was asked as bytes, one query a request, unless all was
    asked otherwise; cells are counted of every client and request.
    """
    places = in_order({(row["dataset"], row["topology"], row["system"]) for row in rows}, nodes)
    plain = [row for row in rows if is_plain(row)]
    if not any(row["workload"] for row in plain):
        plain = list(rows)
    filter = headline_filter(plain)
    k = headline_k(plain, filter) if size is None else size
    states = _states(rows)
    special = not_ordinary(plain)
    found = []
    for dataset in dict.fromkeys(dataset for dataset, _, _ in places):
        of_dataset = [row for row in plain if row["dataset"] == dataset]
        asked = [row for row in of_dataset if row["k"] == k and _filter_of(row) == filter]
        asked = [row for row in asked if row["workload"] not in special] or asked
        clients = _common_clients(row for row in asked if row["metric"] == "qps")
        for topology in dict.fromkeys(place[1] for place in places if place[0] == dataset):
            there = [row for row in asked if row["topology"] == topology]
            # Of one client a fixed count of queries, if there is such a workload.
            few = [row for row in there if row["clients"] == min(clients, default=1)]
            few = [row for row in few if row["duration_s"] is None] or few
            single = _workload(row for row in few if row["metric"] == "p50_ms")
            many = _workload(
                row for row in there if row["metric"] == "qps" and row["clients"] == max(clients, default=None)
            )
            for system in (place[2] for place in places if place[:2] == (dataset, topology)):
                place = (dataset, topology, system)
                here = [row for row in of_dataset if (row["topology"], row["system"]) == (topology, system)]
                found.append(_highlight(place, k, filter, here, states.get(place, {}), single, many))
    return sorted(found, key=lambda item: places.index((item.dataset, item.topology, item.system)))


def _states(rows: Iterable[Row]) -> dict[tuple[str, str, str], dict[str, list[Row]]]:
    """By dataset, topology and system: the row of the median of each cell, by the state of the cell."""
    cells: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row["workload"]:
            cells.setdefault((row["dataset"], row["topology"], row["system"], row["workload"]), []).append(row)
    found: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for (*place, _), of_cell in cells.items():
        state = state_of(row["reason"] for row in of_cell)
        state = state if state in ("valid", "invalid") else "missing"
        medians = [row for row in of_cell if row["metric"] == "p50_ms"]
        found.setdefault((place[0], place[1], place[2]), {}).setdefault(state, []).extend(medians)
    return found


def _workload(rows: Iterable[Row]) -> str:
    """The workload that all systems are shown by: that most of them have, of the least recall that was aimed at.

    Of several search efforts, the greatest: recalls are nearest to each other there. Empty if there is none.
    """
    systems: dict[str, set[str]] = {}
    of: dict[str, Row] = {}
    for row in rows:
        systems.setdefault(row["workload"], set()).add(row["system"])
        of[row["workload"]] = row

    def rank(name: str) -> tuple[Any, ...]:
        return -len(systems[name]), of[name]["target_recall"] or 0.0, -(of[name]["ef_search"] or 0), name

    return min(systems, key=rank, default="")


def _common_clients(rates: Iterable[Row]) -> set[int]:
    """The numbers of clients that every topology and system was asked by."""
    asked: dict[tuple[str, str], set[int]] = {}
    for row in rates:
        asked.setdefault((row["topology"], row["system"]), set()).add(row["clients"])
    return set.intersection(*asked.values()) if asked else set()


def _by_size(rows: Sequence[Row], nodes: Mapping[str, int]) -> dict[int, list[Highlight]]:
    """By K, the headline's first, the highlights: of a further K those that any query was asked for."""
    found = highlights(rows, nodes)
    k = found[0].k if found else 10
    others = {size: highlights(rows, nodes, size) for size in _sizes(rows, k)}
    return {k: found, **{size: [item for item in of_size if item.is_asked] for size, of_size in others.items()}}


NUMBERS = ("load", "p50", "recall", "by_id", "qps", "cpu", "memory")
"""Of a highlight, those of all systems."""


def plain(df: pd.DataFrame, nodes: Mapping[str, int]) -> dict[str, Any]:
    """The highlights and the pairs as JSON takes them, unrounded: what `summary` prints, and the ids of numbers.

    The rows of the headline's K come first; each row has its `k`.
    """

    def facts(row: Row | None) -> dict[str, Any] | None:
        return None if row is None else {name: row[name] for name in _FACTS}

    rows: list[dict[str, Any]] = []
    for item in chain.from_iterable(_by_size(rows_of(first_builds(df)), nodes).values()):
        place = {name: getattr(item, name) for name in ("dataset", "topology", "system", "k", "filter")}
        shown = {name: facts(getattr(item, name)) for name in NUMBERS}
        rows.append({**place, **shown, "cells": {state: len(cells) for state, cells in item.cells.items()}})
    pairs = [
        {**{name: row[name] for name in ("dataset", "topology", "workload", "system", "metric")}, **(facts(row) or {})}
        for _, told in pairs_told(rows_of(df[df["phase"] == PAIRED]))
        for _, row in told
    ]
    return {"rows": rows, "pairs": pairs}


def workloads(found: Iterable[Highlight], *numbers: str) -> str:
    """Names of the workloads that these numbers of the highlights are of; "" where there are none."""
    rows = [getattr(item, number) for item in found for number in numbers]
    return ", ".join(sorted({str(row["workload"]) for row in rows if row is not None}))


def summary(df: pd.DataFrame, nodes: Mapping[str, int], width: int | None = None) -> str:
    """The highlights as a text table, ending in a newline; its names are cut where it is wider than `width` columns.

    Further numbers of neighbours have a table each, without what isn't of queries.
    """
    rows = rows_of(first_builds(df))
    (k, found), *others = _by_size(rows, nodes).items()
    lines, elsewhere = _of_size(found, k, width, whole=True), []
    for size, asked in others:
        lines += ["", *_of_size(asked, size, width, whole=False)] if asked else []
        elsewhere += [] if asked else [str(size)]
    shown = "\n".join(lines)
    if elsewhere:
        lines.append(f"k = {', '.join(elsewhere)} as well: in the report")
    for pair, told in pairs_told(rows_of(df[df["phase"] == PAIRED])):
        ratios = [f"{what} × {row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})" for what, row in told]
        lines += [f"in pairs: {pair}", f"    {', '.join(ratios)}"]
    missing = sum(len(item.cells["missing"]) for item in found)
    if found and found[0].filter:
        lines.append(f"with the filter {found[0].filter}")
    lines += [f"{sign} {words}" for sign, words in _SIGNS.items() if sign in shown]
    if missing:
        lines.append(f"{missing} cell{'' if missing == 1 else 's'} not measured")
    return "\n".join(lines) + "\n"


def _of_size(found: Sequence[Highlight], k: int, width: int | None, *, whole: bool) -> list[str]:
    """The lines of one number of neighbours; with loads and invalid cells if `whole`."""
    several = len({item.topology for item in found}) > 1
    names = ("dataset", *(["topology"] if several else []), "system")
    loads, invalid = (("load_s",), ("invalid",)) if whole else ((), ())
    head = (*names, *loads, f"p50_ms k={k}", f"recall@{k}", "QPS", *invalid)
    body = [
        (
            *(str(getattr(item, name)) for name in names),
            *((_text(item.load),) if whole else ()),
            _text(item.p50) + (f" @{item.p50['clients']}" if is_shown(item.p50) and item.p50["clients"] != 1 else ""),
            _text(item.recall) + (item.by_id_differs if is_shown(item.recall) else ""),
            _text(item.qps) + (f" @{item.qps['clients']}" if is_shown(item.qps) else ""),
            *((str(len(item.cells["invalid"])),) if whole else ()),
        )
        for item in found
    ]
    widths = [max(len(line[place]) for line in (head, *body)) for place in range(len(head))]
    # Only the names give way: a number cut short would be another number.
    for place in range(len(names)):
        over = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
        widths[place] = max(min(widths[place], 12), widths[place] - max(over, 0))
    lines = [_line(line, widths, len(names)) for line in (head, tuple("-" * width for width in widths), *body)]
    asked = {"p50 and recall": workloads(found, "p50", "recall"), "QPS": workloads(found, "qps")}
    if any(asked.values()):
        lines.append(f"workloads: {'; '.join(f'{what} {names}' for what, names in asked.items() if names)}")
    return lines


_SIGNS = {
    CLIENT_BOUND: "the client may have been the limit",
    DISTURBED: "other programs disturbed it",
    DEFECT: "so many answers are short, empty, repeating or failed",
}
"""What the marks behind numbers say, in short (`cells.MARKS` has it whole)."""
_FACTS = ("value", "std", "low", "high", "unit", "runs", "number_id", "reason", "workload", "clients", "note")
"""What a program is told of a number."""
_TOLD = {"pair_qps": "QPS", "pair_server_cpu_us_per_query": "CPU a query"}


def pairs_told(rows: Iterable[Row]) -> list[tuple[str, list[tuple[str, Row]]]]:
    """Of the rows of pairs, those that say most: by pair that is no control, its ratios, each with what it is of."""
    found: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        if row["metric"] in _TOLD and row["low"] is not None and not is_control(row):
            places = (row["dataset"], row["topology"], row["workload"])
            name = f"{arrow(row['system'])} ({', '.join(map(arrow, places))})"
            found.setdefault(name, []).append((_TOLD[row["metric"]], row))
    return sorted(found.items(), key=lambda item: item[0])


_NO_CELLS: Mapping[str, list[Row]] = {"valid": [], "missing": [], "invalid": []}


def _highlight(
    place: tuple[str, str, str],
    k: int,
    filter: str,
    rows: Sequence[Row],
    cells: Mapping[str, list[Row]],
    single: str,
    many: str,
) -> Highlight:
    """`rows` are those of the place, `cells` stand for all of its cells, `single` and `many` are workloads."""
    of_single = [row for row in rows if row["workload"] == single]
    of_many = [row for row in rows if row["workload"] == many and row["phase"] == "query"]
    p50 = _first(of_single, "p50_ms")
    recall, by_id = (_first(of_single, f"recall_{rule}") for rule in ("by_distance", "by_id"))
    filtered = [row for row in rows if row["filter"] and row["metric"] == "recall_by_distance" and row["k"] == k]
    filtered = [row for row in filtered if row["value"] is not None] or filtered
    least = None if filter else min(filtered, key=lambda row: (row["value"], row["workload"]), default=None)
    qps, cpu = _first(of_many, "qps"), _first(of_many, "server_cpu_us_per_query")
    known = [row for row in (_first(of_many, name) for name in ("pss_mib", "rss_peak_mib")) if row is not None]
    memory = next((row for row in known if row["value"] is not None), next(iter(known), None))
    return Highlight(
        *place, k, filter, _first(rows, "load_s"), p50, recall, by_id, least, qps, cpu, memory, {**_NO_CELLS, **cells}
    )


def _first(rows: Iterable[Row], metric: str) -> Row | None:
    return next((row for row in rows if row["metric"] == metric), None)


def _text(row: Row | None) -> str:
    return "-" if row is None else headline(row)


def _line(texts: tuple[str, ...], widths: list[int], names: int) -> str:
    """A line of the table, its first `names` cells to the left."""
    cut = [text if len(text) <= width else text[: width - 1] + "…" for text, width in zip(texts, widths, strict=True)]
    placed = [text.ljust(width) for text, width in zip(cut[:names], widths[:names], strict=True)]
    return "  ".join([*placed, *(text.rjust(width) for text, width in zip(cut[names:], widths[names:], strict=True))])
