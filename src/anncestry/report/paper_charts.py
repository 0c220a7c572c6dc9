"""Figures 1-9 of the paper, with its axes and series, for what was measured: all datasets of a topology in one chart.

Colours and signs of systems are the page's own, the same in all its charts. What was not measured, or is invalid, says
so in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt

from anncestry.report.absence import brief
from anncestry.report.charts import (
    NUMBER,
    SEPARATOR,
    SHAPES,
    Figure,
    Panel,
    colour_of,
    colours,
    datum,
    layer_of,
    shape_of,
    tooltip,
)
from anncestry.report.material import Material
from anncestry.report.paper_tables import LIKE, several_nodes, sizes
from anncestry.report.tables import Row

_ORDER = (
    *("fashion-mnist-784-euclidean", "nytimes-256-angular", "glove-25-angular", "glove-100-angular"),
    *("glove-200-angular", "sift-128-euclidean", "gist-960-euclidean"),
    *("deep-image-96-angular-2m", "deep-image-96-angular-5m"),
)
"""The paper's order of datasets; others come after them, by size."""

_HEIGHT = 240
_SEVERAL = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00")
"""Colours of topologies: light blue and orange first, as in the paper's Figure 9."""
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])

Part = tuple[str, Callable[[str], Any]]
"""A panel's heading, and what draws it for one topology, or None where there is nothing."""


def figures(material: Material) -> list[Figure]:
    """The figures of the paper that something was measured for."""
    paper = _Paper(material)
    drawn = [
        paper.figure(
            1,
            "Loading",
            "Time from the first insert to searchable, on a logarithmic axis, and vectors a second.",
            "II",
            ("(a) Data loading time", lambda t: paper.bars(t, "load_s", "load time (seconds)", log=True)),
            ("(b) Loading throughput", lambda t: paper.bars(t, "rows_per_s", "throughput (vectors/s)")),
        ),
        paper.figure(
            2,
            "Processor and memory while loading",
            "Of all processes of the server; 100 % is one core, kept busy. The paper's are those of its Python client.",
            "III",
            ("(a) CPU during data loading", lambda t: paper.bars(t, "cpu_avg_pct", "average CPU (%)", phase="load")),
            (
                "(b) Memory during data loading",
                lambda t: paper.bars(t, "rss_peak_mib", "peak memory (MiB)", phase="load"),
            ),
        ),
        paper.figure(
            3,
            "Median latency, one client, no filter",
            "Whiskers are ± one sample standard deviation over runs, cut at zero.",
            "IV",
            ("(a) K = 10", lambda t: paper.bars(t, "p50_ms", "p50 (ms)", k=10, whiskers=True)),
            ("(b) K = 100", lambda t: paper.bars(t, "p50_ms", "p50 (ms)", k=100, whiskers=True)),
        ),
        paper.figure(
            4,
            "Median latency without and with a filter",
            "K = 10, one client. Full colour: no filter; pale: filtered.",
            "VII",
            ("K = 10", paper.filters),
        ),
        paper.figure(
            5,
            "Recall by id",
            "Against the exact neighbours.",
            "VIII",
            ("(a) Recall@10", lambda t: paper.bars(t, "recall_by_id", "recall", k=10, top=1.05, labels=True)),
            ("(b) Recall@100", lambda t: paper.bars(t, "recall_by_id", "recall", k=100, top=1.05, labels=True)),
        ),
        paper.scaling(),
        paper.figure(
            7,
            "Median latency by dimension",
            f"One client, no filter. Lines join datasets of one size (counts of vectors within a factor of {LIKE:g});"
            " others differ by their size, too.",
            "XI",
            ("(a) K = 10", lambda t: paper.by_dimension(t, 10)),
            ("(b) K = 100", lambda t: paper.by_dimension(t, 100)),
        ),
        paper.figure(
            8,
            "Latency and throughput by number of vectors",
            "K = 10, one client, no filter. The datasets differ by dimension, too: the tooltip names them.",
            "XI",
            ("(a) Latency by scale", lambda t: paper.by_size(t, "p50_ms", "p50 (ms)")),
            ("(b) QPS by scale", lambda t: paper.by_size(t, "qps", "throughput (1/s)")),
        ),
    ]
    if not any(row["arm"] for row in material.rows):  # else `arms` draws Figure 9, and marks what drifted
        drawn.append(paper.clusters())
    return [figure for figure in drawn if figure.panels]


