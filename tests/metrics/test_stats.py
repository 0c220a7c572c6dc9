"""Intervals cover what they claim to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from anncestry.metrics import latency, stats
from anncestry.metrics.stats import Values, rate_interval

ROOT = Path(__file__).resolve().parents[2]


def world(random, runs, queries, *, run_sd, query_sd, noise_sd, base=10.0):
    """Observations of `runs` × `queries`: an effect of the run, one of the query, and noise."""
    of_query = random.normal(0, query_sd, queries)
    every = np.arange(queries)
    return [
        Values(base + random.normal(0, run_sd) + of_query + random.normal(0, noise_sd, queries), every)
        for _ in range(runs)
    ]


def coverage(make, interval, truth, trials=200):
    hits = 0
    for trial in range(trials):
        found = interval(make(np.random.RandomState(trial)))
        hits += found.low <= truth <= found.high
    return hits / trials


@pytest.mark.parametrize("runs", [2, 3, 5, 10])
@pytest.mark.parametrize(("run_sd", "query_sd"), [(0.5, 0.0), (0.0, 1.0), (0.3, 1.0)])
def test_an_interval_of_a_mean_covers_the_truth_about_as_often_as_it_says(runs, run_sd, query_sd):
    def make(random):
        return world(random, runs, 100, run_sd=run_sd, query_sd=query_sd, noise_sd=0.5)

    assert coverage(make, lambda data: stats.mean_interval(data, 100), 10.0) >= 0.89


def test_an_interval_is_not_far_wider_than_needed_either():
    """With ten runs and effects of queries alone, its length is that of the textbook's interval."""
    data = world(np.random.RandomState(1), 10, 400, run_sd=0.0, query_sd=1.0, noise_sd=0.01)
    found = stats.mean_interval(data, 400)
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(400), rel=0.15)


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_an_interval_of_a_percentile_covers_the_percentile_of_the_distribution(q):
    truth = -10 * math.log(1 - q)  # of an exponential distribution with mean 10

    def make(random):
        return [Values(random.exponential(10, 500), np.arange(500)) for _ in range(3)]

    assert coverage(make, lambda data: stats.quantile_interval(data, 500, q), truth) >= 0.9


def test_queries_asked_again_in_every_run_are_not_new_evidence():
    """What varies between queries does not average out over runs that ask the same ones."""
    once = stats.mean_interval(world(np.random.RandomState(3), 1, 200, run_sd=0, query_sd=1, noise_sd=0), 200)
    often = stats.mean_interval(world(np.random.RandomState(3), 20, 200, run_sd=0, query_sd=1, noise_sd=0), 200)
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.15)


def test_a_rate_in_bursts_is_less_certain_than_a_steady_one():
    steady = rate_interval([np.full(20, 50)], [10.0])
    bursts = rate_interval([np.array([100, 0] * 10)], [10.0])
    assert steady.low == steady.high == 100
    assert bursts.low < 80 < 120 < bursts.high
    assert bursts.method == stats.OVER_TIME


def test_runs_of_unequal_length_weigh_by_their_length():
    found = latency.summarise(
        [_run([10.0] * 100), _run([40.0] * 25), _run([40.0] * 25)],
    )
    assert found["qps"]["value"] == pytest.approx(150 / 3.0)
    assert found["qps"]["runs"] == pytest.approx([100, 25, 25])
    assert found["p50_ms"]["value"] == pytest.approx(30), "each run is one observation of a percentile"


def _run(latencies_ms, status=None):
    far = (np.asarray(latencies_ms) * 1e6).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(far)[:-1]])
    states = np.zeros(len(far), np.uint8) if status is None else np.asarray(status, np.uint8)
    return latency.Run(starts, far, states, None, np.arange(len(far)))


def test_equal_data_have_equal_intervals():
    data = world(np.random.RandomState(5), 3, 50, run_sd=1, query_sd=1, noise_sd=1)
    assert stats.mean_interval(data, 50) == stats.mean_interval(data, 50)
    assert stats.quantile_interval(data, 50, 0.5) == stats.quantile_interval(data, 50, 0.5)


def test_the_value_lies_in_its_interval_and_no_latency_is_below_zero():
    summary = latency.summarise([_run(np.random.RandomState(seed).exponential(1, 300)) for seed in range(3)])
    for name in ("p50_ms", "p95_ms", "p99_ms", "mean_ms", "qps"):
        found = summary[name]
        assert 0 <= found["low"] <= found["value"] <= found["high"], name
        assert found["interval"].startswith("95 %")


