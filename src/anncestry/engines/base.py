"""What an engine is at run time: its `Engine`, the server that it starts, and what they return."""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from anncestry.cells.indexes import rows_a_batch
from anncestry.datasets.payload import Column, Payload
from anncestry.errors import ServerError, UserError
from anncestry.progress import Progress
from anncestry.runtimes import remote
from anncestry.runtimes.base import Ending, Group
from anncestry.runtimes.native import await_listening

Spec = Mapping[str, Any]
T = TypeVar("T")
Answer = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Ids and distances of the nearest rows, nearest first."""
_LISTENING_TIMEOUT_S = 300.0
_ACCEPT_TIMEOUT_S = 300.0
_AGAIN_AFTER_S = 0.1


class DecodeError(Exception):
    """A reply that is no answer: not of the protocol."""


class ErrorReplyError(DecodeError):
    """A reply of the protocol that says that the request failed."""


class Vectors(Protocol):
    """What is loaded, by `metric` (l2 or cosine): row i of each array belongs to id i.

    `base` are (n, d) vectors, for "cosine" of length 1; the metadata are (n,), of which `region` goes with position
    (datasets/metadata.py); `payload` is more of it, where conditions of the dataset's queries act on some.
    """

    @property
    def base(self) -> NDArray[np.float32]: ...
    @property
    def category(self) -> NDArray[np.uint8]: ...
    @property
    def price(self) -> NDArray[np.float32]: ...
    @property
    def region(self) -> NDArray[np.uint8]: ...
    @property
    def metric(self) -> str: ...
    @property
    def payload(self) -> Payload: ...


class Server:
    """A running system: one member or more (processes, containers), or a remote one. The first member is asked."""

    collection: ClassVar[str] = ""
    """Its name, on a server that holds others' collections too."""
    where: str = ""
    """Such a server, in messages."""
    interface: ClassVar[str]
    """The one that queries use."""
    scratch: Path | None = None
    """Folder where the requests of a load wait (see `Requests`); None: the machine's folder for temporary files."""

    def __init__(self, group: Group, topology: Spec) -> None:
        self.group = group
        self.topology = topology
        """What was declared."""
        self.start_s = 0.0
        """Seconds from its start until it answered."""
        self.began_s = time.monotonic()
        """When its first member was started (of `time.monotonic`), before any start that was repeated."""
        self.repeated: str = ""
        """Why the start was made a second time, where the first one's members died before it ever answered."""
        self.mark: str | None = None
        """What marks the collection, on a server that holds others'."""
        self.own_credentials: dict[str, str] | None = None
        """Those that we made, of a server of our own."""
        self.exact_at: tuple[float, int] | None = None
        """Share of rows that a filter passes, and effort, at which a search is exact, of a system that never scans."""

    def repeats(self) -> dict[str, str]:
        """For a record: why this server was started twice; nothing for one that was started once."""
        return {"start_repeated": self.repeated} if self.repeated else {}

    def check_alive(self) -> None:
        """ServerError, which names it, with the end of its log if a member is gone. Cheap: for use during runs."""
        self.group.check_alive()

    def check_members(self) -> None:
        """ServerError also if the system itself misses a member. (One that is alone can't.)"""
        self.group.check_alive()

    def members(self) -> dict[str, dict[str, Any]]:
        """By name of the member: role, whether it is alive, limits and how they are enforced, use; for the record."""
        return self.group.facts()

    def charged(self) -> dict[str, float]:
        """Memory that the control groups of all members charge now (MiB), where each of them has one; of a server of
        one member also its CPU seconds, which begin at 0 each time that it is started."""
        accounts = [member.handle.usage() for member in self.group]
        names = {
            "charged_mib": "memory_mib",
            "charged_anon_mib": "memory_anon_mib",
            "charged_cache_mib": "memory_cache_mib",
            **({"cpu_s": "cpu_s"} if len(accounts) == 1 else {}),
        }
        charged = {name: account for name, account in names.items() if all(account in each for each in accounts)}
        return {name: sum(each[account] for each in accounts) for name, account in charged.items() if accounts}

    def counters(self) -> dict[str, dict[str, float]]:
        """By name of the member: running totals that it keeps ("searches"), where it does; for the record."""
        return {}

    def crash(self) -> None:
        """SIGKILL to the one member that there is, which is started again on its data at once; until it listens."""
        (member,) = self.group
        member.handle.kill()
        member.handle.restart()
        await_listening(member.handle, self.endpoint, _LISTENING_TIMEOUT_S)

    # On a server that others run, the collection bears a mark

    def found_mark(self) -> str | None:
        """The mark of the collection that is there, "" for one without, None where there is no collection."""
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        """Check how each interface is encrypted, before anything is said there."""
        raise NotImplementedError

    def drop(self) -> None:
        """Remove the collection if it bears our mark; UserError on a server of one's own, ServerError for another's."""
        if self.mark is None:
            raise UserError("nothing is dropped from a server of one's own: its data lies in a folder")
        remote.check_mark(self.where, self.collection, self.found_mark(), self.mark)
        self.remove()

    def make_room(self) -> None:
        """Remove what an earlier load of ours left, before the collection is made; UserError if it is not ours."""
        if self.mark is not None and remote.may_replace(self.where, self.collection, self.found_mark()):
            self.remove()

    def address(self, interface: str) -> str:
        """host:port of an interface that only one member has (or the first of those that have it)."""
        return next(member.addresses[interface] for member in self.group if interface in member.addresses)

    @property
    def endpoint(self) -> str:
        """host:port of the interface that queries use."""
        return self.address(self.interface)

    @property
    def endpoints(self) -> list[str]:
        """host:port of every interface that queries may use, that of `endpoint` first."""
        return [self.endpoint]

    def stop(self) -> Ending:
        """Stop it, cleanly where it can be; nothing of it is left. Safe to call again."""
        return self.group.stop()

    @property
    def credentials(self) -> dict[str, str] | None:
        """Name and scheme of the credentials that every call must carry, if any."""
        return self.own_credentials or next(iter(self.group)).handle.named

    @property
    def tls(self) -> dict[str, Any] | None:
        """How every connection is encrypted (runtimes/tls.py); None where it isn't."""
        return next(iter(self.group)).handle.tls

    def access(self) -> dict[str, Any]:
        """What a transport has of the credentials (by their name) and of TLS, where there are any."""
        found = {"authorization": self.credentials, "tls": self.tls}
        return {name: value for name, value in found.items() if value is not None}

    def grpc_transport(self, method: str) -> dict[str, Any]:
        """A gRPC transport to the first entry, or with `entry: all` to every one, each client another in turn."""
        transport: dict[str, Any] = {"kind": "grpc", "target": self.endpoint, "method": method, **self.access()}
        if self.topology.get("entry") == "all":
            transport["targets"] = self.endpoints
        return transport

    def sql_transport(self, **options: Any) -> dict[str, Any]:
        """A transport with a login; `options` are its kind, user, database, …"""
        transport = {"target": self.endpoint, **options}
        if self.credentials is not None:
            transport["password_env"] = self.credentials["env"]
        if self.tls is not None:
            transport["tls"] = self.tls
        return transport


