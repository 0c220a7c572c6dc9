"""Ratios of two servers in turns: what the estimator says in worlds whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anncestry.metrics import duet, rounds
from anncestry.metrics.duet import Slice


def slices(rate_a, rate_b, blocks=5, noise=0.0, seed=1, cpu=(0.001, 0.001), drift=0.0, others=0.0):
    """Slices of half a second of two servers; what the machine does (noise, drift) happens to both.

    Other programs use up to so many `others` cores of two, which the servers then have less.
    """
    random = np.random.RandomState(seed)
    found, at = [], 0
    for number, side in enumerate(duet.order(2 * blocks, seed)):
        taken = others * random.uniform()
        machine = math.exp(noise * random.normal() + drift * number) * (2 - taken) / 2
        rate, cost = (rate_a, cpu[0]) if side == "A" else (rate_b, cpu[1])
        answers = round(rate * 0.5 * machine)
        found.append(Slice(side.lower(), at, at + 500_000_000, answers, answers, answers * cost, taken))
        at += 500_000_000
    return found


def estimate(found, what):
    return duet.of_blocks(duet.blocks(found, what).logs)


def world(random, servers, blocks, truth=0.0, start=0.02, noise=0.08, rho=0.0, second=0.0):
    """What pairs of servers say whose starts have a bias, also by their order, and whose blocks are noisy."""
    estimates = []
    for number in range(servers):
        by_order = -second if duet.first_started(number) else second
        errors, last = [], random.normal()
        for _ in range(blocks):
            last = rho * last + math.sqrt(1 - rho**2) * random.normal()
            errors.append(noise * last)
        estimates.append(duet.of_blocks(truth + by_order + start * random.normal() + np.array(errors)))
    return duet.over_servers(estimates)


def test_an_order_is_of_abba_and_baab_drawn_by_its_seed():
    sides = duet.order(10, seed=3)
    quads = {sides[at : at + 4] for at in range(0, len(sides), 4)}
    assert quads == {"ABBA", "BAAB"}
    assert sides == duet.order(10, seed=3) != duet.order(10, seed=4)
    assert sides.count("A") == sides.count("B") == 20


def test_no_side_is_frozen_for_more_than_two_slices():
    for seed in range(50):
        sides = duet.order(20, seed)
        assert "AAA" not in sides
        assert "BBB" not in sides


def test_a_ratio_is_that_of_b_to_a():
    found = slices(1000, 1200, cpu=(0.001, 0.002))
    assert estimate(found, "qps").log == pytest.approx(math.log(1.2), abs=1e-3)
    assert estimate(found, "cpu").log == pytest.approx(math.log(2))


def test_a_drift_of_the_machine_is_no_difference():
    found = estimate(slices(1000, 1000, drift=0.01, blocks=10), "qps")
    assert abs(found.log) < 0.01, "although the last slice is twice as fast as the first"


def test_pairing_is_tighter_than_the_same_slices_unpaired_where_the_machine_drifts():
    servers = [slices(1000, 1000, drift=0.01, blocks=10, seed=seed) for seed in range(4)]
    paired = duet.over_servers([estimate(each, "qps") for each in servers])
    assert paired.error < duet.unpaired(servers, "qps").error / 2


def test_slices_without_an_answer_give_no_estimate_instead_of_a_wrong_one():
    assert estimate(slices(1000, 0), "qps").log is None
    assert duet.over_servers([estimate(slices(1000, 0), "qps")] * 3).bounds() is None


@pytest.mark.parametrize("servers", [1, 2])
def test_fewer_pairs_of_servers_than_three_have_no_interval(servers):
    """With one of each order, the order and what differs between starts can't be told apart."""
    assert duet.over_servers([duet.exact(0.1), duet.exact(0.2)][:servers]).bounds() is None


@pytest.mark.parametrize("second", [0.0, 0.06])
@pytest.mark.parametrize("servers", [4, 5, 6])
@pytest.mark.parametrize(("noise", "rho"), [(0.03, 0.0), (0.1, 0.0), (0.1, 0.3)])
def test_intervals_hold_the_truth_where_starts_have_a_bias(servers, noise, rho, second):
    random = np.random.RandomState(servers)
    held = [world(random, servers, 5, noise=noise, rho=rho, second=second).bounds() for _ in range(400)]
    share = np.mean([low <= 1 <= high for low, high in held])
    assert share >= 0.91, "95 %, but for what 400 worlds leave open"