def test_the_pooled_tail_has_a_value_and_no_interval():
    summary = latency.summarise([_run(np.random.RandomState(seed).exponential(1, 300)) for seed in range(3)])
    assert summary["p999_ms"]["value"] > summary["p99_ms"]["value"]
    assert summary["p999_ms"]["low"] is None
    assert summary["p999_ms"]["interval"] == "pooled over runs: what differs between them is not known"
    assert summary["max_ms"]["value"] == max(summary["max_ms"]["runs"])


def test_a_tail_that_bursts_make_is_covered_although_a_few_runs_may_have_missed_them():
    """Slow spells take from none to 15 % of a run: some p95 lie in them and some do not, and three runs may be alike.
    How a run's own parts differ says what the next one may be."""

    def run(random):
        took_ms = random.lognormal(random.normal(0, 0.1), 0.3, 1000)
        for _ in range(random.poisson(1.7)):
            start = random.randint(1000)
            took_ms[start : start + random.randint(5, 50)] *= random.uniform(2, 6)
        return _run(took_ms)

    truth = np.mean([latency.of_run(run(np.random.RandomState(seed)))["p95_ms"] for seed in range(10_000, 10_500)])
    covered = apart = 0
    for seed in range(200):
        random = np.random.RandomState(seed)
        runs = [run(random) for _ in range(3)]
        values, queries = latency._values(runs)
        found = stats.quantile_interval(values, queries, 0.95)
        covered += found.low <= truth <= found.high
        without = [stats.Values(each.value, each.query) for each in values]
        found = stats.quantile_interval(without, queries, 0.95)
        apart += found.low <= truth <= found.high
    assert covered >= 0.93 * 200 > apart
    said = f"a p95 covers {apart / 2:.0f} % of 200 worlds; with it, {covered / 2:.0f} %."
    assert said in " ".join((ROOT / "docs" / "statistics.md").read_text().split())


def test_the_interval_of_a_large_run_holds_the_truth():
    random = np.random.RandomState(1)
    data = [Values(random.exponential(1, 200_000), random.randint(1000, size=200_000)) for _ in range(2)]
    found = stats.quantile_interval(data, 1000, 0.99)
    assert found.low < -math.log(0.01) < found.high


def test_a_run_in_which_everything_failed_has_no_interval():
    summary = latency.summarise([_run([5.0, 5.0], [1, 1])])
    assert summary["p50_ms"]["value"] is None and "low" not in summary["p50_ms"]
    assert summary["fail_per_s"]["value"] == pytest.approx(200)


# Histograms


def test_a_histogram_keeps_latencies_to_a_64th_at_any_scale():
    latencies = np.array([0, 1, 127, 128, 1_000_003, 1_499_999, 7_000_000_000], np.int64)
    made = latency.histogram([latency.Run(latencies * 0, latencies, np.zeros(7, np.uint8))])
    assert sum(made["counts"]) == 7
    upper = np.repeat(made["upper_ns"], made["counts"])
    assert (upper >= latencies).all() and (upper - latencies <= np.maximum(latencies / 64, 0)).all()


def test_a_histogram_of_many_samples_is_small_and_gives_their_percentiles_back():
    far = (np.random.RandomState(2).lognormal(14, 1, 100_000)).astype(np.int64)
    made = latency.histogram([latency.Run(far * 0, far, np.zeros(len(far), np.uint8))])
    assert len(made["counts"]) < 1200
    upto = np.cumsum(made["counts"])
    for q in (0.5, 0.99, 0.999):
        at = made["upper_ns"][int(np.searchsorted(upto, q * len(far)))]
        assert at == pytest.approx(np.quantile(far, q, method="inverted_cdf"), rel=0.016)


def test_recalls_that_are_all_whole_leave_room_for_those_that_were_not_asked():
    """Of 900 queries without a miss, up to 0.41 % of all may find nothing: 1 - 0.025 ** (1 / 900)."""
    whole = [stats.Values(np.ones(900), np.arange(900)) for _ in range(3)]
    found = stats.share_interval(whole, 900)
    assert 1 - 0.0065 < found.low < 1 - 0.0025 and found.high == 1.0
    random, missed = np.random.RandomState(0), 0
    for _ in range(100):
        asked = (random.uniform(size=500) >= 0.002).astype(float)
        seen = stats.share_interval([stats.Values(asked, np.arange(500))] * 2, 500)
        missed += not seen.low <= 0.998 <= seen.high
    assert missed <= 10, "one query in 500 finds nothing: in 37 of 100 runs none of these was asked"
    ordinary = [stats.Values(random.beta(30, 1, 900), np.arange(900))]
    plain, wide = stats.mean_interval(ordinary, 900), stats.share_interval(ordinary, 900)
    assert wide.low <= plain.low and wide.high >= plain.high
    assert (wide.high - wide.low) < 1.6 * (plain.high - plain.low)
