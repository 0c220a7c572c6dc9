"""Queries as JSON lines, as Qdrant's filter sets have them: {"query": […], "conditions": …, "closest_ids": […]}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.conditions import Reader
from anncestry.datasets.formats import K_MAX
from anncestry.errors import DataError

_ID_END = 1 << 63
_LINE_BYTES = 1 << 20
_FLOAT_END = 2.0**1023


def place_queries(
    path: Path,
    queries_to: Path,
    neighbors_to: Path,
    conditions: Reader | None = None,
    queries: int | None = None,
    dim: int | None = None,
) -> bool:
    """Write the vectors of `query` as npy of float32 (n, dim) and, if no line has conditions, `closest_ids` (n, k).

    Returns whether the second was written: neighbours under conditions are not those of a plain search. With a reader
    of `conditions`, it is given those of each line, and the neighbours under them are written, lists padded with -1.
    DataError names the line that is damaged or of another shape, also than `queries` of `dim` numbers, where stated.
    """
    vectors: list[NDArray[np.float32]] = []
    closest: list[NDArray[np.int64]] | None = []
    for number, test in objects(path):
        query = _query(path, number, test)
        if len(query) != (len(vectors[0]) if vectors else dim or len(query)):
            than = "the first" if vectors else f"the {dim} numbers stated"
            raise DataError(f"{path}: line {number}: a query of another length than {than}")
        if queries and len(vectors) == queries:
            raise DataError(f"{path}: line {number}: more than the {queries} queries that the config states")
        with np.errstate(over="ignore"):  # becomes infinity, which the download stage refuses by row
            vectors.append(np.array(query, dtype=np.float64).astype(np.float32))
        taken = conditions is not None or not test.get("conditions")
        stated = taken and isinstance(test.get("closest_ids"), list)
        if stated and len(test["closest_ids"]) > K_MAX:
            raise DataError(
                f"{path}: line {number}: {len(test['closest_ids'])} closest_ids, where {K_MAX} are the most"
            )
        if stated and not all(type(value) is int and -1 <= value < _ID_END for value in test["closest_ids"]):
            raise DataError(f"{path}: line {number}: closest_ids that are no ids")
        if conditions is not None:
            conditions.add(number, test.get("conditions"))
        if closest is not None and stated:
            closest.append(np.array(test["closest_ids"], dtype=np.int64))
        else:
            closest = None
    if not vectors:
        raise DataError(f"{path}: holds no queries")
    np.save(queries_to, np.array(vectors))
    if closest is None or (conditions is None and len({len(ids) for ids in closest}) != 1):
        return False
    padded = np.full((len(closest), max(len(ids) for ids in closest)), -1, dtype=np.int64)
    for row, ids in zip(padded, closest, strict=True):
        row[: len(ids)] = ids
    np.save(neighbors_to, padded)
    return True


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not empty; DataError for any other line, and for one too long."""
    try:
        file: IO[bytes] = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    with file:
        number = 0
        while line := file.readline(_LINE_BYTES + 1):
            number += 1
            if len(line) > _LINE_BYTES:
                raise DataError(f"{path}: line {number}: longer than {_LINE_BYTES} bytes")
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise DataError(f"{path}: line {number}: no JSON object")
            yield number, found


def _query(path: Path, number: int, test: dict[str, Any]) -> list[float]:
    query = test.get("query")
    if isinstance(query, list) and query and all(map(_is_number, query)):
        return query
    raise DataError(f"{path}: line {number}: no JSON object with a query of numbers")


def _is_number(value: object) -> bool:
    """Whether it is one, and not beyond floating point; NaN and infinity are refused later, by row."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _FLOAT_END)
