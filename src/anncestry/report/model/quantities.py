"""The numbers that records of each stage hold: name, unit, and where in the record each stands; or why it is absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anncestry.cells import features
from anncestry.cells.features import Body, Metric, at
from anncestry.metrics import duet, robust
from anncestry.metrics.defects import BITS
from anncestry.metrics.latency import FAILED
from anncestry.metrics.resources import OF_MEMBER
from anncestry.report.model.derived import COST

STAGES = ("load", "query", "recall", "pair")
"""The stages whose records hold the numbers."""


def stage_of(phase: str) -> str:
    """The stage of the record that holds the numbers of a phase."""
    return phase if phase in STAGES else "load"


HIGHEST_RATE = "max_rate_per_s"
"""The rate that a search found, in the record of recall. (`qps` of such a cell is what was answered at this rate.)"""
PHASES = ("insert", "flush", "index", "ready")
"""The phases of a load, in the order in which they happen; `load` is the whole."""

SEARCHES = "searches"
"""Metric of what a node was sent, its name in brackets behind it."""

SERVER_CPU = ("server_cpu_us_per_query", "server_cpu_us_per_row", COST)
"""Processor time of the server for an answered query (a million of them), and for a row until it is searchable."""

HARDEST = (*map(robust.name_of, robust.DELTAS), "recall_worst1")
"""Robustness-δ@K, and the recall of the worst 1 % of queries."""

COUNTED = ("vectors", "dimensions", "queries", "searches")
"""Units of numbers that are exact."""

DISTURBED = ("s", "ms", "1/s", "vectors/s", "requests/s")
"""Units of numbers that others disturb: times and rates."""

_RESOURCES = {
    "cpu_avg_pct": "% of one core",
    "cpu_peak_pct": "% of one core",
    "cpu_s": "s",
    "rss_avg_mib": "MiB",
    "rss_peak_mib": "MiB",
    "pss_mib": "MiB",
    "pss_anon_mib": "MiB",
    "io_read_mib": "MiB",
    "io_write_mib": "MiB",
}


_CHARGED = ("charged_peak_mib", "charged_anon_peak_mib", "charged_cache_peak_mib")
"""Memory by control groups: only a server in a container or under a limit has them."""


_OF_MEMBERS = ("cpu_avg_pct", "rss_peak_mib", "io_read_mib", "io_write_mib")
"""Of these, what tells what each member of a server had of it, its name in brackets behind the metric."""


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
    Metric("load", "server_cpu_us_per_row", "µs", ("server_cpu_us_per_row",)),
    *(Metric(phase, f"{phase}_s", "s", ("times", f"{phase}_s")) for phase in (*PHASES, "load")),
    *(Metric("load", name, "s", ("times", name)) for name in ("encode_s", "durable_s")),
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
    *(Metric("query", name, "1/s", ("summary", name)) for name in ("qps", "complete_qps")),
    *(Metric("query", name, "queries", ("summary", name)) for name in ("errors", "timeouts", "samples")),
    Metric("query", "fail_per_s", "1/s", ("summary", "fail_per_s")),
    Metric("query", "server_cpu_us_per_query", "µs", ("server_cpu_us_per_query",)),
    Metric("query", COST, "CPU-s", (COST,)),
    Metric("query", "client_cpu_us_per_query", "µs", ("client", "cpu_us_per_query")),
    Metric("query", "client_ceiling_qps", "1/s", ("client", "ceiling", "qps")),
    Metric("query", "client_floor_ms", "ms", ("client", "ceiling", "floor_ms")),
    Metric("query", "steady_after_s", "s", ("steadiness", "steady_after_s")),
    Metric("query", "drift", "fraction", ("steadiness", "drift")),
    Metric("query", "selectivity", "fraction", ("selectivity",)),
    Metric("query", "defect_share", "fraction", ("defects", "share")),
    *(Metric("query", f"{name}_answers", "queries", ("defects", name)) for name in BITS),
    *_resource_metrics("query"),
)
OF_PAIRS = {
    "qps": ("queries per second", "1/s"),
    "server_cpu_us_per_query": ("CPU a query", "µs"),
    "p50_ms": ("p50", "ms"),
    "p95_ms": ("p95", "ms"),
    "p99_ms": ("p99", "ms"),
    "pss_mib": ("memory (PSS)", "MiB"),
    "pss_anon_mib": ("memory (PSS, in no file)", "MiB"),
}
"""Quantities of pairs, in words, and the units of their sides: `pair_NAME` is the ratio of b to a, `pair_a_NAME` side
a's."""
DEPENDS = "QPS and processor time disagree: which side is better depends on how busy the machine is"
_PAIR = (
    *(Metric("pair", f"pair_{name}", "ratio", ("quantities", name)) for name in OF_PAIRS),
    *(
        Metric("pair", f"pair_{side}_{name}", unit, ("quantities", name, side))
        for name, (_, unit) in OF_PAIRS.items()
        for side in ("a", "b")
    ),
    *(
        Metric("pair", f"pair_{side}_recall_{rule}", "fraction", ("sides", side, "recall", rule))
        for rule in ("by_distance", "by_id")
        for side in ("a", "b")
    ),
    Metric("pair", "pair_others_pct", "% of one core", ("contention", "others_pct")),
    *(
        Metric("pair", f"pair_{side}_server_cores", "cores", ("contention", "server_cores", side))
        for side in ("a", "b")
    ),
)
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


