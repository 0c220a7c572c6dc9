"""What filters act on: two made-up columns that every base has, and which rows a filter lets through.

The values come from a counter-based hash (splitmix64, Steele, Lea and Flood 2014) of the row number and a seed, not
from NumPy's generators: the same row has the same value under any NumPy, and in any prefix of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.errors import ConfigError

CATEGORIES = 10
PRICE_FROM, PRICE_TO = 10.0, 1000.0

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CATEGORY_STREAM, _PRICE_STREAM = 1, 2  # so that the two columns of a row are independent
_U64 = (1 << 64) - 1


def category(n: int, seed: int, start: int = 0) -> NDArray[np.uint8]:
    """Categories, uniform over 0..9, uint8 (n,), of the rows from number `start` on."""
    high = _hashes(n, seed, start, _CATEGORY_STREAM) >> np.uint64(32)
    return ((high * np.uint64(CATEGORIES)) >> np.uint64(32)).astype(np.uint8)


def price(n: int, seed: int, start: int = 0) -> NDArray[np.float32]:
    """Prices, uniform in 10..1000, float32 (n,), of the rows from number `start` on."""
    fraction = (_hashes(n, seed, start, _PRICE_STREAM) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (PRICE_FROM + (PRICE_TO - PRICE_FROM) * fraction).astype(np.float32)


def matches(
    filter: Mapping[str, Any] | None, category: NDArray[np.uint8], price: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Which rows pass, bool (n,). `category` uint8 (n,) and `price` float32 (n,) are the columns of the same rows.

    Filters: None (every row passes); `{field: category, in: [1, 4]}`; `{field: price, below: x}` and
    `{field: price, from: a, below: b}`, that is a ≤ price < b, the bounds rounded to float32.
    Raises ConfigError for an unknown field or operator, and for an operand that the operator can't take.
    """
    check_filter(filter)
    if filter is None:
        return np.ones(len(category), dtype=np.bool_)
    if filter["field"] == "category":
        return np.isin(category, np.array(filter["in"], dtype=np.uint8))
    # Prices are float32, and so is what a database compares them with: 347.12 is the nearest float32 to it.
    passes = price < np.float32(filter["below"])
    if "from" in filter:
        passes &= price >= np.float32(filter["from"])
    return passes


def check_filter(filter: Mapping[str, Any] | None) -> None:
    """Raise a ConfigError unless `matches` can evaluate this filter."""
    if filter is None:
        return
    field = filter.get("field")
    operators = set(filter) - {"field"}
    if field == "category":
        _require_operators(field, operators, required={"in"}, allowed={"in"})
        values = filter["in"]
        if not isinstance(values, list | tuple) or not values:
            raise ConfigError(f"filter on category: in must be a list of categories, not {values!r}")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < CATEGORIES:
                raise ConfigError(f"filter on category: {value!r} is no category; they are 0 to {CATEGORIES - 1}")
    elif field == "price":
        _require_operators(field, operators, required={"below"}, allowed={"below", "from"})
        for operator in sorted(operators):
            value = filter[operator]
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise ConfigError(f"filter on price: {operator} must be a number, not {value!r}")
    else:
        raise ConfigError(f"filter on unknown field {field!r}; choose category or price")


def _require_operators(field: str, found: set[str], required: set[str], allowed: set[str]) -> None:
    for operator in sorted(found - allowed, key=str):
        raise ConfigError(f"filter on {field}: unknown operator {operator!r}; choose {' and '.join(sorted(allowed))}")
    for operator in sorted(required - found):
        raise ConfigError(f"filter on {field}: lacks {operator!r}")


def _hashes(n: int, seed: int, start: int, stream: int) -> NDArray[np.uint64]:
    """uint64 (n,): outputs number `start` on of the splitmix64 generator whose state is a hash of seed and stream."""
    state = _mix(np.array([(seed * 4 + stream) & _U64], dtype=np.uint64))
    return _mix(state + (np.arange(start + 1, start + n + 1, dtype=np.uint64) * _GOLDEN))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64; arithmetic is modulo 2^64, as NumPy's arrays of uint64 do it."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
