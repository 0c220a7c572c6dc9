"""The one verdict on two numbers: they differ, they are equivalent, or neither is known yet.

Speeds, times and sizes are compared on the log scale, in pairs of the rounds in which both sides were measured.
Their variance is moderated by what all comparisons of one quantity have in common (`moderate`). Recalls are compared
query by query, shares of different queries by Newcombe's interval. *Equivalent* needs two one-sided tests within a
margin (Schuirmann 1987): failing to see a difference shows nothing. What is shown together is corrected by Holm's
method (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from anncestry.metrics import special
from anncestry.metrics.defects import MARKED_SHARE
from anncestry.metrics.duet import Ratio
from anncestry.metrics.moderate import Error, Part, population_of
from anncestry.metrics.stats import wilson

IN_PAIRS = "pairs of servers"
"""What the ratio of two systems in a pair rests on."""
MIN_RUNS = 3
"""Below this, runs say too little of their own noise; where noise is pooled, two will do."""
DEFECT_SHARE, DEFECT_MARGIN = "defect_share", MARKED_SHARE / 2
"""Shares of answers with a defect are equivalent within half of the share that a number is marked at."""
_POWER = 0.8
_FURTHER_MAX = 10_000
_SMALLEST_P = 1e-9
_ROUNDING = 1e-9  # of the margin; means over runs are rounded, so that runs that agree have a spread of this order


@dataclass(frozen=True)
class Rule:
    """When two numbers count as one: within `margin` (a share of the first), recalls within `recall_margin`.

    `level` is the chance of any false difference among all verdicts that are given together and, apart from it, that
    of any false equivalence.
    """

    margin: float = 0.05
    recall_margin: float = 0.005
    level: float = 0.05

    @property
    def words(self) -> str:
        """The margins."""
        return f"{100 * self.margin:g} % (of recalls {self.recall_margin:g})"


@dataclass(frozen=True)
class Sample:
    """A mean over runs or builds, with their sample standard deviation (n - 1); `values` (runs,) by round, if known."""

    mean: float
    std: float
    runs: int
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Share:
    """A mean over `queries` of values from 0 to 1; `by_query`: that of each query, by its row, where it is known."""

    mean: float
    queries: int
    by_query: Mapping[int, float] = field(default_factory=dict, compare=False)


Evidence = Sample | Share


class Outcome(StrEnum):
    """What is known of B against A."""

    LESS = "lower"
    MORE = "higher"
    EQUIVALENT = "equivalent"
    UNDETERMINED = "undetermined"
    EQUAL = "equal"
    """One value, though its noise is unknown."""
    SAME_RECORD = "same record"
    """Both sides quote one file: nothing was measured twice."""
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Verdict:
    """The outcome of B against A, and what it rests on.

    `low` and `high` bound B - A with 95 % confidence, for itself alone. `p` is that of "no difference", `p_apart` that
    of "a difference beyond the margin", both corrected for all that were judged together. `noise` names what counted as
    noise, empty where none is known. `further` is how many more of `of` (rounds, builds, queries) a side would probably
    (power 0.8) determine it, None above
    10,000. `reason` says why there is no better outcome, `note` what to bear in mind with this one.
    """

    outcome: Outcome
    low: float | None = None
    high: float | None = None
    noise: str = ""
    reason: str = ""
    note: str = ""
    p: float | None = None
    p_apart: float | None = None
    further: int | None = None
    of: str = ""

    @property
    def decided(self) -> bool:
        """Whether the two differ."""
        return self.outcome in (Outcome.LESS, Outcome.MORE)

    @property
    def words(self) -> str:
        """The outcome; of an undetermined one also what would determine it."""
        if self.outcome is not Outcome.UNDETERMINED or not self.of:
            return self.outcome.value
        count = "many" if self.further is None else f"{self.further:,}"
        of = self.of
        if self.further == 1:
            of = {"queries": "query", "pairs of servers": "pair of servers"}.get(of, of.removesuffix("s"))
        return f"{self.outcome.value} ({count} more {of})"


class Pair(NamedTuple):
    """Two numbers to judge. `quantity` names what they have in common with others (a metric); `paired`: whether run r
    of both was measured in one round; `unknown` says why their noise is not known, if that is known before."""

    a: Evidence
    b: Evidence
    quantity: str = ""
    paired: bool = False
    unknown: str = ""
    of: str = "rounds"
    ratio: Ratio | None = None
    """Of two systems that were measured in a pair: b over a, which then counts instead of their rounds."""


def ratio_of(facts: Mapping[str, Any], servers: int, sign: int = 1) -> Ratio:
    """The ratio b over a in a pair's record (`duet.Ratio.facts`), over `servers` pairs; a over b if `sign` is -1."""
    value = facts["value"]
    return Ratio(sign * math.log(value) if value else None, facts["log_error"], facts["freedom"], servers)


