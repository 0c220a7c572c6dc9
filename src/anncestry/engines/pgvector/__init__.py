"""What pgvector offers. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offered, Offers, Parameter
from anncestry.errors import ConfigError

REMOTE_SETTINGS = ("user", "database")
"""Of a server that somebody else runs, beside its settings: who logs in, and where the table is to be."""
INDEXES: Offered = {
    "hnsw": {"M": Parameter(2, 100), "ef_construction": Parameter(4, 1000)},
    "ivf_flat": {"nlist": Parameter(1, 32_768)},
}
_RESERVED = (
    "port", "listen_addresses", "unix_socket_directories", "data_directory", "hba_file", "session_preload_libraries",
    "hnsw.ef_search", "ivfflat.probes", "logging_collector", "fsync", "enable_indexscan",
    "enable_seqscan",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PgvectorOffers(Offers):
    """Beside what every engine checks: two parameters of HNSW that depend on each other, and PostgreSQL's settings."""

    def check_index(self, system: Spec, topology: Spec, index: Spec) -> None:
        super().check_index(system, topology, index)
        if index["type"] == "hnsw" and index["ef_construction"] < 2 * index["M"]:
            raise ConfigError(f"index.ef_construction for pgvector: at least twice M, not {index['ef_construction']}")

    def check_settings(self, system: Spec, topology: Spec, index: Spec) -> None:
        for name, value in (system.get("settings") or {}).items():
            if name in REMOTE_SETTINGS and topology["runtime"] != "remote":
                raise ConfigError(f"settings: {name} is for a server that somebody else runs (runtime remote)")
            if name in _RESERVED:
                raise ConfigError(f"settings: {name} is set by anncestry and can't be changed")
            if isinstance(value, bool | dict | list):
                raise ConfigError(
                    f"settings: {name}: {value!r} is not written as PostgreSQL shows it, such as 'off' or 1GB"
                )


OFFERS = PgvectorOffers(
    name="pgvector",
    versions=((0, 8, 0), (0, 9, 0)),
    runtimes=("native", "remote"),
    single="one server with one table",
    memory_min_mib=256,
    endpoints=("sql",),
    indexes=INDEXES,
    largest_k=1000,
    ef_max=1000,
    no_zero_vectors=None,
    freeze=Freeze(40.0),
    conditions=("keyword", "int", "float"),
)
