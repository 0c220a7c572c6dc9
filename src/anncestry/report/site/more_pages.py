"""The pages beside that of the results: cells.html and method.html.

Of each cell its state and why, the keys of its records, their gates and specs. The method: each rule of measuring and
its reason; gates, their thresholds and the definitions of metrics are read from where they are declared.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from anncestry.cells import blocks
from anncestry.metrics import capacity, defects, latency, recall, resources, robust, stats
from anncestry.provenance import attempts, gates
from anncestry.report.model import derived
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import LOAD_INVALID, STAGES, is_absent, stage_of, state_of
from anncestry.report.model.records import Records, flat
from anncestry.report.site import sheets, shell
from anncestry.report.site.shell import DIMENSIONS, Sheet

STATES = ("valid", "invalid", "failed", "not measured", *blocks.STATES)
_IF_ANY = ("failed", *blocks.STATES)

_METRICS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("Percentiles of a run", latency.quantile),
    ("Latency, throughput and failures of a run", latency.of_run),
    ("Over the runs of a cell", latency.over_runs),
    ("Interval of a mean", stats.mean_interval),
    ("Interval of a recall", stats.share_interval),
    ("Interval of a percentile", stats.quantile_interval),
    ("Interval of a rate", stats.rate_interval),
    ("Recall by id", recall.recall_by_id),
    ("Recall by distance", recall.recall_by_distance),
    ("nDCG", recall.ndcg),
    ("Reciprocal rank", recall.reciprocal_rank),
    ("Robustness-δ@K, and the worst queries", robust.facts),
    ("Interval of the recall of the worst queries", robust.worst_interval),
    ("Interval of the cost of a million queries", derived.mean_of_logs),
    ("Processor, memory and input/output", resources.attribute),
)


@dataclass
class CellState:
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
        return self.never or state_of(self.reasons)


def write(material: Material, out_dir: Path, *, title: str) -> None:
    """Write both pages beside the page of results."""
    cells = cells_of(material)
    counts = Counter(cell.state for cell in cells)
    shown = [state for state in STATES if state not in _IF_ANY or counts[state]]
    builds = Counter(cell.place for cell in cells)
    shell.write(
        out_dir / "cells.html",
        "cells.html",
        title=title,
        pages=material.pages,
        cells=[_row(cell, material.records, several=builds[cell.place] > 1) for cell in cells],
        states=[(counts[state], state) for state in shown],
        records=[
            {**record, "path": path, "spec": list(flat(record.get("spec"))), "dimensions": _dimensions(record)}
            for path, record in material.records.items()
            if record["stage"] in STAGES
        ],
    )
    shell.write(
        out_dir / "method.html",
        "method.html",
        title=title,
        pages=material.pages,
        gates=_gates(material.records),
        thresholds=_thresholds(),
        definitions=[(name, _prose(inspect.getdoc(made) or "")) for name, made in _METRICS],
        metrics=_units(material),
    )


def cells_of(material: Material) -> list[CellState]:
    """All cells, in the order of the tidy table; then those that are listed instead of measured."""
    found: dict[tuple[Any, ...], CellState] = {}
    loads: dict[tuple[Any, ...], str] = {}
    for row in material.all_rows:
        place = tuple(str(row[name]) for name in DIMENSIONS)
        if not row["workload"]:
            loads.setdefault((*place[:3], row["rebuild"]), row["record"])
            continue
        cell = found.setdefault((*place, row["rebuild"]), CellState(place, row["rebuild"]))
        cell.records.setdefault(stage_of(row["phase"]), row["record"])
        if row["reason"] and not is_absent(row["reason"]):
            cell.reasons.setdefault(row["reason"])
        if not cell.number and row["metric"] in ("p50_ms", "pair_qps"):
            cell.number = row["number_id"]
    for cell in found.values():
        load = loads.get((*cell.place[:3], cell.build)) or loads.get((*cell.place[:3], None))
        if load:
            cell.records["load"] = load
    listed = (
        CellState(cell.names[:4], None, reasons={cell.reason: None}, never=cell.state) for cell in material.absent
    )
    return [*found.values(), *listed]


def _row(cell: CellState, records: Records, *, several: bool) -> dict[str, Any]:
    """What a row of the table shows; it names the build if there are `several`."""
    gates = [gate for path in cell.records.values() if path in records for gate in records[path].get("gates", ())]
    return {
        "dimensions": dict(zip(DIMENSIONS, cell.place, strict=True)),
        "names": (*cell.place[:3], cell.place[3] + (f" (build {cell.build})" if several and cell.build else "")),
        "state": cell.state,
        "why": "; ".join(reason.removeprefix(LOAD_INVALID) for reason in cell.reasons) or "—",
        "gates": f"{sum(bool(gate['ok']) for gate in gates)} of {len(gates)}" if gates else "—",
        "attempts": "; ".join(
            f"{stage}: {attempts.words(records[path]['attempts'])}"
            for stage in STAGES
            if (path := cell.records.get(stage, "")) in records and "attempts" in records[path]
        )
        or "—",
        "keys": [
            (stage, Path(cell.records[stage]).stem.rpartition("@")[2], cell.records[stage] in records)
            for stage in STAGES
            if stage in cell.records
        ],
        "number": cell.number if cell.state == "valid" else "",
    }


def _dimensions(record: Mapping[str, Any]) -> dict[str, str]:
    parts = {name: (record.get("spec") or {}).get(name) for name in DIMENSIONS}
    return {name: str(part["name"]) for name, part in parts.items() if isinstance(part, Mapping) and part.get("name")}


def declared_gates() -> list[tuple[str, str]]:
    """Every gate's name and what it demands, from the functions of `gates` that make them."""
    found: dict[str, str] = {}
    for function in _tree(gates).body:
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Gate":
                first = call.args[0] if call.args else None
                name = first.value if isinstance(first, ast.Constant) else None
                if isinstance(first, ast.Name):  # a constant of the module
                    name = getattr(gates, first.id, None)
                if isinstance(name, str):
                    found.setdefault(name, _prose(ast.get_docstring(function) or ""))
    return list(found.items())


def thresholds(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """The public constants of a module that are numbers: name, value, and the words declared beneath each."""
    body = _tree(module).body
    for line, after in pairwise(body):
        if not isinstance(line, ast.Assign) or not isinstance(after, ast.Expr):
            continue
        target, words = line.targets[0], after.value
        if isinstance(target, ast.Name) and isinstance(words, ast.Constant) and not target.id.startswith("_"):
            value = getattr(module, target.id)
            if isinstance(value, int | float):
                yield target.id.lower().replace("_", " "), f"{value:g}", _prose(str(words.value))


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _prose(docstring: str) -> str:
    return " ".join(inspect.cleandoc(docstring).replace("`", "").split())


def _gates(records: Records) -> Sheet:
    passed = sheets.passed_gates(records, lambda record, gate: (gate,))
    rows = [(name, words, passed.get((name,), "—")) for name, words in declared_gates()]
    return Sheet(("Gate", "What must hold", "Records that passed"), rows, "Gates")


def _thresholds() -> Sheet:
    rows = [threshold for module in (gates, defects, capacity) for threshold in thresholds(module)]
    return Sheet(("Threshold", "Value", "Meaning"), rows, "Thresholds", "tight")


def _units(material: Material) -> Sheet:
    units = {
        (row["metric"].partition("[")[0], row["unit"], row["phase"])
        for row in material.rows
        if row["value"] is not None
    }
    return Sheet(("Metric", "Unit", "Phase"), sorted(units), "Metrics", "tight")
