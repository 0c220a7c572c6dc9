"""A system's server on loaded data: what a load, an upgrade and a query session have in common.

A stage holds the machine for itself (`platform.alone`), checks that it is the declared one, opens vectors and artifact,
makes the data folder, starts the server, samples it, looks at its data and members, and stops it, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from anncestry import durable, engines
from anncestry.cells.spec import Disturbance
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, LoadResult, Probe, Server
from anncestry.errors import ServerError, UserError
from anncestry.measure.oracle import EF, Oracle, over_codes
from anncestry.measure.reference import Reference
from anncestry.measure.vectors import Vectors, open_vectors
from anncestry.metrics import disturbance
from anncestry.metrics.resources import Sampler, allocated_mib, by_group
from anncestry.provenance import gates, platform, records
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.code import package_versions
from anncestry.provenance.gates import Gate
from anncestry.provenance.platform import Lock
from anncestry.runtimes import artifacts, namespaces, storage, throttle
from anncestry.runtimes.base import LIBRARY, Ending
from anncestry.runtimes.storage import FOLDER, Placed, copy

_CLIENT_PACKAGES = ("pymilvus", "weaviate-client", "grpcio", "protobuf", "numpy", "pyarrow", "PyMySQL", "psycopg")
"""Distributions whose code runs on the client's side."""
_NO_DEVICE = "none: the file system has no block device of its own that this machine shows"


def client_versions() -> dict[str, str | None]:
    """The version of every client library, None where it is not installed."""
    return package_versions(*_CLIENT_PACKAGES)


@dataclass(frozen=True)
class Place:
    """What a stage needs beside its spec: records of vectors and artifact, and what config declares."""

    vectors: Path
    artifact: Path
    platform: Mapping[str, Any]
    first_port: int | None = None
    storage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    disturbance: Disturbance = field(default_factory=lambda: Disturbance.of(repeats=0))


@dataclass(frozen=True)
class StoragePath:
    """The storage path of a topology on this machine; `facts` are for the record."""

    name: str
    path: Path
    facts: Mapping[str, Any]
    mapped: bool
    """Whether a setting of the system has files on it mapped into memory (its value is "storage")."""
    limits: Mapping[str, Any] | None = None
    """How fast it may be read, and how that is held."""

    @classmethod
    def of(cls, spec: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]]) -> StoragePath | None:
        """That of the load of `spec`, None where its topology names none; UserError if it can't be used."""
        name = spec["topology"].get("storage")
        if name is None:
            return None
        settings, limits = spec["system"].get("settings") or {}, spec["topology"].get("storage_limits")
        if limits and (why := throttle.refused(even=throttle.is_even(limits))):
            raise UserError(f"storage {name!r}: {why}")
        path, known = storage.declared(name, table), storage.facts(name, table)
        return cls(name, path, known, FOLDER in settings.values(), limits)

    def place(
        self, data_dir: Path, stored: Path | None, table: Mapping[str, Mapping[str, Any]]
    ) -> tuple[StoragePath, Placed]:
        """Put data there; it as it is then: with limits, a mount of its own, which a probe has read."""
        placed = Placed.put(self.name, self.path, data_dir, stored, self.limits)
        if placed.limited is None:
            return self, placed
        try:
            held = {**placed.limited.facts(), "probe": placed.limited.probe()}
            facts = storage.facts(self.name, table, placed.limited.mount)
        except BaseException:
            placed.remove()
            raise
        return replace(self, facts={**facts, "limits": held}), placed

    def totals(self) -> Callable[[], tuple[int, int, int, int]] | None:
        """What reads the totals that the kernel keeps of its block device; None where there is none."""
        name = self.facts["device"]
        known = name is not None and storage.device_totals(name) is not None
        return (lambda: storage.device_totals(name) or (0, 0, 0, 0)) if known else None

    def record(self, placed: Placed, server: Server) -> dict[str, Any]:
        """Facts for the record, while the server runs: what it is, what is mapped, and whose IO can be told."""
        return {
            **self.facts,
            "mapped_mib": placed.mapped_mib(server.group.pids()),
            "io_of_processes": "/proc/PID/io: bytes that reached storage, of all devices; operations are not counted",
            "io_of_device": f"/proc/diskstats: {self.facts['device']}, all programs" if self.totals() else _NO_DEVICE,
        }

    def gate(self, engine: Engine, placed: Placed, mapped_mib: float | None) -> Gate:
        """What the system keeps of vectors, metadata and index lies on the path, and nothing of it elsewhere."""
        net = [path for part in engine.data_components(placed.data_dir) if part.net for path in part.paths]
        on = [path for path in net if path.resolve().is_relative_to(placed.folder)]
        elsewhere_mib = allocated_mib(path for path in net if path not in on)
        mapped_mib = mapped_mib if self.mapped else None
        return gates.storage_path(self.name, allocated_mib(on), elsewhere_mib, mapped_mib, self.mapped)


