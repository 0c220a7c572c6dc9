"""Lines over commits: one a quantity, of the numbers that were kept, with its breaks and its changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from anncestry.errors import DataError
from anncestry.provenance.versioning import Kept, Revisions
from anncestry.report.compare.lines import HEADLINE, Neighbours, words_of
from anncestry.report.compare.sides import Side, find
from anncestry.report.history import changes
from anncestry.report.model.cells import Row
from anncestry.report.model.numbers import rows_of
from anncestry.report.model.quantities import stage_of

AXES = ("dataset", "topology", "workload", "system", "phase", "metric")
"""What names a line."""
_SHOWN = ("created", "code", "inputs", "outputs")
"""What a page shows of a record."""


@dataclass(frozen=True)
class Point:
    """A number as it was measured before a commit; `row` is its row of the tidy table."""

    commit: Kept
    row: Row

    @property
    def value(self) -> float:
        return float(self.row["value"])


@dataclass(frozen=True)
class Break:
    """The line ends before the point at `place`: what was asked, or what asked, is no longer the same."""

    place: int
    reason: str


@dataclass(frozen=True)
class Change:
    """The level changed with the point at `place`; `said` is the word for it, `facts` what else is new since then.

    A fact is (what, before, from then on).
    """

    place: int
    before: float
    after: float
    p: float
    said: str
    facts: tuple[tuple[str, str, str], ...]

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None


@dataclass(frozen=True)
class Line:
    """One quantity over time, the oldest point first; `absent` are commits without its number, each with the reason."""

    name: tuple[str, ...]
    unit: str
    points: Sequence[Point]
    absent: Sequence[tuple[Kept, str]]
    breaks: Sequence[Break]
    changes: Sequence[Change] = ()

    def segments(self) -> Iterator[range]:
        """The places of points between breaks."""
        edges = [0, *(each.place for each in self.breaks), len(self.points)]
        return (range(start, end) for start, end in pairwise(edges))

    @property
    def place(self) -> str:
        """Where it was measured, in words."""
        return ", ".join(filter(None, (*self.name[:4], self.during)))

    @property
    def during(self) -> str:
        """The phase of a load that it is of, as one metric has a line for each; empty for all else."""
        phase = dict(zip(AXES, self.name, strict=True))["phase"]
        return phase if stage_of(phase) == "load" and phase not in ("load", "storage") else ""


@dataclass(frozen=True)
class History:
    """All lines of an experiment; `left_out` are commits whose results can't be read, each with the reason.

    `records`: of each record of a point, by its commit and path, what a page shows of it.
    """

    experiment: str
    commits: Sequence[Kept]
    left_out: Sequence[tuple[Kept, str]]
    lines: Sequence[Line]
    records: Mapping[tuple[str, str], Mapping[str, Any]]

    def plain(self) -> dict[str, Any]:
        """All of it as JSON takes it, numbers unrounded; `why` asks for the ancestry of a point in its commit."""
        return {
            "experiment": self.experiment,
            "commits": [asdict(commit) for commit in self.commits],
            "left_out": [{**asdict(commit), "reason": reason} for commit, reason in self.left_out],
            "lines": [_plain(line) for line in self.lines],
        }


def _plain(line: Line) -> dict[str, Any]:
    shown = ("value", "low", "high", "number_id", "record", "record_sha256")
    points = [
        {"commit": each.commit.commit, "at": each.commit.at, **{name: each.row[name] for name in shown}}
        | {"why": f"anncestry why {each.row['number_id']}"}
        for each in line.points
    ]

    def at(place: int) -> dict[str, Any]:
        return {"commit": points[place]["commit"], "at": points[place]["at"]}

    return {
        **dict(zip(AXES, line.name, strict=True)),
        "unit": line.unit,
        "points": points,
        "absent": [{"commit": commit.commit, "at": commit.at, "reason": reason} for commit, reason in line.absent],
        "breaks": [{**at(each.place), "reason": each.reason} for each in line.breaks],
        "changes": [
            {
                **at(each.place),
                **{name: getattr(each, name) for name in ("before", "after", "ratio", "p", "said")},
                "facts": [{"what": what, "before": before, "after": after} for what, before, after in each.facts],
            }
            for each in line.changes
        ],
    }


@dataclass
class _Growing:
    """A line, as far as commits were read."""

    unit: str
    points: list[Point] = field(default_factory=list)
    absent: list[tuple[Kept, str]] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    facts: dict[int, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)
    last: Side | None = None


def of_commits(revisions: Revisions, experiment: str, chosen: Mapping[str, str], since: str = "") -> History:
    """The history of the experiment's kept numbers, of the commits after the revision `since`, if one is named.

    `chosen` values of AXES choose the lines; without a metric, those of HEADLINE. A record that several commits hold
    was measured once: its point is that of the first. DataError if no commit holds results of the experiment.
    """
    commits, left_out = revisions.kept(since), []
    growing: dict[tuple[str, ...], _Growing] = {}
    records: dict[tuple[str, str], Mapping[str, Any]] = {}
    read: list[Kept] = []
    for commit in commits:
        try:
            side = find(f"revision:{commit.commit}", Path("results"), experiment, lambda _: "", revisions)
        except DataError as error:
            left_out.append((commit, str(error)))
            continue
        read.append(commit)
        for point in _grow(growing, side, commit, chosen):
            body = {name: side.records[point.row["record"]].get(name) for name in _SHOWN}
            records[commit.commit, point.row["record"]] = {**body, "sha256": point.row["record_sha256"]}
    if not read:
        why = f"; {left_out[-1][1]}" if left_out else ""
        raise DataError(f"no commit holds results of {experiment}: `anncestry keep` adds them to one{why}")
    if not growing:
        raise DataError(f"no number is called so in {len(read)} commits: {', '.join(chosen.values())}")
    return History(experiment, read, left_out, _judged(growing), records)


def _grow(
    growing: dict[tuple[str, ...], _Growing], side: Side, commit: Kept, chosen: Mapping[str, str]
) -> Iterator[Point]:
    """Add the numbers of a commit to their lines; yields the points that are new."""
    neighbours: dict[tuple[int, str], Neighbours] = {}
    for row in rows_of(side.numbers):
        if not _is_chosen(row, chosen):
            continue
        name = tuple(str(row[axis]) for axis in AXES)
        line = growing.setdefault(name, _Growing(row["unit"]))
        if row["value"] is None:
            line.absent.append((commit, row["reason"]))
            continue
        if line.points and line.points[-1].row["record_sha256"] == row["record_sha256"]:
            continue
        if line.last is not None:
            pair = (id(line.last), row["system"])
            if pair not in neighbours:
                neighbours[pair] = Neighbours(line.last, side, row["system"])
            if reason := neighbours[pair].obstacle(row):
                line.breaks.append(Break(len(line.points), reason))
            line.facts[len(line.points)] = neighbours[pair].facts()
        line.last = side
        line.points.append(Point(commit, row))
        yield line.points[-1]


def _is_chosen(row: Row, chosen: Mapping[str, str]) -> bool:
    if "metric" not in chosen and row["metric"] not in HEADLINE:
        return False
    return all(row[axis] == value for axis, value in chosen.items())


def _judged(growing: Mapping[tuple[str, ...], _Growing]) -> list[Line]:
    """The lines that have a point, with their changes: corrected for all segments that could have one."""
    lines = [
        Line(name, line.unit, line.points, line.absent, line.breaks) for name, line in growing.items() if line.points
    ]
    segments = [(line, segment) for line in lines for segment in line.segments()]
    tested = sum(len(segment) >= 2 * changes.NIGHTS_MIN for _, segment in segments)
    found: dict[tuple[str, ...], list[Change]] = {}
    for line, segment in segments:
        of_line = growing[line.name].facts
        for each in changes.find([line.points[place].value for place in segment], tested):
            place = segment.start + each.place
            said = _said(line.name[-1], each)
            told = Change(place, each.before, each.after, each.p, said, of_line.get(place, ()))
            found.setdefault(line.name, []).append(told)
    return sorted((replace(line, changes=tuple(found.get(line.name, ()))) for line in lines), key=_order)


def _said(metric: str, change: changes.Change) -> str:
    words = words_of(metric)
    return words.less if change.after < change.before else words.more


def _order(line: Line) -> tuple[Any, ...]:
    metric = line.name[-1]
    return (*line.name[:4], HEADLINE.index(metric) if metric in HEADLINE else len(HEADLINE), metric)
