"""Charts of what server and client used while queries were asked: each run over its time, and from where it was steady.

One panel for each dataset, topology and chosen workload: first those during which something else happens (a fault, a
stream of changes), then those with the most clients. All others have their samples beside their records, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pyarrow as pa

from anncestry.report.charts import TICKS, Figure, Panel, colour_of, colours, datum, layer_of, tooltip
from anncestry.report.material import Material
from anncestry.report.more_tables import with_interval
from anncestry.report.tables import Column, Row, Table, TableRow
from anncestry.report.timeline import TITLES, in_steps, samples_of

WORKLOADS = 2
"""At most so many workloads of a dataset and topology are drawn."""

POINTS = 60
"""At most so many points a run."""

STEP_S = 0.25
"""No point is of less time: nothing was sampled more often."""

SHORTEST_S = 4 * STEP_S
"""A workload with a run that is shorter has no course worth a chart."""

GROUPS = ("server", "client")
PALE = 0.35

_OF = {
    f"{prefix}{metric}": (group, metric)
    for group, prefix in zip(GROUPS, ("", "client_"), strict=True)
    for metric in TITLES
}
"""Metrics of the tidy table that are drawn: of which group, and what."""

_COLUMNS = {
    "cpu_avg_pct": ("Server, processor", "% of one core"),
    "client_cpu_avg_pct": ("Client, processor", "% of one core"),
    "rss_peak_mib": ("Server, memory", "MiB"),
    "client_rss_peak_mib": ("Client, memory", "MiB"),
}


@dataclass(frozen=True)
class Course:
    """What a group used in one run: points as of `timeline.in_steps`, and from when the run was steady, if it was."""

    run: int
    group: str
    points: Sequence[Mapping[str, float]]
    steady_after_s: float | None


def figures(material: Material) -> list[Figure]:
    """Processor and memory of server and client over the runs of the chosen workloads, whose samples are here."""
    palette = colours(material.plain)
    courses: dict[str, list[Course]] = {}
    places = _chosen(material, courses)
    several = len({topology for _, topology, _ in places}) > 1
    drawn = []
    for name, title, metric in (
        ("query-processor", "Processor over the queries", "cpu_avg_pct"),
        ("query-memory", "Memory over the queries", "rss_peak_mib"),
    ):
        panels = []
        for (dataset, topology, workload), rows in places.items():
            chart = _chart(rows, palette, metric, courses)
            if chart is not None:
                heading = " · ".join((dataset, *([topology] if several else ()), workload))
                panels.append(Panel(heading, f"{title}, {heading}", chart.to_dict()))
        if panels:
            drawn.append(Figure(name, title, _caption(metric), "R", "resources", tuple(panels)))
    return drawn


def tables(material: Material) -> list[Table]:
    """Table R: what server and client used on average and at most, of every workload."""
    rows = [row for row in material.rows if row["phase"] == "query" and row["metric"] in _COLUMNS]
    systems = sorted({row["system"] for row in rows})
    found = {(row["dataset"], row["topology"], row["workload"], row["system"], row["metric"]): row for row in rows}
    columns = [Column(system, unit, label, system) for label, unit in _COLUMNS.values() for system in systems]
    body = tuple(
        TableRow(place, tuple(with_interval(found.get((*place, s, metric))) for metric in _COLUMNS for s in systems))
        for place in sorted({key[:3] for key in found})
    )
    table = Table(
        "R",
        "Processor and memory while queries run",
        "Of all processes of the server, and of the client that asks, over all runs: the mean share of a processor's"
        " time (100 % is one core, kept busy) and the most resident memory, shared pages counted once a process.",
        ("Dataset", "Topology", "Workload"),
        tuple(columns),
        body,
    )
    return [table] if body else []


def _caption(metric: str) -> str:
    what = "Processor time" if metric == "cpu_avg_pct" else "Resident memory"
    return (
        f"{what} of all processes of the server, and of the client, in each run since its first request; each point is"
        " of the time since the one before. Pale until the run was steady, marked where that begins; pale throughout if"
        " it never settled, or was a search for a rate. At most"
        f" {WORKLOADS} workloads of a place are drawn: those with faults or changes, then those with the most clients;"
        f" of a system whose runs are shorter than {SHORTEST_S:g} s, none."
    )


def _chosen(material: Material, courses: dict[str, list[Course]]) -> dict[tuple[str, str, str], list[Row]]:
    """The rows that name a record with a course, by dataset, topology and workload; `courses` gets those, by record."""
    rows = [row for row in material.rows if row["workload"] and row["phase"] == "query" and row["metric"] in _OF]
    asked: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        of_place = asked.setdefault((row["dataset"], row["topology"]), {})
        of_place.setdefault(row["workload"], []).append(row)
    found: dict[tuple[str, str, str], list[Row]] = {}
    for (dataset, topology), workloads in sorted(asked.items()):
        left = WORKLOADS
        for workload in sorted(workloads, key=lambda name: rank(workloads[name], material.records)):
            if not left:
                break
            of_workload = workloads[workload]
            for path in sorted({row["record"] for row in of_workload if row["value"] is not None}):
                courses[path] = over_runs(Path(path), material.records.get(path) or {})
            if any(courses.get(row["record"]) for row in of_workload):
                found[dataset, topology, workload] = of_workload
                left -= 1
    return found


def rank(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> tuple[bool, int, str]:
    """What is drawn first: that during which something happens, then the most clients."""
    asked = [(records.get(row["record"]) or {}).get("spec", {}).get("workload", {}) for row in rows]
    happens = any(work.get("fault") is not None or work.get("stream") is not None for work in asked)
    return not happens, -max(row["clients"] or 0 for row in rows), rows[0]["workload"]


def over_runs(path: Path, record: Mapping[str, Any], groups: Sequence[str] = GROUPS) -> list[Course]:
    """The course of each run of a query record, for each of `groups` that was sampled in it.

    Nothing if a run was shorter than `SHORTEST_S`, or there are no samples here. Of a search for a rate, whose runs
    consist of many probes, nothing is called steady.
    """
    windows = record.get("windows_s") or []
    if not windows or min(end - start for start, end in windows) < SHORTEST_S:
        return []
    table = samples_of(path, record)
    if table is None:
        return []
    steady = [None] * len(windows) if "probes" in record else record["steadiness"]["steady_after_s"]["runs"]
    found = []
    for run, (start, end) in enumerate(windows):
        part = table.filter(pa.compute.equal(table["run"], run))
        steps = max(2, min(POINTS, int((end - start) / STEP_S)))
        for group in groups:
            points = in_steps(part, group, (start, end), steps)
            if points:
                found.append(Course(run, group, points, steady[run]))
    return found


def _chart(
    rows: Sequence[Row], palette: Mapping[str, str], metric: str, courses: Mapping[str, Sequence[Course]]
) -> Any:
    lines, begins = [], []
    for row in rows:
        group, of = _OF[row["metric"]]
        if of != metric or row["value"] is None:
            continue
        for course in (c for c in courses.get(row["record"], ()) if c.group == group):
            more = {"group": group, "run": course.run + 1, "series": f"{row['system']} {group} {course.run}"}
            steady = course.steady_after_s
            for part, points in _parts(course):
                lines += [
                    datum(row, **more, part=part, opacity=PALE if part == "unsteady" else 1.0, at_s=at["at_s"])
                    | {"value": at[metric], "shown": f"{at[metric]:.4g} {row['unit']}"}
                    for at in points
                ]
            if steady is not None and group == "server":
                begins.append(datum(row, **more, at_s=steady) | {"value": 0, "shown": f"steady from {steady:.2g} s on"})
    if not lines:
        return None
    x = alt.X(
        "at_s:Q", title="seconds since the first request", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=TICKS)
    )
    y = alt.Y("value:Q", title=TITLES[metric], scale=alt.Scale(zero=True))
    dash = alt.StrokeDash("group:N", scale=alt.Scale(domain=list(GROUPS), range=[[1, 0], [4, 3]]), legend=None)
    opacity = alt.Opacity("opacity:Q", scale=None)
    colour = colour_of(dict(palette))
    layers = [
        layer_of(lines)
        .mark_line(strokeWidth=1.6, interpolate="step-before")
        .encode(x=x, y=y, color=colour, strokeDash=dash, opacity=opacity, detail=["series:N", "part:N"],
                tooltip=tooltip("group", "run", "at_s")),
    ]  # fmt: skip
    if begins:
        marks = layer_of(begins).mark_point(shape="triangle-up", filled=True, size=45, opacity=1)
        layers.append(marks.encode(x=x, y=y, color=colour, tooltip=tooltip("run")))
    return alt.layer(*layers).properties(width="container", height=220)


def _parts(course: Course) -> list[tuple[str, list[Mapping[str, float]]]]:
    """The points of a course before it was steady, and after; the one where they meet belongs to both."""
    steady, points = course.steady_after_s, list(course.points)
    if steady is None:
        return [("unsteady", points)]
    cut = next((place for place, point in enumerate(points) if point["at_s"] >= steady), len(points) - 1)
    return [("unsteady", points[: cut + 1]), ("steady", points[cut:])] if cut else [("steady", points)]
