"""What stands beside the pages for download: every table in five formats, every chart as SVG and PNG.

tables/NUMBER.{csv,json,parquet,tex,md} and charts/FIGURE-PLACE.{svg,png}; equal tables and charts give equal files.
CSV and Parquet hold a row a cell, with its number's id, so that no number leaves its ancestry behind; LaTeX (booktabs)
and Markdown hold the table as it is read.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import vl_convert

from anncestry.provenance.records import replacing, write_json
from anncestry.report.charts import Figure
from anncestry.report.latex import as_tex, heading
from anncestry.report.numbers import inert
from anncestry.report.tables import Cell, Table

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


def write(out_dir: Path, tables: Sequence[Table], figures: Sequence[Figure], config: Mapping[str, Any]) -> None:
    """Write all of them under `out_dir`; `config` is the charts' common Vega-Lite config."""
    for table in tables:
        _write_table(out_dir, table)
    paper = _in_ink(config)
    for figure in figures:
        for place, panel in enumerate(figure.panels):
            files = {suffix: out_dir / name for suffix, name in images(figure, place).items()}
            alone = _standalone(panel.spec, f"{figure.title}: {panel.heading}", paper)
            svg, png = _drawn(json.dumps(alone, sort_keys=True))
            files["svg"].parent.mkdir(parents=True, exist_ok=True)
            with replacing(files["svg"]) as temporary:
                temporary.write_text(svg, encoding="utf-8")
            with replacing(files["png"]) as temporary:
                temporary.write_bytes(png)


@lru_cache(maxsize=512)
def _drawn(spec: str) -> tuple[str, bytes]:
    """A chart as SVG and PNG."""
    svg = _NO_XML.sub(" ", vl_convert.vegalite_to_svg(spec))
    return svg, bytes(vl_convert.svg_to_png(svg, scale=_PNG_SCALE))


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "table"


def _write_table(out_dir: Path, table: Table) -> None:
    files = {suffix: out_dir / name for suffix, name in names(table.number).items()}
    files["csv"].parent.mkdir(parents=True, exist_ok=True)
    frame = _frame(table)
    with replacing(files["csv"]) as temporary:
        inert(frame).to_csv(temporary, index=False, lineterminator="\n")
    with replacing(files["parquet"]) as temporary:
        content = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        pq.write_table(content, temporary, compression="zstd")
    write_json(files["json"], _plain(table))
    with replacing(files["tex"]) as temporary:
        temporary.write_text(as_tex(table, slug(table.number)), encoding="utf-8")
    with replacing(files["md"]) as temporary:
        temporary.write_text(as_markdown(table), encoding="utf-8")


def _frame(table: Table) -> pd.DataFrame:
    """A row a cell: its labels, its column, what it shows, its value, and the ids of the numbers behind it."""
    rows = [
        [
            *row.labels,
            *(column.group, column.label, column.unit, column.system),
            *(cell.text, cell.value, cell.std, " ".join(_ids(cell)), cell.published, cell.best, cell.problem),
        ]
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    ]
    # Labels may bear the name of another column ("System"): those of the table come first, in its own spelling.
    words = ("group", "column", "unit", "of_system", "shown")
    columns = [*table.labels, *words, "value", "std", "numbers", "published", "best", "problem"]
    types = dict.fromkeys((*table.labels, *words, "numbers", "published", "problem"), "str")
    return pd.DataFrame(rows, columns=columns).astype({**types, "value": "float64", "std": "float64", "best": "bool"})


def _ids(cell: Cell) -> list[str]:
    return [name for name in (cell.parents or (cell.number_id,)) if name]


def _plain(table: Table) -> dict[str, Any]:
    return {
        "table": table.number,
        "title": table.title,
        "caption": table.caption,
        "published_note": table.published_note,
        "labels": list(table.labels),
        "columns": [vars(column) for column in table.columns],
        "rows": [
            {
                "labels": list(row.labels),
                "cells": [
                    {
                        "shown": cell.text,
                        "value": cell.value,
                        "std": cell.std,
                        "numbers": _ids(cell),
                        "published": cell.published,
                        "best": cell.best,
                        "problem": cell.problem,
                    }
                    for cell in row.cells
                ],
            }
            for row in table.rows
        ],
    }


def as_markdown(table: Table) -> str:
    """The table for Markdown, its caption above it."""
    headings = [
        *map(markdown, table.labels),
        *(
            markdown(f"{column.group}: {heading(column)}" if column.group else heading(column))
            for column in table.columns
        ),
    ]
    rules = ["---"] * len(table.labels) + ["--:"] * len(table.columns)
    lines = [
        f"**Table {markdown(table.number)}. {markdown(table.title)}.** {markdown(table.caption)}",
        "",
        _line(headings),
        _line(rules),
    ]
    for row in table.rows:
        cells = [f"**{markdown(cell.text)}**" if cell.best else markdown(cell.text) for cell in row.cells]
        lines.append(_line([*map(markdown, row.labels), *cells]))
    return "\n".join([*lines, ""])


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _in_ink(config: Mapping[str, Any]) -> dict[str, Any]:
    """The pages' config for a white ground: what takes its ink from the page gets one of its own."""
    plain: dict[str, Any] = json.loads(json.dumps(config).replace("currentColor", _INK))
    # A font that vl-convert brings along: letters are as wide on every machine.
    return {**plain, "background": "#ffffff", "font": "Liberation Sans, Arial, sans-serif"}


def _standalone(spec: Mapping[str, Any], title: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A chart that stands alone: its own width, title, ink and legend of systems."""
    alone: dict[str, Any] = json.loads(json.dumps(spec).replace("currentColor", _INK))
    alone = copy.deepcopy({**alone, "title": title, "padding": 12, "config": {**alone.get("config", {}), **config}})
    if alone.get("width") == "container":
        alone["width"] = _WIDTH_PX
    for colour in _colours(alone):
        if colour.get("legend", "") is None:
            colour["legend"] = {"title": None, "orient": "bottom", "columns": 3}
    return alone


def _colours(value: Any) -> Iterator[dict[str, Any]]:
    """The colour encodings of a spec, of all its layers."""
    if isinstance(value, dict):
        encoding = value.get("encoding")
        if isinstance(encoding, dict) and "field" in encoding.get("color", {}):
            yield encoding["color"]
        for name in ("layer", "hconcat", "vconcat", "concat"):
            for inner in value.get(name, ()):
                yield from _colours(inner)
        yield from _colours(value.get("spec"))
