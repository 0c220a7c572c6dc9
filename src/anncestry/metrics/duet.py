"""Two servers driven in turns, in slices of half a second: the ratio of B to A, and how sure it is.

Every ratio is B over A: above 1, B has the larger rate, latency or processor time. Slices come in quads, ABBA or BAAB
by lot, so that what drifts meets both sides alike (Abedi and Brecht, "Conducting repeatable experiments in highly
variable cloud computing environments", ICPE 2017; Bulej et al., "Duet benchmarking", ICPE 2020). Two quads are a block;
the logs of the blocks' ratios give one pair of servers its estimate. Every start of a server has a bias of its own,
which no number of blocks averages out: the interval is t over the estimates of several pairs of servers. docs/duet.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from anncestry.errors import UserError
from anncestry.metrics import decide
from anncestry.metrics.stats import Floats, Interval, unknown

QPS, CPU = "qps", "cpu"
"""What slices are compared by: answers a second; seconds of processor time an answer."""
QUANTILES = (0.5, 0.95, 0.99)
BLOCK = 8
"""Slices of a block: two quads, four pairs. Blocks of 4 pairs keep false alarms at 9 % where pairs follow one another
with a correlation of .45, and single pairs have 22 %."""
ONE_PAIR = "one pair of servers: the bias of a server's start is not in it"
_REPLICATES = 1000
_CHUNK = 100
_BINS = 2048
_Z = 1.959963984540054


@dataclass(frozen=True)
class Slice:
    """One side's turn.

    `answers` came from `start_ns` to `end_ns`, the measured part: after what is discarded, until the freeze was asked.
    `completed` are those of the whole turn, and `cpu_s` is what the server used in it, read while it was frozen before
    and after.
    """

    side: str
    start_ns: int
    end_ns: int
    answers: int
    completed: int
    cpu_s: float


@dataclass(frozen=True)
class Estimate:
    """The logarithm of a ratio B / A, its standard error, and the degrees of freedom of that.

    `count` blocks, or pairs of servers, are behind it. Without a standard error (None), `why` says why.
    """

    log: float
    error: float | None
    freedom: int
    count: int
    why: str = ""

    @property
    def ratio(self) -> float:
        return math.exp(self.log)

    @property
    def half(self) -> float | None:
        """Half of the 95 % interval of the logarithm."""
        if self.error is None or self.freedom < 1:
            return None
        return float(special.stdtrit(self.freedom, 0.975)) * self.error

    @property
    def half_width_percent(self) -> float | None:
        """How far the interval reaches above the ratio."""
        return None if self.half is None else 100 * math.expm1(min(self.half, 10.0))

    def facts(self) -> dict[str, Any]:
        """For a record: ratio, low and high (None: see `interval`), how many blocks or servers."""
        half = self.half
        low, high = (None, None) if half is None else (math.exp(self.log - half), math.exp(self.log + half))
        return {"ratio": self.ratio, "low": low, "high": high, "interval": self.why, "count": self.count}


def order(quads: int, seed: int) -> str:
    """The sides of 4 × `quads` slices: each quad is ABBA or BAAB, by lot."""
    drawn = random.Random(seed)
    return "".join(drawn.choice(("ABBA", "BAAB")) for _ in range(quads))


def block_logs(slices: Sequence[Slice], what: str) -> Floats:
    """log(B / A) of each whole block of BLOCK slices, by the sums within it: (blocks,). `what`: QPS or CPU.

    What is left at the end is not used. UserError for a block without an answer of one side.
    """
    return np.diff(_side_logs(slices, what, BLOCK), axis=1)[:, 0]


def of_blocks(logs: Floats) -> Estimate:
    """The estimate of one pair of servers: t over its blocks. It says nothing of other starts of the same servers."""
    count = len(logs)
    error = float(np.std(logs, ddof=1)) / math.sqrt(count) if count > 1 else None
    return Estimate(float(np.mean(logs)), error, count - 1, count, "95 %, t over blocks of one pair of servers")


def over_servers(estimates: Sequence[Estimate]) -> Estimate:
    """The ratio by all pairs of servers, each with the same weight; without an interval for one.

    Their variance is that between the estimates, but at least what is within them: a few estimates may agree by luck,
    and who stops when the interval is narrow stops just then. Simulated (2 to 8 pairs of 10 to 30 blocks, blocks' sd 5
    to 15 %, lag-1 correlation 0 to .45, bias of a start 0 to 4 %), it holds the truth in 95 to 100 %, also when stopped
    by `enough`; the variance between alone, so stopped, in 91 to 95 %.
    """
    count, logs = len(estimates), [one.log for one in estimates]
    log = math.fsum(logs) / count
    if count == 1:
        return Estimate(log, None, 0, 1, ONE_PAIR)
    between = float(np.var(logs, ddof=1))
    within = math.fsum((one.error or 0.0) ** 2 for one in estimates) / count
    error = math.sqrt(max(between, within) / count)
    return Estimate(log, error, count - 1, count, "95 %, t over pairs of servers")


def judged(estimate: Estimate, quantity: str) -> decide.Pair:
    """What `decide.judge_all` takes for an estimate `over_servers`: A is 1, B the ratio.

    Its test is t over logarithms in pairs. It gets as many as there are pairs of servers, with this mean and error.
    """
    count = estimate.count
    a, b = decide.Sample(1.0, 0.0, count), decide.Sample(estimate.ratio, 0.0, count)
    if estimate.error is None:
        return decide.Pair(a, b, quantity, True, estimate.why)
    places = np.arange(count) - (count - 1) / 2
    values = estimate.log + estimate.error * math.sqrt(count) * places / places.std(ddof=1)
    a = decide.Sample(1.0, 0.0, count, (1.0,) * count)
    b = decide.Sample(estimate.ratio, 0.0, count, tuple(map(float, np.exp(values))))
    return decide.Pair(a, b, quantity, True, of="pairs of servers")


# When to stop


def enough(
    estimates: Mapping[str, Sequence[Estimate]], half_width_percent: Mapping[str, float], minimum: int, most: int
) -> bool:
    """Whether no further pair of servers is asked for: by precision, never by what was found.

    `estimates` holds those of each quantity, one a pair of servers; `half_width_percent` what is wide no more, of each
    quantity that counts.
    """
    count = min(len(estimates[quantity]) for quantity in half_width_percent)
    if count < minimum:
        return False
    widths = {quantity: over_servers(estimates[quantity]).half_width_percent for quantity in half_width_percent}
    return count >= most or all(w is not None and w <= half_width_percent[quantity] for quantity, w in widths.items())


def problem(
    estimates: Mapping[str, Sequence[Estimate]], half_width_percent: Mapping[str, float], minimum: int, most: int
) -> str:
    """What is wrong with the number of pairs of servers that were measured; empty if nothing is."""
    counts = {len(estimates[quantity]) for quantity in half_width_percent}
    count = min(counts)
    if len(counts) > 1:
        return f"its quantities have different numbers of pairs of servers: {sorted(counts)}"
    if count > most:
        return f"{count} pairs of servers, where at most {most} are declared"
    for first in range(minimum, count):
        if enough({name: of[:first] for name, of in estimates.items()}, half_width_percent, minimum, most):
            return f"{first} pairs of servers were enough, but {count} were measured"
    if not enough(estimates, half_width_percent, minimum, most):
        return f"its interval is wider than declared after {count} pairs of servers, and at most {most} are declared"
    return ""


# Beside the estimate


def autocorrelation(slices: Sequence[Slice], what: str) -> float | None:
    """Lag-1 correlation of the logs of neighbouring pairs of slices; None for fewer than 10, or equal ones."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.diff(_side_logs(slices, what, 2, whole=False), axis=1)[:, 0]
    away = logs - np.mean(logs[np.isfinite(logs)]) if np.isfinite(logs).any() else logs
    known = np.isfinite(away[:-1]) & np.isfinite(away[1:])
    whole = float(np.sum(away[np.isfinite(away)] ** 2))
    if known.sum() < 9 or whole == 0:
        return None
    return float(np.mean(away[:-1][known] * away[1:][known]) / (whole / np.isfinite(away).sum()))


