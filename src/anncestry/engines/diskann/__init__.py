"""DiskANN: a graph on disk, searched in the client's own process; the library itself (diskannpy), not a server."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.indexes import Offered, Parameter
from anncestry.engines.indexes import check_index as check_offered
from anncestry.engines.inprocess import Library
from anncestry.errors import ConfigError

OFFERED: Offered = {
    "diskann": {"max_degree": Parameter(4, 512), "build_list": Parameter(8, 4096), "m": Parameter(1, 4096)}
}
"""`m`: bytes of a vector's product-quantized code, all that memory holds of it."""
SETTINGS = {"beam_width": (1, 64), "nodes_to_cache": (0, 10_000_000), "build_memory_mib": (64, 16_777_216)}
"""Nodes read at once in a step of a search; nodes around the medoid kept in memory; memory that building may take."""


def _check_index(index: Spec) -> None:
    check_offered("diskann", index, OFFERED)
    if index["build_list"] < index["max_degree"]:
        raise ConfigError(f"index.build_list: {index['build_list']} is less than max_degree: {index['max_degree']}")


def _statements(index: Spec) -> dict[str, str]:
    return {
        "index": f"DISKANN max_degree={index['max_degree']}, build_list={index['build_list']} (the file doesn't keep "
        f"the latter), codes of {index['m']} bytes in memory; graph and full vectors on disk",
        "ef applies to": "the one index; it is search_list, the candidates kept, and travels in each request",
        "distances": "squared Euclidean; for cosine made of it, for vectors of length 1 (the library's index on disk "
        "has no cosine)",
        "reads": "asynchronous and direct (O_DIRECT, libaio): what it reads comes from the device, not the page cache",
        "clients": "each a process with its own codes in memory and the one graph on disk; their CPU, memory and IO "
        "are what the tables call the server's",
    }


ENGINE: Library = Library(
    "diskann",
    Path(__file__).with_name("adapter.py"),
    oldest=(0, 7, 0),
    below=(0, 8, 0),
    check_index=_check_index,
    stored=["ann_*"],
    statements=_statements,
    built_with=("max_degree", "m"),
    settings=SETTINGS,
)
