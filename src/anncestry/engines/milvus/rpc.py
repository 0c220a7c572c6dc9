"""Calls to a Milvus: protobuf messages over one gRPC channel.

The messages are pymilvus', the client isn't: it retries inserts by itself, and what is measured must not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry import redact
from anncestry.engines.channel import CHANNEL_OPTIONS, call, open_channel
from anncestry.engines.milvus import EARLY_SETTINGS
from anncestry.errors import ServerError

COLLECTION = "Bench"
METRICS = {"l2": "L2", "cosine": "IP"}
"""Vectors come normalised for cosine, so that the inner product is the cosine."""
_PAGE_ROWS = 100_000
_PAGE_TIMEOUT_S = 60.0
SERVICE = "milvus.proto.milvus.MilvusService"


def status_error(status: common_pb2.Status) -> str | None:
    """What a reply's status complains about, None if it is success. (2.2 fills error_code, later versions code.)"""
    if status.code == 0 and status.error_code == 0:
        return None
    return f"{status.reason or status.detail or 'no reason given'} (code {status.code or status.error_code})"


class Rpc:
    """One channel to a Milvus. A call that fails, or whose reply says that it failed, is a ServerError."""

    def __init__(self, target: str, authorization: str | None = None, tls: Mapping[str, Any] | None = None) -> None:
        self._channel = open_channel(target, CHANNEL_OPTIONS, authorization, tls)

    def call(self, method: str, request: Any, reply: type[Any], timeout_s: float = 60.0) -> Any:
        """Send `request` to the service's `method` and return its reply, of type `reply`, checked for success."""
        answer = call(self._channel, f"/{SERVICE}/{method}", request, reply, timeout_s, f"milvus: {method}")
        status = answer if isinstance(answer, common_pb2.Status) else answer.status
        problem = status_error(status)
        if problem is not None:
            raise ServerError(f"milvus: {method}: {problem}")
        return answer

    def close(self) -> None:
        self._channel.close()

    # Calls that more than one module makes.

    def version(self) -> str:
        request = milvus_pb2.GetVersionRequest()
        told: str = self.call("GetVersion", request, milvus_pb2.GetVersionResponse).version
        return told.removeprefix("v").removesuffix("-lite")

    def loaded_percent(self) -> int:
        request = milvus_pb2.GetLoadingProgressRequest(collection_name=COLLECTION)
        return int(self.call("GetLoadingProgress", request, milvus_pb2.GetLoadingProgressResponse).progress)

    def collections(self) -> list[str]:
        reply = self.call("ShowCollections", milvus_pb2.ShowCollectionsRequest(), milvus_pb2.ShowCollectionsResponse)
        return list(reply.collection_names)

    def description(self) -> str | None:
        """The collection's description, None where there is no collection."""
        if COLLECTION not in self.collections():
            return None
        return str(self._described().schema.description)

    def drop(self) -> None:
        self.call("DropCollection", milvus_pb2.DropCollectionRequest(collection_name=COLLECTION), common_pb2.Status)

    def index(self) -> milvus_pb2.IndexDescription:
        """The vector index of the collection: parameters, rows indexed and pending, state."""
        request = milvus_pb2.DescribeIndexRequest(collection_name=COLLECTION)
        reply = self.call("DescribeIndex", request, milvus_pb2.DescribeIndexResponse)
        return reply.index_descriptions[0]

    def dimensions(self) -> int:
        """Length of the vectors, as the collection says."""
        params = (pair for field in self._described().schema.fields for pair in field.type_params)
        return next(int(pair.value) for pair in params if pair.key == "dim")

    def metric_type(self) -> str:
        """Milvus' name of the metric that the index was built with."""
        return next(str(pair.value) for pair in self.index().params if pair.key == "metric_type")

    def count(self, expr: str = "") -> int:
        """Rows (that pass `expr`), counted by the query node; strongly consistent: every acknowledged row is in."""
        return int(self._query("count(*)", expr, 10.0).fields_data[0].scalars.long_data.data[0])

    def count_returned(self, expr: str = "") -> int:
        """The same for a server without count(*): different ids returned, asked for in ranges of `_PAGE_ROWS` ids.

        The first and last range are open, so that no id escapes, whatever the number of rows is believed to be.
        """
        statistics = self.call(
            "GetCollectionStatistics",
            milvus_pb2.GetCollectionStatisticsRequest(collection_name=COLLECTION),
            milvus_pb2.GetCollectionStatisticsResponse,
        )
        believed = int(next(pair.value for pair in statistics.stats if pair.key == "row_count"))
        bounds = range(_PAGE_ROWS, max(believed, _PAGE_ROWS) + 1, _PAGE_ROWS)
        between = [f"id >= {low} && id < {low + _PAGE_ROWS}" for low in bounds[:-1]]
        pages = [f"id < {bounds[0]}", *between, f"id >= {bounds[-1]}"]
        return sum(len(self._ids(f"{page} && ({expr})" if expr else page)) for page in pages)

    def _ids(self, expr: str) -> set[int]:
        reply = self._query("id", expr, _PAGE_TIMEOUT_S)
        return {row for data in reply.fields_data for row in data.scalars.long_data.data}

    def _query(self, field: str, expr: str, timeout_s: float) -> milvus_pb2.QueryResults:
        request = milvus_pb2.QueryRequest(
            collection_name=COLLECTION,
            output_fields=[field],
            expr=expr,
            consistency_level=common_pb2.ConsistencyLevel.Strong,
        )
        return self.call("Query", request, milvus_pb2.QueryResults, timeout_s)

    def _described(self) -> milvus_pb2.DescribeCollectionResponse:
        request = milvus_pb2.DescribeCollectionRequest(collection_name=COLLECTION)
        return self.call("DescribeCollection", request, milvus_pb2.DescribeCollectionResponse)

    def segments(self) -> list[milvus_pb2.QuerySegmentInfo]:
        """The segments in memory."""
        request = milvus_pb2.GetQuerySegmentInfoRequest(collectionName=COLLECTION)
        return list(self.call("GetQuerySegmentInfo", request, milvus_pb2.GetQuerySegmentInfoResponse).infos)

    def replicas(self) -> list[milvus_pb2.ReplicaInfo]:
        """The replicas in memory, with their shards and nodes."""
        request = milvus_pb2.GetReplicasRequest(collection_name=COLLECTION, with_shard_nodes=True)
        return list(self.call("GetReplicas", request, milvus_pb2.GetReplicasResponse).replicas)


