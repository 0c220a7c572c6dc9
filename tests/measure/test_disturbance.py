"""What disturbed a run is in its record: it is measured again, and marked where it is read if that did not help."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from anncestry.cells.spec import Disturbance
from anncestry.metrics import disturbance
from anncestry.provenance import gates, platform
from anncestry.provenance.attempts import Ledger
from tests.builders.bench import failed
from tests.flat.engine import ENGINE as flat

LIMITS = Disturbance.of().limits
QUIET = {"others_pct": 6.0, "steal_pct": 3.0, "gap_max_ms": 20.0, "gc_runs": 0, "gc_pause_us": 0.0, "lag_p99_ms": 1}
ALWAYS = Disturbance.of(others_pct=-1, repeats=2, repeats_percent=1e6)
"""Limits that every run exceeds."""
SECOND_USER = """
import sys, grpc
count = grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)]).unary_unary("/flat.Flat/count")
while True:
    try:
        count(b"", timeout=5)
    except grpc.RpcError:
        pass
"""


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({}, []),
        ({"others_pct": 34.0}, ["other programs used 34 % of one core and the hypervisor took 3 %"]),
        ({"steal_pct": 4.5}, ["other programs used 6 % of one core and the hypervisor took 4 %"]),
        ({"others_pct": 11.0, "noise_pct": 4.5}, []),
        ({"others_pct": 12.0, "noise_pct": 4.5}, ["other programs used 12 % of one core"]),
        ({"harness_pct": 50.0}, []),
        ({"others_pct": 34.0, "kernel_pct": 30.0}, []),
        ({"others_pct": 34.0, "kernel_pct": 20.0}, ["other programs used 34 % of one core"]),
        ({"gap_max_ms": 140.0}, ["the client was not let run for 140 ms"]),
        ({"gap_max_ms": 140.0, "measured_pct": 185.0, "cores": 2}, []),
        ({"gap_max_ms": 140.0, "measured_pct": 150.0, "cores": 2}, ["the client was not let run for 140 ms"]),
        (
            {"gc_runs": 2, "gc_pause_us": 400.0},
            ["the client collected garbage 2 times while the clock ran (0.4 ms"],
        ),
        ({"lag_p99_ms": 8.0}, ["1 % of its requests left 8.0 ms late"]),
        ({"server_delay_share": 0.9, "client_delay_share": 0.9}, []),
    ],
)
def test_what_is_above_the_limits_is_said(seen, said):
    found = disturbance.above({**QUIET, **seen}, LIMITS)
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


def test_waiting_for_a_core_is_a_share_without_what_a_quota_made_wait():
    assert disturbance.delay_share((1.0, 1.0), (4.0, 2.0)) == 0.25
    assert disturbance.delay_share((0.0, 0.0), (1.0, 3.0), throttled_s=2.0) == 0.5
    assert disturbance.delay_share((5.0, 5.0), (1.0, 1.0)) == 0.0  # its threads have ended
    assert disturbance.delay_share(None, (1.0, 1.0)) is None


def test_what_threads_wait_is_summed_over_all_threads_of_a_process(tmp_path):
    for thread, text in {"7": "1000000000 500000000 3", "8": "2000000000 250000000 9", "9": "broken"}.items():
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(text)
    assert disturbance.run_delay([7, 12], tmp_path) == (3.0, 0.75)
    assert disturbance.run_delay([12], tmp_path) is None
    ran, _ = disturbance.run_delay([os.getpid()])
    assert ran > 0


def test_a_disturbed_run_is_measured_again_so_often_then_valid_and_its_record_says_what_disturbed_it(bench, capfd):
    honest = bench()
    plain, filtered, _ = honest.matrix.cells
    seen = honest.load(plain)["disturbance"].keys() - {"noise_pct"}
    assert seen == {"others_pct", "steal_pct", "harness_pct", "kernel_pct", "measured_pct", "limits", "above"}
    assert set(honest.query(plain, filtered, disturbance=ALWAYS).values()) == {"ok"}
    said = capfd.readouterr().err
    assert said.count("k5: is measured again: other programs used") == 2
    assert said.count("k5-category: is measured again: other programs used") == 2
    for cell in (plain, filtered):
        record = honest.record(cell)
        assert failed(record) == {}
        assert record["disturbance"]["repeats"] == 2
        gave = record["disturbance"]["discarded"]
        assert [run["answers"] for run in gave] == [40, 40], "what does not count is told"
        assert all(run["seconds"] > 0 < run["p99_ms"] for run in gave)
        lines = Ledger.of(honest.matrix.spec(cell.query, "query"), cell.load).lines()
        repeats = [line for line in lines if line["event"] == "repeat" and line["query"] == cell.query]
        assert [line["discarded"] for line in repeats] == gave
        assert record["disturbance"]["limits"] == ALWAYS.limits
        assert "-1 % together is the limit" in record["disturbance"]["above"][0]
        assert 0 <= record["disturbance"]["server_delay_share"] < 1
        assert len(record["jobs"]) == 1


def test_on_a_machine_that_is_always_disturbed_a_session_has_an_end(bench, capfd):
    """The first run measured again takes longer than 0.01 % of the session, so that it is the last."""
    honest = bench()
    plain, filtered, _ = honest.matrix.cells
    honest.load(plain)
    busy = Disturbance.of(others_pct=-1, repeats=2, repeats_percent=0.01)
    assert set(honest.query(plain, filtered, disturbance=busy).values()) == {"ok"}
    said = capfd.readouterr().err
    assert said.count("is measured again: other programs used") == 1
    assert said.count("is not measured again, though disturbed: runs measured again took") == 2
    records = [honest.record(cell) for cell in (plain, filtered)]
    assert sorted(record["disturbance"]["repeats"] for record in records) == [0, 1]
    assert all(record["disturbance"]["above"] and not failed(record) for record in records)


def test_a_run_with_its_own_server_is_measured_again_on_another_one(bench):
    def cold(files):
        files["workloads"]["k5"] |= {"start": "cold", "page_cache": "kept", "warmup": 0, "runs": 1}

    honest = bench(change=cold)
    cell = honest.matrix.cells[0]
    honest.load(cell)
    assert honest.query(cell, disturbance=ALWAYS) == {cell.query: "ok"}
    record = honest.record(cell)
    assert record["disturbance"]["repeats"] == 2
    assert len(record["server"]["start_s"]) >= 3


def timed(files):
    files["workloads"]["k5"] |= {"duration_s": 1.5, "runs": 1}


def test_a_program_that_burns_a_core_beside_a_run_is_seen(bench):
    honest = bench(change=timed)
    cell = honest.matrix.cells[0]
    honest.load(cell)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as hog:
        try:
            honest.query(cell)
        finally:
            hog.kill()
    record = honest.record(cell)
    assert record["disturbance"]["others_pct"] > 10
    assert "other programs used" in record["disturbance"]["above"][0]
    assert record["valid"]
    published = honest.publish(cell)["disturbance"]
    assert published["above"] == [f"run 1: {text}" for text in record["disturbance"]["above"]]


def test_a_second_user_of_the_measured_server_is_seen_by_the_cpu_of_its_client(bench, monkeypatch):
    honest = bench(change=timed)
    cell = honest.matrix.cells[0]
    honest.load(cell)
    users, start = [], flat.start

    def started(*given, **more):
        server = start(*given, **more)
        users.append(subprocess.Popen([sys.executable, "-c", SECOND_USER, server.endpoint]))
        return server

    monkeypatch.setattr(flat, "start", started)
    try:
        honest.query(cell)
    finally:
        for user in users:
            user.kill()
            user.wait()
    assert users
    record = honest.record(cell)
    assert record["disturbance"]["others_pct"] > 10
    assert "other programs used" in record["disturbance"]["above"][0]


def test_whoever_takes_the_lock_away_makes_the_measurement_invalid(tmp_path, monkeypatch):
    monkeypatch.setenv("ANNCESTRY_MEASURE_LOCK", str(tmp_path / "lock"))
    with platform.alone() as lock:
        assert lock.held()
        assert gates.alone(lock.waited_s, lock.held()).ok
        (tmp_path / "lock").unlink()
        with platform.alone():
            assert not lock.held()
        gate = gates.alone(lock.waited_s, lock.held())
    assert not gate.ok
    assert "somebody else may have measured" in gate.detail


def test_a_late_start_is_a_delay_in_an_open_loop_only_and_a_librarys_garbage_is_its_own():
    facts = {"gap_max_ms": 1.0, "lag_p99_ms": 9.0, "lag_max_ms": 9.0, "gc_runs": 2, "gc_pause_us": 5.0}
    native, go = {**facts, "driver": {"kind": "native"}}, {**facts, "driver": {"kind": "go"}}
    assert disturbance.of_client([native], is_open=True)["lag_p99_ms"] == 9.0
    assert disturbance.of_client([native], is_open=False)["lag_p99_ms"] == 0.0
    assert disturbance.of_client([native, go], is_open=False)["gc_runs"] == 2
    late = {**go, "gap_max_ms": None, "lag_max_ms": 600.0}
    assert disturbance.of_client([native, late], is_open=False)["gap_max_ms"] == 600.0
