"""The load stage: start on a clean folder, insert, flush, index, make ready; check; stop; weigh what is on disk."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from anncestry import durable, engines
from anncestry.drive import build
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, LoadResult, Probe, Server
from anncestry.errors import ServerError
from anncestry.measure import killed, oracle
from anncestry.measure.storage_path import StoragePath
from anncestry.measure.vectors import Vectors, open_vectors
from anncestry.metrics.resources import Sampler, by_group
from anncestry.metrics.storage import allocated_mib
from anncestry.progress import Progress
from anncestry.provenance import gates, platform, records
from anncestry.provenance.code import package_versions
from anncestry.provenance.gates import Gate
from anncestry.runtimes import artifacts, namespaces

CLIENT_PACKAGES = ("pymilvus", "weaviate-client", "grpcio", "protobuf", "numpy")


@dataclass(frozen=True)
class Place:
    """Where a stage finds what it needs: records of the vectors and the artifact, the declared platform and storage."""

    vectors: Path
    artifact: Path
    platform: Mapping[str, Any]
    first_port: int | None = None
    storage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def probe_gates(
    engine: Engine, probe: Probe, spec: Mapping[str, Any], vectors: Vectors, ef_search: int | None, when: str
) -> list[Gate]:
    """What the server says of itself, held against what was declared."""
    asked = engine.asked_settings(spec["system"], spec["index"], vectors.metric, ef_search)
    holders = Counter(placed.node for placed in probe.placement)
    return [
        gates.row_count(probe.rows, len(vectors.base), when),
        gates.index_complete(probe.index_complete, probe.index_detail),
        gates.settings(asked, probe.settings),
        gates.topology(spec["topology"], probe.nodes, probe.shards, probe.replicas, holders),
        gates.version(spec["system"]["version"], probe.version),
    ]


def probe_facts(probe: Probe) -> dict[str, Any]:
    """A probe as plain data for a record."""
    return {
        "version": probe.version,
        "rows": probe.rows,
        "index": probe.index_detail,
        "settings": probe.settings,
        "nodes": probe.nodes,
        "shards": probe.shards,
        "replicas": probe.replicas,
        "placement": [asdict(placed) for placed in probe.placement],
    }


def member_gates(server: Server, when: str) -> tuple[dict[str, dict[str, Any]], list[Gate]]:
    """Facts of all members now, and what must hold of them."""
    facts = server.members()
    problem: str | None = None
    try:
        server.check_members()
    except ServerError as error:
        problem = str(error.args[0])
    limited = gates.limits(facts)
    return facts, [gates.members(facts, problem, when), *([limited] if limited else [])]


def copies_gates(spec: Mapping[str, Any], probe: Probe, vectors: Vectors) -> list[Gate]:
    """On a stored index, where nothing is in flight: what the nodes count adds up, if they do count."""
    counts = [placed.rows for placed in probe.placement if placed.rows is not None]
    return [gates.copies(sum(counts), len(vectors.base), spec["topology"]["replicas"])] if counts else []


def counted_since(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Differences of running totals, by member and name."""
    return {
        member: {name: value - before.get(member, {}).get(name, 0.0) for name, value in totals.items()}
        for member, totals in after.items()
    }


def artifact_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """What was run, as later records quote it."""
    return {
        "digest": record["digest"],
        "artifact": record["spec"]["artifact"],
        "version": record["spec"]["version"],
        **({"parts": record["spec"]["parts"]} if "parts" in record["spec"] else {}),
    }


