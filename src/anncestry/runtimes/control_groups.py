"""Control groups (v1 and v2): what they account for a process, and how they limit native processes.

Accounts are found from the process itself, wherever its group lies: a container's, a limited native process'. A limited
process gets a group of its own beside those of this machine, which is removed with it. Where no group can be made,
`Enclosure` falls back to affinity and RLIMIT_DATA, and names in `limits` what enforces each limit.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from anncestry.errors import ServerError
from anncestry.runtimes.base import Limits

ROOT = Path("/sys/fs/cgroup")
PREFIX = "anncestry-"
"""Of the names of our groups: anncestry-PID-NAME, of the process that made it."""
PERIOD_US = 100_000
_OWN = Path("/proc/self/cgroup")
_MIB = 1 << 20
_REMOVE_S = 5.0
_REACHED = 0.9
"""Of a memory limit: who is killed by it came this far at least, before its last request was refused."""


Folders = Mapping[str, Path]
"""Of a process' groups, by v1 controller ("memory", "cpu", …) or, for v2, under the name ""."""
_ACCOUNTS: dict[int, dict[str, tuple[str, str, str, float]]] = {
    1: {
        "memory_mib": ("memory", "memory.usage_in_bytes", "", _MIB),
        "memory_peak_mib": ("memory", "memory.max_usage_in_bytes", "", _MIB),
        "memory_anon_mib": ("memory", "memory.stat", "total_rss", _MIB),
        "memory_cache_mib": ("memory", "memory.stat", "total_cache", _MIB),
        "oom_kills": ("memory", "memory.oom_control", "oom_kill", 1),
        "cpu_s": ("cpuacct", "cpuacct.usage", "", 1e9),
        "throttled_s": ("cpu", "cpu.stat", "throttled_time", 1e9),
        "io_read_mib": ("blkio", "blkio.throttle.io_service_bytes_recursive", "Read", _MIB),
        "io_write_mib": ("blkio", "blkio.throttle.io_service_bytes_recursive", "Write", _MIB),
    },
    2: {
        "memory_mib": ("", "memory.current", "", _MIB),
        "memory_peak_mib": ("", "memory.peak", "", _MIB),
        "memory_anon_mib": ("", "memory.stat", "anon", _MIB),
        "memory_cache_mib": ("", "memory.stat", "file", _MIB),
        "oom_kills": ("", "memory.events", "oom_kill", 1),
        "cpu_s": ("", "cpu.stat", "usage_usec", 1e6),
        "throttled_s": ("", "cpu.stat", "throttled_usec", 1e6),
        "io_read_mib": ("", "io.stat", "rbytes", _MIB),
        "io_write_mib": ("", "io.stat", "wbytes", _MIB),
    },
}
"""By version, where each account is: its controller, file and key ("" of a file that is a number), and its unit."""
_NUMBER = re.compile(r"(?:^|([A-Za-z_]\w*)[ =])(\d+)(?=\s|$)", re.MULTILINE)


def of_process(pid: int, mount: Path = ROOT, proc: Path = Path("/proc")) -> Folders:
    """The groups of a process; none where they are not to be seen."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return {}
    folders: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            # In a container that sees only its own groups, the path begins at another root than the mount.
            places = [mount / (controller or "unified"), mount / controllers, mount]
            found = next((place / path[1:] for place in places if (place / path[1:] / "cgroup.procs").exists()), None)
            if found is not None:
                folders[controller] = found
    return folders


def usage(folders: Folders) -> dict[str, float | int]:
    """Now: memory charged and its peak, anonymous and cached apart (MiB), kills by the memory limit, CPU seconds and
    seconds throttled, what was read from and written to storage (MiB); what the kernel does not account is left out."""
    version = 2 if "memory" not in folders and "" in folders else 1
    accounts = _ACCOUNTS[version]
    places = {(controller, file) for controller, file, _, _ in accounts.values() if controller in folders}
    numbers = {file: _numbers(folders[controller] / file) for controller, file in places}
    found: dict[str, float | int] = {}
    for name, (_, file, key, unit) in accounts.items():
        number = numbers.get(file, {}).get(key)
        if number is not None:
            found[name] = number if unit == 1 else number / unit
    if version == 1 and not found.get("io_read_mib") and not found.get("io_write_mib"):
        # Zeros mean that nobody counts: version 1 does so only on devices that are throttled.
        found = {name: value for name, value in found.items() if not name.startswith("io_")}
    return found


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file, summed by their keys; none where it is not there (any more).

    Of lines "number", "key number", "device key number" or "device key=number …".
    """
    found: dict[str, int] = {}
    with suppress(OSError):
        for key, number in _NUMBER.findall(path.read_text()):
            found[key] = found.get(key, 0) + int(number)
    return found


