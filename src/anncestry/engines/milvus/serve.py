"""Start, ask, stop a Milvus: one process, or several."""

from __future__ import annotations

import json
import os
import re
import stat
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import yaml
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry import redact
from anncestry.engines.base import Server, Spec, wait_for
from anncestry.engines.channel import CHANNEL_OPTIONS
from anncestry.engines.milvus import MMAP, MMAP_FOLDER, ON_STORAGE, facts, search_params
from anncestry.engines.milvus.parts import Starter, start_parts
from anncestry.engines.milvus.program import program_of
from anncestry.engines.milvus.rpc import COLLECTION, EXACT_AT, EarlyRpc, Rpc, component_setting, segment_indexes
from anncestry.engines.milvus.wire import search_request
from anncestry.engines.native import runner_for, start_native, take_remote
from anncestry.errors import ServerError, UserError
from anncestry.runtimes import namespaces, remote
from anncestry.runtimes.base import Ending, Group, Limits, Member, Runner
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import clean_environment, http_get
from anncestry.runtimes.storage import data_folder

_LOAD_TIMEOUT_S = 600.0
_NODES_TIMEOUT_S = 180.0
PASSING = tuple(f"find no available {role}" for role in ("rootcoord", "datacoord", "querycoord", "indexcoord", "proxy"))
"""What 2.2 dies of where one of its parts looks for another that is slow to register: on a busy machine, after a start
on what an earlier run left. Nothing is stored at that point, and the next start finds what this one did."""
_SESSIONS = "by-dev/meta/session/"  # etcd.rootPath and metaSubPath of the template


