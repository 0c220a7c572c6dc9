"""What Milvus offers. Imports no client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anncestry.drive.build import identity
from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offered, Offers, Parameter, Version, version_of
from anncestry.errors import ConfigError, Unsupported

OLDEST, BELOW, REMOTE_BELOW = (2, 2, 16), (2, 4, 0), (2, 7, 0)
"""2.2.4 speaks another protocol than the client; of later versions no package registry has a server, so that they are
remote ones, asked by what is public of them."""
EARLY = (2, 1, 0)
"""The one earlier version that can be asked, in its own way."""
EARLY_SETTINGS = {
    "dataCoord.segment.maxSize": ("datacoord", "segment_max_size"),
    "dataNode.flush.insertBufSize": ("datanode", "flush_insert_buffer_size"),
    "rootCoord.minSegmentSizeToEnableIndex": ("rootcoord", "min_segment_size_to_enable_index"),
}
"""The settings that a 2.1 tells → type of the component that does, and how it calls it."""

COMPONENTS = ("rootCoord", "dataCoord", "queryCoord", "indexCoord", "dataNode", "queryNode", "indexNode")
"""Sections of milvus.yaml whose component says its own settings."""
VECTORDBBENCH, SDK_GO = "vectordbbench", "milvus-sdk-go"
"""Names in envs/: packages of VectorDBBench's client, and the program of the Go library."""
MMAP, ON_STORAGE = "queryNode.mmapDirPath", "storage"
"""The setting that has vectors and indexes mapped from files instead of read into memory, and its one value."""
MMAP_FOLDER = "mmap"
PROGRAM, CONFIGS = "milvus", "configs"
"""What an image of a registry must have, as `programs` of its artifact names them: the program, and the folder of its
milvus.yaml."""


@dataclass(frozen=True)
class Facts:
    """What differs from version to version."""

    version: Version

    @property
    def early(self) -> bool:
        """Whether it is a 2.1: a library that serves, which lacks some calls."""
        return self.version == EARLY

    @property
    def from_2_3(self) -> bool:
        """Whether a query may ask for count(*) (earlier ones return the rows themselves, to be counted here); the proxy
        says which index a loaded segment has (earlier only the query node does); components can be told the address
        under which they register (earlier they take the machine's first)."""
        return self.version >= (2, 3, 0)

    @property
    def evaluates(self) -> bool:
        """Whether /expr tells any setting in effect. Earlier on each component tells those of its own section."""
        return self.version >= (2, 3, 4)

    def says_setting(self, dotted: str) -> bool:
        """Whether the setting in effect can be read back."""
        if self.early:
            return dotted in EARLY_SETTINGS
        return self.evaluates or dotted.split(".")[0] in COMPONENTS


def facts(system: Spec) -> Facts:
    return Facts(version_of(system))


_NLIST = Parameter(1, 65_536)
_REORDERED_MIN = 100
"""The checks of a load ask for so many rows; knowhere ranks again no fewer than it is asked for."""
INDEXES: Offered = {
    "hnsw": {"M": Parameter(4, 64), "ef_construction": Parameter(8, 512)},
    "flat": {},
    "ivf_flat": {"nlist": _NLIST},
    "ivf_sq8": {"nlist": _NLIST},
    "ivf_pq": {"nlist": _NLIST, "m": Parameter(1, 65_536), "nbits": Parameter(1, 16, needed=False)},
    "scann": {"nlist": _NLIST, "reorder_k": Parameter(_REORDERED_MIN, 16_384)},
    "diskann": {},
}
_NAMES = {"ef_construction": "efConstruction"}
"""What Milvus calls a parameter where it isn't the same."""
_IN_SEARCHES = ("reorder_k",)


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


def asked_index(index: Spec) -> dict[str, Any]:
    """What the server must say of its index, by our names."""
    return {"index_type": index["type"], **{key: index[key] for key in index if key not in ("type", *_IN_SEARCHES)}}


