"""The page of cells, cells.html: of each its state and why, the keys of its records, its gates, what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from anncestry.cells import absent
from anncestry.report import shell
from anncestry.report.absence import ABSENT, LOAD_INVALID, MISSING
from anncestry.report.facts import flat
from anncestry.report.markup import DIMENSIONS
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of
from anncestry.report.shell import Records

NAME = "cells.html"
STATES = ("valid", "invalid", "not measured", *absent.STATES)

_STAGES = ("load", "query", "recall")


class _Record(NamedTuple):
    """A record with its gates and its spec; `dimensions` are those that its own spec names."""

    path: str
    stage: str
    key: str
    body: Mapping[str, Any]
    dimensions: Mapping[str, str]

    @property
    def failed(self) -> int:
        """How many of its gates it failed."""
        return sum(not gate["ok"] for gate in self.gates)

    @property
    def gates(self) -> Sequence[Mapping[str, Any]]:
        """Its gates, none for a record without any."""
        return self.body.get("gates") or ()

    @property
    def spec(self) -> list[tuple[str, str]]:
        """Its spec, flat: name and value."""
        return list(flat(self.body.get("spec")))


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
    cells = _cells(material)
    counts = Counter(cell.state for cell in cells)
    # The last two states are shown only if they occur: few experiments list cells.
    shown = [state for state in STATES if state not in absent.STATES or counts[state]]
    builds = Counter(cell.place for cell in cells)
    return shell.write(
        out_dir / NAME,
        NAME,
        title=title,
        pages=shell.pages(material.paper is not None),
        cells=[_row(cell, material.records, several=builds[cell.place] > 1) for cell in cells],
        states=[(counts[state], state) for state in shown],
        records=[
            _Record(path, str(record["stage"]), str(record["key"]), record, dict(_names(record)))
            for path, record in material.records.items()
            if record["stage"] in _STAGES
        ],
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


def _row(cell: _Cell, records: Records, *, several: bool) -> dict[str, Any]:
    """What a row of the table shows; it names the build if there are `several`."""
    gates = [gate for path in cell.records.values() if path in records for gate in records[path].get("gates", ())]
    return {
        "dimensions": dict(zip(DIMENSIONS, cell.place, strict=True)),
        "names": (*cell.place[:3], cell.place[3] + (f" (build {cell.build})" if several and cell.build else "")),
        "state": cell.state,
        "why": "; ".join(reason.removeprefix(LOAD_INVALID) for reason in cell.reasons) or "—",
        "gates": f"{sum(bool(gate['ok']) for gate in gates)} of {len(gates)}" if gates else "—",
        "keys": [
            (stage, Path(cell.records[stage]).stem.rpartition("@")[2], cell.records[stage] in records)
            for stage in _STAGES
            if stage in cell.records
        ],
        "number": cell.number if cell.state == "valid" else "",
    }


def _names(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The dimensions that a record's own spec names."""
    for name in DIMENSIONS:
        part = (record.get("spec") or {}).get(name)
        if isinstance(part, Mapping) and part.get("name"):
            yield name, str(part["name"])
