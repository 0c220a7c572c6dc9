"""seekdb, of the OceanBase family: HNSW by its library vsag, plain or quantized."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anncestry.engines.base import Spec
from anncestry.engines.mysql.dialect import INDEX, READER, TABLE, Ask, Dialect, found
from anncestry.engines.offers import Freeze
from anncestry.errors import UserError
from anncestry.runtimes.base import Limits

_TIMEOUT_US = 7 * 24 * 3600 * 1_000_000
_HOLD_ROWS = ("TRANS_SERVICE", "VEC_INDEX_SERVICE")
"""Of its services, those whose memory holds rows or parts of an index."""
_FREEZE_AGAIN_S = 2.0
_MEMORY_SHARE = 0.8
"""Of a memory limit, what it plans with."""


class Seekdb(Dialect):
    name = "seekdb"
    versions = ((1, 4, 0), (1, 5, 0))
    runtimes = ("native", "remote")
    quantizers = ("sq", "bq")
    distances = {"l2": "l2", "cosine": "cosine", "inner_product": "inner_product"}  # noqa: RUF012
    freeze = Freeze(15.0)
    needs_interface = True
    no_zero_vectors = {  # noqa: RUF012
        "cosine": "answers with rows without a distance (cosine_by: inner_product keeps them)",
        "inner_product": None,
    }
    types = {"none": "hnsw", "sq": "hnsw_sq", "bq": "hnsw_bq"}  # noqa: RUF012
    # VECTOR KEY `vi` (`v`) WITH (DISTANCE=L2, TYPE=HNSW, LIB=VSAG, M=16, EF_CONSTRUCTION=200, …)
    patterns = {  # noqa: RUF012
        "distance": r"\bDISTANCE=(\w+)",
        "quantizer": r"\bTYPE=(\w+)",
        "M": r"\bM=(\d+)",
        "ef_construction": r"\bEF_CONSTRUCTION=(\d+)",
    }
    m = (5, 128)
    ef_construction = (5, 1000)
    largest_k = 16_384
    memory_min_mib = 2048
    numbers = {"memory_budget_mib": (1024, 1 << 22, 4096)}  # noqa: RUF012

    read_back = tuple(numbers)
    environment = {"TELEMETRY_ENABLED": "false"}  # noqa: RUF012 - it reports to its makers otherwise
    functions = {  # noqa: RUF012
        "l2": b"l2_distance",
        "cosine": b"cosine_distance",
        "inner_product": b"negative_inner_product",
    }
    durability = "MINOR FREEZE: rows and index in its data file, no log before it needed; before that in the log"
    ef_variable = "ob_hnsw_ef_search"
    approximate = b" APPROXIMATE"  # without it, the search is exact

    def build(self, dim: int, index: Spec, settings: Spec, distance: str) -> list[str]:
        """Synchronous; 10 s is what a statement may take otherwise."""
        return [
            f"SET ob_query_timeout={_TIMEOUT_US}",
            f"CREATE VECTOR INDEX {INDEX} ON {TABLE}(v) WITH (distance={self.distances[distance]}, "
            f"type={self.types[index.get('quantizer', 'none')]}, lib=vsag, m={index['M']}, "
            f"ef_construction={index['ef_construction']})",
        ]

    def session(self, ef_search: int) -> list[str]:
        """The search effort; and a client, not the server, says when it has waited for long enough."""
        return [f"SET ob_query_timeout={_TIMEOUT_US}", *super().session(ef_search)]

    def persist(self, ask: Ask) -> Callable[[], bool]:
        """Its log is read again from `rec_log_scn` on after a crash: nanoseconds of its clock, or a number beyond.

        One freeze may leave some memory out, for good: it is asked again every `_FREEZE_AGAIN_S`.
        """
        ((loaded_ns,),) = ask("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000000 AS UNSIGNED)")
        told = f"SELECT rec_log_scn FROM oceanbase.__all_virtual_checkpoint WHERE service_type IN {_HOLD_ROWS}"
        due_s = time.monotonic()

        def done() -> bool:
            nonlocal due_s
            if all(int(scn) >= int(loaded_ns) for (scn,) in ask(told)):
                return True
            if time.monotonic() >= due_s:
                ask("ALTER SYSTEM MINOR FREEZE")
                due_s = time.monotonic() + _FREEZE_AGAIN_S
            return False

        return done

    def uses_index(self, plan: Sequence[Sequence[Any]]) -> bool:
        """A vector index scan, adaptive ones with a filter among them."""
        return any("VECTOR INDEX" in str(cell) for row in plan for cell in row)

    def version(self, ask: Ask) -> str:
        """Of 5.7.25-OceanBase seekdb-v1.4.0.0."""
        ((text,),) = ask("SELECT version()")
        return found(r"seekdb-v(\d+\.\d+\.\d+)", str(text)) or str(text)

    def effective(self, ask: Ask) -> dict[str, Any]:
        """Memory that it plans with. (Its memory_limit is ignored.)"""
        (row,) = ask("SHOW PARAMETERS LIKE 'memory_budget'")
        text = str(row[3])
        return {"memory_budget_mib": round(float(text[:-1]) * {"M": 1, "G": 1024, "T": 1 << 20}[text[-1]])}

    def complete(self, ask: Ask) -> tuple[bool, str]:
        """What its table of vector indexes says, some seconds after it is so."""
        states = [str(row[0]) for row in ask("SELECT statistics FROM oceanbase.__all_virtual_vector_index_info")]
        done = bool(states) and all("is_complete=1" in state for state in states)
        return done, f"{len(states)} index, " + ("complete" if done else "; ".join(states) or "none")

    def arguments(
        self, artifact: Path, folder: Path, host: str, port: int, settings: Spec, limits: Limits
    ) -> list[str | Path]:
        """It preallocates its data file: in small steps, so that its size says something of what is in it."""
        if ".tmp" in str(folder):
            # When it starts again, it takes for a temporary file of its own what has this in its path, and removes it.
            raise UserError(f"seekdb removes its redo log from a folder with '.tmp' in its path: {folder}; use another")
        budget = self.number(settings, "memory_budget_mib")
        if limits.memory_mib is not None and "memory_budget_mib" not in settings:
            budget = min(budget, int(limits.memory_mib * _MEMORY_SHARE))
        parameters = {
            "memory_budget": f"{budget}M",
            "datafile_size": "64M",
            "datafile_next": "64M",
            "datafile_maxsize": "1T",
            "log_disk_size": "4G",
        }
        command: list[str | Path] = [artifact / "pylibseekdb" / "seekdb", "--nodaemon"]
        command += ["-P", str(port), f"--base-dir={folder}", "--log-level", "WARN"]
        for name, value in parameters.items():
            command += ["--parameter", f"{name}={value}"]
        return command

    def secure(self, ask: Ask, password: str) -> None:
        """It listens on all interfaces, with a root that has no password, and has no option to do otherwise."""
        ask("SET GLOBAL ob_tcp_invited_nodes='127.0.0.1'")
        ask(f"CREATE USER {READER}@'127.0.0.1' IDENTIFIED BY '{password}'")
        ask(f"GRANT SELECT ON test.* TO {READER}@'127.0.0.1'")
        for name in ("ob_query_timeout", "ob_trx_timeout"):
            ask(f"SET GLOBAL {name}={_TIMEOUT_US}")
        ask(f"ALTER USER root IDENTIFIED BY '{password}'")

    def admit_others(self, ask: Ask, password: str) -> None:
        """Its list of addresses knows no accounts: from now on root gets in from elsewhere as well, by its password."""
        ask("SET GLOBAL ob_tcp_invited_nodes='%'")
        super().admit_others(ask, password)

    def fairness(self, settings: Spec, index: Spec) -> dict[str, str]:
        return {
            "HNSW": f"vsag's, m={index['M']}, ef_construction={index['ef_construction']}, "
            f"type={self.types[index.get('quantizer', 'none')]}",
            "filters": "secondary indexes on category, price and region; it chooses by itself between filtering "
            "first and searching the graph (adaptive scan)",
            "durability": "inserts are acknowledged after its redo log was written",
            "set by anncestry": "port, data file grown by 64 MiB, memory_budget, timeouts of statements, access from "
            "loopback (and from the addresses of ANNCESTRY_ADDRESS) only, telemetry off",
        }
