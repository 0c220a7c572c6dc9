"""Rows that a Weaviate indexes in the background (ASYNC_INDEXING): waiting until the last of them is in the index.

That a shard says READY, with an empty queue, is not enough. Up to 1.27 a batch of 1,000 rows that a worker has taken
leaves the queue before it is in the index, and no search finds it meanwhile. And a dynamic index becomes a graph a
moment after the row that was one too many; a setting that is changed while 1.27 makes that graph is changed in the
schema alone, and that server does not answer for its shards as long as it makes it. So the shards' state is read from
disk, and the index is asked for every row.
"""

from __future__ import annotations

import time

import grpc
import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import wait_for
from anncestry.engines.weaviate import dynamic, serve
from anncestry.engines.weaviate.proto import search_get_pb2
from anncestry.engines.weaviate.serve import WeaviateServer
from anncestry.engines.weaviate.settings import DEFAULT_CUTOFF
from anncestry.engines.weaviate.wire import METHOD, filters, search_request
from anncestry.errors import ServerError

_WINDOW_ROWS = 2000
_IDLE_S = 120.0
"""How long nothing may change before what is missing is no longer waited for: then the gates say what is missing."""
_POLL_S = 0.25
INDEX_TIMEOUT_S = 24 * 3600.0
"""The longest that an index, or a graph in place of a flat one, is waited for."""
_SEARCH_TIMEOUT_S = 600.0


def await_indexed(server: WeaviateServer, price: NDArray[np.float32], query: NDArray[np.float32]) -> None:
    """Wait until the index returns every row, and a dynamic one is what it is to be; the queue is empty already.

    `price` (rows,) is what was stored, `query` (d,) any vector to ask with. Also returns once nothing has changed for
    two minutes.
    """
    _await_form(server, len(price))
    # Above its cut-off a filter is answered by a walk through the graph, which may miss rows that are there.
    low = int(server.settings.get("flatSearchCutoff", DEFAULT_CUTOFF)) <= 2 * _WINDOW_ROWS
    if low:
        serve.exact_filters(server, True)
    _await_rows(server, price, query)
    if low:
        serve.exact_filters(server, False)


def _await_form(server: WeaviateServer, rows: int) -> None:
    definition = server.rest.collection()
    if definition["vectorIndexType"] != "dynamic":
        return
    threshold = definition["vectorIndexConfig"]["threshold"]
    since = time.monotonic()

    def settled() -> bool | None:
        nonlocal since
        forms = serve.forms(server)
        if dynamic.settled(forms, rows, threshold)[0]:
            return True
        if dynamic.BECOMING in forms.values():
            since = time.monotonic()
        return False if time.monotonic() - since > _IDLE_S else None

    wait_for("weaviate: a graph", settled, server, INDEX_TIMEOUT_S, _POLL_S, patient=True)


def windows(price: NDArray[np.float32], size: int = _WINDOW_ROWS) -> list[tuple[dict[str, object], int]]:
    """Filters of about `size` rows each (more, where many have one price) that together pass every row once; with how
    many rows each passes."""
    values, counts = np.unique(price, return_counts=True)
    before = np.cumsum(counts) - counts
    starts = np.unique(np.searchsorted(before, np.arange(0, len(price), size)))
    starts = starts[starts < len(values)].tolist()
    found = []
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        window: dict[str, object] = {"field": "price", "from": float(values[start])}
        if end < len(values):
            window["below"] = float(values[end])
        found.append((window, int(counts[start:end].sum())))
    return found


def _await_rows(server: WeaviateServer, price: NDArray[np.float32], query: NDArray[np.float32]) -> None:
    with serve.channel(server) as connection:
        search = connection.unary_unary(
            METHOD,
            request_serializer=search_get_pb2.SearchRequest.SerializeToString,
            response_deserializer=search_get_pb2.SearchReply.FromString,
        )
        for window, rows in windows(price):
            most, since = -1, time.monotonic()
            while True:
                try:
                    reply = search(search_request(query, rows, filters(window)), timeout=_SEARCH_TIMEOUT_S)
                except grpc.RpcError as error:
                    raise ServerError(f"weaviate: rows in the index: {error.code().name}: {error.details()}") from None
                found = len(reply.results)
                if found >= rows:
                    break
                server.check_alive()
                if found > most:
                    most, since = found, time.monotonic()
                elif time.monotonic() - since > _IDLE_S:
                    return
                time.sleep(_POLL_S)
