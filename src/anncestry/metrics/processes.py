"""What trees of processes have used since they began: also by processes that come and go, and by those that ended."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC = Path("/proc")
_MIB = float(1 << 20)
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / _MIB
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PF_KTHREAD = 0x00200000
"""In the flags of /proc/PID/stat: a thread of the kernel (include/linux/sched.h)."""


@dataclass
class Used:
    """Totals of some processes: CPU seconds, resident memory (shared pages counted once a process), MiB of storage."""

    cpu_s: float = 0.0
    rss_mib: float = 0.0
    io_read_mib: float = 0.0
    io_write_mib: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(*(getattr(self, name) + getattr(other, name) for name in Used.__dataclass_fields__))


@dataclass
class _Process:
    started: int
    parent: int
    member: str
    own_s: float
    """CPU seconds of all its threads, also of those that ended."""
    waited_s: float
    """CPU seconds of the children that it waited for, and of theirs."""
    first_waited_s: float
    rss_mib: float
    io_mib: tuple[float, float]
    """Read and written, with those of the children that it waited for."""
    ended_s: float = 0.0
    """CPU seconds of its children that were seen, and have ended."""

    @property
    def cpu_s(self) -> float:
        # A child that ended is in the account of its parent, unless that ignores SIGCHLD: never in both.
        return self.own_s + max(self.waited_s, self.first_waited_s + self.ended_s)


class Tree:
    """Some main processes and all that they start.

    The account of a parent holds its children that ended unseen (cutime and cstime, to a tick of 10 ms). What is lost
    is a process that ends unseen after its parent did: one that init waited for.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}
        self._ended: dict[str, Used] = defaultdict(Used)
        """By member, what those used that ended and whose parent is none of the tree."""

    def pids(self) -> list[int]:
        """The processes that were found so far, and have not ended."""
        return list(self._known)

    def read(self, mains: Mapping[int, str], others: Set[int], seek: bool) -> dict[str, Used]:
        """What was used until now, by member; nothing before a first process was seen.

        `mains` are the main processes now, each with its member; the children of a process are its member's. They are
        only sought if `seek`: down from each known process, but not into `others`.
        """
        for pid, member in mains.items():
            if pid not in self._known:
                self._learn(pid, member)
        if seek:
            self._seek(others)
        gone = [pid for pid, process in self._known.items() if not _update(pid, process)]
        for pid in sorted(gone, key=lambda pid: self._known[pid].started, reverse=True):  # children before parents
            self._forget(pid, set(gone))
        found = defaultdict(Used, self._ended)
        for process in self._known.values():
            used = Used(process.cpu_s, process.rss_mib, *process.io_mib)
            found[process.member] = found[process.member] + used
        return dict(found)

    def resident(self) -> tuple[float, float] | None:
        """MiB resident now, each page shared by n processes counted as 1/n (PSS), and of these the anonymous ones.

        None where a process can't be asked. It takes 8 µs a MiB, during which the process can't map memory: only to
        be called while nothing is measured.
        """
        sums = [0.0, 0.0]
        for pid in self._known:
            try:
                lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended
            except OSError:
                return None
            kib = {words[0]: int(words[1]) for line in lines[1:] if len(words := line.split()) == 3}
            for i, name in enumerate(("Pss:", "Pss_Anon:")):
                sums[i] += kib.get(name, 0) / 1024
        return sums[0], sums[1]

    def _learn(self, pid: int, member: str) -> None:
        process = _Process(0, 0, member, 0.0, 0.0, 0.0, 0.0, (0.0, 0.0))
        if _update(pid, process):
            process.first_waited_s = process.waited_s
            self._known[pid] = process

    def _seek(self, others: Set[int]) -> None:
        children: dict[int, list[int]] = defaultdict(list)
        for pid in psutil.pids():
            if (fields := _stat(pid)) is not None:
                children[int(fields[1])].append(pid)
        parents = list(self._known)
        while parents:
            parent = parents.pop()
            for pid in children[parent]:
                if pid not in self._known and pid not in others:
                    self._learn(pid, self._known[parent].member)
                    parents += [pid] if pid in self._known else []

    def _forget(self, pid: int, gone: Set[int]) -> None:
        process = self._known.pop(pid)
        parent = self._known.get(process.parent)
        if parent is None:
            ended = self._ended[process.member]
            self._ended[process.member] = ended + Used(process.cpu_s, 0.0, *process.io_mib)
            return
        parent.ended_s += process.cpu_s
        if process.parent in gone:
            read_mib, write_mib = process.io_mib  # else they are in its parent's, which waited for it
            parent.io_mib = parent.io_mib[0] + read_mib, parent.io_mib[1] + write_mib