S = TypeVar("S", bound=Server)
"""The servers of one engine."""


@dataclass(frozen=True)
class Batch:
    """Rows `first`, `first` + 1, … of a load: (m, d) vectors, (m,) metadata; of payload columns m values each."""

    first: int
    base: NDArray[np.float32]
    category: NDArray[np.uint8]
    price: NDArray[np.float32]
    region: NDArray[np.uint8]
    payload: Sequence[tuple[Column, list[Any]]] = ()

    @property
    def end(self) -> int:
        """One more than its last row."""
        return self.first + len(self.base)

    @property
    def names(self) -> list[str]:
        """Of its columns of metadata and payload."""
        return ["category", "price", "region", *(column.stored_as for column, _ in self.payload)]

    def columns(self) -> Iterator[tuple[Any, ...]]:
        """Their values, row by row."""
        of_payload = (values for _, values in self.payload)
        return zip(self.category.tolist(), self.price.tolist(), self.region.tolist(), *of_payload, strict=True)


def batch(vectors: Vectors, first: int, end: int) -> Batch:
    """Rows from `first` on, below `end`."""
    part = slice(first, end)
    columns = (vectors.base[part], vectors.category[part], vectors.price[part], vectors.region[part])
    return Batch(first, *columns, vectors.payload.part(part))


