"""Latency and throughput of a run, and their summary over runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.drive.protocol import ERROR, OK, TIMEOUT
from anncestry.metrics import stats

QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
P999 = 0.999
_TAIL_MIN = 10  # samples beyond a pooled quantile without which its interval says nothing
_HDR_SUB_BUCKETS = 128  # a bucket is at most 1/64 of its value wide: two significant digits

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
        return float((self.due_ns + self.latency_ns).max() / 1e9) if len(self.due_ns) else math.nan

    @property
    def waited_ms(self) -> NDArray[np.float64]:
        """Latencies that count: those of good answers, and of timeouts the time they waited."""
        waited: NDArray[np.float64] = self.latency_ns[self.status != ERROR] / 1e6
        return waited


def quantile(values: NDArray[Any], q: float) -> float:
    """Nearest-rank quantile (inverted distribution function): always a value that was observed. NaN for no values."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else math.nan


def quantile_of_counts(values: Sequence[float], counts: Sequence[int], q: float) -> float:
    """`quantile` of observations of which each of `values`, ascending, was seen so many times; NaN for none."""
    seen = np.cumsum(counts)
    if not len(seen):
        return math.nan
    rank = max(math.ceil(int(seen[-1]) * q - 1), 0)  # counted from 0, as numpy finds it
    return float(values[int(np.searchsorted(seen, rank, side="right"))])


def of_run(run: Run) -> dict[str, float]:
    """Latency (ms), throughput and failures of one run.

    A request that ran into its deadline counts with the time it waited; one that failed otherwise has no latency.
    Throughput counts good answers that ended within the window: what was still under way then is latency, not QPS.
    """
    waited = run.waited_ms
    good = run.status == OK
    window_s = run.window_s
    in_time = good & ((run.due_ns + run.latency_ns) <= window_s * 1e9) if run.duration_s is not None else good
    failed = int((run.status != OK).sum())
    return {
        **{name: quantile(waited, q) for name, q in QUANTILES.items()},
        "p999_ms": quantile(waited, P999),
        "max_ms": float(waited.max()) if len(waited) else math.nan,
        "mean_ms": float(waited.mean()) if len(waited) else math.nan,
        "qps": float(in_time.sum() / window_s) if window_s else math.nan,
        "samples": len(run.status),
        "errors": int((run.status == ERROR).sum()),
        "timeouts": int((run.status == TIMEOUT).sum()),
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
    waited = np.concatenate([run.waited_ms for run in runs])
    for name in TOTALS:
        summary[name].update(value=int(sum(run[name] for run in each)), std=None)
    for name, value in (("p999_ms", quantile(waited, P999)), ("max_ms", float(waited.max(initial=-math.inf)))):
        summary[name].update(value=value if math.isfinite(value) else None, std=None)
    windows = [run.window_s for run in runs]
    whole = sum(windows)
    for name in RATES:
        if summary[name]["value"] is not None and whole > 0:
            rates = [run[name] for run in each]
            summary[name]["value"] = float(sum(r * w for r, w in zip(rates, windows, strict=True)) / whole)
    for name, found in _intervals(runs, waited, windows).items():
        if summary[name]["value"] is not None:
            summary[name].update(found.facts())
    return summary


def _intervals(
    runs: Sequence[Run], waited: NDArray[np.float64], windows: Sequence[float]
) -> Mapping[str, stats.Interval]:
    values, queries = _values(runs)
    found = {name: stats.quantile_interval(values, queries, q) for name, q in QUANTILES.items()}
    found["mean_ms"] = stats.mean_interval(values, queries)
    tail = len(waited) * (1 - P999)
    pooled = [stats.Values(np.concatenate([v.value for v in values]), np.concatenate([v.query for v in values]))]
    found["p999_ms"] = (
        stats.quantile_interval(pooled, queries, P999)
        if tail >= _TAIL_MIN
        else stats.unknown(f"{tail:.1f} samples beyond it, {_TAIL_MIN} wanted")
    )
    found["max_ms"] = stats.unknown("of a maximum nothing bounds the next")
    for name, wanted in (("qps", True), ("fail_per_s", False)):
        counts = [
            stats.in_parts(
                ((run.due_ns + run.latency_ns) / 1e9)[(run.status == OK) == wanted],
                # A failure after the window is still a failure of it.
                window if wanted else max(window, float(((run.due_ns + run.latency_ns) / 1e9).max(initial=0.0))),
            )
            for run, window in zip(runs, windows, strict=True)
        ]
        found[name] = stats.rate_interval(counts, windows)
    return {name: stats.clipped(interval, low=0.0) for name, interval in found.items()}


def _values(runs: Sequence[Run]) -> tuple[list[stats.Values], int]:
    """Latencies with their queries as numbers from 0 on, and how many queries there are."""
    kept = [run.status != ERROR for run in runs]
    if all(run.query is not None for run in runs):
        asked = [np.asarray(run.query)[keep] for run, keep in zip(runs, kept, strict=True)]
    else:
        asked = [np.flatnonzero(keep) for keep in kept]
    known, numbers = np.unique(np.concatenate(asked), return_inverse=True)
    ends = np.cumsum([len(part) for part in asked])[:-1]
    parts = np.split(numbers.reshape(-1).astype(np.int64), ends)
    return [stats.Values(run.waited_ms, part) for run, part in zip(runs, parts, strict=True)], len(known)


def histogram(runs: Sequence[Run]) -> dict[str, list[int]]:
    """All latencies as buckets of two significant digits, as HdrHistogram's: what an ECDF needs, at any size.

    `upper_ns` is the highest latency that a bucket takes, ascending; `counts` how many fell into it; empty ones are
    left out. Below 128 ns a bucket is 1 ns wide, and doubles its width whenever the value has doubled.
    """
    waited: NDArray[np.int64] = np.concatenate([run.latency_ns[run.status != ERROR] for run in runs]).astype(np.int64)
    waited = np.maximum(waited, 0)
    # Values below 2^53 are exact as float64, so that frexp gives the number of their bits.
    bits = np.frexp(waited.astype(np.float64))[1].astype(np.int64)
    width = np.left_shift(np.int64(1), np.maximum(bits - int(math.log2(_HDR_SUB_BUCKETS)), 0))
    upper, counts = np.unique((waited // width + 1) * width - 1, return_counts=True)
    return {"upper_ns": [int(value) for value in upper], "counts": [int(count) for count in counts]}
