"""The page: one self-contained file with charts, tables, and the ancestry of every number; no network, no timestamps.

Equal records give equal bytes. The page holds its own content security policy: only the scripts that were put there
run, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.cells.absent import Absent, sentence
from anncestry.errors import DataError
from anncestry.provenance.records import read_record, replacing, sha256_file
from anncestry.report import (
    audit_page,
    catalogue,
    cells_page,
    downloads,
    latencies,
    method_page,
    published_page,
    sheets,
    vega,
)
from anncestry.report.absence import ABSENT, LOAD_INVALID, MISSING, brief
from anncestry.report.audit import Published
from anncestry.report.charts import PHASE_OPACITY, SHAPES, Figure, colours
from anncestry.report.facts import flat, merged, of_stage
from anncestry.report.markup import DIMENSIONS, Numbers, dimensions, legend, sheet, table, text
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of, write
from anncestry.report.shell import Charts, Records, ancestry, code_of, document, glossary, pages
from anncestry.report.summary import HEADLINE_K, Highlight, highlights
from anncestry.report.tables import CLIENT_BOUND, Row, Table, best_of, text_of

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

_HOW_TO_READ = (
    (
        "A number",
        "Every number is a link. It opens its ancestry: the number's id, the record that holds it with its sha256, and"
        " the files that record was made from, down to raw samples. The address of the page with #id leads back to it.",
    ),
    (
        "Latency; p50, p95, p99",
        "Time from handing an encoded request to the transport until its whole answer is there, on the client's"
        " monotonic clock. Requests are encoded before and answers decoded after the measured part. A percentile is a"
        " latency that was observed (nearest rank), of one run; what is shown is the mean of the runs' percentiles."
        " Requests that ran into their deadline count with the time they waited.",
    ),
    (
        "Queries per second",
        "Answers without error divided by time. In a run of a fixed time, answers that come after its end don't count.",
    ),
    (
        "±",
        "The sample standard deviation (n − 1) over the runs of a cell. All runs ask one index that was built once, so"
        " ± holds the noise of asking, not that of building again. A number without ± was measured once.",
    ),
    (
        "Bold",
        "A number is bold if it is better than that of each other system by more than noise: at least three runs on"
        " both sides, and Welch's 95 % interval of the difference excludes zero. Else nothing is bold: a tie.",
    ),
    (
        "Recall by id, by distance",
        "By id counts returned ids that are among the exact K nearest. By distance counts returned vectors that are no"
        " farther than the exact K-th, so that one of several vectors at the same distance is as good as another."
        " The exact neighbours are computed from the very vectors that were loaded, and under a filter only from"
        " those that pass it.",
    ),
    (
        "Processor and memory",
        "Of all processes of the server, apart from those of the client; 100 % is one core, kept busy.",
    ),
    (
        "Invalid",
        "A record fails a gate if what was measured isn't what was meant: rows are missing, the index is unfinished,"
        " settings differ, a filter was not applied. Such a record never shows as a number; its reason is listed.",
    ),
    ("Paper", "The small figures below measured ones are as printed in the paper, obtained as each caption says."),
)


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
    path = out_dir / "index.html"
    with replacing(path) as temporary:
        of_page = [found for found in groups if found[0].page == path.name]
        temporary.write_text(_document(material, drawn, of_page, title), encoding="utf-8")
    downloads.write(out_dir, [content for _, of_group in groups for content in of_group], drawn, CHART_CONFIG)
    cells_page.write(material, out_dir, title=title)
    method_page.write(material, out_dir, title=title)
    if published:
        facts = Published(published.parent)
        beside = [content for group, of_group in groups if group.page == published_page.NAME for content in of_group]
        published_page.write(material, facts, beside, out_dir, title=title)
        audit_page.write(df, records, out_dir, title=title, facts=facts)
    return path


def _document(
    material: Material, drawn: Sequence[Figure], groups: Sequence[tuple[catalogue.Group, list[Table]]], title: str
) -> str:
    df, records = material.numbers, material.records
    rows = rows_of(df)
    numbers = Numbers()
    palette = colours(material.first)
    built = [content for _, of_group in groups for content in of_group]
    sections = [
        ("charts", "Charts", "".join(_figure(figure, palette, drawn, {t.number for t in built}) for figure in drawn)),
        *_tables(groups, palette, numbers),
        ("gaps", "Not measured, and invalid", _gaps(rows, others=bool(material.absent))),
        ("where", "Measured where, and with what", sheets.platform(records)),
        ("fairness", "Fairness sheet", sheets.fairness(records)),
        ("checks", "Checks", _checks(records)),
        ("reading", "How to read the numbers", glossary(_HOW_TO_READ)),
        ("records", "Records", _records(records)),
    ]
    return document(
        title=title,
        eyebrow="anncestry: a report in which every number can be traced to its origin",
        # Written after the tables, though it stands before them: a number's address leads to its place in a table.
        opening=_lede(material.first, numbers, material.absent) + _facts(records),
        pages=pages(material.paper is not None),
        here="index.html",
        downloads="All numbers",
        files={
            **{"CSV": "numbers.csv", "JSON": "numbers.json", "Parquet": "numbers.parquet"},
            **({"latency distributions": "latencies.csv"} if latencies.there(df, records) else {}),
        },
        sections=sections,
        ancestry=ancestry(rows, records),
        charts=Charts([panel.spec for figure in drawn for panel in figure.panels], CHART_CONFIG, vega.bundle()),
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


def _lede(df: pd.DataFrame, numbers: Numbers, absent: Sequence[Absent]) -> str:
    """What was found, in sentences; every number in them is one of the data."""
    found = highlights(df)
    systems = sorted({item.system for item in found})
    datasets = sorted({item.dataset for item in found})
    cells = {name: [row for item in found for row in item.cells[name]] for name in ("valid", "invalid", "missing")}
    every = [row for rows in cells.values() for row in rows]
    state = (
        f"Of {_count(every, numbers)} cells, {_count(cells['valid'], numbers)} are measured and valid, "
        f"{_count(cells['invalid'], numbers)} invalid, and {_count(cells['missing'], numbers)} not measured"
    )
    opening = (
        f"{_and([*map(_name, systems)])} on {_and([*map(_name, datasets)])}. {state}."
        if found
        else "Nothing of what was asked can be measured here."
        if absent
        else "Nothing was asked to be measured."
    )
    if absent:
        opening += f' <a href="#absent">{text(sentence(absent))}</a>, each with its reason.'
    several = len({item.topology for item in found}) > 1
    places = sorted({(item.dataset, item.topology) for item in found})
    paragraphs = []
    for dataset, topology in places:
        here = [item for item in found if (item.dataset, item.topology) == (dataset, topology)]
        place = f"{dataset} ({topology})" if several else dataset
        sentences = [
            _sentence("ready to search after", [(i.system, i.load) for i in here], numbers),
            _sentence(f"median latency for the {HEADLINE_K} nearest", [(i.system, i.p50) for i in here], numbers),
            _sentence(f"recall@{HEADLINE_K}", [(i.system, i.recall) for i in here], numbers),
            _peak(here, numbers),
        ]
        verdict = _verdict(here)
        of = dimensions(dataset=dataset, topology=topology)
        paragraphs.append(f"<p{of}><b>{_name(place)}</b>: {'; '.join(filter(None, sentences))}.{verdict}</p>\n")
    return f'<p class="lede">{opening}</p>\n{"".join(paragraphs)}'


def _count(rows: Sequence[Row], numbers: Numbers) -> str:
    """How many cells these rows stand for; a link to the ancestry of all of them."""
    if not rows:
        return '<a class="count" href="#gaps">0</a>'
    return numbers.link(str(len(rows)), [row["number_id"] for row in rows])


def _sentence(what: str, values: Sequence[tuple[str, Row | None]], numbers: Numbers) -> str:
    said = [f"{_value(row, numbers)} ({_name(system)})" for system, row in values if row is not None]
    return f"{text(what)} {_and(said)}" if said else ""


def _peak(items: Sequence[Highlight], numbers: Numbers) -> str:
    said = [
        f"{_value(item.qps, numbers)} with {item.qps['clients']} client{'' if item.qps['clients'] == 1 else 's'}"
        f" ({_name(item.system)})"
        for item in items
        if item.qps is not None and item.qps["value"] is not None
    ]
    return f"most queries per second {_and(said)}" if said else ""


def _verdict(items: Sequence[Highlight]) -> str:
    """Which system answers faster, if that can be told."""
    rows = [item.p50 for item in items]
    if sum(row is not None and row["value"] is not None for row in rows) < 2:
        return ""
    best = best_of(rows, lower=True)
    if best is None:
        return " The medians differ by no more than noise, or noise is unknown: a tie."
    return f" The median of {_name(items[best].system)} is lower by more than noise."


def _value(row: Row | None, numbers: Numbers) -> str:
    if row is None:
        return "—"
    if row["value"] is None:
        return numbers.of(row, brief(row["reason"]))
    unit = "" if row["unit"] in ("fraction", "1/s") else f" {row['unit']}"
    return numbers.of(row, text_of(row["value"], row["std"], row["unit"]) + unit)


def _name(name: str) -> str:
    """A name in running text, kept on one line."""
    return f'<span class="name">{text(name)}</span>'


def _and(items: Sequence[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else "".join(items)


def _facts(records: Records) -> str:
    """The few facts that a reader looks for first."""
    loads = of_stage(records, "load")
    machine = merged(dict(flat(record.get("platform"))) for record in loads)
    created = sorted(str(record["created"]) for record in records.values())
    facts = {
        "Processor": " × ".join(filter(None, (machine.get("cores", ""), machine.get("cpu_model", "")))),
        "Memory": f"{machine['memory_gib']} GiB" if "memory_gib" in machine else "",
        "Kernel": machine.get("kernel", ""),
        "Records made": " to ".join(sorted({_minute(created[0]), _minute(created[-1])})) if created else "",
        "Code": _and(sorted({code_of(record) for record in records.values()})),
    }
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items() if value)
    return f'<dl class="facts">{items}</dl>\n' if items else ""


def _minute(created: str) -> str:
    """An ISO time to the minute; all records give theirs in UTC."""
    return f"{created[:16].replace('T', ' ')} UTC"


def _figure(figure: Figure, palette: Mapping[str, str], drawn: Sequence[Figure], known: set[str]) -> str:
    before = sum(len(other.panels) for other in drawn[: drawn.index(figure)])
    panels = "".join(
        f'<div class="panel"><h4>{text(panel.heading)}</h4>'
        f'<div class="chart" data-chart="{before + place}" role="group" aria-label="{text(panel.description)}">'
        "<noscript>Drawn by the script of this page; the numbers are in the tables.</noscript></div>"
        f"{downloads.links(downloads.images(figure, place), panel.heading)}</div>\n"
        for place, panel in enumerate(figure.panels)
    )
    where = f' Numbers: <a href="#table-{figure.table}">Table {figure.table}</a>.' if figure.table in known else ""
    glyphs = [
        _GLYPHS[SHAPES[place % len(SHAPES)]] if figure.legend == "shapes" else "■" for place in range(len(palette))
    ]
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
    # Where colours are of members, not of systems, a chart names them itself.
    explained = "" if figure.legend == "members" else legend(signs + more.get(figure.legend, []))
    return (
        f'<figure aria-labelledby="figure-{figure.name}"><h3 id="figure-{figure.name}">{text(figure.title)}</h3>\n'
        f'<figcaption class="note">{text(figure.caption)}{where}</figcaption>\n'
        f'{explained}<div class="panels">{panels}</div></figure>\n'
    )


def _tables(
    groups: Sequence[tuple[catalogue.Group, list[Table]]], palette: Mapping[str, str], numbers: Numbers
) -> Iterator[tuple[str, str, str]]:
    """A section for each group of tables."""
    about = _about_tables([content for _, of_group in groups for content in of_group])
    for group, of_group in groups:
        intro = f'<p class="note">{text(group.intro)}</p>\n' if group.intro else ""
        yield (
            group.name,
            group.heading,
            about
            + intro
            + "".join(
                table(t, palette, numbers) + downloads.links(downloads.names(t.number), f"Table {t.number}")
                for t in of_group
            ),
        )
        about = ""


def _about_tables(built: Sequence[Table]) -> str:
    """What holds for all tables of numbers."""
    if not any(cell.number_id or cell.parents or cell.source for t in built for row in t.rows for cell in row.cells):
        return ""
    beside = any(cell.published for content in built for row in content.rows for cell in row.cells)
    return (
        '<p class="note">Every number leads to its ancestry. <b>Bold</b>: better than each other system by more than'
        " noise; where nothing is bold, no difference is known to be larger"
        ' (<a href="#reading">how this is decided</a>).'
        + (" Small figures beneath are the paper's, as printed." if beside else "")
        + (
            f" {CLIENT_BOUND.strip()} Client-bound: more than half of what the client itself can send to a server that"
            " costs nothing; the number may be the client's limit, not the system's."
            if any(CLIENT_BOUND in cell.text for content in built for row in content.rows for cell in row.cells)
            else ""
        )
        + "</p>\n"
    )


def _gaps(rows: Sequence[Row], *, others: bool) -> str:
    """Which records are missing and which are invalid, each with its reason: failure is data.

    `others`: there are cells that are listed instead of measured, elsewhere on the page.
    """
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
    content = ""
    if invalid:
        items = "".join(
            f"<li{dimensions(**dict(zip(DIMENSIONS, place, strict=False)))}>"
            f"<b>{text(' · '.join(place))}</b>: {text(reason)}"
            f'<br><span class="note">without a number therefore: {text(", ".join(names))}</span></li>\n'
            for (*place, reason), names in invalid.items()
        )
        content += f'<h3>Invalid</h3>\n<ul class="invalid">{items}</ul>\n'
    if missing:
        head = ("Dataset", "System", "Topology", "Workload", "Stages without a record")
        lines = [(*place, workload or "—", ", ".join(stages)) for (*place, workload), stages in missing.items()]
        content += "<h3>Not measured</h3>\n" + sheet(head, lines, name="Cells not measured", kind="tight")
    every = "Every cell that can be" if others else "Every cell"
    return content or f"<p>{every} was measured, and every record is valid.</p>\n"


def _checks(records: Records) -> str:
    """Each gate: how many records had to pass it, and how many did."""
    counts: dict[tuple[str, str], list[bool]] = {}
    for record in records.values():
        for gate in record.get("gates", ()):
            counts.setdefault((str(record["stage"]), str(gate["gate"])), []).append(bool(gate["ok"]))
    if not counts:
        return ""
    rows = [(gate, stage, f"{sum(passed)} of {len(passed)}") for (stage, gate), passed in sorted(counts.items())]
    intro = '<p class="note">Gates that a record has to pass before any of its numbers is shown.</p>\n'
    return intro + sheet(("Gate", "Stage", "Records that passed"), rows, name="Gates", kind="tight")


def _records(records: Records) -> str:
    """The whole list, for those who read without a script or on paper."""
    if not records:
        return ""
    rows = [
        (path, str(record["stage"]), str(record["key"]), record["sha256"], str(record["created"]))
        for path, record in records.items()
    ]
    content = sheet(("Record", "Stage", "Key", "sha256", "Created"), rows, name="Records", kind="records mono")
    return f"<details><summary>The {len(rows)} records behind this page</summary>\n{content}</details>\n"
