"""Open loops and the search for the highest rate that keeps a promise."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from anncestry.drive.client import OK, TIMEOUT
from anncestry.features import rate
from anncestry.features.rate.measuring import Rate
from anncestry.measure import recall
from anncestry.measure import requests as schedule
from anncestry.measure.runs import Published
from anncestry.metrics import capacity, latency
from anncestry.report.model import quantities

SECOND_NS = 1_000_000_000
PROMISE = {"p99_ms": 10.0, "precision": 0.05}


@pytest.fixture(autouse=True)
def probes_that_are_short_beside_their_bound(monkeypatch):
    """A toy server on a busy machine keeps only bounds for which tests would take minutes."""
    monkeypatch.setattr(rate.Rate, "_check_bound", staticmethod(lambda *_: None))


def queue(rate_per_s: float, service_ms: float, seconds: float = 20.0) -> latency.Run:
    """One server that takes the same time for each request, asked at Poisson arrivals."""
    due_ns = schedule.arrivals(rate_per_s, seconds, "poisson", seed=1, run=0)
    service_ns = int(service_ms * 1e6)
    free, ends = 0, []
    for due in due_ns:
        free = max(int(due), free) + service_ns
        ends.append(free)
    return latency.Run(due_ns, np.array(ends) - due_ns, np.zeros(len(due_ns), np.uint8), seconds)


def searched(bound_ms: float, service_ms: float = 2.0, precision: float = 0.05) -> list[dict]:
    probes: list[dict] = []

    def probe(rate: float) -> bool:
        found = capacity.judge(len(probes), rate, queue(rate, service_ms), 0.0, bound_ms)
        probes.append(asdict(found))
        return found.passed

    capacity.search(probe, 1000 / service_ms, precision, 30)
    return probes


def test_the_highest_rate_is_found_within_the_precision():
    probes = searched(bound_ms=10.0)
    best, beyond = capacity.accepted(probes)["rate_per_s"], capacity.bracket(probes)["rate_per_s"]
    assert 1.0 < beyond / best <= 1.05
    # M/D/1 with 2 ms of service: the wait's 99th percentile is 8 ms at about 0.6 of 500 requests a second.
    assert 200 < best < 400


def test_a_tighter_bound_means_a_lower_rate():
    assert capacity.accepted(searched(4.0))["rate_per_s"] < capacity.accepted(searched(20.0))["rate_per_s"]


def test_a_bound_below_the_service_time_has_no_rate_and_says_what_the_best_was():
    probes = searched(bound_ms=1.0)
    assert capacity.accepted(probes) is None
    found = capacity.verdict({"p99_ms": 1.0, "precision": 0.05}, [probes], [None])
    assert found["max_rate_per_s"]["value"] is None
    assert "no rate kept p99 ≤ 1 ms; the best was at" in found["reason"]
    assert "ms, above 1 ms" in found["reason"]


def test_a_search_that_accepted_no_rate_has_no_throughput_rather_than_none_per_second():
    nothing = np.empty(0, np.int64)
    found = latency.of_run(latency.Run(nothing, nothing, nothing.astype(np.uint8), 2.0))
    assert np.isnan([found["qps"], found["fail_per_s"], found["p50_ms"]]).all()


def test_a_rate_that_failed_bounds_all_above_it():
    def probe(rate, passed):
        return {"number": int(rate), "rate_per_s": rate, "passed": passed, "failed": 0, "p99_ms": 1.0, "reason": ""}

    assert capacity.accepted([probe(100.0, True), probe(200.0, False), probe(300.0, True)])["rate_per_s"] == 100.0


def test_a_rate_that_only_the_client_could_not_keep_is_said_to_be_its_limit():
    def probe(number, rate, lag_ms):
        return asdict(capacity.judge(number, rate, queue(rate, 2.0), lag_ms, 10.0))

    def verdict(lag_ms):
        return capacity.verdict({**PROMISE, "precision": 9}, [[probe(0, 50.0, 0.1), probe(1, 490.0, lag_ms)]], [None])

    assert verdict(0.1)["max_rate_per_s"]["value"] == verdict(5.0)["max_rate_per_s"]["value"] == 50.0
    assert verdict(0.1)["client_bound"] == []
    assert verdict(5.0)["client_bound"] == [1]


def test_probes_that_ran_out_before_the_rates_were_near_each_other_are_told():
    whole = searched(10.0)
    cut = whole[:3]
    assert {probe["passed"] for probe in cut} == {True, False}
    assert capacity.verdict(PROMISE, [whole, cut], [None, None])["unsettled"] == [2]


def test_no_rate_is_tried_that_would_have_too_few_requests_for_a_percentile():
    tried: list[float] = []
    capacity.search(lambda rate: bool(tried.append(rate)), 1000.0, 0.05, 30, lowest_per_s=50.0)
    assert tried[-1] == min(tried) == 50.0


def test_one_failed_request_passes_nothing_and_a_late_client_is_in_the_latency():
    good = queue(50, 1.0)
    bad = latency.Run(good.due_ns, good.latency_ns, np.where(np.arange(len(good.status)) == 3, TIMEOUT, OK), 20.0)
    assert capacity.judge(0, 50, good, 0.1, 100).passed
    assert "1 of" in capacity.judge(0, 50, bad, 0.1, 100).reason
    assert capacity.judge(0, 50, good, 3.0, 100).passed, "its delay is in the latency from the due time"
    late = latency.Run(good.due_ns, good.latency_ns + 200_000_000, good.status, 20.0)
    assert "but the client itself was 50.00 ms late" in capacity.judge(0, 50, late, 50.0, 100).reason


def test_a_recall_below_the_target_leaves_no_number_but_says_what_it_was():
    found = capacity.verdict({**PROMISE, "recall": 0.95}, [searched(10.0)] * 2, [0.951, 0.94])
    assert found["max_rate_per_s"]["value"] is None
    assert "run 2: recall 0.9400 at" in found["reason"]
    assert "below 0.95" in found["reason"]


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_arrivals_are_seeded_ascending_and_of_the_asked_rate(kind):
    due_ns = schedule.arrivals(1000, 10, kind, seed=7, run=1)
    assert (np.diff(due_ns) >= 0).all()
    assert 0 <= due_ns[0] <= due_ns[-1] < 10 * SECOND_NS
    assert abs(len(due_ns) - 10_000) < 500
    assert np.array_equal(due_ns, schedule.arrivals(1000, 10, kind, seed=7, run=1))
    if kind == "poisson":
        assert not np.array_equal(due_ns, schedule.arrivals(1000, 10, kind, seed=7, run=2))
        gaps = np.diff(due_ns) / 1e6
        assert 0.9 < gaps.std() / gaps.mean() < 1.1, "exponential: mean and deviation are the same"


def open_loop(**more):
    def change(files):
        files["workloads"]["k5"] = {
            "k": 5, "clients": 4, "runs": 1, "queries": 40, "warmup": 10, "loop": "open", "duration_s": 1, **more,
        }  # fmt: skip
        files["config"]["matrix"][0]["workloads"] = ["k5"]

    return change


def finish(bench_):
    cell = bench_.matrix.cells[0]
    bench_.load(cell)
    assert bench_.query(cell) == {cell.query: "ok"}
    return cell, bench_.publish(cell)


def test_an_open_loop_asks_at_its_rate_and_says_whether_the_schedule_was_kept(bench):
    cell, record = finish(bench(change=open_loop(rate_per_s=[40, 80])))
    assert cell.workload == "k5-rate40"
    samples = parquet.read_table(cell.samples_path).to_pandas()
    due_ns = np.sort(samples["due_ns"].to_numpy())
    assert np.array_equal(due_ns, schedule.arrivals(40, 1, "poisson", 7, 0))
    assert (samples["start_ns"] >= samples["due_ns"]).all()
    assert record["valid"], record["gates"]
    assert "of the requests within" in record["open_loop"]["detail"]
    assert record["spec"]["workload"]["arrivals"] == "poisson"


def score(bench_, cell, record) -> dict:
    from anncestry.datasets import truth

    truth.run(
        bench_.matrix.spec(cell.truth, "truth"),
        Path(cell.vectors_path).parent,
        Path(cell.truth_path).parent,
        cell.truth,
    )
    return recall.score(record, Path(cell.samples_path), Path(cell.truth_path), Path(cell.vectors_path))


def test_a_search_keeps_all_its_probes_and_scores_the_answers_at_the_rate_it_found(bench):
    slo = {"p99_ms": 60_000, "recall": 0.9, "max_probes": 3}
    searching = bench(change=open_loop(slo=slo, duration_s=0.5))
    cell, record = finish(searching)
    (probes,) = record["probes"]
    assert [probe["number"] for probe in probes] == [0, 1, 2, 3]
    assert probes[0]["rate_per_s"] is None
    samples = parquet.read_table(cell.samples_path).to_pandas()
    assert samples.groupby("probe").size().to_dict() == {probe["number"]: probe["sent"] for probe in probes}
    assert record["summary"]["samples"]["value"] == probes[3]["sent"]
    run = searching.record(cell)
    (counted,) = [job for job in run["jobs"] if job["counted"]]
    assert counted["number"] == 3 and [tuple(window) for window in record["windows_s"]] == [
        tuple(counted["window_s"])
    ], "processor time and disturbance are those at the rate that was found"
    scored = score(searching, cell, record)
    assert scored["samples"] == probes[3]["sent"]
    assert scored["slo"]["max_rate_per_s"]["value"] == probes[3]["rate_per_s"]
    assert scored["slo"]["bound_by_probes"] == [1], "no rate failed: the true limit is higher"


def test_a_rate_at_which_answers_can_not_be_decoded_does_not_pass(bench):
    slo = {"p99_ms": 60_000, "max_probes": 4}
    _, record = finish(bench("garbage", change=open_loop(slo=slo, duration_s=0.5, k=7)))
    (probes,) = record["probes"]
    rates = [probe["rate_per_s"] for probe in probes[1:]]
    assert rates and rates == sorted(rates, reverse=True), (
        "the driver saw nothing wrong; the search goes down all the same"
    )
    assert not any(probe["passed"] for probe in probes)


def test_a_target_that_is_out_of_reach_is_no_number_with_the_best_that_was_seen(bench):
    slo = {"p99_ms": 0.001, "max_probes": 3}
    searching = bench(change=open_loop(slo=slo, duration_s=0.3))
    cell, record = finish(searching)
    assert record["valid"], record["gates"]
    scored = score(searching, cell, record)
    assert scored["slo"]["max_rate_per_s"]["value"] is None
    assert "no rate kept p99 ≤ 0.001 ms; the best was at" in scored["slo"]["reason"]
    assert quantities.brief(quantities.UNREACHED + scored["slo"]["reason"]) == "not reached"


@pytest.mark.parametrize("search", [False, True])
def test_a_rate_that_the_samples_do_not_have_is_found(bench, search):
    asked = {"slo": {"p99_ms": 60_000, "max_probes": 3}, "duration_s": 0.5} if search else {"rate_per_s": 40}
    cell, record = finish(bench(change=open_loop(**asked)))
    files = {label: Path(cell.query_path).parent / entry["path"] for label, entry in record["outputs"].items()}

    def differing(stored: dict) -> list[str]:
        published = Published(stored["spec"]["workload"], files, stored=stored)
        return [problem for problem, known, again in Rate.again(published) if known != again]

    assert differing(record) == []
    forged = json.loads(json.dumps(record))
    if search:
        for probe in forged["probes"][0][1:]:
            probe["rate_per_s"] *= 2
    else:
        forged["spec"]["workload"]["rate_per_s"] = 80
    assert "its requests were not due when its rates have them" in differing(forged)
    if search:
        forged = json.loads(json.dumps(record))
        del forged["probes"][0][-1]
        assert "its requests were not due when its rates have them" in differing(forged), "a probe was left out"
