"""Searches as a Python program makes them: through pymilvus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus import MilvusClient

from anncestry.drive.transports import unpack
from anncestry.engines.base import Server, Spec
from anncestry.engines.milvus.indexes import search_params
from anncestry.engines.milvus.rpc import COLLECTION
from anncestry.engines.milvus.serve import as_milvus
from anncestry.engines.milvus.wire import expression


def sdk_transport(server: Server, k: int, ef_search: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
    """How the driver reaches `connect`, and what it tells it."""
    milvus = as_milvus(server)
    metric_type, params = milvus.rpc.metric_type(), search_params(milvus.index, ef_search)
    expressions = [expression(filter) for filter in filters]
    options = {"k": k, "params": params, "metric_type": metric_type, "expressions": expressions}
    return {"kind": "sdk", "module": __name__, "package": "pymilvus", "target": server.endpoint, "options": options}


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], tuple[Sequence[int], Sequence[float]]], Callable[[], None]]:
    """A search for one request by a client of its own (it returns ids, and the library's scores), and its end."""
    client = MilvusClient(uri=f"http://{target}", timeout=timeout_s)
    expressions = options["expressions"]
    params = {"metric_type": options["metric_type"], "params": options["params"]}

    def search(request: bytes) -> tuple[Sequence[int], Sequence[float]]:
        (hits,) = client.search(
            COLLECTION,
            data=[np.frombuffer(request, "<f4", offset=4)],
            anns_field="vector",
            limit=options["k"],
            filter=expressions[int.from_bytes(request[:4], "little")],
            search_params=params,
            consistency_level="Eventually",
            timeout=timeout_s,
        )
        return [hit["id"] for hit in hits], [hit["distance"] for hit in hits]

    return search, client.close


def sdk_decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and canonical distances of what `connect`'s search found."""
    ids, scores = unpack(response)
    return ids, scores if metric == "l2" else 1.0 - scores
