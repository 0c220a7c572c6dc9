"""What the kernel's control groups account for a process' group: memory charged, CPU, IO; of version 1 and of 2.

Found from the process itself, wherever the group lies: a container's, a limited native process'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MIB = float(1 << 20)
_MOUNT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # v1 says "no limit" by a number near 2^63


@dataclass(frozen=True)
class ControlGroups:
    """Folders of a process' groups, by v1 controller ("memory", "cpu", …) or, for v2, under the name ""."""

    folders: Mapping[str, Path]

    @property
    def unified(self) -> bool:
        """Whether memory is accounted by version 2."""
        return "memory" not in self.folders and "" in self.folders

    def text(self, controller: str, name: str) -> str:
        """A file of the group, "" where it is not there (any more)."""
        folder = self.folders.get("" if self.unified else controller)
        if folder is None:
            return ""
        try:
            return (folder / name).read_text()
        except OSError:
            return ""

    def number(self, controller: str, name: str) -> int | None:
        """The number that a file holds; None where there is none, or no limit."""
        text = self.text(controller, name).strip()
        return int(text) if text.isdigit() and int(text) < _UNLIMITED else None

    def table(self, controller: str, name: str) -> dict[str, int]:
        """A file of lines "key number"."""
        pairs = (line.split() for line in self.text(controller, name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def of_process(pid: int, mount: Path = _MOUNT, proc: Path = Path("/proc")) -> ControlGroups | None:
    """The groups of a process; None where they are not to be seen."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    folders: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            # In a container that sees only its own groups, the path begins at another root than the mount.
            places = [mount / (controller or "unified"), mount / controllers, mount]
            found = next((place / path[1:] for place in places if (place / path[1:] / "cgroup.procs").exists()), None)
            if found is not None:
                folders[controller] = found
    return ControlGroups(folders) if folders else None


def usage(groups: ControlGroups) -> dict[str, float | int]:
    """Now: memory charged and its peak, anonymous and cached apart (MiB), kills by the memory limit, CPU seconds and
    seconds throttled, what was read from and written to storage (MiB); what the kernel does not account is left out."""
    found: dict[str, float | int | None] = {}
    if groups.unified:
        memory, cpu = groups.table("memory", "memory.stat"), groups.table("cpu", "cpu.stat")
        io: dict[str, int] = {}
        for line in groups.text("io", "io.stat").splitlines():
            for pair in line.split()[1:]:
                name, _, value = pair.partition("=")
                io[name] = io.get(name, 0) + int(value)
        found = {
            "memory_mib": _mib(groups.number("memory", "memory.current")),
            "memory_peak_mib": _mib(groups.number("memory", "memory.peak")),
            "memory_anon_mib": _mib(memory.get("anon")),
            "memory_cache_mib": _mib(memory.get("file")),
            "oom_kills": groups.table("memory", "memory.events").get("oom_kill"),
            "cpu_s": _over(cpu.get("usage_usec"), 1e6),
            "throttled_s": _over(cpu.get("throttled_usec"), 1e6),
            "io_read_mib": _mib(io.get("rbytes")),
            "io_write_mib": _mib(io.get("wbytes")),
        }
    else:
        memory, cpu = groups.table("memory", "memory.stat"), groups.table("cpu", "cpu.stat")
        moved = {"Read": 0, "Write": 0}
        for line in groups.text("blkio", "blkio.throttle.io_service_bytes_recursive").splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in moved:
                moved[words[1]] += int(words[2])
        found = {
            "memory_mib": _mib(groups.number("memory", "memory.usage_in_bytes")),
            "memory_peak_mib": _mib(groups.number("memory", "memory.max_usage_in_bytes")),
            "memory_anon_mib": _mib(memory.get("total_rss")),
            "memory_cache_mib": _mib(memory.get("total_cache")),
            "oom_kills": groups.table("memory", "memory.oom_control").get("oom_kill"),
            "cpu_s": _over(groups.number("cpuacct", "cpuacct.usage"), 1e9),
            "throttled_s": _over(cpu.get("throttled_time"), 1e9),
            # Zeros mean that nobody counts: version 1 does so only on devices that are throttled.
            "io_read_mib": _mib(moved["Read"] if any(moved.values()) else None),
            "io_write_mib": _mib(moved["Write"] if any(moved.values()) else None),
        }
    return {name: value for name, value in found.items() if value is not None}


def _mib(number: int | None) -> float | None:
    return None if number is None else number / _MIB


def _over(number: int | None, unit: float) -> float | None:
    return None if number is None else number / unit
