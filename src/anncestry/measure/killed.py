"""What a load lost whose server was killed, by the server's own count and by search.

A row is lost that the server had acknowledged and does not give back. The count tells of rows that the store lost. The
search (each row by its own vector, at the effort of `measure.oracle`) also tells of those that the store has and the
index lost. What was acknowledged is all of the dataset: a load ends once every batch is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, LoadResult, Server
from anncestry.errors import DataError, ServerError
from anncestry.measure import oracle
from anncestry.measure.vectors import Vectors

_SEED = 20261122
_LAST_ROWS = 5000
_OTHER_ROWS = 5000


def rows_to_ask(rows: int, rows_before: int) -> NDArray[np.int64]:
    """Ids to search for, sorted: of few `rows` all, else the last 5,000 before the kill and 5,000 others by a seed."""
    if rows <= _LAST_ROWS + _OTHER_ROWS:
        return np.arange(rows)
    last = np.arange(max(0, rows_before - _LAST_ROWS), rows_before)
    others = np.setdiff1d(np.arange(rows), last)
    chosen = np.random.RandomState(_SEED).permutation(others)[:_OTHER_ROWS]
    return np.sort(np.concatenate([last, chosen]))


def search(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: Vectors, result: LoadResult
) -> dict[str, Any]:
    """What the client saw of the kill in `result`, and which rows a search does not find.

    Leaves the effort at `oracle.EF`. A vector of zeros, which has no neighbourhood, is not asked for. ServerError if
    the server was never killed.
    """
    killed = result.killed
    if killed is None or killed.accepted_s is None:
        raise ServerError("the server was not killed during its load, or nothing was inserted after it")
    asked = rows_to_ask(len(vectors.base), killed.rows_before)
    asked = asked[np.any(np.asarray(vectors.base[asked]) != 0, axis=1)]
    engine.apply(server, oracle.EF)
    engine.exact_filters(server, False)
    found = oracle.found_by_own_vector(engine, server, driver, folder, vectors, asked)
    return {
        "acknowledged_before": killed.rows_before,
        "resent": killed.resent,
        "accepting_s": killed.accepted_s - killed.killed_s,
        "acknowledged": result.rows_acknowledged,
        "asked": len(asked),
        "lost_by_search": int((~found).sum()),
        "lost": _runs(asked[~found]),
    }


def by_count(acknowledged: int, counted: int) -> dict[str, int]:
    """Rows that the server counts, and how many fewer these are; of a batch that it took twice it may count more."""
    return {"counted": counted, "lost_by_count": max(0, acknowledged - counted)}


def check(path: str, kill: Mapping[str, Any]) -> None:
    """DataError if the numbers of a record at `path` are not those of the rows that it names."""
    again = {
        "lost_by_search": sum(last - first + 1 for first, last in kill["lost"]),
        **by_count(kill["acknowledged"], kill["counted"]),
    }
    for name, value in again.items():
        if kill[name] != value:
            raise DataError(f"{path}: kill.{name} is {kill[name]}, the rows of the record say {value}")


def _runs(ids: NDArray[np.int64]) -> list[list[int]]:
    """Sorted ids as [first, last] of each run of consecutive ones."""
    parts = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1) if len(ids) else []
    return [[int(part[0]), int(part[-1])] for part in parts]
