"""The driver: keeps its processes, native or Python, and runs one job after the other on them.

Connect and prime every client, then a barrier (all are told the same future instant), then the clock.
"""

from __future__ import annotations

import json
import os
import platform
import selectors
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from anncestry import redact
from anncestry.drive import build
from anncestry.errors import ServerError
from anncestry.runtimes import client_env

KINDS = ("native", "python")
LAG_MS, GAP_MS, QUEUED_MS = 5.0, 100.0, 100.0
"""More than this is complained of: see `complaints`."""
_OF_TRANSPORT = {"sdk": "python", "inprocess": "inprocess"}
"""Kinds of transport that go by a driver of their own, whatever was chosen for the others."""
_SOURCES = Path(__file__).resolve().parents[2]
_CHECK_S = 0.5
LEAD_NS = 30_000_000
"""From the barrier to the clock's zero: long enough for the word to reach every client before it."""


class Driver:
    """Runs jobs, by the native driver or by the Python one; its processes start when first needed, and are kept.

    `kind` is native or python. What only a Python program can send (transport kinds sdk and inprocess) goes by the
    Python one anyway. `shared` is a folder that other machines see at the same path, for jobs that run on those.
    """

    def __init__(self, kind: str = "native", shared: Path | None = None) -> None:
        assert kind in KINDS, kind
        self.kind = kind
        self._shared = shared
        self._far: dict[tuple[str, ...], Pool] = {}
        self._apart: dict[str, Pool] = {}
        self._pools: dict[str, Pool] = {"native": _Native(), "python": _Python(), "inprocess": _InProcess()}

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pids(self) -> list[int]:
        """Process ids of all clients; but of those that are themselves what is measured, see `libraries`."""
        here = [pool for kind, pool in self._pools.items() if kind != "inprocess"]
        return [pid for pool in (*here, *self._apart.values(), *self._far.values()) for pid in pool.pids()]

    def libraries(self) -> list[int]:
        """Process ids of the clients that search in their own process: what they use is the system's."""
        return self._pools["inprocess"].pids()

    def run(self, folder: Path, check: Callable[[], None] = lambda: None, hosts: Sequence[str] = ()) -> dict[str, Any]:
        """Run the job in `folder`, or those that it names together, and write done.json of each; returns the folder's.

        `hosts` are variables that hold commands which run the clients on other machines (see `hosts`).

        ServerError if a client can't connect or dies; requests that fail are samples, not errors. `check` is called
        twice a second meanwhile, and may raise (the server is gone: nobody need wait for timeouts). There is no limit
        for the whole: every request has its own.
        """
        jobs = {name: json.loads((folder / name / "job.json").read_text()) for name in _names(folder)}
        transports = {job["transport"]["kind"] for job in jobs.values()}
        kind = next((own for of, own in _OF_TRANSPORT.items() if of in transports), self.kind)
        apart = {job["transport"]["environment"] for job in jobs.values() if "environment" in job["transport"]}
        pool = self._pool_on(tuple(hosts)) if hosts else self._pool_of(*apart) if apart else self._pools[kind]
        done: dict[str, Any] = redact.body(pool.run(folder.resolve(), jobs, check))
        for facts in (done, *done.get("together", {}).values()):
            for client in facts.get("clients", ()):
                client["errors"] = redact.counts(client["errors"])
        for name, facts in done.get("together", {}).items():
            (folder / name / "done.json").write_text(json.dumps(facts))
        (folder / "done.json").write_text(json.dumps(done))
        return done

    def _pool_of(self, environment: str) -> Pool:
        if environment not in self._apart:
            self._apart[environment] = _PythonApart(environment)
        return self._apart[environment]

    def _pool_on(self, hosts: tuple[str, ...]) -> Pool:
        from anncestry.drive.hosts import Elsewhere

        assert self._shared is not None, "other machines need a folder that they share with this one"
        if hosts not in self._far:
            self._far[hosts] = Elsewhere(hosts, self._shared)
        return self._far[hosts]

    def close(self) -> None:
        """End all clients."""
        for pool in (*self._pools.values(), *self._apart.values(), *self._far.values()):
            pool.close()


def _names(folder: Path) -> list[str]:
    """The folders within this one whose jobs are run together; of a single job the folder itself, ""."""
    return json.loads((folder / "job.json").read_text()).get("together") or [""]


