"""What an engine offers. An engine is a module (a folder here) with the functions of `Engine`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.metadata import check_filter
from anncestry.datasets.payload import Payload
from anncestry.errors import ConfigError, ServerError, Unsupported
from anncestry.progress import Progress
from anncestry.runtimes.base import Ending

Spec = Mapping[str, Any]
RUNTIMES = ("native", "docker", "remote")
T = TypeVar("T")


class DecodeError(Exception):
    """A reply that is no answer: not of the protocol, or an error that the server reports inside a successful call."""


class Vectors(Protocol):
    """What is loaded: row i of each array belongs to id i. For "cosine" the rows of `base` have length 1."""

    @property
    def base(self) -> NDArray[np.float32]:
        """(n, d) vectors."""

    @property
    def category(self) -> NDArray[np.uint8]:
        """(n,) metadata."""

    @property
    def price(self) -> NDArray[np.float32]:
        """(n,) metadata."""

    @property
    def region(self) -> NDArray[np.uint8]:
        """(n,) metadata that goes with position (datasets/regions.py)."""

    @property
    def metric(self) -> str:
        """l2 or cosine."""

    @property
    def payload(self) -> Payload:
        """More metadata, where conditions of the dataset's queries act on some."""


class Server(Protocol):
    """A running system: one member or more (processes, containers), or somebody else's."""

    @property
    def endpoint(self) -> str:
        """host:port of the interface that queries use."""

    @property
    def endpoints(self) -> list[str]:
        """host:port of every interface that queries may use, that of `endpoint` first."""

    @property
    def topology(self) -> Spec:
        """What was declared."""

    start_s: float
    """Seconds from its start until it answered."""

    def repeats(self) -> dict[str, str]:
        """For a record: why this server was started twice; nothing for one that was started once."""

    def pids(self) -> list[int]:
        """Main processes of all members."""

    def pids_by_member(self) -> dict[str, list[int]]:
        """The same by name of the member."""

    def alive(self) -> bool:
        """Whether all members run."""

    def check_alive(self) -> None:
        """ServerError, which names it, with the end of its log if a member is gone. Cheap: asked while runs go on."""

    def check_members(self) -> None:
        """The same, and the system is asked, too: ServerError names a member that it misses."""

    def members(self) -> dict[str, dict[str, Any]]:
        """By name of the member: role, whether it is alive, limits and how they are enforced, use; for the record."""

    def charged(self) -> dict[str, float]:
        """Memory that control groups charge for all members now, by the names of `metrics.resources.CHARGED`."""

    def counters(self) -> dict[str, dict[str, float]]:
        """By name of the member: running totals that it keeps ("searches"), where it does; for the record."""

    def stop(self) -> Ending:
        """Stop it, cleanly where it can be; nothing of it is left. Safe to call again."""


@dataclass(frozen=True)
class Phase:
    """A part of the load: `start_s` and `end_s` on the clock of `time.monotonic`, its length in `duration_s`."""

    name: str
    start_s: float
    end_s: float
    duration_s: float


@dataclass
class Killed:
    """What the client of a load saw when its server was killed; times on the clock of `time.monotonic`.

    `rows_before` rows were acknowledged by then. Insertions that failed afterwards were sent again, `resent` in all,
    until they were acknowledged: the first of them at `accepted_s`.
    """

    rows_before: int
    killed_s: float
    accepted_s: float | None = None
    resent: int = 0


