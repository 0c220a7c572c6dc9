"""How a system treats its hardest queries, which a mean recall hides: from the recall of each query.

Robustness-δ@K is the share of queries whose recall@K is at least δ (Wang, Zhang, Lu, Chen and Tan, "Towards Robustness:
A Critique of Current Vector Database Assessments", arXiv 2507.00379, 2025). Beside it stands the mean recall of the
worst 1 % of queries.

A query's recall is the mean over its answers. Queries are taken for a sample of those that one might ask, so that both
have an interval: Wilson's, of a share; and for the worst, one that assumes nothing of how recalls are distributed. (A
bootstrap of the worst of 300 queries, which are three, holds the truth in half of all cases.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.metrics import special
from anncestry.metrics.stats import CONFIDENCE, Interval, clipped, wilson

Floats = NDArray[np.float64]

DELTAS = (0.5, 0.9, 1.0)
"""The δ that are told: half of what there is to find, nine tenths of it, and all."""
WORST_SHARE = 0.01
"""The share of queries that counts as the worst."""
OF_QUERIES = "95 %, Wilson's, of the different queries"
OF_BOUNDS = "95 %, from the bounds of each share of queries (Clopper and Pearson), all at once"
_EPS = 1e-6  # records round each query's recall to six digits


def name_of(delta: float) -> str:
    """The metric of a δ: robustness_0.9."""
    return f"robustness_{delta:g}"


def reached(recalls: Sequence[float] | Floats, delta: float) -> NDArray[np.bool_]:
    """Which queries have a recall of at least δ, (queries,)."""
    found: NDArray[np.bool_] = np.asarray(recalls, dtype=np.float64) >= delta - _EPS
    return found


def worst_mean(recalls: Floats, share: float = WORST_SHARE) -> float:
    """The mean of the lowest `share` of recalls (n,), n >= 1: of ⌈share · n⌉ queries."""
    count = worst_count(len(recalls), share)
    return float(np.partition(recalls, count - 1)[:count].mean())


def worst_count(queries: int, share: float = WORST_SHARE) -> int:
    """How many queries count as the worst of so many."""
    return max(1, math.ceil(share * queries * (1 - 1e-12)))


def worst_interval(recalls: Floats, share: float = WORST_SHARE) -> Interval:
    """Of the mean of the worst `share` of all queries, of which these recalls (n,) from 0 to 1 are a sample.

    What the lowest share of a distribution has on average falls as more of it lies at low values. So its lower end is
    that of the most queries that may have each recall or less, and its upper end that of the fewest. As no query below
    the lowest found says that there are none, up to 3.7 of n queries may have recall 0.
    """
    values, counts = np.unique(np.clip(recalls, 0.0, 1.0), return_counts=True)
    below, n = np.cumsum(counts), len(recalls)
    tail = (1 - CONFIDENCE) / 2
    unseen = 1 - tail ** (1 / n)
    most = special.betaincinv(below[:-1] + 1, n - below[:-1], 1 - tail)
    fewest = special.betaincinv(below[:-1], n - below[:-1] + 1, tail)
    low = _lowest(np.array([0.0, *values]), np.array([unseen, *most, 1.0]), share)
    high = _lowest(np.array([*values, 1.0]), np.array([*fewest, 1 - unseen, 1.0]), share)
    return clipped(Interval(low, high, OF_BOUNDS), 0.0, 1.0)


def _lowest(values: Floats, cumulated: Floats, share: float) -> float:
    """The mean of the lowest `share` of a distribution with so much (`cumulated`) at or below each of its `values`."""
    weights = np.diff(np.minimum(cumulated, share), prepend=0.0)
    return float((weights * values).sum() / share)


def facts(recalls: Sequence[float]) -> dict[str, dict[str, Any]]:
    """By name of the metric its value, low, high and interval, from the recall of each query; empty without queries."""
    if not len(recalls):
        return {}
    known = np.asarray(recalls, dtype=np.float64)
    found: dict[str, dict[str, Any]] = {}
    for delta in DELTAS:
        share = float(reached(known, delta).mean())
        low, high = wilson(share, len(known), CONFIDENCE)
        found[name_of(delta)] = {"value": share, **clipped(Interval(low, high, OF_QUERIES), 0.0, 1.0).facts()}
    found["recall_worst1"] = {"value": worst_mean(known), **worst_interval(known).facts()}
    return found
