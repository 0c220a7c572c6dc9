"""The ratio of two servers that are driven in turns: it is there where it is planted, and its interval is honest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anncestry.errors import UserError
from anncestry.metrics import decide, duet
from anncestry.metrics.duet import CPU, QPS, Estimate, Latencies, Slice

SLICE_S = 0.5


def drift(random, count, sd, correlation):
    """(count,) values of this sd, each correlated with the one before."""
    found = random.normal(0, sd, count)
    for i in range(1, count):
        found[i] = correlation * found[i - 1] + math.sqrt(1 - correlation**2) * found[i]
    return found


def turns(random, quads, ratio=1.0, noise=0.1, correlation=0.3, cpu_noise=0.04):
    """Slices of a machine whose speed drifts for both sides alike; B answers `ratio` times as many as A."""
    sides, found = duet.order(quads, int(random.randint(1 << 30))), []
    speed = np.exp(drift(random, len(sides), 0.3, 0.9) + drift(random, len(sides), noise, correlation))
    for i, side in enumerate(sides):
        answers = int(random.poisson(400 * speed[i] * (ratio if side == "B" else 1)))
        cpu_s = answers * 1e-3 * math.exp(random.normal(0, cpu_noise)) / (ratio if side == "B" else 1)
        found.append(Slice(side, int(i * 1e9), int((i + SLICE_S) * 1e9), answers, answers, cpu_s))
    return found


def pairs(random, servers, quads, ratio=1.0, bias=0.02, **world):
    """Estimates (QPS) of several pairs of servers, each with a bias of its own."""
    biased = (turns(random, quads, ratio * math.exp(random.normal(0, bias)), **world) for _ in range(servers))
    return [duet.of_blocks(duet.block_logs(slices, QPS)) for slices in biased]


def holds(estimate, truth=1.0):
    return abs(estimate.log - math.log(truth)) <= estimate.half


# Order


def test_each_quad_gives_both_sides_the_same_turns_and_the_same_place_in_time():
    sides = duet.order(500, 7)
    quads = {sides[i : i + 4] for i in range(0, 2000, 4)}
    assert len(sides) == 2000 and quads == {"ABBA", "BAAB"}
    assert 200 < sum(sides[i] == "A" for i in range(0, 2000, 4)) < 300, "neither side is first by rule"
    assert sides == duet.order(500, 7) != duet.order(500, 8)


def test_a_machine_that_slows_down_evenly_favours_no_side():
    sides = duet.order(20, 1)
    slices = [Slice(s, i * 10**9, i * 10**9 + 5 * 10**8, 10000 - 50 * i, 1, 1.0) for i, s in enumerate(sides)]
    assert duet.block_logs(slices, QPS) == pytest.approx(np.zeros(10), abs=1e-12)


# One pair of servers


def test_the_ratio_is_that_of_sums_in_a_block_and_b_over_a():
    answers = dict(A=[0, 10, 20, 10], B=[60, 0, 15, 5])
    slices = [
        Slice(side, 0, 5 * 10**8, of := answers[side].pop(0), 2 * of, of * (3.0 if side == "B" else 1.0))
        for side in "ABBABAAB"
    ]
    assert np.exp(duet.block_logs(slices, QPS)) == pytest.approx([2.0])
    assert np.exp(duet.block_logs(slices, CPU)) == pytest.approx([3.0])
    assert len(duet.block_logs(slices + slices[:4], QPS)) == 1, "what is left is no block"


def test_a_side_without_an_answer_in_a_whole_block_is_named():
    slices = [Slice(side, 0, 10**9, int(side == "A"), 1, 1.0) for side in "ABBABAAB"]
    with pytest.raises(UserError, match="slices 0 to 7 have no answer of side B"):
        duet.block_logs(slices, QPS)


def test_five_percent_are_found_by_a_minute_of_slices_and_not_by_the_same_unpaired():
    """The machine's speed drifts by 30 %."""
    random = np.random.RandomState(3)
    found = unpaired = 0
    for _ in range(40):
        slices = turns(random, 60, 1.05, noise=0.05)
        estimate = duet.of_blocks(duet.block_logs(slices, QPS))
        found += not holds(estimate)
        alone = duet.unpaired(slices, QPS)
        unpaired += not holds(alone)
        assert alone.log == pytest.approx(estimate.log) and alone.half > 1.5 * estimate.half
    assert found >= 30 and unpaired <= 8