def unpaired(slices: Sequence[Slice], what: str) -> Estimate:
    """The same blocks as in `of_blocks`, as if each side had been measured by itself (Welch): shows what pairs gain."""
    sides = _side_logs(slices, what, BLOCK)
    count = len(sides)
    log = float(np.diff(sides.mean(axis=0))[0])
    if count < 2:
        return Estimate(log, None, 0, count, "one block")
    variances = sides.var(axis=0, ddof=1) / count
    whole = float(variances.sum())
    freedom = int((count - 1) * whole**2 / float((variances**2).sum())) if whole else count - 1
    return Estimate(log, math.sqrt(whole), freedom, count, "95 %, Welch's t over blocks, unpaired")


def _side_logs(slices: Sequence[Slice], what: str, size: int, whole: bool = True) -> Floats:
    """The log rate (QPS) or time an answer (CPU) of A and B in each `size` slices: (groups, 2).

    With `whole`, UserError where one is not to be had.
    """
    found = []
    for start in range(0, len(slices) - size + 1, size):
        for side in "AB":
            above, below = _sums([one for one in slices[start : start + size] if one.side == side], what)
            if whole and not (above > 0 and below > 0):
                raise UserError(
                    f"slices {start} to {start + size - 1} have no {'answer' if what == QPS else 'processor time'} of "
                    f"side {side}: duet.slice_s is too short for these queries, or the server hangs"
                )
            found.append(np.log(np.divide(above, below)) if below else np.nan)
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def _sums(slices: Sequence[Slice], what: str) -> tuple[float, float]:
    if what == QPS:
        return float(sum(one.answers for one in slices)), sum(one.end_ns - one.start_ns for one in slices) / 1e9
    return math.fsum(one.cpu_s for one in slices), float(sum(one.completed for one in slices))


