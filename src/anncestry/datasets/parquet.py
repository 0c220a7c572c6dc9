"""Vectors and truth in Parquet files, as VectorDBBench publishes them: read by row groups, placed by their ids.

A row's id is what its id column says, not its place in the file: files come shuffled, and truth speaks of ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anncestry.errors import DataError
from anncestry.progress import Progress

_BATCH_ROWS = 4096
# What Arrow raises on damaged bytes: its own errors, and those of Python that stand for some of them.
_DAMAGED = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError)


def place_vectors(files: Sequence[Path], id_column: str, vector_column: str, rows: int, dim: int, to: Path) -> None:
    """Write the vectors of all files into `to`, an npy of float32 (rows, dim) whose row i is the vector of id i.

    DataError unless the ids are exactly 0 … rows − 1, each once, and every vector has `dim` numbers.
    """
    out = np.lib.format.open_memmap(to, mode="w+", dtype=np.float32, shape=(rows, dim))
    seen = np.zeros(rows, dtype=bool)
    with Progress(f"place {to.stem} by id", rows, "rows") as progress:
        for path in files:
            for ids, vectors in _batches(path, id_column, vector_column):
                if vectors.shape[1] != dim:
                    raise DataError(f"{path}: holds vectors of dim {vectors.shape[1]}, where the config states {dim}")
                out_of_range = (ids < 0) | (ids >= rows)
                if out_of_range.any():
                    raise DataError(f"{path}: {id_column} {ids[out_of_range][0]} is not within the {rows} rows stated")
                if len(np.unique(ids)) != len(ids) or seen[ids].any():
                    raise DataError(f"{path}: an {id_column} is there twice")
                seen[ids] = True
                out[ids] = vectors
                progress.add(len(ids))
    out.flush()
    if not seen.all():
        raise DataError(
            f"{files[0].parent}: no vector of {id_column} {int((~seen).argmax())}; {int(seen.sum())} of {rows}"
        )


def place_queries(path: Path, id_column: str, vector_column: str, to: IO[bytes]) -> NDArray[np.int64]:
    """Write the queries of a file into `to`, npy of float32 (n, dim) in the order of their ids; returns those, (n,)."""
    parts = list(_batches(path, id_column, vector_column))
    if not parts:
        raise DataError(f"{path}: holds no queries")
    ids = np.concatenate([ids for ids, _ in parts])
    order = np.argsort(ids, kind="stable")
    if len(np.unique(ids)) != len(ids):
        raise DataError(f"{path}: an {id_column} is there twice")
    np.save(to, np.concatenate([vectors for _, vectors in parts])[order])
    return ids[order]


def place_neighbors(path: Path, id_column: str, column: str, queries: NDArray[np.int64], to: IO[bytes]) -> None:
    """Write the true neighbours of `queries` (their ids) into `to`, npy of int64 (n, k), k the shortest list's length.

    DataError where the file lacks a query.
    """
    table = _read(path, [id_column, column])
    ids = _ids(path, id_column, table[id_column].combine_chunks())
    offsets, values = _lists(path, column, table[column].combine_chunks())
    if not pa.types.is_integer(values.type) or values.null_count:
        raise DataError(f"{path}: {column}: lists of {values.type}, or with gaps, where ids are expected")
    sizes = np.diff(offsets)
    place = {int(query): row for row, query in enumerate(ids)}
    missing = [int(query) for query in queries if int(query) not in place]
    if missing or not len(sizes):
        raise DataError(f"{path}: holds no neighbours of query {missing[0] if missing else 0}")
    k = int(sizes.min())
    starts, flat = offsets[:-1] - offsets[0], values.to_numpy()
    np.save(to, np.array([flat[(at := starts[place[int(query)]]) : at + k] for query in queries], dtype=np.int64))


def _batches(path: Path, id_column: str, vector_column: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    with _opened(path, [id_column, vector_column]) as file:
        try:
            for batch in file.iter_batches(_BATCH_ROWS, columns=[id_column, vector_column]):
                ids = _ids(path, id_column, batch.column(id_column))
                offsets, values = _lists(path, vector_column, batch.column(vector_column))
                sizes = np.diff(offsets)
                if not len(sizes):
                    continue
                if not sizes[0] or (sizes != sizes[0]).any():
                    raise DataError(f"{path}: {vector_column}: vectors of different lengths, or none")
                if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)) or values.null_count:
                    raise DataError(f"{path}: {vector_column}: {values.type}, or with gaps, where numbers are expected")
                with np.errstate(over="ignore"):
                    flat = values.to_numpy(zero_copy_only=False).astype(np.float32)
                yield ids, flat.reshape(len(sizes), -1)
        except _DAMAGED as error:
            raise DataError(f"{path}: damaged Parquet file ({_first_line(error)})") from None


def _read(path: Path, columns: list[str]) -> Any:
    with _opened(path, columns) as file:
        try:
            return file.read(columns)
        except _DAMAGED as error:
            raise DataError(f"{path}: damaged Parquet file ({_first_line(error)})") from None


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


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _opened(path: Path, columns: Sequence[str]) -> Any:
    try:
        file = pq.ParquetFile(path)
    except _DAMAGED as error:
        raise DataError(f"{path}: not a Parquet file ({_first_line(error)})") from None
    for column in columns:
        if column not in file.schema_arrow.names:
            file.close()
            raise DataError(f"{path}: has no column {column!r}; there are {', '.join(file.schema_arrow.names)}")
    return file
