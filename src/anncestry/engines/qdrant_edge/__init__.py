"""Qdrant Edge: Qdrant's storage, payload indexes and graph in the client's own process."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import SETTINGS, Library, LibraryOffers
from anncestry.engines.offers import Parameter

OFFERS = LibraryOffers(
    name="qdrant_edge",
    versions=((0, 9, 0), (0, 10, 0)),
    no_zero_vectors=None,
    filters=("category", "price", "region"),  # it compares ids for equality only
    settings={**SETTINGS, "full_scan_threshold": (1, 1_000_000_000)},  # KiB of vectors that pass
    indexes={"hnsw": {"M": Parameter(2, 2048), "ef_construction": Parameter(4, 32_768)}},
)


def _statements(index: Spec) -> dict[str, str]:
    return {
        "what it is": "a library, not a server: Qdrant's storage and search without its network",
        "insert protocol": "batches over loopback to the process that builds, which makes its points of them",
        "index": f"one segment: HNSW m={index['M']} (2m at the bottom), ef_construct={index['ef_construction']}; "
        "indexes of the three columns; built by optimize() after the insertion",
        "filters": "payload indexes, inside the search; below full_scan_threshold it looks at every row that passes; "
        "the exact-search oracle asks with exact=True",
        "clients": "each a process that maps the one folder, for one search thread; their CPU and memory are what the "
        "tables call the server's",
        "durability": "no write-ahead log, whose lock lets one process in; flush() after the load",
    }


ENGINE = Library(
    "qdrant_edge",
    Path(__file__).with_name("adapter.py"),
    stored=["segments", "edge_config.json", "temp_segments"],
    statements=_statements,
)