def read_back(kind: str, built: Mapping[str, Any]) -> dict[str, Any]:
    """The same, read from the parameters that the server describes its index with."""
    return {
        "index_type": kind,
        **{
            name: int(built[theirs])
            for name in INDEXES.get(kind, {})
            if (theirs := _NAMES.get(name, name)) in built and name not in _IN_SEARCHES
        },
    }


def describe_index(index: Spec) -> dict[str, str]:
    """A line on the index for the reader of a report."""
    if index["type"] == "hnsw":
        return {"HNSW": f"M={index['M']} (2M at the bottom layer), efConstruction={index['ef_construction']}"}
    said = ", ".join(f"{name}={value}" for name, value in index.items() if name != "type")
    return {"index": index["type"].upper() + (f": {said}" if said else "")}


COORDINATORS = ("rootcoord", "datacoord", "querycoord")
COUNTED = ("proxy", "datanode", "indexnode")
"""Roles of which a topology may ask for more than one (`roles`); query nodes are its `nodes`."""

PART_MEMORY_MIN_MIB = {"etcd": 64, "object_store": 256}
"""Of what stands beside it: below, it does not start."""
LOG_MEMORY_MIN_MIB = {"kafka": 1280, "pulsar": 2304}
"""Product → the same of what may be its log: below, it can't get what it asks for (1 GiB of heap; Pulsar as much
outside of it)."""


def product(part: str) -> str:
    """What a part of config/parts.yaml is: its name without its version."""
    return part.partition("-")[0]


def members_of(version: str, topology: Spec) -> dict[str, str]:
    """Name → role of Milvus' own processes, in the order in which they start. (2.3 has no index coordinator.)"""
    if "log" not in (topology.get("external") or {}):
        return {"standalone": "standalone"}
    asked = topology.get("roles") or {}
    coordinators = (*COORDINATORS, "indexcoord") if version.startswith("2.2.") else COORDINATORS
    members = {name: name for name in coordinators}
    for role in COUNTED:
        members |= _numbered(role, asked.get(role, 1))
    return members | {f"querynode{number + 1}": "querynode" for number in range(topology["nodes"])}


def _numbered(role: str, count: int) -> dict[str, str]:
    return {role: role} if count == 1 else {f"{role}{number + 1}": role for number in range(count)}


def check_roles(topology: Spec) -> None:
    """ConfigError for a topology that Milvus can't have."""
    external = topology.get("external") or {}
    nodes, replicas = topology["nodes"], topology["replicas"]
    if "log" not in external:
        if nodes != 1 or replicas != 1:
            raise ConfigError(
                f"topology: nodes: {nodes}, replicas: {replicas}: more than one query node of milvus needs external: "
                "{etcd: …, log: …}, its distributed deployment"
            )
        if key := next((key for key in ("roles", "role_limits") if key in topology), None):
            raise ConfigError(f"topology: {key}: a milvus without external log is one process, of all roles")
    if external and "etcd" not in external:
        raise ConfigError("topology: external: milvus keeps its etcd inside only if nothing else is outside")
    if "log" in external and product(external["log"]) not in LOG_MEMORY_MIN_MIB:
        known = " or ".join(LOG_MEMORY_MIN_MIB)
        raise ConfigError(f"topology: external.log: {external['log']}: the log of milvus is a part {known}")
    for place, limits in (topology.get("external_limits") or {}).items():
        if place not in external:
            raise ConfigError(f"topology: external_limits.{place}: there is no external {place}")
        asked_mib = limits.get("memory_mib")
        least_mib = LOG_MEMORY_MIN_MIB[product(external[place])] if place == "log" else PART_MEMORY_MIN_MIB[place]
        if asked_mib is not None and asked_mib < least_mib:
            raise ConfigError(
                f"topology: external_limits.{place}.memory_mib: {asked_mib} MiB; it does not work with less than "
                f"{least_mib}"
            )
    if replicas > nodes:
        raise ConfigError(f"topology: {replicas} replicas need as many query nodes, there are {nodes}")
    for role in topology.get("roles") or {}:
        if role not in COUNTED:
            raise ConfigError(f"topology: roles.{role}: unknown; known: {', '.join(COUNTED)} (query nodes are `nodes`)")


