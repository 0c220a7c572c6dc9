"""Exact truth in shards: each searches its own rows of the base, and their lists merge into that of the whole.

A shard's list is exact (see `truth`), so every row of the whole list is in the list of its own shard, and merging by
(distance, id) gives the same bytes however the base was cut. Shards lie in files of their own: a cluster spreads them,
and a run that was interrupted has only the missing ones to make.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from anncestry.datasets import truth
from anncestry.datasets.truth import Neighbors
from anncestry.errors import DataError
from anncestry.provenance.records import replacing, set_aside

# What the readers of zip, npy and JSON raise on damaged bytes.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, KeyError, TypeError, SyntaxError),
    *(NotImplementedError, RuntimeError, MemoryError, OverflowError, TokenError),
)


def rows_of(part: int, parts: int, rows: int) -> range:
    """The rows of a shard, `part` counted from 1; shards differ by one row at most."""
    return range(rows * (part - 1) // parts, rows * part // parts)


def run(spec: Mapping[str, Any], key: str, vectors_dir: Path, out: Path, part: int, parts: int) -> None:
    """Write the exact neighbours among a shard's rows to `out` (npz); `spec` and `key` are those of the truth."""
    problem = truth.Problem.of(spec, vectors_dir, part=True)
    found, matching = problem.solve(rows_of(part, parts, problem.rows), f"truth {vectors_dir.name} · {part}/{parts}")
    with replacing(out) as temporary, open(temporary, "wb") as file:
        np.savez(
            file,
            ids=found.ids,
            distances=found.distances,
            next_distances=found.next_distances,
            matching=matching,
            about=np.array(json.dumps({"key": key, "part": part, "parts": parts, "scanned": found.scanned_queries})),
        )


def gather(paths: Sequence[Path], key: str) -> tuple[Neighbors, truth.Ids]:
    """The neighbours in the whole base from all its shards, in order, and how many rows pass each query's filter.

    DataError for a file that is damaged, or is not that shard of the truth `key`. One shard is held at a time.
    """
    whole: Neighbors | None = None
    matching = np.zeros(0, dtype=np.int64)
    for number, path in enumerate(paths, start=1):
        found, passing = _read(path, key, number, len(paths))
        matching = passing if whole is None else matching + passing
        whole = found if whole is None else merge(whole, found)
    assert whole is not None
    return whole, matching


def merge(one: Neighbors, other: Neighbors) -> Neighbors:
    """The neighbours in the union of two disjoint sets of rows, of the same queries and depth."""
    depth = one.ids.shape[1]
    ids = np.concatenate([one.ids, other.ids], axis=1)
    distances = np.concatenate([one.distances, other.distances], axis=1)
    order = np.lexsort((ids, distances), axis=1)  # pads (-1 at +inf) come last, whatever their id
    ids, distances = (np.take_along_axis(each, order, axis=1) for each in (ids, distances))
    # The row at rank depth + 1 is among both lists, or is the first that one of them had to leave out.
    after = np.minimum(distances[:, depth], np.minimum(one.next_distances, other.next_distances))
    return Neighbors(
        ids[:, :depth].copy(), distances[:, :depth].copy(), after, one.scanned_queries + other.scanned_queries
    )


def _read(path: Path, key: str, part: int, parts: int) -> tuple[Neighbors, truth.Ids]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.zip.infolist()):
                raise ValueError("it is compressed, which none of ours is")
            about = json.loads(str(file["about"]))
            scanned = int(about["scanned"])
            arrays = {name: file[name] for name in ("ids", "distances", "next_distances", "matching")}
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except _DAMAGED as error:
        set_aside(path)
        raise DataError(f"{path}: damaged ({error}): set aside, and the next call makes it again") from None
    if (said := (about["part"], about["parts"], about["key"])) != (part, parts, key):
        set_aside(path)
        raise DataError(
            f"{path}: part {said[0]} of {said[1]} of truth {said[2]}, not {part} of {parts} of {key}: set aside"
        )
    found = Neighbors(arrays["ids"], arrays["distances"], arrays["next_distances"], scanned)
    return found, arrays["matching"]
