"""The charts and claims of document D1: queries per second by cores and by number of query nodes, and by version.

What a topology is stands in the records of its loads: its name plays no part. Drawn and listed are systems of Milvus in
closed loops of a fixed time, as the document asked, for every number of neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from typing import Any, NamedTuple

import altair as alt

from anncestry.report import charts
from anncestry.report.compare.changes import versions
from anncestry.report.counterpart import Joined, of_figure
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, computed, with_interval
from anncestry.report.model.material import Material
from anncestry.report.model.records import Topology, apart_from_cores, apart_from_nodes, cores, of_stage
from anncestry.report.published import DOCUMENTS, Figure, Published, printed_text
from anncestry.report.tables.spec import made
from casestudies.documents import MEASURED, PRINTED

_DOCUMENT = "milvus-2.2"
_PRINTED = f"{PRINTED} ({DOCUMENTS[_DOCUMENT].partition(':')[0]})"
_HEIGHT = 260
_MARGINS = 0.08, 0.32
"""Left and right of the points, as shares of what they span: on the right stand the labels of the last ones."""
_GAP = 0.07
"""Between labels that would stand in front of each other, as a share of the axis."""
_METRICS = {"qps": "queries per second", "p99_ms": "p99 (ms)"}
_NOT_ALIKE = "both were measured here, but not alike"


class _Axis(NamedTuple):
    """Something of a topology that grows while the rest of it stays.

    `at`: how large it is, None where it isn't known. `alike`: the rest. `fixed`: what of the rest is told in words.
    `place`: where the document has figures by it.
    """

    figure: str
    title: str
    label: str
    place: str
    at: Callable[[Topology], float | None]
    alike: Callable[[Topology], Topology]
    fixed: Callable[[Topology], str]


def _said_nodes(topology: Topology) -> str:
    return f"{topology['nodes']} node{'' if topology['nodes'] == 1 else 's'}"


def _said_cores(topology: Topology) -> str:
    limit = cores(topology)
    return "no limit of cores" if limit is None else f"{limit:g} core{'' if limit == 1 else 's'} a node"


_CORES = _Axis(
    "milvus-scale-up",
    "Scale-up: queries per second by cores of each query node",
    "cores of each query node",
    "2.2.0 scale-up (CPU cores)",
    cores,
    apart_from_cores,
    _said_nodes,
)
_NODES = _Axis(
    "milvus-scale-out",
    "Scale-out: queries per second by number of query nodes",
    "query nodes, each with a replica",
    "2.2.0 scale-out (replicas)",
    lambda topology: topology["nodes"] if topology["nodes"] == topology["replicas"] else None,
    apart_from_nodes,
    _said_cores,
)
_AXES = (_CORES, _NODES)


class _Point(NamedTuple):
    """A rate, and the p99 of the same requests if there is one; `at` on the axis."""

    at: float
    qps: Row
    p99: Row | None


class _Line(NamedTuple):
    """Rates of one system as something grows, the smallest first; `clients` None: of another number at each point."""

    dataset: str
    system: str
    k: int
    fixed: str
    clients: int | None
    points: list[_Point]


def figures(material: Material) -> list[charts.Figure]:
    """Scale-up and scale-out, for what was measured at two sizes."""
    palette = charts.colours(material.first["system"])
    return [
        figure
        for axis in _AXES
        for figure in charts.made(
            axis.figure,
            axis.title,
            "Milvus in closed loops of a fixed time, no filter: a line for each number of clients that asked at every"
            " size, else one line through the highest rate at each size, with its clients. Dashed: as many times the"
            " rate at the smallest size as the size has grown.",
            "D1-S",
            "shapes",
            _panels(axis, _lines(axis, material), palette),
        )
    ]


def tables(material: Material) -> list[Table]:
    """Tables D1-S and D1-V: the gain by cores and by query nodes, and by version."""
    found = [(axis, _lines(axis, material)) for axis in _AXES]
    gains = [(axis, lines) for axis, lines in found if lines]
    by_version = _version_pairs(material)
    beside = _Beside(material) if gains or by_version else None
    scaled = [row for axis, lines in gains for row in _gains(axis, lines, beside)]
    return [
        *made(
            Table(
                "D1-S",
                "Gain by cores and by query nodes",
                "Queries per second of Milvus against those at the smallest size; of linear: against as many times"
                " that rate as the size has grown. In the document, and where no number of clients asked at every"
                " size, each rate has clients of its own. Beside it: the other side's gain, if both numbers were asked"
                " the same, else why not.",
                ("Source", "Dataset", "System", "Asked", "Grows"),
                (
                    Column("At the smallest", "1/s"),
                    Column("Queries per second", "1/s"),
                    Column("Gain", "×"),
                    Column("Of linear", "%"),
                    Column("Beside it"),
                ),
                tuple(scaled),
            )
        ),
        *made(
            Table(
                "D1-V",
                "Gain by version",
                "Queries per second of each version of Milvus against the one before it, K = 1, in closed loops of a"
                " fixed time; Table FV judges the difference. The document claims at least so much. Beside it: the"
                " other side's gain, if both numbers were asked the same, else why not.",
                ("Source", "Dataset", "Topology", "Versions", "Asked"),
                (
                    Column("Older", "1/s"),
                    Column("Newer", "1/s"),
                    Column("Gain", "%"),
                    Column("Claimed", "%"),
                    Column("Beside it"),
                ),
                tuple(_by_version(by_version, beside)),
            )
        ),
    ]


def _timed(material: Material, metric: str) -> list[Row]:
    """Numbers of Milvus in closed loops of a fixed time, without a filter and a target."""
    return [
        row
        for row in charts.measured_rows(material.ordinary, metric)
        if row["engine"] == "milvus"
        and row["duration_s"] is not None
        and not row["filter"]
        and row["target_recall"] is None
    ]


def _lines(axis: _Axis, material: Material) -> list[_Line]:
    """What was measured at two sizes or more, by what stays."""
    specs = [record["spec"]["topology"] for record in of_stage(material.records, "load")]
    topologies = {str(spec["name"]): spec for spec in specs}
    tails = {(*_cell(row), row["workload"]): row for row in _timed(material, "p99_ms")}
    series: dict[tuple[Any, ...], dict[float, dict[int, Row]]] = {}
    fixed: dict[tuple[Any, ...], str] = {}
    for row in _timed(material, "qps"):
        topology = topologies.get(row["topology"])
        at = None if topology is None else axis.at(topology)
        if topology is None or at is None:
            continue
        rest = json.dumps(axis.alike(topology), sort_keys=True)
        place = (row["dataset"], row["system"], row["k"], row["ef_search"] or 0, rest)
        fixed[place] = axis.fixed(topology)
        by_clients = series.setdefault(place, {}).setdefault(at, {})
        by_clients[row["clients"]] = _higher(row, by_clients.get(row["clients"]))
    found = []
    for place, sizes in sorted(series.items()):
        if len(sizes) < 2:
            continue
        common = set.intersection(*({*by_clients} for by_clients in sizes.values()))
        levels: list[int | None] = [*sorted(common)]
        for clients in levels or [None]:
            rates = [
                (at, by_clients[clients] if clients else max(by_clients.values(), key=lambda row: row["value"]))
                for at, by_clients in sorted(sizes.items())
            ]
            points = [_Point(at, row, tails.get((*_cell(row), row["workload"]))) for at, row in rates]
            found.append(_Line(place[0], place[1], place[2], fixed[place], clients, points))
    return found


def _cell(row: Row) -> tuple[str, str, str]:
    return row["dataset"], row["system"], row["topology"]


def _higher(row: Row, other: Row | None) -> Row:
    return row if other is None or row["value"] > other["value"] else other


# The charts


def _panels(axis: _Axis, lines: Sequence[_Line], palette: dict[str, str]) -> Iterator[tuple[str, Any]]:
    several = len({line.k for line in lines}) > 1
    for (dataset, k), group in groupby(sorted(lines, key=_question), key=_question):
        of_panel = list(group)
        heading = f"{dataset} · K = {k}" if several else dataset
        for metric, title in _METRICS.items():
            yield f"{heading} · {title}", _panel(axis, of_panel, metric, title, palette)


def _question(line: _Line) -> tuple[str, int]:
    return line.dataset, line.k


def _panel(axis: _Axis, lines: Sequence[_Line], metric: str, title: str, palette: dict[str, str]) -> Any:
    points, linear, ends, labels = [], [], [], []
    many = len({line.fixed for line in lines}) > 1
    for number, line in enumerate(lines):
        rows = [(point.at, point.qps if metric == "qps" else point.p99) for point in line.points]
        drawn = [
            charts.datum(row, at=at, clients=_clients(row["clients"]), fixed=line.fixed, series=number)
            | {"topology": row["topology"]}
            for at, row in rows
            if row is not None
        ]
        points += drawn
        words = [_label(mark, f"{mark['clients']}, {line.fixed}" if many else mark["clients"]) for mark in drawn]
        if line.clients is None:
            labels += words
        else:  # one number of clients all along: said once, at its end
            ends += words[-1:]
        if metric == "qps":
            first = drawn[0]
            linear += [
                {"system": line.system, "at": at, "value": first["value"] * at / first["at"], "series": number}
                for at in (line.points[0].at, line.points[-1].at)
            ]
    sizes = sorted({point["at"] for point in points})
    if len(sizes) < 2:
        return None
    span = sizes[-1] - sizes[0]
    domain = [sizes[0] - _MARGINS[0] * span, sizes[-1] + _MARGINS[1] * span]
    ticks = alt.Axis(values=sizes, format=charts.NUMBER, grid=False)
    axes = {
        "x": alt.X("at:Q", title=axis.label, scale=alt.Scale(domain=domain, nice=False), axis=ticks),
        "y": alt.Y("value:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(format=charts.NUMBER)),
        "color": charts.colour_of(palette),
    }
    place = {name: axes[name] for name in ("x", "y")}
    top = max(mark["value"] for mark in (*points, *linear))
    # Rates rise and latencies fall, so that a label below or above stands beside its line.
    below = charts.layer_of(labels).mark_text(align="left", dx=7, dy=11 if metric == "qps" else -9)
    beside = charts.layer_of(_apart(ends, _GAP * top)).mark_text(align="left", dx=9)
    dashed = charts.layer_of(linear).mark_line(strokeWidth=1, strokeDash=[4, 4], opacity=0.5)
    return charts.curves(
        _HEIGHT,
        points,
        axes,
        charts.shape_of(palette),
        charts.tooltip("at", "clients", "fixed", "topology", "workload"),
        dashed.encode(detail="series:N", **axes),
        below.encode(text="label:N", **place),
        beside.encode(text="label:N", **place),
        detail="series:N",
    )


def _label(mark: Mapping[str, Any], words: str) -> dict[str, Any]:
    """Words that stand at a mark, and are no number themselves."""
    return {name: mark[name] for name in ("system", "topology", "workload", "at", "value")} | {"label": words}


def _apart(labels: Iterable[dict[str, Any]], gap: float) -> list[dict[str, Any]]:
    """Labels at ends of lines, each at least `gap` above the one below it."""
    placed: list[dict[str, Any]] = []
    for label in sorted(labels, key=lambda label: label["value"]):
        least = placed[-1]["value"] + gap if placed else label["value"]
        placed.append({**label, "value": max(label["value"], least)})
    return placed


def _clients(count: int) -> str:
    return f"{count} client{'' if count == 1 else 's'}"


# The tables


class _Beside:
    """Pairs of numbers, published and ours, by what both were asked of."""

    def __init__(self, material: Material) -> None:
        self.facts = material.facts
        self._joined = Joined(material.by_any_client, material.records, material.facts) if material.facts else None
        self._printed: dict[tuple[str, str], tuple[str, Figure]] = {}

    def ours(
        self, below: Figure, above: Figure, alike: Sequence[str], printed: str, shown: Callable[[float, float], str]
    ) -> Cell:
        """Our changes for a published one, that is `printed`, or why there is none.

        `alike`: what two numbers of ours have in common to be compared; `shown`: the change from one to the other.
        """
        assert self._joined is not None
        for figure in (below, above):
            if reason := self._joined.why_none(figure):
                return Cell(f"{figure.version}, {_sized(figure)}: {reason}")
        pairs = [
            (a, b)
            for a, b in product(*map(self._joined.rows, (below, above)))
            if a["value"] and all(a[name] == b[name] for name in alike)
        ]
        if not pairs:
            return Cell(_NOT_ALIKE)
        self._printed |= {(a["number_id"], b["number_id"]): (printed, above) for a, b in pairs}
        words = "; ".join(shown(a["value"], b["value"]) for a, b in pairs)
        return Cell(words, parents=tuple(row["number_id"] for a, b in pairs for row in (b, a)))

    def theirs(self, below: Row, above: Row) -> Cell:
        """The published change beside ours, of those that `ours` has found."""
        found = self._printed.get((below["number_id"], above["number_id"]))
        return Cell(NO_CELL) if found is None else Cell(found[0], source=found[1].id)


def _sized(figure: Figure) -> str:
    """Of a published figure of a query node: cores and nodes."""
    asked = of_figure(figure, "")
    return f"{asked.cpus:g} cores, {_said_nodes({'nodes': asked.nodes})}"


def _gains(axis: _Axis, lines: Iterable[_Line], beside: _Beside | None) -> Iterator[TableRow]:
    """Of each line its points against the smallest; then the document's."""
    printed = list(_printed_gains(axis, beside)) if beside and beside.facts else []
    for line in lines:
        first, *larger = line.points
        for point in larger:
            clients = dict.fromkeys(_clients(each.qps["clients"]) for each in (first, point))
            asked = f"K = {line.k}, {' → '.join(clients)}; {line.fixed}"
            times = point.at / first.at
            cells = (
                with_interval(first.qps),
                with_interval(point.qps),
                computed(point.qps, first.qps, lambda b, a: b / a, "{:.2f}"),
                computed(point.qps, first.qps, partial(_of_linear, times), "{:.0f}"),
                beside.theirs(first.qps, point.qps) if beside else Cell(NO_CELL),
            )
            grows = f"{axis.label}: {first.at:g} → {point.at:g}"
            yield TableRow((MEASURED, line.dataset, line.system, asked, grows), cells)
    yield from printed


