"""Queries as JSON lines, as Qdrant's filter sets have them: {"query": […], "conditions": …, "closest_ids": […]}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.conditions import Reader
from anncestry.errors import DataError

_ID_END = 1 << 63
_FLOAT_END = 2.0**1023


def place_queries(path: Path, queries_to: Path, neighbors_to: Path, conditions: Reader | None = None) -> bool:
    """Write the vectors of `query` as npy of float32 (n, dim) and, if no line has conditions, `closest_ids` (n, k).

    Returns whether the second was written: neighbours under conditions are not those of a plain search. With a reader
    of `conditions`, it is given those of each line, and the neighbours under them are written, lists padded with -1.
    DataError names the line that is damaged or of another shape.
    """
    vectors: list[NDArray[np.float64]] = []
    closest: list[NDArray[np.int64]] | None = []
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            test = _test(path, number, line)
            if vectors and len(test["query"]) != len(vectors[0]):
                raise DataError(f"{path}: line {number}: a query of another length than the first")
            vectors.append(np.array(test["query"], dtype=np.float64))
            taken = conditions is not None or not test.get("conditions")
            stated = taken and isinstance(test.get("closest_ids"), list)
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
    with np.errstate(over="ignore"):  # becomes infinity, which the download stage refuses by row
        np.save(queries_to, np.array(vectors).astype(np.float32))
    if closest is None or (conditions is None and len({len(ids) for ids in closest}) != 1):
        return False
    padded = np.full((len(closest), max(len(ids) for ids in closest)), -1, dtype=np.int64)
    for row, ids in zip(padded, closest, strict=True):
        row[: len(ids)] = ids
    np.save(neighbors_to, padded)
    return True


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    with file:
        yield file


def _test(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        test = json.loads(line)
        query = test["query"]
        if isinstance(query, list) and query and all(map(_is_number, query)):
            return test  # type: ignore[no-any-return]  # an object: it has a value by name
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DataError(f"{path}: line {number}: no JSON object with a query of numbers")


def _is_number(value: object) -> bool:
    """Whether it is one, and not beyond floating point; NaN and infinity are refused later, by row."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _FLOAT_END)
