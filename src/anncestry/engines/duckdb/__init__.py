"""DuckDB with its extension vss: SQL on one file, with usearch's graph, in the client's own process."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import SETTINGS, Library, LibraryOffers
from anncestry.engines.offers import Parameter

OFFERS = LibraryOffers(
    name="duckdb",
    versions=((1, 5, 5), (1, 6, 0)),
    no_zero_vectors=None,
    filters=("category", "price", "region", "id"),
    settings={**SETTINGS, "scan_filtered": (0, 1)},  # 1: under a filter, look at every row that passes
    indexes={"hnsw": {"M": Parameter(2, 2048), "ef_construction": Parameter(2, 32_768)}},
)


def _statements(index: Spec) -> dict[str, str]:
    return {
        "what it is": "a library, not a server: a database in one file, without a network",
        "query protocol": "SQL in the client's own process, one query a call, from Python; the vector is a parameter",
        "insert protocol": "batches over loopback to the process that builds, which inserts each from an Arrow table",
        "index": f"HNSW M={index['M']}, M0={2 * index['M']} at the bottom, ef_construction={index['ef_construction']} "
        "(it doesn't tell the latter), stored by hnsw_enable_experimental_persistence",
        "ef applies to": "the one index; it is hnsw_ef_search, set for the connection where it changes",
        "filters": "its plan applies a range to what the index has found, which leaves fewer than k, and uses no index "
        "for several categories; with scan_filtered it looks at every row that passes; so does the exact-search oracle",
        "durability": "each batch is a transaction, acknowledged after its write-ahead log was synced; a checkpoint "
        "ends the load",
        "clients": "each a process that opens the one file to read, and loads the index; their CPU and memory are what "
        "the tables call the server's",
    }


ENGINE = Library(
    "duckdb",
    Path(__file__).with_name("adapter.py"),
    stored=["rows.duckdb*"],
    statements=_statements,
    built_with=("M",),
)
