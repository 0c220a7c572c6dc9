"""Start, ask, stop a Weaviate: one node, or a cluster of several."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np

from anncestry.engines.base import Placed, Probe, Server, Spec, wait_for
from anncestry.engines.group import GroupServer
from anncestry.engines.native import CHANNEL_OPTIONS, HOST, start_native
from anncestry.engines.remote import open_channel
from anncestry.engines.weaviate import dynamic
from anncestry.engines.weaviate.indexes import graph_of, read_back
from anncestry.engines.weaviate.rest import Rest
from anncestry.engines.weaviate.rows import uuid_of
from anncestry.engines.weaviate.settings import COLLECTION, DEFAULT_CUTOFF, METRICS, REMOTE, in_background
from anncestry.engines.weaviate.wire import METHOD, search_request, where
from anncestry.errors import ServerError
from anncestry.provenance.records import read_json, write_json
from anncestry.runtimes import remote
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.choice import runner_for
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import await_listening, clean_environment

_OPEN_TIMEOUT_S = 600.0
_TERM_WAIT_S = 60.0  # It writes its index log to disk: kill -9 silently loses entries of the last inserts.
_JOIN_TIMEOUT_S = 30.0
_APPLY_TIMEOUT_S = 10.0
_REPLICATE_TIMEOUT_S = 120.0
_REPLICA_SAMPLE = 20
_GO_MEMORY_SHARE = 0.9
"""Of a memory limit, what Go's runtime may take before it collects at once; the rest is mapped files and stacks."""
_PORTS = ("http", "grpc", "gossip", "data", "raft", "raft_rpc")  # data must follow gossip


class WeaviateServer(GroupServer):
    """The nodes of a Weaviate, with the settings that its collection gets."""

    def __init__(self, group: Group, system: Spec, topology: Spec, data_dir: Path) -> None:
        super().__init__(group, topology)
        self.system = system
        self.data_dir = data_dir
        self.settings: Spec = system.get("settings") or {}
        self.rest = rest_of(next(iter(group)))

    @property
    def endpoint(self) -> str:
        """host:port of the first node's gRPC interface."""
        return self.endpoints[0]

    @property
    def endpoints(self) -> list[str]:
        """host:port of the gRPC interface of every node: each coordinates what it is asked."""
        return [member.addresses["grpc"] for member in self.group]

    def missed(self) -> list[str]:
        """Members that another member misses or calls unhealthy: each is asked, as one may know less than another."""
        if self.mark is not None:
            nodes = self.rest.membership()
            return [str(node["name"]) for node in nodes if node["status"] != "HEALTHY"]
        names = [member.name for member in self.group]
        if len(names) == 1:
            return []

        def healthy(member: Member) -> set[str]:
            """Whom this one calls healthy; from one that does not answer, only the others' silence is heard."""
            try:
                nodes = rest_of(member).membership()
            except ServerError:
                return set(names) - {member.name}
            return {node["name"] for node in nodes if node["status"] == "HEALTHY"}

        # All at once: one that waits for a dead node takes its time, and the others shall be asked meanwhile.
        with ThreadPoolExecutor(len(names)) as pool:
            seen = list(pool.map(healthy, self.group))
        return [name for name in names if not all(name in known for known in seen)]

    def drop(self) -> None:
        """Remove the collection, if it is the one of this load."""
        if self.mark is None:
            super().drop()
        remote.check_mark(REMOTE, COLLECTION, self.rest.description(), str(self.mark))
        self.rest.call("DELETE", f"/v1/schema/{COLLECTION}")

    def check_members(self) -> None:
        """ServerError for a node that is gone, or that the others miss: they may answer without its shards."""
        self.check_alive()
        missed = self.missed()
        if missed:
            self.check_alive()
            raise ServerError(f"weaviate: {', '.join(missed)} not a healthy member of the cluster for every other")


def node_dir(data_dir: Path, node: str, nodes: int) -> Path:
    """The folder of a node: the data folder itself for a node of its own, one below it in a cluster."""
    return data_dir if nodes == 1 else data_dir / node


