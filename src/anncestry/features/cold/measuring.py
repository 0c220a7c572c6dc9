"""A run on a server of its own, and the operating system's page cache of its data: dropped before, or as it was."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.drive.client import ERROR
from anncestry.measure.runs import Context, Findings, Measuring, Published
from anncestry.metrics import latency
from anncestry.metrics.latency import over_runs

_LIBC = ctypes.CDLL(None, use_errno=True)


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder, followlinks=True):  # a storage path is a link
        for name in sorted(names):
            path = Path(where) / name
            if path.is_file() and not path.is_symlink():
                yield path


def drop(folder: Path) -> None:
    """Write back all files below `folder` and ask the kernel to forget their pages; it may keep some."""
    for path in _files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(folder: Path) -> float:
    """The share of the pages of all files below `folder` that lie in memory, from 0 to 1; 0 where there are none."""
    pages, present = 0, 0
    for path in _files(folder):
        size = path.stat().st_size
        if not size:
            continue
        count = -(-size // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * count)()
        with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            failed = _LIBC.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), states)
            del view
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore: {path}")
        pages += count
        present += sum(state & 1 for state in states)
    return present / pages if pages else 0.0


class Cold(Measuring):
    """A cold start."""

    described = "its cold starts"

    def prepare(self, data_dir: Path) -> None:
        page_cache = self.run.workload["page_cache"]
        if page_cache == "dropped":
            drop(data_dir)
        self.facts: dict[str, Any] = {"page_cache": page_cache, "resident_share": resident(data_dir)}

    def opened(self, start_s: float, open_s: float) -> None:
        self.facts = {"start_s": start_s, "open_s": open_s, **self.facts}

    def judge(self, context: Context, findings: Findings) -> None:
        findings.facts["cold"] = self.facts

    @classmethod
    def summarise(cls, published: Published) -> Mapping[str, Any]:
        """Seconds from the start of the process to the first search, and the first query of the workload."""
        stored = published.stored
        starts = list(stored["cold"]["starts"]) if stored else published.facts("cold")
        return {
            "cold": {
                "searchable_s": over_runs([start["start_s"] + start["open_s"] for start in starts]),
                "first_ms": over_runs([_first_ms(run) for run in published.of_runs]),
                "page_cache": starts[0]["page_cache"],
                "resident_share": max(start["resident_share"] for start in starts),
                "starts": starts,
            }
        }


def _first_ms(run: latency.Run) -> float:
    """How long the first query waited for its answer; NaN if it failed, as to fail fast is not to be fast."""
    if not len(run.due_ns):
        return math.nan
    first = int(np.argmin(run.due_ns))
    return math.nan if run.status[first] == ERROR else float(run.latency_ns[first] / 1e6)


MEASURING = Cold
