"""Searches, insertions and deletions as bytes: requests made beforehand, replies read afterwards.

By gRPC with the messages of Weaviate's client (which itself is not used: it adds checks, retries and conversions); or,
as its clients did before gRPC, as JSON by REST and GraphQL, over HTTP/1.1. There vectors are written as briefly as
float32 allows: the shortest decimal that reads back as the same value. A price is a float64 to the server, which
compares it with those of filters: it gets all of its digits.
"""

from __future__ import annotations

import http.client
import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from anncestry import redact, web
from anncestry.engines.base import Answer, Batch, DecodeError, ErrorReplyError, Spec
from anncestry.engines.conditions import Comparison, Value, compose
from anncestry.engines.weaviate import COLLECTION
from anncestry.errors import ServerError
from anncestry.runtimes import tls
from anncestry.web import host_and_port

# The client's OAuth dependency announces its own deprecations at import, whatever filters are set.
with warnings.catch_warnings(record=True):
    from weaviate.proto.v1 import base_pb2, base_search_pb2, batch_delete_pb2, batch_pb2, search_get_pb2

SearchReply, InsertReply = search_get_pb2.SearchReply, batch_pb2.BatchObjectsReply
UUID_PREFIX = "a77ce570-0000-4000-8000-"
"""The high part of every id; the last twelve digits are the row. (Ids with leading zero bytes come back shorter.)"""


def uuid_of(row: int) -> str:
    return f"{UUID_PREFIX}{row:012x}"


METHOD = "/weaviate.v1.Weaviate/Search"
_Operator = base_pb2.Filters


def filters(filter: Spec) -> base_pb2.Filters:
    """A workload's filter as Weaviate's."""
    return compose(filter, _comparison, lambda parts: _several("AND", parts), lambda parts: _several("OR", parts))


def where(filter: Spec) -> str:
    """A workload's filter in GraphQL, for counts and searches by REST."""
    return compose(filter, _in_graphql, lambda parts: _operands("And", parts), lambda parts: _operands("Or", parts))


_OPERATORS = {
    "=": ("EQUAL", "Equal"),
    ">": ("GREATER_THAN", "GreaterThan"),
    ">=": ("GREATER_THAN_EQUAL", "GreaterThanEqual"),
    "<": ("LESS_THAN", "LessThan"),
    "<=": ("LESS_THAN_EQUAL", "LessThanEqual"),
}


def property_name(one: Comparison) -> str:
    """What a comparison's column is called in filters."""
    return "_id" if one.column == "id" else one.column


def property_value(one: Comparison) -> Value:
    """What the property is compared with: rows are in the order of their ids, which are texts."""
    return uuid_of(int(one.value)) if one.column == "id" and not isinstance(one.value, tuple) else one.value


def _kind(value: Value) -> str:
    return "text" if isinstance(value, str) else "int" if isinstance(value, int) else "number"


def _comparison(one: Comparison) -> base_pb2.Filters:
    target = base_pb2.FilterTarget(property=property_name(one))
    if isinstance(one.value, tuple):
        values = base_pb2.IntArray(values=one.value)
        return base_pb2.Filters(operator=_Operator.OPERATOR_CONTAINS_ANY, target=target, value_int_array=values)
    operator, value = _Operator.Operator.Value(f"OPERATOR_{_OPERATORS[one.operator][0]}"), property_value(one)
    return base_pb2.Filters(operator=operator, target=target, **{f"value_{_kind(value)}": value})


def _several(operator: str, parts: list[base_pb2.Filters]) -> base_pb2.Filters:
    return base_pb2.Filters(operator=_Operator.Operator.Value(f"OPERATOR_{operator}"), filters=parts)


def _in_graphql(one: Comparison) -> str:
    path, value = f'path:["{one.column}"]', property_value(one)
    if isinstance(value, tuple):
        return f"{{operator:ContainsAny,{path},valueInt:[{','.join(map(str, value))}]}}"
    # Characters as they are: of an escaped one beyond 16 bits its GraphQL makes two.
    text = json.dumps(value, ensure_ascii=False)
    return f"{{operator:{_OPERATORS[one.operator][1]},{path},value{_kind(value).capitalize()}:{text}}}"