def _of_linear(times: float, rate: float, smallest: float) -> float:
    """In percent, of `times` the rate at the smallest size."""
    return 100 * rate / smallest / times


def _printed_gains(axis: _Axis, beside: _Beside) -> Iterator[TableRow]:
    assert beside.facts is not None
    figures = beside.facts.all(axis.place, _DOCUMENT, metric="qps")
    asked = {figure.id: of_figure(figure, figure.dataset) for figure in figures}
    size = {name: float((of.cpus if axis is _CORES else of.nodes) or 0) for name, of in asked.items()}
    first, *larger = sorted(figures, key=lambda figure: size[figure.id])
    for figure in larger:
        gain, times = figure.number / first.number, size[figure.id] / size[first.id]
        clients = dict.fromkeys(_clients(int(each.clients)) for each in (first, figure))
        of = asked[figure.id]
        fixed = axis.fixed({"nodes": of.nodes, "limits": {"cpus": of.cpus}})
        labels = (
            _PRINTED,
            figure.dataset,
            f"{figure.system} {figure.version}",
            f"K = {figure.k}, {' → '.join(clients)}; {fixed}",
            f"{axis.label}: {size[first.id]:g} → {size[figure.id]:g}",
        )
        cells = (
            Cell(printed_text(first.value), source=first.id),
            Cell(printed_text(figure.value), source=figure.id),
            Cell(f"{gain:.2f}", source=figure.id),
            Cell(f"{_of_linear(times, figure.number, first.number):.0f}", source=figure.id),
            beside.ours(first, figure, ("dataset", "system"), f"{gain:.2f}", lambda a, b: f"{b / a:.2f}"),
        )
        yield TableRow(labels, cells)


