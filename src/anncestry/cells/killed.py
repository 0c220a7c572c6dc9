"""Loads during which the server is killed (`load: {kill: …}` of a system): which ones there can be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anncestry.cells.indexes import is_lossy
from anncestry.errors import ConfigError, Unsupported


def check(
    kill: Mapping[str, Any],
    where: str,
    engine: Any,
    name: str,
    topology: Mapping[str, Any],
    index: Mapping[str, Any],
    rows: int,
    batch_rows: int,
) -> None:
    """ConfigError, beginning with `where`, for a kill that can't be made, or after which nothing could be told.

    `engine` is the module of the engine of this `name`; `rows` are loaded in batches of `batch_rows`.
    """
    if topology["runtime"] == "remote":
        raise ConfigError(f"{where}: a server that somebody else runs (runtime remote) is left in peace")
    if not getattr(engine, "KILLED_LOADS", False):
        raise Unsupported(f"{where}: unsupported by engine {name}: its load does not go on after a kill")
    beside = [key for key in ("external", "roles", "storage") if key in topology]
    if topology["runtime"] != "native" or topology["nodes"] != 1 or beside:
        found = f"{topology['nodes']} nodes, runtime {topology['runtime']}" + (f", {beside[0]}" if beside else "")
        raise ConfigError(f"{where}: needs one server that runs here as a process (native); the topology has {found}")
    if is_lossy(index):
        raise ConfigError(
            f"{where}: an index of codes finds its rows by estimates, so that one it misses may be there: take another"
        )
    last_at = (math.ceil(rows / batch_rows) - 1) * batch_rows
    if not kill["after_share"] * rows <= last_at:  # so said, it also refuses what is no number (.nan)
        raise ConfigError(
            f"{where}.after_share: {kill['after_share']:g} of {rows} rows in batches of {batch_rows}: "
            "no batch is left to be sent after the kill"
        )
