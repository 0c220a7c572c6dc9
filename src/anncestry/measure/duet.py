"""The session of a pair: two servers at once under equal load, one of them frozen at a time (docs/duet.md).

Both have closed loops of clients of their own, on one clock. A thread cuts the time into slices: it thaws one server,
lets it run, freezes it, and reads what both have used while neither runs. So what disturbs one side disturbs the other
half a second later, and the ratio of the two says what minutes apart would hide (Bulej et al., "Duet benchmarking",
ICPE 2020, in turns). Servers are started anew for every session, as each start has a bias of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry import durable, redact
from anncestry.cells.stage import STAGES
from anncestry.drive import build, protocol
from anncestry.drive.driver import Driver
from anncestry.errors import ServerError
from anncestry.measure.runs import Job, Run
from anncestry.measure.server import Place
from anncestry.measure.session import ServerSession
from anncestry.metrics.duet import first_started, order
from anncestry.metrics.processes import Tree, Used
from anncestry.metrics.resources import Sampler
from anncestry.progress import Progress
from anncestry.provenance import platform, records
from anncestry.provenance.attempts import Ledger
from anncestry.runtimes import leftovers
from anncestry.runtimes.freeze import Side as Frozen

SIDES = ("a", "b")
_PORTS = 200
"""How far apart the ports of the two servers are, where their first one is declared."""
_LEAD_S = 0.3
"""Both sides run freely so long before the first slice."""
_OVERHEAD_S, _OVERHEAD_CONTAINERS_S = 0.06, 0.3
"""What freezing, reading and thawing take a slice at most, where the machine is busy; containers by their engine."""


@dataclass(frozen=True)
class Loaded:
    """One side of a pair on this machine: the published record of its load, that of its index, and its place."""

    load_record: Path
    index_record: Path
    place: Place


class _Side(ServerSession):
    """One of the two servers. Its runs, one a workload, are named by the keys of the pairs."""

    def __init__(self, name: str, number: int, specs: Mapping[str, Any], loaded: Loaded, out_dir: Path) -> None:
        self.name = name
        super().__init__(number, specs, loaded.index_record, loaded.place, out_dir / name, out_dir / name / "judged")
        # Every answer is compared with the truth, on both sides: what a reference index finds adds nothing.
        self.context.reference = None
        self.tree = Tree()

    def tuning_path(self, run: Run) -> Path:
        return STAGES["servers"].folder / run.key / f"tuning-{self.name}.json"

    def ready(self, driver: Driver) -> None:
        """Start the server, and judge it. (The other one may run: it is asked nothing meanwhile.)"""
        self.driver = driver
        self.open()
        self.judge()
        self.prepare()

    def used(self) -> Used:
        """What all its processes have used so far."""
        found = self.tree.read(dict.fromkeys(self.running.group.pids(), ""), set(), seek=True)
        used = sum(found.values(), Used())
        charged = self.running.charged()
        return replace(used, cpu_s=charged["cpu_s"]) if "cpu_s" in charged else used


class _Slicer:
    """Cuts the time of one workload on both servers, in a thread, from when the clients wait for the clock."""

    def __init__(self, sides: Sequence[_Side], cut: Mapping[str, Any], seed: int, clients: Callable[[], float]) -> None:
        self._sides, self._slice_s, self._clients = sides, float(cut["slice_s"]), clients
        self._order = [SIDES.index(side.lower()) for side in order(2 * cut["blocks"], seed)]
        runtimes = {side.spec["topology"]["runtime"] for side in sides}
        overhead_s = _OVERHEAD_S if runtimes == {"native"} else _OVERHEAD_CONTAINERS_S
        self.duration_s = len(self._order) * (self._slice_s + overhead_s) + 2 * _LEAD_S
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._problem: BaseException | None = None
        self.rows: list[dict[str, Any]] = []
        self.by: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """ServerError if a server is gone, or could not be frozen."""
        if self._problem is not None:
            raise self._problem
        for side in self._sides:
            side.running.check_alive()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Whatever becomes of the block, no server stays frozen after it."""
        try:
            yield
        finally:
            self._over.set()
            if self._thread.ident is not None:
                self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        until = time.monotonic() + self.duration_s - _LEAD_S
        try:
            self._over.wait(_LEAD_S)
            with ExitStack() as stack:
                frozen = [stack.enter_context(Frozen(side.running.group)) for side in self._sides]
                self.by = [", ".join(each.by) for each in frozen]
                for each in frozen:
                    each.freeze()
                self._cut(frozen, until)
        except BaseException as error:
            self._problem = error

    def _cut(self, frozen: Sequence[Frozen], until: float) -> None:
        before = self._read(frozen)
        for number, place in enumerate(self._order):
            if self._over.is_set() or time.monotonic() + self._slice_s > until:
                return
            thawed = frozen[place].thaw()
            self._over.wait(self._slice_s)
            stopped = frozen[place].freeze()
            after = self._read(frozen)
            used = {name: after[name] - before[name] for name in before}
            self.rows.append(
                {
                    "slice": number,
                    "side": place,
                    "thaw_ns": thawed.asked_ns,
                    "thawed_ns": thawed.done_ns,
                    "freeze_ns": stopped.asked_ns,
                    "frozen_ns": stopped.done_ns,
                    "cpu_s": used[SIDES[place]],
                    "other_side_cpu_s": used[SIDES[1 - place]],
                    "client_cpu_s": used["client"],
                    "host_cpu_s": used["host"],
                    "wall_s": used["at_s"],
                }
            )
            before = after

    def _read(self, frozen: Sequence[Frozen]) -> dict[str, float]:
        """Running totals, read while both servers are frozen: by their control groups where these account."""
        times = psutil.cpu_times()
        busy = sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
        own = {}
        for name, side, group in zip(SIDES, self._sides, frozen, strict=True):
            of_group = group.cpu_s()
            own[name] = side.used().cpu_s if of_group is None else of_group
        return {**own, "client": self._clients(), "host": busy, "at_s": time.monotonic()}


