"""The page of results and that of more tables: self-contained, with the ancestry of every number; no network, no times.

Equal records give equal bytes. The page holds its own content security policy: only the scripts that were put there
run, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.cells.blocks import Absent, sentence
from anncestry.cells.matrix import Matrix
from anncestry.home import PUBLISHED
from anncestry.metrics.decide import Rule
from anncestry.report.charts import SHAPES, Figure, colours, shapes
from anncestry.report.charts.standard import PHASE_OPACITY
from anncestry.report.model.cells import Row, Table, marks_in
from anncestry.report.model.highlights import highlights, pairs_told, summary
from anncestry.report.model.material import Material
from anncestry.report.model.noise import speed_percent
from anncestry.report.model.numbers import write
from anncestry.report.model.quantities import LOAD_INVALID, TRIED, is_absent, is_missing, stage_of
from anncestry.report.model.records import Records, codes_of, flat, merged, of_stage, read_records
from anncestry.report.model.verdicts import rule_of
from anncestry.report.published import Published
from anncestry.report.site import catalogue, downloads, more_pages, sheets, shell
from anncestry.report.site.catalogue import CaseStudies
from anncestry.report.site.shell import DIMENSIONS, Charts, Numbers, Sheet, listed

GLYPHS = dict(zip(SHAPES, "●■▲◆✚▼", strict=True))

# Charts take their ink from the page around them, so that they follow light, dark and print by themselves.
CHART_CONFIG = {
    "background": None,
    "font": 'system-ui, "DejaVu Sans", sans-serif',
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"), "currentColor"),
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


def of_matrix(matrix: Matrix) -> dict[str, Any]:
    """What `write_page` takes from an experiment's config."""
    config = matrix.config
    return {
        "title": config.title,
        "facts": Published.beside(config, PUBLISHED),
        "absent": matrix.absent,
        "rule": rule_of(config),
        "chart_files": config.chart_files,
    }


def write_page(
    df: pd.DataFrame,
    out_dir: Path,
    *,
    title: str,
    facts: Published | None = None,
    absent: Sequence[Absent] = (),
    studies: CaseStudies | None = None,
    rule: Rule | None = None,
    chart_files: bool = True,
    so_far: str = "",
) -> Path:
    """Write the site under `out_dir`: its pages, and beside them for download all numbers, tables and charts.

    Returns the path of index.html. `facts` are what others published: the pages of the case `studies`
    need them. `absent` are cells that are listed instead of measured; `rule` gives the verdicts.
    `so_far` says what a page rests on of which not all is measured yet: measurements wait for it, and so its
    charts are not drawn as files, which takes some 40 % of the time. Nor are they without `chart_files`.
    The records that the tidy frame `df` names are read again, relative to the working directory, for what stands
    behind the numbers. DataError if one is missing or no longer has the sha256 it had when `df` was made.
    """
    records = read_records(df)
    write(df, out_dir)
    studies = studies or CaseStudies()
    extra = studies.pages if facts else ()
    material = Material(df, records, facts, absent, catalogue.names(extra), rule or Rule())
    drawn = catalogue.figures_of(material, studies)
    groups = catalogue.tables_of(material, studies)
    chart_files = chart_files and not so_far
    path = _write_index(material, drawn, groups, out_dir, title, so_far, chart_files)
    _write_more(material, groups, out_dir, title)
    tables = [content for _, of_group in groups for content in of_group]
    downloads.write(out_dir, tables, drawn if chart_files else [], CHART_CONFIG)
    downloads.write_text(out_dir, title, summary(df, material.nodes), tables)
    more_pages.write(material, out_dir, title=title)
    if facts:
        for page in extra:
            built = [table for group, of_group in groups if group.page == page.file for table in of_group]
            page.write(material, facts, built, out_dir, title)
    return path


def _no_files(figure: Figure, place: int) -> dict[str, str]:
    """Where charts are not drawn as files."""
    return {}


