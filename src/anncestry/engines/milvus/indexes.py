"""The types of index that Milvus has, and how it calls them and their parameters. Imports no client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anncestry.engines.base import Spec, version_of
from anncestry.engines.indexes import Offered, Parameter, check_index
from anncestry.errors import ConfigError, Unsupported

_NLIST = Parameter(1, 65_536)
OFFERED: Offered = {
    "hnsw": {"M": Parameter(4, 64), "ef_construction": Parameter(8, 512)},
    "flat": {},
    "ivf_flat": {"nlist": _NLIST},
    "ivf_sq8": {"nlist": _NLIST},
    "ivf_pq": {"nlist": _NLIST, "m": Parameter(1, 65_536), "nbits": Parameter(1, 16, needed=False)},
    "scann": {"nlist": _NLIST, "reorder_k": Parameter(1, 16_384)},
    "diskann": {},
}
_SINCE = {"scann": (2, 3, 0)}
_NAMES = {"ef_construction": "efConstruction"}
"""What Milvus calls a parameter where it isn't the same."""
_IN_SEARCHES = ("reorder_k",)


def check(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """ConfigError for an index that this version, as it is run, can't build, or that the workload can't ask."""
    if index.get("type") == "diskann" and topology.get("runtime") != "remote":
        raise Unsupported(
            f"index.type: diskann is unsupported by the wheel of milvus {system['version']}: DISKANN is not compiled "
            "into it, and it would try for ever; a server with it is reached with runtime remote"
        )
    check_index(f"milvus {system['version']}", index, OFFERED)
    kind = index["type"]
    since = _SINCE.get(kind)
    if since is not None and version_of(system) < since:
        first = ".".join(map(str, since))
        raise Unsupported(f"index.type: {kind} is unsupported by milvus {system['version']}; it came with {first}")
    if workload is not None and index.get("reorder_k", workload["k"]) < workload["k"]:
        raise ConfigError(f"index.reorder_k: {index['reorder_k']} is less than k: {workload['k']}")


def build_params(index: Spec) -> dict[str, Any]:
    """The parameters of CreateIndex, by Milvus' names."""
    params = {_NAMES.get(name, name): value for name, value in index.items() if name not in ("type", *_IN_SEARCHES)}
    return {**params, "with_raw_data": True} if index["type"] == "scann" else params


def search_params(index: Spec, effort: int) -> dict[str, int]:
    """The parameters of a search: the effort by its name for this type, and what the index says beside it."""
    kind = index["type"]
    if kind == "flat":
        return {}
    name = {"hnsw": "ef", "diskann": "search_list"}.get(kind, "nprobe")
    return {name: effort, **{key: index[key] for key in _IN_SEARCHES if key in index}}


def asked(index: Spec) -> dict[str, Any]:
    """What the server must say of its index, by our names."""
    return {"index_type": index["type"], **{key: index[key] for key in index if key not in ("type", *_IN_SEARCHES)}}


def read_back(kind: str, built: Mapping[str, Any]) -> dict[str, Any]:
    """The same, read from the parameters that the server describes its index with."""
    return {
        "index_type": kind,
        **{
            name: int(built[theirs])
            for name in OFFERED.get(kind, {})
            if (theirs := _NAMES.get(name, name)) in built and name not in _IN_SEARCHES
        },
    }


def described(index: Spec) -> dict[str, str]:
    """A line on the index for the reader of a report."""
    if index["type"] == "hnsw":
        return {"HNSW": f"M={index['M']} (2M at the bottom layer), efConstruction={index['ef_construction']}"}
    said = ", ".join(f"{name}={value}" for name, value in index.items() if name != "type")
    return {"index": index["type"].upper() + (f": {said}" if said else "")}
