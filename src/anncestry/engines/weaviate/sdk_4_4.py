"""Searches through weaviate-client 4.4.4, which knows Weaviate 1.23: the client's part, in an environment of its own.

A file that is run by itself (transport kind sdk, see `drive.transports`), where nothing is installed but that client:
it imports nothing of ours. `sdk.sdk_transport` tells it the filters as that client says them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import weaviate
from weaviate.classes.init import AdditionalConfig
from weaviate.classes.query import Filter, MetadataQuery


def _filter(terms: Sequence[tuple[str, str, Any]]) -> Any:
    """All of the terms, each (property, comparison, value); None of none."""
    said = [getattr(Filter.by_property(name), how)(value) for name, how, value in terms]
    return reduce(and_, said) if said else None


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], tuple[Sequence[int], Sequence[float]]], Callable[[], None]]:
    """A search for one request by a client of its own (it returns ids, and the library's distances), and its end."""
    host, _, port = target.rpartition(":")
    limit_s = max(1, int(timeout_s))
    client = weaviate.connect_to_local(
        host,
        options["http"],
        int(port),
        # Searches by gRPC are under what it calls the time to connect.
        additional_config=AdditionalConfig(timeout=(limit_s, limit_s)),
        skip_init_checks=True,  # they ask the package index for a later version of the client
    )
    query = client.collections.get(options["collection"]).query
    filters, wanted = [_filter(terms) for terms in options["filters"]], MetadataQuery(distance=True)

    def search(request: bytes) -> tuple[Sequence[int], Sequence[float]]:
        found = query.near_vector(
            list(struct.unpack_from(f"<{len(request) // 4 - 1}f", request, 4)),
            limit=options["k"],
            filters=filters[int.from_bytes(request[:4], "little")],
            return_metadata=wanted,
            return_properties=[],
        ).objects
        return [hit.uuid.int & 0xFFFFFFFFFFFF for hit in found], [hit.metadata.distance or 0.0 for hit in found]

    return search, client.close