@dataclass
class LoadResult:
    """How a load went. Rows that failed are counted, never sent again (but where the load's server is killed).

    `phases` are insert, flush (only where the system has it), index and ready, in order; `rows_acknowledged` rows
    that the server confirmed, `insert_errors` rows that it refused, `first_error` what it said of the first of them.
    """

    rows_sent: int = 0
    rows_acknowledged: int = 0
    insert_errors: int = 0
    first_error: str | None = None
    batches: int = 0
    phases: list[Phase] = field(default_factory=list)
    killed: Killed | None = None
    """Of a load that says so (`kill`), once its server was killed."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        start_s, start_ns = time.monotonic(), time.perf_counter_ns()
        yield
        end_ns, end_s = time.perf_counter_ns(), time.monotonic()
        self.phases.append(Phase(name, start_s, end_s, (end_ns - start_ns) / 1e9))

    def acknowledge(self, sent: int, failed: int, error: str | None) -> None:
        """Count a batch of `sent` rows, `failed` of which were refused with `error`."""
        self.batches += 1
        self.rows_sent += sent
        self.rows_acknowledged += sent - failed
        self.insert_errors += failed
        if failed and self.first_error is None:
            self.first_error = error

    def seconds(self, name: str) -> float | None:
        """Length of a phase, None where the system has no such phase."""
        return next((phase.duration_s for phase in self.phases if phase.name == name), None)

    @property
    def insert_s(self) -> float | None:
        """First row sent → last row acknowledged."""
        return self.seconds("insert")

    @property
    def flush_s(self) -> float | None:
        """Until the rows are sealed and stored, where that is a step of its own."""
        return self.seconds("flush")

    @property
    def index_s(self) -> float | None:
        """Until the index covers every row. (About 0 where it is built while inserting.)"""
        return self.seconds("index")

    @property
    def ready_s(self) -> float | None:
        """Until a search succeeds."""
        return self.seconds("ready")


@dataclass(frozen=True)
class Probe:
    """What a server says of itself.

    `rows` is a count asked of the server; `settings` the effective ones, read back, under the names of
    `Engine.asked_settings` and engine-specific ones.
    """

    version: str
    rows: int
    index_complete: bool
    index_detail: str
    settings: dict[str, Any]
    nodes: int
    shards: int
    replicas: int
    placement: tuple[Placed, ...] = ()
    """What each node holds, where the system says it."""


@dataclass(frozen=True)
class Placed:
    """A shard (or segment) on a node: `rows` it counts there, None where it doesn't say."""

    node: str
    shard: str
    rows: int | None


@dataclass(frozen=True)
class Component:
    """A part of what a system keeps on disk; `net`: vectors, metadata and index, without bookkeeping and logs."""

    name: str
    net: bool
    paths: tuple[Path, ...]


