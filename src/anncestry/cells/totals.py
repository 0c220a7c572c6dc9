"""Equal totals: the topologies of a block allow a system the same CPU and memory, all members together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from anncestry.cells.config import Config
from anncestry.errors import ConfigError


class Limiter(Protocol):
    """What is wanted of an engine."""

    def limited(self, system: Mapping[str, Any], topology: Mapping[str, Any]) -> int:
        """How many members of a system in this topology have its `limits`, each."""


def check(config: Config, engine: Callable[[str], Limiter], block: Mapping[str, Sequence[str]], where: str) -> None:
    """ConfigError unless a system may use the same CPU and memory in total in each of a block's topologies.

    What stands beside it counts: it does a part of the work. `engine` finds that of a system.
    """
    for system in block["systems"]:
        first: tuple[str, float, int] | None = None
        for name in block["topologies"]:
            topology = config.topologies[name]
            shares = [("", engine(system).limited(config.systems[system], topology))]
            shares += [(place, 1) for place in topology.get("external") or {}]
            cpus, memory_mib = 0.0, 0
            for place, members in shares:
                beside = topology.get("external_limits") or {}
                limits = (beside.get(place) if place else topology.get("limits")) or {}
                if not {"cpus", "memory_mib"} <= limits.keys():
                    of = f"both cpus and memory_mib{' of its ' + place if place else ''}"
                    raise ConfigError(f"{where}: equal_totals: {name} does not limit {of}")
                cpus, memory_mib = cpus + limits["cpus"] * members, memory_mib + limits["memory_mib"] * members
            total = (name, round(cpus, 6), memory_mib)
            first = first or total
            if total[1:] != first[1:]:
                said = " and ".join(f"{cpus:g} CPUs, {mib} MiB in {of}" for of, cpus, mib in (first, total))
                raise ConfigError(f"{where}: equal_totals: {system} may use {said}")
