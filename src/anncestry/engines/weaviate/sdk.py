"""Searches as a Python program makes them: through weaviate-client.

Here through the locked one; `sdk_4_4` is the same for earlier versions of Weaviate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import weaviate
from numpy.typing import NDArray
from weaviate.classes.init import AdditionalConfig, Timeout
from weaviate.classes.query import Filter, MetadataQuery

from anncestry.drive.transports import unpack
from anncestry.engines.base import Server, Spec, filter_bounds
from anncestry.engines.weaviate.serve import as_weaviate
from anncestry.engines.weaviate.settings import COLLECTION, sdk_environment
from anncestry.engines.weaviate.wire import limit

_OLDER = Path(__file__).with_name("sdk_4_4.py")


def sdk_transport(server: Server, k: int, ef_search: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
    """How the driver reaches `connect`, and what it tells it. ef is a setting of the collection."""
    first = next(iter(as_weaviate(server).group))
    _, _, port = first.addresses["http"].rpartition(":")
    options = {"k": k, "filters": [_terms(filter) for filter in filters], "http": int(port), "collection": COLLECTION}
    environment = sdk_environment(as_weaviate(server).system)
    older = {} if environment is None else {"environment": environment, "module": str(_OLDER)}
    return {
        "kind": "sdk",
        "module": __name__,
        "package": "weaviate-client",
        "target": server.endpoint,
        "options": options,
        **older,
    }


def _terms(filter: Spec | None) -> list[tuple[str, str, Any]]:
    """What a row must fulfil, all of it: property, comparison (as the library names it), value; empty of no filter."""
    if filter is None:
        return []
    bounds = filter_bounds(filter)
    name = "_id" if bounds.field == "id" else bounds.field
    if bounds.values is not None:
        return [(name, "contains_any", list(bounds.values))]
    sides = (("greater_or_equal", bounds.low), ("less_than", bounds.high))
    return [(name, how, limit(bounds, bound)) for how, bound in sides if bound is not None]


def _filter(terms: Sequence[tuple[str, str, Any]]) -> Any:
    """The library's own, None of no terms."""
    said = [getattr(Filter.by_property(name), how)(value) for name, how, value in terms]
    return reduce(and_, said) if said else None


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], tuple[Sequence[int], Sequence[float]]], Callable[[], None]]:
    """A search for one request by a client of its own (it returns ids, and the library's distances), and its end."""
    host, _, port = target.rpartition(":")
    client = weaviate.connect_to_local(
        host,
        options["http"],
        int(port),
        additional_config=AdditionalConfig(timeout=Timeout(query=max(1, int(timeout_s)))),
    )
    query = client.collections.get(COLLECTION).query
    filters, wanted = [_filter(terms) for terms in options["filters"]], MetadataQuery(distance=True)

    def search(request: bytes) -> tuple[Sequence[int], Sequence[float]]:
        found = query.near_vector(
            np.frombuffer(request, "<f4", offset=4).tolist(),
            limit=options["k"],
            filters=filters[int.from_bytes(request[:4], "little")],
            return_metadata=wanted,
            return_properties=[],
        ).objects
        return [hit.uuid.int & 0xFFFFFFFFFFFF for hit in found], [hit.metadata.distance or 0.0 for hit in found]

    return search, client.close


def sdk_decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and canonical distances of what `connect`'s search found."""
    ids, distances = unpack(response)
    return ids, distances if metric == "l2" else 1.0 + distances
