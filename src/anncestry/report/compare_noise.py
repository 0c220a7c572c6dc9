"""Noise that the runs of one session don't show: another load, another hour. A floor below which nothing counts.

A floor only takes verdicts away: it never makes a difference known whose noise is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Floor:
    """The largest difference that is noise, as a share of the first value (0.05: 5 %), and in words what says so."""

    relative: float
    source: str

    def __str__(self) -> str:
        return f"{100 * self.relative:.1f} % {self.source}"

    def hides(self, a: float, b: float) -> bool:
        """Whether the difference of two values is no larger than this."""
        return abs(b - a) <= self.relative * abs(a)


@dataclass(frozen=True)
class Noise:
    """A floor that holds for every metric, and floors of single metrics; of two, the higher one counts."""

    common: Floor | None = None
    of_metric: Mapping[str, Floor] = field(default_factory=dict)

    def floor(self, metric: str, *, common: bool = True) -> Floor | None:
        """The floor of a metric, None where nothing is known; `common` tells whether the common one is meant for it."""
        found = [self.common if common else None, self.of_metric.get(metric)]
        return max((floor for floor in found if floor), key=lambda floor: floor.relative, default=None)

    def with_measured(self, measured: Mapping[str, Floor]) -> Noise:
        """This, and floors that were measured: the higher one of each metric."""
        higher = dict(self.of_metric)
        for metric, floor in measured.items():
            if metric not in higher or floor.relative > higher[metric].relative:
                higher[metric] = floor
        return Noise(self.common, higher)


def asked(percent: float) -> Noise:
    """The noise that a user says there is between any two measurements of one thing."""
    return Noise(Floor(percent / 100, "as asked"))


def between_pairs(pairs: Iterable[tuple[str, float, float]]) -> dict[str, Floor]:
    """Floors by metric from pairs (metric, first value, second value) of measurements of one and the same thing.

    A floor is the largest relative difference of a metric's pairs: no estimate of a quantile, but what was seen.
    """
    seen: dict[str, list[float]] = {}
    for metric, first, second in pairs:
        if first:
            seen.setdefault(metric, []).append(abs(second / first - 1))
    return {
        metric: Floor(max(found), f"between {_numbers(len(found))} measured twice") for metric, found in seen.items()
    }


def _numbers(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"
