"""From response bytes to ids and distances, and what is wrong with them. All of it after the clock has stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncestry.drive.protocol import ERROR, OK
from anncestry.engines.base import DecodeError

Decode = Callable[[bytes, str], tuple[NDArray[np.int64], NDArray[np.float64]]]
"""A response and the metric → ids and canonical distances: an engine's `decode`."""


@dataclass(frozen=True)
class Answers:
    """Decoded answers of n requests, in order: `ids` and `distances` (n, k) padded with -1 and infinity.

    `size` (n,) is how many results each held (more than k are cut off, and `size` tells), `status` (n,) the driver's
    status, with ERROR where the reply itself was an error; `errors` the texts of those.
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
    n = len(responses)
    ids = np.full((n, k), -1, dtype=np.int64)
    distances = np.full((n, k), np.inf)
    size = np.zeros(n, dtype=np.int64)
    judged: NDArray[np.uint8] = status.astype(np.uint8)
    errors: dict[str, int] = {}
    for i, response in enumerate(responses):
        if judged[i] != OK:
            continue
        try:
            found, far = read(response, metric)
        except DecodeError as error:
            judged[i] = ERROR
            text = str(error)[:300]
            errors[text] = errors.get(text, 0) + 1
            continue
        size[i] = len(found)
        kept = min(k, len(found))
        ids[i, :kept] = found[:kept]
        distances[i, :kept] = far[:kept]
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
