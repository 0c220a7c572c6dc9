"""Start and ask an OpenSearch node: its jars, and a Java of this machine that has vector instructions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import redact, web
from anncestry.engines.base import Server, Spec, wait_for
from anncestry.engines.native import HOST, start_native
from anncestry.engines.opensearch import HEAP_MIB, wire
from anncestry.errors import ServerError
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment

HEADERS = {"Content-Type": "application/json"}
STORE, CONFIG = "opensearch", "config"
"""Its folders, in a data folder."""
VECTOR_MODULE = "jdk.incubator.vector"
_OLDEST_JAVA = 21
JAVAS = Path("/usr/lib/jvm")
"""Where Debian and others put them."""
_SOURCES = Path(__file__).parent / "java"
_CALL_S = 3600.0
_TERM_WAIT_S = 60.0
_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class OpenSearchServer(Server):
    """One node with one index. With `exact`, searches under a filter compare all rows that pass it."""

    collection = "anncestry"
    interface = "http"

    def __init__(self, group: Group, topology: Spec) -> None:
        super().__init__(group, topology)
        self.exact = False

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[bytes, str | None]:
        """What a call answers, and why it was refused; ServerError if nothing answers."""
        try:
            status, reply = web.call(self.endpoint, method, path, _CALL_S, body, HEADERS)
        except OSError as error:
            self.check_alive()
            raise ServerError(f"opensearch: {method} {path}: {error}") from None
        said = f"HTTP {status}: {redact.short(reply.decode(errors='replace'))}"
        return reply, said if status >= 400 else None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What a call answers; ServerError with OpenSearch's reason if it fails."""
        reply, refusal = self.ask(method, path, None if body is None else json.dumps(body).encode())
        if refusal is not None:
            raise ServerError(f"opensearch: {refusal}")
        return json.loads(reply)

    def of_index(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.call(method, f"/{self.collection}{path}", body)

    def insert(self, body: bytes) -> list[str]:
        """Insert rows; returns why they were refused, for each that was. ServerError if all of them were."""
        reply, refusal = self.ask("POST", f"/{self.collection}/_bulk", body)
        if refusal is not None:
            raise ServerError(f"opensearch: {refusal}")
        told = json.loads(reply)
        if not told["errors"]:
            return []
        return [json.dumps(item["index"]["error"])[:300] for item in told["items"] if "error" in item["index"]]

    @cached_property
    def field(self) -> dict[str, Any]:
        """The field of vectors as the server describes it. It is fixed once the index is created."""
        found: dict[str, Any] = self.of_index("GET", "/_mapping")[self.collection]["mappings"]["properties"][wire.FIELD]
        return found

    def node(self) -> dict[str, Any]:
        """What the node says of itself, its Java and its plugins."""
        (node,) = self.call("GET", "/_nodes/jvm,plugins")["nodes"].values()
        return dict(node)

    def segments(self) -> list[dict[str, Any]]:
        """The segments that are searched."""
        ((copy,),) = self.of_index("GET", "/_segments")["indices"][self.collection]["shards"].values()
        return [segment for segment in copy["segments"].values() if segment["search"]]

    def await_open(self) -> None:
        """Until the index can be searched; the node answers earlier."""

        def done() -> bool | None:
            health = self.call("GET", f"/_cluster/health/{self.collection}?wait_for_status=green&timeout=1s")
            return True if health["status"] == "green" else None

        wait_for("opensearch: a green index", done, self, _CALL_S, patient=True)
        self.search_once()

    def search_once(self) -> None:
        query = np.ones(self.field["dimension"], np.float32)
        reply, refusal = self.ask("POST", f"/{self.collection}/_search", wire.search(query, 1, 1, None))
        if refusal is not None or not json.loads(reply)["hits"]["hits"]:
            raise ServerError(f"opensearch: a search finds nothing: {refusal or ''}")


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


def _prepared(java: Path, artifact: Path, knn: Path, config: Path) -> str:
    """The class path, with the launcher, which is compiled once a data folder."""
    jars = f"{artifact}/*:{knn}/*"
    if not (config / "classes").exists():
        argv: list[str | Path] = [
            java / "bin" / "javac",
            "-d",
            config / "part",
            "-cp",
            jars,
            *sorted(_SOURCES.glob("*.java")),
        ]
        done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerError(f"opensearch: its launcher does not compile: {done.stderr[:300]}")
        (config / "part").rename(config / "classes")
    return f"{config / 'classes'}:{jars}"


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> OpenSearchServer:
    """Start it, on loopback; returns when it answers."""
    artifact, folder = artifact_dir.resolve(), data_dir.resolve()
    java, config = java_home(), folder / CONFIG
    (knn,) = artifact.glob("opensearch-knn-*/")
    config.mkdir(parents=True, exist_ok=True)
    class_path = _prepared(java, artifact, knn, config)
    heap_mib = (system.get("settings") or {}).get("heap_mib", HEAP_MIB)

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> OpenSearchServer:
        settings = {
            "cluster.name": "anncestry",
            "path.data": str(folder / STORE),
            "path.logs": str(folder / "logs"),
            "network.host": HOST,
            "http.port": ports["http"],
            "transport.port": ports["transport"],
            "discovery.type": "single-node",
            "action.auto_create_index": False,
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }
        # JSON is YAML.
        (config / "opensearch.yml").write_text(json.dumps(settings))
        (config / "log4j2.properties").write_text(_LOGGING)
        argv: list[str | Path] = [java / "bin" / "java", f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m"]
        argv += [f"--add-modules={VECTOR_MODULE}", "-Dio.netty.noUnsafe=true", "-Dlog4j2.disable.jmx=true"]
        argv += [f"-Djava.io.tmpdir={config}", f"-Dopensearch.path.home={folder}", "-cp", class_path]
        argv += ["Launch", folder, knn]
        title, log, limits = f"opensearch {system['version']}", folder / "logs" / "opensearch.log", Limits.of(topology)
        handle = runner.start("opensearch", title, argv, clean_environment(), folder, log, limits, list(ports.values()))
        addresses = {name: f"{HOST}:{port}" for name, port in ports.items()}
        group.add(Member("opensearch", "node", handle, addresses, _TERM_WAIT_S))
        return OpenSearchServer(group, topology)

    def answers(server: OpenSearchServer) -> bool | None:
        health = server.call("GET", "/_cluster/health?timeout=1s")
        return True if health["number_of_nodes"] == 1 else None

    return start_native("opensearch", launch, answers, ("http", "transport"), first_port)
