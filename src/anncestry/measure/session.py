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
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import engines, redact
from anncestry.cells.indexes import is_lossy, least_effort
from anncestry.cells.stage import STAGES
from anncestry.drive import build, protocol
from anncestry.drive.driver import Driver
from anncestry.errors import ServerError, UserError
from anncestry.measure import ceiling, judge, requests, tune
from anncestry.measure.oracle import EF, Oracle, over_codes
from anncestry.measure.runs import Context, Job, Measuring, Run
from anncestry.measure.server import Place, System, client_versions, member_gates, probe_facts
from anncestry.measure.vectors import Filtering, choose
from anncestry.metrics import disturbance, latency
from anncestry.metrics.resources import Sampler, by_group
from anncestry.progress import Progress
from anncestry.provenance import gates, platform, records
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.platform import Lock
from anncestry.runtimes import namespaces

_STARTS = 3
"""How often a server is started for a run that needs one which was started once."""
_SEARCH = "search"
"""The job of the queries, where a feature has others beside it."""


_Counted = Mapping[str, Mapping[str, float]]


def counted_since(before: _Counted, after: _Counted) -> _Counted:
    """Differences of running totals, by member and name."""
    return {
        member: {name: value - before.get(member, {}).get(name, 0.0) for name, value in totals.items()}
        for member, totals in after.items()
    }


def _place(run: Run) -> tuple[bool, bool]:
    """Where a run comes in its session."""
    return run.own_server, run.spends_server


class NotVouchedError(ServerError):
    """A server that runs were measured on could not be asked afterwards: the session is measured again as a whole."""


