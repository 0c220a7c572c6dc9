"""Milvus, 2.1 to 2.3: in one process, with its parts beside it, or distributed."""

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
    check_stream,
    check_topology,
    check_version,
    components,
    lazy,
    version_of,
)
from anncestry.engines.milvus import indexes
from anncestry.engines.milvus.roles import check_roles, members_of
from anncestry.engines.milvus.versions import BELOW, COMPONENTS, MMAP, MMAP_FOLDER, OLDEST, ON_STORAGE, facts
from anncestry.errors import ConfigError, Unsupported
from anncestry.runtimes.storage import FOLDER

if TYPE_CHECKING:
    from anncestry.engines.milvus.cluster import start
    from anncestry.engines.milvus.ingest import load
    from anncestry.engines.milvus.sdk import sdk_decode, sdk_transport
    from anncestry.engines.milvus.serve import apply, exact_filters, open, probe
    from anncestry.engines.milvus.wire import count, decode, decode_batch, encode, encode_batches, transport
    from anncestry.engines.milvus.write import decode_write, encode_delete, encode_insert, write_transport
else:
    __getattr__ = lazy(
        __name__,
        {
            "load": "ingest",
            "start": "cluster",
            "open": "serve",
            "apply": "serve",
            "exact_filters": "serve",
            "probe": "serve",
            "encode": "wire",
            "transport": "wire",
            "decode": "wire",
            "encode_batches": "wire",
            "decode_batch": "wire",
            "write_transport": "write",
            "encode_insert": "write",
            "encode_delete": "write",
            "decode_write": "write",
            "count": "wire",
            "sdk_transport": "sdk",
            "sdk_decode": "sdk",
        },
    )

__all__ = [
    "apply",
    "asked_settings",
    "check",
    "check_upgrade",
    "count",
    "data_components",
    "decode",
    "decode_batch",
    "decode_write",
    "encode",
    "encode_batches",
    "encode_delete",
    "encode_insert",
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
    "write_transport",
]

BEYOND_LOOPBACK = True
"""It answers gRPC on all interfaces (SECURITY.md), so that clients on other machines can ask it."""

CONDITIONS = ("keyword", "int", "float")
"""Kinds of payload columns that queries can have conditions on."""

KILLED_LOADS = True
"""Its load goes on after a kill (engines/killing.py)."""

MEMORY_MIN_MIB = 512
"""Of a member: below, its components die while they start."""
_RESERVED = ("etcd", "localStorage.path", "rocksmq.path", "log.file.rootPath", "mq", "kafka", "pulsar", "natsmq")