class System:
    """A system with its vectors on this machine, and its server while one runs.

    ConfigError on another machine than declared, UserError if the storage path can't be used, DataError if vectors or
    artifact are not those of `spec` (a load's).
    """

    def __init__(self, spec: Mapping[str, Any], place: Place, data_dir: Path) -> None:
        self.spec, self.place, self.data_dir = spec, place, data_dir.resolve()
        self.machine = platform.check(spec["platform"], place.platform)
        self.engine: Engine = engines.get(spec["system"]["engine"])
        self.path = StoragePath.of(spec, place.storage)
        self.vectors: Vectors = open_vectors(place.vectors, spec["vectors"])
        self.reference = Reference.of(self.vectors, spec["index"], spec["topology"]["shards"], self.engine)
        self.artifact = artifacts.opened(place.artifact, spec["artifact"])
        self.placed: Placed | None = None
        self.server: Server | None = None
        self.up_s = 0.0
        """How long servers ran, seconds."""
        self._up_from = 0.0

    def fill(self, stored: Path | None = None) -> None:
        """Make the data folder: empty, or with a copy of the data folder `stored`."""
        records.clear(self.data_dir)
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        if stored is not None and self.path is None:
            copy([stored], self.data_dir)
            return
        self.data_dir.mkdir()
        if stored is not None:
            copy(sorted(path for path in stored.iterdir() if path.name != FOLDER), self.data_dir)
        if self.path is not None:
            own = None if stored is None else stored / FOLDER
            self.path, self.placed = self.path.place(self.data_dir, own, self.place.storage)

    def start(self) -> Server:
        """Start the server on the data folder; ServerError if it does not come up."""
        self._up_from = time.monotonic()
        self.server = self.engine.start(
            self.place.artifact.parent.resolve(),
            self.data_dir,
            self.spec["system"],
            self.spec["topology"],
            first_port=self.place.first_port,
        )
        if self.placed is not None and self.placed.limited is not None:
            self.placed.limited.enter(self.server.group.pids())
        return self.server

    def held(self) -> list[str]:
        """For `namespaces`: what holds a program that is part of the system to the limits of its storage path."""
        return [] if self.placed is None or self.placed.limited is None else self.placed.limited.options()

    @property
    def running(self) -> Server:
        if self.server is None:
            raise ServerError("no server runs")
        return self.server

    def stop(self) -> Ending:
        server = self.running
        try:
            return server.stop()
        except BaseException:
            server.group.stop()  # whatever cut short what the engine tidies up before that
            raise
        finally:
            self.server = None
            self.up_s += time.monotonic() - self._up_from

    def close(self) -> None:
        """Stop the server if one runs, and remove what lies on the storage path."""
        try:
            if self.server is not None:
                self.stop()
        finally:
            if self.placed is not None:
                self.placed.remove()
                self.placed = None

    def sampler(
        self,
        clients: Callable[[], Sequence[int]] = lambda: [os.getpid()],
        libraries: Callable[[], Sequence[int]] | None = None,
        starting: bool = False,
    ) -> Sampler:
        """Samples the server that runs, or is `starting` meanwhile, each of its members, and the `clients`.

        Where clients search by themselves, they (`libraries`) are the server, and the process that built is none of it.
        """

        def of_server(ask: Callable[[Server], Any], nothing: Any) -> Callable[[], Any]:
            # Another thread stops the server: it is looked at once.
            return lambda: nothing if (server := self.server) is None else ask(server)

        def by_member(server: Server) -> dict[str, list[int]]:
            members = [one for one in server.group if libraries is None or one.role != LIBRARY]
            return {member.name: member.handle.pids() for member in members}

        by_name = of_server(by_member, {})
        return Sampler(
            {"server": lambda: [*chain(*by_name().values()), *(libraries() if libraries else ())], "client": clients},
            charged={"server": of_server(lambda server: server.charged(), {})},
            device=self._totals if self.path and self.path.totals() else None,
            members={"server": by_name},
            starting=("server",) if starting else (),
            helpers=lambda: [] if (placed := self.placed) is None else placed.helpers(),
        )

    def _totals(self) -> tuple[int, int, int, int]:
        """Of the storage path's device as it is now: one with limits gets another one each time it is filled."""
        read = self.path.totals() if self.path else None
        return (0, 0, 0, 0) if read is None else read()

    def oracle(self, driver: Driver, folder: Path, round: int = 0) -> Oracle:
        """The checks of the server that runs against exact knowledge; `folder` is for the driver."""
        lossy = over_codes(self.engine, self.spec["index"])
        index = self.spec["index"]
        on_disk = self.path is not None or index["type"] == "diskann"
        checked = self.engine, self.running, driver, folder, self.vectors, lossy, round, index
        return Oracle(*checked, self.reference, on_disk)

    def probe_gates(self, probe: Probe, ef_search: int | None, when: str) -> list[Gate]:
        """What the server reports of itself, compared with what was declared."""
        spec = self.spec
        asked = self.engine.asked_settings(spec["system"], spec["index"], self.vectors.metric, ef_search)
        holders = Counter(placed.node for placed in probe.placement)
        return [
            gates.row_count(probe.rows, len(self.vectors.base), when),
            gates.index_complete(probe.index_complete, probe.index_detail),
            gates.settings(asked, probe.settings),
            gates.topology(spec["topology"], probe.nodes, probe.shards, probe.replicas, holders),
            gates.version(spec["system"]["version"], probe.version),
        ]

    def path_facts(self) -> dict[str, Any]:
        """For the record, while the server runs: its storage path, if it has one."""
        if self.path is None or self.placed is None:
            return {}
        return {"storage_path": self.path.record(self.placed, self.running)}

    def path_gates(self, facts: Mapping[str, Any]) -> list[Gate]:
        """Whether the data lie on the storage path, if there is one; `facts` are those of `path_facts`."""
        if self.path is None or self.placed is None:
            return []
        probes = facts["storage_path"].get("limits", {}).get("probe", ())
        found = [self.path.gate(self.engine, self.placed, facts["storage_path"]["mapped_mib"])]
        return [*found, *map(gates.storage_probe, probes)]

    def artifact_facts(self) -> dict[str, Any]:
        spec = self.artifact["spec"]
        return {
            "digest": self.artifact["digest"],
            "artifact": spec["artifact"],
            "version": spec["version"],
            **({"parts": spec["parts"]} if "parts" in spec else {}),
        }


