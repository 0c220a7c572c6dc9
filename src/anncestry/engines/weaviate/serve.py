"""Start, ask, stop a Weaviate: one node, or a cluster of several."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from anncestry import redact, web
from anncestry.engines.base import Server, Spec
from anncestry.engines.channel import CHANNEL_OPTIONS, open_channel
from anncestry.engines.native import HOST, runner_for, start_native, take_remote
from anncestry.engines.weaviate import COLLECTION
from anncestry.engines.weaviate.wire import HEADERS, PATH
from anncestry.errors import ServerError
from anncestry.runtimes import remote, tls
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.native import await_listening, clean_environment
from anncestry.web import host_and_port

_TERM_WAIT_S = 60.0  # It writes its index log to disk: kill -9 silently loses entries of the last inserts.
_JOIN_TIMEOUT_S = 120.0
_GO_MEMORY_SHARE = 0.9
"""Of a memory limit, what Go's runtime may take before it collects at once; the rest is mapped files and stacks."""

_PORTS = ("http", "grpc", "gossip", "data", "raft", "raft_rpc")  # data must follow gossip


class Rest:
    """Calls to one server; a new connection each, so that nothing stays open while queries are timed."""

    def __init__(
        self, host: str, port: int, authorization: str | None = None, named: Mapping[str, Any] | None = None
    ) -> None:
        self._address = f"{host}:{port}"
        self._tls: ssl.SSLContext | None = None if named is None else tls.context(named, ("http/1.1",))
        self._headers = dict(HEADERS)
        if authorization is not None:
            self._headers["Authorization"] = authorization

    def status(self, path: str, timeout_s: float = 2.0) -> int | None:
        """HTTP status of a GET, None where nobody answers."""
        try:
            return self._exchange("GET", path, None, timeout_s)[0]
        except OSError:
            return None

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 30.0) -> Any:
        """The JSON that `path` answers (None for an empty body); ServerError if it doesn't or says that it failed."""
        try:
            status, reply = self._exchange(method, path, body, timeout_s)
        except OSError as error:
            raise ServerError(f"weaviate: {method} {path}: {error or type(error).__name__}") from None
        if not 200 <= status < 300:
            raise ServerError(
                f"weaviate: {method} {path}: HTTP {status}: {redact.short(reply.decode(errors='replace'), 500)}"
            )
        try:
            return json.loads(reply) if reply else None
        except (ValueError, RecursionError):
            raise ServerError(f"weaviate: {method} {path}: answered what is no JSON") from None

    def _exchange(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
        payload = None if body is None else json.dumps(body).encode()
        return web.call(self._address, method, path, timeout_s, payload, self._headers, self._tls)

    # What more than one module asks.

    def description(self) -> str | None:
        """The collection's description ("" without one), None where there is no collection."""
        classes = self.call("GET", "/v1/schema")["classes"]
        return next((str(found.get("description", "")) for found in classes if found["class"] == COLLECTION), None)

    def collection(self) -> dict[str, Any]:
        """The collection's effective definition."""
        return dict(self.call("GET", f"/v1/schema/{COLLECTION}"))

    def membership(self) -> list[dict[str, Any]]:
        """The cluster's nodes as this one sees them: name, status. One that died vanishes from the list."""
        return list(self.call("GET", "/v1/nodes", timeout_s=60.0)["nodes"])  # it may hang where a node just died

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes with the collection's shards."""
        return list(self.call("GET", f"/v1/nodes/{COLLECTION}?output=verbose")["nodes"])

    def shards(self) -> list[dict[str, Any]]:
        """The collection's shards on all nodes, with their states."""
        return [shard for node in self.nodes() for shard in node.get("shards") or []]

    def count(self, where: str = "") -> int:
        """Objects (that pass a GraphQL `where`), counted by an aggregation (objectCount of /v1/nodes lags behind)."""
        arguments = f"(where:{where})" if where else ""
        query = {"query": f"{{Aggregate{{{COLLECTION}{arguments}{{meta{{count}}}}}}}}"}
        reply = self.call("POST", PATH, query)
        if reply.get("errors"):
            raise ServerError(f"weaviate: count: {reply['errors'][0].get('message')}")
        return int(reply["data"]["Aggregate"][COLLECTION][0]["meta"]["count"])


class WeaviateServer(Server):
    """The nodes of a Weaviate, with the settings that its collection gets."""

    collection = COLLECTION
    interface = "grpc"

    def __init__(self, group: Group, system: Spec, topology: Spec, data_dir: Path) -> None:
        super().__init__(group, topology)
        self.system = system
        self.data_dir = data_dir
        self.settings: Spec = system.get("settings") or {}
        self.rest = rest_of(next(iter(group)))
        self.consistency: str | None = topology.get("consistency")
        self.by_rest = self.settings.get("protocol") == "rest"
        """Whether rows and queries go by REST and GraphQL, not by gRPC."""

    @property
    def endpoints(self) -> list[str]:
        """host:port of the gRPC interface of every node: each coordinates what it is asked."""
        return [member.addresses["grpc"] for member in self.group]

    def http_transport(self) -> dict[str, Any]:
        """GraphQL by HTTP/1.1 on a connection that is kept alive."""
        transport: dict[str, Any] = {"kind": "http", "method": "POST", "path": PATH, "headers": HEADERS}
        if self.tls is not None:
            transport["tls"] = self.tls
        addresses = [member.addresses["http"] for member in self.group]
        if self.topology.get("entry") == "all":
            transport["targets"] = addresses
        return {**transport, "target": addresses[0]}

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

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        handle.secure(addresses, {"http": ("http/1.1",), "grpc": ("h2",)})

    def found_mark(self) -> str | None:
        return self.rest.description()

    def remove(self) -> None:
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
        server_of = partial(WeaviateServer, system=system, topology=topology, data_dir=data_dir)
        return take_remote(server_of, "weaviate (remote)", data_dir, topology, ("http", "grpc"), "bearer")
    binary, data_dir = artifact_dir.resolve() / "weaviate-server", data_dir.resolve()
    nodes = [f"node{number + 1}" for number in range(topology["nodes"])]
    limits = Limits.of(topology)

    def launch(group: Group, numbers: Mapping[str, int], runner: Runner) -> WeaviateServer:
        data_dir.mkdir(parents=True, exist_ok=True)
        # Nodes that have an address each must have the same ports: one dials the other at the RAFT port of its own.
        of = {node: nodes[0] if runner.apart else node for node in nodes}
        ports = {node: {name: numbers[f"{of[node]}.{name}"] for name in _PORTS} for node in nodes}
        hosts = {node: runner.host(node) for node in nodes}
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

    names = [f"{node}.{name}" for node in nodes for name in _PORTS]
    kept, runner_of = data_dir / "ports.json", partial(runner_for, topology, [artifact_dir])
    return start_native(f"weaviate {system['version']}", launch, _ready, names, first_port, kept, runner_of)


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
    return Rest(*host_and_port(member.addresses["http"]), authorization(member.handle.named), member.handle.tls)


def channel(server: WeaviateServer) -> grpc.Channel:
    """A channel to its gRPC interface; close it."""
    return open_channel(server.endpoint, CHANNEL_OPTIONS, authorization(server.credentials), server.tls)
