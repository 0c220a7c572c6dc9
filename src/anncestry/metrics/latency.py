"""Latency and throughput of a run, their summary over runs, and whether a run is steady.

Runs may be larger than memory (see `large`): what is made of their samples is made part by part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry import large
from anncestry.drive.client import ERROR, OK, TIMEOUT
from anncestry.metrics import stats

QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
P999 = 0.999
_HDR_SUB_BUCKETS = 128  # a bucket is at most 1/64 of its value wide
_BATCH, _BATCHES_MIN = 5, 8  # of good answers, to tell whether a run is steady
_QUERIES_MAX = 1 << 26  # numbers of queries up to which they are looked up in a table

TOTALS = ("samples", "errors", "timeouts")
RATES = ("qps", "complete_qps", "fail_per_s")
FAILED = "no finite value: more requests failed than it leaves out"
"""Why a cell has no percentile or mean: a request that failed has no answer after any time."""


@dataclass(frozen=True)
class Run:
    """Samples of one run, each array (n,): nanoseconds relative to the clock's zero, and status.

    `duration_s` is the window of a run by time, None for a run by count. `query` (n,) is which query was asked; where
    it is not known every sample counts as a query of its own. `defect` (n,) is what is wrong with a good answer (see
    `metrics.defects`; 0: nothing), None where it was not judged.
    """

    due_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    status: NDArray[np.integer[Any]]
    duration_s: float | None = None
    query: NDArray[np.integer[Any]] | None = None
    defect: NDArray[np.uint8] | None = None

    @property
    def window_s(self) -> float:
        """What throughput is divided by: the asked time, or the time until the last answer of a run by count."""
        if self.duration_s is not None:
            return self.duration_s
        last = [int((self.due_ns[part] + self.latency_ns[part]).max()) for part in large.parts(len(self.due_ns))]
        return float(max(last) / 1e9) if last else math.nan

    @cached_property
    def values(self) -> stats.Values:
        """Latencies (ms) and the query of each sample: of timeouts the time they waited, of other failures infinity.

        Where queries are not known, which sample it is.
        """
        waited_ms, queries, parts = large.Growing(np.float64), large.Growing(np.int64), large.Growing(np.int64)
        part_s = self.window_s / stats.TIME_BLOCKS
        for part in large.parts(len(self.status)):
            ends_s = (self.due_ns[part] + self.latency_ns[part]) / 1e9
            parts.append(np.clip(ends_s // part_s, 0, stats.TIME_BLOCKS - 1).astype(np.int64))
            waited_ms.append(np.where(self.status[part] == ERROR, np.inf, self.latency_ns[part] / 1e6))
            queries.append(np.arange(part.start, part.stop) if self.query is None else self.query[part])
        return stats.Values(waited_ms.array(), queries.array(), part=parts.array())

    def ends_s(self) -> Iterator[tuple[NDArray[np.float64], dict[str, NDArray[np.bool_]]]]:
        """When answers came, and which of them each of `RATES` counts, part by part."""
        for part in large.parts(len(self.due_ns)):
            good = self.status[part] == OK
            counted = {"qps": good, "fail_per_s": ~good}
            if self.defect is not None:
                counted["complete_qps"] = good & (self.defect[part] == 0)
            yield (self.due_ns[part] + self.latency_ns[part]) / 1e9, counted


class Busy:
    """How long the clients of a closed loop waited for answers, from samples that are added part by part."""

    def __init__(self, clients: int) -> None:
        self._first_ns = np.full(clients, np.iinfo(np.int64).max)
        self._last_ns = np.zeros(clients, np.int64)
        self.clients, self.requests, self.busy_ns = clients, 0, 0

    def add(self, client: NDArray[np.integer[Any]], due_ns: NDArray[np.int64], latency_ns: NDArray[np.int64]) -> None:
        np.minimum.at(self._first_ns, client, due_ns)
        np.maximum.at(self._last_ns, client, due_ns + latency_ns)
        self.requests += len(client)
        self.busy_ns += int(latency_ns.sum())

    def facts(self) -> dict[str, int]:
        """`span_ns` is from the first request of each client to its last answer, summed over clients."""
        span_ns = int(np.maximum(self._last_ns - self._first_ns, 0).sum())
        return {"clients": self.clients, "requests": self.requests, "busy_ns": self.busy_ns, "span_ns": span_ns}


def closed(workload: Mapping[str, Any]) -> bool:
    """Whether each client sends its next request once it has the answer to its last one."""
    return bool(workload.get("loop", "closed") == "closed")


def quantile(ascending: NDArray[Any], q: float) -> float:
    """Nearest-rank quantile (inverted distribution function): always a value that was observed. NaN for no values."""
    return float(ascending[large.rank(len(ascending), q)]) if len(ascending) else math.nan


def quantile_of_counts(values: Sequence[float], counts: Sequence[int], q: float) -> float:
    """`quantile` of observations of which each of `values`, ascending, was seen so many times; NaN for none."""
    seen = np.cumsum(counts)
    if not len(seen):
        return math.nan
    return float(values[int(np.searchsorted(seen, large.rank(int(seen[-1]), q), side="right"))])


def of_run(run: Run) -> dict[str, float]:
    """Latency (ms), throughput and failures of one run.

    A request that ran into its deadline counts with the time it waited; one that failed otherwise as infinity: to fail
    fast is not to be fast. Throughput counts good answers that ended within the window: what was still under way then
    is latency, not QPS. `complete_qps` counts those without a defect.
    """
    ascending = run.values.in_order().value
    window_s = run.window_s
    seen, counts = dict.fromkeys((ERROR, TIMEOUT), 0), Counter[str]()
    for part in large.parts(len(run.status)):
        for kind in seen:
            seen[kind] += int((run.status[part] == kind).sum())
    for ends_s, counted in run.ends_s():
        # A failure after the window is still a failure of it.
        in_time = np.full(len(ends_s), True) if run.duration_s is None else ends_s <= window_s
        counts.update({name: int((of & (in_time | (name == "fail_per_s"))).sum()) for name, of in counted.items()})
    rates = [name for name in RATES if name != "complete_qps" or run.defect is not None]
    return {
        **{name: quantile(ascending, q) for name, q in QUANTILES.items()},
        "p999_ms": quantile(ascending, P999),
        "max_ms": quantile(ascending, 1.0),
        "mean_ms": float(run.values.value.mean()) if len(ascending) else math.nan,
        # No request at all: of a search for a rate, none was accepted.
        **{name: float(counts[name] / window_s) if window_s and len(run.status) else math.nan for name in rates},
        "samples": len(run.status),
        "errors": seen[ERROR],
        "timeouts": seen[TIMEOUT],
    }


def over_runs(values: Sequence[float]) -> dict[str, Any]:
    """Mean over runs, and their sample standard deviation (n − 1; None for a single run). NaN becomes None."""
    finite = [value for value in values if math.isfinite(value)]
    whole = len(finite) == len(values) and bool(finite)
    return {
        "value": float(np.mean(finite)) if whole else None,
        "std": float(np.std(finite, ddof=1)) if whole and len(finite) > 1 else None,
        "runs": [value if math.isfinite(value) else None for value in values],
    }


def summarise(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Every metric of `of_run` over all runs, with its interval.

    Percentiles and the mean are means over runs, each run of the same weight. Rates are totals over total time, so
    that a longer run weighs more. p99.9 and the maximum are of all samples together: a run of 1,000 queries has one
    sample beyond its p99.9. Samples, errors and timeouts are totals.
    """
    each = [of_run(run) for run in runs]
    summary = {name: over_runs([run[name] for run in each]) for name in min(each, key=len)}
    values, queries = _values(runs)
    pooled = _pooled(values)
    for name in TOTALS:
        summary[name].update(value=int(sum(run[name] for run in each)), std=None)
    waited = pooled.in_order().value
    for name, q in (("p999_ms", P999), ("max_ms", 1.0)):
        value = quantile(waited, q)
        summary[name].update(value=value if math.isfinite(value) else None, std=None)
    windows = [run.window_s for run in runs]
    whole = sum(windows)
    for name in RATES:
        if name in summary and summary[name]["value"] is not None and whole > 0:
            rates = [run[name] for run in each]
            summary[name]["value"] = float(sum(r * w for r, w in zip(rates, windows, strict=True)) / whole)
    finite = [name for name, found in summary.items() if found["value"] is not None]
    for name, interval in _intervals(runs, values, queries, windows, finite).items():
        summary[name].update(interval.facts())
    return summary


