"""What an engine offers, and the refusal of everything else. Used while a workflow is parsed: imports no client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from anncestry.cells.indexes import EFFORT, ON_GPU, QUANTIZERS
from anncestry.datasets.metadata import check_filter
from anncestry.errors import ConfigError, Unsupported

Spec = Mapping[str, Any]
RUNTIMES = ("native", "docker", "remote")
LARGEST_EFFORT = 32_768
_CARRIERS = ("grpcio", "protobuf")
"""Packages below each library of a database that is installed with anncestry: what its processor time is spent in."""
_CHOSEN = (
    *("entry", "consistency", "external", "external_limits", "role_limits", "roles"),
    *("storage", "storage_limits"),
)
"""Keys of a topology that not every engine has."""
Version = tuple[int, ...]


def version_of(system: Spec) -> Version:
    """A system's version as numbers: "2.2.16" is (2, 2, 16); ConfigError for any other form."""
    text = str(system.get("version"))
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"version: {text!r} is not three numbers with dots between them, as in 1.27.0")
    return tuple(map(int, parts))


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


@dataclass(frozen=True)
class Parameter:
    """A whole number from `low` to `high` that an index is built with."""

    low: int
    high: int
    needed: bool = True


Offered = Mapping[str, Mapping[str, Parameter]]
"""Type → name of a parameter → what it may be."""


