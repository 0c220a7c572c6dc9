"""The page of cells, cells.html: of each its state and why, the keys of its records, its gates, what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anncestry.cells import absent
from anncestry.provenance.records import replacing
from anncestry.report.absence import ABSENT, LOAD_INVALID, MISSING
from anncestry.report.facts import flat
from anncestry.report.markup import DIMENSIONS, dimensions, text
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of
from anncestry.report.shell import Records, document, pages

NAME = "cells.html"
STATES = ("valid", "invalid", "not measured", *absent.STATES)

_STAGES = ("load", "query", "recall")


@dataclass
class _Cell:
    """One dataset × system × topology × workload, of one build."""

    place: tuple[str, ...]
    build: int | None
    records: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    number: str = ""
    never: str = ""
    """Of one that is listed instead of measured, its state."""

    @property
    def state(self) -> str:
        if self.never:
            return self.never
        if any(reason not in MISSING for reason in self.reasons):
            return "invalid"
        return "not measured" if self.reasons else "valid"


def write(material: Material, out_dir: Path, *, title: str) -> Path:
    """Write cells.html beside the page of results; returns its path."""
    path = out_dir / NAME
    with replacing(path) as temporary:
        temporary.write_text(_document(material, title), encoding="utf-8")
    return path


def _document(material: Material, title: str) -> str:
    cells = _cells(material)
    counts = Counter(cell.state for cell in cells)
    # Cells of the last two states are listed where an experiment asks for it: else nothing is said of them.
    said = ", ".join(f"{counts[state]} {state}" for state in STATES if state not in absent.STATES or counts[state])
    opening = (
        f'<p class="lede">{len(cells)} cells: {said}.</p>\n'
        "<p>A cell is one dataset, system, topology and workload. Its load, its queries and their recall are a record"
        " each, under the key of everything that could change it. A record that fails a gate is invalid, and no number"
        " of it is shown.</p>\n"
    )
    sections = [
        ("cells", "Cells", _table(cells, material.records)),
        ("records", "Gates and specs", _specs(material.records)),
    ]
    return document(
        title=f"Cells: {title}",
        eyebrow="anncestry: what was asked to be measured, and what came of it",
        opening=opening,
        downloads="",
        files={},
        sections=sections,
        ancestry={"columns": ["number_id", *DIMENSIONS], "rows": [], "records": {}},
        pages=pages(material.paper is not None),
        here=NAME,
    )


def _cells(material: Material) -> list[_Cell]:
    """All cells, in the order of the tidy table; then those that are listed instead of measured."""
    found: dict[tuple[Any, ...], _Cell] = {}
    loads: dict[tuple[Any, ...], str] = {}
    for row in rows_of(material.numbers):
        place = tuple(str(row[name]) for name in DIMENSIONS)
        if not row["workload"]:
            loads.setdefault((*place[:3], row["rebuild"]), row["record"])
            continue
        cell = found.setdefault((*place, row["rebuild"]), _Cell(place, row["rebuild"]))
        stage = "recall" if row["phase"] == "recall" else "query"
        cell.records.setdefault(stage, row["record"])
        if row["reason"] and row["reason"] not in ABSENT:
            cell.reasons.setdefault(row["reason"])
        if not cell.number and row["metric"] == "p50_ms":
            cell.number = row["number_id"]
    for cell in found.values():
        load = loads.get((*cell.place[:3], cell.build)) or loads.get((*cell.place[:3], None))
        if load:
            cell.records["load"] = load
    return [*found.values(), *map(_listed, material.absent)]


def _listed(cell: absent.Absent) -> _Cell:
    place = (cell.dataset, cell.system, cell.topology, cell.workload)
    return _Cell(place, None, reasons={cell.reason: None}, never=cell.state)


def _table(cells: list[_Cell], records: Records) -> str:
    head = ("Dataset", "System", "Topology", "Workload", "State", "Why", "Gates passed", "Keys", "Numbers")
    builds = Counter(cell.place for cell in cells)
    lines = "".join(_line(cell, records, several=builds[cell.place] > 1) for cell in cells)
    columns = "".join(f'<th scope="col">{text(label)}</th>' for label in head)
    return (
        '<div class="scroll" role="region" tabindex="0" aria-label="Cells"><table class="sheet tight">'
        f'<caption class="hidden">Cells</caption><thead><tr>{columns}</tr></thead>\n'
        f"<tbody>{lines}</tbody></table></div>\n"
    )


def _line(cell: _Cell, records: Records, *, several: bool) -> str:
    """A row; which build it is of is said where there are several."""
    gates = [gate for path in cell.records.values() if path in records for gate in records[path].get("gates", ())]
    passed = f"{sum(bool(gate['ok']) for gate in gates)} of {len(gates)}" if gates else "—"
    keys = "<br>".join(_key(stage, cell.records[stage], records) for stage in _STAGES if stage in cell.records)
    why = "; ".join(reason.removeprefix(LOAD_INVALID) for reason in cell.reasons) or "—"
    workload = cell.place[3] + (f" (build {cell.build})" if several and cell.build else "")
    mark = ' class="absent"' if cell.state == "invalid" else ""
    number = f'<a href="index.html#{text(cell.number)}">p50</a>' if cell.number and cell.state == "valid" else "—"
    names = "".join(f"<td>{text(name)}</td>" for name in (*cell.place[1:3], workload))
    return (
        f'<tr data-cell{dimensions(**dict(zip(DIMENSIONS, cell.place, strict=True)))}><th scope="row">'
        f"{text(cell.place[0])}</th>{names}<td{mark}>{cell.state}</td><td>{text(why)}</td><td>{passed}</td>"
        f'<td class="mono">{keys}</td><td>{number}</td></tr>\n'
    )


def _key(stage: str, path: str, records: Records) -> str:
    """A record's key, as a link to its gates and spec if it is there."""
    key = Path(path).stem.rpartition("@")[2]
    shown = f'<a href="#{stage}-{text(key)}">{text(key)}</a>' if path in records else text(key)
    return f'<span class="name">{stage} {shown}</span>'


def _specs(records: Records) -> str:
    return "".join(_spec(path, record) for path, record in records.items() if record["stage"] in _STAGES)


def _spec(path: str, record: Mapping[str, Any]) -> str:
    stage, key = str(record["stage"]), str(record["key"])
    failed = sum(not gate["ok"] for gate in record.get("gates", ()))
    gates = "".join(
        f"<li{'' if gate['ok'] else ' class=absent'}>{'✓' if gate['ok'] else '✗'} {text(gate['gate'])}:"
        f" {text(gate['detail'])}</li>"
        for gate in record.get("gates", ())
    )
    spec = "\n".join(f"{name}: {value}" for name, value in flat(record.get("spec")))
    place = " · ".join(name for _, name in _names(record))
    verdict = f", {failed} gate{'' if failed == 1 else 's'} failed" if failed else ""
    return (
        f'<details id="{text(stage)}-{text(key)}"{dimensions(**dict(_names(record)))}>'
        f"<summary>{text(stage)} {text(key)}{verdict}"
        + (f' <span class="note">{text(place)}</span>' if place else "")
        + f'</summary>\n<p class="mono">{text(path)}<br>sha256 {text(record["sha256"])}</p>\n'
        + (f'<ul class="gates">{gates}</ul>\n' if gates else "")
        + f'<pre class="mono">{text(spec)}</pre></details>\n'
    )


def _names(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The dimensions that a record's own spec names."""
    for name in DIMENSIONS:
        part = (record.get("spec") or {}).get(name)
        if isinstance(part, Mapping) and part.get("name"):
            yield name, str(part["name"])