_made = count(1)


@dataclass
class Enclosure:
    """What holds one process and its children: the groups that it enters before it becomes the program.

    `affinity` are the CPUs it may run on and `data_bytes` the RLIMIT_DATA of each process, where no group does better.
    """

    asked: Limits
    by: dict[str, str | None] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    affinity: tuple[int, ...] = ()
    data_bytes: int | None = None

    def arguments(self) -> list[str]:
        """For `namespaces`, which applies them to itself before it becomes the program."""
        found = [f"--join={folder / 'cgroup.procs'}" for folder in dict.fromkeys(self.folders.values())]
        if self.affinity:
            found.append(f"--affinity={','.join(map(str, self.affinity))}")
        if self.data_bytes is not None:
            found.append(f"--data={self.data_bytes}")
        return found

    def limits(self) -> dict[str, Any]:
        """Each limit that was asked: {"asked", "by": what enforces it, None if nothing does}."""
        return {name: {"asked": value, "by": self.by.get(name)} for name, value in self.asked.asked().items()}

    def usage(self) -> dict[str, Any]:
        """What the groups account, read now. Charged memory is not RSS: file pages count for who read them first."""
        return usage(self.folders)

    def killed(self) -> str:
        """By what the kernel killed one of them for its memory; "" if it didn't. It counts both reasons as one."""
        used, limit = self.usage(), self.asked.memory_mib
        if not used.get("oom_kills"):
            return ""
        reached = limit is not None and used.get("memory_peak_mib", limit) >= _REACHED * limit
        return f"by its memory limit of {limit} MiB" if reached else "by the kernel, as the machine ran out of memory"

    def remove(self) -> None:
        """Remove the groups, which must be empty by now; ServerError names one that stays."""
        for folder in dict.fromkeys(self.folders.values()):
            remove(folder)


def remove(folder: Path) -> None:
    """Remove a group, which must be empty by now; ServerError if it stays."""
    deadline = time.monotonic() + _REMOVE_S
    while folder.exists():
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # the kernel takes a moment to let go of those that ended
            if time.monotonic() > deadline:
                raise ServerError(f"{folder}: this control group can't be removed: {error.strerror}") from None
            time.sleep(0.02)


def enclose(name: str, limits: Limits, root: Path = ROOT, pinned: Counter[int] | None = None) -> Enclosure:
    """Prepare what enforces `limits`, in the best way that this machine and user allow. Nothing, if none are asked.

    `pinned` counts, by CPU, the other members of the same server that may run on that CPU alone, and is added to.
    """
    enclosure = Enclosure(limits)
    if limits == Limits():
        return enclosure
    group = f"{PREFIX}{os.getpid()}-{next(_made)}-{name}"  # both servers of a pair may have one name
    if (root / "cgroup.controllers").exists():
        _enclose_v2(enclosure, root, group)
    else:
        _enclose_v1(enclosure, root, group)
    if limits.cpus is not None and enclosure.by.get("cpus") is None:
        _fall_back_to_affinity(enclosure, limits.cpus, Counter() if pinned is None else pinned)
    if limits.memory_mib is not None and enclosure.by.get("memory_mib") is None:
        enclosure.data_bytes = limits.memory_mib * _MIB
        enclosure.by["memory_mib"] = "RLIMIT_DATA of each process: its heap, not mapped files"
    return enclosure


def _fall_back_to_affinity(enclosure: Enclosure, cpus: float, pinned: Counter[int]) -> None:
    """Pin to the last CPUs that no other member has: a whole number of them can be had without a group.

    Where there are too few for all members, nothing holds this one to its own: quotas would give each its share.
    """
    free = [cpu for cpu in sorted(os.sched_getaffinity(0)) if not pinned[cpu]]
    if cpus == int(cpus) and cpus <= len(free):
        enclosure.affinity = tuple(free[-int(cpus) :])
        pinned.update(enclosure.affinity)
        enclosure.by["cpus"] = f"affinity to CPU {', '.join(map(str, enclosure.affinity))}"
    else:
        enclosure.by["cpus"] = None


