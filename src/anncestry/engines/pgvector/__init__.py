"""pgvector: PostgreSQL with an HNSW or IVFFlat index, one node. docs/adding-an-engine.md was followed to make it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anncestry.engines.base import (
    Component,
    Spec,
    check_newer,
    check_remote,
    check_search,
    check_topology,
    check_version,
    components,
    lazy,
)
from anncestry.engines.indexes import Offered, Parameter, check_index
from anncestry.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from anncestry.engines.pgvector.ingest import load
    from anncestry.engines.pgvector.serve import apply, count, exact_filters, open, probe, start
    from anncestry.engines.pgvector.wire import decode, encode, sdk_decode, sdk_transport, transport
else:
    _PARTS = {
        "ingest": ("load",),
        "serve": ("apply", "count", "exact_filters", "open", "probe", "start"),
        "wire": ("decode", "encode", "sdk_decode", "sdk_transport", "transport"),
    }
    __getattr__ = lazy(__name__, {name: part for part, names in _PARTS.items() for name in names})

__all__ = [
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

CONDITIONS = ("keyword", "int", "float")
"""Kinds of payload columns that queries can have conditions on."""
INDEX = "items_embedding"
PLAN = f"Index Scan using {INDEX}"
"""What EXPLAIN must say of a search."""
_MEMORY_MIN_MIB = 256
_EF_SEARCH_MAX = 1000
REMOTE_SETTINGS = ("user", "database")
"""Of a server that somebody else runs, beside its settings: who logs in, and where the table is to be."""
OFFERED: Offered = {
    "hnsw": {"M": Parameter(2, 100), "ef_construction": Parameter(4, 1000)},
    "ivf_flat": {"nlist": Parameter(1, 32_768)},
}
EFFORTS = {"hnsw": ("ef_search", "hnsw.ef_search"), "ivf_flat": ("nprobe", "ivfflat.probes")}
"""Type → our name of its search effort, and PostgreSQL's."""
_RESERVED = (
    "port", "listen_addresses", "unix_socket_directories", "data_directory", "hba_file", "session_preload_libraries",
    "hnsw.ef_search", "ivfflat.probes", "logging_collector", "fsync", "enable_indexscan",
    "enable_seqscan",
)  # fmt: skip


def check(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """ConfigError for a combination that this engine can't run."""
    check_version("pgvector", system, (0, 8, 0), (0, 9, 0))
    check_topology("pgvector", topology, _MEMORY_MIN_MIB, runtimes=("native", "remote"))
    check_remote("pgvector", topology, ("sql",), workload=workload)
    for key in ("nodes", "shards", "replicas"):
        if topology[key] != 1:
            raise Unsupported(f"topology: pgvector is one server with one table: {key} is 1, not {topology[key]}")
    check_index("pgvector", index, OFFERED)
    if index["type"] == "hnsw" and index["ef_construction"] < 2 * index["M"]:
        raise ConfigError(f"index.ef_construction for pgvector: at least twice M, not {index['ef_construction']}")
    for name, value in (system.get("settings") or {}).items():
        if name in REMOTE_SETTINGS and topology["runtime"] != "remote":
            raise ConfigError(f"settings: {name} is for a server that somebody else runs (runtime remote)")
        if name in _RESERVED:
            raise ConfigError(f"settings: {name} is set by anncestry and can't be changed")
        if isinstance(value, bool | dict | list):
            raise ConfigError(
                f"settings: {name}: {value!r} is not written as PostgreSQL shows it, such as 'off' or 1GB"
            )
    if workload is not None:
        check_search("pgvector", workload, largest_k=_EF_SEARCH_MAX)
        if workload.get("ef_search", 1) > _EF_SEARCH_MAX:
            raise ConfigError(f"ef_search for pgvector: {workload['ef_search']} is more than {_EF_SEARCH_MAX}")
        if workload.get("fault") is not None:
            raise Unsupported("fault: pgvector has one member, and nobody who could take its place")


def limited(system: Spec, topology: Spec) -> int:
    """One server."""
    return 1


def check_upgrade(system: Spec, older: Spec) -> None:
    """ConfigError unless this is a later version. (The wheel's PostgreSQL must be of the same major version.)"""
    check_newer("pgvector", system, older)


def asked_settings(system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
    """What the server must say of itself, the plan of a search included."""
    asked = {
        "index_type": index["type"],
        "metric": metric,
        **{name: index[name] for name in OFFERED[index["type"]]},
        "plan": PLAN,
        **{name: str(value) for name, value in (system.get("settings") or {}).items() if name not in REMOTE_SETTINGS},
    }
    return asked if ef_search is None else {**asked, EFFORTS[index["type"]][0]: ef_search}


def data_components(data_dir: Path) -> list[Component]:
    """The parts of a data folder. Table and index are files of one database; the number is PostgreSQL's own of it."""
    return components(
        data_dir,
        [
            ("database", True, ["pg/data/base/5"]),
            ("wal", False, ["pg/data/pg_wal"]),
            ("catalogues", False, ["pg/data/base/1", "pg/data/base/4", "pg/data/global"]),
            ("logs", False, ["logs"]),
            ("config", False, ["pg/data/*.conf", "ports.json"]),
        ],
    )


def fairness(system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
    """How pgvector is treated."""
    settings, effort = system.get("settings") or {}, EFFORTS[index["type"]][1]
    built = (
        f"m={index['M']} (2m at the bottom layer), ef_construction={index['ef_construction']}"
        if index["type"] == "hnsw"
        else f"lists={index['nlist']}, trained on the rows"
    )
    scans = f"{effort.partition('.')[0]}.iterative_scan"
    return {
        "query protocol": "PostgreSQL's extended protocol: a prepared statement, the vector and the answer as binary",
        "insert protocol": "COPY, binary, one transaction a batch, one connection",
        "HNSW" if index["type"] == "hnsw" else "IVFFlat": f"{built}; after the load",
        "ef applies to": f"the one index; a setting of the database ({effort}), changed between runs",
        "filters": f"applied to what the index returns (no index on category, price or payload), with {scans}="
        f"{settings.get(scans, 'default (off)')}; no sequential scans",
        "consistency": "one server: there is nothing to wait for",
        "durability": "a batch is acknowledged after an fsync of the write-ahead log",
        "clients": "a server process each",
        "vectors": "stored as PostgreSQL does by default: those of more than 2 kB apart from their row (TOAST)",
        "set by the system": ", ".join(f"{name}={value}" for name, value in settings.items()) or "nothing",
        "set by anncestry": "enable_seqscan=off and scans of the index for its own account; VACUUM (ANALYZE) after the"
        " load; all else is whose server it is"
        if topology["runtime"] == "remote"
        else "paths, port, loopback; enable_seqscan=off; VACUUM (ANALYZE) and CHECKPOINT after the load",
        "left at defaults": "planner, autovacuum, jit, checkpoints, caches that no setting names",
    }
