"""The column `region`: where a row lies, as one of 256 leaves of equal size, so that a filter can go with position.

The rows are halved eight times. Each half has a direction of its own, from one seeded row of it to another, and its
rows are split at the median of their projections (a random projection tree: Dasgupta and Freund, "Random projection
trees and low dimensional manifolds", STOC 2008; the direction between two rows follows the data's structure).
So the rows whose region agrees with a query's in the first h of eight bits are 1 in 2^h of all rows, to within a row,
and mostly near the query; those that differ in all of the h bits are as many, on the other side of every split.

Projections are summed in a fixed order, and equal ones ordered by row: the same regions on every machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets.distance import pair_distances
from anncestry.datasets.formats import open_vectors
from anncestry.progress import Progress

HALVINGS = 8
REGIONS = 2**HALVINGS
_CHUNK_BYTES = 16 << 20

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def regions(base: Path, queries: NDArray[np.float32], seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The regions of the rows of the npy file `base` and of the (q, d) queries, uint8 (rows,) and (q,).

    A query goes to the side of each split where a row of the same projection would be. Memory beside the result is a
    few numbers a row, and chunks of the base.
    """
    with open_vectors(base, "npy") as file:
        rows = file.rows
    random = np.random.RandomState([seed % 2**32, HALVINGS])
    node = np.zeros(rows, dtype=np.int64)
    query_node = np.zeros(len(queries), dtype=np.int64)
    with Progress(f"regions {base.parent.name}", HALVINGS * rows, "rows") as progress:
        for level in range(HALVINGS):
            directions = _directions(base, node, 2**level, random)
            along = _project(base, directions, node, progress)
            order = np.lexsort((np.arange(rows), along, node))
            starts = np.searchsorted(node[order], np.arange(2**level + 1))
            middles = (starts[:-1] + starts[1:] + 1) // 2
            # An empty half (fewer rows than regions) has no splitting point: all queries go left there.
            known = middles < starts[1:]
            split = np.full(2**level, np.inf)
            split[known] = along[order][middles[known]]
            place = np.empty(rows, dtype=np.int64)
            place[order] = np.arange(rows)
            right = place >= middles[node]
            every = np.arange(len(queries))
            query_along = -pair_distances(queries, directions, every, query_node, "cosine")
            query_node = 2 * query_node + (query_along >= split[query_node])
            node = 2 * node + right
    return node.astype(np.uint8), query_node.astype(np.uint8)


def _directions(base: Path, node: Numbers, nodes: int, random: np.random.RandomState) -> Floats:
    """For each node the difference of two of its rows that differ, float64 (nodes, dim), where such are found."""
    order = np.argsort(node, kind="stable")
    starts = np.searchsorted(node[order], np.arange(nodes + 1))
    with open_vectors(base, "npy") as file:
        directions = np.zeros((nodes, file.dim))
    for number in range(nodes):
        members = order[starts[number] : starts[number + 1]]
        draws = random.randint(2**31 - 1, size=(8, 2))
        # Opened anew for each node: pages of a memory map that were touched once stay counted as ours.
        vectors = np.load(base, mmap_mode="r", allow_pickle=False)
        for draw in draws if len(members) > 1 else ():
            one, other = (vectors[members[pick % len(members)]].astype(np.float64) for pick in draw)
            if (one != other).any():
                directions[number] = other - one
                break
    return directions


def _project(base: Path, directions: Floats, node: Numbers, progress: Progress) -> Floats:
    """The inner product of each row with the direction of its node, float64 (rows,)."""
    along = np.empty(len(node))
    start = 0
    with open_vectors(base, "npy") as file:
        for chunk in file.chunks(_CHUNK_BYTES):
            part = slice(start, start + len(chunk))
            along[part] = -pair_distances(chunk, directions, np.arange(len(chunk)), node[part], "cosine")
            start += len(chunk)
            progress.add(len(chunk))
    return along
