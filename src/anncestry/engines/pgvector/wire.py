"""Searches as bytes: Bind, Execute and Sync of a prepared statement; the answer's rows read afterwards."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import DecodeError, Server, Spec
from anncestry.engines.pgvector.serve import OPERATORS, as_pgvector, condition
from anncestry.errors import ConfigError

_HEAD = struct.Struct(">cI")
_ROW = struct.Struct(">hiqid")
_EXECUTE_AND_SYNC = _HEAD.pack(b"E", 9) + bytes(5) + _HEAD.pack(b"S", 4)


def bind(statement: int, query: NDArray[np.float32]) -> bytes:
    """A search: the statement of this number with the vector, as binary, and the answer as binary."""
    vector = struct.pack(">hh", len(query), 0) + query.astype(">f4").tobytes()
    name = f"\0s{statement}\0".encode()
    body = name + struct.pack(">hhhi", 1, 1, 1, len(vector)) + vector + struct.pack(">hh", 1, 1)
    return _HEAD.pack(b"B", len(body) + 4) + body + _EXECUTE_AND_SYNC


def encode(server: Server, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> list[bytes]:
    """The messages of each of the (n, d) queries; ef is a setting of the server."""
    pgvector = as_pgvector(server)
    operator, _ = OPERATORS[pgvector.metric()]
    far = f"embedding {operator} $1"
    statement = f"SELECT id, {far} FROM items{condition(filter)} ORDER BY {far} LIMIT {int(k)}"
    number = pgvector.statements.setdefault(statement, len(pgvector.statements))
    return [bind(number, query) for query in queries]


def transport(server: Server) -> dict[str, Any]:
    """PostgreSQL's protocol; every client prepares all statements that requests were made for."""
    pgvector = as_pgvector(server)
    found: dict[str, Any] = {
        "kind": "postgres",
        "target": pgvector.endpoint,
        "user": pgvector.user,
        "database": pgvector.database,
        "prepare": list(pgvector.statements),
        "raw": True,
    }
    if pgvector.credentials is not None:
        found["password_env"] = pgvector.credentials["env"]
    if pgvector.tls is not None:
        found["tls"] = pgvector.tls
    return found


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


def decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and canonical distances; DecodeError also for an error inside."""
    found: list[tuple[int, float]] = []
    complete = False
    for kind, body in _messages(response):
        if kind == b"D":
            if len(body) != _ROW.size:
                raise DecodeError(f"a row of {len(body)} bytes, not {_ROW.size}")
            fields, _, row, _, far = _ROW.unpack(body)
            if fields != 2:
                raise DecodeError(f"a row of {fields} fields, not 2")
            found.append((row, far))
        elif kind == b"E":
            raise DecodeError(body.replace(b"\0", b" ").decode(errors="replace").strip())
        complete = complete or kind == b"C"
    if not complete:
        raise DecodeError("not a reply of PostgreSQL: the statement was not completed")
    ids = np.array([row for row, _ in found], np.int64)
    far = np.array([value for _, value in found], np.float64)
    return ids, far**2 if metric == "l2" else 1.0 + far


def sdk_transport(server: Server, k: int, ef_search: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
    """Refused while parsing."""
    raise ConfigError("client: engine pgvector can't be asked through its sdk")


def sdk_decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """As `decode`."""
    return decode(response, metric)