def judge(a: Evidence, b: Evidence, unknown: str = "", rule: Rule | None = None) -> Verdict:
    """B against A, alone."""
    return judge_all([Pair(a, b, unknown=unknown)], rule)[0]


def judge_all(pairs: Sequence[Pair], rule: Rule | None = None, beside: Sequence[Pair] = ()) -> list[Verdict]:
    """B against A of every pair, at a level that holds for all of them.

    Those `beside` are not judged, but tell how much such numbers vary (of systems in pairs: their controls).
    """
    rule = rule or Rule()
    tests = _moderated([_test(pair, rule) for pair in pairs], [_test(pair, rule) for pair in beside])
    known = [test for test in tests if not test.problem]
    apart, within = (iter(holm([of(test) for test in known])) for of in (_p_differs, _p_apart))
    return [
        _verdict(pair, test, next(apart), next(within), rule.level, len(known))
        if not test.problem
        else Verdict(Outcome.EQUAL if _is_one_value(pair) else Outcome.UNDETERMINED, reason=test.problem)
        for pair, test in zip(pairs, tests, strict=True)
    ]


def _is_one_value(pair: Pair) -> bool:
    return pair.ratio.log == 0 if pair.ratio is not None else pair.a.mean == pair.b.mean


def ratio_interval(a: Evidence, b: Evidence) -> tuple[float, float] | None:
    """The 95 % interval of a / b; None where noise can't be told, or a mean isn't above zero."""
    found = judge(b, a)
    if found.low is None or found.high is None or min(a.mean, b.mean) <= 0:
        return None
    return 1 + found.low / b.mean, 1 + found.high / b.mean


# Tests


@dataclass(frozen=True)
class _Test:
    """A difference B - A (of logarithms, if `log`), within which it counts as none (`margin`), and its error.

    `interval` is that of shares, whose errors are not symmetric. `runs` are those that a variance rests on.
    """

    problem: str = ""
    difference: float = 0.0
    margin: float = 0.0
    log: bool = False
    error: Error = field(default_factory=lambda: Error(()))
    family: str = ""
    noise: str = ""
    runs: int = 0
    few: str = ""
    interval: Callable[[float], tuple[float, float]] | None = None

    def bounds(self, confidence: float) -> tuple[float, float]:
        """The interval of the difference."""
        if self.interval:
            return self.interval(confidence)
        half = self.error.half_width(confidence)
        return self.difference - half, self.difference + half


