"""The operating system's page cache of a folder: dropped before a cold start, and how much of it is there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

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
