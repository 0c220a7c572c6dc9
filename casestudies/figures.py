"""Figures 1-9 of the paper, with its axes and series, for what was measured: all datasets of a topology in one chart.

Colours and signs of systems are the page's own, the same in all its charts. What was not measured, or is invalid, says
so in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from string import ascii_lowercase
from typing import Any, NamedTuple

import altair as alt

from anncestry.report import charts
from anncestry.report.charts import SEPARATOR, Data, Figure, datum
from anncestry.report.charts.standard import PALE
from anncestry.report.model.cells import Row, in_order
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import brief
from anncestry.report.tables.nodes import sizes
from anncestry.report.tables.spec import of_k
from anncestry.report.tables.standard import clients_table, latency_table, said_effort, single_sizes, timed_sizes
from anncestry.report.tables.texts import LIKE

_ORDER = (
    *("fashion-mnist-784-euclidean", "nytimes-256-angular", "glove-25-angular", "glove-100-angular"),
    *("glove-200-angular", "sift-128-euclidean", "gist-960-euclidean"),
    *("deep-image-96-angular-2m", "deep-image-96-angular-5m"),
)
"""The paper's order of datasets; others come after them, by size."""

_HEIGHT = 240
_FIRST = ("#56B4E9", "#E69F00")
_SEVERAL = (*_FIRST, *(colour for colour in charts.COLOURS if colour not in _FIRST))
"""Colours of topologies: light blue and orange first, as in the paper's Figure 9."""
_SIGNS = (
    *("circle", "triangle-up", "diamond", "cross", "triangle-down", "square", "triangle-right", "triangle-left"),
    "M0,-1L.25,-.15L.87,.5L0,.3L-.87,.5L-.25,-.15Z",  # a star of three points
    "M-.8,-.8L.8,-.8L-.8,.8L.8,.8Z",  # an hourglass
    "M-.9,-.7L0,-.15L.9,-.7L.9,.7L0,.15L-.9,.7Z",  # a bow tie
    "M-.7,-.8L-.1,-.8L-.1,.2L.7,.2L.7,.8L-.7,.8Z",  # an L
)
"""Signs of topologies, each of its own for a dozen."""
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])
_STROKE = "line of "
_NODES = "One node and several"
_ONE_WORKLOAD = (
    " Of several workloads of a dataset, that with the most numbers and the highest search effort is drawn; the tooltip"
    " names it."
)


_Draw = Callable[[Sequence[str]], Any]
"""Draws the chart of some topologies."""


class _Style(NamedTuple):
    """How bars are drawn: the top of their axis, if fixed; whiskers of their spread; their values above them."""

    log: bool = False
    top: float | None = None
    whiskers: bool = False
    labels: bool = False


_PLAIN, _LOG, _WHISKERS, _RECALL = _Style(), _Style(log=True), _Style(whiskers=True), _Style(top=1.05, labels=True)


def figures(material: Material) -> list[Figure]:
    """The figures of the paper that something was measured for."""
    paper = _Paper(material)
    drawn = [
        *_of_bars(paper),
        _figure(
            6,
            "Queries per second by clients",
            "Closed loops of a fixed time, no filter. The axis of queries does not start at zero.",
            [clients_table(k) for k in paper.timed],
            paper.scaling(),
            "shapes",
        ),
        paper.figure(
            7,
            "Median latency by dimension",
            f"One client, no filter. Lines join datasets of one size (counts of vectors within a factor of {LIKE:g});"
            " others differ by their size, too." + _ONE_WORKLOAD,
            paper.of_single("XI"),
            *paper.of_sizes("K = {}", paper.by_dimension),
        ),
        paper.figure(
            8,
            "Latency and throughput by number of vectors",
            "One client, no filter. Lines join datasets of one dimension, which is written at their end. A pale mark is"
            " a dataset that is alone in its dimension: it differs from the others by that, too." + _ONE_WORKLOAD,
            paper.of_single("XI"),
            *(
                (f"({letter}) {heading}, K = {k}", partial(paper.by_size, k=k, metric=metric, title=title))
                for k in paper.single
                for letter, heading, metric, title in (
                    ("a", "Latency by scale", "p50_ms", "p50 (ms)"),
                    ("b", "QPS by scale", "qps", "throughput (1/s)"),
                )
            ),
        ),
    ]
    if not any(row["arm"] for row in material.rows):  # else `arms` draws Figure 9, and marks what drifted
        caption = (
            "Of the systems that were measured on one node and on several; no filter. Colours of bars are topologies;"
            " in (c) colours are systems, and the stroke is the topology."
        )
        tables = [of_k(number, k) for number in ("XII", "XIII") for k in paper.single]
        tables += [of_k("XIV", k) for k in paper.timed] + [*paper.of_single("XV")]
        drawn.append(_figure(9, _NODES, caption, tables, paper.clusters(), "shapes", title=f"{_NODES} nodes"))
    return [figure for made in drawn for figure in made]


