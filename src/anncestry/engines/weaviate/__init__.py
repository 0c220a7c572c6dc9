"""Weaviate, 1.23.9 to 1.35: one node, or a cluster."""

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
from anncestry.engines.weaviate import indexes
from anncestry.engines.weaviate.settings import MEMORY_MIN_MIB, PROTOCOLS, in_background, sdk_environment
from anncestry.errors import ConfigError, Unsupported
from anncestry.runtimes.client_env import identity

if TYPE_CHECKING:
    from anncestry.engines.weaviate.ingest import load
    from anncestry.engines.weaviate.sdk import sdk_decode, sdk_transport
    from anncestry.engines.weaviate.serve import apply, count, exact_filters, open, probe, start
    from anncestry.engines.weaviate.wire import decode, encode, transport
    from anncestry.engines.weaviate.write import decode_write, encode_delete, encode_insert, write_transport
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
            "encode": "wire",
            "transport": "wire",
            "decode": "wire",
            "write_transport": "write",
            "encode_insert": "write",
            "encode_delete": "write",
            "decode_write": "write",
            "count": "serve",
            "sdk_transport": "sdk",
            "sdk_decode": "sdk",
        },
    )

__all__ = [
    "apply",
    "asked_settings",
    "check",
    "check_upgrade",
    "client_env",
    "count",
    "data_components",
    "decode",
    "decode_write",
    "encode",
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

_OLDEST, _BELOW = (1, 23, 9), (1, 36, 0)
"""Earlier versions speak another gRPC; later ones were not tried: try one, then move the bound."""
_FILTER_STRATEGY_FROM = (1, 27, 0)
_FILTER_STRATEGIES = ("sweeping", "acorn")


def check(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """ConfigError for a combination that this engine can't run."""
    check_version("weaviate", system, _OLDEST, _BELOW)
    check_topology("weaviate", topology, MEMORY_MIN_MIB, ("entry", "consistency"))
    check_remote("weaviate", topology, ("http", "grpc"), workload=workload)
    _check_cluster(topology)
    indexes.check(system, index)
    if index["type"] == "dynamic" and topology["runtime"] == "remote":
        raise Unsupported(
            "index.type: dynamic is unsupported of a weaviate that somebody else runs: whether it is flat or a graph "
            "by now shows in its folder alone"
        )
    settings = system.get("settings") or {}
    if "filterStrategy" in settings and version_of(system) < _FILTER_STRATEGY_FROM:
        raise Unsupported(f"settings.filterStrategy: unsupported by weaviate {system['version']}; it came with 1.27")
    if settings.get("protocol", PROTOCOLS[0]) not in PROTOCOLS:
        raise ConfigError(f"settings.protocol: {settings['protocol']!r} is none of {', '.join(PROTOCOLS)}")
    if settings.get("protocol") == "rest" and "credentials" in topology:
        raise Unsupported("settings.protocol: rest carries no credentials so far; take grpc for that server")
    strategy = settings.get("filterStrategy", _FILTER_STRATEGIES[0])
    if strategy not in _FILTER_STRATEGIES:
        raise ConfigError(f"settings.filterStrategy: {strategy!r} is none of {', '.join(_FILTER_STRATEGIES)}")
    if workload is not None:
        check_search("weaviate", workload, largest_k=10_000, sdk=True, stream=True)
        check_stream(topology, workload)
        if workload.get("client") == "sdk" and (workload.get("filter") or {}).get("field") == "payload":
            raise Unsupported("filter: conditions on payload go to weaviate as bytes so far, not by its library (sdk)")
        if settings.get("protocol") == "rest":
            if workload.get("client") == "sdk":
                raise Unsupported(
                    "settings.protocol: the library (client: sdk) asks by grpc; rest is for client: bytes"
                )
            if "stream" in workload:
                raise Unsupported("settings.protocol: a stream of writes goes by grpc so far, not by rest")
        client_env(system, workload)
        for key in ("entry", "consistency"):
            if workload.get("client") == "sdk" and topology.get(key, "first") != "first":
                raise ConfigError(f"client: sdk asks one node as the library chooses; the topology has {key}")
        check_fault(topology, workload, [f"node{number + 1}" for number in range(topology["nodes"])])


def client_env(system: Spec, workload: Spec) -> dict[str, str] | None:
    """The environment that the client of this workload needs (name, sha256); None where what is locked does."""
    name = sdk_environment(system) if workload.get("client") == "sdk" else None
    return None if name is None else identity(name)


def _check_cluster(topology: Spec) -> None:
    nodes, shards, replicas = topology["nodes"], topology["shards"], topology["replicas"]
    if replicas > nodes:
        raise ConfigError(f"topology: {replicas} replicas need as many nodes, there are {nodes}")
    if nodes > 1 and shards * replicas < nodes:
        raise ConfigError(f"topology: {shards} shards with {replicas} replicas leave some of {nodes} nodes empty")
    if nodes == 2:
        raise ConfigError("topology: 2 nodes of weaviate can't outvote each other (RAFT): take 1, or 3 and more")


def limited(system: Spec, topology: Spec) -> int:
    """Every node has the limits."""
    return int(topology["nodes"])


def check_upgrade(system: Spec, older: Spec) -> None:
    """ConfigError unless this is a later version, asked for the settings that the older one's collection has."""
    check_newer("weaviate", system, older)
    asked, kept = (one.get("settings") or {} for one in (system, older))
    for name in sorted({*asked, *kept}):
        if asked.get(name) != kept.get(name):
            raise ConfigError(
                f"settings.{name}: {asked.get(name)!r}, but {kept.get(name)!r} of the older system: weaviate keeps a "
                "collection's settings when it is upgraded in place"
            )


def asked_settings(system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
    """What the server must say of itself. `ef_search` None leaves it out (nothing was applied yet)."""
    return {"metric": metric, **indexes.asked(system.get("settings") or {}, index, ef_search)}


def data_components(data_dir: Path) -> list[Component]:
    """The parts of a data folder. Objects (with their vectors), inverted and vector index are a shard's own folders."""
    shard = "data/*/*"
    return components(
        data_dir,
        [
            (name, net, [*patterns, *(f"node*/{pattern}" for pattern in patterns)])
            for name, net, patterns in (
                ("objects", True, [f"{shard}/lsm/objects"]),
                ("inverted_index", True, [f"{shard}/lsm/property_*"]),
                ("vector_index", True, [f"{shard}/*.hnsw.commitlog.d", f"{shard}/lsm/vectors*"]),
                ("raft", False, ["data/raft"]),
                ("logs", False, ["logs"]),
                ("config", False, ["ports.json"]),
            )
        ],
    )


def fairness(system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
    """How Weaviate is treated."""
    settings = system.get("settings") or {}
    shards, replicas = topology["shards"], topology["replicas"]
    told = "GOMEMLIMIT (90 % of the limit) and GOMAXPROCS, " if topology.get("limits") else ""
    rest = settings.get("protocol") == "rest"
    background = in_background(settings)
    built = "in the background (ASYNC_INDEXING)" if background else "while rows are inserted (synchronous indexing)"
    asked = topology.get("consistency", "its defaults (writes quorum, searches one)")
    return {
        "query protocol": (
            "GraphQL over HTTP/1.1 kept alive, one vector a request, as the shortest decimals of float32; "
            "ids and distances are returned, no properties"
            if rest
            else "gRPC, one vector a request, as float32 bytes; ids and distances are returned, no properties"
        ),
        "insert protocol": (
            "REST batch/objects, JSON with the shortest decimals, one connection, the next batch once acknowledged"
            if rest
            else "gRPC BatchObjects, one connection, the next batch after the acknowledgement"
        ),
        **indexes.described(index),
        "ef applies to": "the graph of each shard; a setting of the collection, changed between runs",
        "segments": f"{_count(shards, 'shard')}, each one graph, built {built}",
        "clients ask": (
            "each another node in turn" if topology.get("entry") == "all" else "the first node, which asks the others"
        )
        if topology["nodes"] > 1
        else "the one node",
        "filters": (
            f"inverted index (category) and range index (price) first; below flatSearchCutoff="
            f"{settings.get('flatSearchCutoff', 'default 40000')} matches an exact scan, above it HNSW with "
            f"filterStrategy={settings.get('filterStrategy', 'default')}"
        ),
        "consistency": "one replica: there is nothing to wait for"
        if replicas == 1
        else f"{replicas} replicas, {asked}",
        "durability": "inserts are acknowledged after the write-ahead log was written, without an fsync each",
        "set by the system": ", ".join(f"{name}={value}" for name, value in settings.items()) or "nothing",
        "set by anncestry": (
            f"paths, ports, addresses, {told}log level; index and vectors loaded before it is ready"
            + ("; RAFT timeouts of a local network" if topology["nodes"] > 1 else "")
        ),
        "left at defaults": "caches, compaction, concurrency"
        + ("" if told else ", GOMEMLIMIT")
        + ("" if topology["nodes"] > 1 else ", timeouts of raft"),
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
