"""What Chroma offers. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offers, Parameter
from anncestry.errors import Unsupported

METRICS = {"l2": "l2", "cosine": "ip"}
"""Its `space`. Vectors come normalised for cosine, where its inner product distance, 1 - x·y, is 1 - cos."""


@dataclass(frozen=True, kw_only=True)
class ChromaOffers(Offers):
    """Beside what every engine checks: what its `where` can't say, and why no other runtime is offered."""

    def check_topology(self, system: Spec, topology: Spec) -> None:
        if topology.get("runtime") == "remote":
            raise Unsupported(
                "topology: runtime remote is unsupported by chroma: a changed ef is used only after a restart of the "
                "server, and the server does not tell its version"
            )
        super().check_topology(system, topology)

    def check_search(self, workload: Spec) -> None:
        super().check_search(workload)
        if workload.get("start") == "cold":
            raise Unsupported("start: cold is unsupported by chroma: it uses a changed ef only after another start")
        if (workload.get("filter") or {}).get("field") == "id":
            raise Unsupported(
                "filter.field: id is unsupported by chroma: ids are texts, which it compares for equality only"
            )


OFFERS = ChromaOffers(
    name="chroma",
    versions=((1, 0, 21), (1, 6, 0)),  # the Rust server; earlier and later ones were not tried
    settings={"sync_threshold": (2, 10_000_000)},
    runtimes=("native",),
    single="one server with one SQLite file",
    indexes={"hnsw": {"M": Parameter(2, 1000), "ef_construction": Parameter(1, 32_768)}},
    batches=True,
    no_zero_vectors=None,
    freeze=Freeze(40.0),
    conditions=("keyword", "int", "float"),
    killed_loads=True,
)
