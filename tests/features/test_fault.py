"""A fault during a run: it can't be asked for where it can't be made, and what clients saw of it is told in numbers."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from anncestry.engines.base import Server
from anncestry.engines.offers import check_fault
from anncestry.errors import ConfigError, ServerError
from anncestry.features.fault.measuring import Fault, impact
from anncestry.measure import requests
from anncestry.runtimes.base import Group, Member
from anncestry.runtimes.native import NativeProcess
from tests.toy import ROOT, anncestry, run_workflow
from tests.waiting import until

PAUSE = {"kind": "pause", "member": "node2", "at_s": 2, "for_s": 2}


@pytest.mark.parametrize(
    ("fault", "runtime", "duration_s", "complaint"),
    [
        ({"kind": "partition"}, "native", 10, "partition needs runtime docker"),
        ({"member": "node4"}, "docker", 10, "'node4' is no member; there are node1, node2"),
        ({}, "remote", 10, "is left in peace"),
        ({}, "native", None, "only a run of fixed time"),
        ({"for_s": 9}, "native", 10, "ends 11 s after the start of a run of 10 s"),
    ],
)
def test_an_impossible_fault_is_refused(
    fault: dict[str, Any], runtime: str, duration_s: float | None, complaint: str
) -> None:
    workload = {"fault": {**PAUSE, **fault}, "duration_s": duration_s}
    with pytest.raises(ConfigError, match=complaint):
        check_fault({"runtime": runtime}, workload, ["node1", "node2"])


def seen_by_clients(due_s: np.ndarray, latency_ms: np.ndarray, good: np.ndarray) -> dict[str, Any]:
    return impact(due_s, latency_ms, good, {"made_s": 2.0, "mended_s": 4.0, "whole_s": 5.0})


def test_a_stall_and_failures_are_timed_from_the_fault() -> None:
    due_s = np.concatenate([np.arange(0, 2, 0.01), [2.0], np.arange(5, 10, 0.01)]) + 0.001
    latency_ms = np.full(len(due_s), 2.0)
    latency_ms[200] = 3000.0
    good = np.full(len(due_s), True)
    good[201:301] = False
    seen = seen_by_clients(due_s, latency_ms, good)
    assert (seen["requests"], seen["lost"]) == (701, 100)
    assert seen["first_lost_s"] == pytest.approx(3.001) and seen["last_lost_s"] == pytest.approx(3.991)
    assert seen["silence_s"] == pytest.approx(3.01, abs=0.02)
    assert seen["p99_before_ms"] == pytest.approx(2.0)
    assert seen["recovered_s"] == pytest.approx(4.0, abs=0.5)
    assert seen["steps"][10]["lost"] == 50 and seen["steps"][5]["requests"] == 0


def test_no_recovery_within_the_run_is_no_number() -> None:
    due_s = np.arange(0, 4, 0.01)
    seen = seen_by_clients(due_s, np.full(len(due_s), 2.0), due_s < 2)
    assert seen["recovered_s"] is None and seen["lost"] == 200


def test_a_fault_that_nobody_notices_costs_nothing() -> None:
    due_s = np.arange(0, 4, 0.01)
    seen = seen_by_clients(due_s, np.full(len(due_s), 2.0), np.full(len(due_s), True))
    assert (seen["lost"], seen["first_lost_s"], seen["recovered_s"]) == (0, None, 0.0)


def test_a_half_second_in_which_an_open_loop_sends_nothing_is_no_sign_of_a_fault() -> None:
    due_s = requests.arrivals(4, 30, "poisson", seed=1, run=0) / 1e9
    assert len(np.unique(np.floor(2 * due_s))) < 58, "some half seconds have no request"
    seen = seen_by_clients(due_s, np.full(len(due_s), 2.0), np.full(len(due_s), True))
    assert seen["recovered_s"] == 0.0


class Pair(Server):
    """Two processes; the system misses one as long as there is a file, and with another there knows no more."""

    missed: Path
    confused: Path

    @property
    def endpoint(self) -> str:
        return "none"

    def check_members(self) -> None:
        self.check_alive()
        if self.confused.exists():
            raise LookupError("another answer than ever")
        if self.missed.exists():
            raise ServerError("node2 is missed")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    group = Group()
    for name in ("node1", "node2"):
        handle = NativeProcess(name, ["/bin/sleep", "600"], {}, tmp_path, tmp_path / f"{name}.log")
        group.add(Member(name, "node", handle))
    server = Pair(group, {})
    server.missed, server.confused = tmp_path / "missed", tmp_path / "confused"
    server.missed.touch()
    yield server
    server.stop()


def goes_on(fault: Fault, until: Callable[[], object]) -> None:
    """A run whose clock has begun, of which the driver tells now and then."""
    fault.begin()
    deadline = time.monotonic() + 600
    while not until():
        assert time.monotonic() < deadline
        fault.check()
        time.sleep(0.02)


def test_that_no_member_is_missed_any_more_is_noticed_while_the_run_goes_on(pair: Pair) -> None:
    fault = Fault(pair, {"kind": "pause", "member": "node2", "at_s": 0, "for_s": 0.1})
    (pid,) = pair.group["node2"].handle.pids()
    goes_on(fault, lambda: fault.made_s)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process to stand still")
    goes_on(fault, lambda: fault.mended_s)
    until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED, "the process to go on")
    later_s = time.monotonic() + 1
    goes_on(fault, lambda: time.monotonic() > later_s)
    assert fault.whole_s is None, "it is still missed"
    pair.missed.unlink()
    goes_on(fault, lambda: fault.whole_s)
    before_s = fault.whole_s
    fault.end(timeout_s=60)
    times = fault.times(0.0)
    assert times["made_s"] < times["mended_s"] < later_s < times["whole_s"] == before_s


def test_a_fault_waits_for_the_clock_however_long_the_clients_warm_up(pair: Pair) -> None:
    fault = Fault(pair, {"kind": "pause", "member": "node2", "at_s": 0.01, "for_s": 0})
    for _ in range(3):
        time.sleep(0.02)
        fault.check()
    assert fault.made_s is None
    begun_s = time.monotonic()
    goes_on(fault, lambda: fault.made_s)
    assert fault.made_s is not None and fault.made_s >= begun_s + 0.01
    fault.end(timeout_s=60)


def test_a_member_that_stays_missed_is_whole_at_no_time_and_what_is_no_answer_is_raised(pair: Pair) -> None:
    fault = Fault(pair, {"kind": "pause", "member": "node2", "at_s": 0, "for_s": 600})
    goes_on(fault, lambda: fault.made_s)
    fault.end(timeout_s=0.2)  # the run was over before it was to be mended
    assert fault.times(0.0)["whole_s"] is None and fault.mended_s is not None
    other = Fault(pair, {"kind": "pause", "member": "node1", "at_s": 0, "for_s": 0})
    goes_on(other, lambda: other.mended_s)
    pair.confused.touch()
    with pytest.raises(LookupError):
        other.end(timeout_s=60)


@pytest.mark.long
@pytest.mark.servers
def test_a_node_killed_during_a_run_is_measured_verified_and_invalidates_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(ROOT / "config", config)
    block = {
        "datasets": ["random-xs-20-angular"],
        "systems": ["weaviate-1.27.0"],
        "topologies": ["cluster-3-rf3"],
        "workloads": ["smoke-k10", "smoke-k10-kill"],
    }
    main = yaml.safe_load((config / "config.yaml").read_text())
    (config / "config.yaml").write_text(yaml.safe_dump({**main, "matrix": [block]}))
    run_workflow(tmp_path, f"config_dir={config}")
    paths = list((tmp_path / "results" / "query").rglob("smoke-k10*.json"))
    records = {record["spec"]["workload"]["name"]: record for record in map(json.loads, map(Path.read_text, paths))}
    for record in records.values():
        assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
    assert "fault" not in records["smoke-k10"]
    (seen,) = records["smoke-k10-kill"]["fault"]["runs"]
    assert (seen["kind"], seen["member"]) == ("kill", "node2")
    assert 1.5 <= seen["made_s"] < seen["mended_s"] and seen["whole_s"] is not None
    assert seen["requests"] > 500 and seen["silence_s"] > 0
    (table,) = (tmp_path / "results" / "table").glob("*/numbers.json")
    rows = {(row["workload"], row["metric"]): row for row in json.loads(table.read_text())}
    assert rows["smoke-k10-kill", "fault_lost"]["value"] == seen["lost"]
    assert rows["smoke-k10-kill", "fault_recall_during"]["value"] > 0.5
    assert ("smoke-k10", "fault_lost") not in rows
    done = anncestry(tmp_path, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
