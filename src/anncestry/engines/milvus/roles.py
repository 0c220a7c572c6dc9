"""The roles of a Milvus, and which topologies there can be. Imports no client."""

from __future__ import annotations

from anncestry.engines.base import Spec
from anncestry.errors import ConfigError

COORDINATORS = ("rootcoord", "datacoord", "querycoord")
COUNTED = ("proxy", "datanode", "indexnode")
"""Roles of which a topology may ask for more than one (`roles`); query nodes are its `nodes`."""

PART_MEMORY_MIN_MIB = {"etcd": 64, "object_store": 256, "log": 1280}
"""Of what stands beside it: below, it does not start, or (Kafka, with 1 GiB of heap) can't get what it asks for."""


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
        if "roles" in topology:
            raise ConfigError("topology: roles: a milvus without external log is one process, of all roles")
    if external and "etcd" not in external:
        raise ConfigError("topology: external: milvus keeps its etcd inside only if nothing else is outside")
    if topology.get("runtime") == "docker" and "log" in external:
        raise ConfigError("topology: external.log: a distributed milvus runs natively only so far, not in docker")
    for place, limits in (topology.get("external_limits") or {}).items():
        if place not in external:
            raise ConfigError(f"topology: external_limits.{place}: there is no external {place}")
        asked_mib, least_mib = limits.get("memory_mib"), PART_MEMORY_MIN_MIB[place]
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
