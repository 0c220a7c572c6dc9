"""The chart of pairs: ratios with their intervals beside the margin of equivalence, and the controls."""

from __future__ import annotations

from typing import Any

import altair as alt

from anncestry.report import charts
from anncestry.report.charts import Figure
from anncestry.report.model.cells import Row, arrow, is_control
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import OF_PAIRS

_WHOLE = alt.Axis(labelLimit=430)
"""Both names of a pair, and its workload."""
_SHOWN = ("qps", "server_cpu_us_per_query", "p99_ms")


def figures(material: Material) -> list[Figure]:
    """A panel for each dataset and topology."""
    margin = material.rule.margin
    return charts.made(
        "pairs",
        "Pairs: side b over side a",
        "Queries per second, CPU a query and p99 of side b over those of side a, both measured in turns,"
        f" with 95 % intervals. The band is the margin of equivalence, {100 * margin:g} %. Pale: the controls, one"
        " system paired with itself, whose intervals should hold 1.",
        "J",
        "members",
        charts.by_place(material, material.pairs, lambda rows, _: _panel(rows, margin)),
    )


def _panel(rows: list[Row], margin: float) -> Any:
    data = [
        charts.datum(
            row,
            low=row["low"],
            high=row["high"],
            pair=f"{arrow(row['system'])}, {row['workload']}",
            quantity=OF_PAIRS[name][0],
            shown=f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            opacity=0.45 if is_control(row) else 1.0,
        )
        for row in rows
        for name in _SHOWN
        if row["metric"] == f"pair_{name}" and row["low"] is not None
    ]
    if not data:
        return None
    labels = [OF_PAIRS[name][0] for name in _SHOWN]
    ends = [end for datum in data for end in (datum["low"], datum["high"])]
    x = alt.X(
        "value:Q",
        title="b / a (logarithmic)",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(tickCount=charts.TICKS, format=charts.NUMBER),
    )
    legend = alt.Legend(orient="top", title=None, columns=1)  # beside one another, the last would be cut
    colours = alt.Scale(domain=labels, range=list(charts.COLOURS[: len(labels)]))
    shapes = alt.Scale(domain=labels, range=list(charts.SHAPES[: len(labels)]))
    base = {
        "y": alt.Y("pair:N", title=None, sort=list(dict.fromkeys(datum["pair"] for datum in data)), axis=_WHOLE),
        "yOffset": alt.YOffset("quantity:N", scale=alt.Scale(domain=labels, paddingOuter=0.4)),
        "color": alt.Color("quantity:N", scale=colours, legend=legend),
        "opacity": charts.OPACITY,
    }
    low, high = 1 / (1 + margin), 1 + margin
    band = [{"from": low, "to": high}] if min(ends) < high and max(ends) > low else []
    return charts.layered(
        alt.Step(16, **{"for": "offset"}),
        charts.layer_of(band).mark_rect(opacity=0.12).encode(x=alt.X("from:Q"), x2="to:Q"),
        charts.layer_of([{"one": 1}]).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(x=alt.X("one:Q")),
        charts.layer_of(data).mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", **base),
        charts.points_of(data, 60).encode(
            x=x,
            shape=alt.Shape("quantity:N", scale=shapes, legend=legend),
            tooltip=charts.tooltip("pair", "quantity"),
            **base,
        ),
    )
