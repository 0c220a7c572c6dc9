"""Noise that few runs tell: what a population of variances adds, and that it claims no more than is so."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import special

from anncestry.metrics import moderate
from anncestry.metrics.decide import Pair, Sample, judge_all
from anncestry.metrics.moderate import Error, Part, Population, population_of


def drawn(random: np.random.RandomState, population: Population, count: int, freedom: int):
    """True variances of a population, and parts of what runs show of them."""
    true = np.exp(random.normal(population.middle, population.spread, count))
    return true, [Part(float(v * random.chisquare(freedom) / freedom), freedom, 1.0) for v in true]


def test_without_a_population_an_error_is_student_s():
    error = Error((Part(0.04, 2, 1 / 3),))
    assert error.half_width(0.95) == pytest.approx(float(special.stdtrit(2, 0.975)) * 0.2 / math.sqrt(3))
    assert error.beyond(error.half_width(0.95)) == pytest.approx(0.025)


@pytest.mark.parametrize("spread", [1.5, 2.0])
def test_what_variances_have_in_common_is_found_again(spread):
    population = Population(math.log(0.01), spread)
    _, parts = drawn(np.random.RandomState(3), population, 3000, 2)
    found = population_of(parts)
    assert found.middle == pytest.approx(population.middle, abs=0.15)
    assert found.spread == pytest.approx(spread, rel=0.08)


def test_variances_that_agree_are_no_reason_to_expect_no_bursts():
    _, parts = drawn(np.random.RandomState(4), Population(math.log(0.01), 0.1), 500, 2)
    assert population_of(parts).spread == moderate.SPREAD


@pytest.mark.parametrize("freedom", [1, 2, 7, 40])
@pytest.mark.parametrize("count", [1, 2])
def test_an_interval_covers_what_it_says_whatever_the_confidence(freedom, count):
    """Errors of estimates whose variances are of the population; `count` parts make the variance of one."""
    random = np.random.RandomState(freedom)
    population = Population(math.log(0.01), moderate.SPREAD)
    true, parts = drawn(random, population, 4000 * count, freedom)
    held = dict.fromkeys((0.5, 0.95, 0.999), 0)
    for place in range(4000):
        own = slice(place * count, (place + 1) * count)
        error = Error(tuple(replace(part, population=population) for part in parts[own]))
        off = random.normal(0, math.sqrt(true[own].sum()))
        for confidence in held:
            held[confidence] += 2 * error.beyond(abs(off)) > 1 - confidence
    for confidence, count_held in held.items():
        allowed = 4 * math.sqrt(confidence * (1 - confidence) / 4000)
        assert count_held / 4000 == pytest.approx(confidence, abs=allowed)


@pytest.mark.parametrize("variance", [0.0, 1e-12, 0.01, 1e6])
def test_widths_and_chances_are_each_other_s_inverse(variance):
    error = Error((Part(variance, 2, 1 / 3, Population(math.log(0.01), 1.4)),) * 2)
    widths = [error.half_width(confidence) for confidence in (0.5, 0.95, 0.999, 1 - 1e-6)]
    assert widths == sorted(widths)
    assert error.beyond(widths[1]) == pytest.approx(0.025, rel=1e-6)


def test_of_thousands_of_comparisons_in_two_rounds_a_factor_of_eight_is_seen_not_only_of_a_hundred():
    """docs/statistics.md, "Moderated variances": the least factor that is determined, where pairs vary by 15 %."""
    error = Error((Part(0.15**2, 1, 1 / 2, Population(math.log(0.15**2), moderate.SPREAD)),))
    assert math.exp(error.half_width(1 - 0.05 / 2100)) == pytest.approx(8, abs=0.5)
    smyth = -float(special.stdtrit(1 + 2, 0.025 / 2100)) * 0.15 / math.sqrt(2)
    assert math.exp(smyth) == pytest.approx(121, abs=0.5)


def test_of_fifteen_systems_in_two_rounds_a_factor_of_eighty_is_no_longer_undetermined():
    """Twenty numbers, so 2,100 comparisons together, of rounds that vary by a tenth."""
    random = np.random.RandomState(5)
    pairs, factors = [], []
    for _ in range(20):
        levels = np.exp(np.linspace(0, math.log(88), 15))
        runs = levels[:, None] * np.exp(random.normal(0, 0.1, (15, 2)))
        sides = [Sample(float(r.mean()), float(r.std(ddof=1)), 2, tuple(r.tolist())) for r in runs]
        pairs += [Pair(a, b, "qps", paired=True) for a, b in combinations(sides, 2)]
        factors += [b / a for a, b in combinations(levels, 2)]
    found = judge_all(pairs)
    far = [verdict.decided for verdict, factor in zip(found, factors, strict=True) if factor > 10]
    assert len(far) > 400 and np.mean(far) > 0.98
