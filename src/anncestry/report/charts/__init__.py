"""Charts of the report, as Vega-Lite specs built with altair: figures, their panels, and what all charts share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import altair as alt

from anncestry.report.model.cells import Row, marks, text_of
from anncestry.report.model.material import Material

_Place = TypeVar("_Place", bound=tuple[str, ...])

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#C2385A", "#44AA99", "#8E5EC2", "#A0674B", "#8A8A2E", "#8A8A8A"),
)
"""Okabe and Ito's palette for the colour-blind, without yellow and black, which vanish on a light or dark ground; then
six that differ from them, and stand out from both grounds."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
"""A second sign for a system beside its colour: see `shapes`."""

SEPARATOR = "\x1f"
"""Between the parts of a label that holds more than one."""

NUMBER = ",.4~r"
"""The d3 format of axes: at most four digits that count, never a power of ten: Vega's own for logarithms says 1e+1."""

TICKS = 8
"""About how many ticks an axis along the whole width of a page has."""

LOGARITHMIC = alt.Scale(type="log", nice=False, padding=12)
OPACITY = alt.Opacity("opacity:Q", scale=None)
"""The field `opacity` of a datum as it is."""

Data = list[dict[str, Any]]


@dataclass(frozen=True)
class Panel:
    """One chart of a figure; `spec` is Vega-Lite without colours of its own for text and axes: the page themes it."""

    heading: str
    description: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A row of panels that show the same thing for each dataset; `legend` names what the caption has to explain.

    `tables` are those that have its numbers. A `folded` one is drawn when a reader opens it.
    """

    name: str
    title: str
    caption: str
    tables: tuple[str, ...]
    legend: str
    panels: tuple[Panel, ...]
    folded: bool = False


def made(
    name: str,
    title: str,
    caption: str,
    tables: str | Sequence[str],
    legend: str,
    charts: Iterable[tuple[str, Any]],
    *,
    described: str = "",
    folded: bool = False,
) -> list[Figure]:
    """The figure of these charts, each with its heading, unless all of them are None.

    `described`: the title that is read aloud, where it is another one.
    """
    panels = [
        Panel(heading, f"{described or title}, {heading}", chart if isinstance(chart, dict) else chart.to_dict())
        for heading, chart in charts
        if chart is not None
    ]
    of = (tables,) if isinstance(tables, str) else tuple(tables)
    return [Figure(name, title, caption, of, legend, tuple(panels), folded)] if panels else []


def by_place(
    material: Material, rows: Sequence[Row], draw: Callable[[list[Row], list[Row]], Any]
) -> Iterator[tuple[str, Any]]:
    """For each dataset and topology a heading, and a chart; the axes of one dataset are alike.

    `draw` makes the chart of the rows of one place; it also gets those of all places that it stands beside.
    """
    found: dict[tuple[str, str], list[Row]] = {place: [] for place in material.places(rows)}
    for row in rows:
        found[row["dataset"], row["topology"]].append(row)
    several = len({topology for _, topology in found}) > 1
    for dataset, group in groupby(found, key=itemgetter(0)):
        places = list(group)
        beside = [row for place in places for row in found[place]]
        drawn = alike([draw(found[place], beside) for place in places])
        for (_, topology), chart in zip(places, drawn, strict=True):
            yield f"{dataset} · {topology}" if several else dataset, chart


def alike_by(charts: Mapping[_Place, Any], group: Callable[[_Place], Any]) -> dict[_Place, dict[str, Any] | None]:
    """The charts of places; those that are of one `group` are `alike`."""
    groups: dict[Any, list[_Place]] = {}
    for place in charts:
        groups.setdefault(group(place), []).append(place)
    drawn = {
        place: spec
        for places in groups.values()
        for place, spec in zip(places, alike([charts[place] for place in places]), strict=True)
    }
    return {place: drawn[place] for place in charts}


def alike(charts: Sequence[Any]) -> list[dict[str, Any] | None]:
    """These charts (or None) as specs whose axes of quantities span the same, as they are to be compared.

    Vega-Lite has no scale that separate charts share: each gets the ends of all as its domain, and the ticks of all
    where ticks are named. What is logarithmic in some of them only stays as it is: no domain makes these alike.
    """
    specs = [None if chart is None else chart.to_dict() for chart in charts]
    drawn = [spec for spec in specs if spec is not None]
    for channel in ("x", "y"):
        found = [encoding for spec in drawn for encoding in _quantities(spec, channel)]
        ends = [end for spec in drawn for end in _ends(spec, channel)]
        kinds = {kind for spec in drawn for kind in _kinds(spec, channel)}
        if len(drawn) < 2 or not ends or ("log" in kinds and len(kinds) > 1):
            continue
        if "zero" in kinds:
            ends.append(0.0)
        fixed = any("domain" in encoding.get("scale", {}) for encoding in found)
        ticks = {tick for encoding in found for tick in (encoding.get("axis") or {}).get("values", ())}
        for encoding in found:
            scale = encoding.setdefault("scale", {})
            scale.setdefault("nice", not fixed)
            scale["domain"] = [min(ends), max(ends)]
            if "values" in (encoding.get("axis") or {}):
                encoding["axis"]["values"] = sorted(ticks)
    return specs


def _layers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of a chart: itself, if it has no others."""
    layers: list[dict[str, Any]] = spec.get("layer", [spec])
    return layers


