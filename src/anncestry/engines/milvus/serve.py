"""Start, ask, stop a Milvus standalone."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry.engines.base import Probe, Server, Spec, wait_for
from anncestry.engines.milvus.rpc import COLLECTION, METRICS, Rpc, search_request
from anncestry.errors import ConfigError, ServerError
from anncestry.provenance.records import read_json, write_json
from anncestry.runtimes.native import Ending, NativeProcess, claim_ports, clean_environment, free_ports, http_get

START_TIMEOUT_S = 120.0
_ATTEMPTS = 3
_LOAD_TIMEOUT_S = 600.0
_TERM_WAIT_S = 8.0
_HOST = "127.0.0.1"
_PLACEHOLDER = re.compile(r"\{\{\s*(?P<name>\w+)\s*(?:\((?P<type>\w+)\))?\s*(?::\s*(?P<default>[^}]*?))?\s*\}\}")
_OWN_PORTS = ("metrics", "etcd_peer")
"""Ports beside those of the template: health and metrics, and the peer side of the embedded etcd."""


class MilvusServer:
    """A Milvus standalone: one process with its etcd and message queue inside."""

    def __init__(self, process: NativeProcess, ports: Mapping[str, int]) -> None:
        self.process = process
        self.ports = ports
        self.start_s = 0.0
        self.rpc = Rpc(self.endpoint)

    def connect(self) -> None:
        """A new channel."""
        self.rpc.close()
        self.rpc = Rpc(self.endpoint)

    @property
    def endpoint(self) -> str:
        """host:port of the proxy."""
        return f"{_HOST}:{self.ports['proxy_port']}"

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
        """Release the collection (SIGTERM hangs while one is loaded), SIGTERM, and SIGKILL where that isn't enough."""
        if self.alive():
            try:
                self.rpc.release()
            except ServerError:
                pass
        self.rpc.close()
        return self.process.stop(_TERM_WAIT_S)


def template_ports(template: str) -> list[str]:
    """Names of the ports in the wheel's config template."""
    return [match["name"] for match in _PLACEHOLDER.finditer(template) if match["name"].endswith("_port")]


def render(template: str, values: Mapping[str, Any]) -> Any:
    """The config template with `values` put in, defaults elsewhere, as YAML data."""

    def fill(match: re.Match[str]) -> str:
        value = values.get(match["name"], match["default"])
        if value is None:
            raise ConfigError(f"milvus: the artifact's config template wants {match['name']}, which has no value")
        return str(value)

    return yaml.safe_load(_PLACEHOLDER.sub(fill, template))


