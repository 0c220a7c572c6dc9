"""Is a difference larger than noise? Welch's interval for the difference of two means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anncestry.metrics.stats import t_cdf, t_quantile

__all__ = ["MIN_RUNS", "Sample", "differ", "difference_interval", "ratio_interval", "t_cdf", "t_quantile"]

MIN_RUNS = 3
"""Below this, a standard deviation says too little for naming a winner."""


@dataclass(frozen=True)
class Sample:
    """A mean over runs, with the sample standard deviation of the runs."""

    mean: float
    std: float
    runs: int


def difference_interval(a: Sample, b: Sample, confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a.mean - b.mean, variances unequal (Welch 1947); None where noise can't be told.

    That is with fewer than MIN_RUNS runs on a side, and where no run differed from another on either side:
    a spread of zero is the absence of an observation, not the absence of noise.
    """
    if min(a.runs, b.runs) < MIN_RUNS:
        return None
    var_a, var_b = a.std**2 / a.runs, b.std**2 / b.runs
    var = var_a + var_b
    if not var > 0:
        return None
    # The Welch-Satterthwaite equation.
    freedom = var**2 / (var_a**2 / (a.runs - 1) + var_b**2 / (b.runs - 1))
    half = t_quantile(0.5 + confidence / 2, freedom) * math.sqrt(var)
    difference = a.mean - b.mean
    return difference - half, difference + half


def ratio_interval(a: Sample, b: Sample, confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a.mean / b.mean; None where noise can't be told (as above), or a mean isn't above zero.

    That of the difference of logarithms, whose variances are those of the means over their squares (delta method).
    """
    if min(a.mean, b.mean) <= 0:
        return None
    above, below = (Sample(math.log(one.mean), one.std / one.mean, one.runs) for one in (a, b))
    interval = difference_interval(above, below, confidence)
    return (math.exp(interval[0]), math.exp(interval[1])) if interval else None


def differ(a: Sample, b: Sample, confidence: float = 0.95) -> bool:
    """Whether the interval of the difference is known and excludes zero."""
    interval = difference_interval(a, b, confidence)
    return interval is not None and not interval[0] <= 0 <= interval[1]
