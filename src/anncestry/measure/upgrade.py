"""The load stage of an upgrade in place: a newer version opens a copy of the data that an older one has loaded.

Nothing is inserted, so there is no load time. What is measured is the time without service: from the start of the
newer server on the stopped older one's data to a search that succeeds and an index that covers every row, whatever
the version migrates or builds anew on the way. Then the same checks as after any load.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from anncestry import durable, engines
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, LoadResult, Probe, Server, wait_for
from anncestry.measure import oracle
from anncestry.measure.load import (
    CLIENT_PACKAGES,
    Place,
    artifact_facts,
    member_gates,
    probe_facts,
    probe_gates,
    storage_facts,
)
from anncestry.measure.session import copy_tree
from anncestry.measure.vectors import open_vectors
from anncestry.metrics.resources import Sampler, by_group
from anncestry.provenance import gates, platform, records
from anncestry.provenance.code import package_versions
from anncestry.runtimes import artifacts, namespaces

PHASE = "upgrade"
_INDEX_TIMEOUT_S = 24 * 3600.0
_INDEX_POLL_S = 0.2


def run(
    spec: Mapping[str, Any], key: str, place: Place, older_index: Path, older_load: Path, out_dir: Path
) -> dict[str, Any]:
    """Open a copy of the data beside `older_index` with the system of `spec`; leave it, stopped, in `out_dir/data`.

    `older_load` is the published record of the load that the data came from. Raises as a load does: ServerError if
    the server does not come up on the older data or dies, ConfigError on another machine than declared. An upgrade
    that lost something is not an error: its record says so in its gates, and is invalid.
    """
    engine = engines.get(spec["system"]["engine"])
    with platform.alone() as waited_s:
        machine = platform.check(spec["platform"], place.platform)
        vectors = open_vectors(place.vectors, spec["vectors"])
        built = artifacts.opened(place.artifact, spec["artifact"])
        older = records.read_record(older_index, stage="load", key=spec["upgrade_of"])
        records.clear(out_dir)
        data_dir = (out_dir / "data").resolve()
        copy_tree(older_index.parent / "data", data_dir)
        label = f"upgrade {older['spec']['system']['name']} → {spec['system']['name']} · {spec['dataset']['name']}"
        print(f"{label}: starting the server on the older data", file=sys.stderr, flush=True)
        result = LoadResult()
        servers: list[Server] = []
        up_from = time.monotonic()
        try:
            pids = {"server": lambda: servers[0].pids() if servers else [], "client": lambda: [os.getpid()]}
            apart = {"server": lambda: servers[0].pids_by_member() if servers else {}}
            with Sampler(pids, members=apart) as sampler, result.phase(PHASE):
                server = engine.start(
                    place.artifact.parent.resolve(),
                    data_dir,
                    spec["system"],
                    spec["topology"],
                    first_port=place.first_port,
                )
                servers.append(server)
                open_s = engine.open(server, spec["index"])
                _await_index(engine, server)
            with Driver() as driver:
                checked = oracle.check(
                    engine, server, driver, out_dir / "oracle", vectors, oracle.over_codes(engine, spec["index"])
                )
            probe = engine.probe(server)
            judged = [
                gates.older_load(older["valid"], older["spec"]["system"]["name"], older["created"]),
                *probe_gates(engine, probe, spec, vectors, oracle.EF, "after the upgrade"),
                *checked,
            ]
            server.check_alive()
            members, of_members = member_gates(server, "after the upgrade")
            judged += of_members
        finally:
            endings = [server.stop() for server in servers]
        up_s = time.monotonic() - up_from
        machine = platform.afterwards(machine)
        shutil.rmtree(out_dir / "oracle", ignore_errors=True)
        table = sampler.table()
        phases = {phase.name: [(phase.start_s, phase.end_s)] for phase in result.phases}
        used = by_group(table, phases)
        judged += [
            gates.stopped(endings[0].clean, endings[0].signal, endings[0].seconds),
            gates.alone(waited_s, used["other"][PHASE]["cpu_avg_pct"]),
            gates.on_platform(spec["platform"]),
        ]
        storage = storage_facts(engine, data_dir, vectors, spec["topology"])
        durable.sync_below(out_dir)

    resources = out_dir / "resources.parquet"
    parquet.write_table(table, resources, compression="zstd")
    body = {
        **gates.verdict(judged),
        "rows": len(vectors.base),
        "dim": int(vectors.base.shape[1]),
        "upgraded_from": {
            "system": older["spec"]["system"]["name"],
            "version": older["spec"]["system"]["version"],
            "load": older["key"],
        },
        "times": {"upgrade_s": result.seconds(PHASE)},
        "phases": [[phase.name, phase.start_s, phase.end_s] for phase in result.phases],
        "resources": used,
        "storage": storage,
        "server": {
            **probe_facts(probe),
            "members": members,
            "network": namespaces.network(),
            "start_s": server.start_s,
            **server.repeats(),
            "open_s": open_s,
            "stop_s": endings[0].seconds,
            "stop_signal": endings[0].signal,
            "up_s": up_s,
        },
        "artifact": artifact_facts(built),
        "fairness": {
            **engine.fairness(spec["system"], spec["index"], spec["topology"]),
            "load": f"none: opened in place on what {older['spec']['system']['name']} had loaded",
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
        inputs={"vectors": place.vectors, "artifact": place.artifact, "older": older_load},
        outputs={"resources": resources},
    )


def _await_index(engine: Engine, server: Server) -> None:
    """Wait until the server says that its index covers every row: a newer version may build it anew."""

    def complete() -> Probe | None:
        probe = engine.probe(server)
        return probe if probe.index_complete else None

    wait_for("the index after the upgrade", complete, server, _INDEX_TIMEOUT_S, _INDEX_POLL_S, patient=True)
