"""The requests of a run, their order, for an open loop when they are due; and what their responses hold.

The driver's own transports send them (client: bytes), which measures the server, or a client library (client: sdk and
others), which measures what a program sees of it. Responses are decoded after the clock has stopped.

Requests of several vectors (a workload's `nq`): the vectors, in their order, are cut into batches of nq. Their order is
a circle: where the last batch would not be full, it asks the first vectors again. So no request is padded, and no
vector is left out. Latency, errors and queries per second are those of requests. Ids, distances, recall and gates are
those of vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry import redact
from anncestry.datasets.distance import Floats, Ids
from anncestry.datasets.metadata import Asked
from anncestry.drive.client import ERROR, OK
from anncestry.engines.base import Answer, DecodeError, Engine, ErrorReplyError, Server
from anncestry.measure.vectors import Filtering
from anncestry.provenance.gates import DISTANCE_REL_ERROR_MAX

_PRIME_MIN = 5
_HALF_UNIT = 2.0**-24
"""Half a unit in the last place of a float32 below 1."""


def nq_of(workload: Mapping[str, Any]) -> int:
    """Vectors of one request of the workload."""
    return int(workload.get("nq", 1))


def cut(vectors: int, nq: int) -> Ids:
    """The vectors 0 … `vectors` - 1 in batches of `nq`: (requests, nq), the last one filled up with the first ones."""
    return np.resize(np.arange(vectors, dtype=np.int64), (-(-vectors // nq), nq))


def cut_both(measured: int, warmup: int, nq: int) -> Ids:
    """Batches of the measured vectors, then those of the `warmup` vectors that follow them: never one of both."""
    return np.concatenate([cut(measured, nq), measured + cut(warmup, nq)])


def by_library(work: Mapping[str, Any]) -> bool:
    """Whether the workload is asked through a client library, which encodes and decodes by itself."""
    return bool(work.get("client", "bytes") != "bytes")


def asked_of(filtering: Filtering | None, n: int) -> Asked:
    return Asked((None,), np.zeros(n, dtype=np.int64)) if filtering is None else filtering.asked


def encode(
    engine: Engine, server: Server, queries: NDArray[np.float32], k: int, ef_search: int, asked: Asked
) -> list[bytes]:
    """The request bytes of each of the (n, d) queries, each with its own filter."""
    requests: list[bytes] = [b""] * len(queries)
    for number, filter in enumerate(asked.distinct):
        which = np.flatnonzero(asked.of == number)
        for place, request in zip(which, engine.encode(server, queries[which], k, ef_search, filter), strict=True):
            requests[place] = request
    return requests


def requests(
    engine: Engine,
    server: Server,
    queries: NDArray[np.float32],
    work: Mapping[str, Any],
    ef_search: int,
    filtering: Filtering | None,
    members: Ids | None = None,
) -> list[bytes]:
    """The request bytes of the (n, d) queries, one each, or taken together as `members` (requests, nq) says.

    For a library, which encodes by itself: the number of the query's filter (uint32) and the query.
    """
    asked = asked_of(filtering, len(queries))
    if members is not None and members.shape[1] > 1:
        filter = asked.distinct[0]  # one for all: `features.batch` checks it
        return engine.encode_batches(server, queries[members], work["k"], ef_search, filter)
    if not by_library(work):
        return encode(engine, server, queries, work["k"], ef_search, asked)
    rows = queries.astype("<f4", copy=False)
    return [int(number).to_bytes(4, "little") + row.tobytes() for number, row in zip(asked.of, rows, strict=True)]


def transport(
    engine: Engine, server: Server, work: Mapping[str, Any], ef_search: int, filtering: Filtering | None
) -> dict[str, Any]:
    distinct = asked_of(filtering, 0).distinct
    if not by_library(work):
        return dict(engine.transport_of(server, work["k"], distinct))
    return engine.library_transport(server, work["client"], work["k"], ef_search, distinct)


def schedule(workload: Mapping[str, Any], measured: int, seed: int, run: int, shared: bool = False) -> Ids:
    """What each client sends, (clients, length), or what all send in turn, (1, length): indices into the requests.

    Requests 0 … measured-1 are the measured queries, those after them the warm-up. Every run has a seeded order of its
    own. By count, the clients share the queries between them; by time, each goes round all of them from its own
    seeded offset; in an open loop (`shared`) they go round them together.
    """
    clients = workload["clients"]
    random = np.random.RandomState([seed % 2**32, run])
    order = random.permutation(measured)
    if shared:
        return order[None, :]
    if workload.get("duration_s") is None:
        return np.resize(order, (clients, -(-measured // clients)))
    return np.stack([np.roll(order, -int(random.randint(measured))) for _ in range(clients)])


def prime(measured: int, warmup: int, clients: int) -> Ids:
    """What each client sends before the clock starts: its share of the warm-up queries, (clients, length)."""
    if not warmup:
        return np.empty((clients, 0), np.int64)
    share = max(-(-warmup // clients), min(_PRIME_MIN, warmup))
    return measured + np.resize(np.arange(warmup), (clients, share))


def arrivals(rate_per_s: float, duration_s: float, kind: str, seed: int, run: int, probe: int = 0) -> Ids:
    """Due times of an open loop, nanoseconds from the clock's zero, ascending, all before `duration_s`.

    `constant`: one every 1/rate. `poisson`: exponential gaps of that mean, as many independent users make them; their
    number varies by its square root. Seeded: the same run asks at the same instants, of every system.
    """
    if kind == "constant":
        due_s = np.arange(int(np.floor(rate_per_s * duration_s))) / rate_per_s
    else:
        random = np.random.RandomState([seed % 2**32, run, probe, 1])
        expected = rate_per_s * duration_s
        gaps = random.exponential(1 / rate_per_s, int(expected + 10 * np.sqrt(expected) + 10))
        due_s = np.cumsum(gaps)
    due_s = due_s[due_s < duration_s]
    return (due_s * 1e9).astype(np.int64)


@dataclass(frozen=True)
class Answers:
    """Decoded answers of n vectors, in order: `ids` and `distances` (n, k) padded with -1 and infinity.

    `size` (n,) is how many results each held (more than k are cut off, and `size` tells), `status` (n,) the driver's
    status of the vector's request, with ERROR where the reply itself was an error; `errors` the texts of those. So many
    requests were `undecodable`: their replies are none of the protocol.
    """

    ids: Ids
    distances: Floats
    size: Ids
    status: NDArray[np.uint8]
    errors: dict[str, int]
    undecodable: int = 0


Decode = Callable[[bytes, str], Answer] | Callable[[bytes, str], Sequence[Answer]]
"""A response and the metric → ids and canonical distances, of each vector where a request has several."""


def decoder(engine: Engine, work: Mapping[str, Any]) -> Decode:
    if nq_of(work) > 1:
        return engine.decode_batch
    return engine.library_decode if by_library(work) else engine.decode


def decode(
    read: Decode, responses: Sequence[bytes], status: NDArray[np.integer], k: int, metric: str, nq: int = 1
) -> Answers:
    """Decode responses to requests of `nq` vectors each: the answer to vector j of request i is in row i · nq + j.

    A response that `read` can't read, that carries an error, or that does not hold `nq` answers is a failed sample.
    """
    n = len(responses) * nq
    ids = np.full((n, k), -1, dtype=np.int64)
    distances = np.full((n, k), np.inf)
    size = np.zeros(n, dtype=np.int64)
    judged: NDArray[np.uint8] = np.repeat(status.astype(np.uint8), nq)
    errors: Counter[str] = Counter()
    undecodable = 0
    for i in np.flatnonzero(status == OK).tolist():
        rows = range(i * nq, (i + 1) * nq)
        try:
            answers: Any = read(responses[i], metric) if nq > 1 else [read(responses[i], metric)]
            if len(answers) != nq:
                raise DecodeError(f"answers to {len(answers)} vectors, {nq} were asked")
        except DecodeError as error:
            judged[rows] = ERROR
            errors[redact.short(str(error))] += 1
            undecodable += not isinstance(error, ErrorReplyError)
            continue
        for row, (found, far) in zip(rows, answers, strict=True):
            size[row] = len(found)
            kept = min(k, len(found))
            ids[row, :kept] = found[:kept]
            distances[row, :kept] = far[:kept]
    return Answers(ids, distances, size, judged, errors, undecodable)


def impossible(answers: Answers, rows: int) -> int:
    """How many good answers can't be right: with an id that none of the `rows` has, or more results than k."""
    good = answers.status == OK
    ids, size = answers.ids[good], answers.size[good]
    k = ids.shape[1]
    known = ((ids >= 0) & (ids < rows)).sum(axis=1)
    return int(((size > k) | (known != np.minimum(size, k))).sum())


def distance_errors(reported: Floats, exact: Floats, metric: str, of_scores: bool = False) -> Floats:
    """Relative differences of reported from exact distances; infinity for what is no number.

    `of_scores`: as `Engine.float32_scores`. Half a unit in the score's last place is no error.
    """
    # Cosine distances cancel near 0: their error is absolute, of the order of the terms, which are about 1.
    scale = np.maximum(np.abs(exact), 1.0 if metric == "cosine" else 1e-9)
    if of_scores and metric == "l2":
        scale = np.maximum(scale, (1 + exact) * _HALF_UNIT / DISTANCE_REL_ERROR_MAX)
    errors: Floats = np.where(np.isfinite(reported), np.abs(reported - exact) / scale, np.inf)
    return errors
