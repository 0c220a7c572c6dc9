"""What filters act on, and which rows they let through: three columns that every base has, ids, and payload columns.

`category` and `price` have nothing to do with the vectors; `region` says where a row lies (see regions.py).
The values of the first two come from a counter-based hash (splitmix64, Steele, Lea and Flood 2014) of the row number
and a seed, not from NumPy's generators: the same row has the same value under any NumPy, and in any prefix of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.conditions import check_resolved
from anncestry.datasets.payload import NO_PAYLOAD, Payload
from anncestry.datasets.regions import HALVINGS, REGIONS
from anncestry.errors import ConfigError

CATEGORIES = 10
PRICE_FROM, PRICE_TO = 10.0, 1000.0
SIDES = ("same", "opposite")

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


@dataclass(frozen=True)
class Asked:
    """What n queries are filtered by: the `distinct` filters as `matches` takes them, and which of them each has.

    `of` int64 (n,) indexes `distinct`; None in `distinct` is no filter.
    """

    distinct: tuple[Mapping[str, Any] | None, ...]
    of: NDArray[np.int64]


def resolve(
    filter: Mapping[str, Any] | None,
    price: NDArray[np.float32],
    query_region: NDArray[np.integer[Any]],
    payload: Payload = NO_PAYLOAD,
    query: NDArray[np.int64] | None = None,
) -> Asked:
    """A workload's filter for n queries on these rows, bounds in place of shares and sides.

    `price` float32 (rows,) is the column; `query_region` (n,) the regions of the queries.
    `{field: price, share: s}` becomes `below` the price that has round(s · rows) rows (at least 1) beneath it: the
    share is exact, but for rows of that very price, and recorded as counted. `{field: region, side: same, halvings: h}`
    becomes, for each query, the 2^(8−h) regions that agree with the query's own in the first h bits; `side: opposite`
    those that differ in each of these bits. `{field: id, from_share: s}` becomes `from` the id floor(s · rows), as
    VectorDBBench's filters do. `{field: payload}` becomes each query's own conditions: `query` (n,) are the numbers of
    the queries among those of the dataset (None: all of them, in their order). Other filters stay as they are.
    """
    check_filter(filter)
    if filter is not None and filter.keys() == {"field"}:
        numbers = payload.of if query is None else payload.of[query]
        used, own = np.unique(numbers, return_inverse=True)
        return Asked(tuple(payload.filters[number] for number in used), own.reshape(-1).astype(np.int64))
    every = np.zeros(len(query_region), dtype=np.int64)
    if filter is not None and "share" in filter:
        rank = min(max(1, round(filter["share"] * len(price))), len(price) - 1)
        bound = np.partition(np.asarray(price), rank)[rank]
        return Asked(({"field": "price", "below": float(bound)},), every)
    if filter is not None and "from_share" in filter:
        return Asked(({"field": "id", "from": int(filter["from_share"] * len(price))},), every)
    if filter is not None and "side" in filter:
        width = 2 ** (HALVINGS - filter["halvings"])
        block = np.asarray(query_region, dtype=np.int64) // width
        if filter["side"] == "opposite":
            block = REGIONS // width - 1 - block
        blocks, of = np.unique(block, return_inverse=True)
        distinct = tuple(
            {"field": "region", "from": int(number * width), "below": int((number + 1) * width)} for number in blocks
        )
        return Asked(distinct, of.reshape(-1).astype(np.int64))
    return Asked((filter,), every)


def matches(
    filter: Mapping[str, Any] | None,
    category: NDArray[np.uint8],
    price: NDArray[np.float32],
    region: NDArray[np.uint8] | None = None,
    rows: NDArray[np.int64] | None = None,
    payload: Payload = NO_PAYLOAD,
) -> NDArray[np.bool_]:
    """Which rows pass, bool (n,). `category`, `price` and `region` (n,) are the columns of the same rows.

    `rows` (n,) are their numbers, where they are not the first n of the base; `payload` is of all rows.

    Filters: None (every row passes); `{field: category, in: [1, 4]}`; `{field: price, below: x}` and
    `{field: price, from: a, below: b}`, that is a ≤ price < b, the bounds rounded to float32;
    `{field: region, from: a, below: b}`; `{field: id, from: a}`, of row numbers; a query's own conditions (see
    `conditions`). What depends on the rows or the query goes through `resolve` first.
    Raises ConfigError for an unknown field or operator, and for an operand that the operator can't take.
    """
    check_filter(filter)
    if filter is None:
        return np.ones(len(category), dtype=np.bool_)
    if filter["field"] == "category":
        return np.isin(category, np.array(filter["in"], dtype=np.uint8))
    if filter["field"] == "payload" and "all" in filter:
        return payload.passes(filter, rows)
    if filter["field"] == "id" and "from" in filter:
        passing: NDArray[np.bool_] = (np.arange(len(category)) if rows is None else rows) >= filter["from"]
        return passing
    if "below" not in filter:
        raise ConfigError(f"filter on {filter['field']}: {dict(filter)} is not resolved for a dataset and query yet")
    if filter["field"] == "region":
        assert region is not None
        # Bounds up to 256 do not fit the column's uint8.
        wide = region.astype(np.int16)
        inside: NDArray[np.bool_] = (wide >= filter["from"]) & (wide < filter["below"])
        return inside
    # Prices are float32, and so is what a database compares them with: 347.12 is the nearest float32 to it.
    passes = price < np.float32(filter["below"])
    if "from" in filter:
        passes &= price >= np.float32(filter["from"])
    return passes


def check_filter(filter: Mapping[str, Any] | None) -> None:
    """Raise a ConfigError unless `resolve` and `matches` can evaluate this filter."""
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
    elif field == "price" and "share" in operators:
        _require_operators(field, operators, required={"share"}, allowed={"share"})
        share = filter["share"]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise ConfigError(f"filter on price: share must lie between 0 and 1, not {share!r}")
    elif field == "price":
        _require_operators(field, operators, required={"below"}, allowed={"below", "from"})
        for operator in sorted(operators):
            value = filter[operator]
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise ConfigError(f"filter on price: {operator} must be a number, not {value!r}")
    elif field == "region" and operators & {"side", "halvings"}:
        _require_operators(field, operators, required={"side", "halvings"}, allowed={"side", "halvings"})
        if filter["side"] not in SIDES:
            raise ConfigError(f"filter on region: side must be {' or '.join(SIDES)}, not {filter['side']!r}")
        _whole(filter["halvings"], "halvings", 1, HALVINGS)
    elif field == "region":
        _require_operators(field, operators, required={"from", "below"}, allowed={"from", "below"})
        for operator in sorted(operators):
            _whole(filter[operator], operator, 0, REGIONS)
    elif field == "id" and "from_share" in operators:
        _require_operators(field, operators, required={"from_share"}, allowed={"from_share"})
        share = filter["from_share"]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise ConfigError(f"filter on id: from_share must lie between 0 and 1, not {share!r}")
    elif field == "id":
        _require_operators(field, operators, required={"from"}, allowed={"from"})
        _whole(filter["from"], "from", 0, 1 << 40, field)
    elif field == "payload":
        check_resolved(filter)
    else:
        raise ConfigError(f"filter on unknown field {field!r}; choose category, price, region, id or payload")


def _whole(value: object, name: str, low: int, high: int, field: str = "region") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"filter on {field}: {name} must be a whole number from {low} to {high}, not {value!r}")


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
