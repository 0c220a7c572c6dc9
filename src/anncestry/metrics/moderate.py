"""How far an estimate may be from the truth, where few runs tell its noise but many comparisons have it in common.

Three rounds give a variance two degrees of freedom. So it is moderated: each variance is taken for one of a population
whose logarithms are normal, as Wu, Wang and Wu do it with dispersions ("A new shrinkage estimator for dispersion",
Biostatistics 14, 2013); middle and spread of this population are those under which the variances that were seen are
likeliest (by expectation and maximisation). A test then weighs all variances by how well they go with both (a mixture
of normal distributions). Smyth's moderated t (2004) has an inverse χ² in the place of the log-normal: with few degrees
of freedom that holds noise of a hundred times the usual for possible, so that of thousands of comparisons none is ever
decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from anncestry.datasets.distance import Floats
from anncestry.metrics import special

_POOLED_MIN = 6  # variances of one quantity without which they tell nothing of what they have in common
SPREAD = 1.4
"""Standard deviation of the logarithms of variances, at least, and what it is taken for before any is seen, which then
counts as many variances as `_KNOWN`. In kept runs it is about 1 between bursts of other programs' work; with 1.3, these
made a false alarm in 5.5 of 100 worlds, with 1.4 in 4.3 (`make bench-decisions`)."""
_KNOWN = 100
_POINTS = 64
_STEPS = 60


class Population(NamedTuple):
    """The logarithms of the variances of one quantity: normal, with this middle and standard deviation."""

    middle: float
    spread: float


@dataclass(frozen=True)
class Part:
    """A variance (s², with its degrees of freedom) and its weight in that of an estimate."""

    variance: float
    freedom: float
    weight: float
    population: Population | None = None

    def likely(self) -> tuple[Floats, Floats]:
        """Variances that the truth may be (64,), and how likely each is: they sum to 1. Needs a population."""
        assert self.population is not None
        middle, spread = self.population
        observed = self.freedom * self.variance / 2

        # The likelihood of log σ² is that of s² · freedom / σ² as a χ²; by Newton's method to its top.
        top = middle
        for _ in range(_STEPS):
            pull = observed * math.exp(-top)
            step = (pull - self.freedom / 2 - (top - middle) / spread**2) / (pull + 1 / spread**2)
            top += max(-2.0, min(2.0, step))
            if abs(step) < 1e-10:
                break
        width = 1 / math.sqrt(1 / spread**2 + observed * math.exp(-top))
        logs = np.linspace(top - 6 * width, top + min(7 * spread, 16 * width), _POINTS)
        height = _log_likelihood(logs, self.freedom, observed) - (logs - middle) ** 2 / (2 * spread**2)
        likely = np.exp(height - height.max())
        return np.exp(logs), likely / likely.sum()


def population_of(parts: Sequence[Part]) -> Population | None:
    """What variances have in common; None for too few, or where none differs from zero."""
    if len(parts) < _POOLED_MIN or not any(part.variance > 1e-20 for part in parts):
        return None
    variance, freedom = (np.array(values) for values in zip(*((p.variance, p.freedom) for p in parts), strict=True))
    variance = np.maximum(variance, 1e-5 * np.median(variance[variance > 0]))
    half = freedom / 2
    # Starts from the moments of log s² (Smyth 2004, section 6.2).
    middle, spread = float((np.log(variance) - special.digamma(half) + np.log(half)).mean()), SPREAD
    for _ in range(_STEPS):
        logs = np.linspace(middle - 6 * spread, middle + 6 * spread, 2 * _POINTS)
        height = _log_likelihood(logs, freedom[:, None], (half * variance)[:, None])
        height = height - (logs - middle) ** 2 / (2 * spread**2)
        likely = np.exp(height - height.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        before = middle, spread
        middle = float((likely * logs).sum(axis=1).mean())
        squares = float((likely * (logs - middle) ** 2).sum())
        spread = max(SPREAD, math.sqrt((_KNOWN * SPREAD**2 + squares) / (_KNOWN + len(parts))))
        if abs(middle - before[0]) + abs(spread - before[1]) < 1e-7:
            break
    return Population(middle, spread)


def _log_likelihood(logs: Floats, freedom: Floats | float, observed: Floats | float) -> Floats:
    return -freedom / 2 * logs - observed * np.exp(-logs)


@dataclass(frozen=True)
class Error:
    """By how much an estimate whose variance is the weighted sum of `parts` is off: symmetric about zero.

    Student's t (of several parts with Welch and Satterthwaite's degrees of freedom), or the mixture of normal
    distributions where the parts are of a population.
    """

    parts: tuple[Part, ...]

    @cached_property
    def size(self) -> float:
        """Standard error, by the variances as they were seen or, of a population, as they probably are."""
        if self._mixture is None:
            return math.sqrt(sum(part.variance * part.weight for part in self.parts))
        sizes, shares = self._mixture
        return math.exp(float((shares * np.log(sizes)).sum()))

    def beyond(self, size: float) -> float:
        """The chance of an error above `size`."""
        if self._mixture is None:
            return float(special.stdtr(self._freedom, -size / self.size))
        sizes, shares = self._mixture
        return float((shares * special.ndtr(-size / sizes)).sum())

    def half_width(self, confidence: float) -> float:
        """The error that is not exceeded, either way, with this confidence."""
        if self._mixture is None:
            return float(special.stdtrit(self._freedom, 0.5 + confidence / 2)) * self.size
        low, high = 0.0, 40 * float(self._mixture[0].max())
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if 2 * self.beyond(middle) > 1 - confidence else (low, middle)
        return high

    @cached_property
    def _freedom(self) -> float:
        each = [(part.variance * part.weight, part.freedom) for part in self.parts]
        return float(sum(v for v, _ in each) ** 2 / sum(v**2 / f for v, f in each))

    @cached_property
    def _mixture(self) -> tuple[Floats, Floats] | None:
        """Standard errors that may be the true one, and how likely each is."""
        if any(part.population is None for part in self.parts):
            return None
        variances, shares = np.zeros(1), np.ones(1)
        for part in self.parts:
            each, likely = part.likely()
            variances = np.add.outer(variances, part.weight * each).ravel()
            shares = np.multiply.outer(shares, likely).ravel()
        return np.sqrt(variances), shares
