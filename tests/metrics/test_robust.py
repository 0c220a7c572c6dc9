"""What a mean recall hides: how many queries get enough, and what the worst of them get."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from anncestry.metrics import robust
from anncestry.metrics.stats import wilson


def test_robustness_is_the_share_of_queries_that_reach_delta():
    found = robust.facts([1.0, 1.0, 0.9, 0.899999, 0.5, 0.4, 0.0, 1.0, 1.0, 1.0])
    assert {name: entry["value"] for name, entry in found.items() if name.startswith("robustness")} == {
        "robustness_0.5": 0.8,
        "robustness_0.9": 0.7,
        "robustness_1": 0.5,
    }, "a recall that the record rounded to 0.899999 is 0.9; one of 0.5 reaches 0.5"
    low, high = wilson(0.8, 10)
    assert (found["robustness_0.5"]["low"], found["robustness_0.5"]["high"]) == (low, high)


def test_a_mean_hides_the_queries_that_get_nothing():
    even, uneven = np.full(1000, 0.95), np.repeat([1.0, 0.0], [950, 50])
    assert even.mean() == pytest.approx(uneven.mean())
    of_even, of_uneven = robust.facts(even), robust.facts(uneven)
    assert of_even["robustness_0.9"]["value"] == 1 and of_uneven["robustness_0.9"]["value"] == 0.95
    assert of_even["recall_worst1"]["value"] == pytest.approx(0.95) and of_uneven["recall_worst1"]["value"] == 0


@pytest.mark.parametrize(("queries", "worst"), [(1, 1), (99, 1), (100, 1), (101, 2), (1000, 10), (10_000, 100)])
def test_the_worst_are_a_hundredth_of_the_queries_rounded_up(queries, worst):
    assert robust.worst_count(queries) == worst
    recalls = np.random.default_rng(queries).permutation(np.linspace(0, 1, queries))
    assert robust.worst_mean(recalls) == pytest.approx(np.sort(recalls)[:worst].mean())


def test_the_bounds_are_clopper_and_pearsons_of_each_share():
    """Two values: the share with the lower one lies between its bounds, and the mean of the worst follows from it."""
    found = robust.worst_interval(np.repeat([0.0, 1.0], [5, 995]))
    exact = stats.binomtest(5, 1000).proportion_ci(0.95, method="exact")
    assert found.high == pytest.approx(1 - exact.low / robust.WORST_SHARE)
    assert found.low == pytest.approx(max(0.0, 1 - exact.high / robust.WORST_SHARE))


def test_few_queries_say_nothing_of_the_worst_hundredth_from_below():
    assert robust.worst_interval(np.ones(300)).low == 0, "of 300 without a miss, 1.2 % of all may still find nothing"
    assert robust.worst_interval(np.ones(300)).high == 1
    assert 0.9 < robust.worst_interval(np.ones(10_000)).low < 1


@pytest.mark.parametrize(("a", "b"), [(19, 1), (4.75, 0.25), (2, 0.02), (99, 1)])
@pytest.mark.parametrize("queries", [200, 1000])
def test_the_interval_of_the_worst_holds_the_truth_in_worlds_of_any_shape(queries, a, b):
    random = np.random.default_rng(7)
    truth = robust.worst_mean(random.binomial(10, random.beta(a, b, 1_000_000)) / 10)
    held, worlds = 0, 200
    for _ in range(worlds):
        found = robust.worst_interval(random.binomial(10, random.beta(a, b, queries)) / 10)
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    assert held >= 0.95 * worlds


@pytest.mark.parametrize("recalls", [[0.3], [0.0], [1.0], [0.2, 0.9], list(np.linspace(0, 1, 57))])
def test_an_interval_holds_its_own_value_and_stays_a_recall(recalls):
    for entry in robust.facts(recalls).values():
        assert 0 <= entry["low"] <= entry["value"] + 1e-12 and entry["value"] - 1e-12 <= entry["high"] <= 1


def test_without_queries_there_is_no_number():
    assert robust.facts([]) == {}
