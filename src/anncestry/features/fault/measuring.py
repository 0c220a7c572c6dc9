"""A fault in one member, or of the storage path, while queries run: when it was made and mended, and what of it the
clients saw.

    fault = Fault(server, {"kind": "partition", "member": "node3", "at_s": 3, "for_s": 4})
    done = driver.run(folder, check=fault.check, ready=fault.begin)
    fault.end(timeout_s=60)
    impact(due_s, latency_ms, good, fault.times(done["zero_ns"] / 1e9))

It acts when the driver calls `check`, in the thread that started the servers: the kernel ties a native process to it.
Once it is mended, another thread asks the system whether it misses a member, until it misses none: that may take longer
than the run, and an answer to it may take half a minute.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from anncestry.datasets.distance import Bools, Floats
from anncestry.drive.client import OK
from anncestry.engines.base import Server
from anncestry.errors import ServerError
from anncestry.measure import publish
from anncestry.measure.runs import Context, Findings, Measuring, Published, Run, Scoring
from anncestry.measure.server import System
from anncestry.metrics import latency
from anncestry.metrics.latency import over_runs
from anncestry.metrics.resources import of_device
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate
from anncestry.runtimes.throttle import Limited

KINDS = {"kill": ("kill", "restart"), "pause": ("pause", "resume"), "partition": ("cut_off", "reconnect")}
"""Kind of a member's fault → how it is made and mended, by name of the methods of `runtimes.base.Handle`."""
PATH_LOSS = "path_loss"
"""The one kind that no member has: the storage path keeps a share of its limits, as if some of its paths were lost."""
_SETTLED_S, _BEFORE_MENDED_S = 1.0, 0.5
"""After the first time, nothing is read any more that the wider limit had let through; the second time before the
mending, the counters, which lie between two samples, hold nothing of what comes after it."""
STEP_S = 0.5
"""Length of the steps in which a run with a fault is told."""
_POLL_S = 0.5
_WHOLE_S = 120.0
"""How long a system may take to be whole again after a fault; longer is "not in time", not an error."""


