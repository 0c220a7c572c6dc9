"""CPU, memory and IO of groups of processes, sampled while they run and attributed to phases; and what lies on disk."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray

from anncestry.errors import ServerError
from anncestry.metrics.processes import Host, KernelThreads, Tree, Used, harness, own_cpu_s

CHARGED = ("charged_mib", "charged_anon_mib", "charged_cache_mib")
"""Memory that control groups charge: all of it, heaps and stacks, file pages. Null where nobody accounts."""
RESIDENT = ("pss_mib", "pss_anon_mib")
"""Resident memory, pages that n processes share counted 1/n times in each: all of it, and the anonymous pages. Null but
in thorough samples: see `Sampler`."""
COLUMNS = ("at_s", "group", "cpu_s", "rss_mib", "io_read_mib", "io_write_mib", *CHARGED, *RESIDENT, "edge")
OPERATIONS = ("io_reads", "io_writes")
"""Columns beside them where a block device is sampled: requests that it has served. Null for processes: none counts."""
_TYPES = {name: pa.float64() for name in (*CHARGED, *RESIDENT, *OPERATIONS)}
OF_MEMBER = "server/"
"""What the name of the group of one member of a server begins with; "server" is all of them together."""
_MIB = float(1 << 20)
_PEAK_WINDOW_S = 0.2
_SEEK_S = 2.0
_NEAR_S = 1.0
_TICK_S = 0.01
_ONE_SIDED_Z = 1.645


class Sampler:
    """Samples groups of processes every `every_s` seconds, in a thread, until the block ends.

    `groups` maps a name to a function that gives its main pids now; what these start counts along, found every 2 s.
    A sample holds the group's total CPU seconds since it started (of its control groups where `charged` knows them,
    else of `processes.Tree`), its RSS (shared pages counted once a process), and what it read from and wrote to storage
    (`/proc/PID/io`, page cache writes included when written back). `charged` gives for a group what its control groups
    (a container's, those of a limit) charge now: see CHARGED, and "cpu_s".
    Some groups come by themselves: "host", the CPU seconds of all that runs on the machine, "steal", those that its
    hypervisor gave to other machines, and "harness", this process, its `helpers` and Snakemake, unless this process is
    the client; "kernel", the kernel's own threads, in thorough samples only; "idle" where those of the host are counted
    by ticks.
    With `device`, which gives reads, bytes read, writes and bytes written of a block device since it is there, there is
    a group "device": its IO, by whatever program. `members` gives for a group its main pids by name of the member (a
    node, a store of metadata): where there are several, each is also a group of its own, "server/NAME" of "server",
    with what it started.
    Groups that are `starting` have no process yet when the sampler begins, so they used nothing then; until each has a
    main process, no group seeks children, as these may be another's.
    """

    def __init__(
        self,
        groups: Mapping[str, Callable[[], Sequence[int]]],
        every_s: float = 0.25,
        charged: Mapping[str, Callable[[], Mapping[str, float]]] | None = None,
        device: Callable[[], tuple[int, int, int, int]] | None = None,
        members: Mapping[str, Callable[[], Mapping[str, Sequence[int]]]] | None = None,
        starting: Collection[str] = (),
        helpers: Callable[[], Sequence[int]] = lambda: (),
    ) -> None:
        self._groups = dict(groups)
        self._helpers = helpers
        self._device = device
        self._charged = dict(charged or {})
        self._every_s = every_s
        self._rows: list[tuple[Any, ...]] = []
        self._trees = {name: Tree() for name in groups}
        self._members = dict(members or {})
        self._starting, self._from_nothing = set(starting), frozenset(starting)
        self._began_s = math.inf
        self._accounts: dict[str, _Account] = {}
        self._host, self._kernel, self._harness = Host(), KernelThreads(), harness()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._problem: Exception | None = None
        """What ended the thread before its time."""
        self._seek_at = 0.0

    def __enter__(self) -> Sampler:
        self.sample(thorough=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._problem is None:
            self.sample(thorough=True)

    def _loop(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.sample()
            except Exception as error:
                self._problem = error
                return

    def edge(self) -> None:
        """Sample right before the clock of a job starts, and once it has stopped: `cpu_between_edges` needs both."""
        self.check()
        self.sample(thorough=True, edge=True)

    def check(self) -> None:
        """ServerError where the samples have ended before their time."""
        if self._problem is not None:
            raise ServerError(f"processes are no longer sampled ({self._problem!r}): please report this")

    def sample(self, thorough: bool = False, edge: bool = False) -> None:
        """Take a sample of every group now; a `thorough` one seeks every process and reads RESIDENT."""
        with self._lock:
            now = time.monotonic()
            self._began_s = min(self._began_s, now)
            mains = {name: dict.fromkeys(pids(), "") for name, pids in self._groups.items()}
            for name, by_member in self._members.items():
                mains[name] |= {pid: member for member, pids in by_member().items() for pid in pids}
            started = {name for name in self._starting if mains[name]}
            self._starting -= started
            seek = not self._starting and (thorough or bool(started) or now >= self._seek_at)
            if seek:
                self._seek_at = now + _SEEK_S
            for name, tree in self._trees.items():
                # The server is a child of the harness: it is not to be charged to the client, too.
                others = {pid for other, pids in mains.items() if other != name for pid in pids}
                parts = tree.read(mains[name], others, seek)
                if not parts:
                    continue  # a remote group has no samples, so no zeros are made up
                charged = self._charged[name]() if name in self._charged else {}
                whole = sum(parts.values(), Used())
                if "cpu_s" in charged or name in self._accounts:
                    whole.cpu_s = self._accounts.setdefault(name, _Account()).total(charged.get("cpu_s"))
                resident = (tree.resident() if thorough else None) or (None, None)
                self._add(now, name, whole, (*map(charged.get, CHARGED), *resident), edge)
                for member in sorted(filter(None, parts)) if len(parts) > 1 else ():
                    self._add(now, f"{name}/{member}", parts[member], edge=edge)
            ours = [pid for pid in self._harness if not any(pid in pids for pids in mains.values())]
            if self._harness[0] in ours:  # else they are children of a client
                ours += self._helpers()
            self._add(now, "harness", Used(sum(map(own_cpu_s, ours))), edge=edge)
            if thorough:
                self._add(now, "kernel", Used(self._kernel.used()), edge=edge)
            busy, idle, steal = self._host.used()
            self._add(now, "host", Used(busy, psutil.virtual_memory().used / _MIB), edge=edge)
            self._add(now, "steal", Used(steal), edge=edge)
            if not self._host.is_exact:
                self._add(now, "idle", Used(idle), edge=edge)
            if self._device is not None:
                reads, read, writes, written = self._device()
                of_device = Used(0.0, 0.0, read / _MIB, written / _MIB)
                self._add(now, "device", of_device, edge=edge, operations=(reads, writes))

    def _add(
        self,
        at_s: float,
        group: str,
        used: Used,
        memory: Sequence[float | None] = (None,) * (len(CHARGED) + len(RESIDENT)),
        edge: bool = False,
        operations: Sequence[int] = (),
    ) -> None:
        of_group = (used.cpu_s, used.rss_mib, used.io_read_mib, used.io_write_mib)
        self._rows.append((at_s, group, *of_group, *memory, edge, *operations))

    def pids(self, name: str) -> list[int]:
        """The processes of a group that were found so far."""
        with self._lock:
            return self._trees[name].pids()

    def table(self) -> pa.Table:
        """All samples so far, with COLUMNS; `at_s` on the clock of `time.monotonic`."""
        with self._lock:
            rows = list(self._rows)
        late = {row[1] for row in rows if row[1].partition("/")[0] in self._from_nothing}
        rows += [(self._began_s, group, *[0.0] * (4 + len(CHARGED)), *[None] * len(RESIDENT), False) for group in late]
        rows.sort(key=lambda row: (row[0], row[1]))
        names = COLUMNS if self._device is None else (*COLUMNS, *OPERATIONS)
        columns = {
            name: pa.array([row[i] if i < len(row) else None for row in rows], _TYPES.get(name))
            for i, name in enumerate(names)
        }
        return pa.table(columns)


class _Account:
    """A running total that begins anew when a member of the server is started again, in another control group."""

    def __init__(self) -> None:
        self._before = self._last = 0.0

    def total(self, now: float | None) -> float:
        """The total, by what the account holds now; None: a member is gone, and its group with it."""
        if now is not None:
            if now < self._last:
                self._before += self._last
            self._last = now
        return self._before + self._last


def by_group(
    table: pa.Table, phases: Mapping[str, Sequence[tuple[float, float]]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What each group used in each phase (its windows): group → phase → what `attribute` says.

    The group "other" is what neither server, client nor harness used: the part of the host that was somebody else's,
    kernel threads among it. Where the host's is counted by ticks, its `cpu_noise_pct` is how far, with 95 %
    probability, that is too much at most: a tick finds a core at work by chance, so the standard deviation of a sum of
    them is at most √(cores · tick · busy · (1 − busy) / seconds) cores, of ticks of 10 ms. Members of the server have
    groups of their own where they were sampled apart.
    """

    def in_phases(use: Callable[[Sequence[tuple[float, float]]], dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
        return {phase: facts for phase, windows in phases.items() if (facts := use(windows)) is not None}

    sampled = set(table["group"].unique().to_pylist())
    groups = (
        "server",
        *members_of(table),
        "client",
        "host",
        "steal",
        *(name for name in ("harness", "kernel", "idle") if name in sampled),
    )
    found = {group: in_phases(partial(attribute, table, group)) for group in groups}
    if device := in_phases(partial(of_device, table)):
        found["device"] = device
    found["other"] = {}
    for phase, host in found["host"].items():
        ours = (found.get(group, {}).get(phase, {"cpu_s": 0.0})["cpu_s"] for group in ("server", "client", "harness"))
        others_s, wall_s = max(0.0, host["cpu_s"] - sum(ours)), host["wall_s"]
        share = 100 * others_s / wall_s if wall_s > 0 else 0.0
        found["other"][phase] = {"wall_s": wall_s, "cpu_s": others_s, "cpu_avg_pct": share}
        if idle := found.get("idle", {}).get(phase):
            busy_s, idle_s = max(0.0, host["cpu_s"]), max(0.0, idle["cpu_s"])
            of_both = busy_s * idle_s / (busy_s + idle_s) if busy_s + idle_s > 0 else 0.0
            noise_s = _ONE_SIDED_Z * math.sqrt(_TICK_S * of_both)
            found["other"][phase]["cpu_noise_pct"] = 100 * noise_s / wall_s if wall_s > 0 else 0.0
    found.pop("idle", None)
    for facts in (*found.get("harness", {}).values(), *found.get("kernel", {}).values()):
        for name in facts.keys() - {"wall_s", "cpu_s", "cpu_avg_pct"}:
            del facts[name]  # only its CPU was sampled
    return found


def members_of(table: pa.Table) -> list[str]:
    """The groups of single members of the server that were sampled."""
    return sorted(group for group in table["group"].unique().to_pylist() if group.startswith(OF_MEMBER))


def attribute(table: pa.Table, group: str, windows: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """What a group used within the windows (start, end on the samples' clock); None without samples there.

    CPU and IO are differences of running totals, interpolated between samples; 100 % is one core.
    The peak is the highest CPU between samples at least 0.2 s apart. RESIDENT is the highest of what was read up to 1 s
    before a window or after it.
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
        **_resident(chosen, at, windows),
    }


def _resident(chosen: pa.Table, at: NDArray[np.float64], windows: Sequence[tuple[float, float]]) -> dict[str, float]:
    if RESIDENT[0] not in chosen.column_names:  # of earlier versions
        return {}
    near = np.any([(start - _NEAR_S <= at) & (at <= end + _NEAR_S) for start, end in windows], axis=0)
    read = {name: chosen.filter(pa.array(near))[name].drop_null().to_numpy() for name in RESIDENT}
    return {name: float(values.max()) for name, values in read.items() if len(values)}


def cpu_between_edges(table: pa.Table, group: str, window: tuple[float, float]) -> float:
    """CPU seconds that a group used from right before a run's window until right after it; NaN if nobody looked then.

    By totals read at these instants, nothing interpolated: what a server does in between runs is not in it. `table`
    holds the samples of one run, `window` is from the start of its first job to the end of its last.
    """
    if "edge" not in table.column_names:  # of earlier versions
        return math.nan
    edges = table.filter(pa.compute.and_(table["edge"], pa.compute.equal(table["group"], group)))
    at, cpu_s = edges["at_s"].to_numpy(), edges["cpu_s"].to_numpy()
    before, after = np.flatnonzero(at <= window[0]), np.flatnonzero(at >= window[1])
    if not len(before) or not len(after):
        return math.nan
    return float(cpu_s[after[0]] - cpu_s[before[-1]])


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
_PEAKS = ("cpu_peak_pct", "rss_peak_mib", *map(_peak, CHARGED), *RESIDENT)


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