def environment(
    node: str,
    ports: Mapping[str, Mapping[str, int]],
    hosts: Mapping[str, str],
    folder: Path,
    limits: Limits,
    settings: Spec | None = None,
) -> dict[str, str]:
    """The variables that configure `node`, one of those in `ports` (node → interface → port) and `hosts`.

    The first node bootstraps, the others join it. The runtime of Go hears of the limits: it would otherwise collect
    garbage and start threads for the whole machine.
    """
    own, first = ports[node], next(iter(ports))
    variables = {
        "PERSISTENCE_DATA_PATH": str(folder / "data"),
        "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "true",
        "DEFAULT_VECTORIZER_MODULE": "none",
        "DISABLE_TELEMETRY": "true",
        "GO_PROFILING_DISABLE": "true",  # it would listen on port 6060, on all interfaces
        "LOG_LEVEL": "warning",
        # The same name on every start: raft and shards belong to a name, addresses may change.
        "CLUSTER_HOSTNAME": node,
        "CLUSTER_ADVERTISE_ADDR": hosts[node],
        "CLUSTER_IN_LOCALHOST": str(len({*hosts.values(), HOST}) == 1).lower(),
        "CLUSTER_GOSSIP_BIND_PORT": str(own["gossip"]),
        "CLUSTER_DATA_BIND_PORT": str(own["data"]),
        "RAFT_PORT": str(own["raft"]),
        "RAFT_INTERNAL_RPC_PORT": str(own["raft_rpc"]),
        "RAFT_JOIN": ",".join(f"{name}:{other['raft']}" for name, other in ports.items()),
        "RAFT_BOOTSTRAP_EXPECT": str(len(ports)),
        "GRPC_PORT": str(own["grpc"]),
        # Ready means loaded: otherwise the first query pays for reading the index.
        "DISABLE_LAZY_LOAD_SHARDS": "true",
        "HNSW_STARTUP_WAIT_FOR_VECTOR_CACHE": "true",
    }
    if len(ports) > 1:
        variables["CLUSTER_ADVERTISE_PORT"] = str(own["gossip"])
        variables["RAFT_TIMEOUTS_MULTIPLIER"] = "1"  # its timeouts are those of a wide area network
    if node != first:
        variables["CLUSTER_JOIN"] = f"{hosts[first]}:{ports[first]['gossip']}"
    if settings and "asyncIndexing" in settings:
        variables["ASYNC_INDEXING"] = str(settings["asyncIndexing"]).lower()
    if limits.memory_mib is not None:
        variables["GOMEMLIMIT"] = f"{int(limits.memory_mib * _GO_MEMORY_SHARE)}MiB"
    if limits.cpus is not None:
        variables["GOMAXPROCS"] = str(math.ceil(limits.cpus))
    return clean_environment(variables)


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> WeaviateServer:
    """Start all nodes on `data_dir`; returns when each is ready, knows the others, and takes gRPC connections.

    On the ports of the last start where they are free: the nodes of a cluster remember each other's.
    """
    if topology["runtime"] == "remote":
        return _connect(data_dir, system, topology)
    binary, data_dir = artifact_dir.resolve() / "weaviate-server", data_dir.resolve()
    nodes = [f"node{number + 1}" for number in range(topology["nodes"])]
    limits = Limits.of(topology)
    kept = data_dir / "ports.json"

    def launch(group: Group, numbers: Mapping[str, int], runner: Runner) -> WeaviateServer:
        data_dir.mkdir(parents=True, exist_ok=True)
        # Nodes that have an address each must have the same ports: one dials the other at the RAFT port of its own.
        of = {node: nodes[0] if runner.apart else node for node in nodes}
        ports = {node: {name: numbers[f"{of[node]}.{name}"] for name in _PORTS} for node in nodes}
        hosts = {node: runner.host(node) for node in nodes}
        write_json(kept, {"first_port": min(numbers.values())})
        for node in nodes:
            folder = node_dir(data_dir, node, len(nodes))
            (folder / "data").mkdir(parents=True, exist_ok=True)
            process = runner.start(
                node,
                f"weaviate {system['version']}" + (f" {node}" if len(nodes) > 1 else ""),
                [binary, "--scheme", "http", "--host", runner.listen, "--port", str(ports[node]["http"])],
                environment(node, ports, hosts, folder, limits, system.get("settings")),
                folder,
                folder / "logs" / "server.log",
                limits,
                list(ports[node].values()),
            )
            addresses = {interface: runner.reached(node, port) for interface, port in ports[node].items()}
            group.add(Member(node, "node", process, addresses, _TERM_WAIT_S))
            if node == nodes[0] and len(nodes) > 1:
                # A join of nobody is fatal. (Its REST interface answers only when all nodes are there.)
                await_listening(process, addresses["gossip"], _JOIN_TIMEOUT_S)
        return WeaviateServer(group, system, topology, data_dir)

    def runner_of() -> Runner:
        return runner_for(topology, [artifact_dir])

    names = [f"{node}.{name}" for node in nodes for name in _PORTS]
    kept_first_port = read_json(kept)["first_port"] if kept.exists() else None
    return start_native(f"weaviate {system['version']}", launch, _ready, names, first_port, kept_first_port, runner_of)