def _intervals(
    runs: Sequence[Run],
    values: Sequence[stats.Values],
    queries: int,
    windows: Sequence[float],
    names: Sequence[str],
) -> Mapping[str, stats.Interval]:
    """The intervals of the metrics `names`."""
    found = {name: stats.quantile_interval(values, queries, q) for name, q in QUANTILES.items() if name in names}
    if "mean_ms" in names:
        found["mean_ms"] = stats.mean_interval(values, queries)
    found["p999_ms"] = stats.unknown("pooled over runs: what differs between them is not known")
    found["max_ms"] = stats.unknown("of a maximum nothing bounds the next")
    for name in RATES:
        if name in names:
            counts = [_in_parts(run, window, name) for run, window in zip(runs, windows, strict=True)]
            found[name] = stats.rate_interval(counts, windows)
    return {name: stats.clipped(interval, low=0.0) for name, interval in found.items() if name in names}


def _in_parts(run: Run, window_s: float, rate: str) -> NDArray[np.int64]:
    """How many answers of a rate fell into each part of the run's time."""
    if rate == "fail_per_s":  # a failure after the window is still a failure of it
        window_s = max(window_s, *(float(ends_s.max()) for ends_s, _ in run.ends_s()), 0.0)
    counts = stats.in_parts(np.empty(0), window_s)
    for ends_s, counted in run.ends_s():
        counts += stats.in_parts(ends_s[counted[rate]], window_s)
    return counts