class Fault:
    """One fault of one member, or of the storage path. Times are of `time.monotonic`, None until it has happened."""

    def __init__(self, server: Server, fault: Mapping[str, Any], path: Limited | None = None) -> None:
        self._server, self._kind = server, str(fault["kind"])
        self._of = str(fault.get("member", "storage path"))
        self._make: Callable[[], None]
        self._mend: Callable[[], None]
        if self._kind == PATH_LOSS:
            if path is None:
                raise ServerError("fault: this storage path has no limits, of which it could keep a share")
            self._make, self._mend = partial(path.keep, float(fault["keeps"])), partial(path.keep, 1.0)
        else:
            handle = server.group[self._of].handle
            self._make, self._mend = (getattr(handle, name) for name in KINDS[self._kind])
        self._at_s, self._for_s = float(fault["at_s"]), float(fault["for_s"])
        self._from: float | None = None
        self.made_s: float | None = None
        self.mended_s: float | None = None
        self.whole_s: float | None = None
        """When, after it was mended, every member missed none of the others again."""
        self._watching: threading.Thread | None = None
        self._over = threading.Event()
        self._wrong: Exception | None = None

    def begin(self) -> None:
        """From now on, its time counts: the clients are warm, and their clock starts."""
        self._from = self._from or time.monotonic()

    def check(self) -> None:
        """Make or mend it when it is time to; ServerError if a member is gone that should be there."""
        now = time.monotonic()
        begun = self._from is not None and now - self._from >= self._at_s
        if self.made_s is None and begun:
            self.made_s = time.monotonic()
            self._make()
        elif self.made_s is not None and self.mended_s is None and now - self.made_s >= self._for_s:
            self._mend_now()
        for member in self._server.group:
            if member.name != self._of:
                member.handle.check_alive()

    def end(self, timeout_s: float) -> None:
        """Mend it if that is still to be done, and give the system so long to be whole again (`whole_s` else None)."""
        if self.made_s is not None and self.mended_s is None:
            self._mend_now()
        if self._watching is not None:
            self._watching.join(timeout_s)
            self._over.set()
        if self._wrong is not None:
            raise self._wrong

    def abandon(self) -> None:
        """Ask the system no more: the run has failed, and its server goes."""
        self._over.set()

    def _mend_now(self) -> None:
        self._mend()
        self.mended_s = time.monotonic()
        self._watching = threading.Thread(target=self._watch, name="whole again", daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        """Ask until every member misses none, or it is `end`ed."""
        try:
            while not self._over.is_set():
                try:
                    self._server.check_members()
                except ServerError:
                    self._over.wait(_POLL_S)
                else:
                    self.whole_s = time.monotonic()
                    return
        except Exception as error:  # as it would have been raised in the thread that waits
            self._wrong = error

    def times(self, zero_s: float) -> dict[str, Any]:
        """Kind and member; when it was made, mended, and the system whole again, in seconds from the clock's zero."""
        if self.made_s is None:
            raise ServerError(f"the fault of {self._of} was never made: the run was over before its time")
        at = {"made_s": self.made_s, "mended_s": self.mended_s, "whole_s": self.whole_s}
        return {
            "kind": self._kind,
            "member": self._of,
            **{name: None if value is None else value - zero_s for name, value in at.items()},
        }


def summary(samples: Sequence[latency.Run], faults: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What clients saw of the fault of each run, `faults[r]` (see `Fault.times`) being that of run r: `runs`, and its
    main numbers over all runs. `whole_s` is the time from mending to a system that misses no member."""
    runs = [
        impact(run.due_ns / 1e9, run.latency_ns / 1e6, run.status == OK, fault)
        for run, fault in zip(samples, faults, strict=True)
    ]
    ends = [(fault["mended_s"], fault["whole_s"]) for fault in faults]
    return {
        "lost": over_runs([float(found["lost"]) for found in runs]),
        "silence_s": over_runs([found["silence_s"] for found in runs]),
        "recovered_s": over_runs(
            [math.nan if found["recovered_s"] is None else found["recovered_s"] for found in runs]
        ),
        "whole_s": over_runs([math.nan if None in both else both[1] - both[0] for both in ends]),
        "runs": [{**fault, **found} for fault, found in zip(faults, runs, strict=True)],
    }


def impact(due_s: Floats, latency_ms: Floats, good: Bools, fault: Mapping[str, Any]) -> dict[str, Any]:
    """What clients saw of a `fault` (see `Fault.times`) in one run, of (n,) requests, `good` where answered well.

    `lost` requests failed; the first and last of them was due so long after the fault was made. `silence_s`: the
    longest time without an answer. `recovered_s`: how long after the fault was made every request was good from then
    on, and the median of every half second within twice the p99 of before; one in which no request was due counts
    where some wait for their answers throughout, as in a closed loop; None if not in this run. `steps`: a row
    for each half second, by when requests were due.
    """
    made_s = fault["made_s"]
    end_s = due_s + latency_ms / 1e3
    lost = np.sort(due_s[~good]) - made_s
    before = good & (end_s <= made_s)
    p99_ms = float(np.percentile(latency_ms[before], 99, method="higher")) if before.any() else None
    edges = np.concatenate([[0.0], np.sort(end_s[good]), [float(end_s.max(initial=0.0))]])
    return {
        "requests": len(due_s),
        "lost": int((~good).sum()),
        "first_lost_s": float(lost[0]) if len(lost) else None,
        "last_lost_s": float(lost[-1]) if len(lost) else None,
        "silence_s": float(np.diff(edges).max()),
        "p99_before_ms": p99_ms,
        "recovered_s": None if p99_ms is None else _recovered_s(due_s, latency_ms, good, made_s, p99_ms),
        "steps": _steps(due_s, latency_ms, good),
    }


def _recovered_s(due_s: Floats, latency_ms: Floats, good: Bools, made_s: float, p99_ms: float) -> float | None:
    end_s = due_s + latency_ms / 1e3
    failed = ~good & (end_s > made_s)
    last = float(end_s[failed].max(initial=made_s))
    for start in np.arange(made_s, float(due_s.max()), STEP_S):
        within = (due_s >= start) & (due_s < start + STEP_S)
        inside = good & within
        waiting = (due_s < start) & (end_s > start + STEP_S)
        slow = inside.any() and float(np.median(latency_ms[inside])) > 2 * p99_ms
        if slow or (within.any() and not inside.any()) or (not within.any() and waiting.any()):
            last = max(last, float(start + STEP_S))
    return None if last >= float(end_s.max()) else last - made_s


def _steps(due_s: Floats, latency_ms: Floats, good: Bools) -> list[dict[str, Any]]:
    rows = []
    for number in range(int(due_s.max(initial=0.0) / STEP_S) + 1):
        inside = (due_s >= number * STEP_S) & (due_s < (number + 1) * STEP_S)
        fine = inside & good
        rows.append(
            {
                "from_s": number * STEP_S,
                "requests": int(inside.sum()),
                "lost": int((inside & ~good).sum()),
                "p50_ms": float(np.median(latency_ms[fine])) if fine.any() else None,
                "max_ms": float(latency_ms[fine].max()) if fine.any() else None,
            }
        )
    return rows


class OfRun(Measuring):
    """The fault of a run, and when it happened."""

    described = "the effect of its fault"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.path: Limited | None = None

    @classmethod
    def members_may_fail(cls, workload: Mapping[str, Any]) -> bool:
        return bool(workload["fault"]["kind"] != PATH_LOSS)

    def before(self, system: System, server: Server) -> None:
        self.path = None if system.placed is None else system.placed.limited

    def check(self, server: Server) -> Callable[[], None]:
        self.fault = Fault(server, self.run.workload["fault"], self.path)
        return self.fault.check

    def ready(self) -> None:
        self.fault.begin()

    def abandon(self) -> None:
        self.fault.abandon()

    def after(self, system: System, server: Server, zero_s: float) -> None:
        self.fault.end(_WHOLE_S)
        self.times = self.fault.times(zero_s)

    def judge(self, context: Context, findings: Findings) -> None:
        findings.facts["fault"] = self.times
        limits = context.facts.get("storage_path", {}).get("limits")
        if self.times["kind"] == PATH_LOSS and limits is not None:
            keeps, window_s = float(self.run.workload["fault"]["keeps"]), self.run.window_s
            findings.gates.append(narrowed(limits["asked"], keeps, context.resources, window_s, self.times))

    @classmethod
    def summarise(cls, published: Published) -> dict[str, Any]:
        return {"fault": summary(published.of_runs, published.facts("fault"))}

    @classmethod
    def again(cls, published: Published) -> Iterator[tuple[str, Any, Any]]:
        yield from super().again(published)
        stored, fault = published.stored, published.workload["fault"]
        if fault["kind"] != PATH_LOSS:
            return
        asked, resources = stored["storage_path"]["limits"]["asked"], published.table("resources")
        each = []
        for number, (window_s, times) in enumerate(zip(stored["windows_s"], published.facts("fault"), strict=True)):
            of_run = resources.filter(pa.compute.equal(resources["run"], number))
            each.append([asdict(narrowed(asked, float(fault["keeps"]), of_run, window_s, times))])
        known = [gate for gate in stored["gates"] if gate["gate"] == NARROWED]
        yield "its gate on the lost paths differs from what its samples give", known, publish.combine(each)

    @classmethod
    def scoring(cls, measured: Mapping[str, Any], samples_path: Path, truth: Any) -> Scoring | None:
        return _OverTime(measured["fault"]["runs"])


MEASURING = OfRun
NARROWED = "storage limits, paths lost"


def narrowed(
    asked: Mapping[str, float],
    keeps: float,
    resources: pa.Table | None,
    window_s: Sequence[float],
    times: Mapping[str, Any],
) -> Gate:
    """While paths were lost, the device's own counters say that no more was read than the share that was kept allows.

    `window_s` is that of the run, on whose clock the `resources` are; `times` count from its start.
    """
    during = (window_s[0] + times["made_s"] + _SETTLED_S, window_s[0] + times["mended_s"] - _BEFORE_MENDED_S)
    device = None if resources is None else of_device(resources, [during])
    return gates.storage_limits({limit: keeps * rate for limit, rate in asked.items()}, device, NARROWED)


class _OverTime(Scoring):
    """Recall of what was answered, over time and while the fault lasted: loss that no error tells."""

    def __init__(self, faults: Sequence[Mapping[str, Any]]) -> None:
        self.faults = faults
        self.parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, runs: NDArray[np.integer[Any]], due_s: Floats, answered: Bools, scores: Mapping[str, Floats]) -> None:
        self.parts.append((runs, due_s, answered, scores["by_distance"]))

    def body(self, means: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        runs, due_s, answered, by_distance = (np.concatenate(each) for each in zip(*self.parts, strict=True))
        during, over_time = [], []
        for number, times in enumerate(self.faults):
            mine = (runs == number) & answered & ~np.isnan(by_distance)
            inside = mine & (due_s >= times["made_s"]) & (due_s < (times["mended_s"] or np.inf))
            during.append(float(by_distance[inside].mean()) if inside.any() else float("nan"))
            steps = (due_s[mine] // STEP_S).astype(int)
            recalls = by_distance[mine]
            over_time.append([[step * STEP_S, float(recalls[steps == step].mean())] for step in np.unique(steps)])
        return {"fault": {"recall_during": over_runs(during), "over_time": over_time}}
