"""Start, ask, stop a Weaviate of one node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np

from anncestry.engines.base import Probe, Server, Spec, wait_for
from anncestry.engines.weaviate.rest import Rest
from anncestry.engines.weaviate.settings import METRICS, PASSED_SETTINGS
from anncestry.engines.weaviate.wire import METHOD, search_request
from anncestry.errors import ServerError
from anncestry.runtimes.native import Ending, NativeProcess, claim_ports, clean_environment, free_ports

START_TIMEOUT_S = 120.0
_ATTEMPTS = 3
_OPEN_TIMEOUT_S = 600.0
_TERM_WAIT_S = 60.0  # It writes its index log to disk: kill -9 silently loses entries of the last inserts.
_HOST = "127.0.0.1"
_PORTS = ("http", "grpc", "gossip", "data", "raft", "raft_rpc")  # data must follow gossip


class WeaviateServer:
    """One Weaviate process."""

    def __init__(self, process: NativeProcess, ports: Mapping[str, int]) -> None:
        self.process = process
        self.ports = ports
        self.start_s = 0.0
        self.rest = Rest(_HOST, ports["http"])

    @property
    def endpoint(self) -> str:
        """host:port of its gRPC interface."""
        return f"{_HOST}:{self.ports['grpc']}"

    def pids(self) -> list[int]:
        """The one process."""
        return [self.process.pid]

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.alive()

    def check_alive(self) -> None:
        """ServerError with the end of the log if it doesn't."""
        self.process.check_alive()

    def stop(self) -> Ending:
        """SIGTERM, so that it writes out what it has; SIGKILL only if it doesn't end within a minute."""
        return self.process.stop(_TERM_WAIT_S)


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
            "CLUSTER_ADVERTISE_ADDR": _HOST,
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
    artifact_dir, data_dir = artifact_dir.resolve(), data_dir.resolve()
    (data_dir / "data").mkdir(parents=True, exist_ok=True)
    name = f"weaviate {system['version']}"
    for attempt in range(_ATTEMPTS):
        numbers = free_ports(len(_PORTS)) if first_port is None else claim_ports(first_port, len(_PORTS))
        ports = dict(zip(_PORTS, numbers, strict=True))
        started = time.monotonic()
        binary = artifact_dir / "weaviate-server"
        process = NativeProcess.start(
            name,
            [binary, "--scheme", "http", "--host", _HOST, "--port", str(ports["http"])],
            environment(data_dir, ports),
            cwd=data_dir,
            log_path=data_dir / "logs" / "server.log",
        )
        server = WeaviateServer(process, ports)
        try:
            wait_for("weaviate: ready", lambda: _ready(server), server, START_TIMEOUT_S)
        except ServerError as error:
            tail = process.log_tail()
            server.stop()
            if "address already in use" in process.log_tail(200) and first_port is None and attempt + 1 < _ATTEMPTS:
                continue
            raise ServerError(f"{name} did not start: {error.args[0]}", tail) from None
        except BaseException:
            server.stop()
            raise
        server.start_s = time.monotonic() - started
        return server
    raise AssertionError("not reached")


def _ready(server: WeaviateServer) -> bool | None:
    if server.rest.status("/v1/.well-known/ready") != 200:
        return None
    with grpc.insecure_channel(server.endpoint, options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=1.0)
        except grpc.FutureTimeoutError:
            return None
    return True


def as_weaviate(server: Server) -> WeaviateServer:
    """The server as what it must be."""
    if not isinstance(server, WeaviateServer):
        raise TypeError(f"not a server of this engine: {server!r}")
    return server


def open(server: Server, index: Spec) -> float:
    """Wait until a search succeeds; returns seconds. (The start itself has loaded the shards.)"""
    started_ns = time.perf_counter_ns()
    await_searchable(as_weaviate(server))
    return (time.perf_counter_ns() - started_ns) / 1e9


def await_searchable(server: WeaviateServer) -> None:
    """Wait until a search of a stored vector's length succeeds."""
    dimensions = int(server.rest.collection()["moduleConfig"]) if False else None
    raise NotImplementedError(dimensions)
