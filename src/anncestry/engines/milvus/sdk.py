"""Searches and insertions of a Python program: by pymilvus.

A file that also runs by itself (`engines.sdk_rows`): it imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pymilvus import MilvusClient


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], tuple[Sequence[int], Sequence[float]]], Callable[[], None]]:
    """A search for one request by a client of its own (it returns ids, and the library's scores), and its end."""
    client = _client(target, options, timeout_s)
    expressions = options["expressions"]
    params = {"metric_type": options["metric_type"], "params": options["params"]}

    def search(request: bytes) -> tuple[Sequence[int], Sequence[float]]:
        (hits,) = client.search(
            options["collection"],
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


def inserting(
    target: str, options: dict[str, Any]
) -> tuple[Callable[[int, list[list[float]], list[str], list[list[Any]]], dict[int, str]], Callable[[], None]]:
    """An insertion of rows from a number on, with vectors and columns: what was refused, by place; and its end.

    Nothing is sent twice: a time limit of the library's would have it repeat what fails, so it gets none. (A batch that
    does not fit the schema it compares with the schema anew, once, before it is sent.)
    """
    client = _client(target, options, options["timeout_s"])

    def insert(first: int, vectors: list[list[float]], names: list[str], values: list[list[Any]]) -> dict[int, str]:
        rows = [
            {"id": row, "vector": vector, **dict(zip(names, of, strict=True))}
            for row, (vector, of) in enumerate(zip(vectors, values, strict=True), start=first)
        ]
        told = client.insert(options["collection"], rows, retry_times=0, retry_on_rate_limit=False)
        inserted = set(told["ids"])
        refused = {
            place: "not among the ids that it says are inserted"
            for place, row in enumerate(rows)
            if row["id"] not in inserted
        }
        if told["insert_count"] != len(rows) - len(refused):
            raise RuntimeError(f"{told['insert_count']} rows inserted, but ids of {len(rows) - len(refused)} told")
        return refused

    return insert, client.close


def _client(target: str, options: dict[str, Any], timeout_s: float) -> MilvusClient:
    """With the login that `options` hold, and under TLS if they name a file of CAs."""
    ca_file = options.get("ca_file")
    encrypted = {} if ca_file is None else {"server_pem_path": ca_file}
    scheme = "http" if ca_file is None else "https"
    return MilvusClient(uri=f"{scheme}://{target}", token=options.get("login", ""), timeout=timeout_s, **encrypted)
