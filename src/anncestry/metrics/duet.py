"""Ratios of two servers that ran in turns: from slices to blocks, from blocks to a pair of servers, over fresh pairs.

Everything is side b over side a, on the log scale. A block is eight slices, two of ABBA or BAAB: neighbouring slices
share what happens on the machine, so that the ratio within a block is steadier than either rate, and blocks are nearly
independent where pairs of slices are not (with a lag-1 autocorrelation of pairs of 0, .2, .45, t intervals on pairs
excluded the truth in 5, 11 and 23 %, on blocks of four pairs in 5, 5 and 9 %).

A server's start has a bias of its own, of some 2 % between starts of one program, and of two servers the one that is
started second may need some 5 % less CPU. So an estimate is over fresh pairs of servers that start side a first, then
side b first, in turns: the mean of both orders' means, in which what the order makes cancels out. Its interval is of t,
with the variance between the estimates of one order, but at least that within them: a few estimates may agree by luck,
and who stops when the interval is narrow stops just then (docs/duet.md has what it holds in simulated worlds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

BLOCK = 8
"""Slices of a block: four pairs of slices."""
OVER_SERVERS = "95 %, t over pairs of servers of either start order"
_REPLICATES = 200


@dataclass(frozen=True)
class Slice:
    """What one side (a or b) did while it ran: see `measure.pair.Measured.slices`.

    `answers` ended in the measured part, from `start_ns` to `end_ns`; `all_answers` ended while the server ran, which
    took it `cpu_s`.
    """

    side: str
    start_ns: int
    end_ns: int
    answers: int
    all_answers: int
    cpu_s: float


@dataclass(frozen=True)
class Estimate:
    """A log ratio on one pair of servers, its standard error by blocks and their number; None where none is known."""

    log: float | None
    error: float | None
    blocks: int

    def facts(self) -> dict[str, Any]:
        ratio = None if self.log is None else math.exp(self.log)
        return {"ratio": ratio, "error": self.error, "blocks": self.blocks}


@dataclass(frozen=True)
class Ratio:
    """b over a, over pairs of servers: log ratio, its standard error, degrees of freedom; None where none is known.

    `second` is the log ratio of the server that was started second to the first, of the same error.
    """

    log: float | None
    error: float | None
    freedom: float
    servers: int
    second: float | None = None

    def bounds(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The interval of the ratio."""
        return None if self.log is None else self._around(self.log, confidence)

    def _around(self, log: float, confidence: float = 0.95) -> tuple[float, float] | None:
        if self.error is None:
            return None
        half = float(special.stdtrit(self.freedom, 0.5 + confidence / 2)) * self.error
        return math.exp(log - half), math.exp(log + half)

    def facts(self) -> dict[str, Any]:
        low, high = self.bounds() or (None, None)
        ratio = None if self.log is None else math.exp(self.log)
        ends = {"low": low, "high": high, "log_error": self.error, "freedom": self.freedom}
        return {
            "value": ratio,
            **ends,
            "interval": OVER_SERVERS if low is not None else "a number of some pair is missing, or pairs are too few",
        }

    def order_facts(self) -> dict[str, Any]:
        """What the order of starts made: the second server over the first, with its interval."""
        if self.second is None:
            return {"value": None, "low": None, "high": None}
        low, high = self._around(self.second) or (None, None)
        return {"value": math.exp(self.second), "low": low, "high": high}


def order(quads: int, seed: int) -> str:
    """The sides of all slices: so many of ABBA or BAAB, drawn anew each time."""
    drawn = np.random.RandomState(seed % 2**32).randint(2, size=quads)
    return "".join("ABBA" if first == 0 else "BAAB" for first in drawn)


def _sums(slices: Sequence[Slice], what: str) -> tuple[float, float]:
    """What is divided for qps: answers by seconds; for cpu: CPU seconds by answers."""
    if what == "qps":
        return sum(part.answers for part in slices), sum(part.end_ns - part.start_ns for part in slices) / 1e9
    return sum(part.cpu_s for part in slices), sum(part.all_answers for part in slices)


def _log(slices: Sequence[Slice], what: str) -> float:
    """The log ratio of some slices, of ratios of sums as one slice may hold no answer; NaN where a side has none."""
    sums = [_sums([part for part in slices if part.side == side], what) for side in ("b", "a")]
    if not all(value > 0 for of in sums for value in of):
        return math.nan
    (b, of_b), (a, of_a) = sums
    return math.log(b / of_b) - math.log(a / of_a)


def block_logs(slices: Sequence[Slice], what: str) -> Floats:
    """The log ratio of each whole block (blocks,): `what` is qps (answers a second) or cpu (CPU time an answer)."""
    return np.array([_log(part, what) for part in _cut(slices, BLOCK)])


def _cut(slices: Sequence[Slice], size: int) -> list[Sequence[Slice]]:
    return [slices[at : at + size] for at in range(0, len(slices) - size + 1, size)]


def of_blocks(logs: Floats) -> Estimate:
    """The estimate of one pair of servers: the mean of its blocks."""
    known = logs[np.isfinite(logs)]
    if len(known) < 2 or len(known) < len(logs):
        return Estimate(None, None, len(known))
    return Estimate(float(known.mean()), float(known.std(ddof=1)) / math.sqrt(len(known)), len(known))


