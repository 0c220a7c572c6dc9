"""Ratios of two servers that ran in turns: from slices to blocks, from blocks to a pair of servers, over fresh pairs.

Everything is side b over side a, on the log scale. A block is eight slices, two of ABBA or BAAB: neighbouring slices
share what happens on the machine, so that the ratio within a block is steadier than either rate, and blocks are nearly
independent where pairs of slices are not (with a lag-1 autocorrelation of pairs of 0, .2, .45, t intervals on pairs
excluded the truth in 5, 11 and 23 %, on blocks of four pairs in 5, 5 and 9 %).

What other programs take from one side and not from the other, in the half seconds between, is most of what is left on a
busy machine, and it is known: how many cores others used in each slice. So ratios are at an equal use of the machine by
others: what they took from b more than from a, in each block, is taken out by the slope that the blocks of all pairs of
servers have in common (an analysis of covariance). Work that a server has others do for it must not explain that
server's own speed, so this rests on two conditions. The slope counts only with the sign that it can have (others make
answers fewer, dearer and later). And what others used beside both sides must be equal but for chance: the lot decides
which side runs when, so that whatever has nothing to do with the sides meets both alike.

A server's start has a bias of its own, of some 2 % between starts of one program, and of two servers the one that is
started second may need some 5 % less CPU. So an estimate is over fresh pairs of servers that start side a first, then
side b first, in turns: the mean of both orders' means, in which what the order makes cancels out. Its interval is of t,
with the variance between the estimates of one order. A few estimates may agree by luck, and who stops when the interval
is narrow stops just then: so the rule that stops takes the variance within them where that is larger (docs/duet.md has
what intervals then hold in simulated worlds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.metrics import special

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BLOCK = 8
"""Slices of a block: four pairs of slices."""
OVER_SERVERS = "95 %, t over pairs of servers of either start order"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Slice:
    """What one side (a or b) did while it ran: see `measure.pair.Measured.slices`.

    `answers` ended in the measured part, from `start_ns` to `end_ns`; `all_answers` ended while the server ran, which
    took it `cpu_s`. Other programs used `others` cores meanwhile.
    """

    side: str
    start_ns: int
    end_ns: int
    answers: int
    all_answers: int
    cpu_s: float
    others: float = 0.0


@dataclass(frozen=True)
class Waited:
    """Requests of one side that started while it was measured, two arrays (n,): `ms` that each was watched.

    `ended` tells those that had their answer by then; of the others, a freeze came before it.
    """

    ms: Floats
    ended: Bools

    def quantile(self, q: float) -> float:
        """The least time (ms) after which a share `q` has its answer; NaN where too few were seen to have one.

        By the product-limit estimate (Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", JASA
        53, 1958): a freeze cuts requests off at times that have nothing to do with them, and a long one more often
        than a short one. Were those that it cuts left out, the long ones would be too few. Without any, it is the
        nearest rank.
        """
        placed = np.lexsort((~self.ended, self.ms))  # at one time, answers come before what is no longer watched
        ms, ended = self.ms[placed], self.ended[placed]
        left = np.cumprod(1.0 - ended / np.arange(len(ms), 0, -1))
        reached = np.flatnonzero(left <= 1.0 - q + _ROUNDING)
        value = float(ms[reached[0]]) if len(reached) else math.nan
        return value if math.isfinite(value) else math.nan

    @classmethod
    def together(cls, parts: Sequence[Waited]) -> Waited:
        """All requests of some parts."""
        none = cls(np.empty(0), np.empty(0, np.bool_))
        whole = [none, *parts]
        return cls(np.concatenate([each.ms for each in whole]), np.concatenate([each.ended for each in whole]))


@dataclass(frozen=True)
class Blocks:
    """What the blocks of one pair of servers say of a quantity, two arrays (blocks,).

    `logs` are log ratios of b to a, NaN where a side has no value; `others` how many cores more other programs used
    beside b than beside a.
    """

    logs: Floats
    others: Floats


@dataclass(frozen=True)
class More:
    """By how many `cores` others used more beside side b than beside a, and how far its 95 % interval `reach`es.

    The interval is of t over blocks. None where there are too few.
    """

    cores: float
    reach: float | None

    @property
    def by_a_side(self) -> bool:
        """Whether it is more than chance makes. The sides take turns by lot, so then one of them is the cause."""
        return self.reach is not None and abs(self.cores) > self.reach

    def facts(self) -> dict[str, Any]:
        low, high = (None, None) if self.reach is None else (self.cores - self.reach, self.cores + self.reach)
        return {"value": self.cores, "low": low, "high": high, "by_a_side": self.by_a_side}


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


def blocks(slices: Sequence[Slice], what: str) -> Blocks:
    """Those of one pair of servers: `what` is qps (answers a second) or cpu (CPU time an answer)."""
    return Blocks(np.array([_log(part, what) for part in _cut(slices, BLOCK)]), _others(slices))


def blocks_of_quantile(latencies: Sequence[tuple[Waited, Waited]], q: float, slices: Sequence[Slice]) -> Blocks:
    """Those of a quantile of latency: `latencies` are those of side a and b in each block of `slices`."""
    logs = []
    for a, b in latencies:
        of_a, of_b = a.quantile(q), b.quantile(q)
        logs.append(math.log(of_b / of_a) if of_a > 0 and of_b > 0 else math.nan)
    return Blocks(np.array(logs), _others(slices))


def _others(slices: Sequence[Slice]) -> Floats:
    by_side = [
        [float(np.mean([each.others for each in part if each.side == side])) for part in _cut(slices, BLOCK)]
        for side in ("a", "b")
    ]
    more: Floats = np.array(by_side[1]) - np.array(by_side[0])
    return more


def adjusted(servers: Sequence[Blocks], sign: int) -> tuple[list[Estimate], float]:
    """An estimate of each pair of servers, at an equal use of the machine by others, and the slope that this rests on.

    The slope is by how much a log ratio changes for a core that others use beside b and not beside a, by least squares
    within pairs of servers: 0 if it has not this `sign` (-1 of rates, 1 of times), and if a side itself makes others
    use more (`More.by_a_side`).
    """
    slope = 0.0
    if all(np.isfinite(each.logs).all() for each in servers) and not more_beside_b(servers).by_a_side:
        away = [(each.others - each.others.mean(), each.logs - each.logs.mean()) for each in servers if len(each.logs)]
        spread = sum(float(np.square(others).sum()) for others, _ in away)
        if spread > 0:
            slope = sum(float((others * logs).sum()) for others, logs in away) / spread
        slope = slope if slope * sign > 0 else 0.0
    return [of_blocks(each.logs - slope * each.others) for each in servers], slope


def more_beside_b(servers: Sequence[Blocks]) -> More:
    """What others used more beside b, over the blocks of all pairs of servers."""
    each = np.concatenate([np.empty(0), *(of.others for of in servers)])
    if len(each) < 2:
        return More(float(each.mean()) if len(each) else 0.0, None)
    reach = float(special.stdtrit(len(each) - 1, 0.975)) * float(each.std(ddof=1)) / math.sqrt(len(each))
    return More(float(each.mean()), reach)


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
    return _over_servers(estimates, 0.0)


def to_stop_percent(servers: Sequence[Blocks]) -> float | None:
    """How far the interval of the ratio of QPS reaches above it, for who measures until it is narrow.

    Its variance is at least that within pairs of servers, as the standard errors say. None where there is no interval.
    """
    estimates, _ = adjusted(servers, -1)
    return half_width_percent(_over_servers(estimates, _within(estimates)).facts())


def _within(estimates: Sequence[Estimate]) -> float:
    """The variance of an estimate by what is within it."""
    errors = [estimate.error for estimate in estimates if estimate.error is not None]
    return float(np.mean(np.square(errors))) if errors else 0.0


def _over_servers(estimates: Sequence[Estimate], least: float) -> Ratio:
    """`over_servers`, with a variance between estimates of at least `least`."""
    n = len(estimates)
    logs = np.array([math.nan if estimate.log is None else estimate.log for estimate in estimates])
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
    error = math.sqrt(max(between, least) * sum(1 / len(each) for each in of_orders)) / 2
    return Ratio(log, error, n - 2.0, n, second)


def unpaired(servers: Sequence[Sequence[Slice]], what: str) -> Ratio:
    """The same slices as if they had not been paired: what the pairing gained. Its variance is at least that within."""
    estimates = [_unpaired(slices, what) for slices in servers]
    return _over_servers(estimates, _within(estimates))


def _unpaired(slices: Sequence[Slice], what: str) -> Estimate:
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
