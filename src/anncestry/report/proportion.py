"""Is the difference of two shares, each over its own queries, larger than noise? Newcombe's interval."""

from __future__ import annotations

import math
from statistics import NormalDist


def proportion_interval(
    first: float, first_count: int, second: float, second_count: int, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of `first` - `second`, both means over `*_count` (>= 1) queries of values from 0 to 1.

    Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10). It is wide rather than narrow: the
    score interval takes p (1 - p) for the variance of one query, the most that values from 0 to 1 with mean p can have
    (Bhatia and Davis 2000), and takes the queries of the two sides for different ones.
    """
    low_1, high_1 = _score_interval(first, first_count, confidence)
    low_2, high_2 = _score_interval(second, second_count, confidence)
    difference = first - second
    return (
        difference - math.hypot(first - low_1, high_2 - second),
        difference + math.hypot(high_1 - first, second - low_2),
    )


def _score_interval(p: float, count: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927): it does not collapse where p is 0 or 1."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = p + z**2 / (2 * count)
    half = z * math.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    whole = 1 + z**2 / count
    return (middle - half) / whole, (middle + half) / whole