def _of_bars(paper: _Paper) -> list[list[Figure]]:
    """Figures 1 to 5."""
    bars = paper.bars
    return [
        paper.figure(
            1,
            "Loading",
            "Time from the first insert to searchable, on a logarithmic axis, and vectors a second.",
            "II",
            ("(a) Data loading time", lambda of: bars(of, "load_s", "load time (seconds)", _LOG)),
            ("(b) Loading throughput", lambda of: bars(of, "rows_per_s", "throughput (vectors/s)")),
            bars=True,
        ),
        paper.figure(
            2,
            "Processor and memory while loading",
            "Of all processes of the server; 100 % is one core, kept busy. The paper's are those of its Python client.",
            "III",
            ("(a) CPU during data loading", lambda of: bars(of, "cpu_avg_pct", "average CPU (%)", phase="load")),
            ("(b) Memory during data loading", lambda of: bars(of, "rss_peak_mib", "peak memory (MiB)", phase="load")),
            bars=True,
        ),
        paper.figure(
            3,
            "Median latency, one client, no filter",
            "Whiskers are ± one sample standard deviation over runs, cut at zero." + _ONE_WORKLOAD,
            [latency_table(k) for k in paper.single],
            *paper.of_sizes("K = {}", lambda of, k: bars(of, "p50_ms", "p50 (ms)", _WHISKERS, k=k)),
            bars=True,
        ),
        paper.figure(
            4,
            "Median latency without and with a filter",
            "One client. Full colour: no filter; pale: filtered." + _ONE_WORKLOAD,
            "VII",
            *((f"K = {k}", partial(paper.filters, k=k)) for k in paper.filtered),
            bars=True,
        ),
        paper.figure(
            5,
            "Recall by id",
            "Against the exact neighbours." + _ONE_WORKLOAD,
            "VIII",
            *paper.of_sizes("Recall@{}", lambda of, k: bars(of, "recall_by_id", "recall", _RECALL, k=k)),
            bars=True,
        ),
    ]


def _figure(
    number: int,
    described: str,
    caption: str,
    tables: str | Sequence[str],
    panels: Iterable[tuple[str, Any]],
    legend: str = "",
    title: str = "",
) -> list[Figure]:
    shown = f"Figure {number}. {title or described}"
    return charts.made(f"paper-{number}", shown, caption, tables, legend, panels, described=described)


