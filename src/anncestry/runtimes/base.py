"""A server is a group of members. A runtime (processes here, containers there) starts each of them."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from anncestry.errors import ServerError, UserError

LIBRARY = "library"
"""The role of a member that builds an index with a library: to search it is its clients' part."""
POLL_S = 0.02
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class Ending:
    """How a member ended: the last signal it was sent (None: it had ended by itself), exit code, seconds it took.

    `returncode` is negative for a process ended by that signal, as in `subprocess`. `clean` is false for one that was
    asked to end (SIGTERM) and had to be killed, or did not end as it was asked: it crashed, memory ran out, or it ended
    by itself before, with an error. What it had not written by then is lost.
    """

    signal: str | None
    returncode: int
    seconds: float
    clean: bool = True


def end(running: Callable[[], bool], send: Callable[[str], object], term_wait_s: float) -> tuple[str | None, bool]:
    """SIGTERM, up to `term_wait_s` seconds of patience, then SIGKILL: `signal` and `clean` of an `Ending`."""
    sent: str | None = None
    if term_wait_s > 0 and running():
        sent, deadline = "SIGTERM", time.monotonic() + term_wait_s
        send(sent)
        while running() and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if not running():
        return sent, True
    send("SIGKILL")
    return "SIGKILL", sent is None


