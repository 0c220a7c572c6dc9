"""Vectors and truth in Parquet files, as VectorDBBench publishes them: read by row groups, placed by their ids.

A row's id is what its id column says, not its place in the file: files come shuffled, and truth speaks of ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anncestry import large
from anncestry.datasets.formats import K_MAX
from anncestry.errors import DataError, damage
from anncestry.progress import Progress

_BATCH_ROWS = 4096
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
            for found, vectors in _batches(path, id_column, vector_column, every, dim):
                ids = np.arange(place, place + len(vectors)) if id_column is None else found
                place += len(vectors)
                out_of_range = (ids < 0) | (ids >= every)
                if out_of_range.any():
                    raise DataError(f"{path}: {name} {ids[out_of_range][0]} is not within the {every} rows stated")
                if len(np.unique(ids)) != len(ids) or seen[ids].any():
                    raise DataError(f"{path}: an {name} is there twice")
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
        raise DataError(f"{files[0].parent}: no vector of {name} {int((~seen).argmax())}; {int(seen.sum())} of {every}")


def place_queries(
    path: Path, id_column: str, vector_column: str, queries: int, dim: int, to: Path
) -> NDArray[np.int64]:
    """Write the queries of a file into `to`, npy of float32 (n, dim) in the order of their ids; returns those, (n,).

    Read twice, by batches: for the ids, and for the vectors. DataError for more than `queries`.
    """
    parts = [ids for ids, _ in _batches(path, id_column, vector_column, queries, dim)]
    if not parts:
        raise DataError(f"{path}: holds no queries")
    ids = np.sort(np.concatenate(parts))
    if (ids[1:] == ids[:-1]).any():
        raise DataError(f"{path}: an {id_column} is there twice")
    out = large.npy(to, (len(ids), dim), np.float32)
    for found, vectors in _batches(path, id_column, vector_column, queries, dim):
        out[np.searchsorted(ids, found)] = vectors
    out.flush()
    return ids


def place_neighbors(path: Path, id_column: str, column: str, queries: NDArray[np.int64], to: Path) -> None:
    """Write the true neighbours of `queries` (their ids, ascending) into `to`, npy of int64 (n, k), k the shortest
    list's length.

    Read twice, by batches. DataError where the file lacks a query.
    """
    there, k = np.zeros(len(queries), dtype=bool), None
    for ids, offsets, _ in _lists_of(path, id_column, column, len(queries)):
        sizes, (_, known) = np.diff(offsets), _places(queries, ids)
        there[_places(queries, ids)[0][known]] = True
        k = min([int(sizes.min()), *([] if k is None else [k])])
    if k is None or not there.all():
        raise DataError(f"{path}: holds no neighbours of query {int(queries[(~there).argmax()])}")
    out = large.npy(to, (len(queries), k), np.int64)
    for ids, offsets, values in _lists_of(path, id_column, column, len(queries)):
        place, known = _places(queries, ids)
        starts = (offsets[:-1] - offsets[0])[known]
        out[place[known]] = values[starts[:, None] + np.arange(k)]
    out.flush()


def _places(queries: NDArray[np.int64], ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each id stands among the ascending `queries`, and whether it does."""
    place = np.minimum(np.searchsorted(queries, ids), len(queries) - 1)
    return place, queries[place] == ids


def _lists_of(
    path: Path, id_column: str, column: str, queries: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Batches of ids (n,), offsets (n + 1,) and the values of n lists of ids."""
    with _opened(path, id_column, column, queries, K_MAX) as batches:
        for batch in batches:
            ids = _ids(path, id_column, batch.column(id_column))
            offsets, values = _lists(path, column, batch.column(column))
            if not pa.types.is_integer(values.type) or values.null_count:
                raise DataError(f"{path}: {column}: lists of {values.type}, or with gaps, where ids are expected")
            if len(ids):
                yield ids, offsets.astype(np.int64), values.cast(pa.int64()).to_numpy()


def _batches(
    path: Path, id_column: str | None, vector_column: str, rows: int, dim: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Batches of ids (n,) and vectors (n, dim), of at most `rows`; without a column of ids, none."""
    with _opened(path, id_column, vector_column, rows, dim) as batches:
        for batch in batches:
            ids = np.zeros(0, np.int64) if id_column is None else _ids(path, id_column, batch.column(id_column))
            offsets, values = _lists(path, vector_column, batch.column(vector_column))
            sizes = np.diff(offsets)
            if not len(sizes):
                continue
            if not sizes[0] or (sizes != sizes[0]).any():
                raise DataError(f"{path}: {vector_column}: vectors of different lengths, or none")
            if sizes[0] != dim:
                raise DataError(f"{path}: holds vectors of dim {sizes[0]}, where the config states {dim}")
            if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)) or values.null_count:
                raise DataError(f"{path}: {vector_column}: {values.type}, or with gaps, where numbers are expected")
            with np.errstate(over="ignore"):
                flat = values.to_numpy(zero_copy_only=False).astype(np.float32)
            yield ids, flat.reshape(len(sizes), -1)


def _ids(path: Path, column: str, array: Any) -> NDArray[np.int64]:
    """A column of ids as int64; DataError unless each is there and an integer."""
    if not pa.types.is_integer(array.type) or array.null_count:
        raise DataError(f"{path}: {column}: {array.type}, or with gaps, where ids are expected")
    ids: NDArray[np.int64] = array.cast(pa.int64()).to_numpy()
    return ids


def _lists(path: Path, column: str, array: Any) -> tuple[NDArray[Any], Any]:
    """Offsets (n + 1,) of a column of n lists, and all their values as one array, of which the first is at offset 0
    less the first offset; DataError unless each row has a list."""
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)) or array.null_count:
        raise DataError(f"{path}: {column}: {array.type}, or with gaps, where lists are expected")
    return array.offsets.to_numpy(), array.flatten()


@contextmanager
def _opened(path: Path, id_column: str | None, column: str, rows: int, each: int) -> Iterator[Iterator[Any]]:
    """Batches of a column of lists, `each` values long at the most, of about `rows` rows, and of their ids."""
    columns = {column: each} if id_column is None else {id_column: 1, column: each}
    with damage(_DAMAGED, f"{path}: not a Parquet file"):
        file = pq.ParquetFile(path)
    with file, damage(_DAMAGED, f"{path}: damaged Parquet file"):
        for name, most in columns.items():
            if name not in file.schema_arrow.names:
                raise DataError(f"{path}: has no column {name!r}; there are {', '.join(file.schema_arrow.names)}")
            for number in range(file.metadata.num_row_groups):
                _require_bounded(path, file.metadata.row_group(number), name, rows, most)
        yield file.iter_batches(_BATCH_ROWS, columns=list(columns))


def _require_bounded(path: Path, group: Any, name: str, rows: int, each: int) -> None:
    """DataError where a column of a row group unpacks to more than so many rows of so many values take."""
    leaves = [group.column(number) for number in range(group.num_columns)]
    leaves = [leaf for leaf in leaves if leaf.path_in_schema == name or leaf.path_in_schema.startswith(f"{name}.")]
    values = sum(leaf.num_values for leaf in leaves)
    if values > min(rows, group.num_rows) * each:
        raise DataError(
            f"{path}: {name}: {values} values in {group.num_rows} rows, where {rows} rows of {each} are the most"
        )
    if (size := sum(leaf.total_uncompressed_size for leaf in leaves)) > _SLACK_BYTES + _VALUE_BYTES * values:
        raise DataError(f"{path}: {name}: {values} values unpack to {size} bytes")