def merge(config: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Put dotted `settings` into `config`; ConfigError for one that it doesn't have, as Milvus would ignore it."""
    for dotted, value in settings.items():
        *parents, last = dotted.split(".")
        section: Any = config
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if not isinstance(section, dict) or last not in section:
            raise ConfigError(f"settings: this version of milvus has no {dotted}")
        section[last] = value


def write_config(template: str, data_dir: Path, ports: Mapping[str, int], settings: Mapping[str, Any]) -> None:
    """Write milvus.yaml and etcd.yaml into `data_dir`/configs."""
    storage, logs, configs = data_dir / "data", data_dir / "logs", data_dir / "configs"
    for folder in (storage, logs, configs):
        folder.mkdir(parents=True, exist_ok=True)
    paths = {
        "etcd_log_path": logs / "etcd.log",
        "system_log_path": logs,
        "etcd_data_dir": storage / "etcd.data",
        "local_storage_dir": storage,
        "rocksmq_data_dir": storage / "rocksmq",
    }
    config = render(template, {**ports, **paths})
    # Without a file of its own the embedded etcd takes ports 2379 and 2380, whatever milvus.yaml says.
    config["etcd"]["config"] = {"path": str(configs / "etcd.yaml")}
    config["etcd"]["endpoints"] = f"{_HOST}:{ports['etcd_port']}"
    # Components register under this address; otherwise under the first of the machine's, which may change.
    for section in config.values():
        if isinstance(section, dict) and "ip" in section and "port" in section:
            section["ip"] = _HOST
    config["common"]["session"]["ttl"] = 5
    config["common"]["gracefulStopTimeout"] = 3
    config["log"]["level"] = "warn"
    merge(config, settings)
    client, peer = f"http://{_HOST}:{ports['etcd_port']}", f"http://{_HOST}:{ports['etcd_peer']}"
    etcd = {
        "name": "default",
        "data-dir": str(storage / "etcd.data"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "warn",
        "log-outputs": [str(logs / "etcd.log")],
    }
    (configs / "milvus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (configs / "etcd.yaml").write_text(yaml.safe_dump(etcd, sort_keys=False))


def _pick_ports(data_dir: Path, names: list[str], first_port: int | None) -> list[int]:
    """The asked ports, else those of the last start here (Milvus comes back sooner on them), else any free ones."""
    if first_port is not None:
        return claim_ports(first_port, len(names))
    kept = data_dir / "ports.json"
    if kept.exists():
        ports = read_json(kept)
        try:
            return claim_ports(min(ports.values()), len(names))
        except Exception:
            pass
    return free_ports(len(names))


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> MilvusServer:
    """Start on `data_dir`; returns when a call on its gRPC port succeeds (its /healthz says OK seconds earlier)."""
    artifact_dir, data_dir = artifact_dir.resolve(), data_dir.resolve()
    package = artifact_dir / "milvus" / "data"
    template = (package / "config.yaml.template").read_text()
    names = [*template_ports(template), *_OWN_PORTS]
    for attempt in range(_ATTEMPTS):
        ports = dict(zip(names, _pick_ports(data_dir, names, first_port), strict=True))
        write_config(template, data_dir, ports, system.get("settings") or {})
        shutil.copy(package / "glog.conf", data_dir / "configs" / "glog.conf")
        write_json(data_dir / "ports.json", ports)
        started = time.monotonic()
        process = NativeProcess.start(
            f"milvus {system['version']}",
            [package / "bin" / "milvus", "run", "standalone"],
            clean_environment(
                {
                    "LD_LIBRARY_PATH": str(package / "bin"),
                    "DEPLOY_MODE": "STANDALONE",
                    "METRICS_PORT": str(ports["metrics"]),
                    "MILVUSCONF": str(data_dir / "configs"),
                    "MILVUS_RUN_DIR": str(data_dir / "run"),
                    "HOME": str(data_dir),
                }
            ),
            cwd=data_dir,
            log_path=data_dir / "logs" / "server.log",
        )
        server = MilvusServer(process, ports)
        try:
            wait_for("milvus: an answer to the first call", lambda: _answers(server), server, START_TIMEOUT_S)
        except ServerError as error:
            tail = process.log_tail()
            server.stop()
            if "address already in use" in process.log_tail(200) and first_port is None and attempt + 1 < _ATTEMPTS:
                (data_dir / "ports.json").unlink()
                continue
            raise ServerError(f"milvus {system['version']} did not start: {error.args[0]}", tail) from None
        except BaseException:
            server.stop()
            raise
        server.start_s = time.monotonic() - started
        return server
    raise AssertionError("not reached")


def _answers(server: MilvusServer) -> bool | None:
    """Whether /healthz says OK and a gRPC call succeeds (the first alone says OK seconds too early on 2.2)."""
    if not _healthy(server):
        return None
    # A channel that was refused before waits longer and longer between its attempts, up to 10 s.
    server.connect()
    try:
        server.rpc.collections()
    except ServerError:
        return None
    return True


def _healthy(server: MilvusServer) -> bool:
    try:
        return http_get(f"http://{_HOST}:{server.ports['metrics']}/healthz", timeout_s=1.0) == b"OK"
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
    open_collection(as_milvus(server))
    return (time.perf_counter_ns() - started_ns) / 1e9


def open_collection(server: MilvusServer) -> None:
    """Load the collection and wait until a search succeeds. (Loading progress says 100 % before that after restarts.)"""
    server.rpc.call(
        "LoadCollection",
        milvus_pb2.LoadCollectionRequest(collection_name=COLLECTION, replica_number=1),
        common_pb2.Status,
        _LOAD_TIMEOUT_S,
    )
    search = search_request(np.zeros(server.rpc.dimensions(), np.float32), 1, 1, server.rpc.metric_type(), "")
    wait_for("milvus: a first search", lambda: _searches(server, search), server, _LOAD_TIMEOUT_S, poll_s=0.02)


def _searches(server: MilvusServer, search: milvus_pb2.SearchRequest) -> bool | None:
    try:
        server.rpc.call("Search", search, milvus_pb2.SearchResults)
    except ServerError:
        return None
    return True


def apply(server: Server, ef_search: int) -> None:
    """Nothing: ef travels in each request."""


_EXPRESSIONS = {
    "dataCoord.segment.maxSize": "param.DataCoordCfg.SegmentMaxSize.GetValue()",
    "dataCoord.segment.sealProportion": "param.DataCoordCfg.SegmentSealProportion.GetValue()",
    "dataCoord.segment.maxBinlogFileNumber": "param.DataCoordCfg.SegmentMaxBinlogFileNumber.GetValue()",
}


def probe(server: Server) -> Probe:
    """Version, strongly consistent count, index and segments, settings, replicas."""
    milvus = as_milvus(server)
    rpc = milvus.rpc
    version = rpc.call("GetVersion", milvus_pb2.GetVersionRequest(), milvus_pb2.GetVersionResponse).version
    index = rpc.index()
    params = {pair.key: pair.value for pair in index.params}
    built = json.loads(params["params"]) if "params" in params else params
    segments = rpc.segments()
    loaded = sum(segment.num_rows for segment in segments)
    sealed = all(segment.state == common_pb2.SegmentState.Sealed for segment in segments)
    covered = all(segment.indexID == index.indexID for segment in segments)
    state = common_pb2.IndexState.Name(index.state)
    rows = rpc.count()
    replicas = rpc.replicas()
    nodes = {segment_node for replica in replicas for segment_node in replica.node_ids}
    return Probe(
        version=version.removeprefix("v").removesuffix("-lite"),
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
            "index_type": params.get("index_type", "").lower(),
            "metric": {milvus_name: name for name, milvus_name in METRICS.items()}.get(params.get("metric_type", "")),
            "M": int(built["M"]),
            "ef_construction": int(built["efConstruction"]),
            "ef_search": None,
            "segments": len(segments),
        },
        nodes=len(nodes),
        shards=sum(len(replica.shard_replicas) for replica in replicas[:1]),
        replicas=len(replicas),
    )