def _enclose_v1(enclosure: Enclosure, root: Path, group: str) -> None:
    limits = enclosure.asked
    with suppress(OSError):
        if limits.memory_mib is not None and (root / "memory").is_dir():
            folder = _make(enclosure, root / "memory" / group, "memory")
            size = str(limits.memory_mib * _MIB)
            (folder / "memory.limit_in_bytes").write_text(size)
            with suppress(OSError):  # where swap is accounted: else it would be a way out
                (folder / "memory.memsw.limit_in_bytes").write_text(size)
            enclosure.by["memory_mib"] = "cgroup v1 memory.limit_in_bytes"
    with suppress(OSError):
        if limits.cpus is not None and (root / "cpu").is_dir():
            folder = _make(enclosure, root / "cpu" / group, "cpu")
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(int(limits.cpus * PERIOD_US)))
            enclosure.by["cpus"] = f"cgroup v1 cpu.cfs_quota_us in periods of {PERIOD_US // 1000} ms"
    with suppress(OSError):
        if (root / "cpuacct").is_dir() and not (root / "cpuacct").is_symlink():
            _make(enclosure, root / "cpuacct" / group, "cpuacct")


def _enclose_v2(enclosure: Enclosure, root: Path, group: str) -> None:
    """Below the first of the root and our own group's ancestors that lets us, and passes both controllers on."""
    limits = enclosure.asked
    for parent in parents_v2(root):
        try:
            if not _passes_on(parent):
                (parent / "cgroup.subtree_control").write_text("+cpu +memory")
                if not _passes_on(parent):
                    continue
            folder = _make(enclosure, parent / group, "")
        except OSError:
            continue
        with suppress(OSError):
            if limits.memory_mib is not None:
                (folder / "memory.max").write_text(str(limits.memory_mib * _MIB))
                with suppress(OSError):
                    (folder / "memory.swap.max").write_text("0")
                enclosure.by["memory_mib"] = "cgroup v2 memory.max"
        with suppress(OSError):
            if limits.cpus is not None:
                (folder / "cpu.max").write_text(f"{int(limits.cpus * PERIOD_US)} {PERIOD_US}")
                enclosure.by["cpus"] = f"cgroup v2 cpu.max in periods of {PERIOD_US // 1000} ms"
        return


def _passes_on(parent: Path) -> bool:
    return {"cpu", "memory"} <= set((parent / "cgroup.subtree_control").read_text().split())


def parents_v2(root: Path) -> Sequence[Path]:
    """Where a group may be made: at the root (as root), else in what was delegated to us, from our own upwards."""
    own = root
    with suppress(OSError):
        line = next(line for line in _OWN.read_text().splitlines() if line.startswith("0::"))
        own = root / line.removeprefix("0::").lstrip("/")
    above = [own, *own.parents]
    return [root, *(folder for folder in above if folder != root and folder.is_relative_to(root))]


def _make(enclosure: Enclosure, folder: Path, controller: str) -> Path:
    folder.mkdir()
    enclosure.folders[controller] = folder
    return folder


_OURS = re.compile(rf"{PREFIX}\d+-(?!.*\.(scope|service|slice)$).+")
"""By the pid of their maker. What somebody calls a unit of systemd, as anncestry-1-nightly.service, is not ours."""


def groups(root: Path = ROOT) -> list[Path]:
    """All groups of ours that there are now, of whichever run: below each controller of version 1, and anywhere in the
    tree of version 2, as a group to freeze lies within that of the session which began it."""
    found: set[Path] = set()
    if not (whole := (root / "cgroup.controllers").exists()) and root.is_dir():
        # Some are links to one that holds several controllers.
        for place in (each for each in root.iterdir() if each.is_dir() and not each.is_symlink()):
            with suppress(OSError):
                found |= {folder for folder in place.iterdir() if _OURS.fullmatch(folder.name)}
    for inner, names, _ in os.walk(root if whole else root / "unified"):
        found |= {Path(inner, name) for name in names if _OURS.fullmatch(name)}
    return sorted(found)