def _operands(operator: str, parts: list[str]) -> str:
    return f"{{operator:{operator},operands:[{','.join(parts)}]}}"


def consistency_level(consistency: str | None) -> Any:
    """A topology's consistency as Weaviate's: how many replicas must agree. None: not said, its default applies."""
    return None if consistency is None else base_pb2.ConsistencyLevel.Value(f"CONSISTENCY_LEVEL_{consistency.upper()}")


def search_request(
    query: NDArray[np.float32], k: int, where: base_pb2.Filters | None, consistency: str | None = None
) -> Any:
    """One search for one (d,) query. Nothing is fetched but ids and distances."""
    return search_get_pb2.SearchRequest(
        collection=COLLECTION,
        limit=k,
        near_vector=base_search_pb2.NearVector(vector_bytes=query.astype("<f4", copy=False).tobytes()),
        filters=where,
        consistency_level=consistency_level(consistency),
        metadata=search_get_pb2.MetadataRequest(uuid=True, distance=True),
        properties=search_get_pb2.PropertiesRequest(),
        uses_123_api=True,
        uses_125_api=True,
        uses_127_api=True,
    )


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances. (No message of this protocol begins as JSON does.)"""
    if response[:1] == b"{":
        rows, told = json_answer(response)
        return rows, told if metric == "l2" else 1.0 + told
    try:
        reply = search_get_pb2.SearchReply.FromString(response)
    except ProtobufError as error:
        raise DecodeError(f"not a Weaviate search reply: {error}") from None
    found = [result.metadata for result in reply.results]
    for metadata in found:
        if not metadata.distance_present or not metadata.id.startswith(UUID_PREFIX):
            raise DecodeError(f"a result without distance, or with an id that was not loaded: {metadata.id!r}")
    ids = np.array([int(metadata.id[len(UUID_PREFIX) :], 16) for metadata in found], dtype=np.int64)
    distances = np.array([metadata.distance for metadata in found], dtype=np.float64)
    return ids, distances if metric == "l2" else 1.0 + distances  # its dot distance is the negative inner product


WRITE_METHODS = {"insert": "/weaviate.v1.Weaviate/BatchObjects", "delete": "/weaviate.v1.Weaviate/BatchDelete"}


def batch_request(batch: Batch, consistency: str | None = None) -> Any:
    request = batch_pb2.BatchObjectsRequest(consistency_level=consistency_level(consistency))
    rows = zip(batch.base.astype("<f4", copy=False), batch.columns(), strict=True)
    for row, (vector, values) in enumerate(rows, start=batch.first):
        item = request.objects.add(collection=COLLECTION, uuid=uuid_of(row), vector_bytes=vector.tobytes())
        item.properties.non_ref_properties.update(dict(zip(batch.names, values, strict=True)))
    return request


def encode_delete(ids: Sequence[int], consistency: str | None) -> bytes:
    """The BatchDeleteRequest of these rows, by id: gRPC has no other deletion."""
    rows = base_pb2.Filters(
        operator=base_pb2.Filters.OPERATOR_CONTAINS_ANY,
        target=base_pb2.FilterTarget(property="_id"),
        value_text_array=base_pb2.TextArray(values=[uuid_of(row) for row in ids]),
    )
    request = batch_delete_pb2.BatchDeleteRequest(
        collection=COLLECTION,
        filters=rows,
        consistency_level=consistency_level(consistency),
    )
    return bytes(request.SerializeToString())


def decode_write(kind: str, response: bytes) -> int | None:
    """Rows deleted; None of an insertion without errors: it tells no number."""
    try:
        if kind == "delete":
            gone = batch_delete_pb2.BatchDeleteReply.FromString(response)
            if gone.failed:
                raise ErrorReplyError(f"{gone.failed} of {gone.matches} rows were not deleted")
            return int(gone.successful)
        reply = batch_pb2.BatchObjectsReply.FromString(response)
    except ProtobufError as error:
        raise DecodeError(f"not a Weaviate reply to a change: {error}") from None
    if reply.errors:
        raise ErrorReplyError(f"{len(reply.errors)} rows refused, the first: {reply.errors[0].error}")
    return None


PATH = "/v1/graphql"
HEADERS = {"Content-Type": "application/json"}


def vector_text(vector: NDArray[np.float32]) -> str:
    """A (d,) vector as a JSON array."""
    return f"[{','.join(vector.astype('<f4', copy=False).astype(str))}]"


def json_search(query: NDArray[np.float32], k: int, where: str | None, consistency: str | None = None) -> bytes:
    """The body of one search for one (d,) query. Nothing is fetched but ids and distances."""
    arguments = [f"limit:{k}", f"nearVector:{{vector:{vector_text(query)}}}"]
    arguments += [] if where is None else [f"where:{where}"]
    arguments += [] if consistency is None else [f"consistencyLevel:{consistency.upper()}"]
    search = f"{{Get{{{COLLECTION}({','.join(arguments)}){{_additional{{id distance}}}}}}}}"
    return json.dumps({"query": search}, separators=(",", ":")).encode()


def json_answer(response: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and the distances that the server states; DecodeError where the reply is no answer."""
    try:
        reply = json.loads(response)
        if reply.get("errors"):
            raise ErrorReplyError(f"GraphQL: {reply['errors'][0].get('message')}")
        hits = [hit["_additional"] for hit in reply["data"]["Get"][COLLECTION]]
        names = [str(hit["id"]) for hit in hits]
        distances = np.array([hit["distance"] for hit in hits], dtype=np.float64)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DecodeError(f"not a GraphQL search reply: {type(error).__name__}: {error}") from None
    for name in names:
        if not name.startswith(UUID_PREFIX):
            raise DecodeError(f"a result with an id that was not loaded: {name!r}")
    return np.array([int(name[len(UUID_PREFIX) :], 16) for name in names], dtype=np.int64), distances


