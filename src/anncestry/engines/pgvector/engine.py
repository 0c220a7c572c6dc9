"""pgvector at run time: loaded, asked and read back; `serve` starts it, `wire` makes bytes of rows and searches."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from anncestry.engines.base import Batch, Component, EngineOf, LoadResult, Probe, Spec, Vectors, components, listed
from anncestry.engines.pgvector import INDEXES, REMOTE_SETTINGS, serve, wire
from anncestry.engines.pgvector.serve import EFFORTS, INDEX, OPERATORS, PLAN, PgvectorServer
from anncestry.errors import ServerError
from anncestry.progress import Progress

_FIRST_OF_USERS = 16384
_OPTIONS = {"M": "m", "ef_construction": "ef_construction", "nlist": "lists"}
"""Our name of a parameter → pgvector's."""
_TYPES = {"keyword": "text", "int": "bigint", "float": "double precision"}
"""Kind of a payload column → its type."""


def definition(index: Spec, operators: str) -> str:
    """The statement that builds the index."""
    method, options = "hnsw", f"m = {int(index.get('M', 0))}, ef_construction = {int(index.get('ef_construction', 0))}"
    if index["type"] == "ivf_flat":
        method, options = "ivfflat", f"lists = {int(index['nlist'])}"
    return f"CREATE INDEX {INDEX} ON items USING {method} (embedding {operators}) WITH ({options})"


