"""What OpenSearch and Elasticsearch have in common: calls by HTTP and JSON, rows, conditions and answers, loads.

Both keep rows in segments of Lucene, whose graphs are searched one by one. Vectors are the shortest decimals that read
back as the same float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from anncestry import redact, web
from anncestry.engines.base import (
    Batch,
    DecodeError,
    EngineOf,
    ErrorReplyError,
    Kill,
    LoadResult,
    Server,
    Spec,
    Vectors,
    wait_for,
)
from anncestry.engines.conditions import Comparison, compose
from anncestry.errors import ServerError
from anncestry.progress import Progress
from anncestry.runtimes import tls
from anncestry.runtimes.base import Group
from anncestry.runtimes.credentials import authorization

HEADERS = {"Content-Type": "application/json"}
FIELD = "vector"
_CALL_S = 3600.0
_MERGE_S = 24 * 3600.0
"""Merging builds the graph of all rows."""
_TYPES = {"category": "short", "price": "float", "region": "short"}
_PAYLOAD_TYPES = {"keyword": "keyword", "int": "long", "float": "double"}
_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}

# Bytes


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def decimals(vector: NDArray[np.float32]) -> str:
    return f"[{','.join(vector.astype('<f4', copy=False).astype(str))}]"


def definition(field: Mapping[str, Any], settings: Mapping[str, Any], payload: Mapping[str, str]) -> dict[str, Any]:
    """The body that creates the index: of vectors in `field`, with columns of `payload` (name → kind)."""
    types = {**_TYPES, **{name: _PAYLOAD_TYPES[kind] for name, kind in payload.items()}}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in types.items()}
    mappings = {"dynamic": "strict", "properties": {**properties, FIELD: dict(field)}}
    return {"settings": {"index": dict(settings)}, "mappings": mappings}


def condition(filter: Spec) -> dict[str, Any]:
    """A workload's filter as a query."""
    return compose(filter, _comparison, lambda parts: {"bool": {"filter": parts}}, _some, _range)


def _some(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"bool": {"should": parts, "minimum_should_match": 1}}


def _comparison(one: Comparison) -> dict[str, Any]:
    if isinstance(one.value, tuple):
        return {"terms": {one.column: list(one.value)}}
    if one.operator == "=":
        return {"term": {one.column: one.value}}
    return _range(one)


def _range(*ends: Comparison) -> dict[str, Any]:
    return {"range": {ends[0].column: {_BOUNDS[one.operator]: one.value for one in ends}}}


def insertion(rows: Batch) -> bytes:
    """The body of `_bulk`: two lines a row."""
    lines = []
    for row, vector, values in zip(range(rows.first, rows.end), rows.base, rows.columns(), strict=True):
        more = text(dict(zip(rows.names, values, strict=True)))[1:]
        lines.append(f'{{"index":{{"_id":"{row}"}}}}\n{{"{FIELD}":{decimals(vector)},{more}\n')
    return "".join(lines).encode()


def scan(k: int, filter: Spec, script: Mapping[str, Any]) -> bytes:
    """The body of a search that scores every row that passes the filter by a script."""
    passing = {"bool": {"filter": condition(filter)}}
    query = {"script_score": {"query": passing, "script": script}}
    return text({"size": k, "_source": False, "query": query}).encode()


