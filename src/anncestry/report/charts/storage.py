"""The chart of limited storage paths: what a system still answers as the rate of its path falls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import altair as alt

from anncestry.report import charts
from anncestry.report.charts import Figure
from anncestry.report.model.cells import Row
from anncestry.report.model.material import Material

_HEIGHT = 240
_LIMITS = {"read_mib_per_s": "MiB/s", "read_ops_per_s": "reads/s"}
IN_BURSTS = "A limit without even pacing gives out reads in slices, so that p95 and p99 show bursts."
_SHOWN = {"qps": "queries per second", "p95_ms": "p95 (ms)"}


def figures(material: Material) -> list[Figure]:
    """Panels of rate and p95 for each dataset and kind of limit, where a path had one."""
    return charts.made(
        "storage-limits",
        "Queries as the storage path gets slower",
        "Queries per second and p95, both on logarithmic axes, by what the system may read from its storage path in a"
        " second. A system whose path is saturated follows the limit; one that reads nothing from it stays level. "
        + IN_BURSTS,
        "Y",
        "shapes",
        _panels(material),
    )


def _panels(material: Material) -> Iterator[tuple[str, Any]]:
    palette = charts.colours(material.first["system"])
    by_dataset: dict[str, list[tuple[Row, Mapping[str, Any]]]] = {}
    for row in material.ordinary:
        path = (material.records.get(row["record"]) or {}).get("storage_path")
        if path is not None and row["metric"] in _SHOWN and row["value"] is not None:
            held = path.get("limits", {})
            limits = {**held.get("asked", {}), **({"pacing": held["pacing"]} if "pacing" in held else {})}
            by_dataset.setdefault(row["dataset"], []).append((row, limits))
    for dataset, rows in sorted(by_dataset.items()):
        several = sum(any(limit in limits for _, limits in rows) for limit in _LIMITS) > 1
        for limit, unit in _LIMITS.items():
            at = [
                (row, (limits.get(limit, inf), str(limits.get("pacing", ""))))
                for row, limits in rows
                if not limits or limit in limits
            ]
            for metric, title in _SHOWN.items():
                chart = _panel([each for each in at if each[0]["metric"] == metric], unit, title, palette)
                yield f"{dataset} · {title}" + (f", by {unit}" if several else ""), chart


def _panel(rows: list[tuple[Row, tuple[float, str]]], unit: str, title: str, palette: dict[str, str]) -> Any:
    """Of rows, each with what it might read in a second and the pacing; None unless they had two different limits.

    What is evenly paced has a place of its own on the axis, and no line to what the kernel released in slices.
    """
    limits = sorted({limit for _, limit in rows})
    if len(limits) < 2:
        return None
    labels = {
        (rate, pacing): "no limit" if rate == inf else f"{rate:g} {unit}{f', {pacing}' if pacing else ''}"
        for rate, pacing in limits
    }
    points = [charts.datum(row, limit=labels[limit], pacing=limit[1]) for row, limit in rows]
    axes = {
        "x": alt.X("limit:O", title="limit of reads", sort=list(labels.values()), axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("value:Q", title=title, scale=charts.LOGARITHMIC, axis=alt.Axis(format=charts.NUMBER, tickCount=5)),
        "color": charts.colour_of(palette),
    }
    tips = charts.tooltip("workload", "limit")
    return charts.curves(_HEIGHT, points, axes, charts.shape_of(palette), tips, detail=["workload:N", "pacing:N"])
