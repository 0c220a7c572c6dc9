"""The query session: one server on a copy of one loaded index, measuring some cells with their runs interleaved.

Interleaved, because the machine drifts: run 1 of every workload comes before run 2 of any, in a seeded order, so that
a slow minute falls on all workloads alike. On a copy, because a server changes its files while it runs, and a killed
one may damage them: the loaded index stays what the load stage left, and every session starts from the same bytes.

A server that dies takes only the workload that was running with it: the others go on with a fresh server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry import engines
from anncestry.datasets.distance import pair_distances
from anncestry.datasets.metadata import matches
from anncestry.drive import protocol
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, Probe, Server
from anncestry.errors import DataError, ServerError, UserError
from anncestry.measure import answers as decoding
from anncestry.measure import oracle
from anncestry.measure.load import Place, artifact_facts, member_gates, probe_facts, probe_gates
from anncestry.measure.vectors import Choice, Vectors, choose, open_vectors
from anncestry.metrics import latency
from anncestry.metrics.resources import Sampler, by_group
from anncestry.progress import Progress
from anncestry.provenance import gates, platform, records
from anncestry.provenance.code import package_versions
from anncestry.provenance.gates import Gate

CLIENT = "python-grpc"
_PRIME_MIN = 5
_CHECKED_QUERIES = 200


@dataclass
class Measured:
    """One cell while it is measured."""

    key: str
    spec: Mapping[str, Any]
    folder: Path
    choice: Choice
    runs: dict[int, tuple[float, float]] = field(default_factory=dict)
    counters: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)
    """By run, member and name: what the members counted meanwhile, the warm-up included."""
    failure: str | None = None

    @property
    def workload(self) -> Mapping[str, Any]:
        """The workload part of the spec."""
        return self.spec["workload"]  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """For people."""
        return str(self.workload["name"])

    def run_folder(self, run: int) -> Path:
        """The job folder of one run."""
        return self.folder / f"run{run}"


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with its metadata, sharing blocks where the file system can (reflink)."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", str(source), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise DataError(f"copying {source} to {target} failed: {done.stderr.strip()}")


def placement_gates(spec: Mapping[str, Any], probe: Probe, vectors: Vectors) -> list[Gate]:
    """On a stored index, where nothing is in flight: what nodes count adds up, if they do count."""
    counts = [placed.rows for placed in probe.placement if placed.rows is not None]
    if not counts:
        return []
    return [gates.copies(sum(counts), len(vectors.base), spec["topology"]["replicas"])]


def counted_since(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Differences of running totals, by member and name."""
    return {
        member: {name: value - before.get(member, {}).get(name, 0.0) for name, value in totals.items()}
        for member, totals in after.items()
    }


def plan_runs(cells: Sequence[Measured], seed: int) -> list[tuple[Measured, int]]:
    """Every run of every cell: round by round, each round in a seeded order of its own."""
    random = np.random.RandomState(seed)
    plan: list[tuple[Measured, int]] = []
    for number in range(max(cell.workload["runs"] for cell in cells)):
        due = [cell for cell in cells if cell.workload["runs"] > number]
        plan += [(due[i], number) for i in random.permutation(len(due))]
    return plan


