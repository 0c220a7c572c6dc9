"""Noise beside that of runs: floors under the verdicts of `metrics.decide`.

There is noise that the runs of one session don't show: another load, another hour. A floor is
a size below which no difference counts. It only takes verdicts away: it never makes a difference known whose noise is
not. Floors come from numbers that were measured twice. An experiment with `rebuilds` (A/A) loads every spec several
times and measures each build as a cell of its own, in rounds that take all builds in turn: whatever differs between
them is noise, by construction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pandas as pd

from anncestry.cells.stage import STAGES
from anncestry.metrics.decide import Outcome, Verdict
from anncestry.provenance.records import read_record
from anncestry.report.model.cells import Row
from anncestry.report.model.numbers import read, rows_of

_CELL = ["dataset", "system", "topology", "workload", "phase", "metric"]
"""What the builds of one number have in common."""


@dataclass(frozen=True)
class Floor:
    """The largest difference that is noise, as a share of the lesser value (0.05: 5 %), and where it comes from."""

    relative: float
    source: str

    def __str__(self) -> str:
        return f"{100 * self.relative:.1f} % {self.source}"

    def hides(self, a: float, b: float) -> bool:
        """Whether the difference of two values is no larger than this."""
        return apart(a, b) <= self.relative


def apart(a: float, b: float) -> float:
    """How far two values are apart, as a share of the lesser: whichever is named first. Infinite where one is 0."""
    lesser = min(abs(a), abs(b))
    return 0.0 if a == b else math.inf if not lesser else abs(b - a) / lesser


def above(verdict: Verdict, floor: Floor, a: float, b: float, margin: float) -> Verdict:
    """A verdict with one more noise, which may hide the difference of these values.

    Nothing is equivalent within a `margin` (a share) that is narrower than this noise.
    """
    if verdict.low is None:
        return verdict
    noise = f"{verdict.noise}; {floor}"
    if verdict.decided and floor.hides(a, b):
        note = f"more than {verdict.noise} tell, but within {floor}"
        return replace(verdict, outcome=Outcome.UNDETERMINED, noise=noise, note=note)
    if verdict.outcome is Outcome.EQUIVALENT and floor.relative > margin:
        note = f"equivalent by {verdict.noise}, but the margin is narrower than {floor}"
        return replace(verdict, outcome=Outcome.UNDETERMINED, noise=noise, note=note)
    return replace(verdict, noise=noise)


# Noise


@dataclass(frozen=True)
class Noise:
    """A floor that holds for every metric, and floors of single metrics; of two, the higher one counts."""

    common: Floor | None = None
    of_metric: Mapping[str, Floor] = field(default_factory=dict)

    def floor(self, metric: str, *, common: bool = True) -> Floor | None:
        """The floor of a metric, None where nothing is known; `common` tells whether the common one is meant for it."""
        floors = [self.common if common else None, self.of_metric.get(metric)]
        return max((floor for floor in floors if floor), key=lambda floor: floor.relative, default=None)

    def with_measured(self, measured: Mapping[str, Floor]) -> Noise:
        """This, and floors that were measured: the higher one of each metric."""
        return Noise(self.common, _highest([*self.of_metric.items(), *measured.items()]))


def _highest(floors: Iterable[tuple[str, Floor]]) -> dict[str, Floor]:
    """The highest floor of each metric, the first of equal ones."""
    highest: dict[str, Floor] = {}
    for metric, floor in floors:
        if metric not in highest or floor.relative > highest[metric].relative:
            highest[metric] = floor
    return highest


def asked(percent: float) -> Noise:
    """The noise that a user says there is between any two measurements of one thing."""
    return Noise(Floor(percent / 100, "as asked"))


def between_pairs(pairs: Iterable[tuple[str, float, float]]) -> dict[str, Floor]:
    """Floors by metric from pairs (metric, first value, second value) of measurements of one and the same thing.

    A floor is the largest relative difference of a metric's pairs: no estimate of a quantile, but what was seen.
    """
    shares_of: dict[str, list[float]] = {}
    for metric, first, second in pairs:
        if first and second:
            shares_of.setdefault(metric, []).append(apart(first, second))
    return {
        metric: Floor(max(shares), f"between {len(shares)} number{'s' if len(shares) > 1 else ''} measured twice")
        for metric, shares in shares_of.items()
    }


def builds(df: pd.DataFrame) -> Iterator[tuple[Row, Row]]:
    """The rows of every two builds of one number in a tidy frame, the earlier build first."""
    known = df[df["value"].notna()]
    several: dict[tuple[str, ...], list[Row]] = {}
    for row in rows_of(known[known.duplicated(_CELL, keep=False)]):
        several.setdefault(tuple(row[name] for name in _CELL), []).append(row)
    for rows in several.values():
        yield from combinations(sorted(rows, key=lambda row: row["rebuild"] or 1), 2)


def floors(df: pd.DataFrame) -> dict[str, Floor]:
    """Floors by metric: the largest relative difference of any two builds of one number, in a tidy frame."""
    return between_pairs((a["metric"], a["value"], b["value"]) for a, b in builds(df))


def measured(results: Path, platform: str) -> dict[str, Floor]:
    """The floors that tables below `results` show for a platform; of several of one metric, the highest."""
    shown: list[tuple[str, Floor]] = []
    for folder in sorted((results / STAGES["table"].folder.name).glob("*@*")):
        if not (folder / "numbers.parquet").exists():
            continue
        df = read(folder)
        if (df["rebuild"].fillna(1) > 1).any() and _platform(df, results) == platform:
            for metric, floor in floors(df).items():
                shown.append((metric, Floor(floor.relative, f"{floor.source} on builds of {folder.name}")))
    return _highest(shown)


def _platform(df: pd.DataFrame, results: Path) -> str | None:
    """The platform that a table was measured on, from its first record that is here."""
    for path in dict.fromkeys(df[df["phase"] == "load"]["record"]):
        file = results.parent / path
        if file.exists():
            return str(read_record(file)["spec"]["platform"])
    return None


def speed_percent(queries: Iterable[Mapping[str, Any]]) -> float | None:
    """How much the machine's own speed differed from round to round: a standard deviation, %; None if none can tell.

    By what a query cost the clients in processor time, in each round of the records of `queries`. Their work is the
    same in each round, so what differs is mostly the machine: it may be slower without a trace in steal or in the use
    by others. A sign, not a measure (docs/statistics.md has why). The variance of logarithms, pooled over the cells.
    """
    known = []
    for record in queries:
        costs = [one.get("cpu_us_per_query") for one in record.get("rounds", ())]
        logs = [math.log(cost) for cost in costs if cost]
        if len(logs) > 1:
            known.append((variance(logs), len(logs) - 1))
    if not known:
        return None
    variances, freedoms = zip(*known, strict=True)
    return 100 * math.sqrt(fmean(variances, freedoms))
