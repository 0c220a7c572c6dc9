"""What clients saw while a member of the system was killed, frozen or cut off, or paths were lost: each run over its
time."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from anncestry.report.charts import Figure, colour_of, colours, layer_of, layered, made, seconds, signs_of
from anncestry.report.model.cells import Row, text_of
from anncestry.report.model.material import Material
from anncestry.report.model.records import Records

_NAMES = ("dataset", "topology", "workload", "system")
_DRAWN = {
    "p50_ms": (
        ("fault-latency", "Latency under a fault", "median, ms", "fault_silence_s", "ms"),
        "The median latency of the requests of each half second that were answered",
    ),
    "lost": (
        ("fault-errors", "Failures under a fault", "requests that failed", "fault_lost", "queries"),
        "Requests of each half second that failed",
    ),
    "recall": (
        ("fault-recall", "Recall under a fault", "recall of what was answered", "recall_by_distance", "fraction"),
        "Recall, by distance, of what was answered of each half second's requests",
    ),
}
"""What is drawn of each half second → name and title of its figure, title of its axis, the number that it leads to,
unit of its values; and what its caption begins with."""
_CAPTION = (
    "{}, by when they were due; a line for each run, interrupted where there is nothing. Time is from the"
    " fault, the solid line; dashed where it was mended, dotted where the system missed no member again."
)
_WIDE = 12.0
"""A logarithmic axis is needed from this ratio of the largest to the smallest value on."""


def figures(material: Material, metrics: Container[str]) -> list[Figure]:
    """Latency, failures and recall over the time of each run with a fault; its numbers are `metrics`."""
    palette = colours(material.plain["system"])
    rows = {
        (*(row[name] for name in _NAMES), row["metric"]): row
        for row in material.rows
        if row["metric"] in metrics and row["value"] is not None
    }
    places = sorted({place[:3] for place in rows if place[4] == "fault_lost"})

    def charts(what: str, axis: str, metric: str, unit: str) -> Iterable[tuple[str, Any]]:
        for place in places:
            of_place = [row for system in palette if (row := rows.get((*place, system, metric))) is not None]
            yield " · ".join(place), _chart(of_place, palette, what, axis, unit, material.records)

    return [
        figure
        for what, ((name, title, axis, metric, unit), caption) in _DRAWN.items()
        for figure in made(name, title, _CAPTION.format(caption), "T", "", charts(what, axis, metric, unit))
    ]


def _of_runs(row: Row, records: Records) -> Sequence[Mapping[str, Any]]:
    """The faults of the runs that a number is of, each with its `steps`; its record may be that of the recall."""
    record = records.get(row["record"]) or {}
    if record.get("stage") == "recall":
        record = next(
            (r for r in records.values() if r.get("stage") == "query" and r.get("key") == record.get("query_key")), {}
        )
    return (record.get("fault") or {}).get("runs") or ()


def _steps(row: Row, what: str, records: Records) -> Iterator[list[tuple[float, float | None]]]:
    """Of each run its half seconds: seconds since the fault, and the value, None where there is none."""
    over_time = ((records.get(row["record"]) or {}).get("fault") or {}).get("over_time")
    for number, run in enumerate(_of_runs(row, records)):
        known = dict(over_time[number]) if what == "recall" and over_time else {}
        yield [
            (step["from_s"] - run["made_s"], known.get(step["from_s"]) if what == "recall" else step[what])
            for step in run["steps"]
        ]


def _chart(rows: Sequence[Row], palette: dict[str, str], what: str, axis: str, unit: str, records: Records) -> Any:
    lines, marks = [], []
    for row in rows:
        for number, steps in enumerate(_steps(row, what, records), 1):
            part = 0
            for at_s, value in steps:
                if value is None:
                    part += 1
                    continue
                place = {"system": row["system"], "run": number, "series": f"{row['system']} {number} {part}"}
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
    x, colour = seconds("the fault"), colour_of(palette)
    ticks = alt.Axis(tickMinStep=1) if what == "lost" else alt.Axis()
    y = alt.Y("value:Q", title=f"{axis} (logarithmic)" if wide else axis, scale=scale, axis=ticks)
    dash = signs_of("event", "strokeDash", {"made": [1, 0], "mended": [5, 3], "whole again": [1, 3]})
    names = {"shown": "value", "number_id": "number", "at_s": "seconds since the fault"}
    tips = [alt.Tooltip(f"{f}:N", title=names.get(f, f)) for f in ("system", "run", "at_s", "shown", "number_id")]
    events = layer_of(marks).mark_rule(opacity=0.6)
    curves = layer_of(lines).mark_line(strokeWidth=1.6, point=alt.OverlayMarkDef(size=14))
    return layered(
        220,
        events.encode(x=x, strokeDash=dash, color=colour, tooltip=["event:N", "at_s:Q"]),
        curves.encode(x=x, y=y, color=colour, detail="series:N", tooltip=tips),
    )
