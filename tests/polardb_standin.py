"""A stand-in for PolarDB for MySQL, a service in a cloud: its own words, in front of a real MariaDB with vectors.

It ends TLS and passes logins, rows and answers on. What MariaDB lacks it does itself: PolarDB's variables, the comment
on a column that asks for an index, the statistics of that index, DISTANCE(), hints and columnar plans. The index is
MariaDB's own, with the comment's M and metric, built in the background: so searches are approximate, and faster than
scans. Codes (SQ, PQ) and ef_construction are read and checked, but MariaDB has none: their index is the plain one.

Names, kinds, options, scopes, defaults and ranges are those of PolarDB's public pages ("Perform vector retrieval using
the MySQL protocol", "Release notes for kernel parameters", "Use EXPLAIN to determine whether to use IMCIs") and of
VectorDBBench's client for it, as far as these tell them. What they don't tell is marked "not documented" here.
"""

from __future__ import annotations

import re
import socket
import socketserver
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pymysql

from anncestry.drive.certificates import Certificates

VERSION, MYSQL_VERSION = "8.0.2.2.32", "8.0.18"
"""Of PolarDB: major version, minor version, revision; and the MySQL that 8.0.2 is compatible with."""

_PACKET_MAX = (1 << 24) - 1
_TLS, _MYSQL = 1 << 11, 1
_NOT_SPOKEN = 1 << 5 | 1 << 23 | 1 << 24 | 1 << 25 | 1 << 26 | 1 << 27
"""Compression, session tracking, results without ends, and later: what is not offered is not asked for."""
_QUIT, _USE, _QUERY, _PING = 1, 2, 3, 14
_STATES = {1193: b"HY000", 1231: b"42000", 1235: b"42000", 3159: b"HY000"}
_BOOKS = "polardb_standin.imci_vector_index_stats"


@dataclass(frozen=True)
class Variable:
    """`values` are words, or the least and the largest number."""

    default: str | int
    values: tuple[str, ...] | tuple[int, int]
    is_global: bool = False

    def read(self, name: str, text: str) -> str | int:
        """The value that a text is; Refused if it can't be one."""
        said = text.strip("'\"").upper()
        if isinstance(self.values[0], str):
            word = {"1": "ON", "0": "OFF", "TRUE": "ON", "FALSE": "OFF"}.get(said, said)
            if word in self.values:
                return word
        elif said.isdigit() and self.values[0] <= int(said) <= self.values[1]:  # type: ignore[operator]
            return int(said)
        raise Refused(1231, f"Variable '{name}' can't be set to the value of '{text}'")


_SWITCH = ("OFF", "ON")
VARIABLES = {
    "use_imci_engine": Variable("ON", ("OFF", "ON", "FORCED")),
    "cost_threshold_for_imci": Variable(50_000, (0, 2**64 - 1)),
    "imci_max_dop": Variable(0, (0, 2**32 - 1)),  # its range is not documented
    "imci_enable_vector_search": Variable("ON", _SWITCH),
    "imci_enable_fast_vector_search": Variable("OFF", _SWITCH),  # its default is not documented; it does nothing here
    "polar_vector_index_hnsw_ef_search": Variable(64, (1, 10_000)),  # not documented; MariaDB's largest
    "imci_vector_index_dump_rows_threshold": Variable(1000, (1, 2**32 - 1), is_global=True),
}
_KINDS: dict[str, dict[str, str]] = {
    kind: {"metric": "EUCLIDEAN|COSINE|INNER_PRODUCT", "max_degree": r"\d+", "ef_construction": r"\d+", **options}
    for kind, options in {
        "HNSW": {},
        "FAISS_HNSW_FLAT": {},
        "FAISS_HNSW_PQ": {"pq_m": r"\d+", "pq_nbits": r"\d|1\d|2[0-4]"},
        "FAISS_HNSW_SQ": {"sq_type": "8bit|6bit|4bit|fp16|bf16"},
    }.items()
}
"""Kind of index → option of its comment → what it may be."""
_METRICS = {"EUCLIDEAN": "euclidean", "COSINE": "cosine", "INNER_PRODUCT": "cosine"}
"""In a comment → the distance of MariaDB's index. It has no inner product: that of rows of length 1 is their cosine."""
_FUNCTIONS = {"EUCLIDEAN": "EUCLIDEAN", "COSINE": "COSINE", "DOT": "INNER_PRODUCT"}
"""In DISTANCE() → in a comment."""


