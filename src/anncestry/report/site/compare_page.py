"""A comparison as a self-contained page, and as CSV and JSON of all its lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.metrics.decide import Outcome
from anncestry.provenance.records import replacing, write_json
from anncestry.report.compare.lines import COLUMNS, HEADLINE, Comparison, Line
from anncestry.report.compare.sides import Side
from anncestry.report.compare.text import between, counted, name_of, row_of, signs_of, table_of
from anncestry.report.model.cells import NO_CELL, Column, Row, Table
from anncestry.report.model.numbers import inert, rows_of
from anncestry.report.site import shell
from anncestry.report.site.shell import Numbers, Sheet


def write(comparison: Comparison, out_dir: Path) -> Path:
    """Write comparison.csv and comparison.json (every line, unrounded), and index.html; returns the page's path."""
    plain = comparison.plain()
    with replacing(out_dir / "comparison.csv") as temporary:
        frame = pd.DataFrame(plain["lines"], columns=COLUMNS, dtype=object)
        inert(frame).to_csv(temporary, index=False, lineterminator="\n")
    sides = {"a": comparison.a, "b": comparison.b}
    write_json(out_dir / "comparison.json", plain)
    ids = _Ids(sides)
    return shell.write(
        out_dir / "index.html",
        "compare.html",
        title=f"{comparison.b.label} against {comparison.a.label}",
        ancestry=ids.ancestry(),
        numbers=Numbers(),
        colours={},
        a=name_of(comparison.a),
        b=name_of(comparison.b),
        between=between(comparison),
        counted=counted(comparison),
        rule=comparison.rule,
        marks=signs_of(comparison.lines),
        tables=_tables([line for line in comparison.lines if line.metric in HEADLINE], ids, ""),
        reasons=_reasons(comparison.lines),
        differences=Sheet(("Fact", "A", "B"), comparison.differences, "Differences", "tight"),
        more=_tables([line for line in comparison.lines if line.metric not in HEADLINE], ids, "more-"),
    )


class _Ids:
    """Names of numbers and records on one page, though both sides may use a name for two things.

    A number that was measured again under the same key has one id and one path in both revisions.
    """

    def __init__(self, sides: Mapping[str, Side]) -> None:
        self._rows = {letter: rows_of(side.numbers) for letter, side in sides.items()}
        self._sides = sides
        digests: dict[str, set[str]] = {}
        for rows in self._rows.values():
            for row in rows:
                digests.setdefault(row["record"], set()).add(row["record_sha256"])
        self._two = {path for path, of_path in digests.items() if len(of_path) > 1}

    def of(self, letter: str, number: str, record: str) -> str:
        """The id on this page of a side's number."""
        return f"{number}-{letter}" if number and record in self._two else number

    def ancestry(self) -> dict[str, Any]:
        """What the page's script shows of a number, those of both sides."""
        rows: dict[str, Row] = {}
        records: dict[str, Mapping[str, Any]] = {}
        for letter, of_side in self._rows.items():
            side = self._sides[letter]
            for row in of_side:
                number = self.of(letter, row["number_id"], row["record"])
                path = f"{row['record']} ({letter.upper()})" if row["record"] in self._two else row["record"]
                rows.setdefault(number, {**row, "number_id": number, "record": path})
                if row["record"] in side.records:
                    records[path] = {**side.records[row["record"]], "sha256": row["record_sha256"]}
        return shell.ancestry(list(rows.values()), records)


def _tables(lines: Iterable[Line], ids: _Ids, prefix: str) -> list[Table]:
    """One table a dataset, topology and pair of systems."""
    built = []
    for count, ((dataset, topology, *systems), members) in enumerate(groupby(lines, table_of), start=1):
        a, b = (name or NO_CELL for name in systems)
        columns = (Column(f"A: {a}"), Column(f"B: {b}"), Column("B / A"), Column("B − A, 95 %"), Column("Verdict of B"))
        rows = tuple(row_of(line, ids.of) for line in members)
        labels = ("Workload", "Metric", "Unit")
        title, caption = f"{dataset}, {topology}", f"{b} (B) against {a} (A)."
        built.append(Table(f"{prefix}{count}", title, caption, labels, columns, rows))
    return built


def _reasons(lines: Iterable[Line]) -> Sheet:
    """Each reason once, with the cells and stages that it concerns."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for line in lines:
        if line.judged.low is None and line.judged.outcome in (Outcome.NOT_COMPARABLE, Outcome.UNDETERMINED):
            where = f"{line.dataset}, {line.topology}, {line.workload or 'load'}"
            places.setdefault((line.verdict, line.judged.reason), {})[where] = None
    rows = [(*reason, "; ".join(where)) for reason, where in sorted(places.items(), key=lambda item: item[0])]
    return Sheet(("Verdict", "Reason", "Where"), rows, "Reasons")
