"""What all pages are made of: their templates (site/templates), what these call, scripts, and the ancestry of numbers.

A page is one file that fetches nothing; its content security policy admits only the scripts that were put there.
Templates escape every value that isn't Markup already: whatever comes from data stays text. Python makes single
elements and attributes only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from anncestry import user_cache
from anncestry.provenance.records import replacing
from anncestry.report.model.cells import Column, Row, Table, text_of
from anncestry.report.model.records import Records, codes_of

_SITE = Path(__file__).parent
_ENTRY = "window.vegaEmbed = vegaEmbed;"

AUDIT_PAGE = "audit.html"
"""Where the numbers that others published stand, beside the page of our own."""

DIMENSIONS = ("dataset", "system", "topology", "workload")
"""What the filter of a page chooses by."""

_WIDE_LABELS = 3
"""So many labels make a table wide."""


def text(value: object) -> Markup:
    """Anything as text that is safe in an element and in a quoted attribute; Markup stays as it is."""
    # Not markupsafe.escape: it spells quotes in another way, and a page would change its bytes.
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def listed(items: Sequence[object]) -> Markup:
    """Items as in a sentence: "a", "a and b", "a, b and c"."""
    texts = [text(item) for item in items]
    return Markup(f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts))


def as_json(value: object) -> Markup:
    """JSON for a script element. Nothing in it can end the element, open a comment or be markup."""
    body = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        body = body.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(body)


def packed(content: str) -> Markup:
    """Text for a script element, a fifth of its size or less: gzip in base64, which page.js unpacks.

    By the library that comes with pyarrow, so that equal text gives equal bytes whatever the machine has.
    """
    small: bytes = pyarrow.Codec("gzip", compression_level=9).compress(content.encode(), asbytes=True)
    return Markup(base64.b64encode(small).decode())


class Script(NamedTuple):
    """The content of a script element, and its sha256 in base64 for the page's content security policy."""

    source: Markup
    digest: str


def script(source: str) -> Script:
    """`source` as a script of a page; it is ours, never data. ValueError if it would end its own element."""
    if "</script" in source.lower() or "<!--" in source:
        raise ValueError("a script that would end its own element")
    return Script(Markup(source), base64.b64encode(hashlib.sha256(source.encode()).digest()).decode())


def static(name: str) -> Markup:
    """A file of site/static, to stand on lines of its own in its element."""
    return Markup(f"\n{(_SITE / 'static' / name).read_text(encoding='utf-8')}")


def _in_lines(shown: object) -> Markup:
    """What is said of a number; where there is no room, what is in brackets behind it has a line of its own."""
    head, _, rest = ("", "", "") if isinstance(shown, Markup) else str(shown).partition(" (")
    if not head[:1].isdigit() or not rest.endswith(")"):
        return text(shown)
    return Markup(f'<span class="name">{text(head)}</span> <span class="name">({text(rest)}</span>')


class Numbers:
    """Links from numbers to their ancestry; the first link to a number is also the place its address leads to."""

    def __init__(self) -> None:
        self._placed: set[str] = set()

    def link(self, shown: object, ids: Sequence[str]) -> Markup:
        """`shown` as a link to the ancestry of the number or, if computed, numbers it comes from."""
        ids = [name for name in ids if name]
        if not ids:
            return text(shown)
        place, several = "", ""
        if ids[0] not in self._placed:
            self._placed.add(ids[0])
            place = f' id="{text(ids[0])}"'
        if len(ids) > 1:
            several = f' data-n="{text(" ".join(ids))}"'
        return Markup(f'<a class="num"{place} href="#{text(ids[0])}"{several}>{_in_lines(shown)}</a>')

    def of(self, row: Row, shown: str) -> Markup:
        return self.link(shown, [row["number_id"]])


def dimensions(**values: str) -> Markup:
    """Attributes that tell the filter of what an element speaks: it is hidden while that isn't chosen."""
    return Markup("".join(f' data-{name}="{text(value)}"' for name, value in values.items() if value))


def dimensions_of(labels: Sequence[str], values: Sequence[str]) -> Markup:
    """The same for a row whose columns are labelled with the names of dimensions."""
    named = {label.lower(): value for label, value in zip(labels, values, strict=False)}
    return dimensions(**{name: named[name] for name in DIMENSIONS if named.get(name, "—") != "—"})


def same_labels(table: Table) -> dict[int, str]:
    """Labels that every row of a wide table has, by their places: said once above it, they need no column.

    The last label always has one, so that a row has a heading.
    """
    if len(table.labels) < _WIDE_LABELS or len(table.rows) < 2:
        return {}
    values = [{row.labels[place] for row in table.rows} for place in range(len(table.labels) - 1)]
    return {place: of.pop() for place, of in enumerate(values) if len(of) == 1}


