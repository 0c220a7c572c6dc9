"""Latency and throughput of a run, and their summary over runs.

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
from numpy.typing import DTypeLike, NDArray

from anncestry import large
from anncestry.drive.protocol import ERROR, OK, TIMEOUT
from anncestry.metrics import stats

QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
P999 = 0.999
_TAIL_MIN = 10  # samples beyond a pooled quantile without which its interval says nothing
_HDR_SUB_BUCKETS = 128  # a bucket is at most 1/64 of its value wide: two significant digits
_QUERIES_MAX = 1 << 26  # numbers of queries up to which they are looked up in a table

TOTALS = ("samples", "errors", "timeouts")
RATES = ("qps", "fail_per_s")
POOLED = ("p999_ms", "max_ms")


@dataclass(frozen=True)
class Run:
    """Samples of one run, each array (n,): nanoseconds relative to the clock's zero, and status.

    `duration_s` is the window of a run by time, None for a run by count. `query` (n,) is which query was asked; where
    it is not known every sample counts as a query of its own.
    """

    due_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    status: NDArray[np.integer[Any]]
    duration_s: float | None = None
    query: NDArray[np.integer[Any]] | None = None

    @property
    def window_s(self) -> float:
        """What throughput is divided by: the asked time, or the time until the last answer of a run by count."""
        if self.duration_s is not None:
            return self.duration_s
        last = [int((self.due_ns[part] + self.latency_ns[part]).max()) for part in large.parts(len(self.due_ns))]
        return float(max(last) / 1e9) if last else math.nan

    @cached_property
    def waited_ms(self) -> NDArray[np.float64]:
        """Latencies that count: those of good answers, and of timeouts the time they waited."""
        return self._counted(lambda part: self.latency_ns[part] / 1e6, np.float64)

    @cached_property
    def asked(self) -> NDArray[np.int64]:
        """The query of each of those; which sample it is, where queries are not known."""
        query = self.query
        if query is None:
            return self._counted(lambda part: np.arange(part.start, part.stop), np.int64)
        return self._counted(lambda part: query[part], np.int64)

    @cached_property
    def ascending(self) -> stats.Values:
        """Both, in ascending order of `waited_ms`."""
        value, query = large.sorted_by(self.waited_ms, self.asked)
        return stats.Values(value, query)

    def _counted(self, of: Callable[[slice], NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
        found = large.Growing(dtype)
        for part in large.parts(len(self.status)):
            found.append(of(part)[self.status[part] != ERROR])
        return found.array()

    def ends_s(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.integer[Any]]]]:
        """When answers came, and their status, part by part."""
        for part in large.parts(len(self.due_ns)):
            yield (self.due_ns[part] + self.latency_ns[part]) / 1e9, self.status[part]


def quantile(values: NDArray[Any], q: float) -> float:
    """Nearest-rank quantile (inverted distribution function): always a value that was observed. NaN for no values."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else math.nan


def _quantile(ascending: NDArray[Any], q: float) -> float:
    """`quantile` of what is in order already."""
    return float(ascending[large.rank(len(ascending), q)]) if len(ascending) else math.nan


def quantile_of_counts(values: Sequence[float], counts: Sequence[int], q: float) -> float:
    """`quantile` of observations of which each of `values`, ascending, was seen so many times; NaN for none."""
    seen = np.cumsum(counts)
    if not len(seen):
        return math.nan
    return float(values[int(np.searchsorted(seen, large.rank(int(seen[-1]), q), side="right"))])