def json_batch(batch: Batch) -> bytes:
    columns = [column.stored_as for column, _ in batch.payload]
    objects = []
    for at, (category, price, region, *payload) in enumerate(batch.columns()):
        more = "".join(f',"{name}":{json.dumps(value)}' for name, value in zip(columns, payload, strict=True))
        objects.append(
            f'{{"class":"{COLLECTION}","id":"{uuid_of(batch.first + at)}",'
            f'"properties":{{"category":{category},"price":{price!r},"region":{region}{more}}},'
            f'"vector":{vector_text(batch.base[at])}}}'
        )
    return f'{{"objects":[{",".join(objects)}]}}'.encode()


def refused(reply: bytes, sent: int) -> dict[int, str]:
    """Which of the rows sent were refused, by their place in the batch, and why; ServerError for another reply."""
    try:
        results = [item.get("result") or {} for item in json.loads(reply)]
    except (ValueError, AttributeError, TypeError):
        raise ServerError(f"weaviate: not a batch reply: {redact.short(reply.decode(errors='replace'), 200)}") from None
    if len(results) != sent:
        raise ServerError(f"weaviate: a batch of {sent} rows was answered for {len(results)}")
    return {
        place: "; ".join(str(error.get("message")) for error in result["errors"].get("error", ())) or "refused"
        for place, result in enumerate(results)
        if result.get("errors")
    }


def json_connection(address: str, timeout_s: float, named: tls.Named | None = None) -> http.client.HTTPConnection:
    """A connection that is kept alive, to host:port; under TLS if `named`. Close it."""
    host, port = host_and_port(address)
    if named is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls.context(named))


def insert_json(link: http.client.HTTPConnection, body: bytes, sent: int, consistency: str | None) -> dict[int, str]:
    """Send a batch of `sent` rows and return those that were refused; ServerError if the call fails."""
    path = "/v1/batch/objects" + (f"?consistency_level={consistency.upper()}" if consistency else "")
    try:
        link.request("POST", path, body, HEADERS)
        answer: Any = link.getresponse()
        reply = web.body_of(answer, web.ANSWER_BYTES + 4 * len(body))  # each row is repeated in it
    except (OSError, http.client.HTTPException) as error:
        link.close()  # else the next batch can't even be sent
        raise ServerError(str(error) or type(error).__name__) from None
    if answer.status != 200:
        raise ServerError(f"HTTP {answer.status}: {redact.short(reply.decode(errors='replace'))}")
    return refused(reply, sent)
