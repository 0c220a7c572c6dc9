"""Insertions and searches as JSON: requests made beforehand, replies read afterwards.

Vectors are the shortest decimals that read back as the same float32.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Answer, Batch, DecodeError, ErrorReplyError, Spec
from anncestry.engines.conditions import Comparison, compose

FIELD = "vector"
_TYPES = {"category": "short", "price": "float", "region": "short"}
_PAYLOAD_TYPES = {"keyword": "keyword", "int": "long", "float": "double"}
_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


def definition(dimensions: int, index: Spec, space: str, payload: dict[str, str]) -> dict[str, Any]:
    """The body that creates the index; `payload` are its columns' names and kinds."""
    parameters = {"m": index["M"], "ef_construction": index["ef_construction"]}
    method = {"name": "hnsw", "engine": "lucene", "space_type": space, "parameters": parameters}
    types = {**_TYPES, **{name: _PAYLOAD_TYPES[kind] for name, kind in payload.items()}}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in types.items()}
    properties[FIELD] = {"type": "knn_vector", "dimension": dimensions, "method": method}
    settings = {"knn": True, "number_of_shards": 1, "number_of_replicas": 0}
    return {"settings": {"index": settings}, "mappings": {"dynamic": "strict", "properties": properties}}


def condition(filter: Spec) -> dict[str, Any]:
    """A workload's filter as a query."""
    return compose(filter, _comparison, lambda parts: {"bool": {"filter": parts}}, _some)


def _some(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"bool": {"should": parts, "minimum_should_match": 1}}


def _comparison(one: Comparison) -> dict[str, Any]:
    if isinstance(one.value, tuple):
        return {"terms": {one.column: list(one.value)}}
    if one.operator == "=":
        return {"term": {one.column: one.value}}
    return {"range": {one.column: {_BOUNDS[one.operator]: one.value}}}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _decimals(vector: NDArray[np.float32]) -> str:
    return f"[{','.join(vector.astype('<f4', copy=False).astype(str))}]"


def insertion(rows: Batch) -> bytes:
    """The body of `_bulk`: two lines a row."""
    lines = []
    for row, vector, values in zip(range(rows.first, rows.end), rows.base, rows.columns(), strict=True):
        more = _text(dict(zip(rows.names, values, strict=True)))[1:]
        lines.append(f'{{"index":{{"_id":"{row}"}}}}\n{{"{FIELD}":{_decimals(vector)},{more}\n')
    return "".join(lines).encode()


def search(query: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> bytes:
    """The body of a search of the graph. Nothing is fetched but ids and scores."""
    narrow = "" if filter is None else f',"filter":{_text(condition(filter))}'
    return (
        f'{{"size":{k},"_source":false,"query":{{"knn":{{"{FIELD}":{{"vector":{_decimals(query)},"k":{k},'
        f'"method_parameters":{{"ef_search":{int(ef_search)}}}{narrow}}}}}}}}}'
    ).encode()


def scan(query: NDArray[np.float32], k: int, filter: Spec, space: str) -> bytes:
    """The body of a search that compares every row that passes the filter."""
    narrow = _text({"bool": {"filter": condition(filter)}})
    return (
        f'{{"size":{k},"_source":false,"query":{{"script_score":{{"query":{narrow},'
        f'"script":{{"source":"knn_score","lang":"knn","params":{{"field":"{FIELD}","query_value":{_decimals(query)},'
        f'"space_type":"{space}"}}}}}}}}}}'
    ).encode()


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances: its scores, read backwards; DecodeError where the reply is no whole answer.

    A score is 1/(1 + d²) for l2. For an inner product p it is 1 + p, and 1/(1 − p) below 0.
    """
    try:
        reply = json.loads(response)
        if "error" in reply:
            raise ErrorReplyError(f"OpenSearch: {_text(reply['error'])[:300]}")
        if reply["timed_out"] or reply["_shards"]["failed"]:
            raise ErrorReplyError(f"OpenSearch: a search of a part: {_text(reply['_shards'])[:300]}")
        hits = reply["hits"]["hits"]
        ids = np.array([int(hit["_id"]) for hit in hits], np.int64)
        scores = np.array([hit["_score"] for hit in hits], np.float32).astype(np.float64)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DecodeError(f"not a reply of OpenSearch to a search: {type(error).__name__}: {error}") from None
    if scores.shape != ids.shape or not np.isfinite(scores).all() or (scores <= 0).any():
        raise DecodeError(f"a reply of OpenSearch with {len(ids)} ids and scores {scores[:5].tolist()}")
    if metric == "l2":
        return ids, 1 / scores - 1
    return ids, np.where(scores >= 1, 2 - scores, 1 / scores)
