"""Searches and insertions of a Python program before gRPC: by weaviate-client 3.26.7, over REST and GraphQL.

A file that also runs by itself, as `sdk` does, in an environment where nothing is installed but that client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weaviate

_OPERATORS = {"contains_any": "ContainsAny", "greater_or_equal": "GreaterThanEqual", "less_than": "LessThan"}


def _filter(terms: Sequence[tuple[str, str, Any]]) -> dict[str, Any] | None:
    """All of the terms, each (property, comparison, value), as the client takes them; None of none."""
    parts = [
        {"path": [name.removeprefix("_")], "operator": _OPERATORS[how], f"value{_kind(value)}": value}
        for name, how, value in terms
    ]
    return {"operator": "And", "operands": parts} if len(parts) > 1 else next(iter(parts), None)


def _kind(value: Any) -> str:
    return "Text" if isinstance(value, str) else "Number" if isinstance(value, float) else "Int"


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], tuple[Sequence[int], Sequence[float]]], Callable[[], None]]:
    """A search for one request by a client of its own (it returns ids, and the library's distances), and its end."""
    client, name = _client(target, options, timeout_s), options["collection"]
    filters = [_filter(terms) for terms in options["filters"]]

    def search(request: bytes) -> tuple[Sequence[int], Sequence[float]]:
        query = client.query.get(name).with_limit(options["k"]).with_additional(["id", "distance"])
        query = query.with_near_vector({"vector": memoryview(request)[4:].cast("f").tolist()})
        where = filters[int.from_bytes(request[:4], "little")]
        answer = (query if where is None else query.with_where(where)).do()
        if answer.get("errors"):
            raise RuntimeError(f"GraphQL: {answer['errors'][0].get('message')}")
        hits = [hit["_additional"] for hit in answer["data"]["Get"][name]]
        return [int(hit["id"][-12:], 16) for hit in hits], [hit["distance"] for hit in hits]

    return search, lambda: None


def inserting(
    target: str, options: dict[str, Any]
) -> tuple[Callable[[int, list[list[float]], list[str], list[list[Any]]], dict[int, str]], Callable[[], None]]:
    """An insertion of rows from a number on, with vectors and columns: what was refused, by place; and its end."""
    client = _client(target, options, options["timeout_s"])
    # Sent when it is told to, once: what failed is counted, never sent again.
    batch = client.batch.configure(batch_size=None, dynamic=False, timeout_retries=0, connection_error_retries=0)
    name, prefix = options["collection"], options["uuid_prefix"]

    def insert(first: int, vectors: list[list[float]], names: list[str], values: list[list[Any]]) -> dict[int, str]:
        for row, (vector, of) in enumerate(zip(vectors, values, strict=True), start=first):
            batch.add_data_object(dict(zip(names, of, strict=True)), name, f"{prefix}{row:012x}", vector)
        results = [item.get("result") or {} for item in batch.create_objects()]
        if len(results) != len(vectors):
            raise RuntimeError(f"a batch of {len(vectors)} rows was answered for {len(results)}")
        return {
            place: "; ".join(str(error.get("message")) for error in result["errors"].get("error", ())) or "refused"
            for place, result in enumerate(results)
            if result.get("errors")
        }

    return insert, lambda: None


def _client(target: str, options: dict[str, Any], timeout_s: float) -> weaviate.Client:
    host, limit_s = target.rpartition(":")[0], max(1, int(timeout_s))
    return weaviate.Client(f"http://{host}:{options['http']}", timeout_config=(limit_s, limit_s), startup_period=None)
