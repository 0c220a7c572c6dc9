"""Rounds are measured by need: a rule on the interval of QPS decides, and a record that breaks it is found out."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from anncestry.metrics import rounds

RULE = {"first": 3, "most": 5, "interval_percent": 10}


def test_the_interval_is_that_of_t_on_the_logs():
    rates = [900.0, 1000.0, 1150.0, 1020.0]
    found = stats.ttest_1samp([math.log(rate) for rate in rates], 0).confidence_interval(0.95)
    expected = 100 * math.expm1((found.high - found.low) / 2)
    assert rounds.half_width_percent(rates) == pytest.approx(expected)


@pytest.mark.parametrize("rates", [[1000.0], [1000.0, None, 990.0], [1000.0, 0.0, 990.0]])
def test_rates_that_tell_nothing_have_no_interval(rates):
    assert rounds.half_width_percent(rates) is None


def test_a_cell_needs_rounds_until_it_is_narrow_or_has_the_most():
    steady, varying = [1000.0, 1010.0, 990.0], [1000.0, 1500.0, 700.0, 1300.0, 800.0]
    assert rounds.decide(steady, RULE)["state"] == rounds.NARROW
    assert [rounds.decide(varying[:count], RULE)["state"] for count in (3, 4, 5)] == ["wide", "wide", "most rounds"]


def test_a_record_that_breaks_the_rule_is_found_out():
    steady, varying = [1000.0, 1010.0, 990.0], [1000.0, 1500.0, 700.0, 1300.0, 800.0]
    assert rounds.problem(steady, RULE, {}) == rounds.problem(varying, RULE, {}) == ""
    assert "was narrow" in rounds.problem([*steady, 1500.0], RULE, {"stopped": "time"}), "rounds until it looks right"
    assert "at most 5" in rounds.problem([*varying, 900.0], RULE, {})
    assert "nothing says why" in rounds.problem(varying[:3], RULE, {})
    assert rounds.problem(varying[:3], RULE, {"stopped": "the 4 minutes for further rounds were over"}) == ""
