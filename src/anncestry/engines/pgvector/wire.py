"""Rows as COPY BINARY has them; searches as Bind, Execute and Sync of a prepared statement, and their answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Answer, Batch, DecodeError, ErrorReplyError

_HEAD = struct.Struct(">cI")
_ROW = struct.Struct(">hiqid")
_EXECUTE_AND_SYNC = _HEAD.pack(b"E", 9) + bytes(5) + _HEAD.pack(b"S", 4)
_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
_COLUMNS = (("id", ">i8"), ("category", ">i2"), ("price", ">f4"), ("region", ">i2"))


def copy_data(batch: Batch) -> bytes:
    """Rows as COPY BINARY has them: the number of fields, then each with its length; a vector with its dimensions."""
    rows, dim = batch.base.shape
    fields: list[Any] = [("fields", ">i2")]
    for name, kind in _COLUMNS:
        fields += [(f"{name}_length", ">i4"), (name, kind)]
    fields += [("vector_length", ">i4"), ("dim", ">i2"), ("unused", ">i2"), ("vector", ">f4", (dim,))]
    table = np.zeros(rows, np.dtype(fields))
    table["fields"] = len(_COLUMNS) + 1 + len(batch.payload)
    table["id"] = np.arange(batch.first, batch.end)
    for name, kind in _COLUMNS:
        table[f"{name}_length"] = np.dtype(kind).itemsize
        if name != "id":
            table[name] = getattr(batch, name)
    table["vector_length"], table["dim"], table["vector"] = 4 + 4 * dim, dim, batch.base
    if not batch.payload:
        return _SIGNATURE + table.tobytes() + _TRAILER
    more = [[_field(column.kind, value) for value in values] for column, values in batch.payload]
    parts = (part for row in zip(table, *more, strict=True) for part in (row[0].tobytes(), *row[1:]))
    return _SIGNATURE + b"".join(parts) + _TRAILER


def _field(kind: str, value: Any) -> bytes:
    data = value.encode() if kind == "keyword" else struct.pack(">q" if kind == "int" else ">d", value)
    return struct.pack(">i", len(data)) + data


def bind(statement: int, query: NDArray[np.float32]) -> bytes:
    """A search: the statement of this number with the vector, as binary, and the answer as binary."""
    vector = struct.pack(">hh", len(query), 0) + query.astype(">f4").tobytes()
    name = f"\0s{statement}\0".encode()
    body = name + struct.pack(">hhhi", 1, 1, 1, len(vector)) + vector + struct.pack(">hh", 1, 1)
    return _HEAD.pack(b"B", len(body) + 4) + body + _EXECUTE_AND_SYNC


def _messages(response: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(response):
        if at + _HEAD.size > len(response):
            raise DecodeError("not a reply of PostgreSQL: it ends in a message's head")
        kind, size = _HEAD.unpack_from(response, at)
        end = at + 1 + size
        if size < 4 or end > len(response):
            raise DecodeError("not a reply of PostgreSQL: a message is longer than the reply")
        yield kind, response[at + _HEAD.size : end]
        at = end


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances; DecodeError also for an error inside."""
    rows: list[tuple[int, float]] = []
    complete = False
    for kind, body in _messages(response):
        if kind == b"D":
            if len(body) != _ROW.size:
                raise DecodeError(f"a row of {len(body)} bytes, not {_ROW.size}")
            fields, _, row, _, far = _ROW.unpack(body)
            if fields != 2:
                raise DecodeError(f"a row of {fields} fields, not 2")
            rows.append((row, far))
        elif kind == b"E":
            raise ErrorReplyError(body.replace(b"\0", b" ").decode(errors="replace").strip())
        complete = complete or kind == b"C"
    if not complete:
        raise DecodeError("not a reply of PostgreSQL: the statement was not completed")
    ids = np.array([row for row, _ in rows], np.int64)
    far = np.array([value for _, value in rows], np.float64)
    return ids, far**2 if metric == "l2" else 1.0 + far