def check_limited_roles(version: str, topology: Spec) -> None:
    """ConfigError for limits of a role that this version has no process of."""
    known = list(dict.fromkeys(members_of(version, topology).values()))
    for role in topology.get("role_limits") or {}:
        if role not in known:
            raise ConfigError(f"topology: role_limits.{role}: unknown; of milvus {version}: {', '.join(known)}")


_RESERVED = ("etcd", "localStorage.path", "rocksmq.path", "log.file.rootPath", "mq", "kafka", "pulsar", "natsmq")


@dataclass(frozen=True, kw_only=True)
class MilvusOffers(Offers):
    """Beside what every engine checks: what a version lacks, roles, and the names of milvus.yaml."""

    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
        if facts(system).early:
            _check_early(system, topology, index, workload)
        super().check(system, topology, index, workload)

    def check_version(self, system: Spec, topology: Spec) -> None:
        if not facts(system).early:
            super().check_version(system, topology)

    def check_topology(self, system: Spec, topology: Spec) -> None:
        super().check_topology(system, topology)
        check_roles(topology)
        check_limited_roles(system["version"], topology)
        if "object_store" in (topology.get("external") or {}) and not (facts(system).from_2_3 or _from_image(system)):
            raise Unsupported(
                f"topology: external.object_store is unsupported by the wheel of milvus {system['version']}: its "
                "client of S3 is built for OpenSSL 1.0, finds the program's 1.1 in its place, and crashes; leave "
                "object_store out (a shared folder takes its place), or take an image of a registry or a later version"
            )
        if _from_image(system):
            for name in (PROGRAM, CONFIGS):
                if name not in system["artifact"]["programs"]:
                    raise ConfigError(
                        f"artifact: programs.{name} is missing: an image of milvus needs {PROGRAM} (the program) and "
                        f"{CONFIGS} (the folder of its milvus.yaml), each with its path in the image"
                    )
        if "storage" in topology and {"external", "roles"} & topology.keys():
            raise ConfigError("topology: storage: milvus keeps its data on a storage path only where it is one process")

    def check_index(self, system: Spec, topology: Spec, index: Spec) -> None:
        if index.get("type") == "diskann" and topology.get("runtime") != "remote" and not _from_image(system):
            raise Unsupported(
                f"index.type: diskann is unsupported by the wheel of milvus {system['version']}: DISKANN is not "
                "compiled into it, and it would try for ever; take an image of a registry, or runtime remote"
            )
        super().check_index(system, topology, index)

    def check_settings(self, system: Spec, topology: Spec, index: Spec) -> None:
        for dotted, value in (system.get("settings") or {}).items():
            if dotted == MMAP:
                _check_mapped(system, topology, value)
                continue
            if "." not in dotted or isinstance(value, dict | list):
                raise ConfigError(f"settings: {dotted}: {value!r} is not a dotted name of milvus.yaml with one value")
            if dotted.endswith((".port", ".ip", "Port")) or dotted.startswith(_RESERVED):
                raise ConfigError(f"settings: {dotted} is set by anncestry and can't be changed")
            if not facts(system).says_setting(dotted):
                raise ConfigError(
                    f"settings: milvus {system['version']} can't say what {dotted} is in effect (from 2.3.4 on it "
                    f"can); of this version: {', '.join(f'{name}.…' for name in COMPONENTS)}"
                )

    def check_workload(self, system: Spec, topology: Spec, index: Spec, workload: Spec) -> None:
        super().check_workload(system, topology, index, workload)
        if index.get("reorder_k", workload["k"]) < workload["k"]:
            raise ConfigError(f"index.reorder_k: {index['reorder_k']} is less than k: {workload['k']}")
        if workload.get("client") == VECTORDBBENCH:
            if workload.get("filter") is not None:
                raise Unsupported(f"client: {VECTORDBBENCH} is asked without a filter; take sdk")
            if index.get("type") not in ("hnsw", "diskann"):
                raise Unsupported(
                    f"client: {VECTORDBBENCH} asks an index of type hnsw or diskann; here it is {index.get('type')}"
                )

    def needs_interface(self, system: Spec) -> bool:
        """A 2.1 looks for an address that is not the loopback's, whatever it is told, and ends without one."""
        return facts(system).early

    def check_load_by_library(self, system: Spec, topology: Spec) -> None:
        if facts(system).early:
            raise Unsupported(
                f"load.client: sdk is unsupported by milvus {system['version']}: the later client asks for what it "
                "lacks"
            )
        super().check_load_by_library(system, topology)

    def client_env(self, system: Spec, workload: Spec) -> dict[str, str] | None:
        name = {"sdk-go": SDK_GO, VECTORDBBENCH: VECTORDBBENCH}.get(workload.get("client", "bytes"))
        return super().client_env(system, workload) if name is None else identity(name)

    def limited(self, system: Spec, topology: Spec) -> int:
        # What stands beside Milvus has the limits of `external_limits`.
        return len(members_of(system["version"], topology))

    def members(self, system: Spec, topology: Spec) -> list[str]:
        return [*members_of(system["version"], topology), *(topology.get("external") or {})]

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        # 2.3 opens what 2.2.16 stored without the tool that 2.1 needs.
        if facts(older).early and not facts(system).early:
            raise Unsupported(f"upgrade_from: milvus {older['version']}: what it stored needs a tool to be migrated")
        super().check_upgrade(system, older)


