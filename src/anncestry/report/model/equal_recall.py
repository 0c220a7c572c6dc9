"""Comparison at equal recall: Pareto fronts over the search effort, and interpolation to a target recall.

QPS without recall compares nothing: either is had for the other. A front holds the points that no other point of the
same system beats in both; between two neighbours of it, what a target recall costs is interpolated, and beyond its ends
nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from anncestry.metrics.defects import MARKED_SHARE, percent
from anncestry.report.model.cells import Row

RECALL = "recall_by_distance"
COSTS = {"qps": False, "p99_ms": True}
"""What is traded for recall, and whether lower is better."""
TARGETS = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Point:
    """One cell of a sweep: its effort, and the rows of its recall and cost."""

    ef_search: int
    recall: Row
    cost: Row

    @property
    def effort(self) -> str:
        """Its effort, with the name that its index type has for it."""
        return str(self.cost["effort"])


@dataclass(frozen=True)
class Sweep:
    """The points of one system under one question, ascending by effort."""

    dataset: str
    topology: str
    system: str
    question: tuple[object, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class AtTarget:
    """What a target recall costs: `value` with its bounds, from the `parents`; or `why` it is not known."""

    value: float | None
    low: float | None
    high: float | None
    parents: tuple[Row, ...]
    why: str = ""


def sweeps(rows: Sequence[Row], metric: str) -> list[Sweep]:
    """All sweeps of at least two efforts, with the cost `metric`; only cells of which both numbers are there."""
    recalls = {_cell(row): row for row in rows if row["metric"] == RECALL}
    found: dict[tuple[str, str, str, tuple[object, ...]], list[Point]] = {}
    for row in rows:
        recall = recalls.get(_cell(row))
        if row["metric"] != metric or row["ef_search"] is None or row["target_recall"] is not None or recall is None:
            continue
        if row["value"] is None or recall["value"] is None:
            continue
        question = (row["k"], row["clients"], row["duration_s"], row["filter"])
        place = (row["dataset"], row["topology"], row["system"], question)
        found.setdefault(place, []).append(Point(row["ef_search"], recall, row))
    return [
        Sweep(*place, points=tuple(sorted(points, key=lambda point: point.ef_search)))
        for place, points in sorted(found.items(), key=lambda item: tuple(map(str, item[0])))
        if len({point.ef_search for point in points}) > 1
    ]


def front(points: Sequence[Point], *, lower: bool) -> list[Point]:
    """The points that no other beats in recall and cost (or equals in one and beats in the other), by recall.

    A point of which too many answers have a defect is none of them.
    """
    points = [point for point in points if not defective(point.cost)]

    def beats(one: Point, other: Point) -> bool:
        gain = (other.cost["value"] - one.cost["value"]) * (1 if lower else -1)
        more = one.recall["value"] - other.recall["value"]
        return bool(gain >= 0 and more >= 0 and (gain > 0 or more > 0))

    kept = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(kept, key=lambda point: (point.recall["value"], point.ef_search))


def defective(row: Row) -> bool:
    """Whether more answers of the number's cell have a defect than a winner's may."""
    return (row["defect_share"] or 0.0) > MARKED_SHARE


def at_target(points: Sequence[Point], target: float, *, lower: bool) -> AtTarget:
    """What `target` recall costs, linearly between the two neighbours of the front.

    Uncertain are the neighbours' costs and their recalls, and so where between them the target lies: the bounds are
    the least and most that any corner of both neighbours' 95 % intervals gives: cautious, all ends being taken at once.
    """
    ordered = front(points, lower=lower)
    if not ordered:
        why = (
            f"more than {percent(MARKED_SHARE)} of answers defective at every search effort"
            if points
            else "not measured"
        )
        return AtTarget(None, None, None, (), why)
    best, least = ordered[-1], ordered[0]
    if best.recall["value"] < target:
        why = f"target not reached, best was {best.recall['value']:.4f}"
        return AtTarget(None, None, None, (best.recall,), why)
    if least.recall["value"] > target:
        why = f"the least recall of the front, at {least.effort}, is {least.recall['value']:.4f}"
        if least.ef_search == min(point.ef_search for point in points):
            why = f"the smallest effort asked, {least.effort}, already has {least.recall['value']:.4f}"
        return AtTarget(None, None, None, (least.recall,), why)
    above = next(place for place, point in enumerate(ordered) if point.recall["value"] >= target)
    right = ordered[above]
    left = right if right.recall["value"] == target else ordered[above - 1]
    value = _between(left.cost["value"], right.cost["value"], left.recall["value"], right.recall["value"], target)
    corners = [
        _between(cost_left, cost_right, recall_left, recall_right, target)
        for cost_left, cost_right, recall_left, recall_right in product(
            _ends(left.cost), _ends(right.cost), _ends(left.recall), _ends(right.recall)
        )
    ]
    known = all(row["low"] is not None for point in (left, right) for row in (point.recall, point.cost))
    parents = tuple({id(row): row for point in (left, right) for row in (point.recall, point.cost)}.values())
    low, high = (min(*corners, value), max(*corners, value)) if known else (None, None)
    return AtTarget(value, low, high, parents)


def _between(cost_left: float, cost_right: float, recall_left: float, recall_right: float, target: float) -> float:
    """Linear, and never beyond either neighbour: a recall whose interval excludes the target pins it to one of them."""
    if recall_right <= recall_left:
        share = 0.0 if target <= recall_left else 1.0
    else:
        share = min(max((target - recall_left) / (recall_right - recall_left), 0.0), 1.0)
    return cost_left + share * (cost_right - cost_left)


def _ends(row: Row) -> tuple[float, ...]:
    return (row["value"],) if row["low"] is None else (row["low"], row["high"])


def _cell(row: Row) -> tuple[str, str, str, str]:
    return row["dataset"], row["topology"], row["system"], row["workload"]
