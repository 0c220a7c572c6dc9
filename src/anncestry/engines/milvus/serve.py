"""Start, ask, stop a Milvus standalone."""

from __future__ import annotations

import json
import os
import stat
import time
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import yaml
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry.engines.base import Placed, Probe, Server, Spec, wait_for
from anncestry.engines.group import GroupServer
from anncestry.engines.milvus.early import EXACT_AT, EarlyRpc
from anncestry.engines.milvus.indexes import read_back, search_params
from anncestry.engines.milvus.internal import component_setting, segment_indexes
from anncestry.engines.milvus.program import program_of
from anncestry.engines.milvus.rpc import COLLECTION, METRICS, REMOTE, Rpc, search_request
from anncestry.engines.milvus.versions import MMAP, MMAP_FOLDER, ON_STORAGE, facts
from anncestry.engines.native import CHANNEL_OPTIONS, start_native
from anncestry.errors import UserError
from anncestry.provenance.records import read_json, write_json
from anncestry.runtimes import namespaces, remote
from anncestry.runtimes.base import Ending, Group, Limits, Member, Runner
from anncestry.runtimes.choice import runner_for
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import clean_environment, http_get
from anncestry.runtimes.storage import data_folder

_LOAD_TIMEOUT_S = 600.0
_NODES_TIMEOUT_S = 60.0
PASSING = tuple(f"find no available {role}" for role in ("rootcoord", "datacoord", "querycoord", "indexcoord", "proxy"))
"""What 2.2 dies of where one of its parts looks for another that is slow to register: on a busy machine, after a start
on what an earlier run left. Nothing is stored at that point, and the next start finds what this one did."""
_SESSIONS = "by-dev/meta/session/"  # etcd.rootPath and metaSubPath of the template


_RUNTIME_DIRS = (Path("/run/milvus"), Path("/tmp/milvus"))
"""Where Milvus keeps its pid file (the first that it can write to) and, in the second, a file a process: no setting
moves them."""


def runtime_folders() -> list[str]:
    """What gives a Milvus empty ones of its own there (see `_exec.py`); nothing where this user can't have that.

    Then it shares those of this machine. UserError if it could write to neither: it would end at once, saying only
    that; or if another user could lead it astray there.
    """
    for folder in _RUNTIME_DIRS:
        with suppress(OSError):
            folder.mkdir(mode=0o700)
    mine = [f"--private={folder}" for folder in _RUNTIME_DIRS if folder.is_dir() and not folder.is_symlink()]
    if mine and not namespaces.refused(*mine):
        return mine
    for folder in _RUNTIME_DIRS:
        if os.path.lexists(folder) and not _safe(folder.lstat()):
            raise UserError(f"{folder}: milvus writes there, and so can another user: have it removed by its owner")
    if not any(os.access(folder, os.W_OK | os.X_OK) for folder in _RUNTIME_DIRS):
        raise UserError(
            f"milvus keeps its pid file in {' or '.join(map(str, _RUNTIME_DIRS))}, and this user can write to neither: "
            f"have {_RUNTIME_DIRS[-1]} removed by its owner"
        )
    return []


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


