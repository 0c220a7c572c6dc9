"""Milvus at run time: loaded, asked and read back; `serve` starts it, `wire` makes bytes of rows and searches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from anncestry.drive.transports import unpack
from anncestry.engines import sdk_rows
from anncestry.engines.base import (
    Answer,
    Batch,
    Component,
    EngineOf,
    Kill,
    LoadResult,
    Placed,
    Probe,
    Spec,
    Vectors,
    components,
    listed,
    wait_for,
)
from anncestry.engines.milvus import (
    LOG_MEMORY_MIN_MIB,
    MMAP,
    MMAP_FOLDER,
    SDK_GO,
    VECTORDBBENCH,
    asked_index,
    describe_index,
    facts,
    product,
    read_back,
    search_params,
    serve,
    wire,
)
from anncestry.engines.milvus.rpc import COLLECTION, METRICS, EarlyRpc
from anncestry.engines.milvus.serve import MilvusServer
from anncestry.errors import ServerError, UserError
from anncestry.progress import Progress
from anncestry.runtimes.storage import FOLDER

_SMALLEST_INDEXED_SEGMENT = 1024  # rootCoord.minSegmentSizeToEnableIndex
_INSERT_TIMEOUT_S = 120.0
_FLUSH_TIMEOUT_S = 600.0
_REGISTRATIONS_TIMEOUT_S = 120.0
_INDEX_TIMEOUT_S = 24 * 3600.0
_DURABLE = "Flush before the index is built: rows, then the index, as files of its storage; local ones it does not sync"


class Milvus(EngineOf[MilvusServer]):
    """It scans narrow filters by itself, and has no setting that would stop it; ef travels in each request."""

    narrows = True

    start = staticmethod(serve.start)

    def load(self, server: MilvusServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create, insert, flush, index, load into memory, search once.

        A row that is refused is counted; a call that fails ends the load, as nobody knows which of its rows arrived.
        (Not after a kill that the load has: see `engines.base.Kill`.) The index is created after the flush, so that its
        time is its own and not hidden in the insertion.
        """
        server.index = index
        rpc = server.rpc
        rows, dimensions = vectors.base.shape
        if rows < _SMALLEST_INDEXED_SEGMENT:
            raise UserError(
                f"milvus builds no index over fewer than {_SMALLEST_INDEXED_SEGMENT} rows; these are {rows}"
            )
        server.make_room()
        create = milvus_pb2.CreateCollectionRequest(
            collection_name=COLLECTION,
            schema=wire.collection_schema(dimensions, server.mark, vectors.payload.columns).SerializeToString(),
            shards_num=server.topology["shards"],
        )
        rpc.call("CreateCollection", create, common_pb2.Status)
        result = LoadResult()
        kill = Kill(server, load, rows, result)
        with (
            self.encoded(server, vectors, load, result, sdk_rows.request) as requests,
            _inserter(server, load, result) as insert,
            result.phase("insert"),
        ):
            for ids, request in requests:
                try:
                    refused, why = kill.send(partial(insert, ids, request), lambda answer: answer[1])
                except ServerError as error:
                    server.check_alive()
                    raise ServerError(f"rows {ids[0]} to {ids[-1]}: {error}") from None
                result.acknowledge(len(ids), refused, why)
                progress.at(result.rows_sent)
                kill.when_due()
        rpc = server.rpc  # another one after a kill
        with result.phase("flush"):
            flush = milvus_pb2.FlushRequest(collection_names=[COLLECTION])
            flushed = wait_for(
                "milvus: flush",
                lambda: rpc.call("Flush", flush, milvus_pb2.FlushResponse, _FLUSH_TIMEOUT_S),
                server,
                _REGISTRATIONS_TIMEOUT_S,
                patient=result.killed is not None,  # until the dead node's registration has expired
            )
            state = milvus_pb2.GetFlushStateRequest(
                segmentIDs=flushed.coll_segIDs[COLLECTION].data,
                flush_ts=flushed.coll_flush_ts[COLLECTION],
                collection_name=COLLECTION,
            )
            wait_for(
                "milvus: flush",
                lambda: rpc.call("GetFlushState", state, milvus_pb2.GetFlushStateResponse).flushed or None,
                server,
                _FLUSH_TIMEOUT_S,
            )
        with result.phase("index"):
            params = wire.index_params(index, vectors.metric)
            pairs = [common_pb2.KeyValuePair(key=key, value=value) for key, value in params.items()]
            rpc.call(
                "CreateIndex",
                milvus_pb2.CreateIndexRequest(
                    collection_name=COLLECTION, field_name="vector", index_name="vector", extra_params=pairs
                ),
                common_pb2.Status,
            )
            expected = rows if result.killed is None else 0  # how many a kill has left is what is asked later
            wait_for("milvus: index", lambda: _index_done(server.rpc.index(), expected), server, _INDEX_TIMEOUT_S)
        result.durable(_DURABLE)
        with result.phase("ready"):
            serve.open_collection(server)
        return result

    def await_open(self, server: MilvusServer, index: Spec) -> None:
        server.index = index
        if isinstance(server.rpc, EarlyRpc):
            server.rpc.release()
        serve.open_collection(server)

    def probe(self, server: MilvusServer) -> Probe:
        """Version, strongly consistent count, index and segments, settings, replicas."""
        rpc = server.rpc
        index = rpc.index()
        params = {pair.key: pair.value for pair in index.params}
        built = serve.built_with(params)
        kind = params.get("index_type", "").lower()
        infos = rpc.segments()
        segments = list({segment.segmentID: segment for segment in infos}.values())  # of several nodes: once each
        names = server.node_ids()
        placed = sorted(
            {
                (names.get(node, f"node {node}"), segment.segmentID, segment.num_rows)
                for segment in infos
                for node in serve.holders(segment)
            }
        )
        loaded = sum(segment.num_rows for segment in segments)
        said = wire.built_of_rows(read_back(kind, built), min((segment.num_rows for segment in segments), default=0))
        sealed = all(segment.state == common_pb2.SegmentState.Sealed for segment in segments)
        if server.facts.from_2_3:
            indexes = {segment.segmentID: segment.indexID for segment in segments}
        else:
            indexes = server.segment_indexes(segments[0].collectionID) if segments else {}
        # A flat "index" is the rows themselves: none is built.
        covered = kind == "flat" or all(indexes.get(segment.segmentID) == index.indexID for segment in segments)
        state = common_pb2.IndexState.Name(index.state)
        rows = serve.count_rows(server)
        replicas = rpc.replicas()
        # Milvus counts a node that died until its registration expires: one that does not answer is none.
        nodes = {node for replica in replicas for node in replica.node_ids if not names or node in names}
        return Probe(
            version=rpc.version(),
            rows=rows,
            index_complete=(
                state == "Finished"
                and index.pending_index_rows == 0
                and index.indexed_rows == index.total_rows == loaded == rows
                and sealed
                and covered
            ),
            index_detail=(
                f"{state}, {index.indexed_rows} of {index.total_rows} rows indexed, "
                f"{index.pending_index_rows} pending; "
                f"{len(segments)} segments with {loaded} rows in memory, "
                f"{'all' if sealed else 'not all'} sealed, {'all' if covered else 'not all'} with the index"
            ),
            settings={
                **said,
                "metric": {milvus_name: name for name, milvus_name in METRICS.items()}.get(
                    params.get("metric_type", "")
                ),
                "ef_search": None,
                "segments": len(segments),
                **{
                    dotted: serve.by_name(dotted, serve.effective_setting(server, dotted)) for dotted in server.settings
                },
            },
            nodes=len(nodes),
            shards=sum(len(replica.shard_replicas) for replica in replicas[:1]),
            replicas=len(replicas),
            placement=tuple(Placed(node, str(segment), rows) for node, segment, rows in placed),
        )

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        return {**asked_index(index), "metric": metric, "ef_search": None, **(system.get("settings") or {})}

    def data_components(self, data_dir: Path) -> list[Component]:
        # Bookkeeping (etcd, the message queue that keeps every insert) outweighs the data.
        stored = ("insert_log", "index_files", "stats_log", "delta_log")
        parts: list[tuple[str, bool, list[str]]] = [
            (name, True, [f"data/{name}", f"{FOLDER}/{name}", f"minio/*/files/{name}", f"data/files/{name}"])
            for name in stored
        ]
        parts += [
            ("etcd", False, ["data/etcd.data", "etcd"]),
            ("rocksmq", False, ["data/rocksmq"]),
            ("rocksmq_meta_kv", False, ["data/rocksmq_meta_kv"]),
            *((log, False, [log]) for log in LOG_MEMORY_MIN_MIB),
            ("object_store", False, ["minio/.minio.sys"]),
            ("local_caches", False, ["local", f"{FOLDER}/cache", f"{FOLDER}/{MMAP_FOLDER}"]),
            ("logs", False, ["logs"]),
            ("config", False, ["configs", "ports.json"]),
        ]
        return components(data_dir, parts)

    def count(self, server: MilvusServer, filter: Spec | None) -> int:
        return serve.count_rows(server, wire.expression(filter))

    def encode(
        self, server: MilvusServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        return self.encode_batches(server, queries[:, None, :], k, ef_search, filter)

    def encode_batches(
        self, server: MilvusServer, batches: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        metric_type, params = server.metric_type, search_params(server.index, ef_search)
        expr = wire.expression(filter)
        return [wire.search_request(batch, k, params, metric_type, expr).SerializeToString() for batch in batches]

    def transport(self, server: MilvusServer) -> dict[str, Any]:
        return server.grpc_transport(wire.METHOD)

    decode = staticmethod(wire.decode)
    decode_batch = staticmethod(wire.decode_batch)

    def library_transport(
        self, server: MilvusServer, client: str, k: int, ef_search: int, filters: Sequence[Spec | None]
    ) -> dict[str, Any]:
        options = {
            "k": k,
            "params": search_params(server.index, ef_search),
            "metric_type": server.metric_type,
            "expressions": [wire.expression(filter) for filter in filters],
            "collection": COLLECTION,
        }
        transport = {"kind": "sdk", "target": server.endpoint, "options": options, **server.access()}
        if client == "sdk":
            return {**transport, "module": f"{__package__}.sdk", "package": "pymilvus"}
        if client == VECTORDBBENCH:
            module = str(Path(__file__).with_name("vectordbbench.py"))
            return {**transport, "module": module, "package": "vectordb-bench", "environment": client}
        return {**transport, "environment": SDK_GO}

    def library_decode(self, response: bytes, metric: str) -> Answer:
        ids, scores = unpack(response)
        return ids, scores if metric == "l2" else 1.0 - scores

    def write_transport(self, server: MilvusServer, kind: str) -> dict[str, Any]:
        return server.grpc_transport(wire.WRITE_METHODS[kind])

    def encode_insert(self, server: MilvusServer, rows: Batch) -> bytes:
        return bytes(wire.insert_request(rows).SerializeToString())

    def encode_delete(self, server: MilvusServer, ids: Sequence[int]) -> bytes:
        return wire.encode_delete(ids)

    decode_write = staticmethod(wire.decode_write)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        settings, theirs = system.get("settings") or {}, topology["runtime"] == "remote"
        kept = "localStorage.path"
        if MMAP in settings:
            kept += f" and {MMAP}: vectors and index are mapped from files, their pages the page cache's"
        external = topology.get("external") or {}
        log = product(external["log"]).title() if "log" in external else "the message queue (RocksDB on disk)"
        beside = ", ".join(external.values())
        return {
            "query protocol": (
                "gRPC, one vector a request (or nq of them), as float32 bytes; ids and scores are returned, no fields"
            ),
            "insert protocol": "gRPC, batches of columns, one connection, the next batch after the acknowledgement",
            **describe_index(index),
            "ef applies to": "each segment; travels in each request",
            "segments": "as many as its settings make of the rows (the load's record counts them), sealed by the flush;"
            " the index is built after it",
            "filters": (
                "evaluated over all rows first (no scalar index: the default); few matches (below about 7 %) are "
                "scanned exactly, more are searched by HNSW, where 2.3 returns fewer than k rows for some queries "
                "whatever ef is (milvus-io/milvus issues 31658, 33933, 37683)"
            ),
            "consistency": "Eventually: no search waits for a timestamp (rows change only in workloads with a stream)",
            "durability": "as the server is set up, which is not known"
            if theirs
            else f"inserts are acknowledged from {log}, without an fsync each",
            "clients ask": "one proxy, which spreads searches over the replicas",
            "stands beside it": f"{beside}; {_limits_beside(topology)}"
            if beside
            else ("not known: somebody else runs it" if theirs else "nothing: one process"),
            "set by the system": listed(settings),
            "set by anncestry": "nothing of the server: somebody else runs it"
            if theirs
            else "paths, ports, loopback addresses, log level",
            **({"storage path": f"{topology['storage']}: {kept}"} if "storage" in topology else {}),
            "inner traffic": (
                "not known: somebody else runs it"
                if theirs
                else "over loopback"
                if facts(system).from_2_3
                else "over the machine's first address (this version can't be told otherwise), without leaving the "
                "machine"
            ),
            "left at defaults": "query node concurrency and grouping, caches, compaction, SIMD choice, quotas",
        }


def _limits_beside(topology: Spec) -> str:
    """The limits of what stands beside it, in words."""
    limited = topology.get("external_limits") or {}
    if not limited:
        return "without limits of their own"
    units = {"cpus": "CPUs", "memory_mib": "MiB"}
    return "; ".join(
        f"{place}: " + ", ".join(f"{value:g} {units[name]}" for name, value in sorted(limits.items()))
        for place, limits in sorted(limited.items())
    )


Insert = Callable[[range, bytes], tuple[int, str | None]]
"""Ids of a batch and its request → how many of its rows were refused, and why."""


@contextmanager
def _inserter(server: MilvusServer, load: Spec, result: LoadResult) -> Iterator[Insert]:
    """What sends a batch, on one connection; ServerError from it if the call fails."""
    if load.get("client") != "sdk":

        def by_grpc(ids: range, request: bytes) -> tuple[int, str | None]:
            reply = server.rpc.call("Insert", request, milvus_pb2.MutationResult, _INSERT_TIMEOUT_S)
            return len(ids) - reply.insert_cnt, f"{len(reply.err_index)} rows refused" if reply.err_index else None

        yield by_grpc
        return
    options = {"collection": COLLECTION, "timeout_s": _INSERT_TIMEOUT_S}
    file = Path(__file__).with_name("sdk.py")
    with sdk_rows.inserter(sys.executable, file, "pymilvus", server.endpoint, options, _INSERT_TIMEOUT_S) as made:
        result.library, insert = made

        def by_library(ids: range, rows: bytes) -> tuple[int, str | None]:
            refused = insert(ids, rows)
            return len(refused), next(iter(refused.values()), None)

        yield by_library


def _index_done(index: milvus_pb2.IndexDescription, rows: int) -> bool | None:
    if index.state == common_pb2.IndexState.Failed:
        raise ServerError(f"milvus: index build failed: {index.index_state_fail_reason}")
    finished = index.state == common_pb2.IndexState.Finished and index.pending_index_rows == 0
    return True if finished and index.indexed_rows >= max(rows, index.total_rows) else None


ENGINE = Milvus()
