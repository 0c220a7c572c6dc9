"""What follows from a record and stands in none: rates of a load, the cost of queries, the recall of the hardest ones.

It is made when the table is: records of earlier versions have it too, and `verify` makes it again with the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from anncestry.cells.features import at
from anncestry.metrics import robust, special
from anncestry.metrics.stats import CONFIDENCE, Interval, unknown

OVER_LOGS = "95 %, Student's t of the logarithms over runs"
COST = "server_cpu_s_per_million"
"""CPU-seconds of the server for a million answered queries."""


def added(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record with what follows from it."""
    made = {"load": _rates, "query": _cost, "recall": _hardest}.get(str(body.get("stage")))
    return {**body, **made(body)} if made else body


def _rates(load: Mapping[str, Any]) -> dict[str, Any]:
    rows, load_s = load.get("rows"), at(load, ("times", "load_s"))
    cpu_s = at(load, ("resources", "server", "load", "cpu_s"))
    if not rows or not load_s:
        return {}
    per_row = {} if cpu_s is None else {"server_cpu_us_per_row": 1e6 * cpu_s / rows}
    return {"rows_per_s": rows / load_s, **per_row}


def _cost(query: Mapping[str, Any]) -> dict[str, Any]:
    """The microseconds of a query are the seconds of a million: with an interval, which runs have together."""
    of_query = query.get("server_cpu_us_per_query")
    if not isinstance(of_query, Mapping) or of_query.get("value") is None:
        return {}
    runs = [value for value in of_query.get("runs") or () if value is not None]
    return {COST: {**of_query, **mean_of_logs(runs).facts()}}


def mean_of_logs(values: Sequence[float]) -> Interval:
    """The interval of a mean over runs of a number above zero, by Student's t of the logarithms."""
    if len(values) < 2:
        return unknown("one run, and what differs from run to run is not in it")
    if min(values) <= 0:
        return unknown("a run without a measurable cost")
    logs = [math.log(value) for value in values]
    half = float(special.stdtrit(len(logs) - 1, 0.5 + CONFIDENCE / 2)) * stdev(logs) / math.sqrt(len(logs))
    middle = mean(values)  # above the mean of the logarithms, though hardly: it stays within the bounds
    low, high = (math.exp(mean(logs) + sign * half) for sign in (-1, 1))
    return Interval(min(low, middle), max(high, middle), OVER_LOGS)


def _hardest(recall: Mapping[str, Any]) -> dict[str, Any]:
    """By the recall by distance, as at equal recall: a row as near as the k-th is no miss."""
    return {"hardest": robust.facts(at(recall, ("by_query", "by_distance")) or ())}