class _Duet:
    """Both servers, and what is measured on them."""

    def __init__(self, sides: Sequence[_Side], specs: Mapping[str, Mapping[str, Any]], number: int, out: Path) -> None:
        self.sides, self.specs, self.number, self.out_dir = sides, specs, number, out
        self.slices: dict[str, pa.Table] = {}
        self.by: dict[str, list[str]] = {}
        self.memory: dict[str, list[dict[str, float | None]]] = {}
        self.failures: dict[str, str] = {}

    def sampler(self, driver: Driver) -> Sampler:
        """Both servers as members of one group, so that each has totals of its own beside those of both."""

        def members() -> dict[str, list[int]]:
            return {side.name: side.running.group.pids() if side.server else [] for side in self.sides}

        def servers() -> list[int]:
            return [pid for pids in members().values() for pid in pids]

        return Sampler({"server": servers, "client": driver.pids}, members={"server": members})

    def measure_all(self, driver: Driver) -> None:
        a, b = self.sides
        runs = list(zip(a.runs, b.runs, strict=True))
        with self.sampler(driver) as sampled, Progress(f"pair {self.number + 1} of servers", len(runs), "run") as said:
            a.sampled = b.sampled = sampled
            clients = Tree()
            for both in runs:
                assert both[0].key == both[1].key
                try:
                    self.measure(driver, both, clients)
                except ServerError as error:
                    self.failures[both[0].key] = str(error)
                    dead = [side for side in self.sides if side.server is None or not side.running.group.alive()]
                    for side, failed in zip(self.sides, both, strict=True):
                        if side in dead:
                            side.give_up(failed)
                    if dead:
                        for run, _ in runs:  # what was measured before on these servers counts
                            if not run.jobs:
                                self.failures.setdefault(run.key, str(error))
                        break
                said.add(1)

    def measure(self, driver: Driver, both: tuple[Run, Run], clients: Tree) -> None:
        """One workload: two closed loops on one clock, of servers that run in turns."""
        key = both[0].key
        spec = self.specs[key]

        def client_cpu_s() -> float:
            return sum(clients.read(dict.fromkeys(driver.pids(), ""), set(), seek=False).values(), Used()).cpu_s

        slicer = _Slicer(self.sides, spec["slices"], spec["seed"] + self.number, client_cpu_s)
        whole = self.out_dir / "jobs" / key
        for side, run in zip(self.sides, both, strict=True):
            side.apply(run.ef_search)
            run.spec = {**run.spec, "workload": {**run.workload, "duration_s": slicer.duration_s}}
            side.write_job(run, whole / side.name, 0, None)
        protocol.write_together(whole, SIDES)

        def ready() -> None:
            self.sides[0].sampled.edge()
            slicer.start()

        with slicer.at_work():
            done = driver.run(whole, slicer.check, ready=ready)
        self.sides[0].sampled.edge()
        window = (done["zero_ns"] / 1e9, done["end_ns"] / 1e9)
        for side, run in zip(self.sides, both, strict=True):
            run.jobs.append(Job(0, whole / side.name, window))
            run.disturbance = side.disturbance_of(run, {"server": None, "client": None, "quota": None})
            side.not_vouched.append(run)
        table = pa.Table.from_pylist(slicer.rows)
        for name in ("thaw_ns", "thawed_ns", "freeze_ns", "frozen_ns"):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pa.compute.subtract(table[name], done["zero_ns"]))
        self.slices[key], self.by[key] = table, slicer.by
        self.memory[key] = [_resident(side) for side in self.sides]

    def keep_all(self, session_key: str) -> dict[str, str]:
        """Keep every pair that was measured; returns "ok" or why it failed, by its key."""
        outcomes = {}
        for key in self.specs:
            outcomes[key] = self.failures.get(key) or self._keep(key, session_key)
        return outcomes

    def _keep(self, key: str, session_key: str) -> str:
        """Judge both sides, and put what they leave into one folder with the slices."""
        judged = []
        for side in self.sides:
            state = side.keep(next(run for run in side.runs if run.key == key))
            if state != "ok":
                return f"side {side.name}: {state}"
            judged.append(side.measured_dir / key / f"run-{self.number}")
        folder = self.out_dir / "kept" / key
        folder.mkdir(parents=True)
        read = [records.read_record(path / "record.json", stage="run", key=key) for path in judged]
        files = {}
        for name, path in zip(SIDES, judged, strict=True):
            files[f"samples_{name}"] = folder / f"samples_{name}.parquet"
            durable.rename(path / "samples.parquet", files[f"samples_{name}"])
        files["resources"] = folder / "resources.parquet"
        durable.rename(judged[0] / "resources.parquet", files["resources"])
        files["slices"] = folder / "slices.parquet"
        column = pa.array([self.number] * len(self.slices[key]), pa.uint8())
        parquet.write_table(self.slices[key].append_column("run", column), files["slices"], compression="zstd")
        records.write_record(
            folder / "record.json",
            stage="servers",
            key=key,
            spec=self.specs[key],
            body={
                "run": self.number,
                "window_s": read[0]["window_s"],
                "valid": all(each["valid"] for each in read),
                "started_first": SIDES[first_started(self.number)],
                "frozen_by": self.by[key],
                "memory": self.memory[key],
                "session": {"key": session_key},
                "platform": read[0]["platform"],
                "clients": read[0]["clients"],
                "sides": {
                    side: {name: each[name] for name in _OF_SIDE if name in each}
                    for side, each in zip(SIDES, read, strict=True)
                },
            },
            inputs={
                f"{label}_{name}": Path(each["inputs"][label]["path"])
                for name, each in zip(SIDES, read, strict=True)
                for label in ("load", "index")
            }
            | {"vectors": Path(read[0]["inputs"]["vectors"]["path"])},
            outputs=files,
        )
        kept = Path(STAGES["servers"].output.format(key=key, run=self.number)).parent
        records.clear(kept)
        kept.parent.mkdir(parents=True, exist_ok=True)
        durable.rename(folder, kept)
        return "ok"


