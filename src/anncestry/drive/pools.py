"""The driver's processes, native or Python: started when first needed, kept, told what to do by lines of text.

Clients may also run on other machines than the one that the session runs on: load generators that don't share its
cores. An environment variable names a machine and holds the command that runs a program there: `ssh HOST`,
`srun --nodelist=HOST --overlap`, `ip netns exec NAME`. The command starts the native driver on files at the same path
on both machines; standard input and output connect it, as for the local driver. The machines get the clients of a
job in turn, and their samples are merged as if one driver had run them all.

Machines share no clock. Each uses its own, and reports only durations and times since its own zero. All start a fixed
time after the start message, so their zeros differ by the duration of such messages: `start_within_us`, the longest of
twenty round trips before.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from anncestry import redact
from anncestry.drive import build, protocol
from anncestry.errors import ServerError, UserError
from anncestry.home import MODULES
from anncestry.runtimes.namespaces import wrapped
from anncestry.runtimes.native import clean_environment

ADDRESS = "ANNCESTRY_ADDRESS"
"""The variable with this machine's address as the others reach it."""
_LOOPBACK = ("127.0.0.1", "localhost")
_PINGS = 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHECK_S = 0.5
_REST_S = 10.0
"""Who does not end its connections by then is ended."""
_SAID_BYTES = 10_000
LEAD_NS = 30_000_000
"""From the barrier to the clock's zero: every client must get its start message within it."""


class Pool(ABC):
    """Processes that are told things by line, and answer by line."""

    own_clocks = False
    """Whether each has a clock of its own, as on other machines."""
    _said: IO[str] | None = None
    """What its processes print: shown only of one that died. None: it goes where ours goes."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self.ready: Callable[[], None] = lambda: None
        """Called at the barrier, when all clients wait for the clock."""

    @abstractmethod
    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        """Run the jobs in `folder`, by their names ("" for a single one); returns the driver's facts."""

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        self._processes.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=self._own_environment() | more,
                start_new_session=True,
            )
        )

    def _own_environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}

    def _measure(self, jobs: Sequence[str], check: Callable[[], None]) -> tuple[int, list[dict[str, Any]]]:
        """Give the first processes a job each, start them at once; returns the clock's zero and each one's facts."""
        processes = self._processes[: len(jobs)]
        for number, job in enumerate(jobs):
            self._tell(number, f"known {json.dumps(redact.addresses())}")
            self._tell(number, f"job {job}")
        self._answers(processes, "ready", check)
        self.ready()
        zero_ns = time.monotonic_ns() + LEAD_NS
        for number in range(len(jobs)):
            self._tell(number, f"go +{LEAD_NS}" if self.own_clocks else f"go {zero_ns}")
        return zero_ns, [json.loads(text) for text in self._answers(processes, "done", check)]

    def rest(self, check: Callable[[], None]) -> None:
        """End all connections: others' clients are measured next, and shall not share the server with idle ones."""
        try:
            for number in range(len(self._processes)):
                self._tell(number, "rest")
            self._answers(self._processes, "rested", check, _REST_S)
        except ServerError:
            self.close()  # it will be started anew

    def _tell(self, number: int, line: str) -> None:
        process = self._processes[number]
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.close()  # the next job gets new ones
            raise ServerError(redact.text(self._complaint(number, self._death(process)))) from None

    def _answers(
        self, processes: list[subprocess.Popen[str]], word: str, check: Callable[[], None], seconds: float = math.inf
    ) -> list[str]:
        """One line from every process, in their order; each must start with `word`, and come within `seconds`."""
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, number)
            begun = checked = time.monotonic()
            while len(answers) < len(processes):
                events = selector.select(timeout=_CHECK_S)
                try:
                    if time.monotonic() - checked >= _CHECK_S:
                        check()
                        checked = time.monotonic()
                        if checked - begun > seconds:
                            raise ServerError(f"a client of the driver does not answer within {seconds:g} s")
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
        by = f"by signal {-process.returncode}" if (process.returncode or 0) < 0 else f"exit {process.returncode}"
        killed = ", which the kernel sends when memory runs out" if process.returncode == -signal.SIGKILL else ""
        return f"it died ({by}{killed})"

    def _printed(self, last: bool = True) -> list[str]:
        """The last line that the processes printed, or the first; none where they printed nothing.

        They share one place in the file, which reading must not move.
        """
        if self._said is None:
            return []
        place = self._said.fileno()
        begin = max(os.fstat(place).st_size - _SAID_BYTES, 0) if last else 0
        lines = os.pread(place, _SAID_BYTES, begin).decode(errors="replace").strip().splitlines()
        return lines[-1:] if last else lines[:1]

    def _tell_secrets(self, number: int, transport: Mapping[str, Any]) -> None:
        """Give a native driver the variables that hold what a transport logs in with, as this process has them."""
        named = (transport.get("password_env"), (transport.get("authorization") or {}).get("env"))
        if secrets := {name: os.environ[name] for name in named if name is not None and name in os.environ}:
            self._tell(number, f"secrets {json.dumps(secrets)}")

    def _complaint(self, number: int, reason: str) -> str:
        return f"client {number} of the driver failed: {reason}"

    def close(self) -> None:
        """End all processes: their input ends, and whoever does not heed that is killed by pid."""
        self._end(self._processes)
        self._processes = []

    @staticmethod
    def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
        for process in processes:
            if process.stdin:
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    pass
        for process in processes:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


