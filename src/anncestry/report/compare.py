"""Two sides set against each other, number by number: is B faster than A, the same within noise, or not comparable?

A side is a table of numbers with the records behind them, wherever it comes from. What a verdict means, and what it
can't mean: docs/comparing.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from anncestry.report.compare_noise import Noise, between_pairs
from anncestry.report.compare_pair import Indexed, Pair
from anncestry.report.compare_sides import Side
from anncestry.report.compare_verdict import FAILURES, HEADLINE, RATE, RECALL, SAME, TIME, Line, words_of

_OF_CODE = {"code", "uncommitted code"}
"""Facts that any commit changes: of what measures, the epoch counts."""


@dataclass(frozen=True)
class Comparison:
    """All lines, and what else differs between the sides as (what, A's, B's): possible causes, not obstacles.

    `noise` is what was taken for noise beside the spread of runs.
    """

    a: Side
    b: Side
    lines: tuple[Line, ...]
    differences: tuple[tuple[str, str, str], ...]
    noise: Noise

    def counts(self) -> dict[str, int]:
        """How often each verdict was given, most frequent first."""
        verdicts = pd.Series([line.verdict for line in self.lines], dtype="str")
        return {str(verdict): int(count) for verdict, count in verdicts.value_counts(sort=True).items()}


def compare(a: Side, b: Side, noise: Noise | None = None) -> Comparison:
    """Set every number of `b` against that of `a` with the same dataset, topology, workload, phase and metric.

    A difference counts if it is larger than the spread of runs tells, and larger than the `noise` of its metric: what
    is given, and what is found between numbers that both sides measured under one key, nothing known being different.
    Those are the evidence for the noise, and judged by their runs and what is given alone.

    Numbers that neither side is meant to have (a phase that both lack, a filter that neither was asked) are left out.

    Systems are paired by name; else, one system a side, whatever their names; else those of one engine, if each side
    has one left (an upgrade). DataError where a side's records lack one that its numbers name.
    """
    sides = (Indexed("A", a), Indexed("B", b))
    across_platforms = a.kind == b.kind == "platform"
    lines: list[Line] = []
    twice: list[Line] = []
    differences: dict[tuple[str, str, str], None] = {}
    for systems in _paired(sides[0].systems, sides[1].systems):
        pair = Pair(sides, systems, across_platforms)
        found, unlike = list(pair.lines()), list(pair.differences())
        lines += found
        differences.update(dict.fromkeys(unlike))
        if {what for what, *_ in unlike} <= _OF_CODE:
            twice += [line for line in found if line.measured_twice]
    given = noise or Noise()
    known = given.with_measured(between_pairs((line.metric, line.a or 0, line.b or 0) for line in twice))
    judged = [_floored(line, given if line.measured_twice else known) for line in lines]
    return Comparison(a, b, tuple(sorted(_with_recall(judged), key=_place)), tuple(differences), known)


def _floored(line: Line, noise: Noise) -> Line:
    """A line that no longer counts as a difference if a floor hides it."""
    words = words_of(line.metric)
    # A share of a recall, or of a count of failures, is no noise that anybody means by so many percent.
    floor = noise.floor(line.metric, common=words not in (RECALL, FAILURES))
    if floor is None or line.low is None or line.a is None or line.b is None:
        return line
    told = replace(line, noise=f"{line.noise}; {floor}")
    if line.decided and floor.hides(line.a, line.b):
        return replace(told, verdict=SAME, note=f"more than {line.noise} tell, but within {floor}")
    return told


def _with_recall(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, where a query's speed differs with a note if its recall does, too."""
    of_cell: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        cell = (line.dataset, line.topology, line.workload, line.system_a, line.system_b)
        of_cell.setdefault(cell, []).append(line)
    for members in of_cell.values():
        recall = next((line for line in members if line.metric == "recall_by_id" and line.decided), None)
        for line in members:
            speed = line.phase == "query" and words_of(line.metric) in (TIME, RATE)
            if recall is None or not (speed and line.decided):
                yield line
            else:
                yield replace(line, note=f"with {recall.verdict} recall: {recall.a:.4f} against {recall.b:.4f}")


def _place(line: Line) -> tuple[Any, ...]:
    rank = HEADLINE.index(line.metric) if line.metric in HEADLINE else len(HEADLINE)
    where = (line.dataset, line.topology, line.system_a, line.system_b)
    # Every second part is a number: clients2 comes before clients16.
    parts = re.split(r"([0-9]+)", line.workload)
    workload = [int(part) if place % 2 else part for place, part in enumerate(parts)]
    return (*where, workload, rank, line.phase, line.metric)


def _paired(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of systems from name → engine of both sides; what finds no partner is paired with an empty name."""
    if len(a) == len(b) == 1:
        return [(next(iter(a)), next(iter(b)))]
    pairs = [(name, name) for name in a if name in b]
    left, right = ([name for name in side if name not in other] for side, other in ((a, b), (b, a)))
    for name in left:
        rivals = [other for other in left if a[other] == a[name]]
        heirs = [other for other in right if b[other] == a[name]]
        pairs.append((name, heirs[0] if a[name] and len(rivals) == len(heirs) == 1 else ""))
    taken = {heir for _, heir in pairs}
    return [*pairs, *(("", name) for name in right if name not in taken)]