_OF_SIDE = ("gates", "valid", "failures", "disturbance", "ef_search", "tuning", "selectivity", "filters", "client",
            "load_key", "server", "artifact", "created")  # fmt: skip


def _resident(side: _Side) -> dict[str, float | None]:
    """Memory that is resident after the queries, MiB: see `resources.RESIDENT`."""
    side.used()
    pss_mib, anon_mib = side.tree.resident() or (None, None)
    return {"pss_mib": pss_mib, "pss_anon_mib": anon_mib}


def of_side(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The spec of what is measured on one side, as one of a query has it."""
    shared = {name: spec[name] for name in ("epoch", "dataset", "driver", "seed", "platform")}
    side = {key: value for key, value in spec["sides"][name].items() if key != "effort"}
    return {"stage": "pair", **shared, **side, "workload": workload_of(spec, name)}


def workload_of(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The workload of one side, with its search effort."""
    return {**spec["workload"], **spec["sides"][name]["effort"]}


def run(
    key: str, number: int, specs: Mapping[str, Mapping[str, Any]], loaded: Sequence[Loaded], out_dir: Path
) -> dict[str, str]:
    """Measure these pairs (key → spec), all of the same two loads, on one fresh pair of servers, the `number`-th.

    Leaves the run of each in its folder (`STAGES` has it), and writes `session.json` last. Returns "ok" or why one
    failed, by key.
    """
    records.clear(out_dir)
    out_dir.mkdir(parents=True)
    build.programs()
    ledger = Ledger.of_measured(next(iter(specs.values())))
    first_port = loaded[1].place.first_port
    if first_port is not None:
        loaded = (loaded[0], replace(loaded[1], place=replace(loaded[1].place, first_port=first_port + _PORTS)))
    with ExitStack() as stack:
        lock = stack.enter_context(platform.alone())
        leftovers.end_frozen()  # takes cores and seconds: not beside another's measurement
        sides = [
            stack.enter_context(
                closing(_Side(name, number, {k: of_side(spec, name) for k, spec in specs.items()}, loaded[i], out_dir))
            )
            for i, name in enumerate(SIDES)
        ]
        ending = stack.enter_context(ledger.attempt(stage="duet", session=key, round=number, queries=sorted(specs)))
        names = " and ".join(side.spec["system"]["name"] for side in sides)
        print(f"pair {number + 1} of servers: starting {names}", file=sys.stderr, flush=True)
        duet = _Duet(sides, specs, number, out_dir)
        load_before = os.getloadavg()[0]
        with Driver(sides[0].driver_kind, out_dir.resolve()) as driver:
            for side in sides if first_started(number) == 0 else sides[::-1]:
                side.ledger = ledger
                side.ready(driver)
            duet.measure_all(driver)
        for side, each in zip(sides, loaded, strict=True):
            side.look_after()
            side.close()
            side.finish(key, each.load_record, load_before, lock)
        outcome = duet.keep_all(key)
        failed = {pair: redact.short(state) for pair, state in outcome.items() if state != "ok"}
        ending |= {"failed": failed, "restarts": [said for side in sides for said in side.repeated]}
    for name in (*SIDES, "jobs", "kept"):
        shutil.rmtree(out_dir / name, ignore_errors=True)
    records.write_json(out_dir / "session.json", {"session": key, "round": number, "cells": redact.body(outcome)})
    return outcome