class MilvusServer(GroupServer):
    """A Milvus: one process with its etcd and message queue inside, or several."""

    def __init__(self, group: Group, system: Spec, topology: Spec) -> None:
        super().__init__(group, topology)
        self.settings: Spec = system.get("settings") or {}
        self.facts = facts(system)
        self.exact_at = EXACT_AT if self.facts.early else None
        self.rpc = self._rpc()
        self.index: Spec = {"type": "hnsw"}
        """What it was loaded with, or is opened with."""

    def _rpc(self) -> Rpc:
        kind = EarlyRpc if self.facts.early else Rpc
        return kind(self.endpoint, authorization(self.credentials), self.tls)

    def address(self, interface: str) -> str:
        """host:port of an interface that only one member has (or the first of those that have it)."""
        return next(member.addresses[interface] for member in self.group if interface in member.addresses)

    @property
    def endpoint(self) -> str:
        """host:port of the proxy."""
        return self.address("proxy")

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

    def drop(self) -> None:
        """Remove the collection, if it is the one of this load."""
        if self.mark is None:
            super().drop()
        remote.check_mark(REMOTE, COLLECTION, self.rpc.description(), str(self.mark))
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


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> MilvusServer:
    """Start on `data_dir`; on the ports of its last start where they are free, as Milvus comes back sooner on them."""
    if topology["runtime"] == "remote":
        return _connect(data_dir, system, topology)
    data_dir = data_dir.resolve()
    program = program_of(artifact_dir.resolve(), facts(system))
    settings = system.get("settings") or {}
    kept = data_dir / "ports.json"

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> MilvusServer:
        local = data_folder(data_dir, topology) if "storage" in topology else None
        program.configure(data_dir, ports, settings, runner.host("standalone"), local)
        write_json(kept, ports)
        interfaces = {**{name: name for name in ports}, "proxy": "proxy_port", "etcd": "etcd_port"}
        process = runner.start(
            "standalone",
            f"milvus {system['version']}",
            program.command,
            clean_environment(program.environment(data_dir, ports)),
            data_dir,
            data_dir / "logs" / "server.log",
            Limits.of(topology),
            list(ports.values()),
            runtime_folders() if topology["runtime"] == "native" else (),
        )
        addresses = {interface: runner.reached("standalone", ports[name]) for interface, name in interfaces.items()}
        group.add(Member("standalone", "standalone", process, addresses))
        return MilvusServer(group, system, topology)

    kept_first_port = min(read_json(kept).values()) if kept.exists() else None
    return start_native(
        f"milvus {system['version']}",
        launch,
        _answers,
        program.ports,
        first_port,
        kept_first_port,
        lambda: runner_for(topology, [artifact_dir]),
        PASSING,
    )


def _connect(data_dir: Path, system: Spec, topology: Spec) -> MilvusServer:
    """A server that somebody else runs: what it holds under our name must be ours."""
    found = {interface: remote.endpoint(topology, interface) for interface in ("proxy", "metrics")}
    addresses = {interface: address for interface, address in found.items() if address is not None}
    group = Group()
    handle = remote.RemoteHandle(REMOTE, addresses["proxy"], topology, "base64")
    group.add(Member("remote", "remote", handle, addresses))
    server = MilvusServer(group, system, topology)
    server.mark, loaded = remote.mark_of(data_dir)
    server.check_alive()
    handle.secure(addresses, {"proxy": ("h2",)})
    description = server.rpc.description()
    if loaded:
        remote.check_mark(REMOTE, COLLECTION, description, server.mark)
    else:
        remote.may_replace(REMOTE, COLLECTION, description)
    return server


def _answers(server: MilvusServer) -> bool | None:
    """Whether /healthz says OK and a gRPC call succeeds (the first alone says OK seconds too early on 2.2)."""
    if not healthy(server.address("metrics")):
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


def as_milvus(server: Server) -> MilvusServer:
    """The server as what it must be."""
    if not isinstance(server, MilvusServer):
        raise TypeError(f"not a server of this engine: {server!r}")
    return server