@dataclass(frozen=True)
class Freeze:
    """How long all members may stand still at a time while another system is asked; or `no`, why they may not."""

    longest_s: float = 0.0
    no: str | None = None


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What one engine can do. `check` refuses the rest; a subclass overrides the steps of `check` to refuse more.

    `system` is an entry of systems.yaml, `topology` one of topologies.yaml, `index` e.g. {"type": "hnsw", "M": 16,
    "ef_construction": 200}. Every method is cheap: it runs while the workflow is parsed.
    """

    name: str
    versions: tuple[Version, Version] | None = None
    """From the first on, below the second. None: any."""
    remote_below: Version | None = None
    """With runtime remote, those below this one, too: no package holds their server, so that none was ever run here."""
    settings: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Settings of a system that are whole numbers: least and most."""

    runtimes: Sequence[str] = RUNTIMES
    program: str | None = None
    """No package holds its server: with runtime docker it is this program of an image of a registry, in one container.
    None: its artifact is run in containers, too."""
    topology: Sequence[str] = ()
    """Keys that a topology may have beside those of every topology."""
    in_process: bool = False
    """It is a library in the processes of its clients, no server."""
    single: str | None = None
    """What the system is, where it can't be a cluster. None: it can."""
    memory_min_mib: int = 0
    """A member with a lower memory limit does not start."""
    endpoints: Sequence[str] = ()
    """Endpoints that a remote topology must name."""
    more_endpoints: Sequence[str] = ()
    """Endpoints that it may name beside them."""

    indexes: Offered | None = None
    """Types of index and their parameters. None: the engine builds no index, and ignores what is configured."""
    quantizers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Type of index → the quantizers that it can have."""
    since: Mapping[str, Version] = field(default_factory=dict)
    """Type of index, or quantizer → the version that it came with, where that is later than the first of `versions`."""

    metrics: Sequence[str] = ("l2", "cosine")
    """Metrics of a dataset that it can search by."""
    largest_k: int = 10_000
    ef_max: int = LARGEST_EFFORT
    libraries: Sequence[str] = ()
    """Values of a workload's `client` that are libraries through which clients can ask: sdk, the database's own for
    Python; sdk-go, its own for Go; vectordbbench, that benchmark's client."""
    remote_libraries: Sequence[str] = ()
    """Those of them that also ask a server that somebody else runs: with its credentials, and under TLS."""
    sdk: str = ""
    """The distribution of the database's own Python library, as anncestry itself has it."""
    stream: bool = False
    """Rows can be inserted and deleted during a search workload."""
    batches: bool = False
    """A request can hold several vectors (`nq`)."""
    no_fault: str | None = "has one member, and nobody who could take its place"
    """Why no fault can be injected. None: it can."""
    no_zero_vectors: str | None = "was never tried with them"
    """Why zero vectors can't be kept under cosine: their distance to everything is told as 1, and no other row is lost
    for them. None: they can, though a graph need not find them."""
    freeze: Freeze = Freeze(no="was never tried frozen")
    """How long one node may be frozen; what was tried, and with which version: docs/duet.md."""
    conditions: Sequence[str] = ()
    """Kinds of payload columns (keyword, int, float) that the conditions of a query can be on."""
    loads_by_library: bool = False
    """A load can insert by the database's own Python library (`load: {client: sdk}`)."""
    killed_loads: bool = False
    """A load goes on after its server was killed (`engines.base.Kill`)."""
    beyond_loopback: bool = False
    """Clients on other machines can reach it: it listens on all interfaces or at an address (SECURITY.md)."""

    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
        """ConfigError for what is unknown, out of range or impossible; Unsupported for what only others have."""
        self.check_version(system, topology)
        self.check_topology(system, topology)
        self.check_index(system, topology, index)
        self.check_settings(system, topology, index)
        if workload is not None:
            self.check_workload(system, topology, index, workload)

    def check_metric(self, metric: str) -> None:
        """Unsupported for a metric that the system does not search by."""
        if metric not in self.metrics:
            raise Unsupported(f"metric: {metric} is unsupported by {self.name}; supported: {', '.join(self.metrics)}")

    def check_zero_vectors(self, system: Spec) -> None:
        """Unsupported if the system can't keep a zero vector under cosine."""
        if self.no_zero_vectors is not None:
            raise Unsupported(
                f"zero_vectors: keep: unsupported by {self.name}, which {self.no_zero_vectors}; use zero_vectors: "
                "leave_out, or another system"
            )

    def check_pair(self, system: Spec, topology: Spec, slice_s: float) -> None:
        """Unsupported if the system can't take turns with another one in slices of `slice_s` seconds."""
        freeze = self.may_freeze(system, topology)
        if freeze.no is not None:
            raise Unsupported(f"paired: unsupported by {self.name}, which {freeze.no}; compare it in rounds")
        if 2 * slice_s > freeze.longest_s:  # of ABBA and BAAB in any order, two of a side follow each other at most
            raise Unsupported(
                f"duet.slice_s: {slice_s:g} s are too long for {self.name}: it stands still for two of them, and may "
                f"for {freeze.longest_s:g} s at most"
            )

    def may_freeze(self, system: Spec, topology: Spec) -> Freeze:
        """How long this system may be frozen in this topology, or why not."""
        if topology.get("runtime") == "remote":
            return Freeze(no="somebody else runs there (runtime remote)")
        if topology["nodes"] > 1 or len(self.members(system, topology)) > 1:
            return Freeze(no="has several members there, and was tried with one alone")
        return self.freeze

    def most_effort(self, index: Spec) -> int:
        """The largest search effort that makes a difference: of an inverted file, that of all its lists."""
        return min(self.ef_max, int(index.get("nlist", self.ef_max)))

    def needs_interface(self, system: Spec) -> bool:
        """Whether its server does not start where the loopback is the only network interface."""
        return False

    def limited(self, system: Spec, topology: Spec) -> int:
        """Number of members to which the topology's `limits` apply, each."""
        return 1

    def members(self, system: Spec, topology: Spec) -> list[str]:
        """Names of the members that a fault can be injected into."""
        return ["node1"]

    def client_env(self, system: Spec, workload: Spec) -> dict[str, str] | None:
        """What the key holds of the library that asks: its environment (name, sha256), or, where it is that of
        anncestry itself, the versions of it and of the packages that carry its messages. None where no library asks."""
        asked = workload.get("client") == "sdk" and self.sdk
        return {name: version(name) for name in (self.sdk, *_CARRIERS)} if asked else None

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        """ConfigError, with the reason, if this system can't open the data folder that the `older` one filled."""
        if older["engine"] != system["engine"]:
            raise ConfigError(f"load.upgrade_from: {self.name} can't open the data of {older['engine']}")
        if version_of(system) <= version_of(older):
            raise ConfigError(
                f"load.upgrade_from: {self.name} {system['version']} is no upgrade of {older['version']}: "
                "only a later version opens the data of an earlier one"
            )

    def check_load_by_library(self, system: Spec, topology: Spec) -> None:
        """Unsupported for a load by the database's own library that this engine, or this topology, does not have."""
        if not self.loads_by_library:
            raise Unsupported(
                f"load.client: sdk is unsupported by {self.name}; its rows are inserted as encoded requests"
            )
        if topology["runtime"] == "remote":
            raise Unsupported(
                f"load.client: sdk of {self.name} is unsupported on a remote server: it gets no credentials"
            )

    def load_env(self, system: Spec) -> Mapping[str, Any]:
        """What the key of such a load holds of its library: as `client_env`."""
        told = self.client_env(system, {"client": "sdk"})
        return {} if told is None else {"client_env": told}

    def check_version(self, system: Spec, topology: Spec) -> None:
        """ConfigError for a version that was not tried, unless it is one that only a remote server can have."""
        if self.versions is None:
            return
        version, (oldest, below) = version_of(system), self.versions
        most = self.remote_below or below
        if not oldest <= version < (most if topology.get("runtime") == "remote" else below):
            first, end, last, this = (".".join(map(str, numbers)) for numbers in (oldest, below, most, version))
            problem = f"is older than {first}" if version < oldest else f"is not less than {end}"
            later = f"; with runtime remote below {last}" if most > below else ""
            raise ConfigError(
                f"version: {self.name} {this} {problem}; supported: from {first} on, below {end}{later} "
                "(docs/upgrading.md says why)"
            )

    def check_topology(self, system: Spec, topology: Spec) -> None:
        """Unsupported for a runtime or an option that the engine lacks, ConfigError for a contradiction."""
        runtime = topology.get("runtime")
        if runtime not in self.runtimes:
            raise Unsupported(
                f"topology: engine {self.name} does not support runtime {runtime!r} yet; "
                f"supported: {', '.join(self.runtimes)}"
            )
        if self.program is not None and runtime == "docker":
            self._check_image(self.program, system, topology)
        if "publish" in topology and runtime != "docker":
            raise ConfigError(f"topology: publish is for runtime docker, not {runtime}")
        if "storage_limits" in topology and "storage" not in topology:
            raise ConfigError("topology: storage_limits: are those of a storage path; add the key storage")
        limits = set(topology.get("storage_limits") or ())
        if limits and not limits - {"pacing", "latency_us"}:
            raise ConfigError(
                f"topology: storage_limits.{min(limits)}: is of reads of a limit; add read_mib_per_s or read_ops_per_s"
            )
        if "latency_us" in limits and "pacing" not in limits:
            raise ConfigError("topology: storage_limits.latency_us: is added by even pacing; add pacing: even")
        if "storage" in topology and runtime != "native":
            raise ConfigError(
                f"topology: storage is for runtime native, not {runtime}: its files are this machine's; for runtime "
                "remote, declared_storage says what the server has"
            )
        for key in _CHOSEN:
            if key in topology and key not in self.topology:
                raise Unsupported(f"topology: engine {self.name} has no {key} to choose")
        by_role = {f"role_limits.{role}": of for role, of in (topology.get("role_limits") or {}).items()}
        for where, of in {"limits": topology.get("limits") or {}, **by_role}.items():
            memory_mib = of.get("memory_mib")
            if memory_mib is not None and memory_mib < self.memory_min_mib:
                raise ConfigError(
                    f"topology: {where}.memory_mib: {memory_mib} MiB; {self.name} does not start with less than "
                    f"{self.memory_min_mib}"
                )
        self._check_endpoints(topology)
        for key in ("nodes", "shards", "replicas"):
            if self.single is not None and topology[key] != 1:
                raise Unsupported(f"topology: {self.name} is {self.single}: {key} is 1, not {topology[key]}")

    def _check_image(self, program: str, system: Spec, topology: Spec) -> None:
        artifact = system.get("artifact") or {}
        if artifact.get("kind") != "image" or program not in artifact.get("programs", {}):
            raise ConfigError(
                f"artifact: no package holds {self.name}'s server: with runtime docker it needs {{kind: image, "
                f"image: NAME@sha256:…, programs: {{{program}: its path in the image}}}}"
            )
        for key in ("nodes", "replicas"):
            if topology[key] != 1:
                raise Unsupported(
                    f"topology: {self.name} has one container with runtime docker: {key} is 1, not {topology[key]}"
                )

    def _check_endpoints(self, topology: Spec) -> None:
        """ConfigError unless a remote topology names its endpoints, and no other has keys of a remote one."""
        if topology.get("runtime") != "remote":
            for key in ("endpoints", "credentials", "tls", "declared_storage"):
                if key in topology:
                    raise ConfigError(f"topology: {key} is for runtime remote, not {topology.get('runtime')}")
            return
        for key in ("limits", "role_limits", "publish", "external", "external_limits", "roles", "entry"):
            if key in topology:
                raise ConfigError(
                    f"topology: {key} can't be chosen for a server that somebody else runs (runtime remote)"
                )
        endpoints = topology.get("endpoints") or {}
        for name in self.endpoints:
            if name not in endpoints:
                raise ConfigError(
                    f"topology: endpoints.{name} is missing: the variable that holds {self.name}'s HOST:PORT"
                )
        refuse_unknown(f"topology.endpoints of {self.name}", endpoints, (*self.endpoints, *self.more_endpoints))

    def check_index(self, system: Spec, topology: Spec, index: Spec) -> None:
        """Unsupported for a type or quantizer that the engine lacks, ConfigError for wrong parameters."""
        if self.indexes is None:
            return
        name = f"{self.name} {system['version']}" if self.since else self.name
        _check_index(name, index, self.indexes, self.quantizers)
        for key in ("type", "quantizer"):
            first = self.since.get(str(index.get(key)))
            if first is not None and version_of(system) < first:
                raise Unsupported(
                    f"index.{key}: {index[key]} is unsupported by {name}; it came with {'.'.join(map(str, first))}"
                )

    def check_settings(self, system: Spec, topology: Spec, index: Spec) -> None:
        """ConfigError for a setting that is unknown or out of range."""
        settings = system.get("settings") or {}
        refuse_unknown(f"settings of {self.name}", settings, tuple(self.settings))
        for name, value in settings.items():
            whole_number(f"settings.{name}", value, *self.settings[name])

    def check_workload(self, system: Spec, topology: Spec, index: Spec, workload: Spec) -> None:
        """Unsupported for a way to ask that the engine lacks, ConfigError for a search that it can't do."""
        remote = topology["runtime"] == "remote"
        client = workload.get("client", "bytes")
        if remote and client in self.libraries and client not in self.remote_libraries:
            raise ConfigError(
                f"client: {self.name}'s {client} is not taken to a server that somebody else runs: it carries neither "
                f"credentials nor TLS here; supported: {', '.join(('bytes', *self.remote_libraries))}"
            )
        self.check_search(workload)
        nlist, nprobe = index.get("nlist"), workload.get("nprobe")
        if nlist is not None and nprobe is not None and nprobe > nlist:
            raise ConfigError(f"nprobe: {nprobe} is more than the index has lists: nlist: {nlist}")
        if remote and workload.get("stream") is not None:
            raise ConfigError(
                "stream: what is stored on a server that somebody else runs (runtime remote) is not changed"
            )
        fault = workload.get("fault")
        if fault is None:
            return
        if fault["kind"] == "path_loss":
            if "storage_limits" not in topology:
                raise ConfigError(
                    "fault.kind: path_loss needs a topology with storage_limits: it keeps a share of them"
                )
        elif self.no_fault is not None:
            raise Unsupported(f"fault: {self.name} {self.no_fault}")
        check_fault(topology, workload, self.members(system, topology))

    def check_search(self, workload: Spec) -> None:
        """Unsupported for a client that the engine lacks; ConfigError for a bad k or filter, or an effort below k.

        (Engines refuse an effort below k, or silently use k.)
        """
        if workload.get("nq", 1) > 1 and not self.batches:
            raise Unsupported(
                f"nq: {workload['nq']} vectors a request are unsupported by engine {self.name}: "
                "it is asked for one at a time"
            )
        if workload.get("stream") is not None and not self.stream:
            raise Unsupported(f"stream: engine {self.name} can't be written to while it is searched yet")
        client, supported = workload.get("client", "bytes"), ("bytes", *self.libraries)
        if client not in supported:
            raise Unsupported(
                f"client: engine {self.name} can't be asked through {client}; supported: {', '.join(supported)}"
            )
        k = whole_number(f"k for {self.name}", workload.get("k"), 1, self.largest_k)
        for name in ("ef_search", "search_list"):
            effort = workload.get(name)
            if effort is None:
                continue
            if whole_number(f"{name} for {self.name}", effort, 1, LARGEST_EFFORT) < k:
                raise ConfigError(f"{name}: {effort} is less than k: {k}; {self.name} can't search with that")
            if effort > self.ef_max:
                raise ConfigError(f"{name} for {self.name}: {effort} is more than {self.ef_max}")
        check_filter(workload.get("filter"))


