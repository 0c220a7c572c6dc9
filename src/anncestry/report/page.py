"""The page: one self-contained file with charts, tables, and the ancestry of every number; no network, no timestamps.

Equal records give equal bytes. The page holds its own content security policy: only the scripts that were put there
run, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from anncestry.cells.absent import Absent, sentence
from anncestry.errors import DataError
from anncestry.provenance.records import read_record, sha256_file
from anncestry.report import (
    audit_page,
    catalogue,
    cells_page,
    downloads,
    latencies,
    method_page,
    published_page,
    sheets,
    shell,
    vega,
)
from anncestry.report.absence import ABSENT, LOAD_INVALID, MISSING, brief
from anncestry.report.audit import Published
from anncestry.report.charts import PHASE_OPACITY, SHAPES, Figure, colours
from anncestry.report.facts import flat, merged, of_stage
from anncestry.report.markup import DIMENSIONS, Numbers, Sheet, listed
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of, write
from anncestry.report.shell import Charts, Records, code_of
from anncestry.report.summary import HEADLINE_K, Highlight, highlights
from anncestry.report.tables import CLIENT_BOUND, Row, Table, best_of, text_of

NAME = "index.html"

_GLYPHS = dict(zip(SHAPES, "●■▲◆✚▼", strict=True))

# Charts take their ink from the page around them, so that they follow light, dark and print by themselves.
CHART_CONFIG = {
    "background": None,
    "font": 'system-ui, "DejaVu Sans", sans-serif',
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.14,
        "domainOpacity": 0.5,
        "tickOpacity": 0.5,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelLimit": 150,
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12},
    "axisY": {"grid": False, "titleFontWeight": "normal"},
    "axisX": {"grid": True},
    "text": {"color": "currentColor", "fontSize": 12},
    "rule": {"color": "currentColor"},
}
"""Of every chart of a page."""


def write_page(
    df: pd.DataFrame, out_dir: Path, *, title: str, published: Path | None = None, absent: Sequence[Absent] = ()
) -> Path:
    """Write the site under `out_dir`: its pages, and beside them for download all numbers, tables and charts.

    Returns the path of index.html. `published` is the paper's table in a folder of published facts: then there are
    pages that set ours beside them, too. `absent` are cells that are listed instead of measured.
    The records that the tidy frame `df` names are read again, relative to the working directory, for what stands
    behind the numbers. DataError if one is missing or no longer has the sha256 it had when `df` was made.
    """
    records = _read_records(df)
    write(df, out_dir)
    latencies.write(df, records, out_dir)
    material = Material(df, records, published, absent)
    drawn = catalogue.figures_of(material)
    groups = catalogue.tables_of(material)
    of_page = [group for group in groups if group[0].page == NAME]
    path = _write_index(material, drawn, of_page, out_dir, title)
    downloads.write(out_dir, [content for _, of_group in groups for content in of_group], drawn, CHART_CONFIG)
    cells_page.write(material, out_dir, title=title)
    method_page.write(material, out_dir, title=title)
    if published:
        facts = Published(published.parent)
        beside = [content for group, of_group in groups if group.page == published_page.NAME for content in of_group]
        published_page.write(material, facts, beside, out_dir, title=title)
        audit_page.write(df, records, out_dir, title=title, facts=facts)
    return path


def _write_index(
    material: Material,
    drawn: Sequence[Figure],
    groups: Sequence[tuple[catalogue.Group, list[Table]]],
    out_dir: Path,
    title: str,
) -> Path:
    records, rows = material.records, rows_of(material.numbers)
    palette = colours(material.first)
    cells = [cell for _, built in groups for table in built for row in table.rows for cell in row.cells]
    missing, invalid = _gaps(rows)
    return shell.write(
        out_dir / NAME,
        NAME,
        title=title,
        pages=shell.pages(material.paper is not None),
        ancestry=shell.ancestry(rows, records),
        charts=Charts([panel.spec for figure in drawn for panel in figure.panels], CHART_CONFIG, vega.bundle()),
        numbers=Numbers(),
        colours=palette,
        summary=_summary(material.first),
        listed=sentence(material.absent),
        facts=_facts(records),
        latencies=latencies.there(material.numbers, records),
        figures=[(figure, _legend(figure, palette)) for figure in drawn],
        chart_files=downloads.images,
        groups=groups,
        table_numbers={table.number for _, built in groups for table in built},
        table_files=downloads.names,
        linked=any(cell.number_id or cell.parents or cell.source for cell in cells),
        published=any(cell.published for cell in cells),
        client_bound=CLIENT_BOUND.strip() if any(CLIENT_BOUND in cell.text for cell in cells) else "",
        missing=missing,
        invalid=invalid,
        machine=sheets.machine(records),
        systems=sheets.systems(records),
        fairness=sheets.fairness(records),
        gates=_gates(records),
        records=_records(records),
    )


def _read_records(df: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """The records behind the numbers, by path; a changed or missing one is refused."""
    found: dict[str, Mapping[str, Any]] = {}
    for path, digest in sorted(set(zip(df["record"], df["record_sha256"], strict=True))):
        if not digest:
            continue
        record = read_record(Path(path))
        now = sha256_file(Path(path))
        if now != digest:
            raise DataError(f"{path}: sha256 {now[:12]}… is not the {digest[:12]}… of the table: make the table again")
        found[path] = {**record, "sha256": digest}
    return found


_Number = tuple[Row, str, str, str]
"""A number in a sentence: its row, its text, words after it, and its system."""


class _Place(NamedTuple):
    """What the opening says of a dataset and topology: statements with their numbers, and how the medians compare.

    `faster` is the system whose median is lower; None if there are fewer than two medians, empty for a tie.
    """

    name: str
    dimensions: Mapping[str, str]
    statements: list[tuple[str, list[_Number]]]
    faster: str | None


class _Summary(NamedTuple):
    """What was found; `states` are the ids of numbers that stand for cells, by state."""

    systems: list[str]
    datasets: list[str]
    states: Mapping[str, list[str]]
    places: list[_Place]


def _summary(df: pd.DataFrame) -> _Summary:
    found = highlights(df)
    states = {
        state: [row["number_id"] for item in found for row in item.cells[state]]
        for state in ("valid", "invalid", "missing")
    }
    several = len({item.topology for item in found}) > 1
    return _Summary(
        sorted({item.system for item in found}),
        sorted({item.dataset for item in found}),
        {"all": [number for numbers in states.values() for number in numbers], **states},
        [
            _place(dataset, topology, list(items), several)
            for (dataset, topology), items in groupby(found, key=lambda item: (item.dataset, item.topology))
        ],
    )


def _place(dataset: str, topology: str, items: Sequence[Highlight], several: bool) -> _Place:
    """What stands out on a dataset and topology; it names the topology if there are `several`."""
    statements = [
        ("ready to search after", [(item.system, item.load, "") for item in items]),
        (f"median latency for the {HEADLINE_K} nearest", [(item.system, item.p50, "") for item in items]),
        (f"recall@{HEADLINE_K}", [(item.system, item.recall, "") for item in items]),
        ("most queries per second", [_peak(item) for item in items]),
    ]
    shown = [
        (what, [(row, _shown(row), words, system) for system, row, words in values if row is not None])
        for what, values in statements
    ]
    return _Place(
        f"{dataset} ({topology})" if several else dataset,
        {"dataset": dataset, "topology": topology},
        [(what, numbers) for what, numbers in shown if numbers],
        _faster(items),
    )


def _peak(item: Highlight) -> tuple[str, Row | None, str]:
    row = item.qps if item.qps is not None and item.qps["value"] is not None else None
    words = f" with {row['clients']} client{'' if row['clients'] == 1 else 's'}" if row else ""
    return item.system, row, words


def _faster(items: Sequence[Highlight]) -> str | None:
    """Which system answers faster, if that can be told."""
    rows = [item.p50 for item in items]
    if sum(row is not None and row["value"] is not None for row in rows) < 2:
        return None
    best = best_of(rows, lower=True)
    return "" if best is None else items[best].system


def _shown(row: Row) -> str:
    if row["value"] is None:
        return brief(row["reason"])
    unit = "" if row["unit"] in ("fraction", "1/s") else f" {row['unit']}"
    return text_of(row["value"], row["std"], row["unit"]) + unit


def _facts(records: Records) -> dict[str, str]:
    """The few facts that a reader looks for first; empty where unknown."""
    loads = of_stage(records, "load")
    machine = merged(dict(flat(record.get("platform"))) for record in loads)
    created = sorted(str(record["created"]) for record in records.values())
    return {
        "Processor": " × ".join(filter(None, (machine.get("cores", ""), machine.get("cpu_model", "")))),
        "Memory": f"{machine['memory_gib']} GiB" if "memory_gib" in machine else "",
        "Kernel": machine.get("kernel", ""),
        "Records made": " to ".join(sorted({_minute(created[0]), _minute(created[-1])})) if created else "",
        "Code": listed(sorted({code_of(record) for record in records.values()})),
    }


def _minute(created: str) -> str:
    """An ISO time to the minute; all records give theirs in UTC."""
    return f"{created[:16].replace('T', ' ')} UTC"


def _legend(figure: Figure, palette: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Signs of a figure, their colours, and what they mean."""
    if figure.legend == "members":  # Colours are of members, not of systems: the chart names them itself.
        return []
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(palette))]
    glyphs = [_GLYPHS[shape] if figure.legend == "shapes" else "■" for shape in shapes]
    signs = [(glyph, colour, system) for glyph, (system, colour) in zip(glyphs, palette.items(), strict=True)]
    ink = "currentColor"
    more = {
        "phases": [
            ("■", f"color-mix(in srgb, {ink} {opacity:.0%}, transparent)", phase)
            for phase, opacity in PHASE_OPACITY.items()
        ],
        "percentiles": [("●", ink, "p50"), ("◆", ink, "p95"), ("▶", ink, "p99")],
        "recall": [("●", ink, "by id"), ("❘", ink, "by distance")],
        "resources": [("━", ink, "server"), ("╍", ink, "client"), ("▲", ink, "steady from here on")],
    }
    return signs + more.get(figure.legend, [])


