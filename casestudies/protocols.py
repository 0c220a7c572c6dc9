"""The charts and claims of document D2: queries by ef, and time to load, of Weaviate by gRPC and by REST and GraphQL.

The document asked and loaded through the database's own Python client. What was sent through it here stands in panels
and rows of its own, beside what was sent as encoded requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, product
from typing import Any, NamedTuple

import altair as alt

from anncestry.report import charts
from anncestry.report.charts import Figure
from anncestry.report.model.cells import Column, Row, Table, is_serial
from anncestry.report.model.material import Material
from anncestry.report.model.records import setup
from anncestry.report.published import Published
from casestudies.documents import GRPC, REST, THROUGH, Spoken, asks_by_protocol, spoken
from casestudies.gains import CHANGE, QUANTITIES, TIMES, Claim, Gain, loads, place_of, table

_HEIGHT = 240
_PALE = 0.5
_THROUGH = {"bytes": "as encoded requests", "sdk": "through its Python client"}
_PALE_IS_GRPC = " As in the document, gRPC has pale bars with an edge, REST and GraphQL full ones."


_DOCUMENT = "weaviate-grpc"
_FORMS = {"qps": TIMES, "mean_ms": CHANGE, "load_s": CHANGE}
"""What gains are shown of, in the form that the document has."""


class _Bar(NamedTuple):
    """A number by its place on the axis; bars of one panel have the same `panel`."""

    panel: tuple[str, ...]
    at: str
    row: Row
    protocol: str


def figures(material: Material) -> list[Figure]:
    """Queries and loads, wherever both protocols were measured by one client."""
    specs = spoken(material)
    palette = charts.colours(material.first["system"])
    asks = asks_by_protocol(material)
    asked = [row for row in material.by_any_client if row["system"] in specs and row["value"] is not None and asks(row)]
    systems = {row["system"] for row in asked}
    loads = [row for row in charts.measured_rows(material.first_rows, "load_s") if row["system"] in systems]
    return [
        *charts.made(
            "weaviate-protocols",
            "Weaviate: queries per second by gRPC and by REST + GraphQL",
            "One client, by ef; whiskers are ± one sample standard deviation over runs." + _PALE_IS_GRPC,
            "D2",
            "",
            _panels([_of_queries(row, specs[row["system"]]) for row in asked if _is_rate(row)], "ef", palette),
        ),
        *charts.made(
            "weaviate-import",
            "Weaviate: time to load by gRPC and by REST",
            "From the first insert to searchable, by dataset." + _PALE_IS_GRPC,
            "D2",
            "",
            _panels([_of_load(row, specs[row["system"]]) for row in loads], "", palette),
        ),
    ]


def _is_rate(row: Row) -> bool:
    return row["metric"] == "qps" and _is_plain(row)


def _is_plain(row: Row) -> bool:
    """Whether one client asked for it, without a filter and a target."""
    return is_serial(row) and not row["filter"] and row["target_recall"] is None


def _of_queries(row: Row, spec: Spoken) -> _Bar:
    through = _THROUGH.get(str(row["client"]), str(row["client"]))
    panel = (row["dataset"], f"Weaviate {spec.version}", row["topology"], f"K = {row['k']}, {through}")
    return _Bar(panel, str(row["ef_search"] or "not stated"), row, spec.protocol)


def _of_load(row: Row, spec: Spoken) -> _Bar:
    panel = (f"Weaviate {spec.version}", row["topology"], f"inserted {_THROUGH[spec.loaded_by]}")
    return _Bar(panel, row["dataset"], row, spec.protocol)


def _panels(bars: Sequence[_Bar], title: str, palette: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for panel, of in groupby(sorted(bars, key=lambda bar: bar.panel), key=lambda bar: bar.panel):
        # Of several workloads that ask the same, one bar: else they would stand in front of each other.
        found = {(bar.at, bar.row["system"]): bar for bar in of}
        if len({bar.protocol for bar in found.values()}) > 1:
            yield " · ".join(panel), _panel([*found.values()], title, palette)


def _panel(bars: Sequence[_Bar], title: str, palette: dict[str, str]) -> Any:
    """Bars grouped by place, REST first, as in the document."""
    places = sorted({bar.at for bar in bars}, key=lambda at: (int(at) if at.isdigit() else 0, at))
    series = [bar.row["system"] for bar in sorted(bars, key=lambda bar: (bar.protocol == GRPC, bar.row["system"]))]
    base = {
        "x": alt.X("at:N", title=title or None, sort=places, axis=alt.Axis(labelAngle=0)),
        "xOffset": alt.XOffset("system:N", scale=alt.Scale(domain=list(dict.fromkeys(series)))),
    }
    named = "queries per second" if bars[0].row["metric"] == "qps" else "load time (seconds)"
    marks, spread = [], []
    for bar in bars:
        more = {"at": bar.at, "protocol": bar.protocol, "opacity": _PALE if bar.protocol == GRPC else 1.0}
        marks.append(charts.datum(bar.row, **more))
        if bar.row["std"]:
            spread.append(charts.spread(bar.row, **more))
    y = alt.Y("value:Q", title=named, stack=None, scale=alt.Scale(zero=True), axis=alt.Axis(format=charts.NUMBER))
    # The edge in full colour tells whose a pale bar is, whose colour resembles that of another system.
    edge = alt.Stroke("system:N", scale=alt.Scale(domain=list(palette), range=list(palette.values())), legend=None)
    pale = alt.FillOpacity("opacity:Q", scale=None)
    shown = {"color": charts.colour_of(palette), "stroke": edge, "fillOpacity": pale}
    tips = charts.tooltip("protocol", "at", "workload")
    return charts.layered(
        _HEIGHT,
        charts.layer_of(marks).mark_bar().encode(y=y, tooltip=tips, **shown, **base),
        charts.layer_of(spread).mark_rule().encode(y=alt.Y("low:Q", title=named), y2="high:Q", **base),
    )


# The claims


def tables(material: Material) -> list[Table]:
    """Table D2-V: what gRPC gains over REST and GraphQL."""
    return table(
        material,
        Table(
            "D2-V",
            "Gain of gRPC over REST + GraphQL",
            "Queries of one client, and loading, by gRPC against the same by REST and GraphQL: of one version of"
            " Weaviate, set up and loaded alike but for the protocol, asked the same, as encoded requests or through"
            " its Python client, whose version is that of the protocol. The document prints no numbers of queries, but"
            " in charts, for neither a dataset nor k.",
            ("Dataset", "Topology", "Protocols", "Asked", "Quantity"),
            (Column("REST + GraphQL"), Column("gRPC")),
            (),
        ),
        _gains(material),
        _claims,
    )


def _gains(material: Material) -> list[Gain]:
    """Of each question that was asked by both protocols, of systems that differ in nothing else."""
    setups = {place: setup(record) for place, record in loads(material).items()}
    loaded_by = {name: _THROUGH[spec.loaded_by] for name, spec in spoken(material).items()}
    asked: dict[tuple[str, ...], dict[str | None, list[Row]]] = {}
    for row in material.by_any_client:
        of = setups.get(place_of(row))
        if of is not None and row["metric"] in _FORMS and (not row["workload"] or _is_plain(row)):
            question = (
                row["dataset"],
                row["topology"],
                row["workload"],
                row["metric"],
                repr(of._replace(protocol=None)),
            )
            asked.setdefault(question, {}).setdefault(of.protocol, []).append(row)
    pairs = [pair for by in asked.values() for pair in product(by.get(REST, ()), by.get(GRPC, ()))]
    return [
        Gain(
            (
                above["dataset"],
                above["topology"],
                f"{below['system']} → {above['system']}",
                _asked(above) if above["workload"] else f"rows inserted {loaded_by[above['system']]}",
                QUANTITIES[above["metric"]],
            ),
            below,
            above,
            _FORMS[above["metric"]],
        )
        for below, above in sorted(pairs, key=_order)
    ]


def _asked(row: Row) -> str:
    through = THROUGH.get(row["client"], "")
    return ", ".join(filter(None, (f"{row['workload']}: K = {row['k']}", row["effort"], f"1 client{through}")))


def _order(pair: tuple[Row, Row]) -> tuple[Any, ...]:
    row = pair[1]
    metric = [*_FORMS].index(row["metric"])
    return row["dataset"], row["topology"], metric, row["client"], row["system"], row["ef_search"] or 0, row["workload"]


def _claims(facts: Published) -> list[Claim]:
    """What the document says of queries, in charts that name no number, and of loading."""
    less, _ = facts.all("text Queries", _DOCUMENT, metric="change_pct")
    times = facts.one("text Queries", _DOCUMENT, metric="ratio")
    by_rest, by_grpc = sorted(
        facts.all("text Data ingestion", _DOCUMENT, metric="load_s"),
        key=lambda figure: "protocol=grpc" in figure.detail,
    )
    protocols, one = f"{by_rest.version}: REST + GraphQL → gRPC", "1 client"
    return [
        Claim(
            ("not stated", times.topology, protocols, one, QUANTITIES["qps"]),
            "“a significant, over 2.6x, improvement in how many queries can be served”",
            times,
            TIMES,
            gain=f"over {times.value} ×",
        ),
        Claim(
            ("not stated", less.topology, protocols, one, QUANTITIES["mean_ms"]),
            "“each query takes 40-70% less time to return results when using gRPC in comparison to results with REST +"
            " GraphQL”",
            less,
            CHANGE,
            gain="−40 % to −70 %",
        ),
        Claim(
            (by_rest.dataset, by_rest.topology, protocols, "through its Python client", QUANTITIES["load_s"]),
            "“The DBPedia import time in particular is almost halved from over 42 minutes to around 23 minutes”",
            by_grpc,
            CHANGE,
            (("REST", by_rest), ("gRPC", by_grpc)),
        ),
    ]
