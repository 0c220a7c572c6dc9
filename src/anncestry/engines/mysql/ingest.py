"""Load a database of the MySQL protocol."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import SimpleQueue
from typing import Any

import numpy as np
import pymysql
from numpy.typing import NDArray

from anncestry.datasets.payload import NO_PAYLOAD, Column, Payload
from anncestry.engines.base import LoadResult, Server, Spec, Vectors, wait_for
from anncestry.engines.mysql.dialects.base import MARKS, TABLE
from anncestry.engines.mysql.serve import MySQLServer, as_mysql, asker, asking, await_searchable, connect, mark_of
from anncestry.engines.mysql.statements import definitions, literal, number, value
from anncestry.errors import ServerError, UserError
from anncestry.progress import Progress
from anncestry.runtimes.remote import may_replace

_INDEX_TIMEOUT_S = 7 * 24 * 3600.0
_POLL_S = 0.1


def insertion(
    first: int,
    base: NDArray[np.float32],
    category: NDArray[np.uint8],
    price: NDArray[np.float32],
    region: NDArray[np.uint8],
    payload: Sequence[tuple[Column, list[Any]]] = (),
) -> bytes:
    """The insertion of rows `first`, `first` + 1, …: (m, d) vectors and (m,) metadata; of payload columns, the same."""
    columns = zip(category.tolist(), price.tolist(), region.tolist(), *(values for _, values in payload), strict=True)
    rows = (
        b"(%d,%s,%d,%s,%d%s)"
        % (
            *(row, literal(vector), values[0], number(values[1]).encode(), values[2]),
            "".join(f",{value(one)}" for one in values[3:]).encode(),
        )
        for row, (vector, values) in enumerate(zip(base, columns, strict=True), start=first)
    )
    names = ",".join(["id", "v", "category", "price", "region", *(column.stored_as for column, _ in payload)])
    return f"INSERT INTO {TABLE}({names}) VALUES ".encode() + b",".join(rows)


def load(server: Server, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
    """Create, insert by as many connections as the system's settings say, build the index, search once.

    A batch that is refused is counted with all of its rows; one whose answer is lost ends the load.
    """
    mysql = as_mysql(server)
    dim = int(vectors.base.shape[1])
    distance = mysql.dialect.distance(mysql.settings, vectors.metric)
    with asking(mysql) as ask:
        if mysql.mark is not None:
            if may_replace(f"{mysql.dialect.name} (remote)", TABLE, mark_of(mysql)):
                ask(f"DROP TABLE {TABLE}")
            ask(f"DROP TABLE IF EXISTS {MARKS}")
            ask(f"CREATE TABLE {MARKS}(mark VARCHAR(100) PRIMARY KEY)")
            ask(f"INSERT INTO {MARKS} VALUES ('{mysql.mark}')")
        for statement in mysql.dialect.create(dim, definitions(_payload(mysql, vectors).columns)):
            ask(statement)
        ((allowed,),) = ask("SELECT @@max_allowed_packet")
    result = LoadResult()
    with result.phase("insert"):
        _insert(mysql, vectors, load["batch_rows"], int(allowed), result, progress)
    with result.phase("index"), asking(mysql) as ask:
        for statement in mysql.dialect.build(dim, index, mysql.settings, distance):
            ask(statement)
        rows = len(vectors.base)
        wait_for(
            f"{mysql.name}: index",
            lambda: mysql.dialect.await_built(ask, rows) or None,
            mysql,
            _INDEX_TIMEOUT_S,
            _POLL_S,
        )
    with result.phase("ready"):
        mysql.table(afresh=True)
        await_searchable(mysql)
    return result


def _payload(server: MySQLServer, vectors: Vectors) -> Payload:
    """The columns that are loaded: none where nobody can ask about them."""
    return vectors.payload if server.dialect.conditions else NO_PAYLOAD


def _insert(
    server: MySQLServer, vectors: Vectors, batch_rows: int, allowed: int, result: LoadResult, progress: Progress
) -> None:
    rows, workers = len(vectors.base), server.settings.get("insert_connections", 1)
    with ExitStack() as stack:
        free: SimpleQueue[pymysql.Connection[Any]] = SimpleQueue()
        for _ in range(workers):
            free.put(stack.enter_context(closing(connect(server))))

        def batch(first: int) -> tuple[int, str | None]:
            part = slice(first, min(first + batch_rows, rows))
            columns = (vectors.category[part], vectors.price[part], vectors.region[part])
            statement = insertion(first, vectors.base[part], *columns, _payload(server, vectors).part(part))
            if len(statement) >= allowed:
                raise UserError(
                    f"load.batch_rows: {batch_rows} rows are a statement of {len(statement) >> 20} MiB; "
                    f"{server.name} takes {allowed >> 20} MiB (max_allowed_packet)"
                )
            connection = free.get()
            try:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
            except pymysql.err.OperationalError as error:
                if connection.open:
                    return part.stop - first, str(error)
                server.check_alive()
                raise ServerError(f"{server.name}: insertion of rows {first} to {part.stop - 1}: {error}") from None
            except pymysql.err.MySQLError as error:
                return part.stop - first, str(error)
            finally:
                free.put(connection)
            return part.stop - first, None

        with ThreadPoolExecutor(workers) as pool:
            # Results in the order of the rows; not all batches at once: each waits here as bytes.
            for start in range(0, rows, batch_rows * workers * 4):
                window = range(start, min(start + batch_rows * workers * 4, rows), batch_rows)
                for first, (sent, error) in zip(window, pool.map(batch, window), strict=True):
                    result.acknowledge(sent, sent if error else 0, error)
                    progress.at(first + sent)
        asker(server, free.get())("SELECT 1")
