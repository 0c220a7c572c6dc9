"""What the databases of the MySQL protocol offer: each what its dialect says. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anncestry.engines.base import Spec
from anncestry.engines.mysql.dialect import Dialect
from anncestry.engines.mysql.mariadb import MariaDB
from anncestry.engines.mysql.polardb import PolarDB
from anncestry.engines.mysql.seekdb import Seekdb
from anncestry.engines.offers import Offers, Parameter, refuse_unknown
from anncestry.errors import ConfigError, Unsupported

COMMON_SETTINGS = ("dialect", "cosine_by", "insert_connections")
REMOTE_SETTINGS = ("user", "database")
DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Seekdb(), MariaDB(), PolarDB())}


def dialect_of(system: Spec) -> Dialect:
    """What a system's settings.dialect names; ConfigError lists those that there are."""
    name = (system.get("settings") or {}).get("dialect")
    if name not in DIALECTS:
        raise ConfigError(f"settings.dialect: {name!r} is none of {', '.join(DIALECTS)}")
    return DIALECTS[name]


@dataclass(frozen=True, kw_only=True)
class MySQLOffers(Offers):
    """What all of them offer; `check` and `check_upgrade` take the rest from the dialect of the system."""

    def check(self, system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
        super(MySQLOffers, self._of(system)).check(system, topology, index, workload)

    def check_upgrade(self, system: Spec, older: Spec) -> None:
        super(MySQLOffers, self._of(system)).check_upgrade(system, older)
        if (system.get("settings") or {}) != (older.get("settings") or {}):
            raise ConfigError("settings: an upgrade in place has those of the older system")

    def check_zero_vectors(self, system: Spec) -> None:
        super(MySQLOffers, self._of(system)).check_zero_vectors(system)

    def check_pair(self, system: Spec, topology: Spec, slice_s: float) -> None:
        super(MySQLOffers, self._of(system)).check_pair(system, topology, slice_s)

    def needs_interface(self, system: Spec) -> bool:
        return dialect_of(system).needs_interface

    @staticmethod
    def _of(system: Spec) -> MySQLOffers:
        """What the database of this system offers."""
        dialect = dialect_of(system)
        graph = {"M": Parameter(*dialect.m), "ef_construction": Parameter(*dialect.ef_construction)}
        return replace(
            OFFERS,
            name=dialect.name,
            versions=dialect.versions,
            runtimes=dialect.runtimes,
            memory_min_mib=dialect.memory_min_mib,
            indexes={"hnsw": graph},
            quantizers={"hnsw": dialect.quantizers},
            largest_k=dialect.largest_k,
            ef_max=dialect.ef_max,
            freeze=dialect.freeze,
            no_zero_vectors=dialect.no_zero_vectors.get(
                dialect.distance(system["settings"], "cosine"), OFFERS.no_zero_vectors
            ),
        )

    def check_index(self, system: Spec, topology: Spec, index: Spec) -> None:
        super().check_index(system, topology, index)
        for name in ("rescore_limit", "training_limit", "segments"):
            if name in index:
                raise Unsupported(f"index.{name}: unsupported by {self.name}: its quantizers have no such option")

    def check_settings(self, system: Spec, topology: Spec, index: Spec) -> None:
        dialect, settings = dialect_of(system), system.get("settings") or {}
        remote = REMOTE_SETTINGS if topology["runtime"] == "remote" else ()
        refuse_unknown(f"settings of {self.name}", settings, (*COMMON_SETTINGS, *dialect.numbers, *remote))
        dialect.check(settings)

    def check_workload(self, system: Spec, topology: Spec, index: Spec, workload: Spec) -> None:
        super().check_workload(system, topology, index, workload)
        if not dialect_of(system).conditions and (workload.get("filter") or {}).get("field") == "payload":
            raise Unsupported(f"filter: conditions on payload are unsupported by {self.name}: nobody has tried them")


OFFERS = MySQLOffers(
    name="mysql",
    single="one node here",
    endpoints=("mysql",),
    no_fault=None,
    beyond_loopback=True,
    conditions=("keyword", "int", "float"),
)
