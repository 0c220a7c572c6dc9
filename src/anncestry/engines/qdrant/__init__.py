"""What Qdrant offers, from an image or as a server that somebody else runs. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Offers, Parameter
from anncestry.errors import Unsupported

PROGRAM = "qdrant"
"""Of its image."""
METRICS = {"l2": "Euclid", "cosine": "Dot"}
"""Its `distance`. Vectors come normalised for cosine, where an inner product is a cosine."""


@dataclass(frozen=True, kw_only=True)
class QdrantOffers(Offers):
    """Beside what every engine checks: one node, and filters on ids."""

    def check_topology(self, system: Spec, topology: Spec) -> None:
        super().check_topology(system, topology)
        if max(topology["nodes"], topology["replicas"]) > 1:
            raise Unsupported("topology: qdrant is not asked yet which node holds which shard: take one, with one copy")

    def check_search(self, workload: Spec) -> None:
        super().check_search(workload)
        if (workload.get("filter") or {}).get("field") == "id":
            raise Unsupported("filter.field: id is unsupported by qdrant: it filters ids by lists, not by bounds")


OFFERS = QdrantOffers(
    name="qdrant",
    # 1.15 is the last whose messages these were compared with; 1.9 the first that counts indexed vectors as they do.
    versions=((1, 9, 0), (1, 16, 0)),
    settings={"full_scan_threshold": (1, 1_000_000_000)},
    runtimes=("docker", "remote"),
    program=PROGRAM,
    endpoints=("grpc",),
    indexes={"hnsw": {"M": Parameter(4, 10_000), "ef_construction": Parameter(4, 10_000)}},
    conditions=("keyword", "int", "float"),
)
