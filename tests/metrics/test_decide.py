"""Verdicts: a difference, an equivalence, or neither, each no more often wrong than its level says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anncestry.metrics import stats
from anncestry.metrics.decide import Outcome, Pair, Rule, Sample, Share, holm, judge, judge_all, ratio_interval
from anncestry.metrics.duet import Ratio


def sample(*values):
    return Sample(float(np.mean(values)), float(np.std(values, ddof=1)), len(values), tuple(values))


def shares(values):
    return Share(float(np.mean(values)), len(values), dict(enumerate(values)))


def test_a_difference_is_judged_by_its_ratio_as_a_textbook_s_test_of_logarithms():
    """log(2) over sqrt(2 · s² / 3) with s of the logarithms 0.1 is t = 8.49 with 4 degrees of freedom."""
    spread = np.exp([-0.1, 0.0, 0.1])
    found = judge(sample(*(100 * spread)), sample(*(200 * spread)))
    assert found.outcome is Outcome.MORE and found.p == pytest.approx(0.00106, abs=2e-5)
    low, high = ratio_interval(sample(*(200 * spread)), sample(*(100 * spread)))
    assert math.sqrt(low * high) == pytest.approx(2, rel=0.01) and math.log(high / 2) == pytest.approx(0.227, abs=0.01)


def test_no_difference_seen_is_no_equivalence():
    """Three rounds that swing by 20 % show neither; three that swing by 0.1 % show that the two are within 5 %."""
    found = judge(sample(100, 120, 80), sample(102, 81, 119))
    assert found.outcome is Outcome.UNDETERMINED
    assert judge(sample(100, 100.1, 99.9), sample(101, 101.1, 100.9)).outcome is Outcome.EQUIVALENT


def test_equivalence_is_a_question_of_the_declared_margin():
    two = sample(100, 100.5, 99.5), sample(103, 103.5, 102.5)
    assert judge(*two, rule=Rule(margin=0.05)).outcome is Outcome.EQUIVALENT
    assert judge(*two, rule=Rule(margin=0.01)).outcome is Outcome.MORE


def test_rounds_that_drift_together_are_compared_in_pairs():
    """The machine slows down by half over three rounds; system B is 10 % faster in each."""
    drift = np.array([100.0, 70.0, 50.0])
    a, b = sample(*drift), sample(*(drift * [1.10, 1.11, 1.09]))
    assert judge(a, b).outcome is Outcome.UNDETERMINED
    assert judge_all([Pair(a, b, paired=True)])[0].outcome is Outcome.MORE


@pytest.mark.parametrize("further", [0, 1, 5])
def test_rounds_that_only_one_side_needed_leave_the_common_ones_pairs(further):
    random = np.random.RandomState(further)
    drift = random.normal(0, 0.2, 3 + further)
    rates = 1000 * np.exp(drift + random.normal(0, 0.003, 3 + further))
    for planted, outcome in ((1.1, Outcome.MORE), (0.9, Outcome.LESS), (1.0, Outcome.EQUIVALENT)):
        other = planted * 1000 * np.exp(drift[:3] + random.normal(0, 0.003, 3))
        several, three = (sample(*values.tolist()) for values in (rates, other))
        assert judge_all([Pair(several, three, paired=True)])[0].outcome is outcome
        back = {Outcome.MORE: Outcome.LESS, Outcome.LESS: Outcome.MORE}.get(outcome, outcome)
        assert judge_all([Pair(three, several, paired=True)])[0].outcome is back
        assert judge_all([Pair(several, three)])[0].outcome is Outcome.UNDETERMINED


def test_many_cells_of_one_quantity_tell_more_of_its_noise_than_each_alone():
    random = np.random.RandomState(1)
    rounds = [100 * np.exp(random.normal(0, 0.03, (2, 3))) * [[1.0], [1.25]] for _ in range(20)]
    pairs = [Pair(sample(*a), sample(*b), "qps", paired=True) for a, b in rounds]
    together = judge_all(pairs)
    alone = [judge_all([pair])[0] for pair in pairs]
    assert np.mean([v.p_apart <= 1 and v.decided for v in together]) > 0.8
    levels = holm([verdict.p for verdict in alone])
    assert sum(p <= 0.05 for p in levels) < sum(verdict.decided for verdict in together)


def in_pairs(ratio, error):
    """A ratio over four pairs of servers, which leave two degrees of freedom."""
    return Pair(sample(1.0, 1.0), sample(1.0, 1.0), "qps", ratio=Ratio(math.log(ratio), error, 2.0, 4))


def test_controls_tell_how_much_ratios_of_systems_in_pairs_vary():
    """1.40 (1.28 to 1.53) by four pairs of servers alone is not enough for a page with 48 comparisons; with controls
    and other pairs that vary as little, it is. One of a few percent stays open, and what a few servers agree on by luck
    is not taken for known."""
    others = [Pair(sample(100, 140, 80), sample(110, 90, 130), "p50_ms", paired=True)] * 47
    alone = judge_all([in_pairs(1.4, 0.021), *others])[0]
    assert alone.outcome is Outcome.UNDETERMINED and alone.p > 0.05
    paired = [in_pairs(1.4, 0.021), in_pairs(1.05, 0.018), in_pairs(0.9, 0.015), in_pairs(1.02, 0.0001)]
    controls = [in_pairs(1.01, 0.012), in_pairs(0.99, 0.017)]
    found = judge_all([*paired, *others], beside=controls)
    assert len(found) == 51
    assert found[0].outcome is Outcome.MORE and found[1].outcome is Outcome.UNDETERMINED
    assert found[3].high - found[3].low > 10 * 0.0001
    few = judge_all([*paired[:3], *others], beside=controls)
    assert few[0].outcome is Outcome.UNDETERMINED, "five are too few to tell what they have in common"


def test_what_is_shown_together_is_corrected_together():
    a, b = sample(100, 101, 99), sample(104.9, 105.8, 103.6)
    rule = Rule(margin=0.001)
    assert judge(a, b, rule=rule).outcome is Outcome.MORE
    noise = [Pair(sample(100, 110, 90), sample(101, 92, 108), str(place)) for place in range(30)]
    assert judge_all([Pair(a, b, "this"), *noise], rule)[0].outcome is Outcome.UNDETERMINED


def test_recalls_of_the_same_queries_are_compared_query_by_query():
    """D11: .99 against .982 over 1,000 queries can't be told apart as two shares; their own queries tell."""
    random = np.random.RandomState(2)
    first = 1 - 0.1 * (random.uniform(size=1000) < 0.1)
    second = first - 0.1 * (random.uniform(size=1000) < 0.08)
    paired = judge(shares(first), shares(second))
    assert paired.outcome is Outcome.LESS and paired.noise == "the same queries"
    assert paired.high - paired.low < 0.006
    unpaired = judge(Share(float(first.mean()), 1000), Share(float(second.mean()), 1000))
    assert unpaired.outcome is Outcome.UNDETERMINED


