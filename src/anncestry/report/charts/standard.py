"""The charts with a panel for each dataset and topology: the numbers of tables, curves, and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import altair as alt

from anncestry.report import charts
from anncestry.report.charts import Data, Figure
from anncestry.report.model import equal_recall
from anncestry.report.model.cells import Row, is_serial, text_of
from anncestry.report.model.highlights import headline_k
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import PHASES, brief
from anncestry.report.model.records import Records
from anncestry.report.tables.effort import kind_of
from anncestry.report.tables.standard import (
    clients_table,
    latency_table,
    said_effort,
    single_sizes,
    tails_table,
    timed_sizes,
)

PHASE_OPACITY = dict(zip(PHASES, (1.0, 0.7, 0.45, 0.25), strict=True))
PALE = 0.25
_HEIGHT = 260
_KINDS = {"independent": [1, 0], "near the query": [5, 3], "far from the query": [1, 3]}
"""Kinds of filters and their strokes."""
_PERCENTILES = {"p50": "circle", "p95": "diamond", "p99": "triangle-right"}
_TAIL = {"p50_ms": (0.5, "p50"), "p95_ms": (0.95, "p95"), "p99_ms": (0.99, "p99"), "p999_ms": (0.999, "p99.9")}
"""Metrics that are marked in a distribution, their shares and names."""
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
_STEPS = 60  # points of a distribution that are drawn
_TOTAL = "total"
_WIDE = 12
"""A logarithmic axis is needed from this ratio of the largest to the smallest latency on."""


class Look(NamedTuple):
    """What all panels of a figure have in common: colours of systems, the records, the number of neighbours shown.

    `beside`: the rows of all panels that a panel is compared with, and its own.
    """

    palette: dict[str, str]
    records: Records
    k: int
    beside: Sequence[Row] = ()


class FigureSpec(NamedTuple):
    """A declared figure, or with `each` one for each number of neighbours: `{k}` in its caption, and that of its table.

    `draw` makes a chart of the rows of one dataset and topology, or None where nothing was measured for it.
    `described`: the title that is read aloud, where it is another one. `every`: also of workloads that are no plain
    closed loop. `fold`: for other numbers of neighbours than the headline's, it is drawn when a reader opens it.
    """

    name: str
    title: str
    caption: str
    table: str | Callable[[int], str]
    draw: Callable[[list[Row], Look], Any]
    legend: str = "shapes"
    described: str = ""
    every: bool = False
    each: Callable[[list[Row]], list[int]] | None = None
    fold: bool = False


def figures(material: Material) -> list[Figure]:
    """The figures that something was measured for; that of the headline's number of neighbours has the bare name."""
    look = Look(charts.colours(material.plain["system"]), material.records, headline_k(material.rows))
    found = []
    for spec in FIGURES:
        sizes = spec.each(material.ordinary) if spec.each else [look.k]
        for k in sizes:
            of_k = spec._replace(fold=False) if k == look.k else _of_k(spec, k)
            found += _drawn(of_k, material, look._replace(k=k))
    return found


def _of_k(spec: FigureSpec, k: int) -> FigureSpec:
    """The figure for another number of neighbours than the headline's."""
    described = f"{spec.described or spec.title}, K = {k}"
    return spec._replace(name=f"{spec.name}-{k}", title=f"{spec.title}, K = {k}", described=described)


def _drawn(spec: FigureSpec, material: Material, look: Look) -> list[Figure]:
    if isinstance(spec.table, str):
        tables = [spec.table]
    else:
        tables = [spec.table(k) for k in ([look.k] if spec.each else single_sizes(material.ordinary))]
    rows = material.rows if spec.every else material.ordinary
    panels = charts.by_place(material, rows, lambda of, beside: spec.draw(of, look._replace(beside=beside)))
    caption = spec.caption.format(k=look.k)
    return charts.made(
        spec.name, spec.title, caption, tables, spec.legend, panels, described=spec.described, folded=spec.fold
    )


