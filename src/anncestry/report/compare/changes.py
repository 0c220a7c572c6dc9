"""What changed: from version to version, when the same is built and measured again (A/A), and between two arms.

Two arms are before and after a change, with a control: Tables XII to XV and Figure 9 of the paper, for any comparison
of two arms. A change stands beside that of the control, to which nothing was done: what the control did is drift.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import altair as alt
import pandas as pd

from anncestry.metrics import decide
from anncestry.metrics.decide import Verdict
from anncestry.report import charts
from anncestry.report.charts import Data, Figure, Panel
from anncestry.report.compare.lines import HEADLINE, compare
from anncestry.report.compare.sides import Side
from anncestry.report.compare.text import row_of
from anncestry.report.model import verdicts
from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    computed,
    sample_of,
    text_of,
    with_interval,
)
from anncestry.report.model.material import Material
from anncestry.report.model.noise import apart, builds
from anncestry.report.model.numbers import by_bytes, rows_of
from anncestry.report.model.records import Setup, of_stage, setup
from anncestry.report.tables.spec import PAPER_K, made, of_k


def tables(material: Material) -> list[Table]:
    """The tables of versions and of the noise floor, where several versions or several builds were measured."""
    return [*made(_versions(material)), *made(_floor(material))]


_Loads = dict[tuple[str, str], Setup]
"""By dataset and topology, what the load there says of one system."""


def versions(material: Material) -> list[tuple[str, str]]:
    """Pairs of systems of one engine, each with that of the version before it that is set up alike, the older first.

    By what the records of their loads say, and by no name: protocol, index, way of loading, and each setting that both
    were given are the same (one version may know settings that the other lacks). Of several, those that differ least.
    """
    of_engine: dict[str, dict[tuple[int, ...], dict[str, _Loads]]] = {}
    for record in of_stage(material.records, "load"):
        of, spec = setup(record), record["spec"]
        order = tuple(int(part) for part in re.findall(r"\d+", of.version))
        loads = of_engine.setdefault(of.engine, {}).setdefault(order, {}).setdefault(spec["system"]["name"], {})
        loads[spec["dataset"]["name"], spec["topology"]["name"]] = of
    found = []
    for _, by_version in sorted(of_engine.items()):
        orders = sorted(by_version)
        followed: set[str] = set()
        for place, newer in enumerate(orders):
            alone = dict(by_version[newer])
            for older in reversed(orders[:place]):
                for _, a, b in sorted(_alike(by_version[older], alone)):
                    if a not in followed and b in alone:
                        followed.add(a)
                        del alone[b]
                        found.append((a, b))
    return found


def _alike(older: Mapping[str, _Loads], newer: Mapping[str, _Loads]) -> Iterator[tuple[int, str, str]]:
    """Pairs of systems that are set up alike wherever both were loaded, with the number of settings of one alone."""
    for (a, loads_a), (b, loads_b) in product(older.items(), newer.items()):
        both = [(loads_a[place], loads_b[place]) for place in loads_a.keys() & loads_b.keys()]
        if both and all(_same(*two) for two in both):
            yield max(len(one.settings.keys() ^ other.settings.keys()) for one, other in both), a, b


def _same(a: Setup, b: Setup) -> bool:
    given = a.settings.keys() & b.settings.keys()
    same = (a.protocol, a.mapped, a.how) == (b.protocol, b.mapped, b.how)
    return same and all(a.settings[name] == b.settings[name] for name in given)


def _versions(material: Material) -> Table:
    known = material.noise
    body: list[TableRow] = []
    for older, newer in versions(material):
        sides = [
            Side(
                name,
                material.plain[material.plain["system"] == name].reset_index(drop=True),
                material.records,
                "system",
            )
            for name in (older, newer)
        ]
        # What the matrix asks of one version only is no change.
        here = [set(zip(side.numbers["dataset"], side.numbers["topology"], strict=True)) for side in sides]
        for line in compare(sides[0], sides[1], known, material.rule).lines:
            if line.metric in HEADLINE and (line.dataset, line.topology) in here[0] & here[1]:
                row = row_of(line, lambda letter, number, record: number)
                labels = (line.dataset, line.topology, f"{older} → {newer}", *row.labels)
                body.append(replace(row, labels=labels))
    return Table(
        "FV",
        "From version to version",
        "Every engine that was measured at several versions: each version (B) against the one before it (A) that is set"
        " up alike (protocol, index, loading, settings that both know), judged as by anncestry compare. The interval is"
        " of B − A, on the log scale over runs and, for recall, over queries; where independent builds tell of more"
        " noise than runs do, theirs counts.",
        ("Dataset", "Topology", "Versions", "Workload", "Metric", "Unit"),
        (Column("A"), Column("B"), Column("B / A"), Column("B − A, 95 %"), Column("Verdict of B")),
        tuple(body),
    )


def _floor(material: Material) -> Table:
    """For each headline metric, the two builds of one cell that differ most."""
    pairs: dict[str, list[tuple[float, Row, Row]]] = {}
    for a, b in builds(by_bytes(material.numbers)):
        if a["value"] and b["value"]:
            pairs.setdefault(a["metric"], []).append((apart(a["value"], b["value"]), a, b))
    body = []
    for metric in HEADLINE:
        if metric not in pairs:
            continue
        share, a, b = max(pairs[metric], key=lambda found: found[0])
        both = (a["number_id"], b["number_id"])
        every = tuple(dict.fromkeys(row["number_id"] for _, *two in pairs[metric] for row in two))
        cells = (
            Cell(f"{100 * share:.1f}", 100 * share, parents=both),
            *(
                Cell(text_of(row["value"], None, row["unit"]), row["value"], number_id=row["number_id"])
                for row in (a, b)
            ),
            Cell(str(len(pairs[metric])), parents=every),
        )
        where = " · ".join(filter(None, (a["dataset"], a["system"], a["topology"], a["workload"])))
        body.append(TableRow((metric, where, a["unit"]), cells))
    return Table(
        "A",
        "The same twice: the floor of noise",
        "Independent builds of one and the same thing, each measured as a cell of its own: the pair that differs most,"
        " of all pairs. No difference between two systems that is not larger means anything on this machine.",
        ("Metric", "Where it was largest", "Unit"),
        (Column("Largest difference", "%"), Column("One build"), Column("Another"), Column("Pairs")),
        tuple(body),
    )


# Two arms

CONTROL = " (control)"
DRIFTED = "drifted"
DIFFERS = "differs"
WITHIN_DRIFT = "not beyond the control"
TOO_FEW = "too few runs"
NO_CONTROL = "no control"

_HOW = (
    " The change is that of the mean, with the 95 % interval of the ratio over runs. The control is the same in both"
    " arms: what it does is drift of the machine, or of building anew. Where the control differs it drifted,"
    " and a change that does not lie outside of the whole interval of the control is none."
)


@dataclass(frozen=True)
class Question:
    """A table of the paper: its metric, and which rows belong to it: of one client, or `timed` ones of any number."""

    number: str
    title: str
    caption: str
    metric: str
    unit: str
    timed: bool = False
    k: int = PAPER_K

    def of(self, k: int) -> Question:
        """The same for another number of neighbours."""
        title = self.title.replace(f"K = {self.k}", f"K = {k}").replace(f"recall@{self.k}", f"recall@{k}")
        return replace(self, number=of_k(self.number, k), title=title, k=k)


_TIMED = "Before and after: queries per second by number of clients, K = 10"
QUESTIONS = (
    Question("XII", "Before and after: median latency, K = 10", "One client.", "p50_ms", "ms"),
    Question("XIII", "Before and after: queries per second, K = 10", "One client.", "qps", "1/s"),
    Question("XIV", _TIMED, "Closed loop for a fixed time.", "qps", "1/s", timed=True),
    Question("XV", "Before and after: recall@10", "By id.", "recall_by_id", "fraction"),
)


def questions(rows: Sequence[Row]) -> list[Question]:
    """Each question for each number of neighbours that was asked for."""
    sizes = sorted({row["k"] for row in rows if row["k"] is not None})
    return [question.of(k) for question in QUESTIONS for k in sizes]


@dataclass(frozen=True)
class Pair:
    """One number of one engine on one dataset, in both arms; None where it is not there."""

    dataset: str
    engine: str
    clients: int
    workload: str
    before: Row | None
    after: Row | None
    judged: Verdict | None = None
    """After against before, corrected for all of its table; None where one is missing, or before is zero."""
    out_of_turn: str = ""
    """How far apart its arms were measured, in words; empty where their rounds alternated."""

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
    def samples(self) -> decide.Pair | None:
        """What can be judged of it."""
        if self.before is None or self.after is None or not self.before["value"] or self.after["value"] is None:
            return None
        return decide.Pair(sample_of(self.before), sample_of(self.after), self.before["metric"])

    @property
    def change(self) -> tuple[float, float, float] | None:
        """Relative change of the mean, and the ends of its interval; None where noise is unknown."""
        if self.judged is None or self.judged.low is None or self.judged.high is None:
            return None
        assert self.before and self.after
        base = self.before["value"]
        return self.after["value"] / base - 1, self.judged.low / base, self.judged.high / base


def arms_of(rows: Sequence[Row]) -> tuple[str, str] | None:
    """The arms, before and after; None where the numbers are no comparison of two."""
    first = {row["rebuild"]: row["arm"] for row in rows if row["arm"] and (row["rebuild"] or 1) > 1}
    names = {row["arm"] for row in rows if row["arm"]}
    if len(names) != 2 or not first:
        return None
    after = str(next(iter(first.values())))  # the control is built in the first arm first
    return next(str(name) for name in names if name != after), after


Records = Mapping[str, Mapping[str, Any]]
"""Records by their paths."""


def pairs(
    rows: Sequence[Row],
    arms: tuple[str, str],
    question: Question,
    rule: decide.Rule | None = None,
    records: Records | None = None,
) -> list[Pair]:
    """What a question compares, the control last; judged together by the `rule`."""
    there = {(row["arm"], row["dataset"], row["system"], row["topology"]) for row in rows}
    found: dict[tuple[str, str, int, str, str], dict[str, Row]] = {}
    for row in rows:
        asked = (row["k"], bool(row["filter"]), row["duration_s"] is not None)
        if row["metric"] != question.metric or asked != (question.k, False, question.timed) or not row["arm"]:
            continue
        if not question.timed and row["clients"] != 1:
            continue
        # The control is what stands in both arms; all else is paired by its engine, as the matrix has it.
        at = (row["dataset"], row["system"], row["topology"])
        same = "/".join(at[1:]) if all((arm, *at) in there for arm in arms) else ""
        place = (str(row["dataset"]), str(row["engine"]), int(row["clients"]), str(row["workload"]), same)
        found.setdefault(place, {})[row["arm"]] = row
    made = [
        Pair(dataset, engine, clients, workload, of.get(arms[0]), of.get(arms[1]))
        for (dataset, engine, clients, workload, _), of in sorted(found.items())
    ]
    known = [(number, samples) for number, pair in enumerate(made) if (samples := pair.samples) is not None]
    for (number, _), found_of in zip(known, decide.judge_all([samples for _, samples in known], rule), strict=True):
        both = ((records or {}).get(row["record"]) or {} for row in (made[number].before, made[number].after) if row)
        made[number] = replace(made[number], judged=found_of, out_of_turn=verdicts.apart(*both))
    return sorted(made, key=lambda pair: (pair.dataset, pair.clients, pair.workload, pair.control))


def verdict(pair: Pair, control: Pair | None) -> str:
    """Whether a change is one: its verdict, held against what the control did.

    Where the arms did not take turns, only a control whose arms did not either tells of what the machine did meanwhile.
    """
    if pair.judged is None or pair.change is None:
        return TOO_FEW
    if pair.out_of_turn and not pair.control and (control is None or not control.out_of_turn):
        return f"{decide.Outcome.UNDETERMINED.value}: {pair.out_of_turn}, unlike the control: measure both again"
    if not pair.judged.decided:
        return pair.judged.outcome.value
    if pair.control:
        return DRIFTED
    if control is None or control.change is None:
        return NO_CONTROL
    _, low, high = control.change
    return WITHIN_DRIFT if low <= pair.change[0] <= high else DIFFERS


def of_arms(df: pd.DataFrame, rule: decide.Rule | None = None, records: Records | None = None) -> list[Table]:
    """The tables of a comparison of two arms; none for numbers that are no such comparison."""
    rows = rows_of(df)
    arms = arms_of(rows)
    if arms is None:
        return []
    return [table for question in questions(rows) for table in made(_table(rows, arms, question, rule, records))]


def _table(
    rows: Sequence[Row],
    arms: tuple[str, str],
    question: Question,
    rule: decide.Rule | None,
    records: Records | None,
) -> Table:
    made = pairs(rows, arms, question, rule, records)
    recall = question.unit == "fraction"
    asked = {(pair.dataset, pair.clients, pair.workload) for pair in made}
    several = len(asked) > len({(dataset, clients) for dataset, clients, _ in asked})
    body, drifted = [], []
    for pair in made:
        question_of = (pair.dataset, pair.workload)
        control = next((each for each in made if each.control and (each.dataset, each.workload) == question_of), None)
        cells = [with_interval(pair.before), with_interval(pair.after)]
        if recall:
            cells.append(computed(pair.after, pair.before, lambda a, b: a - b, "{:+.4f}"))
        else:
            said = verdict(pair, control)
            if said == DRIFTED:
                drifted.append(pair)
            cells += [_change(pair), _net(pair, control), Cell(said)]
        labels = (pair.dataset, pair.system, *([str(pair.clients)] if question.timed else []))
        labels += (pair.workload,) if several else ()
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
    names = ("Dataset", "System", *(["Clients"] if question.timed else []), *(["Workload"] if several else []))
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
    palette = charts.colours(df["system"])
    panels = []
    for dataset in sorted({row["dataset"] for row in rows}):
        for question in questions(rows):
            made = [pair for pair in pairs(rows, arms, question) if pair.dataset == dataset]
            chart = _curves(made, arms, palette) if question.timed else _slopes(made, arms, palette, question)
            if chart is not None:
                heading = f"{question.title.partition(': ')[2].capitalize()}, {dataset}"
                panels.append(Panel(heading, f"{arms[0]} and {arms[1]}: {heading}", chart.to_dict()))
    title = f"{arms[0].capitalize()} and {arms[1]}"
    caption = "A line leads from one arm to the other; the dashed one is the control, to which nothing was done."
    tables = tuple(question.number for question in questions(rows))
    return [Figure("arms", title, caption, tables, "shapes", tuple(panels))] if panels else []


def _points(made: Sequence[Pair], arms: tuple[str, str]) -> Data:
    return [
        charts.datum(row, arm=arm, clients=pair.clients, of="control" if pair.control else "changed", place=pair.system)
        for pair in made
        for arm, row in zip(arms, (pair.before, pair.after), strict=True)
        if row is not None and row["value"] is not None
    ]


def _slopes(made: Sequence[Pair], arms: tuple[str, str], palette: dict[str, str], question: Question) -> Any:
    points = _points(made, arms)
    if not points:
        return None
    scale = alt.Scale(zero=True)
    if question.unit == "fraction":
        floor = math.floor(min(point["value"] for point in points) * 20) / 20
        scale = alt.Scale(domain=[min(0.95, floor), 1], nice=False)
    x = alt.X("arm:N", title=None, sort=list(arms), axis=alt.Axis(labelAngle=0))
    title = {"ms": "milliseconds", "1/s": "queries per second"}.get(question.unit, "recall")
    base = {"x": x, "y": alt.Y("value:Q", title=title, scale=scale), "color": charts.colour_of(palette)}
    shape, tips = charts.shape_of(palette), charts.tooltip("arm", "workload")
    shown = charts.points_of(points, 70).encode(shape=shape, tooltip=tips, **base)
    return charts.layered(200, _lines(points, "place", **base), shown)


def _curves(made: Sequence[Pair], arms: tuple[str, str], palette: dict[str, str]) -> Any:
    points = _points(made, arms)
    x = charts.clients(points)
    if x is None:
        return None
    for point in points:
        point["series"] = f"{point['place']} {point['arm']}"
    y = alt.Y("value:Q", title="queries per second", scale=alt.Scale(zero=True))
    base = {"x": x, "y": y, "color": charts.colour_of(palette)}
    faint = alt.Opacity("arm:N", scale=alt.Scale(domain=list(arms), range=[0.45, 1.0]), legend=None)
    marks = charts.layer_of(points).mark_point(filled=True, size=70)
    shape, tips = charts.shape_of(palette), charts.tooltip("arm", "clients")
    shown = marks.encode(opacity=faint, shape=shape, tooltip=tips, **base)
    return charts.layered(220, _lines(points, "series", opacity=faint, **base), shown)


def _lines(points: Data, of: str, **encodings: Any) -> Any:
    """Lines, one for each value of the field `of`."""
    dash = charts.signs_of("of", "strokeDash", {"changed": [1, 0], "control": [5, 4]})
    return charts.lines_of(points).encode(strokeDash=dash, detail=f"{of}:N", **encodings)
