"""Rows and searches as commands of RESP 2, made beforehand; answers read afterwards."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.payload import Column
from anncestry.engines.base import Answer, Batch, DecodeError, ErrorReplyError, Spec
from anncestry.engines.conditions import Comparison, in_text
from anncestry.engines.resp import command, read

INDEX, PREFIX = "anncestry", b"row:"
"""The index, and what the names of the keys that it holds begin with; the row's id follows."""
_SEPARATOR = "\x01"
_BACKSLASH = "\\"
_VECTOR, _FAR = "vector", "far"


def definition(dim: int, index: Spec, distance: str, payload: list[Column]) -> bytes:
    """The command that creates the index. Each vector is added to it when its row is stored."""
    graph = ["M", index["M"], "EF_CONSTRUCTION", index["ef_construction"]] if index["type"] == "hnsw" else []
    options = ["TYPE", "FLOAT32", "DIM", dim, "DISTANCE_METRIC", distance, *graph]
    fields = [_VECTOR, "VECTOR", index["type"].upper(), len(options), *options]
    fields += ["category", "TAG", "price", "NUMERIC", "region", "NUMERIC"]
    for column in payload:
        # Commas would separate keywords by default, and letters be taken for their small ones.
        kind = ["TAG", "SEPARATOR", _SEPARATOR, "CASESENSITIVE"] if column.kind == "keyword" else ["NUMERIC"]
        fields += [column.stored_as, *kind]
    return command("FT.CREATE", INDEX, "ON", "HASH", "PREFIX", 1, PREFIX, "SCHEMA", *fields)


def _text(value: Any) -> str:
    """A value as it is stored: decimals that read back as the same double; keywords between two marks.

    (The index cuts off spaces at both ends of a keyword, and has none for an empty one.)
    """
    return f"={value}=" if isinstance(value, str) else repr(value)


def insertion(rows: Batch) -> bytes:
    """A command for each row, one after the other."""
    vectors = rows.base.astype("<f4", copy=False)
    names = rows.names
    return b"".join(
        command(
            *("HSET", PREFIX + b"%d" % row, _VECTOR, vector.tobytes()),
            *(part for name, value in zip(names, values, strict=True) for part in (name, _text(value))),
        )
        for row, vector, values in zip(range(rows.first, rows.end), vectors, rows.columns(), strict=True)
    )


def condition(filter: Spec) -> tuple[str, list[str | int]]:
    """A workload's filter in the language of queries, and its values as parameters: names and values in turn."""
    given: list[str | int] = []

    def parameter(value: str) -> str:
        name = f"p{len(given) // 2}"
        given.extend((name, value))
        return f"${name}"

    def say(one: Comparison) -> str:
        if isinstance(one.value, tuple):
            return f"@{one.column}:{{{'|'.join(map(str, one.value))}}}"
        if isinstance(one.value, str):  # a backslash escapes also in a parameter
            return f"@{one.column}:{{{parameter(_text(one.value).replace(_BACKSLASH, 2 * _BACKSLASH))}}}"
        value = parameter(_text(one.value))
        ranges = {"=": f"{value} {value}", ">=": f"{value} +inf", ">": f"({value} +inf"}
        ranges |= {"<=": f"-inf {value}", "<": f"-inf ({value}"}
        return f"@{one.column}:[{ranges[one.operator]}]"

    def span(low: Comparison, high: Comparison) -> str:
        ends = [f"{'(' * (one.operator in '<>')}{parameter(_text(one.value))}" for one in (low, high)]
        return f"@{low.column}:[{' '.join(ends)}]"

    return in_text(filter, say, " ", "|", span), given


def _asked(query: str, given: list[Any], more: list[str | int]) -> bytes:
    parameters = ["PARAMS", len(given), *given] if given else []
    return command("FT.SEARCH", INDEX, query, *parameters, *more, "DIALECT", 2)


def counting(filter: Spec | None) -> bytes:
    """A search that returns no row, but the number of rows that pass."""
    query, given = ("*", []) if filter is None else condition(filter)
    return _asked(query, given, ["LIMIT", 0, 0])


def search(query: NDArray[np.float32], k: int, filter: Spec | None, options: str) -> bytes:
    """A search for the k nearest of the (d,) query; `options` are those of its KNN clause."""
    passing, given = ("*", []) if filter is None else condition(filter)
    if filter is not None:
        passing = f"({passing})"
    text = f"{passing}=>[KNN {int(k)} @{_VECTOR} $query {options}AS {_FAR}]"
    vector = ["query", query.astype("<f4", copy=False).tobytes()]
    return _asked(text, [*vector, *given], ["SORTBY", _FAR, "RETURN", 1, _FAR, "LIMIT", 0, int(k)])


def decode(response: bytes, metric: str) -> Answer:
    """Ids and canonical distances, which it tells; DecodeError where the reply is no answer."""
    stream = io.BytesIO(response)
    reply = read(stream)
    if isinstance(reply, ErrorReplyError):
        raise reply
    if stream.read(1) or not isinstance(reply, list) or len(reply) % 2 != 1:
        raise DecodeError("not a reply of Redis to a search")
    try:
        ids = np.array([_id(key) for key in reply[1::2]], np.int64)
        far = np.array([float(dict(zip(row[::2], row[1::2], strict=True))[b"far"]) for row in reply[2::2]], np.float64)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DecodeError(f"not a reply of Redis to a search: {type(error).__name__}: {error}") from None
    if not np.isfinite(far).all():
        raise DecodeError("a reply of Redis with a distance that is no number")
    return ids, far


def _id(key: Any) -> int:
    if not isinstance(key, bytes) or not key.startswith(PREFIX):
        raise ValueError(f"a key that was not loaded: {key!r}")
    return int(key.removeprefix(PREFIX))