EXACT_AT = (0.3, 32_768)
"""It has no scan for narrow filters, and its graph falls apart under them: of those that 2 % of 9,000 rows pass, some
searches for 10 find 1, whatever the effort. Under one that 30 % pass, the highest effort sees all."""
_RELEASES = {"63c9ab5e7": "2.1.0"}
"""Commit that a component says it was built from → the release whose wheel it came in. (It knows no other version.)"""
_NO_ROWS = "emptly collection"
"""What a query says that no row passes."""


class EarlyRpc(Rpc):
    def version(self) -> str:
        """The release that was built from the commit that the components tell; else what they say of themselves."""
        told = self._components()[0]["system_info"]
        return _RELEASES.get(told["system_version"], str(told["build_version"]))

    def loaded_percent(self) -> int:
        request = milvus_pb2.ShowCollectionsRequest(type=milvus_pb2.ShowType.InMemory, collection_names=[COLLECTION])
        reply = self.call("ShowCollections", request, milvus_pb2.ShowCollectionsResponse)
        shares = dict(zip(reply.collection_names, reply.inMemory_percentages, strict=True))
        available = dict(zip(reply.collection_names, reply.query_service_available, strict=True))
        return int(shares.get(COLLECTION, 0)) if available.get(COLLECTION) else 0

    def release(self) -> None:
        """Take the collection out of memory. What was loaded before a restart is said to be there again at once, and in
        one start of some five no node answers for its shard, however long one waits: loaded anew, it always does."""
        request = milvus_pb2.ReleaseCollectionRequest(collection_name=COLLECTION)
        self.call("ReleaseCollection", request, common_pb2.Status)

    def index(self) -> milvus_pb2.IndexDescription:
        """As it is said there. An index whose state is Finished has all rows: no call counts those that it has."""
        index = super().index()
        names = {"collection_name": COLLECTION, "field_name": index.field_name, "index_name": index.index_name}
        state = self.call("GetIndexState", milvus_pb2.GetIndexStateRequest(**names), milvus_pb2.GetIndexStateResponse)
        progress = self.call(
            "GetIndexBuildProgress",
            milvus_pb2.GetIndexBuildProgressRequest(**names),
            milvus_pb2.GetIndexBuildProgressResponse,
        )
        index.state, index.index_state_fail_reason = state.state, state.fail_reason
        index.total_rows = progress.total_rows
        index.indexed_rows = progress.total_rows if state.state == common_pb2.IndexState.Finished else 0
        index.pending_index_rows = index.total_rows - index.indexed_rows
        return index

    def replicas(self) -> list[milvus_pb2.ReplicaInfo]:
        collection = self._described().collectionID
        request = milvus_pb2.GetReplicasRequest(collectionID=collection, with_shard_nodes=True)
        return list(self.call("GetReplicas", request, milvus_pb2.GetReplicasResponse).replicas)

    def setting(self, dotted: str) -> Any:
        """A setting in effect, of those few that components tell."""
        kind, name = EARLY_SETTINGS[dotted]
        return next((told["system_configurations"][name] for told in self._components() if told["type"] == kind), None)

    def _ids(self, expr: str) -> set[int]:
        try:
            return super()._ids(expr)
        except ServerError as error:
            if _NO_ROWS in str(error.args[0]):
                return set()
            raise

    def _components(self) -> list[dict[str, Any]]:
        request = milvus_pb2.GetMetricsRequest(request=json.dumps({"metric_type": "system_info"}))
        reply = self.call("GetMetrics", request, milvus_pb2.GetMetricsResponse)
        try:
            return [node["infos"] for node in json.loads(reply.response)["nodes_info"]]
        except (ValueError, KeyError, TypeError):
            raise ServerError(f"milvus: GetMetrics: not a list of components: {redact.short(reply.response)}") from None