def _load(rows: list[Row], look: Look) -> Any:
    totals = {row["system"]: row for row in rows if row["metric"] == "load_s"}
    measured = charts.measured_rows(totals.values(), "load_s")
    if not measured:
        return None
    parts = [
        charts.datum(row, opacity=PHASE_OPACITY[phase], order=order)
        for order, phase in enumerate(PHASES)
        for row in charts.measured_rows(rows, f"{phase}_s")
    ]
    ends = [charts.datum(row, label=f"{text_of(row['value'], None, 's')} s") for row in measured]
    gaps = [
        {"system": row["system"], "value": 0, "label": brief(row["reason"])}
        for row in totals.values()
        if row["value"] is None
    ]
    y = alt.Y("system:N", title=None, sort=list(look.palette))
    x = _lengths("seconds", measured, stack="zero")
    shown = {"color": charts.colour_of(look.palette), "opacity": charts.OPACITY, "tooltip": charts.tooltip()}
    return charts.layered(
        alt.Step(32),
        charts.layer_of(parts).mark_bar(height=20).encode(y=y, x=x, order=alt.Order("order:Q"), **shown),
        charts.layer_of(ends + gaps)
        .mark_text(align="left", dx=5)
        .encode(y=y, x=alt.X("value:Q", title="seconds"), text="label:N"),
    )


def _lengths(title: str, rows: Data, **more: Any) -> Any:
    """The axis of bars, with room for the label of the longest."""
    scale = alt.Scale(domain=[0, max(row["value"] for row in rows) * 1.2], nice=False)
    return alt.X("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=charts.TICKS), **more)


def _by_workload(palette: dict[str, str]) -> dict[str, Any]:
    """A line for each workload and system."""
    offset = alt.YOffset("system:N", scale=alt.Scale(domain=list(palette), paddingOuter=0.35))
    return {"y": alt.Y("workload:N", title=None), "yOffset": offset, "color": charts.colour_of(palette)}


def _latency(rows: list[Row], look: Look) -> Any:
    single = [row for row in rows if is_serial(row)]
    points = [charts.datum(row, percentile=p) for p in _PERCENTILES for row in charts.measured_rows(single, f"{p}_ms")]
    if not points:
        return None
    serial = [row for row in look.beside if is_serial(row)]
    sizes = [row["value"] for p in _PERCENTILES for row in charts.measured_rows(serial, f"{p}_ms")]
    medians = charts.measured_rows(single, "p50_ms")
    lows = {(row["system"], row["workload"]): row["value"] for row in medians}
    spans = [
        charts.datum(row, low=lows[row["system"], row["workload"]])
        for row in charts.measured_rows(single, "p99_ms")
        if (row["system"], row["workload"]) in lows
    ]
    wide = min(sizes) > 0 and max(sizes) / min(sizes) > _WIDE
    bands = [charts.spread(row) for row in medians if row["std"]]
    if wide:  # a logarithmic axis has no zero: a band that reaches it would leave no place for anything
        bands = [{**band, "low": max(band["low"], min(sizes) / 2)} for band in bands]
    x = alt.X(
        "value:Q",
        title="milliseconds (logarithmic)" if wide else "milliseconds",
        scale=charts.LOGARITHMIC if wide else alt.Scale(zero=True),
        axis=alt.Axis(tickCount=6, format=charts.NUMBER),
    )
    base, low = _by_workload(look.palette), alt.X("low:Q")
    return charts.layered(
        alt.Step(17, **{"for": "offset"}),
        charts.layer_of(bands).mark_rule(strokeWidth=11, opacity=0.3).encode(x=low, x2="high:Q", **base),
        charts.layer_of(spans).mark_rule(strokeWidth=1.5, opacity=0.6).encode(x=low, x2="value:Q", **base),
        charts.points_of(points, 55).encode(
            x=x, shape=charts.signs_of("percentile", "shape", _PERCENTILES), tooltip=charts.tooltip("workload"), **base
        ),
    )


def _clients(rows: list[Row], look: Look, metric: str, title: str) -> Any:
    timed = [row for row in rows if row["k"] == look.k and not row["filter"] and row["duration_s"] is not None]
    measured = charts.measured_rows(timed, metric)
    # A line a search effort: one that was chosen for a recall differs from one number of clients to the next.
    points = [
        charts.datum(row, clients=row["clients"], effort=said_effort(row), series=f"{row['system']} {said_effort(row)}")
        for row in measured
    ]
    x = charts.clients(points)
    if x is None:
        return None
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=True))
    colour = charts.colour_of(look.palette)
    bars = charts.layer_of([charts.spread(row, clients=row["clients"]) for row in measured if row["std"]]).mark_rule()
    spread = bars.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)
    axes = {"x": x, "y": y, "color": colour}
    tips = charts.tooltip("clients", "effort")
    return charts.curves(220, points, axes, charts.shape_of(look.palette), tips, spread, detail="series:N")


