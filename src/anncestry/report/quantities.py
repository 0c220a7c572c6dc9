"""The numbers that records of each stage hold: name, unit, and where in the record each stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anncestry.metrics.resources import OF_MEMBER

PHASES = ("insert", "flush", "index", "ready")
"""The phases of a load, in the order in which they happen; `load` is the whole."""

SEARCHES = "searches"
"""Metric of what a node was sent, its name in brackets behind it."""

COUNTED = ("vectors", "dimensions", "queries", "searches")
"""Units of numbers that are exact."""

Body = Mapping[str, Any]
"""A record, as it was read; of one that is not there nothing."""

_RESOURCES = {
    "cpu_avg_pct": "% of one core",
    "cpu_peak_pct": "% of one core",
    "cpu_s": "s",
    "rss_avg_mib": "MiB",
    "rss_peak_mib": "MiB",
    "io_read_mib": "MiB",
    "io_write_mib": "MiB",
}


_CHARGED = ("charged_peak_mib", "charged_anon_peak_mib", "charged_cache_peak_mib")
"""Memory by control groups: only a server in a container or under a limit has them."""


_OF_MEMBERS = ("cpu_avg_pct", "rss_peak_mib", "io_read_mib", "io_write_mib")
"""Of these, what tells what each member of a server had of it, its name in brackets behind the metric."""


@dataclass(frozen=True)
class Metric:
    """A number's name and unit, and where in its record it stands."""

    phase: str
    name: str
    unit: str
    at: tuple[str, ...]


def _resource_metrics(phase: str) -> Iterator[Metric]:
    """The server's resources under their plain names, the client's marked as such: they are never one number."""
    for name, unit in _RESOURCES.items():
        yield Metric(phase, name, unit, ("resources", "server", phase, name))
        yield Metric(phase, f"client_{name}", unit, ("resources", "client", phase, name))
    for name in _CHARGED:
        yield Metric(phase, name, "MiB", ("resources", "server", phase, name))
    for group in ("other", "steal"):
        yield Metric(phase, f"{group}_cpu_avg_pct", "% of one core", ("resources", group, phase, "cpu_avg_pct"))


_LOAD = (
    Metric("load", "rows", "vectors", ("rows",)),
    Metric("load", "dim", "dimensions", ("dim",)),
    Metric("load", "rows_per_s", "vectors/s", ("rows_per_s",)),
    *(Metric(phase, f"{phase}_s", "s", ("times", f"{phase}_s")) for phase in (*PHASES, "load")),
    *(metric for phase in (*PHASES, "load") for metric in _resource_metrics(phase)),
    *(Metric("storage", f"storage_{part}_mib", "MiB", ("storage", f"{part}_mib")) for part in ("total", "net", "raw")),
)
_UPGRADE = (
    Metric("upgrade", "upgrade_s", "s", ("times", "upgrade_s")),
    *(
        Metric("upgrade", name, _RESOURCES[name], ("resources", "server", "upgrade", name))
        for name in ("cpu_s", "rss_peak_mib", "io_read_mib", "io_write_mib")
    ),
)
"""Of a load that is an upgrade in place, beside what it has in common with others."""
_KILL = (
    *(
        Metric("load", f"kill_{name}", "vectors", ("kill", name))
        for name in ("acknowledged", "counted", "lost_by_count", "asked", "lost_by_search")
    ),
    Metric("load", "kill_resent", "requests", ("kill", "resent")),
    Metric("load", "kill_accepting_s", "s", ("kill", "accepting_s")),
)
"""Of a load during which the server was killed, beside the others."""
_QUERY = (
    *(Metric("query", f"{p}_ms", "ms", ("summary", f"{p}_ms")) for p in ("p50", "p95", "p99", "p999", "max", "mean")),
    Metric("query", "qps", "1/s", ("summary", "qps")),
    *(Metric("query", name, "queries", ("summary", name)) for name in ("errors", "timeouts", "samples")),
    Metric("query", "fail_per_s", "1/s", ("summary", "fail_per_s")),
    Metric("query", "client_cpu_us_per_query", "µs", ("client", "cpu_us_per_query")),
    Metric("query", "client_ceiling_qps", "1/s", ("client", "ceiling", "qps")),
    Metric("query", "client_floor_ms", "ms", ("client", "ceiling", "floor_ms")),
    Metric("query", "steady_after_s", "s", ("steadiness", "steady_after_s")),
    Metric("query", "drift", "fraction", ("steadiness", "drift")),
    Metric("query", "selectivity", "fraction", ("selectivity",)),
    *(Metric("query", name, "queries", (name,)) for name in ("short_answers", "repeated_answers")),
    *_resource_metrics("query"),
)
_BATCH = (
    Metric("query", "requests_per_s", "requests/s", ("batch", "requests_per_s")),
    Metric("query", "vectors_per_s", "vectors/s", ("batch", "vectors_per_s")),
    Metric("query", "encode_us_per_request", "µs", ("batch", "encode_us_per_request")),
    Metric("query", "encode_share", "fraction", ("batch", "encode_share")),
)
"""Of workloads that say how many vectors a request has (nq); qps there is requests_per_s."""
_OPEN = (
    Metric("query", "rate_per_s", "1/s", ("spec", "workload", "rate_per_s")),
    Metric("query", "lag_p99_ms", "ms", ("open_loop", "lag_p99_ms")),
    Metric("query", "queued_p99_ms", "ms", ("open_loop", "queued_p99_ms")),
    Metric("query", "unsent", "queries", ("open_loop", "unsent")),
)
"""Of open loops only."""
_COLD = (
    Metric("query", "searchable_s", "s", ("cold", "searchable_s")),
    Metric("query", "first_ms", "ms", ("cold", "first_ms")),
    Metric("query", "resident_share", "fraction", ("cold", "resident_share")),
)
"""Of cold starts only."""
_DEVICE = {"io_read_mib": "MiB", "io_write_mib": "MiB", "io_reads": "requests", "io_writes": "requests"}