_PACKAGE = "anncestry.milvus"
_Field = descriptor_pb2.FieldDescriptorProto
_TIMEOUT_S = 60.0

# Calls to the components themselves, for what the proxy of an earlier version does not tell. Their messages are not in
# the client's package: the few fields that are needed are declared here, with the numbers of internal.proto and
# query_coord.proto of 2.2.16 (which 2.3 has kept).
_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ShowConfigurationsRequest": {},
    "ShowConfigurationsResponse": {
        "status": (1, "milvus.proto.common.Status"),
        "configurations": (2, "repeated milvus.proto.common.KeyValuePair"),
    },
    "GetSegmentInfoRequest": {"collectionID": (3, "int64")},
    "SegmentInfo": {"segmentID": (1, "int64"), "indexID": (8, "int64")},
    "GetSegmentInfoResponse": {
        "status": (1, "milvus.proto.common.Status"),
        "infos": (2, f"repeated {_PACKAGE}.SegmentInfo"),
    },
}
"""Name → field → (number, type)."""

_SERVICES = {
    "rootCoord": ("root_coord_port", "milvus.proto.rootcoord.RootCoord"),
    "dataCoord": ("data_coord_port", "milvus.proto.data.DataCoord"),
    "queryCoord": ("query_coord_port", "milvus.proto.query.QueryCoord"),
    "indexCoord": ("index_coord_port", "milvus.proto.index.IndexCoord"),
    "dataNode": ("data_node_port", "milvus.proto.data.DataNode"),
    "queryNode": ("query_node_port", "milvus.proto.query.QueryNode"),
    "indexNode": ("index_node_port", "milvus.proto.index.IndexNode"),
}
"""Section of milvus.yaml → port in the wheel's config template, gRPC service."""


@cache
def _messages() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="anncestry/milvus.proto", package=_PACKAGE, syntax="proto3", dependency=[common_pb2.DESCRIPTOR.name]
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            word, _, type_name = kind.rpartition(" ")
            label = _Field.LABEL_REPEATED if word else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if "." in type_name:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{type_name}"
            else:
                added.type = _Field.Type.Value(f"TYPE_{type_name.upper()}")
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _call_component(address: str, component: str, method: str, **fields: Any) -> Any:
    """The reply of a component's method; ServerError if it has none or says that it failed."""
    _, service = _SERVICES[component]
    request, reply = _messages()[f"{method}Request"], _messages()[f"{method}Response"]
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        path, what = f"/{service}/{method}", f"milvus: {component} {method}"
        answer = call(channel, path, request(**fields), reply, _TIMEOUT_S, what)
    problem = status_error(answer.status)
    if problem is not None:
        raise ServerError(f"milvus: {component} {method}: {problem}")
    return answer


def component_setting(address: Callable[[str], str], dotted: str) -> str | None:
    """A setting in effect, as text, as the component says to which it belongs; None if it knows none of that name.

    `address` gives host:port of the interface that is a port of this name in the wheel's config template.
    """
    name = dotted.lower()  # as Milvus keeps them
    component = dotted.split(".")[0]
    told = _call_component(address(_SERVICES[component][0]), component, "ShowConfigurations").configurations
    return next((str(pair.value) for pair in told if pair.key.lower() == name), None)


def segment_indexes(address: str, collection: int) -> dict[int, int]:
    """Segment → index that the query node has loaded for it at `address` (0: none, so that it scans)."""
    infos = _call_component(address, "queryNode", "GetSegmentInfo", collectionID=collection).infos
    return {info.segmentID: info.indexID for info in infos}
