"""Start, ask, stop a database of the MySQL protocol."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymysql

from anncestry import redact
from anncestry.engines.base import Server, Spec, wait_for
from anncestry.engines.mysql import dialect_of
from anncestry.engines.mysql.dialect import MARKS, READER, TABLE, Ask, Dialect, found
from anncestry.engines.mysql.wire import literal
from anncestry.engines.native import address_for_others, runner_for, start_native, take_remote
from anncestry.errors import ServerError
from anncestry.runtimes import credentials, remote, tls
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment
from anncestry.web import host_and_port

_CONNECT_S = 10
_ANSWER_BYTES = 512 << 20
_STATEMENT_S = 7 * 24 * 3600
"""An index may take days: what a statement may take is for who sends it to say, not for its connection."""
_OPEN_TIMEOUT_S = 600.0
_TERM_WAIT_S = 120.0
_BOOKS_S = 60.0
"""seekdb brings its table of vector indexes up to date every ten seconds."""
_POLL_S = 0.1
_PASSWORD, _SECURED = "password", "secured"
_EF_AT_FIRST = 64


@dataclass(frozen=True)
class Table:
    """The one table: the length of its vectors, and what its index compares them by."""

    dim: int
    distance: str
    described: Mapping[str, Any]


class MySQLServer(Server):
    """One server; `ef_search` and `exact` are what its next searches are made with."""

    collection = TABLE
    interface = "mysql"

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology)
        self.dialect: Dialect = dialect_of(system)
        self.name = f"{self.dialect.name} {system['version']}"
        self.settings: Spec = system.get("settings") or {}
        self.ef_search = _EF_AT_FIRST
        self.exact = False
        self._table: Table | None = None

    @property
    def user(self) -> str:
        """The account that makes and loads the table."""
        return str(self.settings.get("user", "root"))

    def user_of(self, reader: bool) -> str:
        """The same; or, on a server of our own, the one that queries use: it may only read."""
        return READER if reader and self.mark is None else self.user

    @property
    def database(self) -> str:
        return str(self.settings.get("database", "test"))

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        with closing(connect(self)) as connection:
            link = connection._sock
            handle.secured("mysql", tls.facts(link) if isinstance(link, ssl.SSLSocket) else {"encrypted": False})

    def found_mark(self) -> str | None:
        with asking(self) as ask:
            tables = {str(row[0]) for row in ask("SHOW TABLES")}
            if TABLE not in tables:
                return None
            return str(ask(f"SELECT mark FROM {MARKS}")[0][0]) if MARKS in tables else ""

    def remove(self) -> None:
        with asking(self) as ask:
            ask(f"DROP TABLE {TABLE}")

    def table(self, afresh: bool = False) -> Table:
        """What the server says of the table; ServerError if there is none, or none with a vector index."""
        if self._table is None or afresh:
            with asking(self) as ask:
                definition = str(ask(f"SHOW CREATE TABLE {TABLE}")[0][1])
            dim = found(r"\bvector\((\d+)\)", definition)
            described = self.dialect.described(definition)
            if dim is None or described["distance"] is None:
                raise ServerError(f"{self.name}: the table {TABLE} has no vector index: {definition}")
            self._table = Table(int(dim), described["distance"], described)
        return self._table


class _Connection(pymysql.Connection):  # type: ignore[misc]  # it comes without types
    """Takes no answer without an end."""

    _left = _ANSWER_BYTES

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        """One statement, whose answer may be so long."""
        self._left = _ANSWER_BYTES
        return int(super().query(sql, unbuffered))

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._left -= num_bytes
        if self._left < 0:
            self.close()
            raise pymysql.err.OperationalError(0, f"an answer of more than {_ANSWER_BYTES} bytes")
        return bytes(super()._read_bytes(num_bytes))


def connect(server: MySQLServer, reader: bool = False) -> pymysql.Connection[Any]:
    """A connection that commits every statement, of the account that loads, or of the one that queries use.

    ServerError if there is none to be had. Close it: an open one is asked by nobody, but it is one.
    """
    host, port = host_and_port(server.endpoint)
    user, password = server.user_of(reader), ""  # none for an instant, after a first start of some
    if server.credentials is not None:
        password = credentials.read(server.credentials["env"], f"the password of {user}")
    encryption: dict[str, Any] = {}
    if server.tls is not None:
        encryption = {"ssl": tls.context(server.tls)}  # which this library then insists on
    elif server.mark is not None:
        encryption = {"ssl_disabled": True}  # else it would take what it is offered, unverified
    try:
        connection = _Connection(
            host=host,
            port=port,
            user=user,
            password=password,
            database=server.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_S,
            read_timeout=_STATEMENT_S,
            write_timeout=_STATEMENT_S,
            **encryption,
        )
    except (pymysql.err.MySQLError, OSError) as error:
        cause = getattr(error, "original_exception", None)
        if isinstance(cause, ssl.SSLError):
            raise ServerError(f"{server.name}: no connection for {user}: TLS: {tls.refusal(cause)}") from None
        raise ServerError(f"{server.name}: no connection for {user}: {error}") from None
    if server.tls is not None and not isinstance(connection._sock, ssl.SSLSocket):
        connection.close()
        raise ServerError(f"{server.name}: no connection for {user}: TLS: the server does not offer it")
    return connection


def asker(server: MySQLServer, connection: pymysql.Connection[Any]) -> Ask:
    """A function from a statement to its rows; ServerError says what the server said of it."""

    def ask(statement: str | bytes) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            try:
                cursor.execute(statement)
                return [tuple(row) for row in cursor.fetchall()]
            except (pymysql.err.MySQLError, OSError) as error:
                server.check_alive()
                said = statement[:200] if isinstance(statement, str) else statement[:60].decode(errors="replace")
                raise ServerError(f"{server.name}: {said!r}: {error}") from None

    return ask


@contextmanager
def asking(server: MySQLServer, reader: bool = False) -> Iterator[Ask]:
    """The same, on a connection of its own."""
    with closing(connect(server, reader)) as connection:
        yield asker(server, connection)


@contextmanager
def searching(server: MySQLServer) -> Iterator[Ask]:
    """The same, on a connection as those that search have."""
    with asking(server, reader=True) as ask:
        for setting in server.dialect.session(server.ef_search):
            ask(setting)
        yield ask


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> MySQLServer:
    """Start on `data_dir`; returns when it answers, and nobody but us can log in.

    Where this machine's address is said, clients on other machines reach it there, too.
    """
    if topology["runtime"] == "remote":
        server_of, where = partial(MySQLServer, topology=topology, system=system), f"{dialect_of(system).name} (remote)"
        return take_remote(server_of, where, data_dir, topology, ("mysql",), "password")
    artifact, folder = artifact_dir.resolve(), data_dir.resolve()
    dialect, settings, limits = dialect_of(system), system.get("settings") or {}, Limits.of(topology)
    folder.mkdir(parents=True, exist_ok=True)
    password, secured = credentials.made(folder / _PASSWORD), folder / _SECURED
    if not secured.exists() and dialect.prepare(artifact, folder, password):
        secured.touch()
    title, named = f"{dialect.name} {system['version']}", credentials.named(password)
    address = address_for_others()

    def launch(group: Group, numbers: Mapping[str, int], runner: Runner) -> MySQLServer:
        port = numbers["mysql"]
        process = runner.start(
            "node1",
            title,
            dialect.arguments(artifact, folder, listen(runner.listen, address), port, settings, limits),
            clean_environment(dialect.environment),
            folder,
            folder / "logs" / "server.log",
            limits,
            [port],
        )
        group.add(Member("node1", "node", process, {"mysql": runner.reached("node1", port)}, _TERM_WAIT_S))
        server = MySQLServer(group, topology, system)
        server.own_credentials = named if secured.exists() else None
        return server

    def answers(server: MySQLServer) -> bool | None:
        if server.own_credentials is None:
            with asking(server) as ask:
                dialect.secure(ask, password)
            secured.touch()
            server.own_credentials = named
        if address is not None:
            with asking(server) as ask:
                dialect.admit_others(ask, password)
        with asking(server, reader=True) as ask:
            return bool(ask("SELECT 1")) or None

    return start_native(
        title, launch, answers, ["mysql"], first_port, runner_of=partial(runner_for, topology, [artifact_dir])
    )


def listen(here: str, address: str | None) -> str:
    """The addresses to listen on, with commas between them: each once, as none can be taken twice."""
    return here if address in (None, here) else f"{here},{address}"


def await_searchable(server: MySQLServer) -> None:
    """Search once, as the reader does, by the vector index."""

    def searched() -> bool | None:
        statement = any_search(server)
        with searching(server) as ask:
            check_plan(server, statement)
            return bool(ask(statement)) or None

    wait_for(f"{server.name}: a first search", searched, server, _OPEN_TIMEOUT_S, patient=True)


def any_search(server: MySQLServer) -> bytes:
    table = server.table()
    return server.dialect.search(literal(np.ones(table.dim, np.float32)), table.distance, 1, "", False)


def plan(server: MySQLServer, statement: bytes) -> tuple[bool, str]:
    """Whether a search would use the vector index, and what the server says of it."""
    with searching(server) as ask:
        rows = ask(b"EXPLAIN " + statement)
    text = "; ".join(" ".join(str(cell) for cell in row if cell is not None) for row in rows)
    return server.dialect.uses_index(rows), redact.short(re.sub(r"\s+", " ", text))


def check_plan(server: MySQLServer, statement: bytes, exact: bool = False) -> None:
    """ServerError if it would not use it: it would scan, and answer as exactly as slowly. If `exact`, if it would."""
    used, said = plan(server, statement)
    if used is exact:
        which = "an exact search uses" if exact else "a search does not use"
        raise ServerError(f"{server.name}: {which} the vector index: {said}")


def session_ef(server: MySQLServer) -> int:
    """The search effort that a connection that searches has."""
    with searching(server) as ask:
        return int(ask(f"SELECT @@SESSION.{server.dialect.ef_variable}")[0][0])


def complete(dialect: Dialect, ask: Ask) -> tuple[bool, str]:
    """What the server says of its index; one that keeps its books in the background is given time for them."""
    deadline = time.monotonic() + _BOOKS_S
    while True:
        complete, detail = dialect.complete(ask)
        if complete or time.monotonic() > deadline:
            return complete, detail
        time.sleep(_POLL_S)