def _recall(rows: list[Row], look: Look) -> Any:
    # The workloads of a fixed time ask what those of a fixed count ask: the same recall, many times over.
    counted = [row for row in rows if row["duration_s"] is None] or rows
    by_id, by_distance = (
        [charts.datum(row) for row in charts.measured_rows(counted, f"recall_by_{by}")] for by in ("id", "distance")
    )
    if not by_id:
        return None
    floor = min(0.95, math.floor(min(point["value"] for point in by_id + by_distance) * 20) / 20)
    scale = alt.Scale(domain=[floor, 1], nice=False)
    x = alt.X("value:Q", title="recall", scale=scale, axis=alt.Axis(tickCount=5))
    base = {"x": x, "tooltip": charts.tooltip("workload"), **_by_workload(look.palette)}
    return charts.layered(
        alt.Step(17, **{"for": "offset"}),
        charts.layer_of(by_distance).mark_tick(thickness=2.5, height=13, opacity=1).encode(**base),
        charts.points_of(by_id, 60).encode(**base),
    )


def _cpu(rows: list[Row], look: Look) -> Any:
    used = charts.measured_rows(rows, "server_cpu_us_per_query")
    if not used:
        return None
    title = "server's processor time, microseconds a query"
    base, x = _by_workload(look.palette), alt.X("value:Q", title=title, scale=alt.Scale(zero=True))
    spread = charts.layer_of([charts.spread(row) for row in used if row["std"]]).mark_rule()
    return charts.layered(
        alt.Step(17, **{"for": "offset"}),
        spread.encode(x=alt.X("low:Q"), x2="high:Q", **base),
        charts.points_of([charts.datum(row) for row in used], 60).encode(
            x=x, shape=charts.shape_of(look.palette), tooltip=charts.tooltip("workload"), **base
        ),
    )


def _storage(rows: list[Row], look: Look) -> Any:
    bars = []
    for system in look.palette:
        here = [row for row in rows if row["system"] == system and row["value"] is not None]
        bars += [_bar(row, system, _TOTAL) for row in here if row["metric"] == "storage_total_mib"]
        parts = [row for row in here if row["metric"].startswith("storage_component_mib[") and row["value"]]
        parts.sort(key=lambda row: (-row["value"], row["metric"]))
        bars += [_bar(row, system, row["metric"].partition("[")[2][:-1]) for row in parts]
    if not bars:
        return None
    raw = charts.measured_rows(rows, "storage_raw_mib")[:1]
    # Two systems may both have a component of one name: the place is the system and the name, the label the latter.
    label = f"split(datum.label, '{charts.SEPARATOR}')[1]"
    y = alt.Y("place:N", title=None, sort=[bar["place"] for bar in bars], axis=alt.Axis(labelExpr=label))
    x = _lengths("MiB", bars + raw)
    shown = {"color": charts.colour_of(look.palette), "opacity": charts.OPACITY, "tooltip": charts.tooltip()}
    return charts.layered(
        alt.Step(20),
        charts.layer_of(bars).mark_bar(height=12).encode(x=x, y=y, **shown),
        charts.layer_of(bars).mark_text(align="left", dx=4).encode(x=x, y=y, text="label:N"),
        charts.layer_of([charts.datum(row) for row in raw])
        .mark_rule(strokeDash=[4, 3])
        .encode(x=alt.X("value:Q"), tooltip=charts.tooltip()),
    )


