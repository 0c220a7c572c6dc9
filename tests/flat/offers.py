"""What the engine for tests offers: nearly everything is possible, so that tests can ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anncestry.engines.offers import Freeze, Offers, refuse_unknown
from anncestry.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FlatOffers(Offers):
    def check(self, system: Mapping, topology: Mapping, index: Mapping, workload: Mapping | None) -> None:
        refuse_unknown("settings of flat", system.get("settings", {}), ["lie", "authorization", "journal"])
        if topology.get("nodes") not in (1, 3):
            raise ConfigError("engine flat can't do this topology")

    def limited(self, system: Mapping, topology: Mapping) -> int:
        return topology["nodes"]

    def check_upgrade(self, system: Mapping, older: Mapping) -> None:
        if system["version"] <= older["version"]:
            raise ConfigError(f"flat {system['version']} can't read what {older['version']} wrote")


OFFERS = FlatOffers(
    name="flat",
    no_zero_vectors=None,
    freeze=Freeze(10.0),
    conditions=("keyword", "int", "float"),
    killed_loads=True,
    beyond_loopback=True,  # at the address of this machine, where one is said
)