# Quantiles of latencies


@dataclass(frozen=True)
class Latencies:
    """Those of one pair of servers: of each block, those of A and of B, (n,) each, above zero."""

    a: Sequence[Floats]
    b: Sequence[Floats]


def quantile_ratio(servers: Sequence[Latencies], seed: int) -> dict[float, tuple[float, Interval]]:
    """For each of QUANTILES, B's over A's, both of all that was measured, and its 95 % interval.

    By bootstrap over pairs of servers, widened as they are few (see `stats`), and over the blocks within each; the
    replicates count latencies in bins (2,048, equal on the log scale).
    """
    a, b = (np.concatenate([part for side in sides for part in side]) for sides in _by_side(servers))
    if not (len(a) and len(b)):
        raise UserError("a side has no answer of which the latency is known: duet.slice_s is too short for its queries")
    ratios = np.log(np.quantile(b, QUANTILES, method="inverted_cdf"))
    ratios = (ratios - np.log(np.quantile(a, QUANTILES, method="inverted_cdf"))).tolist()
    if len(servers) == 1:
        return {q: (math.exp(log), unknown(ONE_PAIR)) for q, log in zip(QUANTILES, ratios, strict=True)}
    deviations = _deviations(servers, np.random.RandomState(seed))
    found = {}
    for q, log, deviation in zip(QUANTILES, ratios, deviations.T, strict=True):
        low, high = np.quantile(deviation, [0.025, 0.975])
        bounds = math.exp(log - max(high, 0.0)), math.exp(log - min(low, 0.0))
        found[q] = math.exp(log), Interval(*bounds, "95 %, bootstrap over pairs of servers and blocks")
    return found


def _by_side(servers: Sequence[Latencies]) -> tuple[list[Sequence[Floats]], list[Sequence[Floats]]]:
    return [one.a for one in servers], [one.b for one in servers]


def _deviations(servers: Sequence[Latencies], drawn: np.random.RandomState) -> Floats:
    """Of the log ratios (replicates, quantiles), from their value: over servers (widened), and within them."""
    count = len(servers)
    sizes = [len(one.a) for one in servers]
    logs = [np.log(np.concatenate([part for side in sides for part in side])) for sides in _by_side(servers)]
    low, high = min(map(np.min, logs)), max(map(np.max, logs))
    scale = (_BINS - 1) / max(float(high - low), 1e-9)
    counts = [
        np.array([np.bincount(((np.log(b) - low) * scale).astype(np.int64), minlength=_BINS) for s in sides for b in s])
        for sides in _by_side(servers)
    ]
    owner = np.repeat(np.arange(count), sizes)

    def ratios(weights: Floats) -> Floats:
        found = [_quantile_bins(weights @ side.astype(np.float64)) / scale for side in counts]
        return found[1] - found[0]

    value = ratios(np.ones((1, len(owner))))
    widened = math.sqrt(count / (count - 1)) * float(special.stdtrit(count - 1, 0.975)) / _Z
    parts = []
    for _ in range(_REPLICATES // _CHUNK):
        chosen = drawn.randint(count, size=(_CHUNK, count))
        times = (chosen[:, :, None] == np.arange(count)).sum(axis=1)  # (chunk, servers)
        of_servers = times[:, owner].astype(np.float64)
        inside = np.concatenate([_drawn_blocks(times[:, i], size, drawn) for i, size in enumerate(sizes)], axis=1)
        between = ratios(of_servers)
        parts.append(widened * (between - value) + ratios(inside) - between)
    return np.concatenate(parts)


def _drawn_blocks(times: Any, size: int, drawn: np.random.RandomState) -> Floats:
    """How often each of `size` blocks is drawn, where all are drawn `times` (chunk,) over: (chunk, size)."""
    return np.array([drawn.multinomial(n * size, np.full(size, 1 / size)) for n in times], dtype=np.float64)


def _quantile_bins(counts: Floats) -> Floats:
    """The bin of each of QUANTILES (nearest rank): (replicates, quantiles) from (replicates, bins)."""
    below = np.cumsum(counts, axis=1)
    ranks = np.ceil(np.array(QUANTILES) * below[:, -1:])
    return np.array([np.searchsorted(row, rank) for row, rank in zip(below, ranks, strict=True)], dtype=np.float64)
