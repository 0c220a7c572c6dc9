"""Open loops at a rate, and the search for the highest rate within a bound (a workload's `loop: open`, `slo`)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

from anncestry.cells.features import Body, Feature, Metric, TableSpec, at
from anncestry.errors import ConfigError

ARRIVALS = "poisson"
PRECISION = 0.05
MAX_PROBES = 16
_ARRIVALS_MIN = 20
_LIMITS = {
    "client_bound": "bound by the client in run",
    "bound_by_probes": "a lower limit, no rate failed in run",
    "unsettled": "out of probes before the two rates were within the precision in run",
}


class Rate(Feature):
    keys = ("loop", "rate_per_s", "arrivals", "slo")
    apart = ("rate_per_s", "max_rate_per_s")
    absent = MappingProxyType({"rate_per_s": "searched for"})
    metrics = (
        Metric("query", "rate_per_s", "1/s", ("spec", "workload", "rate_per_s")),
        Metric("query", "lag_p99_ms", "ms", ("open_loop", "lag_p99_ms")),
        Metric("query", "queued_p99_ms", "ms", ("open_loop", "queued_p99_ms"), -1),
        Metric("query", "unsent", "queries", ("open_loop", "unsent"), -1),
        Metric("recall", "max_rate_per_s", "1/s", ("slo", "max_rate_per_s"), +1),
    )

    table = TableSpec(
        "OL",
        "At a rate of requests",
        "Open loop: requests are due at instants that don't depend on earlier answers, and latency counts from there."
        " Highest rate: the greatest that meets the workload's targets of p99 and recall, found by search; the other"
        " numbers are those at this rate. Queued: the wait for a free connection, which the system causes. Not sent:"
        " requests for which no connection was free within their time.",
        {
            "rate_per_s": ("Rate asked", "1/s"),
            "max_rate_per_s": ("Highest rate", "1/s"),
            "qps": ("Answered", "1/s"),
            "p50_ms": ("p50", "ms"),
            "p99_ms": ("p99", "ms"),
            "queued_p99_ms": ("Queued, p99", "ms"),
            "unsent": ("Not sent", "queries"),
            "recall_by_distance": ("Recall by distance", "fraction"),
        },
        having="lag_p99_ms",
    )
    rank = 2

    def is_in(self, workload: Mapping[str, Any]) -> bool:
        return workload.get("loop") == "open"

    def complete(self, workload: MutableMapping[str, Any], where: str) -> None:
        slo, is_open = workload.get("slo"), self.is_in(workload)
        if slo is not None:
            if "rate_per_s" in workload:
                raise ConfigError(f"{where}.rate_per_s: unsupported with slo, which searches for the rate")
            if not is_open:
                raise ConfigError(f"{where}.slo: needs loop: open (a closed loop slows down with the system)")
            workload["slo"] = {"precision": PRECISION, "max_probes": MAX_PROBES, **slo}
        if not is_open:
            for key in ("rate_per_s", "arrivals"):
                if key in workload:
                    raise ConfigError(f"{where}.{key}: needs loop: open")
            return
        if "duration_s" not in workload:
            raise ConfigError(f"{where}: loop: open needs duration_s")
        workload.setdefault("arrivals", ARRIVALS)
        if slo is None:
            self._check_rate(workload, where)
        else:
            self._check_bound(workload["slo"], workload["duration_s"], where)

    @staticmethod
    def _check_bound(slo: Mapping[str, Any], duration_s: float, where: str) -> None:
        """A system that falls behind by a share of the rate is late by that share of the probe when the probe ends."""
        least_s = slo["p99_ms"] / 1e3 / slo["precision"]
        if duration_s < least_s:
            raise ConfigError(
                f"{where}.slo.p99_ms: {slo['p99_ms']:g} ms is too long for probes of {duration_s:g} s: a system that "
                f"falls behind by {slo['precision']:.1%} would pass, as its queue is not that long when a probe ends; "
                f"set duration_s to {least_s:g} or more"
            )

    @staticmethod
    def _check_rate(workload: Mapping[str, Any], where: str) -> None:
        if "rate_per_s" not in workload:
            raise ConfigError(f"{where}: loop: open needs rate_per_s, or slo")
        expected = workload["rate_per_s"] * workload["duration_s"]
        if expected < _ARRIVALS_MIN:
            raise ConfigError(
                f"{where}: {workload['rate_per_s']:g} a second for {workload['duration_s']:g} s are about "
                f"{expected:.0f} requests; percentiles need at least {_ARRIVALS_MIN}"
            )

    def metrics_of(self, phase: str, body: Body) -> list[Metric]:
        part = "open_loop" if phase == "query" else "slo"
        return [metric for metric in self.metrics if metric.phase == phase] if part in body else []

    def note(self, metric: Metric, body: Body) -> str:
        if metric.name == "max_rate_per_s":
            runs = {words: at(body, ("slo", name)) for name, words in _LIMITS.items()}
            return "; ".join(f"{words} {', '.join(map(str, of))}" for words, of in runs.items() if of)
        late = metric.phase == "query" and at(body, ("open_loop", "schedule_kept")) is False
        return str(at(body, ("open_loop", "detail"))) if late else ""


FEATURE = Rate()
