"""Searches as bytes: requests made beforehand, replies read afterwards."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from anncestry.engines.base import DecodeError, FilterBounds, Server, Spec, filter_bounds
from anncestry.engines.conditions import Comparison, compose, is_payload
from anncestry.engines.group import as_group
from anncestry.engines.weaviate import json_wire
from anncestry.engines.weaviate.proto import base_pb2, base_search_pb2, search_get_pb2
from anncestry.engines.weaviate.rows import UUID_PREFIX, uuid_of
from anncestry.engines.weaviate.settings import COLLECTION

METHOD = "/weaviate.v1.Weaviate/Search"
_Operator = base_pb2.Filters


def filters(filter: Spec) -> base_pb2.Filters:
    """A workload's filter as Weaviate's. Bounds are rounded to the float32 of the stored prices."""
    if is_payload(filter):
        return compose(filter, _comparison, lambda parts: _several("AND", parts), lambda parts: _several("OR", parts))
    bounds = filter_bounds(filter)
    target = base_pb2.FilterTarget(property="_id" if bounds.field == "id" else bounds.field)
    if bounds.values is not None:
        values = base_pb2.IntArray(values=bounds.values)
        return base_pb2.Filters(operator=_Operator.OPERATOR_CONTAINS_ANY, target=target, value_int_array=values)
    limits = ((bounds.low, _Operator.OPERATOR_GREATER_THAN_EQUAL), (bounds.high, _Operator.OPERATOR_LESS_THAN))
    kind = "value_text" if bounds.field == "id" else "value_int" if bounds.whole else "value_number"
    terms = [
        base_pb2.Filters(operator=operator, target=target, **{kind: limit(bounds, bound)})
        for bound, operator in limits
        if bound is not None
    ]
    return terms[0] if len(terms) == 1 else base_pb2.Filters(operator=_Operator.OPERATOR_AND, filters=terms)


def where(filter: Spec) -> str:
    """A workload's filter in GraphQL, for counts. Bounds are rounded to the float32 of the stored prices."""
    if is_payload(filter):
        return compose(filter, _in_graphql, lambda parts: _operands("And", parts), lambda parts: _operands("Or", parts))
    bounds = filter_bounds(filter)
    path = f'path:["{bounds.field}"]'
    if bounds.values is not None:
        return f"{{operator:ContainsAny,{path},valueInt:[{','.join(map(str, bounds.values))}]}}"
    limits = ((bounds.low, "GreaterThanEqual"), (bounds.high, "LessThan"))
    kind = "valueText" if bounds.field == "id" else "valueInt" if bounds.whole else "valueNumber"
    terms = [
        f"{{operator:{operator},{path},{kind}:{json.dumps(limit(bounds, bound))}}}"
        for bound, operator in limits
        if bound is not None
    ]
    return terms[0] if len(terms) == 1 else f"{{operator:And,operands:[{','.join(terms)}]}}"


_OPERATORS = {
    "=": ("EQUAL", "Equal"),
    ">": ("GREATER_THAN", "GreaterThan"),
    ">=": ("GREATER_THAN_EQUAL", "GreaterThanEqual"),
    "<": ("LESS_THAN", "LessThan"),
    "<=": ("LESS_THAN_EQUAL", "LessThanEqual"),
}


def _kind(value: str | int | float) -> str:
    return "text" if isinstance(value, str) else "int" if isinstance(value, int) else "number"


def _comparison(one: Comparison) -> base_pb2.Filters:
    operator = _Operator.Operator.Value(f"OPERATOR_{_OPERATORS[one.operator][0]}")
    target = base_pb2.FilterTarget(property=one.column)
    return base_pb2.Filters(operator=operator, target=target, **{f"value_{_kind(one.value)}": one.value})


def _several(operator: str, parts: list[base_pb2.Filters]) -> base_pb2.Filters:
    return base_pb2.Filters(operator=_Operator.Operator.Value(f"OPERATOR_{operator}"), filters=parts)


def _in_graphql(one: Comparison) -> str:
    # Characters as they are: of an escaped one beyond 16 bits its GraphQL makes two.
    value = f"value{_kind(one.value).capitalize()}:{json.dumps(one.value, ensure_ascii=False)}"
    return f'{{operator:{_OPERATORS[one.operator][1]},path:["{one.column}"],{value}}}'


def _operands(operator: str, parts: list[str]) -> str:
    return f"{{operator:{operator},operands:[{','.join(parts)}]}}"


def limit(bounds: FilterBounds, bound: float) -> int | float | str:
    """A bound as the property's own type compares with it; rows are in the order of their ids, which are texts."""
    return uuid_of(int(bound)) if bounds.field == "id" else bounds.bound(bound)


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


def encode(server: Server, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> list[bytes]:
    """The SearchRequest (or GraphQL body) of each of the (n, d) queries. ef is a setting of the collection: `apply`."""
    consistency = server.topology.get("consistency")
    if by_rest(server):
        asked = None if filter is None else where(filter)
        return [json_wire.search_request(query, k, asked, consistency) for query in queries]
    wanted = None if filter is None else filters(filter)
    return [search_request(query, k, wanted, consistency).SerializeToString() for query in queries]


def by_rest(server: Server) -> bool:
    """Whether rows and queries go by REST and GraphQL (a setting of the system), not by gRPC."""
    settings: Spec = getattr(server, "settings", {})
    return settings.get("protocol") == "rest"


def transport(server: Server) -> dict[str, Any]:
    """gRPC unary, or GraphQL by HTTP/1.1 on a connection that is kept alive."""
    group = as_group(server)
    if not by_rest(server):
        return group.grpc_transport(METHOD)
    found: dict[str, Any] = {"kind": "http", "method": "POST", "path": json_wire.PATH, "headers": json_wire.HEADERS}
    if group.tls is not None:
        found["tls"] = group.tls
    addresses = [member.addresses["http"] for member in group.group]
    if group.topology.get("entry") == "all":
        found["targets"] = addresses
    return {**found, "target": addresses[0]}


def decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and canonical distances. (No message of this protocol begins as JSON does.)"""
    if response[:1] == b"{":
        rows, told = json_wire.found(response)
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
