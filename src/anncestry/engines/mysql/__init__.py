"""Databases of the MySQL protocol: seekdb, MariaDB, PolarDB. Which one, its settings say (`dialect`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anncestry.engines.base import (
    Component,
    Spec,
    check_fault,
    check_newer,
    check_remote,
    check_search,
    check_topology,
    check_version,
    components,
    lazy,
    refuse_unknown,
)
from anncestry.engines.indexes import Parameter, check_index
from anncestry.engines.mysql.dialects import dialect_of
from anncestry.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from anncestry.engines.mysql.ingest import load
    from anncestry.engines.mysql.serve import apply, count, exact_filters, open, probe, start
    from anncestry.engines.mysql.wire import decode, encode, sdk_decode, sdk_transport, transport
else:
    __getattr__ = lazy(
        __name__,
        {
            "load": "ingest",
            "start": "serve",
            "open": "serve",
            "apply": "serve",
            "exact_filters": "serve",
            "probe": "serve",
            "count": "serve",
            "encode": "wire",
            "transport": "wire",
            "decode": "wire",
            "sdk_transport": "wire",
            "sdk_decode": "wire",
        },
    )

__all__ = [
    "EXACT_SCANS",
    "apply",
    "asked_settings",
    "check",
    "check_upgrade",
    "count",
    "data_components",
    "decode",
    "encode",
    "exact_filters",
    "fairness",
    "limited",
    "load",
    "open",
    "probe",
    "sdk_decode",
    "sdk_transport",
    "start",
    "transport",
]

COMMON_SETTINGS = ("dialect", "cosine_by", "insert_connections")
CONDITIONS = ("keyword", "int", "float")
"""Kinds of payload columns that queries can have conditions on (not of every dialect)."""
EXACT_SCANS = True
"""Its exact searches compare the vectors, whatever its index holds."""
REMOTE_SETTINGS = ("user", "database")


def check(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """ConfigError for a combination that this engine can't run."""
    dialect = dialect_of(system)
    check_version(dialect.name, system, *dialect.versions)
    check_topology(dialect.name, topology, dialect.memory_min_mib, runtimes=dialect.runtimes)
    check_remote(dialect.name, topology, ("mysql",))
    for key in ("nodes", "shards", "replicas"):
        if topology[key] != 1:
            raise Unsupported(f"topology: {key}: {topology[key]}; {dialect.name} runs as one node here")
    graph = {"M": Parameter(*dialect.m), "ef_construction": Parameter(*dialect.ef_construction)}
    check_index(dialect.name, index, {"hnsw": graph}, {"hnsw": dialect.quantizers})
    for name in ("rescore_limit", "training_limit", "segments"):
        if name in index:
            raise Unsupported(f"index.{name}: unsupported by {dialect.name}: its quantizers have no such option")
    settings = system.get("settings") or {}
    remote = topology["runtime"] == "remote"
    known = (*COMMON_SETTINGS, *dialect.numbers, *(REMOTE_SETTINGS if remote else ()))
    refuse_unknown(f"settings of {dialect.name}", settings, known)
    dialect.check(settings)
    if workload is not None:
        check_search(dialect.name, workload, dialect.largest_k)
        if not dialect.conditions and (workload.get("filter") or {}).get("field") == "payload":
            raise Unsupported(f"filter: conditions on payload are unsupported by {dialect.name}: nobody has tried them")
        check_fault(topology, workload, ["node1"])


def limited(system: Spec, topology: Spec) -> int:
    """The one process."""
    return 1


def check_upgrade(system: Spec, older: Spec) -> None:
    """ConfigError unless this is a later version of the same database with the same settings."""
    check_newer(dialect_of(system).name, system, older)
    if (system.get("settings") or {}) != (older.get("settings") or {}):
        raise ConfigError("settings: an upgrade in place has those of the older system")


def asked_settings(system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
    """What the server must say of itself. `plan` is what EXPLAIN says of a search: one that scans is no search."""
    dialect, settings = dialect_of(system), system.get("settings") or {}
    asked: dict[str, Any] = {
        "index_type": index["type"],
        "metric": metric,
        "M": index["M"],
        "quantizer": index.get("quantizer", "none"),
        "distance": dialect.distance(settings, metric),
        "plan": "vector index",
    }
    if dialect.has_ef_construction:
        asked["ef_construction"] = index["ef_construction"]
    asked |= {name: settings[name] for name in dialect.numbers if name in settings and name in dialect.read_back}
    return asked if ef_search is None else {**asked, "ef_search": ef_search}


def data_components(data_dir: Path) -> list[Component]:
    """The parts of a data folder. seekdb keeps all tables in one file; of MariaDB a table and its index are files."""
    return components(
        data_dir,
        [
            ("tables_and_indexes", True, ["store/sstable", "data/test"]),
            ("redo_log", False, ["store/redo", "store/slog", "data/ib_logfile*", "data/undo*", "data/aria_log*"]),
            ("system_tables", False, ["data/ibdata*", "data/mysql", "data/performance_schema", "data/sys"]),
            ("logs", False, ["log", "logs"]),
            ("config", False, ["etc", "run", "kept.json"]),
        ],
    )


def fairness(system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
    """How it is treated."""
    dialect, settings = dialect_of(system), system.get("settings") or {}
    connections = settings.get("insert_connections", 1)
    return {
        "query protocol": "MySQL's text protocol, a connection a client, one statement a query; the vector in it as "
        "float32 bytes (_binary '…'); ids and distances are returned",
        "insert protocol": f"INSERT of many rows, float32 bytes; {connections} connection(s), each the next batch "
        "after the acknowledgement; committed one by one",
        "ef applies to": f"the one graph of the table; {dialect.ef_variable()} of each connection",
        "segments": "one table, one graph, built after the load",
        "clients ask": "the one node",
        "consistency": "one copy: there is nothing to wait for",
        "set by the system": ", ".join(f"{name}={value}" for name, value in settings.items()),
        "left at defaults": "everything else",
        **dialect.fairness(settings, index),
    }