def test_blocks_of_one_program_are_no_more_often_apart_than_the_level_says():
    random = np.random.RandomState(4)
    estimates = pairs(random, 400, 60, bias=0)
    assert np.mean([holds(one) for one in estimates]) > 0.92
    assert np.mean([one.log for one in estimates]) == pytest.approx(0, abs=0.004)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_autocorrelation_is_that_of_neighbouring_pairs(correlation):
    random = np.random.RandomState(5)
    apart = drift(random, 2000, 0.1, correlation)
    slices = []
    for i, value in enumerate(apart):
        for side in duet.order(500, 1)[2 * i : 2 * i + 2]:
            answers = round(10_000 * math.exp(value if side == "B" else 0))
            slices.append(Slice(side, 0, 10**9, answers, answers, 1.0))
    assert duet.autocorrelation(slices, QPS) == pytest.approx(correlation, abs=0.06)
    assert duet.autocorrelation(slices[:16], QPS) is None


# Several pairs of servers


@pytest.mark.parametrize("bias", [0.0, 0.02, 0.04])
@pytest.mark.parametrize("servers", [2, 3, 4, 6])
@pytest.mark.parametrize(("sd", "correlation"), [(0.05, 0.0), (0.15, 0.45)])
def test_the_interval_over_servers_holds_the_truth_whatever_the_bias_of_a_start(bias, servers, sd, correlation):
    random, held = np.random.RandomState(servers), 0
    for _ in range(400):
        logs = [random.normal(0, bias) + drift(random, 12, sd, correlation) for _ in range(servers)]
        held += holds(duet.over_servers([duet.of_blocks(one) for one in logs]))
    assert held / 400 > 0.92


def test_blocks_of_one_start_are_too_sure_of_themselves_so_one_pair_has_no_interval():
    random = np.random.RandomState(6)
    each = pairs(random, 200, 120, bias=0.02, noise=0.03)
    assert np.mean([holds(one) for one in each]) < 0.7
    alone = duet.over_servers(each[:1])
    assert alone.half is None and alone.facts()["low"] is None and "bias" in alone.facts()["interval"]


def test_stopping_at_a_narrow_interval_keeps_its_promise():
    random, held, counts = np.random.RandomState(8), 0, set()
    for _ in range(400):
        estimates = []
        while not duet.enough({QPS: estimates}, {QPS: 5}, 3, 8):
            estimates.append(duet.of_blocks(random.normal(0, 0.02) + drift(random, 12, 0.1, 0.2)))
        assert not duet.problem({QPS: estimates}, {QPS: 5}, 3, 8)
        held += holds(duet.over_servers(estimates))
        counts.add(len(estimates))
    assert held / 400 > 0.93 and counts >= {3, 4, 5, 6, 7, 8}


def test_a_result_does_not_decide_when_to_stop():
    """The same spread around a large and around no difference asks for the same number of pairs of servers."""
    for truth in (0.0, 0.5):
        estimates = [Estimate(truth + away, 0.01, 9, 10) for away in (0.03, -0.03, 0.0, 0.01, -0.01)]
        assert [duet.enough({QPS: estimates[:n]}, {QPS: 5}, 2, 8) for n in (1, 2, 3, 4, 5)] == [False] * 3 + [True] * 2