def _quantities(spec: dict[str, Any], channel: str) -> list[dict[str, Any]]:
    """The encodings of a chart that make its axis of a quantity on this channel, each as it is in the spec."""
    encodings = [layer.get("encoding", {}).get(channel, {}) for layer in _layers(spec)]
    return [encoding for encoding in encodings if encoding.get("type") == "quantitative"]


def _kinds(spec: dict[str, Any], channel: str) -> set[str]:
    """How that axis begins: at "zero", where its data do ("data"), or on a "log" scale; one for the whole chart."""
    scales = [encoding["scale"] for encoding in _quantities(spec, channel) if encoding.get("scale")]
    if any(scale.get("type") == "log" for scale in scales):
        return {"log"}
    fixed = any("domain" in scale or scale.get("zero") is False for scale in scales)
    return {"data" if fixed else "zero"} if _quantities(spec, channel) else set()


def _ends(spec: dict[str, Any], channel: str) -> list[float]:
    """What that axis of one chart spans: its domain if it has one, else the values of its data."""
    fixed = [encoding.get("scale", {}).get("domain") for encoding in _quantities(spec, channel)]
    if any(fixed):
        return [end for domain in fixed for end in domain or ()]
    found = []
    for layer in _layers(spec):
        encoding = layer.get("encoding", {})
        data = layer.get("data") or spec.get("data", {})  # of all layers, where they are drawn from the same
        values = data["values"] if "values" in data else spec.get("datasets", {}).get(data.get("name"), [])
        fields = [encoding.get(name, {}).get("field") for name in (channel, f"{channel}2")]
        if encoding.get(channel) in _quantities(spec, channel):
            found += [value[field] for value in values for field in fields if value.get(field) is not None]
    return found


def colours(systems: Iterable[str]) -> dict[str, str]:
    """The colour of each system, in alphabetical order: the same everywhere on a page. A second dozen is half grey."""
    return {system: _colour(place) for place, system in enumerate(sorted(set(systems)))}


def _colour(place: int) -> str:
    dozen, rank = divmod(place, len(COLOURS))
    red_green_blue = (int(COLOURS[rank][at : at + 2], 16) for at in (1, 3, 5))
    return COLOURS[rank] if dozen % 2 == 0 else "#" + "".join(f"{(part + 128) // 2:02X}" for part in red_green_blue)


