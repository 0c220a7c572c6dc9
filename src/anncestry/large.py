"""Arrays that may be larger than memory: from a bound on they lie in a file without a name, which is mapped.

What is written here gives the very same numbers for an array of any size: elements are moved, compared and counted,
sums are left to who asks. The kernel may drop the pages of a mapped file whenever it needs room, so that a process
under a hard limit can hold any number of such arrays; and a file without a name is gone with its process.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

FILE_BYTES = 4 << 20
"""An array of more bytes than this is a file."""
ROWS = 1 << 20
"""How many elements are looked at, or sorted in memory, at a time."""
_SAMPLE = 1 << 16
_PLACE = Path("scratch")


def empty(length: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array (length,) to be filled. OSError if the disk has no room for it."""
    size = length * np.dtype(dtype).itemsize
    if size <= FILE_BYTES:
        return np.empty(length, dtype)
    with _file() as file:
        _reserve(file, size)
        return np.asarray(np.memmap(file, dtype, "r+", shape=(length,)))


def npy(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap[Any, Any]:
    """An npy file, zeros to be filled in any order. OSError if the disk has no room for it."""
    with open(path, "wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        _reserve(file, file.tell() + math.prod(shape) * np.dtype(dtype).itemsize)
    return np.lib.format.open_memmap(path, "r+")


def parts(length: int, rows: int | None = None) -> Iterator[slice]:
    """The numbers below `length` in slices of `rows` (ROWS)."""
    rows = rows or ROWS
    return (slice(start, min(start + rows, length)) for start in range(0, length, rows))


class Growing:
    """An array whose length is known when all of it is there."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._held: list[NDArray[Any]] = []
        self._bytes = 0
        self._spilt: Any = None
        self._length = 0

    def append(self, values: NDArray[Any]) -> None:
        """Values (n,) to follow those that are there; OSError if the disk is full."""
        if not len(values):
            return
        self._held.append(np.ascontiguousarray(values, self._dtype))
        self._bytes += self._held[-1].nbytes
        self._length += len(values)
        if self._bytes > FILE_BYTES:
            if self._spilt is None:
                self._spilt = _file()
            for each in self._held:
                self._spilt.write(each.data)
            self._held, self._bytes = [], 0

    def array(self) -> NDArray[Any]:
        """All of it, (length,); nothing can be appended any more."""
        if self._spilt is None:
            return np.concatenate(self._held) if self._held else np.empty(0, self._dtype)
        with self._spilt as file:
            for each in self._held:
                file.write(each.data)
            file.flush()
            return np.asarray(np.memmap(file, self._dtype, "r+", shape=(self._length,)))


def sorted_by(key: NDArray[Any], *others: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """`key` (n,) ascending, and the others (n,) in its order; equal keys keep theirs.

    More than ROWS are distributed over ranges of the key, each of which is then sorted alone: the bounds of the ranges
    are quantiles of a sample, and a key that is a bound has a range of its own, which needs no sorting.
    """
    arrays = (key, *others)
    if len(key) <= ROWS:
        order = np.argsort(key, kind="stable")
        return tuple(array[order] for array in arrays)
    sample = np.sort(key[:: max(1, len(key) // _SAMPLE)])
    count = -(-2 * len(key) // ROWS)
    bounds = np.unique(sample[np.arange(1, count) * len(sample) // count])

    def ranges(part: slice) -> NDArray[np.intp]:
        here = key[part]
        return np.searchsorted(bounds, here, "left") + np.searchsorted(bounds, here, "right")

    sizes = np.zeros(2 * len(bounds) + 1, dtype=np.int64)
    for part in parts(len(key)):
        sizes += np.bincount(ranges(part), minlength=len(sizes))
    ends = np.cumsum(sizes)
    places = ends - sizes
    found = tuple(empty(len(key), array.dtype) for array in arrays)
    for part in parts(len(key)):
        of = ranges(part)
        order = np.argsort(of.astype(np.uint16 if len(sizes) < 1 << 16 else np.int64), kind="stable")
        counts = np.bincount(of, minlength=len(sizes))
        moved = [array[part][order] for array in arrays]
        start = 0
        for number in np.flatnonzero(counts).tolist():
            end, to = start + int(counts[number]), int(places[number])
            for target, source in zip(found, moved, strict=True):
                target[to : to + end - start] = source[start:end]
            places[number] += end - start
            start = end
    for number in range(0, len(sizes), 2):  # the odd ones hold one value each
        inside = slice(ends[number] - sizes[number], ends[number])
        if 1 < sizes[number] < len(key):
            for target, values in zip(found, sorted_by(*(target[inside] for target in found)), strict=True):
                target[inside] = values
    return found


def rank(length: int, q: float) -> int:
    """Which of `length` ascending values is their quantile q by nearest rank, from 0: numpy's `inverted_cdf`."""
    return max(math.ceil(length * q - 1), 0)


def median(values: NDArray[Any]) -> float:
    """As numpy's, of (n,) values, n > 0."""
    if len(values) <= ROWS:
        return float(np.median(values))
    (ascending,) = sorted_by(values)
    middle = len(values) // 2
    return float(np.mean(ascending[middle - 1 + len(values) % 2 : middle + 1]))


def _reserve(file: Any, size: int) -> None:
    """Take the room now, with a word: a mapped page that finds none later would end the process without one."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        error.filename = file.name if isinstance(file.name, str) else None
        raise


def _file() -> Any:
    """A file without a name, in the project's own place for what can be made again, if there is one."""
    return tempfile.TemporaryFile(dir=_PLACE if _PLACE.is_dir() else None)  # who asks, closes it
