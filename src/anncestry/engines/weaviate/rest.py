"""Weaviate's REST interface, as far as it is needed: schema, state, counts."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

from anncestry import redact, web
from anncestry.engines.weaviate.settings import COLLECTION
from anncestry.errors import ServerError
from anncestry.runtimes import tls


class Rest:
    """Calls to one server; a new connection each, so that nothing stays open while queries are timed."""

    def __init__(
        self, host: str, port: int, authorization: str | None = None, named: Mapping[str, Any] | None = None
    ) -> None:
        self._address = f"{host}:{port}"
        self._tls: ssl.SSLContext | None = None if named is None else tls.context(named, ("http/1.1",))
        self._headers = {"Content-Type": "application/json"}
        if authorization is not None:
            self._headers["Authorization"] = authorization

    def status(self, path: str, timeout_s: float = 2.0) -> int | None:
        """HTTP status of a GET, None where nobody answers."""
        try:
            return self._exchange("GET", path, None, timeout_s)[0]
        except OSError:
            return None

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 30.0) -> Any:
        """The JSON that `path` answers (None for an empty body); ServerError if it doesn't or says that it failed."""
        try:
            status, reply = self._exchange(method, path, body, timeout_s)
        except OSError as error:
            raise ServerError(f"weaviate: {method} {path}: {error or type(error).__name__}") from None
        if not 200 <= status < 300:
            raise ServerError(
                f"weaviate: {method} {path}: HTTP {status}: {redact.short(reply.decode(errors='replace'), 500)}"
            )
        try:
            return json.loads(reply) if reply else None
        except (ValueError, RecursionError):
            raise ServerError(f"weaviate: {method} {path}: answered what is no JSON") from None

    def _exchange(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
        payload = None if body is None else json.dumps(body).encode()
        return web.call(self._address, method, path, timeout_s, payload, self._headers, self._tls)

    # What more than one module asks.

    def description(self) -> str | None:
        """The collection's description ("" without one), None where there is no collection."""
        classes = self.call("GET", "/v1/schema")["classes"]
        return next((str(found.get("description", "")) for found in classes if found["class"] == COLLECTION), None)

    def collection(self) -> dict[str, Any]:
        """The collection's effective definition."""
        return dict(self.call("GET", f"/v1/schema/{COLLECTION}"))

    def membership(self) -> list[dict[str, Any]]:
        """The cluster's nodes as this one sees them: name, status. One that died vanishes from the list."""
        return list(self.call("GET", "/v1/nodes", timeout_s=60.0)["nodes"])  # it may hang where a node just died

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes with the collection's shards."""
        return list(self.call("GET", f"/v1/nodes/{COLLECTION}?output=verbose")["nodes"])

    def shards(self) -> list[dict[str, Any]]:
        """The collection's shards on all nodes, with their states."""
        return [shard for node in self.nodes() for shard in node.get("shards") or []]

    def count(self, where: str = "") -> int:
        """Objects (that pass a GraphQL `where`), counted by an aggregation (objectCount of /v1/nodes lags behind)."""
        arguments = f"(where:{where})" if where else ""
        query = {"query": f"{{Aggregate{{{COLLECTION}{arguments}{{meta{{count}}}}}}}}"}
        reply = self.call("POST", "/v1/graphql", query)
        if reply.get("errors"):
            raise ServerError(f"weaviate: count: {reply['errors'][0].get('message')}")
        return int(reply["data"]["Aggregate"][COLLECTION][0]["meta"]["count"])
