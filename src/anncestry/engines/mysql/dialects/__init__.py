"""The databases of the MySQL protocol, by name."""

from __future__ import annotations

from anncestry.engines.base import Spec
from anncestry.engines.mysql.dialects.base import Dialect
from anncestry.engines.mysql.dialects.mariadb import MariaDB
from anncestry.engines.mysql.dialects.polardb import PolarDB
from anncestry.engines.mysql.dialects.seekdb import Seekdb
from anncestry.errors import ConfigError

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Seekdb(), MariaDB(), PolarDB())}


def dialect_of(system: Spec) -> Dialect:
    """What a system's settings.dialect names; ConfigError lists those that there are."""
    name = (system.get("settings") or {}).get("dialect")
    if name not in DIALECTS:
        raise ConfigError(f"settings.dialect: {name!r} is none of {', '.join(DIALECTS)}")
    return DIALECTS[name]
