"""The few numbers that say most: for the end of a run in the terminal, and for the opening of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from anncestry.report.absence import MISSING, brief
from anncestry.report.numbers import by_bytes, first_builds, rows_of
from anncestry.report.tables import Row, text_of

_WIDTH = 100

HEADLINE_K = 10
"""Neighbours asked for in the workloads that highlights are of."""


@dataclass(frozen=True)
class Highlight:
    """What stands out for one system on one dataset; a row of the tidy frame each, None where nothing was asked.

    `cells` are all of its cells, by their state: the row of each one's median latency.
    """

    dataset: str
    topology: str
    system: str
    load: Row | None
    p50: Row | None
    recall: Row | None
    qps: Row | None
    cells: Mapping[str, Sequence[Row]]

    @property
    def valid(self) -> int:
        """Cells that are measured and valid."""
        return len(self.cells["valid"])

    @property
    def invalid(self) -> int:
        """Cells that are measured, but not valid."""
        return len(self.cells["invalid"])

    @property
    def missing(self) -> int:
        """Cells that are not measured."""
        return len(self.cells["missing"])


def highlights(df: pd.DataFrame) -> list[Highlight]:
    """One highlight for each dataset, topology and system: K = 10, no filter, and how many cells are what they should.

    Latency and recall are of one client with a fixed count of queries, where there is such a workload.
    """
    rows = rows_of(by_bytes(first_builds(df)))
    places = sorted({(row["dataset"], row["topology"], row["system"]) for row in rows})
    return [_highlight(rows, *place) for place in places]


def summary(df: pd.DataFrame) -> str:
    """The highlights as a text table of at most 100 columns, ending in a newline."""
    head = ("dataset", "system", "load_s", "p50_ms k=10", "recall@10", "best QPS", "invalid")
    found = highlights(df)
    several = len({item.topology for item in found}) > 1
    body = [
        (
            f"{item.dataset} ({item.topology})" if several else item.dataset,
            item.system,
            _text(item.load),
            _text(item.p50),
            _text(item.recall),
            _text(item.qps) + (f" @{item.qps['clients']}" if item.qps and item.qps["value"] is not None else ""),
            str(item.invalid),
        )
        for item in found
    ]
    widths = [max(len(line[place]) for line in (head, *body)) for place in range(len(head))]
    # Only the names give way: a number cut short would be another number.
    for place in (0, 1):
        spare = _WIDTH - sum(widths) - 2 * (len(widths) - 1)
        widths[place] = max(min(widths[place], 12), widths[place] + min(spare, 0))
    lines = [_line(line, widths) for line in (head, tuple("-" * width for width in widths), *body)]
    missing = sum(item.missing for item in found)
    if missing:
        lines.append(f"{missing} cell{'' if missing == 1 else 's'} not measured")
    return "\n".join(lines) + "\n"


def _highlight(rows: Iterable[Row], dataset: str, topology: str, system: str) -> Highlight:
    here = [row for row in rows if (row["dataset"], row["topology"], row["system"]) == (dataset, topology, system)]
    asked = [row for row in here if row["k"] == HEADLINE_K and not row["filter"]]
    single = sorted((row for row in asked if row["clients"] == 1), key=lambda row: row["duration_s"] is not None)
    rates = [row for row in asked if row["metric"] == "qps"]
    cells = [row for row in here if row["metric"] == "p50_ms"]
    state: dict[str, list[Row]] = {"valid": [], "missing": [], "invalid": []}
    for row in cells:
        state["valid" if row["value"] is not None else "missing" if row["reason"] in MISSING else "invalid"].append(row)
    return Highlight(
        dataset,
        topology,
        system,
        load=_first(here, "load_s"),
        p50=_first(single, "p50_ms"),
        recall=_first(single, "recall_by_id"),
        qps=max(rates, key=lambda row: -1.0 if row["value"] is None else row["value"], default=None),
        cells=state,
    )


def _first(rows: Iterable[Row], metric: str) -> Row | None:
    return next((row for row in rows if row["metric"] == metric), None)


def _text(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["value"] is None:
        return brief(row["reason"])
    return text_of(row["value"], row["std"], row["unit"])


def _line(texts: tuple[str, ...], widths: list[int]) -> str:
    cut = [text if len(text) <= width else text[: width - 1] + "…" for text, width in zip(texts, widths, strict=True)]
    names = [text.ljust(width) for text, width in zip(cut[:2], widths[:2], strict=True)]
    return "  ".join([*names, *(text.rjust(width) for text, width in zip(cut[2:], widths[2:], strict=True))])