class Refused(Exception):
    """Number and words of an error packet."""


@dataclass
class Index:
    """What a comment asked for; `built` once MariaDB has it; what its statistics `told` since, look by look."""

    kind: str
    metric: str
    m: int
    built: threading.Event = field(default_factory=threading.Event)
    told: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, comment: str, dim: int) -> Index:
        """Of `imci_vector_index=KIND(name=value,…)`; Refused if that is no such comment (words: not documented)."""
        said = re.fullmatch(r"imci_vector_index=(\w+)\((.*)\)", comment)
        if said is None or said[1] not in _KINDS:
            raise Refused(1235, f"Invalid vector index comment: {comment}")
        options = dict(part.strip().partition("=")[::2] for part in said[2].split(","))
        for name, value in options.items():
            known = _KINDS[said[1]].get(name)
            if known is None or not re.fullmatch(known, value, re.IGNORECASE):
                raise Refused(1235, f"Invalid option of {said[1]}: {name}={value}")
        if dim % int(options.get("pq_m", 1)):
            raise Refused(1235, f"Invalid option of {said[1]}: pq_m={options['pq_m']} for {dim} dimensions")
        metric, m = options.get("metric", "EUCLIDEAN").upper(), int(options.get("max_degree", 16))
        return cls(said[1], metric, m)


