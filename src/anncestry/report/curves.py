"""Charts of curves: recall against speed, recall and latency by selectivity, and whole latency distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from anncestry.report import equal_recall
from anncestry.report.charts import (
    NUMBER,
    Figure,
    colour_of,
    colours,
    datum,
    layer_of,
    measured_rows,
    panels,
    shape_of,
    tooltip,
)
from anncestry.report.more_tables import kind_of
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Row

PALE = 0.25
DASHES = {"independent": [1, 0], "near the query": [5, 3], "far from the query": [1, 3]}
_TAIL = {"p50_ms": (0.5, "p50"), "p95_ms": (0.95, "p95"), "p99_ms": (0.99, "p99"), "p999_ms": (0.999, "p99.9")}
"""Metrics that are marked in a distribution, their shares and names."""
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
_STEPS = 60  # points of a distribution that are drawn


def figures(df: pd.DataFrame, records: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """The figures that the tidy frame `df` has something for; `records` are those that it names, by path."""
    rows = rows_of(df)
    palette = colours(df)
    pale = " Pale points are dominated: another effort of the same system has as much recall for less."
    drawn = [
        Figure(
            "pareto-qps",
            "Recall and queries per second",
            "One point a search effort, with 95 % intervals; the line is the front." + pale,
            "P",
            "shapes",
            panels(rows, palette, "Recall and queries per second", lambda r, p: _pareto(r, p, "qps")),
        ),
        Figure(
            "pareto-p99",
            "Recall and p99",
            "As above, with the 99th percentile of latency as the cost." + pale,
            "P",
            "shapes",
            panels(rows, palette, "Recall and p99", lambda r, p: _pareto(r, p, "p99_ms")),
        ),
        Figure(
            "filter-recall",
            "Recall by selectivity",
            "Share of rows that pass on a logarithmic scale. Full lines: filters independent of position; dashed: rows"
            " near the query; dotted: rows far from it.",
            "F",
            "shapes",
            panels(rows, palette, "Recall by selectivity", lambda r, p: _selectivity(r, p, "recall_by_id")),
        ),
        Figure(
            "filter-latency",
            "Median latency by selectivity",
            "As above; both axes are logarithmic.",
            "F",
            "shapes",
            panels(rows, palette, "Median latency by selectivity", lambda r, p: _selectivity(r, p, "p50_ms")),
        ),
        Figure(
            "ecdf",
            "Distribution of latency, one client",
            "Share of queries answered within a latency (ECDF), all runs together, K = 10, no filter. Marks are p50,"
            " p95, p99 (means over runs) and p99.9 (of all runs together).",
            "IV",
            "shapes",
            panels(rows, palette, "Distribution of latency", lambda r, p: _distribution(r, p, records, tail=False)),
        ),
        Figure(
            "distribution",
            "The tail of latency, one client",
            "The same by percentile, as HDR plots have it: every further nine is as wide as the one before, so that the"
            " slowest query in a thousand, and in ten thousand, are to be seen. Marks as above.",
            "IV",
            "shapes",
            panels(rows, palette, "Latency by percentile", lambda r, p: _distribution(r, p, records, tail=True)),
        ),
    ]
    return [figure for figure in drawn if figure.panels]


def _pareto(rows: list[Row], palette: dict[str, str], metric: str) -> Any:
    lower = equal_recall.COSTS[metric]
    points, lines, bars = [], [], []
    for sweep in equal_recall.sweeps(rows, metric):
        on_front = equal_recall.front(sweep.points, lower=lower)
        series = f"{sweep.system} {sweep.question}"
        for point in sweep.points:
            more = {
                "ef": point.ef_search,
                "recall": point.recall["value"],
                "opacity": 1.0 if point in on_front else PALE,
                "series": series,
            }
            points.append(datum(point.cost, **more))
            at, cost = point.recall["value"], point.cost["value"]
            if point.cost["low"] is not None:
                ends = {"x": at, "x2": at, "y": point.cost["low"], "y2": point.cost["high"]}
                bars.append(datum(point.cost, **more, **ends))
            if point.recall["low"] is not None:
                ends = {"x": point.recall["low"], "x2": point.recall["high"], "y": cost, "y2": cost}
                bars.append(datum(point.recall, **more, **ends))
        lines += [datum(point.cost, recall=point.recall["value"], series=series) for point in on_front]
    if not points:
        return None
    floor = max(0.0, math.floor(min(point["recall"] for point in points) * 20) / 20)
    x = alt.X("recall:Q", title="recall by distance", scale=alt.Scale(domain=[floor, 1], nice=False))
    title = "queries per second" if metric == "qps" else "p99 in milliseconds"
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    colour = colour_of(palette)
    opacity = alt.Opacity("opacity:Q", scale=None)
    layers = [
        layer_of(lines).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, detail="series:N"),
        layer_of(points)
        .mark_point(filled=True, size=60)
        .encode(x=x, y=y, color=colour, shape=shape_of(palette), opacity=opacity, tooltip=tooltip("ef", "recall")),
    ]
    if bars:
        rules = layer_of(bars).mark_rule()
        layers.insert(0, rules.encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q", color=colour, opacity=opacity))
    return alt.layer(*layers).properties(width="container", height=260)


def _selectivity(rows: list[Row], palette: dict[str, str], metric: str) -> Any:
    asked = [row for row in rows if row["filter"] and row["clients"] == 1 and row["duration_s"] is None]
    shares = {(row["system"], row["workload"]): row["value"] for row in measured_rows(asked, "selectivity")}
    points = [
        datum(row, share=shares[row["system"], row["workload"]], kind=kind_of(row["filter"]), k=row["k"])
        for row in measured_rows(asked, metric)
        if shares.get((row["system"], row["workload"]))
    ]
    if len({point["share"] for point in points}) < 3:
        return None
    for point in points:
        point["series"] = f"{point['system']} {point['kind']} {point['k']}"
    axis = alt.Axis(format=NUMBER)
    x = alt.X("share:Q", title="selectivity", scale=alt.Scale(type="log", nice=False, padding=12), axis=axis)
    linear = metric.startswith("recall")
    y = alt.Y(
        "value:Q",
        title="recall by id" if linear else "p50 in milliseconds",
        scale=alt.Scale(domain=[0, 1], nice=False) if linear else alt.Scale(type="log"),
        axis=axis,
    )
    dash = alt.StrokeDash("kind:N", scale=alt.Scale(domain=list(DASHES), range=list(DASHES.values())), legend=None)
    base = {"x": x, "y": y, "color": colour_of(palette)}
    return alt.layer(
        layer_of(points).mark_line(strokeWidth=2).encode(strokeDash=dash, detail="series:N", **base),
        layer_of(points)
        .mark_point(filled=True, size=55, opacity=1)
        .encode(shape=shape_of(palette), tooltip=tooltip("workload", "kind", "share"), **base),
    ).properties(width="container", height=260)


def _distribution(
    rows: list[Row], palette: dict[str, str], records: Mapping[str, Mapping[str, Any]], *, tail: bool
) -> Any:
    """One line a system, of the first workload that all systems have; percentiles are marked.

    With `tail` latency by percentile, as HDR plots have it: each nine of the percentile has the same width. Without,
    the share answered within a latency.
    """
    asked = [
        row
        for row in rows
        if (row["k"], row["clients"], row["filter"]) == (10, 1, "")
        and row["duration_s"] is None
        and row["target_recall"] is None
    ]
    cells = [row for row in measured_rows(asked, "p50_ms") if (records.get(row["record"]) or {}).get("histogram")]
    of = {system: {row["workload"] for row in cells if row["system"] == system} for system in palette}
    shared = set.intersection(*(names for names in of.values() if names)) if any(of.values()) else set()
    if not shared:
        return None
    workload = min(shared)

    def point(row: Row, latency_ms: float, share: float, shown: str, name: str = "") -> dict[str, Any]:
        at = _nines(share) if tail else share
        return datum(row, ms=latency_ms, at=at, share=shown, name=name)

    lines, marks = [], []
    for row in (row for row in cells if row["workload"] == workload):
        histogram = records[row["record"]]["histogram"]
        steps = _steps(histogram["upper_ns"], histogram["counts"])
        lines += [point(row, latency_ms, share, f"{100 * share:.4g} %") for latency_ms, share in steps]
    for metric, (share, name) in _TAIL.items():
        found = [row for row in measured_rows(asked, metric) if row["workload"] == workload]
        marks += [point(row, row["value"], share, f"{100 * share:g} %", name) for row in found]
    latency_scale = alt.Scale(type="log", nice=False, padding=12)
    latency_axis = alt.Axis(format=NUMBER, tickCount=6, grid=tail)
    if tail:
        top = max(mark["at"] for mark in marks + lines)
        ticks = [_nines(share) for share in _TICKS if _nines(share) <= top + 0.01]
        label = "format(100 * (1 - pow(10, -datum.value)), '.6~r') + ' %'"
        axis = alt.Axis(values=ticks, labelExpr=label, labelAngle=0, grid=True)
        x = alt.X("at:Q", title="percentile, as 1 / (1 - p), logarithmic", axis=axis, scale=alt.Scale(nice=False))
        y = alt.Y("ms:Q", title="milliseconds (logarithmic)", scale=latency_scale, axis=latency_axis)
    else:
        x = alt.X("ms:Q", title="milliseconds (logarithmic)", scale=latency_scale, axis=latency_axis)
        axis = alt.Axis(format="%", grid=True)
        y = alt.Y("at:Q", title="answered within", axis=axis, scale=alt.Scale(domain=[0, 1.04], nice=False))
    base = {"x": x, "y": y, "color": colour_of(palette)}
    # Steps go up where a latency is reached: in the plot by percentile that is before the next share, not after it.
    step = "step-before" if tail else "step-after"
    return alt.layer(
        layer_of(lines).mark_line(interpolate=step, strokeWidth=2).encode(detail="system:N", **base),
        layer_of(marks)
        .mark_point(filled=True, size=55, opacity=1)
        .encode(shape=shape_of(palette), tooltip=tooltip("workload", "share"), **base),
        layer_of(marks)
        .mark_text(align="right" if tail else "left", dx=-6 if tail else 7, dy=-7 if tail else 9, fontSize=11)
        .encode(text="name:N", **base),
    ).properties(width="container", height=260)


def _steps(upper_ns: Sequence[int], counts: Sequence[int]) -> list[tuple[float, float]]:
    """(latency in ms, share answered within it) from a histogram, at most `_STEPS` of them, evenly over the axis."""
    total, below = sum(counts), 0
    steps: list[tuple[float, float]] = []
    for edge, count in zip(upper_ns, counts, strict=True):
        below += count
        # The last step would lie at infinity: it is drawn where half a query is left.
        share = min(below / total, 1 - 0.5 / total)
        if not steps or _nines(share) - _nines(steps[-1][1]) >= _nines(1 - 0.5 / total) / _STEPS:
            steps.append((edge / 1e6, share))
    return steps


def _nines(share: float) -> float:
    return -math.log10(1 - share)
