"""What a Weaviate's shards and their index have come to, and waiting until they have.

That a shard says READY, with an empty queue, is not enough where rows are indexed in the background (ASYNC_INDEXING).
Up to 1.27 a batch of 1,000 rows that a worker has taken leaves the queue before it is in the index, and no search finds
it meanwhile. And a dynamic index becomes a graph a moment after the row that was one too many; a setting that is
changed while 1.27 makes that graph is changed in the schema alone, and that server does not answer for its shards as
long as it makes it. So the shards' state is read from disk, and the index is asked for every row.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Placed, Spec, wait_for
from anncestry.engines.channel import call
from anncestry.engines.weaviate import COLLECTION, DEFAULT_CUTOFF, graph_of, quantizer_config
from anncestry.engines.weaviate.serve import Rest, WeaviateServer, channel, node_dir, rest_of
from anncestry.engines.weaviate.wire import METHOD, PATH, SearchReply, filters, search_request, uuid_of
from anncestry.errors import ServerError
from anncestry.runtimes.base import Member
from anncestry.web import host_and_port

OPEN_TIMEOUT_S = 600.0
_APPLY_TIMEOUT_S = 60.0
_REPLICATE_TIMEOUT_S = 120.0
_REPLICA_SAMPLE = 20
FLAT, BECOMING, GRAPH = "flat", "becoming a graph", "a graph"
_UPGRADED = re.compile(rb"upgraded\x01")
"""In a shard's state (bbolt): the key and its value, which follows it. No other value is ever written."""
_WINDOW_ROWS = 2000
_IDLE_S = 120.0
"""How long nothing may change before what is missing is no longer waited for: then the gates say what is missing."""
_POLL_S = 0.25
INDEX_TIMEOUT_S = 24 * 3600.0
"""The longest that an index, or a graph in place of a flat one, is waited for."""
_SEARCH_TIMEOUT_S = 600.0


def await_searchable(server: WeaviateServer) -> None:
    """Search for a stored vector until it succeeds."""
    query = {"query": f"{{Get{{{COLLECTION}(limit:1){{_additional{{vector}}}}}}}}"}
    reply = server.rest.call("POST", PATH, query)
    try:
        vector = reply["data"]["Get"][COLLECTION][0]["_additional"]["vector"]
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"weaviate: {COLLECTION} holds no object to search for: {reply}") from None
    request = search_request(np.array(vector, np.float32), 1, None).SerializeToString()
    with channel(server) as connection:
        search = connection.unary_unary(METHOD)

        def found() -> bool | None:
            try:
                return bool(SearchReply.FromString(search(request, timeout=OPEN_TIMEOUT_S)).results) or None
            except grpc.RpcError as error:
                raise ServerError(f"{error.code().name}: {error.details()}") from None

        wait_for("weaviate: a first search", found, server, OPEN_TIMEOUT_S, patient=True)


def placement(server: WeaviateServer) -> list[Placed]:
    """Which shard lies on which node. The objects that a node counts lag behind: what it holds in memory is missing.

    So they are of no use before a restart, which a server that somebody else runs never sees.
    """
    counts = server.mark is None
    return [
        Placed(node["name"], shard["name"], shard["objectCount"] if counts else None)
        for node in server.rest.nodes()
        for shard in node.get("shards") or []
    ]


def await_placed(server: WeaviateServer) -> None:
    """Wait until the cluster knows as many shards on its nodes as the topology declares."""
    wanted = server.topology["shards"] * server.topology["replicas"]
    wait_for(
        f"weaviate: {wanted} shards on their nodes",
        lambda: len(placement(server)) >= wanted or None,
        server,
        OPEN_TIMEOUT_S,
        patient=True,
    )


def await_replicated(server: WeaviateServer, rows: int) -> None:
    """Wait until each of some rows, the last among them, lies on as many nodes as there are replicas.

    Writes are acknowledged by a part of the replicas, counts of objects lag behind, and what a node is asked it asks
    others: so each node is asked for its own copy, by the interface that nodes use among themselves.
    """
    replicas = server.topology["replicas"]
    if len(server.group) == 1 or not all("data" in member.addresses for member in server.group):
        return
    holders = [(server.group[part.node], part.shard) for part in placement(server)]
    sample = sorted({round(at * (rows - 1) / _REPLICA_SAMPLE) for at in range(_REPLICA_SAMPLE + 1)})

    def copies(row: int) -> int:
        return sum(holds(member, shard, uuid_of(row)) for member, shard in holders)

    for row in sample:
        wait_for(
            f"weaviate: row {row} on {replicas} nodes",
            lambda row=row: copies(row) >= replicas or None,  # type: ignore[misc]
            server,
            _REPLICATE_TIMEOUT_S,
            patient=True,
        )


def holds(member: Member, shard: str, object_id: str) -> bool:
    """Whether a node itself has the object in its copy of the shard."""
    path = f"/replicas/indices/{COLLECTION}/shards/{shard}/objects/{object_id}"
    return Rest(*host_and_port(member.addresses["data"])).call("GET", path, timeout_s=60.0)["Object"] is not None


def exact_filters(server: WeaviateServer, on: bool) -> None:
    """Scan below any number of matches, or below the cut-off that the system sets (else Weaviate's default)."""
    asked = server.settings.get("flatSearchCutoff", DEFAULT_CUTOFF)
    configure(server, "flatSearchCutoff", max(asked, DEFAULT_CUTOFF) if on else asked)


