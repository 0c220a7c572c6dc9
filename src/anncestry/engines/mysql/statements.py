"""What statements are made of: vectors and conditions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Spec, filter_bounds

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


def where(filter: Spec | None) -> str:
    """A workload's filter as a condition; "" for none. Bounds are rounded to the float32 of the stored prices."""
    if filter is None:
        return ""
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