def batch_rows(vectors: Vectors, load: Spec) -> int:
    """Rows of each request of a load of `vectors`, but for the last one, which has the rest."""
    return rows_a_batch(load["batch_rows"], vectors.base.shape[1])


def batches(vectors: Vectors, batch_rows: int) -> Iterator[Batch]:
    rows = len(vectors.base)
    return (batch(vectors, first, min(first + batch_rows, rows)) for first in range(0, rows, batch_rows))


@dataclass(frozen=True)
class Phase:
    """A part of the load: `start_s` and `end_s` on the clock of `time.monotonic`, which its length is taken from."""

    name: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


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

    `encode_s` is what encoding all requests took, before the first phase. `phases`, in order: insert, from the first
    row sent to the last acknowledged; flush, until the rows are sealed and stored, where that is a step of its own;
    index, until it covers every row (about 0 where it is built while inserting); ready, until a search succeeds.
    `rows_acknowledged` rows that the server confirmed, `insert_errors` rows that it refused, `first_error` what it said
    of the first of them. `batches` are those that were sent; `sizes` counts them by their number of rows.

    `library` names the client library that inserted the rows, where it was the database's own.

    `durable_at_s` (`time.monotonic`) is when all rows and the index were in the system's files, without any log, as
    far as the system can be asked for it; `durability` says what it was asked, or why it can't be.
    """

    rows_sent: int = 0
    rows_acknowledged: int = 0
    insert_errors: int = 0
    first_error: str | None = None
    batches: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    encode_s: float | None = None
    library: str | None = None
    phases: list[Phase] = field(default_factory=list)
    durable_at_s: float | None = None
    durability: str = "not asked for: its engine knows no way"
    killed: Killed | None = None
    """Of a load that says so (`kill`), once its server was killed."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        start_s = time.monotonic()
        yield
        self.phases.append(Phase(name, start_s, time.monotonic()))

    def acknowledge(self, sent: int, failed: int, error: str | None) -> None:
        """Count a batch of `sent` rows, `failed` of which were refused with `error`."""
        self.batches += 1
        self.sizes[sent] += 1
        self.rows_sent += sent
        self.rows_acknowledged += sent - failed
        self.insert_errors += failed
        if failed and self.first_error is None:
            self.first_error = error

    def durable(self, durability: str) -> None:
        """Everything is in the system's files from now on, and what it was asked for that."""
        self.durable_at_s, self.durability = time.monotonic(), durability

    def seconds(self, name: str) -> float | None:
        """Length of a phase, None where the system has no such phase."""
        return next((phase.duration_s for phase in self.phases if phase.name == name), None)


class Requests:
    """The insert requests of a load, in order, encoded before its clock starts: (ids of the rows, bytes) each.

    The bytes lie in a file without a name, however many they are, and are read as they are sent. The file is synced
    before the clock starts, so that writing it does not go on during the insertion. May be read by several threads.
    """

    def __init__(
        self, folder: Path | None, rows: Iterable[Batch], encode: Callable[[Batch], bytes], result: LoadResult
    ) -> None:
        started = time.monotonic()
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._ids: list[range] = []
        self._ends = [0]
        for batch in rows:
            self._ids.append(range(batch.first, batch.end))
            self._ends.append(self._ends[-1] + self._file.write(encode(batch)))
        self._file.flush()
        os.fsync(self._file.fileno())
        result.encode_s = time.monotonic() - started

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, number: int) -> tuple[range, bytes]:
        start, end = self._ends[number : number + 2]
        return self._ids[number], os.pread(self._file.fileno(), end - start, start)

    def __iter__(self) -> Iterator[tuple[range, bytes]]:
        return map(self.__getitem__, range(len(self)))

    @property
    def longest(self) -> int:
        """Bytes of the longest one."""
        return max((end - start for start, end in pairwise(self._ends)), default=0)


