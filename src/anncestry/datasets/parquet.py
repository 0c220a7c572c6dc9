"""Vectors and truth in Parquet files, as VectorDBBench publishes them: read by row groups, placed by their ids.

A row's id is what its id column says, not its place in the file: files come shuffled, and truth speaks of ids.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anncestry import large
from anncestry.datasets import formats
from anncestry.errors import DataError, damage
from anncestry.progress import Progress

_BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20
_SLACK_BYTES, _VALUE_BYTES = 1 << 20, 32  # far above what any encoding of a number takes
# What Arrow raises on damaged bytes: its own errors, and those of Python that stand for some of them.
_DAMAGED = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError)


def place_vectors(
    files: Sequence[Path],
    id_column: str | None,
    vector_column: str,
    rows: int,
    dim: int,
    to: Path,
    last: int = 0,
    last_to: Path | None = None,
) -> None:
    """Write the vectors of all files into `to`, an npy of float32 (rows, dim) whose row i is the vector of id i.

    Without `id_column` the ids are the rows' places in the files, one file after the other. With `last`, the vectors of
    the ids from `rows` on, so many, go to `last_to`, (last, dim): a set without queries lends them from its end.
    DataError unless the ids are exactly 0 … rows + last - 1, each once, and every vector has `dim` numbers.
    """
    every = rows + last
    out = large.npy(to, (rows, dim), np.float32)
    rest = large.npy(last_to, (last, dim), np.float32) if last_to else None
    seen, place = np.zeros(every, dtype=bool), 0
    name = id_column or "row"
    with Progress(f"place {to.stem} by id", every, "rows") as progress:
        for path in files:
            for found, vectors in _batches(path, id_column, vector_column, dim):
                ids = np.arange(place, place + len(vectors)) if id_column is None else found
                place += len(vectors)
                out_of_range = (ids < 0) | (ids >= every)
                if out_of_range.any():
                    raise DataError(f"{path}: {name} {ids[out_of_range][0]} is not within the {every} rows stated")
                if len(np.unique(ids)) != len(ids) or seen[ids].any():
                    raise DataError(f"{path}: an {name} occurs twice")
                seen[ids] = True
                of_base = ids < rows
                out[ids[of_base]] = vectors[of_base]
                if rest is not None:
                    rest[ids[~of_base] - rows] = vectors[~of_base]
                progress.add(len(ids))
    out.flush()
    if rest is not None:
        rest.flush()
    if not seen.all():
        raise DataError(
            f"{files[0].parent}: no vector for {name} {int((~seen).argmax())}; found {int(seen.sum())} of {every}"
        )


def place_queries(path: Path, id_column: str, vector_column: str, dim: int, to: Path) -> NDArray[np.int64]:
    """Write the queries of a file into `to`, npy of float32 (n, dim) in the order of their ids; returns those, (n,).

    Memory holds the file (see `check_sizes`).
    """
    batches = list(_batches(path, id_column, vector_column, dim))
    if not batches:
        raise DataError(f"{path}: holds no queries")
    unordered = np.concatenate([ids for ids, _ in batches])
    order = np.argsort(unordered)
    ids: NDArray[np.int64] = unordered[order]
    if (ids[1:] == ids[:-1]).any():
        raise DataError(f"{path}: an {id_column} occurs twice")
    out = large.npy(to, (len(ids), dim), np.float32)
    out[:] = np.concatenate([vectors for _, vectors in batches])[order]
    out.flush()
    return ids


def place_neighbors(path: Path, id_column: str, column: str, queries: NDArray[np.int64], to: Path) -> None:
    """Write the true neighbours of `queries` (their ids, ascending) into `to`, npy of int64 (n, k), k the shortest
    list's length.

    Read twice, by batches. DataError where the file lacks a query.
    """
    there, shortest = np.zeros(len(queries), dtype=bool), []
    for ids, offsets, _ in _lists_of(path, id_column, column, np.int64):
        place, known = _places(queries, ids)
        there[place[known]] = True
        shortest.append(int(np.diff(offsets).min()))
    if not there.all():
        raise DataError(f"{path}: holds no neighbours for query {int(queries[(~there).argmax()])}")
    k = min(shortest)
    out = large.npy(to, (len(queries), k), np.int64)
    for ids, offsets, values in _lists_of(path, id_column, column, np.int64):
        place, known = _places(queries, ids)
        starts = (offsets[:-1] - offsets[0])[known]
        out[place[known]] = values[starts[:, None] + np.arange(k)]
    out.flush()


def _places(queries: NDArray[np.int64], ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each id stands among the ascending `queries`, and whether it does."""
    place = np.minimum(np.searchsorted(queries, ids), len(queries) - 1)
    return place, queries[place] == ids


