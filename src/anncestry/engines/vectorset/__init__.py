"""What the vector sets of Redis 8 offer. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offers, Parameter
from anncestry.errors import Unsupported


@dataclass(frozen=True, kw_only=True)
class VectorsetOffers(Offers):
    """Beside what every engine checks: what its filters can't say."""

    def check_search(self, workload: Spec) -> None:
        super().check_search(workload)
        if (workload.get("filter") or {}).get("field") == "id":
            raise Unsupported(
                "filter.field: id is unsupported by vectorset: an id is an element's name, which no filter compares"
            )


OFFERS = VectorsetOffers(
    name="vectorset",
    versions=((8, 2, 0), (8, 3, 0)),
    settings={"filter_ef": (1, 10_000_000)},
    runtimes=("native",),
    single="one server, which holds its set in memory",
    metrics=("cosine",),
    indexes={"hnsw": {"M": Parameter(4, 4096), "ef_construction": Parameter(1, 1_000_000)}},
    no_zero_vectors="divides every vector by its length",
    freeze=Freeze(40.0),
)
