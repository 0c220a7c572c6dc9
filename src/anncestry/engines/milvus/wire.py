"""Searches as bytes: requests made beforehand, replies read afterwards."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pymilvus.grpc_gen import milvus_pb2, schema_pb2

from anncestry.engines.base import DecodeError, Server, Spec, filter_bounds
from anncestry.engines.conditions import Comparison, compose, is_payload
from anncestry.engines.milvus.indexes import search_params
from anncestry.engines.milvus.rpc import SERVICE, search_request, status_error
from anncestry.engines.milvus.serve import as_milvus, count_rows


def expression(filter: Spec | None) -> str:
    """A workload's filter in Milvus' language, "" for none. Bounds are rounded to the float32 of the stored prices."""
    if filter is None:
        return ""
    if is_payload(filter):
        return compose(
            filter, _comparison, lambda terms: f"({' && '.join(terms)})", lambda terms: f"({' || '.join(terms)})"
        )
    bounds = filter_bounds(filter)
    if bounds.values is not None:
        return f"{bounds.field} in [{', '.join(map(str, bounds.values))}]"
    terms = []
    if bounds.low is not None:
        terms.append(f"{bounds.field} >= {bounds.bound(bounds.low)!r}")
    if bounds.high is not None:
        terms.append(f"{bounds.field} < {bounds.bound(bounds.high)!r}")
    return " && ".join(terms)


def _comparison(one: Comparison) -> str:
    operator = "==" if one.operator == "=" else one.operator
    value = json.dumps(one.value, ensure_ascii=False) if isinstance(one.value, str) else repr(one.value)
    return f"{one.column} {operator} {value}"


def count(server: Server, filter: Spec | None) -> int:
    """Rows that pass the filter, as the server counts them."""
    return count_rows(as_milvus(server), expression(filter))


def encode(server: Server, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> list[bytes]:
    """The SearchRequest of each of the (n, d) queries; the search effort travels in the request."""
    return encode_batches(server, queries[:, None, :], k, ef_search, filter)


def encode_batches(
    server: Server, batches: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
) -> list[bytes]:
    """The SearchRequest of each of the (n, nq, d) batches."""
    milvus = as_milvus(server)
    metric_type, params = milvus.rpc.metric_type(), search_params(milvus.index, ef_search)
    expr = expression(filter)
    return [search_request(batch, k, params, metric_type, expr).SerializeToString() for batch in batches]


def transport(server: Server) -> dict[str, Any]:
    """gRPC unary."""
    return as_milvus(server).grpc_transport(f"/{SERVICE}/Search")


def decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and canonical distances; DecodeError also for a status that is not success inside a reply."""
    results = _results(response)
    return _found(results, metric)


def decode_batch(response: bytes, metric: str) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """The same for each vector of the request: the reply says how many of its rows are each one's (`topks`)."""
    results = _results(response)
    ids, distances = _found(results, metric)
    sizes = list(results.topks)
    if len(sizes) != results.num_queries or sum(sizes) != len(ids):
        raise DecodeError(
            f"{len(ids)} ids of {results.num_queries} vectors, but {len(sizes)} numbers of results, {sum(sizes)} in all"
        )
    ends = np.cumsum(sizes)[:-1]
    return list(zip(np.split(ids, ends), np.split(distances, ends), strict=True))


def _results(response: bytes) -> schema_pb2.SearchResultData:
    try:
        reply = milvus_pb2.SearchResults.FromString(response)
    except ProtobufError as error:
        raise DecodeError(f"not a Milvus search reply: {error}") from None
    problem = status_error(reply.status)
    if problem is not None:
        raise DecodeError(problem)
    return reply.results


def _found(results: schema_pb2.SearchResultData, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    ids = np.array(results.ids.int_id.data, dtype=np.int64)
    scores = np.array(results.scores, dtype=np.float64)
    if ids.shape != scores.shape:
        raise DecodeError(f"{ids.size} ids but {scores.size} scores")
    return ids, scores if metric == "l2" else 1.0 - scores
