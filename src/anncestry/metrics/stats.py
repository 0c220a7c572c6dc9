"""Uncertainty of one number: intervals by bootstrap, seeded. Equal data give equal bytes.

A measured number varies for two reasons, and they are crossed: every run asks the same queries. So both are resampled,
runs with replacement and queries with replacement, one draw of queries for all runs of a replicate (the two-way
bootstrap of Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1, 2007). That counts twice what single
answers add: runs differ by it as well. So of what queries add only that counts which all runs share. Few runs make a
bootstrap too narrow; its deviations over runs are therefore widened by √(n/(n−1)) · t(n−1)/z (Hesterberg, "What
Teachers Should Know About the Bootstrap", The American Statistician 69, 2015, §3.4), which for three runs is 2.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry import large
from anncestry.metrics import special

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
REPLICATES = 1000
_SEED = 20261121
_CELLS_MAX = 20_000_000  # replicates × samples of a run: bounds time (about a second) and, by blocks, memory
_REPLICATES_MIN = 200
_BLOCK_CELLS = 2_000_000
_MARK_COST = 32  # how much dearer it is to go through a value than to weigh a query up to a mark
_MARK_CELLS = 2_000_000  # queries × marks: bounds memory
TIME_BLOCKS = 20
_Z = 1.959963984540054  # quantile 0.975 of the standard normal distribution

OVER_BOTH = "95 %, bootstrap over runs and queries"
OVER_QUERIES = "95 %, bootstrap over the queries of one run"
OVER_RUNS_TIME = "95 %, bootstrap over runs and parts of their time"
OVER_TIME = "95 %, bootstrap over parts of one run's time"


@dataclass(frozen=True)
class Interval:
    """Bounds of a number, None where there are too few observations to tell, and how they were found."""

    low: float | None
    high: float | None
    method: str

    def facts(self) -> dict[str, object]:
        return {"low": self.low, "high": self.high, "interval": self.method}


def unknown(why: str) -> Interval:
    """No interval, and the reason."""
    return Interval(None, None, why)


# Bootstrap


@dataclass(frozen=True)
class Values:
    """The observations of one run, (n,) each: a value, and which of `queries` queries (0 …) it belongs to.

    `part` is which of the TIME_BLOCKS equal parts of the run's time it fell into, where that is known.
    """

    value: Floats
    query: NDArray[np.int64]
    ascending: Values | None = None
    """The same in ascending order of the values, where that is known already."""
    part: NDArray[np.int64] | None = None

    def in_order(self) -> Values:
        if self.ascending is None:
            others = (self.query,) if self.part is None else (self.query, self.part)
            value, query, *part = large.sorted_by(self.value, *others)
            object.__setattr__(self, "ascending", Values(value, query, part=part[0] if part else None))
        assert self.ascending is not None
        return self.ascending


def mean_interval(runs: Sequence[Values], queries: int) -> Interval:
    """Interval of the mean over runs of each run's mean."""

    def statistic(run: Values, by: NDArray[np.int64], groups: int) -> Callable[[Floats], Floats]:
        totals: Floats = np.bincount(by, run.value, groups).astype(np.float64)
        counts = np.bincount(by, minlength=groups).astype(np.float64)

        def of(weights: Floats) -> Floats:
            return _ratio(_weighted(weights, totals), _weighted(weights, counts))

        return of

    in_time = [statistic(run, run.part, TIME_BLOCKS) for run in runs if run.part is not None]
    return _crossed([statistic(run, run.query, queries) for run in runs], in_time, runs, queries)


def share_interval(runs: Sequence[Values], queries: int) -> Interval:
    """Interval of the mean over runs of each run's mean of values from 0 to 1.

    Of queries that all have one value, the bootstrap draws no other: as if the next could have none. So the interval
    reaches at least as far as that of two queries more, one of 0 and one of 1 (after Agresti and Coull's interval of a
    proportion, 1998, which adds two of each).
    """

    def with_two(run: Values) -> Values:
        return Values(np.append(run.value, [0.0, 1.0]), np.append(run.query, [queries, queries + 1]))

    found = mean_interval(runs, queries)
    if found.low is None:
        return found
    return clipped(wider(found, mean_interval([with_two(run) for run in runs], queries + 2)), 0.0, 1.0)


