"""The query session: one server on a copy of one loaded index, measuring one run of some cells in a seeded order.

One run, because the machine drifts: the workflow takes sessions round by round, so that run 1 of every cell, of every
system, comes before run 2 of any. A run's server is therefore not that of the run before, and what differs from start
to start is part of the spread over runs. On a copy, because a server changes its files while it runs, and a killed one
may damage them: the loaded index stays what the load stage left, and every session starts from the same bytes.

A server that dies takes only the workload that was running with it: the others go on with a fresh server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import engines, redact
from anncestry.cells.indexes import is_lossy, least_effort
from anncestry.drive import build, protocol
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, Server, streaming
from anncestry.engines.group import as_group
from anncestry.errors import DataError, ServerError, UserError
from anncestry.measure import batches, ceiling, clients, keep, oracle, page_cache, schedule, stream, tune
from anncestry.measure.fault import Fault
from anncestry.measure.filtering import Filtering
from anncestry.measure.keep import Job, Run
from anncestry.measure.load import (
    Place,
    artifact_facts,
    copies_gates,
    counted_since,
    member_gates,
    probe_facts,
    probe_gates,
)
from anncestry.measure.storage_path import StoragePath
from anncestry.measure.vectors import Vectors, choose, open_vectors
from anncestry.metrics import capacity, latency
from anncestry.metrics.resources import Sampler
from anncestry.progress import Progress
from anncestry.provenance import gates, platform, records
from anncestry.provenance.code import package_versions
from anncestry.provenance.gates import Gate
from anncestry.runtimes import artifacts, namespaces
from anncestry.runtimes.storage import FOLDER, Placed

MEASURED = Path("scratch/measured")
_WHOLE_S = 120.0
"""How long a system may take to be whole again after a fault; longer is "not in time", not an error."""


def copy_tree(source: Path, target: Path, without: str = "") -> None:
    """Copy a folder with its metadata, sharing blocks where the file system can (reflink), `without` one entry."""
    records.clear(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    entries = [str(source)]
    if without:
        target.mkdir()
        entries = [str(path) for path in sorted(source.iterdir()) if path.name != without]
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", *entries, str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise DataError(f"copying {source} to {target} failed: {done.stderr.strip()}")


class _Session:
    """One session; `run` below is its story."""

    def __init__(
        self,
        number: int,
        cells: Mapping[str, Mapping[str, Any]],
        load_record: Path,
        index_record: Path,
        place: Place,
        out_dir: Path,
        measured_dir: Path,
    ) -> None:
        self.place, self.out_dir, self.measured_dir = place, out_dir, measured_dir
        self.load_record, self.index_record = load_record, index_record
        first = next(iter(cells.values()))
        self.loaded = records.read_record(index_record, stage="load", key=first["load"])
        self.spec: Mapping[str, Any] = self.loaded["spec"]
        self.driver: str = first["driver"]
        self.engine: Engine = engines.get(self.spec["system"]["engine"])
        self.vectors: Vectors = open_vectors(place.vectors, self.spec["vectors"])
        self.built = artifacts.opened(place.artifact, self.spec["artifact"])
        everyone = [
            Run(
                query,
                spec,
                number,
                out_dir / query,
                choose(self.vectors, spec["workload"]["queries"], spec["workload"]["warmup"], spec["seed"]),
            )
            for query, spec in sorted(cells.items())
        ]
        order = np.random.RandomState([first["seed"] % 2**32, number]).permutation(len(everyone))
        # What leaves no server behind comes last, so that as few runs as can be need a server of their own; and cold
        # starts, which need one anyway, after all.
        self.runs = sorted((everyone[i] for i in order), key=lambda run: (run.cold_start, run.spends_server))
        for run in self.runs:
            run.filtering = Filtering.of(
                run.workload.get("filter"), self.vectors, run.choice.regions, run.choice.queries
            )
            run.members = batches.cut_both(
                len(run.choice.measured), len(run.choice.warmup), batches.size_of(run.workload)
            )
        self.path = StoragePath.of(self.spec, place.storage)
        self.placed: Placed | None = None
        self.server: Server | None = None
        self.to_look_after = False
        """Whether a run was measured on the server that runs, and nobody has looked at it since."""
        self.ef_search: int | None = None
        self.open_s: list[float] = []
        self.start_s: list[float] = []
        self.repeated: list[str] = []
        """Why a server was started twice, of those that were."""
        self.up_from, self.up_s = 0.0, 0.0
        self.gates: list[Gate] = [gates.loaded(self.loaded["valid"], self.loaded["created"])]
        if "kill" in self.loaded:
            self.gates.append(gates.nothing_lost(self.loaded["kill"]))
        self.settings: dict[int, list[Gate]] = {}
        self.batched: dict[int, list[Gate]] = {}
        self.counted: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.on_path: dict[str, Any] = {}

    # The server

    def start(self, prepare: Callable[[Path], None] = lambda _: None) -> Server:
        """A server on a fresh copy of the loaded index, searchable; `prepare` is called with that copy before."""
        data_dir = (self.out_dir / "serve" / "data").resolve()
        stored = self.index_record.parent / "data"
        copy_tree(stored, data_dir, without=FOLDER if self.path else "")
        if self.path is not None:
            self.placed = self.path.put(data_dir, stored / FOLDER)
        prepare(data_dir)
        self.up_from = time.monotonic()
        self.server = self.engine.start(
            self.place.artifact.parent.resolve(),
            data_dir,
            self.spec["system"],
            self.spec["topology"],
            first_port=self.place.first_port,
        )
        self.ef_search = None
        self.open_s.append(self.engine.open(self.server, self.spec["index"]))
        self.start_s.append(self.server.start_s)
        self.repeated += self.server.repeats().values()
        return self.server

    def stop(self) -> None:
        """Stop the server, if one runs, and drop its copy of the data."""
        self.to_look_after = False
        if self.server is not None:
            self.server.stop()
            self.server = None
            self.up_s += time.monotonic() - self.up_from
        if self.placed is not None:
            self.placed.remove()
            self.placed = None
        shutil.rmtree(self.out_dir / "serve", ignore_errors=True)

    def look_after(self) -> None:
        """What must hold of a server after its queries: every row and member is still there, and no limit was hit.

        Before it is stopped, or a run changes what is on it; of a server that no run was measured on, nothing.
        """
        if self.server is None or not self.to_look_after:
            return
        self.to_look_after = False
        after = self.engine.probe(self.server)
        self.gates.append(gates.row_count(after.rows, len(self.vectors.base), "after the queries"))
        members, of_members = member_gates(self.server, "after the queries")
        self.facts["members"] = members
        self.gates += of_members

    def apply(self, ef_search: int) -> None:
        """Set the search effort, where it is not set already."""
        assert self.server is not None
        if self.ef_search != ef_search:
            self.engine.apply(self.server, ef_search)
            self.ef_search = ef_search

    def judge(self, server: Server, driver: Driver) -> None:
        """Everything that must hold of a server before it is measured, for this and every later one of the session."""
        self.gates.append(gates.artifact(self.loaded["artifact"]["digest"], self.built["digest"]))
        lossy = oracle.over_codes(self.engine, self.spec["index"])
        self.gates += oracle.check(self.engine, server, driver, self.out_dir / "oracle", self.vectors, lossy)
        for nq in sorted({batches.size_of(run.workload) for run in self.runs} - {1}):
            folder = self.out_dir / "oracle"
            judged = oracle.check_batches(self.engine, server, driver, folder, self.vectors, lossy, nq)
            self.batched.setdefault(nq, []).append(judged)
        self.ef_search = oracle.EF
        for run in self.runs:
            if "target_recall" in run.workload and run.tuned is None:
                run.tuned = self.tune(run, server, driver)
        self.ef_search = None
        for ef_search in sorted({run.ef_search for run in self.runs}):
            self.apply(ef_search)
            probe = self.engine.probe(server)
            said = probe_gates(self.engine, probe, self.spec, self.vectors, ef_search, "before the queries")
            self.settings.setdefault(ef_search, []).extend(gate for gate in said if gate.gate == "settings")
        self.gates += [gate for gate in said if gate.gate != "settings"]
        self.gates += copies_gates(self.spec, probe, self.vectors)
        self.facts = probe_facts(probe)
        if self.path is not None and self.placed is not None:
            self.on_path = {"storage_path": self.path.record(self.placed, server)}
            self.gates.append(self.path.gate(self.engine, self.placed, self.on_path["storage_path"]["mapped_mib"]))
        for run in self.runs:
            if run.filtering is not None:
                run.filtering.count(self.engine, server, self.counted)

    def tune(self, run: Run, server: Server, driver: Driver) -> tune.Tuned:
        """The effort that reaches the cell's target recall, found in its first run on this build of the index."""

        def find() -> tune.Tuned:
            return tune.tune(
                self.engine,
                server,
                driver,
                self.out_dir / "oracle" / "tune",
                self.vectors,
                self.place.vectors,
                run.workload,
                run.spec["seed"],
                least_effort(self.spec["index"], run.workload["k"]),
            )

        kept = self.measured_dir / run.key / "tuning.json"
        return tune.once(kept, records.sha256_file(self.index_record), find)

    # Measuring

    def prepare(self, server: Server) -> None:
        """Encode all requests of all runs, before any clock."""
        for run in self.runs:
            queries = np.concatenate([np.asarray(self.vectors.queries[run.choice.measured]), run.choice.warmup])
            work = run.workload
            started = time.perf_counter()
            requests = clients.requests(self.engine, server, queries, work, run.ef_search, run.filtering, run.members)
            run.encode_us = 1e6 * (time.perf_counter() - started) / len(requests)
            protocol.write_requests(run.folder, requests)

    def measure(self, run: Run, driver: Driver, sampler: Sampler, server: Server) -> None:
        """One run: one job of the driver, or as many as the search for a rate takes."""
        work = run.workload
        self.apply(run.ef_search)
        before = server.counters()
        if "slo" in work:
            self.search(run, driver, sampler, server)
        else:
            self.drive(run, driver, sampler, server, work.get("rate_per_s"))
        if run.fault is None:
            run.counters = counted_since(before, server.counters())
        if run.spends_server:
            self.stop()  # what it did to data and members shall be nobody else's
        else:
            self.to_look_after = True

    def drive(self, run: Run, driver: Driver, sampler: Sampler, server: Server, rate_per_s: float | None) -> Job:
        """One job: an open loop at this rate, or a closed loop."""
        work, seed = run.workload, run.spec["seed"]
        measured, warmup = run.requests
        number = len(run.jobs)
        changes = stream.plan(work, self.vectors, seed, run.number) if run.streams else []
        whole = run.job_folder(number)
        folder = whole / stream.SEARCH if changes else whole
        common: dict[str, Any] = {
            "requests": run.folder,
            "transport": clients.transport(self.engine, server, work, run.ef_search, run.filtering),
            "timeout_s": work["timeout_s"],
            "answer_bytes_max": protocol.bytes_max(work["k"] * work.get("nq", 1)),
        }
        if rate_per_s is None:
            rows, prime = schedule.schedule(work, measured, warmup, seed, run.number)
            protocol.write_job(folder, schedule=rows, prime=prime, duration_s=work.get("duration_s"), **common)
        else:
            due_ns = schedule.arrivals(rate_per_s, work["duration_s"], work["arrivals"], seed, run.number, number)
            protocol.write_job(
                folder,
                schedule=schedule.order(measured, seed, run.number),
                prime=schedule.prime(measured, warmup, work["clients"]),
                due_ns=due_ns,
                **common,
            )
        fault = Fault(as_group(server), work["fault"]) if work.get("fault") else None
        if changes:
            stream.write_jobs(streaming(self.engine), self.vectors, server, work, changes, whole)
        hosts = work.get("driver_hosts", ())
        done = driver.run(whole, check=server.check_alive if fault is None else fault.check, hosts=hosts)
        sampler.sample()
        job = Job(number, folder, (done["zero_ns"] / 1e9, done["end_ns"] / 1e9), rate_per_s)
        run.jobs.append(job)
        if fault is None:
            server.check_members()
        else:
            fault.end(_WHOLE_S)
            run.fault = fault.times(done["zero_ns"] / 1e9)
        if changes:
            run.changes, run.rows_after = changes, self.engine.probe(server).rows
        return job

    def search(self, run: Run, driver: Driver, sampler: Sampler, server: Server) -> None:
        """The highest rate that keeps the workload's bound; every probe of the search is kept."""
        slo = run.workload["slo"]
        window_s = run.workload["duration_s"]

        def samples_of(job: Job) -> tuple[latency.Run, float]:
            left = protocol.open_outcome(job.folder)
            found = {name: left.column(name) for name in ("due_ns", "latency_ns", "status")}
            return latency.Run(**found, duration_s=window_s), left.facts["lag_p99_ms"]

        def passes(rate_per_s: float) -> bool:
            job = self.drive(run, driver, sampler, server, rate_per_s)
            samples, lag_ms = samples_of(job)
            return capacity.judge(job.number, rate_per_s, samples, lag_ms, slo["p99_ms"]).passed

        closed, _ = samples_of(self.drive(run, driver, sampler, server, None))
        lowest_per_s = capacity.SAMPLES_MIN / window_s
        capacity.search(passes, latency.of_run(closed)["qps"], slo["precision"], slo["max_probes"], lowest_per_s)

    def measure_all(self, driver: Driver) -> Sampler:
        """All runs; one whose server died is given up, the others go on."""
        name = f"query {self.spec['system']['name']} · {self.spec['dataset']['name']}"
        pids = {
            "server": lambda: [*(self.server.pids() if self.server else []), *driver.libraries()],
            "client": driver.pids,
        }
        charged = {"server": lambda: self.server.charged() if self.server else {}}
        members = {"server": lambda: self.server.pids_by_member() if self.server else {}}
        device = self.path.totals() if self.path else None
        with (
            Sampler(pids, charged=charged, device=device, members=members) as sampler,
            Progress(name, len(self.runs), "run") as progress,
        ):
            for run in self.runs:
                try:
                    if run.cold_start:
                        self.measure_cold(run, driver, sampler)
                    else:
                        if run.spends_server:
                            self.look_after()
                        server = self.server or self.start_again(driver)
                        self.measure(run, driver, sampler, server)
                except ServerError as error:
                    run.failure = self._failure(error)
                    self.stop()
                progress.add(1)
        return sampler

    def measure_cold(self, run: Run, driver: Driver, sampler: Sampler) -> None:
        """One run on a server that has answered nothing but the search that showed it searchable; judged afterwards."""
        self.look_after()
        self.stop()
        resident = 0.0

        def prepare(data_dir: Path) -> None:
            nonlocal resident
            if run.workload["page_cache"] == "dropped":
                page_cache.drop(data_dir)
            resident = page_cache.resident(data_dir)

        server = self.start(prepare)
        self.measure(run, driver, sampler, server)
        run.cold = {
            "start_s": self.start_s[-1],
            "open_s": self.open_s[-1],
            "page_cache": run.workload["page_cache"],
            "resident_share": resident,
        }
        self.judge(server, driver)

    def _failure(self, error: ServerError) -> str:
        """Why a run was given up, with the end of the server's log if it is the server that is gone."""
        if self.server is not None and not error.log_tail:
            try:
                self.server.check_alive()
            except ServerError as dead:
                return str(dead)
        return str(error)

    def start_again(self, driver: Driver) -> Server:
        """A fresh server for the runs that are left, judged as the first was, its requests encoded anew."""
        server = self.start()
        self.judge(server, driver)
        self.prepare(server)
        return server

    def find_ceilings(self) -> None:
        """What the client could have done at most in each run; once the server is stopped."""
        with Driver(self.driver) as driver:
            for run in self.runs:
                # What other machines could have done at most can't be found by asking a server here of clients here.
                if run.failure is None and not run.workload.get("driver_hosts"):
                    folders = [job.folder for job in run.jobs]
                    run.ceiling = ceiling.of_cell(run.folder, folders, self.spec["platform"], driver)


