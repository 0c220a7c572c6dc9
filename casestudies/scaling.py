"""The charts and claims of document D1: queries per second by cores and by number of query nodes, and by version.

What a topology is stands in the records of its loads: its name plays no part. Drawn and listed are systems of Milvus in
closed loops of a fixed time, as the document asked, for every number of neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import altair as alt

from anncestry.report import charts
from anncestry.report.compare.changes import versions
from anncestry.report.counterpart import of_figure
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, computed, with_interval
from anncestry.report.model.material import Material
from anncestry.report.model.records import Topology, apart_from_cores, apart_from_nodes, cores, of_stage
from anncestry.report.published import Figure, Published, printed_text
from anncestry.report.tables.spec import made
from casestudies.documents import MEASURED
from casestudies.gains import CHANGE, Beside, Claim, Gain, source_of, table

_DOCUMENT = "milvus-2.2"
_HEIGHT = 260
_MARGINS = 0.08, 0.32
"""Left and right of the points, as shares of what they span: on the right stand the labels of the last ones."""
_GAP = 0.07
"""Between labels that would stand in front of each other, as a share of the axis."""
_METRICS = {"qps": "queries per second", "p99_ms": "p99 (ms)"}


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
    lines = [(axis, of) for axis, of in found if of]
    beside = Beside(material) if lines else None
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
                tuple(row for axis, of in lines for row in _gains(axis, of, beside)),
            )
        ),
        *table(
            material,
            Table(
                "D1-V",
                "Gain by version",
                "Queries per second of each version of Milvus against the one before it (those of Table FV), K = 1, in"
                " closed loops of a fixed time. The document claims at least so much.",
                ("Dataset", "Topology", "Versions", "Asked"),
                (Column("Older", "1/s"), Column("Newer", "1/s")),
                (),
            ),
            _version_gains(material),
            _version_claims,
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


def _sized(figure: Figure) -> str:
    """Of a published figure of a query node: version, cores and nodes."""
    asked = of_figure(figure, "")
    return f"{figure.version}, {asked.cpus:g} cores, {_said_nodes({'nodes': asked.nodes})}"


def _gains(axis: _Axis, lines: Iterable[_Line], beside: Beside | None) -> Iterator[TableRow]:
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


def _printed_gains(axis: _Axis, beside: Beside) -> Iterator[TableRow]:
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
            source_of(_DOCUMENT),
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
            beside.ours(((_sized(first), first), (_sized(figure), figure)), f"{gain:.2f}", _of_one_system),
        )
        yield TableRow(labels, cells)


def _of_one_system(smaller: Row, larger: Row) -> str:
    alike = all(smaller[name] == larger[name] for name in ("dataset", "system"))
    return f"{larger['value'] / smaller['value']:.2f}" if alike and smaller["value"] else ""


def _version_gains(material: Material) -> list[Gain]:
    """Of each version over the one before it, the rest the same."""
    rates = [row for row in _timed(material, "qps") if row["k"] == 1]
    of = {(row["system"], row["dataset"], row["topology"], row["workload"]): row for row in rates}
    return [
        Gain(
            (dataset, topology, f"{older} → {newer}", f"{workload}: K = 1, {_clients(row['clients'])}"),
            row,
            of[newer, dataset, topology, workload],
            CHANGE,
        )
        for older, newer in versions(material)
        for (system, dataset, topology, workload), row in sorted(
            of.items(), key=lambda item: (item[0][:3], item[1]["clients"], item[0])
        )
        if system == older and (newer, dataset, topology, workload) in of
    ]


def _version_claims(facts: Published) -> list[Claim]:
    """The claims of the document, each with the two figures of its table that it is of."""
    found = []
    for claim in facts.all("text Summary", _DOCUMENT, metric="change_pct"):
        older, newer = sorted(
            facts.all(f"2.2.0 vs 2.1.0: {claim.topology}", _DOCUMENT, metric="qps"), key=lambda figure: figure.version
        )
        labels = (newer.dataset, newer.topology, f"{older.version} → {newer.version}", f"K = {newer.k}")
        words = f"at least {claim.value} %"
        found.append(Claim(labels, words, claim, CHANGE, ((_sized(older), older), (_sized(newer), newer))))
    return found