def test_what_the_order_of_starts_makes_is_no_difference_and_is_told():
    seconds = [0.97, 0.93, 0.96, 0.94, 0.95, 0.95]
    found = duet.over_servers(
        [duet.exact(math.log(1.1 / each if duet.first_started(n) else 1.1 * each)) for n, each in enumerate(seconds)]
    )
    low, high = found.bounds()
    assert low < 1.1 < high and high / low < 1.05, "although the estimates themselves differ by 16 %"
    assert found.order_facts()["value"] == pytest.approx(0.95, abs=1e-3)
    assert found.order_facts()["high"] < 1


def test_of_an_odd_number_of_pairs_both_orders_weigh_the_same():
    found = duet.over_servers([duet.exact(each) for each in (0.06, -0.06, 0.06, -0.06, 0.06)])
    assert found.log == pytest.approx(0)
    assert found.freedom == 3


def known(logs):
    """Blocks without noise, of one log ratio a pair of servers."""
    return [duet.Blocks(np.full(5, log), np.zeros(5)) for log in logs]


def test_the_rule_for_further_pairs_of_servers_knows_the_order_of_starts():
    logs = np.log([1.06, 0.94, 1.065, 0.945])
    assert duet.to_stop_percent(known(logs)) < 1.5
    assert rounds.half_width_percent(np.exp(logs)) > 10
    assert duet.to_stop_percent(known([0.0, math.nan, 0.0, 0.0])) is None


def test_nothing_stops_because_a_few_pairs_of_servers_agree_by_luck():
    away = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])
    agreeing = [duet.Blocks(away, np.zeros(5)) for _ in range(4)]
    estimates, _ = duet.adjusted(agreeing, -1)
    assert duet.half_width_percent(duet.over_servers(estimates).facts()) < 1e-6
    assert duet.to_stop_percent(agreeing) > 10


@pytest.mark.parametrize("ratio", [1.0, 0.9])
def test_what_others_take_from_one_side_makes_no_difference_and_hides_none(ratio):
    held, narrower = 0, 0
    for world_of in range(40):
        seeds = range(100 * world_of, 100 * world_of + 6)
        servers = [slices(2000, 2000 * ratio, noise=0.02, seed=seed, others=1.0) for seed in seeds]
        blocks = [duet.blocks(each, "qps") for each in servers]
        estimates, slope = duet.adjusted(blocks, -1)
        found = duet.over_servers(estimates).bounds()
        as_it_was = duet.over_servers([duet.of_blocks(each.logs) for each in blocks]).bounds()
        held += found[0] <= ratio <= found[1]
        narrower += found[1] / found[0] < as_it_was[1] / as_it_was[0]
        by_chance = duet.more_beside_b(blocks).by_a_side
        assert slope == 0 if by_chance else -1.0 < slope < -0.4, "of a server that uses what it can get: 1 / cores left"
    assert held >= 34, "95 %, but for what 40 worlds leave open"
    assert narrower >= 34


def test_work_that_a_server_has_others_do_for_it_explains_nothing():
    """A proxy works more for the server that answers more: its use of the machine grows with the answers."""
    random = np.random.RandomState(4)
    logs = [math.log(0.9) + random.normal(0, 0.05, 5) for _ in range(6)]
    estimates, slope = duet.adjusted([duet.Blocks(of, 0.2 * of) for of in logs], -1)
    assert slope == 0
    assert duet.over_servers(estimates).log == pytest.approx(math.log(0.9), abs=0.03)


def test_what_a_server_makes_others_do_counts_as_its_own_cost():
    """It has the kernel or a proxy use half a core more, always, which leaves it less: the lot of turns tells."""
    random = np.random.RandomState(6)
    servers = []
    for _ in range(6):
        others = random.normal(0.5, 0.2, 5)
        servers.append(duet.Blocks(math.log(0.9) - 0.3 * (others - 0.5) + random.normal(0, 0.01, 5), others))
    more = duet.more_beside_b(servers)
    assert more.by_a_side and more.cores == pytest.approx(0.5, abs=0.1)
    estimates, slope = duet.adjusted(servers, -1)
    assert slope == 0
    assert duet.over_servers(estimates).log == pytest.approx(math.log(0.9), abs=0.04)


