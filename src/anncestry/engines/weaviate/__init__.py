"""What Weaviate offers. Imports no client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anncestry.drive.build import identity
from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offered, Offers, Parameter, refuse_unknown, version_of
from anncestry.errors import ConfigError, Unsupported

COLLECTION = "Bench"
METRICS = {"l2": "l2-squared", "cosine": "dot"}
"""Vectors come normalised for cosine, so that the inner product is the cosine."""
OF_GRAPHS = ("flatSearchCutoff", "filterStrategy", "vectorCacheMaxObjects", "cleanupIntervalSeconds")
"""What of the vectorIndexConfig of an index with a graph a system may set."""
OF_SERVERS = ("asyncIndexing", "protocol")
"""What a system may set beside: whether vectors are indexed in the background; by what rows and queries go."""
PROTOCOLS = ("grpc", "rest")
DEFAULT_CUTOFF = 40_000
"""flatSearchCutoff of a collection that sets none."""
_SDK_FROM = (1, 27, 0)
"""The first version that weaviate-client speaks to as it is locked."""
_OLD_SDK, _OLD_SDK_BELOW = "weaviate-client-4.4.4", (1, 24, 0)
"""The client (in envs/) that earlier versions are asked by, and the first that was not tried with it."""
_REST_SDK = "weaviate-client-3.26.7"
"""The client (in envs/) that speaks REST and GraphQL alone."""


def in_background(settings: Spec) -> bool:
    """Whether rows are indexed after they are acknowledged."""
    return settings.get("asyncIndexing") is True


def sdk_environment(system: Spec) -> str | None:
    """The environment of the client library for the system's version; None where it is the locked one.

    Unsupported where it is neither's. `protocol: rest` has the client before gRPC, whatever the version.
    """
    if (system.get("settings") or {}).get("protocol") == "rest":
        return _REST_SDK
    version = version_of(system)
    if version >= _SDK_FROM:
        return None
    if version >= _OLD_SDK_BELOW:
        raise Unsupported(
            f"client: sdk is unsupported by weaviate {system['version']}: weaviate-client as it is locked here speaks "
            f"to Weaviate from {'.'.join(map(str, _SDK_FROM))} on, {_OLD_SDK} (envs/) was tried "
            f"below {'.'.join(map(str, _OLD_SDK_BELOW))}; take client: bytes"
        )
    return _OLD_SDK


_GRAPH = {"M": Parameter(4, 2047), "ef_construction": Parameter(4, 32_768)}
INDEXES: Offered = {"hnsw": _GRAPH, "flat": {}, "dynamic": {"threshold": Parameter(1, 2**31 - 1), **_GRAPH}}
# A version ignores a quantizer that it does not know without a word: so what it has is checked while the workflow is
# parsed, and what a collection says of itself is read back.
QUANTIZERS = {"hnsw": ("pq", "sq", "bq", "rq8", "rq1"), "flat": ("bq",), "dynamic": ()}
TRAINED = ("pq", "sq")
"""Quantizers that learn from vectors: given when the collection is created, they are never trained."""
_SECTIONS = {"pq": "pq", "sq": "sq", "bq": "bq", "rq8": "rq", "rq1": "rq"}
_BITS = {"rq8": 8, "rq1": 1}
_OPTIONS = {"rescore_limit": "rescoreLimit", "training_limit": "trainingLimit", "segments": "segments"}


def index_config(settings: Spec, index: Spec, metric: str) -> dict[str, Any]:
    """The vectorIndexConfig of a new collection."""
    distance = {"distance": METRICS[metric]}
    quantized = {} if index.get("quantizer") in TRAINED else quantizer_config(index)
    if index["type"] == "flat":
        return {**distance, **quantized}
    of_graph = {name: value for name, value in settings.items() if name in OF_GRAPHS}
    graph = {"maxConnections": index["M"], "efConstruction": index["ef_construction"], **of_graph}
    if index["type"] == "dynamic":
        return {**distance, "threshold": index["threshold"], "hnsw": {**distance, **graph}, "flat": distance}
    return {**distance, **graph, **quantized}


def quantizer_config(index: Spec) -> dict[str, Any]:
    """The part of a vectorIndexConfig that turns the index' quantizer on; nothing for an index without."""
    name = index.get("quantizer")
    if name is None:
        return {}
    options = {theirs: index[ours] for ours, theirs in _OPTIONS.items() if ours in index}
    bits = {"bits": _BITS[name]} if name in _BITS else {}
    return {_SECTIONS[name]: {"enabled": True, **bits, **options}}


