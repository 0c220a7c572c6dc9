"""What statements are made of: vectors and conditions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.conditions import WORD_BYTES
from anncestry.datasets.payload import Column
from anncestry.engines.base import Spec, filter_bounds
from anncestry.engines.conditions import in_sql, is_payload

_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\x1a", b"\\Z"))


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
    if filter is None:
        return ""
    if is_payload(filter):
        return in_sql(filter, value)
    bounds = filter_bounds(filter)
    if bounds.values is not None:
        return f"{bounds.field} IN ({','.join(map(str, bounds.values))})"
    limits = ((bounds.low, ">="), (bounds.high, "<"))
    terms = []
    for bound, operator in limits:
        if bound is not None:
            limit = bounds.bound(bound)
            terms.append(f"{bounds.field} {operator} {limit if bounds.whole else number(limit)}")
    return " AND ".join(terms)
