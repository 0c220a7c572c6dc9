"""Calls to the components of a Milvus themselves, for what the proxy of an earlier version does not tell.

Their messages are not in the client's package: the few fields that are needed are declared here, with the numbers of
internal.proto and query_coord.proto of 2.2.16 (which 2.3 has kept).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from pymilvus.grpc_gen import common_pb2

from anncestry.engines.milvus.rpc import status_error
from anncestry.engines.native import CHANNEL_OPTIONS
from anncestry.errors import ServerError

_PACKAGE = "anncestry.milvus"
_Field = descriptor_pb2.FieldDescriptorProto
_TIMEOUT_S = 10.0

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
    """Classes of the messages, by name."""
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


def _call(address: str, component: str, method: str, **fields: Any) -> Any:
    """The reply of a component's method; ServerError if it has none or says that it failed."""
    _, service = _SERVICES[component]
    request, reply = _messages()[f"{method}Request"], _messages()[f"{method}Response"]
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        invoke = channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer = invoke(request(**fields), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ServerError(f"milvus: {component} {method}: {error.code().name}: {error.details()}") from None
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
    told = _call(address(_SERVICES[component][0]), component, "ShowConfigurations").configurations
    return next((str(pair.value) for pair in told if pair.key.lower() == name), None)


def segment_indexes(address: str, collection: int) -> dict[int, int]:
    """Segment → index that the query node has loaded for it at `address` (0: none, so that it scans)."""
    infos = _call(address, "queryNode", "GetSegmentInfo", collectionID=collection).infos
    return {info.segmentID: info.indexID for info in infos}
