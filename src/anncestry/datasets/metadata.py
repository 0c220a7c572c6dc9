"""What filters act on, and which rows they let through: three columns that every base has, ids, and payload columns.

`category` and `price` have nothing to do with the vectors; `region` says where a row lies (see `regions`).
The values of the first two come from a counter-based hash (splitmix64, Steele, Lea and Flood 2014) of the row number
and a seed, not from NumPy's generators: the same row has the same value under any NumPy, and in any prefix of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.distance import Bools, Floats, Ids, pair_distances
from anncestry.datasets.formats import open_vectors
from anncestry.datasets.payload import NO_PAYLOAD, Payload, check_resolved
from anncestry.errors import ConfigError
from anncestry.progress import Progress

CATEGORIES = 10
PRICE_FROM, PRICE_TO = 10.0, 1000.0
SIDES = ("same", "opposite")
HALVINGS = 8
REGIONS = 2**HALVINGS

_CHUNK_BYTES = 16 << 20

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


Columns = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]
"""Category, price and region of the same rows, (n,) each."""


@dataclass(frozen=True)
class Asked:
    """What n queries are filtered by: the `distinct` filters as `matches` takes them, and which of them each has.

    `of` int64 (n,) indexes `distinct`; None in `distinct` is no filter.
    """

    distinct: tuple[Mapping[str, Any] | None, ...]
    of: Ids

    def passing(self, ids: Ids, columns: Columns, payload: Payload, queries: Any = slice(None)) -> Bools:
        """Which of the ids (m, k) pass the filter of their query; padding (-1) and unknown ids do not.

        `columns` and `payload` are those of all rows; `queries` (m,) are the numbers of these, where not all are asked.
        """
        category, price, region = columns
        passing = (ids >= 0) & (ids < len(category))
        of = self.of[queries]
        order = np.argsort(of, kind="stable")
        used, starts = np.unique(of[order], return_index=True)
        for number, of_one in zip(used, np.split(order, starts[1:]), strict=False):  # of no query, one part
            known = passing[of_one]
            rows = ids[of_one][known]
            row_passes = matches(self.distinct[number], category[rows], price[rows], region[rows], rows, payload)
            known[known.nonzero()] = row_passes
            passing[of_one] = known
        return passing


def resolve(
    filter: Mapping[str, Any] | None,
    price: NDArray[np.float32],
    query_region: NDArray[np.integer[Any]],
    payload: Payload = NO_PAYLOAD,
    query: Ids | None = None,
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
    rows: Ids | None = None,
    payload: Payload = NO_PAYLOAD,
) -> Bools:
    """Which rows pass, bool (n,). `category`, `price` and `region` (n,) are the columns of the same rows.

    `rows` (n,) are their numbers, where they are not the first n of the base; `payload` is of all rows.

    Filters: None (every row passes); `{field: category, in: [1, 4]}`; `{field: price, below: x}` and
    `{field: price, from: a, below: b}`, that is a ≤ price < b, the bounds rounded to float32;
    `{field: region, from: a, below: b}`; `{field: id, from: a}`, of row numbers; a query's own conditions (see
    `payload`). What depends on the rows or the query goes through `resolve` first.
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
        passing: Bools = (np.arange(len(category)) if rows is None else rows) >= filter["from"]
        return passing
    if "below" not in filter:
        raise ConfigError(f"filter on {filter['field']}: {dict(filter)} is not resolved for a dataset and query yet")
    if filter["field"] == "region":
        assert region is not None
        # Bounds up to 256 do not fit the column's uint8.
        wide = region.astype(np.int16)
        inside: Bools = (wide >= filter["from"]) & (wide < filter["below"])
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
    if field == "payload":
        return check_resolved(filter)
    forms = _FORMS.get(str(field))
    if forms is None:
        raise ConfigError(f"filter on unknown field {field!r}; choose category, price, region, id or payload")
    where, operators = f"filter on {field}", filter.keys() - {"field"}
    form = next((form for form in forms if operators & form.keys()), forms[-1])
    for operator in sorted(operators - form.keys(), key=str):
        raise ConfigError(f"{where}: unknown operator {operator!r}; choose {' and '.join(sorted(form))}")
    optional = {"from"} if field == "price" else set()
    for operator in sorted(form.keys() - operators - optional):
        raise ConfigError(f"{where}: lacks {operator!r}")
    for operator, (is_good, demand) in form.items():
        if operator in filter and not is_good(filter[operator]):
            raise ConfigError(f"{where}: {operator} must {demand}, not {filter[operator]!r}")
    for category in filter.get("in", ()):
        if not _is_whole(category, 0, CATEGORIES - 1):
            raise ConfigError(f"{where}: {category!r} is not a category; choose 0 to {CATEGORIES - 1}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_Check = tuple[Callable[[Any], bool], str]
"""Of an operator's value: whether it is good, and what it must do or be."""


def _whole(low: int, high: int) -> _Check:
    return lambda value: _is_whole(value, low, high), f"be a whole number from {low} to {high}"


_SHARE: _Check = (lambda value: _is_number(value) and 0 < value < 1, "lie between 0 and 1")
_NUMBER: _Check = (lambda value: _is_number(value) and bool(np.isfinite(value)), "be a number")
_FORMS: Mapping[str, Sequence[Mapping[str, _Check]]] = {
    "category": ({"in": (lambda value: isinstance(value, list | tuple) and bool(value), "be a list of categories")},),
    "price": ({"share": _SHARE}, {"below": _NUMBER, "from": _NUMBER}),
    "region": (
        {"side": (lambda value: value in SIDES, f"be {' or '.join(SIDES)}"), "halvings": _whole(1, HALVINGS)},
        {"below": _whole(0, REGIONS), "from": _whole(0, REGIONS)},
    ),
    "id": ({"from_share": _SHARE}, {"from": _whole(0, 1 << 40)}),
}
"""Of each field the forms that a filter may have: its operators."""


def _hashes(n: int, seed: int, start: int, stream: int) -> NDArray[np.uint64]:
    """uint64 (n,): outputs number `start` on of the splitmix64 generator whose state is a hash of seed and stream."""
    state = _mix(np.array([(seed * 4 + stream) & _U64], dtype=np.uint64))
    return _mix(state + (np.arange(start + 1, start + n + 1, dtype=np.uint64) * _GOLDEN))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64; arithmetic is modulo 2^64, as NumPy's arrays of uint64 do it."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


# Regions


def regions(base: Path, queries: NDArray[np.float32], seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The regions of the rows of the npy file `base` and of the (q, d) queries, uint8 (rows,) and (q,).

    A region is one of 256 leaves of equal size, so that a filter can go with position. The rows are halved eight times.
    Each half has a direction of its own, from one seeded row of it to another, and its rows are split at the median of
    their projections (a random projection tree: Dasgupta and Freund, "Random projection trees and low dimensional
    manifolds", STOC 2008; the direction between two rows follows the data's structure). So the rows whose region agrees
    with a query's in the first h of eight bits are 1 in 2^h of all rows, to within a row, and mostly near the query;
    those that differ in all of the h bits are as many, on the other side of every split. Projections are summed in a
    fixed order, and equal ones ordered by row: the same regions on every machine.

    A query goes to the side of each split where a row of the same projection would be. Memory beside the result is a
    few numbers a row, and chunks of the base.
    """
    with open_vectors(base, "npy") as file:
        rows = file.rows
    random = np.random.RandomState([seed % 2**32, HALVINGS])
    node = np.zeros(rows, dtype=np.int64)
    query_node = np.zeros(len(queries), dtype=np.int64)
    with Progress(f"regions {base.parent.name}", HALVINGS * rows, "rows") as progress:
        for level in range(HALVINGS):
            directions = _directions(base, node, 2**level, random)
            along = _project(base, directions, node, progress)
            order = np.lexsort((np.arange(rows), along, node))
            starts = np.searchsorted(node[order], np.arange(2**level + 1))
            middles = (starts[:-1] + starts[1:] + 1) // 2
            # An empty half (fewer rows than regions) has no splitting point: all queries go left there.
            known = middles < starts[1:]
            split = np.full(2**level, np.inf)
            split[known] = along[order][middles[known]]
            place = np.empty(rows, dtype=np.int64)
            place[order] = np.arange(rows)
            right = place >= middles[node]
            every = np.arange(len(queries))
            query_along = -pair_distances(queries, directions, every, query_node, "cosine")
            query_node = 2 * query_node + (query_along >= split[query_node])
            node = 2 * node + right
    return node.astype(np.uint8), query_node.astype(np.uint8)


def _directions(base: Path, node: Ids, nodes: int, random: np.random.RandomState) -> Floats:
    """For each node the difference of two of its rows that differ, float64 (nodes, dim), where such are found."""
    order = np.argsort(node, kind="stable")
    starts = np.searchsorted(node[order], np.arange(nodes + 1))
    with open_vectors(base, "npy") as file:
        directions = np.zeros((nodes, file.dim))
    for number in range(nodes):
        members = order[starts[number] : starts[number + 1]]
        draws = random.randint(2**31 - 1, size=(8, 2))
        # Opened anew for each node: pages of a memory map that were touched once stay counted as ours.
        vectors = np.load(base, mmap_mode="r", allow_pickle=False)
        for draw in draws if len(members) > 1 else ():
            one, other = (vectors[members[pick % len(members)]].astype(np.float64) for pick in draw)
            if (one != other).any():
                directions[number] = other - one
                break
    return directions


def _project(base: Path, directions: Floats, node: Ids, progress: Progress) -> Floats:
    """The inner product of each row with the direction of its node, float64 (rows,)."""
    along = np.empty(len(node))
    start = 0
    with open_vectors(base, "npy") as file:
        for chunk in file.chunks(_CHUNK_BYTES):
            part = slice(start, start + len(chunk))
            along[part] = -pair_distances(chunk, directions, np.arange(len(chunk)), node[part], "cosine")
            start += len(chunk)
            progress.add(len(chunk))
    return along
