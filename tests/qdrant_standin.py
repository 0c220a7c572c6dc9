"""A stand-in for Qdrant, as no package registry has its server: its gRPC interface, for one collection in memory.

It speaks the messages of Qdrant's own Python client (a pinned wheel), not those of the engine, and refuses fields that
these don't know. It keeps rows in memory, indexes them only once the collection says so, and compares all of them, as
it has no graph: the smaller hnsw_ef is, the more rows it leaves out, as a graph would.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.elasticsearch_standin import reached
from tests.servers import CACHE, artifacts

CLIENT = {
    "kind": "python",
    "package": "qdrant-client",
    "sha256": "2b975099b378382f6ca1cfb43f0d59e541be6e16a5892f282a4b8de7eff5cb63",
}
VERSION = "1.15.1"


class Messages(types.SimpleNamespace):
    """The modules of the client's messages."""

    points: Any
    collections: Any
    qdrant: Any


@cache
def messages(folder: Path) -> Messages:
    """Of the client, without the client: its package itself would import much more than it needs for them."""
    spec = {"system": "qdrant-client", "version": VERSION, "artifact": CLIENT}
    artifacts.run(spec, folder, CACHE, "test-qdrant-client")
    (package,) = folder.rglob("qdrant_client/grpc")
    for name, path in (("qdrant_client", package.parent), ("qdrant_client.grpc", package)):
        module = types.ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules[name] = module
    names = {"points": "points_pb2", "collections": "collections_pb2", "qdrant": "qdrant_pb2"}
    return Messages(**{n: importlib.import_module(f"qdrant_client.grpc.{m}") for n, m in names.items()})


class Refused(Exception):
    """Why a call is refused."""


def _check_known(message: Any) -> None:
    """Refuses a field that the message does not have."""
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    if unknown:
        raise Refused(f"{message.DESCRIPTOR.name}: unknown fields {unknown}")
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR") else [value]:
                _check_known(each)


