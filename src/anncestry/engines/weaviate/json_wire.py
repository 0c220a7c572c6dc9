"""Weaviate by REST and GraphQL: insertions and searches as JSON over HTTP/1.1, as its clients made them before gRPC.

Numbers are written as briefly as float32 allows: the shortest decimal that reads back as the same value.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry import redact, web
from anncestry.datasets.payload import Column
from anncestry.engines.base import DecodeError, Spec
from anncestry.engines.weaviate.rows import UUID_PREFIX, uuid_of
from anncestry.engines.weaviate.settings import COLLECTION
from anncestry.errors import ServerError
from anncestry.runtimes import tls

PATH = "/v1/graphql"
HEADERS = {"Content-Type": "application/json"}


def vector_text(vector: NDArray[np.float32]) -> str:
    """A (d,) vector as a JSON array."""
    return f"[{','.join(vector.astype('<f4', copy=False).astype(str))}]"


def search_request(query: NDArray[np.float32], k: int, where: str | None, consistency: str | None = None) -> bytes:
    """The body of one search for one (d,) query. Nothing is fetched but ids and distances."""
    arguments = [f"limit:{k}", f"nearVector:{{vector:{vector_text(query)}}}"]
    arguments += [] if where is None else [f"where:{where}"]
    arguments += [] if consistency is None else [f"consistencyLevel:{consistency.upper()}"]
    search = f"{{Get{{{COLLECTION}({','.join(arguments)}){{_additional{{id distance}}}}}}}}"
    return json.dumps({"query": search}, separators=(",", ":")).encode()


def found(response: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and the distances that the server states; DecodeError where the reply is no answer."""
    try:
        reply = json.loads(response)
        if reply.get("errors"):
            raise DecodeError(f"GraphQL: {reply['errors'][0].get('message')}")
        hits = [hit["_additional"] for hit in reply["data"]["Get"][COLLECTION]]
        names = [str(hit["id"]) for hit in hits]
        distances = np.array([hit["distance"] for hit in hits], dtype=np.float64)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DecodeError(f"not a GraphQL search reply: {type(error).__name__}: {error}") from None
    for name in names:
        if not name.startswith(UUID_PREFIX):
            raise DecodeError(f"a result with an id that was not loaded: {name!r}")
    return np.array([int(name[len(UUID_PREFIX) :], 16) for name in names], dtype=np.int64), distances


def batch_request(
    first: int,
    base: NDArray[np.float32],
    category: NDArray[np.uint8],
    price: NDArray[np.float32],
    region: NDArray[np.uint8],
    payload: Sequence[tuple[Column, list[Any]]] = (),
) -> bytes:
    """The insertion of rows `first`, `first` + 1, …: (m, d) vectors and (m,) metadata; of payload columns, the same."""
    columns = zip(base, category.tolist(), price.astype(str), region.tolist(), strict=True)
    names, values = [column.stored_as for column, _ in payload], [values for _, values in payload]
    more = [
        "".join(f',"{name}":{json.dumps(value)}' for name, value in zip(names, row, strict=True))
        for row in (zip(*values, strict=True) if values else [()] * len(base))
    ]
    objects = [
        f'{{"class":"{COLLECTION}","id":"{uuid_of(row)}",'
        f'"properties":{{"category":{group},"price":{cost},"region":{area}{more[row - first]}}},'
        f'"vector":{vector_text(vector)}}}'
        for row, (vector, group, cost, area) in enumerate(columns, start=first)
    ]
    return f'{{"objects":[{",".join(objects)}]}}'.encode()


def refused(reply: bytes, sent: int) -> dict[int, str]:
    """Which of the rows sent were refused, by their place in the batch, and why; ServerError for another reply."""
    try:
        results = [item.get("result") or {} for item in json.loads(reply)]
    except (ValueError, AttributeError, TypeError):
        raise ServerError(f"weaviate: not a batch reply: {redact.short(reply.decode(errors='replace'), 200)}") from None
    if len(results) != sent:
        raise ServerError(f"weaviate: a batch of {sent} rows was answered for {len(results)}")
    return {
        place: "; ".join(str(error.get("message")) for error in result["errors"].get("error", ())) or "refused"
        for place, result in enumerate(results)
        if result.get("errors")
    }


@contextmanager
def connection(address: str, timeout_s: float, named: tls.Named | None = None) -> Iterator[http.client.HTTPConnection]:
    """A connection that is kept alive, to host:port; under TLS if `named`."""
    host, _, port = address.rpartition(":")
    open_one = (
        http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        if named is None
        else http.client.HTTPSConnection(host, int(port), timeout=timeout_s, context=tls.context(named))
    )
    try:
        yield open_one
    finally:
        open_one.close()


def insert(link: http.client.HTTPConnection, body: bytes, sent: int, options: Spec) -> dict[int, str]:
    """Send a batch of `sent` rows and return those that were refused; ServerError if the call fails.

    `options` may hold `consistency` (a topology's).
    """
    level = options.get("consistency")
    path = "/v1/batch/objects" + (f"?consistency_level={level.upper()}" if level else "")
    try:
        link.request("POST", path, body, HEADERS)
        answer: Any = link.getresponse()
        reply = web.body_of(answer, web.ANSWER_BYTES + 4 * len(body))  # each row is repeated in it
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(str(error) or type(error).__name__) from None
    if answer.status != 200:
        raise ServerError(f"HTTP {answer.status}: {redact.short(reply.decode(errors='replace'))}")
    return refused(reply, sent)