def _check_index(engine: str, index: Spec, offered: Offered, quantizers: Mapping[str, tuple[str, ...]]) -> None:
    kind = str(index.get("type"))
    if kind in ON_GPU:
        raise Unsupported(
            f"index.type: {kind} is unsupported: it needs a GPU, and no package of {engine} is built for one"
        )
    if kind not in EFFORT:
        raise ConfigError(f"index.type: unknown type {kind!r}; known: {', '.join(EFFORT)}")
    if kind not in offered:
        raise Unsupported(f"index.type: {kind} is unsupported by {engine}; supported: {', '.join(offered)}")
    fitting = quantizers.get(kind, ())
    quantizer = index.get("quantizer")
    if quantizer is not None and quantizer not in QUANTIZERS:
        raise ConfigError(f"index.quantizer: unknown {quantizer!r}; known: {', '.join(QUANTIZERS)}")
    if quantizer is not None and quantizer not in fitting:
        has = f"supported: {', '.join(fitting)}" if fitting else "it quantizes none of that type"
        raise Unsupported(f"index.quantizer: {quantizer} of {kind} is unsupported by {engine}; {has}")
    known = offered[kind]
    extra: tuple[str, ...] = ("quantizer", "rescore_limit", "training_limit") if fitting else ()
    extra += ("segments",) if "pq" in fitting else ()
    refuse_unknown("index", index, ("type", *known, *extra))
    for name, parameter in known.items():
        if parameter.needed or name in index:
            whole_number(f"index.{name} for {engine}", index.get(name), parameter.low, parameter.high)
    for name in extra[1:]:
        if name in index:
            if quantizer is None:
                raise ConfigError(f"index.{name}: is of a quantizer, and there is none")
            whole_number(f"index.{name} for {engine}", index[name], 0 if name == "rescore_limit" else 1, 1_000_000)


def check_fault(topology: Spec, workload: Spec, members: Sequence[str]) -> None:
    """ConfigError for a fault of a member that is none of these, or that doesn't fit into a run."""
    fault, runtime, duration_s = workload["fault"], topology["runtime"], workload.get("duration_s")
    if runtime == "remote":
        raise ConfigError("fault: a server that somebody else runs (runtime remote) is left in peace")
    if fault["kind"] == "partition" and runtime != "docker":
        raise ConfigError("fault.kind: partition needs runtime docker: processes share the network of the machine")
    if "member" in fault and fault["member"] not in members:
        raise ConfigError(f"fault.member: {fault['member']!r} is no member; there are {', '.join(members)}")
    if "slo" in workload:
        raise ConfigError("fault: a search for a rate (slo) can't have one: it is many runs")
    if duration_s is None:
        raise ConfigError("fault: only a run of fixed time (duration_s) can have one")
    if fault["at_s"] + fault["for_s"] >= duration_s:
        raise ConfigError(
            f"fault: ends {fault['at_s'] + fault['for_s']:g} s after the start of a run of {duration_s:g} s"
        )
