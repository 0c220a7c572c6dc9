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

from anncestry.drive.protocol import OK
from anncestry.metrics import latency

BATCH = 5
_BATCHES_MIN = 8


def of_run(run: latency.Run) -> dict[str, float]:
    """`steady_after_s`, the due time of the first query after the cut, and `drift`, of one run; NaN where unknown.

    `drift` is the median latency of the last quarter over that of the first, minus 1. Unknown are runs of fewer than
    40 good answers; `steady_after_s` also of those that did not settle within their first half.
    """
    good = run.status == OK
    order = np.argsort(run.due_ns[good], kind="stable")
    due_s, waited_ms = run.due_ns[good][order] / 1e9, run.latency_ns[good][order] / 1e6
    count = len(waited_ms) // BATCH
    if count < _BATCHES_MIN:
        return {"steady_after_s": math.nan, "drift": math.nan}
    quarter = len(waited_ms) // 4
    drift = float(np.median(waited_ms[-quarter:]) / np.median(waited_ms[:quarter]) - 1)
    cut = mser(np.median(waited_ms[: count * BATCH].reshape(count, BATCH), axis=1))
    settled = cut <= count // 2
    after_s = 0.0 if cut == 0 else float(due_s[cut * BATCH])
    return {"steady_after_s": after_s if settled else math.nan, "drift": drift}


def mser(batches: NDArray[np.float64]) -> int:
    """The cut of (n,) batch statistics: how many at the start to leave out. At least a quarter is always left."""
    n = len(batches)
    sizes = n - np.arange(n)
    # Sums over the rest from each cut on, from the back.
    total = np.cumsum(batches[::-1])[::-1]
    squares = np.cumsum(np.square(batches)[::-1])[::-1]
    deviations = np.maximum(squares - np.square(total) / sizes, 0.0)
    error = deviations / np.square(sizes)
    return int(np.argmin(error[: max(1, n - n // 4)]))
