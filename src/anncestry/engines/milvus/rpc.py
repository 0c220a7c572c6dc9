"""Calls to a Milvus: protobuf messages over one gRPC channel.

The messages are pymilvus', the client isn't: it retries inserts by itself, and what is measured must not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry.engines.native import CHANNEL_OPTIONS
from anncestry.engines.remote import open_channel
from anncestry.errors import ServerError

COLLECTION = "Bench"
REMOTE = "milvus (remote)"
"""A server that somebody else runs, in messages."""
METRICS = {"l2": "L2", "cosine": "IP"}
"""Vectors come normalised for cosine, so that the inner product is the cosine."""
_PAGE_ROWS = 100_000
_PAGE_TIMEOUT_S = 60.0
SERVICE = "milvus.proto.milvus.MilvusService"


def search_request(
    queries: NDArray[np.float32], k: int, params: Mapping[str, int], metric_type: str, expr: str
) -> milvus_pb2.SearchRequest:
    """One search for all of the (nq, d) queries. Nothing is fetched but ids and scores.

    `params` are those of the index's type.
    """
    placeholder = common_pb2.PlaceholderValue(
        tag="$0",
        type=common_pb2.PlaceholderType.FloatVector,
        values=[query.tobytes() for query in queries.astype("<f4", copy=False)],
    )
    settings = {
        "anns_field": "vector",
        "topk": str(k),
        "metric_type": metric_type,
        "params": json.dumps(params),
        "round_decimal": "-1",
    }
    return milvus_pb2.SearchRequest(
        collection_name=COLLECTION,
        dsl=expr,
        dsl_type=common_pb2.DslType.BoolExprV1,
        placeholder_group=common_pb2.PlaceholderGroup(placeholders=[placeholder]).SerializeToString(),
        search_params=[common_pb2.KeyValuePair(key=key, value=value) for key, value in settings.items()],
        nq=len(queries),
        # No search waits: mostly nothing is written while queries run, and where it is, how late a search sees it is
        # what is asked.
        consistency_level=common_pb2.ConsistencyLevel.Eventually,
        guarantee_timestamp=1,
    )


def status_error(status: common_pb2.Status) -> str | None:
    """What a reply's status complains about, None if it is success. (2.2 fills error_code, later versions code.)"""
    if status.code == 0 and status.error_code == 0:
        return None
    return f"{status.reason or status.detail or 'no reason given'} (code {status.code or status.error_code})"


class Rpc:
    """One channel to a Milvus. A call that fails, or whose reply says that it failed, is a ServerError."""

    def __init__(self, target: str, authorization: str | None = None, tls: Mapping[str, Any] | None = None) -> None:
        self._channel = open_channel(target, CHANNEL_OPTIONS, authorization, tls)

    def call(self, method: str, request: Any, reply: type[Any], timeout_s: float = 10.0) -> Any:
        """Send `request` to the service's `method` and return its reply, of type `reply`, checked for success."""
        invoke = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer = invoke(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise ServerError(f"milvus: {method}: {error.code().name}: {error.details()}") from None
        status = answer if isinstance(answer, common_pb2.Status) else answer.status
        problem = status_error(status)
        if problem is not None:
            raise ServerError(f"milvus: {method}: {problem}")
        return answer

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    # Calls that more than one module makes.

    def version(self) -> str:
        """The server's version, as it says it."""
        request = milvus_pb2.GetVersionRequest()
        told: str = self.call("GetVersion", request, milvus_pb2.GetVersionResponse).version
        return told.removeprefix("v").removesuffix("-lite")

    def loaded_percent(self) -> int:
        """How much of the collection is in memory."""
        request = milvus_pb2.GetLoadingProgressRequest(collection_name=COLLECTION)
        return int(self.call("GetLoadingProgress", request, milvus_pb2.GetLoadingProgressResponse).progress)

    def collections(self) -> list[str]:
        """Names of the collections."""
        reply = self.call("ShowCollections", milvus_pb2.ShowCollectionsRequest(), milvus_pb2.ShowCollectionsResponse)
        return list(reply.collection_names)

    def description(self) -> str | None:
        """The collection's description, None where there is no collection."""
        if COLLECTION not in self.collections():
            return None
        request = milvus_pb2.DescribeCollectionRequest(collection_name=COLLECTION)
        return str(self.call("DescribeCollection", request, milvus_pb2.DescribeCollectionResponse).schema.description)

    def drop(self) -> None:
        """Drop the collection."""
        self.call("DropCollection", milvus_pb2.DropCollectionRequest(collection_name=COLLECTION), common_pb2.Status)

    def index(self) -> milvus_pb2.IndexDescription:
        """The vector index of the collection: parameters, rows indexed and pending, state."""
        request = milvus_pb2.DescribeIndexRequest(collection_name=COLLECTION)
        reply = self.call("DescribeIndex", request, milvus_pb2.DescribeIndexResponse)
        return reply.index_descriptions[0]

    def dimensions(self) -> int:
        """Length of the vectors, as the collection says."""
        request = milvus_pb2.DescribeCollectionRequest(collection_name=COLLECTION)
        reply = self.call("DescribeCollection", request, milvus_pb2.DescribeCollectionResponse)
        params = (pair for field in reply.schema.fields for pair in field.type_params)
        return next(int(pair.value) for pair in params if pair.key == "dim")

    def metric_type(self) -> str:
        """Milvus' name of the metric that the index was built with."""
        return next(str(pair.value) for pair in self.index().params if pair.key == "metric_type")

    def count(self, expr: str = "") -> int:
        """Rows (that pass `expr`), counted by the query node; strongly consistent: every acknowledged row is in."""
        request = milvus_pb2.QueryRequest(
            collection_name=COLLECTION,
            output_fields=["count(*)"],
            expr=expr,
            consistency_level=common_pb2.ConsistencyLevel.Strong,
        )
        reply = self.call("Query", request, milvus_pb2.QueryResults)
        return int(reply.fields_data[0].scalars.long_data.data[0])

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
        request = milvus_pb2.QueryRequest(
            collection_name=COLLECTION,
            output_fields=["id"],
            expr=expr,
            consistency_level=common_pb2.ConsistencyLevel.Strong,
        )
        reply = self.call("Query", request, milvus_pb2.QueryResults, _PAGE_TIMEOUT_S)
        return {row for data in reply.fields_data for row in data.scalars.long_data.data}

    def segments(self) -> list[milvus_pb2.QuerySegmentInfo]:
        """The segments in memory."""
        request = milvus_pb2.GetQuerySegmentInfoRequest(collectionName=COLLECTION)
        return list(self.call("GetQuerySegmentInfo", request, milvus_pb2.GetQuerySegmentInfoResponse).infos)

    def replicas(self) -> list[milvus_pb2.ReplicaInfo]:
        """The replicas in memory, with their shards and nodes."""
        request = milvus_pb2.GetReplicasRequest(collection_name=COLLECTION, with_shard_nodes=True)
        return list(self.call("GetReplicas", request, milvus_pb2.GetReplicasResponse).replicas)
