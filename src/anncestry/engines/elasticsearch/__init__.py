"""What Elasticsearch offers, from an image or as a server that somebody else runs. Imports no client."""

from __future__ import annotations

from dataclasses import dataclass

from anncestry.engines.base import Spec
from anncestry.engines.offers import Offers, Parameter
from anncestry.errors import Unsupported

PROGRAM = "elasticsearch"
"""Of its image."""
METRICS = {"l2": "l2_norm", "cosine": "dot_product"}
"""Its `similarity`. Vectors come normalised for cosine, where an inner product is a cosine."""


@dataclass(frozen=True, kw_only=True)
class ElasticsearchOffers(Offers):
    """Beside what every engine checks: filters on ids."""

    def check_search(self, workload: Spec) -> None:
        super().check_search(workload)
        if (workload.get("filter") or {}).get("field") == "id":
            raise Unsupported(
                "filter.field: id is unsupported by elasticsearch: ids are texts, which have no order here"
            )


OFFERS = ElasticsearchOffers(
    name="elasticsearch",
    # `index_options` of these versions can name the plain graph; their default may be one of codes.
    versions=((8, 12, 0), (9, 1, 0)),
    runtimes=("docker", "remote"),
    program=PROGRAM,
    endpoints=("http",),
    indexes={"hnsw": {"M": Parameter(2, 512), "ef_construction": Parameter(2, 3200)}},
    ef_max=10_000,
    no_zero_vectors="refuses a vector of length 0 where the similarity is dot_product",
    conditions=("keyword", "int", "float"),
)