def _bar(row: Row, system: str, name: str) -> dict[str, Any]:
    total = name == _TOTAL
    return charts.datum(
        row,
        place=f"{system}{charts.SEPARATOR}{system if total else name}",
        opacity=1.0 if total else 0.45,
        label=text_of(row["value"], None, "MiB"),
    )


def _pareto(rows: list[Row], look: Look, metric: str) -> Any:
    points, lines, bars = [], [], []
    for sweep in equal_recall.sweeps(rows, metric):
        on_front = equal_recall.front(sweep.points, lower=equal_recall.COSTS[metric])
        series = f"{sweep.system} {sweep.question}"
        for point in sweep.points:
            recall, cost = point.recall, point.cost
            more = {
                "effort": point.effort,
                "recall": recall["value"],
                "opacity": 1.0 if point in on_front else PALE,
                "series": series,
            }
            points.append(charts.datum(cost, **more))
            if cost["low"] is not None:
                ends = {"x": recall["value"], "x2": recall["value"], "y": cost["low"], "y2": cost["high"]}
                bars.append(charts.datum(cost, **more, **ends))
            if recall["low"] is not None:
                ends = {"x": recall["low"], "x2": recall["high"], "y": cost["value"], "y2": cost["value"]}
                bars.append(charts.datum(recall, **more, **ends))
        lines += [charts.datum(point.cost, recall=point.recall["value"], series=series) for point in on_front]
    if not points:
        return None
    floor = max(0.0, math.floor(min(point["recall"] for point in points) * 20) / 20)
    x = alt.X("recall:Q", title="recall by distance", scale=alt.Scale(domain=[floor, 1], nice=False))
    title = "queries per second" if metric == "qps" else "p99 in milliseconds"
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    colour = charts.colour_of(look.palette)
    base, shape = {"x": x, "y": y, "color": colour}, charts.shape_of(look.palette)
    spans, marks = charts.layer_of(bars).mark_rule(), charts.layer_of(points).mark_point(filled=True, size=60)
    return charts.layered(
        _HEIGHT,
        spans.encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q", color=colour, opacity=charts.OPACITY),
        charts.lines_of(lines).encode(detail="series:N", **base),
        marks.encode(shape=shape, opacity=charts.OPACITY, tooltip=charts.tooltip("effort", "recall"), **base),
    )


def _selectivity(rows: list[Row], look: Look, metric: str) -> Any:
    filtered = [row for row in rows if row["filter"] and is_serial(row)]
    shares = {(row["system"], row["workload"]): row["value"] for row in charts.measured_rows(filtered, "selectivity")}
    points = [
        charts.datum(row, share=shares[row["system"], row["workload"]], kind=kind_of(row["filter"]), k=row["k"])
        for row in charts.measured_rows(filtered, metric)
        if shares.get((row["system"], row["workload"]))
    ]
    if len({point["share"] for point in points}) < 3:
        return None
    for point in points:
        point["series"] = f"{point['system']} {point['kind']} {point['k']}"
    axis = alt.Axis(format=charts.NUMBER)
    x = alt.X("share:Q", title="selectivity", scale=charts.LOGARITHMIC, axis=axis)
    linear = metric.startswith("recall")
    y = alt.Y(
        "value:Q",
        title="recall by id" if linear else "p50 in milliseconds",
        scale=alt.Scale(domain=[0, 1], nice=False) if linear else alt.Scale(type="log"),
        axis=axis,
    )
    axes = {"x": x, "y": y, "color": charts.colour_of(look.palette)}
    shape, tips = charts.shape_of(look.palette), charts.tooltip("workload", "kind", "share")
    dash = charts.signs_of("kind", "strokeDash", _KINDS)
    return charts.curves(_HEIGHT, points, axes, shape, tips, size=55, strokeDash=dash, detail="series:N")