_VersionPair = tuple[Row, Row]
"""Rates of an older and a newer version, the rest the same."""


def _version_pairs(material: Material) -> list[_VersionPair]:
    rates = [row for row in _timed(material, "qps") if row["k"] == 1]
    of = {(row["system"], row["dataset"], row["topology"], row["workload"]): row for row in rates}
    return [
        (of[older, *place], of[newer, *place])
        for older, newer in versions(material)
        for system, *place in sorted(of, key=lambda place: (place[:3], of[place]["clients"], place))
        if system == older and (newer, *place) in of
    ]


def _by_version(pairs: Sequence[_VersionPair], beside: _Beside | None) -> Iterator[TableRow]:
    """Of each pair of ours the gain; then the document's. Nothing where no two versions were measured."""
    printed = list(_printed_versions(beside.facts, beside)) if pairs and beside and beside.facts else []
    for older, newer in pairs:
        asked = f"{newer['workload']}: K = {newer['k']}, {_clients(newer['clients'])}"
        labels = (MEASURED, newer["dataset"], newer["topology"], f"{older['system']} → {newer['system']}", asked)
        cells = (
            with_interval(older),
            with_interval(newer),
            computed(newer, older, _change, "{:+.1f}"),
            Cell(NO_CELL),
            beside.theirs(older, newer) if beside else Cell(NO_CELL),
        )
        yield TableRow(labels, cells)
    yield from printed


def _printed_versions(facts: Published, beside: _Beside) -> Iterator[TableRow]:
    """The claims of the document, each with the two figures of its table that it is of."""
    for claim in facts.all("text Summary", _DOCUMENT, metric="change_pct"):
        older, newer = sorted(
            facts.all(f"2.2.0 vs 2.1.0: {claim.topology}", _DOCUMENT, metric="qps"), key=lambda figure: figure.version
        )
        gain = _shown_change(older.number, newer.number)
        labels = (_PRINTED, newer.dataset, newer.topology, f"{older.version} → {newer.version}", f"K = {newer.k}")
        cells = (
            Cell(printed_text(older.value), source=older.id),
            Cell(printed_text(newer.value), source=newer.id),
            Cell(gain, source=newer.id),
            Cell(f"at least {claim.value}", source=claim.id),
            beside.ours(older, newer, ("dataset", "topology", "workload"), gain, _shown_change),
        )
        yield TableRow(labels, cells)


def _shown_change(older: float, newer: float) -> str:
    return f"{_change(newer, older):+.1f}".replace("-", "−")


def _change(newer: float, older: float) -> float:
    """In percent."""
    return 100 * (newer / older - 1)