def exact(log: float) -> Estimate:
    """One of a quantity that is read once a pair of servers."""
    return Estimate(log, 0.0, 1)


def first_started(number: int) -> int:
    """The side (0 is a, 1 is b) that the `number`-th pair of servers starts first, counted from 0."""
    return number % 2


def over_servers(estimates: Sequence[Estimate]) -> Ratio:
    """The mean over pairs of servers, numbered from 0, of both orders of starts with the same weight.

    Two means are known from n estimates, so that n - 2 degrees of freedom are left; no interval where there are none,
    or an estimate is unknown.
    """
    n = len(estimates)
    logs = np.array([math.nan if estimate.log is None else estimate.log for estimate in estimates])
    errors = [estimate.error for estimate in estimates if estimate.error is not None]
    if not n or not np.isfinite(logs).all():
        return Ratio(None, None, 0.0, n)
    if n == 1:
        return Ratio(float(logs[0]), None, 0.0, n)
    of_orders = [logs[[first_started(number) == side for number in range(n)]] for side in (0, 1)]
    a_first, b_first = (float(each.mean()) for each in of_orders)
    log, second = (a_first + b_first) / 2, (a_first - b_first) / 2
    if n == 2:
        return Ratio(log, None, 0.0, n, second)
    between = sum(float(np.square(each - each.mean()).sum()) for each in of_orders) / (n - 2)
    variance = max(between, float(np.mean(np.square(errors))))
    error = math.sqrt(variance * sum(1 / len(each) for each in of_orders)) / 2
    return Ratio(log, error, n - 2.0, n, second)


def ratios_half_width_percent(ratios: Sequence[float | None]) -> float | None:
    """How far the interval over pairs of servers with these ratios reaches above it; None where there is none."""
    return half_width_percent(over_servers([exact(math.log(ratio or math.nan)) for ratio in ratios]).facts())


def quantile(blocks: Sequence[tuple[Floats, Floats]], q: float, seed: int) -> Estimate:
    """The log ratio of a nearest-rank quantile on one pair of servers, its error by a bootstrap over its blocks.

    `blocks` are the values of side a and b in each.
    """
    if len(blocks) < 2 or not all(len(side) for block in blocks for side in block):
        return Estimate(None, None, len(blocks))
    sides = []
    for side in (0, 1):
        values = np.concatenate([block[side] for block in blocks])
        of = np.repeat(np.arange(len(blocks)), [len(block[side]) for block in blocks])
        ascending = np.argsort(values, kind="stable")
        sides.append((values[ascending], of[ascending]))
    drawn = np.random.RandomState(seed % 2**32).multinomial(len(blocks), [1 / len(blocks)] * len(blocks), _REPLICATES)
    at = [_ranked(*side, np.ones(len(blocks), np.int64), q) for side in sides]
    if min(at) <= 0:
        return Estimate(None, None, len(blocks))
    again = [[math.log(_ranked(*side, weights, q)) for side in sides] for weights in drawn]
    error = float(np.std([b - a for a, b in again], ddof=1))
    return Estimate(math.log(at[1]) - math.log(at[0]), error, len(blocks))


def _ranked(ascending: Floats, block: NDArray[np.int64], weights: NDArray[np.int64], q: float) -> float:
    """The nearest-rank quantile of values whose blocks count so often."""
    reached = np.cumsum(weights[block])
    return float(ascending[np.searchsorted(reached, max(1, math.ceil(q * reached[-1] * (1 - 1e-12))))])


def quantile_ratio(servers: Sequence[Sequence[tuple[Floats, Floats]]], q: float, seed: int) -> Ratio:
    """The ratio of a quantile over pairs of servers: each has its blocks with the values of side a and b."""
    return over_servers([quantile(blocks, q, seed) for blocks in servers])


def unpaired(slices: Sequence[Slice], what: str) -> Estimate:
    """The same slices as if they had not been paired: what the pairing gained."""
    blocks = _cut(slices, BLOCK)
    rates: list[Floats] = []
    for side in ("a", "b"):
        sums = [_sums([part for part in block if part.side == side], what) for block in blocks]
        if len(sums) < 2 or not all(value > 0 for of in sums for value in of):
            return Estimate(None, None, len(blocks))
        rates.append(np.log([over / by for over, by in sums]))
    a, b = rates
    error = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(blocks))
    return Estimate(float(b.mean() - a.mean()), error, len(blocks))


def autocorrelation(slices: Sequence[Slice], what: str) -> float | None:
    """That of the log ratios of neighbouring slices, at lag 1; None for fewer than eight."""
    logs = np.array([_log(pair, what) for pair in _cut(slices, 2)])
    logs = logs[np.isfinite(logs)]
    if len(logs) < 8 or not logs.std():
        return None
    away = logs - logs.mean()
    return float((away[1:] * away[:-1]).sum() / (away**2).sum())


def half_width_percent(ratio: Mapping[str, Any]) -> float | None:
    """How far the interval in these `facts` reaches above the ratio."""
    if ratio["high"] is None or not ratio["value"]:
        return None
    return float(100 * (ratio["high"] / ratio["value"] - 1))
