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

RULES = (
    (
        "Requests are encoded before the clock starts and answers decoded after it stops",
        "A vendor's library can take a good part of a latency: what is compared is servers, asked by one client that"
        " sends bytes and keeps bytes. What a library costs is a question of its own, with workloads of its own.",
    ),
    (
        "Closed loop: every client is connected and has asked before the clock starts",
        "The first request of a connection pays for the connection. Each client begins at its own seeded query, so"
        " that no two ask the same at the same time.",
    ),
    (
        "Open loop: latency counts from when a request was due, and a late one is never dropped",
        "A client that waits for slow answers asks less just when the system is slow, and hides it"
        " (coordinated omission).",
    ),
    (
        "The client's own ceiling is measured against a server that costs nothing",
        "A number near the client's limit is the client's. Cells beyond half of the ceiling are marked client-bound.",
    ),
    (
        "Warm-up queries are not measured queries",
        "Asking the measured queries beforehand fills caches with just their answers.",
    ),
    (
        "Cells are measured in rounds, the runs of all workloads interleaved",
        "A machine drifts; what is measured in one go takes its drift for a difference.",
    ),
    (
        "Errors and timeouts are counted and stand beside the numbers of the others",
        "A system that refuses what is slow looks fast.",
    ),
    (
        "Raw samples are kept, and every number is made again from them by verify",
        "A summary can't be checked; what it was made from can.",
    ),
    (
        "Server and client are accounted apart, by control group or by tree of processes",
        "What the client uses is no property of the server.",
    ),
    (
        "Storage is the whole folder of the server for this dataset alone, after settling",
        "Logs, metadata and what was not yet compacted take room as well.",
    ),
    (
        "Exact neighbours are computed from the very vectors that were loaded",
        "Neighbours that were shipped with a dataset may belong to other vectors, another metric, or no filter.",
    ),
    (
        "A winner needs at least three runs a side and an interval of the difference without zero",
        "Of two noisy numbers one is always larger.",
    ),
    (
        "Numbers of two machines never stand in one table",
        "Their difference would be that of the machines.",
    ),
)
"""The rules of the measuring contract, each with its reason."""

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
        rules=RULES,
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