def schedule(
    workload: Mapping[str, Any], measured: int, warmup: int, seed: int, run: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each client sends, and what it primes with: indices (clients, length) into the requests.

    Requests 0 … measured-1 are the measured queries, those after them the warm-up. Every run has a seeded order of its
    own. By count, the clients share the queries between them; by time, each goes round all of them from its own
    seeded offset.
    """
    clients = workload["clients"]
    random = np.random.RandomState([seed % 2**32, run])
    order = random.permutation(measured)
    if workload.get("duration_s") is None:
        each = -(-measured // clients)
        rows = np.resize(order, (clients, each))
    else:
        rows = np.stack([np.roll(order, -int(random.randint(measured))) for _ in range(clients)])
    share = max(-(-warmup // clients), min(_PRIME_MIN, warmup))
    prime = measured + np.resize(np.arange(warmup), (clients, share)) if warmup else np.empty((clients, 0), np.int64)
    return rows, prime


class _Session:
    """One session; `run` below is its story."""

    def __init__(
        self,
        key: str,
        cells: Mapping[str, Mapping[str, Any]],
        load_record: Path,
        index_record: Path,
        place: Place,
        out_dir: Path,
    ) -> None:
        self.key, self.place, self.out_dir = key, place, out_dir
        self.load_record, self.index_record = load_record, index_record
        first = next(iter(cells.values()))
        self.loaded = records.read_record(index_record, stage="load", key=first["load"])
        self.spec: Mapping[str, Any] = self.loaded["spec"]
        self.seed: int = first["seed"]
        self.engine: Engine = engines.get(self.spec["system"]["engine"])
        self.vectors: Vectors = open_vectors(place.vectors, self.spec["vectors"])
        self.built = records.read_record(place.artifact, stage="artifact", key=self.spec["artifact"])
        records.verify_outputs(place.artifact, self.built)
        self.cells = [
            Measured(
                query,
                spec,
                out_dir / query,
                choose(self.vectors, spec["workload"]["queries"], spec["workload"]["warmup"], spec["seed"]),
            )
            for query, spec in cells.items()
        ]
        self.server: Server | None = None
        self.ef_search: int | None = None
        self.open_s: list[float] = []
        self.start_s: list[float] = []
        self.up_from, self.up_s, self.waited_s = 0.0, 0.0, 0.0
        self.gates: list[Gate] = [gates.loaded(self.loaded["valid"], self.loaded["created"])]
        self.settings: dict[int, list[Gate]] = {}
        self.counted: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.members: dict[str, dict[str, Any]] = {}

    # The server

    def start(self) -> Server:
        """A server on a fresh copy of the loaded index, searchable."""
        data_dir = (self.out_dir / "serve" / "data").resolve()
        copy_tree(self.index_record.parent / "data", data_dir)
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
        return self.server

    def stop(self) -> None:
        """Stop the server, if one runs, and drop its copy of the data."""
        if self.server is not None:
            self.server.stop()
            self.server = None
            self.up_s += time.monotonic() - self.up_from
        shutil.rmtree(self.out_dir / "serve", ignore_errors=True)

    def apply(self, ef_search: int) -> None:
        """Set the search effort, where it is not set already."""
        assert self.server is not None
        if self.ef_search != ef_search:
            self.engine.apply(self.server, ef_search)
            self.ef_search = ef_search

    def judge(self, server: Server, driver: Driver) -> None:
        """Everything that must hold of a server before it is measured, for this and every later one of the session."""
        self.gates.append(gates.artifact(self.loaded["artifact"]["digest"], self.built["digest"]))
        self.gates += oracle.check(self.engine, server, driver, self.out_dir / "oracle", self.vectors)
        self.ef_search = oracle.EF
        for ef_search in sorted({cell.workload["ef_search"] for cell in self.cells}):
            self.apply(ef_search)
            probe = self.engine.probe(server)
            said = probe_gates(self.engine, probe, self.spec, self.vectors, ef_search, "before the queries")
            self.settings.setdefault(ef_search, []).extend(gate for gate in said if gate.gate == "settings")
        self.gates += [gate for gate in said if gate.gate != "settings"]
        self.gates += placement_gates(self.spec, probe, self.vectors)
        self.facts = probe_facts(probe)
        for cell in self.cells:
            wanted = cell.workload.get("filter")
            if wanted is not None and repr(wanted) not in self.counted:
                self.counted[repr(wanted)] = self.engine.count(server, wanted)

    # Measuring

    def prepare(self, server: Server) -> None:
        """Encode all requests of all cells, before any clock."""
        for cell in self.cells:
            queries = np.concatenate([np.asarray(self.vectors.queries[cell.choice.measured]), cell.choice.warmup])
            work = cell.workload
            requests = self.engine.encode(server, queries, work["k"], work["ef_search"], work.get("filter"))
            protocol.write_requests(cell.folder, requests)

    def measure(self, cell: Measured, number: int, driver: Driver, sampler: Sampler, server: Server) -> None:
        """One run of one cell."""
        work = cell.workload
        self.apply(work["ef_search"])
        rows, prime = schedule(work, len(cell.choice.measured), len(cell.choice.warmup), cell.spec["seed"], number)
        folder = cell.run_folder(number)
        protocol.write_job(
            folder,
            requests=cell.folder,
            transport=self.engine.transport(server),
            schedule=rows,
            prime=prime,
            timeout_s=work["timeout_s"],
            duration_s=work.get("duration_s"),
        )
        before = server.counters()
        done = driver.run(folder, check=server.check_alive)
        sampler.sample()
        cell.runs[number] = (done["zero_ns"] / 1e9, done["end_ns"] / 1e9)
        server.check_members()
        cell.counters[number] = counted_since(before, server.counters())

    def measure_all(self, driver: Driver) -> Sampler:
        """All runs, interleaved; a cell whose server died is given up, the others go on."""
        plan = plan_runs(self.cells, self.seed)
        name = f"query {self.spec['system']['name']} · {self.spec['dataset']['name']}"
        pids = {"server": lambda: self.server.pids() if self.server else [], "client": driver.pids}
        with Sampler(pids) as sampler, Progress(name, len(plan), "run") as progress:
            for cell, number in plan:
                if cell.failure is None:
                    try:
                        server = self.server or self.start_again(driver)
                        self.measure(cell, number, driver, sampler, server)
                    except ServerError as error:
                        cell.failure = self._failure(error)
                        self.stop()
                progress.add(1)
        return sampler

    def _failure(self, error: ServerError) -> str:
        """Why a cell was given up, with the end of the server's log if it is the server that is gone."""
        if self.server is not None and not error.log_tail:
            try:
                self.server.check_alive()
            except ServerError as dead:
                return str(dead)
        return str(error)

    def start_again(self, driver: Driver) -> Server:
        """A fresh server for the cells that are left, judged as the first was, its requests encoded anew."""
        server = self.start()
        self.judge(server, driver)
        self.prepare(server)
        return server

    # Afterwards

    def keep(self, cell: Measured, table: pa.Table, shared: Mapping[str, Any]) -> None:
        """Decode the cell's responses, judge them, and write samples and record."""
        work = cell.workload
        runs: list[latency.Run] = []
        tables: list[pa.Table] = []
        k, wrong, good, sent, violated, returned, primed = work["k"], 0, 0, 0, 0, 0, 0
        worst, checked = 0.0, 0
        errors: dict[str, int] = {}
        passes: NDArray[np.bool_] | None = None
        selectivity, matching = None, None
        if work.get("filter") is not None:
            passes = matches(work["filter"], np.asarray(self.vectors.category), np.asarray(self.vectors.price))
            matching = int(passes.sum())
            counted = self.counted[repr(work["filter"])]
            selectivity = counted / len(passes)
        clients: list[dict[str, Any]] = []
        for number in sorted(cell.runs):
            outcome = protocol.read_outcome(cell.run_folder(number))
            samples = outcome.samples
            primed += sum(client["prime_errors"] for client in outcome.facts["clients"])
            clients += outcome.facts["clients"]
            answered = decoding.decode(self.engine, outcome.responses, samples["status"], k, self.vectors.metric)
            for found in (answered.errors, *(client["errors"] for client in outcome.facts["clients"])):
                for text, count in found.items():
                    errors[text] = errors.get(text, 0) + count
            wanted = k if matching is None else min(k, matching)
            wrong += decoding.wrong_counts(answered, len(self.vectors.base), wanted)
            good += int((answered.status == protocol.OK).sum())
            sent += len(samples)
            if passes is not None:
                bad, seen = decoding.violations(answered, passes)
                violated, returned = violated + bad, returned + seen
            rows = cell.choice.measured[samples["query"]]
            error, pairs = self._distance_error(rows, answered)
            worst, checked = max(worst, error), checked + pairs
            runs.append(latency.Run(samples["due_ns"], samples["latency_ns"], answered.status, work.get("duration_s")))
            tables.append(_samples_table(number, rows, samples, answered))
        windows = [cell.runs[number] for number in sorted(cell.runs)]
        nearby = _within(table, windows)
        used = by_group(nearby, {"query": windows})
        judged = [
            *self.gates,
            *self.settings[work["ef_search"]],
            gates.alone(self.waited_s, used["other"]["query"]["cpu_avg_pct"]),
            gates.answered(good, sent),
            gates.result_count(wrong, good, k, matching),
            gates.distances(worst, checked),
            gates.primed(primed),
        ]
        if selectivity is not None and matching is not None:
            judged.append(gates.selectivity(counted, matching, len(self.vectors.base)))
            judged.append(gates.filtered(violated, returned, selectivity))
        samples_path, resources_path = cell.folder / "samples.parquet", cell.folder / "resources.parquet"
        parquet.write_table(pa.concat_tables(tables), samples_path, compression="zstd")
        parquet.write_table(nearby, resources_path, compression="zstd")
        records.write_record(
            cell.folder / "record.json",
            stage="query",
            key=cell.key,
            spec=cell.spec,
            body={
                **gates.verdict(judged),
                "load_key": self.spec_key,
                "summary": latency.summarise(runs),
                "failures": dict(sorted(errors.items(), key=lambda item: -item[1])[:20]),
                "selectivity": selectivity,
                "resources": used,
                "windows_s": windows,
                "members": [cell.counters.get(number, {}) for number in sorted(cell.runs)],
                "client": {
                    "driver": CLIENT,
                    "warmup_source": cell.choice.warmup_source,
                    "cpu_us_per_query": 1e6 * sum(c["cpu_s"] for c in clients) / max(1, sent),
                    "rss_peak_mib": max(c["rss_peak_mib"] for c in clients),
                },
                **shared,
            },
            inputs={"load": self.load_record, "vectors": self.place.vectors},
            outputs={"samples": samples_path, "resources": resources_path},
        )
        for number in cell.runs:
            shutil.rmtree(cell.run_folder(number), ignore_errors=True)
        for leftover in ("requests.bin", "requests.idx"):
            (cell.folder / leftover).unlink(missing_ok=True)

    @property
    def spec_key(self) -> str:
        """Key of the load."""
        return str(self.loaded["key"])

    def _distance_error(self, rows: NDArray[np.int64], answered: decoding.Answers) -> tuple[float, int]:
        """Largest relative difference of reported from exact distances, on up to 200 queries; and of how many."""
        chosen = np.flatnonzero(answered.status == protocol.OK)
        _, first = np.unique(rows[chosen], return_index=True)
        chosen = chosen[first][:_CHECKED_QUERIES]
        ids = answered.ids[chosen]
        known = (ids >= 0) & (ids < len(self.vectors.base))
        query_rows = np.repeat(rows[chosen], ids.shape[1]).reshape(ids.shape)[known]
        exact = pair_distances(self.vectors.base, self.vectors.queries, ids[known], query_rows, self.vectors.metric)
        reported = answered.distances[chosen][known]
        if not len(exact):
            return 0.0, 0
        if not np.isfinite(reported).all():
            return float("inf"), len(exact)
        # Cosine distances cancel near 0: their error is absolute, of the order of the terms, which are about 1.
        scale = np.maximum(np.abs(exact), 1.0 if self.vectors.metric == "cosine" else 1e-9)
        return float((np.abs(reported - exact) / scale).max()), len(exact)


def _samples_table(run: int, rows: NDArray[np.int64], samples: NDArray[Any], answered: decoding.Answers) -> pa.Table:
    """Raw per-query data of a run; `query` is a row of the dataset's queries, `status` 0 ok, 1 error, 2 timeout."""
    kept = answered.ids != -1
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    return pa.table(
        {
            "run": pa.array(np.full(len(rows), run, np.uint8)),
            "client": pa.array(samples["client"].astype(np.uint16)),
            "query": pa.array(rows.astype(np.uint32)),
            "due_ns": pa.array(samples["due_ns"].astype(np.int64)),
            "start_ns": pa.array(samples["start_ns"].astype(np.int64)),
            "latency_ns": pa.array(samples["latency_ns"].astype(np.int64)),
            "status": pa.array(answered.status),
            "ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(answered.ids[kept])),
            "distances": pa.ListArray.from_arrays(
                pa.array(offsets), pa.array(answered.distances[kept].astype(np.float32))
            ),
        }
    )


def _within(table: pa.Table, windows: Sequence[tuple[float, float]]) -> pa.Table:
    """The resource samples in or next to the windows."""
    at = table["at_s"].to_numpy()
    keep = np.zeros(len(at), dtype=bool)
    for start, end in windows:
        keep |= (at >= start - 0.6) & (at <= end + 0.6)
    return table.filter(pa.array(keep))


def run(
    key: str,
    cells: Mapping[str, Mapping[str, Any]],
    load_record: Path,
    index_record: Path,
    place: Place,
    out_dir: Path,
    measured_dir: Path = Path("scratch/measured"),
) -> dict[str, str]:
    """Measure the cells (query key → spec), all of one load; leaves record and samples in `measured_dir`/KEY for each.

    Writes `session.json` last: for each cell, "ok" or why it failed; returns that. A server that can't be started at
    all is a ServerError; one that dies while a cell is measured fails that cell.
    """
    shutil.rmtree(out_dir, ignore_errors=True)
    out_dir.mkdir(parents=True)
    with platform.alone() as waited_s:
        session = _Session(key, cells, load_record, index_record, place, out_dir)
        machine = platform.check(session.spec["platform"], place.platform)
        print(
            f"query {session.spec['system']['name']} · {session.spec['dataset']['name']}: "
            f"starting the server on the stored index, {len(session.cells)} cells",
            file=sys.stderr,
            flush=True,
        )
        try:
            server = session.start()
            with Driver() as driver:
                session.judge(server, driver)
                session.prepare(server)
                load_before = os.getloadavg()[0]
                sampler = session.measure_all(driver)
            if session.server is not None:
                after = session.engine.probe(session.server)
                session.gates.append(gates.row_count(after.rows, len(session.vectors.base), "after the queries"))
                session.members, of_members = member_gates(session.server, "after the queries")
                session.gates += of_members
        finally:
            session.stop()
        session.waited_s = waited_s
        session.gates.append(gates.on_platform(session.spec["platform"]))
    table = sampler.table()
    shared = {
        "server": {
            **session.facts,
            "members": session.members,
            "entry": session.spec["topology"].get("entry", "first"),
            "start_s": session.start_s,
            "open_s": session.open_s,
            "up_s": session.up_s,
        },
        "artifact": artifact_facts(session.built),
        "platform": {**machine, "load_average_before": round(load_before, 2)},
        "clients": package_versions("grpcio", "protobuf", "pymilvus", "weaviate-client", "numpy"),
        "session": {"key": key, "cells": len(session.cells)},
    }
    outcome: dict[str, str] = {}
    for cell in session.cells:
        if cell.failure is None:
            try:
                session.keep(cell, table, shared)
            except UserError as error:
                cell.failure = str(error)
            else:
                # Kept apart from the session: a cell that is measured stays so, whatever becomes of the others.
                kept = measured_dir / cell.key
                shutil.rmtree(kept, ignore_errors=True)
                kept.parent.mkdir(parents=True, exist_ok=True)
                os.replace(cell.folder, kept)
        outcome[cell.key] = cell.failure or "ok"
    shutil.rmtree(out_dir / "oracle", ignore_errors=True)
    records.write_json(out_dir / "session.json", {"session": key, "cells": outcome})
    return outcome