class _Invalid(NamedTuple):
    """Cells of one place that have no number for one reason."""

    dimensions: Mapping[str, str]
    place: str
    reason: str
    names: list[str]


def _gaps(rows: Sequence[Row]) -> tuple[Sheet, list[_Invalid]]:
    """Which records are missing and which are invalid, each with its reason: failure is data."""
    missing: dict[tuple[str, ...], list[str]] = {}
    invalid: dict[tuple[str, ...], list[str]] = {}
    # One row a record will do; what has no number only for what it was made from stands with that.
    for row in {row["record"]: row for row in rows if row["reason"] not in {*ABSENT, ""}}.values():
        place = (row["dataset"], row["system"], row["topology"])
        stage = row["phase"] if row["phase"] in ("query", "recall") else "load"
        name = f"{stage} {row['workload']}".strip()
        if row["reason"] in MISSING:
            missing.setdefault((*place, row["workload"]), []).append(stage)
        else:
            invalid.setdefault((*place, row["reason"].removeprefix(LOAD_INVALID)), []).append(name)
    head = ("Dataset", "System", "Topology", "Workload", "Stages without a record")
    lines = [(*place, workload or "—", ", ".join(stages)) for (*place, workload), stages in missing.items()]
    return Sheet(head, lines, "Cells not measured", "tight"), [
        _Invalid(dict(zip(DIMENSIONS, place, strict=False)), " · ".join(place), reason, names)
        for (*place, reason), names in invalid.items()
    ]


def _gates(records: Records) -> Sheet:
    """Each gate: how many records had to pass it, and how many did."""
    counts: dict[tuple[str, str], list[bool]] = {}
    for record in records.values():
        for gate in record.get("gates", ()):
            counts.setdefault((str(record["stage"]), str(gate["gate"])), []).append(bool(gate["ok"]))
    rows = [(gate, stage, f"{sum(passed)} of {len(passed)}") for (stage, gate), passed in sorted(counts.items())]
    return Sheet(("Gate", "Stage", "Records that passed"), rows, "Gates", "tight")


def _records(records: Records) -> Sheet:
    """The whole list, for those who read without a script or on paper."""
    rows = [
        (path, str(record["stage"]), str(record["key"]), record["sha256"], str(record["created"]))
        for path, record in records.items()
    ]
    return Sheet(("Record", "Stage", "Key", "sha256", "Created"), rows, "Records", "records mono")