_RECALL = (
    Metric("recall", "recall_by_id", "fraction", ("recall", "by_id")),
    Metric("recall", "recall_by_distance", "fraction", ("recall", "by_distance")),
    Metric("recall", "ndcg", "fraction", ("recall", "ndcg")),
    Metric("recall", "mrr", "fraction", ("recall", "mrr")),
    Metric("recall", "recall_zero_share", "fraction", ("distribution", "zero_share")),
    *(Metric("recall", f"recall_{p}", "fraction", ("distribution", p)) for p in ("p1", "p5", "p50")),
    *(Metric("recall", name, "fraction", ("hardest", name)) for name in HARDEST),
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
    more = (*_of_features("query", body), *_searches(body), *_members(body, "query"))
    return (*_QUERY, *more, *_device_metrics(body, "query"))


def of_pair(body: Body) -> tuple[Metric, ...]:
    """What is expected of a pair: ratios of side b to side a, and what both sides came to."""
    return _PAIR


def of_recall(body: Body) -> tuple[Metric, ...]:
    """What is expected of recall; with its record `body` also what only some workloads have."""
    return (*_RECALL, *_of_features("recall", body))


def _of_features(phase: str, body: Body) -> Iterator[Metric]:
    for feature in features.among(body):
        yield from feature.metrics_of(phase, body)


def upgraded(body: Body) -> bool:
    """Whether this is the record of a load into which nothing was inserted: another one's data, opened in place."""
    return "upgrade_of" in body.get("spec", {})


def not_ordinary(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The workloads, of rows of the tidy table, that are no plain closed loop: open loops, cold starts, faults, …"""
    apart = {metric for feature in features.known() for metric in feature.apart}
    return {row["workload"] for row in rows if row["workload"] and row["metric"] in apart}


NOT_MEASURED = "not measured"
LOAD_MISSING = "its load was not measured"
QUERIES_MISSING = "its queries were not measured"
MISSING = frozenset({NOT_MEASURED, LOAD_MISSING, QUERIES_MISSING})
"""The reasons for having no number that mean: nobody has measured it yet."""
TRIED = "failed: "
"""How the reason begins where it was tried, and no try ended with a record: its attempts follow."""


def is_missing(reason: str) -> bool:
    """Whether a reason says that there is no record, and not that there is an invalid one."""
    return reason in MISSING or reason.startswith(TRIED)


def is_absent(reason: str) -> bool:
    """Whether a reason says that there is no such number, which is no fault of the record."""
    return reason in ABSENT or reason.startswith(UNREACHED) or _says_too_few(reason)


def state_of(reasons: Iterable[str]) -> str:
    """The state of a cell by what the rows of its records say: valid, invalid, failed or not measured."""
    said = {reason for reason in reasons if reason and not is_absent(reason)}
    if not all(map(is_missing, said)):
        return "invalid"
    if any(reason.startswith(TRIED) for reason in said):
        return "failed"
    return "not measured" if said else "valid"


NOT_RECORDED = "not recorded"
NO_SUCH_PHASE = "no such phase"
NO_FILTER = "no filter"
UPGRADED = "not measured: upgraded in place"
NOT_OURS = "somebody else's server"
NOT_ASKED = "can't be asked"
_OF_FEATURES = {name: reason for feature in features.known() for name, reason in feature.absent.items()}
ABSENT = frozenset(
    {NOT_RECORDED, NO_SUCH_PHASE, NO_FILTER, UPGRADED, NOT_OURS, NOT_ASKED, FAILED, *_OF_FEATURES.values()}
)
"""The reasons that say nothing against a record. Any that is neither here nor missing makes it invalid."""

UNREACHED = "target not reached: "
UNANSWERED = "answered: "
"""How the reason begins where every request failed: the name of that gate."""
LOAD_INVALID = "its load is invalid: "


_TAILS = {"p95_ms": ("p95", 20), "p99_ms": ("p99", 100), "p999_ms": ("p99.9", 1000)}
"""Percentiles, and of how many answers the first is that has another than the slowest for it."""
_TOO_FEW = ": too few for "


def too_few(body: Body, metric: str) -> str:
    """Why a record of queries or of a pair has no such percentile: of so few answers it is the slowest. Else empty.

    It would flatter who answers fewest. p99.9 is of all runs together, that of a pair is the ratio of each block.
    """
    name, least = _TAILS.get(metric.removeprefix("pair_"), ("", 0))
    counted = _answers(body, pooled=metric == "p999_ms") if least else None
    if counted is None or counted[0] >= least:
        return ""
    return f"{counted[0]:,} answer{'s' * (counted[0] != 1)}{counted[1]}{_TOO_FEW}{name}"


def _answers(body: Body, *, pooled: bool) -> tuple[int, str] | None:
    """How many answers a percentile is of, and of what; None where the record does not say it."""
    slices, rates = (at(body, steps) for steps in (("spec", "slices"), ("quantities", "qps")))
    if slices and rates:
        measured_s = duet.BLOCK / 2 * (slices["slice_s"] - slices["discard_ms"] / 1000)
        return int(min(rates["a"], rates["b"]) * measured_s), " a block"
    samples = at(body, ("summary", "samples")) or {}
    runs = samples.get("runs")
    if not runs:
        return None
    return (int(sum(runs)), "") if pooled else (int(min(runs)), " a run")


def _says_too_few(reason: str) -> bool:
    return reason.rpartition(_TOO_FEW)[2] in {name for name, _ in _TAILS.values()}


def brief(reason: str) -> str:
    """Why there is no number, in two or three words; a failed gate's full reason stands in the list of them."""
    if reason in MISSING:
        return NOT_MEASURED
    if reason == UPGRADED:
        return "upgraded in place"
    if reason.startswith(UNREACHED):
        return "not reached"
    if _says_too_few(reason):
        return "too few answers"
    if reason == FAILED or reason.startswith((TRIED, UNANSWERED)):
        return "failed"
    return reason if reason in ABSENT else "invalid"


def why_absent(body: Body, metric: Metric) -> str:
    """Tell a phase that a system does not have, and a filter that wasn't asked, from what the record lacks."""
    if upgraded(body) and (metric.phase in (*PHASES, "load")):
        return UPGRADED
    if (metric.at[0] in ("storage", "resources") or metric.name in SERVER_CPU) and remote(body):
        return NOT_OURS
    if metric.phase in PHASES and at(body, ("times", f"{metric.phase}_s")) is None:
        return NO_SUCH_PHASE
    if metric.name == "durable_s" and "durability" in body:
        return NOT_ASKED
    if metric.name == "selectivity" and not at(body, ("spec", "workload", "filter")):
        return NO_FILTER
    if metric.at[0] == "summary" and at(body, ("summary", "errors", "value")) and at(body, metric.at) is not None:
        return FAILED
    if metric.name == HIGHEST_RATE:
        return UNREACHED + str(at(body, ("slo", "reason")))
    return _OF_FEATURES.get(metric.name, NOT_RECORDED)


def lower_limit(recall: Body) -> str:
    """Why the highest rate in a record of recall is only a lower limit of the true one; else empty."""
    metric = features.declared(HIGHEST_RATE)
    if metric is None or at(recall, metric.at) is None:
        return ""
    return "; ".join(filter(None, (feature.note(metric, recall) for feature in features.known())))


def in_process(body: Body) -> bool:
    """Whether the system of a load's record is a library in the processes of its clients, and no server."""
    members = at(body, ("server", "members")) or {}
    return any(at(facts, ("role",)) == "library" for facts in members.values())


def remote(body: Body) -> bool:
    """Whether somebody else runs the server, so that its disk and processes are not to be seen."""
    members = at(body, ("server", "members")) or {}
    return any(at(facts, ("run_by",)) for facts in members.values())
