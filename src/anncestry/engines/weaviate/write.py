"""Insertions and deletions as bytes, for a stream of them while searches run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError as ProtobufError  # type: ignore[import-untyped]

from anncestry.engines.base import DecodeError, Server, Vectors
from anncestry.engines.group import as_group
from anncestry.engines.weaviate.ingest import batch_request
from anncestry.engines.weaviate.proto import base_pb2, batch_delete_pb2, batch_pb2
from anncestry.engines.weaviate.rows import uuid_of
from anncestry.engines.weaviate.settings import COLLECTION
from anncestry.engines.weaviate.wire import consistency_level

_METHODS = {"insert": "BatchObjects", "delete": "BatchDelete"}


def write_transport(server: Server, kind: str) -> dict[str, Any]:
    """gRPC unary: BatchObjects or BatchDelete."""
    return as_group(server).grpc_transport(f"/weaviate.v1.Weaviate/{_METHODS[kind]}")


def encode_insert(server: Server, first: int, rows: Vectors) -> bytes:
    """The BatchObjectsRequest of rows `first`, `first` + 1, …"""
    consistency = server.topology.get("consistency")
    request = batch_request(first, rows.base, rows.category, rows.price, rows.region, consistency)
    return bytes(request.SerializeToString())


def encode_delete(server: Server, ids: Sequence[int]) -> bytes:
    """The BatchDeleteRequest of these rows, by id: gRPC has no other deletion."""
    wanted = base_pb2.Filters(
        operator=base_pb2.Filters.OPERATOR_CONTAINS_ANY,
        target=base_pb2.FilterTarget(property="_id"),
        value_text_array=base_pb2.TextArray(values=[uuid_of(row) for row in ids]),
    )
    request = batch_delete_pb2.BatchDeleteRequest(
        collection=COLLECTION,
        filters=wanted,
        consistency_level=consistency_level(server.topology.get("consistency")),
    )
    return bytes(request.SerializeToString())


def decode_write(kind: str, response: bytes) -> int | None:
    """Rows deleted; None of an insertion without errors: it tells no number."""
    try:
        if kind == "delete":
            gone = batch_delete_pb2.BatchDeleteReply.FromString(response)
            if gone.failed:
                raise DecodeError(f"{gone.failed} of {gone.matches} rows were not deleted")
            return int(gone.successful)
        reply = batch_pb2.BatchObjectsReply.FromString(response)
    except ProtobufError as error:
        raise DecodeError(f"not a Weaviate reply to a change: {error}") from None
    if reply.errors:
        raise DecodeError(f"{len(reply.errors)} rows refused, the first: {reply.errors[0].error}")
    return None
