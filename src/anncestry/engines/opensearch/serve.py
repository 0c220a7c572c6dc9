"""Start and ask an OpenSearch node: its jars, and a Java of this machine that has vector instructions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.engines.base import Placed, Spec
from anncestry.engines.lucene import LuceneServer
from anncestry.engines.native import HOST, start_native
from anncestry.engines.opensearch import HEAP_MIB, nodes_of, wire
from anncestry.errors import ServerError
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment

STORE, CONFIG = "opensearch", "config"
"""Its folders, in a data folder."""
_PORTS = ("http", "transport")
VECTOR_MODULE = "jdk.incubator.vector"
_OLDEST_JAVA = 21
_JAVA_FACTS = ("JAVA_VERSION=", "JAVA_RUNTIME_VERSION=", "IMPLEMENTOR=")
"""Lines of a Java's file `release` that tell it from others."""
JAVAS = Path("/usr/lib/jvm")
"""Where Debian and others put them."""
_SOURCES = Path(__file__).parent / "java"
_TERM_WAIT_S = 60.0
_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class OpenSearchServer(LuceneServer):
    """One node, or a cluster of several, with one index."""

    name = "opensearch"

    @property
    def endpoints(self) -> list[str]:
        """host:port of every node: each coordinates what it is asked."""
        return [member.addresses["http"] for member in self.group]

    def nodes(self) -> list[dict[str, Any]]:
        """What each node says of itself, its Java and its plugins."""
        told = self.call("GET", "/_nodes/jvm,plugins")["nodes"].values()
        return sorted((dict(node) for node in told), key=lambda node: str(node["name"]))

    def placement(self) -> list[Placed]:
        """Which node holds which copy, and its rows."""
        told = self.call("GET", f"/_cat/shards/{self.collection}?format=json&h=shard,node,docs,state")
        copies = [(one["node"], one["shard"], int(one["docs"])) for one in told if one["state"] == "STARTED"]
        return [Placed(node, f"shard {shard}", rows) for node, shard, rows in sorted(copies)]

    def missed(self) -> list[str]:
        """Members that do not see all others: each is asked."""
        members = list(self.group)
        return [member.name for member in members if self._seen(member) != len(members)]

    def _seen(self, member: Member) -> int:
        reply, _, refusal = self.ask("GET", "/_cluster/health?timeout=1s", None, member.addresses["http"])
        return 0 if refusal is not None else int(json.loads(reply)["number_of_nodes"])

    def check_members(self) -> None:
        """ServerError for a node that is gone or does not see the others, and for a copy of a shard that is missing."""
        self.check_alive()
        missed = self.missed()
        if missed:
            self.check_alive()
            raise ServerError(f"opensearch: {', '.join(missed)} without the other members of the cluster")
        self.check_copies()

    def first_search(self) -> bytes:
        return wire.search(np.ones(self.field["dimension"], np.float32), 1, 1, None)


def java_home() -> Path:
    """A Java development kit of this machine that is new enough and has vector instructions; ServerError if none."""
    on_path = shutil.which("java")
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += [Path(on_path).resolve().parents[1]] if on_path else []
    for home in [*homes, *sorted(JAVAS.glob("*"))]:
        release = home / "release"
        if not release.is_file():
            continue
        told = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
        number, modules = told.get("JAVA_VERSION", "0").strip('"').split(".")[0], told.get("MODULES", "").strip('"')
        if number.isdigit() and int(number) >= _OLDEST_JAVA and {VECTOR_MODULE, "jdk.compiler"} <= set(modules.split()):
            return home
    raise ServerError(
        f"opensearch: needs a Java development kit of version {_OLDEST_JAVA} or later with {VECTOR_MODULE}: neither "
        f"JAVA_HOME, the PATH nor {JAVAS} has one (apt-get install openjdk-21-jdk-headless, or Temurin)"
    )


def _refuse_other_java(java: Path, config: Path) -> None:
    """ServerError where the data was loaded with another Java: the two would be one system's numbers."""
    told = [line for line in (java / "release").read_text().splitlines() if line.startswith(_JAVA_FACTS)]
    found, file = "\n".join(sorted(told)) + "\n", config / "java"
    if not file.exists():
        file.write_text(found)
    elif file.read_text() != found:
        was, now = (" ".join(text.split()) for text in (file.read_text(), found))
        raise ServerError(
            f"opensearch: its data was loaded with the Java of {was}, and {java} is {now}: set JAVA_HOME to that one, "
            "or load it again (`anncestry drop --load`)"
        )