def _connect(data_dir: Path, system: Spec, topology: Spec) -> WeaviateServer:
    """A server that somebody else runs: what it holds under our name must be ours."""
    addresses = {interface: str(remote.endpoint(topology, interface)) for interface in ("http", "grpc")}
    group = Group()
    handle = remote.RemoteHandle(REMOTE, addresses["http"], topology, "bearer")
    group.add(Member("remote", "remote", handle, addresses))
    server = WeaviateServer(group, system, topology, data_dir)
    server.mark, loaded = remote.mark_of(data_dir)
    server.check_alive()
    handle.secure(addresses, {"http": ("http/1.1",), "grpc": ("h2",)})
    found = server.rest.description()
    if loaded:
        remote.check_mark(REMOTE, COLLECTION, found, server.mark)
    else:
        remote.may_replace(REMOTE, COLLECTION, found)
    return server


def _ready(server: WeaviateServer) -> bool | None:
    for member in server.group:
        if rest_of(member).status("/v1/.well-known/ready") != 200:
            return None
        with grpc.insecure_channel(member.addresses["grpc"], options=CHANNEL_OPTIONS) as connection:
            try:
                grpc.channel_ready_future(connection).result(timeout=1.0)
            except grpc.FutureTimeoutError:
                return None
    return not server.missed() or None


def rest_of(member: Member) -> Rest:
    """The REST interface of a node."""
    host, _, port = member.addresses["http"].rpartition(":")
    handle = member.handle
    return Rest(host, int(port), authorization(getattr(handle, "named", None)), getattr(handle, "tls", None))


def as_weaviate(server: Server) -> WeaviateServer:
    """The server as what it must be."""
    if not isinstance(server, WeaviateServer):
        raise TypeError(f"not a server of this engine: {server!r}")
    return server


def channel(server: WeaviateServer) -> grpc.Channel:
    """A channel to its gRPC interface; close it."""
    return open_channel(server.endpoint, CHANNEL_OPTIONS, authorization(server.credentials), server.tls)


def open(server: Server, index: Spec) -> float:
    """Wait until every node's shards are there, no row waits to be indexed, and a search succeeds; returns seconds.

    (The start itself has loaded index and vectors.)
    """
    started_ns = time.perf_counter_ns()
    weaviate = as_weaviate(server)
    await_placed(weaviate)
    if in_background(weaviate.settings):
        wait_for("weaviate: index", lambda: index_state(weaviate)[0] or None, weaviate, _OPEN_TIMEOUT_S)
    await_searchable(weaviate)
    return (time.perf_counter_ns() - started_ns) / 1e9


def await_searchable(server: WeaviateServer) -> None:
    """Search for a stored vector until it succeeds."""
    query = {"query": f"{{Get{{{COLLECTION}(limit:1){{_additional{{vector}}}}}}}}"}
    reply = server.rest.call("POST", "/v1/graphql", query)
    try:
        vector = reply["data"]["Get"][COLLECTION][0]["_additional"]["vector"]
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"weaviate: {COLLECTION} holds no object to search for: {reply}") from None
    request = search_request(np.array(vector, np.float32), 1, None).SerializeToString()
    with channel(server) as connection:
        search = connection.unary_unary(METHOD)

        def found() -> bool | None:
            try:
                return bool(search(request, timeout=_OPEN_TIMEOUT_S)) or None
            except grpc.RpcError as error:
                raise ServerError(f"{error.code().name}: {error.details()}") from None

        wait_for("weaviate: a first search", found, server, _OPEN_TIMEOUT_S, patient=True)


def placement(server: WeaviateServer) -> list[Placed]:
    """Which shard lies on which node. The objects that a node counts lag behind: what it holds in memory is missing.

    So they are of no use before a restart, which a server that somebody else runs never sees.
    """
    counts = server.mark is None
    return [
        Placed(node["name"], shard["name"], shard["objectCount"] if counts else None)
        for node in server.rest.nodes()
        for shard in node.get("shards") or []
    ]


def await_placed(server: WeaviateServer) -> None:
    """Wait until the cluster knows as many shards on its nodes as the topology declares."""
    wanted = server.topology["shards"] * server.topology["replicas"]
    wait_for(
        f"weaviate: {wanted} shards on their nodes",
        lambda: len(placement(server)) >= wanted or None,
        server,
        _OPEN_TIMEOUT_S,
        patient=True,
    )


def await_replicated(server: WeaviateServer, rows: int) -> None:
    """Wait until each of some rows, the last among them, lies on as many nodes as there are replicas.

    Writes are acknowledged by a part of the replicas, counts of objects lag behind, and what a node is asked it asks
    others: so each node is asked for its own copy, by the interface that nodes use among themselves.
    """
    replicas = server.topology["replicas"]
    if len(server.group) == 1 or not all("data" in member.addresses for member in server.group):
        return
    holders = [(server.group[part.node], part.shard) for part in placement(server)]
    sample = sorted({round(at * (rows - 1) / _REPLICA_SAMPLE) for at in range(_REPLICA_SAMPLE + 1)})

    def copies(row: int) -> int:
        return sum(holds(member, shard, uuid_of(row)) for member, shard in holders)

    for row in sample:
        wait_for(
            f"weaviate: row {row} on {replicas} nodes",
            lambda row=row: copies(row) >= replicas or None,  # type: ignore[misc]
            server,
            _REPLICATE_TIMEOUT_S,
            patient=True,
        )