class Kill:
    """The kill that a `load` (see `engines.base.Engine`) has, or none: SIGKILL to its server, which is then started
    again on its data, and the client goes on.

    It comes right after a batch was acknowledged, at which the server has promised to keep that batch and all before
    it. A client of such a server sends again what is not acknowledged, and so does this one, counting.

    kill = Kill(server, load, rows, result)
    for rows, body in requests:
        answer = kill.send(lambda: insert(body), lambda answer: first_refusal_of(answer))
        result.acknowledge(…)
        kill.when_due()
    """

    def __init__(self, server: Server, load: Spec, rows: int, result: LoadResult) -> None:
        kill = load.get("kill")
        self._server, self._result = server, result
        self._due_rows = None if kill is None else kill["after_share"] * rows

    def when_due(self) -> None:
        """Kill the server and start it again, if as many rows as were asked are acknowledged; once."""
        result = self._result
        if self._due_rows is None or result.killed is not None or result.rows_acknowledged < self._due_rows:
            return
        result.killed = Killed(result.rows_acknowledged, time.monotonic())
        self._server.crash()

    def send(self, insert: Callable[[], T], refusal: Callable[[T], str | None]) -> T:
        """What `insert` returns; after the kill it is called until it neither fails nor has a `refusal`.

        ServerError from `insert` as long as nothing was killed; later, if the server is gone or time is up.
        """
        killed = self._result.killed
        if killed is None:
            return insert()
        deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
        while True:
            try:
                answer = insert()
                problem = refusal(answer)
            except ServerError as error:
                problem = str(error.args[0])
            else:
                if problem is None:
                    killed.accepted_s = killed.accepted_s or time.monotonic()
                    return answer
            self._server.check_alive()
            if time.monotonic() > deadline:
                raise ServerError(
                    f"not accepted within {_ACCEPT_TIMEOUT_S:.0f} s since the server was killed: {problem}"
                )
            killed.resent += 1
            time.sleep(_AGAIN_AFTER_S)


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


WRITES = ("insert", "delete")
"""What can be done to rows while they are searched."""


