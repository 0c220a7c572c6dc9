"""hnswlib: the graph alone, in the client's own process; a reference point for what a server costs over it."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import Library, LibraryOffers
from anncestry.engines.offers import Parameter

OFFERS = LibraryOffers(
    name="hnswlib",
    versions=((0, 8, 0), (0, 9, 0)),
    no_zero_vectors=None,
    indexes={"hnsw": {"M": Parameter(2, 2048), "ef_construction": Parameter(2, 32_768)}},
)


def _statements(index: Spec) -> dict[str, str]:
    return {"index": f"M={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}"}


ENGINE = Library("hnswlib", Path(__file__).with_name("adapter.py"), stored=["hnsw.index"], statements=_statements)