def test_chance_alone_seldom_looks_like_a_side_that_makes_others_work():
    random = np.random.RandomState(7)
    worlds = [[duet.Blocks(np.zeros(5), random.normal(0, 0.2, 5)) for _ in range(4)] for _ in range(400)]
    told = sum(duet.more_beside_b(servers).by_a_side for servers in worlds)
    assert 0.02 < told / len(worlds) < 0.08, "in 5 %"
    assert not duet.more_beside_b([]).by_a_side


def test_a_planted_difference_of_processor_time_is_found():
    random = np.random.RandomState(5)
    found = [
        world(random, 6, 10, truth=math.log(1.05), start=0.01, noise=0.02, second=0.06).bounds() for _ in range(100)
    ]
    assert sum(low > 1 for low, _ in found) >= 90


def test_a_quantile_is_compared_by_blocks():
    random = np.random.RandomState(2)
    sides = [(random.lognormal(0, 0.3, 400), 1.3 * random.lognormal(0, 0.3, 400)) for _ in range(5)]
    latencies = [tuple(duet.Waited(ms, np.ones(len(ms), bool)) for ms in of) for of in sides]
    found = duet.of_blocks(duet.blocks_of_quantile(latencies, 0.5, slices(1000, 1000)).logs)
    assert found.log == pytest.approx(math.log(1.3), abs=3 * found.error)
    empty = [(duet.Waited.together([]), duet.Waited(np.ones(3), np.ones(3, bool)))] * 5
    assert duet.of_blocks(duet.blocks_of_quantile(empty, 0.5, slices(1000, 1000)).logs).log is None


@pytest.mark.parametrize("n", [1, 7, 100, 1000])
@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_a_quantile_of_requests_that_all_ended_is_the_nearest_rank(n, q):
    ms = np.random.RandomState(n).lognormal(0, 1, n)
    assert duet.Waited(ms, np.ones(n, bool)).quantile(q) == np.quantile(ms, q, method="inverted_cdf")


def cut_off(random, ms, slice_ms):
    """These requests, each started at some instant of a slice and watched until its end; and those seen to end."""
    watched = random.uniform(0, slice_ms, len(ms))
    return duet.Waited(np.minimum(ms, watched), ms <= watched), ms[ms <= watched]


def test_requests_that_a_freeze_cuts_off_are_not_missing_in_the_tail():
    random = np.random.RandomState(7)
    ms = np.where(random.uniform(size=100_000) < 0.03, 150.0, 5.0) * random.lognormal(0, 0.2, 100_000)
    seen, whole = cut_off(random, ms, 400.0)
    true = float(np.quantile(ms, 0.98))
    assert seen.quantile(0.98) == pytest.approx(true, rel=0.02)
    assert seen.quantile(0.5) == pytest.approx(float(np.quantile(ms, 0.5)), rel=0.02)
    assert np.quantile(whole, 0.98) < 0.95 * true, "those that ended alone are too short"


def test_a_quantile_beyond_what_a_slice_shows_has_no_value():
    random = np.random.RandomState(8)
    ms = np.where(random.uniform(size=10_000) < 0.05, 450.0, 5.0)
    seen, _ = cut_off(random, ms, 400.0)
    assert seen.quantile(0.5) == 5.0
    assert math.isnan(seen.quantile(0.99))
    failed = duet.Waited(np.array([1.0, 1.0, math.inf, math.inf]), np.ones(4, bool))
    assert failed.quantile(0.5) == 1.0 and math.isnan(failed.quantile(0.95))


def test_neighbouring_slices_that_go_together_are_told():
    assert duet.autocorrelation(slices(1000, 1000, noise=0.1, blocks=20), "qps") < 0.4
    assert duet.autocorrelation(slices(1000, 1000, blocks=1), "qps") is None
