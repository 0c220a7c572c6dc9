"""What stands beside the pages for download: every table in five formats, every chart as SVG and PNG, latencies.

tables/NUMBER.{csv,json,parquet,tex,md} and charts/FIGURE-PLACE.{svg,png}; equal tables and charts give equal files.
CSV and Parquet hold a row a cell, with its number's id, so that no number leaves its ancestry behind; LaTeX (booktabs)
and Markdown hold the table as it is read. report.txt holds the summary and all tables as plain text.
"""

from __future__ import annotations

import csv
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import vl_convert
from tabulate import tabulate  # type: ignore[import-untyped]

from anncestry.provenance.records import replacing, write_json
from anncestry.report.charts import Figure
from anncestry.report.model.cells import Cell, Row, Table, marks_in
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import inert
from anncestry.report.site.latex import as_tex, heading

FORMATS = ("csv", "json", "parquet", "tex", "md")
IMAGES = ("svg", "png")

_INK = "#1c2127"
_WIDTH_PX = 480
_PNG_SCALE = 2.0

# XML has no signs for these; the description of a mark may hold them, as a name of a system may.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def markdown(value: object) -> str:
    """Anything as text that Markdown prints as it is, in a cell of a table, too."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(value).splitlines()))


def names(number: str) -> dict[str, str]:
    """The files of a table: format → path beside the page."""
    return {suffix: f"tables/{slug(number)}.{suffix}" for suffix in FORMATS}


def images(figure: Figure, place: int) -> dict[str, str]:
    """The files of the `place`-th panel of a figure: format → path beside the page."""
    return {suffix: f"charts/{slug(figure.name)}-{place + 1}.{suffix}" for suffix in IMAGES}


_CELL = ("dataset", "system", "topology", "workload", "rebuild", "arm")
_LATENCIES = (*_CELL, "value_ms", "percentile", "total_count", "1/(1-percentile)")
"""Columns of HdrHistogram's percentile output, after those of a cell."""


def write_latencies(material: Material, out_dir: Path) -> bool:
    """Write latencies.csv, if any valid cell has a distribution of latencies; returns whether.

    It holds each bucket's upper end, and the share and number of requests up to it. A request that failed has an
    infinite latency, as in the percentiles: those of a cell are its last line.
    """
    histograms = list(_histograms(material))
    if not histograms:
        return False
    write_csv(out_dir / "latencies.csv", _LATENCIES, _shares(histograms))
    return True


