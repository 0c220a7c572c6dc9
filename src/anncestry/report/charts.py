"""The charts, as Vega-Lite specs built with altair: one panel for each dataset and topology, one colour a system."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from anncestry.report.absence import brief
from anncestry.report.numbers import rows_of
from anncestry.report.quantities import PHASES
from anncestry.report.tables import Row, text_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette for the colour-blind, without yellow and black, which vanish on a light or dark ground."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
"""A second sign for a system beside its colour."""

PHASE_OPACITY = dict(zip(PHASES, (1.0, 0.7, 0.45, 0.25), strict=True))

SEPARATOR = "\x1f"
"""Between the parts of a label that holds more than one."""

NUMBER = ",.4~r"
"""The d3 format of axes: at most four digits that count, never a power of ten: Vega's own for logarithms says 1e+1."""

TICKS = 8
"""About how many ticks an axis along the whole width of a page has."""

_TOTAL = "total"


@dataclass(frozen=True)
class Panel:
    """One chart of a figure; `spec` is Vega-Lite without colours of its own for text and axes: the page themes it."""

    heading: str
    description: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A row of panels that show the same thing for each dataset; `legend` names what the caption has to explain."""

    name: str
    title: str
    caption: str
    table: str
    legend: str
    panels: tuple[Panel, ...]


def colours(df: pd.DataFrame) -> dict[str, str]:
    """The colour of each system, the same everywhere on a page."""
    systems = sorted(set(df["system"]))
    return {system: COLOURS[place % len(COLOURS)] for place, system in enumerate(systems)}


def figures(df: pd.DataFrame) -> list[Figure]:
    """The headline charts for what is in the tidy frame `df`; a figure without a number is left out."""
    rows = rows_of(df)
    palette = colours(df)

    def figure(name: str, title: str, caption: str, table: str, legend: str, draw: Draw) -> Figure:
        return Figure(name, title, caption, table, legend, panels(rows, palette, title, draw))

    drawn = [
        figure("load", "Load time by phase", "Seconds from the first insert to searchable.", "II", "phases", _load),
        figure(
            "latency",
            "Latency of one client",
            "The thin line spans p50 to p99; the band around a p50 is ± one standard deviation of its runs.",
            "IV",
            "percentiles",
            _latency,
        ),
        figure(
            "clients",
            "Queries per second by clients",
            "Closed loop, K = 10, no filter; clients on a logarithmic scale.",
            "X",
            "shapes",
            _clients,
        ),
        figure(
            "recall", "Recall", "Against exact neighbours; the axis does not start at zero.", "VIII", "recall", _recall
        ),
        figure(
            "storage",
            "Storage by component",
            "MiB on disk after settling: the total of a system in full colour, what it consists of below."
            " Parts that hold nothing are left out. The dashed line is the raw vectors.",
            "IX",
            "",
            _storage,
        ),
    ]
    return [figure for figure in drawn if figure.panels]


Draw = Callable[[list[Row], dict[str, str]], Any]
"""Draws the rows of one dataset and topology; None where there is nothing to draw."""


def panels(rows: list[Row], palette: dict[str, str], title: str, draw: Draw) -> tuple[Panel, ...]:
    """A panel for each dataset and topology that `draw` makes a chart of."""
    places = sorted({(row["dataset"], row["topology"]) for row in rows})
    several = len({topology for _, topology in places}) > 1
    there: dict[tuple[str, str], list[Row]] = {place: [] for place in places}
    for row in rows:
        there[row["dataset"], row["topology"]].append(row)
    drawn = []
    for dataset, topology in places:
        chart = draw(there[dataset, topology], palette)
        heading = f"{dataset} · {topology}" if several else dataset
        if chart is not None:
            drawn.append(Panel(heading, f"{title}, {heading}", chart.to_dict()))
    return tuple(drawn)


def datum(row: Row, **more: Any) -> dict[str, Any]:
    """What a mark knows: its place and value, and for the tooltip what it is and which number."""
    return {
        "system": row["system"],
        "workload": row["workload"],
        "what": row["metric"],
        "value": row["value"],
        "shown": f"{text_of(row['value'], row['std'], row['unit'])} {row['unit']}",
        "number_id": row["number_id"],
        **more,
    }


def tooltip(*first: str) -> list[Any]:
    """What a mark says: its system, the fields `first`, and which number it is."""
    names = {"what": "metric", "shown": "value", "number_id": "number"}
    fields = ("system", *first, "what", "shown", "number_id")
    return [alt.Tooltip(f"{field}:N", title=names.get(field, field)) for field in fields]


def measured_rows(rows: Sequence[Row], metric: str) -> list[Row]:
    """The rows of a metric that have a value."""
    return [row for row in rows if row["metric"] == metric and row["value"] is not None]


def colour_of(palette: dict[str, str]) -> Any:
    """The colour of a mark: that of its system."""
    scale = alt.Scale(domain=list(palette), range=list(palette.values()))
    return alt.Color("system:N", scale=scale, legend=None)


def shape_of(palette: dict[str, str]) -> Any:
    """The shape of a mark: that of its system."""
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(palette))]
    return alt.Shape("system:N", scale=alt.Scale(domain=list(palette), range=shapes), legend=None)


def layer_of(data: list[dict[str, Any]]) -> Any:
    """A layer over data of its own."""
    return alt.Chart(alt.Data(values=data))


def _load(rows: list[Row], palette: dict[str, str]) -> Any:
    totals = {row["system"]: row for row in rows if row["metric"] == "load_s"}
    measured = [row for row in totals.values() if row["value"] is not None]
    if not measured:
        return None
    parts = [
        datum(row, opacity=PHASE_OPACITY[phase], order=order)
        for order, phase in enumerate(PHASES)
        for row in measured_rows(rows, f"{phase}_s")
    ]
    ends = [datum(row, label=f"{text_of(row['value'], None, 's')} s") for row in measured]
    gaps = [
        {"system": row["system"], "value": 0, "label": brief(row["reason"])}
        for row in totals.values()
        if row["value"] is None
    ]
    longest = max(row["value"] for row in measured)
    y = alt.Y("system:N", title=None, sort=list(palette))
    x = alt.X(
        "value:Q",
        title="seconds",
        stack="zero",
        scale=alt.Scale(domain=[0, longest * 1.2], nice=False),
        axis=alt.Axis(tickCount=TICKS),
    )
    opacity = alt.Opacity("opacity:Q", scale=None)
    bars = (
        layer_of(parts)
        .mark_bar(height=20)
        .encode(y=y, x=x, color=colour_of(palette), opacity=opacity, order=alt.Order("order:Q"), tooltip=tooltip())
    )
    labels = (
        layer_of(ends + gaps)
        .mark_text(align="left", dx=5)
        .encode(y=y, x=alt.X("value:Q", title="seconds"), text="label:N")
    )
    return alt.layer(bars, labels).properties(width="container", height=alt.Step(32))


def _latency(rows: list[Row], palette: dict[str, str]) -> Any:
    percentiles = ("p50", "p95", "p99")
    asked = [row for row in rows if row["clients"] == 1 and row["duration_s"] is None]
    points = [datum(row, percentile=p) for p in percentiles for row in measured_rows(asked, f"{p}_ms")]
    if not points:
        return None
    lows = {(row["system"], row["workload"]): row["value"] for row in measured_rows(asked, "p50_ms")}
    spans = [
        datum(row, low=lows[row["system"], row["workload"]])
        for row in measured_rows(asked, "p99_ms")
        if (row["system"], row["workload"]) in lows
    ]
    bands = [
        datum(row, low=max(row["value"] - row["std"], 0), high=row["value"] + row["std"])
        for row in measured_rows(asked, "p50_ms")
        if row["std"]
    ]
    sizes = [point["value"] for point in points]
    wide = min(sizes) > 0 and max(sizes) / min(sizes) > 12
    scale = alt.Scale(type="log", nice=False, padding=12) if wide else alt.Scale(zero=True)
    title = "milliseconds (logarithmic)" if wide else "milliseconds"
    x = alt.X("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6, format=NUMBER))
    y = alt.Y("workload:N", title=None)
    offset = alt.YOffset("system:N", scale=alt.Scale(domain=list(palette), paddingOuter=0.35))
    colour = colour_of(palette)
    marks = alt.Shape(
        "percentile:N",
        scale=alt.Scale(domain=list(percentiles), range=["circle", "diamond", "triangle-right"]),
        legend=None,
    )
    base = {"y": y, "yOffset": offset, "color": colour}
    layers = [
        layer_of(spans).mark_rule(strokeWidth=1.5, opacity=0.6).encode(x=alt.X("low:Q"), x2="value:Q", **base),
        layer_of(points)
        .mark_point(filled=True, size=55, opacity=1)
        .encode(x=x, shape=marks, tooltip=tooltip("workload"), **base),
    ]
    if bands:
        band = layer_of(bands).mark_rule(strokeWidth=11, opacity=0.3)
        layers.insert(0, band.encode(x=alt.X("low:Q"), x2="high:Q", **base))
    return alt.layer(*layers).properties(width="container", height=alt.Step(17, **{"for": "offset"}))


def _clients(rows: list[Row], palette: dict[str, str]) -> Any:
    asked = [row for row in rows if row["k"] == 10 and not row["filter"] and row["duration_s"] is not None]
    points = [datum(row, clients=row["clients"]) for row in measured_rows(asked, "qps")]
    if len({point["clients"] for point in points}) < 2:
        return None
    bars = [
        datum(row, clients=row["clients"], low=row["value"] - row["std"], high=row["value"] + row["std"])
        for row in measured_rows(asked, "qps")
        if row["std"]
    ]
    ticks = sorted({point["clients"] for point in points})
    x = alt.X(
        "clients:Q",
        title="clients",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )
    y = alt.Y("value:Q", title="queries per second", scale=alt.Scale(zero=True))
    base = {"x": x, "color": colour_of(palette)}
    layers = [
        layer_of(points).mark_line(strokeWidth=2).encode(y=y, **base),
        layer_of(points)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(y=y, shape=shape_of(palette), tooltip=tooltip("clients"), **base),
    ]
    if bars:
        layers.insert(0, layer_of(bars).mark_rule().encode(y=alt.Y("low:Q"), y2="high:Q", **base))
    return alt.layer(*layers).properties(width="container", height=220)


def _recall(rows: list[Row], palette: dict[str, str]) -> Any:
    # The workloads of a fixed time ask what those of a fixed count ask: the same recall, many times over.
    asked = [row for row in rows if row["duration_s"] is None] or rows
    by_id, by_distance = ([datum(row) for row in measured_rows(asked, f"recall_by_{by}")] for by in ("id", "distance"))
    if not by_id:
        return None
    lowest = min(point["value"] for point in by_id + by_distance)
    floor = min(0.95, math.floor(lowest * 20) / 20)
    base = {
        "x": alt.X(
            "value:Q", title="recall", scale=alt.Scale(domain=[floor, 1], nice=False), axis=alt.Axis(tickCount=5)
        ),
        "y": alt.Y("workload:N", title=None),
        "yOffset": alt.YOffset("system:N", scale=alt.Scale(domain=list(palette), paddingOuter=0.35)),
        "color": colour_of(palette),
        "tooltip": tooltip("workload"),
    }
    layers = [
        layer_of(by_distance).mark_tick(thickness=2.5, height=13, opacity=1).encode(**base),
        layer_of(by_id).mark_point(filled=True, size=60, opacity=1).encode(**base),
    ]
    return alt.layer(*layers).properties(width="container", height=alt.Step(17, **{"for": "offset"}))


def _storage(rows: list[Row], palette: dict[str, str]) -> Any:
    bars = []
    for system in palette:
        here = [row for row in rows if row["system"] == system and row["value"] is not None]
        bars += [_bar(row, system, _TOTAL) for row in here if row["metric"] == "storage_total_mib"]
        parts = [row for row in here if row["metric"].startswith("storage_component_mib[") and row["value"]]
        parts.sort(key=lambda row: (-row["value"], row["metric"]))
        bars += [_bar(row, system, row["metric"].partition("[")[2][:-1]) for row in parts]
    if not bars:
        return None
    raw = measured_rows(rows, "storage_raw_mib")[:1]
    longest = max(datum["value"] for datum in bars + raw)
    # Two systems may both have a component of one name: the place is the system and the name, the label the latter.
    label = f"split(datum.label, '{SEPARATOR}')[1]"
    y = alt.Y("place:N", title=None, sort=[datum["place"] for datum in bars], axis=alt.Axis(labelExpr=label))
    x = alt.X(
        "value:Q",
        title="MiB",
        scale=alt.Scale(domain=[0, longest * 1.2], nice=False),
        axis=alt.Axis(tickCount=TICKS),
    )
    opacity = alt.Opacity("opacity:Q", scale=None)
    layers = [
        layer_of(bars)
        .mark_bar(height=12)
        .encode(x=x, y=y, color=colour_of(palette), opacity=opacity, tooltip=tooltip()),
        layer_of(bars).mark_text(align="left", dx=4).encode(x=x, y=y, text="label:N"),
    ]
    if raw:
        line = layer_of([datum(raw[0])]).mark_rule(strokeDash=[4, 3])
        layers.append(line.encode(x=alt.X("value:Q"), tooltip=tooltip()))
    return alt.layer(*layers).properties(width="container", height=alt.Step(20))


def _bar(row: Row, system: str, name: str) -> dict[str, Any]:
    total = name == _TOTAL
    return datum(
        row,
        place=f"{system}{SEPARATOR}{system if total else name}",
        opacity=1.0 if total else 0.45,
        label=text_of(row["value"], None, "MiB"),
    )
