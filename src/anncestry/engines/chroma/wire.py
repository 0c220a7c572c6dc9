"""Insertions and searches as JSON: requests made beforehand, replies read afterwards.

Inserted vectors are base64 of their float32; `query` takes numbers only, here the shortest decimals that read back as
the same float32.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Answer, Batch, DecodeError, Spec
from anncestry.engines.conditions import Comparison, compose

_OPERATORS = {"=": "$eq", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte", "in": "$in"}


def where(filter: Spec) -> dict[str, Any]:
    """A workload's filter as Chroma's, which compares whole numbers with whole ones, and doubles with doubles."""
    return compose(filter, _comparison, lambda parts: {"$and": parts}, lambda parts: {"$or": parts})


def _comparison(one: Comparison) -> dict[str, Any]:
    value = list(one.value) if isinstance(one.value, tuple) else one.value
    return {one.column: {_OPERATORS[one.operator]: value}}


def insertion(rows: Batch) -> bytes:
    """The body of `add`: metadata are whole numbers, and prices the doubles that equal their float32."""
    vectors = rows.base.astype("<f4", copy=False)
    body = {
        "ids": [str(row) for row in range(rows.first, rows.end)],
        "embeddings": [base64.b64encode(vector.tobytes()).decode() for vector in vectors],
        "metadatas": [dict(zip(rows.names, values, strict=True)) for values in rows.columns()],
    }
    return json.dumps(body, separators=(",", ":")).encode()


def search(queries: NDArray[np.float32], k: int, filter: Spec | None) -> bytes:
    """The body of `query` for the (n, d) queries. Nothing is fetched but ids and distances."""
    vectors = ",".join(f"[{','.join(query.astype('<f4', copy=False).astype(str))}]" for query in queries)
    more = "" if filter is None else f',"where":{json.dumps(where(filter), separators=(",", ":"))}'
    return f'{{"query_embeddings":[{vectors}],"n_results":{k},"include":["distances"]{more}}}'.encode()


def answers(response: bytes) -> list[Answer]:
    """For each vector of a request ids and canonical distances; DecodeError where the reply is no answer."""
    try:
        reply = json.loads(response)
        found = [
            (np.array([int(name) for name in names], np.int64), np.array(far, np.float64))
            for names, far in zip(reply["ids"], reply["distances"], strict=True)
        ]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DecodeError(f"not a reply of Chroma to a query: {type(error).__name__}: {error}") from None
    for ids, far in found:
        if far.shape != ids.shape or not np.isfinite(far).all():
            raise DecodeError(f"a reply of Chroma with {len(ids)} ids and distances of shape {far.shape}")
    return found