def run(spec: Mapping[str, Any], key: str, place: Place, out_dir: Path) -> dict[str, Any]:
    """Load the vectors of `spec` into its system and leave the stopped system's data in `out_dir/data`.

    Raises ServerError if the server does not come up or dies, ConfigError on another machine than declared.
    A load that is not what it should be is not an error: its record says so in its gates, and is invalid.
    """
    engine = engines.get(spec["system"]["engine"])
    build.programs()  # made now, if they have to be: not beside a server
    path = StoragePath.of(spec, place.storage)
    with platform.alone() as waited_s, ExitStack() as tidying:
        machine = platform.check(spec["platform"], place.platform)
        vectors = open_vectors(place.vectors, spec["vectors"])
        built = artifacts.opened(place.artifact, spec["artifact"])
        records.clear(out_dir)
        data_dir = (out_dir / "data").resolve()
        data_dir.mkdir(parents=True)
        label = f"load {spec['system']['name']} ← {spec['dataset']['name']}"
        print(f"{label}: starting the server", file=sys.stderr, flush=True)
        placed = None if path is None else path.put(data_dir)
        if placed is not None:
            tidying.callback(placed.remove)
        up_from = time.monotonic()
        server = engine.start(
            place.artifact.parent.resolve(), data_dir, spec["system"], spec["topology"], first_port=place.first_port
        )
        charged = {"server": server.charged}
        try:
            with (
                Sampler(
                    {"server": server.pids, "client": lambda: [os.getpid()]},
                    charged=charged,
                    device=path.totals() if path else None,
                    members={"server": server.pids_by_member},
                ) as sampler,
                Progress(label, len(vectors.base), "row") as progress,
            ):
                result = engine.load(server, vectors, spec["index"], spec["load"], progress)
            checked: list[Gate] = []
            kill: dict[str, Any] = {}
            with Driver() as driver:
                if "kill" in spec["load"]:
                    kill = killed.search(engine, server, driver, out_dir / "oracle", vectors, result)
                else:
                    checked = oracle.check(
                        engine, server, driver, out_dir / "oracle", vectors, oracle.over_codes(engine, spec["index"])
                    )
            probe = engine.probe(server)
            if kill:
                kill |= killed.by_count(kill["acknowledged"], probe.rows)
            judged = [
                gates.inserts(
                    result.rows_sent,
                    result.rows_acknowledged,
                    result.insert_errors,
                    len(vectors.base),
                    result.first_error,
                ),
                *(
                    gate
                    for gate in probe_gates(engine, probe, spec, vectors, oracle.EF, "after the load")
                    if not kill or gate.gate != gates.ROW_COUNT  # what is lost is what is asked
                ),
                *checked,
            ]
            server.check_alive()
            members, of_members = member_gates(server, "after the load")
            judged += of_members
            on_path = {} if path is None or placed is None else {"storage_path": path.record(placed, server)}
        finally:
            ending = server.stop()
        if path is not None and placed is not None:
            judged.append(path.gate(engine, placed, on_path["storage_path"]["mapped_mib"]))
            placed.take_back()
        up_s = time.monotonic() - up_from
        machine = platform.afterwards(machine)
        shutil.rmtree(out_dir / "oracle", ignore_errors=True)
        resources_used = _resources(sampler.table(), result)
        others_pct = resources_used["other"]["load"]["cpu_avg_pct"]
        judged += [
            gates.stopped(ending.clean, ending.signal, ending.seconds),
            gates.alone(waited_s, others_pct),
            gates.on_platform(spec["platform"]),
        ]
        storage = storage_facts(engine, data_dir, vectors, spec["topology"])
        durable.sync_below(out_dir)  # what a server leaves is not always on the disk

    resources = out_dir / "resources.parquet"
    table = sampler.table()
    parquet.write_table(table, resources, compression="zstd")
    body = {
        **gates.verdict(judged),
        "rows": len(vectors.base),
        "dim": int(vectors.base.shape[1]),
        "times": _times(result),
        "phases": [[phase.name, phase.start_s, phase.end_s] for phase in result.phases],
        "resources": resources_used,
        "storage": storage,
        **on_path,
        "server": {
            **probe_facts(probe),
            "members": members,
            "network": namespaces.network(),
            "start_s": server.start_s,
            **server.repeats(),
            "stop_s": ending.seconds,
            "stop_signal": ending.signal,
            "up_s": up_s,
        },
        "artifact": artifact_facts(built),
        "batches": result.batches,
        **({"kill": kill} if kill else {}),
        "fairness": {
            **engine.fairness(spec["system"], spec["index"], spec["topology"]),
            **({"load": "the server was killed meanwhile and started again on its data"} if kill else {}),
        },
        "platform": machine,
        "clients": package_versions(*CLIENT_PACKAGES),
    }
    return records.write_record(
        out_dir / "record.json",
        stage="load",
        key=key,
        spec=spec,
        body=body,
        inputs={"vectors": place.vectors, "artifact": place.artifact},
        outputs={"resources": resources},
    )


def _times(result: LoadResult) -> dict[str, float | None]:
    """Seconds of each phase; `load_s` from the first insert to the first search that succeeded."""
    first, last = result.phases[0], result.phases[-1]
    return {
        "insert_s": result.insert_s,
        "flush_s": result.flush_s,
        "index_s": result.index_s,
        "ready_s": result.ready_s,
        "load_s": last.end_s - first.start_s,
    }


def _resources(table: Any, result: LoadResult) -> dict[str, dict[str, dict[str, Any]]]:
    """What every group used, in the whole load and in each of its phases."""
    whole = [(result.phases[0].start_s, result.phases[-1].end_s)]
    return by_group(table, {"load": whole, **{phase.name: [(phase.start_s, phase.end_s)] for phase in result.phases}})


def storage_facts(engine: Engine, data_dir: Path, vectors: Vectors, topology: Mapping[str, Any]) -> dict[str, Any]:
    """What lies on disk once the server has stopped, by component; the folder holds this load and nothing else."""
    raw_mib = vectors.base.nbytes / 2**20
    if topology["runtime"] == "remote":
        nothing: dict[str, Any] = {"total_mib": None, "net_mib": None, "net_components": [], "components": {}}
        return {**nothing, "raw_mib": raw_mib, "reason": "the server is somebody else's: its disk is not to be seen"}
    components = engine.data_components(data_dir)
    sizes = {part.name: allocated_mib(part.paths) for part in components}
    return {
        "total_mib": allocated_mib([data_dir]),
        "net_mib": sum(sizes[part.name] for part in components if part.net),
        "net_components": [part.name for part in components if part.net],
        "components": sizes,
        "raw_mib": raw_mib,
    }
