"""The page published.html: each published number that we measured, too, with the ratio and what can be said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry.provenance.records import replacing
from anncestry.report.audit import DOCUMENTS, Figure, Published
from anncestry.report.audit_page import Beside
from anncestry.report.markup import Numbers, dimensions, text
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of
from anncestry.report.shell import ancestry, document, pages
from anncestry.report.tables import Row, text_of

NAME = "published.html"

_HEAD = ("Dataset", "System", "Topology", "Where", "Of", "Published", "Ours", "Ratio", "Verdict")

_VERDICTS = {
    "within": "inside our interval",
    "higher": "ours is higher, beyond its interval",
    "lower": "ours is lower, beyond its interval",
    "unknown": "no interval of ours: can't be told",
}


def verdict(published: float, row: Mapping[str, Any]) -> str:
    """Where a published number lies by the interval of ours: within, higher, lower (ours is), unknown."""
    if row.get("low") is None or row.get("high") is None:
        return "unknown"
    if row["low"] <= published <= row["high"]:
        return "within"
    return "higher" if row["low"] > published else "lower"


def write(material: Material, facts: Published, out_dir: Path, *, title: str) -> Path:
    """Write published.html beside the page of results; returns its path."""
    path = out_dir / NAME
    with replacing(path) as temporary:
        temporary.write_text(_document(material, facts, title), encoding="utf-8")
    return path


def _document(material: Material, facts: Published, title: str) -> str:
    numbers, rows = Numbers(), rows_of(material.numbers)
    beside = Beside(rows, material.records)
    found = [(figure, row) for figure in facts.figures for row in beside.matches(figure)]
    sections = [
        (f"beside-{name}", words, _table([pair for pair in found if pair[0].document == name], words, numbers))
        for name, words in DOCUMENTS.items()
    ]
    shown = [row for row in rows if row["number_id"] in beside.shown]
    behind = {row["record"] for row in shown} & material.records.keys()
    return document(
        title=f"Measured beside published: {title}",
        eyebrow="anncestry: the same question, asked again",
        opening=_opening(found, facts, beside),
        downloads="",
        files={},
        sections=sections,
        ancestry=ancestry(shown, {path: material.records[path] for path in behind}),
        pages=pages(published=True),
        here=NAME,
    )


def _opening(found: Sequence[tuple[Figure, Row]], facts: Published, beside: Beside) -> str:
    counts = Counter(verdict(figure.number, row) for figure, row in found)
    said = "; ".join(f"{counts[name]} {words}" for name, words in _VERDICTS.items() if counts[name])
    machines = ", ".join(sorted(beside.machines)) or "none"
    covered = len({figure.id for figure, _ in found})
    return (
        f'<p class="lede">{covered} of {len(facts.figures)} published numbers have a measured counterpart'
        f"{': ' + said if said else ''}.</p>\n"
        f"<p>Machines: ours {text(machines)}; the paper's records name none. Versions, clients and machines differ, so"
        " a ratio compares all of these, and a verdict says only whether the published number lies within the interval"
        " of ours, which holds the noise of our runs and nothing else.</p>\n"
    )


def _table(found: Sequence[tuple[Figure, Row]], name: str, numbers: Numbers) -> str:
    if not found:
        return ""
    head = "".join(f'<th scope="col"{_numeric(label)}>{text(label)}</th>' for label in _HEAD)
    lines = "".join(_line(figure, row, numbers) for figure, row in found)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(name)}"><table class="tight">'
        f'<caption class="hidden">Measured beside {text(name)}</caption><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{lines}</tbody></table></div>\n"
    )


def _numeric(label: str) -> str:
    return ' class="n"' if label in ("Published", "Ours", "Ratio") else ""


def _line(figure: Figure, row: Row, numbers: Numbers) -> str:
    names = {name: str(row[name]) for name in ("dataset", "system", "topology")}
    ratio = row["value"] / figure.number if figure.number else None
    spread = f" ± {figure.std}" if figure.std else ""
    ours = numbers.of(row, text_of(row["value"], row["std"], row["unit"]))
    times = "" if ratio is None else f' data-v="{ratio!r}"'
    shown = "—" if ratio is None else numbers.link(f"{ratio:.2f}", [row["number_id"]])
    asked = [figure.metric, f"K = {figure.k}" if figure.k else "", "filtered" if figure.filtered == "1" else ""]
    asked += [f"{figure.clients} clients" if figure.clients else ""]
    return (
        f'<tr{dimensions(**names)}><th scope="row">{text(names["dataset"])}</th><td>{text(names["system"])}</td>'
        f"<td>{text(names['topology'])}</td>"
        f'<td><a href="audit.html#{text(figure.id)}">{text(figure.place)}</a></td>'
        f"<td>{text(', '.join(filter(None, asked)))}</td>"
        f'<td class="n" data-v="{figure.number!r}"><a href="audit.html#{text(figure.id)}">'
        f"{text(figure.value + spread)}</a> {text(figure.unit)}</td>"
        f'<td class="n" data-v="{float(row["value"])!r}">{ours} {text(row["unit"])}</td>'
        f'<td class="n"{times}>{shown}</td>'
        f"<td>{text(_VERDICTS[verdict(figure.number, row)])}</td></tr>\n"
    )
