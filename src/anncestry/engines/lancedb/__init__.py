"""LanceDB: tables of columns in files, with an index of the vectors, in the client's own process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import Library, LibraryOffers
from anncestry.engines.offers import Parameter

OFFERS = LibraryOffers(
    name="lancedb",
    versions=((0, 40, 0), (0, 41, 0)),
    no_zero_vectors=None,
    filters=("category", "price", "region", "id"),
    settings={},  # it takes its threads from the machine
    indexes={"hnsw": {"M": Parameter(2, 2048), "ef_construction": Parameter(2, 32_768)}},
)


def _statements(index: Spec) -> dict[str, str]:
    return {
        "what it is": "a library, not a server: a database of files, without a network",
        "insert protocol": "batches over loopback to the process that builds, which adds each as an Arrow table",
        "index": f"IVF_HNSW_FLAT of one partition: m={index['M']}, ef_construction={index['ef_construction']}",
        "ef applies to": "the one partition (nprobes is 1); travels in each request",
        "filters": "before the search (its default), without indexes of the columns (its default); the exact-search "
        "oracle asks with bypass_vector_index()",
        "clients": "each a process that reads the one folder, and keeps of it what its cache holds (the default); "
        "their CPU and memory are what the tables call the server's",
        "durability": "each batch is a version in files of its own, which nobody syncs until the load ends",
        "set by anncestry": "the files are compacted before the index is built, which writes every row again; one "
        "search at a time, on its own pools of threads",
    }


@dataclass(frozen=True)
class Lancedb(Library):
    plain_hnsw: ClassVar[bool] = False
    """On clustered rows its graph answers as well with ef = 10 as with 400, where others of this M don't."""


ENGINE = Lancedb(
    "lancedb",
    Path(__file__).with_name("adapter.py"),
    stored=["rows.lance"],
    statements=_statements,
)