def harness() -> list[int]:
    """This process and those that it was started by, as far as they are one job of a shell: Snakemake, make, …"""
    found, pid = [os.getpid()], os.getppid()
    while pid > 1 and (fields := _stat(pid)) is not None and int(fields[2]) == os.getpgrp():
        found.append(pid)
        pid = int(fields[1])
    return found


def own_cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process, to the nanosecond, without its children's; 0 if it is gone."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)  # its CPU clock (clock_getcpuclockid)
    return 0.0


class KernelThreads:
    """CPU seconds of the kernel's own threads (writing back, reclaiming, the network), whoever they work for.

    They also do a server's work, so what they use is no other program's. One that comes and ends between two reads is
    not seen. In a PID namespace of its own there are none to see.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._total_s = 0.0

    def used(self) -> float:
        """Seconds since the first read; to be read at the edges of what is measured, as it reads some hundred files."""
        found = dict(_kernel_threads())
        if self._last:
            self._total_s += sum(max(0.0, now - self._last.get(pid, 0.0)) for pid, now in found.items())
        self._last = found
        return self._total_s


def _kernel_threads() -> Iterator[tuple[int, float]]:
    """The PID of each kernel thread, and its CPU seconds: to the nanosecond where the kernel has schedstat."""
    for pid in psutil.pids():
        if (fields := _stat(pid)) is not None and int(fields[6]) & _PF_KTHREAD:
            used_s = _TICK_S * (int(fields[11]) + int(fields[12]))
            with suppress(OSError, ValueError, IndexError):
                used_s = int((PROC / str(pid) / "schedstat").read_text().split()[0]) / 1e9
            yield pid, used_s


class Host:
    """CPU seconds of all that runs on this machine, kernel threads among it.

    In nanoseconds by the root control group of cpuacct (version 1), where it is seen; else by /proc/stat, which only
    looks at what runs when the timer ticks: `is_exact` says which.
    """

    def __init__(self, groups: Path = Path("/sys/fs/cgroup")) -> None:
        roots = (path.with_name("cpuacct.usage") for path in groups.glob("cpu*/release_agent"))  # only a root has one
        self._account = next((path for path in roots if os.access(path, os.R_OK)), None)
        self.is_exact = self._account is not None

    def used(self) -> tuple[float, float, float]:
        """Seconds in which cores worked, were idle, and were given to other machines by the hypervisor (steal)."""
        times = psutil.cpu_times()
        busy, idle = (
            sum(getattr(times, kind, 0.0) for kind in kinds)
            for kinds in (("user", "nice", "system", "irq", "softirq"), ("idle", "iowait"))
        )
        exact = None if self._account is None else int(self._account.read_text()) / 1e9
        return busy if exact is None else exact, idle, getattr(times, "steal", 0.0)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state, parent, …; None if there is no such process."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _update(pid: int, process: _Process) -> bool:
    """Read the accounts of a process; False if it is gone, and its number perhaps another one's."""
    fields = _stat(pid)
    if fields is None or process.started not in (0, int(fields[19])):
        return False
    process.started, process.parent, process.rss_mib = int(fields[19]), int(fields[1]), int(fields[21]) * _PAGE_MIB
    process.own_s = _TICK_S * (int(fields[11]) + int(fields[12]))
    process.own_s = own_cpu_s(pid) or process.own_s
    if pid != os.getpid():  # what this process waited for are servers and builds, too
        process.waited_s = _TICK_S * (int(fields[13]) + int(fields[14]))
    with suppress(OSError):
        lines = (PROC / str(pid) / "io").read_text().split()
        io = dict(zip(lines[::2], lines[1::2], strict=True))
        process.io_mib = int(io["read_bytes:"]) / _MIB, int(io["write_bytes:"]) / _MIB
    return True