def _batches(
    path: Path, id_column: str | None, vector_column: str, dim: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Batches of ids (n,) and vectors (n, dim); without a column of ids, none."""
    for ids, offsets, values in _lists_of(path, id_column, vector_column, np.float32):
        sizes = np.diff(offsets)
        if not sizes[0] or (sizes != sizes[0]).any():
            raise DataError(f"{path}: {vector_column}: vectors of different lengths, or none")
        if sizes[0] != dim:
            raise DataError(f"{path}: holds vectors of dim {sizes[0]}, but the config states {dim}")
        yield ids, values.reshape(len(sizes), -1)


def _lists_of(
    path: Path, id_column: str | None, column: str, dtype: type[np.int64 | np.float32]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]]:
    """Batches of ids (n,), offsets (n + 1,) of n lists, and all their values as one array of `dtype`.

    The first value is at the first offset. Without a column of ids there are none.
    DataError unless each row has an id that is an integer, and a list of numbers (of int64: integers).
    """
    with damage(_DAMAGED, f"{path}: not a Parquet file"):
        # Else all that was read stays in memory until the file is closed.
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    with file, damage(_DAMAGED, f"{path}: damaged Parquet file"):
        names = [name for name in (id_column, column) if name is not None]
        for name in names:
            if name not in file.schema_arrow.names:
                raise DataError(f"{path}: has no column {name!r}; there are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(_BATCH_ROWS, columns=names):
            ids = np.zeros(0, np.int64)
            if id_column is not None:
                ids = _numbers(f"{path}: {id_column}: ", batch.column(id_column), np.int64)
            lists = batch.column(column)
            if pa.types.is_fixed_size_list(lists.type):
                lists = lists.cast(pa.list_(lists.type.value_type))
            if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)) or lists.null_count:
                raise DataError(f"{path}: {column}: {lists.type}, or with gaps, where lists are expected")
            if len(lists):
                values = _numbers(f"{path}: {column}: lists of ", lists.flatten(), dtype)
                yield ids, lists.offsets.to_numpy().astype(np.int64), values


def _numbers(where: str, array: Any, dtype: type[np.int64 | np.float32]) -> NDArray[Any]:
    """An Arrow array as one of `dtype`; DataError unless each is there, and a number (of int64: an integer)."""
    numeric = pa.types.is_integer(array.type) or (dtype is np.float32 and pa.types.is_floating(array.type))
    if not numeric or array.null_count:
        expected = "ids" if dtype is np.int64 else "numbers"
        raise DataError(f"{where}{array.type}, or with gaps, where {expected} are expected")
    if dtype is np.int64:
        array = array.cast(pa.int64())
    plain = array.to_numpy(zero_copy_only=False)
    if dtype is np.float32 and not formats.is_exact(plain):
        raise DataError(f"{where}{array.type}: holds {formats.TOO_WIDE}")
    with np.errstate(over="ignore"):
        numbers: NDArray[Any] = plain.astype(dtype)
    return numbers


def check_sizes(path: Path, id_column: str | None, column: str, rows: int, each: int) -> None:
    """DataError where columns of a row group unpack to more than `rows` rows of lists of `each` values take.

    What its footer says is read by a process of its own: some damage to it ends the process that looks (Arrow 26).
    """
    done = subprocess.run([sys.executable, "-m", __name__, str(path)], capture_output=True, check=False)
    if done.returncode:
        raise DataError(f"{path}: not a Parquet file (its footer can't be read)")
    most = {column: each} if id_column is None else {id_column: 1, column: each}
    sizes: dict[tuple[int, str], tuple[int, int]] = {}
    for group, rows_there, leaf, values, size in json.loads(done.stdout):
        name = next((name for name in most if leaf == name or leaf.startswith(f"{name}.")), None)
        if name is None:
            continue
        before = sizes.get((group, name), (0, 0))
        values, size = sizes[group, name] = before[0] + values, before[1] + size
        if values > min(rows, rows_there) * most[name]:
            raise DataError(
                f"{path}: {name}: {values} values in {rows_there} rows, "
                f"but at most {rows} rows of {most[name]} are allowed"
            )
        if size > _SLACK_BYTES + _VALUE_BYTES * values:
            raise DataError(f"{path}: {name}: {values} values unpack to {size} bytes")


def _footer(path: str) -> list[tuple[int, int, str, int, int]]:
    """Of each row group and leaf column: its number, rows, the leaf's path, values and bytes unpacked."""
    found = []
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for leaf in (group.column(place) for place in range(group.num_columns)):
            sizes = (leaf.num_values, leaf.total_uncompressed_size)
            found.append((number, group.num_rows, leaf.path_in_schema, *sizes))
    return found


if __name__ == "__main__":
    print(json.dumps(_footer(sys.argv[1])))