def check(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """ConfigError for a combination that this engine can't run."""
    if facts(system).early:
        _check_early(system, topology, index, workload)
    else:
        check_version("milvus", system, OLDEST, BELOW)
    check_topology("milvus", topology, MEMORY_MIN_MIB, ("external", "external_limits", "roles", "storage"))
    check_remote("milvus", topology, ("proxy",), ("metrics",), workload)
    check_roles(topology)
    if (system.get("artifact") or {}).get("kind") == "image":
        raise ConfigError(
            "artifact: milvus can't be run from an image yet: its configuration is made from the wheel's template"
        )
    indexes.check(system, topology, index, workload)
    if "storage" in topology and {"external", "roles"} & topology.keys():
        raise ConfigError("topology: storage: milvus keeps its data on a storage path only where it is one process")
    for dotted, value in (system.get("settings") or {}).items():
        if dotted == MMAP:
            if value != ON_STORAGE or "storage" not in topology:
                raise ConfigError(
                    f"settings: {MMAP}: {value!r}: it can only be {ON_STORAGE!r}, in a topology that has a storage path"
                )
            if version_of(system) < (2, 3, 4):
                raise Unsupported(f"settings: {MMAP} is unsupported by milvus {system['version']}: it came with 2.3")
            continue
        if "." not in dotted or isinstance(value, dict | list):
            raise ConfigError(f"settings: {dotted}: {value!r} is not a dotted name of milvus.yaml with one value")
        if dotted.endswith((".port", ".ip", "Port")) or dotted.startswith(_RESERVED):
            raise ConfigError(f"settings: {dotted} is set by anncestry and can't be changed")
        if not facts(system).says_setting(dotted):
            raise ConfigError(
                f"settings: milvus {system['version']} can't say what {dotted} is in effect (from 2.3.4 on it can); "
                f"of this version: {', '.join(f'{name}.…' for name in COMPONENTS)}"
            )
    if workload is not None:
        check_search("milvus", workload, largest_k=16_384, sdk=True, stream=True, batches=True)
        check_stream(topology, workload)
        check_fault(topology, workload, [*members_of(system["version"], topology), *(topology.get("external") or {})])


def _check_early(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """Unsupported for what a 2.1 lacks, as it is run."""
    name = f"milvus {system['version']}"
    if topology["runtime"] != "native" or {"external", "roles", "storage"} & topology.keys():
        raise Unsupported(f"topology: unsupported by {name}: a library, which is run as one native process")
    if index.get("type") != "hnsw":
        raise Unsupported(f"index.type: {index.get('type')} is unsupported by {name}; supported: hnsw")
    if workload is not None and workload.get("client") == "sdk":
        raise Unsupported(f"client: sdk is unsupported by {name}: the later client asks for what it lacks")
    if workload is not None and "stream" in workload:
        raise Unsupported(f"stream is unsupported by {name}")


def limited(system: Spec, topology: Spec) -> int:
    """Every member of Milvus itself has the limits; what stands beside it has those of `external_limits`."""
    return len(members_of(system["version"], topology))


def check_upgrade(system: Spec, older: Spec) -> None:
    """ConfigError unless this is a later version. (2.3 opens what 2.2.16 stored without the tool that 2.1 needs.)"""
    if facts(older).early and not facts(system).early:
        raise Unsupported(f"upgrade_from: milvus {older['version']}: what it stored needs a tool to be migrated")
    check_newer("milvus", system, older)


def asked_settings(system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
    """What the server must say of itself. ef_search is None: it is no setting of the server."""
    return {
        **indexes.asked(index),
        "metric": metric,
        "ef_search": None,
        **(system.get("settings") or {}),
    }


def data_components(data_dir: Path) -> list[Component]:
    """The parts of a data folder. Bookkeeping (etcd, the message queue that keeps every insert) outweighs the data."""
    stored = ("insert_log", "index_files", "stats_log", "delta_log")
    parts: list[tuple[str, bool, list[str]]] = [
        (name, True, [f"data/{name}", f"{FOLDER}/{name}", f"minio/*/files/{name}", f"data/files/{name}"])
        for name in stored
    ]
    parts += [
        ("etcd", False, ["data/etcd.data", "etcd"]),
        ("rocksmq", False, ["data/rocksmq"]),
        ("rocksmq_meta_kv", False, ["data/rocksmq_meta_kv"]),
        ("kafka", False, ["kafka"]),
        ("object_store", False, ["minio/.minio.sys"]),
        ("local_caches", False, ["local", f"{FOLDER}/cache", f"{FOLDER}/{MMAP_FOLDER}"]),
        ("logs", False, ["logs"]),
        ("config", False, ["configs", "ports.json"]),
    ]
    return components(data_dir, parts)


def fairness(system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
    """How Milvus is treated."""
    settings = system.get("settings") or {}
    kept = "localStorage.path"
    if MMAP in settings:
        kept += f" and {MMAP}: vectors and index are mapped from files, their pages the page cache's"
    external = topology.get("external") or {}
    log = "Kafka" if "log" in external else "the message queue (RocksDB on disk)"
    beside = ", ".join(external.values())
    return {
        "query protocol": (
            "gRPC, one vector a request (or nq of them), as float32 bytes; ids and scores are returned, no fields"
        ),
        "insert protocol": "gRPC, batches of columns, one connection, the next batch after the acknowledgement",
        **indexes.described(index),
        "ef applies to": "each segment; travels in each request",
        "segments": "set to give one segment, sealed by the flush; the index is built after the flush",
        "filters": (
            "evaluated over all rows first (no scalar index: the default); few matches (below about 7 %) are scanned "
            "exactly, more are searched by HNSW, where 2.3 returns fewer than k rows for some queries whatever ef is "
            "(milvus-io/milvus issues 31658, 33933, 37683)"
        ),
        "consistency": "Eventually: no search waits for a timestamp (rows change only in workloads with a stream)",
        "durability": f"inserts are acknowledged from {log}, without an fsync each",
        "clients ask": "one proxy, which spreads searches over the replicas",
        "stands beside it": f"{beside}; {_limits_beside(topology)}" if beside else "nothing: one process",
        "set by the system": ", ".join(f"{name}={value}" for name, value in settings.items()) or "nothing",
        "set by anncestry": "paths, ports, loopback addresses, log level",
        **({"storage path": f"{topology['storage']}: {kept}"} if "storage" in topology else {}),
        "inner traffic": (
            "over loopback"
            if facts(system).settles_on_loopback
            else "over the machine's first address (this version can't be told otherwise), without leaving the machine"
        ),
        "left at defaults": "query node concurrency and grouping, caches, compaction, SIMD choice, quotas",
    }


def _limits_beside(topology: Spec) -> str:
    """The limits of what stands beside it, in words."""
    limited = topology.get("external_limits") or {}
    if not limited:
        return "without limits of their own"
    units = {"cpus": "CPUs", "memory_mib": "MiB"}
    return "; ".join(
        f"{place}: " + ", ".join(f"{value:g} {units[name]}" for name, value in sorted(limits.items()))
        for place, limits in sorted(limited.items())
    )
