"""DiskANN's static index on disk, where it runs: see `library_host`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import diskannpy
import numpy as np

PACKAGE = "diskannpy"
_PREFIX = "ann"
_SECTOR = 4096
_THREADS = 2
"""Of an opened index. A search takes one; with only one, opening it waits for ever for a second (DiskANN issue 461)."""
_EVENTS = 1024
"""Of the kernel's asynchronous IO that each of them reserves."""
_MEMORY_MIB = 4096
_UNUSED = ("mem.index.data", "sample_data.bin", "sample_ids.bin", "vectors.bin")
"""What building leaves that no search reads."""


def _most_cached(rows: int) -> int:
    """How many nodes DiskANN keeps in memory at most, whatever it is asked."""
    return max(1, round(rows / 10))


class Builder:
    """Writes rows to a file as they come; the graph is built from it in the end."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts = folder, facts
        cached, most = facts["settings"].get("nodes_to_cache", 0), _most_cached(facts["rows"])
        if cached > most:  # before hours of building
            raise ValueError(
                f"settings.nodes_to_cache: {cached} is more than {most}, a tenth of the rows, which DiskANN keeps"
            )
        self.rows = folder / f"{_PREFIX}_rows.bin"
        self.file = self.rows.open("wb")
        self.file.write(struct.pack("<ii", facts["rows"], facts["dim"]))

    def add(self, vectors: Any) -> None:
        self.file.write(np.ascontiguousarray(vectors, "<f4").tobytes())

    def finish(self) -> None:
        """Build, and leave what searches read."""
        self.file.close()
        facts, asked = self.facts, self.facts["index"]
        # The size of a code is said by the memory that all of them may take. (Beyond 1 GiB a quarter is set aside.)
        codes_gib = facts["rows"] * (asked["m"] + 0.5) / 2**30
        diskannpy.build_disk_index(
            data=str(self.rows),
            distance_metric="l2",
            index_directory=str(self.folder),
            complexity=asked["build_list"],
            graph_degree=asked["max_degree"],
            search_memory_maximum=codes_gib + (0.25 if codes_gib > 1.0 else 0.0),
            build_memory_maximum=facts["settings"].get("build_memory_mib", _MEMORY_MIB) / 1024,
            num_threads=facts["threads"],
            pq_disk_bytes=0,
            vector_dtype=np.float32,
            index_prefix=_PREFIX,
        )
        self.rows.unlink()
        for name in _UNUSED:
            (self.folder / f"{_PREFIX}_{name}").unlink(missing_ok=True)


class Searcher:
    """Searches the stored index, one query at a time, on the thread that asks."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.file = folder / f"{_PREFIX}_disk.index"
        if not self.file.exists():
            raise FileNotFoundError(str(self.file))
        _check_events()
        self.codes = folder / f"{_PREFIX}_pq_compressed.bin"
        settings = facts["settings"]
        cached = settings.get("nodes_to_cache", 0)
        self.index = diskannpy.StaticDiskIndex(
            index_directory=str(folder),
            num_threads=_THREADS,
            num_nodes_to_cache=cached,
            cache_mechanism=2 if cached else 0,
            index_prefix=_PREFIX,
        )
        self.cached, self.beam_width = cached, settings.get("beam_width", 2)
        self.cosine = facts["metric"] == "cosine"

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        """The nearest, with canonical distances: with |b| = 1, 1 − q·b = (|q − b|² + 1 − |q|²) / 2."""
        found = self.index.search(query, k, max(k, ef), beam_width=self.beam_width)
        distances = found.distances
        return found.identifiers, (distances + (1.0 - query @ query)) / 2 if self.cosine else distances

    def describe(self) -> dict[str, Any]:
        """What the files hold. (They don't tell cosine from l2, which of unit vectors is the same: distances do.)"""
        rows, dim, node_bytes, _ = self._layout()
        with self.codes.open("rb") as file:
            coded, code_bytes = struct.unpack("<ii", file.read(8))
        settings = {
            "index_type": "diskann",
            "metric": "cosine" if self.cosine else "l2",
            "max_degree": (node_bytes - 4 * dim) // 4 - 1,
            "m": code_bytes,
            "beam_width": self.beam_width,
            "nodes_to_cache": min(self.cached, _most_cached(rows)),
        }
        return {"rows": rows if rows == coded else min(rows, coded), "settings": settings}

    def vectors(self, rows: Any) -> Any:
        """Those that stand in the nodes of the graph."""
        _, dim, node_bytes, per_sector = self._layout()
        chosen = np.asarray(rows, np.int64)
        if per_sector:
            starts = _SECTOR * (1 + chosen // per_sector) + chosen % per_sector * node_bytes
        else:  # a node takes several sectors
            starts = _SECTOR * (1 + chosen * -(-node_bytes // _SECTOR))
        whole = np.memmap(self.file, np.uint8, "r")
        found = np.empty((len(chosen), dim), "<f4")
        for row, start in enumerate(starts.tolist()):
            found[row] = whole[start : start + 4 * dim].view("<f4")
        return found

    def _layout(self) -> tuple[int, int, int, int]:
        """Rows, dimensions, bytes of a node, nodes in a sector (0: more than one sector a node)."""
        with self.file.open("rb") as file:
            rows, dim, _, node_bytes, per_sector = struct.unpack_from("<5Q", file.read(_SECTOR), 8)
        return rows, dim, node_bytes, per_sector


def _check_events() -> None:
    """RuntimeError where the kernel would refuse the index its asynchronous IO, which it doesn't survive."""
    most, taken = (int(Path(f"/proc/sys/fs/aio-{name}").read_text()) for name in ("max-nr", "nr"))
    if taken + _THREADS * _EVENTS > most:
        raise RuntimeError(
            f"asynchronous IO: {taken} events of fs.aio-max-nr = {most} are taken, and each client needs "
            f"{_THREADS * _EVENTS}: ask with fewer clients or raise it (sysctl)"
        )
