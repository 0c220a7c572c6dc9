"""The databases of the MySQL protocol at run time: loaded, asked and read back; `serve` starts them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pymysql
from numpy.typing import NDArray

from anncestry.datasets.payload import NO_PAYLOAD
from anncestry.engines.base import (
    Answer,
    Batch,
    Component,
    EngineOf,
    LoadResult,
    Probe,
    Requests,
    Spec,
    Vectors,
    batch_rows,
    components,
    wait_for,
)
from anncestry.engines.mysql import dialect_of, serve, wire
from anncestry.engines.mysql.dialect import MARKS, TABLE
from anncestry.engines.mysql.serve import MySQLServer
from anncestry.errors import ServerError, UserError
from anncestry.progress import Progress

_INDEX_TIMEOUT_S = 7 * 24 * 3600.0
_DURABLE_TIMEOUT_S = 3600.0
_POLL_S = 0.1


class MySQL(EngineOf[MySQLServer]):
    """One server, of the dialect that the system names."""

    exact_scans = True
    plain_hnsw = False
    narrows = True

    start = staticmethod(serve.start)

    def load(self, server: MySQLServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create, insert by as many connections as the system's settings say, build the index, search once.

        A batch that is refused is counted with all of its rows; one whose answer is lost ends the load.
        """
        dim = int(vectors.base.shape[1])
        distance = server.dialect.distance(server.settings, vectors.metric)
        server.dialect.check_fits(dim, index, server.settings)
        payload = vectors.payload if server.dialect.conditions else NO_PAYLOAD  # none where nobody can ask about it
        server.make_room()
        with serve.asking(server) as ask:
            if server.mark is not None:
                ask(f"DROP TABLE IF EXISTS {MARKS}")
                ask(f"CREATE TABLE {MARKS}(mark VARCHAR(100) PRIMARY KEY)")
                ask(f"INSERT INTO {MARKS} VALUES ('{server.mark}')")
            ask(server.dialect.create(dim, wire.definitions(payload.columns)))
            ((allowed,),) = ask("SELECT @@max_allowed_packet")
        result = LoadResult()
        with self.encoded(server, vectors, load, result) as requests:
            if requests.longest >= allowed:
                raise UserError(
                    f"load.batch_rows: {batch_rows(vectors, load)} rows are a statement of "
                    f"{requests.longest >> 20} MiB; {server.name} takes {int(allowed) >> 20} MiB (max_allowed_packet)"
                )
            with result.phase("insert"):
                _insert(server, requests, result, progress)
        with result.phase("index"), serve.asking(server) as ask:
            for statement in server.dialect.build(dim, index, server.settings, distance):
                ask(statement)
            rows = len(vectors.base)
            built = partial(server.dialect.await_built, ask, rows)
            wait_for(f"{server.name}: index", lambda: built() or None, server, _INDEX_TIMEOUT_S, _POLL_S)
        with result.phase("ready"):
            server.table(afresh=True)
            serve.await_searchable(server)
        result.durability = "not ours to ask of somebody else's server"
        if server.mark is None:
            with serve.asking(server) as ask:
                done = server.dialect.persist(ask)
                wait_for(f"{server.name}: durable", lambda: done() or None, server, _DURABLE_TIMEOUT_S, _POLL_S)
            result.durable(server.dialect.durability)
        return result

    def encode_insert(self, server: MySQLServer, rows: Batch) -> bytes:
        return wire.insertion(rows if server.dialect.conditions else replace(rows, payload=()))

    def await_open(self, server: MySQLServer, index: Spec) -> None:
        serve.await_searchable(server)

    def probe(self, server: MySQLServer) -> Probe:
        dialect, table = server.dialect, server.table(afresh=True)
        with serve.asking(server) as ask:
            version = dialect.version(ask)
            complete, detail = serve.complete(dialect, ask)
            effective = dialect.effective(ask)
        used, said = serve.plan(server, serve.any_search(server))
        settings = {
            "index_type": "hnsw",
            "metric": "l2" if table.distance == "l2" else "cosine",
            "plan": "vector index" if used else said,
            **table.described,
            **effective,
            "ef_search": serve.session_ef(server),
        }
        return Probe(version, self.count(server, None), complete, detail, settings, nodes=1, shards=1, replicas=1)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        # `plan` is what EXPLAIN says of a search: one that scans is no search.
        dialect, settings = dialect_of(system), system.get("settings") or {}
        asked: dict[str, Any] = {
            "index_type": index["type"],
            "metric": metric,
            "M": index["M"],
            "quantizer": index.get("quantizer", "none"),
            "distance": dialect.distance(settings, metric),
            "plan": "vector index",
        }
        if dialect.has_ef_construction:
            asked["ef_construction"] = index["ef_construction"]
        asked |= {name: settings[name] for name in dialect.numbers if name in settings and name in dialect.read_back}
        return asked if ef_search is None else {**asked, "ef_search": ef_search}

    def data_components(self, data_dir: Path) -> list[Component]:
        # seekdb keeps all tables in one file; of MariaDB a table and its index are files.
        return components(
            data_dir,
            [
                ("tables_and_indexes", True, ["store/sstable", "data/test"]),
                ("redo_log", False, ["store/redo", "store/slog", "data/ib_logfile*", "data/undo*", "data/aria_log*"]),
                ("system_tables", False, ["data/ibdata*", "data/mysql", "data/performance_schema", "data/sys"]),
                ("logs", False, ["log", "logs"]),
                ("config", False, ["etc", "run", "kept.json"]),
            ],
        )

    def apply(self, server: MySQLServer, ef_search: int) -> None:
        server.ef_search = ef_search
        said = serve.session_ef(server)
        if said != ef_search:
            raise ServerError(f"{server.name}: {server.dialect.ef_variable} is {said} after it was set to {ef_search}")

    def exact_filters(self, server: MySQLServer, on: bool) -> None:
        server.exact = on

    def count(self, server: MySQLServer, filter: Spec | None) -> int:
        condition = wire.where(filter)
        with serve.asking(server) as ask:
            ((rows,),) = ask(f"SELECT COUNT(*) FROM {TABLE}" + (f" WHERE {condition}" if condition else ""))
        return int(rows)

    def encode(
        self, server: MySQLServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        # ef is a variable of the connection: see `transport`. MariaDB would answer queries of another length than the
        # column's, with arbitrary rows; and each would scan for a search for which it doesn't use its index.
        table = server.table()
        if queries.shape[1] != table.dim:
            raise UserError(
                f"{server.name}: queries of {queries.shape[1]} numbers, the column holds vectors of {table.dim}"
            )
        condition, exact = wire.where(filter), server.exact and filter is not None
        statements = [
            server.dialect.search(wire.literal(query), table.distance, k, condition, exact) for query in queries
        ]
        if statements and (filter is None or exact):
            serve.check_plan(server, statements[0], exact)
        return statements

    def transport(self, server: MySQLServer) -> dict[str, Any]:
        return server.sql_transport(
            kind="mysql",
            user=server.user_of(reader=True),
            database=server.database,
            init=server.dialect.session(server.ef_search),
        )

    def decode(self, response: bytes, metric: str) -> Answer:
        return wire.decode(response)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        dialect, settings = dialect_of(system), system.get("settings") or {}
        connections = settings.get("insert_connections", 1)
        return {
            "query protocol": "MySQL's text protocol, a connection a client, one statement a query; the vector in it "
            "as float32 bytes (_binary '…'); ids and distances are returned",
            "insert protocol": f"INSERT of many rows, float32 bytes; {connections} connection(s), each the next batch "
            "after the acknowledgement; committed one by one",
            "ef applies to": f"the one graph of the table; {dialect.ef_variable} of each connection",
            "segments": "one table, one graph, built after the load",
            "clients ask": "the one node",
            "consistency": "one copy: there is nothing to wait for",
            "set by the system": ", ".join(f"{name}={value}" for name, value in settings.items()),
            "left at defaults": "everything else",
            **dialect.fairness(settings, index),
        }


def _insert(server: MySQLServer, requests: Requests, result: LoadResult, progress: Progress) -> None:
    workers = server.settings.get("insert_connections", 1)
    with ExitStack() as stack:
        free: SimpleQueue[pymysql.Connection[Any]] = SimpleQueue()
        for _ in range(workers):
            free.put(stack.enter_context(closing(serve.connect(server))))

        def insert(number: int) -> tuple[int, str | None]:
            ids, statement = requests[number]
            connection = free.get()
            try:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
            except pymysql.err.OperationalError as error:
                if connection.open:
                    return len(ids), str(error)
                server.check_alive()
                raise ServerError(f"{server.name}: insertion of rows {ids[0]} to {ids[-1]}: {error}") from None
            except pymysql.err.MySQLError as error:
                return len(ids), str(error)
            finally:
                free.put(connection)
            return len(ids), None

        with ThreadPoolExecutor(workers) as pool:
            for sent, error in pool.map(insert, range(len(requests))):  # results in the order of the rows
                result.acknowledge(sent, sent if error else 0, error)
                progress.at(result.rows_sent)
        serve.asker(server, free.get())("SELECT 1")


ENGINE = MySQL()