class _Paper:
    def __init__(self, material: Material) -> None:
        self._rows = material.ordinary
        self._palette = charts.colours(material.first["system"])
        self._nodes = material.nodes
        self._several = {topology for topology, nodes in material.nodes.items() if nodes > 1}
        self._topologies = self._ordered(self._rows)
        # One system in a panel for each topology would be one bar a dataset: then topologies are the bars of one.
        self._of_topologies = len(self._palette) == 1 and len(self._topologies) > 1
        self._sizes = sizes(self._rows)
        self.single, self.timed = single_sizes(self._rows), timed_sizes(self._rows)
        self.filtered = single_sizes(self._rows, filtered=True)
        self._count, self._dim = (
            {row["dataset"]: int(row["value"]) for row in charts.measured_rows(self._rows, metric)}
            for metric in ("rows", "dim")
        )
        names = {row["dataset"] for row in self._rows}
        rank = {name: place for place, name in enumerate(_ORDER)}
        self._datasets = sorted(names, key=lambda n: (rank.get(n, len(rank)), self._count.get(n, 0), n))

    def figure(
        self,
        number: int,
        title: str,
        caption: str,
        tables: str | Sequence[str],
        *parts: tuple[str, _Draw],
        bars: bool = False,
    ) -> list[Figure]:
        """A figure with a panel for each topology and part: its heading, and what draws it for topologies.

        `bars` of one system are in one panel for all topologies.
        """
        panels = []
        for part, draw in parts:
            if bars and self._of_topologies:
                panels.append((part, draw(self._topologies)))
                continue
            drawn = charts.alike([draw([topology]) for topology in self._topologies])
            panels += [
                (self._heading(part, topology), one) for topology, one in zip(self._topologies, drawn, strict=True)
            ]
        return _figure(number, title, caption, tables, panels)

    def of_sizes(self, heading: str, draw: Callable[..., Any]) -> Iterator[tuple[str, _Draw]]:
        """A part of a figure for each number of neighbours that one client asked for."""
        for letter, k in zip(ascii_lowercase, self.single, strict=False):
            yield f"({letter}) {heading.format(k)}", partial(draw, k=k)

    def of_single(self, number: str) -> list[str]:
        """The tables of this number for each number of neighbours that one client asked for."""
        return [of_k(number, k) for k in self.single]

    def bars(
        self,
        topologies: Sequence[str],
        metric: str,
        title: str,
        style: _Style = _PLAIN,
        *,
        phase: str = "",
        k: int | None = None,
    ) -> Any:
        """Bars grouped by dataset, a bar a system; of queries, those of one client that asked for `k` unfiltered."""
        if k is None:
            rows = [row for row in self._of(topologies, metric) if not phase or row["phase"] == phase]
        else:
            rows = self._single(topologies, metric, k)
        return self._grouped([(row, row[self._bar], 1.0) for row in rows], self._names, title, style)

    @property
    def _bar(self) -> str:
        """What each bar is one of."""
        return "topology" if self._of_topologies else "system"

    @property
    def _names(self) -> list[str]:
        return self._topologies if self._of_topologies else list(self._palette)

    def filters(self, topologies: Sequence[str], k: int) -> Any:
        """Bars grouped by dataset: each system without a filter, then with one."""
        filtered = self._single(topologies, "p50_ms", k, filtered=True)
        if not filtered:
            return None
        efforts = {(row["dataset"], row[self._bar]): row["ef_search"] for row in filtered}
        plain = [row for row in self._of(topologies, "p50_ms") if charts.is_single(row, k)]
        alike = [
            row for row in plain if row["ef_search"] == efforts.get((row["dataset"], row[self._bar]), row["ef_search"])
        ]
        bars = [(row, row[self._bar], 1.0) for row in self._of_one_workload(alike)]
        bars += [(row, f"{row[self._bar]} + filter", 0.5) for row in filtered]
        series = [each for name in self._names for each in (name, f"{name} + filter")]
        return self._grouped(bars, series, "p50 (ms)", _PLAIN)

    def scaling(self) -> Iterator[tuple[str, Any]]:
        """Queries per second by clients, a panel for each number of neighbours, dataset and topology."""
        for k, dataset in product(self.timed, self._datasets):
            timed = [row for row in self._rows if row["dataset"] == dataset and _timed(row, k)]
            if self._of_topologies:
                yield f"K = {k} · {dataset}", self._by_clients(timed, by_topology=True, zero=False)
                continue
            drawn = [self._by_clients([row for row in timed if row["topology"] == one]) for one in self._topologies]
            for topology, chart in zip(self._topologies, charts.alike(drawn), strict=True):
                yield self._heading(f"K = {k} · {dataset}", topology), chart

    def by_dimension(self, topologies: Sequence[str], k: int) -> Any:
        """Points by dimension; lines join datasets of one size."""
        points = [
            datum(row, dataset=row["dataset"], at=self._dim[row["dataset"]], size=self._sizes.get(row["dataset"], ""))
            for row in self._single(topologies, "p50_ms", k)
            if row["value"] is not None and row["dataset"] in self._dim
        ]
        places = sorted({point["at"] for point in points})
        if len(places) < 2:
            return None
        axis = alt.Axis(values=places, format="d", labelAngle=_angle(len(places)), grid=False)
        x = alt.X("at:Q", title="dimensions", scale=alt.Scale(zero=False, nice=False, padding=14), axis=axis)
        return self._lines(points, x, "p50 (ms)", "dataset", "size", "workload", detail="size:N")

    def by_size(self, topologies: Sequence[str], *, k: int, metric: str, title: str) -> Any:
        """Points by number of vectors; lines join datasets of one dimension."""
        rows = [
            row
            for row in self._single(topologies, metric, k)
            if row["value"] is not None and row["dataset"] in self._count.keys() & self._dim.keys()
        ]
        counts = sorted({self._count[row["dataset"]] for row in rows})
        if len(counts) < 2:
            return None
        points = []
        for row in rows:
            at, dim = self._count[row["dataset"]], self._dim[row["dataset"]]
            of_line = [
                self._count[other["dataset"]]
                for other in rows
                if (other["system"], self._dim[other["dataset"]]) == (row["system"], dim)
            ]
            several = len(set(of_line)) > 1
            points.append(
                datum(
                    row,
                    dataset=row["dataset"],
                    at=at,
                    dimensions=dim,
                    # Sets of one dimension and one size are no line: it would lead straight up.
                    series=str(dim) if several else row["dataset"],
                    label=f"{dim}-d" if several and at == max(of_line) else "",
                    opacity=1.0 if several else PALE,
                )
            )
        axis = alt.Axis(
            values=counts, format=charts.NUMBER, labelAngle=_angle(len(counts)), grid=False, labelOverlap=True
        )
        scale = alt.Scale(type="log", nice=False, padding=14)
        x = alt.X("at:Q", title="vectors", scale=scale, axis=axis)
        return self._lines(points, x, title, "dataset", "dimensions", "workload", detail="series:N")

    def clusters(self) -> Iterator[tuple[str, Any]]:
        """Every topology side by side, where one system was measured on one node and on several."""
        loads = [row for row in self._rows if row["metric"] == "load_s"]
        one, several = (
            {(row["dataset"], row["system"]) for row in loads if (row["topology"] in self._several) is of_several}
            for of_several in (False, True)
        )
        both = [row for row in self._rows if (row["dataset"], row["system"]) in one & several]

        def side_by_side(metric: str, k: int, title: str, digits: str) -> Any:
            rows = [row for row in both if row["metric"] == metric and charts.is_single(row, k)]
            return self._side_by_side(self._of_one_workload(rows), title, digits)

        for k in self.single:
            yield f"(a) Query latency (K = {k})", side_by_side("p50_ms", k, "p50 (ms)", ".1f")
        for k in self.single:
            yield f"(b) Single-client QPS (K = {k})", side_by_side("qps", k, "queries per second", ",.0f")
        for k, dataset in product(self.timed, self._datasets):
            timed = [row for row in both if row["dataset"] == dataset and _timed(row, k)]
            if len({row["topology"] for row in timed if row["value"] is not None}) > 1:
                yield f"(c) Concurrent scaling (K = {k}) · {dataset}", self._by_clients(timed, by_topology=True)
        for k in self.single:
            yield f"(d) Recall@{k}", side_by_side("recall_by_id", k, "recall by id", ".3f")

    def _of(self, topologies: Sequence[str], metric: str) -> list[Row]:
        return [row for row in self._rows if row["topology"] in topologies and row["metric"] == metric]

    def _single(self, topologies: Sequence[str], metric: str, k: int, *, filtered: bool = False) -> list[Row]:
        rows = [row for row in self._of(topologies, metric) if charts.is_single(row, k, filtered=filtered)]
        return self._of_one_workload(rows)

    def _heading(self, heading: str, topology: str) -> str:
        return f"{heading} · {topology}" if len(self._topologies) > 1 else heading

    def _of_one_workload(self, rows: Sequence[Row]) -> list[Row]:
        """Of each dataset, the rows of one workload: that with the most numbers; of several, of the highest effort."""
        chosen: list[Row] = []
        for dataset in self._datasets:
            workloads: dict[str, list[Row]] = {}
            for row in rows:
                if row["dataset"] == dataset:
                    workloads.setdefault(row["workload"], []).append(row)
            if workloads:
                by_name = [workloads[name] for name in sorted(workloads)]
                best = max(by_name, key=lambda of: (sum(r["value"] is not None for r in of), of[-1]["ef_search"] or 0))
                chosen += best
        return chosen

    def _label(self, dataset: str) -> str:
        if dataset not in self._count or dataset not in self._dim:
            return dataset
        return f"{dataset}{SEPARATOR}{self._count[dataset]:,} × {self._dim[dataset]}"

    def _grouped(self, bars: Sequence[tuple[Row, str, float]], series: list[str], title: str, style: _Style) -> Any:
        """Bars of rows, each with its series and opacity; a bar without a value says why."""
        marks, spread, gaps = [], [], []
        for row, name, opacity in bars:
            place = {"at": self._label(row["dataset"]), "series": name, "topology": row["topology"]}
            if row["value"] is None:
                gaps.append({**place, "label": brief(row["reason"])})
                continue
            marks.append(datum(row, **place, opacity=opacity))
            if style.whiskers and row["std"]:
                spread.append(charts.spread(row, **place))
        if not marks:
            return None
        there = {row["dataset"] for row, _, _ in bars}
        sort = [self._label(dataset) for dataset in self._datasets if dataset in there]
        x = alt.X("at:N", title=None, sort=sort, axis=_axis_of(len(sort)))
        y = alt.Y(
            "value:Q",
            title=title,
            axis=alt.Axis(format=charts.NUMBER, grid=True),
            stack=None,
            scale=_scale(marks, style),
        )
        base = {"x": x, "xOffset": alt.XOffset("series:N", scale=alt.Scale(domain=series))}
        shown = {
            "color": self._colour(self._topologies) if self._of_topologies else charts.colour_of(self._palette),
            "opacity": charts.OPACITY,
            "tooltip": charts.tooltip(*(["topology"] if self._of_topologies else []), "workload"),
        }
        labelled = [{**mark, "label": f"{mark['value']:.2f}"} for mark in marks if style.labels]
        return charts.layered(
            _HEIGHT,
            charts.layer_of(marks).mark_bar().encode(y=y, **shown, **base),
            charts.layer_of(spread).mark_rule().encode(y=alt.Y("low:Q", title=title), y2="high:Q", **base),
            charts.layer_of(labelled)
            .mark_text(dy=-6)
            .encode(y=alt.Y("value:Q", title=title, stack=None), text="label:N", **base),
            charts.layer_of(gaps)
            .mark_text(angle=270, align="left", baseline="middle", dx=4)
            .encode(y=alt.YValue(value="height"), text="label:N", **base),
        )

    def _side_by_side(self, rows: Sequence[Row], title: str, digits: str) -> Any:
        """Bars grouped by dataset and system, a bar a topology."""
        bars = [
            datum(
                row, at=f"{row['dataset']}{SEPARATOR}{row['system']}", topology=row["topology"],
                label=format(row["value"], digits),
            )
            for row in rows
            if row["value"] is not None
        ]  # fmt: skip
        topologies = self._ordered(bars)
        if len(topologies) < 2:
            return None
        x = alt.X("at:N", title=None, axis=_axis_of(len({bar["at"] for bar in bars})))
        scale = _scale(bars, _Style(top=1.1 if digits == ".3f" else None))
        y = alt.Y("value:Q", title=title, axis=alt.Axis(format=charts.NUMBER), stack=None, scale=scale)
        base = {"x": x, "xOffset": alt.XOffset("topology:N", scale=alt.Scale(domain=topologies))}
        bar_layer, labels = charts.layer_of(bars).mark_bar(), charts.layer_of(bars).mark_text(dy=-6)
        return charts.layered(
            _HEIGHT,
            bar_layer.encode(
                y=y, color=self._colour(topologies), tooltip=charts.tooltip("topology", "workload"), **base
            ),
            labels.encode(y=alt.Y("value:Q", title=title, stack=None), text="label:N", **base),
        )

    def _colour(self, topologies: Sequence[str]) -> Any:
        """The colours of topologies, with a legend."""
        fill = [_SEVERAL[place % len(_SEVERAL)] for place in range(len(topologies))]
        return alt.Color("topology:N", scale=alt.Scale(domain=list(topologies), range=fill), legend=_legend())

    def _by_clients(self, rows: Sequence[Row], *, by_topology: bool = False, zero: bool = True) -> Any:
        """Lines by clients; `by_topology` each topology has its own sign and stroke, and the axis may begin above 0."""
        points = [
            datum(
                row,
                clients=row["clients"],
                topology=row["topology"],
                stroke=_STROKE + row["topology"],
                effort=said_effort(row),
                series=" ".join((row["system"], row["topology"], said_effort(row))),
            )
            for row in rows
            if row["value"] is not None
        ]
        counts = sorted({point["clients"] for point in points})
        topologies = self._ordered(points)
        if len(counts) < 2:
            return None
        axis = alt.Axis(values=counts, format="d", grid=False)
        x = alt.X("clients:Q", title="concurrent clients", axis=axis, scale=alt.Scale(nice=False, padding=14))
        if not by_topology:
            return self._lines(points, x, "throughput (1/s)", "clients", "effort", zero=False, detail="series:N")
        # A field and names of its own: Vega-Lite makes one legend of scales with the same names, and it is the shapes'.
        strokes = {_STROKE + name: _DASHES[place % len(_DASHES)] for place, name in enumerate(topologies)}
        y = alt.Y(
            "value:Q", title="queries per second", axis=alt.Axis(format=charts.NUMBER), scale=alt.Scale(zero=zero)
        )
        axes = {"x": x, "y": y, "color": charts.colour_of(self._palette)}
        scale = alt.Scale(domain=topologies, range=[_SIGNS[place % len(_SIGNS)] for place in range(len(topologies))])
        legend = _legend(symbolFillColor="currentColor", symbolStrokeColor="currentColor")
        shape, tips = (
            alt.Shape("topology:N", scale=scale, legend=legend),
            charts.tooltip("topology", "clients", "effort"),
        )
        dash = charts.signs_of("stroke", "strokeDash", strokes)
        return charts.curves(_HEIGHT, points, axes, shape, tips, size=60, strokeDash=dash, detail="series:N")

    def _lines(self, points: Data, x: Any, title: str, *shown: str, zero: bool = True, **lines: Any) -> Any:
        """Points joined by lines; those with a `label` have it beside them, and each its `opacity`, if it has one."""
        y = alt.Y("value:Q", title=title, axis=alt.Axis(format=charts.NUMBER), scale=alt.Scale(zero=zero))
        axes = {"x": x, "y": y, "color": charts.colour_of(self._palette)}
        shape, tips = charts.shape_of(self._palette), charts.tooltip(*shown)
        labelled = [point for point in points if point.get("label")]
        labels = charts.layer_of(labelled).mark_text(align="left", dx=9).encode(text="label:N", **axes)
        if any("opacity" in point for point in points):
            axes["opacity"] = charts.OPACITY
        return charts.curves(_HEIGHT, points, axes, shape, tips, labels, **lines)

    def _ordered(self, marks: Sequence[Mapping[str, Any]]) -> list[str]:
        """The topologies of marks or rows, those of one node first, clusters by their size."""
        return [topology for _, topology in in_order({("", mark["topology"]) for mark in marks}, self._nodes)]


