"""Names and ranges that several parts need; imports no client."""

from __future__ import annotations

COLLECTION = "Bench"
METRICS = {"l2": "l2-squared", "cosine": "dot"}
"""Vectors come normalised for cosine, so that the inner product is the cosine."""
OF_GRAPHS = ("flatSearchCutoff", "filterStrategy", "vectorCacheMaxObjects", "cleanupIntervalSeconds")
"""What of the vectorIndexConfig of an index with a graph a system may set."""
OF_SERVERS = ("asyncIndexing", "protocol")
"""What a system may set beside: whether vectors are indexed in the background; by what rows and queries go."""
PROTOCOLS = ("grpc", "rest")
MEMORY_MIN_MIB = 128
"""Of a node: below, it dies while it starts or at its first batch."""
DEFAULT_CUTOFF = 40_000
"""flatSearchCutoff of a collection that sets none."""
REMOTE = "weaviate (remote)"
"""A server that somebody else runs, in messages."""
