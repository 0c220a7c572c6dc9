"""The index and its searches as Elasticsearch takes them; what it shares with OpenSearch is in `engines.lucene`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines import lucene
from anncestry.engines.base import Answer, Spec
from anncestry.engines.lucene import FIELD, condition, decimals, text

MARKED = "anncestry"
"""Of the mapping's `_meta`: what says whose load the index is of."""
_SCRIPTS = {
    "l2_norm": f"double d = l2norm(params.query, '{FIELD}'); return 1 / (1 + d * d)",
    "dot_product": f"return (1 + dotProduct(params.query, '{FIELD}')) / 2",
}
"""What gives a row the score that the search of the graph gives it."""


def definition(
    dimensions: int, index: Spec, similarity: str, payload: Mapping[str, str], copies: tuple[int, int], mark: str
) -> dict[str, Any]:
    """The body that creates the index; `payload` are its columns' names and kinds, `copies` shards and replicas."""
    options = {"type": "hnsw", "m": index["M"], "ef_construction": index["ef_construction"]}
    field = {
        **{"type": "dense_vector", "element_type": "float", "dims": dimensions, "index": True},
        **{"similarity": similarity, "index_options": options},
    }
    settings = {"number_of_shards": copies[0], "number_of_replicas": copies[1] - 1}
    body = lucene.definition(field, settings, payload)
    body["mappings"]["_meta"] = {MARKED: mark}
    return body


def search(query: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> bytes:
    """The body of a search of the graph. Nothing is fetched but ids and scores."""
    narrow = "" if filter is None else f',"filter":{text(condition(filter))}'
    return (
        f'{{"size":{k},"_source":false,"knn":{{"field":"{FIELD}","query_vector":{decimals(query)},"k":{k},'
        f'"num_candidates":{int(ef_search)}{narrow}}}}}'
    ).encode()


def scan(query: NDArray[np.float32], k: int, filter: Spec, similarity: str) -> bytes:
    """The body of a search that compares every row that passes the filter."""
    parameters = {"query": query.astype(np.float64).tolist()}
    return lucene.scan(k, filter, {"source": _SCRIPTS[similarity], "params": parameters})


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances: its scores, read backwards; DecodeError where the reply is no whole answer.

    A score is 1/(1 + d²) for l2, and (1 + p)/2 for an inner product p.
    """
    ids, scores = lucene.hits(response, "Elasticsearch")
    return (ids, 1 / scores - 1) if metric == "l2" else (ids, 2 - 2 * scores)