def _distribution(rows: list[Row], look: Look, *, tail: bool) -> Any:
    """One line a system, of the first workload that all systems have; percentiles are marked.

    With `tail` latency by percentile, as HDR plots have it: each nine of the percentile has the same width. Without,
    the share answered within a latency.
    """
    single = [row for row in rows if charts.is_single(row, look.k)]
    cells = [
        row
        for row in charts.measured_rows(single, "p50_ms")
        if (look.records.get(row["record"]) or {}).get("histogram")
    ]
    of = {system: {row["workload"] for row in cells if row["system"] == system} for system in look.palette}
    shared = set.intersection(*(names for names in of.values() if names)) if any(of.values()) else set()
    if not shared:
        return None
    workload = min(shared)

    def point(row: Row, latency_ms: float, share: float, shown: str, name: str = "") -> dict[str, Any]:
        at = _nines(share) if tail else share
        return charts.datum(row, ms=latency_ms, at=at, share=shown, name=name)

    lines, marks = [], []
    for row in (row for row in cells if row["workload"] == workload):
        record = look.records[row["record"]]
        histogram, failed = record["histogram"], record["summary"]["errors"]["value"]
        steps = _steps(histogram["upper_ns"], histogram["counts"], failed)
        lines += [point(row, latency_ms, share, f"{100 * share:.4g} %") for latency_ms, share in steps]
    for metric, (share, name) in _TAIL.items():
        of_workload = [row for row in charts.measured_rows(single, metric) if row["workload"] == workload]
        marks += [point(row, row["value"], share, f"{100 * share:g} %", name) for row in of_workload]
    base = _tail_axes(marks + lines) if tail else _share_axes()
    base["color"] = charts.colour_of(look.palette)
    # Steps go up where a latency is reached: in the plot by percentile that is before the next share, not after it.
    step = "step-before" if tail else "step-after"
    return charts.layered(
        _HEIGHT,
        charts.layer_of(lines).mark_line(interpolate=step, strokeWidth=2).encode(detail="system:N", **base),
        charts.points_of(marks, 55).encode(
            shape=charts.shape_of(look.palette), tooltip=charts.tooltip("workload", "share"), **base
        ),
        charts.layer_of(marks)
        .mark_text(align="right" if tail else "left", dx=-6 if tail else 7, dy=-7 if tail else 9, fontSize=11)
        .encode(text="name:N", **base),
    )


def _latencies(grid: bool) -> dict[str, Any]:
    axis = alt.Axis(format=charts.NUMBER, tickCount=6, grid=grid)
    return {"title": "milliseconds (logarithmic)", "scale": charts.LOGARITHMIC, "axis": axis}


def _tail_axes(marks: Data) -> dict[str, Any]:
    top = max(mark["at"] for mark in marks)
    ticks = [_nines(share) for share in _TICKS if _nines(share) <= top + 0.01]
    label = "format(100 * (1 - pow(10, -datum.value)), '.6~r') + ' %'"
    axis = alt.Axis(values=ticks, labelExpr=label, labelAngle=0, grid=True)
    x = alt.X("at:Q", title="percentile, as 1 / (1 - p), logarithmic", axis=axis, scale=alt.Scale(nice=False))
    return {"x": x, "y": alt.Y("ms:Q", **_latencies(grid=True))}


def _share_axes() -> dict[str, Any]:
    axis, scale = alt.Axis(format="%", grid=True), alt.Scale(domain=[0, 1.04], nice=False)
    return {
        "x": alt.X("ms:Q", **_latencies(grid=False)),
        "y": alt.Y("at:Q", title="answered within", axis=axis, scale=scale),
    }


