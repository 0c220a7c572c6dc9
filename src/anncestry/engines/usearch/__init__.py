"""usearch: a graph in the client's own process; DuckDB and others build theirs with it."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import Library, LibraryOffers
from anncestry.engines.offers import Parameter

OFFERS = LibraryOffers(
    name="usearch",
    versions=((2, 26, 0), (2, 27, 0)),
    no_zero_vectors=None,
    indexes={"hnsw": {"M": Parameter(2, 2048), "ef_construction": Parameter(2, 32_768)}},
)


def _statements(index: Spec) -> dict[str, str]:
    return {
        "index": f"connectivity={index['M']} (twice that at the bottom), expansion_add={index['ef_construction']} "
        "(the file doesn't keep the latter)",
        "ef applies to": "the one index; it is expansion_search, a property that is set where it changes",
    }


ENGINE = Library(
    "usearch",
    Path(__file__).with_name("adapter.py"),
    stored=["usearch.index"],
    statements=_statements,
    built_with=("M",),
)
