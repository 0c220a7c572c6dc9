"""Tables of loads, of what servers used (by workload, member, query node, storage path), and of libraries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

from anncestry.cells.features import Place, TableSpec
from anncestry.metrics.decide import ratio_interval
from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    computed,
    sample_of,
    three_digits,
    with_interval,
)
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import NO_LIBRARY
from anncestry.report.model.quantities import PHASES, SEARCHES, in_process
from anncestry.report.model.verdicts import apart
from anncestry.report.tables.spec import OTHER_EFFORT, made, of_rows, pivot, tables

_PLACE = ("dataset", "topology", "system", "workload")

# Processor and memory while queries run

during_queries = partial(
    tables,
    TableSpec(
        "R",
        "Processor and memory while queries run",
        "Of all processes of the server, and of the client that asks, over all runs. CPU a query: processor time for an"
        " answered query, which depends less on what else a machine does than its time does; of a workload that also"
        " changes rows, with that work in it. Processor: the mean share of a processor's time (100 % is one core, kept"
        " busy). Memory: the most resident memory while queries run, shared pages counted once a process (RSS). PSS:"
        " before or after a run, shared pages divided among those that share them; anonymous: of it, in no file.",
        {
            "server_cpu_us_per_query": ("Server, CPU a query", "µs"),
            "client_cpu_us_per_query": ("Client, CPU a query", "µs"),
            "cpu_avg_pct": ("Server, processor", "% of one core"),
            "client_cpu_avg_pct": ("Client, processor", "% of one core"),
            "rss_peak_mib": ("Server, memory", "MiB"),
            "client_rss_peak_mib": ("Client, memory", "MiB"),
            "pss_mib": ("Server, PSS", "MiB"),
            "pss_anon_mib": ("Server, anonymous", "MiB"),
        },
        by=("dataset", "topology", "workload"),
        by_system=True,
        of=lambda row: bool(row["phase"] == "query"),
    ),
)
"""Table R: what server and client used on average and at most, of every workload."""

# Members of a server


def _by_role(member: str) -> tuple[str, int, str]:
    """Members by role, those of one role by their numbers: node2 comes before node10."""
    role = member.rstrip("0123456789")
    return role, len(member), member


OF_MEMBERS = TableSpec(
    "S",
    "Processor, memory and storage traffic of each member of a server",
    "Of the processes of each member, where a server has several: the mean share of a processor's time (100 % is"
    " one core, kept busy), the most resident memory, and what was read from and written to storage, over all runs"
    " or from the first insert to searchable. Processor and traffic of all members add up to the server's; the"
    " highest memory of each need not be at one time.",
    {
        "cpu_avg_pct": ("Processor", "% of one core"),
        "rss_peak_mib": ("Memory", "MiB"),
        "io_read_mib": ("Read", "MiB"),
        "io_write_mib": ("Written", "MiB"),
    },
    by=("dataset", "topology", "system", "workload", "member"),
    order=lambda place: (place[:-1], _by_role(place[-1])),
)


def member_of(metric: str) -> tuple[str, str]:
    """The metric and the member that a name of the tidy table is of; no member where it is of none."""
    name, bracket, rest = metric.partition("[")
    return (name, rest[:-1]) if bracket and name in OF_MEMBERS.shown else (metric, "")


def in_order(members: Mapping[str, Any]) -> list[str]:
    """Names of members in the order of tables and legends."""
    return sorted(members, key=_by_role)


def of_members(material: Material) -> list[Table]:
    """Table S: what each member used of processor, memory and storage, while loading and while queries run."""
    of_member = [(row, *member_of(row["metric"])) for row in material.rows]
    rows = (
        {**row, "metric": metric, "member": member, "workload": row["workload"] or row["phase"]}
        for row, metric, member in of_member
        if member
    )
    return of_rows(OF_MEMBERS, rows)


# Nodes of a cluster

_OPENING = f"{SEARCHES}["


def by_node(material: Material) -> list[Table]:
    """Table N: the searches that each node was sent, by its own count."""
    counted = pivot((row for row in material.rows if row["metric"].startswith(_OPENING)), _PLACE)
    metrics = sorted({metric for cells in counted.values() for (metric,) in cells}, key=lambda name: (len(name), name))
    body = []
    for labels, rows in sorted(counted.items()):
        cells = {metric: with_interval(row) for (metric,), row in rows.items()}
        body.append(TableRow(labels, (_evenness(cells), *(cells.get(metric, Cell(NO_CELL)) for metric in metrics))))
    nodes = [metric.removeprefix(_OPENING).removesuffix("]") for metric in metrics]
    return made(
        Table(
            "N",
            "Searches by query node",
            "Searches that each query node was sent in a run, by its own count and with the warm-up: the mean over"
            " runs. Least / mean is the node with the fewest against the mean of all: 1 is evenly shared. Nodes that"
            " share one machine's cores show whether the work is spread, not what it would gain to spread it.",
            tuple(name.capitalize() for name in _PLACE),
            (Column("Least / mean"), *(Column(node, "searches", "Searches") for node in nodes)),
            tuple(body),
        )
    )


def _evenness(cells: Mapping[str, Cell]) -> Cell:
    counts = [cell.value for cell in cells.values() if cell.value is not None]
    if not counts or not sum(counts):
        return Cell(NO_CELL)
    value = min(counts) * len(counts) / sum(counts)
    return Cell(f"{value:.2f}", value, parents=tuple(cell.number_id for cell in cells.values()))


# Loads

_OF_LOADS = {
    "encode_s": "Encode, before",
    **{f"{phase}_s": phase.capitalize() for phase in PHASES},
    "load_s": "Searchable",
    "durable_s": "Durable",
}


def loading(material: Material) -> list[Table]:
    """Table D: the phases of loads, until they are searchable and until they are durable."""
    body = []
    for place, rows in sorted(pivot(material.rows, _PLACE[:3]).items()):
        measured = {name: row for (name,), row in rows.items() if name in _OF_LOADS and row["phase"] != "query"}
        if any(row["value"] is not None for row in measured.values()):
            record = material.records.get(measured["load_s"]["record"]) or {}
            cells = [with_interval(measured.get(name)) for name in _OF_LOADS]
            body.append(TableRow(place, (*cells, Cell(record.get("durability", NO_CELL)))))
    return made(
        Table(
            "D",
            "Loading, phase by phase",
            "Seconds of wall clock. All insert requests are encoded before the clock starts. From the first insert:"
            " searchable once a search succeeds, which is all phases together; durable once rows and index are in the"
            " system's files, so that it needs no log to have them again, as far as it can be asked for that. Whether"
            " these files were synced the last column says. A system that stores the index before it loads it for"
            " searching is durable before it is searchable.",
            tuple(name.capitalize() for name in _PLACE[:3]),
            (*(Column(label, "s") for label in _OF_LOADS.values()), Column("What was asked")),
            tuple(body),
        )
    )


# Storage paths

_ON_PATHS = {
    ("load", "load_s"): ("Load", "s"),
    ("storage", "storage_net_mib"): ("Vectors and index", "MiB"),
    ("load", "io_write_mib"): ("Written by it while loading", "MiB"),
    ("load", "device_io_write_mib"): ("Written to the device while loading", "MiB"),
    ("query", "qps"): ("Queries per second", "1/s"),
    ("query", "p95_ms"): ("p95", "ms"),
    ("query", "p99_ms"): ("p99", "ms"),
    ("recall", "recall_by_id"): ("Recall by id", "fraction"),
    ("query", "io_read_mib"): ("Read by it", "MiB for 1,000 requests"),
    ("query", "device_io_read_mib"): ("Read from the device", "MiB for 1,000 requests"),
    ("query", "device_io_reads"): ("Reads that the device served", "for 1,000 requests"),
}
_OVER_RUNS = ("io_read_mib", "device_io_read_mib", "device_io_reads")
"""Sums over all runs, of which one cell may need more than another: shown for as many requests."""


_LIMITS = {"read_mib_per_s": "MiB/s read", "read_ops_per_s": "reads/s"}


def storage_paths(material: Material) -> list[Table]:
    """Table Y: what loading and searching cost on each storage path; none where no topology has one."""
    numbers = pivot(material.rows, _PLACE, ("phase", "metric"))
    paths = {
        (row["dataset"], row["topology"], row["system"]): described(record["storage_path"])
        for row in material.rows
        if "storage_path" in (record := material.records.get(row["record"]) or {})
    }
    body = []
    for place, rows in sorted(numbers.items()):
        if ("query", "qps") not in rows or place[:3] not in paths:
            continue
        of_both = numbers.get((*place[:3], ""), {}) | rows
        cells = tuple(_on_path(metric, of_both) for metric in _ON_PATHS)
        body.append(TableRow((*place[:2], paths[place[:3]], *place[2:]), cells))
    return made(
        Table(
            "Y",
            "Storage paths",
            "What a system keeps lies on the storage path of its topology. Read and written by it: what its processes'"
            " accounts (/proc/PID/io) say reached storage, on whatever device; of a library, its clients'. Of the"
            " device: /proc/diskstats of the block device below the path, by whatever program; not recorded where the"
            " path has no such device (memory) or this machine doesn't show it: then nothing can be told, which is not"
            " zero. Reads are those of all runs of a cell, for 1,000 of its requests.",
            ("Dataset", "Topology", "Storage path", "System", "Workload"),
            tuple(Column(label, unit) for label, unit in _ON_PATHS.values()),
            tuple(body),
        )
    )


def _on_path(metric: tuple[str, str], of: Mapping[tuple[object, ...], Row]) -> Cell:
    row = of.get(metric)
    if metric[0] != "query" or metric[1] not in _OVER_RUNS or row is None or row["value"] is None:
        return with_interval(row)
    return computed(row, of.get(("query", "samples")), lambda total, requests: 1000 * total / requests, "{:,.1f}")


def described(facts: Mapping[str, Any]) -> str:
    """A storage path in words: its name, file system, device, transport, paths."""
    said = [str(facts["filesystem"] or "unknown file system")]
    if facts["device"] is not None:
        said.append(f"device {facts['device']}")
    said += [str(facts[name]) for name in ("transport", "model") if facts[name] is not None]
    if facts["rotational"] is not None:
        said.append("rotating" if facts["rotational"] else "not rotating")
    if facts["paths"] is not None:
        said.append(f"{facts['paths']} path{'' if facts['paths'] == 1 else 's'}")
    limits = facts.get("limits", {})
    said += [f"at most {most:g} {_LIMITS[limit]}" for limit, most in limits.get("asked", {}).items()]
    if "asked" in limits:
        said.append("evenly paced" if "pacing" in limits else "in the kernel's slices")
    if "latency_us" in limits:
        said.append(f"{limits['latency_us']:g} µs added to each read")
    for probe in limits.get("probe", ()):
        if "held_p95_ms" in probe:  # older records don't have it
            said.append(f"p95 of a probe's reads {probe['held_p95_ms'] / probe['held_mean_ms']:.1f} × their mean")
    if facts["same_device_as"]:
        said.append(f"same device as {', '.join(facts['same_device_as'])}")
    return f"{facts['name']}: {', '.join(said)}"


# Libraries: the databases' own clients, and servers against the bare algorithm in its clients' processes

_QUESTION = ("dataset", "topology", "system", "k", "filter", "clients", "duration_s", "ef_search", "target_recall")
_THROUGH_CLIENTS = TableSpec(
    "L",
    "Through client libraries",
    "The same questions through libraries, a process for each client, and as bytes encoded before. `sdk` is the"
    " database's own library for Python (pymilvus, weaviate-client), `sdk-go` its own for Go, `vectordbbench` the one"
    " that VectorDBBench measures with. A library encodes and decodes within the time, and its processor time is the"
    " client's. All other tables and charts are of bytes.",
    {
        "qps": ("Queries per second", "1/s"),
        "p50_ms": ("p50", "ms"),
        "p99_ms": ("p99", "ms"),
        "mean_ms": ("Mean", "ms"),
        "recall_by_id": ("Recall by id", "fraction"),
        "client_cpu_us_per_query": ("Client's CPU a query", "µs"),
    },
    by=("dataset", "topology", "system", "clients", "client", "workload"),
)


def through_clients(material: Material) -> list[Table]:
    """Table L: what was asked through client libraries; beside it the same questions, asked as bytes."""

    def question(row: Row) -> tuple[object, ...]:
        return tuple(row[name] for name in _QUESTION)

    by_library = [row for row in material.first_rows if row["client"] not in NO_LIBRARY]
    asked = {question(row) for row in by_library}
    as_bytes = [row for row in material.ordinary if row["workload"] and question(row) in asked]
    return of_rows(_THROUGH_CLIENTS, [*by_library, *as_bytes])


OTHER_INDEX = "another index"
OTHER_LIMITS = "other limits"

_RATIOS = {
    "qps": Column("Queries per second", "× library"),
    "p50_ms": Column("p50", "× library"),
    "p99_ms": Column("p99", "× library"),
}
_RECALL = "recall_by_id"


def over_libraries(material: Material) -> list[Table]:
    """Table O, if servers and libraries were asked the same."""
    numbers = pivot((row for row in material.rows if row["value"] is not None), _PLACE)
    asked = sorted(place for place, of in numbers.items() if any((metric,) in of for metric in _RATIOS))

    def record(place: Place) -> Mapping[str, Any]:
        """That of its load; empty if there is none."""
        load = numbers.get((*place[:3], ""), {}).get(("rows",), {})
        return material.records.get(load.get("record", "")) or {}

    def loaded(place: Place) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = record(place).get("spec", {})
        return spec

    def limits(place: Place) -> Any:
        topology = loaded(place).get("topology") or {}
        return topology.get("limits"), topology.get("role_limits")

    libraries = [place for place in asked if in_process(record(place))]
    places = {(library[0], library[1]) for library in libraries}
    several = len(places) > len({dataset for dataset, _ in places})
    body = []
    for server, library in product((place for place in asked if place not in libraries), libraries):
        dataset, topology, system, workload = server
        if (dataset, workload) != (library[0], library[3]):
            continue
        ours, theirs = ({name: numbers[of].get((name,)) for name in (*_RATIOS, _RECALL)} for of in (server, library))
        efforts = [next(row["ef_search"] for row in of.values() if row is not None) for of in (ours, theirs)]
        alike = {
            OTHER_INDEX: loaded(server).get("index") == loaded(library).get("index"),
            OTHER_EFFORT: efforts[0] == efforts[1],
            OTHER_LIMITS: limits(server) == limits(library),
        }
        why = next((words for words, same in alike.items() if not same), "")
        queries = [
            next(material.records.get(row["record"]) or {} for name in _RATIOS if (row := of[name]) is not None)
            for of in (ours, theirs)
        ]
        why = why or apart(*queries)
        ratios = [Cell(why, problem=why) if why else _ratio(ours[metric], theirs[metric]) for metric in _RATIOS]
        recalls = (with_interval(of[_RECALL]) for of in (ours, theirs))
        named = f"{library[2]} ({library[1]})" if several else library[2]
        body.append(TableRow((dataset, topology, workload, system, named), (*ratios, *recalls)))
    table = Table(
        "O",
        "What a server costs over the bare algorithm",
        "The same vectors, queries, index and search effort, asked of a server and of a library in its client's own"
        " process: a server has a wire, threads that take turns, and storage to look after. Ratios are server /"
        " library of the means over runs, in brackets their 95 % interval (of the logarithms of the runs; at least"
        " three runs a side). A ratio of 2 for p50 means that a query takes twice as long. Where index, effort or"
        " limits differ, or the two were not measured in turns, there is none. Recall is beside it, for the same effort"
        " need not find the same.",
        ("Dataset", "Topology", "Workload", "System", "Library"),
        (*_RATIOS.values(), Column("Recall, server", "fraction"), Column("Recall, library", "fraction")),
        tuple(body),
    )
    return made(table)


def _ratio(above: Row | None, below: Row | None) -> Cell:
    """A server's number over a library's, with its interval where noise is known."""
    if above is None or below is None or not below["value"]:
        return Cell(NO_CELL)
    interval = ratio_interval(sample_of(above), sample_of(below))
    value = above["value"] / below["value"]
    shown = three_digits(value) + (f" ({three_digits(interval[0])} to {three_digits(interval[1])})" if interval else "")
    return Cell(shown, value, parents=(above["number_id"], below["number_id"]))
