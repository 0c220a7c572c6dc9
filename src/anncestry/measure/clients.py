"""What a workload is asked by: the driver's own transports (client: bytes), or the database's library (client: sdk).

The one measures the server, the other what a Python program sees of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import Engine, Server, batching
from anncestry.measure import batches
from anncestry.measure.answers import Answers, Decode, decode, decode_batches
from anncestry.measure.filtering import Filtering, encode, no_filter


def by_sdk(work: Mapping[str, Any]) -> bool:
    """Whether the workload is asked through the database's own Python library."""
    return work.get("client") == "sdk"


def requests(
    engine: Engine,
    server: Server,
    queries: NDArray[np.float32],
    work: Mapping[str, Any],
    ef_search: int,
    filtering: Filtering | None,
    members: NDArray[np.int64] | None = None,
) -> list[bytes]:
    """The request bytes of the (n, d) queries, one each, or taken together as `members` (requests, nq) says.

    For a library, which encodes by itself: the number of the query's filter (uint32) and the query.
    """
    if members is not None and members.shape[1] > 1:
        filter = None if filtering is None else filtering.asked.distinct[0]  # one for all: `load_model` sees to it
        return batching(engine).encode_batches(server, queries[members], work["k"], ef_search, filter)
    if not by_sdk(work):
        return encode(engine, server, queries, work["k"], ef_search, filtering)
    asked = no_filter(len(queries)) if filtering is None else filtering.asked
    rows = queries.astype("<f4", copy=False)
    return [int(number).to_bytes(4, "little") + row.tobytes() for number, row in zip(asked.of, rows, strict=True)]


def transport(
    engine: Engine, server: Server, work: Mapping[str, Any], ef_search: int, filtering: Filtering | None
) -> dict[str, Any]:
    """How the driver sends them."""
    if not by_sdk(work):
        return dict(engine.transport(server))
    filters = (None,) if filtering is None else filtering.asked.distinct
    return engine.sdk_transport(server, work["k"], ef_search, filters)


def decoder(engine: Engine, work: Mapping[str, Any]) -> Decode:
    """What reads the responses to requests of one vector."""
    return engine.sdk_decode if by_sdk(work) else engine.decode


def answers(
    engine: Engine, work: Mapping[str, Any], responses: Sequence[bytes], status: NDArray[np.integer], metric: str
) -> Answers:
    """The decoded responses, by vector."""
    nq, k = batches.size_of(work), work["k"]
    if nq > 1:
        return decode_batches(batching(engine).decode_batch, responses, status, nq, k, metric)
    return decode(decoder(engine, work), responses, status, k, metric)
