"""hnswlib: the graph alone, in the client's own process; a reference point for what a server costs over it."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec, check_hnsw
from anncestry.engines.inprocess import Library


def _check_index(index: Spec) -> None:
    check_hnsw("hnswlib", index, m=(2, 2048), ef_construction=(2, 32_768))


def _statements(index: Spec) -> dict[str, str]:
    return {"index": f"M={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}"}


ENGINE: Library = Library(
    "hnswlib",
    Path(__file__).with_name("adapter.py"),
    oldest=(0, 8, 0),
    below=(0, 9, 0),
    check_index=_check_index,
    stored=["hnsw.index"],
    statements=_statements,
)
