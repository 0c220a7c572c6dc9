"""What clients saw while a member of the system was killed, frozen or cut off: a table, and each run over its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from anncestry.report.charts import TICKS, Figure, Panel, colour_of, colours, layer_of
from anncestry.report.material import Material
from anncestry.report.more_tables import workload_table
from anncestry.report.tables import Row, Table, text_of

_SHOWN = {
    "fault_lost": ("Requests that failed", "queries"),
    "fault_silence_s": ("Longest silence", "s"),
    "fault_recovered_s": ("Recovered after", "s"),
    "fault_whole_s": ("Whole again after", "s"),
    "fault_recall_during": ("Recall while it lasted", "fraction"),
    "recall_by_distance": ("Recall of the whole run", "fraction"),
}
_NAMES = ("dataset", "topology", "workload", "system")
_DRAWN = {
    "p50_ms": ("fault-latency", "Latency under a fault", "median, ms", "fault_silence_s"),
    "lost": ("fault-errors", "Failures under a fault", "requests that failed", "fault_lost"),
    "recall": ("fault-recall", "Recall under a fault", "recall of what was answered", "recall_by_distance"),
}
"""What is drawn of each half second → name and title of its figure, title of its axis, the number that it leads to."""
_WIDE = 12.0
"""A logarithmic axis is needed from this ratio of the largest to the smallest value on."""


def tables(df: pd.DataFrame) -> list[Table]:
    """The table, if the tidy frame `df` has a workload with a fault."""
    return workload_table(
        df,
        "fault_lost",
        _SHOWN,
        "T",
        "Under a fault",
        "A member of the system is killed, frozen or cut off during each run, and started, woken or joined again some"
        " seconds later. Longest silence: the longest time without an answer. Recovered: from the fault until every"
        " request was good from then on, and the median of each half second within twice the p99 of before; none if"
        " that was not within the run. Whole again: from the mending until no member missed another. Recall is of what"
        " was answered, by distance: loss that no error tells.",
    )


def figures(material: Material) -> list[Figure]:
    """Latency, failures and recall over the time of each run with a fault."""
    palette = colours(material.plain)
    rows = {
        (*(row[name] for name in _NAMES), row["metric"]): row
        for row in material.rows
        if row["metric"] in _SHOWN and row["value"] is not None
    }
    places = sorted({place[:3] for place in rows if place[4] == "fault_lost"})
    drawn = []
    for what, (name, title, axis, metric) in _DRAWN.items():
        panels = []
        for place in places:
            systems = {system: rows.get((*place, system, metric)) for system in palette}
            of_place = [row for row in systems.values() if row is not None]
            chart = _chart(of_place, palette, what, axis, material.records)
            if chart is not None:
                heading = " · ".join(place)
                panels.append(Panel(heading, f"{title}, {heading}", chart.to_dict()))
        if panels:
            drawn.append(Figure(name, title, _caption(what), "T", "", tuple(panels)))
    return drawn


def _caption(what: str) -> str:
    of = {
        "p50_ms": "The median latency of the requests of each half second that were answered",
        "lost": "Requests of each half second that failed",
        "recall": "Recall, by distance, of what was answered of each half second's requests",
    }[what]
    return (
        f"{of}, by when they were due; a line for each run, interrupted where there is nothing. Time is from the"
        " fault, the solid line; dashed where it was mended, dotted where the system missed no member again."
    )


def _of_runs(row: Row, records: Mapping[str, Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The faults of the runs that a number is of, each with its `steps`; its record may be that of the recall."""
    record = records.get(row["record"]) or {}
    if record.get("stage") == "recall":
        record = next(
            (r for r in records.values() if r.get("stage") == "query" and r.get("key") == record.get("query_key")), {}
        )
    return (record.get("fault") or {}).get("runs") or ()


def _steps(row: Row, what: str, records: Mapping[str, Mapping[str, Any]]) -> Iterator[list[tuple[float, float | None]]]:
    """Of each run its half seconds: seconds since the fault, and the value, None where there is none."""
    over_time = ((records.get(row["record"]) or {}).get("fault") or {}).get("over_time")
    for number, run in enumerate(_of_runs(row, records)):
        known = dict(over_time[number]) if what == "recall" and over_time else {}
        yield [
            (step["from_s"] - run["made_s"], known.get(step["from_s"]) if what == "recall" else step[what])
            for step in run["steps"]
        ]


def _chart(
    rows: Sequence[Row], palette: dict[str, str], what: str, axis: str, records: Mapping[str, Mapping[str, Any]]
) -> Any:
    lines, marks = [], []
    for row in rows:
        for number, steps in enumerate(_steps(row, what, records), 1):
            part = 0
            for at_s, value in steps:
                if value is None:
                    part += 1
                    continue
                place = {"system": row["system"], "run": number, "series": f"{row['system']} {number} {part}"}
                unit = {"p50_ms": "ms", "lost": "queries", "recall": "fraction"}[what]
                said = {"shown": text_of(value, None, unit), "number_id": row["number_id"]}
                lines.append({**place, "at_s": at_s, "value": value, **said})
        for run in _of_runs(row, records):
            ends = {"mended": run["mended_s"], "whole again": run["whole_s"]}
            happened = {"made": 0.0, **{k: v - run["made_s"] for k, v in ends.items() if v is not None}}
            last_s = max((step["from_s"] for step in run["steps"]), default=0.0) - run["made_s"]
            marks += [
                {"system": row["system"], "event": event, "at_s": at_s}
                for event, at_s in happened.items()
                if at_s <= last_s
            ]
    if not lines:
        return None
    values = [line["value"] for line in lines]
    wide = what == "p50_ms" and min(values) > 0 and max(values) / min(values) > _WIDE
    scale = alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=True)
    if what == "recall":
        scale = alt.Scale(domain=[0, 1.05], nice=False)
    if what == "lost":  # an axis has a length even where no request failed
        scale = alt.Scale(domainMin=0, domainMax=max(1.0, *values))
    x = alt.X("at_s:Q", title="seconds since the fault", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=TICKS))
    ticks = alt.Axis(tickMinStep=1) if what == "lost" else alt.Axis()
    y = alt.Y("value:Q", title=f"{axis} (logarithmic)" if wide else axis, scale=scale, axis=ticks)
    dash = alt.StrokeDash(
        "event:N",
        scale=alt.Scale(domain=["made", "mended", "whole again"], range=[[1, 0], [5, 3], [1, 3]]),
        legend=None,
    )
    names = {"shown": "value", "number_id": "number", "at_s": "seconds since the fault"}
    tips = [alt.Tooltip(f"{f}:N", title=names.get(f, f)) for f in ("system", "run", "at_s", "shown", "number_id")]
    return alt.layer(
        layer_of(marks)
        .mark_rule(opacity=0.6)
        .encode(x=x, strokeDash=dash, color=colour_of(palette), tooltip=["event:N", "at_s:Q"]),
        layer_of(lines)
        .mark_line(strokeWidth=1.6, point=alt.OverlayMarkDef(size=14))
        .encode(x=x, y=y, color=colour_of(palette), detail="series:N", tooltip=tips),
    ).properties(width="container", height=220)