def _device_metrics(body: Body, *phases: str) -> tuple[Metric, ...]:
    """IO of the storage path's block device, of all programs; only where the topology has such a path."""
    if "storage_path" not in body:
        return ()
    return tuple(
        Metric(phase, f"device_{name}", unit, ("resources", "device", phase, name))
        for phase in phases
        for name, unit in _DEVICE.items()
    )


_SLO = (Metric("recall", "max_rate_per_s", "1/s", ("slo", "max_rate_per_s")),)
"""Of searches for a rate only."""
_FAULT = (
    Metric("query", "fault_lost", "queries", ("fault", "lost")),
    *(Metric("query", f"fault_{name}", "s", ("fault", name)) for name in ("silence_s", "recovered_s", "whole_s")),
)
_RECALL_DURING = (Metric("recall", "fault_recall_during", "fraction", ("fault", "recall_during")),)
"""Of workloads with a fault only."""
_STREAM = {
    kind: (
        Metric("query", f"stream_{kind}_rows_per_s", "1/s", ("stream", "kinds", kind, "rows_per_s")),
        *(Metric("query", f"stream_{kind}_{p}", "ms", ("stream", "kinds", kind, p)) for p in ("p50_ms", "p99_ms")),
    )
    for kind in ("insert", "delete")
}
"""Of workloads with a stream of changes only, by kind."""
_STREAM_WHOLE = (
    Metric("query", "stream_on_time", "fraction", ("stream", "on_time")),
    Metric("query", "stream_failed", "rows", ("stream", "failed")),
)
_STREAM_RECALL = (
    Metric("recall", "stream_fresh_recall", "fraction", ("stream", "fresh_recall")),
    Metric("recall", "stream_stale_share", "fraction", ("stream", "stale_share")),
)
_RECALL = (
    Metric("recall", "recall_by_id", "fraction", ("recall", "by_id")),
    Metric("recall", "recall_by_distance", "fraction", ("recall", "by_distance")),
    Metric("recall", "ndcg", "fraction", ("recall", "ndcg")),
    Metric("recall", "mrr", "fraction", ("recall", "mrr")),
    Metric("recall", "recall_zero_share", "fraction", ("distribution", "zero_share")),
    *(Metric("recall", f"recall_{p}", "fraction", ("distribution", p)) for p in ("p1", "p5", "p50")),
)


def _components(load: Body) -> Iterator[Metric]:
    """One metric for each part of the storage that the record lists; the parts differ from system to system."""
    for name in sorted(at(load, ("storage", "components")) or {}):
        yield Metric("storage", f"storage_component_mib[{name}]", "MiB", ("storage", "components", name))


def _searches(query: Body) -> Iterator[Metric]:
    """One metric for each node that counts the searches it is sent."""
    for node in sorted(at(query, ("searches",)) or {}):
        yield Metric("query", f"{SEARCHES}[{node}]", "searches", ("searches", node))


def _members(body: Body, *phases: str) -> Iterator[Metric]:
    """What each member of the server used in the phases, where there are several and they were sampled apart."""
    for group, used in sorted((body.get("resources") or {}).items()):
        if group.startswith(OF_MEMBER):
            member = group.removeprefix(OF_MEMBER)
            for phase in phases:
                for name in _OF_MEMBERS if phase in used else ():
                    yield Metric(phase, f"{name}[{member}]", _RESOURCES[name], ("resources", group, phase, name))


def of_load(body: Body) -> tuple[Metric, ...]:
    """What is expected of a load; with its record `body` also what only some loads have."""
    more: tuple[Metric, ...] = (*_components(body), *_device_metrics(body, "load"), *_members(body, "load", "upgrade"))
    more += _UPGRADE if upgraded(body) else ()
    more += _KILL if "kill" in body else ()
    return (*_LOAD, *more)


def of_query(body: Body) -> tuple[Metric, ...]:
    """What is expected of queries; with their record `body` also what only some workloads have."""
    more: tuple[Metric, ...] = _OPEN if "open_loop" in body else ()
    more += _BATCH if "batch" in body else ()
    more += _COLD if "cold" in body else ()
    more += _FAULT if "fault" in body else ()
    more += tuple(_searches(body))
    more += _device_metrics(body, "query")
    more += tuple(_members(body, "query"))
    if "stream" in body:
        kinds = body["stream"]["kinds"]
        more += (*(metric for kind in _STREAM if kind in kinds for metric in _STREAM[kind]), *_STREAM_WHOLE)
    return (*_QUERY, *more)


def of_recall(body: Body) -> tuple[Metric, ...]:
    """What is expected of recall; with its record `body` also what only some workloads have."""
    more: tuple[Metric, ...] = _SLO if "slo" in body else ()
    more += _RECALL_DURING if "fault" in body else ()
    more += _STREAM_RECALL if "stream" in body else ()
    return (*_RECALL, *more)


def upgraded(body: Body) -> bool:
    """Whether this is the record of a load into which nothing was inserted: another one's data, opened in place."""
    return "upgrade_of" in body.get("spec", {})


def at(body: Body, steps: Iterable[str]) -> Any:
    """What stands in a record under these names, one within the other; None if nothing does."""
    value: Any = body
    for step in steps:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value
