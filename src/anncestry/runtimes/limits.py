"""Limits of native processes: control groups (v1 and v2), and what stands in where there are none.

A group of our own is made beside those that the machine put us into, never changed, and removed with the process.
What could not be enforced is said, not hidden: see `Enclosure.limits`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anncestry.errors import ServerError
from anncestry.runtimes import accounting
from anncestry.runtimes.accounting import ControlGroups
from anncestry.runtimes.base import Limits

ROOT = Path("/sys/fs/cgroup")
PREFIX = "anncestry-"
"""Of the names of our groups: anncestry-PID-NAME, of the process that made it."""
PERIOD_US = 100_000
_OWN = Path("/proc/self/cgroup")
_MIB = 1 << 20
_REMOVE_S = 5.0


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
        """For `_exec.py`, which applies them to itself before it becomes the program."""
        found = [f"--join={folder / 'cgroup.procs'}" for folder in dict.fromkeys(self.folders.values())]
        if self.affinity:
            found.append(f"--affinity={','.join(map(str, self.affinity))}")
        if self.data_bytes is not None:
            found.append(f"--data={self.data_bytes}")
        return found

    def limits(self) -> dict[str, Any]:
        """Each limit that was asked: {"asked", "by": what enforces it, None if nothing does}."""
        asked = {"cpus": self.asked.cpus, "memory_mib": self.asked.memory_mib}
        return {name: {"asked": value, "by": self.by.get(name)} for name, value in asked.items() if value is not None}

    def usage(self) -> dict[str, Any]:
        """What the groups account, read now. Charged memory is not RSS: file pages count for who read them first."""
        return dict(accounting.usage(ControlGroups(self.folders))) if self.folders else {}

    def remove(self) -> None:
        """Remove the groups, which must be empty by now; ServerError names one that stays."""
        deadline = time.monotonic() + _REMOVE_S
        for folder in dict.fromkeys(self.folders.values()):
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError as error:  # the kernel takes a moment to let go of those that ended
                    if time.monotonic() > deadline:
                        raise ServerError(f"{folder}: this control group can't be removed: {error.strerror}") from None
                    time.sleep(0.02)


def enclose(name: str, limits: Limits, root: Path = ROOT) -> Enclosure:
    """Prepare what enforces `limits`, in the best way that this machine and user allow. Nothing, if none are asked."""
    enclosure = Enclosure(limits)
    if limits == Limits():
        return enclosure
    group = f"{PREFIX}{os.getpid()}-{name}"
    if (root / "cgroup.controllers").exists():
        _enclose_v2(enclosure, root, group)
    else:
        _enclose_v1(enclosure, root, group)
    if limits.cpus is not None and enclosure.by.get("cpus") is None:
        _fall_back_to_affinity(enclosure, limits.cpus)
    if limits.memory_mib is not None and enclosure.by.get("memory_mib") is None:
        enclosure.data_bytes = limits.memory_mib * _MIB
        enclosure.by["memory_mib"] = "RLIMIT_DATA of each process: its heap, not mapped files"
    return enclosure


def _fall_back_to_affinity(enclosure: Enclosure, cpus: float) -> None:
    """Pin to the last CPUs: a whole number of them can be had without a group."""
    available = sorted(os.sched_getaffinity(0))
    if cpus == int(cpus) and cpus <= len(available):
        enclosure.affinity = tuple(available[-int(cpus) :])
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
    for parent in _parents_v2(root):
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


def _parents_v2(root: Path) -> Sequence[Path]:
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


def groups(root: Path = ROOT) -> list[Path]:
    """All groups of ours that there are now, of whichever run."""
    found: list[Path] = []
    places = _parents_v2(root) if (root / "cgroup.controllers").exists() else [p for p in root.iterdir() if p.is_dir()]
    for place in places:
        with suppress(OSError):
            found += [folder for folder in place.iterdir() if folder.name.startswith(PREFIX)]
    return sorted(set(found))
