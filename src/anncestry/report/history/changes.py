"""Where the level of a line changed: found by PELT (ruptures), and told only if the search can't have made it up.

Apache Otava finds changes as well, but no version of it can be installed beside DVC and a present numpy and scipy: it
pins all three. `anncestry guard` writes the CSV that it reads (docs/guard.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.01
"""The chance that anything at all is told of lines that never changed: a page is looked at every night."""
NIGHTS_MIN = 3
"""A level is of at least so many points: a change is known after so many nights, and one odd night is none."""
_ROUNDING = 1e-9
"""Means over runs are rounded: what differs by this share is the same."""


@dataclass(frozen=True)
class Change:
    """From the point at this place on, the mean is `after` instead of `before`: each of the points up to the next one.

    `p`: the chance of such a difference anywhere in lines without one, corrected for all places of all lines.
    """

    place: int
    before: float
    after: float
    p: float


def find(values: Sequence[float], lines: int = 1) -> list[Change]:
    """The changes within a line that is told together with others, `lines` in all; none in fewer than six points.

    Neighbours are taken for independent. A machine that drifts for days has changes by this measure.
    """
    if len(values) < 2 * NIGHTS_MIN:
        return []
    of_line = np.asarray(values, dtype=float)
    places = _candidates(of_line)
    tests = lines * (len(of_line) - 1)
    while places:
        edges = [0, *places, len(of_line)]
        found = [
            _change(of_line[start:place], of_line[place:end], place, tests)
            for start, place, end in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        weakest = max(found, key=lambda change: change.p)
        if weakest.p <= LEVEL:
            return found
        places.remove(weakest.place)
    return []


def _candidates(values: np.ndarray) -> list[int]:
    """Places by PELT, in units of the noise from point to point, which a few steps don't widen."""
    import ruptures  # takes a second

    steps = np.diff(values)
    noise = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    unit = max(noise, _ROUNDING * float(np.max(np.abs(values)))) or 1.0
    search = ruptures.Pelt(model="l2", min_size=NIGHTS_MIN, jump=1).fit(values / unit)
    return [int(place) for place in search.predict(pen=3 * math.log(len(values)))[:-1]]


def _change(before: np.ndarray, after: np.ndarray, place: int, tests: int) -> Change:
    from scipy.stats import ttest_ind_from_stats

    first, second = float(before.mean()), float(after.mean())
    if abs(second - first) <= _ROUNDING * max(abs(first), abs(second)):
        return Change(place, first, second, 1.0)
    # Numbers that are the same every night (bytes on a disk) have no spread: any step of theirs is one.
    spreads = [max(float(part.std(ddof=1)), _ROUNDING * abs(first)) for part in (before, after)]
    test = ttest_ind_from_stats(first, spreads[0], len(before), second, spreads[1], len(after))
    return Change(place, first, second, min(1.0, tests * float(test.pvalue)))