def holds(member: Member, shard: str, object_id: str) -> bool:
    """Whether a node itself has the object in its copy of the shard."""
    path = f"/replicas/indices/{COLLECTION}/shards/{shard}/objects/{object_id}"
    host, _, port = member.addresses["data"].rpartition(":")
    return Rest(host, int(port)).call("GET", path, timeout_s=10.0)["Object"] is not None


def apply(server: Server, ef_search: int) -> None:
    """Set ef of the collection; ServerError if it then says otherwise."""
    _set(as_weaviate(server), "ef", ef_search)


def exact_filters(server: Server, on: bool) -> None:
    """Scan below any number of matches, or below the cut-off that the system sets (else Weaviate's default)."""
    weaviate = as_weaviate(server)
    asked = weaviate.settings.get("flatSearchCutoff", DEFAULT_CUTOFF)
    _set(weaviate, "flatSearchCutoff", max(asked, DEFAULT_CUTOFF) if on else asked)


def _set(server: WeaviateServer, name: str, value: int) -> None:
    """Change the configuration of the collection's graph, and wait until every node says so: each has a copy of the
    schema, which follows that of the leader. Nothing to do for a flat index, which has none."""
    definition = server.rest.collection()
    graph = graph_of(definition)
    if graph is None:
        return
    graph[name] = value
    server.rest.call("PUT", f"/v1/schema/{COLLECTION}", definition)
    for member in server.group:
        own = rest_of(member)
        wait_for(
            f"weaviate: {name} {value} on {member.name}",
            lambda own=own: (graph_of(own.collection()) or {}).get(name) == value or None,  # type: ignore[misc]
            server,
            _APPLY_TIMEOUT_S,
        )


def index_state(server: WeaviateServer) -> tuple[bool, str]:
    """Whether every shard is ready and nothing waits to be indexed, and that in words."""
    shards = server.rest.shards()
    words = "{name} {vectorIndexingStatus}, queue {vectorQueueLength}"
    states = [words.format_map(shard) for shard in shards]
    done = all(shard["vectorIndexingStatus"] == "READY" and shard["vectorQueueLength"] == 0 for shard in shards)
    return bool(shards) and done, "; ".join(states) or "no shards"


def forms(server: WeaviateServer) -> dict[tuple[str, str], str]:
    """What each shard of a dynamic index is by now, by node and shard (see `dynamic.form`)."""
    found = {}
    for placed in placement(server):
        folder = node_dir(server.data_dir, placed.node, len(server.group)) / "data" / COLLECTION.lower()
        found[placed.node, placed.shard] = dynamic.form(folder / placed.shard)
    return found


def probe(server: Server) -> Probe:
    """Version, aggregated count, index queue, the collection's settings, placement of shards."""
    weaviate = as_weaviate(server)
    rest = weaviate.rest
    definition = rest.collection()
    distance = (graph_of(definition) or definition["vectorIndexConfig"])["distance"]
    placed = placement(weaviate)
    holders: dict[str, set[str]] = {}
    for part in placed:
        holders.setdefault(part.shard, set()).add(part.node)
    healthy = {node["name"] for node in rest.membership() if node["status"] == "HEALTHY"}
    complete, detail = index_state(weaviate)
    rows = rest.count()
    if definition["vectorIndexType"] == "dynamic":
        done, words = dynamic.settled(forms(weaviate), rows, definition["vectorIndexConfig"]["threshold"])
        complete, detail = complete and done, f"{detail}; {words}"
    return Probe(
        version=str(rest.call("GET", "/v1/meta")["version"]),
        rows=rows,
        index_complete=complete,
        index_detail=detail,
        settings={
            **read_back(definition, rest.shards()),
            "metric": {theirs: ours for ours, theirs in METRICS.items()}.get(distance),
            "shards": definition["shardingConfig"]["actualCount"],
            "replication_factor": definition["replicationConfig"]["factor"],
        },
        nodes=len(healthy - set(weaviate.missed())),
        shards=len(holders),
        replicas=min((len(nodes) for nodes in holders.values()), default=0),
        placement=tuple(placed),
    )


def count(server: Server, filter: Spec | None) -> int:
    """Rows that pass the filter, as the server counts them."""
    return as_weaviate(server).rest.count("" if filter is None else where(filter))
