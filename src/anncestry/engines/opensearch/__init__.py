"""What OpenSearch with k-NN's Lucene engine offers. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Freeze, Offers, Parameter
from anncestry.errors import Unsupported

METRICS = {"l2": "l2", "cosine": "innerproduct"}
"""Its `space_type`. Vectors come normalised for cosine, where an inner product is a cosine."""
HEAP_MIB = 1024
"""Of the Java machine where a system sets no `heap_mib`: OpenSearch's own default."""


def nodes_of(topology: Spec) -> list[str]:
    """The names of its nodes."""
    return [f"node{number + 1}" for number in range(topology["nodes"])]


@dataclass(frozen=True, kw_only=True)
class OpenSearchOffers(Offers):
    """Beside what every engine checks: filters on ids."""

    def limited(self, system: Spec, topology: Spec) -> int:
        return int(topology["nodes"])

    def members(self, system: Spec, topology: Spec) -> list[str]:
        return nodes_of(topology)

    def check_search(self, workload: Spec) -> None:
        super().check_search(workload)
        if (workload.get("filter") or {}).get("field") == "id":
            raise Unsupported("filter.field: id is unsupported by opensearch: ids are texts, which have no order here")


OFFERS = OpenSearchOffers(
    name="opensearch",
    versions=((3, 5, 0), (3, 7, 0)),
    settings={"heap_mib": (512, 1_000_000)},
    runtimes=("native",),
    topology=("entry",),
    no_fault="was never tried with a member lost",
    indexes={"hnsw": {"M": Parameter(2, 512), "ef_construction": Parameter(2, 3200)}},
    ef_max=10_000,
    no_zero_vectors=None,
    freeze=Freeze(40.0),
    conditions=("keyword", "int", "float"),
    killed_loads=True,
)
