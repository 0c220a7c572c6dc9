"""Capacity: the highest rate of an open loop at which a system keeps a promise on its latency, found by search.

A probe is an open loop at one rate. It passes if no request failed and the p99 from the due time is within the bound:
the client's own delay is in that latency, so a probe that passes has kept the promise whatever the client did, and one
that does not, while the client was late by a good part of the bound, is the client's limit and said to be that. The
search starts below what a closed loop reached, widens until one rate has passed and one has not, and bisects (by the
geometric mean) until they are within the asked precision of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anncestry.drive.client import OK
from anncestry.metrics import latency

LAG_MAX_MS = 1.0
"""A client whose own delay (p99) is above this did not keep its schedule (its latencies tell so, too)."""
LAG_SHARE_MAX = 0.25
"""Above this part of the bound, the client's own delay (p99) may be what a probe failed by."""
SAMPLES_MIN = 100
"""Requests that a probe needs on average: of fewer there is no 99th percentile."""
_FIRST = 0.7
_WIDER = 1.3


@dataclass(frozen=True)
class Probe:
    """What one rate showed. `rate_per_s` None: the closed loop that the search starts from, which passes nothing."""

    number: int
    rate_per_s: float | None
    sent: int
    failed: int
    p99_ms: float | None
    lag_p99_ms: float | None
    passed: bool
    client_late: bool
    reason: str


def judge(number: int, rate_per_s: float | None, run: latency.Run, lag_p99_ms: float | None, bound_ms: float) -> Probe:
    """Whether the samples of one probe keep p99 ≤ `bound_ms` without failures; in words why not."""
    facts = latency.of_run(run)
    failed = int(np.count_nonzero(run.status != OK))
    p99_ms = facts["p99_ms"] if math.isfinite(facts["p99_ms"]) else None
    reason = ""
    if rate_per_s is None:
        reason = "closed loop, to start from"
    elif failed:
        reason = f"{failed} of {len(run.status)} requests failed"
    elif p99_ms is None or p99_ms > bound_ms:
        reason = f"p99 {'none' if p99_ms is None else f'{p99_ms:.2f} ms'}, above {bound_ms:g} ms"
    late = bool(reason) and not failed and lag_p99_ms is not None and lag_p99_ms > LAG_SHARE_MAX * bound_ms
    if rate_per_s is not None and late:
        reason += f", but the client itself was {lag_p99_ms:.2f} ms late (p99)"
    client_late = rate_per_s is not None and late
    return Probe(number, rate_per_s, len(run.status), failed, p99_ms, lag_p99_ms, not reason, client_late, reason)


def search(
    probe: Callable[[float], bool], estimate_per_s: float, precision: float, max_probes: int, lowest_per_s: float = 1.0
) -> None:
    """Call `probe` with rates until one that passed and one that did not are within `precision`, or probes run out.

    No rate below `lowest_per_s` is tried.
    """
    low: float | None = None
    high: float | None = None
    rate = max(lowest_per_s, _FIRST * estimate_per_s)
    for _ in range(max_probes):
        low, high = (rate, high) if probe(rate) else (low, rate)
        if low is not None and high is not None:
            if high / low <= 1 + precision:
                return
            rate = math.sqrt(low * high)
        elif high is not None:
            if high <= lowest_per_s:
                return
            rate = max(lowest_per_s, high / 2)
        else:
            rate *= _WIDER


def _rated(probes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [probe for probe in probes if probe["rate_per_s"] is not None]


def accepted(probes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The probe of the highest rate that passed and has no failed probe of a lower rate; None if there is none."""
    best = None
    for probe in sorted(_rated(probes), key=lambda probe: probe["rate_per_s"]):
        if not probe["passed"]:
            break
        best = probe
    return best


def bracket(probes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The probe of the lowest rate that did not pass, None if all did."""
    failed = [probe for probe in _rated(probes) if not probe["passed"]]
    return min(failed, key=lambda probe: probe["rate_per_s"], default=None)


def best_of(probes: Sequence[Mapping[str, Any]]) -> str:
    """In words, how near the bound the best probe came, where none passed."""
    rated = _rated(probes)
    if not rated:
        return "no rate was tried"
    nearest = min(rated, key=lambda p: (p["failed"], math.inf if p["p99_ms"] is None else p["p99_ms"]))
    return f"the best was at {nearest['rate_per_s']:.0f} a second: {nearest['reason']}"


def verdict(
    slo: Mapping[str, Any], runs: Sequence[Sequence[Mapping[str, Any]]], recalls: Sequence[float | None]
) -> dict[str, Any]:
    """`max_rate_per_s` over runs, of the rates at which p99 and recall are kept; null with the `reason` otherwise.

    `runs` are the probes of each run, `recalls` the recall (by id) of the answers at each run's accepted rate.
    The true limit is higher in the runs (from 1) that are `bound_by_probes` (no rate failed) and `client_bound` (the
    first rate that failed may have done so by the client's own delay). It may be higher by more than the precision in
    those that are `unsettled`: their probes ran out.
    """
    rates: list[float] = []
    reasons: list[str] = []
    wanted = slo.get("recall")
    for number, (probes, recall) in enumerate(zip(runs, recalls, strict=True), start=1):
        best = accepted(probes)
        rate = math.nan
        if best is None:
            reasons.append(f"run {number}: no rate kept p99 ≤ {slo['p99_ms']:g} ms; {best_of(probes)}")
        elif wanted is not None and (recall is None or not recall >= wanted):
            shown = "unknown" if recall is None else f"{recall:.4f}"
            reasons.append(f"run {number}: recall {shown} at {best['rate_per_s']:.0f} a second, below {wanted:g}")
        else:
            rate = float(best["rate_per_s"])
        rates.append(rate)
    ends = {number: bracket(probes) for number, probes in enumerate(runs, start=1)}
    return {
        "max_rate_per_s": latency.over_runs(rates),
        "reason": "; ".join(reasons),
        "bound_by_probes": [number for number, end in ends.items() if end is None],
        "client_bound": [number for number, end in ends.items() if end is not None and end["client_late"]],
        "unsettled": [
            number
            for number, (probes, end) in enumerate(zip(runs, ends.values(), strict=True), start=1)
            if end is not None and _apart(accepted(probes), end) > 1 + slo["precision"]
        ],
    }


def _apart(best: Mapping[str, Any] | None, end: Mapping[str, Any]) -> float:
    """How many times the highest rate that passed the lowest one is that did not; 1 where none passed."""
    return 1.0 if best is None else float(end["rate_per_s"] / best["rate_per_s"])