_Groups = Sequence[tuple[catalogue.Group, list[Table]]]


def _write_index(
    material: Material,
    drawn: Sequence[Figure],
    groups: _Groups,
    out_dir: Path,
    title: str,
    so_far: str,
    chart_files: bool,
) -> Path:
    records, rows = material.records, material.all_rows
    opening = [table for group, built in groups if group is catalogue.OPENING for table in built]
    palette = colours(material.first["system"])
    missing, invalid = _gaps(rows)
    return shell.write(
        out_dir / catalogue.RESULTS,
        catalogue.RESULTS,
        title=title,
        pages=material.pages,
        ancestry=shell.ancestry(rows, records),
        charts=Charts([panel.spec for figure in drawn for panel in figure.panels], CHART_CONFIG, shell.bundle()),
        **_tables(material, groups, catalogue.RESULTS),
        summary=_summary(material),
        opening=opening,
        opening_marks=marks_in(cell.text for table in opening for row in table.rows for cell in row.cells),
        so_far=so_far,
        rule=material.rule,
        listed=sentence(material.absent),
        paired=pairs_told(material.pairs),
        facts=_facts(records),
        latencies=downloads.write_latencies(material, out_dir),
        figures=[(figure, _legend(figure, palette)) for figure in drawn],
        chart_files=downloads.images if chart_files else _no_files,
        places=_places(groups),
        missing=missing,
        invalid=invalid,
        machine=sheets.machine(records),
        systems=sheets.systems(records),
        fairness=sheets.fairness(records),
        gates=sheets.gates(records),
        records=sheets.all_records(records),
    )


def _write_more(material: Material, groups: _Groups, out_dir: Path, title: str) -> Path:
    """Write the page of the other tables, with the ancestry of their numbers alone."""
    of_page = _tables(material, groups, catalogue.MORE)
    linked = {
        number
        for _, built in of_page["groups"]
        for table in built
        for row in table.rows
        for cell in row.cells
        for number in (cell.number_id, *cell.parents)
    }
    rows = [row for row in material.all_rows if row["number_id"] in linked]
    behind = {row["record"] for row in rows}
    records = {path: record for path, record in material.records.items() if path in behind}
    return shell.write(
        out_dir / catalogue.MORE,
        catalogue.MORE,
        title=title,
        pages=material.pages,
        ancestry=shell.ancestry(rows, records),
        **of_page,
    )


def _tables(material: Material, groups: _Groups, page: str) -> dict[str, Any]:
    """What a page needs for its groups of tables."""
    of_page = [(group, built) for group, built in groups if group.page == page]
    cells = [cell for _, built in of_page for table in built for row in table.rows for cell in row.cells]
    return {
        "numbers": Numbers(),
        "colours": colours(material.first["system"]),
        "groups": [(group, built) for group, built in of_page if group is not catalogue.OPENING],
        "table_files": downloads.names,
        "linked": any(cell.number_id or cell.parents or cell.source for cell in cells),
        "published": any(cell.published for cell in cells),
        "marks": marks_in(cell.text for cell in cells),
    }


def _places(groups: _Groups) -> dict[str, str]:
    """Where each table stands, as an address from the page of results."""
    return {
        table.number: ("" if group.page == catalogue.RESULTS else group.page) + f"#table-{table.number}"
        for group, built in groups
        for table in built
    }


def _summary(material: Material) -> dict[str, Any]:
    """What was asked, for the opening; `states` are the ids of numbers that stand for cells, by state (cells.html)."""
    found = highlights(material.first_rows, material.nodes)
    states: dict[str, list[str]] = {"valid": [], "invalid": [], "missing": []}
    for cell in more_pages.cells_of(material):
        state = {"failed": "missing", "not measured": "missing"}.get(cell.state, cell.state)
        if state in states:
            states[state].append(cell.number)
    return {
        "systems": sorted({item.system for item in found}),
        "datasets": sorted({item.dataset for item in found}),
        "states": {"all": [number for numbers in states.values() for number in numbers], **states},
    }


