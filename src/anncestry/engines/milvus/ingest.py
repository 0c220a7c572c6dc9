"""Load a Milvus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus.grpc_gen import common_pb2, milvus_pb2, schema_pb2

from anncestry.datasets.conditions import WORD_BYTES
from anncestry.datasets.payload import Column
from anncestry.engines.base import LoadResult, Server, Spec, Vectors, wait_for
from anncestry.engines.killing import Kill
from anncestry.engines.milvus.indexes import build_params
from anncestry.engines.milvus.rpc import COLLECTION, METRICS, REMOTE
from anncestry.engines.milvus.serve import MilvusServer, as_milvus, open_collection
from anncestry.errors import ServerError, UserError
from anncestry.progress import Progress
from anncestry.runtimes.remote import may_replace

_SMALLEST_INDEXED_SEGMENT = 1024  # rootCoord.minSegmentSizeToEnableIndex
_INSERT_TIMEOUT_S = 120.0
_FLUSH_TIMEOUT_S = 600.0
_REGISTRATIONS_TIMEOUT_S = 120.0
_INDEX_TIMEOUT_S = 24 * 3600.0

_Type = schema_pb2.DataType


def _float_array(values: NDArray[np.float32]) -> schema_pb2.FloatArray:
    """The array as a message, through bytes: on the wire, `repeated float` number 1 is one `bytes` number 1.

    Some 50 times faster than handing over 392,000 Python floats a batch.
    """
    content = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return schema_pb2.FloatArray.FromString(schema_pb2.BytesArray(data=[content]).SerializeToString())


def insert_request(
    first: int,
    base: NDArray[np.float32],
    category: NDArray[np.uint8],
    price: NDArray[np.float32],
    region: NDArray[np.uint8],
    payload: Sequence[tuple[Column, list[Any]]] = (),
) -> milvus_pb2.InsertRequest:
    """The insertion of rows `first`, `first` + 1, …: (m, d) vectors and (m,) metadata; of payload columns, the same."""
    ids = schema_pb2.LongArray(data=range(first, first + len(base)))
    vectors = schema_pb2.VectorField(dim=base.shape[1], float_vector=_float_array(base))
    scalars = {
        "id": (_Type.Int64, schema_pb2.ScalarField(long_data=ids)),
        "category": (
            _Type.Int64,
            schema_pb2.ScalarField(long_data=schema_pb2.LongArray(data=category.tolist())),
        ),
        "price": (_Type.Float, schema_pb2.ScalarField(float_data=_float_array(price))),
        "region": (_Type.Int64, schema_pb2.ScalarField(long_data=schema_pb2.LongArray(data=region.tolist()))),
    }
    scalars |= {column.stored_as: _payload_field(column.kind, values) for column, values in payload}
    fields = [schema_pb2.FieldData(field_name=name, type=kind, scalars=data) for name, (kind, data) in scalars.items()]
    fields.append(schema_pb2.FieldData(field_name="vector", type=_Type.FloatVector, vectors=vectors))
    return milvus_pb2.InsertRequest(collection_name=COLLECTION, fields_data=fields, num_rows=len(base))


_PAYLOAD = {"keyword": _Type.VarChar, "int": _Type.Int64, "float": _Type.Double}


def _payload_field(kind: str, values: list[Any]) -> tuple[Any, schema_pb2.ScalarField]:
    if kind == "keyword":
        return _PAYLOAD[kind], schema_pb2.ScalarField(string_data=schema_pb2.StringArray(data=values))
    if kind == "int":
        return _PAYLOAD[kind], schema_pb2.ScalarField(long_data=schema_pb2.LongArray(data=values))
    return _PAYLOAD[kind], schema_pb2.ScalarField(double_data=schema_pb2.DoubleArray(data=values))


def _payload_schema(column: Column) -> schema_pb2.FieldSchema:
    longest = [common_pb2.KeyValuePair(key="max_length", value=str(WORD_BYTES))] if column.kind == "keyword" else []
    return schema_pb2.FieldSchema(name=column.stored_as, data_type=_PAYLOAD[column.kind], type_params=longest)


def collection_schema(
    dimensions: int, mark: str | None = None, payload: Sequence[Column] = ()
) -> schema_pb2.CollectionSchema:
    """Primary key, metadata, payload columns, vector."""
    return schema_pb2.CollectionSchema(
        name=COLLECTION,
        description=mark or "",
        fields=[
            schema_pb2.FieldSchema(name="id", data_type=_Type.Int64, is_primary_key=True),
            schema_pb2.FieldSchema(name="category", data_type=_Type.Int64),
            schema_pb2.FieldSchema(name="price", data_type=_Type.Float),
            schema_pb2.FieldSchema(name="region", data_type=_Type.Int64),
            *map(_payload_schema, payload),
            schema_pb2.FieldSchema(
                name="vector",
                data_type=_Type.FloatVector,
                type_params=[common_pb2.KeyValuePair(key="dim", value=str(dimensions))],
            ),
        ],
    )


def index_params(index: Spec, metric: str) -> dict[str, str]:
    """The parameters of CreateIndex."""
    return {
        "index_type": index["type"].upper(),
        "metric_type": METRICS[metric],
        "params": json.dumps(build_params(index)),
    }


def load(server: Server, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
    """Create, insert, flush, index, load into memory, search once.

    A row that is refused is counted; a call that fails ends the load, as nobody knows which of its rows arrived.
    (Not after a kill that the load has: see `engines.killing`.) The index is created after the flush, so that its time
    is its own and not hidden in the insertion.
    """
    milvus = as_milvus(server)
    milvus.index = index
    rpc = milvus.rpc
    rows, dimensions = vectors.base.shape
    if rows < _SMALLEST_INDEXED_SEGMENT:
        raise UserError(f"milvus builds no index over fewer than {_SMALLEST_INDEXED_SEGMENT} rows; these are {rows}")
    if milvus.mark is not None and may_replace(REMOTE, COLLECTION, rpc.description()):
        rpc.drop()
    create = milvus_pb2.CreateCollectionRequest(
        collection_name=COLLECTION,
        schema=collection_schema(dimensions, milvus.mark, vectors.payload.columns).SerializeToString(),
        shards_num=milvus.topology["shards"],
    )
    rpc.call("CreateCollection", create, common_pb2.Status)
    result = LoadResult()
    kill = Kill(milvus, load, rows, result)
    with result.phase("insert"):
        for first in range(0, rows, load["batch_rows"]):
            part = slice(first, min(first + load["batch_rows"], rows))
            request = insert_request(
                first,
                vectors.base[part],
                vectors.category[part],
                vectors.price[part],
                vectors.region[part],
                vectors.payload.part(part),
            )
            sent = part.stop - part.start
            try:
                reply = kill.send(partial(_insert, milvus, request), _refusal)
            except ServerError as error:
                milvus.check_alive()
                raise ServerError(f"rows {first} to {part.stop - 1}: {error}") from None
            result.acknowledge(sent, sent - reply.insert_cnt, _refusal(reply))
            progress.at(part.stop)
            kill.when_due()
    rpc = milvus.rpc  # another one after a kill
    with result.phase("flush"):
        flush = milvus_pb2.FlushRequest(collection_names=[COLLECTION])
        flushed = wait_for(
            "milvus: flush",
            lambda: rpc.call("Flush", flush, milvus_pb2.FlushResponse, _FLUSH_TIMEOUT_S),
            milvus,
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
            milvus,
            _FLUSH_TIMEOUT_S,
        )
    with result.phase("index"):
        params = index_params(index, vectors.metric)
        pairs = [common_pb2.KeyValuePair(key=key, value=value) for key, value in params.items()]
        rpc.call(
            "CreateIndex",
            milvus_pb2.CreateIndexRequest(
                collection_name=COLLECTION, field_name="vector", index_name="vector", extra_params=pairs
            ),
            common_pb2.Status,
        )
        expected = rows if result.killed is None else 0  # how many a kill has left is what is asked later
        wait_for("milvus: index", lambda: _index_done(milvus.rpc.index(), expected), milvus, _INDEX_TIMEOUT_S)
    with result.phase("ready"):
        open_collection(milvus)
    return result


def _insert(milvus: MilvusServer, request: milvus_pb2.InsertRequest) -> milvus_pb2.MutationResult:
    return milvus.rpc.call("Insert", request, milvus_pb2.MutationResult, _INSERT_TIMEOUT_S)


def _refusal(reply: milvus_pb2.MutationResult) -> str | None:
    return f"{len(reply.err_index)} rows refused" if reply.err_index else None


def _index_done(index: milvus_pb2.IndexDescription, rows: int) -> bool | None:
    if index.state == common_pb2.IndexState.Failed:
        raise ServerError(f"milvus: index build failed: {index.index_state_fail_reason}")
    finished = index.state == common_pb2.IndexState.Finished and index.pending_index_rows == 0
    return True if finished and index.indexed_rows >= max(rows, index.total_rows) else None
