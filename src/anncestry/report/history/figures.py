"""Charts over commits: a line a system, its interval as a band; breaks end the line, changes have a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from anncestry.report import charts
from anncestry.report.charts import Figure
from anncestry.report.history.lines import History, Line, Point
from anncestry.report.history.text import words
from anncestry.report.model.cells import text_of

_HEIGHT = 200
_BAND = 0.18
Ids = Callable[[Point], str]
"""The id of a point's number on the page."""


def figures(history: History, palette: dict[str, str], id_of: Ids) -> list[Figure]:
    """A figure of each quantity, with a panel for each dataset, topology, workload and phase of a load."""
    by_metric: dict[str, dict[tuple[str, ...], list[Line]]] = {}
    for line in history.lines:
        by_metric.setdefault(line.name[-1], {}).setdefault((*line.name[:3], line.during), []).append(line)
    return [
        figure
        for metric, places in by_metric.items()
        for figure in charts.made(
            f"history-{metric.replace('_', '-')}",
            f"{metric} ({next(iter(places.values()))[0].unit})",
            "",
            "",
            "shapes",
            ((" · ".join(filter(None, place)), _panel(lines, palette, id_of)) for place, lines in places.items()),
        )
    ]


def _panel(lines: Sequence[Line], palette: dict[str, str], id_of: Ids) -> Any:
    points = [
        _datum(line, line.points[place], number, id_of)
        for line in lines
        for number, segment in enumerate(line.segments())
        for place in segment
    ]
    changed = [
        {**_datum(line, line.points[each.place], 0, id_of), "said": words(each)}
        for line in lines
        for each in line.changes
    ]
    broken = [
        {**_datum(line, line.points[each.place], 0, id_of), "said": each.reason}
        for line in lines
        for each in line.breaks
    ]
    unit = lines[0].unit
    x = alt.X("at:T", title=None, axis=alt.Axis(tickCount=charts.TICKS, format="%Y-%m-%d", labelOverlap=True))
    y = alt.Y("value:Q", title=unit, scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(format=charts.NUMBER))
    axes = {"x": x, "color": charts.colour_of(palette), "detail": alt.Detail("segment:N")}
    bands = [datum for datum in points if datum["low"] is not None]
    tips = charts.tooltip("commit", "subject")
    return charts.layered(
        _HEIGHT,
        charts.layer_of(bands).mark_area(opacity=_BAND).encode(y=alt.Y("low:Q", title=unit), y2="high:Q", **axes),
        charts.layer_of(broken).mark_rule(strokeDash=[2, 4], opacity=0.7).encode(x=x, tooltip=charts.tooltip("said")),
        charts.layer_of(changed)
        .mark_rule(strokeWidth=2)
        .encode(x=x, color=charts.colour_of(palette), tooltip=charts.tooltip("said")),
        charts.lines_of(points).encode(y=y, **axes),
        charts.points_of(points, 40).encode(y=y, shape=charts.shape_of(palette), tooltip=tips, **axes),
    )


def _datum(line: Line, point: Point, segment: int, id_of: Ids) -> dict[str, Any]:
    row = point.row
    shown = f"{text_of(point.value, row['std'], line.unit)} {line.unit}"
    return {
        "system": row["system"],
        "workload": row["workload"],
        "what": row["metric"],
        "value": point.value,
        "low": row["low"],
        "high": row["high"],
        "at": point.commit.at,
        "commit": point.commit.commit[:8],
        "subject": point.commit.subject,
        "segment": f"{row['system']} {segment}",
        "shown": shown,
        "number_id": id_of(point),
    }