_CRASHES = {getattr(signal, f"SIG{name}") for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")}


_TERMINATED = 128 + signal.SIGTERM


def is_clean(clean: bool, sent: str | None, returncode: int, term_wait_s: float, out_of_memory: bool) -> bool:
    """`clean` of an `Ending`, of what `end` says, the exit code, and whether the kernel killed it for its memory.

    One that was asked to end says 0, is ended by a signal, or says so as a shell and a Java runtime do (128 + SIGTERM).
    Any other code is of a crash: 2 of a panic in Go, 101 in Rust, 1 of PostgreSQL after an abnormal shutdown.
    SIGKILL alone is no crash: seekdb ends itself by it, once it has stopped.
    """
    if term_wait_s <= 0:  # to be killed
        return clean
    asked = sent is not None and (returncode < 0 or returncode == _TERMINATED)
    return clean and not out_of_memory and -returncode not in _CRASHES and (asked or returncode == 0)


def log_tail(path: Path, n: int = 15, start: int = 0) -> str:
    """The last `n` lines of a log, of what follows its first `start` bytes; "" where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(start, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-n:])


@dataclass(frozen=True)
class Limits:
    """What a member may use at most; None is no limit. `cpus` are cores' worth of time, `memory_mib` a hard limit."""

    cpus: float | None = None
    memory_mib: int | None = None

    @classmethod
    def of(cls, topology: Mapping[str, Any], role: str = "") -> Limits:
        """Those of a topology for each process: of its role, where `role_limits` has that, else `limits`."""
        asked = (topology.get("role_limits") or {}).get(role) or topology.get("limits") or {}
        return cls(asked.get("cpus"), asked.get("memory_mib"))

    def asked(self) -> dict[str, float]:
        """Those that there are, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_LIMITS = Limits()


class Handle(ABC):
    """What a runtime started: a process with its children, a container; or the endpoint of a remote server.

    The defaults are those of a member of which this machine sees nothing, and that takes no fault.
    """

    name: str
    """For people: what it is, its version, its place in the group."""
    log_path: Path | None = None
    """Where its output is, or will be once it is stopped."""
    no_fault: str
    """Completes the error "NAME: …" of a fault that this runtime can't inject."""
    named: dict[str, str] | None = None
    """Name and scheme of the credentials that every call must carry, if any (see `credentials`)."""
    tls: dict[str, Any] | None = None
    """How every connection is encrypted (see `tls.named`); None where it isn't."""

    def pids(self) -> list[int]:
        """Its main processes, as this machine numbers them."""
        return []

    @abstractmethod
    def alive(self) -> bool:
        """Whether it runs (a paused one does)."""

    @abstractmethod
    def check_alive(self) -> None:
        """ServerError, which names it, with the end of its log, if it doesn't."""

    def log_tail(self, n: int = 15) -> str:
        """The last `n` lines that it wrote."""
        return "" if self.log_path is None else log_tail(self.log_path, n)

    def limits(self) -> dict[str, Any]:
        """Each limit that was asked (cpus, memory_mib): {"asked": …, "by": how it is enforced, or None if it isn't}."""
        return {}

    def usage(self) -> dict[str, Any]:
        """What the runtime accounts for it, read now: memory charged, anonymous and cached apart (MiB), kills by the
        memory limit, CPU seconds, seconds throttled. Empty where nobody accounts."""
        return {}

    def facts(self) -> dict[str, Any]:
        """What else of it belongs into a record: image, network path. Empty for a process."""
        return {}

    @abstractmethod
    def stop(self, term_wait_s: float) -> Ending:
        """Ask it to end, wait so long, end it; nothing of it is left on return. Safe to call again."""

    # Faults: UserError where a runtime can't inject one.

    def pause(self) -> None:
        """Freeze it; its connections stay open and hang."""
        raise self._unable()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        raise self._unable()

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        raise self._unable()

    def restart(self) -> None:
        """Start it again after `kill`, at its address and on its data."""
        raise self._unable()

    def cut_off(self) -> None:
        """Partition it: what it sends or is sent is lost, no connection is refused."""
        raise self._unable()

    def reconnect(self) -> None:
        """Mend the partition."""
        raise self._unable()

    def _unable(self) -> UserError:
        return UserError(f"{self.name}: {self.no_fault}")


@dataclass(frozen=True)
class Program:
    """What a member runs: `argv` (its program first, by its path in an artifact of this machine) with exactly `env`.

    `title` is its name in messages, `ports` are those that clients may use; it runs in `cwd`, its output goes to
    `log_path`. A process is set `apart` by these options of `namespaces`; a container is apart by itself.
    """

    member: str
    title: str
    argv: Sequence[str | Path]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    limits: Limits
    ports: Sequence[int]
    apart: Sequence[str] = ()


class Runner(ABC):
    """A runtime that is about to start the members of one server."""

    listen: str
    """The address that members listen on."""
    apart: bool
    """Whether each member has an address of its own."""

    @abstractmethod
    def host(self, member: str) -> str:
        """The address by which the members reach this one; known before it starts."""

    @abstractmethod
    def reached(self, member: str, port: int) -> str:
        """host:port by which the clients here reach a port of it."""

    @abstractmethod
    def run(self, program: Program) -> Handle:
        """Start a member."""

    def read(self, path: Path) -> bytes | None:
        """A file of an artifact, as the members have it; None if there is none."""
        return path.read_bytes() if path.is_file() else None

    def start(
        self,
        member: str,
        title: str,
        argv: Sequence[str | Path],
        env: Mapping[str, str],
        cwd: Path,
        log_path: Path,
        limits: Limits,
        ports: Sequence[int],
        apart: Sequence[str] = (),
    ) -> Handle:
        """Start a member; the arguments are the fields of `Program`."""
        return self.run(Program(member, title, argv, env, cwd, log_path, limits, ports, apart))

    @abstractmethod
    def close(self) -> None:
        """Give back what was taken for members that never started. Safe to call again."""


@dataclass(frozen=True)
class Member:
    """One part of a server.

    `role` says what it does (node, querynode, etcd …), `addresses` host:port of each interface as the clients here
    reach it, `term_wait_s` how long it may take to end by itself before it is killed.
    """

    name: str
    role: str
    handle: Handle
    addresses: Mapping[str, str] = field(default_factory=dict)
    term_wait_s: float = 0.0

    def facts(self) -> dict[str, Any]:
        """For a record, read while it runs."""
        return {
            "role": self.role,
            "alive": self.handle.alive(),
            "limits": self.handle.limits(),
            "usage": self.handle.usage(),
            **self.handle.facts(),
        }


class Group:
    """Members in the order in which they were started. They stop in reverse, those of one role next to each other at
    once: a cluster's nodes one after the other would take minutes."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._ended: Ending | None = None
        self.endings: dict[str, Ending] = {}

    def add(self, member: Member) -> Member:
        """Take a member that was just started: from now on it is stopped with the others. Returns it."""
        if any(other.name == member.name for other in self._members):
            raise ValueError(f"two members are called {member.name}")
        self._members.append(member)
        return member

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> Member:
        for member in self._members:
            if member.name == name:
                return member
        raise KeyError(name)

    def pids(self) -> list[int]:
        return [pid for pids in self.pids_by_member().values() for pid in pids]

    def pids_by_member(self) -> dict[str, list[int]]:
        return {member.name: member.handle.pids() for member in self._members}

    def dead(self) -> list[str]:
        return [member.name for member in self._members if not member.handle.alive()]

    def alive(self) -> bool:
        return not self.dead()

    def check_alive(self) -> None:
        """ServerError that names the first dead member, with the end of its log."""
        for member in self._members:
            member.handle.check_alive()

    def log_tail(self, n: int = 15) -> str:
        """The last `n` lines of each member's log, under its name if there are several."""
        tails = [(member.name, member.handle.log_tail(n)) for member in self._members]
        if len(tails) == 1:
            return tails[0][1]
        return "\n".join(f"{name}: {line}" for name, tail in tails for line in tail.splitlines())

    def facts(self) -> dict[str, dict[str, Any]]:
        return {member.name: member.facts() for member in self._members}

    def stop(self) -> Ending:
        """Stop all; `endings` then says how each ended. Returns the whole: its time, and an ending that was not clean.

        A member that can't be stopped does not keep the others from being stopped; nor does a signal to this process,
        which is heeded once all are.
        """
        if self._ended is not None:
            return self._ended
        started = time.monotonic()
        problems: list[BaseException] = []
        interrupted = _to_its_end(lambda: self._stop_all(problems))
        if problems and interrupted is None:
            raise ServerError(f"stopping failed: {problems[0]}") from problems[0]
        # Of one that did not end as it should, else the hardest signal, and the exit code of the first.
        endings = [self.endings[member.name] for member in self._members if member.name in self.endings]
        bad = [ending for ending in endings if not ending.clean]
        signals = {ending.signal for ending in bad or endings}
        hardest = next((name for name in ("SIGKILL", "SIGTERM") if name in signals), None)
        code = next((ending.returncode for ending in bad or endings), 0)
        self._ended = Ending(hardest, code, time.monotonic() - started, not bad and not problems)
        if interrupted is not None:
            raise interrupted
        return self._ended

    def _stop_all(self, problems: list[BaseException]) -> None:
        for _, tier in groupby(reversed(self._members), key=lambda member: member.role):
            members = list(tier)
            with ThreadPoolExecutor(len(members)) as pool:
                ends = [(m, pool.submit(m.handle.stop, m.term_wait_s)) for m in members]
            for member, end in ends:
                problem = end.exception()
                if problem is None:
                    self.endings[member.name] = end.result()
                else:
                    problems.append(problem)


_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _to_its_end(work: Callable[[], object]) -> BaseException | None:
    """Do `work` to its end, whatever signals ask of this process meanwhile; returns what they raised, if anything.

    They are noted, and heeded once it is done. To block them would not do: another thread takes them then (libraries
    have some), and Python runs their handlers in this one all the same.
    """
    handlers: dict[int, Any] = {}
    if current_thread() is main_thread():
        handlers = {number: handler for number in _ASKING if callable(handler := signal.getsignal(number))}
    noted: list[int] = []
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: noted.append(number))
        work()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        for number in noted:
            handlers[number](number, None)
    except (KeyboardInterrupt, SystemExit) as asked:
        return asked
    return None