def probe_facts(probe: Probe) -> dict[str, Any]:
    facts = {name.removesuffix("_detail"): value for name, value in asdict(probe).items() if name != "index_complete"}
    return {**facts, "placement": list(facts["placement"])}


def member_gates(server: Server, when: str) -> tuple[dict[str, dict[str, Any]], list[Gate]]:
    """Facts of all members now, and what must hold of them."""
    facts = server.members()
    problem: str | None = None
    try:
        server.check_members()
    except ServerError as error:
        problem = str(error.args[0])
    judged = (gates.members(facts, problem, when), gates.limits(facts))
    return facts, [gate for gate in judged if gate]


class Filling(System):
    """A system whose data stay in `out_dir/data`: a server loads them, or a newer version opens them.

    It is judged while it runs (`judge`), then stopped, and put on record (`write`).
    """

    def __init__(self, spec: Mapping[str, Any], place: Place, out_dir: Path, lock: Lock) -> None:
        super().__init__(spec, place, out_dir / "data")
        self.out_dir, self.lock = out_dir, lock
        self.gates: list[Gate] = []
        self.facts: dict[str, Any] = {}
        """Of the server."""
        self._on_path: dict[str, Any] = {}

    def begin(self, announcement: str, stored: Path | None = None) -> None:
        """Clear the folder, fill it (see `fill`), and print what comes next."""
        records.clear(self.out_dir)
        self.fill(stored)
        print(announcement, file=sys.stderr, flush=True)

    def judge(self, first: Gate, checked: Sequence[Gate], when: str, counted: bool = True) -> Probe:
        """Judge the running server: gate `first`, its probe, `checked`, its members; rows unless not `counted`."""
        server = self.running
        probe = self.engine.probe(server)
        of_probe = self.probe_gates(probe, EF, when)
        self.gates += [first, *(gate for gate in of_probe if counted or gate.gate != gates.ROW_COUNT), *checked]
        shutil.rmtree(self.out_dir / "oracle", ignore_errors=True)
        server.check_alive()
        members, of_members = member_gates(server, when)
        self.gates += of_members
        self.facts = {
            **probe_facts(probe),
            "members": members,
            "network": namespaces.network(),
            "start_s": server.start_s,
            **server.repeats(),
        }
        self._on_path = self.path_facts()
        return probe

    def write(
        self,
        key: str,
        sampler: Sampler,
        result: LoadResult,
        whole: str,
        about: Mapping[str, Any],
        inserted: Mapping[str, Any],
        fairness: Mapping[str, str],
        inputs: Mapping[str, Path],
    ) -> dict[str, Any]:
        """Stop the server, judge what was seen of it, write the record, and return it.

        `whole` names the time from the first phase to the last, `about` are the record's facts of origin and times,
        `inserted` those of the insert; `fairness` and `inputs` come on top of what every load has.
        """
        ending = self.stop()
        self.facts |= {"stop_s": ending.seconds, "stop_signal": ending.signal, "up_s": self.up_s}
        self.gates += self.path_gates(self._on_path)
        if self.placed is not None:
            self.placed.take_back()
        machine = platform.afterwards(self.machine)
        windows = {whole: [(result.phases[0].start_s, result.phases[-1].end_s)]}
        windows |= {phase.name: [(phase.start_s, phase.end_s)] for phase in result.phases}
        table = sampler.table()
        used = by_group(table, windows)
        self.gates += [
            gates.stopped(ending.clean, ending.signal, ending.seconds, ending.returncode),
            gates.alone(self.lock.waited_s, self.lock.held()),
            gates.on_platform(self.spec["platform"]),
        ]
        spec, base, resources = self.spec, self.vectors.base, self.out_dir / "resources.parquet"
        # A server does not sync all its files, and some file systems only know then how much room one takes.
        durable.sync_below(self.data_dir)
        durable.sync_below(self.out_dir)
        on_disk = _storage_facts(self.engine, self.data_dir, base.nbytes / 2**20, spec["topology"])
        parquet.write_table(table, resources, compression="zstd")
        body = {
            **gates.verdict(self.gates),
            **Ledger.of(spec, key).quote(),
            "rows": len(base),
            "dim": int(base.shape[1]),
            **about,
            "phases": [[phase.name, phase.start_s, phase.end_s] for phase in result.phases],
            "resources": used,
            "disturbance": disturbance.judged(disturbance.of_phase(used, whole), self.place.disturbance.limits),
            "storage": on_disk,
            **self._on_path,
            "server": self.facts,
            "artifact": self.artifact_facts(),
            **inserted,
            "fairness": {**self.engine.fairness(spec["system"], spec["index"], spec["topology"]), **fairness},
            "platform": machine,
            "clients": client_versions(),
        }
        return records.write_record(
            self.out_dir / "record.json",
            stage="load",
            key=key,
            spec=spec,
            body=body,
            inputs={"vectors": self.place.vectors, "artifact": self.place.artifact, **inputs},
            outputs={"resources": resources},
        )


def _storage_facts(engine: Engine, data_dir: Path, raw_mib: float, topology: Mapping[str, Any]) -> dict[str, Any]:
    """What lies on disk once the server has stopped, by component; the folder holds this load and nothing else."""
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
