"""What disturbed a run: other programs, the hypervisor, a client that was held up; judged a run, against limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_FILLED_PCT = 90.0
"""Of each core, used by server and client: the cores were filled by what is measured."""
Delay = tuple[float, float]
"""Seconds that threads ran, and seconds that they were ready to run and had no core."""


def run_delay(pids: Iterable[int], proc: Path = Path("/proc")) -> Delay | None:
    """What all threads of these processes ran and waited so far; None where the kernel doesn't count it.

    By /proc/PID/task/TID/schedstat, as /proc/PID/schedstat is of the main thread only. A thread that ended is gone
    from the sum, so read it while they live, before and after a run.
    """
    ran = waited = 0
    counted = False
    for pid in pids:
        for file in (proc / str(pid) / "task").glob("*/schedstat"):
            with suppress(OSError, ValueError):
                parts = file.read_text().split()
                ran, waited, counted = ran + int(parts[0]), waited + int(parts[1]), True
    return (ran / 1e9, waited / 1e9) if counted else None


def delay_share(before: Delay | None, after: Delay | None, throttled_s: float = 0.0) -> float | None:
    """Share of the time in which threads wanted a core that they waited for one; without waiting under a quota.

    `throttled_s` is how long their control groups were throttled: the kernel counts that as waiting, too.
    """
    if before is None or after is None:
        return None
    ran, waited = max(0.0, after[0] - before[0]), max(0.0, after[1] - before[1] - throttled_s)
    return waited / (ran + waited) if ran + waited > 0 else 0.0


def of_phase(used: Mapping[str, Mapping[str, Mapping[str, Any]]], phase: str) -> dict[str, float]:
    """What others used in a phase, in % of one core; `used` is what `resources.by_group` found.

    Also what this program used beside the client, what of the others' were the kernel's own threads, what server and
    client used, and how much of the others' may be the noise of ticks, where known.
    """
    groups = (("others", "other"), ("steal", "steal"), ("harness", "harness"), ("kernel", "kernel"))
    share = {group: facts[phase].get("cpu_avg_pct", 0.0) for group, facts in used.items() if phase in facts}
    found = {f"{name}_pct": share[group] for name, group in groups if group in share}
    if "kernel" in share:  # not of earlier records
        found["measured_pct"] = share.get("server", 0.0) + share.get("client", 0.0)
    noise_pct = used["other"][phase].get("cpu_noise_pct")
    return found if noise_pct is None else {**found, "noise_pct": noise_pct}


def of_client(jobs: Sequence[Mapping[str, Any]], is_open: bool) -> dict[str, Any]:
    """What held up the client in the jobs of a run; `jobs` are the driver's facts of each.

    A driver that does not watch itself tells a gap by the one request that waited for it. Requests leave late in an
    open loop only: in a closed one, that many clients do not start at the same instant is no delay of theirs. A
    library in Go collects garbage as it does in its users' programs, which is part of what is measured.
    """
    own = [job for job in jobs if job["driver"]["kind"] != "go"]
    gaps = [job["lag_max_ms"] if job["gap_max_ms"] is None else job["gap_max_ms"] for job in jobs]
    return {
        "gap_max_ms": max(gaps, default=0.0),
        **{name: sum(job.get(name, 0) for job in own) for name in ("gc_runs", "gc_pause_us")},
        "lag_p99_ms": max((job["lag_p99_ms"] for job in jobs), default=0.0) if is_open else 0.0,
    }


def above(facts: Mapping[str, Any], limits: Mapping[str, float]) -> list[str]:
    """What was above the limits, each as a sentence: only what the system that is measured can't cause itself.

    A run above a limit is measured again, so a limit that a system's own work exceeds would choose among its runs, and
    drop those in which it flushed or merged. So the kernel's own threads are no other programs: they write back what a
    server wrote. And waiting for cores is told, not judged: threads of server and clients wait for each other where
    they share the cores, which is part of every number. Nor is a gap of the client judged where these filled the cores.
    """
    others = max(0.0, facts["others_pct"] - facts.get("kernel_pct", 0.0) - facts.get("noise_pct", 0.0))
    others += facts["steal_pct"]
    filled = facts.get("measured_pct", 0.0) >= _FILLED_PCT * facts.get("cores", math.inf)
    found = []
    if others > limits["others_pct"]:
        found.append(
            f"other programs used {facts['others_pct']:.0f} % of one core and the hypervisor took "
            f"{facts['steal_pct']:.0f} %, {limits['others_pct']:g} % together is the limit"
        )
    if facts.get("gap_max_ms", 0.0) > limits["gap_ms"] and not filled:
        found.append(f"the client was not let run for {facts['gap_max_ms']:.0f} ms")
    if collected := facts.get("gc_runs"):
        pause_ms = facts["gc_pause_us"] / 1e3
        found.append(
            f"the client collected garbage {collected} times while the clock ran ({pause_ms:.1f} ms of pauses)"
        )
    if facts.get("lag_p99_ms", 0.0) > limits["lag_ms"]:
        found.append(f"the client was slow: 1 % of its requests left {facts['lag_p99_ms']:.1f} ms late or later")
    return found


def judged(facts: Mapping[str, Any], limits: Mapping[str, float]) -> dict[str, Any]:
    """The facts with the limits, and with what was above them."""
    return {**facts, "limits": dict(limits), "above": above(facts, limits)}


def over_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The disturbance of a cell: that of each of its runs, and what was above the limits in which (from 1)."""
    said = [f"run {number}: {text}" for number, run in enumerate(runs, start=1) for text in run["above"]]
    return {"above": said, "runs": list(runs)}