_INTERFACES = {"proxy": "proxy_port", "etcd": "etcd_port"}
"""What is reached at a port under a name of its own."""
_SEARCHES = re.compile(r"^milvus_querynode_sq_req_count\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_NODE_ID = re.compile(r'node_id="(\d+)"')
_RUNTIME_DIRS = (Path("/run/milvus"), Path("/tmp/milvus"))
"""Where Milvus keeps its pid file (the first that it can write to) and, in the second, a file a process: no setting
moves them."""


def runtime_folders() -> list[str]:
    """What gives a Milvus empty ones of its own there (see `namespaces`); nothing where this user can't have that.

    Then it shares those of this machine. UserError if it could write to neither: it would end at once, saying only
    that; or if another user could lead it astray there.
    """
    mine = [f"--private={folder}" for folder in _RUNTIME_DIRS if _to_be_had(folder)]
    if mine and not namespaces.refused(*mine):
        return mine
    for folder in _RUNTIME_DIRS:
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        if os.path.lexists(folder) and not _safe(folder.lstat()):
            raise UserError(f"{folder}: milvus writes there, and so can another user: have it removed by its owner")
    if not any(os.access(folder, os.W_OK | os.X_OK) for folder in _RUNTIME_DIRS):
        raise UserError(
            f"milvus keeps its pid file in {' or '.join(map(str, _RUNTIME_DIRS))}, and this user can write to neither: "
            f"have {_RUNTIME_DIRS[-1]} removed by its owner"
        )
    return []


def _to_be_had(folder: Path) -> bool:
    """Whether it is a folder, or this user can make it. (Another Milvus that ends may remove it at any moment.)"""
    try:
        return stat.S_ISDIR(folder.lstat().st_mode)
    except FileNotFoundError:
        return os.access(folder.parent, os.W_OK | os.X_OK)


def _safe(found: os.stat_result) -> bool:
    """Whether it is a folder that nobody else can write to."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def tidy_runtime_dirs(pid: int) -> None:
    """Remove what the ended Milvus of this pid left in them."""
    for folder in _RUNTIME_DIRS:
        for path in folder.glob("*"):
            with suppress(OSError):
                if path.name == f"server_id_{pid}" or (path.suffix == ".pid" and path.read_text().strip() == str(pid)):
                    path.unlink()


def remove_runtime_dirs() -> None:
    """Remove the folders if they are empty. Once no Milvus runs: what is mounted on a folder goes with it."""
    for folder in _RUNTIME_DIRS:
        with suppress(OSError):
            folder.rmdir()


class MilvusServer(Server):
    """A Milvus: one process with its etcd and message queue inside, or several."""

    collection = COLLECTION
    interface = "proxy"

    def __init__(self, group: Group, system: Spec, topology: Spec) -> None:
        super().__init__(group, topology)
        self.settings: Spec = system.get("settings") or {}
        self.facts = facts(system)
        self.exact_at = EXACT_AT if self.facts.early else None
        self.rpc = self._rpc()
        self.index: Spec = {"type": "hnsw"}
        """What it was loaded with, or is opened with."""

    @cached_property
    def metric_type(self) -> str:
        """Of its index, by its own word. It is fixed once the index is there."""
        return self.rpc.metric_type()

    def _rpc(self) -> Rpc:
        kind = EarlyRpc if self.facts.early else Rpc
        return kind(self.endpoint, authorization(self.credentials), self.tls)

    def segment_indexes(self, collection: int) -> dict[int, int]:
        """Segment → index that query nodes have loaded for it; 0 if one of them has none, so that it scans."""
        found: dict[int, int] = {}
        for member in self.group:
            if "query_node_port" in member.addresses:
                for segment, index in segment_indexes(member.addresses["query_node_port"], collection).items():
                    found[segment] = min(index, found.get(segment, index))
        return found

    def node_ids(self) -> dict[int, str]:
        """Milvus' numbers of its query nodes → names of members, where that is asked for."""
        return {}

    def connect(self) -> None:
        """Replace the channel: one that was refused waits longer and longer before it tries again, up to 10 s."""
        self.rpc.close()
        self.rpc = self._rpc()

    def crash(self) -> None:
        """As it is said there; its components' registrations stay behind, so that it waits until they expire."""
        (pids,) = self.group.pids_by_member().values()
        super().crash()
        for pid in pids:
            tidy_runtime_dirs(pid)
        self.connect()

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        handle.secure(addresses, {"proxy": ("h2",)})

    def found_mark(self) -> str | None:
        return self.rpc.description()

    def remove(self) -> None:
        self.rpc.drop()

    def stop(self) -> Ending:
        """Sign off from its etcd, then SIGKILL: what is stored stays whole, and the next start takes 3 s.

        SIGTERM hangs while a collection is loaded and otherwise ends in a panic, and both leave the registrations
        of the components behind. A next start then waits until they expire: 9 s, on other ports 24 s.
        """
        self.rpc.close()
        if any("etcd" in member.addresses and member.handle.alive() for member in self.group):
            _delete_sessions(self.address("etcd"))
        pids = self.group.pids_by_member()
        ending = super().stop()
        if self.topology["runtime"] == "native":
            for pid in chain.from_iterable(pids.values()):
                tidy_runtime_dirs(pid)
            remove_runtime_dirs()
        return ending


def _delete_sessions(etcd: str) -> None:
    """Remove the components' registrations from the embedded etcd; where that fails, they expire by themselves."""
    # On the wire, etcd's DeleteRangeRequest is the same as this message: two strings, numbers 1 and 2.
    sessions = common_pb2.KeyValuePair(key=_SESSIONS, value=_SESSIONS[:-1] + chr(ord(_SESSIONS[-1]) + 1))
    with grpc.insecure_channel(etcd, options=CHANNEL_OPTIONS) as channel:
        try:
            channel.unary_unary("/etcdserverpb.KV/DeleteRange")(sessions.SerializeToString(), timeout=2.0)
        except grpc.RpcError:
            pass


class DistributedServer(MilvusServer):
    """A Milvus of several members: each query node counts the searches that it answers."""

    def check_members(self) -> None:
        """ServerError for a member that is gone, or a query node to which Milvus assigns nothing any more."""
        self.check_alive()
        if not placed_as_declared(self):
            self.check_alive()
            replicas = [sorted(replica.node_ids) for replica in self.rpc.replicas()]
            raise ServerError(f"milvus: not all replicas have their nodes and segments any more: {replicas}")

    def node_ids(self) -> dict[int, str]:
        """Milvus' number of each query node that runs → its name. A node that is started again gets a new number."""
        return {number: name for name, (number, _) in self._metrics().items()}

    def counters(self) -> dict[str, dict[str, float]]:
        """Of each query node: "searches" that it led for its replica, "segment_searches" that it did for a leader."""
        return {name: counted for name, (_, counted) in self._metrics().items()}

    def _metrics(self) -> dict[str, tuple[int, dict[str, float]]]:
        found = {}
        for member in self.group:
            if member.role in ("querynode", "standalone") and member.handle.alive():
                try:
                    text = http_get(member.addresses["metrics"], "/metrics", 10.0).decode()
                    found[member.name] = read_metrics(text)
                except (OSError, ValueError) as error:
                    raise ServerError(f"milvus: the metrics of {member.name} can't be read: {error}") from None
        return found


def read_metrics(text: str) -> tuple[int, dict[str, float]]:
    """A query node's number, and the searches that it was sent, from its metrics in Prometheus' text form.

    Of 2.2, halves of what it counts: right where each replica is one node, which then does what it leads.
    """
    counted = {"searches": 0.0, "segment_searches": 0.0}
    for match in _SEARCHES.finditer(text):
        if 'query_type="search"' in match["labels"] and 'status="total"' in match["labels"]:
            count = float(match["value"])
            if "scope=" in match["labels"]:
                counted["segment_searches" if "FromLeader" in match["labels"] else "searches"] += count
            else:
                # 2.2 counts a search where it is led and again where it is done, without telling the two apart.
                counted["searches"] += count / 2
                counted["segment_searches"] += count / 2
    numbers = [int(number) for number in _NODE_ID.findall(text)]
    return (numbers[0] if numbers else -1), counted


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> MilvusServer:
    """Start on `data_dir`; on the ports of its last start where they are free, as Milvus comes back sooner on them."""
    if topology["runtime"] == "remote":
        server_of = partial(MilvusServer, system=system, topology=topology)
        return take_remote(server_of, "milvus (remote)", data_dir, topology, ("proxy", "metrics"), "base64")
    title, data_dir, external = f"milvus {system['version']}", data_dir.resolve(), topology.get("external")
    program = program_of(artifact_dir.resolve(), data_dir, system, topology)

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> MilvusServer:
        data_dir.mkdir(parents=True, exist_ok=True)
        local = data_folder(data_dir, topology) if "storage" in topology else None
        if external:
            beside = {place: Limits(**limits) for place, limits in (topology.get("external_limits") or {}).items()}
            starter = Starter(runner, group, ports, data_dir, beside)
            start_parts(starter, artifact_dir.resolve() / "parts", external)
        for member, role in program.members.items():
            own = program.own(member, role, ports)
            process = runner.start(
                member,
                f"{title} {member}" if external else title,
                program.command(member, role, own),
                clean_environment(program.configure(member, role, ports, runner, local)),
                data_dir,
                data_dir / "logs" / f"{member if external else 'server'}.log",
                Limits.of(topology, role),
                list(own.values()),
                runtime_folders() if topology["runtime"] == "native" else (),
            )
            addresses = {name: runner.reached(member, port) for name, port in own.items()}
            addresses |= {name: addresses[port] for name, port in _INTERFACES.items() if port in addresses}
            group.add(Member(member, role, process, addresses))
        return (DistributedServer if external else MilvusServer)(group, system, topology)

    kept, runner_of = data_dir / "ports.json", partial(runner_for, topology, [artifact_dir])
    return start_native(title, launch, _answers, program.port_names(), first_port, kept, runner_of, PASSING)


def _answers(server: MilvusServer) -> bool | None:
    """Whether every member says that it is healthy, and a gRPC call succeeds.

    (The first alone is so seconds too early on 2.2.)
    """
    for member in server.group:
        if "metrics" in member.addresses and not healthy(member.addresses["metrics"]):
            return None
    server.connect()
    server.rpc.collections()
    return True


def healthy(metrics: str) -> bool:
    """Whether the member with this metrics interface says that it is well."""
    try:
        return http_get(metrics, "/healthz", 1.0) == b"OK"
    except OSError:
        return False


def open_collection(server: MilvusServer) -> None:
    """Load the collection and wait until a search succeeds (after a restart, loading says 100 % before that).

    Not searched before loading says 100 %: the proxy keeps an early search waiting for 2.7 s longer than it need.
    """
    replicas = server.topology["replicas"]
    request = milvus_pb2.LoadCollectionRequest(collection_name=COLLECTION, replica_number=replicas)
    wait_for(
        f"milvus: loading of {replicas} replicas",  # it refuses until it knows of enough query nodes
        lambda: server.rpc.call("LoadCollection", request, common_pb2.Status, _LOAD_TIMEOUT_S),
        server,
        _NODES_TIMEOUT_S,
        patient=True,
    )
    wait_for(
        "milvus: loading",
        lambda: server.rpc.loaded_percent() >= 100 or None,
        server,
        _LOAD_TIMEOUT_S,
        poll_s=0.02,
        patient=True,
    )
    if server.topology["nodes"] > 1:
        wait_for(
            "milvus: data on every query node", lambda: placed_as_declared(server) or None, server, _LOAD_TIMEOUT_S
        )
    params = search_params(server.index, 1)
    search = search_request(np.ones((1, server.rpc.dimensions()), np.float32), 1, params, server.metric_type, "")

    def found() -> bool | None:
        reply = server.rpc.call("Search", search, milvus_pb2.SearchResults)
        return bool(reply.results.ids.int_id.data) or None

    wait_for(
        "milvus: a first search",
        found,
        server,
        _LOAD_TIMEOUT_S,
        poll_s=0.02,
        patient=True,
    )


def placed_as_declared(server: MilvusServer) -> bool:
    """Whether every replica has its nodes, and every node its segments. (Loading says 100 % before that.)"""
    declared = server.topology
    replicas = server.rpc.replicas()
    nodes = {node for replica in replicas for node in replica.node_ids}
    segments = server.rpc.segments()
    placed = {(segment.segmentID, node) for segment in segments for node in holders(segment)}
    each = {segment.segmentID for segment in segments}
    return bool(
        len(replicas) == declared["replicas"]
        and len(nodes) == declared["nodes"]
        and len(placed) == len(each) * declared["replicas"] > 0
    )


def holders(segment: milvus_pb2.QuerySegmentInfo) -> list[int]:
    """Numbers of the query nodes that hold a segment."""
    return list(segment.nodeIds) or [segment.nodeID]


def effective_setting(server: MilvusServer, dotted: str) -> Any:
    """A setting of milvus.yaml as the running server has it, of YAML's types; None where it can't say."""
    if isinstance(server.rpc, EarlyRpc):
        return server.rpc.setting(dotted)
    if not server.facts.evaluates:
        text = component_setting(server.address, dotted)
        return None if text is None else _setting(dotted, text)
    if "metrics" not in {name for member in server.group for name in member.addresses}:
        return None
    code = f'param.GetWithDefault("{dotted}", "")'
    query = urllib.parse.urlencode({"auth": "by-dev", "code": code})
    try:
        answer = http_get(server.address("metrics"), f"/expr?{query}", 60.0, server.tls).decode()
    except OSError:
        return None
    except ValueError:
        raise ServerError(f"milvus: {dotted}: /expr answered what is no text") from None
    try:
        return _setting(dotted, json.loads(answer)["output"])
    except (ValueError, KeyError, TypeError):
        raise ServerError(f"milvus: {dotted}: /expr answered no output: {redact.short(answer)}") from None


def _setting(dotted: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, AttributeError):
        raise ServerError(f"milvus: {dotted}: the server says {redact.short(repr(text))}, which is no value") from None


def built_with(params: Mapping[str, str]) -> Mapping[str, Any]:
    """The parameters that an index was built with, from those that it is described by."""
    try:
        built: Mapping[str, Any] = json.loads(params["params"]) if "params" in params else params
    except ValueError:
        raise ServerError(f"milvus: the index is described by {params['params']!r}, which is no JSON") from None
    return built


def by_name(dotted: str, value: Any) -> Any:
    """A setting as a system's entry has it: of the folder of mapped files, that it is on the storage path."""
    return ON_STORAGE if dotted == MMAP and str(value).endswith(f"/{MMAP_FOLDER}") else value


def count_rows(server: MilvusServer, expr: str = "") -> int:
    """Rows (that pass `expr`), counted by the query node or, where it can't, of those that it returns."""
    return server.rpc.count(expr) if server.facts.from_2_3 else server.rpc.count_returned(expr)
