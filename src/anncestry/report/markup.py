"""HTML, piece by piece: whatever comes from data goes through `text` or `inline_json` and stays text."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from anncestry.report.tables import Cell, Column, Row, Table


def text(value: object) -> str:
    """Anything as text that is safe in an element and in a quoted attribute."""
    return html.escape(str(value), quote=True)


def inline_json(name: str, value: Any) -> str:
    """A block of data for the page's script. Nothing in it can end the block, open a comment or be markup."""
    body = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        body = body.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{text(name)}">{body}</script>\n'


def script(source: str) -> tuple[str, str]:
    """A script element, and its hash for the page's content security policy; `source` is ours, never data."""
    if "</script" in source.lower() or "<!--" in source:
        raise ValueError("a script that would end its own element")
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"<script>{source}</script>\n", f"'sha256-{digest}'"


class Numbers:
    """Links from numbers to their ancestry; the first link to a number is also the place its address leads to."""

    def __init__(self) -> None:
        self._placed: set[str] = set()

    def link(self, shown: str, ids: Sequence[str]) -> str:
        """`shown` as a link to the ancestry of the number or, if computed, numbers it comes from."""
        known = [name for name in ids if name]
        if not known:
            return text(shown)
        place = ""
        if known[0] not in self._placed:
            self._placed.add(known[0])
            place = f' id="{text(known[0])}"'
        return f'<a class="num"{place} href="#{text(known[0])}" data-n="{text(" ".join(known))}">{text(shown)}</a>'

    def of(self, row: Row, shown: str) -> str:
        """A link to the ancestry of one row of the tidy frame."""
        return self.link(shown, [row["number_id"]])


AUDIT_PAGE = "audit.html"
"""Where the numbers that others published stand, beside the page of our own."""

DIMENSIONS = ("dataset", "system", "topology", "workload")
"""What the filter of a page chooses by."""


def dimensions(**values: str) -> str:
    """Attributes that tell the filter of what an element speaks: it is hidden while that isn't chosen."""
    return "".join(f' data-{name}="{text(value)}"' for name, value in values.items() if value)


def _of_labels(labels: Sequence[str], values: Sequence[str]) -> str:
    """The same for a row whose columns are labelled with the names of dimensions."""
    named = {label.lower(): value for label, value in zip(labels, values, strict=False)}
    return dimensions(**{name: named[name] for name in DIMENSIONS if named.get(name, "—") != "—"})


_MANY = 5
"""From so many labels on, long ones are broken into lines, for the numbers of a row to be seen without scrolling."""

_LONG = 24
"""A label of more letters is a long one."""

_WORDS = 28
"""A cell without a number that holds more letters is set as words, in lines."""


def table(content: Table, colours: Mapping[str, str], numbers: Numbers) -> str:
    """A table of the paper, in a container of its own to scroll in, with the figures of the paper beside ours."""
    note = f" {content.published_note}" if content.published_note else ""
    many = " many" if len(content.labels) >= _MANY else ""
    body = "".join(
        f"<tr{_of_labels(content.labels, row.labels)}>"
        + "".join(f'<th scope="row"{_long(label)}>{text(label)}</th>' for label in row.labels)
        + "".join(_cell(cell, numbers) for cell in row.cells)
        + "</tr>\n"
        for row in content.rows
    )
    return (
        f'<div class="scroll tables{many}" role="region" tabindex="0" aria-labelledby="caption-{text(content.number)}">'
        f'<table id="table-{text(content.number)}">\n<caption id="caption-{text(content.number)}">'
        f'<span class="words"><b>Table {text(content.number)}. {text(content.title)}.</b>'
        f" {text(content.caption)}{text(note)}</span></caption>\n"
        f"<thead>{_head(content.labels, content.columns, colours)}</thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def sheet(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, name: str, kind: str = "", systems: bool = False
) -> str:
    """A plain table of words: `head` and `rows` are text, the first of each row is its heading.

    With `systems`, each column but the first is that of the system that its heading names.
    """
    classes = f"sheet {kind}{' of-systems' if systems else ''}"
    columns = "".join(
        f'<th scope="col"{dimensions(system=label) if systems and place else ""}>{text(label)}</th>'
        for place, label in enumerate(head)
    )
    body = "".join(
        f'<tr{_of_labels(head, (first, *rest))}><th scope="row">{text(first)}</th>'
        + "".join(f"<td>{text(value)}</td>" for value in rest)
        + "</tr>\n"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(name)}"><table class="{text(classes)}">'
        f'<caption class="hidden">{text(name)}</caption><thead><tr>{columns}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Signs and what they mean: (sign, CSS colour, meaning)."""
    items = "".join(
        f'<li><span class="sign" aria-hidden="true" style="--c:{text(colour)}">{text(sign)}</span>{text(meaning)}</li>'
        for sign, colour, meaning in entries
    )
    return f'<ul class="legend">{items}</ul>\n'


def _head(labels: Sequence[str], columns: Sequence[Column], colours: Mapping[str, str]) -> str:
    """One row of headings, or two where columns form groups."""
    grouped = any(column.group for column in columns)
    span = ' rowspan="2"' if grouped else ""
    first = [f'<th scope="col"{span}>{text(label)}</th>' for label in labels]
    second = []
    for group, members in groupby(columns, key=lambda column: column.group):
        of_group = list(members)
        if not group:
            first += [
                f'<th scope="col" class="n{" long" if len(column.label) > _LONG else ""}"{span}>'
                f"{text(column.label)}{_unit(column.unit)}</th>"
                for column in of_group
            ]
            continue
        units = {column.unit for column in of_group}
        shared = units.pop() if len(units) == 1 else ""
        first.append(f'<th scope="colgroup" class="n" colspan="{len(of_group)}">{text(group)}{_unit(shared)}</th>')
        for column in of_group:
            unit = "" if shared else _unit(column.unit)
            sign = _sign(colours[column.system]) if column.system in colours else ""
            of = dimensions(system=column.system)
            second.append(f'<th scope="col" class="n of"{of}>{sign}{text(column.label)}{unit}</th>')
    return f"<tr>{''.join(first)}</tr>" + (f"<tr>{''.join(second)}</tr>" if second else "")


def _long(label: str) -> str:
    return ' class="long"' if len(label) > _LONG else ""


def _sign(colour: str) -> str:
    return f'<span class="sign" aria-hidden="true" style="--c:{text(colour)}">■</span>'


def _unit(unit: str) -> str:
    return f' <span class="unit">({text(unit)})</span>' if unit else ""


def _cell(cell: Cell, numbers: Numbers) -> str:
    kind = "n absent" if cell.problem else "n best" if cell.best else "n"
    if cell.value is None and len(cell.text) > _WORDS:
        kind += " words"
    shown = numbers.link(cell.text, cell.parents or [cell.number_id])
    if cell.source:
        shown = f'<a href="{AUDIT_PAGE}#{text(cell.source)}">{text(cell.text)}</a>'
    better = '<span class="hidden"> (better by more than noise)</span>' if cell.best else ""
    beside = f'<span class="published">paper {text(cell.published)}</span>' if cell.published else ""
    value = "" if cell.value is None else f' data-v="{float(cell.value)!r}"'
    return f'<td class="{kind}"{value}>{shown}{better}{beside}</td>'
