"""Clients on other machines than the one that the session runs on: load generators that don't share its cores.

A machine is named by a variable of the environment, which holds the command that runs a program there: `ssh HOST`,
`srun --nodelist=HOST --overlap`, `ip netns exec NAME`. The native driver is started behind it, on files that both
machines see at the same path, and is talked to by its standard input and output, as the one here is. The clients of a
job are dealt out to the machines in turn, and what they leave is put together as if one had run them all.

No clock is shared. Each machine measures by its own; only durations and times since its own zero leave it. All are told
to start so many nanoseconds after they are told, so that their zeros are as far apart as it takes to tell them:
`start_within_us`, the shortest time that a word and its answer took.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import redact
from anncestry.drive import build, protocol
from anncestry.drive.driver import LEAD_NS, Pool, known
from anncestry.errors import ServerError, UserError

ADDRESS = "ANNCESTRY_ADDRESS"
"""The variable with this machine's address as the others reach it."""
_LOOPBACK = ("127.0.0.1", "localhost")
_PINGS = 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def command(variable: str) -> list[str]:
    """The words that run a program on the machine that a variable names; UserError if it is not set."""
    try:
        words = shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UserError(f"the environment variable {variable} is no command: {error}") from None
    if not words:
        raise UserError(
            f"the environment variable {variable} is not set: it holds the command that runs a program on the machine "
            "of that name, as in 'ssh HOST'"
        )
    return words


def seen_from_there(transport: Mapping[str, Any]) -> dict[str, Any]:
    """A transport whose targets are those that other machines reach: for loopback the address of this machine."""

    def reach(target: str) -> str:
        host, _, port = target.rpartition(":")
        if host not in _LOOPBACK:
            return target
        address = os.environ.get(ADDRESS, "").strip()
        if not address:
            raise UserError(
                f"the environment variable {ADDRESS} is not set: it holds the address by which the machines of "
                "driver_hosts reach this one"
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
    clients, transport = job["clients"], seen_from_there(protocol.reached(job["transport"], redact.addresses()))
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

    def __init__(self, variables: Sequence[str], shared: Path) -> None:
        super().__init__()
        self._variables, self._shared = tuple(variables), shared
        self._facts: list[dict[str, Any]] = []

    def run(self, folder: Path, jobs: dict[str, dict[str, Any]], check: Callable[[], None]) -> dict[str, Any]:
        """Run one job, its clients dealt out; what comes back is as from one driver, with `hosts` beside it."""
        (job,) = jobs.values()
        parts = deal(folder, job, len(self._variables))
        if not self._processes:
            self._reach(seen_from_there(protocol.reached(job["transport"], redact.addresses())), check)
        drivers = self._processes[: len(parts)]
        for number, (part, _) in enumerate(parts):
            self._say(number, known())
            self._say(number, f"job {part}")
        self._answers(drivers, "ready", check)
        zero_ns = time.monotonic_ns() + LEAD_NS
        for number in range(len(parts)):
            self._say(number, f"go +{LEAD_NS}")
        told = [json.loads(text) for text in self._answers(drivers, "done", check)]
        for part, seats in parts:
            gather(folder, part, seats)
        return self._together(zero_ns, told, [seats for _, seats in parts])

    def _reach(self, transport: Mapping[str, Any], check: Callable[[], None]) -> None:
        """Start a driver on each machine, and learn what that is and how far the server is from there."""
        self._shared.mkdir(parents=True, exist_ok=True)
        program = self._shared / "driver"
        shutil.copy2(build.programs().driver, program)
        if shlex.quote(str(program)) != str(program):
            raise UserError(f"{program}: a shell on another machine would not read this path as it is: move the clone")
        for variable in self._variables:
            words = [*command(variable), "env", "GODEBUG=asyncpreemptoff=1", str(program)]
            try:
                self._start(words)
            except OSError as error:
                self.close()
                raise UserError(f"the environment variable {variable}: {words[0]}: {error.strerror}") from None
        target = transport.get("target") or transport["targets"][0]
        for number in range(len(self._processes)):
            self._say(number, f"who {target}")
        said = [json.loads(text) for text in self._answers(self._processes, "host", check)]
        self._facts = []
        for number, (variable, facts) in enumerate(zip(self._variables, said, strict=True)):
            if facts.pop("sources") != build.digest():
                self.close()
                raise ServerError(f"{variable}: runs another driver than this one: does it see {self._shared}?")
            took_ns = []
            for _ in range(_PINGS):
                before_ns = time.monotonic_ns()
                self._say(number, "ping")
                self._answers([self._processes[number]], "pong", check)
                took_ns.append(time.monotonic_ns() - before_ns)
            boot = facts.pop("boot_id")
            self._facts.append(
                {
                    "name": variable,
                    **facts,
                    # A namespace or a container of this machine shares its cores, whatever it is called.
                    "same_machine": bool(boot) and _BOOT.exists() and boot == _BOOT.read_text().strip(),
                    "start_within_us": min(took_ns) / 1e3,
                }
            )

    def _say(self, number: int, line: str) -> None:
        try:
            self._tell(self._processes[number], line)
        except ServerError:
            self.close()
            raise ServerError(self._complaint(number, "it died")) from None

    def _together(
        self, zero_ns: int, told: Sequence[Mapping[str, Any]], seats: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """Facts as of one driver: sums, or the worst machine's, which shall not hide behind the others."""
        clients: dict[int, Any] = {}
        for facts, numbers in zip(told, seats, strict=True):
            clients.update(zip(numbers, facts["clients"], strict=True))
        sums = ("cpu_s", "rss_peak_mib", "unsent", "reconnects", "threads", "spilled_mib")
        worst = ("lag_p99_ms", "lag_max_ms", "gc_pause_max_ms", "gap_max_ms", "busy_pct")
        return {
            "zero_ns": zero_ns,
            "end_ns": zero_ns + max(facts["end_ns"] - facts["zero_ns"] for facts in told),
            "driver": told[0]["driver"],
            **{name: sum(facts[name] for facts in told) for name in sums},
            **{name: max(facts[name] for facts in told) for name in worst},
            "clients": [clients[number] for number in sorted(clients)],
            "hosts": [
                {**known, "clients": len(numbers), "cpu_s": facts["cpu_s"]}
                for known, facts, numbers in zip(self._facts, told, seats, strict=False)
            ],
        }

    def _complaint(self, number: int, reason: str) -> str:
        variable = self._variables[number]
        return (
            f"the driver on the machine of {variable} failed: {reason} (it has to reach the server by its address, and "
            f"{self._shared} by its path)"
        )
