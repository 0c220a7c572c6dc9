"""From response bytes to ids and distances, and what is wrong with them. All of it after the clock has stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncestry import redact
from anncestry.drive.protocol import ERROR, OK
from anncestry.engines.base import DecodeError

Found = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Ids and canonical distances of one vector's answer."""
Decode = Callable[[bytes, str], Found]
"""A response and the metric → ids and canonical distances: an engine's `decode`."""
DecodeBatch = Callable[[bytes, str], Sequence[Found]]
"""The same for each vector of the request: an engine's `decode_batch`."""


@dataclass(frozen=True)
class Answers:
    """Decoded answers of n vectors, in order: `ids` and `distances` (n, k) padded with -1 and infinity.

    `size` (n,) is how many results each held (more than k are cut off, and `size` tells), `status` (n,) the driver's
    status of the vector's request, with ERROR where the reply itself was an error; `errors` the texts of those.
    """

    ids: NDArray[np.int64]
    distances: NDArray[np.float64]
    size: NDArray[np.int64]
    status: NDArray[np.uint8]
    errors: dict[str, int]


def decode(read: Decode, responses: Sequence[bytes], status: NDArray[np.integer], k: int, metric: str) -> Answers:
    """Decode responses by `read`, an engine's `decode`.

    One that it can't read, or that carries an error, becomes a failed sample.
    """
    return decode_batches(lambda response, metric: [read(response, metric)], responses, status, 1, k, metric)


def decode_batches(
    read: DecodeBatch, responses: Sequence[bytes], status: NDArray[np.integer], nq: int, k: int, metric: str
) -> Answers:
    """Decode responses to requests of `nq` vectors each: the answers to vector j of request i are in row i · nq + j.

    A response that does not hold `nq` answers is a failed sample, too.
    """
    n = len(responses) * nq
    ids = np.full((n, k), -1, dtype=np.int64)
    distances = np.full((n, k), np.inf)
    size = np.zeros(n, dtype=np.int64)
    judged: NDArray[np.uint8] = np.repeat(status.astype(np.uint8), nq)
    errors: dict[str, int] = {}
    for i, response in enumerate(responses):
        rows = slice(i * nq, (i + 1) * nq)
        if status[i] != OK:
            continue
        try:
            answers = read(response, metric)
            if len(answers) != nq:
                raise DecodeError(f"answers to {len(answers)} vectors, {nq} were asked")
        except DecodeError as error:
            judged[rows] = ERROR
            text = redact.short(str(error))
            errors[text] = errors.get(text, 0) + 1
            continue
        for row, (found, far) in zip(range(rows.start, rows.stop), answers, strict=True):
            size[row] = len(found)
            kept = min(k, len(found))
            ids[row, :kept] = found[:kept]
            distances[row, :kept] = far[:kept]
    return Answers(ids, distances, size, judged, errors)


def wrong_counts(answers: Answers, rows: int, wanted: int | NDArray[np.int64], *, short_is_wrong: bool = True) -> int:
    """How many good answers do not hold exactly `wanted` (of all, or of each) different ids of known rows.

    With `short_is_wrong` False, one is not counted that holds fewer different rows than wanted, or repeats some; an id
    that no row has, more different rows than wanted, or more results than k, is wrong all the same.
    """
    good = answers.status == OK
    k = answers.ids.shape[1]
    wanted = np.broadcast_to(np.asarray(wanted), answers.status.shape)[good]
    ids = np.sort(answers.ids[good], axis=1)
    known = (ids >= 0) & (ids < rows)
    fresh = np.ones_like(known)
    fresh[:, 1:] = ids[:, 1:] != ids[:, :-1]
    different = (known & fresh).sum(axis=1)
    size = answers.size[good]
    off = (different != wanted) | (size != wanted)
    short = (different <= wanted) & (known.sum(axis=1) == np.minimum(size, k)) & (size <= k)
    return int((off if short_is_wrong else off & ~short).sum())


def repeated(answers: Answers) -> int:
    """How many good answers hold an id more than once."""
    ids = np.sort(answers.ids[answers.status == OK], axis=1)
    return int(((ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] != -1)).any(axis=1).sum())


def distance_errors(reported: NDArray[np.float64], exact: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Relative differences of reported from exact distances; infinity for what is no number."""
    # Cosine distances cancel near 0: their error is absolute, of the order of the terms, which are about 1.
    scale = np.maximum(np.abs(exact), 1.0 if metric == "cosine" else 1e-9)
    errors: NDArray[np.float64] = np.where(np.isfinite(reported), np.abs(reported - exact) / scale, np.inf)
    return errors
