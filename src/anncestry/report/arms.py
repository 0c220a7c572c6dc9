"""Before and after, with a control: Tables XII to XV and Figure 9 of the paper, for any comparison of two arms.

A change is told beside what the control, which nothing was done to, did from one arm to the other: that is drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from anncestry.report.charts import Figure, Panel, colour_of, colours, datum, layer_of, tooltip
from anncestry.report.more_tables import with_interval
from anncestry.report.numbers import rows_of
from anncestry.report.tables import NO_CELL, Cell, Column, Row, Table, TableRow, computed, sample_of
from anncestry.report.welch import difference_interval

CONTROL = " (control)"
DRIFTED = "drifted"
DIFFERS = "differs"
WITHIN_DRIFT = "not beyond the control"
WITHIN_NOISE = "within noise"
TOO_FEW = "too few runs"
NO_CONTROL = "no control"

_HOW = (
    " The change is that of the mean, with Welch's 95 % interval over runs. The control is the same in both arms: what"
    " it does is drift of the machine, or of building anew. Where the control's own interval excludes zero it drifted,"
    " and a change that does not lie outside of the whole interval of the control is none."
)


@dataclass(frozen=True)
class Question:
    """A table of the paper: its metric, and which rows belong to it."""

    number: str
    title: str
    caption: str
    metric: str
    unit: str
    timed: bool
    single: bool


QUESTIONS = (
    Question("XII", "Before and after: median latency, K = 10", "One client.", "p50_ms", "ms", False, True),
    Question("XIII", "Before and after: queries per second, K = 10", "One client.", "qps", "1/s", False, True),
    Question(
        "XIV",
        "Before and after: queries per second by number of clients, K = 10",
        "Closed loop for a fixed time.",
        "qps",
        "1/s",
        True,
        False,
    ),
    Question("XV", "Before and after: recall@10", "By id.", "recall_by_id", "fraction", False, True),
)


@dataclass(frozen=True)
class Pair:
    """One number of one engine on one dataset, in both arms; None where it is not there."""

    dataset: str
    engine: str
    clients: int
    before: Row | None
    after: Row | None

    @property
    def control(self) -> bool:
        """Whether nothing was done to it."""
        first, second = self.before, self.after
        return bool(first and second and (first["system"], first["topology"]) == (second["system"], second["topology"]))

    @property
    def system(self) -> str:
        """Its name; of both, where the arms differ in it."""
        names = dict.fromkeys(str(row["system"]) for row in (self.before, self.after) if row)
        return " → ".join(names) + (CONTROL if self.control else "")

    @property
    def change(self) -> tuple[float, float, float] | None:
        """Relative change of the mean, and the ends of its interval; None if it can't be told."""
        if self.before is None or self.after is None or not self.before["value"] or self.after["value"] is None:
            return None
        interval = difference_interval(sample_of(self.after), sample_of(self.before))
        if interval is None:
            return None
        base = self.before["value"]
        return self.after["value"] / base - 1, interval[0] / base, interval[1] / base


def arms_of(rows: Sequence[Row]) -> tuple[str, str] | None:
    """The arms, before and after; None where the numbers are no comparison of two."""
    first = {row["rebuild"]: row["arm"] for row in rows if row["arm"] and (row["rebuild"] or 1) > 1}
    names = {row["arm"] for row in rows if row["arm"]}
    if len(names) != 2 or not first:
        return None
    after = str(next(iter(first.values())))  # the control is built in the first arm first
    return next(str(name) for name in names if name != after), after


