"""The index and its searches as OpenSearch takes them; what it shares with Elasticsearch is in `engines.lucene`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines import lucene
from anncestry.engines.base import Answer, Spec
from anncestry.engines.lucene import FIELD, condition, decimals, text


def definition(
    dimensions: int, index: Spec, space: str, payload: Mapping[str, str], copies: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    """The body that creates the index; `payload` are its columns' names and kinds, `copies` shards and replicas."""
    parameters = {"m": index["M"], "ef_construction": index["ef_construction"]}
    method = {"name": "hnsw", "engine": "lucene", "space_type": space, "parameters": parameters}
    field = {"type": "knn_vector", "dimension": dimensions, "method": method}
    settings = {"knn": True, "number_of_shards": copies[0], "number_of_replicas": copies[1] - 1}
    return lucene.definition(field, settings, payload)


def search(query: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> bytes:
    """The body of a search of the graph. Nothing is fetched but ids and scores."""
    narrow = "" if filter is None else f',"filter":{text(condition(filter))}'
    return (
        f'{{"size":{k},"_source":false,"query":{{"knn":{{"{FIELD}":{{"vector":{decimals(query)},"k":{k},'
        f'"method_parameters":{{"ef_search":{int(ef_search)}}}{narrow}}}}}}}}}'
    ).encode()


def scan(query: NDArray[np.float32], k: int, filter: Spec, space: str) -> bytes:
    """The body of a search that compares every row that passes the filter."""
    parameters = {"field": FIELD, "query_value": query.astype(np.float64).tolist(), "space_type": space}
    return lucene.scan(k, filter, {"source": "knn_score", "lang": "knn", "params": parameters})


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances: its scores, read backwards; DecodeError where the reply is no whole answer.

    A score is 1/(1 + d²) for l2. For an inner product p it is 1 + p, and 1/(1 − p) below 0.
    """
    ids, scores = lucene.hits(response, "OpenSearch")
    if metric == "l2":
        return ids, 1 / scores - 1
    return ids, np.where(scores >= 1, 2 - scores, 1 / scores)
