"""The audit page, audit.html beside the page of results: what was published before, number by number.

Each published number with its place and trace, each finding with what recomputing gives, and our own measurement of
the same thing beside it, with the ratio, where there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from anncestry.errors import DataError
from anncestry.report import shell
from anncestry.report.audit import COMMIT, DOCUMENTS, REPOSITORY, Figure, Published
from anncestry.report.checks import Recomputed
from anncestry.report.markup import AUDIT_PAGE, Numbers
from anncestry.report.numbers import rows_of
from anncestry.report.recompute import CHECKS
from anncestry.report.shell import Records
from anncestry.report.tables import Row, text_of

NAME = AUDIT_PAGE

_VERDICTS = {
    "ok": "holds",
    "inconsistent": "contradicts another figure of the same document",
    "false": "does not hold",
    "unsupported": "can't be told from what was measured",
    "imprecise": "holds in part, or under another name",
    "mislabelled": "stands under the wrong name or mark",
    "rounding": "is not the raw value, rounded",
    "misattributed": "was measured of something else",
    "method": "was done otherwise than written, or can't be compared",
    "cause": "has another likely cause",
    "untraceable": "can't be traced",
    "typo": "is a slip of the pen",
    "note": "worth knowing",
}

_OURS = {"storage_mb": "storage_total_mib", "raw_mb": "storage_raw_mib"}
"""Our names of what the paper measured, where they differ."""

_LOAD_PHASE = ("cpu_avg_pct", "cpu_peak_pct")
_BY_TIME = ("Table X", "Table XIV")
"""Tables of runs of a fixed time; the others are of a fixed count of queries."""


def write(df: pd.DataFrame, records: Records, out_dir: Path, *, title: str, facts: Published) -> Path:
    """Write audit.html: the facts of `facts`, with the measurements of the tidy frame `df` beside them."""
    rows = rows_of(df)
    beside = Beside(rows, records)
    findings = recomputed(facts)
    documents = [_document(facts, name, findings, beside) for name in DOCUMENTS]
    traced = [figure for figure in facts.figures if figure.agrees is not None]
    counts = Counter(finding["verdict"] for finding in facts.findings)
    shown = [row for row in rows if row["number_id"] in beside.shown]
    behind = {row["record"] for row in shown} & records.keys()
    return shell.write(
        out_dir / NAME,
        NAME,
        title=title,
        pages=shell.pages(published=True),
        ancestry=shell.ancestry(shown, {path: records[path] for path in behind}),
        numbers=Numbers(),
        documents=documents,
        figures=len(facts.figures),
        traced=len(traced),
        agreeing=sum(bool(figure.agrees) for figure in traced),
        findings=len(facts.findings),
        recomputed=len(findings),
        repository=REPOSITORY,
        commit=COMMIT,
        machines=", ".join(sorted(beside.machines)) or "none",
        verdicts=[(name, words, counts[name]) for name, words in _VERDICTS.items() if counts[name]],
    )


def recomputed(facts: Published) -> dict[str, Recomputed]:
    """By finding: what its checks give, for the findings that have some. DataError for an unknown check."""
    found: dict[str, Recomputed] = {}
    for finding in facts.findings:
        parts = []
        for name in finding["check"].split():
            if name not in CHECKS:
                raise DataError(f"{facts.folder / 'findings.csv'}: {finding['id']}: unknown check {name!r}")
            parts.append(CHECKS[name](facts))
        if parts:
            figures = dict.fromkeys(figure for part in parts for figure in part.figures)
            found[finding["id"]] = Recomputed("; ".join(part.text for part in parts), tuple(figures))
    return found


class _Ours(NamedTuple):
    """Our measurement of what a published number is of, as text, and its ratio to it: empty if that is zero."""

    row: Row
    shown: str
    ratio: str


class _Document(NamedTuple):
    """What the page shows of a document: its findings, each with what recomputing gave; its numbers, by their place.

    `traced`: raw values are known of some of its numbers.
    """

    name: str
    words: str
    findings: list[tuple[Mapping[str, str], Recomputed | None]]
    places: list[tuple[str, list[tuple[Figure, list[_Ours]]]]]
    traced: bool


def _document(facts: Published, name: str, findings: Mapping[str, Recomputed], beside: Beside) -> _Document:
    figures = [figure for figure in facts.figures if figure.document == name]
    traced = any(figure.source_file for figure in figures)
    return _Document(
        name,
        DOCUMENTS[name],
        [(finding, findings.get(finding["id"])) for finding in facts.findings if finding["document"] == name],
        [
            (place, [(figure, beside.of(figure) if traced else []) for figure in of_place])
            for place, of_place in groupby(figures, key=lambda figure: figure.place)
        ],
        traced,
    )


class Beside:
    """Our measurements, by what was asked; those that were shown are remembered, for their ancestry."""

    def __init__(self, rows: Iterable[Row], records: Records) -> None:
        self._rows: dict[tuple[str, ...], list[Row]] = {}
        self._records = records
        self.shown: set[str] = set()
        self.machines: set[str] = set()
        for row in rows:
            if row["value"] is not None:
                self._rows.setdefault((row["dataset"], row["engine"], row["topology"], row["metric"]), []).append(row)

    def matches(self, figure: Figure) -> list[Row]:
        """What we measured of the same thing: a row a system."""
        metric = _OURS.get(figure.metric, figure.metric)
        where = (figure.dataset, figure.system, figure.ran_on or figure.topology, metric)
        chosen: dict[str, Row] = {}
        for row in sorted(self._rows.get(where, ()), key=lambda row: (row["duration_s"] is None) == _timed(figure)):
            if _same_question(figure, row):
                chosen.setdefault(row["system"], row)
        found = [chosen[system] for system in sorted(chosen)]
        for row in found:
            self.shown.add(row["number_id"])
            self._machine(row)
        return found

    def of(self, figure: Figure) -> list[_Ours]:
        """The same, each with its ratio to the published number."""
        return [
            _Ours(
                row,
                text_of(row["value"], row["std"], row["unit"]),
                f"{row['value'] / figure.number:.2f}" if figure.number else "",
            )
            for row in self.matches(figure)
        ]

    def _machine(self, row: Row) -> None:
        machine = self._records.get(row["record"], {}).get("platform") or {}
        if machine:
            known = (f"{machine.get('cores')} × {machine.get('cpu_model')}", f"{machine.get('memory_gib')} GiB")
            self.machines.add(", ".join(known))


def _timed(figure: Figure) -> bool:
    return figure.place in _BY_TIME


def _same_question(figure: Figure, row: Row) -> bool:
    if row["phase"] in ("load", "storage") or figure.metric in _LOAD_PHASE:
        return row["phase"] in ("load", "storage")
    asked = {"k": row["k"], "clients": row["clients"]}
    same = all(getattr(figure, name) in ("", str(value)) for name, value in asked.items())
    return same and bool(row["filter"]) == (figure.filtered == "1") and bool(figure.k)
