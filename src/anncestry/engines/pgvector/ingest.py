"""Loading: COPY in binary, then the index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from anncestry.datasets.payload import Column
from anncestry.engines.base import LoadResult, Server, Spec, Vectors
from anncestry.engines.pgvector import INDEX
from anncestry.engines.pgvector.serve import OPERATORS, TABLE, WHERE, PgvectorServer, as_pgvector, mark_of, search_once
from anncestry.progress import Progress
from anncestry.runtimes import remote

_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
_COLUMNS = (("id", ">i8"), ("category", ">i2"), ("price", ">f4"), ("region", ">i2"))


_TYPES = {"keyword": "text", "int": "bigint", "float": "double precision"}


def copy_data(
    first: int,
    base: NDArray[np.float32],
    category: Any,
    price: Any,
    region: Any,
    payload: Sequence[tuple[Column, list[Any]]] = (),
) -> bytes:
    """Rows as COPY BINARY has them: the number of fields, then each with its length; a vector with its dimensions."""
    rows, dim = base.shape
    fields: list[Any] = [("fields", ">i2")]
    for name, kind in _COLUMNS:
        fields += [(f"{name}_length", ">i4"), (name, kind)]
    fields += [("vector_length", ">i4"), ("dim", ">i2"), ("unused", ">i2"), ("vector", ">f4", (dim,))]
    table = np.zeros(rows, np.dtype(fields))
    table["fields"] = len(_COLUMNS) + 1 + len(payload)
    values = {"id": np.arange(first, first + rows), "category": category, "price": price, "region": region}
    for name, kind in _COLUMNS:
        table[f"{name}_length"], table[name] = np.dtype(kind).itemsize, values[name]
    table["vector_length"], table["dim"], table["vector"] = 4 + 4 * dim, dim, base
    if not payload:
        return _SIGNATURE + table.tobytes() + _TRAILER
    more = [[_field(column.kind, value) for value in values] for column, values in payload]
    parts = (part for row in zip(table, *more, strict=True) for part in (row[0].tobytes(), *row[1:]))
    return _SIGNATURE + b"".join(parts) + _TRAILER


def _field(kind: str, value: Any) -> bytes:
    data = value.encode() if kind == "keyword" else struct.pack(">q" if kind == "int" else ">d", value)
    return struct.pack(">i", len(data)) + data


def definition(index: Spec, operators: str) -> str:
    """The statement that builds the index."""
    method, options = "hnsw", f"m = {int(index.get('M', 0))}, ef_construction = {int(index.get('ef_construction', 0))}"
    if index["type"] == "ivf_flat":
        method, options = "ivfflat", f"lists = {int(index['nlist'])}"
    return f"CREATE INDEX {INDEX} ON items USING {method} (embedding {operators}) WITH ({options})"


def _checkpoint(pgvector: PgvectorServer) -> None:
    """Have all of it written. Of somebody else's server that is not ours to ask for."""
    if pgvector.mark is None:
        pgvector.ask("CHECKPOINT")


def load(server: Server, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
    """Create the table, insert in batches, settle it, build the index, search once."""
    pgvector, result = as_pgvector(server), LoadResult()
    rows, dim = vectors.base.shape
    _, operators = OPERATORS[vectors.metric]
    if pgvector.mark is not None and remote.may_replace(WHERE, TABLE, mark_of(pgvector)):
        pgvector.ask("DROP TABLE items")
    more = "".join(f", {column.stored_as} {_TYPES[column.kind]}" for column in vectors.payload.columns)
    pgvector.ask(
        f"CREATE TABLE items (id bigint PRIMARY KEY, category smallint, price real, region smallint, "
        f"embedding vector({dim}){more})".encode()
    )
    if pgvector.mark is not None:
        pgvector.ask(f"COMMENT ON TABLE items IS '{pgvector.mark}'".encode())
    with result.phase("insert"), pgvector.connect() as connection:
        for first in range(0, rows, load["batch_rows"]):
            part = slice(first, first + load["batch_rows"])
            base = vectors.base[part]
            columns = (vectors.category[part], vectors.price[part], vectors.region[part])
            data = copy_data(first, base, *columns, vectors.payload.part(part))
            try:
                with connection.cursor().copy("COPY items FROM STDIN (FORMAT BINARY)") as copy:
                    copy.write(data)
                result.acknowledge(len(base), 0, None)
            except psycopg.Error as error:
                pgvector.check_alive()
                result.acknowledge(len(base), len(base), " ".join(str(error).split()))
            progress.at(result.rows_sent)
    with result.phase("flush"):
        pgvector.ask("VACUUM (ANALYZE) items")
        _checkpoint(pgvector)
    with result.phase("index"):
        pgvector.ask(definition(index, operators).encode())
        _checkpoint(pgvector)
    with result.phase("ready"):
        search_once(pgvector)
    return result
