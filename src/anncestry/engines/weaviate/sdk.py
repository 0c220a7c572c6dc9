"""Searches and insertions of a Python program: by weaviate-client, the locked one or 4.4.4 for Weaviate 1.23.

A file that also runs by itself (transport kind sdk, see `drive.transports`; `engines.sdk_rows`), in an environment
where nothing is installed but that client: it imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from importlib.metadata import version
from operator import and_
from typing import Any

import weaviate
from weaviate.classes.data import DataObject
from weaviate.classes.init import AdditionalConfig
from weaviate.classes.query import Filter, MetadataQuery
from weaviate.exceptions import WeaviateInsertManyAllFailedError


def _filter(terms: Sequence[tuple[str, str, Any]]) -> Any:
    """All of the terms, each (property, comparison, value); None of none."""
    parts = [getattr(Filter.by_property(name), how)(value) for name, how, value in terms]
    return reduce(and_, parts) if parts else None


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], tuple[Sequence[int], Sequence[float]]], Callable[[], None]]:
    """A search for one request by a client of its own (it returns ids, and the library's distances), and its end."""
    client = _client(target, options, timeout_s)
    query = client.collections.get(options["collection"]).query
    filters, distance = [_filter(terms) for terms in options["filters"]], MetadataQuery(distance=True)

    def search(request: bytes) -> tuple[Sequence[int], Sequence[float]]:
        hits = query.near_vector(
            memoryview(request)[4:].cast("f").tolist(),
            limit=options["k"],
            filters=filters[int.from_bytes(request[:4], "little")],
            return_metadata=distance,
            return_properties=[],
        ).objects
        return [hit.uuid.int & 0xFFFFFFFFFFFF for hit in hits], [hit.metadata.distance or 0.0 for hit in hits]

    return search, client.close


def inserting(
    target: str, options: dict[str, Any]
) -> tuple[Callable[[int, list[list[float]], list[str], list[list[Any]]], dict[int, str]], Callable[[], None]]:
    """An insertion of rows from a number on, with vectors and columns: what was refused, by place; and its end."""
    client = _client(target, options, options["timeout_s"])
    data, prefix = client.collections.get(options["collection"]).data, options["uuid_prefix"]

    def insert(first: int, vectors: list[list[float]], names: list[str], values: list[list[Any]]) -> dict[int, str]:
        rows = [
            DataObject(properties=dict(zip(names, of, strict=True)), uuid=f"{prefix}{row:012x}", vector=vector)
            for row, (vector, of) in enumerate(zip(vectors, values, strict=True), start=first)
        ]
        try:
            return {place: str(error.message) for place, error in data.insert_many(rows).errors.items()}
        except WeaviateInsertManyAllFailedError as error:
            return dict.fromkeys(range(len(rows)), str(error))

    return insert, client.close


def _client(target: str, options: dict[str, Any], timeout_s: float) -> weaviate.WeaviateClient:
    host, _, port = target.rpartition(":")
    limit_s = max(1, int(timeout_s))
    return weaviate.connect_to_local(
        host,
        options["http"],
        int(port),
        # Searches by gRPC are under what it calls the time to connect.
        additional_config=AdditionalConfig(timeout=(limit_s, limit_s)),
        skip_init_checks=version("weaviate-client") == "4.4.4",  # that one's ask the package index for a later one
    )
