"""Templates of the pages (site/templates), and what they call: whatever comes from data stays text.

Templates escape every value that isn't Markup already. Python makes single elements and attributes only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from anncestry.report.tables import Column, Row

_SITE = Path(__file__).with_name("site")

AUDIT_PAGE = "audit.html"
"""Where the numbers that others published stand, beside the page of our own."""

DIMENSIONS = ("dataset", "system", "topology", "workload")
"""What the filter of a page chooses by."""


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


class Numbers:
    """Links from numbers to their ancestry; the first link to a number is also the place its address leads to."""

    def __init__(self) -> None:
        self._placed: set[str] = set()

    def link(self, shown: object, ids: Sequence[str]) -> Markup:
        """`shown` as a link to the ancestry of the number or, if computed, numbers it comes from."""
        ids = [name for name in ids if name]
        if not ids:
            return text(shown)
        place = ""
        if ids[0] not in self._placed:
            self._placed.add(ids[0])
            place = f' id="{text(ids[0])}"'
        return Markup(f'<a class="num"{place} href="#{text(ids[0])}" data-n="{text(" ".join(ids))}">{text(shown)}</a>')

    def of(self, row: Row, shown: str) -> Markup:
        """A link to the ancestry of one row of the tidy frame."""
        return self.link(shown, [row["number_id"]])


def dimensions(**values: str) -> Markup:
    """Attributes that tell the filter of what an element speaks: it is hidden while that isn't chosen."""
    return Markup("".join(f' data-{name}="{text(value)}"' for name, value in values.items() if value))


def dimensions_of(labels: Sequence[str], values: Sequence[str]) -> Markup:
    """The same for a row whose columns are labelled with the names of dimensions."""
    named = {label.lower(): value for label, value in zip(labels, values, strict=False)}
    return dimensions(**{name: named[name] for name in DIMENSIONS if named.get(name, "—") != "—"})


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
    dimensions=dimensions, dimensions_of=dimensions_of, headings=headings, AUDIT_PAGE=AUDIT_PAGE
)
_ENVIRONMENT.filters.update(listed=listed, as_json=as_json)


def render(template: str, **values: Any) -> str:
    """A template of site/templates with these values."""
    return _ENVIRONMENT.get_template(template).render(values)
