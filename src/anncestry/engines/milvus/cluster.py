"""Start a Milvus whose parts stand beside it: as one process, or distributed, each role a process of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from anncestry.engines.base import Spec
from anncestry.engines.milvus import serve
from anncestry.engines.milvus.parts import ACCESS_KEY, BUCKET, PORTS, secret_key, start_parts
from anncestry.engines.milvus.program import merge, render, template_ports
from anncestry.engines.milvus.roles import members_of
from anncestry.engines.milvus.serve import MilvusServer, healthy, placed_as_declared
from anncestry.engines.native import start_native
from anncestry.errors import ServerError
from anncestry.provenance.records import read_json, write_json
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.choice import runner_for
from anncestry.runtimes.native import clean_environment, http_get

_SEARCHES = re.compile(r"^milvus_querynode_sq_req_count\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_NODE_ID = re.compile(r'node_id="(\d+)"')


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> MilvusServer:
    """Start on `data_dir`; on the ports of its last start where they are free, as Milvus comes back sooner on them."""
    if "external" not in topology:
        return serve.start(artifact_dir, data_dir, system, topology, first_port)
    package, data_dir = artifact_dir.resolve() / "milvus" / "data", data_dir.resolve()
    template = (package / "config.yaml.template").read_text()
    settings = system.get("settings") or {}
    members = members_of(system["version"], topology)
    names = [name for place in PORTS if place in topology["external"] for name in PORTS[place]]
    for member in members:
        names += [f"{member}.{port}" for port in _ports_of(members[member], template)]
    kept = data_dir / "ports.json"

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> DistributedServer:
        data_dir.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"first_port": min(ports.values())})
        beside = {place: Limits(**limits) for place, limits in (topology.get("external_limits") or {}).items()}
        start_parts(runner, group, artifact_dir.resolve() / "parts", topology["external"], ports, data_dir, beside)
        for member, role in members.items():
            own = {name: ports[f"{member}.{name}"] for name in _ports_of(role, template)}
            config = configuration(template, data_dir, member, own, ports, topology, settings, runner)
            _start_member(runner, group, package, data_dir, system, topology, member, role, own, config)
        return DistributedServer(group, system, topology)

    kept_first_port = read_json(kept)["first_port"] if kept.exists() else None

    def runner_of() -> Runner:
        return runner_for(topology, [artifact_dir])

    return start_native(
        f"milvus {system['version']}", launch, _answers, names, first_port, kept_first_port, runner_of, serve.PASSING
    )


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
                text = http_get(member.addresses["metrics"], "/metrics", 10.0).decode()
                found[member.name] = read_metrics(text)
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


def _ports_of(role: str, template: str) -> list[str]:
    """The ports that a member of this role listens on: their names in the template, and that of its metrics."""
    if role == "standalone":
        return [*(name for name in template_ports(template) if name != "etcd_port"), "metrics"]
    if role == "proxy":
        return ["proxy_port", "proxy_internal_port", "metrics"]
    stem = re.sub(r"(coord|node)$", r"_\1", role)
    return [f"{stem}_port", "metrics"]


def configuration(
    template: str,
    data_dir: Path,
    member: str,
    own: Mapping[str, int],
    ports: Mapping[str, int],
    topology: Spec,
    settings: Mapping[str, Any],
    runner: Runner,
) -> dict[str, Any]:
    """The milvus.yaml of one member: its own ports, and where what stands beside it is."""
    external = topology["external"]
    shared = data_dir / "data"
    local = data_dir / "local" / member if "object_store" in external else shared
    paths = {
        "etcd_log_path": data_dir / "logs" / "etcd.log",
        "system_log_path": data_dir / "logs" / member,
        "etcd_data_dir": data_dir / "etcd",
        "local_storage_dir": local,
        "rocksmq_data_dir": shared / "rocksmq",
        "rocketmq_data_dir": shared / "rocksmq",  # what the template of 2.2 calls it
    }
    config: dict[str, Any] = render(template, {**{name: 1 for name in template_ports(template)}, **own, **paths})
    config["etcd"]["use"]["embed"] = False
    config["etcd"]["endpoints"] = f"{runner.host('etcd')}:{ports['etcd']}"
    for section in config.values():
        if isinstance(section, dict) and "ip" in section and "port" in section:
            section["ip"] = runner.host(member)
    if "object_store" in external:
        config["common"]["storageType"] = "minio"
        config["minio"].update(
            address=runner.host("object_store"),
            port=ports["object_store"],
            accessKeyID=ACCESS_KEY,
            secretAccessKey=secret_key(data_dir),
            bucketName=BUCKET,
        )
    if "log" in external:
        for other in ("pulsar", "rocksmq", "natsmq"):
            config.pop(other, None)
        config["mq"] = {"type": "kafka"}
        config["kafka"] = {"brokerList": f"{runner.host('log')}:{ports['log']}", "securityProtocol": "PLAINTEXT"}
    config["log"]["level"] = "warn"
    merge(config, settings)
    local.mkdir(parents=True, exist_ok=True)
    return config


def _start_member(
    runner: Runner,
    group: Group,
    package: Path,
    data_dir: Path,
    system: Spec,
    topology: Spec,
    member: str,
    role: str,
    own: Mapping[str, int],
    config: Mapping[str, Any],
) -> None:
    folder = data_dir / "configs" / member
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "milvus.yaml"
    written.touch(mode=0o600)  # the object store's password is in it
    written.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    if (package / "glog.conf").exists():  # 2.3 brings one
        shutil.copy(package / "glog.conf", folder / "glog.conf")
    environment = {
        "LD_LIBRARY_PATH": str(package / "bin"),
        "DEPLOY_MODE": "STANDALONE" if role == "standalone" else "DISTRIBUTED",
        "METRICS_PORT": str(own["metrics"]),
        "MILVUSCONF": str(folder),
        "HOME": str(data_dir),
    }
    # One process uses names that do not tell runs apart: as it does without an alias.
    names = [] if role == "standalone" else ["-alias", f"{member}-{own['metrics']}"]
    handle = runner.start(
        member,
        f"milvus {system['version']} {member}",
        [package / "bin" / "milvus", "run", role, *names],
        clean_environment(environment),
        data_dir,
        data_dir / "logs" / f"{member}.log",
        Limits.of(topology),
        list(own.values()),
        serve.runtime_folders() if topology["runtime"] == "native" else (),
    )
    addresses = {name: runner.reached(member, port) for name, port in own.items()}
    if "proxy_port" in addresses:
        addresses["proxy"] = addresses["proxy_port"]
    group.add(Member(member, role, handle, addresses))


def _answers(server: MilvusServer) -> bool | None:
    """Whether every member says that it is healthy, and the proxy answers."""
    for member in server.group:
        if "metrics" in member.addresses and not healthy(member.addresses["metrics"]):
            return None
    server.connect()
    server.rpc.collections()
    return True
