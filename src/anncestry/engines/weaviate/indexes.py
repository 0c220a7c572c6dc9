"""The types of index and the quantizers that a version of Weaviate has, and how it calls them. Imports no client.

A quantizer that a version does not know it ignores without a word: so what a version has is checked while the workflow
is parsed, and what a collection says of itself is read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anncestry.engines.base import Spec, refuse_unknown, version_of
from anncestry.engines.indexes import Offered, Parameter, check_index
from anncestry.engines.weaviate.settings import METRICS, OF_GRAPHS, OF_SERVERS
from anncestry.errors import ConfigError, Unsupported

_GRAPH = {"M": Parameter(4, 2047), "ef_construction": Parameter(4, 32_768)}
OFFERED: Offered = {"hnsw": _GRAPH, "flat": {}, "dynamic": {"threshold": Parameter(1, 2**31 - 1), **_GRAPH}}
_QUANTIZERS = {"hnsw": ("pq", "sq", "bq", "rq8", "rq1"), "flat": ("bq",), "dynamic": ()}
_SINCE = {"bq": (1, 24, 0), "sq": (1, 26, 0), "dynamic": (1, 25, 0), "rq8": (1, 32, 0), "rq1": (1, 33, 0)}
TRAINED = ("pq", "sq")
"""Quantizers that learn from vectors: given when the collection is created, they are never trained."""
_SECTIONS = {"pq": "pq", "sq": "sq", "bq": "bq", "rq8": "rq", "rq1": "rq"}
_BITS = {"rq8": 8, "rq1": 1}
_OPTIONS = {"rescore_limit": "rescoreLimit", "training_limit": "trainingLimit", "segments": "segments"}


def check(system: Spec, index: Spec) -> None:
    """ConfigError for an index, or settings of one, that this version does not have."""
    name = f"weaviate {system['version']}"
    check_index(name, index, OFFERED, _QUANTIZERS)
    for what in (index["type"], index.get("quantizer")):
        since = _SINCE.get(str(what))
        if since is not None and version_of(system) < since:
            first = ".".join(map(str, since[:2]))
            key = "type" if what == index["type"] else "quantizer"
            raise Unsupported(f"index.{key}: {what} is unsupported by {name}; it came with {first}")
    settings = system.get("settings") or {}
    refuse_unknown("settings of weaviate", settings, (*OF_GRAPHS, *OF_SERVERS))
    if index["type"] == "flat":
        for key in OF_GRAPHS:
            if key in settings:
                raise ConfigError(f"settings.{key}: is of an index with a graph, not of a flat one")
    if index["type"] == "dynamic" and settings.get("asyncIndexing") is not True:
        raise ConfigError("index.type: dynamic needs settings: {asyncIndexing: true}: it is indexed in the background")


def config(settings: Spec, index: Spec, metric: str) -> dict[str, Any]:
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


def asked(settings: Spec, index: Spec, ef_search: int | None) -> dict[str, Any]:
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


def described(index: Spec) -> dict[str, str]:
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