class EngineOf(ABC, Generic[S]):
    """A database, at run time: how it is started, loaded, asked and read back. What it can do, its `Offers` declare.

    `system` is an entry of systems.yaml, `topology` one of topologies.yaml, `index` e.g. {"type": "hnsw", "M": 16,
    "ef_construction": 200}, `load` e.g. {"batch_rows": 500} (see `batch_rows`). A server holds one collection.

    `ef_search` is the search effort of the index's type (cells/indexes.py): ef, or nprobe, …; 0 for one without.
    """

    exact_scans: ClassVar[bool] = False
    """Its exact searches compare the vectors themselves, even where its index holds codes."""
    plain_hnsw: ClassVar[bool] = True
    """M, ef_construction and ef of its HNSW mean what they mean in the paper, so that its recall has a reference."""
    scans: ClassVar[bool] = True
    """Under a filter that few rows pass it compares all of them: none that matches may be left out."""
    float32_scores: ClassVar[bool] = False
    """It tells squared distances as 1 / (1 + d²) in float32, which has few digits for near rows."""
    narrows: ClassVar[bool] = False
    """Its `encode` takes a filter that is narrowed by another (engines/conditions.py)."""

    @abstractmethod
    def start(
        self, artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
    ) -> S:
        """Start on an empty or stored `data_dir` and wait until it answers; ServerError with the log's end if not.

        Free ports are picked, the ones of the last start on this folder where they are free;
        with `first_port`, the adjacent ports from there on are used, or UserError names the one in use.
        """

    @abstractmethod
    def load(self, server: S, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the collection, insert everything in batches, build the index, wait until it is searched.

        Then have it stored for good, where the system can be asked to (`LoadResult.durable`).
        """

    def encoded(
        self,
        server: S,
        vectors: Vectors,
        load: Spec,
        result: LoadResult,
        by_library: Callable[[Batch], bytes] | None = None,
    ) -> Requests:
        """The requests of a load, made now by `encode_insert`: before its first phase. Use it as a context.

        Where the load goes through the database's own library (`client: sdk`), they are made by `by_library`: rows for
        that library, which encodes them itself, while the clock runs.
        """
        encode: Callable[[Batch], bytes] = partial(self.encode_insert, server)
        if by_library is not None and load.get("client") == "sdk":
            encode = by_library
        return Requests(server.scratch, batches(vectors, batch_rows(vectors, load)), encode, result)

    def encode_insert(self, server: S, rows: Batch) -> bytes:
        """The request that inserts all of `rows`."""
        raise NotImplementedError

    def open(self, server: S, index: Spec) -> float:
        """Make the stored collection searchable after a restart; returns seconds until it is."""
        started = time.monotonic()
        self.await_open(server, index)
        return time.monotonic() - started

    def await_open(self, server: S, index: Spec) -> None:
        """What `open` times: returns once the collection is searched. Here: once a probe answers."""
        self.probe(server)

    @abstractmethod
    def probe(self, server: S) -> Probe:
        """Ask the server for its version, rows, index state, settings and topology."""

    @abstractmethod
    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        """What `Probe.settings` must say of a server with this index, and this search effort if one was applied."""

    @abstractmethod
    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        """Short statements on how this system is treated, for the reader of a report."""

    @abstractmethod
    def data_components(self, data_dir: Path) -> list[Component]:
        """The parts of a data folder. Together they are all of it."""

    def apply(self, server: S, ef_search: int) -> None:
        """Set the search effort where it is a setting of the server; read back. Here: it travels in each request."""

    def exact_filters(self, server: S, on: bool) -> None:
        """Answer narrow filters by an exact scan, whatever the system's settings say (on), or as they say (off).

        For the exact-search oracle: a system set to search its graph under any filter is right to be inexact.
        Here: nothing, for a system that scans anyway.
        """

    @abstractmethod
    def count(self, server: S, filter: Spec | None) -> int:
        """Rows that pass the filter, as the server counts them by its own reading of it."""

    @abstractmethod
    def encode(
        self, server: S, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        """The request bytes of each of the (n, d) queries. `filter` is a resolved one: see `filter_bounds`."""

    @abstractmethod
    def transport(self, server: S) -> dict[str, Any]:
        """How to send them: kind, target (host:port), method; `targets` where clients take several in turn."""

    def transport_of(self, server: S, k: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
        """The same for a workload's searches: for `k` rows, each under one of these `filters`."""
        return self.transport(server)

    @abstractmethod
    def decode(self, response: bytes, metric: str) -> Answer:
        """Ids (m,) and canonical distances (m,), nearest first; DecodeError where the reply is no answer.

        l2 is the squared Euclidean distance, cosine 1 − cos.
        """

    # With `Offers.batches`: requests of several vectors

    def encode_batches(
        self, server: S, batches: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        """The request bytes of each of the (n, nq, d) batches, with one filter for all."""
        raise NotImplementedError

    def decode_batch(self, response: bytes, metric: str) -> list[Answer]:
        """As `decode`, for each vector of the request, in their order."""
        raise NotImplementedError

    # With `Offers.libraries`: the database's own client libraries, and others'

    def library_transport(
        self, server: S, client: str, k: int, ef_search: int, filters: Sequence[Spec | None]
    ) -> dict[str, Any]:
        """How to ask through the library `client`: kind sdk, target, `module` with `connect`, options.

        A request is the number of one of `filters` (uint32) and the query (float32).
        """
        raise NotImplementedError

    def library_decode(self, response: bytes, metric: str) -> Answer:
        """As `decode`, for what that library returned."""
        raise NotImplementedError

    # With `Offers.stream`, and `encode_insert`: rows that change while they are searched

    def write_transport(self, server: S, kind: str) -> dict[str, Any]:
        """How to send the requests of a kind of `WRITES`: as `transport`."""
        raise NotImplementedError

    def encode_delete(self, server: S, ids: Sequence[int]) -> bytes:
        """The request that deletes the rows of these ids."""
        raise NotImplementedError

    def decode_write(self, kind: str, response: bytes) -> int | None:
        """Number of rows inserted or deleted; DecodeError where the reply is none, or an error.

        None where the system counts only what it refuses: all that were sent.
        """
        raise NotImplementedError


Engine = EngineOf[Any]
"""Any engine: its servers are those that it started."""


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


def listed(settings: Spec | None) -> str:
    """A system's settings in a statement on fairness."""
    return ", ".join(f"{name}={value}" for name, value in (settings or {}).items()) or "nothing"