def _timed(row: Row, k: int) -> bool:
    """Whether a number is the rate of a closed loop of a fixed time, of the `k` nearest without a filter or target."""
    asked = row["k"] == k and not row["filter"] and row["target_recall"] is None
    return asked and row["duration_s"] is not None and row["metric"] == "qps"


def _legend(**more: Any) -> Any:
    return alt.Legend(title=None, orient="bottom", columns=2, labelLimit=220, **more)


def _axis_of(places: int) -> Any:
    """The axis under groups of bars: the fewer they are, the more of their names is told."""
    label = f"split(datum.label, '{SEPARATOR}')"
    return alt.Axis(labelExpr=label, labelAngle=0, labelLimit={1: 300, 2: 180}.get(places, 110))


def _angle(labels: int) -> int:
    """Degrees by which labels of an axis are turned: not at all while there is room."""
    return 0 if labels <= 4 else -30


def _scale(bars: Data, style: _Style) -> Any:
    """The scale of bars' values: on a logarithmic one the smallest bar still has a height."""
    values = [bar["value"] for bar in bars]
    if style.log and min(values) > 0:
        # The axis begins at the power of ten below half of the least value: a bar's length is read, though there is no
        # zero. A bar of exactly a power of ten would end where the axis does.
        low, high = math.log10(min(values) / 2), math.log10(max(values))
        ends = [10.0 ** math.floor(low - 1e-9), 10.0 ** math.ceil(high + 1e-9)]
        return alt.Scale(type="log", domain=ends, nice=False)
    return alt.Scale(zero=True) if style.top is None else alt.Scale(domain=[0, style.top], nice=False)