def configure(server: WeaviateServer, name: str, value: int) -> None:
    """Change the configuration of the collection's graph, and wait until every node says so: each has a copy of the
    schema, which follows that of the leader. Nothing to do for a flat index, which has none."""
    definition = server.rest.collection()
    graph = graph_of(definition)
    if graph is None:
        return
    graph[name] = value
    server.rest.call("PUT", f"/v1/schema/{COLLECTION}", definition)
    for member in server.group:
        own = rest_of(member)
        wait_for(
            f"weaviate: {name} {value} on {member.name}",
            lambda own=own: (graph_of(own.collection()) or {}).get(name) == value or None,  # type: ignore[misc]
            server,
            _APPLY_TIMEOUT_S,
        )


def index_state(server: WeaviateServer) -> tuple[bool, str]:
    """Whether every shard is ready and nothing waits to be indexed, and that in words."""
    shards = server.rest.shards()
    words = "{name} {vectorIndexingStatus}, queue {vectorQueueLength}"
    states = [words.format_map(shard) for shard in shards]
    done = all(shard["vectorIndexingStatus"] == "READY" and shard["vectorQueueLength"] == 0 for shard in shards)
    return bool(shards) and done, "; ".join(states) or "no shards"


def await_queues(server: WeaviateServer, timeout_s: float, patient: bool = False) -> None:
    """Wait until `index_state` says that nothing waits to be indexed."""
    wait_for("weaviate: index", lambda: index_state(server)[0] or None, server, timeout_s, patient=patient)


def forms(server: WeaviateServer) -> dict[tuple[str, str], str]:
    """What each shard of a dynamic index is by now, by node and shard (see `index_form`)."""
    found = {}
    for placed in placement(server):
        folder = node_dir(server.data_dir, placed.node, len(server.group)) / "data" / COLLECTION.lower()
        found[placed.node, placed.shard] = index_form(folder / placed.shard)
    return found


def index_form(shard: Path) -> str:
    """What the index in a shard's folder is now."""
    state = shard / "index.db"
    if state.exists() and _UPGRADED.search(state.read_bytes()):
        return GRAPH
    return BECOMING if any(shard.glob("*.hnsw.commitlog.d")) else FLAT


def settled(forms: Mapping[tuple[str, str], str], rows: int, threshold: int) -> tuple[bool, str]:
    """Whether the indexes of all shards, by node and shard, are what `rows` rows make of them, and that in words.

    Graphs, where the shards have more than `threshold` rows on average. With fewer, all of one kind: the speed and
    the recall of a mixture would be neither's.
    """
    shards = len({shard for _, shard in forms})
    due = shards > 0 and rows > threshold * shards
    kinds = set(forms.values())
    words = "; ".join(f"{shard} on {node} is {kind}" for (node, shard), kind in sorted(forms.items())) or "no shards"
    return kinds == {GRAPH} or (kinds == {FLAT} and not due), f"{words}, of {rows} rows, threshold {threshold}"


def compress(server: WeaviateServer, index: Spec) -> None:
    """Turn a quantizer on that learns from the vectors that are there, and wait until every shard is compressed."""
    definition = server.rest.collection()
    definition["vectorIndexConfig"].update(quantizer_config(index))
    server.rest.call("PUT", f"/v1/schema/{COLLECTION}", definition)
    wait_for(
        f"weaviate: {index['quantizer']} trained",
        lambda: (index_state(server)[0] and all(shard["compressed"] for shard in server.rest.shards())) or None,
        server,
        INDEX_TIMEOUT_S,
    )


def await_indexed(server: WeaviateServer, price: NDArray[np.float32], query: NDArray[np.float32]) -> None:
    """Wait until the index returns every row, and a dynamic one is what it is to be; the queue is empty already.

    `price` (rows,) is what was stored, `query` (d,) any vector to ask with. Also returns once nothing has changed for
    two minutes.
    """
    _await_form(server, len(price))
    # Above its cut-off a filter is answered by a walk through the graph, which may miss rows that are there.
    low = int(server.settings.get("flatSearchCutoff", DEFAULT_CUTOFF)) <= 2 * _WINDOW_ROWS
    if low:
        exact_filters(server, True)
    _await_rows(server, price, query)
    if low:
        exact_filters(server, False)


def _await_form(server: WeaviateServer, rows: int) -> None:
    definition = server.rest.collection()
    if definition["vectorIndexType"] != "dynamic":
        return
    threshold = definition["vectorIndexConfig"]["threshold"]
    since = time.monotonic()

    def done() -> bool | None:
        nonlocal since
        kinds = forms(server)
        if settled(kinds, rows, threshold)[0]:
            return True
        if BECOMING in kinds.values():
            since = time.monotonic()
        return False if time.monotonic() - since > _IDLE_S else None

    wait_for("weaviate: a graph", done, server, INDEX_TIMEOUT_S, _POLL_S, patient=True)


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
    with channel(server) as connection:
        for window, rows in windows(price):
            most, since = -1, time.monotonic()
            while True:
                request = search_request(query, rows, filters(window))
                reply = call(connection, METHOD, request, SearchReply, _SEARCH_TIMEOUT_S, "weaviate: rows in the index")
                returned = len(reply.results)
                if returned >= rows:
                    break
                server.check_alive()
                if returned > most:
                    most, since = returned, time.monotonic()
                elif time.monotonic() - since > _IDLE_S:
                    return
                time.sleep(_POLL_S)