def pairs(rows: Sequence[Row], arms: tuple[str, str], question: Question) -> list[Pair]:
    """What a question compares, the control last."""
    there = {(row["arm"], row["dataset"], row["system"], row["topology"]) for row in rows}
    found: dict[tuple[str, str, int, str, str], dict[str, Row]] = {}
    for row in rows:
        asked = (row["k"], bool(row["filter"]), row["duration_s"] is not None)
        if row["metric"] != question.metric or asked != (10, False, question.timed) or not row["arm"]:
            continue
        if question.single and row["clients"] != 1:
            continue
        # The control is what stands in both arms; all else is paired by its engine, as the matrix has it.
        at = (row["dataset"], row["system"], row["topology"])
        same = "/".join(at[1:]) if all((arm, *at) in there for arm in arms) else ""
        place = (str(row["dataset"]), str(row["engine"]), int(row["clients"]), str(row["workload"]), same)
        found.setdefault(place, {})[row["arm"]] = row
    made = [
        Pair(dataset, engine, clients, of.get(arms[0]), of.get(arms[1]))
        for (dataset, engine, clients, _, _), of in sorted(found.items())
    ]
    return sorted(made, key=lambda pair: (pair.dataset, pair.clients, pair.control))


def verdict(pair: Pair, control: Pair | None) -> str:
    """Whether a change is one, judged by the noise of its own runs and by what the control did."""
    change = pair.change
    if change is None:
        return TOO_FEW
    noise = change[1] <= 0 <= change[2]
    if pair.control:
        return WITHIN_NOISE if noise else DRIFTED
    if noise:
        return WITHIN_NOISE
    if control is None or control.change is None:
        return NO_CONTROL
    _, low, high = control.change
    return WITHIN_DRIFT if low <= change[0] <= high else DIFFERS


def tables(df: pd.DataFrame) -> list[Table]:
    """The tables of a comparison of two arms; none for numbers that are no such comparison."""
    rows = rows_of(df)
    arms = arms_of(rows)
    return [] if arms is None else [found for q in QUESTIONS if (found := _table(rows, arms, q)).rows]


def _table(rows: Sequence[Row], arms: tuple[str, str], question: Question) -> Table:
    made = pairs(rows, arms, question)
    recall = question.unit == "fraction"
    body, drifted = [], []
    for pair in made:
        control = next((p for p in made if p.control and (p.dataset, p.clients) == (pair.dataset, pair.clients)), None)
        cells = [with_interval(pair.before), with_interval(pair.after)]
        if recall:
            cells.append(computed(pair.after, pair.before, lambda a, b: a - b, "{:+.4f}"))
        else:
            said = verdict(pair, control)
            if said == DRIFTED:
                drifted.append(pair)
            cells += [_change(pair), _net(pair, control), Cell(said)]
        labels = (pair.dataset, pair.system, *(() if question.single else (str(pair.clients),)))
        body.append(TableRow(labels, tuple(cells)))
    columns = [Column(arms[0], question.unit), Column(arms[1], question.unit)]
    if recall:
        columns.append(Column("Difference"))
        how = " Repeats ask one index: their spread is no noise. What the control differs by comes of building anew."
    else:
        columns += [Column("Change", "%"), Column("Beyond the control", "%"), Column("Verdict")]
        how = _HOW
    if drifted:
        said = "; ".join(f"{pair.system} on {pair.dataset}" for pair in drifted)
        how = f" THE CONTROL DRIFTED ({said}): differences between the arms are not all of the change's making." + how
    names = ("Dataset", "System", *(() if question.single else ("Clients",)))
    return Table(question.number, question.title, question.caption + how, names, tuple(columns), tuple(body))


def _change(pair: Pair) -> Cell:
    cell = computed(pair.after, pair.before, lambda a, b: 100 * (a / b - 1), "{:+,.1f}")
    change = pair.change
    if cell.value is None or change is None:
        return cell
    ends = f"{100 * change[1]:+,.1f} to {100 * change[2]:+,.1f}".replace("-", "−")
    return Cell(f"{cell.text} ({ends})", cell.value, parents=cell.parents)


def _net(pair: Pair, control: Pair | None) -> Cell:
    """The change that is left when the control's is taken out of it, as a ratio of ratios."""
    four = [row for p in (pair, control) if p for row in (p.before, p.after) if row]
    values = [row["value"] for row in four]
    if pair.control or len(four) != 4 or not all(values):
        return Cell(NO_CELL)
    net = 100 * ((values[1] / values[0]) / (values[3] / values[2]) - 1)
    return Cell(f"{net:+,.1f}".replace("-", "−"), net, parents=tuple(row["number_id"] for row in four))


