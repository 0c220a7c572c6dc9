"""Weaviate at run time: loaded, asked and read back; `serve` starts it, `state` waits for it, `wire` makes bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.payload import Column
from anncestry.drive.build import interpreter
from anncestry.drive.transports import unpack
from anncestry.engines import sdk_rows
from anncestry.engines.base import (
    Answer,
    Batch,
    Component,
    EngineOf,
    Kill,
    LoadResult,
    Probe,
    Spec,
    Vectors,
    components,
    listed,
)
from anncestry.engines.channel import call
from anncestry.engines.conditions import comparisons
from anncestry.engines.offers import version_of
from anncestry.engines.weaviate import (
    COLLECTION,
    METRICS,
    TRAINED,
    asked_index,
    describe_index,
    graph_of,
    in_background,
    index_config,
    read_back,
    sdk_environment,
    serve,
    state,
    wire,
)
from anncestry.engines.weaviate.serve import WeaviateServer
from anncestry.errors import ServerError
from anncestry.progress import Progress

_BATCH_TIMEOUT_S = 300.0


def class_definition(
    settings: Spec, index: Spec, metric: str, topology: Spec, mark: str | None, payload: Sequence[Column] = ()
) -> dict[str, Any]:
    """The collection, sharded and replicated as declared; metadata indexed for the filters that workloads use."""
    return {
        "class": COLLECTION,
        "description": mark or "",
        "vectorizer": "none",
        "vectorIndexType": index["type"],
        "vectorIndexConfig": index_config(settings, index, metric),
        "properties": [
            {"name": "category", "dataType": ["int"], "indexFilterable": True},
            {"name": "price", "dataType": ["number"], "indexFilterable": True, "indexRangeFilters": True},
            {"name": "region", "dataType": ["int"], "indexFilterable": True, "indexRangeFilters": True},
            *map(_property, payload),
        ],
        # Keywords are compared whole, whatever they are: a column may well hold "a" and "the".
        **({"invertedIndexConfig": {"stopwords": {"preset": "none"}}} if payload else {}),
        "shardingConfig": {"desiredCount": topology["shards"]},
        "replicationConfig": {"factor": topology["replicas"]},
    }


def _property(column: Column) -> dict[str, Any]:
    if column.kind == "keyword":
        text = {"dataType": ["text"], "tokenization": "field", "indexSearchable": False}
        return {"name": column.stored_as, "indexFilterable": True, **text}
    kind = {"int": "int", "float": "number"}[column.kind]
    return {"name": column.stored_as, "dataType": [kind], "indexFilterable": True, "indexRangeFilters": True}


Insert = Callable[[range, bytes], dict[int, str]]
"""Ids of a batch and its request → the rows of it that were refused, by their place in it, and why."""
_DURABILITY = "no call has it write its buffers; its log of writes is not synced"


def _program(server: WeaviateServer) -> Path:
    """The file that uses the client library which speaks the protocol of the system."""
    return Path(__file__).with_name("sdk_rest.py" if server.by_rest else "sdk.py")


@contextmanager
def _inserter(server: WeaviateServer, load: Spec, result: LoadResult) -> Iterator[Insert]:
    """What sends a batch, by the protocol of the system, on one connection; ServerError from it if the call fails."""
    if load.get("client") == "sdk":
        environment, first = sdk_environment(server.system), next(iter(server.group))
        options = {
            "collection": COLLECTION,
            "http": int(first.addresses["http"].rpartition(":")[2]),
            "uuid_prefix": wire.UUID_PREFIX,
            "timeout_s": _BATCH_TIMEOUT_S,
        }
        python = sys.executable if environment is None else interpreter(environment)
        file, name = _program(server), "weaviate-client"
        with sdk_rows.inserter(python, file, name, server.endpoint, options, 2 * _BATCH_TIMEOUT_S) as (library, insert):
            result.library = library
            yield insert
        return
    if server.by_rest:
        address = next(iter(server.group)).addresses["http"]
        with closing(wire.json_connection(address, _BATCH_TIMEOUT_S, server.tls)) as link:

            def by_json(ids: range, body: bytes) -> dict[int, str]:
                return wire.insert_json(link, body, len(ids), server.consistency)

            yield by_json
        return
    with serve.channel(server) as connection:

        def by_grpc(_: range, request: bytes) -> dict[int, str]:
            method, reply = wire.WRITE_METHODS["insert"], wire.InsertReply
            answer = call(connection, method, request, reply, _BATCH_TIMEOUT_S, "BatchObjects")
            return {problem.index: problem.error for problem in answer.errors}

        yield by_grpc


class Weaviate(EngineOf[WeaviateServer]):
    narrows = True

    start = staticmethod(serve.start)

    def load(self, server: WeaviateServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create, insert (which builds the index, or queues rows for it), wait until all are in the index, search once.

        A row that is refused is counted; a call that fails ends the load, as nobody knows which of its rows arrived.
        (Not after a kill that the load has: see `engines.base.Kill`.)
        """
        server.make_room()
        server.rest.call(
            "POST",
            "/v1/schema",
            class_definition(
                server.settings, index, vectors.metric, server.topology, server.mark, vectors.payload.columns
            ),
        )
        rows = len(vectors.base)
        result = LoadResult(durability=_DURABILITY)
        kill = Kill(server, load, rows, result)
        with (
            self.encoded(server, vectors, load, result, sdk_rows.request) as requests,
            _inserter(server, load, result) as insert,
            result.phase("insert"),
        ):
            for ids, request in requests:
                try:
                    refused = kill.send(partial(insert, ids, request), lambda answer: next(iter(answer.values()), None))
                except ServerError as error:
                    server.check_alive()
                    raise ServerError(f"weaviate: insertion of rows {ids[0]} to {ids[-1]}: {error}") from None
                result.acknowledge(len(ids), len(refused), next(iter(refused.values()), None))
                progress.at(result.rows_sent)
                kill.when_due()
        with result.phase("index"):
            state.await_placed(server)
            # Such a server may not answer for minutes while it makes a graph of a flat index.
            waits = in_background(server.settings)
            state.await_queues(server, state.INDEX_TIMEOUT_S, patient=waits)
            if index.get("quantizer") in TRAINED:
                state.compress(server, index)
            state.await_replicated(server, rows)
            if waits:
                state.await_indexed(server, vectors.price[:rows], vectors.base[0])
        with result.phase("ready"):
            state.await_searchable(server)
        return result

    def await_open(self, server: WeaviateServer, index: Spec) -> None:
        state.await_placed(server)
        if in_background(server.settings):
            state.await_queues(server, state.OPEN_TIMEOUT_S)
        state.await_searchable(server)

    def probe(self, server: WeaviateServer) -> Probe:
        rest = server.rest
        definition = rest.collection()
        distance = (graph_of(definition) or definition["vectorIndexConfig"])["distance"]
        placed = state.placement(server)
        holders: dict[str, set[str]] = {}
        for part in placed:
            holders.setdefault(part.shard, set()).add(part.node)
        healthy = {node["name"] for node in rest.membership() if node["status"] == "HEALTHY"}
        complete, detail = state.index_state(server)
        rows = rest.count()
        if definition["vectorIndexType"] == "dynamic":
            done, words = state.settled(state.forms(server), rows, definition["vectorIndexConfig"]["threshold"])
            complete, detail = complete and done, f"{detail}; {words}"
        return Probe(
            version=str(rest.call("GET", "/v1/meta")["version"]),
            rows=rows,
            index_complete=complete,
            index_detail=detail,
            settings={
                **read_back(definition, rest.shards()),
                "metric": {theirs: ours for ours, theirs in METRICS.items()}.get(distance),
                "shards": definition["shardingConfig"]["actualCount"],
                "replication_factor": definition["replicationConfig"]["factor"],
            },
            nodes=len(healthy - set(server.missed())),
            shards=len(holders),
            replicas=min((len(nodes) for nodes in holders.values()), default=0),
            placement=tuple(placed),
        )

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        return {"metric": metric, **asked_index(system.get("settings") or {}, index, ef_search)}

    def data_components(self, data_dir: Path) -> list[Component]:
        # Objects (with their vectors), inverted and vector index are a shard's own folders.
        shard = "data/*/*"
        return components(
            data_dir,
            [
                (name, net, [*patterns, *(f"node*/{pattern}" for pattern in patterns)])
                for name, net, patterns in (
                    ("objects", True, [f"{shard}/lsm/objects"]),
                    ("inverted_index", True, [f"{shard}/lsm/property_*"]),
                    ("vector_index", True, [f"{shard}/*.hnsw.commitlog.d", f"{shard}/lsm/vectors*"]),
                    ("raft", False, ["data/raft"]),
                    ("logs", False, ["logs"]),
                    ("config", False, ["ports.json"]),
                )
            ],
        )

    def apply(self, server: WeaviateServer, ef_search: int) -> None:
        state.configure(server, "ef", ef_search)

    exact_filters = staticmethod(state.exact_filters)

    def count(self, server: WeaviateServer, filter: Spec | None) -> int:
        return server.rest.count("" if filter is None else wire.where(filter))

    def encode(
        self, server: WeaviateServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        # ef is a setting of the collection: see `apply`.
        if server.by_rest:
            condition = None if filter is None else wire.where(filter)
            return [wire.json_search(query, k, condition, server.consistency) for query in queries]
        filters = None if filter is None else wire.filters(filter)
        return [wire.search_request(query, k, filters, server.consistency).SerializeToString() for query in queries]

    def transport(self, server: WeaviateServer) -> dict[str, Any]:
        return server.http_transport() if server.by_rest else server.grpc_transport(wire.METHOD)

    decode = staticmethod(wire.decode)

    def library_transport(
        self, server: WeaviateServer, client: str, k: int, ef_search: int, filters: Sequence[Spec | None]
    ) -> dict[str, Any]:
        first = next(iter(server.group))
        _, _, port = first.addresses["http"].rpartition(":")
        terms = [_terms(filter) for filter in filters]
        transport: dict[str, Any] = {
            "kind": "sdk",
            "module": f"{__package__}.sdk",
            "package": "weaviate-client",
            "target": server.endpoint,
            "options": {"k": k, "filters": terms, "http": int(port), "collection": COLLECTION},
        }
        environment = sdk_environment(server.system)
        if environment is not None:  # where nothing of ours is
            transport |= {"environment": environment, "module": str(_program(server))}
        return transport

    def library_decode(self, response: bytes, metric: str) -> Answer:
        ids, distances = unpack(response)
        return ids, distances if metric == "l2" else 1.0 + distances

    def write_transport(self, server: WeaviateServer, kind: str) -> dict[str, Any]:
        return server.grpc_transport(wire.WRITE_METHODS[kind])

    def encode_insert(self, server: WeaviateServer, rows: Batch) -> bytes:
        if server.by_rest:
            return wire.json_batch(rows)
        return bytes(wire.batch_request(rows, server.consistency).SerializeToString())

    def encode_delete(self, server: WeaviateServer, ids: Sequence[int]) -> bytes:
        return wire.encode_delete(ids, server.consistency)

    decode_write = staticmethod(wire.decode_write)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        settings = system.get("settings") or {}
        shards, replicas = topology["shards"], topology["replicas"]
        told = "GOMEMLIMIT (90 % of the limit) and GOMAXPROCS, " if topology.get("limits") else ""
        rest, ranged = settings.get("protocol") == "rest", version_of(system) >= (1, 26, 0)
        theirs = topology["runtime"] == "remote"
        background = in_background(settings)
        built = "in the background (ASYNC_INDEXING)" if background else "while rows are inserted (synchronous indexing)"
        asked = topology.get("consistency", "its defaults (writes quorum, searches one)")
        return {
            "query protocol": (
                "GraphQL over HTTP/1.1 kept alive, one vector a request, as the shortest decimals of float32; "
                "ids and distances are returned, no properties"
                if rest
                else "gRPC, one vector a request, as float32 bytes; ids and distances are returned, no properties"
            ),
            "insert protocol": (
                "REST batch/objects, JSON with the shortest decimals, one connection, the next batch once acknowledged"
                if rest
                else "gRPC BatchObjects, one connection, the next batch after the acknowledgement"
            ),
            **describe_index(index),
            "ef applies to": "the graph of each shard; a setting of the collection, changed between runs",
            "segments": f"{_count(shards, 'shard')}, each one graph, built {built}",
            "clients ask": (
                "each another node in turn"
                if topology.get("entry") == "all"
                else "the first node, which asks the others"
            )
            if topology["nodes"] > 1
            else "the one node",
            "filters": (
                f"inverted index (category) and {'range' if ranged else 'inverted'} index (price) first; below "
                f"flatSearchCutoff="
                f"{settings.get('flatSearchCutoff', 'default 40000')} matches an exact scan, above it HNSW with "
                f"filterStrategy={settings.get('filterStrategy', 'default')}"
            ),
            "consistency": "one replica: there is nothing to wait for"
            if replicas == 1
            else f"{replicas} replicas, {asked}",
            "durability": "inserts are acknowledged after the write-ahead log was written, without an fsync each",
            "set by the system": listed(settings),
            "set by anncestry": "nothing of the server: somebody else runs it"
            if theirs
            else (
                f"paths, ports, addresses, {told}log level; index and vectors loaded before it is ready"
                + ("; RAFT timeouts of a local network" if topology["nodes"] > 1 else "")
            ),
            "left at defaults": "caches, compaction, concurrency"
            + ("" if told else ", GOMEMLIMIT")
            + ("" if topology["nodes"] > 1 else ", timeouts of raft"),
        }


def _terms(filter: Spec | None) -> list[tuple[str, str, Any]]:
    """What a row must fulfil, all of it: property, comparison (as the library names it), value; empty of no filter."""
    names = {"in": "contains_any", ">=": "greater_or_equal", "<": "less_than"}
    terms = []
    for one in comparisons(filter) if filter is not None else ():
        value = wire.property_value(one)
        terms.append((wire.property_name(one), names[one.operator], list(value) if isinstance(value, tuple) else value))
    return terms


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


ENGINE = Weaviate()
