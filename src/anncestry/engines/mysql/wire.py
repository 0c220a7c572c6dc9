"""Statements as bytes, made beforehand, and the packets that answer searches, read afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.payload import WORD_BYTES, Column
from anncestry.engines.base import Answer, Batch, DecodeError, ErrorReplyError, Spec
from anncestry.engines.conditions import Comparison, in_sql
from anncestry.engines.mysql.dialect import TABLE

_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\x1a", b"\\Z"))
_CANONICAL: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "l2": np.square,
    "cosine": lambda said: said,
    "inner_product": lambda said: 1.0 + said,  # the negative product of vectors of length 1
}
"""By the name of the column: what the server said → l2 squared, 1 − cos."""
_HEAD = 4
_EOF = 0xFE


def literal(vector: NDArray[np.float32]) -> bytes:
    """A (d,) vector in a statement: its float32 bytes, little-endian, as a binary string."""
    data = vector.astype("<f4", copy=False).tobytes()
    for byte, escaped in _ESCAPES:
        data = data.replace(byte, escaped)
    return b"_binary '" + data + b"'"


def number(value: float) -> str:
    """A float as a literal of the type double: 0.5e0, 9.3e-05."""
    text = repr(value)
    return text if "e" in text else f"{text}e0"


def value(stored: str | int | float) -> str:
    """A value of a payload column; of a keyword its bytes, so that no character set or collation has a say."""
    if isinstance(stored, str):
        return f"X'{stored.encode().hex()}'"
    return str(stored) if isinstance(stored, int) else number(stored)


_TYPES = {"keyword": f"VARBINARY({WORD_BYTES})", "int": "BIGINT", "float": "DOUBLE"}


def definitions(columns: Sequence[Column]) -> str:
    """What payload columns are in the definition of a table, after its other columns; each with its index."""
    named = [f", {column.stored_as} {_TYPES[column.kind]} NOT NULL" for column in columns]
    return "".join([*named, *(f", KEY k{column.stored_as}({column.stored_as})" for column in columns)])


def where(filter: Spec | None) -> str:
    """A workload's filter as a condition; "" for none. Bounds are rounded to the float32 of the stored prices."""
    return in_sql(filter, _literal)


def _literal(one: Comparison) -> str:
    return f"({','.join(map(str, one.value))})" if isinstance(one.value, tuple) else value(one.value)


def insertion(batch: Batch) -> bytes:
    rows = (
        b"(%d,%s,%d,%s,%d%s)"
        % (
            *(row, literal(vector), values[0], number(values[1]).encode(), values[2]),
            "".join(f",{value(one)}" for one in values[3:]).encode(),
        )
        for row, (vector, values) in enumerate(zip(batch.base, batch.columns(), strict=True), start=batch.first)
    )
    return f"INSERT INTO {TABLE}({','.join(['id', 'v', *batch.names])}) VALUES ".encode() + b",".join(rows)


def decode(response: bytes) -> Answer:
    """Ids and canonical distances, from the packets of a text result: columns, their end, rows, their end."""
    try:
        packets = _packets(response)
        first = next(packets)
        if first[:1] == b"\xff":
            raise ErrorReplyError(f"MySQL error: {first[9:].decode(errors='replace')}")
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
