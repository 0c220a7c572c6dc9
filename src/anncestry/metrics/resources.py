"""CPU, memory and IO of groups of processes, sampled while they run and attributed to phases; and what lies on disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

CHARGED = ("charged_mib", "charged_anon_mib", "charged_cache_mib")
"""Memory that control groups charge: all of it, heaps and stacks, file pages. Null where nobody accounts."""
COLUMNS = ("at_s", "group", "cpu_s", "rss_mib", "io_read_mib", "io_write_mib", *CHARGED)
OPERATIONS = ("io_reads", "io_writes")
"""Columns beside them where a block device is sampled: requests that it has served. Null for processes: none counts."""
_TYPES = {name: pa.float64() for name in (*CHARGED, *OPERATIONS)}
OF_MEMBER = "server/"
"""What the name of the group of one member of a server begins with; "server" is all of them together."""
_Used = tuple[float, float, float, float]
_MIB = float(1 << 20)
_PEAK_WINDOW_S = 0.2


class Sampler:
    """Samples groups of processes every `every_s` seconds, in a thread, until the block ends.

    `groups` maps a name to a function that gives its main pids now; their children count along.
    A sample holds the group's total CPU seconds since it started, its RSS (shared pages counted once a process),
    and what it read from and wrote to storage (`/proc/PID/io`, page cache writes included when written back).
    `charged` gives for a group what its control groups (a container's, those of a limit) charge now: see CHARGED.
    CPU of a process that ended stays counted. Two groups come by themselves: "host", the CPU seconds of all processes
    of the machine, and "steal", those that its hypervisor gave to other machines. With `device`, which gives reads,
    bytes read, writes and bytes written of a block device since it is there, there is a group "device": its IO, by
    whatever program. `members` gives for a group its main pids by name of the member (a node, a store of metadata):
    where there are several, each is also a group of its own, "server/NAME" of "server", with what it started.
    """

    def __init__(
        self,
        groups: Mapping[str, Callable[[], Sequence[int]]],
        every_s: float = 0.25,
        charged: Mapping[str, Callable[[], Mapping[str, float]]] | None = None,
        device: Callable[[], tuple[int, int, int, int]] | None = None,
        members: Mapping[str, Callable[[], Mapping[str, Sequence[int]]]] | None = None,
    ) -> None:
        self._groups = dict(groups)
        self._device = device
        self._charged = dict(charged or {})
        self._every_s = every_s
        self._rows: list[tuple[Any, ...]] = []
        self._known: dict[str, dict[int, psutil.Process]] = {name: {} for name in groups}
        self._last: dict[str, dict[int, tuple[float, float, float]]] = {name: {} for name in groups}
        self._members = dict(members or {})
        self._member_of: dict[str, dict[int, str]] = {name: {} for name in groups}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._scan_at = 0.0

    def __enter__(self) -> Sampler:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            self.sample()

    def sample(self) -> None:
        """Take a sample of every group now: at the edge of a phase, so that nothing is interpolated there."""
        with self._lock:
            now = time.monotonic()
            nobody = (None,) * len(CHARGED)
            rescan = now >= self._scan_at
            if rescan:
                self._scan_at = now + 2.0
            mains = {name: set(pids()) for name, pids in self._groups.items()}
            for name, by_member in self._members.items():
                self._member_of[name].update({pid: member for member, pids in by_member().items() for pid in pids})
            for name in self._groups:
                others = set().union(*(pids for other, pids in mains.items() if other != name))
                self._find(name, mains[name], others, rescan)
                if not mains[name] and not self._last[name]:
                    continue  # a remote group has no samples, so no zeros are made up
                charged = self._charged[name]() if name in self._charged else {}
                whole, parts = self._read(name)
                self._rows.append((now, name, *whole, *(charged.get(column) for column in CHARGED)))
                if len(parts) > 1:
                    self._rows += [(now, f"{name}/{member}", *used, *nobody) for member, used in parts.items()]
            times = psutil.cpu_times()
            busy = sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq"))
            self._rows.append((now, "host", busy, psutil.virtual_memory().used / _MIB, 0.0, 0.0, *nobody))
            self._rows.append((now, "steal", getattr(times, "steal", 0.0), 0.0, 0.0, 0.0, *nobody))
            if self._device is not None:
                reads, read, writes, written = self._device()
                self._rows.append((now, "device", 0.0, 0.0, read / _MIB, written / _MIB, *nobody, reads, writes))

    def _find(self, name: str, pids: set[int], others: set[int], rescan: bool) -> None:
        """Learn of processes that are new: down from each known one, but not into those of another group.

        The server is a child of the harness: without that it would be charged to the client, too.
        """
        known = self._known[name]
        for pid in pids:
            if pid not in known:
                with suppress(psutil.Error):
                    known[pid] = psutil.Process(pid)
        if rescan:
            # One pass over all processes, not one for each known one.
            children: dict[int, list[psutil.Process]] = {}
            for process in psutil.process_iter(["ppid"]):
                children.setdefault(process.info["ppid"], []).append(process)
            parents = list(known)
            while parents:
                parent = parents.pop()
                for child in children.get(parent, ()):
                    if child.pid not in known and child.pid not in others:
                        known[child.pid] = child
                        parents.append(child.pid)
                        if parent in self._member_of[name]:
                            self._member_of[name].setdefault(child.pid, self._member_of[name][parent])

    def _read(self, name: str) -> tuple[_Used, dict[str, _Used]]:
        """What a group used, and what each of its members, by name: CPU seconds, RSS, MiB read and written."""
        rss = 0.0
        rss_of: dict[int, float] = {}
        for pid, process in list(self._known[name].items()):
            try:
                with process.oneshot():
                    cpu = process.cpu_times()
                    rss_of[pid] = process.memory_info().rss / _MIB
                    rss += rss_of[pid]
                    read, written = 0.0, 0.0
                    with suppress(psutil.Error, OSError):
                        io = process.io_counters()
                        read, written = io.read_bytes / _MIB, io.write_bytes / _MIB
                self._last[name][pid] = (cpu.user + cpu.system, read, written)
            except psutil.Error:
                del self._known[name][pid]
        pids: dict[str, list[int]] = {}
        for pid in self._last[name]:
            if pid in self._member_of[name]:
                pids.setdefault(self._member_of[name][pid], []).append(pid)
        parts = {
            member: self._total(name, of_member, sum(rss_of.get(pid, 0.0) for pid in of_member))
            for member, of_member in sorted(pids.items())
        }
        return self._total(name, self._last[name], rss), parts

    def _total(self, name: str, pids: Iterable[int], rss_mib: float) -> _Used:
        totals = np.sum([self._last[name][pid] for pid in pids] or [(0.0, 0.0, 0.0)], axis=0)
        return float(totals[0]), rss_mib, float(totals[1]), float(totals[2])

    def pids(self, name: str) -> list[int]:
        """The processes of a group that were found so far."""
        with self._lock:
            return list(self._known[name])

    def table(self) -> pa.Table:
        """All samples so far, with COLUMNS; `at_s` on the clock of `time.monotonic`."""
        with self._lock:
            rows = sorted(self._rows, key=lambda row: (row[0], row[1]))
        names = COLUMNS if self._device is None else (*COLUMNS, *OPERATIONS)
        columns = {
            name: pa.array([row[i] if i < len(row) else None for row in rows], _TYPES.get(name))
            for i, name in enumerate(names)
        }
        return pa.table(columns)


def by_group(
    table: pa.Table, phases: Mapping[str, Sequence[tuple[float, float]]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What each group used in each phase (its windows): group → phase → what `attribute` says.

    The group "other" is what neither server nor client used: the part of the host that was somebody else's. Members
    of the server have groups of their own where they were sampled apart.
    """

    def in_phases(use: Callable[[Sequence[tuple[float, float]]], dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
        return {phase: facts for phase, windows in phases.items() if (facts := use(windows)) is not None}

    groups = ("server", *members_of(table), "client", "host", "steal")
    found = {group: in_phases(partial(attribute, table, group)) for group in groups}
    if device := in_phases(partial(of_device, table)):
        found["device"] = device
    found["other"] = {}
    for phase, host in found["host"].items():
        ours_s = sum(found[group].get(phase, {"cpu_s": 0.0})["cpu_s"] for group in ("server", "client"))
        others_s = max(0.0, host["cpu_s"] - ours_s)
        share = 100 * others_s / host["wall_s"] if host["wall_s"] > 0 else 0.0
        found["other"][phase] = {"wall_s": host["wall_s"], "cpu_s": others_s, "cpu_avg_pct": share}
    return found


def members_of(table: pa.Table) -> list[str]:
    """The groups of single members of the server that were sampled."""
    return sorted(group for group in table["group"].unique().to_pylist() if group.startswith(OF_MEMBER))


def attribute(table: pa.Table, group: str, windows: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """What a group used within the windows (start, end on the samples' clock); None without samples there.

    CPU and IO are differences of running totals, interpolated between samples; 100 % is one core.
    The peak is the highest CPU between samples at least 0.2 s apart.
    """
    chosen = table.filter(pa.compute.equal(table["group"], group))
    at = chosen["at_s"].to_numpy()
    if len(at) < 2 or not windows:
        return None
    totals = {name: chosen[name].to_numpy() for name in ("cpu_s", "io_read_mib", "io_write_mib")}
    used = dict.fromkeys(totals, 0.0)
    wall_s, peak, seen = 0.0, 0.0, []
    for start, end in windows:
        points = np.concatenate([[start], at[(at > start) & (at < end)], [end]])
        for name, values in totals.items():
            ends = np.interp([start, end], at, values)
            used[name] += float(ends[1] - ends[0])
        cpu = np.interp(points, at, totals["cpu_s"])
        first = 0
        for last in range(1, len(points)):
            width = points[last] - points[first]
            if width >= _PEAK_WINDOW_S:
                peak = max(peak, float((cpu[last] - cpu[first]) / width))
                first = last
        seen.append(points)
        wall_s += end - start
    inside = np.concatenate(seen)
    memory = np.interp(inside, at, chosen["rss_mib"].to_numpy())
    average = used["cpu_s"] / wall_s if wall_s > 0 else 0.0
    charged = [name for name in CHARGED if name in chosen.column_names and not chosen[name].null_count]
    return {
        "wall_s": wall_s,
        "cpu_s": used["cpu_s"],
        "cpu_avg_pct": 100 * average,
        "cpu_peak_pct": 100 * max(peak, average),
        "rss_avg_mib": float(memory.mean()),
        "rss_peak_mib": float(memory.max()),
        "io_read_mib": used["io_read_mib"],
        "io_write_mib": used["io_write_mib"],
        **{_peak(name): float(np.interp(inside, at, chosen[name].to_numpy()).max()) for name in charged},
    }


def of_device(table: pa.Table, windows: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """What the sampled block device read and wrote within the windows, and in how many requests; None without one."""
    chosen = table.filter(pa.compute.equal(table["group"], "device"))
    at = chosen["at_s"].to_numpy()
    if len(at) < 2 or not windows:
        return None
    used = {"wall_s": float(sum(end - start for start, end in windows))}
    for name in ("io_read_mib", "io_write_mib", *OPERATIONS):
        ends = np.interp(np.array(windows, float), at, chosen[name].to_numpy().astype(float))
        used[name] = float((ends[:, 1] - ends[:, 0]).sum())
    return used


def _peak(name: str) -> str:
    return f"{name.removesuffix('_mib')}_peak_mib"


_SUMS = ("wall_s", "cpu_s", "io_read_mib", "io_write_mib", *OPERATIONS)
_PEAKS = ("cpu_peak_pct", "rss_peak_mib", *map(_peak, CHARGED))


def over_runs(table: pa.Table, phase: str, windows: Sequence[tuple[float, float]]) -> dict[str, dict[str, Any]]:
    """What each group used in all runs together: group → `phase` → as `attribute` says.

    `table` has a column `run` beside COLUMNS; run number r lasted `windows[r]`. Each run is attributed by itself: its
    server, and its machine's clock, may be others than those of the run before. Seconds and IO are sums, peaks the
    highest, averages weighted by the length of the runs.
    """
    runs = [
        by_group(table.filter(pa.compute.equal(table["run"], number)), {phase: [window]})
        for number, window in enumerate(windows)
    ]
    found: dict[str, dict[str, dict[str, Any]]] = {group: {} for run in runs for group in run}
    for group, phases in found.items():
        parts = [run[group][phase] for run in runs if phase in run[group]]
        if parts:
            phases[phase] = _merge(parts)
    return found


def _merge(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    weights = np.array([part["wall_s"] for part in parts])
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(parts), 1 / len(parts))
    merged: dict[str, Any] = {}
    for name in parts[0]:
        if not all(name in part for part in parts):
            continue
        values = np.array([part[name] for part in parts])
        if name in _SUMS:
            merged[name] = float(values.sum())
        else:
            merged[name] = float(values.max() if name in _PEAKS else values @ weights)
    return merged


# What a system keeps on disk


def allocated_mib(paths: Iterable[Path]) -> float:
    """MiB allocated for files and folders (as `du`): holes don't count, preallocated blocks and folders do.

    A file linked several times counts once; links are not followed.
    """
    blocks: dict[tuple[int, int], int] = {}
    for top in filter(os.path.lexists, paths):
        for name in _names_below(top):
            status = os.lstat(name)
            blocks[status.st_dev, status.st_ino] = status.st_blocks
    return sum(blocks.values()) * 512 / _MIB


def _names_below(top: Path) -> Iterator[str]:
    yield str(top)
    for folder, folders, files in () if top.is_symlink() else os.walk(top):
        yield from (os.path.join(folder, name) for name in (*folders, *files))  # noqa: PTH118