@dataclass(frozen=True)
class Statement:
    """Its text with a ? for each literal, and these: a vector's bytes can hold any word."""

    shape: bytes
    literals: tuple[bytes, ...]

    @classmethod
    def of(cls, text: bytes) -> Statement:
        literal = re.compile(rb"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
        return cls(literal.sub(b"?", text).strip(), tuple(literal.findall(text)))

    def text(self, **parts: bytes) -> bytes:
        """The statement again; a part stands in it as {name}."""
        literals = iter(self.literals)
        return re.sub(rb"\?|\{(\w+)\}", lambda at: parts[at[1].decode()] if at[1] else next(literals), self.shape)


# Packets


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (part := sock.recv(size - len(data))):
            raise ConnectionError("closed")
        data += part
    return bytes(data)


def _read(sock: socket.socket) -> tuple[int, bytes]:
    """Sequence number and body of a packet. Reads no byte more: what follows may be a greeting of TLS."""
    body = b""
    while True:
        head = _exactly(sock, 4)
        part = _exactly(sock, int.from_bytes(head[:3], "little"))
        body += part
        if len(part) < _PACKET_MAX:
            return head[3], body


def _write(sock: socket.socket, sequence: int, *bodies: bytes) -> None:
    out = []
    for body in bodies:
        for at in range(0, len(body) + 1, _PACKET_MAX):
            part = body[at : at + _PACKET_MAX]
            out.append(len(part).to_bytes(3, "little") + bytes([sequence % 256]) + part)
            sequence += 1
    sock.sendall(b"".join(out))


def _answer(sock: socket.socket) -> list[bytes]:
    """The packets that answer a statement, of one result or several."""
    found: list[bytes] = []
    while True:
        _, head = _read(sock)
        found.append(head)
        if head[0] in (0x00, 0xFF):
            return found
        for _ in range(2):  # columns, rows
            while True:
                found.append(_read(sock)[1])
                if (found[-1][0] == 0xFE and len(found[-1]) < 9) or found[-1][0] == 0xFF:
                    break
            if found[-1][0] == 0xFF:
                return found
        if not struct.unpack_from("<H", found[-1], 3)[0] & 8:  # more results
            return found


def _string(data: bytes | None) -> bytes:
    """With its length before it, as in a row."""
    if data is None:
        return b"\xfb"
    if len(data) < 251:
        return bytes([len(data)]) + data
    return b"\xfd" + len(data).to_bytes(3, "little") + data


def _cells(row: bytes) -> list[bytes | None]:
    """Of a row of a text result."""
    cells: list[bytes | None] = []
    at = 0
    while at < len(row):
        if row[at] == 0xFB:
            cells.append(None)
            at += 1
            continue
        wide = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(row[at], 0)
        size = int.from_bytes(row[at + 1 : at + 1 + wide], "little") if wide else row[at]
        at += 1 + wide
        cells.append(row[at : at + size])
        at += size
    return cells


_END, _DONE = b"\xfe\0\0\2\0", b"\0\0\0\2\0\0\0"


def _result(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """A text result; a column of numbers is one of the type LONGLONG, else of the type VAR_STRING."""
    columns = []
    for place, name in enumerate(names):
        kind = 8 if rows and isinstance(rows[0][place], int) else 0xFD
        words = b"".join(map(_string, (b"def", b"", b"", b"", name.encode(), name.encode())))
        columns.append(words + struct.pack("<BHIBHBH", 12, 45, 1024, kind, 0, 0, 0))
    cells = [b"".join(_string(None if cell is None else str(cell).encode()) for cell in row) for row in rows]
    return [bytes([len(names)]), *columns, _END, *cells, _END]


def _error(number: int, words: str) -> bytes:
    return b"\xff" + struct.pack("<H", number) + b"#" + _STATES.get(number, b"HY000") + words.encode()


# The stand-in


class Standin:
    """What all connections share. `lies` are what it is to do wrong, by name:

    few vectors: the statistics stop one row short; no search: every search scans; ef: it is accepted and not kept;
    hint: SET_VAR does nothing; dot: DISTANCE(…, 'DOT') tells the product, not its negative; version: another's.
    """

    def __init__(self, upstream: tuple[str, int], password: str, certificates: Certificates) -> None:
        self.upstream, self._password = upstream, password
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificates.certificate, certificates.key)
        self.lies: set[str] = set()
        self.shared: dict[str, str | int] = {}
        self.indexes: dict[tuple[str, str], Index] = {}
        self.efforts: Counter[int] = Counter()
        """Searches by the index, by their ef."""
        self.scans = 0
        self.lock = threading.Lock()
        self.forget()
        self.owner(f"CREATE DATABASE IF NOT EXISTS {_BOOKS.partition('.')[0]}")
        columns = "SCHEMA_NAME VARCHAR(64), TABLE_NAME VARCHAR(64), VECTORS BIGINT"
        self.owner(f"CREATE TABLE IF NOT EXISTS {_BOOKS}({columns}, PRIMARY KEY(SCHEMA_NAME, TABLE_NAME))")

    def forget(self) -> None:
        """All variables as they were, no index, no lie, nothing counted."""
        self.shared = {name: of.default for name, of in VARIABLES.items() if of.is_global}
        self.indexes, self.lies = {}, set()
        self.efforts.clear()
        self.scans = 0

    @property
    def version(self) -> str:
        return "8.0.1.1.44" if "version" in self.lies else VERSION

    def owner(self, *statements: str) -> list[tuple[Any, ...]]:
        """Say them to MariaDB as its owner; the rows of the last one."""
        host, port = self.upstream
        with (
            pymysql.connect(
                host=host, port=port, user="root", password=self._password, autocommit=True, ssl_disabled=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def build(self, table: tuple[str, str], index: Index) -> None:
        """In the background, as the columnar node does; meanwhile searches scan."""
        self.indexes[table] = index
        name = ".".join(table)
        distance = _METRICS[index.metric]

        def add() -> None:
            self.owner(
                f"ALTER TABLE {name} DROP INDEX IF EXISTS vi",
                f"ALTER TABLE {name} ADD VECTOR INDEX vi(v) M={max(3, index.m)} DISTANCE={distance}",
            )
            index.built.set()

        threading.Thread(target=add, daemon=True).start()

    def count(self) -> None:
        """Bring the statistics up to date: no row before the index is built, then a third more of it at each look.

        Fewer new rows than the threshold are not added, as documented. (The thirds are ours.)
        """
        with self.lock:
            self.owner(f"DELETE FROM {_BOOKS}")
            for (schema, table), index in list(self.indexes.items()):
                if not index.built.is_set():
                    continue
                ((rows,),) = self.owner(f"SELECT COUNT(*) FROM {schema}.{table}")
                threshold = int(self.shared["imci_vector_index_dump_rows_threshold"])
                vectors = min(rows // threshold * threshold, -(-rows * len(index.told) // 3))
                vectors = min(vectors, rows - 1) if "few vectors" in self.lies else vectors
                index.told.append(vectors)
                self.owner(f"INSERT INTO {_BOOKS} VALUES ('{schema}', '{table}', {vectors})")


class Session:
    """One connection: a client's, under TLS, and that to MariaDB which belongs to it."""

    def __init__(self, standin: Standin, client: socket.socket) -> None:
        self.standin, self.client = standin, client
        self.server = socket.create_connection(standin.upstream)
        self.own = {name: of.default for name, of in VARIABLES.items() if not of.is_global}

    def run(self) -> None:
        with suppress(OSError), self.server:
            try:
                self._serve()
            finally:
                self.client.close()

    def _serve(self) -> None:
        if not self._login():
            return
        while (command := _read(self.client)[1])[0] != _QUIT:
            try:
                answer = self._command(command)
            except Refused as refused:
                answer = [_error(*refused.args)]
            _write(self.client, 1, *answer)

    def _login(self) -> bool:
        """MariaDB's own, under our TLS: one packet more than it knows of, so that numbers differ by one."""
        _, greeting = _read(self.server)
        _, rest = greeting[1:].split(b"\0", 1)
        low, charset, status, high = struct.unpack_from("<HBHH", rest, 13)
        offered = (low | high << 16 | _TLS | _MYSQL) & ~_NOT_SPOKEN
        flags = struct.pack("<HBHH", offered & 0xFFFF, charset, status, offered >> 16)
        rest = rest[:13] + flags + rest[20:21] + bytes(10) + rest[31:]
        _write(self.client, 0, bytes([10]) + MYSQL_VERSION.encode() + b"\0" + rest)
        _, hello = _read(self.client)
        (wanted,) = struct.unpack_from("<I", hello)
        if not wanted & _TLS:
            secure = "Connections using insecure transport are prohibited while --require_secure_transport=ON."
            _write(self.client, 2, _error(3159, secure))
            return False
        self.client = self.standin.tls.wrap_socket(self.client, server_side=True)
        number, hello = _read(self.client)
        hello = struct.pack("<I", struct.unpack_from("<I", hello)[0] & ~_TLS) + hello[4:]
        while True:
            _write(self.server, number - 1, hello)
            number, said = _read(self.server)
            _write(self.client, number + 1, said)
            if said[0] != 0xFE:  # another way to log in is asked for
                return said[0] == 0
            number, hello = _read(self.client)

    def _ask(self, text: bytes) -> list[bytes]:
        _write(self.server, 0, bytes([_QUERY]) + text)
        return _answer(self.server)

    def _rows(self, text: bytes) -> list[list[bytes | None]]:
        """Refused, in MariaDB's words, where it is."""
        packets = self._ask(text)
        if packets[0][0] == 0xFF:
            raise Refused(struct.unpack_from("<H", packets[0], 1)[0], packets[0][9:].decode(errors="replace"))
        return [_cells(row) for row in packets[packets[0][0] + 2 : -1]]

    def _command(self, command: bytes) -> list[bytes]:
        kind, text = command[0], command[1:]
        if kind in (_USE, _PING):
            _write(self.server, 0, command)
            return [_read(self.server)[1]]
        if kind != _QUERY:
            raise Refused(1235, "The stand-in takes no prepared statements")
        if re.match(rb"\s*INSERT\b", text, re.IGNORECASE):  # of many rows: passed on unread
            return self._ask(text)
        statement = Statement.of(re.sub(rb"\A\s*/\*(?![+!]).*?\*/\s*", b"", text, flags=re.DOTALL))
        for pattern, answer in _ANSWERS:
            if found := re.fullmatch(pattern, statement.shape, re.IGNORECASE | re.DOTALL):
                return answer(self, statement, found)
        return self._ask(text)

    # Variables

    def _set(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        scope, name = (found[1] or b"SESSION").upper(), found[2].decode().lower()
        if name.startswith("mhnsw_"):
            raise Refused(1193, f"Unknown system variable '{name}'")
        if name not in VARIABLES:
            return self._ask(statement.text())
        variable = VARIABLES[name]
        value = variable.read(name, statement.text().partition(b"=")[2].strip().decode())
        if variable.is_global and scope != b"GLOBAL":
            raise Refused(1229, f"Variable '{name}' is a GLOBAL variable and should be set with SET GLOBAL")
        if not variable.is_global and scope == b"GLOBAL":
            raise Refused(1228, f"Variable '{name}' is a SESSION variable and can't be used with SET GLOBAL")
        if not (name.endswith("ef_search") and "ef" in self.standin.lies):
            (self.standin.shared if variable.is_global else self.own)[name] = value
        return [_DONE]

    def _told(self) -> dict[str, str | int]:
        return {**self.standin.shared, **self.own, "polardb_version": self.standin.version, "version": MYSQL_VERSION}

    def _variable(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        name = found[1].decode().lower()
        if name.startswith("mhnsw_"):
            raise Refused(1193, f"Unknown system variable '{name}'")
        told = self._told()
        return _result([f"@@{name}"], [[told[name]]]) if name in told else self._ask(statement.text())

    def _show_variables(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        like = re.escape(statement.literals[0][1:-1].decode()).replace("%", ".*").replace("_", ".")
        told = [[name, str(value)] for name, value in self._told().items() if re.fullmatch(like, name, re.IGNORECASE)]
        return _result(["Variable_name", "Value"], told) if told else self._ask(statement.text())

    # The index

    def _table(self, name: bytes) -> tuple[str, str]:
        schema, _, table = name.decode().rpartition(".")
        if not schema:
            ((used,),) = self._rows(b"SELECT DATABASE()")
            schema = (used or b"").decode()
        return schema, table

    def _modify(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        index = Index.of(statement.literals[0][1:-1].decode(), int(found[2]))
        ((_, definition),) = self._rows(b"SHOW CREATE TABLE " + found[1])
        if b"COLUMNAR=1" not in (definition or b""):
            raise Refused(1235, "A vector index needs a table with COMMENT 'COLUMNAR=1'")
        answer = self._ask(statement.text())
        if answer[0][0] == 0:
            self.standin.build(self._table(found[1]), index)
        return answer

    def _definition(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        """Without MariaDB's index: of PolarDB's, only the comment tells."""
        ((name, definition),) = self._rows(statement.text())
        plain = re.sub(rb",\n  VECTOR KEY `vi`[^,\n]*", b"", definition or b"").decode()
        return _result(["Table", "Create Table"], [[(name or b"").decode(), plain]])

    def _drop(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        answer = self._ask(statement.text())
        if answer[0][0] == 0:
            self.standin.indexes.pop(self._table(found[1]), None)
        return answer

    def _statistics(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        self.standin.count()
        return self._ask(Statement(found[1] + _BOOKS.encode() + found[2], statement.literals).text())

    # Searches

    def _search(self, statement: Statement, found: re.Match[bytes]) -> list[bytes]:
        """By the index where PolarDB's would be used, else by a scan; or the plan of either."""
        explain, before, column, vector, alias, after = found.groups()
        now = {**self.own, **self._hints(before)}
        of = before.count(b"?")
        literal, said = statement.literals[of], statement.literals[of + 1][1:-1].decode().upper()
        if said not in _FUNCTIONS:
            raise Refused(1210, "Incorrect arguments to DISTANCE")
        metric = _FUNCTIONS[said]
        name = re.search(rb"\bFROM\s+([\w.]+)", after if alias else before, re.IGNORECASE)
        if name is None or b"DISTANCE(" in after.upper():
            raise Refused(1235, "The stand-in takes one DISTANCE() of one table")
        index = self.standin.indexes.get(self._table(name[1]))
        there = index is not None and index.built.is_set()
        columnar = now["use_imci_engine"] == "FORCED" or (
            now["use_imci_engine"] == "ON" and now["cost_threshold_for_imci"] == 0  # else it would count the cost
        )
        search = columnar and there and index.metric == metric and now["imci_enable_vector_search"] == "ON"  # type: ignore[union-attr]
        search = search and "no search" not in self.standin.lies

        distance = b"VEC_DISTANCE_%s(%s,%s)" % (
            _METRICS[metric].upper().encode(),
            column,
            vector.replace(b"?", literal),
        )
        # Clients sort by DOT upwards: the nearest has the smallest. That it is the negative product is not documented.
        dot = b"1-%s" if "dot" in self.standin.lies else b"%s-1"
        shown = dot % distance if said == "DOT" else distance
        if alias:
            after = re.sub(rb"ORDER BY %s\b" % alias, b"ORDER BY {sorted}", after, flags=re.IGNORECASE)
        shape = before + (b"{shown} AS " + alias if alias else b"{sorted}") + after
        if there and not search:
            shape = re.sub(rb"\bFROM\s+[\w.]+", rb"\g<0> IGNORE INDEX (vi)", shape, count=1, flags=re.IGNORECASE)
        left = statement.literals[:of] + statement.literals[of + 2 :]
        text = Statement(shape, left).text(shown=shown, sorted=distance)  # MariaDB's index serves a bare function
        ef = int(now["polar_vector_index_hnsw_ef_search"])
        effort = b"SET STATEMENT mhnsw_ef_search=%d FOR " % ef
        if explain:
            text = effort + b"EXPLAIN " + text
            return self._plan(self._rows(text), now, name[1].decode()) if columnar else self._ask(text)
        with self.standin.lock:
            self.standin.efforts[ef] += search
            self.standin.scans += not search
        return self._ask(effort + text)

    def _hints(self, text: bytes) -> Mapping[str, str | int]:
        """Of SET_VAR; what it can't set it leaves, with a warning."""
        hints: dict[str, str | int] = {}
        for name, value in re.findall(rb"SET_VAR\(\s*(\w+)\s*=\s*(\w+)\s*\)", text, re.IGNORECASE):
            variable = VARIABLES.get(name.decode().lower())
            if variable is not None and not variable.is_global and "hint" not in self.standin.lies:
                with suppress(Refused):
                    hints[name.decode().lower()] = variable.read(name.decode(), value.decode())
        return hints

    def _plan(self, plan: list[list[bytes | None]], now: Mapping[str, str | int], table: str) -> list[bytes]:
        """A tree, as documented of columnar plans; the name of the operator that searches is not documented.

        A scan names the expression that it computes, and with it the word vector.
        """
        (cells,) = plan
        of = "Vector Search" if cells[5] == b"vi" else "Table Scan"
        scan = [["3", "  └─Sort", None, None, None, "Sort Key: VECTOR_DISTANCE(v) ASC"]] if of == "Table Scan" else []
        rows = [
            ["1", "Select Statement", None, None, None, f"IMCI Execution Plan (max_dop = {now['imci_max_dop']})"],
            ["2", "└─Limit", None, None, None, None],
            *scan,
            [str(3 + len(scan)), "  " * (1 + len(scan)) + f"└─{of}", table, (cells[8] or b"").decode(), None, None],
        ]
        return _result(["ID", "Operator", "Name", "E-Rows", "E-Cost", "Extra Info"], rows)


_ANSWERS: tuple[tuple[bytes, Callable[[Session, Statement, re.Match[bytes]], list[bytes]]], ...] = (
    (rb"SET\s+(?:(GLOBAL|SESSION|LOCAL)\s+)?(\w+)\s*=.*", Session._set),
    (rb"SELECT\s+@@(?:GLOBAL\.|SESSION\.)?(\w+)", Session._variable),
    (rb"SHOW\s+(?:GLOBAL\s+|SESSION\s+)?VARIABLES\s+LIKE\s+\?", Session._show_variables),
    (
        rb"ALTER\s+TABLE\s+([\w.]+)\s+MODIFY\s+COLUMN\s+v\s+VECTOR\((\d+)\)\s+NOT\s+NULL\s+COMMENT\s+\?",
        Session._modify,
    ),
    (rb"SHOW\s+CREATE\s+TABLE\s+[\w.]+", Session._definition),
    (rb"DROP\s+TABLE\s+(?:IF\s+EXISTS\s+)?([\w.]+)", Session._drop),
    (rb"(SELECT.*)information_schema\.imci_vector_index_stats(.*)", Session._statistics),
    (
        rb"(EXPLAIN\s+)?(SELECT\b.*?)\bDISTANCE\(\s*(\w+)\s*,\s*((?:_binary\s*|x)?\?)\s*,\s*\?\s*\)(?:\s+AS\s+(\w+))?(.*)",
        Session._search,
    ),
)
"""What is answered otherwise than by passing it on, by its shape: the first that fits."""


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 256
    standin: Standin


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Listener)
        Session(self.server.standin, self.request).run()


@contextmanager
def polardb(upstream: str, password: str, certificates: Certificates) -> Iterator[tuple[Standin, str]]:
    """The stand-in, in front of the MariaDB at `upstream` whose root has this password, and host:port under TLS."""
    host, _, port = upstream.rpartition(":")
    with _Listener(("127.0.0.1", 0), _Handler) as listener:
        listener.standin = Standin((host, int(port)), password, certificates)
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        try:
            yield listener.standin, f"127.0.0.1:{listener.server_address[1]}"
        finally:
            listener.shutdown()
            thread.join()
