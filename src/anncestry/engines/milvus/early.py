"""Calls to a Milvus 2.1, which lacks some that later versions answer: the same is found out by others."""

from __future__ import annotations

import json
from typing import Any

from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry.engines.milvus.rpc import COLLECTION, Rpc
from anncestry.engines.milvus.versions import EARLY_SETTINGS
from anncestry.errors import ServerError

EXACT_AT = (0.3, 32_768)
"""It has no scan for narrow filters, and its graph falls apart under them: of those that 2 % of 9,000 rows pass, some
searches for 10 find 1, whatever the effort. Under one that 30 % pass, the highest effort sees all."""
_RELEASES = {"63c9ab5e7": "2.1.0"}
"""Commit that a component says it was built from → the release whose wheel it came in. (It knows no other version.)"""
_NO_ROWS = "emptly collection"
"""What a query says that no row passes."""


class EarlyRpc(Rpc):
    """One channel to a Milvus 2.1; see `Rpc`."""

    def version(self) -> str:
        """The release that was built from the commit that the components tell; else what they say of themselves."""
        told = self._components()[0]["system_info"]
        return _RELEASES.get(told["system_version"], str(told["build_version"]))

    def loaded_percent(self) -> int:
        """How much of the collection is in memory, and searchable."""
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
        """As it is said there, of the collection by its number."""
        described = self.call(
            "DescribeCollection",
            milvus_pb2.DescribeCollectionRequest(collection_name=COLLECTION),
            milvus_pb2.DescribeCollectionResponse,
        )
        request = milvus_pb2.GetReplicasRequest(collectionID=described.collectionID, with_shard_nodes=True)
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
        """What each component says of itself."""
        request = milvus_pb2.GetMetricsRequest(request=json.dumps({"metric_type": "system_info"}))
        reply = self.call("GetMetrics", request, milvus_pb2.GetMetricsResponse)
        return [node["infos"] for node in json.loads(reply.response)["nodes_info"]]
