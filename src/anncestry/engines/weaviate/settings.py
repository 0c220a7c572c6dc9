"""Names and ranges that several parts need; imports no client."""

from __future__ import annotations

from anncestry.engines.base import Spec, version_of
from anncestry.errors import Unsupported

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
_SDK_FROM = (1, 27, 0)
"""The first version that weaviate-client speaks to as it is locked."""
_OLD_SDK, _OLD_SDK_BELOW = "weaviate-client-4.4.4", (1, 24, 0)
"""The client (in envs/) that earlier versions are asked by, and the first that was not tried with it."""


def in_background(settings: Spec) -> bool:
    """Whether rows are indexed after they are acknowledged."""
    return settings.get("asyncIndexing") is True


def sdk_environment(system: Spec) -> str | None:
    """The environment of the client library for the system's version; None where it is the locked one.

    Unsupported where it is neither's.
    """
    version = version_of(system)
    if version >= _SDK_FROM:
        return None
    if version >= _OLD_SDK_BELOW:
        raise Unsupported(
            f"client: sdk is unsupported by weaviate {system['version']}: weaviate-client as it is locked here speaks "
            f"to Weaviate from {'.'.join(map(str, _SDK_FROM))} on, {_OLD_SDK} (envs/) was tried "
            f"below {'.'.join(map(str, _OLD_SDK_BELOW))}; take client: bytes"
        )
    return _OLD_SDK