class _Paper:
    """What the figures pick from."""

    def __init__(self, material: Material) -> None:
        self._rows = material.ordinary
        self._palette = colours(material.first)
        self._topologies = sorted({row["topology"] for row in self._rows})
        self._several = several_nodes(self._rows, material.records)
        self._sizes = sizes(self._rows)
        known = [row for row in self._rows if row["metric"] in ("rows", "dim") and row["value"] is not None]
        self._count = {row["dataset"]: int(row["value"]) for row in known if row["metric"] == "rows"}
        self._dim = {row["dataset"]: int(row["value"]) for row in known if row["metric"] == "dim"}
        names = {row["dataset"] for row in self._rows}
        rank = {name: place for place, name in enumerate(_ORDER)}
        self._datasets = sorted(names, key=lambda n: (rank.get(n, len(rank)), self._count.get(n, 0), n))

    def figure(self, number: int, title: str, caption: str, table: str, *parts: Part, legend: str = "") -> Figure:
        drawn = []
        for heading, draw in parts:
            for topology in self._topologies:
                chart = draw(topology)
                if chart is not None:
                    said = f"{heading} · {topology}" if len(self._topologies) > 1 else heading
                    drawn.append(_panel(said, f"{title}, {said}", chart))
        return _figure(number, title, caption, table, drawn, legend)

    def bars(
        self,
        topology: str,
        metric: str,
        title: str,
        *,
        phase: str = "",
        k: int | None = None,
        log: bool = False,
        top: float | None = None,
        whiskers: bool = False,
        labels: bool = False,
    ) -> Any:
        """Bars grouped by dataset, a bar a system; of queries, those of one client that asked for `k` unfiltered."""
        rows = [
            row
            for row in self._rows
            if row["topology"] == topology and row["metric"] == metric and (not phase or row["phase"] == phase)
        ]
        if k is not None:
            rows = self._of_one_workload([row for row in rows if _single(row, k)])
        return self._grouped(
            [(row, row["system"], 1.0) for row in rows],
            list(self._palette),
            title,
            log=log,
            top=top,
            whiskers=whiskers,
            labels=labels,
        )

    def filters(self, topology: str) -> Any:
        """Bars grouped by dataset: each system without a filter, then with one."""
        here = [row for row in self._rows if row["topology"] == topology and row["metric"] == "p50_ms"]
        pairs = [
            *((row, row["system"], 1.0) for row in self._of_one_workload([r for r in here if _single(r, 10)])),
            *(
                (row, f"{row['system']} + filter", 0.5)
                for row in self._of_one_workload([r for r in here if _single(r, 10, filtered=True)])
            ),
        ]
        if not any(opacity < 1 for _, _, opacity in pairs):
            return None
        series = [name for system in self._palette for name in (system, f"{system} + filter")]
        return self._grouped(pairs, series, "p50 (ms)")

    def scaling(self) -> Figure:
        """Figure 6: queries per second by clients, a panel a dataset."""
        drawn = []
        for dataset in self._datasets:
            for topology in self._topologies:
                rows = [row for row in self._rows if (row["dataset"], row["topology"]) == (dataset, topology)]
                chart = self._by_clients([row for row in rows if _timed(row)])
                if chart is not None:
                    said = f"{dataset} · {topology}" if len(self._topologies) > 1 else dataset
                    drawn.append(_panel(said, f"Queries per second by clients, {said}", chart))
        caption = "Closed loops of a fixed time, K = 10, no filter. The axis of queries does not start at zero."
        return _figure(6, "Queries per second by clients", caption, "X", drawn, "shapes")

    def by_dimension(self, topology: str, k: int) -> Any:
        """Points by dimension; lines join datasets of one size."""
        rows = self._of_one_workload(
            [r for r in self._rows if r["topology"] == topology and r["metric"] == "p50_ms" and _single(r, k)]
        )
        points = [
            datum(row, dataset=row["dataset"], at=self._dim[row["dataset"]], size=self._sizes.get(row["dataset"], ""))
            for row in rows
            if row["value"] is not None and row["dataset"] in self._dim
        ]
        if len({point["at"] for point in points}) < 2:
            return None
        names: dict[int, list[str]] = {}
        for point in points:
            if point["dataset"] not in names.setdefault(point["at"], []):
                names[point["at"]].append(point["dataset"])
        axis = alt.Axis(values=sorted(names), format="d", labelAngle=_angle(len(names)), grid=False)
        x = alt.X("at:Q", title="dimensions", scale=alt.Scale(zero=False, nice=False, padding=14), axis=axis)
        return self._lines(points, x, "p50 (ms)", "dataset", "size", detail="size:N")

    def by_size(self, topology: str, metric: str, title: str) -> Any:
        """Points by number of vectors."""
        rows = self._of_one_workload(
            [r for r in self._rows if r["topology"] == topology and r["metric"] == metric and _single(r, 10)]
        )
        points = [
            datum(row, dataset=row["dataset"], at=self._count[row["dataset"]])
            for row in rows
            if row["value"] is not None and row["dataset"] in self._count
        ]
        counts = sorted({point["at"] for point in points})
        if len(counts) < 2:
            return None
        axis = alt.Axis(values=counts, format=NUMBER, labelAngle=_angle(len(counts)), grid=False, labelOverlap=True)
        scale = alt.Scale(type="log", nice=False, padding=14)
        return self._lines(points, alt.X("at:Q", title="vectors", scale=scale, axis=axis), title, "dataset")

    def clusters(self) -> Figure:
        """Figure 9: every topology side by side, where one system was measured on one node and on several."""
        both = {
            (row["dataset"], row["system"])
            for row in self._rows
            if row["topology"] in self._several and row["metric"] == "load_s"
        } & {
            (row["dataset"], row["system"])
            for row in self._rows
            if row["topology"] not in self._several and row["metric"] == "load_s"
        }
        rows = [row for row in self._rows if (row["dataset"], row["system"]) in both]
        drawn: list[Panel] = []
        for heading, metric, title, digits in (
            ("(a) Query latency (K = 10)", "p50_ms", "p50 (ms)", ".1f"),
            ("(b) Single-client QPS (K = 10)", "qps", "queries per second", ",.0f"),
            ("(d) Recall@10", "recall_by_id", "recall by id", ".3f"),
        ):
            chart = self._side_by_side([r for r in rows if r["metric"] == metric and _single(r, 10)], title, digits)
            if chart is not None:
                drawn.append(_panel(heading, f"One node and several, {heading}", chart))
        for dataset in self._datasets:
            timed = [row for row in rows if row["dataset"] == dataset and _timed(row)]
            chart = self._by_clients(timed, by_topology=True)
            if chart is not None:
                heading = f"(c) Concurrent scaling · {dataset}"
                drawn.insert(len(drawn) - 1 if drawn else 0, _panel(heading, f"One node and several, {heading}", chart))
        caption = (
            "Of the systems that were measured on one node and on several; K = 10, no filter. Colours of bars are"
            " topologies; in (c) colours are systems, and the stroke is the topology."
        )
        return _figure(9, "One node and several nodes", caption, "XII", drawn, "shapes")

    def _of_one_workload(self, rows: Sequence[Row]) -> list[Row]:
        """Of each dataset, the rows of one workload: that with the most numbers; of several, of the highest effort."""
        chosen: list[Row] = []
        for dataset in self._datasets:
            here = [row for row in rows if row["dataset"] == dataset]
            names = sorted({row["workload"] for row in here})
            if names:
                numbers = {name: sum(r["workload"] == name and r["value"] is not None for r in here) for name in names}
                effort = {row["workload"]: row["ef_search"] or 0 for row in here}
                best = max(names, key=lambda name: (numbers[name], effort[name]))
                chosen += [row for row in here if row["workload"] == best]
        return chosen

    def _label(self, dataset: str) -> str:
        if dataset not in self._count or dataset not in self._dim:
            return dataset
        return f"{dataset}{SEPARATOR}{self._count[dataset]:,} × {self._dim[dataset]}"

    def _grouped(
        self,
        pairs: Sequence[tuple[Row, str, float]],
        series: list[str],
        title: str,
        *,
        log: bool = False,
        top: float | None = None,
        whiskers: bool = False,
        labels: bool = False,
    ) -> Any:
        bars = [
            datum(row, at=self._label(row["dataset"]), series=name, opacity=opacity)
            for row, name, opacity in pairs
            if row["value"] is not None
        ]
        if not bars:
            return None
        sort = [self._label(name) for name in self._datasets if any(row["dataset"] == name for row, _, _ in pairs)]
        split = f"split(datum.label, '{SEPARATOR}')"
        x = alt.X("at:N", title=None, sort=sort, axis=_axis_of(split, len(sort)))
        offset = alt.XOffset("series:N", scale=alt.Scale(domain=series))
        axis = alt.Axis(format=NUMBER, grid=True)
        y = alt.Y("value:Q", title=title, axis=axis, stack=None, scale=_scale(bars, log, top))
        base = {"x": x, "xOffset": offset}
        opacity = alt.Opacity("opacity:Q", scale=None)
        layers = [
            layer_of(bars)
            .mark_bar()
            .encode(y=y, color=colour_of(self._palette), opacity=opacity, tooltip=tooltip("workload"), **base)
        ]
        spread = [
            datum(
                row,
                at=self._label(row["dataset"]),
                series=name,
                low=max(row["value"] - row["std"], 0.0),
                high=row["value"] + row["std"],
            )
            for row, name, _ in pairs
            if whiskers and row["value"] is not None and row["std"]
        ]
        if spread:
            layers.append(layer_of(spread).mark_rule().encode(y=alt.Y("low:Q", title=title), y2="high:Q", **base))
        if labels:
            layers.append(
                layer_of([{**bar, "label": f"{bar['value']:.2f}"} for bar in bars])
                .mark_text(dy=-6)
                .encode(y=alt.Y("value:Q", title=title, stack=None), text="label:N", **base)
            )
        gaps = [
            {"at": self._label(row["dataset"]), "series": name, "label": brief(row["reason"])}
            for row, name, _ in pairs
            if row["value"] is None
        ]
        if gaps:
            layers.append(
                layer_of(gaps)
                .mark_text(angle=270, align="left", baseline="middle", dx=4)
                .encode(y=alt.YValue(value="height"), text="label:N", **base)
            )
        return alt.layer(*layers).properties(width="container", height=_HEIGHT)

    def _side_by_side(self, rows: Sequence[Row], title: str, digits: str) -> Any:
        """Bars grouped by dataset and system, a bar a topology."""
        chosen = [row for row in self._of_one_workload(rows) if row["value"] is not None]
        if len({row["topology"] for row in chosen}) < 2:
            return None
        bars = [
            datum(
                row, at=f"{row['dataset']}{SEPARATOR}{row['system']}", topology=row["topology"],
                label=format(row["value"], digits),
            )
            for row in chosen
        ]  # fmt: skip
        topologies = self._ordered(row["topology"] for row in chosen)
        split = f"split(datum.label, '{SEPARATOR}')"
        x = alt.X("at:N", title=None, axis=_axis_of(split, len({bar["at"] for bar in bars})))
        offset = alt.XOffset("topology:N", scale=alt.Scale(domain=topologies))
        fill = [_SEVERAL[place % len(_SEVERAL)] for place in range(len(topologies))]
        colour = alt.Color(
            "topology:N",
            scale=alt.Scale(domain=topologies, range=fill),
            legend=alt.Legend(title=None, orient="bottom", columns=2, labelLimit=220),
        )
        top = 1.1 if digits == ".3f" else None
        y = alt.Y("value:Q", title=title, axis=alt.Axis(format=NUMBER), stack=None, scale=_scale(bars, False, top))
        base = {"x": x, "xOffset": offset}
        return alt.layer(
            layer_of(bars).mark_bar().encode(y=y, color=colour, tooltip=tooltip("topology", "workload"), **base),
            layer_of(bars).mark_text(dy=-6).encode(y=alt.Y("value:Q", title=title, stack=None), text="label:N", **base),
        ).properties(width="container", height=_HEIGHT)

    def _by_clients(self, rows: Sequence[Row], *, by_topology: bool = False) -> Any:
        points = [
            datum(row, clients=row["clients"], topology=row["topology"], stroke=_STROKE + row["topology"])
            for row in rows
            if row["metric"] == "qps" and row["value"] is not None
        ]
        counts = sorted({point["clients"] for point in points})
        if len(counts) < 2 or (by_topology and len({point["topology"] for point in points}) < 2):
            return None
        axis = alt.Axis(values=counts, format="d", grid=False)
        x = alt.X("clients:Q", title="concurrent clients", axis=axis, scale=alt.Scale(nice=False, padding=14))
        if not by_topology:
            return self._lines(points, x, "throughput (1/s)", "clients", zero=False)
        topologies = self._ordered(point["topology"] for point in points)
        # A field and names of its own: Vega-Lite makes one legend of scales with the same names, and it is the shapes'.
        dash = alt.StrokeDash(
            "stroke:N",
            scale=alt.Scale(
                domain=[_STROKE + name for name in topologies],
                range=[_DASHES[place % len(_DASHES)] for place in range(len(topologies))],
            ),
            legend=None,
        )
        y = alt.Y("value:Q", title="queries per second", axis=alt.Axis(format=NUMBER), scale=alt.Scale(zero=True))
        base = {"x": x, "y": y, "color": colour_of(self._palette)}
        shapes = alt.Shape(
            "topology:N",
            scale=alt.Scale(domain=topologies, range=["circle", "triangle-up", *SHAPES[3:]]),
            legend=alt.Legend(
                title=None,
                orient="bottom",
                columns=2,
                labelLimit=220,
                symbolFillColor="currentColor",
                symbolStrokeColor="currentColor",
            ),
        )
        return alt.layer(
            layer_of(points).mark_line(strokeWidth=2).encode(strokeDash=dash, **base),
            layer_of(points)
            .mark_point(filled=True, size=60, opacity=1)
            .encode(shape=shapes, tooltip=tooltip("topology", "clients"), **base),
        ).properties(width="container", height=_HEIGHT)

    def _lines(
        self, points: list[dict[str, Any]], x: Any, title: str, *said: str, detail: str = "", zero: bool = True
    ) -> Any:
        y = alt.Y("value:Q", title=title, axis=alt.Axis(format=NUMBER), scale=alt.Scale(zero=zero))
        base = {"x": x, "y": y, "color": colour_of(self._palette)}
        line = layer_of(points).mark_line(strokeWidth=2).encode(**base)
        return alt.layer(
            line.encode(detail=detail) if detail else line,
            layer_of(points)
            .mark_point(filled=True, size=70, opacity=1)
            .encode(shape=shape_of(self._palette), tooltip=tooltip(*said), **base),
        ).properties(width="container", height=_HEIGHT)

    def _ordered(self, topologies: Iterable[str]) -> list[str]:
        """Topologies of one node first."""
        return sorted(set(topologies), key=lambda name: (name in self._several, name))