def quantile_interval(runs: Sequence[Values], queries: int, q: float) -> Interval:
    """Interval of the mean over runs of each run's nearest-rank quantile q."""

    def statistic(value: Floats, query: NDArray[np.int64], queries: int) -> Callable[[Floats], Floats]:
        # How often each query was asked among the values before each mark. Weights are whole numbers, and their sums
        # below 2^53 exact whatever the order: so most of the values need not be gone through one by one.
        marks = min(math.isqrt(_MARK_COST * len(value) // max(1, queries)), _MARK_CELLS // max(1, queries))
        step = len(value) // (marks + 1) + 1
        before = np.zeros((len(value) // step + 1, queries))
        for mark, start in enumerate(range(0, len(value) - step + 1, step), start=1):
            before[mark] = before[mark - 1] + np.bincount(query[start : start + step], minlength=queries)
        counts = np.bincount(query, minlength=queries).astype(np.float64)

        def of(weights: Floats) -> Floats:
            # Not by BLAS, whose threads wait for each other on a busy machine, a hundred times as long as this takes.
            total = np.einsum("rq,q->r", weights, counts)
            # Nearest rank: the first value with at least q of the weight at or below it.
            rank = np.maximum(np.ceil(q * total * (1 - 1e-12)), 1)
            reached = np.einsum("rq,mq->rm", weights, before)
            nearest = (reached < rank[:, None]).sum(axis=1) - 1
            at = nearest * step
            for mark in np.unique(nearest):
                rows = np.flatnonzero(nearest == mark)
                inside = query[mark * step : (mark + 1) * step]
                at[rows] += _reached(weights[rows], inside, rank[rows] - reached[rows, mark])
            return np.where(total > 0, value[np.minimum(at, len(value) - 1)], np.nan)

        return of

    ordered = [run.in_order() for run in runs]
    in_time = [statistic(run.value, run.part, TIME_BLOCKS) for run in ordered if run.part is not None]
    return _crossed([statistic(run.value, run.query, queries) for run in ordered], in_time, runs, queries)


def _reached(weights: Floats, query: NDArray[np.int64], rank: Floats) -> NDArray[np.int64]:
    """How many values, of the queries `query`, lie before the one at which `weights` (r, queries) reach their rank."""
    found = np.zeros(len(weights), dtype=np.int64)
    width = max(1, _BLOCK_CELLS // len(weights))
    left = rank.copy()
    for start in range(0, len(query), width):
        below = np.cumsum(weights[:, query[start : start + width]], axis=1)
        found += (below < left[:, None]).sum(axis=1)
        left -= below[:, -1]
        if (left <= 0).all():
            break
    return found


def rate_interval(counts: Sequence[NDArray[np.int64]], window_s: Sequence[float]) -> Interval:
    """Interval of a rate, Σ counts / Σ window, from counts in equal parts of each run's window, (parts,) a run.

    Answers come in bursts and lulls: parts of time keep those together, single answers would not.
    """
    if not counts or not all(window_s):
        return unknown("no run")
    rates = np.array([part.sum() / seconds for part, seconds in zip(counts, window_s, strict=True)])
    shares = np.array(window_s) / sum(window_s)
    random = np.random.RandomState(_SEED)
    drawn, state = _parts_drawn(tuple(map(len, counts)))
    random.set_state(state)
    within = [part[draws].sum(axis=1) / seconds for part, draws, seconds in zip(counts, drawn, window_s, strict=True)]
    value = float(rates @ shares)
    between, inside = _apart(rates, np.array(within), shares * len(rates), random)
    if len(rates) == 1:
        return _bounds(value, inside, OVER_TIME)
    return wider(_bounds(value, between, OVER_RUNS_TIME), _bounds(value, inside, OVER_RUNS_TIME))


def in_parts(end_s: Floats, window_s: float) -> NDArray[np.int64]:
    """How many of the answers that ended at `end_s` (n,) within the window fell into each of its equal parts."""
    edges = np.linspace(0.0, window_s, TIME_BLOCKS + 1)
    inside = end_s[end_s <= window_s]
    counts: NDArray[np.int64] = np.histogram(inside, edges)[0].astype(np.int64)
    return counts


def _crossed(
    statistics: Sequence[Callable[[Floats], Floats]],
    in_time: Sequence[Callable[[Floats], Floats]],
    runs: Sequence[Values],
    queries: int,
) -> Interval:
    """The two-way bootstrap of a mean over runs of a statistic of each run.

    What differs between runs is at least what differs between parts of a run's time (`in_time`, of all runs or none):
    a few runs may all have missed, by luck, the bursts that make a tail.
    """
    if not runs or not all(len(run.value) for run in runs):
        return unknown("a run without an answer")
    largest = max(len(run.value) for run in runs)
    if largest < 2:
        return unknown("fewer than two answers")
    replicates = max(_REPLICATES_MIN, min(REPLICATES, _CELLS_MAX // largest))
    random = np.random.RandomState(_SEED)
    observed = np.array([float(of(np.ones((1, queries)))[0]) for of in statistics])
    asked = np.flatnonzero(sum(np.bincount(run.query, minlength=queries) for run in runs))
    within = np.empty((len(runs), replicates))
    step = max(1, _BLOCK_CELLS // max(largest, queries))
    drawn: Iterable[Floats] = _draws(random, asked, queries, replicates, step)
    if replicates * queries <= _BLOCK_CELLS:
        drawn, state = _kept_draws(asked.astype(np.int64).tobytes(), queries, replicates, step)
        random.set_state(state)
    start = 0
    for weights in drawn:
        for number, of in enumerate(statistics):
            within[number, start : start + len(weights)] = of(weights)
        start += len(weights)
    method = OVER_BOTH if len(runs) > 1 else OVER_QUERIES
    between, inside = _apart(observed, within, np.ones(len(runs)), random)
    inside = inside * _shared(within - observed[:, None], inside)
    found = _bounds(float(observed.mean()), between + inside, method)
    if not in_time or len(runs) == 1:
        return found
    drawn_parts = (random.randint(TIME_BLOCKS, size=(replicates, TIME_BLOCKS)) for _ in runs)
    weights_of = [_counted(draws) for draws in drawn_parts]
    resampled = np.mean([of(weights) for of, weights in zip(in_time, weights_of, strict=True)], axis=0)
    return wider(found, _bounds(float(observed.mean()), resampled - observed.mean() + inside, method))


def wider(found: Interval, beside: Interval) -> Interval:
    """From the lower of both low ends to the higher of both high ones; unknown if one of them is."""
    if found.low is None or found.high is None:
        return found
    if beside.low is None or beside.high is None:
        return beside
    return Interval(min(found.low, beside.low), max(found.high, beside.high), found.method)


def _counted(draws: NDArray[np.int64]) -> Floats:
    """How often each of TIME_BLOCKS parts was drawn in each replicate."""
    flat = (draws + np.arange(len(draws))[:, None] * TIME_BLOCKS).ravel()
    return np.bincount(flat, minlength=len(draws) * TIME_BLOCKS).reshape(len(draws), -1).astype(np.float64)


def _draws(
    random: np.random.RandomState, asked: NDArray[np.int64], queries: int, replicates: int, step: int
) -> Iterator[Floats]:
    """How often each query was drawn in each replicate, (up to `step`, queries) at a time."""
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        drawn = asked[random.randint(len(asked), size=(rows, len(asked)))]
        flat = (drawn + np.arange(rows)[:, None] * queries).ravel()
        yield np.bincount(flat, minlength=rows * queries).reshape(rows, queries).astype(np.float64)


@lru_cache(maxsize=2)
def _kept_draws(asked: bytes, queries: int, replicates: int, step: int) -> tuple[tuple[Floats, ...], Any]:
    """The same for every metric, and for every cell with these queries: and where the draws then stand."""
    random = np.random.RandomState(_SEED)
    drawn = tuple(_draws(random, np.frombuffer(asked, np.int64), queries, replicates, step))
    for weights in drawn:
        weights.flags.writeable = False
    return drawn, random.get_state()


@lru_cache(maxsize=8)
def _parts_drawn(counts: tuple[int, ...]) -> tuple[tuple[NDArray[np.int64], ...], Any]:
    """Replicates of the parts of each run, of which there are `counts`."""
    random = np.random.RandomState(_SEED)
    return tuple(random.randint(count, size=(REPLICATES, count)) for count in counts), random.get_state()


def _apart(observed: Floats, within: Floats, weights: Floats, random: np.random.RandomState) -> tuple[Floats, Floats]:
    """Deviations of replicates from the value: of runs (widened, as they are few), and of what is within them.

    `observed` (runs,), `within` (runs, replicates): each run's statistic, as it is and resampled; `weights` (runs,)
    of mean 1.
    """
    count, replicates = within.shape
    if count == 1:
        return np.zeros(replicates), within[0] - observed[0]
    value = float((observed * weights).mean())
    chosen = random.randint(count, size=(replicates, count))
    shares = weights[chosen]
    shares = shares / shares.sum(axis=1, keepdims=True)
    between = (observed[chosen] * shares).sum(axis=1) - value
    resampled = within[chosen, np.arange(replicates)[:, None]]
    inside = ((resampled - observed[chosen]) * shares).sum(axis=1)
    widened = math.sqrt(count / (count - 1)) * float(special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) / _Z
    return widened * between, inside


def _shared(within: Floats, inside: Floats) -> float:
    """By how much to shrink what is `inside` runs, so that what each run has of its own does not count twice.

    What runs differ by holds that already. What is left is what they share, as they ask the same queries: the
    covariance of the replicates `within` (runs, replicates) two runs, with the same queries drawn for both.
    """
    runs = len(within)
    variance = float(inside.var()) if np.isfinite(inside).all() else math.nan
    if runs == 1 or not variance > 0:
        return 1.0
    away = within - within.mean(axis=1, keepdims=True)
    covariance = (runs * np.square(away.mean(axis=0)).mean() - np.square(away).mean()) / (runs - 1)
    return math.sqrt(min(max(float(covariance), 0.0) / variance, 1.0))


def _bounds(value: float, deviations: Floats, method: str) -> Interval:
    known = deviations[np.isfinite(deviations)]
    if len(known) < len(deviations) / 2 or not math.isfinite(value):
        return unknown("too few observations")
    tail = (1 - CONFIDENCE) / 2
    if np.isposinf(deviations).mean() > tail / 2:  # of failures, which are infinite latencies
        return unknown("so many requests failed that its upper end may be infinite")
    low, high = np.quantile(known, [tail, 1 - tail])
    return Interval(float(value + min(low, 0.0)), float(value + max(high, 0.0)), method)


def _weighted(weights: Floats, of_query: Floats) -> Floats:
    """Weights (replicates, queries) times (queries,), summed in NumPy's own order: BLAS sums as the machine likes."""
    total: Floats = (weights * of_query).sum(axis=1)
    return total


def _ratio(above: Floats, below: Floats) -> Floats:
    ratio: Floats = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
    return ratio


def clipped(found: Interval, low: float = -math.inf, high: float = math.inf) -> Interval:
    """Within what the number can be: no latency below 0, no recall above 1."""
    if found.low is None or found.high is None:
        return found
    return Interval(max(found.low, low), min(found.high, high), found.method)


def wilson(p: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927): it does not collapse where p is 0 or 1."""
    z = float(special.ndtri(0.5 + confidence / 2))
    middle = p + z**2 / (2 * count)
    half = z * math.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    whole = 1 + z**2 / count
    return (middle - half) / whole, (middle + half) / whole