class Native(Pool):
    """One process for all clients, from `build`."""

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        if not self._processes:
            # Its threads sleep where Go does not know of it; signals to preempt them would only wake them in vain.
            self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
            # One line of Go's own words is enough, should it ever end by itself.
            quiet = {"GODEBUG": "asyncpreemptoff=1", "GOTRACEBACK": "none"}
            self._start([str(build.programs().driver)], self._said, **quiet)
        # A server that was started after it has a password that it could not inherit.
        for job in jobs.values():
            self._tell_secrets(0, job["transport"])
        _, (facts,) = self._measure([str(folder)], check)
        return facts

    def _death(self, process: subprocess.Popen[str]) -> str:
        return ": ".join((super()._death(process), *self._printed(last=False)))

    def _complaint(self, number: int, reason: str) -> str:
        return reason if " of the driver " in reason else f"the native driver failed: {reason}"


_CLIENT = "from anncestry.drive.client import main; main()"


class Python(Pool):
    """A process for each client, of this interpreter. They end with this process, and when others are measured: what
    they hold in memory is what clients of a cell take."""

    _options: Sequence[str] = ()
    """Of `namespaces`, beside the tie to this process."""

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        if self._said is None:
            self._said = tempfile.TemporaryFile("a+")  # noqa: SIM115 - as long as the processes
        super()._start(wrapped([f"--tie={os.getpid()}", *self._options], command), stderr or self._said, **more)

    def _death(self, process: subprocess.Popen[str]) -> str:
        # A traceback ends with the reason; Go's last words begin with it.
        return ": ".join((super()._death(process), *self._printed()))

    def rest(self, check: Callable[[], None]) -> None:
        self.close()

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        seats = [(name, number) for name, job in jobs.items() for number in range(job["clients"])]
        self._end(self._processes[len(seats) :])
        del self._processes[len(seats) :]
        while len(self._processes) < len(seats):
            self._start([sys.executable, "-c", _CLIENT])
        for name in jobs:
            (folder / name / "next.bin").write_bytes(bytes(8))
        zero_ns, parts = self._measure([f"{number} {folder / name}" for name, number in seats], check)
        facts = {
            name: self._facts(zero_ns, [part for part, (of, _) in zip(parts, seats, strict=True) if of == name])
            for name in jobs
        }
        if "" in facts:
            return facts[""]
        return {"zero_ns": zero_ns, "end_ns": max(part["end_ns"] for part in parts), "together": facts}

    @staticmethod
    def _facts(zero_ns: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
        sums = ("cpu_s", "rss_peak_mib", "unsent", "reconnects", "gc_runs", "gc_pause_us")
        return {
            "zero_ns": zero_ns,
            "end_ns": max(part["end_ns"] for part in parts),
            "driver": parts[0]["driver"],
            **{name: sum(part[name] for part in parts) for name in sums},
            # The worst client's: no client shall hide behind the others.
            **{name: max(part[name] for part in parts) for name in ("lag_p99_ms", "lag_max_ms")},
            "gap_max_ms": None,
            "tls": once(part["tls"] for part in parts if part["tls"] is not None),
            "clients": [{name: part[name] for name in ("samples", "prime_errors", "errors")} for part in parts],
            **({"library": parts[0]["library"]} if "library" in parts[0] else {}),
        }


def once(values: Iterable[Any]) -> list[Any]:
    """Each value once, in their order. (They need not be hashable.)"""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different


class InProcess(Python):
    """Python clients that hold an index themselves: new ones for each job, so that none holds more than it searches.

    They are ended by the next job or with the driver: until then what they used can be read. `held` are options of
    `namespaces`, to be done before they are anything.
    """

    def __init__(self, held: Sequence[str] = ()) -> None:
        super().__init__()
        self._options = held

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        self.close()
        return super().run(folder, jobs, check)

    def rest(self, check: Callable[[], None]) -> None:
        pass

    @staticmethod
    def _facts(zero_ns: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
        # Their processor time is the library's, which is measured as the server's.
        return {**Python._facts(zero_ns, parts), "cpu_s": None}

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        super()._start(command, stderr, **more, OMP_NUM_THREADS="1")

    def _own_environment(self) -> dict[str, str]:
        """As that of the process that built the index: such a client is the system, and what a user has set for other
        purposes (an allocator, a library's threads) must not change what is measured."""
        return clean_environment({name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ})


class Apart(Python):
    """Clients with a library of their own: among the packages of an environment (`build.interpreter`) and nothing else,
    or a program (`build.program`) that takes the same words."""

    def __init__(self, environment: str) -> None:
        super().__init__()
        self._environment = environment

    def _start(self, command: list[str], stderr: IO[str] | None = None, **more: str) -> None:
        if build.is_program(self._environment):
            super()._start([str(build.program(self._environment))], stderr, **more)
            return
        # Last on the path: beside this package there may lie others, of the versions that are not meant.
        here = f"import sys; sys.path.append({str(MODULES)!r}); "
        python = build.interpreter(self._environment)
        super()._start([str(python), "-I", "-c", here + command[-1]], stderr, **more)


# On other machines


def command(variable: str) -> list[str]:
    """The words that run a program on the machine that a variable names; UserError if it is not set."""
    try:
        words = shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UserError(f"the environment variable {variable} is not a valid command: {error}") from None
    if not words:
        raise UserError(
            f"the environment variable {variable} is not set: set it to the command that runs a program on that "
            "machine, for example 'ssh HOST'"
        )
    return words


def seen_from_there(transport: Mapping[str, Any]) -> dict[str, Any]:
    """A transport whose targets are those that other machines reach: for loopback the address of this machine."""

    def reach(stands_for: str) -> str:
        target = redact.addresses().get(stands_for, stands_for)
        host, _, port = target.rpartition(":")
        if host not in _LOOPBACK:
            return target
        address = os.environ.get(ADDRESS, "").strip()
        if not address:
            raise UserError(
                f"the environment variable {ADDRESS} is not set: set it to the address of this machine for the "
                "machines of driver_hosts"
            )
        return f"{address}:{port}"

    found = dict(transport)
    if "target" in found:
        found["target"] = reach(found["target"])
    if "targets" in found:
        found["targets"] = [reach(target) for target in found["targets"]]
    return found


def deal(folder: Path, job: Mapping[str, Any], hosts: int) -> list[tuple[Path, list[int]]]:
    """Write the part of a job that each machine has: its folder and the numbers of its clients, in their order.

    Client i goes to machine i modulo their number, and so does arrival i of an open loop. Machines without clients
    have no part.
    """
    clients, transport = job["clients"], seen_from_there(job["transport"])
    used = min(hosts, clients)
    schedule = np.fromfile(folder / "schedule.bin", dtype="<u4")
    prime = np.fromfile(folder / "prime.bin", dtype="<u4").reshape(clients, -1)
    due_ns = np.fromfile(folder / "due.bin", dtype="<i8") if job["loop"] == "open" else None
    parts = []
    for number in range(used):
        seats = list(range(number, clients, used))
        mine = dict(transport)
        if "targets" in mine:
            mine["targets"] = [transport["targets"][seat % len(transport["targets"])] for seat in seats]
        if due_ns is None:
            rows, due = schedule.reshape(clients, -1)[seats], None
        else:
            arrivals = np.arange(number, len(due_ns), used)
            rows, due = schedule[arrivals % len(schedule)][None, :], due_ns[arrivals]
        part = folder / f"host{number}"
        protocol.write_job(
            part,
            requests=Path(job["requests"]),
            transport=mine,
            schedule=rows,
            prime=prime[seats],
            timeout_s=job["timeout_s"],
            duration_s=job["duration_s"],
            due_ns=due,
            answer_bytes_max=job["answer_bytes_max"],
        )
        parts.append((part, seats))
    return parts


def gather(folder: Path, part: Path, seats: Sequence[int]) -> None:
    """Take samples and responses of one machine's clients into the job's folder, under the clients' own numbers."""
    for number, seat in enumerate(seats):
        samples = np.fromfile(part / f"samples.{number}.bin", dtype=protocol.SAMPLE)
        samples["client"] = seat
        samples.tofile(folder / f"samples.{seat}.bin")
        os.replace(part / f"responses.{number}.bin", folder / f"responses.{seat}.bin")


class Elsewhere(Pool):
    """A native driver on each of some machines. `shared` is a folder that they see as this one does."""

    own_clocks = True

    def __init__(self, variables: Sequence[str], shared: Path) -> None:
        super().__init__()
        self._variables, self._shared = tuple(variables), shared
        self._facts: list[dict[str, Any]] = []

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        """Run one job, its clients dealt out; what comes back is as from one driver, with `hosts` beside it."""
        (job,) = jobs.values()
        parts = deal(folder, job, len(self._variables))
        if not self._processes:
            self._reach(seen_from_there(job["transport"]), check)
        for number in range(len(parts)):
            self._tell_secrets(number, job["transport"])
        zero_ns, told = self._measure([str(part) for part, _ in parts], check)
        for part, seats in parts:
            gather(folder, part, seats)
        return self._together(zero_ns, told, [seats for _, seats in parts])

    def _reach(self, transport: Mapping[str, Any], check: Callable[[], None]) -> None:
        """Start a driver on each machine, and learn what that is and how far the server is from there."""
        self._shared.mkdir(parents=True, exist_ok=True)
        program = self._shared / f"driver-{build.digest()[:12]}"
        if not program.exists():  # others of this session may run it
            new = program.with_name(f".{program.name}")
            shutil.copy2(build.programs().driver, new)
            os.replace(new, program)
        if shlex.quote(str(program)) != str(program):
            raise UserError(f"{program}: the shell of another machine would change this path: move the clone")
        for variable in self._variables:
            words = [*command(variable), "env", "GODEBUG=asyncpreemptoff=1", str(program)]
            try:
                self._start(words)
            except OSError as error:
                self.close()
                raise UserError(f"the environment variable {variable}: {words[0]}: {error.strerror}") from None
        target = transport.get("target") or transport["targets"][0]
        for number in range(len(self._processes)):
            self._tell(number, f"who {target}")
        said = [json.loads(text) for text in self._answers(self._processes, "host", check)]
        self._facts = []
        for number, (variable, facts) in enumerate(zip(self._variables, said, strict=True)):
            if facts.pop("sources") != build.digest():
                self.close()
                raise ServerError(f"{variable}: runs a different driver: does the machine see {self._shared}?")
            took_ns = []
            for _ in range(_PINGS):
                before_ns = time.monotonic_ns()
                self._tell(number, "ping")
                self._answers([self._processes[number]], "pong", check)
                took_ns.append(time.monotonic_ns() - before_ns)
            boot = facts.pop("boot_id")
            self._facts.append(
                {
                    "name": variable,
                    **facts,
                    # A namespace or a container of this machine shares its cores, whatever it is called.
                    "same_machine": bool(boot) and _BOOT.exists() and boot == _BOOT.read_text().strip(),
                    "start_within_us": max(took_ns) / 1e3,
                }
            )

    def _together(
        self, zero_ns: int, told: Sequence[Mapping[str, Any]], seats: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """Facts as of one driver: sums, or the worst machine's, which shall not hide behind the others."""
        clients: dict[int, Any] = {}
        for facts, numbers in zip(told, seats, strict=True):
            clients.update(zip(numbers, facts["clients"], strict=True))
        sums = ("cpu_s", "rss_peak_mib", "unsent", "reconnects", "threads", "spilled_mib", "gc_runs", "gc_pause_us")
        worst = ("lag_p99_ms", "lag_max_ms", "gap_max_ms")
        return {
            "zero_ns": zero_ns,
            "end_ns": zero_ns + max(facts["end_ns"] - facts["zero_ns"] for facts in told),
            "driver": told[0]["driver"],
            **{name: sum(facts[name] for facts in told) for name in sums},
            **{name: max(facts[name] for facts in told) for name in worst},
            "tls": once(one for facts in told for one in facts["tls"]),
            "clients": [clients[number] for number in sorted(clients)],
            "hosts": [
                {**known, "clients": len(numbers), "cpu_s": facts["cpu_s"]}
                for known, facts, numbers in zip(self._facts, told, seats, strict=False)
            ],
        }

    def _complaint(self, number: int, reason: str) -> str:
        variable = self._variables[number]
        return (
            f"the driver on the machine of {variable} failed: {reason} (does that machine reach the server's address "
            f"and the folder {self._shared}?)"
        )
