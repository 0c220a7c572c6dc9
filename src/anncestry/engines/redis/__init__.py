"""What Redis with its query engine offers. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offers, Parameter, refuse_unknown
from anncestry.errors import ConfigError, Unsupported

METRICS = {"l2": "L2", "cosine": "IP"}
"""Its DISTANCE_METRIC. Vectors come normalised for cosine, where its inner product distance, 1 - x·y, is 1 - cos."""
SETTINGS = {"appendfsync": ("always", "everysec", "no"), "hybrid_policy": ("batches", "adhoc_bf")}
"""Settings of a system and what each may be: of the server; of searches under a filter (its planner's if not set)."""


@dataclass(frozen=True, kw_only=True)
class RedisOffers(Offers):
    """Beside what every engine checks: settings that are words, and what its filters can't say."""

    def check_settings(self, system: Spec, topology: Spec, index: Spec) -> None:
        settings = system.get("settings") or {}
        refuse_unknown("settings of redis", settings, tuple(SETTINGS))
        for name, value in settings.items():
            if value not in SETTINGS[name]:
                raise ConfigError(f"settings.{name}: {value!r} is none of {', '.join(SETTINGS[name])}")

    def check_search(self, workload: Spec) -> None:
        super().check_search(workload)
        if (workload.get("filter") or {}).get("field") == "id":
            raise Unsupported(
                "filter.field: id is unsupported by redis: an id is the name of a key, which no filter compares"
            )


OFFERS = RedisOffers(
    name="redis",
    versions=((7, 4, 0), (7, 5, 0)),  # of Redis Stack 7.4; no package holds an earlier or later pair
    runtimes=("native",),
    single="one server, which holds its index in memory",
    indexes={"hnsw": {"M": Parameter(2, 1000), "ef_construction": Parameter(1, 32_768)}, "flat": {}},
    no_zero_vectors=None,
    freeze=Freeze(40.0),
    conditions=("keyword", "int", "float"),
    killed_loads=True,
)
