"""Searches as bytes: statements made beforehand, the packets that answer them read afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import DecodeError, Server, Spec
from anncestry.engines.mysql.serve import as_mysql, check_plan
from anncestry.engines.mysql.statements import literal, where
from anncestry.errors import ConfigError, UserError

_CANONICAL: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "l2": np.square,
    "cosine": lambda said: said,
    "inner_product": lambda said: 1.0 + said,  # the negative product of vectors of length 1
}
"""By the name of the column: what the server said → l2 squared, 1 − cos."""
_HEAD = 4
_EOF = 0xFE


def encode(server: Server, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None) -> list[bytes]:
    """The statement for each of the (n, d) queries. ef is a variable of the connection: see `transport`.

    Before that the server explains the first of them: ServerError if it would not use its vector index for a search
    that has no filter. UserError for queries of another length than the column's: MariaDB would answer them, with
    arbitrary rows.
    """
    mysql = as_mysql(server)
    table = mysql.table()
    if queries.shape[1] != table.dim:
        raise UserError(f"{mysql.name}: queries of {queries.shape[1]} numbers, the column holds vectors of {table.dim}")
    condition, exact = where(filter), mysql.exact
    statements = [
        mysql.dialect.search(literal(query), table.distance, k, condition, exact and filter is not None)
        for query in queries
    ]
    if statements and filter is None:
        check_plan(mysql, statements[0])
    return statements


def transport(server: Server) -> dict[str, Any]:
    """Text statements; every connection says first what its searches need."""
    mysql = as_mysql(server)
    found: dict[str, Any] = {
        "kind": "mysql",
        "target": mysql.endpoint,
        "user": mysql.user_of(reader=True),
        "database": mysql.database,
        "init": mysql.dialect.session(mysql.ef_search),
    }
    if mysql.credentials is not None:
        found["password_env"] = mysql.credentials["env"]
    if mysql.tls is not None:
        found["tls"] = mysql.tls
    return found


def decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and canonical distances, from the packets of a text result: columns, their end, rows, their end."""
    try:
        packets = _packets(response)
        first = next(packets)
        if first[:1] == b"\xff":
            raise DecodeError(f"MySQL error: {first[9:].decode(errors='replace')}")
        if first != b"\x02":
            raise DecodeError("not a result of two columns")
        _, column = next(packets), _strings(next(packets), 5)[4].decode()
        ids, said = [], []
        if next(packets)[0] != _EOF:
            raise DecodeError("columns without an end")
        for packet in packets:
            if packet[0] == _EOF and len(packet) < 9:
                break
            row, distance = _strings(packet, 2)
            ids.append(int(row))
            said.append(float(distance))
        else:
            raise DecodeError("rows without an end")
        canonical = _CANONICAL[column](np.array(said, dtype=np.float64))
    except DecodeError:
        raise
    except (StopIteration, IndexError, KeyError, ValueError) as error:
        raise DecodeError(f"not a result of a search: {type(error).__name__} {error}") from None
    return np.array(ids, np.int64), np.asarray(canonical)


def _packets(response: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(response):
        size = int.from_bytes(response[at : at + 3], "little")
        body = response[at + _HEAD : at + _HEAD + size]
        if len(body) != size or not size:
            raise DecodeError("a packet is cut off")
        at += _HEAD + size
        yield body


def _strings(packet: bytes, count: int) -> list[bytes]:
    """The first `count` length-encoded strings of a packet. (None that is asked for here is 251 bytes or longer.)"""
    strings, at = [], 0
    for _ in range(count):
        size = packet[at]
        if size == 0xFB:
            raise DecodeError("a result without an id or a distance")
        if size > 0xFB or at + 1 + size > len(packet):
            raise DecodeError("a string that is longer than its packet")
        strings.append(packet[at + 1 : at + 1 + size])
        at += 1 + size
    return strings


def sdk_transport(server: Server, k: int, ef_search: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
    """There is no library of its own: any MySQL client is one. Refused while parsing, too."""
    raise ConfigError("client: the databases of the MySQL protocol have no sdk of their own")


def sdk_decode(response: bytes, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """See `sdk_transport`."""
    raise ConfigError("client: the databases of the MySQL protocol have no sdk of their own")
