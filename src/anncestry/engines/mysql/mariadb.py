"""MariaDB from 11.7 on: its own HNSW (mhnsw), in tables of InnoDB."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anncestry.engines.base import Spec
from anncestry.engines.mysql.dialect import INDEX, READER, TABLE, Ask, Dialect, three_numbers
from anncestry.engines.offers import Freeze
from anncestry.errors import ServerError
from anncestry.runtimes.base import Limits
from anncestry.runtimes.native import clean_environment

_SCRIPTS = ("mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql")
"""What makes the system's tables, in this order, from its package."""
_BOOTSTRAP_S = 300
_MIB = 1 << 20


class MariaDB(Dialect):
    """MariaDB 11.7 and 11.8. Its index has no ef_construction, no quantization of choice and no inner product."""

    name = "mariadb"
    versions = ((11, 7, 0), (11, 9, 0))
    runtimes = ("native", "remote")
    quantizers = ()
    distances = {"l2": "euclidean", "cosine": "cosine"}  # noqa: RUF012
    ef_max = 10_000
    freeze = Freeze(40.0)
    no_zero_vectors = {"cosine": "puts them at distance 0 from everything when it scans"}  # noqa: RUF012
    # VECTOR KEY `vi` (`v`) `M`=16 `DISTANCE`=euclidean
    patterns = {"distance": r"`DISTANCE`='?(\w+)", "M": r"`M`='?(\d+)"}  # noqa: RUF012
    m = (3, 200)
    has_ef_construction = False
    memory_min_mib = 256
    numbers = {  # noqa: RUF012
        "mhnsw_max_cache_size_mib": (1, 1 << 22, 2048),
        "innodb_buffer_pool_size_mib": (64, 1 << 22, 1024),
    }

    read_back = tuple(numbers)
    # A secondary index that is added later builds the graph again: all come with the table.
    table_options = " ENGINE=InnoDB"
    functions = {"l2": b"VEC_DISTANCE_EUCLIDEAN", "cosine": b"VEC_DISTANCE_COSINE"}  # noqa: RUF012
    durability = "innodb_log_checkpoint_now: rows and index in their files, synced; before that in the log, synced"
    ef_variable = "mhnsw_ef_search"
    scan_hint = f" IGNORE INDEX ({INDEX})"

    def build(self, dim: int, index: Spec, settings: Spec, distance: str) -> list[str]:
        return [
            f"ALTER TABLE {TABLE} ADD VECTOR INDEX {INDEX}(v) M={index['M']} DISTANCE={self.distances[distance]}",
        ]

    def persist(self, ask: Ask) -> Callable[[], bool]:
        """Returns once no page is dirty."""
        ask("SET GLOBAL innodb_log_checkpoint_now=ON")
        return lambda: True

    def uses_index(self, plan: Sequence[Sequence[Any]]) -> bool:
        return any(cell == INDEX for row in plan for cell in row)

    def version(self, ask: Ask) -> str:
        """Of 11.8.2-MariaDB."""
        ((text,),) = ask("SELECT version()")
        return three_numbers(str(text))

    def effective(self, ask: Ask) -> dict[str, Any]:
        """The caches of the graph (16 MiB by default: too little for anything) and of pages."""
        ((graph, pages),) = ask("SELECT @@GLOBAL.mhnsw_max_cache_size, @@GLOBAL.innodb_buffer_pool_size")
        return {"mhnsw_max_cache_size_mib": graph // _MIB, "innodb_buffer_pool_size_mib": pages // _MIB}

    def complete(self, ask: Ask) -> tuple[bool, str]:
        """It is part of the table: there, it is complete."""
        kinds = [str(row[10]) for row in ask(f"SHOW INDEX FROM {TABLE}") if row[2] == INDEX]
        return kinds == ["VECTOR"], "kept with every row that is written" if kinds else "no vector index"

    def prepare(self, artifact: Path, folder: Path, password: str) -> bool:
        """Make the system's tables, as its own installation script does, and the accounts, before it listens."""
        data = folder / "data"
        data.mkdir(parents=True)
        share = artifact / "usr" / "share" / "mariadb"
        statements = ["create database if not exists mysql;", "create database if not exists test;", "use mysql;"]
        accounts = [
            "FLUSH PRIVILEGES;",
            "DELETE FROM mysql.global_priv WHERE user IN ('root', '');",
            "FLUSH PRIVILEGES;",
            f"CREATE USER root@'127.0.0.1' IDENTIFIED BY '{password}';",
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;",
            f"CREATE USER {READER}@'127.0.0.1' IDENTIFIED BY '{password}';",
            f"GRANT SELECT ON test.* TO {READER}@'127.0.0.1';",
        ]
        text = "\n".join([*statements, *((share / name).read_text() for name in _SCRIPTS), *accounts, ""])
        done = subprocess.run(
            [
                *map(str, _program(artifact)),
                "--no-defaults",
                "--bootstrap",
                *_paths(artifact, data),
                "--log-warnings=0",
            ],
            input=text.encode(),
            env=clean_environment(),
            capture_output=True,
            timeout=_BOOTSTRAP_S,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError("mariadb: its system tables could not be made", done.stderr.decode(errors="replace"))
        return True

    def arguments(
        self, artifact: Path, folder: Path, host: str, port: int, settings: Spec, limits: Limits
    ) -> list[str | Path]:
        """On `host` alone, without a socket file (whose path could be too long) and without name service."""
        caches = {name.removesuffix("_mib"): self.number(settings, name) for name in self.numbers}
        return [
            *_program(artifact),
            "--no-defaults",
            *_paths(artifact, folder / "data"),
            f"--port={port}",
            f"--bind-address={host}",
            f"--socket={os.path.relpath(folder / 'data' / 'sock', folder / 'data')}",
            "--skip-name-resolve",
            "--skip-log-bin",
            f"--pid-file={folder / 'data' / 'server.pid'}",
            "--max-connections=1100",
            "--max-allowed-packet=1G",
            *(f"--{name.replace('_', '-')}={mib * _MIB}" for name, mib in caches.items()),
        ]

    def fairness(self, settings: Spec, index: Spec) -> dict[str, str]:
        return {
            "HNSW": f"mhnsw, M={index['M']} (2M at the bottom layer), 16 bits a dimension; it has no ef_construction: "
            f"the {index['ef_construction']} of the configuration does nothing here",
            "filters": "secondary indexes on category, price and region; the optimizer chooses between one of them "
            "with a sort, and the graph with rows that don't pass left out as they come",
            "durability": "inserts are acknowledged after InnoDB's log was written and synced, each",
            "set by anncestry": "port, address, paths, no binary log, the caches of graph and pages: "
            + ", ".join(f"{name} {self.number(settings, name)}" for name in self.numbers),
        }


def _program(artifact: Path) -> list[str | Path]:
    """The server, with the C library and all others of its own release, whatever this machine has."""
    libraries = [artifact / part for part in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")]
    loader = next(
        path
        for path in (folder / "ld-linux-x86-64.so.2" for folder in [*libraries, artifact / "usr/lib64"])
        if path.is_file()
    )
    return [loader, "--library-path", ":".join(map(str, libraries)), artifact / "usr" / "sbin" / "mariadbd"]


def _paths(artifact: Path, data: Path) -> list[str]:
    user = ["--user=root"] if os.geteuid() == 0 else []
    return [f"--basedir={artifact / 'usr'}", f"--datadir={data}", f"--tmpdir={data}", *user]