def _prepared(java: Path, artifact: Path, knn: Path, config: Path) -> str:
    """The class path, with the launcher, which is compiled once a data folder and version."""
    jars, classes = f"{artifact}/*:{knn}/*", config / f"classes-{knn.name}"
    if not classes.exists():
        argv: list[str | Path] = [
            java / "bin" / "javac",
            "--release",
            str(_OLDEST_JAVA),
            "-d",
            config / "part",
            "-cp",
            jars,
            *sorted(_SOURCES.glob("*.java")),
        ]
        done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerError(f"opensearch: its launcher does not compile: {done.stderr[:300]}")
        (config / "part").rename(classes)
    return f"{classes}:{jars}"


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> OpenSearchServer:
    """Start all nodes, on loopback; returns when each answers and sees the others."""
    artifact, data, nodes = artifact_dir.resolve(), data_dir.resolve(), nodes_of(topology)
    java = java_home()
    (knn,) = artifact.glob("opensearch-knn-*/")
    first = node_dir(data, nodes[0], len(nodes)) / CONFIG
    first.mkdir(parents=True, exist_ok=True)
    _refuse_other_java(java, first)
    class_path = _prepared(java, artifact, knn, first)
    heap_mib = (system.get("settings") or {}).get("heap_mib", HEAP_MIB)

    def launch(group: Group, numbers: Mapping[str, int], runner: Runner) -> OpenSearchServer:
        ports = {node: {name: numbers[f"{node}.{name}"] for name in _PORTS} for node in nodes}
        for node in nodes:
            folder = node_dir(data, node, len(nodes))
            config = folder / CONFIG
            config.mkdir(parents=True, exist_ok=True)
            # JSON is YAML.
            (config / "opensearch.yml").write_text(json.dumps(_settings(node, ports, folder)))
            (config / "log4j2.properties").write_text(_LOGGING)
            argv: list[str | Path] = [java / "bin" / "java", f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m"]
            argv += [f"--add-modules={VECTOR_MODULE}", "-Dio.netty.noUnsafe=true", "-Dlog4j2.disable.jmx=true"]
            argv += [f"-Djava.io.tmpdir={config}", f"-Dopensearch.path.home={folder}", "-cp", class_path]
            argv += ["Launch", folder, knn, node]
            title = f"opensearch {system['version']}" + (f" {node}" if len(nodes) > 1 else "")
            log, limits = folder / "logs" / "opensearch.log", Limits.of(topology)
            of_node = list(ports[node].values())
            handle = runner.start(node, title, argv, clean_environment(), folder, log, limits, of_node)
            addresses = {name: f"{HOST}:{port}" for name, port in ports[node].items()}
            group.add(Member(node, "node", handle, addresses, _TERM_WAIT_S))
        return OpenSearchServer(group, topology)

    def answers(server: OpenSearchServer) -> bool | None:
        return not server.missed() or None

    names = [f"{node}.{name}" for node in nodes for name in _PORTS]
    return start_native("opensearch", launch, answers, names, first_port)


def node_dir(data_dir: Path, node: str, nodes: int) -> Path:
    """The folder of a node: the data folder itself for a node of its own, one below it in a cluster."""
    return data_dir if nodes == 1 else data_dir / node


def _settings(node: str, ports: Mapping[str, Mapping[str, int]], folder: Path) -> dict[str, Any]:
    """The node's own file of settings."""
    together: dict[str, Any] = {"discovery.type": "single-node"}
    if len(ports) > 1:
        hosts = [f"{HOST}:{of['transport']}" for of in ports.values()]
        # The names form the cluster at its first start, and are ignored later.
        together = {"discovery.seed_hosts": hosts, "cluster.initial_cluster_manager_nodes": list(ports)}
    return {
        "cluster.name": "anncestry",
        "node.name": node,
        "path.data": str(folder / STORE),
        "path.logs": str(folder / "logs"),
        "network.host": HOST,
        "http.port": ports[node]["http"],
        "transport.port": ports[node]["transport"],
        **together,
        "action.auto_create_index": False,
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
