"""Searches by the client that VectorDBBench measures Milvus with, as its concurrent runner calls it.

A file that runs by itself (transport kind sdk, see `drive.transports`), among the packages of envs/vectordbbench.txt:
it imports nothing of ours. VectorDBBench keeps no samples; here the driver's clock stands around the same call, so that
every answer is kept. Its call returns ids alone: the scores are taken from the library's reply, after the clock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from vectordb_bench.backend.clients.api import MetricType
from vectordb_bench.backend.clients.milvus.config import DISKANNConfig, HNSWConfig, MilvusIndexConfig
from vectordb_bench.backend.clients.milvus.milvus import Milvus
from vectordb_bench.backend.filter import non_filter


class _Reply:
    """What the library replied: ids as the client made them, and scores, read only when they are asked for."""

    def __init__(self, ids: list[int], hits: Any) -> None:
        self._ids, self._hits = ids, hits

    def __iter__(self) -> Any:
        yield self._ids
        yield [hit.distance for hit in self._hits]


def connect(
    target: str, options: dict[str, Any], timeout_s: float
) -> tuple[Callable[[bytes], Any], Callable[[], None]]:
    """A search for one request by a client of its own, and its end.

    Its collections have consistency "Session", ours Milvus' default, under which every search would wait for the clock
    of the message queue: each search says "Session".
    """
    logging.disable(logging.INFO)
    user, _, password = options.get("login", "").partition(":")
    ca_file = options.get("ca_file")
    if ca_file is not None:  # which its client has no word for
        os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = ca_file
    scheme = "http" if ca_file is None else "https"
    access = {"uri": f"{scheme}://{target}", "user": user or None, "password": password or None}
    asked = _asked(options["params"], MetricType(options["metric_type"]))
    client = Milvus(dim=1, db_config=access, db_case_config=asked, collection_name=options["collection"])
    connection = client.init()
    connection.__enter__()
    client.prepare_filter(non_filter)
    search = client.col.search
    last: list[Any] = [None]

    def kept(*arguments: Any, **named: Any) -> Any:
        last[0] = search(*arguments, **named, consistency_level="Session", timeout=timeout_s)
        return last[0]

    client.col.search = kept
    # Its runner has each query as a list before it begins; here it becomes one when it is first asked.
    queries: dict[bytes, list[float]] = {}

    def call(request: bytes) -> _Reply:
        query = queries.get(request)
        if query is None:
            query = queries[request] = list(memoryview(request)[4:].cast("f"))
        ids = client.search_embedding(query, options["k"])
        return _Reply(ids, last[0][0])

    return call, lambda: connection.__exit__(None, None, None)


def _asked(params: dict[str, int], metric: MetricType) -> MilvusIndexConfig:
    """A search of these parameters, by the type of index that has them.

    How the collection was made, which is there, decides nothing here: its dimensions, M and efConstruction.
    """
    if "search_list" in params:
        return DISKANNConfig(metric_type=metric, **params)
    return HNSWConfig(M=1, efConstruction=1, metric_type=metric, **params)
