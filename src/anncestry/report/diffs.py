"""The numbers in the shape that `dvc metrics diff` and `dvc plots diff` compare: a row a cell, under lasting names.

These are copies for comparing versions: the tidy table is what they are made from. There is one small file a cell (of
the plots: a load), because two branches' results merge file by file. Numbers of invalid cells are left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd

from anncestry.provenance.records import replacing
from anncestry.report.model.cells import Row
from anncestry.report.model.numbers import rows_of
from anncestry.report.model.quantities import not_ordinary

FOLDERS = ("metrics", "plots/latency", "plots/qps")
"""Folders of `results/` that are written here; dvc.yaml names them."""

_METRICS = {
    "load": ("load_s", "rows_per_s", "server_cpu_us_per_row"),
    "storage": ("storage_total_mib",),
    "query": (
        *("p50_ms", "p95_ms", "p99_ms", "mean_ms", "qps", "fail_per_s"),
        *("server_cpu_us_per_query", "cpu_avg_pct", "rss_peak_mib"),
    ),
    "recall": ("recall_by_id", "recall_by_distance"),
    "pair": ("pair_qps", "pair_server_cpu_us_per_query"),
}
"""Phase → metrics of the numbers that are compared: a diff of all of them would be read by nobody."""


def write(df: pd.DataFrame, experiment: str, results: Path) -> None:
    """Bring the files of an experiment below `results` to what a tidy frame says; those that fit are left alone."""
    wanted = {results / path: text for path, text in files(df, experiment).items()}
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            with replacing(path) as temporary:
                temporary.write_text(text)
    for folder in FOLDERS:
        for path in (results / folder / experiment).rglob("*"):
            if path.is_file() and path not in wanted:
                path.unlink()


def files(df: pd.DataFrame, experiment: str) -> dict[str, str]:
    """Path below `results/` → content, for every cell and load that has numbers."""
    metrics: dict[str, dict[str, float]] = {}
    latency: dict[str, list[str]] = {}
    qps: dict[str, list[tuple[int, float]]] = {}
    rows = rows_of(df[df["rebuild"].fillna(1) == 1])
    special = not_ordinary(rows)
    for row in rows:
        if row["value"] is None or row["metric"] not in _METRICS.get(row["phase"], ()):
            continue
        load = f"{experiment}/{row['dataset']}/{row['system']}/{row['topology']}"
        cell = f"{load}/{row['workload']}" if row["workload"] else load
        metrics.setdefault(cell, {})[row["metric"]] = row["value"]
        if row["metric"] == "p50_ms":
            latency.setdefault(load, []).append(f"{row['workload']},{row['value']!r}")
        if row["metric"] == "qps" and row["workload"] not in special:
            qps.setdefault(f"{load}/{_asked(row)}", []).append((row["clients"], row["value"]))
    return {
        **{f"metrics/{cell}.json": json.dumps(values, indent=1) + "\n" for cell, values in metrics.items()},
        **{f"plots/latency/{load}.csv": _csv("workload,p50_ms", lines) for load, lines in latency.items()},
        **{
            f"plots/qps/{series}.csv": _csv("clients,qps", [f"{clients},{rate!r}" for clients, rate in sorted(points)])
            for series, points in qps.items()
        },
    }


def _csv(head: str, lines: list[str]) -> str:
    return "\n".join([head, *lines]) + "\n"


def _asked(row: Row) -> str:
    """What workloads that differ in their number of clients have in common, as a file name: k10-category-in-1-4-7.

    Of one that was chosen for a recall, the recall: its effort differs with the clients.
    """
    timed = f"{row['duration_s']:g}s" if row["duration_s"] else ""
    asked_by = "" if row["client"] == "bytes" else row["client"]
    effort = "" if row["ef_search"] is None else f"ef{row['ef_search']}"
    effort = effort if row["target_recall"] is None else f"recall{row['target_recall']:g}"
    batch = "" if row["nq"] in (1, None) else f"nq{row['nq']}"
    text = "-".join(filter(None, (f"k{row['k']}", str(row["filter"]), timed, effort, batch, asked_by)))
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
