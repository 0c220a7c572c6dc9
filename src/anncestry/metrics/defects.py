"""What is wrong with answers that can be trusted to be the system's own: short, empty, repeating, violating, failed.

Recall charges these rows, and the share of such answers stands beside every number of their cell (docs/gates.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry import large
from anncestry.datasets.distance import Bools, Ids
from anncestry.drive.client import OK
from anncestry.metrics.latency import Run, over_runs
from anncestry.metrics.stats import wilson

BITS = {"short": 1, "empty": 2, "repeated": 4, "violating": 8}
"""Of `defect` in the samples. Short: fewer different rows than there are to find; empty: none of them; repeated: a row
twice; violating: a row that the filter excludes."""
MARKED_SHARE = 0.001
"""Above this share of defective answers, a cell is no winner, and no point at equal recall."""
HEADLINE_SHARE = 0.05
"""Above this share, headlines show the share in the place of the number."""
_INTERVAL = "95 %, Wilson's, of the different queries"


def of_answers(ids: Ids, wanted: int | Ids, violating: Bools | None = None) -> NDArray[np.uint8]:
    """The `BITS` of answers with `ids` (n, k), -1 pads, of which each should hold `wanted` different ones; (n,)."""
    ordered = np.sort(ids, axis=1)
    held = ordered >= 0
    again = np.zeros_like(held)
    again[:, 1:] = held[:, 1:] & (ordered[:, 1:] == ordered[:, :-1])
    different = (held & ~again).sum(axis=1)
    bits = BITS["short"] * (different < wanted) + BITS["empty"] * ((different == 0) & (np.asarray(wanted) > 0))
    bits += BITS["repeated"] * again.any(axis=1)
    if violating is not None:
        bits += BITS["violating"] * violating
    found: NDArray[np.uint8] = bits.astype(np.uint8)
    return found


def summarise(runs: Sequence[Run]) -> dict[str, Any] | None:
    """How many requests of all runs were answered with each defect, and their `share`; None for samples without bits.

    An answer may have several defects; the share counts it once. Its interval is Wilson's (1927), with as many
    observations as different queries were asked: a query that is answered short is answered so in every run.
    """
    if any(run.defect is None for run in runs):
        return None
    counts = dict.fromkeys(("answers", *BITS, "failed"), 0)
    shares, defective = [], 0
    asked_of: set[int] = set()
    unknown = 0
    for run in runs:
        of_run = 0
        for part in large.parts(len(run.status)):
            bits, failed = run.defect[part], run.status[part] != OK  # type: ignore[index]
            for name, bit in BITS.items():
                counts[name] += int(((bits & bit) > 0).sum())
            counts["failed"] += int(failed.sum())
            of_run += int(((bits > 0) | failed).sum())
        asked = len(run.status)
        counts["answers"] += asked
        defective += of_run
        shares.append(of_run / asked if asked else math.nan)
        if run.query is None:
            unknown = max(unknown, asked)
        else:
            asked_of.update(np.unique(run.query).tolist())
    queries = max(unknown, len(asked_of))
    share = {**over_runs(shares), "value": defective / counts["answers"] if counts["answers"] else None}
    if queries:
        low, high = wilson(share["value"], queries)
        # Rounding must not leave a share of 0 or 1 outside.
        share |= {"low": max(low, 0.0), "high": max(min(high, 1.0), share["value"]), "interval": _INTERVAL}
    return {**counts, "share": share}


def words(defects: Mapping[str, Any]) -> str:
    """What a reader must know beside each number of the cell; empty where no answer has a defect."""
    share = defects["share"]
    if not share["value"]:
        return ""
    kinds = ", ".join(f"{defects[name]:,} {name}" for name in (*BITS, "failed") if defects[name])
    return (
        f"{percent(share['value'])} of answers have a defect ({percent(share['low'])} to {percent(share['high'])}): "
        f"{kinds}, of {defects['answers']:,}"
    )


def percent(share: float) -> str:
    """A share in percent, with the digits that count."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.4g} %"