def run(
    key: str,
    number: int,
    cells: Mapping[str, Mapping[str, Any]],
    load_record: Path,
    index_record: Path,
    place: Place,
    out_dir: Path,
    measured_dir: Path = MEASURED,
) -> dict[str, str]:
    """Measure run `number` of the cells (query key → spec), all of one load.

    Leaves `measured_dir`/KEY/run-N with record and samples for each, and writes `session.json` last: for each cell,
    "ok" or why its run failed; returns that. A server that can't be started at all is a ServerError; one that dies
    while a run is measured fails that run.
    """
    records.clear(out_dir)
    out_dir.mkdir(parents=True)
    build.programs()  # made now, if they have to be: not beside a server
    with platform.alone() as waited_s:
        session = _Session(number, cells, load_record, index_record, place, out_dir, measured_dir)
        machine = platform.check(session.spec["platform"], place.platform)
        print(
            f"query {session.spec['system']['name']} · {session.spec['dataset']['name']}: "
            f"starting the server on the stored index, run {number + 1} of {len(session.runs)} cells",
            file=sys.stderr,
            flush=True,
        )
        try:
            server = session.start()
            with Driver(session.driver, out_dir.resolve()) as driver:
                session.judge(server, driver)
                session.prepare(server)
                load_before = os.getloadavg()[0]
                sampler = session.measure_all(driver)
            session.look_after()
        finally:
            session.stop()
        session.find_ceilings()
        session.gates.append(gates.on_platform(session.spec["platform"]))
    context = keep.Context(
        session.engine,
        session.vectors,
        session.gates,
        session.settings,
        session.batched,
        session.counted,
        waited_s,
        sampler.table(),
        {
            "load_key": str(session.loaded["key"]),
            "server": {
                **session.facts,
                "network": namespaces.network(),
                **({"starts_repeated": session.repeated} if session.repeated else {}),
                "start_s": session.start_s,
                "open_s": session.open_s,
                "up_s": session.up_s,
            },
            "artifact": artifact_facts(session.built),
            "platform": platform.afterwards({**machine, "load_average_before": round(load_before, 2)}),
            "clients": package_versions("grpcio", "protobuf", "pymilvus", "weaviate-client", "numpy"),
            **session.on_path,
            "session": {"key": key, "cells": len(session.runs), "waited_s": waited_s},
        },
        {"load": load_record, "index": index_record, "vectors": place.vectors},
        is_lossy(session.spec["index"]),
        oracle.over_codes(session.engine, session.spec["index"]),
    )
    outcome: dict[str, str] = {}
    for measured in session.runs:
        if measured.failure is None:
            try:
                keep.keep(measured, context, measured_dir)
            except UserError as error:
                measured.failure = str(error)
        outcome[measured.key] = measured.failure or "ok"
    shutil.rmtree(out_dir / "oracle", ignore_errors=True)
    records.write_json(out_dir / "session.json", {"session": key, "round": number, "cells": redact.body(outcome)})
    return outcome
