"""Weaviate's protobuf messages, from its client (which itself is not used: it adds checks, retries and conversions)."""

from __future__ import annotations

import warnings

# The client's OAuth dependency announces its own deprecations at import, whatever filters are set.
with warnings.catch_warnings(record=True):
    from weaviate.proto.v1 import base_pb2, base_search_pb2, batch_delete_pb2, batch_pb2, search_get_pb2

__all__ = ["base_pb2", "base_search_pb2", "batch_delete_pb2", "batch_pb2", "search_get_pb2"]
