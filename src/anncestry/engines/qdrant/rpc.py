"""Qdrant's messages, as far as they are needed, and calls to a server over one gRPC channel.

Names and numbers of fields are those of Qdrant's public .proto files; a test compares each with its own Python client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from anncestry.engines.channel import CHANNEL_OPTIONS, call, open_channel

COLLECTION = "anncestry"
EUCLID, DOT = 2, 3
"""`Distance`."""
GREEN, COMPLETED = 1, 2
"""`CollectionStatus` and `UpdateStatus`."""
FIELD_TYPES = {"keyword": 0, "int": 1, "float": 2}
"""`FieldType`, by kind of column."""
MESSAGES = {
    "VectorParams": "size:1:uint64 distance:2:int32",
    "VectorsConfig": "params:1:VectorParams",
    "HnswConfigDiff": "m:1:uint64 ef_construct:2:uint64 full_scan_threshold:3:uint64",
    "OptimizersConfigDiff": "default_segment_number:3:uint64 max_segment_size:4:uint64 indexing_threshold:6:uint64",
    "CreateCollection": "collection_name:1:string hnsw_config:4:HnswConfigDiff"
    " optimizers_config:6:OptimizersConfigDiff shard_number:7:uint32 vectors_config:10:VectorsConfig"
    " replication_factor:11:uint32",
    "UpdateCollection": "collection_name:1:string optimizers_config:2:OptimizersConfigDiff",
    "DeleteCollection": "collection_name:1:string",
    "CollectionOperationResponse": "result:1:bool",
    "GetCollectionInfoRequest": "collection_name:1:string",
    "CollectionParams": "shard_number:3:uint32 vectors_config:5:VectorsConfig replication_factor:6:uint32",
    "CollectionConfig": "params:1:CollectionParams hnsw_config:2:HnswConfigDiff",
    "OptimizerStatus": "ok:1:bool error:2:string",
    "CollectionInfo": "status:1:int32 optimizer_status:2:OptimizerStatus segments_count:4:uint64"
    " config:7:CollectionConfig points_count:9:uint64 indexed_vectors_count:10:uint64",
    "GetCollectionInfoResponse": "result:1:CollectionInfo",
    "ListCollectionsRequest": "",
    "CollectionDescription": "name:1:string",
    "ListCollectionsResponse": "collections:1:CollectionDescription*",
    "CreateAlias": "collection_name:1:string alias_name:2:string",
    "AliasOperations": "create_alias:1:CreateAlias",
    "ChangeAliases": "actions:1:AliasOperations*",
    "ListCollectionAliasesRequest": "collection_name:1:string",
    "AliasDescription": "alias_name:1:string",
    "ListAliasesResponse": "aliases:1:AliasDescription*",
    "HealthCheckRequest": "",
    "HealthCheckReply": "version:2:string",
    "PointId": "num:1:uint64",
    "Value": "double_value:2:double integer_value:3:int64 string_value:4:string",
    "PayloadEntry": "key:1:string value:2:Value",
    "Vector": "data:1:float*",
    "Vectors": "vector:1:Vector",
    "PointStruct": "id:1:PointId payload:3:PayloadEntry* vectors:4:Vectors",
    "UpsertPoints": "collection_name:1:string wait:2:bool points:3:PointStruct*",
    "CreateFieldIndexCollection": "collection_name:1:string wait:2:bool field_name:3:string field_type:4:int32",
    "UpdateResult": "status:2:int32",
    "PointsOperationResponse": "result:1:UpdateResult",
    "RepeatedIntegers": "integers:1:int64*",
    "Match": "keyword:1:string integer:2:int64 integers:6:RepeatedIntegers",
    "Range": "lt:1:double gt:2:double gte:3:double lte:4:double",
    "FieldCondition": "key:1:string match:2:Match range:3:Range",
    "Condition": "field:1:FieldCondition filter:4:Filter",
    "Filter": "should:1:Condition* must:2:Condition*",
    "SearchParams": "hnsw_ef:1:uint64 exact:2:bool",
    "SearchPoints": "collection_name:1:string vector:2:float* filter:3:Filter limit:4:uint64 params:7:SearchParams",
    "ScoredPoint": "id:1:PointId score:3:float",
    "SearchResponse": "result:1:ScoredPoint*",
    "CountPoints": "collection_name:1:string filter:2:Filter exact:3:bool",
    "CountResult": "count:1:uint64",
    "CountResponse": "result:1:CountResult",
}
"""Message → its fields: name, number, type, and * where it is repeated. An enumeration is sent as an int32 is, a map as
repeated entries."""
_SCALARS = ("double", "float", "int64", "uint64", "int32", "bool", "string", "uint32")


def _classes() -> dict[str, Any]:
    """The class of each message. Repeated numbers are packed, as in Qdrant's own files (proto3)."""
    file = descriptor_pb2.FileDescriptorProto(name="qdrant.proto", package="qdrant", syntax="proto2")
    of = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            label, number, kind = field.split(":")
            many, kind = kind.endswith("*"), kind.removesuffix("*")
            made = message.field.add(name=label, number=int(number))
            made.label = of.LABEL_REPEATED if many else of.LABEL_OPTIONAL
            if kind in _SCALARS:
                made.type = getattr(of, f"TYPE_{kind.upper()}")
                if many and kind != "string":
                    made.options.packed = True
            else:
                made.type, made.type_name = of.TYPE_MESSAGE, f".qdrant.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"qdrant.{name}") for name in MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


message = _classes()
_REPLIES = {
    "Collections/List": "ListCollectionsResponse",
    "Collections/Get": "GetCollectionInfoResponse",
    "Collections/ListCollectionAliases": "ListAliasesResponse",
    "Points/Upsert": "PointsOperationResponse",
    "Points/CreateFieldIndex": "PointsOperationResponse",
    "Points/Count": "CountResponse",
    "Points/Search": "SearchResponse",
    "Qdrant/HealthCheck": "HealthCheckReply",
}
"""What a method answers; of the others a CollectionOperationResponse."""


class Rpc:
    """One channel to a Qdrant. A call that fails is a ServerError."""

    def __init__(self, target: str, authorization: str | None = None, tls: Mapping[str, Any] | None = None) -> None:
        self._channel = open_channel(target, CHANNEL_OPTIONS, authorization, tls)

    def call(self, method: str, request: Any, timeout_s: float = 60.0) -> Any:
        """What `method` (service/name) answers to a message, or to the bytes of one."""
        reply = message[_REPLIES.get(method, "CollectionOperationResponse")]
        return call(self._channel, f"/qdrant.{method}", request, reply, timeout_s, f"qdrant: {method}")

    def close(self) -> None:
        self._channel.close()
