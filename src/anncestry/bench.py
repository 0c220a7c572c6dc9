"""One server, one dataset, a few minutes: the config of `anncestry bench`, and the server that its user starts.

The matrix is one block: a dataset × a system × standalone, or an endpoint × a workload for each number of clients.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

from anncestry import workflow
from anncestry.cells.config import read_yaml
from anncestry.cells.expand import tuning_least
from anncestry.errors import ServerError, UserError
from anncestry.guard import built
from anncestry.provenance.running import owner
from anncestry.runtimes.native import MARK, free_ports

NAME = "bench"
ENDPOINT = "bench-endpoint"
"""How the topologies of servers that run already begin: nothing says that one is what was there before, so that each
call has one of its own, and measures all anew."""
_RUNS = 2
_RUN_S = 5.0
_QUERIES = 500
_UP_S = 120.0
_STOP_S = 20.0
_LOG_LINES = 20


@dataclass(frozen=True)
class Asked:
    """What is measured: a system of the config, as it is, as somebody built it (`artifact`), or where it runs already.

    `endpoints`: interface → HOST:PORT. `queries`: how many different ones a run sends.
    """

    system: str
    dataset: str
    k: int = 10
    clients: Sequence[int] = (1, 8)
    target_recall: float | None = None
    artifact: Path | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    credentials: str | None = None


def prepare(asked: Asked, folder: Path) -> workflow.Choice:
    """Add the experiment to the config in `folder`; ConfigError or UserError if it can't be measured as asked."""
    config = folder / "config"
    systems = read_yaml(config / "systems.yaml")
    system = asked.system
    if system not in systems:
        raise UserError(f"--system: no system {system!r} in systems.yaml; known: {', '.join(sorted(systems))}")
    if asked.artifact is not None:
        entry = built(systems, system, asked.artifact)
        system = f"{system}-{NAME}"
        systems[system] = entry
        _write(config / "systems.yaml", systems)
    topology = "standalone"
    if asked.endpoints:
        topology = f"{ENDPOINT}-{datetime.now(UTC):%Y%m%dt%H%M%S}"
        topologies = read_yaml(config / "topologies.yaml")
        topologies[topology] = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "tls": "none"}
        topologies[topology]["endpoints"] = {interface: variable(interface) for interface in asked.endpoints}
        if asked.credentials:
            topologies[topology]["credentials"] = asked.credentials
        _write(config / "topologies.yaml", topologies)
    workloads = read_yaml(config / "workloads.yaml")
    there = _queries(read_yaml(config / "datasets.yaml"), asked.dataset)
    own_workloads = {name_of(asked, clients): workload(asked, clients, there) for clients in asked.clients}
    _write(config / "workloads.yaml", {**workloads, **own_workloads})
    block = {"datasets": [asked.dataset], "systems": [system], "topologies": [topology]}
    experiment = {"title": f"{system} on {asked.dataset}", "matrix": [{**block, "workloads": list(own_workloads)}]}
    (config / "experiments").mkdir(exist_ok=True)
    _write(config / "experiments" / f"{NAME}.yaml", experiment)
    choice = workflow.Choice(config.resolve(), NAME)
    workflow.expand(choice)
    return choice


def name_of(asked: Asked, clients: int) -> str:
    """The name of the workload with so many clients."""
    recall = "" if asked.target_recall is None else f"-recall{100 * asked.target_recall:g}".replace(".", "p")
    return f"{NAME}-k{asked.k}-clients{clients}{recall}"


def workload(asked: Asked, clients: int, there: int) -> dict[str, Any]:
    """A closed loop over some of the `there` queries of the dataset; its seconds are fixed, so that a bench's are."""
    body: dict[str, Any] = {"k": asked.k, "clients": clients, "runs": _RUNS, "duration_s": _RUN_S}
    tuning = 0
    if asked.target_recall is not None:
        tuning, least = max(20, min(200, there // 3)), tuning_least(asked.target_recall)
        if tuning < least <= there // 2:  # where that many are not there, the config's error says so
            tuning = int(least)
        body |= {"target_recall": asked.target_recall, "tuning_queries": tuning}
    queries = min(_QUERIES, there - tuning)
    return {**body, "queries": queries, "warmup": min(100, queries)}


def _queries(datasets: Mapping[str, Mapping[str, Any]], name: str) -> int:
    """How many queries a dataset has; what is no dataset is found while the matrix is expanded."""
    entry = datasets.get(name, {})
    return int({**datasets.get(entry.get("of", ""), {}), **entry}.get("queries", _QUERIES))


def variable(interface: str) -> str:
    """The environment variable that holds the address of an interface."""
    return f"ANNCESTRY_BENCH_{interface.upper()}"


def newest(systems: Mapping[str, Mapping[str, Any]], engine: str) -> str:
    """The system of an engine with the highest version, without settings of its own; UserError if there is none."""
    of_engine = {name: entry for name, entry in systems.items() if entry.get("engine") == engine}
    if not of_engine:
        known = sorted({str(entry["engine"]) for entry in systems.values() if "engine" in entry})
        raise UserError(f"--engine: no system of engine {engine!r} in systems.yaml; known engines: {', '.join(known)}")
    plain = {name: entry for name, entry in of_engine.items() if "settings" not in entry} or of_engine

    def version(name: str) -> tuple[int, ...]:
        return tuple(int(part) for part in str(plain[name]["version"]).split(".") if part.isdigit())

    return max(plain, key=version)


@contextmanager
def started(command: str, interfaces: Sequence[str], folder: Path) -> Iterator[dict[str, str]]:
    """Run a user's own command while its server is measured; yields interface → HOST:PORT.

    In it, `{port}` is a free port for the first interface, `{port_NAME}` that of another, `{data}` a new folder.
    ServerError with the end of its log if it ends, or listens on no port within two minutes.
    """
    data = folder / "data-of-command"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    ports = dict(zip(interfaces, free_ports(len(interfaces)), strict=True))
    names = {f"port_{interface}": port for interface, port in ports.items()}
    try:
        # Words of a program, as no shell runs it: a port or a path with a blank stays one word.
        words = [word.format(port=ports[interfaces[0]], data=data, **names) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        known = ", ".join(f"{{{name}}}" for name in ("port", "data", *names))
        raise UserError(f"--command: {error} is no name that it may hold in braces: {known}") from None
    log = folder / "command.log"
    with open(log, "wb") as file:
        try:
            server = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={**os.environ, MARK: owner(os.getpid())},
            )  # fmt: skip
        except (OSError, IndexError) as error:
            raise UserError(f"--command {command}: can't be started ({error})") from None
    try:
        for interface, port in ports.items():
            _await(server, port, interface, log)
        yield {interface: f"127.0.0.1:{port}" for interface, port in ports.items()}
        if server.poll() is not None:
            raise ServerError(f"--command: the server ended with {server.returncode} while it was measured", _tail(log))
    finally:
        _end(server)


def _await(server: subprocess.Popen[bytes], port: int, interface: str, log: Path) -> None:
    until = time.monotonic() + _UP_S
    while time.monotonic() < until:
        if server.poll() is not None:
            raise ServerError(f"--command: ended with {server.returncode} before it listened on {port}", _tail(log))
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise ServerError(f"--command: nothing listened on port {port} ({interface}) within {_UP_S:g} s", _tail(log))


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_S)
            break
    left = [process for process in psutil.process_iter() if _in_group(process, server.pid)]
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    # A killed process holds its ports until the kernel is done with it.
    psutil.wait_procs(left, _STOP_S)


def _in_group(process: psutil.Process, group: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getpgid(process.pid) == group
    return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _write(path: Path, body: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True))
