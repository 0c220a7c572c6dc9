"""Latency and throughput of a run, and their summary over runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.drive.protocol import ERROR, OK, TIMEOUT

QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}


@dataclass(frozen=True)
class Run:
    """Samples of one run, each array (n,): nanoseconds relative to the clock's zero, and status.

    `duration_s` is the window of a run by time, None for a run by count.
    """

    due_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    status: NDArray[np.integer[Any]]
    duration_s: float | None = None

    @property
    def window_s(self) -> float:
        """What throughput is divided by: the asked time, or the time until the last answer of a run by count."""
        if self.duration_s is not None:
            return self.duration_s
        return float((self.due_ns + self.latency_ns).max() / 1e9) if len(self.due_ns) else math.nan


def quantile(values: NDArray[Any], q: float) -> float:
    """Nearest-rank quantile (inverted distribution function): always a value that was observed. NaN for no values."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else math.nan


def of_run(run: Run) -> dict[str, float]:
    """Latency (ms), throughput and failures of one run.

    A request that ran into its deadline counts with the time it waited; one that failed otherwise has no latency.
    Throughput counts good answers that ended within the window: what was still under way then is latency, not QPS.
    """
    waited = run.latency_ns[run.status != ERROR] / 1e6
    good = run.status == OK
    window_s = run.window_s
    in_time = good & ((run.due_ns + run.latency_ns) <= window_s * 1e9) if run.duration_s is not None else good
    failed = int((run.status != OK).sum())
    return {
        **{name: quantile(waited, q) for name, q in QUANTILES.items()},
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
    """Every metric of `of_run` over all runs; samples, errors and timeouts are totals."""
    each = [of_run(run) for run in runs]
    summary: dict[str, dict[str, Any]] = {}
    for name in each[0]:
        summary[name] = over_runs([run[name] for run in each])
        if name in ("samples", "errors", "timeouts"):
            summary[name].update(value=int(sum(run[name] for run in each)), std=None)
    return summary
