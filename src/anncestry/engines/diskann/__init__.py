"""DiskANN: a graph on disk, searched in the client's own process; the library itself (diskannpy), not a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anncestry.engines.base import Spec
from anncestry.engines.inprocess import SETTINGS, Library, LibraryOffers
from anncestry.engines.offers import Parameter
from anncestry.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DiskannOffers(LibraryOffers):
    """Beside: two parameters that depend on each other."""

    def check_index(self, system: Spec, topology: Spec, index: Spec) -> None:
        """ConfigError, too, for a list that is shorter than the degree."""
        super().check_index(system, topology, index)
        if index["build_list"] < index["max_degree"]:
            raise ConfigError(f"index.build_list: {index['build_list']} is less than max_degree: {index['max_degree']}")


OFFERS = DiskannOffers(
    name="diskann",
    versions=((0, 7, 0), (0, 8, 0)),
    no_zero_vectors="compares by squared distances, by which a zero vector is nearer than it is by cosine",
    settings={
        **SETTINGS,
        "beam_width": (1, 64),  # nodes read at once in a step of a search
        "nodes_to_cache": (0, 10_000_000),  # around the medoid, kept in memory
        "build_memory_mib": (64, 16_777_216),
    },
    indexes={
        "diskann": {
            "max_degree": Parameter(4, 512),
            "build_list": Parameter(8, 4096),
            "m": Parameter(1, 4096),  # bytes of a vector's product-quantized code, all that memory holds of it
        }
    },
)


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


ENGINE = Library(
    "diskann",
    Path(__file__).with_name("adapter.py"),
    stored=["ann_*"],
    statements=_statements,
    built_with=("max_degree", "m"),
)
