"""Queries as JSON lines, as Qdrant's filter sets have them: {"query": […], "conditions": …, "closest_ids": […]}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.errors import DataError


def place_queries(path: Path, queries_to: Path, neighbors_to: Path) -> bool:
    """Write the vectors of `query` as npy of float32 (n, dim) and, if no line has conditions, `closest_ids` (n, k).

    Returns whether the second was written: neighbours under conditions are not those of a plain search. DataError
    names the line that is damaged or of another shape.
    """
    vectors: list[list[float]] = []
    closest: list[list[int]] | None = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            test = _test(path, number, line)
            if vectors and len(test["query"]) != len(vectors[0]):
                raise DataError(f"{path}: line {number}: a query of another length than the first")
            vectors.append(test["query"])
            plain = not test.get("conditions") and isinstance(test.get("closest_ids"), list)
            if closest is not None and plain:
                closest.append(test["closest_ids"])
            else:
                closest = None
    if not vectors:
        raise DataError(f"{path}: holds no queries")
    np.save(queries_to, np.array(vectors, dtype=np.float32))
    if closest is None or len({len(ids) for ids in closest}) != 1:
        return False
    np.save(neighbors_to, np.array(closest, dtype=np.int64))
    return True


def _test(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        test = json.loads(line)
        if isinstance(test, dict) and test["query"] and all(isinstance(value, int | float) for value in test["query"]):
            return test
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path}: line {number}: no JSON object with a query of numbers")