class Pgvector(EngineOf[PgvectorServer]):
    narrows = True

    start = staticmethod(serve.start)

    def load(self, server: PgvectorServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the table, insert in batches, settle it, build the index, search once."""
        result = LoadResult()
        dim = vectors.base.shape[1]
        server.make_room()
        more = "".join(f", {column.stored_as} {_TYPES[column.kind]}" for column in vectors.payload.columns)
        server.ask(
            f"CREATE TABLE items (id bigint PRIMARY KEY, category smallint, price real, region smallint, "
            f"embedding vector({dim}){more})".encode()
        )
        if server.mark is not None:
            server.ask(f"COMMENT ON TABLE items IS '{server.mark}'".encode())

        with (
            self.encoded(server, vectors, load, result) as requests,
            server.connect() as connection,
            result.phase("insert"),
        ):
            for ids, data in requests:
                try:
                    with connection.cursor().copy("COPY items FROM STDIN (FORMAT BINARY)") as copy:
                        copy.write(data)
                    result.acknowledge(len(ids), 0, None)
                except psycopg.Error as error:
                    server.check_alive()
                    result.acknowledge(len(ids), len(ids), " ".join(str(error).split()))
                progress.at(result.rows_sent)
        with result.phase("flush"):
            server.ask("VACUUM (ANALYZE) items")
        with result.phase("index"):
            server.ask(definition(index, OPERATORS[vectors.metric][1]).encode())
        with result.phase("ready"):
            server.search_once()
        result.durability = "not ours to ask: a CHECKPOINT is for the whole server, which is somebody else's"
        if server.mark is None:
            server.ask("CHECKPOINT")
            result.durable("CHECKPOINT: rows and index in their files, synced; before that in the log, synced")
        return result

    def encode_insert(self, server: PgvectorServer, rows: Batch) -> bytes:
        return wire.copy_data(rows)

    def await_open(self, server: PgvectorServer, index: Spec) -> None:
        server.search_once()

    def probe(self, server: PgvectorServer) -> Probe:
        # Among its settings those that were asked for, and every one that is not PostgreSQL's default.
        metric = server.metric()
        with server.connect() as fresh:

            def one(statement: str) -> Any:
                row = fresh.execute(statement.encode()).fetchone()
                assert row is not None, statement
                return row[0]

            options = dict(
                option.split("=") for option in one(f"SELECT reloptions FROM pg_class WHERE relname = '{INDEX}'")
            )
            valid = one(f"SELECT indisvalid AND indisready FROM pg_index WHERE indexrelid = '{INDEX}'::regclass")
            entries = int(one(f"SELECT reltuples FROM pg_class WHERE relname = '{INDEX}'"))
            names = [
                name for (name,) in fresh.execute("SELECT name FROM pg_settings WHERE source <> 'default'").fetchall()
            ]
            settings: dict[str, Any] = {name: str(one(f"SHOW {name}")) for name in (*names, *server.asked)}
            kind = serve.index_type(fresh)
            effort, name = EFFORTS[kind]
            settings.update(
                {ours: int(options[theirs]) for ours, theirs in _OPTIONS.items() if theirs in options},
                index_type=kind,
                metric=metric,
                plan=serve.plan_of(fresh, OPERATORS[metric][0]),
                server_version=one("SHOW server_version"),
            )
            settings[effort] = int(one(f"SHOW {name}"))
            version = str(one("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
            rows = int(one("SELECT count(*) FROM items"))
        whole = bool(valid) and entries == int(np.float32(rows))  # PostgreSQL counts them in a float4
        return Probe(version, rows, whole, f"{entries} entries, valid: {valid}", settings, 1, 1, 1)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        settings: Mapping[str, Any] = system.get("settings") or {}
        asked = {
            "index_type": index["type"],
            "metric": metric,
            **{name: index[name] for name in INDEXES[index["type"]]},
            "plan": PLAN,
            **{name: str(value) for name, value in settings.items() if name not in REMOTE_SETTINGS},
        }
        return asked if ef_search is None else {**asked, EFFORTS[index["type"]][0]: ef_search}

    def data_components(self, data_dir: Path) -> list[Component]:
        # Table and index are files of one database, whose number is PostgreSQL's own; numbers of files below 16384 are
        # those of its catalogues (FirstNormalObjectId).
        files = sorted(path.name for path in (data_dir / "pg" / "data" / "base" / "5").glob("[0-9]*"))
        ours = [name for name in files if int(re.split(r"\D", name)[0]) >= _FIRST_OF_USERS]
        return components(
            data_dir,
            [
                ("database", True, [f"pg/data/base/5/{name}" for name in ours]),
                ("wal", False, ["pg/data/pg_wal"]),
                ("catalogues", False, ["pg/data/base/1", "pg/data/base/4", "pg/data/global"]),
                ("logs", False, ["logs"]),
                ("config", False, ["pg/data/*.conf", "ports.json"]),
            ],
        )

    def apply(self, server: PgvectorServer, ef_search: int) -> None:
        with server.connect() as fresh:
            _, name = EFFORTS[serve.index_type(fresh)]
            # The library that knows the name is loaded by its first use.
            server.set_for_all(f"SET {name} = {int(ef_search)}")
        with server.connect() as fresh:
            row = fresh.execute(f"SHOW {name}".encode()).fetchone()
        if row != (str(ef_search),):
            raise ServerError(f"{name}: {row} after it was set to {ef_search}")

    def exact_filters(self, server: PgvectorServer, on: bool) -> None:
        for name, exact in (("enable_indexscan", "off"), ("enable_seqscan", "on")):
            server.set_for_all(f"SET {name} = {exact}" if on else f"RESET {name}")
        if server.mark is not None and not on:
            server.set_for_all("SET enable_seqscan = off")  # what a server of our own is started with

    def count(self, server: PgvectorServer, filter: Spec | None) -> int:
        statement = f"SELECT count(*) FROM items{serve.condition(filter)}"
        return int(server.ask(statement.encode())[0][0])

    def encode(
        self, server: PgvectorServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        statement = _search(server.metric(), k, filter)
        number = server.statements.setdefault(statement, len(server.statements))
        return [wire.bind(number, query) for query in queries]

    def transport(self, server: PgvectorServer) -> dict[str, Any]:
        return self._prepared(server, server.statements)

    def transport_of(self, server: PgvectorServer, k: int, filters: Sequence[Spec | None]) -> dict[str, Any]:
        # A server process holds what it has prepared: no other workload's searches.
        metric = server.metric()
        return self._prepared(server, {_search(metric, k, filter) for filter in filters})

    def _prepared(self, server: PgvectorServer, wanted: Collection[str]) -> dict[str, Any]:
        """Statements keep their numbers; those that are not `wanted` are empty, and not prepared."""
        prepared = {"prepare": [text if text in wanted else "" for text in server.statements], "raw": True}
        return server.sql_transport(kind="postgres", user=server.user, database=server.database, **prepared)

    decode = staticmethod(wire.decode)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        settings, effort = system.get("settings") or {}, EFFORTS[index["type"]][1]
        built = (
            f"m={index['M']} (2m at the bottom layer), ef_construction={index['ef_construction']}"
            if index["type"] == "hnsw"
            else f"lists={index['nlist']}, trained on the rows"
        )
        scans = f"{effort.partition('.')[0]}.iterative_scan"
        return {
            "query protocol": "PostgreSQL's extended protocol: a prepared statement, the vector and the answer as "
            "binary",
            "insert protocol": "COPY, binary, one transaction a batch, one connection",
            "HNSW" if index["type"] == "hnsw" else "IVFFlat": f"{built}; after the load",
            "ef applies to": f"the one index; a setting of the database ({effort}), changed between runs",
            "filters": f"applied to what the index returns (no index on category, price or payload), with {scans}="
            f"{settings.get(scans, 'default (off)')}; no sequential scans",
            "consistency": "one server: there is nothing to wait for",
            "durability": "a batch is acknowledged after an fsync of the write-ahead log",
            "clients": "a server process each",
            "vectors": "stored as PostgreSQL does by default: those of more than 2 kB apart from their row (TOAST)",
            "set by the system": listed(settings),
            "set by anncestry": "enable_seqscan=off and scans of the index for its own account; VACUUM (ANALYZE) after "
            "the rows; all else is whose server it is"
            if topology["runtime"] == "remote"
            else "paths, port, loopback; enable_seqscan=off; VACUUM (ANALYZE) after the rows, CHECKPOINT at the end",
            "left at defaults": "planner, autovacuum, jit, checkpoints, caches that no setting names",
        }


def _search(metric: str, k: int, filter: Spec | None) -> str:
    far = f"embedding {OPERATORS[metric][0]} $1"
    return f"SELECT id, {far} FROM items{serve.condition(filter)} ORDER BY {far} LIMIT {int(k)}"


ENGINE = Pgvector()
