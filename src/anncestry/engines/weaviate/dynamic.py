"""What a dynamic index is by now, flat or a graph: read from its shards' folders, as no interface tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FLAT, BECOMING, GRAPH = "flat", "becoming a graph", "a graph"

_UPGRADED = re.compile(rb"upgraded\x01")
"""In a shard's state (bbolt): the key and its value, which follows it. No other value is ever written."""


def form(shard: Path) -> str:
    """What the index in a shard's folder is now."""
    state = shard / "index.db"
    if state.exists() and _UPGRADED.search(state.read_bytes()):
        return GRAPH
    return BECOMING if any(shard.glob("*.hnsw.commitlog.d")) else FLAT


def settled(forms: Mapping[tuple[str, str], str], rows: int, threshold: int) -> tuple[bool, str]:
    """Whether the indexes of all shards, by node and shard, are what `rows` rows make of them, and that in words.

    Graphs, where the shards have more than `threshold` rows on average. With fewer, all of one kind: the speed and
    the recall of a mixture would be neither's.
    """
    shards = len({shard for _, shard in forms})
    due = shards > 0 and rows > threshold * shards
    kinds = set(forms.values())
    words = "; ".join(f"{shard} on {node} is {kind}" for (node, shard), kind in sorted(forms.items())) or "no shards"
    return kinds == {GRAPH} or (kinds == {FLAT} and not due), f"{words}, of {rows} rows, threshold {threshold}"