def write_csv(path: Path, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write these lines below the names of their columns."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(lines)


def _shares(histograms: Iterable[tuple[Row, Mapping[str, Any]]]) -> Iterator[list[object]]:
    for row, record in histograms:
        place = [row[name] for name in _CELL]
        histogram, failed = record["histogram"], record["summary"]["errors"]["value"]
        total, below = sum(histogram["counts"]) + failed, 0
        last = [(math.inf, failed)] if failed else []
        for upper_ns, count in (*zip(histogram["upper_ns"], histogram["counts"], strict=True), *last):
            below += count
            inverse = total / (total - below) if below < total else "inf"
            yield [*place, upper_ns / 1e6, below / total, below, inverse]


def _histograms(material: Material) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    for row in material.all_rows:
        if row["metric"] == "p50_ms" and row["value"] is not None:
            record = material.records.get(row["record"]) or {}
            if record.get("histogram", {}).get("counts"):
                yield row, record


def write(out_dir: Path, tables: Sequence[Table], figures: Sequence[Figure], config: Mapping[str, Any]) -> None:
    """Write all of them under `out_dir`; `config` is the charts' common Vega-Lite config."""
    for table in tables:
        _write_table(out_dir, table)
    # A font that vl-convert brings along: letters are as wide on every machine.
    paper = {**_in_ink(config), "background": "#ffffff", "font": "Liberation Sans, Arial, sans-serif"}
    for figure in figures:
        for place, panel in enumerate(figure.panels):
            files = {suffix: out_dir / name for suffix, name in images(figure, place).items()}
            alone = _standalone(panel.spec, f"{figure.title}: {panel.heading}", paper)
            svg, png = _drawn(json.dumps(alone, sort_keys=True))
            with replacing(files["svg"]) as temporary:
                temporary.write_text(svg, encoding="utf-8")
            with replacing(files["png"]) as temporary:
                temporary.write_bytes(png)


@lru_cache(maxsize=512)
def _drawn(spec: str) -> tuple[str, bytes]:
    svg = _NO_XML.sub(" ", vl_convert.vegalite_to_svg(spec))
    return svg, bytes(vl_convert.svg_to_png(svg, scale=_PNG_SCALE))


def slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "table"


def _write_table(out_dir: Path, table: Table) -> None:
    files = {suffix: out_dir / name for suffix, name in names(table.number).items()}
    frame = _frame(table)
    write_json(files["json"], _plain(table))
    with replacing(files["csv"]) as temporary:
        inert(frame).to_csv(temporary, index=False, lineterminator="\n")
    with replacing(files["parquet"]) as temporary:
        content = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        pq.write_table(content, temporary, compression="zstd")
    for suffix, text in (("tex", as_tex(table, slug(table.number))), ("md", as_markdown(table))):
        with replacing(files[suffix]) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _contents(cell: Cell) -> dict[str, Any]:
    """What a cell shows, its value, and the ids of the numbers behind it."""
    numbers = [name for name in (cell.parents or (cell.number_id,)) if name]
    values = {"shown": cell.text, "value": cell.value, "std": cell.std, "numbers": numbers}
    return {**values, "published": cell.published, "best": cell.best, "verdict": cell.verdict, "problem": cell.problem}


def _frame(table: Table) -> pd.DataFrame:
    """A row a cell: its labels, its column, and its contents."""
    # Labels may bear the name of another column ("System"): those of the table come first, in its own spelling.
    rows = [
        [*row.labels, column.group, column.label, column.unit, column.system, *_contents(cell).values()]
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    ]
    columns = [*table.labels, "group", "column", "unit", "of_system", *_contents(Cell(""))]
    others = {"value": "float64", "std": "float64", "best": "bool"}
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(numbers=frame["numbers"].map(" ".join)).astype({**dict.fromkeys(columns, "str"), **others})


def _plain(table: Table) -> dict[str, Any]:
    return {
        "table": table.number,
        "title": table.title,
        "caption": table.caption,
        "published_note": table.published_note,
        "labels": list(table.labels),
        "columns": [vars(column) for column in table.columns],
        "rows": [{"labels": list(row.labels), "cells": [*map(_contents, row.cells)]} for row in table.rows],
    }


def as_markdown(table: Table) -> str:
    """The table for Markdown, its caption above it."""
    columns = [f"{column.group}: {heading(column)}" if column.group else heading(column) for column in table.columns]
    lines = [[*map(markdown, (*table.labels, *columns))], [*["---"] * len(table.labels), *["--:"] * len(table.columns)]]
    for row in table.rows:
        cells = [f"**{markdown(cell.text)}**" if cell.best else markdown(cell.text) for cell in row.cells]
        lines.append([*map(markdown, row.labels), *cells])
    caption = f"**Table {markdown(table.number)}. {markdown(table.title)}.** {markdown(table.caption)}"
    return "\n".join([caption, "", *(f"| {' | '.join(parts)} |" for parts in lines), ""])


def write_text(out_dir: Path, title: str, opening: str, tables: Sequence[Table]) -> None:
    """Write report.txt: what the terminal prints at the end of a run, and every table, each number with its marks."""
    texts = [*map(as_text, tables)]
    said = [f"{sign} {words}" for sign, words in marks_in(texts)]
    said = ["* better than every other system's, by more than noise", "(a to b): the 95 % interval", *said]
    key = "\n".join(textwrap.fill(line, 100, subsequent_indent="  ") for line in said)
    parts = [f"{title}\n{'=' * len(title)}", opening.rstrip("\n"), key, *texts]
    with replacing(out_dir / "report.txt") as temporary:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def as_text(table: Table) -> str:
    """The table for a terminal or a mail; a * marks what is better than every other system's."""
    columns = [f"{column.group}: {heading(column)}" if column.group else heading(column) for column in table.columns]
    body = [[*row.labels, *(f"{cell.text} *" if cell.best else cell.text for cell in row.cells)] for row in table.rows]
    lines = [
        [" ".join(_NO_XML.sub(" ", text).splitlines()) for text in line] for line in ([*table.labels, *columns], *body)
    ]
    aligned = ["left"] * len(table.labels) + ["right"] * len(table.columns)
    shown = tabulate(lines[1:], lines[0], tablefmt="simple", disable_numparse=True, colalign=aligned)
    head = textwrap.fill(f"Table {table.number}. {table.title}. {table.caption}", 100)
    return f"{head}\n\n{shown}"


def _in_ink(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy for a white ground: what takes its ink from the page gets one of its own."""
    inked: dict[str, Any] = json.loads(json.dumps(spec).replace("currentColor", _INK))
    return inked


def _standalone(spec: Mapping[str, Any], title: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A chart that stands alone: its own width, title, ink and legend of systems."""
    alone = _in_ink(spec)
    alone |= {"title": title, "padding": 12, "config": {**alone.get("config", {}), **config}}
    if alone.get("width") == "container":
        alone["width"] = _WIDTH_PX
    for layer in (alone, *alone.get("layer", ())):
        colour = layer.get("encoding", {}).get("color", {})
        if "field" in colour and colour.get("legend", "") is None:
            colour["legend"] = {"title": None, "orient": "bottom", "columns": 3}
    return alone