@dataclass(frozen=True)
class Sheet:
    """A plain table of words; the first of each row is its heading. `kind` is its CSS class, `name` is read aloud.

    With `systems`, each column but the first is that of the system that its heading names.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    name: str
    kind: str = ""
    systems: bool = False


class _Heading(NamedTuple):
    """Neighbouring columns of one group, with the unit that all of them have; empty where they differ."""

    group: str
    unit: str
    columns: list[Column]


def headings(columns: Sequence[Column]) -> list[_Heading]:
    """The groups of a table's columns, from left to right; columns without a group have an empty one."""
    found = []
    for group, of_group in groupby(columns, key=lambda column: column.group):
        members = list(of_group)
        units = {column.unit for column in members}
        found.append(_Heading(group, units.pop() if len(units) == 1 else "", members))
    return found


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_SITE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=text,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    extensions=["jinja2.ext.do"],
)
_ENVIRONMENT.globals.update(
    dimensions=dimensions,
    dimensions_of=dimensions_of,
    same_labels=same_labels,
    headings=headings,
    AUDIT_PAGE=AUDIT_PAGE,
)
_ENVIRONMENT.filters.update(listed=listed, as_json=as_json, packed=packed)


@dataclass(frozen=True)
class Charts:
    """Vega-Lite specs in the order of their places on the page, what they have in common, and the script that draws."""

    specs: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    bundle: str = ""


def write(
    path: Path,
    template: str | Path,
    *,
    title: str,
    pages: Mapping[str, str] | None = None,
    ancestry: Mapping[str, Any] | None = None,
    charts: Charts | None = None,
    **content: Any,
) -> Path:
    """Write a page of this template (one of site/templates, or a file), which shows `content`; returns its path.

    `pages` are all pages of the site, file → name; `ancestry` is that of `ancestry`, None where no number is shown.
    """
    charts = charts or Charts()
    if isinstance(template, Path):
        whole = _ENVIRONMENT.from_string(template.read_text(encoding="utf-8"))
    else:
        whole = _ENVIRONMENT.get_template(template)
    page = whole.render(
        title=title,
        here=path.name,
        pages=pages or {},
        ancestry=ancestry or {"columns": ["number_id", *DIMENSIONS], "values": [], "records": {}},
        charts=charts,
        script=script(static("page.js")),
        drawing=script(charts.bundle) if charts.bundle else None,
        style=static("page.css"),
        contents=[],
        **content,
    )
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def ancestry(rows: Sequence[Row], records: Records) -> dict[str, Any]:
    """What a page's script shows of a number; column names once, records once.

    `values` are those of each column, in the order of `columns`: so they pack to half the size of rows.
    """
    columns = [
        *("number_id", "metric", "unit", "phase", "reason", "dataset", "system", "topology", "workload"),
        *("k", "nq", "clients", "filter", "runs", "key", "record"),
    ]
    lines = []
    for row in rows:
        has = row["value"] is not None
        shown = f"{text_of(row['value'], row['std'], row['unit'])} {row['unit']}" if has else "no number"
        if has and row.get("low") is not None:
            low, high = (text_of(row[end], None, row["unit"]) for end in ("low", "high"))
            shown += f", {low} to {high} ({row['interval']})"
        shown += f"; {row['note']}" if row["note"] else ""
        lines.append([*(row[name] for name in columns), shown])
    return {
        "columns": [*columns, "shown"],
        "values": [list(values) for values in zip(*lines, strict=True)],
        "records": {
            path: {
                "sha256": record["sha256"],
                "created": str(record["created"]),
                "code": "; ".join(codes_of(record)),
                "parts": [
                    [f"{kind.removesuffix('s')}: {label}", str(entry["path"]), str(entry["sha256"])]
                    for kind in ("inputs", "outputs")
                    for label, entry in (record.get(kind) or {}).items()
                ],
            }
            # Sorted: a page is the same bytes whoever draws it, or verify could not compare.
            for path, record in sorted(records.items())
        },
    }


@cache
def bundle() -> str:
    """Vega, Vega-Lite and vega-embed, offline, as one script; deterministic for a version of vl-convert.

    Bundling takes seconds, so the user's cache keeps it, in a file named by its digest: one that was changed or cut is
    made anew, as is one that can't be read; a cache that can't be written costs the time only.
    """
    made = ""
    with suppress(OSError):
        of = f"{version('vl-convert-python')}-{hashlib.sha256(_ENTRY.encode()).hexdigest()[:12]}"
        folder = user_cache.folder("vega", of)
        for path in sorted(folder.glob("*.js")):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == path.stem:
                return content.decode()
            path.unlink()
        made = str(vl_convert.javascript_bundle(_ENTRY))
        whole = folder / f"{os.getpid()}"
        whole.write_bytes(made.encode())
        whole.replace(folder / f"{hashlib.sha256(made.encode()).hexdigest()}.js")
    return made or str(vl_convert.javascript_bundle(_ENTRY))