class Standin:
    """The one collection and its rows. `key` is what the header must hold; None: no security."""

    def __init__(self, of: Messages, key: str | None) -> None:
        self.of, self.key = of, key
        self.name: str | None = None
        self.aliases: list[str] = []
        self.created: Any = None
        self.indexed_from = 0
        self.columns: dict[str, int] = {}
        self.rows: dict[int, tuple[np.ndarray, dict[str, Any]]] = {}
        self.searches: list[Any] = []
        self.seen: dict[tuple[Any, ...], tuple[list[int], np.ndarray]] = {}
        """What searches of one kind go through, until a row or a column changes."""

    def methods(self) -> dict[str, tuple[Any, Any]]:
        """By method: the class of its request, and what answers it."""
        p, c, q = self.of.points, self.of.collections, self.of.qdrant
        return {
            "qdrant.Qdrant/HealthCheck": (q.HealthCheckRequest, lambda r: q.HealthCheckReply(version=VERSION)),
            "qdrant.Collections/List": (c.ListCollectionsRequest, self._list),
            "qdrant.Collections/Create": (c.CreateCollection, self._create),
            "qdrant.Collections/Update": (c.UpdateCollection, self._update),
            "qdrant.Collections/Delete": (c.DeleteCollection, self._delete),
            "qdrant.Collections/Get": (c.GetCollectionInfoRequest, self._info),
            "qdrant.Collections/UpdateAliases": (c.ChangeAliases, self._alias),
            "qdrant.Collections/ListCollectionAliases": (c.ListCollectionAliasesRequest, self._listed),
            "qdrant.Points/CreateFieldIndex": (p.CreateFieldIndexCollection, self._index_column),
            "qdrant.Points/Upsert": (p.UpsertPoints, self._upsert),
            "qdrant.Points/Count": (p.CountPoints, self._count),
            "qdrant.Points/Search": (p.SearchPoints, self._search),
        }

    def _changed(self) -> Any:
        return self.of.collections.CollectionOperationResponse(result=True)

    def _done(self) -> Any:
        return self.of.points.PointsOperationResponse(result={"status": self.of.points.Completed})

    def _list(self, request: Any) -> Any:
        names = [] if self.name is None else [{"name": self.name}]
        return self.of.collections.ListCollectionsResponse(collections=names)

    def _create(self, request: Any) -> Any:
        if self.name is not None:
            raise Refused(f"Collection `{self.name}` already exists!")
        self.name, self.created = request.collection_name, request
        self.indexed_from = request.optimizers_config.indexing_threshold
        return self._changed()

    def _update(self, request: Any) -> Any:
        self.indexed_from = request.optimizers_config.indexing_threshold
        return self._changed()

    def _delete(self, request: Any) -> Any:
        self.__init__(self.of, self.key)  # type: ignore[misc]
        return self._changed()

    def _info(self, request: Any) -> Any:
        c = self.of.collections
        info = c.CollectionInfo(
            status=c.Green,
            optimizer_status={"ok": True},
            segments_count=1,
            points_count=len(self.rows),
            indexed_vectors_count=len(self.rows) if self.indexed_from else 0,
        )
        info.config.hnsw_config.CopyFrom(self.created.hnsw_config)
        info.config.params.vectors_config.CopyFrom(self.created.vectors_config)
        info.config.params.shard_number = self.created.shard_number
        info.config.params.replication_factor = self.created.replication_factor
        return c.GetCollectionInfoResponse(result=info)

    def _alias(self, request: Any) -> Any:
        self.aliases += [action.create_alias.alias_name for action in request.actions]
        return self._changed()

    def _listed(self, request: Any) -> Any:
        aliases = [{"alias_name": alias, "collection_name": self.name} for alias in self.aliases]
        return self.of.collections.ListAliasesResponse(aliases=aliases)

    def _index_column(self, request: Any) -> Any:
        self.columns[request.field_name] = request.field_type
        self.seen.clear()
        return self._done()

    def _upsert(self, request: Any) -> Any:
        size = self.created.vectors_config.params.size
        for point in request.points:
            vector = np.array(point.vectors.vector.data, np.float32)
            if len(vector) != size:
                raise Refused(f"Wrong input: Vector dimension error: expected dim: {size}, got {len(vector)}")
            values = {name: getattr(value, value.WhichOneof("kind")) for name, value in point.payload.items()}
            self.rows[point.id.num] = (vector, values)
        self.seen.clear()
        return self._done()

    def _passes(self, filter: Any, values: dict[str, Any]) -> bool:
        some = [self._meets(one, values) for one in filter.should]
        return all(self._meets(one, values) for one in filter.must) and (not some or any(some))

    def _meets(self, condition: Any, values: dict[str, Any]) -> bool:
        if condition.WhichOneof("condition_one_of") == "filter":
            return self._passes(condition.filter, values)
        field = condition.field
        if field.key not in self.columns:
            raise Refused(f"Index required but not found for {field.key}")
        value = values.get(field.key)
        if field.HasField("match"):
            match = field.match
            kind = match.WhichOneof("match_value")
            if kind == "integers":
                return value in match.integers.integers
            return bool(type(value) is type(getattr(match, kind)) and value == getattr(match, kind))
        bounds = {name: getattr(field.range, name) for name in ("lt", "gt", "gte", "lte") if field.range.HasField(name)}
        tests = {"lt": float.__lt__, "gt": float.__gt__, "gte": float.__ge__, "lte": float.__le__}
        return all(tests[name](float(value), bound) for name, bound in bounds.items())  # type: ignore[arg-type]

    def _count(self, request: Any) -> Any:
        passing = sum(self._passes(request.filter, values) for _, values in self.rows.values())
        return self.of.points.CountResponse(result={"count": passing})

    def _seen(self, request: Any) -> tuple[list[int], np.ndarray]:
        kind = (request.params.exact, request.params.hnsw_ef, request.filter.SerializeToString(deterministic=True))
        if kind not in self.seen:
            rows = list(self.rows) if request.params.exact else reached(list(self.rows), request.params.hnsw_ef)
            rows = [row for row in rows if self._passes(request.filter, self.rows[row][1])]
            self.seen[kind] = rows, np.array([self.rows[row][0] for row in rows], np.float64)
        return self.seen[kind]

    def _search(self, request: Any) -> Any:
        self.searches.append(request)
        rows, vectors = self._seen(request)
        if not rows:
            return self.of.points.SearchResponse()
        query = np.array(request.vector, np.float64)
        euclid = self.created.vectors_config.params.distance == self.of.collections.Euclid
        scores = np.sqrt(((vectors - query) ** 2).sum(axis=1)) if euclid else vectors @ query
        order = np.argsort(scores if euclid else -scores, kind="stable")[: request.limit]
        found = [{"id": {"num": rows[place]}, "score": float(scores[place])} for place in order]
        return self.of.points.SearchResponse(result=found)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, standin: Standin) -> None:
        self._standin, self._methods = standin, standin.methods()

    def service(self, details: Any) -> Any:
        found = self._methods.get(details.method.strip("/"))
        if found is None:
            return None
        kind, answer = found
        header = dict(details.invocation_metadata).get("authorization")

        def reply(request: Any, context: grpc.ServicerContext) -> Any:
            if self._standin.key is not None and header != f"Bearer {self._standin.key}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Must provide an API key")
            try:
                _check_known(request)
                return answer(request)
            except Refused as refused:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))

        return grpc.unary_unary_rpc_method_handler(reply, kind.FromString, lambda message: message.SerializeToString())


@contextmanager
def qdrant(of: Messages, key: str | None = None, port: int = 0) -> Iterator[tuple[Standin, str]]:
    """The stand-in, which speaks these messages, and host:port where it listens (0: on a free port)."""
    standin = Standin(of, key)
    server = grpc.server(
        futures.ThreadPoolExecutor(4),
        handlers=[_Handler(standin)],
        options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
    )
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield standin, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
