"""Charts over time: what a server, its members and its client used during loads and during runs of queries.

They need the samples of resources that lie beside records. Of queries, `WORKLOADS` of a place are drawn: first those
during which something else happens (a fault, a stream of changes), then those with the most clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pyarrow as pa
import pyarrow.parquet as pq

from anncestry.cells import features
from anncestry.errors import DataError
from anncestry.metrics import resources
from anncestry.provenance.records import sha256_file
from anncestry.report import charts
from anncestry.report.charts import Data, Figure
from anncestry.report.model.cells import Row
from anncestry.report.model.material import Material
from anncestry.report.model.records import Records
from anncestry.report.tables.usage import OF_MEMBERS, in_order, member_of

WORKLOADS = 2
"""At most so many workloads of a dataset and topology are drawn."""

LOAD_POINTS, RUN_POINTS = 120, 60
"""At most so many points a line of a load, and of a run; each is of the time since the one before it."""

STEP_S = 0.25
"""No point of a run is of less time: nothing was sampled more often."""

SHORTEST_S = 4 * STEP_S
"""A workload with a run that is shorter has no course worth a chart."""

GROUPS = {"server": [1, 0], "client": [4, 3]}
"""Who is drawn over queries, and their strokes."""

PALE = 0.35

_UNITS = {"cpu_avg_pct": "% of one core", "rss_peak_mib": "MiB"}
"""What is drawn, and the unit on its axis."""

_OF = {f"{prefix}{of}": (group, of) for group, prefix in zip(GROUPS, ("", "client_"), strict=True) for of in _UNITS}
"""Metrics of the tidy table that are drawn over queries: of which group, and what."""

_SIGN_SHARE = 0.02
"""Of the width of a chart, what a letter takes, on a phone."""

_DASHES = ([1, 0], [4, 3], [1, 2])
"""A second sign for a member beside its colour, and the only one where there are more members than colours."""

_HEIGHT = 220
_EACH = "each point is of the time since the one before."
_MEMBERS = "Of the processes of each member of a server that has several; colours and dashes are of members here."

Points = Sequence[Mapping[str, float]]
"""Of the end of each step, seconds since the beginning and each metric; the first, at 0, repeats the second."""
Place = tuple[str, ...]
"""Names, of which the last is the workload; empty for a load."""
Lines = Mapping[str, Points]
"""By name of the member, the points of its line."""


@dataclass(frozen=True)
class Course:
    """What a group used in one run, and from when the run was steady, if it was."""

    run: int
    group: str
    points: Points
    steady_after_s: float | None


def _figures(
    name: str, title: str, caption: str, table: str, legend: str, draw: Callable[[str], Iterable[tuple[str, Any]]]
) -> list[Figure]:
    """A figure of processor and one of memory, the word for each in `name`, `title` and `caption`."""
    words = {"cpu_avg_pct": ("Processor", "Processor time"), "rss_peak_mib": ("Memory", "Resident memory")}
    return [
        made
        for metric, (what, used) in words.items()
        for made in charts.made(
            name.format(what.lower()), title.format(what), caption.format(used), table, legend, draw(metric)
        )
    ]


def of_loads(material: Material) -> list[Figure]:
    """Processor and memory of every load whose samples lie beside its record."""
    palette = charts.colours(material.plain["system"])
    rows = [row for row in material.rows if not row["workload"]]
    points = {
        path: load_points(Path(path), material.records.get(path) or {})
        for path in {row["record"] for row in rows if row["metric"] in _UNITS and row["value"] is not None}
    }

    def draw(metric: str) -> Iterable[tuple[str, Any]]:
        return charts.by_place(material, rows, lambda of, _: _load_chart(of, palette, metric, material.records, points))

    caption = (
        f"Of all processes of the server, from the first insert on; {_EACH} Dashed lines are where a phase of the load"
        " begins."
    )
    return _figures("load-{}", "{} over a load", caption, "III", "", draw)


def of_queries(material: Material) -> list[Figure]:
    """Processor and memory of server and client over the runs of the chosen workloads, whose samples are here."""
    palette = charts.colours(material.plain["system"])
    courses: dict[str, list[Course]] = {}
    places = _chosen(material, courses)
    several = len({topology for _, topology, _ in places}) > 1

    def draw(metric: str) -> Iterable[tuple[str, Any]]:
        drawn = {place: _query_chart(rows, palette, metric, courses) for place, rows in places.items()}
        for place, chart in charts.alike_by(drawn, _compared).items():
            dataset, topology, workload = place
            yield " · ".join((dataset, *([topology] if several else ()), workload)), chart

    caption = (
        f"{{}} of all processes of the server, and of the client, in each run since its first request; {_EACH} Pale"
        " until the run was steady, marked where that begins; pale throughout if it never settled, or was a search for"
        f" a rate. At most {WORKLOADS} workloads of a place are drawn: those with faults or changes, then those with"
        f" the most clients; of a system whose runs are shorter than {SHORTEST_S:g} s, none."
    )
    return _figures("query-{}", "{} over the queries", caption, "R", "resources", draw)


def of_members(material: Material) -> list[Figure]:
    """Processor and memory of each member, over loads and over queries, whose samples are here.

    Only servers of several members have these: of one, the server is its member.
    """
    places: dict[Place, dict[str, dict[str, Row]]] = {}
    for row in material.rows:
        metric, member = member_of(row["metric"])
        if member and row["value"] is not None:
            place = tuple(row[name] for name in ("dataset", "topology", "system", "workload"))
            places.setdefault(place, {}).setdefault(metric, {})[member] = row
    places = {place: rows for place, rows in places.items() if rows.keys() >= _UNITS.keys()}
    loads = {place: _load_lines(rows, material) for place, rows in sorted(places.items()) if not place[-1]}
    # What happens in a server shows where something is done to it, or where it has most to do.
    with_queries = [place for place in places if place[-1]]
    with_queries.sort(key=lambda place: _rank(list(places[place]["cpu_avg_pct"].values()), material.records))
    queries = _picked(with_queries, lambda place: _last_run(places[place], material))

    def drawn(lines: Mapping[Place, Lines], since: str) -> Callable[[str], Iterable[tuple[str, Any]]]:
        def draw(metric: str) -> Iterable[tuple[str, Any]]:
            drawn = {
                place: _member_chart(places[place][metric], of_place, metric, since)
                for place, of_place in lines.items()
                if of_place
            }
            for place, chart in charts.alike_by(drawn, _compared).items():
                yield " · ".join(filter(None, place)), chart

        return draw

    loads_caption = f"{_MEMBERS} Each{_EACH[4:]}"
    queries_caption = (
        f"{_MEMBERS} The last run of each workload; {_EACH} At most {WORKLOADS} workloads of a server are drawn: those"
        " with faults or changes, then those with the most clients; none whose runs are shorter than"
        f" {SHORTEST_S:g} s."
    )
    title, table = "{} of each member over ", OF_MEMBERS.number
    of_load, of_query = drawn(loads, "first insert"), drawn(queries, "first request")
    return [
        *_figures("load-members-{}", f"{title}a load", loads_caption, table, "members", of_load),
        *_figures("query-members-{}", f"{title}the queries", queries_caption, table, "members", of_query),
    ]


def _compared(place: Place) -> tuple[str, str]:
    """Whose charts are compared: all of a dataset and workload, of whichever topology or system."""
    return place[0], place[-1]


def _load_lines(rows: Mapping[str, Mapping[str, Row]], material: Material) -> Lines:
    records = material.records
    lines = {
        member: load_points(Path(row["record"]), records.get(row["record"]) or {}, f"{resources.OF_MEMBER}{member}")
        for member, row in rows["cpu_avg_pct"].items()
    }
    return {member: points for member, points in lines.items() if points}


def _last_run(rows: Mapping[str, Mapping[str, Row]], material: Material) -> Lines:
    members = list(rows["cpu_avg_pct"])
    path = rows["cpu_avg_pct"][members[0]]["record"]
    groups = [f"{resources.OF_MEMBER}{member}" for member in members]
    courses = run_courses(Path(path), material.records.get(path) or {}, groups)
    last = max((course.run for course in courses), default=0)
    return {course.group.removeprefix(resources.OF_MEMBER): course.points for course in courses if course.run == last}


def _chosen(material: Material, courses: dict[str, list[Course]]) -> dict[Place, list[Row]]:
    """The rows that name a record with a course, by dataset, topology and workload; `courses` gets those, by record."""
    places: dict[Place, list[Row]] = {}
    for row in material.rows:
        if row["workload"] and row["phase"] == "query" and row["metric"] in _OF:
            places.setdefault((row["dataset"], row["topology"], row["workload"]), []).append(row)

    def with_courses(place: Place) -> list[Row]:
        rows = places[place]
        for path in sorted({row["record"] for row in rows if row["value"] is not None}):
            courses[path] = run_courses(Path(path), material.records.get(path) or {})
        return rows if any(courses.get(row["record"]) for row in rows) else []

    ordered = sorted(places, key=lambda place: (place[:-1], _rank(places[place], material.records)))
    return _picked(ordered, with_courses)


def _picked(places: Iterable[Place], look_up: Callable[[Place], Any]) -> dict[Place, Any]:
    """What is found for the first `WORKLOADS` workloads of each place for which something is found."""
    picked: dict[Place, Any] = {}
    for place in places:
        taken = sum(place[:-1] == other[:-1] for other in picked)
        if taken < WORKLOADS and (found := look_up(place)):
            picked[place] = found
    return picked


def _rank(rows: Sequence[Row], records: Records) -> tuple[bool, int, str]:
    """What is drawn first: that during which something happens, then the most clients."""
    workloads = [(records.get(row["record"]) or {}).get("spec", {}).get("workload", {}) for row in rows]
    happens = any(feature.spends_server for workload in workloads for feature in features.of(workload))
    return not happens, -max(row["clients"] or 0 for row in rows), rows[0]["workload"]


def _along(row: Row, points: Points, metric: str, **more: Any) -> Data:
    """A mark for each of the points, which leads to the number of the whole."""
    return [
        charts.datum(row, **more, at_s=at["at_s"]) | {"value": at[metric], "shown": f"{at[metric]:.4g} {row['unit']}"}
        for at in points
    ]


def _load_chart(
    rows: list[Row], palette: dict[str, str], metric: str, records: Records, of_record: Mapping[str, Points]
) -> Any:
    lines, starts = [], []
    for row in charts.measured_rows([row for row in rows if row["phase"] == "load"], metric):
        if points := of_record[row["record"]]:
            lines += _along(row, points, metric)
            phases = records[row["record"]]["phases"]
            starts += [charts.datum(row, at_s=start - phases[0][1], phase=name) for name, start, _ in phases]
    if not lines:
        return None
    x, y = charts.seconds("the first insert"), alt.Y("value:Q", title=_UNITS[metric])
    colour = charts.colour_of(palette)
    names = []
    for rank, system in enumerate(palette):
        named = _named_apart([start for start in starts if start["system"] == system], max(at["at_s"] for at in lines))
        # Names of several systems' phases stand beneath each other, above the lines.
        words = charts.layer_of(named).mark_text(align="left", dx=3, fontSize=11)
        names.append(words.encode(x=x, y=alt.value(-8 - 13 * rank), text="phase:N", color=colour))
    rules = charts.layer_of(starts).mark_rule(strokeDash=[3, 3], opacity=0.6)
    point = alt.OverlayMarkDef(size=12)
    steps = charts.layer_of(lines).mark_line(strokeWidth=2, interpolate="step-before", point=point)
    return charts.layered(
        _HEIGHT,
        rules.encode(x=x, color=colour, tooltip=charts.tooltip("phase")),
        steps.encode(x=x, y=y, color=colour, detail="system:N", tooltip=charts.tooltip("at_s")),
        *names,
    )


def _named_apart(starts: Data, longest_s: float) -> Data:
    """The starts of phases, one for those that lie so near each other that their names would overlap."""
    apart: Data = []
    for start in sorted(starts, key=lambda mark: mark["at_s"]):
        if apart and start["at_s"] - apart[-1]["at_s"] < (len(apart[-1]["phase"]) + 2) * _SIGN_SHARE * longest_s:
            apart[-1] = {**apart[-1], "phase": f"{apart[-1]['phase']}, {start['phase']}"}
        else:
            apart.append(start)
    return apart


def _query_chart(
    rows: Sequence[Row], palette: dict[str, str], metric: str, courses: Mapping[str, Sequence[Course]]
) -> Any:
    lines, begins = [], []
    for row in rows:
        group, of = _OF[row["metric"]]
        if of != metric or row["value"] is None:
            continue
        for course in (c for c in courses.get(row["record"], ()) if c.group == group):
            more = {"group": group, "run": course.run + 1, "series": f"{row['system']} {group} {course.run}"}
            for part, points in _parts(course):
                lines += _along(row, points, metric, **more, part=part, opacity=PALE if part == "unsteady" else 1.0)
            steady = course.steady_after_s
            if steady is not None and group == "server":
                shown = {"value": 0, "shown": f"steady from {steady:.2g} s on"}
                begins.append(charts.datum(row, **more, at_s=steady) | shown)
    if not lines:
        return None
    y = alt.Y("value:Q", title=_UNITS[metric], scale=alt.Scale(zero=True))
    base = {"x": charts.seconds("the first request"), "y": y, "color": charts.colour_of(palette)}
    return charts.layered(
        _HEIGHT,
        charts.layer_of(lines)
        .mark_line(strokeWidth=1.6, interpolate="step-before")
        .encode(
            strokeDash=charts.signs_of("group", "strokeDash", GROUPS),
            opacity=charts.OPACITY,
            detail=["series:N", "part:N"],
            tooltip=charts.tooltip("group", "run", "at_s"),
            **base,
        ),
        charts.layer_of(begins)
        .mark_point(shape="triangle-up", filled=True, size=45, opacity=1)
        .encode(tooltip=charts.tooltip("run"), **base),
    )


def _parts(course: Course) -> list[tuple[str, Points]]:
    """The points of a course before it was steady, and after; the one where they meet belongs to both."""
    steady, points = course.steady_after_s, course.points
    if steady is None:
        return [("unsteady", points)]
    cut = next((place for place, point in enumerate(points) if point["at_s"] >= steady), len(points) - 1)
    return [("unsteady", points[: cut + 1]), ("steady", points[cut:])] if cut else [("steady", points)]


def _member_chart(rows: Mapping[str, Row], lines: Lines, metric: str, since: str) -> Any:
    members = in_order(lines)
    marks = [mark for member in members for mark in _along(rows[member], lines[member], metric, member=member)]
    count = len(charts.COLOURS)
    legend = alt.Legend(orient="bottom", title=None, columns=2, symbolType="stroke", symbolStrokeWidth=2)
    fill = [charts.COLOURS[place % count] for place in range(len(members))]
    dashes = [_DASHES[place // count % len(_DASHES)] for place in range(len(members))]
    of_members = {"legend": legend, "sort": members}
    return (
        charts.layer_of(marks)
        .mark_line(strokeWidth=1.6, interpolate="step-before")
        .encode(
            x=charts.seconds(f"the {since}"),
            y=alt.Y("value:Q", title=_UNITS[metric], scale=alt.Scale(zero=True)),
            color=alt.Color("member:N", scale=alt.Scale(domain=members, range=fill), **of_members),
            strokeDash=alt.StrokeDash("member:N", scale=alt.Scale(domain=members, range=dashes), **of_members),
            tooltip=charts.tooltip("member", "at_s"),
        )
        .properties(width="container", height=_HEIGHT)
    )


def load_points(path: Path, record: Mapping[str, Any], group: str = "server") -> Points:
    """What a group used in equal steps of the time of a load.

    Nothing if the record has no samples of it, or they are not here. DataError if they are not those of the record.
    """
    table, phases = _samples_of(path, record), record.get("phases")
    if table is None or not phases:
        return []
    of_group = table.filter(pa.compute.equal(table["group"], group))
    return _in_steps(of_group, group, (phases[0][1], phases[-1][2]), max(2, min(LOAD_POINTS, len(of_group))))


def run_courses(path: Path, record: Mapping[str, Any], groups: Iterable[str] = tuple(GROUPS)) -> list[Course]:
    """The course of each run of a query record, for each of `groups` that was sampled in it.

    Nothing if a run was shorter than `SHORTEST_S`, or there are no samples here. Of a search for a rate, whose runs
    consist of many probes, nothing is called steady.
    """
    windows = record.get("windows_s") or []
    if not windows or min(end - start for start, end in windows) < SHORTEST_S:
        return []
    table = _samples_of(path, record)
    if table is None:
        return []
    steady = [None] * len(windows) if "probes" in record else record["steadiness"]["steady_after_s"]["runs"]
    courses = []
    for run, (start, end) in enumerate(windows):
        of_run = table.filter(pa.compute.equal(table["run"], run))
        steps = max(2, min(RUN_POINTS, int((end - start) / STEP_S)))
        for group in groups:
            if points := _in_steps(of_run, group, (start, end), steps):
                courses.append(Course(run, group, points, steady[run]))
    return courses


def _samples_of(path: Path, record: Mapping[str, Any]) -> pa.Table | None:
    """The samples of resources beside the record at `path`; None if it has none, or they are not here.

    DataError if they are not those that the record was made with.
    """
    entry = (record.get("outputs") or {}).get("resources")
    if not entry:
        return None
    file = path.parent / entry["path"]
    if not file.exists():
        return None
    if sha256_file(file) != entry["sha256"]:
        raise DataError(f"{file}: not the samples that {path} was made with (sha256 differs)")
    return pq.read_table(file)


def _in_steps(table: pa.Table, group: str, window: tuple[float, float], steps: int) -> Points:
    """What a group used in each of `steps` equal parts of the window; nothing without samples of the group."""
    begin, end = window
    width = (end - begin) / steps
    points: list[dict[str, float]] = []
    for step in range(steps):
        used = resources.attribute(table, group, [(begin + step * width, begin + (step + 1) * width)])
        if used is None:
            return []
        points.append({"at_s": (step + 1) * width, **{metric: used[metric] for metric in _UNITS}})
    return [{**points[0], "at_s": 0.0}, *points]
