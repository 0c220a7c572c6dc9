"""A history as a self-contained page, and as JSON of all its points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from anncestry.provenance.records import write_json
from anncestry.report.charts import colours, shapes
from anncestry.report.history import text
from anncestry.report.history.changes import LEVEL, NIGHTS_MIN
from anncestry.report.history.figures import figures
from anncestry.report.history.lines import History, Line, Point
from anncestry.report.model.cells import NO_CELL, Row, text_of
from anncestry.report.site import shell
from anncestry.report.site.page import CHART_CONFIG, GLYPHS
from anncestry.report.site.shell import Charts, Numbers, Sheet


def write(history: History, out_dir: Path, title: str) -> Path:
    """Write history.json (every point, unrounded) and index.html; returns the page's path."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(out_dir / "history.json", history.plain())
    palette = colours(line.name[3] for line in history.lines)
    drawn = figures(history, palette, _id)
    numbers = Numbers()
    # Changes come first on the page: the address of a number leads to the first link to it.
    changes = _changes(history, numbers)
    glyphs = [GLYPHS[shape] for shape in shapes(len(palette))]
    signs = [(glyph, colour, system) for glyph, (system, colour) in zip(glyphs, palette.items(), strict=True)]
    return shell.write(
        out_dir / "index.html",
        "history.html",
        title=title,
        ancestry=_ancestry(history),
        charts=Charts([panel.spec for figure in drawn for panel in figure.panels], CHART_CONFIG, shell.bundle()),
        opening=text.opening(history),
        nights_min=NIGHTS_MIN,
        level=LEVEL,
        signs=signs,
        figures=drawn,
        changes=changes,
        breaks=Sheet(("Since", "Commit", "The line ends", "Of"), text.breaks(history), "Breaks"),
        left_out=Sheet(("Of", "Commit", "Reason"), text.left_out(history), "Left out"),
        lines=_lines(history, numbers),
    )


def _id(point: Point) -> str:
    """One measured again under its key has the same id in both commits: on a page it needs two."""
    return f"{point.row['number_id']}-{point.commit.commit[:8]}"


def _ancestry(history: History) -> dict[str, Any]:
    """What the page's script shows of each point."""
    rows: list[Row] = []
    records: dict[str, Mapping[str, Any]] = {}
    for line in history.lines:
        for point in line.points:
            path = f"{point.row['record']} (commit {point.commit.commit[:8]}, {point.commit.at})"
            rows.append({**point.row, "number_id": _id(point), "record": path})
            records[path] = history.records[point.commit.commit, point.row["record"]]
    return shell.ancestry(rows, records)


def _changes(history: History, numbers: Numbers) -> Sheet:
    head = ("Since", "Commit", "Of", "Quantity", "Before", "After", "Change", "Also new since then")
    lines = []
    for told in text.rows(history):
        *cells, change, facts = told.cells
        lines.append([*cells, numbers.link(change, [f"{told.number}-{told.commit[:8]}"]), facts])
    return Sheet(head, lines, "Changes")


def _lines(history: History, numbers: Numbers) -> Sheet:
    """Every line with its latest number."""
    head = ("Dataset", "Topology", "Workload", "System", "Quantity", "Points", "Last", "Interval", "Changes", "Without")
    return Sheet(head, [_line(line, numbers) for line in history.lines], "Lines", "tight")


def _line(line: Line, numbers: Numbers) -> list[str]:
    last = line.points[-1]
    ends = [last.row[end] for end in ("low", "high")]
    interval = " to ".join(text_of(end, None, line.unit) for end in ends) if None not in ends else NO_CELL
    value: Markup = numbers.link(text_of(last.value, None, line.unit), [_id(last)])
    absent = "; ".join(f"{commit.at[:10]}: {reason}" for commit, reason in line.absent)
    names = [name or NO_CELL for name in line.name[:4]]
    return [
        *names,
        text.quantity(line),
        str(len(line.points)),
        value,
        interval,
        str(len(line.changes)),
        absent or NO_CELL,
    ]
