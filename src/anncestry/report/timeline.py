"""Charts of what a server used while it was loaded: processor and memory over time, with the phases marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pyarrow as pa
import pyarrow.parquet as pq

from anncestry.errors import DataError
from anncestry.metrics import resources
from anncestry.provenance.records import sha256_file
from anncestry.report.charts import TICKS, Figure, colour_of, colours, datum, layer_of, measured_rows, panels, tooltip
from anncestry.report.material import Material
from anncestry.report.tables import Row

POINTS = 120
"""At most so many points a line; each is of the time since the one before it."""

_SIGN_SHARE = 0.02
"""Of the width of a chart, what a letter takes, on a phone."""

TITLES = {"cpu_avg_pct": "% of one core", "rss_peak_mib": "MiB"}
"""What is drawn, and the unit on its axis."""


def figures(material: Material) -> list[Figure]:
    """Processor and memory of every load whose samples lie beside its record."""
    palette = colours(material.plain)
    samples: dict[str, list[dict[str, float]]] = {}

    def draw(metric: str) -> Any:
        return lambda rows, colours: _chart(rows, colours, metric, material.records, samples)

    told = (
        "Of all processes of the server, from the first insert on; each point is of the time since the one before."
        " Dashed lines are where a phase of the load begins."
    )
    drawn = [
        Figure(
            name,
            title,
            told,
            "III",
            "",
            panels([r for r in material.rows if not r["workload"]], palette, title, draw(m)),
        )
        for name, title, m in (
            ("load-processor", "Processor over a load", "cpu_avg_pct"),
            ("load-memory", "Memory over a load", "rss_peak_mib"),
        )
    ]
    return [figure for figure in drawn if figure.panels]


def _chart(
    rows: list[Row],
    palette: dict[str, str],
    metric: str,
    records: Mapping[str, Mapping[str, Any]],
    known: dict[str, list[dict[str, float]]],
) -> Any:
    lines, starts = [], []
    for row in measured_rows([row for row in rows if row["phase"] == "load"], metric):
        record = records.get(row["record"]) or {}
        if row["record"] not in known:
            known[row["record"]] = over_time(Path(row["record"]), record)
        points = known[row["record"]]
        lines += [
            {**datum(row), "at_s": at["at_s"], "value": at[metric], "shown": f"{at[metric]:.4g} {row['unit']}"}
            for at in points
        ]
        if points:
            began = record["phases"][0][1]
            starts += [{**datum(row), "at_s": start - began, "phase": name} for name, start, _ in record["phases"]]
    if not lines:
        return None
    x = alt.X(
        "at_s:Q", title="seconds since the first insert", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=TICKS)
    )
    y = alt.Y("value:Q", title=TITLES[metric])
    layers = [
        layer_of(starts)
        .mark_rule(strokeDash=[3, 3], opacity=0.6)
        .encode(x=x, color=colour_of(palette), tooltip=tooltip("phase")),
        layer_of(lines)
        .mark_line(strokeWidth=2, interpolate="step-before", point=alt.OverlayMarkDef(size=12))
        .encode(x=x, y=y, color=colour_of(palette), detail="system:N", tooltip=tooltip("at_s")),
    ]
    for rank, system in enumerate(palette):
        named = _named_apart([start for start in starts if start["system"] == system], max(at["at_s"] for at in lines))
        if named:
            # Names of several systems' phases stand beneath each other, above the lines.
            words = layer_of(named).mark_text(align="left", dx=3, fontSize=11)
            layers.append(words.encode(x=x, y=alt.value(-8 - 13 * rank), text="phase:N", color=colour_of(palette)))
    return alt.layer(*layers).properties(width="container", height=220)


def _named_apart(starts: list[dict[str, Any]], longest_s: float) -> list[dict[str, Any]]:
    """The starts of phases, one for those that lie so near each other that their names would overlap."""
    apart: list[dict[str, Any]] = []
    for start in sorted(starts, key=lambda mark: mark["at_s"]):
        if apart and start["at_s"] - apart[-1]["at_s"] < (len(apart[-1]["phase"]) + 2) * _SIGN_SHARE * longest_s:
            apart[-1] = {**apart[-1], "phase": f"{apart[-1]['phase']}, {start['phase']}"}
        else:
            apart.append(start)
    return apart


def over_time(path: Path, record: Mapping[str, Any], group: str = "server") -> list[dict[str, float]]:
    """What a group used in equal steps of the time of a load: seconds since the first insert, and each metric.

    A point is of the step that ends there; the one at 0 repeats the first, for the line to begin with.
    Nothing if the record has no samples of it, or they are not here. DataError if they are not those of the record.
    """
    table, phases = samples_of(path, record), record.get("phases")
    if table is None or not phases:
        return []
    server = table.filter(pa.compute.equal(table["group"], group))
    return in_steps(server, group, (phases[0][1], phases[-1][2]), max(2, min(POINTS, len(server))))


def samples_of(path: Path, record: Mapping[str, Any]) -> pa.Table | None:
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


def in_steps(table: pa.Table, group: str, window: tuple[float, float], steps: int) -> list[dict[str, float]]:
    """What a group used in each of `steps` equal parts of the window: seconds since its start, and each metric.

    A point is of the step that ends there; the one at 0 repeats the first, for the line to begin with.
    Nothing without samples of the group.
    """
    begin, end = window
    width = (end - begin) / steps
    found: list[dict[str, float]] = []
    for step in range(steps):
        used = resources.attribute(table, group, [(begin + step * width, begin + (step + 1) * width)])
        if used is None:
            return []
        found.append({"at_s": (step + 1) * width, **{metric: used[metric] for metric in TITLES}})
    return [{**found[0], "at_s": 0.0}, *found]
