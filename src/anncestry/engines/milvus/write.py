"""Insertions and deletions as bytes, for a stream of them while searches run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError as ProtobufError  # type: ignore[import-untyped]
from pymilvus.grpc_gen import milvus_pb2

from anncestry.engines.base import DecodeError, Server, Vectors
from anncestry.engines.milvus.ingest import insert_request
from anncestry.engines.milvus.rpc import COLLECTION, SERVICE, status_error
from anncestry.engines.milvus.serve import as_milvus


def write_transport(server: Server, kind: str) -> dict[str, Any]:
    """gRPC unary: Insert or Delete."""
    return as_milvus(server).grpc_transport(f"/{SERVICE}/{kind.capitalize()}")


def encode_insert(server: Server, first: int, rows: Vectors) -> bytes:
    """The InsertRequest of rows `first`, `first` + 1, …"""
    request = insert_request(first, rows.base, rows.category, rows.price, rows.region)
    return bytes(request.SerializeToString())


def encode_delete(server: Server, ids: Sequence[int]) -> bytes:
    """The DeleteRequest of these rows, by primary key."""
    expr = f"id in [{', '.join(map(str, ids))}]"
    return bytes(milvus_pb2.DeleteRequest(collection_name=COLLECTION, expr=expr).SerializeToString())


def decode_write(kind: str, response: bytes) -> int | None:
    """Rows inserted, or marked as deleted; DecodeError also for a status that is not success inside a reply."""
    try:
        reply = milvus_pb2.MutationResult.FromString(response)
    except ProtobufError as error:
        raise DecodeError(f"not a Milvus reply to a change: {error}") from None
    problem = status_error(reply.status)
    if problem is not None:
        raise DecodeError(problem)
    return int(reply.insert_cnt if kind == "insert" else reply.delete_cnt)