class ServerSession(System):
    """One server and what is measured on it; `run` below is its story. A pair has two (`measure.duet`)."""

    driver: Driver
    sampled: Sampler
    ledger: Ledger

    def __init__(
        self,
        number: int,
        cells: Mapping[str, Mapping[str, Any]],
        index_record: Path,
        place: Place,
        out_dir: Path,
        measured_dir: Path,
    ) -> None:
        first = next(iter(cells.values()))
        self.loaded = records.read_record(index_record, stage="load", key=first["load"])
        records.refuse_other_vectors(index_record, self.loaded, place.vectors)
        super().__init__(self.loaded["spec"], place, out_dir / "serve" / "data")
        self.out_dir, self.measured_dir, self.index_record = out_dir, measured_dir, index_record
        self.driver_kind: str = first["driver"]
        self.number = number
        runs = [self._run(key, spec, number) for key, spec in sorted(cells.items())]
        order = np.random.RandomState([first["seed"] % 2**32, number]).permutation(len(runs))
        # What leaves no server behind comes last, so that as few runs as can be need a server of their own; and cold
        # starts, which need one anyway, after all.
        self.runs = sorted((runs[i] for i in order), key=_place)
        self.not_vouched: list[Run] = []
        """What was measured on the server that runs, since somebody looked at it."""
        self.ef_search: int | None = None
        self.open_s: list[float] = []
        self.start_s: list[float] = []
        self.once_s, self.again_s = 0.0, 0.0
        """Time that the runs took, and that they took when they were measured again."""
        self.repeated: list[str] = []
        """Why a server was started twice, of those that were."""
        index = self.spec["index"]
        lossy, scanned = is_lossy(index), over_codes(self.engine, index)
        self.context = Context(self.engine, self.vectors, lossy, scanned, reference=self.reference)
        self.gates = self.context.gates
        self.gates.append(gates.loaded(self.loaded["valid"], self.loaded["created"]))
        if "kill" in self.loaded:
            self.gates.append(gates.nothing_lost(self.loaded["kill"]))
        self.facts: dict[str, Any] = {}
        self.on_path: dict[str, Any] = {}

    def _run(self, key: str, spec: Mapping[str, Any], number: int) -> Run:
        work = spec["workload"]
        choice = choose(self.vectors, work["queries"], work["warmup"], spec["seed"])
        return Run(
            key,
            spec,
            number,
            self.out_dir / key,
            choice,
            members=requests.cut_both(len(choice.measured), len(choice.warmup), requests.nq_of(work)),
            filtering=Filtering.of(work.get("filter"), self.vectors, choice.regions, choice.queries),
        )

    # The server

    def open(self, features: Sequence[Measuring] = ()) -> None:
        """Start a server on a fresh copy of the loaded index, which the features `prepare`; it is searchable then."""
        self.fill(self.index_record.parent / "data")
        for feature in features:
            feature.prepare(self.data_dir)
        server = self.start()
        self.ef_search = None
        self.open_s.append(self.engine.open(server, self.spec["index"]))
        self.start_s.append(server.start_s)
        self.repeated += server.repeats().values()

    def close(self) -> None:
        """Stop the server, if one runs, and drop its copy of the data."""
        self.not_vouched = []
        try:
            super().close()
        finally:
            shutil.rmtree(self.data_dir.parent, ignore_errors=True)

    def leave(self) -> None:
        """Stop the server between two runs, after the clients' connections: PostgreSQL would wait for them."""
        self.driver.rest()
        self.close()

    def look_after(self) -> None:
        """What must hold of a server after its queries: every row and member is still there, and no limit was hit.

        Before it is stopped, or a run changes what is on it; of a server that no run was measured on, nothing.
        NotVouchedError where it can't be asked: what was measured on it is worth nothing then, whatever comes next.
        """
        if self.server is None or not self.not_vouched:
            return
        try:
            after = self.engine.probe(self.server)
            members, of_members = member_gates(self.server, "after the queries")
        except ServerError as error:
            raise NotVouchedError(f"asked after its queries: {error.args[0]}", error.log_tail) from None
        self.facts["members"] = members
        for run in self.not_vouched:
            rows = gates.row_count(after.rows, len(self.vectors.base), "after the queries")
            # A merge that began meanwhile has left rows without an index: they were scanned.
            built = gates.index_complete(after.index_complete, f"after the queries: {after.index_detail}")
            run.afterwards = [rows, built, *of_members]
        self.not_vouched = []

    def give_up(self, failed: Run) -> None:
        """Drop the server on which a run failed, and look after those measured on it before, if it can still be asked.

        What they were answered was judged as any run's: it counts, and says that nobody saw the server afterwards.
        """
        try:
            if self.server is not None and self.server.group.alive():
                self.look_after()
            why = "the server died"
        except NotVouchedError as error:
            why = str(error.args[0])
        for run in self.not_vouched:
            run.afterwards = [gates.not_asked(failed.workload["name"], why)]
        self.leave()

    def apply(self, ef_search: int) -> None:
        if self.ef_search != ef_search:
            self.engine.apply(self.running, ef_search)
            self.ef_search = ef_search

    def judge(self) -> None:
        """Everything that must hold of a server before it is measured, for this and every later one of the session."""
        context = self.context
        oracle = self.oracle(self.driver, self.out_dir / "oracle", self.number + 1)
        self.gates.append(gates.artifact(self.loaded["artifact"]["digest"], self.artifact["digest"]))
        self.gates += oracle.check()
        filterings = [run.filtering for run in self.runs if run.filtering is not None]
        for filters, filtering in {repr(each.asked.distinct): each for each in filterings}.items():
            found = oracle.check_filter(filtering)
            context.filtered.setdefault(filters, []).extend([] if found is None else [found])
        for nq in sorted({requests.nq_of(run.workload) for run in self.runs} - {1}):
            context.batched.setdefault(nq, []).append(oracle.check_batches(nq))
        self.ef_search = EF
        asked: dict[str, tune.HeldOut] = {}
        for run in self.runs:
            if "target_recall" in run.workload and run.tuned is None:
                run.tuned = self.tune(run, oracle, asked)
        self.ef_search = None
        for ef_search in sorted({run.ef_search for run in self.runs}):
            self.apply(ef_search)
            probe = self.engine.probe(self.running)
            of_probe = self.probe_gates(probe, ef_search, "before the queries")
            context.settings.setdefault(ef_search, []).extend(gate for gate in of_probe if gate.gate == "settings")
        self.gates += [gate for gate in of_probe if gate.gate != "settings"]
        # On a stored index, where nothing is in flight: the sum of the nodes' own counts, if they count.
        counts = [placed.rows for placed in probe.placement if placed.rows is not None]
        if counts:
            replicas = self.spec["topology"]["replicas"]
            self.gates.append(gates.copies(sum(counts), len(self.vectors.base), replicas))
        self.facts = probe_facts(probe)
        self.on_path = self.path_facts()
        self.gates += self.path_gates(self.on_path)
        for filtering in filterings:
            filtering.count(self.engine, self.running, context.counted)
        if self.reference is not None and self.reference.is_built:
            self.refer()  # what is asked later, too: it is built once

    def tune(self, run: Run, oracle: Oracle, asked: dict[str, tune.HeldOut]) -> tune.Tuned:
        """The effort that reaches the cell's target recall, found in its first run on this build of the index.

        `asked` holds, by question, what other cells asked this server.
        """

        def find() -> tune.Tuned:
            work, seed = run.workload, run.spec["seed"]
            question = tune.HeldOut.question(work, seed)
            if question not in asked:
                asked[question] = tune.HeldOut(oracle, self.place.vectors.parent / "base.npy", work, seed)
            index, offers = self.spec["index"], engines.offers_of(self.spec["system"]["engine"])
            efforts = least_effort(index, work["k"]), offers.most_effort(index)
            return tune.tune(asked[question], work["target_recall"], *efforts)

        return tune.once(self.tuning_path(run), records.sha256_file(self.index_record), find)

    def tuning_path(self, run: Run) -> Path:
        """Where the effort stays that was found for a cell's target recall."""
        return self.measured_dir / run.key / "tuning.json"

    # Measuring

    def prepare(self) -> None:
        """Encode all requests of all runs, before any clock."""
        for run in self.runs:
            self.encode(run)

    def encode(self, run: Run) -> None:
        """Encode the requests of a run, for the server that runs: some have to be told of statements first."""
        queries = np.concatenate([np.asarray(self.vectors.queries[run.choice.measured]), run.choice.warmup])
        asked = (run.workload, run.ef_search, run.filtering, run.members)
        started = time.perf_counter()
        encoded = requests.requests(self.engine, self.running, queries, *asked)
        run.encode_us = 1e6 * (time.perf_counter() - started) / len(encoded)
        protocol.write_requests(run.folder, encoded)

    def measure(self, run: Run) -> None:
        """One run: one job of the driver, or as many as a feature of its workload takes."""
        self.apply(run.ef_search)
        server = self.running
        before, waited = server.counters(), self.waited()
        for feature in run.features:
            feature.before(self, server)
        if not any(feature.run_jobs(partial(self.drive, run), self.engine) for feature in run.features):
            self.drive(run, None)
        run.disturbance = self.disturbance_of(run, waited)
        if not run.members_may_fail:
            run.counters = counted_since(before, server.counters())
        if run.spends_server:
            self.leave()  # no other run may get its data and members
        else:
            self.not_vouched.append(run)

    def waited(self) -> dict[str, disturbance.Delay | None]:
        """What the threads of server and client ran, and waited for a core, so far; and the server under its quotas."""
        found = {name: disturbance.run_delay(self.sampled.pids(name)) for name in ("server", "client")}
        limited = self.server is not None and bool({"limits", "role_limits"} & self.spec["topology"].keys())
        used = [facts.get("usage", {}) for facts in self.running.members().values()] if limited else []
        return {**found, "quota": (0.0, sum(usage.get("throttled_s", 0.0) for usage in used))}

    def disturbance_of(self, run: Run, before: Mapping[str, disturbance.Delay | None]) -> dict[str, Any]:
        """What disturbed the part of a run that its numbers are of; `before` the run threads had `waited` so."""
        after = self.waited()
        used = by_group(judge.near(self.sampled.table(), run.window_s, run.number), {"query": [run.counted_s]})
        quota_s = (after["quota"] or (0, 0))[1] - (before["quota"] or (0, 0))[1]
        facts = {
            **disturbance.of_phase(used, "query"),
            **disturbance.of_client(
                [protocol.open_outcome(job.folder).facts for job in run.counted], not latency.closed(run.workload)
            ),
            "server_delay_share": disturbance.delay_share(before["server"], after["server"], quota_s),
            "client_delay_share": disturbance.delay_share(before["client"], after["client"]),
            "repeats": run.repeats,
            "discarded": run.discarded,
            "cores": len(os.sched_getaffinity(0)),
        }
        return disturbance.judged(facts, self.place.disturbance.limits)

    def drive(self, run: Run, rate_per_s: float | None) -> Job:
        """One job: an open loop at this rate, or a closed loop."""
        number, server = len(run.jobs), self.running
        whole = run.folder / f"job{number}"
        beside = [job for feature in run.features for job in feature.beside(self, server, whole)]
        folder = whole / _SEARCH if beside else whole
        self.write_job(run, folder, number, rate_per_s)
        if beside:
            protocol.write_together(whole, [_SEARCH, *beside])
        checks = [check for feature in run.features if (check := feature.check(server)) is not None]
        hosts = run.workload.get("driver_hosts", ())
        check = checks[0] if checks else server.check_alive

        def ready() -> None:
            self.sampled.edge()
            for feature in run.features:
                feature.ready()

        try:
            done = self.driver.run(whole, check, hosts, ready=ready)
        except BaseException:
            for feature in run.features:
                feature.abandon()
            raise
        self.sampled.edge()
        job = Job(number, folder, (done["zero_ns"] / 1e9, done["end_ns"] / 1e9), rate_per_s)
        run.jobs.append(job)
        if not run.members_may_fail:
            server.check_members()
        for feature in run.features:
            feature.after(self, server, done["zero_ns"] / 1e9)
        return job

    def write_job(self, run: Run, folder: Path, number: int, rate_per_s: float | None) -> None:
        work, seed = run.workload, run.spec["seed"]
        measured, warmup = run.requests
        timing: dict[str, Any] = {"duration_s": work.get("duration_s")}
        if rate_per_s is not None:
            when = (rate_per_s, work["duration_s"], work["arrivals"])
            timing = {"due_ns": requests.arrivals(*when, seed, run.number, number)}
        protocol.write_job(
            folder,
            requests=run.folder,
            transport=requests.transport(self.engine, self.running, work, run.ef_search, run.filtering),
            schedule=requests.schedule(work, measured, seed, run.number, shared=rate_per_s is not None),
            prime=requests.prime(measured, warmup, work["clients"]),
            timeout_s=work["timeout_s"],
            answer_bytes_max=protocol.bytes_max(work["k"] * work.get("nq", 1)),
            **timing,
        )

    def measure_all(self) -> None:
        """All runs; one whose server died is given up, one that was disturbed is measured again after the others."""
        name = f"query {self.spec['system']['name']} · {self.spec['dataset']['name']}"
        with (
            self.sampler(self.driver.pids, self.driver.libraries) as self.sampled,
            Progress(name, len(self.runs), "run") as progress,
        ):
            waiting = list(self.runs)
            while waiting:
                run = waiting.pop(0)
                if run.disturbance and not self.begin_again(run):
                    progress.add(1)
                    continue
                began = time.monotonic()
                try:
                    self.measure_on_server(run)
                except NotVouchedError:
                    raise  # of earlier runs: it is no failure of this one
                except ServerError as error:
                    run.failure = self._failure(error)
                    self.give_up(run)
                took_s = time.monotonic() - began
                if run.repeats:
                    self.again_s += took_s
                else:
                    self.once_s += took_s
                if run.failure is None and self.may_repeat(run):
                    waiting = sorted([*waiting, run], key=_place)
                else:
                    progress.add(1)

    def may_repeat(self, run: Run) -> bool:
        """Whether a run was disturbed, and has not been measured again so often as is allowed."""
        return bool(run.disturbance["above"]) and run.repeats < self.place.disturbance.repeats

    def begin_again(self, run: Run) -> bool:
        """Forget a disturbed run, to measure it again; False, and its measurement counts, once that took too long."""
        limit, name = self.place.disturbance.repeats_percent, run.workload["name"]
        above = run.disturbance["above"]
        if self.again_s >= limit / 100 * self.once_s:
            why = f"runs measured again took {self.again_s:.0f} s, {limit:g} % of {self.once_s:.0f} s is the limit"
            print(f"{name}: is not measured again, though disturbed: {why}", file=sys.stderr, flush=True)
            return False
        run.again()
        self.ledger.add("repeat", query=run.key, round=run.number, above=above, discarded=run.discarded[-1])
        print(f"{name}: is measured again: {'; '.join(above)}", file=sys.stderr, flush=True)
        return True

    def measure_on_server(self, run: Run) -> None:
        """Measure a run on the server that runs, or on a fresh one, which is judged as the first was.

        One that needs its own gets one that has answered nothing but the search that showed it searchable, and that is
        judged afterwards.
        """
        if run.own_server:
            self.look_after()
            self.leave()
            for _ in range(_STARTS):
                self.open(run.features)
                if not self.running.repeats():
                    break
                self.close()  # the start before it has read the data: this one was not the first to
            else:
                raise ServerError(f"its server had to be started twice, {_STARTS} times in a row")
            for feature in run.features:
                feature.opened(self.start_s[-1], self.open_s[-1])
            self.encode(run)
            self.measure(run)
            self.judge()
            return
        if run.spends_server:
            self.look_after()
        if self.server is None:
            self.open()
            self.judge()
            self.prepare()
        self.measure(run)

    def _failure(self, error: ServerError) -> str:
        """Why a run was given up, with the end of the server's log if it is the server that is gone."""
        if self.server is not None and not error.log_tail:
            try:
                self.server.check_alive()
            except ServerError as dead:
                return str(dead)
        return str(error)

    def find_ceilings(self) -> None:
        """What the client could have done at most in each run; once the server is stopped."""
        with Driver(self.driver_kind) as driver:
            for run in self.runs:
                # What other machines could have done at most can't be found by asking a server here of clients here.
                if run.failure is None and not run.workload.get("driver_hosts"):
                    folders = [job.folder for job in run.jobs]
                    try:
                        run.ceiling = ceiling.of_cell(run.folder, folders, self.spec["platform"], driver)
                    except UserError as error:  # what was measured is measured: only this is not known of it
                        print(f"{run.workload['name']}: no ceiling: {error}", file=sys.stderr, flush=True)

    def refer(self) -> None:
        """Have the reference answer what was asked, while nothing is measured; it is looked up later."""
        for run in self.runs:
            if run.failure is None:
                judge.of_reference(run, self.context)
        if self.reference is not None:
            self.reference.drop()

    def finish(self, key: str, load_record: Path, load_before: float, lock: Lock) -> None:
        self.gates += [gates.alone(lock.waited_s, lock.held()), gates.on_platform(self.spec["platform"])]
        context = self.context
        context.resources = self.sampled.table()
        context.inputs = {"load": load_record, "index": self.index_record, "vectors": self.place.vectors}
        context.facts = {
            "load_key": str(self.loaded["key"]),
            "server": {
                **self.facts,
                "network": namespaces.network(),
                **({"starts_repeated": self.repeated} if self.repeated else {}),
                "start_s": self.start_s,
                "open_s": self.open_s,
                "up_s": self.up_s,
            },
            "artifact": self.artifact_facts(),
            "platform": platform.afterwards({**self.machine, "load_average_before": round(load_before, 2)}),
            "clients": client_versions(),
            **self.on_path,
            "session": {"key": key, "cells": len(self.runs), "waited_s": lock.waited_s},
        }

    def keep_all(self) -> dict[str, str]:
        """Keep every run that was measured; returns "ok" or why it failed, by query key."""
        return {run.key: self.keep(run) for run in self.runs}

    def keep(self, run: Run) -> str:
        """Judge and keep a run, if it was measured; returns "ok" or why it failed."""
        if run.failure is None:
            try:
                judge.judge(run, self.context, self.measured_dir)
            except UserError as error:
                run.failure = str(error)
        return run.failure or "ok"


