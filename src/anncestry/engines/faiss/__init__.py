"""faiss: its indexes in the client's own process; a reference point for what a server costs over them."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import Library, LibraryOffers
from anncestry.engines.offers import Parameter

_NLIST = Parameter(1, 65_536)
OFFERS = LibraryOffers(
    name="faiss",
    versions=((1, 15, 0), (1, 16, 0)),
    no_zero_vectors=None,
    indexes={
        "hnsw": {"M": Parameter(2, 2048), "ef_construction": Parameter(2, 32_768)},
        "flat": {},
        "ivf_flat": {"nlist": _NLIST},
        "ivf_sq8": {"nlist": _NLIST},
        "ivf_pq": {"nlist": _NLIST, "m": Parameter(1, 4096), "nbits": Parameter(1, 8, needed=False)},
    },
)
_CLASSES = {"ivf_flat": "IndexIVFFlat", "ivf_sq8": "IndexIVFScalarQuantizer, 8 bits", "ivf_pq": "IndexIVFPQ"}


def _statements(index: Spec) -> dict[str, str]:
    kind = index["type"]
    if kind == "flat":
        return {"index": "IndexFlat: every vector is compared; ef has no meaning"}
    if kind == "hnsw":
        return {"index": f"IndexHNSWFlat: M={index['M']} (2M at the bottom), efConstruction={index['ef_construction']}"}
    built = ", ".join(f"{name}={value}" for name, value in index.items() if name != "type")
    return {
        "index": f"{_CLASSES[kind]}: {built}; trained on the rows themselves, when all are there",
        "ef applies to": "the one index; it is nprobe, the lists visited, and travels in each request",
    }


ENGINE = Library(
    "faiss",
    Path(__file__).with_name("adapter.py"),
    stored=["faiss.index"],
    statements=_statements,
    built_with=("M", "ef_construction", "nlist", "m", "nbits"),
)