def _from_image(system: Spec) -> bool:
    """Whether it comes as an image of a registry."""
    return bool((system.get("artifact") or {}).get("kind") == "image")


def _check_early(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """Unsupported for what a 2.1 lacks, as it is run."""
    name = f"milvus {system['version']}"
    if topology["runtime"] != "native" or {"external", "role_limits", "roles", "storage"} & topology.keys():
        raise Unsupported(f"topology: unsupported by {name}: a library, which is run as one native process")
    if index.get("type") != "hnsw":
        raise Unsupported(f"index.type: {index.get('type')} is unsupported by {name}; supported: hnsw")
    if workload is not None and (client := workload.get("client", "bytes")) != "bytes":
        raise Unsupported(f"client: {client} is unsupported by {name}: the later client asks for what it lacks")
    if workload is not None and "stream" in workload:
        raise Unsupported(f"stream is unsupported by {name}")


def _check_mapped(system: Spec, topology: Spec, value: object) -> None:
    """ConfigError unless vectors can be mapped from files of the storage path."""
    if value != ON_STORAGE or "storage" not in topology:
        raise ConfigError(
            f"settings: {MMAP}: {value!r}: it can only be {ON_STORAGE!r}, in a topology that has a storage path"
        )
    if version_of(system) < (2, 3, 4):
        raise Unsupported(f"settings: {MMAP} is unsupported by milvus {system['version']}: it came with 2.3")


OFFERS = MilvusOffers(
    name="milvus",
    versions=(OLDEST, BELOW),
    remote_below=REMOTE_BELOW,
    topology=("external", "external_limits", "role_limits", "roles", "storage"),
    memory_min_mib=512,
    endpoints=("proxy",),
    more_endpoints=("metrics",),
    indexes=INDEXES,
    since={"scann": (2, 3, 0)},
    largest_k=16_384,
    libraries=("sdk", "sdk-go", VECTORDBBENCH),
    remote_libraries=("sdk", VECTORDBBENCH),
    sdk="pymilvus",
    stream=True,
    batches=True,
    no_fault=None,
    no_zero_vectors=None,
    freeze=Freeze(15.0),  # after 40 s its sessions are lost, and searches fail within answers
    conditions=("keyword", "int", "float"),
    loads_by_library=True,
    killed_loads=True,
    beyond_loopback=True,
)