def shapes(count: int) -> list[str]:
    """The shape of each of `count` systems in the order of `colours`: up to 72 differ in colour or in shape."""
    return [SHAPES[(place + place // len(COLOURS)) % len(SHAPES)] for place in range(count)]


def datum(row: Row, **more: Any) -> dict[str, Any]:
    """What a mark knows: its place and value, and for the tooltip what it is and which number."""
    return {
        "system": row["system"],
        "workload": row["workload"],
        "what": row["metric"],
        "value": row["value"],
        "shown": f"{text_of(row['value'], row['std'], row['unit'])} {row['unit']}{marks(row)}",
        "number_id": row["number_id"],
        **more,
    }


def spread(row: Row, **more: Any) -> dict[str, Any]:
    """A datum that spans one standard deviation to both sides of a value, cut at zero."""
    return datum(row, **more, low=max(row["value"] - row["std"], 0), high=row["value"] + row["std"])


def tooltip(*first: str) -> list[Any]:
    """What a mark says: its system, the fields `first`, and which number it is."""
    names = {"what": "metric", "shown": "value", "number_id": "number"}
    fields = ("system", *first, "what", "shown", "number_id")
    return [alt.Tooltip(f"{field}:N", title=names.get(field, field)) for field in fields]


def measured_rows(rows: Iterable[Row], metric: str) -> list[Row]:
    return [row for row in rows if row["metric"] == metric and row["value"] is not None]


def is_single(row: Row, k: int, *, filtered: bool = False) -> bool:
    """Whether a number is of one client that asked a count of queries for `k`."""
    of_one = (row["k"], row["clients"], bool(row["filter"])) == (k, 1, filtered)
    return of_one and row["duration_s"] is None and row["target_recall"] is None


def colour_of(palette: dict[str, str]) -> Any:
    scale = alt.Scale(domain=list(palette), range=list(palette.values()))
    return alt.Color("system:N", scale=scale, legend=None)


def shape_of(palette: dict[str, str]) -> Any:
    return alt.Shape("system:N", scale=alt.Scale(domain=list(palette), range=shapes(len(palette))), legend=None)


def signs_of(field: str, signs: str, of: dict[str, Any]) -> Any:
    """The encoding `signs` ("shape" or "strokeDash") of a field's values, each by its own sign, without a legend."""
    encoding = alt.Shape if signs == "shape" else alt.StrokeDash
    return encoding(f"{field}:N", scale=alt.Scale(domain=list(of), range=list(of.values())), legend=None)


def seconds(since: str) -> Any:
    """An axis of time along the whole width of a page."""
    scale, axis = alt.Scale(nice=False), alt.Axis(tickCount=TICKS)
    return alt.X("at_s:Q", title=f"seconds since {since}", scale=scale, axis=axis)


def clients(points: Iterable[dict[str, Any]]) -> Any:
    """A logarithmic axis of numbers of clients, with a tick for each; None if there is one number only."""
    ticks = sorted({point["clients"] for point in points})
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    axis = alt.Axis(values=ticks, format="d", grid=False)
    return alt.X("clients:Q", title="clients", scale=scale, axis=axis) if len(ticks) > 1 else None


def layer_of(data: Data) -> Any:
    """A layer over data of its own."""
    return alt.Chart(alt.Data(values=data))


def points_of(data: Data, size: int) -> Any:
    return layer_of(data).mark_point(filled=True, size=size, opacity=1)


def lines_of(data: Data) -> Any:
    return layer_of(data).mark_line(strokeWidth=2)


def layered(height: Any, *layers: Any) -> Any:
    """The layers that have data, the first at the bottom, as one chart that is as wide as its panel."""
    return alt.layer(*(layer for layer in layers if layer.data.values)).properties(width="container", height=height)


def curves(
    height: int, points: Data, axes: dict[str, Any], shape: Any, tips: Any, *below: Any, size: int = 70, **lines: Any
) -> Any:
    """Points joined by lines, above the layers `below`; `lines` are encodings that only lines have."""
    drawn = points_of(points, size).encode(shape=shape, tooltip=tips, **axes)
    return layered(height, *below, lines_of(points).encode(**lines, **axes), drawn)
