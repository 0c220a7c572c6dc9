"""Start, ask, stop a Weaviate of one node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np

from anncestry.engines.base import Probe, Server, Spec, wait_for
from anncestry.engines.group import GroupServer
from anncestry.engines.native import CHANNEL_OPTIONS, HOST, start_native
from anncestry.engines.weaviate.rest import Rest
from anncestry.engines.weaviate.settings import CLASS_SETTINGS, COLLECTION, METRICS
from anncestry.engines.weaviate.wire import METHOD, search_request, where
from anncestry.errors import ServerError
from anncestry.runtimes.base import Group, Member
from anncestry.runtimes.native import NativeProcess, clean_environment

_OPEN_TIMEOUT_S = 600.0
_TERM_WAIT_S = 60.0  # It writes its index log to disk: kill -9 silently loses entries of the last inserts.
_QUANTIZERS = ("pq", "bq", "sq", "rq")
_PORTS = ("http", "grpc", "gossip", "data", "raft", "raft_rpc")  # data must follow gossip


class WeaviateServer(GroupServer):
    """The nodes of a Weaviate, with the settings that its collection gets."""

    def __init__(self, group: Group, settings: Spec, topology: Spec) -> None:
        super().__init__(group)
        self.settings, self.topology = settings, topology
        first = next(iter(group))
        host, _, port = first.addresses["http"].rpartition(":")
        self.rest = Rest(host, int(port))

    @property
    def endpoint(self) -> str:
        """host:port of the first node's gRPC interface."""
        return self.endpoints[0]

    @property
    def endpoints(self) -> list[str]:
        """host:port of the gRPC interface of every node: each coordinates what it is asked."""
        return [member.addresses["grpc"] for member in self.group]


def environment(data_dir: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """The variables that configure a node of its own on loopback."""
    return clean_environment(
        {
            "PERSISTENCE_DATA_PATH": str(data_dir / "data"),
            "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "true",
            "DEFAULT_VECTORIZER_MODULE": "none",
            "DISABLE_TELEMETRY": "true",
            "GO_PROFILING_DISABLE": "true",  # it would listen on port 6060, on all interfaces
            "LOG_LEVEL": "warning",
            # The same name on every start: raft and shards belong to a name, addresses may change.
            "CLUSTER_HOSTNAME": "node1",
            "CLUSTER_ADVERTISE_ADDR": HOST,
            "CLUSTER_IN_LOCALHOST": "true",
            "CLUSTER_GOSSIP_BIND_PORT": str(ports["gossip"]),
            "CLUSTER_DATA_BIND_PORT": str(ports["data"]),
            "RAFT_PORT": str(ports["raft"]),
            "RAFT_INTERNAL_RPC_PORT": str(ports["raft_rpc"]),
            "RAFT_JOIN": f"node1:{ports['raft']}",
            "RAFT_BOOTSTRAP_EXPECT": "1",
            "GRPC_PORT": str(ports["grpc"]),
            # Ready means loaded: otherwise the first query pays for reading the index.
            "DISABLE_LAZY_LOAD_SHARDS": "true",
            "HNSW_STARTUP_WAIT_FOR_VECTOR_CACHE": "true",
        }
    )


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> WeaviateServer:
    """Start on `data_dir`; returns when it is ready and its gRPC port takes connections."""
    binary, data_dir = artifact_dir.resolve() / "weaviate-server", data_dir.resolve()
    (data_dir / "data").mkdir(parents=True, exist_ok=True)

    def launch(group: Group, ports: Mapping[str, int]) -> WeaviateServer:
        process = NativeProcess.start(
            f"weaviate {system['version']}",
            [binary, "--scheme", "http", "--host", HOST, "--port", str(ports["http"])],
            environment(data_dir, ports),
            cwd=data_dir,
            log_path=data_dir / "logs" / "server.log",
        )
        addresses = {interface: f"{HOST}:{port}" for interface, port in ports.items()}
        group.add(Member("node1", "node", process, addresses, _TERM_WAIT_S))
        return WeaviateServer(group, system.get("settings") or {}, topology)

    return start_native(f"weaviate {system['version']}", launch, _ready, _PORTS, first_port)


def _ready(server: WeaviateServer) -> bool | None:
    if server.rest.status("/v1/.well-known/ready") != 200:
        return None
    with channel(server) as connection:
        try:
            grpc.channel_ready_future(connection).result(timeout=1.0)
        except grpc.FutureTimeoutError:
            return None
    return True


def as_weaviate(server: Server) -> WeaviateServer:
    """The server as what it must be."""
    if not isinstance(server, WeaviateServer):
        raise TypeError(f"not a server of this engine: {server!r}")
    return server


def channel(server: WeaviateServer) -> grpc.Channel:
    """A channel to its gRPC interface; close it."""
    return grpc.insecure_channel(server.endpoint, options=CHANNEL_OPTIONS)


def open(server: Server, index: Spec) -> float:
    """Wait until a search succeeds; returns seconds. (The start itself has loaded index and vectors.)"""
    started_ns = time.perf_counter_ns()
    await_searchable(as_weaviate(server))
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


def apply(server: Server, ef_search: int) -> None:
    """Set ef of the collection; ServerError if it then says otherwise."""
    rest = as_weaviate(server).rest
    definition = rest.collection()
    definition["vectorIndexConfig"]["ef"] = ef_search
    rest.call("PUT", f"/v1/schema/{COLLECTION}", definition)
    effective = rest.collection()["vectorIndexConfig"]["ef"]
    if effective != ef_search:
        raise ServerError(f"weaviate: ef is {effective} after it was set to {ef_search}")


def index_state(server: WeaviateServer) -> tuple[bool, str]:
    """Whether every shard is ready and nothing waits to be indexed, and that in words."""
    shards = [shard for node in server.rest.nodes() for shard in node.get("shards") or []]
    words = "{name} {vectorIndexingStatus}, queue {vectorQueueLength}"
    states = [words.format_map(shard) for shard in shards]
    done = all(shard["vectorIndexingStatus"] == "READY" and shard["vectorQueueLength"] == 0 for shard in shards)
    return bool(shards) and done, "; ".join(states) or "no shards"


def probe(server: Server) -> Probe:
    """Version, aggregated count, index queue, the collection's settings, placement of shards."""
    weaviate = as_weaviate(server)
    rest = weaviate.rest
    definition = rest.collection()
    vectors = definition["vectorIndexConfig"]
    nodes = rest.nodes()
    complete, detail = index_state(weaviate)
    return Probe(
        version=str(rest.call("GET", "/v1/meta")["version"]),
        rows=rest.count(),
        index_complete=complete,
        index_detail=detail,
        settings={
            "index_type": definition["vectorIndexType"],
            "metric": {theirs: ours for ours, theirs in METRICS.items()}.get(vectors["distance"]),
            "M": vectors["maxConnections"],
            "ef_construction": vectors["efConstruction"],
            "ef_search": vectors["ef"],
            **{name: vectors[name] for name in CLASS_SETTINGS if name in vectors},
            "quantizer": next((name for name in _QUANTIZERS if vectors.get(name, {}).get("enabled")), None),
        },
        nodes=len([node for node in nodes if node["status"] == "HEALTHY"]),
        shards=definition["shardingConfig"]["actualCount"],
        replicas=definition["replicationConfig"]["factor"],
    )


def count(server: Server, filter: Spec | None) -> int:
    """Rows that pass the filter, as the server counts them."""
    return as_weaviate(server).rest.count("" if filter is None else where(filter))
