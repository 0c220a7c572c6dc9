"""Whether a run is steady: when its latency stopped changing, and how far it drifted.

MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997): the
series is cut into batches of five, and the cut d is the one after which the batch statistic has the smallest squared
standard error, (sum of squared deviations) / (n - d)². A cut in the second half means that the run was never seen to
settle. Batches count by their medians, not their means, as latencies have outliers that are no trend.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anncestry import large
from anncestry.drive.protocol import OK
from anncestry.metrics import latency

BATCH = 5
_BATCHES_MIN = 8


def of_run(run: latency.Run) -> dict[str, float]:
    """`steady_after_s`, the due time of the first query after the cut, and `drift`, of one run; NaN where unknown.

    `drift` is the median latency of the last quarter over that of the first, minus 1. Unknown are runs of fewer than
    40 good answers; `steady_after_s` also of those that did not settle within their first half.
    """
    kept = [large.Growing(np.int64), large.Growing(np.int64)]
    for part in large.parts(len(run.status)):
        good = run.status[part] == OK
        for target, source in zip(kept, (run.due_ns, run.latency_ns), strict=True):
            target.append(source[part][good])
    due_ns, latency_ns = large.sorted_by(*(each.array() for each in kept))
    count = len(due_ns) // BATCH
    if count < _BATCHES_MIN:
        return {"steady_after_s": math.nan, "drift": math.nan}
    waited_ms, batches = large.empty(len(due_ns), np.float64), large.empty(count, np.float64)
    for part in large.parts(len(due_ns)):
        waited_ms[part] = latency_ns[part] / 1e6
    for part in large.parts(count):
        whole = waited_ms[part.start * BATCH : part.stop * BATCH].reshape(-1, BATCH)
        batches[part] = np.median(whole, axis=1)
    quarter = len(waited_ms) // 4
    drift = float(np.float64(large.median(waited_ms[-quarter:])) / large.median(waited_ms[:quarter]) - 1)
    cut = mser(batches)
    settled = cut <= count // 2
    after_s = 0.0 if cut == 0 else float(due_ns[cut * BATCH] / 1e9)
    return {"steady_after_s": after_s if settled else math.nan, "drift": drift}


def mser(batches: NDArray[np.float64]) -> int:
    """The cut of (n,) batch statistics: how many at the start to leave out. At least a quarter is always left."""
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