def _figure(number: int, title: str, caption: str, table: str, drawn: Sequence[Panel], legend: str) -> Figure:
    return Figure(f"paper-{number}", f"Figure {number}. {title}", caption, table, legend, tuple(drawn))


def _panel(heading: str, description: str, chart: Any) -> Panel:
    return Panel(heading, description, chart.to_dict())


def _axis_of(label: str, places: int) -> Any:
    """The axis under groups of bars: the fewer they are, the more of their names is told."""
    return alt.Axis(labelExpr=label, labelAngle=0, labelLimit={1: 300, 2: 180}.get(places, 110))


_STROKE = "line of "


def _angle(labels: int) -> int:
    """Degrees by which labels of an axis are turned: not at all while there is room."""
    return 0 if labels <= 4 else -30


def _scale(bars: Sequence[dict[str, Any]], log: bool, top: float | None) -> Any:
    """The scale of bars' values: on a logarithmic one the smallest bar still has a height."""
    values = [bar["value"] for bar in bars]
    if log and min(values) > 0:
        # A bar of exactly a power of ten would end where its axis begins.
        ends = [10.0 ** math.floor(math.log10(min(values)) - 1e-9), 10.0 ** math.ceil(math.log10(max(values)) + 1e-9)]
        return alt.Scale(type="log", domain=ends, nice=False)
    if top is not None:
        return alt.Scale(domain=[0, top], nice=False)
    return alt.Scale(zero=True)


def _single(row: Row, k: int, *, filtered: bool = False) -> bool:
    """Whether a number is of one client that asked a count of queries for `k`."""
    return (
        (row["k"], row["clients"], bool(row["filter"])) == (k, 1, filtered)
        and row["duration_s"] is None
        and row["target_recall"] is None
    )


def _timed(row: Row) -> bool:
    """Whether a number is of a closed loop of a fixed time, of the 10 nearest without a filter."""
    return row["k"] == 10 and not row["filter"] and row["duration_s"] is not None and row["metric"] == "qps"