def _test(pair: Pair, rule: Rule) -> _Test:
    a, b = pair.a, pair.b
    if pair.ratio is not None:
        return _of_ratio(pair.ratio, pair.quantity, rule)
    if pair.unknown:
        return _Test(pair.unknown)
    if isinstance(a, Share) and isinstance(b, Share):
        return _of_shares(a, b, DEFECT_MARGIN if pair.quantity == DEFECT_SHARE else rule.recall_margin)
    if isinstance(a, Share) or isinstance(b, Share):
        return _Test("a share of queries against a mean over runs")
    runs = min(a.runs, b.runs)
    if runs < 2:
        return _Test(f"at least {MIN_RUNS} runs are needed")
    log = min(a.mean, b.mean, *a.values, *b.values) > 0
    few = f"at least {MIN_RUNS} runs are needed" if runs < MIN_RUNS else ""
    margin = math.log1p(rule.margin) if log else rule.margin * abs(a.mean)
    if pair.paired and min(len(a.values), len(b.values)) > 1:
        # Further rounds are measured of cells that need them: what both sides have are the first rounds.
        common = (one.values[:runs] for one in (a, b))
        first, second = (np.log(values) if log else np.array(values) for values in common)
        apart = second - first
        difference, how = float(apart.mean()), "in pairs"
        parts: tuple[Part, ...] = (Part(float(apart.var(ddof=1)), runs - 1, 1 / runs),)
    else:
        (middle_a, var_a), (middle_b, var_b) = (_spread(one, log) for one in (a, b))
        difference, how = middle_b - middle_a, pair.of
        parts = (Part(var_a, a.runs - 1, 1 / a.runs), Part(var_b, b.runs - 1, 1 / b.runs))
    noise = "builds" if pair.of == "builds" else "runs"
    # Where a value is zero or below, its variance is no logarithm's: it has nothing in common with the others'.
    family = f"{pair.quantity} {how}" if log else ""
    return _Test("", difference, margin, log, Error(parts), family, noise, runs, few)


def _of_ratio(ratio: Ratio, quantity: str, rule: Rule) -> _Test:
    if ratio.log is None or ratio.error is None:
        return _Test("its pair has no interval")
    if not ratio.error > 0:
        return _Test("no pair of servers differed from another")
    # The variance of one pair of servers, so that ratios of few and of many have it in common.
    error = Error((Part(ratio.error**2 * ratio.servers, ratio.freedom, 1 / ratio.servers),))
    family = f"{quantity} {IN_PAIRS}" if quantity else ""
    return _Test("", ratio.log, math.log1p(rule.margin), True, error, family, IN_PAIRS, ratio.servers)


def _spread(one: Sample, log: bool) -> tuple[float, float]:
    """Mean and variance of the runs; of logarithms by the delta method where the runs' values are not known."""
    if not log:
        return one.mean, one.std**2
    if one.values:
        logs = np.log(one.values)
        return float(logs.mean()), float(logs.var(ddof=1))
    return math.log(one.mean), (one.std / one.mean) ** 2


def _of_shares(a: Share, b: Share, margin: float) -> _Test:
    common = sorted(a.by_query.keys() & b.by_query.keys())
    if len(common) < 2:
        if not a.queries or not b.queries:
            return _Test("the number of queries is not recorded")

        def interval(confidence: float) -> tuple[float, float]:
            return proportion_interval(b.mean, b.queries, a.mean, a.queries, confidence)

        queries = min(a.queries, b.queries)
        variance = b.mean * (1 - b.mean) + a.mean * (1 - a.mean)
        part = Part(max(variance, 1 / queries), queries, 1 / queries)
        return _Test("", b.mean - a.mean, margin, False, Error((part,)), "", "queries", queries, interval=interval)
    apart = np.array([b.by_query[query] - a.by_query[query] for query in common])
    # After Agresti and Min, "Simple improved confidence intervals for comparing matched proportions" (2005), who add as
    # much to each of four cells: half a query more each way, as where all queries agree the next need not.
    count = len(apart) + 1
    centre = float(apart.sum()) / count
    variance = (float((apart**2).sum()) + 1) / count - centre**2
    part = Part(variance, count - 1, 1 / count)
    return _Test("", float(apart.mean()), margin, False, Error((part,)), "", "the same queries", len(apart))


def _moderated(tests: Sequence[_Test], beside: Sequence[_Test]) -> list[_Test]:
    """The tests with moderated variances, where their family is large enough; else a problem where noise is unknown.

    To a family belong those `beside`, too.
    """
    tests = [replace(test, problem=_NONE_DIFFERED) if _agrees(test) else test for test in tests]
    families: dict[str, list[Part]] = {}
    for test in (*tests, *beside):
        if test.family and not _agrees(test):
            known = families.setdefault(test.family, [])
            # Builds are few, and one that is compared with several others is one variance.
            known.extend(part for part in test.error.parts if test.noise != "builds" or part not in known)
    populations = {family: population_of(parts) for family, parts in families.items()}
    done = []
    for test in tests:
        population = populations.get(test.family)
        if population is not None and not test.problem:
            test = replace(test, error=Error(tuple(replace(part, population=population) for part in test.error.parts)))
        elif test.few and not test.problem:
            test = replace(test, problem=test.few)
        if not test.problem and _is_still(test):
            test = replace(test, problem=_NONE_DIFFERED)
        done.append(test)
    return done


