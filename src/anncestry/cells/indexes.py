"""Types of vector index: their names and their parameter of search effort.

Each engine defines the types and parameters that its database supports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anncestry.errors import ConfigError, Unsupported

EFFORT: Mapping[str, str | None] = {
    "hnsw": "ef_search",
    "flat": None,
    "ivf_flat": "nprobe",
    "ivf_sq8": "nprobe",
    "ivf_pq": "nprobe",
    "scann": "nprobe",
    "diskann": "search_list",
    "dynamic": "ef_search",
}
"""Type → the name of its search effort: candidates kept, lists visited; None for one that looks at every vector."""
ON_GPU = ("gpu_ivf_flat", "gpu_ivf_pq", "gpu_cagra", "gpu_brute_force")
"""Types that need a GPU: known, so that a matrix may list them as what can't be measured."""
EFFORT_WORDS = {"ef_search": "ef", "nprobe": "nprobe", "search_list": "search list"}
"""Efforts by name, and what tables call them."""
EFFORTS = tuple(EFFORT_WORDS)
QUANTIZERS = ("pq", "sq", "bq", "rq8", "rq1")
"""How vectors are compressed beside a graph or in a flat index: product, scalar, binary, rotational (8 bits, 1 bit)."""
_OF_CANDIDATES = ("ef_search", "search_list")


def is_lossy(index: Mapping[str, Any]) -> bool:
    """Whether the index holds codes in place of the vectors, so that its distances and its nearest are estimates.

    (Some databases estimate first and then compute exact distances of the best: they are right, too.)
    """
    return index["type"] in ("ivf_sq8", "ivf_pq") or "quantizer" in index


def effort_of(workload: Mapping[str, Any]) -> int:
    """The search effort of a resolved workload; 0 for an index that has none."""
    return next((int(workload[name]) for name in EFFORTS if name in workload), 0)


def least_effort(index: Mapping[str, Any], k: int) -> int:
    """The smallest effort worth trying for k results: a candidate list is at least that long, a list may be alone."""
    return max(k, 8) if EFFORT[index["type"]] in _OF_CANDIDATES else 1


def asked_effort(
    index: Mapping[str, Any], workload: Mapping[str, Any], defaults: Mapping[str, Any], where: str
) -> dict[str, int]:
    """The effort that the workload (else `defaults`) names for this type of index: {name: value}, or nothing.

    Unsupported if it names only efforts of other types: such a cell would not be the question that was asked.
    """
    wanted = EFFORT.get(index["type"], "ef_search")
    given = [name for name in EFFORTS if name in workload]
    if given and wanted not in given:
        has = f"its effort is {wanted}" if wanted else "it has no search effort"
        raise Unsupported(f"{where}.{given[0]}: unsupported by an index of type {index['type']}: {has}")
    if wanted is None:
        if "target_recall" in workload:
            raise Unsupported(f"{where}.target_recall: unsupported by an index of type flat: it has no search effort")
        return {}
    return {wanted: workload.get(wanted, defaults[wanted])}


def check_fits(index: Mapping[str, Any], dim: int, where: str) -> None:
    """ConfigError if vectors of `dim` dimensions can't be cut as the index is told to."""
    for name in ("m", "segments"):
        parts = index.get(name)
        if parts is not None and dim % parts:
            raise ConfigError(f"{where}: index.{name}: {parts} does not divide the {dim} dimensions of the vectors")
    if index["type"] == "scann" and dim % 2:
        raise ConfigError(f"{where}: index.type: scann needs an even number of dimensions, not {dim}")


BatchRows = int | Mapping[str, int]
"""Rows of an insert request: a number, or {"least", "most", "values"}, which makes one of the dimensions."""


def rows_a_batch(batch_rows: BatchRows, dim: int) -> int:
    """Rows of an insert request of vectors of `dim` numbers: as many as have `values` numbers, within the bounds."""
    if isinstance(batch_rows, int):
        return batch_rows
    return min(batch_rows["most"], max(batch_rows["least"], batch_rows["values"] // dim))
