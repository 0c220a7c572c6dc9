"""Is a difference larger than noise? Welch's interval for the difference of two means."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def differ(a: Sample, b: Sample, confidence: float = 0.95) -> bool:
    """Whether the interval of the difference is known and excludes zero."""
    interval = difference_interval(a, b, confidence)
    return interval is not None and not interval[0] <= 0 <= interval[1]


def t_quantile(p: float, freedom: float) -> float:
    """The t for which Student's distribution with `freedom` degrees (> 0, any real) has P(T <= t) = p, 0.5 <= p < 1."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if t_cdf(middle, freedom) < p:
            low = middle
        else:
            high = middle
    return high


def t_cdf(t: float, freedom: float) -> float:
    """P(T <= t) of Student's distribution, by the incomplete beta function (Abramowitz and Stegun 26.7.1)."""
    tail = _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # beyond this point the fraction converges slowly; its mirror image does not
        return 1 - _incomplete_beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # Lentz' method: the numerators and denominators of successive fractions, as ratios to their predecessors.
    ratio_d = 1 / (1 - (a + b) * x / (a + 1) or 1e-300)
    ratio_c, value = 1.0, ratio_d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            ratio_d = 1 / (1 + term * ratio_d or 1e-300)
            ratio_c = 1 + term / ratio_c or 1e-300
            value *= ratio_c * ratio_d
        if abs(ratio_c * ratio_d - 1) < 1e-15:
            break
    return scale * value / a
