"""Insertions, conditions and searches as Qdrant's messages: requests made beforehand, replies read afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError as ProtobufError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from anncestry.engines.base import Answer, Batch, DecodeError, Spec
from anncestry.engines.conditions import Comparison, compose
from anncestry.engines.qdrant.rpc import COLLECTION, message

_BOUNDS = {"<": "lt", ">": "gt", ">=": "gte", "<=": "lte"}


def insertion(rows: Batch) -> bytes:
    """An Upsert that is acknowledged once the rows are applied (`wait`)."""
    point, vector, entry, value = (message[name] for name in ("PointStruct", "Vectors", "PayloadEntry", "Value"))
    request = message["UpsertPoints"](collection_name=COLLECTION, wait=True)
    for row, data, values in zip(range(rows.first, rows.end), rows.base, rows.columns(), strict=True):
        payload = [entry(key=name, value=value(**{_kind(of): of})) for name, of in zip(rows.names, values, strict=True)]
        request.points.append(point(id={"num": row}, payload=payload, vectors=vector(vector={"data": data.tolist()})))
    return bytes(request.SerializeToString())


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "string_value"
    return "integer_value" if isinstance(value, int) else "double_value"


def condition(filter: Spec) -> Any:
    """A workload's filter as a Filter."""
    made = compose(filter, _comparison, lambda parts: _nested(must=parts), lambda parts: _nested(should=parts), _range)
    return message["Filter"](must=[made])


def _nested(**parts: list[Any]) -> Any:
    return message["Condition"](filter=message["Filter"](**parts))


def _comparison(one: Comparison) -> Any:
    field: dict[str, Any] = {"key": one.column}
    if isinstance(one.value, tuple):
        field["match"] = {"integers": {"integers": list(one.value)}}
    elif one.operator != "=":
        return _range(one)
    elif isinstance(one.value, str):
        field["match"] = {"keyword": one.value}
    elif isinstance(one.value, int):
        field["match"] = {"integer": one.value}
    else:
        field["range"] = {"gte": one.value, "lte": one.value}
    return message["Condition"](field=field)


def _range(*ends: Comparison) -> Any:
    bounds = {_BOUNDS[one.operator]: _bound(one) for one in ends}
    return message["Condition"](field={"key": ends[0].column, "range": bounds})


def _bound(one: Comparison) -> float:
    """A bound of prices, which are float32, lies halfway to the one below: Qdrant's core (that of Qdrant Edge 0.9.0)
    stores a number as text, from which at times the double next to it comes back."""
    assert isinstance(one.value, int | float)
    value = float(one.value)
    if one.column != "price" or one.operator not in ("<", ">="):
        return value
    return (float(np.nextafter(np.float32(value), np.float32(-np.inf))) + value) / 2


def search(query: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None, exact: bool) -> bytes:
    """A Search; nothing is fetched but ids and scores. `exact` compares every row that passes the filter."""
    params = {"exact": True} if exact else {"hnsw_ef": int(ef_search)}
    request = message["SearchPoints"](collection_name=COLLECTION, vector=query.tolist(), limit=k, params=params)
    if filter is not None:
        request.filter.CopyFrom(condition(filter))
    return bytes(request.SerializeToString())


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances; DecodeError where the reply is no answer.

    A score is the Euclidean distance, not squared, for l2; an inner product else.
    """
    try:
        found = message["SearchResponse"].FromString(response).result
    except ProtobufError as error:
        raise DecodeError(f"not a reply of Qdrant to a search: {error}") from None
    if not all(point.id.HasField("num") for point in found):
        raise DecodeError("a reply of Qdrant with an id that is no number")
    ids = np.array([point.id.num for point in found], np.int64)
    scores = np.array([point.score for point in found], np.float32).astype(np.float64)
    if not np.isfinite(scores).all():
        raise DecodeError(f"a reply of Qdrant with scores {scores[:5].tolist()}")
    return ids, scores * scores if metric == "l2" else 1 - scores
