"""The methodology page, method.html: each rule of measuring and its reason.

Gates, their thresholds and the definitions of metrics are read from where they are declared, so that the page says
what the program does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from anncestry.metrics import capacity, latency, recall, resources, stats
from anncestry.provenance import gates
from anncestry.report import shell
from anncestry.report.markup import Sheet
from anncestry.report.material import Material

NAME = "method.html"

_METRICS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("Percentiles of a run", latency.quantile),
    ("Latency, throughput and failures of a run", latency.of_run),
    ("Over the runs of a cell", latency.over_runs),
    ("Interval of a mean", stats.mean_interval),
    ("Interval of a percentile", stats.quantile_interval),
    ("Interval of a rate", stats.rate_interval),
    ("Recall by id", recall.recall_by_id),
    ("Recall by distance", recall.recall_by_distance),
    ("nDCG", recall.ndcg),
    ("Reciprocal rank", recall.reciprocal_rank),
    ("Processor, memory and input/output", resources.attribute),
)


def write(material: Material, out_dir: Path, *, title: str) -> Path:
    """Write method.html beside the page of results; returns its path."""
    return shell.write(
        out_dir / NAME,
        NAME,
        title=title,
        pages=shell.pages(material.paper is not None),
        gates=_gates(material),
        thresholds=_thresholds(),
        definitions=[(name, _prose(inspect.getdoc(made) or "")) for name, made in _METRICS],
        metrics=_units(material),
    )


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


def _gates(material: Material) -> Sheet:
    counts: dict[str, list[bool]] = {}
    for record in material.records.values():
        for gate in record.get("gates", ()):
            counts.setdefault(str(gate["gate"]), []).append(bool(gate["ok"]))
    rows = [
        (name, words, f"{sum(counts[name])} of {len(counts[name])}" if name in counts else "—")
        for name, words in declared_gates()
    ]
    return Sheet(("Gate", "What must hold", "Records that passed"), rows, "Gates")


def _thresholds() -> Sheet:
    rows = [threshold for module in (gates, capacity) for threshold in thresholds(module)]
    return Sheet(("Threshold", "Value", "Meaning"), rows, "Thresholds", "tight")


def _units(material: Material) -> Sheet:
    units = {
        (row["metric"].partition("[")[0], row["unit"], row["phase"])
        for row in material.rows
        if row["value"] is not None
    }
    return Sheet(("Metric", "Unit", "Phase"), sorted(units), "Metrics", "tight")