def known() -> str:
    """The line that tells a driver which addresses stand behind what a job calls them."""
    return f"known {json.dumps(redact.addresses())}"


class Pool(ABC):
    """Processes that are told things by line, and answer by line."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    @abstractmethod
    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        """Run the jobs in `folder`, by their names ("" for a single one); returns the driver's facts."""

    def pids(self) -> list[int]:
        """Of all processes."""
        return [process.pid for process in self._processes]

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")} | more
        self._processes.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                start_new_session=True,
            )
        )

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise ServerError(f"a client of the driver died (exit {process.poll()})") from None

    def _answers(self, processes: list[subprocess.Popen[str]], word: str, check: Callable[[], None]) -> list[str]:
        """One line from every process, in their order; each must start with `word`."""
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, number)
            checked = time.monotonic()
            while len(answers) < len(processes):
                events = selector.select(timeout=_CHECK_S)
                try:
                    if time.monotonic() - checked >= _CHECK_S:
                        check()
                        checked = time.monotonic()
                except ServerError:
                    self.close()
                    raise
                for event, _ in events:
                    line = event.fileobj.readline()  # type: ignore[union-attr]
                    selector.unregister(event.fileobj)
                    first, _, rest = line.strip().partition(" ")
                    if first != word:
                        self.close()
                        reason = json.loads(rest) if first == "failed" else self._death(processes[event.data])
                        raise ServerError(redact.text(self._complaint(event.data, reason)))
                    answers[event.data] = rest
        return [answers[number] for number in range(len(processes))]

    def _death(self, process: subprocess.Popen[str]) -> str:
        return "it died"

    def _complaint(self, number: int, reason: str) -> str:
        return f"client {number} of the driver failed: {reason}"

    def close(self) -> None:
        """End all processes: their input ends, and whoever does not heed that is killed by pid."""
        for process in self._processes:
            if process.stdin:
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    pass
        for process in self._processes:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._processes = []


class _Native(Pool):
    """One process for all clients, from `build`."""

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        if not self._processes:
            # Its threads sleep where Go does not know of it; signals to preempt them would only wake them in vain.
            self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
            # One line of Go's own words is enough, should it ever end by itself.
            quiet = {"GODEBUG": "asyncpreemptoff=1", "GOTRACEBACK": "none"}
            self._start([str(build.programs().driver)], self._said, **quiet)
        (process,) = self._processes
        self._tell(process, known())
        self._tell(process, f"job {folder}")
        self._answers([process], "ready", check)
        self._tell(process, f"go {time.monotonic_ns() + LEAD_NS}")
        (text,) = self._answers([process], "done", check)
        return json.loads(text)  # type: ignore[no-any-return]

    def _death(self, process: subprocess.Popen[str]) -> str:
        self._said.seek(0)
        said = self._said.read(10_000).strip().splitlines()
        return f"it died (exit {process.returncode}{': ' + said[0] if said else ''})"

    def _complaint(self, number: int, reason: str) -> str:
        return reason if " of the driver " in reason else f"the native driver failed: {reason}"


_CLIENT = "from anncestry.drive.client import main; main()"