def _steps(upper_ns: Sequence[int], counts: Sequence[int], failed: int) -> list[tuple[float, float]]:
    """(latency in ms, share answered within it) from a histogram, at most `_STEPS` of them, evenly over the axis.

    The `failed` requests count as never answered: the shares end below 1 by theirs.
    """
    total, below = sum(counts) + failed, 0
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


FIGURES = (
    FigureSpec("load", "Load time by phase", "Seconds from the first insert to searchable.", "II", _load, "phases"),
    FigureSpec(
        "latency",
        "Latency of one client",
        "The thin line spans p50 to p99; the band around a p50 is ± one standard deviation of its runs.",
        latency_table,
        _latency,
        "percentiles",
    ),
    FigureSpec(
        "clients",
        "Queries per second by clients",
        "Closed loop, K = {k}, no filter; clients on a logarithmic scale.",
        clients_table,
        partial(_clients, metric="qps", title="queries per second"),
        each=timed_sizes,
    ),
    FigureSpec(
        "p99-clients",
        "p99 by clients",
        "Of the same queries as in the figure above, K = {k}: within what time all but one in a hundred had their"
        " answer.",
        tails_table,
        partial(_clients, metric="p99_ms", title="p99 (milliseconds)"),
        each=timed_sizes,
    ),
    FigureSpec(
        "server-cpu",
        "CPU a query",
        "Of all processes of the server, for an answered query: the mean over runs, and ± one standard deviation.",
        "R",
        _cpu,
        every=True,
    ),
    FigureSpec(
        "recall", "Recall", "Against exact neighbours; the axis does not start at zero.", "VIII", _recall, "recall"
    ),
    FigureSpec(
        "storage",
        "Storage by component",
        "MiB on disk after settling: the total of a system in full colour, what it consists of below."
        " Parts that hold nothing are left out. The dashed line is the raw vectors.",
        "IX",
        _storage,
        "",
    ),
    FigureSpec(
        "pareto-qps",
        "Recall and queries per second",
        "One point a search effort, with 95 % intervals; the line is the front."
        " Pale points are dominated: another effort of the same system has as much recall for less.",
        "P",
        partial(_pareto, metric="qps"),
    ),
    FigureSpec(
        "pareto-p99",
        "Recall and p99",
        "As above, with the 99th percentile of latency as the cost."
        " Pale points are dominated: another effort of the same system has as much recall for less.",
        "P",
        partial(_pareto, metric="p99_ms"),
    ),
    FigureSpec(
        "filter-recall",
        "Recall by selectivity",
        "Share of rows that pass on a logarithmic scale. Full lines: filters independent of position; dashed: rows near"
        " the query; dotted: rows far from it.",
        "F",
        partial(_selectivity, metric="recall_by_id"),
    ),
    FigureSpec(
        "filter-latency",
        "Median latency by selectivity",
        "As above; both axes are logarithmic.",
        "F",
        partial(_selectivity, metric="p50_ms"),
    ),
    FigureSpec(
        "ecdf",
        "Distribution of latency, one client",
        "Share of queries answered within a latency (ECDF), all runs together, K = {k}, no filter. Queries that failed"
        " were never answered. Marks are p50, p95, p99 (means over runs) and p99.9 (of all runs together).",
        latency_table,
        partial(_distribution, tail=False),
        described="Distribution of latency",
        each=single_sizes,
        fold=True,
    ),
    FigureSpec(
        "distribution",
        "The tail of latency, one client",
        "The same by percentile, K = {k}, as HDR plots have it: every further nine is as wide as the one before, so"
        " that the slowest query in a thousand, and in ten thousand, are to be seen. Marks as above.",
        latency_table,
        partial(_distribution, tail=True),
        described="Latency by percentile",
        each=single_sizes,
        fold=True,
    ),
)
"""All of them, in the order of the page."""