def open(server: Server, index: Spec) -> float:
    """Load the stored collection into memory; returns seconds until a search succeeded."""
    started_ns = time.perf_counter_ns()
    milvus = as_milvus(server)
    milvus.index = index
    if isinstance(milvus.rpc, EarlyRpc):
        milvus.rpc.release()
    open_collection(milvus)
    return (time.perf_counter_ns() - started_ns) / 1e9


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
    search = search_request(np.zeros((1, server.rpc.dimensions()), np.float32), 1, params, server.rpc.metric_type(), "")
    wait_for(
        "milvus: a first search",
        lambda: server.rpc.call("Search", search, milvus_pb2.SearchResults),
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


def apply(server: Server, ef_search: int) -> None:
    """Nothing: ef travels in each request."""


def effective_setting(server: MilvusServer, dotted: str) -> Any:
    """A setting of milvus.yaml as the running server has it, of YAML's types; None where it can't say."""
    if isinstance(server.rpc, EarlyRpc):
        return server.rpc.setting(dotted)
    if not server.facts.evaluates:
        told = component_setting(server.address, dotted)
        return None if told is None else yaml.safe_load(told)
    if "metrics" not in {name for member in server.group for name in member.addresses}:
        return None
    code = f'param.GetWithDefault("{dotted}", "")'
    query = urllib.parse.urlencode({"auth": "by-dev", "code": code})
    try:
        answer = http_get(server.address("metrics"), f"/expr?{query}", 5.0, server.tls)
    except OSError:
        return None
    return yaml.safe_load(json.loads(answer)["output"])


def _by_name(dotted: str, value: Any) -> Any:
    """A setting as a system's entry has it: of the folder of mapped files, that it is on the storage path."""
    return ON_STORAGE if dotted == MMAP and str(value).endswith(f"/{MMAP_FOLDER}") else value


def exact_filters(server: Server, on: bool) -> None:
    """Nothing to do: Milvus scans narrow filters by itself, and has no setting that would stop it."""


def count_rows(server: MilvusServer, expr: str = "") -> int:
    """Rows (that pass `expr`), counted by the query node or, where it can't, of those that it returns."""
    return server.rpc.count(expr) if server.facts.counts else server.rpc.count_returned(expr)


def probe(server: Server) -> Probe:
    """Version, strongly consistent count, index and segments, settings, replicas."""
    milvus = as_milvus(server)
    rpc = milvus.rpc
    index = rpc.index()
    params = {pair.key: pair.value for pair in index.params}
    built = json.loads(params["params"]) if "params" in params else params
    kind = params.get("index_type", "").lower()
    infos = rpc.segments()
    segments = list({segment.segmentID: segment for segment in infos}.values())  # of several nodes: once each
    names = milvus.node_ids()
    placed = sorted(
        {
            (names.get(node, f"node {node}"), segment.segmentID, segment.num_rows)
            for segment in infos
            for node in holders(segment)
        }
    )
    loaded = sum(segment.num_rows for segment in segments)
    sealed = all(segment.state == common_pb2.SegmentState.Sealed for segment in segments)
    if milvus.facts.names_segment_index:
        indexes = {segment.segmentID: segment.indexID for segment in segments}
    else:
        indexes = milvus.segment_indexes(segments[0].collectionID) if segments else {}
    # A flat "index" is the rows themselves: none is built.
    covered = kind == "flat" or all(indexes.get(segment.segmentID) == index.indexID for segment in segments)
    state = common_pb2.IndexState.Name(index.state)
    rows = count_rows(milvus)
    replicas = rpc.replicas()
    # Milvus counts a node that died until its registration expires: one that does not answer is none.
    nodes = {node for replica in replicas for node in replica.node_ids if not names or node in names}
    return Probe(
        version=rpc.version(),
        rows=rows,
        index_complete=(
            state == "Finished"
            and index.pending_index_rows == 0
            and index.indexed_rows == index.total_rows == loaded == rows
            and sealed
            and covered
        ),
        index_detail=(
            f"{state}, {index.indexed_rows} of {index.total_rows} rows indexed, {index.pending_index_rows} pending; "
            f"{len(segments)} segments with {loaded} rows in memory, "
            f"{'all' if sealed else 'not all'} sealed, {'all' if covered else 'not all'} with the index"
        ),
        settings={
            **read_back(kind, built),
            "metric": {milvus_name: name for name, milvus_name in METRICS.items()}.get(params.get("metric_type", "")),
            "ef_search": None,
            "segments": len(segments),
            **{dotted: _by_name(dotted, effective_setting(milvus, dotted)) for dotted in milvus.settings},
        },
        nodes=len(nodes),
        shards=sum(len(replica.shard_replicas) for replica in replicas[:1]),
        replicas=len(replicas),
        placement=tuple(Placed(node, str(segment), rows) for node, segment, rows in placed),
    )