_NONE_DIFFERED = "no run differed from another"


def _is_still(test: _Test) -> bool:
    """Whether no run differed from another, so that nothing is known of the noise."""
    return test.noise in ("runs", "builds") and not test.error.size > _ROUNDING * test.margin


def _agrees(test: _Test) -> bool:
    """Whether all runs of both sides are one value: as counts of failures, which are mostly 0."""
    return not test.problem and test.difference == 0 and _is_still(test)


def _p_differs(test: _Test) -> float:
    if test.interval:
        return _level_at(lambda level: not _holds_zero(test.bounds(1 - level)))
    return 2 * test.error.beyond(abs(test.difference))


def _p_apart(test: _Test) -> float:
    """Of the two one-sided tests, the larger p."""
    if test.interval:
        return _level_at(lambda level: max(map(abs, test.bounds(1 - 2 * min(level, 0.499)))) < test.margin)
    return test.error.beyond(test.margin - abs(test.difference))


def _holds_zero(bounds: tuple[float, float]) -> bool:
    return bounds[0] <= 0 <= bounds[1]


def _level_at(reached: Callable[[float], bool]) -> float:
    """The least level at which a test is `reached`."""
    low, high = _SMALLEST_P, 1.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _verdict(pair: Pair, test: _Test, p: float, p_apart: float, level: float, judged: int) -> Verdict:
    low, high = test.bounds(0.95)
    if test.log:
        low, high = (pair.a.mean * math.expm1(bound) for bound in (low, high))
    found = Verdict(Outcome.EQUIVALENT, low, high, test.noise, p=p, p_apart=p_apart)
    if p_apart <= level:
        return found
    if p <= level:
        return replace(found, outcome=Outcome.MORE if test.difference > 0 else Outcome.LESS)
    of = IN_PAIRS if pair.ratio is not None else "queries" if isinstance(pair.a, Share) else pair.of
    return replace(found, outcome=Outcome.UNDETERMINED, further=_further(test, level / judged), of=of)


def _further(test: _Test, level: float) -> int | None:
    """How many more observations a side would show a difference of this size, or that it is within the margin."""
    size, spread = abs(test.difference), test.error.size * math.sqrt(test.runs)
    normal = special.ndtri
    needed = []
    if size > 0:
        needed.append(((normal(1 - level / 2) + normal(_POWER)) * spread / size) ** 2)
    if size < test.margin:
        needed.append(((normal(1 - level) + normal(_POWER)) * spread / (test.margin - size)) ** 2)
    more = max(1, math.ceil(min(needed)) - test.runs) if needed else _FURTHER_MAX + 1
    return more if more <= _FURTHER_MAX else None


def holm(p_values: Sequence[float]) -> list[float]:
    """p adjusted so that the chance of any false difference among all stays at the level (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = worst
    return adjusted


# Shares of queries


def proportion_interval(
    first: float, first_count: int, second: float, second_count: int, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of `first` - `second`, both means over `*_count` (>= 1) queries of values from 0 to 1.

    Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10). It is wide rather than narrow: the
    score interval takes p (1 - p) for the variance of one query, the most that values from 0 to 1 with mean p can have
    (Bhatia and Davis 2000), and takes the queries of the two sides for different ones.
    """
    low_1, high_1 = wilson(first, first_count, confidence)
    low_2, high_2 = wilson(second, second_count, confidence)
    below, above = math.hypot(first - low_1, high_2 - second), math.hypot(high_1 - first, second - low_2)
    return first - second - below, first - second + above