def test_more_or_fewer_pairs_of_servers_than_the_rule_asks_for_are_a_problem():
    even = [Estimate(0.03 * (i == 1), 0.005, 9, 10) for i in range(6)]
    rule = {QPS: 3.0, CPU: 3.0}, 3, 6
    wide = [Estimate(0.3 * (i % 2), 0.005, 9, 10) for i in range(7)]
    assert duet.problem({QPS: even[:4], CPU: even[:4]}, *rule) == ""
    assert "4 pairs of servers were enough, but 6 were measured" in duet.problem({QPS: even, CPU: even}, *rule)
    assert "wider than declared" in duet.problem({QPS: even[:4], CPU: wide[:4]}, *rule)
    assert "at most 6" in duet.problem({QPS: wide, CPU: wide}, *rule)
    assert duet.problem({QPS: wide[:6], CPU: wide[:6]}, *rule) == ""
    assert "different numbers" in duet.problem({QPS: wide[:6], CPU: wide[:5]}, *rule)


# Verdicts


def test_a_verdict_says_what_the_interval_says():
    random = np.random.RandomState(9)
    for ratio, outcome in ((1.1, decide.Outcome.MORE), (0.9, decide.Outcome.LESS), (1.0, decide.Outcome.EQUIVALENT)):
        whole = duet.over_servers(pairs(random, 6, 60, ratio, noise=0.03, bias=0.01))
        (verdict,) = decide.judge_all([duet.judged(whole, QPS)])
        facts = whole.facts()
        assert verdict.outcome is outcome
        assert (1 + verdict.low, 1 + verdict.high) == pytest.approx((facts["low"], facts["high"]))


def test_one_or_two_pairs_of_servers_decide_nothing_by_themselves():
    alone = duet.over_servers([Estimate(0.5, 0.001, 9, 10)])
    (verdict,) = decide.judge_all([duet.judged(alone, QPS)])
    assert verdict.outcome is decide.Outcome.UNDETERMINED and "bias" in verdict.reason
    wide = duet.over_servers([Estimate(x, 0.1, 9, 10) for x in (0.0, 0.1, 0.2)])
    (verdict,) = decide.judge_all([duet.judged(wide, QPS)])
    assert "more pairs of servers" in verdict.words


# Quantiles


def latencies(random, servers, ratio=1.0, bias=0.02, blocks=12):
    """Of each pair of servers: blocks whose machine is 10 % faster or slower, tails of a log-normal."""
    found = []
    for _ in range(servers):
        sides = []
        start = ratio * math.exp(random.normal(0, bias))
        speed = np.exp(random.normal(0, 0.1, blocks))
        for factor in (1.0, start):
            shapes = (factor * v * np.exp(random.normal(0, 0.05)) for v in speed)
            sides.append([shape * np.exp(random.normal(0, 0.5, 150)) for shape in shapes])
        found.append(Latencies(*sides))
    return found


def test_quantiles_are_those_of_all_answers_and_the_same_bytes_every_time():
    random = np.random.RandomState(10)
    servers = latencies(random, 4, 1.3)
    found = duet.quantile_ratio(servers, 1)
    a, b = (np.concatenate([part for one in servers for part in side(one)]) for side in (lambda s: s.a, lambda s: s.b))
    for q, (ratio, interval) in found.items():
        expected = np.quantile(b, q, method="inverted_cdf") / np.quantile(a, q, method="inverted_cdf")
        assert ratio == pytest.approx(float(expected)) and interval.low < ratio < interval.high
        assert interval.low > 1
    assert found == duet.quantile_ratio(servers, 1)
    assert duet.quantile_ratio(servers[:1], 1)[0.5][1].low is None


@pytest.mark.parametrize("servers", [2, 5])
def test_intervals_of_quantile_ratios_hold_the_truth(servers):
    random = np.random.RandomState(11)
    held = dict.fromkeys(duet.QUANTILES, 0)
    for seed in range(40):
        for q, (_, interval) in duet.quantile_ratio(latencies(random, servers), seed).items():
            held[q] += interval.low <= 1 <= interval.high
    assert min(held.values()) >= 35, held
