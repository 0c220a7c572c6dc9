"""A fault during a run: it can't be asked for where it can't be made, and what clients saw of it is told in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anncestry.drive.protocol import ERROR, OK, SAMPLE
from anncestry.errors import ConfigError
from anncestry.measure.fault import Fault, check, impact

PAUSE = {"kind": "pause", "member": "node2", "at_s": 2, "for_s": 2}


@pytest.mark.parametrize(
    ("fault", "runtime", "duration_s", "complaint"),
    [
        ({"kind": "flood"}, "docker", 10, "'flood' is none of kill, pause, partition"),
        ({"kind": "partition"}, "native", 10, "partition needs runtime docker"),
        ({}, "remote", 10, "is left in peace"),
        ({}, "native", None, "only a run of fixed time"),
        ({"for_s": 9}, "native", 10, "ends at 11 s, the run at 10 s"),
    ],
)
def test_an_impossible_fault_is_refused(
    fault: dict[str, Any], runtime: str, duration_s: float | None, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check({**PAUSE, **fault}, {"runtime": runtime}, duration_s)


def made_at(made_s: float, mended_s: float) -> Fault:
    fault = object.__new__(Fault)
    fault.made_s, fault.mended_s = 100.0 + made_s, 100.0 + mended_s
    return fault


def samples(due_s: np.ndarray, latency_s: np.ndarray) -> np.ndarray:
    table = np.zeros(len(due_s), SAMPLE)
    table["due_ns"], table["latency_ns"] = due_s * 1e9, latency_s * 1e9
    return table


def test_a_stall_and_failures_are_timed_from_the_fault() -> None:
    due_s = np.concatenate([np.arange(0, 2, 0.01), [2.0], np.arange(5, 10, 0.01)]) + 0.001
    latency_s = np.full(len(due_s), 0.002)
    latency_s[200] = 3.0
    status = np.full(len(due_s), OK)
    status[201:301] = ERROR
    recall = np.where(due_s < 5, 1.0, 0.6)
    seen = impact(samples(due_s, latency_s), status, 100_000_000_000, made_at(2.0, 4.0), recall)
    assert (seen.requests, seen.lost) == (701, 100)
    assert seen.first_lost_s == pytest.approx(3.001) and seen.last_lost_s == pytest.approx(3.991)
    assert seen.silence_s == pytest.approx(3.01, abs=0.02)
    assert seen.p99_before_ms == pytest.approx(2.0)
    assert seen.recovered_s == pytest.approx(4.0, abs=0.5)
    assert seen.steps[0]["recall"] == 1.0 and seen.steps[-1]["recall"] == pytest.approx(0.6), "silent loss shows here"
    assert seen.steps[10]["lost"] == 50 and seen.steps[5]["requests"] == 0


def test_no_recovery_within_the_run_is_no_number() -> None:
    due_s = np.arange(0, 4, 0.01)
    status = np.where(due_s < 2, OK, ERROR)
    seen = impact(samples(due_s, np.full(len(due_s), 0.002)), status, 100_000_000_000, made_at(2.0, 3.0), None)
    assert seen.recovered_s is None and seen.lost == 200


def test_a_fault_that_nobody_notices_costs_nothing() -> None:
    due_s = np.arange(0, 4, 0.01)
    status = np.full(len(due_s), OK)
    seen = impact(samples(due_s, np.full(len(due_s), 0.002)), status, 100_000_000_000, made_at(2.0, 3.0), None)
    assert (seen.lost, seen.first_lost_s, seen.recovered_s) == (0, None, 0.0)