def hits(response: bytes, system: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and scores of a reply; DecodeError where it is no whole answer."""
    try:
        reply = json.loads(response)
        if "error" in reply:
            raise ErrorReplyError(f"{system}: {text(reply['error'])[:300]}")
        if reply["timed_out"] or not _is_whole(reply["_shards"]):
            raise ErrorReplyError(f"{system}: a search of a part: {text(reply['_shards'])[:300]}")
        found = reply["hits"]["hits"]
        ids = np.array([int(hit["_id"]) for hit in found], np.int64)
        scores = np.array([hit["_score"] for hit in found], np.float32).astype(np.float64)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DecodeError(f"not a reply of {system} to a search: {type(error).__name__}: {error}") from None
    if scores.shape != ids.shape or not np.isfinite(scores).all() or (scores <= 0).any():
        raise DecodeError(f"a reply of {system} with {len(ids)} ids and scores {scores[:5].tolist()}")
    return ids, scores


def _is_whole(shards: Mapping[str, Any]) -> bool:
    """Whether all shards answered. One without a copy that runs has not failed, but it is not among the successful."""
    return not shards["failed"] and shards["successful"] == shards["total"]


# The server


class LuceneServer(Server):
    """One index, asked at one node. With `exact`, searches under a filter compare all rows that pass it."""

    collection = "anncestry"
    interface = "http"
    name: ClassVar[str]
    """In messages."""

    def __init__(self, group: Group, topology: Spec) -> None:
        super().__init__(group, topology)
        self.exact = False

    def ask(
        self, method: str, path: str, body: bytes | None = None, endpoint: str | None = None, seconds: float = _CALL_S
    ) -> tuple[bytes, int, str | None]:
        """What a call answers (at the first node), its status, and why it was refused; ServerError if nothing does."""
        header = authorization(self.credentials)
        headers = HEADERS if header is None else {**HEADERS, "Authorization": header}
        context = None if self.tls is None else tls.context(self.tls, ("http/1.1",))
        try:
            status, reply = web.call(endpoint or self.endpoint, method, path, seconds, body, headers, context)
        except OSError as error:
            self.check_alive()
            raise ServerError(f"{self.name}: {method} {path}: {error}") from None
        said = f"HTTP {status}: {redact.short(reply.decode(errors='replace'))}"
        return reply, status, said if status >= 400 else None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = _CALL_S) -> Any:
        """What a call answers; ServerError with the system's reason if it fails."""
        encoded = None if body is None else json.dumps(body).encode()
        reply, _, refusal = self.ask(method, path, encoded, seconds=seconds)
        if refusal is not None:
            raise ServerError(f"{self.name}: {refusal}")
        return json.loads(reply)

    def of_index(self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = _CALL_S) -> Any:
        """The answer; ServerError also where it was done in some shards or copies only."""
        told = self.call(method, f"/{self.collection}{path}", body, seconds)
        parts = told.get("_shards", {}) if isinstance(told, Mapping) else {}
        if isinstance(parts, Mapping) and parts.get("failed"):
            raise ServerError(f"{self.name}: {path}: {parts['failed']} of {parts.get('total')} copies failed")
        return told

    def insert(self, body: bytes) -> list[str]:
        """Insert rows; returns why they were refused, for each that was. ServerError if all of them were."""
        reply, _, refusal = self.ask("POST", f"/{self.collection}/_bulk", body)
        if refusal is not None:
            raise ServerError(f"{self.name}: {refusal}")
        told = json.loads(reply)
        if not told["errors"]:
            return []
        return [json.dumps(item["index"]["error"])[:300] for item in told["items"] if "error" in item["index"]]

    def mappings(self) -> dict[str, Any]:
        return dict(self.of_index("GET", "/_mapping")[self.collection]["mappings"])

    @cached_property
    def field(self) -> dict[str, Any]:
        """The field of vectors as the server describes it. It is fixed once the index is created."""
        return dict(self.mappings()["properties"][FIELD])

    def segments(self) -> list[list[list[dict[str, Any]]]]:
        """The segments that are searched: of each copy of each shard."""
        shards = self.of_index("GET", "/_segments")["indices"][self.collection]["shards"].values()
        return [
            [[segment for segment in copy["segments"].values() if segment["search"]] for copy in copies]
            for copies in shards
        ]

    def copies(self) -> tuple[int, int]:
        """How many shards the index has, and copies of each."""
        told = self.of_index("GET", "/_settings")[self.collection]["settings"]["index"]
        return int(told["number_of_shards"]), 1 + int(told["number_of_replicas"])

    def await_open(self) -> None:
        """Until the index can be searched; a node answers earlier."""
        self.await_green()
        self.search_once()

    def await_green(self) -> None:
        """Until every copy of every shard is there."""

        def done() -> bool | None:
            health = self.call("GET", f"/_cluster/health/{self.collection}?wait_for_status=green&timeout=1s")
            return True if health["status"] == "green" else None

        wait_for(f"{self.name}: a green index", done, self, _CALL_S, patient=True)

    def check_copies(self) -> None:
        """ServerError where a copy of a shard is missing: a search may answer without it."""
        health = self.call("GET", f"/_cluster/health/{self.collection}?timeout=1s")
        if health["status"] != "green":
            raise ServerError(
                f"{self.name}: the index is {health['status']}, with {health['unassigned_shards']} copies missing"
            )

    def search_once(self) -> None:
        reply, _, refusal = self.ask("POST", f"/{self.collection}/_search", self.first_search())
        if refusal is not None or not json.loads(reply)["hits"]["hits"]:
            raise ServerError(f"{self.name}: a search finds nothing: {refusal or ''}")

    def first_search(self) -> bytes:
        """The body of some search."""
        raise NotImplementedError


S = TypeVar("S", bound=LuceneServer)


class LuceneEngine(EngineOf[S]):
    """How an index is loaded, counted and asked, where it is of Lucene."""

    narrows = True
    float32_scores = True

    def create(self, server: S, vectors: Vectors, index: Spec, payload: Mapping[str, str]) -> None:
        """Make the index."""
        raise NotImplementedError

    def load(self, server: S, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the index, insert in batches, merge its segments into one, search, have it committed."""
        result = LoadResult()
        self.create(server, vectors, index, {column.stored_as: column.kind for column in vectors.payload.columns})
        kill = Kill(server, load, len(vectors.base), result)
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, body in requests:
                refused = kill.send(partial(server.insert, body), lambda answer: next(iter(answer), None))
                result.acknowledge(len(ids), len(refused), next(iter(refused), None))
                progress.at(result.rows_sent)
                kill.when_due()
        with result.phase("index"):
            if server.topology["replicas"] > 1:
                server.await_green()  # a copy that is still made is not merged
            # The merged segment is searched only after a refresh.
            server.of_index("POST", "/_refresh")
            server.of_index("POST", "/_forcemerge?max_num_segments=1", seconds=_MERGE_S)
            server.of_index("POST", "/_refresh")
        with result.phase("ready"):
            server.await_open()
        server.of_index("POST", "/_flush?wait_if_ongoing=true")
        result.durable("_flush: Lucene has synced and committed its one segment, and the log of rows is cut off")
        return result

    def encode_insert(self, server: S, rows: Batch) -> bytes:
        return insertion(rows)

    def await_open(self, server: S, index: Spec) -> None:
        server.await_open()

    def exact_filters(self, server: S, on: bool) -> None:
        server.exact = on

    def count(self, server: S, filter: Spec | None) -> int:
        body = None if filter is None else {"query": condition(filter)}
        told = server.of_index("POST", "/_count", body)
        if not _is_whole(told["_shards"]):
            raise ServerError(f"{server.name}: rows are counted in a part of the shards: {text(told['_shards'])}")
        return int(told["count"])

    def covered(self, server: S, rows: int, shards: int) -> tuple[bool, str]:
        """Whether one segment of each shard, in every copy, holds all `rows`, and what there is."""
        found = server.segments()
        segments = [segment for copies in found for segment in copies[0]]
        searched = sum(segment["num_docs"] for segment in segments)
        deleted = sum(segment["deleted_docs"] for segment in segments)
        odd = sum(
            [each["num_docs"] for each in copy] != [each["num_docs"] for each in copies[0]]
            for copies in found
            for copy in copies[1:]
        )
        detail = f"{searched} of {rows} rows and {deleted} deleted ones in {len(segments)} segments"
        if odd:
            detail += f"; {odd} further copies have other segments"
        return len(segments) == shards and searched == rows and not odd, detail

    def transport(self, server: S) -> dict[str, Any]:
        path = f"/{server.collection}/_search"
        transport = {"kind": "http", "target": server.endpoint, "method": "POST", "path": path, "headers": HEADERS}
        if server.topology.get("entry") == "all":
            transport["targets"] = server.endpoints
        if server.credentials is not None:
            transport["authorization"] = server.credentials
        if server.tls is not None:
            transport["tls"] = server.tls
        return transport