def graph_of(definition: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a collection's definition that configures its graph, None for a flat one."""
    kind, vectors = definition["vectorIndexType"], definition["vectorIndexConfig"]
    if kind == "flat":
        return None
    found: dict[str, Any] = vectors["hnsw"] if kind == "dynamic" else vectors
    return found


def asked_index(settings: Spec, index: Spec, ef_search: int | None) -> dict[str, Any]:
    """What the collection must say of its index, by our names. `ef_search` None leaves it out."""
    graph: dict[str, Any] = {}
    if index["type"] != "flat":
        graph = {"M": index["M"], "ef_construction": index["ef_construction"]}
        graph |= {} if ef_search is None else {"ef_search": ef_search}
    options = {name: index[name] for name in (*_OPTIONS, "threshold") if name in index}
    return {
        "index_type": index["type"],
        **graph,
        **options,
        "quantizer": index.get("quantizer"),
        "compressed": "quantizer" in index,
        **{name: value for name, value in settings.items() if name in OF_GRAPHS},
    }


def read_back(definition: dict[str, Any], shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same, read from the collection's definition and its shards' states."""
    vectors = definition["vectorIndexConfig"]
    graph = graph_of(definition)
    found: dict[str, Any] = {
        "index_type": definition["vectorIndexType"],
        "quantizer": None,
        "compressed": bool(shards) and all(shard.get("compressed", False) for shard in shards),
    }
    if graph is not None:
        found |= {"M": graph["maxConnections"], "ef_construction": graph["efConstruction"], "ef_search": graph["ef"]}
        found |= {name: graph[name] for name in OF_GRAPHS if name in graph}
    if "threshold" in vectors:
        found["threshold"] = vectors["threshold"]
    for name, section in _SECTIONS.items():
        told = vectors.get(section) or {}
        if told.get("enabled") and told.get("bits", _BITS.get(name)) == _BITS.get(name):
            found["quantizer"] = name
            found |= {ours: told[theirs] for ours, theirs in _OPTIONS.items() if theirs in told}
    return found


def describe_index(index: Spec) -> dict[str, str]:
    """Lines on the index for the reader of a report."""
    said = {}
    if index["type"] != "flat":
        graph = f"maxConnections={index['M']} (2M at the bottom layer), efConstruction={index['ef_construction']}"
        said["HNSW"] = (
            graph if index["type"] == "hnsw" else f"{graph}, from {index['threshold']} objects on; flat before"
        )
    else:
        said["index"] = "flat: every vector is looked at, read from disk where it is not cached"
    if "quantizer" in index:
        options = ", ".join(f"{name}={index[name]}" for name in _OPTIONS if name in index) or "its defaults"
        trained = (
            "turned on after the insertion, and trained then" if index["quantizer"] in TRAINED else "on from the start"
        )
        said["quantizer"] = (
            f"{index['quantizer']} ({options}), {trained}; the best found are ranked again by the vectors"
        )
    return said


_FILTER_STRATEGY_FROM = (1, 27, 0)
_FILTER_STRATEGIES = ("sweeping", "acorn")


@dataclass(frozen=True, kw_only=True)
class WeaviateOffers(Offers):
    """Beside what every engine checks: clusters, the settings of versions, and what goes by REST or by the library."""

    def check_topology(self, system: Spec, topology: Spec) -> None:
        super().check_topology(system, topology)
        nodes, shards, replicas = topology["nodes"], topology["shards"], topology["replicas"]
        if replicas > nodes:
            raise ConfigError(f"topology: {replicas} replicas need as many nodes, there are {nodes}")
        if nodes > 1 and shards * replicas < nodes:
            raise ConfigError(f"topology: {shards} shards with {replicas} replicas leave some of {nodes} nodes empty")
        if nodes == 2:
            raise ConfigError("topology: 2 nodes of weaviate can't outvote each other (RAFT): take 1, or 3 and more")

    def may_freeze(self, system: Spec, topology: Spec) -> Freeze:
        if topology["nodes"] > 1:
            return Freeze(no="elects its leaders anew (RAFT) when the members of its cluster stand still")
        return super().may_freeze(system, topology)

    def check_index(self, system: Spec, topology: Spec, index: Spec) -> None:
        super().check_index(system, topology, index)
        if index["type"] == "dynamic" and not in_background(system.get("settings") or {}):
            raise ConfigError(
                "index.type: dynamic needs settings: {asyncIndexing: true}: it is indexed in the background"
            )
        if index["type"] == "dynamic" and topology["runtime"] == "remote":
            raise Unsupported(
                "index.type: dynamic is unsupported of a weaviate that somebody else runs: whether it is flat or a "
                "graph by now shows in its folder alone"
            )

    def check_settings(self, system: Spec, topology: Spec, index: Spec) -> None:
        settings = system.get("settings") or {}
        refuse_unknown("settings of weaviate", settings, (*OF_GRAPHS, *OF_SERVERS))
        if topology["runtime"] == "remote" and "asyncIndexing" in settings:
            raise Unsupported(
                "settings.asyncIndexing: unsupported of a weaviate that somebody else runs: it does not tell how it is "
                "set, so its loads wait for an empty queue in any case"
            )
        for key in OF_GRAPHS if index["type"] == "flat" else ():
            if key in settings:
                raise ConfigError(f"settings.{key}: is of an index with a graph, not of a flat one")
        if "filterStrategy" in settings and version_of(system) < _FILTER_STRATEGY_FROM:
            raise Unsupported(
                f"settings.filterStrategy: unsupported by weaviate {system['version']}; it came with 1.27"
            )
        protocol = settings.get("protocol", PROTOCOLS[0])
        if protocol not in PROTOCOLS:
            raise ConfigError(f"settings.protocol: {protocol!r} is none of {', '.join(PROTOCOLS)}")
        if protocol == "rest" and "credentials" in topology:
            raise Unsupported("settings.protocol: rest carries no credentials so far; take grpc for that server")
        strategy = settings.get("filterStrategy", _FILTER_STRATEGIES[0])
        if strategy not in _FILTER_STRATEGIES:
            raise ConfigError(f"settings.filterStrategy: {strategy!r} is none of {', '.join(_FILTER_STRATEGIES)}")

    def check_workload(self, system: Spec, topology: Spec, index: Spec, workload: Spec) -> None:
        super().check_workload(system, topology, index, workload)
        sdk = workload.get("client") == "sdk"
        if sdk and (workload.get("filter") or {}).get("field") == "payload":
            raise Unsupported("filter: conditions on payload go to weaviate as bytes so far, not by its library (sdk)")
        if (system.get("settings") or {}).get("protocol") == "rest" and "stream" in workload:
            raise Unsupported("settings.protocol: a stream of writes goes by grpc so far, not by rest")
        self.client_env(system, workload)
        for key in ("entry", "consistency"):
            if sdk and topology.get(key, "first") != "first":
                raise ConfigError(f"client: sdk asks one node as the library chooses; the topology has {key}")

    def check_load_by_library(self, system: Spec, topology: Spec) -> None:
        super().check_load_by_library(system, topology)
        if topology.get("consistency") is not None:
            raise Unsupported(
                "load.client: sdk of weaviate is unsupported with a consistency: it takes its own default"
            )

    def needs_interface(self, system: Spec) -> bool:
        """The early ones look for a private address to advertise, whatever address they are told."""
        return version_of(system) < _SDK_FROM

    def client_env(self, system: Spec, workload: Spec) -> dict[str, str] | None:
        name = sdk_environment(system) if workload.get("client") == "sdk" else None
        return super().client_env(system, workload) if name is None else identity(name)

    def limited(self, system: Spec, topology: Spec) -> int:
        return int(topology["nodes"])

    def members(self, system: Spec, topology: Spec) -> list[str]:
        return [f"node{number + 1}" for number in range(topology["nodes"])]

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        super().check_upgrade(system, older)
        asked, kept = (one.get("settings") or {} for one in (system, older))
        for name in sorted({*asked, *kept}):
            if asked.get(name) != kept.get(name):
                raise ConfigError(
                    f"settings.{name}: {asked.get(name)!r}, but {kept.get(name)!r} of the older system: weaviate "
                    "keeps a collection's settings when it is upgraded in place"
                )


OFFERS = WeaviateOffers(
    name="weaviate",
    # Earlier versions speak another gRPC; later ones were not tried: try one, then move the bound.
    versions=((1, 23, 9), (1, 36, 0)),
    topology=("entry", "consistency"),
    memory_min_mib=128,  # of a node: below, it dies while it starts or at its first batch
    endpoints=("http", "grpc"),
    indexes=INDEXES,
    quantizers=QUANTIZERS,
    since={"bq": (1, 24), "sq": (1, 26), "dynamic": (1, 25), "rq8": (1, 32), "rq1": (1, 33)},
    libraries=("sdk",),
    sdk="weaviate-client",
    stream=True,
    no_fault=None,
    no_zero_vectors=None,
    freeze=Freeze(40.0),
    conditions=("keyword", "int", "float"),
    loads_by_library=True,
    killed_loads=True,
    beyond_loopback=True,
)
