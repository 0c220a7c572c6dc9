"""Ratios of two servers in turns: what the estimator says in worlds whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anncestry.metrics import duet, rounds
from anncestry.metrics.duet import Slice


def slices(rate_a, rate_b, blocks=5, noise=0.0, seed=1, cpu=(0.001, 0.001), drift=0.0):
    """Slices of half a second of two servers; what the machine does (noise, drift) happens to both."""
    random = np.random.RandomState(seed)
    found, at = [], 0
    for number, side in enumerate(duet.order(2 * blocks, seed)):
        machine = math.exp(noise * random.normal() + drift * number)
        rate, cost = (rate_a, cpu[0]) if side == "A" else (rate_b, cpu[1])
        answers = round(rate * 0.5 * machine)
        found.append(Slice(side.lower(), at, at + 500_000_000, answers, answers, answers * cost))
        at += 500_000_000
    return found


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
    assert duet.of_blocks(duet.block_logs(found, "qps")).log == pytest.approx(math.log(1.2), abs=1e-3)
    assert duet.of_blocks(duet.block_logs(found, "cpu")).log == pytest.approx(math.log(2))


def test_a_drift_of_the_machine_is_no_difference():
    found = duet.of_blocks(duet.block_logs(slices(1000, 1000, drift=0.01, blocks=10), "qps"))
    assert abs(found.log) < 0.01, "although the last slice is twice as fast as the first"


def test_pairing_is_tighter_than_the_same_slices_unpaired_where_the_machine_drifts():
    found = slices(1000, 1000, drift=0.01, blocks=10)
    paired = duet.of_blocks(duet.block_logs(found, "qps"))
    assert paired.error < duet.unpaired(found, "qps").error / 2


def test_slices_without_an_answer_give_no_estimate_instead_of_a_wrong_one():
    assert duet.of_blocks(duet.block_logs(slices(1000, 0), "qps")).log is None
    assert duet.over_servers([duet.of_blocks(duet.block_logs(slices(1000, 0), "qps"))] * 3).bounds() is None


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


def test_the_rule_for_further_pairs_of_servers_knows_the_order_of_starts():
    ratios = [1.06, 0.94, 1.065, 0.945]
    assert duet.ratios_half_width_percent(ratios) < 1.5
    assert rounds.half_width_percent(ratios) > 10
    assert duet.ratios_half_width_percent([1.0, None, 1.0, 1.0]) is None


def test_a_planted_difference_of_processor_time_is_found():
    random = np.random.RandomState(5)
    found = [
        world(random, 6, 10, truth=math.log(1.05), start=0.01, noise=0.02, second=0.06).bounds() for _ in range(100)
    ]
    assert sum(low > 1 for low, _ in found) >= 90


def test_a_quantile_is_compared_by_blocks():
    random = np.random.RandomState(2)
    blocks = [(random.lognormal(0, 0.3, 400), 1.3 * random.lognormal(0, 0.3, 400)) for _ in range(5)]
    found = duet.quantile(blocks, 0.5, seed=1)
    assert found.log == pytest.approx(math.log(1.3), abs=3 * found.error)
    assert found == duet.quantile(blocks, 0.5, seed=1), "seeded"
    assert duet.quantile([(np.empty(0), np.ones(3))] * 3, 0.5, seed=1).log is None


def test_neighbouring_slices_that_go_together_are_told():
    assert duet.autocorrelation(slices(1000, 1000, noise=0.1, blocks=20), "qps") < 0.4
    assert duet.autocorrelation(slices(1000, 1000, blocks=1), "qps") is None