def _facts(records: Records) -> dict[str, str]:
    """The few facts that a reader looks for first; empty where unknown."""
    loads = of_stage(records, "load")
    machine = merged(dict(flat(record.get("platform"))) for record in loads)
    created = sorted(str(record["created"]) for record in records.values())
    processor = " × ".join(filter(None, (machine.get("cores", ""), machine.get("cpu_model", ""))))
    memory = f"{machine['memory_gib']} GiB" if "memory_gib" in machine else ""
    return {
        "Machine": ", ".join(filter(None, (processor, memory))),
        "Kernel": machine.get("kernel", ""),
        "Speed, round to round": _speed(records),
        "Records made": " to ".join(sorted({_minute(created[0]), _minute(created[-1])})) if created else "",
        "Code": listed(sorted({code for record in records.values() for code in codes_of(record)})),
    }


def _speed(records: Records) -> str:
    """How much the machine itself was faster or slower between rounds."""
    percent = speed_percent(of_stage(records, "query"))
    return "" if percent is None else f"± {percent:.0f} %, by the client's CPU a query"


def _minute(created: str) -> str:
    """An ISO time to the minute; all records give theirs in UTC."""
    return f"{created[:16].replace('T', ' ')} UTC"


def _legend(figure: Figure, palette: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Signs of a figure, their colours, and what they mean."""
    if figure.legend == "members":  # Colours are of members, not of systems: the chart names them itself.
        return []
    glyphs = [GLYPHS[shape] if figure.legend in ("shapes", "pacing") else "■" for shape in shapes(len(palette))]
    signs = [(glyph, colour, system) for glyph, (system, colour) in zip(glyphs, palette.items(), strict=True)]
    ink = "currentColor"
    more = {
        "phases": [
            ("■", f"color-mix(in srgb, {ink} {opacity:.0%}, transparent)", phase)
            for phase, opacity in PHASE_OPACITY.items()
        ],
        "pacing": [("○", ink, "hollow, dashed: evenly paced")],
        "percentiles": [("●", ink, "p50"), ("◆", ink, "p95"), ("▶", ink, "p99")],
        "recall": [("●", ink, "by id"), ("❘", ink, "by distance")],
        "resources": [("━", ink, "server"), ("╍", ink, "client"), ("▲", ink, "steady from here on")],
    }
    return signs + more.get(figure.legend, [])


def _gaps(rows: Sequence[Row]) -> tuple[Sheet, list[dict[str, Any]]]:
    """Which records are missing and which are invalid, each with its reason: failure is data."""
    missing: dict[tuple[str, ...], list[str]] = {}
    invalid: dict[tuple[str, ...], list[str]] = {}
    # One row a record will do; what has no number only for what it was made from stands with that.
    for row in {row["record"]: row for row in rows if row["reason"] and not is_absent(row["reason"])}.values():
        place = (row["dataset"], row["system"], row["topology"])
        stage = stage_of(row["phase"])
        name = f"{stage} {row['workload']}".strip()
        if is_missing(row["reason"]):
            tried = row["reason"] if row["reason"].startswith(TRIED) else ""
            missing.setdefault((*place, row["workload"]), []).append(stage + (f" ({tried})" if tried else ""))
        else:
            invalid.setdefault((*place, row["reason"].removeprefix(LOAD_INVALID)), []).append(name)
    head = ("Dataset", "System", "Topology", "Workload", "Stages without a record")
    lines = [(*place, workload or "—", ", ".join(stages)) for (*place, workload), stages in missing.items()]
    return Sheet(head, lines, "Cells not measured", "tight"), [
        {
            "dimensions": dict(zip(DIMENSIONS, place, strict=False)),
            "place": " · ".join(place),
            "reason": reason,
            "names": names,
        }
        for (*place, reason), names in invalid.items()
    ]
