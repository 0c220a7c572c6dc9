"""Redis' protocol (RESP 2) for the calls that engines make themselves, and what all servers that speak it have."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from anncestry import redact
from anncestry.engines.base import DecodeError, ErrorReplyError, Server, Spec, wait_for
from anncestry.engines.native import HOST, start_native
from anncestry.errors import ServerError
from anncestry.runtimes import credentials
from anncestry.runtimes.base import Ending, Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment
from anncestry.web import host_and_port

CONFIG, STORE = "config", "redis"
"""Folder of its configuration and password, and of its files, in a data folder."""
_DEFAULTS = {"appendfsync": "everysec"}
"""What a system may set otherwise."""
_DEPTH = 8
_CALL_S = 300.0
_REWRITE_S = 3600.0
_TERM_WAIT_S = 60.0


def command(*parts: bytes | str | int) -> bytes:
    """A command with its arguments."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join([b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(part), part) for part in encoded)])


def read(stream: IO[bytes], depth: int = 0) -> Any:
    """The next value: str, int, bytes, None, a list, or (not raised) ErrorReplyError; DecodeError where it is none."""
    line = stream.readline()
    if not line.endswith(b"\r\n") or depth > _DEPTH:
        raise DecodeError(f"not an answer of Redis: {line[:40]!r}")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest.decode(errors="replace")
    if kind == b"-":
        return ErrorReplyError(rest.decode(errors="replace"))
    if kind not in b":$*":
        raise DecodeError(f"not an answer of Redis: it begins with {kind!r}")
    try:
        number = int(rest)
    except ValueError:
        raise DecodeError(f"not an answer of Redis: a number of {rest[:40]!r}") from None
    if kind == b":":
        return number
    if number < 0:
        return None
    if kind == b"*":
        return [read(stream, depth + 1) for _ in range(number)]
    text = stream.read(number + 2)
    if len(text) != number + 2:
        raise DecodeError("not an answer of Redis: a text is shorter than it says")
    return text[:-2]


class RespServer(Server):
    """One server, with a password of our making."""

    interface = "resp"

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology)
        self.settings: Mapping[str, Any] = system.get("settings") or {}
        self._socket: socket.socket | None = None

    def send(self, commands: bytes, count: int) -> list[Any]:
        """The answers to so many commands, sent at once (see `read`); ServerError if there is none to one."""
        try:
            if self._socket is None:
                self._socket = self._connect()
            return self._exchange(self._socket, commands, count)
        except (OSError, DecodeError) as error:
            self.disconnect()
            self.check_alive()
            raise ServerError(f"redis: {error or type(error).__name__}") from None

    def _connect(self) -> socket.socket:
        link = socket.create_connection(host_and_port(self.endpoint), timeout=_CALL_S)
        assert self.credentials is not None
        password = credentials.read(self.credentials["env"], "the password of redis")
        (reply,) = self._exchange(link, command("AUTH", password), 1)
        if isinstance(reply, ErrorReplyError):
            link.close()
            raise reply
        return link

    @staticmethod
    def _exchange(link: socket.socket, commands: bytes, count: int) -> list[Any]:
        link.sendall(commands)
        with link.makefile("rb") as answers:
            return [read(answers) for _ in range(count)]

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, command: bytes) -> Any:
        """The answer to a command; ServerError with Redis' reason if it is an error."""
        (reply,) = self.send(command, 1)
        if isinstance(reply, ErrorReplyError):
            raise ServerError(f"redis: {redact.short(str(reply))}")
        return reply

    def insert(self, commands: bytes, count: int) -> dict[int, str]:
        """Store rows; returns those that were refused, by their place, and why."""
        replies = self.send(commands, count)
        return {place: str(reply) for place, reply in enumerate(replies) if isinstance(reply, ErrorReplyError)}

    def info(self, section: str) -> dict[str, str]:
        """A section of what the server says of itself."""
        text = self.ask(command("INFO", section)).decode(errors="replace")
        lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
        return {name: value for name, _, value in lines if name}

    def configured(self, name: str) -> str:
        (_, value) = self.ask(command("CONFIG", "GET", name))
        return str(value.decode())

    def rewrite(self) -> None:
        """Have all rows written to one file, in place of the log, and synced."""

        def begun() -> bool | None:
            """Not while a rewrite runs that Redis began by itself, as its log had grown to twice its size."""
            (reply,) = self.send(command("BGREWRITEAOF"), 1)
            if not isinstance(reply, ErrorReplyError):
                return True
            if "already in progress" not in str(reply):
                raise ServerError(f"redis: {redact.short(str(reply))}")
            return None

        def done() -> bool | None:
            told = self.info("persistence")
            if told["aof_rewrite_in_progress"] != "0" or told["aof_rewrite_scheduled"] != "0":
                return None  # until then, the status is that of the one before
            if told["aof_last_bgrewrite_status"] != "ok":
                raise ServerError("redis: BGREWRITEAOF failed: see its log")
            return True

        wait_for("redis: the end of its own rewrite of the log", begun, self, _REWRITE_S)
        wait_for("redis: BGREWRITEAOF", done, self, _REWRITE_S)
        synced, _ = self.ask(command("WAITAOF", 1, 0, int(_CALL_S * 1000)))
        if synced != 1:
            raise ServerError(f"redis: WAITAOF: not synced within {_CALL_S:.0f} s")

    def crash(self) -> None:
        self.disconnect()
        super().crash()

    def stop(self) -> Ending:
        self.disconnect()
        return super().stop()


S = TypeVar("S", bound=RespServer)
"""The servers of one engine."""


def paired(reply: list[Any]) -> dict[str, Any]:
    """Names and values in turn; texts as str. (A flag without a value may end them.)"""
    plain = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in reply]
    return dict(zip(plain[::2], plain[1::2], strict=False))


def start_resp(
    server_of: Callable[[Group, Spec, Spec], S],
    program: Sequence[str | Path],
    variables: Mapping[str, str],
    data_dir: Path,
    system: Spec,
    topology: Spec,
    first_port: int | None,
) -> S:
    """Start one, on loopback, with a log of rows. It answers before it has read its rows.

    `program` is the file and what follows the options that all have; `variables` are of its environment.
    """
    folder, (file, *more) = data_dir.resolve(), program
    for name in (STORE, CONFIG):
        (folder / name).mkdir(parents=True, exist_ok=True)
    password, path = credentials.made(folder / CONFIG / "password"), folder / CONFIG / "redis.conf"
    named = credentials.named(password)
    chosen = {name: (system.get("settings") or {}).get(name, value) for name, value in _DEFAULTS.items()}
    lines = [f"requirepass {password}", 'save ""', "appendonly yes", *(f"{name} {chosen[name]}" for name in chosen), ""]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as config:  # not in the process list
        config.write("\n".join(lines))

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> S:
        port = ports["resp"]
        argv = [file, path, "--bind", HOST, "--port", str(port), "--dir", folder / STORE, *more]
        title, log, limits = f"redis {system['version']}", folder / "logs" / "redis.log", Limits.of(topology)
        handle = runner.start("redis", title, argv, clean_environment(variables), folder, log, limits, [port])
        group.add(Member("redis", "node", handle, {"resp": f"{HOST}:{port}"}, _TERM_WAIT_S))
        server = server_of(group, topology, system)
        server.own_credentials = named
        return server

    def answers(server: S) -> bool:
        (reply,) = server.send(command("PING"), 1)
        return reply == "PONG" or str(reply).startswith("LOADING")

    return start_native("redis", launch, answers, ("resp",), first_port)