def of_run(run: Run) -> dict[str, float]:
    """Latency (ms), throughput and failures of one run.

    A request that ran into its deadline counts with the time it waited; one that failed otherwise has no latency.
    Throughput counts good answers that ended within the window: what was still under way then is latency, not QPS.
    """
    ascending = run.ascending.value
    window_s = run.window_s
    in_time, seen = 0, dict.fromkeys((OK, ERROR, TIMEOUT), 0)
    for part in large.parts(len(run.status)):
        status = run.status[part]
        for kind in seen:
            seen[kind] += int((status == kind).sum())
        if run.duration_s is not None:
            ends_ns = run.due_ns[part] + run.latency_ns[part]
            in_time += int(((status == OK) & (ends_ns <= window_s * 1e9)).sum())
    if run.duration_s is None:
        in_time = seen[OK]
    failed = len(run.status) - seen[OK]
    return {
        **{name: _quantile(ascending, q) for name, q in QUANTILES.items()},
        "p999_ms": _quantile(ascending, P999),
        "max_ms": float(ascending[-1]) if len(ascending) else math.nan,
        "mean_ms": float(run.waited_ms.mean()) if len(ascending) else math.nan,
        "qps": float(in_time / window_s) if window_s else math.nan,
        "samples": len(run.status),
        "errors": seen[ERROR],
        "timeouts": seen[TIMEOUT],
        "fail_per_s": failed / window_s if window_s else math.nan,
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
    summary: dict[str, dict[str, Any]] = {}
    for name in each[0]:
        summary[name] = over_runs([run[name] for run in each])
    values, queries = _values(runs)
    pooled = _pooled(values)
    for name in TOTALS:
        summary[name].update(value=int(sum(run[name] for run in each)), std=None)
        waited = pooled.in_order().value
    for name, value in (
        ("p999_ms", _quantile(waited, P999)),
        ("max_ms", float(waited[-1]) if len(waited) else -math.inf),
    ):
        summary[name].update(value=value if math.isfinite(value) else None, std=None)
    windows = [run.window_s for run in runs]
    whole = sum(windows)
    for name in RATES:
        if summary[name]["value"] is not None and whole > 0:
            rates = [run[name] for run in each]
            summary[name]["value"] = float(sum(r * w for r, w in zip(rates, windows, strict=True)) / whole)
    for name, found in _intervals(runs, values, queries, pooled, windows).items():
        if summary[name]["value"] is not None:
            summary[name].update(found.facts())
    return summary


def _intervals(
    runs: Sequence[Run], values: Sequence[stats.Values], queries: int, pooled: stats.Values, windows: Sequence[float]
) -> Mapping[str, stats.Interval]:
    found = {name: stats.quantile_interval(values, queries, q) for name, q in QUANTILES.items()}
    found["mean_ms"] = stats.mean_interval(values, queries)
    tail = len(pooled.value) * (1 - P999)
    found["p999_ms"] = (
        stats.quantile_interval([pooled], queries, P999)
        if tail >= _TAIL_MIN
        else stats.unknown(f"{tail:.1f} samples beyond it, {_TAIL_MIN} wanted")
    )
    found["max_ms"] = stats.unknown("of a maximum nothing bounds the next")
    for name, wanted in (("qps", True), ("fail_per_s", False)):
        counts = [_in_parts(run, window, wanted) for run, window in zip(runs, windows, strict=True)]
        found[name] = stats.rate_interval(counts, windows)
    return {name: stats.clipped(interval, low=0.0) for name, interval in found.items()}


def _in_parts(run: Run, window_s: float, wanted: bool) -> NDArray[np.int64]:
    """How many good answers (or failures) fell into each part of the run's time."""
    if not wanted:  # a failure after the window is still a failure of it
        window_s = max(window_s, *(float(ends_s.max()) for ends_s, _ in run.ends_s()), 0.0)
    counts = stats.in_parts(np.empty(0), window_s)
    for ends_s, status in run.ends_s():
        counts += stats.in_parts(ends_s[(status == OK) == wanted], window_s)
    return counts


def _values(runs: Sequence[Run]) -> tuple[list[stats.Values], int]:
    """Latencies with their queries as numbers from 0 on, and how many queries there are."""
    known, numbers_of = _numbers([run.asked for run in runs])

    def numbered(asked: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers = large.empty(len(asked), np.int64)
        for part in large.parts(len(asked)):
            numbers[part] = numbers_of(asked[part])
        return numbers

    return [
        stats.Values(
            run.waited_ms,
            numbered(run.asked),
            stats.Values(run.ascending.value, numbered(run.ascending.query)),
        )
        for run in runs
    ], known


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
    """All latencies as buckets of two significant digits, as HdrHistogram's: what an ECDF needs, at any size.

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