def _values(runs: Sequence[Run]) -> tuple[list[stats.Values], int]:
    """Latencies with their queries as numbers from 0 on, and how many queries there are."""
    known, numbers_of = _numbers([run.values.query for run in runs])

    def numbered(asked: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = large.empty(len(asked), np.int64)
        for part in large.parts(len(asked)):
            numbers[part] = numbers_of(asked[part])
        return numbers

    values = []
    for run in runs:
        ordered = run.values.in_order()
        ascending = stats.Values(ordered.value, numbered(ordered.query), part=ordered.part)
        values.append(stats.Values(run.values.value, numbered(run.values.query), ascending, run.values.part))
    return values, known


def _numbers(asked: Sequence[NDArray[np.int64]]) -> tuple[int, Callable[[NDArray[np.int64]], NDArray[np.int64]]]:
    """How many different queries there are, and what numbers them from 0 on in their order."""
    last = max((int(each.max(initial=-1)) for each in asked), default=-1)
    first = min((int(each.min(initial=0)) for each in asked), default=0)
    if first < 0 or last >= _QUERIES_MAX:  # of nothing that was measured
        known = np.unique(np.concatenate(asked))
        return len(known), lambda queries: np.searchsorted(known, queries).astype(np.int64)
    seen = np.zeros(last + 1, dtype=np.bool_)
    for each in asked:
        for part in large.parts(len(each)):
            seen[each[part]] = True
    numbers = np.cumsum(seen, dtype=np.int64) - 1
    return int(np.count_nonzero(seen)), lambda queries: numbers[queries]


def _pooled(values: Sequence[stats.Values]) -> stats.Values:
    """The values of all runs as those of one."""
    value, query = large.Growing(np.float64), large.Growing(np.int64)
    for each in values:
        for part in large.parts(len(each.value)):
            value.append(each.value[part])
            query.append(each.query[part])
    return stats.Values(value.array(), query.array())


def histogram(runs: Sequence[Run]) -> dict[str, list[int]]:
    """All latencies in buckets at most 1/64 of their value wide, as HdrHistogram's: what an ECDF needs, at any size.

    `upper_ns` is the highest latency that a bucket takes, ascending; `counts` how many fell into it; empty ones are
    left out. Below 128 ns a bucket is 1 ns wide, and doubles its width whenever the value has doubled.
    """
    total: Counter[int] = Counter()
    for run in runs:
        for part in large.parts(len(run.status)):
            waited = run.latency_ns[part][run.status[part] != ERROR].astype(np.int64)
            waited = np.maximum(waited, 0)
            # Values below 2^53 are exact as float64, so that frexp gives the number of their bits.
            bits = np.frexp(waited.astype(np.float64))[1].astype(np.int64)
            width = np.left_shift(np.int64(1), np.maximum(bits - int(math.log2(_HDR_SUB_BUCKETS)), 0))
            upper, counts = np.unique((waited // width + 1) * width - 1, return_counts=True)
            total.update(dict(zip(upper.tolist(), counts.tolist(), strict=True)))
    return {"upper_ns": sorted(total), "counts": [total[upper] for upper in sorted(total)]}


# Steadiness


def steadiness(run: Run) -> dict[str, float]:
    """`steady_after_s`, the due time of the first query after the cut, and `drift`, of one run; NaN where unknown.

    The cut is that of MSER-5 (see `_mser`) over batches of five. A cut in the second half means that the run was never
    seen to settle. Batches count by their medians, not their means, as latencies have outliers that are no trend.
    `drift` is the median latency of the last quarter over that of the first, minus 1. Unknown are runs of fewer than
    40 good answers; `steady_after_s` also of those that did not settle within their first half.
    """
    kept = [large.Growing(np.int64), large.Growing(np.int64)]
    for part in large.parts(len(run.status)):
        good = run.status[part] == OK
        for target, source in zip(kept, (run.due_ns, run.latency_ns), strict=True):
            target.append(source[part][good])
    due_ns, latency_ns = large.sorted_by(*(each.array() for each in kept))
    count = len(due_ns) // _BATCH
    if count < _BATCHES_MIN:
        return {"steady_after_s": math.nan, "drift": math.nan}
    waited_ms, batches = large.empty(len(due_ns), np.float64), large.empty(count, np.float64)
    for part in large.parts(len(due_ns)):
        waited_ms[part] = latency_ns[part] / 1e6
    for part in large.parts(count):
        whole = waited_ms[part.start * _BATCH : part.stop * _BATCH].reshape(-1, _BATCH)
        batches[part] = np.median(whole, axis=1)
    quarter = len(waited_ms) // 4
    drift = float(np.float64(large.median(waited_ms[-quarter:])) / large.median(waited_ms[:quarter]) - 1)
    cut = _mser(batches)
    settled = cut <= count // 2
    after_s = 0.0 if cut == 0 else float(due_ns[cut * _BATCH] / 1e9)
    return {"steady_after_s": after_s if settled else math.nan, "drift": drift}


def _mser(batches: NDArray[np.float64]) -> int:
    """The cut of (n,) batch statistics: how many at the start to leave out. At least a quarter is always left.

    It is the one after which they have the smallest squared standard error, (sum of squared deviations) / (n - d)²
    (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997).
    """
    n = len(batches)
    last = max(1, n - n // 4)
    best, least, total, square = 0, math.inf, 0.0, 0.0
    # Sums over the rest from each cut on, from the back, and part by part.
    for part in reversed(list(large.parts(n))):
        rest = batches[part][::-1]
        totals = np.cumsum(np.concatenate([[total], rest]))[:0:-1]
        squares = np.cumsum(np.concatenate([[square], np.square(rest)]))[:0:-1]
        total, square = totals[0], squares[0]
        sizes = n - np.arange(part.start, part.stop)
        deviations = np.maximum(squares - np.square(totals) / sizes, 0.0)
        error = (deviations / np.square(sizes))[: max(0, last - part.start)]
        if len(error) and error.min() <= least:
            best, least = part.start + int(np.argmin(error)), float(error.min())
    return best
