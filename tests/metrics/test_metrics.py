"""Latency, throughput, resources and storage mean what their names say."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pyarrow as pa
import pytest

from anncestry.measure import judge
from anncestry.metrics import defects, latency, processes, resources
from anncestry.metrics.latency import ERROR, OK, TIMEOUT, Run


def run(latencies_ms, status=None, starts_ms=None, duration_s=None):
    far = np.asarray(latencies_ms, float) * 1e6
    starts = np.concatenate([[0], np.cumsum(far)[:-1]]) if starts_ms is None else np.asarray(starts_ms, float) * 1e6
    return Run(
        starts.astype(np.int64), far.astype(np.int64),
        np.zeros(len(far), np.uint8) if status is None else np.asarray(status, np.uint8), duration_s,
    )  # fmt: skip


def test_percentiles_are_observed_latencies_by_nearest_rank():
    found = latency.of_run(run(range(1, 101)))
    assert (found["p50_ms"], found["p95_ms"], found["p99_ms"]) == (50, 95, 99)
    assert latency.of_run(run([1, 2, 3, 1000]))["p99_ms"] == 1000


def test_throughput_of_a_run_by_count_is_good_answers_over_the_time_to_the_last_one():
    assert latency.of_run(run([10] * 100))["qps"] == pytest.approx(100)


def test_throughput_of_a_run_by_time_leaves_out_what_ended_after_it():
    found = latency.of_run(run([100, 100, 100], starts_ms=[0, 450, 950], duration_s=1.0))
    assert found["qps"] == 2
    assert found["samples"] == 3


def test_failures_are_counted_per_second_and_never_flatter_the_latency():
    found = latency.of_run(run([10, 1, 500, 10], status=[OK, ERROR, TIMEOUT, OK], duration_s=2.0))
    assert (found["errors"], found["timeouts"], found["fail_per_s"]) == (1, 1, 1.0)
    assert found["qps"] == 1.0
    assert found["p50_ms"] == 10, "of 10, 10, 500 waited in vain, and one that never came"
    assert found["p95_ms"] == found["p99_ms"] == found["mean_ms"] == float("inf")
    timeouts = latency.of_run(run([10, 10, 500, 10], status=[OK, OK, TIMEOUT, OK], duration_s=2.0))
    assert timeouts["p99_ms"] == 500 and timeouts["mean_ms"] == pytest.approx(530 / 4)


def test_a_failed_request_is_as_slow_as_can_be_in_values_and_intervals():
    def of(failed: int) -> dict:
        status = [OK] * (200 - failed) + [ERROR] * failed
        return latency.summarise([run(range(1, 201), status=status) for _ in range(3)])

    all_good, some, many = of(0), of(20), of(120)
    assert some["p50_ms"]["value"] == all_good["p50_ms"]["value"] == 100, "the slowest tenth failing gains nothing"
    assert some["p95_ms"]["value"] is some["mean_ms"]["value"] is None and "low" not in some["mean_ms"]
    assert some["p95_ms"]["runs"] == [None] * 3
    assert many["p50_ms"]["value"] is None and many["qps"]["value"] > 0
    near = of(96)["p50_ms"]
    assert near["value"] == 100 and near["low"] is None and "so many requests failed" in near["interval"]


def test_complete_qps_leaves_out_what_has_a_defect_and_is_not_said_where_that_was_not_judged():
    plain = run([10] * 4)
    assert "complete_qps" not in latency.summarise([plain])
    marked = replace(plain, defect=np.array([0, 3, 4, 0], np.uint8))
    summary = latency.summarise([marked, marked])
    assert summary["complete_qps"]["value"] == pytest.approx(summary["qps"]["value"] / 2)
    found = defects.summarise([marked, marked])
    assert (found["answers"], found["short"], found["empty"], found["repeated"], found["failed"]) == (8, 2, 2, 2, 0)
    assert found["share"]["value"] == 0.5
    assert defects.summarise([plain, marked]) is None


def test_plus_minus_is_the_sample_deviation_over_runs_and_none_for_a_single_run():
    several = latency.summarise([run([1] * 10), run([2] * 10), run([3] * 10)])["p50_ms"]
    assert (several["value"], several["std"], several["runs"]) == (2.0, pytest.approx(1.0), [1.0, 2.0, 3.0])
    assert latency.summarise([run([1] * 10)])["p50_ms"]["std"] is None


def test_a_run_without_an_answer_has_no_latency_instead_of_zero():
    summary = latency.summarise([run([5, 5], status=[ERROR, ERROR])])
    assert summary["p50_ms"]["value"] is None
    assert summary["errors"]["value"] == 2


def table(rows):
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(resources.COLUMNS[: len(rows[0])])})


def test_resources_are_attributed_to_the_phase_in_which_they_were_used():
    rows = [(float(t), "server", min(t, 10) * 2.0, 100.0 + t, 0.0, t * 1.0) for t in range(21)]
    busy = resources.attribute(table(rows), "server", [(2.0, 6.0)])
    idle = resources.attribute(table(rows), "server", [(12.0, 16.0)])
    assert busy["cpu_avg_pct"] == pytest.approx(200)
    assert busy["io_write_mib"] == pytest.approx(4)
    assert busy["rss_peak_mib"] == pytest.approx(106)
    assert idle["cpu_avg_pct"] == pytest.approx(0)
    assert resources.attribute(table(rows), "client", [(2.0, 6.0)]) is None


def test_what_is_neither_the_server_s_nor_the_client_s_is_somebody_else_s():
    rates = {"server": 1.0, "client": 0.5, "host": 1.9, "steal": 0.1}
    rows = [(float(t), group, rate * t, 1.0, 0.0, 0.0) for t in range(11) for group, rate in rates.items()]
    found = resources.by_group(table(rows), {"query": [(2.0, 4.0), (6.0, 8.0)]})
    assert found["server"]["query"]["cpu_avg_pct"] == pytest.approx(100)
    assert found["other"]["query"]["cpu_avg_pct"] == pytest.approx(40)
    assert found["steal"]["query"]["cpu_avg_pct"] == pytest.approx(10)
    assert "harness" not in found and "cpu_noise_pct" not in found["other"]["query"], "as in earlier records"
    rows += [(float(t), "harness", 0.25 * t, 0.0, 0.0, 0.0) for t in range(11)]
    found = resources.by_group(table(rows), {"query": [(2.0, 4.0), (6.0, 8.0)]})
    assert found["other"]["query"]["cpu_avg_pct"] == pytest.approx(15)
    assert found["harness"]["query"] == pytest.approx({"wall_s": 4.0, "cpu_s": 1.0, "cpu_avg_pct": 25})


def test_the_harness_is_charged_with_what_it_uses_itself_unless_it_is_the_client(monkeypatch):
    # Of its process group are also those who started these tests.
    monkeypatch.setattr(resources, "harness", lambda: [os.getpid()])

    def used(client: list[int]) -> dict:
        with resources.Sampler({"server": list, "client": lambda: client}, 0.05) as sampler:
            sampler.edge()
            start_s, burned_s = time.monotonic(), time.process_time()
            while time.process_time() < burned_s + 0.3:
                pass
            end_s = time.monotonic()
            sampler.edge()
        table, window = sampler.table(), (start_s, end_s)
        return {group: resources.cpu_between_edges(table, group, window) for group in ("client", "harness")}

    assert used([])["harness"] >= 0.29
    found = used([os.getpid()])
    assert found["client"] >= 0.29 > 0.1 > found["harness"]


def test_a_helper_of_the_harness_is_charged_to_it_unless_the_harness_is_the_client(monkeypatch):
    monkeypatch.setattr(resources, "harness", lambda: [os.getpid()])
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:

        def harness_s(client: list[int]) -> float:
            with resources.Sampler({"client": lambda: client}, 60.0, helpers=lambda: [helper.pid]) as sampler:
                pass
            return max(row["cpu_s"] for row in sampler.table().to_pylist() if row["group"] == "harness")

        helper.stdout.readline()
        alone = time.process_time()
        assert harness_s([]) >= alone + 0.5
        assert harness_s([os.getpid()]) < 0.5
        helper.stdin.close()


def test_what_runs_on_the_machine_is_known_exactly_only_from_the_account_of_the_root_control_group(tmp_path):
    account = tmp_path / "cpu,cpuacct" / "cpuacct.usage"
    account.parent.mkdir()
    account.write_text("1500000000\n")
    assert not processes.Host(tmp_path).is_exact, "the account of a container's group"
    (account.parent / "release_agent").touch()
    root = processes.Host(tmp_path)
    assert root.is_exact and root.used()[0] == 1.5


def test_ticks_find_a_core_at_work_by_chance_which_is_no_use_by_others():
    """Two cores, half of the time at work, for 1 s: 100 ticks each, so ± √(200 · ¼) · 10 ms."""
    rates = {"server": 0.5, "client": 0.5, "host": 1.0, "idle": 1.0, "steal": 0.0}
    rows = [(float(t), group, rate * t, 1.0, 0.0, 0.0) for t in range(3) for group, rate in rates.items()]
    found = resources.by_group(table(rows), {"query": [(0.0, 1.0)]})
    assert found["other"]["query"]["cpu_noise_pct"] == pytest.approx(1.645 * math.sqrt(200 / 4))
    assert "idle" not in found
    random = np.random.RandomState(1)
    seen = 0.01 * (random.rand(20_000, 200) < 0.5).sum(axis=1)
    assert 0.04 < ((seen - 1.0) > found["other"]["query"]["cpu_noise_pct"] / 100).mean() < 0.06


def test_a_window_that_a_late_sampler_missed_still_has_the_samples_on_both_sides():
    rows = [(at, "host", at * 2.0, 1.0, 0.0, 0.0) for at in (0.0, 1.0, 30.0, 31.0)]
    edges = pa.array([True, False, True, False])
    near = judge.near(table(rows).append_column("edge", edges), (10.0, 14.0), 3)
    assert near["at_s"].to_pylist() == [0.0, 1.0, 30.0]
    assert near["run"].to_pylist() == [3, 3, 3]
    assert resources.by_group(near, {"query": [(10.0, 14.0)]})["host"]["query"]["cpu_s"] == pytest.approx(8)


def test_the_peak_is_higher_than_the_average_of_an_uneven_phase():
    rows = [(float(t), "server", 4.0 if t >= 5 else max(0.0, t - 4) * 4, 1.0, 0.0, 0.0) for t in range(11)]
    found = resources.attribute(table(rows), "server", [(0.0, 10.0)])
    assert found["cpu_avg_pct"] == pytest.approx(40)
    assert found["cpu_peak_pct"] == pytest.approx(400)


def test_the_sampler_charges_cpu_to_the_process_that_burns_it():
    own_s = time.process_time()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            burning = psutil.Process(process.pid)
            with resources.Sampler({"server": lambda: [process.pid], "client": lambda: [os.getpid()]}, 0.1) as sampler:
                start, before = time.monotonic(), burning.cpu_times().user
                while burning.cpu_times().user < before + 0.5:  # however long that takes on a busy machine
                    time.sleep(0.1)
                sampler.sample()
                end = time.monotonic()
            burnt_s = sum(burning.cpu_times()[:2])
        finally:
            process.kill()
    own_s = time.process_time() - own_s
    server = resources.attribute(sampler.table(), "server", [(start, end)])
    client = resources.attribute(sampler.table(), "client", [(start, end)])
    assert 0.2 < server["cpu_s"] < burnt_s + 0.1
    assert client["cpu_s"] < own_s + 0.1
    assert server["rss_peak_mib"] > 1


def test_a_server_that_starts_meanwhile_is_charged_for_its_start_and_nobody_else_is() -> None:
    server: list[int] = []
    groups = {"server": lambda: server, "client": lambda: [os.getpid()]}
    with resources.Sampler(groups, 0.05, members={"server": lambda: {"node1": server}}, starting=["server"]) as sampler:
        start_s, own_s = time.monotonic(), time.process_time()
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
            try:
                burning = psutil.Process(process.pid)
                while burning.cpu_times().user < 0.5:  # it starts; nobody knows yet what it is
                    sampler.sample(thorough=True)
                    time.sleep(0.05)
                server.append(process.pid)
                sampler.sample(thorough=True)
                end_s, own_s = time.monotonic(), time.process_time() - own_s
                burnt_s = sum(burning.cpu_times()[:2])
            finally:
                process.kill()
    used = resources.by_group(sampler.table(), {"upgrade": [(start_s, end_s)]})
    assert 0.5 <= used["server"]["upgrade"]["cpu_s"] <= burnt_s + 0.02
    assert used["client"]["upgrade"]["cpu_s"] <= own_s + 0.1
    assert used["server"]["upgrade"]["rss_peak_mib"] > 1


def test_storage_counts_blocks_once_and_no_holes(tmp_path):
    (tmp_path / "full").write_bytes(os.urandom(3 << 20))
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    os.link(tmp_path / "full", tmp_path / "linked")
    (tmp_path / "away").symlink_to("/usr")
    assert resources.allocated_mib([tmp_path]) == pytest.approx(3, abs=0.1)
    assert resources.allocated_mib([tmp_path / "missing"]) == 0


def test_memory_that_control_groups_charge_is_kept_beside_rss_where_somebody_accounts() -> None:
    told: list[float] = []

    def account() -> dict[str, float]:
        told.append(100.0 + len(told))
        return {"charged_mib": told[-1], "charged_anon_mib": 7.0, "charged_cache_mib": 9.0}

    pids = {"server": lambda: [os.getpid()], "client": lambda: [os.getpid()]}
    with resources.Sampler(pids, 60.0, {"server": account}) as sampler:
        start_s = time.monotonic()
        for _ in range(3):
            sampler.sample()
        end_s, most_mib = time.monotonic(), told[-1]
    table = sampler.table()
    server = resources.attribute(table, "server", [(start_s, end_s)])
    client = resources.attribute(table, "client", [(start_s, end_s)])
    assert server is not None and client is not None
    assert most_mib <= server["charged_peak_mib"] <= told[-1] and server["charged_anon_peak_mib"] == 7.0
    assert "charged_peak_mib" not in client
    assert resources.attribute(table.drop_columns(list(resources.CHARGED)), "server", [(start_s, end_s)]) is not None


def test_a_group_of_which_nothing_was_ever_seen_has_no_numbers_rather_than_zeros() -> None:
    with resources.Sampler({"server": list}, 0.05) as sampler:
        start_s = time.monotonic()
        time.sleep(0.1)
    used = resources.by_group(sampler.table(), {"query": [(start_s, time.monotonic())]})
    assert used["server"] == {} and "query" in used["host"]


_BURN = "import sys\nprint(flush=True)\nwhile True: pass"
_REST = "import sys, time\nkept = bytearray(64 << 20)\nprint(flush=True)\ntime.sleep(600)"
_PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.fixture
def members():
    """Two processes: one whose child burns, one that holds 64 MiB and rests."""
    started = {
        "node1": subprocess.Popen([sys.executable, "-c", _PARENT, _BURN], stdout=subprocess.PIPE),
        "node2": subprocess.Popen([sys.executable, "-c", _REST], stdout=subprocess.PIPE),
    }
    children = []
    try:
        for process in started.values():
            process.stdout.readline()
        children = psutil.Process(started["node1"].pid).children()
        yield {name: [process.pid] for name, process in started.items()}
    finally:
        for process in (*started.values(), *children):
            process.kill()
        for process in started.values():
            process.wait()
            process.stdout.close()


def _sampled(members):
    """All samples, and the window between two in which the one burned half a second."""
    child = psutil.Process(members["node1"][0]).children()[0]
    pids = {"server": lambda: [pid for pids in members.values() for pid in pids], "client": lambda: [os.getpid()]}
    with resources.Sampler(pids, 0.1, members={"server": lambda: members}) as sampler:
        start, burned = time.monotonic(), child.cpu_times().user
        while child.cpu_times().user < burned + 0.5:  # however long that takes on a busy machine
            time.sleep(0.1)
        sampler.sample()
        return sampler, (start, time.monotonic())


def test_each_member_of_a_server_is_charged_with_its_own_and_together_they_are_the_server(members):
    sampler, window = _sampled(members)
    table = sampler.table()
    used = {group: phases["query"] for group, phases in resources.by_group(table, {"query": [window]}).items()}
    assert [group for group in used if group.startswith("server")] == ["server", "server/node1", "server/node2"]
    burns, rests = used["server/node1"], used["server/node2"]
    assert burns["cpu_s"] > 0.3 and burns["cpu_s"] > 5 * rests["cpu_s"]  # a child's, charged to who started it
    assert rests["rss_peak_mib"] > 64
    for name in ("cpu_s", "rss_avg_mib", "io_read_mib", "io_write_mib"):
        assert burns[name] + rests[name] == pytest.approx(used["server"][name])
    # What was used together is not counted twice: the rest of the machine's is what is neither ours nor the client's.
    both_s = used["server"]["cpu_s"] + used["client"]["cpu_s"] + used["harness"]["cpu_s"]
    assert used["other"]["cpu_s"] == pytest.approx(max(0, used["host"]["cpu_s"] - both_s))


def test_a_server_of_one_member_has_no_parts(members):
    sampler, _ = _sampled({"node1": members["node1"]})
    of_itself = {"harness", "kernel", "host", "steal"}
    assert set(sampler.table()["group"].to_pylist()) - {"idle"} == {"server", "client", *of_itself}