class _Python(Pool):
    """A process for each client, of this interpreter."""

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        seats = [(name, number) for name, job in jobs.items() for number in range(job["clients"])]
        while len(self._processes) < len(seats):
            self._start([sys.executable, "-c", _CLIENT])
        for name in jobs:
            (folder / name / "next.bin").write_bytes(bytes(8))
        clients = self._processes[: len(seats)]
        for client, (name, number) in zip(clients, seats, strict=True):
            self._tell(client, known())
            self._tell(client, f"job {number} {folder / name}")
        self._answers(clients, "ready", check)
        zero_ns = time.monotonic_ns() + LEAD_NS
        for client in clients:
            self._tell(client, f"go {zero_ns}")
        parts = [json.loads(text) for text in self._answers(clients, "done", check)]
        facts = {
            name: self._facts(zero_ns, [part for part, (of, _) in zip(parts, seats, strict=True) if of == name])
            for name in jobs
        }
        if "" in facts:
            return facts[""]
        return {"zero_ns": zero_ns, "end_ns": max(part["end_ns"] for part in parts), "together": facts}

    @staticmethod
    def _facts(zero_ns: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
        sums = ("cpu_s", "rss_peak_mib", "unsent", "reconnects")
        return {
            "zero_ns": zero_ns,
            "end_ns": max(part["end_ns"] for part in parts),
            "driver": {"kind": "python", "python": platform.python_version()},
            **{name: sum(part[name] for part in parts) for name in sums},
            # The worst client's: no client shall hide behind the others.
            **{name: max(part[name] for part in parts) for name in ("lag_p99_ms", "lag_max_ms")},
            "gc_pause_max_ms": 0.0,
            "gap_max_ms": None,
            "tls": _once(part["tls"] for part in parts if part["tls"] is not None),
            "clients": [{name: part[name] for name in ("samples", "prime_errors", "errors")} for part in parts],
            **({"library": parts[0]["library"]} if "library" in parts[0] else {}),
        }


def _once(found: Iterable[Any]) -> list[Any]:
    """Each that is found, once, in their order."""
    different: list[Any] = []
    for one in found:
        if one not in different:
            different.append(one)
    return different


class _InProcess(_Python):
    """Python clients that hold an index themselves: new ones for each job, so that none holds more than it searches.

    They are ended by the next job or with the driver: until then what they used can be read.
    """

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        self.close()
        return super().run(folder, jobs, check)

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        super()._start(command, stderr, **more, OMP_NUM_THREADS="1")


class _PythonApart(_Python):
    """Python clients among the packages of an environment of their own (`client_env`), and of nothing else."""

    def __init__(self, environment: str) -> None:
        super().__init__()
        self._environment = environment

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        # Last on the path: beside this package there may lie others, of the versions that are not meant.
        here = f"import sys; sys.path.append({str(_SOURCES)!r}); "
        python = client_env.interpreter(self._environment)
        super()._start([str(python), "-I", "-c", here + command[-1]], stderr, **more)


def complaints(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What the client did that no number may hide, each as a sentence; `runs` are the facts of outcomes."""
    found: list[str] = []
    for number, run in enumerate(runs):
        lag_ms, queued_ms = run["lag_p99_ms"], run["queued_p99_ms"]
        # A driver that does not watch itself tells it by the one request that waited for it.
        gap_ms = run["lag_max_ms"] if run["gap_max_ms"] is None else run["gap_max_ms"]
        if lag_ms > LAG_MS:
            found.append(f"run {number}: the client was slow: 1 % of its requests left {lag_ms:.1f} ms late or later")
        if gap_ms > GAP_MS:
            found.append(f"run {number}: the client was not let run for {gap_ms:.0f} ms")
        if run["gc_pause_max_ms"] > GAP_MS:
            found.append(f"run {number}: the client collected garbage for {run['gc_pause_max_ms']:.0f} ms")
        if queued_ms > QUEUED_MS or run["unsent"]:
            found.append(
                f"run {number}: the schedule could not be kept: 1 % of the arrivals waited {queued_ms:.0f} ms or more "
                f"for a connection, {run['unsent']} until their time was over"
            )
    return found


def client_facts(runs: Sequence[dict[str, Any]], sent: int) -> dict[str, Any]:
    """What a record says of the client: `runs` are the facts of each run's outcome, `sent` the requests of them all."""
    worst = (
        "rss_peak_mib",
        "lag_p99_ms",
        "lag_max_ms",
        "queued_p99_ms",
        "queued_max_ms",
        "gc_pause_max_ms",
        "gap_max_ms",
    )
    return {
        "driver": runs[0]["driver"] if runs else None,
        "cpu_us_per_query": 1e6 * sum(run["cpu_s"] for run in runs) / max(1, sent),
        **{name: max((run[name] for run in runs if run[name] is not None), default=None) for name in worst},
        **{name: sum(run[name] for run in runs) for name in ("unsent", "reconnects")},
        # None of runs that were made before there was TLS.
        "tls": _once(one for run in runs for one in run.get("tls") or ()),
        "complaints": complaints(runs),
        # Clients on other machines: which, how far from the server, how many of the clients (drive/hosts.py).
        **({"hosts": runs[-1]["hosts"]} if runs and "hosts" in runs[-1] else {}),
        # Of a client library that is not the locked one: which, of what version, in what environment.
        **({"library": runs[-1]["library"]} if runs and "library" in runs[-1] else {}),
    }
