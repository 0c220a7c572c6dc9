"""Load a Weaviate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.payload import Column
from anncestry.engines.base import LoadResult, Server, Spec, Vectors, wait_for
from anncestry.engines.killing import Kill
from anncestry.engines.weaviate import background, indexes, json_wire
from anncestry.engines.weaviate.proto import batch_pb2
from anncestry.engines.weaviate.rows import uuid_of
from anncestry.engines.weaviate.serve import (
    WeaviateServer,
    as_weaviate,
    await_placed,
    await_replicated,
    await_searchable,
    channel,
    index_state,
)
from anncestry.engines.weaviate.settings import COLLECTION, REMOTE, in_background
from anncestry.engines.weaviate.wire import by_rest, consistency_level
from anncestry.errors import ServerError
from anncestry.progress import Progress
from anncestry.runtimes.remote import may_replace

_COLUMNS = ("category", "price", "region")
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
        "vectorIndexConfig": indexes.config(settings, index, metric),
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


def batch_request(
    first: int,
    base: NDArray[np.float32],
    category: NDArray[np.uint8],
    price: NDArray[np.float32],
    region: NDArray[np.uint8],
    consistency: str | None = None,
    payload: Sequence[tuple[Column, list[Any]]] = (),
) -> Any:
    """The insertion of rows `first`, `first` + 1, …: (m, d) vectors as bytes and (m,) metadata, payload columns too."""
    request = batch_pb2.BatchObjectsRequest(consistency_level=consistency_level(consistency))
    names = (*_COLUMNS, *(column.stored_as for column, _ in payload))
    columns = zip(category.tolist(), price.tolist(), region.tolist(), *(values for _, values in payload), strict=True)
    rows = zip(base.astype("<f4", copy=False), columns, strict=True)
    for row, (vector, values) in enumerate(rows, start=first):
        item = request.objects.add(collection=COLLECTION, uuid=uuid_of(row), vector_bytes=vector.tobytes())
        item.properties.non_ref_properties.update(dict(zip(names, values, strict=True)))
    return request


Insert = Callable[..., dict[int, str]]
"""First row and the columns of a batch → the rows that were refused, by their place in it, and why."""


@contextmanager
def _inserter(server: WeaviateServer) -> Iterator[Insert]:
    """What sends a batch, by the protocol of the system, on one connection; ServerError from it if the call fails."""
    consistency = server.topology.get("consistency")
    if by_rest(server):
        address = next(iter(server.group)).addresses["http"]
        with json_wire.connection(address, _BATCH_TIMEOUT_S, server.tls) as link:

            def by_json(first: int, *columns: Any) -> dict[int, str]:
                body = json_wire.batch_request(first, *columns)
                return json_wire.insert(link, body, len(columns[0]), server.topology)

            yield by_json
        return
    with channel(server) as connection:
        insert = connection.unary_unary(
            "/weaviate.v1.Weaviate/BatchObjects",
            request_serializer=batch_pb2.BatchObjectsRequest.SerializeToString,
            response_deserializer=batch_pb2.BatchObjectsReply.FromString,
        )

        def by_grpc(first: int, *columns: Any) -> dict[int, str]:
            base, category, price, region, payload = columns
            request = batch_request(first, base, category, price, region, consistency, payload)
            try:
                reply = insert(request, timeout=_BATCH_TIMEOUT_S)
            except grpc.RpcError as error:
                raise ServerError(f"{error.code().name}: {error.details()}") from None
            return {problem.index: problem.error for problem in reply.errors}

        yield by_grpc


def load(server: Server, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
    """Create, insert (which builds the index, or queues rows for it), wait until all are in the index, search once.

    A row that is refused is counted; a call that fails ends the load, as nobody knows which of its rows arrived.
    (Not after a kill that the load has: see `engines.killing`.)
    """
    weaviate = as_weaviate(server)
    if weaviate.mark is not None and may_replace(REMOTE, COLLECTION, weaviate.rest.description()):
        weaviate.rest.call("DELETE", f"/v1/schema/{COLLECTION}")
    weaviate.rest.call(
        "POST",
        "/v1/schema",
        class_definition(
            weaviate.settings, index, vectors.metric, weaviate.topology, weaviate.mark, vectors.payload.columns
        ),
    )
    rows = len(vectors.base)
    result = LoadResult()
    kill = Kill(weaviate, load, rows, result)
    with _inserter(weaviate) as insert, result.phase("insert"):
        for first in range(0, rows, load["batch_rows"]):
            part = slice(first, min(first + load["batch_rows"], rows))
            columns = (
                *(vectors.base[part], vectors.category[part], vectors.price[part], vectors.region[part]),
                vectors.payload.part(part),
            )
            try:
                refused = kill.send(partial(insert, first, *columns), lambda answer: next(iter(answer.values()), None))
            except ServerError as error:
                weaviate.check_alive()
                message = f"weaviate: insertion of rows {first} to {part.stop - 1}: {error}"
                raise ServerError(message) from None
            result.acknowledge(part.stop - first, len(refused), next(iter(refused.values()), None))
            progress.at(part.stop)
            kill.when_due()
    with result.phase("index"):
        await_placed(weaviate)
        waits = in_background(weaviate.settings)  # it may not answer for minutes while it makes a graph of a flat index
        wait_for(
            "weaviate: index",
            lambda: index_state(weaviate)[0] or None,
            weaviate,
            background.INDEX_TIMEOUT_S,
            patient=waits,
        )
        if index.get("quantizer") in indexes.TRAINED:
            compress(weaviate, index)
        await_replicated(weaviate, rows)
        if waits:
            background.await_indexed(weaviate, vectors.price[:rows], vectors.base[0])
    with result.phase("ready"):
        await_searchable(weaviate)
    return result


def compress(server: WeaviateServer, index: Spec) -> None:
    """Turn a quantizer on that learns from the vectors that are there, and wait until every shard is compressed."""
    definition = server.rest.collection()
    definition["vectorIndexConfig"].update(indexes.quantizer_config(index))
    server.rest.call("PUT", f"/v1/schema/{COLLECTION}", definition)
    wait_for(
        f"weaviate: {index['quantizer']} trained",
        lambda: (index_state(server)[0] and all(shard["compressed"] for shard in server.rest.shards())) or None,
        server,
        background.INDEX_TIMEOUT_S,
    )