def run(
    key: str,
    number: int,
    cells: Mapping[str, Mapping[str, Any]],
    load_record: Path,
    index_record: Path,
    place: Place,
    out_dir: Path,
    measured_dir: Path = STAGES["run"].folder,
) -> dict[str, str]:
    """Measure run `number` of the cells (query key → spec), all of one load.

    Leaves `measured_dir`/KEY/run-N with record and samples for each, and writes `session.json` last: for each cell,
    "ok" or why its run failed; returns that. A server that can't be started at all is a ServerError; one that dies
    while a run is measured fails that run.
    """
    records.clear(out_dir)
    out_dir.mkdir(parents=True)
    build.programs()  # before a server runs: a build would disturb it
    first = next(iter(cells.values()))
    ledger = Ledger.of(first, first["load"])
    with (
        platform.alone() as lock,
        closing(ServerSession(number, cells, index_record, place, out_dir, measured_dir)) as session,
        ledger.attempt(stage="session", session=key, round=number, queries=sorted(cells)) as ending,
    ):
        print(
            f"query {session.spec['system']['name']} · {session.spec['dataset']['name']}: "
            f"starting the server on the stored index, run {number + 1} of {len(session.runs)} cells",
            file=sys.stderr,
            flush=True,
        )
        session.ledger = ledger
        session.open()
        with Driver(session.driver_kind, out_dir.resolve(), session.held()) as session.driver:
            session.judge()
            session.prepare()
            load_before = os.getloadavg()[0]
            session.measure_all()
        session.look_after()
        session.close()
        session.find_ceilings()
        session.refer()
        session.finish(key, load_record, load_before, lock)
        outcome = session.keep_all()
        failed = {query: redact.short(state) for query, state in outcome.items() if state != "ok"}
        ending |= {"failed": failed, "restarts": session.repeated}
    shutil.rmtree(out_dir / "oracle", ignore_errors=True)
    records.write_json(out_dir / "session.json", {"session": key, "round": number, "cells": redact.body(outcome)})
    return outcome