def figures(df: pd.DataFrame) -> list[Figure]:
    """Figure 9 of the paper: latency, queries per second, by clients, and recall of both arms, a panel each."""
    rows = rows_of(df)
    arms = arms_of(rows)
    if arms is None:
        return []
    palette = colours(df)
    panels = []
    for dataset in sorted({row["dataset"] for row in rows}):
        for question in QUESTIONS:
            made = [pair for pair in pairs(rows, arms, question) if pair.dataset == dataset]
            chart = _curves(made, arms, palette) if question.timed else _slopes(made, arms, palette, question)
            if chart is not None:
                heading = f"{question.title.partition(': ')[2].capitalize()}, {dataset}"
                panels.append(Panel(heading, f"{arms[0]} and {arms[1]}: {heading}", chart.to_dict()))
    return [
        Figure(
            "arms",
            f"{arms[0].capitalize()} and {arms[1]}",
            "A line leads from one arm to the other; the dashed one is the control, to which nothing was done.",
            "XII",
            "shapes",
            tuple(panels),
        )
    ] if panels else []  # fmt: skip


def _points(made: Sequence[Pair], arms: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        datum(row, arm=arm, clients=pair.clients, of="control" if pair.control else "changed", place=pair.system)
        for pair in made
        for arm, row in zip(arms, (pair.before, pair.after), strict=True)
        if row is not None and row["value"] is not None
    ]


_DASHES = alt.Scale(domain=["changed", "control"], range=[[1, 0], [5, 4]])


def _slopes(made: Sequence[Pair], arms: tuple[str, str], palette: dict[str, str], question: Question) -> Any:
    points = _points(made, arms)
    if not points:
        return None
    zero = question.unit != "fraction"
    scale = alt.Scale(zero=True)
    if not zero:
        floor = math.floor(min(point["value"] for point in points) * 20) / 20
        scale = alt.Scale(domain=[min(0.95, floor), 1], nice=False)
    x = alt.X("arm:N", title=None, sort=list(arms), axis=alt.Axis(labelAngle=0))
    y = alt.Y(
        "value:Q", title={"ms": "milliseconds", "1/s": "queries per second"}.get(question.unit, "recall"), scale=scale
    )
    base = {"x": x, "y": y, "color": colour_of(palette)}
    dash = alt.StrokeDash("of:N", scale=_DASHES, legend=None)
    lines = layer_of(points).mark_line(strokeWidth=2).encode(strokeDash=dash, detail="place:N", **base)
    marks = (
        layer_of(points).mark_point(filled=True, size=70, opacity=1).encode(tooltip=tooltip("arm", "workload"), **base)
    )
    return alt.layer(lines, marks).properties(width="container", height=200)


def _curves(made: Sequence[Pair], arms: tuple[str, str], palette: dict[str, str]) -> Any:
    points = _points(made, arms)
    ticks = sorted({point["clients"] for point in points})
    if len(ticks) < 2:
        return None
    for point in points:
        point["series"] = f"{point['place']} {point['arm']}"
    x = alt.X(
        "clients:Q",
        title="clients",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )
    y = alt.Y("value:Q", title="queries per second", scale=alt.Scale(zero=True))
    base = {"x": x, "y": y, "color": colour_of(palette)}
    faint = alt.Opacity("arm:N", scale=alt.Scale(domain=list(arms), range=[0.45, 1.0]), legend=None)
    dash = alt.StrokeDash("of:N", scale=_DASHES, legend=None)
    lines = layer_of(points).mark_line(strokeWidth=2).encode(strokeDash=dash, detail="series:N", opacity=faint, **base)
    marks = (
        layer_of(points)
        .mark_point(filled=True, size=70)
        .encode(opacity=faint, tooltip=tooltip("arm", "clients"), **base)
    )
    return alt.layer(lines, marks).properties(width="container", height=220)