class Engine(Protocol):
    """The functions of an engine's module.

    `system` is an entry of systems.yaml, `topology` one of topologies.yaml, `index` e.g. {"type": "hnsw", "M": 16,
    "ef_construction": 200}, `load` e.g. {"batch_rows": 500}. A server holds one collection.

    `ef_search` is the search effort of the index's type (cells/indexes.py): ef, or nprobe, …; 0 for one without.
    """

    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
        """ConfigError for what is unknown, out of range or impossible. Cheap: runs while the workflow is parsed.

        Unsupported (a ConfigError) for what this system lacks, though others have it.

        `workload` needs `k`; its `filter` and `ef_search` are checked where present.
        """

    def limited(self, system: Spec, topology: Spec) -> int:
        """How many members have the topology's `limits`, each. Cheap, too."""

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        """ConfigError, with the reason, if this system can't open the data folder that the `older` one filled.

        Both are checked each for itself elsewhere. Cheap: runs while the workflow is parsed.
        """

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        """What `Probe.settings` must say for a server that was loaded and applied with these."""

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        """Short statements on how this system is treated, for the reader of a report."""

    def data_components(self, data_dir: Path) -> list[Component]:
        """The parts of a data folder. Together they are all of it."""

    def start(
        self, artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
    ) -> Server:
        """Start on an empty or stored `data_dir` and wait until it answers; ServerError with the log's end if not.

        Free ports are picked, the ones of the last start on this folder where they are free;
        with `first_port`, the adjacent ports from there on are used, or UserError names the one in use.
        """

    def load(self, server: Server, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the collection, insert everything in batches, build the index, wait until it is searched."""

    def open(self, server: Server, index: Spec) -> float:
        """Make the stored collection searchable after a restart; returns seconds until a search succeeded."""

    def apply(self, server: Server, ef_search: int) -> None:
        """Set the search effort where it is a setting of the server; read back."""

    def exact_filters(self, server: Server, on: bool) -> None:
        """Answer narrow filters by an exact scan, whatever the system's settings say (on), or as they say (off).

        For the exact-search oracle: a system that is told to search its graph under any filter is right to be inexact.
        """

    def probe(self, server: Server) -> Probe:
        """Ask the server for its version, rows, index state, settings and topology."""

    def encode(
        self, server: Server, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        """The request bytes of each of the (n, d) queries. `filter` is a resolved one: see `filter_bounds`."""

    def transport(self, server: Server) -> dict[str, Any]:
        """How to send them: kind, target (host:port), method; `targets` where clients take several in turn."""

    def sdk_transport(self, server: Server, k: int, ef_search: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
        """How to ask through the database's own Python library: kind sdk, target, `module` with `connect`, options.

        A request is the number of one of `filters` (uint32) and the query (float32).
        """

    def sdk_decode(self, response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """As `decode`, for what that library found."""

    def count(self, server: Server, filter: Spec | None) -> int:
        """Rows that pass the filter, as the server counts them by its own reading of it."""

    def decode(self, response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids (m,) and canonical distances (m,), nearest first; DecodeError where the reply is no answer.

        l2 is the squared Euclidean distance, cosine 1 − cos.
        """


WRITES = ("insert", "delete")
"""What can be done to rows while they are searched."""


class Streaming(Protocol):
    """What an engine's module has, too, if its collection can be changed while it is searched."""

    def write_transport(self, server: Server, kind: str) -> dict[str, Any]:
        """How to send the requests of a kind of `WRITES`: as `Engine.transport`."""

    def encode_insert(self, server: Server, first: int, rows: Vectors) -> bytes:
        """The request that inserts all of `rows`, with ids `first`, `first` + 1, …"""

    def encode_delete(self, server: Server, ids: Sequence[int]) -> bytes:
        """The request that deletes the rows of these ids."""

    def decode_write(self, kind: str, response: bytes) -> int | None:
        """How many rows were inserted or deleted; DecodeError where the reply is none, or tells an error.

        None where the system counts only what it refuses: all that were sent.
        """


class Batching(Protocol):
    """What an engine's module has, too, if one request can ask for several vectors (a workload's `nq`)."""

    def encode_batches(
        self, server: Server, batches: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        """The request bytes of each of the (n, nq, d) batches, with one filter for all."""

    def decode_batch(self, response: bytes, metric: str) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """As `decode`, for each vector of the request, in their order."""


def batching(engine: Engine) -> Batching:
    """An engine that `check` lets have a workload with `nq`, as what asks for several vectors at once."""
    return cast(Batching, engine)


def streaming(engine: Engine) -> Streaming:
    """An engine that `check` lets have a workload with `stream`, as what writes."""
    return cast(Streaming, engine)


def lazy(package: str, functions: Mapping[str, str]) -> Callable[[str], Any]:
    """A module `__getattr__` that imports function → submodule at first use, to keep `import` of an engine cheap."""

    def __getattr__(name: str) -> Any:
        if name not in functions:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{functions[name]}"), name)

    return __getattr__


def wait_for(
    what: str,
    ask: Callable[[], T | None],
    server: Server,
    timeout_s: float,
    poll_s: float = 0.05,
    patient: bool = False,
) -> T:
    """Ask until the answer is not None and return it; ServerError when the server dies or `timeout_s` has passed.

    `patient`: a ServerError in asking also means "not yet"; the last one is told when time is up.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reason = ""
        try:
            answer = ask()
        except ServerError as error:
            if not patient:
                raise
            answer, reason = None, f" ({error.args[0]})"
        if answer is not None:
            return answer
        server.check_alive()
        if time.monotonic() > deadline:
            raise ServerError(f"{what}: not within {timeout_s:.0f} s{reason}")
        time.sleep(poll_s)


def components(data_dir: Path, parts: Sequence[tuple[str, bool, Sequence[str]]]) -> list[Component]:
    """`parts` are (name, net, glob patterns within `data_dir`); what none of them matches becomes the part "other"."""
    found = [
        Component(name, net, tuple(sorted(path for pattern in patterns for path in data_dir.glob(pattern))))
        for name, net, patterns in parts
    ]
    named = {path for component in found for path in component.paths}
    above = {parent for path in named for parent in path.parents}

    def rest(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path in above:
                yield from rest(path)
            elif path not in named:
                yield path

    return [*found, Component("other", False, tuple(rest(data_dir)))]


# What every engine checks alike.

Version = tuple[int, ...]


def version_of(system: Spec) -> Version:
    """A system's version as numbers: "2.2.16" is (2, 2, 16); ConfigError for any other form."""
    text = str(system.get("version"))
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"version: {text!r} is not three numbers with dots between them, as in 1.27.0")
    return tuple(map(int, parts))


def check_version(engine: str, system: Spec, oldest: Version, below: Version) -> None:
    """ConfigError unless the system's version is from `oldest` on and less than `below`."""
    version = version_of(system)
    if not oldest <= version < below:
        first, end, found = (".".join(map(str, numbers)) for numbers in (oldest, below, version))
        problem = f"is older than {first}" if version < oldest else f"is not less than {end}"
        raise ConfigError(
            f"version: {engine} {found} {problem}; supported: from {first} on, below {end} (docs/upgrading.md says why)"
        )


def check_newer(engine: str, system: Spec, older: Spec) -> None:
    """ConfigError unless both systems are of this engine, and the first of a later version."""
    if older["engine"] != system["engine"]:
        raise ConfigError(f"load.upgrade_from: {engine} can't open the data of {older['engine']}")
    if version_of(system) <= version_of(older):
        raise ConfigError(
            f"load.upgrade_from: {engine} {system['version']} is no upgrade of {older['version']}: "
            "only a later version opens the data of an earlier one"
        )


def refuse_unknown(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """ConfigError naming the first key of `given` that is not in `known`."""
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")


def whole_number(where: str, value: object, low: int, high: int) -> int:
    """`value` if it is an int within [low, high], else ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{where}: {value!r} is not a whole number from {low} to {high}")
    return value


def check_topology(
    engine: str, topology: Spec, memory_min_mib: int, offered: Sequence[str] = (), runtimes: Sequence[str] = RUNTIMES
) -> None:
    """Unsupported for a runtime or an option that an engine lacks, ConfigError for a memory limit that is too low.

    `offered` are the keys of a topology that this engine knows beside those of every topology.
    """
    runtime = topology.get("runtime")
    if runtime not in runtimes:
        known = ", ".join(runtimes)
        raise Unsupported(f"topology: engine {engine} does not support runtime {runtime!r} yet; supported: {known}")
    if "publish" in topology and runtime != "docker":
        raise ConfigError(f"topology: publish is for runtime docker, not {runtime}")
    if "storage" in topology and runtime != "native":
        raise ConfigError(f"topology: storage is for runtime native, not {runtime}: its files are this machine's")
    for key in ("entry", "consistency", "external", "external_limits", "roles", "storage"):
        if key in topology and key not in offered:
            raise Unsupported(f"topology: engine {engine} has no {key} to choose")
    memory_mib = (topology.get("limits") or {}).get("memory_mib")
    if memory_mib is not None and memory_mib < memory_min_mib:
        raise ConfigError(
            f"topology: limits.memory_mib: {memory_mib} MiB; {engine} does not start with less than {memory_min_mib}"
        )


def check_remote(
    engine: str, topology: Spec, needed: Sequence[str], offered: Sequence[str] = (), workload: Spec | None = None
) -> None:
    """ConfigError unless a remote topology names a variable for each endpoint that is needed, and no other any.

    `offered` are endpoints that may be named beside them.
    """
    endpoints = topology.get("endpoints")
    if topology.get("runtime") != "remote":
        for key in ("endpoints", "credentials", "tls"):
            if key in topology:
                raise ConfigError(f"topology: {key} is for runtime remote, not {topology.get('runtime')}")
        return
    for key in ("limits", "publish", "external", "external_limits", "roles", "entry"):
        if key in topology:
            raise ConfigError(f"topology: {key} can't be chosen for a server that somebody else runs (runtime remote)")
    if workload is not None and workload.get("client") == "sdk":
        raise ConfigError(
            f"client: {engine}'s sdk is not taken to a server that somebody else runs: it carries neither credentials "
            "nor TLS here; supported: bytes"
        )
    for name in needed:
        if name not in (endpoints or {}):
            raise ConfigError(f"topology: endpoints.{name} is missing: the variable that holds {engine}'s HOST:PORT")
    refuse_unknown(f"topology.endpoints of {engine}", endpoints or {}, (*needed, *offered))


def check_hnsw(engine: str, index: Spec, *, m: tuple[int, int], ef_construction: tuple[int, int]) -> None:
    """ConfigError unless `index` is a complete HNSW index within the engine's ranges."""
    kind = index.get("type")
    if kind != "hnsw":
        raise Unsupported(f"index.type: {kind!r} is unsupported by {engine}; supported: hnsw")
    if "quantizer" in index:
        raise Unsupported(f"index.quantizer: {index['quantizer']} is unsupported by {engine}; it quantizes nothing")
    refuse_unknown("index", index, ("type", "M", "ef_construction"))
    whole_number(f"index.M for {engine}", index.get("M"), *m)
    whole_number(f"index.ef_construction for {engine}", index.get("ef_construction"), *ef_construction)


def check_search(
    engine: str, workload: Spec, largest_k: int, sdk: bool = False, stream: bool = False, batches: bool = False
) -> None:
    """ConfigError for a bad k or filter, or for an ef_search below k: engines refuse that or silently use k.

    `sdk` says whether the engine can be asked through its own library (client: sdk), by `sdk_transport`; `stream`
    whether its collection can be changed meanwhile (see `Streaming`); `batches` whether one request can ask for several
    vectors (see `Batching`).
    """
    if workload.get("nq", 1) > 1 and not batches:
        raise Unsupported(
            f"nq: {workload['nq']} vectors a request are unsupported by engine {engine}: it is asked for one at a time"
        )
    if workload.get("stream") is not None and not stream:
        raise Unsupported(f"stream: engine {engine} can't be written to while it is searched yet")
    if workload.get("client") == "sdk" and not sdk:
        raise Unsupported(f"client: engine {engine} can't be asked through its sdk; supported: bytes")
    k = whole_number(f"k for {engine}", workload.get("k"), 1, largest_k)
    for name in ("ef_search", "search_list"):
        effort = workload.get(name)
        if effort is not None and whole_number(f"{name} for {engine}", effort, 1, 32_768) < k:
            raise ConfigError(f"{name}: {effort} is less than k: {k}; {engine} can't search with that")
    filter = workload.get("filter")
    if filter is not None and ({"share", "side", "from_share"} & set(filter) or filter.get("field") == "payload"):
        check_filter(filter)  # its bounds are those of a dataset
    elif filter is not None:
        filter_bounds(filter)


def check_fault(topology: Spec, workload: Spec, members: Sequence[str]) -> None:
    """ConfigError for a fault that none of these members can have, or that doesn't fit into a run."""
    fault = workload.get("fault")
    if fault is None:
        return
    runtime, duration_s = topology["runtime"], workload.get("duration_s")
    if runtime == "remote":
        raise ConfigError("fault: a server that somebody else runs (runtime remote) is left in peace")
    if fault["kind"] == "partition" and runtime != "docker":
        raise ConfigError("fault.kind: partition needs runtime docker: processes share the network of the machine")
    if fault["member"] not in members:
        raise ConfigError(f"fault.member: {fault['member']!r} is no member; there are {', '.join(members)}")
    if "slo" in workload:
        raise ConfigError("fault: a search for a rate (slo) can't have one: it is many runs")
    if duration_s is None:
        raise ConfigError("fault: only a run of fixed time (duration_s) can have one")
    if fault["at_s"] + fault["for_s"] >= duration_s:
        raise ConfigError(
            f"fault: ends {fault['at_s'] + fault['for_s']:g} s after the start of a run of {duration_s:g} s"
        )


def check_stream(topology: Spec, workload: Spec) -> None:
    """ConfigError for a stream of changes into a server that somebody else runs: only a copy may be changed."""
    if workload.get("stream") is not None and topology["runtime"] == "remote":
        raise ConfigError("stream: what is stored on a server that somebody else runs (runtime remote) is not changed")


@dataclass(frozen=True)
class FilterBounds:
    """A workload's filter, read: `field` in `values`, or at least `low` and below `high` (None: not bounded)."""

    field: str
    values: tuple[int, ...] | None
    low: float | None
    high: float | None

    @property
    def whole(self) -> bool:
        """Whether the column holds whole numbers; else float32, and bounds are rounded as its values are."""
        return self.field != "price"

    def bound(self, value: float) -> int | float:
        """A bound as the column's own type compares with it."""
        return int(value) if self.whole else float(np.float32(value))


def filter_bounds(filter: Spec) -> FilterBounds:
    """Read {field: category, in: […]}, or {field: price | region | id, from: a, below: b} (either bound alone too).

    ConfigError for anything else; what depends on rows or queries was resolved before (datasets.metadata.resolve).
    """
    name = filter.get("field")
    if name == "category":
        refuse_unknown("filter on category", filter, ("field", "in"))
        values = filter.get("in")
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ConfigError(f"filter.in: {values!r} is not a list of categories")
        return FilterBounds(name, tuple(whole_number("filter.in", value, 0, 255) for value in values), None, None)
    if name in ("price", "region", "id"):
        refuse_unknown(f"filter on {name}", filter, ("field", "from", "below"))
        low, high = filter.get("from"), filter.get("below")
        for key, bound in (("from", low), ("below", high)):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float)):
                raise ConfigError(f"filter.{key}: {bound!r} is not a number")
        if low is None and high is None:
            raise ConfigError(f"filter on {name}: needs from, below, or both")
        return FilterBounds(name, None, low, high)
    raise ConfigError(f"filter.field: unknown field {name!r}; known: category, price, region, id")