def test_recalls_that_agree_on_every_query_still_might_not_on_the_next():
    few, many = (judge(shares(np.full(n, 0.9)), shares(np.full(n, 0.9))) for n in (100, 5000))
    assert few.outcome is Outcome.UNDETERMINED and few.of == "queries" and few.further > 100
    assert many.outcome is Outcome.EQUIVALENT and many.low < 0 < many.high


def test_an_undetermined_verdict_says_how_many_rounds_would_probably_determine_it():
    """CV 10 %, 20 % apart: n = ((1.96 + 0.84) · √2 · 0.1 / 0.18)² is about 5 rounds a side, so few more than three."""
    found = judge(sample(91, 100, 111), sample(112, 120, 133))
    assert found.outcome is Outcome.UNDETERMINED
    assert (
        1 <= found.further <= 5
        and found.words == f"undetermined ({found.further} more round{'s' * (found.further > 1)})"
    )
    assert judge(sample(91, 100, 111), sample(91.1, 100, 111.1), rule=Rule(margin=0.001)).further is None


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (sample(5.0, 5.1), sample(9.0, 9.2), "at least 3 runs"),
        (Sample(5.0, 0.0, 1), sample(9.0, 9.2, 9.1), "at least 3 runs"),
        (Sample(5.0, 0.0, 3), Sample(9.0, 0.0, 3), "no run differed from another"),
        (Share(0.9, 0), Share(0.8, 0), "the number of queries is not recorded"),
    ],
)
def test_noise_that_is_not_known_is_said_and_decides_nothing(a, b, why):
    found = judge(a, b)
    assert found.outcome is Outcome.UNDETERMINED and found.low is None and why in found.reason


