"""What each member of a server used (a node, a coordinator, a store of metadata): over time, and in a table.

Only servers of several members have these: of one, the server is its member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from anncestry.metrics.resources import OF_MEMBER
from anncestry.report.charts import COLOURS, TICKS, Figure, Panel, datum, layer_of, tooltip
from anncestry.report.material import Material
from anncestry.report.more_tables import with_interval
from anncestry.report.tables import NO_CELL, Cell, Column, Row, Table, TableRow
from anncestry.report.timeline import TITLES, over_time
from anncestry.report.timeline_queries import SHORTEST_S, WORKLOADS, over_runs, rank

NUMBER = "S"

_COLUMNS = {
    "cpu_avg_pct": ("Processor", "% of one core"),
    "rss_peak_mib": ("Memory", "MiB"),
    "io_read_mib": ("Read", "MiB"),
    "io_write_mib": ("Written", "MiB"),
}
_PLACE = ("dataset", "topology", "system", "workload")
_DASHES = ([1, 0], [4, 3], [1, 2])
"""A second sign for a member beside its colour, and the only one where there are more members than colours."""

_Lines = Mapping[str, Sequence[Mapping[str, float]]]
"""By name of the member, the points of its line."""


def member_of(metric: str) -> tuple[str, str]:
    """The metric and the member that a name of the tidy table is of; no member where it is of none."""
    name, bracket, rest = metric.partition("[")
    return (name, rest[:-1]) if bracket and name in _COLUMNS else (metric, "")


def _order(member: str) -> tuple[str, int, str]:
    """Members by role, those of one role by their numbers: node2 comes before node10."""
    role = member.rstrip("0123456789")
    return role, len(member), member


def tables(material: Material) -> list[Table]:
    """Table S: what each member used of processor, memory and storage, while loading and while queries run."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in material.rows:
        metric, member = member_of(row["metric"])
        if member:
            found.setdefault((*(row[name] or row["phase"] for name in _PLACE), member), {})[metric] = row
    body = tuple(
        TableRow(key, tuple(with_interval(of[name]) if name in of else Cell(NO_CELL) for name in _COLUMNS))
        for key, of in sorted(found.items(), key=lambda item: (item[0][:-1], _order(item[0][-1])))
    )
    table = Table(
        NUMBER,
        "Processor, memory and storage traffic of each member of a server",
        "Of the processes of each member, where a server has several: the mean share of a processor's time (100 % is"
        " one core, kept busy), the most resident memory, and what was read from and written to storage, over all runs"
        " or from the first insert to searchable. Processor and traffic of all members add up to the server's; the"
        " highest memory of each need not be at one time.",
        ("Dataset", "Topology", "System", "Workload", "Member"),
        tuple(Column(label, unit) for label, unit in _COLUMNS.values()),
        body,
    )
    return [table] if body else []


def figures(material: Material) -> list[Figure]:
    """Processor and memory of each member, over loads and over queries, whose samples are here."""
    places: dict[tuple[str, ...], dict[str, dict[str, Row]]] = {}
    for row in material.rows:
        metric, member = member_of(row["metric"])
        if member and row["value"] is not None:
            places.setdefault(tuple(row[name] for name in _PLACE), {}).setdefault(metric, {})[member] = row
    places = {place: rows for place, rows in places.items() if rows.keys() >= TITLES.keys()}
    found = {place: _load(rows, material) for place, rows in sorted(places.items()) if not place[-1]}
    loads = {place: lines for place, lines in found.items() if lines}
    # What happens in a server shows where something is done to it, or where it has most to do.
    asked = [place for place in places if place[-1]]
    asked.sort(key=lambda place: rank(list(places[place]["cpu_avg_pct"].values()), material.records))
    left = dict.fromkeys((place[:-1] for place in asked), WORKLOADS)
    queries: dict[tuple[str, ...], _Lines] = {}
    for place in asked:
        if left[place[:-1]] and (lines := _last_run(places[place], material)):
            queries[place] = lines
            left[place[:-1]] -= 1
    made = [
        *_figures("load", "over a load", "since the first insert", _LOADS, loads, places),
        *_figures("query", "over the queries", "since the first request", _QUERIES, queries, places),
    ]
    return [figure for figure in made if figure.panels]


_WHAT = "Of the processes of each member of a server that has several; colours and dashes are of members here."
_LOADS = f"{_WHAT} Each point is of the time since the one before."
_QUERIES = (
    f"{_WHAT} The last run of each workload; each point is of the time since the one before. At most {WORKLOADS}"
    " workloads of a server are drawn: those with faults or changes, then those with the most clients;"
    f" none whose runs are shorter than {SHORTEST_S:g} s."
)


def _load(rows: Mapping[str, Mapping[str, Row]], material: Material) -> _Lines:
    found = {}
    for member, row in rows["cpu_avg_pct"].items():
        points = over_time(Path(row["record"]), material.records.get(row["record"]) or {}, f"{OF_MEMBER}{member}")
        if points:
            found[member] = points
    return found


def _last_run(rows: Mapping[str, Mapping[str, Row]], material: Material) -> _Lines:
    members = list(rows["cpu_avg_pct"])
    path = rows["cpu_avg_pct"][members[0]]["record"]
    groups = [f"{OF_MEMBER}{member}" for member in members]
    courses = over_runs(Path(path), material.records.get(path) or {}, groups)
    last = max((course.run for course in courses), default=0)
    return {course.group.removeprefix(OF_MEMBER): course.points for course in courses if course.run == last}


def _figures(
    name: str,
    title: str,
    since: str,
    caption: str,
    lines: Mapping[tuple[str, ...], _Lines],
    places: Mapping[tuple[str, ...], Mapping[str, Mapping[str, Row]]],
) -> list[Figure]:
    """The figures of both metrics, a panel for each place that has `lines`."""
    return [
        Figure(
            f"{name}-members-{what.lower()}",
            f"{what} of each member {title}",
            caption,
            NUMBER,
            "members",
            tuple(
                Panel(
                    heading := " · ".join(filter(None, place)),
                    f"{what} of each member {title}, {heading}",
                    _chart(places[place][metric], of_place, metric, since).to_dict(),
                )
                for place, of_place in lines.items()
            ),
        )
        for what, metric in (("Processor", "cpu_avg_pct"), ("Memory", "rss_peak_mib"))
    ]


def _chart(rows: Mapping[str, Row], lines: _Lines, metric: str, since: str) -> Any:
    members = sorted(lines, key=_order)
    marks = [
        datum(rows[member], member=member, at_s=at["at_s"])
        | {"value": at[metric], "shown": f"{at[metric]:.4g} {rows[member]['unit']}"}
        for member in members
        for at in lines[member]
    ]
    places = range(len(members))
    legend = alt.Legend(orient="bottom", title=None, columns=2, symbolType="stroke", symbolStrokeWidth=2)
    colour = alt.Scale(domain=members, range=[COLOURS[place % len(COLOURS)] for place in places])
    dash = alt.Scale(domain=members, range=[_DASHES[place // len(COLOURS) % len(_DASHES)] for place in places])
    return (
        layer_of(marks)
        .mark_line(strokeWidth=1.6, interpolate="step-before")
        .encode(
            x=alt.X("at_s:Q", title=f"seconds {since}", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=TICKS)),
            y=alt.Y("value:Q", title=TITLES[metric], scale=alt.Scale(zero=True)),
            color=alt.Color("member:N", scale=colour, legend=legend, sort=members),
            strokeDash=alt.StrokeDash("member:N", scale=dash, legend=legend, sort=members),
            tooltip=tooltip("member", "at_s"),
        )
        .properties(width="container", height=220)
    )
