"""The chart of limited storage paths: what a system still answers as the rate of its path falls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
_Shown = tuple[Row, Mapping[str, float], str]
_SHOWN = {"qps": "queries per second", "p95_ms": "p95 (ms)"}


def figures(material: Material) -> list[Figure]:
    """Panels of rate and p95 for each dataset and kind of limit, where a path had one."""
    rows = list(_rows(material))
    even = any(pacing for _, _, pacing in rows)
    return charts.made(
        "storage-limits",
        "Queries as the storage path gets slower",
        "Queries per second and p95, both on logarithmic axes, by what the system may read from its storage path in a"
        " second. A system whose path is saturated follows the limit; one that reads nothing from it stays level. "
        + IN_BURSTS
        + (" Hollow signs and dashed lines are of evenly paced paths." if even else ""),
        "Y",
        "pacing" if even else "shapes",
        _panels(rows, charts.colours(material.first["system"])),
    )


def _rows(material: Material) -> Iterator[_Shown]:
    """Each row to show, with the limits of its path and their pacing; both are empty where it has none."""
    for row in material.ordinary:
        path = (material.records.get(row["record"]) or {}).get("storage_path")
        if path is not None and row["metric"] in _SHOWN and row["value"] is not None:
            held = path.get("limits", {})
            latency = f", each read {held['latency_us']:g} µs later" if "latency_us" in held else ""
            yield row, held.get("asked", {}), held.get("pacing", "") + latency


def _panels(rows: Sequence[_Shown], palette: dict[str, str]) -> Iterator[tuple[str, Any]]:
    by_dataset: dict[str, list[_Shown]] = {}
    for shown in rows:
        by_dataset.setdefault(shown[0]["dataset"], []).append(shown)
    for dataset, of_dataset in sorted(by_dataset.items()):
        several = sum(any(limit in limits for _, limits, _ in of_dataset) for limit in _LIMITS) > 1
        for limit, unit in _LIMITS.items():
            at = [
                (row, limits.get(limit, inf), pacing)
                for row, limits, pacing in of_dataset
                if not limits or limit in limits
            ]
            for metric, title in _SHOWN.items():
                chart = _panel([each for each in at if each[0]["metric"] == metric], unit, title, palette)
                yield f"{dataset} · {title}" + (f", by {unit}" if several else ""), chart


def _panel(rows: list[tuple[Row, float, str]], unit: str, title: str, palette: dict[str, str]) -> Any:
    """Of rows, each with what it might read in a second and the pacing; None unless they had two different limits.

    What is evenly paced stands at the place of its limit, hollow, on a dashed line of its own: none joins it to what
    the kernel released in slices.
    """
    if len({(rate, pacing) for _, rate, pacing in rows}) < 2:
        return None
    labels = {rate: "no limit" if rate == inf else f"{rate:g} {unit}" for rate in sorted({rate for _, rate, _ in rows})}
    points = [charts.datum(row, limit=labels[rate], pacing=pacing) for row, rate, pacing in rows]
    filled, hollow = ([point for point in points if bool(point["pacing"]) == even] for even in (False, True))
    what = "limit of reads" + (" (hollow: evenly paced)" if hollow else "")
    axes = {
        "x": alt.X("limit:O", title=what, sort=list(labels.values()), axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("value:Q", title=title, scale=charts.LOGARITHMIC, axis=alt.Axis(format=charts.NUMBER, tickCount=5)),
        "color": charts.colour_of(palette),
    }
    signs = {"shape": charts.shape_of(palette), "tooltip": charts.tooltip("workload", "limit", "pacing")}
    series = ["workload:N", "pacing:N"]
    return charts.layered(
        _HEIGHT,
        charts.lines_of(filled).encode(detail=series, **axes),
        charts.lines_of(hollow).encode(detail=series, strokeDash=alt.value([5, 4]), **axes),
        charts.points_of(filled, 70).encode(**signs, **axes),
        charts.layer_of(hollow).mark_point(size=110, strokeWidth=2, opacity=1).encode(**signs, **axes),
    )