def test_numbers_that_may_be_zero_are_compared_as_they_are():
    found = judge(sample(0.0, 1.0, 0.5), sample(100.0, 101.0, 99.0))
    assert found.outcome is Outcome.MORE and found.low < 99.5 < found.high


def test_counts_that_are_zero_on_both_sides_are_equal_whatever_others_of_their_kind_do():
    none = Sample(0.0, 0.0, 3, (0.0, 0.0, 0.0))
    some, other = (
        Sample(float(np.mean(v)), float(np.std(v, ddof=1)), 3, v) for v in ((0.0, 5.0, 1.0), (3.0, 0.0, 2.0))
    )
    *equal, last = judge_all(
        [*[Pair(none, none, "fail_per_s", paired=True)] * 5, Pair(some, other, "fail_per_s", paired=True)]
    )
    assert [verdict.outcome for verdict in equal] == [Outcome.EQUAL] * 5
    assert last.outcome is Outcome.UNDETERMINED


def test_a_number_that_is_compared_with_two_others_is_one_variance_and_three_are_too_few():
    a, b, c = (Sample(mean, 0.01 * mean, 2) for mean in (1.0, 1.5, 2.0))
    for verdict in judge_all([Pair(*two, "load_s", of="builds") for two in ((a, b), (a, c), (b, c))]):
        assert verdict.outcome is Outcome.UNDETERMINED and "at least 3 runs are needed" in verdict.reason


def test_a_share_of_defects_that_marks_a_number_is_not_equivalent_to_none():
    none, marked = Share(0.0, 10_000), Share(0.002, 10_000)
    assert judge_all([Pair(none, marked, "defect_share")])[0].outcome is Outcome.MORE
    assert judge_all([Pair(none, marked, "recall_by_id")])[0].outcome is Outcome.EQUIVALENT


def test_a_ratio_without_an_error_is_equal_only_if_it_is_one():
    one = Sample(1.0, 0.0, 1)
    half, same = (judge_all([Pair(one, one, ratio=Ratio(log, 0.0, 2, 4))])[0] for log in (math.log(0.5), 0.0))
    assert (half.outcome, same.outcome) == (Outcome.UNDETERMINED, Outcome.EQUAL)


def test_equal_systems_are_called_different_no_more_often_than_the_level():
    """Fourteen comparisons of rounds with bursts, in 150 worlds: `make bench-decisions` has more kinds, and 1,000."""
    alarms = 0
    for seed in range(150):
        random = np.random.RandomState(seed)
        worlds = np.exp(random.normal(0, 0.1, (14, 2, 3))) * (1 - 0.3 * (random.uniform(size=(14, 2, 3)) < 0.06))
        found = judge_all([Pair(sample(*a), sample(*b), "qps", paired=True) for a, b in worlds])
        alarms += any(verdict.decided for verdict in found)
    assert alarms / 150 <= 0.08


def test_holm_s_correction_is_that_of_his_paper():
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_wilson_s_interval_does_not_collapse_at_the_ends():
    low, high = stats.wilson(0.0, 1000)
    assert low == pytest.approx(0, abs=1e-12) and high == pytest.approx(0.00383, abs=1e-5)
